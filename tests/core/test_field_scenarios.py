"""What hurt users of systems like this one, tried on whole operations.

The numbers are those of ``spec/field-scenarios.md``; README.md has the table of all of them.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from concurrency_support import in_fork, in_threads
from language_support import DEVICES

import turnout as tn
from turnout import NDArray, Param, Scalar, compilation, discovery, f32, f64
from turnout.perf import PerformanceDispatcher

CALLS = 15
"""More than two or three implementations need until one of them wins."""


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with tn.use(request.param):
        yield request.param


def operation(prototype: Callable[..., Any], *functions: Any, **settings: Any) -> Any:
    """An operation that never measures again, with implementations v0, v1, ..."""
    made: Any = tn.perf_dispatch(repeat_after_seconds=0, **settings)(prototype)
    for number, function in enumerate(functions):
        made.register(name=f"v{number}")(function)
    return made


# ---- A: arguments that are changed ---------------------------------------------------------------


@tn.kernel
def reverse_kernel(source: NDArray[f64, 1], destination: NDArray[f64, 1]) -> None:
    for i in range(source.shape[0]):
        destination[source.shape[0] - 1 - i] = source[i]


def reverse_numpy(source: Any, destination: Any) -> None:
    destination[:] = source[::-1].copy()


def test_a_copy_is_reversed_and_the_same_array_is_refused_or_reversed(device: str) -> None:
    """A11."""
    reverse = operation(lambda source, destination: None, reverse_kernel, reverse_numpy)
    wanted = np.arange(8.0)[::-1].tolist()
    for _ in range(CALLS):
        destination = np.arange(8.0)
        reverse(destination.copy(), destination)
        assert destination.tolist() == wanted
    in_place = operation(lambda source, destination: None, reverse_kernel, reverse_numpy)
    both = np.arange(8.0)
    with pytest.raises(tn.CallError, match="overlap"):  # the kernel's turn
        in_place(both, both)
    assert both.tolist() == np.arange(8.0).tolist()
    with in_place.force("v1"):
        in_place(both, both)
    assert both.tolist() == wanted


@tn.kernel
def shrink_kernel(x: NDArray[f64, 1], out: NDArray[f64, 1]) -> None:
    for i in range(x.shape[0]):
        out[i] = x[i] - 0.001 * x[i]


def shrink_numpy(x: Any, out: Any) -> None:
    np.subtract(x, 0.001 * x, out=out)


def test_a_result_may_be_written_over_its_operand(device: str) -> None:
    """A12."""
    shrink = operation(lambda x, out: None, shrink_kernel, shrink_numpy)
    for _ in range(CALLS):
        x, apart = np.ones(2), np.empty(2)
        shrink(np.ones(2), apart)
        shrink(x, x)
        assert x.tolist() == apart.tolist() == [0.999, 0.999]
    x = np.ones(2)
    assert shrink.tune(x, x).chosen is not None
    assert x.tolist() == [1, 1]


def test_every_run_that_is_measured_sees_the_callers_data() -> None:
    """A14: half-precision sums that would be infinite after a few runs on one buffer."""
    seen: list[tuple[float, float]] = []

    def doubling(x: Any, total: Any) -> None:
        seen.append((float(x[0]), float(total[0])))
        total += x
        x *= 2

    double = operation(lambda x, total: None, doubling, lambda x, total: doubling(x, total))
    x, total = np.full(100, 1024, np.float16), np.full(100, 3, np.float16)
    while len(seen) < 1000:
        double.tune(x, total)
    assert set(seen) == {(1024.0, 3.0)}
    assert (x[0], total[0]) == (1024, 3)


@dataclasses.dataclass
class Buffer:
    values: Any
    length: int


def test_an_operation_of_two_stages_never_runs_the_second_without_the_first() -> None:
    """A15: the second stage divides by a length that the first one writes."""

    def collect(values: Any, buffer: Buffer) -> None:
        positive = values[values > 0]
        buffer.length = len(positive)
        buffer.values[: buffer.length] = positive

    def mean(buffer: Buffer) -> float:
        return float(buffer.values[: buffer.length].sum()) / buffer.length

    def mean_in_a_loop(buffer: Buffer) -> float:
        return sum(buffer.values[: buffer.length].tolist()) / buffer.length

    first = operation(
        lambda values, buffer: None, collect, lambda values, buffer: collect(values, buffer)
    )
    second = operation(lambda buffer: None, mean, mean_in_a_loop)
    for number in range(1, CALLS):
        buffer = Buffer(np.full(10, np.nan), 0)
        first(np.array([-1.0, 2.0, 0.0, 4.0, 6.0 * number]), buffer)
        assert second(buffer) == 2 + 2 * number
    explained = second.tune(buffer)
    assert all(each.refusal is None for each in explained.implementations)
    assert second(buffer) == 2 + 2 * (CALLS - 1)


def test_tuning_measures_the_callers_integers() -> None:
    """C13: how much work there is depends on the lengths of segments."""
    seen: list[list[int]] = []

    def sums(lengths: Any, values: Any) -> Any:
        seen.append(lengths.tolist())
        return [part.sum() for part in np.split(values, np.cumsum(lengths)[:-1])]

    summed = operation(
        lambda lengths, values: None, sums, lambda lengths, values: sums(lengths, values)
    )
    lengths = np.array([0, 10_000, 0, 3])
    summed.tune(lengths, np.ones(10_003))
    for _ in range(CALLS):
        assert summed(lengths, np.ones(10_003)) == [0, 10_000, 0, 3]
    assert len(seen) > CALLS
    assert all(each == [0, 10_000, 0, 3] for each in seen)


# ---- E: geometry ---------------------------------------------------------------------------------


def misaligned(count: int) -> Any:
    """Doubles at a byte offset of 4."""
    memory = np.zeros(8 * count + 8, np.uint8)
    start = 4 - memory.ctypes.data % 8
    return memory[start % 8 : start % 8 + 8 * count].view(np.float64)


@tn.kernel
def increment(x: Scalar, by: Param) -> Scalar:
    return x + by


def increment_numpy(x: Any, by: Any) -> Any:
    return x + by


@tn.kernel
def increment_plane(x: NDArray[f64, 2], out: NDArray[f64, 2]) -> None:
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] + 1


def increment_plane_numpy(x: Any, out: Any) -> None:
    np.add(x, 1, out=out)


def test_views_at_any_offset_are_right_whatever_was_measured_before(device: str) -> None:
    """E8: rows of 50257 elements start at any alignment."""
    plus = operation(lambda x, by: None, increment, increment_numpy)
    base = np.arange(50_257 + 4, dtype=np.float32)
    odd = misaligned(1000)
    odd[:] = np.arange(1000.0)
    assert odd.ctypes.data % 8 == 4
    for x in (base, base[1:], base[4:], odd):
        for _ in range(CALLS):
            result = plus(x, 1.0)
            assert result.dtype == x.dtype
            np.testing.assert_array_equal(result, x + 1)


@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (1, 1), (0, 3), (3, 0)])
def test_arrays_that_are_contiguous_both_ways_are_right_in_both(
    device: str, shape: tuple[int, int]
) -> None:
    """E9: whichever order an array claims, one decision serves it, and the result is right."""
    plus = operation(lambda x, out: None, increment_plane, increment_plane_numpy)
    values = np.arange(float(np.prod(shape))).reshape(shape)
    geometries = set()
    for x in (values, np.asfortranarray(values), values.T.copy().T, values[::-1][::-1]):
        for _ in range(CALLS):
            out = np.full_like(x, np.nan)
            plus(x, out)
            np.testing.assert_array_equal(out, values + 1)
        geometries.add(plus.explain(x, out).geometry)
    assert len(geometries) == 1


def test_a_sixth_implementation_is_the_only_one_to_be_measured() -> None:
    """F2, within a process."""
    ran: list[str] = []

    def named(name: str) -> Callable[[Any], None]:
        return lambda x: ran.append(name)

    def timer(work: Callable[[], None]) -> int:
        work()
        return 100 * int(ran[-1])

    op = operation(lambda x: None, timer=timer)
    for name in "56789":
        op.register(name=name)(named(name))
    for _ in range(5 * 4 + 3):
        op(0)
    assert ran[-3:] == ["5"] * 3
    del ran[:]
    op.register(name="1")(named("1"))
    for _ in range(4 + 3):
        op(0)
    assert ran == ["1"] * 7
    assert op.explain(0).chosen == "1"
    assert [len(each.samples_ns) for each in op.explain(0).implementations] == [1] * 6


# ---- H, I: threads and processes -----------------------------------------------------------------


def test_sixteen_threads_make_sixteen_first_calls(device: str) -> None:
    """H2: kernels of operations that are compiled at the same time."""

    def made(number: int) -> Any:
        @tn.kernel
        def scaled(x: Scalar) -> Scalar:
            return x * number + 0.125

        return operation(lambda x: None, scaled, lambda x: x * number + 0.125)

    operations = [made(number) for number in range(16)]
    barrier = threading.Barrier(16)

    def work(number: int) -> list[Any]:
        barrier.wait(60)
        return [operations[number](np.arange(3.0)).tolist() for _ in range(CALLS)]

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(work, range(16)))
    for number, results in enumerate(found):
        assert results == [[0.125, number + 0.125, 2 * number + 0.125]] * CALLS


@pytest.mark.parametrize("threads", [1, 2])
def test_eight_threads_share_one_compiled_kernel(device: str, threads: int) -> None:
    """H4: with one and with two threads inside of it."""
    plus = operation(lambda x, by: None, increment, increment_numpy)
    before = tn.num_threads()
    tn.set_num_threads(threads)
    try:
        numbers = iter(range(8))

        def work() -> None:
            number = next(numbers)
            x = np.full(200_000, float(number))
            for _ in range(CALLS):
                assert (plus(x, number) == 2 * number).all()

        in_threads(8, work)
    finally:
        tn.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_runs_small_and_large_parallel_kernels(device: str) -> None:
    """I5."""
    plus = operation(lambda x, out: None, increment_plane, increment_plane_numpy)

    def work() -> None:
        for n in (7, 8, 300):
            for _ in range(CALLS):
                out = np.zeros((n, n))
                plus(np.ones((n, n)), out)
                assert (out == 2).all()

    work()
    in_fork(work)


# ---- K: implementations of installed packages ----------------------------------------------------

STRANGER = """
def register(operation):
    operation.register(stranger)

def stranger(x):
    return "stranger"
"""


def install_stranger(folder: Path, operation_name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a_stranger.py").write_text(STRANGER)
    info = folder / "a_stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-stranger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[turnout.implementations]\n{operation_name} = a_stranger:register\n"
    )


@pytest.fixture
def forget_stranger() -> Iterator[None]:
    yield
    sys.modules.pop("a_stranger", None)


@pytest.mark.usefixtures("forget_stranger")
@pytest.mark.parametrize("how", ["link", "copy"])
def test_a_distribution_that_is_found_twice_registers_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """K3: lib64 is a link to lib; or an older copy lies further back on the path."""
    install_stranger(tmp_path / "lib", "found_twice")
    if how == "link":
        (tmp_path / "lib64").symlink_to(tmp_path / "lib")
    else:
        install_stranger(tmp_path / "lib64", "found_twice")
    for folder in ("lib64", "lib"):
        monkeypatch.syspath_prepend(tmp_path / folder)
    discovery.clear()

    @tn.perf_dispatch
    def found_twice(x: Any) -> Any: ...

    assert {found_twice(0) for _ in range(CALLS)} == {"stranger"}
    assert found_twice.implementations == ("stranger",)
    discovery.clear()


@pytest.mark.usefixtures("forget_stranger")
def test_metadata_is_read_once_for_300_distributions_and_1000_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K12."""
    for number in range(300):
        info = tmp_path / f"package_{number}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: package-{number}\nVersion: 1.0\n"
        )
    install_stranger(tmp_path / "site", "called_often")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "site")
    discovery.clear()
    scans: list[int] = []
    scan = discovery._scan
    monkeypatch.setattr(discovery, "_scan", lambda: (scans.append(1), scan())[1])

    def own(x: Any) -> str:
        return "own"

    def made() -> PerformanceDispatcher[..., Any]:
        @tn.perf_dispatch
        def called_often(x: Any) -> Any: ...

        called_often.register(own)
        return called_often

    operations = [made() for _ in range(10)]
    assert scans == []
    for op in operations:
        for number in range(100):
            assert op(number) in ("own", "stranger")
        assert op.implementations == ("own", "stranger")
    assert scans == [1]
    discovery.clear()


def test_operations_of_one_factory_are_apart() -> None:
    """K18: closures that are made twice."""

    def factory(factor: int) -> Any:
        @tn.perf_dispatch(repeat_after_seconds=0)
        def price(x: Any) -> Any: ...

        price.register(name="by_product")(lambda x: x * factor)
        price.register(name="by_sum")(lambda x: sum([x] * factor))
        return price

    two, three = factory(2), factory(3)
    for _ in range(CALLS):
        assert (two(10), three(10)) == (20, 30)
    three.reset()
    assert two.explain(10).chosen is not None
    assert three.explain(10).chosen is None


def settings_of_the_process() -> dict[str, Any]:
    return {
        "threads": tn.num_threads(),
        "floating-point errors": np.geterr(),
        "environment": dict(os.environ),
        "switch interval": sys.getswitchinterval(),
        "SIGINT": signal.getsignal(signal.SIGINT),
        "garbage collection": gc.isenabled(),
        "affinity": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        "recursion": sys.getrecursionlimit(),
    }


def test_measuring_leaves_the_settings_of_the_process_alone(device: str) -> None:
    """K22."""
    before = settings_of_the_process()
    within: list[dict[str, Any]] = []

    def noting(x: Any, by: Any) -> Any:
        within.append(settings_of_the_process())
        return x + by

    plus = operation(lambda x, by: None, increment, noting)
    for _ in range(CALLS):
        plus(np.ones(3), 1)
        assert settings_of_the_process() == before
    plus.tune(np.ones(3), 1)
    assert settings_of_the_process() == before
    assert within
    assert all(each == before for each in within)


# ---- N: latency ----------------------------------------------------------------------------------


def test_what_was_tuned_compiles_nothing_later(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N1: column-major arrays and other types are geometries of their own, and `tune` says so."""

    @tn.kernel
    def doubled(x: NDArray[f64, 2], out: NDArray[f64, 2]) -> None:
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                out[i, j] = x[i, j] * 2

    @tn.kernel
    def doubled_single(x: NDArray[f32, 2], out: NDArray[f32, 2]) -> None:
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                out[i, j] = x[i, j] * 2

    def is_single(x: Any, out: Any) -> Any:
        return x.dtype == np.float32 or "takes float32"

    def is_double(x: Any, out: Any) -> Any:
        return x.dtype == np.float64 or "takes float64"

    @tn.perf_dispatch(repeat_after_seconds=0)
    def double(x: Any, out: Any) -> None: ...

    double.register(doubled, is_compatible=is_double)
    double.register(doubled_single, is_compatible=is_single)

    @double.register
    def doubled_numpy(x: Any, out: Any) -> None:
        np.multiply(x, 2, out=out)

    compiled: list[str] = []
    for step in ("_cached", "load_binary"):  # what compiling and loading a unit go through
        original = getattr(compilation, step)
        monkeypatch.setattr(
            compilation,
            step,
            lambda *given, step=step, original=original: (compiled.append(step), original(*given))[
                1
            ],
        )
    arrays = [
        np.ones((4, 5), dtype, order)
        for dtype in (np.float32, np.float64, np.int32)
        for order in ("C", "F")
    ]
    covered = {double.tune(x, np.empty_like(x)).geometry for x in arrays}
    assert len(covered) == len(arrays)
    assert "load_binary" in compiled
    compiled.clear()
    for x in arrays:
        for _ in range(CALLS):
            out = np.empty_like(x)
            double(x, out)
            np.testing.assert_array_equal(out, np.full((4, 5), 2, x.dtype))
    assert compiled == []
