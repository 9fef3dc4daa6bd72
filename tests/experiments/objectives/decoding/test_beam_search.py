"""Beam search agrees with the transformers library, and with trying everything."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from archbench.architectures.backbone import Backbone, BackboneConfig, Flops, ModelInputs, Output
from archbench.architectures.decoding_state import DecodingState
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.objectives.decoding.beam_search import BeamConfig, beam_search
from archbench.experiments.objectives.decoding.prefill import PrefillState, pad_right

PAD, EOS = 0, 1
"""Of T5."""


class Anything(Vocabulary):
    """Every token may be written."""

    def is_symbol(self) -> Tensor:
        return torch.ones(self.size, dtype=torch.bool)


class Borrowed(Backbone):
    """A T5 of transformers behind our contract, without a cache: each step reads everything again."""

    Config = BackboneConfig

    def __init__(self, model: T5ForConditionalGeneration) -> None:
        super().__init__(BackboneConfig(), vocab_size=model.config.vocab_size, max_length=100)
        self.model = model

    def compute(self, inputs: ModelInputs) -> Output:
        raise AssertionError("decoding uses step")

    def sequence_flops(self, length: int, source_length: int = 0) -> Flops:
        return Flops()

    def start(self, batch_size: int, max_length: int, **source: Any) -> DecodingState:
        read = torch.zeros(batch_size, 0, dtype=torch.long)
        valid = source["source_valid_BS"]
        layers = [read, source["source_BS"], torch.ones_like(source["source_BS"]) if valid is None else valid]
        return DecodingState(lengths=[0] * batch_size, layers=layers)

    def step(self, tokens_BT: Tensor, state: DecodingState, valid_BT: Tensor | None = None) -> Tensor:
        read_BT, source_BS, valid_BS = state.layers
        state.layers[0] = read_BT = torch.cat([read_BT, tokens_BT], dim=1)
        output = self.model(input_ids=source_BS, attention_mask=valid_BS, decoder_input_ids=read_BT)
        return output.logits


def t5(vocab_size: int = 13, seed: int = 0) -> T5ForConditionalGeneration:
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(vocab_size=vocab_size, decoder_start_token_id=PAD, **sizes))  # type: ignore[call-arg]
    with torch.no_grad():
        model.shared.weight.normal_(0, 0.3)  # the head, too: far from uniform, but no token is certain
    return model.eval()


def search(model: Backbone, sources: list[list[int]], config: BeamConfig, max_tokens: int) -> Any:
    source_BS, valid_BS = pad_right(sources, PAD, torch.device("cpu"))
    state = model.start(len(sources), max_tokens + 1, source_BS=source_BS, source_valid_BS=valid_BS)
    start = PrefillState(state=state, unread_BT=torch.full((len(sources), 1), PAD))
    vocabulary = Anything(num_symbols=model.vocab_size - 4, num_sentinels=0)
    return beam_search(model, start, vocabulary, config, max_tokens=max_tokens, stop={EOS})


SOURCES = [[2, 3, 4, 5, 1], [6, 1], [7, 8, 9, 1], [2, 2, 2, 2, 2, 2, 1]]
THEIRS = {"full": True, "heuristic": False, "never": "never"}


@pytest.mark.parametrize("early_stopping", THEIRS)
@pytest.mark.parametrize(("num_beams", "length_penalty"), [(2, 1.0), (4, 0.0), (3, 0.5), (5, -1.0)])
def test_hypotheses_and_scores_are_those_of_transformers(
    num_beams: int, length_penalty: float, early_stopping: str
) -> None:
    config = BeamConfig(num_beams=num_beams, length_penalty=length_penalty, early_stopping=early_stopping)
    lengths = set()
    for seed in range(4):
        model = t5(seed=seed)
        found = search(Borrowed(model), SOURCES, config, max_tokens=8)
        source_BS, valid_BS = pad_right(SOURCES, PAD, torch.device("cpu"))
        expected = model.generate(
            source_BS,
            attention_mask=valid_BS,
            num_beams=num_beams,
            num_return_sequences=num_beams,
            length_penalty=length_penalty,
            early_stopping=THEIRS[early_stopping],
            max_new_tokens=8,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        ours = [hypothesis for hypotheses in found for hypothesis in hypotheses]
        assert len(ours) == len(SOURCES) * num_beams
        for hypothesis, row, score in zip(ours, expected.sequences, expected.sequences_scores, strict=True):
            assert hypothesis.tokens == row[1 : 1 + len(hypothesis.tokens)].tolist()
            assert set(row[1 + len(hypothesis.tokens) :].tolist()) <= {PAD, EOS}  # what it fills up with
            assert hypothesis.score == pytest.approx(score.item(), rel=1e-4, abs=1e-5)
            lengths.add(len(hypothesis.tokens))
    assert len(lengths) > 1


def test_with_beams_enough_for_everything_it_finds_the_best_of_all_sequences() -> None:
    """Every sequence of up to three tokens over five, with its probability by the model alone."""
    model, size, longest = t5(vocab_size=5, seed=3), 5, 3
    source = torch.tensor([[2, 3, 1]])

    def log_p(tokens: tuple[int, ...]) -> float:
        read = torch.tensor([[PAD, *tokens[:-1]]])
        with torch.no_grad():
            logits = model(input_ids=source, decoder_input_ids=read).logits[0].double()
        return logits.log_softmax(-1)[torch.arange(len(tokens)), list(tokens)].sum().item()

    every = [
        tokens
        for length in range(1, longest + 1)
        for tokens in itertools.product(range(size), repeat=length)
        if EOS not in tokens[:-1] and (tokens[-1] == EOS or length == longest)
    ]
    config = BeamConfig(num_beams=size**longest, length_penalty=0.7, early_stopping="never")
    found = search(Borrowed(model), source.tolist(), config, max_tokens=longest)[0]
    expected = sorted(((log_p(tokens) / len(tokens) ** 0.7, list(tokens)) for tokens in every), reverse=True)
    assert [hypothesis.tokens for hypothesis in found] == [tokens for _, tokens in expected]
    assert [hypothesis.score for hypothesis in found] == pytest.approx(
        [score for score, _ in expected], rel=1e-4
    )


def test_one_beam_is_greedy_and_a_search_does_not_depend_on_its_neighbours() -> None:
    model = t5(seed=1)
    config = BeamConfig(num_beams=1)
    found = search(Borrowed(model), SOURCES, config, max_tokens=10)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        alone = model.generate(torch.tensor([source]), max_new_tokens=10, do_sample=False)[0, 1:].tolist()
        assert [hypothesis.tokens for hypothesis in hypotheses] == [alone]
    wide = BeamConfig(num_beams=3)
    together = search(Borrowed(model), SOURCES, wide, max_tokens=10)
    for source, hypotheses in zip(SOURCES, together, strict=True):
        apart = search(Borrowed(model), [source], wide, max_tokens=10)[0]
        assert [h.tokens for h in hypotheses] == [h.tokens for h in apart]


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="num_beams=0 must be at least 1"):
        BeamConfig(num_beams=0)
    with pytest.raises(ValueError, match="early_stopping='soon' is unknown: choose full"):
        BeamConfig(early_stopping="soon")
