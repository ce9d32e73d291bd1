"""What code of a bundle can be compiled for, by the names that users give."""

from __future__ import annotations

import re

from .backends import backend, backends, devices
from .errors import BundleError, Unavailable
from .hooks import Device, Target
from .loading import Backend

_FORM = re.compile(r"[A-Za-z0-9_]+(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")

_CAPABILITIES = frozenset({"f64", "bounds"})
"""What is taken for granted of hardware that is not here."""


def find_target(name: object) -> tuple[Target, Backend, bool]:
    """Find out what a user wants code for.

    Parameters
    ----------
    name : str
        A backend, such as ``"cpu"``: its first device here; where there is none, any device. Or a
        backend and what it calls an architecture: ``"cpu:x86-64-v3"``, ``"cuda:sm_90"``.

    Returns
    -------
    Target
    Backend
    bool
        Whether it has a device here.

    Raises
    ------
    BundleError
        Where there is no such target; the message lists what there is.
    """
    if not isinstance(name, str) or not _FORM.fullmatch(name):
        raise BundleError(
            f"{name!r} is no target; give a backend, or a backend and an architecture, such as "
            f"'cpu', 'cpu:x86-64-v3' or 'cuda:sm_90'. {_installed()}"
        )
    backend_name, _, wanted = name.partition(":")
    try:
        found = backend(backend_name)
    except Unavailable as error:
        raise BundleError(f"target {name!r}: {error}") from None
    device = _first_device(backend_name)
    if not wanted:
        unknown = Target(backend_name, "", _CAPABILITIES)
        return (device.target, found, True) if device else (unknown, found, False)
    if device is None or not device.profiles:
        return Target(backend_name, wanted, _CAPABILITIES), found, device is not None
    if wanted not in device.profiles:
        allowed = ", ".join(repr(f"{backend_name}:{each}") for each in device.profiles)
        raise BundleError(
            f"target {name!r}: backend {backend_name!r} has no such architecture here; give "
            f"{backend_name!r} for this machine, or {allowed}"
        )
    return device.profiles[wanted], found, True


def _first_device(backend_name: str) -> Device | None:
    try:
        return devices(backend_name)[0]
    except Unavailable:
        return None  # code is compiled without hardware


def _installed() -> str:
    return f"Installed are the backends {', '.join(map(repr, backends()))}"
