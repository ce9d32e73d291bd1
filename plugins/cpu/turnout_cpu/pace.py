"""How many threads a launch is worth, by what earlier launches of the same unit took.

What one element of a launch's size costs is measured, never assumed. A launch gets one thread per
`GRAIN_NS` of work that is expected. What is expected may be wrong: the result is right all the
same, only slower than it could be.

**Constant cost.** Without loops in the body, the lowest cost seen is the best estimate, because
whatever disturbs a measurement makes it longer.

**Varying cost.** The rounds of a loop may differ from call to call, so there the average of the
recent launches counts, and a launch that took longer than expected brings the measuring back.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
import weakref

from turnout.plugin import Options, ir, num_threads, on_num_threads_change, statements

from .accesses import has_atomic_updates
from .counters import private_counters
from .space import constant_size

GRAIN_NS = 30_000
"""Work that is worth a thread. Handing it over takes 8 to 20 microseconds."""

RELIABLE_NS = 15_000
"""A launch that takes less says little about the cost of an element: fixed costs count too."""

_RELEASE_AFTER_NS = 30_000
"""Calls expected to take longer release the interpreter lock. Taking it back after a shorter one
can cost more than the call where other threads keep the interpreter busy."""

_STATEMENT_NS = 0.5
"""Order of magnitude of one statement at one position."""

_LARGEST = 2**63 - 1


def has_loops(unit: ir.Unit) -> bool:
    """Whether a position runs loops; nothing is known about their number of rounds."""
    return any(isinstance(each, ir.For | ir.While) for each in statements(unit.body.body))


def holding_limit(unit: ir.Unit) -> int:
    """Size up to which a launch surely takes too little to be worth what goes on around it.

    Such a call keeps the interpreter lock.
    """
    if has_loops(unit):
        return 0
    body = list(statements(unit.body.body))
    return int(_RELEASE_AFTER_NS / (_STATEMENT_NS * (len(body) + 1)))


def runs_alone(unit: ir.Unit) -> bool:
    """Whether one thread runs every launch whole, because there is nothing to share."""
    size = constant_size(unit)
    return size is not None and size <= max(1, holding_limit(unit))


class Pace:
    """What launches of one unit take; decides how many threads each gets.

    Sizes are those that a launcher is given. The two numbers can be read and written at their
    addresses, too.

    Attributes
    ----------
    threshold : c_int64
        Greatest size that one thread runs alone and unmeasured.
    slow_ns : c_int64
        A launch up to that size that takes longer sets the threshold below its size.
    """

    def __init__(self, *, varies: bool) -> None:
        self.threshold = ctypes.c_int64(0)
        self.slow_ns = ctypes.c_int64(_LARGEST)
        self.varies = varies
        self._cost_ns = math.inf
        self._is_reliable = False
        with _lock:
            _paces.add(self)

    def threads(self, size: int) -> int:
        """How many threads a launch above the threshold is worth; 1 until that is known."""
        if num_threads() == 1:
            self._stop_measuring()
        if not self._is_reliable:
            return 1
        return min(num_threads(), max(1, int(size * self._cost_ns / GRAIN_NS)))

    def learn(self, size: int, elapsed_ns: int, threads: int) -> None:
        """Take note of how long a launch above the threshold took."""
        if self.threshold.value == _LARGEST:
            return
        cost_ns = max(1, elapsed_ns) * threads / size
        if not self.varies:
            cost_ns = min(cost_ns, self._cost_ns)
        elif self._is_reliable:
            cost_ns = (cost_ns + self._cost_ns) / 2
        self._cost_ns = cost_ns
        self._is_reliable = self._is_reliable or elapsed_ns >= RELIABLE_NS
        self.threshold.value = min(_LARGEST - 1, int(2 * GRAIN_NS / cost_ns))
        self.slow_ns.value = 2 * GRAIN_NS if self.varies else _LARGEST

    def _stop_measuring(self) -> None:
        """With one thread there is nothing to decide."""
        self.threshold.value = self.slow_ns.value = _LARGEST
        if num_threads() > 1:  # since a moment ago
            self.threshold.value = 0


class UpdatingPace(Pace):
    """Of a unit that updates shared elements atomically.

    For several threads that may be much slower than a plain update in one, depending on how often
    they meet. Both ways are tried, at launches 1, 2, 4, 8 and so on the one that was slower.
    """

    def __init__(self, *, varies: bool) -> None:
        super().__init__(varies=varies)
        self._alone_ns, self._together_ns = math.inf, 0.0
        self._launches = 0

    def threads(self, size: int) -> int:
        threads = super().threads(size)
        if threads == 1:
            return 1
        self._launches += 1
        is_power_of_two = self._launches & (self._launches - 1) == 0
        prefers_one = (self._alone_ns < self._together_ns) != is_power_of_two
        return 1 if prefers_one else threads

    def learn(self, size: int, elapsed_ns: int, threads: int) -> None:
        if threads > 1:
            self._together_ns = elapsed_ns / size
            return
        self._alone_ns = elapsed_ns / size
        super().learn(size, elapsed_ns, threads)


class SinglePace(Pace):
    """Of a unit that only one thread may run."""

    def threads(self, size: int) -> int:
        self.threshold.value = _LARGEST
        return 1


def pace(unit: ir.Unit) -> Pace:
    """Make the pace of a unit, which has seen no launch yet."""
    varies = has_loops(unit)
    if runs_alone(unit):
        return SinglePace(varies=varies)
    updates = has_atomic_updates(unit.body, private_counters(unit, Options()))
    return UpdatingPace(varies=varies) if updates else Pace(varies=varies)


_paces: weakref.WeakSet[Pace] = weakref.WeakSet()
_lock = threading.RLock()


def _reconsider() -> None:
    with _lock:
        for each in _paces:
            each.threshold.value = 0


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


on_num_threads_change(_reconsider)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
