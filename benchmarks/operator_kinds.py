"""Of which kind of work an operator of PyTorch's profiler is, and how long each kind took.

An operator is asked by its own name first, then by those that called it; one of the backward pass then by
those that called the operator whose gradient it computes. So a copy is a copy wherever it stands, and what
has no kind of its own (a view, an allocation) belongs to what it was done for. Only attention, the loss,
clipping and the optimizer keep everything that is done inside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

NOTHING = "no operator (Python)"
"""Time of a phase in which no operator runs."""
REST = "rest"
"""Operators of no kind: views, allocations and autograd's own steps."""
PHASES = ("forward", "cross entropy", "backward", "clipping", "optimizer")
"""The ranges of a step, one after the other."""

WHOLE = {
    "attention": r"_Attention(Backward)?|aten::\w*scaled_dot_product\w*|ScaledDotProduct\w*",
    "embeddings": r"aten::embedding\w*|EmbeddingBackward0",
    "cross entropy": r"cross entropy|_Entropy\w*|aten::cross_entropy_loss",
    "clipping": r"clipping",
    "optimizer": r"optimizer",
}
"""Names within which all operators are of one kind."""
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
"""Names whose own time is of a kind."""
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
    """Of each kind, by phase."""
    operators: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)
    """Of each operator and kind: its own time, and how often it ran."""

    @property
    def total(self) -> float:
        return sum(sum(phases.values()) for phases in self.kinds.values())

    def share(self, kind: str, phase: str | None = None) -> float:
        """Of all the time, what a kind took, in one phase or in all."""
        phases = self.kinds.get(kind, {})
        return (sum(phases.values()) if phase is None else phases.get(phase, 0.0)) / self.total

    def phase(self, name: str) -> float:
        """Share of all the time that a phase has."""
        return sum(phases.get(name, 0.0) for phases in self.kinds.values()) / self.total

    def longest(self, count: int) -> list[tuple[str, str, float, int]]:
        """The operators that took longest: name, kind, share and calls."""
        found = sorted(self.operators.items(), key=lambda item: -item[1][0])[:count]
        return [(name, kind, own / self.total, calls) for (name, kind), (own, calls) in found]


def spent(events: Sequence[Any]) -> Spent:
    """Where the time within the phases went; ``events`` are those of a profile in which they are ranges."""
    forward = {event.sequence_nr: event for event in events if _makes_a_node(event)}
    found = Spent()
    for event in events:
        chain = list(callers(event))
        phase = chain[-1].name
        if phase not in PHASES:
            continue
        names = [_plain(each) for each in chain]
        origin = next(
            (forward[e.sequence_nr] for e in chain if _is_node(e) and e.sequence_nr in forward), None
        )
        if origin is not None:
            names[-1:-1] = [_plain(each) for each in callers(origin) if each.name not in PHASES]
        kind = kind_of(names)
        phases = found.kinds.setdefault(kind, {})
        phases[phase] = phases.get(phase, 0.0) + event.self_cpu_time_total
        if event.name not in PHASES:
            own, calls = found.operators.get((event.name, kind), (0.0, 0))
            found.operators[event.name, kind] = (own + event.self_cpu_time_total, calls + 1)
    return found


def callers(event: Any) -> Iterator[Any]:
    """An event and those around it, the innermost first."""
    while event is not None:
        yield event
        event = event.cpu_parent


def kind_of(names: Sequence[str]) -> str:
    """The kind of an operator by its name and those around it, of which the last is the phase."""
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
    """Whether a step of the backward pass has its number from this operator."""
    return event.sequence_nr >= 0 and not any(_is_node(each) for each in callers(event))


def _plain(event: Any) -> str:
    return event.name.removeprefix(_ENGINE)
