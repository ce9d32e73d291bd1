"""Decisions in files: what is written comes back, what is malformed is refused as a whole."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import json
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout import cache as cache_module
from turnout import store as store_module
from turnout.decisions import (
    FixedChoices,
    current,
    fixed_choices,
    format_decisions,
    of_operation,
    read_decisions,
    use_decisions,
    write_decisions,
)
from turnout.errors import ConfigurationError
from turnout.store import Entry, Measurement, MeasurementKey, TuningStore

decisions_module = importlib.import_module("turnout.decisions")

KEY = MeasurementKey("solver.drag", "((64,), float64)", "cpu:0", "a CPU", "numpy 2.4.1")
LOOPS = Measurement("loops", "1a", (110, 120), 7, 1_750_000_000)
NUMPY = Measurement("numpy", "2b", (300,), 1, 1_750_000_001)
ENTRY = Entry(KEY, "loops", (LOOPS, NUMPY))


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cache_module, "_warned", {})
    monkeypatch.setattr(store_module, "_shipped", {})
    for name in ("TURNOUT_TUNING", "TURNOUT_CACHE", "TURNOUT_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    decisions_module._fixed_by.cache_clear()
    yield
    decisions_module._fixed_by.cache_clear()


def changed(entry: Entry = ENTRY, **fields: Any) -> Entry:
    """The entry with other fields of its key, or of its own."""
    of_key = {name: value for name, value in fields.items() if hasattr(entry.key, name)}
    of_entry = {name: value for name, value in fields.items() if name not in of_key}
    return dataclasses.replace(entry, key=dataclasses.replace(entry.key, **of_key), **of_entry)


# Round trips --------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "decisions.json"
    entries = [changed(operation=name) for name in ("a.f", "b.f")]
    write_decisions(file, entries)
    assert read_decisions(file) == entries
    assert read_decisions(str(file)) == entries


def test_order_does_not_change_the_file() -> None:
    entries = [changed(geometry=text) for text in ("a", "b", "c")]
    reordered = [
        dataclasses.replace(entry, measurements=entry.measurements[::-1]) for entry in entries[::-1]
    ]
    assert format_decisions(reordered) == format_decisions(entries)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
numbers = st.integers(0, 2**63 - 1)


@settings(deadline=None)
@given(
    key=st.builds(MeasurementKey, texts, texts, texts, texts, texts),
    name=texts,
    digest=texts,
    samples_ns=st.lists(numbers, min_size=1).map(tuple),
    count=numbers,
    measured_at=st.integers(0, 253_402_300_799),
)
def test_any_text_and_number_round_trips(
    key: MeasurementKey,
    name: str,
    digest: str,
    samples_ns: tuple[int, ...],
    count: int,
    measured_at: int,
) -> None:
    entry = Entry(key, name, (Measurement(name, digest, samples_ns, count, measured_at),))
    text = format_decisions([entry])
    assert decisions_module._parsed_document(json.loads(text)) == [entry]


def test_samples_stand_in_one_line_and_texts_are_left_alone() -> None:
    text = format_decisions([changed(geometry="[\n 1,\n 2]")])
    assert '"samples_ns": [110, 120],' in text
    assert json.loads(text)["decisions"][0]["geometry"] == "[\n 1,\n 2]"


# Malformed files ----------------------------------------------------------------------------------


def edits() -> dict[str, tuple[Callable[[Any], object], str]]:
    """By name a change of a good document, and the complaint."""

    def at_entry(name: str, value: object) -> Callable[[Any], object]:
        return lambda document: document["decisions"][0].__setitem__(name, value)

    def at_measurement(name: str, value: object) -> Callable[[Any], object]:
        return lambda document: document["decisions"][0]["measurements"][1].__setitem__(name, value)

    place = r"decisions\[0\]"
    measurement = rf"{place}\.measurements\[1\]"
    text = "and must be a text that is not empty"
    integer = "and must be an integer of 0 or more"
    moment = "and must be a time such as '2026-01-31T12:00:00Z'"
    return {
        "no format": (lambda d: d.pop("format"), 'an object with "format": "turnout decisions 1"'),
        "another format": (
            lambda d: d.__setitem__("format", "turnout decisions 2"),
            "its format is 'turnout decisions 2', and this turnout reads 'turnout decisions 1'",
        ),
        "no decisions": (lambda d: d.pop("decisions"), "the file must be an object with exactly"),
        "unknown field": (lambda d: d.__setitem__("more", 1), "exactly the fields format, decis"),
        "empty": (lambda d: d["decisions"].clear(), "decisions must be a list that is not empty"),
        "no list": (lambda d: d.__setitem__("decisions", {}), "decisions must be a list that is"),
        "entry is no object": (
            lambda d: d["decisions"].__setitem__(0, 3),
            f"{place} must be an object with exactly the fields operation, geometry, device",
        ),
        "entry lacks a field": (lambda d: d["decisions"][0].pop("device"), f"{place} must be an"),
        "twice": (
            lambda d: d["decisions"].append(copy.deepcopy(d["decisions"][0])),
            "decisions has two members for the same thing",
        ),
        "measurement twice": (
            lambda d: d["decisions"][0]["measurements"].append(
                copy.deepcopy(d["decisions"][0]["measurements"][0])
            ),
            rf"{place}\.measurements has two members for the same thing",
        ),
        "no measurements": (at_entry("measurements", []), rf"{place}\.measurements must be a list"),
        "chosen": (at_entry("chosen", None), rf"{place}\.chosen is None, {text}"),
        "operation": (at_entry("operation", ""), rf"{place}\.operation is '', {text}"),
        "surrogate": (at_entry("geometry", "\ud800"), rf"{place}\.geometry is .*, {text}"),
        "implementation": (
            at_measurement("implementation", 5),
            rf"{measurement}\.implementation is 5, {text}",
        ),
        "no samples": (at_measurement("samples_ns", []), rf"{measurement}\.samples_ns must be a"),
        "samples": (
            at_measurement("samples_ns", [5, 1.5]),
            rf"{measurement}\.samples_ns\[1\] is 1\.5, {integer}",
        ),
        "negative": (at_measurement("samples_ns", [-1]), rf"samples_ns\[0\] is -1, {integer}"),
        "bool": (at_measurement("count", True), rf"{measurement}\.count is True, {integer}"),
        "too large": (at_measurement("count", 2**63), rf"\.count is {2**63}, {integer}"),
        "time": (at_measurement("measured_at", "now"), rf"\.measured_at is 'now', {moment}"),
        "seconds": (at_measurement("measured_at", 5), rf"\.measured_at is 5, {moment}"),
        "before 1970": (
            at_measurement("measured_at", "1969-12-31T23:59:59Z"),
            rf"\.measured_at is -1, {integer}",
        ),
    }


@pytest.mark.parametrize("name", edits())
def test_a_malformed_file_is_refused_as_a_whole(name: str, tmp_path: Path) -> None:
    change, complaint = edits()[name]
    document = json.loads(format_decisions([ENTRY, changed(operation="z")]))
    change(document)
    file = tmp_path / "decisions.json"
    file.write_text(json.dumps(document))
    with pytest.raises(ConfigurationError) as caught:
        read_decisions(file)
    message = str(caught.value)
    assert message.startswith(f"{file} is no file of decisions: ")
    assert message.endswith("Nothing of it is used; `turnout tune export` writes such files.")
    assert re.search(complaint, message), message


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not JSON: "),
        (b"{", "is not JSON: "),
        (b"\xff\xfe", "is not JSON: "),
        (b"[" * 100_000, "is not JSON: |is no file of decisions: "),
        (b"null", "is no file of decisions: it is not an object"),
        (b"[]", "is no file of decisions: it is not an object"),
    ],
)
def test_what_is_no_such_file(content: bytes, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "decisions.json"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=complaint):
        read_decisions(file)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"absent\.json cannot be read: "):
        read_decisions(tmp_path / "absent.json")
    with pytest.raises(ConfigurationError, match="cannot be read: "):
        read_decisions(tmp_path)
    with pytest.raises(ConfigurationError, match=r"f\.json cannot be written: "):
        write_decisions(tmp_path / "absent" / "f.json", [ENTRY])


# Selections ---------------------------------------------------------------------------------------


def test_current_takes_the_latest_versions_and_digests() -> None:
    older = changed(versions="numpy 2.3", measurements=(LOOPS,))
    edited = dataclasses.replace(LOOPS, digest="0f", measured_at=LOOPS.measured_at + 5)
    newer = changed(versions="numpy 2.5", measurements=(edited, LOOPS, NUMPY))
    elsewhere = changed(hardware="another CPU", versions="numpy 2.3")
    assert current([older, newer, elsewhere]) == [
        changed(newer, measurements=(edited, NUMPY)),
        elsewhere,
    ]
    assert current([newer, older]) == [changed(newer, measurements=(edited, NUMPY))]


def test_of_operation_takes_full_names_and_their_ends() -> None:
    entries = [changed(operation=name) for name in ("a.drag", "a.b.drag", "a.airdrag")]
    assert of_operation(entries, "drag") == entries[:2]
    assert of_operation(entries, "b.drag") == entries[1:2]
    assert of_operation(entries, "a.drag") == entries[:1]
    assert of_operation([], "drag") == []
    with pytest.raises(
        ConfigurationError,
        match=r"there are no measurements of 'rag'; there are of a\.airdrag, a\.b\.drag, a\.drag",
    ):
        of_operation(entries, "rag")


# Shipped with a package ---------------------------------------------------------------------------


def test_a_package_ships_decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("shipping_package/__init__.py", "")
        file.writestr("shipping_package/decisions.json", format_decisions([ENTRY]))
    monkeypatch.syspath_prepend(str(archive))
    try:
        use_decisions(files("shipping_package") / "decisions.json")
    finally:
        sys.modules.pop("shipping_package", None)
    store = TuningStore(tmp_path / "tuning-v1.sqlite", is_writable=False)
    found = store.load(KEY, {"loops": "1a", "numpy": "another"})
    assert found.samples_ns == {"loops": (110, 120)}
    assert found.chosen == "loops"
    assert not (tmp_path / "tuning-v1.sqlite").exists()


@pytest.mark.parametrize("mode", ["off", "fixed"])
def test_shipped_decisions_are_not_opened_when_nothing_is_read(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNOUT_TUNING", mode)
    use_decisions(tmp_path / "absent.json")
    monkeypatch.delenv("TURNOUT_TUNING")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        use_decisions(tmp_path / "absent.json")


# Fixed choices ------------------------------------------------------------------------------------

NAMES = ("numpy", "loops", "other")


def fixed_by(*entries: Entry) -> FixedChoices:
    return FixedChoices(entries)


def test_a_choice_is_fixed_by_operation_geometry_and_backend() -> None:
    choices = fixed_by(ENTRY, changed(device="cuda:0", chosen="other"))
    assert choices.choice("solver.drag", KEY.geometry, "cpu:0", NAMES) == "loops"
    assert choices.choice("solver.drag", KEY.geometry, "cpu:7", NAMES) == "loops"
    assert choices.choice("solver.drag", KEY.geometry, "cuda:3", NAMES) == "other"
    assert choices.choice("solver.drag", KEY.geometry, "opencl:0", NAMES) is None
    assert choices.choice("solver.drag", "((65,), float64)", "cpu:0", NAMES) is None
    assert choices.choice("solver.drag", None, "cpu:0", NAMES) is None
    assert choices.choice("solver.lift", KEY.geometry, "cpu:0", NAMES) is None


def test_a_choice_that_may_not_run_is_none() -> None:
    choices = fixed_by(ENTRY)
    assert choices.choice("solver.drag", KEY.geometry, "cpu:0", ("numpy",)) is None
    assert choices.unknown("solver.drag", NAMES) == []
    assert choices.unknown("solver.drag", ("numpy",)) == ["loops"]
    assert choices.unknown("solver.lift", ("numpy",)) == []


def test_the_first_of_several_decisions_counts() -> None:
    choices = fixed_by(
        changed(hardware="a", chosen="numpy"), changed(hardware="b"), changed(device="cpu:1")
    )
    assert choices.choice("solver.drag", KEY.geometry, "cpu:0", NAMES) == "numpy"


def test_fixed_choices_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fixed_choices() is None
    monkeypatch.setenv("TURNOUT_TUNING", "fixed")
    without_file = fixed_choices()
    assert without_file is not None
    assert without_file.choice("solver.drag", KEY.geometry, "cpu:0", NAMES) is None
    file = tmp_path / "job.json"
    monkeypatch.setenv("TURNOUT_TUNING", f"fixed:{file}")
    with pytest.raises(ConfigurationError, match=r"job\.json cannot be read"):
        fixed_choices()
    write_decisions(file, [ENTRY])
    from_file = fixed_choices()
    assert from_file is not None
    assert from_file.choice("solver.drag", KEY.geometry, "cpu:0", NAMES) == "loops"
    file.unlink()
    assert fixed_choices() is from_file  # what is read once holds for the whole process


def test_a_fixed_file_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    write_decisions(tmp_path / "job.json", [ENTRY])
    monkeypatch.setenv("TURNOUT_TUNING", "fixed:~/job.json")
    choices = fixed_choices()
    assert choices is not None
    assert choices.choice("solver.drag", KEY.geometry, "cpu:0", NAMES) == "loops"
