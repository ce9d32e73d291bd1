"""Operations of `turnout.ops` on arrays of pyopencl."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl.array
import pytest

import turnout as tn
from turnout_opencl import linear_algebra

Put = Callable[[Any], Any]
SIZES = [(1, 1, 1), (5, 3, 7), (16, 16, 16), (17, 33, 40), (2, 3, 0), (70, 65, 64)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["compiled", "opencl_tiled"])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_matmul(put: Put, dtype: str, name: str, m: int, n: int, k: int) -> None:
    random = np.random.default_rng(0)
    a = random.standard_normal((m, k)).astype(dtype)
    b = random.standard_normal((k, n)).astype(dtype)
    bound = (k + 1) * np.finfo(dtype).eps * (np.abs(a) @ np.abs(b))
    there_a, there_b = put(a), put(b)
    if k == 0 and name == "opencl_tiled":
        explained = tn.ops.matmul.explain(there_a, there_b).implementations
        assert any("an array is empty" in str(each.refusal) for each in explained)
        return
    with tn.ops.matmul.force(name):
        found = tn.ops.matmul(there_a, there_b)
        assert isinstance(found, pyopencl.array.Array)
        assert np.all(np.abs(tn.to_numpy(found) - np.float64(a) @ b) <= bound)
        out = put(np.zeros((m, n), dtype))
        assert tn.ops.matmul(there_a, there_b, out) is out
        assert np.array_equal(tn.to_numpy(out), tn.to_numpy(found))


def test_a_part_of_a_buffer(put: Put) -> None:
    whole = np.arange(40.0).reshape(10, 4)
    there, b = put(whole), put(np.eye(4))
    with tn.ops.matmul.force("opencl_tiled"):
        assert np.array_equal(tn.to_numpy(tn.ops.matmul(there[3:7], b)), whole[3:7])


def test_what_the_tiled_kernel_refuses(put: Put) -> None:
    a = put(np.eye(4))
    for arguments, reason in [
        ((put(np.ones((4, 8)))[:, ::2], a, None), "row by row"),
        ((put(np.eye(4, dtype=int)), put(np.eye(4, dtype=int)), None), "all float32, or all"),
        ((np.eye(4), np.eye(4), None), "none of pyopencl"),
    ]:
        assert reason in str(linear_algebra.is_compatible(*arguments))
    with tn.ops.matmul.force("opencl_tiled"), pytest.raises(tn.CallError, match="in common with"):
        tn.ops.matmul(a, a, a)


def test_arrays_in_a_queue_of_the_user(put: Put) -> None:
    there = put(np.arange(16.0).reshape(4, 4))
    queue = pyopencl.CommandQueue(there.context)
    a = pyopencl.array.to_device(queue, np.arange(16.0).reshape(4, 4))
    with tn.ops.matmul.force("opencl_tiled"):
        found = tn.ops.matmul(a, there)
    assert found.queue == queue
    assert np.array_equal(tn.to_numpy(found), tn.to_numpy(a) @ tn.to_numpy(there))


def test_other_operations(put: Put) -> None:
    random = np.random.default_rng(1)
    a, x = random.standard_normal((5, 7)), random.standard_normal(7)
    stack = random.standard_normal((20, 6, 6))
    positive = stack @ stack.transpose(0, 2, 1) + 6 * np.eye(6)
    assert np.allclose(tn.to_numpy(tn.ops.gemv(put(a), put(x))), a @ x)
    found = tn.ops.dot(put(x), put(x))
    assert isinstance(found, np.float64)
    assert np.isclose(found, x @ x)
    assert np.allclose(tn.to_numpy(tn.ops.batched_matmul(put(stack), put(stack))), stack @ stack)
    factors = tn.ops.batched_cholesky(put(positive))
    assert np.allclose(tn.to_numpy(factors), np.linalg.cholesky(positive))
    positive[3] *= -1
    with pytest.raises(np.linalg.LinAlgError, match="Matrix is not positive definite"):
        tn.ops.batched_cholesky(put(positive))


def test_compiled_operations(put: Put) -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    with tn.use("opencl"):
        matmul = tn.ops.compile_matmul(2, 4, 3, np.float64)
    out = put(np.zeros((2, 4)))
    assert matmul(put(a), put(b), out) is out
    assert np.array_equal(tn.to_numpy(out), a @ b)
    with pytest.raises(tn.CallError, match=r"a must be float64\[2, 3\]"):
        matmul(put(b), put(b), out)


def test_host_arrays_stay_on_the_host() -> None:
    with tn.use("opencl"):
        explained = str(tn.ops.matmul.explain(np.eye(2), np.eye(2)))
        assert "the arrays are on the host, and opencl:0 has a memory of its own" in explained
        assert np.array_equal(tn.ops.matmul(np.eye(2), np.eye(2)), np.eye(2))
