"""The pytest plugin for tests of users, `turnout.testing`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_plugins import Site, device_source

from turnout.backends import clear

pytest_plugins = ["pytester"]

TEST = """
import numpy as np
import turnout as tn
from turnout import Scalar

@tn.kernel
def doubled(x: Scalar) -> Scalar:
    return x * 2

def test_doubled(backend):
    result = doubled(tn.array([1.0, 2.0]))
    assert tn.to_numpy(result).tolist() == [2, 4]
    ran_on.append(str(backend))

def test_without_a_backend():
    ran_on.append("none")

ran_on = []

def test_last():
    print("ran on", ran_on)
"""

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Run]:
    """Runs pytest with the plugin; backend ``gpu`` has two devices, ``absent`` has none."""
    monkeypatch.setenv("TURNOUT_BLOCK", "cpu,cuda,opencl")
    monkeypatch.delenv("TURNOUT_BACKEND", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    site = Site(tmp_path / "site", monkeypatch)
    site.install_backend("gpu", device_source("gpu"))
    site.install_backend("broken", "raise OSError('gone')")
    site.install_backend(
        "absent",
        "from turnout.plugin import Unavailable\nraise Unavailable('no card', 'buy one')",
    )

    def run(*options: str, source: str = TEST) -> pytest.RunResult:
        pytester.makepyfile(test_mine=source)
        return pytester.runpytest_inprocess("-p", "turnout.testing", "-s", "-v", *options)

    yield run
    monkeypatch.undo()
    clear()


def test_nothing_is_loaded_unasked(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--turnout-backend", "cpu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unrecognized arguments: --turnout-backend*"])


def test_a_test_runs_on_every_backend_that_can_be_used(run: Run) -> None:
    result = run()
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(
        [
            "turnout backends: gpu, reference",
            "turnout backend absent is left out: no card",
            "turnout backend broken is left out: *OSError: gone",
            "*::test_doubled?gpu? PASSED*",
            "*::test_doubled?reference? PASSED*",
            "*ran on ?'gpu:0', 'reference:0', 'none'?",
        ]
    )


def test_backends_and_devices_can_be_named(run: Run) -> None:
    result = run("--turnout-backend", "gpu:1", "--turnout-backend=reference")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(
        ["turnout backends: gpu:1, reference", "*ran on ?'gpu:1', 'reference:0', 'none'?"]
    )
    result.stdout.no_fnmatch_line("*is left out*")


def test_a_named_backend_without_hardware_fails(run: Run) -> None:
    result = run("--turnout-backend", "absent")
    result.assert_outcomes(errors=1, passed=2)
    result.stdout.fnmatch_lines(["absent is not available: no card. Fix: buy one"])


def test_a_named_backend_without_hardware_is_skipped_where_that_is_allowed(run: Run) -> None:
    result = run(
        "--turnout-backend=absent", "--turnout-backend=gpu:7", "--turnout-skip-unavailable", "-rs"
    )
    result.assert_outcomes(skipped=2, passed=2)
    result.stdout.fnmatch_lines(
        [
            "*absent is not available: no card. Fix: buy one",
            "*gpu:7 is not available: backend 'gpu' has no device 7*",
        ]
    )


def test_a_broken_backend_fails_also_where_skipping_is_allowed(run: Run) -> None:
    result = run("--turnout-backend", "broken", "--turnout-skip-unavailable")
    result.assert_outcomes(errors=1, passed=2)
    result.stdout.fnmatch_lines(["broken cannot be used: *OSError: gone*"])


def test_a_backend_that_is_not_installed_is_a_mistake(run: Run) -> None:
    result = run("--turnout-backend", "gpuu", "--turnout-skip-unavailable")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --turnout-backend gpuu: there is no such backend; installed are absent, broken*"]
    )


def test_a_fixture_of_the_same_name_wins(run: Run) -> None:
    source = (
        "import pytest\n\n@pytest.fixture\ndef backend():\n    return 'mine'\n\n"
        "def test_mine(backend):\n    assert backend == 'mine'\n\n"
        "@pytest.mark.parametrize('backend', [1, 2])\n"
        "def test_parameters(backend):\n    assert backend in (1, 2)\n"
    )
    run(source=source).assert_outcomes(passed=3)


def test_the_device_in_use_is_given_back(run: Run) -> None:
    source = (
        "import turnout as tn\nfrom turnout.backends import active_name\n\n"
        "def test_in(backend):\n    assert active_name() == str(backend)\n    assert 0\n\n"
        "def test_out():\n    assert active_name() == 'reference:0'\n"
    )
    run("--turnout-backend=gpu:1", source=source).assert_outcomes(failed=1, passed=1)
