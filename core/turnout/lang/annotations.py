"""Annotations of kernel parameters, and the signature that a kernel's annotations describe."""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ..errors import KernelError
from ..ir import DTYPE_BY_NAME, DType, bool_, f64, from_numpy, i64
from ..records import record

RESERVED_NAMES = ("device", "samples")
"""Keywords of every kernel call, so no parameter may have these names."""


def as_dtype(value: object) -> DType | None:
    """The element type that `value` spells (``f32``, ``np.float32``, ``float``), or None."""
    if isinstance(value, DType):
        return value
    for python, dtype in ((int, i64), (float, f64), (bool, bool_)):
        if value is python:
            return dtype
    if isinstance(value, np.dtype):
        return from_numpy(value)
    if isinstance(value, type) and issubclass(value, np.generic):
        try:
            return from_numpy(np.dtype(value))
        except TypeError:  # an abstract type such as np.floating
            return None
    return None


class Annotation:
    """Base of the annotations that make a parameter part of a kernel."""


def _pinned(name: str, item: object, kinds: str, allowed: str) -> DType:
    dtype = as_dtype(item)
    if dtype is None or dtype.kind not in kinds:
        raise KernelError(f"{name}[{item!r}]: {name} can be pinned to {allowed} only")
    return dtype


@record
class ScalarAnnotation(Annotation):
    """One real number per sample: an array of shape (samples,), float32 or float64.

    Plain ``Scalar`` follows the arrays of the call, which must agree; ``Scalar[f32]`` pins it.
    """

    dtype: DType | None = None

    def __getitem__(self, item: object) -> ScalarAnnotation:
        return ScalarAnnotation(_pinned("Scalar", item, "f", "f32 or f64"))

    def __repr__(self) -> str:
        return f"Scalar[{self.dtype}]" if self.dtype else "Scalar"


@record
class IndexAnnotation(Annotation):
    """One integer per sample: an array of shape (samples,), int64 unless pinned."""

    dtype: DType = i64

    def __getitem__(self, item: object) -> IndexAnnotation:
        return IndexAnnotation(_pinned("Index", item, "iu", "integer types such as i32 or u32"))

    def __repr__(self) -> str:
        return "Index" if self.dtype is i64 else f"Index[{self.dtype}]"


@record
class VectorAnnotation(Annotation):
    """``Vector[w]``: w real numbers per sample, an array of shape (w, samples)."""

    width: int = 0
    dtype: DType | None = None

    def __getitem__(self, item: object) -> VectorAnnotation:
        width, *rest = item if isinstance(item, tuple) else (item,)
        if type(width) is not int or width < 1 or len(rest) > 1:
            raise KernelError(f"Vector[{item!r}]: give a width of at least 1, as in Vector[3]")
        dtype = _pinned("Vector", rest[0], "f", "f32 or f64") if rest else None
        return VectorAnnotation(width, dtype)

    def __repr__(self) -> str:
        return f"Vector[{self.width}, {self.dtype}]" if self.dtype else f"Vector[{self.width}]"


@record
class ParamAnnotation(Annotation):
    """One value for the whole launch.

    Plain ``Param`` takes a Python int, float or bool (weak, as in NumPy) or a NumPy scalar (of its
    own type); ``Param[f32]`` converts what is given to that type.
    """

    dtype: DType | None = None

    def __getitem__(self, item: object) -> ParamAnnotation:
        return ParamAnnotation(_pinned("Param", item, "fiub", "an element type"))

    def __repr__(self) -> str:
        return f"Param[{self.dtype}]" if self.dtype else "Param"


@record
class TerminatedAnnotation(Annotation):
    """One bool per sample; samples that are already true are skipped and keep their outputs."""

    def __repr__(self) -> str:
        return "Terminated"


@record
class MutableAnnotation(Annotation):
    """``Mutable[T]``: an output; also an input where the kernel reads it before it writes it."""

    inner: Annotation | None = None

    def __getitem__(self, item: object) -> MutableAnnotation:
        if not isinstance(item, ScalarAnnotation | IndexAnnotation | VectorAnnotation):
            raise KernelError(
                f"Mutable[{item!r}]: only Scalar, Index and Vector[n] can be Mutable "
                "(an NDArray may be written as it is)"
            )
        return MutableAnnotation(item)

    def __repr__(self) -> str:
        return f"Mutable[{self.inner!r}]"


@record
class ArrayAnnotation(Annotation):
    """``NDArray[dtype, rank]``: an array with any strides.

    In the per-sample form it is a table that every sample may read; in the array form it is read
    and written by index.
    """

    dtype: DType | None = None
    rank: int = 0

    def __getitem__(self, item: object) -> ArrayAnnotation:
        if not isinstance(item, tuple) or len(item) != 2:
            raise KernelError(
                f"NDArray[{item!r}]: give element type and rank, as in NDArray[f32, 1]"
            )
        dtype, rank = as_dtype(item[0]), item[1]
        if dtype is None:
            names = ", ".join(DTYPE_BY_NAME)
            raise KernelError(f"NDArray[{item[0]!r}, ...]: the element type must be one of {names}")
        if type(rank) is not int or not 1 <= rank <= 32:
            raise KernelError(f"NDArray[..., {rank!r}]: the rank must be an int from 1 to 32")
        return ArrayAnnotation(dtype, rank)

    def __repr__(self) -> str:
        return f"NDArray[{self.dtype}, {self.rank}]"


Scalar = ScalarAnnotation()
Index = IndexAnnotation()
Vector = VectorAnnotation()
Param = ParamAnnotation()
Mutable = MutableAnnotation()
Terminated = TerminatedAnnotation()
NDArray = ArrayAnnotation()

Role = Literal["plane", "mask", "param", "array"]


@record
class ParameterSpec:
    """What one parameter of a kernel accepts.

    Attributes
    ----------
    name : str
    role : {"plane", "mask", "param", "array"}
        A per-sample plane, the `Terminated` mask, one value per launch, or an array.
    dtype : DType or None
        None where it follows the call.
    rank : int
        Axes of the array that is passed; 0 for a param.
    width : int
        Components of a vector plane; 0 for everything else.
    is_output : bool
        Declared `Mutable`.
    annotation : str
        As the user wrote it, for messages.
    """

    name: str
    role: Role
    dtype: DType | None
    rank: int
    width: int = 0
    is_output: bool = False
    annotation: str = ""

    @property
    def follows_width(self) -> bool:
        """Whether its float width is that of the call's arrays."""
        return self.role == "plane" and self.dtype is None


@record
class Signature:
    """Parameters of a kernel, its form and what it returns."""

    form: Literal["sample", "array"]
    parameters: tuple[ParameterSpec, ...]
    returns: tuple[ParameterSpec, ...] | None
    """None: no annotation, the returned values decide; (): returns nothing."""
    returns_tuple: bool = False


_EMPTY = inspect.Parameter.empty


def parse_signature(function: Callable[..., Any]) -> Signature:
    """The signature that a kernel's annotations describe.

    Raises
    ------
    KernelError
        For a missing or foreign annotation, a variadic parameter or a reserved name.
    """
    hints = _resolved_annotations(function)
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise KernelError(
                f"kernel {function.__name__}: parameter *{parameter.name} is variadic; "
                "a kernel takes a fixed list of named parameters"
            )
        if parameter.name in RESERVED_NAMES:
            raise KernelError(
                f"kernel {function.__name__}: the parameter name {parameter.name!r} is reserved "
                "for a keyword of every kernel call; rename it"
            )
        parameters.append(_parameter(function, parameter.name, hints.get(parameter.name, _EMPTY)))
    per_sample = any(p.role in ("plane", "mask") for p in parameters)
    returns, is_tuple = _returns(function, hints.get("return", _EMPTY))
    if per_sample or returns:
        return Signature("sample", tuple(parameters), returns, is_tuple)
    return Signature("array", tuple(parameters), returns)


def _resolved_annotations(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return inspect.get_annotations(function, locals=_closure(function), eval_str=True)
    except NameError as error:
        raise KernelError(
            f"kernel {function.__name__}: an annotation cannot be resolved: {error}. With "
            "`from __future__ import annotations` the names in annotations must be module globals"
        ) from None


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    """The closure variables of a function that have a value."""
    values: dict[str, Any] = {}
    if not inspect.isfunction(function):
        return values
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        with contextlib.suppress(ValueError):  # no value yet
            values[name] = cell.cell_contents
    return values


def _parameter(function: Callable[..., Any], name: str, annotation: object) -> ParameterSpec:
    spec = _spec(name, annotation)
    if spec is not None:
        return spec
    given = "no annotation" if annotation is _EMPTY else f"the annotation {annotation!r}"
    raise KernelError(
        f"kernel {function.__name__}: parameter {name!r} has {given}; annotate it with Scalar, "
        "Index, Vector[n], Mutable[...], Terminated, Param or NDArray[dtype, rank] (from turnout)"
    )


def _spec(name: str, annotation: object) -> ParameterSpec | None:
    shown = repr(annotation)
    match annotation:
        case ScalarAnnotation(dtype) | IndexAnnotation(dtype):
            return ParameterSpec(name, "plane", dtype, 1, annotation=shown)
        case VectorAnnotation(width, dtype):
            if width == 0:
                raise KernelError(f"parameter {name!r}: Vector needs its width, as in Vector[3]")
            return ParameterSpec(name, "plane", dtype, 2, width, annotation=shown)
        case MutableAnnotation(inner):
            if inner is None:
                raise KernelError(
                    f"parameter {name!r}: Mutable needs what it holds, as in Mutable[Scalar]"
                )
            spec = _spec(name, inner)
            assert spec is not None
            return replace(spec, is_output=True, annotation=shown)
        case TerminatedAnnotation():
            return ParameterSpec(name, "mask", bool_, 1, annotation=shown)
        case ParamAnnotation(dtype):
            return ParameterSpec(name, "param", dtype, 0, annotation=shown)
        case ArrayAnnotation(dtype, rank):
            if rank == 0:
                raise KernelError(
                    f"parameter {name!r}: NDArray needs element type and rank, as in "
                    "NDArray[f32, 1]"
                )
            return ParameterSpec(name, "array", dtype, rank, annotation=shown)
    if annotation is int or annotation is float:
        # As in plain Python: any int or float, weak in NumPy's sense.
        return ParameterSpec(name, "param", None, 0, annotation="Param")
    dtype = as_dtype(annotation)
    if dtype is None:
        return None
    return ParameterSpec(name, "param", dtype, 0, annotation=f"Param[{dtype}]")


def _returns(
    function: Callable[..., Any], annotation: object
) -> tuple[tuple[ParameterSpec, ...] | None, bool]:
    if annotation is _EMPTY:
        return None, False
    if annotation is None or annotation is type(None):
        return (), False
    is_tuple = typing.get_origin(annotation) is tuple
    items = typing.get_args(annotation) if is_tuple else (annotation,)
    specs = []
    for number, item in enumerate(items):
        spec = _spec(f"out{number}" if is_tuple else "out", item)
        if spec is None or spec.role != "plane" or spec.is_output:
            raise KernelError(
                f"kernel {function.__name__}: the return annotation {item!r} is none of Scalar, "
                "Index, Vector[n], a tuple of these, or None"
            )
        specs.append(spec)
    return tuple(specs), is_tuple
