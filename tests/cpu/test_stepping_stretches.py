"""Stretches of positions that take their steps together, on any number of threads."""

from collections.abc import Iterator

import numpy as np
import pytest

import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, Param, Scalar
from turnout_cpu.stepping import STRETCH

POLICY = "switch"


@tn.kernel
def drag(dt: Param, regime: Index, v: Mutable[Scalar]):
    a = tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)], policy=POLICY)
    v = v + dt * a


@tn.kernel
def rotated(angle: Param, x: Mutable[Scalar], y: Mutable[Scalar]):
    x = x + angle * y
    y = y - angle * x


@pytest.fixture(params=[1, 2], ids=["one-thread", "two-threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = tn.num_threads()
    tn.set_num_threads(request.param)
    yield request.param
    tn.set_num_threads(before)


@pytest.mark.parametrize("n", [1, STRETCH - 1, STRETCH, STRETCH + 1, 200_003])
@pytest.mark.parametrize("policy", ["switch", "predicated"])
def test_every_position_takes_every_step(policy: str, n: int, threads: int) -> None:
    random = np.random.default_rng(n)
    regime, start = random.integers(-1, 4, n), random.normal(size=n)
    made = drag.with_constants(POLICY=policy)
    expected = start.copy()
    for _ in range(9):
        made(0.1, regime, expected)
    for _ in range(4):  # after the first one it is known how many threads a launch is worth
        v, mix = start.copy(), np.zeros(3, np.uint32)
        made(0.1, regime, v, steps=9)
        assert v.tobytes() == expected.tobytes()
        v = start.copy()
        made(0.1, regime, v, steps=9, dispatch0_mix=mix)
        assert v.tobytes() == expected.tobytes()
        assert mix.tolist() == (9 * np.bincount(np.clip(regime, 0, 2), minlength=3)).tolist()


def test_code_that_llvm_vectorises(threads: int) -> None:
    random = np.random.default_rng(3)
    x, y = random.normal(size=100_003), random.normal(size=100_003)
    a, b = x.copy(), y.copy()
    for _ in range(50):
        rotated(0.01, a, b)
    for _ in range(3):
        c, d = x.copy(), y.copy()
        rotated(0.01, c, d, steps=50)
        assert c.tobytes() == a.tobytes()
        assert d.tobytes() == b.tobytes()
    whole, part = np.repeat(x, 2), np.repeat(y, 3)
    rotated(0.01, whole[::2], part[::3], steps=50)
    assert np.array_equal(whole[::2], a)
    assert np.array_equal(part[1::3], y)
