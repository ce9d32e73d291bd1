"""The groups of the suite, and kernels of many kinds as one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import (
    dispatch,
    drag,
    kernels,
    launch,
    opencl,
    operations,
    policies,
    ready,
    reductions,
    specialised,
    stacks,
)
from .compare import Row, Target, Verdict, geometric_mean
from .measure import Budget

KERNELS = "kernels"
STRICT = "Numba"
EACH_AT_LEAST = 0.8
MEAN_AT_LEAST = 1.2

Group = Callable[[Budget], Iterator[list[Row]]]


def measure_kernels(budget: Budget) -> Iterator[list[Row]]:
    """All rows of the group of kernels, and their mean."""
    ratios: list[float | None] = []
    for case in kernels.cases():
        case.targets = {size: [Target(STRICT, EACH_AT_LEAST)] for size in case.sizes}
        for size in case.sizes:
            rows = case.measure(KERNELS, size, budget)
            ratios += [row.ratio for row in rows if row.name == STRICT]
            yield rows
    yield [mean_row(ratios)]


def mean_row(ratios: list[float | None]) -> Row:
    """The geometric mean of Numba's times as multiples of turnout's."""
    row = Row(KERNELS, "geometric mean", None, STRICT)
    target = Target(STRICT, MEAN_AT_LEAST)
    known = [ratio for ratio in ratios if ratio is not None]
    if not known or len(known) < len(ratios):
        row.verdicts.append(Verdict(target.text, target.goal, "not measured", None))
        return row
    row.ratio = row.ratio_low = row.ratio_high = geometric_mean(known)
    is_met = row.ratio >= MEAN_AT_LEAST
    row.verdicts.append(Verdict(target.text, target.goal, f"{row.ratio:.2f}x", is_met))
    return row


GROUPS: dict[str, Group] = {
    drag.GROUP: drag.measure,
    launch.GROUP: launch.measure,
    ready.GROUP: ready.measure,
    dispatch.GROUP: dispatch.measure,
    policies.GROUP: policies.measure,
    operations.GROUP: operations.measure,
    stacks.GROUP: stacks.measure,
    reductions.GROUP: reductions.measure,
    KERNELS: measure_kernels,
    specialised.GROUP: specialised.measure,
    opencl.GROUP: opencl.measure,
}
