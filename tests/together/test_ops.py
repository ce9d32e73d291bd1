"""Operations of `turnout.ops` on all backends: right everywhere, the same bits from kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import turnout as tn

from .devices import DEVICES

FLOATS = ("float32", "float64")
WITH_KERNELS = tuple(name for name in DEVICES if name != "cpu")
"""The CPU backend compiles operations for exact sizes itself, in another order of additions."""


def put(device: str, *arrays: Any) -> list[Any]:
    return [tn.array(array, device=device) for array in arrays]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (5, 3, 7), (33, 17, 70), (2, 3, 0)])
def test_products(dtype: str, m: int, n: int, k: int) -> None:
    random = np.random.default_rng(0)
    a = random.standard_normal((m, k)).astype(dtype)
    b = random.standard_normal((k, n)).astype(dtype)
    bits: dict[str, set[bytes]] = {}
    for device in WITH_KERNELS:
        with tn.use(device):
            there_a, there_b = put(device, a, b)
            (out,) = put(device, np.empty((m, n), dtype))
            tn.ops.compile_matmul(m, n, k, dtype)(there_a, there_b, out)
            bits.setdefault("matmul", set()).add(tn.to_numpy(out).tobytes())
            there_x, there_y = put(device, np.ascontiguousarray(b[:, 0]), a[0])
            (out,) = put(device, np.empty(m, dtype))
            tn.ops.compile_gemv(m, k, dtype)(there_a, there_x, out)
            bits.setdefault("gemv", set()).add(tn.to_numpy(out).tobytes())
            found = tn.ops.compile_dot(k, dtype)(there_x, there_y)
            bits.setdefault("dot", set()).add(found.tobytes())
    assert {name: len(each) for name, each in bits.items()} == {"matmul": 1, "gemv": 1, "dot": 1}
    product = np.frombuffer(bits["matmul"].pop(), dtype).reshape(m, n)
    bound = (k + 1) * np.finfo(dtype).eps * (np.abs(a) @ np.abs(b))
    assert np.all(np.abs(product - a.astype(np.longdouble) @ b) <= bound)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 3, 6, 11])
def test_stacks(dtype: str, n: int) -> None:
    random = np.random.default_rng(1)
    roots = random.standard_normal((20, n, n))
    stack = (roots @ roots.transpose(0, 2, 1) + n * np.eye(n)).astype(dtype)
    products, factors = set(), set()
    for device in DEVICES[1:]:  # the reference leaves NumPy's arrays to NumPy
        with tn.use(device), tn.ops.batched_matmul.force("compiled"):
            (there,) = put(device, stack)
            products.add(tn.to_numpy(tn.ops.batched_matmul(there, there)).tobytes())
            with tn.ops.batched_cholesky.force("compiled"):
                factors.add(tn.to_numpy(tn.ops.batched_cholesky(there)).tobytes())
    assert len(products) == 1
    assert len(factors) == 1
    found = np.frombuffer(factors.pop(), dtype).reshape(stack.shape)
    assert np.allclose(found, np.linalg.cholesky(stack), rtol=0, atol=100 * np.finfo(dtype).eps * n)


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
@pytest.mark.parametrize("shape", [(1,), (5000,), (7, 33), (40, 3), (3, 5, 4)])
def test_reductions(dtype: str, shape: tuple[int, ...]) -> None:
    a = (100 * np.random.default_rng(2).standard_normal(shape)).astype(dtype)
    for name in ("sum", "max", "min", "argmax", "argmin", "cumsum"):
        operation = getattr(tn.ops, name)
        for axis in (None, *range(len(shape))):
            expected = getattr(np, name)(a, axis=axis)
            found = set()
            for device in DEVICES[1:]:  # the reference leaves NumPy's arrays to NumPy
                with tn.use(device), operation.force("kernel"):
                    (there,) = put(device, a)
                    result = tn.to_numpy(operation(there, axis))
                    (out,) = put(device, np.zeros(expected.shape, expected.dtype))
                    if expected.shape:
                        operation(there, axis, out)
                        assert tn.to_numpy(out).tobytes() == result.tobytes()
                assert result.dtype == expected.dtype
                assert np.allclose(result, expected, rtol=0, atol=_error(name, a))
                found.add((device == "cpu" and name == "cumsum", result.tobytes()))
            assert len(dict(found)) == len(found)


def _error(name: str, a: Any) -> float:
    """What sums of floats may err by; all else is exact."""
    is_inexact = name in ("sum", "cumsum") and a.dtype.kind == "f"
    return 2 * a.size * float(np.finfo(a.dtype).eps) * float(np.abs(a).sum()) if is_inexact else 0
