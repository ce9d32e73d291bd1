"""Distributions of everything in the checkout, and environments that they are installed in.

Sources become sdists, sdists become wheels, and wheels are installed, each once for all tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGINS = tuple(ROOT / "plugins" / name for name in ("cpu", "cuda", "opencl"))
DISTRIBUTIONS = (ROOT, *PLUGINS, ROOT / "examples" / "thirdparty")


@dataclass(frozen=True)
class Environment:
    """A virtual environment, used from an empty folder."""

    folder: Path

    @property
    def scripts(self) -> Path:
        return self.folder / "venv" / ("Scripts" if os.name == "nt" else "bin")

    @property
    def cwd(self) -> Path:
        return self.folder / "elsewhere"

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        # What the caller's shell is set to must not decide what is tested here.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TURNOUT_", "PYTEST_", "PYTHON", "OCL_", "OPENCL_"))
        }
        environment = {
            **inherited,
            "PATH": f"{self.scripts}{os.pathsep}{os.environ['PATH']}",
            "TURNOUT_CACHE_DIR": str(self.cwd / "cache"),
            # Libraries that backends use keep caches too.
            "XDG_CACHE_HOME": str(self.cwd / "cache"),
        }
        return subprocess.run(
            [str(self.scripts / command[0]), *command[1:]],
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

    def pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the pip of the tests on this environment, which needs none of its own."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.scripts / "python")]
        return subprocess.run([*pip, *arguments], capture_output=True, text=True, encoding="utf-8")

    def check_pip(self, *arguments: str) -> str:
        done = self.pip(*arguments)
        assert done.returncode == 0, f"pip {arguments} failed:\n{done.stdout}\n{done.stderr}"
        return done.stdout


def create_environment(folder: Path, *arguments: str) -> Environment:
    """Make an environment with what `pip install` makes of the arguments."""
    environment = Environment(folder)
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True
    )
    environment.cwd.mkdir()
    environment.check_pip("install", "--quiet", "--no-compile", *arguments)
    return environment


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the build backend, so that it is installed once and not per build."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    requirements = project["build-system"]["requires"]
    return create_environment(tmp_path_factory.mktemp("builder"), *requirements)


@pytest.fixture(scope="session")
def sdists(tmp_path_factory: pytest.TempPathFactory, builder: Environment) -> Path:
    """A folder with the sdists of all distributions."""
    folder = tmp_path_factory.mktemp("sdists")
    command = "import os, sys, hatchling.build; os.chdir(sys.argv[1]);"
    command += "hatchling.build.build_sdist(sys.argv[2])"
    for distribution in DISTRIBUTIONS:
        builder.check("python", "-c", command, str(distribution), str(folder))
    return folder


BuildWheels = Callable[..., None]


@pytest.fixture(scope="session")
def build_wheels(builder: Environment) -> BuildWheels:
    """Builds wheels of sdists or folders with sources into a folder."""

    def build(folder: Path, *sources: Path) -> None:
        options = ("--quiet", "--no-build-isolation", "--no-deps", "--no-index")
        builder.check_pip("wheel", *options, "--wheel-dir", str(folder), *map(str, sources))

    return build


@pytest.fixture(scope="session")
def wheels(
    tmp_path_factory: pytest.TempPathFactory, sdists: Path, build_wheels: BuildWheels
) -> Path:
    """A folder with the wheels of all distributions, made of their sdists."""
    folder = tmp_path_factory.mktemp("wheels")
    build_wheels(folder, *sorted(sdists.iterdir()))
    return folder


@pytest.fixture(scope="session")
def index(
    tmp_path_factory: pytest.TempPathFactory, builder: Environment, wheels: Path
) -> tuple[str, ...]:
    """Options of pip for a small private index: our wheels and what they depend on, CuPy aside."""
    folder = tmp_path_factory.mktemp("index")
    # Named by their paths: nothing that anybody published under such a name can take their place.
    ours = sorted(map(str, wheels.iterdir()))
    builder.check_pip("wheel", "--quiet", "--wheel-dir", str(folder), *ours, "turnout-opencl[pocl]")
    return ("--no-index", "--find-links", str(folder))


@pytest.fixture(scope="session")
def core_alone(tmp_path_factory: pytest.TempPathFactory, index: tuple[str, ...]) -> Environment:
    return create_environment(tmp_path_factory.mktemp("core"), *index, "turnout")


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory, index: tuple[str, ...]) -> Environment:
    """All backends, but neither CuPy nor a driver of OpenCL."""
    folder = tmp_path_factory.mktemp("all")
    return create_environment(folder, *index, "turnout[all]", "turnout-cuda")


@pytest.fixture(scope="session")
def with_pocl(tmp_path_factory: pytest.TempPathFactory, index: tuple[str, ...]) -> Environment:
    """OpenCL on the processor."""
    folder = tmp_path_factory.mktemp("opencl")
    return create_environment(folder, *index, "turnout[opencl]", "turnout-opencl[pocl]")


@pytest.fixture(scope="session")
def with_stranger(tmp_path_factory: pytest.TempPathFactory, index: tuple[str, ...]) -> Environment:
    folder = tmp_path_factory.mktemp("stranger")
    return create_environment(folder, *index, "turnout[cpu]", "turnout-example")


@pytest.fixture(scope="session")
def plugin_of_next_minor(
    tmp_path_factory: pytest.TempPathFactory, build_wheels: BuildWheels
) -> Path:
    """The wheel of turnout-cpu as if it were of 0.2.0."""
    folder = tmp_path_factory.mktemp("next")
    source = folder / "cpu"
    shutil.copytree(ROOT / "plugins" / "cpu", source)
    project = source / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    assert text.count("0.1.0") == 2  # its own version, and that of the core
    project.write_text(text.replace("0.1.0", "0.2.0"), encoding="utf-8")
    build_wheels(folder, source)
    return next(folder.glob("turnout_cpu-0.2.0-*.whl"))
