"""Shapes: B batch, T length, D channels, M conjugate pairs of the state."""

import numpy as np
import pytest
import torch

from archbench.architectures.layers.ssm.convolution_kernel import (
    apart,
    convolve,
    fft_size,
    like_lengths,
    powers,
    powers_reference,
    vandermonde,
    vandermonde_reference,
)


def test_the_end_does_not_wrap_around():
    """The last input of a long memory reaches no earlier output."""
    for length in range(1, 70):
        assert 2 * length - 1 <= fft_size(length) < 4 * length + 2
        assert fft_size(length).bit_count() == 1


@pytest.mark.parametrize("length", [1, 2, 3, 16, 17, 63, 200])
def test_two_level_powers_are_the_powers(length):
    log_A_DM = torch.complex(-torch.rand(3, 4), 3 * torch.randn(3, 4)).to(torch.complex128)
    CB_DM = torch.randn(3, 4, dtype=torch.complex128)
    kernel = vandermonde(log_A_DM, CB_DM, length)
    assert kernel.shape == (3, length)
    torch.testing.assert_close(kernel, vandermonde_reference(log_A_DM, CB_DM, length))
    by_hand = sum(CB_DM[1, m] * log_A_DM[1, m].exp() ** (length - 1) for m in range(4)).real
    torch.testing.assert_close(kernel[1, -1], by_hand)


def test_powers_are_the_exponential_of_the_logarithm_with_its_derivatives():
    log_A_DM = torch.complex(-torch.rand(2, 3), 30 * torch.randn(2, 3))
    steps_K = torch.tensor([0, 1, 5, 64])
    torch.testing.assert_close(powers(log_A_DM, steps_K), (log_A_DM[..., None] * steps_K).exp())
    assert (powers(log_A_DM, steps_K)[..., 0] == 1).all()
    wide_DM = log_A_DM.to(torch.complex128).requires_grad_()
    assert torch.autograd.gradcheck(powers, (wide_DM, steps_K))
    assert torch.autograd.gradgradcheck(powers, (wide_DM, steps_K))


def test_powers_of_a_matrix():
    A, B, C = torch.randn(2, 3, 3), torch.randn(2, 3), torch.randn(2, 3)
    response = powers_reference(A, B, C, 4)
    for d in range(2):
        expected = [C[d] @ torch.linalg.matrix_power(A[d], t) @ B[d] for t in range(4)]
        torch.testing.assert_close(response[d], torch.stack(expected), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("length", [1, 2, 7, 32, 33])
def test_convolution_by_its_definition(length):
    x, kernel, backward = torch.randn(2, 3, length), torch.randn(3, length), torch.randn(3, length)
    x, kernel, backward = x.double(), kernel.double(), backward.double()
    causal, both = convolve(x, kernel), convolve(x, kernel, backward)
    for b in range(2):
        for d in range(3):
            expected = np.convolve(x[b, d], kernel[d])[:length]
            np.testing.assert_allclose(causal[b, d], expected, atol=1e-12)
            for t in range(length):
                expected[t] += sum(backward[d, s - t - 1] * x[b, d, s] for s in range(t + 1, length))
            np.testing.assert_allclose(both[b, d], expected, atol=1e-12)


def test_documents_are_laid_under_each_other_once():
    """Each token goes to one place, and padding is less than the tokens themselves."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        sizes = torch.randint(1, 20, (2, 6), generator=generator)
        sizes[1, -1] += sizes[0].sum() - sizes[1].sum() + 100
        sizes[0, -1] += 100
        positions_BT = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in sizes.tolist()])
        groups = like_lengths(positions_BT)
        seen = torch.cat([group.tokens_I for group in groups])
        assert torch.equal(seen.sort().values, torch.arange(positions_BT.numel()))
        assert sum(group.rows for group in groups) == sizes.numel()
        assert sum(group.rows * group.length for group in groups) < 2 * positions_BT.numel()
        for group in groups:
            places = set(zip(group.row_I.tolist(), group.position_I.tolist(), strict=True))
            assert len(places) == len(group.tokens_I)
            assert group.position_I.max() < group.length <= 2 * group.position_I.max() + 1


def test_each_document_is_mixed_alone():
    """Cumulative sums begin anew in each, and gradients come back to where they belong."""
    sizes = [[5, 1, 2], [1, 1, 6]]
    x_BDT = torch.randn(2, 4, 8, dtype=torch.float64, requires_grad=True)
    positions_BT = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in sizes])
    found = apart(x_BDT, like_lengths(positions_BT), lambda x: x.cumsum(-1))
    expected = torch.stack(
        [
            torch.cat([piece.cumsum(-1) for piece in x_DT.split(row, dim=-1)], dim=-1)
            for x_DT, row in zip(x_BDT, sizes, strict=True)
        ]
    )
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    gradients = [torch.autograd.grad((y * weights).sum(), x_BDT)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients)
