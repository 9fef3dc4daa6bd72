"""Scores of Hugging Face folders: those of the harness's own model of these folders."""

from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance

from tests.architectures.pretrained.folders import ENCODER_DECODERS, make_folder
from tests.experiments.evaluation.downstream.folder_scores import FAMILIES, both, scores
from tests.tiers import fast_only

CONTEXTS = ["the cat sat on", "a dog ran to the house ", "", "<s>the bird", "the cat " * 60]
ENDS = [" the mat", " sang", "the  added word"]
TEXTS = ["the cat sat on the mat and the dog ran", "a bird sang. " * 40]


def asked(kind: str, *requests: tuple[Any, ...]) -> list[Instance]:
    return [
        Instance(request_type=kind, doc={}, arguments=arguments, idx=i)
        for i, arguments in enumerate(requests)
    ]


@pytest.mark.parametrize("name", fast_only(FAMILIES, []))
def test_scores_are_those_of_the_harness(name: str, tmp_path: Path) -> None:
    seq2seq = name in ENCODER_DECODERS
    ours, theirs = both(make_folder(name, tmp_path / name), seq2seq)
    contexts = [context for context in CONTEXTS if context or not seq2seq]
    pairs = asked("loglikelihood", *[(context, end) for context in contexts for end in ENDS])
    for one, two in zip(
        ours.loglikelihood(pairs), theirs.loglikelihood(pairs, disable_tqdm=True), strict=True
    ):
        assert one[0] == pytest.approx(two[0], rel=1e-5, abs=1e-4)
        assert one[1] == two[1]
    if not seq2seq:
        texts = asked("loglikelihood_rolling", *[(text,) for text in TEXTS])
        found = theirs.loglikelihood_rolling(texts, disable_tqdm=True)
        assert ours.loglikelihood_rolling(texts) == pytest.approx(found, rel=1e-5)
    settings = {"until": ["\n\n", "zzzz"], "max_gen_toks": 12, "do_sample": False}
    prompts = asked("generate_until", *[(context, settings) for context in contexts[:2]])
    texts = zip(ours.generate_until(prompts), theirs.generate_until(prompts, disable_tqdm=True), strict=True)
    # The harness lets the decoder of an encoder-decoder write as many tokens more as its source has.
    assert all(two.startswith(one) if seq2seq else one == two for one, two in texts)


@pytest.mark.full
@pytest.mark.parametrize("name", FAMILIES)
def test_scores_of_whole_tasks_are_those_of_the_harness(name: str, tmp_path: Path) -> None:
    """Accuracies to the last answer, bits to rounding."""
    found = scores(make_folder(name, tmp_path / name))
    assert {task for task, _ in found} == {"words_choice", "words_written"} | (
        set() if name in ENCODER_DECODERS else {"words_bits"}
    )
    for (_, metric), (ours, theirs) in found.items():
        assert ours == (pytest.approx(theirs, rel=1e-6) if metric == "bits_per_byte" else theirs)
