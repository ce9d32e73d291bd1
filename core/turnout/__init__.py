"""turnout: one operation, many ways to run it, and the fastest correct one is picked at run time.

Kernels are Python functions compiled for the device at hand (`kernel`), several implementations of
one operation are raced while the program runs (`perf_dispatch`), and backends come from any
installed package.
"""

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
from .perf import PerformanceDispatcher, perf_dispatch

__version__ = "0.1.0"

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
    "f32",
    "f64",
    "func",
    "i8",
    "i16",
    "i32",
    "i64",
    "kernel",
    "math",
    "parallel",
    "perf_dispatch",
    "serial",
    "set_default_device",
    "sync",
    "timer",
    "to_numpy",
    "u8",
    "u16",
    "u32",
    "u64",
    "use",
]
