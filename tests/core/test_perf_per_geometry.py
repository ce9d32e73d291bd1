"""Implementations whose function is made for each geometry, and arguments that are checked once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import turnout as tn
from turnout.perf import PerformanceDispatcher, perf_dispatch


class Times:
    """A timer by which each implementation takes what it says."""

    def __init__(self) -> None:
        self.last_ns = 0

    def __call__(self, work: Callable[[], None]) -> int:
        work()
        return self.last_ns


@pytest.fixture
def times() -> Times:
    return Times()


def make_operation(times: Times, **options: Any) -> PerformanceDispatcher[..., Any]:
    @perf_dispatch(
        get_geometry_hash=lambda a: len(a), timer=times, warmup=1, repeat_after_count=0, **options
    )
    def total(a: list[int]) -> Any: ...

    @total.register
    def slow(a: list[int]) -> tuple[str, int]:
        times.last_ns = 100
        return "slow", sum(a)

    return total


def add_made(
    operation: PerformanceDispatcher[..., Any], times: Times, made: list[int], **options: Any
) -> None:
    @operation.register(name="made", per_geometry=True, mutates=(), **options)
    def make(a: list[int]) -> Callable[..., Any]:
        length = len(a)
        made.append(length)

        def run(a: list[int]) -> tuple[str, int]:
            times.last_ns = 10
            return f"made for {length}", sum(a)

        return run


def test_the_function_is_made_once_for_a_decision(times: Times) -> None:
    operation, made = make_operation(times), []
    add_made(operation, times, made)
    results = [operation([k, 1])[0] for k in range(4)]
    assert results == ["slow", "made for 2", "slow", "made for 2"]
    in_trials = len(made)
    assert [operation([k, 1]) for k in range(3)] == [("made for 2", k + 1) for k in range(3)]
    assert operation.decision([0, 0]).chosen == "made"
    assert len(made) == in_trials + 1
    assert operation([5]) == ("slow", 5)  # another geometry


def test_what_making_takes_is_not_timed(times: Times) -> None:
    operation = make_operation(times)

    @operation.register(name="made", per_geometry=True, mutates=())
    def make(a: list[int]) -> Callable[..., Any]:
        times.last_ns = 10_000
        return fast

    def fast(a: list[int]) -> int:
        times.last_ns = 10
        return sum(a)

    for _ in range(4):
        operation([1, 2])
    assert operation.decision([1, 2]).samples == {"slow": (100,), "made": (10,)}


def test_is_compatible_is_asked_once_per_geometry(times: Times) -> None:
    operation, asked = make_operation(times), []

    def is_compatible(a: list[int]) -> bool | str:
        asked.append(len(a))
        return True if len(a) == 2 else "only pairs"

    add_made(operation, times, [], is_compatible=is_compatible)
    for _ in range(4):
        operation([1, 2])
    asked.clear()
    assert operation([1, 2]) == ("made for 2", 3)
    assert asked == []
    assert operation([1, 2, 3]) == ("slow", 6)
    assert "only pairs" in str(operation.explain([1, 2, 3]))
    asked.clear()
    assert operation([1, 2, 3]) == ("slow", 6)
    assert asked == []


def test_force_and_tune_make_the_function(times: Times) -> None:
    operation, made = make_operation(times), []
    add_made(operation, times, made)
    with operation.force("made"):
        assert operation([1, 2]) == ("made for 2", 3)
    operation.tune([1, 2, 3])
    assert operation.decision([1, 2, 3]).chosen == "made"
    assert operation([4, 5, 6]) == ("made for 3", 15)


def test_what_cannot_be_made_is_left_out(times: Times) -> None:
    operation = make_operation(times, mutates=())

    @operation.register(name="made", per_geometry=True)
    def make(a: list[int]) -> Callable[..., Any]:
        raise ValueError("no code for this size")

    for _ in range(4):
        assert operation([1, 2]) == ("slow", 3)
    assert "no code for this size" in str(operation.explain([1, 2]))


def test_what_is_costly_to_make_waits_until_calls_took_as_long(times: Times) -> None:
    operation, made = make_operation(times), []
    add_made(operation, times, made, make_ms=1.0)  # each waiting call counts at least 5 us
    for _ in range(3):
        assert operation([1, 2])[0] == "slow"
    assert made == []
    calls = 3
    while not made:
        operation([1, 2])
        calls += 1
    assert 4 < calls <= 202
    for _ in range(3):
        operation([1, 2])
    assert operation.decision([1, 2]).chosen == "made"
    assert operation([1, 2, 3])[0] == "slow"  # each geometry waits on its own


def test_what_is_costly_to_make_runs_where_there_is_nothing_else(times: Times) -> None:
    @perf_dispatch(get_geometry_hash=lambda a: len(a), timer=times)
    def operation(a: list[int]) -> Any: ...

    add_made(operation, times, [], make_ms=1000.0)
    assert operation([1, 2]) == ("made for 2", 3)


def test_make_ms_needs_per_geometry(times: Times) -> None:
    operation = make_operation(times)
    with pytest.raises(tn.KernelError, match=r"make_ms= is what making takes: give per_geometry="):
        operation.register(name="made", make_ms=3.0)(lambda a: None)


def test_arguments_are_checked_before_anything_is_chosen(times: Times) -> None:
    checked: list[Any] = []

    def check(a: Any) -> None:
        checked.append(a)
        if 0 in a:
            raise tn.CallError("a must have no zeros")

    operation = make_operation(times, check=check)
    add_made(operation, times, [])
    with pytest.raises(tn.CallError, match="a must have no zeros"):
        operation([0, 1])
    with pytest.raises(tn.CallError, match="a must have no zeros"):
        operation.explain([0, 1])
    for _ in range(4):
        operation([1, 2])
    checked.clear()
    operation([1, 2])
    assert checked == []


def test_check_must_take_the_operations_arguments() -> None:
    with pytest.raises(tn.KernelError, match="check cannot be called with the operation's argu"):

        @perf_dispatch(check=lambda a, b: None)
        def operation(a: Any) -> None: ...


def test_the_default_geometry_tells_none_from_other_defaults() -> None:
    @perf_dispatch
    def operation(a: Any, out: Any = None) -> Any: ...

    operation.register(name="one")(lambda a, out: "one")
    operation.register(name="other")(lambda a, out: "other")
    a = np.zeros(3)
    assert operation.explain(a).geometry[1:] == (((3,), a.dtype, True), (type(None), None))
    assert operation.explain(a, a).geometry[1:] == (((3,), a.dtype, True), ((3,), a.dtype, True))
