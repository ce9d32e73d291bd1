"""From an entry point to a backend whose every answer was checked.

A backend's module is imported, registered with a plugin manager of its own in front of the core's
defaults, and checked against the contract of `turnout.hooks`. Whatever goes wrong in its code is a
`BackendError` that names the distribution, the hook and what is wrong; only `Unavailable`, which a
backend raises on purpose, passes through.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pluggy

from . import defaults, hooks
from .discovery import Entry, core_version, describe
from .errors import BackendError, Unavailable
from .hooks import MUST_HOOKS, PROJECT, Device, Memory, Sync, Timer

_HOOK_PREFIX = "turnout_"
_HOOK_SPECS = {
    name: function for name, function in vars(hooks).items() if name.startswith(_HOOK_PREFIX)
}


@dataclass(frozen=True, eq=False)
class Backend:
    """A loaded backend: its module is registered and keeps the plugin contract.

    Attributes
    ----------
    name, distribution, version : str
        Its name and who brings it.
    hook : pluggy.HookRelay
        Its hooks, the core's defaults behind them; call them with keywords.
    """

    name: str
    distribution: str
    version: str
    hook: pluggy.HookRelay

    @property
    def has_own_memory(self) -> bool:
        """Whether it answers ``turnout_memory`` itself, so that its arrays may be its own."""
        core_alone = 1
        return len(self.hook.turnout_memory.get_hookimpls()) > core_alone


@dataclass(frozen=True, eq=False)
class DeviceContext:
    """A device with what its backend made for it; one per device and process.

    Attributes
    ----------
    device : Device
    backend : Backend
    sync : callable
        Waits for the work this process queued on the device.
    timer : callable
        Runs a callable once and returns nanoseconds.
    memory : Memory
    is_host : bool
        Whether the device works on NumPy arrays, so that nothing has to be moved to it.
    name : str
        How the device is spelt, for example ``"cuda:1"``.
    zeros : callable
        Makes an array on the device from a shape and a dtype, full of zeros.
    interface : callable or None
        Gives the array interface of an array on the device, if the backend knows.
    bounds : callable or None
        Gives the first address of such an array and the one after its last; None unless it is
        C-contiguous and can be written.
    is_capturing : callable
        Says whether this thread records work for the device instead of running it.
    """

    device: Device
    backend: Backend
    sync: Sync
    timer: Timer
    memory: Memory
    is_host: bool
    name: str
    zeros: Callable[[tuple[int, ...], Any], Any]
    interface: Callable[[Any], dict[str, Any]] | None
    bounds: Callable[[Any], tuple[int, int] | None] | None
    is_capturing: Callable[[], bool]


def load(entry: Entry) -> Backend:
    """Import the module of a backend and register it with a plugin manager of its own.

    Parameters
    ----------
    entry : Entry
        An entry of the group ``turnout.backends``.

    Returns
    -------
    Backend
        With all hooks callable.

    Raises
    ------
    BackendError
        If the module cannot be imported or does not keep the plugin contract. Every mistake is
        listed. Nothing of it stays registered.
    Unavailable
        If the module itself raises it.
    """
    module = _import(entry)
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hooks)
    manager.register(defaults)
    mistakes = list(_mistakes(manager, module))
    if not mistakes:
        try:
            manager.register(module)
            manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            mistakes = [str(error)]
    if mistakes:
        raise BackendError(
            f"backend {entry.name!r} of {entry.owner} (module {module.__name__!r}) does not keep "
            f"the plugin contract of turnout {core_version()}:\n  " + "\n  ".join(mistakes)
        )
    return Backend(entry.name, entry.distribution, entry.version, manager.hook)


def _import(entry: Entry) -> ModuleType:
    if ":" in entry.value:
        raise BackendError(
            f"backend {entry.name!r} of {entry.owner}: its entry point is {entry.value!r}, but "
            "must be the name of a module, without a colon"
        )
    try:
        return importlib.import_module(entry.value)
    except Unavailable:
        raise
    except (Exception, SystemExit) as error:
        raise BackendError(
            f"backend {entry.name!r} of {entry.owner} cannot be imported from {entry.value!r}: "
            f"{describe(error)}"
        ) from error


def _mistakes(manager: pluggy.PluginManager, module: ModuleType) -> Iterator[str]:
    """Everything by which a module breaks the contract, in the order of its names."""
    implemented = set()
    for name in sorted(vars(module)):
        function = vars(module)[name]
        if not inspect.isroutine(function):
            continue
        options = manager.parse_hookimpl_opts(module, name)
        if options is None:
            if name.startswith(_HOOK_PREFIX) and inspect.isfunction(function):
                yield (
                    f"function {name} lacks the decorator @hookimpl{_closest_hook(name)}; names "
                    f"that start with {_HOOK_PREFIX} are for hooks"
                )
                implemented.add(name)
            continue
        hook = options.get("specname") or name
        implemented.add(hook)
        if hook not in _HOOK_SPECS:
            yield f"{hook} is not a hook of turnout{_closest_hook(hook)}"
        elif unknown := _parameters(function) - _parameters(_HOOK_SPECS[hook]):
            yield (
                f"{hook} has no argument {', '.join(sorted(unknown))}: the implementation is "
                f"{_signature(hook, function)}, the specification is "
                f"{_signature(hook, _HOOK_SPECS[hook])}"
            )
    for hook in MUST_HOOKS:
        if hook not in implemented:
            yield (
                f"{hook} is missing, every backend must implement it: "
                f"{_signature(hook, _HOOK_SPECS[hook])}"
            )


def _closest_hook(name: str) -> str:
    """Say which hook was meant; nothing where `name` is one, or resembles none."""
    import difflib  # only errors need it

    matches = difflib.get_close_matches(name, _HOOK_SPECS, n=1, cutoff=0.8)
    return f" (did you mean {matches[0]}?)" if matches and matches[0] != name else ""


def _parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)


def _signature(name: str, function: Any) -> str:
    return f"{name}({', '.join(inspect.signature(function).parameters)})"


def list_devices(backend: Backend) -> tuple[Device, ...]:
    """Ask a backend for its devices.

    Returns
    -------
    tuple of Device
        At least one, numbered from 0.

    Raises
    ------
    Unavailable
        If the backend says so.
    BackendError
        If it fails, or answers with anything but its devices.
    """
    hook = "turnout_devices"
    found = _call_hook(backend, hook)
    if not isinstance(found, Sequence) or not all(isinstance(each, Device) for each in found):
        raise _hook_error(backend, hook, f"must return a sequence of Device, not {found!r}")
    if not found:
        raise _hook_error(backend, hook, "returned no device; it must raise Unavailable instead")
    for index, device in enumerate(found):
        if device.index != index or device.target.backend != backend.name:
            problem = f"gave {device} where {backend.name}:{index} is due"
            raise _hook_error(backend, hook, problem)
    return tuple(found)


def make_context(backend: Backend, device: Device) -> DeviceContext:
    """Let a backend make the objects of one of its devices.

    Raises
    ------
    Unavailable, BackendError
        As for `list_devices`.
    """
    sync = _call_hook(backend, "turnout_sync", device=device)
    if not callable(sync):
        raise _hook_error(backend, "turnout_sync", f"must return a function, not {sync!r}")
    timer = _call_hook(backend, "turnout_timer", device=device, sync=sync)
    if not callable(timer):
        raise _hook_error(backend, "turnout_timer", f"must return a function, not {timer!r}")
    memory = _call_hook(backend, "turnout_memory", device=device)
    lacking = [each for each in ("owns", "put", "get") if not hasattr(memory, each)]
    if lacking:
        problem = f"must return a Memory, but {memory!r} has no {', '.join(lacking)}"
        raise _hook_error(backend, "turnout_memory", problem)
    interface = getattr(memory, "interface", None)
    return DeviceContext(
        device=device,
        backend=backend,
        sync=sync,
        timer=timer,
        memory=memory,
        is_host=memory.owns(np.empty(0)),
        name=str(device),
        zeros=getattr(memory, "zeros", None) or partial(_put_zeros, memory),
        interface=interface,
        bounds=getattr(memory, "bounds", None) or (interface and partial(_bounds, interface)),
        is_capturing=getattr(timer, "is_capturing", None) or _never,
    )


def _put_zeros(memory: Memory, shape: tuple[int, ...], dtype: Any) -> Any:
    return memory.put(np.zeros(shape, dtype))


def _bounds(interface: Callable[[Any], dict[str, Any]], value: Any) -> tuple[int, int] | None:
    described = interface(value)
    address, is_read_only = described["data"]
    if is_read_only or described.get("strides") is not None:
        return None
    itemsize = np.dtype(described["typestr"]).itemsize
    return address, address + math.prod(described["shape"]) * itemsize


def _never() -> bool:
    return False


def _call_hook(backend: Backend, hook: str, **arguments: Any) -> Any:
    try:
        return getattr(backend.hook, hook)(**arguments)
    except (Unavailable, BackendError):
        raise
    except (Exception, SystemExit) as error:
        raise _hook_error(backend, hook, f"raised {describe(error)}") from error


def _hook_error(backend: Backend, hook: str, problem: str) -> BackendError:
    owner = f"{backend.distribution} {backend.version}"
    return BackendError(f"backend {backend.name!r} of {owner}: {hook} {problem}")
