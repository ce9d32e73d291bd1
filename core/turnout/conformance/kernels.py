"""The kernels of the suite, each defined once: what a backend must be able to run.

`CONFORMANCE_KERNELS` lists them with typical arguments, also for other uses: to compile them for
devices that are not there, or to compare dispatch policies. Apart from the accuracy of math
functions they give the same bits everywhere, so they use exact operations only.
"""

# mypy: disable-error-code="valid-type,no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

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
    bool_,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u32,
    u64,
)

from .cases import Arguments, Case
from .operations import cast_cases, operation_cases

_cases: list[Case] = []


def _case(
    make_arguments: Arguments, *needs: str, name: str = "", as_python: bool = True
) -> Callable[[tn.Kernel], tn.Kernel]:
    def register(kernel: tn.Kernel) -> tn.Kernel:
        _cases.append(
            Case(name or kernel.__name__, kernel, make_arguments, needs, as_python=as_python)
        )
        return kernel

    return register


def _per_sample(
    make_planes: Callable[[np.random.Generator, int, Any], tuple[Any, ...]], as_python: bool = True
) -> Callable[[tn.Kernel], tn.Kernel]:
    """Register a kernel whose float width follows the call, in both widths."""

    def register(kernel: tn.Kernel) -> tn.Kernel:
        _case(
            lambda random, n: make_planes(random, n, np.float32),
            name=f"{kernel.__name__}_f32",
            as_python=as_python,
        )(kernel)
        _case(
            lambda random, n: make_planes(random, n, np.float64),
            "f64",
            name=f"{kernel.__name__}_f64",
            as_python=as_python,
        )(kernel)
        return kernel

    return register


def _normal(random: np.random.Generator, shape: Any, dtype: Any = np.float32) -> Any:
    return (random.normal(size=shape) * 4).astype(dtype)


def _integers(random: np.random.Generator, shape: Any, dtype: Any, low: int, high: int) -> Any:
    return random.integers(low, high, shape).astype(dtype)


# ---- per-sample form: parameters and results ---------------------------------------------------


@_per_sample(lambda r, n, t: (_normal(r, n, t), _normal(r, n, t), _normal(r, n, t)))
@tn.kernel
def multiply_add(x: Scalar, y: Scalar, z: Scalar) -> Scalar:
    return x * y + z


@_per_sample(lambda r, n, t: (0.1, _normal(r, n, t), _normal(r, n, t)), as_python=False)
@tn.kernel
def drag(dt: Param, v: Scalar, v_new: Mutable[Scalar]):
    v_new = v + dt * (-0.4 * v * abs(v))


@_per_sample(lambda r, n, t: (_normal(r, n, t), _normal(r, n, t)), as_python=False)
@tn.kernel
def spring(x: Mutable[Scalar], v: Mutable[Scalar]):
    v = v - 4 * x * 0.125
    x = x + v * 0.125


@_per_sample(lambda r, n, t: (_normal(r, n, t), _normal(r, n, t)))
@tn.kernel
def sum_and_order(x: Scalar, y: Scalar) -> tuple[Scalar, Index, Scalar]:
    if x < y:
        low, order, high = x, -1, y
    elif x == y:
        low, order, high = x, 0, y
    else:
        low, order, high = y, 1, x
    return low + high, order, low - high


@_per_sample(lambda r, n, t: (_normal(r, n, t),))
@tn.kernel
def early_returns(x: Scalar) -> Scalar:
    if x != x:
        return -1.0
    if x > 1:
        return x * x
    total = x
    for k in range(3):
        total = total * 0.5 + k
        if total > 1.5:
            return -total
    return total


@_per_sample(lambda r, n, t: (_normal(r, n, t), _normal(r, n, t), _normal(r, n, t)))
@tn.kernel
def logic(x: Scalar, y: Scalar, z: Scalar) -> Scalar:
    inside = -4 < x <= y < 8
    outside = not (x > 0 and y > 0) or z > 0
    return (x if inside else y) + (1.0 if outside else -1.0) * z


@_per_sample(lambda r, n, t: (_normal(r, (3, n), t), _normal(r, (3, n), t), _normal(r, n, t)))
@tn.kernel
def vectors(a: Vector[3], b: Vector[3], scale: Scalar) -> tuple[Vector[3], Scalar, Vector[2]]:
    normal = tm.cross(a, b)
    shifted = scale * normal - a * 0.5 + b
    return shifted, tm.dot(a, shifted) + tm.sum(b), tm.vector(shifted[0], a[2])


@_per_sample(lambda r, n, t: (_normal(r, (4, n), t), _normal(r, (4, n), t)), as_python=False)
@tn.kernel
def reflect(normal: Vector[4], velocity: Mutable[Vector[4]]):
    velocity = velocity - 2 * tm.dot(velocity, normal) * normal


@_per_sample(
    lambda r, n, t: (r.integers(0, 2, n).astype(bool), _normal(r, n, t), _normal(r, n, t)),
    as_python=False,
)
@tn.kernel
def terminated(done: Terminated, x: Scalar, out: Mutable[Scalar]):
    out = out * 0.5 + x


@_per_sample(
    lambda r, n, t: (_normal(r, n, t), _normal(r, 7).astype(np.float32)),
)
@tn.kernel
def table_lookup(x: Scalar, table: NDArray[f32, 1]) -> Scalar:
    return x + table[tm.index(x, table.shape[0])] * 2


@_case(lambda r, n: (_integers(r, n, np.int64, -9, 9), _integers(r, n, np.int32, 0, 5)))
@tn.kernel
def index_arithmetic(i: Index, k: Index[i32]) -> tuple[Index, Index[i32]]:
    return i // 3 * 10 + i % 3, k * k - 1


@_case(
    lambda r, n: (_normal(r, n), 3, 0.5, True, np.float32(1.25), np.int32(-7), 2),
    name="parameters_f32",
)
@_case(
    lambda r, n: (_normal(r, n, np.float64), 3, 0.1, False, np.float64(0.3), np.int64(1 << 40), 2),
    "f64",
    name="parameters_f64",
)
@tn.kernel
def parameters(
    x: Scalar, weak: Param, fraction: Param, flag: Param, strong: Param, whole: Param, f: Param[f32]
) -> Scalar:
    chosen = x * weak if flag else x + fraction
    return chosen * strong + x.dtype(whole) * f if False else chosen * strong + f


@_case(lambda r, n: (_normal(r, n),))
@tn.kernel
def place_in_batch(x: Scalar) -> tuple[Scalar, Index, Index]:
    return x, tm.sample_index(), tm.sample_count() - 1


# ---- per-sample form: dispatch -----------------------------------------------------------------
