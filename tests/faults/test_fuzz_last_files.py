"""F57: changes of a run's files or data at its end or after it are repaired, refused, or found by a check."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from archbench.experiments.check import check_study
from archbench.experiments.run import run as run_module
from archbench.experiments.runtime.errors import RunError
from archbench.experiments.tracking.run_files import checksum
from archbench.experiments.training.trainer import Trainer
from tests.experiments import commands
from tests.faults.children import in_a_child, seeds
from tests.faults.test_fault_guards import CONTRADICTIONS, LOST
from tests.faults.test_fuzz_damage import flip_bit, other_digit

EACH = 3
"""Cases for each seed."""
CODES = {2, 3, 6, 7}
NAMES = ("config.yaml", "provenance.json", "model.json", "metrics.jsonl", "tokenizer.json")
"""Files of a run folder that a run writes before its result."""
WORDS = (
    *commands.TINY, "trainer.log_every=2", "trainer.checkpoint_every=3", "task=text", "task.source=files",
    "task.sequence_length=32", "task.tokenizer.kind=bpe", "task.tokenizer.vocab_size=300",
    "budget.tokens=1024", "budget.batch_size=4",
)  # fmt: skip
MOMENTS = ("before the test", "before the result", "after the result")


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of a run's files."""

    about: str
    make: Callable[[Path], object]
    """Makes it, given the run folder."""
    names: str = ""
    """Part of the path of what is changed."""
    final: bool = False
    """No run may end complete after it."""


@dataclass(frozen=True)
class Templates:
    """A run that nothing has changed, and one of another seed with the same data."""

    root: Path

    @property
    def runs(self) -> tuple[Path, Path]:
        first, other = sorted(self.root.glob("runs/single/*/s?"))
        return first, other

    def words(self, folder: Path) -> tuple[str, ...]:
        """Return the words of the run in another folder; its text stays where it is."""
        places = (f"runs={folder}/runs", f"task.cache_dir={folder}/cache")
        return (*WORDS, f"task.paths=[{self.root}/text/*.txt]", *places)


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    made = Templates(tmp_path_factory.mktemp("template"))
    (made.root / "text").mkdir()
    for number in range(40):
        text = f"document {number} says " + f"{number * 7919} " * 40
        (made.root / "text" / f"{number}.txt").write_text(text)
    for seed in range(2):
        commands.train(*made.words(made.root), f"seed={seed}")
    return made


def replaced_by_link(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


def in_place(path: Path, data: bytes) -> None:
    """Write to a file that may be mapped, as an editor does not."""
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()


def of_a_file(path: Path, other: Path, rng: random.Random) -> Change:
    """Return a change of one file, of which ``other`` is that of another run."""
    old = path.read_bytes()
    edit = rng.choice((flip_bit, other_digit))
    changes: dict[str, Callable[[], object]] = {
        "removed": path.unlink,
        "emptied": partial(in_place, path, b""),
        "truncated": partial(in_place, path, old[: rng.randrange(max(1, len(old)))]),
        "edited": partial(in_place, path, edit(old, rng) if old else b"x"),
        "a line twice": partial(in_place, path, old + old[old[:-1].rfind(b"\n") + 1 :]),
        "that of another run": partial(shutil.copyfile, other, path),
        "a link to that of another run": partial(replaced_by_link, path, other),
        "a link to itself": partial(replaced_by_link, path, Path(path.name)),
        "a link to nothing": partial(replaced_by_link, path, Path("nothing")),
        "as it was": partial(in_place, path, old),
    }
    name = rng.choice([*changes])
    same = "another" in name and other.read_bytes() == old
    about = f"{path.name} {name}{', as it was' * same}"
    return Change(about=about, make=lambda folder: changes[name](), names=path.name)


def of_a_folder(path: Path, other: Path, rng: random.Random) -> Change:
    """Return a change of a file of which a check may name the folder only."""
    return replace(of_a_file(path, other, rng), names=path.parent.name)


def of_a_record(path: Path, rng: random.Random) -> Change:
    """Return an edit of a number in the result, with a new checksum."""
    name = rng.choice([*CONTRADICTIONS])

    def make(folder: Path) -> None:
        tree = json.loads(path.read_text())
        CONTRADICTIONS[name](tree)
        path.write_text(json.dumps({**tree, "checksum": checksum(tree)}))

    return Change(about=f"{name} of result.json, with its checksum", make=make, names="result.json")


def random_change(folder: Path, moment: str, templates: Templates, rng: random.Random) -> Change:
    """Return a change of a run at one moment, when its files are there."""
    other, prepared = templates.runs[1], sorted(folder.parents[3].glob("cache/*/*"))
    stored = sorted(commands.newest_checkpoint(folder).iterdir())
    draws: list[Callable[[], Change]] = [
        *(partial(of_a_file, folder / name, other / name, rng) for name in NAMES),
        lambda: of_a_folder(file := rng.choice(stored), other / file.relative_to(folder), rng),
        lambda: of_a_folder(rng.choice(prepared), templates.root / "text" / "1.txt", rng),
    ]
    if moment == "after the result":
        draws += [lambda: of_a_record(folder / "result.json", rng)]
        draws += [lambda: of_a_folder(folder / "result.json", other / "result.json", rng)]
        draws += [
            lambda: Change(about="checkpoints removed", make=LOST["checkpoints"][0], names="checkpoints")
        ]
    else:
        lost = rng.choice([*LOST])
        draws += [lambda: Change(about=f"lock or folder: {lost}", make=LOST[lost][0], final=True)] * 2
    return rng.choice(draws)()


def train_with_change(words: tuple[str, ...], moment: str, draw: Callable[[Path], Change], log: Path) -> None:
    """Train a run that is changed at a moment; write what was done, and what became of it, to a file."""
    done: list[Change] = []

    def change(folder: Path) -> None:
        if not done:
            done.append(draw(folder))
            done[0].make(folder)

    def change_and_evaluate(trainer: Trainer, *others: Any) -> None:
        change(trainer.folder.root)
        evaluate(trainer, *others)

    evaluate, patch = run_module.evaluate, pytest.MonkeyPatch()
    if moment == "before the test":
        patch.setattr(run_module, "evaluate", change_and_evaluate)
    elif moment == "before the result":
        patch.setattr(run_module, "sample", lambda trainer: change(trainer.folder.root) and None)
    code, message = 0, ""
    try:
        folder = commands.train(*words)
        if moment == "after the result":
            change(folder)
    except RunError as error:
        code, message = error.exit_code, str(error)
    log.write_text(json.dumps({
        "about": done[0].about, "names": done[0].names, "final": done[0].final, "code": code,
        "message": message,
    }))  # fmt: skip


def record_of(run: Path) -> dict[str, Any]:
    """Return what a run records, without what a clock decides."""
    result = commands.result(run)
    return {
        "metrics": result["metrics"], "validation": result["validation"], "curve": commands.untimed(run),
        "tokenizer": (run / "tokenizer.json").read_bytes(), "model": (run / "model.json").read_bytes(),
        "code": json.loads((run / "provenance.json").read_text())["code"],
    }  # fmt: skip


@pytest.mark.full
@seeds(2, recorded=40)
def test_f57_a_change_at_the_end_of_a_run_is_repaired_refused_or_found(
    seed: int, templates: Templates, tmp_path: Path, record: Any, capfd: Any
) -> None:
    expected = record_of(templates.runs[0])
    for number in range(EACH):
        rng, place = random.Random(1000 * seed + number), tmp_path / str(number)
        shutil.copytree(templates.root / "cache", place / "cache")
        moment = rng.choice(MOMENTS)
        draw = partial(random_change, moment=moment, templates=templates, rng=rng)
        log = tmp_path / f"{number}.json"
        ended = in_a_child(partial(train_with_change, templates.words(place), moment, draw, log))
        printed = "".join(capfd.readouterr())
        assert ended == 0, f"seed {seed}, case {number}, {moment}: {ended}\n{printed[-3000:]}"
        found = json.loads(log.read_text())
        about = f"seed {seed}, case {number}, {moment}: {found}\n{printed[-1500:]}"
        runs = sorted(place.glob("runs/single/*/s*"))
        check_outcome(found, runs[0] if runs else None, expected, about, moment)
    record(
        "F57",
        "changes of files, data or lock at the end of a run or after it",
        EACH,
        "repaired, refused or found",
    )


def check_outcome(
    found: dict[str, Any], run: Path | None, expected: dict[str, Any], about: str, moment: str
) -> None:
    """Assert that a run has its right record, or was refused, or that the check names what was changed."""
    result = run / "result.json" if run else None
    if found["code"]:
        assert found["code"] in CODES, about
        whole = (
            result is None or not result.exists() or commands.result(result.parent)["status"] != "complete"
        )
        assert whole, about
        return
    assert not found["final"], f"{about}: complete"
    assert run is not None, about
    report = check_study(run.parents[1])
    lines = [*report.records, *report.data]
    if lines:
        assert any(found["names"] in line for line in lines), f"{about}: {lines}"
        assert "as it was" not in found["about"], f"{about}: {lines}"
        return
    assert record_of(run) == expected, f"{about}: another record, and the check finds nothing"
    assert commands.result(run)["resume"]["exact"], about
    harmless = moment != "after the result" or "as it was" in found["about"]
    assert harmless, f"{about}: the check finds nothing"
