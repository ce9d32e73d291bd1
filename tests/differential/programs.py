"""Whole kernels as source text, in both forms, and what they take.

``LOOP(...)`` stands around the range of every top-level loop: `Program.render` leaves it away or
makes it ``tn.serial``. ``POLICY`` is a free name of the kernel, the policy of every dispatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from hypothesis import strategies as st

from .grammar import LONGEST, Array, Draw, Expression, Features, Grammar, Helper, Scope
from .kinds import FLOATS, INTEGERS, STRONG

Role = Literal["line", "grid", "table", "total", "plane", "vector", "mask", "param"]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a generated kernel.

    `role` says which shape its array has: (n,), (rows, columns), (1 to 9,), (3,), (n,), (3, n),
    (n,); a param is one number of `kind`, which may be weak.
    """

    name: str
    role: Role
    kind: str
    annotation: str
    is_output: bool = False


@dataclass(frozen=True)
class Program:
    """A generated kernel: a function called ``generated`` and the helpers before it."""

    form: Literal["array", "sample"]
    source: str = field(repr=False)  # shown as it is by a note
    parameters: tuple[Parameter, ...]
    outputs: tuple[str, ...] = ()
    in_plain_python: str = field(default="", repr=False)
    """The source for plain Python, where it is another one."""

    def render(self, *, loops: str = "") -> str:
        return self.source.replace("LOOP(", f"{loops}(")

    def plain(self) -> str:
        """The source for plain Python; one sample of the per-sample form returns its outputs."""
        if self.in_plain_python:
            return self.in_plain_python
        if self.form == "array":
            return self.render()
        return f"{self.source}    return {', '.join(self.outputs)},\n"


@st.composite
def array_programs(draw: Draw, features: Features | None = None) -> Program:
    """Kernels of the array form: loops over lines and grids, and scalars between them."""
    grammar = Grammar(draw, features or Features(), Scope())
    parameters = _params(grammar) + _tables(grammar)
    for role, rank in (("line", 1), ("grid", 2)):
        inputs = grammar.number(1, 3) if role == "line" else grammar.number(0, 1)
        outputs = grammar.number(1, 2) if role == "line" else grammar.number(0, 1)
        for number in range(inputs + outputs):
            is_output = number >= inputs
            name = f"{role}_{'out' if is_output else 'in'}{number}"
            kind = grammar.pick(grammar.features.kinds)
            annotation = f"NDArray[{kind}, {rank}]"
            parameters.append(Parameter(name, role, kind, annotation, is_output))  # type: ignore[arg-type]
            grammar.scope.arrays.append(Array(name, kind, role, rank=rank, is_written=is_output))
    kind = grammar.pick(STRONG)
    parameters.append(Parameter("total", "total", kind, f"NDArray[{kind}, 1]", is_output=True))
    grammar.scope.arrays.append(Array("total", kind, "", "3", is_written=True))
    helpers = _helpers(grammar)
    lines = _top_level(grammar, parameters)
    header = ", ".join(f"{p.name}: {p.annotation}" for p in parameters)
    body = [f"def generated({header}) -> None:", *("    " + line for line in lines)]
    return Program("array", _text([*helpers, "@kernel", *body]), tuple(parameters))


@st.composite
def sample_programs(draw: Draw, features: Features | None = None) -> Program:
    """Kernels of the per-sample form."""
    features = features or Features()
    grammar = Grammar(draw, features, Scope())
    width = grammar.pick(FLOATS)
    parameters = _params(grammar) + _tables(grammar)
    for number in range(grammar.number(1, 3)):
        parameters.append(_plane(grammar, f"x{number}", width))
    if features.vectors:
        name, kind = "u", width
        parameters.append(Parameter(name, "vector", kind, "Vector[3]"))
        grammar.scope.vectors[name] = kind
    for parameter in parameters:
        if parameter.role == "plane":
            grammar.scope.constants.append(Expression(parameter.name, parameter.kind))
    helpers = _helpers(grammar)
    outputs = []
    for number in range(grammar.number(1, 3)):
        plane = _plane(grammar, f"y{number}", width)
        output = Parameter(plane.name, "plane", plane.kind, f"Mutable[{plane.annotation}]", True)
        outputs.append(output)
        if grammar.number(0, 1):  # read before it is written
            grammar.scope.constants.append(Expression(output.name, output.kind))
    masked = grammar.number(0, 3) == 3
    lines = grammar.block(2)
    lines += [f"{output.name} = {grammar.value(output.kind, 3)}" for output in outputs]
    if masked:
        outputs.append(Parameter("done", "mask", "bool_", "Terminated", True))
        lines.append(f"done = {grammar.value('bool_', 2)}")
    parameters += outputs
    header = ", ".join(f"{p.name}: {p.annotation}" for p in parameters)
    body = [f"def generated({header}):", *("    " + line for line in lines)]
    names = tuple(output.name for output in outputs)
    return Program("sample", _text([*helpers, "@kernel", *body]), tuple(parameters), names)


@st.composite
def reduction_programs(draw: Draw) -> Program:
    """Kernels of reductions; plain Python collects what floats add, and adds it in their order."""
    grammar = Grammar(draw, Features(), Scope())
    parameters = _params(grammar) + _tables(grammar)
    for role, rank in (("line", 1), ("line", 1), ("grid", 2)):
        name, kind = f"{role}{len(parameters)}", grammar.pick(STRONG)
        parameters.append(Parameter(name, role, kind, f"NDArray[{kind}, {rank}]"))  # type: ignore[arg-type]
        grammar.scope.arrays.append(Array(name, kind, role, rank=rank))
    parameters.append(Parameter("beside", "line", "f32", "NDArray[f32, 1]", is_output=True))
    grid = next(p.name for p in parameters if p.role == "grid")
    lines = ["n = beside.shape[0]", f"rows, columns = {grid}.shape"]
    for name in ("n", "rows", "columns"):
        grammar.scope.constants.append(Expression(name, "int", 0, LONGEST))
    plain = list(lines)
    for _ in range(grammar.number(1, 2)):
        form = grammar.pick((_reduced_line, _reduced_line, _reduced_grid))
        for lines_of_loop, kept in zip(form(grammar, parameters), (lines, plain), strict=True):
            kept += lines_of_loop
    header = ", ".join(f"{p.name}: {p.annotation}" for p in parameters)
    heads = ["@kernel", f"def generated({header}) -> None:"]
    return Program(
        "array",
        _text([*heads, *_indented(lines)]),
        tuple(parameters),
        in_plain_python=_text([*heads, *_indented(plain)]),
    )


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"


# ---- parameters --------------------------------------------------------------------------------


def _params(grammar: Grammar) -> list[Parameter]:
    """One number per launch: weak, of its own type, or pinned."""
    params = []
    for number in range(grammar.number(0, 2)):
        name = f"p{number}"
        kind = grammar.pick(("int", "float", grammar.pick(STRONG)))
        # A NumPy float64 beside float32 arrays is refused unless it is pinned.
        pinned = kind == "f64" or (kind in STRONG and grammar.number(0, 1))
        annotation = f"Param[{kind}]" if pinned else "Param"
        params.append(Parameter(name, "param", kind, annotation))
        grammar.scope.constants.append(Expression(name, kind, 0, 9))
    return params


def _tables(grammar: Grammar) -> list[Parameter]:
    tables = []
    for number in range(grammar.number(0, 2)):
        name, kind = f"table{number}", grammar.pick(STRONG)
        tables.append(Parameter(name, "table", kind, f"NDArray[{kind}, 1]"))
        grammar.scope.arrays.append(Array(name, kind, "", f"{name}.shape[0]"))
    return tables


def _plane(grammar: Grammar, name: str, width: str) -> Parameter:
    kind = grammar.pick((width, width, grammar.pick((*FLOATS, *INTEGERS))))
    if kind == width and grammar.number(0, 2):
        return Parameter(name, "plane", kind, "Scalar")
    if kind in FLOATS:
        return Parameter(name, "plane", kind, f"Scalar[{kind}]")
    plain = kind == "i64" and grammar.number(0, 1)
    return Parameter(name, "plane", kind, "Index" if plain else f"Index[{kind}]")


def _helpers(grammar: Grammar) -> list[str]:
    """Functions that the kernel may call, with an early return."""
    lines: list[str] = []
    for _ in range(grammar.number(0, 2)):
        name, result = grammar.fresh("helper"), grammar.pick(STRONG)
        kinds = tuple(grammar.pick(STRONG) for _ in range(grammar.number(1, 2)))
        names = [f"a{number}" for number in range(len(kinds))]
        inner = Grammar(
            grammar.draw,
            Features(math=grammar.features.math, local_arrays=grammar.features.local_arrays),
            Scope({n: Expression(n, k) for n, k in zip(names, kinds, strict=True)}),
        )
        # A helper knows no tables but its own.
        inner.helpers = [helper for helper in grammar.helpers if not helper.table]
        tables = [a for a in grammar.scope.arrays if a.name.startswith("table")]
        table = grammar.pick(tables) if tables and grammar.number(0, 1) else None
        if table:
            inner.scope.arrays.append(Array("b", table.kind, "", "b.shape[0]"))
            names.append("b")
        lines += ["@tn.func", f"def {name}({', '.join(names)}):"]
        body = inner.block(1)
        if grammar.number(0, 1):
            body += [f"if {inner.truth(1)}:", f"    return {inner.value(result, 2)}"]
        body.append(f"return {inner.value(result, 2)}")
        lines += ["    " + line for line in body]
        grammar.helpers.append(Helper(name, kinds, result, table.name if table else ""))
    return lines


# ---- statements at the top level of the array form ---------------------------------------------

_LINE_LOOPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("range(n)", ("i", "i", "n - 1 - i", "-1 - i", "0", "-1")),
    ("range(n)", ("i",)),
    ("range(1, n)", ("i", "i - 1", "0")),
    ("range(n - 1)", ("i", "i + 1")),
    ("range(1, n - 1)", ("i", "i - 1", "i + 1", "-1")),
    ("range(n - 1, -1, -1)", ("i", "-i - 1")),
    ("range(n - 2, -1, -1)", ("i", "i + 1")),
    ("range(0, n, 2)", ("i",)),
    ("range(1, n, 3)", ("i", "i - 1")),
    ("range(0, n - 1, 2)", ("i", "i + 1")),
    ("range(n - 1, 0, -2)", ("i", "i - 1")),
    ("range(n // 2)", ("i", "2 * i", "2 * i + 1", "n // 2 + i", "n - 1 - i")),
    ("range(n // 3)", ("3 * i", "3 * i + 2", "i * 2 + 1", "i + i")),
)


def _top_level(grammar: Grammar, parameters: Sequence[Parameter]) -> list[str]:
    line = next(p.name for p in parameters if p.role == "line" and p.is_output)
    grammar.scope.constants.append(Expression("n", "int", 0, LONGEST))
    lines = [f"n = {line}.shape[0]"]
    grids = [p.name for p in parameters if p.role == "grid"]
    if grids:
        lines.append(f"rows, columns = {grids[0]}.shape")
        grammar.scope.constants.append(Expression("rows", "int", 0, LONGEST))
        grammar.scope.constants.append(Expression("columns", "int", 0, LONGEST))
    forms = [_line_loop, _line_loop, _line_loop, _reduction, _statements]
    if any(p.role == "grid" and p.is_output for p in parameters):
        forms += [_grid_loop, _grid_loop]
    for _ in range(grammar.number(1, 3)):
        lines += grammar.pick(forms)(grammar)
    return lines


def _statements(grammar: Grammar) -> list[str]:
    return grammar.block(1)


def _stored(grammar: Grammar, space: str) -> str:
    """A store to one of the arrays of a space."""
    arrays = [a for a in grammar.scope.arrays if a.space == space and a.is_written]
    array = grammar.pick(arrays)
    position = grammar.pick(grammar.scope.positions[space])
    return f"{array.name}[{position}] = {grammar.value(array.kind, 3)}"


def _indented(lines: Sequence[str]) -> list[str]:
    return ["    " + line for line in lines]


def _line_range(grammar: Grammar) -> tuple[str, list[str]]:
    """A range, and the indices of lines that are in range for all its numbers."""
    if grammar.number(0, 5) < 5:
        header, positions = grammar.pick(_LINE_LOOPS)
        return header, list(positions)
    step = f"{grammar.weak_int(1).text} % 3"
    if grammar.number(0, 1):
        return f"range(0, n - 1, {step} + 1)", ["i", "i + 1"]
    return f"range(n - 1, -1, -({step}) - 1)", ["i", "-1 - i"]


def _line_loop(grammar: Grammar) -> list[str]:
    header, positions = _line_range(grammar)
    with grammar.nested(line=positions):
        grammar.scope.variables["i"] = Expression("i", "int", 0, LONGEST)
        body = grammar.block(2) if grammar.number(0, 1) else []
        body.append(_stored(grammar, "line"))
        if grammar.number(0, 9) == 9:
            body.append(f"if {grammar.truth(1)}: {grammar.pick(('return', 'break', 'continue'))}")
    return [f"for i in LOOP({header}):", *_indented(body)]


def _grid_loop(grammar: Grammar) -> list[str]:
    row, rows = grammar.pick(
        (
            ("range(rows)", ("i",)),
            ("range(1, rows)", ("i", "i - 1")),
            ("range(rows - 1, -1, -1)", ("i", "-1")),
        )
    )
    column, columns = grammar.pick(
        (
            ("range(columns)", ("j", "columns - 1 - j")),
            ("range(columns)", ("j",)),
            ("range(columns - 1)", ("j", "j + 1")),
            ("range(0, columns, 2)", ("j",)),
            ("range(min(i, columns))", ("j",)),
        )
    )
    positions = [f"{i}, {j}" for i in rows for j in columns]
    with grammar.nested():
        grammar.scope.variables["i"] = Expression("i", "int", 0, LONGEST)
        before = grammar.block(0) if not grammar.number(0, 3) else []
        with grammar.nested(grid=positions):
            grammar.scope.variables["j"] = Expression("j", "int", 0, LONGEST)
            body = grammar.block(1) if grammar.number(0, 1) else []
            body.append(_stored(grammar, "grid"))
        after = grammar.block(0) if not grammar.number(0, 5) else []
    inner = [f"for j in {column}:", *_indented(body)]
    return [f"for i in LOOP({row}):", *_indented([*before, *inner, *after])]


def _reduction(grammar: Grammar) -> list[str]:
    """A scalar carried through a loop, read after it."""
    kind = grammar.pick(STRONG)
    name = grammar.fresh("s")
    header, positions = _line_range(grammar)
    start = grammar.value(kind, 1)
    grammar.scope.variables[name] = Expression(name, kind)
    with grammar.nested(line=positions):
        grammar.scope.variables["i"] = Expression("i", "int", 0, LONGEST)
        body = grammar.block(1) if grammar.number(0, 1) else []
        body.append(f"{name} = {grammar.closed(kind, 2)}")
    total = next(a for a in grammar.scope.arrays if a.name == "total")
    return [
        f"{name} = {start}",
        f"for i in LOOP({header}):",
        *_indented(body),
        f"total[{grammar.number(-3, 2)}] = {total.kind}({name})",
    ]


# ---- reductions: for the kernel, and for plain Python --------------------------------------------

_Both = tuple[list[str], list[str]]

_REDUCED_LINES = (
    ("range(n)", ("i", "n - 1 - i", "0", "-1")),
    ("range(1, n)", ("i", "i - 1")),
    ("range(n - 2, -1, -1)", ("i", "i + 1")),
    ("range(0, n - 1, 2)", ("i", "i + 1")),
)


def _reduced_line(grammar: Grammar, parameters: list[Parameter]) -> _Both:
    header, positions = grammar.pick(_REDUCED_LINES)
    with grammar.nested(line=list(positions)):
        grammar.scope.variables["i"] = Expression("i", "int", 0, LONGEST)
        before, update, finish = _reductions(grammar, parameters, "t", f"len({header})")
        if header == "range(n)" and not grammar.number(0, 2):
            for lines in update:
                lines.insert(0, "beside[i] = i")
    loops = f"for i in {header}:", f"for t, i in enumerate({header}):"
    kernel, plain = (
        [*before[side], loops[side], *_indented(update[side]), *finish[side]] for side in (0, 1)
    )
    return kernel, plain


def _reduced_grid(grammar: Grammar, parameters: list[Parameter]) -> _Both:
    row = grammar.pick(("range(rows)", "range(1, rows)", "range(rows - 1, -1, -1)"))
    column = grammar.pick(("range(columns)", "range(0, columns, 2)"))
    with grammar.nested():
        grammar.scope.variables["i"] = Expression("i", "int", 0, LONGEST)
        kind = grammar.pick(STRONG)
        known = f"x = {kind}({grammar.leaf(kind)})"
        grammar.scope.variables["x"] = Expression("x", kind)
        with grammar.nested(grid=["i, j"]):
            grammar.scope.variables["j"] = Expression("j", "int", 0, LONGEST)
            shape = f"(len({row}), len({column}))"
            before, update, finish = _reductions(grammar, parameters, "(t, u)", shape)
    loops = (
        (f"for i in {row}:", f"for j in {column}:"),
        (f"for t, i in enumerate({row}):", f"for u, j in enumerate({column}):"),
    )
    kernel, plain = (
        [
            *before[side],
            loops[side][0],
            *_indented([known, loops[side][1], *_indented(update[side])]),
            *finish[side],
        ]
        for side in (0, 1)
    )
    return kernel, plain


def _reductions(
    grammar: Grammar, parameters: list[Parameter], position: str, shape: str
) -> tuple[_Both, _Both, _Both]:
    """What stands before the loop, in it and after it."""
    before: _Both = [], []
    update: _Both = [], []
    finish: _Both = [], []
    for _ in range(grammar.number(1, 3)):
        kind, name = grammar.pick(STRONG), grammar.fresh("s")
        if kind in FLOATS:
            operator = grammar.pick(("+", "-", "*", "min", "max", "tm.minimum", "tm.maximum"))
        elif kind in INTEGERS:
            operator = grammar.pick(("+", "-", "*", "&", "|", "^", "min", "max", "tm.minimum"))
        else:
            operator = grammar.pick(("&", "|", "^"))
        is_collected = kind in FLOATS and operator in "+-*"
        value = f"{kind}({grammar.value(kind, 2)})"
        condition = grammar.truth(1) if not grammar.number(0, 2) else ""
        changed = f"{name} = {name} {operator} {value}"
        if operator not in "+-*&|^":
            changed = f"{name} = {operator}({name}, {value})"
        collected = f"{name}_parts.put({position}, {value})" if is_collected else changed
        for lines, statement in zip(update, (changed, collected), strict=True):
            lines += [f"if {condition}:", f"    {statement}"] if condition else [statement]
        start = f"{name} = {kind}({grammar.literal(kind)})"
        out = f"out_{name}"
        parameters.append(Parameter(out, "total", kind, f"NDArray[{kind}, 1]", is_output=True))
        for lines in before:
            lines.append(start)
        if is_collected:
            before[1].append(f"{name}_parts = PARTS({operator!r}, {kind})")
            finish[1].append(f"{name} = {name}_parts.joined({name}, {shape})")
        for lines in finish:
            lines.append(f"{out}[0] = {name}")
    return before, update, finish
