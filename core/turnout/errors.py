"""Every exception of turnout: one class per person who must act.

All derive from :class:`TurnoutError`, so ``except turnout.TurnoutError`` catches whatever the
library itself reports and nothing else. A message says what is wrong with the value that was given,
what is allowed, and what to do.
"""

from __future__ import annotations

import sys
import warnings

from .records import record


class TurnoutError(Exception):
    """Base of every error that turnout raises on purpose."""


@record
class SourceLocation:
    """Where a construct stands in the user's source.

    Attributes
    ----------
    file : str
        File name as Python knows it, for example ``"solver.py"`` or ``"<stdin>"``.
    line : int
        Line number in that file, counted from 1.
    column : int
        Column in that line, counted from 1.
    text : str
        The source line itself, without its newline.
    """

    file: str
    line: int
    column: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class KernelError(TurnoutError):
    """The author of a kernel must act: the source does not mean something turnout can compile.

    Parameters
    ----------
    message : str
        What is wrong, what is allowed, what to do.
    location : SourceLocation, optional
        Where in the user's source; the message then shows file, line, column and the line itself.
    """

    def __init__(self, message: str, location: SourceLocation | None = None) -> None:
        self.message = message
        self.location = location
        super().__init__(message, location)

    def __str__(self) -> str:
        if self.location is None:
            return self.message
        marker = " " * (self.location.column - 1) + "^"
        return f"{self.location}: {self.message}\n    {self.location.text}\n    {marker}"


class CallError(TurnoutError, TypeError):
    """The caller must act: an argument does not fit the kernel or operation.

    Several problems of one call are listed together in one error.
    """


class PlacementError(CallError):
    """The caller must act: the arrays of a call are not where it runs, or not in one place.

    An operation takes it as the answer of an implementation that is bound to another device.
    """


class OutOfBoundsError(TurnoutError, IndexError):
    """The caller must act: a kernel run with ``debug=True`` indexed outside of an array."""


class Unavailable(TurnoutError):  # noqa: N818 - the word users read: "opencl is unavailable"
    """Whoever installs must act: a backend or device is not usable here.

    Parameters
    ----------
    reason : str
        Why it is not usable.
    fix : str, optional
        What to do about it, as a command where there is one.
    """

    def __init__(self, reason: str, fix: str = "") -> None:
        self.reason = reason
        self.fix = fix
        super().__init__(reason, fix)

    def __str__(self) -> str:
        return f"{self.reason}. Fix: {self.fix}" if self.fix else self.reason


class BackendError(TurnoutError):
    """The author of a backend or plugin must act: it does not keep the plugin contract."""


class CompileError(TurnoutError):
    """Whoever reads the compiler's log must act: a backend could not compile a unit.

    Parameters
    ----------
    backend : str
        Name of the backend, for example ``"cpu"``.
    log : str
        What the compiler printed.
    source : str, optional
        The text that was given to the compiler.
    """

    def __init__(self, backend: str, log: str, source: str = "") -> None:
        self.backend = backend
        self.log = log
        self.source = source
        super().__init__(backend, log, source)

    def __str__(self) -> str:
        shown = f"\n--- source given to the compiler ---\n{self.source}" if self.source else ""
        return f"backend {self.backend!r} could not compile: {self.log}{shown}"


class BundleError(TurnoutError):
    """Whoever builds or ships a bundle must act: its folder is damaged, or is not for this use."""


class ConfigurationError(TurnoutError, ValueError):
    """Whoever configures the process must act: an environment variable or setting is malformed."""


class PerformanceWarning(UserWarning):
    """Something is right but slower than it needs to be, for example a hidden copy."""


class CacheWarning(UserWarning):
    """The on-disk cache cannot be used as configured; results stay right, work is repeated."""


def warn_the_caller(message: str, category: type[Warning]) -> None:
    """Issue a warning that points to the first code on the way here that is not turnout's."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_own(frame.f_globals.get("__name__")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _is_own(module: object) -> bool:
    return str(module).partition(".")[0] == "turnout"
