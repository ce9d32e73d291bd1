"""What LLVM makes of loops, as the loop reports tell, and the text that is kept for people."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from unit_builder import UnitBuilder, drag

import turnout as tn
import turnout.math as tm
import turnout_cpu
from turnout import NDArray, f64
from turnout.plugin import Options, Target, ir
from turnout_cpu import emit
from turnout_cpu.accesses import may_declare_parallel
from turnout_cpu.body import Vectors


@pytest.fixture
def metadata(device):
    def metadata(unit, **options):
        options = Options(keep_text=True, **options)
        return turnout_cpu.turnout_compile(unit, device.target, options).metadata

    return metadata


@pytest.fixture
def vector_math(device):
    if not any(option.startswith("libmvec=") for option in device.target.options):
        pytest.skip("no vector math library here")


def axpy(dtype=ir.f64, line=0):
    b = UnitBuilder("axpy")
    a = b.scalar("a", dtype)
    b.array("x", dtype)
    b.array("y", dtype, written=True)

    def body(i):
        product = b.compute("multiply", a, b.load("x", dtype, i))
        b.store("y", b.compute("add", product, b.load("y", dtype, i)), i)

    if line:
        b.for_((0, b.extent("x"), 1), (), body, line)
    else:
        body(*b.space("x"))
    return b.unit()


def test_straight_loop(metadata, device):
    assert metadata(axpy())["loop:space"] == f"vectorised, {device.target.lanes} lanes"
    assert metadata(axpy(ir.f32))["loop:space"] == f"vectorised, {2 * device.target.lanes} lanes"


def test_serial_loop_is_vectorised_with_alias_checks(metadata, device):
    assert metadata(axpy(line=17))["loop:17"] == f"vectorised, {device.target.lanes} lanes"


@pytest.mark.parametrize("form", ["predicated", "switch"])
@pytest.mark.parametrize("dtype", [ir.f32, ir.f64], ids=str)
def test_branches_with_math_calls_are_vectorised(metadata, vector_math, form, dtype):
    report = metadata(drag(dtype, form))["loop:space"]
    assert report.startswith("vectorised")


def test_calls_in_a_branch_run_under_a_mask(metadata, device, vector_math, monkeypatch):
    """Lanes that do not take the branch are no special cases, and idle vectors do not call."""
    monkeypatch.setattr(emit, "explicit_lanes", lambda *_: None)
    switch, predicated = (metadata(drag(ir.f64, form)) for form in ("switch", "predicated"))
    masked = f"@turnout_exp_f64_masked_{device.target.lanes}(<{device.target.lanes} x double> %"
    calls = [found["text:optimised-llvm-ir"].count(masked) for found in (switch, predicated)]
    # Its definition, and the calls in the body for dense rows and in that for any strides.
    assert calls == [3, 1]


def test_mixed_widths_use_vector_routines(metadata, vector_math):
    """Float32 and float64 in one loop: both functions run in vectors, none lane by lane."""
    b = UnitBuilder("mixed")
    b.array("x", ir.f32)
    b.array("y", ir.f64)
    b.array("out", ir.f64, written=True)
    (i,) = b.space("x")
    x, y = b.load("x", ir.f32, i), b.load("y", ir.f64, i)
    b.store("out", b.compute("add", b.cast(ir.f64, b.compute("exp", x)), b.compute("exp", y)), i)
    found = metadata(b.unit())
    assert found["loop:space"].startswith("vectorised")
    vector_body = found["text:optimised-llvm-ir"].split("vector.body")[1].split("br i1")[0]
    assert "call fastcc double @turnout_exp" not in vector_body


@pytest.mark.parametrize("is_explicit", [True, False])
def test_vectors_that_wait_for_a_call_do_so_in_one_line_of_the_cache(
    metadata, device, vector_math, monkeypatch, is_explicit
):
    """The stack of a thread begins anywhere; the code aligns it for its vectors."""
    if device.target.lanes < 8:
        pytest.skip("about vectors of 512 bits")
    if not is_explicit:
        monkeypatch.setattr(emit, "explicit_lanes", lambda *_: None)
    assembly = metadata(drag(ir.f64))["text:assembly"]
    stored = re.findall(r"(vmov\w+)\s+%zmm\d+, -?\d*\(%rsp\)", assembly)
    assert stored
    assert not [each for each in stored if each.startswith("vmovu")]


def test_wrappers_keep_an_argument_that_is_always_the_same(metadata, vector_math):
    """Without it the variants of the call would not fit, and LLVM ends the process over that."""
    b = UnitBuilder("same_constant")
    b.array("x", ir.f64)
    b.array("out", ir.f64, written=True)
    (i,) = b.space("x")
    value = b.if_(
        b.compute("greater", b.load("x", ir.f64, i), 0.0),
        lambda: b.compute("tanh", b.constant(ir.f64, 0.75)),
        lambda: b.constant(ir.f64, 0.0),
    )
    b.store("out", value, i)
    optimised = metadata(b.unit())["text:optimised-llvm-ir"]
    assert "double @turnout_tanh_f64(double " in optimised


def test_scalar_loops_give_the_reason(metadata):
    b = UnitBuilder("reasons")
    b.array("x", ir.f64)
    b.array("out", ir.f64, written=True)
    n = b.extent("x")
    one = b.constant(ir.f64, 1.0)

    def horner(i, s):
        return b.compute("fma", s, b.load("x", ir.f64, i), one)

    b.store("out", b.for_((0, n, 1), (one,), horner, line=3), 0)
    b.while_(
        (one,),
        lambda s: b.compute("less", s, b.load("x", ir.f64, 0)),
        lambda s: b.compute("multiply", s, 2.0),
        line=5,
    )

    def recurrence(i):
        def body(j):
            before = b.load("out", ir.f64, b.compute("subtract", j, 1))
            b.store("out", b.compute("divide", before, one), j)

        b.for_((1, i, 1), (), body, line=9)

    b.for_((1, n, 1), (), recurrence, line=8)
    found = metadata(b.unit())
    assert found["loop:3"] == "scalar: each round needs values of the round before"
    assert found["loop:5"] == "scalar: the number of rounds is not known in advance"
    assert found["loop:8"] == "scalar: it contains another loop"
    assert found["loop:9"] == "scalar: LLVM found no safe or profitable way"


def test_operations_without_vector_code_are_named(metadata):
    b = UnitBuilder("division")
    b.array("x", ir.i64)
    b.array("out", ir.i64, written=True)
    (i,) = b.space("x")
    x = b.load("x", ir.i64, i)
    b.store("out", b.compute("remainder", b.compute("floor_divide", i, x), x), i)
    found = metadata(b.unit())["loop:space"]
    assert found == "scalar: no vector code for floor_divide, remainder"


def test_reports_of_unoptimised_and_debug_code(metadata):
    assert metadata(axpy(), level=1)["loop:space"] == "scalar: optimisation level 1"
    assert metadata(axpy(), debug=True)["loop:space"] == "scalar: every index is checked"


def test_independent_inner_loops(load, metadata, device):
    """Each row of out is a row of x plus a row of table: proven independent, so no alias checks."""
    b = UnitBuilder("rows")
    b.array("table", ir.f64, 2)
    b.array("x", ir.f64, 2)
    b.array("out", ir.f64, 2, written=True)
    row = b.array("row", ir.i64)
    (i,) = b.space("x")
    r = b.load(row, ir.i64, i)

    def body(j):
        x, y = b.load("x", ir.f64, i, j), b.load("table", ir.f64, r, j)
        b.store("out", b.compute("add", x, y), i, j)

    b.for_((0, b.extent("x", 1), 1), (), body, line=6, independent=True)
    unit = b.unit()
    found = metadata(unit)
    assert found["loop:6"] == f"vectorised, {device.target.lanes} lanes"
    assert "vector.memcheck" not in found["text:optimised-llvm-ir"]
    assert found["loop:space"] == "scalar: it contains another loop"
    random = np.random.default_rng(0)
    table, x, row = (
        random.normal(size=(4, 50)),
        random.normal(size=(9, 50)),
        random.integers(0, 4, 9),
    )
    out = np.zeros((9, 50))
    load(unit)((table, x, out, row), 9)
    assert (out == x + table[row]).all()


def test_atomic_updates_are_reported(metadata):
    b = UnitBuilder("shared")
    b.array("x", ir.i64)
    b.array("out", ir.i64, written=True)
    (i,) = b.space("x")
    b.store("out", i, b.load("x", ir.i64, i), combine="add")
    report = metadata(b.unit())["loop:space"]
    assert report == "scalar: it updates elements that its positions share"


def test_inner_loop_of_constant_length_is_unrolled(metadata, device):
    b = UnitBuilder("polynomial")
    b.array("x", ir.f64)
    b.array("out", ir.f64, written=True)
    (i,) = b.space("x")
    x = b.load("x", ir.f64, i)
    b.local("power", ir.f64, 4)
    b.store("power", x, 0)

    def body(k):
        before = b.load("power", ir.f64, b.compute("subtract", k, 1))
        b.store("power", b.compute("multiply", before, x), k)

    b.for_((1, 4, 1), (), body, line=2)
    b.store("out", b.load("power", ir.f64, 3), i)
    found = metadata(b.unit())
    assert found["loop:2"] == "unrolled completely or removed"
    assert found["loop:space"] == f"vectorised, {device.target.lanes} lanes"


def test_local_arrays_in_memory_keep_positions_apart(load, metadata, device, monkeypatch):
    """A local array that stays in memory: LLVM has one for all positions, so no lanes then."""
    b = UnitBuilder("scatter")
    b.array("x", ir.i64)
    b.array("out", ir.i64, written=True)
    (i,) = b.space("x")
    b.local("seen", ir.i64, 8)
    x = b.load("x", ir.i64, i)
    b.store("seen", i, x)
    b.store("out", b.load("seen", ir.i64, b.compute("bit_xor", x, 1)), i)
    unit = b.unit()
    lanes = 2 * device.target.lanes
    for is_explicit, report in (
        (True, f"vectorised, {lanes} lanes (explicit vectors)"),
        (False, "scalar: LLVM found no safe or profitable way"),
    ):
        if not is_explicit:
            monkeypatch.setattr(emit, "explicit_lanes", lambda *_: None)
        x = np.random.default_rng(0).integers(0, 8, 1000)
        out = np.ones(1000, np.int64)
        load(unit)((x, out), 1000)
        assert (out == 0).all()
        assert metadata(unit)["loop:space"] == report


@tn.kernel
def running_norms(a: NDArray[f64, 3], out: NDArray[f64, 3]) -> None:
    for s in range(a.shape[0]):
        total = 0.0
        for i in range(a.shape[1]):
            for j in range(a.shape[2]):
                total += a[s, i, j] * a[s, i, j]
                out[s, i, j] = tm.sqrt(total)


def bodies(side, device, **options):
    """The functions of the unit for matrices of one size, and their text."""
    shape = (None, side, side)
    kernel = running_norms.specialise(a=shape, out=shape) if side else running_norms
    (run,) = kernel.lower(kernel.default_types()).plan.runs
    text = emit.emit(run.unit, Vectors(None, device.target.lanes * 64), Options(**options))
    names = re.findall(r"^define internal i64 @\S+\.(\w+)\(", text, re.MULTILINE)
    functions = re.split(r"^define internal i64 ", text, flags=re.MULTILINE)[1:]
    return dict(zip(names, functions, strict=True))


def test_memory_that_no_cache_holds_is_read_in_its_order(device):
    made = bodies(4, device)
    assert list(made) == ["rows", "ordered", "strided"]
    metadata = made["strided"]  # and what follows, at the end of the text
    (is_scalar,) = re.findall(
        r'^(!\d+) = !\{!"llvm.loop.vectorize.enable", i1 false\}', metadata, re.M
    )
    loops = re.findall(rf"^(!\d+) = distinct .*{is_scalar}\b", metadata, re.MULTILINE)
    assert loops
    assert any(f"!llvm.loop {loop}" in made["ordered"] for loop in loops)
    assert not any(f"!llvm.loop {loop}" in made["rows"] for loop in loops)


def test_small_pieces_of_arrays_and_loops_need_no_order(device):
    for side, options in ((2, {}), (0, {}), (4, {"debug": True}), (4, {"level": 1})):
        assert "ordered" not in bodies(side, device, **options)


def test_arrays_of_any_size_get_the_same_bits():
    side = 4
    shape = (None, side, side)
    kernel = running_norms.specialise(a=shape, out=shape)
    count = emit.CACHED_BYTES // (2 * 8 * side * side) + 3
    a = np.random.default_rng(3).normal(size=(count, side, side))
    whole, part = np.empty_like(a), np.empty_like(a)
    kernel(a, whole)
    half = count // 2
    kernel(a[:half], part[:half])
    kernel(a[half:], part[half:])
    np.testing.assert_array_equal(whole, part)
    expected = np.sqrt(np.cumsum((a**2).reshape(count, -1), axis=1)).reshape(a.shape)
    np.testing.assert_allclose(whole, expected)


def test_which_loops_are_declared_parallel():
    for unit in (axpy(), drag()):
        assert may_declare_parallel(unit.body, unit.arrays)


@pytest.mark.parametrize(
    ("first", "second", "is_parallel"),
    [
        (("load", 2), ("store", 2), True),
        (("load", 2), ("load", 2), True),
        (("store", 1), ("load", 1), True),
        (("store", 1), ("load", 2), False),
        (("store", 2), ("load", 1), False),
        (("store", 2), ("store", 1), False),
        (("store", 1), ("store", 2), True),
    ],
)
def test_accesses_that_llvm_may_move_are_not_declared_parallel(first, second, is_parallel):
    b = UnitBuilder("moves")
    b.array("a", ir.f64, written=True)
    (i,) = b.space("a")
    value = b.constant(ir.f64, 1.0)
    for kind, stride in (first, second):
        index = b.compute("add", b.compute("multiply", i, stride) if stride > 1 else i, 3)
        if kind == "load":
            b.load("a", ir.f64, index)
        else:
            b.store("a", value, index)
    assert may_declare_parallel(b.unit().body, "a") is is_parallel


def test_kept_text(metadata):
    found = metadata(axpy())
    assert "fmul double" in found["text:llvm-ir"]
    assert "<" in found["text:optimised-llvm-ir"]
    assert "ret" in found["text:assembly"]


def test_text_and_reports_are_not_kept_for_code_that_is_only_run(device):
    binary = turnout_cpu.turnout_compile(axpy(), device.target, Options())
    assert not any(key.startswith(("text:", "loop:")) for key in binary.metadata)


def test_a_target_without_features_compiles_anywhere(load, device):
    plain = Target(backend="cpu", arch="", lanes=2)
    unit = drag()
    binary = turnout_cpu.turnout_compile(unit, plain, Options(keep_text=True))
    assert "zmm" not in binary.metadata["text:assembly"]
    assert "_ZGV" not in binary.metadata["text:llvm-ir"]


def test_compilation_is_deterministic(device):
    """Text and code are the same in processes with other hash seeds."""
    program = (
        "import hashlib, turnout_cpu; from unit_builder import drag\n"
        "from turnout.plugin import Options\n"
        "target = turnout_cpu.turnout_devices()[0].target\n"
        "b = turnout_cpu.turnout_compile(drag(), target, Options(keep_text=True))\n"
        "text = b.metadata['text:llvm-ir'].encode()\n"
        "print(target, hashlib.sha256(text + b.payload).hexdigest())\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
