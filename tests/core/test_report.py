"""``turnout report`` and ``turnout tune``: what they print, and how they end."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from turnout import cache as cache_module
from turnout import store as store_module
from turnout.cli import main
from turnout.cli_tuning import age
from turnout.explain import duration
from turnout.reporting import ReportedCase, ReportedImplementation, report
from turnout.store import Entry, Measurement, MeasurementKey, TuningStore, default_store

KEY = MeasurementKey("solver.drag", "((64,), float64)", "cpu:0", "a CPU", "numpy 2.4.1")
NOW = int(time.time())
LOOPS = Measurement("loops", "1a", (1300, 1100, 1500), 40, NOW - 7300)
NUMPY = Measurement("numpy", "2b", (30_000, 40_000), 2, NOW - 90_000)
ENTRY = Entry(KEY, "loops", (LOOPS, NUMPY))


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cache_module, "_warned", {})
    for name in ("TURNOUT_TUNING", "TURNOUT_CACHE", "TURNOUT_CACHE_MAX_BYTES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "cache"))
    store_module._configured_store.cache_clear()
    yield
    store_module._configured_store.cache_clear()


@pytest.fixture
def store() -> TuningStore:
    store = default_store()
    store.merge(
        [
            ENTRY,
            of("solver.drag", "((1000,), float64)"),
            of("solver.drag", "((200,), float64)"),
            of("grid.smooth", "((8, 8), float32)"),
        ]
    )
    return store


def of(operation: str, geometry: str) -> Entry:
    key = dataclasses.replace(KEY, operation=operation, geometry=geometry)
    return dataclasses.replace(ENTRY, key=key)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def output(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def error(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    return result.stderr


# Data ---------------------------------------------------------------------------------------------


def test_report_as_data() -> None:
    (case,) = report([ENTRY])
    assert case == ReportedCase(
        *("solver.drag", "((64,), float64)", "cpu:0", "a CPU", "numpy 2.4.1", "loops"),
        (
            ReportedImplementation("loops", 1300.0, 1100, 1500, 3, 40, NOW - 7300, True),
            ReportedImplementation("numpy", 35_000.0, 30_000, 40_000, 2, 2, NOW - 90_000, False),
        ),
    )


def test_cases_are_sorted_by_numbers_and_implementations_by_median() -> None:
    geometries = ["((1000,), float64)", "((64,), float64)", "((200,), float64)", "'9'"]
    cases = report(of(name, each) for name in ("b.f", "a.f") for each in geometries)
    expected = ["'9'", "((64,), float64)", "((200,), float64)", "((1000,), float64)"]
    assert [case.geometry for case in cases] == 2 * expected
    assert [case.operation for case in cases] == 4 * ["a.f"] + 4 * ["b.f"]
    assert [each.name for each in cases[0].implementations] == ["loops", "numpy"]


def test_durations_and_ages() -> None:
    assert [duration(each) for each in (0, 999, 1234, 5.6e6, 7e9)] == [
        *("0 ns", "999 ns", "1.23 us", "5.6 ms", "7 s"),
    ]
    assert [age(each) for each in (-5, 0, 59, 60, 7300, 90_000)] == [
        *("0 s", "0 s", "59 s", "1 min", "2 h", "1 d"),
    ]


# turnout report -----------------------------------------------------------------------------------


def test_report_prints_a_table_for_each_case(store: TuningStore) -> None:
    text = output("report", "--operation", "drag")
    assert text.startswith("\nsolver.drag\n\n((64,), float64) on cpu:0 (a CPU)\n")
    lines = text.splitlines()
    assert lines[4].split("  ")[0] == "implementation"
    assert lines[5].split() == "loops 1.3 us 1.1 us to 1.5 us 40 2 h chosen".split()
    assert lines[6].split() == "numpy 35 us 30 us to 40 us 2 1 d".split()
    titles = [line.partition(" on ")[0] for line in lines if " on cpu:0" in line]
    assert titles == ["((64,), float64)", "((200,), float64)", "((1000,), float64)"]
    assert "grid.smooth" not in text
    assert "grid.smooth" in output("report")
    for name in ("solver.drag", "solver:drag"):  # as `turnout tune` spells it, too
        assert output("report", "--operation", name) == text


def test_report_on_a_terminal(store: TuningStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_terminal(columns: int) -> str:
        stream = io.StringIO()
        stream.isatty = lambda: True  # type: ignore[method-assign]
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr("sys.stdout", stream)
        main(["report", "--operation", "grid.smooth"], standalone_mode=False)
        return stream.getvalue()

    wide, narrow = in_terminal(120), in_terminal(30)
    for text in (wide, narrow):
        assert "((8, 8), float32) on cpu:0 (a CPU)" in text
        assert "1.1 us to 1.5 us" in text
    assert "━" in wide or "─" in wide
    assert "━" not in narrow
    assert "─" not in narrow


def test_report_as_json(store: TuningStore) -> None:
    cases = json.loads(output("report", "--json", "--operation", "grid.smooth"))
    assert cases == [
        {
            "operation": "grid.smooth",
            "geometry": "((8, 8), float32)",
            "device": "cpu:0",
            "hardware": "a CPU",
            "versions": "numpy 2.4.1",
            "chosen": "loops",
            "implementations": [
                {
                    "name": "loops",
                    "median_ns": 1300.0,
                    "fastest_ns": 1100,
                    "slowest_ns": 1500,
                    "recent_samples": 3,
                    "all_samples": 40,
                    "measured_at": NOW - 7300,
                    "is_chosen": True,
                },
                {
                    "name": "numpy",
                    "median_ns": 35_000.0,
                    "fastest_ns": 30_000,
                    "slowest_ns": 40_000,
                    "recent_samples": 2,
                    "all_samples": 2,
                    "measured_at": NOW - 90_000,
                    "is_chosen": False,
                },
            ],
        }
    ]


def test_report_as_csv(store: TuningStore) -> None:
    rows = list(csv.DictReader(io.StringIO(output("report", "--csv"))))
    assert len(rows) == 8
    assert rows[0] == {
        "operation": "grid.smooth",
        "geometry": "((8, 8), float32)",
        "device": "cpu:0",
        "hardware": "a CPU",
        "versions": "numpy 2.4.1",
        "name": "loops",
        "median_ns": "1300.0",
        "fastest_ns": "1100",
        "slowest_ns": "1500",
        "recent_samples": "3",
        "all_samples": "40",
        "measured_at": str(NOW - 7300),
        "is_chosen": "True",
    }


def test_a_choice_without_measurements_is_named() -> None:
    default_store().merge([dataclasses.replace(ENTRY, chosen="builtin")])
    assert "\nchosen: builtin, whose measurements cannot be stored\n" in output("report")


def test_an_empty_store_says_what_to_do(tmp_path: Path) -> None:
    for arguments in (["report"], ["report", "--json"], ["report", "--operation", "f"]):
        result = run(*arguments)
        assert result.exit_code == 0
        assert result.stdout == ("[]\n" if "--json" in arguments else "")
        assert f"Nothing is stored in {tmp_path / 'cache' / 'tuning-v1.sqlite'} yet." in (
            result.stderr
        )
        assert "Run yours, then ask again." in result.stderr
    assert not (tmp_path / "cache").exists()


def test_report_of_an_unknown_operation(store: TuningStore) -> None:
    assert error("report", "--operation", "lift") == (
        "Error: there are no measurements of 'lift'; there are of grid.smooth, solver.drag\n"
    )


def test_report_of_a_damaged_store(store: TuningStore) -> None:
    assert store.path is not None
    store.path.write_bytes(b"garbage" * 1000)
    message = error("report")
    assert message == (
        f"Error: {store.path} cannot be read: file is not a database; "
        "it is left as it is; remove it to begin a new one\n"
    )


def test_report_when_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_TUNING", "off")
    assert "there is no store of measurements, because TURNOUT_TUNING is 'off'" in error("report")
    monkeypatch.setenv("TURNOUT_TUNING", "sometimes")
    assert "TURNOUT_TUNING is 'sometimes'; allowed are " in error("report")


def test_report_has_one_format() -> None:
    result = run("report", "--json", "--csv")
    assert result.exit_code == 2
    assert "--json and --csv exclude each other" in result.stderr


# turnout tune export, import ----------------------------------------------------------------------


def test_export_and_import_carry_measurements(
    store: TuningStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "decisions.json"
    assert output("tune", "export", str(file)) == f"{file}: 4 decisions\n"
    content = file.read_bytes()
    assert output("tune", "export", str(file)) == f"{file}: 4 decisions\n"
    assert file.read_bytes() == content
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert output("tune", "import", str(file)).startswith("8 measurements added, 0 replaced, 0 le")
    assert default_store().entries() == store.entries()
    assert output("tune", "import", str(file)).startswith("0 measurements added, 0 replaced, 8 le")


def test_export_of_one_operation(store: TuningStore, tmp_path: Path) -> None:
    file = tmp_path / "decisions.json"
    assert output("tune", "export", "--operation", "smooth", str(file)) == f"{file}: 1 decision\n"
    (decision,) = json.loads(file.read_text())["decisions"]
    assert decision["operation"] == "grid.smooth"


def test_export_of_nothing(tmp_path: Path) -> None:
    file = tmp_path / "decisions.json"
    assert "Nothing is stored in " in error("tune", "export", str(file))
    assert not file.exists()


def test_export_to_where_nothing_can_be_written(store: TuningStore, tmp_path: Path) -> None:
    file = tmp_path / "absent" / "decisions.json"
    assert error("tune", "export", str(file)).startswith(f"Error: {file} cannot be written: ")


def test_import_leaves_newer_measurements(store: TuningStore, tmp_path: Path) -> None:
    file = tmp_path / "decisions.json"
    output("tune", "export", "--operation", "grid.smooth", str(file))
    key = dataclasses.replace(KEY, operation="grid.smooth", geometry="((8, 8), float32)")
    store.add(key, {"loops": "1a"}, {"loops": [900]}, chosen="loops")
    document = json.loads(file.read_text())
    loops, numpy = document["decisions"][0]["measurements"]
    loops["samples_ns"], numpy["samples_ns"] = [1], [2]
    numpy["measured_at"] = "2999-01-01T00:00:00Z"
    file.write_text(json.dumps(document))
    assert output("tune", "import", str(file)).startswith("0 measurements added, 1 replaced, 1 le")
    found = store.load(key, {"loops": "1a", "numpy": "2b"})
    assert found.samples_ns == {"loops": (1300, 1100, 1500, 900), "numpy": (2,)}


def test_import_of_a_malformed_file_changes_nothing(store: TuningStore, tmp_path: Path) -> None:
    file = tmp_path / "decisions.json"
    output("tune", "export", str(file))
    before = store.entries()
    document = json.loads(file.read_text())
    document["decisions"][0]["measurements"][0]["samples_ns"] = [1]
    document["decisions"][0]["measurements"][0]["measured_at"] = "2999-01-01T00:00:00Z"
    document["decisions"][-1]["chosen"] = 3
    file.write_text(json.dumps(document))
    message = error("tune", "import", str(file))
    assert "decisions[3].chosen is 3, and must be a text that is not empty" in message
    assert "Nothing of it is used" in message
    assert store.entries() == before


def test_import_when_nothing_may_be_stored(
    store: TuningStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "decisions.json"
    output("tune", "export", str(file))
    monkeypatch.setenv("TURNOUT_TUNING", "read")
    assert "TURNOUT_TUNING is 'read', which stores nothing" in error("tune", "import", str(file))
    assert "Nothing" not in output("report")


def test_square_brackets_are_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    measurement = dataclasses.replace(LOOPS, implementation="loops[tile=32,unroll=4]")
    default_store().merge([Entry(KEY, "loops[tile=32,unroll=4]", (measurement,))])
    assert "loops[tile=32,unroll=4]  1.3 us" in output("report")
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", stream)
    main(["report"], standalone_mode=False)
    assert "loops[tile=32,unroll=4]" in stream.getvalue()
