"""Generated kernels on OpenCL against the other backends and plain Python.

Arrays are views of memory on the device, laid out as on the host, with elements around them that
nobody may write. A build takes up to half a second, so there are few examples; set
``TURNOUT_FUZZ_EXAMPLES`` for more.
"""

from __future__ import annotations

import pytest

pytest.importorskip("turnout_opencl", reason="turnout-opencl is not installed")

from typing import Any

import numpy as np
import pyopencl.array as cla
from hypothesis import assume, given, note
from hypothesis import strategies as st
from tests.differential.grammar import Features
from tests.differential.harness import assert_same, fuzz, in_order, kernel, run, run_plain, written
from tests.differential.inputs import LARGE, SMALL, Arguments, arguments, in_memory, memory_of
from tests.differential.programs import Program, array_programs, sample_programs
from tests.differential.test_loops import counting_programs
from tests.differential.test_math import math_programs, ordered

import turnout as tn
from turnout.ir import OPERATIONS

FEATURES = Features(math=True, vectors=True, dispatches=True)
PROGRAMS = {"array": array_programs(FEATURES), "sample": sample_programs(FEATURES)}


def there(array: np.ndarray[Any, Any]) -> tuple[cla.Array, cla.Array]:
    """A copy of the memory of an array on the device, and the view of it that the array is."""
    memory = memory_of(array)
    moved = tn.array(memory, device="opencl")
    offset = array.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    view = cla.Array(
        moved.queue, array.shape, array.dtype, data=moved.base_data, offset=offset,
        strides=array.strides,
    )  # fmt: skip
    return moved, view


def run_there(made: tn.Kernel, program: Program, given: Arguments) -> Arguments:
    """What a kernel leaves in its outputs; nothing else may change."""
    moved = {name: there(a) for name, a in given.items() if isinstance(a, np.ndarray)}
    made(**{**given, **{name: view for name, (_, view) in moved.items()}})
    outputs = {}
    for name in moved:
        memory = tn.to_numpy(moved[name][0])
        found = in_memory(given[name], memory)
        if name in written(program, given):
            outputs[name] = found.copy()
            found.flags.writeable = True
            found[...] = given[name]
        assert memory.tobytes() == memory_of(given[name]).tobytes(), f"memory around {name}"
    return outputs


@given(data=st.data())
@fuzz(8)
def test_array_form(data: st.DataObject) -> None:
    program = data.draw(array_programs())
    made = kernel(program)
    small = data.draw(arguments(program))
    note(repr(small))
    ordered = in_order(made, program)
    assert_same(run_there(ordered, program, small), run_plain(program, small), "opencl and Python")
    large = data.draw(arguments(program, LARGE))
    expected = run(made, program, large, "reference")
    assert_same(run_there(made, program, large), expected, "opencl and reference")
    assert_same(run(made, program, large, "cpu"), expected, "cpu and reference")


@given(data=st.data())
@fuzz(6)
def test_sample_form(data: st.DataObject) -> None:
    program = data.draw(sample_programs(Features(vectors=True, dispatches=True)))
    made = kernel(program)
    given = data.draw(arguments(program, SMALL + LARGE))
    note(repr(given))
    expected = run(made, program, given, "reference")
    assert_same(run_there(made, program, given), expected, "opencl and reference")


@pytest.mark.parametrize("form", PROGRAMS)
@given(data=st.data())
@fuzz(2)
def test_policies_and_checks_change_nothing(form: str, data: st.DataObject) -> None:
    program: Program = data.draw(PROGRAMS[form])
    assume("POLICY" in program.source)
    given = data.draw(arguments(program, SMALL + LARGE))
    note(repr(given))
    expected = run_there(kernel(program), program, given)
    for policy, debug in (("predicated", False), ("predicated", True), ("switch", True)):
        found = run_there(kernel(program, policy=policy, debug=debug), program, given)
        assert_same(found, expected, f"{policy}, debug={debug}, and switch")


@given(data=st.data())
@fuzz(5)
def test_updates_of_shared_integers_lose_nothing(data: st.DataObject) -> None:
    program = data.draw(counting_programs())
    given = data.draw(arguments(program, SMALL + LARGE))
    note(repr(given))
    expected = run_plain(program, given)
    assert_same(run_there(kernel(program), program, given), expected, "opencl and Python")


@given(data=st.data())
@fuzz(5)
def test_math_within_twice_the_budget(data: st.DataObject) -> None:
    program, functions = data.draw(math_programs())
    given = data.draw(arguments(program, LARGE))
    note(repr(given))
    made = kernel(program)
    one, other = run_there(made, program, given), run(made, program, given, "reference")
    for name, function in functions.items():
        a, b = one[name], other[name]
        row = OPERATIONS[function]
        budget = row.ulp_f32 if a.dtype == np.float32 else row.ulp_f64
        assert np.array_equal(np.isnan(a), np.isnan(b)), f"{function}: NaN in one of the two"
        numbers = ~np.isnan(a)
        x, y = (ordered(np.ascontiguousarray(each[numbers])) for each in (a, b))
        near = np.where((x < 0) == (y < 0), np.abs(x - y), np.abs(x) + np.abs(y)) <= 2 * budget + 1
        assert near.all(), f"{function} gives {a[numbers][~near][0]!r}, {b[numbers][~near][0]!r}"
