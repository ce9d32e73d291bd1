"""Operations whose decided calls a builtin serves: it finds what is decided, and nothing else."""

from __future__ import annotations

import inspect
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import turnout as tn
from turnout import offers
from turnout.decision_table import DecisionTable
from turnout.dispatcher import PerformanceDispatcher
from turnout.plugin import offer_decided_calls
from turnout.settings import settings
from turnout.signatures import generate_flat_geometry
from turnout.tuning import TrialPlan
from turnout_cpu.decided_entry import make_decided_entry

pytestmark = pytest.mark.skipif(
    getattr(sys.flags, "gil", 1) == 0, reason="there are no native entries without the lock"
)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(offers, "_decided_calls", {})
    offer_decided_calls("pick", "cpu", make_decided_entry)
    with tn.use("cpu"):
        yield


class Picked:
    """An operation with implementations that return their names and what they got."""

    def __init__(self, **settings: Any) -> None:
        def pick(a: Any, b: Any, out: Any = None) -> Any: ...

        geometry = generate_flat_geometry(inspect.signature(pick))
        plan = {"warmup": 0, "active": 1, "exploration_budget": 0} | settings
        self.operation = tn.perf_dispatch(get_geometry_hash=geometry, mutates=(), **plan)(pick)
        self.made: list[tuple[str, tuple[int, ...]]] = []
        self.register("first")
        self.register("second")

    def register(self, name: str) -> None:
        @self.operation.register(name=name, per_geometry=True, version="1")
        def make(a: Any, b: Any, out: Any) -> Callable[..., Any]:
            shape = np.shape(a)
            self.made.append((name, shape))

            def run(a: Any, b: Any, out: Any) -> Any:
                return name, shape, a, b, out

            return run

    def settle(self, *arguments: Any) -> str:
        """Call until a builtin serves the calls of this geometry; returns who is chosen."""
        for _ in range(10):
            self.operation(*arguments)
        assert self.is_native(*arguments)
        return str(self.operation.decision(*arguments).chosen)

    def is_native(self, *arguments: Any) -> bool:
        """Whether calls reach no Python code but that of an implementation."""
        seen = []
        sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_name))
        try:
            self.operation(*arguments)
        finally:
            sys.setprofile(None)
        return "run" in seen and not any("call" in name or name == "lend" for name in seen)


A, B = np.ones((2, 3)), np.zeros((3, 4))


def test_a_decided_call_passes_no_python_code() -> None:
    picked = Picked()
    chosen = picked.settle(A, B)
    name, shape, a, b, out = picked.operation(A, B)
    assert (name, shape, out) == (chosen, (2, 3), None)
    assert a is A
    assert b is B


def test_arguments_by_position_and_keyword() -> None:
    picked = Picked()
    picked.settle(A, B)
    out = np.ones((2, 4))
    picked.settle(A, B, out)
    for result in (
        picked.operation(A, B, out),
        picked.operation(A, B, out=out),
        picked.operation(b=B, out=out, a=A),
    ):
        assert [id(each) for each in result[2:]] == [id(A), id(B), id(out)]
    assert picked.operation(b=B, a=A)[4] is None
    for wrong in ((A,), (A, B, out, out)):
        with pytest.raises(TypeError, match=r"argument"):
            picked.operation(*wrong)
    with pytest.raises(TypeError, match="c"):
        picked.operation(A, B, c=1)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (A.T, B),
        (np.asfortranarray(A), B),
        (A.astype(np.float32), B),
        (A.astype(">f8"), B),
        (A.astype(np.int64), B),
        (A[:1], B),
        (A, B[:, :1]),
        (A[0], B),
        (A[None], B),
        (np.ones((1, 1, 1, 2, 3)), B),
        (np.float64(3.0), B),
        (A.view(np.matrix), B),
        ([1, 2], B),
        (np.ones(()), B),
        (np.ones((0, 3)), B),
    ],
)
def test_another_geometry_is_decided_by_itself(a: Any, b: Any) -> None:
    """Whatever differs from what is decided gets a function of its own."""
    picked = Picked()
    picked.settle(A, B)
    before = len(picked.made)
    for _ in range(10):
        result = picked.operation(a, b)
        assert result[1] == np.shape(a)
        assert result[2] is a
        assert result[3] is b
    assert len(picked.made) > before
    assert picked.operation(A, B)[1] == (2, 3)


def test_types_that_are_equal_are_the_same() -> None:
    picked = Picked()
    picked.settle(A, B)
    own = pickle.loads(pickle.dumps(A))
    assert own.dtype is not A.dtype
    assert picked.is_native(own, B)


def test_decisions_that_are_forgotten_serve_no_call() -> None:
    picked = Picked()
    picked.settle(A, B)
    picked.operation.reset()
    assert picked.operation.decision(A, B) is None
    made = len(picked.made)
    picked.operation(A, B)
    assert len(picked.made) > made
    assert picked.operation.decision(A, B) is not None


def test_what_is_forced_runs() -> None:
    picked = Picked()
    picked.settle(A, B)
    for name in ("first", "second"):
        with picked.operation.force(name):
            assert picked.operation(A, B)[0] == name
    assert picked.is_native(A, B)


def test_a_new_implementation_is_tried() -> None:
    picked = Picked()
    picked.settle(A, B)
    picked.register("third")
    for _ in range(10):
        picked.operation(A, B)
    assert ("third", (2, 3)) in picked.made
    assert "third" in picked.operation.decision(A, B).samples


def test_an_implementation_that_asks_each_call_takes_the_builtin_away() -> None:
    picked = Picked()
    picked.settle(A, B)

    @picked.operation.register(is_compatible=lambda a, b, out: bool(a[0, 0]))
    def third(a: Any, b: Any, out: Any) -> Any:
        return "third", a.shape, a, b, out

    for _ in range(10):
        picked.operation(A, B)
    assert not picked.is_native(A, B)


def test_decisions_that_make_room_serve_no_call() -> None:
    picked = Picked(max_geometries=1)
    picked.settle(A, B)
    picked.settle(B, A)
    assert picked.operation.decision(A, B) is None
    made = len(picked.made)
    picked.operation(A, B)
    assert len(picked.made) > made


def test_calls_are_counted() -> None:
    """After exactly so many decided calls everything is tried again."""
    picked = Picked(repeat_after_count=20)
    for _ in range(2):
        picked.operation(A, B)
    assert picked.operation.decision(A, B).chosen
    for _ in range(20):
        picked.operation(A, B)
    decisions = picked.operation._tuner.decided
    (decided,) = decisions.values()
    assert decided.remaining == 0
    picked.operation(A, B)
    assert not decisions  # the trials go on
    picked.operation(A, B)
    assert [len(own) for own in picked.operation.decision(A, B).samples.values()] == [2, 2]


class SettlingTimes:
    """An operation whose implementations take given times, by a clock that the test moves."""

    def __init__(self, first_ns: int, second_ns: int) -> None:
        def pick(a: Any, b: Any, out: Any = None) -> Any: ...

        self.now, self.ran = 0.0, [""]
        self.elapsed_ns = {"first": first_ns, "second": second_ns}
        plan = TrialPlan(warmup=0, active="auto", exploration_budget=0.01, settles=True)
        geometry = generate_flat_geometry(inspect.signature(pick))
        given = settings(geometry, plan, timer=self.timed, clock=lambda: self.now, mutates=())
        self.operation: Any = PerformanceDispatcher(pick, given)
        for name in self.elapsed_ns:
            self.register(name)

    def timed(self, work: Callable[[], None]) -> int:
        work()
        return self.elapsed_ns[self.ran[-1]]

    def register(self, name: str) -> None:
        @self.operation.register(name=name, per_geometry=True, version="1")
        def make(a: Any, b: Any, out: Any) -> Callable[..., Any]:
            def run(a: Any, b: Any, out: Any) -> None:
                self.ran.append(name)

            return run

    def chosen(self, calls: int) -> str:
        self.ran.clear()
        for _ in range(calls):
            self.operation(A, B)
        return str(self.operation.decision(A, B).chosen)


def test_a_close_choice_that_was_wrong_is_corrected() -> None:
    op = SettlingTimes(100_000, 120_000)
    assert op.chosen(100) == "first"
    op.elapsed_ns["first"] = 140_000  # as it is where nothing else runs
    assert op.chosen(9_000) == "first"
    assert set(op.ran) == {"first"}  # a second has not passed
    for _ in range(5):
        op.now += 4.0
        chosen = op.chosen(9_000)
    assert chosen == "second"
    assert op.ran[-1] == "second"


def test_a_clear_choice_is_final() -> None:
    op = SettlingTimes(100_000, 200_000)
    assert op.chosen(100) == "first"
    op.elapsed_ns["first"] = 1_000_000
    for _ in range(5):
        op.now += 100.0
        assert op.chosen(9_000) == "first"
        assert set(op.ran) == {"first"}


def test_another_device_in_force_has_decisions_of_its_own() -> None:
    picked = Picked()
    picked.settle(A, B)
    with tn.use("reference"):
        assert picked.operation.decision(A, B) is None
        for _ in range(5):
            assert picked.operation(A, B)[1] == (2, 3)
        assert picked.operation.decision(A, B).chosen
        assert not picked.is_native(A, B)
    assert picked.is_native(A, B)


def test_more_geometries_than_places() -> None:
    picked = Picked(max_geometries=4096)
    count = 3 << DecisionTable.SLOT_BITS
    arrays = [np.ones((n, 1)) for n in range(count)]
    for _ in range(5):
        for n, array in enumerate(arrays):
            assert picked.operation(array, B)[1] == (n, 1)


def test_errors_of_implementations_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    picked = Picked()

    @picked.operation.register(name="only", per_geometry=True)
    def make(a: Any, b: Any, out: Any) -> Callable[..., Any]:
        def run(a: Any, b: Any, out: Any) -> Any:
            if a[0, 0] == 7:
                raise ValueError("seven")
            return a

        return run

    monkeypatch.setenv("TURNOUT_PERFDISPATCH_FORCE", "pick:only")
    sevens = np.full((2, 3), 7.0)
    for _ in range(3):
        assert picked.operation(A, B) is A
    assert picked.is_native(A, B)
    for _ in range(3):
        with pytest.raises(ValueError, match="seven"):
            picked.operation(sevens, B)


def test_threads_that_call_while_decisions_change() -> None:
    picked = Picked()
    arrays = [np.ones((n, 2)) for n in range(1, 9)]
    failures: list[object] = []
    stop = threading.Event()

    def call(first: int) -> None:
        while not stop.is_set():
            for n in range(8):
                array = arrays[(first + n) % 8]
                result = picked.operation(array, B)
                if result[1] != array.shape or result[2] is not array:
                    failures.append(result)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        picked.operation(arrays[0], B)
        picked.operation.reset()
        with picked.operation.force("second"):
            pass
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures


def test_objects_are_neither_leaked_nor_lost() -> None:
    picked = Picked()
    picked.settle(A, B)
    marker = object()
    array = np.array([[1.0, 2.0, 3.0]] * 2)
    counts = [sys.getrefcount(each) for each in (array, B, marker, None)]
    for _ in range(1000):
        picked.operation(array, B)
    after = [sys.getrefcount(each) for each in (array, B, marker, None)]
    assert all(abs(x - y) < 50 for x, y in zip(counts, after, strict=True))


def test_operations_without_an_offer_keep_their_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "_decided_calls", {})
    picked = Picked()
    for _ in range(10):
        assert picked.operation(A, B)[1] == (2, 3)
    assert picked.operation.decision(A, B).chosen
    assert inspect.isfunction(type(picked.operation).__call__)
    assert not picked.operation._front.is_possible


def test_an_offer_must_be_callable() -> None:
    with pytest.raises(tn.ConfigurationError, match="cannot be called"):
        offer_decided_calls("pick", "cpu", None)  # type: ignore[arg-type]
