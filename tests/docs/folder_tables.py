"""Renews the tables in docs/models/hugging_face: ``python -m tests.docs.folder_tables``.

It takes some minutes: every family generates by both libraries, in each of the ways that the columns name.
"""

from __future__ import annotations

import csv
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import transformers as hf

from archbench.experiments.runtime.errors import RunError
from tests import ROOT
from tests.architectures.pretrained.folders import DECODERS, ENCODER_DECODERS, make_folder, write_json
from tests.architectures.pretrained.test_damaged_folders import DAMAGE, make_whole
from tests.experiments.evaluation.downstream.folder_scores import FAMILIES as SCORED
from tests.experiments.evaluation.downstream.folder_scores import scores
from tests.experiments.folder_round_trips import ALL as TRIPS
from tests.experiments.folder_round_trips import trip_row
from tests.experiments.folder_texts import ALONE, chats, ours, quoted, theirs

FOLDER = ROOT / "docs" / "models" / "hugging_face"
TABLES = ("generation", "round_trips", "scores", "damaged_folders")
PROMPTS = ["the cat", "a dog ran to the house", "<|im_start|>user the  added"]
EQUAL, DIFFERENT, ABSENT = "=", "differs", "-"
MESSAGES = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "the cat sat"}]
BEAMS = {"num_beams": 3, "length_penalty": 0.5, "early_stopping": True}


def same(folder: Path, prompts: list[str]) -> bool:
    """True where prompts get the same texts."""
    return ours(folder, quoted(prompts), "max_tokens=12") == theirs(folder, prompts, max_new_tokens=12)


def alone(folder: Path) -> bool:
    """One prompt by itself, up to a number of tokens."""
    return ours(folder, quoted(PROMPTS[:1]), "max_tokens=12") == theirs(
        folder, PROMPTS[:1], max_new_tokens=12
    )


def batch(folder: Path) -> bool:
    """Prompts of different lengths, which their library pads on the side that the tokenizer says."""
    return ours(folder, quoted(PROMPTS[:2]), "max_tokens=12") == theirs(
        folder, PROMPTS[:2], max_new_tokens=12
    )


def special(folder: Path) -> bool:
    """Names of special tokens in a prompt."""
    return ours(folder, quoted(PROMPTS[2:]), "max_tokens=12") == theirs(
        folder, PROMPTS[2:], max_new_tokens=12
    )


def conversation(folder: Path) -> bool | None:
    """Messages through the chat template; None where the folder has none."""
    if not (folder / "chat_template.jinja").exists():
        return None
    words = "messages=[{role: system, content: be kind}, {role: user, content: the cat sat}]"
    return ours(folder, words, "max_tokens=12") == [chats(folder, MESSAGES, max_new_tokens=12)]


def ends(folder: Path) -> bool:
    """Many tokens of generation_config.json that end a text."""
    file = folder / "generation_config.json"
    before = file.read_text()
    write_json(file, eos_token_id=[*range(40, 160), hf.AutoTokenizer.from_pretrained(folder).eos_token_id])
    try:
        return ours(folder, quoted(PROMPTS[:2]), "max_tokens=24") == theirs(
            folder, PROMPTS[:2], max_new_tokens=24
        )
    finally:
        file.write_text(before)


def stop_text(folder: Path) -> bool | None:
    """A piece of text that ends it; None where the text has no letters or digits."""
    whole = theirs(folder, PROMPTS[:1], skip=not hf.AutoConfig.from_pretrained(folder).is_encoder_decoder)[0]
    pieces = re.findall(r"[a-zA-Z0-9]{1,5}", whole[:-1])
    if not pieces:
        return None
    piece = max(pieces, key=len)
    found = ours(folder, quoted(PROMPTS[:1]), "max_tokens=16", f"stop=[eos,'{piece}']")
    return found == theirs(folder, PROMPTS[:1], stop_strings=[piece])


def beams(folder: Path) -> bool | None:
    """Beam search with settings of its own; None where their library refuses it."""
    if hf.AutoConfig.from_pretrained(folder).model_type in ALONE:
        return None
    words = ("beam.num_beams=3", "beam.length_penalty=0.5", "beam.early_stopping=full", "max_tokens=12")
    return ours(folder, quoted(PROMPTS[:2]), *words) == theirs(
        folder, PROMPTS[:2], **{**BEAMS, "max_new_tokens": 12}
    )


COLUMNS: dict[str, Callable[[Path], bool | None]] = {
    "alone": alone,
    "padded batch": batch,
    "special tokens": special,
    "conversation": conversation,
    "several ends": ends,
    "text as stop": stop_text,
    "3 beams": beams,
}
TRIP = ["family", "in float32", "in bfloat16", "losses"]
SCORES = ["family", "task", "metric", "archbench", "harness"]
FAMILIES = [*DECODERS, *ENCODER_DECODERS]


def parity_row(name: str, folder: Path) -> list[str]:
    """Return a family, and what each way of generating compares like."""
    make_folder(name, folder)
    found = [check(folder) for check in COLUMNS.values()]
    return [name, *(ABSENT if equal is None else EQUAL if equal else DIFFERENT for equal in found)]


def damage_row(name: str, whole: Path, folder: Path) -> list[str]:
    """Return a damage, the exit code of ``archbench generate``, its seconds and its message."""
    DAMAGE[name][0](Path(shutil.copytree(whole, folder)))
    begin = time.perf_counter()
    try:
        ours(folder, "prompt=x")
    except RunError as error:
        seconds = f"{time.perf_counter() - begin:.2f}"
        message = (
            str(error).replace(f"{folder}/", "").replace(f"{folder}: ", "").replace(str(folder), "FOLDER")
        )
        short = message if len(message) < 100 else f"{message[:97]}..."
        return [name, str(error.exit_code), seconds, short]
    raise AssertionError(f"{name} is not refused")


def score_rows(name: str, folder: Path) -> list[list[str]]:
    """Return the scores of a family: task, metric, ours and those of the harness's own model."""
    found = scores(make_folder(name, folder))
    return [
        [name, task, metric, f"{ours:.6f}", f"{theirs:.6f}"]
        for (task, metric), (ours, theirs) in found.items()
    ]


def main() -> None:
    """Write the tables."""
    with tempfile.TemporaryDirectory() as name:
        room = Path(name)
        parity = [parity_row(family, room / family) for family in FAMILIES]
        trips = [trip_row(family, room) for family in TRIPS]
        whole = make_whole(room / "whole")
        scored = [row for family in SCORED for row in score_rows(family, room / f"{family} scored")]
        damages = [damage_row(damage, whole, room / damage.replace(" ", "-")) for damage in DAMAGE]
    tables = [
        [["family", *COLUMNS], *parity],
        [TRIP, *trips],
        [SCORES, *scored],
        [["damage", "code", "seconds", "message"], *damages],
    ]
    for name, rows in zip(TABLES, tables, strict=True):
        with (FOLDER / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


def read_tables() -> list[list[list[str]]]:
    """Return the rows of the tables, without their headers."""
    texts = [(FOLDER / f"{name}.csv").read_text() for name in TABLES]
    return [list(csv.reader(text.splitlines()))[1:] for text in texts]


if __name__ == "__main__":
    main()
