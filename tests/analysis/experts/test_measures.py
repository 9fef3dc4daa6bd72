"""The definitions of OLMoE on routings small enough to count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from archbench.analysis.experts.measures import (
    chance,
    coactivation,
    composition,
    saturation,
    specialisation,
    visits,
)

FINAL = np.array([[0, 1], [0, 2], [1, 0], [2, 0]], dtype=np.int16)
"""Four tokens, each with 2 of 4 experts; nobody chooses expert 3."""


def test_saturation_is_the_mean_share_of_what_two_sets_have_in_common() -> None:
    then = np.array([[1, 0], [2, 3], [2, 3], [0, 2]], dtype=np.int16)
    # In common: 2, 1, 0, 2 of 2; the order of the choices plays no part.
    assert saturation(then, FINAL, 4) == pytest.approx((1 + 0.5 + 0 + 1) / 4)
    assert saturation(FINAL, FINAL, 4) == 1


def test_coactivation_counts_every_pair() -> None:
    three = np.array([[0, 1, 2], [0, 1, 3]], dtype=np.int16)
    share = coactivation(visits(three, 5))
    # First and last of the list are a pair too: a count of neighbours alone would miss 0 with 2.
    assert share[0, 2] == 0.5
    assert share[0, 1] == share[1, 0] == share[2, 0] == 1
    assert share[2, 3] == 0
    assert np.isnan(share[0, 0])
    assert np.isnan(share[4]).all(), "an idle expert has no companions, not 0 of them"


def test_specialisation_is_of_the_tokens_of_a_group_and_composition_of_those_of_an_expert() -> None:
    group = np.array([0, 0, 0, 2])
    shares = specialisation(visits(FINAL, 4), group, 3)
    assert shares[0].tolist() == pytest.approx([1, 2 / 3, 1 / 3, 0])
    assert np.isnan(shares[1]).all()
    assert shares[2].tolist() == [1, 0, 1, 0]
    parts = composition(visits(FINAL, 4), group, 3)
    assert parts[:, 0].tolist() == [0.75, 0, 0.25]
    assert parts[:, 2].tolist() == [0.5, 0, 0.5]
    assert np.isnan(parts[:, 3]).all()


def test_chance_is_k_of_all_experts() -> None:
    assert chance(visits(FINAL, 4)) == 0.5
    # Where experts choose, a token may have none: -1 stands for no expert, not for the last one.
    chosen = np.array([[0, -1, -1, -1], [0, -1, 2, -1]], dtype=np.int16)
    assert visits(chosen, 4).tolist() == [[True, False, False, False], [True, False, True, False]]
    assert chance(visits(chosen, 4)) == 3 / 8
