"""The console command ``archbench``: one name for every entry point.

    archbench train backbone=mamba     is python -m archbench.experiments.train backbone=mamba
    archbench compare study=compare    is python -m archbench.analysis.compare study=compare

Modules are named here as strings and imported only when they are run, so that help is printed at once.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import runpy
import sys
from collections.abc import Sequence
from typing import NoReturn

from archbench.architectures.nearest_name import nearest_name
from archbench.experiments.runtime.errors import ConfigError, nearest
from archbench.experiments.runtime.machine import ensure_folders
from archbench.experiments.runtime.preemption import ends_at_signals
from archbench.experiments.runtime.special_files import refuse_pipes
from archbench.experiments.runtime.streams import guard_streams

COMMANDS = {
    "Train and use models": {
        "prepare": ("experiments.prepare", "tokenise and store the data of runs, by many processes"),
        "train": ("experiments.train", "train a run, or every missing run of a sweep or study"),
        "train torchrun": ("experiments.torchrun", "torchrun, which ends with the exit code of the run"),
        "plan": (
            "experiments.plan",
            "list the runs of a study with their costs and states; --watch follows them",
        ),
        "evaluate": ("experiments.evaluate", "score a trained model on its own task or another"),
        "evaluate downstream": (
            "experiments.evaluation.downstream",
            "score a trained model on tasks of lm-evaluation-harness",
        ),
        "evaluate samples": (
            "experiments.evaluation.sample_quality",
            "measure quality and speed of generated text",
        ),
        "evaluate experts": ("analysis.experts", "describe what the experts of a trained mixture do"),
        "generate": ("experiments.generate", "generate text with a trained model"),
        "export": ("experiments.export", "write a trained model as a Hugging Face folder"),
        "tasks": ("experiments.tasks", "score an oracle and shallow baselines on the synthetic tasks"),
    },
    "Measure costs": {
        "cost": ("experiments.cost", "print parameters, FLOPs and memory of a model, without building it"),
        "cost simulate": (
            "experiments.simulate",
            "memory and traffic of a step of many processes, without them",
        ),
        "benchmark": ("experiments.benchmark", "time training, prefill and decoding of a backbone"),
        "benchmark draw": ("analysis.speed", "draw what benchmark measured"),
    },
    "Analyse studies": {
        "track": ("analysis.track", "run a track: tune, train what is missing, and write its tables"),
        "compare": ("analysis.compare", "print the tables of a study; write its results, figures and page"),
        "rates": ("analysis.rates", "choose learning rates or other settings of each model from a sweep"),
        "scaling": ("analysis.scaling", "fit scaling laws to a study or to a table of points"),
        "findings": (
            "analysis.findings",
            "decide claims and published numbers of the field from stored runs",
        ),
        "findings predictions": (
            "analysis.findings.predictions",
            "judge registered predictions by the runs of their study",
        ),
        "export dataset": ("analysis.dataset", "describe a folder of results frames as a dataset"),
        "submit": ("analysis.submission.submit", "write the submission of a model to a study"),
        "validate": ("analysis.submission.validate", "check a submission; train one of its runs again"),
        "export board": ("analysis.board", "write the results board: all scores, to filter and sort"),
    },
    "Weights & Biases": {
        "wandb sync": ("analysis.weights_and_biases.sync", "upload the runs of a study to Weights & Biases"),
        "wandb dashboard": (
            "analysis.weights_and_biases.dashboard",
            "make a Workspace and a Report of a study in Weights & Biases",
        ),
        "wandb fetch": (
            "analysis.weights_and_biases.fetch",
            "download runs from Weights & Biases into run folders",
        ),
    },
    "Look after runs": {
        "check": ("experiments.check", "verify every run folder, checkpoint and token file of a study"),
        "doctor": ("experiments.doctor", "print what this machine and installation can do"),
    },
    "SLURM": {
        "slurm submit": ("slurm.submit", "submit the missing runs of a study to a SLURM cluster"),
        "slurm prepare": ("slurm.prepare", "submit the preparation of a large dataset to a SLURM cluster"),
        "slurm status": ("slurm.status", "print the state of each submitted run"),
    },
}
"""By heading of the help: command, module and purpose. A subcommand is a command of two parts."""

MODULES = {name: f"archbench.{module}" for group in COMMANDS.values() for name, (module, _) in group.items()}
NAMES = list(dict.fromkeys(name.partition(" ")[0] for name in MODULES))
"""The commands without subcommands."""
OPTIONS = ("--help", "--version")


def find_command(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the command at the beginning of arguments, such as ``evaluate experts``, and those after it.

    Raises ConfigError if there is no such command.
    """
    name, rest = arguments[0], list(arguments[1:])
    part = rest[0] if rest and not re.search("^-|=", rest[0]) else ""
    subcommands = {full.partition(" ")[2]: full for full in MODULES if full.startswith(f"{name} ")}
    if part in subcommands:
        return subcommands[part], rest[1:]
    if name in MODULES and not (part and nearest_name(part, subcommands)):
        return name, rest
    if subcommands and not part:
        raise ConfigError(f"{name}: choose one of {', '.join(subcommands.values())}")
    unknown = f"{name} {part}" if subcommands else name
    options = subcommands.values() or [*MODULES, *OPTIONS]
    raise ConfigError(f"'{unknown}' is not a command{nearest(unknown, options)}")


@ends_at_signals()
def main() -> None:
    """Run the module of the command that the arguments begin with."""
    guard_streams()
    refuse_pipes()
    ensure_folders()
    arguments = sys.argv[1:]
    if not arguments:
        _fail(_help())
    has_subcommands_only = arguments[0] in NAMES and arguments[0] not in MODULES
    if arguments[0] in ("-h", "--help") or (has_subcommands_only and arguments[1:] in (["-h"], ["--help"])):
        print(_help())
        return
    if "--version" in arguments:
        print(importlib.metadata.version("archbench"))
        return
    try:
        name, sys.argv[1:] = find_command(arguments)
    except ConfigError as error:
        _fail(f"error: {error}")
    sys.path.append(os.getcwd())  # for classes of the user, after all libraries
    os.environ["PYTHONSAFEPATH"] = "1"  # the same order in the processes that this one starts
    runpy.run_module(MODULES[name], run_name="__main__", alter_sys=True)


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"{message}\n")
    sys.exit(ConfigError.exit_code)


def _help() -> str:
    width = max(map(len, MODULES))
    lines = ["usage: archbench COMMAND [key=value ...]", "       archbench COMMAND --help"]
    for heading, commands in COMMANDS.items():
        lines += ["", heading, *(f"  {name:{width}}  {line}" for name, (_, line) in commands.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
