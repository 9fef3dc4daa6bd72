import math

import pytest

from archbench.experiments.evaluation.measure import FEW_STEPS, check_finite, divergence
from archbench.experiments.runtime.errors import DivergedError
from archbench.experiments.tasks.metrics import Likelihood, Reference, bits_per_byte_metric

UNIFORM = Reference(name="uniform", metric="bits_per_byte", value=8.17)
EXACT = Likelihood(kind="exact", estimator="chain rule", samples=1)


PSEUDO = Likelihood(kind="pseudo", estimator="spans given the rest", samples=1)


def metric(value, likelihood=EXACT):
    return bits_per_byte_metric(value, split="test", likelihood=likelihood, standard_error=0.1, items=9)


@pytest.mark.parametrize(
    ("value", "steps", "diverged"),
    [
        (8.16, FEW_STEPS, False),
        (8.18, FEW_STEPS, True),
        (24_799.0, FEW_STEPS, True),
        (8.8, 2, False),  # hardly trained
        (24_799.0, 2, True),
    ],
)
def test_a_score_above_the_uniform_code_has_diverged(value, steps, diverged):
    assert (divergence(metric(value), [UNIFORM], steps) is not None) == diverged


def test_pseudo_likelihoods_count_tokens_that_stand_for_no_text():
    assert divergence(metric(22.3, PSEUDO), [UNIFORM], FEW_STEPS) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("likelihood", [EXACT, PSEUDO])
def test_every_metric_must_be_a_finite_number(value, likelihood):
    check_finite([metric(9.0), metric(9e9)])
    with pytest.raises(DivergedError, match=r"the test bits_per_byte is .*, no finite number"):
        check_finite([metric(9.0), metric(value, likelihood)])


def test_without_a_uniform_code_there_is_no_threshold():
    assert divergence(metric(9.0), [], 1000) is None
