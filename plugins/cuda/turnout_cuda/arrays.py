"""Arrays on a GPU: CuPy's own, and those of every library with ``__cuda_array_interface__``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_DLPACK_KINDS = (2, 13)
"""``kDLCUDA`` and ``kDLCUDAManaged``."""


class CudaMemory:
    """Memory of one GPU; see `turnout.plugin.Memory`."""

    def __init__(self, ordinal: int) -> None:
        import cupy

        self._cupy = cupy
        self._ndarray = cupy.ndarray
        self._ordinal = ordinal

    def owns(self, value: Any) -> bool:
        """Whether `value` is an array on this GPU."""
        if isinstance(value, self._ndarray):
            return bool(value.data.device_id == self._ordinal)
        try:
            return self._ordinal == _foreign_ordinal(value)
        except Exception:
            # What a library says of a value that it does not share, a tensor with gradients for
            # example, is for the call that uses it; here it only means that it is not ours.
            return False

    def interface(self, value: Any) -> dict[str, Any]:
        """Address, shape and strides."""
        described: dict[str, Any] = value.__cuda_array_interface__
        return described

    def bounds(self, value: Any) -> tuple[int, int] | None:
        """First address and the one after the last; None unless C-contiguous and writable."""
        if isinstance(value, self._ndarray):
            if not value.flags.c_contiguous:
                return None
            pointer = value.data.ptr
            return pointer, pointer + value.nbytes
        described = self.interface(value)
        pointer, is_read_only = described["data"]
        if is_read_only or described.get("strides") is not None:
            return None
        itemsize = np.dtype(described["typestr"]).itemsize
        return pointer or 0, (pointer or 0) + math.prod(described["shape"]) * itemsize

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A new array; the fill is enqueued on the current stream."""
        with self._cupy.cuda.Device(self._ordinal):
            return self._cupy.zeros(shape, dtype)

    def put(self, host: np.ndarray[Any, Any]) -> Any:
        """Copy to the GPU, in order with the current stream."""
        with self._cupy.cuda.Device(self._ordinal):
            stream = self._cupy.cuda.get_current_stream()
            array = self._cupy.empty(host.shape, host.dtype)
            if host.size:
                array.set(host, stream=stream)
                stream.synchronize()  # pinned host memory is read later than the call returns
            return array

    def get(self, value: Any, out: np.ndarray[Any, Any]) -> None:
        """Copy into `out`, after all work of this process on the GPU."""
        with self._cupy.cuda.Device(self._ordinal):
            self._cupy.cuda.runtime.deviceSynchronize()
            self._cupy.asarray(value).get(out=out)


def _foreign_ordinal(value: Any) -> int | None:
    """The GPU that holds another library's array; None where it is no such array."""
    if hasattr(value, "__dlpack_device__"):
        kind, ordinal = value.__dlpack_device__()
        return int(ordinal) if kind in _DLPACK_KINDS else None
    if not hasattr(value, "__cuda_array_interface__"):
        return None
    from cupy.cuda import runtime

    address = value.__cuda_array_interface__["data"][0]
    # An array without elements may have no memory, and is at home anywhere.
    return int(runtime.pointerGetAttributes(address).device if address else runtime.getDevice())
