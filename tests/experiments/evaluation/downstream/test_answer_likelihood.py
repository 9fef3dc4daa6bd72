"""Likelihoods of answers: against sums by hand, and against a joint distribution that is known."""

import math
from pathlib import Path

import pytest
import torch

from archbench.architectures.backbone import Backbone, Capabilities
from archbench.architectures.backbones.block_diffusion import BlockDiffusion as BlockBackbone
from archbench.architectures.backbones.block_diffusion import BlockDiffusionConfig as BlockBackboneConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.experiments.config.schema import DeviceConfig
from archbench.experiments.evaluation.downstream.answer_likelihood import (
    AnswerScore,
    AnswerScorer,
    ScoringRequest,
)
from archbench.experiments.objectives.diffusion.block_diffusion import BlockDiffusion, BlockDiffusionConfig
from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.experiments.objectives.fine_tuning.sequence_classification import (
    SequenceClassification,
    SequenceClassificationConfig,
)
from archbench.experiments.objectives.language_modelling.causal_lm import CausalLM, CausalLMConfig
from archbench.experiments.objectives.language_modelling.masked_lm import MaskedLM, MaskedLMConfig
from archbench.experiments.objectives.language_modelling.prefix_lm import PrefixLM, PrefixLMConfig
from archbench.experiments.objectives.language_modelling.span_corruption import (
    SpanCorruption,
    SpanCorruptionConfig,
)
from archbench.experiments.objectives.objective import Objective
from archbench.experiments.run.load_model import LoadedModel
from archbench.experiments.runtime.errors import ConfigError, DataError
from tests.experiments.objectives import toys

TASK = toys.Symbols(10, num_sentinels=4)
V = TASK.vocabulary


def scorer(model: Backbone, objective: Objective, samples: int = 8, batch_size: int = 4) -> AnswerScorer:
    saved = LoadedModel(
        model=model,
        objective=objective,
        task=objective.task,
        run=None,
        folder=Path("toy"),
        step=None,
        description="toy",
    )
    return AnswerScorer(
        saved, samples=samples, seed=0, batch_size=batch_size, device=DeviceConfig(name="cpu")
    )


def answers(count: int = 6, most: int = 30) -> list[ScoringRequest]:
    """Answers of one to five tokens behind contexts of different lengths."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for number in range(count):
        context, length = 1 + number * (most - 5) // count, 1 + number % 5
        tokens = torch.randint(V.num_symbols, (context + length,), generator=generator).tolist()
        found.append(ScoringRequest(context=tokens[:context], tokens=tokens[context:], noise=str(number)))
    return found


def score(of: AnswerScorer, some: list[ScoringRequest]) -> list[AnswerScore]:
    done: list[int] = []
    found = of.score(some, done.append)
    assert done[-1] == len(some)
    assert done == sorted(set(done))
    return found


def summed(logits_TV: torch.Tensor, tokens: list[int]) -> tuple[float, bool]:
    """The nats of tokens under the logits in their places, and whether each is the likeliest."""
    p_TV = logits_TV.double().log_softmax(-1)
    nats = -sum(p_TV[place, token].item() for place, token in enumerate(tokens))
    return nats, p_TV.argmax(-1).tolist() == tokens


@pytest.mark.parametrize("name", ["decoder", "mamba"])
def test_left_to_right_it_is_the_sum_of_log_probabilities(name: str) -> None:
    model = toys.build(name, V.size)
    asked = [*answers(), ScoringRequest(context=[], tokens=[3, 1], noise="")]
    greedy = []
    for answer in asked[:2]:  # the model's own answers, for the flag
        row = [V.bos, *answer.context]
        for _ in range(3):
            row.append(int(model(torch.tensor([row])).logits_BTV[0, -1].argmax()))
        greedy.append(ScoringRequest(context=answer.context, tokens=row[-3:], noise=""))
    asked += greedy
    found = score(scorer(model, CausalLM(CausalLMConfig(), TASK)), asked)
    for answer, one in zip(asked, found, strict=True):
        read = [V.bos, *answer.context, *answer.tokens[:-1]]
        logits_TV = model(torch.tensor([read])).logits_BTV[0, len(answer.context) :]
        nats, likeliest = summed(logits_TV, answer.tokens)
        assert one.nats == pytest.approx(nats, rel=1e-5, abs=1e-6)
        assert one.greedy == likeliest
        assert one.variance == 0
    assert [one.greedy for one in found[-2:]] == [True, True]
    assert not all(one.greedy for one in found)


def test_an_encoder_decoder_reads_the_context_and_writes_the_answer() -> None:
    model, asked = toys.build("encoder_decoder", V.size), answers()
    of = scorer(model, PrefixLM(PrefixLMConfig(), TASK))
    spans = scorer(model, SpanCorruption(SpanCorruptionConfig(), TASK))
    assert of.likelihood.kind == spans.likelihood.kind == "exact"
    mark = V.sentinel(0)
    for answer, plain, marked in zip(asked, score(of, asked), score(spans, asked), strict=True):
        read, source = torch.tensor([[V.pad, *answer.tokens[:-1]]]), torch.tensor([answer.context])
        logits_TV = model(read, source_BS=source).logits_BTV[0]
        assert plain.nats == pytest.approx(summed(logits_TV, answer.tokens)[0], rel=1e-5, abs=1e-6)
        read = torch.tensor([[V.pad, mark, *answer.tokens[:-1]]])
        source = torch.tensor([[*answer.context, mark, V.eos]])
        logits_TV = model(read, source_BS=source).logits_BTV[0, 1:]
        assert marked.nats == pytest.approx(summed(logits_TV, answer.tokens)[0], rel=1e-5, abs=1e-6)


def test_a_masked_language_model_is_asked_for_each_token_given_all_others() -> None:
    model, asked = toys.build("encoder", V.size), answers()
    of = scorer(model, MaskedLM(MaskedLMConfig(evaluation_positions=1), TASK))
    assert (of.likelihood.kind, of.likelihood.samples) == ("pseudo", 1)
    for answer, one in zip(asked, score(of, asked), strict=True):
        nats, row = 0.0, answer.context + answer.tokens
        for place in range(len(answer.context), len(row)):
            shown = torch.tensor([[*row[:place], V.mask, *row[place + 1 :]]])
            nats += summed(model(shown).logits_BTV[0, place:], row[place : place + 1])[0]
        assert one.nats == pytest.approx(nats, rel=1e-5, abs=1e-6)
        hidden = torch.tensor([answer.context + [V.mask] * len(answer.tokens)])
        likeliest = model(hidden).logits_BTV[0, len(answer.context) :].argmax(-1).tolist()
        assert one.greedy == (likeliest == answer.tokens)


def test_the_bound_of_a_model_that_knows_the_joint_is_the_likelihood() -> None:
    joint = toys.Joint()
    model = joint.model()
    model.capabilities = Capabilities(bidirectional=True)
    model.max_length = joint.LENGTH  # the joint knows no padding
    asked = [ScoringRequest(context=[2, 1], tokens=[0, 2], noise=str(number)) for number in range(1500)]
    of = scorer(model, MaskedDiffusion(MaskedDiffusionConfig(), joint.task), samples=2, batch_size=500)
    found = score(of, asked)
    assert (of.likelihood.kind, of.likelihood.samples) == ("bound", 2)
    p = joint.probability[2, 1]
    nats_N = torch.tensor([one.nats for one in found], dtype=torch.float64)
    toys.assert_unbiased(nats_N, -math.log(p[0, 2] / p.sum()))
    # Draws are stratified, so the error that is stated as if they were not is no smaller than the real one.
    assert sum(one.variance for one in found) / len(found) > 0.9 * nats_N.var().item()


def test_the_bound_of_blocks_of_one_token_is_the_chain_rule() -> None:
    torch.manual_seed(0)
    config = BlockBackboneConfig(d_model=16, attention=AttentionConfig(num_heads=2), block_length=1)
    model = BlockBackbone(config, vocab_size=V.size, max_length=64).double()
    of = scorer(model, BlockDiffusion(BlockDiffusionConfig(block_length=1), TASK), samples=2)
    asked = answers(4)
    for answer, one in zip(asked, score(of, asked), strict=True):
        nats, row = 0.0, answer.context + answer.tokens
        for place in range(len(answer.context), len(row)):
            logits_V = model(torch.tensor([[*row[:place], V.mask]])).logits_BTV[0, -1:]
            logits_V[:, V.mask] = -torch.inf
            nats += summed(logits_V, row[place : place + 1])[0]
        assert one.nats == pytest.approx(nats, rel=1e-5, abs=1e-6)
        assert one.variance == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", ["masked_diffusion", "mamba_bidirectional", "encoder"])
def test_a_score_depends_on_its_own_noise_and_not_on_its_neighbours(name: str) -> None:
    model, asked = toys.build(name, V.size), answers(7)
    how = (
        MaskedLM(MaskedLMConfig(), TASK)
        if name == "encoder"
        else MaskedDiffusion(MaskedDiffusionConfig(), TASK)
    )
    together = score(scorer(model, how, batch_size=7), asked)
    alone = score(scorer(model, how, batch_size=1), asked[::-1])[::-1]
    for one, other in zip(together, alone, strict=True):
        assert one.nats == pytest.approx(other.nats, rel=1e-5, abs=1e-6)
        assert one.greedy == other.greedy
    renamed = [ScoringRequest(context=a.context, tokens=a.tokens, noise="else") for a in asked]
    changed = score(scorer(model, how, batch_size=7), renamed)
    drawn = [
        one.nats != pytest.approx(other.nats, rel=1e-5, abs=1e-6)
        for one, other in zip(together, changed, strict=True)
    ]
    assert any(drawn) == (name != "encoder")


def test_what_has_no_likelihood_of_text_or_does_not_fit_is_refused() -> None:
    model = toys.build("decoder", V.size)
    with pytest.raises(ConfigError, match="toy: it learned classes, not text"):
        scorer(model, SequenceClassification(SequenceClassificationConfig(), TASK))
    of = scorer(model, CausalLM(CausalLMConfig(), TASK))
    assert of.longest == 64
    full = ScoringRequest(context=[1] * 60, tokens=[1] * 4, noise="")
    assert score(of, [full])[0].nats > 0
    with pytest.raises(DataError, match="have 65 tokens, the model can be given 64"):
        score(of, [ScoringRequest(context=[1] * 61, tokens=[1] * 4, noise="")])
