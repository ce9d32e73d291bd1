"""Fakes of CuPy, and what to do with tests that need a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec

import pytest
from fake_cupy import FakeCupy

import turnout as tn

_REQUIRE = "TURNOUT_REQUIRE_GPU"

# What a group of tests is about, and has to be importable for it; all others run without.
_NEEDS = {
    "cupy": ["test_bundle.py", "test_compile.py", "test_stub_driver.py"],
    "turnout_cuda_emulated": [
        "test_differential.py",
        "test_emulated_bundle.py",
        "test_emulation.py",
        "test_oracle.py",
        "test_segmented.py",
    ],
}
_LEFT_OUT = {file: name for name, files in _NEEDS.items() for file in files if not find_spec(name)}
collect_ignore = list(_LEFT_OUT)


def pytest_report_header() -> list[str]:
    """Say what is left out."""
    return [f"no {name}, so tests/cuda/{file} is left out" for file, name in _LEFT_OUT.items()]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is none, unless the environment requires one."""
    if os.environ.get(_REQUIRE) or not any(item.get_closest_marker("gpu") for item in items):
        return
    status = tn.backends().get("cuda")
    reason = "the CUDA backend is not installed" if status is None else status.reason
    if not reason:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=f"{reason} ({_REQUIRE}=1 makes it fail)"))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    """A CuPy whose driver takes notes, with two GPUs."""
    made = FakeCupy()
    made.install(monkeypatch)
    return made


@pytest.fixture
def driver_version(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the version of the driver that is found."""
    from turnout_cuda import diagnosis

    def install(version: int) -> None:
        monkeypatch.setattr(diagnosis, "driver_version", lambda: version)

    return install
