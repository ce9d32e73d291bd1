"""Typed units and signatures as JSON, which is how bundles keep what calls are checked by.

A record becomes a list: its class, then its fields in order. Every class that may stand in a
bundle is listed here with the form of each of its fields, and nothing else is read or written, so a
file makes no object that this module does not name. What is read is right as far as types go; what
a unit means is checked by `turnout.ir.verify`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import ir
from .errors import BundleError
from .hooks import Target
from .lang import LoweredKernel, ParameterSpec, Returned, Signature
from .records import record


@record
class Codec:
    """How one kind of value is written as JSON and read back.

    Attributes
    ----------
    write : callable
        From a value to what `json` can hold.
    read : callable
        The way back; raises `BundleError` for anything that `write` does not make.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _checked(value: Any, holds: bool, expected: str) -> Any:
    if not holds:
        raise BundleError(f"{_shown(value)} stands where {expected} is expected")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _plain(kind: type, expected: str) -> Codec:
    def same(value: Any) -> Any:
        return _checked(value, type(value) is kind, expected)

    return Codec(same, same)


def _one_of(texts: tuple[str, ...]) -> Codec:
    def same(value: Any) -> Any:
        expected = f"one of {', '.join(map(repr, texts))}"
        return _checked(value, isinstance(value, str) and value in texts, expected)

    return Codec(same, same)


INTEGER = _plain(int, "an integer")
TEXT = _plain(str, "a text")
FLAG = _plain(bool, "true or false")


def optional(codec: Codec) -> Codec:
    """What may be None."""
    return Codec(
        lambda value: None if value is None else codec.write(value),
        lambda value: None if value is None else codec.read(value),
    )


def many(codec: Codec) -> Codec:
    """A tuple of any length."""

    def read(value: Any) -> tuple[Any, ...]:
        return tuple(map(codec.read, _checked(value, isinstance(value, list), "a list")))

    return Codec(lambda value: [codec.write(item) for item in value], read)


def row(*codecs: Codec) -> Codec:
    """A tuple of as many items as there are codecs."""

    def read(value: Any) -> tuple[Any, ...]:
        is_row = isinstance(value, list) and len(value) == len(codecs)
        items = _checked(value, is_row, f"a list of {len(codecs)} items")
        return tuple(codec.read(item) for codec, item in zip(codecs, items, strict=True))

    return Codec(
        lambda value: [codec.write(item) for codec, item in zip(codecs, value, strict=True)], read
    )


def _write_number(value: Any) -> Any:
    # Decimal digits of a float are no exact form everywhere, and JSON has no infinities.
    return {"float": value.hex()} if isinstance(value, float) else value


def _read_number(value: Any) -> Any:
    if type(value) in (int, bool):
        return value
    is_float = isinstance(value, dict) and list(value) == ["float"]
    text = _checked(value, is_float, "a number")["float"]
    try:
        return float.fromhex(TEXT.read(text))
    except (ValueError, OverflowError):
        raise BundleError(f"{_shown(text)} is no hexadecimal float") from None


def _read_dtype(value: Any) -> ir.DType:
    is_name = isinstance(value, str) and value in ir.DTYPE_BY_NAME
    return ir.DTYPE_BY_NAME[_checked(value, is_name, "an element type")]


def _read_weak(value: Any) -> Any:
    return value if value in ("int", "float") else _read_dtype(value)


NUMBER = Codec(_write_number, _read_number)
DTYPE = Codec(str, _read_dtype)
CALL_TYPE = Codec(str, _read_weak)
"""A type of a parameter in a call: an element type, or that of a Python number."""

_VALUE = Codec(
    lambda value: [value.number, value.dtype.name],
    lambda value: ir.Value(*row(INTEGER, DTYPE).read(value)),
)
_VALUES = many(_VALUE)


def record_of(*classes: type) -> Codec:
    """A record of one of some classes, whose fields `FIELDS` describes."""
    by_name = {each.__name__: each for each in classes}

    def write(value: Any) -> list[Any]:
        kind = type(value)
        if kind not in classes:
            raise BundleError(f"a bundle cannot hold a {kind.__name__}")
        fields = FIELDS[kind].items()
        return [kind.__name__, *(codec.write(getattr(value, name)) for name, codec in fields)]

    def read(value: Any) -> Any:
        is_list = isinstance(value, list) and bool(value) and isinstance(value[0], str)
        name, *items = _checked(value, is_list, f"one of {', '.join(by_name)}")
        kind = by_name.get(name)
        if kind is None:
            raise BundleError(f"{_shown(name)} stands where one of {', '.join(by_name)} may")
        codecs = FIELDS[kind].values()
        _checked(items, len(items) == len(codecs), f"a {name} with {len(codecs)} fields")
        return kind(*(codec.read(item) for codec, item in zip(codecs, items, strict=True)))

    return Codec(write, read)


_STATEMENT = record_of(*ir.Statement.__args__)
_STATEMENTS = many(_STATEMENT)
_REGION = record_of(ir.Region)
_PLAN = record_of(ir.Plan)
_SUM = record_of(ir.QuantitySum)
_QUANTITY = row(TEXT, optional(INTEGER))
_PAIRS = many(row(TEXT, TEXT))
_SPECS = many(record_of(ParameterSpec))

FIELDS: dict[type, dict[str, Codec]] = {
    ir.Region: {"parameters": _VALUES, "body": _STATEMENTS, "yields": _VALUES},
    ir.Constant: {"result": _VALUE, "value": NUMBER},
    ir.Compute: {"result": _VALUE, "operation": TEXT, "operands": _VALUES},
    ir.Cast: {"result": _VALUE, "operand": _VALUE},
    ir.Extent: {"result": _VALUE, "array": TEXT, "axis": INTEGER},
    ir.LocalArray: {"array": TEXT, "dtype": DTYPE, "shape": many(INTEGER)},
    ir.Load: {"result": _VALUE, "array": TEXT, "indices": _VALUES, "line": INTEGER},
    ir.Store: {
        "array": TEXT,
        "indices": _VALUES,
        "value": _VALUE,
        "combine": optional(TEXT),
        "line": INTEGER,
    },
    ir.If: {"results": _VALUES, "condition": _VALUE, "then": _REGION, "otherwise": _REGION},
    ir.Switch: {"results": _VALUES, "selector": _VALUE, "arms": many(_REGION)},
    ir.Dispatch: {
        "results": _VALUES,
        "selector": _VALUE,
        "arms": many(_REGION),
        "policy": TEXT,
        "name": TEXT,
        "line": INTEGER,
    },
    ir.For: {
        "results": _VALUES,
        "start": _VALUE,
        "stop": _VALUE,
        "step": _VALUE,
        "initial": _VALUES,
        "body": _REGION,
        "independent": FLAG,
        "intent": TEXT,
        "line": INTEGER,
    },
    ir.While: {
        "results": _VALUES,
        "initial": _VALUES,
        "condition": _REGION,
        "body": _REGION,
        "line": INTEGER,
    },
    ir.ArrayParameter: {
        "name": TEXT,
        "dtype": DTYPE,
        "rank": INTEGER,
        "is_read": FLAG,
        "is_written": FLAG,
        "shape": many(optional(INTEGER)),
        "is_contiguous": FLAG,
    },
    ir.ScalarParameter: {"name": TEXT, "value": _VALUE},
    ir.Unit: {
        "name": TEXT,
        "parameters": many(record_of(ir.ArrayParameter, ir.ScalarParameter)),
        "prologue": _STATEMENTS,
        "extents": _VALUES,
        "body": _REGION,
        "fast_math": FLAG,
        "apart": _PAIRS,
    },
    ir.Scratch: {"name": TEXT, "dtype": DTYPE, "shape": many(INTEGER), "is_filled": FLAG},
    ir.QuantitySum: {"terms": many(row(_QUANTITY, INTEGER)), "constant": INTEGER},
    ir.Reach: {
        "array": TEXT,
        "axis": INTEGER,
        "least": optional(_SUM),
        "greatest": optional(_SUM),
        "ranges": many(row(_SUM, _SUM)),
        "line": INTEGER,
    },
    ir.Run: {
        "unit": record_of(ir.Unit),
        "exclusive": _PAIRS,
        "elementwise": _PAIRS,
        "reaches": many(record_of(ir.Reach)),
    },
    ir.Split: {
        "run": record_of(ir.Run),
        "extra": many(TEXT),
        "classify": _PLAN,
        "branches": many(_PLAN),
        "guarded": many(_PLAN),
        "listed": _PLAN,
    },
    ir.Plan: {"steps": many(record_of(ir.Scratch, ir.Run, ir.Split))},
    Returned: {"name": TEXT, "dtype": DTYPE, "width": INTEGER},
    LoweredKernel: {
        "plan": _PLAN,
        "returned": many(record_of(Returned)),
        # Of use to those who have the source.
        "notes": Codec(lambda value: None, lambda value: ()),
    },
    ParameterSpec: {
        "name": TEXT,
        "role": _one_of(("plane", "mask", "param", "array")),
        "dtype": optional(DTYPE),
        "rank": INTEGER,
        "width": INTEGER,
        "is_output": FLAG,
        "annotation": TEXT,
    },
    Signature: {
        "form": _one_of(("sample", "array")),
        "parameters": _SPECS,
        "returns": optional(_SPECS),
        "returns_tuple": FLAG,
    },
    Target: {
        "backend": TEXT,
        "arch": TEXT,
        "features": Codec(sorted, lambda value: frozenset(many(TEXT).read(value))),
        "options": many(TEXT),
        "lanes": INTEGER,
    },
}
"""Every class that may stand in a bundle, with all fields of its constructor in their order."""

SIGNATURE = record_of(Signature)
TARGET = record_of(Target)
_LOWERED = record_of(LoweredKernel)


def write_lowered(lowered: LoweredKernel) -> Any:
    """The JSON of a kernel for one combination of argument types."""
    return _LOWERED.write(lowered)


def read_lowered(value: Any) -> LoweredKernel:
    """What `write_lowered` wrote.

    Raises
    ------
    BundleError
        Where anything in it is unknown, or a unit is malformed.
    """
    lowered: LoweredKernel = _LOWERED.read(value)
    for unit in lowered.plan.units:
        _verify(unit)
    return lowered


def _verify(unit: ir.Unit) -> None:
    try:
        ir.verify(unit)
    except (ir.VerificationError, LookupError) as error:
        raise BundleError(f"unit {unit.name!r} is malformed: {error}") from None
