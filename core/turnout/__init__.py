"""turnout: one operation, many ways to run it, and the fastest correct one is picked at run time.

Kernels are Python functions compiled for the device at hand (`kernel`), several implementations of
one operation are raced while the program runs (`perf_dispatch`), and backends come from any
installed package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    BundleError,
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
from .kernel import Executable, Kernel, func, kernel, specialise, specialize
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
    from . import ops
    from .bundle import Bundle, build
    from .bundle_loading import load, run
    from .costs import dispatch_costs
    from .derive import vjp
    from .perf import PerformanceDispatcher, perf_dispatch
    from .racing import race
    from .resolve import resolve_dispatch
    from .segmented_units import dispatch_units

__all__ = [
    "BackendError",
    "Bundle",
    "BundleError",
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
    "build",
    "devices",
    "dispatch_costs",
    "dispatch_units",
    "f32",
    "f64",
    "func",
    "i8",
    "i16",
    "i32",
    "i64",
    "kernel",
    "load",
    "math",
    "num_threads",
    "ops",
    "parallel",
    "perf_dispatch",
    "race",
    "resolve_dispatch",
    "run",
    "serial",
    "set_default_device",
    "set_num_threads",
    "specialise",
    "specialize",
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

_MODULES = {
    "Bundle": "bundle",
    "build": "bundle",
    "load": "bundle_loading",
    "run": "bundle_loading",
    "PerformanceDispatcher": "perf",
    "perf_dispatch": "perf",
    "race": "racing",
    "dispatch_costs": "costs",
    "dispatch_units": "segmented_units",
    "resolve_dispatch": "resolve",
    "vjp": "derive",
}
"""Where names are that programs which only run kernels do not need; these start faster so."""


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "ops":
        return import_module(".ops", __name__)
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def _choose_policies(kernel: Kernel, executable: Executable, uncounted: Any) -> Any:
    from .policy import automatic

    return automatic(kernel, executable, uncounted)


def _watch_sizes(kernel: Kernel, executable: Executable) -> Any:
    from .hot_sizes import watched

    return watched(kernel, executable)


Kernel.choose_policies = _choose_policies  # type: ignore
Kernel.watch_sizes = _watch_sizes  # type: ignore
