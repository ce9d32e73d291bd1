"""How many threads one launch may use: a setting of the process that backends read."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator

from .errors import ConfigurationError

_VARIABLE = "TURNOUT_NUM_THREADS"
_MAXIMUM = 1024
_GROUP_OF_PROCESS = "/proc/self/cgroup"
_GROUPS = "/sys/fs/cgroup"

_given: int | None = None
_default: int | None = None
_listeners: list[Callable[[], None]] = []


def num_threads() -> int:
    """Give the number of threads that one launch may use, the calling one included.

    It is what `set_num_threads` was given, else the environment variable ``TURNOUT_NUM_THREADS``,
    else the number of cores that this process may use: its affinity, or the CPU quota of its
    control group where that is smaller. The environment is read when the number is first needed,
    and again in a forked child.

    Returns
    -------
    int
        At least 1.

    Raises
    ------
    ConfigurationError
        ``TURNOUT_NUM_THREADS`` is not a number of threads.

    Examples
    --------
    >>> import turnout as tn
    >>> tn.set_num_threads(2)
    >>> tn.num_threads()
    2
    >>> tn.set_num_threads(None)
    """
    global _default
    if _given is not None:
        return _given
    if _default is None:
        _default = _from_environment() or _usable_cores()
    return _default


def set_num_threads(count: int | None) -> None:
    """Set the number of threads that one launch may use.

    Results do not depend on it, except for the order in which a ``tn.parallel`` loop adds floats to
    an element that iterations share. Fewer are used where the work is too little, and where other
    threads of the process run launches at the same time.

    Parameters
    ----------
    count : int or None
        Threads, the calling one included, from 1 to 1024; more than there are cores is allowed.
        None goes back to the default, which `num_threads` describes.

    Raises
    ------
    ConfigurationError
        `count` is something else.

    Examples
    --------
    One thread, in a program that starts a process per core:

    >>> import turnout as tn
    >>> tn.set_num_threads(1)
    >>> tn.num_threads()
    1

    Back to the default:

    >>> tn.set_num_threads(None)
    """
    global _given, _default
    if count is not None and not _is_allowed(count):
        raise ConfigurationError(
            f"set_num_threads: count is {count!r}; give a whole number of threads from 1 to "
            f"{_MAXIMUM}, or None for the default"
        )
    _given, _default = count, None
    for listener in _listeners:
        listener()


def on_num_threads_change(listener: Callable[[], None]) -> None:
    """Have `listener` called, without arguments, after every `set_num_threads`.

    Parameters
    ----------
    listener : callable
        It is kept for the rest of the process.
    """
    _listeners.append(listener)


def _is_allowed(count: object) -> bool:
    # A bool is an int to Python, but no number of threads.
    return isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= _MAXIMUM


def _from_environment() -> int | None:
    text = os.environ.get(_VARIABLE, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and _is_allowed(int(text))):
        raise ConfigurationError(
            f"{_VARIABLE}={text!r} is not a number of threads; give a whole number from 1 to "
            f"{_MAXIMUM}, or unset it to use every core"
        )
    return int(text)


def _usable_cores() -> int:
    if sys.version_info >= (3, 13):
        cores = os.process_cpu_count() or 1
    elif hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return min([cores, *map(math.ceil, _quotas())])


def _quotas() -> Iterator[float]:
    """CPUs that the control groups (version 2) of this process may use, the innermost first."""
    # There are none on other operating systems, and what cannot be read limits nothing here.
    with contextlib.suppress(OSError, ValueError):
        with open(_GROUP_OF_PROCESS, encoding="utf-8") as lines:
            paths = [line.strip().removeprefix("0::") for line in lines if line.startswith("0::")]
        group = paths[0].strip("/") if paths else ""
        while True:
            yield from _quota(os.path.join(_GROUPS, group, "cpu.max"))
            if not group:
                return
            group = os.path.dirname(group)


def _quota(path: str) -> Iterator[float]:
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        quota, period = file.read().split()
        if quota != "max":
            yield int(quota) / int(period)


def _forget_default() -> None:
    global _default
    _default = None


if hasattr(os, "register_at_fork"):
    # A child may be given other cores than its parent.
    os.register_at_fork(after_in_child=_forget_default)
