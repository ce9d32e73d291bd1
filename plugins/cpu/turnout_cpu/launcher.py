"""Arguments to packed memory to a native call."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np

from turnout.plugin import DirectCall, IndexViolation, ir, packer, statements

from . import threads
from .compiler import Loaded
from .pace import has_loops, holding_limit, pace
from .space import elements_per_position

_RESULT, *_ARGUMENTS = ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64
_holding = ctypes.PYFUNCTYPE(_RESULT, *_ARGUMENTS)
_releasing = ctypes.CFUNCTYPE(_RESULT, *_ARGUMENTS)

_Record = ctypes.c_int64 * 4


class CpuLauncher:
    """Runs the loaded code of one unit; see `turnout.plugin.Launcher`.

    It holds no memory of a call, so threads may share it. The code stays loaded as long as the
    launcher lives, and a running call keeps the launcher alive.

    Attributes
    ----------
    address : int
        Where the code is.
    holding_limit : int
        Number of positions up to which a call keeps the interpreter lock.
    threshold, slow_ns : c_int64
        Up to which size one thread runs a launch, and what is too slow for that; see
        `turnout_cpu.pace.Pace`. Whoever calls the code directly keeps to them.
    """

    def __init__(self, loaded: Loaded, unit: ir.Unit) -> None:
        self._loaded = loaded
        self.address = loaded.address
        self._pack = packer(unit, _ADDRESS, word_at=_word_at)
        self._holding = _holding(loaded.address)
        self._releasing = _releasing(loaded.address)
        self.holding_limit = holding_limit(unit)
        self._has_loops = has_loops(unit)
        self._pace = pace(unit)
        self.threshold, self.slow_ns = self._pace.threshold, self._pace.slow_ns
        self._elements_per_position = elements_per_position(unit)
        self._updated = _updated_places(unit)

    def __call__(self, args: tuple[Any, ...], size: int) -> None:
        if size == 0:
            return
        if size > self.threshold.value:
            self._measured(args, size)
            return
        native = self._holding if size <= self.holding_limit else self._releasing
        if not self._has_loops:
            native(self._pack(*args), 0, threads.WHOLE)
            return
        slots = self._pack(*args)
        started_ns = perf_counter_ns()
        native(slots, 0, threads.WHOLE)
        if perf_counter_ns() - started_ns > self.slow_ns.value:
            self.threshold.value = size - 1

    def _measured(self, args: tuple[Any, ...], size: int) -> None:
        """Run a launch that may be worth several threads, or of which that is not known yet."""
        count = self._pace.threads(size)
        # Atomic instructions need aligned elements.
        if count > 1 and not all(args[place].flags.aligned for place in self._updated):
            count = 1
        slots = self._pack(*args)
        if count == 1:
            native = self._holding if size <= self.holding_limit else self._releasing
            started_ns = perf_counter_ns()
            native(slots, 0, threads.WHOLE)
        else:
            pool, positions = threads.pool(), size // self._elements_per_position
            started_ns = perf_counter_ns()
            count = pool.run(self.address, slots, positions, count)
        self._pace.learn(size, perf_counter_ns() - started_ns, count)

    def direct(self, call: DirectCall) -> Callable[..., Any] | None:
        """Make the native entry of a call."""
        from . import native_entry

        return native_entry.make_entry(call)


class CheckingLauncher(CpuLauncher):
    """Runs code that was compiled with ``Options.debug``.

    In one thread, so that the violation it reports is always the first, and only from Python.
    """

    direct = None  # type: ignore[assignment]

    def __call__(self, args: tuple[Any, ...], size: int) -> None:
        if size == 0:
            return
        record = _Record()
        slots = self._pack(*args) + struct.pack("=Q", ctypes.addressof(record))
        if self._releasing(slots, 0, threads.WHOLE):
            raise IndexViolation(*record)


def _updated_places(unit: ir.Unit) -> list[int]:
    """Where the arrays with atomic updates stand among the parameters."""
    updated = {
        each.array
        for each in statements(unit.body.body)
        if isinstance(each, ir.Store) and each.combine is not None
    }
    return [n for n, parameter in enumerate(unit.parameters) if parameter.name in updated]


_word_at = ctypes.c_ssize_t.from_address
_HEADER_BYTES = object.__basicsize__


def _starts_with_address() -> bool:
    """Whether the first field of an array object is its address, as in NumPy's C interface."""
    probe = np.zeros(4)
    return all(
        _word_at(id(array) + _HEADER_BYTES).value == array.ctypes.data
        for array in (probe, probe[1:], probe[::-1])
    )


# Reading the field takes a tenth of the time of the attribute, which is there for interpreters that
# lay out objects in another way.
_ADDRESS = "{0}.ctypes.data"
if _starts_with_address():
    _ADDRESS = f"word_at(id({{0}}) + {_HEADER_BYTES}).value"
