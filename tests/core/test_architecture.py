"""When a backend is called: the exact order of all seven hooks in one session."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, Scalar

from .fake_plugins import Site

RECORDING_BACKEND = """
from turnout import reference
from turnout.plugin import Device, Target, hookimpl, statements, ir

calls = []

@hookimpl
def turnout_devices():
    calls.append("devices")
    return [Device(0, "recording", Target("recording", "numpy"))]

@hookimpl
def turnout_compile(unit, target, options):
    calls.append(f"compile {unit.name}")
    assert not any(isinstance(s, ir.Dispatch) for s in statements(unit.body.body))
    return reference.turnout_compile(unit)

@hookimpl
def turnout_launch(binary, device, unit):
    calls.append(f"launch {binary.entry}")
    launcher = reference.turnout_launch(unit)
    def recorded(args, size):
        calls.append(f"run {unit.name} {size}")
        launcher(args, size)
    recorded.direct = None
    return recorded

@hookimpl
def turnout_sync(device):
    calls.append("sync")
    return lambda: calls.append("wait")

@hookimpl
def turnout_timer(device, sync):
    calls.append("timer")
    def timer(work):
        sync()
        work()
        sync()
        return 7
    return timer

@hookimpl
def turnout_memory(device):
    calls.append("memory")
    from turnout import defaults
    return defaults.turnout_memory(device)

@hookimpl
def turnout_lower_dispatch(unit, site, policy, target):
    calls.append(f"lower {site.name} {policy}")
"""


@tn.kernel
def steps(regime: Index, x: Scalar, y: Mutable[Scalar]):
    y = tm.dispatch(regime, [x, 2 * x], policy="predicated")


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("TURNOUT_CACHE", "off")
    site = Site(tmp_path / "site", monkeypatch)
    site.install_backend("recording", RECORDING_BACKEND)
    import dist_recording_module

    return dist_recording_module.calls  # type: ignore[no-any-return]


def test_the_order_of_the_hooks(recording: list[str]) -> None:
    regime, x, y = np.array([0, 1, 1]), np.array([1.0, 2.0, 3.0]), np.zeros(3)
    with tn.use("recording"):
        assert recording == ["devices", "sync", "timer", "memory"]
        recording.clear()

        steps(regime, x, y)
        assert recording == [
            "lower dispatch0 predicated",
            "compile steps",
            "launch steps",
            "run steps 3",
        ]
        recording.clear()

        # Nothing on the path of a repeated call goes through a hook.
        steps(regime, x, y)
        assert recording == ["run steps 3"]
        recording.clear()

        # Other types are another unit.
        steps(regime, x.astype(np.float32), y.astype(np.float32))
        assert recording == [
            "lower dispatch0 predicated",
            "compile steps",
            "launch steps",
            "run steps 3",
        ]
        recording.clear()

        tn.sync()
        assert recording == ["wait"]
        recording.clear()

        assert tn.timer()(lambda: steps(regime, x, y)) == 7
        assert recording == ["wait", "run steps 3", "wait"]
    np.testing.assert_array_equal(y, [1.0, 4.0, 6.0])
