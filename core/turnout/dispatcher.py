"""Operations: the object that `turnout.perf_dispatch` makes, and the way of its calls.

A call computes the geometry of its arguments, asks each ``is_compatible``, and looks the decision
up; that much is generated as source text with the prototype's own parameters, because a decided
call must cost a few hundred nanoseconds. Everything else happens in
:meth:`PerformanceDispatcher._call_undecided`, which leaves trials and decisions to
:mod:`turnout.tuning`, and to :mod:`turnout.safeguards` what keeps a call right meanwhile.

What is registered is checked in :mod:`turnout.registration`. What users ask about it is put
together in :mod:`turnout.explain`; pickles are made in :mod:`turnout.operation_pickling`.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from . import implementations as outside
from .compatibility import Implementation, checks, narrow, nothing_compatible
from .errors import CallError, ConfigurationError, KernelError, warn_the_caller
from .explain import Explanation, explain
from .front import Front, front_of
from .operation_pickling import reduced, restore
from .preparation import Preparation
from .ranking import median
from .registration import Operation, Registration, implementations
from .remembering import Memory
from .safeguards import Safeguards
from .settings import Settings
from .signatures import (
    check_accepts_arguments,
    check_runs_when_called,
    generate_call,
    generate_geometry,
)
from .tuning import Case, Decided, Decision, Tuner
from .tuning_on_copies import timer_of, tune_on_copies
from .written import Mutates, check_mutates

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


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

    def __init__(self, prototype: Callable[P, R], settings: Settings) -> None:
        if not inspect.isfunction(prototype):
            raise KernelError(
                f"perf_dispatch decorates a plain function that serves as the prototype, not "
                f"{prototype!r}: write an empty function with the same parameters, and register "
                "kernels and other callables with its .register"
            )
        check_runs_when_called(f"perf_dispatch: the prototype {prototype.__name__!r}", prototype)
        functools.update_wrapper(self, prototype)
        self.__signature__ = inspect.signature(prototype)
        self._settings = settings
        self._mutates = check_mutates(self._label, settings.mutates, self.__signature__)
        self._tuner: Tuner[Implementation] = Tuner(
            settings.plan, self._report, settings.clock, settings.max_geometries
        )
        self._memory = Memory(self._qualified_name, self.__signature__, settings.max_geometries)
        get_geometry = settings.get_geometry_hash or generate_geometry(self.__signature__)
        check_accepts_arguments(
            f"{self._label}: get_geometry_hash", get_geometry, self.__signature__
        )
        if settings.check is not None:
            check_accepts_arguments(f"{self._label}: check", settings.check, self.__signature__)
        self._get_geometry: Callable[..., Hashable] = get_geometry
        self._forced: str | None = None  # by the environment
        self._forces = 0  # how many `force` blocks are active, in any thread
        self._warned_of_refusals: set[str] = set()
        self._is_debugging = False
        self._preparation = Preparation(self, lambda: self._tuner.candidates, self._remove)
        self._front = front_of(self.__name__, self.__signature__, get_geometry, self._install_front)
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
        return reduced(self, PerformanceDispatcher)

    def __setstate__(self, state: Any) -> None:
        restore(self, state)

    def __repr__(self) -> str:
        return f"<{self._label}: {list(self.implementations)}>"

    @property
    def _label(self) -> str:
        return f"perf_dispatch {self.__name__!r}"

    @property
    def _qualified_name(self) -> str:
        return f"{self.__module__}.{self.__qualname__}"

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
        mutates: Mutates | None = None,
        tune: Mapping[str, Iterable[Any]] | None = None,
        prune: Callable[..., bool] | None = None,
        version: str | None = None,
        per_geometry: bool = False,
        make_ms: float = 0.0,
    ) -> Callable[[F], F]: ...

    def register(
        self,
        function: Any = None,
        /,
        *,
        is_compatible: Callable[..., object] | None = None,
        name: str | None = None,
        mutates: Mutates | None = None,
        tune: Mapping[str, Iterable[Any]] | None = None,
        prune: Callable[..., bool] | None = None,
        version: str | None = None,
        per_geometry: bool = False,
        make_ms: float = 0.0,
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
        mutates : iterable of str, or mapping of str to {"output", "update"}, optional
            The parameters whose arrays the function writes, wherever in lists, tuples, dicts and
            dataclasses these sit; ``()``: none. ``"output"``: what they hold before is not read,
            ``"update"``: it is. Kernels tell by themselves. Where it is known what an
            implementation writes, a call in whose trial it raises goes on with another one.
        tune : mapping of str to iterable, optional
            Registers one implementation for each combination of these values, named
            ``name[tile=32,unroll=4]``: of a kernel they are compile-time constants
            (`Kernel.with_constants`), of a function keyword arguments.
        prune : callable, optional
            Called with each combination as keyword arguments; True: leave it out.
        version : str, optional
            What the function is, for measurements that later processes use, where that cannot be
            told from its source: change it with the library that does the work.
        per_geometry : bool
            That the function does not do the work, but returns the function that does, for these
            arguments and all others of the same geometry. It is called once for each geometry, and
            so is its `is_compatible`: both may look only at what the geometry tells.
        make_ms : float
            What that takes about, in milliseconds. It is not tried for a geometry before the calls
            with this geometry have taken as long: a program with many geometries does not wait for
            what it hardly uses.

        Returns
        -------
        callable
            `function` unchanged; or, when called without a function, a decorator.

        Raises
        ------
        KernelError
            When the function cannot be called like the prototype, its name is taken, or what is
            said of it cannot be true.
        """
        given = Registration(
            name, is_compatible, mutates, tune, prune, version, per_geometry, make_ms
        )

        def decorate(function: F) -> F:
            if isinstance(function, PerformanceDispatcher) and function is self:
                raise KernelError(f"{self._label} cannot be an implementation of itself")
            operation = Operation(
                self._label, self.__signature__, self._mutates, self._settings.verification
            )
            registered, is_installed = self._tuner.candidates, self._preparation.is_loading
            self._add(implementations(function, given, operation, registered, is_installed))
            if inspect.isfunction(function):
                # The kernel decorator refuses functions that carry this: decorators out of order.
                function.__dict__["__turnout_registered__"] = self.__name__
            return function

        return decorate if function is None else decorate(function)

    def prepare(self) -> None:
        """Load what installed packages register, as the first call does otherwise."""
        if not self._preparation.is_done:
            self._prepare()

    # -- what users ask and order

    def decision(self, *args: P.args, **kwargs: P.kwargs) -> Decision | None:
        """Return what is known for these arguments, without running anything.

        Parameters
        ----------
        *args, **kwargs
            The same arguments as in a call.

        Returns
        -------
        Decision or None
            The chosen implementation and the elapsed nanoseconds of each recent timed call; None
            when no call with this geometry was made.
        """
        case, _ = self._case_of(self._bound(args, kwargs))
        return self._tuner.decision(case)

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """Return all that is known for these arguments, without running an implementation.

        Parameters
        ----------
        *args, **kwargs
            The same arguments as in a call.

        Returns
        -------
        Explanation
            Prints as a table.
        """
        case, refusals = self._case_of(self._bound(args, kwargs))
        return self._explanation(case, refusals)

    def _explanation(self, case: Case[Implementation], refusals: Mapping[str, str]) -> Explanation:
        examined = self._tuner.examine(case)
        return explain(self._label, case, examined, refusals, self._settings.plan)

    @contextmanager
    def force(self, name: str) -> Iterator[None]:
        """Run one implementation in every call within a ``with`` block.

        It counts in this thread or asyncio task, and in those that copy its context, like
        `asyncio.to_thread`. Where the implementation is not compatible with the arguments, the
        operation warns once and chooses another one. Nothing is measured.

        Parameters
        ----------
        name : str
            One of `implementations`.

        Raises
        ------
        ConfigurationError
            When there is no such implementation.
        """
        self.prepare()
        if name not in self.implementations:
            raise ConfigurationError(
                f"{self._label} has no implementation {name!r}, "
                f"the available ones are {list(self.implementations)}"
            )
        self._count_force(+1)
        token = _forced_here.set({**_forced_here.get(), self: name})
        try:
            yield
        finally:
            _forced_here.reset(token)
            self._count_force(-1)

    def _count_force(self, change: int) -> None:
        with self._registration:
            self._forces += change
            self._set_call()

    def tune(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """Measure now, on copies of the arguments, and decide.

        Each implementation is measured as with ``active="auto"``. Implementations that take less
        than a timer can resolve run several times for each sample, each time on a copy. On a
        terminal a progress bar is shown.

        Parameters
        ----------
        *args, **kwargs
            The same arguments as in a call. They are not changed.

        Returns
        -------
        Explanation

        Raises
        ------
        CallError
            When an argument cannot be copied, or no implementation is compatible.
        """
        self.prepare()
        bound = self._bound(args, kwargs)
        case, refusals = self._case_of(bound)
        if self._settled(case, bound, refusals) is None:
            hooks = self._safeguards(case, bound, {})
            timer = self._settings.timer or timer_of(args, kwargs)
            tune_on_copies(self._tuner, case, bound, hooks.written, timer, hooks, self._label)
        return self._explanation(case, refusals)

    def reset(self) -> None:
        """Forget all decisions and measurements; the next calls measure again.

        What earlier processes measured stays in the store, and this one takes no notice of it.
        """
        self._memory.recall_nothing()
        self._tuner.reset()

    def _bound(self, args: Any, kwargs: Any) -> inspect.BoundArguments:
        bound = self.__signature__.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound

    def _case_of(
        self, bound: inspect.BoundArguments
    ) -> tuple[Case[Implementation], dict[str, str]]:
        geometry = self._get_geometry(*bound.args, **bound.kwargs)
        return self._case(geometry, bound.args, bound.kwargs)

    # -- registration

    def _add(self, implementations: Sequence[Implementation]) -> None:
        is_debugging = outside.is_debug_wanted()
        with self._registration:
            taken = self._tuner.add(implementations)
            if taken is not None:
                raise KernelError(
                    f"{self._label}: an implementation {taken!r} "
                    "is registered already: give this one another name with register(name=...)"
                )
            self._generate_call()
            if not implementations[0].is_installed:
                # It is another operation than the one in the pickles so far.
                self._token, self._is_unpickled = "", False
        if is_debugging:
            for each in implementations:
                self._print(f"registered {each.name!r}")

    # -- calls

    def _generate_call(self) -> None:
        self._decided_call = self._generated(self._tuner.decided)
        front = self._front_in_use()
        if front is not None:
            self._decided_call = front.entry(self._decided_call)
        self._set_call()

    def _set_call(self) -> None:
        call = self._generated({}) if self._forces else self._decided_call
        type(self).__call__ = staticmethod(call)  # type: ignore[method-assign]

    def _generated(self, decided: Mapping[Hashable, Decided[Implementation]]) -> Callable[..., Any]:
        front = self._front_in_use()
        call = generate_call(
            self.__signature__,
            self._get_geometry,
            checks(self._tuner.candidates),
            decided,
            self._settings.plan,
            self._settings.clock,
            self._call_undecided,
            None if front is None else front.lend,
        )
        call.__qualname__ = self.__qualname__  # what Python's own TypeErrors show
        return call

    def _front_in_use(self) -> Front | None:
        """The front, where the geometry alone tells which decision holds."""
        front = self._front
        if front is None or not front.is_possible or self._settings.plan.repeat_after_seconds:
            return None
        return None if checks(self._tuner.candidates) else front

    def _install_front(self) -> None:
        with self._registration:
            self._generate_call()

    def standing(
        self, geometry: Hashable, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Decided[Implementation] | None:
        """The decision that holds for a call, for those who count the calls that it serves.

        Parameters
        ----------
        geometry : hashable
            What ``get_geometry_hash`` returns for these arguments.
        arguments, keywords
            All arguments, those by position and those by keyword.

        Returns
        -------
        Decided or None
            None where the operation itself is to be called.
        """
        if self._forces or not self._preparation.is_done:
            return None
        case, _ = self._case(geometry, arguments, keywords)
        return self._tuner.standing(case)

    def call_with(
        self,
        options: Mapping[str, Any],
        geometry: Hashable,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
    ) -> Any:
        """Call the operation with more than the prototype says; parameters as of `standing`.

        `options` are keyword arguments that all implementations take, and nothing of the operation
        looks at, for example the ``samples`` of kernels. Nothing of what they write is put aside:
        where one raises after it has begun, the call raises.
        """
        return self._call_undecided(geometry, arguments, keywords, options)

    def _call_undecided(
        self,
        geometry: Hashable,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one implementation when the generated path found no decision that holds."""
        self.prepare()
        case, refusals = self._case(geometry, arguments, keywords)
        name, more = self._label, options or {}

        functions: dict[Implementation, Callable[..., Any]] = {}  # made for this call

        def work(implementation: Implementation) -> Any:
            function = functions.get(implementation, implementation.function)
            try:
                return function(*arguments, **keywords, **more)
            except Exception as error:
                error.add_note(f"raised by {implementation.name!r}, an implementation of {name}")
                raise

        for_now = _forced_here.get().get(self)
        forced = self._forced_implementation(for_now, case, refusals)
        if forced is not None:
            return work(forced)
        bound = self.__signature__.bind(*arguments, **keywords)
        settled = self._settled(case, bound, refusals)
        if settled is not None:
            return work(settled)
        timer = self._settings.timer or timer_of(arguments, keywords)
        hooks = self._safeguards(case, bound, functions, puts_aside=options is None)
        return self._tuner.run(case, work, timer, hooks)

    def _settled(
        self,
        case: Case[Implementation],
        bound: inspect.BoundArguments,
        refusals: Mapping[str, str],
    ) -> Implementation | None:
        """Return what runs where there is nothing to try; then that is remembered at once."""
        if not case.candidates:
            raise CallError(nothing_compatible(self._label, self.__name__, refusals))
        chosen = self._forced_implementation(self._forced, case, refusals)
        reason = "forced by the environment"
        if chosen is None:
            chosen, reason = self._memory.fixed(case, bound), "fixed by TURNOUT_TUNING"
        if chosen is None and len(case.candidates) == 1:
            chosen, reason = case.candidates[0], "the only compatible implementation"
        if chosen is not None:
            self._tuner.settle(case, chosen, reason)
        return chosen

    def _safeguards(
        self,
        case: Case[Implementation],
        bound: inspect.BoundArguments,
        functions: dict[Implementation, Callable[..., Any]],
        *,
        puts_aside: bool = True,
    ) -> Safeguards:
        verification, memory = self._settings.verification, self._memory
        return Safeguards(case, bound, verification, memory, functions, puts_aside=puts_aside)

    def _case(
        self, geometry: Hashable, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> tuple[Case[Implementation], dict[str, str]]:
        if self._settings.check is not None:
            self._settings.check(*arguments, **keywords)
        return narrow(self._label, geometry, self._tuner.candidates, arguments, keywords)

    def _forced_implementation(
        self, name: str | None, case: Case[Implementation], refusals: Mapping[str, str]
    ) -> Implementation | None:
        if name is None:
            return None
        if name in refusals and name not in self._warned_of_refusals:
            self._warned_of_refusals.add(name)
            self._warn(
                f"the forced implementation {name!r} is not compatible with the arguments "
                f"of this call ({refusals[name]}); the operation chooses another one"
            )
        return next((c for c in case.candidates if c.name == name), None)

    # -- what reaches the operation from outside

    def _prepare(self) -> None:
        """At the first call, read the environment and load what installed packages register."""
        qualified_name = self._qualified_name
        forced = outside.forced_implementations()
        self._forced = forced.get(qualified_name, forced.get(self.__name__))
        self._is_debugging = outside.is_debug_wanted()
        names = (self.__name__, qualified_name, f"{self.__module__}:{self.__qualname__}")
        problems = self._preparation.run(names)
        if problems is None:
            return
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
        problems += self._memory.prepare(self.implementations)
        for problem in problems:
            self._warn(problem)

    def _remove(self, implementations: tuple[Implementation, ...]) -> None:
        with self._registration:
            self._tuner.remove(implementations)
            self._generate_call()

    def _forget_other_threads(self) -> None:
        self._registration = threading.Lock()
        self._preparation.forget_other_threads()
        if self._front is not None:
            self._front.forget_other_threads()

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
        warn_the_caller(f"{self._label}: {text}", RuntimeWarning)


_forced_here: ContextVar[Mapping[PerformanceDispatcher[..., Any], str]] = ContextVar(
    "forced implementations by operation", default=types.MappingProxyType({})
)


# -- forks ----------------------------------------------------------------------------------------


_operations: weakref.WeakSet[PerformanceDispatcher[..., Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # The threads that held a lock, or were preparing an operation, do not exist in the child.
    for operation in _operations:
        operation._forget_other_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
