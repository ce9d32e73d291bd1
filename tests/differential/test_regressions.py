"""What generated kernels once got wrong, each in its smallest form."""

from __future__ import annotations

import numpy as np
import pytest

import turnout as tn
import turnout.math as tm
from turnout import Mutable, NDArray, Param, Scalar, Terminated, Vector, i64, u64

from .harness import BACKENDS
from .inputs import assert_only_outputs_changed, copied, padded

each_backend = pytest.mark.parametrize("device", BACKENDS)


@tn.kernel
def counted_component(u: Vector[3], y: Mutable[Scalar]):
    for _ in range(4):
        u[0] = u[0] + 1.0
    y = u[0]


@tn.kernel
def component_until(u: Vector[3], y: Mutable[Scalar]):
    rounds = 0
    while u[1] < 2.5 and rounds < 9:
        u[1] += 1.0
        rounds = rounds + 1
    y = u[1]


@each_backend
def test_a_component_store_in_a_loop_lasts(device: str) -> None:
    u, y = np.zeros((3, 2)), np.zeros(2)
    counted_component(u, y, device=device)
    assert y.tolist() == [4.0, 4.0]
    component_until(u, y, device=device)
    assert y.tolist() == [3.0, 3.0]


@tn.kernel
def stepped(starts: NDArray[i64, 1], stop: Param, step: Param, rounds: NDArray[i64, 1]) -> None:
    for i in range(starts.shape[0]):
        for _ in range(starts[i], stop, step):
            rounds[i] += 1
    for _ in range(0, stop, step):
        rounds[0] += 100


@each_backend
def test_a_range_with_a_step_of_0_that_is_known_at_run_time_only_is_empty(device: str) -> None:
    starts = np.array([0, 5, 9, -3])
    for stop, step, expected in (
        (7, 0, [0, 0, 0, 0]),
        (-7, 0, [0, 0, 0, 0]),
        (7, 3, [303, 1, 0, 4]),
        (0, -2, [0, 3, 5, 0]),
    ):
        rounds = np.zeros(4, np.int64)
        stepped(starts, stop, step, rounds, device=device)
        assert rounds.tolist() == expected


@tn.kernel
def indexed(x: NDArray[u64, 1], indices: NDArray[i64, 1]) -> None:
    for i in range(x.shape[0]):
        indices[i] = tm.index(x[i], 3)


@each_backend
def test_the_index_of_a_huge_unsigned_number_is_the_last(device: str) -> None:
    x = np.array([0, 2, 5, 2**63, 2**64 - 1], np.uint64)
    indices = np.zeros(5, np.int64)
    indexed(x, indices, device=device)
    assert indices.tolist() == [0, 2, 2, 2, 2]


@tn.kernel
def masked_sine(x: Scalar, y: Mutable[Scalar], done: Terminated):
    y = tm.sin(x)
    done = x > 3


@each_backend
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 7, 8, 13, 28, 63, 77, 1000])
def test_a_mask_keeps_its_samples_and_what_lies_beside(
    n: int, dtype: type[np.generic], device: str
) -> None:
    x = np.linspace(-3, 20, n).astype(dtype)
    y, done = padded((n,), np.dtype(dtype)), padded((n,), np.dtype(bool))
    y[...], done[...] = 7, np.arange(n) % 3 == 0
    given = {"x": x, "y": y, "done": done}
    used = copied(given)
    masked_sine(**used, device=device)
    assert_only_outputs_changed(given, used, ("y", "done"))
    assert np.array_equal(used["done"], done | (x > 3))
    np.testing.assert_allclose(used["y"], np.where(done, 7, np.sin(x)), rtol=1e-5)
