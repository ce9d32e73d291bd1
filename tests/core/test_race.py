"""`race`: functions that exist already as one operation."""

from __future__ import annotations

import functools
import operator
import pickle

import numpy as np
import pytest

import turnout as tn
from turnout import NDArray, f64, race


def double(a, out):
    np.multiply(a, 2, out=out)


def double_by_adding(a, out):
    np.add(a, a, out=out)


@tn.kernel
def double_kernel(a: NDArray[f64, 1], out: NDArray[f64, 1]) -> None:
    for i in range(a.shape[0]):
        out[i] = a[i] * 2


def other_names(x, y):
    np.multiply(x, 2, out=y)


A = np.arange(4.0)


def run_often(operation, *arguments, count=12):
    return [operation(*arguments) for _ in range(count)][-1]


def test_functions_of_the_same_parameters():
    operation = race(double, double_by_adding, repeat_after_seconds=0)
    assert operation.implementations == ("double", "double_by_adding")
    assert str(operation.__signature__) == "(a, out)"
    assert operation.__name__ == "race_of_double"
    assert operation.__module__ == __name__
    assert operation.__doc__ == "One of double, double_by_adding: the fastest for its arguments."
    out = np.zeros(4)
    run_often(operation, A, out)
    assert out.tolist() == [0, 2, 4, 6]
    decision = operation.decision(A, out=out)
    assert decision is not None
    assert decision.chosen in operation.implementations
    operation(out=out, a=-A)
    assert out.tolist() == [0, -2, -4, -6]


def test_a_kernel_beside_a_function():
    operation = race(double_kernel, double, repeat_after_seconds=0)
    assert operation.implementations == ("double_kernel", "double")
    assert list(operation.__signature__.parameters) == ["a", "out"]
    for _ in range(10):
        out = np.zeros(4)
        operation(A, out)
        assert out.tolist() == [0, 2, 4, 6]


def test_functions_of_other_parameters_get_the_arguments_as_they_are():
    operation = race(double, other_names, repeat_after_seconds=0)
    assert str(operation.__signature__) == "(*args, **kwargs)"
    for _ in range(10):
        out = np.zeros(4)
        operation(A, out)
        assert out.tolist() == [0, 2, 4, 6]
    with pytest.raises(TypeError):
        race(double, other_names)(A, z=np.zeros(4))


def test_defaults_may_differ():
    def scaled(a, factor=2):
        return a * factor

    def scaled_too(a, factor=3):
        return factor * a

    operation = race(scaled, scaled_too, repeat_after_seconds=0)
    for _ in range(10):  # what the operation leaves out is the same for all of them
        assert operation(A).tolist() == [0, 2, 4, 6]
        assert operation(A, factor=5).tolist() == [0, 5, 10, 15]


def test_builtins_ufuncs_and_partials():
    operation = race(
        max, np.max, functools.partial(functools.reduce, np.maximum), repeat_after_seconds=0
    )
    assert operation.implementations == ("max", "max_2", "reduce")
    for _ in range(15):
        assert operation(A) == 3

    operation = race(np.add, operator.add, lambda x, y: x + y, repeat_after_seconds=0)
    assert operation.implementations == ("add", "add_2", "lambda")
    for _ in range(15):
        assert operation(A, A).tolist() == [0, 2, 4, 6]


def test_objects_that_can_be_called():
    class Scale:
        def __init__(self, factor):
            self.factor = factor

        def __call__(self, a):
            return a * self.factor

        def scaled(self, a):
            return a * self.factor

    operation = race(Scale(2), Scale(2), Scale(2).scaled, repeat_after_seconds=0)
    assert operation.implementations == ("Scale", "Scale_2", "scaled")
    assert str(operation.__signature__) == "(a)"
    for _ in range(15):
        assert operation(A).tolist() == [0, 2, 4, 6]


def test_names_never_collide():
    def f(a):
        return a

    def g(a):
        return a

    g.__name__ = "f_2"
    assert race(f, f, g, f).implementations == ("f", "f_2", "f_2_2", "f_3")


def test_settings_are_those_of_perf_dispatch():
    asked = []

    def geometry(a, out):
        asked.append(a.shape)
        return a.shape

    ran = []

    def first(a, out):
        ran.append("first")

    def second(a, out):
        ran.append("second")

    times = iter([1, 2])

    def timer(work):
        work()
        return next(times)

    operation = race(
        second, first, get_geometry_hash=geometry, warmup=0, active=1, timer=timer, name="op",
        repeat_after_seconds=0,
    )  # fmt: skip
    assert operation.__name__ == "op"
    for _ in range(4):
        operation(A, A)
    assert ran == ["second", "first", "second", "second"]
    assert asked == [(4,)] * 4
    with pytest.raises(tn.ConfigurationError, match="warmup=-1 is not allowed"):
        race(first, second, warmup=-1)
    with pytest.raises(TypeError, match="no_such_setting"):
        race(first, second, no_such_setting=1)


def test_geometries_of_any_arguments_are_told_apart():
    operation = race(np.sum, np.add.reduce, repeat_after_seconds=0)
    run_often(operation, A)
    assert operation.decision(A) is not None
    assert operation.decision(A.astype(np.float32)) is None
    assert operation.decision(np.ones((2, 2))) is None
    assert operation.decision(A, axis=0) is None


def test_it_can_be_forced_from_outside(monkeypatch):
    monkeypatch.setenv("TURNOUT_PERFDISPATCH_FORCE", "race_of_first:second")

    def first(a):
        return 1

    def second(a):
        return 2

    operation = race(first, second)
    assert [operation(A) for _ in range(5)] == [2] * 5


def test_functions_of_a_race_can_still_become_kernels():
    def k(a: NDArray[f64, 1]):
        a[0] = 1.0

    race(k, lambda a: None)
    assert isinstance(tn.kernel(k), tn.Kernel)


def test_what_cannot_race():
    for functions in ((), (double,)):
        with pytest.raises(tn.KernelError, match=f"race: {len(functions)} functions given: give"):
            race(*functions)
    with pytest.raises(tn.KernelError, match="race: 3 cannot be called: give functions"):
        race(double, 3)

    for versions in (["1"], "12"):
        with pytest.raises(tn.KernelError, match="one version per function, 2 in all"):
            race(double, other_names, versions=versions)

    async def later(a):
        return a

    with pytest.raises(tn.KernelError, match="'later' is a coroutine function"):
        race(later, lambda a: a)


operation_of_module = race(double, other_names, repeat_after_seconds=0, name="operation_of_module")


def test_it_is_pickled_by_name():
    loaded = pickle.loads(pickle.dumps(operation_of_module))
    assert loaded is operation_of_module


def test_ufuncs_tell_parameters_that_exclude_each_other() -> None:
    power = tn.race(np.power, np.float_power)
    for _ in range(12):
        assert power(np.array([2.0, 3.0]), 2).tolist() == [4, 9]
