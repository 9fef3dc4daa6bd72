"""F56: pipes, links, garbage, endless numbers and odd surroundings end commands with a documented code."""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.experiments import commands
from tests.faults.children import seeds
from tests.faults.odd_commands import Surroundings, ended

EACH = 4
"""Cases for each seed."""
CODES = {0, 2, 3, 6}
DIGITS = "7" * 5000
SUFFIXES = (".txt", ".json", ".jsonl", ".csv", ".tsv", ".parquet", ".conll", ".yaml", "")


def listening(path: Path) -> None:
    """Make a socket; it stays when the process that listens has gone."""
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(path.parent, os.O_RDONLY)  # the path of a socket has 107 bytes at most
        server.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "socket": listening,
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(3000)),
    "garbage": lambda path: path.write_bytes(random.Random(7).randbytes(3000)),
    "folder": lambda path: path.mkdir(),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a long integer": lambda path: path.write_text(f'{{"text": {DIGITS}, "d_model": {DIGITS}}}\n'),
    "a long integer in a list": lambda path: path.write_text(f'[{{"source": 1, "target": {DIGITS}}}]'),
    "an index of numbers": lambda path: path.write_text('{"weight_map": {"a": 3, "b": null}}'),
    "deep": lambda path: path.write_text("[" * 100_000),
    "null": lambda path: path.write_text("null"),
    "NaN": lambda path: path.write_text('{"text": NaN, "label": Infinity}\n'),
    "not there": lambda path: None,
}
TINY = (*commands.TINY, "budget.tokens=256", "budget.batch_size=4", "trainer.checkpoint_every=5")
TRAIN = ("experiments.train", *TINY, "runs={out}")
FILES = "task.source=files"
TEXT = (*TRAIN, FILES, "task=text", "task.sequence_length=32", "task.cache_dir={cache}")
READING = (*TRAIN, FILES, "task.paths=[{path}]")
READERS: tuple[tuple[str, ...], ...] = (
    (*TEXT, "task.paths=[{path}]"),
    (*READING, "task=pairs", "objective=seq2seq", "backbone=encoder_decoder"),
    (*READING, "backbone=encoder", "task=sentences", "objective=sequence_classification"),
    (*READING, "backbone=encoder", "task=tags", "objective=token_classification"),
    (*TEXT, "task.paths=[{text}]", "task.validation_paths=[{text}]", "task.test_paths=[{path}]"),
    (*TEXT, "task.paths=[{text}]", "task.tokenizer.kind=folder", "task.tokenizer.path={path}"),
    (*TRAIN, *commands.RECALL, "init_from={path}"),
    (*TRAIN, *commands.RECALL, "continue_from={path}"),
    (*TRAIN, *commands.RECALL, "study.tuned={path}"),
    (*TRAIN, *commands.RECALL, "study.stored={path}"),
    ("experiments.evaluate", "run={path}"),
    ("experiments.evaluate", "run={run}", "text={path}"),
    ("experiments.generate", "run={path}"),
    ("experiments.export", "run={path}", "to={out}"),
    ("analysis.scaling", "points={path}"),
    ("analysis.compare", "study=x", "runs={runs}"),
    ("experiments.check", "study=x", "runs={runs}"),
    ("analysis.submission.validate", "{path}"),
    ("experiments.cost", "backbone={path}"),
)  # fmt: skip
"""Commands that read a path, or the folder of a run below ``{runs}/x``."""
NUMBERS = (DIGITS, f"-{DIGITS}", f"1e{DIGITS}", f"[{DIGITS}]", f"0.{DIGITS}", f"0x{DIGITS}", "9" * 400)
KEYS = (
    "seed", "budget.tokens", "trainer.log_every", "optimizer.learning_rate", "task.sequence_length",
    "backbone.d_model",
)  # fmt: skip
WORKING: tuple[tuple[str, ...], ...] = (
    (*TRAIN, *commands.RECALL),
    (*TEXT, "task.paths=[{text}]"),
    (*TRAIN, *commands.RECALL, "-m", "seed=0,1"),
    ("experiments.plan", *TINY, *commands.RECALL, "runs={out}"),
    ("experiments.evaluate", "run={run}"),
    ("experiments.generate", "run={run}"),
    ("experiments.export", "run={run}", "to={out}"),
    ("analysis.compare", "study=single", "runs={trained}"),
    ("experiments.check", "study=single", "runs={trained}"),
    ("experiments.cost", "backbone=decoder"),
)
"""Commands that end with 0."""


VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_JOB_END_TIME", "SLURM_PROCID", "TMPDIR", "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "SLURM_RESTART_COUNT",
)  # fmt: skip
"""Variables that commands or their libraries read."""
NO_CACHE = {"XDG_CACHE_HOME": None}
"""Without what tests set, the home folder decides where caches are."""


def harmless(rng: random.Random) -> tuple[str, Surroundings]:
    """Return surroundings in which each command ends as in others."""
    streams = rng.sample(range(3), rng.randint(1, 3))
    return rng.choice((
        (f"closed {streams}", Surroundings(closed=streams)),
        (f"full {streams}", Surroundings(full=[each for each in streams if each])),
        ("no HOME", Surroundings(variables={**NO_CACHE, "HOME": None, "USER": None, "LOGNAME": None})),
        ("HOME is nowhere", Surroundings(variables={**NO_CACHE, "HOME": "/nonexistent"})),
        ("umask 077", Surroundings(umask=0o077)),
        ("an odd terminal", Surroundings(variables={"TERM": "", "COLUMNS": "-3", "LINES": "x"})),
    ))  # fmt: skip


def harmful(rng: random.Random) -> tuple[str, Surroundings]:
    """Return surroundings that a command may refuse by name."""
    name = rng.choice(VARIABLES)
    value = rng.choice(("", " ", "-1", "x", "1.5", "9" * 30, "/nonexistent", "é"))
    size = rng.choice((0, 1000, 20_000, 100_000))
    return rng.choice((
        (f"{name}={value!r}", Surroundings(variables={name: value})),
        (f"files of {size} bytes", Surroundings(file_bytes=size)),
        ("no working folder", Surroundings(no_folder=True)),
    ))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command, and what it must end with."""

    about: str
    words: tuple[str, ...]
    surroundings: Surroundings
    codes: set[int]


def odd_file(rng: random.Random, folder: Path, trained: Path) -> tuple[str, bool]:
    """Make something odd at ``folder/odd``, or in a run there; return its kind, and if nothing can use it."""
    kind, path = rng.choice([*KINDS]), folder / f"odd{rng.choice(SUFFIXES)}"
    if rng.random() < 0.6:
        KINDS[kind](path)
        (folder / "odd").exists() or (folder / "odd").is_symlink() or (folder / "odd").symlink_to(path.name)
        return f"{path.name}: {kind}", kind not in ("folder", "NaN", "null")
    path = folder / "odd"
    shutil.copytree(next(trained.glob("runs/single/*/s0")), path)
    files = [each for each in path.rglob("*") if each.is_file()]
    place = rng.choice([*sorted(files), path / "model.safetensors", path / "model.safetensors.index.json"])
    place.unlink(missing_ok=True)
    KINDS[kind](place)
    return f"a run with {place.name}: {kind}", False


def random_case(rng: random.Random, folder: Path, trained: Path) -> Case:
    """Return a command with an odd input or odd surroundings."""
    draw, about, usual, codes = rng.random(), "a number", Surroundings(), CODES
    if draw < 0.1:
        words = ("experiments.plan", *TINY, *commands.RECALL, f"{rng.choice(KEYS)}={rng.choice(NUMBERS)}")
    elif draw < 0.3:
        words, codes = rng.choice(WORKING), {0}
        about, usual = harmless(rng)
    elif draw < 0.5:
        words = rng.choice(WORKING)
        about, usual = harmful(rng)
    else:
        words = rng.choice(READERS)
        about, unusable = odd_file(rng, folder, trained)
        codes = CODES - {0} if unusable and any("{path}" in word for word in words) else CODES
    odd = next(folder.glob("odd?*"), folder / "odd")
    run = folder / "runs" / "x" / "decoder-recall-nano-00000000" / "s0"
    run.parent.mkdir(parents=True)
    run.symlink_to(folder / "odd")
    places = {
        "path": odd, "out": folder / "out", "cache": folder / "cache", "runs": folder / "runs",
        "trained": trained / "runs", "run": next(trained.glob("runs/single/*/s0")),
        "text": trained / "text.txt",
    }  # fmt: skip
    filled = tuple(each.format(**places) for each in words)
    return Case(about=about, words=filled, surroundings=usual, codes=codes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, and a run that has learned it."""
    folder = tmp_path_factory.mktemp("trained")
    text = folder / "text.txt"
    text.write_text("".join(f"line {n} of a text that is long enough\n\n" for n in range(300)))
    words = (*TINY, "task=text", FILES, f"task.paths=[{text}]", "task.sequence_length=32")
    commands.train(*words, f"runs={folder}/runs", f"task.cache_dir={folder}/cache")
    return folder


@pytest.mark.full
@seeds(2, recorded=50)
def test_f56_odd_inputs_and_surroundings_end_a_command_with_a_documented_code(
    seed: int, trained: Path, tmp_path: Path, record: Any
) -> None:
    for number in range(EACH):
        (folder := tmp_path / str(number)).mkdir()
        case = random_case(random.Random(1000 * seed + number), folder, trained)
        code, text = ended(case.words[0], case.words[1:], folder, case.surroundings)
        words = " ".join(word[:60] for word in case.words if word not in TINY)
        about = f"seed {seed}, case {number}: {case.about}: {words}: {code}\n{text[-1500:]}"
        assert code in case.codes, about
        assert "Traceback" not in text, about
        silent = {1, 2} & {*case.surroundings.closed, *case.surroundings.full}
        assert silent or code == 0 or re.search("error|unreadable|damaged|rejected", text), about
        assert len(max(text.splitlines(), key=len, default="")) < 3000, f"{about}: a line of {len(text)}"
    record(
        "F56", "odd files, numbers, streams, variables and limits given to commands", EACH, "documented code"
    )
