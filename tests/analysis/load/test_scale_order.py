import math

import pandas as pd
import pytest

from archbench.analysis.load.scale_order import TASK_SCALE, scale_groups, scale_size


@pytest.mark.parametrize(
    ("scale", "size"),
    [("4e10_flops", 4e10), ("1.3e11_flops", 1.3e11), ("125m", 125e6), ("1_3b", 1.3e9), ("nano", math.nan)],
)
def test_a_size_is_read_from_the_name_of_a_scale(scale: str, size: float) -> None:
    assert scale_size(scale) == pytest.approx(size, nan_ok=True)


def test_scales_are_in_the_order_of_their_sizes() -> None:
    scales = ["1.3e11_flops", "nano", "4e10_flops", "1_3b", "350m", "micro", "4e11_flops"]
    frame = pd.DataFrame({"task": ["text", "recall"] * 7, "scale": scales * 2, "arm": "a"})
    expected = ["micro", "nano", "350m", "1_3b", "4e10_flops", "1.3e11_flops", "4e11_flops"]
    keys = [key for key, _ in scale_groups(frame)]
    assert keys == [(task, scale) for task in ("recall", "text") for scale in expected]
    assert [key for key, _ in scale_groups(frame, ["scale"])] == [(scale,) for scale in expected]


def test_groups_are_those_of_pandas_with_missing_values_on_request() -> None:
    frame = pd.DataFrame(
        {
            "task": "text",
            "scale": ["4e10_flops", "1.3e11_flops"] * 2,
            "likelihood": ["exact", "bound", None, None],
        }
    )
    columns = [*TASK_SCALE, "likelihood"]
    for dropna, count in ((True, 2), (False, 4)):
        groups = dict(scale_groups(frame, columns, dropna=dropna))
        assert len(groups) == count
        for key, rows in groups.items():
            assert (rows["scale"] == key[1]).all()
        assert [key[1] for key in groups] == sorted((key[1] for key in groups), key=scale_size)
