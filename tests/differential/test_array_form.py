"""Array-form kernels: the backends against each other and against plain Python over NumPy."""

from __future__ import annotations

from hypothesis import given, note
from hypothesis import strategies as st

from .harness import assert_same, fuzz, kernel, run, run_plain
from .inputs import LARGE, arguments
from .programs import array_programs


@given(st.data())
@fuzz(120)
def test_backends_agree_with_plain_python(data: st.DataObject) -> None:
    program = data.draw(array_programs())
    made = kernel(program)
    small = data.draw(arguments(program))
    note(repr(small))
    expected = run_plain(program, small)
    assert_same(run(made, program, small, "reference"), expected, "reference and Python")
    assert_same(run(made, program, small, "cpu"), expected, "cpu and Python")
    large = data.draw(arguments(program, LARGE))
    reference = run(made, program, large, "reference")
    assert_same(run(made, program, large, "cpu"), reference, "cpu and reference")
