"""Kernels of many kinds, for bundles that another process loads without this file."""

from __future__ import annotations

import turnout as tn
import turnout.math as tm
from turnout import (
    Index,
    Mutable,
    NDArray,
    Param,
    Scalar,
    Terminated,
    Vector,
    f64,
    i64,
)


def law(policy):
    @tn.kernel
    def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
        force = tm.dispatch(
            regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)], policy=policy
        )
        v_new = v + dt * force

    return drag


def named(kernel, name):
    """The kernel under another name, by which it can be in a bundle beside the first one."""
    function = kernel.__wrapped__
    function.__name__ = name
    return tn.Kernel(function, lines=kernel._lines)


automatic = named(law("auto"), "automatic")
switched = named(law("switch"), "switched")
predicated = named(law("predicated"), "predicated")
segmented = named(law("segmented"), "segmented")
resolved = tn.resolve_dispatch(named(law("auto"), "resolved"), {"dispatch0": "segmented"})
gradient = tn.vjp(automatic, wrt=("v", "dt"))
split_gradient = tn.vjp(switched, wrt=("v",), policy={"dispatch0": "segmented"})


@tn.kernel
def by_speed(
    dt: Param, cut: Param, slow: Index, fast: Index, v: Mutable[Scalar], regime: Mutable[Index]
):
    v = v + dt * tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v)], policy="segmented")
    regime = tm.select(abs(v) > cut, fast, slow)


@tn.kernel
def polar(x: Scalar, y: Scalar) -> tuple[Scalar, Scalar]:
    return tm.hypot(x, y), tm.atan2(y, x)


@tn.kernel
def fall(g: Param, done: Terminated, height: Mutable[Scalar], speed: Mutable[Vector[2]]):
    speed = tm.vector(speed[0], speed[1] - g)
    height = height + speed[1]
    done = height < 0.0


@tn.kernel
def looked_up(place: Index, table: NDArray[f64, 1]) -> Scalar:
    return tm.sqrt(table[tm.index(place, table.shape[0])])


@tn.kernel
def normalised(x: NDArray[f64, 2], y: NDArray[f64, 2]) -> None:
    total = 0.0
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            total += x[i, j]
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] = x[i, j] / total


@tn.kernel
def powers(n: Param, x: Scalar) -> Scalar:
    result = 1.0
    for _ in range(n):
        result = result * x
    return result


@tn.kernel(debug=True)
def checked(place: NDArray[i64, 1], x: NDArray[f64, 1]) -> None:
    for i in range(place.shape[0]):
        x[place[i]] = 1.0


@tn.kernel(steps=3)
def stepped(v: Mutable[Scalar], a: Param = 0.5):
    v = v * a + tm.sin(v)


@tn.kernel
def total(x: NDArray[f64, 1], out: NDArray[f64, 1]) -> None:
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i] * x[i]
    out[0] = s


@tn.kernel
def rows(a: NDArray[f64, 2], factor: Param, out: NDArray[f64, 1]) -> None:
    for i in range(a.shape[0]):
        s = 0.0
        for j in range(a.shape[1]):
            s += a[i, j] * factor
        out[i] = s


special = rows.specialise(a=(None, 4), factor=0.5)

KERNELS = [
    automatic,
    switched,
    predicated,
    segmented,
    resolved,
    gradient,
    split_gradient,
    by_speed,
    polar,
    fall,
    looked_up,
    normalised,
    powers,
    checked,
    stepped,
    total,
    special,
]
