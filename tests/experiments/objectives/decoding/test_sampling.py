"""The settings agree with the transformers library, and the loop writes each sequence as if alone."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from archbench.architectures.backbone import Backbone, BackboneConfig, Flops, ModelInputs, Output
from archbench.architectures.decoding_state import DecodingState
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.objectives.decoding.prefill import PrefillState, pad_right
from archbench.experiments.objectives.decoding.sampling import (
    GREEDY,
    SamplingConfig,
    draw,
    generate,
    next_tokens,
    process,
)

VOCABULARY = Vocabulary(num_symbols=12, num_sentinels=2)
V = VOCABULARY.size


def generators(count: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(1000 * seed + row) for row in range(count)]


def theirs(config: SamplingConfig, tokens_BT: Tensor, logits_BV: Tensor) -> Tensor:
    """The processors of transformers, in the order in which ``generate`` applies them."""
    chain = LogitsProcessorList()
    if config.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(config.repetition_penalty))
    chain.append(TemperatureLogitsWarper(config.temperature))
    if config.top_k is not None:
        chain.append(TopKLogitsWarper(config.top_k))
    if config.top_p is not None:
        chain.append(TopPLogitsWarper(config.top_p))
    if config.min_p is not None:
        chain.append(MinPLogitsWarper(config.min_p))
    return chain(tokens_BT, logits_BV)


SETTINGS = [
    SamplingConfig(temperature=t, top_k=k, top_p=p, min_p=m, repetition_penalty=r)
    for t, k, p, m, r in itertools.product(
        (0.5, 1.7), (None, 1, 7, 1000), (None, 0.3, 0.9, 1.0), (None, 0.2), (1.0, 1.4, 0.6)
    )
]


def test_processed_logits_are_those_of_transformers() -> None:
    generator = torch.Generator().manual_seed(0)
    kept = set()
    for config in SETTINGS:
        logits_BV = 3 * torch.randn(4, 50, generator=generator)
        logits_BV[0, :10] = logits_BV[0].max()  # ties at the cut
        tokens_BT = torch.randint(50, (4, 9), generator=generator)
        seen_BV = torch.zeros(4, 50, dtype=torch.bool).scatter(1, tokens_BT, True)
        ours = process(logits_BV, config, seen_BV)
        assert torch.equal(ours, theirs(config, tokens_BT, logits_BV.clone()))
        kept |= set(ours.isfinite().sum(1).tolist())
    assert len(kept) > 15


def test_temperature_zero_takes_the_most_likely_after_the_repetition_penalty() -> None:
    logits_BV = torch.tensor([[2.0, 1.5, -1.0], [-0.2, -0.3, -4.0]])
    seen_BV = torch.tensor([[True, False, False], [True, False, False]])
    penalised = SamplingConfig(temperature=0.0, repetition_penalty=2.0)
    assert next_tokens(logits_BV, GREEDY, generators(2)).tolist() == [0, 0]
    assert next_tokens(logits_BV, penalised, generators(2), seen_BV).tolist() == [1, 1]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_with_their_probability(temperature: float) -> None:
    logits_V = torch.tensor([0.0, 1.0, 2.0, -1.0])
    config = SamplingConfig(temperature=temperature)
    one = [torch.Generator().manual_seed(0)]
    drawn = draw(process(logits_V.expand(1, 20_000, 4), config), config, one)[0]
    counts = torch.bincount(drawn, minlength=4)
    expected = (logits_V / temperature).softmax(-1) * 20_000
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # 3 degrees of freedom, p = 0.001


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "temperature=-1.0 must be 0"),
        ({"top_k": 0}, "top_k=0 must be at least 1"),
        ({"top_p": 0.0}, r"top_p=0.0 must be in \(0, 1\]"),
        ({"min_p": 1.5}, "min_p=1.5"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0 must be positive"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingConfig(**settings)


class Counting(Backbone):
    """Wants the token after the sum of all it has read, modulo ``cycle``; remembers nothing else."""

    Config = BackboneConfig

    def __init__(self, cycle: int = 12) -> None:
        super().__init__(BackboneConfig(), vocab_size=V, max_length=100)
        self.cycle = cycle
        self.widths: list[int] = []

    def compute(self, inputs: ModelInputs) -> Output:
        raise AssertionError("decoding uses step")

    def sequence_flops(self, length: int, source_length: int = 0) -> Flops:
        return Flops()

    def start(self, batch_size: int, max_length: int, **source: Any) -> DecodingState:
        return DecodingState(lengths=[0] * batch_size, layers=[torch.zeros(batch_size, dtype=torch.long)])

    def step(self, tokens_BT: Tensor, state: DecodingState, valid_BT: Tensor | None = None) -> Tensor:
        self.widths.append(len(tokens_BT))
        valid_BT = torch.ones_like(tokens_BT) if valid_BT is None else valid_BT
        sums_BT = state.layers[0][:, None] + (tokens_BT * valid_BT).cumsum(1)
        state.layers[0] = sums_BT[:, -1]
        wanted_BTV = 0.5 + torch.nn.functional.one_hot((sums_BT + 1) % self.cycle, V)
        wanted_BTV[..., VOCABULARY.bos] = 2.0  # tempts, and may never be written
        return wanted_BTV


def start(model: Backbone, prompts: list[list[int]]) -> PrefillState:
    tokens_BT, valid_BT = pad_right(prompts, VOCABULARY.pad, torch.device("cpu"))
    return PrefillState(state=model.start(len(prompts), 99), unread_BT=tokens_BT, valid_BT=valid_BT)


def count_on(prompt: list[int], steps: int, stop: set[int]) -> list[int]:
    """What ``Counting`` writes, by hand."""
    written: list[int] = []
    while len(written) < steps and not (written and written[-1] in stop):
        written.append((sum(prompt) + sum(written) + 1) % 12)
    return written


@pytest.mark.parametrize("stop", [set(), {5}, {5, 7, 2}])
def test_prompts_of_different_lengths_are_written_to_their_own_ends(stop: set[int]) -> None:
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8], [11, 11]]
    model = Counting()
    heard: list[tuple[int, int]] = []
    written = generate(
        model,
        start(model, prompts),
        VOCABULARY,
        max_tokens=9,
        generators=generators(4),
        sampling=GREEDY,
        stop=stop,
        on_token=lambda row, token: heard.append((row, token)),
    )
    expected = [count_on(prompt, 9, stop) for prompt in prompts]
    assert written == expected
    assert [[token for r, token in heard if r == row] for row in range(4)] == expected
    lengths = [len(row) for row in expected]
    # A sequence that has ended is computed no further, and after the last token nothing is.
    assert model.widths == [sum(length > step for length in lengths) for step in range(max(lengths))]
    assert bool(stop) == (len(set(lengths)) > 1)


def test_the_repetition_penalty_covers_prompt_and_writing_but_not_padding() -> None:
    model = Counting(cycle=1)  # always wants symbol 0
    tokens_BT, valid_BT = pad_right([[1, 2], [0], [3, 0, 4]], 0, torch.device("cpu"))
    written = generate(
        model,
        PrefillState(state=model.start(3, 99), unread_BT=tokens_BT, valid_BT=valid_BT),
        VOCABULARY,
        max_tokens=3,
        generators=generators(3),
        sampling=SamplingConfig(temperature=0.0, repetition_penalty=1e6),
    )
    assert written == [[0, 3, 4], [1, 2, 3], [1, 2, 5]]  # the first symbols not seen yet, after 0


def test_nothing_asked_for_is_nothing() -> None:
    model = Counting()
    written = generate(
        model, start(model, [[1], [2]]), VOCABULARY, max_tokens=0, generators=generators(2), sampling=GREEDY
    )
    assert written == [[], []]
    assert model.widths == []


def test_rows_are_padded_on_the_right() -> None:
    tokens_BT, valid_BT = pad_right([[1], [2, 3]], 9, torch.device("cpu"))
    assert tokens_BT.tolist() == [[1, 9], [2, 3]]
    assert valid_BT is not None
    assert valid_BT.tolist() == [[True, False], [True, True]]
    assert pad_right([[1, 2], [2, 3]], 9, torch.device("cpu"))[1] is None
