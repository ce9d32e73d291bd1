"""Whether two implementations gave the same results, and if not, where they differ most.

Integers, booleans and all else that is no float must be equal. Floats must agree within a tolerance
that follows from their type. Values of two types are compared in the wider one, with the tolerance
of the less precise one. NaN agrees with NaN, infinities with themselves, and 0.0 with -0.0.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from .backends import to_numpy
from .copies import is_array, members, walk
from .errors import ConfigurationError
from .lang.annotations import as_dtype
from .records import record

Array = np.ndarray[Any, Any]
Leaves = Mapping[str, Any]
"""Arrays, numbers and all else that values hold, by how Python spells its place in them."""

_NUMBERS = (bool, int, float, complex, np.generic)
_FLOATS = "fc"


# -- tolerances ------------------------------------------------------------------------------------


@record
class Tolerance:
    """How far two numbers may be apart: within either of the two limits.

    Attributes
    ----------
    relative : float
        In proportion to the larger of the two magnitudes.
    absolute : float
        The difference itself.
    absolute_eps : float
        The difference in proportion to the largest number of the array and to the distance between
        1 and the next number of the type: what is left where large numbers cancel. The smallest
        normal number of the type is added.
    """

    relative: float = 0.0
    absolute: float = 0.0
    absolute_eps: float = 0.0


class Tolerances:
    """The tolerance of each element type.

    Parameters
    ----------
    given : mapping, optional
        By element type (``numpy.float32``, ``"float32"``, ``turnout.f32``) the relative tolerance,
        or a pair of the relative and the absolute one. For other float types half of the digits
        must agree: the relative tolerance is the square root of the type's ``eps``, 3.1e-2 for
        float16, 3.5e-4 for float32, 1.5e-8 for float64; the absolute one is 32 ``eps`` times the
        largest magnitude in the array. All else must be equal.

    Raises
    ------
    ConfigurationError
        When a key is no element type, or a value no tolerance.
    """

    def __init__(self, given: Mapping[Any, Any] | None = None) -> None:
        if given is not None and not isinstance(given, Mapping):
            raise ConfigurationError(
                f"tolerances={given!r} is not allowed: give a dict from element types to relative "
                "tolerances, for example {'float32': 1e-5}"
            )
        self._given = {
            _element_type(key): _tolerance(key, value) for key, value in (given or {}).items()
        }

    def of(self, dtype: np.dtype[Any]) -> Tolerance:
        """The tolerance of an element type."""
        if dtype in self._given:
            return self._given[dtype]
        if dtype.kind not in _FLOATS:
            return Tolerance()
        return Tolerance(relative=math.sqrt(np.finfo(dtype).eps), absolute_eps=32.0)


def _element_type(key: Any) -> np.dtype[Any]:
    own = as_dtype(key)
    try:
        return np.dtype(key if own is None else own.dtype)
    except TypeError:
        raise ConfigurationError(
            f"tolerances: {key!r} is no element type: give one such as numpy.float32 or 'float32'"
        ) from None


def _tolerance(key: Any, value: Any) -> Tolerance:
    is_pair = isinstance(value, tuple) and len(value) == 2
    limits: list[Any] = list(value) if is_pair else [value]
    for limit in limits:
        is_number = isinstance(limit, numbers.Real) and not isinstance(limit, bool)
        if not (is_number and limit >= 0):
            raise ConfigurationError(
                f"tolerances: {value!r} for {key!r} is not allowed: give a relative tolerance of "
                "0 or more, or a pair of a relative and an absolute one"
            )
    if is_pair:
        return Tolerance(float(limits[0]), float(limits[1]))
    return Tolerance(float(limits[0]), absolute_eps=32.0)


# -- what values hold ------------------------------------------------------------------------------


@record
class Structure:
    """Of a container what is compared before its members are: its kind and what it has."""

    kind: str
    members: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"a {self.kind} with {', '.join(self.members) or 'no members'}"


class _Words(str):
    """Text that is shown as it is, where values are shown as Python spells them."""


def leaves(value: Any, label: str) -> dict[str, Any]:
    """All that a value holds, arrays as they are; of each container its `Structure`."""
    found: dict[str, Any] = {}
    for place, each in walk(value, label):
        if isinstance(each, np.ndarray) and each.dtype == object:
            found[place] = _Words(f"an array of objects of shape {each.shape}")
            for index, item in np.ndenumerate(each):
                found |= leaves(item, place + str(list(index)))
            continue
        held = members(each)
        if held is None:
            found[place] = each
            continue
        is_sequence = isinstance(each, list | tuple)
        kind = "sequence" if is_sequence else "dict" if isinstance(each, dict) else _type_name(each)
        found[place] = Structure(kind, tuple(sorted(spelling for spelling, _ in held)))
    return found


def frozen(found: Leaves) -> dict[str, Any]:
    """The same leaves with copies of the arrays, on the host."""
    return {
        place: np.array(to_numpy(leaf)) if is_array(leaf) else leaf for place, leaf in found.items()
    }


# -- differences -----------------------------------------------------------------------------------


@record
class Difference:
    """How one result differs from another.

    Attributes
    ----------
    place : str
        Argument and element where the difference is largest, as Python spells it.
    got, expected : object
        The two values there.
    relative_error : float or None
        Their difference in proportion to the larger of them; None for what are no numbers.
    ulps : float or None
        The same in units in the last place of `expected`; None for what are no floats.
    tolerance : Tolerance or None
        What would have been right.
    count, size : int
        How many elements of the array differ, and how many there are.
    """

    place: str
    got: Any
    expected: Any
    relative_error: float | None = None
    ulps: float | None = None
    tolerance: Tolerance | None = None
    count: int = 1
    size: int = 1

    def __str__(self) -> str:
        text = f"{self.place} is {_shown(self.got)} instead of {_shown(self.expected)}"
        details = []
        if self.relative_error is not None:
            details.append(f"relative error {self.relative_error:.2g}")
        if self.ulps is not None:
            details.append(f"{self.ulps:.3g} ULP")
        if self.tolerance is not None and self.tolerance.relative:
            details.append(f"{self.tolerance.relative:.2g} is allowed")
        text += f" ({', '.join(details)})" if details else ""
        if self.size > 1:
            text += f"; {self.count} of {self.size} elements differ"
        return text


def compare(got: Leaves, expected: Leaves, tolerances: Tolerances) -> Difference | None:
    """Return the first place where results differ, within it the element that differs most.

    Parameters
    ----------
    got, expected : mapping
        What `leaves` returned; arrays may live on any device.
    tolerances : Tolerances

    Returns
    -------
    Difference or None
        None where they agree.
    """
    for place, wanted in expected.items():
        found = _compare_leaf(place, got.get(place), wanted, tolerances)
        if found is not None:
            return found
    return None


def _compare_leaf(place: str, got: Any, expected: Any, tolerances: Tolerances) -> Difference | None:
    a, b = _as_array(got), _as_array(expected)
    if a is not None and b is not None:
        return _compare_arrays(place, a, b, tolerances)
    if a is None and b is None and _is_equal(got, expected):
        return None
    return Difference(place, got, expected)


def _as_array(value: Any) -> Array | None:
    if is_array(value):
        return to_numpy(value)
    return np.asarray(value) if isinstance(value, _NUMBERS) else None


def _is_equal(got: Any, expected: Any) -> bool:
    try:
        return got is expected or bool(got == expected)
    except Exception:
        return False  # values that cannot tell whether they are equal are not taken to be


def _compare_arrays(
    place: str, got: Array, expected: Array, tolerances: Tolerances
) -> Difference | None:
    if got.shape != expected.shape:
        shapes = _Words(f"of shape {got.shape}"), _Words(f"shape {expected.shape}")
        return Difference(place, *shapes)
    kinds = got.dtype.kind, expected.dtype.kind
    if all(kind in "biufc" for kind in kinds):
        return _compare_numbers(place, got, expected, tolerances)
    if got.dtype != expected.dtype and not all(kind in "SU" for kind in kinds):
        dtypes = _Words(f"of dtype {got.dtype}"), _Words(f"dtype {expected.dtype}")
        return Difference(place, *dtypes)
    if got.dtype.names:
        fields = (
            _compare_arrays(f"{place}[{name!r}]", got[name], expected[name], tolerances)
            for name in got.dtype.names
        )
        return next((found for found in fields if found is not None), None)
    differs = np.asarray(got != expected)
    if got.dtype.kind in "mM":
        differs &= ~(np.isnat(got) & np.isnat(expected))
    return _at_largest(place, got, expected, differs, differs.astype(np.float64))


def _compare_numbers(
    place: str, got: Array, expected: Array, tolerances: Tolerances
) -> Difference | None:
    agrees = np.asarray((got == expected) | (_is_nan(got) & _is_nan(expected)))
    if agrees.all():
        return None
    judged = _less_precise(got.dtype, expected.dtype)
    tolerance = tolerances.of(judged)
    # At least float32, because differences of float16 are no better than the tolerance itself.
    wide = np.result_type(got.dtype, expected.dtype, np.float32)
    with np.errstate(all="ignore"):
        a, b = got.astype(wide, copy=False), expected.astype(wide, copy=False)
        apart, larger = np.abs(a - b), np.maximum(np.abs(a), np.abs(b))
        allowed = np.maximum(tolerance.relative * larger, _absolute(tolerance, larger, judged))
        agrees |= np.isfinite(apart) & (apart <= allowed) & (allowed > 0)
        error = np.where(np.isfinite(apart), apart / larger, np.inf)
    return _at_largest(place, got, expected, ~agrees, error, judged, tolerance)


def _is_nan(array: Array) -> Array:
    is_float = array.dtype.kind in _FLOATS
    return np.isnan(array) if is_float else np.zeros(array.shape, np.bool_)


def _absolute(tolerance: Tolerance, magnitudes: Array, dtype: np.dtype[Any]) -> float:
    finite = magnitudes[np.isfinite(magnitudes)]
    if not (tolerance.absolute_eps and dtype.kind in _FLOATS and finite.size):
        return tolerance.absolute
    info = np.finfo(dtype)
    # Some devices take numbers below the smallest normal one for 0.
    return tolerance.absolute_eps * float(info.eps) * float(finite.max()) + float(info.tiny)


def _less_precise(first: np.dtype[Any], second: np.dtype[Any]) -> np.dtype[Any]:
    floats = [dtype for dtype in (first, second) if dtype.kind in _FLOATS]
    return max(floats, key=lambda dtype: np.finfo(dtype).eps) if floats else second


def _at_largest(
    place: str,
    got: Array,
    expected: Array,
    differs: Array,
    error: Array,
    judged: np.dtype[Any] | None = None,
    tolerance: Tolerance | None = None,
) -> Difference | None:
    """The difference at the element with the largest error among those that differ."""
    if not differs.any():
        return None
    index = np.unravel_index(int(np.argmax(np.where(differs, error, -1.0))), differs.shape)
    values = got[index], expected[index]
    shown = place + (str([int(axis) for axis in index]) if index else "")
    return Difference(
        shown,
        *values,
        None if judged is None else float(error[index]),
        None if judged is None else _ulps(*values, judged),
        tolerance,
        int(differs.sum()),
        differs.size,
    )


def _ulps(got: Any, expected: Any, dtype: np.dtype[Any]) -> float | None:
    if dtype.kind != "f" or not (np.isfinite(got) and np.isfinite(expected)):
        return None
    with np.errstate(all="ignore"):
        unit = float(np.spacing(np.abs(expected).astype(dtype)))
        return abs(float(got) - float(expected)) / unit


def _shown(value: Any) -> str:
    if isinstance(value, _Words | Structure):
        return str(value)
    if is_array(value):
        return f"an array of shape {tuple(value.shape)}"
    if isinstance(value, np.generic):
        return str(value)
    text = repr(value)
    return text if len(text) <= 60 else f"a {_type_name(value)}"


def _type_name(value: object) -> str:
    return type(value).__name__
