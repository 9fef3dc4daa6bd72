"""The loss of training from a folder with experts, balance loss included, against that of their library."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from archbench.architectures.backbone import Backbone
from archbench.architectures.pretrained import export_config, load_folder
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM, CausalLMConfig
from archbench.experiments.objectives.objective import View
from archbench.experiments.training.loss import Loss
from tests.architectures.pretrained.folders import ENCODER_DECODERS, make_model
from tests.architectures.pretrained.parity import KeepFloat64, error
from tests.experiments.objectives import toys

BALANCED = ("mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "gpt_oss", "jamba", "qwen3_next")
"""Families whose class has a balance loss, which config.json asks for."""
UNBALANCED = ("deepseek_v2", "deepseek_v3", "nemotron_h_experts", "switch")
"""Those whose class has none, or none that config.json can ask for."""
ASKED = {"output_router_logits": True, "router_aux_loss_coef": 0.5}
QUIET = {"attention_dropout": 0.0, "dropout_rate": 0.0, "hidden_dropout": 0.0, "router_jitter_noise": 0.0}
DENSE = {"qwen3_moe": {"mlp_only_layers": [0], "num_hidden_layers": 3}}
"""Settings with which a layer has no experts."""
LENGTH, ROWS = 14, 3


def make_view(name: str, lengths: list[int] | None = None) -> View:
    """Tokens, some of which are padding on the right; decoders predict the next of them."""
    generator = torch.Generator().manual_seed(1)
    tokens_BT = torch.randint(8, 290, (ROWS, LENGTH), generator=generator)
    valid_BT = torch.arange(LENGTH) < torch.tensor(lengths or [LENGTH] * ROWS)[:, None]
    target_BT, scored_BT, source_BS = tokens_BT.roll(-1, 1), valid_BT.roll(-1, 1), None
    scored_BT[:, -1] = False
    if name in ENCODER_DECODERS:
        target_BT, scored_BT = tokens_BT.flip(1), valid_BT
        source_BS = torch.randint(8, 290, (ROWS, 9), generator=generator)
    return View(
        tokens_BT=tokens_BT,
        valid_BT=None if lengths is None else valid_BT,
        target_BT=target_BT,
        weight_BT=scored_BT.float(),
        count_B=scored_BT.sum(1).float(),
        source_BS=source_BS,
    )


def their_loss(model: Any, view: View) -> torch.Tensor:
    """Return their loss, for labels that they shift by themselves where there is no encoder."""
    if view.source_BS is not None:
        inputs = {"input_ids": view.source_BS, "decoder_input_ids": view.tokens_BT, "labels": view.target_BT}
    elif view.valid_BT is None:
        inputs = {"input_ids": view.tokens_BT, "labels": view.tokens_BT}
    else:
        labels_BT = view.tokens_BT.masked_fill(~view.valid_BT, -100)
        inputs = {"input_ids": view.tokens_BT, "labels": labels_BT, "attention_mask": view.valid_BT.long()}
    torch.manual_seed(5)
    with KeepFloat64():
        return model.train()(**inputs).loss


def our_loss(model: Backbone, view: View) -> torch.Tensor:
    """Return our loss in training."""
    objective = CausalLM(CausalLMConfig(), toys.Symbols(20))
    torch.manual_seed(5)
    return Loss(model.train(), objective, "fp32")(view, view.count_B.sum(), ROWS)


def both_losses(folder: Path, name: str, view: View, **changes: Any) -> tuple[Backbone, float]:
    """Make a folder, and return its model and loss here. Loss and gradients are those of their library."""
    model = make_model(name, **QUIET | changes).double()
    model.config.use_cache = False
    for key, buffer in model.named_buffers():
        if key.endswith("inv_freq"):  # of float32 on both sides
            buffer.data = buffer.data.float()
    model.save_pretrained(folder)
    theirs = their_loss(model, view)
    theirs.backward()
    ours = load_folder(folder, dtype=torch.float64)
    loss = our_loss(ours, view)
    loss.backward()
    assert loss.item() == pytest.approx(theirs.item(), rel=1e-6)
    table = next(p for n, p in ours.named_parameters() if n.startswith("embedding") and p.ndim == 2)
    assert error(table.grad, model.get_input_embeddings().weight.grad) < 1e-5
    return ours, loss.item()


@pytest.mark.parametrize("lengths", [None, [LENGTH, 5, 9]])
@pytest.mark.parametrize("name", BALANCED)
def test_the_balance_loss_of_a_folder_is_trained(
    name: str, lengths: list[int] | None, tmp_path: Path
) -> None:
    view, dense = make_view(name, lengths), DENSE.get(name, {})
    _, loss = both_losses(tmp_path / "asked", name, view, **dense, **ASKED)
    _, plain = both_losses(tmp_path / "not asked", name, view, **dense, router_aux_loss_coef=0.5)
    assert loss > plain + 0.5 * 2 * 0.9  # at perfect balance it is the number of experts of a token


@pytest.mark.parametrize("name", UNBALANCED)
def test_no_balance_loss_is_trained_where_their_class_has_none(name: str, tmp_path: Path) -> None:
    model, loss = both_losses(tmp_path / "asked", name, make_view(name), **ASKED)
    _, plain = both_losses(tmp_path / "not asked", name, make_view(name))
    assert loss == plain
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.after_step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", ["mixtral", "switch"])
def test_the_same_noise_gives_the_same_loss(name: str, tmp_path: Path) -> None:
    _, loss = both_losses(tmp_path / "noisy", name, make_view(name), router_jitter_noise=0.3)
    _, plain = both_losses(tmp_path / "quiet", name, make_view(name))
    assert abs(loss - plain) > 1e-3


@pytest.mark.parametrize("name", BALANCED)
def test_the_balance_loss_is_written(name: str, tmp_path: Path) -> None:
    make_model(name, **ASKED).save_pretrained(tmp_path)
    model = load_folder(tmp_path)
    written = export_config(
        model, model_type=json.loads((tmp_path / "config.json").read_text())["model_type"]
    )[1]
    assert {key: written[key] for key in ASKED} == ASKED
