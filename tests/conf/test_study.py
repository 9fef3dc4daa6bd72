"""Every study composes in each of its cells, and the arms of a comparison are treated alike."""

import functools
import itertools
from dataclasses import asdict, replace
from typing import Any

import pytest
from hydra.core.hydra_config import HydraConfig

from archbench.experiments.config import CONF
from archbench.experiments.run.plan import Plan, plan
from archbench.experiments.run.settings import Settings
from archbench.experiments.run.tuned_rates import read_rates
from archbench.experiments.training.optimizer_step import learning_rate_factor
from tests.experiments import commands
from tests.tiers import fast_only

STUDIES = sorted(path.stem for path in (CONF / "study").glob("*.yaml"))


GIVEN = {
    study: ["study.tuned=null"]
    for study in (
        "attention_variants",
        "canon",
        "confirm",
        "gpu_text",
        "laptop",
        "later_variants",
        "variants",
    )
}
"""What a study needs that another command writes, left out."""


def params(study: str) -> dict[str, list[str]]:
    """What a study sweeps over."""
    commands.compose(f"study={study}")
    found = HydraConfig.get().sweeper.params or {}
    return {str(key): str(value).split(",") for key, value in found.items()}


SHORT = ["compare", "infilling", "sequence_pairs"]
"""The studies of the three short tasks of the laptop track."""
GRIDS = {*(f"{study}_rates" for study in SHORT), "tune", "fine_tuning"}
"""Studies all of whose cells are looked at below."""
LARGE = 16
"""Cells of another study from which on not all are composed, but enough to meet each value once."""


@functools.cache
def cells(study: str) -> list[Settings]:
    """Composed once for all seeds: a seed changes nothing else. Learning rates are met in turn."""
    swept = params(study)
    seeds = [int(seed) for seed in swept.pop("seed", ["0"])]
    words = {key: [f"{key}={value}" for value in values] for key, values in swept.items()}
    choices = list(itertools.product(*words.values()))
    if study not in GRIDS:
        rates = words.pop("optimizer.learning_rate", [])
        choices = list(itertools.product(*words.values()))
        longest = max(map(len, words.values()), default=1)
        if len(choices) > LARGE:
            choices = [tuple(each[i % len(each)] for each in words.values()) for i in range(longest)]
        if rates:
            choices = [(*choice, rates[i % len(rates)]) for i, choice in enumerate(choices)]
            assert len(choices) >= len(rates), "a rate is left out"
    found = [commands.settings(f"study={study}", *GIVEN.get(study, []), *choice) for choice in choices]
    return [replace(cell, seed=seed) for cell in found for seed in seeds]


@functools.cache
def planned(study: str, task: str, backbone: str) -> Plan:
    """The plan of a cell; seeds and learning rates do not change it."""
    return plan(next(c for c in cells(study) if (c.names.task, c.names.backbone) == (task, backbone)))


def arms(study: str) -> dict[str, list[Settings]]:
    """The cells by task."""
    tasks = dict.fromkeys(cell.names.task for cell in cells(study))
    return {task: [cell for cell in cells(study) if cell.names.task == task] for task in tasks}


@pytest.mark.parametrize("study", STUDIES)
def test_every_cell_composes(study: str) -> None:
    keys = [cell.key for cell in cells(study)]
    assert len(set(keys)) == len(keys) >= 1
    assert {cell.study.name for cell in cells(study)} == {study}
    assert all(len(key) <= 64 for key in keys)


FAMILIES = {
    "compare": {"recall_8_pairs": {"decoder", "moe", "hybrid", "mamba", "s4"}},
    "infilling": {"infilling": {"encoder", "masked_diffusion"}},
    "sequence_pairs": {"pairs": {"decoder", "hybrid", "mamba", "encoder_decoder"}},
}
"""The models of the three short tasks of the laptop track, by study and task."""
assert sorted(FAMILIES) == SHORT
WITH_RATES = [*SHORT, *(f"{study}_rates" for study in SHORT)]


@pytest.mark.parametrize("study", fast_only(WITH_RATES, SHORT))
def test_a_family_takes_part_in_the_task_that_it_can_learn(study: str) -> None:
    models = {task: {cell.names.backbone for cell in found} for task, found in arms(study).items()}
    assert models == FAMILIES[study.removesuffix("_rates")]


def conditions(settings: Settings) -> dict[str, Any]:
    """All that must be the same for the arms of a comparison."""
    optimizer = asdict(settings.optimizer)
    optimizer.pop("learning_rate")
    return {
        "task": asdict(settings.task),
        "budget": asdict(settings.budget),
        "optimizer": optimizer,
        "scale": asdict(settings.scale),
        "trainer": asdict(settings.trainer),
        "device": asdict(settings.device),
    }


@pytest.mark.parametrize("study", fast_only(WITH_RATES, SHORT))
def test_arms_have_equal_data_steps_and_schedule(study: str) -> None:
    for found in arms(study).values():
        for cell in found:
            assert conditions(cell) == conditions(found[0])


@pytest.mark.parametrize("study", SHORT)
def test_arms_have_equal_flops_and_data(study: str) -> None:
    for task, found in arms(study).items():
        plans = {cell.names.backbone: planned(study, task, cell.names.backbone) for cell in found}
        sizes = [p.cost.flops_per_token for p in plans.values()]
        target = found[0].scale.target
        assert target is not None
        assert found[0].scale.axis == "flops"
        assert all(abs(size / target - 1) <= 0.01 for size in sizes), dict(zip(plans, sizes, strict=True))
        assert len({p.cost.planned.tokens for p in plans.values()}) == 1
        assert len({p.task.fingerprint for p in plans.values()}) == 1
        assert len({p.sizes.vocab_size for p in plans.values()}) == 1
        assert len({p.sizes.raw_length for p in plans.values()}) == 1


def test_arms_of_the_study_of_diffusion_are_treated_alike() -> None:
    """Equal data, steps and schedule; only the learning rate and what the study varies differ."""
    for found in arms("diffusion_gap").values():
        described = [conditions(cell) for cell in found]
        assert all(one == described[0] for one in described)
        assert len({cell.seed for cell in found}) >= 3
    baseline = cells("diffusion_gap")[0].resolved["study"]["baseline"]
    assert baseline in {cell.names.backbone for cell in cells("diffusion_gap")}


def test_the_further_arm_that_a_study_names_is_a_new_cell_under_its_conditions() -> None:
    more = commands.settings("study=diffusion_gap", "backbone=block_diffusion", "objective.block_length=16")
    assert more.digest not in {cell.digest for cell in cells("diffusion_gap")}
    alike = next(cell for cell in cells("diffusion_gap") if cell.names.task == more.names.task)
    assert conditions(more) == conditions(alike)


@pytest.mark.parametrize("study", SHORT)
def test_the_rates_are_searched_alike_for_every_arm_and_on_other_seeds(study: str) -> None:
    for found in arms(f"{study}_rates").values():
        rates: dict[str, list[float]] = {}
        for cell in found:
            rates.setdefault(cell.names.backbone, []).append(cell.optimizer.learning_rate)
        grids = {tuple(sorted(grid)) for grid in rates.values()}
        assert len(grids) == 1
        assert len(next(iter(grids))) >= 3
    seeds = {cell.seed for cell in cells(f"{study}_rates")}
    assert len(seeds) == 2
    assert not seeds & {cell.seed for cell in cells(study)}


@pytest.mark.parametrize("study", SHORT)
def test_the_kept_rates_are_those_of_a_finished_search(study: str) -> None:
    kept = read_rates(CONF / "track" / f"{study}_rates.yml")
    assert kept.study == f"{study}_rates"
    assert set(kept.seeds) == {cell.seed for cell in cells(kept.study)}
    for arm in kept.arms:
        assert arm.bracketed, arm.key
        assert arm.tuning is not None
        assert arm.tuning.trials >= 5, "three first rates, and the neighbours of the best"
    chosen = {cell.names.backbone: cell.optimizer.learning_rate for cell in cells(study)}
    assert chosen == {arm.backbone: arm.learning_rate for arm in kept.arms}


@pytest.mark.full
@pytest.mark.parametrize("study", SHORT)
def test_the_search_has_the_conditions_of_the_comparison(study: str) -> None:
    for task, found in arms(study).items():
        searched = conditions(arms(f"{study}_rates")[task][0])
        expected = conditions(found[0])
        for part in ("task", "optimizer", "scale", "budget"):
            assert searched[part] == expected[part]


def test_a_study_overrides_what_the_root_file_sets() -> None:
    """The root configuration comes before the groups, so its values do not undo a study's."""
    trainer = commands.settings("study=compare_rates", "task=recall_8_pairs", "backbone=decoder").trainer
    assert (trainer.evaluate_every, trainer.test_examples) == (100000, 2)
    assert trainer.checkpoint_every == 200


def test_fine_tuning_is_the_published_grid_with_linear_decay() -> None:
    found = cells("fine_tuning")
    assert {(c.optimizer.learning_rate, c.budget.batch_size, c.seed) for c in found} == set(
        itertools.product((2e-5, 3e-5, 5e-5), (16, 32), range(5))
    )
    chosen = planned("fine_tuning", "sentences", "encoder")
    epoch = chosen.task.num_examples("train") * chosen.task.sequence_length
    epochs = {round(cell.budget.tokens / epoch, 1) for cell in found}
    assert sorted(epochs) == pytest.approx(
        [2, 3, 4], abs=0.3
    )  # the paragraphs are those of this Python's documentation
    rates = [learning_rate_factor(step, 100, found[0].optimizer) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[9:] == pytest.approx([1 - step / 90 for step in range(91)])


def test_rates_are_confirmed_under_the_conditions_they_were_chosen_in() -> None:
    """On other seeds, and with the whole test split to report."""
    chosen, confirmed = conditions(cells("tune")[0]), conditions(cells("confirm")[0])
    assert (chosen["trainer"].pop("test_examples"), confirmed["trainer"].pop("test_examples")) == (2, None)
    assert chosen == confirmed
    assert not {cell.seed for cell in cells("tune")} & {cell.seed for cell in cells("confirm")}
    grid = sorted({cell.optimizer.learning_rate for cell in cells("tune")})
    assert len(grid) >= 5
    assert all(high / low == pytest.approx(10**0.5, rel=0.06) for low, high in itertools.pairwise(grid))
