"""The hooks: devices, binaries, loading, launchers, threads and processes."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import llvmlite.binding
import numpy as np
import pytest
from unit_builder import UnitBuilder, drag

import turnout_cpu
from turnout.plugin import (
    Binary,
    CompileError,
    Device,
    IndexViolation,
    Options,
    Unavailable,
    ir,
)

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def add_unit(name: str, amount: float) -> ir.Unit:
    b = UnitBuilder(name)
    b.array("x", ir.f64)
    b.array("out", ir.f64, written=True)
    (i,) = b.space("x")
    b.store("out", b.compute("add", b.load("x", ir.f64, i), amount), i)
    return b.unit()


def test_device(device: Device):
    assert str(device) == "cpu:0"
    assert device.target.features == {"f64", "correct_rounding", "bounds", "private_counters"}
    assert device.target.lanes in (2, 4, 8)
    assert device.target.arch in device.label
    assert "core" in device.label


def test_importing_the_plugin_does_not_load_llvm():
    program = "import sys, turnout_cpu; print('llvmlite' in sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "False"


def test_without_llvmlite_the_reason_and_the_fix_are_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    monkeypatch.delitem(sys.modules, "turnout_cpu.compiler", raising=False)
    monkeypatch.delattr(turnout_cpu, "compiler", raising=False)
    with pytest.raises(Unavailable, match="cannot be imported") as caught:
        turnout_cpu.turnout_devices()
    assert caught.value.fix == "python -m pip install llvmlite"


def test_a_machine_without_code_generator_is_unavailable(monkeypatch):
    from turnout_cpu import compiler

    def fail():
        raise RuntimeError("no targets are registered")

    monkeypatch.setattr(compiler, "host", fail)
    with pytest.raises(Unavailable, match=r"code for this machine \(no targets are registered\)"):
        turnout_cpu.turnout_devices()


def test_binaries_load_in_another_process(device, tmp_path):
    unit = drag()
    binary = turnout_cpu.turnout_compile(unit, device.target, Options())
    (tmp_path / "binary").write_bytes(pickle.dumps(binary))
    program = (
        "import sys, pathlib, pickle, numpy as np, turnout_cpu\n"
        "from unit_builder import drag\n"
        "binary = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "v, out = np.linspace(-2, 2, 99), np.zeros(99)\n"
        "turnout_cpu.turnout_launch(binary, drag())((0.1, np.arange(99) % 3, v, out), 99)\n"
        "print(out.tobytes().hex())\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "binary")]
    output = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    v, out = np.linspace(-2, 2, 99), np.zeros(99)
    turnout_cpu.turnout_launch(binary, unit)((0.1, np.arange(99) % 3, v, out), 99)
    assert output.stdout.strip() == out.tobytes().hex()


def test_binaries_can_be_pickled(device):
    unit = add_unit("pickled", 1.0)
    binary = turnout_cpu.turnout_compile(unit, device.target, Options())
    launcher = turnout_cpu.turnout_launch(pickle.loads(pickle.dumps(binary)), unit)
    out = np.zeros(2)
    launcher((np.zeros(2), out), 2)
    assert out.tolist() == [1, 1]


def test_loading_does_not_optimise(device, monkeypatch):
    from turnout_cpu import compiler

    unit = add_unit("linked", 1.0)
    binary = turnout_cpu.turnout_compile(unit, device.target, Options())
    monkeypatch.setattr(compiler.llvm, "create_pass_builder", None)
    turnout_cpu.turnout_launch(binary, unit)


def test_damaged_binaries_are_refused(device):
    unit = add_unit("damaged", 1.0)
    binary = turnout_cpu.turnout_compile(unit, device.target, Options())
    with pytest.raises(CompileError, match="'other' is 'ptx', not 'llvm-object'"):
        turnout_cpu.turnout_launch(Binary("other", "ptx", b""), unit)
    with pytest.raises(CompileError, match="the code of binary 'unit_damaged' is damaged"):
        turnout_cpu.turnout_launch(replace(binary, payload=binary.payload[:-1]), unit)
    with pytest.raises(CompileError, match="no entry point 'unit_missing'"):
        turnout_cpu.turnout_launch(replace(binary, entry="unit_missing"), unit)
    metadata = {**binary.metadata, "symbols": "exp,_ZGVzN64v_exp"}
    with pytest.raises(CompileError, match="the code calls _ZGVzN64v_exp, not found here"):
        turnout_cpu.turnout_launch(replace(binary, metadata=metadata), unit)


def test_text_that_llvm_refuses_is_in_the_error():
    from turnout_cpu import compiler

    with pytest.raises(CompileError, match="backend 'cpu' could not compile") as caught:
        compiler.compile_text("define i64 @f() { ret i64 %nothing }", "", "", 3)
    assert "nothing" in caught.value.log
    assert caught.value.source.startswith("define")


def test_kernels_of_one_name_do_not_meet(load):
    launchers = [load(add_unit("same", float(k))) for k in range(5)]
    for k, launcher in enumerate(launchers):
        out = np.zeros(3)
        launcher((np.zeros(3), out), 3)
        assert out.tolist() == [k] * 3


CHUNKS = [
    (0, 4), (3, 7), (5, 2**63 - 1), (-3, 2), (8, 20), (4, 4), (6, 2), (-5, -1), (7, 29), (30, 31),
    (-(2**63), 2**63 - 1), (29, 30), (13, 14), (0, 0),
]  # fmt: skip


@pytest.mark.parametrize("shape", [(30,), (10, 3), (2, 3, 5), (0, 3), (3, 0), (2, 1, 3, 4)])
@pytest.mark.parametrize(("begin", "end"), CHUNKS)
def test_a_range_of_positions_runs_alone(load, shape, begin, end):
    """The native function runs the positions [begin, end) in the order of nested loops."""
    b = UnitBuilder("range")
    b.array("out", ir.f64, len(shape), written=True)
    positions = b.space("out", *range(len(shape)))
    b.store("out", b.constant(ir.f64, 1.0), *positions)
    launcher = load(b.unit())
    out = np.zeros(shape)
    assert launcher._holding(launcher._pack(out), begin, end) == 0
    assert out.ravel().tolist() == [begin <= k < end for k in range(out.size)]


def test_trailing_axes_of_constant_extents_run_whole(load):
    b = UnitBuilder("rows")
    b.array("out", ir.f64, 2, written=True)
    (i,) = b.space("out")
    j = b.fixed_axis(3)
    b.store("out", b.constant(ir.f64, 1.0), i, j)
    launcher = load(b.unit())
    out = np.zeros((10, 3))
    assert launcher._holding(launcher._pack(out), 4, 6) == 0
    assert out.tolist() == [[float(4 <= row < 6)] * 3 for row in range(10)]


@pytest.mark.parametrize(
    ("index", "violation"), [(7, (1, 0, 7, 5)), (-1, (1, 0, -1, 5)), (2**62, (1, 0, 2**62, 5))]
)
def test_debug_code_reports_the_first_violation(load, index, violation):
    b = UnitBuilder("lookup")
    b.array("where", ir.i64)
    b.array("table", ir.f64)
    b.array("out", ir.f64, written=True)
    (i,) = b.space("where")
    b.store("out", b.load("table", ir.f64, b.load("where", ir.i64, i)), i)
    launcher = load(b.unit(), debug=True)
    table, out = np.arange(5.0), np.zeros(4)
    launcher((np.array([0, 4, 1, 2]), table, out), 4)
    assert out.tolist() == [0, 4, 1, 2]
    out[:] = 0
    with pytest.raises(IndexViolation) as caught:
        launcher((np.array([3, 2, index, 1]), table, out), 4)
    assert caught.value.args == violation
    assert out.tolist() == [3, 2, 0, 0]


def test_debug_code_checks_stores_local_arrays_and_every_axis(load):
    b = UnitBuilder("checked")
    n = b.scalar("n", ir.i64)
    b.array("out", ir.f64, 2, written=True)
    b.local("work", ir.f64, 2, 3)
    one = b.constant(ir.f64, 1.0)
    is_small = b.compute("less", n, 4)
    b.if_(
        is_small,
        lambda: b.store("work", one, 1, n),
        lambda: b.store("out", one, 0, n),
    )
    launcher = load(b.unit(), debug=True)
    out = np.zeros((1, 6))
    launcher((2, out), 1)
    launcher((5, out), 1)
    for value, expected in [(3, (0, 1, 3, 3)), (6, (1, 1, 6, 6))]:
        with pytest.raises(IndexViolation) as caught:
            launcher((value, out), 1)
        assert caught.value.args == expected


def test_debug_code_takes_any_strides(load):
    x, out = np.arange(20.0)[::-2], np.zeros((10, 2))[:, 1]
    load(add_unit("debug_strides", 1.0), debug=True)((x, out), 10)
    assert (out == x + 1).all()


def test_sixteen_threads_compile_and_run(device):
    barrier = threading.Barrier(16)

    def work(k):
        unit = add_unit(f"thread{k}", float(k))
        barrier.wait()
        binary = turnout_cpu.turnout_compile(unit, device.target, Options())
        launcher = turnout_cpu.turnout_launch(binary, unit)
        x = np.arange(1000.0)
        out = np.zeros(1000)
        launcher((x, out), 1000)
        return (out == x + k).all()

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))


def test_one_launcher_shared_by_threads(load):
    launcher = load(add_unit("shared", 1.0))

    def work(k):
        x, out = np.full(50 + k, float(k)), np.zeros(50 + k)
        for _ in range(200):
            launcher((x, out), x.size)
        return (out == k + 1).all()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_long_calls_release_the_interpreter_lock(load):
    """A kernel that waits for another thread's word in memory ends: the other thread can run."""
    b = UnitBuilder("wait")
    b.array("flag", ir.i64, written=True)
    b.store("flag", b.constant(ir.i64, 1), 0)
    # The stores make LLVM read the element anew in each round.
    b.while_(
        (),
        lambda: b.compute("equal", b.load("flag", ir.i64, 1), 0),
        lambda: b.store(
            "flag", b.compute("add", b.load("flag", ir.i64, b.constant(ir.i64, 0)), 1), 0
        ),
    )
    flag = np.zeros(2, np.int64)
    launcher = load(b.unit(), level=0)
    thread = threading.Thread(target=launcher, args=((flag,), 1), daemon=True)
    thread.start()
    while flag[0] == 0:
        pass
    flag[1] = 1
    thread.join(60)
    assert not thread.is_alive()


def test_short_calls_hold_the_interpreter_lock_and_long_ones_do_not(load):
    launcher = load(add_unit("sizes", 1.0))
    used = []
    launcher._holding = lambda *_: used.append("holding")
    launcher._releasing = lambda *_: used.append("releasing")
    x = np.zeros(10)
    launcher((x, x), 10)
    launcher((x, x), 10_000_000)
    assert used == ["holding", "releasing"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_children_of_a_fork_run_and_compile(load, device):
    launcher = load(add_unit("before_fork", 1.0))
    out = np.zeros(100)
    launcher((np.zeros(100), out), 100)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            launcher((out, out), 100)
            unit = add_unit("after_fork", 5.0)
            binary = turnout_cpu.turnout_compile(unit, device.target, Options())
            turnout_cpu.turnout_launch(binary, unit)((out, out), 100)
            status = 0 if (out == 7).all() else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (out == 1).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_children_of_a_fork_compile_while_other_threads_are_in_llvm(device):
    # What llvmlite does in other threads: calls of other packages, and freeing what was dropped.
    is_over = threading.Event()

    def call_llvm() -> None:
        while not is_over.is_set():
            llvmlite.binding.get_default_triple()

    thread = threading.Thread(target=call_llvm)
    thread.start()
    statuses = []
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                signal.alarm(30)  # ends a child that hangs
                status = 1
                try:
                    unit = add_unit("after_fork", 5.0)
                    binary = turnout_cpu.turnout_compile(unit, device.target, Options(level=0))
                    turnout_cpu.turnout_launch(binary, unit)
                    status = 0
                finally:
                    os._exit(status)
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    finally:
        is_over.set()
        thread.join()
    assert statuses == [0] * 10


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory size from /proc")
def test_dropped_kernels_give_their_memory_back(device):
    unit = add_unit("dropped", 1.0)
    binary = turnout_cpu.turnout_compile(unit, device.target, Options())

    def resident_bytes():
        gc.collect()
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def load_and_drop(count):
        for _ in range(count):
            turnout_cpu.turnout_launch(binary, unit)

    load_and_drop(100)
    before = resident_bytes()
    load_and_drop(500)
    # One page per kernel would be 2 MB.
    assert resident_bytes() - before < 1_000_000


def test_a_kernel_dropped_while_it_runs_stays_loaded(device):
    b = UnitBuilder("running")
    b.array("flag", ir.i64, written=True)
    b.store("flag", b.constant(ir.i64, 1), 0)
    b.while_(
        (),
        lambda: b.compute("equal", b.load("flag", ir.i64, 1), 0),
        lambda: b.store("flag", b.constant(ir.i64, 1), 0),
    )
    unit = b.unit()
    binary = turnout_cpu.turnout_compile(unit, device.target, Options(level=0))
    flag = np.zeros(2, np.int64)

    def work():
        turnout_cpu.turnout_launch(binary, unit)((flag,), 1)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while flag[0] == 0:
        pass
    gc.collect()
    flag[1] = 1
    thread.join(60)
    assert not thread.is_alive()


def test_addresses_are_found_without_numpys_object_layout(monkeypatch, load):
    """Where arrays are laid out otherwise, their public attribute is asked."""
    from turnout_cpu import launcher

    monkeypatch.setattr(launcher, "_ADDRESS", "{0}.ctypes.data")
    x, out = np.arange(10.0)[::2], np.zeros(5)
    load(add_unit("attribute", 1.0))((x, out), 5)
    assert (out == x + 1).all()


def test_launchers_hold_no_array(load):
    launcher = load(add_unit("released", 1.0))
    x, out = np.zeros(5), np.zeros(5)
    before = sys.getrefcount(x)
    launcher((x, out), 5)
    assert sys.getrefcount(x) == before
    assert ctypes.sizeof(ctypes.c_void_p) == 8
