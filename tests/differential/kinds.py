"""The types of the generated expressions, by NumPy's own promotion (NEP 50).

A kind is the name of an element type ("f32", ..., "bool_"), "int" or "float" for what is weak (a
Python number), or "truth" for what serves as a condition only (a Python bool).
"""

from __future__ import annotations

from typing import Any

import numpy as np

SCALARS: dict[str, type[np.generic]] = {
    "f32": np.float32,
    "f64": np.float64,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "bool_": np.bool_,
}
FLOATS = ("f32", "f64")
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
STRONG = tuple(SCALARS)
WEAK = ("int", "float")

ARITHMETIC = ("+", "-", "*")
DIVISION = ("/", "//", "%")
BITS = ("&", "|", "^")
SHIFTS = ("<<", ">>")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")

_NAMES = {np.dtype(scalar): name for name, scalar in SCALARS.items()}
_PYTHON: dict[str, Any] = {"int": 0, "float": 0.0}


def dtype_of(kind: str) -> np.dtype[Any]:
    return np.dtype(SCALARS[kind])


def promoted(first: str, second: str) -> str:
    """The kind of what combines two numbers."""
    if first in WEAK and second in WEAK:
        return "float" if "float" in (first, second) else "int"
    given = [_PYTHON[kind] if kind in WEAK else dtype_of(kind) for kind in (first, second)]
    return _NAMES[np.result_type(*given)]


def result_kind(operator: str, first: str, second: str) -> str | None:
    """The kind of ``first operator second``, or None where that is an error."""
    kind = promoted(first, second)
    is_float = kind in FLOATS or kind == "float"
    if operator in BITS:
        return None if is_float else kind
    if operator == "-" and kind == "bool_":
        return None
    if operator in SHIFTS and is_float:
        return None
    if operator == "/":
        return kind if is_float else "float" if kind == "int" else "f64"
    if operator in ("//", "%", *SHIFTS) and kind == "bool_":
        return "i8"
    return kind


def converts_by_itself(source: str, target: str) -> bool:
    """Whether a value of one kind may be stored in an array of another."""
    if source in WEAK:
        # A Python int still has to fit, which is for the caller to know.
        return (target != "bool_") if source == "int" else target in FLOATS
    return bool(np.can_cast(dtype_of(source), dtype_of(target), casting="same_kind"))


def limits(kind: str) -> tuple[int, int]:
    """The smallest and the largest value of an integer kind."""
    information = np.iinfo(SCALARS[kind])  # type: ignore[type-var]
    return int(information.min), int(information.max)
