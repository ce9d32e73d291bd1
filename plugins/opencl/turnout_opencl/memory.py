"""Arrays of pyopencl: made, copied, and how they lie in memory."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

from .devices import OpenDevice

_SPACING_BITS = 42
_BUFFERS = 2**20
"""Addresses that buffers stand for: this many, each with room for 4 TB."""


class OpenCLMemory:
    """Memory of one OpenCL device; see `turnout.plugin.Memory`.

    Buffers of OpenCL have no addresses. Each gets a number instead that stands for one, so that
    views of a buffer can be compared.
    """

    def __init__(self, opened: OpenDevice) -> None:
        import pyopencl as cl
        import pyopencl.array

        self._cl: Any = cl
        self._array_type: Any = pyopencl.array.Array
        self._opened = opened
        self._numbers = count(1)
        self._addresses: dict[int, int] = {}

    def owns(self, value: object) -> bool:
        """Whether `value` is an array of pyopencl on this device."""
        return isinstance(value, self._array_type) and self._opened.is_home_of(value.context)

    def put(self, host: np.ndarray[Any, Any]) -> Any:
        """Copy to the device; returns when the host's memory may be reused."""
        array = self._new(host.shape, host.dtype)
        if host.size:
            # Blocking: the driver has read `host` when this returns.
            self._cl.enqueue_copy(self._opened.queue, array.base_data, host, is_blocking=True)
        return array

    def get(self, value: Any, out: np.ndarray[Any, Any]) -> None:
        """Copy back; waits for the work that produces `value`."""
        if not value.size:
            return
        queue = value.queue or self._queue_for(value.context)
        first, end = _span(value)
        if value.flags.c_contiguous:
            target, whole = out, None
        else:
            target = whole = np.empty(end - first, np.uint8)
        self._cl.enqueue_copy(
            queue,
            target,
            value.base_data,
            src_offset=value.offset + first,
            is_blocking=True,
            wait_for=value.events,
        )
        if whole is not None:
            out[...] = np.ndarray(value.shape, value.dtype, whole, -first, value.strides)

    def _queue_for(self, context: Any) -> Any:
        is_own = context == self._opened.context
        return self._opened.queue if is_own else self._cl.CommandQueue(context)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """A new array of zeros; the fill is enqueued."""
        array = self._new(shape, np.dtype(dtype))
        if array.size:
            self._cl.enqueue_fill_buffer(
                self._opened.queue, array.base_data, np.uint8(0), 0, array.nbytes
            )
        return array

    def interface(self, value: Any) -> dict[str, Any]:
        """How an array lies in memory."""
        return {
            "version": 3,
            "shape": value.shape,
            "typestr": value.dtype.str,
            "strides": value.strides,
            "data": (self._address(value) + value.offset, False),
        }

    def bounds(self, value: Any) -> tuple[int, int] | None:
        """Where an array that was made here begins and ends."""
        return getattr(value, "turnout_bounds", None)

    def _new(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        array = self._array_type(self._opened.queue, shape, dtype)
        array.context = self._opened.context  # the same object, which is quick to compare
        if array.size:
            handle = array.base_data.int_ptr
            # What had this handle before is gone.
            start = self._addresses[handle] = self._next_address()
            array.turnout_bounds = (start, start + array.nbytes)
        else:
            array.turnout_bounds = (0, 0)
        return array

    def _next_address(self) -> int:
        return (next(self._numbers) % _BUFFERS + 1) << _SPACING_BITS

    def _address(self, value: Any) -> int:
        """What stands for the address of an array's buffer."""
        buffer, offset = value.base_data, 0
        if buffer is None:
            return 1 << _SPACING_BITS
        info = self._cl.mem_info
        parent = buffer.get_info(info.ASSOCIATED_MEMOBJECT)
        if parent is not None:
            buffer, offset = parent, buffer.get_info(info.OFFSET)
        handle = buffer.int_ptr
        if handle not in self._addresses:
            self._addresses[handle] = self._next_address()
        return self._addresses[handle] + offset


def _span(value: Any) -> tuple[int, int]:
    """The bytes that an array covers, from its first element."""
    reaches = [(n - 1) * stride for n, stride in zip(value.shape, value.strides, strict=True)]
    first = sum(min(reach, 0) for reach in reaches)
    return first, sum(max(reach, 0) for reach in reaches) + value.dtype.itemsize
