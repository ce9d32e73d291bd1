"""Policies of ``"auto"`` dispatches, chosen while the program runs.

A kernel with such dispatches becomes an operation of `turnout.perf_dispatch` whose implementations
are the kernel itself, lowered by one policy each: its *forms*. They compute the same bits, so every
call is right whichever of them it runs; which of them is fastest is measured, kept for later
processes, explained, and measured again as for every other operation.

What is measured is kept for the number of samples and the mix of classes, which `turnout.mix` tells
from a few samples. Some time after a choice another look is taken: where the mix has changed, the
choice for that mix holds, or is made. `turnout.forecast` says which forms need not be tried.

Between two looks the chosen form runs its calls by itself. Short calls of arrays of NumPy reach its
machine code at once: a `CallLimit` says for how many calls and which sizes.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from . import ir
from .backends import active_name
from .direct import CallLimit
from .discovery import CORE
from .errors import ConfigurationError, KernelError
from .explain import Explanation
from .implementations import forced_implementations
from .kernel import Executable, Kernel
from .lower import plan_dispatches, segmented_groups, with_policies
from .mix import Mix, Sampler
from .perf import PerformanceDispatcher, perf_dispatch
from .records import record
from .segmentation import check_split
from .signatures import prototype_like
from .watch import Known, Watch

if TYPE_CHECKING:
    from .forecast import Forecast

SMALLEST_MEASURED = 256
"""Samples below which a choice costs more than it brings: these calls run the switch form."""

SMALLEST_SPLIT = 16_384
"""Samples from which on it is tried to sort them by class; and to rule forms out, for which code is
compiled once more: to try all others on fewer samples takes less."""

MOST_ARMS_PREDICATED = 32
"""Branches above which it is not tried to evaluate all of them."""

MOST_VARIANTS = 12
"""Combinations of policies that are tried, those that change the first dispatches first."""

WARM_UPS = 2
"""Calls of a form before it is measured: at the second one it gets its machine code for calls."""

SHORT_CALL_NS = 100_000
"""Up to which time of a call it is worth machine code of its own to spare half a microsecond."""

Policies = dict[str, str]


def automatic(
    kernel: Kernel, executable: Executable, uncounted: Automatic | Executable | None
) -> Executable | Automatic | Counted:
    """What runs the calls of a kernel.

    Parameters
    ----------
    kernel : Kernel
    executable : Executable
        Of `kernel`, with dispatches that are open in the form ``"switch"``.
    uncounted : Automatic, Executable or None
        What runs such calls without counters; None if they have none.

    Returns
    -------
    Executable, Automatic or Counted
        `executable` where there is nothing to choose.
    """
    if isinstance(uncounted, Automatic):
        return Counted(uncounted, executable.counters)
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
    """Whether a plan can be lowered so; a class that a loop changes cannot, for example."""
    try:
        for run in with_policies(plan, policies).runs:
            check_split(run.unit, segmented_groups(run.unit))
    except KernelError:
        return False
    return True


class Automatic:
    """Runs the calls of a kernel by an operation over its forms.

    Attributes
    ----------
    operation : PerformanceDispatcher
        Called with the values of all parameters. Its geometry is the number of samples, by powers
        of two, the mix of classes, and the types of the arguments.
    measured_place : int
        The parameter whose elements are counted.
    forms : dict of str to Kernel
    smallest_form : str
        The form of calls that are not worth a choice.
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
        self.measured_place = next(place for place, spec in enumerate(specs) if spec.rank)
        self._groups = groups
        self._policies = {"+".join(policies.values()): policies for policies in variants}
        self.forms = {name: self._form(policies) for name, policies in self._policies.items()}
        self.smallest_form = next(iter(self.forms))
        self._watches: dict[int, Watch] = {}
        self._shortcut: _Shortcut | None = None
        self._limited = threading.local()  # the samples of a call that does not run all
        self.operation = self._make_operation()

    # -- the operation ---------------------------------------------------------------------------

    def _form(self, policies: Policies) -> Kernel:
        kernel = self.kernel
        changed: dict[str, Any] = {
            "chosen_policies": {**kernel.chosen_policies, **policies},
            "device": self.executable.context.name,
        }
        if kernel.steps != 1:
            changed["steps"] = 1  # each step may be a call of the operation
        return kernel._varied(**changed)

    def _make_operation(self) -> PerformanceDispatcher[..., Any]:
        kernel, groups = self.kernel, self._groups

        def geometry(*args: Any, **keywords: Any) -> tuple[Any, ...]:
            return self._geometry(self._watch(self._size(args, keywords)))

        name = next(iter(groups)) if len(groups) == 1 else "dispatch"
        prototype = prototype_like(kernel, f".{name}")
        made = perf_dispatch(get_geometry_hash=geometry, active="auto", warmup=WARM_UPS)
        operation = made(prototype)
        for name, form in self.forms.items():
            operation.register(name=name, is_compatible=self._compatible(name))(form)
        return operation

    def _compatible(self, form: str) -> Callable[..., bool | str] | None:
        """A function that says whether a form may be tried; None where there is no other one."""
        if len(self.forms) == 1:
            return None
        is_split = "segmented" in self._policies[form].values()

        def may_be_tried(*args: Any, **keywords: Any) -> bool | str:
            size = self._size(args, keywords)
            if is_split and size < SMALLEST_SPLIT:
                return f"{size} samples are too few to be sorted by class"
            # To sort, the host has to wait for the device.
            if is_split and self.executable.context.is_capturing():
                return "a graph is being captured"
            return self._watch(size).ruled_out.get(form, True)

        return may_be_tried

    def _geometry(self, watch: Watch) -> tuple[Any, ...]:
        types = map(str, self.executable.types.values())
        return (watch.bits, str(watch.mix or ""), *types)

    def _size(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> int:
        """How many elements the first array has, of those of the samples that run."""
        name = self.kernel.signature.parameters[self.measured_place].name
        shape = (keywords[name] if name in keywords else args[self.measured_place]).shape
        samples = getattr(self._limited, "samples", None)
        return math.prod(shape if samples is None else (*shape[:-1], samples))

    # -- calls -----------------------------------------------------------------------------------

    def prepare(self, values: Sequence[Any]) -> None:
        """Make everything that calls with such values may need, before there is one."""
        _ = self._sampler
        for name, form in self.forms.items():
            self.form_entry(name, values, form, CallLimit(self.measured_place))

    def __call__(
        self,
        values: Sequence[Any],
        samples: int | None,
        steps: int,
        counters: Sequence[Any] = (),
    ) -> Any:
        return self.run(values, samples, steps, {})

    def run(
        self,
        values: Sequence[Any],
        samples: int | None,
        steps: int,
        counters: Mapping[str, Any],
    ) -> Any:
        """Run a call; parameters as of an `Executable`, counters by name."""
        if samples is None:
            return self._run(values, None, steps, {**counters})
        self._limited.samples = samples
        try:
            return self._run(values, samples, steps, {**counters, "samples": samples})
        finally:
            self._limited.samples = None

    def _run(
        self, values: Sequence[Any], samples: int | None, steps: int, options: dict[str, Any]
    ) -> Any:
        args, keywords = self.kernel.binder.arguments(values)
        size = self._size(args, keywords)
        if size < SMALLEST_MEASURED or not steps or self.kernel.is_misfit(values):
            return self._smallest(*args, **keywords, **options, steps=steps)
        watch, result = self._watch(size), None
        for step in range(steps):
            if self._is_recorded():
                # The operation knows who may run then, and measures nothing.
                geometry = self._geometry(watch)
                result = self.operation.call_with(options, geometry, args, keywords)
                continue
            if watch.calls_left > 0:
                left = steps - step
                watch.calls_left -= left
                if left > 1:
                    options["steps"] = left
                return watch.function(*args, **keywords, **options)
            result = self._choose(watch, values, samples, options)
        return result

    def _is_recorded(self) -> bool:
        context = self.executable.context
        return not context.is_host and context.is_capturing()

    @property
    def _smallest(self) -> Kernel:
        return self.forms[self.smallest_form]

    def _choose(
        self,
        watch: Watch,
        values: Sequence[Any],
        samples: int | None,
        options: Mapping[str, Any],
    ) -> Any:
        """Run a call by the decision that holds, and more after it; or else by the operation."""
        context = self.executable.context
        if not context.is_host:
            context.sync()  # to wait for calls before is not what a look takes
        started_ns = perf_counter_ns()
        if self._shortcut is not None:
            self._shortcut.account()
        watch.account(started_ns)
        if watch.is_look_due:
            self._look(watch, values, samples)
        args, keywords = self.kernel.binder.arguments(values)
        geometry = self._geometry(watch)
        decided = self.operation.standing(geometry, args, keywords)
        if decided is None:
            watch.tried()
            return self.operation.call_with(options, geometry, args, keywords)
        watch.grant(decided, perf_counter_ns() - started_ns)
        if self._shortcut is not None:
            self._shortcut.take(watch, values)
        return decided.function(*args, **keywords, **options)

    # -- the mix ---------------------------------------------------------------------------------

    def _watch(self, size: int) -> Watch:
        bits = size.bit_length()
        return self._watches.get(bits) or self._watches.setdefault(bits, Watch(bits))

    @cached_property
    def _sampler(self) -> Sampler:
        # Where one form is forced, the mix decides nothing.
        return Sampler(self.executable, self._groups if len(self.forms) > 1 else ())

    @cached_property
    def _forecast(self) -> Forecast | None:
        """None where nothing is known of times, or of the classes of some dispatch."""
        from .forecast import Forecast, is_possible

        is_known = self._sampler.groups == tuple(self._groups) and self.executable.can_compile
        if not (is_known and is_possible(self.executable, self._groups)):
            return None
        return Forecast(self.executable, self._policies)

    def _look(self, watch: Watch, values: Sequence[Any], samples: int | None) -> None:
        """Find out which mix calls have now."""
        expect = self._expected if 1 << (watch.bits - 1) >= SMALLEST_SPLIT else _nothing_expected
        watch.looked(self._sampler.counts(values, samples), expect)

    def _expected(self, mix: Mix) -> Known:
        if self._forecast is None:
            return _nothing_expected(mix)
        from .forecast import ruled_out

        shares = dict(zip(self._sampler.groups, mix.shares, strict=True))
        estimates_ns = self._forecast.estimates(shares)
        return Known(mix, estimates_ns, ruled_out(estimates_ns))

    def explain(self, values: Sequence[Any]) -> Explanation:
        """What is known about calls like one with these values."""
        args, keywords = self.kernel.binder.arguments(values)
        watch = self._watch(self._size(args, keywords))
        if watch.is_look_due:
            self._look(watch, values, None)
        told = self.operation.explain(*args, **keywords)
        known = {each.name: getattr(told, each.name) for each in fields(told)}
        shares = () if watch.mix is None else watch.mix.shares
        mix = dict(zip(self._sampler.groups, shares, strict=False))
        return PolicyExplanation(**known, mix=mix, estimates_ns=watch.estimates_ns)

    # -- short ways ------------------------------------------------------------------------------

    def native_entry(
        self, values: Sequence[Any], fallback: Callable[..., Any]
    ) -> Callable[..., Any] | None:
        """A short way for calls by position with arrays of NumPy; `fallback` for all others."""
        context = self.executable.context
        if not context.is_host or self.kernel.binder.has_keywords or self.kernel.steps != 1:
            return None
        is_pinned = self.kernel.device is not None
        count, place, name = len(values), self.measured_place, context.name
        dtype = values[place].dtype
        choose, smallest, watches = self._choose, self._smallest, self._watches

        def entry(*args: Any, **keywords: Any) -> Any:
            if (
                len(args) != count
                or keywords
                or type(args[place]) is not np.ndarray
                or args[place].dtype is not dtype
                or not (is_pinned or active_name() == name)
            ):
                return fallback(*args, **keywords)
            size = args[place].size
            if size < SMALLEST_MEASURED:
                return smallest(*args)
            watch = watches.get(size.bit_length())
            if watch is None:
                return fallback(*args)
            if watch.calls_left <= 0:
                return choose(watch, args, None, _NO_OPTIONS)
            watch.calls_left -= 1
            return watch.function(*args)

        # What stands in a class is not to become a method.
        self._shortcut = _Shortcut(self, values, staticmethod(entry))
        return self._shortcut.own

    def form_entry(
        self, form: str, values: Sequence[Any], fallback: Callable[..., Any], limit: CallLimit
    ) -> Callable[..., Any] | None:
        """Machine code for calls by one form; None where there is none."""
        # Its launchers have learnt from calls by Python when to use threads.
        executable = self.forms[form].found(self.executable.context, values)
        is_pinned = self.kernel.device is not None
        entry: Callable[..., Any] | None = executable.native_entry(
            values, fallback, limit=limit, is_pinned=is_pinned
        )
        return entry


def _nothing_expected(mix: Mix) -> Known:
    return Known(mix, {}, {})


class Counted:
    """Runs calls that count branches by the forms of calls that do not."""

    has_asked_for_entry = True

    def __init__(self, automatic: Automatic, counters: Sequence[str]) -> None:
        self._automatic = automatic
        self._counters = counters

    def __call__(
        self, values: Sequence[Any], samples: int | None, steps: int, counters: Sequence[Any]
    ) -> Any:
        named = dict(zip(self._counters, counters, strict=True))
        return self._automatic.run(values, samples, steps, named)


_NO_OPTIONS: Mapping[str, Any] = {}


class _Shortcut:
    """Machine code that runs the chosen form of one size of calls, as often as it may.

    Attributes
    ----------
    own : callable
        The newest entry of the kernel. It runs the smallest calls, and hands on all others.
    """

    def __init__(
        self, automatic: Automatic, values: Sequence[Any], entry: Callable[..., Any]
    ) -> None:
        self._automatic = automatic
        place = automatic.measured_place
        smallest = CallLimit(place)
        smallest.allow(_UNLIMITED, 0, SMALLEST_MEASURED - 1)
        form = automatic.smallest_form
        self.own = automatic.form_entry(form, values, entry, smallest) or entry
        self._limit = CallLimit(place)
        self._entries: dict[str, Callable[..., Any] | None] = {}
        self._watch: Watch | None = None

    def account(self) -> None:
        """Give back the calls that were not run, and run no more."""
        if self._watch is not None:
            self._watch.calls_left += self._limit.left.value
            self._watch = None
            self._limit.left.value = 0

    def take(self, watch: Watch, values: Sequence[Any]) -> None:
        """Take most of the calls that a watch has, where that is worth while."""
        calls = watch.calls_left - _CALLS_OF_PYTHON
        is_short = 0 < watch.call_ns <= SHORT_CALL_NS and watch.form in self._automatic.forms
        if calls <= 0 or not is_short:
            return
        if watch.form not in self._entries:
            make = self._automatic.form_entry
            self._entries[watch.form] = make(watch.form, values, self.own, self._limit)
        entry = self._entries[watch.form]
        if entry is None:
            return
        self._automatic.kernel.start_calls_at(entry, self.own)
        self._watch = watch
        watch.calls_left = _CALLS_OF_PYTHON
        self._limit.allow(calls, 1 << (watch.bits - 1), (1 << watch.bits) - 1)


_UNLIMITED = 2**62
_CALLS_OF_PYTHON = 8
"""Calls that are left for those that have counters, for example, which machine code hands on."""


@record
class PolicyExplanation(Explanation):
    """All that is known of the policies for some arguments; ``print`` shows it as a table.

    It has what an `Explanation` has, and

    Attributes
    ----------
    mix : dict of str to tuple of float
        The share of each class by dispatch, as seen in a few samples; without those dispatches
        whose classes cannot be told before the run.
    estimates_ns : dict of str to float
        What the model of time expects of each form, in nanoseconds per sample; empty where it
        expects nothing.
    """

    mix: Mapping[str, tuple[float, ...]]
    estimates_ns: Mapping[str, float]

    def _remarks(self) -> list[str]:
        lines = super()._remarks()
        for name, shares in self.mix.items():
            lines.append(f"mix of {name}: {', '.join(f'{share:.1%}' for share in shares)}")
        if self.estimates_ns:
            estimates = (f"{form} {ns:.2g} ns" for form, ns in self.estimates_ns.items())
            lines.append(f"estimates per sample: {', '.join(estimates)}")
        return lines
