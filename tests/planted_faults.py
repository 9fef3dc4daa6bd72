"""Plant faults in the code, one at a time, and say which tier of the tests catches each.

    python -m tests.planted_faults                       all faults
    python -m tests.planted_faults rope-sign correction  these
    python -m tests.planted_faults --list

For each fault the committed code is checked out into a scratch worktree, one line is replaced, and the tests
that should notice run there: first those of the fast tier, then, where these pass, those of the full tier.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A line of the code, replaced by a wrong one."""

    name: str
    about: str
    file: str
    old: str
    """Occurs in the file once."""
    new: str
    tests: str
    """Files or folders of ``tests/`` that should notice, separated by spaces."""

    def applied_to(self, text: str) -> str:
        """Return the source with the fault. Raises ValueError where the line is not there exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has {text.count(self.old)} times: {self.old}")
        return text.replace(self.old, self.new)


FAULTS = (
    Fault(
        name="causal-mask",
        about="the causal mask shows the next position",
        file="architectures/layers/attention/functional.py",
        old="mask_BTS = ahead_BTS <= 0",
        new="mask_BTS = ahead_BTS <= 1",
        tests="tests/architectures/layers/attention",
    ),
    Fault(
        name="rope-sign",
        about="rotary positions turn the other way",
        file="architectures/layers/positions.py",
        old="torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)",
        new="torch.cat([x1 * cos + x2 * sin, x2 * cos - x1 * sin], dim=-1)",
        tests="tests/architectures/layers/test_positions.py",
    ),
    Fault(
        name="warmup",
        about="the first step of the warm-up has learning rate 0",
        file="experiments/training/lr_schedule.py",
        old="return (step + 1) / warmup",
        new="return step / warmup",
        tests="tests/experiments/training/test_optimizer.py",
    ),
    Fault(
        name="balance-loss",
        about="the load-balancing loss of experts is dropped",
        file="experiments/training/loss.py",
        old="loss = loss + auxiliary / rows",
        new="loss = loss + 0 * auxiliary",
        tests="tests/experiments/objectives/test_accumulation.py",
    ),
    Fault(
        name="moments",
        about="a resumed run starts with empty optimizer moments",
        file="experiments/training/checkpoints/stored_state.py",
        old='load_moments(optimizer, load_file(path / "optimizer.safetensors"))',
        new='load_file(path / "optimizer.safetensors")',
        tests="tests/experiments/training/checkpoints tests/experiments/run/test_resume.py",
    ),
    Fault(
        name="bits-per-byte",
        about="bits per byte are nats per byte",
        file="experiments/tasks/bits_per_byte.py",
        old="return nats / math.log(2)",
        new="return nats",
        tests="tests/experiments/evaluation/test_measure.py",
    ),
    Fault(
        name="dispatch",
        about="only the first of a token's experts is added",
        file="architectures/layers/moe/dispatch.py",
        old="* gate_NK[..., None]).sum(1)",
        new="* gate_NK[..., None])[:, 0]",
        tests="tests/architectures/layers/moe/test_experts.py",
    ),
    Fault(
        name="zero-order-hold",
        about="S4's zero-order hold is Euler's step",
        file="architectures/layers/ssm/discretization.py",
        old="B_DM * (log_A_DM.exp() - 1) / A_DM",
        new="B_DM * log_A_DM / A_DM",
        tests="tests/architectures/layers/ssm/test_discretization.py",
    ),
    Fault(
        name="diffusion-weight",
        about="the loss of masked diffusion is multiplied by t instead of divided",
        file="experiments/objectives/diffusion/masked_diffusion.py",
        old="weight_BT = masked_BT / inverse_weight(",
        new="weight_BT = masked_BT * inverse_weight(",
        tests="tests/experiments/objectives/diffusion/test_masked_diffusion.py",
    ),
    Fault(
        name="digest",
        about="the digest of a run ignores the size of the model",
        file="experiments/config/digest.py",
        old='beside = ("seed", "runs",',
        new='beside = ("scale", "seed", "runs",',
        tests="tests/experiments/run/test_settings.py",
    ),
    Fault(
        name="atomic-write",
        about="a file is overwritten in place instead of replaced",
        file="experiments/runtime/atomic_io.py",
        old='temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")',
        new="temporary = path",
        tests="tests/experiments/tracking/test_run_folder.py tests/faults/test_fault_storage.py",
    ),
    Fault(
        name="correction",
        about="p-values are not corrected for the number of pairs",
        file="analysis/stats/verdicts/family.py",
        old="all_pairs(count)",
        new="one_comparison()",
        tests="tests/analysis/stats/verdicts/test_verdict_test.py",
    ),
)


@contextmanager
def scratch_worktree() -> Iterator[Path]:
    """Check the committed code out into a folder of its own, and remove it at the end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "archbench"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", path], cwd=ROOT, check=True)
        try:
            yield path
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", path], cwd=ROOT, check=True)


def notices(fault: Fault, checkout: Path, tier: str) -> bool:
    """Return whether a test of a tier fails with the fault."""
    path = checkout / fault.file
    clean = path.read_text()
    path.write_text(fault.applied_to(clean))
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-x", "--tier", tier]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    try:
        done = subprocess.run(
            [*words, *fault.tests.split()], cwd=checkout, env=environment, capture_output=True, text=True
        )
    finally:
        path.write_text(clean)
    if done.returncode not in (0, 1, 5):
        raise RuntimeError(done.stdout + done.stderr)
    return done.returncode == 1


def main() -> None:
    names = [fault.name for fault in FAULTS]
    parser = argparse.ArgumentParser(description="Plant faults and say which tier of the tests catches each.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--list", action="store_true", help="print the faults and end")
    args = parser.parse_args()
    unknown = set(args.names) - set(names)
    if unknown:
        parser.error(f"no fault {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    chosen = [fault for fault in FAULTS if not args.names or fault.name in args.names]
    if args.list:
        for fault in chosen:
            print(f"{fault.name:16} {fault.file}: {fault.about}")
        return
    with scratch_worktree() as checkout:
        for fault in chosen:
            tier = next((tier for tier in ("fast", "full") if notices(fault, checkout, tier)), "none")
            print(f"| {fault.name} | {fault.about} | `{fault.file}` | {tier} |", flush=True)


if __name__ == "__main__":
    main()
