from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from archbench.architectures.causality import add_noise, first_leak
from tests.experiments.objectives import toys

SYMBOLS = 20


def leak_of(model: nn.Module, rows: int, length: int) -> int | None:
    tokens_BT = torch.randint(SYMBOLS, (rows, length), generator=torch.Generator().manual_seed(0))
    return first_leak(lambda tokens_BT: model(tokens_BT).logits_BTV, tokens_BT, SYMBOLS)


@pytest.mark.parametrize("name", ["decoder", "mamba", "s4"])
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_a_causal_model_has_no_leak(name: str, rows: int, length: int) -> None:
    model = toys.build(name, SYMBOLS).eval()
    add_noise(model)
    assert leak_of(model, rows, length) is None


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("length", [2, 9])
def test_a_bidirectional_model_reads_later_tokens_from_the_first_position(rows: int, length: int) -> None:
    assert leak_of(toys.build("encoder", SYMBOLS).eval(), rows, length) == 0


def numbers(tokens_BT: Tensor) -> Tensor:
    return (tokens_BT + 1).double()


def ahead_in_chunks(size: int) -> Callable[[Tensor], Tensor]:
    """Each position reads the next token, unless that is in the next chunk."""

    def values(tokens_BT: Tensor) -> Tensor:
        next_BT = numbers(tokens_BT).roll(-1, 1)
        ends_chunk_T = torch.arange(1, tokens_BT.shape[1] + 1) % size == 0
        ends_chunk_T[-1] = True
        return next_BT.masked_fill(ends_chunk_T, 0.0)

    return values


def only_second_last(tokens_BT: Tensor) -> Tensor:
    values_BT = torch.zeros(tokens_BT.shape, dtype=torch.float64)
    values_BT[:, -2] = numbers(tokens_BT)[:, -1]
    return values_BT


def from_neighbours(tokens_BT: Tensor) -> Tensor:
    """Each position reads the same position of the other sequences."""
    return numbers(tokens_BT).roll(1, 0)


def overflow(tokens_BT: Tensor) -> Tensor:
    """Logits are infinite if the last token is odd."""
    is_odd_B1 = tokens_BT[:, -1:] % 2 == 1
    return numbers(tokens_BT).cumsum(1).masked_fill(is_odd_B1, torch.inf)


LEAKS = {
    "in chunks of two": (ahead_in_chunks(2), 0),
    "in chunks of three": (ahead_in_chunks(3), 0),
    "in chunks of the length": (ahead_in_chunks(32), 0),
    "at the end": (only_second_last, 30),
    "to other sequences": (from_neighbours, 0),
    "infinite logits": (overflow, 0),
}


@pytest.mark.parametrize("name", LEAKS)
@pytest.mark.parametrize("rows", [3, 4, 16])
def test_a_leak_is_found_at_its_first_position(name: str, rows: int) -> None:
    values, position = LEAKS[name]
    model = toys.Rule(
        SYMBOLS, lambda tokens_BT: values(tokens_BT)[..., None] * torch.arange(SYMBOLS).clamp_max(1)
    )
    assert leak_of(model, rows, 32) == position


class ZeroInitialised(nn.Module):
    """Adds the mean of all positions, through a weight that is zero before training."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = toys.build("decoder", SYMBOLS)
        self.gate = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, tokens_BT: Tensor) -> object:
        output = self.inner(tokens_BT)
        output.logits_BTV = output.logits_BTV + self.gate * numbers(tokens_BT).mean(1)[:, None, None]
        return output


def test_a_leak_through_zero_initialised_weights_needs_noise() -> None:
    model = ZeroInitialised().eval()
    assert leak_of(model, 8, 9) is None
    add_noise(model)
    assert leak_of(model, 8, 9) == 0


def test_noise_reaches_every_parameter_and_depends_on_the_seed() -> None:
    models = [toys.build("decoder", SYMBOLS) for _ in range(4)]
    for model, seed in zip(models[1:], (0, 0, 1), strict=True):
        add_noise(model, seed=seed)
    for before, first, same, other in zip(*(model.parameters() for model in models), strict=True):
        assert (first != before).all()
        assert torch.equal(first, same)
        assert not torch.equal(first, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_no_leak(dtype: torch.dtype) -> None:
    """A relative difference of one unit of the last digit, between two calls."""
    calls = iter((1.0, 1.0 + torch.finfo(dtype).eps))

    def logits_of(tokens_BT: Tensor) -> Tensor:
        return (next(calls) * torch.ones(*tokens_BT.shape, SYMBOLS)).to(dtype)

    assert first_leak(logits_of, torch.zeros(4, 9, dtype=torch.long), SYMBOLS) is None


def test_nan_of_one_call_is_no_leak() -> None:
    calls = iter((1.0, float("nan")))

    def logits_of(tokens_BT: Tensor) -> Tensor:
        return next(calls) * torch.ones(*tokens_BT.shape, SYMBOLS)

    assert first_leak(logits_of, torch.zeros(4, 9, dtype=torch.long), SYMBOLS) is None
