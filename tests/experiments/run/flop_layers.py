"""A model of one layer, whose stated FLOPs are checked."""

import dataclasses

import torch
from torch import nn

from archbench.architectures.backbone import Capabilities, Flops, linear_flops
from archbench.architectures.backbones.stack import Stack, StackConfig
from archbench.architectures.layers.block import Mixer
from archbench.architectures.layers.feedforward import DenseFeedForward
from archbench.experiments.objectives.objective import View
from archbench.experiments.run.flop_check import flop_problem
from tests.architectures.conformance import random_inputs

D, T = 16, 24


class Layer(Mixer):
    """A linear layer; subclasses mix, and state more."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(D, D, bias=False)

    def forward(self, x_BTD, context):
        return self.out(x_BTD)

    def flops(self, length):
        return Flops(linear=linear_flops(self, length))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(StackConfig):
    d_ff: int | None = None


def problem(layer: type[Mixer]) -> str | None:
    class Model(Stack):
        Config = Config
        capabilities = Capabilities(causal=True)

        def make_mixer(self, index):
            return layer()

        def make_feedforward(self, index):
            return DenseFeedForward(D, D)

    def made():
        return Model(Config(d_model=D), vocab_size=11, max_length=T)

    torch.manual_seed(0)
    model = made()
    with torch.device("meta"):
        planned = made()
    return flop_problem(model, planned, view_of(model))


def view_of(model):
    inputs = random_inputs(model, 1, T)
    return View(
        tokens_BT=inputs.tokens_BT, valid_BT=None, target_BT=inputs.tokens_BT, weight_BT=torch.ones(1, T),
        count_B=torch.ones(1), source_BS=inputs.source_BS,
    )  # fmt: skip
