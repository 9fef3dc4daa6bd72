"""What is said about words that Hydra does not take: one line, with the name or the value to type instead."""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Iterator, Sequence

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from architectures.nearest_name import nearest_name
from experiments.config.command_line import refuse_other_words
from experiments.config.folder import CONF
from experiments.config.structured import whole_number_hint
from experiments.runtime.errors import ConfigError, nearest
from experiments.runtime.synonyms import KEYS, SYNONYMS

MEANINGS = {
    "budget.tokens": "training tokens in all: steps x sequences x their length",
    "budget.micro_batch_size": "sequences of each forward pass; budget.batch_size stays as it is",
    "optimizer.betas": "both, as [0.9,0.95]",
    "optimizer.min_lr_ratio": "as a share of the peak",
    "optimizer.warmup_fraction": "as a share of the steps",
    "continue_from": "a run that was interrupted continues by the same command",
}
"""What our key holds, where it is not what the other program's does."""

EXTRAS = {
    ("hydra/sweeper", "optuna"): "optuna",
    ("hydra/launcher", "submitit_slurm"): "slurm",
    ("hydra/launcher", "submitit_local"): "slurm",
}
"""Options that a package of an extra brings."""

DEEPEST, LONGEST_NUMBER = 40, 400
"""Brackets inside brackets, and digits, above which a word is no setting but a mistake."""


def refuse_unreadable(words: Sequence[str]) -> None:
    """Refuse words whose reading would exhaust Python's stack, or its longest number. Raises ConfigError."""
    for word in words:
        key, _, value = word.partition("=")
        plain = re.sub(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", "", value)
        depth = deepest = 0
        for letter in plain:
            depth += (letter in "[{(") - (letter in ")}]")
            deepest = max(deepest, depth)
        if deepest > DEEPEST:
            raise ConfigError(
                f"{key}: nested {deepest} brackets deep, no setting is; at most {DEEPEST} are read"
            )
        if re.search(rf"\d{{{LONGEST_NUMBER}}}", plain):
            raise ConfigError(f"{key}: a number of more than {LONGEST_NUMBER} digits is no setting")


def explain(error: Exception, config_name: str = "config") -> str:
    """Hydra's message in one line, with the nearest valid name where one was mistyped."""
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    text = "\n".join(str(e) for e in chain)
    if found := re.search(r"Could not find '([\w/]+)/([^']*)'", text):
        return _unknown_option(found[1], found[2], text)
    if found := re.search(r"Could not override '([^']+)'", text):
        return _unknown_key(found[1], config_name)
    if found := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '([^']+)'", text):
        key, cfg = found[1].partition("=")[0].strip(), _composed(config_name)
        if cfg and re.fullmatch(r"\w+", key) and key not in _dotted(cfg) and not (CONF / key).is_dir():
            return _unknown_key(key, config_name)
        return f"{found[1]}: several values are the runs of a sweep: add -m; a list is written in brackets"
    if isinstance(error, OverrideParseException) and "=" in error.override:
        return _no_word(error)
    if isinstance(chain[-1], OmegaConfBaseException):  # names key, value and type
        said = str(chain[-1]).splitlines()[0]
        wrong = re.search(r"Value '(.*)' of.* converted to Integer", said)
        key = chain[-1].full_key or ""
        return f"{key}: {said}{whole_number_hint(key, wrong[1]) if wrong else ''}"
    return " ".join(line.strip() for line in str(error).strip().splitlines() if line.strip())


def _no_word(error: OverrideParseException) -> str:
    """Return what is wrong with a word that is none of Hydra's grammar, and how its value is quoted."""
    key, _, value = error.override.partition("=")
    reason = " ".join(line for line in str(error).splitlines() if not line.startswith("See ")).strip()
    said = f"{error.override}: cannot be read ({reason})"
    if not re.fullmatch(r"[\w./@+~-]+", key) or re.search(r"['\"\\]", value):
        return said
    if value.startswith("~"):
        return f"{said}; write $HOME instead of ~"
    return f"{said}; to give the value as text, quote it twice: '{key}=\"{value}\"'"


def unmatched(words: Sequence[str], loader: ConfigLoader) -> str | None:
    """Return what is wrong with a glob of a sweep one of whose patterns matches no YAML file; else None."""
    globs = [word for word in words if re.search(r"=\s*glob\(", word)]
    for override in OverridesParser.create(config_loader=loader).parse_overrides(globs):
        glob, group = override.value(), override.key_or_group
        assert isinstance(glob, Glob)
        names = loader.get_group_options(group)
        for pattern in (*glob.include, *glob.exclude):
            if not fnmatch.filter(names, pattern):
                hint = nearest(pattern, names)
                return f"{override.input_line}: '{pattern}' matches no YAML file of {group}{hint}"
    return None


def _unknown_option(group: str, option: str, text: str) -> str:
    listed = text.split(f"options in '{group}':", 1)[-1].splitlines()
    options = {line.strip() for line in listed if re.fullmatch(r"\s*[\w.-]+\s*", line)}
    if (extra := EXTRAS.get((group, option))) is not None:
        return f"{group}={option}: its package is not installed: pip install 'archbench[{extra}]'"
    if not option:
        return f"{group}= is empty{nearest('', options)}"
    files = (path.relative_to(CONF / group) for path in (CONF / group).rglob("*.yaml"))
    options |= {path.with_suffix("").as_posix() for path in files if path.parts[0] != "parts"}
    named = f" (a study of your own is named by study.name={option})" if group == "study" else ""
    return f"{group}={option}: there is no conf/{group}/{option}.yaml{named}{nearest(option, options)}"


def no_option(words: Sequence[str]) -> str | None:
    """Return what is wrong with a word that chooses null, a number or a truth value of a group; else None."""
    for word in words:
        group, _, value = word.partition("=")
        if re.fullmatch(r"(?i)null|true|false|[\d.]+", value) and (CONF / group).is_dir():
            return _unknown_option(group, value, "")
    return None


def _unknown_key(key: str, config_name: str) -> str:
    parent, _, leaf = key.rpartition(".")
    cfg = _composed(config_name)
    node = OmegaConf.select(cfg, parent) if parent else cfg
    beside = [str(name) for name in node] if isinstance(node, DictConfig) else []
    if leaf in ("name", "kind", "type") and parent and (CONF / parent).is_dir():
        return f"{key}: there is no such key; did you mean '{parent}'?"
    meant = _keys_of_leaf(leaf, cfg)
    if not meant and nearest_name(leaf, beside, SYNONYMS) is None:
        leaves = {other.rpartition(".")[2] for other in _dotted(cfg)}
        meant = _keys_of_leaf(nearest_name(leaf, leaves, SYNONYMS) or "", cfg)
    if not meant:
        return f"{key}: there is no such key{nearest(leaf, beside)}"
    meaning = f" ({MEANINGS[meant[0]]})" if meant[0] in MEANINGS else ""
    return f"{key}: there is no such key; did you mean {' or '.join(map(repr, meant[:4]))}?{meaning}"


def _keys_of_leaf(leaf: str, cfg: DictConfig) -> list[str]:
    """Return our dotted key for another program's name, else the dotted keys whose last part is ``leaf``."""
    keys = sorted(_dotted(cfg))
    ours = [key for key in keys if leaf.lower() in KEYS.get(key, ())]
    return ours or [key for key in keys if key.rpartition(".")[2] == leaf]


def refuse_other_words_of(words: Sequence[str], config_name: str) -> None:
    """Refuse words of a command that Hydra reads which are neither KEY=VALUE nor an option of Hydra.

    Raises ConfigError with what to write instead.
    """
    actions = get_args_parser()._option_string_actions
    refuse_other_words(
        words,
        options=actions,
        with_value=[name for name, action in actions.items() if action.nargs != 0],
        key_named=lambda name: _key_named(name, _composed(config_name)),
        key_of_value=lambda value: _key_of_value(value, _composed(config_name)),
    )


def _key_named(name: str, cfg: DictConfig) -> str | None:
    keys = set(_dotted(cfg))
    if name in keys:
        return name
    meant = _keys_of_leaf(name.rpartition(".")[2], cfg)
    return meant[0] if meant else nearest_name(name, [key for key in keys if "." not in key], SYNONYMS)


def _key_of_value(value: str, cfg: DictConfig) -> str | None:
    """Return ``run`` where a command takes a run folder; else the group that has a YAML file of this name."""
    if "run" in list(cfg):  # a key without a value is not "in" it
        return "run"
    groups = [str(key) for key in cfg if (CONF / str(key) / f"{value}.yaml").is_file()]
    return groups[0] if groups else None


def _composed(config_name: str) -> DictConfig:
    """Return the configuration without the overrides of single keys; empty where groups are wrong too."""
    groups = [word for word in sys.argv[1:] if re.fullmatch(r"[a-z_]+=[\w.-]+", word)]
    chosen = [word for word in groups if (CONF / word.partition("=")[0]).is_dir()]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            return hydra.compose(config_name, overrides=chosen)
        except HydraException:
            return OmegaConf.create()


def _dotted(cfg: DictConfig) -> Iterator[str]:
    """Yield the dotted key of every setting and section; references are not followed."""
    waiting = [("", OmegaConf.to_container(cfg, resolve=False))]
    while waiting:
        prefix, node = waiting.pop()
        for name, value in node.items() if isinstance(node, dict) else ():
            key = f"{prefix}{name!s}"
            yield key
            waiting.append((f"{key}.", value))
