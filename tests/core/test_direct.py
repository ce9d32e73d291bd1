"""Native entries as the core sees them: when a backend is asked, what it is told, what is kept."""

from __future__ import annotations

import copy
import gc
import inspect
import itertools
import pickle
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_plugins import Site

import turnout as tn
import turnout.math as tm
from turnout import (
    CallError,
    Index,
    Mutable,
    NDArray,
    Param,
    Scalar,
    Terminated,
    Vector,
    f32,
    f64,
    i64,
    u32,
)
from turnout.backends import choice_of, clear, resolve
from turnout.direct import NO_DEFAULT, DirectCall

BACKEND = """
from turnout import reference
from turnout.plugin import Device, Target, hookimpl

class Entry:
    def __init__(self, call):
        self.call, self.count = call, 0

    def __call__(self, *args, **keywords):
        self.count += 1
        return self.call.fallback(*args, **keywords)

class Launcher:
    calls = []
    is_willing = True

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, args, size):
        self.inner(args, size)

    def direct(self, call):
        self.calls.append(call)
        return Entry(call) if self.is_willing else None

@hookimpl
def turnout_devices():
    return [Device(0, "fake", Target("fake", "fake"))]

@hookimpl
def turnout_compile(unit):
    return reference.turnout_compile(unit=unit)

@hookimpl
def turnout_launch(unit):
    return Launcher(reference.turnout_launch(unit=unit))
"""


@tn.kernel
def saxpy(a: Param, x: Scalar, y: Scalar, out: Mutable[Scalar]):
    out = a * x + y


@tn.kernel
def shifted(x: Scalar, by: Param = 2) -> Scalar:
    return x + by


def fresh(kernel: tn.kernel) -> Any:
    """The kernel as it was before its first call."""
    return tn.kernel(kernel.__wrapped__)


@pytest.fixture
def launchers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The launcher class of a backend with native entries, which is the default."""
    site = Site(tmp_path / "site", monkeypatch)
    site.install_backend("fake", BACKEND)
    tn.set_default_device("fake")
    import dist_fake_module

    yield dist_fake_module.Launcher
    monkeypatch.undo()
    clear()


def test_a_backend_is_asked_at_the_second_call_of_an_executable(launchers: Any) -> None:
    kernel, x = fresh(shifted), np.arange(3.0)
    assert type(kernel) is tn.kernel(shifted.__wrapped__).__class__
    assert kernel(x, 1).tolist() == [1.0, 2.0, 3.0]
    assert launchers.calls == []
    for _ in range(3):
        assert kernel(x, 1).tolist() == [1.0, 2.0, 3.0]
    assert len(launchers.calls) == 1
    assert type(kernel).__call__.count == 2  # the third and fourth call


def test_what_a_backend_is_told(launchers: Any) -> None:
    @tn.kernel
    def told(
        x: Scalar, move: Vector[2], table: NDArray[i64, 2], /, by: Param = 2, *, done: Terminated
    ) -> tuple[Scalar, Vector[2]]:
        return x + by + table[0, 0], move

    args = np.ones(3, np.float32), np.ones((2, 3), np.float32), np.zeros((1, 1), np.int64)
    done = np.array([False, True, False])
    for _ in range(2):
        first, second = told(*args, done=done)
    assert first.tolist() == [3.0, 0.0, 3.0]
    assert second.tolist() == [[1.0, 0.0, 1.0]] * 2
    (call,) = launchers.calls
    assert isinstance(call, DirectCall)
    assert call.name == "told"
    rows = [
        (p.name, p.takes_position, p.takes_keyword, p.default, p.python_type, p.dtype, p.rank)
        for p in call.parameters
    ]
    assert rows == [
        ("x", True, False, NO_DEFAULT, np.ndarray, f32, 1),
        ("move", True, False, NO_DEFAULT, np.ndarray, f32, 2),
        ("table", True, False, NO_DEFAULT, np.ndarray, i64, 2),
        ("by", True, True, 2, int, i64, 0),
        ("done", False, True, NO_DEFAULT, np.ndarray, tn.bool_, 1),
    ]
    assert [p.width for p in call.parameters] == [0, 2, 0, 0, 0]
    assert [p.counts_samples for p in call.parameters] == [True, True, False, False, True]
    assert [p.is_written for p in call.parameters] == [False] * 5
    assert call.returns_tuple
    assert [(r.dtype, r.width) for r in call.results] == [(f32, 0), (f32, 2)]
    made = [result.allocate(4) for result in call.results]
    assert [(m.shape, m.dtype, m.any()) for m in made] == [
        ((4,), np.float32, False),
        ((2, 4), np.float32, False),
    ]
    assert str(call.target) == str(tn.devices("fake")[0].target)
    assert call.device.used.get() is None
    assert call.device.default.value == id(call.device.context) == id(resolve(()))
    (run,) = call.runs
    names = [*(p.name for p in call.parameters), "samples", "first result", "second result"]
    by_parameter = dict(zip((p.name for p in run.unit.parameters), run.places, strict=True))
    assert all(names[place] == name for name, place in by_parameter.items() if name in names)
    assert {names[place] for place in run.places} >= {"first result", "second result", "samples"}


def test_pairs_reaches_and_scratch_are_told(launchers: Any) -> None:
    @tn.kernel
    def summed(a: NDArray[f64, 1], b: NDArray[f64, 1], out: NDArray[f64, 1]) -> None:
        total = 0.0
        for i in tn.serial(range(a.shape[0])):
            total += b[i]
        for i in range(a.shape[0]):
            out[i] = total * a[i]

    a, b, out = np.ones(2), np.ones(2), np.zeros(2)
    for _ in range(2):
        summed(a, b, out)
    assert out.tolist() == [2.0, 2.0]
    (call,) = launchers.calls
    assert [p.is_written for p in call.parameters] == [False, False, True]
    assert (0, 2, True) in call.overlaps
    assert {reach.array for reach in call.reaches} == {"b", "out"}
    assert len(call.runs) == 2
    assert len(call.scratch) == 1
    assert {place for run in call.runs for place in run.places} == {0, 1, 2, 4}
    assert call.results == ()


def test_counters_stand_behind_the_parameters(launchers: Any) -> None:
    @tn.kernel
    def counted(kind: Index, x: Scalar) -> Scalar:
        return x * tm.dispatch(kind, [1.0, 2.0, 3.0], policy="switch")

    kind, x, mix = np.array([0, 2]), np.ones(2), np.zeros(3, np.uint32)
    for _ in range(3):
        assert counted(kind, x, dispatch0_mix=mix).tolist() == [1.0, 3.0]
    assert mix.tolist() == [3, 0, 3]
    (call,) = launchers.calls
    *_, counter = call.parameters
    assert [p.name for p in call.parameters] == ["kind", "x", "dispatch0_mix"]
    assert (counter.takes_position, counter.takes_keyword) == (False, True)
    assert (counter.default, counter.python_type) == (NO_DEFAULT, np.ndarray)
    assert (counter.dtype, counter.rank, counter.counts_samples) == (u32, 1, False)
    assert (counter.is_written, counter.is_contiguous) == (True, True)
    assert {(0, 2, False), (1, 2, False)} <= set(call.overlaps)
    (reach,) = [reach for reach in call.reaches if reach.array == "dispatch0_mix"]
    assert (reach.axis, reach.least, reach.greatest.constant) == (0, None, 2)
    names = [*(p.name for p in call.parameters), "samples"]
    for run in call.runs:
        by_parameter = dict(zip((p.name for p in run.unit.parameters), run.places, strict=True))
        assert all(names[place] == name for name, place in by_parameter.items() if name in names)
    assert any(2 in run.places for run in call.runs)


def test_each_entry_falls_back_on_the_former_and_at_most_four_are_made(launchers: Any) -> None:
    kernel, x = fresh(shifted), np.arange(3.0)
    numbers = [1, 2.0, np.float64(3), True, np.int32(5), np.int64(6)]
    for number in numbers * 2:
        assert kernel(x, number).tolist() == (x + number).tolist()
    calls = launchers.calls
    assert [call.parameters[1].python_type for call in calls] == [type(n) for n in numbers[:4]]
    newest = type(kernel).__call__
    assert newest.call is calls[3]
    for former, later in itertools.pairwise(calls):
        assert later.fallback.call is former
    assert calls[0].fallback.__self__ is kernel


def test_a_backend_that_makes_no_entry_is_not_asked_again(
    launchers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "is_willing", False)
    kernel, x = fresh(shifted), np.arange(3.0)
    own_type = type(kernel)
    for _ in range(4):
        assert kernel(x).tolist() == [2.0, 3.0, 4.0]
    assert len(launchers.calls) == 1
    assert type(kernel) is own_type


def test_kernels_that_are_checked_have_no_entry(launchers: Any) -> None:
    kernel = tn.kernel(debug=True)(shifted.__wrapped__)
    for _ in range(3):
        assert kernel(np.zeros(2)).tolist() == [2.0, 2.0]
    assert launchers.calls == []


def test_a_call_without_samples_gets_no_entry(launchers: Any) -> None:
    @tn.kernel
    def fill(value: Param) -> Scalar:
        return value

    for _ in range(3):
        assert fill(1.5, samples=2).tolist() == [1.5, 1.5]
    assert launchers.calls == []
    with pytest.raises(CallError, match="no argument tells the number of samples"):
        fill(1.5)


def test_threads_ask_for_one_entry(launchers: Any) -> None:
    kernel, x = fresh(shifted), np.arange(3.0)
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        for _ in range(50):
            assert kernel(x).tolist() == [2.0, 3.0, 4.0]

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(launchers.calls) == 1


def test_a_kernel_with_an_entry_is_still_that_kernel(launchers: Any) -> None:
    kernel = fresh(saxpy)
    shared, shown, signature = type(kernel), repr(kernel), inspect.signature(kernel)
    pickled, documentation = pickle.dumps(saxpy), kernel.__doc__
    x = np.arange(3.0)
    for _ in range(3):
        kernel(2, x, x, np.zeros(3))
    assert type(kernel) is not shared
    assert isinstance(kernel, shared)
    assert type(kernel).__name__ == shared.__name__
    assert type(kernel).__qualname__ == shared.__qualname__
    assert type(kernel).__module__ == shared.__module__
    assert type(kernel).__doc__ == shared.__doc__
    assert repr(kernel) == shown
    assert inspect.signature(kernel) == signature
    assert kernel.__doc__ == documentation
    assert kernel.__name__ == "saxpy"
    assert callable(kernel)
    assert copy.copy(kernel) is copy.deepcopy(kernel) is kernel
    for _ in range(3):
        saxpy(2, x, x, np.zeros(3))
    assert pickle.dumps(saxpy) == pickled
    assert pickle.loads(pickled) is saxpy
    assert tn.kernel(shifted.__wrapped__).__class__ is shared


def test_entries_are_given_back_with_their_kernel(launchers: Any) -> None:
    kernel, x = fresh(shifted), np.arange(3.0)
    for _ in range(3):
        kernel(x)
    dropped = weakref.ref(kernel), weakref.ref(type(kernel)), weakref.ref(type(kernel).__call__)
    launchers.calls.clear()
    del kernel
    gc.collect()
    assert [reference() for reference in dropped] == [None] * 3


def test_an_error_of_a_backend_reaches_the_caller(
    launchers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, call: DirectCall) -> None:
        raise RuntimeError("no entry today")

    monkeypatch.setattr(launchers, "direct", broken)
    kernel = fresh(shifted)
    kernel(np.zeros(2))
    with pytest.raises(tn.BackendError, match=r"'fake' of dist-fake 1\.0: direct failed .* today"):
        kernel(np.zeros(2))


# -- the device in force, as native code sees it ---------------------------------------------------


def in_force() -> object:
    choice = choice_of(resolve((), "reference"))
    return choice.used.get(), choice.default.value


def test_the_default_device_is_undecided_until_a_call_needs_it() -> None:
    clear()
    assert in_force() == (None, 0)
    default = resolve(())
    assert in_force() == (None, id(default))
    clear()
    assert in_force() == (None, 0)


def test_the_default_device_follows_every_choice() -> None:
    clear()
    tn.set_default_device("reference")
    assert in_force() == (None, id(resolve((), "reference")))
    tn.set_default_device(None)
    assert in_force() == (None, 0)
    with pytest.raises(tn.Unavailable):
        tn.set_default_device("missing")
    assert in_force() == (None, 0)
    with tn.use("reference"):
        assert in_force() == (resolve((), "reference"), 0)
    assert in_force() == (None, 0)
    clear()
