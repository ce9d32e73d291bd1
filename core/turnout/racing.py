"""``race``: functions that exist already as one operation, in one line."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from .errors import KernelError
from .perf import PerformanceDispatcher, perf_dispatch
from .signatures import check_parameters, generate_prototype

_ANY_ARGUMENTS = inspect.signature(lambda *args, **kwargs: None)


def race(
    *functions: Callable[..., Any],
    get_geometry_hash: Callable[..., Hashable] | None = None,
    name: str | None = None,
    versions: Sequence[str | None] | None = None,
    **options: Any,
) -> PerformanceDispatcher[..., Any]:
    """Make an operation of functions that exist already; each call runs one of them.

    Keep what it returns, for example as a global: it learns from call to call which function is
    fastest. Where all functions have the same parameters, so has the operation; otherwise it hands
    on any arguments, as they were given.

    Parameters
    ----------
    *functions : callable
        Two or more that do the same: plain functions, kernels, builtins, ``functools.partial``,
        functions of NumPy, Numba or CuPy.
    get_geometry_hash : callable, optional
        As of `perf_dispatch`.
    name : str, optional
        Of the operation. Default: ``race_of_`` and the name of the first function.
    versions : sequence of str, optional
        One per function, None for those that need none: as ``version=`` of ``register``, for
        functions whose code turnout cannot read, such as those of compiled packages. Without it
        their measurements are not kept for later processes.
    **options
        As of `perf_dispatch`.

    Returns
    -------
    PerformanceDispatcher
        Its implementations have the names of the functions; of several with one name the second is
        called ``name_2``.

    Raises
    ------
    KernelError
        When fewer than two functions are given, what is given cannot be called, or there are not as
        many versions as functions.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> norm = tn.race(np.linalg.norm, lambda x: np.sqrt(np.dot(x, x)))
    >>> norm.implementations
    ('norm', 'lambda')
    >>> print(norm(np.array([3.0, 4.0])))
    5.0
    """
    if len(functions) < 2:
        raise KernelError(
            f"race: {len(functions)} functions given: give at least two that do the same"
        )
    for function in functions:
        if not callable(function):
            raise KernelError(f"race: {function!r} cannot be called: give functions")
    if versions is not None and (isinstance(versions, str) or len(versions) != len(functions)):
        raise KernelError(
            f"race: versions={versions!r}: give a list with one version per function, "
            f"{len(functions)} in all, None for those that need none"
        )
    names = _unique_names(functions)
    signature = _common_signature(functions)
    prototype = generate_prototype(_ANY_ARGUMENTS if signature is None else signature)
    prototype.__name__ = prototype.__qualname__ = name or f"race_of_{names[0]}"
    prototype.__module__ = sys._getframe(1).f_globals.get("__name__", __name__)
    prototype.__doc__ = f"One of {', '.join(names)}: the fastest for its arguments."
    operation = perf_dispatch(get_geometry_hash=get_geometry_hash, **options)(prototype)
    versions = versions or [None] * len(functions)
    for own_name, function, version in zip(names, functions, versions, strict=True):
        fitting = _with_any_arguments(function) if signature is None else function
        operation.register(name=own_name, version=version)(fitting)
        if inspect.isfunction(fitting):
            # They were not decorated: a kernel can still be made of them.
            fitting.__dict__.pop("__turnout_registered__", None)
    return operation


def _unique_names(functions: Sequence[Callable[..., Any]]) -> list[str]:
    names: list[str] = []
    for function in functions:
        name = unique = _name(function)
        numbers = itertools.count(2)
        while unique in names:
            unique = f"{name}_{next(numbers)}"
        names.append(unique)
    return names


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None) or type(function).__name__
    return str(name).strip("<>")


def _common_signature(functions: Sequence[Callable[..., Any]]) -> inspect.Signature | None:
    """The signature of the first function whose parameters are those of all; None if there is none.

    Defaults may differ: an operation passes all arguments, its own defaults for those left out.
    """
    if any(isinstance(function, np.ufunc) for function in functions):
        return None  # they tell parameters that exclude each other, and all would be given
    for function in functions:
        try:
            signature = inspect.signature(function)
            for each in functions:
                check_parameters("race", each, signature)
        except (TypeError, ValueError, KernelError):
            continue  # others have other parameters, or it is a builtin that does not tell its own
        return signature
    return None


def _with_any_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under the signature of a prototype that hands on any arguments."""
    handing_on = functools.partial(function)
    handing_on.__signature__ = _ANY_ARGUMENTS  # type: ignore[attr-defined]
    return handing_on
