"""Tunable parameters: one implementation in several variants, one per combination of values.

Of a kernel the parameters are compile-time constants, of a function keyword arguments. A variant is
called ``name[tile=32,unroll=4]``.
"""

from __future__ import annotations

import enum
import functools
import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import Parameter
from typing import Any

import numpy as np

from .errors import KernelError
from .kernel import Kernel
from .records import record

_MOST_COMBINATIONS = 100_000
_MOST_VARIANTS = 1_000
_PLAIN_TYPES = (bool, int, float, type(None))
_BY_POSITION = (
    Parameter.POSITIONAL_ONLY,
    Parameter.POSITIONAL_OR_KEYWORD,
    Parameter.VAR_POSITIONAL,
)
_WORD = re.compile(r"[\w.+-]+")


@record
class Variant:
    """An implementation with values for its tunable parameters.

    Attributes
    ----------
    name : str
        With the values, for example ``"kernel[tile=32,unroll=4]"``.
    function : callable
        Takes the arguments of the operation.
    parameters : mapping of str to object
        The values by name.
    """

    name: str
    function: Callable[..., Any]
    parameters: Mapping[str, Any]


def variants(
    where: str,
    name: str,
    function: Callable[..., Any],
    tune: Mapping[str, Iterable[Any]],
    prune: Callable[..., Any] | None = None,
) -> list[Variant]:
    """Return the variants of an implementation, in the order of the values that are given.

    Parameters
    ----------
    where : str
        What the implementation is called in messages.
    name : str
        Its name, which those of the variants start with.
    function : Kernel or callable
        A kernel that reads the parameters as constants (`Kernel.with_constants`), or a function
        with keyword arguments of these names.
    tune : mapping of str to iterable
        Values by parameter: numbers, booleans, strings, members of enums, None, tuples of these.
    prune : callable, optional
        Called with each combination as keyword arguments; True: there is to be no such variant.

    Raises
    ------
    KernelError
        When there are no variants or too many, a value cannot be used, or the implementation has
        no such parameter.

    Examples
    --------
    >>> def scaled(x, *, factor, offset=0):
    ...     return factor * x + offset
    >>> made = variants("scaled", "scaled", scaled, {"factor": [2, 3]})
    >>> [(variant.name, variant.function(10)) for variant in made]
    [('scaled[factor=2]', 20), ('scaled[factor=3]', 30)]
    """
    values = _checked_values(where, tune)
    if not isinstance(function, Kernel):
        _check_keywords(where, function, list(values))
    found: list[Variant] = []
    for combination in _combinations(where, values, prune):
        if len(found) == _MOST_VARIANTS:
            raise KernelError(
                f"{where}: tune= makes more than {_MOST_VARIANTS} variants, each of which would "
                "have to be measured: give fewer values, or leave combinations out with prune="
            )
        settings = ",".join(f"{key}={_spelled(value)}" for key, value in combination.items())
        variant = _with_values(function, combination)
        found.append(Variant(f"{name}[{settings}]", variant, combination))
    if not found:
        raise KernelError(
            f"{where}: prune= leaves no variant: it must return False for one or more"
        )
    return found


# -- values ----------------------------------------------------------------------------------------


def _checked_values(where: str, tune: Any) -> dict[str, list[Any]]:
    if not isinstance(tune, Mapping) or not tune:
        raise KernelError(
            f"{where}: tune={tune!r} is not allowed: give a dict from parameters to the values to "
            "try, for example tune={'tile': [16, 32]}"
        )
    values: dict[str, list[Any]] = {}
    for name, given in tune.items():
        if not (isinstance(name, str) and name.isidentifier()):
            raise KernelError(f"{where}: tune= has the key {name!r}: give names of parameters")
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise KernelError(
                f"{where}: tune={{{name!r}: {given!r}}} is not allowed: give a list of values"
            )
        values[name] = list(given)
        if not values[name]:
            raise KernelError(f"{where}: tune= gives no values for {name!r}: give at least one")
        spelled = [_checked_spelling(where, name, value) for value in values[name]]
        for spelling in spelled:
            if spelled.count(spelling) > 1:
                raise KernelError(
                    f"{where}: tune= gives {name!r} the value {spelling} twice: names of variants "
                    "must differ"
                )
    return values


def _checked_spelling(where: str, name: str, value: Any) -> str:
    if not _is_plain(value):
        raise KernelError(
            f"{where}: tune= gives {name!r} the value {value!r} of type {type(value).__name__}: "
            "give Python numbers, booleans, None, members of enums, tuples of these, or strings of "
            "letters, digits and . _ + -"
        )
    return _spelled(value)


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        return type(value) is str and _WORD.fullmatch(value) is not None
    return isinstance(value, enum.Enum) or type(value) in _PLAIN_TYPES


def _spelled(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({','.join(map(_spelled, value))})"
    return value.name if isinstance(value, enum.Enum) else str(value)


def _combinations(
    where: str, values: Mapping[str, list[Any]], prune: Callable[..., Any] | None
) -> Iterator[dict[str, Any]]:
    if prune is not None:
        _check_prune(where, prune, values)
    count = math.prod(map(len, values.values()))
    if count > _MOST_COMBINATIONS:
        raise KernelError(
            f"{where}: tune= gives {count} combinations, and at most {_MOST_COMBINATIONS} are "
            "looked at: give fewer values"
        )
    for chosen in itertools.product(*values.values()):
        combination = dict(zip(values, chosen, strict=True))
        answer = False if prune is None else prune(**combination)
        if not isinstance(answer, bool | np.bool_):
            raise KernelError(
                f"{where}: prune= returned {answer!r} for {combination}: it must return True to "
                "leave the combination out, or False"
            )
        if not answer:
            yield combination


def _check_prune(where: str, prune: Any, names: Iterable[str]) -> None:
    if not callable(prune):
        raise KernelError(f"{where}: prune={prune!r} is not callable: give a function")
    try:
        inspect.signature(prune).bind(**dict.fromkeys(names))
    except TypeError as error:
        raise KernelError(
            f"{where}: prune= cannot be called with the keywords {list(names)}: {error}"
        ) from None


# -- functions -------------------------------------------------------------------------------------


def _with_values(function: Callable[..., Any], values: Mapping[str, Any]) -> Callable[..., Any]:
    if isinstance(function, Kernel):
        return function.with_constants(**values)
    variant = functools.partial(function, **values)
    signature = inspect.signature(function)
    left = [p for p in signature.parameters.values() if p.name not in values]
    # What a partial would tell still has the parameters, as keywords with new defaults.
    variant.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
    return variant


def _check_keywords(where: str, function: Callable[..., Any], names: list[str]) -> None:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise KernelError(
            f"{where} does not tell its parameters: wrap it in a plain function with the keyword "
            f"arguments {names}"
        ) from None
    for name in names:
        parameter = parameters.get(name)
        if parameter is None or not _is_tunable(parameter):
            found = "has no such parameter" if parameter is None else f"declares it as {parameter}"
            raise KernelError(
                f"{where}: tune= names {name!r}, and the function {found}: declare a keyword "
                f"argument {name!r} after a *, or one with a default"
            )
    by_position = [p for p in parameters.values() if p.kind in _BY_POSITION]
    tunable = [position for position, p in enumerate(by_position) if p.name in names]
    if tunable and tunable[0] + len(tunable) != len(by_position):
        first = by_position[tunable[0]].name
        raise KernelError(
            f"{where}: parameters behind the tunable {first!r} could not be given by position: put "
            "tunable parameters last, or after a *"
        )


def _is_tunable(parameter: Parameter) -> bool:
    has_default = parameter.default is not Parameter.empty
    return parameter.kind is Parameter.KEYWORD_ONLY or (
        parameter.kind is Parameter.POSITIONAL_OR_KEYWORD and has_default
    )
