"""What a sample computes depends neither on its company nor on where its data lie in memory."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, note
from hypothesis import strategies as st

from .grammar import Features
from .harness import BACKENDS, assert_same, fuzz, kernel, run
from .inputs import LARGE, SMALL, Arguments, arguments
from .programs import Program, array_programs, sample_programs

FEATURES = Features(math=True, vectors=True)
LONE_SAMPLES = 12


def selected(program: Program, given: Arguments, selection: Any) -> Arguments:
    """The arguments for a part of the samples: views of those for all."""
    per_sample = {p.name for p in program.parameters if p.role in ("plane", "vector", "mask")}
    return {
        name: value[..., selection] if name in per_sample else value
        for name, value in given.items()
    }


def selections(data: st.DataObject, count: int) -> list[slice]:
    """Shifted, reversed and strided batches, chunks, and single samples."""
    positions = st.integers(0, count)
    start, *cuts = [data.draw(positions) for _ in range(5)]
    edges = sorted({0, *cuts, count})
    chunks = [slice(a, b) for a, b in pairwise(edges)]
    lone = [slice(k, k + 1) for k in range(0, count, max(1, count // LONE_SAMPLES))]
    return [
        slice(start, None),
        slice(None, None, -1),
        slice(start, None, 3),
        slice(None, None, -2),
        *chunks,
        *lone,
    ]


@given(data=st.data())
@fuzz(40)
def test_any_part_of_a_batch_gives_the_bits_of_the_whole(data: st.DataObject) -> None:
    program = data.draw(sample_programs(FEATURES))
    made = kernel(program, policy=data.draw(st.sampled_from(("switch", "predicated"))))
    given = data.draw(arguments(program, SMALL + LARGE))
    note(repr(given))
    parts = selections(data, given[program.outputs[0]].shape[-1])
    for device in BACKENDS:
        whole = run(made, program, given, device)
        for part in parts:
            found = run(made, program, selected(program, given, part), device)
            assert_same(found, selected(program, whole, part), f"{part} and all on {device}")


@given(data=st.data())
@fuzz(25)
def test_memory_layout_changes_no_bit(data: st.DataObject) -> None:
    program = data.draw(st.one_of(sample_programs(FEATURES), array_programs(FEATURES)))
    made = kernel(program)
    given = data.draw(arguments(program, SMALL + LARGE))
    note(repr(given))
    plain = {k: np.array(v, order="C") if np.ndim(v) else v for k, v in given.items()}
    for device in BACKENDS:
        expected = run(made, program, plain, device)
        assert_same(run(made, program, given, device), expected, f"layouts on {device}")
