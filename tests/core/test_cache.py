"""The on-disk cache of compiled kernels: right content or a miss, never an error."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import re
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout import cache as cache_module
from turnout.cache import DEFAULT_MAXIMUM_BYTES, BinaryCache, binary_key, default_cache
from turnout.errors import BackendError, CacheWarning, ConfigurationError
from turnout.hooks import Binary

CORE = str(Path(cache_module.__file__).resolve().parents[1])
KEY = binary_key("unit", "target", "options")
BINARY = Binary(
    entry="drag", kind="llvm-object", payload=b"\x7fELF\n\x00\nrest", metadata={"abi": "v\n1"}
)
MEBIBYTE = 1024 * 1024
posix_only = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX notions")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
# Idle threads of a numerical library are enough for this warning; the children here use none.
quiet_fork = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cache_module, "_warned", {})
    for name in ("TURNOUT_CACHE", "TURNOUT_CACHE_DIR", "TURNOUT_CACHE_MAX_BYTES"):
        monkeypatch.delenv(name, raising=False)
    cache_module._configured_cache.cache_clear()
    yield
    cache_module._configured_cache.cache_clear()


@pytest.fixture
def cache(tmp_path: Path) -> BinaryCache:
    return BinaryCache(tmp_path / "binaries", MEBIBYTE)


def file_of(cache: BinaryCache, key: str) -> Path:
    assert cache.directory is not None
    return cache.directory / key[:2] / f"{key}.bin"


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def keys(count: int) -> list[str]:
    return [binary_key(str(number)) for number in range(count)]


def sized(payload_bytes: int) -> Binary:
    return Binary(entry="f", kind="test", payload=bytes(payload_bytes))


def put_last_use(cache: BinaryCache, key: str, *, hours_ago: float) -> float:
    moment_s = time.time() - hours_ago * 3600
    os.utime(file_of(cache, key), (moment_s, moment_s))
    return moment_s


def sealed(header: object, payload: bytes, format_line: bytes = b"turnout binary 1") -> bytes:
    """Return a file whose digest is right, whatever its header says."""
    body = (header if isinstance(header, bytes) else json.dumps(header).encode()) + b"\n" + payload
    return format_line + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


@contextmanager
def cache_warnings(count: int, match: str = "") -> Iterator[list[str]]:
    """Expect so many warnings in the block, the first one matching; give their texts."""
    messages: list[str] = []
    with pytest.warns(CacheWarning, match=match) as caught:
        yield messages
    messages += [str(warning.message) for warning in caught]
    assert len(messages) == count, messages
    assert re.search(match, messages[0])


def good_header() -> dict[str, object]:
    return {"key": KEY, "entry": "f", "kind": "test", "metadata": {}, "payload_bytes": 3}


# Keys ---------------------------------------------------------------------------------------------


def test_key_is_the_sha256_of_length_prefixed_parts() -> None:
    encoded = b"\0\0\0\0\0\0\0\2ab" + b"\0\0\0\0\0\0\0\3c\xc3\xa9"
    assert binary_key("ab", "cé") == hashlib.sha256(encoded).hexdigest()


@given(st.lists(st.text()), st.lists(st.text()))
def test_different_parts_have_different_keys(left: list[str], right: list[str]) -> None:
    assert (binary_key(*left) == binary_key(*right)) == (left == right)


def test_moving_text_between_parts_changes_the_key() -> None:
    assert len({binary_key("ab", "c"), binary_key("a", "bc"), binary_key("abc"), KEY}) == 4


def test_key_takes_lone_surrogates() -> None:
    assert binary_key("\ud800") != binary_key("\ud801")


# Round trips --------------------------------------------------------------------------------------


def test_stored_binary_comes_back_equal(cache: BinaryCache) -> None:
    assert cache.load(KEY) is None
    cache.store(KEY, BINARY)
    assert cache.load(KEY) == BINARY
    assert BinaryCache(cache.directory, MEBIBYTE).load(KEY) == BINARY


@given(
    entry=st.text(),
    kind=st.text(),
    payload=st.binary(),
    metadata=st.dictionaries(st.text(), st.text() | st.integers()),
)
def test_file_format_round_trips(
    entry: str, kind: str, payload: bytes, metadata: dict[str, str]
) -> None:
    binary = Binary(entry=entry, kind=kind, payload=payload, metadata=metadata)
    assert cache_module._decoded(KEY, cache_module._encoded(KEY, binary)) == binary


def test_another_process_with_another_hash_seed_loads_it(cache: BinaryCache) -> None:
    cache.store(KEY, BINARY)
    script = (
        "import sys; from pathlib import Path; from turnout.cache import *\n"
        "key = binary_key('unit', 'target', 'options')\n"
        "binary = BinaryCache(Path(sys.argv[1]), 10**6).load(key)\n"
        "print(binary.entry, binary.payload.hex(), dict(binary.metadata))"
    )
    for seed in ("0", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", script, str(cache.directory)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": CORE},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"drag {BINARY.payload.hex()} {BINARY.metadata}\n"


def test_file_lies_under_its_key_and_nothing_else_is_left(cache: BinaryCache) -> None:
    cache.store(KEY, BINARY)
    assert cache.directory is not None
    assert [p.relative_to(cache.directory) for p in cache.directory.rglob("*.*")] == [
        Path(KEY[:2], f"{KEY}.bin")
    ]


def test_store_replaces(cache: BinaryCache) -> None:
    cache.store(KEY, sized(1))
    cache.store(KEY, sized(2))
    assert cache.load(KEY) == sized(2)


@pytest.mark.parametrize("metadata", [{"n": 1.5}, {"n": None}, {1: "n"}, {"n": ["x"]}])
def test_metadata_that_would_not_come_back_equal_is_refused(
    cache: BinaryCache, metadata: dict[str, str]
) -> None:
    binary = Binary(entry="f", kind="test", payload=b"", metadata=metadata)
    with pytest.raises(BackendError, match=r"metadata of binary 'f' \(test\) is .*str or int"):
        cache.store(KEY, binary)


# Damaged files ------------------------------------------------------------------------------------


def assert_is_a_miss_that_heals(cache: BinaryCache) -> None:
    with cache_warnings(1, "does not hold what turnout stored there"):
        assert cache.load(KEY) is None
        assert not file_of(cache, KEY).exists()
        assert cache.load(KEY) is None
    cache.store(KEY, BINARY)
    assert cache.load(KEY) == BINARY


@pytest.mark.parametrize("kept", ["0", "1", "half", "header", "all but one"])
def test_truncated_file_is_a_miss(cache: BinaryCache, kept: str) -> None:
    cache.store(KEY, BINARY)
    path = file_of(cache, KEY)
    content = path.read_bytes()
    kept_bytes = {
        "0": 0,
        "1": 1,
        "half": len(content) // 2,
        "header": len(content) - len(BINARY.payload),
        "all but one": len(content) - 1,
    }[kept]
    path.write_bytes(content[:kept_bytes])
    assert_is_a_miss_that_heals(cache)


def test_every_flipped_byte_is_noticed(cache: BinaryCache) -> None:
    content = cache_module._encoded(KEY, BINARY)
    assert cache_module._decoded(KEY, content) == BINARY
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1
        assert cache_module._decoded(KEY, bytes(damaged)) is None, position


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\x7fELF somebody else's object", id="foreign"),
        pytest.param(b"\n" * 10, id="newlines"),
        pytest.param(b"\xff" * 100, id="not text"),
        pytest.param(sealed(good_header(), b"abc", b"turnout binary 2"), id="future version"),
        pytest.param(sealed(good_header(), b"abcd"), id="other payload length"),
        pytest.param(sealed(b"{not json", b"abc"), id="not JSON"),
        pytest.param(sealed(b"\xff\xfe{", b"abc"), id="not UTF-8"),
        pytest.param(sealed(b"[" * 100_000, b"abc"), id="deeply nested"),
        pytest.param(sealed([], b"abc"), id="list"),
        pytest.param(sealed(None, b"abc"), id="null"),
        *(
            pytest.param(sealed({**good_header(), name: value}, b"abc"), id=f"{name}={value}")
            for name, value in [
                ("key", "0" * 64),
                ("key", None),
                ("entry", 3),
                ("kind", ["x"]),
                ("metadata", "x"),
                ("metadata", [["a", "b"]]),
                ("metadata", {"a": None}),
                ("metadata", {"a": {"b": "c"}}),
                ("payload_bytes", "3"),
                ("payload_bytes", -3),
                ("payload_bytes", None),
            ]
        ),
        *(
            pytest.param(
                sealed({k: v for k, v in good_header().items() if k != name}, b"abc"),
                id=f"without {name}",
            )
            for name in good_header()
        ),
    ],
)
def test_file_that_is_not_ours_is_a_miss(cache: BinaryCache, content: bytes) -> None:
    cache.store(KEY, BINARY)
    file_of(cache, KEY).write_bytes(content)
    assert_is_a_miss_that_heals(cache)


def test_the_headers_above_are_refused_for_their_fault_alone(cache: BinaryCache) -> None:
    cache.store(KEY, BINARY)
    file_of(cache, KEY).write_bytes(sealed(good_header(), b"abc"))
    assert cache.load(KEY) == Binary(entry="f", kind="test", payload=b"abc")


def test_file_copied_under_another_key_is_a_miss(cache: BinaryCache) -> None:
    other = binary_key("other")
    cache.store(KEY, BINARY)
    cache.store(other, sized(3))
    file_of(cache, KEY).write_bytes(file_of(cache, other).read_bytes())
    assert_is_a_miss_that_heals(cache)


def test_empty_folder_in_place_of_the_file_is_a_miss(cache: BinaryCache) -> None:
    file_of(cache, KEY).mkdir(parents=True)
    assert_is_a_miss_that_heals(cache)


def test_full_folder_in_place_of_the_file_is_left_alone_and_told(cache: BinaryCache) -> None:
    precious = file_of(cache, KEY) / "precious"
    precious.parent.mkdir(parents=True)
    precious.write_text("data")
    with cache_warnings(2) as messages:
        assert cache.load(KEY) is None
        cache.store(KEY, BINARY)
        cache.store(KEY, BINARY)
    assert "are not kept in" in messages[1]
    assert precious.read_text() == "data"
    assert file_names(precious.parents[2]) == ["precious"]


def test_file_that_cannot_be_read_now_is_a_miss_and_stays(
    cache: BinaryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.store(KEY, BINARY)

    def busy(*args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EACCES, "in use")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", busy)
        assert cache.load(KEY) is None
    assert cache.load(KEY) == BINARY


# Places that cannot be used -----------------------------------------------------------------------


def assert_works_without_storing(cache: BinaryCache, reason: str) -> None:
    with cache_warnings(1, reason) as messages:
        cache.store(KEY, BINARY)
        for key in keys(3):
            assert cache.load(key) is None
            cache.store(key, BINARY)
            assert cache.load(key) is None
    assert f"are not kept in {cache.directory}: " in messages[0]
    assert "TURNOUT_CACHE_DIR names another folder; TURNOUT_CACHE=off" in messages[0]


def test_cache_path_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    assert_works_without_storing(BinaryCache(path, MEBIBYTE), "not a folder; remove the file")
    assert path.read_text() == "mine"


def test_cache_path_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert_works_without_storing(BinaryCache(tmp_path / "file" / "binaries", MEBIBYTE), "file")


@pytest.mark.parametrize("failing", ["mkdir", "open", "replace"])
@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_system_refuses_to_store(
    cache: BinaryCache, monkeypatch: pytest.MonkeyPatch, failing: str, code: int
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, failing, refuse)
    assert_works_without_storing(cache, os.strerror(code))
    assert cache.directory is not None
    assert file_names(cache.directory) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_disk_is_full_while_writing(cache: BinaryCache, monkeypatch: pytest.MonkeyPatch) -> None:
    system_open = os.open

    def open_full_device(path: str | Path, flags: int, mode: int = 0o777) -> int:
        os.close(system_open(path, flags, mode))
        return system_open("/dev/full", os.O_WRONLY)

    monkeypatch.setattr(os, "open", open_full_device)
    assert_works_without_storing(cache, os.strerror(errno.ENOSPC))
    assert cache.directory is not None
    assert file_names(cache.directory) == []


def test_interrupted_write_leaves_no_file(
    cache: BinaryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.store(KEY, BINARY)
    assert cache.directory is not None
    assert file_names(cache.directory) == []


def test_read_only_cache_still_serves(cache: BinaryCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store(KEY, BINARY)
    put_last_use(cache, KEY, hours_ago=30)

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert cache.load(KEY) == BINARY
    assert cache.describe().startswith(f"read only: {cache.directory}, 1 files, ")


def test_windows_refusal_to_replace_an_open_file_is_silent(
    cache: BinaryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.store(KEY, BINARY)

    def refuse(*args: object) -> None:
        raise PermissionError(errno.EACCES, "in use")

    monkeypatch.setattr(cache_module, "_WINDOWS", True)
    monkeypatch.setattr(os, "replace", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.store(KEY, BINARY)
    assert cache.load(KEY) == BINARY
    with pytest.warns(CacheWarning, match="in use"):
        cache.store(binary_key("absent"), BINARY)


@pytest.mark.usefixtures("no_home")
def test_home_absent_or_unknown(tmp_path: Path) -> None:
    assert default_cache().describe().startswith("unusable: ")
    assert_works_without_storing(default_cache(), "the home folder .* does not exist")
    assert list(tmp_path.iterdir()) == []


# Trust --------------------------------------------------------------------------------------------


@posix_only
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_owner_only_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    cache = BinaryCache(tmp_path / "above" / "binaries", MEBIBYTE)
    before = os.umask(umask)
    try:
        cache.store(KEY, BINARY)
    finally:
        os.umask(before)
    path = file_of(cache, KEY)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (path.parent, path.parents[1], path.parents[2]):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert cache.load(KEY) == BINARY


@posix_only
@pytest.mark.parametrize("mode", [0o770, 0o720, 0o702, 0o777, 0o1777])
def test_folder_that_others_may_write_is_refused(cache: BinaryCache, mode: int) -> None:
    cache.store(keys(1)[0], BINARY)
    assert cache.directory is not None
    cache.directory.chmod(mode)
    assert_works_without_storing(cache, f"mode {mode:04o}.; chmod go-w puts that right")
    cache.clear()
    assert file_names(cache.directory) == [f"{keys(1)[0]}.bin"]
    assert cache.describe().startswith(f"unusable: {cache.directory}: other users may write")


@posix_only
def test_folder_that_others_may_read_is_accepted(cache: BinaryCache) -> None:
    assert cache.directory is not None
    cache.directory.mkdir(mode=0o755)
    cache.store(KEY, BINARY)
    assert cache.load(KEY) == BINARY


@posix_only
def test_folder_of_another_user_is_refused(
    cache: BinaryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.store(keys(1)[0], BINARY)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert_works_without_storing(cache, f"belongs to user {owner} .* runs as user 12345")


@posix_only
def test_folder_made_by_another_user_meanwhile_is_refused(
    cache: BinaryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_mkdir = os.mkdir

    def too_late(path: str | Path, mode: int = 0o777) -> None:
        system_mkdir(path, mode)
        os.chmod(path, 0o777)
        raise FileExistsError(errno.EEXIST, "exists", str(path))

    monkeypatch.setattr(os, "mkdir", too_late)
    assert_works_without_storing(cache, "other users may write")
    assert cache.directory is not None
    assert file_names(cache.directory) == []


@posix_only
@pytest.mark.parametrize("planted", ["another owner", "mode 0622", "mode 0660"])
def test_file_that_others_could_write_is_a_miss(
    cache: BinaryCache, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    cache.store(KEY, BINARY)
    if planted.startswith("mode"):
        file_of(cache, KEY).chmod(int(planted.split()[1], base=8))
        assert_is_a_miss_that_heals(cache)
        return
    system_fstat = os.fstat

    def fstat_of_planted(descriptor: int) -> os.stat_result:
        fields = list(system_fstat(descriptor))
        fields[stat.ST_UID] = os.geteuid() + 1
        return os.stat_result(fields)

    with monkeypatch.context() as patch, cache_warnings(1, "does not hold"):
        patch.setattr(os, "fstat", fstat_of_planted)
        assert cache.load(KEY) is None
    assert not file_of(cache, KEY).exists()


def test_repaired_folder_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "binaries"
    path.write_text("in the way")
    cache = BinaryCache(path, MEBIBYTE)
    with pytest.warns(CacheWarning):
        cache.store(KEY, BINARY)
    path.unlink()
    cache.store(KEY, BINARY)
    assert cache.load(KEY) == BINARY


# Bound --------------------------------------------------------------------------------------------


def stored_keys(cache: BinaryCache, candidates: list[str]) -> list[str]:
    return [key for key in candidates if file_of(cache, key).exists()]


def test_least_recently_used_files_go_first(tmp_path: Path) -> None:
    one, two, three, four, five = keys(5)
    cache = BinaryCache(tmp_path, MEBIBYTE)
    for hours_ago, key in [(2, one), (9, two), (5, three), (7, four)]:
        cache.store(key, sized(1000))
        put_last_use(cache, key, hours_ago=hours_ago)
    file_bytes = file_of(cache, one).stat().st_size
    # Five files exceed 4.5; 80 % of that is 3.6, so three stay.
    bounded = BinaryCache(tmp_path, int(4.5 * file_bytes))
    bounded.store(five, sized(1000))
    assert stored_keys(cache, [one, two, three, four, five]) == [one, three, five]
    assert bounded.total_bytes == 3 * file_bytes


def test_exactly_the_maximum_is_kept(tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path, MEBIBYTE)
    first, second = keys(2)
    cache.store(first, sized(1000))
    bounded = BinaryCache(tmp_path, 2 * cache.total_bytes)
    bounded.store(second, sized(1000))
    assert stored_keys(cache, [first, second]) == [first, second]


def test_load_counts_as_use_once_an_hour(cache: BinaryCache) -> None:
    cache.store(KEY, BINARY)
    recent_s = put_last_use(cache, KEY, hours_ago=0.5)
    assert cache.load(KEY) == BINARY
    assert file_of(cache, KEY).stat().st_mtime == pytest.approx(recent_s, abs=1)
    put_last_use(cache, KEY, hours_ago=2)
    assert cache.load(KEY) == BINARY
    assert time.time() - file_of(cache, KEY).stat().st_mtime < 600


def test_many_stores_stay_bounded(tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path, 20_000)
    for key in keys(100):
        cache.store(key, sized(1000))
        assert cache.total_bytes <= 20_000
    assert cache.total_bytes > 10_000


def test_scans_are_rare(cache: BinaryCache, monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[int] = []
    evict = BinaryCache._evict

    def counted(self: BinaryCache) -> int:
        scans.append(1)
        return evict(self)

    monkeypatch.setattr(BinaryCache, "_evict", counted)
    for number in range(100):
        cache.store(KEY, sized(number))
    assert len(scans) == 1


def test_the_first_store_of_a_process_scans_where_its_subfolder_is_too_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans: list[int] = []
    evict = BinaryCache._evict
    monkeypatch.setattr(BinaryCache, "_evict", lambda self: scans.append(1) or evict(self))
    BinaryCache(tmp_path, 256 * 3000).store(KEY, sized(2000))
    assert scans == []
    BinaryCache(tmp_path, 256 * 1000).store(KEY, sized(2000))
    assert scans == [1]


def test_newest_stays_even_above_the_fraction(tmp_path: Path) -> None:
    small, big = keys(2)
    cache = BinaryCache(tmp_path, 10_000)
    cache.store(small, sized(2000))
    put_last_use(cache, small, hours_ago=3)
    cache.store(big, sized(9000))
    assert stored_keys(cache, [small, big]) == [big]


def test_binary_above_the_maximum_is_not_stored(tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path / "binaries", 1000)
    with cache_warnings(1, "Raise TURNOUT_CACHE_MAX_BYTES"):
        cache.store(KEY, sized(1001))
        cache.store(KEY, sized(1001))
    assert not (tmp_path / "binaries").exists()


def test_abandoned_temporary_files_are_removed(cache: BinaryCache) -> None:
    cache.store(KEY, BINARY)
    folder = file_of(cache, KEY).parent
    old = folder / f"turnout-1-{'a' * 16}.tmp"
    fresh = folder / f"turnout-1-{'b' * 16}.tmp"
    for path in (old, fresh):
        path.write_bytes(b"half")
    two_hours_ago_s = time.time() - 2 * 3600
    os.utime(old, (two_hours_ago_s, two_hours_ago_s))
    BinaryCache(cache.directory, MEBIBYTE).store(KEY, BINARY)
    assert file_names(folder) == sorted([f"{KEY}.bin", fresh.name])
    # Clearing does not disturb a store that is under way either.
    cache.clear()
    assert file_names(folder) == [fresh.name]


def test_files_of_others_are_never_removed(tmp_path: Path) -> None:
    others = [tmp_path / "thesis.bin", tmp_path / "ab" / "notes.tmp", tmp_path / "x" / f"{KEY}.bin"]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(5000))
        os.utime(path, (0, 0))
    cache = BinaryCache(tmp_path, 3000)
    for key in keys(5):
        cache.store(key, sized(1000))
    cache.clear()
    assert cache.total_bytes == 0
    assert file_names(tmp_path) == sorted(path.name for path in others)


def test_clear_empties_and_can_be_repeated(cache: BinaryCache) -> None:
    cache.clear()
    for key in keys(5):
        cache.store(key, BINARY)
    assert cache.total_bytes == sum(file_of(cache, key).stat().st_size for key in keys(5))
    cache.clear()
    cache.clear()
    assert cache.total_bytes == 0
    assert [cache.load(key) for key in keys(5)] == [None] * 5


def test_clear_reports_a_file_that_stays(
    cache: BinaryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.store(KEY, BINARY)

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EACCES, "in use")

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(PermissionError, match="in use"):
        cache.clear()


# Settings -----------------------------------------------------------------------------------------


def test_environment_is_read_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "one"))
    first = default_cache()
    assert default_cache() is first
    assert (first.directory, first.maximum_bytes) == (tmp_path / "one", DEFAULT_MAXIMUM_BYTES)
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "two"))
    monkeypatch.setenv("TURNOUT_CACHE_MAX_BYTES", "4096")
    second = default_cache()
    assert (second.directory, second.maximum_bytes) == (tmp_path / "two", 4096)


@pytest.mark.skipif(sys.platform != "linux", reason="XDG folders are a Linux notion")
def test_default_folder_follows_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache().directory == tmp_path / ".cache" / "turnout" / "binaries"
    default_cache().store(KEY, BINARY)
    assert default_cache().load(KEY) == BINARY
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache().directory == tmp_path / "xdg" / "turnout" / "binaries"


def test_folder_may_be_relative_or_start_with_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TURNOUT_CACHE_DIR", "here")
    relative = default_cache()
    monkeypatch.chdir("/")
    assert relative.directory == tmp_path / "here"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("TURNOUT_CACHE_DIR", "~/there")
    assert default_cache().directory == tmp_path / "there"


@pytest.mark.parametrize("value", ["on", "1", "ON", ""])
def test_switched_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TURNOUT_CACHE", value)
    assert default_cache().directory == tmp_path


@pytest.mark.parametrize("value", ["off", "0", "Off"])
def test_switched_off_touches_no_file(tmp_path: Path, value: str) -> None:
    script = (
        "import sys\n"
        "from turnout.cache import *; from turnout.hooks import Binary\n"
        "touched = []\n"
        "sys.addaudithook(lambda event, args: touched.append((event, args))\n"
        "    if event.split('.')[0] in ('open', 'os', 'shutil', 'tempfile') else None)\n"
        "cache = default_cache()\n"
        "cache.store(binary_key('k'), Binary(entry='f', kind='k', payload=b'x'))\n"
        "found = cache.load(binary_key('k')); cache.clear()\n"
        "print(found, cache.total_bytes, cache.describe(), touched)"
    )
    environment = {
        **os.environ,
        "TURNOUT_CACHE": value,
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "xdg"),
        "PYTHONPATH": CORE,
    }
    for directory in ("", str(tmp_path / "cache")):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script],
            env={**environment, "TURNOUT_CACHE_DIR": directory},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "None 0 off (TURNOUT_CACHE=off) []\n"
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["yes", "true", "2", " "])
def test_malformed_switch(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TURNOUT_CACHE", value)
    with pytest.raises(ConfigurationError) as raised:
        default_cache()
    assert str(raised.value) == (
        f"TURNOUT_CACHE is {value!r}; allowed are 'on', '1', 'off' and '0'. Unset it for 'on'."
    )


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "512M", "many", " "])
def test_malformed_maximum(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TURNOUT_CACHE_MAX_BYTES", value)
    for switch in ("on", "off"):
        monkeypatch.setenv("TURNOUT_CACHE", switch)
        with pytest.raises(ConfigurationError) as raised:
            default_cache()
        assert str(raised.value) == (
            f"TURNOUT_CACHE_MAX_BYTES is {value!r}; allowed is a whole number of bytes greater "
            "than 0. Unset it for 536870912."
        )


def test_description_counts(cache: BinaryCache) -> None:
    assert cache.describe() == f"on: {cache.directory}, 0 files, 0 of 1048576 bytes"
    cache.store(KEY, BINARY)
    size_bytes = file_of(cache, KEY).stat().st_size
    assert cache.describe() == f"on: {cache.directory}, 1 files, {size_bytes} of 1048576 bytes"


# Several processes and threads --------------------------------------------------------------------


def version_of_content(number: int) -> Binary:
    return Binary(entry=f"f{number}", kind="test", payload=bytes([number]) * 100_000)


def run_against_others(
    directory: Path,
    number: int,
    start: threading.Barrier,
    failures: multiprocessing.SimpleQueue[str],
) -> None:
    """Store (even numbers) or load (odd numbers) one key again and again."""
    warnings.simplefilter("error")
    cache = BinaryCache(directory, 50 * MEBIBYTE)
    right = [version_of_content(writer) for writer in range(0, 16, 2)]
    start.wait()
    try:
        for _ in range(40):
            if number % 2 == 0:
                cache.store(KEY, version_of_content(number))
            elif (found := cache.load(KEY)) is not None and found not in right:
                failures.put(f"reader {number} got {found.entry}")
    except BaseException as error:
        failures.put(f"{number}: {error!r}")
        raise


@needs_fork
@quiet_fork
def test_eight_readers_and_eight_writers_on_one_key(tmp_path: Path) -> None:
    context: Any = multiprocessing.get_context("fork")
    failures = context.SimpleQueue()
    start = context.Barrier(16)
    processes = [
        context.Process(target=run_against_others, args=(tmp_path / "b", number, start, failures))
        for number in range(16)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert failures.empty(), failures.get()
    assert [process.exitcode for process in processes] == [0] * 16
    assert file_names(tmp_path) == [f"{KEY}.bin"]
    found = BinaryCache(tmp_path / "b", MEBIBYTE).load(KEY)
    assert found in [version_of_content(writer) for writer in range(0, 16, 2)]


def test_threads_share_one_cache_that_evicts_and_is_cleared(tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path / "binaries", 100_000)
    names = keys(20)
    start = threading.Barrier(8)

    def work(offset: int) -> None:
        start.wait()
        for step in range(60):
            number = (step * 7 + offset) % len(names)
            assert cache.load(names[number]) in (None, sized(10_000 + number))
            cache.store(names[number], sized(10_000 + number))
            if step == 30 and offset == 0:
                cache.clear()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert cache_module._warned == {}
    cache.store(KEY, BINARY)
    assert cache.load(KEY) == BINARY


def test_threads_warn_once_together(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = BinaryCache(tmp_path / "file", MEBIBYTE)
    start = threading.Barrier(8)

    def work(key: str) -> None:
        start.wait()
        cache.store(key, BINARY)

    with cache_warnings(1), ThreadPoolExecutor(8) as pool:
        list(pool.map(work, keys(8)))


@needs_fork
@quiet_fork
def test_temporary_names_are_told_apart_after_a_fork(cache: BinaryCache) -> None:
    cache.store(KEY, BINARY)
    child = os.fork()
    if child == 0:
        seen: list[str] = []
        replace = os.replace

        def noted(source: Path, target: Path) -> None:
            seen.append(source.name)
            replace(source, target)

        os.replace = noted  # type: ignore[assignment]
        cache.store(KEY, BINARY)
        own = seen[0].startswith(f"turnout-{os.getpid()}-")
        os._exit(0 if own and cache.load(KEY) == BINARY else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
