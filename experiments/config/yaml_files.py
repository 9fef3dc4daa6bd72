"""The YAML files of a configuration as Hydra reads them, and the defaults of the classes that they name.

A YAML file names a class in ``_target_``, and has only the settings that differ from the defaults of the
dataclass of the class. Hydra needs these defaults while it composes, which must not import torch, as this
takes seconds. Therefore the class statements in the source are evaluated without importing their modules.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import operator
import os
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hydra.plugins.config_source import ConfigLoadError, ConfigResult
from omegaconf import MISSING, OmegaConf

from archbench.experiments.config.hydra_internals import SourcesRegistry, file_config_source
from archbench.experiments.config.old_names import current_name
from archbench.experiments.config.structured import PACKAGE, is_own
from archbench.experiments.runtime.yaml_state import read_yaml

UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""Exceptions from evaluating an expression that is not as simple as the default of a dataclass field."""
FACTORIES = {"list": list, "dict": dict}
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
NO_FIELD = re.compile(r"(typing\.|dataclasses\.)?(ClassVar|KW_ONLY)\b")
"""Annotations of names that are no fields of a dataclass."""
DEFAULTS_OF = "dataclass/"
"""Group of the defaults of each class, by its dotted path."""
BACKBONE_CLASS = re.compile(r"backbone/((?:\w+\.)+[^\W\d]\w*)")
"""``backbone=MODULE.CLASS``, which needs no YAML file."""


class FileConfigSource(file_config_source.FileConfigSource):
    """Hydra's source of files, strict: a duplicate key, or a tab, is an error of one line with its position.

    A file that names a class in ``_target_`` extends the defaults of the settings of this class, as if
    ``/dataclass/CLASS@_here_`` were the first entry of its ``defaults``. ``backbone=MODULE.CLASS`` stands for
    a file with this ``_target_`` and ``num_layers: ${scale.depth}``.
    """

    def is_config(self, config_path: str) -> bool:
        if config_path.startswith(DEFAULTS_OF) or super().is_config(config_path):
            return True
        return BACKBONE_CLASS.fullmatch(config_path.removesuffix(".yaml")) is not None

    def load_config(self, config_path: str) -> ConfigResult:
        """Return a file of a group, or the defaults of a class. Raises ConfigError for a wrong file."""
        source = f"{self.scheme()}://{self.path}"
        if config_path.startswith(DEFAULTS_OF):
            defaults = config_defaults(config_path.removeprefix(DEFAULTS_OF))
            return ConfigResult(self.provider, source, OmegaConf.create(defaults), header={"package": None})
        path = Path(os.path.realpath(os.path.join(self.path, self._normalize_file_name(config_path))))
        header: dict[str, str | None] = {"package": None}
        if path.exists():
            tree = read_yaml(path)
            header = self._get_header_dict(path.read_text(encoding="utf-8-sig")[:512])
        elif (match := BACKBONE_CLASS.fullmatch(config_path.removesuffix(".yaml"))) is not None:
            tree = {"_target_": match[1]}
            if "num_layers" in config_defaults(match[1]):
                tree["num_layers"] = "${scale.depth}"
        else:
            raise ConfigLoadError(f"Config not found : {path}")
        if isinstance(named := tree.get("_target_"), str):
            target, entries = current_name(named), tree.get("defaults", ["_self_"])
            tree = {**tree, "_target_": target, "defaults": [f"/{DEFAULTS_OF}{target}@_here_", *entries]}
        return ConfigResult(
            config=OmegaConf.create(tree),
            path=source,
            provider=self.provider,
            header=header,
        )


# Hydra registers its own class of this name later on, which changes nothing then.
SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource


@functools.cache
def config_defaults(target: str) -> dict[str, Any]:
    """Return the defaults of the dataclass ``Config`` of the class at a dotted path, or of the class itself.

    A nested dataclass is a dictionary, and a field without a default is ``???``. A field with a default that
    the source does not define is left out. The result is empty if there is no such class: composing
    continues, and ``component`` rejects the class when the configuration is read.
    """
    module, _, name = current_name(target).rpartition(".")
    try:
        cls = _module(module)[name]
        return _defaults(getattr(cls, "Config", cls))
    except UNREADABLE:
        return {}


@functools.cache
def _module(name: str) -> _Names:
    """Return the top-level names of a module of this project or of the user's. Raises KeyError for others."""
    file = _source(name)
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    return _Names(ast.parse(file.read_text(encoding="utf-8")), package)


def _source(name: str) -> Path:
    """Return the file of a module of this project or of the user's. Raises KeyError for others."""
    top, *parts = name.split(".")
    spec = importlib.util.find_spec(top) if top == PACKAGE or is_own(top) else None
    if spec is None:
        raise KeyError(name)
    folders = [Path(folder, *parts) for folder in spec.submodule_search_locations or ()]
    files = [file for folder in folders for file in (folder.with_suffix(".py"), folder / "__init__.py")]
    if spec.origin and not parts:
        files.append(Path(spec.origin))
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise KeyError(name)
    return file


class _Names(Mapping[str, Any]):
    """The names that a module assigns, imports or defines as a class; each is evaluated when it is read."""

    def __init__(self, tree: ast.Module, package: str) -> None:
        self.package = package
        self.statements: dict[str, ast.stmt] = {}
        self.classes: dict[str, type] = {}  # one of each, since a class may be a base twice
        for statement in tree.body:
            match statement:
                case ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                    self.statements[name] = statement
                case ast.Assign(targets=[ast.Name(id=name)]):
                    self.statements[name] = statement
                case ast.ImportFrom(names=[ast.alias(name="*")]):
                    with contextlib.suppress(*UNREADABLE):  # of an installed package
                        self.statements |= dict.fromkeys(self._imported(statement), statement)
                case ast.ImportFrom(names=aliases) | ast.Import(names=aliases):
                    self.statements |= {alias.asname or alias.name: statement for alias in aliases}

    def __getitem__(self, name: str) -> Any:
        match self.statements[name]:
            case ast.ImportFrom(names=[ast.alias(name="*")]) as statement:
                return self._imported(statement)[name]
            case ast.ImportFrom(names=aliases) | ast.Import(names=aliases) as statement:
                original = next(alias.name for alias in aliases if name == (alias.asname or alias.name))
                if isinstance(statement, ast.Import):
                    return _module(original)
                return self._imported(statement)[original]
            case ast.ClassDef() as statement:
                if name not in self.classes:
                    self.classes[name] = _class(statement, self)
                return self.classes[name]
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                return self.evaluate(value)
        raise KeyError(name)

    def _imported(self, statement: ast.ImportFrom) -> _Names:
        path = "." * statement.level + (statement.module or "")
        return _module(importlib.util.resolve_name(path, self.package))

    def __iter__(self) -> Iterator[str]:
        return iter(self.statements)

    def __len__(self) -> int:
        return len(self.statements)

    def evaluate(self, node: ast.expr) -> Any:
        """Return the value of an expression of literals, names, sums, products and dataclasses."""
        match node:
            case ast.Name(id=name):
                return self[name] if name in self else FACTORIES[name]
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in self:
                return self[name][attribute]
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [self.evaluate(element) for element in elements]
            case ast.BinOp(left=left, op=op, right=right):
                return OPERATORS[type(op)](self.evaluate(left), self.evaluate(right))
            case ast.Call(func=function, args=[], keywords=keywords):
                arguments = {str(keyword.arg): self.evaluate(keyword.value) for keyword in keywords}
                return self.evaluate(function)(**arguments)
        return ast.literal_eval(node)


def _class(statement: ast.ClassDef, names: _Names) -> type:
    """Return a class with only the bases, the ``Config`` and the fields of a class statement."""
    bases = []
    for base in statement.bases:
        with contextlib.suppress(*UNREADABLE):  # torch.nn.Module, Protocol: they have no settings
            bases.append(names.evaluate(base.value if isinstance(base, ast.Subscript) else base))
    members: dict[str, Any] = {"fields": {}, "__new__": _make}
    for line in statement.body:
        match line:
            case ast.Assign(targets=[ast.Name(id="Config")], value=value):
                members["Config"] = names.evaluate(value)
            case ast.ClassDef(name="Config"):
                members["Config"] = _class(line, names)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                if not NO_FIELD.match(ast.unparse(annotation)):
                    members["fields"][name] = functools.partial(_default, value, names)
    for decorator in statement.decorator_list:
        match decorator:  # archbench.architectures.backbones.hybrid.with_sections_of
            case ast.Call(func=ast.Name(id="with_sections_of"), args=[ast.Constant(value=str(package))]):
                for module in pkgutil.iter_modules([str(_source(package).parent)]):
                    config = _module(f"{package}.{module.name}")["Config"]
                    members["fields"][module.name] = functools.partial(_defaults, config)
    return type(statement.name, tuple(base for base in bases if isinstance(base, type)), members)


def _make(cls: Any, **given: Any) -> dict[str, Any]:
    """Return an instance of a dataclass: ``field(default_factory=lambda: BlockConfig(norm="layernorm"))``."""
    return _defaults(cls) | given


def _defaults(cls: Any) -> dict[str, Any]:
    """Return the default of each field of a class made by ``_class``, in the order of the dataclass."""
    defaults: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        for name, default in vars(base)["fields"].items():
            with contextlib.suppress(*UNREADABLE):
                defaults[name] = default()
    return defaults


def _default(value: ast.expr | None, names: _Names) -> Any:
    """Return the default of a field from the right-hand side of its line in the class."""
    factory = None
    match value:
        case None:
            return MISSING
        case ast.Call(func=ast.Name(id="field"), keywords=keywords):
            arguments = {keyword.arg: keyword.value for keyword in keywords}
            value, factory = arguments.get("default"), arguments.get("default_factory")
    if isinstance(factory, ast.Lambda):
        value, factory = factory.body, None
    if factory is None:
        return MISSING if value is None else names.evaluate(value)
    return names.evaluate(factory)()
