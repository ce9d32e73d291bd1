"""What reaches operations from outside the program: environment variables and installed packages.

* ``TURNOUT_PERFDISPATCH_FORCE=operation:implementation,...`` runs these implementations; any value
  makes each operation list its implementations, and ``?`` does nothing else;
* ``TURNOUT_PERFDISPATCH_PRINT_DEBUG=1`` prints registrations and choices.

An installed distribution adds implementations through the entry-point group
``turnout.implementations``: the entry point's name is the operation's name, its value
``module:function`` is called with the operation and registers what it brings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from typing import Any

from . import discovery
from .errors import ConfigurationError

_FORCE = "TURNOUT_PERFDISPATCH_FORCE"
_DEBUG = "TURNOUT_PERFDISPATCH_PRINT_DEBUG"


def is_listing_wanted() -> bool:
    """Whether each operation prints its implementations at its first call."""
    return bool(os.environ.get(_FORCE, "").strip())


def is_debug_wanted() -> bool:
    """Whether registrations and choices are printed.

    Raises
    ------
    ConfigurationError
        When the variable is neither empty, 0 nor 1.
    """
    value = os.environ.get(_DEBUG, "").strip()
    if value not in ("", "0", "1"):
        raise ConfigurationError(f"{_DEBUG}={value!r} is not allowed: set it to 1 (on) or 0 (off)")
    return value == "1"


def forced_implementations() -> dict[str, str]:
    """Return the forced implementation's name by operation name.

    Raises
    ------
    ConfigurationError
        When an entry is not ``operation:implementation``, or one operation is given two.
    """
    text = os.environ.get(_FORCE, "").strip()
    forced: dict[str, str] = {}
    if text == "?":
        return forced
    # Names of variants, kernel[tile=16,unroll=2], have commas of their own.
    for entry in filter(None, map(str.strip, re.split(r",(?![^\[\]]*\])", text))):
        names = [name.strip() for name in entry.split(":")]
        if len(names) != 2 or not all(names):
            raise ConfigurationError(
                f"{_FORCE}: the entry {entry!r} is malformed: write 'operation:implementation', "
                "separate several by commas, or set the variable to '?' to list the names"
            )
        operation, implementation = names
        if forced.setdefault(operation, implementation) != implementation:
            raise ConfigurationError(
                f"{_FORCE}: {operation!r} is given two implementations, {forced[operation]!r} and "
                f"{implementation!r}: keep one of them"
            )
    return forced


def entries_for(names: Collection[str]) -> list[discovery.Entry]:
    """Return the installed entries of an operation, without those that ``TURNOUT_BLOCK`` hides.

    Parameters
    ----------
    names : collection of str
        The names that the operation answers to, plain and with its module.
    """
    return [
        entry
        for entry in discovery.installed().in_group(discovery.IMPLEMENTATIONS_GROUP)
        if entry.name in names and not entry.is_blocked
    ]


def load(entry: discovery.Entry) -> Callable[[Any], object]:
    """Import the function that registers the implementations of an entry."""
    from importlib.metadata import EntryPoint  # slow to import, and rarely needed

    function = EntryPoint(entry.name, entry.value, entry.group).load()
    if not callable(function):
        raise TypeError(f"{entry.value} is no function that could be called with the operation")
    registers: Callable[[Any], object] = function
    return registers
