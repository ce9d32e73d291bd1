"""Fixtures of the tests of the core."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_plugins import Site, device_source
from language_support import DEVICES

import turnout as tn
from turnout.backends import clear


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Each backend that runs kernels here, by name."""
    name: str = request.param
    return name


@pytest.fixture(params=["absent", None])
def no_home(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user whose home folder does not exist, or is not known."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if request.param is None:
        # What a user without an entry in the password database gets when HOME is unset.
        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    else:
        monkeypatch.setenv("HOME", str(tmp_path / request.param))
        monkeypatch.setenv("USERPROFILE", str(tmp_path / request.param))


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """The module of backend ``gpu`` with two devices; ``tiny`` has one without float64."""
    monkeypatch.delenv("TURNOUT_BACKEND", raising=False)
    monkeypatch.setenv("TURNOUT_CACHE", "off")
    site = Site(tmp_path / "site", monkeypatch)
    site.install_backend("gpu", device_source("gpu"))
    site.install_backend("tiny", device_source("tiny", 1, features=()))
    tn.devices("gpu")
    yield sys.modules["dist_gpu_module"]
    monkeypatch.undo()
    clear()
