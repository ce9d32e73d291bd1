"""What `instructions` counts, run under callgrind: ``python -m benchmarks.instructions_program``.

Instrumentation is off until the first section, so that imports and compilation take seconds. A
section runs one statement many times and is dumped under its own name; that of the empty
statement is what the loop itself costs. Prints, as JSON, how often a section runs its statement.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import timeit

import numpy as np

import turnout as tn

from .dispatch import first, second, shapes
from .drag import drag

CALLS = 200
WARM_UP_CALLS = 400

SECTIONS = {
    "loop": "pass",
    "launch": "drag(0.1, regime, v, v_new)",
    "dispatch": "operation(a, b)",
    "implementation": "first(a, b)",
}

# Client requests of callgrind.h: the tool's letters in the upper half, then a number.
_BASE = (ord("C") << 24) | (ord("T") << 16)
ZERO_STATISTICS = _BASE + 1
DUMP_STATISTICS_AT = _BASE + 3
START_INSTRUMENTATION = _BASE + 4
STOP_INSTRUMENTATION = _BASE + 5

# `long request(long words[6])` for x86-64, as in valgrind.h: four rotations that together do
# nothing, and an exchange of a register with itself, which valgrind takes for a request.
_CODE = bytes.fromhex(
    "4889f8"  # mov rax, rdi   the request and its arguments
    "31d2"  # xor edx, edx   the answer without valgrind
    "48c1c703"  # rol rdi, 3
    "48c1c70d"  # rol rdi, 13
    "48c1c73d"  # rol rdi, 61
    "48c1c733"  # rol rdi, 51
    "4887db"  # xchg rbx, rbx
    "4889d0"  # mov rax, rdx
    "c3"  # ret
)


class Valgrind:
    """The valgrind that this process runs under."""

    def __init__(self) -> None:
        self._page = mmap.mmap(
            -1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        )
        self._page.write(_CODE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        self._call = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(address)

    def request(self, *words: int) -> int:
        """Ask valgrind for something; nothing happens without it."""
        block = (ctypes.c_uint64 * 6)(*words)
        return self._call(ctypes.addressof(block))


def main() -> None:
    """Run all sections."""
    tn.set_num_threads(1)
    operation = tn.perf_dispatch(get_geometry_hash=shapes, repeat_after_seconds=1e9)(prototype)
    operation.register(first)
    operation.register(second)
    names = {
        "drag": drag,
        "operation": operation,
        "first": first,
        "regime": np.arange(100) % 3,
        "v": np.linspace(-2.0, 2.0, 100),
        "v_new": np.empty(100),
        "a": np.zeros(4, np.float32),
        "b": np.zeros(4, np.float32),
    }
    timers = {name: timeit.Timer(text, globals=names) for name, text in SECTIONS.items()}
    for timer in timers.values():
        timer.timeit(WARM_UP_CALLS)  # compiles, decides, and lets the interpreter specialise
    valgrind = Valgrind()
    gc.disable()
    for name, timer in timers.items():
        label = ctypes.create_string_buffer(name.encode())
        valgrind.request(START_INSTRUMENTATION)
        timer.timeit(1)
        valgrind.request(ZERO_STATISTICS)
        timer.timeit(CALLS)
        valgrind.request(DUMP_STATISTICS_AT, ctypes.addressof(label))
        valgrind.request(STOP_INSTRUMENTATION)
    print(json.dumps({"calls": CALLS, "target": target()}))


def prototype(a, b):
    """The operation whose decided call is counted."""


def target() -> str:
    """What kernels are compiled for under valgrind, which emulates a CPU of its own."""
    return next(d.target.arch for d in tn.devices() if d.target.backend == "cpu")


if __name__ == "__main__":
    main()
