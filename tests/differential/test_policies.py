"""How a dispatch is compiled, and whether indices are checked, changes no bit of any result."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, note
from hypothesis import strategies as st

from .grammar import Features
from .harness import BACKENDS, assert_same, fuzz, kernel, run
from .inputs import LARGE, SMALL, arguments
from .programs import Program, array_programs, sample_programs

FEATURES = Features(math=True, vectors=True, dispatches=True)
PROGRAMS = {"array": array_programs(FEATURES), "sample": sample_programs(FEATURES)}


@pytest.mark.parametrize("form", PROGRAMS)
@given(data=st.data())
@fuzz(25)
def test_policies_give_the_same_bits(form: str, data: st.DataObject) -> None:
    program: Program = data.draw(PROGRAMS[form])
    assume("POLICY" in program.source)
    given = data.draw(arguments(program, SMALL + LARGE))
    note(repr(given))
    made = {policy: kernel(program, policy=policy) for policy in ("switch", "predicated", "auto")}
    for device in BACKENDS:
        expected = run(made["switch"], program, given, device)
        for policy in ("predicated", "auto"):
            found = run(made[policy], program, given, device)
            assert_same(found, expected, f"{policy} and switch on {device}")


@pytest.mark.parametrize("form", PROGRAMS)
@given(data=st.data())
@fuzz(20)
def test_checked_indices_give_the_same_bits(form: str, data: st.DataObject) -> None:
    program: Program = data.draw(PROGRAMS[form])
    given = data.draw(arguments(program, SMALL + LARGE))
    note(repr(given))
    policy = data.draw(st.sampled_from(("switch", "predicated")))
    checked, usual = (kernel(program, policy=policy, debug=debug) for debug in (True, False))
    for device in BACKENDS:
        expected = run(usual, program, given, device)
        assert_same(run(checked, program, given, device), expected, f"debug on {device}")
