"""Measurements on disk: what was measured comes back, and trouble costs one warning."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from turnout import cache as cache_module
from turnout import store as store_module
from turnout.errors import CacheWarning, ConfigurationError
from turnout.store import (
    SAMPLES_KEPT,
    Entry,
    Measurement,
    MeasurementKey,
    MergeCounts,
    Remembered,
    TuningStore,
    default_store,
    tuning_mode,
)

KEY = MeasurementKey("solver.drag", "((64,), float64)", "cpu:0", "a CPU", "numpy 2.4.1")
DIGESTS = {"loops": "1a", "numpy": "2b"}
NOTHING = Remembered({}, None, 0)
SETTINGS = ("TURNOUT_TUNING", "TURNOUT_CACHE", "TURNOUT_CACHE_DIR", "TURNOUT_CACHE_MAX_BYTES")
NOBODY = 65534
posix_only = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX notions")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cache_module, "_warned", {})
    monkeypatch.setattr(store_module, "_shipped", {})
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    caches = (cache_module._configured_cache, store_module._configured_store)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def store(tmp_path: Path) -> TuningStore:
    return TuningStore(tmp_path / "cache" / "tuning-v1.sqlite")


def path_of(store: TuningStore) -> Path:
    assert store.path is not None
    return store.path


def fill(store: TuningStore) -> Remembered:
    """Store something, and return what `load` gives then."""
    store.add(KEY, DIGESTS, {"loops": [110, 120], "numpy": [300]}, chosen="loops")
    found = store.load(KEY, DIGESTS)
    assert found.samples_ns == {"loops": (110, 120), "numpy": (300,)}
    return found


def reopened(store: TuningStore, *, is_writable: bool = True) -> TuningStore:
    return TuningStore(store.path, is_writable)


def key_of(number: int) -> MeasurementKey:
    return dataclasses.replace(KEY, geometry=f"(({number},), float64)")


def entry_of(
    samples_ns: tuple[int, ...], measured_at: int, *, chosen: str = "loops", name: str = "loops"
) -> Entry:
    measurement = Measurement(name, DIGESTS[name], samples_ns, len(samples_ns), measured_at)
    return Entry(KEY, chosen, (measurement,))


@contextmanager
def one_warning(match: str) -> Iterator[None]:
    with pytest.warns(CacheWarning) as caught:
        yield
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 1, messages
    assert re.search(match, messages[0]), messages
    assert "TURNOUT_CACHE_DIR names another folder; TURNOUT_TUNING=off ends" in messages[0]


def assert_works_without_storing(store: TuningStore, reason: str) -> None:
    with one_warning(reason):
        for _ in range(3):
            assert store.load(KEY, DIGESTS) == NOTHING
            store.add(KEY, DIGESTS, {"loops": [1]}, chosen="loops")
            assert store.load(KEY, DIGESTS) == NOTHING


def execute(store: TuningStore, *statements: str) -> None:
    with closing(sqlite3.connect(path_of(store), isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


# What is stored -----------------------------------------------------------------------------------


def test_what_is_added_is_loaded_by_another_store(store: TuningStore) -> None:
    assert store.load(KEY, DIGESTS) == NOTHING
    before = int(time.time())
    found = fill(store)
    assert found.chosen == "loops"
    assert before <= found.measured_at <= time.time()
    assert reopened(store).load(KEY, DIGESTS) == found


def test_samples_are_added_to_each_other_and_the_latest_are_kept(store: TuningStore) -> None:
    for number in range(SAMPLES_KEPT + 3):
        store.add(KEY, DIGESTS, {"loops": [number]}, chosen="loops")
    expected = tuple(range(3, SAMPLES_KEPT + 3))
    assert store.load(KEY, DIGESTS).samples_ns == {"loops": expected}
    (entry,) = store.entries()
    assert entry.measurements[0].count == SAMPLES_KEPT + 3


def test_more_samples_than_are_kept_at_once(store: TuningStore) -> None:
    store.add(KEY, DIGESTS, {"loops": list(range(100))}, chosen="loops")
    assert store.load(KEY, DIGESTS).samples_ns["loops"] == tuple(range(100 - SAMPLES_KEPT, 100))


def test_another_implementation_leaves_the_measurements_of_the_others(store: TuningStore) -> None:
    names = [f"v{number}" for number in range(5)]
    digests = {name: f"digest of {name}" for name in names}
    store.add(KEY, digests, {name: [100] for name in names}, chosen="v0")
    sixth = {**digests, "v5": "digest of v5"}
    assert store.load(KEY, sixth).samples_ns == dict.fromkeys(names, (100,))
    without_first = {name: sixth[name] for name in names[1:]}
    found = store.load(KEY, without_first)
    assert found.samples_ns == dict.fromkeys(names[1:], (100,))
    assert found.chosen is None  # v0 was, and is no more
    assert store.load(KEY, digests).chosen == "v0"


@pytest.mark.parametrize("field", ["operation", "geometry", "device", "hardware", "versions"])
def test_any_other_key_is_a_miss(store: TuningStore, field: str) -> None:
    fill(store)
    other = dataclasses.replace(KEY, **{field: "another"})
    assert store.load(other, DIGESTS) == NOTHING


def test_an_edited_implementation_is_a_miss_until_it_is_edited_back(store: TuningStore) -> None:
    fill(store)
    edited = {**DIGESTS, "loops": "3c"}
    assert store.load(KEY, edited).samples_ns == {"numpy": (300,)}
    store.add(KEY, edited, {"loops": [90]}, chosen="loops")
    assert store.load(KEY, edited).samples_ns == {"loops": (90,), "numpy": (300,)}
    assert store.load(KEY, DIGESTS).samples_ns == {"loops": (110, 120), "numpy": (300,)}


def test_unknown_names_are_a_miss(store: TuningStore) -> None:
    fill(store)
    assert store.load(KEY, {"other": "1a"}) == NOTHING


def test_what_has_no_digest_is_not_stored(store: TuningStore) -> None:
    store.add(KEY, {}, {"builtin": [5]}, chosen="builtin")
    assert not path_of(store).exists()
    store.add(KEY, DIGESTS, {"builtin": [5], "loops": [9]}, chosen="builtin")
    found = store.load(KEY, {**DIGESTS, "builtin": "any"})
    assert found.samples_ns == {"loops": (9,)}
    assert found.chosen is None


def test_nothing_measured_is_no_write(store: TuningStore) -> None:
    store.add(KEY, DIGESTS, {"loops": [], "numpy": ()}, chosen="loops")
    store.add(KEY, DIGESTS, {}, chosen="loops")
    assert not path_of(store).exists()


def test_texts_of_all_kinds_come_back(store: TuningStore) -> None:
    strange = "'; DROP TABLE cases; -- \0 \n é 漢 \U0001f600"
    key = MeasurementKey(*[f"{strange} {number}" for number in range(5)])
    store.add(key, {strange: strange}, {strange: [1]}, chosen=strange)
    assert store.load(key, {strange: strange}).samples_ns == {strange: (1,)}
    assert store.entries()[0].key == key


def test_a_name_that_cannot_be_stored(store: TuningStore) -> None:
    with one_warning("surrogates not allowed"):
        store.add(KEY, {"\ud800": "1"}, {"\ud800": [1]}, chosen="\ud800")


def test_only_the_cases_written_last_are_kept(
    store: TuningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAXIMUM_CASES", 20)
    for number in range(21):
        if number == 20:  # the oldest is used again, so the next oldest goes in its place
            execute(store, "UPDATE cases SET written_at = written_at - 10")
            store.add(key_of(0), DIGESTS, {"loops": [1]}, chosen="loops")
        store.add(key_of(number), DIGESTS, {"loops": [1]}, chosen="loops")
    kept = {entry.key for entry in store.entries()}
    assert kept == {key_of(number) for number in (0, *range(4, 21))}
    with closing(sqlite3.connect(path_of(store))) as connection:
        assert connection.execute("SELECT count(*) FROM measurements").fetchone() == (18,)


def test_entries_are_sorted(store: TuningStore) -> None:
    keys = [dataclasses.replace(KEY, operation=name) for name in ("b", "a", "c")]
    for key in keys:
        store.add(key, DIGESTS, {"numpy": [2], "loops": [1]}, chosen="numpy")
    entries = store.entries()
    assert [entry.key.operation for entry in entries] == ["a", "b", "c"]
    assert [each.implementation for each in entries[0].measurements] == ["loops", "numpy"]
    assert entries[0].chosen == "numpy"


# Imports ------------------------------------------------------------------------------------------


def test_merge_adds_what_is_missing(store: TuningStore) -> None:
    entry = entry_of((7, 8), 1000)
    assert store.merge([entry]) == MergeCounts(1, 0, 0)
    assert store.entries() == [entry]
    assert store.merge([entry]) == MergeCounts(0, 0, 1)


def test_merge_replaces_older_measurements_and_leaves_newer_ones(store: TuningStore) -> None:
    store.merge([entry_of((7,), 1000, chosen="loops")])
    assert store.merge([entry_of((6,), 999, chosen="numpy")]) == MergeCounts(0, 0, 1)
    assert store.load(KEY, DIGESTS) == Remembered({"loops": (7,)}, "loops", 1000)
    assert store.merge([entry_of((5,), 1001, chosen="loops")]) == MergeCounts(0, 1, 0)
    assert store.load(KEY, DIGESTS) == Remembered({"loops": (5,)}, "loops", 1001)


def test_merge_of_another_implementation_changes_the_choice_only_if_it_is_newer(
    store: TuningStore,
) -> None:
    store.merge([entry_of((7,), 1000, chosen="loops")])
    store.merge([entry_of((6,), 900, chosen="numpy", name="numpy")])
    found = store.load(KEY, DIGESTS)
    assert found == Remembered({"loops": (7,), "numpy": (6,)}, "loops", 1000)
    store.merge([entry_of((6,), 1100, chosen="numpy", name="numpy")])
    assert store.load(KEY, DIGESTS).chosen == "numpy"


def test_merge_is_all_or_nothing(store: TuningStore) -> None:
    broken = dataclasses.replace(KEY, operation="\ud800")
    entries = [entry_of((7,), 1000), Entry(broken, "loops", entry_of((1,), 1).measurements)]
    with pytest.raises(ConfigurationError, match=r"cannot be written: .*surrogates"):
        store.merge(entries)
    assert store.entries() == []


def test_shipped_entries_stand_in_for_what_is_missing(store: TuningStore) -> None:
    numpy = Measurement("numpy", "2b", (250,), 1, 500)
    store_module.ship([Entry(KEY, "numpy", (*entry_of((50,), 500).measurements, numpy))])
    shipped = Remembered({"loops": (50,), "numpy": (250,)}, "numpy", 500)
    assert store.load(KEY, DIGESTS) == shipped
    assert not path_of(store).exists()
    store.merge([entry_of((70,), 400)])
    expected = Remembered({"loops": (70,), "numpy": (250,)}, "loops", 500)
    assert store.load(KEY, DIGESTS) == expected
    assert store.load(KEY, {"loops": "other"}) == NOTHING
    assert TuningStore(None).load(KEY, DIGESTS) == NOTHING


# Damaged files and other formats ------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["1", "100", "half", "all but a page", "all but one"])
def test_truncated_file_costs_one_warning_and_is_left_alone(store: TuningStore, kept: str) -> None:
    fill(store)
    content = path_of(store).read_bytes()
    kept_bytes = {
        "1": 1,
        "100": 100,
        "half": len(content) // 2,
        "all but a page": len(content) - 4096,
        "all but one": len(content) - 1,
    }[kept]
    path_of(store).write_bytes(content[:kept_bytes])
    assert_works_without_storing(reopened(store), "it is left as it is; remove it to begin")
    assert path_of(store).read_bytes() == content[:kept_bytes]
    with pytest.raises(ConfigurationError, match="cannot be read: "):
        store.entries()
    path_of(store).unlink()
    fill(store)


def test_empty_file_is_filled(store: TuningStore) -> None:
    fill(store)
    path_of(store).write_bytes(b"")
    assert store.load(KEY, DIGESTS) == NOTHING
    fill(store)


@pytest.mark.parametrize("size_bytes", [7, 8192])
def test_garbage_costs_one_warning_and_is_left_alone(store: TuningStore, size_bytes: int) -> None:
    path_of(store).parent.mkdir(mode=0o700)
    content = (b"garbage" * 8192)[:size_bytes]
    path_of(store).write_bytes(content)
    path_of(store).chmod(0o600)
    assert_works_without_storing(store, "remove it to begin a new one")
    assert path_of(store).read_bytes() == content


def test_damage_anywhere_raises_nothing(
    store: TuningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    content = path_of(store).read_bytes()
    used = [position for position, byte in enumerate(content) if byte]
    assert len(used) > 500
    for position in used[::3]:
        for flip in (0x01, 0xFF):
            damaged = bytearray(content)
            damaged[position] ^= flip
            path_of(store).write_bytes(bytes(damaged))
            monkeypatch.setattr(cache_module, "_warned", {})
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found = store.load(KEY, DIGESTS)
                store.add(KEY, DIGESTS, {"loops": [1]}, chosen="loops")
            assert [warning.category for warning in caught] in ([], [CacheWarning])
            assert found.samples_ns.keys() <= DIGESTS.keys()
            for samples in found.samples_ns.values():
                assert all(type(sample) is int for sample in samples)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("PRAGMA user_version = 0", "its format is version 0, and this turnout has 1"),
        ("PRAGMA user_version = 2", "its format is version 2, and this turnout has 1"),
        ("PRAGMA user_version = -1", "its format is version -1, and this turnout has 1"),
        ("DROP TABLE measurements", "no such table: measurements"),
        ("UPDATE measurements SET samples_ns = '1 x'", "samples that are no numbers: '1 x'"),
        ("UPDATE measurements SET samples_ns = ''", "samples that are no numbers: ''"),
        ("UPDATE measurements SET count = 'many'", "a row that turnout did not write: "),
        ("UPDATE measurements SET measured_at = -1", "a row that turnout did not write: "),
        ("UPDATE cases SET chosen = x'00'", "a row that turnout did not write: "),
    ],
)
def test_file_of_another_format_is_left_alone(
    store: TuningStore, statement: str, reason: str
) -> None:
    fill(store)
    execute(store, statement)
    before = path_of(store).read_bytes()
    assert_works_without_storing(store, reason)
    assert path_of(store).read_bytes() == before


def test_a_database_of_another_program_is_left_alone(store: TuningStore) -> None:
    path_of(store).parent.mkdir(mode=0o700)
    execute(store, "CREATE TABLE recipes (name TEXT)", "INSERT INTO recipes VALUES ('soup')")
    path_of(store).chmod(0o600)
    before = path_of(store).read_bytes()
    assert_works_without_storing(store, "its format is version 0")
    assert path_of(store).read_bytes() == before


# Places that cannot be used -----------------------------------------------------------------------


def test_the_folder_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    store = TuningStore(tmp_path / "file" / "tuning-v1.sqlite")
    assert_works_without_storing(store, "it is not a folder; remove the file")
    assert (tmp_path / "file").read_text() == "mine"


def test_the_folder_is_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert_works_without_storing(TuningStore(tmp_path / "file" / "a" / "t.sqlite"), "file")


def test_the_file_is_a_folder(store: TuningStore) -> None:
    path_of(store).mkdir(parents=True)
    for folder in (path_of(store), path_of(store).parent):
        folder.chmod(0o700)
    assert_works_without_storing(store, "it is not a file; remove it")


@pytest.mark.usefixtures("no_home")
def test_home_absent_or_unknown(tmp_path: Path) -> None:
    assert_works_without_storing(default_store(), "the home folder .* does not exist")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of a user who is not allowed everything, as whom the test runs."""
    folder = Path(tempfile.mkdtemp(prefix="turnout-test-")).resolve()
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.chown(folder, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        yield folder
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o700)
        shutil.rmtree(folder)


@posix_only
def test_read_only_folder_without_a_store(unprivileged: Path) -> None:
    unprivileged.chmod(0o555)
    store = TuningStore(unprivileged / "tuning-v1.sqlite")
    assert_works_without_storing(store, "cannot be kept in .*Permission denied")
    assert_works_without_storing(
        TuningStore(unprivileged / "below" / "tuning-v1.sqlite"), "Permission denied"
    )


@posix_only
@pytest.mark.parametrize("file_mode", [0o600, 0o400])
def test_read_only_folder_with_a_store_is_read(unprivileged: Path, file_mode: int) -> None:
    store = TuningStore(unprivileged / "tuning-v1.sqlite")
    found = fill(store)
    path_of(store).chmod(file_mode)
    unprivileged.chmod(0o555)
    with one_warning("cannot be kept in .*(readonly database|unable to open database file)"):
        for _ in range(3):
            store.add(KEY, DIGESTS, {"loops": [1]}, chosen="loops")
            assert store.load(KEY, DIGESTS) == found
    assert reopened(store, is_writable=False).load(KEY, DIGESTS) == found


@posix_only
def test_a_file_that_cannot_be_read(unprivileged: Path) -> None:
    store = TuningStore(unprivileged / "tuning-v1.sqlite")
    fill(store)
    path_of(store).chmod(0o000)
    assert_works_without_storing(store, "unable to open database file")


LIMITED = """
import resource, sys, warnings
from pathlib import Path
from turnout.store import *

store, key = TuningStore(Path(sys.argv[1])), MeasurementKey("o", "g", "d", "h", "v")
store.add(key, {"a": "1"}, {"a": [1]}, "a")
size_bytes = store.path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for number in range(300):
        other = MeasurementKey(f"o{number}" * 50, "g", "d", "h", "v")
        store.add(other, {"a": "1"}, {"a": [number]}, "a")
        store.load(other, {"a": "1"})
assert store.load(key, {"a": "1"}).samples_ns == {"a": (1,)}
assert store.path.stat().st_size == size_bytes
for warning in caught:
    print(warning.category.__name__, warning.message)
"""


@posix_only
def test_full_disk(store: TuningStore) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(store.path)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert re.match(
        r"CacheWarning .* cannot be kept in .*: (database or disk is full|disk I/O)", line
    )
    found = store.entries()
    assert MeasurementKey("o", "g", "d", "h", "v") in {entry.key for entry in found}


def environment() -> dict[str, str]:
    core = str(Path(store_module.__file__).resolve().parents[1])
    return {**os.environ, "PYTHONPATH": core}


def test_a_file_that_stays_locked_is_waited_for_once(
    store: TuningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_LOCK_TIMEOUT_S", 0.05)
    fill(store)
    store = reopened(store)
    with closing(sqlite3.connect(path_of(store), isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert store._timeout_s == 0.05
        assert_works_without_storing(store, "database is locked")
        assert store._timeout_s == 0.0
        other.execute("ROLLBACK")
    fill_again = store.load(KEY, DIGESTS)
    assert fill_again.samples_ns == {"loops": (110, 120), "numpy": (300,)}


def test_python_without_sqlite(store: TuningStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    assert_works_without_storing(store, "this Python has no SQLite")


@posix_only
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_owner_only_whatever_the_umask(store: TuningStore, umask: int) -> None:
    before = os.umask(umask)
    try:
        fill(store)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path_of(store).stat().st_mode) == 0o600
    assert stat.S_IMODE(path_of(store).parent.stat().st_mode) == 0o700


@posix_only
def test_what_others_may_write_is_not_trusted(store: TuningStore) -> None:
    fill(store)
    path_of(store).chmod(0o620)
    assert_works_without_storing(store, "other users may write to it .mode 0620.; chmod go-w")
    path_of(store).chmod(0o600)
    path_of(store).parent.chmod(0o777)
    cache_module._warned.clear()
    assert_works_without_storing(store, "other users may write to it .mode 0777.; chmod go-w")


def test_a_name_with_characters_that_mean_something_in_addresses(tmp_path: Path) -> None:
    store = TuningStore(tmp_path / "a?mode=memory#%41 b" / "tuning-v1.sqlite")
    fill(store)
    assert path_of(store).is_file()


# Settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ("readwrite", "")),
        ("", ("readwrite", "")),
        ("off", ("off", "")),
        (" Read ", ("read", "")),
        ("READWRITE", ("readwrite", "")),
        ("fixed", ("fixed", "")),
        ("fixed:a.json", ("fixed", "a.json")),
        (r"fixed:C:\Jobs\A.json", ("fixed", r"C:\Jobs\A.json")),
    ],
)
def test_modes(
    text: str | None, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        monkeypatch.setenv("TURNOUT_TUNING", text)
    assert tuning_mode() == expected


@pytest.mark.parametrize("text", ["on", "write", "fixed:", "fixed: ", "read:a.json", ":", "0"])
def test_malformed_modes(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_TUNING", text)
    expected = (
        rf"TURNOUT_TUNING is {text.strip()!r}; allowed are 'off', 'read', 'readwrite', 'fixed' and"
    )
    with pytest.raises(ConfigurationError, match=expected):
        default_store()


def test_the_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_default_directory", lambda: tmp_path / "binaries")
    store = default_store()
    assert store.path == tmp_path / "tuning-v1.sqlite"
    assert store.is_writable
    assert default_store() is store
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert default_store().path == tmp_path / "elsewhere" / "tuning-v1.sqlite"
    monkeypatch.setenv("TURNOUT_TUNING", "read")
    assert not default_store().is_writable


def test_reading_alone_stores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TURNOUT_TUNING", "read")
    store = default_store()
    store.add(KEY, DIGESTS, {"loops": [1]}, chosen="loops")
    assert store.load(KEY, DIGESTS) == NOTHING
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigurationError, match="TURNOUT_TUNING is 'read', which stores nothing"):
        store.merge([])


SWITCHED_OFF = """
import sys
opened = []
def listen(event, arguments):
    if event in ("open", "sqlite3.connect", "os.mkdir", "os.listdir", "os.remove", "os.rename"):
        opened.append((event, str(arguments[0])))
from turnout.store import *
store = default_store()
key = MeasurementKey("o", "g", "d", "h", "v")
sys.addaudithook(listen)
store.load(key, {"a": "1"})
store.add(key, {"a": "1"}, {"a": [1]}, "a")
sys.stdout.write(repr(opened if any(sys.argv[1] in path for _, path in opened) else []))
sys.stdout.write(" with sqlite3" if "sqlite3" in sys.modules else " without sqlite3")
"""


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("TURNOUT_TUNING", "off", "[] without sqlite3"),
        ("TURNOUT_TUNING", "fixed", "[] without sqlite3"),
        ("TURNOUT_CACHE", "off", "[] without sqlite3"),
        ("TURNOUT_TUNING", "readwrite", r"\[.*'sqlite3.connect'.*\] with sqlite3"),
    ],
)
def test_switched_off_touches_no_file(
    variable: str, value: str, expected: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SWITCHED_OFF, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**environment(), "TURNOUT_CACHE_DIR": str(tmp_path / "cache"), variable: value},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(re.escape(expected) if "[] " in expected else expected, done.stdout)
    assert bool(list(tmp_path.iterdir())) == (value == "readwrite")


def test_a_store_that_is_switched_off_says_so_to_who_asks_for_its_content() -> None:
    for ask in (TuningStore(None).entries, lambda: TuningStore(None).merge([])):
        with pytest.raises(ConfigurationError, match=r"there is no store .* unset them"):
            ask()


def test_importing_the_store_does_not_import_sqlite() -> None:
    code = "import sys, turnout.store; print('sqlite3' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True
    )
    assert done.stdout == "False\n"
