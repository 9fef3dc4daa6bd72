"""Brevo: answers by hand and by networkx, and how graphs are drawn."""

import networkx as nx
import numpy as np
import pytest

from archbench.experiments.data.counter_rng import ExampleRNG
from archbench.experiments.tasks.recall.brevo import Brevo, BrevoConfig, parents

LARGER = {"sequence_length": 64, "num_nodes": 9, "num_symbols": 16}


def test_ancestors_by_hand() -> None:
    """1 depends on 3 and 5, and 3 on 2: first 2 and 5, then 3, then 1."""
    shown = [3, 1, 1, 4, 5, 1, 6, 4, 2, 3, 17, 1, 18, 0, 0, 0, 0, 0, 0]
    assert Brevo(BrevoConfig(**LARGER)).solve(shown, [13, 14, 15, 16, 17, 18]) == [2, 5, 3, 1, 19, 19]


def test_a_shortcut_does_not_move_a_node_to_an_earlier_layer_by_hand() -> None:
    """7 -> 2 -> 1 and 7 -> 1, 9 -> 1: 1 comes after 2."""
    shown = [7, 1, 7, 2, 9, 1, 2, 1, 17, 1, 18, 0, 0, 0, 0]
    assert Brevo(BrevoConfig(**LARGER)).solve(shown, [11, 12, 13, 14]) == [7, 9, 2, 1]


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("degree", [1, 2, 4])
def test_graphs_have_the_degrees_and_answers_are_layers_of_ancestors(split: str, degree: int) -> None:
    task = Brevo(BrevoConfig(num_nodes=12, sequence_length=100, num_symbols=16, max_degree=degree))
    batch = task.batch(split, 0, 0, 200)
    for tokens, answer, valid in zip(
        batch.tokens_BT.tolist(), batch.answer_BT.tolist(), batch.valid_BT.tolist(), strict=True
    ):
        end = tokens.index(task.query)
        edges = list(zip(tokens[:end:2], tokens[1:end:2], strict=True))
        graph = nx.DiGraph(edges)
        assert nx.is_directed_acyclic_graph(graph)
        assert graph.number_of_edges() == len(edges)
        assert max(max(dict(graph.in_degree).values()), max(dict(graph.out_degree).values())) <= degree
        query = tokens[end + 1]
        assert graph.out_degree(query) == 0
        listed = graph.subgraph(nx.ancestors(graph, query) | {query})
        expected = [node for layer in nx.topological_generations(listed) for node in sorted(layer)]
        answers = tokens[end + 3 : sum(valid)]
        assert answers == expected + [task.end] * (len(answers) - len(expected))
        assert answer == [end + 3 <= place < sum(valid) for place in range(100)]
        assert split == "train" or len(answers) == 12


def test_sources_and_numbers_of_parents_are_uniform() -> None:
    rng = ExampleRNG(seed=0, split="train", index_B=np.arange(6000))
    num_parents_BN = parents(rng, 9, 4).sum(2)
    sources_B = (num_parents_BN > 0).argmax(1)
    assert (np.abs(np.bincount(sources_B, minlength=4)[1:] - 2000) < 4 * 2000**0.5).all()
    assert (num_parents_BN[:, 3:] > 0).all()
    assert (np.abs(np.bincount(num_parents_BN[:, 4], minlength=5)[1:] - 1500) < 4 * 1500**0.5).all()


def test_edges_are_in_random_order() -> None:
    """The first edge ends at the query as often as any other edge."""
    task = Brevo(BrevoConfig(**LARGER))
    tokens_BT = task.batch("test", 0, 0, 2000).tokens_BT.numpy()
    first, expected = [], []
    for tokens in tokens_BT.tolist():
        end = tokens.index(task.query)
        children = tokens[1:end:2]
        first.append(children[0] == tokens[end + 1])
        expected.append(children.count(tokens[end + 1]) / len(children))
    assert np.mean(first) == pytest.approx(np.mean(expected), abs=0.04)


def test_shown_answers_are_visible_and_change_nothing_else() -> None:
    hidden, shown = (
        Brevo(BrevoConfig(**LARGER, show_answers=show)).batch("train", 0, 0, 50) for show in (False, True)
    )
    assert (shown.context_BT == shown.tokens_BT).all()
    assert (hidden.context_BT[hidden.answer_BT] == 0).all()
    assert (hidden.tokens_BT == shown.tokens_BT).all()
    assert (hidden.answer_BT == shown.answer_BT).all()


def test_a_half_way_solver_reaches_what_its_line_says() -> None:
    task = Brevo(BrevoConfig(**LARGER))
    batch, rng = task.batch("test", 0, 0, 2000), np.random.default_rng(0)
    random_order, ends = [], []
    for tokens, answer in zip(batch.tokens_BT, batch.answer_BT, strict=True):
        truth = tokens[answer].numpy()
        listed = truth[truth != task.end]
        guess = np.concatenate([rng.permutation(listed), truth[len(listed) :]])
        random_order.append((guess == truth).mean())
        ends.append((truth == task.end).mean())
    values = {reference.name: reference.value for reference in task.guesses()}
    assert values == pytest.approx(
        {"random order": np.mean(random_order), "end symbols": np.mean(ends)}, abs=0.02
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_degree": 0}, "max_degree=0 must be above 0"),
        ({"num_nodes": 2}, "num_nodes=2 must be in 3 to num_symbols=16"),
        ({"num_nodes": 17}, "num_nodes=17 must be in 3 to num_symbols=16"),
        ({"sequence_length": 63}, "up to 26 edges, the query and 9 answers need 64 or more"),
    ],
)
def test_impossible_settings_are_refused_with_a_remedy(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BrevoConfig(**(LARGER | settings))


def test_the_examples_stay_what_they_are() -> None:
    """A change here makes old runs unrepeatable: give the fingerprint another number with it."""
    assert Brevo(BrevoConfig(**LARGER)).batch("train", 0, 0, 1).tokens_BT[0].tolist() == [
        3, 12, 7, 3, 9, 6, 3, 9, 7, 12, 7, 9, 12, 9, 6, 13, 12, 13, 7, 13, 17, 13, 18, 7, 3, 12, 9, 6, 13,
        *[0] * 35,
    ]  # fmt: skip
