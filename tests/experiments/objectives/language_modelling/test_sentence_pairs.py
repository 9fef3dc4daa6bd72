import math
from dataclasses import replace

import pytest
import torch

from archbench.experiments.objectives.language_modelling.masked_lm import MaskedLM, MaskedLMConfig
from archbench.experiments.objectives.language_modelling.sentence_pairs import (
    SentencePairs,
    SentencePairsConfig,
)
from archbench.experiments.tasks.recall.mqar import Recall
from archbench.experiments.tasks.task import Task
from archbench.experiments.tasks.text.text import Text
from tests.experiments.objectives import toys

WINDOWS, LENGTH = 50, 24


class Numbered(toys.Symbols):
    """Text whose tokens tell their window and their place: 24 places for each of 50 windows and 3 splits."""

    SPLITS = ("train", "validation", "test")

    def batch(self, split, seed, start, count):
        base = self.SPLITS.index(split) * WINDOWS * LENGTH
        index_B1 = torch.arange(start, start + count)[:, None] % WINDOWS
        batch = toys.whole(base + index_B1 * LENGTH + torch.arange(LENGTH))
        return replace(batch, split=split)

    def num_examples(self, split):
        return WINDOWS


TASK = Numbered(3 * WINDOWS * LENGTH)
V = TASK.vocabulary


def objective(**settings):
    return SentencePairs(SentencePairsConfig(**settings), TASK)


def generators(count, seed=0):
    return toys.generators(count, seed)


def parts(pairs, row):
    """The two texts of a pair, checked to be framed as in BERT."""
    valid, tokens = pairs.valid_BT[row], pairs.tokens_BT[row].tolist()
    length = int(valid.sum())
    end = tokens.index(V.eos)
    assert tokens[0] == V.bos
    assert tokens[length - 1] == V.eos
    assert tokens[length:] == [V.pad] * (len(tokens) - length)
    first, second = tokens[1:end], tokens[end + 1 : length - 1]
    assert pairs.segments_BT[row, :length].tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    return first, second


def test_in_order_or_exchanged():
    batch = TASK.batch("train", 0, 0, WINDOWS)
    pairs, changed = objective(question="order").pairs(batch, generators(WINDOWS))
    lengths = set()
    for row in range(WINDOWS):
        first, second = parts(pairs, row)
        window = batch.tokens_BT[row].tolist()
        assert (second + first if changed[row] else first + second) == window
        lengths.add(len(second) if changed[row] else len(first))
    assert min(lengths) >= LENGTH // 4
    assert max(lengths) < LENGTH // 4 + LENGTH // 2
    assert len(lengths) > 6


@pytest.mark.parametrize("split", ["train", "test"])
def test_what_does_not_follow_is_from_another_window_of_the_same_split(split):
    batch = TASK.batch(split, 0, 0, WINDOWS)
    pairs, changed = objective(question="next").pairs(batch, generators(WINDOWS))
    base = TASK.SPLITS.index(split) * WINDOWS * LENGTH
    others = set()
    for row in range(WINDOWS):
        first, second = parts(pairs, row)
        window = batch.tokens_BT[row].tolist()
        assert first == window[: len(first)]
        if not changed[row]:
            assert first + second == window
            continue
        other = {(token - base) // LENGTH for token in second}
        assert len(other) == 1
        assert other != {row}
        assert min(other) >= 0
        assert max(other) < WINDOWS
        assert [token % LENGTH for token in second] == list(range(len(first), LENGTH))
        others |= other
    assert len(others) > 10


@pytest.mark.parametrize("question", ["order", "next"])
def test_half_of_the_pairs_are_changed_and_the_rest_of_the_batch_does_not_matter(question):
    pairing = objective(question=question)
    batch = TASK.batch("test", 0, 0, WINDOWS)
    many = [pairing.pairs(batch, generators(WINDOWS, seed))[1] for seed in range(20)]
    assert abs(torch.stack(many).float().mean() - 0.5) < 4 * 0.5 / math.sqrt(20 * WINDOWS)
    together, changed = pairing.pairs(batch, generators(WINDOWS))
    for row in (0, 17, 49):
        alone, label = pairing.pairs(TASK.batch("test", 0, row, 1), [generators(WINDOWS)[row]])
        assert torch.equal(alone.tokens_BT[0], together.tokens_BT[row])
        assert label[0] == changed[row]
    for share in (0.0, 1.0):
        fixed = objective(question=question, changed_fraction=share).pairs(batch, generators(WINDOWS))[1]
        assert (fixed == share).all()


def test_only_symbols_are_masked():
    batch = TASK.batch("train", 0, 0, WINDOWS)
    view = objective(mask_probability=0.5).view(batch, torch.Generator().manual_seed(0))
    chosen = view.weight_BT > 0
    assert (view.count_B == LENGTH / 2).all()
    assert (view.target_BT[chosen] < V.num_symbols).all()
    special = view.target_BT >= V.num_symbols
    assert torch.equal(view.tokens_BT[special], view.target_BT[special])
    assert ((view.tokens_BT == V.bos).sum(1) == 1).all()
    assert ((view.tokens_BT == V.eos).sum(1) == 2).all()


def padded_batch():
    """Windows of different lengths."""
    batch = TASK.batch("train", 0, 0, 6)
    valid_BT = torch.arange(LENGTH) < torch.tensor([24, 9, 16, 4, 20, 12])[:, None]
    return replace(
        batch,
        tokens_BT=batch.tokens_BT.masked_fill(~valid_BT, V.pad),
        valid_BT=valid_BT,
        bytes_BT=valid_BT.long(),
    )


def test_padded_windows_are_cut_within_what_is_real():
    batch = padded_batch()
    pairs, changed = objective().pairs(batch, generators(6))
    for row in range(6):
        first, second = parts(pairs, row)
        window = batch.tokens_BT[row][batch.valid_BT[row]].tolist()
        assert (second + first if changed[row] else first + second) == window
        assert first
        assert second


def model(pairing):
    found = toys.build("encoder", V.size)
    found.attach_readout(pairing.make_readout(found).double())
    return found


def test_the_loss_is_a_mean_over_masked_tokens_plus_a_mean_over_pairs_whatever_the_micro_batches():
    pairing = objective(mask_probability=0.4, pair_weight=3.0)
    encoder = model(pairing)
    view = pairing.view(padded_batch(), torch.Generator().manual_seed(1))
    assert len(set(view.count_B.tolist())) > 3

    def total(bounds):
        value = 0.0
        for start, stop in bounds:
            part = view.rows(start, stop)
            output = part.run(encoder)
            value += pairing.loss(output, part)[0] / view.count_B.sum()
            value += sum(pairing.auxiliary(output, part).values()) / 6
        return value

    output = view.run(encoder)
    tokens = output.logits_BTV.log_softmax(-1).gather(-1, view.target_BT[..., None])[..., 0]
    masked = -(tokens * view.weight_BT).sum() / view.weight_BT.sum()
    pair = -output.readout.log_softmax(-1)[torch.arange(6), view.label_B].mean()
    torch.testing.assert_close(total([(0, 6)]).double(), masked + 3 * pair, rtol=1e-5, atol=0)
    torch.testing.assert_close(total([(0, 1), (1, 4), (4, 6)]), total([(0, 6)]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("question", ["order", "next"])
def test_the_question_is_learned(question):
    """Sixteen pairs are learned by heart, so gradients reach the answer from the texts."""
    pairing = objective(question=question)
    encoder = model(pairing).float()
    view = pairing.view(TASK.batch("train", 0, 0, 16), torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        loss = pairing.auxiliary(view.run(encoder), view)["pair"] / 16
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 0.5
    assert losses[-1] < 0.05


def test_segments_reach_a_backbone_that_has_a_table_of_them():
    from archbench.architectures.backbones.encoder import Encoder, EncoderConfig
    from archbench.architectures.layers.embedding import EmbeddingConfig

    pairing = objective()
    view = pairing.view(TASK.batch("train", 0, 0, 4), torch.Generator().manual_seed(0))
    plain = toys.build("encoder", V.size)
    assert not plain.takes_segments
    torch.testing.assert_close(
        view.run(plain).logits_BTV, replace(view, segments_BT=None).run(plain).logits_BTV
    )
    config = EncoderConfig(d_model=16, embedding=EmbeddingConfig(num_segments=2))
    with_table = Encoder(config, vocab_size=V.size, max_length=64)
    assert with_table.takes_segments
    apart = view.run(with_table).logits_BTV - replace(view, segments_BT=None).run(with_table).logits_BTV
    assert apart.abs().max() > 1e-3


def test_evaluation_scores_the_text_unchanged_and_asks_about_the_pair():
    pairing = objective(evaluation_positions=None, question="next")
    encoder = model(pairing).eval()
    batch = TASK.batch("test", 0, 0, 8)
    score = pairing.evaluate(encoder, batch, generators(8))
    plain = MaskedLM(MaskedLMConfig(evaluation_positions=None), TASK)
    halves = [(row[: LENGTH // 2], row[LENGTH // 2 :]) for row in batch.tokens_BT]
    framed = torch.stack(
        [
            torch.cat([torch.tensor([V.bos]), a, torch.tensor([V.eos]), b, torch.tensor([V.eos])])
            for a, b in halves
        ]
    )
    expected = plain.likelihood_score(encoder, toys.whole(framed), generators(8))
    torch.testing.assert_close(score.nats_B, expected.nats_B, rtol=1e-5, atol=0)
    assert score.bytes_B.tolist() == [LENGTH] * 8
    again = torch.cat(
        [
            pairing.evaluate(encoder, TASK.batch("test", 0, row, 1), [generators(8)[row]]).nats_B
            for row in range(8)
        ]
    )
    torch.testing.assert_close(score.nats_B, again, rtol=1e-5, atol=0)
    perplexity, right = pairing.summarise(score.records, "test")
    assert perplexity.value == pytest.approx(math.exp(score.nats_B.sum().item() / (8 * LENGTH)))
    _, changed = pairing.pairs(batch, generators(8))
    assert [answer[0] for _, answer in score.records] == changed.tolist()
    share = sum(label == guess for _, (label, guess) in score.records) / 8
    assert (right.name, right.value, right.likelihood) == ("pair_accuracy", share, None)


def test_it_takes_text_only():
    assert SentencePairs.incompatibility(Text) is None
    assert "text" in SentencePairs.incompatibility(Recall)
    assert "text" in SentencePairs.incompatibility(Task)


@pytest.mark.parametrize(
    "settings",
    [{"question": "nexxt"}, {"changed_fraction": 1.5}, {"pair_weight": -1.0}, {"mask_probability": 0.0}],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        SentencePairsConfig(**settings)
