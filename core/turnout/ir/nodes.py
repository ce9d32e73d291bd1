"""The typed IR: frozen nodes in static single assignment form with structured control flow.

A `Unit` is one launch: an iteration space and a body. Locals are `Value`s, defined once; control
flow is `Region`s that take parameters and yield values, so there are no jumps and no mutable
locals. Every statement offers ``operands``, ``results`` and ``regions``, which is all that a
transform, the verifier or the printer need to know about it.

Shapes are 64-bit. Positions of the iteration space are counted from 0. Array indices are in range
when a kernel is right: a `Load` or `Store` outside of its array is undefined, except under
``Options.debug``, where a backend reports it (see `turnout.hooks`).
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

from ..records import record
from .types import DType


@record
class Value:
    """One SSA value, named by its number inside its unit."""

    number: int
    dtype: DType

    def __str__(self) -> str:
        return f"%{self.number}"


@record
class Region:
    """A block of statements with parameters on entry and yielded values at its end."""

    parameters: tuple[Value, ...]
    body: tuple[Statement, ...]
    yields: tuple[Value, ...] = ()


class _OneResult:
    """A statement without regions that defines one value."""

    __slots__ = ()
    result: Value
    regions: ClassVar[tuple[Region, ...]] = ()

    @property
    def results(self) -> tuple[Value, ...]:
        return (self.result,)


class _NoResult:
    """A statement without regions that defines no value."""

    __slots__ = ()
    results: ClassVar[tuple[Value, ...]] = ()
    regions: ClassVar[tuple[Region, ...]] = ()


@record
class Constant(_OneResult):
    """A literal: an int in the range of an integer type, a float, or a bool."""

    result: Value
    value: int | float | bool

    operands: ClassVar[tuple[Value, ...]] = ()


@record
class Compute(_OneResult):
    """One row of `turnout.ir.operations.OPERATIONS` applied to values."""

    result: Value
    operation: str
    operands: tuple[Value, ...]


@record
class Cast(_OneResult):
    """Conversion to the result's type.

    Float to integer truncates and saturates, NaN gives 0; integer to narrower integer keeps the low
    bits; anything to bool is ``!= 0`` (NaN is true); bool to number is 0 or 1.
    """

    result: Value
    operand: Value

    @property
    def operands(self) -> tuple[Value, ...]:
        return (self.operand,)


@record
class Extent(_OneResult):
    """Length of one axis of an array parameter, as i64."""

    result: Value
    array: str
    axis: int

    operands: ClassVar[tuple[Value, ...]] = ()


@record
class LocalArray(_NoResult):
    """A fixed-size array private to one position of the iteration space, filled with zeros."""

    array: str
    dtype: DType
    shape: tuple[int, ...]

    operands: ClassVar[tuple[Value, ...]] = ()


@record
class Load(_OneResult):
    """Read one element of an array parameter or local array; indices are i64, one per axis."""

    result: Value
    array: str
    indices: tuple[Value, ...]
    line: int = field(default=0, compare=False)

    @property
    def operands(self) -> tuple[Value, ...]:
        return self.indices


@record
class Store(_NoResult):
    """Write one element. With `combine` (an operation name) the element is updated atomically."""

    array: str
    indices: tuple[Value, ...]
    value: Value
    combine: str | None = None
    line: int = field(default=0, compare=False)

    @property
    def operands(self) -> tuple[Value, ...]:
        return (*self.indices, self.value)


@record
class If:
    """Run one of two regions; both yield values of the results' types."""

    results: tuple[Value, ...]
    condition: Value
    then: Region
    otherwise: Region

    @property
    def operands(self) -> tuple[Value, ...]:
        return (self.condition,)

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.then, self.otherwise)


@record
class Switch:
    """Run region ``clamp(selector, 0, len(arms) - 1)``; the selector has any integer type."""

    results: tuple[Value, ...]
    selector: Value
    arms: tuple[Region, ...]

    @property
    def operands(self) -> tuple[Value, ...]:
        return (self.selector,)

    @property
    def regions(self) -> tuple[Region, ...]:
        return self.arms


@record
class Dispatch:
    """A `Switch` whose lowering is still to be chosen; `turnout.lower` removes it."""

    results: tuple[Value, ...]
    selector: Value
    arms: tuple[Region, ...]
    policy: str
    name: str
    line: int = field(default=0, compare=False)

    @property
    def operands(self) -> tuple[Value, ...]:
        return (self.selector,)

    @property
    def regions(self) -> tuple[Region, ...]:
        return self.arms


@record
class For:
    """``for index in range(start, stop, step)`` with carried values; all bounds are i64.

    ``body.parameters`` is the index followed by the carried values; the body yields their next
    values, and the results are their last ones. The trip count is Python's, and 0 where ``step`` is
    0. `start`, `stop` and `step` are read once. ``independent`` promises that iterations may run in
    any order and at the same time. ``intent`` is what the author asked for, of use only until the
    loop has found its place in a plan: "" (decide), "serial" or "parallel".
    """

    results: tuple[Value, ...]
    start: Value
    stop: Value
    step: Value
    initial: tuple[Value, ...]
    body: Region
    independent: bool = False
    intent: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)

    @property
    def operands(self) -> tuple[Value, ...]:
        return (self.start, self.stop, self.step, *self.initial)

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.body,)


@record
class While:
    """Repeat `body` while `condition` holds; both take the carried values as parameters.

    ``condition`` yields one bool, ``body`` yields the next carried values; the results are the
    carried values at which the condition failed.
    """

    results: tuple[Value, ...]
    initial: tuple[Value, ...]
    condition: Region
    body: Region
    line: int = field(default=0, compare=False)

    @property
    def operands(self) -> tuple[Value, ...]:
        return self.initial

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.condition, self.body)


Statement = (
    Constant
    | Compute
    | Cast
    | Extent
    | LocalArray
    | Load
    | Store
    | If
    | Switch
    | Dispatch
    | For
    | While
)


@record
class ArrayParameter:
    """An array argument of a unit: `rank` axes, any strides unless `is_contiguous` (in C order).

    `shape` is empty, or has the length of each axis; None where only a call tells it.
    """

    name: str
    dtype: DType
    rank: int
    is_read: bool = True
    is_written: bool = False
    shape: tuple[int | None, ...] = ()
    is_contiguous: bool = False


@record
class ScalarParameter:
    """A scalar argument of a unit; `value` is its SSA value, defined on entry."""

    name: str
    value: Value

    @property
    def dtype(self) -> DType:
        return self.value.dtype


Parameter = ArrayParameter | ScalarParameter


@record
class Unit:
    """One launch.

    Attributes
    ----------
    name : str
        Name of the unit, a valid C identifier.
    parameters : tuple of Parameter
        In the order in which a launcher takes arguments.
    prologue : tuple of Statement
        Scalar statements, run once per launch and visible in the body: pure ones, and loads from
        arrays that the unit does not write (scalars that an earlier unit left in scratch memory).
        Extents depend on pure ones alone, so that a host can evaluate them before a launch.
    extents : tuple of Value
        The iteration space: one i64 value of the prologue per axis (negative counts as 0). Empty:
        the body runs once. Positions may run in any order and at the same time.
    body : Region
        ``parameters`` are the positions (i64), one per axis; yields nothing.
    fast_math : bool
        Whether the author allowed relaxed floating point.
    apart : tuple of (str, str)
        Pairs of arrays that share no memory, as far as a transform says so; it may name others.
    """

    name: str
    parameters: tuple[Parameter, ...]
    prologue: tuple[Statement, ...]
    extents: tuple[Value, ...]
    body: Region
    fast_math: bool = False
    apart: tuple[tuple[str, str], ...] = ()

    @property
    def arrays(self) -> dict[str, ArrayParameter]:
        """The array parameters by name."""
        return {p.name: p for p in self.parameters if isinstance(p, ArrayParameter)}


@record
class Scratch:
    """Plan step: memory that lives for one launch; C-contiguous.

    It is filled with zeros, unless every element that is read is written before (``is_filled`` is
    False): then it may hold anything.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    is_filled: bool = True


Quantity = tuple[str, int | None]
"""What is known before a launch: ``(array, axis)`` is a length, ``(name, None)`` a scalar."""


@record
class QuantitySum:
    """``sum(factor * quantity) + constant``."""

    terms: tuple[tuple[Quantity, int], ...]
    constant: int


@record
class Reach:
    """How far a run indexes one axis of an array parameter.

    ``least`` and ``greatest`` are the smallest and the largest index; None where it is known to be
    in range. They are reached if every range of ``ranges`` (first value, end) has a value in it.
    """

    array: str
    axis: int
    least: QuantitySum | None
    greatest: QuantitySum | None
    ranges: tuple[tuple[QuantitySum, QuantitySum], ...]
    line: int = field(default=0, compare=False)


@record
class Run:
    """Plan step: run one unit; its parameters name kernel arguments or scratch arrays.

    ``exclusive`` are pairs of array parameters whose memory must not overlap, because positions run
    in any order; ``elementwise`` are pairs that may be exactly the same memory, but not overlap in
    part. ``reaches`` are the indices that every launch uses, for the check that arrays are long
    enough.
    """

    unit: Unit
    exclusive: tuple[tuple[str, str], ...] = ()
    elementwise: tuple[tuple[str, str], ...] = ()
    reaches: tuple[Reach, ...] = ()


@record
class Split:
    """Plan step: run a unit class by class, over the samples in each (see `turnout.segmentation`).

    Attributes
    ----------
    run : Run
        The unit as a whole, with its dispatches; what holds for it holds for its parts.
    extra : tuple of str
        Parameters of the parts that `run` does not have, in the order of
        `turnout.segmentation.ExtraNames`.
    classify : Plan
        Computes the class of each sample.
    branches, guarded : tuple of Plan
        One per class, over the samples in a list that have it; guarded, of these over those that
        still have it.
    listed : Plan
        All of it, over the samples in a list.
    """

    run: Run
    extra: tuple[str, ...]
    classify: Plan
    branches: tuple[Plan, ...]
    guarded: tuple[Plan, ...]
    listed: Plan

    @property
    def parts(self) -> tuple[Plan, ...]:
        return (self.classify, *self.branches, *self.guarded, self.listed)


Step = Scratch | Run | Split


@record
class Plan:
    """The steps, in order, that make one kernel call."""

    steps: tuple[Step, ...]

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units of its runs, parts of split ones included."""
        found: list[Unit] = []
        for step in self.steps:
            if isinstance(step, Run):
                found.append(step.unit)
            elif isinstance(step, Split):
                found += [unit for part in step.parts for unit in part.units]
        return tuple(found)

    @property
    def runs(self) -> tuple[Run, ...]:
        """Its runs, split ones as a whole."""
        steps = (step.run if isinstance(step, Split) else step for step in self.steps)
        return tuple(step for step in steps if isinstance(step, Run))


def is_pure(statement: Any) -> bool:
    """Whether a statement only computes scalars: no memory access, no region."""
    return isinstance(statement, Constant | Compute | Cast | Extent)
