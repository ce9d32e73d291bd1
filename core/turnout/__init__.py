"""turnout: one operation, many ways to run it, and the fastest correct one is picked at run time.

Kernels are Python functions compiled for the device at hand (`kernel`), several implementations of
one operation are raced while the program runs (`perf_dispatch`), and backends come from any
installed package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import math
from .backends import (
    array,
    backends,
    devices,
    set_default_device,
    sync,
    timer,
    to_numpy,
    use,
)
from .errors import (
    BackendError,
    CacheWarning,
    CallError,
    CompileError,
    ConfigurationError,
    KernelError,
    OutOfBoundsError,
    PerformanceWarning,
    PlacementError,
    TurnoutError,
    Unavailable,
)
from .ir.types import bool_, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from .kernel import Kernel, func, kernel
from .lang import (
    Index,
    Mutable,
    NDArray,
    Param,
    Scalar,
    Terminated,
    Vector,
    parallel,
    serial,
)
from .threads import num_threads, set_num_threads
from .version import __version__

if TYPE_CHECKING:
    from .costs import dispatch_costs
    from .derive import vjp
    from .perf import PerformanceDispatcher, perf_dispatch
    from .racing import race

__all__ = [
    "BackendError",
    "CacheWarning",
    "CallError",
    "CompileError",
    "ConfigurationError",
    "Index",
    "Kernel",
    "KernelError",
    "Mutable",
    "NDArray",
    "OutOfBoundsError",
    "Param",
    "PerformanceDispatcher",
    "PerformanceWarning",
    "PlacementError",
    "Scalar",
    "Terminated",
    "TurnoutError",
    "Unavailable",
    "Vector",
    "__version__",
    "array",
    "backends",
    "bool_",
    "devices",
    "dispatch_costs",
    "f32",
    "f64",
    "func",
    "i8",
    "i16",
    "i32",
    "i64",
    "kernel",
    "math",
    "num_threads",
    "parallel",
    "perf_dispatch",
    "race",
    "serial",
    "set_default_device",
    "set_num_threads",
    "sync",
    "timer",
    "to_numpy",
    "u8",
    "u16",
    "u32",
    "u64",
    "use",
    "vjp",
]

_OF_PERF_DISPATCH = ("PerformanceDispatcher", "perf_dispatch")


def __getattr__(name: str) -> object:
    # Programs that only run kernels need nothing of these, and start faster without them.
    if name == "race":
        from .racing import race

        return race
    if name == "dispatch_costs":
        from .costs import dispatch_costs

        return dispatch_costs
    if name == "vjp":
        from .derive import vjp

        return vjp
    if name in _OF_PERF_DISPATCH:
        from . import perf

        return getattr(perf, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
