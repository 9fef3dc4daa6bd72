"""Shapes: N state, M conjugate pairs, T samples."""

import math

import numpy as np
import pytest
import torch

from archbench.architectures.layers.ssm.discretization import real_matrix, real_vector
from archbench.architectures.layers.ssm.hippo import (
    EIGENVALUES,
    HIPPO,
    NPLR,
    hippo_fourier,
    hippo_legs,
    hippo_legs_input,
    hippo_legt,
    legs_eigenvalues,
    legs_nplr,
)


def test_hippo_by_hand():
    expected = [[-1, 0, 0], [-(3**0.5), -2, 0], [-(5**0.5), -(15**0.5), -3]]
    torch.testing.assert_close(hippo_legs(3), torch.tensor(expected, dtype=torch.float64))
    assert hippo_legs_input(3).tolist() == pytest.approx([1, 3**0.5, 5**0.5])


def test_legt_and_fourier_by_hand():
    """LegT (arXiv 2008.07669, theorem 1) with a window of 1; FouT (arXiv 2206.12037) of four states."""
    root = [1, 3**0.5, 5**0.5]
    sign = [[1, -1, 1], [1, 1, -1], [1, 1, 1]]
    expected = [[-root[n] * root[k] * sign[n][k] for k in range(3)] for n in range(3)]
    torch.testing.assert_close(hippo_legt(3), torch.tensor(expected, dtype=torch.float64))
    turn = 2 * math.pi
    by_hand = [[-1, 0, -1, 0], [0, -1, 0, -1], [-1, 0, -1, turn], [0, -1, -turn, -1]]
    torch.testing.assert_close(hippo_fourier(4), torch.tensor(by_hand, dtype=torch.float64))


@pytest.mark.parametrize("name", ["legt", "fourier"])
@pytest.mark.parametrize("size", [4, 8, 64])
def test_normal_less_rank_two_is_hippo_in_another_basis(name, size):
    """A change of basis by a unitary matrix leaves b^T A^k b as it is; the pairs count twice."""
    A_M, P_RM, B_M = NPLR[name](size)
    assert P_RM.shape == (2, size // 2)
    A_NN, B_N, hippo = real_matrix(A_M[None], *P_RM[:, None])[0], real_vector(B_M[None])[0], HIPPO[name](size)
    input_N = {"legt": hippo_legs_input(size), "fourier": (torch.arange(size) % 2 == 0).double()}[name]
    b, scale = input_N, torch.linalg.matrix_norm(hippo, 2)
    for _ in range(5):
        torch.testing.assert_close(2 * B_N @ real_vector(B_M[None])[0], b @ input_N, rtol=1e-9, atol=1e-9)
        b, B_N = hippo @ b / scale, A_NN @ B_N / scale


def test_the_state_of_legs_is_the_history_in_legendre_polynomials():
    """The state after c' = (A c + B f) / t, read out as sum c_n sqrt(2n+1) P_n(2s/t - 1), is f(s)."""
    A, B = hippo_legs(8).numpy(), hippo_legs_input(8).numpy()
    polynomial = np.polynomial.Polynomial([0.3, -1.0, 2.0, 1.5, -3.0])
    samples, one, c = 4000, np.eye(8), np.zeros(8)
    c[0] = polynomial(0.0)  # the history of a moment is a constant
    for k in range(1, samples):
        # Trapezoid rule from t = k to k + 1, in samples.
        right = c + (A @ c + B * polynomial(k / samples)) / (2 * k)
        right = right + B * polynomial((k + 1) / samples) / (2 * (k + 1))
        c = np.linalg.solve(one - A / (2 * (k + 1)), right)
    s = np.linspace(0, 1, 50)
    read = np.polynomial.legendre.Legendre(c * hippo_legs_input(8).numpy())(2 * s - 1)
    np.testing.assert_allclose(read, polynomial(s), atol=1e-3)
    # Coefficients beyond the degree of the polynomial are zero.
    assert np.abs(c[5:]).max() < 1e-3
    assert np.abs(c[:5]).min() > 1e-2


@pytest.mark.parametrize("size", [2, 8, 64])
def test_eigenvalues_are_those_of_the_normal_part(size):
    root = (torch.arange(size, dtype=torch.float64) + 0.5).sqrt()
    every = np.linalg.eigvals((hippo_legs(size) + torch.outer(root, root)).numpy())
    upper = sorted(every[every.imag > 0], key=lambda value: value.imag)
    found = sorted(legs_eigenvalues(size).tolist(), key=lambda value: value.imag)
    assert found == pytest.approx(upper, rel=1e-8)


@pytest.mark.parametrize(
    ("name", "largest"), [("legs", [1303.3, 433.0, 258.2]), ("inv", [1283.4, 414.2, 240.4])]
)
def test_largest_frequencies(name, largest):
    """Those published for a state of 64."""
    found = EIGENVALUES[name](64).imag.sort(descending=True).values[:3]
    assert found.tolist() == pytest.approx(largest, abs=0.05)


def test_diagonal_matrices_by_hand():
    assert EIGENVALUES["lin"](6).tolist() == pytest.approx([-0.5 + k * math.pi * 1j for k in range(3)])
    assert EIGENVALUES["real"](6).tolist() == [-1, -2, -3]
    inv = [-0.5 + 6 / math.pi * (6 / k - 1) * 1j for k in (1, 3, 5)]
    assert EIGENVALUES["inv"](6).tolist() == pytest.approx(inv)
    assert {name: len(make(10)) for name, make in EIGENVALUES.items()} == dict.fromkeys(EIGENVALUES, 5)


@pytest.mark.parametrize("size", [2, 8, 32])
def test_diagonal_plus_low_rank_is_hippo_in_another_basis(size):
    A_M, P_RM, B_M = legs_nplr(size)
    A_NN, B_N = real_matrix(A_M[None], *P_RM[:, None])[0], real_vector(B_M[None])[0]
    hippo, b = hippo_legs(size), hippo_legs_input(size)
    found, expected = (np.sort(np.linalg.eigvals(a.numpy()).real) for a in (A_NN, hippo))
    if size < 32:  # the eigenvalues of larger ones are lost in rounding
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    # A change of basis by a unitary matrix leaves b^T A^k b as it is; the pairs count twice.
    for _ in range(5):
        value = b @ hippo_legs_input(size)
        torch.testing.assert_close(2 * B_N @ real_vector(B_M[None])[0], value, rtol=1e-9, atol=1e-9)
        b, B_N = hippo @ b, A_NN @ B_N
