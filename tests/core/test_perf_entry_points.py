"""Implementations that installed distributions bring, through a folder on the path."""

from __future__ import annotations

import gc
import pickle
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turnout import discovery
from turnout.errors import CallError
from turnout.perf import PerformanceDispatcher, perf_dispatch

LOGGED: list[str] = []
WAITING = threading.Semaphore(0)


class Installer:
    """Puts distributions with one module each into a folder on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: list[str] = []

    def install(self, name: str, source: str, *entries: str) -> None:
        module = f"stranger_{name}_{len(self.modules)}"
        self.modules.append(module)
        (self.folder / f"{module}.py").write_text(
            f"from {__name__} import LOGGED\nLOGGED.append({name!r})\n{source}"
        )
        info = self.folder / f"{name}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        lines = [entry.replace("MODULE", module) for entry in entries]
        (info / "entry_points.txt").write_text("\n".join(["[turnout.implementations]", *lines]))


@pytest.fixture
def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installer]:
    LOGGED.clear()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, __name__, _this_module())
    discovery.clear()
    installer = Installer(tmp_path)
    yield installer
    discovery.clear()
    for module in installer.modules:
        sys.modules.pop(module, None)


def _this_module() -> Any:
    module = type(sys)(__name__)
    module.__dict__.update(globals())
    return module


def make(*names: str) -> PerformanceDispatcher[..., Any]:
    @perf_dispatch(get_geometry_hash=lambda a: 0, timer=lambda work: (work(), 1)[1])
    def op_of_entry_points(a: int) -> str: ...

    for name in names:
        op_of_entry_points.register(name=name)(lambda a: "own")
    return op_of_entry_points


REGISTER = """
def register(operation):
    @operation.register
    def NAME(a):
        return "NAME"
"""
PLAIN = "op_of_entry_points = MODULE:register"


def test_loaded_at_the_first_call_in_sorted_order(installer: Installer) -> None:
    installer.install("zebra", REGISTER.replace("NAME", "z"), PLAIN)
    installer.install("ant", REGISTER.replace("NAME", "a"), PLAIN)
    installer.install("other", REGISTER.replace("NAME", "o"), "another_op = MODULE:register")
    op = make("own")
    assert op.implementations == ("own",)
    assert LOGGED == []
    assert [op(1) for _ in range(3)] == ["own", "a", "z"]
    assert op.implementations == ("own", "a", "z")
    assert LOGGED == ["ant", "zebra"]


def own(a: int) -> str:
    return "own"


def test_what_is_installed_is_no_part_of_a_pickle(installer: Installer) -> None:
    installer.install("ant", REGISTER.replace("NAME", "a"), PLAIN)

    def stored() -> bytes:
        @perf_dispatch
        def op_of_entry_points(a: int) -> str: ...

        op_of_entry_points.register(own)
        op_of_entry_points(1)
        assert op_of_entry_points.implementations == ("own", "a")
        return pickle.dumps(op_of_entry_points)

    made_elsewhere = stored()
    gc.collect()  # there is no operation any more
    made = pickle.loads(made_elsewhere)
    assert made.implementations == ("own",)
    assert [made(1) for _ in range(2)] == ["own", "a"]
    assert pickle.loads(made_elsewhere).implementations == ("own", "a")


@pytest.mark.parametrize("separator", [".", ":"])
def test_a_name_may_be_qualified(installer: Installer, separator: str) -> None:
    qualified = f"{__name__}{separator}make.<locals>.op_of_entry_points"
    installer.install("ant", REGISTER.replace("NAME", "a"), f"{qualified} = MODULE:register")
    assert make()(1) == "a"


def test_forced_by_the_environment(installer: Installer, monkeypatch: pytest.MonkeyPatch) -> None:
    installer.install("ant", REGISTER.replace("NAME", "a"), PLAIN)
    monkeypatch.setenv("TURNOUT_PERFDISPATCH_FORCE", "op_of_entry_points:a")
    op = make("own")
    assert {op(1) for _ in range(10)} == {"a"}


@pytest.mark.parametrize("block", ["ant", "op_of_entry_points", " other, ANT "])
def test_blocked(installer: Installer, monkeypatch: pytest.MonkeyPatch, block: str) -> None:
    installer.install("ant", REGISTER.replace("NAME", "a"), PLAIN)
    monkeypatch.setenv("TURNOUT_BLOCK", block)
    op = make("own")
    assert op(1) == "own"
    assert op.implementations == ("own",)
    assert LOGGED == []


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def", "SyntaxError: "),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise OSError('libgone.so')", "OSError: libgone.so"),
        ("register = 5", "TypeError: "),
        ("", "AttributeError: "),
        (REGISTER.replace("NAME", "half") + "    raise ValueError('late')\n", "ValueError: late"),
        (REGISTER.replace("NAME", "half") * 1 + "    operation.register(7)\n", "KernelError: "),
        (REGISTER.replace("NAME", "own"), "KernelError: "),
    ],
)
def test_one_that_fails_leaves_nothing_behind(
    installer: Installer, source: str, reason: str
) -> None:
    installer.install("broken", source, PLAIN)
    installer.install("sound", REGISTER.replace("NAME", "s"), PLAIN)
    op = make("own")
    with pytest.warns(RuntimeWarning) as caught:
        assert op(1) == "own"
    assert len(caught) == 1
    message = str(caught[0].message)
    assert message.startswith(
        "perf_dispatch 'op_of_entry_points': the implementations of distribution broken 1.5 are "
        "left out, because its entry point 'op_of_entry_points = stranger_broken_0:register' "
        f"failed: {reason}"
    )
    assert caught[0].filename == __file__
    assert op.implementations == ("own", "s")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [op(1) for _ in range(3)] == ["s", "own", "s"]


def test_an_interrupted_load_is_done_by_the_next_call(installer: Installer) -> None:
    installer.install("ant", REGISTER.replace("NAME", "a"), PLAIN)
    source = "if len(LOGGED) < 3:\n    raise KeyboardInterrupt\n"
    installer.install("bee", source + REGISTER.replace("NAME", "b"), PLAIN)
    op = make("own")
    with pytest.raises(KeyboardInterrupt):
        op(1)
    assert LOGGED == ["ant", "bee"]
    assert op(1) == "own"
    assert op.implementations == ("own", "a", "b")


def test_an_entry_point_may_call_the_operation(installer: Installer) -> None:
    source = """
def register(operation):
    try:
        operation(1)
    except TypeError as error:
        LOGGED.append(str(error))
    operation.register(lambda a: "late", name="late")
    LOGGED.append(operation(1))
"""
    installer.install("ant", source, PLAIN)
    assert make()(1) == "late"
    assert LOGGED == [
        "ant",
        "perf_dispatch 'op_of_entry_points' has no implementation: register at least one with "
        "@op_of_entry_points.register",
        "late",
    ]


def test_threads_wait_for_the_first_implementation(
    installer: Installer, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_three = f"from {__name__} import WAITING\n[WAITING.acquire() for _ in range(3)]\n"
    installer.install("ant", wait_for_three + REGISTER.replace("NAME", "a"), PLAIN)
    op = make()

    class Announcing(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            WAITING.release()
            return super().wait(timeout)

    monkeypatch.setattr(op._preparation, "_condition", Announcing())
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(op(1))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == ["a"] * 4
    assert LOGGED == ["ant"]


def test_an_operation_without_any_is_an_error(installer: Installer) -> None:
    installer.install("ant", "def register(operation): ...", PLAIN)
    with pytest.raises(CallError, match="has no implementation"):
        make()(1)
