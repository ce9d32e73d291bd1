"""What happens once, at an operation's first call: installed packages register implementations."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from . import implementations
from .compatibility import Implementation
from .discovery import Entry, describe


class Preparation:
    """Loads the entry points of one operation, in whichever thread calls it first.

    Not earlier, because by then the program has registered its own implementations. Other threads
    go on with what is registered so far, and wait only if that is nothing.

    Parameters
    ----------
    operation : object
        What the functions of the entry points are called with.
    registered : callable
        Returns the implementations that are registered so far.
    remove : callable
        Takes implementations away.

    Attributes
    ----------
    is_done : bool
    """

    def __init__(
        self,
        operation: object,
        registered: Callable[[], tuple[Implementation, ...]],
        remove: Callable[[tuple[Implementation, ...]], None],
    ) -> None:
        self._operation = operation
        self._registered = registered
        self._remove = remove
        self.is_done = False
        self.thread: int | None = None
        self._loaded: set[Entry] = set()
        self._condition = threading.Condition()

    @property
    def is_loading(self) -> bool:
        """Whether this thread is in the middle of loading entry points."""
        return threading.get_ident() == self.thread

    def run(self, names: Collection[str]) -> list[str] | None:
        """Load the entry points of an operation that answers to `names`.

        Returns
        -------
        list of str or None
            What went wrong; None where another thread does it, or this one is doing it.
        """
        thread = threading.get_ident()
        with self._condition:  # never held while code of others runs
            while self.thread not in (None, thread) and not self._registered():
                self._condition.wait()
            if self.is_done or self.thread is not None:
                return None
            self.thread = thread
        problems = []
        try:
            for entry in implementations.entries_for(names):
                if entry not in self._loaded:  # else loaded before an interrupt came
                    problems += self._load(entry)
                    self._loaded.add(entry)
            self.is_done = True
        finally:
            with self._condition:
                self.thread = None
                self._condition.notify_all()
        return problems

    def _load(self, entry: Entry) -> list[str]:
        """Let an installed package register; return what went wrong, after undoing it."""
        before = self._registered()
        try:
            implementations.load(entry)(self._operation)
        except (Exception, SystemExit) as error:
            # What the program registered meanwhile, in other threads, stays.
            new = [each for each in self._registered() if each not in before]
            self._remove(tuple(each for each in new if each.is_installed))
            return [
                f"the implementations of distribution {entry.owner} are left out, because its "
                f"entry point '{entry.name} = {entry.value}' failed: {describe(error)}"
            ]
        return []

    def forget_other_threads(self) -> None:
        """After a fork, in the child: the thread that was loading does not exist here."""
        self._condition = threading.Condition()
        self.thread = None
