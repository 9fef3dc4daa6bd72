import pytest

from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.runtime.errors import DataError


def test_special_tokens_follow_the_symbols_and_none_shares_an_id():
    vocabulary = Vocabulary(num_symbols=256, num_sentinels=28)
    special = [vocabulary.pad, vocabulary.bos, vocabulary.eos, vocabulary.mask]
    sentinels = [vocabulary.sentinel(index) for index in range(28)]
    assert special == [256, 257, 258, 259]
    assert sentinels == list(range(287, 259, -1))
    assert vocabulary.size == 288
    assert sorted(special + sentinels) == list(range(256, 288))


@pytest.mark.parametrize("index", [-1, 3])
def test_a_sentinel_that_does_not_exist_is_refused(index):
    with pytest.raises(ValueError, match=f"sentinel {index} requested, 3 exist"):
        Vocabulary(num_symbols=10, num_sentinels=3).sentinel(index)


def test_a_mistake_in_the_data_is_a_value_error_with_its_own_exit_code():
    assert issubclass(DataError, ValueError)
    assert DataError.exit_code == 3
