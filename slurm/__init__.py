"""From one machine to a SLURM cluster: submit a study, watch it, and upload what it logged."""

if __name__ == "slurm":  # in the folder of a checkout: a second copy would have other classes
    raise ImportError("import archbench.slurm: the packages of archbench have no other name")
