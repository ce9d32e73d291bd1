"""What the core tells a backend that can check and run a kernel call by itself.

A `turnout.hooks.Launcher` may offer ``direct``, a factory. The core calls it once for each
executable (a kernel for one device and one combination of argument types), with a `DirectCall`,
and what it returns becomes the ``__call__`` of the kernel's own type, so that a repeated call
passes no Python code of turnout.

Such a callable takes the user's own arguments. It runs the call only if everything is as the
`DirectCall` says; in any other case, errors included, it hands the untouched arguments to
``fallback``, which decides exactly and words every error. So it may refuse whatever is rare.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextvars import ContextVar
from inspect import Parameter
from typing import TYPE_CHECKING, Any

from . import ir
from .records import record

if TYPE_CHECKING:
    from .decision_table import DecisionTable
    from .hooks import Binary, Launcher, Target

NO_DEFAULT: Any = Parameter.empty
"""The default of a parameter that must be given."""


@record
class DirectParameter:
    """One parameter of a kernel, and what a call must give for it.

    Attributes
    ----------
    name : str
        Its name, which is also its keyword.
    takes_position, takes_keyword : bool
        How it may be given.
    default : object
        Its default, or `NO_DEFAULT`.
    python_type : type
        The exact type of the argument: ``numpy.ndarray``, a Python or a NumPy scalar type.
    dtype : DType
        Type of the elements, which must be in this machine's byte order; of a scalar the type that
        it is converted to, if it is in range.
    rank : int
        Axes of the array; 0 for a scalar.
    width : int
        Length that axis 0 must have; 0 where any is right.
    counts_samples : bool
        Whether its last axis is one of those that must agree and give the number of samples.
    is_written : bool
        Whether it must be writable, and its elements must not share memory.
    is_contiguous : bool
        Whether its elements must lie one behind the other.
    shape : tuple of int or None
        Lengths that the axes of an array must have, where they are given; empty where none is.
    literal : number or None
        What a scalar must be, bit for bit, once it is converted.
    """

    name: str
    takes_position: bool
    takes_keyword: bool
    default: Any
    python_type: type
    dtype: ir.DType
    rank: int
    width: int
    counts_samples: bool
    is_written: bool
    is_contiguous: bool = False
    shape: tuple[int | None, ...] = ()
    literal: int | float | bool | None = None


@record
class DirectResult:
    """An array that the call returns; C-contiguous.

    Attributes
    ----------
    dtype : DType
        Type of the elements.
    width : int
        Its shape is ``(width, samples)``, or ``(samples,)`` where this is 0.
    allocate : callable
        Makes the array; takes the number of samples.
    """

    dtype: ir.DType
    width: int
    allocate: Callable[[int], Any]


@record
class DirectRun:
    """One launch of the call.

    Attributes
    ----------
    unit : Unit
    launcher : Launcher
    places : tuple of int
        Where the arguments of the unit stand in the list of the parameters, then the number of
        samples, then the results, then the scratch arrays.
    """

    unit: ir.Unit
    launcher: Launcher
    places: tuple[int, ...]


class DeviceChoice:
    """Which device calls run on that name none and have no device arrays.

    It is ``used.get()``, or the process default where that is None. The call may run if that
    is `context`.

    Attributes
    ----------
    used : ContextVar
        The device context of the ``with turnout.use(...)`` block in force, or None.
    default : c_size_t
        ``id()`` of the device context that is the default of the process, 0 while it is undecided.
        It changes at any time, so it is to be read at its address at every call.
    context : object
        The device context that the call is made for.
    """

    def __init__(self, used: ContextVar[Any], default: ctypes.c_size_t, context: object) -> None:
        self.used, self.default, self.context = used, default, context


class CallLimit:
    """How many calls native code may run itself, and of which size; all others are to fall back.

    All of it changes at any time, so it is to be read at its address at every call. Threads may
    lose count of a few calls.

    Attributes
    ----------
    place : int
        The parameter whose number of elements is the size of a call.
    left : c_int64
        How many calls are left; each that runs takes one away.
    least, most : c_int64
        Sizes that may run.
    """

    def __init__(self, place: int) -> None:
        self.place = place
        self.left, self.least, self.most = (ctypes.c_int64() for _ in range(3))

    def allow(self, calls: int, least: int, most: int) -> None:
        """Let so many calls of these sizes run."""
        self.left.value = 0  # first: no call is to meet an old count with new sizes
        self.least.value, self.most.value = least, most
        self.left.value = calls


@record
class DirectCall:
    """Everything about the calls of one executable.

    Attributes
    ----------
    name : str
        Name of the kernel.
    parameters : tuple of DirectParameter
        In order; behind those of the kernel the counters that the call has, which are arguments by
        keyword.
    overlaps : tuple of (int, int, bool)
        Pairs of parameters whose memory must not overlap; true where they may be exactly the same
        elements, at the same indices.
    reaches : tuple of Reach
        Indices that every call uses; the arrays must be long enough for them.
    results : tuple of DirectResult
        Arrays to return.
    returns_tuple : bool
        Whether the results are returned as a tuple, or the only one as it is.
    scratch : tuple of Scratch
        Memory that lives for one call, filled with zeros.
    runs : tuple of DirectRun
        The launches, in order.
    target : Target
        What code is compiled for.
    device : DeviceChoice
        Whether the device in force is the one of this call.
    fallback : callable
        Takes any call, with the arguments as they were given.
    cached : callable
        ``cached(text, make)`` gives what ``make()`` returned for this text at some time on a
        machine like this one; `text` decides every byte of it.
    limit : CallLimit or None
        What further limits the calls that may run, if anything does.
    """

    name: str
    parameters: tuple[DirectParameter, ...]
    overlaps: tuple[tuple[int, int, bool], ...]
    reaches: tuple[ir.Reach, ...]
    results: tuple[DirectResult, ...]
    returns_tuple: bool
    scratch: tuple[ir.Scratch, ...]
    runs: tuple[DirectRun, ...]
    target: Target
    device: DeviceChoice
    fallback: Callable[..., Any]
    cached: Callable[[str, Callable[[], Binary]], Binary]
    limit: CallLimit | None = None


@record
class DecidedCalls:
    """Everything about the decided calls of an operation.

    A decided call looks a decision up under its geometry. A plugin may offer
    (`turnout.offers.offer_decided_calls`) to make a builtin that does so in machine code, and
    becomes the ``__call__`` of the operation. It runs what it finds in the table; whatever it does
    not find there, or is rare, it hands to ``fallback``.

    Attributes
    ----------
    name : str
        Name of the operation.
    arrays : tuple of str
        The first parameters, which must be arrays of NumPy's own type.
    optional : tuple of str
        The others, whose defaults are None; of them the key tells whether they are None.
    device : DeviceChoice
        Whether the device in force is the one of these decisions.
    table : DecisionTable
        The functions are called with all arguments by position.
    fallback : callable
        Takes any call, with the arguments as they were given.
    """

    name: str
    arrays: tuple[str, ...]
    optional: tuple[str, ...]
    device: DeviceChoice
    table: DecisionTable
    fallback: Callable[..., Any]
