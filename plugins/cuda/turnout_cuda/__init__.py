"""The CUDA backend: units as CUDA C++, compiled by NVRTC, launched through CuPy.

The way of a unit through this package, one module per step:

1. ``diagnosis``: which GPUs there are, or what is missing to use them;
2. ``compiler``: CUDA C++, which turnout writes, to machine code for a GPU that need not be there;
3. ``launcher``: the arguments of a call to a launch on CuPy's current stream;
4. ``driver``: the calls of CUDA that launches are made of;
5. ``arrays`` and ``clock``: memory, waiting and timing.

Nothing here loads CuPy or a driver before it is asked for.
"""

from __future__ import annotations

import functools
import zlib
from typing import TYPE_CHECKING

from turnout.plugin import (
    Binary,
    CompileError,
    Device,
    Launcher,
    Memory,
    Options,
    Sync,
    Target,
    Timer,
    cfamily,
    format_unit,
    hookimpl,
    ir,
)

if TYPE_CHECKING:
    from .driver import Driver

_KIND = "cuda-image"


@hookimpl
def turnout_devices() -> list[Device]:
    """The GPUs that CUDA shows to this process."""
    from .diagnosis import find_devices

    return find_devices()


@hookimpl
def turnout_compile(unit: ir.Unit, target: Target, options: Options) -> Binary:
    """Machine code of one unit."""
    from .compiler import compile_text

    text = source(unit, options)
    image = compile_text(
        text, target.arch, level=options.level, fast_math=unit.fast_math and not options.debug
    )
    metadata = {"debug": str(options.debug), "crc32": str(zlib.crc32(image.code))}
    if options.keep_text:
        metadata |= {
            "text:unit": format_unit(unit),
            "text:cuda": text,
            "text:ptx": image.ptx,
            "text:resources": f"{image.resources or 'known to the driver only'}",
        }
    return Binary(cfamily.entry_name(unit), _KIND, image.code, metadata)


def source(unit: ir.Unit, options: Options) -> str:
    """The CUDA C++ of a unit, with one function for any strides: they cost a GPU nothing."""
    rendered = cfamily.render(unit, cfamily.CUDA_CPP, debug=options.debug, with_dense_entry=False)
    return rendered.text


@hookimpl
def turnout_launch(binary: Binary, device: Device, unit: ir.Unit) -> Launcher:
    """The code, loaded on the device."""
    from .launcher import CheckingLauncher, CudaLauncher

    if binary.kind != _KIND:
        raise CompileError("cuda", f"binary {binary.entry!r} is {binary.kind!r}, not {_KIND!r}")
    if binary.metadata.get("crc32") != str(zlib.crc32(binary.payload)):
        raise CompileError("cuda", f"the code of binary {binary.entry!r} is damaged")
    driver = _driver()
    loaded = driver.load(binary.payload, binary.entry, device.index)
    make = CheckingLauncher if binary.metadata["debug"] == "True" else CudaLauncher
    return make(driver, loaded, unit, device.index)


@functools.cache
def _driver() -> Driver:
    from .driver import Driver

    return Driver()


@hookimpl
def turnout_sync(device: Device) -> Sync:
    """Waits for everything on the device."""
    from .clock import make_sync

    return make_sync(device.index)


@hookimpl
def turnout_timer(device: Device) -> Timer:
    """Times with events on the current stream."""
    from .clock import EventTimer

    return EventTimer(device.index)


@hookimpl
def turnout_memory(device: Device) -> Memory:
    """CuPy's arrays, and those of other libraries on the device."""
    from .arrays import CudaMemory

    return CudaMemory(device.index)
