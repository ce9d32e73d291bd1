"""Small sizes that are known: turnout with code for them, with code for any size, and the peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, NDArray, Param, Scalar, f64

from .cases import Case, Data
from .compare import Row, Target, Tolerance
from .measure import Budget

GROUP = "specialised"
ANY_SIZE = "any size"
BATCH = 10_000
TAPS = 16
CLOSE = Tolerance(relative=1e-9)


def for_each(kernel: tn.Kernel, sizes: Callable[..., dict]) -> Callable[..., None]:
    """A function that calls a kernel for the size of its arguments, specialised at first use."""
    made: dict[tuple[int, ...], tn.Kernel] = {}

    def call(*arguments: np.ndarray) -> None:
        key = arguments[0].shape
        if key not in made:
            made[key] = kernel.specialise(**sizes(*arguments))
        made[key](*arguments)

    return call


products = Case(
    "products",
    f"{BATCH} products of small square matrices; the size is their side",
    sizes=(3, 4, 8),
    tolerance=CLOSE,
    own_tolerance=CLOSE,
    targets={n: [Target(f"turnout {ANY_SIZE}", 2.0)] for n in (3, 4, 8)},
)


@products.data
def products_data(size: int, random: np.random.Generator) -> Data:
    a, b = random.normal(size=(2, BATCH, size, size))
    return Data((a, b), (np.empty_like(a),))


@products.expected
def products_expected(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray]:
    return (a @ b,)


@products.version("turnout", ANY_SIZE)
@tn.kernel
def matmul(a: NDArray[f64, 3], b: NDArray[f64, 3], c: NDArray[f64, 3]) -> None:
    for s in range(a.shape[0]):
        for i in range(a.shape[1]):
            for j in range(b.shape[2]):
                total = 0.0
                for k in range(a.shape[2]):
                    total += a[s, i, k] * b[s, k, j]
                c[s, i, j] = total


def inner(**arrays: np.ndarray) -> dict[str, tuple[int | None, ...]]:
    """All lengths but the first one."""
    return {name: (None, *array.shape[1:]) for name, array in arrays.items()}


products.version("turnout")(for_each(matmul, lambda a, b, c: inner(a=a, b=b, c=c)))


@products.version("NumPy")
def products_numpy(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    np.matmul(a, b, out=c)


@products.numba
def products_loops(a, b, c):
    for s in range(a.shape[0]):
        for i in range(a.shape[1]):
            for j in range(b.shape[2]):
                total = 0.0
                for k in range(a.shape[2]):
                    total += a[s, i, k] * b[s, k, j]
                c[s, i, j] = total


factors = Case(
    "cholesky",
    f"{BATCH} Cholesky factors of small matrices; the size is their side",
    sizes=(3, 4, 8),
    tolerance=CLOSE,
    own_tolerance=CLOSE,
    targets={n: [Target(f"turnout {ANY_SIZE}", 1.5)] for n in (3, 4, 8)},
)


@factors.data
def factors_data(size: int, random: np.random.Generator) -> Data:
    root = random.normal(size=(BATCH, size, size))
    return Data((root @ root.transpose(0, 2, 1) + size * np.eye(size),), (np.empty_like(root),))


@factors.expected
def factors_expected(a: np.ndarray) -> tuple[np.ndarray]:
    return (np.linalg.cholesky(a),)


@factors.version("turnout", ANY_SIZE)
@tn.kernel
def cholesky(a: NDArray[f64, 3], out: NDArray[f64, 3]) -> None:
    for s in range(a.shape[0]):
        for i in range(a.shape[1]):
            for j in range(a.shape[1]):
                total = 0.0
                if j <= i:
                    total = a[s, i, j]
                    for k in range(j):
                        total -= out[s, i, k] * out[s, j, k]
                    total = tm.sqrt(total) if i == j else total / out[s, j, j]
                out[s, i, j] = total


factors.version("turnout")(for_each(cholesky, lambda a, out: inner(a=a, out=out)))


@factors.version("NumPy")
def factors_numpy(a: np.ndarray, out: np.ndarray) -> None:
    out[...] = np.linalg.cholesky(a)


@factors.numba
def factors_loops(a, out):
    for s in range(a.shape[0]):
        for i in range(a.shape[1]):
            for j in range(a.shape[1]):
                total = 0.0
                if j <= i:
                    total = a[s, i, j]
                    for k in range(j):
                        total -= out[s, i, k] * out[s, j, k]
                    if i == j:
                        total = np.sqrt(total)
                    else:
                        total = total / out[s, j, j]
                out[s, i, j] = total


filters = Case(
    "fir",
    f"a filter of {TAPS} taps; the size is the length of the signal",
    sizes=(1000, 100_000),
    tolerance=CLOSE,
    own_tolerance=CLOSE,
    targets={n: [Target(f"turnout {ANY_SIZE}", 0.9)] for n in (1000, 100_000)},
)


@filters.data
def filters_data(size: int, random: np.random.Generator) -> Data:
    return Data((random.normal(size=size), random.normal(size=TAPS)), (np.empty(size - TAPS + 1),))


@filters.expected
def filters_expected(x: np.ndarray, h: np.ndarray) -> tuple[np.ndarray]:
    return (np.convolve(x, h[::-1], "valid"),)


@filters.version("turnout", ANY_SIZE)
@tn.kernel
def fir(x: NDArray[f64, 1], h: NDArray[f64, 1], y: NDArray[f64, 1]) -> None:
    for i in range(y.shape[0]):
        total = 0.0
        for k in range(h.shape[0]):
            total += h[k] * x[i + k]
        y[i] = total


filters.version("turnout")(fir.specialise(h=(TAPS,)))


@filters.version("NumPy")
def filters_numpy(x: np.ndarray, h: np.ndarray, y: np.ndarray) -> None:
    y[...] = np.correlate(x, h, "valid")


@filters.numba
def filters_loops(x, h, y):
    for i in range(y.shape[0]):
        total = 0.0
        for k in range(h.shape[0]):
            total += h[k] * x[i + k]
        y[i] = total


drags = Case(
    "drag",
    "drag for a known step and number of samples",
    sizes=(64,),
    tolerance=CLOSE,
    own_tolerance=Tolerance(relative=1e-14),
    targets={64: [Target(f"turnout {ANY_SIZE}", 0.9)]},
)


@drags.data
def drags_data(size: int, random: np.random.Generator) -> Data:
    return Data((0.01, random.integers(0, 3, size), random.normal(size=size)), (np.empty(size),))


@drags.expected
def drags_expected(dt: float, regime: np.ndarray, v: np.ndarray) -> tuple[np.ndarray]:
    laws = [-0.1 * v, -0.4 * v * np.abs(v), -2.0 * v * np.exp(-v * v)]
    return (v + dt * np.choose(regime, laws),)


@drags.version("turnout", ANY_SIZE)
@tn.kernel
def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]) -> None:
    a = tm.dispatch(
        regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)], policy="predicated"
    )
    v_new = v + dt * a


drags.version("turnout")(drag.specialise(dt=0.01, samples=64))


@drags.numba
def drag_loops(dt, regime, v, v_new):
    for s in range(v.size):
        if regime[s] == 0:
            a = -0.1 * v[s]
        elif regime[s] == 1:
            a = -0.4 * v[s] * abs(v[s])
        else:
            a = -2.0 * v[s] * np.exp(-v[s] * v[s])
        v_new[s] = v[s] + dt * a


def measure(budget: Budget) -> Iterator[list[Row]]:
    """All rows of the group, comparison by comparison."""
    for case in (products, factors, filters, drags):
        for size in case.sizes:
            yield case.measure(GROUP, size, budget)
