"""Shapes: B batch, T length, V vocabulary."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.architectures.pretrained.export import save_folder
from archbench.architectures.pretrained.folder import load_folder
from archbench.experiments.data.tokenizers.tokenizer import ByteTokenizer, TokenizerConfig
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM, CausalLMConfig
from archbench.experiments.objectives.language_modelling.multi_token import MultiToken, MultiTokenConfig
from archbench.experiments.objectives.objective import View
from archbench.experiments.run.load_model import Prompts
from archbench.experiments.run.size_solver import Sizes, training_flops_per_token
from tests.experiments.objectives import toys

TASK = toys.Symbols(20)
V = TASK.vocabulary


def objective(**settings: object) -> MultiToken:
    return MultiToken(MultiTokenConfig(**settings), TASK)  # type: ignore[arg-type]


def model(trained: MultiToken, name: str = "decoder") -> Backbone:
    torch.manual_seed(0)
    found = toys.build(name, V.size)
    found.attach_readout(trained.make_readout(found).double())
    return found.train()


def view_of(trained: MultiToken, tokens_BT: Tensor) -> View:
    return trained.view(toys.whole(tokens_BT), torch.Generator())


@pytest.mark.parametrize("name", ["decoder", "mamba"])
def test_the_loss_is_that_of_all_tokens_ahead(name: str) -> None:
    trained = objective(num_tokens=3, weight=0.7)
    backbone = model(trained, name)
    tokens_BT = torch.randint(1, 20, (2, 6))
    view = view_of(trained, tokens_BT)
    output = view.run(backbone)
    loss, count = trained.loss(output, view)
    assert count == 12
    assert output.readout is not None
    expected = torch.zeros((), dtype=torch.float64)
    for row in range(2):
        for position in range(6):  # the hidden state that predicts the token at ``position``
            nats_V = -output.logits_BTV[row, position].log_softmax(-1)
            expected += nats_V[tokens_BT[row, position]]
            for ahead in (1, 2):
                if position + ahead < 6:
                    nats_V = -output.readout[row, position, ahead - 1].log_softmax(-1)
                    expected += 0.7 * nats_V[tokens_BT[row, position + ahead]]
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    loss.backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())


def test_a_head_is_a_residual_feed_forward_before_the_head_of_the_model() -> None:
    backbone = model(objective(num_tokens=2))
    output = backbone(torch.randint(20, (1, 5)))
    heads = backbone.readout
    ((feedforward,), (before, after)) = heads.feedforwards, heads.norms
    hidden_BTD = output.hidden_BTD
    x_BTD = before(hidden_BTD)
    mixed_BTD = feedforward.down(torch.nn.functional.silu(feedforward.gate(x_BTD)) * feedforward.up(x_BTD))
    expected = backbone.head(after(hidden_BTD + mixed_BTD))
    torch.testing.assert_close(output.readout[:, :, 0], expected)


def test_documents_that_are_kept_apart_do_not_predict_each_other() -> None:
    eos = V.eos
    trained = objective(num_tokens=3, separate_documents=True)
    backbone = model(trained)
    view = view_of(trained, torch.tensor([[3, eos, 4, 1, eos, 2]]))
    output = view.run(backbone)
    loss = trained.loss(output, view)[0]
    other = copy.copy(output)
    assert output.readout is not None
    other.readout = output.readout.clone()
    # States 0 and 1 are of the first document, 2 to 4 of the second: these would look into the next one.
    for position, head in ((1, 0), (0, 1), (1, 1), (4, 0), (3, 1), (4, 1)):
        other.readout[0, position, head] = torch.randn(V.size)
    torch.testing.assert_close(trained.loss(other, view)[0], loss)
    other.readout[0, 0, 0] = torch.randn(V.size)
    assert trained.loss(other, view)[0] != loss


def test_scores_are_those_of_the_next_token() -> None:
    trained = objective()
    backbone = model(trained).eval()
    batch = toys.whole(torch.randint(1, 20, (2, 9)))
    found = trained.evaluate(backbone, batch, [])
    expected = CausalLM(CausalLMConfig(), TASK).evaluate(backbone, batch, [])
    assert torch.equal(found.nats_B, expected.nats_B)
    assert view_of(trained, batch.tokens_BT).run(backbone).readout is None


def test_the_flops_of_all_heads_count_in_training() -> None:
    trained = objective(num_tokens=4)
    cls, config = toys.CAUSAL["decoder"]
    plain = Sizes(vocab_size=V.size, length=32)
    sizes = Sizes(vocab_size=V.size, length=32, make_readout=trained.make_readout)
    width, hidden = 16, 48  # 8/3 of 16, in eights
    difference = training_flops_per_token(sizes.on_meta(cls, config), sizes) - training_flops_per_token(
        plain.on_meta(cls, config), plain
    )
    assert difference == 3 * 3 * 2 * (3 * width * hidden + width * V.size)


def test_a_copy_of_the_model_uses_its_own_head() -> None:
    backbone = model(objective(num_tokens=2))
    other = copy.deepcopy(backbone)
    with torch.no_grad():
        backbone.head.weight.zero_()
    tokens_BT = torch.randint(20, (1, 5))
    assert (backbone(tokens_BT).readout == 0).all()
    assert not (other(tokens_BT).readout == 0).all()
    names = [name for name, _ in backbone.named_parameters() if name.startswith("readout.")]
    assert not any("head" in name or "predict" in name for name in names)


@pytest.mark.parametrize("settings", [{"num_tokens": 1}, {"weight": 0.0}])
def test_wrong_settings_are_named(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        objective(**settings)


def test_no_head_looks_beyond_a_sequence() -> None:
    objective(num_tokens=TASK.sequence_length)
    with pytest.raises(ValueError, match=f"exceeds the {TASK.sequence_length} tokens of a sequence"):
        objective(num_tokens=TASK.sequence_length + 1)


def test_a_loaded_model_needs_no_sequences() -> None:
    """To generate text, it has a tokenizer and no examples."""
    prompts = Prompts(ByteTokenizer(TokenizerConfig(), 0))
    assert MultiToken(MultiTokenConfig(num_tokens=2), prompts).task is prompts


def test_the_compiled_kernels_train_all_heads() -> None:
    torch.manual_seed(0)
    trained = objective(num_tokens=2)
    backbone = model(trained).float()
    view = view_of(trained, torch.randint(1, 20, (2, 6)))
    loss = trained.loss(view.run(backbone), view)[0]
    expected = trained.loss(view.run(backbone.double()), view)[0]
    torch.testing.assert_close(loss.double(), expected.double(), rtol=1e-5, atol=0)


def test_an_exported_model_has_no_heads_for_later_tokens(tmp_path: Path) -> None:
    backbone = model(objective()).float().eval()
    save_folder(backbone, tmp_path / "exported")
    tokens_BT = torch.randint(20, (1, 5))
    with torch.no_grad():
        torch.testing.assert_close(
            load_folder(tmp_path / "exported")(tokens_BT).logits_BTV, backbone(tokens_BT).logits_BTV
        )
