"""What users set when they make an operation, checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from .errors import ConfigurationError
from .records import record
from .trials import TrialPlan
from .tuning import Clock, Timer
from .verification import Verification, verification
from .written import Mutates


@record
class Settings:
    """What `turnout.perf_dispatch` was given besides the prototype.

    Attributes
    ----------
    get_geometry_hash : callable or None
    plan : TrialPlan
    max_geometries : int
    timer : Timer or None
    clock : Clock
    mutates : iterable of str, mapping, or None
        Checked when the prototype is known.
    verification : Verification
    check : callable or None
    """

    get_geometry_hash: Callable[..., Hashable] | None
    plan: TrialPlan
    max_geometries: int
    timer: Timer | None
    clock: Clock
    mutates: Mutates | None
    verification: Verification
    check: Callable[..., object] | None = None


def settings(
    get_geometry_hash: Callable[..., Hashable] | None,
    plan: TrialPlan,
    max_geometries: int = 1024,
    timer: Timer | None = None,
    clock: Clock = time.monotonic,
    mutates: Mutates | None = None,
    verify: Any = "never",
    reference: str | None = None,
    tolerances: Mapping[Any, Any] | None = None,
    check: Callable[..., object] | None = None,
) -> Settings:
    """Check what does not depend on the prototype.

    Raises
    ------
    ConfigurationError
        When a value is not allowed.
    """
    for name, value in (("timer", timer), ("clock", clock)):
        if value is not None and not callable(value):
            raise ConfigurationError(f"{name}={value!r} is not allowed: give a function")
    checked = verification(verify, reference, tolerances)
    return Settings(get_geometry_hash, plan, max_geometries, timer, clock, mutates, checked, check)
