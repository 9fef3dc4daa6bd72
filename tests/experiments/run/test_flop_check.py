"""The check of the FLOPs that a model of the user's code states: honest models pass, others do not."""

import ctypes

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from archbench.architectures.backbone import Flops, linear_flops
from archbench.experiments.run.flop_check import flop_problem
from tests.architectures.models import build
from tests.backbones import SOLVED
from tests.experiments.run.flop_layers import D, Layer, T, problem, view_of
from tests.tiers import fast_only


class Loop(Layer):
    """A product with a matrix at each step."""

    def forward(self, x_BTD, context):
        state, steps = torch.zeros_like(x_BTD[:, 0]), []
        for x_BD in x_BTD.unbind(1):
            state = (self.out(state) + x_BD).tanh()
            steps.append(state)
        return torch.stack(steps, 1)


class Elementwise(Layer):
    """An elementwise recurrence with an outer product."""

    def forward(self, x_BTD, context):
        outer_BTDD = x_BTD[..., :, None] * x_BTD[..., None, :]
        return self.out(outer_BTDD.cumsum(1).mean(-1))

    def flops(self, length):
        return super().flops(length) + Flops(mixer=2 * length * D * D)


class Fourier(Layer):
    """A long convolution by Fourier transforms, with a filter that a network makes."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, D)

    def forward(self, x_BTD, context):
        filter_TD = self.net(torch.linspace(0, 1, x_BTD.shape[1])[:, None].expand(-1, 4))
        size = 2 * x_BTD.shape[1]
        y_BTD = torch.fft.irfft(torch.fft.rfft(x_BTD, size, 1) * torch.fft.rfft(filter_TD, size, 0), size, 1)
        return self.out(y_BTD[:, : x_BTD.shape[1]])

    def flops(self, length):
        return Flops(linear=linear_flops(self.out, length), mixer=3 * D * 5 * length * length.bit_length())


class Attention(Layer):
    """Attention within a window, written with matrix products."""

    def forward(self, x_BTD, context):
        far_TT = torch.ones(T, T, dtype=torch.bool).triu(1) | torch.ones(T, T, dtype=torch.bool).tril(-4)
        far_TT = far_TT[: x_BTD.shape[1], : x_BTD.shape[1]]
        scores_BTT = (x_BTD @ x_BTD.mT).masked_fill(far_TT, -torch.inf)
        return self.out(scores_BTT.softmax(-1) @ x_BTD)

    def flops(self, length):
        pairs = sum(min(t + 1, 4) for t in range(length))
        return super().flops(length) + Flops(attention=4 * D * pairs)


class Recurrent(Layer):
    """Recurrent layers of PyTorch, in one operation."""

    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTM(D, D, batch_first=True), nn.GRU(D, D, batch_first=True)

    def forward(self, x_BTD, context):
        return self.out(self.gru(self.lstm(x_BTD)[0])[0])

    def flops(self, length):
        return super().flops(length) + Flops(linear=2 * length * (4 + 3) * 2 * D * D)


class Tied(Layer):
    """One matrix twice, and a frozen one."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(D, D)
        self.frozen.requires_grad_(False)

    def forward(self, x_BTD, context):
        return self.out(self.out(self.frozen(x_BTD)))

    def flops(self, length):
        return super().flops(length) + Flops(linear=linear_flops(self.out, length))


class Square(torch.autograd.Function):
    """A product with a backward pass of its own."""

    @staticmethod
    def forward(ctx, x_BTD, weight_DD):
        ctx.save_for_backward(x_BTD, weight_DD)
        return x_BTD @ weight_DD

    @staticmethod
    def backward(ctx, gradient_BTD):
        x_BTD, weight_DD = ctx.saved_tensors
        return gradient_BTD @ weight_DD.mT, (x_BTD.mT @ gradient_BTD).sum(0)


class Custom(Layer):
    def forward(self, x_BTD, context):
        return Square.apply(x_BTD, self.out.weight)


@torch.library.custom_op("flop_check::product", mutates_args=())
def product(x_BTD: torch.Tensor, weight_DD: torch.Tensor) -> torch.Tensor:
    return x_BTD @ weight_DD


product.register_autograd(
    lambda context, gradient_BTD: (gradient_BTD, torch.zeros(D, D)), setup_context=lambda *_, **__: None
)


class Library(Layer):
    """An operation that PyTorch cannot see into."""

    def forward(self, x_BTD, context):
        return product(x_BTD, self.out.weight)


class ZeroLibrary(Library):
    def flops(self, length):
        return Flops()


class Choosing(Layer):
    """Half of the tokens, chosen by their values, take another layer."""

    def forward(self, x_BTD, context):
        chosen_BT = x_BTD[..., 0] > x_BTD[..., 0].median()
        return x_BTD.masked_scatter(chosen_BT[..., None], self.out(x_BTD[chosen_BT]))


class Half(Layer):
    def flops(self, length):
        return Flops(linear=linear_flops(self, length) // 2)


class Zero(Loop):
    def flops(self, length):
        return Flops()


class Constant(Layer):
    def flops(self, length):
        return Flops(linear=linear_flops(self, 2))


class Training(Layer):
    def flops(self, length):
        return Flops(linear=linear_flops(self, length) // (2 if self.training else 1))


class InEvaluation(Layer):
    def flops(self, length):
        return Flops(linear=linear_flops(self, length) // (1 if self.training else 2))


class Weightless(Layer):
    """The plan, which has no weights, states less."""

    def flops(self, length):
        return Flops(linear=0 if self.out.weight.is_meta else linear_flops(self, length))


class HiddenProduct(Layer):
    """A product with a matrix, written elementwise."""

    def forward(self, x_BTD, context):
        return (x_BTD[..., None] * self.out.weight).sum(-2)

    def flops(self, length):
        return Flops()


class ZeroAttention(Attention):
    def flops(self, length):
        return Flops(linear=linear_flops(self, length))


class ZeroRecurrent(Recurrent):
    def flops(self, length):
        return Flops(linear=linear_flops(self, length))


class InFunction(Custom):
    def flops(self, length):
        return Flops()


class Evaluated(Layer):
    """More work in evaluation."""

    def forward(self, x_BTD, context):
        return self.out(x_BTD) if self.training else self.out(self.out(x_BTD))


class Mismatch(Layer):
    def forward(self, x_BTD, context):
        return self.out(x_BTD)[:, 1:]


class Repeating(torch.autograd.Function):
    """Six products more in the backward pass."""

    @staticmethod
    def forward(ctx, x_BTD, weight_DD):
        ctx.save_for_backward(weight_DD)
        return x_BTD @ weight_DD

    @staticmethod
    def backward(ctx, gradient_BTD):
        for _ in range(7):
            gradient_BTD = gradient_BTD @ ctx.saved_tensors[0].mT
        return gradient_BTD, None


class Backward(Layer):
    def forward(self, x_BTD, context):
        return Repeating.apply(x_BTD, self.out.weight)


class Checkpointed(Layer):
    def forward(self, x_BTD, context):
        return checkpoint(self.out, x_BTD, use_reentrant=False)


class High(Layer):
    def flops(self, length):
        return Flops(linear=10 * linear_flops(self, length))


class HighMixer(Layer):
    """States a recurrence that it does not have, and computes elementwise."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)

    def forward(self, x_BTD, context):
        return nn.functional.gelu(self.out(self.norm(x_BTD)))

    def flops(self, length):
        return super().flops(length) + Flops(mixer=10**4 * length)


class HighAttention(Layer):
    def flops(self, length):
        return super().flops(length) + Flops(attention=10**4 * length)


class Scan(Layer):
    """A recurrence in a kernel that PyTorch does not see, which writes to an empty tensor."""

    def forward(self, x_BTD, context):
        y_BTD = self.out(x_BTD)
        states_BTD = torch.empty_like(y_BTD)
        ctypes.memset(states_BTD.data_ptr(), 0, states_BTD.nbytes)
        return y_BTD + states_BTD

    def flops(self, length):
        return super().flops(length) + Flops(mixer=1000 * length)


class Gated(Layer):
    """An elementwise recurrence, without outer products."""

    def forward(self, x_BTD, context):
        state, steps = torch.zeros_like(x_BTD[:, 0]), []
        for x_BD in self.out(x_BTD).unbind(1):
            state = state * x_BD.sigmoid() + x_BD
            steps.append(state)
        return torch.stack(steps, 1)

    def flops(self, length):
        return super().flops(length) + Flops(mixer=4 * length * D)


class NotANumber(Layer):
    def flops(self, length):
        return Flops(linear=float("nan"))


HONEST = [
    Layer,
    Loop,
    Elementwise,
    Fourier,
    Attention,
    Recurrent,
    Tied,
    Custom,
    Library,
    Choosing,
    Checkpointed,
    Scan,
    Gated,
]
UNDERSTATED = [
    Half,
    Zero,
    Constant,
    HiddenProduct,
    ZeroAttention,
    ZeroRecurrent,
    InFunction,
    Evaluated,
    Training,
    ZeroLibrary,
]


@pytest.mark.parametrize("layer", HONEST)
def test_honest_layers_pass(layer):
    assert problem(layer) is None


@pytest.mark.parametrize("layer", UNDERSTATED)
def test_layers_that_state_less_are_named(layer):
    found = problem(layer)
    assert found is not None
    assert f"blocks.0.mixer ({layer.__name__}) takes" in found
    assert "\n" not in found


def test_a_backward_pass_with_more_products_is_named():
    assert "the backward pass of 24 tokens takes" in str(problem(Backward))


@pytest.mark.parametrize("layer", [High, HighMixer, HighAttention])
def test_flops_stated_too_high_for_linear_layers_are_named(layer):
    assert f"blocks.0.mixer ({layer.__name__}) takes" in str(problem(layer))


def test_flops_that_are_no_number_are_one_line():
    assert "is nan: it must be a number of operations" in str(problem(NotANumber))


@pytest.mark.parametrize("layer", [InEvaluation, Weightless])
def test_what_is_stated_does_not_depend_on_the_mode(layer):
    assert "state the same FLOPs at all times" in str(problem(layer))


def test_an_output_of_another_shape_is_an_error():
    with pytest.raises(ValueError, match=r"Mismatch\.forward must return the shape of its input"):
        problem(Mismatch)


@pytest.mark.parametrize("name", fast_only(SOLVED, ["decoder", "moe", "encoder_decoder"]))
def test_every_backbone_of_the_project_passes(name):
    torch.manual_seed(0)
    model = build(name)
    with torch.device("meta"):
        planned = build(name)
    assert flop_problem(model, planned, view_of(model)) is None
