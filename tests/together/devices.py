"""Arrays on each of the backends, laid out there as on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.differential.inputs import in_memory, memory_of

import turnout as tn

DEVICES = ("reference", "cpu", "opencl", "cuda_emulated")

Host = np.ndarray[Any, Any]


def _on_host(array: Host) -> tuple[Any, Callable[[], Host]]:
    memory = memory_of(array).copy()
    return in_memory(array, memory), lambda: memory


def _on_opencl(array: Host) -> tuple[Any, Callable[[], Host]]:
    import pyopencl.array as cla

    memory = memory_of(array)
    moved = tn.array(memory, device="opencl")
    offset = array.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    view = cla.Array(
        moved.queue, array.shape, array.dtype, data=moved.base_data, offset=offset,
        strides=array.strides,
    )  # fmt: skip
    return view, lambda: tn.to_numpy(moved)


def _on_cuda(array: Host) -> tuple[Any, Callable[[], Host]]:
    from turnout_cuda_emulated.arrays import EmulatedArray

    view, read = _on_host(array)
    return EmulatedArray(view), read


_PLACES = {"opencl": _on_opencl, "cuda_emulated": _on_cuda}


def place(array: Host, device: str) -> tuple[Any, Callable[[], Host]]:
    """A view on a device as `array` is one, and what reads the whole memory that it is in."""
    return _PLACES.get(device, _on_host)(array)
