"""The report of ``experiments.cost.model_cost`` as tables for a console."""

from __future__ import annotations

import math

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from archbench.experiments.cost.model_cost import TRAINING_BYTES, CostReport, PartCost
from archbench.experiments.runtime.console import count

FLOPS = {
    "forward": "forward pass of a sequence",
    "reading_the_source": "  of it, reading the source",
    "training_step": "training step, 3 forward passes for each sequence",
    "decoding_one_token": "decoding the next token",
}


def render(report: CostReport) -> RenderableType:
    """Return all tables, for a Rich console."""
    parts: list[RenderableType] = [Text(heading(report), style="bold"), parameter_table(report)]
    parts += [
        flops_table(report),
        Text(six_n_d(report) + "\n"),
        Text(weights_line(report)),
        Text(training_line(report)),
    ]
    if not report.states:
        return Group(*parts, Text("\nKeeps no decoding state: it does not decode token by token."))
    return Group(*parts, state_table(report), Text(f"* the model's own. {REMARK}"))


REMARK = (
    "Per token is the mean over the sequence. The longest context is that of each sequence of the batch, "
    "in the memory that the weights leave; activations are not counted."
)


def heading(report: CostReport) -> str:
    source = f" after a source of {report.source_length:,}" if report.source_length else ""
    return (
        f"{report.backbone}: {report.sequence_length:,} tokens{source}, "
        f"batch of {report.batch_size}, {report.precision}, vocabulary of {report.vocab_size:,}"
    )


def parameter_table(report: CostReport) -> Table:
    """Return the parameters by part, and their sum."""
    parameters = report.parameters
    table = _table("parameters", "count", "share", "used by a token")
    rows: dict[str, PartCost] = {**parameters.by_part, "total": parameters}
    for name, row in rows.items():
        label = "head (tied to the embedding)" if name == "head" and not row.total else name
        if name == "total":
            table.add_section()
        share = f"{row.total / parameters.total:.1%}"
        table.add_row(label, f"{row.total:,}", share, f"{row.active:,}")
    return table


def flops_table(report: CostReport) -> Table:
    table = _table("FLOPs", "weights", "attention", "mixer", "total", "per token")
    for name, label in FLOPS.items():
        row = report.flops.get(name)
        if row is None:
            continue
        tokens = {
            "forward": report.sequence_length,
            "reading_the_source": report.source_length,
            "training_step": report.sequence_length * report.batch_size,
        }.get(name, 1)
        operations = [count(flops) if flops else "-" for flops in (row.linear, row.attention, row.mixer)]
        table.add_row(label, *operations, f"{row.total:.4e}", count(row.total / tokens))
    return table


def six_n_d(report: CostReport) -> str:
    """Return the rule of thumb for training FLOPs, for comparison."""
    tokens = report.batch_size * report.sequence_length
    rule = 6 * report.parameters.active * tokens
    ratio = report.flops["training_step"].total / rule
    return (
        f"For orientation: 6 N D = {rule:.4e}, N parameters used by a token, D tokens of the training step, "
        f"which is {ratio:.2f} of it."
    )


def weights_line(report: CostReport) -> str:
    sizes = ", ".join(f"{name} {size(value)}" for name, value in report.weight_bytes.items())
    return f"Weights: {sizes} (integers without their scales)."


def training_line(report: CostReport) -> str:
    return (
        f"Training with AdamW, mixed precision too: {size(report.training_bytes)}, {TRAINING_BYTES} bytes "
        "for each parameter (float32 weight 4, gradient 4, two moments 8); activations come on top."
    )


def state_table(report: CostReport) -> Table:
    """Return the decoding state of each variant of attention."""
    precisions = list(report.states[0].longest_context)
    longest = [f"longest in {report.memory_gib:g} GiB, {name} weights" for name in precisions]
    contexts = {None: "unlimited", 0: "does not fit"}
    table = _table("decoding state", "parameters", "per token", "in all", *longest)
    for row in report.states:
        table.add_row(
            row.variant + (" *" if row.own else ""),
            count(row.parameters),
            size(row.bytes_per_token),
            size(row.bytes),
            *(f"{tokens:,}" if tokens else contexts[tokens] for tokens in row.longest_context.values()),
            style="bold" if row.own else None,
        )
    return table


def size(value: float) -> str:
    """Return bytes in a binary unit with four digits: 2.5 MiB, 320 KiB, 128.5 GiB."""
    power = min(4, int(math.log2(value) // 10)) if value >= 1 else 0
    return f"{value / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def _table(head: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column(head, no_wrap=True)
    for name in columns:
        table.add_column(name.replace(", ", ",\n"), justify="right", no_wrap=True)
    return table
