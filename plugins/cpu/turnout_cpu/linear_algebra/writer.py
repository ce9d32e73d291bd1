"""Functions with counted loops, pointers in bytes, and vectors of one element type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from turnout.plugin import ir

from ..text import FunctionText, ModuleText, ValueType, literal
from .machine import Machine


@dataclass
class Loop:
    """A loop that is being written, and its values after it.

    Attributes
    ----------
    index : str
        The counter.
    values : list of str
        What the loop carries: in it the values at the beginning of the round, after it the last.
    following : list of str
        Set by the body: the values for the next round.
    """

    index: str
    values: list[str]
    following: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Lanes:
    """Neighbouring elements that one vector holds.

    Attributes
    ----------
    count : int
        Lanes of the vector, a power of two.
    used : int
        How many of them, from the first, stand for elements.
    """

    count: int
    used: int


class Writer(FunctionText):
    """The body of a function on elements of one type.

    Parameters
    ----------
    dtype : DType
        Type of the elements.
    machine : Machine
        For which it is written.
    """

    def __init__(self, dtype: ir.DType, machine: Machine) -> None:
        super().__init__(ModuleText())
        self.dtype = dtype
        self.machine = machine
        self.item_bytes = dtype.itemsize
        self.lanes = machine.vector_bytes // dtype.itemsize
        self.element = str(ValueType(dtype))
        # Adding to -0.0 changes nothing, so a sum begins with its first term, sign included.
        self.start_literal = literal(dtype, -0.0) if dtype.is_float else "0"

    def function(self, header: str) -> str:
        """The text of the function; the body must have ended with a return."""
        return "\n".join([f"{header} {{", "entry:", *self.lines, "}"])

    # -- control -----------------------------------------------------------------------------------

    @contextmanager
    def loop(
        self, start: object, end: object, step: object, *carried: tuple[str, str]
    ) -> Iterator[Loop]:
        """A loop while the counter is less than `end`; `carried` are types and first values."""
        head, body, done = self.new_labels("head", "body", "done")
        before = self.block
        self.jump(head)
        self.start(head)
        place = len(self.lines)
        loop = Loop(self.new_value(), [self.new_value() for _ in carried])
        following = self.new_value()
        self.branch(self.value(f"icmp slt i64 {loop.index}, {end}"), body, done)
        self.start(body)
        last_values = list(loop.values)
        yield loop
        self.write(f"{following} = add nsw i64 {loop.index}, {step}")
        latch = self.block
        self.jump(head)
        phis = [f"  {loop.index} = phi i64 [ {start}, %{before} ], [ {following}, %{latch} ]"]
        for (kind, first), name, next_value in zip(
            carried, last_values, loop.following, strict=True
        ):
            phis.append(f"  {name} = phi {kind} [ {first}, %{before} ], [ {next_value}, %{latch} ]")
        self.lines[place:place] = phis
        loop.values = last_values
        self.start(done)

    @contextmanager
    def repeated(self, count: int) -> Iterator[int | str]:
        """What runs so many times; gives the number of the round."""
        if count == 1:
            yield 0
            return
        with self.loop(0, count, 1) as loop:
            yield loop.index

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """What runs only if a condition holds."""
        then, after = self.new_labels("then", "after")
        self.branch(condition, then, after)
        self.start(then)
        yield
        self.jump(after)
        self.start(after)

    # -- integers and addresses --------------------------------------------------------------------

    def add(self, a: int | str, b: int | str) -> int | str:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return self.value(f"add i64 {a}, {b}")

    def subtract(self, a: object, b: object) -> str:
        return self.value(f"sub i64 {a}, {b}")

    def multiply(self, a: int | str, b: int | str) -> int | str:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        return self.value(f"mul i64 {a}, {b}")

    def smaller(self, a: object, b: object) -> str:
        return self.value(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")

    def is_equal(self, a: object, b: object) -> str:
        return self.value(f"icmp eq i64 {a}, {b}")

    def at(self, pointer: str, offset_bytes: object) -> str:
        """The address some bytes further on."""
        if offset_bytes == 0:
            return pointer
        return self.value(f"getelementptr i8, ptr {pointer}, i64 {offset_bytes}")

    # -- elements ----------------------------------------------------------------------------------

    def load_element(self, pointer: str) -> str:
        return self.value(f"load {self.element}, ptr {pointer}, align 1")

    def store_element(self, value: str, pointer: str) -> None:
        self.write(f"store {self.element} {value}, ptr {pointer}, align 1")

    def prefetch(self, pointer: str) -> None:
        """Ask for what will be read; the address may be anything."""
        self.write(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 3, i32 1)")

    # -- vectors -----------------------------------------------------------------------------------

    def vector(self, count: int) -> ValueType:
        return ValueType(self.dtype, count)

    def start_vector(self, count: int) -> str:
        """Sums before their first term."""
        if count == 1:
            return self.start_literal
        return f"splat ({self.element} {self.start_literal})"

    def load(self, pointer: str, lanes: Lanes, missing: str = "zeroinitializer") -> str:
        """Read neighbouring elements; lanes that are not used are `missing`."""
        kind = self.vector(lanes.count)
        if lanes.used == lanes.count:
            return self.value(f"load {kind}, ptr {pointer}, align 1")
        return self.load_where(pointer, lanes.count, first_lanes(lanes), missing)

    def load_where(
        self, pointer: str, count: int, mask: str, missing: str = "zeroinitializer"
    ) -> str:
        kind = self.vector(count)
        name = f"llvm.masked.load.{kind.suffix}.p0"
        arguments = f"ptr {pointer}, i32 1, <{count} x i1> {mask}, {kind} {missing}"
        return self.value(f"call {kind} @{name}({arguments})")

    def store(self, value: str, pointer: str, lanes: Lanes) -> None:
        """Write neighbouring elements, those of the lanes that are used."""
        kind = self.vector(lanes.count)
        if lanes.used == lanes.count:
            self.write(f"store {kind} {value}, ptr {pointer}, align 1")
            return
        self.store_where(value, pointer, lanes.count, first_lanes(lanes))

    def store_where(self, value: str, pointer: str, count: int, mask: str) -> None:
        kind = self.vector(count)
        name = f"llvm.masked.store.{kind.suffix}.p0"
        arguments = f"{kind} {value}, ptr {pointer}, i32 1, <{count} x i1> {mask}"
        self.write(f"call void @{name}({arguments})")

    def mask_of_first(self, used: str, count: int) -> str:
        """The mask of so many lanes from the first, known when it runs."""
        name = f"llvm.get.active.lane.mask.v{count}i1.i64"
        limited = self.value(f"call i64 @llvm.smax.i64(i64 {used}, i64 0)")
        return self.value(f"call <{count} x i1> @{name}(i64 0, i64 {limited})")

    def splat(self, element: str, count: int) -> str:
        """The same number in every lane."""
        kind = self.vector(count)
        if count == 1:
            return element
        first = self.value(f"insertelement {kind} poison, {self.element} {element}, i64 0")
        lanes = f"<{count} x i32> zeroinitializer"
        return self.value(f"shufflevector {kind} {first}, {kind} poison, {lanes}")

    def shuffled(self, a: str, b: str, count: int, lanes: Iterable[int]) -> str:
        """Chosen lanes of two vectors of `count` lanes each, which are numbered through."""
        kind, chosen = self.vector(count), [f"i32 {lane}" for lane in lanes]
        mask = f"<{len(chosen)} x i32> <{', '.join(chosen)}>"
        return self.value(f"shufflevector {kind} {a}, {kind} {b}, {mask}")

    def sum(self, a: str, b: str, count: int) -> str:
        operation = "fadd" if self.dtype.is_float else "add"
        return self.value(f"{operation} {self.vector(count)} {a}, {b}")

    def multiply_add(self, a: str, b: str, c: str, count: int) -> str:
        """``a * b + c``, fused where the machine can; integers wrap."""
        kind = self.vector(count)
        if self.dtype.is_float and self.machine.is_fused:
            name = f"llvm.fma.{kind.suffix}"
            return self.value(f"call {kind} @{name}({kind} {a}, {kind} {b}, {kind} {c})")
        operation = "fmul" if self.dtype.is_float else "mul"
        return self.sum(self.value(f"{operation} {kind} {a}, {b}"), c, count)


def first_lanes(lanes: Lanes) -> str:
    """A constant mask."""
    bits = ["i1 true"] * lanes.used + ["i1 false"] * (lanes.count - lanes.used)
    return f"<{', '.join(bits)}>"


def power_of_two(count: int) -> int:
    """The least power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()
