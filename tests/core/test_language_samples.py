"""The per-sample form: planes, params, masks, tables, outputs and returned values."""

from __future__ import annotations

import numpy as np
import pytest
from language_support import (
    assert_same,
    floats,
    function_from,
    integers,
    kernel_error,
)

import turnout as tn
import turnout.math as tm
from turnout import (
    Index,
    Mutable,
    NDArray,
    Param,
    Scalar,
    Terminated,
    Vector,
    bool_,
    f32,
    f64,
    i8,
    i32,
    i64,
    u32,
)

X = floats(-2.0, -0.5, 0.0, 1.5, np.nan, np.inf)


# -- outputs ---------------------------------------------------------------------------------------


def test_outputs_params_and_indices(device):
    @tn.kernel
    def k(dt: Param, n: Index, v: Scalar, v_new: Mutable[Scalar], m: Mutable[Index]):
        v_new = v + dt * n
        m = n * 2 - 1

    n, v_new, m = np.arange(6), np.zeros(6), np.zeros(6, np.int64)
    assert k(0.5, n, X, v_new, m, device=device) is None
    assert_same(v_new, X + 0.5 * n)
    assert_same(m, n * 2 - 1)


def test_an_output_that_is_read_first_is_also_an_input(device):
    @tn.kernel
    def k(x: Scalar, total: Mutable[Scalar]):
        total += x
        total = total * 2

    total = np.arange(6.0)
    k(X, total, device=device)
    assert_same(total, (np.arange(6.0) + X) * 2)


def test_an_output_assigned_on_one_path_keeps_its_value_on_the_other(device):
    @tn.kernel
    def k(x: Scalar, y: Mutable[Scalar], n: Mutable[Index]):
        if x > 0:
            y = x
        elif x < -1:
            n = 7

    y, n = np.full(6, 9.0), np.full(6, 5)
    k(X, y, n, device=device)
    assert_same(y, floats(9, 9, 9, 1.5, 9, np.inf))
    assert_same(n, integers(7, 5, 5, 5, 5, 5))


def test_an_output_assigned_in_a_loop_keeps_its_value_where_the_loop_does_not_run(device):
    @tn.kernel
    def k(n: Index, y: Mutable[Scalar]):
        for i in range(n):
            y = i * 1.5

    y = np.full(4, 9.0)
    k(integers(0, -3, 1, 4), y, device=device)
    assert_same(y, floats(9, 9, 0, 4.5))


def test_only_the_last_value_is_stored_and_reads_see_the_current_one(device):
    @tn.kernel
    def k(x: Scalar, y: Mutable[Scalar]):
        old = y
        y = x
        y = y + 1
        y = y * 10 + old

    y = np.arange(6.0)
    k(X, y, device=device)
    assert_same(y, (X + 1) * 10 + np.arange(6.0))


def test_input_names_can_be_bound_again(device):
    @tn.kernel
    def k(x: Scalar, n: Index, p: Param, y: Mutable[Scalar]):
        x = x + 1
        n = x * n
        p += 1
        y = x + n + p

    x, y = X.copy(), np.zeros(6)
    n = np.arange(6)
    k(x, n, 2, y, device=device)
    assert_same(x, X)
    assert_same(y, (X + 1) + (X + 1) * n + 3)


def test_a_plane_can_be_its_own_output(device):
    @tn.kernel
    def k(a: Scalar, b: Scalar, p: Mutable[Scalar], q: Mutable[Scalar]):
        p = b
        q = a

    a, b = np.arange(5.0), np.arange(5.0) + 10
    k(a, b, a, b, device=device)
    assert_same(a, np.arange(5.0) + 10)
    assert_same(b, np.arange(5.0))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("z = x", "the output 'y' is never assigned"),
        ("z = y + x", "the output 'y' is never assigned"),
        (
            "if x > 0:\n        y = (x, x)",
            "output 'y' may have no value in the end: it is a tuple or list of 2 and",
        ),
        ("y = x.nothing", "a scalar of type f64 has no attribute 'nothing'"),
        ("y = 'text'", "output 'y' holds a number, not str 'text'"),
        ("y = None", "output 'y' holds a number, not NoneType None"),
        ("for i in range(3):\n        t = x\n    y = t", "'t' may have no value here: it is first"),
        ("if x > 0:\n        t = x\n    y = t", "assigned on some of the paths"),
        ("if x > 0:\n        t = x\n    else:\n        t = (x, x)\n    y = t", "'t' may have no"),
        ("y = t\n    t = x", "'t' has no value here; assign it before this line"),
        ("for i in range(3):\n        pass\n    y = i", "'i' may have no value here: it is the"),
    ],
)
def test_what_an_output_cannot_be(body, message):
    function = function_from(f"def k(x: Scalar, y: Mutable[Scalar]):\n    {body}\n")
    error = kernel_error(function, X, np.zeros(6))
    assert message in str(error)
    assert error.location is not None


def test_an_integer_output_does_not_take_floats():
    @tn.kernel
    def k(x: Scalar, n: Mutable[Index]):
        n = x

    with pytest.raises(tn.KernelError, match=r"output 'n' holds i64, and a value of type f64 does"):
        k(X, np.zeros(6, np.int64), device="reference")


def test_a_kernel_needs_an_output():
    function = function_from("def k(x: Scalar):\n    y = x\n")
    message = str(kernel_error(function, X))
    assert "kernel k has no output: declare one as Mutable[...] and assign it" in message


# -- element types ---------------------------------------------------------------------------------


def test_pinned_types(device):
    @tn.kernel
    def k(
        x: Scalar[f32],
        n: Index[i32],
        u: Index[u32],
        v: Vector[2, f32],
        p: Param[f32],
        y: Mutable[Scalar[f64]],
        m: Mutable[Index[u32]],
        w: Mutable[Vector[2, f64]],
    ):
        y = x * p + n
        m = u - 1
        w = v * p

    x, n = np.array([0.1, 0.2], np.float32), np.array([1, -2], np.int32)
    u, v = np.array([0, 7], np.uint32), np.array([[1, 2], [3, 4]], np.float32) / 3
    y, m, w = np.zeros(2), np.zeros(2, np.uint32), np.zeros((2, 2))
    k(x, n, u, v, 0.1, y, m, w, device=device)
    assert_same(y, x * np.float32(0.1) + n.astype(np.float64))
    assert_same(m, u - np.uint32(1))
    assert_same(w, (v * np.float32(0.1)).astype(np.float64))


def test_the_float_width_comes_from_the_call(device):
    @tn.kernel
    def k(x: Scalar, v: Vector[2], p: Param, y: Mutable[Scalar], w: Mutable[Vector[2]]) -> Scalar:
        y = x / 3 + p
        w = v * x
        return x * 0.1

    for dtype in (np.float32, np.float64):
        x, v = np.array([1, 2, 3], dtype), np.arange(6, dtype=dtype).reshape(2, 3)
        y, w = np.zeros_like(x), np.zeros_like(v)
        out = k(x, v, 0.7, y, w, device=device)
        assert_same(y, x / 3 + dtype(0.7))
        assert_same(w, v * x)
        assert_same(out, x * dtype(0.1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Scalar[i32]", "Scalar can be pinned to f32 or f64 only"),
        ("Index[f32]", "Index can be pinned to integer types such as i32 or u32 only"),
        ("Vector[0]", "give a width of at least 1, as in Vector[3]"),
        ("Vector[-1]", "give a width of at least 1"),
        ("Vector[2, i32]", "Vector can be pinned to f32 or f64 only"),
        ("Vector", "Vector needs its width, as in Vector[3]"),
        ("Mutable", "Mutable needs what it holds, as in Mutable[Scalar]"),
        ("Mutable[Param]", "only Scalar, Index and Vector[n] can be Mutable"),
        ("NDArray", "NDArray needs element type and rank, as in NDArray[f32, 1]"),
        ("NDArray[f32]", "give element type and rank, as in NDArray[f32, 1]"),
        ("NDArray[complex, 1]", "the element type must be one of f32, f64, i8"),
        ("NDArray[f32, 0]", "the rank must be an int from 1 to 32"),
        ("list", "has the annotation <class 'list'>; annotate it with Scalar, Index"),
        ("Scalr", "an annotation cannot be resolved: name 'Scalr' is not defined"),
    ],
)
def test_annotations_are_checked_when_the_kernel_is_made(text, message):
    with pytest.raises(tn.KernelError) as caught:
        tn.kernel(function_from(f"from __future__ import annotations\ndef k(x: {text}): pass\n"))
    assert message in str(caught.value)


def test_parameters_are_checked_when_the_kernel_is_made():
    for parameters, message in (
        ("x", "parameter 'x' has no annotation; annotate it with Scalar, Index, Vector[n]"),
        ("*x: Scalar", "parameter *x is variadic"),
        ("**x: Scalar", "parameter *x is variadic"),
        ("device: Scalar", "the parameter name 'device' is reserved"),
        ("samples: Scalar", "the parameter name 'samples' is reserved"),
    ):
        with pytest.raises(tn.KernelError) as caught:
            tn.kernel(function_from(f"def k({parameters}): pass\n"))
        assert message in str(caught.value)


# -- returned values -------------------------------------------------------------------------------


def test_returned_values_are_new_arrays(device):
    @tn.kernel
    def one(x: Scalar, n: Index) -> Scalar:
        return x + n

    @tn.kernel
    def several(x: Scalar, n: Index) -> tuple[Scalar, Index, Vector[2]]:
        return x * 2, n + 1, (x, -x)

    @tn.kernel
    def unannotated(x: Scalar, n: Index):
        return n > 2, tm.vector(x, 1)

    n = np.arange(6)
    assert_same(one(X, n, device=device), X + n)
    first, second, third = several(X, n, device=device)
    assert_same(first, X * 2)
    assert_same(second, n + 1)
    assert_same(third, np.stack([X, -X]))
    flags, vectors = unannotated(X, n, device=device)
    assert_same(flags, n > 2)
    assert_same(vectors, np.stack([X, np.ones(6)]))


def test_a_tuple_of_one_is_a_tuple(device):
    @tn.kernel
    def k(x: Scalar) -> tuple[Scalar]:
        return (x,)

    (out,) = k(X, device=device)
    assert_same(out, X)


def test_a_vector_is_returned_as_its_components(device):
    @tn.kernel
    def k(x: Scalar) -> Vector[2]:
        if x < 0:
            return 0, x
        return x, 1.5

    wanted = np.stack([np.where(X < 0, 0, X), np.where(X < 0, X, 1.5)])
    assert_same(k(X, device=device), wanted)


def test_outputs_and_returned_values_together(device):
    @tn.kernel
    def k(x: Scalar, y: Mutable[Scalar]) -> Scalar:
        y = x + 1
        return y * 2

    y = np.zeros(6)
    assert_same(k(X, y, device=device), (X + 1) * 2)
    assert_same(y, X + 1)


@pytest.mark.parametrize(
    ("annotation", "body", "message"),
    [
        ("-> Scalar", "y = x", "kernel k is declared to return, and does not"),
        ("-> Scalar", "return x, x", "1 values are declared to return, 2 given"),
        ("-> tuple[Scalar, Scalar]", "return x", "2 values are declared to return, 1 given"),
        ("-> Index", "return x", "holds i64, and a value of type f64 does not convert"),
        (
            "-> Vector[3]",
            "return x, x",
            "the returned array holds a vector of width 3, not a vector of width 2",
        ),
        ("-> tuple[Vector[2]]", "return x, x", "1 values are declared to return, 2 given"),
        (
            "-> Vector[2]",
            "return x",
            "the returned array holds a vector of width 2, not a scalar of type f64",
        ),
        (
            "-> Scalar",
            "return tm.vector(x, x)",
            "the returned array holds a number, not a vector of width 2",
        ),
        ("-> Scalar", "if x > 0:\n        return x", "returns a value on some of its paths only"),
        ("-> Scalar", "if x > 0:\n        return x\n    return x, x", "every return of a function"),
        ("", "return 'text'", "a kernel cannot return str 'text'"),
        ("", "return (x, (x, x))", "a kernel cannot return a tuple or list of 2"),
    ],
)
def test_returns_that_do_not_fit(annotation, body, message):
    function = function_from(f"def k(x: Scalar) {annotation}:\n    {body}\n")
    assert message in str(kernel_error(function, X))


def test_return_annotations_are_checked():
    for text in ("int", "Param", "NDArray[f32, 1]", "Mutable[Scalar]", "tuple[Scalar, list]"):
        with pytest.raises(tn.KernelError, match=r"the return annotation .* is none of Scalar"):
            tn.kernel(function_from(f"def k(x: Scalar) -> {text}: pass\n"))


# -- vectors ---------------------------------------------------------------------------------------


def test_vector_arithmetic_and_functions(device):
    @tn.kernel
    def k(a: Vector[3], b: Vector[3], s: Scalar, c: Mutable[Vector[3]], d: Mutable[Scalar]):
        c = tm.cross(a, b) + s * a - b / 2 + (1, 2, 3)
        c[1] = c[1] * 2
        c[-1] += 1
        d = tm.dot(a, b) + tm.norm(a) + tm.sum(b) + a[0] + len(a)
        x, y, z = a
        d += x * y * z

    generator = np.random.default_rng(1)
    a, b = generator.normal(size=(2, 3, 7))
    s, c, d = generator.normal(size=7), np.zeros((3, 7)), np.zeros(7)
    k(a, b, s, c, d, device=device)
    wanted = np.cross(a, b, axis=0) + s * a - b / 2 + np.array([[1], [2], [3]])
    wanted[1] *= 2
    wanted[2] += 1
    np.testing.assert_allclose(c, wanted, rtol=1e-14)
    assert_same(
        d,
        ((a[0] * b[0] + a[1] * b[1]) + a[2] * b[2])
        + np.sqrt((a[0] * a[0] + a[1] * a[1]) + a[2] * a[2])
        + (b[0] + b[1] + b[2])
        + a[0]
        + 3
        + a[0] * a[1] * a[2],
    )


def test_vectors_are_values(device):
    @tn.kernel
    def k(a: Vector[2], b: Mutable[Vector[2]]):
        c = a
        c[0] = 5
        b = (a[0] + c[0], a[1])

    a, b = np.arange(6.0).reshape(2, 3), np.zeros((2, 3))
    k(a, b, device=device)
    assert_same(b, np.stack([a[0] + 5, a[1]]))


def test_elementwise_functions_of_vectors(device):
    @tn.kernel
    def k(a: Vector[2], b: Mutable[Vector[2]]):
        c = tm.sqrt(tm.abs(a)) + tm.clip(a, -1, (0.5, 1)) + -a
        b = tm.select(a[0] > 1, c, f64(a)) * tm.maximum(a, 1)

    a = np.array([[0.5, 2, -3], [4, -9, 0.25]])
    b = np.zeros((2, 3))
    k(a, b, device=device)
    c = np.sqrt(np.abs(a)) + np.clip(a, -1, np.array([[0.5], [1]])) + -a
    assert_same(b, np.where(a[0] > 1, c, a) * np.maximum(a, 1))


def test_vector_operations_that_do_not_fit():
    for body, message in (
        ("a + (1, 2, 3)", "vectors of width 2 and 3 do not combine"),
        ("tm.dot(a, (1, 2, 3))", "vectors of one width are needed, given: [2, 3]"),
        ("tm.cross(a, a)", "vectors of width 3 are needed, given: [2]"),
        ("a[2]", "index 2 is out of range for 2 items"),
        ("a[n]", "the index into a vector of width 2 must be a constant; use a local array"),
        ("a if a else 1", "a number is needed here, not a vector of width 2"),
        ("f32(a)", "output 'y' holds a number, not a vector of width 2"),
    ):
        function = function_from(
            f"def k(a: Vector[2], n: Index, y: Mutable[Scalar]):\n    y = {body}\n"
        )
        error = kernel_error(function, np.zeros((2, 1)), np.zeros(1, np.int64), np.zeros(1))
        assert message in str(error)


# -- tables, samples, masks ------------------------------------------------------------------------


def test_tables_are_read_anywhere(device):
    @tn.kernel
    def k(i: Index, table: NDArray[f32, 2], y: Mutable[Scalar[f64]]):
        y = 0
        for j in range(table.shape[1]):
            y += table[i, j] * table[-1][j]

    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    i, y = integers(0, 3, -1, 2), np.zeros(4)
    k(i, table, y, device=device)
    wanted = np.zeros(4)
    for j in range(3):
        wanted += table[i, j] * table[-1, j]
    assert_same(y, wanted)


def test_tables_are_not_written():
    function = function_from(
        "def k(x: Scalar, t: NDArray[f64, 1], y: Mutable[Scalar]):\n    t[0] = x\n    y = x\n"
    )
    error = kernel_error(function, X, np.zeros(3), np.zeros(6))
    assert "'t' is a table, which the per-sample form only reads" in str(error)
    assert error.location.line == 2


def test_samples_know_their_place(device):
    @tn.kernel
    def k(x: Scalar, n: Mutable[Index], y: Mutable[Scalar]):
        n = tm.sample_index() * 10 + tm.sample_count()
        y = x * tm.sample_index()

    n, y = np.zeros(6, np.int64), np.zeros(6)
    k(np.ones(6), n, y, device=device)
    assert_same(n, np.arange(6) * 10 + 6)
    assert_same(y, np.arange(6.0))


def test_terminated_samples_are_skipped_and_the_mask_is_written(device):
    @tn.kernel
    def k(x: Scalar, done: Terminated, y: Mutable[Scalar], steps: Mutable[Index]):
        y += x
        steps += 1
        done = y > 4

    x = floats(1, 2, 3, 4, 5)
    done = np.array([False, True, False, True, False])
    y, steps = np.zeros(5), np.zeros(5, np.int64)
    for _ in range(3):
        k(x, done, y, steps, device=device)
    assert_same(y, floats(3, 0, 6, 0, 5))
    assert_same(steps, integers(3, 0, 2, 0, 1))
    assert_same(done, np.array([False, True, True, True, True]))


def test_a_mask_that_is_only_read_stays_as_it_is(device):
    @tn.kernel
    def k(x: Scalar, done: Terminated, y: Mutable[Scalar]):
        y = -x

    done, y = np.array([False, True, False, False, True, False]), np.full(6, 9.0)
    done.flags.writeable = False
    k(X, done, y, device=device)
    assert_same(y, np.where(done, 9.0, -X))


def test_returned_values_of_skipped_samples_are_zero(device):
    @tn.kernel
    def k(x: Scalar, done: Terminated) -> Scalar:
        return x + 1

    done = np.array([False, True, False, True, True, False])
    assert_same(k(X, done, device=device), np.where(done, 0.0, X + 1))


def test_a_mask_can_be_set_on_some_paths(device):
    @tn.kernel
    def k(x: Scalar, done: Terminated, y: Mutable[Scalar]):
        y = x
        if x > 1:
            done = True

    done, y = np.zeros(6, bool), np.zeros(6)
    k(X, done, y, device=device)
    assert_same(done, X > 1)


def test_reads_inside_of_and_or_are_reads(device):
    @tn.kernel
    def k(x: Scalar, z: Scalar, n: Index, y: Mutable[Scalar]):
        y = 1.0 if x > 0 and z < 1 and n == 2 or z == 5 else -1.0

    z, n, y = floats(0, 5, 0, 0, 0, 2), integers(2, 2, 2, 2, 2, 2), np.zeros(6)
    k(X, z, n, y, device=device)
    assert_same(y, np.where((X > 0) & (z < 1) & (n == 2) | (z == 5), 1.0, -1.0))


# -- functions of turnout.math ---------------------------------------------------------------------


def test_index_makes_classes_from_floats(device):
    @tn.kernel
    def k(x: Scalar, c: Mutable[Index]):
        c = tm.index(x, 3)

    x = floats(np.nan, np.inf, -np.inf, -0.5, 0.99, 1.0, 1.999, 2.0, 5.0, 1e300)
    c = np.full(10, 9)
    k(x, c, device=device)
    assert_same(c, integers(0, 2, 0, 0, 0, 1, 1, 2, 2, 2))


def test_index_of_integers_and_bools(device):
    @tn.kernel
    def k(n: Index, u: Index[tn.u64], p: Param, c: Mutable[Index], d: Mutable[Index]):
        c = tm.index(n, p) * 10 + tm.index(n > 2, 2)
        d = tm.index(u, 5)

    n = integers(-(2**63), -1, 0, 3, 7, 2**63 - 1)
    u = np.array([0, 4, 5, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    c, d = np.zeros(6, np.int64), np.zeros(6, np.int64)
    k(n, u, 5, c, d, device=device)
    assert_same(c, np.clip(n, 0, 4) * 10 + (n > 2))
    assert_same(d, integers(0, 4, 4, 4, 4, 4))


def test_clip_select_and_extremes(device):
    @tn.kernel
    def k(x: Scalar, n: Index, y: Mutable[Scalar], m: Mutable[Index]):
        y = tm.clip(x, -1, 1) + tm.select(x > 0, x, 0.5)
        m = tm.clip(n, 1, 3) + tm.select(n > 2, n, -1)

    n, y, m = np.arange(6), np.zeros(6), np.zeros(6, np.int64)
    k(X, n, y, m, device=device)
    assert_same(y, np.clip(X, -1, 1) + np.where(X > 0, X, 0.5))
    assert_same(m, np.clip(n, 1, 3) + np.where(n > 2, n, -1))


def test_local_arrays_and_loops_in_a_sample(device):
    @tn.kernel
    def k(x: Scalar, n: Index) -> Scalar:
        history = tm.zeros(4, f64)
        for i in range(n):
            history[i % 4] += x * i
        total = 0.0
        for i in range(4):
            total += history[i] * (i + 1)
        return total

    n = integers(0, 1, 2, 5, 9, 3)
    x = np.arange(6.0) / 3
    wanted = [sum_of(value, count) for value, count in zip(x, n, strict=True)]
    assert_same(k(x, n, device=device), floats(*wanted))


def sum_of(x, n):
    history = np.zeros(4)
    for i in range(n):
        history[i % 4] += x * i
    total = 0.0
    for i in range(4):
        total += history[i] * (i + 1)
    return total


def test_bools_of_every_kind(device):
    @tn.kernel
    def k(x: Scalar, n: Index[i8], p: Param) -> tuple[Scalar, Index]:
        flag = x > 0
        other = p and flag or not n
        return flag + 1.5, i64(other) + (flag & other) + (True if n else False)

    n = np.array([0, 1, 2, 0, 0, -1], np.int8)
    first, second = k(X, n, True, device=device)
    flag = X > 0
    other = flag | (n == 0)
    assert_same(first, flag + 1.5)
    assert_same(second, other.astype(np.int64) + (flag & other) + (n != 0))


def test_a_table_of_bools(device):
    @tn.kernel
    def k(i: Index, allowed: NDArray[bool_, 1], y: Mutable[Index]):
        y = 1 if allowed[i] else 2

    y = np.zeros(3, np.int64)
    k(integers(0, 1, 2), np.array([True, False, True]), y, device=device)
    assert_same(y, integers(1, 2, 1))
