"""CuPy as an implementation of operations: here a module in its place that computes with NumPy."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import turnout as tn
from turnout.errors import CallError
from turnout.perf import PerformanceDispatcher, perf_dispatch
from turnout_cuda import linear_algebra


class Device:
    """A GPU that can be made the current one."""

    current: int | None = None

    def __init__(self, number: int) -> None:
        self.id = number
        self._before: int | None = None

    def __enter__(self) -> None:
        self._before, Device.current = Device.current, self.id

    def __exit__(self, *error: object) -> None:
        Device.current = self._before


class Array:
    """An array of the module; `there` is what it holds."""

    def __init__(self, there: Any, number: int = 0) -> None:
        self.there, self.device = np.asarray(there), Device(number)
        self.shape, self.dtype = self.there.shape, self.there.dtype

    def get(self) -> Any:
        return self.there

    def __setitem__(self, key: Any, value: Array) -> None:
        self.there[key] = value.there


def any_nan_or_greatest(a: Any, axis: int | None) -> Any:
    """As CuPy's: of several NaN the last one may be found."""
    found = np.argmax(a, axis=axis)
    if axis is None and a.dtype.kind == "f" and np.isnan(a).any():
        return np.flatnonzero(np.isnan(a))[-1]
    return found


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    module: Any = types.ModuleType("cupy")

    def on_device(function: Any) -> Any:
        def run(a: Array, b: Array, **keywords: Any) -> Array:
            assert Device.current == a.device.id == b.device.id
            out = keywords.get("out")
            if out is None:
                return Array(function(a.there, b.there), a.device.id)
            function(a.there, b.there, out=out.there)
            return out

        return run

    def reducing(function: Any) -> Any:
        def run(a: Array, axis: int | None) -> Array:
            assert Device.current == a.device.id
            return Array(np.asarray(function(a.there, axis=axis)), a.device.id)

        return run

    module.ndarray = Array
    module.sum, module.any = reducing(np.sum), reducing(np.any)
    module.argmax = reducing(any_nan_or_greatest)
    module.isnan = lambda a: Array(np.isnan(a.there), a.device.id)
    module.where = lambda mask, a, b: Array(np.where(mask.there, a.there, b.there), a.device.id)
    module.dot, module.matmul = on_device(np.dot), on_device(np.matmul)
    monkeypatch.setitem(sys.modules, "cupy", module)
    yield module
    assert Device.current is None


def product_operation() -> PerformanceDispatcher[..., Any]:
    @perf_dispatch(get_geometry_hash=lambda a, b, out: (a.shape, b.shape))
    def product(a: Any, b: Any, out: Any = None) -> Any: ...

    linear_algebra.register_matmul(product)
    return product


def test_matmul(cupy: Any) -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    product = product_operation()
    for _ in range(3):
        assert np.array_equal(product(Array(a, 1), Array(b, 1)).there, a @ b)
        out = Array(np.empty((2, 4)), 1)
        assert product(Array(a, 1), Array(b, 1), out) is out
        assert np.array_equal(out.there, a @ b)


def test_gemv_and_dot(cupy: Any) -> None:
    @perf_dispatch(get_geometry_hash=lambda a, x, out: 0)
    def gemv(a: Any, x: Any, out: Any = None) -> Any: ...

    @perf_dispatch(get_geometry_hash=lambda a, b: 0)
    def dot(a: Any, b: Any) -> Any: ...

    linear_algebra.register_gemv(gemv)
    linear_algebra.register_dot(dot)
    a, x = np.arange(6.0).reshape(2, 3), np.arange(3.0)
    assert np.array_equal(gemv(Array(a), Array(x)).there, a @ x)
    found = dot(Array(x), Array(x))
    assert found == 5.0
    assert isinstance(found, np.float64)


@pytest.mark.parametrize("name", ["sum", "argmax"])
def test_reductions(cupy: Any, name: str) -> None:
    def prototype(a: Any, axis: int | None = None, out: Any = None) -> Any: ...

    prototype.__name__ = name
    reduction = perf_dispatch(get_geometry_hash=lambda a, axis, out: (axis, out is None))(prototype)
    linear_algebra.register_reduction(reduction)
    a, expected = np.arange(6.0).reshape(2, 3), getattr(np, name)
    assert np.array_equal(reduction(Array(a, 1), 1).there, expected(a, axis=1))
    found = reduction(Array(a, 1))
    assert found == expected(a)
    assert isinstance(found, np.generic)
    out = Array(np.zeros(3), 1)
    assert reduction(Array(a, 1), 0, out) is out
    assert np.array_equal(out.there, expected(a, axis=0))


def test_the_first_nan_is_the_greatest(cupy: Any) -> None:
    @perf_dispatch(get_geometry_hash=lambda a, axis, out: 0)
    def argmax(a: Any, axis: int | None = None, out: Any = None) -> Any: ...

    linear_algebra.register_reduction(argmax)
    assert argmax(Array([0.0, np.nan, 2.0, np.nan])) == 1


def test_other_arrays_are_refused(cupy: Any) -> None:
    product = product_operation()
    with pytest.raises(CallError, match="an array is none of CuPy"):
        product(np.eye(2), Array(np.eye(2)))
    with pytest.raises(CallError, match="the arrays are on different GPUs"):
        product(Array(np.eye(2), 0), Array(np.eye(2), 1))


def test_without_cupy_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # an import would raise
    with contextlib.suppress(KeyError):
        monkeypatch.delitem(sys.modules, "cupy")
    product = product_operation()
    with pytest.raises(CallError, match="an array is none of CuPy"):
        product(np.eye(2), np.eye(2))
    assert "cupy" not in sys.modules


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    import cupy

    tn.devices("cuda")  # says what is missing
    random = np.random.default_rng(0)
    a, b = random.random((40, 30)), random.random((30, 50))
    there_a, there_b = cupy.asarray(a), cupy.asarray(b)
    for name in ("cupy", "compiled"):
        with tn.ops.matmul.force(name):
            assert np.allclose(tn.to_numpy(tn.ops.matmul(there_a, there_b)), a @ b)
            out = cupy.zeros((40, 50))
            assert tn.ops.matmul(there_a, there_b, out) is out
            assert np.allclose(tn.to_numpy(out), a @ b)
        with tn.ops.gemv.force(name):
            assert np.allclose(tn.to_numpy(tn.ops.gemv(there_a, there_b[:, 0])), a @ b[:, 0])
        with tn.ops.dot.force(name):
            assert np.isclose(tn.ops.dot(there_a[0], there_b[:, 0]), a[0] @ b[:, 0])
