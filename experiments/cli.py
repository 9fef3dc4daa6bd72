"""The console command ``archbench``: one name for every entry point.

    archbench train backbone=mamba task=recall     is python -m experiments.train backbone=mamba task=recall
    archbench compare study=compare                is python -m analysis.compare study=compare

Modules are named here as strings and imported only when they are run, so that help is printed at once.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import runpy
import sys

from experiments.runtime.errors import ConfigError, nearest
from experiments.runtime.imports import check_one_root
from experiments.runtime.preemption import ends_at_signals
from experiments.runtime.streams import guard_streams

COMMANDS = {
    "Train and use models": {
        "prepare": ("experiments.prepare", "tokenise and store the data of runs, by many processes"),
        "train": ("experiments.train", "train a run, or every missing run of a sweep or study"),
        "plan": (
            "experiments.plan",
            "list the runs of a study with their costs and states; --watch follows them",
        ),
        "evaluate": ("experiments.evaluate", "score a trained model on its own task or another"),
        "generate": ("experiments.generate", "generate text with a trained model"),
        "downstream": (
            "experiments.evaluation.downstream",
            "score a trained model on tasks of lm-evaluation-harness",
        ),
        "sample-quality": (
            "experiments.evaluation.sample_quality",
            "measure quality and speed of generated text",
        ),
        "export": ("experiments.export", "write a trained model as a Hugging Face folder"),
        "tasks": ("experiments.tasks", "score an oracle and shallow baselines on the synthetic tasks"),
    },
    "Measure costs": {
        "cost": ("experiments.cost", "print parameters, FLOPs and memory of a model, without building it"),
        "simulate": ("experiments.simulate", "memory and traffic of a step of many processes, without them"),
        "benchmark": ("experiments.benchmark", "time training, prefill and decoding of a backbone"),
        "speed": ("analysis.speed", "draw what benchmark measured"),
    },
    "Benchmark": {
        "track": ("analysis.track", "run a track: tune, train what is missing, and write its tables"),
    },
    "Analyse studies": {
        "compare": ("analysis.compare", "print the tables of a study; write its results, figures and page"),
        "rates": ("analysis.rates", "choose the learning rate of each model from a sweep"),
        "grid-search": ("analysis.grid_search", "choose the settings of each backbone from a grid"),
        "scaling": ("analysis.scaling", "fit scaling laws to a study or to a table of points"),
        "experts": ("analysis.experts", "describe what the experts of a trained mixture do"),
        "findings": (
            "analysis.findings",
            "decide claims and published numbers of the field from stored runs",
        ),
    },
    "Weights & Biases": {
        "sync": ("slurm.sync", "upload the runs of a study to Weights & Biases"),
        "dashboard": ("analysis.dashboard", "make a Workspace and a Report of a study in Weights & Biases"),
        "fetch": ("analysis.fetch", "download runs from Weights & Biases into run folders"),
    },
    "Look after runs": {
        "check": ("experiments.check", "verify every run folder, checkpoint and token file of a study"),
        "doctor": ("experiments.doctor", "print what this machine and installation can do"),
    },
    "SLURM": {
        "submit-prepare": ("slurm.prepare", "submit the preparation of a large dataset to a SLURM cluster"),
        "submit": ("slurm.submit", "submit the missing runs of a study to a SLURM cluster"),
        "status": ("slurm.status", "print the state of each submitted run"),
    },
}
"""For each heading of the help: command, module, and what it does."""

MODULES = {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}


@ends_at_signals()
def main() -> None:
    """Run the module of the command named by the first word, with the words after it."""
    guard_streams()
    name = sys.argv[1] if len(sys.argv) > 1 else None
    if name in ("-h", "--help"):
        print(_help())
    elif name == "--version":
        print(importlib.metadata.version("archbench"))
    elif name is None:
        sys.stderr.write(f"{_help()}\n")
        sys.exit(ConfigError.exit_code)
    elif name not in MODULES:
        sys.stderr.write(f"error: '{name}' is no command{nearest(name, [*MODULES, '--help', '--version'])}\n")
        sys.exit(ConfigError.exit_code)
    else:
        del sys.argv[1]
        try:
            check_one_root()
        except ConfigError as error:
            sys.stderr.write(f"error: {error}\n")
            sys.exit(error.exit_code)
        for package in ("architectures", "analysis", "slurm"):
            importlib.import_module(package)  # an analysis.py of the user's does not stand in for ours
        sys.path.append(os.getcwd())  # where classes of the user's are found, after all libraries
        runpy.run_module(MODULES[name], run_name="__main__", alter_sys=True)


def _help() -> str:
    width = max(map(len, MODULES))
    lines = ["usage: archbench COMMAND [key=value ...]", "       archbench COMMAND --help"]
    for heading, commands in COMMANDS.items():
        lines += ["", heading, *(f"  {name:{width}}  {line}" for name, (_, line) in commands.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
