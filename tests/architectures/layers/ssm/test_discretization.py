"""Shapes: D channels, M conjugate pairs of the state, N = 2 M."""

import numpy as np
import pytest
import scipy.signal
import torch

from archbench.architectures.layers.ssm.discretization import (
    ALPHA,
    DISCRETISATIONS,
    discretise_dense,
    discretise_diagonal,
    largest_stable_euler_step,
    real_matrix,
    real_readout,
    real_vector,
)
from archbench.architectures.layers.ssm.hippo import EIGENVALUES, hippo_legs, hippo_legs_input


def scipy_discretised(A, B, step, method):
    system = (A, B[:, None], np.zeros((1, len(A))), np.zeros((1, 1)))
    A_bar, B_bar, *_ = scipy.signal.cont2discrete(system, step, method=method)
    return A_bar, B_bar[:, 0]


@pytest.mark.fast
@pytest.mark.parametrize("method", DISCRETISATIONS)
@pytest.mark.parametrize("initialisation", EIGENVALUES)
def test_diagonal_matrices_are_those_of_scipy(initialisation, method):
    A_DM = EIGENVALUES[initialisation](12).expand(3, -1)
    B_DM = torch.randn(3, 6, dtype=torch.complex128)
    dt_D = torch.tensor([0.001, 0.013, 0.1], dtype=torch.float64)
    log_A_DM, B_bar_DM = discretise_diagonal(A_DM, B_DM, dt_D, method)
    found_A, found_B = real_matrix(log_A_DM.exp()).numpy(), real_vector(B_bar_DM).numpy()
    for d in range(3):
        A, B = real_matrix(A_DM)[d].numpy(), real_vector(B_DM)[d].numpy()
        expected_A, expected_B = scipy_discretised(A, B, dt_D[d].item(), method)
        np.testing.assert_allclose(found_A[d], expected_A, atol=1e-12)
        np.testing.assert_allclose(found_B[d], expected_B, atol=1e-12)


@pytest.mark.fast
@pytest.mark.parametrize("method", ALPHA)
def test_dense_matrices_are_those_of_scipy(method):
    A, B = hippo_legs(9), hippo_legs_input(9)
    dt_D = torch.tensor([0.002, 0.3], dtype=torch.float64)
    found_A, found_B = discretise_dense(A.expand(2, -1, -1), B.expand(2, -1), dt_D, method)
    for d in range(2):
        expected_A, expected_B = scipy_discretised(A.numpy(), B.numpy(), dt_D[d].item(), method)
        np.testing.assert_allclose(found_A[d], expected_A, atol=1e-12)
        np.testing.assert_allclose(found_B[d], expected_B, atol=1e-12)


def test_the_real_system_is_the_complex_one_with_its_conjugates():
    A, P, B, C, x = (torch.randn(2, 5, dtype=torch.complex128) for _ in range(5))
    pairs = [torch.cat([v, v.conj()], dim=-1) for v in (A, P, B, C, x)]
    A2, P2, B2, C2, x2 = pairs
    moved = A2 * x2 - P2 * (P2.conj() * x2).sum(-1, keepdim=True) + B2
    found = (real_matrix(A, P) @ real_vector(x)[..., None])[..., 0] + real_vector(B)
    torch.testing.assert_close(found, real_vector(moved[:, :5]))
    torch.testing.assert_close(moved[:, 5:], moved[:, :5].conj())
    read = (C2 * x2).sum(-1)
    torch.testing.assert_close((real_readout(C) * real_vector(x)).sum(-1), read.real)


def test_the_longest_stable_step_of_euler_by_hand():
    """-4 alone: 2 / 4. With -1/2 + 3i: 1 / 9.25 is shorter."""
    assert largest_stable_euler_step(torch.tensor([-4 + 0j])) == pytest.approx(0.5)
    eigenvalues = torch.tensor([-4 + 0j, -0.5 + 3j])
    longest = largest_stable_euler_step(eigenvalues)
    assert longest == pytest.approx(1 / 9.25)
    assert (1 + longest * eigenvalues).abs().max().item() == pytest.approx(1.0)
