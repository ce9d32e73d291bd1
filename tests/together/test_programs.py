"""One generated kernel on all backends: the same bits from each, and nothing else written.

Functions with a budget of rounding errors are as close as twice the budget. Arrays have any layout,
on every device. ``TURNOUT_FUZZ_EXAMPLES`` asks for more examples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from tests.differential.grammar import Features
from tests.differential.harness import assert_same, fuzz, kernel, run_plain, written
from tests.differential.inputs import LARGE, SMALL, Arguments, arguments, in_memory, memory_of
from tests.differential.programs import Program, array_programs, sample_programs
from tests.differential.test_loops import counting_programs
from tests.differential.test_math import math_programs, ordered

import turnout as tn
from turnout.ir import OPERATIONS

from .devices import DEVICES, place

EXACT = Features(vectors=True, dispatches=True)
PROGRAMS = {"array": array_programs(EXACT), "sample": sample_programs(EXACT)}


def run_on(made: tn.Kernel, program: Program, given: Arguments, device: str) -> Arguments:
    """What a kernel leaves in its outputs; nothing else may change."""
    arrays = {name: a for name, a in given.items() if isinstance(a, np.ndarray)}
    placed = {name: place(array, device) for name, array in arrays.items()}
    made(**{**given, **{name: view for name, (view, _) in placed.items()}}, device=device)
    outputs = {}
    for name, (_, read) in placed.items():
        memory = read().copy()
        found = in_memory(given[name], memory)
        if name in written(program, given):
            outputs[name] = found.copy()
            found.flags.writeable = True
            found[...] = given[name]
        assert memory.tobytes() == memory_of(given[name]).tobytes(), f"{device}: around {name}"
    return outputs


def run_everywhere(made: tn.Kernel, program: Program, given: Arguments) -> dict[str, Arguments]:
    return {device: run_on(made, program, given, device) for device in DEVICES}


def assert_all_same(found: dict[str, Arguments]) -> None:
    for device in DEVICES[1:]:
        assert_same(found[device], found[DEVICES[0]], f"{device} and {DEVICES[0]}")


@pytest.mark.parametrize("form", PROGRAMS)
@given(data=st.data())
@fuzz(40)
def test_all_backends_give_the_same_bits(form: str, data: st.DataObject) -> None:
    program: Program = data.draw(PROGRAMS[form])
    policy = data.draw(st.sampled_from(("switch", "predicated", "auto")))
    debug = data.draw(st.booleans())
    made = kernel(program, policy=policy, debug=debug)
    for sizes in (SMALL, LARGE):
        given = data.draw(arguments(program, sizes))
        note(repr(given))
        assert_all_same(run_everywhere(made, program, given))


@given(data=st.data())
@fuzz(5)
def test_updates_of_shared_integers_lose_nothing(data: st.DataObject) -> None:
    program = data.draw(counting_programs())
    given = data.draw(arguments(program, SMALL + LARGE))
    note(repr(given))
    found = run_everywhere(kernel(program), program, given)
    assert_all_same(found)
    assert_same(found["reference"], run_plain(program, given), "reference and Python")


@given(data=st.data())
@fuzz(5)
def test_math_within_twice_the_budget(data: st.DataObject) -> None:
    program, functions = data.draw(math_programs())
    given = data.draw(arguments(program, LARGE))
    note(repr(given))
    found = run_everywhere(kernel(program), program, given)
    for device in DEVICES[1:]:
        for name, function in functions.items():
            _assert_near(function, found["reference"][name], found[device][name], device)


def _assert_near(function: str, a: Any, b: Any, device: str) -> None:
    row = OPERATIONS[function]
    budget = row.ulp_f32 if a.dtype == np.float32 else row.ulp_f64
    assert np.array_equal(np.isnan(a), np.isnan(b)), f"{function} on {device}: NaN in one of two"
    numbers = ~np.isnan(a)
    x, y = (ordered(np.ascontiguousarray(each[numbers])) for each in (a, b))
    distance = np.where((x < 0) == (y < 0), np.abs(x - y), np.abs(x) + np.abs(y))
    assert (distance <= 2 * budget + 1).all(), f"{function} on {device}: {distance.max()} apart"
