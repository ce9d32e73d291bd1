"""Operations whose implementations run on different devices."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

import turnout as tn
from turnout import Mutable, Scalar

pytestmark = pytest.mark.filterwarnings("ignore::turnout.PerformanceWarning")


@tn.kernel
def double(x: Scalar, out: Mutable[Scalar]):
    out = x + x


@pytest.fixture
def doubled(gpu: types.ModuleType) -> Any:
    """One kernel for each device, one for a backend that nobody has, and a plain function."""

    @tn.perf_dispatch(repeat_after_seconds=0)
    def doubled(x: Any, out: Any) -> None: ...

    for device in ("gpu:0", "gpu:1", "tiny", "reference", "nobody"):
        doubled.register(name=device.replace(":", "."))(double.on(device))

    @doubled.register(
        is_compatible=lambda x, out: isinstance(x, np.ndarray) or "not on the host",
        mutates=("out",),
    )
    def numpy(x: Any, out: Any) -> None:
        np.add(x, x, out=out)

    return doubled


def tried(operation: Any, *arguments: Any) -> set[str]:
    return set(operation.decision(*arguments).samples)


def run_until_decided(operation: Any, x: Any, make_out: Any) -> Any:
    for _ in range(40):
        operation(x, out := make_out())
        assert tn.to_numpy(out).tolist() == [2.0 * i for i in range(50)]
    return out


def test_host_arrays_race_everywhere_but_where_they_cannot_run(doubled: Any) -> None:
    x = np.arange(50.0)
    out = run_until_decided(doubled, x, lambda: np.zeros(50))
    # `tiny` has no float64, `nobody` does not exist.
    assert tried(doubled, x, out) == {"gpu.0", "gpu.1", "reference", "numpy"}


@pytest.mark.parametrize("device", ["gpu:0", "gpu:1"])
def test_device_arrays_stay_on_their_device(
    doubled: Any, gpu: types.ModuleType, device: str
) -> None:
    x = tn.array(np.arange(50.0), device=device)
    out = run_until_decided(doubled, x, lambda: tn.array(np.zeros(50), device=device))
    decision = doubled.decision(x, out)
    assert decision.chosen == device.replace(":", ".")
    assert set(decision.samples) == {decision.chosen}
    assert not any("launch" in entry and device not in entry for entry in gpu.log)


def test_the_clock_of_the_device_decides(gpu: types.ModuleType) -> None:
    @tn.perf_dispatch(repeat_after_seconds=0)
    def doubled(x: Any, out: Any) -> None: ...

    @doubled.register(mutates=("out",))
    def twice(x: Any, out: Any) -> None:
        double(x, out)
        double(x, out)

    doubled.register(name="once")(double)
    x = tn.array(np.arange(50.0), device="gpu:1")
    out = run_until_decided(doubled, x, lambda: tn.array(np.zeros(50), device="gpu:1"))
    decision = doubled.decision(x, out)
    assert decision.chosen == "once"
    assert set(decision.samples["once"]) == {150}
    assert set(decision.samples["twice"]) == {300}


def test_wrong_placement_of_the_caller_is_the_callers_and_disqualifies_nobody(
    doubled: Any, gpu: types.ModuleType
) -> None:
    x, out = (tn.array(np.arange(50.0), device=device) for device in ("gpu:0", "gpu:1"))
    for _ in range(3):
        with pytest.raises(tn.PlacementError, match="has arrays elsewhere: argument 'x'"):
            doubled(x, out)


def test_no_trial_starts_while_work_is_captured(doubled: Any, gpu: types.ModuleType) -> None:
    x, out = (tn.array(np.arange(50.0), device="gpu:0") for _ in range(2))
    gpu.captured.add(0)
    for _ in range(10):
        doubled(x, out)
    assert doubled.decision(x, out) is None or not doubled.decision(x, out).samples
    gpu.captured.clear()
    run_until_decided(doubled, x, lambda: tn.array(np.zeros(50), device="gpu:0"))
    assert doubled.decision(x, out).chosen == "gpu.0"
