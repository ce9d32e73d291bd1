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
        queue = self._queue_of(value)
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

    def copy(self, value: Any) -> Any:
        """A new array in the queue of `value`; pyopencl's own method refuses strided arrays."""
        made = self._array_type(self._queue_of(value), value.shape, value.dtype)
        self.assign(made, value)
        return made

    def assign(self, value: Any, content: Any) -> None:
        """Overwrite an array, in the order of its queue, with another one or one of the host.

        pyopencl's own assignment wants arrays of one queue that lie alike. Where they do not, the
        elements go through the host.
        """
        if not value.size:
            return
        queue = self._queue_of(value)
        is_on_host = isinstance(content, np.ndarray)
        if not value.flags.c_contiguous:
            self._assign_strided(value, content if is_on_host else self._on_host(content), queue)
        elif is_on_host:
            self._cl.enqueue_copy(
                queue, value.base_data, content,
                dst_offset=value.offset, is_blocking=True, wait_for=value.events,
            )  # fmt: skip
        elif content.flags.c_contiguous and content.context == value.context:
            self._assign_here(value, content, queue)
        else:
            self.assign(value, self._on_host(content))

    def _assign_here(self, value: Any, content: Any, queue: Any) -> None:
        events = [*value.events, *content.events]
        if content.queue is not None and content.queue != queue:
            events.append(self._cl.enqueue_marker(content.queue))
            content.queue.flush()
        event = self._cl.enqueue_copy(
            queue, value.base_data, content.base_data,
            byte_count=value.nbytes, src_offset=content.offset, dst_offset=value.offset,
            wait_for=events,
        )  # fmt: skip
        value.add_event(event)
        content.add_event(event)
        if queue is not self._opened.queue:
            self._opened.note_queue(queue)

    def _assign_strided(self, value: Any, host: np.ndarray[Any, Any], queue: Any) -> None:
        """Write elements and keep what is between them."""
        first, end = _span(value)
        start, events = value.offset + first, value.events
        whole = np.empty(end - first, np.uint8)
        self._cl.enqueue_copy(
            queue, whole, value.base_data, src_offset=start, is_blocking=True, wait_for=events
        )
        np.ndarray(value.shape, value.dtype, whole, -first, value.strides)[...] = host
        self._cl.enqueue_copy(queue, value.base_data, whole, dst_offset=start, is_blocking=True)

    def _on_host(self, value: Any) -> np.ndarray[Any, Any]:
        host = np.empty(value.shape, value.dtype)
        self.get(value, host)
        return host

    def _queue_of(self, value: Any) -> Any:
        return value.queue or self._queue_for(value.context)

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
