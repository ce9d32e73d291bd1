"""Binaries between compile and launch: what is loaded from disk, under which key, and when not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_plugins import Site
from language_support import DEVICES

import turnout as tn
from turnout import BackendError, CompileError, NDArray, Param, Scalar, f64
from turnout.backends import backend, clear
from turnout.cache import default_cache
from turnout.compilation import compile_unit, lower_plan
from turnout.hooks import Options

needs_cpu = pytest.mark.skipif("cpu" not in tn.backends(), reason="turnout-cpu is not installed")


@tn.kernel
def doubled(x: Scalar) -> Scalar:
    return x * 2


# -- in one process, with a backend that counts ------------------------------------------------

COUNTING = """
from turnout import reference
from turnout.plugin import Binary, CompileError, Device, Target, hookimpl

compiled = []
behaviour = {}

@hookimpl
def turnout_devices():
    return [Device(0, "counting", Target("counting", "fake"))]

@hookimpl
def turnout_compile(unit):
    compiled.append(unit.name)
    return behaviour.get("compile", lambda: reference.turnout_compile(unit=unit))()

@hookimpl
def turnout_launch(unit):
    return behaviour.get("launch", reference.turnout_launch)(unit)
"""


class Counting:
    """The backend ``counting``, installed from a folder, and its cache."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self.folder = folder
        self.path = site.folder / "dist_counting_module.py"
        self.site.install_backend("counting", COUNTING)

    @property
    def module(self) -> types.ModuleType:
        backend("counting")
        return sys.modules["dist_counting_module"]

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.rglob("*.bin"))

    def run(self, kernel: tn.Kernel | None = None, **options: bool) -> int:
        """How many units a fresh kernel compiles, after a check of its result."""
        before = len(self.module.compiled)
        kernel = kernel or tn.kernel(**options)(doubled.__wrapped__)
        assert kernel(np.ones(2), device="counting").tolist() == [2, 2]
        return len(self.module.compiled) - before

    def restart(self) -> None:
        """As a new process would see the backend's files now."""
        sys.modules.pop("dist_counting_module", None)
        clear()


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    monkeypatch.setenv("TURNOUT_CACHE", "on")
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "cache"))
    yield Counting(Site(tmp_path / "site", monkeypatch), tmp_path / "cache")
    monkeypatch.undo()
    clear()


def test_the_second_kernel_of_the_same_code_is_not_compiled(counting: Counting) -> None:
    assert counting.run() == 1
    assert counting.run() == 0
    counting.restart()
    assert counting.run() == 0
    assert len(counting.files) == 1


def test_options_have_their_own_binaries(counting: Counting) -> None:
    assert counting.run() == 1
    assert counting.run(debug=True) == 1
    assert counting.run(fastmath=True) == 1
    assert counting.run(debug=True) == counting.run(fastmath=True) == counting.run() == 0


def test_a_changed_backend_never_loads_what_the_old_one_compiled(counting: Counting) -> None:
    assert counting.run() == 1
    counting.path.write_text(COUNTING + "\n# changed, under the same version\n")
    counting.restart()
    assert counting.run() == 1
    counting.path.write_text(COUNTING)
    counting.restart()
    assert counting.run() == 0


def test_every_file_of_a_backends_package_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "cache"))
    site = Site(tmp_path / "site", monkeypatch)
    package = site.folder / "packaged"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner" / "__init__.py").write_text("RULE = 1")
    (package / "hooks.py").write_text(COUNTING)
    site.install("dist-packaged", "[turnout.backends]\ncounting = packaged.hooks\n")

    def compiled() -> int:
        for name in [name for name in sys.modules if name.partition(".")[0] == "packaged"]:
            del sys.modules[name]
        clear()
        tn.kernel(doubled.__wrapped__)(np.ones(2), device="counting")
        return len(sys.modules["packaged.hooks"].compiled)

    assert compiled() == 1
    assert compiled() == 0
    (package / "inner" / "__init__.py").write_text("RULE = 2")
    assert compiled() == 1


@pytest.mark.parametrize("damage", [b"", b"x", b"turnout binary 1\n" + b"0" * 64 + b"\n{}\n"])
def test_a_damaged_file_is_compiled_again(counting: Counting, damage: bytes) -> None:
    counting.run()
    (file,) = counting.files
    whole = file.read_bytes()
    for content in (damage, whole[:-1], whole[: len(whole) // 2]):
        file.write_bytes(content)
        with pytest.MonkeyPatch.context() as context:
            context.setattr("turnout.cache._warned", {})
            with pytest.warns(tn.CacheWarning, match="does not hold what turnout stored there"):
                assert counting.run() == 1
    assert counting.run() == 0


def test_the_switched_off_cache_touches_nothing(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNOUT_CACHE", "off")
    assert counting.run() == counting.run() == 1
    assert not counting.folder.exists()


def test_text_for_people_is_never_stored(counting: Counting) -> None:
    (unit,) = doubled.lower(doubled.default_types()).plan.units
    target = tn.devices("counting")[0].target
    compile_unit(unit, backend("counting"), target, Options(keep_text=True))
    assert counting.module.compiled == ["doubled"]
    assert not counting.folder.exists()


def test_the_reference_never_touches_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "cache"))
    tn.kernel(doubled.__wrapped__)(np.ones(2), device="reference")
    assert not (tmp_path / "cache").exists()


def test_a_stored_binary_that_does_not_load_is_compiled_anew(counting: Counting) -> None:
    counting.run()
    launch = counting.module.reference.turnout_launch
    failures = [CompileError("counting", "a library is missing")]

    def fail_once(unit: Any) -> Any:
        if failures:
            raise failures.pop()
        return launch(unit)

    counting.module.behaviour["launch"] = fail_once
    assert counting.run() == 1
    assert counting.run() == 0


def test_code_that_never_loads_shows_the_reason(counting: Counting) -> None:
    def launch(unit: Any) -> Any:
        raise CompileError("counting", "a library is missing")

    counting.module.behaviour["launch"] = launch
    with pytest.raises(CompileError, match="'counting' could not compile: a library is missing"):
        counting.run()


@pytest.mark.parametrize(
    ("hook", "answer", "message"),
    [
        ("compile", lambda: 1 / 0, "turnout_compile failed with ZeroDivisionError: division by z"),
        ("compile", lambda: "code", "turnout_compile returned str, not a Binary"),
        ("launch", lambda unit: 1 / 0, "turnout_launch failed with ZeroDivisionError: division"),
        ("launch", lambda unit: "code", "turnout_launch returned str, which cannot be called"),
    ],
)
def test_a_backend_that_breaks_the_contract_is_named(
    counting: Counting, hook: str, answer: Any, message: str
) -> None:
    counting.module.behaviour[hook] = answer
    with pytest.raises(BackendError) as caught:
        counting.run()
    assert str(caught.value).startswith("backend 'counting' of dist-counting 1.0: " + message)


def test_a_failed_compile_is_tried_again_at_the_next_call(counting: Counting) -> None:
    kernel = tn.kernel(doubled.__wrapped__)
    counting.module.behaviour["compile"] = lambda: 1 / 0
    with pytest.raises(BackendError):
        kernel(np.ones(2), device="counting")
    counting.module.behaviour.clear()
    assert counting.run(kernel) == 1


def test_a_backend_may_lower_a_dispatch_itself(counting: Counting) -> None:
    counting.path.write_text(
        COUNTING
        + """
from turnout.plugin import ir
from turnout.lower import lower_dispatches
asked = []

@hookimpl
def turnout_lower_dispatch(unit, site, policy):
    asked.append((site.name, policy))
    return ir.Plan((ir.Run(lower_dispatches(unit, lambda dispatch: "predicated")),))
"""
    )
    counting.restart()

    @tn.kernel
    def chosen(x: Scalar, k: Param) -> Scalar:
        return tn.math.dispatch(k, [x + 1, x + 2])

    assert chosen(np.ones(2), 1, device="counting").tolist() == [3, 3]
    assert counting.module.asked == [("dispatch0", "switch")]


def test_the_core_lowers_what_a_backend_leaves() -> None:
    @tn.kernel
    def chosen(x: Scalar, k: Param) -> Scalar:
        return tn.math.dispatch(k, [x + 1, x + 2], policy="segmented")

    assert chosen(np.ones(2), 1, device="reference").tolist() == [3, 3]


# -- in processes ------------------------------------------------------------------------------

PROGRAM = """
import sys
import numpy as np
import turnout as tn
from turnout import Param, Scalar
from helper import helped

if "forbid" in sys.argv:
    import turnout.compilation
    def refuse(unit, backend, *rest):
        raise SystemExit(f"{unit.name} was compiled")
    turnout.compilation._compiled = refuse

@tn.kernel
def k(x: Scalar, by: Param) -> Scalar:
    return helped(x) * by

print(k(np.array([1.0, 2.0]), 3).tolist())
"""

HELPER = """
import turnout as tn

OFFSET = 1.0

@tn.func
def helped(x):
    return x + OFFSET
"""


class Program:
    """A program of two modules in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("TURNOUT_")
        }
        self.environment["TURNOUT_BACKEND"] = "cpu"
        self.environment["TURNOUT_CACHE_DIR"] = str(folder / "cache")
        self.write("program.py", PROGRAM)
        self.write("helper.py", HELPER)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def run(self, *arguments: str, status: int = 0, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-B", "program.py", *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == status, done.stderr
        return done.stdout.strip() or done.stderr.strip()

    @property
    def files(self) -> list[Path]:
        return sorted((self.folder / "cache").rglob("*.bin"))


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


@needs_cpu
def test_the_second_process_does_not_compile(program: Program) -> None:
    assert program.run("forbid", status=1) == "k was compiled"
    assert program.run() == "[6.0, 9.0]"
    for seed in ("0", "1", "12345"):
        assert program.run("forbid", PYTHONHASHSEED=seed) == "[6.0, 9.0]"
    assert len(program.files) == 1


@needs_cpu
def test_a_changed_helper_in_another_module_is_another_binary(program: Program) -> None:
    assert program.run() == "[6.0, 9.0]"
    program.write("helper.py", HELPER.replace("x + OFFSET", "x - OFFSET"))
    assert program.run("forbid", status=1) == "k was compiled"
    assert program.run() == "[0.0, 3.0]"
    program.write("helper.py", HELPER.replace("OFFSET = 1.0", "OFFSET = 2.0"))
    assert program.run() == "[9.0, 12.0]"
    assert len(program.files) == 3


@needs_cpu
def test_comments_and_lines_do_not_matter(program: Program) -> None:
    program.run()
    other_lines = "    y = helped(x)\n    return y * by"
    program.write("helper.py", "# moved\n\n" + HELPER.replace("return", "# why\n    return"))
    program.write("program.py", PROGRAM.replace("    return helped(x) * by", other_lines))
    assert program.run("forbid") == "[6.0, 9.0]"


@needs_cpu
@pytest.mark.skipif(os.name == "nt", reason="HOME is not used there")
def test_no_usable_home_works_with_one_warning(program: Program, tmp_path: Path) -> None:
    del program.environment["TURNOUT_CACHE_DIR"]
    program.environment.pop("XDG_CACHE_HOME", None)
    program.write("program.py", PROGRAM + "\nk(np.ones(2, np.float32), 3)\n")
    (tmp_path / "file").write_text("")
    for home in ("/nonexistent", str(tmp_path / "file")):
        done = subprocess.run(
            [sys.executable, "-B", "program.py"],
            cwd=program.folder,
            env=program.environment | {"HOME": home},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "[6.0, 9.0]"
        assert len(re.findall("CacheWarning", done.stderr)) == 1, done.stderr


@needs_cpu
def test_processes_that_start_together_agree(program: Program) -> None:
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(program.run())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["[6.0, 9.0]"] * 4
    assert len(program.files) == 1


# -- plans -------------------------------------------------------------------------------------


@tn.kernel
def staged(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
    total = 0.0
    for i in tn.serial(range(a.shape[0])):
        total = total + a[i]
    for i in range(a.shape[0]):
        b[i] = a[i] / total


@pytest.mark.parametrize("device", DEVICES)
def test_a_plan_without_dispatches_stays_as_it_is(device: str) -> None:
    plan = staged.lower(staged.default_types()).plan
    target = tn.devices(device)[0].target
    assert lower_plan(plan, backend(device), target) == plan


def test_the_cache_of_the_process_is_the_one_the_environment_names(counting: Counting) -> None:
    assert default_cache().directory == counting.folder
