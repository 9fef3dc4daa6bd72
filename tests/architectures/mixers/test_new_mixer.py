"""A module in the folder of mixers is a mixer: it has settings in a hybrid and a place in its layers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import ROOT

MODULE = '''
from dataclasses import dataclass

from torch import nn

from archbench.architectures.backbone import Flops, linear_flops
from archbench.architectures.layers.block import Mixer, MixerConfig


@dataclass(frozen=True, kw_only=True)
class Config(MixerConfig):
    """Settings of a mixer that a person adds."""

    shift: int = 1
    """Positions by which the input is shifted."""

    @property
    def channel_multiple(self) -> int:
        return 5


class make(Mixer):
    def __init__(self, d_model, config, *, norm_eps):
        super().__init__()
        self.shift, self.out = config.shift, nn.Linear(d_model, d_model, bias=False)

    def forward(self, x_BTD, context):
        return self.out(nn.functional.pad(x_BTD, (0, 0, self.shift, 0))[:, : x_BTD.shape[1]])

    def scan_path(self):
        return "torch"

    def flops(self, length):
        return Flops(linear=linear_flops(self, length))
'''


def run(folder: Path, program: str) -> str:
    (folder / "shifted.py").write_text(MODULE)
    words = [sys.executable, "-c", program, str(folder)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_a_module_is_a_mixer_of_hybrids(tmp_path: Path) -> None:
    program = """
import sys
import torch
from archbench.architectures import mixers
mixers.__path__.append(sys.argv[1])
from archbench.architectures.backbones.hybrid import RECURRENT, Hybrid, HybridConfig
config = HybridConfig(d_model=40, num_layers=2, layers=["shifted", "attention"],
                      shifted=RECURRENT["shifted"].Config(shift=2))
model = Hybrid(config, vocab_size=7, max_length=9)
print(config.width_multiple, model.kernels()["shifted scan"], model.blocks[0].mixer.shift)
print(sorted(config.unused_sections) == sorted(RECURRENT.keys() - {"shifted"}))
print(tuple(model(torch.zeros(2, 9, dtype=torch.long)).logits_BTV.shape))
"""
    assert run(tmp_path, program).splitlines() == ["40 torch 2", "True", "(2, 9, 7)"]


def test_its_settings_are_keys_of_the_command_line(tmp_path: Path) -> None:
    program = """
import sys
from archbench.architectures import mixers
mixers.__path__.append(sys.argv[1])
from tests.experiments import commands
words = ("device=cpu", "backbone=hybrid", "backbone.layers=[shifted,attention]", "backbone.shifted.shift=3")
print(commands.settings(*words).backbone.shifted.shift)
"""
    assert run(tmp_path, program).splitlines() == ["3"]
