"""The backends of this process, their devices, and which device a call runs on.

Each backend has a plugin manager of its own, so no backend can answer for another. Its module is
imported, its devices are listed and the objects of a device are made once, when first needed; a
failure is remembered by its message and raised again whenever that backend is asked for.

A call runs on the first of these that applies: its ``device=``; ``with use(...)``; the device that
owns the device arrays among its arguments; `set_default_device`; ``TURNOUT_BACKEND``; ``cpu`` if
installed; ``reference``. NumPy arrays and scalars live on the host and belong to no device. To a
device with arrays of its own they go only where a user names it, and not because it owns others.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

import numpy as np

from . import discovery, loading
from .direct import DeviceChoice
from .errors import (
    BackendError,
    CallError,
    ConfigurationError,
    PerformanceWarning,
    PlacementError,
    Unavailable,
    warn_the_caller,
)
from .hooks import Device, Timer
from .loading import Backend, DeviceContext
from .records import record

__all__ = [
    "Backend",
    "BackendStatus",
    "DeviceContext",
    "active",
    "active_name",
    "array",
    "backend",
    "backends",
    "checked_spelling",
    "choice_of",
    "clear",
    "context_for",
    "devices",
    "home",
    "host_array",
    "is_capturing",
    "lost",
    "resolve",
    "set_default_device",
    "sync",
    "timer",
    "to_numpy",
    "use",
]

T = TypeVar("T")

_VARIABLE = "TURNOUT_BACKEND"
_DEFAULTS = ("cpu", "reference")
_SPELLING = re.compile(r"([a-z][a-z0-9_]*)(?::(0|[1-9][0-9]*))?")
_HOST_TYPES = frozenset({np.ndarray, bool, int, float, *np.sctypeDict.values()})
_DLPACK_CPU = 1


@record
class BackendStatus:
    """What became of one installed backend.

    Attributes
    ----------
    name, distribution, version : str
        The backend and who brings it.
    available : bool
        Whether it has a device that can be used.
    reason, fix : str
        Why it cannot be used and what to do about it; empty where it can.
    devices : tuple of Device
        Empty where it cannot be used.
    """

    name: str
    distribution: str
    version: str
    available: bool
    reason: str
    fix: str
    devices: tuple[Device, ...]


class _Once(Generic[T]):
    """A value that is made at most once, by one thread; also a failure happens only once."""

    def __init__(self, owner: _Installed, make: Callable[[], T], what: str) -> None:
        self._owner, self._make, self._what = owner, make, what
        self._made: list[T] = []
        self._failure: Unavailable | BackendError | None = None
        self._is_running = False

    def __call__(self) -> T:
        if self._made:
            return self._made[0]
        with self._owner.lock:
            if self._made:
                return self._made[0]
            if self._failure is not None:
                raise _copy(self._failure)
            if self._is_running:
                raise BackendError(f"{self._what}: it is asked for by its own code, in a circle")
            self._is_running = True
            try:
                self._made.append(self._make())
            except (Unavailable, BackendError) as error:
                self._failure = _copy(error)
                raise
            finally:
                self._is_running = False
            return self._made[0]

    @property
    def is_made(self) -> bool:
        return bool(self._made)

    def forget_other_threads(self) -> None:
        self._is_running = False

    def lose(self, failure: Unavailable) -> list[T]:
        """Fail from now on; gives what was made until now."""
        made, self._made, self._failure = self._made, [], failure
        return made


def _copy(error: Unavailable | BackendError) -> Unavailable | BackendError:
    """Only the message: a kept traceback would keep the frames and all they refer to alive."""
    if isinstance(error, Unavailable):
        return Unavailable(error.reason, error.fix)
    return BackendError(str(error))


class _Installed:
    """One backend name of this process; everything below it is made when first asked for."""

    def __init__(self, entries: Sequence[discovery.Entry]) -> None:
        self.entries = entries
        # One lock per backend, which its own code may take again while it is being loaded.
        self.lock = threading.RLock()
        what = f"backend {entries[0].name!r} of {entries[0].owner}"
        self.backend = _Once(self, lambda: _load(entries), what)
        self.devices = _Once(self, lambda: loading.list_devices(self.backend()), what)
        self._contexts: dict[int, _Once[DeviceContext]] = {}

    def context(self, device: Device) -> DeviceContext:
        def make() -> DeviceContext:
            context = loading.make_context(self.backend(), device)
            if not context.is_host:
                _state.add_owner(context)
            return context

        once = _Once(self, make, f"device {device}")
        return self._contexts.setdefault(device.index, once)()

    def contexts(self) -> list[DeviceContext]:
        """The devices that were used so far."""
        # A list first, because other threads may begin to use another one.
        return [once() for once in list(self._contexts.values()) if once.is_made]

    def after_fork_in_child(self) -> list[DeviceContext]:
        """Give up what the parent made of a driver; returns the devices that are lost."""
        self.lock = threading.RLock()
        values: list[_Once[Any]] = [self.backend, self.devices, *self._contexts.values()]
        for once in values:
            once.forget_other_threads()
        contexts = self.contexts()
        is_host = contexts[0].is_host if contexts else not self._may_have_loaded_a_driver()
        if is_host or not self.devices.is_made:
            return []
        name = self.entries[0].name
        lost = Unavailable(
            f"backend {name!r} was in use when this process was forked, and drivers of devices do "
            "not survive that",
            "start processes with multiprocessing.get_context('spawn'), or fork before the first "
            f"use of {name!r}",
        )
        self.devices.lose(lost)
        for once in self._contexts.values():
            once.lose(lost)
        return contexts

    def _may_have_loaded_a_driver(self) -> bool:
        return self.backend.is_made and self.backend().has_own_memory


def _load(entries: Sequence[discovery.Entry]) -> Backend:
    name = entries[0].name
    visible = [entry for entry in entries if not entry.is_blocked]
    if not visible:
        raise Unavailable(
            f"backend {name!r} is blocked by TURNOUT_BLOCK",
            f"remove {name!r} or {entries[0].distribution!r} from TURNOUT_BLOCK",
        )
    if len(visible) > 1:
        owners = " and ".join(f"{entry.owner} (module {entry.value!r})" for entry in visible)
        raise Unavailable(
            f"backend {name!r} is declared more than once, by {owners}",
            f"uninstall all but one, or hide them by distribution in TURNOUT_BLOCK: "
            f"{', '.join(entry.distribution for entry in visible)}",
        )
    return loading.load(visible[0])


class _State:
    """What this process has made and chosen so far."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew; it stays the same object, which the calls of operations refer to."""
        self.lock = threading.Lock()  # never held while other people's code runs
        self.installed: dict[str, _Installed] = {}
        self.default: DeviceContext | None = None
        self.owners: tuple[DeviceContext, ...] = ()
        """Devices whose arrays are not NumPy's: only these can own an argument."""
        self.has_all_owners = False
        """Whether every device of every usable backend was made."""

    def choose(self, default: DeviceContext | None) -> None:
        """Make a device the default; the caller holds the lock, or is the only thread."""
        self.default = default
        _default_id.value = 0 if default is None else id(default)

    def add_owner(self, context: DeviceContext) -> None:
        with self.lock:
            self.owners += (context,)

    def after_fork_in_child(self) -> None:
        self.lock = threading.Lock()
        for installed in self.installed.values():
            lost.update(installed.after_fork_in_child())


# The default of `_state` once more, where native code can read it.
_default_id = ctypes.c_size_t(0)
_state = _State()
lost: set[DeviceContext] = set()
"""Devices that the parent of this process used before it forked; nothing runs on them here."""
_used: ContextVar[DeviceContext | None] = ContextVar("turnout_used_device", default=None)


def clear() -> None:
    """Forget all plugins, devices and choices of this process; for tests.

    The next use reads the installed distributions and the environment again. Modules stay
    imported, and a ``with use(...)`` in force keeps its device.
    """
    discovery.clear()
    _state.forget()
    _state.choose(None)
    _context.cache_clear()
    lost.clear()


def _after_fork_in_child() -> None:
    # A thread that loaded a backend when another one forked does not exist in the child.
    _state.after_fork_in_child()
    _context.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _installed() -> dict[str, _Installed]:
    if not _state.installed:
        entries: dict[str, list[discovery.Entry]] = {}
        for entry in discovery.installed().in_group(discovery.BACKENDS_GROUP):
            entries.setdefault(entry.name, []).append(entry)
        with _state.lock:
            if not _state.installed:
                _state.installed = {name: _Installed(each) for name, each in entries.items()}
    return _state.installed


def _find(name: str) -> _Installed:
    installed = _installed()
    if name in installed:
        return installed[name]
    import difflib  # only errors need it

    close = difflib.get_close_matches(name, installed, n=1)
    suggestion = f" (did you mean {close[0]!r}?)" if close else ""
    statuses = "; ".join(
        f"{status.name} ({'usable' if status.available else status.reason})"
        for status in backends().values()
    )
    raise Unavailable(
        f"backend {name!r} is not installed{suggestion}; installed are: {statuses or 'none'}",
        f"install the distribution that brings it, for example `pip install turnout-{name}`",
    )


def backend(name: str) -> Backend:
    """Load a backend without asking for its devices; enough to compile.

    Parameters
    ----------
    name : str
        Name of the backend.

    Returns
    -------
    Backend
        The same object each time.

    Raises
    ------
    Unavailable
        If no such backend is installed, it is blocked or two distributions declare it.
    BackendError
        If its module is broken.
    """
    return _find(name).backend()


def backends() -> dict[str, BackendStatus]:
    """Ask every installed backend for its devices.

    Returns
    -------
    dict of str to BackendStatus
        Sorted by name. A backend that is broken, blocked or without a device is listed with the
        reason; it never prevents the others from being listed.

    Examples
    --------
    >>> import turnout as tn
    >>> tn.backends()["reference"].available
    True
    """
    return {name: _status(name, installed) for name, installed in _installed().items()}


def _status(name: str, installed: _Installed) -> BackendStatus:
    distribution = ", ".join(dict.fromkeys(entry.distribution for entry in installed.entries))
    version = ", ".join(entry.version for entry in installed.entries)
    try:
        found = installed.devices()
    except Unavailable as error:
        return BackendStatus(name, distribution, version, False, error.reason, error.fix, ())
    except BackendError as error:
        fix = f"tell the authors of {distribution}; TURNOUT_BLOCK={name} hides it"
        return BackendStatus(name, distribution, version, False, str(error), fix, ())
    return BackendStatus(name, distribution, version, True, "", "", found)


def devices(backend: str | None = None) -> tuple[Device, ...]:
    """List devices that can be used.

    Parameters
    ----------
    backend : str, optional
        Only those of this backend; of all usable backends otherwise.

    Returns
    -------
    tuple of Device
        By backend name, then index; ``str(device)`` is its spelling, for example ``"cuda:0"``.

    Raises
    ------
    Unavailable, BackendError
        If `backend` is given and cannot be used.

    Examples
    --------
    >>> import turnout as tn
    >>> [str(device) for device in tn.devices("reference")]
    ['reference:0']
    """
    if backend is not None:
        return _find(backend).devices()
    return tuple(device for status in backends().values() for device in status.devices)


def _named(device: str | Device) -> DeviceContext:
    _check_type(device)
    return _context(device)


def checked_spelling(device: str | Device) -> str:
    """Return how a device is spelt; it need not be there.

    Raises
    ------
    CallError
        If that is no spelling of a device.
    """
    _check_type(device)
    _parse(str(device))
    return str(device)


def _check_type(device: object) -> None:
    if not isinstance(device, str | Device):
        raise CallError(
            f"device={device!r}, of type {type(device).__name__}, is not allowed; give the name of "
            "a backend such as 'cpu', a device such as 'cuda:1', or one of turnout.devices()"
        )


@functools.cache  # holds only devices that exist: failures are not cached
def _context(device: str | Device) -> DeviceContext:
    name, index = _parse(str(device))
    installed = _find(name)
    found = installed.devices()
    if index >= len(found):
        listed = ", ".join(f"{each} ({each.label})" for each in found)
        raise Unavailable(
            f"backend {name!r} has no device {index}; its devices are: {listed}",
            "name one of these",
        )
    if isinstance(device, Device) and device != found[index]:
        raise Unavailable(
            f"{device!r} is not a device of this machine, where {device} is {found[index]!r}",
            f"name it {str(device)!r}, or take one of turnout.devices()",
        )
    return installed.context(found[index])


def _parse(spelling: str) -> tuple[str, int]:
    match = _SPELLING.fullmatch(spelling)
    if match is None:
        raise CallError(
            f"device {spelling!r} is malformed; write the name of a backend such as 'cpu', or a "
            "device such as 'cuda:1'"
        )
    return match[1], int(match[2] or 0)


@contextmanager
def use(device: str | Device) -> Iterator[Device]:
    """Run the calls of a ``with`` block on a device.

    The choice is a context variable: it holds for this thread or task and what it awaits. A new
    asyncio task inherits it, a new thread does not; for all threads use `set_default_device`.

    Parameters
    ----------
    device : str or Device
        For example ``"opencl"`` (device 0), ``"cuda:1"``, or one of `devices`.

    Yields
    ------
    Device
        The device in use.

    Raises
    ------
    Unavailable, BackendError
        At the start of the block, if the device cannot be used.

    Examples
    --------
    >>> import turnout as tn
    >>> with tn.use("reference") as device:
    ...     print(device)
    reference:0
    """
    context = _named(device)
    token = _used.set(context)
    try:
        yield context.device
    finally:
        _used.reset(token)


def set_default_device(device: str | Device | None) -> None:
    """Choose the device of all calls, in all threads, that name none.

    Parameters
    ----------
    device : str, Device or None
        As for `use`; None returns to the built-in choice and reads ``TURNOUT_BACKEND`` again.

    Raises
    ------
    Unavailable, BackendError
        If the device cannot be used; the earlier choice then stays.
    """
    context = None if device is None else _named(device)
    with _state.lock:
        _state.choose(context)


def resolve(
    arguments: Sequence[object],
    device: str | Device | None = None,
    callee: Callable[..., object] | None = None,
    are_on_host: bool = False,
) -> DeviceContext:
    """Find the device of one call.

    Parameters
    ----------
    arguments : sequence
        The arguments of the call.
    device : str or Device, optional
        The device that the call names.
    callee : callable, optional
        What is called with the arguments; errors then name it and its parameters.
    are_on_host : bool
        That all arguments are known to be NumPy arrays and numbers, so that none is asked about.

    Returns
    -------
    DeviceContext
        The same object each time for one device.

    Raises
    ------
    PlacementError
        If device arrays live on two devices, or elsewhere than on the named one, or together with
        NumPy arrays on a device that is not named.
    Unavailable, BackendError
        If the named device cannot be used.
    ConfigurationError
        If ``TURNOUT_BACKEND`` is malformed. It is read at the first call that needs a default.
    """
    named = _used.get() if device is None else _named(device)
    context = None if are_on_host else _owner(arguments, named, callee)
    if context is None:
        context = named or _default()
    if lost and context in lost:
        _context(context.name)  # raises
    return context


def choice_of(context: DeviceContext, is_named: bool = False) -> DeviceChoice:
    """Tell native code how to find out whether a call without device arrays runs on a device.

    What it does with that must agree with `resolve`.

    Parameters
    ----------
    context : DeviceContext
    is_named : bool
        That the calls name it, whatever is in use.
    """
    return DeviceChoice(_always(context) if is_named else _used, _default_id, context)


@functools.cache  # context variables are never freed
def _always(context: DeviceContext) -> ContextVar[DeviceContext | None]:
    return ContextVar(f"turnout_device_{context.name}", default=context)


def active() -> DeviceContext:
    """Return the device of a call that names none and has no device arrays."""
    return resolve((), are_on_host=True)


def active_name() -> str:
    """Return how the active device is spelt; cheap, for a key that is made at every call."""
    return (_used.get() or _state.default or _find_default()).name


def context_for(arguments: Sequence[object]) -> DeviceContext:
    """Return the device whose work a call with these arguments waits for, whatever it runs.

    Parameters
    ----------
    arguments : sequence
        Where device arrays among them live on several devices, or there are none, it is the
        active device.
    """
    homes = _homes(arguments)
    return homes.pop() if len(homes) == 1 else active()


def is_capturing() -> bool:
    """Whether this thread records work for a device into a graph, so that nothing can be timed."""
    return any(context.is_capturing() for context in _state.owners if context not in lost)


def home(value: object) -> DeviceContext | None:
    """Return the device that owns a value; None for what lives on the host.

    Parameters
    ----------
    value : object
        Every usable backend is asked before the answer for an array of another library is None.
    """
    return None if type(value) in _HOST_TYPES else _home(value)


def _homes(arguments: Sequence[object]) -> set[DeviceContext]:
    return {owner for value in arguments if (owner := home(value)) is not None}


def _owner(
    arguments: Sequence[object],
    named: DeviceContext | None,
    callee: Callable[..., object] | None,
) -> DeviceContext | None:
    """The one device whose arrays are among the arguments; must be `named` if that is given."""
    homes = _homes(arguments)
    if not homes:
        return None
    owner = next(iter(homes))
    are_at_home = len(homes) == 1 and owner is (named or owner)
    if are_at_home and (named or not _has_host_arrays(arguments) or owner is _default()):
        return owner
    of_callee = "" if callee is None else f" of {callee.__name__}"
    where = "; ".join(
        f"argument {name} ({type(value).__name__}) is on {_describe_home(value)}"
        for name, value in zip(_names(arguments, callee), arguments, strict=True)
        if hasattr(value, "dtype") and not isinstance(value, np.generic)
    )
    if are_at_home:
        raise PlacementError(
            f"this call{of_callee} has arrays on a device and on the host: {where}. Move all to "
            f"the device with turnout.array(x, device={owner.name!r}); or name it, with "
            f"device={owner.name!r} or turnout.use({owner.name!r}), to have host arrays copied "
            "there and back"
        )
    if named is not None:
        raise PlacementError(
            f"this call{of_callee} is to run on {named.name}, but has arrays elsewhere: {where}. "
            f"Move them with turnout.array(x, device={named.name!r}), or run it where they are"
        )
    raise PlacementError(
        f"the arrays of one call{of_callee} live on several devices: {where}. Move them to one of "
        "these with turnout.array(x, device=...)"
    )


def _has_host_arrays(arguments: Sequence[object]) -> bool:
    # One number may well be an array without axes.
    return any(isinstance(value, np.ndarray) and value.ndim for value in arguments)


def _default() -> DeviceContext:
    return _state.default or _find_default()


def _names(arguments: Sequence[object], callee: Callable[..., object] | None) -> list[str]:
    """What messages call the arguments: parameters where these are known, else positions."""
    if callee is None:
        return [str(position) for position in range(len(arguments))]
    return [repr(name) for name in inspect.signature(callee).parameters]


def _home(value: object) -> DeviceContext | None:
    """The device that owns a value; every usable backend is asked before the answer is None."""
    state = _state
    for context in state.owners:
        if context.memory.owns(value):
            return context
    if state.has_all_owners or not _may_live_on_a_device(value):
        return None
    for device in devices():
        # A device that does not work owns nothing; whoever asks for it gets the reason.
        with suppress(Unavailable, BackendError):
            _context(str(device))
    state.has_all_owners = True
    return _home(value)


def _may_live_on_a_device(value: object) -> bool:
    """Whether to load drivers in order to learn whose array a value is."""
    if isinstance(value, np.ndarray | np.generic) or _is_cpu_tensor(value):
        return False
    if hasattr(value, "__dlpack_device__") or hasattr(value, "__cuda_array_interface__"):
        return True
    # What NumPy takes as it is, a data frame for example, is host data.
    return hasattr(value, "dtype") and hasattr(value, "shape") and not hasattr(value, "__array__")


def _describe_home(value: object) -> str:
    owner = home(value)
    if owner is not None:
        return owner.name
    is_on_host = isinstance(value, np.ndarray | np.generic) or _is_cpu_tensor(value)
    return "the host" if is_on_host else "no device that can be used"


def _find_default() -> DeviceContext:
    failures: list[str] = []
    text = os.environ.get(_VARIABLE, "").strip()
    context = _from_environment(text) if text else _first_default(failures)
    with _state.lock:
        is_first = _state.default is None
        chosen = _state.default or context
        _state.choose(chosen)
    if is_first and failures:
        warn_the_caller(
            f"calls run on {str(context.device)!r}, which is slower: {'; '.join(failures)}",
            PerformanceWarning,
        )
    return chosen


def _from_environment(text: str) -> DeviceContext:
    try:
        return _context(text)
    except CallError as error:
        raise ConfigurationError(f"{_VARIABLE}={text!r}: {error}") from None
    except Unavailable as error:
        raise Unavailable(f"{_VARIABLE}={text!r}: {error.reason}", error.fix) from None
    except BackendError as error:
        raise BackendError(f"{_VARIABLE}={text!r}: {error}") from None


def _first_default(failures: list[str]) -> DeviceContext:
    installed = _installed()
    for name in _DEFAULTS:
        if name not in installed or all(entry.is_blocked for entry in installed[name].entries):
            continue
        try:
            return _context(name)
        except (Unavailable, BackendError) as error:
            failures.append(str(error))
    raise Unavailable(
        f"no default backend can be used here: {'; '.join(failures) or 'all are blocked'}",
        f"name a device with turnout.use(...) or {_VARIABLE}; `turnout doctor` lists what is there",
    )


def sync(device: str | Device | None = None) -> None:
    """Wait for the work that this process queued on devices.

    Parameters
    ----------
    device : str or Device, optional
        Every device that this process has used by default.
    """
    if device is not None:
        resolve((), device).sync()
        return
    for installed in _installed().values():
        for context in installed.contexts():
            context.sync()


def timer(device: str | Device | None = None) -> Timer:
    """Return the function that times work on a device.

    Parameters
    ----------
    device : str or Device, optional
        The active device by default.

    Returns
    -------
    callable
        ``timer(work)`` runs ``work()`` once and returns nanoseconds, by the device's own clock
        where it has one.

    Examples
    --------
    >>> import turnout as tn
    >>> tn.timer("reference")(lambda: None) >= 0
    True
    """
    return resolve((), device).timer


def array(value: object, device: str | Device | None = None) -> Any:
    """Move data to a device.

    Parameters
    ----------
    value : array-like
        Anything `numpy.asarray` takes, a DLPack tensor on the CPU, or an array of any device.
    device : str or Device, optional
        The active device by default.

    Returns
    -------
    array
        The device's own kind of array: NumPy's for ``cpu`` and ``reference``. An array that is
        there already is returned as it is.

    Raises
    ------
    CallError
        If `value` is no array data, or a masked array, whose mask no device takes.

    Examples
    --------
    >>> import turnout as tn
    >>> tn.array([1.0, 2.0], device="reference")
    array([1., 2.])
    """
    context = resolve((), device)
    if context.memory.owns(value):
        return value
    host = to_numpy(value)
    return host if context.is_host else context.memory.put(_plain(host))


def _plain(host: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Host data as `Memory.put` takes it."""
    if isinstance(host, np.ma.MaskedArray):
        raise CallError("a masked array would lose its mask on a device; pass x.filled(...)")
    if host.dtype.hasobject:
        raise CallError(f"an array of {host.dtype} holds Python objects, which no device takes")
    return np.asarray(host, host.dtype.newbyteorder("="), order="C")


def to_numpy(value: object) -> np.ndarray[Any, Any]:
    """Bring data back to the host.

    Parameters
    ----------
    value : array
        An array of any device, or what `array` takes.

    Returns
    -------
    numpy.ndarray
        With the shape and dtype of `value`; a NumPy array is returned as it is.

    Raises
    ------
    CallError
        If `value` is no array data.
    """
    owner = home(value)
    if owner is None:
        return host_array(value)
    if owner in lost:
        _context(owner.name)  # raises
    owned: Any = value
    out = np.empty(owned.shape, _numpy_dtype(owned.dtype))
    if out.size:
        owner.memory.get(value, out)
    return out


def _numpy_dtype(dtype: Any) -> np.dtype[Any]:
    # Libraries with dtypes of their own print them as ``library.float32``.
    is_numpy = isinstance(dtype, np.dtype)
    return np.dtype(dtype if is_numpy else str(dtype).rpartition(".")[2])


def host_array(value: Any) -> np.ndarray[Any, Any]:
    """Take host data as a NumPy array, without a copy where it is an array already.

    Parameters
    ----------
    value : array-like
        Anything `numpy.asarray` takes, or a DLPack tensor on the CPU.

    Raises
    ------
    CallError
        If `value` is no array data.
    """
    if isinstance(value, np.ndarray):
        return value
    try:
        taken = np.from_dlpack(value) if _is_cpu_tensor(value) else np.asarray(value)
    except Exception as error:
        raise CallError(
            f"a value of type {type(value).__name__} cannot be taken as an array: "
            f"{discovery.describe(error)}"
        ) from error
    if taken.dtype.hasobject:
        raise CallError(
            f"a value of type {type(value).__name__} cannot be taken as an array of numbers: NumPy "
            "makes an array of objects of it. Give numbers of one type and rows of one length"
        )
    return taken


def _is_cpu_tensor(value: Any) -> bool:
    return (
        not isinstance(value, np.generic)
        and hasattr(value, "__dlpack__")
        and hasattr(value, "__dlpack_device__")
        and value.__dlpack_device__()[0] == _DLPACK_CPU
    )
