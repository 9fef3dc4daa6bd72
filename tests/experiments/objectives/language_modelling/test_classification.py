import math
from typing import ClassVar

import pytest
import torch

from archbench.architectures.backbone import Output
from archbench.experiments.objectives.decoding.sampling import GREEDY
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM
from archbench.experiments.objectives.language_modelling.classification import (
    Classification,
    ClassificationConfig,
)
from archbench.experiments.objectives.objective import Objective
from archbench.experiments.runtime.errors import ConfigError, DataError
from archbench.experiments.tasks.long_range.listops import ListOps, ListOpsConfig
from archbench.experiments.tasks.recall.mqar import Recall
from archbench.experiments.tasks.task import Batch
from archbench.experiments.tasks.text.text import Text
from tests.experiments.objectives import toys

LABELS = [3, 7, 11]
TASK = toys.Symbols(20, labels=LABELS)
OBJECTIVE = Classification(ClassificationConfig(), TASK)


def labelled(rows, length=6, seed=0):
    """Random symbols, then a label; the context does not show it."""
    generator = torch.Generator().manual_seed(seed)
    tokens_BT = torch.randint(20, (rows, length), generator=generator)
    tokens_BT[:, -1] = torch.tensor(LABELS)[torch.randint(3, (rows,), generator=generator)]
    answer_BT = torch.zeros(rows, length, dtype=torch.bool)
    answer_BT[:, -1] = True
    return Batch(
        tokens_BT=tokens_BT,
        context_BT=tokens_BT.masked_fill(answer_BT, 0),
        answer_BT=answer_BT,
        valid_BT=torch.ones_like(answer_BT),
    )


def test_the_label_is_asked_for_at_the_last_position_and_hidden():
    batch = labelled(8)
    for view in (OBJECTIVE.view(batch, torch.Generator()), OBJECTIVE.answer_view(batch)):
        assert (view.tokens_BT[:, -1] == TASK.vocabulary.mask).all()
        assert torch.equal(view.tokens_BT[:, :-1], batch.tokens_BT[:, :-1])
        assert torch.equal(view.target_BT[:, -1], batch.tokens_BT[:, -1])
        assert view.weight_BT.sum(0).tolist() == [0, 0, 0, 0, 0, 8]
        assert view.count_B.tolist() == [1] * 8


def test_only_labels_compete_in_training():
    view = OBJECTIVE.answer_view(labelled(8))
    logits = torch.zeros(8, 6, TASK.vocabulary.size, requires_grad=True)
    total, count = OBJECTIVE.loss(Output(logits_BTV=logits, hidden_BTD=logits), view)
    assert (total / count).item() == pytest.approx(math.log(3))
    total.backward()
    touched = logits.grad.abs().sum((0, 1)).nonzero().flatten().tolist()
    assert touched == LABELS
    assert not logits.grad[:, :-1].any()


def test_only_labels_compete_in_the_accuracy():
    """No training step ever lowers the logit of another token, so none may win."""
    batch = labelled(30)
    right = batch.tokens_BT[:, -1]

    def rule(tokens_BT):
        logits_BTV = torch.zeros(*tokens_BT.shape, TASK.vocabulary.size)
        logits_BTV[..., 5] = 100.0
        logits_BTV[:10, -1].scatter_(1, right[:10, None], 1.0)
        logits_BTV[10:, -1].scatter_(1, right[10:, None], -1.0)
        return logits_BTV

    score = OBJECTIVE.evaluate(toys.Rule(TASK.vocabulary.size, rule), batch, toys.generators(30))
    assert score.accuracy_B.tolist() == [1.0] * 10 + [0.0] * 20


def test_tasks_without_labels_are_refused():
    assert Classification.incompatibility(toys.Symbols) is None
    for task in (Recall, Text):
        assert "labels" in Classification.incompatibility(task)


def test_answers_before_the_last_position_are_refused():
    batch = labelled(2)
    batch.answer_BT[0, 2] = True
    with pytest.raises(DataError, match="last position"):
        OBJECTIVE.answer_view(batch)


def test_texts_are_neither_scored_nor_written():
    model = toys.uniform_model(TASK.vocabulary)
    with pytest.raises(DataError, match="not whole texts"):
        OBJECTIVE.evaluate(model, toys.random_text(2, 5, 20), toys.generators(2))
    with pytest.raises(DataError, match="trains no model that writes"):
        OBJECTIVE.sample(model, [[1, 2]], max_tokens=5, generators=toys.generators(1), sampling=GREEDY)


class Unlabelled(toys.Symbols):
    has_labels: ClassVar[bool] = False


def test_other_objectives_of_tokens_take_any_task_of_tokens():
    assert Classification.incompatibility(Unlabelled) is not None
    tokens = [cls for cls in Objective.__subclasses__() if cls.targets == Unlabelled.targets]
    others = [cls for cls in tokens if cls is not Classification]
    assert CausalLM in others
    assert all(cls.incompatibility(Unlabelled) is None for cls in others)


def test_the_mean_of_all_states_is_read_without_a_position_for_the_answer():
    """Long Range Arena as S4 reads it: the loss is that of the mean through one dense layer, by hand."""
    pooled = Classification(ClassificationConfig(pooling="mean"), TASK)
    model = toys.build("encoder", TASK.vocabulary.size)
    readout = pooled.make_readout(model).double()
    model.attach_readout(readout)
    batch = labelled(8)
    view = pooled.view(batch, torch.Generator())
    assert torch.equal(view.tokens_BT, batch.tokens_BT[:, :-1])
    assert view.valid_BT is None
    assert [LABELS[number] for number in view.label_B] == batch.tokens_BT[:, -1].tolist()
    assert pooled.with_scored_positions(view) is view
    with torch.no_grad():
        output = view.run(model)
        total, count = pooled.loss(output, view)
        mean_BD = output.hidden_BTD.mean(1)
        logits_BC = mean_BD @ readout.classifier.weight.T + readout.classifier.bias
        expected = torch.nn.functional.cross_entropy(logits_BC.float(), view.label_B, reduction="sum")
    torch.testing.assert_close(total, expected)
    assert count == 8
    accuracy_B = pooled.evaluate(model, batch, []).accuracy_B
    assert accuracy_B.tolist() == (logits_BC.argmax(-1) == view.label_B).double().tolist()
    assert OBJECTIVE.make_readout(model) is None
    with pytest.raises(ValueError, match="pooling='first' is unknown"):
        ClassificationConfig(pooling="first")


def test_blanks_before_an_expression_are_not_part_of_the_mean():
    """An expression of ListOps comes first then, and what follows is padding."""
    task = ListOps(ListOpsConfig(sequence_length=48, min_length=8, max_depth=4, max_args=4))
    pooled = Classification(ClassificationConfig(pooling="mean"), task)
    batch = task.batch("train", 0, 0, 20)
    view = pooled.answer_view(batch)
    for row in range(20):
        expression = [token for token in batch.context_BT[row, :-1].tolist() if token != task.blank]
        assert view.valid_BT[row].tolist() == [place < len(expression) for place in range(47)]
        assert view.tokens_BT[row, : len(expression)].tolist() == expression
        assert task.labels[view.label_B[row]] == batch.tokens_BT[row, -1]


@pytest.mark.parametrize("name", ["encoder", "mamba_bidirectional"])
def test_pixels_are_numbers_that_a_linear_layer_reads(name):
    """Three levels are -1, 0 and 1; the mask token and the labels keep rows of the table."""
    task = toys.Symbols(20, labels=LABELS)
    task.levels = 3
    objective = Classification(ClassificationConfig(real_values=True), task)
    model = toys.build(name, task.vocabulary.size)
    table = next(m for m in model.embedding.modules() if isinstance(m, torch.nn.Embedding))
    assert objective.make_readout(model) is None
    (line,) = (m for m in model.embedding.modules() if isinstance(m, torch.nn.Linear))
    with torch.no_grad():
        line.bias.normal_()
    reader = model.embedding if name != "encoder" else model.embedding.tokens
    found = reader(torch.tensor([[0, 1, 2, 3, task.vocabulary.mask]]))[0]
    weight_D = line.weight[:, 0]
    expected = [line.bias - weight_D, line.bias, line.bias + weight_D, table.weight[3]]
    torch.testing.assert_close(found, torch.stack([*expected, table.weight[task.vocabulary.mask]]))
    view = objective.answer_view(labelled(4))
    total, _ = objective.loss(view.run(model), view)
    total.backward()
    assert line.weight.grad.abs().sum() > 0
    assert not table.weight.grad[:3].any()
    with pytest.raises(ConfigError, match="this task has no pixels"):
        Classification(ClassificationConfig(real_values=True), TASK)
