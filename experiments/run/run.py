"""The path of a run from its settings to its result: plan, model, training, evaluation."""

from __future__ import annotations

from dataclasses import replace

from experiments.evaluation.divergence import divergence
from experiments.run.bounds import check_run
from experiments.run.build import Built, build
from experiments.run.plan import Plan, plan
from experiments.run.session import RunSession, open_run
from experiments.run.settings import Settings
from experiments.runtime.errors import DivergedError, OutOfMemoryError
from experiments.runtime.memory import is_out_of_memory, reset_peak_memory
from experiments.training.parallel import collectives
from experiments.training.parallel.device_mesh import ParallelDims
from experiments.training.trainer import Trainer


def run(settings: Settings) -> None:
    """Train, evaluate and record one run, or print the result of a run that has ended already.

    Raises:
        RunError: the run failed; if training had begun, the failure is in its result.
        Preempted: the run was asked to stop; a checkpoint was saved.
        LockedError: another process writes the run; nothing was changed.
    """
    with open_run(settings) as session:
        if session is None:
            return
        planned = collectives.rank_zero_first(lambda: plan(settings))
        check_run(settings, planned.matched.config, planned.cost, planned.sizes.vocab_size)
        built = build_checked(settings, planned, session.dims)
        session.begin(planned, built)
        trainer = Trainer(
            settings,
            strategy=built.strategy,
            task=planned.task,
            folder=session.folder,
            tracker=session.tracker,
            console=session.console,
            flops_per_token=planned.cost.flops_per_token,
            interruptions=session.interruptions,
            lock=session.lock,
        )
        session.trainer = trainer
        trainer.fit()
        evaluate(trainer, planned, session)


def build_checked(settings: Settings, planned: Plan, dims: ParallelDims) -> Built:
    """Build the model of a run. Raises OutOfMemoryError where it does not fit."""
    try:
        reset_peak_memory()
        return build(settings, planned, dims)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise OutOfMemoryError(f"out of memory while building the model: {error}") from error
        raise


def evaluate(trainer: Trainer, planned: Plan, session: RunSession) -> None:
    """Evaluate a trained model on the test split, in the extra evaluations, and on the validation split.

    Each metric is recorded at once, so that it is kept if a later evaluation fails.

    Raises:
        DivergedError: the score on the test split is not finite, or worse than that of the uniform code.
    """
    evaluator, config = trainer.evaluator, trainer.config
    test_metrics = evaluator.evaluate("test", config.test_examples)
    result = session.result
    result.metrics += test_metrics
    for name, objective in planned.extra_evaluations.items():
        extra = evaluator.evaluate("test", config.test_examples, objective)
        result.metrics += [replace(metric, split=name) for metric in extra]
    result.validation = evaluator.evaluate("validation", config.validation_examples)
    result.references = planned.task.references()
    if (reason := divergence(test_metrics[0], result.references, trainer.state.step)) is not None:
        raise DivergedError(reason)
