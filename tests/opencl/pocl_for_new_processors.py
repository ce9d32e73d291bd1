"""PoCL on a processor that its LLVM does not know.

PoCL asks LLVM for the name of the processor and compiles for that. The LLVM of the wheel on PyPI is
of 2022; for a newer processor of AMD it says "generic", which its own compiler then refuses. This
makes PoCL's function that gives the name return that of an older processor. It is of use for tests
only: it overwrites code of a loaded library, on x86-64 Linux.

    python tests/opencl/pocl_for_new_processors.py -m turnout check opencl
"""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import runpy
import sys
from pathlib import Path

_READ_WRITE_EXECUTE = 7
_PAGE_BYTES = 4096


def give_name(name: bytes = b"znver3") -> bool:
    """Make PoCL compile for a named processor; whether that was needed and done.

    Call it before anything asks for OpenCL platforms.
    """
    library = _library()
    if library is None or platform.machine() != "x86_64" or sys.platform != "linux":
        return False
    pocl = ctypes.CDLL(str(library))
    pocl.pocl_get_llvm_cpu_name.restype = ctypes.c_char_p
    if pocl.pocl_get_llvm_cpu_name() != b"generic":
        return False
    libc = ctypes.CDLL(None)
    libc.strdup.restype = ctypes.c_void_p
    address = ctypes.cast(pocl.pocl_get_llvm_cpu_name, ctypes.c_void_p).value or 0
    # mov rdi, name; mov rax, strdup; jmp rax: the caller frees what it gets
    kept = libc.strdup(name)  # stays as long as the process
    strdup = ctypes.cast(libc.strdup, ctypes.c_void_p).value or 0
    code = b"\x48\xbf" + kept.to_bytes(8, "little")
    code += b"\x48\xb8" + strdup.to_bytes(8, "little") + b"\xff\xe0"
    page = address & -_PAGE_BYTES
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(2 * _PAGE_BYTES), _READ_WRITE_EXECUTE):
        return False
    ctypes.memmove(address, code, len(code))
    return True


def _library() -> Path | None:
    """PoCL as pyopencl's extra brings it."""
    found = importlib.util.find_spec("pyopencl")
    if found is None or found.origin is None:
        return None
    return next(iter(sorted(Path(found.origin).parent.glob(".libs/libpocl-*.so"))), None)


if __name__ == "__main__":
    give_name()
    if sys.argv[1:2] == ["-m"]:
        module = sys.argv[2]
        sys.argv = sys.argv[2:]
        sys.path[0] = ""  # as `python -m` has it
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
