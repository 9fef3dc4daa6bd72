"""Micro-batches change memory, not results: sums of losses over one count equal one big batch."""

import pytest
import torch

from archbench.experiments.objectives.diffusion.any_order import AnyOrder, AnyOrderConfig
from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.experiments.objectives.diffusion.uniform_diffusion import (
    UniformDiffusion,
    UniformDiffusionConfig,
)
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM, CausalLMConfig
from archbench.experiments.objectives.language_modelling.classification import (
    Classification,
    ClassificationConfig,
)
from archbench.experiments.objectives.language_modelling.denoising import Denoising, DenoisingConfig
from archbench.experiments.objectives.language_modelling.masked_lm import MaskedLM, MaskedLMConfig
from archbench.experiments.objectives.language_modelling.prefix_lm import (
    CausalPrefixLM,
    PrefixLM,
    PrefixLMConfig,
)
from archbench.experiments.objectives.language_modelling.span_corruption import (
    SpanCorruption,
    SpanCorruptionConfig,
)
from archbench.experiments.objectives.language_modelling.ul2 import UL2, UL2Config
from archbench.experiments.tasks.task import Batch
from archbench.experiments.training.loss import Loss
from tests.experiments.objectives import toys

LABELS = [3, 7]
TASK = toys.Symbols(20, num_sentinels=8, labels=LABELS)
LENGTHS = [16, 3, 9, 1, 12, 5]
PARTS = [(0, 1), (1, 4), (4, 6)]


def padded():
    return toys.padded_text(LENGTHS, TASK.vocabulary)


def answered():
    """Each row has another number of answers."""
    tokens_BT = toys.random_text(6, 16, 20).tokens_BT
    answer_BT = torch.arange(16) >= 16 - torch.tensor(LENGTHS)[:, None]
    return Batch(
        tokens_BT=tokens_BT,
        context_BT=tokens_BT.masked_fill(answer_BT, 0),
        answer_BT=answer_BT,
        valid_BT=torch.ones_like(answer_BT),
    )


def labelled():
    """Sequences with a label; padding has no place here."""
    tokens_BT = toys.random_text(6, 16, 20).tokens_BT
    tokens_BT[:, -1] = torch.tensor(LABELS).repeat(3)
    answer_BT = torch.zeros(6, 16, dtype=torch.bool)
    answer_BT[:, -1] = True
    return Batch(
        tokens_BT=tokens_BT, context_BT=tokens_BT, answer_BT=answer_BT, valid_BT=torch.ones_like(answer_BT)
    )


def text():
    return toys.random_text(6, 24, 20)


CASES = [
    *[(name, CausalLM(CausalLMConfig(), TASK), make) for name in toys.CAUSAL for make in (padded, answered)],
    *[
        (name, MaskedLM(MaskedLMConfig(mask_probability=0.5), TASK), make)
        for name in ("encoder", "masked_diffusion")
        for make in (padded, answered)
    ],
    *[
        (name, MaskedDiffusion(MaskedDiffusionConfig(), TASK), make)
        for name in ("encoder", "masked_diffusion")
        for make in (padded, answered)
    ],
    *[("encoder", AnyOrder(AnyOrderConfig(), TASK), make) for make in (padded, answered)],
    *[("encoder", UniformDiffusion(UniformDiffusionConfig(), TASK), make) for make in (padded, answered)],
    ("encoder_decoder", SpanCorruption(SpanCorruptionConfig(), TASK), text),
    *[("encoder_decoder", Denoising(DenoisingConfig(), TASK), make) for make in (padded, text)],
    ("encoder_decoder", PrefixLM(PrefixLMConfig(), TASK), text),
    ("decoder", CausalPrefixLM(PrefixLMConfig(), TASK), text),
    ("encoder_decoder", UL2(UL2Config(), TASK), text),
    *[(name, Classification(ClassificationConfig(), TASK), labelled) for name in ("moe", "encoder")],
]


def gradients(model, objective, view, parts):
    """Loss and gradients as the trainer adds them up."""
    model.zero_grad()
    count, rows, total = view.count_B.sum(), view.tokens_BT.shape[0], 0.0
    for start, stop in parts:
        loss = Loss(model, objective, "fp32")(view.rows(start, stop), count, rows)
        loss.backward()
        total += loss.item()
    return total, [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("name", "objective", "make"), CASES, ids=[f"{n}-{type(o).__name__}-{m.__name__}" for n, o, m in CASES]
)
def test_micro_batches_add_up_to_the_batch(name, objective, make):
    model = toys.build(name, TASK.vocabulary.size)
    view = objective.view(make(), torch.Generator().manual_seed(3))
    if make in (padded, answered):
        assert len(set(view.count_B.tolist())) > 3
    loss, at_once = gradients(model, objective, view, [(0, 6)])
    parts, in_parts = gradients(model, objective, view, PARTS)
    assert parts == pytest.approx(loss, rel=1e-6)
    assert len(at_once) == len(in_parts) > 0
    for whole, added in zip(at_once, in_parts, strict=True):
        torch.testing.assert_close(added, whole, rtol=1e-4, atol=1e-6 * max(1.0, whole.abs().max().item()))


def test_the_mean_of_the_parts_would_be_another_loss():
    """So the equality above says something."""
    objective = CausalLM(CausalLMConfig(), TASK)
    model, view = toys.build("decoder", TASK.vocabulary.size), objective.view(padded(), torch.Generator())
    loss, _ = gradients(model, objective, view, [(0, 6)])
    means = []
    for start, stop in PARTS:
        part = view.rows(start, stop)
        total, count = objective.loss(part.run(model), part)
        means.append((total / count).item())
    assert abs(sum(means) / 3 - loss) > 1e-3 * loss


def test_the_balance_loss_of_experts_is_part_of_it():
    view = CausalLM(CausalLMConfig(), TASK).view(text(), torch.Generator())
    model, objective = toys.build("moe", TASK.vocabulary.size), CausalLM(CausalLMConfig(), TASK)
    output = view.run(model)
    per_layer = sum(output.auxiliary.values()).item() / 6 / 2
    assert 0.9 < per_layer < 2.5  # near 1 for each layer and sequence when balanced; coefficient 1
    count = view.count_B.sum()
    without = (objective.loss(output, view)[0] / count).item()
    assert Loss(model, objective, "fp32")(view, count, 6).item() == pytest.approx(without + 2 * per_layer)


def test_padding_does_not_change_the_loss():
    tokens, lengths = padded(), torch.tensor(LENGTHS)
    for objective, name in (
        (CausalLM(CausalLMConfig(), TASK), "decoder"),
        (MaskedLM(MaskedLMConfig(), TASK), "encoder"),
        (MaskedDiffusion(MaskedDiffusionConfig(), TASK), "masked_diffusion"),
    ):
        model = toys.build(name, TASK.vocabulary.size)
        view = objective.view(tokens, torch.Generator().manual_seed(3))
        together = objective.loss(view.run(model), view)[0].item()
        alone = 0.0
        for row, length in enumerate(lengths.tolist()):
            part = view.rows(row, row + 1)
            shown = type(part)(
                tokens_BT=part.tokens_BT[:, :length],
                valid_BT=None,
                target_BT=part.target_BT[:, :length],
                weight_BT=part.weight_BT[:, :length],
                count_B=part.count_B,
            )
            alone += objective.loss(shown.run(model), shown)[0].item()
        assert alone == pytest.approx(together, rel=1e-6)
