"""Fakes of CuPy, and what to do with tests that need a GPU."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

import pytest
from fake_cupy import FakeCupy

import turnout as tn

_REQUIRE = "TURNOUT_REQUIRE_GPU"

# All but what is CuPy's own is tested without it.
collect_ignore = (
    [] if importlib.util.find_spec("cupy") else ["test_compile.py", "test_stub_driver.py"]
)


def pytest_report_header() -> list[str]:
    """Say what is left out."""
    return [f"no CuPy, so tests/cuda/{file} is left out" for file in collect_ignore]


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
