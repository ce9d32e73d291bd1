"""Bad arguments: what is refused, in which words, and before anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from language_support import DEVICES
from numpy.lib.stride_tricks import as_strided

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
    Unavailable,
    Vector,
    f32,
    i8,
    i32,
)

N = 5


@tn.kernel
def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
    a = tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v)])
    v_new = v + dt * a


@tn.kernel
def scaled(p: Vector[3], k: Param[i32], out: Mutable[Vector[3]], stop: Terminated):
    out = p * k


@tn.kernel
def double(a: NDArray[f32, 1], b: NDArray[f32, 1]) -> None:
    for i in range(a.shape[0]):
        b[i] = a[i] * 2


@tn.kernel
def two_outputs(x: Scalar, sum: Mutable[Scalar], difference: Mutable[Scalar]):
    sum = x + 1
    difference = x - 1


@tn.kernel
def looked_up(table: NDArray[f32, 1], at: Index, out: Mutable[Scalar[f32]]):
    out = table[at]


@tn.kernel
def pinned(x: Scalar[f32], small: Param[i8], flag: Param[bool], out: Mutable[Scalar[f32]]):
    out = x * small if flag else x


@tn.kernel
def keyword_only(a: NDArray[f32, 1], /, b: NDArray[f32, 1], *, factor: Param = 2) -> None:
    for i in range(a.shape[0]):
        b[i] = a[i] * factor


@pytest.fixture(params=DEVICES, autouse=True)
def device(request: pytest.FixtureRequest) -> Any:
    with tn.use(request.param):
        yield request.param


def refused(call: Callable[..., Any], *args: Any, **keywords: Any) -> str:
    """The message of the `CallError` of a call, after which no argument has changed."""
    arrays = [x for x in (*args, *keywords.values()) if isinstance(x, np.ndarray)]
    before = [x.tobytes() for x in arrays]
    with pytest.raises(CallError) as caught:
        call(*args, **keywords)
    assert [x.tobytes() for x in arrays] == before
    return str(caught.value)


def values(width: type = np.float64) -> tuple[Any, ...]:
    """Regime, speed and output for `drag`."""
    return np.arange(N) % 2, np.linspace(0, 1, N).astype(width), np.full(N, 7.0, width)


# -- binding ---------------------------------------------------------------------------------------


def test_a_missing_argument_is_named_with_all_parameters() -> None:
    regime, v, _ = values()
    assert refused(drag, 0.1, regime, v) == (
        "kernel drag: argument 'v_new' is missing; its parameters are dt, regime, v, v_new"
    )


def test_too_many_arguments_are_counted() -> None:
    assert refused(drag, 0.1, *values(), 3) == (
        "kernel drag: 5 positional arguments given, 4 allowed; "
        "its parameters are dt, regime, v, v_new"
    )


def test_an_argument_given_twice_is_named() -> None:
    regime, v, out = values()
    assert "kernel drag: argument 'v' is given twice" in refused(drag, 0.1, regime, v, out, v=v)


def test_all_binding_problems_are_listed_and_the_meant_name_is_suggested() -> None:
    regime, _, out = values()
    assert refused(drag, 0.1, regime, v_nw=out, dt=3) == (
        "kernel drag:\n"
        "  - unknown argument 'v_nw' (did you mean 'v_new'?)\n"
        "  - argument 'dt' is given twice\n"
        "  - argument 'v' is missing\n"
        "  - argument 'v_new' is missing\n"
        "  its parameters are dt, regime, v, v_new"
    )


def test_parameters_by_position_or_keyword_only_are_kept_so() -> None:
    a, b = np.ones(3, np.float32), np.zeros(3, np.float32)
    assert "3 positional arguments given, 2 allowed" in refused(keyword_only, a, b, 3)
    assert "argument 'a' must be given by position" in refused(keyword_only, a=a, b=b)
    keyword_only(a, b=b, factor=3)
    assert b.tolist() == [3, 3, 3]
    keyword_only(a, b)
    assert b.tolist() == [2, 2, 2]


# -- kinds and dtypes of arrays ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([1.0, 2.0], "is of type list, not an array"),
        ((1.0, 2.0), "numpy.asarray(v) makes one"),
        (None, "is None, not an array"),
        ("abc", "is the str 'abc', not an array"),
        (1.5, "is the float 1.5, not an array"),
        (np.float64(1.5), "not an array"),
        (np.array(1.5), "has 0 axes, shape ()"),
        (np.ones((N, 1)), "has 2 axes, shape (5, 1)"),
    ],
)
def test_what_is_no_array_of_the_rank_is_refused(given: Any, words: str) -> None:
    regime, _, out = values()
    message = refused(drag, 0.1, regime, given, out)
    assert message.startswith("kernel drag: argument 'v' ")
    assert words in message
    assert "Scalar takes an array of float32 or float64 with shape (samples,)" in message


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        ("f2", "the dtype float16, which kernels do not have"),
        ("c16", "the dtype complex128, which kernels do not have"),
        ("O", "the dtype object, which kernels do not have"),
        ("U3", "the dtype <U3, which kernels do not have"),
        ("M8[s]", "the dtype datetime64[s], which kernels do not have"),
        ([("x", "f8")], "whose fields kernels do not have"),
        (np.dtype("f8").newbyteorder(), "not in the byte order of this machine"),
        (np.longdouble, "which kernels do not have"),
        ("?", "the dtype bool; Scalar takes an array of float32 or float64"),
        ("i8", "convert it with astype(numpy.float64), or annotate the parameter Index"),
        ("i4", "or annotate the parameter Index[i32]"),
    ],
)
def test_a_dtype_that_does_not_fit_is_refused(dtype: Any, words: str) -> None:
    regime, _, out = values()
    message = refused(drag, 0.1, regime, np.zeros(N, dtype), out)
    assert message.startswith("kernel drag: argument 'v' has the dtype ")
    assert words in message


def test_a_byte_swapped_array_is_told_how_to_be_converted() -> None:
    regime, v, out = values()
    swapped = v.astype(v.dtype.newbyteorder())
    assert "convert it with astype(numpy.float64)" in refused(drag, 0.1, regime, swapped, out)


def test_an_index_of_int32_says_what_to_do() -> None:
    regime, v, out = values()
    assert refused(drag, 0.1, regime.astype(np.int32), v, out) == (
        "kernel drag: argument 'regime' has the dtype int32; Index takes an array of int64 with "
        "shape (samples,); convert it with astype(numpy.int64), or annotate the parameter "
        "Index[i32]"
    )


def test_a_float64_array_for_float32_says_what_to_do() -> None:
    assert refused(double, np.ones(3), np.ones(3, np.float32)) == (
        "kernel double: argument 'a' has the dtype float64; NDArray[f32, 1] takes an array of "
        "float32 with 1 axis; convert it with astype(numpy.float32), or annotate the parameter "
        "NDArray[f64, 1]"
    )


def test_an_output_of_another_dtype_is_not_told_to_be_converted() -> None:
    message = refused(looked_up, np.ones(3, np.float32), np.arange(N), np.ones(N))
    assert "argument 'out' has the dtype float64" in message
    assert "pass an array of float32, or annotate the parameter Mutable[Scalar[f64]]" in message
    assert "astype" not in message


def test_the_mask_takes_bool_only() -> None:
    p = np.ones((3, N))
    message = refused(scaled, p, 1, p.copy(), np.zeros(N, np.int64))
    assert "argument 'stop' has the dtype int64; Terminated takes an array of bool" in message


def test_a_masked_array_is_refused_also_after_a_plain_one() -> None:
    regime, v, out = values()
    drag(0.1, regime, v, out)
    masked = np.ma.array(v, mask=[0, 0, 1, 0, 0])
    assert "'v' is a masked array, whose mask would be lost; pass v.filled" in refused(
        drag, 0.1, regime, masked, out
    )


def test_arrays_of_unknown_libraries_are_refused() -> None:
    class Column:
        dtype, ndim, shape = np.dtype("f8"), 1, (N,)

    regime, _, out = values()
    message = refused(drag, 0.1, regime, Column(), out)
    assert "argument 'v' is a Column, not a NumPy array" in message
    assert "numpy.asarray(v) makes one" in message
    assert "device= or turnout.use(...)" in message


def test_two_float_widths_in_one_call_are_refused() -> None:
    regime, v, out = values()
    assert refused(drag, 0.1, regime, v.astype(np.float32), out) == (
        "kernel drag: 'v' is float32 and 'v_new' is float64: the Scalar and Vector arrays of one "
        "call must have one float type; convert one with astype, or pin the parameter with "
        "Scalar[f32] or Scalar[f64]"
    )


# -- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.ones(3), "is an array of shape (3,)"),
        ([1.0], "is of type list"),
        (None, "is None"),
        ("x", "is the str 'x'"),
        (1j, "is the complex 1j"),
        (np.complex128(1j), "is a complex128, which kernels do not have"),
        (np.float16(1), "is a float16, which kernels do not have"),
        (np.array("x"), "is a <U1, which kernels do not have"),
    ],
)
def test_what_is_no_real_number_is_refused_for_a_param(given: Any, words: str) -> None:
    message = refused(drag, given, *values())
    assert message == (
        f"kernel drag: argument 'dt' {words}; Param takes one real number for the whole launch"
    )


def test_an_array_is_refused_for_a_param_that_took_a_0d_array() -> None:
    regime, v, out = values()
    drag(np.array(0.5), regime, v, out)
    assert "'dt' is an array of shape (1,)" in refused(drag, np.ones(1), regime, v, out)


def test_a_float64_scalar_beside_float32_arrays_is_refused() -> None:
    message = refused(drag, np.float64(0.1), *values(np.float32))
    assert message == (
        "kernel drag: argument 'dt' is a NumPy float64 beside float32 arrays, which would make the "
        "whole computation float64; pass float(dt) or numpy.float32(dt), or annotate it Param[f64] "
        "where that is meant"
    )
    drag(np.float64(0.1), *values(np.float64))


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**400])
def test_an_int_beyond_int64_is_refused(number: int) -> None:
    message = refused(drag, number, *values())
    assert message.startswith(f"kernel drag: argument 'dt' is {number}, which does not fit into ")
    assert "int64 (-9223372036854775808 to 9223372036854775807)" in message


def test_pinned_numbers_are_checked_for_kind_and_range() -> None:
    x, out = np.ones(N, np.float32), np.zeros(N, np.float32)
    assert "'small' is 128, which does not fit into int8 (-128 to 127)" in refused(
        pinned, x, 128, True, out
    )
    assert "'small' is 300, which does not fit into int8" in refused(
        pinned, x, np.int64(300), True, out
    )
    assert "'small' is the float 1.5; Param[i8] takes a whole number; convert it with int" in (
        refused(pinned, x, 1.5, True, out)
    )
    assert "'flag' is the int 2; Param[bool_] takes True or False" in refused(pinned, x, 1, 2, out)


# -- lengths -----------------------------------------------------------------------------------


def test_different_lengths_are_listed() -> None:
    regime, v, out = values()
    assert refused(drag, 0.1, regime[:3], v[:4], out) == (
        "kernel drag: the arrays of a call must have one number of samples: 'regime' has 3, 'v' "
        "has 4, 'v_new' has 5; samples= runs the first of longer arrays"
    )


def test_a_vector_with_samples_first_is_told_to_transpose() -> None:
    p = np.ones((N, 3))
    message = refused(scaled, p, 1, np.ones((3, N)), np.zeros(N, bool))
    assert message == (
        "kernel scaled: argument 'p' has shape (5, 3); Vector[3] takes (3, samples), one row per "
        "component; pass p.T"
    )


def test_a_vector_of_another_width_is_refused() -> None:
    message = refused(scaled, np.ones((2, N)), 1, np.ones((3, N)), np.zeros(N, bool))
    assert "argument 'p' has shape (2, 5); Vector[3] takes (3, samples)" in message


@pytest.mark.parametrize("samples", [-1, 2.5, True, "3", None.__class__])
def test_samples_must_be_a_whole_number(samples: Any) -> None:
    message = refused(drag, 0.1, *values(), samples=samples)
    assert message == f"kernel drag: samples={samples!r}: give a whole number of at least 0"


def test_samples_beyond_the_arrays_are_refused() -> None:
    regime, v, out = values()
    message = refused(drag, 0.1, regime, v[:4], out, samples=5)
    assert message == "kernel drag: argument 'v' has 4 samples, but samples=5 are to run"


def test_samples_is_refused_by_the_array_form() -> None:
    a = np.ones(N, np.float32)
    assert refused(double, a, a.copy(), samples=3) == (
        "kernel double: samples= is for the per-sample form, and this kernel is of the array form"
    )


# -- writability and overlap -----------------------------------------------------------------------


def read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def test_a_read_only_output_is_refused_in_both_forms() -> None:
    regime, v, out = values()
    words = "is written by the kernel, but is read-only; pass an array that can be written"
    assert f"kernel drag: argument 'v_new' {words}" in refused(drag, 0.1, regime, v, read_only(out))
    a = np.ones(N, np.float32)
    assert f"kernel double: argument 'b' {words}" in refused(double, a, read_only(a.copy()))


def test_an_output_whose_elements_share_memory_is_refused() -> None:
    a, cells = np.ones(N, np.float32), np.zeros(2 * N, np.float32)
    words = "argument 'b' is written by the kernel, but its elements share memory or interleave"
    assert words in refused(double, a, as_strided(cells, (N,), (0,)))
    assert words in refused(double, a, as_strided(cells, (N,), (2,)))
    broadcast = np.broadcast_to(cells[:1], (N,))
    assert "is read-only" in refused(double, a, broadcast)
    writable_broadcast = as_strided(cells, (3, N), (0, 4))
    p = np.ones((3, N), np.float32)
    message = refused(scaled, p, 1, writable_broadcast, np.zeros(N, bool))
    assert "argument 'out' is written by the kernel, but its elements share memory" in message


@pytest.mark.parametrize(
    "views",
    [
        lambda cells: (cells[:N], cells[1 : N + 1]),
        lambda cells: (cells[:N], cells[:N][::-1]),
        lambda cells: (cells[: 2 * N : 2], cells[:N]),
    ],
)
def test_a_partial_overlap_of_a_parallel_loop_is_refused(views: Callable[..., Any]) -> None:
    a, b = views(np.arange(2.0 * N, dtype=np.float32))
    assert refused(double, a, b) == (
        "kernel double: arguments 'a' and 'b' overlap in memory, and the kernel writes one of them "
        "while it reads or writes the other in any order; pass exactly the same array, or a copy"
    )


def test_a_partial_overlap_of_planes_is_refused() -> None:
    cells = np.arange(2.0 * N)
    message = refused(drag, 0.1, np.zeros(N, int), cells[:N], cells[2 : N + 2])
    assert "arguments 'v' and 'v_new' overlap in memory" in message


def test_one_memory_for_two_outputs_is_refused() -> None:
    x, out = np.ones(N), np.zeros(N)
    message = refused(two_outputs, x, out, out)
    assert "arguments 'sum' and 'difference' overlap in memory" in message
    assert message.endswith("pass a copy")


def test_an_output_that_is_a_table_is_refused() -> None:
    table = np.arange(float(N), dtype=np.float32)
    message = refused(looked_up, table, np.arange(N), table)
    assert "arguments 'table' and 'out' overlap in memory" in message
    assert message.endswith("pass a copy")


def test_interleaved_arrays_do_not_overlap() -> None:
    cells = np.arange(2.0 * N, dtype=np.float32)
    double(cells[::2], cells[1::2])
    assert cells.tolist() == [0, 0, 2, 4, 4, 8, 6, 12, 8, 16]


# -- devices -----------------------------------------------------------------------------------


def test_devices_that_are_not_there_are_refused() -> None:
    arguments = (0.1, *values())
    near = r"backend 'referense' is not installed \(did you mean 'reference'"
    with pytest.raises(Unavailable, match=near):
        drag(*arguments, device="referense")
    with pytest.raises(Unavailable, match="backend 'reference' has no device 7"):
        drag(*arguments, device="reference:7")
    assert "device=3, of type int, is not allowed" in refused(drag, *arguments, device=3)
    assert "device 'CPU!' is malformed" in refused(drag, *arguments, device="CPU!")


# -- all at once -----------------------------------------------------------------------------------


def test_all_problems_of_types_and_shapes_are_listed_together() -> None:
    regime, v, out = values()
    message = refused(drag, "x", regime[:3], v.astype(np.int64), read_only(out))
    bullets = re.findall(r"\n  - (.*)", message)
    assert [bullet.partition(";")[0] for bullet in bullets] == [
        "argument 'dt' is the str 'x'",
        "argument 'v' has the dtype int64",
        "the arrays of a call must have one number of samples: 'regime' has 3, 'v_new' has 5",
        "argument 'v_new' is written by the kernel, but is read-only",
    ]


def test_all_problems_of_values_are_listed_together() -> None:
    regime, v, out = values()
    drag(1, regime, v, out)
    message = refused(drag, 2**70, regime[:3], v, read_only(v))
    assert message.count("\n  - ") == 3
    for words in ("'regime' has 3", "'v_new' is written", "which does not fit into int64"):
        assert words in message


def test_an_int_too_long_to_print_is_described_by_its_size() -> None:
    regime, v, out = values()
    message = refused(drag, 10**5000, regime, v, out)
    assert "argument 'dt' is an int of 16610 bits, which does not fit into int64" in message
