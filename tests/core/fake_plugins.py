"""Distributions that are installed into a temporary folder of the path, and backends in them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from turnout.backends import clear

BACKEND = """
from turnout.plugin import Device, Target, hookimpl
from turnout.reference import turnout_compile, turnout_launch

@hookimpl
def turnout_devices():
    return [Device(index, f"fake {{index}}", Target("{name}", "fake")) for index in range({count})]
"""

ARRAYS = """
import numpy as np

class Array:
    def __init__(self, device, host):
        self.device, self.host, self.shape, self.dtype = device, host, host.shape, host.dtype

class Memory:
    def __init__(self, device):
        self.device = device

    def owns(self, value):
        return isinstance(value, Array) and value.device == self.device

    def put(self, host):
        return Array(self.device, np.array(host))

    def get(self, value, out):
        out[...] = value.host

@hookimpl
def turnout_memory(device):
    return Memory(device)
"""


def backend_source(name: str, count: int = 1, *, own_arrays: bool = False) -> str:
    """Source of a backend that runs units by the reference, with `count` devices."""
    return BACKEND.format(name=name, count=count) + (ARRAYS if own_arrays else "")


DEVICE = """
import numpy as np
from turnout import reference
from turnout.plugin import CompileError, Device, Target, format_unit, hookimpl, ir, statements

FEATURES = frozenset({features!r})
log = []  # what reached a device from the host, in order
queues = [[] for _ in range({count})]  # work that waits, one queue per device
clocks_ns = [0] * {count}  # each position of a launch takes a nanosecond, a launch 100 more
captured = set()  # devices whose work is being recorded

class Array:
    # Elements in the memory of a device; who reads `there` before the queue is empty is too early.
    def __init__(self, device, there):
        self.device, self.there = device, there
        self.shape, self.dtype, self.ndim = there.shape, there.dtype, there.ndim
        self.nbytes, self.strides = there.nbytes, there.strides

    def __getitem__(self, key):
        return Array(self.device, self.there[key])

    def __setitem__(self, key, value):
        assert value.device == self.device
        enqueue(self.device, lambda: self.there.__setitem__(key, value.there))

    def copy(self):
        other = Array(self.device, np.empty(self.shape, self.dtype))
        other[...] = self
        return other

def enqueue(device, work):
    queues[device.index].append(work)

def drain(device):
    while queues[device.index]:
        queues[device.index].pop(0)()

class Memory:
    def __init__(self, device):
        self.device = device

    def owns(self, value):
        return type(value) is Array and value.device is self.device

    def put(self, host):
        assert host.flags.c_contiguous and host.dtype.isnative
        log.append(f"put {{self.device}} {{host.dtype}}{{list(host.shape)}}")
        staged, made = host.copy(), Array(self.device, np.empty(host.shape, host.dtype))
        enqueue(self.device, lambda: made.there.__setitem__(..., staged))
        return made

    def get(self, value, out):
        assert out.flags.c_contiguous and out.size and value.device is self.device
        log.append(f"get {{self.device}} {{out.dtype}}{{list(out.shape)}}")
        drain(self.device)
        out[...] = value.there

    def zeros(self, shape, dtype):
        made = Array(self.device, np.ones(shape, dtype))
        enqueue(self.device, lambda: made.there.__setitem__(..., 0))
        return made

    def interface(self, value):
        return value.there.__array_interface__

class Launcher:
    direct = None

    def __init__(self, device, unit):
        self.device, self.run = device, reference.turnout_launch(unit=unit)

    def __call__(self, args, size):
        args = tuple([self.there(arg) for arg in args])
        log.append(f"launch {{self.device}} {{size}}")
        def work():
            clocks_ns[self.device.index] += 100 + size
            self.run(args, size)
        enqueue(self.device, work)

    def there(self, arg):
        assert not isinstance(arg, np.ndarray), "an array on the host"
        if not isinstance(arg, Array):
            return arg
        assert arg.device is self.device, "an array on another device"
        return arg.there

@hookimpl
def turnout_devices():
    target = Target("{name}", "fake", FEATURES)
    return [Device(index, f"fake {{index}}", target) for index in range({count})]

@hookimpl
def turnout_compile(unit, target):
    used = [parameter.dtype for parameter in unit.parameters]
    used += [r.dtype for s in statements((*unit.prologue, *unit.body.body)) for r in s.results]
    if ir.f64 in used and "f64" not in target.features:
        raise CompileError("{name}", "this device has no float64", source=format_unit(unit))
    return reference.turnout_compile(unit=unit)

@hookimpl
def turnout_launch(unit, device):
    return Launcher(device, unit)

@hookimpl
def turnout_memory(device):
    return Memory(device)

@hookimpl
def turnout_sync(device):
    return lambda: drain(device)

@hookimpl
def turnout_timer(device, sync):
    def timer(work):
        sync()
        started_ns = clocks_ns[device.index]
        work()
        sync()
        return clocks_ns[device.index] - started_ns
    timer.is_capturing = lambda: device.index in captured
    return timer
"""


def device_source(name: str, count: int = 2, features: Collection[str] = ("f64",)) -> str:
    """Source of a backend with arrays, memory, queues and clocks of its own.

    Work runs only when something waits for it, the clock advances by the work that was done, and
    arrays are of no kind that NumPy knows.
    """
    return DEVICE.format(name=name, count=count, features=tuple(features))


class Site:
    """A folder of the path in which tests install distributions."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        folder.mkdir()
        monkeypatch.syspath_prepend(str(folder))

    def install(
        self,
        distribution: str,
        entry_points: str,
        modules: Mapping[str, str] | None = None,
        version: str = "1.0",
    ) -> Path:
        """Write one distribution; `entry_points` is the text of its ``entry_points.txt``."""
        info = self.folder / f"{distribution}-{version}.dist-info"
        info.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        (info / "METADATA").write_text(metadata)
        (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")
        for module, source in (modules or {}).items():
            (self.folder / f"{module}.py").write_text(source)
            # Undone after the test, so that the next one may use the name again.
            self.monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
            self.monkeypatch.delitem(sys.modules, module)
        importlib.invalidate_caches()
        clear()
        return info

    def install_backend(
        self, name: str, source: str | None = None, distribution: str = "", version: str = "1.0"
    ) -> Path:
        """Write a distribution with one backend in the module ``<distribution>_module``."""
        distribution = distribution or f"dist-{name}"
        module = f"{distribution.replace('-', '_')}_module"
        entry_points = f"[turnout.backends]\n{name} = {module}\n"
        source = backend_source(name) if source is None else source
        return self.install(distribution, entry_points, {module: source}, version)
