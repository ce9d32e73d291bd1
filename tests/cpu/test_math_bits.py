"""A math function gives the same bits wherever a sample stands in an array."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from unit_builder import UnitBuilder, drag

import turnout_cpu
from turnout.plugin import OPERATIONS, Device, Options, Target, ir
from turnout_cpu import vector_math

FUNCTIONS = [name for name, row in OPERATIONS.items() if not row.is_exact]
N = 203
"""Whole vectors of every width, and a remainder."""


def function_unit(name: str, dtype: ir.DType) -> ir.Unit:
    arity = OPERATIONS[name].arity
    b = UnitBuilder(f"bits_{name}_{dtype}")
    arrays = [b.array(f"x{k}", dtype) for k in range(arity)]
    b.array("out", dtype, written=True)
    (i,) = b.space("out")
    b.store("out", b.compute(name, *(b.load(array, dtype, i) for array in arrays)), i)
    return b.unit()


def samples(name: str, dtype: ir.DType) -> list[np.ndarray]:
    random = np.random.default_rng(len(name))
    arity = OPERATIONS[name].arity
    x = random.normal(size=(arity, N)) * 10.0 ** random.integers(-6, 3, (arity, N))
    x[0, ::17] = np.resize([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-310, 700.0], 12)
    with np.errstate(under="ignore"):
        return list(x.astype(dtype.dtype))


def bits(x: np.ndarray) -> list[int]:
    return x.view(f"u{x.itemsize}").tolist()


@pytest.fixture(params=["e", "d", "b", "libm"])
def run(request, device, monkeypatch):
    """Compile with each width of the vector library, and as where there is none."""
    if request.param == "libm":
        monkeypatch.setattr(vector_math, "available_symbols", frozenset)
        target = turnout_cpu.turnout_devices()[0].target
        assert not any(option.startswith("libmvec") for option in target.options)
    else:
        target = _with_vectors(device.target, request.param)

    def run(unit: ir.Unit):
        binary = turnout_cpu.turnout_compile(unit, target, Options(keep_text=True))
        assert ("_ZGV" in binary.metadata["text:llvm-ir"]) == (request.param != "libm")
        return turnout_cpu.turnout_launch(binary, unit)

    return run


def _with_vectors(target: Target, isa: vector_math.Isa) -> Target:
    """The target as if its processor had vectors of this width."""
    found = [option for option in target.options if option.startswith("libmvec=")]
    widths = list(vector_math.VECTOR_BITS)
    if not found or widths.index(isa) < widths.index(found[0].removeprefix("libmvec=")):
        pytest.skip(f"no vector math library for {vector_math.VECTOR_BITS[isa]} bits here")
    options = tuple(f"libmvec={isa}" if option in found else option for option in target.options)
    return replace(target, options=options, lanes=vector_math.VECTOR_BITS[isa] // 64)


@pytest.mark.parametrize("dtype", [ir.f32, ir.f64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_batch_shifted_and_single_samples_have_the_same_bits(run, name, dtype):
    launcher = run(function_unit(name, dtype))
    x = samples(name, dtype)
    batch, shifted, single, strided = np.zeros((4, N), dtype.dtype)
    launcher((*x, batch), N)
    launcher((*(a[3:] for a in x), shifted[3:]), N - 3)
    for i in range(N):
        launcher((*(a[i : i + 1] for a in x), single[i : i + 1]), 1)
    launcher((*(a[::-1] for a in x), strided[::-1]), N)
    assert bits(single) == bits(batch)
    assert bits(shifted[3:]) == bits(batch[3:])
    assert bits(strided) == bits(batch)


@pytest.mark.parametrize("dtype", [ir.f32, ir.f64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_constant_arguments_give_the_bits_of_the_run_time(run, name, dtype):
    x = [a[40:56] for a in samples(name, dtype)]
    expected, out = np.zeros((2, 16), dtype.dtype)
    run(function_unit(name, dtype))((*x, expected), 16)
    b = UnitBuilder(f"constant_{name}_{dtype}")
    b.array("out", dtype, written=True)
    for i, operands in enumerate(zip(*x, strict=True)):
        values = [b.constant(dtype, float(operand)) for operand in operands]
        b.store("out", b.compute(name, *values), i)
    run(b.unit())((out,), 1)
    assert bits(out) == bits(expected)


@pytest.mark.parametrize("dtype", [ir.f32, ir.f64], ids=str)
def test_switch_and_predicated_form_have_the_same_bits(run, dtype):
    v = samples("exp", dtype)[0]
    regime = np.random.default_rng(0).integers(-1, 4, N)
    switch, predicated, single = np.zeros((3, N), dtype.dtype)
    launcher = run(drag(dtype, "switch"))
    launcher((0.1, regime, v, switch), N)
    run(drag(dtype, "predicated"))((0.1, regime, v, predicated), N)
    for i in range(N):
        launcher((0.1, *(a[i : i + 1] for a in (regime, v, single))), 1)
    assert bits(switch) == bits(predicated) == bits(single)


def test_mixed_widths_have_the_bits_of_one_width(run):
    """Float32 at the lanes of float64 and float64 at those of float32 use other vector code."""
    x = samples("sin", ir.f32)[0]
    separate, mixed = np.zeros((2, N), np.float32), np.zeros((2, N))
    run(function_unit("sin", ir.f32))((x, separate[0]), N)
    wide = np.zeros(N)
    run(function_unit("sin", ir.f64))((x.astype(np.float64), wide), N)
    b = UnitBuilder("mixed_sin")
    b.array("x", ir.f32)
    b.array("narrow", ir.f64, written=True)
    b.array("wide", ir.f64, written=True)
    (i,) = b.space("x")
    value = b.load("x", ir.f32, i)
    b.store("narrow", b.cast(ir.f64, b.compute("sin", value)), i)
    b.store("wide", b.compute("sin", b.cast(ir.f64, value)), i)
    run(b.unit())((x, *mixed), N)
    assert bits(mixed[0].astype(np.float32)) == bits(separate[0])
    assert bits(mixed[1]) == bits(wide)


def test_the_vector_library_is_part_of_the_target(device: Device):
    names = {option.partition("=")[0] for option in device.target.options}
    assert {"llvmlite", "llvm", "features"} <= names
    assert ("libmvec" in names) == ("libc" in names) == bool(vector_math.available_symbols())
