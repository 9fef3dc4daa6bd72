"""Peak memory of each process of a run that 1, 2 and 4 processes train, by phase.

python benchmarks/distributed_memory.py --output benchmarks/results/distributed_memory.md

The processes are real and communicate over gloo; the run is a complete one, by ``experiments.run.run``: the
model is built, a step is taken, a few examples are evaluated, a checkpoint is saved. Before each phase the
kernel resets the peak of the process (``/proc/self/clear_refs``), after it the peak is read (``VmHWM``).
Memory of libraries before the model is built has a separate column, and is part of all others.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import Page, add_outputs, as_markdown, machine_line, read_arguments

WORDS = (
    "backbone=decoder", "task=text", "task.sequence_length=64", "scale.targets=null", "backbone.d_model=1024",
    "backbone.num_layers=24", "backbone.attention.num_heads=16", "backbone.attention.num_kv_heads=16",
    "budget.batch_size=4", "budget.tokens=256", "device=cpu", "device.threads=1",
    "trainer.validation_examples=4", "trainer.test_examples=4", "trainer.checkpoint_every=1",
    "trainer.keep_checkpoints=1", "trainer.step_timeout_seconds=3000", "optimizer.learning_rate=1e-5",
)  # fmt: skip
"""A decoder of 302 million parameters, for a step."""
PHASES = ("libraries", "build", "step", "evaluation", "checkpoint")


def main() -> None:
    """Measure every count of processes, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--words", nargs="*", default=[], help="overrides, such as backbone.num_layers=6")
    parser.add_argument("--worker", nargs=2, metavar=("FILE", "RUNS"), help=argparse.SUPPRESS)
    add_outputs(parser)
    args = read_arguments(parser)
    if args.worker:
        Path(args.worker[0]).write_text(json.dumps(work([*WORDS, *args.words, f"runs={args.worker[1]}"])))
        return
    page = Page(args.output, args.json)
    page.say(f"Peak resident memory of each process in MiB, of the one that has most. {machine_line()}")
    rows = []
    for size in args.processes:
        peaks = together(size, args.words)
        page.note(str(size), peaks)
        rows.append([str(size), *(f"{max(peak[phase] for peak in peaks):,.0f}" for phase in PHASES)])
    page.say(as_markdown(["processes", *PHASES], rows))


def together(size: int, overrides: list[str]) -> list[dict[str, float]]:
    """Return the peaks by phase of each of ``size`` processes."""
    with tempfile.TemporaryDirectory() as desk, socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = str(opened.getsockname()[1])
        opened.close()
        started = []
        for rank in range(size):
            rank_variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size} if size > 1 else {}
            environment = {name: str(value) for name, value in rank_variables.items()}
            file = f"{desk}/{rank}.json"
            layout = ["parallel=fsdp"] if size > 1 else []
            command = [
                sys.executable,
                __file__,
                "--worker",
                file,
                f"{desk}/runs",
                "--words",
                *layout,
                *overrides,
            ]
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            started.append(subprocess.Popen(command, env=os.environ | environment))
        codes = [process.wait() for process in started]
        if any(codes):
            sys.exit(f"error: a process of {size} ended with {max(codes)}")
        return [json.loads(Path(desk, f"{rank}.json").read_text()) for rank in range(size)]


def work(overrides: list[str]) -> dict[str, float]:
    """Train one run, and return the peaks of this process by phase, in MiB."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    import archbench.experiments.run.run as execution
    from archbench.experiments.config import CONF
    from archbench.experiments.config.sections import read_sections
    from archbench.experiments.run.settings import read_settings
    from archbench.experiments.training.evaluator import Evaluator
    from archbench.experiments.training.parallel import collectives
    from archbench.experiments.training.trainer import Trainer

    peaks: dict[str, float] = {}

    def measured(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            Path("/proc/self/clear_refs").write_text("5")
            result = function(*args, **kwargs)
            peaks[phase] = max(peaks.get(phase, 0.0), _status("VmHWM"))
            return result

        return call

    def build(*args: Any) -> Any:
        peaks["libraries"] = _status("VmRSS")
        return plain(*args)

    plain = execution.build
    execution.build = measured("build", build)
    Trainer.train_step = measured("step", Trainer.train_step)  # type: ignore[method-assign]
    Evaluator.evaluate = measured("evaluation", Evaluator.evaluate)  # type: ignore[method-assign]
    Trainer.save = measured("checkpoint", Trainer.save)  # type: ignore[method-assign]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = hydra.compose("config", overrides=overrides, return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)
    execution.run(
        read_settings(read_sections(OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])))
    )
    collectives.stop()
    return peaks


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


if __name__ == "__main__":
    main()
