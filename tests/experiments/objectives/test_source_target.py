import pytest
import torch

from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.objectives.source_target import cut_out, keep
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.task import Batch
from tests.experiments.objectives import toys

TEXT = "Thank you for inviting me to your party last week ."
WORDS = {word: i for i, word in enumerate(TEXT.split())}
VOCABULARY = Vocabulary(num_symbols=len(WORDS), num_sentinels=5)
X, Y, EOS, PAD = VOCABULARY.size - 1, VOCABULARY.size - 2, VOCABULARY.eos, VOCABULARY.pad


def sentence(text):
    return toys.whole(torch.tensor([[WORDS[word] for word in text.split()]]))


def words(text, **marks):
    return [marks.get(word, WORDS.get(word)) for word in text.split()]


def test_the_example_of_the_paper():
    """Raffel et al. 2020, figure 2. Their code has the end token where the figure has a last sentinel."""
    batch = sentence(TEXT)
    cut = torch.zeros(1, 11, dtype=torch.bool)
    cut[0, [2, 3, 8]] = True
    view = cut_out(batch, cut, VOCABULARY, marked_B=torch.tensor([True]), score_all=True)
    assert view.source_BS.tolist() == [words("Thank you X me to your party Y week . end", X=X, Y=Y, end=EOS)]
    assert view.target_BT.tolist() == [words("X for inviting Y last end", X=X, Y=Y, end=EOS)]
    assert view.tokens_BT.tolist() == [words("pad X for inviting Y last", X=X, Y=Y, pad=PAD)]
    assert view.weight_BT.tolist() == [[1.0] * 6]
    assert view.valid_BT is None
    assert view.source_valid_BS is None


def test_without_marks_and_ends_the_cut_tokens_are_the_target():
    batch = sentence("Thank you for inviting me")
    view = cut_out(batch, torch.arange(5)[None] >= 3, VOCABULARY, ends=False)
    assert view.source_BS.tolist() == [words("Thank you for")]
    assert view.target_BT.tolist() == [words("inviting me")]
    assert view.tokens_BT.tolist() == [words("pad inviting", pad=PAD)]


def test_rows_that_lose_unequally_many_tokens_are_padded_and_not_scored_there():
    batch = toys.padded_text([6, 4, 3], VOCABULARY)
    cut = torch.tensor([[0, 1, 1, 0, 0, 1], [0, 0, 0, 1, 1, 1], [0, 1, 0, 1, 1, 1]]).bool()
    marked = torch.tensor([True, False, True])
    view = cut_out(batch, cut, VOCABULARY, marked_B=marked, score_all=True)
    a, b, c = (row.tolist() for row in batch.tokens_BT)
    assert view.source_BS.tolist() == [
        [a[0], X, a[3], a[4], Y, EOS],
        [b[0], b[1], b[2], EOS, PAD, PAD],
        [c[0], X, c[2], EOS, PAD, PAD],
    ]
    assert view.target_BT.tolist() == [
        [X, a[1], a[2], Y, a[5], EOS],
        [b[3], EOS, PAD, PAD, PAD, PAD],
        [X, c[1], EOS, PAD, PAD, PAD],
    ]
    assert view.source_valid_BS.sum(1).tolist() == [6, 4, 4]
    assert view.valid_BT.sum(1).tolist() == view.count_B.tolist() == [6, 2, 3]
    assert torch.equal(view.weight_BT > 0, view.valid_BT)
    assert view.mean_lengths() == (4, 5)  # 11/3 and 14/3


def test_only_cut_answers_are_scored_and_the_decoder_reads_what_the_context_shows():
    tokens, context = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[1, 2, 0, 4, 0]])
    answer = torch.tensor([[False, False, True, False, True]])
    batch = Batch(tokens_BT=tokens, context_BT=context, answer_BT=answer, valid_BT=torch.ones_like(answer))
    view = cut_out(batch, torch.tensor([[False, False, True, True, True]]), VOCABULARY)
    assert view.target_BT.tolist() == [[3, 4, 5, EOS]]
    assert view.tokens_BT.tolist() == [[PAD, 0, 4, 0]]
    assert view.weight_BT.tolist() == [[1, 0, 1, 0]]


def test_a_mode_token_stands_first():
    view = cut_out(
        sentence("Thank you for"), torch.tensor([[False, True, False]]), VOCABULARY, modes_B=torch.tensor([X])
    )
    assert view.source_BS.tolist() == [[X, *words("Thank for"), EOS]]


def test_too_few_marks_and_an_empty_source_are_refused():
    batch, every_other = sentence("Thank you for inviting me"), torch.tensor([[0, 1, 0, 1, 0]]).bool()
    with pytest.raises(DataError, match=r"2 spans .* has 1 sentinels .* raise task.num_sentinels to 6"):
        cut_out(batch, every_other, VOCABULARY, marked_B=torch.tensor([True]), num_marks=1)
    with pytest.raises(DataError, match="no source to read"):
        cut_out(batch, torch.ones(1, 5, dtype=torch.bool), VOCABULARY, ends=False)


@pytest.mark.parametrize("seed", range(20))
def test_kept_entries_stay_in_order(seed):
    generator = torch.Generator().manual_seed(seed)
    rows, length = (int(torch.randint(1, 9, (), generator=generator)) for _ in range(2))
    x, mask = (
        torch.randint(9, (rows, length), generator=generator),
        torch.rand(rows, length, generator=generator) < 0.5,
    )
    kept = keep(x, mask, -1)
    expected = [row[chosen].tolist() for row, chosen in zip(x, mask, strict=True)]
    longest = max(map(len, expected))
    assert kept.tolist() == [row + [-1] * (longest - len(row)) for row in expected]
