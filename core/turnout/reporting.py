"""What ``turnout report`` shows, as data."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from .decisions import current
from .records import record
from .store import Entry, Measurement


@record
class ReportedImplementation:
    """What was measured of one implementation.

    Attributes
    ----------
    name : str
    median_ns : float
        Of its recent samples.
    fastest_ns, slowest_ns : int
        The recent samples lie between these.
    recent_samples : int
        How many samples these figures rest on.
    all_samples : int
        How many there ever were.
    measured_at : int
        When the latest one was stored, in seconds since 1970 (UTC).
    is_chosen : bool
        Whether it was in use when the latest sample was stored; it wins until others prove faster.
    """

    name: str
    median_ns: float
    fastest_ns: int
    slowest_ns: int
    recent_samples: int
    all_samples: int
    measured_at: int
    is_chosen: bool


@record
class ReportedCase:
    """One operation, geometry and device, with its implementations; the fastest comes first."""

    operation: str
    geometry: str
    device: str
    hardware: str
    versions: str
    chosen: str
    implementations: tuple[ReportedImplementation, ...]


def report(entries: Iterable[Entry]) -> list[ReportedCase]:
    """Describe the measurements that count now.

    Parameters
    ----------
    entries : iterable of Entry
        From `turnout.store.TuningStore.entries`.

    Returns
    -------
    list of ReportedCase
        By operation, geometry (small numbers first) and device.
    """
    return sorted((_reported(entry) for entry in current(entries)), key=_order)


def _reported(entry: Entry) -> ReportedCase:
    implementations = [_reported_implementation(entry, each) for each in entry.measurements]
    return ReportedCase(
        entry.key.operation,
        entry.key.geometry,
        entry.key.device,
        entry.key.hardware,
        entry.key.versions,
        entry.chosen,
        tuple(sorted(implementations, key=lambda each: (each.median_ns, each.name))),
    )


def _reported_implementation(entry: Entry, measurement: Measurement) -> ReportedImplementation:
    from statistics import median

    samples_ns = measurement.samples_ns
    return ReportedImplementation(
        measurement.implementation,
        float(median(samples_ns)),
        min(samples_ns),
        max(samples_ns),
        len(samples_ns),
        measurement.count,
        measurement.measured_at,
        measurement.implementation == entry.chosen,
    )


def _order(case: ReportedCase) -> tuple[str, list[Any], str, str]:
    numbers_and_text = re.split(r"(\d+)", case.geometry)
    geometry = [int(part) if part.isdecimal() else part for part in numbers_and_text]
    return case.operation, geometry, case.device, case.hardware
