"""The bias that balances experts, in a run of the harness."""

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from archbench.experiments.training.micro_batcher import MicroBatcher
from tests.architectures.conformance import random_inputs
from tests.architectures.models import build, read_yaml
from tests.experiments import commands


def test_training_moves_the_bias_and_saves_it(tmp_path: Path) -> None:
    """Each step moves it by the rate, up or down, and then to a mean of zero."""
    words = ("backbone=moe_deepseek", *commands.task_words("recall"), *commands.TINY)
    folder = commands.train(
        *words, "budget.micro_batch_size=2", "backbone.experts.bias_rate=0.01", f"runs={tmp_path}"
    )
    stored = load_file(commands.newest_checkpoint(folder) / "model.safetensors")
    biases = {name: value for name, value in stored.items() if name.endswith("selection_X")}
    steps = commands.result(folder)["training"]["steps"]
    assert len(biases) > 1
    for bias_X in biases.values():
        assert 0.005 < bias_X.abs().max() <= 2 * 0.01 * steps
        torch.testing.assert_close(bias_X.mean(), torch.tensor(0.0), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["moe_deepseek", "switch"])
def test_a_step_that_is_computed_again_is_counted_once(name: str) -> None:
    whole, repeated = bias_after_a_step(name, []), bias_after_a_step(name, [4])
    assert any(bias_X.any() for bias_X in whole)
    assert all(map(torch.equal, whole, repeated))


def bias_after_a_step(name: str, failures: list[int]) -> list[Tensor]:
    """Return the biases after a step that runs out of memory before the rows ``failures``, each once."""
    torch.manual_seed(0)
    experts = dataclasses.replace(read_yaml(name)[1].experts, bias_rate=0.1)  # type: ignore[attr-defined]
    model = build(name, experts=experts).train()
    inputs = random_inputs(model, 8, 12)

    def work(size: int) -> None:
        model.zero_grad()
        for start in range(0, 8, size):
            if start in failures:
                failures.remove(start)
                raise torch.OutOfMemoryError("CUDA out of memory")
            rows = slice(start, start + size)
            source_BS = None if inputs.source_BS is None else inputs.source_BS[rows]
            model(inputs.tokens_BT[rows], source_BS=source_BS).logits_BTV.sum().backward()

    batcher = MicroBatcher("auto", 8)
    batcher.size = 4
    batcher.run(work)
    model.after_step()
    return [buffer for name, buffer in model.named_buffers() if name.endswith("selection_X")]
