"""The OpenCL backend: units as OpenCL C, built by whatever driver is there, through pyopencl.

``devices`` finds platforms and opens devices, ``compiler`` makes binaries and programs of units,
``launcher`` enqueues, ``memory`` moves arrays and tells how they lie, ``clock`` times with events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnout.plugin import (
    Binary,
    Device,
    Launcher,
    Memory,
    Options,
    Sync,
    Target,
    Timer,
    hookimpl,
    ir,
)

if TYPE_CHECKING:
    from .devices import OpenDevice


@hookimpl
def turnout_devices() -> Sequence[Device]:
    """Every device of every platform that can be used."""
    from . import devices

    return devices.found()


@hookimpl
def turnout_compile(unit: ir.Unit, target: Target, options: Options) -> Binary:
    """The text of a unit; what the driver makes of it where one for the target is there."""
    from . import compiler

    return compiler.compile_unit(unit, target, options)


@hookimpl
def turnout_launch(binary: Binary, device: Device, unit: ir.Unit) -> Launcher:
    """The program in the context of the device, its kernels ready to be enqueued."""
    from . import launcher

    return launcher.make_launcher(binary, _opened(device), unit)


@hookimpl
def turnout_sync(device: Device) -> Sync:
    """Wait for the queues into which launches went."""
    return _opened(device).finish


@hookimpl
def turnout_timer(device: Device) -> Timer:
    """Time by the device's clock, with events in its queue."""
    from . import clock

    return clock.timer(_opened(device))


@hookimpl
def turnout_memory(device: Device) -> Memory:
    """Arrays of pyopencl."""
    from . import memory

    return memory.OpenCLMemory(_opened(device))


def _opened(device: Device) -> OpenDevice:
    from . import devices

    return devices.opened(device)
