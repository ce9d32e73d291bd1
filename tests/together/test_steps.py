"""Several steps in one launch give the bits of as many launches, on each backend."""

import numpy as np
import pytest

import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, NDArray, Param, Scalar, Terminated, Vector, f32

from .devices import DEVICES

POLICY = "switch"


@tn.kernel
def by_speed(
    cut: Param, done: Terminated, regime: Mutable[Index], v: Mutable[Scalar], w: Mutable[Vector[2]],
    table: NDArray[f32, 1],
) -> Scalar:  # fmt: skip
    force = tm.dispatch(regime, [-0.1 * v, w[0] + 1, v * abs(v) / 9, w[1] - v], policy=POLICY)
    w = w * 0.5 + table[tm.index(abs(v) * 10, table.shape[0])]
    v = v + 0.1 * force
    regime = tm.select(abs(v) > cut, regime + 1, regime - 1)
    return force


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("policy", ["switch", "predicated", "segmented", "auto"])
def test_steps(device: str, policy: str) -> None:
    random = np.random.default_rng(4)
    n = 1_003
    given = [
        random.random(n) < 0.2, random.integers(-2, 6, n),
        random.normal(size=n).astype(np.float32), random.normal(size=(2, n)).astype(np.float32),
        random.normal(size=37).astype(np.float32),
    ]  # fmt: skip
    made = by_speed.with_constants(POLICY=policy).on(device)

    def place(array: np.ndarray) -> object:
        return tn.array(array.copy(), device=device)

    for counters in ({}, {"dispatch0_mix": np.zeros(4, np.uint32)}):
        for steps in (1, 2, 6):
            one, several = ([place(each) for each in given] for _ in range(2))
            counts, expected = ({k: place(c) for k, c in counters.items()} for _ in range(2))
            for _ in range(steps):
                first = made(1.0, *one, **expected)
            second = made(1.0, *several, steps=steps, **counts)
            pairs = zip([*one, first, *expected.values()], [*several, second, *counts.values()],
                        strict=True)  # fmt: skip
            for ours, theirs in pairs:
                assert tn.to_numpy(ours).tobytes() == tn.to_numpy(theirs).tobytes()
