"""What ``turnout demo`` measures: one operation on real data, in several implementations.

For every airport find the nearest other airport and the great-circle distance to it. All
implementations share one signature, ``(latitude, longitude, nearest, distance_km)``:

latitude, longitude : float64 arrays of shape (n,), in degrees
nearest : int64 array of shape (n,), written: index of the nearest airport, the lowest one of ties
distance_km : float64 array of shape (n,), written: distance to it in kilometres

`Demo` verifies them against each other, then lets `turnout.perf_dispatch` race them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from . import math as tm
from .backends import active, array, devices, to_numpy, use
from .errors import TurnoutError
from .explain import ExplainedImplementation
from .hooks import Device
from .ir import f64, i64
from .kernel import func, kernel
from .lang import Index, Mutable, NDArray, Scalar
from .perf import PerformanceDispatcher, perf_dispatch
from .tuning import Decision, median

EARTH_RADIUS_KM = 6371.0088
RADIANS_PER_DEGREE = math.pi / 180

TILE = 256  # haversines that are computed at a time: 2 KiB, which stay in the fastest cache
LANES = 32  # candidates for the nearest airport that are followed side by side
NO_CHORD = 5.0  # more than any square of a chord: the diameter of the unit sphere is 2
FAR_AWAY = 9.0  # a coordinate outside of the unit sphere, so far that nothing is nearest to it

RELATIVE_TOLERANCE = 1e-9
REFERENCE_LIMIT = 100
"""The reference backend interprets kernels; above this many airports nobody would wait for it."""
PATIENCE_NS = 500_000_000
TOO_SLOW = f"one call takes more than {PATIENCE_NS / 1e9:g} s"
"""Why a variant on another device is not raced: each would be called a dozen times."""

Array = np.ndarray[Any, Any]

if TYPE_CHECKING:
    # What annotates a kernel is an object, which type checkers do not take for a type.
    Floats = Any
    Integers = Any
else:
    Floats = NDArray[f64, 1]
    Integers = NDArray[i64, 1]


# -- the implementations ---------------------------------------------------------------------------


def numpy_broadcasting(
    latitude: Array, longitude: Array, nearest: Array, distance_km: Array
) -> None:
    """NumPy: haversines of some rows against all columns at a time, so that memory stays small."""
    phi, lam = np.radians(latitude), np.radians(longitude)
    for rows in _blocks(len(phi)):
        across = np.sin((lam[rows, None] - lam) / 2) ** 2
        along = np.sin((phi[rows, None] - phi) / 2) ** 2
        _take_smallest(
            along + np.cos(phi[rows, None]) * np.cos(phi) * across, rows, nearest, distance_km
        )


def numpy_chords(latitude: Array, longitude: Array, nearest: Array, distance_km: Array) -> None:
    """NumPy with less work: chords between points of the unit sphere need no sine per pair."""
    phi, lam = np.radians(latitude), np.radians(longitude)
    points = np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)
    for rows in _blocks(len(phi)):
        squares = sum(((axis[rows, None] - axis) ** 2 for axis in points), np.zeros(()))
        # A haversine is the square of half the chord.
        _take_smallest(squares / 4, rows, nearest, distance_km)


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, TILE):
        yield slice(start, min(start + TILE, count))


def _take_smallest(haversines: Array, rows: slice, nearest: Array, distance_km: Array) -> None:
    own = np.arange(rows.start, rows.stop)
    haversines[own - rows.start, own] = np.inf  # no airport is its own neighbour
    nearest[rows] = haversines.argmin(axis=1)
    smallest = haversines.min(axis=1)
    distance_km[rows] = 2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(smallest))


@func
def haversine(latitude_1, longitude_1, latitude_2, longitude_2):  # type: ignore[no-untyped-def]
    """Square of half the chord between two points of the unit sphere given in degrees."""
    phi_1, phi_2 = latitude_1 * RADIANS_PER_DEGREE, latitude_2 * RADIANS_PER_DEGREE
    along = tm.sin((phi_2 - phi_1) / 2)
    across = tm.sin((longitude_2 - longitude_1) * RADIANS_PER_DEGREE / 2)
    return along * along + tm.cos(phi_1) * tm.cos(phi_2) * across * across


@func
def great_circle_km(haversine):  # type: ignore[no-untyped-def]
    """Distance along the surface of the Earth."""
    return 2 * EARTH_RADIUS_KM * tm.asin(tm.sqrt(haversine))


@kernel
def array_form(latitude: Floats, longitude: Floats, nearest: Integers, distance_km: Floats) -> None:
    """Two loops, as one would write them first."""
    for i in range(latitude.shape[0]):
        smallest = math.inf
        closest = -1
        for j in range(latitude.shape[0]):
            h = haversine(latitude[i], longitude[i], latitude[j], longitude[j])
            if h < smallest and j != i:
                smallest = h
                closest = j
        nearest[i] = closest
        distance_km[i] = great_circle_km(smallest)


@kernel
def per_sample(
    latitude: Floats,
    longitude: Floats,
    nearest: Mutable[Index],  # type: ignore[valid-type]
    distance_km: Mutable[Scalar],  # type: ignore[valid-type]
) -> None:
    """One airport is one sample, which looks all others up in the tables of coordinates."""
    i = tm.sample_index()
    smallest = math.inf
    closest = -1
    for j in range(latitude.shape[0]):
        h = haversine(latitude[i], longitude[i], latitude[j], longitude[j])
        if h < smallest and j != i:
            smallest = h
            closest = j
    nearest = closest
    distance_km = great_circle_km(smallest)


@kernel
def tiled(latitude: Floats, longitude: Floats, nearest: Integers, distance_km: Floats) -> None:
    """A tile of haversines at a time: computed in vector registers, then searched in order."""
    n = latitude.shape[0]
    for i in range(n):
        tile = tm.zeros(TILE, f64)
        smallest = math.inf
        closest = -1
        for start in range(0, n, TILE):
            width = min(TILE, n - start)
            for k in range(width):
                j = start + k
                tile[k] = haversine(latitude[i], longitude[i], latitude[j], longitude[j])
            for k in range(width):
                if tile[k] < smallest and start + k != i:
                    smallest = tile[k]
                    closest = start + k
        nearest[i] = closest
        distance_km[i] = great_circle_km(smallest)


@func
def fill_unit_vectors(latitude, longitude, x, y, z):  # type: ignore[no-untyped-def]
    """Points of the unit sphere: all sines and cosines that chords need, once per airport."""
    for i in range(latitude.shape[0]):
        phi, lam = latitude[i] * RADIANS_PER_DEGREE, longitude[i] * RADIANS_PER_DEGREE
        x[i] = tm.cos(phi) * tm.cos(lam)
        y[i] = tm.cos(phi) * tm.sin(lam)
        z[i] = tm.sin(phi)


@func
def fill_distances(latitude, longitude, nearest, distance_km):  # type: ignore[no-untyped-def]
    """The exact distance to the neighbour that was found: one haversine per airport."""
    for i in range(latitude.shape[0]):
        j = nearest[i]
        h = haversine(latitude[i], longitude[i], latitude[j], longitude[j])
        distance_km[i] = great_circle_km(h)


@kernel
def nearest_by_chord(
    latitude: Floats,
    longitude: Floats,
    x: Floats,
    y: Floats,
    z: Floats,
    nearest: Integers,
    distance_km: Floats,
) -> None:
    """Row by row: the shortest chord through the Earth leads to the nearest airport.

    `x`, `y` and `z` are room for the points of the unit sphere.
    """
    fill_unit_vectors(latitude, longitude, x, y, z)
    for i in range(latitude.shape[0]):
        shortest = NO_CHORD
        closest = -1
        for j in range(latitude.shape[0]):
            dx, dy, dz = x[j] - x[i], y[j] - y[i], z[j] - z[i]
            square = dx * dx + dy * dy + dz * dz
            if square < shortest and j != i:
                shortest = square
                closest = j
        nearest[i] = closest
    fill_distances(latitude, longitude, nearest, distance_km)


@kernel
def nearest_by_chord_in_lanes(
    latitude: Floats,
    longitude: Floats,
    x: Floats,
    y: Floats,
    z: Floats,
    nearest: Integers,
    distance_km: Floats,
) -> None:
    """Like `nearest_by_chord`, with a search that runs in vector registers.

    A search for a minimum depends from one round on the next. Here each of `LANES` lanes searches
    its own share of the columns, so a round is the same work for all lanes; at the end the best
    lane wins. The length of `x`, `y` and `z` is a multiple of `LANES`, and the elements beyond the
    airports are `FAR_AWAY`.
    """
    fill_unit_vectors(latitude, longitude, x, y, z)
    for i in range(latitude.shape[0]):
        shortest = tm.zeros(LANES, f64)
        closest = tm.zeros(LANES, i64)
        for k in range(LANES):
            shortest[k] = NO_CHORD
        for start in range(0, x.shape[0], LANES):
            for k in range(LANES):
                j = start + k
                dx, dy, dz = x[j] - x[i], y[j] - y[i], z[j] - z[i]
                square = dx * dx + dy * dy + dz * dz
                is_closer = square < shortest[k] and j != i
                shortest[k] = square if is_closer else shortest[k]
                closest[k] = j if is_closer else closest[k]
        best = 0
        for k in range(1, LANES):
            is_tie = shortest[k] == shortest[best] and closest[k] < closest[best]
            if shortest[k] < shortest[best] or is_tie:
                best = k
        nearest[i] = closest[best]
    fill_distances(latitude, longitude, nearest, distance_km)


def chords(latitude: Any, longitude: Any, nearest: Any, distance_km: Any) -> None:
    """`nearest_by_chord`, with memory for the points of the unit sphere."""
    points = _room_for_points(latitude.shape[0])
    nearest_by_chord(latitude, longitude, *points, nearest, distance_km)


def chords_in_lanes(latitude: Any, longitude: Any, nearest: Any, distance_km: Any) -> None:
    """`nearest_by_chord_in_lanes`, with memory for the points of the unit sphere."""
    points = _room_for_points(latitude.shape[0])
    nearest_by_chord_in_lanes(latitude, longitude, *points, nearest, distance_km)


def _room_for_points(count: int) -> list[Any]:
    padded_count = math.ceil(count / LANES) * LANES
    return [array(np.full(padded_count, FAR_AWAY)) for _ in range(3)]


NUMPY_IMPLEMENTATIONS = (numpy_broadcasting, numpy_chords)
KERNEL_IMPLEMENTATIONS = (array_form, per_sample, tiled, chords, chords_in_lanes)


# -- where they run --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """One implementation on one device.

    Attributes
    ----------
    name : str
        Unique; the device is part of it where that is not the active one.
    function : callable
        Takes the four arrays of the operation, as NumPy arrays.
    device : str
        Where it runs; empty for NumPy.
    is_compatible : callable or None
        As for `PerformanceDispatcher.register`.
    is_extra : bool
        Whether it runs on another device than the active one, so that the demo can do without it.
    """

    name: str
    function: Callable[..., Any]
    device: str = ""
    is_compatible: Callable[..., object] | None = None
    is_extra: bool = False

    def refusal(self, arguments: Sequence[Array]) -> str:
        """Why it does not take part for these arguments; empty where it does."""
        answer = True if self.is_compatible is None else self.is_compatible(*arguments)
        return answer if isinstance(answer, str) else ""


def variants() -> list[Variant]:
    """All implementations, on the active device and on every other one that can be used.

    Returns
    -------
    list of Variant
        NumPy first: the others are compared with it.
    """
    found = [Variant(function.__name__, function) for function in NUMPY_IMPLEMENTATIONS]
    home = active()
    for device in sorted(devices(), key=lambda each: each != home.device):
        is_extra = device != home.device
        for function in KERNEL_IMPLEMENTATIONS:
            suffix = f"@{device.target.backend}.{device.index}" if is_extra else ""
            runs_as_it_is = home.is_host and not is_extra
            found.append(
                Variant(
                    function.__name__ + suffix,
                    function if runs_as_it_is else on_device(function, str(device)),
                    str(device),
                    _restriction(device),
                    is_extra,
                )
            )
    return found


def on_device(function: Callable[..., Any], device: str) -> Callable[..., None]:
    """`function` on a device, with the copies of arrays there and back.

    The device is text, so that later processes recognise the implementation.
    """

    def pinned(latitude: Array, longitude: Array, nearest: Array, distance_km: Array) -> None:
        with use(device):
            there = [array(a) for a in (latitude, longitude, nearest, distance_km)]
            function(*there)
            nearest[...] = to_numpy(there[2])
            distance_km[...] = to_numpy(there[3])

    return pinned


def _restriction(device: Device) -> Callable[..., object] | None:
    if "f64" not in device.target.features:
        return lambda latitude, longitude, nearest, distance_km: "the device has no float64"
    if device.target.backend != "reference":
        return None
    return lambda latitude, longitude, nearest, distance_km: (
        latitude.shape[0] <= REFERENCE_LIMIT
        or f"the reference interprets kernels: up to {REFERENCE_LIMIT} airports only"
    )


# -- data ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Airports:
    """The data that ships with turnout, one entry per airport.

    Attributes
    ----------
    names : tuple of str
        For people: code, name, city and state.
    latitude, longitude : numpy.ndarray
        float64 of shape (n,), in degrees, north and east positive.
    """

    names: tuple[str, ...]
    latitude: Array
    longitude: Array

    def arguments(self, count: int) -> tuple[Array, Array, Array, Array]:
        """Arguments of the operation for the first `count` airports; the outputs are poisoned."""
        return (
            self.latitude[:count],
            self.longitude[:count],
            np.full(count, -1),
            np.full(count, np.nan),
        )


def load_airports() -> Airports:
    """Read the airports.

    Returns
    -------
    Airports
        3,376 of them.
    """
    text = resources.files(__package__).joinpath("data", "airports.csv").read_text("utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    return Airports(
        tuple(_full_name(row) for row in rows),
        np.array([float(row["latitude"]) for row in rows]),
        np.array([float(row["longitude"]) for row in rows]),
    )


def _full_name(row: dict[str, str]) -> str:
    place = [row[column] for column in ("city", "state") if row[column] != "NA"]
    return ", ".join([f"{row['name']} ({row['iata']})", *place])


# -- verify and race -------------------------------------------------------------------------------


class WrongResultError(TurnoutError):
    """Two implementations of the operation disagree."""


@dataclass(frozen=True)
class Measured:
    """One implementation for one number of airports.

    Attributes
    ----------
    name, device : str
        As in `Variant`.
    samples_ns : tuple of int
        Elapsed nanoseconds of its timed calls; empty where it was not measured.
    is_chosen : bool
        Whether the operation runs it from now on.
    why : str
        Why it was chosen, or was not.
    """

    name: str
    device: str
    samples_ns: tuple[int, ...]
    is_chosen: bool
    why: str

    @property
    def median_ns(self) -> float | None:
        """Median of the samples."""
        return median(self.samples_ns) if self.samples_ns else None


@dataclass(frozen=True)
class Race:
    """What was decided for one number of airports."""

    airports: int
    chosen: str
    reason: str
    measured: tuple[Measured, ...]

    def speed_against_numpy(self, measured: Measured) -> float | None:
        """How many times as fast as NumPy broadcasting."""
        numpy_ns = self.measured[0].median_ns
        own_ns = measured.median_ns
        return numpy_ns / own_ns if numpy_ns and own_ns else None


@dataclass(frozen=True)
class Neighbours:
    """One airport, its nearest neighbour, and how far that is."""

    airport: str
    nearest: str
    distance_km: float


class Demo:
    """Verifies the implementations, then races them.

    Parameters
    ----------
    airports : Airports
    counts : sequence of int
        The geometries: how many of the airports, at least 2 each.
    timed_calls : int
        Of each implementation and geometry.
    advance : callable
        Told after every call how much work it was, of `total_work` in all.
    """

    warm_up_calls = 1  # the verification was one already

    def __init__(
        self,
        airports: Airports,
        counts: Sequence[int],
        timed_calls: int,
        advance: Callable[[int], object] = lambda work: None,
    ) -> None:
        self.airports = airports
        self.counts = tuple(counts)
        self.advance = advance
        self.variants = variants()
        self.left_out: dict[str, str] = {}
        self._timed_calls = timed_calls
        self._too_slow: set[tuple[str, int]] = set()

    @property
    def total_work(self) -> int:
        """The work of all calls: pairs of airports."""
        calls = 1 + self.warm_up_calls + self._timed_calls
        return sum(
            calls * count * count
            for count in self.counts
            for variant in self.variants
            if not variant.refusal(self.airports.arguments(count))
        )

    def verify(self) -> None:
        """Compare what all implementations give.

        An implementation that raises on a device that is not the active one is left out, with the
        reason in `left_out`.

        Raises
        ------
        WrongResultError
            Where one gives another result than NumPy.
        """
        for count in self.counts:
            expected = self.airports.arguments(count)
            self.variants[0].function(*expected)
            self.advance(count * count)
            for variant in self.variants[1:]:
                self._verify(variant, count, expected)
        self.variants = [v for v in self.variants if v.name not in self.left_out]

    def _verify(self, variant: Variant, count: int, expected: Sequence[Array]) -> None:
        arguments = self.airports.arguments(count)
        if variant.name in self.left_out or variant.refusal(arguments):
            return
        try:
            if count == self.counts[0]:  # compiles, which is not to be timed
                variant.function(*self.airports.arguments(2))
            begin_ns = perf_counter_ns()
            variant.function(*arguments)
            elapsed_ns = perf_counter_ns() - begin_ns
        except TurnoutError as error:
            if not variant.is_extra:
                raise
            self.left_out[variant.name] = str(error)
            return
        self.advance(count * count)
        if variant.is_extra and elapsed_ns > PATIENCE_NS:
            self._too_slow.add((variant.name, count))
            self.advance((self.warm_up_calls + self._timed_calls) * count * count)
        problem = disagreement(arguments, expected)
        if problem:
            raise WrongResultError(
                f"the implementation {variant.name!r} disagrees with {self.variants[0].name!r} for "
                f"{count} airports: {problem}"
            )

    def operation(self) -> PerformanceDispatcher[..., None]:
        """The operation, with every implementation registered."""

        @perf_dispatch(
            warmup=self.warm_up_calls,
            active=self._timed_calls,
            repeat_after_seconds=0,
            # For what installed packages add, which `verify` does not know.
            verify="once",
            mutates={"nearest": "output", "distance_km": "output"},
            reference=self.variants[0].name,
        )
        def nearest_neighbours(
            latitude: Array, longitude: Array, nearest: Array, distance_km: Array
        ) -> None: ...

        for variant in self.variants:
            register = nearest_neighbours.register(
                name=variant.name, is_compatible=self._compatibility(variant)
            )
            register(variant.function)
        return nearest_neighbours

    def _compatibility(self, variant: Variant) -> Callable[..., object] | None:
        """What `verify` learned of a variant besides what it says itself."""
        if not variant.is_extra:
            return variant.is_compatible

        def is_compatible(
            latitude: Array, longitude: Array, nearest: Array, distance_km: Array
        ) -> object:
            refusal = variant.refusal((latitude, longitude, nearest, distance_km))
            is_too_slow = (variant.name, latitude.shape[0]) in self._too_slow
            return refusal or (TOO_SLOW if is_too_slow else True)

        return is_compatible

    def race(self) -> list[Race]:
        """Call the operation until each geometry is decided; one result per geometry."""
        operation = self.operation()
        return [self._race(operation, count) for count in self.counts]

    def _race(self, operation: PerformanceDispatcher[..., None], count: int) -> Race:
        arguments = self.airports.arguments(count)
        explained, is_decided = operation.explain(*arguments), False
        while not is_decided:
            before = explained.implementations
            operation(*arguments)
            explained = operation.explain(*arguments)
            # A choice may rest on what earlier processes measured, while others are to be tried.
            has_tried = explained.implementations != before
            is_decided = explained.chosen is not None and not has_tried
            if has_tried:
                self.advance(count * count)
        decision = operation.decision(*arguments)
        assert decision is not None  # as after every call
        devices = {variant.name: variant.device for variant in self.variants}
        # Not the variants alone: installed packages may have added implementations.
        measured = tuple(
            _measured(each, decision, devices.get(each.name, ""))
            for each in explained.implementations
        )
        return Race(count, str(decision.chosen), decision.reason, measured)

    def extremes(self) -> tuple[Neighbours, Neighbours]:
        """The two airports closest to each other, and the one furthest from any other."""
        count = max(self.counts)
        arguments = self.airports.arguments(count)
        self.variants[0].function(*arguments)
        _, _, nearest, distance_km = arguments
        names = self.airports.names

        def neighbours(i: int) -> Neighbours:
            return Neighbours(names[i], names[nearest[i]], float(distance_km[i]))

        return neighbours(int(distance_km.argmin())), neighbours(int(distance_km.argmax()))


def _measured(each: ExplainedImplementation, decision: Decision, device: str) -> Measured:
    samples_ns = decision.samples.get(each.name, ())
    if each.is_chosen:
        why = decision.reason
    elif samples_ns:
        fastest_ns = median(decision.samples[str(decision.chosen)])
        why = f"takes {median(samples_ns) / fastest_ns:.2f} times as long"
    else:
        why = each.refusal or f"not measured: {decision.reason}"
    return Measured(each.name, device, samples_ns, each.is_chosen, why)


def disagreement(arguments: Sequence[Array], expected: Sequence[Array]) -> str:
    """How two results of the operation differ; empty where they agree.

    Distances agree within `RELATIVE_TOLERANCE`. Neighbours agree if they are the same, or so nearly
    at the same distance that rounding decides between them.

    Parameters
    ----------
    arguments, expected : sequences of four arrays
        Arguments of the operation after a call of the implementation under test, and of another.
    """
    latitude, longitude, nearest, distance_km = arguments
    _, _, expected_nearest, expected_km = expected
    is_far = ~np.isclose(distance_km, expected_km, rtol=RELATIVE_TOLERANCE, atol=0)
    if is_far.any():
        i = int(is_far.argmax())
        return (
            f"distance_km[{i}] is {float(distance_km[i])!r}, not {float(expected_km[i])!r} "
            f"({int(is_far.sum())} of {is_far.size} differ)"
        )
    for i in np.flatnonzero(nearest != expected_nearest).tolist():
        j = int(nearest[i])
        problem = f"nearest[{i}] is {j}, not {expected_nearest[i]}"
        if j == i or not 0 <= j < nearest.size:
            return problem
        own_km = great_circle_km(haversine(latitude[i], longitude[i], latitude[j], longitude[j]))
        if not np.isclose(own_km, expected_km[i], rtol=RELATIVE_TOLERANCE, atol=0):
            return f"{problem}, which is {float(own_km - expected_km[i]):.6g} km nearer"
    return ""
