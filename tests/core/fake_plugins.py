"""Distributions that are installed into a temporary folder of the path, and backends in them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
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
