"""Derivatives of generated kernels: against tangents, and the same bits however they are run."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume, given, note
from hypothesis import strategies as st

import turnout as tn
from turnout.derive import Derivative

from .dual import Sample
from .grammar import Features
from .harness import BACKENDS, assert_same, fuzz, kernel
from .inputs import Arguments, values
from .kinds import FLOATS, dtype_of
from .programs import Program, sample_programs

FEATURES = Features(math=True, vectors=True, dispatches=True, local_arrays=False)
SAMPLES = 5
POLICIES = ("switch", "predicated", "auto")


def moderate(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Floats without infinities, so that derivatives are numbers more often than not."""
    if kind not in FLOATS:
        return values(kind, shape, seed)
    drawn = np.random.default_rng(seed).normal(size=shape)
    return drawn.astype(dtype_of(kind))


@st.composite
def inputs(draw: Any, program: Program) -> Arguments:
    found: Arguments = {}
    for p in program.parameters:
        seed = draw(st.integers(0, 2**16))
        shape = {"table": (3,), "vector": (3, SAMPLES), "param": (1,)}.get(p.role, (SAMPLES,))
        if p.kind in ("int", "float"):
            found[p.name] = draw(st.integers(0, 3)) if p.kind == "int" else draw(st.floats(-2, 2))
        elif p.role == "mask":
            found[p.name] = values(p.kind, shape, seed)
        else:
            array = moderate(p.kind, shape, seed)
            found[p.name] = array[0] if p.role == "param" else array
    return found


def derivative(program: Program, policy: str) -> Derivative:
    """The derivative of a program by all its inputs of floats."""
    made = kernel(program, policy=policy)
    kinds = {p.name: p.kind for p in program.parameters}
    outputs = [p.kind for p in program.parameters if p.is_output]
    assume(any(kind in FLOATS for kind in outputs))
    floats = [p.name for p in program.parameters if kinds[p.name] in (*FLOATS, "float")]
    note(made.__name__)
    reads = [name for name in tn.vjp(made, wrt=None).wrt if name in floats] if floats else []
    assume(reads)
    found = tn.vjp(made, wrt=reads)
    assert isinstance(found, Derivative)
    return found


def call(made: Derivative, given: Arguments, device: str) -> tuple[Arguments, Arguments]:
    """The seeds and the gradients of one call."""
    names = made._names
    arguments = {spec.name: given[spec.name] for spec in names.inputs}
    random = np.random.default_rng(3)
    seeds = {}
    for output, spec in names.seeds.items():
        seeds[spec.name] = random.normal(size=given[output].shape).astype(given[output].dtype)
    gradients = {}
    for name, spec in names.gradients.items():
        like = given[name]
        if spec.role == "array":
            gradients[spec.name] = np.zeros_like(like)
            continue
        dtype = spec.dtype.dtype if spec.dtype else _width(made, given)
        shape = (spec.width, SAMPLES) if spec.width else (SAMPLES,)
        gradients[spec.name] = np.full(shape, 7, dtype)
    made(**arguments, **seeds, **gradients, device=device)
    return seeds, gradients


def _width(made: Derivative, given: Arguments) -> Any:
    for spec in (*made._names.inputs, *made.primal.signature.parameters):
        if spec.follows_width and given[spec.name].dtype.kind == "f":
            return given[spec.name].dtype
    return np.dtype(np.float64)


def expected(
    made: Derivative, given: Arguments, seeds: Arguments
) -> dict[str, np.ndarray[Any, Any]]:
    """The gradients, by tangents of every element of every input."""
    width = _width(made, given)
    types: Any = {"return": tn.ir.from_numpy(np.dtype(width))}
    for spec in made.primal.signature.parameters:
        value = given[spec.name]
        known = getattr(value, "dtype", None)
        types[spec.name] = spec.dtype or (
            tn.ir.from_numpy(known) if known is not None else type(value).__name__
        )
    unit = made.primal.lower(types).plan.units[0]
    mask = next((given[s.name] for s in made._names.inputs if s.role == "mask"), None)
    found = {}
    for name, spec in made._names.gradients.items():
        is_table = spec.role == "array"
        like = np.zeros(given[name].shape) if is_table else None
        shape = (spec.width, SAMPLES) if spec.width else (SAMPLES,)
        total = like if like is not None else np.full(shape, 7.0)
        for sample in range(SAMPLES):
            if mask is not None and mask[sample]:
                continue
            places: list[tuple[int, ...]] = [(sample,)]
            if is_table:
                places = [(n,) for n in range(len(given[name]))]
            elif spec.width:
                places = [(n, sample) for n in range(spec.width)]
            for place in places:
                asked = () if made.primal.signature.parameters and np.ndim(given[name]) == 0 else place
                run = Sample(unit, {**given, "samples": SAMPLES}, sample, (name, asked))
                value = 0.0
                for (array, at), dual in run.stored.items():
                    if array in made._names.seeds and dual.tangent is not None:
                        seed = seeds[made._names.seeds[array].name][at]
                        with np.errstate(all="ignore"):
                            value += float(seed) * dual.tangent
                total[place] = total[place] + value if is_table else value
        found[spec.name] = total
    return found


@given(st.data())
@fuzz(60)
def test_derivatives_are_those_of_tangents(data: st.DataObject) -> None:
    program = data.draw(sample_programs(FEATURES))
    made = derivative(program, data.draw(st.sampled_from(POLICIES)))
    given = data.draw(inputs(program))
    note(repr(given))
    for device in BACKENDS:
        seeds, found = call(made, given, device)
        wanted = expected(made, given, seeds)
        for name, array in found.items():
            right = wanted[name]
            is_number = np.abs(right) < 1e10
            single = array.dtype == np.float32 or "f32" in program.source
            np.testing.assert_allclose(
                array[is_number],
                right[is_number],
                rtol=1e-2 if single else 1e-6,
                atol=1e-3 if single else 1e-7,
                err_msg=f"{name} on {device}",
            )
