"""Likelihood types: what the nats that an objective reports for a text mean."""

from __future__ import annotations

from dataclasses import dataclass

LIKELIHOOD_TYPES = {
    "exact": "the model's own probability of the text, by the chain rule",
    "conditional": "the model's own probability of a part of the text given what stands before it, by the "
    "chain rule: exact, but not of the whole text",
    "bound": "an upper bound on the bits: the true value is this or lower",
    "pseudo": "each token given all others: not a probability of the text, neither above nor below it",
}
"""The types and their meaning, in the order that tables show them. Scores of different types are never ranked
against each other without saying so. A metric that is no likelihood has none."""


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """The type of an objective's likelihood, and how it is estimated."""

    kind: str
    """Likelihood type, from ``LIKELIHOOD_TYPES``."""
    estimator: str
    """Description of the estimator of the nats."""
    samples: int
    """Random draws for each sequence; 1 if the estimator is deterministic."""
