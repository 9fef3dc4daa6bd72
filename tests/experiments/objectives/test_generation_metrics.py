"""Answers with end tokens up to their room, and what is kept of written texts."""

import torch

from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.objectives.generation_metrics import (
    ended_answers,
    generated_examples,
    source_prompts,
)
from archbench.experiments.objectives.objective import Score
from archbench.experiments.tasks.task import Batch

VOCABULARY = Vocabulary(num_symbols=10, num_sentinels=0)
PAD, EOS = VOCABULARY.pad, VOCABULARY.eos


def pairs(rows, length):
    """Rows of (source, target): ``source eos target eos``, padded."""
    tokens_BT = torch.full((len(rows), length), PAD)
    answer_BT, valid_BT = (torch.zeros(len(rows), length, dtype=torch.bool) for _ in range(2))
    for row, (source, target) in enumerate(rows):
        parts = [*source, EOS, *target, EOS]
        tokens_BT[row, : len(parts)] = torch.tensor(parts)
        answer_BT[row, len(source) + 1 : len(parts)] = True
        valid_BT[row, : len(parts)] = True
    return Batch(
        tokens_BT=tokens_BT,
        context_BT=tokens_BT,
        answer_BT=answer_BT,
        valid_BT=valid_BT,
        bytes_BT=(valid_BT & (tokens_BT < 10)).long(),
        references=["a", "b"],
    )


def test_answers_are_followed_by_end_tokens_which_are_answers_too():
    batch = ended_answers(pairs([([1, 2], [3]), ([4], [5, 6])], 9), 4, VOCABULARY)
    assert batch.tokens_BT.tolist() == [[1, 2, EOS, 3, EOS, EOS, EOS], [4, EOS, 5, 6, EOS, EOS, PAD]]
    assert batch.answer_BT.int().tolist() == [[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 0]]
    assert batch.valid_BT.int().tolist() == [[1] * 7, [1] * 6 + [0]]
    assert batch.bytes_BT.tolist() == [[1, 1, 0, 1, 0, 0, 0], [1, 0, 1, 1, 0, 0, 0]]


def test_room_may_reach_beyond_the_batch_and_twice_is_once():
    once = ended_answers(pairs([([1, 2], [3])], 5), 6, VOCABULARY)
    assert once.tokens_BT.tolist() == [[1, 2, EOS, 3, *[EOS] * 5]]
    assert once.valid_BT.all()
    again = ended_answers(once, 6, VOCABULARY)
    assert torch.equal(again.tokens_BT, once.tokens_BT)
    assert torch.equal(again.answer_BT, once.answer_BT)


def test_sources_and_records():
    batch = pairs([([1, 2], [3]), ([4], [5, 6])], 9)
    assert source_prompts(batch) == [[1, 2], [4]]
    score = Score(nats_B=torch.tensor([1.0, 2.0]), bytes_B=torch.tensor([3.0, 4.0]))
    records = generated_examples(score, ["x", "y"], batch)
    assert [(r.nats, r.bytes, r.text, r.reference) for r in records] == [(1, 3, "x", "a"), (2, 4, "y", "b")]
