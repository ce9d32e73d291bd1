"""Code in explicit vectors gives the bits of other code, whether a unit would be chosen or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from turnout_cpu import emit, vector_choice

from .grammar import Features
from .harness import assert_same, fuzz, kernel, run
from .inputs import LARGE, SMALL, arguments
from .programs import Program, array_programs, sample_programs

FEATURES = Features(math=True, vectors=True, dispatches=True)
PROGRAMS = {"array": array_programs(FEATURES), "sample": sample_programs(FEATURES)}
LANES = (4, 8, 16, 32)


@contextmanager
def explicit_lanes(lanes: int | None) -> Iterator[None]:
    """Compile every unit in so many explicit lanes where that can be done, or none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            emit,
            "explicit_lanes",
            lambda unit, vectors, options: (
                lanes if vector_choice.can_run_in_lanes(unit, options) else None
            ),
        )
        yield


@pytest.mark.parametrize("form", PROGRAMS)
@given(data=st.data())
@fuzz(60)
def test_explicit_vectors_give_the_same_bits(form: str, data: st.DataObject) -> None:
    program: Program = data.draw(PROGRAMS[form])
    given = data.draw(arguments(program, SMALL + LARGE))
    policy = data.draw(st.sampled_from(("switch", "predicated")))
    lanes = data.draw(st.sampled_from(LANES))
    note(repr(given))
    with explicit_lanes(None):
        expected = run(kernel(program, policy=policy), program, given, "cpu")
    with explicit_lanes(lanes):
        found = run(kernel(program, policy=policy), program, given, "cpu")
    assert_same(found, expected, f"{lanes} explicit lanes and none")
