"""The path of a run from its settings to its result: plan, model, training, evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch

from archbench.architectures.backbone import Backbone
from archbench.architectures.causality import NOISE, add_noise, first_leak
from archbench.experiments.config.structured import PACKAGE, is_own, user_mistakes
from archbench.experiments.evaluation.measure import divergence
from archbench.experiments.run.flop_check import flop_problem
from archbench.experiments.run.model_files import ModelSpec, load_folder_state
from archbench.experiments.run.plan import Plan, check_run, plan, rounding
from archbench.experiments.run.sample import sample
from archbench.experiments.run.session import RunSession, open_run
from archbench.experiments.run.settings import Settings
from archbench.experiments.runtime.device import inference, torch_device
from archbench.experiments.runtime.errors import (
    ConfigError,
    DivergedError,
    OutOfMemoryError,
    is_out_of_memory,
)
from archbench.experiments.runtime.memory import reset_peak_memory
from archbench.experiments.runtime.seeds import initialization_seed
from archbench.experiments.training import mup
from archbench.experiments.training.parallel import collectives
from archbench.experiments.training.parallel.device_mesh import ParallelDims
from archbench.experiments.training.parallel.strategy import Strategy
from archbench.experiments.training.trainer import Trainer

CHECKED_SEQUENCES = 8
"""Sequences of the check that a model does not read later tokens."""


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
        run_plan = collectives.rank_zero_first(lambda: plan(settings))
        if (note := rounding(settings, run_plan)) is not None:
            session.console.log(note)
        check_run(settings, run_plan.matched.config, run_plan.cost, run_plan.sizes.vocab_size)
        try:
            collectives.run_on_rank_zero(lambda: check_user_code(settings, run_plan))
            reset_peak_memory()
            built = build(settings, run_plan, session.dims)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise OutOfMemoryError(f"out of memory while building the model: {error}") from error
            raise
        session.begin(run_plan, built.spec, built.kernels)
        trainer = Trainer(
            settings,
            strategy=built.strategy,
            task=run_plan.task,
            folder=session.folder,
            tracker=session.tracker,
            console=session.console,
            flops_per_token=run_plan.cost.flops_per_token,
            interruptions=session.interruptions,
            lock=session.lock,
        )
        session.trainer = trainer
        trainer.fit()
        evaluate(trainer, run_plan, session)


def evaluate(trainer: Trainer, run_plan: Plan, session: RunSession) -> None:
    """Evaluate a trained model on the test split, in the extra evaluations, and on the validation split.

    Each metric is recorded at once, so that it is kept if a later evaluation fails.

    Raises:
        DivergedError: logits or a metric are not finite, or the score on the test split is worse than that of
            the uniform code.
    """
    evaluator, config = trainer.evaluator, trainer.config
    test_metrics = evaluator.evaluate("test", config.test_examples)
    result = session.result
    result.metrics += test_metrics
    for name, objective in run_plan.extra_evaluations.items():
        extra = evaluator.evaluate("test", config.test_examples, objective)
        result.metrics += [replace(metric, split=name) for metric in extra]
    result.validation = evaluator.evaluate("validation", config.validation_examples)
    result.references = run_plan.task.references()
    if (reason := divergence(test_metrics[0], result.references, trainer.state.step)) is not None:
        raise DivergedError(reason)
    if (text := sample(trainer)) is not None:
        result.sample = text


@dataclass(frozen=True, kw_only=True)
class Built:
    """A model with its initial weights, ready to be trained."""

    strategy: Strategy
    spec: ModelSpec
    kernels: dict[str, str]
    """Implementation of each costly part of the model, for the record of the run."""


def build(settings: Settings, run_plan: Plan, dims: ParallelDims) -> Built:
    """Build the model. Where several processes train it, each builds the parts that it keeps.

    Raises:
        ConfigError: the model cannot be divided among the processes as the settings ask.
    """
    device, fill, kernels = torch_device(settings.device.name), None, dict[str, str]()
    if dims.mesh is None:
        model = build_model(settings, run_plan)
    else:
        from archbench.experiments.training.parallel.initial_shards import DividedStart  # imports sympy

        start = DividedStart(
            lambda: new_model(settings, run_plan, meta=True),
            lambda: new_model(settings, run_plan),
            lambda model: load_initial(settings, model),
        )
        model, fill = start.model, partial(start.fill, device)
        if device.type == "cpu":
            # A whole model that nothing is written into takes no memory, and its layers say what will run.
            kernels = new_model(settings, run_plan, meta=True).to_empty(device="cpu").kernels()
    spec = ModelSpec.of(model, settings.names.backbone, run_plan.task.tokenizer)
    strategy = Strategy(
        dims,
        model,
        run_plan.objective,
        device=device,
        activation_checkpointing=settings.parallel.activation_checkpointing,
        compile_blocks=settings.trainer.compile == "blocks",
        precision=settings.device.precision,
        fill=fill,
    )
    return Built(strategy=strategy, spec=spec, kernels=kernels or model.kernels())


def build_model(settings: Settings, run_plan: Plan) -> Backbone:
    """Return the whole model with its initial weights, on its device."""
    model = new_model(settings, run_plan)
    load_initial(settings, model)
    return model.to(torch_device(settings.device.name))


def new_model(settings: Settings, run_plan: Plan, *, meta: bool = False) -> Backbone:
    """Return the model as its constructors initialise it, in CPU memory, or on the meta device."""
    sizes, config = run_plan.sizes, run_plan.matched.config
    if not meta:
        torch.manual_seed(initialization_seed(settings.seed))
    model = (sizes.on_meta if meta else sizes.build)(settings.backbone_class, config)
    if (width := settings.optimizer.mup_base_width) is not None:
        base = sizes.on_meta(settings.backbone_class, mup.at_width(settings.backbone, width))
        mup.parametrise(model, base)
    return model


def check_user_code(settings: Settings, run_plan: Plan) -> None:
    """Check a model with layers of the user's code: its FLOPs, and that a causal one reads no later tokens.

    It is a copy of the model, examined as initialised and with noise, which shows leaks of layers whose
    initial output is zero. The copy is whole: a model divided among several GPUs may not fit on one, and is
    then not checked.

    Raises:
        ConfigError: its scores would be wrong, or those of another size.
    """
    empty = new_model(settings, run_plan, meta=True)
    packages = {type(module).__module__.partition(".")[0] for module in empty.modules()}
    if not any(is_own(name) for name in packages - {PACKAGE}):
        return
    for name, weight in empty.named_parameters():
        if weight.is_complex():
            raise ConfigError(
                f"{type(empty).__name__}: the parameter {name} is {weight.dtype}: parameters must be real; "
                "train one with a last dimension of 2, and use torch.view_as_complex of it"
            )
    try:
        with user_mistakes("backbone", settings.backbone_class):
            problem = stated_flops_problem(settings, run_plan, empty)
            position = initial_leak(settings, run_plan) if empty.capabilities.causal and not problem else None
    except (RuntimeError, MemoryError) as error:
        if collectives.world_size() > 1 and is_out_of_memory(error):
            return
        raise
    if problem is not None:
        raise ConfigError(problem)
    if position is not None:
        raise ConfigError(
            f"{type(empty).__name__}: the logits at position {position} change with later tokens or with "
            "other sequences of the batch, but capabilities.causal=True: mask later tokens and other "
            "sequences, or declare bidirectional=True"
        )


def stated_flops_problem(settings: Settings, run_plan: Plan, planned: Backbone) -> str | None:
    """Return ``flop_problem`` of the initial model on its device, for two training examples."""
    device = torch_device(settings.device.name)
    generator = torch.Generator().manual_seed(0)
    view = run_plan.objective.view(run_plan.task.batch("train", 0, 0, 2), generator)
    return flop_problem(new_model(settings, run_plan).to(device), planned, view.to(device))


def initial_leak(settings: Settings, run_plan: Plan) -> int | None:
    """Return ``first_leak`` of the initial model on its device and in its precision, for random tokens."""
    device = torch_device(settings.device.name)
    model = new_model(settings, run_plan).to(device)
    shape = (CHECKED_SEQUENCES, run_plan.task.sequence_length)
    tokens_BT = torch.randint(model.vocab_size, shape, generator=torch.Generator().manual_seed(0)).to(device)
    with inference(model, device, settings.device.precision):
        for std in (0.0, NOISE):
            add_noise(model, std)
            leak = first_leak(lambda tokens_BT: model(tokens_BT).logits_BTV, tokens_BT, model.vocab_size)
            if leak is not None:
                return leak
    return None


def load_initial(settings: Settings, model: Backbone) -> None:
    """Load the weights of ``init_from`` into a model, if the run has them."""
    if (initial := settings.init_from) is not None:
        load_folder_state(initial.path, model, new_readout=True)
