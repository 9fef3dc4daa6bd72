"""Old name of ``python -m experiments.evaluation.sample_quality``."""

from experiments.deprecated import run_moved

if __name__ == "__main__":
    run_moved("experiments.sample_quality", "experiments.evaluation.sample_quality")
