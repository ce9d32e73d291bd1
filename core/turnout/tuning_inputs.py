"""Arguments to tune operations with: made from shapes, or given by a function of the user.

Only floats are made up. The values of an integer array, such as lengths or indices, often decide
how much work there is, so random ones would measure another problem than the user's.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import re
import reprlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any

import numpy as np

from .copies import is_array, members, walk
from .errors import CallError
from .kernel import Kernel
from .perf import PerformanceDispatcher
from .records import record
from .targets import attribute, failure_text, imported, split_target

Shape = tuple[int, ...]
Operation = PerformanceDispatcher[..., Any]
Callee = Operation | Kernel
Call = inspect.BoundArguments

OPERATION_FORM = "MODULE:OPERATION"
DATA_FORMS = "MODULE:FUNCTION or path/to/file.py:FUNCTION"

_SHAPE = re.compile(r"\(\s*(?:\d+\s*(?:,\s*\d+\s*)*,?)?\s*\)")
_DTYPES = {
    "float32": np.float32,
    "float64": np.float64,
    "complex64": np.complex64,
    "complex128": np.complex128,
    "f32": np.float32,
    "f64": np.float64,
}
_MOST_PARTS_SHOWN = 10
_COLLECTED = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


# -- what a user typed -----------------------------------------------------------------------------


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Return the shapes that a text lists, spelt as in Python.

    Raises
    ------
    CallError
        When it lists anything else, or nothing.

    Examples
    --------
    >>> parse_shapes("(1024, 3) (1024,) ()")
    ((1024, 3), (1024,), ())
    """
    shapes = _SHAPE.findall(text)
    rest = _SHAPE.sub("", text).strip()
    if rest or not shapes:
        raise CallError(
            f"{text!r} is no list of shapes: write that of each array as in Python, and quotes "
            "around all of them, for example --shapes '(1024, 3) (1024,)'"
        )
    return tuple(tuple(map(int, re.findall(r"\d+", shape))) for shape in shapes)


def parse_dtype(text: str) -> np.dtype[Any]:
    """Return the dtype of a name such as ``"float32"`` or ``"f32"``.

    Raises
    ------
    CallError
        When arrays of it are not made up, or there is no such dtype.
    """
    if text not in _DTYPES:
        raise CallError(
            f"{text!r} is not allowed: arrays are made of {', '.join(_DTYPES)}. The values of "
            "other arrays often decide how much work there is, so they are not made up: write a "
            f"function that returns the arguments of a call, and name it with --data {DATA_FORMS}"
        )
    return np.dtype(_DTYPES[text])


def parse_argument(text: str) -> tuple[str, object]:
    """Return the name and the value of ``NAME=VALUE``; the value is a literal of Python.

    Raises
    ------
    CallError
        When it is anything else.

    Examples
    --------
    >>> parse_argument("mode='fast'")
    ('mode', 'fast')
    """
    name, separator, value = (part.strip() for part in text.partition("="))
    if not (name and separator and value):
        raise CallError(f"{text!r} is not allowed: write NAME=VALUE, for example --argument n=100")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise CallError(
            f"{value!r} is no value: write a literal of Python, for example 3, 0.5, True, None or "
            "(0, 1), and quotes around a string and all of it, as in "
            f"--argument \"{name}='fast'\"; other values come from --data {DATA_FORMS}"
        ) from None


# -- operations ------------------------------------------------------------------------------------


def find_operation(target: str) -> Operation:
    """Import the operation that a user named.

    Parameters
    ----------
    target : str
        ``"MODULE:OPERATION"``. No file, because measurements are filed under the name that the
        module has in the programs that use it.

    Raises
    ------
    CallError
        Where there is no such module, its import fails, or it has no such operation.
    """
    place, path = split_target(target)
    if place.endswith(".py"):
        raise CallError(
            f"{place!r} is a file: name its module, as programs import it, because that name is "
            f"part of what measurements are filed under; give {OPERATION_FORM}"
        )
    if not path:
        raise CallError(f"{target!r} names no operation; give {OPERATION_FORM}")
    module = imported(place, OPERATION_FORM)
    found = attribute(module, place, path, _listed(place, module))
    if not isinstance(found, PerformanceDispatcher):
        raise CallError(f"{target} is no operation; {_listed(place, module)}")
    return found


def _listed(place: str, module: types.ModuleType) -> str:
    names = [name for name, each in vars(module).items() if isinstance(each, PerformanceDispatcher)]
    if not names:
        return "there is no operation (made by turnout.perf_dispatch or race) at its top level"
    return f"its operations are: {', '.join(f'{place}:{name}' for name in names)}"


# -- arguments made from shapes --------------------------------------------------------------------


@record
class Blank:
    """An array that is still to be made."""

    shape: Shape
    dtype: np.dtype[Any]


def planned_call(
    callee: Callee,
    shapes: Sequence[Shape],
    dtypes: Sequence[np.dtype[Any]],
    values: Mapping[str, object],
) -> Call:
    """Arrange the arguments of a call: arrays in the order of the parameters that have no value.

    Parameters
    ----------
    callee : PerformanceDispatcher or Kernel
    shapes : sequence of tuple of int
    dtypes : sequence of numpy.dtype
        One for all arrays, or one for each.
    values : mapping of str to object
        Arguments by name.

    Returns
    -------
    inspect.BoundArguments
        With a `Blank` for each array, so that all calls can be checked before the first is made.

    Raises
    ------
    CallError
        When these are no arguments of `callee`.
    """
    if len(dtypes) not in (1, len(shapes)):
        raise CallError(
            f"{counted(len(dtypes), 'dtype')} for {counted(len(shapes), 'array')}: give one for "
            "all of them, or one for each"
        )
    if len(dtypes) == 1:
        dtypes = [dtypes[0]] * len(shapes)
    signature = callee.__signature__
    parameters = signature.parameters
    accepts_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
    named = [name for name, each in parameters.items() if each.kind not in _COLLECTED]
    for name in values:
        if name not in named and not accepts_any:
            close = difflib.get_close_matches(name, named, n=1)
            suggestion = f" (did you mean {close[0]!r}?)" if close else ""
            raise CallError(
                f"{_spelled(callee)} has no parameter {name!r}{suggestion}: --argument gives "
                "parameters a value by their name"
            )
    arrays = list(map(Blank, shapes, dtypes))
    positional, by_name = _distributed(callee, arrays, values)
    return _bound(callee, positional, by_name, "these arguments")


def _distributed(
    callee: Callee, arrays: Sequence[Any], values: Mapping[str, object]
) -> tuple[list[object], dict[str, object]]:
    """Give each array to the next parameter that has no value; returns the arguments of a call."""
    rest = list(arrays)
    by_name = dict(values)
    positional: list[object] = []
    is_complete = True  # whether no parameter was left to its default so far
    for name, parameter in callee.__signature__.parameters.items():
        if parameter.kind is Parameter.VAR_POSITIONAL:
            positional += rest
            rest = []
        elif parameter.kind is Parameter.VAR_KEYWORD:
            continue
        elif name in by_name or rest:
            value = by_name.pop(name) if name in by_name else rest.pop(0)
            if is_complete and parameter.kind is not Parameter.KEYWORD_ONLY:
                positional.append(value)
            else:
                by_name[name] = value
        elif parameter.default is Parameter.empty:
            raise CallError(
                f"{_spelled(callee)}: nothing is given for {name!r}: give a shape for each "
                "array, in the order of the parameters, and --argument NAME=VALUE for all else"
            )
        else:
            is_complete = False
    if rest:
        raise CallError(
            f"{_spelled(callee)}: {counted(len(arrays), 'shape')} given, and parameters for "
            f"{len(arrays) - len(rest)} of them are left beside those with --argument"
        )
    return positional, by_name


def filled(call: Call, seed: int) -> Call:
    """Return a planned call with arrays of random numbers, at least 0 and less than 1.

    Raises
    ------
    CallError
        When there is too little memory.
    """
    random = np.random.default_rng(seed)

    def fill(value: Any) -> Any:
        if isinstance(value, tuple):  # what *args collects
            return tuple(map(fill, value))
        return _random(random, value.shape, value.dtype) if isinstance(value, Blank) else value

    arguments = {name: fill(value) for name, value in call.arguments.items()}
    return Call(call.signature, arguments)


def _random(random: np.random.Generator, shape: Shape, dtype: np.dtype[Any]) -> Any:
    part = dtype.type(0).real.dtype
    try:
        array = random.random(shape, part)
        return np.asarray(array + 1j * random.random(shape, part) if dtype.kind == "c" else array)
    except (MemoryError, OverflowError, ValueError) as error:
        raise CallError(f"no array of shape {shape} and dtype {dtype}: {error}") from error


# -- arguments from a function ---------------------------------------------------------------------


def given_calls(callee: Callee, target: str) -> Iterator[Call]:
    """Call the function that a user named, and give the arguments that it returns.

    Parameters
    ----------
    callee : PerformanceDispatcher or Kernel
    target : str
        ``"MODULE:FUNCTION"`` or ``"path/to/file.py:FUNCTION"``. It takes no arguments, and returns
        the arguments of a call, as a tuple in the order of the parameters or as a dict by name; or
        a list or generator of these.

    Raises
    ------
    CallError
        Where there is no such function, it fails, or what it returns are no arguments of
        `callee`.
    """
    returned = _run(_data_function(target), target)
    calls = iter(returned if isinstance(returned, list | Iterator) else [returned])
    given = _run(lambda: next(calls, _END), target)
    if given is _END:
        raise CallError(f"{target} gives no arguments at all: {_WHAT_DATA_IS}")
    while given is not _END:
        yield _given_call(callee, target, given)
        given = _run(lambda: next(calls, _END), target)


_END = object()
_WHAT_DATA_IS = (
    "it must return the arguments of a call, as a tuple in the order of the parameters or a dict "
    "by name, or a list or generator of these"
)


def _data_function(target: str) -> Callable[[], Any]:
    place, path = split_target(target)
    if not path:
        raise CallError(f"{target!r} names no function; give {DATA_FORMS}")
    module = imported(place, DATA_FORMS)
    names = [
        name
        for name, each in vars(module).items()
        if inspect.isfunction(each) and each.__module__ == module.__name__
    ]
    found = attribute(module, place, path, f"its functions are: {', '.join(names) or 'none'}")
    if not callable(found):
        raise CallError(f"{target} is {reprlib.repr(found)}, which is no function; {_WHAT_DATA_IS}")
    return found


def _run(function: Callable[[], Any], target: str) -> Any:
    try:
        return function()
    except Exception as error:
        raise CallError(f"{target} failed:\n{failure_text(error)}") from error


def _given_call(callee: Callee, target: str, given: object) -> Call:
    if isinstance(given, dict):
        return _bound(callee, (), given, f"what {target} returned")
    if isinstance(given, tuple):
        return _bound(callee, given, {}, f"what {target} returned")
    raise CallError(f"{target} returned {type(given).__name__}: {_WHAT_DATA_IS}")


# -- calls -----------------------------------------------------------------------------------------


def _bound(
    callee: Callee, positional: Sequence[Any], by_name: Mapping[Any, Any], what: str
) -> Call:
    try:
        return callee.__signature__.bind(*positional, **by_name)
    except TypeError as error:
        raise CallError(f"{what} do not fit {_spelled(callee)}: {error}") from error


def _spelled(callee: Callee) -> str:
    return f"{callee.__name__}{callee.__signature__}"


def counted(number: int, what: str) -> str:
    """Return a number of things in words, for example ``2 shapes``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def described(call: Call) -> str:
    """Return the arguments of a call in a line: arrays by dtype and shape, all else by value.

    Examples
    --------
    >>> signature = inspect.signature(lambda x, n: None)
    >>> described(signature.bind(np.zeros((2, 3)), 7))
    'x: float64 (2, 3), n = 7'
    """
    parts = list(itertools.islice(_parts(call), _MOST_PARTS_SHOWN + 1))
    if len(parts) > _MOST_PARTS_SHOWN:
        parts[-1] = "..."
    return ", ".join(parts)


def _parts(call: Call) -> Iterator[str]:
    for name, argument in call.arguments.items():
        for label, value in walk(argument, name):
            if is_array(value):
                yield f"{label}: {value.dtype} {tuple(value.shape)}"
            elif members(value) is None:
                yield f"{label} = {' '.join(reprlib.repr(value).split())}"
