"""The backend ``example``: a device of its own whose code is run by turnout's reference.

The two hooks that are imported here become this module's own, because turnout takes every hook that
it finds in the module.
"""

from __future__ import annotations

from collections.abc import Sequence

from turnout.plugin import Device, Target, hookimpl
from turnout.reference import turnout_compile, turnout_launch

__all__ = ["turnout_compile", "turnout_devices", "turnout_launch"]

FEATURES = frozenset({"f64", "correct_rounding", "bounds"})


@hookimpl
def turnout_devices() -> Sequence[Device]:
    target = Target(backend="example", arch="loopback", features=FEATURES)
    return [Device(index=0, label="loopback to the reference", target=target)]
