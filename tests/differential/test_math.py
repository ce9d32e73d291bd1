"""Math functions: the backends are as close to each other as their budgets promise."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, note
from hypothesis import strategies as st

from turnout.ir import OPERATIONS

from .grammar import BINARY_MATH, UNARY_MATH, Array, Draw, Features, Grammar, Scope
from .harness import fuzz, kernel, run
from .inputs import LARGE, arguments
from .kinds import FLOATS, STRONG
from .programs import Parameter, Program

FUNCTIONS_PER_KERNEL = 5


@st.composite
def math_programs(draw: Draw) -> tuple[Program, dict[str, str]]:
    """A kernel that stores one math function of exact operands per output, and which one where."""
    grammar = Grammar(draw, Features(), Scope(positions={"line": ["i"]}))
    parameters = []
    for number in range(2):
        kind = grammar.pick((*FLOATS, *FLOATS, *STRONG))
        parameters.append(Parameter(f"x{number}", "line", kind, f"NDArray[{kind}, 1]"))
        grammar.scope.arrays.append(Array(f"x{number}", kind, "line"))
    functions = {}
    body = []
    for number in range(FUNCTIONS_PER_KERNEL):
        name, kind = f"y{number}", grammar.pick(FLOATS)
        parameters.append(Parameter(name, "line", kind, f"NDArray[{kind}, 1]", True))
        functions[name] = function = grammar.pick((*UNARY_MATH, *BINARY_MATH))
        arity = OPERATIONS[function].arity
        operands = ", ".join(grammar.value(kind, 2) for _ in range(arity))
        body.append(f"        {name}[i] = tm.{function}({operands})")
    header = ", ".join(f"{p.name}: {p.annotation}" for p in parameters)
    source = ["@kernel", f"def generated({header}) -> None:"]
    source += ["    for i in range(x0.shape[0]):", *body]
    return Program("array", "\n".join(source) + "\n", tuple(parameters)), functions


def ordered(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Floats as integers in the same order, neighbours next to each other."""
    bits = array.view(np.int32) if array.itemsize == 4 else array.view(np.int64)
    smallest = np.iinfo(bits.dtype).min
    return np.where(bits < 0, smallest - bits, bits).astype(np.int64)


@given(data=st.data())
@fuzz(40)
def test_backends_agree_within_twice_the_budget(data: st.DataObject) -> None:
    program, functions = data.draw(math_programs())
    given = data.draw(arguments(program, LARGE))
    note(repr(given))
    made = kernel(program)
    one, other = (run(made, program, given, device) for device in ("cpu", "reference"))
    for name, function in functions.items():
        a, b = one[name], other[name]
        row = OPERATIONS[function]
        budget = row.ulp_f32 if a.dtype == np.float32 else row.ulp_f64
        assert np.array_equal(np.isnan(a), np.isnan(b)), f"{function}: NaN in one of the two"
        numbers = ~np.isnan(a)
        a, b = np.ascontiguousarray(a[numbers]), np.ascontiguousarray(b[numbers])
        x, y = ordered(a), ordered(b)
        near = np.where((x < 0) == (y < 0), np.abs(x - y), np.abs(x) + np.abs(y)) <= 2 * budget + 1
        assert near.all(), f"{function} gives {a[~near][0]!r} and {b[~near][0]!r}"
