"""The conformance suite passes where it should, and finds what is wrong where something is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_plugins import Site

import turnout as tn
from turnout.conformance import compare, kernels, operations
from turnout.conformance.plugin import summary
from turnout.plugin import OPERATIONS, ir

PROGRAM = """
import json, sys
from turnout.conformance import run
sys.exit(run(**json.loads(sys.argv[1])))
"""

# A backend that runs units by the reference; tests append what is wrong with theirs.
BACKEND = """
from dataclasses import replace

import numpy as np

from turnout import reference
from turnout.ir.transform import with_regions
from turnout.plugin import Binary, Device, Target, Unavailable, hookimpl, ir

FEATURES = {"f64", "correct_rounding", "bounds"}

@hookimpl
def turnout_devices():
    return [Device(0, "a fake", Target("fake", "none", frozenset(FEATURES)))]

@hookimpl
def turnout_compile(unit):
    return Binary(unit.name, "fake", b"")

@hookimpl
def turnout_launch(unit):
    return reference.turnout_launch(unit=unit)

def rewritten(unit, change):
    def region(old):
        return replace(old, body=tuple(statement(each) for each in old.body))
    def statement(old):
        return change(with_regions(old, [region(each) for each in old.regions]))
    return replace(unit, body=region(unit.body))

class Launcher:
    direct = None

    def __init__(self, unit):
        self.unit = unit
        self.inner = reference.turnout_launch(unit=unit)

    def __call__(self, args, size):
        self.inner(args, size)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path / "site", monkeypatch)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def check(folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the suite in a new process whose working directory is `folder`."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(options)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout.splitlines()[-1]


# ---- backends that conform ---------------------------------------------------------------------


def test_supported_backend_passes(empty: Path) -> None:
    """The backend that is always there; others are checked by the command itself."""
    backend = "reference"
    done = check(empty, backend=backend)
    assert done.returncode == 0, done.stdout
    label = re.escape(tn.devices(backend)[0].label)
    assert re.fullmatch(rf"conformance {backend}:0 {label}: \d{{3}} passed", last_line(done))
    assert list(empty.iterdir()) == []


# What a graphics card does: memory of its own, and launches that return before the work is done.
QUEUEING = """
queue = []

class Array:
    def __init__(self, host):
        self.host, self.shape, self.ndim, self.dtype = host, host.shape, host.ndim, host.dtype

class Memory:
    def owns(self, value):
        return isinstance(value, Array)

    def put(self, host):
        return Array(np.array(host))

    def get(self, value, out):
        finish()
        out[...] = value.host

def finish():
    while queue:
        work = queue.pop(0)
        work()

class Queueing(Launcher):
    def __call__(self, args, size):
        own = tuple(arg.host if isinstance(arg, Array) else arg for arg in args)
        queue.append(lambda: self.inner(own, size))

FEATURES = {"f64", "correct_rounding"}

@hookimpl
def turnout_launch(unit):
    return Queueing(unit)

@hookimpl
def turnout_sync():
    return finish

@hookimpl
def turnout_memory():
    return Memory()
"""


def test_device_with_a_queue_and_memory_of_its_own_passes(site: Site, empty: Path) -> None:
    site.install_backend("fake", BACKEND + QUEUEING)
    done = check(empty, backend="fake", keyword="not test_operation and not test_cast")
    assert done.returncode == 0, done.stdout
    pattern = r"conformance fake:0 a fake: \d{3} passed, 1 skipped \(no bounds\)"
    assert re.fullmatch(pattern, last_line(done))


def test_capabilities_that_are_not_declared_are_skipped(site: Site, empty: Path) -> None:
    source = BACKEND.replace('FEATURES = {"f64", "correct_rounding", "bounds"}', "FEATURES = {}")
    site.install_backend("fake", source)
    done = check(empty, backend="fake", keyword="negative or debug or accuracy or division")
    assert done.returncode == 0, done.stdout
    accurate = sum(not row.is_exact for row in OPERATIONS.values())
    expected = f"{accurate + 9} passed, {accurate + 3} skipped ({accurate + 1} no f64, "
    assert last_line(done) == (
        f"conformance fake:0 a fake: {expected}1 no correct_rounding, 1 no bounds)"
    )


def test_settings_of_the_user_do_not_matter(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty / "pytest.ini").write_text("[pytest]\naddopts = --nonsense\n")
    (empty / "conftest.py").write_text("raise SystemExit('a conftest of the user')")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--more-nonsense")
    monkeypatch.setenv("PYTEST_PLUGINS", "no_such_plugin")
    done = check(empty, backend="reference", keyword="test_two_threads", verbose=True)
    assert done.returncode == 0, done.stdout
    assert "test_two_threads[reference:0] PASSED" in done.stdout
    assert last_line(done).endswith(": 2 passed")


def test_the_suite_runs_in_a_pytest_of_ones_own(empty: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "turnout.conformance.plugin"]
    command += ["--pyargs", "turnout.conformance", "-k", "test_two_threads"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *options], cwd=empty, env=environment, capture_output=True, text=True
        )

    done = run("--turnout-backend", "reference")
    assert done.returncode == 0, done.stdout
    assert last_line(done).startswith("conformance reference:0 NumPy")
    without = run()
    assert without.returncode == pytest.ExitCode.INTERRUPTED
    assert "give --turnout-backend NAME; installed are" in without.stdout


# ---- backends that cannot be tested ------------------------------------------------------------


def test_unknown_backend(empty: Path) -> None:
    done = check(empty, backend="referense")
    assert done.returncode == 2
    assert "backend 'referense' is not installed (did you mean 'reference'?)" in done.stderr
    assert "reference (usable)" in done.stderr


def test_unknown_test(empty: Path) -> None:
    done = check(empty, backend="reference", keyword="no_such_test")
    assert done.returncode == 2
    assert "turnout check: no test matches 'no_such_test'" in done.stderr


def test_a_choice_of_tests_that_cannot_be_read(empty: Path) -> None:
    done = check(empty, backend="reference", keyword="((")
    assert done.returncode == 2
    assert "Wrong expression passed to '-k': ((" in done.stderr


def test_missing_hardware_is_a_failure(site: Site, empty: Path) -> None:
    raising = 'raise Unavailable("there is no fake card", "buy one")'
    site.install_backend(
        "fake", BACKEND.replace("return [Device", f"{raising}\n    return [Device")
    )
    done = check(empty, backend="fake")
    assert done.returncode == 1
    assert "fake cannot be tested: there is no fake card. Fix: buy one" in done.stdout
    assert last_line(done) == "conformance fake: 0 passed, 1 failed"

    allowed = check(empty, backend="fake", allow_missing=True)
    assert allowed.returncode == 0, allowed.stdout
    reason = "fake is not available: there is no fake card. Fix: buy one"
    assert last_line(allowed) == f"conformance fake: 0 passed, 1 skipped ({reason})"


def test_a_broken_backend_is_not_missing_hardware(site: Site, empty: Path) -> None:
    site.install_backend("fake", "")
    done = check(empty, backend="fake", allow_missing=True)
    assert done.returncode == 1
    for hook in ("turnout_devices()", "turnout_compile(unit, target, options)", "turnout_launch("):
        assert f"is missing, every backend must implement it: {hook}" in done.stdout


def test_device_that_is_not_there(empty: Path) -> None:
    done = check(empty, backend="reference", device_index=3)
    assert done.returncode == 1
    assert "backend 'reference' has no device 3; its devices are: reference:0" in done.stdout
    assert last_line(done) == "conformance reference:3: 0 passed, 1 failed"


# ---- backends that are wrong -------------------------------------------------------------------

WRONG_BACKENDS = {
    "add subtracts": (
        """
@hookimpl
def turnout_launch(unit):
    def change(statement):
        if isinstance(statement, ir.Compute) and statement.operation == "add":
            return replace(statement, operation="subtract")
        return statement
    return reference.turnout_launch(unit=rewritten(unit, change))
""",
        "test_operation and (add or multiply)",
        {f"test_operation[fake:0-add-{t}]" for t in ir.ALL_DTYPES if not t.is_bool},
    ),
    "size 0 does something": (
        """
class Eager(Launcher):
    def __call__(self, args, size):
        if size == 0:
            raise ValueError("a grid cannot be empty")
        self.inner(args, size)

@hookimpl
def turnout_launch(unit):
    return Eager(unit)
""",
        "size_0 or test_sizes or test_empty",
        {
            "test_a_launch_of_size_0_does_nothing[fake:0]",
            "test_empty_planes[fake:0]",
            "test_sizes[fake:0-0]",
            "test_sizes_of_samples[fake:0-0]",
        },
    ),
    "products are contracted": (
        """
@hookimpl
def turnout_launch(unit):
    products = {}
    def change(statement):
        if isinstance(statement, ir.Compute) and statement.operation == "multiply":
            products[statement.result] = statement.operands
        if isinstance(statement, ir.Compute) and statement.operation == "add":
            first, second = statement.operands
            if first in products and first.dtype.is_float:
                return replace(statement, operation="fma", operands=(*products[first], second))
        return statement
    return reference.turnout_launch(unit=rewritten(unit, change))
""",
        "contraction",
        {f"test_no_contraction[fake:0-{width}]" for width in ("f32", "f64")},
    ),
    "subnormals are flushed": (
        """
class Flushing(Launcher):
    def __call__(self, args, size):
        self.inner(args, size)
        for arg in args:
            if isinstance(arg, np.ndarray) and arg.dtype == np.float32 and arg.flags.writeable:
                arg[np.abs(arg) < np.finfo(np.float32).tiny] = 0

@hookimpl
def turnout_launch(unit):
    return Flushing(unit)
""",
        "subnormals or test_no",
        {"test_subnormals_are_kept[fake:0-f32]"},
    ),
    "strides are ignored": (
        """
class Dense(Launcher):
    def __call__(self, args, size):
        self.inner([self.dense(arg) for arg in args], size)

    def dense(self, arg):
        if not isinstance(arg, np.ndarray) or arg.flags.c_contiguous or 0 in arg.strides:
            return arg
        if any(stride < 0 or stride % arg.itemsize for stride in arg.strides):
            return arg
        dense = np.empty(arg.shape, arg.dtype)
        return np.lib.stride_tricks.as_strided(arg, arg.shape, dense.strides)

@hookimpl
def turnout_launch(unit):
    return Dense(unit)
""",
        "test_layout_of_an_input",
        {f"test_layout_of_an_input[fake:0-{layout}]" for layout in ("every second", "column")},
    ),
    "arguments are copied": (
        """
class Copying(Launcher):
    def __call__(self, args, size):
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        self.inner(copies, size)
        for given, copy in zip(args, copies):
            if isinstance(given, np.ndarray) and given.flags.writeable:
                given[...] = copy

@hookimpl
def turnout_launch(unit):
    return Copying(unit)
""",
        "test_arrays and (in_place or overlap)",
        {"test_overlap_in_order[fake:0]"},
    ),
    "one sample alone is computed differently": (
        """
class Scalar(Launcher):
    def __call__(self, args, size):
        self.inner(args, size)
        if size == 1 and args[-1].dtype == np.float32:
            args[-1][...] = np.nextafter(args[-1], np.float32(0))

@hookimpl
def turnout_launch(unit):
    return Scalar(unit)
""",
        "company and exp2",
        {"test_same_bits_in_any_company[fake:0-exp2-f32]"},
    ),
    "numbers of the first launch are kept": (
        """
class Sticky(Launcher):
    numbers = None

    def __call__(self, args, size):
        is_array = [isinstance(arg, np.ndarray) for arg in args]
        self.numbers = self.numbers or args
        own = [a if held else n for a, n, held in zip(args, self.numbers, is_array)]
        self.inner(own, size)

@hookimpl
def turnout_launch(unit):
    return Sticky(unit)
""",
        "launches or two_threads",
        {"test_many_launches_with_different_numbers[fake:0]", "test_two_threads[fake:0]"},
    ),
    "the device is never waited for": (
        QUEUEING
        + """
@hookimpl
def turnout_sync():
    return lambda: None

@hookimpl
def turnout_timer():
    def timer(work):
        work()
        return 1
    return timer
""",
        "timer or sync",
        {"test_timer[fake:0]"},
    ),
    "indices are not checked": (
        """
class Unchecked(Launcher):
    def __call__(self, args, size):
        try:
            self.inner(args, size)
        except Exception:
            return

@hookimpl
def turnout_launch(unit):
    return Unchecked(unit)
""",
        "debug",
        {"test_debug_reports_an_index[fake:0]"},
    ),
    "metadata holds objects": (
        """
@hookimpl
def turnout_compile(unit):
    return Binary(unit.name, "fake", b"", {"unit": unit})
""",
        "plain_data",
        {"test_binary_is_plain_data[fake:0]"},
    ),
    "time stands still": (
        """
@hookimpl
def turnout_timer(device):
    def timer(work):
        work()
        return 1000
    return timer
""",
        "timer",
        {"test_timer[fake:0]"},
    ),
    "libraries are loaded at import": (
        """
import ctypes, ctypes.util
ctypes.CDLL(ctypes.util.find_library("c"))
""",
        "light",
        {"test_import_is_light[fake:0]"},
    ),
    "compilation needs a device": (
        """
opened = []

@hookimpl
def turnout_devices():
    opened.append(True)
    return [Device(0, "a fake", Target("fake", "none", frozenset(FEATURES)))]

@hookimpl
def turnout_compile(unit):
    return Binary(unit.name, "fake", bytes(opened[0]))
""",
        "without_a_device",
        {"test_compiles_without_a_device[fake:0]"},
    ),
    "predicated forgets a class": (
        """
@hookimpl
def turnout_lower_dispatch(unit, site, policy):
    if policy != "predicated":
        return None
    def change(statement):
        if statement == site:
            return ir.Switch(site.results, site.selector, (*site.arms[:-1], site.arms[0]))
        return statement
    changed = rewritten(unit, change)
    return ir.Plan((ir.Run(changed),)) if changed != unit else None
""",
        "policies and three_ways",
        {"test_policies_give_the_same_bits[fake:0-predicated-three_ways]"},
    ),
}


@pytest.mark.parametrize("name", WRONG_BACKENDS)
def test_wrong_backend_fails(name: str, site: Site, empty: Path) -> None:
    wrong, keyword, expected = WRONG_BACKENDS[name]
    site.install_backend("fake", BACKEND + wrong)
    done = check(empty, backend="fake", keyword=keyword)
    failed = set(re.findall(r"^FAILED \S+?::(test_.*?\])(?: - .*)?$", done.stdout, re.MULTILINE))
    assert failed == expected, done.stdout
    assert done.returncode == 1
    assert f"{len(expected)} failed" in last_line(done)


# ---- what the suite is made of -----------------------------------------------------------------


def test_every_operation_has_a_kernel() -> None:
    for row, dtype, _ in operations.typed_rows():
        assert operations.operation_kernel(row.name, dtype).__name__ == f"{row.name}_{dtype}"
    assert {row.name for row, _, _ in operations.typed_rows()} == set(OPERATIONS)


def test_cases_have_names_and_repeatable_arguments() -> None:
    names = Counter(case.name for case in kernels.CONFORMANCE_KERNELS)
    assert [name for name, count in names.items() if count > 1] == []
    for case in kernels.LANGUAGE_KERNELS:
        for first, second in zip(case.arguments(9), case.arguments(9), strict=True):
            np.testing.assert_array_equal(first, second)


def test_cases_declare_the_capabilities_of_their_arguments() -> None:
    for case in kernels.CONFORMANCE_KERNELS:
        types = {a.dtype for a in case.arguments(3) if isinstance(a, np.ndarray)}
        assert (np.dtype(np.float64) in types) <= ("f64" in case.needs), case.name


def test_summary() -> None:
    assert summary(Counter(passed=3), Counter()) == "3 passed"
    outcomes = Counter(passed=118, skipped=3)
    assert summary(outcomes, Counter({"no f16": 3})) == "118 passed, 3 skipped (no f16)"
    outcomes = Counter(failed=2, skipped=3)
    reasons = Counter({"no f64": 1, "no bounds": 2})
    assert summary(outcomes, reasons) == ("0 passed, 2 failed, 3 skipped (2 no bounds, 1 no f64)")


def floats(*values: Any) -> Any:
    return np.array(values, np.float32)


def test_same_bits() -> None:
    compare.assert_same_bits(floats(np.nan, 0), floats(-np.nan, 0), "nan")
    with pytest.raises(AssertionError, match=r"zeros: 1 of 2 values are wrong. First at \(1,\)"):
        compare.assert_same_bits(floats(1, 0.0), floats(1, -0.0), "zeros")
    with pytest.raises(AssertionError, match="got float32 of shape"):
        compare.assert_same_bits(floats(1), np.ones(1), "types")
    with pytest.raises(AssertionError, match=r"for the operands np.float32\(5.0\)"):
        compare.assert_same_bits(floats(1), floats(2), "operands", [floats(5)])


def test_ulp_distance() -> None:
    after = np.nextafter
    assert compare.ulp_distance(floats(1), after(floats(1), floats(2))) == 1
    assert compare.ulp_distance(after(floats(0), floats(1)), after(floats(0), floats(-1))) == 2
    assert compare.ulp_distance(floats(np.finfo(np.float32).max), floats(np.inf)) == 1
    assert compare.ulp_distance(floats(0.0), floats(-0.0)) == np.inf
    assert compare.ulp_distance(floats(np.nan), floats(np.nan)) == 0
    assert compare.ulp_distance(floats(np.nan), floats(1)) == np.inf
    assert compare.ulp_distance(np.array([-np.inf]), np.array([np.inf])) > 1e18


def test_accuracy_of_f32() -> None:
    exact = np.array([1 + 2**-24, 1e300, 1e-46, np.nan])
    compare.assert_accurate_f32(floats(1, np.inf, 0, np.nan), exact, 0.5, "rounded")
    compare.assert_accurate_f32(floats(1 + 2**-22), np.array([1.0]), 2, "two units")
    with pytest.raises(AssertionError, match="is more than 1 ULP from"):
        compare.assert_accurate_f32(floats(1 + 2**-22), np.array([1.0]), 1, "two units")
    with pytest.raises(AssertionError, match=r"got np\.float32\(inf\)"):
        compare.assert_accurate_f32(floats(np.inf), np.array([3e38]), 4, "overflow")
    with pytest.raises(AssertionError, match="nan"):
        compare.assert_accurate_f32(floats(np.nan), np.array([1.0]), 4, "nan")
