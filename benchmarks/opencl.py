"""What a launch on an OpenCL device costs beside the same launch written by hand with pyopencl.

All end with waiting for the queue, because otherwise it would fill up: after each launch, and after
a hundred of them, which shows what a launch costs the caller. The kernel is the same; the
hand-written one takes pointers and the number of elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any

import numpy as np

import turnout as tn
from turnout import NDArray, Param, f32

from .cases import SEED
from .compare import EXACT, Arrays, Contender, Row, Target, compare
from .measure import Budget

GROUP = "opencl"
CASES = ((1, 64), (1, 100_000), (100, 64))
"""Launches before a wait, and elements."""

PEER = "pyopencl"
GROUP_SIZE = 128

# At most 1.3 times the time.
TARGETS = (Target(PEER, 1 / 1.3),)

Vector = NDArray[f32, 1]


@tn.kernel
def combine(a: Vector, factor: Param[f32], b: Vector, out: Vector) -> None:
    for i in range(out.shape[0]):
        out[i] = a[i] * factor + b[i]


BY_HAND = """
#pragma OPENCL FP_CONTRACT OFF
__kernel void combine(
    __global const float *a, const float factor, __global const float *b, __global float *out,
    const long n
) {
    const long i = get_global_id(0);
    if (i < n) out[i] = a[i] * factor + b[i];
}
"""


def measure(budget: Budget) -> Iterator[list[Row]]:
    """All rows of the group; one that says why there are none where there is no device."""
    status = tn.backends().get("opencl")
    if status is None or not status.available:
        why = "not installed: python -m pip install turnout-opencl" if status is None else ""
        yield [Row(GROUP, "a launch", None, "turnout", problem=why or status.reason)]
        return
    for launches, size in CASES:
        yield _compare(launches, size, budget)


def _compare(launches: int, size: int, budget: Budget) -> list[Row]:
    import pyopencl as cl

    random = np.random.default_rng(SEED)
    a, b = (random.normal(size=size).astype(np.float32) for _ in range(2))
    factor = 2.5
    x, y, out = (tn.array(host, device="opencl") for host in (a, b, np.zeros_like(a)))
    queue = x.queue
    program = cl.Program(queue.context, BY_HAND).build()
    kernel = cl.Kernel(program, "combine")
    groups = -(-size // GROUP_SIZE)
    names: dict[str, Any] = {
        "x": x, "y": y, "out": out, "factor": factor, "combine": combine,
        "set_args": kernel.set_args, "enqueue": cl.enqueue_nd_range_kernel, "queue": queue,
        "kernel": kernel, "whole": (groups * GROUP_SIZE,), "group": (GROUP_SIZE,),
        "single": np.float32, "size": np.int64(size), "buffers_first": (x.base_data,),
        "buffers_rest": (y.base_data, out.base_data),
    }  # fmt: skip
    statements = {
        "turnout": "combine(x, factor, y, out)",
        PEER: "set_args(*buffers_first, single(factor), *buffers_rest, size); "
        "enqueue(queue, kernel, whole, group)",
    }
    contenders = []
    for name, launch in statements.items():
        repeated = launch if launches == 1 else f"for _ in range({launches}): {launch}"
        statement = f"{repeated}\nqueue.finish()"
        contenders.append(Contender(name, statement, names, _results(statement, names), EXACT))
    title = (GROUP, "a launch" if launches == 1 else f"{launches} launches", size)
    expected = (a * np.float32(factor) + b,)
    # The work is done by threads of the driver, so the time of this one would tell little.
    return compare(title, contenders, expected, budget, TARGETS, clock=perf_counter_ns)


def _results(statement: str, names: dict[str, Any]) -> Callable[[], Arrays]:
    def results() -> Arrays:
        names["out"].fill(np.float32(np.nan))
        exec(statement, dict(names))
        return (tn.to_numpy(names["out"]),)

    return results
