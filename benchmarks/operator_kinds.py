"""Classifies operators of PyTorch's profiler by the type of work, and sums the time of each type.

An operator is classified by its name, then by its callers; an operator of the backward pass then by the
callers of the forward operator of which it computes the gradient. So a copy is a copy everywhere, and
operators without a type (a view, an allocation) belong to their caller. Only attention, the loss, clipping
and the optimizer include all operators inside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

NOTHING = "no operator (Python)"
"""Time of a phase in which no operator runs."""
REST = "rest"
"""Operators without a type: views, allocations and steps of autograd."""
PHASES = ("forward", "cross entropy", "backward", "clipping", "optimizer")
"""The ranges of a step, one after the other."""

WHOLE = {
    "attention": r"_Attention(Backward)?|aten::\w*scaled_dot_product\w*|ScaledDotProduct\w*",
    "embeddings": r"aten::embedding\w*|EmbeddingBackward0",
    "cross entropy": r"cross entropy|_Entropy\w*|aten::cross_entropy_loss",
    "clipping": r"clipping",
    "optimizer": r"optimizer",
}
"""Names that determine the type of all operators inside."""
SINGLE = {
    "matrix products": r"aten::(linear|matmul|mm|addmm|bmm|baddbmm|einsum|_grouped_mm)|(M|Addm|B)mBackward0",
    "scans and convolutions": r"_(SelectiveScan|SSD|Scan|Between|Convolution)(Backward)?"
    r"|aten::\w*(fft|conv)\w*|Fft\w+",
    "norms": r"_Norm(Backward)?|aten::\w*(layer|rms)_norm\w*|\w*(Layer|RMS)Norm\w*",
    "activations and gates": r"_(Activation|Finish)(Backward)?"
    r"|aten::\w*(gelu|silu|glu|relu|tanh|sigmoid|softplus|softmax|threshold)\w*"
    r"|\w*(Gelu|Relu|Silu|Glu|Tanh|Sigmoid|Softplus|Softmax)Backward\d",
    "rotary positions": r"_Rotation(Backward)?|aten::(sin|cos)",
    "choice and order of rows": r"aten::(topk|sort|argsort|bincount|_?index\w*|gather\w*|scatter\w*)",
    "copies": r"aten::(copy_|_to_copy|clone|contiguous|cat|stack|constant_pad_nd|fill_|zero_|zeros(_like)?)",
    "sums and products": r"aten::(add|sub|mul|div|neg|exp|log|pow|abs|sum|mean|min|max|where|all|any|arange"
    r"|clamp\w*|masked_fill|reciprocal|sqrt|rsqrt|cumsum|le|lt|ge|gt|eq|ne|bitwise_\w+|isneginf|complex)_?",
}
"""Names that determine the type of the operator itself."""
KINDS = (
    "matrix products",
    "attention",
    "scans and convolutions",
    "norms",
    "activations and gates",
    "rotary positions",
    "choice and order of rows",
    "sums and products",
    "copies",
    "embeddings",
    "cross entropy",
    "clipping",
    "optimizer",
    REST,
    NOTHING,
)
"""In the order in which they are told."""
_WHOLE = {kind: re.compile(pattern) for kind, pattern in WHOLE.items()}
_SINGLE = {kind: re.compile(pattern) for kind, pattern in SINGLE.items()}
_ENGINE = "autograd::engine::evaluate_function: "


@dataclass
class Spent:
    """Microseconds of a number of steps."""

    kinds: dict[str, dict[str, float]] = field(default_factory=dict)
    """Time of each type, by phase."""
    operators: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)
    """Time and calls of each operator and type."""

    @property
    def total(self) -> float:
        return sum(sum(phases.values()) for phases in self.kinds.values())

    def share(self, kind: str, phase: str | None = None) -> float:
        """Fraction of the total time that a type needs, in one phase or in all."""
        phases = self.kinds.get(kind, {})
        return (sum(phases.values()) if phase is None else phases.get(phase, 0.0)) / self.total

    def phase(self, name: str) -> float:
        """Share of all the time that a phase has."""
        return sum(phases.get(name, 0.0) for phases in self.kinds.values()) / self.total

    def longest(self, count: int) -> list[tuple[str, str, float, int]]:
        """The slowest operators: name, type, fraction and calls."""
        operators = sorted(self.operators.items(), key=lambda item: -item[1][0])[:count]
        return [(name, kind, seconds / self.total, calls) for (name, kind), (seconds, calls) in operators]


def spent(events: Sequence[Any]) -> Spent:
    """The time of operators in the phases, which are ranges of the profile with these ``events``."""
    forward = {event.sequence_nr: event for event in events if _makes_a_node(event)}
    result = Spent()
    for event in events:
        chain = list(callers(event))
        phase = chain[-1].name
        if phase not in PHASES:
            continue
        names = [_plain(caller_event) for caller_event in chain]
        origin = next(
            (forward[e.sequence_nr] for e in chain if _is_node(e) and e.sequence_nr in forward), None
        )
        if origin is not None:
            names[-1:-1] = [
                _plain(caller_event) for caller_event in callers(origin) if caller_event.name not in PHASES
            ]
        kind = kind_of(names)
        phases = result.kinds.setdefault(kind, {})
        phases[phase] = phases.get(phase, 0.0) + event.self_cpu_time_total
        if event.name not in PHASES:
            seconds, calls = result.operators.get((event.name, kind), (0.0, 0))
            result.operators[event.name, kind] = (seconds + event.self_cpu_time_total, calls + 1)
    return result


def callers(event: Any) -> Iterator[Any]:
    """An event and those around it, the innermost first."""
    while event is not None:
        yield event
        event = event.cpu_parent


def kind_of(names: Sequence[str]) -> str:
    """The type of an operator by the names of it and its callers, of which the last is the phase."""
    for kind, pattern in _WHOLE.items():
        if any(pattern.fullmatch(name) for name in names):
            return kind
    if len(names) == 1:
        return NOTHING
    for name in names:
        for kind, pattern in _SINGLE.items():
            if pattern.fullmatch(name):
                return kind
    return REST


def _is_node(event: Any) -> bool:
    """Whether it is a step of the backward pass."""
    return event.name.startswith(_ENGINE)


def _makes_a_node(event: Any) -> bool:
    """Return True if a step of the backward pass has the sequence number of this operator."""
    return event.sequence_nr >= 0 and not any(_is_node(caller) for caller in callers(event))


def _plain(event: Any) -> str:
    return event.name.removeprefix(_ENGINE)
