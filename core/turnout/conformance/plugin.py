"""The pytest plugin of the conformance suite: which devices are tested, and the last line.

It is loaded by name, ``-p turnout.conformance.plugin``. There is no entry point for it, so that
installing turnout loads nothing into other people's runs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

import turnout as tn
from turnout.plugin import BackendError, Device, Unavailable

from .device import DeviceUnderTest

_DEVICE = "turnout_device"


@dataclass(frozen=True)
class Missing:
    """Stands in for the devices of a backend that cannot be used here."""

    name: str
    error: Unavailable | BackendError

    def __str__(self) -> str:
        return self.name


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `turnout check`."""
    group = parser.getgroup("turnout", "turnout conformance")
    group.addoption(
        "--turnout-backend", metavar="NAME", help="the backend to test, for example cpu"
    )
    group.addoption(
        "--turnout-device-index",
        metavar="N",
        type=int,
        help="test device N of the backend only; all of its devices when not given",
    )
    group.addoption(
        "--turnout-allow-missing",
        action="store_true",
        help="skip instead of fail where the backend has no hardware here",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the object that counts."""
    config.addinivalue_line(
        "markers", "needs(capability, ...): skipped on devices that do not declare it"
    )
    config.pluginmanager.register(_Tally(config), "turnout_conformance_tally")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test of the suite on each device."""
    if "device" in metafunc.fixturenames and metafunc.module.__name__.startswith(__package__):
        tested = _tested(metafunc.config)
        metafunc.parametrize("device", tested, indirect=True, ids=[str(each) for each in tested])


@pytest.hookimpl(trylast=True)  # after -k and -m have chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let one test speak for all where there is no device: they all have the same to say."""
    on_missing = [item for item in items if isinstance(_parameter(item), Missing)]
    if len(on_missing) > 1:
        left_out = set(on_missing[1:])
        config.hook.pytest_deselected(items=on_missing[1:])
        items[:] = [item for item in items if item not in left_out]


def _parameter(item: pytest.Item) -> object:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("device") if callspec else None


def _tested(config: pytest.Config) -> Sequence[Device | Missing]:
    name = config.getoption("--turnout-backend")
    index = config.getoption("--turnout-device-index")
    if not name:
        raise pytest.UsageError(
            f"give --turnout-backend NAME; installed are {', '.join(tn.backends())}"
        )
    try:
        devices = tn.devices(name)
    except (Unavailable, BackendError) as error:
        return [Missing(name, error)]
    if index is None:
        return devices
    if not 0 <= index < len(devices):
        listed = ", ".join(f"{device} ({device.label})" for device in devices)
        reason = f"backend {name!r} has no device {index}; its devices are: {listed}"
        return [Missing(f"{name}:{index}", Unavailable(reason, "name one of these"))]
    return [devices[index]]


@pytest.fixture
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> DeviceUnderTest:
    """The device that a test runs on; skips what the device declares not to be able to."""
    given = request.param
    request.node.user_properties.append((_DEVICE, str(given)))
    if isinstance(given, Missing):
        allowed = request.config.getoption("--turnout-allow-missing")
        if allowed and isinstance(given.error, Unavailable):
            pytest.skip(f"{given} is not available: {given.error}")
        pytest.fail(f"{given} cannot be tested: {given.error}", pytrace=False)
    for marker in request.node.iter_markers("needs"):
        for capability in marker.args:
            if capability not in given.target.features:
                pytest.skip(f"no {capability}")
    # What the backend compiles now is tested, not what an earlier version of it left on the disk.
    monkeypatch.setenv("TURNOUT_CACHE", "off")
    return DeviceUnderTest(given)


class _Tally:
    """Counts results per device and writes them as the last lines of the output."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.reasons: dict[str, Counter[str]] = defaultdict(Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        device = dict(report.user_properties).get(_DEVICE)
        if not isinstance(device, str) or (report.when != "call" and report.passed):
            return
        self.outcomes[device][report.outcome] += 1
        if report.skipped and isinstance(report.longrepr, tuple):
            self.reasons[device][report.longrepr[2].removeprefix("Skipped: ")] += 1

    def pytest_unconfigure(self) -> None:
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None:
            return
        labels = {str(device): f"{device} {device.label}" for device in tn.devices()}
        for device, outcomes in self.outcomes.items():
            results = summary(outcomes, self.reasons[device])
            reporter.write_line(f"conformance {labels.get(device, device)}: {results}")


def summary(outcomes: Counter[str], reasons: Counter[str]) -> str:
    """The results in words: ``118 passed, 3 skipped (no f16)``."""
    parts = [f"{outcomes['passed']} passed"]
    if outcomes["failed"]:
        parts.append(f"{outcomes['failed']} failed")
    if outcomes["skipped"]:
        single = len(reasons) == 1
        listed = ", ".join(
            reason if single else f"{count} {reason}" for reason, count in reasons.most_common()
        )
        parts.append(f"{outcomes['skipped']} skipped ({listed})")
    return ", ".join(parts)
