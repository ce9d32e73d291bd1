"""Which plugins are found, which are ignored or refused, and what the messages say."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import tomllib
import warnings
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from fake_plugins import Site, backend_source
from units import UnitBuilder, elementwise

import turnout as tn
from turnout import discovery, distributions, ir, plugin
from turnout.errors import (
    BackendError,
    CompileError,
    ConfigurationError,
    TurnoutError,
    Unavailable,
)
from turnout.hooks import Options
from turnout.ir import f64
from turnout.perf import perf_dispatch

# Imported by name, because the package offers the function `turnout.backends` under the same one.
backends = importlib.import_module("turnout.backends")

MUST = """
from turnout.plugin import Device, Target, hookimpl
@hookimpl
def turnout_devices(): return [Device(0, "d", Target("broken", "a"))]
@hookimpl
def turnout_compile(unit): ...
@hookimpl
def turnout_launch(unit): ...
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only what a test installs is there, and nothing stays."""
    monkeypatch.delenv("TURNOUT_BLOCK", raising=False)
    monkeypatch.delenv("TURNOUT_BACKEND", raising=False)
    backends.clear()
    yield
    backends.clear()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path / "site", monkeypatch)


def message(name: str) -> str:
    """What asking for a backend says."""
    with pytest.raises(TurnoutError) as caught:
        backends.devices(name)
    return str(caught.value)


# ---- what is found -----------------------------------------------------------------------------


def test_reference_needs_no_metadata() -> None:
    status = backends.backends()["reference"]
    assert (status.distribution, status.available, status.reason) == ("turnout", True, "")
    assert [str(device) for device in status.devices] == ["reference:0"]


def test_backend_is_found_with_its_distribution_and_version(site: Site) -> None:
    site.install_backend("fake", version="2.5")
    status = backends.backends()["fake"]
    assert (status.name, status.distribution, status.version) == ("fake", "dist-fake", "2.5")
    assert status.available
    loaded = backends.backend("fake")
    assert (loaded.name, loaded.distribution, loaded.version) == ("fake", "dist-fake", "2.5")


def test_order_is_by_name_whatever_was_installed_first(site: Site) -> None:
    for name in ("zeta", "alpha", "middle"):
        site.install_backend(name)
    names = list(backends.backends())
    assert names == sorted(names)
    assert {"alpha", "middle", "reference", "zeta"} <= set(names)


def test_entries_of_implementations_are_sorted_and_kept(site: Site) -> None:
    site.install("b-dist", "[turnout.implementations]\ndot = b:register\n")
    site.install("a-dist", "[turnout.implementations]\ndot = a:register\nthe-op = a:other\n")
    found = discovery.installed().in_group(discovery.IMPLEMENTATIONS_GROUP)
    mine = [(each.name, each.distribution) for each in found if each.distribution[1:] == "-dist"]
    assert mine == [("dot", "a-dist"), ("dot", "b-dist"), ("the-op", "a-dist")]


def test_core_declares_reference_without_harm(site: Site) -> None:
    site.install("turnout", "[turnout.backends]\nreference = turnout.reference\n", version="9.9")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        status = backends.backends()["reference"]
    assert status.available
    assert status.version == tn.__version__  # of the code that runs, whatever is installed


def test_metadata_is_read_once_and_not_by_import(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install_backend("fake")
    scans = []
    original = discovery.distributions
    monkeypatch.setattr(discovery, "distributions", lambda: scans.append(1) or original())
    backends.backends()
    backends.devices("fake")
    discovery.installed()
    assert message("nope")
    assert len(scans) == 1


def test_import_of_the_module_reads_no_metadata() -> None:
    program = (
        "import turnout.backends, turnout.plugin, sys\n"
        "assert sys.modules['turnout.discovery']._installed is None\n"
        "assert 'turnout.reference' not in sys.modules\n"
    )
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=60)


def test_backend_is_imported_when_asked_for(site: Site) -> None:
    site.install_backend("fake")
    discovery.installed()
    assert "dist_fake_module" not in sys.modules
    backends.devices("reference")
    assert "dist_fake_module" not in sys.modules
    backends.backend("fake")
    assert "dist_fake_module" in sys.modules


def test_plugin_may_import_and_use_turnout_at_top_level(site: Site) -> None:
    source = "from turnout.backends import backends\nfound = backends()\n"
    site.install_backend("fake", source + backend_source("fake"))
    assert backends.devices("fake")
    found = sys.modules["dist_fake_module"].found  # type: ignore[attr-defined]
    assert found["reference"].available
    assert "asked for by its own code" in found["fake"].reason
    assert backends.backends()["fake"].available


def test_plugin_that_needs_itself_is_told_so(site: Site) -> None:
    source = "from turnout.backends import devices\ndevices('fake')\n"
    site.install_backend("fake", source + backend_source("fake"))
    assert "backend 'fake' of dist-fake 1.0: it is asked for by its own code" in message("fake")


def test_one_thread_loads_and_the_others_wait(site: Site) -> None:
    counting = "import threading\ncalls = []\n" + backend_source("fake").replace(
        "    return [", "    calls.append(threading.get_ident())\n    return ["
    )
    site.install_backend("fake", counting)
    barrier = threading.Barrier(8)
    found = []

    def work() -> None:
        barrier.wait()
        found.append(backends.resolve((), "fake"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1
    assert len(sys.modules["dist_fake_module"].calls) == 1  # type: ignore[attr-defined]


# ---- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a-b", "1x", "", "class", "Größe", "Fake", "a.b", "_x"])
def test_bad_name_is_ignored_with_one_warning(site: Site, name: str) -> None:
    site.install("odd-dist", f"[turnout.backends]\n{name} = odd_module\nfine = fine_module\n",
                 {"fine_module": backend_source("fine")})  # fmt: skip
    with pytest.warns(RuntimeWarning) as caught:
        found = backends.backends()
    assert len(caught) == 1
    assert str(caught[0].message) == (
        f"distribution 'odd-dist' (1.0) declares a backend named {name!r}, which is ignored: a "
        "name is made of lower-case letters, digits and underscores, starts with a letter and is "
        "no Python keyword"
    )
    assert name not in found
    assert found["fine"].available
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backends.backends()


def test_warning_of_a_blocked_distribution_is_not_shown(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install("odd-dist", "[turnout.backends]\na-b = odd_module\n")
    monkeypatch.setenv("TURNOUT_BLOCK", "odd_dist")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "a-b" not in backends.backends()


def test_reference_cannot_be_taken_over(site: Site) -> None:
    site.install("thief", "[turnout.backends]\nreference = thief_module\n")
    with pytest.warns(RuntimeWarning, match="'thief' .* this name belongs to turnout itself"):
        assert backends.backends()["reference"].distribution == "turnout"


def test_two_owners_of_one_name_make_it_unusable(site: Site) -> None:
    site.install_backend("fake", distribution="one", version="1.0")
    site.install_backend("fake", distribution="two", version="2.0")
    site.install_backend("other")
    assert message("fake") == (
        "backend 'fake' is declared more than once, by one 1.0 (module 'one_module') and two 2.0 "
        "(module 'two_module'). Fix: uninstall all but one, or hide them by distribution in "
        "TURNOUT_BLOCK: one, two"
    )
    found = backends.backends()
    assert (found["fake"].distribution, found["fake"].available) == ("one, two", False)
    assert found["other"].available
    assert "one_module" not in sys.modules


def test_blocking_one_of_two_owners_leaves_the_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install_backend("fake", distribution="one")
    site.install_backend("fake", distribution="two")
    monkeypatch.setenv("TURNOUT_BLOCK", "two")
    assert backends.backend("fake").distribution == "one"


def test_one_distribution_found_in_two_folders_counts_once(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install_backend("fake")
    link = tmp_path / "link"
    link.symlink_to(site.folder, target_is_directory=True)
    monkeypatch.syspath_prepend(str(link))
    backends.clear()
    assert backends.backends()["fake"].available
    assert len([e for e in discovery.installed().entries if e.name == "fake"]) == 1


def test_first_folder_of_the_path_hides_an_older_copy(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install("dist-fake", "[turnout.backends]\nfake = old\n", version="1.0")
    nearer = Site(tmp_path / "nearer", monkeypatch)
    nearer.install("dist_fake", "[turnout.backends]\nfake = new\n", {"new": backend_source("fake")},
                   version="2.0")  # fmt: skip
    assert backends.backend("fake").version == "2.0"


def test_two_metadata_folders_of_one_distribution_count_once(site: Site) -> None:
    site.install_backend("fake", version="2.0")
    site.install("dist-fake", "[turnout.backends]\nfake = dist_fake_module\n", version="1.0")
    assert backends.backends()["fake"].available


# ---- TURNOUT_BLOCK -----------------------------------------------------------------------------


@pytest.mark.parametrize("blocked", ["fake", "dist-fake", " other , Dist_Fake "])
def test_blocked_backend_says_so(site: Site, monkeypatch: pytest.MonkeyPatch, blocked: str) -> None:
    site.install_backend("fake")
    monkeypatch.setenv("TURNOUT_BLOCK", blocked)
    assert message("fake") == (
        "backend 'fake' is blocked by TURNOUT_BLOCK. Fix: remove 'fake' or 'dist-fake' from "
        "TURNOUT_BLOCK"
    )
    status = backends.backends()["fake"]
    assert (status.available, status.reason) == (
        False,
        "backend 'fake' is blocked by TURNOUT_BLOCK",
    )
    assert "dist_fake_module" not in sys.modules


@pytest.mark.parametrize("text", ["a b", "cuda,,cpu", "cuda,", "x=1", "gr\u00f6\u00dfe"])
def test_malformed_block_list_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TURNOUT_BLOCK", text)
    with pytest.raises(ConfigurationError, match=r"^TURNOUT_BLOCK='.*is no name of a plugin; give"):
        backends.backends()


def test_empty_block_list_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_BLOCK", " ")
    assert backends.backends()["reference"].available


# ---- what is broken never breaks another -------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at"),
        ("def", "SyntaxError: invalid syntax (dist_broken_module.py, line 1)"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise OSError('libx.so: cannot open')", "OSError: libx.so: cannot open"),
        ("raise ValueError", "ValueError"),
        (MUST + "raise RuntimeError('half way')", "RuntimeError: half way"),
    ],
)
def test_module_that_cannot_be_imported(site: Site, source: str, reason: str) -> None:
    site.install_backend("broken", source)
    site.install_backend("fine")
    expected = "backend 'broken' of dist-broken 1.0 cannot be imported from 'dist_broken_module': "
    assert message("broken").startswith(expected + reason)
    found = backends.backends()
    assert found["fine"].available
    assert not found["broken"].available
    assert found["broken"].reason == message("broken")
    assert found["broken"].fix == "tell the authors of dist-broken; TURNOUT_BLOCK=broken hides it"


def test_unavailable_at_import_passes_through(site: Site) -> None:
    source = "from turnout.plugin import Unavailable\nraise Unavailable('no driver', 'get one')"
    site.install_backend("fake", source)
    assert message("fake") == "no driver. Fix: get one"
    assert backends.backends()["fake"].fix == "get one"


def test_interrupt_passes_and_is_not_remembered(site: Site) -> None:
    source = (
        "import sys\nif not hasattr(sys, 'interrupted_once'):\n"
        "    sys.interrupted_once = True\n    raise KeyboardInterrupt\n"
    )
    site.monkeypatch.delattr(sys, "interrupted_once", raising=False)
    site.install_backend("fake", source + backend_source("fake"))
    try:
        with pytest.raises(KeyboardInterrupt):
            backends.devices("fake")
        assert backends.devices("fake")
    finally:
        del sys.interrupted_once  # type: ignore[attr-defined]


def test_failure_is_remembered_without_its_traceback(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "attempts", [], raising=False)
    site.install_backend("broken", "import sys\nsys.attempts.append(1)\nraise OSError('gone')")
    with pytest.raises(BackendError) as first:
        backends.devices("broken")
    assert isinstance(first.value.__cause__, OSError)
    with pytest.raises(BackendError) as second:
        backends.devices("broken")
    assert str(first.value) == str(second.value)
    assert second.value is not first.value
    assert second.value.__cause__ is None
    assert sys.attempts == [1]  # type: ignore[attr-defined]
    backends.clear()
    assert message("broken") == str(first.value)
    assert sys.attempts == [1, 1]  # type: ignore[attr-defined]


def test_entry_point_must_be_a_module(site: Site) -> None:
    site.install("dist-x", "[turnout.backends]\nfake = package:plugin\n")
    assert message("fake") == (
        "backend 'fake' of dist-x 1.0: its entry point is 'package:plugin', but must be the name "
        "of a module, without a colon"
    )


def test_damaged_metadata_breaks_nobody_else(site: Site) -> None:
    info = site.install_backend("fake", distribution="damaged")
    (info / "entry_points.txt").write_bytes(b"[turnout.backends]\nfake = \xff\xfe\n")
    site.install_backend("fine")
    with pytest.warns(
        RuntimeWarning,
        match=r"the entry points of distribution 'damaged' cannot be read \(UnicodeDecodeError: .*"
        "they are ignored. Reinstall or remove it",
    ):
        found = backends.backends()
    assert "fake" not in found
    assert found["fine"].available


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Version: 1\n", r"a distribution in .* \(ValueError: its METADATA has no Name\)"),
        ("Name: odd\n", r"distribution 'odd' .* \(ValueError: its METADATA has no Version\)"),
    ],
)
def test_distribution_without_a_name_or_version_is_ignored(
    site: Site, text: str, problem: str
) -> None:
    info = site.install_backend("fake")
    (info / "METADATA").write_text("Metadata-Version: 2.1\n" + text)
    with pytest.warns(RuntimeWarning, match=f"the entry points of {problem}; they are ignored"):
        assert "fake" not in backends.backends()


def test_entry_points_that_are_no_entry_points_are_reported(site: Site) -> None:
    info = site.install_backend("fake", distribution="odd")
    (info / "entry_points.txt").write_text("[turnout.backends]\nfake\n")
    problem = r"distribution 'odd' cannot be read \(ValueError: .* has the line 'fake'\)"
    with pytest.warns(RuntimeWarning, match=f"the entry points of {problem}"):
        assert "fake" not in backends.backends()


# ---- where metadata is found -------------------------------------------------------------------


def test_metadata_is_read_as_by_the_standard_library(site: Site) -> None:
    site.install_backend("fake")
    own = {
        (distributions.field(each, "Name"), distributions.field(each, "Version"), *points)
        for each in distributions.distributions()
        for points in distributions.entry_points(each.read_text("entry_points.txt") or "")
    }
    standard = {
        (each.metadata["Name"], each.version, point.group, point.name, point.value)
        for each in metadata.distributions()
        for point in each.entry_points
    }
    assert ("dist-fake", "1.0", "turnout.backends", "fake", "dist_fake_module") in own
    assert own == standard


def test_nothing_but_folders_is_read_without_the_standard_library(site: Site) -> None:
    site.install_backend("fake")
    program = (
        "import sys\n"
        "from turnout import discovery\n"
        "assert 'fake' in [entry.name for entry in discovery.installed().entries]\n"
        "assert 'importlib.metadata' not in sys.modules\n"
    )
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=60)


def test_distributions_in_an_archive_are_found(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = site.install_backend("zipped")
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in info.iterdir():
            file.write(path, f"{info.name}/{path.name}")
    shutil.rmtree(info)
    assert "zipped" not in backends.backends()
    monkeypatch.syspath_prepend(str(archive))
    backends.clear()
    assert backends.backends()["zipped"].distribution == "dist-zipped"


def test_distributions_of_other_finders_are_found(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = site.install_backend("elsewhere")
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    info.rename(hidden / info.name)

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            return None

        @staticmethod
        def find_distributions(context: object) -> list[metadata.Distribution]:
            return [metadata.PathDistribution(hidden / info.name)]

    assert "elsewhere" not in backends.backends()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    backends.clear()
    assert backends.backends()["elsewhere"].available


def test_not_installed_lists_what_is_there(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("hardware", "blocked"):
        site.install_backend(name)
    site.install_backend("broken", "raise OSError('gone')")
    monkeypatch.setenv("TURNOUT_BLOCK", "blocked,cpu")
    text = message("hadrware")
    assert text.startswith(
        "backend 'hadrware' is not installed (did you mean 'hardware'?); installed are: "
    )
    assert "blocked (backend 'blocked' is blocked by TURNOUT_BLOCK)" in text
    assert "broken (backend 'broken' of dist-broken 1.0 cannot be imported" in text
    assert "hardware (usable); " in text
    assert "reference (usable)" in text
    assert text.endswith(
        "Fix: install the distribution that brings it, for example `pip install turnout-hadrware`"
    )


# ---- the contract ------------------------------------------------------------------------------


def contract(*mistakes: str) -> str:
    lines = "".join(f"\n  {mistake}" for mistake in mistakes)
    return (
        "backend 'broken' of dist-broken 1.0 (module 'dist_broken_module') does not keep the "
        f"plugin contract of turnout {discovery.core_version()}:{lines}"
    )


def test_empty_backend_misses_every_must_hook(site: Site) -> None:
    site.install_backend("broken", "")
    missing = "is missing, every backend must implement it:"
    assert message("broken") == contract(
        f"turnout_devices {missing} turnout_devices()",
        f"turnout_compile {missing} turnout_compile(unit, target, options)",
        f"turnout_launch {missing} turnout_launch(binary, device, unit)",
    )


@pytest.mark.parametrize("hook", ["turnout_devices", "turnout_compile", "turnout_launch"])
def test_each_must_hook_is_needed(site: Site, hook: str) -> None:
    site.install_backend("broken", MUST + f"del {hook}\n")
    assert f"{hook} is missing, every backend must implement it" in message("broken")


def test_unknown_argument_shows_both_signatures(site: Site) -> None:
    site.install_backend(
        "broken", MUST + "@hookimpl\ndef turnout_compile(unit, targett, extra): ...\n"
    )
    assert message("broken") == contract(
        "turnout_compile has no argument extra, targett: the implementation is "
        "turnout_compile(unit, targett, extra), the specification is "
        "turnout_compile(unit, target, options)"
    )


def test_misspelt_hook_is_told_the_right_name(site: Site) -> None:
    site.install_backend("broken", MUST + "@hookimpl\ndef turnout_memmory(device): ...\n")
    assert message("broken") == contract(
        "turnout_memmory is not a hook of turnout (did you mean turnout_memory?)"
    )


def test_unknown_hook_without_a_close_name(site: Site) -> None:
    site.install_backend("broken", MUST + "@hookimpl\ndef something(): ...\n")
    assert message("broken") == contract("something is not a hook of turnout")


def test_hook_without_the_decorator(site: Site) -> None:
    source = MUST.replace("@hookimpl\ndef turnout_launch", "def turnout_launch")
    site.install_backend("broken", source + "def turnout_sinc(device): ...\n")
    assert message("broken") == contract(
        "function turnout_launch lacks the decorator @hookimpl; names that start with turnout_ "
        "are for hooks",
        "function turnout_sinc lacks the decorator @hookimpl (did you mean turnout_sync?); names "
        "that start with turnout_ are for hooks",
    )


def test_what_only_the_plugin_manager_refuses(site: Site) -> None:
    site.install_backend(
        "broken", MUST + "@hookimpl(wrapper=True)\ndef turnout_sync(device): ...\n"
    )
    assert "not keep the plugin contract" in message("broken")
    assert "function is not a generator function" in message("broken")


def test_hook_under_another_name(site: Site) -> None:
    source = backend_source("fake") + (
        "@hookimpl(specname='turnout_sync')\ndef wait(device): return lambda: waited.append(1)\n"
        "waited = []\n"
    )
    site.install_backend("fake", source)
    backends.sync("fake")
    assert sys.modules["dist_fake_module"].waited == [1]  # type: ignore[attr-defined]


def test_backends_do_not_answer_for_each_other(site: Site) -> None:
    own = "@hookimpl\ndef turnout_lower_dispatch(policy): return '{name} ' + policy\n"
    site.install_backend("first", backend_source("first") + own.format(name="first"))
    site.install_backend("second")
    arguments = {"unit": None, "site": None, "policy": "switch", "target": None}
    backends.backends()
    assert backends.backend("first").hook.turnout_lower_dispatch(**arguments) == "first switch"
    assert backends.backend("second").hook.turnout_lower_dispatch(**arguments) is None


def test_module_value_is_imported_by_its_dotted_name(site: Site) -> None:
    package = site.folder / "a_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "plugin.py").write_text(backend_source("fake"))
    for module in ("a_package", "a_package.plugin"):
        site.monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
        site.monkeypatch.delitem(sys.modules, module)
    site.install("dist", "[turnout.backends]\nfake = a_package.plugin\n")
    importlib.invalidate_caches()
    assert backends.devices("fake")


# ---- answers of hooks --------------------------------------------------------------------------


def answering(devices: str, rest: str = "") -> str:
    return MUST.replace('[Device(0, "d", Target("broken", "a"))]', devices) + rest


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (answering("None"), "turnout_devices must return a sequence of Device, not None"),
        (answering("['cpu']"), "turnout_devices must return a sequence of Device, not ['cpu']"),
        (answering("[]"), "turnout_devices returned no device; it must raise Unavailable instead"),
        (
            answering("[Device(1, 'd', Target('broken', 'a'))]"),
            "turnout_devices gave broken:1 where broken:0 is due",
        ),
        (
            answering("[Device(0, 'd', Target('other', 'a'))]"),
            "turnout_devices gave other:0 where broken:0 is due",
        ),
        (answering("1 / 0"), "turnout_devices raised ZeroDivisionError: division by zero"),
        (answering("exit(1)"), "turnout_devices raised SystemExit: 1"),
    ],
)
def test_devices_hook_is_checked(site: Site, source: str, problem: str) -> None:
    site.install_backend("broken", source)
    expected = f"backend 'broken' of dist-broken 1.0: {problem}"
    assert message("broken") == expected
    assert backends.backends()["broken"].reason == expected


def test_unavailable_passes_through_and_is_remembered(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "attempts", [], raising=False)
    source = MUST.replace(
        "): return [Device",
        "):\n    import sys; from turnout.plugin import Unavailable\n"
        "    sys.attempts.append(1)\n    raise Unavailable('no platform', 'install one')\n"
        "    return [Device",
    )
    site.install_backend("broken", source)
    for _ in range(3):
        with pytest.raises(Unavailable) as caught:
            backends.devices("broken")
        assert (caught.value.reason, caught.value.fix) == ("no platform", "install one")
    assert sys.attempts == [1]  # type: ignore[attr-defined]
    assert backends.backend("broken").name == "broken"  # compiling needs no device


@pytest.mark.parametrize(
    ("hook", "body", "problem"),
    [
        ("turnout_sync(device)", "return 3", "turnout_sync must return a function, not 3"),
        ("turnout_timer(device)", "return 'x'", "turnout_timer must return a function, not 'x'"),
        (
            "turnout_memory(device)",
            "return 4",
            "turnout_memory must return a Memory, but 4 has no owns, put, get",
        ),
        ("turnout_memory()", "raise KeyError('m')", "turnout_memory raised KeyError: 'm'"),
    ],
)
def test_objects_of_a_device_are_checked(site: Site, hook: str, body: str, problem: str) -> None:
    site.install_backend("broken", MUST + f"@hookimpl\ndef {hook}: {body}\n")
    assert backends.devices("broken")
    for _ in range(2):
        with pytest.raises(BackendError) as caught:
            backends.resolve((), "broken")
        assert str(caught.value) == f"backend 'broken' of dist-broken 1.0: {problem}"


# ---- what strangers read -----------------------------------------------------------------------

ROOT = Path(__file__).parents[2]


def run_on(backend: str, unit: ir.Unit, *arguments: object, size: int = 1) -> None:
    """Compile, load and run a unit as the core does, for `size` positions."""
    context = backends.resolve((), backend)
    hook = context.backend.hook
    binary = hook.turnout_compile(unit=unit, target=context.device.target, options=Options())
    hook.turnout_launch(binary=binary, device=context.device, unit=unit)(arguments, size)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_backend_of_the_guide_works(site: Site) -> None:
    pytest.importorskip("cffi")
    guide = (ROOT / "docs" / "write_a_backend.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    site.install_backend("cc", "\n\n".join(blocks[:-1]))  # the last one tries it by hand
    x, y, out = np.array([1.0, np.nan, -3.5]), np.array([2.0, 1.0, 0.0]), np.zeros(3)
    run_on("cc", elementwise("divide", f64, f64), x, y, out, size=3)
    np.testing.assert_array_equal(out, [0.5, np.nan, -np.inf])

    builder = UnitBuilder("transpose_times")
    builder.array("a", f64, 2)
    builder.array("b", f64, 2, read=False, written=True)
    factor = builder.scalar("factor", f64)

    def body(i: ir.Value, j: ir.Value) -> None:
        element = builder.load("a", i, j, dtype=f64)
        builder.store("b", j, i, value=builder.compute("multiply", element, factor))

    unit = builder.finish([builder.extent("a", 0), builder.extent("a", 1)], body)
    a, b = np.arange(6.0).reshape(2, 3), np.zeros((3, 2))
    run_on("cc", unit, a, b, 0.5, size=6)
    np.testing.assert_array_equal(b, a.T / 2)


def test_the_backend_of_the_plugin_module_works(site: Site) -> None:
    lines = (plugin.__doc__ or "").splitlines()
    start = next(i for i, line in enumerate(lines) if "from turnout.plugin" in line)
    stop = next(i for i, line in enumerate(lines) if line.startswith("Its distribution"))
    site.install_backend("filler", textwrap.dedent("\n".join(lines[start:stop])))
    builder = UnitBuilder("fill")
    builder.array("x", f64, written=True)
    value = builder.scalar("value", f64)
    unit = builder.finish([builder.extent("x")], lambda i: builder.store("x", i, value=value))
    with pytest.raises(CompileError, match="does more than fill an array"):
        run_on("filler", elementwise("exp", f64), np.ones(1), np.ones(1))
    x = np.zeros(3)
    run_on("filler", unit, x, 7.0, size=3)
    np.testing.assert_array_equal(x, [7, 7, 7])


@pytest.fixture
def example(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The distribution in ``examples/thirdparty``, as its own metadata installs it."""
    folder = ROOT / "examples" / "thirdparty"
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = "\n".join(
        f"[{group}]\n" + "\n".join(f"{name} = {value}" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    )
    monkeypatch.syspath_prepend(str(folder))
    site.install(project["name"], text, version=project["version"])


@pytest.mark.usefixtures("example")
def test_the_example_backend_runs_units() -> None:
    assert backends.backends()["example"].distribution == "turnout-example"
    out = np.zeros(2)
    run_on("example", elementwise("add", f64, f64), np.array([1.0, 2.0]), np.ones(2), out, size=2)
    np.testing.assert_array_equal(out, [2, 3])


@pytest.mark.usefixtures("example")
def test_the_example_implementation_is_picked_up() -> None:
    @perf_dispatch(timer=lambda work: work() or 1)
    def saxpy(a: float, x: object, y: object, out: object) -> None: ...

    x, y, out = np.array([1.0, 2.0]), np.array([10.0, 20.0]), np.zeros(2)
    saxpy(2.0, x, y, out)
    np.testing.assert_array_equal(out, [12, 24])
    assert saxpy.implementations == ("saxpy_in_two_passes",)
    with pytest.raises(TurnoutError):
        saxpy(2.0, x, y, y)  # its only implementation would overwrite y before it is read
