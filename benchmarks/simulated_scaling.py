"""The cost of a step from 8 to 512 GPUs, by family and layout (docs/performance/simulated.md).

python benchmarks/simulated_scaling.py --output benchmarks/results/simulated_scaling.md

There is no timing: ``archbench cost simulate`` simulates rank 0 of a job on a CPU. Strong scaling fixes the
sequences of a step, weak scaling the sequences of a process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from machine import Page, add_outputs, as_markdown, read_arguments

ROOT = Path(__file__).resolve().parent.parent
WORDS = (
    "task=text", "task.sequence_length=2048", "device=h100", "parallel=fsdp", "budget.micro_batch_size=4",
    "parallel.activation_checkpointing=block",
)  # fmt: skip
COUNTS = (8, 64, 512)
FAMILIES = (
    "decoder", "masked_diffusion", "encoder_decoder", "moe", "mamba2", "gated_deltanet", "s4", "hybrid",
)  # fmt: skip
BY_NODE, TENSOR = "parallel.replicate={nodes}", "parallel.tensor=8"
MORE = {"encoder_decoder": ("task.num_sentinels=102",)}
"""Overrides of one model: a sequence of 2,048 has more masked spans."""
GROUPS = {("moe", 512): "groups of 64"}
"""Layouts of one model and number of GPUs: 512 processes cannot divide its experts without padding."""
LAYOUTS: dict[str, tuple[str, ...]] = {
    "fsdp": (),
    "a replica for each node": (BY_NODE,),
    "tensor parallel in a node": (TENSOR,),
    "groups of 64": ("parallel.replicate=8",),
}
TABLES = ("strong", "weak", "layouts")
COLUMNS = (
    "model",
    "size",
    "layout",
    "GPUs",
    "sequences",
    "peak GiB",
    "sent GB",
    "computing ms",
    "exchanging ms",
    "ratio",
)


def main() -> None:
    """Simulate all layouts, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--counts", nargs="+", type=int, default=COUNTS)
    parser.add_argument("--families", nargs="+", default=FAMILIES)
    parser.add_argument("--tables", nargs="+", default=TABLES, choices=TABLES)
    add_outputs(parser)
    args = read_arguments(parser)
    page = Page(args.output, args.json)
    plans: dict[str, tuple[str, list[tuple[str, str, str, bool]]]] = {
        "strong": (
            "Strong: 512 sequences a step",
            [(name, "1_3b", "fsdp", False) for name in args.families],
        ),
        "weak": (
            "Weak: 8 sequences on each GPU",
            [(name, "1_3b", "fsdp", True) for name in args.families],
        ),
        "layouts": (
            "Layouts of a decoder, 8 sequences on each GPU",
            [("decoder", size, layout, True) for size in ("1_3b", "7b") for layout in list(LAYOUTS)[:3]],
        ),
    }
    for title, cases in (plans[name] for name in args.tables):
        rows = [
            row
            for name, size, layout, weak in cases
            for count in args.counts
            if (row := case(name, size, layout, count, 8 * count if weak else 512)) is not None
        ]
        page.note(title, rows)
        page.say(f"### {title}\n\n" + as_markdown(list(COLUMNS), rows))


def case(name: str, size: str, layout: str, count: int, batch: int) -> list[str] | None:
    """Return the row of a simulation; None where the layout is that of plain fsdp."""
    if layout == "a replica for each node" and count == 8:
        return None
    layout = GROUPS.get((name, count), layout)
    overrides = [*MORE.get(name, ()), *(word.format(nodes=count // 8) for word in LAYOUTS[layout])]
    result = simulated(
        count, *WORDS, *overrides, f"backbone={name}", f"scale={size}", f"budget.batch_size={batch}"
    )
    computing, exchanging = (result["seconds"][part] * 1e3 for part in ("computing", "exchanging"))
    return [
        name, size, layout, str(count), str(batch), f"{result['peak'] / 2**30:.1f}",
        f"{sum(result['traffic'].values()) / 1e9:.1f}", f"{computing:,.0f}", f"{exchanging:,.0f}",
        f"{exchanging / computing:.2f}",
    ]  # fmt: skip


def simulated(count: int, *words: str) -> dict[str, Any]:
    """Return what ``archbench cost simulate`` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        command = [
            sys.executable,
            "-m",
            "archbench.experiments.simulate",
            f"processes={count}",
            f"output={path}",
        ]
        subprocess.run([*command, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return json.loads(path.read_text())[0]


if __name__ == "__main__":
    main()
