"""The parameters of an operation: who fits them, and the call path that is generated from them.

A call path written as ``def call(*args, **kwargs)`` would cost more than everything else in a
decided call, and could not tell ``f(a, b)`` from ``f(b=b, a=a)``. So :func:`generate_call` writes
one with the prototype's own parameters.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from inspect import Parameter
from types import FunctionType
from typing import Any

import numpy as np

from .backends import _find_default as find_default
from .backends import _state as state
from .backends import _used as used
from .errors import KernelError
from .geometry import describe
from .tuning import Clock, Decided, TrialPlan

_PREFIX = "_turnout_"

# How a parameter is handed on to an implementation, and what that may declare it as.
_FORWARD = {
    Parameter.POSITIONAL_ONLY: "{0}",
    Parameter.POSITIONAL_OR_KEYWORD: "{0}",
    Parameter.VAR_POSITIONAL: "*{0}",
    Parameter.KEYWORD_ONLY: "{0}={0}",
    Parameter.VAR_KEYWORD: "**{0}",
}
_POSITIONAL = {
    Parameter.POSITIONAL_ONLY,
    Parameter.POSITIONAL_OR_KEYWORD,
    Parameter.VAR_POSITIONAL,
}
_FITTING_KINDS: dict[Any, set[Any]] = {
    Parameter.POSITIONAL_ONLY: {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD},
    Parameter.POSITIONAL_OR_KEYWORD: {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD},
    Parameter.VAR_POSITIONAL: {Parameter.VAR_POSITIONAL},
    Parameter.KEYWORD_ONLY: {Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD},
    Parameter.VAR_KEYWORD: {Parameter.VAR_KEYWORD},
}


def check_parameters(
    where: str, function: Callable[..., Any], prototype: inspect.Signature
) -> None:
    """Raise a KernelError unless `function` has the parameters of `prototype`.

    Annotations and defaults may differ: every argument is always passed.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise KernelError(
            f"{where} does not tell its parameters: wrap it in a plain function"
        ) from None
    expected = prototype.parameters
    if list(parameters) != list(expected):
        raise KernelError(
            f"{where} has the parameters {list(parameters)}, the prototype has {list(expected)}: "
            "give it the same names in the same order"
        )
    for name, parameter in parameters.items():
        if parameter.kind not in _FITTING_KINDS[expected[name].kind]:
            raise KernelError(
                f"{where} declares {name!r} as {parameter.kind.description}, the prototype as "
                f"{expected[name].kind.description}: declare it as the prototype does"
            )


def check_runs_when_called(where: str, function: Callable[..., Any]) -> None:
    """Raise a KernelError if a call of `function` only makes something that would do the work."""
    is_deferred = (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    )
    if is_deferred:
        raise KernelError(
            f"{where} is a coroutine function or a generator, whose work would not be measured: "
            "write a plain function"
        )


def check_accepts_arguments(where: str, helper: object, prototype: inspect.Signature) -> None:
    """Raise a KernelError unless `helper` can be called with the arguments of `prototype`."""
    names = list(prototype.parameters)
    if not callable(helper):
        raise KernelError(
            f"{where}={helper!r} is not callable: give a function of the arguments {names}"
        )
    parameters = prototype.parameters.values()
    positional = [p.name for p in parameters if _FORWARD[p.kind] == "{0}"]
    keywords = {p.name: p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY}
    try:
        inspect.signature(helper).bind(*positional, **keywords)
    except TypeError as error:
        raise KernelError(
            f"{where} cannot be called with the operation's arguments {names}: {error}"
        ) from None
    except ValueError:
        return  # a builtin that does not tell its parameters


def is_accepted(name: str, answer: object) -> bool:
    """Read the answer of an implementation's ``is_compatible``; a string means a refusal."""
    if isinstance(answer, (bool, np.bool_)):
        return bool(answer)
    if isinstance(answer, str):
        return False
    raise KernelError(
        f"is_compatible of the implementation {name!r} returned {reprlib.repr(answer)} of type "
        f"{type(answer).__name__}: it must return True, False, or a string that says why not"
    )


def generate_call(
    prototype: inspect.Signature,
    get_geometry: Callable[..., Hashable],
    checks: Sequence[tuple[str, Callable[..., object]]],
    decided: Mapping[Hashable, Decided[Any]],
    plan: TrialPlan,
    clock: Clock,
    call_undecided: Callable[[Hashable, list[Any], dict[str, Any]], Any],
    lend: Callable[[Any, Decided[Any]], bool] | None = None,
) -> Callable[..., Any]:
    """Generate the function that is called when the operation is called.

    For the prototype ``(a, n=1)``, one implementation that has ``is_compatible``, and a plan that
    repeats by time, it reads (its own names have a prefix, which leaves all others to parameters)::

        def call(a, n=None):
            geometry = get_geometry(a, n)  # a generated one is written out here
            answer_0 = is_compatible_0(a, n)
            if answer_0 is not True and answer_0 is not False:
                answer_0 = is_accepted(name_0, answer_0)
            try:
                decided = decisions[(geometry, answer_0)]
            except (KeyError, TypeError):
                decided = None
            if decided is not None and clock() < decided.expires:
                return decided.function(a, n)
            return call_undecided(geometry, [a, n], dict())

    Parameters
    ----------
    prototype : inspect.Signature
        Parameters and defaults of the operation.
    get_geometry : callable
        Called with all arguments. A geometry that cannot be hashed is left to `call_undecided`.
    checks : sequence of tuple of str and callable
        Each ``is_compatible`` and the implementation that errors name, in order of registration.
    decided : mapping
        :attr:`Tuner.decided`, with ``(geometry, *answers)`` as its keys, or the bare geometry
        when there are no checks.
    plan, clock
        Say when a decision expires.
    call_undecided : callable
        Called with geometry, positional and keyword arguments when no decision holds.
    lend : callable, optional
        Called with geometry and decision; returns whether that holds for this call. It lets native
        code find the decision from now on.

    Returns
    -------
    function
    """
    parameters = list(prototype.parameters.values())
    positional = [_FORWARD[p.kind].format(p.name) for p in parameters if p.kind in _POSITIONAL]
    keywords = [_FORWARD[p.kind].format(p.name) for p in parameters if p.kind not in _POSITIONAL]
    arguments = ", ".join(positional + keywords)
    names: dict[str, Any] = {
        "get_geometry": get_geometry,
        "is_accepted": is_accepted,
        "decisions": decided,
        "KeyError": KeyError,
        "TypeError": TypeError,
        "clock": clock,
        "dict": dict,
        "call_undecided": call_undecided,
        "lend": lend,
    }
    geometry = f"$get_geometry({arguments})"
    written_out = getattr(get_geometry, _EXPRESSION, None)
    if written_out is not None:
        geometry, names = written_out, {**names, **_GEOMETRY_NAMES}
    lines = [f"def $call{_declaration(parameters)}:", f"    $geometry = {geometry}"]
    key = "$geometry"
    for number, (name, is_compatible) in enumerate(checks):
        names |= {f"is_compatible_{number}": is_compatible, f"name_{number}": name}
        answer = f"$answer_{number}"
        key += f", {answer}"
        lines += [
            f"    {answer} = $is_compatible_{number}({arguments})",
            f"    if {answer} is not True and {answer} is not False:",
            f"        {answer} = $is_accepted($name_{number}, {answer})",
        ]
    holds = "$decided is not None"
    if plan.repeat_after_seconds:
        holds += " and $clock() < $decided.expires"
    # A loop that is left at once takes the next one of the granted calls, faster than `next`.
    count = "for $_ in $decided.calls: " if plan.counts_calls and lend is None else ""
    if lend is not None:
        holds += " and $lend($geometry, $decided)"
    lines += [
        "    try:",
        f"        $decided = $decisions[{f'({key})' if checks else key}]",
        "    except ($KeyError, $TypeError):",
        "        $decided = None",
        f"    if {holds}:",
        f"        {count}return $decided.function({arguments})",
        f"    return $call_undecided($geometry, [{', '.join(positional)}], "
        f"$dict({', '.join(keywords)}))",
    ]
    call = _execute("\n".join(lines), "call", names)
    _set_defaults(call, parameters)
    return call


def generate_geometry(prototype: inspect.Signature) -> Callable[..., tuple[Hashable, ...]]:
    """Generate the default ``get_geometry_hash``.

    For the prototype ``(a, n=1)`` it returns ``(active_name(), describe(a), describe(n))``, where
    the common cases of `describe`, an array of NumPy and None, are written out: that halves what
    the geometry costs.
    """
    return _geometry_function(prototype, _nested(prototype))


def generate_flat_geometry(
    prototype: inspect.Signature, values: Sequence[str] = ()
) -> Callable[..., tuple[Hashable, ...]]:
    """Generate a ``get_geometry_hash`` for operations whose calls take less than a microsecond.

    Of arrays of NumPy it tells the shapes and layouts, and the type of the first one. Of parameters
    that are None by default, like ``out``, it tells whether they are given. What it does not tell
    implementations have to check. These properties stand side by side, which is faster than tuples
    of tuples. Where anything else is given, it is the default geometry. Parameters in `values`,
    like ``axis``, are part of it themselves.
    """
    parameters = [p for p in prototype.parameters.values() if p.name not in values]
    optional = [p.name for p in parameters if p.default is None]
    arrays = [p.name for p in parameters if p.default is not None]
    parts = [*values, f"{arrays[0]}.dtype"]
    parts += [f"{name}.shape, {name}.flags.c_contiguous" for name in arrays]
    parts += [f"{name} is None" for name in optional]
    are_arrays = " and ".join(f"$type({name}) is $ndarray" for name in arrays)
    flat = f"({_DEVICE}, {', '.join(parts)})"
    nested = ", ".join([*values, _nested(prototype)])
    otherwise = f"({nested})" if values else nested
    function = _geometry_function(prototype, f"{flat} if {are_arrays} else {otherwise}")
    if not values and all(p.default in (None, Parameter.empty) for p in parameters):
        function.__dict__[_FLAT] = tuple(arrays), tuple(optional)
    return function


def flat_parts(
    get_geometry: Callable[..., Hashable],
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return which parameters of a flat geometry are arrays, and which are optional.

    None for any other geometry.
    """
    found: tuple[tuple[str, ...], tuple[str, ...]] | None = getattr(get_geometry, _FLAT, None)
    return found


_EXPRESSION = "__turnout_expression__"
_FLAT = "__turnout_flat__"
_DEVICE = "($used() or $state.default or $find_default()).name"
"""`active_name`, written out."""

_GEOMETRY_NAMES: Mapping[str, Any] = {
    "used": used.get,
    "state": state,
    "find_default": find_default,
    "describe": describe,
    "type": type,
    "ndarray": np.ndarray,
    "none": describe(None),
}


def _geometry_function(
    prototype: inspect.Signature, expression: str
) -> Callable[..., tuple[Hashable, ...]]:
    """Make a function of an expression, which `generate_call` writes out in its own text."""
    declaration = _declaration(list(prototype.parameters.values()))
    source = f"def $geometry{declaration}: return {expression}"
    function = _execute(source, "geometry", _GEOMETRY_NAMES)
    function.__dict__[_EXPRESSION] = expression
    return function


def _nested(prototype: inspect.Signature) -> str:
    described = "".join(f", {_description(p)}" for p in prototype.parameters.values())
    return f"({_DEVICE}{described},)"


def _description(parameter: Parameter) -> str:
    """Return source text for what one parameter contributes to the default geometry."""
    name = parameter.name
    if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
        return f"$describe({name})"
    of_array = f"({name}.shape, {name}.dtype, {name}.flags.c_contiguous)"
    otherwise = f"$describe({name})"
    if parameter.default is None:
        otherwise = f"$none if {name} is None else {otherwise}"
    return f"{of_array} if $type({name}) is $ndarray else {otherwise}"


def generate_prototype(signature: inspect.Signature) -> FunctionType:
    """Generate an empty function with the parameters and defaults of `signature`."""
    parameters = list(signature.parameters.values())
    prototype = _execute(f"def $prototype{_declaration(parameters)}: ...", "prototype", {})
    _set_defaults(prototype, parameters)
    return prototype


def prototype_like(function: Callable[..., Any], suffix: str) -> FunctionType:
    """Generate a prototype for forms of `function`; its names have `suffix` behind them."""
    prototype = generate_prototype(inspect.signature(function))
    prototype.__name__ = function.__name__ + suffix
    prototype.__qualname__ = function.__qualname__ + suffix
    prototype.__module__ = function.__module__
    return prototype


def _execute(source: str, function: str, names: Mapping[str, Any]) -> FunctionType:
    """Run source text whose names start with "$" and return the function that it defines."""
    namespace = {_PREFIX + name: value for name, value in names.items()}
    namespace["__name__"] = __name__
    code = compile(source.replace("$", _PREFIX), "<generated by turnout.signatures>", "exec")
    exec(code, namespace)
    defined: FunctionType = namespace[_PREFIX + function]
    return defined


def _declaration(parameters: Sequence[Parameter]) -> str:
    """Return the parameters as source text, with None for each default."""
    bare = [
        p.replace(annotation=Parameter.empty)
        if p.default is Parameter.empty
        else p.replace(annotation=Parameter.empty, default=None)
        for p in parameters
    ]
    return str(inspect.Signature(bare))


def _set_defaults(function: FunctionType, parameters: Sequence[Parameter]) -> None:
    defaults = [p for p in parameters if p.default is not Parameter.empty]
    function.__defaults__ = tuple(p.default for p in defaults if p.kind in _POSITIONAL)
    function.__kwdefaults__ = {p.name: p.default for p in defaults if p.kind not in _POSITIONAL}
