"""The conformance suite: what a backend must do to be a supported one.

``turnout check NAME`` runs it. It compiles and runs the same kernels on any backend and compares
with the ``reference`` backend and with exact values. Nothing is skipped but what a device declares
not to be able to.

In a pytest run of one's own::

    pytest --pyargs turnout.conformance -p turnout.conformance.plugin --turnout-backend NAME
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import turnout

__all__ = ["run"]

_USAGE_ERROR = 2


def run(
    backend: str,
    *,
    device_index: int | None = None,
    allow_missing: bool = False,
    keyword: str = "",
    verbose: bool = False,
) -> int:
    """Test a backend and print what failed; the last line of each device says what was tested.

    Parameters
    ----------
    backend : str
        Name of an installed backend.
    device_index : int, optional
        Test this device of the backend only; all of them when not given.
    allow_missing : bool
        Skip, instead of fail, where the backend is installed and has no hardware here.
    keyword : str
        Run only tests whose name matches, as ``-k`` of pytest.
    verbose : bool
        One line per test.

    Returns
    -------
    int
        Exit status: 0 where all tests passed or were skipped, 1 where one failed, 2 where there is
        no such backend or test; where pytest itself was stopped, what it says.
    """
    import pytest

    problem = _unknown(backend)
    if problem:
        print(problem, file=sys.stderr)
        return _USAGE_ERROR
    options = [f"--turnout-backend={backend}"]
    if device_index is not None:
        options.append(f"--turnout-device-index={device_index}")
    if allow_missing:
        options.append("--turnout-allow-missing")
    if keyword:
        options += ["-k", keyword]
    options.append("-v" if verbose else "-q")
    with tempfile.TemporaryDirectory() as folder, _only_this_suite():
        # Nothing of the user's own pytest set-up counts, and nothing is written where they are.
        settings = Path(folder, "pytest.ini")
        settings.write_text("[pytest]\n", encoding="utf-8")
        package = Path(__file__).parent
        status = int(
            pytest.main(
                [
                    *("-c", str(settings), "--rootdir", str(package.parents[1]), "--noconftest"),
                    *("-p", "no:cacheprovider", "-p", "turnout.conformance.plugin"),
                    *("--import-mode", "append", "--tb", "short", "--no-header"),
                    *options,
                    str(package),
                ]
            )
        )
    if status == pytest.ExitCode.NO_TESTS_COLLECTED:
        print(f"turnout check: no test matches {keyword!r}", file=sys.stderr)
        return _USAGE_ERROR
    # For a `keyword` that it cannot read, pytest has a status of its own, and has said why.
    return _USAGE_ERROR if status == pytest.ExitCode.USAGE_ERROR else status


def _unknown(backend: str) -> str:
    """Why there is no such backend; empty where it is installed, whether it can be used or not."""
    try:
        turnout.devices(backend)
    except turnout.Unavailable as error:
        return "" if backend in turnout.backends() else f"turnout check: {error}"
    except turnout.BackendError:
        return ""  # a failure, which the suite reports
    return ""


@contextmanager
def _only_this_suite() -> Iterator[None]:
    """Hide the environment by which a user's pytest loads plugins and takes options."""
    hidden = {
        name: os.environ.pop(name, None)
        for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    }
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]
        os.environ.update({name: value for name, value in hidden.items() if value is not None})
