"""Counters that each thread keeps for itself until a launch is done."""

from collections.abc import Iterator

import numpy as np
import pytest

import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, NDArray, Scalar, Terminated, f64, i64, u8, u32

POLICY = "switch"


@pytest.fixture(params=[1, 2], ids=["one-thread", "two-threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = tn.num_threads()
    tn.set_num_threads(request.param)
    yield request.param
    tn.set_num_threads(before)


def times_taken(kind: np.ndarray, classes: int) -> np.ndarray:
    return np.bincount(np.clip(kind, 0, classes - 1).astype(np.int64), minlength=classes)


@tn.kernel
def three_laws(kind: Index, v: Scalar, out: Mutable[Scalar]):
    out = tm.dispatch(
        kind, [0.1 * v, v * abs(v), v * tm.exp(-v * v) * tm.sin(v) * tm.cos(v)], policy=POLICY
    )


@tn.kernel
def cheap_laws(kind: Index, v: Scalar, out: Mutable[Scalar]):
    out = tm.dispatch(kind, [0.1 * v, v * abs(v), v + 1], policy=POLICY)


@tn.kernel
def two_groups(kind: Index, other: Index, v: Scalar, out: Mutable[Scalar]):
    a = tm.dispatch(kind, [v, v * tm.exp(-v * v) * tm.sin(v) * tm.cos(v), 2 * v], policy=POLICY)
    inner = tm.dispatch(other, [v, tm.exp(v) * tm.sin(v) * tm.cos(v) * tm.exp(-v)], policy=POLICY)
    out = a + tm.dispatch(kind + other, [a, inner, a * inner, 3 * v], policy=POLICY)


@tn.kernel
def unless_done(done: Terminated, kind: Index, v: Scalar, out: Mutable[Scalar]):
    out = tm.dispatch(kind, [v, tm.exp(v), tm.sin(v)], policy=POLICY)


@tn.kernel
def in_a_loop(kind: Index, v: Mutable[Scalar]):
    for k in range(3):
        if v > 0.5:
            v = tm.dispatch(kind + k, [v, tm.exp(v), tm.sin(v), v - 1], policy=POLICY)


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 10_007, 300_001])
@pytest.mark.parametrize("policy", ["switch", "predicated", "segmented"])
@pytest.mark.parametrize("kernel", [three_laws, cheap_laws])
def test_counts_are_those_of_bincount(kernel, policy: str, n: int, threads: int) -> None:
    random = np.random.default_rng(n)
    v, out = random.normal(size=n), np.empty(n)
    made = kernel.with_constants(POLICY=policy)
    for rare in (0.5, 0.01, 0.0):
        kind = np.where(random.random(n) < rare, 2, random.integers(-3, 2, n))
        mix = np.array([7, 0, 2**32 - 5], np.uint32)
        expected = (mix + times_taken(kind, 3)).astype(np.uint32)
        made(kind, v, out, dispatch0_mix=mix)
        assert mix.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("policy", ["switch", "predicated"])
def test_every_integer_is_counted_as_it_is_clamped(policy: str, dtype: str) -> None:
    pinned = {"i": {1: tn.i8, 2: tn.i16, 4: tn.i32, 8: tn.i64}, "u": {1: tn.u8, 2: tn.u16}}
    pinned["u"] |= {4: tn.u32, 8: tn.u64}
    number = pinned[dtype[0]][int(dtype[1])]

    @tn.kernel
    def law(kind: Index[number], v: Scalar, out: Mutable[Scalar]):
        out = tm.dispatch(kind, [v, tm.exp(v), tm.sin(v)], policy=POLICY)

    limits = np.iinfo(dtype)
    kind = np.array([limits.min, limits.max, 0, 1, 2, 3, limits.max - 1] * 9, dtype)
    classes = np.minimum(kind, 2) if dtype[0] == "u" else np.clip(kind, 0, 2)
    v, mix = np.linspace(-1, 1, kind.size), np.zeros(3, np.uint32)
    law.with_constants(POLICY=policy)(kind, v, np.empty_like(v), dispatch0_mix=mix)
    assert mix.tolist() == np.bincount(classes.astype(np.int64), minlength=3).tolist()


@pytest.mark.parametrize("rare", [0.3, 0.01])
@pytest.mark.parametrize("policy", ["switch", "predicated"])
def test_positions_that_wait_are_counted_once(policy: str, rare: float, threads: int) -> None:
    random = np.random.default_rng(3)
    n = 200_003
    kind = np.where(random.random(n) < rare, 1, random.integers(0, 2, n) * 2)
    other = (random.random(n) < rare).astype(np.int64)
    v, out, plain = random.normal(size=n), np.empty(n), np.empty(n)
    made = two_groups.with_constants(POLICY=policy)
    mixes = {f"dispatch{k}_mix": np.zeros(c, np.uint32) for k, c in enumerate((3, 2, 4))}
    made(kind, other, v, out, **mixes)
    made(kind, other, v, plain)
    assert out.tobytes() == plain.tobytes()
    expected = [times_taken(kind, 3), times_taken(other, 2), times_taken(kind + other, 4)]
    assert [m.tolist() for m in mixes.values()] == [e.tolist() for e in expected]


@pytest.mark.parametrize("policy", ["switch", "predicated", "segmented"])
def test_what_a_mask_skips_is_not_counted(policy: str, threads: int) -> None:
    random = np.random.default_rng(5)
    n = 100_003
    kind, done = random.integers(0, 3, n), random.random(n) < 0.3
    mix = np.zeros(3, np.uint32)
    made = unless_done.with_constants(POLICY=policy)
    made(done, kind, random.normal(size=n), np.zeros(n), dispatch0_mix=mix)
    assert mix.tolist() == times_taken(kind[~done], 3).tolist()


@pytest.mark.parametrize("policy", ["switch", "predicated"])
def test_rounds_of_loops_are_counted_each(policy: str, threads: int) -> None:
    random = np.random.default_rng(6)
    n = 100_003
    kind, v = random.integers(-2, 3, n), random.normal(size=n)
    mix, expected, state = np.zeros(4, np.uint32), np.zeros(4, np.int64), v.copy()
    for k in range(3):
        live = state > 0.5
        number = np.clip(kind[live] + k, 0, 3)
        expected += times_taken(number, 4)
        one = np.choose(
            number, [state[live], np.exp(state[live]), np.sin(state[live]), state[live] - 1]
        )
        state[live] = one
    in_a_loop.with_constants(POLICY=policy)(kind, v, dispatch0_mix=mix)
    np.testing.assert_allclose(v, state, rtol=1e-12, atol=1e-12)
    assert mix.tolist() == expected.tolist()


@tn.kernel
def few_bins(x: NDArray[i64, 1], bins: NDArray[u8, 1], wide: NDArray[i64, 1]):
    for i in tn.parallel(range(x.shape[0])):
        bins[min(x[i], 3)] += 1
        wide[min(x[i], 7)] += 1


def test_few_bins_are_counted_and_no_others_touched(threads: int) -> None:
    random = np.random.default_rng(7)
    x = random.integers(0, 3, 500_003)
    # Shorter than what the kernel allows for, as long as nothing is counted there.
    memory, wide = np.full(5, 9, np.uint8), np.full(8, 2**40, np.int64)
    few_bins(x, memory[:3], wide)
    expected = np.bincount(x, minlength=8)
    assert memory[:3].tolist() == ((expected[:3] + 9) % 256).tolist()
    assert memory[3:].tolist() == [9, 9]
    assert wide.tolist() == (expected + 2**40).tolist()


@tn.kernel
def steep_bins(x: NDArray[f64, 1], y: NDArray[f64, 1], bins: NDArray[u32, 1]):
    for i in tn.parallel(range(x.shape[0])):
        if x[i] > 0:
            y[i] = tm.exp(x[i])
            bins[1] += 1
        else:
            bins[0] += 1


def test_elements_that_are_not_aligned_are_counted_too(threads: int) -> None:
    x = np.random.default_rng(8).normal(size=400_001)
    memory = np.zeros(13, np.uint8)
    bins = memory[1:9].view(np.uint32)
    assert not bins.flags.aligned
    for _ in range(4):
        steep_bins(x, np.zeros_like(x), bins)
    assert bins.tolist() == [4 * (x <= 0).sum(), 4 * (x > 0).sum()]
    assert memory[[0, *range(9, 13)]].tolist() == [0] * 5
