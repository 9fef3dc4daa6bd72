"""S4's systems as they start: those of HiPPO, of the configuration, and of the authors' code."""

import math

import numpy as np
import pytest
import torch

from archbench.architectures.layers.ssm.discretization import real_readout
from archbench.architectures.layers.ssm.hippo import HIPPO, legs_eigenvalues
from archbench.architectures.layers.ssm.s4_config import S4LayerConfig
from archbench.architectures.layers.ssm.s4_dplr import S4DPLR
from archbench.architectures.layers.ssm.s4d import S4D

DPLR = {"parametrisation": "dplr", "discretisation": "bilinear"}


def test_initialisation():
    mixer = S4D(512, S4LayerConfig(d_state=8, dt_min=0.01, dt_max=1.0))
    mixer.initialise(1)
    position = mixer.log_dt_D.exp().log10()
    assert position.min() >= -2
    assert position.max() <= 0
    assert position.mean().item() == pytest.approx(-1.0, abs=0.1)
    assert (-mixer.log_A_real_DM.exp()).allclose(torch.tensor(-0.5))
    torch.testing.assert_close(mixer.A_imag_DM[7].double(), legs_eigenvalues(8).imag, rtol=1e-6, atol=1e-6)
    assert mixer.C_DM2.square().sum(-1).mean().item() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("initialisation", ["inv", "lin", "real"])
def test_the_initialisation_is_the_one_of_the_config(initialisation):
    mixer = S4D(8, S4LayerConfig(d_state=6, initialisation=initialisation))
    mixer.initialise(1)
    by_hand = {
        "inv": [-0.5 + 6 / math.pi * (6 / k - 1) * 1j for k in (1, 3, 5)],
        "lin": [-0.5 + k * math.pi * 1j for k in range(3)],
        "real": [-1, -2, -3],
    }
    assert mixer.A()[5].tolist() == pytest.approx(by_hand[initialisation], rel=1e-6)


def test_dplr_starts_as_hippo_legs():
    """The eigenvalues of A itself, not of its normal part, and B as large as HiPPO's."""
    mixer = S4DPLR(8, S4LayerConfig(d_state=8, **DPLR)).double()
    mixer.initialise(1)
    A_DNN, B_DN, _, _ = (x.detach() for x in mixer.continuous())
    found = np.sort(np.linalg.eigvals(A_DNN[3].numpy()).real)
    np.testing.assert_allclose(found, -np.arange(8, 0, -1.0), rtol=1e-5)
    assert 2 * B_DN[3].square().sum().item() == pytest.approx(64.0)  # the sum of 2n+1


def test_s4d_legs_of_the_authors_starts_with_hippos_input():
    """Of a state of 64, B clipped at 2i: its mean square is 2.34, where B = 1 has 1."""
    mixer = S4D(8, S4LayerConfig(B="trained", B_clip=2.0, D="normal", dt_transform="softplus"))
    mixer.initialise(1)
    B_DM = mixer.B().detach()
    assert B_DM.imag.abs().max().item() == pytest.approx(2.0)
    assert B_DM.abs().square().mean().item() == pytest.approx(2.34, abs=0.01)
    step_D = mixer.dt()
    assert step_D.min() >= 0.001 * (1 - 1e-4)
    assert step_D.max() <= 0.1 * (1 + 1e-4)
    assert mixer.D_D.std() > 0.2
    assert {name for name, _ in mixer.named_parameters()} >= {"B_DM2"}


def test_channels_share_systems():
    """With two systems of eight channels, four channels have the same A and B, and steps of their own."""
    mixer = S4DPLR(8, S4LayerConfig(d_state=6, num_systems=2, **DPLR))
    mixer.initialise(1)
    with torch.no_grad():
        mixer.A_imag_DM.add_(torch.randn_like(mixer.A_imag_DM))
    assert mixer.A_imag_DM.shape == mixer.log_A_real_DM.shape == (2, 3)
    assert mixer.B_DM2.shape == mixer.P_DM2.shape == (2, 3, 2)
    assert torch.equal(mixer.A()[::2], mixer.A()[:1].expand(4, -1))
    assert torch.equal(mixer.A()[1::2], mixer.A()[1:2].expand(4, -1))
    assert mixer.dt().unique().numel() == 8
    with pytest.raises(ValueError, match="num_systems=3 must divide d_model=8"):
        S4D(8, S4LayerConfig(num_systems=3))


@pytest.mark.parametrize("initialisation", ["legs", "legt", "fourier"])
def test_dplr_starts_as_the_matrix_of_hippo(initialisation):
    """Its eigenvalues, to those of the matrix written out, and its impulse response from any readout."""
    mixer = S4DPLR(2, S4LayerConfig(d_state=8, **(DPLR | {"initialisation": initialisation}))).double()
    mixer.initialise(1)
    A_NN = mixer.continuous()[0][0].detach().numpy()
    expected = np.linalg.eigvals(HIPPO[initialisation](8).numpy())
    # Real parts of the normal part that are zero begin at -1e-4.
    close = {"legs": 1e-6, "legt": 1e-3, "fourier": 1e-3}[initialisation]
    np.testing.assert_allclose(
        np.sort_complex(np.round(np.linalg.eigvals(A_NN), 2)),
        np.sort_complex(np.round(expected, 2)),
        atol=0.02,
    )
    assert np.abs(np.trace(A_NN) - expected.sum().real) < 8 * close


def test_what_is_trained_of_a_readout_may_be_what_a_sequence_of_some_length_sees():
    """C (1 - A^L), as in the authors' code: the system begins as with C, and only gradients differ."""
    mixers = [S4DPLR(4, S4LayerConfig(d_state=6, C_length=length, **DPLR)).double() for length in (None, 20)]
    for mixer in mixers:
        torch.manual_seed(3)
        mixer.initialise(1)
    plain, cut = mixers
    torch.testing.assert_close(cut.C(), plain.C(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(cut.kernel(50), plain.kernel(50), atol=1e-6, rtol=1e-6)
    A_DNN, _ = plain.discretised()
    rest_DNN = torch.eye(6, dtype=torch.float64) - torch.linalg.matrix_power(A_DNN, 20)
    trained_DN = real_readout(torch.view_as_complex(cut.C_DM2))
    expected_DN = (real_readout(plain.C())[:, None] @ rest_DNN)[:, 0]
    torch.testing.assert_close(trained_DN, expected_DN, atol=1e-6, rtol=1e-6)
