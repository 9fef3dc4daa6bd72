"""Measure how heavy the code is to read: size, stack depth, imports, functions, untyped data, YAML, words.

python benchmarks/readability.py --output benchmarks/results/readability.md

Counts are of the checkout that holds this file. ``EARLIER`` has those of commit adff0ac1, and goals.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from machine import as_markdown

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("architectures", "experiments", "analysis", "slurm")
PAGE = ROOT / "benchmarks" / "results" / "readability.md"
EARLIER = {
    "lines of Python, without tests and benchmarks": ("77,111", "63,000"),
    "files of Python, without tests and benchmarks": ("581", "430"),
    "lines of tests": ("70,881", "55,000"),
    "lines for each module imported to train": ("149", "220"),
    "own modules imported to train": ("173", "120"),
    "own stack frames inside optimizer.step": ("6", "6"),
    "median lines of a function": ("7", ""),
    "private functions used once in their file": ("522", "250"),
    "uses of dict[str, Any]": ("132", "60"),
    "imports inside functions": ("143", "40"),
    "comment lines in percent": ("0.3", "3"),
    "commands": ("20", ""),
    "YAML values equal to the default": ("0", "0"),
    "words of documentation": ("66,265", "45,000"),
}
"""Counts of commit adff0ac1, and goals, by what is counted."""
WORDS = ("backbone=mamba", "task=recall", "budget=smoke", "scale=nano", "device=cpu", "device.threads=1")


def sources(*folders: str) -> Iterator[tuple[Path, str]]:
    """Yield path and text of the Python files below some folders of the checkout."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, path.read_text(encoding="utf-8")


def print_first_step() -> None:
    """Train a run until its first optimizer step; print the stack there, modules, and files executed."""
    import torch

    def is_own(file: str | None) -> bool:
        return file is not None and f"{ROOT}/src/archbench/" in file

    def step(*_: object, **__: object) -> None:
        imported = {
            module.__file__ for module in list(sys.modules.values()) if getattr(module, "__file__", None)
        }
        own_files = [file for file in imported if file is not None and is_own(file)]
        frames = [frame for frame in traceback.extract_stack() if is_own(frame.filename)]
        for frame in frames:
            print("FRAME", Path(frame.filename).relative_to(ROOT / "src" / "archbench"), frame.name)
        lines = sum(Path(file).read_text(encoding="utf-8").count("\n") for file in own_files)
        print("COUNT", len(frames), len(own_files), round(lines / len(own_files)), flush=True)
        os._exit(0)

    torch.optim.AdamW.step = step  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as runs:
        sys.argv = ["train", *WORDS, f"runs={runs}"]
        runpy.run_module("archbench.experiments.train", run_name="__main__")


def first_step() -> tuple[list[str], list[str]]:
    """Return the stack in the first optimizer step; its depth, modules imported, and lines of those run."""
    command = [sys.executable, __file__, "--first-step"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    fields: dict[str, list[str]] = {"FRAME": [], "COUNT": []}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        fields.get(name, []).append(value)
    if not fields["COUNT"]:
        sys.exit(f"the run took no step:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return fields["FRAME"], fields["COUNT"][0].split()


def static_counts() -> dict[str, float]:
    """Return what needs no training step, by what is counted."""
    from archbench.experiments.cli import NAMES

    product = [text for _, text in sources(*PRODUCT)]
    lengths, private_once, nested = list[int](), 0, 0
    for text in product:
        names = Counter(re.findall(r"\w+", text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths.append((node.end_lineno or node.lineno) - node.lineno + 1)
                is_private = node.name.startswith("_") and not node.name.startswith("__")
                private_once += is_private and names[node.name] == 2
                nested += sum(isinstance(each, ast.Import | ast.ImportFrom) for each in ast.walk(node))
    lines = sum(text.count("\n") for text in product)
    comments = sum(len(re.findall(r"^\s*#", text, re.MULTILINE)) for text in product)
    return {
        "lines of Python, without tests and benchmarks": lines,
        "files of Python, without tests and benchmarks": len(product),
        "lines of tests": sum(text.count("\n") for _, text in sources("tests")),
        "median lines of a function": statistics.median(lengths),
        "private functions used once in their file": private_once,
        "uses of dict[str, Any]": sum(len(re.findall(r"dict\[str, Any\]", text)) for text in product),
        "imports inside functions": nested,
        "comment lines in percent": round(100 * comments / lines, 1),
        "commands": len(NAMES),
        "YAML values equal to the default": len(repeated_yaml_values()),
        "words of documentation": documentation_words(),
    }


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
    parser.add_argument("--output", type=Path, help="the page to write")
    parser.add_argument("--first-step", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.first_step:
        print_first_step()
    frames, (depth, modules, lines_each) = first_step()
    counts: dict[str, float] = static_counts() | {
        "lines for each module imported to train": int(lines_each),
        "own modules imported to train": int(modules),
        "own stack frames inside optimizer.step": int(depth),
    }
    rows = [[name, before, f"{counts[name]:,}", goal] for name, (before, goal) in EARLIER.items()]
    text = "\n".join(
        [
            "`python benchmarks/readability.py`; a test compares the counts with the code.",
            "",
            as_markdown(["", "adff0ac1", "now", "goal"], rows),
            "",
            "The stack in the first optimizer step:",
            "",
            *(f"    {frame}" for frame in frames),
            "",
        ]
    )
    print(text)
    if args.output:
        args.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
