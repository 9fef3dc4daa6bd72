"""F52: random layers of a user are accepted with their true FLOPs, and refused with other ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.backbone import Capabilities, Flops
from archbench.architectures.backbones.stack import Stack
from archbench.architectures.layers.block import Mixer
from archbench.architectures.layers.feedforward import DenseFeedForward
from archbench.experiments.run.flop_check import flop_problem
from tests.experiments.run.flop_layers import Config, T, view_of
from tests.faults.children import seeds
from tests.faults.fuzzing import time_limit

EACH = 4
"""Cases for each seed."""
LOW, HIGH = (0.0, 0.1, 0.5, 0.8), (4.0, 10.0, 1000.0)
"""Factors of the FLOPs that a wrong layer states. Narrow layers may state more than their products, as
they may count elementwise work."""
SEEN = 0.02
"""Share of the FLOPs of a model that must be wrong; the check allows half of it."""


class Piece(nn.Module):
    """A part of a layer: computes (B, T, D) from (B, T, D), and knows its FLOPs by a formula."""

    is_linear = True

    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__()
        self.width = width
        self.build(rng)

    def build(self, rng: random.Random) -> None:
        self.hidden = rng.randint(4, 40)
        self.first, self.second = nn.Linear(self.width, self.hidden), nn.Linear(self.hidden, self.width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.second(self.first(x_BTD).relu())

    def flops(self, length: int) -> int:
        return 4 * length * self.width * self.hidden


class Grouped(Piece):
    def build(self, rng: random.Random) -> None:
        self.size, self.groups = rng.randint(2, 4), rng.choice((1, 2, 4))
        self.conv = nn.Conv1d(self.width, self.width, self.size, groups=self.groups)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.conv(F.pad(x_BTD.mT, (self.size - 1, 0))).mT

    def flops(self, length: int) -> int:
        return 2 * length * self.size * self.width * self.width // self.groups


class Loop(Piece):
    def build(self, rng: random.Random) -> None:
        self.matrix = nn.Linear(self.width, self.width, bias=rng.random() < 0.5)

    def forward(self, x_BTD: Tensor) -> Tensor:
        state_BD, states = torch.zeros_like(x_BTD[:, 0]), []
        for x_BD in x_BTD.unbind(1):
            state_BD = (self.matrix(state_BD) + x_BD).tanh()
            states.append(state_BD)
        return torch.stack(states, 1)

    def flops(self, length: int) -> int:
        return 2 * length * self.width**2


class Heads(Piece):
    def build(self, rng: random.Random) -> None:
        self.heads = rng.choice((2, 4))
        self.matrix_HKK = nn.Parameter(torch.randn(self.heads, *2 * [self.width // self.heads]))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.einsum("bthk,hkl->bthl", x_BTD.unflatten(-1, (self.heads, -1)), self.matrix_HKK).flatten(
            2
        )

    def flops(self, length: int) -> int:
        return 2 * length * self.width**2 // self.heads


class Recurrent(Piece):
    def build(self, rng: random.Random) -> None:
        self.gates, kind = rng.choice(((4, nn.LSTM), (3, nn.GRU)))
        self.cell = kind(self.width, self.width, batch_first=True)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.cell(x_BTD)[0]

    def flops(self, length: int) -> int:
        return 4 * length * self.gates * self.width**2


class Attention(Piece):
    is_linear = False

    def build(self, rng: random.Random) -> None:
        self.window = rng.randint(1, T)
        self.query, self.value = nn.Linear(self.width, self.width), nn.Linear(self.width, self.width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        ones_TT = torch.ones(x_BTD.shape[1], x_BTD.shape[1], dtype=torch.bool)
        far_TT = ones_TT.triu(1) | ones_TT.tril(-self.window)
        scores_BTT = (self.query(x_BTD) @ x_BTD.mT).masked_fill(far_TT, -torch.inf)
        return scores_BTT.softmax(-1) @ self.value(x_BTD)

    def pairs(self, length: int) -> int:
        return sum(min(t + 1, self.window) for t in range(length))

    def flops(self, length: int) -> int:
        return 4 * length * self.width**2 + 4 * self.width * self.pairs(length)


PIECES: tuple[type[Piece], ...] = (Piece, Grouped, Loop, Heads, Recurrent, Attention)


class Layer(Mixer):
    """Pieces one after the other. States the true FLOPs times ``factor``."""

    def __init__(self, width: int, kinds: Sequence[type[Piece]], seed: int, factor: float) -> None:
        super().__init__()
        rng = random.Random(seed)
        self.pieces, self.factor = nn.ModuleList([kind(width, rng) for kind in kinds]), factor

    def forward(self, x_BTD: Tensor, context: object) -> Tensor:
        for piece in self.pieces:
            x_BTD = piece(x_BTD)
        return x_BTD

    def flops(self, length: int) -> Flops:
        total = sum(piece.flops(length) for piece in self.pieces)
        attention = sum(
            4 * piece.width * piece.pairs(length) for piece in self.pieces if isinstance(piece, Attention)
        )
        return Flops(linear=int(self.factor * (total - attention)), attention=int(self.factor * attention))


def problem(width: int, layers: Sequence[Callable[[], Mixer]]) -> str | None:
    """Return what is said about a model of these layers."""

    class Model(Stack):
        capabilities = Capabilities(causal=True)

        def make_mixer(self, index: int) -> Mixer:
            return layers[index]()

        def make_feedforward(self, index: int) -> DenseFeedForward:
            return DenseFeedForward(width, width)

    Model.Config = Config

    def made() -> Model:
        return Model(Config(d_model=width, num_layers=len(layers)), vocab_size=11, max_length=T)

    model = made()
    with torch.device("meta"):
        planned = made()
    return flop_problem(model, planned, view_of(model))


@pytest.mark.full
@seeds(2, recorded=60)
def test_f52_random_layers_pass_with_true_flops_only(seed: int, record: Any) -> None:
    for case in range(EACH):
        rng = random.Random(1000 * seed + case)
        torch.manual_seed(case)
        width, count = rng.choice((8, 16, 24)), rng.randint(1, 3)
        stacks = [rng.choices(PIECES, k=rng.randint(1, 3)) for _ in range(count)]
        factors, wrong = [1.0] * count, rng.randrange(count) if rng.random() < 0.7 else None
        if wrong is not None:
            high = all(kind.is_linear for kind in stacks[wrong]) and rng.random() < 0.4
            factors[wrong] = rng.choice(HIGH if high else LOW)
            made = [Layer(width, kinds, 10 * seed + i, 1.0) for i, kinds in enumerate(stacks)]
            of_layers = [each.flops(T).total for each in made]
            lost = (1 - factors[wrong]) * of_layers[wrong]
            if 0 < lost < SEEN * (sum(of_layers) + 2 * T * width * (count * 2 * width + 11)):
                continue

        def layer(index: int, parts: Any = (width, stacks, factors, seed)) -> Mixer:
            width, stacks, factors, seed = parts
            return Layer(width, stacks[index], 10 * seed + index, factors[index])

        names = [[kind.__name__ for kind in kinds] for kinds in stacks]
        about = f"seed {seed}, case {case}: width {width}, {names}, {factors}"
        with time_limit():
            found = problem(width, [lambda index=index: layer(index) for index in range(count)])  # type: ignore[misc]
        if wrong is None:
            assert found is None, f"{about}: {found}"
        else:
            assert found is not None, f"{about}: accepted"
            assert f"blocks.{wrong}.mixer (Layer)" in found, f"{about}: {found}"
            assert "\n" not in found, about
    record("F52", "random layers with true and wrong FLOPs", EACH, "true ones accepted, wrong ones named")
