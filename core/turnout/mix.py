"""The mix of a launch: which share of its samples takes each branch of a dispatch.

A `Sampler` counts the classes of a few samples before the launch. What is remembered of a count is
a `Mix`, which is coarse, so that counts that differ by chance are of one mix.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from . import ir
from .kernel import Executable
from .launches import Launch
from .lower import dispatch_groups
from .records import record
from .segmentation import classification_problem, sampling_unit

SAMPLES = 1024
"""How many samples are looked at, at most."""

Counts = tuple[tuple[int, ...], ...]
"""How many samples of each class there were; one tuple for each dispatch."""

_LEAST_SHARES = (0.287, 0.0718, 0.018, 0.0045, 0.0)
"""Where levels end, each at a quarter of the one before.

The shares of equally frequent classes, 1/2, 1/3, 1/4 and so on, are not near to any of them.
"""
_NEVER = len(_LEAST_SHARES)
"""The level of classes that were not seen."""

_DEVIATIONS = 3
"""By how many standard deviations of chance a class has to leave its level."""

_OVERLOOKED = 5
"""So many samples of a class that was not seen the last time may be there by chance."""


@record
class Mix:
    """A mix of classes, in coarse levels.

    Attributes
    ----------
    levels : tuple of tuple of int
        For each dispatch and class how frequent it is: 0 above 28.7 %, then four times rarer from
        one level to the next; 5: it was not seen.
    counts : tuple of tuple of int
        From which samples that was told.
    """

    levels: Counts
    counts: Counts

    @classmethod
    def of(cls, counts: Counts) -> Mix:
        """The mix that samples are of."""
        levels = tuple(tuple(_level(each, sum(group)) for each in group) for group in counts)
        return cls(levels, counts)

    def fits(self, counts: Counts) -> bool:
        """Whether samples may be of this mix, so that nothing but chance makes them differ."""
        return all(
            _is_chance(level, count, sum(group))
            for levels, group in zip(self.levels, counts, strict=True)
            for level, count in zip(levels, group, strict=True)
        )

    @property
    def shares(self) -> tuple[tuple[float, ...], ...]:
        """The share of each class in the samples; 0 for a dispatch that none of them reaches."""
        return tuple(tuple(count / max(1, sum(group)) for count in group) for group in self.counts)

    def __str__(self) -> str:
        """The levels as digits, those of several dispatches with a plus sign between them."""
        return "+".join("".join(map(str, group)) for group in self.levels)


def _level(count: int, total: int) -> int:
    if not count:
        return _NEVER
    return next(n for n, least in enumerate(_LEAST_SHARES) if count / total >= least)


def _is_chance(level: int, count: int, total: int) -> bool:
    if level == _NEVER:
        return count <= _OVERLOOKED
    least, most = _LEAST_SHARES[level], (1.0, *_LEAST_SHARES)[level]
    lowest = total * least - _DEVIATIONS * math.sqrt(total * least * (1 - least))
    highest = total * most + _DEVIATIONS * math.sqrt(total * most * (1 - most))
    return lowest <= count <= highest


class Sampler:
    """Counts the classes of a few samples of a call before it runs.

    Parameters
    ----------
    executable : Executable
        What the calls are of.
    groups : iterable of str
        The dispatches to look at.

    Attributes
    ----------
    groups : tuple of str
        Those whose classes can be told before the run. In loops, and where an earlier unit of the
        kernel writes what the class depends on, they cannot.
    """

    def __init__(self, executable: Executable, groups: Iterable[str]) -> None:
        self._executable = executable
        self._context = executable.context
        self._launches: list[tuple[Launch, int]] = []
        names = []
        wanted = set(groups)
        changed: set[str] = set()
        for step in executable.lowered.plan.steps:
            if isinstance(step, ir.Scratch):
                changed.add(step.name)
                continue
            assert isinstance(step, ir.Run)
            for dispatch in dispatch_groups(step.unit):
                if dispatch.name not in wanted:
                    continue
                unit = _sampling_unit(step.unit, dispatch.name, changed)
                if unit is not None:
                    names.append(dispatch.name)
                    self._launches.append((self._launch(unit), len(dispatch.arms)))
            changed |= {a.name for a in step.unit.arrays.values() if a.is_written}
        self.groups = tuple(names)

    def _launch(self, unit: ir.Unit) -> Launch:
        plan = ir.Plan((ir.Run(unit),))
        (lowered,) = self._executable.lower_plan(plan).units
        places = self._executable.places
        # The counters follow the arguments that are the same for all units.
        first_free = len(self._executable.kernel.signature.parameters) + 1
        places = {**places, unit.parameters[-1].name: first_free}
        options, report = self._executable.kernel.options, self._executable.out_of_bounds
        load = self._executable.load_unit
        return Launch(lowered, places, self._context, options, report, load)

    def counts(self, values: Sequence[Any], samples: int | None) -> Counts | None:
        """Count the classes of some of the samples of a call, evenly spread over it.

        Parameters
        ----------
        values : sequence
            The arguments of the call.
        samples : int or None
            How many samples it runs, if it says so.

        Returns
        -------
        tuple of tuple of int, or None
            For each of `groups`. None where nothing can be told: the arrays are not on the device,
            or it records work instead of running it, or something is wrong with the call.
        """
        context = self._context
        is_away = not context.is_host and any(isinstance(v, np.ndarray) for v in values)
        if not self._launches or is_away or context.is_capturing():
            return None
        arguments = self._executable.prepared(values, samples)
        if arguments is None:
            return None
        found = []
        for launch, classes in self._launches:
            counter = context.zeros((classes,), ir.u32.dtype)
            launch.run([*arguments, counter])
            there = counter
            if not context.is_host:
                there = np.empty((classes,), ir.u32.dtype)
                context.memory.get(counter, there)
            found.append(tuple(there.tolist()))
        return tuple(found)


def _sampling_unit(unit: ir.Unit, group: str, changed: set[str]) -> ir.Unit | None:
    """The unit that looks at a dispatch; None where its class is not known before the run."""
    if classification_problem(unit, group):
        return None
    taken = {parameter.name for parameter in unit.parameters}
    counter = f"{group}_mix"
    while counter in taken:
        counter += "_"
    sampling = sampling_unit(unit, group, counter, SAMPLES)
    return None if changed & sampling.arrays.keys() else sampling
