"""The bias that balances experts, in a run of the harness."""

from pathlib import Path

import torch
from safetensors.torch import load_file

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
