"""Arrays of the emulated GPU: host memory that only the CUDA array interface describes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_WORD = 4


class EmulatedArray:
    """An array, in the words of CuPy's."""

    def __init__(self, host: np.ndarray[Any, Any]) -> None:
        self.host = host
        self.shape, self.strides, self.dtype = host.shape, host.strides, host.dtype
        self.ndim, self.ptr, self.flags = host.ndim, host.ctypes.data, host.flags

    @property
    def data(self) -> EmulatedArray:
        return self

    def __getitem__(self, key: Any) -> EmulatedArray:
        return EmulatedArray(self.host[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.host[key] = value.host if isinstance(value, EmulatedArray) else value

    def reshape(self, shape: tuple[int, ...]) -> EmulatedArray:
        return EmulatedArray(self.host.reshape(shape))

    def copy(self) -> EmulatedArray:
        return EmulatedArray(self.host.copy())

    def get(self) -> np.ndarray[Any, Any]:
        return self.host.copy()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.host.__array_interface__, "version": 3, "stream": None}


class EmulatedMemory:
    """See `turnout.plugin.Memory`."""

    def owns(self, value: object) -> bool:
        return isinstance(value, EmulatedArray)

    def interface(self, value: EmulatedArray) -> dict[str, Any]:
        return value.__cuda_array_interface__

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> EmulatedArray:
        return EmulatedArray(_allocated(shape, np.dtype(dtype)))

    def put(self, host: np.ndarray[Any, Any]) -> EmulatedArray:
        array = _allocated(host.shape, host.dtype)
        array[...] = host
        return EmulatedArray(array)

    def get(self, value: EmulatedArray, out: np.ndarray[Any, Any]) -> None:
        out[...] = value.host


def _allocated(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Whole words of zeros: atomic updates of bytes use the word, which GPUs always allocate."""
    size = math.prod(shape) * dtype.itemsize
    words = np.zeros(-(-size // _WORD), np.uint32)
    return np.ndarray(shape, dtype, words.data)
