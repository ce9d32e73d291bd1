"""What measurements are filed under: geometries as text, digests of implementations, devices.

Everything here is the same in every process that runs the same code, whatever its hash seed, and
differs where a measurement would be of something else. What cannot promise that has no identity
(None), and its measurements are not stored.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .discovery import CORE, core_version
from .errors import ConfigurationError, TurnoutError
from .kernel import Kernel
from .lang import Func
from .loading import DeviceContext
from .pickling import func_definition
from .store import MeasurementKey

LONGEST_GEOMETRY = 4096
"""Characters of a geometry; longer ones are not stored."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def measurement_key(operation: str, geometry: str, context: DeviceContext) -> MeasurementKey:
    """Return the key of an operation's measurements on a device.

    Parameters
    ----------
    operation : str
        With its module.
    geometry : str
        From `canonical_geometry`.
    context : DeviceContext
        The device of the call.
    """
    return MeasurementKey(operation, geometry, *_device_texts(context))


@functools.lru_cache(maxsize=64)
def _device_texts(context: DeviceContext) -> tuple[str, str, str]:
    device, backend = context.device, context.backend
    target = hashlib.sha256(str(device.target).encode("utf-8", "surrogatepass")).hexdigest()
    versions = {
        "numpy": np.__version__,
        "python": str(sys.implementation.cache_tag),
        CORE: core_version(),
        backend.distribution: backend.version,
    }
    return (
        str(device),
        f"{device.label}, target {device.target.arch} {target[:16]}",
        ", ".join(f"{name} {version}" for name, version in sorted(versions.items())),
    )


# -- geometries ------------------------------------------------------------------------------------


def canonical_geometry(value: object) -> str | None:
    """Return a geometry as text that is equal in every process, or None where there is none.

    Parameters
    ----------
    value : object
        A geometry: numbers, strings, booleans, None, members of enums, NumPy scalars and dtypes,
        types, and tuples of all these.

    Returns
    -------
    str or None
        None for anything else, for a bare integer, which most likely comes from `hash` and may
        differ in the next process, and for what takes more than `LONGEST_GEOMETRY` characters. The
        default geometry serves then.

    Examples
    --------
    >>> canonical_geometry(((64, 3), np.dtype("f4"), True, "fast"))
    "((64, 3), float32, True, 'fast')"
    >>> canonical_geometry(hash((64, 3))) is None
    True
    """
    if type(value) is int:
        return None
    try:
        text = _plain_text(value)
    except _IndescribableError:
        return None
    return text if len(text) <= LONGEST_GEOMETRY else None


class _IndescribableError(Exception):
    """A value has no text that is the same in every process."""


def _plain_text(value: object) -> str:
    if isinstance(value, enum.Enum):
        return f"{_qualified_name(type(value))}({_plain_text(value.value)})"
    if type(value) in _PLAIN:
        return ascii(value)
    if isinstance(value, np.generic):
        return f"{value.dtype}({value.item()!a})"
    if isinstance(value, np.dtype):
        return str(value)
    if isinstance(value, type):
        return _qualified_name(value)
    if isinstance(value, tuple):
        kind = "" if type(value) is tuple else _qualified_name(type(value))
        return kind + _tuple_text(map(_plain_text, value))
    raise _IndescribableError


def _tuple_text(texts: Iterable[str]) -> str:
    members = list(texts)
    return f"({', '.join(members)}{',' if len(members) == 1 else ''})"


def _qualified_name(value: Any) -> str:
    module = value.__module__
    return str(value.__qualname__) if module == "builtins" else f"{module}.{value.__qualname__}"


# -- implementations -------------------------------------------------------------------------------


def implementation_digest(function: Callable[..., Any], version: str | None = None) -> str | None:
    """Return a digest of what an implementation is made of, or None where nobody can know.

    Of a kernel: its source, the constants and helpers that it uses, and its options. Of a plain
    function: its code, defaults, the values it closes over, the constants of its module that it
    uses, and the functions of its module that it calls, in the same way. Comments and places in a
    file do not count.

    Parameters
    ----------
    function : callable
    version : str, optional
        What its author says it is. A digest of built-in functions, of callable objects, and of
        functions that close over arrays, lists or other objects exists only with a version.

    Returns
    -------
    str or None
        64 hexadecimal digits.

    Raises
    ------
    ConfigurationError
        When `version` is no string, or empty.

    Examples
    --------
    >>> implementation_digest(lambda x: 2 * x) == implementation_digest(lambda y: 3 * y)
    False
    >>> implementation_digest(abs) is None
    True
    >>> implementation_digest(abs, version="1") == implementation_digest(abs, version="1")
    True
    """
    check_version(version)
    try:
        text = _implementation_text(function)
    except (_IndescribableError, TurnoutError):
        if version is None:
            return None
        text = ""
    whole = f"{version!r} {text}"
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()


def check_version(version: object) -> None:
    """Raise a ConfigurationError unless it is a text, or None."""
    if version is not None and not (isinstance(version, str) and version):
        raise ConfigurationError(
            f"version={version!r} is not allowed: give a text that changes with the "
            "implementation, for example '1', or the __version__ of the package that does the work"
        )


def _implementation_text(function: object) -> str:
    # A name says enough of a function that is called, but not of one that is the implementation.
    if isinstance(function, Kernel | Func | types.FunctionType | functools.partial):
        return _value_text(function, [])
    raise _IndescribableError


def _value_text(value: object, seen: list[types.FunctionType]) -> str:
    """Text of a value that a function closes over; `seen` are the functions described so far."""
    if isinstance(value, Kernel):
        return f"kernel {value.definition.digest}"
    if isinstance(value, Func):
        return f"helper {func_definition(value).digest}"
    if isinstance(value, types.FunctionType):
        return _function_text(value, seen)
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, tuple(sorted(value.keywords.items())))
        return f"partial{_value_text(parts, seen)}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__} {getattr(value, '__version__', '')}"
    if isinstance(value, types.BuiltinFunctionType) and not _is_bound(value):
        return f"function {_qualified_name(value)}"
    if isinstance(value, np.ufunc):
        return f"function numpy.{value.__name__}"
    if type(value) is tuple:
        return _tuple_text(_value_text(each, seen) for each in value)
    return _plain_text(value)


def _is_bound(function: types.BuiltinFunctionType) -> bool:
    owner = function.__self__
    return owner is not None and not isinstance(owner, types.ModuleType)


def _function_text(function: types.FunctionType, seen: list[types.FunctionType]) -> str:
    if function in seen:
        return f"function {seen.index(function)}"
    seen.append(function)
    parts = [_code_text(function.__code__)]
    parts.append(_value_text(function.__defaults__ or (), seen))
    parts.append(_value_text(tuple(sorted((function.__kwdefaults__ or {}).items())), seen))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        parts.append(f"{name} = {_cell_text(cell, seen)}")
    for name in sorted(_names(function.__code__) & function.__globals__.keys()):
        parts.append(f"{name} = {_global_text(function, name, seen)}")
    return "\n".join(parts)


def _cell_text(cell: types.CellType, seen: list[types.FunctionType]) -> str:
    try:
        value = cell.cell_contents
    except ValueError:
        return "nothing yet"
    return _value_text(value, seen)


def _global_text(function: types.FunctionType, name: str, seen: list[types.FunctionType]) -> str:
    """Text of a name of the module; objects that it may share with anybody count as their type."""
    value = function.__globals__[name]
    if isinstance(value, types.FunctionType) and value.__module__ != function.__module__:
        return f"function {_qualified_name(value)}"
    try:
        return _value_text(value, seen)
    except (_IndescribableError, TurnoutError):
        return _qualified_name(type(value))


def _names(code: types.CodeType) -> set[str]:
    nested = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*map(_names, nested))


def _code_text(code: types.CodeType) -> str:
    """Text of compiled code, which exists where source does not; the same for one interpreter."""
    return repr(
        (
            code.co_code,
            code.co_exceptiontable,
            code.co_flags,
            (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
            (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
            [_constant_text(constant) for constant in code.co_consts],
        )
    )


def _constant_text(constant: object) -> str:
    if isinstance(constant, types.CodeType):
        return _code_text(constant)
    if isinstance(constant, frozenset):
        return f"frozenset({sorted(map(_constant_text, constant))})"
    if isinstance(constant, tuple):
        return _tuple_text(map(_constant_text, constant))
    return repr(constant)
