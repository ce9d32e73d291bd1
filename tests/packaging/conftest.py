"""Wheels of everything in the checkout, and an environment they are installed in."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGINS = ("cpu", "opencl")
DISTRIBUTIONS = (
    ROOT,
    *(ROOT / "plugins" / name for name in PLUGINS),
    ROOT / "examples" / "thirdparty",
)


@dataclass(frozen=True)
class Environment:
    """A fresh virtual environment, used from an empty folder."""

    folder: Path
    cwd: Path

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        scripts = self.folder / ("Scripts" if os.name == "nt" else "bin")
        # What the caller's shell is set to must not decide what is tested here.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TURNOUT_", "PYTEST_", "PYTHON"))
        }
        path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
        environment = {**inherited, "PATH": path, "TURNOUT_CACHE_DIR": str(self.cwd / "cache")}
        return subprocess.run(
            [str(scripts / command[0]), *command[1:]],
            cwd=self.cwd,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=600,
        )

    def check(self, *command: str, **variables: str) -> str:
        done = self.run(*command, **variables)
        assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small private index: our wheels and everything they depend on."""
    folder = tmp_path_factory.mktemp("wheels")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(folder)]
        + [str(distribution) for distribution in DISTRIBUTIONS],
        check=True,
    )
    return folder


def create_environment(folder: Path, wheels: Path, *requirements: str) -> Environment:
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    environment = Environment(folder / "venv", folder / "elsewhere")
    environment.cwd.mkdir()
    install = ["-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(wheels)]
    environment.check("python", *install, *requirements)
    return environment


@pytest.fixture(scope="session")
def core_alone(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Environment:
    return create_environment(tmp_path_factory.mktemp("core"), wheels, "turnout")


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Environment:
    return create_environment(tmp_path_factory.mktemp("all"), wheels, "turnout[all]")


@pytest.fixture(scope="session")
def with_stranger(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Environment:
    folder = tmp_path_factory.mktemp("stranger")
    return create_environment(folder, wheels, "turnout[all]", "turnout-example")
