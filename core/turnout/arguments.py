"""The arguments of one kernel call: bound, typed, checked.

Nothing is launched before everything is checked, and all problems of a call are listed in one
`CallError`. What depends on types alone is checked once per combination of types (`call_types`);
shapes, writability and overlap at every call (`check_call`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from . import ir
from .backends import host_array
from .errors import CallError
from .ir import DType, f32, f64, i64
from .lang import ParameterSpec, Signature, Weak

Types = dict[str, DType | Weak]

_EXACT_OVERLAP_WORK = 100_000
"""How hard NumPy tries to prove that interleaved arrays share no element."""


def bind(signature: inspect.Signature, name: str, args: tuple[Any, ...], kwargs: Any) -> list[Any]:
    """The values of all parameters in order, defaults filled in.

    Raises
    ------
    CallError
        For unknown, missing or repeated arguments, all of them listed.
    """
    parameters = list(signature.parameters)
    problems = []
    if len(args) > len(parameters):
        problems.append(f"{len(args)} positional arguments given, {len(parameters)} allowed")
    values = dict(zip(parameters, args, strict=False))
    for keyword, value in kwargs.items():
        if keyword not in signature.parameters:
            problems.append(f"unknown argument {keyword!r}")
        elif keyword in values:
            problems.append(f"argument {keyword!r} is given twice")
        else:
            values[keyword] = value
    for parameter in signature.parameters.values():
        if parameter.name in values:
            continue
        if parameter.default is parameter.empty:
            problems.append(f"argument {parameter.name!r} is missing")
        else:
            values[parameter.name] = parameter.default
    if problems:
        raise call_error(name, problems, f"its parameters are {', '.join(parameters)}")
    return [values[parameter] for parameter in parameters]


def call_error(name: str, problems: Sequence[str], hint: str = "") -> CallError:
    """One error for all problems of a call."""
    listed = problems[0] if len(problems) == 1 else "\n  - ".join(("", *problems))
    return CallError(f"kernel {name}: {listed}{f'; {hint}' if hint else ''}")


def as_arguments(specs: Sequence[ParameterSpec], values: list[Any]) -> list[Any]:
    """Values as the call path takes them: arrays of other libraries on the host as NumPy arrays."""
    return [
        value if spec.rank == 0 or hasattr(value, "dtype") else _taken(value)
        for spec, value in zip(specs, values, strict=True)
    ]


def _taken(value: Any) -> Any:
    return host_array(value) if hasattr(value, "__dlpack_device__") else value


def type_key(specs: Sequence[ParameterSpec], values: Sequence[Any]) -> tuple[Hashable, ...]:
    """What of a call decides which code runs: exact types, never values."""
    key: list[Any] = [
        (value.dtype, value.ndim) if spec.rank and hasattr(value, "ndim") else type(value)
        for spec, value in zip(specs, values, strict=True)
    ]
    return tuple(key)


def call_types(name: str, signature: Signature, values: Sequence[Any]) -> Types:
    """The type of every parameter for these values.

    Raises
    ------
    CallError
        Where a value is of no type that its parameter takes.
    """
    problems: list[str] = []
    types: Types = {}
    pairs = list(zip(signature.parameters, values, strict=True))
    width = _float_width(pairs, problems)
    types["return"] = width
    for spec, value in pairs:
        try:
            types[spec.name] = (
                _array_type(spec, value, width) if spec.rank else _scalar_type(spec, value)
            )
        except CallError as error:
            problems.append(str(error))
    if not problems:
        problems += _silent_widening(pairs, types)
    if problems:
        raise call_error(name, list(dict.fromkeys(problems)))
    return types


def _float_width(pairs: Iterable[tuple[ParameterSpec, Any]], problems: list[str]) -> DType:
    """The float type of the call's planes that follow the call."""
    widths: dict[DType, str] = {}
    for spec, value in pairs:
        dtype = _dtype_of(value)
        if spec.follows_width and dtype is not None and dtype.is_float:
            widths.setdefault(dtype, spec.name)
    if len(widths) > 1:
        given = " and ".join(f"{name!r} is {dtype}" for dtype, name in widths.items())
        problems.append(
            f"{given}: the Scalar and Vector arrays of one call must have one float type; convert "
            "one with astype, or pin the parameter with Scalar[f32] or Scalar[f64]"
        )
    return next(iter(widths), f64)


def _dtype_of(value: Any) -> DType | None:
    dtype = getattr(value, "dtype", None)
    return ir.from_numpy(dtype) if isinstance(dtype, np.dtype) else None


def _array_type(spec: ParameterSpec, value: Any, width: DType) -> DType:
    what = f"argument {spec.name!r}"
    shape = "(samples,)" if spec.role != "array" else f"{spec.rank} axes"
    expected = spec.dtype or width
    needed = f"{spec.annotation} takes an array of {expected.dtype} with shape {shape}"
    if spec.width:
        needed = (
            f"{spec.annotation} takes an array of {expected.dtype} "
            f"with shape ({spec.width}, samples)"
        )
    if not hasattr(value, "dtype") or not hasattr(value, "ndim"):
        raise CallError(
            f"{what} is a {type(value).__name__}, not an array; {needed} (numpy.asarray makes one)"
        )
    if isinstance(value, np.ma.MaskedArray):
        raise CallError(f"{what} is a masked array, whose mask would be lost; pass .filled(...)")
    dtype = _dtype_of(value)
    if dtype is None:
        hint = ""
        if isinstance(value.dtype, np.dtype) and not value.dtype.isnative:
            hint = "; convert it to native byte order with .astype"
        raise CallError(f"{what} has the dtype {value.dtype}, which kernels do not take{hint}")
    if spec.follows_width and not dtype.is_float:
        raise CallError(
            f"{what} has the dtype {value.dtype}; {spec.annotation} takes float32 or float64; "
            "convert it with astype"
        )
    if not spec.follows_width and dtype is not expected:
        raise CallError(
            f"{what} has the dtype {value.dtype}; {needed}; convert it with "
            f"astype(numpy.{expected.dtype.name}), or annotate the parameter for {value.dtype}"
        )
    if value.ndim != spec.rank:
        raise CallError(f"{what} has {value.ndim} axes, shape {tuple(value.shape)}; {needed}")
    return dtype


def _scalar_type(spec: ParameterSpec, value: Any) -> DType | Weak:
    what = f"argument {spec.name!r}"
    dtype: DType | Weak | None
    if isinstance(value, bool):
        dtype = ir.bool_
    elif isinstance(value, np.generic) or (hasattr(value, "dtype") and value.ndim == 0):
        dtype = _dtype_of(value)
    elif isinstance(value, int):
        dtype = "int"
    else:
        dtype = "float" if isinstance(value, float) else None
    if dtype is None:
        given = f"is a {type(value).__name__}"
        if getattr(value, "ndim", 0):
            given = f"is an array of shape {tuple(value.shape)}"
        elif hasattr(value, "dtype"):
            given = f"has the dtype {value.dtype}"
        raise CallError(f"{what} {given}; {spec.annotation} takes one number for the whole launch")
    if spec.dtype is None:
        return dtype
    if dtype == "int" or (isinstance(dtype, DType) and dtype.is_bool):
        allowed = True
    elif dtype == "float":
        allowed = spec.dtype.is_float
    else:
        assert isinstance(dtype, DType)
        allowed = ir.can_store(dtype, spec.dtype)
    if not allowed:
        shown = dtype if isinstance(dtype, DType) else f"a Python {dtype}"
        raise CallError(
            f"{what} is {shown} ({value!r}); {spec.annotation} takes what converts to {spec.dtype}"
        )
    return spec.dtype


def _silent_widening(pairs: Sequence[tuple[ParameterSpec, Any]], types: Types) -> list[str]:
    """Params that would turn a float32 computation into a float64 one unnoticed."""
    floats = {types[s.name] for s, _ in pairs if s.rank and types[s.name] in (f32, f64)}
    if floats != {f32}:
        return []
    return [
        f"argument {spec.name!r} is a NumPy float64 beside float32 arrays, which would make the "
        "whole computation float64; pass a Python float, numpy.float32(...), or annotate it "
        "Param[f64] where that is meant"
        for spec, _ in pairs
        if spec.role == "param" and spec.dtype is None and types[spec.name] is f64
    ]


def scalar_conversion(spec: ParameterSpec, dtype: DType | Weak) -> Callable[[Any], Any]:
    """A function from a given number to the Python number that launchers take."""
    if dtype == "float":
        return float
    held = i64 if dtype == "int" else dtype
    assert isinstance(held, DType)
    if held.is_bool:
        return bool
    if held is f64:
        return float
    if held is f32:
        return lambda value: float(np.float32(value))

    def integer(value: Any) -> int:
        number = int(value)
        if not held.minimum <= number <= held.maximum:
            raise CallError(
                f"argument {spec.name!r} is {number}, which does not fit into {held} "
                f"({held.minimum} to {held.maximum})"
            )
        return number

    return integer


def sample_count(
    specs: Sequence[ParameterSpec], values: Sequence[Any], samples: int | None
) -> tuple[int, list[str]]:
    """The number of samples of a per-sample call, and what is wrong with lengths."""
    problems = []
    lengths: dict[int, str] = {}
    for spec, value in zip(specs, values, strict=True):
        if spec.role not in ("plane", "mask"):
            continue
        lengths.setdefault(value.shape[-1], spec.name)
        if spec.width and value.shape[0] != spec.width:
            problems.append(
                f"argument {spec.name!r} has shape {tuple(value.shape)}; {spec.annotation} takes "
                f"({spec.width}, samples), one row per component"
            )
    if samples is not None:
        if type(samples) is not int or samples < 0:
            problems.append(f"samples={samples!r}; it must be an int of at least 0")
            return 0, problems
        problems += [
            f"argument {name!r} has {length} samples, samples={samples} are to run"
            for length, name in lengths.items()
            if length < samples
        ]
        return samples, problems
    if len(lengths) > 1:
        given = ", ".join(f"{name!r} has {length}" for length, name in lengths.items())
        problems.append(f"the arrays of a call must have one number of samples: {given}")
    if not lengths:
        problems.append("no argument tells the number of samples; give samples=")
    return next(iter(lengths), 0), problems


def writability_problems(written: Iterable[tuple[str, Any]]) -> list[str]:
    """Outputs that cannot be written, or of which several elements share memory."""
    problems = []
    for name, value in written:
        if not isinstance(value, np.ndarray):
            continue
        if not value.flags.writeable:
            problems.append(
                f"argument {name!r} is written by the kernel, but is read-only; pass a copy"
            )
        elif not value.flags.forc and _overlaps_itself(value):
            problems.append(
                f"argument {name!r} is written by the kernel, but several of its elements share "
                f"memory (shape {value.shape}, strides {value.strides}); pass a copy"
            )
    return problems


def _overlaps_itself(array: np.ndarray[Any, Any]) -> bool:
    """Whether two elements may share memory: an axis must step over all smaller ones."""
    if array.size <= 1:
        return False
    reach = array.itemsize
    for stride, length in sorted(
        (abs(stride), length)
        for stride, length in zip(array.strides, array.shape, strict=True)
        if length > 1
    ):
        if stride < reach:
            return True
        reach = stride * (length - 1) + reach
    return False


def overlap_problem(
    first: tuple[str, Any], second: tuple[str, Any], may_coincide: bool
) -> str | None:
    """Why two arrays of a call must not be what they are, or None."""
    (name, a), (other_name, b) = first, second
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return None
    if not np.may_share_memory(a, b):
        return None
    if may_coincide and _is_same_view(a, b):
        return None
    try:
        # NumPy's annotations know two values of max_work only.
        if not np.shares_memory(a, b, max_work=_EXACT_OVERLAP_WORK):  # type: ignore[arg-type]
            return None
    except np.exceptions.TooHardError:
        pass  # not proven distinct
    allowed = "exactly the same array, or " if may_coincide else ""
    return (
        f"arguments {name!r} and {other_name!r} overlap in memory, and the kernel writes one of "
        f"them while it reads or writes the other in any order; pass {allowed}a copy"
    )


def _is_same_view(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    if a is b:
        return True
    first, second = a.__array_interface__, b.__array_interface__
    return (
        first["data"][0] == second["data"][0]
        and a.shape == b.shape
        and a.strides == b.strides
        and a.dtype == b.dtype
    )
