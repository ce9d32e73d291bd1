"""Kernels and the path of a call, from top to bottom.

A call binds its arguments, finds its device, and looks up the executable for that device and the
exact types of the arguments. The first call with new types makes it: the source is lowered to a
plan (`turnout.lang`), dispatches are lowered, and every unit is compiled or taken from the disk
cache (`turnout.compilation`). The executable checks shapes, writability and overlap
(`turnout.arguments`) and runs the steps of the plan.
"""

from __future__ import annotations

import inspect
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import MethodType
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from . import ir
from .arguments import (
    Binder,
    Types,
    as_arguments,
    call_error,
    call_types,
    is_same_view,
    overlap_problem,
    overlaps,
    sample_count,
    scalar_conversion,
    stand_in,
    type_key,
    writability_problems,
)
from .backends import checked_spelling, choice_of, resolve
from .direct import (
    NO_DEFAULT,
    CallLimit,
    DirectCall,
    DirectParameter,
    DirectResult,
    DirectRun,
)
from .errors import (
    KernelError,
    OutOfBoundsError,
    PerformanceWarning,
    TurnoutError,
    warn_the_caller,
)
from .hooks import Device, IndexViolation, Options
from .lang import (
    SAMPLES,
    FreeNames,
    Func,
    KernelSource,
    LoweredKernel,
    ParameterSpec,
    Returned,
    Signature,
    lower_kernel,
    parse_function,
    parse_signature,
    read_lines,
)
from .lang.names import constant
from .loading import DeviceContext
from .lower import plan_dispatches, with_policies
from .pickling import Definition, define, reduced
from .positions import reach_check, reach_problems
from .segmentation import counted, is_cheap_on_the_way
from .sizes import (
    SizeCheck,
    Sizes,
    asked_sizes,
    scalar_literals,
    specialised,
    types_of_scalars,
)
from .stepping import stepped

if TYPE_CHECKING:
    from .hooks import Binary
    from .launches import Launch, Load, SplitLaunch

# Imports inside of functions below are what only the first call of a kernel needs: programs that
# define kernels are to start fast.


class Kernel:
    """A compiled function; made by `turnout.kernel`.

    Call it with arrays and numbers, by position or keyword. Every call also takes

    device : str or Device, optional
        Where to run, for example ``"cpu"`` or ``"cuda:1"``.
    samples : int, optional
        Per-sample form only: run the first `samples` samples of arrays that are at least as long.
    steps : int, optional
        Run the whole kernel so many times, each on what the one before has left.
    <dispatch>_mix : array of uint32, optional
        For each dispatch, ``dispatch0_mix`` for the first one that has no name of its own: how
        often each branch was taken is added to its first elements.

    Attributes
    ----------
    __wrapped__ : callable
        The Python function. It is never run; its source is compiled.
    constants : mapping of str to object
        What `with_constants` was given.
    device : str or None
        Where calls run that name no device themselves, as `on` was given it.
    steps : int
        How many steps a call takes that does not say so itself.
    chosen_policies : mapping of str to str
        What `turnout.resolve_dispatch` has chosen, by dispatch.
    sizes : Sizes or None
        What `specialise` was given.
    specialise_after : int
        After how many calls with arrays of the same shapes code for these is tried; 0 for never.
    """

    __turnout_kernel__ = True

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        fastmath: bool = False,
        debug: bool = False,
        lines: list[str] | None = None,
        signature: Signature | None = None,
        constants: Mapping[str, Any] | None = None,
        device: str | None = None,
        steps: int = 1,
        chosen_policies: Mapping[str, str] | None = None,
        sizes: Sizes | None = None,
        specialise_after: int = 0,
    ) -> None:
        self._lines = read_lines(function) if lines is None else lines
        self.__wrapped__ = function
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.__signature__ = inspect.signature(function)
        self.fastmath = fastmath
        self.debug = debug
        self.signature = parse_signature(function) if signature is None else signature
        self.sizes = sizes
        self.specialise_after = specialise_after
        self.binder = Binder(
            self.__name__, self.__signature__, dict(sizes.scalars if sizes else ())
        )
        self.constants: Mapping[str, Any] = constants or {}
        self.device = device
        self.steps = steps
        self.chosen_policies: Mapping[str, str] = chosen_policies or {}
        self._free = FreeNames(function, self.constants)
        self._executables: dict[tuple[Hashable, ...], Any] = {}
        self._specialised: dict[Hashable, Kernel] = {}
        self._entries: list[Callable[..., Any]] = []
        self._warned_of_copies_to: set[str] = set()
        self._lock = threading.RLock()
        _kernels.add(self)

    def __call__(
        self,
        *args: Any,
        device: str | Device | None = None,
        samples: int | None = None,
        steps: int | None = None,
        **keywords: Any,
    ) -> Any:
        values: Sequence[Any] = args
        counters = self._taken_counters(keywords) if keywords else {}
        if keywords or len(args) != self.binder.count:
            values = self.binder(args, keywords)
        given, values = values, as_arguments(self.__name__, self.signature.parameters, values)
        if device is None:
            device = self.device
        context = resolve(values, device, self, are_on_host=values is given)
        key = (context, *counters, *type_key(values))
        executable = self._executables.get(key)
        if executable is None:
            executable = self._make(context, key, values, samples, tuple(counters))
        elif not executable.has_asked_for_entry:
            self._call_natively(executable, values)
        steps = self.steps if steps is None else self._checked_steps(steps)
        return executable(values, samples, steps, list(counters.values()))

    def _make(
        self,
        context: DeviceContext,
        key: tuple[Hashable, ...],
        values: Sequence[Any],
        samples: int | None,
        counters: tuple[str, ...],
    ) -> Executable:
        types = call_types(self.__name__, self.signature, values, context, samples)
        if self.sizes:
            # Literals of units are what fits these sizes, and may have no value in other types.
            check = SizeCheck(self.signature.parameters, self.sizes)
            if problems := list(check.problems(values)):
                raise call_error(self.__name__, problems)
        with self._lock:
            executable = self._executables.get(key)
            if executable is None:
                executable = self._executable(types, context, counters)
                if executable.has_open_dispatches:
                    uncounted = self.found(context, values, samples) if counters else None
                    executable = self.choose_policies(executable, uncounted)
                elif not counters and self.specialise_after:
                    executable = self.watch_sizes(executable)
                self._executables[key] = executable
        return executable

    def found(
        self, context: DeviceContext, values: Sequence[Any], samples: int | None = None
    ) -> Any:
        """What runs calls without counters, made if need be."""
        key = (context, *type_key(values))
        return self._executables.get(key) or self._make(context, key, values, samples, ())

    def _executable(
        self, types: Types, context: DeviceContext, counters: tuple[str, ...]
    ) -> Executable:
        return Executable(self, self.lower(types), types, context, counters)

    def choose_policies(self, executable: Executable, uncounted: Any) -> Any:
        """What runs the calls for which `executable` was made: `turnout.policy.automatic`.

        It is above in the order of modules, so `turnout` puts it here. `uncounted` is what runs
        such calls without counters, None where they have none.
        """
        return executable

    def watch_sizes(self, executable: Executable) -> Any:
        """What runs the calls of a kernel with ``specialise_after``: `turnout.hot_sizes.watched`.

        It is above in the order of modules too.
        """
        return executable

    def _taken_counters(self, keywords: dict[str, Any]) -> dict[str, Any]:
        """The counters of branches among the arguments of a call, which are taken out of these."""
        names = [
            name
            for name in keywords
            if name.endswith(MIX_SUFFIX) and name not in self.__signature__.parameters
        ]
        return {name: keywords.pop(name) for name in sorted(names)}

    def _checked_steps(self, steps: object) -> int:
        if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 0:
            raise call_error(
                self.__name__, [f"steps must be a whole number from 0 on, not {steps!r}"]
            )
        return int(steps)

    def _call_natively(self, executable: Executable, values: Sequence[Any]) -> None:
        """Make native code the ``__call__`` of a type of the kernel's own, if the backend has it.

        Python looks ``__call__`` up in the type, so only that way a call reaches the code at once.
        Code for further types of arguments goes in front and falls back on what was there before.
        It is made at the second call, because a program that makes only one would wait in vain.
        """
        with self._lock:
            if executable.has_asked_for_entry:
                return
            executable.has_asked_for_entry = True
            self.put_in_front(executable, values)

    def put_in_front(self, executable: Executable, values: Sequence[Any]) -> None:
        """Let calls that fit the native code of an executable run by it, and not by what was there.

        `values` are those of such a call.
        """
        with self._lock:
            if len(self._entries) == _MAXIMUM_ENTRIES:
                return
            fallback = self._entries[-1] if self._entries else MethodType(Kernel.__call__, self)
            entry = executable.native_entry(values, fallback)
            if entry is None:
                return
            if not self._entries:
                shared = type(self)
                names = {"__module__": shared.__module__, "__doc__": shared.__doc__}
                self.__class__ = type(shared.__name__, (shared,), names)
            self._entries.append(entry)
            type(self).__call__ = entry  # type: ignore[method-assign]

    def start_calls_at(self, entry: Callable[..., Any], own: Callable[..., Any]) -> None:
        """Let `entry` take the calls before `own`, on which it falls back.

        Nothing is done where `own` is no longer the newest entry of the kernel.
        """
        with self._lock:
            if self._entries and self._entries[-1] is own:
                type(self).__call__ = entry  # type: ignore[method-assign]

    def replace_entry(self, entry: Callable[..., Any], other: Callable[..., Any]) -> None:
        """Let calls begin at `other`, if they begin at `entry`."""
        with self._lock:
            self.start_calls_at(other, entry)
            if self._entries and self._entries[-1] is entry:
                self._entries[-1] = other

    def dispatch_entries(self) -> list[dict[str, Any]]:
        """Describe the dispatches: what a sidecar of the kernel lists.

        Returns
        -------
        list of dict
            One per dispatch in the order of the source, with the keys ``name``, ``K``, ``policy``,
            ``static_selector``, ``selector_reads`` and, for ``"auto"``, ``mix``; see
            `turnout.selectors.dispatch_entries`.
        """
        from .selectors import dispatch_entries

        return dispatch_entries(self)

    def explain(self, *args: Any, **keywords: Any) -> Any:
        """Explain how calls with these arguments run, and why; runs nothing.

        Parameters
        ----------
        *args, **keywords
            The same arguments as in a call.

        Returns
        -------
        Explanation
            As of an operation of `perf_dispatch`: its implementations are the policies, or with
            ``specialise_after`` the code for any and for these shapes. That of policies also has
            ``mix``, the share of each class by dispatch, as seen in a few samples, and
            ``estimates_ns``, what is expected of each policy, per sample, where anything is.

        Raises
        ------
        KernelError
            Where every policy is declared, only one is possible on the device, or no code is
            specialised for such calls.
        """
        values = as_arguments(self.__name__, self.signature.parameters, self.binder(args, keywords))
        context = resolve(values, self.device, self)
        executable = self.found(context, values)
        if isinstance(executable, Executable):
            raise KernelError(
                f"kernel {self.__name__} has nothing to choose on {context.name}: no dispatch is "
                'declared with policy="auto"'
                if not executable.has_open_dispatches
                else f"kernel {self.__name__} runs its dispatches as 'switch' on {context.name}"
            )
        return executable.explain(values)

    @cached_property
    def source(self) -> KernelSource:
        """The parsed source; parsed at the first use."""
        parsed = parse_function(self.__wrapped__, self._lines)
        return KernelSource(self.__name__, parsed, self._free, self.signature, self.fastmath)

    @property
    def file(self) -> str:
        """Where its source is, for messages."""
        return self.source.source.file

    @cached_property
    def definition(self) -> Definition:
        """What the kernel is made of, as far as what it computes goes."""
        options: dict[str, Any] = {
            "fastmath": self.fastmath,
            "debug": self.debug,
            "device": self.device,
            "steps": self.steps,
            "chosen_policies": dict(self.chosen_policies),
        }
        if self.sizes:
            options["sizes"] = self.sizes
        if self.specialise_after:
            options["specialise_after"] = self.specialise_after
        return define(self.__wrapped__, self._lines, self._free, self.signature, options)

    def with_constants(self, /, **values: Any) -> Kernel:
        """The same kernel with other values for names that it takes from outside.

        Parameters
        ----------
        **values
            By name: globals or closure variables that the body of the kernel reads, or names that
            have no value yet. Helpers that it calls keep their own.

        Returns
        -------
        Kernel
            Another kernel, compiled on its own; this one stays as it is.

        Raises
        ------
        KernelError
            Where the kernel reads no such name, or a value is nothing that kernels can hold.

        Examples
        --------
        >>> import numpy as np, turnout as tn
        >>> from turnout import Scalar
        >>> factor = 2
        >>> @tn.kernel
        ... def scaled(x: Scalar) -> Scalar:
        ...     return x * factor
        >>> scaled.with_constants(factor=10)(np.array([1.0, 2.0]))
        array([10., 20.])
        """
        names = self._free.overridable(self.source.source.tree)
        for name, value in values.items():
            if name not in names:
                raise KernelError(
                    f"kernel {self.__name__} takes no constant {name!r} from outside; it takes "
                    f"{', '.join(map(repr, names)) or 'none'}. Constants are globals and closure "
                    "variables that its body reads"
                )
            try:
                constant(value, name)
            except TypeError as error:
                raise KernelError(f"kernel {self.__name__}: {error}") from None
        return self._varied(constants={**self.constants, **values})

    def on(self, device: str | Device) -> Kernel:
        """The same kernel for one device.

        Parameters
        ----------
        device : str or Device
            Where calls run that have no ``device=`` themselves, whatever is in use. It need not be
            there before the first call.

        Returns
        -------
        Kernel
            Another kernel; this one stays as it is. It can be registered as an implementation
            beside others, and does not take part where arrays are on other devices.

        Raises
        ------
        CallError
            If `device` is no spelling of a device.

        Examples
        --------
        >>> import numpy as np, turnout as tn
        >>> from turnout import Scalar
        >>> @tn.kernel
        ... def doubled(x: Scalar) -> Scalar:
        ...     return x * 2
        >>> doubled.on("reference")(np.array([1.0, 2.0]))
        array([2., 4.])
        """
        return self._varied(device=checked_spelling(device))

    def specialise(self, /, *, samples: int | None = None, **sizes: Any) -> Kernel:
        """The same kernel for calls of one size; also spelled ``specialize``.

        Lengths and numbers become constants of the compiled code: what depends on them is computed
        when it is compiled, and short loops over them are written out. Results keep their bits.

        Parameters
        ----------
        samples : int, optional
            Per-sample form only: the number of samples of each call. Where it is not given, shapes
            of per-sample arrays tell it.
        **sizes : tuple of int or None, or number
            By parameter: the shape of an array, with None for a length that stays open, or the
            value of a number.

        Returns
        -------
        Kernel
            Called as this one, which stays as it is; numbers that are known may be left out.
            A call with other sizes raises `CallError`. The same sizes give the same object.

        Raises
        ------
        KernelError
            For what is no parameter, no shape of it or no number that it takes.

        Examples
        --------
        >>> import numpy as np, turnout as tn
        >>> from turnout import NDArray, Param, f64
        >>> @tn.kernel
        ... def scaled(a: NDArray[f64, 1], factor: Param, out: NDArray[f64, 1]):
        ...     for i in range(a.shape[0]):
        ...         out[i] = a[i] * factor
        >>> scaled_by_2 = scaled.specialise(a=(3,), factor=2.0)
        >>> out = np.empty(3)
        >>> scaled_by_2(np.arange(3.0), out=out)
        >>> out
        array([0., 2., 4.])
        """
        asked = asked_sizes(self.__name__, self.signature, sizes, samples, self.sizes)
        with self._lock:
            found = self._specialised.pop(asked.key, None)
            if found is None:
                watched = {"specialise_after": 0} if self.specialise_after else {}
                found = self._varied(sizes=asked, **watched)
                if len(self._specialised) >= _MAXIMUM_SPECIALISED:
                    del self._specialised[next(iter(self._specialised))]
            self._specialised[asked.key] = found  # the one that was asked for last stays longest
        return found

    specialize = specialise

    def fits(self, *args: Any, **keywords: Any) -> bool | str:
        """Whether a call is of the sizes that the kernel is specialised for.

        Parameters
        ----------
        *args, **keywords
            The same arguments as in the call.

        Returns
        -------
        bool or str
            True, as always for a kernel that is not specialised, or else why not. Operations ask
            so before they choose the kernel.
        """
        if self.sizes is None:
            return True
        values = self.binder(args, keywords) if keywords or len(args) != self.binder.count else args
        return next(self._size_check.problems(values), True)

    def is_misfit(self, values: Sequence[Any]) -> bool:
        """Whether the values of the parameters are not of the sizes of a specialised kernel."""
        return self.sizes is not None and any(self._size_check.problems(values))

    @cached_property
    def _size_check(self) -> SizeCheck:
        """For calls that do not say ``samples=``."""
        specs = self.signature.parameters
        return SizeCheck(specs, (self.sizes or Sizes()).of_calls(specs))

    def _varied(self, **changed: Any) -> Kernel:
        options = {
            "constants": self.constants,
            "device": self.device,
            "steps": self.steps,
            "chosen_policies": self.chosen_policies,
            "sizes": self.sizes,
            "specialise_after": self.specialise_after,
            **changed,
        }
        return Kernel(
            self.__wrapped__,
            fastmath=self.fastmath,
            debug=self.debug,
            lines=self._lines,
            signature=self.signature,
            **options,
        )

    @property
    def options(self) -> Options:
        """How the units of this kernel are compiled."""
        return Options(debug=self.debug)

    def lower(self, types: Types) -> LoweredKernel:
        """The kernel as a plan of typed units, for given types of its parameters."""
        return self._finished(lower_kernel(self.source, types), types)

    def lower_unresolved(self, types: Types) -> LoweredKernel:
        """As `lower`, leaving names from outside unresolved, which first calls are to resolve."""
        free = FreeNames(self.__wrapped__, self.constants)
        return self._finished(lower_kernel(replace(self.source, free=free), types), types)

    def _finished(self, lowered: LoweredKernel, types: Types) -> LoweredKernel:
        """The plan for the sizes and policies of the kernel."""
        if self.sizes:
            lowered = specialised(self.__name__, self.signature, lowered, self.sizes, types)
        return replace(lowered, plan=with_policies(lowered.plan, self.chosen_policies))

    def default_types(self, width: ir.DType = ir.f64) -> Types:
        """Types of a typical call, for reading the code of a kernel that was not called yet."""
        types: Types = {"return": width}
        for spec in self.signature.parameters:
            types[spec.name] = spec.dtype or ("float" if spec.role == "param" else width)
        if self.sizes:
            types |= types_of_scalars(self.signature.parameters, self.sizes)
        return types

    def __repr__(self) -> str:
        parameters = ", ".join(f"{s.name}: {s.annotation}" for s in self.signature.parameters)
        known = [f"{name}={value}" for name, value in self.constants.items()]
        known += [str(self.sizes)] if self.sizes else []
        name = self.__qualname__ + (f"[{', '.join(known)}]" if known else "")
        where = "" if self.device is None else f" on {self.device}"
        return f"<turnout.kernel {name}({parameters}){where}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        return reduced(self, lambda: self.definition, _make_kernel)

    def __copy__(self) -> Kernel:
        return self

    def __deepcopy__(self, memo: Any) -> Kernel:
        return self


def _make_kernel(definition: Definition) -> Kernel:
    return Kernel(
        definition.function(),
        lines=definition.file_lines,
        signature=definition.signature,
        **definition.options,
    )


MIX_SUFFIX = "_mix"
"""What follows the name of a dispatch in that of its counter."""

STEPS = "steps"
"""Name of the number of steps in a unit that takes several at once."""

_MAXIMUM_ENTRIES = 4
"""A call that fits none of so many falls through them all."""

_MAXIMUM_SPECIALISED = 256
"""Kernels that one kernel remembers to have made for sizes."""

_kernels: weakref.WeakSet[Kernel] = weakref.WeakSet()


def _renew_locks() -> None:
    # A thread that compiled while another one forked does not exist in the child, its lock does.
    for kernel in _kernels:
        kernel._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class Executable:
    """A kernel for one device and one combination of argument types.

    The arguments of a call are a list: the values of the parameters, counters of branches, the
    number of samples, the arrays to return, scratch arrays. `_places` knows their places in it by
    name.
    """

    def __init__(
        self,
        kernel: Kernel,
        lowered: LoweredKernel,
        types: Types,
        context: DeviceContext,
        counters: Sequence[str] = (),
    ) -> None:
        self.kernel = kernel
        self.lowered = lowered
        self.types = types
        self.context = context
        self._counters = self._counted_groups(counters)
        self.plan = self.lower_plan(self._counted(lowered.plan))
        self._specs = specs = kernel.signature.parameters
        self._scratch = [step for step in self.plan.steps if isinstance(step, ir.Scratch)]
        names = [*(spec.name for spec in specs), *self._counters]
        names += [SAMPLES, *(spec.name for spec in lowered.returned)]
        names += [scratch.name for scratch in self._scratch]
        self._places = {name: place for place, name in enumerate(names)}
        runs = self.plan.runs
        self._launches = [
            self._launch(step) for step in self.plan.steps if not isinstance(step, ir.Scratch)
        ]
        places = list(enumerate(specs))
        has_mask = any(spec.role == "mask" for spec in specs)
        self._allocators = [_allocator(spec, has_mask) for spec in lowered.returned]
        self._returns_tuple = kernel.signature.returns_tuple or len(lowered.returned) > 1
        self._planes = [place for place, spec in places if spec.role in ("plane", "mask")]
        self._vectors = [(place, spec.width) for place, spec in places if spec.width]
        self._scalars = [
            (place, scalar_conversion(spec, types[spec.name]))
            for place, spec in places
            if not spec.rank
        ]
        arrays = [array for run in runs for array in run.unit.arrays.values()]
        written = {array.name for array in arrays if array.is_written}
        self._written = [place for place, spec in places if spec.rank and spec.name in written]
        self._pairs = _overlap_pairs(runs, {spec.name: place for place, spec in places})
        # With `debug` every index is checked where it is used, which tells more.
        found = dict.fromkeys(r for run in runs for r in run.reaches)
        self._reaches = [] if kernel.debug else list(found)
        self._are_long_enough = reach_check(self._reaches, self._places)
        self._sizes = SizeCheck(specs, kernel.sizes) if kernel.sizes else None
        self.has_asked_for_entry = False

    @property
    def counters(self) -> tuple[str, ...]:
        """Names of the counters that a call has."""
        return tuple(self._counters)

    @property
    def _unit_launches(self) -> list[Launch]:
        """The launches of single units, which native code can take over."""
        from .launches import Launch

        return [launch for launch in self._launches if isinstance(launch, Launch)]

    @property
    def has_open_dispatches(self) -> bool:
        """Whether a policy is still to be chosen."""
        return any(group.policy == "auto" for group in plan_dispatches(self.lowered.plan))

    # What a kernel that was loaded from a bundle does in another way.

    can_compile = True
    """Whether code may be compiled that calls do not need, to find out something about them."""

    def lower_plan(self, plan: ir.Plan) -> ir.Plan:
        """The plan with all dispatches lowered for the device."""
        from .compilation import lower_plan

        return lower_plan(plan, self.context.backend, self.context.device.target)

    @property
    def load_unit(self) -> Load:
        """What gives the loaded code of a unit."""
        from .compilation import load_unit

        return load_unit

    def _cached_text(self, text: str, make: Callable[[], Binary]) -> Binary:
        """What a backend has made of a text that decides every byte of it."""
        from .compilation import compile_text

        return compile_text(self.context, text, make)

    def _counted(self, plan: ir.Plan) -> ir.Plan:
        return counted(
            plan,
            {group.name: name for name, group in self._counters.items()},
            has_private_counters=self._has_private_counters,
        )

    @property
    def _has_private_counters(self) -> bool:
        return "private_counters" in self.context.device.target.features

    @cached_property
    def _stepping(self) -> Launch | SplitLaunch | None:
        """What takes any number of steps at once; None where the plan has to be repeated.

        The number stands behind all other arguments.
        """
        # Of indices that are out of bounds the first one is to be reported.
        if self.kernel.debug or not self.can_compile:
            return None
        # An atomic update for each sample and step would take longer than more launches.
        if self._counters and not self._has_private_counters:
            return None
        if not all(map(is_cheap_on_the_way, self._counters.values())):
            return None
        name = STEPS
        while name in self._places:
            name += "_"
        plan = stepped(self.lowered.plan, name)
        if plan is None:
            return None
        (step,) = self.lower_plan(self._counted(plan)).steps
        assert not isinstance(step, ir.Scratch)
        return self._launch(step, {**self._places, name: len(self._places)})

    def _launch(
        self, step: ir.Run | ir.Split, places: Mapping[str, int] | None = None
    ) -> Launch | SplitLaunch:
        from .launches import Launch, SplitLaunch

        places = self._places if places is None else places
        how = self.context, self.kernel.options, self.out_of_bounds, self.load_unit
        if isinstance(step, ir.Split):
            return SplitLaunch(step, places, *how)
        return Launch(step.unit, places, *how)

    def _counted_groups(self, counters: Sequence[str]) -> dict[str, ir.Dispatch]:
        """The dispatches that counters are for, by the names of these."""
        if not counters:
            return {}
        groups = {f"{each.name}{MIX_SUFFIX}": each for each in plan_dispatches(self.lowered.plan)}
        if unknown := [name for name in counters if name not in groups]:
            hint = (
                f"its counters are {', '.join(groups)}"
                if groups
                else "it has no dispatch that its outputs depend on"
            )
            problems = [f"unknown argument {name!r}" for name in unknown]
            raise call_error(self.kernel.__name__, problems, hint)
        return {name: groups[name] for name in counters}

    def __call__(
        self,
        values: Sequence[Any],
        samples: int | None,
        steps: int,
        counters: Sequence[Any] = (),
    ) -> Any:
        problems = list(self._counter_problems(values, counters))
        count = self._count(values, samples, problems)
        if not (self.context.is_host and self._is_plain(values)):
            problems += self._array_problems(values)
        arguments = list(values)
        for place, convert in self._scalars:
            arguments[place] = convert(values[place], problems)
        if self._sizes is not None:
            problems += self._sizes.problems(values)
            problems += self._sizes.count_problems(count)
        if not problems and not self._are_long_enough(arguments):
            problems = reach_problems(self._reaches, self._places, arguments)
        if problems:
            raise call_error(self.kernel.__name__, problems)
        arguments += [*counters, count]
        if self.context.is_host:
            returned: list[Any] = [allocate(count) for allocate in self._allocators]
            self._run([*arguments, *returned], steps)
        else:
            returned = self._run_on_device(arguments, count, steps)
        return self._result(returned) if returned else None

    def _counter_problems(self, values: Sequence[Any], counters: Sequence[Any]) -> Iterator[str]:
        if not counters:
            return
        given = zip(self._specs, values, strict=True)
        arrays = [(spec.name, stand_in(v, self.context)) for spec, v in given if spec.rank]
        for (name, group), array in zip(self._counters.items(), counters, strict=True):
            least = len(group.arms)
            what = f"argument {name!r} must be an array of uint32 with at least {least} elements"
            is_host = isinstance(array, np.ndarray)
            if not (is_host or self.context.memory.owns(array)):
                yield f"{what}, not {type(array).__name__}"
            elif array.dtype != np.uint32 or array.ndim != 1 or array.shape[0] < least:
                yield f"{what}; given: {array.dtype} of shape {tuple(array.shape)}"
            elif is_host and not (array.flags.c_contiguous and array.flags.writeable):
                yield f"{what}, contiguous and writable"
            else:
                memory = stand_in(array, self.context)
                if others := [repr(other) for other, each in arrays if overlaps(memory, each)]:
                    yield (
                        f"argument {name!r} is counted in while the kernel runs, and shares memory "
                        f"with {', '.join(others)}; give it memory of its own"
                    )
                arrays.append((name, memory))

    def prepared(self, values: Sequence[Any], samples: int | None) -> list[Any] | None:
        """The arguments of units up to the number of samples; None where something is wrong."""
        problems: list[str] = []
        arguments = list(values)
        for place, convert in self._scalars:
            arguments[place] = convert(values[place], problems)
        count = self._count(values, samples, problems)
        if problems or not self._are_long_enough(arguments):
            return None
        return [*arguments, count]

    @property
    def places(self) -> dict[str, int]:
        """Where what units take stands among the arguments, by name."""
        return self._places

    def native_entry(
        self,
        values: Sequence[Any],
        fallback: Callable[..., Any],
        *,
        limit: CallLimit | None = None,
        is_pinned: bool | None = None,
    ) -> Callable[..., Any] | None:
        """A callable for calls like the one with `values`; None where there is none.

        `limit` says which of them it takes, if not all, and `is_pinned` whether they run on this
        device whatever is in use; by default that is as the kernel is.
        """
        has_samples = self.kernel.signature.form == "array" or self._planes
        if not (self._launches and has_samples) or self.kernel.debug:
            return None
        # Native code runs the units one after the other, once.
        is_split = len(self._unit_launches) < len(self._launches)
        if is_split or self.kernel.steps != 1:
            return None
        if self.kernel.sizes and self.kernel.sizes.takes_part_of(self._specs):
            return None
        if not self.context.is_host:
            has_more = limit or self._counters
            return None if has_more else self._device_entry(values, fallback)
        make = self._unit_launches[0].launcher.direct
        if make is None:
            return None
        try:
            call = self._direct_call(values, fallback)
            if is_pinned is not None:
                call = replace(call, device=choice_of(self.context, is_named=is_pinned))
            return make(replace(call, limit=limit))
        except TurnoutError:
            raise
        except Exception as error:
            from .compilation import backend_error

            raise backend_error(self.context.backend, "direct", error) from error

    def _device_entry(
        self, values: Sequence[Any], fallback: Callable[..., Any]
    ) -> Callable[..., Any] | None:
        arrays = [v for v, spec in zip(values, self._specs, strict=True) if spec.rank]
        if any(isinstance(array, np.ndarray) for array in arrays):
            return None  # they have to be copied, which takes longer than all else
        from .device_entry import device_entry

        return device_entry(
            self._direct_call(values, fallback),
            self.context,
            [array.dtype for array in arrays],
            dict(self._scalars),
            self._are_long_enough,
        )

    def _direct_call(self, values: Sequence[Any], fallback: Callable[..., Any]) -> DirectCall:
        results = zip(self.lowered.returned, self._allocators, strict=True)
        return DirectCall(
            name=self.kernel.__name__,
            parameters=(*self._direct_parameters(values), *map(_direct_counter, self._counters)),
            overlaps=(
                *((*pair, same) for pair, same in self._pairs.items()),
                *((*pair, False) for pair in self._counter_pairs()),
            ),
            reaches=(*self._reaches, *self._counter_reaches()),
            results=tuple(DirectResult(r.dtype, r.width, allocate) for r, allocate in results),
            returns_tuple=self._returns_tuple,
            scratch=tuple(self._scratch),
            runs=tuple(
                DirectRun(each.unit, each.launcher, each.places) for each in self._unit_launches
            ),
            target=self.context.device.target,
            device=choice_of(self.context, is_named=self.kernel.device is not None),
            fallback=fallback,
            cached=self._cached_text,
        )

    def _direct_parameters(self, values: Sequence[Any]) -> Iterator[DirectParameter]:
        given = self.kernel.__signature__.parameters.values()
        sizes = self.kernel.sizes or Sizes()
        literals = scalar_literals(self._specs, sizes, self.types)
        scalars = dict(sizes.scalars)
        for place, (parameter, spec, value) in enumerate(
            zip(given, self._specs, values, strict=True)
        ):
            dtype = self.types[spec.name]
            yield DirectParameter(
                name=spec.name,
                takes_position=parameter.kind is not parameter.KEYWORD_ONLY,
                takes_keyword=parameter.kind is not parameter.POSITIONAL_ONLY,
                default=scalars.get(spec.name, parameter.default),
                python_type=type(value),
                dtype=_WEAK_TYPES[dtype] if isinstance(dtype, str) else dtype,
                rank=spec.rank,
                width=spec.width,
                counts_samples=place in self._planes,
                is_written=place in self._written,
                shape=sizes.shape(spec),
                literal=literals.get(spec.name),
            )

    def _counter_pairs(self) -> Iterator[tuple[int, int]]:
        """Places of counters and of every array that they must not share memory with."""
        arrays = [place for place, spec in enumerate(self._specs) if spec.rank]
        for counter in map(self._places.__getitem__, self._counters):
            yield from ((array, counter) for array in arrays)
            arrays.append(counter)

    def _counter_reaches(self) -> Iterator[ir.Reach]:
        for name, group in self._counters.items():
            yield ir.Reach(name, 0, None, ir.QuantitySum((), len(group.arms) - 1), ())

    # -- checks ----------------------------------------------------------------------------------

    def _count(self, values: Sequence[Any], samples: int | None, problems: list[str]) -> int:
        """The number of samples; 0 for the array form."""
        if self.kernel.signature.form == "array":
            if samples is not None:
                problems.append(
                    "samples= is for the per-sample form, and this kernel is of the array form"
                )
            return 0
        lengths = {values[place].shape[-1] for place in self._planes}
        have_widths = all(values[place].shape[0] == width for place, width in self._vectors)
        if samples is None and len(lengths) == 1 and have_widths:
            count: int = lengths.pop()
            return count
        return sample_count(self._specs, values, samples, problems)

    def _is_plain(self, values: Sequence[Any]) -> bool:
        """Whether NumPy arrays are right at first sight; where not, a closer look decides."""
        for place in self._written:
            flags = values[place].flags
            if not (flags.writeable and flags.forc):
                return False
        for first, second in self._pairs:
            if np.may_share_memory(values[first], values[second]):
                return False
        return True

    def _array_problems(self, values: Sequence[Any]) -> list[str]:
        specs = self._specs
        if not self.context.is_host:
            values = [stand_in(value, self.context) for value in values]
        problems = writability_problems((specs[p].name, values[p]) for p in self._written)
        for (first, second), may_coincide in self._pairs.items():
            problem = overlap_problem(
                (specs[first].name, values[first]),
                (specs[second].name, values[second]),
                may_coincide,
            )
            problems += [problem] if problem else []
        return problems

    # -- runs ------------------------------------------------------------------------------------

    def _run(self, arguments: list[Any], steps: int) -> None:
        if steps > 1 and self._stepping is not None:
            self._stepping.run([*arguments, steps])
            return
        zeros = self.context.zeros
        for _ in range(steps):
            scratch = [zeros(each.shape, each.dtype.dtype) for each in self._scratch]
            for launch in self._launches:
                launch.run([*arguments, *scratch])

    def _run_on_device(self, arguments: list[Any], count: int, steps: int) -> list[Any]:
        """Run on a device with memory of its own; host arrays are copied there and back.

        What is returned lives where the arguments do: on the host if all arrays came from there.
        """
        memory = self.context.memory
        specs = self._specs
        places = [place for place, spec in enumerate(specs) if spec.rank]
        copied = {p: arguments[p] for p in places if isinstance(arguments[p], np.ndarray)}
        if copied:
            self._refuse_partial_overlap(copied)
            self._warn_of_copies([specs[place].name for place in copied])
        there: dict[int, Any] = {}
        for place, host in copied.items():
            same = (other for other in there if is_same_view(copied[other], host))
            original = next(same, None)
            there[place] = (
                memory.put(np.ascontiguousarray(host)) if original is None else there[original]
            )
            arguments[place] = there[place]
        results = [
            self.context.zeros(spec.shape(count), spec.dtype.dtype)
            for spec in self.lowered.returned
        ]
        counters: dict[int, np.ndarray[Any, Any]] = {}
        for place in map(self._places.__getitem__, self._counters):
            if isinstance(arguments[place], np.ndarray):
                counters[place] = arguments[place]
                arguments[place] = memory.put(arguments[place])
        self._run([*arguments, *results], steps)
        for place, counter in counters.items():
            self._copy_back(arguments[place], counter)
        for place in self._written:
            if place in copied:
                self._copy_back(there[place], copied[place])
        if not copied or len(copied) < len(places):
            return results
        returned = [allocate(count) for allocate in self._allocators]
        for result, array in zip(results, returned, strict=True):
            self._copy_back(result, array)
        return returned

    def _copy_back(self, there: Any, host: np.ndarray[Any, Any]) -> None:
        if not host.size:
            return
        back = host if host.flags.c_contiguous else np.empty(host.shape, host.dtype)
        self.context.memory.get(there, back)
        if back is not host:
            host[...] = back

    def _refuse_partial_overlap(self, copied: dict[int, np.ndarray[Any, Any]]) -> None:
        """One memory cannot be two copies, so the order of loads and stores would be lost."""
        specs = self._specs
        problems = [
            f"arguments {specs[first].name!r} and {specs[second].name!r} overlap in memory and "
            f"would be copied to {self.context.name} apart, though the kernel writes to one of "
            f"them; move the whole memory there with turnout.array(x) and slice it there"
            for first in self._written
            for second in copied
            if first in copied
            and first != second
            and overlaps(copied[first], copied[second])
            and not is_same_view(copied[first], copied[second])
        ]
        if problems:
            raise call_error(self.kernel.__name__, problems)

    def _warn_of_copies(self, names: Sequence[str]) -> None:
        if self.context.name in self.kernel._warned_of_copies_to:
            return
        self.kernel._warned_of_copies_to.add(self.context.name)
        warn_the_caller(
            f"kernel {self.kernel.__name__} runs on {self.context.name}; the NumPy arrays "
            f"{', '.join(names)} are copied there, and the written ones back, at every call. Keep "
            "them there with turnout.array(x). This is said once per kernel",
            PerformanceWarning,
        )

    def _result(self, returned: list[Any]) -> Any:
        return tuple(returned) if self._returns_tuple else returned[0]

    def out_of_bounds(self, unit: ir.Unit, violation: IndexViolation) -> OutOfBoundsError:
        """The error to raise of an index that a unit of the kernel had."""
        sites = [s for s in ir.statements(unit.body.body) if isinstance(s, ir.Load | ir.Store)]
        site = sites[violation.site]
        file = self.kernel.file
        index = violation.index
        shown = f"index {index - violation.extent if index < 0 else index}"
        return OutOfBoundsError(
            f"kernel {self.kernel.__name__}, {file}:{site.line}: {shown} is out of bounds for axis "
            f"{violation.axis} of {site.array!r}, which has length {violation.extent}"
        )


def _allocator(spec: Returned, has_mask: bool) -> Callable[[int], np.ndarray[Any, Any]]:
    """A function that makes an array to return, of as many samples as it is told."""
    # Samples that the mask skips are not written.
    make, dtype = np.zeros if has_mask else np.empty, spec.dtype.dtype
    if spec.width:
        return lambda count: make((spec.width, count), dtype)
    return partial(make, dtype=dtype)


def _direct_counter(name: str) -> DirectParameter:
    return DirectParameter(
        name=name,
        takes_position=False,
        takes_keyword=True,
        default=NO_DEFAULT,
        python_type=np.ndarray,
        dtype=ir.u32,
        rank=1,
        width=0,
        counts_samples=False,
        is_written=True,
        is_contiguous=True,
    )


_WEAK_TYPES = {"int": ir.i64, "float": ir.f64}
"""What Python numbers are converted to where nothing pins their type."""


def _overlap_pairs(runs: Sequence[ir.Run], places: dict[str, int]) -> dict[tuple[int, int], bool]:
    """Pairs of arguments that must not overlap; true where they may be the same elements."""
    pairs: dict[tuple[int, int], bool] = {}
    for run in runs:
        for names, may_coincide in ((run.elementwise, True), (run.exclusive, False)):
            for first, second in names:
                if first in places and second in places:
                    pair = (places[first], places[second])
                    pairs[pair] = may_coincide and pairs.get(pair, True)
    return pairs


@overload
def kernel(function: Callable[..., Any], /) -> Kernel: ...
@overload
def kernel(
    *, fastmath: bool = False, debug: bool = False, steps: int = 1, specialise_after: int = 0
) -> Callable[[Callable[..., Any]], Kernel]: ...


def kernel(
    function: Callable[..., Any] | None = None,
    /,
    *,
    fastmath: bool = False,
    debug: bool = False,
    steps: int = 1,
    specialise_after: int = 0,
) -> Any:
    """Compile a Python function; use as a decorator, plain or with options.

    With a parameter annotated `Scalar`, `Index`, `Vector`, `Mutable` or `Terminated` the body is
    that of one sample; otherwise it is the array form, with loops and indexing.

    Parameters
    ----------
    function : callable
        Its source is compiled at the first call with each combination of argument types.
    fastmath : bool
        Allow floating point to be reassociated, contracted and approximated.
    debug : bool
        Check every index; a violation raises `OutOfBoundsError`.
    steps : int
        How often a call runs the whole kernel, each time on what the last one has left; calls may
        say otherwise.
    specialise_after : int
        After so many calls with arrays of the same shapes, compile the kernel for these shapes too,
        and use that where it is measured to be faster; for few shapes at most. 0: never.

    Returns
    -------
    Kernel

    Raises
    ------
    KernelError
        Where annotations are missing or wrong, or the source is not available. What is wrong inside
        of the body is found at the first call, when types are known.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> from turnout import Param, Scalar
    >>> @tn.kernel
    ... def scaled(x: Scalar, factor: Param) -> Scalar:
    ...     return x * factor
    >>> scaled(np.array([1.0, 2.0]), 3)
    array([3., 6.])
    """
    for name, option in (("fastmath", fastmath), ("debug", debug)):
        if not isinstance(option, bool):
            raise KernelError(f"kernel({name}={option!r}): give True or False")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise KernelError(f"kernel(steps={steps!r}): give a whole number from 1 on")
    is_whole = isinstance(specialise_after, int) and not isinstance(specialise_after, bool)
    if not is_whole or specialise_after < 0:
        raise KernelError(
            f"kernel(specialise_after={specialise_after!r}): give a whole number of calls, or 0"
        )
    options: dict[str, Any] = {"fastmath": fastmath, "debug": debug, "steps": steps}
    options["specialise_after"] = specialise_after
    if function is None:
        return lambda decorated: kernel(decorated, **options)
    operation = getattr(function, "__turnout_registered__", None)
    if operation:
        raise KernelError(
            f"{function.__name__} is already registered as an implementation of {operation!r}; the "
            "register decorator must be the topmost one, above turnout.kernel"
        )
    if isinstance(function, Kernel | Func):
        raise KernelError(f"{function!r} is compiled already; decorate the plain function once")
    return Kernel(function, **options)


def func(function: Callable[..., Any]) -> Func:
    """Make a helper that kernels may call; its body is inlined into the kernel.

    Parameters
    ----------
    function : callable
        A Python function in the kernel language; arguments can be numbers, vectors and arrays.

    Returns
    -------
    Func
        Outside of kernels it runs as plain Python.

    Raises
    ------
    KernelError
        Where the source is not available.

    Examples
    --------
    >>> import turnout as tn
    >>> @tn.func
    ... def square(x):
    ...     return x * x
    >>> square(3)
    9
    """
    if isinstance(function, Kernel | Func):
        raise KernelError(f"{function!r} is compiled already; decorate the plain function once")
    return Func(function, read_lines(function))


def specialise(kernel: Kernel, /, *, samples: int | None = None, **sizes: Any) -> Kernel:
    """The same kernel for calls of one size; also spelled ``specialize``.

    Parameters
    ----------
    kernel : Kernel
    samples : int, optional
        The number of samples of each call.
    **sizes : tuple of int or None, or number
        Shapes of arrays and values of numbers, by parameter.

    Returns
    -------
    Kernel

    Raises
    ------
    KernelError
        As `Kernel.specialise`, which says more.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> from turnout import Param, Scalar
    >>> @tn.kernel
    ... def scaled(x: Scalar, factor: Param) -> Scalar:
    ...     return x * factor
    >>> tn.specialise(scaled, factor=3.0, samples=2)(np.array([1.0, 2.0]))
    array([3., 6.])
    """
    if not isinstance(kernel, Kernel):
        raise KernelError(
            f"specialise takes a kernel (turnout.kernel), not {type(kernel).__name__}"
        )
    return kernel.specialise(samples=samples, **sizes)


specialize = specialise

__all__ = ["Executable", "Kernel", "ParameterSpec", "func", "kernel", "specialise", "specialize"]
