"""Derivatives of generated kernels: against tangents, and the same bits however they are run."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume, given, note
from hypothesis import strategies as st

import turnout as tn
from turnout.derive import Derivative, _Primal

from .dual import Sample
from .grammar import Features
from .harness import BACKENDS, assert_same, fuzz, kernel
from .inputs import Arguments, values
from .kinds import FLOATS, dtype_of
from .programs import Program, sample_programs

FEATURES = Features(math=True, vectors=True, dispatches=True, local_arrays=False)
SAMPLES = 5
Numbers = np.ndarray[Any, Any]
POLICIES = ("switch", "predicated", "auto")


def moderate(kind: str, shape: tuple[int, ...], seed: int) -> Numbers:
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
    """The derivative of a program by all its inputs of floats, if it has derivatives."""
    assume(any(p.is_output and p.kind in FLOATS for p in program.parameters))
    made = kernel(program, policy=policy)
    floats = [p.name for p in program.parameters if p.kind in (*FLOATS, "float")]
    try:
        inputs = [spec.name for spec in _Primal(made).inputs if spec.name in floats]
    except tn.KernelError as error:
        # Some kernels can be compiled for a number of one of NumPy's types only.
        assume("generated is read before its first call" not in "".join(error.__notes__))
        raise
    assume(inputs)
    found = tn.vjp(made, wrt=inputs)
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
) -> dict[str, tuple[Numbers, Numbers]]:
    """The gradients by tangents of every element of every input, and the sizes of their terms."""
    types: Any = {"return": tn.ir.from_numpy(np.dtype(_width(made, given)))}
    for spec in made.primal.signature.parameters:
        value = given[spec.name]
        dtype = getattr(value, "dtype", None)
        known = type(value).__name__ if dtype is None else tn.ir.from_numpy(dtype)
        types[spec.name] = spec.dtype or known
    unit = made.primal.lower(types).plan.units[0]
    mask = next((given[s.name] for s in made._names.inputs if s.role == "mask"), None)
    found = {}
    for name, spec in made._names.gradients.items():
        is_table = spec.role == "array"
        shape = (spec.width, SAMPLES) if spec.width else (SAMPLES,)
        total = np.zeros(given[name].shape) if is_table else np.full(shape, 7.0)
        sizes = np.zeros(total.shape)
        for sample in range(SAMPLES):
            if mask is not None and mask[sample]:
                continue
            places: list[tuple[int, ...]] = [(sample,)]
            if is_table:
                places = [(n,) for n in range(len(given[name]))]
            elif spec.width:
                places = [(n, sample) for n in range(spec.width)]
            for place in places:
                element = place if np.ndim(given[name]) else ()
                run = Sample(unit, {**given, "samples": SAMPLES}, sample, (name, element))
                value, size = _weighted(made, run, seeds)
                total[place] = total[place] + value if is_table else value
                sizes[place] += size
        found[spec.name] = total, sizes
    return found


def _weighted(made: Derivative, run: Sample, seeds: Arguments) -> tuple[float, float]:
    """The sum of the tangents of all outputs, with seeds as weights, and of the sizes."""
    total = size = 0.0
    for (array, place), dual in run.stored.items():
        if array in made._names.seeds and dual.tangent is not None:
            with np.errstate(all="ignore"):
                seed = float(seeds[made._names.seeds[array].name][place])
                total += seed * dual.tangent
                size += abs(seed) * dual.size
    return total, size


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
            right, size = wanted[name]
            has_f32 = array.dtype == np.float32 or "f32" in program.source
            is_known = np.isfinite(right) & (size < 1e30)
            error = np.abs(array[is_known] - right[is_known])
            # What is not a number here is none that is smaller than the limit.
            assert (error <= size[is_known] * (1e-3 if has_f32 else 1e-9)).all(), (
                f"{name} on {device} is {array}, by tangents it is {right}"
            )


@given(st.data())
@fuzz(20)
def test_policies_give_the_same_derivatives(data: st.DataObject) -> None:
    program = data.draw(sample_programs(FEATURES))
    assume("POLICY" in program.source)
    given = data.draw(inputs(program))
    note(repr(given))
    for device in BACKENDS:
        _, first = call(derivative(program, "switch"), given, device)
        for policy in ("predicated", "auto"):
            _, other = call(derivative(program, policy), given, device)
            assert_same(other, first, f"{policy} and switch on {device}")
