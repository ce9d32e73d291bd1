"""``kernel.specialise``: constants of calls in the code, the same bits, and clear refusals."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest
from language_support import function_from

import turnout as tn
import turnout.math as tm
from turnout import (
    CallError,
    Index,
    KernelError,
    Mutable,
    NDArray,
    Param,
    Scalar,
    Terminated,
    Vector,
    f32,
    f64,
    i32,
    i64,
    ir,
)
from turnout.folding import MOST_ROUNDS
from turnout.ir import format_unit, statements


@tn.kernel
def matmul(a: NDArray[f64, 3], b: NDArray[f64, 3], c: NDArray[f64, 3]):
    for s in range(a.shape[0]):
        for i in range(a.shape[1]):
            for j in range(b.shape[2]):
                total = 0.0
                for k in range(a.shape[2]):
                    total += a[s, i, k] * b[s, k, j]
                c[s, i, j] = total


@tn.kernel
def cholesky(a: NDArray[f64, 3], l: NDArray[f64, 3]):  # noqa: E741
    for s in range(a.shape[0]):
        for i in range(a.shape[1]):
            for j in range(i + 1):
                total = a[s, i, j]
                for k in range(j):
                    total -= l[s, i, k] * l[s, j, k]
                if i == j:
                    l[s, i, j] = tm.sqrt(total)
                else:
                    l[s, i, j] = total / l[s, j, j]


@tn.kernel
def axpy(factor: Param, x: Scalar, y: Mutable[Scalar]):
    y = factor * x + y


@tn.kernel
def fir(x: NDArray[f64, 1], h: NDArray[f64, 1], y: NDArray[f64, 1]):
    for i in range(y.shape[0]):
        total = 0.0
        for k in range(h.shape[0]):
            total += h[k] * x[i + k]
        y[i] = total


def drag(policy="switch", **options):
    @tn.kernel(**options)
    def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
        a = tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v), -v * tm.exp(-v)], policy=policy)
        v_new = v + dt * a

    return drag


def unit_of(kernel):
    """The only unit of a kernel, for types of a possible call."""
    (run,) = kernel.lower(kernel.default_types()).plan.runs
    return run.unit


def count(unit, *kinds):
    return sum(isinstance(each, kinds) for each in statements(unit.body.body))


# -- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_batched_products(device, n):
    a, b = np.random.default_rng(n).normal(size=(2, 20, n, n))
    c, expected = np.empty((2, 20, n, n))
    shape = (None, n, n)
    matmul.specialise(a=shape, b=shape, c=shape)(a, b, c, device=device)
    matmul(a, b, expected, device=device)
    np.testing.assert_array_equal(c, expected)
    np.testing.assert_allclose(c, a @ b)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_batched_cholesky_in_memory_that_is_read_back(device, n):
    root = np.random.default_rng(n).normal(size=(9, n, n))
    a = root @ root.transpose(0, 2, 1) + n * np.eye(n)
    found, expected = np.zeros((2, 9, n, n))
    cholesky.specialise(a=(9, n, n), l=(9, n, n))(a, found, device=device)
    cholesky(a, expected, device=device)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(found, np.linalg.cholesky(a))
    # The same with the memory of the input, which elementwise kernels may share.
    cholesky.specialise(a=(9, n, n), l=(9, n, n))(found, found.copy(), device=device)


def test_strided_and_transposed_arrays(device):
    a, b = np.random.default_rng(1).normal(size=(2, 6, 3, 3))
    c = np.zeros((6, 3, 6))
    k = matmul.specialise(a=(6, 3, 3), b=(6, 3, 3), c=(6, 3, 3))
    k(a.transpose(0, 2, 1), b[::-1], c[:, :, ::2], device=device)
    np.testing.assert_allclose(c[:, :, ::2], a.transpose(0, 2, 1) @ b[::-1])
    assert not c[:, :, 1::2].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_per_sample_form(device, dtype):
    x = np.linspace(-1, 1, 64, dtype=dtype)
    y, expected = np.ones((2, 64), dtype)
    k = axpy.specialise(factor=0.1, samples=64)
    k(0.1, x, y, device=device)
    axpy(0.1, x, expected, device=device)
    np.testing.assert_array_equal(y, expected)


def test_returned_arrays_vectors_and_masks(device):
    @tn.kernel
    def norm(p: Vector[3], done: Terminated) -> Scalar:
        total = 0.0
        for n in range(3):
            total += p[0] * p[1] + p[2] * n
        return total

    p = np.arange(15.0).reshape(3, 5)
    done = np.array([0, 1, 0, 0, 0], bool)
    k = norm.specialise(p=(3, 5))
    assert k.sizes.samples == 5
    np.testing.assert_array_equal(k(p, done, device=device), norm(p, done, device=device))


def test_local_arrays_become_values(device):
    @tn.kernel
    def windowed(x: NDArray[f64, 2], out: NDArray[f64, 1]):
        for s in range(x.shape[0]):
            memory = tm.zeros(4)
            for i in range(x.shape[1]):
                memory[i % 4] += x[s, i]
            out[s] = memory[0] + 2 * memory[1] + 3 * memory[2] + 4 * memory[3]

    x = np.random.default_rng(2).normal(size=(7, 11))
    k = windowed.specialise(x=(None, 11))
    assert not count(unit_of(k), ir.LocalArray, ir.Store, ir.For) - 1  # the one store to `out`
    out, expected = np.empty((2, 7))
    k(x, out, device=device)
    windowed(x, expected, device=device)
    np.testing.assert_array_equal(out, expected)


def test_a_private_array_that_loops_index_stays(device):
    @tn.kernel
    def counted(x: NDArray[i64, 2], out: NDArray[i64, 2]):
        for s in range(x.shape[0]):
            seen = tm.zeros(3, tn.i64)
            for i in range(x.shape[1]):
                seen[x[s, i]] += 1
            for c in range(3):
                out[s, c] = seen[c]

    x = np.random.default_rng(3).integers(0, 3, (5, 200))
    k = counted.specialise(x=(5, 200), out=(5, 3))
    assert count(unit_of(k), ir.LocalArray) == 1
    out = np.empty((5, 3), np.int64)
    k(x, out, device=device)
    np.testing.assert_array_equal(out, [np.bincount(row, minlength=3) for row in x])


def test_branches_and_loops_on_arguments(device):
    @tn.kernel
    def f(x: NDArray[f64, 1], mode: Param[i32], rounds: Param, out: NDArray[f64, 1]):
        for i in range(x.shape[0]):
            value = x[i]
            if mode == 1:
                for _ in range(rounds):
                    value = value * 1.5 - 0.25
            elif mode > 1:
                value = value / 3.0
            out[i] = value

    x = np.linspace(0, 1, 7)
    for mode in (0, 1, 2):
        out, expected = np.empty((2, 7))
        k = f.specialise(mode=mode, rounds=3)
        assert not count(unit_of(k), ir.If, ir.For)
        k(x, mode, 3, out, device=device)
        f(x, mode, 3, expected, device=device)
        np.testing.assert_array_equal(out, expected)


def test_no_samples_and_no_rounds(device):
    y = np.empty(0)
    axpy.specialise(samples=0)(2.0, np.empty(0), y, device=device)
    out = np.ones(3)
    fir.specialise(h=(0,), y=(3,))(np.empty(3), np.empty(0), out, device=device)
    np.testing.assert_array_equal(out, np.zeros(3))


def test_signed_zeros_and_nan_are_values_of_their_own(device):
    x = np.array([1.0, -2.0])
    for factor in (0.0, -0.0, float("nan"), float("inf")):
        y, expected = np.full((2, 2), -0.0)
        axpy.specialise(factor=factor)(factor, x, y, device=device)
        axpy(factor, x, expected, device=device)
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(np.signbit(y), np.signbit(expected))
    with pytest.raises(CallError, match=r"'factor' is -0.0, and the kernel is specialised for 0.0"):
        axpy.specialise(factor=0.0)(-0.0, x, y, device=device)


# -- code ------------------------------------------------------------------------------------------


def test_short_loops_are_written_out():
    shape = (None, 3, 3)
    unit = unit_of(matmul.specialise(a=shape, b=shape, c=shape))
    assert not count(unit, ir.For)
    text = format_unit(unit)
    assert "in a: f64[? x 3 x 3]" in text
    assert text.count(" = a[") == 3
    assert "apart a, c" in text


def test_stores_and_loads_of_one_element_are_one():
    unit = unit_of(cholesky.specialise(a=(None, 3, 3), l=(None, 3, 3)))
    text = format_unit(unit)
    # Each of six elements is stored once, and what was stored is not loaded again.
    assert text.count("    l[") == 6
    assert " = l[" not in text
    assert text.count("sqrt(") == 3


def test_long_loops_stay():
    unit = unit_of(fir.specialise(h=(MOST_ROUNDS + 1,)))
    assert count(unit, ir.For) == 1
    unit = unit_of(matmul.specialise(a=(None, 4, 64), b=(None, 64, 4)))
    assert not count(unit, ir.For)


def test_what_gets_too_large_is_written_out_inside_only():
    @tn.kernel
    def power(a: NDArray[f64, 1], n: Param[i64]):
        for s in range(a.shape[0]):
            for i in range(n):
                for j in range(n):
                    a[s] = a[s] * 0.5 + (i - j)

    unit = unit_of(power.specialise(n=60))
    loops = [each for each in statements(unit.body.body) if isinstance(each, ir.For)]
    assert len(loops) == 1
    assert 60 < count(unit, ir.Compute) < 400


def test_floats_are_never_reordered():
    @tn.kernel
    def f(x: Scalar, zero: Param, one: Param) -> Scalar:
        return (x + zero) * one

    text = format_unit(unit_of(f.specialise(zero=0.0, one=1.0)))
    assert "add(" in text
    assert "multiply(" in text


def test_math_functions_are_left_to_the_backend():
    @tn.kernel
    def f(x: Scalar, y: Param) -> Scalar:
        return x * tm.exp(y) + tm.sqrt(y)

    text = format_unit(unit_of(f.specialise(y=2.0)))
    assert "exp(" in text  # each backend has bits of its own
    assert "sqrt(" not in text
    assert repr(2.0**0.5) in text


def test_checks_of_lengths_that_are_known_are_made_once():
    (run,) = fir.lower(fir.default_types()).plan.runs
    assert run.reaches
    (run,) = fir.specialise(x=(10,), h=(3,), y=(8,)).lower(fir.default_types()).plan.runs
    assert not run.reaches


def test_arrays_that_are_too_short_are_refused_as_ever(device):
    k = fir.specialise(x=(9,), h=(3,), y=(8,))
    with pytest.raises(CallError, match="indexes its axis 0 up to 9"):
        k(np.zeros(9), np.zeros(3), np.zeros(8), device=device)


def test_debug_kernels_find_violations(device):
    @tn.kernel(debug=True)
    def gather(x: NDArray[f64, 1], i: NDArray[i64, 1], out: NDArray[f64, 1]):
        for n in range(out.shape[0]):
            out[n] = x[i[n]]

    k = gather.specialise(x=(3,), i=(2,), out=(2,))
    with pytest.raises(tn.OutOfBoundsError, match="index 5 is out of bounds for axis 0 of 'x'"):
        k(np.zeros(3), np.array([1, 5]), np.zeros(2), device=device)


# -- calls -----------------------------------------------------------------------------------------


def test_numbers_that_are_known_may_be_left_out(device):
    k = axpy.specialise(factor=3.0)
    x, y = np.arange(3.0), np.zeros(3)
    k(x=x, y=y, device=device)
    np.testing.assert_array_equal(y, 3 * x)
    k.on(device)(np.float64(3.0), x, y)
    k.on(device)(3, x, y)
    np.testing.assert_array_equal(y, 9 * x)
    with pytest.raises(CallError, match="argument 'factor' is missing"):
        axpy(x=x, y=y, device=device)


def test_calls_of_other_sizes_are_refused(device):
    k = matmul.specialise(a=(None, 2, 3), b=(4, 3, 2))
    a, b, c = np.zeros((4, 2, 3)), np.zeros((4, 3, 2)), np.zeros((4, 2, 2))
    for _ in range(3):  # before and after the short way of repeated calls
        k(a, b, c, device=device)
    with pytest.raises(CallError) as caught:
        k(np.zeros((4, 3, 3)), np.zeros((5, 3, 2)), c, device=device)
    assert str(caught.value) == (
        "kernel matmul:\n"
        "  - argument 'a' has shape (4, 3, 3), and the kernel is specialised for (?, 2, 3)\n"
        "  - argument 'b' has shape (5, 3, 2), and the kernel is specialised for (4, 3, 2)"
    )


def test_another_number_of_samples_is_refused(device):
    k = axpy.specialise(samples=4)
    for _ in range(3):
        k(2.0, np.ones(4), np.ones(4), device=device)
    with pytest.raises(CallError, match=r"has 5 samples, .* for 4; samples=4 runs the first"):
        k(2.0, np.ones(5), np.ones(5), device=device)
    with pytest.raises(CallError, match=r"the call has 3 samples, .* specialised for 4$"):
        k(2.0, np.ones(3), np.ones(3), device=device)
    y = np.zeros(5)
    k(2.0, np.ones(5), y, samples=4, device=device)
    np.testing.assert_array_equal(y, [2, 2, 2, 2, 0])


def test_arrays_may_have_more_samples_than_are_run(device):
    k = axpy.specialise(x=(6,), samples=4)
    for _ in range(3):
        y = np.zeros(6)
        k(2.0, np.ones(6), y, samples=4, device=device)
        np.testing.assert_array_equal(y, [2, 2, 2, 2, 0, 0])


def test_another_number_is_refused_in_any_type(device):
    @tn.kernel
    def scaled(n: Param, x: Scalar) -> Scalar:
        return x * n

    k = scaled.specialise(n=1.5)
    x = np.ones(2)
    for given in (1, 2, 1.25, np.float32(1.25), True):
        with pytest.raises(CallError, match=r"'n' is .*, and the kernel is specialised for 1.5"):
            k(given, x, device=device)
    np.testing.assert_array_equal(k(np.float64(1.5), x, device=device), [1.5, 1.5])
    # 0.1 as a float32 is what 0.1 becomes in a kernel that takes float32.
    tenth = scaled.specialise(n=0.1)
    tenth(np.float32(0.1), np.ones(2, np.float32), device=device)


def test_steps_count(device):
    stepping = drag(steps=3).specialise(samples=5)
    regime, v = np.arange(5) % 3, np.linspace(0.1, 1, 5)
    out, expected = np.empty((2, 5))
    stepping(0.1, regime, v, out, device=device)
    drag()(0.1, regime, v, expected, device=device)
    np.testing.assert_array_equal(out, expected)
    stepping(0.1, regime, v, out, steps=2, device=device)


@pytest.mark.parametrize("policy", ["switch", "predicated", "segmented", "auto"])
def test_policies_and_counters(device, policy):
    whole = drag(policy)
    k = whole.specialise(dt=0.1, samples=3000)
    rng = np.random.default_rng(5)
    regime, v = rng.integers(0, 3, 3000), rng.normal(size=3000)
    out, expected = np.empty((2, 3000))
    mix, expected_mix = np.zeros((2, 3), np.uint32)
    for _ in range(6):
        k(0.1, regime, v, out, device=device)
    np.testing.assert_array_equal(k(0.1, regime, v, out, dispatch0_mix=mix, device=device), None)
    whole(0.1, regime, v, expected, dispatch0_mix=expected_mix, device=device)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(mix, expected_mix)
    with pytest.raises(CallError, match=r"'dt' is 0.2, and the kernel is specialised for 0.1"):
        k(0.2, regime, v, out, device=device)
    assert k.dispatch_entries()[0]["policy"] == policy


def test_a_class_that_is_known_stays_a_dispatch(device):
    @tn.kernel
    def law(regime: Param[i64], v: Scalar) -> Scalar:
        return tm.dispatch(regime, [v, v * v, -v], policy="auto")

    k = law.specialise(regime=1)
    resolved = tn.resolve_dispatch(k, {"dispatch0": "switch"})
    assert resolved.sizes == k.sizes
    mix = np.zeros(3, np.uint32)
    x = np.arange(3.0)
    np.testing.assert_array_equal(resolved(1, x, dispatch0_mix=mix, device=device), x * x)
    np.testing.assert_array_equal(mix, [0, 3, 0])


def test_units_by_hand_are_for_all_sizes():
    segmented = drag("segmented")
    with pytest.raises(KernelError, match="takes kernels for all sizes, and drag is specialised"):
        tn.dispatch_units(segmented.specialise(dt=0.1))
    with pytest.raises(KernelError, match="drag__k0 is a unit of dispatch_units"):
        tn.dispatch_units(segmented)["drag__k0"].specialise(samples=3)


# -- what is asked for -----------------------------------------------------------------------------


def test_the_same_sizes_give_the_same_kernel():
    k = axpy.specialise(factor=1.0, samples=8)
    assert axpy.specialise(samples=8, factor=1.0) is k
    assert tn.specialise(axpy, factor=1.0, samples=8) is k
    assert tn.specialize(axpy, factor=1.0, samples=8) is k
    assert axpy.specialize(factor=1.0, samples=8) is k
    assert axpy.specialise(factor=1, samples=8) is not k
    assert axpy.specialise(x=(8,), y=(8,), factor=1.0).sizes.samples == 8


def test_kernels_for_many_sizes_make_room():
    made = [axpy.specialise(samples=n) for n in range(1, 300)]
    assert axpy.specialise(samples=299) is made[-1]
    assert axpy.specialise(samples=1) is not made[0]
    assert len(axpy._specialised) == 256
    del made
    gc.collect()


def test_sizes_are_asked_for_one_after_the_other():
    k = matmul.specialise(a=(None, 2, 3)).specialise(a=(5, None, None), b=(5, 3, 2))
    assert dict(k.sizes.shapes) == {"a": (5, 2, 3), "b": (5, 3, 2)}
    with pytest.raises(KernelError, match=r"is specialised for a=\(5, 2, 3\) already"):
        k.specialise(a=(5, 2, 4))
    k = axpy.specialise(factor=1.0, samples=3)
    with pytest.raises(KernelError) as caught:
        k.specialise(factor=2.0, samples=4)
    assert str(caught.value) == (
        "specialise(axpy):\n"
        "  - it is specialised for factor=1.0 already\n"
        "  - it is specialised for samples=3 already"
    )


def test_all_problems_are_in_one_error():
    with pytest.raises(KernelError) as caught:
        matmul.specialise(a=(2, 3), b=(-1, 2, 3), c=4, d=(1,), samples=3)
    assert str(caught.value) == (
        "specialise(matmul):\n"
        "  - argument 'a' is an array (NDArray[f64, 3]): its shape has 3 lengths, given is (2, 3)\n"
        "  - argument 'b' is an array (NDArray[f64, 3]): -1 in (-1, 2, 3) is no length; give whole "
        "numbers of at least 0, and None for a length that stays open\n"
        "  - argument 'c' is an array (NDArray[f64, 3]): give its shape, such as (64, 64, 64), not "
        "4\n"
        "  - unknown argument 'd'; its parameters are a, b, c\n"
        "  - samples= is for the per-sample form, and this is of the array form"
    )


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, "give shapes or numbers by parameter, or samples="),
        ({"factor": (3,)}, "argument 'factor' is of type tuple"),
        ({"factor": np.ones(3)}, "argument 'factor' is an array; give a number"),
        ({"factor": "x"}, "argument 'factor' is the str 'x'"),
        ({"factor": 10**400}, "which does not fit into int64"),
        ({"samples": -1}, "samples=-1: give a whole number of at least 0"),
        ({"samples": 1.5}, "samples=1.5: give a whole number of at least 0"),
        ({"samples": True}, "samples=True: give a whole number of at least 0"),
        ({"x": (1.5,)}, r"1.5 in \(1.5,\) is no length"),
        ({"x": (True,)}, r"True in \(True,\) is no length"),
        ({"x": 8}, r"give its shape, such as \(64,\), not 8"),
        ({"x": (8,), "y": (9,)}, "must have one number of samples: 'x' has 8, 'y' has 9"),
        ({"x": (8,), "samples": 9}, "'x' has 8 samples, but samples=9 are to run"),
    ],
)
def test_wrong_sizes(sizes, message):
    with pytest.raises(KernelError, match=message):
        axpy.specialise(**sizes)


def test_numbers_must_fit_their_parameters():
    @tn.kernel
    def f(n: Param[i32], p: Vector[3]) -> Scalar:
        return p[0] * n

    with pytest.raises(KernelError, match=r"argument 'n' is the float 1.5; .*a whole number"):
        f.specialise(n=1.5)
    with pytest.raises(KernelError, match="argument 'n' is 2147483648, which does not fit"):
        f.specialise(n=2**31)
    with pytest.raises(KernelError, match=r"its shape is \(3, samples\), given is \(4, 8\)"):
        f.specialise(p=(4, 8))


def test_only_kernels_are_specialised():
    with pytest.raises(KernelError, match=r"specialise takes a kernel .*, not function"):
        tn.specialise(lambda: None, samples=3)


def test_text():
    k = matmul.specialise(a=(None, 3, 3))
    assert repr(k).startswith("<turnout.kernel matmul[a=(None, 3, 3)](a: NDArray[f64, 3]")
    assert k.__name__ == "matmul"
    assert k.sizes.name == "a=?x3x3"


# -- with the rest of turnout ----------------------------------------------------------------------


def test_pickles_and_copies():
    k = axpy.specialise(factor=np.float32(0.5), samples=3)
    loaded = pickle.loads(pickle.dumps(k))
    assert loaded.sizes == k.sizes
    assert loaded is pickle.loads(pickle.dumps(k))
    assert type(dict(loaded.sizes.scalars)["factor"]) is np.float32
    assert copy.deepcopy(k) is k
    assert k.definition.digest != axpy.definition.digest
    y = np.zeros(3)
    loaded(x=np.arange(3.0), y=y)
    np.testing.assert_array_equal(y, [0, 0.5, 1])


def test_constants_devices_and_sizes_go_together(device):
    text = "def k(x: Scalar, n: Param[i64]) -> Scalar:\n    return x * n * width\n"
    function = function_from(text, width=2)
    k = tn.kernel(function).specialise(n=3)
    wide = k.with_constants(width=10).on(device)
    assert wide.sizes == k.sizes
    np.testing.assert_array_equal(wide(np.ones(2), 3), [30, 30])
    np.testing.assert_array_equal(wide(np.ones(2)), [30, 30])


def test_derivatives(device):
    k = drag("switch")
    rng = np.random.default_rng(7)
    regime, v, seed = rng.integers(0, 3, 20), rng.normal(size=20), rng.normal(size=20)
    for wrt in (None, "v", "dt"):
        whole = tn.vjp(k, wrt=wrt)
        of_sizes = tn.vjp(k.specialise(dt=0.1, samples=20), wrt=wrt)
        later = tn.vjp(k, wrt=wrt).specialise(dt=0.1, samples=20)
        assert of_sizes.sizes == later.sizes
        names = [name for name in whole.__signature__.parameters if name in ("bar_v", "bar_dt")]
        results = []
        for each in (whole, of_sizes, later, pickle.loads(pickle.dumps(of_sizes))):
            found = {name: np.empty(20) for name in names}
            each(dt=0.1, regime=regime, v=v, bar_v_new=seed, **found, device=device)
            results.append(found)
        for found in results[1:]:
            for name in names:
                np.testing.assert_array_equal(found[name], results[0][name])
        with pytest.raises(CallError, match=r"'dt' is 0.2, and the kernel is specialised for 0.1"):
            of_sizes(dt=0.2, regime=regime, v=v, bar_v_new=seed, **found, device=device)


def test_derivatives_of_loops_that_are_written_out(device):
    @tn.kernel
    def poly(c: NDArray[f64, 1], x: Scalar) -> Scalar:
        total = 0.0
        for n in range(c.shape[0]):
            total = total * x + c[n]
        return total

    c, x, seed = np.array([1.0, -2.0, 3.0, 0.5]), np.linspace(-1, 1, 9), np.ones(9)
    gradients = []
    for k in (poly, poly.specialise(c=(4,))):
        bar_c, bar_x = np.zeros(4), np.empty(9)
        tn.vjp(k)(c=c, x=x, bar_out=seed, bar_c=bar_c, bar_x=bar_x, device=device)
        gradients.append((bar_c, bar_x))
    np.testing.assert_array_equal(gradients[0][1], gradients[1][1])
    np.testing.assert_allclose(gradients[0][0], gradients[1][0], rtol=1e-14)
    np.testing.assert_allclose(gradients[0][1], np.polyval(np.polyder(np.poly1d(c)), x))


def test_operations_choose_by_size(monkeypatch):
    @tn.perf_dispatch
    def filtered(x, h, y): ...

    filtered.register(fir)
    filtered.register(fir.specialise(h=(3,)))
    filtered.register(fir.specialise(h=(4,), y=(7,)), is_compatible=lambda x, h, y: h[0] > 0)
    filtered.register(name="own")(fir.specialise(h=(5,)))
    x = np.arange(10.0)
    for taps in (3, 4, 5, 6):
        h = np.ones(taps)
        y, expected = np.empty((2, 11 - taps))
        for _ in range(20):
            filtered(x, h, y)
        fir(x, h, expected)
        np.testing.assert_array_equal(y, expected)
    answers = str(filtered.explain(x, np.ones(3), np.empty(8)))
    assert "fir[h=4,y=7]" in answers
    assert "argument 'h' has shape (3,), and the kernel is specialised for (4,)" in answers
    assert "argument 'h' has shape (3,), and the kernel is specialised for (5,)" in answers
    refused = str(filtered.explain(x, -np.ones(4), np.empty(7)))
    assert "is_compatible returned" in refused
    monkeypatch.setenv("TURNOUT_PERFDISPATCH_FORCE", "filtered:fir[h=4,y=7]")

    @tn.perf_dispatch(get_geometry_hash=lambda x, h, y: h.shape)
    def filtered(x, h, y): ...

    filtered.register(fir)
    filtered.register(fir.specialise(h=(4,), y=(7,)))
    filtered(x, np.ones(4), np.empty(7))
    assert "forced" in str(filtered.explain(x, np.ones(4), np.empty(7)))


def test_whether_a_call_fits():
    k = axpy.specialise(factor=2.0, samples=3)
    x = np.zeros(3)
    assert k.fits(2.0, x, x) is True
    assert k.fits(x=x, y=x) is True
    assert k.fits(2.0, np.zeros(4), x) == (
        "argument 'x' has shape (4,), and the kernel is specialised for (3,)"
    )
    assert k.fits(3.0, x, x) == "argument 'factor' is 3.0, and the kernel is specialised for 2.0"
    assert k.fits("2", x, x) == "argument 'factor' is 2, and the kernel is specialised for 2.0"
    assert k.fits(2.0, [1, 2, 3], x) == (
        "argument 'x' has list, and the kernel is specialised for (3,)"
    )
    assert axpy.fits(2.0, x, x) is True


def test_float32_numbers():
    @tn.kernel
    def f(x: Scalar[f32], y: Param[f32]) -> Scalar[f32]:
        return x * (y / 3)

    x = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(f.specialise(y=0.1)(x, 0.1), f(x, 0.1))
