"""F54: ROUGE of random scripts, and perplexities of random texts, are those of an independent count."""

from __future__ import annotations

import codecs
import math
import random
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from archbench.experiments.evaluate import evaluate
from archbench.experiments.evaluation.perplexity import StridedPerplexity, strided_perplexity
from archbench.experiments.run.load_model import load_model
from archbench.experiments.runtime.errors import ConfigError
from archbench.experiments.tasks.text_metrics import rouge
from tests.architectures.pretrained.folders import make_folder
from tests.experiments import commands
from tests.experiments.objectives import toys
from tests.faults.children import seeds
from tests.faults.fuzzing import time_limit

EACH = 25
"""Cases for each seed."""
UNSPACED = (
    (0x4E00, 0x9FFF),
    (0x3041, 0x3094),
    (0x30A1, 0x30FA),
    (0x0E01, 0x0E2E),
    (0x0E81, 0x0EAE),
    (0x20000, 0x2A6DF),
)
"""Letters of scripts without spaces between words, without marks: Chinese, Japanese, Thai, Lao."""


def random_block(rng: random.Random) -> list[str]:
    """Return the letters and digits of a random part of Unicode that has some."""
    while True:
        start = rng.choice((rng.randrange(0x3000), rng.randrange(0x20000)))
        block = [chr(code) for code in range(start, start + 64)]
        letters = [letter for letter in block if unicodedata.category(letter)[0] in "LN"]
        if len(letters) > 16:
            return letters


def words_of(rng: random.Random, letters: list[str]) -> str:
    ends = (" ", ", ", "\n", ". ", "\t")
    return "".join(
        "".join(rng.choices(letters, k=rng.randint(1, 6))) + rng.choice(ends)
        for _ in range(rng.randint(2, 9))
    )


def plain(text: str) -> set[str]:
    """Return the characters of a text without marks, case and forms."""
    return {each for each in unicodedata.normalize("NFKD", text.casefold()) if not each.isspace()}


@pytest.mark.full
@seeds(3, recorded=60)
def test_f54_rouge_is_1_for_the_reference_and_0_for_other_letters(seed: int, record: Any) -> None:
    for case in range(EACH):
        rng = random.Random(1000 * seed + case)
        letters = random_block(rng)
        rng.shuffle(letters)
        text, other = words_of(rng, letters[: len(letters) // 2]), words_of(rng, letters[len(letters) // 2 :])
        about = f"seed {seed}, case {case}: {text!a} and {other!a}"
        found = rouge([text, other, ""], [text, text, text])
        for name in ("rouge_1", "rouge_l"):
            assert found[name][0] == 1, f"{about}: {name} of itself is {found[name][0]}"
            assert found[name][2] == 0, about
            if not plain(text) & plain(other):
                assert found[name][1] == 0, f"{about}: {name} is {found[name][1]}"
    record("F54", "ROUGE of random scripts", EACH, "1 for the reference, 0 for other letters")


@pytest.mark.full
@seeds(2, recorded=60)
def test_f54_rouge_of_text_without_spaces_counts_its_letters(seed: int, record: Any) -> None:
    for case in range(EACH):
        rng = random.Random(1000 * seed + case)
        low, high = rng.choice(UNSPACED)
        letters = [chr(code) for code in range(low, high + 1)]
        letters = rng.sample([x for x in letters if unicodedata.category(x) == "Lo"], 12)
        text, reference = ("".join(rng.choices(letters, k=rng.randint(1, 30))) for _ in range(2))
        both = Counter(unicodedata.normalize("NFC", text)) & Counter(unicodedata.normalize("NFC", reference))
        expected = 2 * both.total() / (len(text) + len(reference))
        strewn = "".join(letter + rng.choice(("", "", "。", " ", "\u200b")) for letter in text)
        for written in (text, strewn):
            found = rouge([written], [reference])["rouge_1"][0]
            about = f"seed {seed}, case {case}: {written!a}, {reference!a}"
            assert found == pytest.approx(expected), about
    record("F54", "ROUGE of random text without spaces", EACH, "the share of its letters")


def expected_nats(model: Any, tokens: list[int], window: int, stride: int) -> tuple[float, int]:
    """Return nats and tokens by the recipe: each window's mean loss counts one token less than it scores."""
    total, counted, begin, reached = 0.0, 0, 0, 0
    while reached < len(tokens):
        end = min(begin + window, len(tokens))
        read_1T = torch.tensor([tokens[begin:end]])
        log_p_TV = model(read_1T).logits_BTV[0].double().log_softmax(-1)
        places = range(max(reached, begin + 1), end)
        losses = [-log_p_TV[place - begin - 1, tokens[place]].item() for place in places]
        if end - reached > 1:
            total += sum(losses) / len(losses) * (end - reached - 1)
            counted += end - reached - 1
        begin, reached = begin + stride, end
    return total, counted


@pytest.mark.full
@seeds(2, recorded=60)
@torch.no_grad()
def test_f54_the_perplexity_of_a_text_of_any_length_is_that_of_the_recipe(seed: int, record: Any) -> None:
    model = toys.build("decoder", 11)
    for case in range(10):
        rng = random.Random(1000 * seed + case)
        tokens = [rng.randrange(11) for _ in range(rng.randint(2, 150))]
        window = rng.randint(2, model.max_length)
        stride = rng.choice((window, rng.randint(2, window)))
        found = strided_perplexity(model, tokens, window=window, stride=stride, precision="fp32")
        nats, counted = expected_nats(model, tokens, window, stride)
        about = f"seed {seed}, case {case}: {len(tokens)} tokens, window {window}, stride {stride}"
        assert found.tokens == counted, about
        assert found.perplexity == pytest.approx(math.exp(nats / counted), rel=1e-4), about
    record("F54", "perplexities of texts of random length", 10, "those of the recipe")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder("gpt2", tmp_path_factory.mktemp("gpt2"))


@pytest.mark.full
@seeds(3, recorded=60)
def test_f54_a_text_is_read_byte_by_byte(
    seed: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any
) -> None:
    rng, scored = random.Random(seed), list[list[int]]()
    pieces = (
        "a",
        "word ",
        "\r\n",
        "\n",
        "\r",
        "\u2028",
        "\x0c",
        "\ufeff",
        "é",
        "e\u0301",
        "猫",
        "💡",
        "\u00a0",
        "\t",
        "",
    )
    text = "".join(rng.choices(pieces, k=rng.choice((0, 1, 2, 3, 40, 300))))
    data = (codecs.BOM_UTF8 if rng.random() < 0.4 else b"") + text.encode()
    (tmp_path / "text").write_bytes(data)
    about = f"seed {seed}: {data!r}"
    # The first byte-order mark belongs to the file, all others to the text.
    expected = (data[3:] if data.startswith(codecs.BOM_UTF8) else data).decode()

    def note(model: Any, tokens: list[int], **settings: Any) -> StridedPerplexity:
        scored.append(tokens)
        return strided_perplexity(model, tokens, **settings)

    monkeypatch.setattr("archbench.experiments.evaluate.strided_perplexity", note)
    words = (f"run={folder}", f"text={tmp_path}/text", f"output={tmp_path}/found.json", "device=cpu")
    try:
        with time_limit():
            evaluate(commands.compose(*words, root="evaluate"))
    except ConfigError as error:
        assert "give at least 2" in str(error), f"{about}: {error}"  # noqa: PT017
        assert len(load_model(folder, torch.device("cpu")).prompt(expected)) < 2, about
    else:
        assert scored == [load_model(folder, torch.device("cpu")).prompt(expected)], about
    record(
        "F54", "random ends of lines, marks and lengths of a text to score", 1, "read as it is, or too short"
    )
