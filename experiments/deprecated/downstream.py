"""Old name of ``python -m experiments.evaluation.downstream``."""

from experiments.deprecated import run_moved

if __name__ == "__main__":
    run_moved("experiments.downstream", "experiments.evaluation.downstream")
