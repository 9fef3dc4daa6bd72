import pytest

from architectures.causality import first_leak
from tests.experiments.objectives import toys


@pytest.mark.parametrize("name", ["decoder", "mamba"])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_a_causal_model_has_no_leak(name: str, length: int) -> None:
    model = toys.build(name, 20).train()
    assert first_leak(model, length) is None
    assert model.training


@pytest.mark.parametrize("length", [2, 9])
def test_a_bidirectional_model_reads_later_tokens_from_the_first_position(length: int) -> None:
    assert first_leak(toys.build("encoder", 20), length) == 0
