"""Compiled kernels on disk: what one process compiled, the next one loads.

A file holds one `turnout.hooks.Binary` under a key made of everything that decides its bytes
(unit, target, options, versions), so nothing ever has to be invalidated. Its parts are: the format
line, the SHA-256 of everything after it, one line of JSON, the payload. A file that does not verify
is a miss, never an error; a cache that cannot be used costs compile time, never a result.

There are no lock files: a file appears complete under its name through one atomic rename, and two
processes that race to write a key write the same content.
"""

from __future__ import annotations

import functools
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .digests import sha256
from .errors import BackendError, CacheWarning, ConfigurationError, warn_the_caller
from .hooks import Binary

DEFAULT_MAXIMUM_BYTES = 512 * 1024 * 1024

_FORMAT = b"turnout binary 1"
_KEPT_FRACTION = 0.8
_STORES_PER_SCAN = 64
_HOUR_S = 3600.0
_WINDOWS = os.name == "nt"

# Only names of this shape are counted or removed: the user may keep other things in the folder.
_SUBFOLDER = r"[0-9a-f]{2}"
_FILE = r"[0-9a-f]{64}\.bin|turnout-[0-9]+-[0-9a-f]{16}\.tmp"
_SUBFOLDERS = 256

_SETTINGS = ("TURNOUT_CACHE", "TURNOUT_CACHE_DIR", "TURNOUT_CACHE_MAX_BYTES")
_HOME_SETTINGS = ("HOME", "USERPROFILE", "XDG_CACHE_HOME")

_warned: dict[str, object] = {}


def binary_key(*parts: str) -> str:
    """Name a binary by everything that decides its bytes.

    Parameters
    ----------
    *parts : str
        Texts such as the printed unit, target, options and versions. Their order counts.

    Returns
    -------
    str
        64 hexadecimal digits, the same in every process and on every platform.

    Examples
    --------
    >>> binary_key("unit", "target") == binary_key("unit", "target")
    True
    >>> binary_key("ab", "c") == binary_key("a", "bc")
    False
    """
    digest = sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.hexdigest()


def default_cache() -> BinaryCache:
    """Return the cache that the environment asks for now.

    ``TURNOUT_CACHE`` (``on`` or ``off``) switches it, ``TURNOUT_CACHE_DIR`` places it (default: in
    the user's cache folder), ``TURNOUT_CACHE_MAX_BYTES`` bounds it. Empty counts as unset.

    Returns
    -------
    BinaryCache
        The same object until one of these variables changes.

    Raises
    ------
    ConfigurationError
        If a variable is malformed.
    """
    settings = [os.environ.get(name, "") for name in _SETTINGS]
    homes = tuple(os.environ.get(name, "") for name in _HOME_SETTINGS)
    return _configured_cache(*settings, homes)  # the homes decide what "~" and the default mean


@functools.lru_cache(maxsize=1)
def _configured_cache(
    switch: str, directory: str, maximum_bytes: str, homes: tuple[str, ...]
) -> BinaryCache:
    maximum = _parsed_maximum_bytes(maximum_bytes)
    if not _parsed_switch(switch):
        return BinaryCache(None, maximum)
    if directory:
        return BinaryCache(Path(os.path.abspath(os.path.expanduser(directory))), maximum)
    return BinaryCache(_default_directory(), maximum)


def _parsed_switch(text: str) -> bool:
    if text.lower() in ("", "on", "1"):
        return True
    if text.lower() in ("off", "0"):
        return False
    raise ConfigurationError(
        f"TURNOUT_CACHE is {text!r}; allowed are 'on', '1', 'off' and '0'. Unset it for 'on'."
    )


def _parsed_maximum_bytes(text: str) -> int:
    if not text:
        return DEFAULT_MAXIMUM_BYTES
    with suppress(ValueError):
        if int(text) > 0:
            return int(text)
    raise ConfigurationError(
        f"TURNOUT_CACHE_MAX_BYTES is {text!r}; allowed is a whole number of bytes greater than 0. "
        f"Unset it for {DEFAULT_MAXIMUM_BYTES}."
    )


def _default_directory() -> Path:
    import platformdirs

    try:
        return platformdirs.user_cache_path("turnout") / "binaries"
    except RuntimeError:
        # A container's user may have no home at all; the cache then says so when it is used.
        return Path("~", ".cache", "turnout", "binaries")


class _StoredFile(NamedTuple):
    modified_ns: int
    size_bytes: int
    path: Path


class BinaryCache:
    """Compiled kernels in one folder, bounded in size, shared by any number of processes.

    Parameters
    ----------
    directory : Path or None
        Folder of the cache, made at the first store. None: switched off, no file is touched.
    maximum_bytes : int
        When a store takes the total above this, the least recently used files are removed until
        80 % of it is left. With several processes the bound is approximate.
    """

    def __init__(self, directory: Path | None, maximum_bytes: int) -> None:
        self.directory = directory
        self.maximum_bytes = maximum_bytes
        self._estimated_bytes = 0
        self._stores_until_scan = _STORES_PER_SCAN

    @property
    def total_bytes(self) -> int:
        """Bytes of all files of the cache, counted now."""
        return sum(file.size_bytes for file in self._files())

    def load(self, key: str) -> Binary | None:
        """Return the binary stored under a key.

        Parameters
        ----------
        key : str
            From `binary_key`.

        Returns
        -------
        Binary or None
            None if there is none, or none that verifies; the caller then compiles.
        """
        if self.directory is None or not self._trusted(self.directory):
            return None
        path = _file_path(self.directory, key)
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                content = file.read() if others_may_write(status) is None else b""
        except IsADirectoryError:
            content = b""
        except OSError:
            # Absent in most cases; on Windows also while another process replaces it.
            return None
        binary = _decoded(key, content)
        if binary is None:
            _remove(path)
            warn_once(
                "damaged",
                f"{path} does not hold what turnout stored there; the kernel is compiled again. If "
                "this comes back, the disk or another program damages files in that folder.",
            )
            return None
        # The last use decides what is evicted; an hour's precision keeps hits free of writes.
        if time.time() - status.st_mtime > _HOUR_S:
            with suppress(OSError):
                os.utime(path)
        return binary

    def store(self, key: str, binary: Binary) -> None:
        """Keep a binary for later processes; where that is impossible, warn once and go on.

        Parameters
        ----------
        key : str
            From `binary_key`.
        binary : Binary
            What a backend compiled.

        Raises
        ------
        BackendError
            If the metadata could not be read back equal.
        """
        if self.directory is None or not self._trusted(self.directory):
            return
        content = _encoded(key, binary)
        if len(content) > self.maximum_bytes:
            warn_once(
                "too large",
                f"a compiled kernel of {len(content)} bytes is not stored: the whole cache may "
                f"hold {self.maximum_bytes}. Raise TURNOUT_CACHE_MAX_BYTES to keep it.",
            )
            return
        path = _file_path(self.directory, key)
        try:
            make_folder(self.directory)
            if not self._trusted(self.directory):  # somebody else may just have made it
                return
            make_folder(path.parent)
            _write_atomically(path, content)
        except OSError as error:
            # Windows refuses to replace a file that is open elsewhere; it has this very content.
            if not (_WINDOWS and isinstance(error, PermissionError) and path.is_file()):
                _warn_unusable(self.directory, str(error))
            return
        self._account(path.parent, len(content))

    def clear(self) -> None:
        """Remove every stored file; the folders, and files that are not turnout's, stay.

        Raises
        ------
        OSError
            If a file cannot be removed.
        """
        if self.directory is None or distrust(self.directory) is not None:
            return
        for file in self._files():
            file.path.unlink(missing_ok=True)

    def describe(self) -> str:
        """Tell in one line whether the cache is used, where it is, and how full.

        Returns
        -------
        str
            For ``turnout doctor``.
        """
        if self.directory is None:
            return "off (TURNOUT_CACHE=off)"
        reason = distrust(self.directory)
        if reason is not None:
            return f"unusable: {self.directory}: {reason}"
        sizes_bytes = [file.size_bytes for file in self._files()]
        places = (self.directory, *self.directory.parents)
        existing = next(path for path in places if path.exists())
        state = "on" if os.access(existing, os.W_OK) else "read only"
        return (
            f"{state}: {self.directory}, {len(sizes_bytes)} files, "
            f"{sum(sizes_bytes)} of {self.maximum_bytes} bytes"
        )

    def _trusted(self, directory: Path) -> bool:
        reason = distrust(directory)
        if reason is not None:
            _warn_unusable(directory, reason)
        return reason is None

    def _account(self, subfolder: Path, added_bytes: int) -> None:
        # A scan reads the whole folder, so most stores only add to an estimate. The first store
        # makes one from its subfolder, because many short-lived processes would otherwise never
        # scan: keys are digests, so the subfolders are about equally full.
        if self._estimated_bytes == 0:
            files = self._without_abandoned(self._files(subfolder))
            self._estimated_bytes = _SUBFOLDERS * sum(file.size_bytes for file in files)
        else:
            self._estimated_bytes += added_bytes
        self._stores_until_scan -= 1
        if self._stores_until_scan > 0 and self._estimated_bytes <= self.maximum_bytes:
            return
        self._stores_until_scan = _STORES_PER_SCAN
        self._estimated_bytes = self._evict()

    def _evict(self) -> int:
        """Remove abandoned temporary files and, over the bound, the oldest; return bytes left."""
        files = sorted(self._without_abandoned(self._files()))
        total_bytes = sum(file.size_bytes for file in files)
        if total_bytes <= self.maximum_bytes:
            return total_bytes
        # The newest always stays: it was stored a moment ago and may alone exceed the fraction.
        for file in files[:-1]:
            if total_bytes <= self.maximum_bytes * _KEPT_FRACTION:
                break
            _remove(file.path)
            total_bytes -= file.size_bytes
        return total_bytes

    def _without_abandoned(self, files: Iterable[_StoredFile]) -> list[_StoredFile]:
        """Remove abandoned temporary files; return the others."""
        stored = []
        for file in files:
            if file.path.suffix == ".tmp":
                _remove(file.path)
            else:
                stored.append(file)
        return stored

    def _files(self, below: Path | None = None) -> Iterator[_StoredFile]:
        """Go through stored files and abandoned temporary ones, all or those of a subfolder."""
        if self.directory is None:
            return
        for folder, subfolders, names in os.walk(below or self.directory):
            subfolders[:] = (name for name in subfolders if re.fullmatch(_SUBFOLDER, name))
            for name in names:
                if not re.fullmatch(_FILE, name):
                    continue
                path = Path(folder, name)
                try:
                    status = path.stat()
                except OSError:
                    continue  # another process removed it
                if path.suffix == ".tmp" and time.time() - status.st_mtime < _HOUR_S:
                    continue  # another process or thread is writing it
                yield _StoredFile(status.st_mtime_ns, status.st_size, path)


def _file_path(directory: Path, key: str) -> Path:
    return directory / key[:2] / f"{key}.bin"


def _encoded(key: str, binary: Binary) -> bytes:
    metadata = dict(binary.metadata)
    if not _is_metadata(metadata):
        raise BackendError(
            f"the metadata of binary {binary.entry!r} ({binary.kind}) is {metadata!r}; allowed is "
            "a mapping of str to str or int, which is what can be stored and read back equal"
        )
    header = {
        "key": key,
        "entry": binary.entry,
        "kind": binary.kind,
        "metadata": metadata,
        "payload_bytes": len(binary.payload),
    }
    body = json.dumps(header).encode("ascii") + b"\n" + binary.payload
    return b"\n".join((_FORMAT, _digest(body), body))


def _decoded(key: str, content: bytes) -> Binary | None:
    format_line, _, rest = content.partition(b"\n")
    digest, _, body = rest.partition(b"\n")
    if format_line != _FORMAT or digest != _digest(body):
        return None
    header_line, _, payload = body.partition(b"\n")
    try:
        header = json.loads(header_line)
    except (ValueError, RecursionError):
        return None
    match header:
        case {
            "key": str(stored_key),
            "entry": str(entry),
            "kind": str(kind),
            "metadata": dict(metadata),
            "payload_bytes": int(payload_bytes),
        } if stored_key == key and payload_bytes == len(payload) and _is_metadata(metadata):
            return Binary(entry=entry, kind=kind, payload=payload, metadata=metadata)
    return None


def _digest(body: bytes) -> bytes:
    return sha256(body).hexdigest().encode("ascii")


def _is_metadata(metadata: Mapping[str, object]) -> bool:
    return all(
        isinstance(name, str) and isinstance(value, str | int) for name, value in metadata.items()
    )


def distrust(directory: Path) -> str | None:
    """Say why a folder must not be used, or None. One that can still be made is fine."""
    try:
        status = os.stat(directory)
    except FileNotFoundError:
        home = Path(os.path.expanduser("~"))
        if home in directory.parents and not home.is_dir():
            return f"the home folder {str(home)!r} does not exist"
        return None
    except OSError as error:
        return str(error)
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a folder; remove the file"
    return others_may_write(status)


def others_may_write(status: os.stat_result) -> str | None:
    """Say who else than this user could have put code here that this process would execute.

    The digest is no help against them: anybody can compute it. Files are asked as well as the
    folder, because somebody may have written to the folder before its mode was put right.
    """
    if _WINDOWS:
        return None
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid} and this process runs as user {os.geteuid()}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        return f"other users may write to it (mode {mode:04o}); chmod go-w puts that right"
    return None


def make_folder(path: Path) -> None:
    """Make a folder and what it needs above it, for this user alone whatever the umask is."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)


def _write_atomically(path: Path, content: bytes) -> None:
    # The process id is asked now, not kept: a forked child must not share names with its parent.
    # The random part tells threads apart, and machines that share the folder.
    temporary = path.with_name(f"turnout-{os.getpid()}-{os.urandom(8).hex()}.tmp")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content)
        os.chmod(temporary, 0o600)
        os.replace(temporary, path)
    finally:
        _remove(temporary)


def _remove(path: Path) -> None:
    # Best effort: it may be gone, in use on Windows, or a folder that is not empty.
    with suppress(OSError):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()


def _warn_unusable(directory: Path, reason: str) -> None:
    warn_once(
        f"unusable {directory}",
        f"compiled kernels are not kept in {directory}: {reason}. Every process compiles them "
        "again until that is put right. TURNOUT_CACHE_DIR names another folder; TURNOUT_CACHE=off "
        "ends this warning.",
    )


def warn_once(cause: str, message: str) -> None:
    """Issue a `CacheWarning` unless this process did so for the same cause."""
    # setdefault is atomic, so of several threads one warns; no lock that a fork could copy held.
    marker = object()
    if _warned.setdefault(cause, marker) is marker:
        warn_the_caller(message, CacheWarning)
