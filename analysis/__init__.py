"""From run folders to tables, figures and reports."""

if __name__ == "analysis":  # in the folder of a checkout: a second copy would have other classes
    raise ImportError("import archbench.analysis: the packages of archbench have no other name")
