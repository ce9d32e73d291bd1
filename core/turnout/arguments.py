"""The arguments of one kernel call: bound, typed, checked.

Nothing is launched before everything is checked, and all problems of a call are listed in one
`CallError`. What types decide is checked once per combination of types (`call_types`); lengths,
writability, overlap and the range of numbers at every call.
"""

from __future__ import annotations

import ctypes
import inspect
import operator
import reprlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from . import ir
from .backends import host_array
from .errors import CallError, PlacementError
from .ir import DType, f32, f64, i64
from .lang import ParameterSpec, Signature, Weak
from .loading import DeviceContext

Types = dict[str, DType | Weak]

_HOST_TYPES = frozenset({np.ndarray, bool, int, float, *np.sctypeDict.values()})
_EXACT_OVERLAP_WORK = 100_000
"""How hard NumPy tries to prove that interleaved arrays share no element."""


# -- binding -------------------------------------------------------------------------------------


class Binder:
    """Brings the arguments of calls into the order of the parameters, defaults filled in.

    `known` has the values of parameters that may be left out whatever the signature says.
    """

    def __init__(
        self, name: str, signature: inspect.Signature, known: Mapping[str, Any] | None = None
    ) -> None:
        self._name = name
        parameters = signature.parameters.values()
        self._names = [p.name for p in parameters]
        self._positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        self._keywords = {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}
        self._only_keywords = self._names[len(self._positional) :]
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._defaults |= known or {}
        self.has_keywords = bool(self._only_keywords)
        """Whether some parameters, which are the last ones, must be given by keyword."""
        self.count = -1 if self.has_keywords else len(self._names)
        """Calls with so many positional arguments, and no keyword, are bound already."""

    def __call__(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        """The values of all parameters in order.

        Raises
        ------
        CallError
            For unknown, missing or repeated arguments, all of them listed.
        """
        given = self._positional[: len(args)]
        values = {**self._defaults, **dict(zip(given, args, strict=False)), **keywords}
        if (
            len(args) > len(given)
            or len(values) < len(self._names)
            or not self._keywords.issuperset(keywords)
            or not keywords.keys().isdisjoint(given)
        ):
            problems = list(self._problems(args, keywords))
            raise call_error(self._name, problems, f"its parameters are {', '.join(self._names)}")
        return [values[name] for name in self._names]

    def arguments(self, values: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """The arguments and keywords of a call with these values of all parameters."""
        by_position = len(self._positional)
        keywords = dict(zip(self._only_keywords, values[by_position:], strict=True))
        return values[:by_position], keywords

    def _problems(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> Iterable[str]:
        given = self._positional[: len(args)]
        if len(args) > len(given):
            yield f"{len(args)} positional arguments given, {len(given)} allowed"
        for keyword in keywords:
            if keyword not in self._names:
                yield f"unknown argument {keyword!r}{self._closest(keyword)}"
            elif keyword in given:
                yield f"argument {keyword!r} is given twice"
            elif keyword not in self._keywords:
                yield f"argument {keyword!r} must be given by position"
        for name in self._names:
            if name not in given and name not in keywords and name not in self._defaults:
                yield f"argument {name!r} is missing"

    def _closest(self, keyword: str) -> str:
        import difflib  # only errors need it

        close = difflib.get_close_matches(keyword, self._names, n=1)
        return f" (did you mean {close[0]!r}?)" if close else ""


def call_error(name: str, problems: Sequence[str], hint: str = "") -> CallError:
    """One error for all problems of a call."""
    problems = list(dict.fromkeys(problems))
    if len(problems) == 1:
        return CallError(f"kernel {name}: {problems[0]}{f'; {hint}' if hint else ''}")
    return CallError(
        "\n  - ".join((f"kernel {name}:", *problems)) + (f"\n  {hint}" if hint else "")
    )


def as_arguments(name: str, specs: Sequence[ParameterSpec], values: Sequence[Any]) -> Sequence[Any]:
    """Values as the call path takes them: plain NumPy arrays for what lives on the host.

    Raises
    ------
    CallError
        Where a tensor cannot be taken.
    """
    if _HOST_TYPES.issuperset(map(type, values)):
        return values
    return [_taken(name, spec, value) for spec, value in zip(specs, values, strict=True)]


def _taken(name: str, spec: ParameterSpec, value: Any) -> Any:
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        # A subclass may say anything about its shape; code is run with what is true.
        return np.asarray(value)
    if isinstance(value, np.ma.MaskedArray | np.generic) or not _is_host_tensor(value):
        return value
    try:
        taken = host_array(value)
    except CallError as error:
        raise call_error(name, [f"argument {spec.name!r}: {error}"]) from error
    # The first version of DLPack cannot say that memory may be written, so NumPy takes it as read
    # only. Where the library's own conversion gives the same memory, it knows.
    if not taken.flags.writeable and hasattr(value, "__array__"):
        converted = np.asarray(value)
        if is_same_view(converted, taken):
            return converted
    return taken


def _is_host_tensor(value: Any) -> bool:
    dlpack_cpu = 1
    return hasattr(value, "__dlpack_device__") and value.__dlpack_device__()[0] == dlpack_cpu


def type_key(values: Iterable[Any]) -> tuple[Hashable, ...]:
    """What of a call decides which code runs: exact types, never values."""
    ndarray = np.ndarray
    return tuple(
        [(v.dtype, v.ndim) if type(v) is ndarray else _other_key(v, type(v)) for v in values]
    )


def _other_key(value: Any, given: type) -> Hashable:
    if given in _HOST_TYPES:
        return given
    return given, getattr(value, "dtype", None), getattr(value, "ndim", None)


# -- types ---------------------------------------------------------------------------------------


def call_types(
    name: str,
    signature: Signature,
    values: Sequence[Any],
    context: DeviceContext,
    samples: int | None = None,
) -> Types:
    """The type of every parameter for these values on a device.

    Raises
    ------
    CallError
        Where a value is of no type that its parameter takes; lists other problems too.
    """
    problems: list[str] = []
    types: Types = {}
    pairs = list(zip(signature.parameters, values, strict=True))
    types["return"] = width = _float_width(pairs, problems)
    for spec, value in pairs:
        try:
            if spec.rank:
                _check_kind(spec, value, context)
                types[spec.name] = _array_type(spec, value, width)
            else:
                types[spec.name] = scalar_type(spec, value)
        except CallError as error:
            problems.append(str(error))
    if not problems:
        problems += _silent_widening(pairs, types)
    if not problems:
        return types
    right = [(spec, value) for spec, value in pairs if spec.name in types]
    if any(spec.role == "plane" for spec, _ in right):
        sample_count([spec for spec, _ in right], [v for _, v in right], samples, problems)
    problems += writability_problems((s.name, value) for s, value in right if s.is_output)
    raise call_error(name, problems)


def _float_width(pairs: Iterable[tuple[ParameterSpec, Any]], problems: list[str]) -> DType:
    """The float type of the call's planes that follow the call."""
    widths: dict[DType, str] = {}
    for spec, value in pairs:
        dtype = _dtype_of(value)
        if spec.follows_width and dtype is not None and dtype.is_float:
            widths.setdefault(dtype, spec.name)
    if len(widths) > 1:
        given = " and ".join(f"{name!r} is {dtype.dtype}" for dtype, name in widths.items())
        problems.append(
            f"{given}: the Scalar and Vector arrays of one call must have one float type; convert "
            "one with astype, or pin the parameter with Scalar[f32] or Scalar[f64]"
        )
    return next(iter(widths), f64)


def _dtype_of(value: Any) -> DType | None:
    """The element type of an array or NumPy scalar; None where kernels have no such type."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or isinstance(dtype, np.dtype):
        return None if dtype is None else ir.from_numpy(dtype)
    # Libraries with dtypes of their own print them as ``library.float32``.
    try:
        return ir.from_numpy(np.dtype(str(dtype).rpartition(".")[2]))
    except TypeError:
        return None


def _check_kind(spec: ParameterSpec, value: Any, context: DeviceContext) -> None:
    """Refuse what is no array, or no array that lives where the call runs."""
    if type(value) is np.ndarray:
        return  # before `numpy.ma` is asked for, which NumPy then imports
    what = f"argument {spec.name!r}"
    if isinstance(value, np.ma.MaskedArray):
        raise CallError(
            f"{what} is a masked array, whose mask would be lost; pass {spec.name}.filled(...)"
        )
    if isinstance(value, np.ndarray):
        return
    if isinstance(value, np.generic) or not (hasattr(value, "dtype") and hasattr(value, "ndim")):
        hint = f"; numpy.asarray({spec.name}) makes one" if isinstance(value, list | tuple) else ""
        raise CallError(f"{what} is {_described(value)}, not an array; {_needed(spec)}{hint}")
    if context.is_host:
        raise CallError(
            f"{what} is a {type(value).__name__}, not a NumPy array; {_needed(spec)}: "
            f"numpy.asarray({spec.name}) makes one of host data, and where it lives on a device, "
            "name that with device= or turnout.use(...)"
        )
    if not context.memory.owns(value):
        raise PlacementError(
            f"{what} is a {type(value).__name__} that does not live on {context.device}, where "
            f"this call runs; turnout.array({spec.name}, device={str(context.device)!r}) moves it"
        )


def _described(value: Any) -> str:
    if value is None:
        return "None"
    is_plain = isinstance(value, str | int | float | complex | np.generic)
    return (
        f"the {type(value).__name__} {reprlib.repr(value)}"
        if is_plain
        else (f"of type {type(value).__name__}")
    )


def _needed(spec: ParameterSpec) -> str:
    element = "float32 or float64" if spec.dtype is None else spec.dtype.dtype.name
    if spec.role == "array":
        shape = _axes(spec.rank)
    else:
        shape = f"shape ({spec.width}, samples)" if spec.width else "shape (samples,)"
    return f"{spec.annotation} takes an array of {element} with {shape}"


def _array_type(spec: ParameterSpec, value: Any, width: DType) -> DType:
    what = f"argument {spec.name!r}"
    dtype = _dtype_of(value)
    if dtype is None:
        raise CallError(
            f"{what} has the dtype {value.dtype}, {_strangeness(value.dtype, _needed(spec))}"
        )
    expected = spec.dtype or (dtype if dtype.is_float else width)
    if dtype is not expected:
        raise CallError(
            f"{what} has the dtype {value.dtype}; {_needed(spec)}; "
            f"{_conversion_hint(spec, expected)}{_other_annotation(spec, dtype)}"
        )
    if value.ndim != spec.rank:
        axes = _axes(value.ndim)
        raise CallError(f"{what} has {axes}, shape {tuple(value.shape)}; {_needed(spec)}")
    return dtype


def _axes(count: int) -> str:
    return f"{count} {'axis' if count == 1 else 'axes'}"


def _conversion_hint(spec: ParameterSpec, expected: DType) -> str:
    # What a kernel writes into a converted copy the caller would never see.
    if spec.is_output:
        return f"pass an array of {expected.dtype.name}"
    return f"convert it with astype(numpy.{expected.dtype.name})"


def _strangeness(dtype: Any, needed: str) -> str:
    if isinstance(dtype, np.dtype):
        if dtype.names:
            return f"whose fields kernels do not have; {needed}; pass one field"
        if not dtype.isnative and ir.from_numpy(dtype.newbyteorder("=")) is not None:
            native = dtype.newbyteorder("=").name
            return (
                f"which is not in the byte order of this machine; {needed}; convert it with "
                f"astype(numpy.{native})"
            )
    return f"which kernels do not have; {needed}; convert it with astype"


def _other_annotation(spec: ParameterSpec, dtype: DType) -> str:
    """The annotation that would take `dtype`, where there is one."""
    if spec.role == "array":
        other = f"NDArray[{dtype}, {spec.rank}]"
    elif spec.role == "mask" or dtype.is_bool:
        return ""
    elif dtype.is_float and spec.width:
        other = f"Vector[{spec.width}, {dtype}]"
    elif spec.width:
        return ""
    else:
        pinned = f"Index[{dtype}]" if dtype is not i64 else "Index"
        other = f"Scalar[{dtype}]" if dtype.is_float else pinned
    return f", or annotate the parameter {f'Mutable[{other}]' if spec.is_output else other}"


def scalar_type(spec: ParameterSpec, value: Any) -> DType | Weak:
    """The type that a scalar parameter has for a value.

    Raises
    ------
    CallError
        Where the parameter does not take the value.
    """
    dtype = _number_type(value)
    what = f"argument {spec.name!r}"
    if dtype is None:
        if getattr(value, "ndim", 0):
            given = f"an array of shape {tuple(value.shape)}"
        elif isinstance(value, np.ndarray | np.generic):
            given = f"a {value.dtype}, which kernels do not have"
        else:
            given = _described(value)
        raise CallError(
            f"{what} is {given}; {spec.annotation} takes one real number for the whole launch"
        )
    if spec.dtype is None:
        return dtype
    if not _converts(dtype, spec.dtype):
        kinds = {"b": "True or False", "f": "a number"}
        allowed = kinds.get(spec.dtype.kind, "a whole number; convert it with int(...)")
        raise CallError(f"{what} is {_described(value)}; {spec.annotation} takes {allowed}")
    return spec.dtype


def _number_type(value: Any) -> DType | Weak | None:
    if isinstance(value, bool):
        return ir.bool_
    if isinstance(value, np.generic) or (type(value) is np.ndarray and not value.ndim):
        return _dtype_of(value)
    if isinstance(value, np.ndarray) and not value.ndim:
        return None if isinstance(value, np.ma.MaskedArray) else _dtype_of(value)
    if isinstance(value, int):
        return "int"
    return "float" if isinstance(value, float) else None


def _converts(given: DType | Weak, pinned: DType) -> bool:
    """Whether a number may be given for a pinned `Param`; its range is checked at each call."""
    if isinstance(given, DType) and given.is_bool:
        return True
    if pinned.is_bool:
        return False
    return pinned.is_float or given == "int" or (isinstance(given, DType) and given.is_integer)


def _silent_widening(pairs: Sequence[tuple[ParameterSpec, Any]], types: Types) -> list[str]:
    """Params that would turn a float32 computation into a float64 one unnoticed."""
    floats = {types[s.name] for s, _ in pairs if s.rank and types[s.name] in (f32, f64)}
    if floats != {f32}:
        return []
    return [
        f"argument {spec.name!r} is a NumPy float64 beside float32 arrays, which would make the "
        f"whole computation float64; pass float({spec.name}) or numpy.float32({spec.name}), or "
        "annotate it Param[f64] where that is meant"
        for spec, _ in pairs
        if spec.role == "param" and spec.dtype is None and types[spec.name] is f64
    ]


# -- values --------------------------------------------------------------------------------------

Conversion = Callable[[Any, list[str]], Any]


def scalar_conversion(spec: ParameterSpec, dtype: DType | Weak) -> Conversion:
    """A function from a given number to the Python number that launchers take.

    It appends to the list it is given where the number is out of range.
    """
    held = {"int": i64, "float": f64}[dtype] if isinstance(dtype, str) else dtype
    if held.is_integer:
        minimum, maximum = held.minimum, held.maximum

        def integer(value: Any, problems: list[str]) -> int:
            number = int(value)
            if not minimum <= number <= maximum:
                # Python refuses to print an int of thousands of digits.
                is_short = number.bit_length() <= 2000
                shown = number if is_short else f"an int of {number.bit_length()} bits"
                problems.append(
                    f"argument {spec.name!r} is {shown}, which does not fit into {held.dtype} "
                    f"({minimum} to {maximum})"
                )
            return number

        return integer

    if held.is_bool:
        return lambda value, problems: bool(value)

    def real(value: Any, problems: list[str]) -> float:
        try:
            return float(value)
        except OverflowError:
            problems.append(
                f"argument {spec.name!r} is an int that does not fit into {held.dtype}; "
                "pass a float"
            )
            return 0.0

    def single(value: Any, problems: list[str]) -> float:
        # As NumPy converts it, without a warning for what becomes infinite.
        return ctypes.c_float(real(value, problems)).value

    return single if held is f32 else real


def sample_count(
    specs: Sequence[ParameterSpec],
    values: Sequence[Any],
    samples: int | None,
    problems: list[str],
) -> int:
    """The number of samples of a per-sample call; appends what is wrong with lengths."""
    lengths: dict[int, str] = {}
    for spec, value in zip(specs, values, strict=True):
        if spec.role not in ("plane", "mask"):
            continue
        if not spec.width or value.shape[0] == spec.width:
            lengths.setdefault(value.shape[-1], spec.name)
        else:
            is_transposed = value.shape[-1] == spec.width
            problems.append(
                f"argument {spec.name!r} has shape {tuple(value.shape)}; {spec.annotation} takes "
                f"({spec.width}, samples), one row per component"
                + (f"; pass {spec.name}.T" if is_transposed else "")
            )
    if samples is not None:
        try:
            count = -1 if isinstance(samples, bool) else operator.index(samples)
        except TypeError:
            count = -1
        if count < 0:
            problems.append(f"samples={samples!r}: give a whole number of at least 0")
        problems += [
            f"argument {name!r} has {length} samples, but samples={samples} are to run"
            for length, name in lengths.items()
            if length < count
        ]
        return count
    if len(lengths) > 1:
        given = ", ".join(f"{name!r} has {length}" for length, name in lengths.items())
        problems.append(
            f"the arrays of a call must have one number of samples: {given}; samples= runs the "
            "first of longer arrays"
        )
    if not lengths and not problems:
        problems.append("no argument tells the number of samples; give samples=")
    return next(iter(lengths), 0)


def writability_problems(written: Iterable[tuple[str, Any]]) -> list[str]:
    """Outputs that cannot be written, or of which several elements share memory."""
    problems = []
    for name, value in written:
        if not isinstance(value, np.ndarray):
            continue
        if not value.flags.writeable:
            problems.append(
                f"argument {name!r} is written by the kernel, but is read-only; pass an array that "
                "can be written, for example a copy"
            )
        elif not value.flags.forc and _overlaps_itself(value):
            problems.append(
                f"argument {name!r} is written by the kernel, but its elements share memory or "
                f"interleave (shape {value.shape}, strides {value.strides}); pass a copy"
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


def stand_in(value: Any, context: DeviceContext) -> Any:
    """An array of NumPy in the place of one on a device, for looking at how it lies in memory.

    Its elements must not be touched, because they are not there. Where the backend does not tell
    how its arrays lie, and for all else, it is `value` itself.
    """
    if context.interface is None or isinstance(value, np.ndarray) or _is_number(value):
        return value
    return np.asarray(_Interface(context.interface(value)))


class _Interface:
    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.generic)


def overlap_problem(
    first: tuple[str, Any], second: tuple[str, Any], may_coincide: bool
) -> str | None:
    """Why two arrays of a call must not be what they are, or None."""
    (name, a), (other_name, b) = first, second
    if not overlaps(a, b) or (may_coincide and is_same_view(a, b)):
        return None
    allowed = "exactly the same array, or " if may_coincide else ""
    return (
        f"arguments {name!r} and {other_name!r} overlap in memory, and the kernel writes one of "
        f"them while it reads or writes the other in any order; pass {allowed}a copy"
    )


def overlaps(a: Any, b: Any) -> bool:
    """Whether two arrays share memory; only identity tells where how they lie is not known."""
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return a is b
    if not np.may_share_memory(a, b):
        return False
    try:
        # Typed Any, because annotations of NumPy before 2.5 know two values of max_work only.
        max_work: Any = _EXACT_OVERLAP_WORK
        return np.shares_memory(a, b, max_work=max_work)
    except np.exceptions.TooHardError:
        return True  # not proven distinct


def is_same_view(a: Any, b: Any) -> bool:
    """Whether two arrays are the same elements at the same indices."""
    if a is b:
        return True
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return False
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    # The stride of an axis of one element says nothing.
    steps = zip(a.shape, a.strides, b.strides, strict=True)
    return _address(a) == _address(b) and all(n <= 1 or s == t for n, s, t in steps)


def _address(array: np.ndarray[Any, Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
