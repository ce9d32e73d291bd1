"""Times on a GPU as a table: launches beside CuPy's RawKernel, bandwidth, graphs, the first call.

The argument, if there is one, is a file to which the table is written too.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from time import perf_counter

import cupy
import numpy as np

import turnout as tn
from turnout import NDArray, Param, f32


@tn.kernel
def scaled_sum(x: NDArray[f32, 1], y: NDArray[f32, 1], factor: Param[f32]) -> None:
    for i in range(y.shape[0]):
        y[i] = x[i] * factor + y[i]


@tn.kernel
def copied(x: NDArray[f32, 1], y: NDArray[f32, 1]) -> None:
    for i in range(y.shape[0]):
        y[i] = x[i]


RAW = cupy.RawKernel(
    """
    extern "C" __global__ void scaled_sum(const float* x, float* y, float factor, long long n) {
      long long step = (long long)gridDim.x * blockDim.x;
      for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        y[i] = x[i] * factor + y[i];
    }
    """,
    "scaled_sum",
    options=("-fmad=false",),
)
FACTOR = 0.5
LAUNCHES = 2000
ROUNDS = 9


def microseconds(launch: Callable[[], object], count: int = LAUNCHES) -> float:
    """Time of one enqueued launch on the host, the median of several rounds."""
    rounds = []
    for _ in range(ROUNDS):
        cupy.cuda.runtime.deviceSynchronize()
        started = perf_counter()
        for _ in range(count):
            launch()
        rounds.append((perf_counter() - started) / count)
        cupy.cuda.runtime.deviceSynchronize()
    return statistics.median(rounds) * 1e6


def launches() -> Iterator[tuple[str, str]]:
    n = 1024
    x, y = cupy.ones(n, np.float32), cupy.zeros(n, np.float32)
    grid, block = ((n + 255) // 256,), (256,)
    factor, size = np.float32(FACTOR), np.int64(n)

    def raw() -> None:
        RAW(grid, block, (x, y, factor, size))

    def ours() -> None:
        scaled_sum(x, y, FACTOR)

    started = perf_counter()
    ours()
    cupy.cuda.runtime.deviceSynchronize()
    yield "first call", f"{(perf_counter() - started) * 1e3:.0f} ms"
    raw()
    for _ in range(100):
        ours()
    theirs_us, ours_us = microseconds(raw), microseconds(ours)
    yield "launch, RawKernel of CuPy", f"{theirs_us:.2f} us"
    yield "launch, turnout", f"{ours_us:.2f} us, {ours_us / theirs_us:.2f} times"


def bandwidth() -> Iterator[tuple[str, str]]:
    n = 1 << 28
    x, y = cupy.ones(n, np.float32), cupy.zeros(n, np.float32)
    timer = tn.timer("cuda")
    for name, work in {
        "copy kernel, 1 GiB": lambda: copied(x, y),
        "copy by the driver, 1 GiB": lambda: cupy.copyto(y, x),
    }.items():
        work()
        elapsed_ns = statistics.median(timer(work) for _ in range(ROUNDS))
        yield name, f"{2 * x.nbytes / elapsed_ns:.0f} GB/s"
    assert bool((y == 1).all())


def graphs() -> Iterator[tuple[str, str]]:
    x, y = cupy.ones(1024, np.float32), cupy.zeros(1024, np.float32)
    count = 100
    scaled_sum(x, y, FACTOR)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        scaled_sum(x, y, FACTOR)
        stream.synchronize()
        y.fill(0)
        stream.begin_capture()
        for _ in range(count):
            scaled_sum(x, y, FACTOR)
        graph = stream.end_capture()
        graph.launch()
        stream.synchronize()
        assert bool((y == count * FACTOR).all())
        replay_us = microseconds(graph.launch, 50) / count
    yield f"launch in a captured graph of {count}", f"{replay_us:.2f} us"


def main() -> None:
    rows = [*launches(), *bandwidth(), *graphs()]
    text = "\n| measured | |\n|---|---|\n"
    text += "".join(f"| {name} | {value} |\n" for name, value in rows)
    print(text)
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write(text)
    print(f"{len(rows)} figures; launch {rows[2][1]} RawKernel's")


if __name__ == "__main__":
    main()
