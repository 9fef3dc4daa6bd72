"""Runs every GPU measurement, each part in a child process; writes one JSON file and a page of tables.

benchmarks/gpu.sh --output benchmarks/results/gpu.json
benchmarks/gpu.sh --parts mfu decode
benchmarks/gpu.sh --resume
benchmarks/gpu.sh --device cpu --tiny

A part that fails or exceeds its time leaves its error with the finished rows; other parts continue. Both
files are written again, atomically, after each part, and after an interruption. Existing files are refused
without --resume, which runs the parts that failed, are missing, or are named, and keeps the others. The page
has the name of the JSON file, with .md.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

import torch
from gpu_cards import bandwidth_shares, card_named, flops_shares
from machine import as_markdown, commit

PARTS = {"rates": 60, "warm": 240, "mfu": 420, "moe": 90, "scan": 120, "decode": 180}
"""Seconds that each part may take: 18.5 minutes together."""
GRACE = 10
"""Seconds that a part may exceed its limit before it is killed."""
INTERRUPTED = "interrupted"
"""Error of the part that ran when the set was interrupted or terminated."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end the set, after the finished rows are written."""
FOLDER = Path(__file__).resolve().parent


def main() -> None:
    args = parse()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu.sh: no CUDA device here; --device cpu --tiny runs the set in miniature")
    end_once_by_signals()
    results: dict[str, Any] = {"machine": machine(args.device), "tiny": args.tiny, "parts": {}}
    if args.resume:
        results["parts"] = earlier_parts(args.output, results)
    write(args.output, results)
    failed = measure(args, results)
    failed |= {name for name, part in results["parts"].items() if part["error"]}
    if failed:
        names = ", ".join(name for name in PARTS if name in failed)
        sys.exit(f"gpu.sh: {args.output} is written; not whole: {names}; --resume runs what is missing")
    print(f"written to {args.output}")


def end_once_by_signals() -> None:
    """Raise KeyboardInterrupt at the first Ctrl-C, SIGTERM (schedulers) or SIGHUP (lost connections).

    Later ones are ignored: a lost connection may send two, and the second must not stop the writing.
    Signals that are ignored already stay so: ``nohup`` ignores SIGHUP.
    """
    caught = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]

    def end(*_: object) -> NoReturn:
        for number in caught:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in caught:
        signal.signal(number, end)


def measure(args: argparse.Namespace, results: dict[str, Any]) -> set[str]:
    """Run the parts and write the files after each; return the parts that failed. Ends at an interruption."""
    selected, failed = selected_parts(args.parts, results["parts"]), set()
    for part in (name for name in results["parts"] if name not in selected):
        print(f"{part}: kept", flush=True)
    for part in selected:
        print(f"{part}, at most {PARTS[part]} s ...", flush=True)
        new = run(part, args)
        parts = results["parts"] | {part: better(results["parts"].get(part), new)}
        results["parts"] = {name: parts[name] for name in PARTS if name in parts}
        add_shares(results)
        write(args.output, results)
        if new["error"]:
            failed.add(part)
        if new["error"] == INTERRUPTED:
            break  # without a print: the terminal may be gone
        print(table(part, parts[part]) + "\n", flush=True)
    return failed


def selected_parts(named: list[str] | None, parts: dict[str, Any]) -> list[str]:
    """The named parts, else those that failed or are missing; and the rates, unless they are whole."""
    missing = [name for name in PARTS if name not in parts or parts[name]["error"]]
    return [name for name in PARTS if name in (named or missing) or (name == "rates" and name in missing)]


def better(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """Return the result with more good rows, or without an error; the new one of equals."""

    def quality(part: dict[str, Any]) -> tuple[int, bool]:
        return sum("error" not in row for row in part["rows"]), not part["error"]

    if old is None or quality(new) >= quality(old):
        return new
    return old | {"note": f"earlier result kept; the last run was worse: {new['error'] or 'fewer rows'}"}


def earlier_parts(path: Path, results: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of an earlier JSON file, if any; refuse one of another machine or code."""
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        page(earlier)  # reads every field
    except FileNotFoundError:
        return {}
    except OSError as error:
        refuse(f"--resume: {path} cannot be read: {error.strerror}")
    except (ValueError, LookupError, TypeError, AttributeError):
        refuse(f"--resume: {path} is no whole JSON file of gpu.sh; name another --output")
    for name in ("device", "torch", "commit"):
        if (was := earlier["machine"][name]) != (now := results["machine"][name]):
            refuse(f"--resume: {path} was measured with {name} {was}, this is {now}")
    if earlier["tiny"] != results["tiny"]:
        refuse(f"--resume: one of {path} and this run is in miniature (--tiny)")
    return dict(earlier["parts"])


def refuse(mistake: str) -> NoReturn:
    """End with one line and the status of user mistakes."""
    print(f"gpu.sh: {mistake}", file=sys.stderr)
    sys.exit(2)


def run(part: str, args: argparse.Namespace) -> dict[str, Any]:
    """The rows of a part, its seconds, and the error, or None."""
    command = [sys.executable, str(FOLDER / "gpu_part.py"), part, args.device, str(PARTS[part])]
    began = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+", errors="replace") as out,
        tempfile.TemporaryFile("w+", errors="replace") as err,
    ):
        error = failure([*command, *(["--tiny"] if args.tiny else [])], out, err, PARTS[part] + GRACE)
        out.seek(0)
        rows = list(complete_rows(out.read()))
    if broken := sum("error" in row for row in rows):
        error = error or f"{broken} of {len(rows)} rows failed"
    return {"rows": rows, "error": error, "seconds": round(time.perf_counter() - began, 1)}


def failure(command: list[str], out: IO[str], err: IO[str], limit: float) -> str | None:
    """Run a command; return why it failed, or None. Processes that it started end with it."""
    process = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True)
    try:
        if not (status := process.wait(limit)):
            return None
    except subprocess.TimeoutExpired:
        return f"killed after {limit} s"
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    err.seek(0)
    lines = err.read().strip().splitlines()
    name = f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return f"{name}: {lines[-1]}" if lines else name


def complete_rows(text: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a part; a killed process may leave half of the last line."""
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            if line.startswith("{"):
                yield json.loads(line)


def add_shares(results: dict[str, Any]) -> None:
    """Add the fraction of peak of each row, once the rates are measured."""
    parts = results["parts"]
    measured = parts["rates"]["rows"][0] if parts["rates"]["rows"] else {}
    card = card_named(results["machine"]["device"])
    for part in parts.values():
        for row in part["rows"]:
            if "flops" in row and "seconds" in row:
                row |= flops_shares(row["flops"] / row["seconds"], measured, card)
            elif "bytes" in row and "seconds" in row:
                row |= bandwidth_shares(row["bytes"] / row["seconds"], measured, card)


def table(name: str, part: dict[str, Any]) -> str:
    """Return the results of a part as Markdown."""
    rows = part["rows"]
    columns = list(dict.fromkeys(key for row in rows for key in row if key != "kernels"))
    cells = [[shown(row.get(column)) for column in columns] for row in rows]
    text = as_markdown(columns, cells) if rows else ""
    note = f" ({part['note']})" if "note" in part else ""
    return f"{text}\n{name}: {part['error'] or 'done'}, {part['seconds']} s{note}".lstrip()


def shown(value: Any) -> str:
    """A cell; empty for None."""
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def machine(device: str) -> dict[str, Any]:
    """Description of the machine."""
    cuda = device == "cuda"
    return {
        "device": torch.cuda.get_device_name() if cuda else "CPU",
        "host": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "driver": driver() if cuda else None,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
    }


def driver() -> str | None:
    """The version of the NVIDIA driver; None if nvidia-smi does not report it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        return None
    return output[0] if output else None


def write(path: Path, results: dict[str, Any]) -> None:
    """Write JSON and page atomically: readers see the old or the new file. Refuse files that cannot be."""
    for target, text in (
        (path, json.dumps(results, indent=1) + "\n"),
        (path.with_suffix(".md"), page(results)),
    ):
        new = target.with_name(target.name + ".new")
        try:
            new.write_text(text, encoding="utf-8")
            new.replace(target)
        except OSError as error:
            refuse(f"--output: {target} cannot be written: {error.strerror}")
        finally:
            with contextlib.suppress(OSError):
                new.unlink()


def page(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    about = results["machine"]
    lines = [f"# {about['device']}", ""]
    if results["tiny"]:
        lines += ["**In miniature: these values are meaningless.**", ""]
    names = ("host", "driver", "cuda", "torch", "python", "date", "commit")
    lines += [", ".join(f"{name} {about[name]}" for name in names if about[name]) + ".", ""]
    for name, part in results["parts"].items():
        lines += [f"## {name}", "", table(name, part), ""]
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = os.environ.get("ARCHBENCH_GPU_DEVICE", "cuda")
    parser.add_argument("--device", choices=("cuda", "cpu"), default=default, help="cpu is always tiny")
    parser.add_argument("--tiny", action="store_true", help="models of a few thousand parameters")
    parser.add_argument("--resume", action="store_true", help="run what failed or is missing in --output")
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), help="run these, even if they are whole")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("gpu.json"),
        help="JSON file; the page is written next to it; default gpu.json",
    )
    args = parser.parse_args()
    if args.device not in ("cuda", "cpu"):
        parser.error(f"ARCHBENCH_GPU_DEVICE={args.device}: options: cuda, cpu")
    if args.output.suffix != ".json":
        parser.error(f"--output {args.output}: must end in .json; the page gets the same name and .md")
    if not os.path.isdir(args.output.parent):
        parser.error(f"--output {args.output}: there is no folder {args.output.parent}; make it first")
    for file in (args.output, args.output.with_suffix(".md")):
        if os.path.lexists(file) and not (args.resume and os.path.lexists(args.output)):
            parser.error(f"{file} exists: --resume continues a JSON file, or name another --output")
    args.tiny = args.tiny or args.device == "cpu"
    return args
