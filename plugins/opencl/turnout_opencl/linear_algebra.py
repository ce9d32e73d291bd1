"""Products of matrices with local memory: an implementation of ``turnout.ops.matmul``.

Each work-group computes a tile of the result. It goes along the common axis by tiles of both
matrices, which it copies to its local memory first, so that each element is read from global memory
once for a whole row or column of the tile.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from turnout.plugin import CallError

from . import compiler, devices

TILE = 16

_TYPES = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}

_TEXT = """
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

__kernel __attribute__((reqd_work_group_size(TILE, TILE, 1)))
void matmul_tiled(__global const REAL *a, long a_start, __global const REAL *b, long b_start,
                  __global REAL *out, long out_start, long m, long n, long k)
{
    __local REAL a_tile[TILE][TILE];
    __local REAL b_tile[TILE][TILE];
    const long row = get_global_id(1), column = get_global_id(0);
    const int y = get_local_id(1), x = get_local_id(0);
    REAL total = 0;
    for (long start = 0; start < k; start += TILE) {
        a_tile[y][x] = row < m && start + x < k ? a[a_start + row * k + start + x] : 0;
        b_tile[y][x] = start + y < k && column < n ? b[b_start + (start + y) * n + column] : 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        const int length = min((long)TILE, k - start);
        for (int p = 0; p < length; p++)
            total += a_tile[y][p] * b_tile[p][x];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (row < m && column < n)
        out[out_start + row * n + column] = total;
}
"""


def register_matmul(operation: Any) -> None:
    """Register the implementation; an entry point of the group ``turnout.implementations``."""
    operation.register(
        name="opencl_tiled",
        is_compatible=is_compatible,
        mutates={"out": "output"},
        per_geometry=True,
        version="1",
    )(make_matmul)


def is_compatible(a: Any, b: Any, out: Any) -> bool | str:
    """Whether all are arrays of pyopencl that lie row by row, of a type that the device has."""
    arrays = [each for each in (a, b, out) if each is not None]
    pyopencl_array = sys.modules.get("pyopencl.array")
    if pyopencl_array is None or not all(isinstance(x, pyopencl_array.Array) for x in arrays):
        return "an array is none of pyopencl"
    if any(x.dtype != a.dtype or x.dtype not in _TYPES for x in arrays):
        return "the elements are not all float32, or all float64"
    if not all(x.flags.c_contiguous and x.size for x in arrays):
        return "an array is empty, or does not lie row by row"
    largest = _opened(a).device.max_work_group_size
    return True if largest >= TILE**2 else f"work-groups have {largest} items at most"


def make_matmul(a: Any, b: Any, out: Any) -> Callable[..., Any]:
    """Return the function for these shapes."""
    import pyopencl as cl
    import pyopencl.array

    (m, k), n, dtype = a.shape, b.shape[1], a.dtype
    opened = _opened(a)
    sizes = [np.int64(size) for size in (m, n, k)]
    rounded = (-(-n // TILE) * TILE, -(-m // TILE) * TILE)

    def matmul(a: Any, b: Any, out: Any) -> Any:
        queue = a.queue or b.queue or opened.queue
        if out is None:
            out = pyopencl.array.Array(queue, (m, n), dtype)
        elif out.base_data in (a.base_data, b.base_data):
            raise CallError("matmul: out has its memory in common with a or b: make a new array")
        arrays = (a, b, out)
        events = [event for each in arrays for event in each.events]
        for other in {each.queue for each in arrays} - {queue, None}:
            events.append(cl.enqueue_marker(other))
            other.flush()
        kernel, lock = _kernel(queue.context, opened, dtype)
        with lock:
            places = [
                part
                for each in arrays
                for part in (each.base_data, np.int64(each.offset // dtype.itemsize))
            ]
            kernel.set_args(*places, *sizes)
            event = cl.enqueue_nd_range_kernel(
                queue, kernel, rounded, (TILE, TILE), wait_for=events or None
            )
        for each in arrays:
            each.add_event(event)
        if queue is not opened.queue:
            queue.flush()
            opened.note_queue(queue)
        return out

    return matmul


def _opened(array: Any) -> devices.OpenDevice:
    found = devices.opened_home_of(array.context)
    assert found is not None  # the array is one of a device of turnout
    return found


@functools.lru_cache(maxsize=32)
def _kernel(
    context: Any, opened: devices.OpenDevice, dtype: np.dtype[Any]
) -> tuple[Any, threading.Lock]:
    """The kernel in a context, and a lock for its arguments."""
    import pyopencl as cl

    options = f"-w -cl-std=CL1.2 -DTILE={TILE} -DREAL={_TYPES[dtype]}"
    program = compiler.build(context, opened.device, _TEXT, options)
    return cl.Kernel(program, "matmul_tiled"), threading.Lock()
