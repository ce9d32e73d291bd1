"""What a kernel is specialised for: asked for, checked, and compared with what calls give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from . import ir
from .arguments import Types, scalar_conversion, scalar_type
from .errors import CallError, KernelError
from .folding import Literal
from .lang import SAMPLES, LoweredKernel, ParameterSpec, Signature, Weak
from .records import record
from .specialisation import specialised_plan

Shape = tuple[int | None, ...]


@record
class Sizes:
    """Shapes of arrays and values of scalars by parameter, and the number of samples.

    Attributes
    ----------
    shapes : tuple of (str, tuple of int or None)
        In the order of the parameters; None is a length that stays open.
    scalars : tuple of (str, number)
        In the order of the parameters.
    samples : int or None
        None where it stays open, and for the array form.
    """

    shapes: tuple[tuple[str, Shape], ...] = ()
    scalars: tuple[tuple[str, Any], ...] = ()
    samples: int | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What tells sizes apart: unlike 1 and 1.0, which are equal."""
        scalars = [(name, type(value), repr(value)) for name, value in self.scalars]
        return self.shapes, tuple(scalars), self.samples

    @property
    def name(self) -> str:
        """Text without spaces, for names: ``a=64x?,dt=0.1,samples=1000``."""
        shapes = [(n, "x".join(map(_spelt_length, shape))) for n, shape in self.shapes]
        return ",".join(f"{name}={value}" for name, value in self._items(shapes))

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._items(self.shapes))

    def __repr__(self) -> str:
        return f"Sizes{self.key}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sizes) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def _items(self, shapes: Iterable[tuple[str, object]]) -> Iterator[tuple[str, object]]:
        yield from shapes
        yield from self.scalars
        if self.samples is not None:
            yield SAMPLES, self.samples

    def shape(self, spec: ParameterSpec) -> Shape:
        """The lengths of an array in calls that do not say ``samples=``; empty where all are open.

        For such calls the number of samples is the length of all arrays that have one per sample.
        """
        shape = dict(self.shapes).get(spec.name, ())
        if self.samples is None or spec.role not in ("plane", "mask"):
            return shape
        return (*(shape[:-1] or (None,) * (spec.rank - 1)), self.samples)

    def of_calls(self, specs: Iterable[ParameterSpec]) -> Sizes:
        """The sizes of calls that do not say ``samples=``, all in shapes of arrays."""
        shapes = [(spec.name, self.shape(spec)) for spec in specs]
        return Sizes(tuple(each for each in shapes if each[1]), self.scalars)

    def takes_part_of(self, specs: Iterable[ParameterSpec]) -> bool:
        """Whether calls must say ``samples=``, because arrays have more."""
        planes = [spec.name for spec in specs if spec.role in ("plane", "mask")]
        lengths = [shape[-1] for name, shape in self.shapes if name in planes]
        return self.samples is not None and any(n not in (None, self.samples) for n in lengths)

    def without(self, names: Iterable[str]) -> Sizes | None:
        """The sizes but those of some scalars; None where nothing is left."""
        scalars = tuple(each for each in self.scalars if each[0] not in names)
        return replace(self, scalars=scalars) or None

    def of(self, names: Iterable[str]) -> Sizes | None:
        """The sizes of some parameters, and the number of samples; None where there is none."""
        shapes = tuple(each for each in self.shapes if each[0] in names)
        scalars = tuple(each for each in self.scalars if each[0] in names)
        return Sizes(shapes, scalars, self.samples) or None

    def __bool__(self) -> bool:
        return bool(self.shapes or self.scalars or self.samples is not None)


def _spelt_length(length: int | None) -> str:
    return "?" if length is None else str(length)


# -- what is asked for -----------------------------------------------------------------------------


def asked_sizes(
    name: str, signature: Signature, given: Mapping[str, Any], samples: Any, before: Sizes | None
) -> Sizes:
    """The sizes that a user asks for, checked, beside those that a kernel has already.

    Parameters
    ----------
    name : str
        That of the kernel.
    signature : Signature
    given : mapping of str to object
        Shapes and numbers by parameter.
    samples : object
        The number of samples, or None.
    before : Sizes or None

    Raises
    ------
    KernelError
        For unknown parameters, shapes and numbers that they do not take, and sizes that contradict
        each other, all of them listed.
    """
    problems: list[str] = []
    specs = {spec.name: spec for spec in signature.parameters}
    before = before or Sizes()
    shapes, scalars = dict(before.shapes), dict(before.scalars)
    for key, value in given.items():
        spec = specs.get(key)
        if spec is None:
            problems.append(f"unknown argument {key!r}; its parameters are {', '.join(specs)}")
        elif spec.rank:
            shape = _shape(spec, value, problems)
            shapes[key] = _joined(key, shapes.get(key), shape, problems)
        elif _is_right(spec, value, problems):
            if key in scalars and repr(scalars[key]) != repr(value):
                problems.append(f"it is specialised for {key}={scalars[key]} already")
            scalars[key] = value
    count = _samples(signature, shapes, samples, before.samples, problems)
    if not (given or samples is not None):
        problems.append("give shapes or numbers by parameter, or samples=")
    if problems:
        listed = "\n  - ".join(problems)
        separator = " " if len(problems) == 1 else "\n  - "
        raise KernelError(f"specialise({name}):{separator}{listed}")
    return Sizes(
        tuple((key, shapes[key]) for key in specs if key in shapes),
        tuple((key, scalars[key]) for key in specs if key in scalars),
        count,
    )


def _shape(spec: ParameterSpec, value: Any, problems: list[str]) -> Shape:
    """The shape that is given for an array, its lengths None where it is wrong."""
    unknown = (None,) * spec.rank
    what = f"argument {spec.name!r} is an array ({spec.annotation})"
    if not isinstance(value, tuple | list):
        example = ", ".join(["64"] * spec.rank) + ("," if spec.rank == 1 else "")
        problems.append(f"{what}: give its shape, such as ({example}), not {value!r}")
        return unknown
    if len(value) != spec.rank:
        problems.append(
            f"{what}: its shape has {spec.rank} {'length' if spec.rank == 1 else 'lengths'}, given "
            f"is {tuple(value)}"
        )
        return unknown
    for length in value:
        is_whole = isinstance(length, int | np.integer) and not isinstance(length, bool)
        if length is not None and not (is_whole and length >= 0):
            problems.append(
                f"{what}: {length!r} in {tuple(value)} is no length; give whole numbers of at "
                "least 0, and None for a length that stays open"
            )
            return unknown
    shape = tuple(None if length is None else int(length) for length in value)
    if spec.width and shape[0] not in (None, spec.width):
        problems.append(f"{what}: its shape is ({spec.width}, samples), given is {shape}")
        return unknown
    return shape


def _joined(name: str, before: Shape | None, given: Shape, problems: list[str]) -> Shape:
    if before is None:
        return given
    pairs = list(zip(before, given, strict=True))
    if any(x != y for x, y in pairs if x is not None and y is not None):
        problems.append(f"it is specialised for {name}={before} already")
    return tuple(y if x is None else x for x, y in pairs)


def _is_right(spec: ParameterSpec, value: Any, problems: list[str]) -> bool:
    """Whether a number is one that calls can give for a parameter."""
    before = len(problems)
    if isinstance(value, np.ndarray):
        problems.append(f"argument {spec.name!r} is an array; give a number")
        return False
    try:
        scalar_conversion(spec, scalar_type(spec, value))(value, problems)
    except CallError as error:
        problems.append(str(error))
    return len(problems) == before


def _samples(
    signature: Signature,
    shapes: Mapping[str, Shape],
    given: Any,
    before: int | None,
    problems: list[str],
) -> int | None:
    """The number of samples that is given, or that shapes tell."""
    if signature.form == "array":
        if given is not None:
            problems.append("samples= is for the per-sample form, and this is of the array form")
        return None
    if given is not None:
        if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 0:
            problems.append(f"samples={given!r}: give a whole number of at least 0")
            return None
        if before not in (None, given):
            problems.append(f"it is specialised for samples={before} already")
    count = before if given is None else int(given)
    lengths = {
        spec.name: shapes[spec.name][-1]
        for spec in signature.parameters
        if spec.role in ("plane", "mask") and spec.name in shapes
    }
    known = {name: length for name, length in lengths.items() if length is not None}
    if count is not None:
        problems += [
            f"argument {name!r} has {length} samples, but samples={count} are to run"
            for name, length in known.items()
            if length < count
        ]
    elif len(set(known.values())) > 1:
        shown = ", ".join(f"{name!r} has {length}" for name, length in known.items())
        problems.append(
            f"the arrays of a call must have one number of samples: {shown}; samples= runs the "
            "first of longer arrays"
        )
    return next(iter(known.values()), None) if count is None else count


# -- units -----------------------------------------------------------------------------------------


def specialised(
    name: str, signature: Signature, lowered: LoweredKernel, sizes: Sizes, types: Types
) -> LoweredKernel:
    """The plan of a kernel for its sizes; `name` is that of the kernel, for messages.

    Raises
    ------
    KernelError
        Where a number has no value in the type that it has in this plan.
    """
    literals = scalar_literals(signature.parameters, sizes, types)
    for key, literal in literals.items():
        if literal is None:
            value = dict(sizes.scalars)[key]
            raise KernelError(
                f"kernel {name} is specialised for {key}={value}, which is no {types[key]}"
            )
    known = {key: literal for key, literal in literals.items() if literal is not None}
    if sizes.samples is not None:
        known[SAMPLES] = sizes.samples
    return replace(lowered, plan=specialised_plan(lowered.plan, dict(sizes.shapes), known))


def scalar_literals(
    specs: Iterable[ParameterSpec], sizes: Sizes, types: Types
) -> dict[str, Literal | None]:
    """What launchers take for the scalars, by parameter; None where the type has no such value."""
    scalars = dict(sizes.scalars)
    return {
        spec.name: _literal(spec, scalars[spec.name], types[spec.name])
        for spec in specs
        if spec.name in scalars
    }


def _literal(spec: ParameterSpec, value: Any, dtype: ir.DType | Weak) -> Literal | None:
    held = {"int": ir.i64, "float": ir.f64}[dtype] if isinstance(dtype, str) else dtype
    if not held.is_float and value != (bool(value) if held.is_bool else int(value)):
        return None
    problems: list[str] = []
    literal: Literal = scalar_conversion(spec, dtype)(value, problems)
    return None if problems else literal


def types_of_scalars(specs: Iterable[ParameterSpec], sizes: Sizes) -> Types:
    """The types that calls have which give the very numbers."""
    scalars = dict(sizes.scalars)
    return {
        spec.name: scalar_type(spec, scalars[spec.name]) for spec in specs if spec.name in scalars
    }


# -- calls -----------------------------------------------------------------------------------------


class SizeCheck:
    """Compares calls with what a kernel is specialised for.

    Parameters
    ----------
    specs : sequence of ParameterSpec
    sizes : Sizes
    """

    def __init__(self, specs: Sequence[ParameterSpec], sizes: Sizes) -> None:
        shapes, scalars = dict(sizes.shapes), dict(sizes.scalars)
        self._arrays = [
            (n, s.name, shapes[s.name]) for n, s in enumerate(specs) if s.name in shapes
        ]
        self._scalars = [(n, s, scalars[s.name]) for n, s in enumerate(specs) if s.name in scalars]
        self._samples = sizes.samples

    def problems(self, values: Sequence[Any]) -> Iterator[str]:
        """What of the arguments of a call is not as it must be, the number of samples left out."""
        for place, name, shape in self._arrays:
            given = getattr(values[place], "shape", None)
            if given != shape and not _fits(given, shape):
                shown = type(values[place]).__name__ if given is None else f"shape {tuple(given)}"
                yield (
                    f"argument {name!r} has {shown}, and the kernel is specialised for "
                    f"{_spelt_shape(shape)}"
                )
        for place, spec, wanted in self._scalars:
            if not _is_same(spec, values[place], wanted):
                yield (
                    f"argument {spec.name!r} is {values[place]}, and the kernel is specialised "
                    f"for {wanted}"
                )

    def count_problems(self, count: int) -> list[str]:
        """What is wrong with the number of samples of a call."""
        if self._samples in (None, count):
            return []
        hint = f"; samples={self._samples} runs the first of them" if count > self._samples else ""
        return [
            f"the call has {count} samples, and the kernel is specialised for {self._samples}{hint}"
        ]


def _fits(given: tuple[int, ...] | None, shape: Shape) -> bool:
    return (
        given is not None
        and len(given) == len(shape)
        and all(y is None or x == y for x, y in zip(given, shape, strict=True))
    )


def _spelt_shape(shape: Shape) -> str:
    inner = ", ".join(map(_spelt_length, shape))
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def _is_same(spec: ParameterSpec, given: Any, wanted: Any) -> bool:
    if type(given) is type(wanted) and given == wanted and given != 0:
        return True
    try:
        dtype = scalar_type(spec, given)
    except CallError:
        return False
    literal = _literal(spec, wanted, dtype)
    # Text tells zeros of either sign apart, and has one NaN.
    return literal is not None and repr(literal) == repr(scalar_conversion(spec, dtype)(given, []))
