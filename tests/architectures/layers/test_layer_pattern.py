import pytest

from archbench.architectures.layers.layer_pattern import (
    check_pattern,
    compress_pattern,
    expand_pattern,
    format_pattern,
    layer_type,
    pattern_types,
    unbuilt_types,
)

TYPES = ["attention", "mamba", "mamba2"]


@pytest.mark.parametrize(
    ("pattern", "count", "expected"),
    [
        (["mamba", "s4", "mamba*2"], 6, "mamba s4 mamba mamba mamba s4"),
        (["mamba*7", "s4"], 9, "mamba mamba mamba mamba mamba mamba mamba s4 mamba"),
        (["mamba*2", "attention+mamba2"], 5, "mamba mamba attention+mamba2 mamba mamba"),
        (["mamba*12"], 3, "mamba mamba mamba"),
        (["attention+mamba2*2", "s4"], 4, "attention+mamba2 attention+mamba2 s4 attention+mamba2"),
    ],
)
def test_a_pattern_repeats_over_the_layers(pattern: list[str], count: int, expected: str) -> None:
    assert expand_pattern(pattern, count) == expected.split()
    assert [layer_type(pattern, layer) for layer in range(count)] == expected.split()


def test_equal_neighbours_are_counted() -> None:
    layers = ["mamba", "mamba*2", "attention+mamba2", "mamba"]
    assert compress_pattern(layers) == ["mamba*3", "attention+mamba2", "mamba"]
    assert expand_pattern(compress_pattern(layers), 5) == expand_pattern(layers, 5)
    assert pattern_types(layers) == {"attention", "mamba", "mamba2"}
    assert format_pattern(compress_pattern(layers)) == "[mamba*3,attention+mamba2,mamba]"


def test_types_beyond_the_depth_are_not_built() -> None:
    assert unbuilt_types(["mamba*3", "attention+s4"], 3) == {"attention", "s4"}
    assert unbuilt_types(["mamba*3", "attention+s4"], 4) == set()


@pytest.mark.parametrize("pattern", [[], "", "mamba", ()])
def test_a_pattern_is_a_list(pattern: list[str]) -> None:
    with pytest.raises(ValueError, match=r"layers=.* must be a list of layer types, such as \[attention, "):
        check_pattern("layers", pattern, TYPES)


@pytest.mark.parametrize("item", ["mamba*", "mamba*0", "2*mamba", "mamba+", "+mamba", "", "MAMM", "mamba s4"])
def test_what_is_no_layer_type_is_refused(item: str) -> None:
    with pytest.raises(ValueError, match=r"backbone layers: '.*' is not one of attention, mamba, mamba2"):
        check_pattern("backbone layers", ["mamba", item], TYPES, parallel=True)


def test_the_nearest_name_is_suggested() -> None:
    check_pattern("layers", ["mamba*3", "attention+mamba2"], TYPES, parallel=True)
    with pytest.raises(ValueError, match=r"layers: 'atention' is not one of .*; did you mean 'attention'\?"):
        check_pattern("layers", ["mamba", "mamba+atention*2"], TYPES, parallel=True)


def test_only_mixers_are_joined() -> None:
    with pytest.raises(ValueError, match=r"feedforwards: 'mamba\+attention' joins layer types by \+"):
        check_pattern("feedforwards", ["mamba+attention"], TYPES)
