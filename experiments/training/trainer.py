"""The training loop: one loop for every backbone, objective and task.

A checkpoint has the weights, the optimizer's moments and ``TrainState``, which is all that a run needs to
continue. Examples, masks and dropout of a step are functions of its index only, so a run that was killed and
resumed equals one that was not.
"""

from __future__ import annotations

import ctypes
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from archbench.architectures.backbone import to_device
from archbench.experiments.config.sections import Sections
from archbench.experiments.objectives.objective import View
from archbench.experiments.runtime.active_clock import ActiveClock
from archbench.experiments.runtime.console import Console
from archbench.experiments.runtime.errors import CheckpointError, DataError, DivergedError, Preempted
from archbench.experiments.runtime.machine import process_rank
from archbench.experiments.runtime.preemption import Interruptions
from archbench.experiments.runtime.run_lock import RunLock
from archbench.experiments.runtime.secrets import redact
from archbench.experiments.runtime.seeds import dropout_seed, objective_noise_seed
from archbench.experiments.runtime.watchdog import Watchdog, note_cost
from archbench.experiments.tasks.task import Batch, Task
from archbench.experiments.tracking.run_files import AXES, EvaluationRow, MetricRow, TrainRow
from archbench.experiments.tracking.run_folder import RunFolder
from archbench.experiments.tracking.tracker import Tracker
from archbench.experiments.training.checkpoints import checkpoint
from archbench.experiments.training.checkpoints.checkpoint_policy import CheckpointSaver, check_room
from archbench.experiments.training.checkpoints.train_state import TrainState
from archbench.experiments.training.evaluator import Evaluator
from archbench.experiments.training.loss import not_finite, write_report
from archbench.experiments.training.micro_batcher import MicroBatcher
from archbench.experiments.training.optimizer_step import (
    averaged,
    clip_gradients,
    exchange_averages,
    gradient_norm,
    not_finite_gradients,
    set_learning_rate,
    update_average,
)
from archbench.experiments.training.parallel import collectives
from archbench.experiments.training.parallel.block_wrapping import compile_seconds
from archbench.experiments.training.parallel.strategy import Strategy

VALIDATION_EXAMPLES = 256
"""Sequences of a validation during training; few, because it runs often."""
SHORTEST_STEP = 1e-6
"""Seconds that a step takes at least, so that its speed is finite."""


class Trainer:
    """Trains one model on one task under one objective."""

    def __init__(
        self,
        sections: Sections,
        *,
        strategy: Strategy,
        task: Task,
        folder: RunFolder,
        tracker: Tracker,
        console: Console,
        flops_per_token: float,
        interruptions: Interruptions,
        lock: RunLock,
    ) -> None:
        self.config, self.seed = sections.trainer, sections.seed
        self.optimizer_config = sections.optimizer
        self.resolved = sections.resolved
        self.strategy, self.task = strategy, task
        self.model, self.objective = strategy.model, strategy.objective
        self.folder, self.tracker, self.console = folder, tracker, console
        self.interruptions, self.lock = interruptions, lock
        self.clock = ActiveClock()
        self._known_sizes = set[int]()
        """Micro-batch sizes of which it is known whether the model draws random numbers."""
        self.flops_per_token = flops_per_token
        self.device = next(self.model.parameters()).device
        self.parameters = list(self.model.parameters())
        self.optimizer = sections.optimizer.build(self.model)
        self.state = TrainState()
        self.batch_size = sections.budget.batch_size
        self.tokens_per_step = self.batch_size * task.sequence_length
        self.total_steps = max(1, sections.budget.tokens // self.tokens_per_step)
        self.decayed_steps = sections.optimizer.decayed_steps(self.total_steps)
        self.shared_rows = self.objective.draws or strategy.dims.data == 1
        """Every process makes the full batch, because random draws of a row depend on the rows before it."""
        part = {} if self.shared_rows else {"part": strategy.dims.data_rank, "parts": strategy.dims.data}
        self.batches = BatchPrefetcher(task, self.seed, self.batch_size, self.total_steps, **part)
        single = collectives.world_size() == 1
        self.micro_batcher = MicroBatcher(
            sections.budget.micro_batch_size, self.batch_size // strategy.dims.data, alone=single
        )
        self.saver = CheckpointSaver(
            folder.checkpoints, sections.trainer.keep_checkpoints, console.log, lock.check
        )
        self.evaluator = Evaluator(
            self.model,
            self.objective,
            strategy=strategy,
            optimizer=self.optimizer,
            micro_batcher=self.micro_batcher,
            precision=sections.device.precision,
            # Multiple processes stay in step: they stop after an evaluation, not in it.
            before_batch=self._raise_if_preempted if single else lambda: None,
        )

    def fit(self) -> None:
        """Train to the end of the budget, from the newest checkpoint if there is one.

        Raises:
            DivergedError, Preempted, CheckpointError, LockedError: see ``experiments.runtime.errors``.
        """
        with self.saver:
            keeps_average = self.optimizer_config.ema is not None
            check_room(self.folder.root, self.model, self.config.keep_checkpoints, keeps_average)
            self._resume()
            if self.folder.writes:
                note_cost(self.folder.root)
            process = "" if collectives.is_rank_zero() else f"-{process_rank().rank}"
            report = self.folder.root / "failures" / f"hang{process}.txt"
            with (
                Watchdog(self.config.step_timeout_seconds, report, self.clock) as watchdog,
                self.console.progress(self.total_steps) as progress,
            ):
                while self.state.step < self.total_steps:
                    with watchdog.step():
                        row = self.train_step()
                    progress(self.state.step)
                    self.after_step(row)

    def after_step(self, row: dict[str, float]) -> None:
        """Log, validate, save and stop at the steps configured. Raises the exceptions of ``fit``."""
        step, is_last = self.state.step, self.state.step == self.total_steps
        if step % self.config.log_every == 0 or is_last:
            self._log(row)
        if self._is_validated(step):
            self._validate()
        stop = self._stop_reason()
        self.saver.poll()
        if step % self.config.checkpoint_every == 0 or is_last or stop:
            self.save(wait=is_last or stop is not None)
        if stop:
            raise Preempted(reason=stop)

    def _resume(self) -> None:
        """Continue from the newest checkpoint, if there is one."""
        saved = checkpoint.load_newest(self.folder.checkpoints, self.model, self.optimizer, self.console.warn)
        if saved is not None:
            try:
                self.state = TrainState.restore(saved["train_state"])
            except TypeError as error:
                raise CheckpointError(
                    f"{self.folder.checkpoints}: step {saved['step']} was saved by a later version "
                    f"({error}): continue with that"
                ) from None
            # A run that continues another has the counters of its parent, whose batches may have been others.
            continues = self.resolved.get("continue_from") is not None
            if not continues and (reason := self.state.contradiction(self.tokens_per_step)) is not None:
                raise CheckpointError(
                    f"{self.folder.checkpoints}: step {saved['step']} was edited: {reason}: remove this "
                    "checkpoint to continue from the one before"
                )
            exchange_averages(self.optimizer)  # the checkpoint's model is the averaged one
            # Later checkpoints that were damaged are named in the result: their steps are trained again.
            damaged = collectives.run_on_rank_zero(lambda: checkpoint.damaged_steps(self.folder.checkpoints))
            later = [f"step {step}: {reason}" for step, reason in damaged.items() if step > self.state.step]
            self.state.fallbacks = list(dict.fromkeys([*self.state.fallbacks, *later]))
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
        """Return True at regular intervals, where the learning rate has decayed, and at the end."""
        regular = step > 0 and step % self.config.evaluate_every == 0
        return regular or step == self.total_steps or step in self.decayed_steps

    def _stop_reason(self) -> str | None:
        """Return why the run should stop, or None. All processes call it at the same step."""
        local_reason = self.interruptions.reason
        stop = collectives.all_reduce_any(local_reason is not None)
        return local_reason or "stopped by a signal to another of its processes" if stop else None

    def _raise_if_preempted(self) -> None:
        if reason := self._stop_reason():
            raise Preempted(reason=reason)

    def train_step(self) -> dict[str, float]:
        """Take one optimizer step: examples, masks, gradients over micro-batches, clipping, update.

        Returns:
            Learning rate and gradient norm of the step.
        """
        state = self.state
        started, compiled = self.clock.seconds(), compile_seconds()
        view, count = self._batch_view()
        view, count = view.to(self.device), to_device(count, self.device)
        data_seconds = self.clock.seconds() - started

        rate = set_learning_rate(self.optimizer, state.step, self.total_steps, self.optimizer_config)
        total = self.micro_batcher.run(lambda size: self._gradients(view, count, size))
        total_norm = gradient_norm(self.parameters)
        # The only place in a step where the host waits for a GPU: an update with NaN must not happen.
        local_loss, norm = torch.stack([total, total_norm.double()]).tolist()
        loss = self.strategy.total(local_loss)
        if problem := not_finite(loss, norm):
            self._skip_step(problem, loss, norm)
        else:
            clip_gradients(self.parameters, self.optimizer_config.clip_norm, total_norm)
            self.optimizer.step()
            self.model.after_step()
            if (decay := self.optimizer_config.ema) is not None:
                update_average(self.optimizer, state.step + 1, decay)
            state.window_loss += loss
            state.anomalies.record_loss(loss)
        self.optimizer.zero_grad(set_to_none=True)

        compiling = compile_seconds() - compiled
        state.count_step(
            tokens=self.tokens_per_step,
            flops=self.tokens_per_step * self.flops_per_token,
            # The time of torch.compile has suspensions in it, and may be more than that of the step.
            seconds=max(SHORTEST_STEP, self.clock.seconds() - started - compiling),
            data_seconds=data_seconds,
            compile_seconds=compiling,
            processes=collectives.world_size(),
        )
        if compiling:
            self.console.log(f"step {state.step}: torch.compile took {compiling:.1f} s, counted apart")
        return {"learning_rate": rate, "grad_norm": norm}

    def _batch_view(self) -> tuple[View, Tensor]:
        """Return this process's rows of the next batch in the form of the objective, and the
        count of the full batch, by which the loss is divided."""
        step = self.state.step
        generator = torch.Generator().manual_seed(objective_noise_seed(self.seed, step))
        view = self.objective.with_scored_positions(self.objective.view(self.batches.batch(step), generator))
        count = view.count_B.sum()
        if self.shared_rows:
            view = self.strategy.rows(view)
        else:
            count = count.new_tensor(self.strategy.total(count.item()))
        if not count.any():
            raise DataError(f"nothing is scored in the batch of step {step + 1}")
        return view, count

    def _gradients(self, view: View, count: Tensor, size: int) -> Tensor:
        """Accumulate the gradients of the batch's mean loss, ``size`` sequences at a time.

        It can be repeated: gradients, counts of routers and dropout are reset. Returns the part of the loss
        that this process computed, a float64 scalar on its device.
        """
        self.model.zero_grad(set_to_none=True)
        seed = dropout_seed(self.seed, self.state.step, self.strategy.dims.data_rank)
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # torch.manual_seed needs 0.3 ms, to format the stack
        else:
            torch.manual_seed(seed)
        unused = None if size in self._known_sizes else random_state(self.device)
        local_rows = len(view.tokens_BT)
        rows = local_rows * self.strategy.dims.data
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for start in range(0, local_rows, size):
            with self.strategy.accumulating(last=start + size >= local_rows):
                loss = self.strategy.loss(view.rows(start, start + size), count, rows)
                loss.backward()
            total += loss.detach()
        if unused is not None:
            self._known_sizes.add(size)
            if unused != random_state(self.device) and size not in self.state.random_sizes:
                self.state.random_sizes.append(size)
        self.strategy.finish_gradients()
        return total

    def _skip_step(self, problem: str, loss: float, norm: float) -> None:
        """Skip the update of a step with a non-finite loss or gradient, or raise DivergedError.

        Loss and norm are those of all processes, so that all processes do the same.
        """
        step = self.state.step + 1
        record = {
            "loss": loss,
            "gradient_norm": norm,
            "seed": self.seed,
            "examples": {"split": "train", "start": (step - 1) * self.batch_size, "count": self.batch_size},
            "config": redact(self.resolved),
        }
        bad, failures = not_finite_gradients(self.model), self.folder.root / "failures"
        path = collectives.run_on_rank_zero(lambda: str(write_report(failures, step, bad, record)))
        try:
            self.state.anomalies.skip(f"{problem} at step {step}", self.config.non_finite)
        except DivergedError:
            self.saver.wait()
            saved = collectives.run_on_rank_zero(lambda: checkpoint.newest_step(self.folder.checkpoints))
            if saved < self.state.step:
                self.save(wait=True)  # the weights before the step, so that it can be repeated at once
            raise
        self.console.log(f"warning: {problem} at step {step}: left out; see {path}")
        self.state.window_skipped += 1
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        self.model.after_step()  # resets the counters of the step; changes to buffers are undone
        for name, buffer in self.model.named_buffers():
            buffer.copy_(buffers[name])

    def _log(self, row: dict[str, float]) -> None:
        """Log the means since the last log line: a row of metrics.jsonl and a console line."""
        state = self.state
        row = state.close_window(row, log_every=self.config.log_every, tokens_per_step=self.tokens_per_step)
        self._record(TrainRow.model_validate(self._progress("train") | row))
        remaining = (self.total_steps - state.step) * state.seconds / state.step
        self.console.step(state.step, self.total_steps, row, remaining)

    def _validate(self) -> None:
        try:
            examples = self.config.validation_examples or VALIDATION_EXAMPLES
            metrics = self.evaluator.evaluate("validation", examples)
        except Preempted:
            return  # the loop saves and stops; the evaluation is repeated after resuming
        metric, values = metrics[0], {other.name: other.value for other in metrics}
        values["standard_error"] = metric.standard_error
        self._record(EvaluationRow.model_validate(self._progress("validation") | values))
        if routing := self.evaluator.record_routing(self.folder, self.state.step):
            self._record(EvaluationRow.model_validate(self._progress("routing") | routing))
        self.console.log(f"step {self.state.step} | validation {metric.name} {metric.value:.4f}")

    def _progress(self, kind: str) -> dict[str, Any]:
        """Return the fields of a row of metrics.jsonl that say how far training is."""
        return {"kind": kind, **{name: getattr(self.state, name) for name in AXES}}

    def _record(self, row: MetricRow) -> None:
        # A lock that rank 0 has lost ends all processes with the same code.
        collectives.run_on_rank_zero(lambda: self.folder.log(row))
        self.tracker.log(row)

    def save(self, *, wait: bool) -> None:
        """Commit a checkpoint of the step reached; multiple processes only begin to, unless ``wait``.

        Raises CheckpointError, LockedError.
        """
        collectives.run_on_rank_zero(self.lock.check)
        self.folder.sync()  # no row of a saved step is lost, even where the machine dies
        is_last = self.state.step == self.total_steps
        state = {
            "key": self.folder.key,
            "train_state": asdict(self.state),
            "metrics": self.folder.metrics_record(),
        }
        with averaged(self.optimizer):
            self.saver.save(self.state.step, self.model, self.optimizer, state, last=is_last)
        if wait:
            self.saver.wait()


def random_state(device: torch.device) -> bytes:
    """Return the state of the generator that dropout draws from."""
    is_cuda = device.type == "cuda"
    state = torch.cuda.get_rng_state(device) if is_cuda else torch.default_generator.get_state()
    return ctypes.string_at(state.data_ptr(), state.nbytes)  # the host has it: this waits for no GPU


BLOCK_TOKENS = 2**18
"""Tokens of a block at most; where a step has more than half of that, a block is a step."""
BLOCK_STEPS = 16


class BatchPrefetcher:
    """Makes the batches of a run for multiple steps at once; they equal those made one by one.

    One call of the task for many examples takes less time than many calls. Nothing runs in the background.
    """

    def __init__(
        self, task: Task, seed: int, batch_size: int, total_steps: int, *, part: int = 0, parts: int = 1
    ) -> None:
        """Return only part ``part`` of ``parts`` equal parts of each batch."""
        self._task, self._seed, self._batch_size, self._total = task, seed, batch_size, total_steps
        self._rows = batch_size // parts
        self._begin = part * self._rows
        fitting = BLOCK_TOKENS // (batch_size * task.sequence_length)
        self._steps = min(BLOCK_STEPS, max(1, fitting))
        self._first = 0
        self._block: Batch | None = None

    def batch(self, step: int) -> Batch:
        """Return this part of the batch of a step, counted from 0."""
        size = self._batch_size
        if self._steps == 1:  # a large batch: only this part is made
            return self._task.batch("train", self._seed, step * size + self._begin, self._rows)
        if self._block is None or not 0 <= step - self._first < self._steps:
            self._first = step
            count = min(self._steps, self._total - step) * size
            self._block = self._task.batch("train", self._seed, step * size, count)
        begin = (step - self._first) * size + self._begin
        return self._block.rows(begin, begin + self._rows)
