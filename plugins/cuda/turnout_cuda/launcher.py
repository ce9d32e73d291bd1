"""The arguments of a call to a launch on CuPy's current stream."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from turnout.plugin import CallError, ir

from .driver import Driver, Loaded, explained

THREADS = 256
"""Threads of a block: any kernel may have so many, whatever registers it takes."""

_BLOCKS_PER_MULTIPROCESSOR = 32
"""Four times what fits at once, so that the last ones do not leave much idle."""

_INVALID_CONTEXT = 201
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0
"""How ``cuLaunchKernel`` is told that all parameters lie in one buffer."""

_SCALAR_FORMATS = {
    "f32": "f", "f64": "d", "bool_": "?",
    "i8": "b", "i16": "h", "i32": "i", "i64": "q",
    "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
}  # fmt: skip

_BYTES_HEADER = bytes.__basicsize__ - 1
"""Where the content of a bytes object begins; its last byte is counted as part of the header."""


class View:
    """An array of another library, as the packer reads CuPy's."""

    def __init__(self, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.ptr, self.shape, self.strides = pointer, shape, strides

    @property
    def data(self) -> View:
        return self


class CudaLauncher:
    """Runs the loaded code of one unit on one GPU; see `turnout.plugin.Launcher`.

    A launch waits for nothing and allocates nothing on the GPU, so it can be captured into a
    graph. The driver copies the parameters before it returns, and every launch packs its own, so
    threads may share a launcher.
    """

    direct = None

    def __init__(self, driver: Driver, loaded: Loaded, unit: ir.Unit, ordinal: int) -> None:
        self._driver = driver
        self._loaded = loaded
        self._ordinal = ordinal
        self._parameters = unit.parameters
        self._arrays = [
            place
            for place, parameter in enumerate(unit.parameters)
            if isinstance(parameter, ir.ArrayParameter)
        ]
        self._array_type = driver.array_type
        self._pack = _packer(unit)
        self._most_blocks = _BLOCKS_PER_MULTIPROCESSOR * driver.multiprocessors(ordinal)
        self._threads = THREADS if unit.extents else 1

    def __call__(self, args: tuple[Any, ...], size: int) -> None:
        if size == 0:
            return
        if self._driver.current_ordinal() == self._ordinal:
            self._launch(args, size)
            return
        with self._driver.device(self._ordinal):
            self._launch(args, size)

    def _launch(self, args: tuple[Any, ...], size: int) -> None:
        for place in self._arrays:
            if type(args[place]) is not self._array_type:
                args = self._with_views(args)
                break
        try:
            is_misaligned, packed = self._pack(*args)
        ...
