"""The defaults of a component's settings, read from its source code.

A YAML file names a class in ``_target_``, and says only how its settings differ from the defaults of the
dataclass of the class. Hydra needs these defaults while it composes, which must not import torch: that
takes seconds. The class statements of the source are therefore evaluated without the modules they are in.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import operator
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from experiments.config.structured import PROJECT, is_own

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


@functools.cache
def config_defaults(target: str) -> dict[str, Any]:
    """Return the defaults of ``Config`` of the class at a dotted path; of a class without one, its own.

    A nested dataclass is a dictionary, and a field without a default is ``???``. Fields whose default the
    source alone does not tell are left out, and so are all where there is no such class: then composing goes
    on, and ``component`` refuses the class when the configuration is read.
    """
    module, _, name = target.rpartition(".")
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
    spec = importlib.util.find_spec(top) if top in PROJECT or is_own(top) else None
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
    """The names that a module assigns, imports or defines as a class; each is evaluated where it is read."""

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
                case ast.ImportFrom(names=aliases):
                    self.statements |= {alias.asname or alias.name: statement for alias in aliases}

    def __getitem__(self, name: str) -> Any:
        match self.statements[name]:
            case ast.ImportFrom(module=module, names=aliases, level=level):
                original = next(alias.name for alias in aliases if name == (alias.asname or alias.name))
                path = importlib.util.resolve_name("." * level + (module or ""), self.package)
                return _module(path)[original]
            case ast.ClassDef() as statement:
                if name not in self.classes:
                    self.classes[name] = _class(statement, self)
                return self.classes[name]
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                return self.evaluate(value)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.statements)

    def __len__(self) -> int:
        return len(self.statements)

    def evaluate(self, node: ast.expr) -> Any:
        """Return the value of an expression of literals, names, sums, products and dataclasses."""
        match node:
            case ast.Name(id=name):
                return self[name] if name in self else FACTORIES[name]
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [self.evaluate(element) for element in elements]
            case ast.BinOp(left=left, op=op, right=right):
                return OPERATORS[type(op)](self.evaluate(left), self.evaluate(right))
            case ast.Call(func=function, args=[], keywords=keywords):
                given = {str(keyword.arg): self.evaluate(keyword.value) for keyword in keywords}
                return self.evaluate(function)(**given)
        return ast.literal_eval(node)


def _class(statement: ast.ClassDef, names: _Names) -> type:
    """Return a class with the bases, the ``Config`` and the fields of a class statement, and no more."""
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
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=value):
                if not NO_FIELD.match(ast.unparse(kind)):
                    members["fields"][name] = functools.partial(_default, value, names)
    for decorator in statement.decorator_list:
        match decorator:  # architectures.backbones.hybrid.with_sections_of
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
    found: dict[str, Any] = {}
    for part in reversed(cls.__mro__[:-1]):
        for name, default in vars(part)["fields"].items():
            with contextlib.suppress(*UNREADABLE):
                found[name] = default()
    return found


def _default(value: ast.expr | None, names: _Names) -> Any:
    """Return the default of a field from the right-hand side of its line in the class."""
    factory = None
    match value:
        case None:
            return MISSING
        case ast.Call(func=ast.Name(id="field"), keywords=keywords):
            given = {keyword.arg: keyword.value for keyword in keywords}
            value, factory = given.get("default"), given.get("default_factory")
    if isinstance(factory, ast.Lambda):
        value, factory = factory.body, None
    if factory is None:
        return MISSING if value is None else names.evaluate(value)
    return names.evaluate(factory)()
