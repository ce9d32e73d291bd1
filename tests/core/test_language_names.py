"""Free names are constants of a kernel, and a kernel keeps nothing of its callers."""

from __future__ import annotations

import copy
import enum
import gc
import math
import types
import weakref

import numpy as np
import pytest
from language_support import (
    Floats,
    Integers,
    assert_like_python,
    assert_same,
    function_from,
    kernel_error,
)

import turnout as tn
import turnout.math as tm
from turnout import Mutable, NDArray, Param, Scalar, f32

X = np.array([1.0, 2.0, 3.0])

RATE = 0.25
SIZES = (2, 3, (4, 5))
MODE = "fast"


class Regime(enum.IntEnum):
    LAMINAR = 1
    TURBULENT = 2


class Weight(enum.Enum):
    LIGHT = 0.5
    HEAVY = 8.0


class Method(enum.Enum):
    EULER = "euler"
    HEUN = "heun"


METHOD = Method.HEUN


def test_constants_of_every_kind(device):
    local = np.float32(0.1)
    flag = True

    def k(a: Floats, b: NDArray[f32, 1], n: Integers):
        for i in range(len(a)):
            a[i] = a[i] * RATE + SIZES[0] * SIZES[2][1] + math.pi + np.e - tm.e
            b[i] = b[i] * local
            if MODE == "fast" and flag and MODE[0] != "s":
                n[i] = Regime.TURBULENT + Regime.LAMINAR.value
            if METHOD is Method.HEUN and METHOD != Method.EULER:
                a[i] += Weight.HEAVY.value
            if "f" in MODE and 2 in SIZES and 7 not in SIZES and None is None:
                n[i] += 100
            n[i] += n[i] == Regime.LAMINAR
        for j in SIZES[2]:
            n[0] += j

    arguments = np.arange(3.0), np.ones(3, np.float32), np.zeros(3, np.int64)
    assert_like_python(k, *arguments, device=device)


def test_dtypes_and_functions_are_constants(device):
    real = np.float32
    root = np.sqrt

    @tn.func
    def doubled(x):
        return x * 2

    helper = doubled

    @tn.kernel
    def k(x: Scalar, y: Mutable[Scalar]):
        y = helper(real(root(x)))

    y = np.zeros(3)
    k(X, y, device=device)
    assert_same(y, (np.sqrt(X).astype(np.float32) * np.float32(2)).astype(np.float64))


def test_two_kernels_of_one_factory_have_constants_of_their_own(device):
    def make(factor):
        @tn.func
        def scaled(x):
            return x * factor

        @tn.kernel
        def k(x: Scalar) -> Scalar:
            return scaled(x) + factor

        return k

    three, four = make(3), make(4)
    assert_same(three(X, device=device), X * 3 + 3)
    assert_same(four(X, device=device), X * 4 + 4)
    assert_same(three(X, device=device), X * 3 + 3)


def test_a_constant_is_resolved_once():
    module = types.ModuleType("settings")
    module.rate = 2
    factor = 10

    @tn.kernel
    def k(x: Scalar, p: Param) -> Scalar:
        return x * factor + module.rate + p

    k(X, 0, device="reference")
    factor = 1000
    module.rate = 1000
    assert_same(k(X, 1, device="reference"), X * 10 + 3)
    assert_same(k(X, 0.5, device="reference"), X * 10 + 2.5)  # another specialisation
    assert_same(k(X.astype(np.float32), 1, device="reference").astype(np.float64), X * 10 + 3)
    assert factor == 1000


def test_a_name_defined_after_the_kernel_is_found():
    text = "def k(x: Scalar) -> Scalar:\n    return x * LATER\nkernel = tn.kernel(k)\nLATER = 6\n"
    assert_same(function_from(text, "kernel")(X, device="reference"), X * 6)


def test_locals_hide_globals_as_in_python():
    text = "RATE = 5\ndef k(x: Scalar) -> Scalar:\n    y = x * RATE\n    RATE = 2\n    return y\n"
    error = kernel_error(function_from(text), X)
    assert "'RATE' has no value here; assign it before this line" in str(error)


CONSTANTS = {
    "array": (np.zeros(3), "'free' is an array from outside of the kernel; pass it as an argument"),
    "list": ([1, 2], "'free' is a list from outside of the kernel; only numbers, strings, enums"),
    "dict": ({1: 2}, "'free' is a dict from outside of the kernel; only numbers, strings, enums"),
    "set": ({1}, "'free' is a set from outside of the kernel; only numbers, strings, enums"),
    "object": (object(), "'free' is a object from outside of the kernel; only numbers"),
    "tuple of arrays": ((1, np.zeros(2)), "'free' is an array from outside of the kernel"),
    "complex": (1j, "'free' is a complex from outside of the kernel"),
    "float16": (np.float16(1), "'free' is a float16, a type that kernels do not have"),
    "zero-dimensional array": (np.array(1.0), "'free' is an array from outside of the kernel"),
    "lambda": (lambda x: x, "'free' is nothing that kernels can call; decorate a Python"),
    "class": (dict, "'free' is nothing that kernels can call; decorate a Python"),
    "math.floor": (math.floor, "'free' of Python's math gives a Python int; use turnout.math"),
    "numpy function": (np.linalg.norm, "'free' is nothing that kernels can call; decorate"),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_what_cannot_be_a_constant(name):
    value, message = CONSTANTS[name]
    for use in ("x + free", "x + free[0]", "free(x)", "x if free else 0", "free.thing"):
        function = function_from(f"def k(x: Scalar) -> Scalar:\n    return {use}\n", free=value)
        error = kernel_error(function, X)
        assert message in str(error)
        assert error.location.line == 2


def test_kernels_do_not_call_kernels():
    @tn.kernel
    def inner(x: Scalar) -> Scalar:
        return x

    def k(x: Scalar) -> Scalar:
        return inner(x)

    message = str(kernel_error(k, X))
    assert "'inner' is a kernel, which kernels cannot call; make it a turnout.func" in message


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("no_such_name", "the name 'no_such_name' is not defined"),
        ("no_such_function(x)", "the name 'no_such_function' is not defined"),
        ("print(x)", "'print' is nothing that kernels can call"),
        ("sum(x)", "'sum' is nothing that kernels can call"),
        ("np.nothing(x)", "the module numpy has no attribute 'nothing' in a kernel"),
        ("tm.nothing", "the module turnout.math has no attribute 'nothing' in a kernel"),
        ("np.linalg.norm(x)", "'norm' is nothing that kernels can call"),
        ("np.arange(3)", "'arange' is nothing that kernels can call"),
        ("np.random", "a kernel cannot return the module numpy.random"),
        ("x(1)", "x cannot be called in a kernel"),
        ("x.real", "a scalar of type f64 has no attribute 'real' in a kernel"),
        ("x.sum()", "a scalar of type f64 has no attribute 'sum' in a kernel"),
        ("np", "a kernel cannot return the module numpy"),
        ("x + np", "a number is needed here, not the module numpy"),
        ("x + tm.exp", "a number is needed here, not MathFunction"),
        ("f32", "a kernel cannot return DType"),
        ("'a' + 'b'", "a number is needed here, not str 'a'"),
        ("x + None", "a number is needed here, not NoneType None"),
    ],
)
def test_names_and_attributes_without_a_meaning(expression, message):
    function = function_from(f"def k(x: Scalar):\n    return {expression}\n")
    error = kernel_error(function, X)
    assert message in str(error)
    assert error.location.line == 2


def test_a_closure_variable_without_a_value():
    def make():
        @tn.kernel
        def k(x: Scalar) -> Scalar:
            return x * later

        with pytest.raises(tn.KernelError, match="the closure variable 'later' has no value yet"):
            k(X, device="reference")
        later = 3
        return k

    assert_same(make()(X, device="reference"), X * 3)


# -- helpers of other modules ----------------------------------------------------------------------


def test_helpers_see_the_names_of_their_own_module(tmp_path, monkeypatch):
    (tmp_path / "helper_of_another_module.py").write_text(
        "import turnout as tn\nRATE = 100\n"
        "@tn.func\ndef inner(x):\n    return x + RATE\n"
        "@tn.func\ndef scaled(x, by=RATE):\n    return inner(x) * by\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import helper_of_another_module as other

    @tn.kernel
    def k(x: Scalar) -> Scalar:
        return other.scaled(x) + other.scaled(x, by=RATE)

    assert_same(k(X, device="reference"), (X + 100) * 100 + (X + 100) * 0.25)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("helper()", "helper: missing a required argument: 'x'"),
        ("helper(x, x, x)", "helper: too many positional arguments"),
        ("helper(x, z=1)", "helper: got an unexpected keyword argument 'z'"),
        ("helper(x, x=1)", "helper: multiple values for argument 'x'"),
        ("helper(*(x,))", "helper takes plain arguments in a kernel, without * and **"),
        ("helper(**{'x': x})", "helper takes plain arguments in a kernel, without * and **"),
        ("variadic(x)", "variadic: parameter *rest is variadic; helpers have a fixed list"),
        ("helper(x, [1])", None),
        ("unset(x)", "the default of 'options' is a dict from outside of the kernel"),
    ],
)
def test_calls_of_helpers_that_do_not_fit(call, message):
    text = (
        "@tn.func\ndef helper(x, y=1):\n    return x\n"
        "@tn.func\ndef variadic(x, *rest):\n    return x\n"
        "@tn.func\ndef unset(x, options={}):\n    return x\n"
        f"def k(x: Scalar) -> Scalar:\n    return {call}\n"
    )
    if message is None:
        assert_same(tn.kernel(function_from(text))(X, device="reference"), X)
        return
    error = kernel_error(function_from(text), X)
    assert message in str(error)
    assert error.location.line == 11


def test_an_error_in_a_helper_points_into_the_helper():
    text = (
        "@tn.func\ndef helper(x):\n    y = x\n    return y << 1\n"
        "def k(x: Scalar) -> Scalar:\n    return helper(x)\n"
    )
    error = kernel_error(function_from(text), X)
    assert error.location.line == 4
    assert error.location.text == "    return y << 1"


def test_a_helper_that_does_not_always_give_a_value():
    text = (
        "@tn.func\ndef helper(x):\n    if x > 0:\n        return x\n"
        "def k(x: Scalar) -> Scalar:\n    return helper(x)\n"
    )
    error = kernel_error(function_from(text), X)
    assert "helper returns a value on some of its paths only" in str(error)
    assert error.location.line == 6


def test_a_helper_may_return_arrays_on_one_path_and_not_on_two():
    text = (
        "@tn.func\ndef first_row(a):\n    return a[0]\n"
        "@tn.func\ndef some_row(a, n):\n    if n > 0:\n        return a[n]\n    return a[0]\n"
        "def k(a: NDArray[f64, 2], n: Param):\n    a[0, 0] = {}[1]\n"
    )
    kernel, a = tn.kernel(function_from(text.format("first_row(a)"))), np.arange(4.0).reshape(2, 2)
    kernel(a, 1, device="reference")
    assert a[0, 0] == 1
    error = kernel_error(function_from(text.format("some_row(a, n)")), a, 1)
    assert "some_row returns different things on its paths" in str(error)


# -- memory and state ------------------------------------------------------------------------------


def test_a_kernel_keeps_no_array_alive(device):
    @tn.kernel
    def k(a: Floats, table: Floats, p: Param):
        for i in range(len(a)):
            a[i] = table[i] * p

    class Tracked(np.ndarray):
        pass

    a, table = np.zeros(3).view(Tracked), np.ones(3).view(Tracked)
    k(a, table, 2, device=device)
    held = [weakref.ref(a), weakref.ref(table)]
    del a, table
    gc.collect()
    assert [reference() for reference in held] == [None, None]


def test_an_error_leaves_the_kernel_usable():
    @tn.kernel
    def k(x: Scalar, p: Param) -> Scalar:
        return x + (1 << p)

    for _ in range(2):
        with pytest.raises(tn.KernelError, match="<< needs integers"):
            k(X, 0.5, device="reference")
    assert_same(k(X, 2, device="reference"), X + 4)
    with pytest.raises(tn.KernelError, match="<< needs integers"):
        k(X, 0.5, device="reference")


def test_helpers_are_plain_functions_outside_and_copy_as_themselves():
    assert module_helper(3) == 9
    assert copy.deepcopy(module_helper) is module_helper
    assert module_helper.__name__ == "module_helper"
    assert module_helper.__doc__ == "Square."
    assert repr(module_helper) == "<turnout.func module_helper>"


@tn.func
def module_helper(x):
    """Square."""
    return x * x
