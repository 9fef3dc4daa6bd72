#!/usr/bin/env bash
# Build mamba-ssm and causal-conv1d for one compute capability, with a CUDA compiler from PyPI, and install archbench with them:
#
#   tests/gpu/build_cuda_extra.sh FOLDER [CAPABILITY]     90 (Hopper) by default; 80 is Ampere
#
# FOLDER is made: env (the environment), wheels (the two packages, which other machines with this Python and PyTorch can install),
# sources and build.log. A second call continues an interrupted build. No GPU, driver or CUDA toolkit is needed.
# PYTHON names the interpreter (python3), TORCH the version of PyTorch, MAX_JOBS the number of compilers (1).
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
capability=${2:-90}
if [[ $# -lt 1 || $# -gt 2 || $1 == -* || ! $capability =~ ^[0-9]{2,3}$ ]]; then
	echo "usage: build_cuda_extra.sh FOLDER [CAPABILITY]: CAPABILITY is two or three digits, as 80 (Ampere) or 90 (Hopper)" >&2
	exit 2
fi
folder=$(mkdir -p "$1" && cd "$1" && pwd)
if [[ -f $folder/capability && $(<"$folder/capability") != "$capability" ]]; then
	echo "error: $folder has a build for sm_$(<"$folder/capability"): name another folder for sm_$capability" >&2
	exit 2
fi
echo "$capability" >"$folder/capability"
: "${TORCH:=$(sed -n 's/^torch==//p' "$root/constraints.txt")}"
export MAX_JOBS="${MAX_JOBS:-1}" MAMBA_FORCE_BUILD=TRUE CAUSAL_CONV1D_FORCE_BUILD=TRUE  # never look for wheels elsewhere
packages=(causal-conv1d==1.7.0 mamba-ssm==2.3.1)
bin=$folder/env/bin
pip() { "$bin/python" -m pip --disable-pip-version-check "$@"; }

[[ -x $bin/pip ]] || "${PYTHON:-python3}" -m venv --clear "$folder/env"  # pip comes last: without it the environment is unfinished
# ===: the CUDA build, even where an index also has the version of the CPU build, such as 2.13.0+cpu.
pip install --quiet "torch===$TORCH" setuptools wheel packaging ninja numpy
# PyTorch pins cuda-toolkit: its extras are the compiler and headers of the same version.
pip install --quiet 'cuda-toolkit[nvcc,cccl]'
CUDA_HOME=$("$bin/python" -c 'import importlib.util as u; print(*u.find_spec("nvidia").submodule_search_locations)')
CUDA_HOME=$(echo "$CUDA_HOME"/cu[0-9]*)
export CUDA_HOME
ln -sf "$(basename "$CUDA_HOME"/lib/libcudart.so.*)" "$CUDA_HOME/lib/libcudart.so"  # which the linker looks for

# The packages list up to nine architectures in their build scripts and ignore TORCH_CUDA_ARCH_LIST.
cat >"$bin/nvcc_one_architecture" <<SCRIPT
#!/usr/bin/env bash
kept=()
while ((\$#)); do
	if [[ \$1 == -gencode ]]; then shift 2; else kept+=("\$1") && shift; fi
done
exec "$CUDA_HOME/bin/nvcc" -gencode arch=compute_$capability,code=sm_$capability "\${kept[@]}"
SCRIPT
chmod +x "$bin/nvcc_one_architecture"
export PYTORCH_NVCC="$bin/nvcc_one_architecture" PATH="$bin:$PATH"

mkdir -p "$folder/sources" "$folder/wheels"
for package in "${packages[@]}"; do
	name=${package%%==*} version=${package##*==}
	source=$folder/sources/${name//-/_}-$version
	if [[ ! -d $source ]]; then
		MAMBA_SKIP_CUDA_BUILD=TRUE CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE pip download --quiet --no-deps --no-build-isolation \
			--no-binary :all: --dest "$folder/sources" "$package"
		mkdir -p "$folder/sources/partial"
		tar --extract --gzip --file "$source.tar.gz" --directory "$folder/sources/partial"
		mv "$folder/sources/partial/$(basename "$source")" "$source"
	fi
	compgen -G "$folder/wheels/${name//-/_}-$version-*.whl" >/dev/null && continue
	echo "Building $package for sm_$capability ..."
	began=$SECONDS
	pip wheel --verbose --no-deps --no-build-isolation --wheel-dir "$folder/wheels" "$source" >>"$folder/build.log" 2>&1
	echo "$package: $(((SECONDS - began) / 60)) min" | tee -a "$folder/build.log"
done
pip install --quiet --no-build-isolation --find-links "$folder/wheels" --constraint "$root/constraints.txt" --editable "$root[cuda,dev,fla]"
"$bin/python" -c 'import torch, causal_conv1d_cuda, selective_scan_cuda, causal_conv1d, mamba_ssm'
du -h "$folder/wheels"/*
"$bin/archbench" doctor
