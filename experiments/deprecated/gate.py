"""Old name of ``python -m experiments.tasks``."""

from experiments.deprecated import run_moved

if __name__ == "__main__":
    run_moved("experiments.gate", "experiments.tasks")
