"""The source of each module as it was imported: files may change while a process runs.

``archbench`` begins the record before it imports anything else. Python would run the cached bytecode of a
source that has the same size and time as before, so bytecode that may be older than its source is removed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import site
import sys
import sysconfig
import threading
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

PACKAGE = "archbench"
"""The package of this project."""
RECORDED = ("archbench.architectures", "archbench.experiments")
"""Its subpackages of which the source is recorded wherever they are installed."""
SETTLED = 2.0
"""Seconds. A source that changed less before its bytecode was written may have changed after it as well."""

_sources: dict[str, bytes] = {}
_lock = threading.Lock()
_get_code = SourceFileLoader.get_code


def installed_folders() -> frozenset[Path]:
    """Return the folders of installed packages: those of this Python, and others on the path of modules.

    The latter are of another environment, named by PYTHONPATH or a .pth file.
    """
    folders = [path for name, path in sysconfig.get_paths().items() if name.endswith("lib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    folders += [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    return frozenset(Path(folder).resolve() for folder in folders)


INSTALLED = installed_folders()
"""Comparison before any code of the user is imported, which could change the path of modules."""
_PREFIXES = tuple({f"{folder}{os.sep}" for folder in INSTALLED} | {f"{path}{os.sep}" for path in sys.path
                  if Path(path).name in ("site-packages", "dist-packages")})  # fmt: skip


def begin() -> None:
    """Record the modules that are imported from now on, and those that were imported already."""
    SourceFileLoader.get_code = _recorded_code  # type: ignore[method-assign, assignment]
    for name, module in list(sys.modules.items()):
        file = getattr(getattr(module, "__spec__", None), "origin", None)
        if isinstance(file, str) and file.endswith(".py") and _is_recorded(name, file):
            with contextlib.suppress(OSError):
                keep(Path(file), Path(file).read_bytes())


def source(path: Path) -> bytes:
    """Return the content of a source file as it was imported or compiled, else as it is. Raises OSError."""
    kept = _sources.get(os.path.realpath(path))
    return path.read_bytes() if kept is None else kept


def keep(path: Path, content: bytes) -> None:
    """Record the content of a source file that runs now."""
    with _lock:
        _sources[os.path.realpath(path)] = content


def kept() -> dict[str, bytes]:
    """Return the recorded sources by their real paths."""
    with _lock:
        return dict(_sources)


def _recorded_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
    path = self.get_filename(fullname)
    if _is_recorded(fullname, path):
        content = self.get_data(path)
        if not path.startswith(_PREFIXES):
            _remove_old_bytecode(path)
        keep(Path(path), content)
    return _get_code(self, fullname)


def _is_recorded(name: str, path: str) -> bool:
    """Return False for modules of Python and of installed packages other than the project."""
    return name.startswith(RECORDED) or not path.startswith(_PREFIXES)


def _remove_old_bytecode(path: str) -> None:
    with contextlib.suppress(OSError, NotImplementedError):
        bytecode = importlib.util.cache_from_source(path)
        if os.stat(bytecode).st_mtime < os.stat(path).st_ctime + SETTLED:
            os.unlink(bytecode)
