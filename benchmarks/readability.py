"""Measure how heavy the code is to read: stack depth, imports, functions, untyped data, YAML, words.

python benchmarks/readability.py
python benchmarks/readability.py --static

``--static`` leaves out what needs a training step. Counts are of the checkout that holds this file.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from machine import as_markdown

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("architectures", "experiments", "analysis", "slurm")
WORDS = ("backbone=mamba", "task=recall", "budget=smoke", "scale=nano", "device=cpu", "device.threads=1")


def sources(*folders: str) -> Iterator[tuple[Path, str]]:
    """Yield path and text of the Python files below some folders of the checkout."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, path.read_text(encoding="utf-8")


def print_first_step() -> None:
    """Train a run until its first optimizer step; print the stack there, modules, and files executed."""
    import torch

    executed: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            executed.add(frame.f_code)

    def is_own(file: str | None) -> bool:
        return file is not None and file.startswith(f"{ROOT}/") and ".venv" not in file and file != __file__

    def step(*_: object, **__: object) -> None:
        sys.setprofile(None)
        imported = {
            module.__file__ for module in list(sys.modules.values()) if getattr(module, "__file__", None)
        }
        own_files = [file for file in imported if file is not None and is_own(file)]
        frames = [frame for frame in traceback.extract_stack() if is_own(frame.filename)]
        for frame in frames:
            print("FRAME", Path(frame.filename).relative_to(ROOT), frame.name)
        # Bodies of modules and classes, which run at import, have no fast local variables.
        functions = (code for code in set(executed) if code.co_flags & inspect.CO_OPTIMIZED)
        for file in sorted({code.co_filename for code in functions if is_own(code.co_filename)}):
            print("FILE", Path(file).relative_to(ROOT))
        lines = sum(Path(file).read_text(encoding="utf-8").count("\n") for file in own_files)
        print("COUNT", len(frames), len(own_files), lines, flush=True)
        os._exit(0)

    torch.optim.AdamW.step = step  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as runs:
        sys.argv = ["train", *WORDS, f"runs={runs}"]
        threading.setprofile(note)
        sys.setprofile(note)
        runpy.run_module("archbench.experiments.train", run_name="__main__")


def first_step() -> tuple[list[str], list[str], list[str]]:
    """Return the stack in the first optimizer step, the files executed until it, and the counts of both."""
    command = [sys.executable, __file__, "--first-step"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    fields: dict[str, list[str]] = {"FRAME": [], "FILE": [], "COUNT": []}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        fields.get(name, []).append(value)
    if not fields["COUNT"]:
        sys.exit(f"the run took no step:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return fields["FRAME"], fields["FILE"], fields["COUNT"][0].split()


def functions() -> tuple[int, int, float, int, int]:
    """Return lines, functions, their median length, private functions, and those used once in their file."""
    lines, lengths, private, single = 0, [], 0, 0
    for _, text in sources(*PRODUCT):
        lines += text.count("\n")
        names = Counter(re.findall(r"\w+", text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths.append((node.end_lineno or node.lineno) - node.lineno + 1)
                if node.name.startswith("_") and not node.name.startswith("__"):
                    private += 1
                    single += names[node.name] == 2
    return lines, len(lengths), statistics.median(lengths), private, single


COMPONENTS = ("backbone", "objective", "optimizer", "task")
"""Groups of conf/ whose files name a class, and extend the defaults of its settings."""


def repeated_yaml_values() -> list[str]:
    """Return the values of conf/ that are those of the dataclass, or of the file that a file extends."""
    paths = sorted(path for group in COMPONENTS for path in (ROOT / "conf" / group).rglob("*.yaml"))
    repeated = []
    for path in paths:
        own, extended = read_extended(path)
        keys = [key for key in leaves(own) if leaves(extended).get(key, ...) == leaves(own)[key]]
        repeated += [f"{path.relative_to(ROOT)}: {key}" for key in keys if key != "_target_"]
    return repeated


def read_extended(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of a YAML file, and those that it extends."""
    from omegaconf import OmegaConf

    from archbench.experiments.config.yaml_files import config_defaults

    own: Any = OmegaConf.to_container(OmegaConf.load(path))
    parents = [name.partition("@")[0] for name in own.pop("defaults", []) if isinstance(name, str)]
    trees = [read_extended(path.parent / f"{name}.yaml") for name in parents if name != "_self_"]
    defaults = config_defaults(own.get("_target_", ""))
    extended = OmegaConf.merge(defaults, *(part for values, base in trees for part in (base, values)))
    return own, OmegaConf.to_container(extended)  # type: ignore[return-value]


def leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a tree by dotted key."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def documentation_words() -> int:
    """Return the words of the documentation, without what is generated when it is built."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "/_" not in path.relative_to(ROOT).as_posix()]
    return sum(len(path.read_text(encoding="utf-8").split()) for path in pages)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--static", action="store_true", help="measure nothing that needs a training step")
    parser.add_argument("--first-step", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.first_step:
        print_first_step()
    rows: list[list[str]] = []
    frames, files = list[str](), list[str]()
    if not args.static:
        frames, files, (depth, modules, imported) = first_step()
        size = f"{modules} ({int(imported):,})"
        rows.append(["own stack frames inside optimizer.step", depth])
        rows.append(["own modules (lines) imported to train Mamba on recall", size])
        rows.append(["files executed to the first optimizer step", f"{len(files)}"])
    from archbench.experiments.cli import NAMES

    lines, count, median, private, single = functions()
    untyped = sum(len(re.findall(r"dict\[str, Any\]", text)) for _, text in sources(*PRODUCT))
    rows += [
        ["functions for each 1,000 lines; median length", f"{1000 * count / lines:.0f}; {median:.0f}"],
        ["private functions used once in their file, of all", f"{single} of {private}"],
        ["uses of dict[str, Any]", f"{untyped}"],
        ["YAML values equal to the default", f"{len(repeated_yaml_values())}"],
        ["commands", f"{len(NAMES)}"],
        ["words of documentation", f"{documentation_words():,}"],
    ]
    for folder in (*PRODUCT, "tests", "benchmarks"):
        total = sum(text.count("\n") for _, text in sources(folder))
        rows.append([f"lines of Python in {folder}/", f"{total:,}"])
    print(as_markdown(["", "measured"], rows))
    if frames:
        print("\nThe stack:", *frames, sep="\n")
        print("\nFiles executed to the first optimizer step:", *files, sep="\n")


if __name__ == "__main__":
    main()
