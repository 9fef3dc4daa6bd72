"""The sandbox of chat templates: a child process with limits, because templates are untrusted."""

from __future__ import annotations

import datetime
import json
import resource
import sys
from collections.abc import Mapping
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from archbench.experiments.runtime.child_processes import end_with_parent, run_python

SECONDS, GIB = 10, 1
"""Time of a processor, and memory, that a template may take."""
MISTAKES = (
    TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError,
)  # fmt: skip
"""Exceptions that the expressions of a template may raise."""


def render(template: str, variables: Mapping[str, object]) -> str:
    """Return the text of a template. Raises ValueError where it fails or exceeds the limits."""
    request = json.dumps({"template": template, "variables": variables})
    done = run_python(["-m", __name__], standard_input=request, capture=True)
    if done.returncode:
        raise ValueError(f"it needs more than {SECONDS} s or {GIB} GiB")
    answer: dict[str, str] = json.loads(done.stdout)
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer["text"]


def main() -> None:
    """Render the request on standard input, and print the text or the error as JSON."""
    end_with_parent()
    request = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (GIB * 2**30, GIB * 2**30))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    try:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.globals["namespace"] = _Namespace
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        answer = {"text": environment.from_string(request["template"]).render(**request["variables"])}
    except (TemplateError, *MISTAKES) as error:
        answer = {"error": str(error) or type(error).__name__}
    print(json.dumps(answer))


class _Generation(Extension):
    """The block that marks what a model has written: ``{% generation %}``."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """Variables of a template, none of which can reach the interpreter."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a template cannot set {name!r}")


def _to_json(value: Any, **options: Any) -> str:
    """JSON without escapes: Jinja's filter would escape HTML."""
    return json.dumps(value, ensure_ascii=options.pop("ensure_ascii", False), **options)


def _refuse(message: str) -> None:
    raise TemplateError(message)


if __name__ == "__main__":
    main()
