"""The kernels of the suite, each defined once: what a backend must be able to run.

`CONFORMANCE_KERNELS` lists them with typical arguments, also for other uses: to compile them for
devices that are not there, or to compare dispatch policies. Apart from the accuracy of math
functions they give the same bits everywhere, so they use exact operations only.
"""

# mypy: disable-error-code="valid-type,no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    u16,
    u32,
    u64,
)

from .cases import Arguments, Case, anything
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
    return chosen * strong + f - (whole + weak)


@_case(lambda r, n: (_normal(r, n),), as_python=False)
@tn.kernel
def place_in_batch(x: Scalar) -> tuple[Scalar, Index, Index]:
    return x, tm.sample_index(), tm.sample_count() - 1


# ---- per-sample form: dispatch -----------------------------------------------------------------

POLICIES = ("switch", "predicated", "segmented", "auto")


def _dispatch_kernels(policy: str) -> dict[str, tn.Kernel]:
    """The dispatch kernels, written once, with one policy for all dispatches."""

    @tn.kernel
    def three_ways(kind: Index, x: Scalar) -> Scalar:
        return tm.dispatch(kind, [x * 2, 1 - x * x, 0.0], policy=policy)

    @tn.kernel
    def narrow_class(kind: Index[i8], x: Scalar) -> tuple[Scalar, Scalar]:
        bent = tm.dispatch(kind, [x, -x, x + 1, x * x], policy=policy, name="bend")
        pushed = tm.dispatch(kind + 1, [bent, bent - 1], policy=policy, name="push")
        return bent, pushed

    @tn.kernel
    def nested_dispatch(outer: Index, inner: Index[u32], x: Scalar) -> Scalar:
        return tm.dispatch(
            outer,
            [
                tm.dispatch(inner, [x + 1, x + 2], policy=policy),
                x * tm.dispatch(inner, [x, -x, 3 * x], policy=policy),
                -x,
            ],
            policy=policy,
        )

    @tn.kernel
    def guarded_access(kind: Index, x: Scalar, table: NDArray[f32, 1]) -> Scalar:
        # Only class 0 has an index in range, and only class 1 a loop that ends.
        place = tm.select(kind == 0, 2, 1 << 40)
        target = tm.select(kind == 1, 3, -1)
        return tm.dispatch(kind, [x + table[place], _halvings(x, target), x * 0.25], policy=policy)

    @tn.kernel
    def dispatch_in_loop(kind: Index, x: Scalar) -> Scalar:
        total = x
        for k in range(5):
            total = tm.dispatch(kind + k, [total + 1, total * 0.5, total - x], policy=policy)
        return total

    kernels = [three_ways, narrow_class, nested_dispatch, guarded_access]
    if policy != "segmented":  # a class of each sample, of which a loop has several
        kernels.append(dispatch_in_loop)
    return {kernel.__name__: kernel for kernel in kernels}


@tn.func
def _halvings(x, steps):
    value = x
    k = 0
    while k != steps:
        value = value * 0.5
        k += 1
    return value


_DISPATCH_PLANES: dict[str, Callable[[np.random.Generator, int, Any], tuple[Any, ...]]] = {
    "three_ways": lambda r, n, t: (_integers(r, n, np.int64, -1, 5), _normal(r, n, t)),
    "narrow_class": lambda r, n, t: (_integers(r, n, np.int8, -128, 128), _normal(r, n, t)),
    "nested_dispatch": lambda r, n, t: (
        _integers(r, n, np.int64, -1, 4),
        _integers(r, n, np.uint32, 0, 4),
        _normal(r, n, t),
    ),
    "guarded_access": lambda r, n, t: (
        _integers(r, n, np.int64, 0, 3),
        _normal(r, n, t),
        _normal(r, 3),
    ),
    "dispatch_in_loop": lambda r, n, t: (_integers(r, n, np.int64, -5, 3), _normal(r, n, t)),
}

DISPATCH_KERNELS = {policy: _dispatch_kernels(policy) for policy in POLICIES}
"""By policy, then by name."""

for _policy, _kernels in DISPATCH_KERNELS.items():
    for _name, _kernel in _kernels.items():
        for _width, _needs in ((np.float32, ()), (np.float64, ("f64",))):
            if _policy == "segmented" and _needs:
                continue  # many units, whose arithmetic is that of the other policies
            _case(
                lambda r, n, make=_DISPATCH_PLANES[_name], t=_width: make(r, n, t),  # type: ignore[misc]
                *_needs,
                name=f"{_name}_{_policy}_f{_width().itemsize * 8}",
                as_python=_name != "guarded_access",
            )(_kernel)


@tn.kernel
def grow(x: Mutable[Scalar]):
    x = x * 2 + 1


# ---- array form: control flow ------------------------------------------------------------------


@_case(lambda r, n: (_normal(r, n), np.zeros(n, np.float32)))
@tn.kernel
def branches(x: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
    for i in range(x.shape[0]):
        if x[i] < -2:
            out[i] = x[i] * x[i]
        elif x[i] < 2:
            y = x[i] + 1
            if i % 2 == 0:
                y = y * 2
            out[i] = y
        else:
            out[i] = -x[i]


@_case(lambda r, n: (_normal(r, (n, 5)), _normal(r, (5, 7)), np.zeros((n, 7), np.float32)))
@tn.kernel
def matrix_product(a: NDArray[f32, 2], b: NDArray[f32, 2], out: NDArray[f32, 2]) -> None:
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            total = f32(0)
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            out[i, j] = total


@_case(lambda r, n: (_normal(r, (n, 4), np.float64), _normal(r, 4, np.float64), np.zeros(n)), "f64")
@tn.kernel
def matrix_vector(a: NDArray[f64, 2], x: NDArray[f64, 1], y: NDArray[f64, 1]) -> None:
    for i in range(a.shape[0]):
        total = 0.0
        for j in range(a.shape[1]):
            total += a[i, j] * x[j]
        y[i] = total


@_case(lambda r, n: (_integers(r, n, np.int64, 1, 60), np.zeros(n, np.int32)))
@tn.kernel
def collatz(start: NDArray[i64, 1], steps: NDArray[i32, 1]) -> None:
    for i in range(start.shape[0]):
        value = start[i]
        count = i32(0)
        while value != 1:
            if value % 2 == 0:
                value = value // 2
            else:
                value = 3 * value + 1
            count += 1
        steps[i] = count


@_case(
    lambda r, n: (
        _integers(r, n, np.uint32, 0, 1 << 31),
        _integers(r, n, np.uint32, 0, 1 << 31),
        np.zeros(n, np.uint32),
    )
)
@tn.kernel
def greatest_divisor(a: NDArray[u32, 1], b: NDArray[u32, 1], out: NDArray[u32, 1]) -> None:
    for i in range(out.shape[0]):
        x = a[i]
        y = b[i]
        while y > 0:
            x, y = y, x % y
        out[i] = x


@_case(lambda r, n: (_integers(r, (n, 9), np.int32, -9, 9), np.zeros((n, 3), np.int32)))
@tn.kernel
def break_and_continue(a: NDArray[i32, 2], out: NDArray[i32, 2]) -> None:
    for i in range(a.shape[0]):
        total = i32(0)
        first = i32(-1)
        for j in range(a.shape[1]):
            if a[i, j] % 2 == 0:
                continue
            if total > 12:
                break
            for k in range(j, a.shape[1]):
                if a[i, k] > 7:
                    first = i32(k)
                    break
            total += abs(a[i, j])
        k = 0
        while True:
            k += 1
            if k * k > total:
                break
            if k > 100:
                continue
        out[i, 0] = total
        out[i, 1] = first
        out[i, 2] = i32(k)


@_case(lambda r, n: (_integers(r, n, np.int64, -4, 5), np.zeros((n, 4), np.int64)))
@tn.kernel
def ranges(bound: NDArray[i64, 1], out: NDArray[i64, 2]) -> None:
    for i in range(bound.shape[0]):
        for k in range(bound[i]):
            out[i, 0] += k + 1
        for k in range(5, bound[i], -2):
            out[i, 1] = out[i, 1] * 3 + k
        for k in range(-3, 7, 3):
            out[i, 2] += k * bound[i]
        step = bound[i] + 5
        for k in range(2, 40, step):
            out[i, 3] += k


@_case(lambda r, n: (_normal(r, n), np.zeros(n, np.float32), np.zeros(n, bool)))
@tn.kernel
def conditions(x: NDArray[f32, 1], out: NDArray[f32, 1], flags: NDArray[bool_, 1]) -> None:
    for i in range(x.shape[0]):
        near = i > 0 and x[i - 1] < x[i]
        far = i + 1 < x.shape[0] and x[i] < x[i + 1] or x[i] > 4
        flags[i] = (near ^ far) | (not near)
        out[i] = x[i] if near else -x[i] if far else 0.5


# ---- array form: memory ------------------------------------------------------------------------


@_case(lambda r, n: (_integers(r, (n, 6), np.int32, -50, 50), np.zeros((n, 6), np.int32)))
@tn.kernel
def sort_rows(a: NDArray[i32, 2], out: NDArray[i32, 2]) -> None:
    for i in range(a.shape[0]):
        row = tm.zeros(6, i32)
        for j in range(6):
            row[j] = a[i, j]
        for j in range(1, 6):
            value = row[j]
            k = j
            while k > 0 and row[k - 1] > value:
                row[k] = row[k - 1]
                k -= 1
            row[k] = value
        for j in range(6):
            out[i, j] = row[j]


@_case(lambda r, n: (_integers(r, n, np.uint8, 0, 256), np.zeros(n, np.int64)))
@tn.kernel
def local_grid(x: NDArray[u8, 1], out: NDArray[i64, 1]) -> None:
    for i in range(x.shape[0]):
        grid = tm.zeros((2, 4), u8)
        grid[i % 2, x[i] % 4] = x[i]
        total = i64(0)
        for j in range(2):
            for k in range(4):
                total += i64(grid[j, k]) * (10 * j + k)
        out[i] = total


@_case(lambda r, n: (_normal(r, n),))
@tn.kernel
def cumulative(a: NDArray[f32, 1]) -> None:
    for i in range(1, a.shape[0]):
        a[i] = a[i - 1] * 0.5 + a[i]


@_case(lambda r, n: (_normal(r, n), np.zeros(2, np.float32)))
@tn.kernel
def sums_in_order(x: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
    total = f32(0)
    product = f32(1)
    for i in tn.serial(range(x.shape[0])):
        total += x[i]
        product *= 1 + x[i] * 0.01
    out[0] = total
    out[1] = product


@_case(lambda r, n: (_integers(r, n, np.uint64, 0, 1 << 62), np.zeros(n, np.uint64)))
@tn.kernel
def generator(seeds: NDArray[u64, 1], out: NDArray[u64, 1]) -> None:
    state = u64(88172645463325252)
    for i in range(seeds.shape[0]):
        state ^= seeds[i]
        state ^= state << 13
        state ^= state >> 7
        state ^= state << 17
        out[i] = state


@_case(lambda r, n: (_normal(r, n), np.zeros(n, np.float32)))
@tn.kernel
def backwards(x: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
    n = x.shape[0]
    for i in range(n):
        out[-1 - i] = x[i]


@_case(lambda r, n: (_integers(r, n, np.int32, -99, 99), np.zeros(n, np.int32)))
@tn.kernel
def minus_first(x: NDArray[i32, 1], out: NDArray[i32, 1]) -> None:
    total = i64(0)
    for i in tn.serial(range(x.shape[0])):
        total += x[i]
    count = total * 2 + x.shape[0]
    for i in range(x.shape[0]):
        out[i] = x[i] - i32(count)
    for i in range(x.shape[0]):
        out[i] = out[i] * 3


@_case(lambda r, n: (_normal(r, (n, 3)), np.zeros((3, n), np.float32)))
@tn.kernel
def transpose(a: NDArray[f32, 2], out: NDArray[f32, 2]) -> None:
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            out[j, i] = a[i, j]


@_case(lambda r, n: (_integers(r, (n, 4, 3), np.int16, -999, 999), np.zeros((n, 4, 3), np.int16)))
@tn.kernel
def volume(a: NDArray[i16, 3], out: NDArray[i16, 3]) -> None:
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            for k in range(a.shape[2]):
                before = a[i, j - 1, k] if j > 0 else i16(0)
                out[i, j, k] = a[i, j, k] * 3 - before + i16(k)


@_case(
    lambda r, n: (
        _integers(r, n, np.int64, 0, 11),
        np.zeros(11, np.int32),
        np.zeros(11, np.uint32),
        np.zeros(11, np.int64),
        np.zeros(11, np.float32),
    )
)
@tn.kernel
def histogram(
    bins: NDArray[i64, 1],
    counts: NDArray[i32, 1],
    places: NDArray[u32, 1],
    wide: NDArray[i64, 1],
    halves: NDArray[f32, 1],
) -> None:
    for i in tn.parallel(range(bins.shape[0])):
        counts[bins[i]] += 1
        places[bins[i]] ^= u32(i)
        wide[bins[i]] -= (1 << 33) + i
        halves[bins[i]] += 0.5  # exact in any order


@_case(
    lambda r, n: (
        _integers(r, n, np.int64, 0, 7),
        np.zeros(7, np.int8),
        np.ones(7, np.uint16),
        np.full(7, -1, np.int32),
        np.zeros(7, np.uint64),
        np.zeros(7, bool),
        np.ones(7, np.float32),
        np.zeros(7, np.float64),
    ),
    "f64",
)
@tn.kernel
def shared_updates(
    bins: NDArray[i64, 1],
    differences: NDArray[i8, 1],
    products: NDArray[u16, 1],
    cleared: NDArray[i32, 1],
    marked: NDArray[u64, 1],
    flags: NDArray[bool_, 1],
    signs: NDArray[f32, 1],
    sums: NDArray[f64, 1],
) -> None:
    for i in tn.parallel(range(bins.shape[0])):
        place = bins[i]
        differences[place] -= i8(i % 100)
        products[place] *= u16(i % 500 * 2 + 1)
        cleared[place] &= ~(i32(1) << i32(i % 31))
        marked[place] |= u64(1) << u64(i % 64)
        flags[place] ^= i % 3 == 0
        signs[place] *= -1  # exact in any order, as are sums of small whole numbers
        sums[place] += i


@tn.func
def _clamped(x, low=-1, high=1):
    if x < low:
        return low
    return high if x > high else x


@tn.func
def _quotient_and_rest(a, b):
    quotient = a // b
    return quotient, a - quotient * b


@tn.func
def _row_sum(a, i):
    total = a[i, 0]
    for j in range(1, a.shape[1]):
        total += a[i, j]
    return total


@_case(lambda r, n: (_integers(r, (n, 5), np.int32, -99, 99), np.zeros((n, 3), np.int32)))
@tn.kernel
def helpers(a: NDArray[i32, 2], out: NDArray[i32, 2]) -> None:
    for i in range(a.shape[0]):
        quotient, rest = _quotient_and_rest(_row_sum(a, i), 7)
        out[i, 0] = _clamped(quotient, -10, high=10)
        out[i, 1] = _clamped(rest)
        out[i, 2] = _clamped(a[i, 0], low=-50)


@_case(
    lambda r, n: (
        _integers(r, n, np.int8, -128, 128),
        _integers(r, n, np.uint8, 0, 256),
        _integers(r, n, np.int32, -(1 << 31), 1 << 31),
        np.zeros((n, 4), np.int64),
    )
)
@tn.kernel
def promotion(a: NDArray[i8, 1], b: NDArray[u8, 1], c: NDArray[i32, 1], out: NDArray[i64, 2]):
    for i in range(a.shape[0]):
        out[i, 0] = a[i] + b[i]  # int16
        out[i, 1] = b[i] * 3 - c[i]  # uint8 wraps before it meets int32
        out[i, 2] = a[i] * 2 + i  # int8 wraps
        out[i, 3] = (a[i] + c[i]) * c[i]


@_case(lambda r, n: (_normal(r, n), np.zeros(n, np.float32), 3))
@tn.kernel
def repeated(x: NDArray[f32, 1], out: NDArray[f32, 1], rounds: Param[i64]) -> None:
    for _ in tn.serial(range(rounds)):
        for i in range(x.shape[0]):
            out[i] = out[i] * 0.5 + x[i]


# ---- reductions: `reductions.combined` has their order ------------------------------------------


@_case(
    lambda r, n: (_normal(r, n), _normal(r, n), np.zeros(4, np.float32), np.zeros(1, np.int64)),
    as_python=False,
)
@tn.kernel
def reductions(
    a: NDArray[f32, 1], b: NDArray[f32, 1], out: NDArray[f32, 1], count: NDArray[i64, 1]
) -> None:
    total = f32(0.5)
    product = f32(1)
    least = f32(np.inf)
    greatest = -f32(np.inf)
    positive = 0
    for i in range(a.shape[0]):
        total += a[i] * b[i]
        product *= 1 + a[i] * 0.01
        least = tm.minimum(least, a[i])
        greatest = tm.maximum(b[i], greatest)
        if a[i] > 0:
            positive += 1
    out[0] = total
    out[1] = product
    out[2] = least
    out[3] = greatest
    count[0] = positive


@_case(lambda r, n: (anything(r, f64, n), np.zeros(3)), "f64", as_python=False)
@tn.kernel
def reductions_of_anything(a: NDArray[f64, 1], out: NDArray[f64, 1]) -> None:
    total = 0.0
    least = np.inf
    greatest = -np.inf
    for i in range(a.shape[0]):
        if a[i] < 1e300:
            total -= a[i]
        least = tm.minimum(least, a[i])
        greatest = tm.maximum(greatest, a[i])
    out[0] = total
    out[1] = least
    out[2] = greatest


@_case(
    lambda r, n: (
        _integers(r, n, np.int32, -(1 << 31), 1 << 31),
        _integers(r, n, np.uint8, 0, 256),
        np.zeros(4, np.int64),
        np.zeros(4, np.int32),
        np.zeros(2, np.uint8),
    ),
)
@tn.kernel
def reductions_of_integers(
    a: NDArray[i32, 1],
    b: NDArray[u8, 1],
    wide: NDArray[i64, 1],
    narrow: NDArray[i32, 1],
    small: NDArray[u8, 1],
) -> None:
    total = i64(7)
    least = i64(1 << 40)
    greatest = 3
    odd = 0
    wrapped = i32(0)
    product = i32(1)
    bits = i32(-1)
    parity = i32(0)
    sum_of_bytes = u8(0)
    any_bits = u8(0)
    for i in range(a.shape[0]):
        x = a[i]
        total += i64(x) * i
        least = min(least, i64(x))
        greatest = max(greatest, i)
        wrapped -= x
        product *= x | 1
        bits &= x
        parity ^= x
        sum_of_bytes += b[i]
        any_bits |= b[i] & 18
        if x % 2 == 0:
            continue
        odd += 1
    wide[0] = total
    wide[1] = least
    wide[2] = greatest
    wide[3] = odd
    narrow[0] = wrapped
    narrow[1] = product
    narrow[2] = bits
    narrow[3] = parity
    small[0] = sum_of_bytes
    small[1] = any_bits


@_case(lambda r, n: (_normal(r, n), np.zeros(n, np.float32), np.zeros(3, bool)))
@tn.kernel
def reductions_of_bools(a: NDArray[f32, 1], b: NDArray[f32, 1], out: NDArray[bool_, 1]) -> None:
    some = False
    every = True
    odd = False
    for i in range(a.shape[0]):
        b[i] = a[i] * 2
        some |= b[i] > 5
        every &= b[i] < 7
        odd ^= b[i] > 0
    out[0] = some
    out[1] = every
    out[2] = odd


@_case(
    lambda r, n: (_normal(r, (n // 3, 9)), _normal(r, n), np.zeros(3, np.float32)),
    as_python=False,
)
@tn.kernel
def reductions_of_rows(a: NDArray[f32, 2], weights: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
    total = f32(0)
    for i in range(a.shape[0]):
        weight = weights[i]
        for j in range(a.shape[1]):
            total += a[i, j] * weight
    backwards = f32(0)
    for i in range(a.shape[0] - 1, -1, -1):
        for j in range(0, a.shape[1], 2):
            for k in range(3):
                backwards += a[i, j] * k
    ragged = f32(0)
    for i in range(a.shape[0]):
        row = f32(0)
        for j in range(i % 9):
            row += a[i, j]
        ragged = tm.maximum(ragged, row)
    out[0] = total
    out[1] = backwards
    out[2] = ragged


@_case(lambda r, n: (_normal(r, n), np.zeros(n, np.float32), 0.125), as_python=False)
@tn.kernel
def standardised(x: NDArray[f32, 1], out: NDArray[f32, 1], smallest: Param) -> None:
    n = x.shape[0]
    total = f32(0)
    for i in range(n):
        total += x[i]
    mean = total / max(n, 1)
    squares = f32(0)
    for i in tn.parallel(range(n)):
        out[i] = x[i] - mean
        squares += out[i] * out[i]
    deviation = tm.maximum(tm.sqrt(squares / max(n, 1)), smallest)
    for i in range(n):
        out[i] /= deviation


CONFORMANCE_KERNELS: tuple[Case, ...] = (*_cases, *operation_cases(), *cast_cases())
"""Every kernel of the suite; `LANGUAGE_KERNELS` are those that are written out here."""

LANGUAGE_KERNELS: tuple[Case, ...] = tuple(_cases)


# ---- kernels for single tests ------------------------------------------------------------------


@tn.kernel
def double(a: NDArray[f32, 1], b: NDArray[f32, 1]) -> None:
    for i in range(b.shape[0]):
        b[i] = a[i] * 2


@tn.kernel
def total_of_floats(a: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
    total = f32(0)
    for i in range(a.shape[0]):
        total += a[i]
    out[0] = total


@tn.kernel
def total_of_doubles(a: NDArray[f64, 1], out: NDArray[f64, 1]) -> None:
    total = 0.0
    for i in range(a.shape[0]):
        total += a[i]
    out[0] = total


@tn.kernel
def product_of_table(a: NDArray[f32, 2], out: NDArray[f32, 1]) -> None:
    product = f32(1)
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            product *= a[i, j]
    out[0] = product


@tn.kernel
def add_in_order(x: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
    for i in tn.serial(range(x.shape[0])):
        out[i] += x[i]


@tn.kernel
def combine(x: NDArray[f32, 1], y: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
    for i in range(out.shape[0]):
        out[i] = x[i] * 3 - y[i]


@tn.kernel
def combine_planes(x: NDArray[i16, 2], y: NDArray[i16, 2], out: NDArray[i16, 2]) -> None:
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = x[i, j] * 3 - y[i, j]


@tn.kernel
def affine(x: Scalar, scale: Param, out: Mutable[Scalar]):
    out = x * scale + 1


@tn.kernel
def three_point(a: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
    for i in range(1, out.shape[0] - 1):
        out[i] = a[i - 1] + a[i] + a[i + 1]


@tn.kernel
def fill(out: NDArray[i64, 1], value: Param[i64]) -> None:
    for i in range(out.shape[0]):
        out[i] = value


@tn.kernel
def step_state(state: NDArray[u32, 1], value: Param[u32]) -> None:
    for i in range(state.shape[0]):
        state[i] = state[i] * 1664525 + value


@tn.kernel
def spin(x: NDArray[f32, 1], rounds: Param[i64]) -> None:
    for i in range(x.shape[0]):
        value = x[i]
        for _ in range(rounds):
            value = value * 0.75 + 0.25
        x[i] = value


@tn.kernel(debug=True)
def gather(a: NDArray[f32, 1], places: NDArray[i64, 1], out: NDArray[f32, 1]) -> None:
    for i in range(out.shape[0]):
        out[i] = a[places[i]]


@tn.kernel
def shifted_float(x: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
    for i in range(out.shape[0]):
        out[i] = x[i] << 1


@tn.kernel
def contraction(a: Scalar, b: Scalar, c: Scalar) -> tuple[Scalar, Scalar]:
    return a * b + c, c - a * b


@tn.kernel
def association(a: Scalar, b: Scalar, c: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    return a + b - a, (a + b) + c, a * b * c


@tn.kernel
def signed_zeros(x: Scalar) -> tuple[Scalar, Scalar, Scalar, Scalar, Scalar]:
    return x + 0.0, x - 0.0, x * 0, 0.0 - x, -x


@tn.kernel
def nan_comparisons(x: Scalar, y: Scalar) -> tuple[Index, Index, Index, Scalar, Scalar]:
    return (
        tm.select(x < y, 1, 0),
        tm.select(not (x < y), 1, 0),
        tm.select(x != x, 1, 0),
        min(x, y),
        max(x, y),
    )


@tn.kernel
def scaled(x: Scalar, by: Param) -> Scalar:
    return x * by


def math_dispatch(policy: str, functions: Sequence[Any]) -> tn.Kernel:
    """One of four math functions per sample."""
    first, second, third, fourth = functions

    @tn.kernel
    def chosen(kind: Index, x: Scalar) -> Scalar:
        return tm.dispatch(kind, [first(x), second(x), third(x), fourth(x)], policy=policy)

    return chosen
