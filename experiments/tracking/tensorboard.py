"""TensorBoard's event files, in ``tensorboard/`` of the run folder: ``tensorboard --logdir runs/STUDY``.

The horizontal axis "relative" shows seconds of training, over all sessions of the run.
"""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf

from archbench.experiments.config.schema import TrackingConfig
from archbench.experiments.tracking.run_files import RunResult
from archbench.experiments.tracking.tracker import RunIdentity, Sink

FLUSH_SECONDS = 1
"""Seconds between writes: at most the rows of this time are lost if the process is killed."""


class TensorBoardSink(Sink):
    """Event files, written by each session of the run from its first row."""

    name = "TensorBoard"

    def __init__(
        self, config: TrackingConfig, run: RunIdentity, folder: Path, contents: dict[str, object]
    ) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise ValueError("its package is not installed: pip install 'archbench[tensorboard]'") from None
        for path in (folder / "tensorboard").glob("events.out.tfevents.*"):
            path.unlink()  # its rows are in metrics.jsonl and are logged again
        self.writer = SummaryWriter(str(folder / "tensorboard"), flush_secs=FLUSH_SECONDS)
        self.step, self.seconds = -1, 0.0
        lines = f"{run.key}\n{OmegaConf.to_yaml(contents)}".splitlines()
        text = "".join(f"    {line}\n" for line in lines)  # indented, as TensorBoard renders Markdown
        self.writer.add_text("run", text, walltime=0.0)

    def log(self, step: int, seconds: float, names: dict[str, object]) -> None:
        for name, value in names.items():
            axis = name.startswith("progress/")
            # Rows of one step share their axes; a list (the load of each expert) is no curve.
            if isinstance(value, int | float) and not (axis and step == self.step):
                self.writer.add_scalar(name, value, step, walltime=seconds)
        self.step, self.seconds = step, seconds

    def close(self, result: RunResult | None, exit_code: int) -> None:
        for metric in [] if result is None else result.metrics:
            name = f"result/{metric.split}/{metric.name}"
            self.writer.add_scalar(name, metric.value, max(self.step, 0), walltime=self.seconds)
        self.writer.add_text("status", str(result and result.status), walltime=self.seconds)
        self.writer.close()
