"""How the tests of the CPU backend compile and run a unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import turnout_cpu
from turnout.plugin import Device, Options, ir


@pytest.fixture(scope="session")
def device() -> Device:
    return turnout_cpu.turnout_devices()[0]


@pytest.fixture(scope="session")
def load(device: Device) -> Callable[..., Any]:
    """Compile a unit with these options and load it."""

    def load(unit: ir.Unit, **options: Any) -> Any:
        binary = turnout_cpu.turnout_compile(unit, device.target, Options(**options))
        return turnout_cpu.turnout_launch(binary, unit)

    return load
