"""CUDA C++ compiled by the host's compiler, and a driver that runs it."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from turnout.plugin import CompileError
from turnout_cuda.driver import Loaded

from .arrays import EmulatedArray

_FOLDER = Path(__file__).parent
_OPTIONS = (
    "-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing",
    # Without it a kernel with a name that a library of the system has would call the library.
    "-Wl,-Bsymbolic",
    "-Wno-unknown-pragmas", "-Wno-unused-function", "-w",
)  # fmt: skip
_COLLECTIVE = re.compile(r"__(syncthreads|syncwarp|activemask|\w+_sync)\b")
_SANITIZE = "TURNOUT_EMULATED_SANITIZE"
"""Sanitizers of the compiler, for example ``address,undefined``; libasan must be preloaded."""

_OUTCOMES = {
    1: "deadlock: a barrier or collective that not all threads reach",
    2: "the packed parameters are not those of the kernel",
}


def compiler() -> str | None:
    """The compiler that is used; None where there is none."""
    return shutil.which(os.environ.get("CXX") or "g++")


def compile_text(text: str, entry: str) -> bytes:
    """A shared library that runs one kernel of a translation unit.

    Raises
    ------
    CompileError
        Where the compiler refuses the text.
    """
    sanitizers = os.environ.get(_SANITIZE)
    options = [
        *_OPTIONS,
        f"-DKERNEL={entry}",
        f"-I{_FOLDER}",
        *(["-DEMULATE_FIBERS"] if _COLLECTIVE.search(text) else []),
        *([f"-fsanitize={sanitizers}", "-g"] if sanitizers else []),
    ]
    source = (
        f'#include "cuda_on_cpu.h"\n#line 1 "kernel.cu"\n{text}\n#include "cuda_on_cpu_entry.h"\n'
    )
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "kernel.so")
        done = subprocess.run(
            [compiler() or "g++", *options, "-x", "c++", "-", "-o", str(library)],
            input=source,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise CompileError("cuda_emulated", done.stderr, text)
        return library.read_bytes()


class Library:
    """A loaded shared library."""

    def __init__(self, code: bytes) -> None:
        # The loader needs a file, and one of a new name for each library.
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(code)
            file.flush()
            # Kernels have global state, so the interpreter lock is kept while one runs.
            self._library = ctypes.PyDLL(file.name)
        self.launch = self._library.emulated_launch
        self.launch.argtypes = [*[ctypes.c_uint] * 6, ctypes.c_void_p]


class EmulatedDriver:
    """What `turnout_cuda.launcher` calls, on the CPU: launches end before they return."""

    array_type = EmulatedArray

    def __init__(self) -> None:
        self._libraries: dict[int, Library] = {}

    def load(self, code: bytes, entry: str, ordinal: int) -> Any:
        library = Library(code)
        self._libraries[id(library)] = library
        return Loaded(library, id(library))

    def launch_kernel(self, function: int, *rest: int) -> None:
        shape, (shared, stream, parameters, extra) = rest[:6], rest[6:]
        assert (shared, stream, parameters) == (0, 0, 0)
        outcome = self._libraries[function].launch(*shape, extra)
        if outcome:
            raise RuntimeError(_OUTCOMES[outcome])

    def new_record(self) -> EmulatedArray:
        return EmulatedArray(np.zeros(5, np.int64))

    def read_record(self, record: EmulatedArray) -> list[int]:
        words: list[int] = record.host.tolist()
        return words

    def is_current_stream(self, stream: int) -> bool:
        return True

    def current_ordinal(self) -> int:
        return 0

    def current_stream(self) -> int:
        return 0

    def multiprocessors(self, ordinal: int) -> int:
        return 1

    def device(self, ordinal: int) -> Any:
        return nullcontext()
