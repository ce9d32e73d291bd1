"""Policies of ``"auto"`` dispatches, chosen while the program runs.

A kernel with such dispatches becomes an operation of `turnout.perf_dispatch` whose implementations
are the kernel itself, lowered by one policy each. They compute the same bits, so every call is
right whichever of them it runs; which of them is fastest is measured, kept for later processes,
explained, and measured again as for every other operation, which is how a mix of branches that has
changed is noticed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from . import ir
from .backends import active_name
from .discovery import CORE
from .errors import ConfigurationError, KernelError
from .explain import Explanation
from .implementations import forced_implementations
from .kernel import Executable, Kernel
from .lower import plan_dispatches, segmented_groups, with_policies
from .perf import PerformanceDispatcher, perf_dispatch
from .ranking import median
from .segmentation import check_split
from .signatures import generate_prototype

SMALLEST_MEASURED = 256
"""Samples below which a choice costs more than it brings: these calls run the switch form."""

SMALLEST_SPLIT = 16_384
"""Samples from which on it is tried to sort them by class."""

MOST_ARMS_PREDICATED = 32
"""Branches above which it is not tried to evaluate all of them."""

MOST_VARIANTS = 12
"""Combinations of policies that are tried, those that change the first dispatches first."""

CALLS_PER_LOOK = 15
"""Most calls that run the chosen form before one is an operation's again, which measures from time
to time: to ask the operation, and what it has decided, takes about 25 microseconds."""

LONG_CALL_NS = 1_600_000
"""Calls that take so long are all an operation's, and of shorter ones the more the longer they
take, so that a mix that has changed is seen soon."""

Policies = dict[str, str]


def automatic(kernel: Kernel, executable: Executable) -> Executable | Automatic:
    """What runs the calls of a kernel.

    Parameters
    ----------
    kernel : Kernel
    executable : Executable
        Of `kernel`, with dispatches that are open in the form ``"switch"``.

    Returns
    -------
    Executable or Automatic
        `executable` where there is nothing to choose.
    """
    plan = executable.lowered.plan
    groups = open_groups(plan)
    has_arrays = any(spec.rank for spec in kernel.signature.parameters)
    # The reference backend is for right answers, and its speed says nothing of another one's.
    if not (groups and has_arrays) or executable.context.backend.distribution == CORE:
        return executable
    variants = list(_possible(plan, {g.name: _choices(kernel, g) for g in groups.values()}))
    return Automatic(kernel, executable, groups, variants)


def open_groups(plan: ir.Plan) -> dict[str, ir.Dispatch]:
    """The dispatches of a plan whose policy is open, by name."""
    return {group.name: group for group in plan_dispatches(plan) if group.policy == "auto"}


def tried_policies(plan: ir.Plan) -> list[Policies]:
    """The combinations of policies that are tried for a plan, if nothing asks for certain ones."""
    return list(_possible(plan, {g.name: _worthwhile(g) for g in open_groups(plan).values()}))


def _possible(plan: ir.Plan, choices: Mapping[str, Sequence[str]]) -> Iterator[Policies]:
    """The possible ones among combinations of policies, up to a number."""
    # Reversed twice, so that the first dispatch changes fastest.
    combinations = itertools.product(*reversed([*choices.values()]))
    policies = (dict(zip(choices, reversed(each), strict=True)) for each in combinations)
    return itertools.islice((each for each in policies if _can_be(plan, each)), MOST_VARIANTS)


_POLICIES = ("switch", "predicated", "segmented")


def _choices(kernel: Kernel, group: ir.Dispatch) -> tuple[str, ...]:
    """The policies of a dispatch that are tried, or the one that the environment asks for."""
    name = f"{kernel.__name__}.{group.name}"
    forced = forced_implementations().get(name)
    if forced is None:
        return _worthwhile(group)
    if forced not in _POLICIES:
        raise ConfigurationError(
            f"TURNOUT_PERFDISPATCH_FORCE: {name!r} cannot be {forced!r}; allowed: "
            f"{', '.join(map(repr, _POLICIES))}"
        )
    return (forced,)


def _worthwhile(group: ir.Dispatch) -> tuple[str, ...]:
    has_few_arms = len(group.arms) <= MOST_ARMS_PREDICATED
    return tuple(each for each in _POLICIES if each != "predicated" or has_few_arms)


def _can_be(plan: ir.Plan, policies: Policies) -> bool:
    """Whether a plan can be lowered so; what stands in a loop cannot be split, for example."""
    try:
        for run in with_policies(plan, policies).runs:
            check_split(run.unit, segmented_groups(run.unit))
    except KernelError:
        return False
    return True


class Automatic:
    """Runs the calls of a kernel by an operation over the forms that it can have.

    Attributes
    ----------
    operation : PerformanceDispatcher
        Called with the values of all parameters. Its geometry is the number of samples, by powers
        of two, and the types of the arguments.
    """

    has_asked_for_entry = False

    def __init__(
        self,
        kernel: Kernel,
        executable: Executable,
        groups: Mapping[str, ir.Dispatch],
        variants: Sequence[Policies],
    ) -> None:
        self.kernel = kernel
        self.executable = executable
        specs = kernel.signature.parameters
        self._measured = next(place for place, spec in enumerate(specs) if spec.rank)
        parameters = kernel.__signature__.parameters
        self._keywords = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
        self.operation = self._make_operation(groups, variants)

    def _make_operation(
        self, groups: Mapping[str, ir.Dispatch], variants: Sequence[Policies]
    ) -> PerformanceDispatcher[..., Any]:
        kernel, size = self.kernel, self._size
        types = tuple(str(dtype) for dtype in self.executable.types.values())

        def geometry(*args: Any, **keywords: Any) -> tuple[Any, ...]:
            return (size(args, keywords).bit_length(), *types)

        prototype = generate_prototype(kernel.__signature__)
        name = next(iter(groups)) if len(groups) == 1 else "dispatch"
        prototype.__name__ = f"{kernel.__name__}.{name}"
        prototype.__qualname__ = f"{kernel.__qualname__}.{name}"
        prototype.__module__ = kernel.__module__
        operation = perf_dispatch(get_geometry_hash=geometry, active="auto")(prototype)
        self._forms: dict[str, Kernel] = {}
        self._shortcuts: dict[int, _Shortcut] = {}
        device = self.executable.context.name
        for policies in variants:
            is_split = "segmented" in policies.values() and len(variants) > 1
            changed: dict[str, Any] = {
                "chosen_policies": {**kernel.chosen_policies, **policies},
                "device": device,
            }
            if kernel.steps != 1:
                changed["steps"] = 1  # each step is a call of the operation
            name = "+".join(policies.values())
            self._forms[name] = form = kernel._varied(**changed)
            is_compatible = self._has_enough_samples if is_split else None
            operation.register(name=name, is_compatible=is_compatible)(form)
        return operation

    def _size(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> int:
        """How many elements the first array has."""
        name = self.kernel.signature.parameters[self._measured].name
        array = keywords[name] if name in keywords else args[self._measured]
        return math.prod(array.shape)

    def _has_enough_samples(self, *args: Any, **keywords: Any) -> bool | str:
        size = self._size(args, keywords)
        if size < SMALLEST_SPLIT:
            return f"{size} samples are too few to be sorted by class"
        # To sort, the host has to wait for the device.
        return not self.executable.context.is_capturing() or "a graph is being captured"

    def __call__(
        self,
        values: Sequence[Any],
        samples: int | None,
        steps: int,
        counters: Sequence[Any] = (),
    ) -> Any:
        is_plain = samples is None and steps > 0 and not counters
        if not is_plain or math.prod(values[self._measured].shape) < SMALLEST_MEASURED:
            return self.executable(values, samples, steps, counters)
        args, keywords = self._as_given(values)
        for _ in range(steps):
            result = self.operation(*args, **keywords)
        return result

    def explain(self, values: Sequence[Any]) -> Explanation:
        """What is known about calls like one with these values."""
        args, keywords = self._as_given(values)
        return self.operation.explain(*args, **keywords)

    def _as_given(self, values: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        by_position = len(values) - len(self._keywords)
        keywords = dict(zip(self._keywords, values[by_position:], strict=True))
        return values[:by_position], keywords

    def native_entry(
        self, values: Sequence[Any], fallback: Callable[..., Any]
    ) -> Callable[..., Any] | None:
        """A short way for calls by position with arrays of NumPy; `fallback` for all others."""
        context = self.executable.context
        if not context.is_host or self._keywords or self.kernel.steps != 1:
            return None
        is_pinned = self.kernel.device is not None
        count, place, name = len(values), self._measured, context.name
        measured, forms = self._measured_call, self._forms
        smallest = next(iter(forms.values()))
        shortcuts = self._shortcuts

        def entry(*args: Any, **keywords: Any) -> Any:
            if (
                len(args) != count
                or keywords
                or type(args[place]) is not np.ndarray
                or not (is_pinned or active_name() == name)
            ):
                return fallback(*args, **keywords)
            size = args[place].size
            if size < SMALLEST_MEASURED:
                return smallest(*args)
            shortcut = shortcuts.get(size.bit_length())
            if shortcut is None or shortcut.calls_left <= 0:
                return measured(*args)
            shortcut.calls_left -= 1
            return shortcut.form(*args)

        return staticmethod(entry)  # what stands in a class is not to become a method

    def _measured_call(self, *args: Any) -> Any:
        """A call by the operation, after which some go to the chosen form at once."""
        result = self.operation(*args)
        decision = self.operation.decision(*args)
        if decision is not None and decision.chosen is not None:
            typical_ns = max(1, median(decision.samples.get(decision.chosen) or (LONG_CALL_NS,)))
            calls = min(CALLS_PER_LOOK, int(LONG_CALL_NS / typical_ns) - 1)
            shortcut = _Shortcut(self._forms[decision.chosen], calls)
            self._shortcuts[args[self._measured].size.bit_length()] = shortcut
        return result


class _Shortcut:
    """The form that is in use for a geometry; threads may share it, and lose count of calls."""

    __slots__ = ("calls_left", "form")

    def __init__(self, form: Kernel, calls_left: int) -> None:
        self.form = form
        self.calls_left = calls_left
