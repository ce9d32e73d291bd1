"""What only a GPU can show: streams, graphs, other libraries' arrays, sizes beyond 32 bits."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turnout as tn
from turnout import NDArray, Param, Scalar, f32, f64, i8, i32, i64

pytestmark = pytest.mark.gpu


@pytest.fixture
def cupy() -> Any:
    import cupy

    tn.devices("cuda")  # says what is missing
    return cupy


@tn.kernel
def scaled(x: NDArray[f32, 1], factor: Param[f32]) -> None:
    for i in range(x.shape[0]):
        x[i] = x[i] * factor


@tn.kernel
def added(x: NDArray[f32, 1], y: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
    for i in range(out.shape[0]):
        out[i] = x[i] + y[i]


@tn.kernel
def marked(x: NDArray[i8, 1]) -> None:
    for i in range(x.shape[0]):
        x[i] = i8(i % 100)


@tn.kernel
def doubled(x: Scalar) -> Scalar:
    return x * 2


@tn.kernel
def counted(place: NDArray[i64, 1], counts: NDArray[i32, 1], sums: NDArray[f64, 1]) -> None:
    for i in tn.parallel(range(place.shape[0])):
        counts[place[i]] += 1
        sums[place[i]] += 0.5


def test_repeated_calls_allocate_nothing(cupy: Any) -> None:
    x = cupy.ones(1000, np.float32)
    for _ in range(3):
        scaled(x, 2.0)
    pool = cupy.get_default_memory_pool()
    before = (pool.used_bytes(), pool.total_bytes(), cupy.cuda.runtime.memGetInfo())
    for _ in range(100):
        scaled(x, 1.0)
    assert (pool.used_bytes(), pool.total_bytes(), cupy.cuda.runtime.memGetInfo()) == before
    assert bool((x == 8).all())


def test_graph_capture(cupy: Any) -> None:
    """Calls that were made before can be captured, with results and without."""
    x, y = cupy.ones(1000, np.float32), cupy.full(1000, 2, np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(3):
            scaled(x, 1.0)
            kept = doubled(y)
        stream.synchronize()
        stream.begin_capture()
        assert tn.timer("cuda").is_capturing()
        for _ in range(10):
            scaled(x, 2.0)
        result = doubled(y)
        graph = stream.end_capture()
        assert not tn.timer("cuda").is_capturing()
        assert bool((x == 1).all()), "a capture runs nothing"
        graph.launch()
        stream.synchronize()
    assert bool((x == 1024).all())
    assert bool((result == 4).all())
    assert bool((kept == 4).all())


def test_work_is_in_order_with_the_current_stream(cupy: Any) -> None:
    """On streams that do not wait for the default one; a long fill comes first."""
    n = 1 << 26
    for _ in range(8):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            x = cupy.zeros(n, np.float32)
            for value in range(20):
                x.fill(value)
            scaled(x, 2.0)
            y = x + 1
            stream.synchronize()
        assert float(y.min()) == float(y.max()) == 39


def test_two_streams_have_their_own_arguments(cupy: Any) -> None:
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    arrays = [cupy.ones(1 << 20, np.float32) for _ in streams]
    cupy.cuda.runtime.deviceSynchronize()
    for turn in range(50):
        for stream, x in zip(streams, arrays, strict=True):
            with stream:
                scaled(x, 2.0 if turn % 2 else 0.5)
    tn.sync("cuda")
    assert all(bool((x == 1).all()) for x in arrays)


def test_threads(cupy: Any) -> None:
    """A thread has no context of its own before its first call."""
    results: list[bool] = []

    def work() -> None:
        x = cupy.ones(1000, np.float32)
        scaled(x, 3.0)
        results.append(bool((x == 3).all()))

    def launch_first(x: Any) -> None:
        scaled(x, 3.0)
        tn.sync("cuda")
        results.append(bool((x == 3).all()))

    x = cupy.ones(10, np.float32)
    scaled(x, 1.0)
    targets = [(work, ())] * 4 + [(launch_first, (x,))]
    threads = [threading.Thread(target=target, args=args) for target, args in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 5


def test_timer_waits_for_the_work(cupy: Any) -> None:
    x = cupy.ones(1 << 27, np.float32)
    timer = tn.timer("cuda")
    scaled(x, 1.0)
    small = cupy.ones(256, np.float32)
    long_ns = min(timer(lambda: scaled(x, 1.0)) for _ in range(5))
    short_ns = min(timer(lambda: scaled(small, 1.0)) for _ in range(5))
    assert long_ns > 4 * short_ns, "a gibibyte moved, against a kibibyte"


def test_views(cupy: Any) -> None:
    x = cupy.arange(12, dtype=np.float32)
    scaled(x[::-2], 10.0)
    assert x.get().tolist() == [0, 10, 2, 30, 4, 50, 6, 70, 8, 90, 10, 110]


def test_shared_updates_are_exact(cupy: Any) -> None:
    n = 1 << 20
    places = np.random.default_rng(0).integers(0, 7, n)
    counts, sums = cupy.zeros(7, np.int32), cupy.zeros(7)
    counted(cupy.asarray(places), counts, sums)
    expected = np.bincount(places, minlength=7)
    assert counts.get().tolist() == expected.tolist()
    assert sums.get().tolist() == (expected / 2).tolist()


def test_more_elements_than_32_bits_count(cupy: Any) -> None:
    n = (1 << 31) + 7
    if cupy.cuda.runtime.memGetInfo()[0] < 2 * n:
        pytest.skip("needs 4 GiB of free memory on the GPU")
    x = cupy.zeros(n, np.int8)
    marked(x)
    for i in (0, (1 << 31) - 1, 1 << 31, n - 1):
        assert int(x[i]) == i % 100


def test_other_libraries(cupy: Any) -> None:
    """Arrays of PyTorch and Numba, where they are; and the memory is the same."""
    torch = pytest.importorskip("torch")
    x, y = torch.ones(5, device="cuda"), torch.arange(5.0, device="cuda")
    out = torch.zeros(5, device="cuda")
    added(x, y, out)
    assert out.tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(tn.TurnoutError, match="requires grad"):
        added(x.requires_grad_(), y, out)


def test_numba(cupy: Any) -> None:
    cuda = pytest.importorskip("numba.cuda")
    x = cuda.to_device(np.ones(5, np.float32))
    scaled(x, 3.0)
    assert x.copy_to_host().tolist() == [3] * 5


def test_several_devices(cupy: Any) -> None:
    if len(tn.devices("cuda")) < 2:
        pytest.skip("there is one GPU")
    with cupy.cuda.Device(1):
        x = cupy.ones(10, np.float32)
    scaled(x, 3.0)
    assert cupy.cuda.runtime.getDevice() == 0
    assert x.get().tolist() == [3] * 10
    y = cupy.ones(10, np.float32)
    with pytest.raises(tn.CallError, match=r"cuda:1.*cuda:0|cuda:0.*cuda:1"):
        added(x, y, y)


_OUT_OF_BOUNDS = """
import cupy, numpy as np, turnout as tn
from turnout import NDArray, f32, i64

@tn.kernel
def gathered(x: NDArray[f32, 1], place: NDArray[i64, 1], out: NDArray[f32, 1]) -> None:
    for i in range(out.shape[0]):
        out[i] = x[place[i]]

x, out = cupy.ones(4, np.float32), cupy.ones(4, np.float32)
gathered(x, cupy.full(4, 1 << 50), out)
try:
    tn.sync("cuda")
except Exception as error:
    print(type(error).__name__, *error.__notes__)
"""


def test_illegal_access_is_explained(cupy: Any, tmp_path: Path) -> None:
    """In a process of its own, which cannot use the GPU afterwards."""
    program = tmp_path / "program.py"
    program.write_text(_OUT_OF_BOUNDS)
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False
    )
    assert "CUDARuntimeError" in done.stdout, done.stderr
    assert "turnout.kernel(debug=True)" in done.stdout
