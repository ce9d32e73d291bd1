"""Kernels that choose a formula for each sample, under every policy, for two mixes of classes.

With 1,000,000 samples a millisecond per call is a nanosecond per sample. In the mix "rare" 1 % of
the samples, at random places, are in the costly classes; the others are spread over the rest.
The policy "auto" is measured once it has chosen: its trials are some forty calls of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, Param, Scalar

from . import drag
from .cases import SEED, Case, Data
from .compare import SUBJECT, Arrays, Row, Target, Tolerance, make_row
from .measure import Budget, alternate, quiet_clock, timed
from .peers import hawk_function

GROUP = "policies"
SIZE = 1_000_000
SMALLER = (1_000, 10_000, 100_000)
"""Sizes at which turnout's policies are compared among themselves."""

RARE = 0.01
MIXES = ("uniform", "rare")

# "turnout" itself stands for the policy "predicated", as in the group `drag`.
OTHER_POLICIES = ("switch", "segmented", "auto")
SORTING = "NumPy, stable sort of the classes"

DRAG_UNIFORM = (Target("hawk", 4.0), Target("hawk switch", 4.0))
COSTLY_RARE = (Target("Numba", 4.0), Target("turnout switch", 2.5))
AUTO = "turnout auto"
NEAR_THE_BEST = tuple(
    Target(policy, 1 / 1.1, fast=AUTO, row=AUTO)
    for policy in (SUBJECT, "turnout switch", "turnout segmented")
)

UNIT = 2.0**-52
TOLERANCE = Tolerance(relative=500 * UNIT, absolute=500 * UNIT)


# -- a costly formula beside cheap ones, in everybody's words --------------------------------------


@tn.func
def costly(v, c):
    return (
        tm.exp(-c * v * v) * tm.sin(v)
        + tm.exp(-2.0 * c * v * v) * tm.sin(2.0 * v)
        + tm.exp(-3.0 * c * v * v) * tm.sin(3.0 * v)
        + tm.exp(-4.0 * c * v * v) * tm.sin(4.0 * v)
        + tm.pow(1.0 + abs(v), c) * tm.cos(v)
        + tm.pow(2.0 + abs(v), c) * tm.cos(2.0 * v)
        + tm.pow(3.0 + abs(v), c) * tm.cos(3.0 * v)
        + tm.pow(4.0 + abs(v), c) * tm.cos(4.0 * v)
    )


def costly_in(m: Any, v: Any, c: float) -> Any:
    """The same with the functions of NumPy or of hawk."""
    return (
        m.exp(-c * v * v) * m.sin(v)
        + m.exp(-2.0 * c * v * v) * m.sin(2.0 * v)
        + m.exp(-3.0 * c * v * v) * m.sin(3.0 * v)
        + m.exp(-4.0 * c * v * v) * m.sin(4.0 * v)
        + m.power(1.0 + abs(v), c) * m.cos(v)
        + m.power(2.0 + abs(v), c) * m.cos(2.0 * v)
        + m.power(3.0 + abs(v), c) * m.cos(3.0 * v)
        + m.power(4.0 + abs(v), c) * m.cos(4.0 * v)
    )


COSTLY_CLASSES = {2: (1,), 3: (2,), 8: (4, 5, 6, 7)}
"""By the number of classes. The formula of the others is ``-0.1 * (class + 1) * v``."""


def formulas(m: Any, v: Any, classes: int) -> list[Any]:
    """The formula of each class with the functions of NumPy or of hawk."""
    return [
        costly_in(m, v, 0.2 * number)
        if number in COSTLY_CLASSES[classes]
        else -0.1 * (number + 1) * v
        for number in range(classes)
    ]


def turnout_kernel(classes: int, policy: str) -> tn.Kernel:
    """The kernel with 2, 3 or 8 classes."""

    @tn.kernel
    def two(regime: Index, v: Scalar, out: Mutable[Scalar]):
        out = tm.dispatch(regime, [-0.1 * v, costly(v, 0.2)], policy=policy)

    @tn.kernel
    def three(regime: Index, v: Scalar, out: Mutable[Scalar]):
        out = tm.dispatch(regime, [-0.1 * v, -0.2 * v, costly(v, 0.4)], policy=policy)

    @tn.kernel
    def eight(regime: Index, v: Scalar, out: Mutable[Scalar]):
        out = tm.dispatch(
            regime,
            [
                -0.1 * v,
                -0.2 * v,
                -0.3 * v,
                -0.4 * v,
                costly(v, 0.8),
                costly(v, 1.0),
                costly(v, 1.2),
                costly(v, 1.4),
            ],
            policy=policy,
        )

    return {2: two, 3: three, 8: eight}[classes]


def numba_kernel(classes: int) -> Callable[..., Any]:
    """Branches in a loop, as one writes them."""
    from numba import njit

    @njit
    def costly(v, c):
        return (
            np.exp(-c * v * v) * np.sin(v)
            + np.exp(-2.0 * c * v * v) * np.sin(2.0 * v)
            + np.exp(-3.0 * c * v * v) * np.sin(3.0 * v)
            + np.exp(-4.0 * c * v * v) * np.sin(4.0 * v)
            + (1.0 + abs(v)) ** c * np.cos(v)
            + (2.0 + abs(v)) ** c * np.cos(2.0 * v)
            + (3.0 + abs(v)) ** c * np.cos(3.0 * v)
            + (4.0 + abs(v)) ** c * np.cos(4.0 * v)
        )

    @njit
    def two(regime, v, out):
        for i in range(v.shape[0]):
            out[i] = -0.1 * v[i] if regime[i] <= 0 else costly(v[i], 0.2)

    @njit
    def three(regime, v, out):
        for i in range(v.shape[0]):
            if regime[i] <= 0:
                out[i] = -0.1 * v[i]
            elif regime[i] == 1:
                out[i] = -0.2 * v[i]
            else:
                out[i] = costly(v[i], 0.4)

    @njit
    def eight(regime, v, out):
        for i in range(v.shape[0]):
            number = regime[i]
            if number <= 0:
                out[i] = -0.1 * v[i]
            elif number == 1:
                out[i] = -0.2 * v[i]
            elif number == 2:
                out[i] = -0.3 * v[i]
            elif number == 3:
                out[i] = -0.4 * v[i]
            elif number == 4:
                out[i] = costly(v[i], 0.8)
            elif number == 5:
                out[i] = costly(v[i], 1.0)
            elif number == 6:
                out[i] = costly(v[i], 1.2)
            else:
                out[i] = costly(v[i], 1.4)

    return {2: two, 3: three, 8: eight}[classes]


def numpy_function(classes: int) -> Callable[..., None]:
    """Every formula for every sample, and a choice."""

    def call(regime: np.ndarray, v: np.ndarray, out: np.ndarray) -> None:
        out[:] = np.choose(np.clip(regime, 0, classes - 1), formulas(np, v, classes))

    return call


def hawk_kernel(classes: int, policy: str) -> Callable[..., Any]:
    import hawk
    import hawk.math as hm

    @hawk.kernel
    def costly(regime: hawk.Index, v: hawk.Scalar, out: hawk.Mutable[hawk.Scalar]):
        out = hm.dispatch(regime, formulas(hm, v, classes), policy=policy)

    run = hawk_function(costly)
    return lambda regime, v, out: run(regime=regime, v=v, out=out)


# -- the cases -------------------------------------------------------------------------------------


def regimes(costly: tuple[int, ...], classes: int, mix: str, size: int, random: Any) -> np.ndarray:
    """The class of each sample."""
    if mix == "uniform":
        return random.integers(0, classes, size)
    cheap = [number for number in range(classes) if number not in costly]
    is_rare = random.random(size) < RARE
    return np.where(is_rare, random.choice(costly, size), random.choice(cheap, size))


def drag_case(mix: str) -> Case:
    """The kernel of the README: three classes, the last one with an exponential."""
    case = Case(
        f"drag {mix}",
        f"three drag laws, {mix} mix of classes",
        [SIZE],
        tolerance=TOLERANCE,
        own_tolerance=TOLERANCE,
        targets={SIZE: [*(DRAG_UNIFORM if mix == "uniform" else ()), *NEAR_THE_BEST]},
    )

    @case.data
    def data(size: int, random: np.random.Generator) -> Data:
        regime = regimes((2,), 3, mix, size, random)
        return Data((0.1, regime, random.normal(size=size)), (np.empty(size),))

    @case.expected
    def expected(dt: float, regime: np.ndarray, v: np.ndarray) -> Arrays:
        v_new = np.empty_like(v)
        drag.drag_numpy(dt, regime, v, v_new)
        return (v_new,)

    add_turnout(case, drag_kernel, lambda: data(SIZE, np.random.default_rng(SEED)))
    case.built("Numba")(lambda: numba_strict(drag.drag_loops))
    case.version("NumPy")(drag.drag_numpy)
    case.built("hawk")(lambda: drag.drag_hawk("predicated"))
    case.built("hawk", "switch")(lambda: drag.drag_hawk("switch"))
    return case


def drag_kernel(policy: str) -> tn.Kernel:
    @tn.kernel
    def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
        a = tm.dispatch(
            regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)], policy=policy
        )
        v_new = v + dt * a

    return drag


def numba_strict(loops: Callable[..., Any]) -> Callable[..., Any]:
    from numba import njit

    return njit(loops)


def costly_case(classes: int, mix: str, size: int = SIZE, *, is_sorted: bool = False) -> Case:
    """Cheap formulas, and some of 16 math functions."""
    is_target = mix == "rare" and size == SIZE and not is_sorted
    case = Case(
        f"costly K={classes} {mix}{' sorted' if is_sorted else ''}",
        f"{classes} classes of which some cost 16 math functions, {mix} mix",
        [size],
        tolerance=TOLERANCE,
        own_tolerance=TOLERANCE,
        targets={size: [*(COSTLY_RARE if is_target else ()), *NEAR_THE_BEST]},
    )

    @case.data
    def data(size: int, random: np.random.Generator) -> Data:
        regime = regimes(COSTLY_CLASSES[classes], classes, mix, size, random)
        v = random.normal(size=size)
        return Data((np.sort(regime) if is_sorted else regime, v), (np.empty(size),))

    @case.expected
    def expected(regime: np.ndarray, v: np.ndarray) -> Arrays:
        out = np.empty_like(v)
        numpy_function(classes)(regime, v, out)
        return (out,)

    random = np.random.default_rng(SEED)
    add_turnout(case, lambda policy: turnout_kernel(classes, policy), lambda: data(size, random))
    if size != SIZE:
        return case
    case.built("Numba")(lambda: numba_kernel(classes))
    case.version("NumPy")(numpy_function(classes))
    case.built("hawk")(lambda: hawk_kernel(classes, "predicated"))
    case.built("hawk", "switch")(lambda: hawk_kernel(classes, "switch"))
    return case


def add_turnout(case: Case, kernel: Callable[[str], tn.Kernel], data: Callable[[], Data]) -> None:
    """The kernel under every policy that this version can run."""
    case.version("turnout")(kernel("predicated"))
    for policy in OTHER_POLICIES:
        if policy == "auto":
            case.built("turnout", policy)(lambda: decided(kernel("auto"), data()))
        elif not why_not(policy):
            case.version("turnout", policy)(kernel(policy))


CALLS_AFTER_THE_CHOICE = 200
"""After which short calls take the way that they take from then on."""


def decided(kernel: tn.Kernel, data: Data) -> tn.Kernel:
    """The kernel, called until it has chosen a policy for calls like these."""
    arguments = (*data.inputs, *data.outputs)
    while kernel.explain(*arguments).chosen is None:
        kernel(*arguments)
    for _ in range(CALLS_AFTER_THE_CHOICE):
        kernel(*arguments)
    return kernel


def why_not(policy: str) -> str:
    """Why kernels with a policy are not measured; empty when they can be called."""
    kernel = turnout_kernel(2, policy)
    try:
        kernel(np.zeros(1, np.int64), np.zeros(1), np.zeros(1))
    except tn.KernelError:
        return f"this version refuses the policy {policy!r}"
    return ""


def cases() -> Iterator[tuple[Case, int]]:
    """Both kernels with both mixes, and the rare class as sorting leaves it; with their sizes."""
    for mix in MIXES:
        yield drag_case(mix), SIZE
    for classes in COSTLY_CLASSES:
        for mix in MIXES:
            yield costly_case(classes, mix), SIZE
    yield costly_case(2, "rare", is_sorted=True), SIZE
    for classes, mix, size in product((2, 8), MIXES, SMALLER):
        yield costly_case(classes, mix, size), size


def sorting(budget: Budget) -> Row:
    """What it takes to find the order of the classes, without moving a sample."""
    regime = regimes((1,), 2, "rare", SIZE, np.random.default_rng(SEED)).astype(np.int8)
    names = {"sort": lambda: np.argsort(regime, kind="stable")}
    timings = alternate({SORTING: timed("sort()", names, clock=quiet_clock())}, budget)
    return make_row((GROUP, "sorting", SIZE), SORTING, timings, subject="")


def measure(budget: Budget) -> Iterator[list[Row]]:
    """All rows of the group, comparison by comparison."""
    problems = {f"turnout {policy}": why_not(policy) for policy in OTHER_POLICIES}
    for case, size in cases():
        missing = [
            Row(GROUP, case.name, size, name, problem=problem)
            for name, problem in problems.items()
            if problem
        ]
        yield case.measure(GROUP, size, budget) + missing
    yield [sorting(budget)]
