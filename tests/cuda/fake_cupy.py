"""A module `cupy` whose driver only takes notes: what CUDA would have been asked to do.

Arrays live in host memory. Everything that a GPU would do is a line in `FakeCupy.calls`.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import struct
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest


class Error(RuntimeError):
    """What CuPy raises for an error code of CUDA."""

    def __init__(self, status: int, text: str = "") -> None:
        self.status = status
        super().__init__(text or f"error {status}")


class Array:
    """An array of CuPy."""

    def __init__(self, fake: FakeCupy, host: np.ndarray[Any, Any], ordinal: int) -> None:
        self._fake, self.host = fake, host
        self.shape, self.strides, self.dtype = host.shape, host.strides, host.dtype
        self.ndim, self.size, self.nbytes = host.ndim, host.size, host.nbytes
        self.flags = host.flags
        self.data = types.SimpleNamespace(ptr=host.ctypes.data, device_id=ordinal)

    def set(self, host: np.ndarray[Any, Any], stream: Any) -> None:
        self._fake.calls.append(f"copy to device on stream {stream.ptr}")
        self.host[...] = host

    def get(self, out: np.ndarray[Any, Any]) -> None:
        self._fake.calls.append("copy to host")
        out[...] = self.host


class FakeCupy(types.ModuleType):
    """The module.

    Attributes
    ----------
    calls : list of str
        What the driver was asked to do, in order.
    launches : list of bytes
        The parameters of each launch.
    ordinal : int
        The current GPU.
    streams : dict of int to int
        The current stream of each GPU.
    capturing : set of int
        Streams that record a graph.
    failures : dict of str to list of Exception
        What the next calls of a function raise.
    """

    def __init__(self, count: int = 2) -> None:
        super().__init__("cupy")
        self.__spec__ = importlib.machinery.ModuleSpec("cupy", None)
        self.calls: list[str] = []
        self.launches: list[bytes] = []
        self.ordinal = 0
        self.streams = {ordinal: 100 * ordinal for ordinal in range(count)}
        self.capturing: set[int] = set()
        self.failures: dict[str, list[Exception]] = {}
        self.elapsed_ms = 0.25
        self.clock = 0
        self.ndarray = Array
        self.cuda = types.ModuleType("cupy.cuda")
        self.cuda.Device = self._device
        self.cuda.Event = self._event
        self.cuda.get_current_stream = self._stream
        self.cuda.get_elapsed_time = lambda start, stop: self.elapsed_ms
        self.cuda.runtime = types.SimpleNamespace(
            CUDARuntimeError=Error,
            is_hip=False,
            deviceSynchronize=lambda: self._call("wait for the device"),
            eventRecord=lambda event, stream: self._call(f"record on stream {stream}"),
            free=lambda address: self._call("make a context"),
            getDevice=lambda: self.ordinal,
            getDeviceCount=lambda: self._call("count devices") or count,
            getDeviceProperties=self.properties,
            pointerGetAttributes=lambda address: types.SimpleNamespace(device=count - 1),
            runtimeGetVersion=lambda: 13_000,
            setDevice=lambda ordinal: self._call(f"set device {ordinal}"),
            streamWaitEvent=lambda stream, event: self._call(f"stream {stream} waits"),
        )
        self.cuda.driver = types.SimpleNamespace(CUDADriverError=Error, launchKernel=self._launch)
        self.cuda.function = types.SimpleNamespace(Module=lambda: Module(self))
        self.cuda.nvrtc = types.SimpleNamespace(
            getVersion=lambda: self._call("ask NVRTC") or (13, 0),
            getSupportedArchs=lambda: (75, 80, 90, 120),
        )

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Make it the module that ``import cupy`` gives."""
        for name, module in {
            "cupy": self,
            "cupy.cuda": self.cuda,
            "cupy.cuda.runtime": self.cuda.runtime,
            "cupy.cuda.nvrtc": self.cuda.nvrtc,
        }.items():
            patch.setitem(sys.modules, name, module)

    def array(self, host: Any, ordinal: int = 0) -> Array:
        return Array(self, np.array(host), ordinal)

    # -- what the plugin calls -------------------------------------------------------------------

    def empty(self, shape: Any, dtype: Any) -> Array:
        self.calls.append(f"allocate on device {self.ordinal}")
        return Array(self, np.empty(shape, dtype), self.ordinal)

    def zeros(self, shape: Any, dtype: Any) -> Array:
        self.calls.append(f"zeros on device {self.ordinal}")
        return Array(self, np.zeros(shape, dtype), self.ordinal)

    def asarray(self, value: Any) -> Array:
        return value if isinstance(value, Array) else Array(self, value.host, self.ordinal)

    @staticmethod
    def properties(ordinal: int) -> dict[str, Any]:
        return {
            "name": f"GPU {ordinal}".encode(),
            "major": 9,
            "minor": 0,
            "multiProcessorCount": 4,
            "totalGlobalMem": 1 << 34,
        }

    def _call(self, text: str) -> None:
        self.calls.append(text)
        if self.failures.get(text):
            raise self.failures[text].pop(0)

    @contextmanager
    def _device(self, ordinal: int) -> Iterator[None]:
        before, self.ordinal = self.ordinal, ordinal
        yield
        self.ordinal = before

    def _stream(self, ordinal: int | None = None) -> Any:
        pointer = self.streams[self.ordinal if ordinal is None else ordinal]
        return types.SimpleNamespace(
            ptr=pointer,
            synchronize=lambda: self._call(f"wait for stream {pointer}"),
            is_capturing=lambda: self._call("ask for a capture") or pointer in self.capturing,
        )

    def _event(self, disable_timing: bool = False) -> Any:
        return types.SimpleNamespace(
            ptr=1,
            record=lambda: self._call(f"event on stream {self.streams[self.ordinal]}"),
            synchronize=lambda: self._call("wait for an event"),
        )

    def _launch(self, function: int, *rest: int) -> None:
        grid, block, (shared, stream, parameters, extra) = rest[:3], rest[3:6], rest[6:]
        assert (shared, parameters) == (0, 0)
        # CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE, _END
        words = struct.unpack("5Q", ctypes.string_at(extra, 40))
        assert (words[0], words[2], words[4]) == (1, 2, 0)
        (size,) = struct.unpack("Q", ctypes.string_at(words[3], 8))
        self.launches.append(ctypes.string_at(words[1], size))
        self._call(f"launch {function} as {grid} {block} on stream {stream}")


class Module:
    """Code on a device."""

    def __init__(self, fake: FakeCupy) -> None:
        self._fake = fake

    def load(self, code: bytes) -> None:
        self._fake._call(f"load {len(code)} bytes on device {self._fake.ordinal}")

    def get_function(self, name: str) -> Any:
        return types.SimpleNamespace(ptr=4711, module=self)
