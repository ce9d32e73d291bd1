"""What the core answers where a backend does not: nothing to wait for, host clock, host memory.

These defaults fit a backend that runs on the host, returns from a launch when the work is done and
takes NumPy arrays. They are registered behind every backend, which may answer any hook itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from . import ir
from .hooks import Device, Memory, Sync, Target, Timer, hookimpl


class HostMemory:
    """Memory of a device that works on NumPy arrays; copies nothing unless it must."""

    def owns(self, value: object) -> bool:
        """Whether `value` is a NumPy array."""
        return isinstance(value, np.ndarray)

    def put(self, host: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return `host` itself."""
        return host

    def get(self, value: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
        """Copy `value` into `out`, unless they are one array."""
        if value is not out:
            np.copyto(out, value)


@hookimpl(trylast=True)
def turnout_sync(device: Device) -> Sync:
    """Give a function that returns at once: launches have finished when they return."""

    def sync() -> None:
        return None

    return sync


@hookimpl(trylast=True)
def turnout_timer(device: Device, sync: Sync) -> Timer:
    """Give a monotonic host clock that is read between two syncs."""

    def timer(work: Callable[[], None]) -> int:
        sync()
        started_ns = time.perf_counter_ns()
        work()
        sync()
        return time.perf_counter_ns() - started_ns

    return timer


@hookimpl(trylast=True)
def turnout_memory(device: Device) -> Memory:
    """Give the host's memory."""
    return HostMemory()


@hookimpl(trylast=True)
def turnout_lower_dispatch(
    unit: ir.Unit, site: ir.Dispatch, policy: str, target: Target
) -> ir.Plan | None:
    """Leave every dispatch to the core's lowering."""
    return None
