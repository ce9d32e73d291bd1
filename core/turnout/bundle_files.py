"""The folder of a bundle: written whole or not at all, and read only as it was written.

``manifest.json`` names every other file with its size and SHA-256, and holds a digest of itself. A
bundle is code that a process will run, so reading one is strict: a file that is missing, changed,
not listed, a link, or open to other users is refused, always with its name and what to do. Contents
are read once and handed out from memory, so what was verified is what is used.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .cache import make_folder, others_may_write
from .digests import sha256
from .errors import BundleError
from .records import record

FORMAT = "turnout bundle 1"
"""What the first lines of a manifest say; another number is another layout of the folder."""

MANIFEST = "manifest.json"

_FAMILY = "turnout bundle "
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_MAXIMUM_MANIFEST_BYTES = 64 * 1024 * 1024
_REBUILD = "build the bundle again, or copy it again from where it was built"


@record
class Folder:
    """A bundle whose files are all as they were written.

    Attributes
    ----------
    directory : Path
    manifest : dict
    contents : mapping of str to bytes
        Every file but the manifest, by its name, with ``/`` between folders.
    digest : str
        SHA-256 of the manifest, and so of the whole bundle.
    """

    directory: Path
    manifest: dict[str, Any]
    contents: Mapping[str, bytes]
    digest: str

    def json(self, name: str) -> Any:
        """A file of the bundle, parsed.

        Raises
        ------
        BundleError
            Where there is no such file, or it is no JSON.
        """
        return parse(self.directory / name, self.content(name))

    def content(self, name: str) -> bytes:
        """A file of the bundle.

        Raises
        ------
        BundleError
            Where there is no such file.
        """
        if name not in self.contents:
            raise BundleError(f"{self.directory / name}: the manifest names no such file")
        return self.contents[name]


def json_bytes(value: Any, indent: int | None = 1) -> bytes:
    """JSON as bundles hold it, the same bytes for the same value."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, indent=indent, separators=separators, allow_nan=False)
    return f"{text}\n".encode("ascii")


def parse(path: Path, content: bytes) -> Any:
    """Parse a file that holds JSON.

    Raises
    ------
    BundleError
        Where it does not.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} holds no JSON ({error}); {_REBUILD}") from None


# -- writing ---------------------------------------------------------------------------------------


def write_folder(directory: Path, manifest: dict[str, Any], contents: Mapping[str, bytes]) -> str:
    """Write a bundle, in place of the one that is there, if any.

    It is written beside `directory` and then renamed, so a process that is killed leaves what was
    there before.

    Parameters
    ----------
    directory : Path
    manifest : dict
        All of it but the list of files and the digest.
    contents : mapping of str to bytes

    Returns
    -------
    str
        The digest of the manifest.

    Raises
    ------
    BundleError
        Where something else than a bundle is at `directory`, or it cannot be written.
    """
    files = {
        name: {"sha256": sha256(contents[name]).hexdigest(), "bytes": len(contents[name])}
        for name in sorted(contents)
    }
    manifest["files"] = files
    manifest["digest"] = _manifest_digest(manifest)
    content = json_bytes(manifest)
    directory = Path(os.path.realpath(directory))
    _check_replaceable(directory)
    unique = f"{os.getpid()}-{os.urandom(8).hex()}"
    temporary = directory.with_name(f".{directory.name}-{unique}.tmp")
    try:
        make_folder(temporary)
        for name, part in {**contents, MANIFEST: content}.items():
            _write(temporary / name, part)
        _put_in_place(temporary, directory, directory.with_name(f".{directory.name}-{unique}.old"))
    except OSError as error:
        raise BundleError(f"the bundle cannot be written to {directory}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return sha256(content).hexdigest()


def _manifest_digest(manifest: Mapping[str, Any]) -> str:
    return sha256(json_bytes({**manifest, "digest": ""})).hexdigest()


def _write(path: Path, content: bytes) -> None:
    make_folder(path.parent)
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)
    os.chmod(path, 0o600)


def _check_replaceable(directory: Path) -> None:
    """Refuse to replace what is no bundle, and what holds files that no bundle brought."""
    if not os.path.lexists(directory):
        return
    advice = "name a folder that does not exist, is empty, or holds a bundle"
    if not directory.is_dir():
        raise BundleError(f"{directory} exists and is no folder; {advice}")
    if not any(directory.iterdir()):
        return
    try:
        manifest = parse(directory / MANIFEST, (directory / MANIFEST).read_bytes())
    except OSError:
        raise BundleError(f"{directory} exists and holds no bundle; {advice}") from None
    if not (isinstance(manifest, dict) and str(manifest.get("format")).startswith(_FAMILY)):
        raise BundleError(f"{directory / MANIFEST} is not that of a bundle; {advice}")
    known = {MANIFEST, *dict(manifest.get("files") or {})}
    for name in _names_below(directory):
        if name not in known:
            raise BundleError(
                f"{directory / name} is no file of the bundle there, and would be lost when that "
                f"is replaced; move it away, or {advice}"
            )


def _put_in_place(temporary: Path, directory: Path, old: Path) -> None:
    if not directory.exists():
        os.rename(temporary, directory)
        return
    os.rename(directory, old)
    try:
        os.rename(temporary, directory)
    except OSError:
        os.rename(old, directory)
        raise
    shutil.rmtree(old)


# -- reading ---------------------------------------------------------------------------------------


def read_folder(directory: Path) -> Folder:
    """Read and verify a bundle.

    Raises
    ------
    BundleError
        Where anything is not as it was written; the message names the file and says what to do.
    """
    if not directory.is_dir():
        what = "is no folder" if os.path.lexists(directory) else "does not exist"
        raise BundleError(f"{directory} {what}; name the folder that turnout.build has written")
    present = set(_names_below(directory))
    if MANIFEST not in present:
        raise BundleError(
            f"{directory / MANIFEST} does not exist, so {directory} holds no whole bundle; "
            f"{_REBUILD}"
        )
    content = _read(directory / MANIFEST, None)
    manifest = _checked_manifest(directory / MANIFEST, content)
    files: dict[str, Any] = manifest["files"]
    for name in sorted(files.keys() - present):
        raise BundleError(f"{directory / name} does not exist, but belongs to it; {_REBUILD}")
    for name in sorted(present - files.keys() - {MANIFEST}):
        raise BundleError(
            f"{directory / name} is not listed in {MANIFEST}; a bundle holds what was built and "
            "nothing else, so move this file away"
        )
    contents = {name: _verified(directory / name, entry) for name, entry in files.items()}
    return Folder(directory, manifest, contents, sha256(content).hexdigest())


def _names_below(directory: Path, prefix: str = "") -> Iterator[str]:
    """Names of all files in a folder, which no link may lead out of, and nobody else write to."""
    _check_owner(directory, os.stat(directory))
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        raise BundleError(f"{directory} cannot be read: {error}") from None
    for entry in entries:
        path = directory / entry.name
        if entry.is_symlink():
            raise BundleError(
                f"{path} is a symbolic link; a bundle holds plain files, so copy what it leads to"
            )
        if entry.is_dir(follow_symlinks=False):
            yield from _names_below(path, f"{prefix}{entry.name}/")
        elif entry.is_file(follow_symlinks=False):
            yield f"{prefix}{entry.name}"
        else:
            raise BundleError(f"{path} is no plain file; move it away")


def _check_owner(path: Path, status: os.stat_result) -> None:
    is_administrators = getattr(status, "st_uid", None) == 0 and not (
        status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )
    problem = None if is_administrators else others_may_write(status)
    if problem is not None:
        raise BundleError(f"{path} holds code that this process would run, and {problem}")


def _read(path: Path, expected_bytes: int | None) -> bytes:
    no_links = getattr(os, "O_NOFOLLOW", 0)
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | no_links)) as file:
            status = os.fstat(file.fileno())
            _check_owner(path, status)
            if expected_bytes is None and status.st_size > _MAXIMUM_MANIFEST_BYTES:
                raise BundleError(f"{path} has {status.st_size} bytes, too many for a manifest")
            if expected_bytes not in (None, status.st_size):
                what = "truncated" if status.st_size < (expected_bytes or 0) else "changed"
                raise BundleError(
                    f"{path} is {what}: it has {status.st_size} bytes, and {expected_bytes} were "
                    f"written; {_REBUILD}"
                )
            return file.read()
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error}; {_REBUILD}") from None


def _verified(path: Path, entry: Mapping[str, Any]) -> bytes:
    content = _read(path, entry["bytes"])
    if sha256(content).hexdigest() != entry["sha256"]:
        raise BundleError(
            f"{path} is not what was written: its SHA-256 is not that of {MANIFEST}; {_REBUILD}"
        )
    return content


def _checked_manifest(path: Path, content: bytes) -> dict[str, Any]:
    manifest = parse(path, content)
    given = manifest.get("format") if isinstance(manifest, dict) else None
    if given != FORMAT:
        if isinstance(given, str) and given.startswith(_FAMILY):
            raise BundleError(
                f"{path} is of the format {given!r}, and this turnout reads {FORMAT!r}; build the "
                "bundle with the turnout that is to load it"
            )
        raise BundleError(f"{path} is not the manifest of a bundle; {_REBUILD}")
    assert isinstance(manifest, dict)
    # The same bytes, so that nothing of the file, spaces included, is beyond the digest.
    with suppress(ValueError, RecursionError):
        if manifest.get("digest") == _manifest_digest(manifest) and content == json_bytes(manifest):
            _check_entries(path, manifest.get("files"))
            return manifest
    raise BundleError(f"{path} is not what was written: its digest is wrong; {_REBUILD}")


def _check_entries(path: Path, files: object) -> None:
    if not isinstance(files, dict):
        raise BundleError(f"{path} has no list of files; {_REBUILD}")
    for name, entry in files.items():
        if not _NAME.fullmatch(name) or name == MANIFEST:
            raise BundleError(
                f"{path} names the file {name!r}, which cannot be in the folder of a bundle"
            )
        match entry:
            case {"sha256": str(), "bytes": int()} if len(entry) == len(("sha256", "bytes")):
                continue
        raise BundleError(f"{path} describes {name!r} in a way that is not known; {_REBUILD}")
