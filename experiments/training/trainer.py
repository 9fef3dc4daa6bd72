"""The training loop. There is one, for every backbone, objective and task.

Everything needed to continue lives in ``TrainState``. What a step does is a
function of the step's number alone (its examples, its masks, its dropout), so
a run that was killed and resumed equals one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from architectures.backbone import Backbone
from experiments.evaluation.measure import measure
from experiments.objectives.objective import Objective, View
from experiments.run.settings import Settings
from experiments.runtime.console import Console
from experiments.runtime.errors import CheckpointError, DataError, DivergedError, Preempted
from experiments.runtime.memory import MicroBatcher
from experiments.runtime.preemption import Interruptions
from experiments.runtime.rank import process_rank
from experiments.runtime.run_lock import RunLock
from experiments.runtime.secrets import redact
from experiments.runtime.seeds import dropout_seed, objective_noise_seed
from experiments.runtime.watchdog import Watchdog
from experiments.tasks.metrics import Metric
from experiments.tasks.task import Task
from experiments.tracking.run_folder import RunFolder
from experiments.tracking.tracker import AXES, Tracker
from experiments.training import checkpoint
from experiments.training.batches import BatchPrefetcher
from experiments.training.checkpoint_policy import CheckpointSaver, check_room
from experiments.training.ema import averaged, exchange_averages, update_average
from experiments.training.loss_anomalies import LossAnomalies, not_finite, write_report
from experiments.training.lr_schedule import decayed_steps, set_learning_rate
from experiments.training.optimizer import make_optimizer
from experiments.training.parallel import collectives
from experiments.training.parallel.block_wrapping import compile_seconds
from experiments.training.parallel.device_mesh import ParallelDims
from experiments.training.parallel.dtensors import clip_gradients, gradient_norm, not_finite_gradients
from experiments.training.parallel.strategy import Strategy
from experiments.training.router_probe import RoutingProbe


@dataclass
class TrainState:
    """Where training stands, beside the weights and the optimizer's moments."""

    step: int = 0
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    """Time spent in training steps, over all sittings; evaluation and saving are not counted."""
    device_seconds: float = 0.0
    """The same of all processes together: what training took of the machine."""
    data_seconds: float = 0.0
    """Of these, time spent making batches."""
    compile_seconds: float = 0.0
    """Time that ``torch.compile`` took in training steps, over all sittings; not among ``seconds``."""
    window_loss: float = 0.0
    """Sum of the losses since the last log line."""
    window_seconds: float = 0.0
    window_data: float = 0.0
    window_skipped: int = 0
    """Steps since the last log line that were left out."""
    anomalies: LossAnomalies = field(default_factory=LossAnomalies)


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
        dims: ParallelDims,
        flops_per_token: float,
        interruptions: Interruptions,
        lock: RunLock,
    ) -> None:
        self.settings, self.model, self.objective, self.task = settings, model, objective, task
        self.folder, self.tracker, self.console = folder, tracker, console
        self.flops_per_token = flops_per_token
        self.device = next(model.parameters()).device
        self.batch_size = settings.budget.batch_size
        self.strategy = Strategy(
            dims,
            model,
            objective,
            activation_checkpointing=settings.parallel.activation_checkpointing,
            compile_blocks=settings.trainer.compile == "blocks",
            precision=settings.device.precision,
        )
        self.parameters = list(model.parameters())
        self.optimizer = make_optimizer(model, settings.optimizer)
        self.routing = RoutingProbe(model, objective)
        self.state = TrainState()
        self.tokens_per_step = self.batch_size * task.sequence_length
        self.total_steps = max(1, settings.budget.tokens // self.tokens_per_step)
        self.batches = BatchPrefetcher(task, settings.seed, self.batch_size, self.total_steps)
        self.decayed_steps = decayed_steps(self.total_steps, settings.optimizer)
        self.micro_batcher = MicroBatcher(
            settings.budget.micro_batch_size,
            self.batch_size // dims.data,
            alone=collectives.world_size() == 1,
        )
        self.saver = CheckpointSaver(folder.checkpoints, settings.trainer.keep_checkpoints, console.log)
        self.interruptions, self.lock = interruptions, lock

    def run(self) -> None:
        """Trains to the end of the budget. Raises DivergedError, Preempted, CheckpointError, LockedError."""
        trainer = self.settings.trainer
        check_room(
            self.folder.root, self.model, trainer.keep_checkpoints, self.settings.optimizer.ema is not None
        )
        self._resume()
        other = "" if collectives.is_rank_zero() else f"-{process_rank().rank}"
        report = self.folder.root / "failures" / f"hang{other}.txt"
        with (
            Watchdog(trainer.step_timeout_seconds, report) as watchdog,
            self.console.progress(self.total_steps) as progress,
        ):
            while self.state.step < self.total_steps:
                self.train_iteration(watchdog, progress)

    def train_iteration(self, watchdog: Watchdog, progress: Callable[[int], None]) -> None:
        """One step, and whatever is due after it. Raises what ``run`` does."""
        trainer = self.settings.trainer
        with watchdog.step():
            row = self._step()
        step, last = self.state.step, self.state.step == self.total_steps
        progress(step)
        if step % trainer.log_every == 0 or last:
            self._log(row)
        if self._is_validated(step):
            self._validate()
        stop = self._stop_reason()
        if step % trainer.checkpoint_every == 0 or last or stop:
            self.save()
        if stop:
            raise Preempted(reason=stop)

    def _resume(self) -> None:
        """Takes up the run where its newest checkpoint left it, if there is one."""
        saved = checkpoint.load_newest(self.folder.checkpoints, self.model, self.optimizer, self.console.log)
        if saved is not None:
            try:
                state = dict(saved["train_state"])
                state["anomalies"] = LossAnomalies(**state.get("anomalies", {}))
                self.state = TrainState(**state)
            except TypeError as error:
                raise CheckpointError(
                    f"{self.folder.checkpoints}: step {saved['step']} was saved by a later version "
                    f"({error}): continue with that"
                ) from None
            exchange_averages(self.optimizer)  # the checkpoint's model is the averaged one
            self.console.log(f"resumed at step {self.state.step}")
        self.folder.rewind(self.state.step)
        for row in self.folder.rows():
            self.tracker.log(row)
        self.model.train()
        step = self.state.step
        if self._is_validated(step) and not collectives.run_on_rank_zero(
            lambda: self.folder.has_row("validation", step)
        ):
            self._validate()  # the run was stopped in the middle of it
            self._raise_if_preempted()

    def _is_validated(self, step: int) -> bool:
        """At regular intervals, where the learning rate has decayed, and at the end."""
        regular = step > 0 and step % self.settings.trainer.evaluate_every == 0
        return regular or step == self.total_steps or step in self.decayed_steps

    def _stop_reason(self) -> str | None:
        """Why the run should stop, in the words of any process. All ask, at the same step."""
        own = self.interruptions.reason
        stop = collectives.all_reduce_any(own is not None)
        return own or "stopped by a signal to another of its processes" if stop else None

    def _raise_if_preempted(self) -> None:
        """Raises Preempted if the run should stop."""
        if reason := self._stop_reason():
            raise Preempted(reason=reason)

    def _step(self) -> dict[str, float]:
        """One optimizer step: examples, masks, gradients over micro-batches, clip, update."""
        state, seed = self.state, self.settings.seed
        started, compiled = time.perf_counter(), compile_seconds()
        batch = self.batches.batch(state.step)
        generator = torch.Generator().manual_seed(objective_noise_seed(seed, state.step))
        view = self.objective.asking(self.objective.view(batch, generator))
        if not view.count_B.any():
            raise DataError(f"nothing is scored in the batch of step {state.step + 1}")
        view = view.to(self.device)
        data_seconds = time.perf_counter() - started

        rate = set_learning_rate(self.optimizer, state.step, self.total_steps, self.settings.optimizer)
        total = self.micro_batcher.run(lambda size: self._gradients(view, size))
        total_norm = gradient_norm(self.parameters)
        # Here, and nowhere else in a step, the host waits for a GPU: what is no number must not be learnt.
        own, norm = torch.stack([total, total_norm.double()]).tolist()
        loss = self.strategy.total(own)
        if what := not_finite(loss, norm):
            self._skip_step(what, loss, norm)
        else:
            clip_gradients(self.parameters, self.settings.optimizer.clip_norm, total_norm)
            self.optimizer.step()
            self.model.after_step()
            if (decay := self.settings.optimizer.ema) is not None:
                update_average(self.optimizer, state.step + 1, decay)
            state.window_loss += loss
            state.anomalies.record_loss(loss)
        self.optimizer.zero_grad(set_to_none=True)

        compiling = compile_seconds() - compiled
        seconds = time.perf_counter() - started - compiling
        state.step += 1
        state.tokens += self.tokens_per_step
        state.flops += self.tokens_per_step * self.flops_per_token
        state.seconds += seconds
        state.device_seconds += seconds * collectives.world_size()
        state.data_seconds += data_seconds
        state.compile_seconds += compiling
        state.window_seconds += seconds
        state.window_data += data_seconds
        if compiling:
            self.console.log(f"step {state.step}: torch.compile took {compiling:.1f} s, counted apart")
        return {"learning_rate": rate, "grad_norm": norm}

    def _skip_step(self, what: str, loss: float, norm: float) -> None:
        """Leaves a step out whose loss or gradient is no finite number, or raises DivergedError.

        Both are those of all processes, which therefore do the same.
        """
        step, seed = self.state.step + 1, self.settings.seed
        known = {
            "loss": loss,
            "gradient_norm": norm,
            "seed": seed,
            "examples": {"split": "train", "start": (step - 1) * self.batch_size, "count": self.batch_size},
            "config": redact(self.settings.resolved),
        }
        bad = not_finite_gradients(self.model)
        path = collectives.run_on_rank_zero(
            lambda: str(write_report(self.folder.root / "failures", step, bad, known))
        )
        try:
            self.state.anomalies.skip(f"{what} at step {step}", self.settings.trainer.non_finite)
        except DivergedError:
            if (
                collectives.run_on_rank_zero(lambda: checkpoint.newest_step(self.folder.checkpoints))
                < self.state.step
            ):
                self.save()  # the weights before the step, so that it can be repeated at once
            raise
        self.console.log(f"warning: {what} at step {step}: left out; see {path}")
        self.state.window_skipped += 1
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        self.model.after_step()  # forgets what was counted in the step; what that moved is put back
        for name, buffer in self.model.named_buffers():
            buffer.copy_(buffers[name])

    def _gradients(self, view: View, size: int) -> Tensor:
        """Adds up gradients of the loss: a sum over the batch divided by the batch's own count.

        ``size`` sequences are computed at once. Repeating it starts from nothing. The loss of this
        process comes back as a float64 on its device.
        """
        self.optimizer.zero_grad(set_to_none=True)
        seed = dropout_seed(self.settings.seed, self.state.step, self.strategy.dims.data_rank)
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 0.3 ms: it formats the stack
        else:
            torch.manual_seed(seed)
        rows, count = len(view.tokens_BT), view.count_B.sum()
        view = self.strategy.rows(view)
        own = len(view.tokens_BT)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for start in range(0, own, size):
            with self.strategy.accumulating(last=start + size >= own):
                loss = self.strategy.loss(view.rows(start, start + size), count, rows)
                loss.backward()
            total += loss.detach()
        self.strategy.finish_gradients()
        return total

    def _log(self, row: dict[str, float]) -> None:
        """A row of metrics.jsonl and a console line, on the means since the last one."""
        state = self.state
        steps = (state.step - 1) % self.settings.trainer.log_every + 1
        counted = steps - state.window_skipped
        row = {
            "loss": state.window_loss / counted if counted else float("nan"),
            **row,
            "tokens_per_second": steps * self.tokens_per_step / state.window_seconds,
            "data_share": state.window_data / state.window_seconds,
        }
        state.window_loss = state.window_seconds = state.window_data = 0.0
        state.window_skipped = 0
        self._record("train", row)
        left = (self.total_steps - state.step) * state.seconds / state.step
        self.console.step(state.step, self.total_steps, row, left)

    def _validate(self) -> None:
        try:
            metrics = self.test("validation", self.settings.trainer.validation_examples)
        except Preempted:
            return  # the loop saves and stops; this evaluation is made up for on resuming
        self._record("validation", {metric.name: metric.value for metric in metrics})
        precision = self.settings.device.precision
        with averaged(self.optimizer), self.strategy.gathered():
            routing = self.micro_batcher.run(
                lambda rows: self.routing.record(
                    self.folder, self.state.step, batch_size=rows, precision=precision
                )
            )
        if routing:
            self._record("routing", routing)
        metric = metrics[0]
        self.console.log(f"step {self.state.step} | validation {metric.name} {metric.value:.4f}")

    def test(self, split: str, examples: int, objective: Objective | None = None) -> list[Metric]:
        """The metrics on a split, the task's own first; of another objective's task, where one is given."""
        objective = objective or self.objective
        dims = self.strategy.dims

        def work(rows: int) -> list[Metric]:
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
                # Several processes keep step: they stop after an evaluation, not in it.
                before_batch=self._raise_if_preempted if collectives.world_size() == 1 else lambda: None,
                shard=dims.evaluation_shard(),
            )

        with averaged(self.optimizer), self.strategy.gathered():
            return self.micro_batcher.run(work)

    def _record(self, kind: str, values: dict[str, Any]) -> None:
        s = self.state
        axes = {name: getattr(s, name) for name in AXES}
        row = {"kind": kind, **axes, **values}
        self.folder.log(row)
        self.tracker.log(row)

    def save(self) -> None:
        """Commits a checkpoint of the step reached. Raises CheckpointError, LockedError."""
        collectives.run_on_rank_zero(self.lock.check)
        self.folder.sync()  # no row of a saved step is lost, even where the machine dies
        last = self.state.step == self.total_steps
        with averaged(self.optimizer):
            self.saver.save(
                self.state.step, self.model, self.optimizer, {"train_state": asdict(self.state)}, last=last
            )
