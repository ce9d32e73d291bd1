"""What an operation takes over from earlier processes, and leaves to later ones.

Measurements go to `turnout.store` under the operation's name with its module, the device of the
call, and a geometry that means the same in every process: the operation's own one if it is made of
plain values, else the default one and the values of all integers. With ``TURNOUT_TUNING=fixed``
nothing is measured, and `turnout.decisions` says what runs.

Reading and writing take a small share of the time at most, even where every call has another
geometry: all geometries of an operation are read at once, and what is decided in quick succession
is written together.
"""

from __future__ import annotations

import atexit
import inspect
import os
import threading
import time
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from .backends import context_for
from .compatibility import Implementation
from .decisions import FixedChoices, fixed_choices, format_time
from .geometry import leaves
from .identity import canonical_geometry, measurement_key
from .loading import DeviceContext
from .signatures import generate_geometry
from .store import Addition, Entry, MeasurementKey, TuningStore, default_store, remembered
from .tuning import Case, Decision, Known

_SECONDS_BETWEEN_WRITES = 60.0
"""How often new samples are stored where they change nothing about the choice."""
_SECONDS_BETWEEN_READS = 1.0
"""How long what was read counts as all there is."""
_WRITING_SHARE = 0.05
"""The greatest share of the time that writing may take."""


@dataclass
class _Kept:
    """Of one geometry what was stored last, and what was measured since then."""

    chosen: str | None = None
    stored_at_s: float = 0.0
    pending: dict[str, list[int]] = field(default_factory=dict)


class Memory:
    """The measurements of one operation in the store.

    Parameters
    ----------
    operation : str
        With its module.
    signature : inspect.Signature
    max_geometries : int
        How many geometries are followed; the one stored longest ago makes room.
    """

    def __init__(self, operation: str, signature: inspect.Signature, max_geometries: int) -> None:
        self._operation = operation
        self._default_geometry = generate_geometry(signature)
        self._max_geometries = max_geometries
        self._kept: dict[Hashable, _Kept] = {}
        self._fixed: FixedChoices | None = None
        self._recalls = True
        self._store: TuningStore | None = None
        self._read: dict[MeasurementKey, Entry] = {}
        self._read_at_s = 0.0

    def prepare(self, names: tuple[str, ...]) -> list[str]:
        """Read what ``TURNOUT_TUNING`` fixes; return what is wrong with it, for warnings.

        Parameters
        ----------
        names : tuple of str
            All registered implementations.

        Raises
        ------
        ConfigurationError
            When the variable is malformed, or its file cannot be used.
        """
        self._fixed = fixed_choices()
        unknown = [] if self._fixed is None else self._fixed.unknown(self._operation, names)
        return [
            f"TURNOUT_TUNING fixes the implementation {name!r}, which does not exist; the "
            f"available ones are {list(names)}; where it is fixed the first compatible one runs"
            for name in unknown
        ]

    def fixed(
        self, case: Case[Implementation], bound: inspect.BoundArguments
    ) -> Implementation | None:
        """Return what runs where nothing is measured; None where the operation measures.

        Parameters
        ----------
        case : Case
        bound : inspect.BoundArguments
            All arguments of the call, defaults applied.
        """
        if self._fixed is None:
            return None
        by_name = {each.name: each for each in case.candidates}
        text, context = self._geometry(case, bound), _context(bound)
        device = str(context.device)
        chosen = self._fixed.choice(self._operation, text, device, by_name)
        return case.candidates[0] if chosen is None else by_name[chosen]

    def recall(self, case: Case[Implementation], bound: inspect.BoundArguments) -> Known | None:
        """Return what earlier processes measured of the case's candidates."""
        key = self._key(case, bound) if self._recalls else None
        if key is None:
            return None
        found = remembered(self._stored(key), key, _digests(case))
        if not found.samples_ns:
            return None
        origin = f"measured by earlier processes, last at {format_time(found.measured_at)}"
        self._follow(case.geometry).chosen = found.chosen
        return Known(found.samples_ns, found.chosen, origin)

    def recall_nothing(self) -> None:
        """Take nothing over from now on, because everything is to be measured again."""
        self._recalls = False
        self._kept = {}

    def keep(
        self, case: Case[Implementation], bound: inspect.BoundArguments, decision: Decision
    ) -> None:
        """Store what was measured for a decision, now or together with later ones."""
        kept = self._follow(case.geometry)
        for name, samples in decision.new_samples.items():
            kept.pending.setdefault(name, []).extend(samples)
        now_s = time.monotonic()
        is_waiting = now_s < kept.stored_at_s + _SECONDS_BETWEEN_WRITES
        if decision.chosen is None or not kept.pending:
            return
        if decision.chosen == kept.chosen and is_waiting:
            return
        key = self._key(case, bound)
        pending, kept.pending = kept.pending, {}
        kept.chosen, kept.stored_at_s = decision.chosen, now_s
        if key is not None:
            _writer.write(Addition(key, _digests(case), pending, decision.chosen))

    def _stored(self, key: MeasurementKey) -> Entry | None:
        store, now_s = default_store(), time.monotonic()
        is_old = now_s >= self._read_at_s + _SECONDS_BETWEEN_READS
        if store is not self._store or (is_old and key not in self._read):
            self._store, self._read, self._read_at_s = store, store.of_operation(key), now_s
        return self._read.get(key)

    def _follow(self, geometry: Hashable) -> _Kept:
        kept = self._kept.pop(geometry, None) or _Kept()
        while len(self._kept) >= self._max_geometries:
            self._kept.pop(next(iter(self._kept)), None)
        self._kept[geometry] = kept
        return kept

    def _key(
        self, case: Case[Implementation], bound: inspect.BoundArguments
    ) -> MeasurementKey | None:
        if default_store().path is None:
            return None
        text = self._geometry(case, bound)
        return None if text is None else measurement_key(self._operation, text, _context(bound))

    def _geometry(self, case: Case[Implementation], bound: inspect.BoundArguments) -> str | None:
        text = canonical_geometry(case.geometry)
        if text is not None:
            return text
        default = self._default_geometry(*bound.args, **bound.kwargs)
        # The user's own one may tell numbers apart that the default one does not.
        numbers = [each for each in bound.arguments.values() if isinstance(each, int)]
        return canonical_geometry((*default, *numbers))


class _Writer:
    """Writes what is decided, at once unless it wrote just before; then together with the next.

    What still waits when the program ends is written then.
    """

    def __init__(self) -> None:
        self._waiting: deque[Addition] = deque()
        self._not_before_s = 0.0
        self._lock = threading.Lock()
        atexit.register(self.flush)

    def write(self, addition: Addition) -> None:
        self._waiting.append(addition)
        if time.monotonic() >= self._not_before_s:
            self.flush()

    def flush(self) -> None:
        if not self._lock.acquire(blocking=False):
            return  # another thread is writing, or this one is and was interrupted by a signal
        try:
            begin_s = time.monotonic()
            # Other threads may append meanwhile.
            count = len(self._waiting)
            default_store().add_all([self._waiting.popleft() for _ in range(count)])
            end_s = time.monotonic()
            self._not_before_s = end_s + (end_s - begin_s) / _WRITING_SHARE
        finally:
            self._lock.release()

    def forget_other_threads(self) -> None:
        """After a fork, in the child: what waits is the parent's to write."""
        self._lock = threading.Lock()
        self._waiting = deque()


_writer = _Writer()


def flush() -> None:
    """Write what was decided and waits to be written."""
    _writer.flush()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_writer.forget_other_threads)


def _context(bound: inspect.BoundArguments) -> DeviceContext:
    return context_for(leaves([*bound.args, *bound.kwargs.values()]))


def _digests(case: Case[Implementation]) -> dict[str, str]:
    return {each.name: each.digest for each in case.candidates if each.digest is not None}
