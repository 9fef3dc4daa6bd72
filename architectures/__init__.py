"""Backbones, their layers and kernels, and checkpoints of others."""

if __name__ == "architectures":  # in the folder of a checkout: a second copy would have other classes
    raise ImportError("import archbench.architectures: the packages of archbench have no other name")
