"""Array-form kernels: the backends against each other and against plain Python over NumPy."""

from __future__ import annotations

from hypothesis import given, note
from hypothesis import strategies as st

from .harness import BACKENDS, assert_same, fuzz, in_order, kernel, run, run_plain
from .inputs import LARGE, SMALL, arguments
from .programs import array_programs, reduction_programs


@given(st.data())
@fuzz(120)
def test_backends_agree_with_plain_python(data: st.DataObject) -> None:
    program = data.draw(array_programs())
    made = kernel(program)
    small = data.draw(arguments(program))
    note(repr(small))
    expected = run_plain(program, small)
    ordered = in_order(made, program)
    for device in BACKENDS:
        assert_same(run(ordered, program, small, device), expected, f"{device} and Python")
    large = data.draw(arguments(program, LARGE))
    reference = run(made, program, large, "reference")
    assert_same(run(made, program, large, "cpu"), reference, "cpu and reference")


@given(st.data())
@fuzz(40)
def test_reductions_have_the_documented_order(data: st.DataObject) -> None:
    program = data.draw(reduction_programs())
    made = kernel(program)
    given = data.draw(arguments(program, SMALL + LARGE))
    note(repr(given))
    expected = run_plain(program, given)
    for device in BACKENDS:
        assert_same(run(made, program, given, device), expected, f"{device} and Python")
