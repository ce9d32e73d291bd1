"""The CUDA backend without a GPU: its CUDA C++ is compiled by g++ and run on the CPU.

Only the compiler and the driver are replaced. The text of kernels, the packing of arguments and all
else of the launcher are the CUDA backend's own.
"""

from __future__ import annotations

from turnout.plugin import (
    Binary,
    Device,
    Launcher,
    Memory,
    Options,
    Target,
    Unavailable,
    cfamily,
    hookimpl,
    ir,
)
from turnout_cuda import source

from .arrays import EmulatedMemory
from .machine import EmulatedDriver, compile_text, compiler

_TARGET = Target(
    "cuda_emulated",
    "cpu",
    frozenset({"f64", "correct_rounding", "bounds"}),
    lanes=32,
)
_driver = EmulatedDriver()


@hookimpl
def turnout_devices() -> list[Device]:
    if compiler() is None:
        raise Unavailable("there is no C++ compiler", "install g++, or name one in CXX")
    return [Device(0, "CUDA C++ on the CPU", _TARGET)]


@hookimpl
def turnout_compile(unit: ir.Unit, options: Options) -> Binary:
    entry = cfamily.entry_name(unit)
    code = compile_text(source(unit, options), entry)
    return Binary(entry, "emulated", code, {"debug": str(options.debug)})


@hookimpl
def turnout_launch(binary: Binary, device: Device, unit: ir.Unit) -> Launcher:
    from turnout_cuda.launcher import CheckingLauncher, CudaLauncher

    loaded = _driver.load(binary.payload, binary.entry, device.index)
    make = CheckingLauncher if binary.metadata["debug"] == "True" else CudaLauncher
    return make(_driver, loaded, unit, device.index)


@hookimpl
def turnout_memory(device: Device) -> Memory:
    return EmulatedMemory()
