"""Read YAML files: damaged, ambiguous or excessive content raises an error with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import yaml
from omegaconf._utils import get_yaml_loader

from archbench.experiments.runtime.errors import ConfigError, RunError

DEEPEST = 100
"""Levels of nesting at most. A configuration has about six."""
MOST_REPEATED = 10_000
"""Values that aliases repeat, at most: ten of ten of ten ... would take hours to go through."""
SURELY_FLAT = 4096
"""Length below which no text can be nested so deeply that libyaml crashes: a level needs one character."""
KINDS = ("map", "seq", "str", "int", "float", "bool", "null")
"""The types that a value may have."""


class _Loader(yaml.CSafeLoader):
    """A loader that parses numbers as OmegaConf does: 1e-3 is a number, and a date is text."""

    yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers
    yaml_constructors: ClassVar = {
        tag: yaml.CSafeLoader.yaml_constructors[tag]
        for tag in (*(f"tag:yaml.org,2002:{kind}" for kind in KINDS), None)
    }


def parse_yaml(text: str) -> Any:
    """Return the value of YAML text.

    Raises:
        ValueError: with line and column. It is no YAML, a mapping has a key twice, it is nested deeper than
            ``DEEPEST``, or its aliases repeat more than ``MOST_REPEATED`` values.
    """
    try:
        _check_nesting(text)
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        nodes: dict[int, tuple[int, int]] = {}
        values, levels = _check_node(loader, node, (), nodes)
        if levels > DEEPEST:
            raise ValueError("nested too deeply")
        if values > len(nodes) + MOST_REPEATED:
            raise ValueError(f"its aliases repeat {values - len(nodes):,} values; write them out")
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        raise ValueError(_in_words(error, text)) from None
    except yaml.YAMLError as error:
        raise ValueError(str(error).splitlines()[0]) from None


def _check_nesting(text: str) -> None:
    """Raise ValueError for text that is nested deeply, on which libyaml would end the process.

    It builds each level within the one above, on the stack, and does not look at how much of that is left.
    Its events, which are read here, are no deeper than each other.
    """
    if len(text) <= SURELY_FLAT:
        return
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise ValueError("nested too deeply")


def _check_node(
    loader: _Loader, node: yaml.Node, parents: tuple[int, ...], nodes: dict[int, tuple[int, int]]
) -> tuple[int, int]:
    """Count the values of a node, those of aliases at each use, and its levels.

    Args:
        loader: of the node.
        node: to check.
        parents: the nodes that contain it.
        nodes: the result for each node that was checked before; this one is added.
    """
    if id(node) in parents:
        raise _error("an alias is inside of what it repeats", node)
    if len(parents) > DEEPEST:
        raise _error("nested too deeply", node)
    if id(node) not in nodes:
        inside: list[yaml.Node] = [] if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(node, yaml.MappingNode):
            _check_keys(loader, node)
            inside = [child for pair in node.value for child in pair]
        elif isinstance(node, yaml.ScalarNode) and not node.tag.endswith(":merge"):
            _scalar(loader, node)
        counts = [_check_node(loader, child, (*parents, id(node)), nodes) for child in inside]
        values, levels = zip(*counts, strict=True) if counts else ((), (0,))
        nodes[id(node)] = 1 + sum(values), 1 + max(levels)
    return nodes[id(node)]


def _check_keys(loader: _Loader, node: yaml.MappingNode) -> None:
    """Raise for a mapping with a duplicate key, of which YAML loaders use the last."""
    keys = set()
    for key_node, _ in node.value:
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith(":null"):
            raise _error("a key must be text or a number", key_node)
        key = "<<" if key_node.tag.endswith(":merge") else _scalar(loader, key_node)
        if key in keys:
            raise _error(f"the key '{key}' is there twice", key_node)
        keys.add(key)


def _scalar(loader: _Loader, node: yaml.ScalarNode) -> Any:
    """Return text, a number, true, false or null."""
    try:
        return loader.construct_object(node)
    except (ValueError, KeyError):  # !!int x, or more digits than Python reads
        raise _error(f"'{node.value[:40]}' is no {node.tag.rpartition(':')[2]}", node) from None


def _error(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _in_words(error: yaml.MarkedYAMLError, text: str) -> str:
    """Return line, column and reason of an error of the reader of YAML."""
    mark = error.problem_mark or error.context_mark
    line = text.splitlines()[mark.line] if mark.line < len(text.splitlines()) else ""
    tab = ": indent by spaces, not by tabs" if "\t" in line[: mark.column + 1] else ""
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem or error.context}{tab}"


def read_yaml(path: Path, remedy: str = "correct it", error: type[RunError] = ConfigError) -> dict[str, Any]:
    """Return a YAML file as plain values; an empty file has none.

    Args:
        path: of the file.
        remedy: what a person can do about a damaged file.
        error: the class of the exception.

    Raises:
        RunError: the file is missing, unreadable, not a mapping, or rejected by ``parse_yaml``.
    """
    try:
        values = parse_yaml(path.read_text(encoding="utf-8-sig"))  # a byte-order mark is no text
    except (OSError, ValueError) as problem:
        raise error(f"{path}: cannot be read ({problem}): {remedy}") from problem
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise error(f"{path}: cannot be read (it has no sections): {remedy}")
    return {str(key): value for key, value in values.items()}
