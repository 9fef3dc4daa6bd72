"""Names of tables in plain words."""

import pandas as pd

from archbench.analysis.load.scale_order import size_names, task_label


def test_a_budget_is_named_in_words_and_a_size_by_its_name() -> None:
    assert task_label("text", "1.3e11_flops") == "text, 1.3e11 training FLOPs"
    assert task_label("recall", "nano") == "recall, nano"
    frame = pd.DataFrame({"scale": ["nano", "4e10_flops", "micro", "nano"]})
    assert size_names(frame) == ["micro", "nano"]
