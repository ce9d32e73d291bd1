"""The backend ``cc``: kernels as C text, compiled by the C compiler of the system.

The core writes the text (`turnout.plugin.cfamily`), so that what is left is what only this backend
knows: how its compiler is called, and how what it made is loaded and run.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnout.plugin import (
    Binary,
    CompileError,
    Device,
    IndexViolation,
    Launcher,
    Options,
    Target,
    Unavailable,
    cfamily,
    hookimpl,
    ir,
)

FEATURES = frozenset({"f64", "correct_rounding", "bounds"})
# No contraction: a * b + c is rounded twice, as everywhere else.
FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC", "-ffp-contract=off")
# The function has the same name in every library, so that one declaration serves all of them.
NAME = "run"
DECLARATION = "int64_t run(const uint64_t *slots, int64_t begin, int64_t end);"


@hookimpl
def turnout_devices() -> Sequence[Device]:
    target = Target("cc", platform.machine(), FEATURES, options=(_version(), *FLAGS))
    return [Device(index=0, label=_version(), target=target)]


@hookimpl
def turnout_compile(unit: ir.Unit, options: Options) -> Binary:
    rendered = cfamily.render(unit, cfamily.C99, debug=options.debug, with_dense_entry=False)
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "unit.c"), Path(folder, "unit.so")
        source.write_text(rendered.text)
        renamed = f"-D{rendered.entry}={NAME}"
        command = [_compiler(), *FLAGS, renamed, str(source), "-o", str(library), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise CompileError("cc", done.stderr, source=rendered.text)
        metadata = {"text:C": rendered.text} if options.keep_text else {}
        metadata["debug"] = str(options.debug)
        return Binary(unit.name, "shared library", library.read_bytes(), metadata)


@hookimpl
def turnout_launch(binary: Binary, unit: ir.Unit) -> Launcher:
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(binary.payload)
        file.flush()
        try:
            library = _ffi().dlopen(file.name)  # stays loaded when the file is gone
        except OSError as error:
            raise CompileError("cc", str(error)) from None
    return CLauncher(library, unit, is_debug=binary.metadata["debug"] == "True")


class CLauncher:
    """A loaded unit. The work is done when a call returns, so nothing has to wait for it."""

    direct = None

    def __init__(self, library: Any, unit: ir.Unit, *, is_debug: bool) -> None:
        self._library = library  # unloaded when nobody refers to it
        self._ffi = _ffi()
        self._run = library.run
        self._pack = cfamily.packer(unit, "{0}.__array_interface__['data'][0]")
        self._is_debug = is_debug

    def __call__(self, args: tuple[Any, ...], size: int) -> None:
        if size == 0:
            return
        slots = self._pack(*args)
        record = self._ffi.new("int64_t[5]") if self._is_debug else None
        if record is not None:
            slots += struct.pack("=Q", int(self._ffi.cast("uintptr_t", record)))
        if self._run(self._ffi.from_buffer("uint64_t[]", slots), 0, size) and record is not None:
            raise IndexViolation(*record[1:5])


@functools.cache
def _ffi() -> Any:
    import cffi  # native code, which importing a backend is not to load

    ffi = cffi.FFI()
    ffi.cdef(DECLARATION)
    return ffi


def _compiler() -> str:
    """The compiler: what the environment variable CC says, else the first one that is found."""
    names = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    for name in names:
        if found := shutil.which(name):
            return found
    raise Unavailable(
        f"there is no C compiler called {' or '.join(names)} on the PATH",
        "install one, for example with `apt-get install gcc`, or set CC to the one that you have",
    )


def _version() -> str:
    done = subprocess.run([_compiler(), "--version"], capture_output=True, text=True)
    return (done.stdout.splitlines() or [_compiler()])[0]
