import pytest
import torch
import torch.nn.functional as F
from transformers import MambaConfig as OracleConfig
from transformers import MambaForCausalLM

from archbench.architectures import fast_paths
from archbench.architectures.backbones.mamba import Mamba, MambaConfig
from archbench.architectures.layers.context import Context
from archbench.architectures.mixers.mamba import SelectiveConfig, SelectiveSSM
from tests.architectures.conformance import enliven
from tests.architectures.costs import arithmetic_of_one_sequence

ONE_DOCUMENT = Context(positions_BT=torch.arange(40)[None])


def oracle_model() -> MambaForCausalLM:
    config = OracleConfig(
        vocab_size=61,
        hidden_size=24,
        state_size=5,
        num_hidden_layers=3,
        conv_kernel=3,
        expand=2,
        time_step_rank=4,
        layer_norm_epsilon=1e-5,
        tie_word_embeddings=False,
    )
    return enliven(MambaForCausalLM(config).eval()).double()  # type: ignore[return-value]


def model(**changes: object) -> Mamba:
    settings = {"d_model": 24, "num_layers": 3, "d_state": 5, "conv_width": 3, "dt_rank": 4}
    return Mamba(MambaConfig(**(settings | changes)), vocab_size=61, max_length=40)


def copy_weights(ours: Mamba, oracle: MambaForCausalLM) -> None:
    """Weights into ours; every one of ours is set."""
    state = {
        "embedding.weight": oracle.backbone.embeddings.weight,
        "final.weight": oracle.backbone.norm_f.weight,
        "head.weight": oracle.lm_head.weight,
    }
    for index, layer in enumerate(oracle.backbone.layers):
        mixer = layer.mixer
        parts = {
            "mixer_residual.before.weight": layer.norm.weight,
            "mixer.input.weight": mixer.in_proj.weight,
            "mixer.convolution.weight_CK": mixer.conv1d.weight[:, 0],
            "mixer.convolution.bias_C": mixer.conv1d.bias,
            "mixer.select.weight": mixer.x_proj.weight,
            "mixer.dt.weight": mixer.dt_proj.weight,
            "mixer.dt.bias": mixer.dt_proj.bias,
            "mixer.A_log_CN": mixer.A_log,
            "mixer.D_C": mixer.D,
            "mixer.out.weight": mixer.out_proj.weight,
        }
        state |= {f"blocks.{index}.{name}": value for name, value in parts.items()}
    ours.load_state_dict(state)


@pytest.mark.parametrize("scan", ["torch", "reference"])
def test_logits_are_those_of_the_transformers_library(scan):
    oracle, ours = oracle_model(), model(scan=scan).double()
    copy_weights(ours, oracle)
    tokens = torch.randint(61, (2, 23))
    with torch.no_grad():
        expected = oracle(tokens, use_cache=False).logits.double()
        torch.testing.assert_close(ours(tokens).logits_BTV, expected, atol=1e-5, rtol=0)
        state = ours.start(2, 23)
        steps = [ours.step(token, state) for token in tokens.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, atol=1e-5, rtol=0)


def test_both_scans_give_the_same_gradients():
    gradients = []
    for scan in ("torch", "reference"):
        torch.manual_seed(0)
        ours = enliven(model(scan=scan).double())
        tokens = torch.randint(61, (2, 17), generator=torch.Generator().manual_seed(0))
        loss = F.cross_entropy(ours(tokens).logits_BTV.flatten(0, 1), tokens.roll(-1, 1).flatten())
        gradients.append(torch.autograd.grad(loss, list(ours.parameters())))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


def test_time_steps_and_decay_at_initialisation():
    """A = -1, ..., -N in each channel; softplus of the bias log-uniform between dt_min and dt_max."""
    mixer = model(d_model=512, dt_min=0.01, dt_max=1.0).blocks[0].mixer
    torch.testing.assert_close(mixer.A_log_CN.exp(), torch.arange(1.0, 6.0).expand(1024, 5))
    position = F.softplus(mixer.dt.bias).log10()
    assert position.min() >= -2.001
    assert position.max() <= 0.001
    assert position.mean().item() == pytest.approx(-1.0, abs=0.1)
    assert position.std().item() == pytest.approx(2 / 12**0.5, rel=0.1)
    assert mixer.D_C.eq(1).all()
    assert mixer.dt.weight.abs().max().item() == pytest.approx(4**-0.5, rel=0.01)


def test_sizes_left_null_are_those_of_the_paper():
    mixer = model(d_model=40, dt_rank=None).blocks[0].mixer
    assert (mixer.dt.in_features, mixer.A_log_CN.shape[0]) == (3, 80)


def test_the_decay_rates_are_not_decayed():
    mixer = model().blocks[0].mixer
    assert mixer.A_log_CN.no_weight_decay


def test_mixer_flops_are_the_arithmetic_that_runs():
    """The gate after the scan, one product for each channel, is an activation and not counted."""
    mixer = SelectiveSSM(16, SelectiveConfig(d_inner=24, d_state=5, scan="reference"))
    mixer.initialise(1)
    mixer.dt.bias = None
    for length in (1, 8, 13):
        measured = arithmetic_of_one_sequence(
            lambda batch, T=length: mixer(torch.randn(batch, T, 16), ONE_DOCUMENT)
        )
        assert mixer.flops(length).mixer == measured - length * 24


def test_the_state_does_not_grow():
    ours = model()
    assert ours.state_bytes(1) == ours.state_bytes(1000) == 3 * 48 * (5 + 2) * 4


def test_the_state_stays_in_float32():
    mixer = SelectiveSSM(24, SelectiveConfig(d_state=5)).to(torch.bfloat16)
    state = mixer.start(2, 10)
    assert (state["ssm"].dtype, state["window"].dtype) == (torch.float32, torch.bfloat16)
    assert mixer.state_bytes(3, 2) == sum(value.nbytes for value in mixer.start(1, 10).values())


@pytest.mark.parametrize(
    "changes",
    [{}, {"negative_eigenvalues": True}, {"selection_norm": True}, {"bias": True, "conv_bias": False}],
)
def test_every_setting_reads_in_pieces_as_in_one(changes):
    """The same outputs, last state and gradients, by the plain loop or not, whole or in pieces."""
    x_BTD = torch.randn(2, 17, 24, dtype=torch.float64, requires_grad=True)
    found = []
    for scan, sizes in (("reference", [17]), ("torch", [17]), ("torch", [5, 1, 9, 2])):
        torch.manual_seed(0)
        mixer = SelectiveSSM(24, SelectiveConfig(d_state=5, conv_width=3, scan=scan, **changes))
        mixer.initialise(1)
        mixer = enliven(mixer).double()
        state, pieces = mixer.start(2, 17), []
        for piece in x_BTD.split(sizes, dim=1):
            y_BTD, state = mixer.read(piece, state, ONE_DOCUMENT)
            pieces.append(y_BTD)
        y_BTD = torch.cat(pieces, dim=1)
        loss = y_BTD.sin().sum() + state["ssm"].square().sum() + state["window"].square().sum()
        found.append([y_BTD, *state.values(), *torch.autograd.grad(loss, [x_BTD, *mixer.parameters()])])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            torch.testing.assert_close(one, two, atol=1e-10, rtol=1e-10)


PADDED = Context(
    positions_BT=torch.arange(17)[None], valid_BT=torch.arange(17) < torch.tensor([17, 9])[:, None]
)
PACKED = Context.whole(torch.zeros(2, 17), None, torch.tensor([[0] * 5 + [1] * 12, [0] * 16 + [1]]))


@pytest.mark.skipif(bool(fast_paths.problem()), reason=fast_paths.problem())
@pytest.mark.parametrize("context", [ONE_DOCUMENT, PADDED, PACKED], ids=["whole", "padded", "packed"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"negative_eigenvalues": True}, {"selection_norm": True}, {"bias": True, "conv_bias": False}],
)
def test_the_cpp_layer_is_the_plain_one(changes, context):
    """Output, last state and gradients in float32, against the plain loop in float64."""
    x_BTD, found = torch.randn(2, 17, 24), []
    for scan, dtype in (("reference", torch.float64), ("cpp", torch.float32)):
        torch.manual_seed(0)
        made = SelectiveSSM(24, SelectiveConfig(d_state=5, conv_width=3, scan=scan, **changes))
        made.initialise(1)
        made = enliven(made).to(dtype)
        x = x_BTD.to(dtype).requires_grad_()
        y_BTD, state = made.read(x, None, context)
        loss = (
            (y_BTD * torch.linspace(-1, 1, 24).to(dtype)).sum() + state["ssm"].sum() + state["window"].sum()
        )
        names = [name for name, _ in made.named_parameters()]
        parts = [y_BTD, *state.values(), *torch.autograd.grad(loss, [x, *made.parameters()])]
        found.append(dict(zip(["y", *state, "x", *names], parts, strict=True)))
    for name, expected in found[0].items():
        error = (found[1][name] - expected).abs().max() / expected.abs().max()
        assert error < 5e-6, name


def test_negative_eigenvalues_change_the_result():
    x_BTD = torch.randn(1, 9, 24)
    plain, changed = (SelectiveSSM(24, SelectiveConfig(negative_eigenvalues=flag)) for flag in (False, True))
    plain.initialise(1)
    enliven(plain)
    changed.load_state_dict(plain.state_dict())
    assert (plain(x_BTD, ONE_DOCUMENT) - changed(x_BTD, ONE_DOCUMENT)).abs().max() > 1e-3


def test_a_vocabulary_too_small_is_named():
    with pytest.raises(ValueError, match="vocab_size=60 is smaller than the task's vocabulary of 61"):
        model(vocab_size=60)


def test_kernels_say_which_scan_runs():
    auto = "torch" if fast_paths.problem() else "cpp"
    for scan, expected in {"auto": auto, "torch": "torch", "reference": "reference"}.items():
        decoding = auto if scan == "auto" else "torch"
        assert model(scan=scan).kernels() == {"scan": expected, "decoding": decoding}
