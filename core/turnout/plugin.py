"""The one module that authors of backends and implementations import.

A backend is a module that answers at least three hooks (`turnout.hooks` documents all seven: who
calls them, when, what they return). This one has a single device and runs units that only fill
arrays with a scalar, which is enough to see all the parts:

    from turnout.plugin import Binary, CompileError, Device, Target, hookimpl, ir

    TARGET = Target(backend="filler", arch="numpy", features=frozenset({"f64"}))

    @hookimpl
    def turnout_devices():
        return [Device(index=0, label="fills arrays", target=TARGET)]

    @hookimpl
    def turnout_compile(unit):                # an implementation takes the arguments it needs
        match *unit.parameters, *unit.body.body:
            case ir.ArrayParameter(rank=1), ir.ScalarParameter(_, given), ir.Store(_, at, stored):
                if stored == given and at == unit.body.parameters:
                    return Binary(entry=unit.name, kind="fill", payload=b"")
        raise CompileError("filler", f"unit {unit.name} does more than fill an array")

    @hookimpl
    def turnout_launch(binary, device, unit):
        return Fill()

    class Fill:
        direct = None

        def __call__(self, args, size):
            array, value = args
            array[:size] = value

Its distribution names the module in its ``pyproject.toml``, and nothing else is needed:

    [project.entry-points."turnout.backends"]
    filler = "turnout_filler"

``turnout doctor`` then lists the backend, ``turnout check filler`` runs the conformance suite on
it. The guide is ``docs/write_a_backend.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import ir
from .direct import NO_DEFAULT, CallLimit, DecidedCalls, DirectCall, DirectParameter, DirectRun
from .errors import BackendError, CallError, CompileError, Unavailable
from .hooks import (
    Binary,
    Device,
    IndexViolation,
    Launcher,
    Memory,
    Options,
    Sync,
    Target,
    Timer,
    hookimpl,
)
from .ir import OPERATIONS, Operation, format_unit, statements
from .offers import (
    CompiledOperation,
    CompileOperation,
    MakeDecidedCalls,
    offer_compiled_operation,
    offer_decided_calls,
)
from .slots import packer
from .threads import num_threads, on_num_threads_change

if TYPE_CHECKING:
    from . import cfamily
    from .cache import binary_key, default_cache


def __getattr__(name: str) -> Any:
    # Loading them takes milliseconds, which backends that do not use them would lose.
    if name == "cfamily":
        from . import cfamily

        return cfamily
    if name in ("binary_key", "default_cache"):
        from . import cache

        return getattr(cache, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "NO_DEFAULT",
    "OPERATIONS",
    "BackendError",
    "Binary",
    "CallError",
    "CallLimit",
    "CompileError",
    "CompileOperation",
    "CompiledOperation",
    "DecidedCalls",
    "Device",
    "DirectCall",
    "DirectParameter",
    "DirectRun",
    "IndexViolation",
    "Launcher",
    "MakeDecidedCalls",
    "Memory",
    "Operation",
    "Options",
    "Sync",
    "Target",
    "Timer",
    "Unavailable",
    "binary_key",
    "cfamily",
    "default_cache",
    "format_unit",
    "hookimpl",
    "ir",
    "num_threads",
    "offer_compiled_operation",
    "offer_decided_calls",
    "on_num_threads_change",
    "packer",
    "statements",
]
