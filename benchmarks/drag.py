"""The kernel of the README over several batch sizes, on one thread and on two."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, NDArray, Param, Scalar, f64

from .cases import SEED, Case, Data
from .compare import EXACT, Arrays, Contender, Row, Target, Tolerance, compare, poison
from .measure import Budget
from .peers import hawk_function, quadrants

GROUP = "drag"
SIZES = (1, 100, 10_000, 1_000_000)
LARGEST = SIZES[-1]

PROMISED = (
    Target("Numba", 3.0),
    Target("hawk", 4.0),
    Target("hawk switch", 4.0),
    Target("NumPy", 12.0),
)
SECOND_THREAD = 1.6


# -- one kernel, in everybody's words --------------------------------------------------------------


@tn.kernel
def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
    a = tm.dispatch(
        regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)], policy="predicated"
    )
    v_new = v + dt * a


@tn.kernel
def drag_switch(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
    a = tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)])
    v_new = v + dt * a


def drag_loops(dt, regime, v, v_new):
    for i in range(v.shape[0]):
        x = v[i]
        if regime[i] <= 0:
            a = -0.1 * x
        elif regime[i] == 1:
            a = -0.4 * x * abs(x)
        else:
            a = -2.0 * x * np.exp(-x * x)
        v_new[i] = x + dt * a


def drag_loops_float32(dt, regime, v, v_new):
    # Numba's literals are float64; these keep the arithmetic in float32, as in NumPy and turnout.
    step = np.float32(dt)
    for i in range(v.shape[0]):
        x = v[i]
        if regime[i] <= 0:
            a = np.float32(-0.1) * x
        elif regime[i] == 1:
            a = np.float32(-0.4) * x * abs(x)
        else:
            a = np.float32(-2.0) * x * np.exp(-x * x)
        v_new[i] = x + step * a


def drag_numpy(dt, regime, v, v_new):
    branches = [-0.1 * v, -0.4 * v * np.abs(v), -2.0 * v * np.exp(-v * v)]
    v_new[:] = v + dt * np.choose(np.clip(regime, 0, 2), branches)


def drag_numexpr() -> Callable[..., Any]:
    import numexpr

    numexpr.set_num_threads(1)
    expression = (
        "v + dt * where(regime <= 0, -0.1 * v,"
        " where(regime == 1, -0.4 * v * abs(v), -2.0 * v * exp(-v * v)))"
    )

    def call(dt, regime, v, v_new):
        if v.dtype == np.float32:
            dt = np.float32(dt)  # a Python float would make the expression one of float64
        names = {"dt": dt, "regime": regime, "v": v}
        numexpr.evaluate(expression, names, {}, out=v_new, casting="same_kind")

    return call


def drag_quadrants(real: str) -> Callable[..., Any]:
    qd = quadrants()
    number = getattr(qd, real)
    integers, numbers = qd.types.NDArray[qd.i64, 1], qd.types.NDArray[number, 1]

    def drag(dt, regime, v, v_new):
        for i in range(v.shape[0]):
            x = v[i]
            a = number(-2.0) * x * qd.exp(-x * x)
            if regime[i] <= 0:
                a = number(-0.1) * x
            elif regime[i] == 1:
                a = number(-0.4) * x * abs(x)
            v_new[i] = x + dt * a

    # It cannot look up annotations that are text, which those of this module are.
    drag.__annotations__ = {"dt": number, "regime": integers, "v": numbers, "v_new": numbers}
    return qd.kernel(drag)


def drag_hawk(policy: str) -> Callable[..., Any]:
    import hawk
    import hawk.math as hm

    @hawk.kernel
    def drag(dt: hawk.Param, regime: hawk.Index, v: hawk.Scalar, v_new: hawk.Mutable[hawk.Scalar]):
        a = hm.dispatch(
            regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * hm.exp(-v * v)], policy=policy
        )
        v_new = v + dt * a

    run = hawk_function(drag)
    return lambda dt, regime, v, v_new: run(dt=dt, regime=regime, v=v, v_new=v_new)


# -- one thread ------------------------------------------------------------------------------------


def _arguments(size: int, random: np.random.Generator, dtype: Any) -> Data:
    regime = random.integers(0, 3, size)
    v = random.normal(size=size).astype(dtype)
    return Data((0.1, regime, v), (np.empty(size, dtype),))


def _expected(dt: float, regime: np.ndarray, v: np.ndarray) -> Arrays:
    # In float64 whatever the samples are, so that float32 is judged by more than itself.
    v_new = np.empty(v.shape)
    drag_numpy(dt, regime, v.astype(np.float64), v_new)
    return (v_new,)


def _case(name: str, dtype: Any, unit: float) -> Case:
    """`unit` is a unit in the last place at 1."""
    case = Case(
        name,
        f"three drag laws chosen per sample, {np.dtype(dtype).name}",
        SIZES,
        tolerance=Tolerance(relative=100 * unit, absolute=100 * unit),
        # `exp` has 4 units; what multiplies it is below 1 and then scaled by dt; the rest rounds.
        own_tolerance=Tolerance(relative=4 * unit, absolute=unit),
        targets={LARGEST: PROMISED} if dtype == np.float64 else {},
    )
    case.data(lambda size, random: _arguments(size, random, dtype))
    case.expected(_expected)
    case.turnout(drag.__wrapped__)
    case.version("turnout", "switch")(drag_switch)
    case.numba(drag_loops if dtype == np.float64 else drag_loops_float32)
    case.version("NumPy")(drag_numpy)
    case.built("NumExpr")(drag_numexpr)
    case.built("quadrants")(lambda: drag_quadrants("f64" if dtype == np.float64 else "f32"))
    return case


def cases() -> list[Case]:
    """In float64 and in float32."""
    double = _case("drag", np.float64, 2.0**-52)
    double.built("hawk")(lambda: drag_hawk("predicated"))
    double.built("hawk", "switch")(lambda: drag_hawk("switch"))
    return [double, _case("drag float32", np.float32, 2.0**-23)]


# -- two threads -----------------------------------------------------------------------------------


@tn.kernel
def triad(s: Param, b: NDArray[f64, 1], c: NDArray[f64, 1], a: NDArray[f64, 1]) -> None:
    for i in range(a.shape[0]):
        a[i] = b[i] + s * c[i]


def _threaded(kernel: Any, data: Data, threads: int) -> Contender:
    arguments = (*data.inputs, *data.outputs)

    def results() -> Arrays:
        poison(data.outputs)
        tn.set_num_threads(threads)
        kernel(*arguments)
        return data.outputs

    name = "turnout" if threads == 1 else f"turnout, {threads} threads"
    names = dict(zip("pqrs", arguments, strict=True)) | {"call": kernel, "use": tn.set_num_threads}
    # Once untimed, so that the threads are there.
    setup = f"use({threads}); call(p, q, r, s)"
    return Contender(name, "call(p, q, r, s)", names, results, EXACT, setup)


def threads(budget: Budget) -> Iterator[list[Row]]:
    """One thread and two, of the kernel and of a loop that only moves memory.

    Both move 24 bytes per sample, so the second thread cannot help `drag` beyond the time that the
    triad takes.
    """
    random = np.random.default_rng(SEED)
    b, c = random.normal(size=LARGEST), random.normal(size=LARGEST)
    work = (
        ("drag", drag, _arguments(LARGEST, random, np.float64)),
        ("memory triad", triad, Data((3.0, b, c), (np.empty(LARGEST),))),
    )
    try:
        for name, kernel, data in work:
            contenders = [_threaded(kernel, data, threads) for threads in (1, 2)]
            # What one thread computes is checked against NumPy in the other cases of the group.
            expected = tuple(array.copy() for array in contenders[0].results())
            targets = [_second_thread()] if kernel is drag else []
            title = (GROUP, f"{name}, threads", LARGEST)
            # The time of day: CPU time is the sum of both threads'.
            yield compare(title, contenders, expected, budget, targets, time.perf_counter_ns)
    finally:
        tn.set_num_threads(1)


def _second_thread() -> Target:
    return Target("turnout", SECOND_THREAD, fast="turnout, 2 threads", row="turnout, 2 threads")


def measure(budget: Budget) -> Iterator[list[Row]]:
    """All rows of the group, comparison by comparison."""
    for case in cases():
        for size in case.sizes:
            yield case.measure(GROUP, size, budget)
    yield from threads(budget)
