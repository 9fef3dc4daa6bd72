from experiments.training.checkpoints.train_state import TrainState


def test_a_logged_loss_is_the_mean_of_the_steps_that_were_taken() -> None:
    state = TrainState(step=4, window_loss=6.0, window_seconds=2.0, window_skipped=1)
    row = state.close_window({}, log_every=4, tokens_per_step=10)
    assert (row["loss"], row["tokens_per_second"]) == (2.0, 20.0)
    assert (state.window_loss, state.window_skipped) == (0.0, 0)
