"""One store for many processes and threads: nothing is lost, whoever is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from concurrency_support import Reporter, in_fork

from turnout import store as store_module
from turnout.store import MeasurementKey, TuningStore

CORE = str(Path(store_module.__file__).resolve().parents[1])
DIGESTS = {"loops": "1a"}
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
# Idle threads of a numerical library are enough for this warning; the children here use none.
quiet_fork = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

# Writes to a key of its own and to one that all share, and says so after each pair of writes.
WRITER = """
import sys, warnings
from pathlib import Path
from turnout.store import MeasurementKey, TuningStore

warnings.simplefilter("error")
path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store, digests = TuningStore(path), {"loops": "1a"}
shared = MeasurementKey("shared", "g", "d", "h", "v")
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    key = MeasurementKey(f"own {name} {number}", "g", "d", "h", "v")
    store.add(key, digests, {"loops": [number + 1]}, "loops")
    store.add(shared, digests, {"loops": [number + 1]}, "loops")
    assert store.load(key, digests).samples_ns == {"loops": (number + 1,)}
    print(number, flush=True)
"""


def key_of(name: str, number: int) -> MeasurementKey:
    return MeasurementKey(f"own {name} {number}", "g", "d", "h", "v")


def started(path: Path, name: str, count: int) -> Reporter:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": CORE},
    )
    return Reporter(name, process)


def check_integrity(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize(("processes", "count"), [(2, 40), (8, 20)])
@pytest.mark.parametrize("with_kills", [False, True])
def test_processes_write_at_once(
    processes: int, count: int, with_kills: bool, tmp_path: Path
) -> None:
    path = tmp_path / "cache" / "tuning-v1.sqlite"
    victims = processes // 2 if with_kills else 0
    with ExitStack() as stack:
        # Those that get killed would write for long, so that the signal meets them at work.
        writers = [
            stack.enter_context(started(path, str(number), 100_000 if number < victims else count))
            for number in range(processes)
        ]
        for writer in writers:
            writer.start()
        for writer in writers[:victims]:
            writer.wait_for_rounds(5)
            writer.process.kill()
        reported = {writer.name: writer.finish() for writer in writers}

    assert all(reported[writer.name] == count for writer in writers[victims:])
    store = TuningStore(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, number_of_writes in reported.items():
            for number in range(number_of_writes):
                found = store.load(key_of(name, number), DIGESTS)
                assert found.samples_ns == {"loops": (number + 1,)}, (name, number)
        (shared,) = (entry for entry in store.entries() if entry.key.operation == "shared")
        # Each one that was killed may have written once more than it could say.
        total = sum(reported.values())
        assert total <= shared.measurements[0].count <= total + victims
        store.add(key_of("after", 0), DIGESTS, {"loops": [1]}, "loops")
    check_integrity(path)


DYING = """
import os, signal, sqlite3, sys
from pathlib import Path
from turnout import store as module
from turnout.store import MeasurementKey, TuningStore

def die(connection):
    # More than SQLite keeps in memory, so that the file itself is changed and a journal is there.
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("PRAGMA cache_spill = 1")
    connection.execute("UPDATE measurements SET samples_ns = '999', count = 999")
    connection.execute("UPDATE cases SET chosen = 'nobody'")
    os.kill(os.getpid(), signal.SIGKILL)

module._evict = die
store = TuningStore(Path(sys.argv[1]))
store.add(MeasurementKey("last", "g", "d", "h", "v"), {"loops": "1a"}, {"loops": [1]}, "loops")
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is a POSIX notion")
def test_a_write_that_is_killed_in_the_middle_is_undone_by_the_next_process(
    tmp_path: Path,
) -> None:
    store = TuningStore(tmp_path / "tuning-v1.sqlite")
    assert store.path is not None
    for number in range(300):
        key = key_of("a name that fills pages " * 5, number)
        store.add(key, DIGESTS, {"loops": [number]}, "loops")
    before = store.entries()
    done = subprocess.run(
        [sys.executable, "-c", DYING, str(store.path)],
        env={**os.environ, "PYTHONPATH": CORE},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    journal = store.path.with_name(f"{store.path.name}-journal")
    assert journal.stat().st_size > 4096
    assert b"nobody" in store.path.read_bytes()
    # Who may not write cannot undo it either, and takes nothing of it.
    with pytest.warns(UserWarning, match="cannot be read from"):
        found = TuningStore(store.path, is_writable=False).load(before[0].key, DIGESTS)
    assert found.samples_ns == {}
    assert store.entries() == before
    assert not journal.exists()
    check_integrity(store.path)


def test_threads_write_at_once(tmp_path: Path) -> None:
    store = TuningStore(tmp_path / "tuning-v1.sqlite")
    barrier = threading.Barrier(8)

    def work(name: int) -> None:
        barrier.wait()
        for number in range(10):
            key = key_of(str(name), number)
            store.add(key, DIGESTS, {"loops": [number]}, "loops")
            store.add(key_of("shared", 0), DIGESTS, {"loops": [number]}, "loops")
            assert store.load(key, DIGESTS).samples_ns == {"loops": (number,)}

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    entries = store.entries()
    assert len(entries) == 81
    (shared,) = (entry for entry in entries if entry.key == key_of("shared", 0))
    assert shared.measurements[0].count == 80


@needs_fork
@quiet_fork
def test_forks_while_threads_use_the_store(tmp_path: Path) -> None:
    store = TuningStore(tmp_path / "tuning-v1.sqlite")
    ended = threading.Event()

    def keep_writing() -> int:
        number = 0
        while not ended.is_set():
            store.add(key_of("parent", number), DIGESTS, {"loops": [number]}, "loops")
            number += 1
        return number

    def child() -> None:
        assert not any("tuning-v1" in name for name in open_files())
        for number in range(3):
            key = key_of(f"child {os.getpid()}", number)
            store.add(key, DIGESTS, {"loops": [number]}, "loops")
            assert store.load(key, DIGESTS).samples_ns == {"loops": (number,)}

    with ThreadPoolExecutor(2) as pool:
        writing = [pool.submit(keep_writing) for _ in range(2)]
        try:
            for _ in range(10):
                in_fork(child)
        finally:
            ended.set()
        written = [each.result() for each in writing]
    names = [entry.key.operation.split()[1] for entry in store.entries()]
    assert names.count("child") == 30
    assert names.count("parent") == max(written)
    check_integrity(tmp_path / "tuning-v1.sqlite")


def open_files() -> list[str]:
    """What the descriptors of this process are open for, where the system tells."""
    folder = Path("/proc/self/fd")
    links = folder.iterdir() if folder.is_dir() else []
    return [os.readlink(each) for each in links if each.is_symlink()]


@needs_fork
@quiet_fork
def test_a_fork_waits_for_the_end_of_a_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TuningStore(tmp_path / "tuning-v1.sqlite")
    in_transaction, may_end = threading.Event(), threading.Event()
    evict = store_module._evict

    def slow(connection: sqlite3.Connection) -> None:
        in_transaction.set()
        assert may_end.wait(60)
        evict(connection)

    with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(store_module, "_evict", slow)
        writing = pool.submit(store.add, key_of("a", 0), DIGESTS, {"loops": [1]}, "loops")
        assert in_transaction.wait(60)
        started = threading.Event()

        def fork() -> int:
            started.set()
            child = os.fork()
            if child == 0:
                # Free, or else this never ends: whoever held it does not exist here.
                with store_module._fork_lock:
                    os._exit(7)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        forking = pool.submit(fork)
        assert started.wait(60)
        assert not forking.done()
        assert not writing.done()
        may_end.set()
        writing.result()
        assert forking.result() == 7
    assert store.load(key_of("a", 0), DIGESTS).samples_ns == {"loops": (1,)}
