"""The harness: configurations, tasks, objectives, training, evaluation and the commands that run them."""

if __name__ == "experiments":  # in the folder of a checkout: a second copy would have other classes
    raise ImportError("import archbench.experiments: the packages of archbench have no other name")
