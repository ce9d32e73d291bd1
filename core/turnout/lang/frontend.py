"""From a Python function and the types of a call to a plan of typed units."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping

from .. import ir
from ..errors import KernelError
from ..ir import DType, Region, Value, bool_, i64
from ..records import record
from .annotations import ParameterSpec, Signature
from .builder import Builder
from .cleanup import without_dead_code
from .linear import Linear
from .lowering import FunctionLowering
from .names import FreeNames
from .notes import LoopNote
from .plans import ArrayPlan
from .scope import Context
from .source import FunctionSource
from .syntax import last_binding, last_return
from .values import (
    ArrayValue,
    Known,
    Number,
    Operand,
    PlaneInput,
    TupleValue,
    Undefined,
    VectorValue,
    Weak,
    scalars_of,
    strong,
    type_of,
    weakness,
    width_of,
)

SAMPLES = "samples"
"""Name of the scalar parameter of per-sample units that holds the number of samples."""


@record
class Returned:
    """An array that a per-sample kernel returns: unit parameter, element type, vector width."""

    name: str
    dtype: DType
    width: int

    def shape(self, samples: int) -> tuple[int, ...]:
        """The shape of the array for so many samples."""
        return (self.width, samples) if self.width else (samples,)


@record
class LoweredKernel:
    """A kernel for one combination of argument types.

    Attributes
    ----------
    plan : Plan
        Its units; dispatches in them are not lowered yet.
    returned : tuple of Returned
        Arrays to allocate and return, in order.
    notes : tuple of LoopNote
        What became of each loop of the source.
    """

    plan: ir.Plan
    returned: tuple[Returned, ...]
    notes: tuple[LoopNote, ...]


@record
class KernelSource:
    """A kernel before the types of its arguments are known."""

    name: str
    source: FunctionSource
    free: FreeNames
    signature: Signature
    fast_math: bool = False

    @property
    def unit_name(self) -> str:
        """The name as an identifier of C."""
        return re.sub(r"\W", "_", self.name, flags=re.ASCII)


def lower_kernel(kernel: KernelSource, types: Mapping[str, DType | Weak]) -> LoweredKernel:
    """Type and lower a kernel.

    Parameters
    ----------
    kernel : KernelSource
    types : mapping of str to DType or {"int", "float"}
        The type of every parameter: element types of arrays, and for params the type of the value,
        weak for Python numbers.

    Raises
    ------
    KernelError
        Where the source means nothing for these types, with the place in the source.
    """
    try:
        if kernel.signature.form == "sample":
            return _SampleForm(kernel, types).lower()
        return _lower_array_form(kernel, types)
    except RecursionError:
        raise KernelError(
            f"kernel {kernel.name} is nested too deeply; split its longest expression or chain of "
            "elif into several",
            kernel.source.location(kernel.source.tree),
        ) from None


def _scalar_parameter(
    builder: Builder, name: str, dtype: DType | Weak
) -> tuple[ir.ScalarParameter, Number]:
    value = builder.value(strong(dtype))
    return ir.ScalarParameter(name, value), Number(value, weakness(dtype))


def _array_value(builder: Builder, spec: ParameterSpec, is_writable: bool) -> ArrayValue:
    assert spec.dtype is not None
    extents = tuple(Number(builder.extent(spec.name, axis), "int") for axis in range(spec.rank))
    return ArrayValue(spec.name, spec.dtype, extents, (), is_writable)


def _lower_array_form(kernel: KernelSource, types: Mapping[str, DType | Weak]) -> LoweredKernel:
    builder = Builder()
    parameters: list[ir.Parameter] = []
    environment: dict[str, object] = {}
    for spec in kernel.signature.parameters:
        if spec.role == "array":
            assert spec.dtype is not None
            parameters.append(ir.ArrayParameter(spec.name, spec.dtype, spec.rank))
            environment[spec.name] = _array_value(builder, spec, is_writable=True)
        else:
            parameter, number = _scalar_parameter(builder, spec.name, types[spec.name])
            parameters.append(parameter)
            environment[spec.name] = number
    body = FunctionLowering(
        Context(builder, _no_planes, environment.keys()), kernel.source, kernel.free, environment
    )
    body.block(kernel.source.tree.body)
    if body.return_count not in (None, -1):
        raise KernelError(
            "a kernel of the array form returns nothing; write the result into an array argument",
            kernel.source.location(kernel.source.tree),
        )
    plan = ArrayPlan(kernel.unit_name, kernel.source, builder, tuple(parameters), kernel.fast_math)
    return LoweredKernel(plan.build((*builder.entry(), *builder.block)), (), tuple(plan.notes))


def _no_planes(name: str) -> Operand:
    raise AssertionError(f"array-form kernels have no planes, {name} was read")


class _SampleForm:
    """The per-sample form: one unit whose positions are the samples.

    All inputs are read before any output is stored, so that a plane may be given as its own output.
    """

    def __init__(self, kernel: KernelSource, types: Mapping[str, DType | Weak]) -> None:
        self.kernel = kernel
        self.types = types
        self.builder = Builder()
        self.specs = {spec.name: spec for spec in kernel.signature.parameters}
        self.loads: list[ir.Statement] = []
        self.loaded: dict[str, Operand] = {}
        self.samples = self.builder.value(i64)
        self.builder.assume_between(self.samples, Linear(), None)
        self.position = self.builder.value(i64)
        last = self.builder.linear(self.samples).plus(Linear((), -1))
        self.builder.assume_between(self.position, Linear(), last)

    def dtype(self, name: str) -> DType:
        return strong(self.types[name])

    def read_plane(self, name: str) -> Operand:
        """The sample's value of a plane at launch."""
        if name not in self.loaded:
            with self.builder.reopened(self.loads):
                spec = self.specs[name]
                items = tuple(self._load(name, indices) for indices in self._indices(spec.width))
            self.loaded[name] = VectorValue(items) if spec.width else items[0]
        return self.loaded[name]

    def _load(self, name: str, indices: tuple[Value, ...]) -> Number:
        result = self.builder.value(self.dtype(name))
        line = self.kernel.source.tree.lineno
        self.builder.emit(ir.Load(result, name, indices, line=line))
        return Number(result)

    def _indices(self, width: int) -> list[tuple[Value, ...]]:
        """Indices of the sample's elements: component-major for vectors."""
        if not width:
            return [(self.position,)]
        return [(self.builder.constant(n, i64), self.position) for n in range(width)]

    def lower(self) -> LoweredKernel:
        builder, tree = self.builder, self.kernel.source.tree
        scalars: list[ir.Parameter] = []
        environment: dict[str, object] = {}
        for spec in self.specs.values():
            if spec.role == "array":
                environment[spec.name] = _array_value(builder, spec, is_writable=False)
            elif spec.role == "param":
                parameter, number = _scalar_parameter(builder, spec.name, self.types[spec.name])
                scalars.append(parameter)
                environment[spec.name] = number
            else:
                environment[spec.name] = PlaneInput(spec.name)
        context = Context(
            builder,
            self.read_plane,
            self.specs.keys(),
            sample_index=Number(self.position, "int"),
            sample_count=Number(self.samples, "int"),
        )
        mask = next((spec for spec in self.specs.values() if spec.role == "mask"), None)
        if mask is not None:
            self.read_plane(mask.name)
        with builder.nested() as content:
            body = FunctionLowering(context, self.kernel.source, self.kernel.free, environment)
            body.block(tree.body)
            stored = self._store_outputs(body)
            returned = self._store_returned(body)
            terminates = None if mask is None else self._new_mask(body, mask)
        if not stored and not returned:
            raise KernelError(
                f"kernel {self.kernel.name} has no output: declare one as Mutable[...] and assign "
                "it, or return a value",
                self.kernel.source.location(tree),
            )
        if mask is not None:
            content = self._guarded(mask, content, terminates)
            stored += [mask.name] if terminates else []
        return self._finish(content, scalars, stored, returned, context)

    def _new_mask(self, body: FunctionLowering, mask: ParameterSpec) -> Value | None:
        """What the sample assigns to its mask; None where it assigns nothing."""
        value = body.environment[mask.name]
        if isinstance(value, PlaneInput) or value is self.loaded[mask.name]:
            return None
        _, (terminates,) = self._converted(body, mask.name, bool_, 0, value)
        return terminates.value

    def _guarded(
        self, mask: ParameterSpec, content: list[ir.Statement], terminates: Value | None
    ) -> list[ir.Statement]:
        """The sample's work, skipped where the mask is already set."""
        build = self.builder
        terminated = self.loaded[mask.name]
        assert isinstance(terminated, Number)
        with build.reopened(self.loads):
            live = build.compute("bit_not", terminated.value)
        if terminates is None:
            return [ir.If((), live, Region((), tuple(content)), Region((), ()))]
        # A mask that is set stays set, so it can be stored for every sample, which is faster than a
        # store under a condition.
        with build.nested() as statements:
            result = build.value(bool_)
            with build.nested() as skipped:
                kept = build.constant(True, bool_)
            work = Region((), tuple(content), (terminates,))
            build.emit(ir.If((result,), live, work, Region((), tuple(skipped), (kept,))))
            build.emit(ir.Store(mask.name, (self.position,), result))
        return statements

    def _store_outputs(self, body: FunctionLowering) -> list[str]:
        stored = []
        for spec in self.specs.values():
            value = body.environment[spec.name]
            if isinstance(value, PlaneInput) and spec.is_output:
                raise KernelError(
                    f"the output {spec.name!r} is never assigned",
                    self.kernel.source.location(self.kernel.source.tree),
                )
            if spec.is_output:
                self._store(body, spec.name, self.dtype(spec.name), spec.width, value)
                stored.append(spec.name)
        return stored

    def _store(
        self, body: FunctionLowering, name: str, dtype: DType, width: int, value: object
    ) -> None:
        # All values are converted before the first is stored, and stored after all loads.
        node, converted = self._converted(body, name, dtype, width, value)
        line = getattr(node, "lineno", self.kernel.source.tree.lineno)
        for indices, number in zip(self._indices(width), converted, strict=True):
            self.builder.emit(ir.Store(name, indices, number.value, line=line))

    def _converted(
        self, body: FunctionLowering, name: str, dtype: DType, width: int, value: object
    ) -> tuple[ast.AST, list[Number]]:
        """The components that an output ends with, and where the source gives them to it."""
        tree = self.kernel.source.tree
        is_output = name in self.specs
        where = f"output {name!r}" if is_output else "the returned array"
        node = last_binding(tree, name) if is_output else last_return(tree)
        if isinstance(value, Undefined):
            body.fail(node, f"{where} may have no value in the end: {value.reason}")
        if isinstance(value, TupleValue) and width:
            value = body.as_vector(value, node)
        if width_of(value) != width:
            needed = f"a vector of width {width}" if width else "a number"
            body.fail(node, f"{where} holds {needed}, not {body.describe(value)}")
        return node, [body.convert_to_store(x, dtype, node, where) for x in scalars_of(value)]

    def _store_returned(self, body: FunctionLowering) -> tuple[Returned, ...]:
        tree = self.kernel.source.tree
        declared = self.kernel.signature.returns
        value = body.returned(tree, body)
        if isinstance(value, Known) and value.value is None:
            if declared:
                body.fail(tree, f"kernel {self.kernel.name} is declared to return, and does not")
            return ()
        is_one_vector = declared and declared[0].width and not self.kernel.signature.returns_tuple
        values = value.items if isinstance(value, TupleValue) and not is_one_vector else (value,)
        if declared is not None and len(declared) != len(values):
            body.fail(
                last_return(tree),
                f"{len(declared)} values are declared to return, {len(values)} given",
            )
        returned = []
        for number, item in enumerate(values):
            if declared:
                width, dtype = declared[number].width, self._returned_dtype(declared[number])
            elif width_of(item) is None:
                body.fail(last_return(tree), f"a kernel cannot return {body.describe(item)}")
            else:
                width = len(item.items) if isinstance(item, VectorValue) else 0
                dtype = strong(type_of(scalars_of(item)[0]))
            name = body.context.fresh_array(f"returned{number}")
            self._store(body, name, dtype, width, item)
            returned.append(Returned(name, dtype, width))
        return tuple(returned)

    def _returned_dtype(self, spec: ParameterSpec) -> DType:
        return spec.dtype or strong(self.types["return"])

    def _finish(
        self,
        content: list[ir.Statement],
        scalars: list[ir.Parameter],
        stored: list[str],
        returned: tuple[Returned, ...],
        context: Context,
    ) -> LoweredKernel:
        statements = without_dead_code((*self.builder.entry(), *self.loads, *content))
        prologue = tuple(s for s in statements if isinstance(s, ir.Extent))
        body = Region((self.position,), tuple(s for s in statements if s not in prologue))
        read = {s.array for s in ir.statements(body.body) if isinstance(s, ir.Load)}
        arrays: list[ir.Parameter] = [
            ir.ArrayParameter(s.name, self.dtype(s.name), s.rank, s.name in read, s.name in stored)
            for s in self.specs.values()
            if s.role != "param"
        ]
        arrays += [
            ir.ArrayParameter(r.name, r.dtype, 2 if r.width else 1, False, True) for r in returned
        ]
        samples = ir.ScalarParameter(SAMPLES, self.samples)
        unit = ir.Unit(
            self.kernel.unit_name,
            (*arrays, *scalars, samples),
            prologue,
            (self.samples,),
            body,
            self.kernel.fast_math,
        )
        ir.verify(unit)
        tables = {spec.name for spec in self.specs.values() if spec.role == "array"}
        plan = ir.Plan((ir.Run(unit, *sample_overlaps(unit, tables)),))
        return LoweredKernel(plan, returned, sample_notes(unit, self.kernel.source.tree.lineno))


def sample_overlaps(
    unit: ir.Unit, tables: Collection[str]
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """The pairs of arrays of a per-sample unit that are `exclusive` and `elementwise` in its run.

    A plane may be its own output; tables and other outputs must be distinct from outputs.
    """
    exclusive: list[tuple[str, str]] = []
    elementwise: list[tuple[str, str]] = []
    arrays = list(unit.arrays.values())
    for position, first in enumerate(arrays):
        for second in arrays[position + 1 :]:
            if not (first.is_written or second.is_written):
                continue
            one_output = first.is_written != second.is_written
            alike = (first.dtype, first.rank) == (second.dtype, second.rank)
            is_plane_pair = one_output and alike and not {first.name, second.name} & {*tables}
            pairs = elementwise if is_plane_pair else exclusive
            pairs.append((first.name, second.name))
    return tuple(exclusive), tuple(elementwise)


def sample_notes(unit: ir.Unit, line: int) -> tuple[LoopNote, ...]:
    """What became of the samples of a per-sample unit, whose kernel stands in `line`, and loops."""
    notes = [LoopNote(line, True, "samples are independent")]
    for statement in ir.statements(unit.body.body):
        if isinstance(statement, ir.For | ir.While):
            reason = "it runs inside of one sample, in order"
            notes.append(LoopNote(statement.line, False, reason, is_inside_parallel=True))
    return tuple(notes)


__all__ = [
    "SAMPLES",
    "KernelSource",
    "LoweredKernel",
    "Returned",
    "lower_kernel",
    "sample_notes",
    "sample_overlaps",
]
