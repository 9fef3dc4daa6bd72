"""Equivalence: two one-sided tests against a margin (Schuirmann 1987).

Both tests reject at the 5% level exactly where the 90% interval lies within the margin. The interval is the
simultaneous one of the family, so the chance of calling any pair equivalent that is not stays near 5%.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis.stats.verdicts.max_statistic import Array


def is_equivalent(difference: Array, half_width: Array, margin: float) -> npt.NDArray[np.bool_]:
    """Return for each pair if its interval, ``difference`` ± ``half_width``, lies within the margin.

    Args:
        half_width: of the 90% interval; NaN where nothing was tested.
        margin: nothing is equivalent where it is 0.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(difference) + half_width < margin)
