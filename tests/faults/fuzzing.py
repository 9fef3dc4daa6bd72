"""Random configurations around the schema, and what may become of them: a plan, or one clear refusal."""

from __future__ import annotations

import copy
import functools
import random
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, ListConfig, OmegaConf

from archbench.experiments.config import CONF
from archbench.experiments.config.hydra_app import HydraException, OmegaConfBaseException, explain
from archbench.experiments.config.sections import read_sections
from archbench.experiments.config.structured import SWITCHES
from archbench.experiments.run.plan import check_run, plan
from archbench.experiments.run.settings import read_settings
from archbench.experiments.runtime.errors import RunError
from tests.experiments import commands

GROUPS = ("backbone", "task", "objective", "scale", "budget", "device", "optimizer.schedule")
HANG = 20
"""Seconds of work after which a case counts as hanging."""
BUSY = 6
"""How many times as long it may take where other processes have the processor."""

TASKS = (
    "recall", "text", "induction", "selective_copying", "compression", "a5", "parity", "listops_nano",
    "phone_book", "images", "sentences", "pairs", "tags", "bucket_sort", "fuzzy_recall",
)  # fmt: skip
"""Tasks that are made here: none that reads files nobody has."""
OBJECTIVES = tuple(sorted(path.stem for path in (CONF / "objective").glob("*.yaml")))

PAIRS = (
    ("backbone=decoder", "task=recall"),
    ("backbone=mamba", "task=induction"),
    ("backbone=s4", "task=selective_copying"),
    ("backbone=moe_deepseek", "task=compression"),
    ("backbone=hybrid", "task=a5"),
    ("backbone=encoder", "task=parity"),
    ("backbone=encoder_decoder", "task=phone_book"),
    ("backbone=masked_diffusion", "task=listops_nano"),
    ("backbone=gated_deltanet", "task=fuzzy_recall"),
    ("backbone=decoder", "task=text", "optimizer.schedule=wsd"),
    ("backbone=block_diffusion", "task=bucket_sort"),
    ("backbone=mamba2", "task=copying"),
)
"""Combinations that can meet, from which one or two settings are changed."""

VALUES = (
    "0", "-1", "1", "2", "3", "7", "64", "100000", "1000000000", "2147483648", "9223372036854775808",
    "1e6", "1M", "1_000", "0x10", "007", "0.5", "1.5", "-0.5", "1e-300", "1e300", "0.1", "2.0", "nan", "inf",
    "null", "true", "false", "yes", "''", "abc", "auto", "[]", "[1]", "[1,2]", "[a]", "[[1]]", "{}", "{a:1}",
    "'1'", "' '", "'a b'", "é", "../x", "-rf", "/", "x" * 300, "'\\n'", "'='", "${seed}", "cpu", "fp32",
    "none",
)  # fmt: skip
"""Values of every kind: edges of ranges, other types, other notations, and text in disguise."""

KEPT = (
    "runs", "tracking.mode", "task.source", "task.tokenizer", "task.column", "task.cache_dir",
    "task.train_split", "task.validation_split", "task.test_split", "task.revision", "task.dataset", "names",
    "study.stored", "study.tuned", "init_from", "continue_from",
)  # fmt: skip
"""Settings that lead out of a test, or are the harness's own."""


@functools.cache
def base(words: tuple[str, ...]) -> DictConfig:
    """Return the configuration that others are made of by changing settings."""
    return commands.compose(*words)


def composed(words: tuple[str, ...]) -> DictConfig:
    """Return what words compose to; words that change settings are applied as Hydra does it."""
    groups = tuple(word for word in words if word.partition("=")[0] in GROUPS)
    changes = [word for word in words if word not in groups]
    cfg = copy.deepcopy(base(groups))
    for override in OverridesParser.create().parse_overrides(changes):
        key = override.key_or_group
        try:
            if (CONF / key).is_dir():
                raise ConfigCompositionException(f"Could not find '{key}/{override.value()}'")
            OmegaConf.update(cfg, key, override.value(), merge=True)
        except OmegaConfBaseException as error:
            raise ConfigCompositionException(f"Could not override '{key}'.") from error
    return cfg


@functools.cache
def leaves(words: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings of a configuration by dotted key."""
    return dict(_flat(OmegaConf.to_container(base(words), resolve=False), ""))


def _flat(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat(inner, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, value


def random_words(rng: random.Random) -> tuple[str, ...]:
    """Return the words of a random command: a combination, and up to three settings that are off."""
    words = ["budget=smoke", "device=cpu"]
    if rng.random() < 0.1:  # any pair, most of which cannot meet
        words += [
            f"backbone={rng.choice(commands.BACKBONES)}",
            f"task={rng.choice(TASKS)}",
            f"objective={rng.choice(OBJECTIVES)}",
            f"scale={rng.choice(('nano', 'micro', 'given', '1_3b'))}",
        ]
        return tuple(words)
    words += rng.choice(PAIRS)
    known = leaves(tuple(words))
    keys = [key for key in known if not key.startswith(KEPT) and not key.endswith("_target_")]
    for _ in range(rng.choice((1, 1, 2))):
        key = rng.choice(keys)
        words.append(f"{_mistyped(key, rng)}={_value(known[key], rng)}")
    return tuple(words)


def _mistyped(key: str, rng: random.Random) -> str:
    if rng.random() > 0.05:
        return key
    place = rng.randrange(len(key))
    return key[:place] + key[place + 1 :] if key[place] != "." and len(key) > 1 else key + "x"


def _value(known: Any, rng: random.Random) -> str:
    near = isinstance(known, int | float) and not isinstance(known, bool) and rng.random() < 0.6
    if near:
        factor = rng.choice((0, -1, 0.5, 2, 3, 10, 1000, 10**6))
        return str(type(known)(known * factor))
    return rng.choice(VALUES)


class HangError(Exception):
    """A case hangs."""


@contextmanager
def time_limit(seconds: float = HANG, wall: float | None = None) -> Iterator[None]:
    """Raise HangError in what works for more than ``seconds``, or takes more than ``wall``.

    Args:
        seconds: of the processor, so that a busy machine makes nothing hang.
        wall: seconds by the clock; None takes ``BUSY`` times ``seconds``.
    """
    limits = {
        signal.SIGPROF: (signal.ITIMER_PROF, seconds),
        signal.SIGALRM: (signal.ITIMER_REAL, BUSY * seconds if wall is None else wall),
    }

    def stop(number: int, frame: Any) -> None:
        raise HangError(f"more than {limits[signal.Signals(number)][1]} s")

    before = {number: signal.signal(number, stop) for number in limits}
    for timer, limit in limits.values():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for timer, _ in limits.values():
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def outcome(words: tuple[str, ...], compose: Callable[[tuple[str, ...]], DictConfig] = composed) -> str:
    """Return what becomes of words: ``planned``, or the exit code of a refusal.

    Raises AssertionError where it is neither, or a setting is another than was typed.
    """
    before = sys.argv
    sys.argv = ["train", *words]
    try:
        with time_limit():
            cfg = compose(words)
            chosen = read_settings(read_sections(cfg))
            planned = plan(chosen)
            check_run(chosen, planned.matched.config, planned.cost, planned.sizes.vocab_size)
    except RunError as error:
        _check_message(words, str(error))
        return str(error.exit_code)
    except (HydraException, OmegaConfBaseException) as error:
        _check_message(words, explain(error))
        return "2"
    except BaseException as error:
        raise AssertionError(f"{' '.join(words)}: {type(error).__name__}: {error}") from error
    finally:
        sys.argv = before
    for word in words:
        key = word.partition("=")[0]
        if ("." in key or key == "seed") and not key.startswith("scale.targets"):
            typed = _plain(OmegaConf.select(cfg, key))
            kept = _plain(OmegaConf.select(OmegaConf.create(chosen.resolved), key))
            assert kept == typed, f"{' '.join(words)}: {key} became {kept}"
            section, _, name = key.partition(".")
            owner = getattr(chosen, section, None)
            final = _plain(getattr(owner, name)) if hasattr(owner, name) else kept
            same = final in (kept, "None") or kept.lower() in {_plain(word) for word in SWITCHES}
            assert same, f"{' '.join(words)}: {key} became {final}"
    return "planned"


def _plain(value: Any) -> str:
    """Return a value as text in which ``1``, ``'1'``, ``007`` and ``7.0`` are numbers, in lists too."""
    if isinstance(value, list | tuple | ListConfig):
        return str([_plain(each) for each in value])
    text = str(value).replace("'", "")
    try:
        return str(float(text))
    except ValueError:
        return text


def _check_message(words: tuple[str, ...], message: str) -> None:
    assert "Traceback" not in message, f"{' '.join(words)}: {message}"
    assert message.strip(), f"{' '.join(words)}: refused without a word"
    assert not re.search(r"object at 0x", message), f"{' '.join(words)}: {message}"
