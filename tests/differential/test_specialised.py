"""Specialised kernels: the same bits as the kernels that they are made of."""

from __future__ import annotations

import numpy as np
from hypothesis import given, note
from hypothesis import strategies as st

import turnout as tn

from .grammar import Features
from .harness import BACKENDS, assert_same, fuzz, kernel, run
from .inputs import LARGE, SMALL, Arguments, arguments
from .programs import Program, array_programs, sample_programs


def specialised(
    data: st.DataObject, made: tn.Kernel, program: Program, given: Arguments
) -> tn.Kernel:
    """A kernel for some of the lengths and numbers of a call, at least for one of them."""
    sizes = {}
    for name, value in given.items():
        if np.ndim(value):
            shape = [None if data.draw(st.booleans()) else length for length in value.shape]
            sizes[name] = tuple(shape)
        elif data.draw(st.booleans()):
            sizes[name] = value
    if program.form == "sample" and data.draw(st.booleans()):
        sizes["samples"] = given[program.outputs[0]].shape[-1]
    note(repr(sizes))
    return made.specialise(**sizes)


def check(data: st.DataObject, program: Program, lengths: tuple[int, ...]) -> None:
    made = kernel(program)
    given = data.draw(arguments(program, lengths))
    note(repr(given))
    of_sizes = specialised(data, made, program, given)
    for device in BACKENDS:
        expected = run(made, program, given, device)
        assert_same(run(of_sizes, program, given, device), expected, f"specialised on {device}")


@given(st.data())
@fuzz(80)
def test_array_form(data: st.DataObject) -> None:
    check(data, data.draw(array_programs(Features(math=True))), SMALL + LARGE)


@given(st.data())
@fuzz(60)
def test_sample_form(data: st.DataObject) -> None:
    features = Features(math=True, vectors=True, dispatches=True)
    check(data, data.draw(sample_programs(features)), SMALL + LARGE)


@given(st.data())
@fuzz(20)
def test_debug_kernels(data: st.DataObject) -> None:
    program = data.draw(array_programs())
    made = kernel(program, debug=True)
    given = data.draw(arguments(program))
    of_sizes = specialised(data, made, program, given)
    expected = run(made, program, given, "cpu")
    assert_same(run(of_sizes, program, given, "cpu"), expected, "specialised with debug=True")
