"""Gives a process of PyTorch's CUDA build one GPU that cannot compute, for tensors without values.

``cuda_without_driver.c`` says what it answers. It needs a C compiler and the CUDA build, whose packages
contain the headers of CUDA.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import torch

SOURCE = Path(__file__).with_suffix(".c")


def problem() -> str:
    """Return why such a process cannot be started; empty where it can."""
    if torch.version.cuda is None:
        return "PyTorch is built without CUDA"
    if shutil.which("cc") is None:
        return "there is no C compiler"
    return "" if headers() else "the headers of CUDA are not installed (pip install 'cuda-toolkit[cudart]')"


def headers() -> Path | None:
    """Return the folder of the headers of CUDA's runtime in the packages that PyTorch depends on."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    return next(
        (path.parent for folder in folders for path in folder.glob("*/include/cuda_runtime_api.h")), None
    )


def environment(folder: Path, capability: int = 90) -> dict[str, str]:
    """Build the library in a folder; return the environment of the process, with a compute capability."""
    library = folder / "libcuda.so.1"
    command = [
        "cc",
        "-shared",
        "-fPIC",
        f"-Wl,-soname,{library.name}",
        f"-I{headers()}",
        f"-o{library}",
        str(SOURCE),
    ]
    subprocess.run(command, check=True)
    return {**os.environ, "LD_PRELOAD": str(library), "CUDA_CAPABILITY": str(capability)}
