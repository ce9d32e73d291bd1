"""Types and values follow NumPy 2 (NEP 50), with the exceptions that the language states."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from language_support import (
    Floats,
    assert_like_python,
    assert_same,
    function_from,
    kernel_error,
)

import turnout as tn
import turnout.math as tm
from turnout import Mutable, NDArray, Param, Scalar, f32, f64, i8, i16, i32, i64, u8, u32, u64
from turnout.ir import ALL_DTYPES, DType, from_numpy

ARITHMETIC = ("+", "-", "*", "/", "//", "%", "**")
BITS = ("&", "|", "^", "<<", ">>")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
OPERATORS = (*ARITHMETIC, *BITS, *COMPARISONS)


def samples(dtype: DType) -> np.ndarray:
    """Values at which the operators differ: signs, zeros, shifts by the width, extremes."""
    values = {
        "f": [-7.5, -1.0, -0.0, 0.0, 0.5, 2.0, 3.0, np.inf, np.nan],
        "i": [-7, -1, 0, 1, 2, 3, 8, 64, dtype.minimum, dtype.maximum],
        "u": [0, 1, 2, 3, 8, 64, 200, dtype.maximum],
        "b": [False, True],
    }[dtype.kind]
    return np.array(values, dtype.dtype)


def numpy_values(operator: str, left, right):
    """What NumPy's scalars give, or the TypeError of NumPy."""
    function = eval(f"lambda x, y: x {operator} y")
    with np.errstate(all="ignore"):
        try:
            results = [function(x, y) for x, y in zip(left, right, strict=True)]
        except TypeError as error:
            return error
    return np.array(results, np.result_type(results[0]) if results else None)


def operate(operator: str, left: str, right: str, result: str, parameters: str) -> tn.Kernel:
    """A kernel that stores the values, and in `same` whether their type is the wanted one."""
    return tn.kernel(
        function_from(
            f"def k({parameters}, out: NDArray[{result}, 1], same: NDArray[bool_, 1]):\n"
            "    for i in range(len(out)):\n"
            f"        z = {left} {operator} {right}\n"
            "        out[i] = z\n"
            f"        same[i] = z.dtype == {result}\n"
        )
    )


def assert_results(operator: str, kernel: tn.Kernel, wanted: np.ndarray, *arguments, device: str):
    out, same = np.zeros_like(wanted), np.zeros(len(wanted), bool)
    kernel(*arguments, out, same, device=device)
    assert same.all()
    if operator == "**" and wanted.dtype.kind == "f":
        np.testing.assert_allclose(out, wanted, rtol=1e-6 if wanted.dtype == "f4" else 1e-15)
    else:
        assert_same(out, wanted)


def grid(first: DType, second: DType):
    x, y = np.meshgrid(samples(first), samples(second))
    return x.ravel().copy(), y.ravel().copy()


def check_pair(operator: str, first: DType, second: DType, device: str) -> None:
    x, y = grid(first, second)
    if operator == "**" and second.kind == "i":
        x, y = x[y >= 0], y[y >= 0]  # NumPy refuses these; see the test of powers
    wanted = numpy_values(operator, x, y)
    parameters = f"x: NDArray[{first}, 1], y: NDArray[{second}, 1]"
    if isinstance(wanted, TypeError):
        function = operate(operator, "x[i]", "y[i]", "f64", parameters).__wrapped__
        error = kernel_error(function, x, y, np.zeros(len(x)), np.zeros(len(x), bool))
        assert error.location.line == 3
        assert error.location.column == len("        z = ") + 1
        return
    kernel = operate(operator, "x[i]", "y[i]", str(from_numpy(wanted.dtype)), parameters)
    assert_results(operator, kernel, wanted, x, y, device=device)


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_on_every_pair_of_types(operator):
    for first, second in itertools.product(ALL_DTYPES, ALL_DTYPES):
        check_pair(operator, first, second, "reference")


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_on_representative_pairs(operator, device):
    for first, second in itertools.product((f32, i8, u64, tn.bool_), (f64, i8, i64, u32)):
        check_pair(operator, first, second, device)


# -- weak numbers ----------------------------------------------------------------------------------

WEAK_NUMBERS = (2, -1, 0, 3, 300, 0.5, -2.0, True)


@pytest.mark.parametrize("operator", OPERATORS)
def test_literals_and_params_take_the_type_of_the_array(operator):
    for dtype, number, swapped in itertools.product(ALL_DTYPES, WEAK_NUMBERS, (False, True)):
        x = samples(dtype)
        sides = ("({0})", "x[i]") if swapped else ("x[i]", "({0})")
        columns = ([number] * len(x), x) if swapped else (x, [number] * len(x))
        literal = [side.format(repr(number)) for side in sides]
        parameters = f"x: NDArray[{dtype}, 1]"
        try:
            wanted = numpy_values(operator, *columns)
        except (OverflowError, ValueError):  # out of the type's range; negative integer power
            continue
        if isinstance(wanted, TypeError):
            function = operate(operator, *literal, "f64", parameters).__wrapped__
            kernel_error(function, x, np.zeros(len(x)), np.zeros(len(x), bool))
            continue
        folded = operator in COMPARISONS and type(number) is int and dtype.is_integer
        result = str(from_numpy(wanted.dtype))
        assert_results(
            operator, operate(operator, *literal, result, parameters), wanted, x, device="reference"
        )
        if folded and not dtype.minimum <= number <= dtype.maximum:
            continue  # a param is held as int64, which has this value
        given = [side.format("p") for side in sides]
        assert_results(
            operator,
            operate(operator, *given, result, f"x: NDArray[{dtype}, 1], p: Param"),
            wanted,
            x,
            number,
            device="reference",
        )


def test_range_variables_lengths_and_their_results_are_weak(device):
    def k(a: NDArray[f32, 1], b: NDArray[u8, 1], out: NDArray[f32, 1], small: NDArray[u8, 1]):
        n = a.shape[0]
        for i in range(len(a)):
            out[i] = a[i] * i + n / 3 - (i + 1) ** 2 / len(a)
            small[i] = b[i] + i * 2 - n // 3

    a = np.array([0.1, 0.2, 0.3], np.float32)
    b = np.array([5, 250, 255], np.uint8)
    assert_like_python(k, a, b, np.zeros(3, np.float32), np.zeros(3, np.uint8), device=device)


def test_weak_numbers_alone_are_int64_and_float64(device):
    @tn.kernel
    def k(n: Param, x: Param, whole: NDArray[i64, 1], real: Floats):
        for i in range(len(whole)):
            whole[i] = i * n // 3 + len(whole)
            real[i] = i / 3 + x

    whole, real = np.zeros(3, np.int64), np.zeros(3)
    k(2**40, 0.1, whole, real, device=device)
    assert_same(whole, np.arange(3) * 2**40 // 3 + 3)
    assert_same(real, np.arange(3) / 3 + 0.1)


def test_a_python_int_out_of_range_is_refused_with_its_place():
    function = function_from(
        "def k(a: NDArray[i8, 1]):\n"
        "    for i in range(len(a)):\n"
        "        a[i] = (a[i] +\n"
        "                300)\n"
    )
    error = kernel_error(function, np.zeros(2, np.int8))
    assert "the Python integer 300 does not fit into i8" in str(error)
    assert error.location.text == "        a[i] = (a[i] +"
    assert (error.location.line, error.location.column) == (3, 17)


@pytest.mark.parametrize(
    ("expression", "dtype"),
    [
        ("a[i] * -1", "u8"),
        ("a[i] | 2**63", "i64"),
        ("a[i] + 2**64", "u64"),
        ("a[i] & 65536", "u16"),
        ("u8(256)", "u8"),
        ("np.int8(-129)", "i8"),
        ("2**80", "i64"),
    ],
)
def test_python_ints_out_of_range(expression, dtype):
    function = function_from(
        f"def k(a: NDArray[{dtype}, 1]):\n    for i in range(1):\n        a[i] = {expression}\n"
    )
    array = np.zeros(1, getattr(tn, dtype).dtype)
    assert "does not fit into" in str(kernel_error(function, array))


def test_comparisons_of_signed_and_unsigned_are_exact(device):
    def k(a: NDArray[i64, 1], b: NDArray[u64, 1], out: NDArray[tn.bool_, 2]):
        for i in range(len(a)):
            out[i, 0] = a[i] < b[i]
            out[i, 1] = a[i] == b[i]
            out[i, 2] = b[i] <= a[i]
            out[i, 3] = b[i] != a[i]
            out[i, 4] = a[i] < 2**63
            out[i, 5] = b[i] > -1
            out[i, 6] = b[i] == 2**64
            out[i, 7] = a[i] <= -(2**70)

    a = np.array([2**53, -1, 2**63 - 1, -(2**63), 5])
    b = np.array([2**53 + 1, 2**64 - 1, 2**63, 2**63, 5], np.uint64)
    assert_like_python(k, a, b, np.zeros((5, 8), bool), device=device)


def test_unary_operators(device):
    def k(a: NDArray[u8, 1], b: NDArray[i8, 1], c: NDArray[f32, 1], d: NDArray[tn.bool_, 1]):
        for i in range(len(a)):
            a[i] = -a[i]
            b[i] = ~(-b[i])
            c[i] = -(+c[i])
            d[i] = ~d[i]

    a, b = np.array([0, 1, 255], np.uint8), np.array([-128, 127, 0], np.int8)
    c, d = np.array([0.0, -0.0, np.nan], np.float32), np.array([True, False, True])
    assert_like_python(k, a, b, c, d, device=device)


@pytest.mark.parametrize(
    ("expression", "dtype", "message"),
    [
        ("a[i] << 1", "f64", "<< needs integers, and one side is of type f64"),
        ("1 >> a[i]", "f32", ">> needs integers, and one side is of type f32"),
        ("a[i] & 1", "f32", "& needs integers, and one side is of type f32"),
        ("a[i] | 1.5", "i32", "| needs integers, and one side is of type a Python float"),
        ("~a[i]", "f64", "~ needs an integer or bool, not f64"),
        ("-a[i]", "bool_", "- is not defined for a bool; use `not`"),
        ("a[i] - a[i]", "bool_", "- is not defined between bools; use ^ for exclusive or"),
        ("a[i] @ a[i]", "f64", "@ is not part of the kernel language; write the loops"),
        ("1 << -1", "i64", "1 << -1 has no value"),
        ("1 // 0", "i64", "1 // 0 has no value"),
        ("2 ** 0.5 % 0", "f64", "has no value"),
        ("a[i] ** -1", "i64", "an integer to a negative power is no integer"),
    ],
)
def test_operators_without_a_meaning(expression, dtype, message):
    function = function_from(
        f"def k(a: NDArray[{dtype}, 1]):\n    for i in range(1):\n        a[i] = {expression}\n"
    )
    error = kernel_error(function, np.zeros(1, getattr(tn, dtype).dtype))
    assert message in str(error)
    assert (error.location.line, error.location.column) == (3, 16)


def test_integer_powers(device):
    @tn.kernel
    def k(x: NDArray[i64, 1], y: NDArray[i64, 1], out: NDArray[i64, 1]):
        for i in range(len(x)):
            out[i] = x[i] ** y[i]

    x = np.array([3, 0, -2, 1, -1, -1, 2, 0, 7])
    y = np.array([4, 0, 63, -5, -3, -4, -1, -1, 1])
    out = np.zeros(9, np.int64)
    k(x, y, out, device=device)
    assert_same(out, np.array([81, 1, -(2**63), 1, -1, 1, 0, 0, 7]))


def test_known_powers_are_exact(device):
    def k(a: Floats, b: NDArray[i32, 1]):
        for i in range(len(a)):
            a[i] = a[i] ** 2 + a[i] ** 0.5 - a[i] ** -1
            b[i] = b[i] ** 2 - b[i] ** 3

    b = np.array([7, -3, 65536], np.int32)
    assert_like_python(k, np.array([0.1, 2, 1e200]), b, device=device)


def test_a_cube_is_two_multiplications(device):
    @tn.kernel
    def cubes(x: Floats, out: Floats):
        for i in range(len(x)):
            out[i] = x[i] ** 3

    x = np.array([0.1, -0.7, 1e103, -1e103, 1e-110, -0.0, np.inf, -np.inf, np.nan])
    out = np.zeros(len(x))
    cubes(x, out, device=device)
    with np.errstate(over="ignore", under="ignore"):
        assert_same(out, x * x * x)


def test_integer_division_by_zero_is_zero(device):
    @tn.kernel
    def k(x: NDArray[i32, 1], y: NDArray[i32, 1], out: NDArray[i32, 2], real: Floats):
        for i in range(len(x)):
            out[i, 0] = x[i] // y[i]
            out[i, 1] = x[i] % y[i]
            real[i] = x[i] / y[i]

    x, y = np.array([7, -7, 0, 7, -7], np.int32), np.array([0, 0, 0, -2, 2], np.int32)
    out, real = np.zeros((5, 2), np.int32), np.zeros(5)
    k(x, y, out, real, device=device)
    assert_same(out, np.array([[0, 0], [0, 0], [0, 0], [-4, -1], [-4, 1]], np.int32))
    assert_same(real, np.array([np.inf, -np.inf, np.nan, -3.5, -3.5]))


# -- stores ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ALL_DTYPES, ids=str)
def test_stores_cast_same_kind_or_fail_with_the_fix(source, device):
    for target in ALL_DTYPES:
        function = function_from(
            f"def k(a: NDArray[{source}, 1], b: NDArray[{target}, 1]):\n"
            "    for i in range(len(a)):\n"
            "        b[i] = a[i]\n"
        )
        a = samples(source)
        b = np.zeros(len(a), target.dtype)
        if np.can_cast(source.dtype, target.dtype, "same_kind"):
            tn.kernel(function)(a, b, device=device)
            with np.errstate(over="ignore"):
                assert_same(b, a.astype(target.dtype))
            continue
        message = str(kernel_error(function, a, b))
        assert f"array 'b' holds {target}, and a value of type {source} does not convert" in message
        assert f"write {target.name.rstrip('_')}(...) where that is meant" in message


def test_weak_numbers_are_stored_where_they_fit(device):
    def k(a: NDArray[u8, 1], b: NDArray[f32, 1], n: Param):
        a[0] = 255
        a[1] = n
        a[2] = True
        b[0] = 1
        b[1] = n
        b[2] = 0.1

    assert_like_python(k, np.zeros(3, np.uint8), np.zeros(3, np.float32), 7, device=device)


def test_a_float_is_not_stored_into_integers_silently():
    def literal(a: NDArray[i64, 1]):
        a[0] = 1.0

    def augmented(a: NDArray[i64, 1]):
        for i in range(len(a)):
            a[i] /= 2

    for function in (literal, augmented):
        message = str(kernel_error(function, np.zeros(1, np.int64)))
        assert "array 'a' holds i64" in message
        assert "write i64(...) where that is meant" in message


# -- math functions --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("name", ["sqrt", "exp", "floor", "abs", "sign", "isnan", "hypot", "atan2"])
def test_types_of_math_functions_are_those_of_turnout_math(name, dtype):
    """Outside of kernels the functions evaluate with NumPy; inside they give the same types."""
    if dtype.is_bool and name == "sign":
        pytest.skip("NumPy has no sign of bools; see the test of bools")
    function = getattr(tm, name)
    count = len(function.parameters)
    x = samples(dtype)
    with np.errstate(all="ignore"):
        wanted = np.array([function(*[value] * count) for value in x])
    result = from_numpy(wanted.dtype)
    arguments = ", ".join(["x[i]"] * count)
    kernel = tn.kernel(
        function_from(
            f"def k(x: NDArray[{dtype}, 1], out: NDArray[{result}, 1], same: NDArray[bool_, 1]):\n"
            "    for i in range(len(out)):\n"
            f"        z = tm.{name}({arguments})\n"
            "        out[i] = z\n"
            f"        same[i] = z.dtype == {result}\n"
        )
    )
    out, same = np.zeros_like(wanted), np.zeros(len(x), bool)
    kernel(x, out, same, device="reference")
    assert same.all()
    assert_same(out, wanted)


def test_math_functions_of_bools(device):
    def k(a: NDArray[tn.bool_, 1], b: NDArray[tn.bool_, 1], out: NDArray[tn.bool_, 2]):
        for i in range(len(a)):
            out[i, 0] = np.minimum(a[i], b[i])
            out[i, 1] = np.maximum(a[i], b[i])
            out[i, 2] = abs(a[i])
            out[i, 3] = min(a[i], b[i])
            out[i, 4] = np.clip(a[i], b[i], True)

    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    assert_like_python(k, a, b, np.zeros((4, 5), bool), device=device)
    sign = function_from("def k(a: NDArray[bool_, 1]):\n    x = tm.sign(a[0])\n")
    assert "sign is not defined for bools; convert them" in str(kernel_error(sign, a))


def test_index_outside_of_kernels():
    assert tm.index(2**53 + 1, 2**53 + 2) == 2**53 + 1
    assert_same(tm.index(np.array([0, 5, 2**64 - 1], np.uint64), 3), np.array([0, 2, 2]))
    assert_same(tm.index(np.array([np.nan, 1e300, -3, 2.9]), 3), np.array([0, 2, 0, 2]))
    assert tm.index(np.int8(-3), 300) == 0
    assert tm.index(np.uint8(200), 300) == 200
    assert tm.index(7, 0) == 0


def test_numpy_and_python_spellings_of_math_functions(device):
    import math

    def k(a: Floats, b: Floats):
        for i in range(len(a)):
            b[i] = np.sqrt(a[i]) + math.sqrt(a[i]) + math.pi * np.abs(-a[i]) - np.e
            b[i] += np.where(a[i] > 1, np.minimum(a[i], 2), np.maximum(-1, a[i]))
            b[i] += np.floor(a[i]) + np.clip(a[i], 0, 1) + math.fabs(-a[i]) + np.sign(a[i])
            b[i] += np.rint(a[i]) + np.copysign(1, -a[i])

    assert_like_python(k, np.array([0.5, 1.5, 2.25]), np.zeros(3), device=device)


def test_clip_and_extremes_promote_like_numpy(device):
    def k(a: NDArray[f32, 1], n: NDArray[i16, 1], out: NDArray[f32, 1], small: NDArray[i16, 1]):
        for i in range(len(a)):
            out[i] = np.clip(a[i], 0, 0.5) + np.maximum(a[i], n[i])
            small[i] = np.minimum(n[i], 3)

    a, n = np.array([-1, 0.1, 7], np.float32), np.array([-5, 3, 9], np.int16)
    assert_like_python(k, a, n, np.zeros(3, np.float32), np.zeros(3, np.int16), device=device)


# -- params ----------------------------------------------------------------------------------------


def test_params_of_every_type_follow_numpy():
    @tn.kernel
    def k(x: Scalar, p: Param) -> Scalar[f32]:
        return f32(x * p)

    x = np.array([1, 2], np.float32)
    for p in (3, 0.5, True, np.float32(0.1), np.int8(3), np.bool_(True)):
        assert_same(k(x, p, device="reference"), x * p)
    with pytest.raises(tn.CallError, match="'p' is a NumPy float64 beside float32 arrays"):
        k(x, np.float64(0.5), device="reference")


def test_a_param_of_another_type_is_another_specialisation(device):
    @tn.kernel
    def k(n: NDArray[i64, 1], p: Param, out: Floats):
        for i in range(len(n)):
            out[i] = n[i] * p

    n = np.array([3, 2**53 + 1])
    for p in (2, 0.5, np.float32(0.1), np.uint8(3)):
        out = np.zeros(2)
        k(n, p, out, device=device)
        assert_same(out, np.array([x * p for x in n]).astype(np.float64))


def test_dtypes_are_values(device):
    def k(a: NDArray[f32, 1], b: NDArray[i64, 1]):
        wide = a.dtype == f64
        for i in range(len(b)):
            if a.dtype == f32 and not wide:
                b[i] = 1 if a[i].dtype == f32 else 2
            if (a[i] + b[i]).dtype == np.float64:
                b[i] += 10

    assert_like_python(k, np.zeros(2, np.float32), np.zeros(2, np.int64), device=device)


def test_a_scalar_of_the_call_gives_the_width_to_results(device):
    @tn.kernel
    def k(x: Scalar, y: Mutable[Scalar]) -> Scalar:
        y = x / 3
        return x + 1

    for dtype in (np.float32, np.float64):
        x = np.array([1, 2], dtype)
        y = np.zeros_like(x)
        assert_same(k(x, y, device=device), x + 1)
        assert_same(y, x / 3)


def test_select_and_conditional_expressions_promote(device):
    def k(a: NDArray[i32, 1], b: NDArray[f32, 1], out: Floats):
        for i in range(len(a)):
            out[i] = np.where(a[i] > 1, a[i], b[i])
            out[i] += a[i] if a[i] > 1 else b[i]

    a, b = np.array([0, 1, 2**30 + 1], np.int32), np.array([0.1, 0.2, 0.3], np.float32)
    out = np.zeros(3)
    assert_like_python(k, a, b, out, device=device)


def test_u32_arithmetic_wraps(device):
    def k(a: NDArray[u32, 1]):
        for i in range(len(a)):
            x = a[i]
            x ^= x << 13
            x ^= x >> 17
            x ^= x << 5
            a[i] = x * np.uint32(2654435761) + i

    assert_like_python(k, np.array([1, 2**32 - 1, 12345], np.uint32), device=device)
