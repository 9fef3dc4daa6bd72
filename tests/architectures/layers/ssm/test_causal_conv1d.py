import pytest
import torch
from torch import nn

from archbench.architectures.layers.ssm.causal_conv1d import CausalConvolution


def convolution(channels: int, width: int) -> CausalConvolution:
    torch.manual_seed(width)
    layer = CausalConvolution(channels, width)
    layer.initialise()
    return layer.double()


@pytest.mark.parametrize(("channels", "width", "length"), [(1, 1, 1), (3, 4, 2), (5, 4, 11), (2, 7, 3)])
def test_it_is_a_depthwise_conv1d_cut_at_the_present(channels, width, length):
    layer = convolution(channels, width)
    oracle = nn.Conv1d(channels, channels, width, groups=channels, padding=width - 1).double()
    with torch.no_grad():
        oracle.weight.copy_(layer.weight_CK[:, None])
        oracle.bias.copy_(layer.bias_C)
    x_BTC = torch.randn(2, length, channels, dtype=torch.float64)
    expected = oracle(x_BTC.transpose(1, 2))[..., :length].transpose(1, 2)
    torch.testing.assert_close(layer(x_BTC), expected, atol=1e-12, rtol=0)
    assert layer.flops(length) == 2 * length * channels * width


def test_the_last_tap_is_the_present():
    layer = CausalConvolution(1, 3)
    with torch.no_grad():
        layer.weight_CK.copy_(torch.tensor([[100.0, 10.0, 1.0]]))
    assert layer(torch.tensor([[[1.0], [2.0], [3.0]]])).flatten().tolist() == [1.0, 12.0, 123.0]


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("sizes", [[1] * 9, [9], [2, 6, 1], [5, 4]])
def test_steps_make_the_whole(width, sizes):
    layer = convolution(3, width)
    x_BTC = torch.randn(2, 9, 3, dtype=torch.float64)
    window = layer.start(2)
    pieces = [layer.step(piece, window) for piece in x_BTC.split(sizes, dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), layer(x_BTC), atol=1e-12, rtol=0)


def test_weights_start_as_those_of_conv1d():
    layer = convolution(2000, 4)
    for weight in (layer.weight_CK, layer.bias_C):
        assert 0.49 < weight.abs().max() <= 0.5
        assert abs(weight.mean()) < 0.03


@pytest.mark.parametrize("width", [1, 2, 5])
def test_packed_documents_are_filtered_apart(width):
    layer, sizes = convolution(3, width), [4, 1, 2, 6]
    x_BTC = torch.randn(2, sum(sizes), 3, dtype=torch.float64)
    positions_BT = torch.cat([torch.arange(size) for size in sizes]).expand(2, -1)
    apart = torch.cat([layer(piece) for piece in x_BTC.split(sizes, dim=1)], dim=1)
    torch.testing.assert_close(layer(x_BTC, positions_BT=positions_BT), apart, atol=1e-12, rtol=0)


def test_without_bias_there_is_none():
    layer = CausalConvolution(3, 4, bias=False)
    layer.initialise()
    assert [name for name, _ in layer.named_parameters()] == ["weight_CK"]
    zeros = torch.zeros(1, 5, 3)
    assert not layer(zeros).any()
    assert not layer(zeros, positions_BT=torch.arange(5)[None]).any()
