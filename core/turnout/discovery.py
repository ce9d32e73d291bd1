"""Which plugins are installed: the entry points of all distributions, read once per process.

They are read at first need, never by importing turnout, and nothing is imported by reading them.
The order never depends on the file system. A distribution that is damaged or declares something
odd is left out with one warning, and never breaks another.
"""

from __future__ import annotations

import keyword
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import attrgetter

from . import hooks
from .distributions import Metadata, distributions, entry_points, field
from .errors import ConfigurationError, warn_the_caller
from .records import record
from .version import __version__

BACKENDS_GROUP = hooks.ENTRY_POINT_GROUP
IMPLEMENTATIONS_GROUP = "turnout.implementations"

BUILT_IN: Mapping[str, str] = {"reference": "turnout.reference"}
"""Backends of the core itself, by name. They need no metadata and cannot be taken over."""

_BLOCK = "TURNOUT_BLOCK"
CORE = "turnout"
_BACKEND_NAME = re.compile(r"[a-z][a-z0-9_]*")
_BLOCKED_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@record
class Entry:
    """One entry point and the distribution that declares it.

    Attributes
    ----------
    group, name, value : str
        As written in the distribution's metadata.
    distribution, version : str
        Who declares it.
    is_blocked : bool
        Whether ``TURNOUT_BLOCK`` hides it.
    """

    group: str
    name: str
    distribution: str
    value: str
    version: str
    is_blocked: bool = False

    @property
    def owner(self) -> str:
        """Distribution and version, as messages name them."""
        return f"{self.distribution} {self.version}"


@record
class Installed:
    """What one scan of the installed distributions found.

    Attributes
    ----------
    entries : tuple of Entry
        Sorted by group, name and distribution; every backend name is valid.
    problems : tuple of str
        What was ignored and why, one sentence each.
    """

    entries: tuple[Entry, ...]
    problems: tuple[str, ...]

    def in_group(self, group: str) -> tuple[Entry, ...]:
        """Return the entries of one entry-point group, blocked ones included."""
        return tuple(entry for entry in self.entries if entry.group == group)


_installed: Installed | None = None
_scan_lock = threading.Lock()


def installed() -> Installed:
    """Return the entry points of turnout's groups; the first call reads them from disk.

    Returns
    -------
    Installed
        The same object for the whole process, until `clear`.

    Raises
    ------
    ConfigurationError
        If ``TURNOUT_BLOCK``, which is read by the first call, is malformed.
    """
    global _installed
    found = _installed
    if found is not None:
        return found
    with _scan_lock:
        is_first = _installed is None
        found = _installed = _installed or _scan()
    # Outside of the lock: the filter of a warning is other people's code.
    for problem in found.problems if is_first else ():
        warn_the_caller(problem, RuntimeWarning)
    return found


def _after_fork_in_child() -> None:
    # A thread that scanned when another one forked does not exist in the child, its lock does.
    global _scan_lock
    _scan_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def clear() -> None:
    """Forget the scan; the next use reads the metadata and ``TURNOUT_BLOCK`` again."""
    global _installed
    _installed = None


def _scan() -> Installed:
    blocked = _blocked_names()
    problems: list[str] = []
    entries: dict[tuple[str, ...], Entry] = {}
    found = [*_built_in_entries(), *_declared_entries(problems)]
    for entry in sorted(found, key=attrgetter("group", "name", "distribution", "value", "version")):
        is_blocked = not blocked.isdisjoint(map(_normalised, (entry.name, entry.distribution)))
        problem = _problem_of_name(entry)
        if problem is None:
            # One declaration found twice counts once, for example in a folder and in its link.
            entries[_identity(entry)] = replace(entry, is_blocked=is_blocked)
        elif not is_blocked:
            problems.append(problem)
    return Installed(tuple(entries.values()), tuple(problems))


def _identity(entry: Entry) -> tuple[str, str, str, str]:
    return (entry.group, entry.name, entry.distribution, entry.value)


def _built_in_entries() -> Iterator[Entry]:
    version = core_version()
    for name, module in BUILT_IN.items():
        yield Entry(BACKENDS_GROUP, name, CORE, module, version)


def core_version() -> str:
    """Return the version of turnout itself."""
    return __version__


def _declared_entries(problems: list[str]) -> Iterator[Entry]:
    folder_of: dict[str, str] = {}
    for distribution in distributions():
        try:
            entries = _entries_of(distribution)
        except Exception as error:
            # Metadata of other people: whatever is wrong there must not break the rest.
            problems.append(
                f"the entry points of {_describe_distribution(distribution)} cannot be read "
                f"({describe(error)}); they are ignored. Reinstall or remove it"
            )
            continue
        folder = str(distribution.locate_file(""))
        for entry in entries:
            # As for imports, the first folder of the path hides a second copy further back.
            if folder_of.setdefault(_normalised(entry.distribution), folder) == folder:
                yield entry


def _entries_of(distribution: Metadata) -> list[Entry]:
    text = distribution.read_text("entry_points.txt") or ""
    if BACKENDS_GROUP not in text and IMPLEMENTATIONS_GROUP not in text:
        return []
    owner, version = field(distribution, "Name"), field(distribution, "Version")
    return [
        Entry(group, name, owner, value, version)
        for group, name, value in entry_points(text)
        if group in (BACKENDS_GROUP, IMPLEMENTATIONS_GROUP)
        and not (_normalised(owner) == CORE and name in BUILT_IN)
    ]


def _describe_distribution(distribution: Metadata) -> str:
    try:
        return f"distribution {field(distribution, 'Name')!r}"
    except Exception:
        # Its metadata may be what is damaged; the folder is known all the same.
        return f"a distribution in {distribution.locate_file('')}"


def _problem_of_name(entry: Entry) -> str | None:
    if entry.group != BACKENDS_GROUP:
        return None
    if not _BACKEND_NAME.fullmatch(entry.name) or keyword.iskeyword(entry.name):
        return (
            f"distribution {entry.distribution!r} ({entry.version}) declares a backend named "
            f"{entry.name!r}, which is ignored: a name is made of lower-case letters, digits and "
            "underscores, starts with a letter and is no Python keyword"
        )
    if entry.name in BUILT_IN and _normalised(entry.distribution) != CORE:
        return (
            f"distribution {entry.distribution!r} ({entry.version}) declares a backend named "
            f"{entry.name!r}, which is ignored: this name belongs to {CORE} itself"
        )
    return None


def _blocked_names() -> frozenset[str]:
    text = os.environ.get(_BLOCK, "").strip()
    names = [name.strip() for name in text.split(",")] if text else []
    for name in names:
        if not _BLOCKED_NAME.fullmatch(name):
            raise ConfigurationError(
                f"{_BLOCK}={text!r}: {name!r} is no name of a plugin; give names of backends, "
                "operations or distributions, separated by commas"
            )
    return frozenset(map(_normalised, names))


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def describe(error: BaseException) -> str:
    """Return an exception as one text, without its traceback."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
