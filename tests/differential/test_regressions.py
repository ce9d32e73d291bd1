"""What generated kernels once got wrong, each in its smallest form."""

from __future__ import annotations

import numpy as np
import pytest

import turnout as tn
import turnout.math as tm
from turnout import Mutable, NDArray, Param, Scalar, Vector, i64, u64

from .harness import BACKENDS

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
