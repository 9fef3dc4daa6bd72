"""What holds for every generated task: purity, an oracle at 100%, the same example under every objective."""

import csv
import re

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from archbench.experiments.config import CONF
from archbench.experiments.config.structured import component, load_class
from archbench.experiments.objectives.objective import Objective
from archbench.experiments.tasks.__main__ import check_task
from archbench.experiments.tasks.probes.probe import Probe
from archbench.experiments.tasks.task import Task


def settings_of(name: str) -> DictConfig:
    """A task's YAML on top of the one it builds on, as Hydra composes it."""
    tree = OmegaConf.load(CONF / "task" / f"{name}.yaml")
    for parent in tree.pop("defaults", []):  # type: ignore[call-arg]
        tree = OmegaConf.merge(settings_of(parent), tree)
    return tree  # type: ignore[return-value]


def read(name: str) -> Probe | None:
    """The task of a YAML; None where it is not a generated one."""
    tree = OmegaConf.to_container(settings_of(name), resolve=True)
    if not issubclass(load_class(tree["_target_"], Task, "task"), Probe):  # type: ignore[call-overload]
        return None
    found, config = component({"task": tree}, "task", Task)
    return found(config)  # type: ignore[call-arg, return-value]


TASKS = sorted(path.stem for path in (CONF / "task").glob("*.yaml"))
PROBES = {name: task for name in TASKS if (task := read(name))}
OBJECTIVES = [
    "causal_lm", "masked_lm", "span_corruption", "denoising", "prefix_lm", "seq2seq", "masked_diffusion"
]  # fmt: skip
NAMES = ("tokens_BT", "context_BT", "answer_BT", "valid_BT")


def same(name: str, **settings) -> Probe:
    """The task of a YAML with other settings."""
    task = PROBES[name]
    return type(task)(type(task.config)(**(vars(task.config) | settings)))  # type: ignore[call-arg]


def check_oracle(task: Probe, split: str, seed: int, count: int) -> None:
    batch = task.batch(split, seed, 0, count)
    for tokens, context, answer, valid in zip(
        *(getattr(batch, name).tolist() for name in NAMES), strict=True
    ):
        asked = [place for place, is_answer in enumerate(answer) if is_answer]
        assert asked
        assert valid == sorted(valid, reverse=True)  # padding stands on the right
        assert task.solve(context[: sum(valid)], asked) == [tokens[place] for place in asked]


@pytest.mark.parametrize("name", PROBES)
def test_the_oracle_gives_every_answer(name: str) -> None:
    for split, seed in (("train", 0), ("validation", 1), ("test", 7)):
        check_oracle(PROBES[name], split, seed, 40)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *(("forgetting_recall", {"num_updates": u, "sequence_length": 64}) for u in (1, 4)),
        ("compositional_recall", {"side": 3, "sequence_length": 54, "num_symbols": 27}),
        *(("chained_recall", {"hops": h, "sequence_length": 64, "num_symbols": 40}) for h in (1, 3, 4)),
        ("in_context_recall", {"sequence_length": 4}),
        ("noisy_recall", {"noise": 0.8, "num_symbols": 144, "sequence_length": 128}),
        ("fuzzy_recall", {"longest_motif": 1, "num_symbols": 4}),
        ("fuzzy_recall", {"sequence_length": 12}),
        ("memorization", {"num_symbols": 5, "table_seed": 1}),
        ("suffix_lookup", {"num_letters": 2, "answer_length": 5}),
        ("prefix_lookup", {"ngram": 1, "answer_length": 2, "sequence_length": 9}),
        ("phone_book", {"num_digits": 10, "sequence_length": 100, "num_names": 3}),
        *((name, {"sequence_length": 42, "min_length": 10}) for name in ("bucket_sort", "compute_sqrt")),
        *(
            (name, {"sequence_length": 150, "min_length": 49})
            for name in ("binary_addition", "binary_product", "stack_manipulation", "solve_equation")
        ),
        (
            "depo",
            {"num_nodes": 30, "max_hops": 12, "num_symbols": 6, "name_length": 3, "sequence_length": 220},
        ),
        ("brevo", {"num_nodes": 30, "num_symbols": 40, "sequence_length": 300}),
        ("brevo", {"show_answers": True}),
        ("mano", {"max_operations": 13, "modulus": 23, "sequence_length": 30}),
        ("bracket_arithmetic", {"sequence_length": 5}),
        ("missing_duplicate", {"sequence_length": 5}),
    ],
)
def test_the_oracle_holds_for_other_settings(name: str, settings: dict) -> None:
    check_oracle(same(name, **settings), "train", 3, 40)


@pytest.mark.parametrize("name", PROBES)
def test_an_example_is_a_function_of_split_seed_and_number(name: str) -> None:
    task = PROBES[name]
    together = task.batch("train", 3, 1000, 24)
    for start, count in ((1000, 1), (1007, 9), (1023, 1)):
        found = task.batch("train", 3, start, count)
        rows = slice(start - 1000, start - 1000 + count)
        for part_name in NAMES:
            assert torch.equal(getattr(found, part_name), getattr(together, part_name)[rows])
    first = [tuple(task.batch(split, seed, 0, 1).tokens_BT[0].tolist())
             for split in ("train", "validation", "test") for seed in range(4)]  # fmt: skip
    assert len(set(first)) > 6  # a short string may come twice


BLANKS = ("induction", "listops", "listops_nano", "listops_short")
"""Tasks in which a blank of their own is shown in place of an answer."""


@pytest.mark.parametrize("name", PROBES)
def test_answers_are_hidden_and_everything_else_is_shown(name: str) -> None:
    task = PROBES[name]
    batch = task.batch("train", 0, 0, 50)
    hidden_BT = batch.answer_BT | ~batch.valid_BT
    assert torch.equal(batch.context_BT[~hidden_BT], batch.tokens_BT[~hidden_BT])
    assert (batch.context_BT[hidden_BT] == 0).all() or name in BLANKS
    assert not (batch.answer_BT & ~batch.valid_BT).any()
    assert batch.tokens_BT.min() >= 0
    assert batch.tokens_BT.max() < task.vocabulary.num_symbols
    assert batch.tokens_BT.shape[1] == task.sequence_length


@pytest.mark.parametrize("name", PROBES)
def test_every_objective_asks_for_the_same_answers(name: str) -> None:
    task = PROBES[name]
    batch = task.batch("train", 0, 0, 4)
    answers = sorted(batch.tokens_BT[batch.answer_BT].tolist())
    for objective_name in OBJECTIVES:
        tree = OmegaConf.load(CONF / "objective" / f"{objective_name}.yaml")
        objective_class = load_class(tree.pop("_target_"), Objective, "objective")
        view = objective_class(objective_class.Config(), task).answer_view(batch)
        assert sorted(view.target_BT[view.weight_BT > 0].tolist()) == answers, objective_name


def test_a_longer_sequence_leaves_the_vocabulary_as_it_is() -> None:
    """So that a model can be tested on longer ones; the recall probes name their number of queries."""
    for name in PROBES:
        if name.startswith("infilling") or name == "capo":  # a sentinel for each blank; facts of one length
            continue
        other = {
            "selective_copying": 512,
            "mad_copying": 512,
            "copying": 512,
            "phone_book": 96,
            "compression": 63,
            "listops": 3000,
        }
        longer = same(name, sequence_length=other.get(name, 128))
        assert longer.vocabulary == PROBES[name].vocabulary, name


PAGES = CONF.parent / "docs" / "reference"
CHECKS = {row["task"]: row for row in csv.DictReader((PAGES / "task_checks.csv").open(newline=""))}


def test_the_page_has_a_measured_row_and_a_description_of_every_probe() -> None:
    assert {name: (int(row["tokens"]), row["oracle"]) for name, row in CHECKS.items()} == {
        name: (task.sequence_length, "1.000") for name, task in PROBES.items()
    }
    described = (PAGES / "tasks.md").read_text().split("## Definitions and sources")[1]
    described += (PAGES / "task_sources.csv").read_text()
    assert set(PROBES) <= set(re.findall(r"`(\w+)`", described))


@pytest.mark.parametrize("name", ["recall", "missing_duplicate", "noisy_recall"])
def test_the_page_quotes_the_task_check(name: str) -> None:
    check = check_task(name, PROBES[name])
    first, second = sorted(check.scores, key=lambda baseline: -check.scores[baseline])[:2]
    assert CHECKS[name] == {
        "task": name,
        "tokens": str(check.length),
        "answers": f"{check.answers:.1f}",
        "oracle": f"{check.oracle:.3f}",
        "guess": f"{check.guess:.3f}",
        "best shallow baseline": f"{first} {check.scores[first]:.3f}",
        "second best": f"{second} {check.scores[second]:.3f}",
    }
