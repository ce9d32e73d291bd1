"""The command ``turnout``: what it prints, and how it ends."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_plugins import Site, backend_source

import turnout as tn
from turnout import conformance, inspection
from turnout.cli import main
from turnout.targets import split_target

backends = importlib.import_module("turnout.backends")

RUNNER = CliRunner()
HAS_CPU = tn.backends().get("cpu") is not None

SOLVER = """
import turnout as tn
import turnout.math as tm
from turnout import Mutable, NDArray, Param, Scalar, f64


@tn.func
def square(x):
    return x * x


@tn.kernel
def cumulative(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
    for i in range(1, a.shape[0]):
        a[i] = a[i - 1] + b[i]


@tn.kernel
def scale(factor: Param, x: Scalar, y: Mutable[Scalar]):
    y = factor * square(x)


@tn.kernel
def power(n: Param, x: Scalar, y: Mutable[Scalar]):
    y = x
    for i in range(n):
        y = y * x


@tn.kernel
def grid(table: NDArray[f64, 2], sums: NDArray[f64, 1]) -> None:
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            table[i, j] = 2 * table[i, j]
    for i in range(sums.shape[0]):
        total = 0.0
        for j in range(table.shape[1]):
            total += table[i, j]
        sums[i] = total


@tn.kernel
def broken(a: NDArray[f64, 1]) -> None:
    for i in range(a.shape[0]):
        a[i] = a[i] << 1


@tn.perf_dispatch
def scaled(factor, x, y): ...


scaled.register(scale)


def plain(x):
    return x


class Model:
    kernel = scale


number = 3
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for variable in ("TURNOUT_BLOCK", "TURNOUT_BACKEND"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "cache"))
    backends.clear()
    yield
    backends.clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with modules that no other test may find."""
    (tmp_path / "solver.py").write_text(SOLVER, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    importlib.invalidate_caches()
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path / "site", monkeypatch)


def turnout(*arguments: str) -> Any:
    return RUNNER.invoke(main, arguments)


def output(*arguments: str) -> str:
    result = turnout(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return str(result.stdout)


def error(*arguments: str) -> str:
    result = turnout(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("Error: ")
    return str(result.stderr).removeprefix("Error: ").rstrip()


def usage_error(*arguments: str) -> str:
    result = turnout(*arguments)
    assert result.exit_code == 2, result.output
    return str(result.stderr)


def process(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "turnout", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        timeout=120,
        check=False,
    )


# -- the command -----------------------------------------------------------------------------------


def test_the_commands() -> None:
    names = ["bench", "build", "check", "demo", "doctor", "report", "show", "tune"]
    assert sorted(main.commands) == names
    help_page = output("--help")
    for command in main.commands:
        assert f"  {command} " in help_page
        assert output(command, "--help").startswith(f"Usage: main {command}")


def test_the_version() -> None:
    assert output("--version") == f"turnout, version {tn.__version__}\n"


def test_a_command_that_there_is_not() -> None:
    assert "No such command 'demon'" in usage_error("demon")


def test_an_error_is_a_message() -> None:
    done = process("show", "turnout.demo:tiled", "--device", "nonsense")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: backend 'nonsense' is not installed")
    assert "Traceback" not in done.stderr


def test_an_error_with_its_traceback() -> None:
    done = process("--traceback", "show", "turnout.demo:tiled", "--device", "nonsense")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert "turnout.errors.Unavailable: backend 'nonsense' is not installed" in done.stderr


def test_ctrl_c_ends_it_cleanly(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(inspection, "examine", interrupted)
    result = turnout("doctor")
    assert result.exit_code == 130
    assert result.stdout == ""
    assert result.stderr == "Interrupted\n"


@pytest.mark.parametrize(
    "arguments",
    [("doctor",), ("show", "turnout.demo:array_form"), ("demo", "--quick", "--airports", "20")],
    ids=lambda arguments: arguments[0],
)
def test_there_are_no_escape_codes_where_there_is_no_terminal(arguments: tuple[str, ...]) -> None:
    done = process(*arguments, TURNOUT_BACKEND="reference", TERM="xterm-256color")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout
    assert "\x1b" not in done.stdout


# -- check -----------------------------------------------------------------------------------------


def test_check_runs_the_conformance_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def run(backend: str, **options: Any) -> int:
        calls.append((backend, options))
        return 1

    monkeypatch.setattr(conformance, "run", run)
    assert turnout("check", "reference").exit_code == 1
    options = ("--device", "1", "--allow-missing", "-k", "loops", "-v")
    assert turnout("check", "opencl", *options).exit_code == 1
    defaults = {"device_index": None, "allow_missing": False, "keyword": "", "verbose": False}
    given = {"device_index": 1, "allow_missing": True, "keyword": "loops", "verbose": True}
    assert calls == [("reference", defaults), ("opencl", given)]


# -- doctor ----------------------------------------------------------------------------------------


def doctor(exit_code: int = 0) -> dict[str, Any]:
    result = turnout("doctor", "--json")
    assert result.exit_code == exit_code, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    assert report["is_healthy"] is (exit_code == 0)
    return report


def backend_named(name: str, report: dict[str, Any]) -> dict[str, Any]:
    (found,) = (backend for backend in report["backends"] if backend["name"] == name)
    return dict(found)


def test_doctor_runs_a_kernel_on_every_device() -> None:
    report = doctor()
    assert report["versions"]["turnout"] == tn.__version__
    assert report["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert report["cache"].startswith("on: ")
    assert [each["name"] for each in report["backends"]] == sorted(tn.backends())
    for backend in report["backends"]:
        assert backend["is_usable"]
        assert not backend["is_broken"]
        for device in backend["devices"]:
            assert [probe["form"] for probe in device["probes"]] == ["per-sample", "array"]
            assert all(probe["problem"] == "" for probe in device["probes"])
            assert all(probe["first_result_ns"] > 0 for probe in device["probes"])
            assert all(probe["compile_ns"] > 0 for probe in device["probes"])


def test_doctor_in_words() -> None:
    text = output("doctor")
    assert f"turnout {tn.__version__}, python " in text
    assert "\nreference: turnout " in text
    assert "  reference:0: NumPy " in text
    assert "can: bounds, correct_rounding, f64" in text
    assert "    per-sample kernel: right; compiling takes " in text
    assert "    array kernel: right; compiling takes " in text
    assert text.endswith("\nAll is well.\n")


@pytest.mark.skipif("cpu" not in tn.backends(), reason="turnout-cpu is not installed")
def test_doctor_does_not_call_all_well_what_it_has_problems_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "file"))
    text = output("doctor")
    assert "\nproblems\n  compiled kernels are not kept in" in text
    assert text.endswith("\nAll backends work, but see the problems.\n")


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"TURNOUT_BACKEND": "reference:0"}, "(TURNOUT_BACKEND=reference:0)"),
        ({"TURNOUT_BLOCK": "cpu"}, "(no faster backend can be used; this one needs no compiler)"),
    ],
)
def test_doctor_says_where_calls_run(
    variables: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert f"\ncalls run on: reference:0 {reason}\n" in output("doctor")


@pytest.mark.skipif(not HAS_CPU, reason="the cpu backend is not installed")
def test_doctor_says_that_a_backend_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_BLOCK", "cpu")
    text = output("doctor")
    assert "  not usable: backend 'cpu' is blocked by TURNOUT_BLOCK\n  fix: remove 'cpu'" in text


def test_doctor_with_no_device_for_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_BACKEND", "nonsense")
    report = doctor(exit_code=1)
    assert report["active_device"] == ""
    assert report["active_reason"].startswith("TURNOUT_BACKEND='nonsense': backend 'nonsense' is")
    result = turnout("doctor")
    assert result.exit_code == 1
    assert "calls run on: no device (TURNOUT_BACKEND='nonsense'" in result.stdout
    assert result.stdout.endswith("\nSomething is broken, see above.\n")


def test_doctor_finds_a_backend_that_cannot_be_imported(site: Site) -> None:
    site.install_backend("broken", "import a_module_that_is_not_there\n", version="2.5")
    backend = backend_named("broken", doctor(exit_code=1))
    assert backend["is_broken"]
    assert (backend["distribution"], backend["version"]) == ("dist-broken", "2.5")
    assert "No module named 'a_module_that_is_not_there'" in backend["reason"]
    assert backend["fix"].startswith("tell the authors of dist-broken")
    text = turnout("doctor").stdout
    assert "\nbroken: dist-broken 2.5\n  BROKEN: backend 'broken' of dist-broken 2.5 cannot" in text
    assert "\n  fix: tell the authors of dist-broken" in text
    assert "  reference:0: NumPy " in text  # it never hides the others


def test_hardware_that_is_not_there_is_no_error(site: Site) -> None:
    source = (
        backend_source("absent")
        + "\nfrom turnout.plugin import Unavailable\n"
        + "@hookimpl\ndef turnout_devices():\n"
        + "    raise Unavailable('there is no such card', 'buy one')\n"
    )
    site.install_backend("absent", source)
    backend = backend_named("absent", doctor())
    assert not backend["is_usable"]
    assert not backend["is_broken"]
    assert "  not usable: there is no such card\n  fix: buy one\n" in output("doctor")


def test_doctor_finds_a_wrong_result(site: Site) -> None:
    source = (
        backend_source("wrong").replace(", turnout_launch", "")
        + "\nimport turnout.reference as right\n"
        + "@hookimpl\n"
        + "def turnout_launch(binary, device, unit):\n"
        + "    launch = right.turnout_launch(unit)\n"
        + "    def launcher(args, size):\n"
        + "        launch(args, size)\n"
        + "        for parameter, argument in zip(unit.parameters, args):\n"
        + "            if getattr(parameter, 'is_written', False):\n"
        + "                argument[0] = 7\n"
        + "    return launcher\n"
    )
    site.install_backend("wrong", source)
    (device,) = backend_named("wrong", doctor(exit_code=1))["devices"]
    assert [probe["problem"] for probe in device["probes"]] == [
        "wrong result: (7.0, 3.0, 5.0, 7.0, 9.0), not (1, 3, 5, 7, 9)",
        "wrong result: (7.0, 12.0), not (3, 12)",
    ]
    result = turnout("doctor")
    assert result.exit_code == 1
    assert "    array kernel: FAILED: wrong result: (7.0, 12.0), not (3, 12)\n" in result.stdout


def test_doctor_survives_a_backend_that_crashes(site: Site) -> None:
    source = (
        backend_source("crash").replace(", turnout_launch", "")
        + "\n@hookimpl\ndef turnout_launch():\n    return lambda args, size: 1 // 0\n"
    )
    site.install_backend("crash", source)
    (device,) = backend_named("crash", doctor(exit_code=1))["devices"]
    for probe in device["probes"]:
        assert probe["problem"].startswith("ZeroDivisionError: ")
        assert probe["first_result_ns"] is None


def test_doctor_finds_a_device_that_breaks_the_contract(site: Site) -> None:
    source = backend_source("odd") + "\n@hookimpl\ndef turnout_sync():\n    return 3\n"
    site.install_backend("odd", source)
    (device,) = backend_named("odd", doctor(exit_code=1))["devices"]
    (probe,) = device["probes"]
    assert "turnout_sync must return a function, not 3" in probe["problem"]


def test_doctor_finds_a_device_that_cannot_be_used(site: Site) -> None:
    source = (
        backend_source("busy")
        + "\nfrom turnout.plugin import Unavailable\n"
        + "@hookimpl\ndef turnout_sync():\n    raise Unavailable('it is in use', 'wait')\n"
    )
    site.install_backend("busy", source)
    text = output("doctor")
    assert "    not usable: it is in use\n  fix: wait\n" in text


def test_doctor_lists_what_discovery_ignored_once(site: Site) -> None:
    site.install("dist-odd", "[turnout.backends]\nOdd-Name = odd_module\n")
    report = doctor()
    (problem,) = report["problems"]
    assert "declares a backend named 'Odd-Name', which is ignored" in problem
    backends.clear()
    assert output("doctor").count("Odd-Name") == 1


def test_doctor_with_memory_and_arrays_of_a_device(site: Site) -> None:
    source = backend_source("gpu").replace('"fake"))', '"fake"), 3 * 2**30)')
    site.install_backend("gpu", source)
    assert "  gpu:0: fake 0, 3.0 GiB\n" in output("doctor")


# -- show ------------------------------------------------------------------------------------------


def test_show_lists_the_kernels_of_a_module(folder: Path) -> None:
    assert output("show", "solver").splitlines()[:2] == [
        "solver:cumulative(a: NDArray[f64, 1], b: NDArray[f64, 1])",
        "solver:scale(factor: Param, x: Scalar, y: Mutable[Scalar])",
    ]
    listed = output("show", "solver.py").splitlines()
    names = ["cumulative", "scale", "power", "grid", "broken"]
    assert [line.partition("(")[0] for line in listed] == [f"solver.py:{name}" for name in names]


def test_show_explains_a_serial_loop(folder: Path) -> None:
    text = output("show", "solver:cumulative", "--why", "--device", "reference")
    assert text.splitlines() == [
        "line 14: for i in range(1, a.shape[0]):",
        "  in order:   a[i] is stored to on line 15, and a[i - 1] is read on the same line, which "
        "is the",
        "              element of another iteration",
        "  try:        if the values from before the loop are meant, store to another array than "
        "'a';",
        "              otherwise the loop has to run in order",
        "  threads:    one thread runs it",
        "  vectorised: reference:0 does not say",
    ]


WHY = """
import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, NDArray, Param, Scalar, f64, i64

@tn.func
def shift(b, i):
    b[i + 1] = b[i]

@tn.kernel
def histogram(keys: NDArray[i64, 1], counts: NDArray[i64, 1]) -> None:
    for i in range(keys.shape[0]):
        counts[keys[i]] += 1

@tn.kernel
def histogram_parallel(keys: NDArray[i64, 1], counts: NDArray[i64, 1]) -> None:
    for i in tn.parallel(range(keys.shape[0])):
        counts[keys[i]] += 1

@tn.kernel
def total(a: NDArray[f64, 1], out: NDArray[f64, 1]) -> None:
    for i in range(a.shape[0]):
        out[0] += a[i]

@tn.kernel
def columns(m: NDArray[f64, 2], x: NDArray[f64, 1], y: NDArray[f64, 1]) -> None:
    for j in range(m.shape[1]):
        for i in range(m.shape[0]):
            y[i] += m[i, j] * x[j]

@tn.kernel
def smoothed(a: NDArray[f64, 1]) -> None:
    for i in range(1, a.shape[0] - 1):
        a[i] = (a[i - 1] + a[i + 1]) / 2

@tn.kernel
def found(a: NDArray[f64, 1], where: NDArray[i64, 1]) -> None:
    for i in range(a.shape[0]):
        if a[i] > 0:
            where[0] = i
            break

@tn.kernel
def root(x: Scalar, y: Mutable[Scalar]):
    y = x
    while abs(y * y - x) > 1e-9:
        y = 0.5 * (y + x / y)

@tn.kernel
def shifted(k: Param[i64], a: NDArray[f64, 1]) -> None:
    for i in range(a.shape[0]):
        a[i + k] = 1.0

@tn.kernel
def helped(a: NDArray[f64, 1]) -> None:
    for i in range(a.shape[0] - 1):
        shift(a, i)

@tn.kernel
def drag(regime: Index, v: Scalar, v_new: Mutable[Scalar]):
    v_new = tm.dispatch(regime, [-v, -v * abs(v)], policy="predicated", name="force")
"""


@pytest.mark.parametrize(
    ("name", "place", "reason", "advice"),
    [
        (
            "histogram", "for i", "counts[keys[i]] is stored to on line 13, at an index that is "
            "not a constant multiple of the loop variable plus a constant, so that two iterations "
            "may store to the same element",
            "if you know that no two iterations do, wrap its range in tn.parallel(...); +=, -= and "
            "*= on an element are atomic there, as a histogram needs",
        ),
        ("histogram_parallel", "for i", "declared tn.parallel", ""),
        (
            "total", "for i", "out[0] is stored to on line 23 by every iteration",
            "for a sum, add up in a local variable and store it after the loop; or wrap its range "
            "in tn.parallel(...), where +=, -= and *= on an element are atomic",
        ),
        (
            "columns", "for j", "y[i] is stored to on line 29 by every iteration: its index has "
            "the variable of an inner loop",
            "make the loop over that index the outer one; or wrap its range in tn.parallel(...), "
            "where +=, -= and *= on an element are atomic",
        ),
        (
            "columns", "for i", "it is inside of a loop that runs in order",
            "only outermost loops, and loops directly inside of parallel ones, can be parallel: "
            "put this one into a kernel of its own",
        ),
        (
            "smoothed", "for i", "a[i] is stored to on line 34, and a[i - 1] is read on the same "
            "line, which is the element of another iteration",
            "if the values from before the loop are meant, store to another array than 'a'; "
            "otherwise the loop has to run in order",
        ),
        (
            "found", "for i", "whether it goes on is decided in every iteration, so that they run "
            "in order",
            "a loop without break and return can be parallel: let it store one result for each "
            "element, and search these afterwards",
        ),
        ("root", "def root", "samples are independent", ""),
        ("root", "while", "it runs inside of one sample, in order", ""),
        (
            "shifted", "for i", "a[i + k] is stored to on line 52 at an index that may be "
            "negative, which counts from the end",
            "write max(..., 0) for an index that is never negative, or wrap its range in "
            "tn.parallel(...) if you know that no two iterations access the same element",
        ),
        (
            "helped", "for i", "an element of 'a' is stored to on line 57, and an element of 'a' "
            "is read on the same line, which is the element of another iteration",
            "if the values from before the loop are meant, store to another array than 'a'; "
            "otherwise the loop has to run in order",
        ),
    ],
)  # fmt: skip
def test_show_says_why_and_what_to_do(
    name: str, place: str, reason: str, advice: str, folder: Path
) -> None:
    (folder / "why.py").write_text(WHY, encoding="utf-8")
    report = inspection.inspect_kernel(inspection.find_kernel(f"why:{name}"), "reference")
    (loop,) = (loop for loop in report.loops if loop.text.strip().startswith(place))
    assert (loop.reason, loop.advice) == (reason, advice)
    is_parallel = "a long call may be split over threads"
    assert (loop.threads == is_parallel) == loop.is_parallel


def test_show_says_how_a_dispatch_is_lowered(folder: Path) -> None:
    (folder / "why.py").write_text(WHY, encoding="utf-8")
    text = output("show", "why:drag", "--why", "--device", "reference")
    assert text.splitlines()[-3:] == [
        'line 61: v_new = tm.dispatch(regime, [-v, -v * abs(v)], policy="predicated", '
        'name="force")',
        "  force: 2 formulas, policy 'predicated': all formulas are evaluated and one is selected, "
        "without a",
        "         branch",
    ]


def test_show_says_why_for_every_kernel_of_a_module(folder: Path) -> None:
    result = turnout("show", "solver", "--why", "--device", "reference", "--param", "n=int")
    assert result.exit_code == 1  # for `broken`, and for kernels without the parameter n
    for name in ("cumulative", "scale", "power", "grid", "broken"):
        assert f"{name}:\n  " in result.stdout
    assert "Error: kernel scale has no scalar parameter 'n'" in result.stdout
    (folder / "why.py").write_text(WHY, encoding="utf-8")
    text = output("show", "why.py", "--why", "--device", "reference")
    assert text.startswith("histogram:\n  line 12: for i in range(keys.shape[0]):\n    in order:")
    assert "\ndrag:\n  line 60: def drag(" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("solver:scale", "--json", "--why"), "--json prints all facts; leave out --why"),
        (("solver:scale", "--json", "--stage", "unit"), "--json prints all facts; leave out"),
        (("solver", "--json"), "name a kernel: MODULE:KERNEL or path/to/file.py:KERNEL"),
        (("solver", "--stage", "unit"), "name a kernel: MODULE:KERNEL or path/to/file.py:KERNEL"),
    ],
)
def test_show_refuses_what_does_not_go_together(
    arguments: tuple[str, ...], message: str, folder: Path
) -> None:
    assert message in usage_error("show", *arguments)


def test_show_prints_facts_for_programs(folder: Path) -> None:
    (folder / "why.py").write_text(WHY, encoding="utf-8")
    report = json.loads(output("show", "why:drag", "--json", "--device", "reference"))
    (loop,) = report["loops"]
    assert (loop["line"], loop["is_parallel"], loop["lanes"]) == (60, True, None)
    assert report["dispatches"] == [
        {
            "line": 61,
            "text": '    v_new = tm.dispatch(regime, [-v, -v * abs(v)], policy="predicated", '
            'name="force")',
            "name": "force",
            "policy": "predicated",
            "branches": 2,
            "lowering": "all formulas are evaluated and one is selected, without a branch",
        }
    ]


def test_show_by_default(folder: Path) -> None:
    text = output("show", "solver:scale", "--device", "reference")
    lines = text.splitlines()
    assert lines[0] == "kernel scale on reference:0"
    assert lines[1] == f"  {folder / 'solver.py'}:19"
    assert lines[2:5] == [
        "  factor: Param = float",
        "  x: Scalar = f64",
        "  y: Mutable[Scalar] = f64",
    ]
    assert "\nplan\nrun scale(" in text
    assert "\nunit\nunit scale\n" in text
    assert "\nloops\nline 19: def scale(" in text
    assert "\n  parallel:   samples are independent" in text


@pytest.mark.skipif(not HAS_CPU, reason="the cpu backend is not installed")
def test_show_has_the_stages_of_the_backend(folder: Path) -> None:
    text = output("show", "solver:scale", "--backend", "cpu")
    assert text.endswith(
        "\nMore: --stage llvm-ir, --stage optimised-llvm-ir, --stage assembly, or --stage all.\n"
    )
    assert re.search(r"\n  vectorised: yes, \d+ lanes\n", text)
    assert "define" in output("show", "solver:scale", "--stage", "llvm-ir")
    assembly = output("show", "solver:scale", "--stage", "assembly")
    assert "unit_scale:\n" in assembly
    everything = output("show", "solver:scale", "--stage", "all")
    assert assembly in everything
    for stage in ("plan", "unit", "loops", "llvm-ir", "optimised-llvm-ir", "assembly"):
        assert f"\n{stage}\n" in everything


@pytest.mark.skipif(not HAS_CPU, reason="the cpu backend is not installed")
@pytest.mark.parametrize("name", list(inspection.find_kernels("turnout.demo")))
def test_show_works_on_the_kernels_of_the_demo(name: str) -> None:
    text = output("show", f"turnout.demo:{name}", "--device", "cpu")
    assert "\n  parallel:   " in text


@pytest.mark.skipif(not HAS_CPU, reason="the cpu backend is not installed")
def test_show_relates_each_parallel_loop_to_what_the_backend_made_of_it(folder: Path) -> None:
    report = inspection.inspect_kernel(inspection.find_kernel("solver:grid"), "cpu")
    assert [unit.name for unit in report.units] == ["grid_0", "grid_1"]
    loops = {loop.line: loop for loop in report.loops}
    assert [loops[line].text.strip() for line in sorted(loops)] == [
        "for i in range(table.shape[0]):",
        "for j in range(table.shape[1]):",
        "for i in range(sums.shape[0]):",
        "for j in range(table.shape[1]):",
    ]
    first, second, third, fourth = (loops[line] for line in sorted(loops))
    assert (first.is_parallel, second.is_parallel) == (True, True)
    assert first.compiled == (f"one space of iterations with the loop on line {second.line}",)
    assert second.lanes is not None
    assert second.lanes > 1
    assert second.compiled[0].startswith("vectorised, ")
    assert third.is_parallel
    assert third.compiled == ("scalar: it contains another loop",)
    assert not fourth.is_parallel
    assert "'total' is carried from one iteration to the next" in fourth.reason
    assert len(fourth.compiled) == 1


def test_show_takes_the_float_type(folder: Path) -> None:
    text = output("show", "solver:scale", "--dtype", "f32", "--device", "reference")
    assert "  x: Scalar = f32\n" in text
    assert "in x: f32[rank 1]" in text


def test_show_takes_the_types_of_params(folder: Path) -> None:
    arguments = ("show", "solver:power", "--device", "reference")
    assert "  n: Param = int\n" in output(*arguments, "--param", "n=int")
    assert "  n: Param = i32\n" in output(*arguments, "--param", "n=i32")


def test_show_says_what_to_do_where_a_param_is_an_int(folder: Path) -> None:
    message = error("show", "solver:power")
    assert "range takes integers, not a Python float" in message
    assert f"{folder / 'solver.py'}:" in message
    assert message.endswith("Where calls give an int, say so: --param n=int")


@pytest.mark.parametrize(
    ("target", "param", "expected"),
    [
        ("scale", "x=int", "kernel scale has no scalar parameter 'x' whose type follows the call"),
        (
            "scale",
            "m=int",
            "no scalar parameter 'm' whose type follows the call; those are: factor",
        ),
        ("cumulative", "a=int", "those are: there are none"),
        ("scale", "factor=long", "'long' is no type of 'factor'; allowed are int, float, "),
    ],
)
def test_show_refuses_types_that_do_not_fit(
    target: str, param: str, expected: str, folder: Path
) -> None:
    assert expected in error("show", f"solver:{target}", "--param", param)


@pytest.mark.parametrize("param", ["n", "n=", "=int", ""])
def test_show_wants_a_name_and_a_type(param: str) -> None:
    assert "write NAME=TYPE, for example n=int" in usage_error(
        "show", "turnout.demo:tiled", "--param", param
    )


def test_show_of_a_stage_that_there_is_not(folder: Path) -> None:
    message = usage_error("show", "solver:scale", "--stage", "ptx", "--device", "reference")
    assert "on reference:0 there is no stage 'ptx'; there are: plan, unit, loops, all" in message


def test_why_is_a_stage_of_its_own(folder: Path) -> None:
    assert "leave out --stage" in usage_error("show", "solver:scale", "--why", "--stage", "unit")
    why = output("show", "solver:scale", "--why", "--device", "reference")
    assert why == output("show", "solver:scale", "--stage", "loops", "--device", "reference")


def test_show_of_an_attribute_of_an_attribute(folder: Path) -> None:
    assert "kernel scale on " in output("show", "solver:Model.kernel", "--device", "reference")


def test_show_of_a_file(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (inner / "constants.py").write_text("GRAVITY = 9.81\n")
    (inner / "json.py").write_text(  # hides no module of the same name
        "import turnout as tn\n"
        "from constants import GRAVITY\n"
        "@tn.kernel\n"
        "def fall(v: tn.Scalar, out: tn.Mutable[tn.Scalar]):\n"
        "    out = GRAVITY * v\n"
    )
    text = output("show", os.path.join("inner", "json.py") + ":fall", "--stage", "unit")
    assert "9.81" in text
    assert sys.modules["json"] is json


ITS_KERNELS = "its kernels are: solver:cumulative, solver:scale, solver:power, "


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("solver:scal", f"solver has no 'scal' (did you mean 'scale'?); {ITS_KERNELS}"),
        ("solver:Model.grid", f"solver has no 'Model.grid'; {ITS_KERNELS}"),
        (
            "solver:scaled",
            "solver:scaled is a perf_dispatch operation (its implementations: scale), which runs "
            f"one of several functions; name one of them that is a kernel; {ITS_KERNELS}",
        ),
        (
            "solver:plain",
            "solver:plain is a plain Python function; only functions decorated with "
            f"@turnout.kernel are compiled; {ITS_KERNELS}",
        ),
        ("solver:square", "solver:square is a helper (turnout.func), which has no code of its own"),
        ("solver:number", f"solver:number is 3, which is no kernel; {ITS_KERNELS}"),
        ("solvers:scale", "there is no module 'solvers' in "),
        ("missing.py:scale", "there is no file 'missing.py'"),
        ("json", "json: there is no kernel (a function decorated with @turnout.kernel) at its top"),
    ],
)
def test_show_of_what_is_no_kernel(target: str, expected: str, folder: Path) -> None:
    assert error("show", target).startswith(expected)


def test_show_of_a_kernel_that_means_nothing(folder: Path) -> None:
    message = error("show", "solver:broken")
    assert message.startswith(f"{folder / 'solver.py'}:")
    assert "a[i] = a[i] << 1" in message


@pytest.mark.parametrize("target", ["failing:k", "failing.py:k", "failing"])
def test_show_of_a_module_that_fails(target: str, folder: Path) -> None:
    (folder / "failing.py").write_text("def f():\n    return 1 // 0\n\nf()\n")
    message = error("show", target)
    assert message.startswith(f"{target.removesuffix(':k')} cannot be imported:\n  File ")
    assert message.count('failing.py", line') == 2
    assert message.endswith("ZeroDivisionError: integer division or modulo by zero")
    assert "inspection.py" not in message
    assert "importlib" not in message


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import a_module_that_is_not_there", "No module named 'a_module_that_is_not_there'"),
        ("x = (", "SyntaxError: '(' was never closed"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_show_says_why_a_module_fails(source: str, expected: str, folder: Path) -> None:
    (folder / "failing.py").write_text(f"{source}\n")
    message = error("show", "failing:k")
    assert message.startswith("failing cannot be imported:\n")
    assert 'failing.py", line 1' in message
    assert message.endswith(expected)


@pytest.mark.parametrize(
    ("target", "module"), [("", ""), (":drag", ""), ("./solver:drag", "./solver"), (".s:k", ".s")]
)
def test_show_of_no_module(target: str, module: str) -> None:
    expected = f"{module!r} is no module; give MODULE:KERNEL or path/to/file.py:KERNEL"
    assert error("show", target) == expected


def test_the_target_of_a_file_on_windows() -> None:
    assert split_target(r"C:\code\a.py") == (r"C:\code\a.py", "")
    assert split_target(r"C:\code\a.py:k") == (r"C:\code\a.py", "k")
    assert split_target("a.b:C.k") == ("a.b", "C.k")
    assert split_target("a.b") == ("a.b", "")


def test_reports_are_plain_data(folder: Path) -> None:
    kernel = inspection.find_kernel("solver:grid")
    report = inspection.inspect_kernel(kernel, "reference")
    json.dumps(dataclasses.asdict(report))
    assert report.stages == ()
    assert report.device == "reference:0"
