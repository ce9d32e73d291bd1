"""The metadata of installed distributions, without the standard library's `importlib.metadata`.

Importing that takes as long as all else that the first call of a cached kernel does. Where the path
consists of plain folders, as nearly always, listing these and reading small files is all there is
to it; else, with zip archives or finders of other packages, `importlib.metadata` is asked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from typing import Any, Protocol


class Metadata(Protocol):
    """What is needed of a distribution's metadata."""

    def read_text(self, filename: str) -> str | None:
        """Text of one of its files; None where there is no such file."""
        ...

    def locate_file(self, path: Any) -> Any:
        """Where a path lies that is relative to the folder in which the distribution is."""
        ...


class MetadataFolder:
    """A folder ``*.dist-info`` or ``*.egg-info``."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read_text(self, filename: str) -> str | None:
        """Text of a file in the folder; None where there is no such file."""
        with (
            suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError),
            open(os.path.join(self._path, filename), encoding="utf-8") as file,
        ):
            return file.read()
        return None

    def locate_file(self, path: str) -> str:
        """Where a path lies that is relative to the folder around this one."""
        return os.path.join(os.path.dirname(self._path), path)


def distributions() -> Iterator[Metadata]:
    """Go through the metadata of all installed distributions, in the order of the path."""
    if not _is_plain_path():
        from importlib import metadata

        yield from metadata.distributions()
        return
    for folder in filter(_is_text, sys.path):
        with suppress(OSError):  # a folder of the path need not exist
            for name in os.listdir(folder or "."):
                if name.lower().endswith((".dist-info", ".egg-info")):
                    yield MetadataFolder(os.path.join(folder, name))


def _is_plain_path() -> bool:
    """Whether distributions are found in folders of the path and nowhere else."""
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    return finders == [PathFinder] and not any(
        os.path.isfile(place) or place.lower().endswith(".egg")
        for place in filter(_is_text, sys.path)
    )


def _is_text(place: object) -> bool:
    return isinstance(place, str)


def field(distribution: Metadata, name: str) -> str:
    """One field of a distribution's core metadata, such as ``Name``.

    Raises
    ------
    ValueError
        Where the metadata does not have it.
    """
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    headers, _, _ = text.partition("\n\n")
    for line in headers.splitlines():
        key, _, value = line.partition(":")
        if key.lower() == name.lower():
            return value.strip()
    raise ValueError(f"its METADATA has no {name}")


def entry_points(text: str) -> Iterator[tuple[str, str, str]]:
    """Group, name and value of each entry point in the text of an ``entry_points.txt``.

    Raises
    ------
    ValueError
        For a line that is neither a group nor ``name = value``.
    """
    group = None
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line.strip("[]")
        elif group is not None:
            name, separator, value = map(str.strip, line.partition("="))
            if not separator:
                raise ValueError(f"its entry_points.txt has the line {line!r}")
            yield group, name, value
