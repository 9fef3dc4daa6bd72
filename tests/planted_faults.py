"""Plant faults in the code, one at a time, and say which tier of the tests catches each.

    python -m tests.planted_faults                       all faults
    python -m tests.planted_faults rope-sign correction  these
    python -m tests.planted_faults --list

The faults are listed in ``planted_faults.yaml``, with the tier that catches each. The committed code is
checked out into a scratch worktree. For each fault one line is replaced, and the tests that should notice run
there: first those of the fast tier, then, where these pass, all of them. The exit code is 1 where
another tier catches a fault than the listed one.
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

import yaml

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
    tier: str
    """The first tier, ``fast`` or ``all``, of which a test notices."""

    def applied_to(self, text: str) -> str:
        """Return the source with the fault. Raises ValueError where the line is not there exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has {text.count(self.old)} times: {self.old}")
        return text.replace(self.old, self.new)


FAULTS = [Fault(**entry) for entry in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())]


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
    environment = {**os.environ, "PYTHONPATH": f"{checkout / 'src'}:{checkout}"}
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
            print(f"{fault.name:20} {fault.tier} {fault.file}: {fault.about}")
        return
    different = 0
    with scratch_worktree() as checkout:
        for fault in chosen:
            tier = next((tier for tier in ("fast", "all") if notices(fault, checkout, tier)), "none")
            different += tier != fault.tier
            print(f"| {fault.name} | {fault.about} | `{fault.file}` | {tier} |", flush=True)
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
