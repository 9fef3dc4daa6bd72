"""Scores of Hugging Face folders: those of the harness's own model of these folders."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from experiments.config.schema import DeviceConfig
from experiments.evaluation.downstream.answer_likelihood import AnswerScorer
from experiments.evaluation.downstream.lm_eval_model import HarnessModel
from experiments.run.load_model import load_model
from experiments.runtime.console import Console
from tests.architectures.pretrained.folders import EAGER, ENCODER_DECODERS, make_folder
from tests.tiers import fast_only

CPU = DeviceConfig(name="cpu")
CONTEXTS = ["the cat sat on", "a dog ran to the house ", "", "<s>the bird", "the cat " * 60]
ENDS = [" the mat", " sang", "the  added word"]
TEXTS = ["the cat sat on the mat and the dog ran", "a bird sang. " * 40]


def asked(kind: str, *requests: tuple[Any, ...]) -> list[Instance]:
    return [
        Instance(request_type=kind, doc={}, arguments=arguments, idx=i)
        for i, arguments in enumerate(requests)
    ]


def both(folder: Path, seq2seq: bool) -> tuple[HarnessModel, HFLM]:
    saved = load_model(folder, torch.device("cpu"))
    scorer = AnswerScorer(saved, samples=2, seed=0, batch_size=4, device=CPU)
    ours = HarnessModel(
        saved, scorer, seed=0, batch_size=4, device=CPU, progress=Console("downstream").progress
    )
    kind = hf.AutoModelForSeq2SeqLM if seq2seq else hf.AutoModelForCausalLM
    model = kind.from_pretrained(folder, **EAGER).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    backend = "seq2seq" if seq2seq else "causal"
    longest = saved.model.max_length
    theirs = HFLM(
        pretrained=model, tokenizer=tokenizer, device="cpu", backend=backend, max_length=longest, batch_size=4
    )
    return ours, theirs


@pytest.mark.parametrize("name", fast_only(["gpt2", "llama", "mixtral", "jamba", "t5"], []))
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
