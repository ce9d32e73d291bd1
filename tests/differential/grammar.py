"""A typed grammar of expressions and statements of the kernel language.

`Grammar` draws source text that is right by construction: every expression is of the kind that was
asked for, indices are in range, loops end, and Python numbers fit what they meet. Text is drawn
with hypothesis, so that it shrinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from hypothesis import strategies as st

from .kinds import (
    ARITHMETIC,
    BITS,
    COMPARISONS,
    DIVISION,
    FLOATS,
    INTEGERS,
    SHIFTS,
    STRONG,
    WEAK,
    converts_by_itself,
    limits,
    promoted,
    result_kind,
)

Draw = Callable[[st.SearchStrategy[Any]], Any]
T = TypeVar("T")

LONGEST = 2000
"""No generated array is longer; the bound of lengths and range variables."""
_LARGEST_WEAK = 2**40

UNARY_MATH = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "cbrt", "sin", "cos", "tan"),
    *("asin", "acos", "atan", "sinh", "cosh", "tanh", "erf"),
)
BINARY_MATH = ("pow", "atan2", "hypot")


@dataclass(frozen=True)
class Features:
    """What generated kernels may contain: math functions, vectors, many dispatches, arrays."""

    math: bool = False
    vectors: bool = False
    dispatches: bool = False
    local_arrays: bool = True
    kinds: tuple[str, ...] = STRONG
    """Of the lines and grids."""


@dataclass(frozen=True)
class Expression:
    """Source text and its kind; for a weak int also the smallest and the largest value."""

    text: str
    kind: str
    low: int = 0
    high: int = 0

    def fits(self, kind: str) -> bool:
        if self.kind != "int" or kind not in INTEGERS:
            return True
        smallest, largest = limits(kind)
        return smallest <= self.low and self.high <= largest


@dataclass(frozen=True)
class Array:
    """An array in scope.

    `space` says which indices are in range: those that the scope lists under this name, or, where
    `length` is set, anything reduced to ``0 .. length - 1``, on each of `rank` axes.
    """

    name: str
    kind: str
    space: str = ""
    length: str = ""
    rank: int = 1
    is_written: bool = False


@dataclass(frozen=True)
class Helper:
    """A function that the kernel calls; `table` is the array that it is given last, if any."""

    name: str
    parameters: tuple[str, ...]
    result: str
    table: str = ""


@dataclass
class Scope:
    """What the next expression may use."""

    variables: dict[str, Expression] = field(default_factory=dict)
    constants: list[Expression] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)
    positions: dict[str, list[str]] = field(default_factory=dict)
    vectors: dict[str, str] = field(default_factory=dict)


class Grammar:
    """Draws expressions and statements for the current scope."""

    def __init__(self, draw: Draw, features: Features, scope: Scope) -> None:
        self.draw = draw
        self.features = features
        self.scope = scope
        self.helpers: list[Helper] = []
        self.names = 0

    def pick(self, options: Sequence[T]) -> T:
        chosen: T = self.draw(st.sampled_from(options))
        return chosen

    def number(self, low: int, high: int) -> int:
        drawn: int = self.draw(st.integers(low, high))
        return drawn

    def fresh(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    # -- strong values ---------------------------------------------------------------------------

    def value(self, kind: str, depth: int) -> str:
        """An expression of exactly this strong kind."""
        if depth <= 0 or not self.number(0, 7):
            return self.leaf(kind)
        productions: list[Callable[[str, int], str]] = [self.element, self.closed, self.closed]
        productions += [self.mixed, self.chosen, self.called]
        productions.append(self.truth_value if kind == "bool_" else self.unary)
        if kind in FLOATS:
            productions.append(self.float_function)
            if self.features.math:
                productions += [self.math_function, self.math_function]
            if kind in self.scope.vectors.values():
                productions.append(self.vector_component)
        return self.pick(productions)(kind, depth - 1)

    def leaf(self, kind: str) -> str:
        """A local, a parameter or an element, cast where it is of another kind; or a literal."""
        if self.number(0, 7) == 7:
            return self.literal(kind)
        options = list(self.known(kind))
        if options and self.number(0, 7):
            return self.pick(options)
        others = [text for other in STRONG if other != kind for text in self.known(other)]
        return f"{kind}({self.pick(others)})" if others else self.literal(kind)

    def known(self, kind: str) -> Iterator[str]:
        """What is in scope of one kind."""
        for expression in (*self.scope.variables.values(), *self.scope.constants):
            if expression.kind == kind:
                yield expression.text
        for array in self.scope.arrays:
            if array.kind != kind:
                continue
            if array.length:
                yield f"{array.name}[{', '.join(['0'] * array.rank)}]"
            for position in self.scope.positions.get(array.space, ()):
                yield f"{array.name}[{position}]"

    def literal(self, kind: str) -> str:
        if kind == "bool_":
            return f"bool_({self.pick((0, 1))})"
        if kind in FLOATS:
            number = self.pick(
                ("0.5", "-0.0", "1", "-2.5", "0.1", "3e10", "1e-30", "tm.inf", "tm.nan")
            )
            return f"{kind}({number})"
        smallest, largest = limits(kind)
        return f"{kind}({self.pick((0, 1, 2, 3, 7, largest, smallest, largest - 1))})"

    def element(self, kind: str, depth: int) -> str:
        """An element at an index that is computed."""
        arrays = [array for array in self.scope.arrays if array.kind == kind]
        places = [place for array in arrays if (place := self.place(array, depth))]
        return self.pick(places) if places else self.closed(kind, depth)

    def place(self, array: Array, depth: int) -> str:
        """An array with an index that is in range, or nothing where there is none."""
        if array.length:
            axes = [self.reduced(array.length, depth) for _ in range(array.rank)]
            return f"{array.name}[{', '.join(axes)}]"
        positions = self.scope.positions.get(array.space)
        return f"{array.name}[{self.pick(positions)}]" if positions else ""

    def reduced(self, length: str, depth: int) -> str:
        """An index into an axis of `length` elements, of which there are 1 to 9."""
        form = self.pick(("constant", "weak", "modulo", "modulo", "negative", "index"))
        if form == "constant":
            return self.pick(("0", "-1"))
        if form == "weak":
            return f"{self.weak_int(depth).text} % {length}"
        integer = self.value(self.pick(INTEGERS), depth)
        if form == "index":
            return f"tm.index({self.value(self.pick(STRONG), depth)}, {length})"
        if form == "negative":
            return f"i64({integer}) % {length} - {length}"
        return f"{integer} % {length}"

    def operand(self, kind: str, depth: int) -> str:
        """An expression that leaves the result of arithmetic with `kind` at `kind`."""
        if kind != "bool_" and self.number(0, 3) == 3:
            if kind in FLOATS and self.number(0, 1):
                return self.weak_float(depth)
            return self.fitting(kind, depth)
        narrower = [k for k in STRONG if promoted(k, kind) == kind]
        return self.value(self.pick((kind, kind, *narrower)), depth)

    def fitting(self, kind: str, depth: int) -> str:
        """A Python int that fits `kind`."""
        weak = self.weak_int(depth)
        return weak.text if weak.fits(kind) else str(self.number(0, 100))

    def closed(self, kind: str, depth: int) -> str:
        """A binary operation within one kind."""
        operators = {"bool_": ("+", "*", *BITS), "f32": (*ARITHMETIC, *DIVISION)}
        operators["f64"] = operators["f32"]
        integer = (*ARITHMETIC, "//", "%", *BITS, *SHIFTS, "**")
        operator = self.pick(operators.get(kind, integer))
        if operator == "**":
            return f"({self.value(kind, depth)} ** ({self.value(kind, depth)} & 3))"
        sides = [self.value(kind, depth), self.operand(kind, depth)]
        if operator not in SHIFTS and self.number(0, 1):
            sides.reverse()
        return f"({sides[0]} {operator} {sides[1]})"

    def mixed(self, kind: str, depth: int) -> str:
        """An operation between any two kinds, cast where its result is of another kind."""
        operator = self.pick((*ARITHMETIC, *DIVISION, *BITS, *SHIFTS))
        first, second = self.anything(depth), self.anything(depth)
        both_weak = first.kind not in STRONG and second.kind not in STRONG
        shared = promoted(first.kind, second.kind)
        result = result_kind(operator, first.kind, second.kind)
        fit = all(side.fits(shared) for side in (first, second))
        if result is None or both_weak or not fit:
            return self.cast(kind, first.text, first.kind, first.fits(kind), depth)
        text = f"({first.text} {operator} {second.text})"
        return text if result == kind else self.cast(kind, text, result, True, depth)

    def cast(self, kind: str, text: str, source: str, fits: bool, depth: int) -> str:
        if not fits:
            return self.value(kind, depth)
        if source in INTEGERS and self.number(0, 3) == 3:
            return f"{text}.astype({kind})"
        return f"{kind}({text})"

    def anything(self, depth: int) -> Expression:
        kind = self.pick((*STRONG, "int", "float"))
        if kind == "int":
            return self.weak_int(depth)
        if kind == "float":
            return Expression(self.weak_float(depth), "float")
        return Expression(self.value(kind, depth), kind)

    def chosen(self, kind: str, depth: int) -> str:
        """One of several values."""
        a, b = self.value(kind, depth), self.value(kind, depth)
        forms = ["conditional", "joined", "select", "minmax", "dispatch", "logic"]
        if kind != "bool_":
            forms += ["minimum", "clip"]
        if self.features.dispatches:
            forms += ["dispatch"] * 4
        match self.pick(forms):
            case "conditional":
                return f"({a} if {self.truth(depth)} else {b})"
            case "joined":
                other = self.anything(depth)
                joined = promoted(kind, other.kind)
                if not other.fits(joined):
                    return a
                return f"{kind}({joined}({a} if {self.truth(depth)} else {other.text}))"
            case "select":
                return f"tm.select({self.truth(depth)}, {a}, {self.weak_or(kind, b, depth)})"
            case "minmax":
                return f"{self.pick(('min', 'max'))}({a}, {b})"
            case "minimum":
                name = self.pick(("minimum", "maximum"))
                return f"tm.{name}({a}, {self.weak_or(kind, b, depth)})"
            case "clip":
                return f"tm.clip({a}, {b}, {self.weak_or(kind, a, depth)})"
            case "logic":
                return f"({a} {self.pick(('and', 'or'))} {b})"
            case _:
                return self.dispatch(kind, a, b, depth)

    def weak_or(self, kind: str, value: str, depth: int) -> str:
        """`value`, or a Python number that may take its place."""
        if kind == "bool_" or self.number(0, 3):
            return value
        return self.weak_float(depth) if kind in FLOATS else self.fitting(kind, depth)

    def dispatch(self, kind: str, a: str, b: str, depth: int) -> str:
        selector = self.value(self.pick(INTEGERS), depth)
        if self.number(0, 1):
            selector = f"({selector} & 3)"
        branches = [a, self.weak_or(kind, b, depth)]
        branches += [self.value(kind, depth) for _ in range(self.number(0, 2))]
        return f"tm.dispatch({selector}, [{', '.join(branches)}], policy=POLICY)"

    def unary(self, kind: str, depth: int) -> str:
        value = self.value(kind, depth)
        forms = [f"(-{value})", f"(+{value})", f"abs({value})", f"tm.sign({value})"]
        if kind in INTEGERS:
            forms += [
                f"(~{value})",
                f"tm.{self.pick(('floor', 'ceil', 'round', 'trunc'))}({value})",
            ]
        return self.pick(forms)

    def called(self, kind: str, depth: int) -> str:
        """A call of a helper, a cast, or a Python float made strong again."""
        helpers = [helper for helper in self.helpers if helper.result == kind]
        if helpers and self.number(0, 2):
            helper = self.pick(helpers)
            arguments = [self.value(k, depth) for k in helper.parameters]
            arguments += [helper.table] if helper.table else []
            return f"{helper.name}({', '.join(arguments)})"
        source = self.pick(STRONG)
        return f"{kind}({self.value(source, depth)})"

    def float_function(self, kind: str, depth: int) -> str:
        name = self.pick(
            ("sqrt", "rsqrt", "floor", "ceil", "round", "trunc", "copysign", "fma", "small")
        )
        x = self.value(kind, depth)
        if name == "copysign":
            # The sign of a NaN that was computed is not defined: it comes from an integer.
            return f"tm.copysign({x}, {kind}({self.value(self.pick(INTEGERS), depth)}))"
        if name == "fma":
            return f"tm.fma({x}, {self.value(kind, depth)}, {self.operand(kind, depth)})"
        if name == "small":
            source = self.pick(("i8", "u8", "i16", "u16", "bool_"))
            value = self.value(source, depth)
            return f"tm.sqrt({value})" if kind == "f32" else f"f64(tm.sqrt({value}))"
        return f"tm.{name}({x})"

    def math_function(self, kind: str, depth: int) -> str:
        """A function of which backends give different bits."""
        if self.number(0, 2) == 2:
            name = self.pick((*BINARY_MATH, "power"))
            x, y = self.value(kind, depth), self.operand(kind, depth)
            return f"({x} ** {y})" if name == "power" else f"tm.{name}({x}, {y})"
        return f"tm.{self.pick(UNARY_MATH)}({self.value(kind, depth)})"

    # -- truths ----------------------------------------------------------------------------------

    def truth_value(self, kind: str, depth: int) -> str:
        """A bool as a value: what Python gives as its own bool is cast."""
        assert kind == "bool_"
        match self.pick(("compare", "isnan", "not", "cast")):
            case "compare":
                return self.comparison(depth)
            case "isnan":
                name = self.pick(("isnan", "isinf"))
                return f"tm.{name}({self.value(self.pick(FLOATS), depth)})"
            case "not":
                return f"(~{self.value('bool_', depth)})"
            case _:
                return f"bool_({self.truth(depth)})"

    def comparison(self, depth: int) -> str:
        """A comparison of at least one strong number."""
        first = Expression(self.value(kind := self.pick(STRONG), depth), kind)
        second = self.anything(depth)
        sides = [first.text, second.text]
        if self.number(0, 1):
            sides.reverse()
        return f"({sides[0]} {self.pick(COMPARISONS)} {sides[1]})"

    def truth(self, depth: int) -> str:
        """What stands where Python asks whether something holds."""
        form = self.pick(("compare", "compare", "chain", "weak", "and", "or", "not", "number"))
        if depth <= 0 and form in ("and", "or", "not", "chain"):
            form = "compare"
        match form:
            case "compare":
                return self.comparison(depth - 1)
            case "chain":
                middle = self.value(self.pick(STRONG), depth - 1)
                ends = [self.anything(depth - 1).text for _ in range(2)]
                first, second = self.pick(COMPARISONS), self.pick(COMPARISONS)
                return f"({ends[0]} {first} {middle} {second} {ends[1]})"
            case "weak":
                sides = [self.weak_int(depth - 1).text for _ in range(2)]
                return f"({sides[0]} {self.pick(COMPARISONS)} {sides[1]})"
            case "and" | "or":
                return f"({self.truth(depth - 1)} {form} {self.truth(depth - 1)})"
            case "not":
                return f"(not {self.truth(depth - 1)})"
            case _:
                return self.value(self.pick(STRONG), depth - 1)

    # -- Python numbers --------------------------------------------------------------------------

    def weak_int(self, depth: int) -> Expression:
        """A Python int, with the range of its values."""
        known = [*self.scope.variables.values(), *self.scope.constants]
        leaves = [e for e in known if e.kind == "int"]
        if depth <= 0 or not self.number(0, 2):
            if leaves and self.number(0, 2):
                return self.pick(leaves)
            literal = self.number(0, 9)
            return Expression(str(literal), "int", literal, literal)
        if self.number(0, 4) == 4:
            kind = self.pick(("i8", "u8"))
            return Expression(f"int({self.value(kind, depth - 1)})", "int", *limits(kind))
        a, b = self.weak_int(depth - 1), self.weak_int(depth - 1)
        match self.pick(("+", "-", "*", "//", "%", "neg", "if", "max")):
            case "+" as operator:
                result = _bounded(f"({a.text} + {b.text})", (a.low + b.low, a.high + b.high))
            case "-" as operator:
                result = _bounded(f"({a.text} - {b.text})", (a.low - b.high, a.high - b.low))
            case "*" as operator:
                corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
                result = _bounded(f"({a.text} * {b.text})", corners)
            case "//" | "%" as operator:
                divisor = self.pick((1, 2, 3, 7, 100))
                corners = [a.low // divisor, a.high // divisor]
                bounds = corners if operator == "//" else [0, divisor - 1]
                result = _bounded(f"({a.text} {operator} {divisor})", bounds)
            case "neg":
                result = _bounded(f"(-{a.text})", (-a.low, -a.high))
            case "if":
                text = f"({a.text} if {self.truth(depth - 1)} else {b.text})"
                result = _bounded(text, (a.low, a.high, b.low, b.high))
            case _:
                text = f"{self.pick(('min', 'max'))}({a.text}, {b.text})"
                result = _bounded(text, (a.low, a.high, b.low, b.high))
        return result if max(abs(result.low), abs(result.high)) <= _LARGEST_WEAK else a

    def weak_float(self, depth: int) -> str:
        """A Python float."""
        known = [*self.scope.variables.values(), *self.scope.constants]
        leaves = [e.text for e in known if e.kind == "float"]
        if depth <= 0 or not self.number(0, 2):
            if leaves and self.number(0, 2):
                return self.pick(leaves)
            return self.pick(("0.5", "2.0", "-1.5", "0.1", "1e-3", "3.25e10", "-0.0"))
        match self.pick(("+", "-", "*", "/", "float", "scaled", "if")):
            case "/":
                return f"({self.weak_int(depth - 1).text} / {self.pick((2, 3, 0.7))})"
            case "float":
                return f"float({self.value(self.pick(STRONG), depth - 1)})"
            case "scaled":
                return f"({self.weak_int(depth - 1).text} * {self.weak_float(depth - 1)})"
            case "if":
                a, b = self.weak_float(depth - 1), self.weak_float(depth - 1)
                return f"({a} if {self.truth(depth - 1)} else {b})"
            case operator:
                return f"({self.weak_float(depth - 1)} {operator} {self.weak_float(depth - 1)})"

    # -- vectors ---------------------------------------------------------------------------------

    def vector(self, kind: str, depth: int) -> str:
        """A vector of width 3."""
        known = [name for name, held in self.scope.vectors.items() if held == kind]
        if depth <= 0 or not self.number(0, 2):
            if known and self.number(0, 2):
                return f"({self.pick(known)} * {self.operand(kind, 0)})"
            return f"tm.vector({', '.join(self.value(kind, depth - 1) for _ in range(3))})"
        if self.number(0, 3) == 3:
            return f"tm.cross({self.vector(kind, depth - 1)}, {self.vector(kind, depth - 1)})"
        other = self.vector(kind, depth - 1) if self.number(0, 1) else self.operand(kind, depth - 1)
        return f"({self.vector(kind, depth - 1)} {self.pick((*ARITHMETIC, '/'))} {other})"

    def vector_component(self, kind: str, depth: int) -> str:
        vector = self.vector(kind, min(depth, 1))
        match self.pick(("item", "sum", "dot", "norm")):
            case "item":
                return f"{vector}[{self.number(-3, 2)}]"
            case "dot":
                return f"tm.dot({vector}, {self.vector(kind, 0)})"
            case name:
                return f"tm.{name}({vector})"

    # -- statements ------------------------------------------------------------------------------

    @contextmanager
    def nested(self, **positions: list[str]) -> Iterator[None]:
        """A block of its own: what is first assigned in it ends with it."""
        outer = self.scope
        self.scope = replace(
            outer,
            variables=dict(outer.variables),
            arrays=list(outer.arrays),
            positions={**outer.positions, **positions},
            vectors=dict(outer.vectors),
        )
        try:
            yield
        finally:
            self.scope = outer

    def block(self, depth: int, *, in_loop: bool = False) -> list[str]:
        """One to three statements."""
        lines: list[str] = []
        for _ in range(self.number(1, 3)):
            lines += self.statement(depth, in_loop)
        return lines

    def statement(self, depth: int, in_loop: bool) -> list[str]:
        forms = ["declaration", "declaration", "assignment", "assignment", "store"]
        if depth > 0:
            forms += ["branches", "branches", "loop", "swap"]
            forms += ["local_array"] * self.features.local_arrays
        if self.features.vectors:
            forms.append("vector_statement")
        match self.pick(forms):
            case "branches":
                return self.branches(depth - 1, in_loop)
            case "loop":
                return self.loop(depth - 1)
            case form:
                lines: list[str] = getattr(self, form)()
                return lines

    def declaration(self) -> list[str]:
        """A new local."""
        kind = self.pick((*STRONG, "int", "float"))
        name = self.fresh("v")
        if kind == "int":
            start = self.number(0, 9)
            self.scope.variables[name] = Expression(name, "int", 0, 9)
            return [f"{name} = {start}"]
        text = self.weak_float(1) if kind == "float" else self.value(kind, 2)
        self.scope.variables[name] = Expression(name, kind)
        return [f"{name} = {text}"]

    def assignment(self) -> list[str]:
        """A local gets a new value of its kind."""
        names = [name for name in self.scope.variables if name.startswith("v")]
        if not names:
            return self.declaration()
        name = self.pick(names)
        kind = self.scope.variables[name].kind
        if kind == "int":
            return [f"{name} = {self.weak_int(2).text} % 10"]
        if kind == "float":
            return [f"{name} = {self.weak_float(2)}"]
        if kind != "bool_" and self.number(0, 1):
            operator = self.pick(("+", "-", "*", "//", "%") if kind in INTEGERS else ARITHMETIC)
            return [f"{name} {operator}= {self.operand(kind, 2)}"]
        return [f"{name} = {self.value(kind, 3)}"]

    def swap(self) -> list[str]:
        """Two locals of one kind trade places, or two are declared at once."""
        names = [name for name in self.scope.variables if name.startswith("v")]
        kinds = {name: self.scope.variables[name].kind for name in names}
        pairs = [(a, b) for a in names for b in names if a < b and kinds[a] == kinds[b]]
        if not pairs:
            return self.assignment()
        first, second = self.pick(pairs)
        kind = kinds[first]
        other = first if kind in WEAK else self.value(kind, 2)
        return [f"{first}, {second} = {second}, {other}"]

    def store(self) -> list[str]:
        """An element of an array gets a value that converts by itself."""
        places = [
            (array, place)
            for array in self.scope.arrays
            if array.is_written and (place := self.place(array, 1))
        ]
        if not places:
            return self.assignment()
        array, place = self.pick(places)
        value = self.anything(3)
        if self.number(0, 3) == 3:
            operator = self.pick(("+", "*", "-", "|"))
            result = result_kind(operator, array.kind, value.kind)
            if result and converts_by_itself(result, array.kind) and value.fits(result):
                return [f"{place} {operator}= {value.text}"]
        if converts_by_itself(value.kind, array.kind) and value.fits(array.kind):
            return [f"{place} = {value.text}"]
        return [f"{place} = {self.value(array.kind, 3)}"]

    def vector_statement(self) -> list[str]:
        known = sorted(self.scope.vectors)
        if known and self.number(0, 2) == 2:
            name = self.pick(known)
            return [f"{name}[{self.number(-3, 2)}] = {self.value(self.scope.vectors[name], 2)}"]
        kind = self.pick(FLOATS)
        known = [name for name in known if self.scope.vectors[name] == kind]
        name = self.pick(known) if known and self.number(0, 1) else self.fresh("w")
        text = self.vector(kind, 2)
        self.scope.vectors[name] = kind
        return [f"{name} = {text}"]

    def local_array(self) -> list[str]:
        kind, length = self.pick(STRONG), self.number(1, 5)
        rank = self.number(1, 2)
        name = self.fresh("t")
        self.scope.arrays.append(Array(name, kind, "", str(length), rank, is_written=True))
        shape = str(length) if rank == 1 else f"({length}, {length})"
        return [f"{name} = tm.zeros({shape}, {kind})"]

    def branches(self, depth: int, in_loop: bool) -> list[str]:
        lines = [f"if {self.truth(2)}:", *self.indented(depth, in_loop)]
        if self.number(0, 2) == 2:
            lines += [f"elif {self.truth(1)}:", *self.indented(depth, in_loop)]
        if self.number(0, 1):
            lines += ["else:", *self.indented(depth, in_loop)]
        return lines

    def indented(self, depth: int, in_loop: bool) -> list[str]:
        with self.nested():
            lines = self.block(depth, in_loop=in_loop)
        if in_loop and self.number(0, 3) == 3:
            lines.append(self.pick(("break", "continue")))
        return ["    " + line for line in lines]

    def loop(self, depth: int) -> list[str]:
        """A short loop of any kind."""
        form = self.pick((self.for_loop, self.for_loop, self.while_loop, self.unrolled))
        return form(depth)

    def for_loop(self, depth: int) -> list[str]:
        """A loop over a range."""
        name = self.fresh("j")
        header, low, high = self.short_range()
        with self.nested():
            self.scope.variables[name] = Expression(name, "int", low, high)
            body = self.block(depth, in_loop=True)
            if self.number(0, 4) == 4:
                body += [f"if {self.truth(1)}:", f"    {self.pick(('break', 'continue'))}"]
        return [f"for {name} in {header}:", *("    " + line for line in body)]

    def unrolled(self, depth: int) -> list[str]:
        """A loop over numbers and expressions of one kind, which kernels unroll."""
        name, kind = self.fresh("e"), self.pick(STRONG)
        items = [self.value(kind, 1) for _ in range(self.number(1, 3))]
        with self.nested():
            self.scope.variables[name] = Expression(name, kind)
            body = self.block(depth)
        return [f"for {name} in ({', '.join(items)},):", *("    " + line for line in body)]

    def short_range(self) -> tuple[str, int, int]:
        """A range of at most six numbers, and between which they lie."""
        match self.pick(("count", "fixed", "down", "steps", "either", "typed", "empty")):
            case "count":
                return f"range({self.weak_int(1).text} % 4)", 0, 3
            case "fixed":
                return f"range({self.number(0, 3)}, {self.number(2, 5)})", 0, 5
            case "down":
                return f"range({self.number(2, 5)}, -1, -{self.number(1, 2)})", 0, 5
            case "steps":
                return f"range(-3, {self.weak_int(1).text} % 7, {self.number(1, 3)})", -3, 6
            case "either":
                return f"range(0, 3, {self.weak_int(1).text} % 2 * 2 - 1)", 0, 2
            case "typed":
                return f"range({self.value(self.pick(INTEGERS), 1)} & 3)", 0, 3
            case _:
                return f"range(3, {self.number(0, 3)})", 3, 3

    def while_loop(self, depth: int) -> list[str]:
        """A loop with a counter, which is raised first so that `continue` cannot skip it."""
        name = self.fresh("k")
        condition = f"{name} < {self.number(0, 4)}"
        if self.number(0, 1):
            condition += f" and {self.truth(1)}"
        self.scope.variables[name] = Expression(name, "int", 0, 4)
        with self.nested():
            body = [f"{name} = {name} + 1", *self.block(depth, in_loop=True)]
        return [f"{name} = 0", f"while {condition}:", *("    " + line for line in body)]


def _bounded(text: str, bounds: Sequence[int]) -> Expression:
    return Expression(text, "int", min(bounds), max(bounds))
