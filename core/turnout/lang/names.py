"""Free names of a kernel: globals, closure variables and builtins as compile-time constants."""

from __future__ import annotations

import ast
import builtins
import enum
import math
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..ir import from_numpy
from ..math import equivalent
from .annotations import as_dtype
from .values import Known, is_number


def parallel(iterable: range) -> range:
    """Assert that the iterations of a loop are independent: ``for i in parallel(range(n))``.

    The loop then runs in parallel without a proof. Augmented assignments to elements that several
    iterations share are atomic there: exact for integers, in an unspecified order for floats.
    Outside of kernels this gives its argument back.

    Parameters
    ----------
    iterable : range

    Returns
    -------
    range
    """
    return iterable


def serial(iterable: range) -> range:
    """Forbid that a loop runs in parallel: ``for i in serial(range(n))``.

    Outside of kernels this gives its argument back.

    Parameters
    ----------
    iterable : range

    Returns
    -------
    range
    """
    return iterable


class Func:
    """A helper that kernels may call; its body is inlined. Made by `turnout.func`."""

    def __init__(self, function: Callable[..., Any], lines: list[str]) -> None:
        self.function = function
        self.lines = lines
        self.names = FreeNames(function)
        self.__wrapped__ = function
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Outside of kernels: plain Python."""
        return self.function(*arguments, **keywords)

    def __repr__(self) -> str:
        return f"<turnout.func {self.__qualname__}>"


BUILTINS = (range, len, min, max, abs, int, float, bool, round)


class FreeNames:
    """Values of the names that a function takes from outside.

    They are constants of the kernel: resolved when first asked for, and kept, so that every
    specialisation of a kernel sees the same values.

    Parameters
    ----------
    function : callable
    overrides : mapping of str to object, optional
        Values that stand in place of those that the function would find.
    """

    def __init__(
        self, function: Callable[..., Any], overrides: Mapping[str, Any] | None = None
    ) -> None:
        self._function = function
        self._overrides = overrides or {}
        self._resolved: dict[str, Known] = {}
        self._attributes: dict[tuple[Any, str], Known] = {}

    def resolve(self, name: str) -> Known:
        """The constant that `name` stands for.

        Raises
        ------
        LookupError
            For an unknown name, with a message for the kernel's author.
        TypeError
            For a value that cannot be a constant of a kernel, with such a message.
        """
        if name not in self._resolved:
            self._resolved[name] = Known(constant(self._look_up(name), name))
        return self._resolved[name]

    def attribute(self, owner: Any, name: str) -> Known:
        """The constant that ``owner.name`` stands for; errors as those of `resolve`."""
        key = (owner, name)
        if key not in self._attributes:
            self._attributes[key] = Known(constant(getattr(owner, name), name))
        return self._attributes[key]

    def overridable(self, tree: ast.FunctionDef) -> list[str]:
        """The free names in the body of the function that are neither modules nor builtins.

        Names that have no value are among them: an override may be the only one they ever get.
        """
        code = self._function.__code__
        read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        free = read & {*code.co_names, *code.co_freevars} - {*code.co_varnames}
        return sorted(name for name in free if self._is_overridable(name))

    def _is_overridable(self, name: str) -> bool:
        try:
            value = self._look_up(name)
        except LookupError:
            return True
        is_builtin = value is getattr(builtins, name, self)
        return not is_builtin and not isinstance(value, types.ModuleType)

    def _look_up(self, name: str) -> Any:
        if name in self._overrides:
            return self._overrides[name]
        code = self._function.__code__
        if name in code.co_freevars:
            cell = (self._function.__closure__ or ())[code.co_freevars.index(name)]
            try:
                return cell.cell_contents
            except ValueError:
                raise LookupError(f"the closure variable {name!r} has no value yet") from None
        if name in self._function.__globals__:
            return self._function.__globals__[name]
        try:
            return getattr(builtins, name)
        except AttributeError:
            raise LookupError(f"the name {name!r} is not defined") from None


def constant(value: Any, name: str) -> Any:
    """`value` in the form in which kernels hold it, or `TypeError` where they cannot."""
    if isinstance(value, enum.Enum) and is_number(value.value):
        return value.value
    if isinstance(value, np.generic) and from_numpy(value.dtype) is None:
        raise TypeError(f"{name!r} is a {type(value).__name__}, a type that kernels do not have")
    if value is None or is_number(value):
        return value
    if isinstance(value, str | types.ModuleType | enum.Enum | Func):
        return value
    if isinstance(value, tuple):
        return tuple(constant(item, name) for item in value)
    if as_dtype(value) is not None or equivalent(value) is not None:
        return value
    if any(value is allowed for allowed in (parallel, serial, *BUILTINS)):
        return value
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return value
    raise TypeError(_refusal(value, name))


def _refusal(value: Any, name: str) -> str:
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        return f"{name!r} is an array from outside of the kernel; pass it as an argument"
    if getattr(value, "__turnout_kernel__", False):
        return f"{name!r} is a kernel, which kernels cannot call; make it a turnout.func"
    if any(value is rounding for rounding in (math.floor, math.ceil, math.trunc)):
        return (
            f"{name!r} of Python's math gives a Python int; use turnout.math.{value.__name__}, or "
            "i64(x)"
        )
    if callable(value):
        return (
            f"{name!r} is nothing that kernels can call; decorate a Python function with "
            "turnout.func, or use a function of turnout.math"
        )
    return (
        f"{name!r} is a {kind} from outside of the kernel; only numbers, strings, enums, element "
        "types and turnout.func helpers can be used there; pass anything else as an argument"
    )
