# Sourced by the job scripts: settings of the cluster, its modules, and $PYTHON.
if [[ ! -f slurm/environment.sh ]]; then
	echo "error: $PWD is not the root of the checkout: submit from there" >&2
	exit 2
fi
cluster=${ARCHBENCH_CLUSTER:-slurm/cluster.env}
if [[ -f $cluster ]]; then
	set -a # what the file sets, the run sees
	# shellcheck source=slurm/cluster.env.example
	source "$cluster"
	set +a
elif [[ -n ${ARCHBENCH_CLUSTER:-} ]]; then
	echo "error: ARCHBENCH_CLUSTER=$cluster is no file; slurm/cluster.env.example shows what it holds" >&2
	exit 2
fi
for module in ${CLUSTER_MODULES:-}; do
	module load "$module"
done
PYTHON=${CLUSTER_PYTHON:-python}
