"""Decisions in files: measurements that travel, and choices fixed before the first call.

A file holds what `turnout.store` holds, as JSON (``turnout tune export``). It has three uses:

* ``turnout tune import FILE`` merges it into the store of this user;
* a package that ships one gives it to `use_decisions`, and writes nothing on the user's disk;
* ``TURNOUT_TUNING=fixed:FILE`` takes the implementations that the file names, and measures nothing.

The first two are measurements: they hold for the same code, hardware and versions. The last one
is an order: it names implementations, and holds on any machine.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import ConfigurationError
from .store import Entry, Measurement, MeasurementKey, ship, tuning_mode

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

T = TypeVar("T")

FORMAT = "turnout decisions 1"

_KEY_FIELDS = ("operation", "geometry", "device", "hardware", "versions")
_MAXIMUM_INTEGER = 2**63 - 1
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_LIST_OF_NUMBERS = re.compile(r"\[\n[\d,\s]+\]")


# -- select ----------------------------------------------------------------------------------------


def of_operation(entries: Iterable[Entry], operation: str) -> list[Entry]:
    """Return the entries of the operations that a user names.

    Parameters
    ----------
    entries : iterable of Entry
    operation : str
        With its module, or the last parts of that: ``"drag"`` selects ``"solver.drag"``.

    Raises
    ------
    ConfigurationError
        When there are none.
    """
    entries = list(entries)
    found = [each for each in entries if f".{each.key.operation}".endswith(f".{operation}")]
    if entries and not found:
        known = sorted({each.key.operation for each in entries})
        raise ConfigurationError(
            f"there are no measurements of {operation!r}; there are of {', '.join(known)}"
        )
    return found


def current(entries: Iterable[Entry]) -> list[Entry]:
    """Return what counts now: the latest versions of each case, and of each implementation.

    Parameters
    ----------
    entries : iterable of Entry

    Returns
    -------
    list of Entry
        At most one for each operation, geometry, device and hardware, in the same order.
    """
    latest: dict[tuple[str, ...], Entry] = {}
    for entry in entries:
        key = entry.key
        case = (key.operation, key.geometry, key.device, key.hardware)
        if case not in latest or entry.measured_at > latest[case].measured_at:
            latest[case] = entry
    return [_of_latest_digests(entry) for entry in latest.values()]


def _of_latest_digests(entry: Entry) -> Entry:
    ordered = sorted(entry.measurements, key=lambda each: each.measured_at)
    latest = {each.implementation: each for each in ordered}
    return Entry(entry.key, entry.chosen, tuple(latest[name] for name in sorted(latest)))


# -- files -----------------------------------------------------------------------------------------


def write_decisions(path: Path, entries: Sequence[Entry]) -> None:
    """Write a file that `read_decisions` reads; the same entries give the same bytes.

    Parameters
    ----------
    path : Path
        Replaced if it exists.
    entries : sequence of Entry

    Raises
    ------
    ConfigurationError
        When the file cannot be written.
    """
    text = format_decisions(entries)
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error}") from error


def format_decisions(entries: Sequence[Entry]) -> str:
    """Return the text of a file of decisions.

    Parameters
    ----------
    entries : sequence of Entry

    Examples
    --------
    >>> key = MeasurementKey("solver.drag", "((64,), float64)", "cpu:0", "a CPU", "numpy 2.4.1")
    >>> loops = Measurement("loops", "1a", (110, 120), count=2, measured_at=1_750_000_000)
    >>> print(format_decisions([Entry(key, "loops", (loops,))]), end="")
    {
      "format": "turnout decisions 1",
      "decisions": [
        {
          "operation": "solver.drag",
          "geometry": "((64,), float64)",
          "device": "cpu:0",
          "hardware": "a CPU",
          "versions": "numpy 2.4.1",
          "chosen": "loops",
          "measurements": [
            {
              "implementation": "loops",
              "digest": "1a",
              "samples_ns": [110, 120],
              "count": 2,
              "measured_at": "2025-06-15T15:06:40Z"
            }
          ]
        }
      ]
    }
    """
    ordered = sorted(entries, key=lambda entry: [getattr(entry.key, name) for name in _KEY_FIELDS])
    document = {"format": FORMAT, "decisions": [_entry_facts(entry) for entry in ordered]}
    text = json.dumps(document, indent=2)
    # Strings have no line ends in JSON, so these are lists of samples; they read better in a line.
    return _LIST_OF_NUMBERS.sub(lambda found: json.dumps(json.loads(found[0])), text) + "\n"


def _entry_facts(entry: Entry) -> dict[str, Any]:
    measurements = sorted(entry.measurements, key=lambda each: (each.implementation, each.digest))
    return {
        **{name: getattr(entry.key, name) for name in _KEY_FIELDS},
        "chosen": entry.chosen,
        "measurements": [
            {
                "implementation": each.implementation,
                "digest": each.digest,
                "samples_ns": list(each.samples_ns),
                "count": each.count,
                "measured_at": format_time(each.measured_at),
            }
            for each in measurements
        ],
    }


def format_time(seconds: int) -> str:
    """Return seconds since 1970 as a time in UTC, for example ``2026-01-31T12:00:00Z``."""
    return datetime.fromtimestamp(seconds, UTC).strftime(_TIME)


def read_decisions(source: str | os.PathLike[str] | Traversable) -> list[Entry]:
    """Read a file of decisions, as a whole or not at all.

    Parameters
    ----------
    source : path or importlib.resources file

    Returns
    -------
    list of Entry

    Raises
    ------
    ConfigurationError
        When the file cannot be read, or anything in it is malformed; it says where.
    """
    file = Path(source) if isinstance(source, str | os.PathLike) else source
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file} is not JSON: {error}") from error
    try:
        entries = _parsed_document(document)
    except _MalformedError as error:
        raise ConfigurationError(
            f"{file} is no file of decisions: {error}. Nothing of it is used; "
            "`turnout tune export` writes such files."
        ) from error
    return entries


class _MalformedError(Exception):
    """Where a file is wrong, and what is allowed there."""


def _parsed_document(document: Any) -> list[Entry]:
    if not isinstance(document, dict) or "format" not in document:
        raise _MalformedError(f'it is not an object with "format": "{FORMAT}"')
    if document["format"] != FORMAT:
        raise _MalformedError(
            f"its format is {document['format']!r}, and this turnout reads {FORMAT!r}"
        )
    _check_fields(document, "the file", ("format", "decisions"))
    entries = _parsed_list(document["decisions"], "decisions", _parsed_entry)
    _check_distinct("decisions", [entry.key for entry in entries])
    return entries


def _parsed_entry(facts: Any, where: str) -> Entry:
    _check_fields(facts, where, (*_KEY_FIELDS, "chosen", "measurements"))
    key = [_parsed_text(facts[name], f"{where}.{name}") for name in _KEY_FIELDS]
    chosen = _parsed_text(facts["chosen"], f"{where}.chosen")
    where = f"{where}.measurements"
    measurements = _parsed_list(facts["measurements"], where, _parsed_measurement)
    _check_distinct(where, [(each.implementation, each.digest) for each in measurements])
    return Entry(MeasurementKey(*key), chosen, tuple(measurements))


def _parsed_measurement(facts: Any, where: str) -> Measurement:
    fields = ("implementation", "digest", "samples_ns", "count", "measured_at")
    _check_fields(facts, where, fields)
    samples = _parsed_list(facts["samples_ns"], f"{where}.samples_ns", _parsed_integer)
    return Measurement(
        _parsed_text(facts["implementation"], f"{where}.implementation"),
        _parsed_text(facts["digest"], f"{where}.digest"),
        tuple(samples),
        _parsed_integer(facts["count"], f"{where}.count"),
        _parsed_time(facts["measured_at"], f"{where}.measured_at"),
    )


def _check_fields(facts: Any, where: str, fields: Sequence[str]) -> None:
    if not isinstance(facts, dict) or facts.keys() != set(fields):
        raise _MalformedError(
            f"{where} must be an object with exactly the fields {', '.join(fields)}"
        )


def _check_distinct(where: str, identities: Collection[object]) -> None:
    if len(set(identities)) < len(identities):
        raise _MalformedError(f"{where} has two members for the same thing")


def _parsed_list(value: Any, where: str, parsed: Callable[[Any, str], T]) -> list[T]:
    if not isinstance(value, list) or not value:
        raise _MalformedError(f"{where} must be a list that is not empty")
    return [parsed(each, f"{where}[{index}]") for index, each in enumerate(value)]


def _parsed_text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value or not _is_storable(value):
        raise _MalformedError(f"{where} is {value!r:.100}, and must be a text that is not empty")
    return value


def _is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeError:  # half of a surrogate pair
        return False
    return True


def _parsed_integer(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value <= _MAXIMUM_INTEGER:
        raise _MalformedError(f"{where} is {value!r:.100}, and must be an integer of 0 or more")
    return value


def _parsed_time(value: Any, where: str) -> int:
    try:
        moment = datetime.strptime(value, _TIME).replace(tzinfo=UTC)
    except (TypeError, ValueError):
        raise _MalformedError(
            f"{where} is {value!r:.100}, and must be a time such as '2026-01-31T12:00:00Z'"
        ) from None
    return _parsed_integer(int(moment.timestamp()), where)


# -- shipped with a package ------------------------------------------------------------------------


def use_decisions(source: str | os.PathLike[str] | Traversable) -> None:
    """Let operations of this process use a file of decisions that a package ships.

    Its measurements stand in for those that the store of the user lacks; the user's own ones
    prevail. They hold for the same implementations, hardware and versions, else the operation
    measures as if there were no file. Nothing is written. With ``TURNOUT_TUNING=off`` or ``fixed``
    the file is not opened.

    Parameters
    ----------
    source : path or importlib.resources file
        Written by ``turnout tune export``.

    Raises
    ------
    ConfigurationError
        When the file cannot be read, or anything in it is malformed.

    Examples
    --------
    In the ``__init__.py`` of a package with the file ``decisions.json`` beside it::

        from importlib.resources import files
        from turnout.decisions import use_decisions

        use_decisions(files(__package__) / "decisions.json")
    """
    mode, _ = tuning_mode()
    if mode in ("read", "readwrite"):
        ship(read_decisions(source))


# -- fixed before the first call -------------------------------------------------------------------


class FixedChoices:
    """Implementations that are chosen without measuring.

    A file fixes them by name for each operation, geometry and backend; hardware, versions, digests
    and the number of the device do not count, so that all processes of a job choose alike. Where a
    file has several decisions for one case, the first one counts.

    Parameters
    ----------
    entries : sequence of Entry
        Empty: nothing is fixed by name.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._chosen: dict[tuple[str, str, str], str] = {}
        for entry in entries:
            key = entry.key
            case = _case(key.operation, key.geometry, key.device)
            self._chosen.setdefault(case, entry.chosen)

    def choice(
        self, operation: str, geometry: str | None, device: str, names: Collection[str]
    ) -> str | None:
        """Return the implementation that is fixed for a call.

        Parameters
        ----------
        operation : str
            With its module.
        geometry : str or None
            From `turnout.identity.canonical_geometry`.
        device : str
            For example ``"cuda:3"``.
        names : collection of str
            The implementations that may run.

        Returns
        -------
        str or None
            None where the file fixes none of `names`; the first registered one runs then.
        """
        if geometry is None:
            return None
        chosen = self._chosen.get(_case(operation, geometry, device))
        return chosen if chosen in names else None

    def unknown(self, operation: str, names: Collection[str]) -> list[str]:
        """Return what is fixed for an operation but not among its implementations, sorted.

        Parameters
        ----------
        operation : str
            With its module.
        names : collection of str
            All registered implementations.
        """
        chosen = {name for (of, _, _), name in self._chosen.items() if of == operation}
        return sorted(chosen.difference(names))


def _case(operation: str, geometry: str, device: str) -> tuple[str, str, str]:
    """What a choice is fixed for; geometries name the device, whose number does not count."""
    backend = device.partition(":")[0]
    return operation, geometry.replace(ascii(device), ascii(backend)), backend


def fixed_choices() -> FixedChoices | None:
    """Return the choices that ``TURNOUT_TUNING=fixed`` or ``fixed:FILE`` fixes, else None.

    Returns
    -------
    FixedChoices or None
        The file is read once per process.

    Raises
    ------
    ConfigurationError
        When ``TURNOUT_TUNING`` is malformed, or the file cannot be used.
    """
    mode, file = tuning_mode()
    return _fixed_by(file) if mode == "fixed" else None


@functools.lru_cache(maxsize=8)
def _fixed_by(file: str) -> FixedChoices:
    return FixedChoices(read_decisions(os.path.expanduser(file)) if file else [])
