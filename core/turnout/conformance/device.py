"""What tests do with a device: run kernels on it, and call its backend's hooks."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import turnout as tn
from turnout.backends import backend
from turnout.plugin import Binary, Device, Launcher, Options, ir

Array = NDArray[Any]


@dataclass(frozen=True)
class DeviceUnderTest:
    """One device of the backend that is tested."""

    device: Device

    def __str__(self) -> str:
        return str(self.device)

    def run(self, kernel: tn.Kernel, *arguments: Any, **keywords: Any) -> tuple[Array, ...]:
        """Run a kernel in place.

        Arrays are moved to the device, and back into the given arrays where it has memory of its
        own. Returns the arrays that the kernel returned.
        """
        moved = [self.put(value) for value in arguments]
        named = {name: self.put(value) for name, value in keywords.items()}
        returned = kernel(*moved, **named, device=str(self))
        tn.sync(str(self))
        given_arrays = (*arguments, *keywords.values())
        for given, value in zip(given_arrays, (*moved, *named.values()), strict=True):
            if value is not given and given.flags.writeable:
                given[...] = tn.to_numpy(value)
        if returned is None:
            return ()
        arrays = returned if isinstance(returned, tuple) else (returned,)
        return tuple(tn.to_numpy(array) for array in arrays)

    def put(self, value: Any) -> Any:
        """An argument as the device takes it."""
        return tn.array(value, device=str(self)) if isinstance(value, np.ndarray) else value

    def call(self, kernel: tn.Kernel, *arguments: Any) -> Any:
        """Call a kernel with NumPy arrays, which a device with own memory copies."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tn.PerformanceWarning)
            returned = kernel(*arguments, device=str(self))
        tn.sync(str(self))
        return returned

    def compile(self, unit: ir.Unit, options: Options | None = None) -> Binary:
        """Compile a unit by the hook of the backend."""
        hook = backend(self.device.target.backend).hook
        binary: Binary = hook.turnout_compile(
            unit=unit, target=self.device.target, options=options or Options()
        )
        return binary

    def load(self, binary: Binary, unit: ir.Unit) -> Launcher:
        """Load a binary by the hook of the backend."""
        hook = backend(self.device.target.backend).hook
        launcher: Launcher = hook.turnout_launch(binary=binary, device=self.device, unit=unit)
        return launcher


def copied(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments with a copy of each array."""
    return tuple(a.copy() if isinstance(a, np.ndarray) else a for a in arguments)


def outcome(
    device: DeviceUnderTest, kernel: tn.Kernel, arguments: Sequence[Any]
) -> tuple[Array, ...]:
    """All arrays after a call, those of the arguments first, then the returned ones."""
    own = copied(arguments)
    returned = device.run(kernel, *own)
    return (*(a for a in own if isinstance(a, np.ndarray)), *returned)


def reference() -> DeviceUnderTest:
    """The device that the others are compared with."""
    return DeviceUnderTest(tn.devices("reference")[0])


def run_python(program: str, *arguments: str) -> str:
    """Run a program in a new interpreter that finds the same modules; returns what it prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"a new interpreter failed:\n{done.stderr}")
    return done.stdout
