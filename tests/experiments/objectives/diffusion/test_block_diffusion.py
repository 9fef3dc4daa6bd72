"""Block diffusion between its two ends: a left-to-right model and plain masked diffusion, same weights."""

import math

import pytest
import torch

from archbench.architectures.backbones.block_diffusion import BlockDiffusion as Model
from archbench.architectures.backbones.block_diffusion import BlockDiffusionConfig as ModelConfig
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.masked_diffusion import MaskedDiffusion as MaskedDiffusionBackbone
from archbench.architectures.backbones.masked_diffusion import (
    MaskedDiffusionConfig as MaskedDiffusionBackboneConfig,
)
from archbench.architectures.layers.attention.config import AttentionConfig, LatentConfig
from archbench.experiments.objectives.decoding.sampling import GREEDY, SamplingConfig
from archbench.experiments.objectives.diffusion.block_diffusion import BlockDiffusion, BlockDiffusionConfig
from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.experiments.objectives.diffusion.unmasking_schedule import UnmaskingConfig
from archbench.experiments.runtime.errors import ConfigError, DataError
from archbench.experiments.tasks.recall.mqar import Recall, RecallConfig
from tests.experiments.objectives import toys

TASK = toys.Symbols(20)
MASK = TASK.vocabulary.mask
ANY = SamplingConfig()
JOINT = toys.Joint()


def build(block_length, cls=Model, config=ModelConfig, **attention):
    torch.manual_seed(0)
    blocks = {"block_length": block_length} if cls is Model else {}
    settings = config(d_model=16, attention=AttentionConfig(num_heads=2, **attention), **blocks)
    model = cls(settings, vocab_size=TASK.vocabulary.size, max_length=64).double()
    with torch.no_grad():
        model.head.weight.mul_(5)
    return model


def objective(block_length, task=TASK, filling=None, steps=32, **settings):
    config = BlockDiffusionConfig(
        block_length=block_length,
        sampling_steps=steps,
        filling=UnmaskingConfig(**(filling or {})),
        **settings,
    )
    return BlockDiffusion(config, task)


class Oracle(toys.Rule):
    """A blockwise model that knows every conditional of a joint distribution."""

    def __init__(self, block_length):
        super().__init__(JOINT.task.vocabulary.size, JOINT.model().rule)
        self.length = block_length

    @property
    def block_length(self):
        return self.length

    def compute(self, inputs):
        tokens_BT, clean_BT = inputs.tokens_BT, inputs.clean_BT
        mask, T = JOINT.task.vocabulary.mask, tokens_BT.shape[1]
        logits = []
        for start in range(0, T, self.length):
            hidden = torch.full_like(tokens_BT[:, start + self.length :], mask)
            own_BL = tokens_BT[:, start : start + self.length]
            read_BT = torch.cat([clean_BT[:, :start], own_BL, hidden], 1)
            logits.append(self.rule(read_BT)[:, start : start + self.length])
        logits_BTV = torch.cat(logits, dim=1)
        return toys.Output(logits_BTV=logits_BTV, hidden_BTD=logits_BTV)


@pytest.mark.parametrize("estimator", ["fixed_count", "time"])
@pytest.mark.parametrize("block_length", [1, 2, 3, 4])
def test_with_the_true_conditionals_the_bound_is_the_likelihood(block_length, estimator):
    batch = toys.whole(JOINT.sequences_NT.repeat(20, 1))
    how = objective(block_length, JOINT.task, estimator=estimator, evaluation_samples=4)
    nats_BS = how.estimates(Oracle(block_length), batch, toys.generators(len(batch.tokens_BT)))
    if block_length == 1 and estimator == "fixed_count":
        torch.testing.assert_close(nats_BS, JOINT.nats_N.repeat(20)[:, None].expand(-1, 4))
    else:
        toys.assert_unbiased(nats_BS.mean(1), JOINT.nats_N.repeat(20))


@pytest.mark.parametrize("block_length", [2, 3])
def test_the_training_loss_has_the_same_mean(block_length):
    batch = toys.whole(JOINT.sequences_NT.repeat(10, 1))
    how, model, losses = objective(block_length, JOINT.task, min_time=1e-6), Oracle(block_length), []
    for seed in range(40):
        view = how.view(batch, torch.Generator().manual_seed(seed))
        total, count = how.loss(view.run(model), view)
        losses.append((total / count).double())
    toys.assert_unbiased(torch.stack(losses), JOINT.nats_N.mean() / 4)


def test_blocks_of_one_token_have_the_loss_of_a_causal_model_with_the_same_weights():
    """Each token is predicted at a mask that stands behind all tokens before it."""
    model, causal = build(1), build(1, Decoder, DecoderConfig)
    causal.load_state_dict(model.state_dict())
    batch = toys.random_text(3, 9, 20)
    nats_BT = []
    for place in range(9):
        shown = torch.cat([batch.tokens_BT[:, :place], torch.full((3, 1), MASK)], dim=1)
        logits_BV = causal(shown).logits_BTV[:, -1].float()
        logits_BV[:, MASK] = -torch.inf
        nats_BT.append(-logits_BV.log_softmax(-1).gather(-1, batch.tokens_BT[:, place : place + 1])[:, 0])
    expected_B = torch.stack(nats_BT, dim=1).sum(1)
    how = objective(1, evaluation_samples=1)
    score = how.likelihood_score(model, batch, toys.generators(3))
    torch.testing.assert_close(score.nats_B, expected_B.double(), rtol=1e-5, atol=1e-5)
    view = how.view(batch, torch.Generator().manual_seed(0))
    loss, count = how.loss(view.run(model), view)
    torch.testing.assert_close((loss / count).double(), expected_B.double().sum() / 27, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block_length", [9, 50])
def test_one_block_of_everything_is_plain_masked_diffusion(block_length):
    model, plain = build(block_length), build(9, MaskedDiffusionBackbone, MaskedDiffusionBackboneConfig)
    plain.load_state_dict(model.state_dict())
    batch = toys.padded_text([9, 4, 7], TASK.vocabulary)
    blocks, whole = objective(block_length), MaskedDiffusion(MaskedDiffusionConfig(), TASK)
    scores = [
        how.likelihood_score(net, batch, toys.generators(3)).nats_B
        for how, net in ((blocks, model), (whole, plain))
    ]
    torch.testing.assert_close(*scores, rtol=1e-6, atol=1e-6)
    views = [how.view(batch, torch.Generator().manual_seed(1)) for how in (blocks, whole)]
    losses = [
        how.loss(view.run(net), view)[0]
        for how, net, view in zip((blocks, whole), (model, plain), views, strict=True)
    ]
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("block_length", [1, 3, 4])
def test_a_noisy_block_sees_itself_and_the_clean_blocks_before(block_length):
    """By gradients, against the definition: block after block through the plain model."""
    model, T = build(block_length), 10
    noisy, clean = toys.random_text(2, T, 20, seed=1).tokens_BT, toys.random_text(2, T, 20).tokens_BT
    found = model(noisy, clean_BT=clean).logits_BTV
    plain = build(block_length)
    for start in range(0, T, block_length):
        end = min(start + block_length, T)
        read = torch.cat([clean[:, :start], noisy[:, start:end]], dim=1)
        torch.testing.assert_close(found[:, start:end], plain(read).logits_BTV[:, start:])
    changed = clean.clone()
    changed[:, T // 2 :] = (changed[:, T // 2 :] + 1) % 20
    same = T // 2 // block_length * block_length + block_length
    moved = model(noisy, clean_BT=changed).logits_BTV
    torch.testing.assert_close(moved[:, :same], found[:, :same])
    if same < T:
        assert (moved[:, same:] - found[:, same:]).abs().max() > 1e-3


WAYS = {
    "contiguous": {"num_kv_heads": 1},
    "paged": {"cache": "paged", "block_size": 3},
    "latent": {"latent": LatentConfig(kv_rank=8)},
}


@pytest.mark.parametrize("cache", WAYS)
def test_blocks_read_through_the_cache_are_those_of_the_whole_pass(cache):
    model = build(4, **WAYS[cache])
    clean, noisy = (toys.random_text(3, 16, 20, seed=seed).tokens_BT for seed in (0, 1))
    whole = model(noisy, clean_BT=clean).logits_BTV
    state = model.start(3, 16)
    for start in range(0, 16, 4):
        for _ in range(2):  # a second look finds the state as it was
            look = model.denoise(noisy[:, start : start + 4], state)
            torch.testing.assert_close(look, whole[:, start : start + 4])
        model.step(clean[:, start : start + 4], state)
        if start == 4:
            state.select([2, 0, 1])
            clean, noisy, whole = (x[[2, 0, 1]] for x in (clean, noisy, whole))
    assert state.lengths == [16, 16, 16]
    if cache != "paged":
        assert state.num_bytes() == 3 * model.state_bytes(16)
    # Prompts of different numbers of blocks, read at once.
    ragged = model.start(3, 16)
    valid = torch.arange(12) < torch.tensor([[12], [4], [8]])
    model.step(clean[:, :12], ragged, valid)
    look = model.denoise(noisy[:, :4], ragged)
    for row, read in enumerate((12, 4, 8)):
        alone = torch.cat([clean[row : row + 1, :read], noisy[row : row + 1, :4]], dim=1)
        torch.testing.assert_close(look[row], model(alone).logits_BTV[0, read:])


def test_the_cost_is_that_of_the_pairs_the_mask_allows():
    for length in (1, 7, 8, 13):
        model = build(4)
        block_T = torch.arange(length) // 4
        assert model.pairs(length) == (block_T[None] <= block_T[:, None]).sum()
        full = build(4, MaskedDiffusionBackbone, MaskedDiffusionBackboneConfig).sequence_flops(length)
        assert model.sequence_flops(length).linear == full.linear
        assert model.sequence_flops(length).attention * length**2 == full.attention * model.pairs(length)
    assert objective(4).view(toys.random_text(2, 8, 20), torch.Generator()).passes == 2


@pytest.mark.parametrize("method", ["confidence", "ancestral", "first_hitting"])
def test_samples_are_those_of_whole_passes_and_of_each_prompt_alone(method):
    """Greedily, block by block without a cache, against what is written through it; then in one batch."""
    model, prompts = build(4), [[1, 2, 3, 4, 5], [], [6, 7, 8, 9], [10] * 9, [3]]
    how = objective(4, filling={"method": method}, steps=12)

    def generate(rows, sampling, **more):
        own = [toys.generators(5)[row] for row in rows]
        given = [prompts[row] for row in rows]
        return how.sample(model, given, max_tokens=10, generators=own, sampling=sampling, **more)

    together = generate(range(5), ANY, stop={3})
    assert together == [generate([row], ANY, stop={3})[0] for row in range(5)]
    assert all(len(row) == 10 or row[-1] == 3 for row in together)
    assert all(token < 20 for row in together for token in row)


def test_greedy_one_by_one_is_the_definition():
    model, text = build(4), [5, 1, 2]
    how = objective(4, filling={"order": "low_confidence"}, steps=100)
    found = how.sample(model, [text], max_tokens=6, generators=toys.generators(1), sampling=GREEDY)[0]
    whole = list(text)
    while len(whole) < 12:  # blocks are filled to their end
        start = len(whole) // 4 * 4
        block = [*whole[start:], *[MASK] * (start + 4 - len(whole))]
        while MASK in block:
            logits_LV = model(torch.tensor([[*whole[:start], *block]])).logits_BTV[0, start:].float()
            logits_LV[:, 20:] = -torch.inf
            best_L, token_L = logits_LV.softmax(-1).max(-1)
            open_L = torch.tensor(block) == MASK
            place = int(best_L.masked_fill(~open_L, -1).argmax())
            block[place] = int(token_L[place])
        whole[start:] = block
    assert found == whole[3:9]


def test_times_differ_between_blocks_and_are_spread_over_all():
    view = objective(5, min_time=0.2).view(toys.random_text(64, 20, 20), torch.Generator().manual_seed(0))
    weight_BK = view.weight_BT.view(64, 4, 5).amax(-1)
    time_BK = 1 / weight_BK[weight_BK > 0].double()
    assert 0.2 <= time_BK.min() < 0.22
    assert time_BK.max() > 0.98
    assert ((weight_BK[:, 0] - weight_BK[:, 1]).abs() > 1e-3).float().mean() > 0.9
    # No block has times of its own: the means over rows agree.
    means_K = (view.tokens_BT == MASK).view(64, 4, 5).float().mean((0, 2))
    assert (means_K - 0.6).abs().max() < 0.15


def test_only_answers_are_masked_and_their_clean_copy_is_what_may_be_read():
    task = Recall(RecallConfig(sequence_length=32, num_pairs=4))
    batch = task.batch("train", 0, 0, 16)
    view = objective(4, task).view(batch, torch.Generator().manual_seed(0))
    masked_BT = view.tokens_BT == task.vocabulary.mask
    assert masked_BT.any()
    assert not (masked_BT & ~batch.answer_BT).any()
    assert torch.equal(view.clean_BT, batch.context_BT)


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match=r"objective\.block_length=4 and backbone.block_length=3"):
        objective(4).make_readout(build(3))
    assert objective(3).make_readout(build(3)) is None
    with pytest.raises(DataError, match="fills in no blanks"):
        objective(4).infill(build(4), [[MASK]])
    with pytest.raises(ValueError, match="block_length=0"):
        BlockDiffusionConfig(block_length=0)
    with pytest.raises(ValueError, match=r"filling\.guidance=0"):
        BlockDiffusionConfig(filling=UnmaskingConfig(guidance=1.0))
    with pytest.raises(ValueError, match="block diffusion has no windows"):
        ModelConfig(d_model=16, attention=AttentionConfig(window=4, layers=["local", "global"]))
    with pytest.raises(ValueError, match="shifted=false"):
        ModelConfig(d_model=16, shifted=True)
    assert math.isfinite(build(3)(torch.tensor([[1, 2]])).logits_BTV.sum().item())
