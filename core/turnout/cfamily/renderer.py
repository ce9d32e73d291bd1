"""A unit as the text of one or two functions.

Every SSA value becomes a constant of its own; what regions yield becomes variables that they
assign.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from math import prod

from .. import ir
from ..errors import CompileError
from ..records import record
from . import operations
from .dialects import Dialect
from .operations import Helpers, literal


@record
class Rendered:
    """The text of a unit.

    Attributes
    ----------
    text : str
    entry : str
        Name of the function that takes any strides.
    dense_entry : str
        Name of the one for dense rows, or empty.
    slots : int
        Number of slots of 8 bytes.
    needs : frozenset of str
        Capabilities: ``"f64"``, ``"atomics_64"``.
    """

    text: str
    entry: str
    dense_entry: str
    slots: int
    needs: frozenset[str]


def entry_name(unit: ir.Unit) -> str:
    """Name of the entry function; the prefix keeps it apart from the names of C libraries."""
    return f"unit_{unit.name}"


def render(
    unit: ir.Unit, dialect: Dialect, *, debug: bool = False, with_dense_entry: bool = True
) -> Rendered:
    """Write a unit as text; equal units give equal text.

    Parameters
    ----------
    unit : Unit
        Without dispatches, which `turnout.lower` removes.
    dialect : Dialect
    debug : bool
        Check every index, and report the first that is out of bounds.
    with_dense_entry : bool
        Whether to write the second function, for dense rows, where it makes a difference.

    Returns
    -------
    Rendered

    Raises
    ------
    CompileError
        If the unit holds a dispatch.

    Examples
    --------
    >>> import turnout as tn
    >>> from turnout.plugin import cfamily
    >>> @tn.kernel
    ... def double(x: tn.Scalar) -> tn.Scalar:
    ...     return x * 2
    >>> (unit,) = double.lower(double.default_types(tn.f32)).plan.units
    >>> rendered = cfamily.render(unit, cfamily.C99)
    >>> rendered.entry, rendered.slots
    ('unit_double', 7)
    """
    helpers = Helpers(dialect)
    entry = entry_name(unit)
    functions = [_Function(unit, helpers, debug=debug, is_dense=False).text(entry)]
    dense_entry = ""
    if with_dense_entry and not debug and _indexed_arrays(unit):
        dense_entry = f"{entry}_rows"
        functions.append(_Function(unit, helpers, debug=False, is_dense=True).text(dense_entry))
    count = _slot_count(unit) + debug
    needs = frozenset(helpers.needs | ({"f64"} if _uses(unit, ir.f64) else set()))
    parts = [dialect.prelude]
    if "f64" in needs:
        parts.append(dialect.prelude_f64)
    if "atomics_64" in needs:
        parts.append(dialect.prelude_atomics_64)
    parts += helpers.definitions.values()
    # C has no structures without members.
    parts.append(dialect.words.format(count=max(1, count)))
    text = "\n".join(part.rstrip("\n") for part in (*parts, *functions) if part) + "\n"
    return Rendered(text, entry, dense_entry, count, needs)


def has_dense_rows(unit: ir.Unit, args: Sequence[object]) -> bool:
    """Whether a launch with these arguments may use the entry for dense rows.

    The stride of an axis with one element or none is no matter.
    """
    indexed = _indexed_arrays(unit)
    return all(
        array.strides[-1] == parameter.dtype.itemsize or array.shape[-1] <= 1  # type: ignore[attr-defined]
        for parameter, array in zip(unit.parameters, args, strict=True)
        if parameter.name in indexed
    )


def local_bytes(unit: ir.Unit) -> int:
    """Memory of all local arrays of one position."""
    return sum(
        each.dtype.itemsize * max(1, prod(each.shape))
        for each in ir.statements(unit.body.body)
        if isinstance(each, ir.LocalArray)
    )


def _all_statements(unit: ir.Unit) -> Iterator[ir.Statement]:
    return ir.statements(chain(unit.prologue, unit.body.body))


def _indexed_arrays(unit: ir.Unit) -> frozenset[str]:
    """The array parameters with axes that are read or written."""
    accessed = {s.array for s in _all_statements(unit) if isinstance(s, ir.Load | ir.Store)}
    return frozenset(name for name, a in unit.arrays.items() if a.rank and name in accessed)


def _uses(unit: ir.Unit, dtype: ir.DType) -> bool:
    if any(parameter.dtype is dtype for parameter in unit.parameters):
        return True
    for statement in _all_statements(unit):
        if isinstance(statement, ir.LocalArray) and statement.dtype is dtype:
            return True
        if any(result.dtype is dtype for result in statement.results):
            return True
    return False


def _slot_count(unit: ir.Unit) -> int:
    return sum(
        1 + 2 * parameter.rank if isinstance(parameter, ir.ArrayParameter) else 1
        for parameter in unit.parameters
    )


class _Function:
    """The text of one entry function."""

    def __init__(self, unit: ir.Unit, helpers: Helpers, *, debug: bool, is_dense: bool) -> None:
        self.unit = unit
        self.helpers = helpers
        self.dialect = helpers.dialect
        self.debug = debug
        self.is_dense = is_dense
        self.lines: list[str] = []
        self.depth = 1
        self.names: dict[int, str] = {}
        self.constants: dict[int, int | float | bool] = {}
        self.local_shapes: dict[str, tuple[int, ...]] = {}
        self.local_names: dict[str, str] = {}
        self.array_numbers: dict[str, int] = {}
        self.preamble: dict[str, str] = {}
        self.sites = 0
        self.is_in_body = False
        self.slots: dict[str, int] = {}
        slot = 0
        for parameter in unit.parameters:
            self.slots[parameter.name] = slot
            slot += 1 + 2 * parameter.rank if isinstance(parameter, ir.ArrayParameter) else 1
        self.slots[""] = slot

    def text(self, entry: str) -> str:
        arrays = list(self.unit.arrays)
        self.array_numbers = {name: number for number, name in enumerate(arrays)}
        for parameter in self.unit.parameters:
            if isinstance(parameter, ir.ScalarParameter):
                self.scalar(parameter)
        self.statements(self.unit.prologue)
        self.is_in_body = True
        self.space()
        pointers = ""
        if self.dialect.has_array_parameters:
            space = self.dialect.space
            pointers = "".join(f"{space}u8 *array{number}, " for number in range(len(arrays)))
            pointers += f"{space}i64 *record, " if self.debug else ""
        comments = [
            f"    /* array{number}: {name if name.isascii() else ascii(name)} */"
            for name, number in self.array_numbers.items()
        ]
        declared = [f"    {line}" for line in self.preamble.values()]
        done = [f"    {self.dialect.done}"] if self.dialect.done else []
        head = self.dialect.signature.format(entry=entry, arrays=pointers)
        return "\n".join([head + " {", *comments, *declared, *self.lines, *done, "}"])

    # Text

    def write(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def block(self, head: str, end: str = "}") -> Iterator[None]:
        self.write(f"{head} {{" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.write(end)

    def name(self, value: ir.Value) -> str:
        return self.names[value.number]

    def define(self, value: ir.Value, expression: str) -> None:
        name = self.names[value.number] = f"v{value.number}"
        self.write(f"const {_type(value.dtype)} {name} = {expression};")

    def declare(self, values: Sequence[ir.Value]) -> None:
        """Variables that regions assign."""
        for value in values:
            name = self.names[value.number] = f"v{value.number}"
            self.write(f"{_type(value.dtype)} {name};")

    def assign(self, targets: Sequence[str], sources: Sequence[ir.Value]) -> None:
        """Assign at once, so that a source may be one of the targets."""
        pairs = [
            (target, source) for target, source in zip(targets, sources, strict=True)
            if target != self.name(source)
        ]  # fmt: skip
        clash = any(self.name(source) in targets for _, source in pairs)
        if len(pairs) < 2 or not clash:
            for target, source in pairs:
                self.write(f"{target} = {self.name(source)};")
            return
        with self.block(""):
            for number, (_, source) in enumerate(pairs):
                self.write(f"const {_type(source.dtype)} next{number} = {self.name(source)};")
            for number, (target, _) in enumerate(pairs):
                self.write(f"{target} = next{number};")

    # Parameters

    def slot(self, number: int) -> str:
        return self.dialect.slot.format(number=number)

    def scalar(self, parameter: ir.ScalarParameter) -> None:
        dtype, slot = parameter.dtype, self.slot(self.slots[parameter.name])
        match dtype.kind:
            case "f" if dtype.bits == 32:
                expression = f"f32_from_bits((u32){slot})"
            case "f":
                expression = f"f64_from_bits({slot})"
            case "b":
                expression = f"({slot} & 255) != 0"
            case _:
                expression = f"({dtype}){slot}"
        self.define(parameter.value, expression)

    def base(self, array: str) -> str:
        number, slot = self.array_numbers[array], self.slot(self.slots[array])
        name, space = f"base{number}", self.dialect.space
        start = f"array{number} + {slot}" if self.dialect.has_array_parameters else f"(u8 *){slot}"
        self.preamble[name] = f"{space}u8 *const {name} = {start};"
        return name

    def extent(self, array: str, axis: int) -> str:
        if array in self.local_shapes:
            return literal(self.dialect, ir.i64, self.local_shapes[array][axis])
        return self.size("extent", array, axis, 1 + axis)

    def stride(self, array: str, axis: int) -> str:
        return self.size("stride", array, axis, 1 + self.unit.arrays[array].rank + axis)

    def size(self, kind: str, array: str, axis: int, place: int) -> str:
        name = f"{kind}{self.array_numbers[array]}_{axis}"
        slot = self.slot(self.slots[array] + place)
        self.preamble[name] = f"const i64 {name} = (i64){slot};"
        return name

    # The iteration space

    def space(self) -> None:
        """Find the positions of the iteration space that this thread runs, and run them."""
        extents = self.unit.extents
        lengths = []
        for axis, extent in enumerate(extents):
            lengths.append(f"length{axis}")
            name = self.name(extent)
            self.write(f"const i64 length{axis} = {name} < 0 ? 0 : {name};")
        self.write(f"const i64 positions = {' * '.join(lengths) or '1'};")
        *before, head = self.dialect.positions.splitlines()
        for line in before:
            self.write(line)
        with self.block(head):
            rest = "position"
            for axis in reversed(range(1, len(extents))):
                divide = self.helpers.define("divide_position", _DIVIDE_POSITION)
                self.write(f"const i64 outer{axis} = {divide}({rest}, length{axis});")
                parameter = self.unit.body.parameters[axis]
                self.define(parameter, f"{rest} - outer{axis} * length{axis}")
                rest = f"outer{axis}"
            if extents:
                self.names[self.unit.body.parameters[0].number] = rest
            self.statements(self.unit.body.body)

    # Statements

    def statements(self, body: Sequence[ir.Statement]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, statement: ir.Statement) -> None:
        match statement:
            case ir.Constant(result, value):
                self.constants[result.number] = value
                self.names[result.number] = literal(self.dialect, result.dtype, value)
            case ir.Compute(result, operation, operands):
                named = tuple(map(self.name, operands))
                dtype = operands[-1].dtype
                self.define(result, operations.compute(self.helpers, operation, dtype, named))
            case ir.Cast(result, operand):
                x = self.name(operand)
                self.define(result, operations.cast(self.helpers, operand.dtype, result.dtype, x))
            case ir.Extent(result, array, axis):
                self.names[result.number] = self.extent(array, axis)
            case ir.LocalArray(array, dtype, shape):
                self.local_array(array, dtype, shape)
            case ir.Load(result, array, indices):
                self.load(result, array, indices)
            case ir.Store(array, indices, value, combine):
                self.store(array, indices, value, combine)
            case ir.If():
                self.branch(statement)
            case ir.Switch():
                self.switch(statement)
            case ir.For():
                self.for_loop(statement)
            case ir.While():
                self.while_loop(statement)
            case ir.Dispatch(name=name):
                where = f"dispatch {name!r} of unit {self.unit.name!r}"
                raise CompileError(
                    self.dialect.name, f"{where} is not lowered; the core does that first"
                )

    # Memory

    def local_array(self, array: str, dtype: ir.DType, shape: tuple[int, ...]) -> None:
        name = self.local_names[array] = f"local{len(self.local_names)}"
        self.local_shapes[array] = shape
        self.write(f"{_stored(dtype)} {name}[{max(1, prod(shape))}] = {{0}};")

    def check(self, array: str, indices: Sequence[ir.Value]) -> None:
        """In debug mode, stop at an index that is out of bounds."""
        if not (self.debug and self.is_in_body):
            return
        claim = _CLAIMS[self.dialect.has_atomics]
        report = self.helpers.define("report", _REPORT.replace("$claim", claim))
        for axis, index in enumerate(indices):
            used, extent = self.name(index), self.extent(array, axis)
            with self.block(f"if ((u64){used} >= (u64){extent})"):
                self.write(f"{report}({self.record()}, {self.sites}, {axis}, {used}, {extent});")
                self.write(self.dialect.stop)
        self.sites += 1

    def record(self) -> str:
        return (
            "record" if self.dialect.has_array_parameters else f"(i64 *){self.slot(self.slots[''])}"
        )

    def local_element(self, array: str, indices: Sequence[ir.Value]) -> str:
        shape, terms = self.local_shapes[array], []
        for axis, index in enumerate(indices):
            step = prod(shape[axis + 1 :])
            terms.append(self.name(index) if step == 1 else f"{self.name(index)} * {step}")
        return f"{self.local_names[array]}[{' + '.join(terms) or '0'}]"

    def address(self, array: str, indices: Sequence[ir.Value]) -> str:
        terms = [self.base(array)]
        for axis, index in enumerate(indices):
            is_dense = self.is_dense and axis == len(indices) - 1
            itemsize = str(self.unit.arrays[array].dtype.itemsize)
            step = itemsize if is_dense else self.stride(array, axis)
            terms.append(f"{self.name(index)} * {step}")
        return " + ".join(terms)

    def load(self, result: ir.Value, array: str, indices: Sequence[ir.Value]) -> None:
        self.check(array, indices)
        dtype = result.dtype
        if array in self.local_shapes:
            element = self.local_element(array, indices)
        else:
            element = f"load_{_stored(dtype)}({self.address(array, indices)})"
        # Any byte but 0 is true, as in NumPy.
        self.define(result, f"{element} != 0" if dtype.is_bool else element)

    def store(
        self, array: str, indices: Sequence[ir.Value], value: ir.Value, combine: str | None
    ) -> None:
        self.check(array, indices)
        stored, dtype = self.name(value), value.dtype
        if array in self.local_shapes:
            element = self.local_element(array, indices)
            if combine is not None:
                current = f"{element} != 0" if dtype.is_bool else element
                with self.block(""):
                    self.write(f"const {_type(dtype)} current = {current};")
                    new = operations.compute(self.helpers, combine, dtype, ("current", stored))
                    self.write(f"{element} = {new};")
                return
            self.write(f"{element} = {stored};")
            return
        address = self.address(array, indices)
        if combine is not None:
            self.write(f"{update_function(self.helpers, combine, dtype)}({address}, {stored});")
            return
        self.write(f"store_{_stored(dtype)}({address}, {stored});")

    # Control flow

    def branch(self, statement: ir.If) -> None:
        self.declare(statement.results)
        targets = tuple(map(self.name, statement.results))
        otherwise = statement.otherwise
        with self.block(f"if ({self.name(statement.condition)})"):
            self.statements(statement.then.body)
            self.assign(targets, statement.then.yields)
        if otherwise.body or otherwise.yields:
            with self.block("else"):
                self.statements(otherwise.body)
                self.assign(targets, otherwise.yields)

    def switch(self, statement: ir.Switch) -> None:
        self.declare(statement.results)
        targets = tuple(map(self.name, statement.results))
        chosen = self.name(statement.selector)
        if statement.selector.dtype.kind == "i":
            chosen = f"{chosen} < 0 ? 0 : {chosen}"
        last = len(statement.arms) - 1
        with self.block(f"switch ({chosen})"):
            for number, arm in enumerate(statement.arms):
                head = "default:" if number == last else f"case {number}:"
                with self.block(head, "} break;"):
                    self.statements(arm.body)
                    self.assign(targets, arm.yields)

    def carried(self, results: Sequence[ir.Value], initial: Sequence[ir.Value]) -> tuple[str, ...]:
        """Variables of a loop, which are its results in the end."""
        for result, first in zip(results, initial, strict=True):
            name = f"v{result.number}"
            self.write(f"{_type(result.dtype)} {name} = {self.name(first)};")
            self.names[result.number] = name
        return tuple(map(self.name, results))

    def bind(self, parameters: Sequence[ir.Value], names: Sequence[str]) -> None:
        for parameter, name in zip(parameters, names, strict=True):
            self.names[parameter.number] = name

    def while_loop(self, statement: ir.While) -> None:
        variables = self.carried(statement.results, statement.initial)
        self.bind(statement.condition.parameters, variables)
        self.bind(statement.body.parameters, variables)
        self.keep_order(statement.results)
        with self.block("for (;;)"):
            self.statements(statement.condition.body)
            self.write(f"if (!{self.name(statement.condition.yields[0])}) break;")
            self.statements(statement.body.body)
            self.assign(variables, statement.body.yields)

    def for_loop(self, statement: ir.For) -> None:
        variables = self.carried(statement.results, statement.initial)
        index, *parameters = statement.body.parameters
        self.bind(parameters, variables)
        counter = self.names[index.number] = f"v{index.number}"
        start, stop, step = map(self.name, (statement.start, statement.stop, statement.step))
        if self.constants.get(statement.step.number) == 1:
            head = f"for (i64 {counter} = {start}; {counter} < {stop}; ++{counter})"
        else:
            count = self.helpers.define("range_length", _RANGE_LENGTH)
            self.write(f"i64 {counter} = {start};")
            # Counting rounds lets the index wrap after the last one.
            left = f"left{index.number}"
            advance = f"{counter} = (i64)((u64){counter} + (u64){step})"
            head = (
                f"for (u64 {left} = {count}({start}, {stop}, {step}); {left} != 0; "
                f"--{left}, {advance})"
            )
        self.keep_order(statement.results)
        with self.block(head):
            self.statements(statement.body.body)
            self.assign(variables, statement.body.yields)

    def keep_order(self, carried: Sequence[ir.Value]) -> None:
        if self.dialect.ordered_loop and any(value.dtype.is_float for value in carried):
            self.write(self.dialect.ordered_loop)


def _type(dtype: ir.DType) -> str:
    return "bool" if dtype.is_bool else str(dtype)


def _stored(dtype: ir.DType) -> str:
    return "u8" if dtype.is_bool else str(dtype)


_DIVIDE_POSITION = """\
$function i64 $name(i64 position, i64 length) {
    /* Both are positive; a division of 32 bits takes a fraction of the time. */
    if ((((u64)position | (u64)length) >> 32) != 0) return position / length;
    return (i64)((u32)position / (u32)length);
}"""

_RANGE_LENGTH = """\
$function u64 $name(i64 start, i64 stop, i64 step) {
    const i64 low = step > 0 ? start : stop, high = step > 0 ? stop : start;
    if (step == 0 || low >= high) return 0;
    const u64 size = step > 0 ? (u64)step : (u64)0 - (u64)step;
    return ((u64)high - (u64)low - 1) / size + 1;
}"""

_CLAIMS = {
    True: "compare_exchange_u32((volatile ${space}u32 *)record, 0u, 1u) == 0u",
    False: "record[0] == 0",
}

_REPORT = """\
$function void $name(${space}i64 *record, i64 site, i64 axis, i64 index, i64 extent) {
    if ($claim) {
        record[0] = 1;
        record[1] = site;
        record[2] = axis;
        record[3] = index;
        record[4] = extent;
    }
}"""


# ---- updates of elements that positions share --------------------------------------------------

_PLAIN_UPDATE = """\
$function $T $name(${space}u8 *address, $T value) {
    const $T current = load_$stored(address)$truth;
    store_$stored(address, $combined);
    return current;
}"""

_NATIVE_UPDATE = """\
$function $T $name(${space}u8 *address, $T given) {
    volatile ${space}$W *word = (volatile ${space}$W *)address;
    const $W value = ($W)given;
    return ($T)$update;
}"""

_WORD_UPDATE = """\
$function $T $name(${space}u8 *address, $T value) {
    volatile ${space}$W *word = (volatile ${space}$W *)address;
    $W seen = *word;
    for (;;) {
        const $T current = $from_bits(seen);
        const $T combined = $combined;
        const $W before = compare_exchange_$W(word, seen, $to_bits(combined));
        if (before == seen) return current;
        seen = before;
    }
}"""

_NARROW_UPDATE = """\
$function $T $name(${space}u8 *address, $T value) {
    /* The 32-bit word that holds the element; its other bytes stay as they are. */
    const u32 place = (u32)((size_t)address & 3);
    volatile ${space}u32 *word = (volatile ${space}u32 *)(address - place);
    const u32 shift = place * 8, mask = ${mask}u << shift;
    u32 seen = *word;
    for (;;) {
        const $T current = ($T)(($B)(seen >> shift)$truth);
        const $T combined = $combined;
        const u32 wanted = (seen & ~mask) | ((u32)($B)combined << shift);
        const u32 before = compare_exchange_u32(word, seen, wanted);
        if (before == seen) return current;
        seen = before;
    }
}"""


def update_function(helpers: Helpers, combine: str, dtype: ir.DType) -> str:
    """Name of the function that updates one element and gives what was there before."""
    name, dialect = f"update_{combine}_{dtype}", helpers.dialect
    truth = " != 0" if dtype.is_bool else ""
    words = {
        "T": _type(dtype),
        "stored": _stored(dtype),
        "truth": truth,
        "combined": operations.compute(helpers, combine, dtype, ("current", "value")),
    }
    if not dialect.has_atomics:
        return helpers.define(name, _PLAIN_UPDATE, **words)
    if dtype.bits < 32:
        mask, bits = f"{(1 << dtype.bits) - 1:#x}", f"u{dtype.bits}"
        return helpers.define(name, _NARROW_UPDATE, **words, mask=mask, B=bits)
    word = f"u{dtype.bits}"
    if dtype.bits == 64:
        helpers.needs.add("atomics_64")
    update = dialect.atomics.get((combine, word if dtype.is_integer else str(dtype)))
    if update is not None:
        return helpers.define(name, _NATIVE_UPDATE, **words, W=word, update=update)
    from_bits, to_bits = f"({dtype})", f"({word})"
    if dtype.is_float:
        from_bits, to_bits = f"{dtype}_from_bits", f"bits_from_{dtype}"
    return helpers.define(name, _WORD_UPDATE, **words, W=word, from_bits=from_bits, to_bits=to_bits)
