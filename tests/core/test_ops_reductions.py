"""Sums, extremes and cumulative sums of `turnout.ops`: right along any axis, clear errors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operations_support import FLOATS, layouts, numbers

import turnout as tn

SUMS = ("sum", "cumsum")
EXTREMES = ("max", "min", "argmax", "argmin")
DTYPES = ("float32", "float64", "int8", "int64", "uint32", "uint64")
SHAPES = ((7,), (5000,), (2, 33), (40, 1), (3, 5, 4), (2, 1, 1, 35))


@pytest.fixture(autouse=True)
def fresh_operations() -> Iterator[None]:
    yield
    for name in (*SUMS, *EXTREMES):
        getattr(tn.ops, name).reset()


def runs(name: str, a: Any, axis: int | None = None) -> Iterator[Any]:
    """The operation by each implementation that takes these arguments."""
    operation = getattr(tn.ops, name)
    explained = operation.explain(a, axis).implementations
    names = [each.name for each in explained if not each.refusal]
    assert "numpy" in names
    for implementation in names:
        with operation.force(implementation):
            yield operation


def axes(shape: tuple[int, ...]) -> list[int | None]:
    return [None, *range(len(shape)), -1]


def assert_sums(found: Any, a: Any, axis: int | None, cumulative: bool) -> None:
    """Integers exactly; floats within n roundings of the sum of the magnitudes."""
    add = np.cumsum if cumulative else np.sum
    expected = add(a, axis=axis)
    assert np.shape(found) == np.shape(expected)
    assert np.asarray(found).dtype == expected.dtype
    if a.dtype.kind != "f":
        assert np.array_equal(found, expected)
        return
    exact = add(np.longdouble(a), axis=axis)
    magnitude = add(np.abs(np.longdouble(a)), axis=axis)
    terms = a.size if axis is None else a.shape[axis]
    unit = np.longdouble(np.finfo(a.dtype).eps) / 2 + terms * np.finfo(np.longdouble).eps
    assert np.all(np.abs(found - exact) <= terms * unit * magnitude)


def any_numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    if dtype in FLOATS:
        return numbers(random, shape, dtype)
    about = np.iinfo(dtype)
    return random.integers(about.min, about.max, shape, dtype, endpoint=True)


# -- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SUMS)
def test_sums(device: str, name: str, dtype: str) -> None:
    with tn.use(device):
        for shape in SHAPES:
            a = any_numbers(shape, dtype)
            for axis in axes(shape):
                for run in runs(name, a, axis):
                    assert_sums(run(a, axis), a, axis, name == "cumsum")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EXTREMES)
def test_extremes(device: str, name: str, dtype: str) -> None:
    expected_of = getattr(np, name)
    with tn.use(device):
        for shape in SHAPES:
            a = any_numbers(shape, dtype)
            for axis in axes(shape):
                expected = expected_of(a, axis=axis)
                for run in runs(name, a, axis):
                    found = run(a, axis)
                    assert type(found) is type(expected)
                    assert found.dtype == expected.dtype
                    assert np.array_equal(found, expected)


@settings(deadline=None)
@given(data=st.data())
def test_any_shape(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 70), min_size=1, max_size=3)))
    axis = data.draw(st.sampled_from(axes(shape)))
    dtype = data.draw(st.sampled_from(DTYPES))
    a = any_numbers(shape, dtype, data.draw(st.integers(0, 9)))
    is_empty = a.size == 0 if axis is None else shape[axis] == 0
    for name in (*SUMS, *EXTREMES):
        if name in EXTREMES and is_empty:
            with pytest.raises(tn.CallError, match=f"{name}: .* there is no element"):
                getattr(tn.ops, name)(a, axis)
            continue
        for run in runs(name, a, axis):
            if name in SUMS:
                assert_sums(run(a, axis), a, axis, name == "cumsum")
            else:
                assert np.array_equal(run(a, axis), getattr(np, name)(a, axis=axis))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", EXTREMES)
def test_the_first_nan_is_the_extreme(device: str, name: str, dtype: str) -> None:
    with tn.use(device):
        for length, places in itertools.product((3, 40), ((0,), (1, 2), (2,), ())):
            a = any_numbers((2, length, 3), dtype)
            a[0, places, :] = np.nan
            a[1, length - 1, 1] = np.inf
            a[1, 0, 2] = -np.inf
            for view in (a, np.ascontiguousarray(a.swapaxes(1, 2)), a.ravel()):
                for axis in axes(view.shape):
                    expected = getattr(np, name)(view, axis=axis)
                    for run in runs(name, view, axis):
                        assert np.array_equal(run(view, axis), expected, equal_nan=True)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_of_equal_elements_the_first_counts(device: str, name: str) -> None:
    a = np.array([[1, 3, 3, 1] * 9, [0, 0, 0, 0] * 9], np.int32)
    zeros = np.array([[0.0, -0.0] * 20])
    with tn.use(device):
        for array, axis in itertools.product((a, a.T.copy(), a.ravel(), zeros), (None, 0)):
            for run in runs(name, array, axis):
                assert np.array_equal(run(array, axis), getattr(np, name)(array, axis=axis))


@pytest.mark.parametrize("name", [*SUMS, *EXTREMES])
def test_inputs_and_outputs_of_any_layout(device: str, name: str) -> None:
    a = np.random.default_rng(3).integers(-9, 9, (4, 6)).astype(float)
    with tn.use(device):
        for own, axis in itertools.product(layouts(a), (None, 0, 1)):
            expected = getattr(np, name)(a, axis=axis)
            for run in runs(name, own, axis):
                assert np.array_equal(run(own, axis), expected)
                zeros = np.zeros(expected.shape, expected.dtype)
                for out in layouts(zeros) if zeros.ndim else [zeros]:
                    assert run(own, axis, out) is out
                    assert np.array_equal(out, expected)


def test_out_may_be_of_another_width_and_share_memory(device: str) -> None:
    a = np.arange(12.0).reshape(3, 4)
    with tn.use(device):
        for run in runs("sum", a, 0):
            single = np.zeros(4, np.float32)
            run(a, 0, out=single)
            assert single.tolist() == [12, 15, 18, 21]
        for run in runs("max", a, 1):
            used = a.copy()
            run(used, 1, out=used[:, 0])
            assert used[:, 0].tolist() == [3, 7, 11]
        for run in runs("cumsum", a, 1):
            used = a.copy()
            run(used, 1, out=used)
            assert np.array_equal(used, np.cumsum(a, axis=1))
            run(used[::-1], 0, out=used)
            assert np.array_equal(used, np.cumsum(np.cumsum(a, axis=1)[::-1], axis=0))


def test_scalars_and_empty_arrays(device: str) -> None:
    with tn.use(device):
        for run in runs("sum", np.array(2.5)):
            assert run(np.array(2.5)) == 2.5
        for run in runs("argmax", np.array(2.5)):
            assert run(np.array(2.5)) == 0
        for run in runs("cumsum", np.array(2.5)):
            assert run(np.array(2.5)).tolist() == [2.5]
        empty = np.zeros((0, 3))
        for run in runs("sum", empty):
            assert run(empty) == 0
        for run in runs("sum", empty, 0):
            assert run(empty, 0).tolist() == [0, 0, 0]
        for run in runs("max", empty, 1):
            assert run(empty, 1).shape == (0,)


def test_one_answer_for_any_number_of_threads(device: str) -> None:
    a = any_numbers((300_007,), "float32")
    before = tn.num_threads()
    try:
        with tn.use(device):
            for run in runs("sum", a):
                found = set()
                for count in (1, 2, 3):
                    tn.set_num_threads(count)
                    found.add(run(a).tobytes())
                assert len(found) == 1
    finally:
        tn.set_num_threads(before)


def test_an_axis_is_part_of_the_geometry() -> None:
    a = np.arange(6.0).reshape(2, 3)
    for _ in range(40):  # decided meanwhile
        assert tn.ops.sum(a, 0).tolist() == [3, 5, 7]
        assert tn.ops.sum(a, axis=1).tolist() == [3, 12]
        assert tn.ops.sum(a) == 15


# -- errors ---------------------------------------------------------------------------------------

A = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("sum", ([1.0],), "sum: a must be an array, not list: convert it with numpy.asarray"),
        ("sum", (A, 2), "sum: axis must be None for all elements, or an axis from -2 to 1 of a"),
        ("sum", (A, (0, 1)), "not (0, 1)"),
        ("sum", (A, True), "not True"),
        ("sum", (A, 1.0), "not 1.0"),
        ("sum", (np.array(1.0), 0), "None for all elements of a, which has the shape (); not 0"),
        ("sum", (A.astype(complex),), "sum: a has elements of type complex128: give one of"),
        ("sum", (A > 1,), "sum: a has elements of type bool: give one of"),
        ("sum", (A, 0, np.zeros(2)), "sum: out must be an array like the result, float64 of"),
        ("sum", (A, 0, np.zeros(3, int)), "float64 of shape (3,), not int64 of shape (3,)"),
        ("argmax", (A, 0, np.zeros(2, int)), "argmax: out must be an array like the result, int64"),
        ("cumsum", (A, None, np.zeros((2, 3))), "cumsum: out must be an array like the result"),
        ("cumsum", (A, 0, np.broadcast_to(0.0, (2, 3))), "cumsum: out is read-only"),
        ("max", (np.zeros((0, 3)),), "max: a has the shape (0, 3), so there is no element to find"),
        ("argmin", (np.zeros((3, 0)), 1), "so there is no element along axis 1 to find"),
    ],
)
def test_errors(name: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(tn.CallError) as caught:
        getattr(tn.ops, name)(*arguments)
    assert message in str(caught.value)
