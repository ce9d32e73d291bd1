"""A branch inside of a kernel, compiled in two ways that give the same bits.

python examples/drag.py
"""

import numpy as np

import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, Param, Scalar


@tn.func
def accelerations(v):
    """Drag of the three regimes: laminar, turbulent, and a costly third law."""
    return -0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)


@tn.kernel
def drag_switch(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
    a = tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)])
    v_new = v + dt * a


@tn.kernel
def drag_predicated(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
    laminar, turbulent, third = accelerations(v)
    a = tm.dispatch(regime, [laminar, turbulent, third], policy="predicated")
    v_new = v + dt * a


def main() -> None:
    random = np.random.default_rng(0)
    samples = 1_000_000
    regime = random.integers(0, 3, samples)
    v = random.normal(size=samples)
    results = []
    for kernel in (drag_switch, drag_predicated):
        v_new = np.empty_like(v)
        kernel(0.1, regime, v, v_new)  # compiles, or loads what was compiled before
        elapsed_ns = min(
            tn.timer()(lambda kernel=kernel, out=v_new: kernel(0.1, regime, v, out))
            for _ in range(10)
        )
        print(f"{kernel.__name__}: {elapsed_ns / 1e6:.2f} ms for {samples:,} samples")
        results.append(v_new)
    assert (results[0] == results[1]).all()
    print("both give the same bits")


if __name__ == "__main__":
    main()
