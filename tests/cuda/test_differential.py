"""Generated kernels as CUDA C++ on the CPU, against the reference."""

from __future__ import annotations

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from tests.differential.grammar import Features
from tests.differential.harness import assert_same, fuzz, kernel, run
from tests.differential.inputs import LARGE, SMALL, arguments
from tests.differential.programs import Program, array_programs, sample_programs

from turnout_cuda_emulated import machine

pytestmark = [
    pytest.mark.skipif(machine.compiler() is None, reason="there is no C++ compiler"),
    pytest.mark.filterwarnings("ignore:kernel generated runs on:turnout.PerformanceWarning"),
]

PROGRAMS = {
    "array": array_programs(),
    "sample": sample_programs(Features(vectors=True, dispatches=True)),
}


@pytest.mark.parametrize("form", PROGRAMS)
@given(data=st.data())
@fuzz(60)
def test_emulated_cuda_agrees_with_the_reference(form: str, data: st.DataObject) -> None:
    program: Program = data.draw(PROGRAMS[form])
    policy = data.draw(st.sampled_from(("switch", "predicated", "auto")))
    debug = data.draw(st.booleans())
    made = kernel(program, policy=policy, debug=debug)
    for sizes in (SMALL, LARGE):
        values = data.draw(arguments(program, sizes))
        note(repr(values))
        expected = run(made, program, values, "reference")
        found = run(made, program, values, "cuda_emulated")
        assert_same(found, expected, f"emulated CUDA and reference, debug={debug}")
