"""Measurements of implementations on disk: what one process measured, the next one need not.

The store is one SQLite file beside the compiled kernels. It holds measurements, not winners: the
recent samples of each implementation under everything that decides them (`MeasurementKey` and the
digest of the implementation). So nothing ever has to be invalidated, a new implementation leaves
the measurements of the others valid, and who wins is decided anew by whoever reads. The name of the
one in use is stored beside them, because it is entitled to ties.

A store that cannot be used costs measurements, never a result: it warns once, and calls go on.

Any number of processes share the file. Each access opens a connection, runs one short transaction
and closes it again; a lock of this process keeps forks out meanwhile, so that no child inherits a
connection, or SQLite in the middle of its work. The journal is SQLite's default one, which the next
process rolls back when one was killed; write-ahead logs need a folder that can be written.
"""

from __future__ import annotations

import functools
import operator
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from .cache import default_cache, distrust, make_folder, others_may_write, warn_once
from .errors import ConfigurationError
from .records import record

if TYPE_CHECKING:
    from sqlite3 import Connection

T = TypeVar("T")

SCHEMA_VERSION = 1
SAMPLES_KEPT = 32
"""Recent samples that are kept of each implementation."""
MAXIMUM_CASES = 10_000
"""Keys that are kept; over the bound, a tenth of them goes, those written longest ago first."""

_LOCK_TIMEOUT_S = 5.0
_SMALLEST_PAGE_BYTES = 512

_SCHEMA = (
    """CREATE TABLE cases (
        id INTEGER PRIMARY KEY,
        operation TEXT NOT NULL,
        geometry TEXT NOT NULL,
        device TEXT NOT NULL,
        hardware TEXT NOT NULL,
        versions TEXT NOT NULL,
        chosen TEXT NOT NULL,
        written_at INTEGER NOT NULL,
        UNIQUE (operation, geometry, device, hardware, versions)
    )""",
    """CREATE TABLE measurements (
        case_id INTEGER NOT NULL,
        implementation TEXT NOT NULL,
        digest TEXT NOT NULL,
        samples_ns TEXT NOT NULL,
        count INTEGER NOT NULL,
        measured_at INTEGER NOT NULL,
        PRIMARY KEY (case_id, implementation, digest)
    ) WITHOUT ROWID""",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


@record
class MeasurementKey:
    """What measurements are filed under; any difference is a miss.

    Attributes
    ----------
    operation : str
        With its module, for example ``"solver.drag"``.
    geometry : str
        From `turnout.identity.canonical_geometry`.
    device : str
        For example ``"cpu:0"``.
    hardware : str
        What the device is, and what code for it is compiled for.
    versions : str
        Of all that measurements depend on, for example ``"numpy 2.4.1, turnout 0.1.0"``.
    """

    operation: str
    geometry: str
    device: str
    hardware: str
    versions: str


@record
class Measurement:
    """What was measured of one implementation.

    Attributes
    ----------
    implementation, digest : str
        Its name, and what it is made of.
    samples_ns : tuple of int
        Recent samples in nanoseconds, the latest one last.
    count : int
        How many samples there ever were.
    measured_at : int
        When the latest one was stored, in seconds since 1970 (UTC).
    """

    implementation: str
    digest: str
    samples_ns: tuple[int, ...]
    count: int
    measured_at: int


@record
class Entry:
    """All measurements under one key, and which implementation was in use at last."""

    key: MeasurementKey
    chosen: str
    measurements: tuple[Measurement, ...]

    @property
    def measured_at(self) -> int:
        """When the latest sample was stored, in seconds since 1970 (UTC)."""
        return max(each.measured_at for each in self.measurements)


@record
class Remembered:
    """What earlier processes leave to this one.

    Attributes
    ----------
    samples_ns : dict of str to tuple of int
        By implementation, the latest sample last. Those that were never measured are absent.
    chosen : str or None
        The implementation in use at last, which is entitled to ties.
    measured_at : int
        When the latest sample was stored, in seconds since 1970 (UTC); 0 where there is none.
    """

    samples_ns: dict[str, tuple[int, ...]]
    chosen: str | None
    measured_at: int


@record
class Addition:
    """What `TuningStore.add` is given.

    Attributes
    ----------
    key : MeasurementKey
    digests : mapping of str to str
    samples_ns : mapping of str to sequence of int
    chosen : str
    """

    key: MeasurementKey
    digests: Mapping[str, str]
    samples_ns: Mapping[str, Sequence[int]]
    chosen: str

    def measurements(self, now: int) -> list[Measurement]:
        """Those that can be stored, because the implementation has a digest."""
        return [
            Measurement(name, self.digests[name], tuple(map(int, samples)), len(samples), now)
            for name, samples in self.samples_ns.items()
            if name in self.digests and samples
        ]


class MergeCounts(NamedTuple):
    """How many measurements an import added, replaced by newer ones, and left as they were."""

    added: int
    replaced: int
    kept: int


# -- settings --------------------------------------------------------------------------------------


def tuning_mode() -> tuple[str, str]:
    """Return what ``TURNOUT_TUNING`` asks for, and the file where it names one.

    Returns
    -------
    mode : str
        ``"off"``, ``"read"``, ``"readwrite"`` (the default) or ``"fixed"``.
    file : str
        What follows ``fixed:``; else empty.

    Raises
    ------
    ConfigurationError
        When it is anything else.
    """
    text = os.environ.get("TURNOUT_TUNING", "").strip()
    mode, separator, file = text.partition(":")
    mode = mode.strip().lower()
    if mode == "fixed" and (file.strip() or not separator):
        return mode, file.strip()
    if not separator and mode in ("", "off", "read", "readwrite"):
        return mode or "readwrite", ""
    raise ConfigurationError(
        f"TURNOUT_TUNING is {text!r}; allowed are 'off', 'read', 'readwrite', 'fixed' and "
        "'fixed:FILE', a file that `turnout tune export` wrote. Unset it for 'readwrite'."
    )


def default_store() -> TuningStore:
    """Return the store that the environment asks for now.

    ``TURNOUT_TUNING`` says how it is used: ``readwrite`` (the default), ``read``, or ``off``; with
    ``fixed`` nothing is measured, so there is none either. It lies in the folder of the user's
    cache, or in ``TURNOUT_CACHE_DIR``; where ``TURNOUT_CACHE=off`` there is none.

    Returns
    -------
    TuningStore
        The same object until one of these variables changes.

    Raises
    ------
    ConfigurationError
        If a variable is malformed.
    """
    mode, _ = tuning_mode()
    folder = None if mode in ("off", "fixed") else default_cache().directory
    if folder is not None and not os.environ.get("TURNOUT_CACHE_DIR"):
        folder = folder.parent  # the binaries have a folder of their own there
    return _configured_store(folder, mode == "readwrite")


@functools.lru_cache(maxsize=1)
def _configured_store(folder: Path | None, is_writable: bool) -> TuningStore:
    path = None if folder is None else folder / f"tuning-v{SCHEMA_VERSION}.sqlite"
    return TuningStore(path, is_writable)


# -- the store -------------------------------------------------------------------------------------


class TuningStore:
    """Measurements in one file, shared by any number of threads and processes.

    Parameters
    ----------
    path : Path or None
        Absolute path of the file, made at the first `add`. None: switched off, no file is touched.
    is_writable : bool
        False: what is there is read, and nothing is stored.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> store = TuningStore(Path(folder.name).resolve() / "tuning.sqlite")
    >>> key = MeasurementKey("solver.drag", "((64,), float64)", "cpu:0", "a CPU", "numpy 2.4.1")
    >>> digests = {"loops": "1a", "numpy": "2b"}
    >>> store.add(key, digests, {"loops": [110, 120], "numpy": [300]}, chosen="loops")
    >>> store.load(key, digests).samples_ns
    {'loops': (110, 120), 'numpy': (300,)}
    >>> store.load(key, {"loops": "another"}).samples_ns
    {}
    >>> folder.cleanup()
    """

    def __init__(self, path: Path | None, is_writable: bool = True) -> None:
        self.path = path
        self.is_writable = is_writable and path is not None
        self._timeout_s = _LOCK_TIMEOUT_S

    def load(self, key: MeasurementKey, digests: Mapping[str, str]) -> Remembered:
        """Return what is known of implementations; where nothing can be read, warn once.

        Parameters
        ----------
        key : MeasurementKey
        digests : mapping of str to str
            By name the digest of each implementation that has one. What was measured of another
            name, or of another digest, is no part of the answer.

        Returns
        -------
        Remembered
            From the store, and of decisions that packages ship (`turnout.decisions.use_decisions`)
            for those that the store does not know.
        """
        if self.path is None:
            return Remembered({}, None, 0)
        return remembered(self.of_operation(key, only=True).get(key), key, digests)

    def of_operation(self, key: MeasurementKey, only: bool = False) -> dict[MeasurementKey, Entry]:
        """Return what is stored of an operation on a device; where nothing can be read, warn once.

        Parameters
        ----------
        key : MeasurementKey
        only : bool
            Nothing but this key, instead of all geometries.
        """
        if self.path is None:
            return {}
        try:
            found = self._read(lambda connection: _entries(connection, key, only))
        except _UnusableError as problem:
            _warn_unusable("read from", self.path, problem)
            return {}
        return {entry.key: entry for entry in found}

    def add(
        self,
        key: MeasurementKey,
        digests: Mapping[str, str],
        samples_ns: Mapping[str, Sequence[int]],
        chosen: str,
    ) -> None:
        """Keep new samples for later processes; where that is impossible, warn once and go on.

        Samples of several processes are added to each other; the latest `SAMPLES_KEPT` of each
        implementation are kept.

        Parameters
        ----------
        key : MeasurementKey
        digests : mapping of str to str
            As for `load`. Samples of an implementation without one are not stored.
        samples_ns : mapping of str to sequence of int
            By implementation, what this process measured since it last called `add`.
        chosen : str
            The implementation that is in use now.
        """
        self.add_all([Addition(key, digests, samples_ns, chosen)])

    def add_all(self, additions: Iterable[Addition]) -> None:
        """Keep several in one transaction, which takes hardly longer than one of them."""
        if self.path is None or not self.is_writable:
            return
        now = int(time.time())
        measured = [(each, each.measurements(now)) for each in additions]

        def append(connection: Connection) -> None:
            for each, measurements in measured:
                if not measurements:
                    continue
                old = _by_identity(_entry(connection, each.key))
                case = _write_case(connection, each.key, each.chosen, now)
                for new in measurements:
                    _write_measurement(connection, case, _joined(old.get(_identity(new)), new))
            _evict(connection)

        if not any(measurements for _, measurements in measured):
            return
        try:
            self._write(append)
        except _UnusableError as problem:
            _warn_unusable("kept in", self.path, problem)

    def entries(self) -> list[Entry]:
        """Return all that is stored, sorted by key.

        Raises
        ------
        ConfigurationError
            If the store is switched off or cannot be read.
        """
        path = self._checked_path()
        try:
            return self._read(_entries)
        except _UnusableError as problem:
            raise ConfigurationError(f"{path} cannot be read: {problem}") from problem

    def merge(self, entries: Iterable[Entry]) -> MergeCounts:
        """Take over measurements, all or none; newer ones of the same identity stay.

        Parameters
        ----------
        entries : iterable of Entry

        Returns
        -------
        MergeCounts

        Raises
        ------
        ConfigurationError
            If the store is switched off or cannot be written.
        """
        path = self._checked_path()
        if not self.is_writable:
            raise ConfigurationError(
                "TURNOUT_TUNING is 'read', which stores nothing: unset it, or set 'readwrite'"
            )

        def merge_all(connection: Connection) -> MergeCounts:
            each = [_merge(connection, entry) for entry in entries]
            _evict(connection)
            return MergeCounts(*map(sum, zip((0, 0, 0), *each, strict=True)))

        try:
            return self._write(merge_all)
        except _UnusableError as problem:
            raise ConfigurationError(f"{path} cannot be written: {problem}") from problem

    def _checked_path(self) -> Path:
        if self.path is None:
            raise ConfigurationError(
                "there is no store of measurements, because TURNOUT_TUNING is 'off' or 'fixed', or "
                "TURNOUT_CACHE is 'off': unset them"
            )
        return self.path

    def _read(self, query: Callable[[Connection], list[Entry]]) -> list[Entry]:
        """Run a query in one transaction; an absent or empty file has no entries."""
        assert self.path is not None
        with _reported(self), _fork_lock:
            _check_folder(self.path)
            if not _is_there(self.path):
                return []
            with self._connected(self.path) as connection:
                connection.execute("BEGIN")
                return query(connection) if _has_tables(connection, self.path) else []

    def _write(self, change: Callable[[Connection], T]) -> T:
        """Make a change in one transaction: it happens as a whole or not at all."""
        assert self.path is not None
        with _reported(self), _fork_lock:
            _check_folder(self.path)
            make_folder(self.path.parent)
            _check_folder(self.path)  # somebody else may just have made it
            if not _is_there(self.path):
                _create(self.path)
            with self._connected(self.path) as connection:
                connection.execute("BEGIN IMMEDIATE")
                if not _has_tables(connection, self.path):
                    for statement in _SCHEMA:
                        connection.execute(statement)
                result = change(connection)
                connection.execute("COMMIT")
                return result

    @contextmanager
    def _connected(self, path: Path) -> Iterator[Connection]:
        import sqlite3  # not before a store is used

        # Mode "rw" makes no file; where the system forbids writing, SQLite opens it for reading.
        address = f"{path.as_uri()}?mode={'rw' if self.is_writable else 'ro'}"
        # Without isolation level, transactions begin and end where they are written.
        opened = sqlite3.connect(address, timeout=self._timeout_s, isolation_level=None, uri=True)
        with closing(opened) as connection:
            # A call does not wait for the disk. A process that is killed loses nothing by that; if
            # the power fails the file may be damaged, which costs what can be measured again.
            connection.execute("PRAGMA synchronous = OFF")
            yield connection


class _UnusableError(Exception):
    """The store cannot be used, and why."""


@contextmanager
def _reported(store: TuningStore) -> Iterator[None]:
    """Turn whatever keeps the store from being used into `_UnusableError`."""
    try:
        import sqlite3
    except ImportError as error:
        raise _UnusableError(f"this Python has no SQLite ({error})") from error
    try:
        yield
    except sqlite3.OperationalError as error:
        # The code of an error is its low byte; the others say more about it.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            store._timeout_s = 0.0  # calls wait once for whoever keeps the file locked
        raise _UnusableError(str(error)) from error
    except (sqlite3.Error, _DamagedError) as error:
        raise _UnusableError(
            f"{error}; it is left as it is; remove it to begin a new one"
        ) from error
    except (OSError, UnicodeError) as error:
        raise _UnusableError(str(error)) from error


class _DamagedError(Exception):
    """The file holds what turnout did not write."""


def _check_folder(path: Path) -> None:
    reason = distrust(path.parent)
    if reason is not None:
        raise _UnusableError(f"{path.parent}: {reason}")


def _is_there(path: Path) -> bool:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    reason = others_may_write(status)
    if reason is not None:
        raise _UnusableError(reason)
    if not stat.S_ISREG(status.st_mode):
        raise _UnusableError("it is not a file; remove it")
    return True


def _create(path: Path) -> None:
    """Make the empty file, for this user alone whatever the umask is."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.close(descriptor)
    os.chmod(path, 0o600)


def _has_tables(connection: Connection, path: Path) -> bool:
    """Whether the file has the tables of this version; False where it is empty."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    # SQLite takes a file that lacks the end of its last page for a whole one. Now that this
    # connection has a lock, nobody is writing, and there are whole pages only.
    if os.stat(path).st_size % _SMALLEST_PAGE_BYTES:
        raise _DamagedError("its end is missing")
    if version == SCHEMA_VERSION:
        return True
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version == 0 and objects == 0:
        return False
    raise _DamagedError(f"its format is version {version}, and this turnout has {SCHEMA_VERSION}")


# -- rows ------------------------------------------------------------------------------------------

_KEY_COLUMNS = "operation, geometry, device, hardware, versions"
_IS_KEY = "operation = ? AND geometry = ? AND device = ? AND hardware = ? AND versions = ?"
_IS_OPERATION = "operation = ? AND device = ? AND hardware = ? AND versions = ?"
_ROW_TYPES = [*[str] * 9, int, int]
_YEAR_10000 = 253_402_300_800  # in seconds since 1970; no date has more digits
_key_values = operator.attrgetter(*_KEY_COLUMNS.split(", "))


def _identity(measurement: Measurement) -> tuple[str, str]:
    return measurement.implementation, measurement.digest


def _entries(
    connection: Connection, key: MeasurementKey | None = None, only: bool = True
) -> list[Entry]:
    """Return the entry of a key, or those of all its geometries, or all entries."""
    values = () if key is None else _key_values(key)
    which = "TRUE" if key is None else _IS_KEY
    if key is not None and not only:
        which, values = _IS_OPERATION, (key.operation, key.device, key.hardware, key.versions)
    rows = connection.execute(
        f"""SELECT {_KEY_COLUMNS}, chosen, implementation, digest, samples_ns, count, measured_at
            FROM cases JOIN measurements ON case_id = id
            WHERE {which}
            ORDER BY {_KEY_COLUMNS}, implementation, digest""",
        values,
    ).fetchall()  # a query that an error leaves unfinished would keep the file locked
    found: dict[MeasurementKey, tuple[str, list[Measurement]]] = {}
    for row in rows:
        if [type(value) for value in row] != _ROW_TYPES or not 0 <= row[-1] < _YEAR_10000:
            raise _DamagedError(f"it has a row that turnout did not write: {row!r:.200}")
        *key_values, chosen, name, digest, samples_text, count, measured_at = row
        _, measurements = found.setdefault(MeasurementKey(*key_values), (chosen, []))
        samples_ns = _parsed_samples(samples_text)
        measurements.append(Measurement(name, digest, samples_ns, count, measured_at))
    return [Entry(key, chosen, tuple(each)) for key, (chosen, each) in found.items()]


def _entry(connection: Connection, key: MeasurementKey) -> Entry | None:
    return next(iter(_entries(connection, key)), None)


def _by_identity(entry: Entry | None) -> dict[tuple[str, str], Measurement]:
    return {} if entry is None else {_identity(each): each for each in entry.measurements}


def _parsed_samples(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(" ")))
    except ValueError:
        raise _DamagedError(f"it has samples that are no numbers: {text!r:.100}") from None


def _write_case(connection: Connection, key: MeasurementKey, chosen: str, now: int) -> int:
    """Make or update the row of a key, and return its number."""
    updated = connection.execute(
        f"UPDATE cases SET chosen = ?, written_at = ? WHERE {_IS_KEY}",
        (chosen, now, *_key_values(key)),
    )
    if not updated.rowcount:
        connection.execute(
            f"INSERT INTO cases ({_KEY_COLUMNS}, chosen, written_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*_key_values(key), chosen, now),
        )
    query = f"SELECT id FROM cases WHERE {_IS_KEY}"
    number: int = connection.execute(query, _key_values(key)).fetchone()[0]
    return number


def _write_measurement(connection: Connection, case: int, measurement: Measurement) -> None:
    samples = " ".join(map(str, measurement.samples_ns[-SAMPLES_KEPT:]))
    connection.execute(
        "INSERT OR REPLACE INTO measurements VALUES (?, ?, ?, ?, ?, ?)",
        (case, *_identity(measurement), samples, measurement.count, measurement.measured_at),
    )


def _joined(old: Measurement | None, new: Measurement) -> Measurement:
    if old is None:
        return new
    return Measurement(
        new.implementation,
        new.digest,
        old.samples_ns + new.samples_ns,
        old.count + new.count,
        new.measured_at,
    )


def _merge(connection: Connection, entry: Entry) -> MergeCounts:
    """Take over the measurements that are newer than those that are there."""
    stored = _entry(connection, entry.key)
    old = _by_identity(stored)
    newer = [
        each
        for each in entry.measurements
        if _identity(each) not in old or each.measured_at > old[_identity(each)].measured_at
    ]
    if newer:
        latest = entry if stored is None or entry.measured_at > stored.measured_at else stored
        case = _write_case(connection, entry.key, latest.chosen, int(time.time()))
        for measurement in newer:
            _write_measurement(connection, case, measurement)
    replaced = sum(_identity(each) in old for each in newer)
    return MergeCounts(len(newer) - replaced, replaced, len(entry.measurements) - len(newer))


def _evict(connection: Connection) -> None:
    (count,) = connection.execute("SELECT count(*) FROM cases").fetchone()
    if count <= MAXIMUM_CASES:
        return
    surplus = count - MAXIMUM_CASES * 9 // 10
    connection.execute(
        "DELETE FROM cases WHERE id IN (SELECT id FROM cases ORDER BY written_at, id LIMIT ?)",
        (surplus,),
    )
    connection.execute("DELETE FROM measurements WHERE case_id NOT IN (SELECT id FROM cases)")


# -- this process ----------------------------------------------------------------------------------


def remembered(stored: Entry | None, key: MeasurementKey, digests: Mapping[str, str]) -> Remembered:
    """Return what an entry, and the one that a package ships, tell of implementations.

    Parameters
    ----------
    stored : Entry or None
        Of this key, from the store.
    key : MeasurementKey
    digests : mapping of str to str
        As for `TuningStore.load`.
    """
    entries = [entry for entry in (stored, _shipped.get(key)) if entry is not None]
    samples_ns: dict[str, tuple[int, ...]] = {}
    measured_at = 0
    for entry in entries:
        for each in entry.measurements:
            if digests.get(each.implementation) == each.digest:
                samples_ns.setdefault(each.implementation, each.samples_ns)
                measured_at = max(measured_at, each.measured_at)
    chosen = (entry.chosen for entry in entries if entry.chosen in samples_ns)
    return Remembered(samples_ns, next(chosen, None), measured_at)


_shipped: dict[MeasurementKey, Entry] = {}
"""Entries that packages of this program ship."""


def ship(entries: Iterable[Entry]) -> None:
    """Let `TuningStore.load` find these, where the store itself knows nothing."""
    for entry in entries:
        _shipped.setdefault(entry.key, entry)


# Re-entrant, because signal handlers may use the store at any point.
_fork_lock = threading.RLock()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_fork_lock.acquire,
        after_in_parent=_fork_lock.release,
        after_in_child=_fork_lock.release,
    )


def _warn_unusable(how: str, path: Path, problem: _UnusableError) -> None:
    warn_once(
        f"tuning {path}",
        f"measurements of implementations cannot be {how} {path}: {problem}. Results stay right, "
        "but processes measure again what others measured. TURNOUT_CACHE_DIR names another folder; "
        "TURNOUT_TUNING=off ends this warning.",
    )
