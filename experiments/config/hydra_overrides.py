"""Overrides of a command that Hydra reads: paths are quoted for its grammar, and its errors become one line.

An error names what to type instead: the nearest valid name, or the value in the form that Hydra reads.
"""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Iterator, Sequence

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Quote, QuotedString
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from archbench.architectures.nearest_name import nearest_name
from archbench.experiments.config import CONF, hydra_internals
from archbench.experiments.config.backbone_file import class_paths
from archbench.experiments.config.options import (
    PATHS,
    at_home,
    refuse_no_words,
    refuse_other_words,
    refuse_undecodable,
)
from archbench.experiments.config.structured import type_message
from archbench.experiments.runtime.errors import ConfigError, nearest
from archbench.experiments.runtime.synonyms import KEYS, SYNONYMS

MEANINGS = {
    "budget.tokens": "training tokens in all: steps x sequences x their length",
    "budget.micro_batch_size": "sequences of each forward pass; budget.batch_size stays as it is",
    "optimizer.betas": "both, as [0.9,0.95]",
    "optimizer.min_lr_ratio": "as a fraction of the peak",
    "optimizer.warmup_fraction": "as a fraction of the steps",
    "continue_from": "a run that was interrupted continues by the same command",
}
"""Meaning of a key, where it differs from that of the name in another program."""

EXTRAS = {
    ("hydra/sweeper", "optuna"): "optuna",
    ("hydra/launcher", "submitit_slurm"): "slurm",
    ("hydra/launcher", "submitit_local"): "slurm",
}
"""Options that the package of an extra adds."""

DEEPEST, LONGEST_NUMBER = 40, 400
"""Maximum nesting of brackets, and of the digits of a number, in an override."""


def checked_words(words: Sequence[str], config_name: str) -> list[str]:
    """Check the arguments of a command line, and order them as Hydra reads them. Raises ConfigError.

    Hydra takes no option, such as ``-m``, between overrides: options go to the end.
    """
    words = path_words(words)
    refuse_unreadable(words)
    if any(word.lstrip("+~").startswith("hydra.sweeper.params") for word in words):
        raise ConfigError("hydra.sweeper.params belongs into the YAML of a study: write -m seed=0,1 here")
    refuse_other_words_of(words, config_name)
    if config_name == "config":
        refuse_no_words(words)
    is_override = [not word.startswith(("-", "/", ".")) and bool(re.search("=|^~", word)) for word in words]
    return [
        *(word for word, override in zip(words, is_override, strict=True) if override),
        *(word for word, override in zip(words, is_override, strict=True) if not override),
    ]


def refuse_unreadable(overrides: Sequence[str]) -> None:
    """Raise ConfigError for overrides that are not UTF-8, or exhaust Python's stack or longest number."""
    for override in overrides:
        key, _, value = override.partition("=")
        refuse_undecodable(override)
        unquoted = re.sub(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", "", value)
        depth = deepest = 0
        for letter in unquoted:
            depth += (letter in "[{(") - (letter in ")}]")
            deepest = max(deepest, depth)
        if deepest > DEEPEST:
            raise ConfigError(f"{key}: nested {deepest} brackets deep, the maximum is {DEEPEST}")
        if re.search(rf"\d{{{LONGEST_NUMBER}}}", unquoted):
            raise ConfigError(f"{key}: a number of more than {LONGEST_NUMBER} digits is not a setting")


def path_words(arguments: Sequence[str]) -> list[str]:
    """Return a command line for Hydra, in which paths that its grammar cannot read are quoted.

    ``backbone=FILE.py:CLASS`` becomes ``backbone=MODULE.CLASS``. Raises ConfigError for a file without the
    class, and for a quoted path that begins with ``~``, which would create a folder of that name.
    """
    parser = OverridesParser.create()
    quoted = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key.rpartition(".")[2].lstrip("+") in PATHS:
            value, is_list = at_home(key, value), key.endswith("paths")
            if not _is_read(f"{key}={value}", parser) or (value.startswith("[") and not is_list):
                if is_list and re.fullmatch(r"\[.*\]", value, re.DOTALL):
                    paths = [quote(at_home(key, path.strip())) for path in value[1:-1].split(",")]
                    value = f"[{','.join(paths)}]"
                else:
                    value = quote(value)
            argument = f"{key}={value}"
        elif key == "backbone":
            argument = f"{key}={class_paths(value)}"
        quoted.append(argument)
    return quoted


def _is_read(override: str, parser: OverridesParser) -> bool:
    """Return True if Hydra's grammar can read an override."""
    try:
        parser.parse_override(override)
    except HydraException:
        return False
    except RecursionError:  # brackets nested too deeply, which are rejected later
        return True
    return True


def quote(text: str) -> str:
    """Return text as Hydra reads it unchanged: no comma, bracket or ``${`` in it has a meaning."""
    escaped = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # "${" would be a reference
    return QuotedString(text=escaped, quote=Quote.single).with_quotes()


def literal(words: list[str]) -> list[str]:
    """Return arguments with prompt and run quoted, so that Hydra reads no commas or brackets in them.

    A prompt that begins with a bracket or a quotation mark is Hydra's: a list, or quoted already.
    """
    quoted = []
    for word in words:
        key, _, value = word.partition("=")
        if key in ("prompt", "run") and not value.startswith(("[", "'", '"')):
            word = f"{key}={quote(at_home(key, value) if key == 'run' else value)}"
        quoted.append(word)
    return quoted


def refuse_other_words_of(arguments: Sequence[str], config_name: str) -> None:
    """Raise ConfigError for arguments that are neither KEY=VALUE nor an option of Hydra.

    The message has what to write instead.
    """

    def key_named(name: str) -> str | None:
        keys = set(_dotted(cfg := _composed(config_name)))
        if name in keys:
            return name
        similar = _keys_of_leaf(name.rpartition(".")[2], cfg)
        return similar[0] if similar else nearest_name(name, [k for k in keys if "." not in k], SYNONYMS)

    def key_of_value(value: str) -> str | None:
        cfg = _composed(config_name)
        if "run" in list(cfg):  # the command needs a run folder; a key without a value is not "in" cfg
            return "run"
        groups = [str(key) for key in cfg if (CONF / str(key) / f"{value}.yaml").is_file()]
        return groups[0] if groups else None

    actions = hydra_internals.options()
    refuse_other_words(
        arguments,
        options=actions,
        with_value=[name for name, action in actions.items() if action.nargs != 0],
        key_named=key_named,
        key_of_value=key_of_value,
    )


def explain(error: Exception, config_name: str = "config") -> str:
    """Return Hydra's message in one line, with the nearest valid name if one was mistyped."""
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    text = "\n".join(str(e) for e in chain)
    if match := re.search(r"Could not find '([\w/]+)/([^']*)'", text):
        return _unknown_option(match[1], match[2], text)
    if match := re.search(r"Could not override '([^']+)'", text):
        return _unknown_key(match[1], config_name)
    if match := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '([^']+)'", text):
        key, cfg = match[1].partition("=")[0].strip(), _composed(config_name)
        if cfg and re.fullmatch(r"\w+", key) and key not in _dotted(cfg) and not (CONF / key).is_dir():
            return _unknown_key(key, config_name)
        return f"{match[1]}: several values are the runs of a sweep: add -m; a list is written in brackets"
    if isinstance(error, OverrideParseException) and "=" in error.override:
        return _unreadable(error)
    if isinstance(chain[-1], OmegaConfBaseException):
        return type_message(chain[-1].full_key or "", chain[-1])
    return " ".join(line.strip() for line in str(error).strip().splitlines() if line.strip())


def _unreadable(error: OverrideParseException) -> str:
    """Return why Hydra's grammar cannot read an override, and how its value is quoted."""
    key, _, value = error.override.partition("=")
    reason = " ".join(line for line in str(error).splitlines() if not line.startswith("See ")).strip()
    message = f"{error.override}: cannot be read ({reason})"
    if not re.fullmatch(r"[\w./@+~-]+", key) or re.search(r"['\"\\]", value):
        return message
    if value.startswith("~"):
        return f"{message}; write $HOME instead of ~"
    return f"{message}; to give the value as text, quote it twice: '{key}=\"{value}\"'"


def unmatched(overrides: Sequence[str], loader: ConfigLoader) -> str | None:
    """Return the mistake in a glob of a sweep one of whose patterns matches no YAML file, or None."""
    globs = [override for override in overrides if re.search(r"=\s*glob\(", override)]
    for override in OverridesParser.create(config_loader=loader).parse_overrides(globs):
        glob, group = override.value(), override.key_or_group
        assert isinstance(glob, Glob)
        names = loader.get_group_options(group)
        for pattern in (*glob.include, *glob.exclude):
            if not fnmatch.filter(names, pattern):
                hint = nearest(pattern, names)
                return f"{override.input_line}: '{pattern}' matches no YAML file of {group}{hint}"
    return None


def no_option(overrides: Sequence[str]) -> str | None:
    """Return the mistake in an override that sets a group to null, a number or a truth value, or None."""
    for override in overrides:
        group, _, value = override.partition("=")
        if re.fullmatch(r"(?i)null|true|false|[\d.]+", value) and (CONF / group).is_dir():
            return _unknown_option(group, value, "")
    return None


def _unknown_option(group: str, option: str, text: str) -> str:
    """Return the message on an option that a group does not have; ``text`` is that of Hydra."""
    if (extra := EXTRAS.get((group, option))) is not None:
        return f"{group}={option}: its package is not installed: pip install 'archbench[{extra}]'"
    listed = text.split(f"options in '{group}':", 1)[-1].splitlines()
    options = {line.strip() for line in listed if re.fullmatch(r"\s*[\w.-]+\s*", line)}
    if not option:
        return f"{group}= is empty{nearest('', options)}"
    files = (path.relative_to(CONF / group) for path in (CONF / group).rglob("*.yaml"))
    options |= {path.with_suffix("").as_posix() for path in files if path.parts[0] != "parts"}
    new_study = f" (a study of your own is named by study.name={option})" if group == "study" else ""
    return f"{group}={option}: there is no conf/{group}/{option}.yaml{new_study}{nearest(option, options)}"


def _unknown_key(key: str, config_name: str) -> str:
    """Return the message on a key that the configuration does not have."""
    parent, _, leaf = key.rpartition(".")
    if leaf in ("name", "kind", "type") and parent and (CONF / parent).is_dir():
        return f"{key}: there is no such key; did you mean '{parent}'?"
    cfg = _composed(config_name)
    section = OmegaConf.select(cfg, parent) if parent else cfg
    siblings = [str(name) for name in section] if isinstance(section, DictConfig) else []
    similar = _keys_of_leaf(leaf, cfg)
    if key in similar:
        return f"{key}: this run has no such key, but others do: leave it out, or the choice that lacks it"
    if not similar and nearest_name(leaf, siblings, SYNONYMS) is None:
        leaves = {dotted.rpartition(".")[2] for dotted in _dotted(cfg)}
        similar = _keys_of_leaf(nearest_name(leaf, leaves, SYNONYMS) or "", cfg)
    if not similar:
        return f"{key}: there is no such key{nearest(leaf, siblings)}"
    meaning = f" ({MEANINGS[similar[0]]})" if similar[0] in MEANINGS else ""
    return f"{key}: there is no such key; did you mean {' or '.join(map(repr, similar[:4]))}?{meaning}"


def _keys_of_leaf(leaf: str, cfg: DictConfig) -> list[str]:
    """Return our dotted key for another program's name, else the dotted keys whose last part is ``leaf``."""
    keys = sorted(_dotted(cfg))
    translated = [key for key in keys if leaf.lower() in KEYS.get(key, ())]
    return translated or [key for key in keys if key.rpartition(".")[2] == leaf]


def _composed(config_name: str) -> DictConfig:
    """Return the configuration without the overrides of single keys; empty if groups are wrong, too."""
    groups = [argument for argument in sys.argv[1:] if re.fullmatch(r"[a-z_]+=[\w.-]+", argument)]
    chosen = [group for group in groups if (CONF / group.partition("=")[0]).is_dir()]
    with hydra_internals.loaded(None, CONF) as hydra:
        try:
            cfg = hydra.compose_config(config_name, chosen, RunMode.RUN, with_log_configuration=False)
        except HydraException:
            return OmegaConf.create()
    return OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])


def _dotted(cfg: DictConfig) -> Iterator[str]:
    """Yield the dotted key of every setting and section; references are not resolved."""
    waiting = [("", OmegaConf.to_container(cfg, resolve=False))]
    while waiting:
        prefix, node = waiting.pop()
        for name, value in node.items() if isinstance(node, dict) else ():
            key = f"{prefix}{name!s}"
            yield key
            waiting.append((f"{key}.", value))
