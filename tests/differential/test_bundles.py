"""Kernels out of bundles compute the bits of those that were built."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import turnout as tn

from .grammar import Features
from .harness import BACKENDS, assert_same, fuzz, kernel, run
from .inputs import SMALL, arguments
from .programs import Program, array_programs, sample_programs

FEATURES = Features(math=True, vectors=True, dispatches=True)
PROGRAMS = {"array": array_programs(FEATURES), "sample": sample_programs(FEATURES)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", PROGRAMS)
@given(data=st.data())
@fuzz(8)
def test_loaded_kernels_give_the_same_bits(form: str, backend: str, data: st.DataObject) -> None:
    program: Program = data.draw(PROGRAMS[form])
    given = data.draw(arguments(program, SMALL))
    policies = ("switch", "predicated", "auto")
    built = kernel(program, policy=data.draw(st.sampled_from(policies)))
    note(repr(given))
    expected = run(built, program, given, backend)
    width = _open_width(program)
    types = built.default_types(width)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder, "bundle")
        tn.build([built], directory, targets=[backend], dtype=width)
        loaded = tn.load(directory, built.__name__, device=backend)
        for name, dtype in loaded.default_types().items():
            assert types.get(name) in (dtype, "float", "int")
        found = run(loaded, program, given, backend)
    assert_same(found, expected, "a loaded kernel and the one that was built")


def _open_width(program: Program) -> Any:
    """The type of the arrays whose annotation leaves the width open: all vectors have one."""
    widths = {parameter.kind for parameter in program.parameters if parameter.role == "vector"}
    return getattr(tn, widths.pop()) if widths else tn.f64
