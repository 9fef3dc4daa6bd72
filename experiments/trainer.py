"""The training loop. There is one, for every backbone, objective and task.

Everything needed to continue lives in ``TrainState``. What a step does is a
function of the step's number alone (its examples, its masks, its dropout), so
a run that was killed and resumed equals one that was not.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from architectures.backbone import Backbone
from experiments import checkpoint
from experiments.console import Console
from experiments.data.random import stream
from experiments.errors import DataError, DivergedError, Preempted
from experiments.evaluation import Metric, autocast, measure
from experiments.objectives.objective import Objective, View
from experiments.optimizer import averaged, exchange_averages, make_optimizer, set_rate, update_average
from experiments.results import RunFolder
from experiments.routing import RoutingProbe
from experiments.settings import Settings
from experiments.tasks.task import Task
from experiments.tracking import Tracker


@dataclass
class TrainState:
    """Where training stands, beside the weights and the optimizer's moments."""

    step: int = 0
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    """Time spent in training steps, over all sittings; evaluation and saving are not counted."""
    data_seconds: float = 0.0
    """Of these, time spent making batches."""
    window_loss: float = 0.0
    """Sum of the losses since the last log line."""
    window_seconds: float = 0.0
    window_data: float = 0.0


class Trainer:
    """Trains one model on one task under one objective."""

    def __init__(
        self,
        settings: Settings,
        *,
        model: Backbone,
        objective: Objective,
        task: Task,
        folder: RunFolder,
        tracker: Tracker,
        console: Console,
        flops_per_token: float,
    ) -> None:
        self.settings, self.model, self.objective, self.task = settings, model, objective, task
        self.folder, self.tracker, self.console = folder, tracker, console
        self.flops_per_token = flops_per_token
        self.device = next(model.parameters()).device
        self.optimizer = make_optimizer(model, settings.optimizer)
        self.routing = RoutingProbe(model, objective)
        self.state = TrainState()
        self.batch_size = settings.budget.batch_size
        self.tokens_per_step = self.batch_size * task.sequence_length
        self.total_steps = max(1, settings.budget.tokens // self.tokens_per_step)
        self._stop = False

    def run(self) -> None:
        """Trains to the end of the budget. Raises DivergedError, Preempted, CheckpointError."""
        trainer = self.settings.trainer
        saved = checkpoint.load_newest(self.folder.checkpoints, self.model, self.optimizer)
        if saved is not None:
            self.state = TrainState(**saved["train_state"])
            exchange_averages(self.optimizer)  # the checkpoint's model is the averaged one
            self.console.say(f"resumed at step {self.state.step}")
        self.folder.rewind(self.state.step)
        self.model.train()
        with self._signals(), self.console.progress(self.total_steps) as progress:
            while self.state.step < self.total_steps:
                row = self._step()
                step, last = self.state.step, self.state.step == self.total_steps
                progress(step)
                if step % trainer.log_every == 0 or last:
                    self._log(row)
                if step % trainer.evaluate_every == 0 or last:
                    self._validate()
                if step % trainer.checkpoint_every == 0 or last or self._stop:
                    self._save()
                if self._stop and not last:
                    raise Preempted

    def _step(self) -> dict[str, float]:
        """One optimizer step: examples, masks, gradients over micro-batches, clip, update."""
        state, seed = self.state, self.settings.seed
        started = time.perf_counter()
        batch = self.task.batch("train", seed, state.step * self.batch_size, self.batch_size)
        # The noise of the whole batch is drawn at once, so micro-batches do not change it.
        generator = torch.Generator().manual_seed(stream(seed, "noise", state.step) >> 1)
        view = self.objective.view(batch, generator).to(self.device)
        data_seconds = time.perf_counter() - started

        torch.manual_seed(stream(seed, "dropout", state.step) >> 1)
        rate = set_rate(self.optimizer, state.step, self.total_steps, self.settings.optimizer)
        loss = self._gradients(view)
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.settings.optimizer.clip_norm
        ).item()
        for name, value in (("loss", loss), ("gradient norm", norm)):
            if not abs(value) < float("inf"):
                raise DivergedError(
                    f"{name} is {value} at step {state.step + 1}; the weights were not updated"
                )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.after_step()
        if (decay := self.settings.optimizer.ema) is not None:
            update_average(self.optimizer, state.step + 1, decay)

        seconds = time.perf_counter() - started
        state.step += 1
        state.tokens += self.tokens_per_step
        state.flops += self.tokens_per_step * self.flops_per_token
        state.seconds += seconds
        state.data_seconds += data_seconds
        state.window_loss += loss
        state.window_seconds += seconds
        state.window_data += data_seconds
        return {"learning_rate": rate, "grad_norm": norm}

    def _gradients(self, view: View) -> float:
        """Adds up gradients of the loss: a sum over the batch divided by the batch's own count."""
        rows = view.tokens_BT.shape[0]
        size = self.settings.budget.micro_batch_size or rows
        count = view.count_B.sum()
        if count == 0:
            raise DataError(f"nothing is scored in the batch of step {self.state.step + 1}")
        total = 0.0
        for start in range(0, rows, size):
            part = view.rows(start, start + size)
            with autocast(self.device, self.settings.device.precision):
                output = part.run(self.model)
            loss = self.objective.loss(output, part)[0] / count
            for auxiliary in self.objective.auxiliary(output, part).values():
                loss = loss + auxiliary / rows
            loss.backward()
            total += loss.item()
        return total

    def _log(self, row: dict[str, float]) -> None:
        """A row of metrics.jsonl and a console line, on the means since the last one."""
        state = self.state
        steps = (state.step - 1) % self.settings.trainer.log_every + 1
        row = {
            "loss": state.window_loss / steps,
            **row,
            "tokens_per_second": steps * self.tokens_per_step / state.window_seconds,
            "data_share": state.window_data / state.window_seconds,
        }
        state.window_loss = state.window_seconds = state.window_data = 0.0
        self._record("train", row)
        left = (self.total_steps - state.step) * state.seconds / state.step
        self.console.step(state.step, self.total_steps, row, left)

    def _validate(self) -> None:
        metrics = self.test("validation", self.settings.trainer.validation_examples)
        self._record("validation", {metric.name: metric.value for metric in metrics})
        rows = self.settings.budget.micro_batch_size or self.batch_size
        with averaged(self.optimizer):
            routing = self.routing.record(
                self.folder, self.state.step, batch_size=rows, precision=self.settings.device.precision
            )
        if routing:
            self._record("routing", routing)
        metric = metrics[0]
        self.console.say(f"step {self.state.step} | validation {metric.name} {metric.value:.4f}")

    def test(self, split: str, examples: int, objective: Objective | None = None) -> list[Metric]:
        """The metrics on a split, the task's own first; of another objective's task, where one is given."""
        objective = objective or self.objective
        rows = self.settings.budget.micro_batch_size or self.batch_size
        with averaged(self.optimizer):
            return measure(
                self.model,
                objective,
                objective.task,
                split,
                examples=examples,
                # No more tokens at once than in training.
                batch_size=min(
                    rows, max(1, rows * self.task.sequence_length // objective.task.sequence_length)
                ),
                precision=self.settings.device.precision,
            )

    def _record(self, kind: str, values: dict[str, Any]) -> None:
        s = self.state
        axes = {"step": s.step, "tokens": s.tokens, "flops": s.flops, "seconds": s.seconds}
        row = {"kind": kind, **axes, **values}
        self.folder.log(row)
        self.tracker.log(row)

    def _save(self) -> None:
        keep = self.settings.trainer.keep_checkpoints
        state = {"train_state": asdict(self.state)}
        with averaged(self.optimizer):
            checkpoint.save(self.folder.checkpoints, self.state.step, self.model, self.optimizer, state, keep)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Signals only raise a flag; the loop stops at a step's end, saved."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: object) -> None:
            self._stop = True

        wanted = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
        before = {number: signal.signal(number, ask) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
