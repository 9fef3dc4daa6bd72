from typing import Any

import pytest

from archbench.experiments.training.checkpoints.train_state import TrainState


def test_a_logged_loss_is_the_mean_of_the_steps_that_were_taken() -> None:
    state = TrainState(step=4, window_loss=6.0, window_seconds=2.0, window_skipped=1)
    row = state.close_window({}, log_every=4, tokens_per_step=10)
    assert (row["loss"], row["tokens_per_second"]) == (2.0, 20.0)
    assert (state.window_loss, state.window_skipped) == (0.0, 0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"tokens": 41}, "train_state.tokens is 41, not 40 as for 4 steps"),
        ({"seconds": -1.0}, "train_state.seconds is -1.0, no time"),
        ({"data_seconds": float("nan")}, "train_state.data_seconds is nan, no time"),
        ({"device_seconds": 1.0}, "train_state.device_seconds is 1.0, less than the 2.0 seconds"),
    ],
)
def test_counters_that_do_not_fit_the_steps_are_named(changes: dict[str, Any], reason: str | None) -> None:
    state = TrainState(**{"step": 4, "tokens": 40, "seconds": 2.0, "device_seconds": 2.0, **changes})
    assert state.contradiction(tokens_per_step=10) == reason
