"""Operations under threads, forks and endless calls: right results, and nothing that grows."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from concurrency_support import in_threads

import turnout as tn
from turnout import NDArray, f64
from turnout.perf import PerformanceDispatcher


def doubling(**settings: Any) -> PerformanceDispatcher[..., Any]:
    @tn.perf_dispatch(**settings)
    def double(a: Any, b: Any) -> Any: ...

    @double.register
    def multiplied(a: Any, b: Any) -> int:
        np.multiply(a, 2, out=b)
        return len(a)

    @double.register
    @tn.kernel
    def doubled_kernel(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
        for i in range(a.shape[0]):
            b[i] = a[i] * 2

    @double.register
    def added(a: Any, b: Any) -> int:
        np.add(a, a, out=b)
        return len(a)

    return double


def check_calls(double: Any, calls: int) -> None:
    for number in range(calls):
        a = np.arange(1.0, 2.0 + number % 3)
        b = np.full_like(a, np.nan)
        assert double(a, b) in (len(a), None)
        np.testing.assert_array_equal(b, 2 * a)


@pytest.fixture
def switching() -> Any:
    """Threads that change after every few instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("switching")
def test_32_threads_that_start_cold_while_everything_is_measured_again_all_the_time() -> None:
    ticks = itertools.count()
    # A clock that moves by 0.1 ms whenever anyone looks: an evaluation every 100 calls.
    double = doubling(repeat_after_seconds=0.010, clock=lambda: next(ticks) * 1e-4)
    in_threads(32, lambda: check_calls(double, 150))
    assert double.explain(np.zeros(1), np.zeros(1)).source == "measured"


@pytest.mark.usefixtures("switching")
def test_threads_share_the_count_of_calls() -> None:
    timed: list[int] = []
    double = doubling(
        warmup=0,
        repeat_after_count=50,
        get_geometry_hash=lambda a, b: 0,
        timer=lambda work: (work(), timed.append(1), 1)[2],  # type: ignore[func-returns-value]
    )
    in_threads(8, lambda: check_calls(double, 100))
    # 800 calls; while one thread holds a trial, others run untimed, which is not counted.
    assert 3 <= len(timed) <= 3 * (800 // 53 + 1)


@pytest.mark.usefixtures("switching")
def test_forcing_registering_and_resetting_while_others_call() -> None:
    double = doubling(warmup=1, repeat_after_count=5)
    numbers = itertools.count()

    def disturb() -> None:
        number = next(numbers)
        if number % 3 == 0:
            double.register(name=f"extra_{number}")(lambda a, b: np.multiply(a, 2, out=b) is None)
        for _ in range(10):
            with double.force("added"):
                a, b = np.ones(3), np.zeros(3)
                assert double(a, b) == 3
            double.reset()

    def work() -> None:
        disturb() if next(numbers) % 2 else calls()

    def calls() -> None:
        for _ in range(100):
            a, b = np.ones(4), np.zeros(4)
            double(a, b)
            assert b.tolist() == [2] * 4

    in_threads(12, work)


def test_asyncio_calls_in_threads() -> None:
    double = doubling()

    async def call(n: int) -> None:
        a, b = np.full(n, 3.0), np.zeros(n)
        await asyncio.to_thread(double, a, b)
        assert b.tolist() == [6] * n

    async def calls() -> None:
        await asyncio.gather(*(call(1 + number % 3) for number in range(120)))

    asyncio.run(calls())
    check_calls(double, 60)
    assert double.explain(np.zeros(1), np.zeros(1)).chosen is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_goes_on_with_what_the_parent_measured() -> None:
    double = doubling(repeat_after_seconds=0)
    check_calls(double, 60)
    chosen = double.explain(np.zeros(1), np.zeros(1)).chosen
    assert chosen is not None
    child = os.fork()
    if child == 0:
        is_right = double.explain(np.zeros(1), np.zeros(1)).chosen == chosen
        check_calls(double, 60)
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- endless calls -------------------------------------------------------------------------------


@pytest.mark.parametrize("geometry", [None, lambda a, b: hash(a.shape + b.shape)])
@pytest.mark.parametrize("settings", [{}, {"repeat_after_seconds": 1e9}])
def test_decided_calls_allocate_nothing_that_stays(geometry: Any, settings: Any) -> None:
    @tn.perf_dispatch(get_geometry_hash=geometry, exploration_budget=1e-6, **settings)
    def op(a: Any, b: Any) -> None: ...

    for name in ("v1", "v2"):
        op.register(name=name)(lambda a, b: None)
    a, b = np.zeros(3), np.zeros((2, 2))

    def calls(count: int) -> int:
        before = tracemalloc.get_traced_memory()[0]
        for _ in itertools.repeat(None, count):
            op(a, b)
        return tracemalloc.get_traced_memory()[0] - before

    calls(100)
    tracemalloc.start()
    try:
        calls(100)
        gc.collect()
        calls(100)
        calls(1)
        by_one, by_many = calls(1), calls(20_000)
    finally:
        tracemalloc.stop()
    assert by_many == by_one  # what the test itself holds; the number of calls adds nothing


def test_the_number_of_geometries_is_bounded() -> None:
    op = doubling(max_geometries=10, warmup=0)
    for n in range(1, 200):
        op(np.zeros(n), np.zeros(n))
    assert len(op._tuner._trials) == 10
    assert op.explain(np.zeros(1), np.zeros(1)).source is None
    assert op.explain(np.zeros(199), np.zeros(199)).source is not None


def test_one_that_is_left_alone_counts_as_decided() -> None:
    asked: list[str] = []
    op = tn.perf_dispatch(get_geometry_hash=lambda x: 0)(lambda x: None)
    op.register(name="only", is_compatible=lambda x: True)(lambda x: asked.append("only"))
    op.register(name="never", is_compatible=lambda x: False)(lambda x: asked.append("never"))
    op(0)
    decided = dict(op._tuner.decided)
    for _ in range(1000):
        op(0)
    assert asked == ["only"] * 1001
    assert op._tuner.decided == decided  # the same entry for all calls


def test_an_implementation_that_failed_keeps_no_argument_alive() -> None:
    def failing(a: Any, b: Any) -> None:
        raise ValueError("boom")

    op = tn.perf_dispatch(warmup=1, active=2)(lambda a, b: None)
    op.register(failing)
    op.register(name="right")(lambda a, b: None)
    a, b = np.zeros(3), np.zeros(3)
    references = [weakref.ref(a), weakref.ref(b)]
    with pytest.raises(ValueError, match="boom"):
        op(a, b)
    for _ in range(8):
        op(a, b)
    op.tune(a, b)
    op.explain(a, b)
    del a, b
    gc.collect()
    assert [reference() for reference in references] == [None, None]


# ---- what failing costs --------------------------------------------------------------------------


def test_a_kernel_that_does_not_compile_costs_the_caller_nothing() -> None:
    """The arguments are untouched, so the same call goes on with another implementation."""

    @tn.kernel
    def broken(x: NDArray[f64, 1]) -> None:
        for i in range(x.shape[0]):
            x[i] = unknown_name  # noqa: F821

    op = tn.perf_dispatch(repeat_after_seconds=0)(lambda x: None)
    op.register(broken)

    @op.register
    def halved(x: Any) -> str:
        x *= 0.5
        return "halved"

    x = np.full(3, 2.0**20)
    for number in range(1, 11):
        assert op(x) == "halved"
        assert x.tolist() == [2.0 ** (20 - number)] * 3
    refusal = op.explain(x).implementations[0].refusal
    assert refusal is not None
    assert "KernelError" in refusal
    assert "unknown_name" in refusal


def test_all_but_one_fail_and_the_reasons_are_listed() -> None:
    op = tn.perf_dispatch(warmup=1, repeat_after_seconds=0)(lambda x: None)

    def failing(error: type[Exception]) -> Callable[[Any], None]:
        def run(x: Any) -> None:
            raise error("boom")

        return run

    for error in (ValueError, RuntimeError, MemoryError):
        op.register(name=error.__name__)(failing(error))
    op.register(name="reference")(lambda x: "right")
    for error in (ValueError, RuntimeError, MemoryError):
        with pytest.raises(error, match="boom"):
            op(0)
    assert [op(0) for _ in range(5)] == ["right"] * 5
    refusals = [each.refusal for each in op.explain(0).implementations]
    assert refusals == [
        "which raised ValueError: boom",
        "which raised RuntimeError: boom",
        "which raised MemoryError: boom",
        None,
    ]


def test_where_all_fail_no_one_is_left_out() -> None:
    op = tn.perf_dispatch(warmup=0, repeat_after_seconds=0)(lambda x: None)

    def implementation(name: str) -> Callable[[Any], str]:
        def run(x: Any) -> str:
            if x is None:
                raise ValueError(name)
            return name

        return run

    for name in ("a", "b"):
        op.register(name=name)(implementation(name))
    for name in ("a", "b"):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - compared below, without notes
            op(None)
        assert str(caught.value) == name
    assert all(each.refusal is None for each in op.explain(None).implementations)


# ---- never much worse than the default -----------------------------------------------------------


def spent(times: dict[str, int], sizes: list[int], **settings: Any) -> int:
    """The time that calls of these sizes take."""
    total = 0

    def timer(work: Callable[[], None]) -> int:
        before = total
        work()
        return total - before

    def implementation(elapsed: int) -> Callable[[Any], None]:
        def run(x: Any) -> None:
            nonlocal total
            total += elapsed

        return run

    op = tn.perf_dispatch(get_geometry_hash=lambda x: x, timer=timer, **settings)(lambda x: None)
    for name, elapsed in times.items():
        op.register(name=name)(implementation(elapsed))
    for size in sizes:
        op(size)
    return total


@pytest.mark.parametrize("calls_per_size", [1, 3, 50])
@pytest.mark.parametrize("active", [1, "auto"])
def test_random_sizes_cost_at_most_the_stated_bound(calls_per_size: int, active: Any) -> None:
    """Over always using the first: `warmup + active` calls of each other one, per geometry (E2)."""
    sizes = np.random.default_rng(0).permutation(np.repeat(np.arange(400, 600), calls_per_size))
    times = {"default": 100, "slow": 1000, "slower": 5000}
    always_default = len(sizes) * times["default"]
    timed = 1 if active == 1 else 2  # clearly slower ones are dropped after two samples
    bound = 200 * (3 + timed) * (1000 + 5000)
    assert spent(times, sizes.tolist(), active=active) <= always_default + bound
    if calls_per_size == 1:
        assert spent(times, sizes.tolist(), active=active) == always_default


def test_alternating_sizes_are_measured_once_each() -> None:
    """E3: the last geometry is not the only one that is remembered."""
    sizes = [1, 2] * 300
    total = spent({"default": 100, "slow": 200}, sizes, repeat_after_count=0)
    assert total == 600 * 100 + 2 * 4 * 100  # each pays for four calls of the slow one
