"""What a kernel call runs: one unit, or one that is split by class and run class by class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np

from . import ir
from .compilation import load_unit
from .errors import CallError
from .hooks import IndexViolation, Launcher, Options
from .loading import DeviceContext
from .positions import position_count
from .segmentation import (
    BLOCK,
    collect_changed,
    compare_classes,
    count_classes,
    scatter_order,
    starts_of,
)

Report = Callable[[ir.Unit, IndexViolation], Exception]
"""Makes the error to raise of an index that is out of bounds."""

Load = Callable[[ir.Unit, DeviceContext, Options], Launcher]
"""Gives the loaded code of a unit, as `turnout.compilation.load_unit` does."""


class Launch:
    """One unit, ready to run on the arguments of a call."""

    def __init__(
        self,
        unit: ir.Unit,
        places: Mapping[str, int],
        context: DeviceContext,
        options: Options,
        report: Report,
        load: Load = load_unit,
    ) -> None:
        self.unit = unit
        self.launcher = load(unit, context, options)
        self.count = position_count(unit)
        self.places = tuple(places[parameter.name] for parameter in unit.parameters)
        self._select = itemgetter_of(self.places)
        self._report = report

    def run(self, arguments: Sequence[Any]) -> None:
        """Run, or queue, the unit; `arguments` are those of the call, and `places` some of them."""
        args = self._select(arguments)
        try:
            self.launcher(args, self.count(args))
        except IndexViolation as violation:
            raise self._report(self.unit, violation) from None


STALE_LIMIT = 0.01
"""Above this part of the samples that changed their class they are all sorted again.

Below it, those that changed are finished with the switch form, and the order stays for all others.
Measured with drag at 1,000,000 samples on one core: to sort takes 1.0 ms; to find the changed ones
and to let the units of classes leave them alone takes 1.0 ms, and 0.1 ms more per percent.
"""

_KEPT_PARTITIONS = 4
"""Of how many numbers of samples, or threads, the order of the samples is remembered."""


class SplitLaunch:
    """A unit whose samples are sorted by class; one unit per class runs over the samples in it.

    The order of the last launch is used again: one pass computes the classes of all samples, and
    what has changed is found by comparing them with those that were sorted.
    """

    def __init__(
        self,
        split: ir.Split,
        places: Mapping[str, int],
        context: DeviceContext,
        options: Options,
        report: Report,
        load: Load = load_unit,
    ) -> None:
        self.unit = split.run.unit
        self._context = context
        self._classes = len(split.branches)
        places = {**places, **{name: len(places) + n for n, name in enumerate(split.extra)}}

        def launches(plan: ir.Plan) -> list[Launch]:
            return [Launch(unit, places, context, options, report, load) for unit in plan.units]

        self._count = position_count(self.unit)
        self._select = itemgetter_of([places[p.name] for p in self.unit.parameters])
        self._classify = launches(split.classify)
        self._branches = [launches(plan) for plan in split.branches]
        self._guarded = [launches(plan) for plan in split.guarded]
        self._listed = launches(split.listed)
        self._sorting = _sorting(context, self._classes, load)
        self._partitions: list[_Partition] = []

    def run(self, arguments: Sequence[Any]) -> None:
        """Run all samples of a call, each by the unit of its class."""
        size = self._count(self._select(arguments))
        if not size:
            return
        if self._context.is_capturing():
            raise CallError(
                f"unit {self.unit.name}: a segmented kernel waits for {self._context.name} to know "
                "how many samples are in each class, and what is captured cannot be waited for; "
                "capture it with the policy 'switch' or 'predicated'"
            )
        partition = self._taken(size)
        self._run(list(arguments), partition)
        # After an error it is in no state to be used again. Lists are safe to share by threads.
        self._partitions.append(partition)
        del self._partitions[:-_KEPT_PARTITIONS]

    def _taken(self, size: int) -> _Partition:
        """A partition that no other thread uses meanwhile, of so many samples."""
        for candidate in self._partitions.copy():
            if candidate.size != size:
                continue
            try:
                self._partitions.remove(candidate)
            except ValueError:  # another thread was faster
                continue
            if not self._context.is_host:
                # A queue of another caller may still read what is written now.
                self._context.sync()
            return candidate
        return _Partition(size, self._classes, self._context)

    def _run(self, arguments: list[Any], partition: _Partition) -> None:
        changed = self._classified(arguments, partition)
        if changed > STALE_LIMIT * partition.size:
            self._sorting.sort(partition)
            changed = 0
        branches = self._guarded if changed else self._branches
        for number, launches in enumerate(branches):
            start, end = partition.offsets[number : number + 2]
            if start < end:
                order = partition.order
                extra = _extra(partition.kept, order, start, end - start, partition.now)
                _run_all(launches, arguments + extra)
        if changed:
            order = self._sorting.changed(partition, changed)
            extra = _extra(partition.kept, order, 0, changed, partition.now)
            _run_all(self._listed, arguments + extra)

    def _classified(self, arguments: list[Any], partition: _Partition) -> int:
        """Compute the class of each sample; how many are not where the order has them."""
        classes = partition.now if partition.offsets else partition.kept
        extra = _extra(classes, partition.order, 0, 0, partition.now)
        _run_all(self._classify, arguments + extra)
        if not partition.offsets:
            return partition.size
        return self._sorting.count_changed(partition)


class _Partition:
    """The samples of a call in the order of their classes.

    Attributes
    ----------
    kept, now : array of u8, one per sample
        The class that a sample was sorted by, and that it has in this launch.
    order : array of i64
        The samples, sorted by `kept`.
    offsets : list of int
        Where each class begins in `order`, and the end; empty before the first sorting.
    """

    def __init__(self, size: int, classes: int, context: DeviceContext) -> None:
        self.size = size
        self.blocks = blocks = -(-size // BLOCK)
        self.kept = context.zeros((size,), ir.u8.dtype)
        self.now = context.zeros((size,), ir.u8.dtype)
        self.order = context.zeros((size,), ir.i64.dtype)
        self.counts = context.zeros((classes, blocks), ir.i64.dtype)
        self.ends = context.zeros((classes + 1,), ir.i64.dtype)
        self.changed = context.zeros((1, blocks), ir.i64.dtype)
        self.changed_end = context.zeros((2,), ir.i64.dtype)
        self.offsets: list[int] = []


class _Sorting:
    """The units that sort samples by class, loaded for a device."""

    def __init__(self, context: DeviceContext, classes: int, load: Load) -> None:
        self._context = context

        def loaded(unit: ir.Unit) -> Launcher:
            return load(unit, context, Options())

        self._count = loaded(count_classes(classes))
        self._starts = loaded(starts_of(classes))
        self._scatter = loaded(scatter_order(classes))
        self._compare = loaded(compare_classes())
        self._starts_of_changed = loaded(starts_of(1))
        self._collect = loaded(collect_changed())

    def sort(self, partition: _Partition) -> None:
        """Sort the samples by the classes they have now."""
        if partition.offsets:
            partition.kept, partition.now = partition.now, partition.kept
        size, blocks = partition.size, partition.blocks
        self._count((partition.kept, partition.counts, size), blocks)
        self._starts((partition.counts, partition.ends), 1)
        self._scatter((partition.kept, partition.counts, partition.order, size), blocks)
        partition.offsets = self._fetched(partition.ends)

    def count_changed(self, partition: _Partition) -> int:
        """How many samples have another class than that they were sorted by."""
        compared = (partition.kept, partition.now, partition.changed, partition.size)
        self._compare(compared, partition.blocks)
        self._starts_of_changed((partition.changed, partition.changed_end), 1)
        return self._fetched(partition.changed_end)[-1]

    def changed(self, partition: _Partition, count: int) -> Any:
        """The samples that `count_changed` has counted, in order."""
        listed = self._context.zeros((count,), ir.i64.dtype)
        compared = (partition.kept, partition.now, partition.changed, listed, partition.size)
        self._collect(compared, partition.blocks)
        return listed

    def _fetched(self, array: Any) -> list[int]:
        if self._context.is_host:
            there: np.ndarray[Any, Any] = array
        else:
            there = np.empty(array.shape, ir.i64.dtype)
            self._context.memory.get(array, there)
        numbers: list[int] = there.tolist()
        return numbers


def _extra(classes: Any, order: Any, start: int, count: int, now: Any) -> list[Any]:
    """Values of what `ExtraNames` names, in its order."""
    return [classes, order, start, count, now]


@lru_cache(maxsize=64)
def _sorting(context: DeviceContext, classes: int, load: Load) -> _Sorting:
    return _Sorting(context, classes, load)


def _run_all(launches: Iterable[Launch], arguments: Sequence[Any]) -> None:
    for launch in launches:
        launch.run(arguments)


def itemgetter_of(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that takes the items at `places` out of a sequence, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: tuple([items[place] for place in places])
