"""The ``reference`` backend: evaluates a unit with NumPy, straight from its statements.

It is the oracle that other backends are compared with, and the fallback that needs no compiler. A
unit is translated once into closures. They run in lockstep over *lanes*, the positions of a chunk
of the iteration space: a value is a 1-D array with one element per lane or, where it is the same
for every lane, a NumPy scalar. Where lanes take different ways through the control flow, each way
runs on the subset of its lanes.

What one lane computes never depends on the others. NumPy promises that for exact operations only:
its vectorised math functions may have other code for single elements, remainders and constant
operands, so those functions are called on whole vectors (see `_per_lane`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import ir
from .hooks import Binary, Device, IndexViolation, Launcher, Target, hookimpl

CHUNK_LANES = 2**16
VECTOR_LANES = 16
"""Math functions run on a multiple of this many lanes: one vector of the widest machines."""

if TYPE_CHECKING:
    from .direct import DirectCall

Array = NDArray[Any]
Step = Callable[["_Environment"], None]


# ---- the hooks ---------------------------------------------------------------------------------


@hookimpl
def turnout_devices() -> Sequence[Device]:
    """One device: NumPy itself."""
    target = Target(
        backend="reference",
        arch="numpy",
        features=frozenset({"f64", "correct_rounding", "bounds"}),
        options=(f"numpy {np.__version__}",),
    )
    return (Device(index=0, label=f"NumPy {np.__version__}", target=target),)


@hookimpl
def turnout_compile(unit: ir.Unit) -> Binary:
    """Nothing to compile: the payload is the text of the unit, for people to read."""
    return Binary(entry=unit.name, kind="reference", payload=ir.format_unit(unit).encode())


@hookimpl
def turnout_launch(unit: ir.Unit) -> Launcher:
    """Translate the unit into closures."""
    return _Launcher(unit)


class _Launcher:
    """A translated unit; keeps nothing between calls."""

    direct: Callable[[DirectCall], Callable[..., Any] | None] | None = None

    def __init__(self, unit: ir.Unit) -> None:
        translator = _Translator()
        self.unit = unit
        self.body = translator.block(unit.body)  # first: sites count the body's accesses from 0
        self.prologue = translator.steps(unit.prologue)
        self.constants = translator.constants

    def __call__(self, args: tuple[Any, ...], size: int) -> None:
        if size == 0:
            return
        with np.errstate(all="ignore"):
            uniform = self._uniform(args)
            extents = [max(0, int(uniform[extent.number])) for extent in self.unit.extents]
            positions = prod(extents)
            for start in range(0, positions, CHUNK_LANES):
                stop = min(start + CHUNK_LANES, positions)
                lanes = _Environment(stop - start, uniform.memory, uniform)
                self.body.run(lanes, _positions(start, stop, extents))

    def _uniform(self, args: tuple[Any, ...]) -> _Environment:
        """Compute what is the same for every position: scalars, constants, the prologue."""
        uniform = _Environment(1, {})
        uniform.update(self.constants)
        for parameter, argument in zip(self.unit.parameters, args, strict=True):
            if isinstance(parameter, ir.ArrayParameter):
                uniform.memory[parameter.name] = np.asarray(argument)
            else:
                uniform[parameter.value.number] = parameter.dtype(argument)
        for step in self.prologue:
            step(uniform)
        return uniform


def _positions(start: int, stop: int, extents: Sequence[int]) -> tuple[Any, ...]:
    """Give the positions `start` to `stop` in row-major order, one array per axis."""
    if not extents:
        return ()
    axes = np.unravel_index(np.arange(start, stop), tuple(extents))
    if stop - start == 1:
        return tuple(np.int64(axis[0]) for axis in axes)
    return tuple(axis.astype(np.int64) for axis in axes)


# ---- lanes -------------------------------------------------------------------------------------


class _Environment(dict[int | str, Any]):
    """The values of a set of lanes, by number; also the rows of local arrays, by name.

    Values of the enclosing set are taken over when they are first used. `memory` holds parameter
    arrays as they are and local arrays with one row per lane of the set that declared them.
    """

    __slots__ = ("count", "enclosing", "index", "memory")

    def __init__(
        self,
        count: int,
        memory: dict[str, Array],
        enclosing: Mapping[int | str, Any] | None = None,
        index: Array | None = None,
    ) -> None:
        super().__init__()
        self.count = count
        self.memory = memory
        self.enclosing = {} if enclosing is None else enclosing
        self.index = index

    def subset(self, index: Array) -> _Environment:
        """Give the environment of the lanes numbered `index`."""
        return _Environment(index.size, self.memory, self, index)

    def __missing__(self, key: int | str) -> Any:
        value = self.enclosing[key]
        if value.ndim:
            value = value[self.index]
        self[key] = value
        return value


@dataclass(frozen=True, slots=True)
class _Block:
    """A translated region."""

    parameters: tuple[int, ...]
    steps: tuple[Step, ...]
    yields: tuple[int, ...]

    def run(self, lanes: _Environment, arguments: Sequence[Any] = ()) -> list[Any]:
        """Run for `lanes` and give the yielded values."""
        lanes.update(zip(self.parameters, arguments, strict=True))
        for step in self.steps:
            step(lanes)
        return [lanes[number] for number in self.yields]


class _Carried:
    """Carried values of a loop that lanes leave at different times."""

    def __init__(self, lanes: _Environment, results: Sequence[ir.Value], values: list[Any]) -> None:
        self.all_lanes = lanes
        self.lanes = lanes
        self.index = np.arange(lanes.count)
        self.values = values
        self.final = [np.empty(lanes.count, result.dtype) for result in results]

    def keep(self, stays: Array) -> None:
        """Let every lane leave whose element of `stays` is false."""
        self._finish(~stays)
        self.index = self.index[stays]
        self.values = [value[stays] if value.ndim else value for value in self.values]
        self.lanes = self.all_lanes.subset(self.index)

    def finish(self) -> list[Any]:
        """Let the remaining lanes leave; give the last values of all lanes."""
        if self.lanes is self.all_lanes:
            return self.values
        self._finish(np.ones(self.index.size, bool))
        return self.final

    def _finish(self, leaves: Array) -> None:
        for final, value in zip(self.final, self.values, strict=True):
            final[self.index[leaves]] = value[leaves] if value.ndim else value


# ---- translation -------------------------------------------------------------------------------


class _Translator:
    """Translates statements into closures, in the order that numbers loads and stores."""

    def __init__(self) -> None:
        self.constants: dict[int | str, Any] = {}
        self.locals: set[str] = set()
        self.sites = 0

    def block(self, region: ir.Region) -> _Block:
        return _Block(_numbers(region.parameters), self.steps(region.body), _numbers(region.yields))

    def steps(self, body: Sequence[ir.Statement]) -> tuple[Step, ...]:
        translated = [self.step(statement) for statement in body]
        return tuple(step for step in translated if step is not None)

    def step(self, statement: ir.Statement) -> Step | None:
        """Translate one statement; a constant needs no closure, it is there from the start."""
        match statement:
            case ir.Constant(result, value):
                self.constants[result.number] = result.dtype(value)
                return None
            case ir.Compute(result, operation, operands):
                return _compute(ir.OPERATIONS[operation], result.number, _numbers(operands))
            case ir.Cast(result, operand):
                return _cast(result, operand)
            case ir.Extent(result, array, axis):
                return _extent(result.number, array, axis)
            case ir.LocalArray(array, dtype, shape):
                self.locals.add(array)
                return _local_array(array, dtype, shape)
            case ir.Load(result, array, indices):
                return _load(result.number, self.element(array, indices))
            case ir.Store(array, indices, value, combine):
                element = self.element(array, indices)
                if combine is None:
                    return _store(element, value.number)
                return _update(element, value.number, ir.OPERATIONS[combine])
            case ir.If(results, condition, then, otherwise):
                taken = self.block(then)
                return _branch(results, condition.number, (self.block(otherwise), taken))
            case ir.Switch(results, selector, arms) | ir.Dispatch(results, selector, arms):
                return _switch(results, selector, tuple(self.block(arm) for arm in arms))
            case ir.For(results, start, stop, step, initial, body):
                bounds = _numbers((start, stop, step))
                return _for(results, bounds, _numbers(initial), self.block(body))
            case ir.While(results, initial, condition, body):
                test = self.block(condition)
                return _while(results, _numbers(initial), test, self.block(body))

    def element(self, array: str, indices: tuple[ir.Value, ...]) -> _Element:
        """Describe the element that the next load or store accesses."""
        site = self.sites
        self.sites += 1
        return _Element(site, array, _numbers(indices), array in self.locals)


def _numbers(values: Sequence[ir.Value]) -> tuple[int, ...]:
    return tuple(value.number for value in values)


# ---- scalar statements -------------------------------------------------------------------------


def _compute(operation: ir.Operation, result: int, operands: tuple[int, ...]) -> Step:
    evaluate = operation.evaluate if operation.is_exact else _per_lane(operation.evaluate)
    if isinstance(evaluate, np.ufunc) and len(operands) == 2:
        first, second = operands

        def compute_binary(lanes: _Environment) -> None:
            lanes[result] = evaluate(lanes[first], lanes[second])

        return compute_binary

    def compute(lanes: _Environment) -> None:
        # The index turns what NumPy leaves as an array without axes into a scalar.
        lanes[result] = evaluate(*[lanes[operand] for operand in operands])[()]

    return compute


def _per_lane(evaluate: Callable[..., Array]) -> Callable[..., Array]:
    """Make a NumPy math function give an element the same bits in whatever company it comes.

    Every operand becomes a contiguous array that fills whole vectors. This leaves no remainder to
    NumPy's code for short ends, and no scalar operand, for which there may be a shortcut: `power`
    multiplies where the exponent is the scalar 2, and gives other bits than for an array of 2.
    """

    def evaluate_whole_vectors(*operands: Any) -> Any:
        count = max(operand.size for operand in operands)
        length = -(-count // VECTOR_LANES) * VECTOR_LANES
        result = evaluate(*[_filled(operand, count, length) for operand in operands])
        return result[:count] if any(operand.ndim for operand in operands) else result[0]

    return evaluate_whole_vectors


def _filled(operand: Any, count: int, length: int) -> Array:
    if operand.ndim and operand.size == length:
        return np.ascontiguousarray(operand)
    filled = np.ones(length, operand.dtype)
    filled[:count] = operand
    return filled


def _cast(result: ir.Value, operand: ir.Value) -> Step:
    number, source, target = result.number, operand.number, result.dtype

    def convert(lanes: _Environment) -> None:
        lanes[number] = ir.convert(lanes[source], target)

    return convert


def _extent(result: int, array: str, axis: int) -> Step:
    def extent(lanes: _Environment) -> None:
        lanes[result] = np.int64(lanes.memory[array].shape[axis])

    return extent


# ---- memory ------------------------------------------------------------------------------------


def _local_array(array: str, dtype: ir.DType, shape: tuple[int, ...]) -> Step:
    def declare(lanes: _Environment) -> None:
        lanes.memory[array] = np.zeros((lanes.count, *shape), dtype)
        lanes[array] = np.arange(lanes.count) if lanes.count > 1 else np.int64(0)

    return declare


@dataclass(frozen=True, slots=True)
class _Element:
    """The element that a load or store accesses in each lane."""

    site: int
    array: str
    indices: tuple[int, ...]
    is_local: bool

    def locate(self, lanes: _Environment) -> tuple[Array, tuple[Any, ...]]:
        """Give the array and one index per axis, all in range."""
        array = lanes.memory[self.array]
        index = tuple([lanes[number] for number in self.indices])
        if self.is_local:
            self.check(index, array.shape[1:])
            return array, (lanes[self.array], *index)
        self.check(index, array.shape)
        return array, index

    def check(self, index: tuple[Any, ...], shape: tuple[int, ...]) -> None:
        for axis, (used, extent) in enumerate(zip(index, shape, strict=True)):
            if used.ndim == 0:
                if not 0 <= used < extent:
                    raise IndexViolation(self.site, axis, int(used), extent)
                continue
            # A negative index is a huge one when its bits are read as unsigned.
            outside = used.view(np.uint64) >= np.uint64(extent)
            if outside.any():
                raise IndexViolation(self.site, axis, int(used[outside.argmax()]), extent)


def _load(result: int, element: _Element) -> Step:
    def load(lanes: _Environment) -> None:
        array, index = element.locate(lanes)
        lanes[result] = array[index]

    return load


def _store(element: _Element, source: int) -> Step:
    def store(lanes: _Environment) -> None:
        array, index = element.locate(lanes)
        value = lanes[source]
        if value.ndim and not any(used.ndim for used in index):
            value = value[-1]  # every lane stores to one element: the last one stays
        array[index] = value

    return store


def _update(element: _Element, source: int, operation: ir.Operation) -> Step:
    """Update atomically: lane after lane, in the order of positions."""
    evaluate = operation.evaluate

    def update(lanes: _Environment) -> None:
        array, index = element.locate(lanes)
        index = tuple([np.broadcast_to(used, lanes.count) for used in index])
        values = np.broadcast_to(lanes[source], lanes.count)
        if isinstance(evaluate, np.ufunc) and index:
            evaluate.at(array, index, values)
            return
        for lane, value in enumerate(values):
            place = tuple([used[lane] for used in index])
            array[place] = evaluate(array[place], value)

    return update


# ---- control flow ------------------------------------------------------------------------------


def _branch(results: Sequence[ir.Value], condition: int, blocks: tuple[_Block, _Block]) -> Step:
    def branch(lanes: _Environment) -> None:
        _choose(lanes, lanes[condition], blocks, results)

    return branch


def _switch(results: Sequence[ir.Value], selector: ir.Value, blocks: tuple[_Block, ...]) -> Step:
    number = selector.number
    # The last arm may be out of reach of a narrow selector.
    last = selector.dtype(min(len(blocks) - 1, selector.dtype.maximum))
    first = selector.dtype(0)

    def switch(lanes: _Environment) -> None:
        clamped = np.minimum(np.maximum(lanes[number], first), last)
        _choose(lanes, clamped, blocks, results)

    return switch


def _choose(
    lanes: _Environment, choice: Any, blocks: tuple[_Block, ...], results: Sequence[ir.Value]
) -> None:
    """Run for each lane the block that `choice` numbers."""
    numbers = _numbers(results)
    if choice.ndim == 0:
        lanes.update(zip(numbers, blocks[int(choice)].run(lanes), strict=True))
        return
    merged = [np.empty(lanes.count, result.dtype) for result in results]
    for number, block in enumerate(blocks):
        index = np.flatnonzero(choice == number)
        if index.size == lanes.count:
            lanes.update(zip(numbers, block.run(lanes), strict=True))
            return
        if index.size == 0:
            continue
        for whole, part in zip(merged, block.run(lanes.subset(index)), strict=True):
            whole[index] = part
    lanes.update(zip(numbers, merged, strict=True))


def _for(
    results: Sequence[ir.Value],
    bounds: tuple[int, ...],
    initial: tuple[int, ...],
    body: _Block,
) -> Step:
    numbers = _numbers(results)

    def loop(lanes: _Environment) -> None:
        start, stop, step = [lanes[number] for number in bounds]
        values = [lanes[number] for number in initial]
        if not (start.ndim or stop.ndim or step.ndim):
            positions = range(int(start), int(stop), int(step)) if step else ()
            for position in positions:
                values = body.run(lanes, (np.int64(position), *values))
            lanes.update(zip(numbers, values, strict=True))
            return
        start, stop, step = np.broadcast_arrays(start, stop, step)
        trips = _trip_counts(start, stop, step)
        carried = _Carried(lanes, results, values)
        for trip in range(int(trips.max()) + 1):
            stays = trips[carried.index] > trip
            if not stays.all():
                carried.keep(stays)
            if carried.index.size:
                position = start[carried.index] + trip * step[carried.index]
                carried.values = body.run(carried.lanes, (position, *carried.values))
        lanes.update(zip(numbers, carried.finish(), strict=True))

    return loop


def _trip_counts(start: Array, stop: Array, step: Array) -> Array:
    """``len(range(start, stop, step))`` in every lane, in 64 unsigned bits, which it needs.

    A step of 0 gives 0.
    """
    upwards = step > 0
    low, high = np.where(upwards, start, stop), np.where(upwards, stop, start)
    distance = high.astype(np.uint64) - low.astype(np.uint64)
    stride = np.where(upwards, step, -step).astype(np.uint64)
    rounds = (distance - np.uint64(1)) // np.where(step == 0, np.uint64(1), stride) + np.uint64(1)
    return np.where((low < high) & (step != 0), rounds, np.uint64(0))


def _while(
    results: Sequence[ir.Value], initial: tuple[int, ...], test: _Block, body: _Block
) -> Step:
    numbers = _numbers(results)

    def loop(lanes: _Environment) -> None:
        carried = _Carried(lanes, results, [lanes[number] for number in initial])
        while carried.index.size:
            (goes_on,) = test.run(carried.lanes, carried.values)
            if not goes_on.any():
                break
            if not goes_on.all():
                carried.keep(goes_on)
            carried.values = body.run(carried.lanes, carried.values)
        lanes.update(zip(numbers, carried.finish(), strict=True))

    return loop
