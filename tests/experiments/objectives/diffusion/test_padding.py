"""The estimates of a row do not depend on how far its batch is padded, nor on the other rows."""

import pytest
import torch
import torch.nn.functional as F

from archbench.experiments.objectives.diffusion.any_order import AnyOrder, AnyOrderConfig
from archbench.experiments.objectives.diffusion.block_diffusion import BlockDiffusion, BlockDiffusionConfig
from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.experiments.objectives.diffusion.uniform_diffusion import (
    UniformDiffusion,
    UniformDiffusionConfig,
)
from archbench.experiments.objectives.language_modelling.masked_lm import MaskedLM, MaskedLMConfig
from archbench.experiments.objectives.objective import row_noise
from archbench.experiments.tasks.task import Batch
from archbench.experiments.tasks.text.text_pairs import Pairs, PairsConfig
from tests.experiments.objectives import toys

LENGTHS = [12, 5, 9, 1]
OBJECTIVES = {
    "masked": MaskedDiffusion(MaskedDiffusionConfig(evaluation_samples=3), toys.Symbols(20)),
    "time": MaskedDiffusion(MaskedDiffusionConfig(estimator="time", evaluation_samples=3), toys.Symbols(20)),
    "permutation": MaskedDiffusion(MaskedDiffusionConfig(estimator="permutation"), toys.Symbols(20)),
    "any_order": AnyOrder(AnyOrderConfig(evaluation_samples=3), toys.Symbols(20)),
    "uniform": UniformDiffusion(UniformDiffusionConfig(evaluation_samples=3), toys.Symbols(20)),
    "block": BlockDiffusion(BlockDiffusionConfig(evaluation_samples=3), toys.Symbols(20)),
    "block_time": BlockDiffusion(BlockDiffusionConfig(estimator="time"), toys.Symbols(20)),
    "masked_lm": MaskedLM(MaskedLMConfig(evaluation_positions=2), toys.Symbols(20)),
}


class Neighbours(toys.Rule):
    """Logits that depend on a token and on the one before it."""

    takes_time = True

    def __init__(self, size):
        generator = torch.Generator().manual_seed(0)
        table_2VV = torch.randn(2, size, size, generator=generator, dtype=torch.float64)
        super().__init__(size, lambda x_BT: table_2VV[0][x_BT] + table_2VV[1][F.pad(x_BT[:, :-1], (1, 0))])


def widened(batch: Batch, pad: int, extra: int) -> Batch:
    """Return the batch with more padding on the right, or with less."""
    parts = dict(vars(batch))
    for name in ("tokens_BT", "context_BT", "answer_BT", "valid_BT", "bytes_BT"):
        parts[name] = F.pad(parts[name], (0, extra), value=pad if name in ("tokens_BT", "context_BT") else 0)
    return Batch(**parts)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_bound_of_a_row_depends_on_neither_padding_nor_its_batch(name):
    objective = OBJECTIVES[name]
    v = objective.vocabulary
    model, batch = Neighbours(v.size), toys.padded_text(LENGTHS, v)
    together_B = objective.likelihood_score(model, batch, toys.generators(4)).nats_B
    wide_B = objective.likelihood_score(model, widened(batch, v.pad, 7), toys.generators(4)).nats_B
    alone = []
    for row, length in enumerate(LENGTHS):
        cut = widened(batch.rows(row, row + 1), v.pad, length - max(LENGTHS))
        alone.append(objective.likelihood_score(model, cut, toys.generators(4)[row : row + 1]).nats_B)
    torch.testing.assert_close(wide_B, together_B, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.cat(alone), together_B, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["masked", "time", "permutation", "any_order", "uniform"])
def test_bounds_and_texts_of_pairs_are_those_of_any_batch_size(name):
    task = Pairs(PairsConfig(max_source=40, max_target=12))
    objective = type(OBJECTIVES[name])(OBJECTIVES[name].config, task)
    objective.override_unmasking(steps=4, **({} if name == "uniform" else {"method": "ancestral"}))
    model, records = Neighbours(task.vocabulary.size), []
    for size in (6, 4, 1):
        records.append([])
        for start in range(0, 6, size):
            stop = min(start + size, 6)
            batch = task.batch("test", 0, start, stop - start)
            score = objective.evaluate(model, batch, toys.generators(6)[start:stop])
            records[-1] += [(round(r.nats, 9), r.text) for r in score.records]
    assert records[1] == records[0]
    assert records[2] == records[0]


def test_noise_of_rows_without_padding_is_that_of_one_call():
    generators = toys.generators(3)
    noise_BT = row_noise(generators, torch.ones(3, 7, dtype=torch.bool))
    for noise_T, generator in zip(noise_BT, toys.generators(3), strict=True):
        assert torch.equal(noise_T, torch.rand(7, generator=generator))
