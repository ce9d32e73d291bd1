"""What hurt users of systems like this one: arguments in place, interrupts, forks, odd calls."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from language_support import DEVICES

import turnout as tn
from turnout import NDArray, f32, f64
from turnout.perf import PerformanceDispatcher


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with tn.use(request.param):
        yield request.param


def operation(prototype: Callable[..., Any], **settings: Any) -> Any:
    """An operation that never measures again."""
    return tn.perf_dispatch(repeat_after_seconds=0, **settings)(prototype)


def with_all(made: Any, *functions: Any) -> Any:
    for number, function in enumerate(functions):
        made.register(name=f"v{number}")(function)
    return made


def logged(ran: list[str], name: str) -> Callable[[Any], str]:
    """An implementation that notes that it ran, and returns its name."""

    def implementation(x: Any) -> str:
        ran.append(name)
        return name

    return implementation


# ---- exactly one application per call ------------------------------------------------------------


@tn.kernel
def scale_kernel(x: NDArray[f32, 2], s: f64) -> None:
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] *= f32(s)


def scale_numpy(x: Any, s: Any) -> None:
    x *= np.float32(s)


def test_in_place_scaling_is_applied_once_per_call(device: str) -> None:
    scale = with_all(operation(lambda x, s: None), scale_kernel, scale_numpy)
    x = np.full((33, 70), 2.0**20, np.float32)
    for number in range(1, 13):
        scale(x, 0.5)
        np.testing.assert_array_equal(x, np.full((33, 70), 2.0 ** (20 - number), np.float32))


def step_numpy(parameters: Any, gradient: Any, momentum: Any, rate: float) -> None:
    momentum *= np.float32(0.5)
    momentum += gradient
    parameters -= np.float32(rate) * momentum


@tn.kernel
def step_kernel(
    parameters: NDArray[f32, 1], gradient: NDArray[f32, 1], momentum: NDArray[f32, 1], rate: f64
) -> None:
    for i in range(parameters.shape[0]):
        momentum[i] = momentum[i] * f32(0.5) + gradient[i]
        parameters[i] -= f32(rate) * momentum[i]


def test_an_optimiser_takes_one_step_per_call(device: str) -> None:
    step = with_all(operation(lambda parameters, gradient, momentum, rate: None), step_numpy)
    step.register(step_kernel)
    actual = np.ones(5, np.float32), np.full(5, 1e-3, np.float32), np.zeros(5, np.float32)
    wanted = tuple(array.copy() for array in actual)
    for _ in range(12):
        step(*actual, 1e-3)
        step_numpy(*wanted, 1e-3)
        np.testing.assert_array_equal(actual, wanted)


def test_the_number_of_candidates_never_changes_the_result() -> None:
    def add_sums(x: Any, total: Any) -> None:
        total += x.sum(axis=0)

    def add_product(a: Any, b: Any, c: Any) -> None:
        c += a @ b

    x = np.arange(392.0 * 384).reshape(392, 384)
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    for count in (1, 2, 3):
        summed = with_all(operation(lambda x, total: None), *[add_sums] * count)
        multiplied = with_all(operation(lambda a, b, c: None), *[add_product] * count)
        total, c = np.zeros(384), np.zeros((2, 4))
        for number in range(1, 16):
            summed(x, total)
            multiplied(a, b, c)
            np.testing.assert_array_equal(total, number * x.sum(axis=0))
            np.testing.assert_array_equal(c, number * (a @ b))


@dataclasses.dataclass
class State:
    position: Any
    velocity: Any


@pytest.mark.parametrize("kind", [list, dict, State])
def test_what_is_written_may_be_anywhere(kind: Any) -> None:
    def members(written: Any) -> Any:
        if isinstance(written, State):
            return [written.position, written.velocity]
        return written.values() if isinstance(written, dict) else written

    def in_a_loop(first: Any, second: Any, factor: float, written: Any) -> None:
        for a, b, out in zip(first, second, members(written), strict=True):
            out += factor * (a + b)

    def by_index(first: Any, second: Any, factor: float, written: Any) -> None:
        for number, out in enumerate(members(written)):
            out += factor * (first[number] + second[number])

    add = with_all(operation(lambda first, second, factor, written: None), in_a_loop, by_index)
    outs = [np.zeros(3), np.zeros(4)]
    written = {list: outs, dict: dict(zip("pv", outs, strict=True)), State: State(*outs)}[kind]
    first, second = [np.ones(3), np.full(4, 2.0)], [np.full(3, 3.0), np.ones(4)]
    for number in range(1, 13):
        add(first, second, 0.5, written)
        np.testing.assert_array_equal(outs[0], np.full(3, 2.0 * number))
        np.testing.assert_array_equal(outs[1], np.full(4, 1.5 * number))


@tn.kernel
def increment_1(x: NDArray[f64, 1], out: NDArray[f64, 1]) -> None:
    for i in range(x.shape[0]):
        out[i] = x[i] + 1


@tn.kernel
def increment_2(x: NDArray[f64, 2], out: NDArray[f64, 2]) -> None:
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] + 1


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (0, 0)])
def test_empty_arrays_are_no_operation(device: str, shape: tuple[int, ...]) -> None:
    def increment_numpy(x: Any, out: Any) -> None:
        np.add(x, 1, out=out)

    increment = with_all(
        operation(lambda x, out: None, warmup=1),
        increment_1 if len(shape) == 1 else increment_2,
        increment_numpy,
    )
    out = np.empty(shape)
    for _ in range(6):  # warm-up, timed, decided
        increment(np.ones(shape), out)
    assert increment.decision(out, out).chosen is not None
    full = np.zeros((3,) * len(shape))
    increment(full, full)
    np.testing.assert_array_equal(full, np.ones(full.shape))
    assert increment.decision(full, full).samples == {}  # no time of an empty call counts here


# ---- what a change of geometry costs -------------------------------------------------------------


def counting(names: str, **settings: Any) -> tuple[PerformanceDispatcher[..., Any], list[str]]:
    ran: list[str] = []

    def timer(work: Callable[[], None]) -> int:
        work()
        return {"a": 2, "b": 1, "c": 3}[ran[-1]]

    made = operation(lambda x: None, timer=timer, **settings)
    for name in names:
        made.register(name=name)(logged(ran, name))
    return made, ran


def test_sizes_that_come_once_all_run_the_first_implementation() -> None:
    made, ran = counting("ab")
    sizes = np.random.default_rng(0).permutation(np.arange(400, 600))
    for size in sizes.tolist():
        made(np.empty((size, 3)))
    assert ran == ["a"] * 200


def test_a_geometry_costs_a_known_number_of_calls() -> None:
    made, ran = counting("abc", warmup=3, active=1)
    random = np.random.default_rng(0)
    sizes = random.integers(1, 21, size=2000).tolist()
    for size in sizes:
        made(np.empty(size))
    # Each of the others runs (warmup + active) times per geometry, then never again.
    assert [ran.count("a"), ran.count("c")] == [4 * 20, 4 * 20]


def test_alternating_geometries_are_measured_once_each() -> None:
    made, ran = counting("ab", warmup=0)
    for _ in range(10):
        made(np.empty(1))
        made(np.empty(2))
    assert "".join(ran) == "aabb" + "b" * 16


def test_other_types_and_layouts_are_measured_anew_and_right(device: str) -> None:
    def increment_numpy(x: Any, by: Any) -> Any:
        return x + by

    @tn.kernel
    def increment_kernel(x: tn.Scalar, by: tn.Param) -> tn.Scalar:
        return x + by

    increment = with_all(operation(lambda x, by: None), increment_numpy, increment_kernel)
    base = np.arange(8.0)
    geometries = set()
    for x in (base[::2], base[:4], base[3::-1], base[:4].astype(np.float32)):
        for by in (0, 0.5, 1):
            for _ in range(10):
                result = increment(x, by)
                assert result.dtype == x.dtype
                np.testing.assert_array_equal(result, x + by)
            geometries.add(increment.decision(x, by).geometry)
    assert len(geometries) == 6  # strided, contiguous, another type; int and float


def test_a_change_of_mind_measures_every_compatible_one_first() -> None:
    now = 0.0
    ran: list[str] = []

    @tn.perf_dispatch(
        get_geometry_hash=lambda x: 0,
        warmup=0,
        repeat_after_seconds=1,
        timer=lambda work: (work(), len(ran))[1],
        clock=lambda: now,
    )
    def op(x: int) -> None: ...

    for name in "abc":
        is_compatible = (lambda x: x > 0) if name == "c" else None
        op.register(name=name, is_compatible=is_compatible)(logged(ran, name))
    for x in (0, 0, 1, 1):  # c is not compatible with 0
        op(x)
    assert "".join(ran) == "abca"
    now = 2.0
    for _ in range(3):
        op(1)
    assert "".join(ran[4:]) == "abc"
    decision: Any = op.decision(1)
    assert decision.samples.keys() == {"a", "b", "c"}


def test_each_check_is_asked_once_per_call() -> None:
    asked: list[str] = []

    def check(name: str, answer: Callable[[int], bool]) -> Callable[[int], bool]:
        return lambda x: (asked.append(name), answer(x))[1]

    op = operation(lambda x: None, get_geometry_hash=lambda x: 0)
    op.register(name="less", is_compatible=check("less", lambda x: x < 5))(lambda x: "less")
    op.register(name="equal", is_compatible=check("equal", lambda x: x == 5))(lambda x: "equal")
    op.register(name="more", is_compatible=check("more", lambda x: x > 5))(lambda x: "more")
    for x, expected in ((4, "less"), (5, "equal"), (6, "more")):
        op(x)
        asked.clear()
        assert op(x) == expected  # decided
        assert asked == ["less", "equal", "more"]


# ---- interrupts and forks ------------------------------------------------------------------------


def test_an_interrupt_while_measuring_keeps_what_was_measured() -> None:
    ran: list[str] = []
    interrupted: list[str] = []

    def implementation(name: str) -> Callable[[Any], None]:
        def run(x: Any) -> None:
            if name == "b" and not interrupted:
                interrupted.append(name)
                signal.raise_signal(signal.SIGINT)
            ran.append(name)

        return run

    op = operation(lambda x: None, warmup=0, timer=lambda work: (work(), 1)[1])
    for name in "ab":
        op.register(name=name)(implementation(name))
    op(0)
    with pytest.raises(KeyboardInterrupt):
        op(0)
    assert op.decision(0).samples == {"a": (1,)}
    for _ in range(3):
        op(0)
    assert ran == ["a", "b", "a", "a"]


MODULES = "dispatcher compatibility safeguards remembering tuning trials ranking"
OURS = [f"turnout.{name}" for name in MODULES.split()]


def is_interrupted_at(event_number: int, op: Any) -> bool:
    """Call until decided, with an interrupt where Python looks for one; whether it came so far.

    Python handles signals when a function starts and when a builtin has returned.
    """
    events = 0

    def profile(frame: types.FrameType, event: str, argument: object) -> None:
        nonlocal events
        is_ours = frame.f_globals.get("__name__") in OURS
        if is_ours and event in ("call", "c_return"):
            events += 1
            if events == event_number:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        for _ in range(4):
            op(0)
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def test_an_interrupt_anywhere_leaves_the_operation_usable() -> None:
    event_number = 0
    was_interrupted = True
    while was_interrupted:
        event_number += 1
        op = operation(lambda x: None, warmup=1, timer=lambda work: (work(), 1)[1])
        for name in "ab":
            op.register(name=name)(logged([], name))
        was_interrupted = is_interrupted_at(event_number, op)
        # Another thread would wait for ever for a lock that is still held.
        thread = threading.Thread(target=lambda op=op: [op(0) for _ in range(6)], daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive(), event_number
        assert op.decision(0).chosen == "a", event_number
    assert event_number > 50


@pytest.mark.parametrize("error", [ValueError, RuntimeError, MemoryError, SystemExit])
def test_what_an_implementation_raises_reaches_the_caller(error: type[BaseException]) -> None:
    def failing(x: Any) -> None:
        raise error("boom")

    op = with_all(operation(lambda x: None, warmup=0), lambda x: "right", failing)
    assert op(0) == "right"
    with pytest.raises(error, match="boom"):
        op(0)
    if issubclass(error, Exception):  # then it is left out, else it is tried again
        assert [op(0) for _ in range(3)] == ["right"] * 3
    else:
        with pytest.raises(error, match="boom"):
            op(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_while_another_thread_prepares_the_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TURNOUT_PERFDISPATCH_FORCE", "op:second")
    is_preparing, may_go_on = threading.Event(), threading.Event()

    def waiting_entries(names: object) -> list[Any]:
        is_preparing.set()
        assert may_go_on.wait(60)
        return []

    monkeypatch.setattr("turnout.implementations.entries_for", waiting_entries)

    def op(x: int) -> None: ...

    made = with_all(operation(op))
    made.register(name="second")(lambda x: "second")
    made.register(name="third")(lambda x: "third")
    first_call = threading.Thread(target=lambda: made(0))
    first_call.start()
    assert is_preparing.wait(60)
    with made._registration:  # held by a thread that does not exist in the child
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # what hangs is killed
            monkeypatch.setattr("turnout.implementations.entries_for", lambda names: [])
            made.register(name="late")(lambda x: "late")
            os._exit(0 if [made(0) for _ in range(9)] == ["second"] * 9 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    may_go_on.set()
    first_call.join()
    assert made(0) == "second"


def test_two_modules_may_have_operations_of_one_name() -> None:
    text = (
        "import turnout as tn\n@tn.perf_dispatch\ndef price(x): ...\n"
        "@price.register\ndef priced(x): return x * FACTOR\n"
    )
    modules = []
    for factor in (2, 3):
        module = types.ModuleType(f"market_{factor}")
        module.__dict__["FACTOR"] = factor
        exec(text, module.__dict__)
        modules.append(module)
    assert [module.price(10) for module in modules] == [20, 30]
    assert modules[0].price is not modules[1].price


def test_unusual_arguments_that_no_implementation_uses() -> None:
    def echo(x: Any, extra: Any = None) -> Any:
        return x

    record = np.zeros(2, [("a", "f4"), ("b", "i8")])
    for extra in (len, object(), record, State(1, 2), {"a": {"b": []}}, NDArray[f64, 1], b"x"):
        op = with_all(operation(echo), echo, lambda x, extra: x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [op(number, extra) for number in range(10)] == list(range(10))
        assert op.decision(0, extra).chosen is not None
