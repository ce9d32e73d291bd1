"""``perf_dispatch``: one operation, several implementations, the fastest is found while it runs.

:func:`perf_dispatch` turns a prototype into a :class:`PerformanceDispatcher`. A call computes the
geometry of its arguments, asks each ``is_compatible``, and looks the decision up; that much is
generated as source text with the prototype's own parameters, because a decided call must cost a few
hundred nanoseconds. Everything else happens in :meth:`PerformanceDispatcher._call_undecided`, which
leaves trials and decisions to :mod:`turnout.tuning`.

Pickles name an operation where any reader can import it, and hold its definition otherwise (end of
this module).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import reprlib
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from . import implementations as outside
from .discovery import Entry, describe
from .errors import CallError, ConfigurationError, KernelError
from .geometry import leaves
from .pickling import MADE_KEPT, named
from .signatures import (
    check_accepts_arguments,
    check_parameters,
    check_runs_when_called,
    generate_call,
    generate_geometry,
    generate_prototype,
    is_accepted,
)
from .tuning import Candidate, Case, Clock, Decision, Timer, TrialPlan, Tuner, median

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True, eq=False)
class Implementation(Candidate):
    """A registered implementation.

    Attributes
    ----------
    is_compatible : callable or None
        None when it takes any arguments.
    is_installed : bool
        Whether the entry point of an installed distribution registered it.
    """

    is_compatible: Callable[..., object] | None = None
    is_installed: bool = False


@overload
def perf_dispatch(prototype: Callable[P, R], /) -> PerformanceDispatcher[P, R]: ...


@overload
def perf_dispatch(
    *,
    get_geometry_hash: Callable[..., Hashable] | None = None,
    warmup: int = 3,
    active: int = 1,
    repeat_after_count: int = 0,
    repeat_after_seconds: float = 1.0,
    max_geometries: int = 1024,
    timer: Timer | None = None,
    clock: Clock = time.monotonic,
) -> Callable[[Callable[P, R]], PerformanceDispatcher[P, R]]: ...


def perf_dispatch(
    prototype: Callable[..., Any] | None = None,
    /,
    *,
    get_geometry_hash: Callable[..., Hashable] | None = None,
    warmup: int = 3,
    active: int = 1,
    repeat_after_count: int = 0,
    repeat_after_seconds: float = 1.0,
    max_geometries: int = 1024,
    timer: Timer | None = None,
    clock: Clock = time.monotonic,
) -> Any:
    """Make an operation that runs the fastest of its registered implementations.

    Parameters
    ----------
    prototype : function
        Gives the operation its name, parameters and defaults. Its body never runs.
    get_geometry_hash : callable, optional
        Called with the operation's arguments; what it returns, any hashable value, is the geometry
        under which a decision is remembered. Default: shapes, dtypes, memory layout and device of
        the arrays, types of numbers, values of strings and booleans (:mod:`turnout.geometry`).
    warmup : int
        Untimed calls of each implementation before the first timed one.
    active : int
        Timed calls of each implementation; the lowest median wins.
    repeat_after_count : int
        Measure everything again after this many decided calls of a geometry; 0: never.
    repeat_after_seconds : float
        Measure everything again this many seconds after the decision; 0: never.
    max_geometries : int
        How many geometries are remembered; the one decided longest ago makes room.
    timer : callable, optional
        How a call is timed: runs the work it is given once, returns nanoseconds. Default: the timer
        of the device that the arguments are on, which waits for the device before and after.
    clock : callable, optional
        Seconds for `repeat_after_seconds`.

    Returns
    -------
    PerformanceDispatcher
        The operation; or, when called without a prototype, a decorator that makes it.

    Raises
    ------
    ConfigurationError
        When a number is out of range.
    KernelError
        When the prototype is not a plain function.

    Examples
    --------
    >>> import numpy as np
    >>> @perf_dispatch(get_geometry_hash=lambda a, b: hash(a.shape + b.shape))
    ... def double(a, b): ...
    >>> @double.register
    ... def double_numpy(a, b):
    ...     np.multiply(a, 2, out=b)
    >>> a, b = np.arange(3.0), np.empty(3)
    >>> double(a, b)
    >>> b
    array([0., 2., 4.])
    """
    plan = TrialPlan(warmup, active, repeat_after_count, repeat_after_seconds)

    def decorate(prototype: Callable[..., Any]) -> PerformanceDispatcher[..., Any]:
        return PerformanceDispatcher(
            prototype, get_geometry_hash, plan, max_geometries, timer, clock
        )

    return decorate if prototype is None else decorate(prototype)


class PerformanceDispatcher(Generic[P, R]):
    """An operation with several implementations; made by :func:`perf_dispatch`.

    It has the prototype's name, signature and documentation, works as a method when defined in a
    class, can be pickled, and may be called from any number of threads.
    """

    __name__: str
    __qualname__: str
    __signature__: inspect.Signature

    def __new__(cls, *args: Any, **kwargs: Any) -> PerformanceDispatcher[P, R]:
        # A class of its own for each operation, because Python looks `__call__` up in the class.
        own_class = type(cls.__name__, (cls,), {"__module__": cls.__module__})
        self: PerformanceDispatcher[P, R] = super().__new__(own_class)
        self._token = ""  # what its pickles call it, once there are any
        self._is_unpickled = False
        self._registration = threading.Lock()
        _operations.add(self)
        return self

    def __init__(
        self,
        prototype: Callable[P, R],
        get_geometry_hash: Callable[..., Hashable] | None,
        plan: TrialPlan,
        max_geometries: int,
        timer: Timer | None,
        clock: Clock,
    ) -> None:
        if not inspect.isfunction(prototype):
            raise KernelError(
                f"perf_dispatch decorates a plain function that serves as the prototype, not "
                f"{prototype!r}: write an empty function with the same parameters, and register "
                "kernels and other callables with its .register"
            )
        check_runs_when_called(f"perf_dispatch: the prototype {prototype.__name__!r}", prototype)
        for setting, value in (("timer", timer), ("clock", clock)):
            if value is not None and not callable(value):
                raise ConfigurationError(f"{setting}={value!r} is not allowed: give a function")
        functools.update_wrapper(self, prototype)
        self.__signature__ = inspect.signature(prototype)
        self._get_geometry_hash = get_geometry_hash
        self._timer = timer
        self._clock = clock
        self._plan = plan
        self._max_geometries = max_geometries
        self._tuner: Tuner[Implementation] = Tuner(plan, self._report, clock, max_geometries)
        if get_geometry_hash is None:
            get_geometry_hash = generate_geometry(self.__signature__)
        where = f"{self._label}: get_geometry_hash"
        check_accepts_arguments(where, get_geometry_hash, self.__signature__)
        self._get_geometry = get_geometry_hash
        self._forced: str | None = None
        self._has_warned_of_refusal = False
        self._is_debugging = False
        self._is_prepared = False
        self._preparing_thread: int | None = None
        self._preparation = threading.Condition()
        self._loaded: set[Entry] = set()
        self._just_loaded: list[Implementation] = []
        self._generate_call()

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __copy__(self) -> PerformanceDispatcher[P, R]:
        return self

    def __deepcopy__(self, memo: Any) -> PerformanceDispatcher[P, R]:
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        return _reduced(self)

    def __setstate__(self, state: Any) -> None:
        _restore(self, state)

    def __repr__(self) -> str:
        return f"<{self._label}: {list(self.implementations)}>"

    @property
    def _label(self) -> str:
        return f"perf_dispatch {self.__name__!r}"

    @property
    def implementations(self) -> tuple[str, ...]:
        """Names of the registered implementations, in order of registration."""
        return tuple(implementation.name for implementation in self._tuner.candidates)

    @overload
    def register(self, function: F, /) -> F: ...

    @overload
    def register(
        self,
        function: None = None,
        /,
        *,
        is_compatible: Callable[..., object] | None = None,
        name: str | None = None,
    ) -> Callable[[F], F]: ...

    def register(
        self,
        function: Any = None,
        /,
        *,
        is_compatible: Callable[..., object] | None = None,
        name: str | None = None,
    ) -> Any:
        """Register an implementation; as a decorator, the topmost one.

        Parameters
        ----------
        function : callable
            A kernel or plain function with the prototype's parameter names in the same order.
        is_compatible : callable, optional
            Called with the operation's arguments. True: the implementation may run; False, or a
            string that says why: it may not.
        name : str, optional
            Default: the function's own name.

        Returns
        -------
        callable
            `function` unchanged; or, when called without a function, a decorator.

        Raises
        ------
        KernelError
            When the function cannot be called like the prototype, or its name is taken.
        """

        def decorate(function: F) -> F:
            if not callable(function):
                raise KernelError(
                    f"{self._label}: register takes a kernel or a plain function, not {function!r}"
                )
            if isinstance(function, PerformanceDispatcher) and function is self:
                raise KernelError(f"{self._label} cannot be an implementation of itself")
            implementation = Implementation(
                self._checked_name(function, name),
                function,
                is_compatible,
                is_installed=threading.get_ident() == self._preparing_thread,
            )
            where = f"{self._label}: the implementation {implementation.name!r}"
            check_runs_when_called(where, function)
            check_parameters(where, function, self.__signature__)
            if is_compatible is not None:
                where += ": is_compatible"
                check_accepts_arguments(where, is_compatible, self.__signature__)
            self._add(implementation)
            if inspect.isfunction(function):
                # The kernel decorator refuses functions that carry this: decorators out of order.
                function.__dict__["__turnout_registered__"] = self.__name__
            return function

        return decorate if function is None else decorate(function)

    def reset(self) -> None:
        """Forget all decisions and measurements; the next calls measure again."""
        self._tuner.reset()

    def decision(self, *args: P.args, **kwargs: P.kwargs) -> Decision | None:
        """Return what is known for these arguments, without running anything.

        Parameters
        ----------
        *args, **kwargs
            The same arguments as in a call.

        Returns
        -------
        Decision or None
            The chosen implementation and the elapsed nanoseconds of each timed call; None when no
            call with this geometry was made.
        """
        bound = self.__signature__.bind(*args, **kwargs)
        bound.apply_defaults()
        geometry = self._get_geometry(*bound.args, **bound.kwargs)
        case, _ = self._case(geometry, bound.args, bound.kwargs)
        return self._tuner.decision(case)

    def _checked_name(self, function: Callable[..., Any], name: str | None) -> str:
        if name is None:
            name = getattr(function, "__name__", None)
        if not isinstance(name, str) or not name or set(name) & set(":, \t\n"):
            raise KernelError(
                f"{self._label}: the implementation {function!r} has no usable "
                f"name ({name!r}): give one without spaces, ':' and ',' with register(name=...)"
            )
        return name

    def _add(self, implementation: Implementation) -> None:
        is_debugging = outside.is_debug_wanted()
        with self._registration:
            if not self._tuner.add(implementation):
                raise KernelError(
                    f"{self._label}: an implementation {implementation.name!r} "
                    "is registered already: give this one another name with register(name=...)"
                )
            self._generate_call()
            if not implementation.is_installed:
                # It is another operation than the one in the pickles so far.
                self._token, self._is_unpickled = "", False
        if implementation.is_installed:
            self._just_loaded.append(implementation)
        if is_debugging:
            self._print(f"registered {implementation.name!r}")

    def _generate_call(self) -> None:
        candidates = self._tuner.candidates
        call = generate_call(
            self.__signature__,
            self._get_geometry,
            {i.name: i.is_compatible for i in candidates if i.is_compatible is not None},
            self._tuner.decided,
            self._plan,
            self._clock,
            self._call_undecided,
        )
        call.__qualname__ = self.__qualname__  # what Python's own TypeErrors show
        type(self).__call__ = staticmethod(call)  # type: ignore[method-assign]

    def _call_undecided(
        self, geometry: Hashable, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """Run one implementation when the generated path found no decision that holds."""
        if not self._is_prepared:
            self._prepare()
        case, refusals = self._case(geometry, arguments, keywords)
        if not case.candidates:
            raise CallError(self._nothing_compatible(refusals))
        name = self._label

        def work(implementation: Implementation) -> Any:
            try:
                return implementation.function(*arguments, **keywords)
            except Exception as error:
                error.add_note(f"raised by {implementation.name!r}, an implementation of {name}")
                raise

        def default_timer(work: Callable[[], None]) -> int:
            from .backends import timer_for

            return timer_for(leaves([*arguments, *keywords.values()]))(work)

        forced = self._forced_implementation(case, refusals)
        if forced is not None:
            self._tuner.settle(case, forced, "forced by the environment")
            return work(forced)
        if len(case.candidates) == 1:
            self._tuner.settle(case, case.candidates[0], "the only compatible implementation")
            return work(case.candidates[0])
        return self._tuner.run(case, work, self._timer or default_timer)

    def _case(
        self, geometry: Hashable, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> tuple[Case[Implementation], dict[str, str]]:
        """Return what there is to choose from, and why the other implementations are left out."""
        try:
            hash(geometry)
        except TypeError:
            raise KernelError(
                f"{self._label}: the geometry {reprlib.repr(geometry)} of type "
                f"{type(geometry).__name__} cannot be hashed: get_geometry_hash must return a "
                "number, a string or a tuple of them, for example hash(a.shape)"
            ) from None
        registered = self._tuner.candidates
        candidates = []
        refusals = {}
        answers = []
        for implementation in registered:
            if implementation.is_compatible is not None:
                answer = implementation.is_compatible(*arguments, **keywords)
                answers.append(is_accepted(implementation.name, answer))
                if not answers[-1]:
                    is_reason = isinstance(answer, str) and answer.strip()
                    reason = answer if is_reason else f"is_compatible returned {answer!r}"
                    refusals[implementation.name] = str(reason)
                    continue
            candidates.append(implementation)
        key = (geometry, *answers) if answers else geometry
        return Case(geometry, key, tuple(candidates), registered), refusals

    def _nothing_compatible(self, refusals: Mapping[str, str]) -> str:
        if not refusals:
            return (
                f"{self._label} has no implementation: register at least one "
                f"with @{self.__name__}.register"
            )
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in refusals.items())
        return f"no implementation of {self._label} is compatible with these arguments:{reasons}"

    def _forced_implementation(
        self, case: Case[Implementation], refusals: Mapping[str, str]
    ) -> Implementation | None:
        if self._forced is None:
            return None
        if self._forced in refusals and not self._has_warned_of_refusal:
            self._has_warned_of_refusal = True
            self._warn(
                f"the forced implementation {self._forced!r} is not compatible with the arguments "
                f"of this call ({refusals[self._forced]}); the operation chooses another one"
            )
        return next((c for c in case.candidates if c.name == self._forced), None)

    def _prepare(self) -> None:
        """At the first call, read the environment and load what installed packages register.

        Not earlier, because by then the program has registered its own implementations. Other
        threads go on with what is registered so far, and wait only if that is nothing.
        """
        qualified_name = f"{self.__module__}.{self.__qualname__}"
        forced = outside.forced_implementations()
        self._forced = forced.get(qualified_name, forced.get(self.__name__))
        self._is_debugging = outside.is_debug_wanted()
        thread = threading.get_ident()
        with self._preparation:  # never held while code of others runs
            while self._preparing_thread not in (None, thread) and not self._tuner.candidates:
                self._preparation.wait()
            if self._is_prepared or self._preparing_thread is not None:
                return
            self._preparing_thread = thread
        problems = []
        try:
            names = (self.__name__, qualified_name, f"{self.__module__}:{self.__qualname__}")
            for entry in outside.entries_for(names):
                if entry not in self._loaded:  # else loaded before an interrupt came
                    problems += self._load(entry)
                    self._loaded.add(entry)
            self._is_prepared = True
        finally:
            with self._preparation:
                self._preparing_thread = None
                self._preparation.notify_all()
        if outside.is_listing_wanted():
            if not self._is_debugging:  # else each was printed when it was registered
                for name in self.implementations:
                    self._print(f"registered {name!r}")
            self._print(f"available implementations: {list(self.implementations)}")
        if self._forced is not None and self._forced not in self.implementations:
            problems.append(
                f"the forced implementation {self._forced!r} does not exist, the available ones "
                f"are {list(self.implementations)}; the operation chooses one itself"
            )
        for problem in problems:
            self._warn(problem)

    def _load(self, entry: Entry) -> list[str]:
        """Let an installed package register; return what went wrong, after undoing it."""
        self._just_loaded = []
        try:
            outside.load(entry)(self)
        except (Exception, SystemExit) as error:
            with self._registration:
                self._tuner.remove(tuple(self._just_loaded))
                self._generate_call()
            return [
                f"the implementations of distribution {entry.owner} are left out, because its "
                f"entry point '{entry.name} = {entry.value}' failed: {describe(error)}"
            ]
        return []

    def _forget_other_threads(self) -> None:
        self._registration = threading.Lock()
        self._preparation = threading.Condition()
        self._preparing_thread = None

    def _report(self, decision: Decision) -> None:
        if not self._is_debugging:
            return
        times = {name: f"{median(ns) / 1000:.1f} us" for name, ns in decision.samples.items()}
        why = [times.pop(str(decision.chosen), decision.reason)]
        why += [f"{name}: {time}" for name, time in times.items()]
        self._print(
            f"chose {decision.chosen!r} ({'; '.join(why)}) for geometry {decision.geometry!r}"
        )

    def _print(self, text: str) -> None:
        print(f"{self._label}: {text}")

    def _warn(self, text: str) -> None:
        # Five levels up is the caller of the operation.
        warnings.warn(f"{self._label}: {text}", RuntimeWarning, stacklevel=5)


# -- forks and pickles -----------------------------------------------------------------------------


_operations: weakref.WeakSet[PerformanceDispatcher[..., Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # The threads that held a lock, or were preparing an operation, do not exist in the child.
    for operation in _operations:
        operation._forget_other_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@dataclasses.dataclass(frozen=True)
class _Definition:
    """What an operation is made of; decisions, samples and annotations are no part of it."""

    name: str
    qualname: str
    module: str
    doc: str | None
    signature: inspect.Signature
    get_geometry_hash: Callable[..., Hashable] | None
    plan: TrialPlan
    max_geometries: int
    timer: Timer | None
    clock: Clock
    implementations: tuple[Implementation, ...]


_pickled: weakref.WeakValueDictionary[str, PerformanceDispatcher[..., Any]] = (
    weakref.WeakValueDictionary()
)
"""By token the operations of this process that were pickled here."""


def _reduced(operation: PerformanceDispatcher[..., Any]) -> str | tuple[Any, ...]:
    """What ``__reduce__`` returns.

    The definition is the state, not an argument, because its functions may refer to the operation.
    """
    module, qualname = operation.__module__, operation.__qualname__
    is_found = named(module, qualname) is operation
    if is_found and module != "__main__":
        return qualname
    with operation._registration:
        if not operation._token:
            operation._token = os.urandom(16).hex()
            _pickled[operation._token] = operation
        definition = _definition(operation)
    if is_found:
        arguments = (module, qualname, operation._token, _if_functions_travel(True))
        return _found_or_empty, arguments, _if_functions_travel(definition)
    return _found_or_empty, (module, qualname, operation._token, True), definition


def _definition(operation: PerformanceDispatcher[..., Any]) -> _Definition:
    signature = operation.__signature__
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return _Definition(
        operation.__name__,
        operation.__qualname__,
        operation.__module__,
        operation.__doc__,
        inspect.Signature(bare),
        operation._get_geometry_hash,
        operation._plan,
        operation._max_geometries,
        operation._timer,
        operation._clock,
        # The reader loads what is installed there.
        tuple(each for each in operation._tuner.candidates if not each.is_installed),
    )


class _Named:
    """Stands in pickles for the content of a method made by `_if_functions_travel`."""

    content = None


def _if_functions_travel(value: object) -> types.MethodType:
    """Return a method that gives `value`, for pickles that can hold any function.

    `pickle` writes a method as its object and its name, and reads ``_Named().content``: None.
    Libraries that pickle any function write it as its object and its function, with `value` inside.
    """

    def content(self: _Named) -> object:
        return value

    return types.MethodType(content, _Named())


def _found_or_empty(
    module: str, qualname: str, token: str, has_definition: object
) -> PerformanceDispatcher[..., Any]:
    """Find the operation of a pickle, or make an empty one, which `_restore` fills."""
    if has_definition:
        return _pickled.get(token) or _empty(token)
    found = named(module, qualname)
    if not isinstance(found, PerformanceDispatcher):
        raise KernelError(
            f"the operation {qualname!r} was pickled by its name in {module}, and there is no such "
            "operation here: define it in a module that both programs import, or pickle it with "
            "a library that pickles functions, such as cloudpickle"
        )
    return found


@functools.lru_cache(maxsize=MADE_KEPT)
def _empty(token: str) -> PerformanceDispatcher[..., Any]:
    operation: PerformanceDispatcher[..., Any] = PerformanceDispatcher.__new__(
        PerformanceDispatcher
    )
    operation._token, operation._is_unpickled = token, True
    return operation


def _restore(operation: PerformanceDispatcher[..., Any], state: Any) -> None:
    """Fill an operation made from a pickle; one that was filled before takes the new functions.

    So a process measures once, while functions always see the values that they were pickled with.
    """
    if state is None:
        return  # it was found by name
    definition = state() if isinstance(state, types.MethodType) else state
    with operation._registration:
        if not operation._is_unpickled:
            return
        if hasattr(operation, "_tuner"):
            operation._tuner.renew(definition.implementations)
            operation._timer = definition.timer
            if definition.get_geometry_hash is not None:
                operation._get_geometry_hash = definition.get_geometry_hash
                operation._get_geometry = definition.get_geometry_hash
        else:
            prototype = generate_prototype(definition.signature)
            prototype.__name__, prototype.__qualname__ = definition.name, definition.qualname
            prototype.__module__, prototype.__doc__ = definition.module, definition.doc
            PerformanceDispatcher.__init__(
                operation,
                prototype,
                definition.get_geometry_hash,
                definition.plan,
                definition.max_geometries,
                definition.timer,
                definition.clock,
            )
            for implementation in definition.implementations:
                operation._tuner.add(implementation)
        operation._generate_call()
