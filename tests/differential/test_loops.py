"""Loops that run in any order give what they give in order; overlap is right or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import assume, given, note
from hypothesis import strategies as st

import turnout as tn
from turnout.errors import CallError

from .grammar import Array, Draw, Features, Grammar, Scope
from .harness import BACKENDS, assert_same, call_plain, fuzz, kernel, run, run_plain
from .inputs import LARGE, SMALL, Arguments, arguments, copied, values
from .kinds import INTEGERS
from .programs import Parameter, Program, array_programs, sample_programs

FEW_KINDS = Features(kinds=("f64", "i16"))


@given(data=st.data())
@fuzz(40)
def test_a_serial_loop_gives_the_same_bits(data: st.DataObject) -> None:
    program = data.draw(array_programs(Features(math=True)))
    given = data.draw(arguments(program, SMALL + LARGE))
    note(repr(given))
    free, serial = kernel(program), kernel(program, loops="tn.serial")
    for device in BACKENDS:
        expected = run(serial, program, given, device)
        assert_same(run(free, program, given, device), expected, f"free and serial on {device}")


# ---- arrays that share memory --------------------------------------------------------------------


def overlapping(
    data: st.DataObject, program: Program, given: Arguments
) -> Callable[[], tuple[np.ndarray[Any, Any], Arguments]]:
    """Make memory, and arguments of which an output and another line lie in it."""
    lines = [p for p in program.parameters if p.role == "line"]
    pairs = [
        (first, second)
        for first in lines
        for second in lines
        if first.is_output and first is not second and first.kind == second.kind
    ]
    assume(pairs)
    first, second = data.draw(st.sampled_from(pairs))
    n = given[first.name].size
    starts = [data.draw(st.integers(0, 2)) for _ in range(2)]
    steps = [data.draw(st.sampled_from((1, 1, -1))) for _ in range(2)]
    content = values(first.kind, (n + 2,), data.draw(st.integers(0, 2**16)))

    def make() -> tuple[np.ndarray[Any, Any], Arguments]:
        memory = content.copy()
        views = [memory[s : s + n][::step] for s, step in zip(starts, steps, strict=True)]
        return memory, {**copied(given), first.name: views[0], second.name: views[1]}

    return make


def is_refused(made: tn.Kernel, used: Arguments, device: str) -> bool:
    """Run a kernel, and say whether it was refused because of overlap."""
    try:
        made(**used, device=device)
    except CallError as refusal:
        if "overlap" not in str(refusal):
            raise
        return True
    return False


@given(data=st.data())
@fuzz(50)
def test_overlapping_arrays_give_what_python_gives_or_are_refused(data: st.DataObject) -> None:
    program = data.draw(array_programs(FEW_KINDS))
    make = overlapping(data, program, data.draw(arguments(program)))
    memory, used = make()
    note(repr(used))
    call_plain(program, used)
    expected = {**used, "memory": memory}
    for loops in ("", "tn.serial"):
        made = kernel(program, loops=loops)
        for device in BACKENDS:
            memory, used = make()
            if is_refused(made, used, device):
                assert not loops, "nothing is refused where loops run in order"
                continue
            found = {p.name: used[p.name] for p in program.parameters if p.is_output}
            assert_same({**found, "memory": memory}, expected, f"{device} and Python")


@given(data=st.data())
@fuzz(30)
def test_a_plane_may_be_its_own_output(data: st.DataObject) -> None:
    program = data.draw(sample_programs(Features(math=True)))
    planes = [p for p in program.parameters if p.role == "plane"]
    pairs = [
        (x, y)
        for x in planes
        for y in planes
        if y.is_output and not x.is_output and x.kind == y.kind
    ]
    assume(pairs)
    x, y = data.draw(st.sampled_from(pairs))
    given = data.draw(arguments(program, SMALL + LARGE))
    given[y.name] = np.array(given[x.name])
    note(repr(given))
    made = kernel(program)
    for device in BACKENDS:
        expected = run(made, program, given, device)
        used = copied(given)
        used[x.name] = used[y.name]
        made(**used, device=device)
        found = {name: used[name] for name in expected}
        assert_same(found, expected, f"in place and apart on {device}")


# ---- asserted loops ------------------------------------------------------------------------------


@st.composite
def counting_programs(draw: Draw) -> Program:
    """A ``tn.parallel`` loop whose iterations update elements that they share."""
    grammar = Grammar(draw, Features(), Scope())
    kinds = {"line_in": grammar.pick(INTEGERS), "total": grammar.pick(INTEGERS)}
    line = Array("line_in", kinds["line_in"], "line")
    grammar.scope.arrays.append(line)
    grammar.scope.positions["line"] = ["i"]
    body = grammar.block(1)
    index = f"{grammar.value(grammar.pick(INTEGERS), 2)} % 3"
    operator = grammar.pick(("+", "-", "*", "&", "|", "^"))
    body.append(f"total[{index}] {operator}= {kinds['total']}({grammar.value('i64', 2)})")
    parameters = (
        Parameter("line_in", "line", kinds["line_in"], f"NDArray[{kinds['line_in']}, 1]"),
        Parameter("total", "total", kinds["total"], f"NDArray[{kinds['total']}, 1]", True),
    )
    header = ", ".join(f"{p.name}: {p.annotation}" for p in parameters)
    source = [
        "@kernel",
        f"def generated({header}) -> None:",
        "    for i in tn.parallel(range(line_in.shape[0])):",
        *(f"        {line}" for line in body),
    ]
    return Program("array", "\n".join(source) + "\n", parameters)


@given(data=st.data())
@fuzz(30)
def test_updates_of_shared_integers_lose_nothing(data: st.DataObject) -> None:
    program = data.draw(counting_programs())
    given = data.draw(arguments(program, SMALL + LARGE))
    note(repr(given))
    expected = run_plain(program, given)
    made = kernel(program)
    for device in BACKENDS:
        assert_same(run(made, program, given, device), expected, f"{device} and Python")
