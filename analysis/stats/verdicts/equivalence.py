"""Equivalence: two one-sided tests against a margin (Schuirmann 1987).

Both tests reject at the 5% level if and only if the 90% interval is within the margin. The interval is
simultaneous over the family, so the probability of any false equivalence is about 5%.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis.stats.verdicts.max_statistic import Array


def is_equivalent(difference: Array, half_width: Array, margin: float) -> npt.NDArray[np.bool_]:
    """Return for each pair whether its interval, ``difference`` ± ``half_width``, is within the margin.

    Args:
        half_width: of the 90% interval; NaN for a pair that was not tested.
        margin: no pair is equivalent if it is 0.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(difference) + half_width < margin)
