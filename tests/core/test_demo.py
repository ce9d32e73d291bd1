"""The demo: every implementation is right, disagreements are found, the race is reported."""

from __future__ import annotations

import importlib
import json
import linecache
import math
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from fake_plugins import Site, backend_source

import turnout as tn
from turnout import cli, demo
from turnout.cli import main
from turnout.demo import Demo, Variant, disagreement, load_airports

backends = importlib.import_module("turnout.backends")

AIRPORTS = load_airports()
RUNNER = CliRunner()
NAMES = [f.__name__ for f in (*demo.NUMPY_IMPLEMENTATIONS, *demo.KERNEL_IMPLEMENTATIONS)]
DEVICES = [str(device) for device in tn.devices()]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in ("BLOCK", "BACKEND", "PERFDISPATCH_FORCE", "PERFDISPATCH_PRINT_DEBUG"):
        monkeypatch.delenv(f"TURNOUT_{variable}", raising=False)
    backends.clear()
    yield
    backends.clear()


def run(*arguments: str) -> Any:
    return RUNNER.invoke(main, ["demo", *arguments])


def facts(*arguments: str) -> dict[str, Any]:
    result = run("--json", *arguments)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def named(name: str) -> Variant:
    (variant,) = (variant for variant in demo.variants() if variant.name == name)
    return variant


def nearest(name: str, latitude: list[float], longitude: list[float]) -> Any:
    count = len(latitude)
    arguments = np.array(latitude), np.array(longitude), np.full(count, -1), np.full(count, np.nan)
    named(name).function(*arguments)
    return arguments[2].tolist(), arguments[3]


def angle_km(i: int, j: int) -> float:
    """Great-circle distance by another formula than the demo's, with Python's numbers."""
    phi_1, phi_2 = math.radians(AIRPORTS.latitude[i]), math.radians(AIRPORTS.latitude[j])
    delta = math.radians(AIRPORTS.longitude[j] - AIRPORTS.longitude[i])
    across = math.cos(phi_2) * math.sin(delta)
    along = math.cos(phi_1) * math.sin(phi_2) - math.sin(phi_1) * math.cos(phi_2) * math.cos(delta)
    inwards = math.sin(phi_1) * math.sin(phi_2) + math.cos(phi_1) * math.cos(phi_2) * math.cos(
        delta
    )
    return 6371.0088 * math.atan2(math.hypot(across, along), inwards)


def test_the_data_is_complete() -> None:
    assert len(AIRPORTS.names) == AIRPORTS.latitude.size == AIRPORTS.longitude.size == 3376
    assert AIRPORTS.names[0] == "Thigpen (00M), Bay Springs, MS"
    assert (np.abs(AIRPORTS.latitude) <= 90).all()
    assert (np.abs(AIRPORTS.longitude) <= 180).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
def test_an_implementation_agrees_with_another_formula(name: str, device: str) -> None:
    count = 50
    expected = [min((angle_km(i, j), j) for j in range(count) if j != i) for i in range(count)]
    with tn.use(device):
        arguments = AIRPORTS.arguments(count)
        named(name).function(*arguments)
    assert arguments[2].tolist() == [j for _, j in expected]
    assert np.allclose(arguments[3], [km for km, _ in expected], rtol=1e-9, atol=0)


@pytest.mark.parametrize("count", [2, 3, 31, 32, 33, 65, 255, 256, 257, 600])
def test_all_agree_where_tiles_and_lanes_are_not_full(count: int) -> None:
    running = Demo(AIRPORTS, [count], timed_calls=1)
    running.verify()
    assert not running.left_out


@pytest.mark.parametrize("name", NAMES)
def test_the_lowest_index_wins_a_tie(name: str) -> None:
    indices, distances_km = nearest(name, [0.0, 0.0, 0.0, 60.0], [0.0, 1.0, -1.0, 0.0])
    assert indices == [1, 0, 0, 0]
    assert distances_km[1] == distances_km[2]


@pytest.mark.parametrize("name", NAMES)
def test_two_airports_at_one_place_are_neighbours_at_distance_0(name: str) -> None:
    indices, distances_km = nearest(name, [10.0, 47.3, 47.3], [20.0, 8.5, 8.5])
    assert indices[1:] == [2, 1]
    assert distances_km[1:].tolist() == [0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_the_antimeridian_is_no_border(name: str) -> None:
    indices, distances_km = nearest(name, [0.0, 0.0, 0.0], [179.5, -179.5, 170.0])
    assert indices == [1, 0, 0]
    assert np.isclose(distances_km[0], math.radians(1) * 6371.0088, rtol=1e-9)


# -- disagreement ----------------------------------------------------------------------------------


def results(count: int = 40) -> list[Any]:
    arguments = AIRPORTS.arguments(count)
    demo.numpy_broadcasting(*arguments)
    return list(arguments)


def test_equal_results_agree() -> None:
    assert disagreement(results(), results()) == ""


def test_a_wrong_distance_is_found() -> None:
    wrong = results()
    wrong[3][7] *= 1 + 1e-6
    assert disagreement(wrong, results()).startswith("distance_km[7] is ")
    assert "(1 of 40 differ)" in disagreement(wrong, results())


def test_a_distance_that_was_never_written_is_found() -> None:
    wrong = results()
    wrong[3][0] = np.nan
    assert disagreement(wrong, results()).startswith("distance_km[0] is nan, not ")


@pytest.mark.parametrize("given", [-1, 3, 40])
def test_an_index_that_is_no_neighbour_is_found(given: int) -> None:
    wrong = results()
    expected = wrong[2][3]
    wrong[2][3] = given
    assert disagreement(wrong, results()) == f"nearest[3] is {given}, not {expected}"


def test_an_index_of_an_airport_further_away_is_found() -> None:
    wrong = results()
    expected = int(wrong[2][3])
    wrong[2][3] = other = next(j for j in range(40) if j not in (3, expected))
    problem = disagreement(wrong, results())
    assert problem.startswith(f"nearest[3] is {other}, not {expected}, which is ")
    assert problem.endswith(" km nearer")


def test_of_neighbours_at_equal_distance_either_is_right() -> None:
    distances_km = np.full(3, math.radians(1) * 6371.0088)
    first = [np.zeros(3), np.array([0.0, 1.0, -1.0]), np.array([1, 0, 0]), distances_km]
    second = [*first[:2], np.array([2, 0, 0]), first[3]]
    assert disagreement(second, first) == ""


# -- the command -----------------------------------------------------------------------------------


def wrong_by_one(latitude: Any, longitude: Any, nearest: Any, distance_km: Any) -> None:
    demo.numpy_broadcasting(latitude, longitude, nearest, distance_km)
    distance_km += 1


def failing(latitude: Any, longitude: Any, nearest: Any, distance_km: Any) -> None:
    raise tn.CompileError("cpu", "this one does not compile")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_wrong_implementation_ends_the_demo(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "KERNEL_IMPLEMENTATIONS", (demo.array_form, wrong_by_one))
    result = run("--quick", "--airports", "50", *options)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(
        "Error: the implementation 'wrong_by_one' disagrees with 'numpy_broadcasting' for 50 "
        "airports: distance_km[0] is "
    )


def test_an_implementation_that_fails_on_the_active_device_ends_the_demo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo, "KERNEL_IMPLEMENTATIONS", (failing,))
    result = run("--quick", "--airports", "50")
    assert result.exit_code == 1
    assert "this one does not compile" in result.stderr


@pytest.mark.parametrize("device", DEVICES)
def test_the_facts_of_a_race(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_BACKEND", device)
    found = facts("--quick", "--airports", "50", "--airports", "20")
    assert found["verified"] is True
    assert found["left_out"] == {}
    assert found["device"]["name"] == device
    assert found["versions"]["numpy"] == np.__version__
    assert [geometry["airports"] for geometry in found["geometries"]] == [50, 20]
    for geometry in found["geometries"]:
        check_geometry(geometry, device)


def check_geometry(geometry: dict[str, Any], device: str) -> None:
    implementations = geometry["implementations"]
    assert [each["name"] for each in implementations][: len(NAMES)] == NAMES
    (chosen,) = (each for each in implementations if each["chosen"])
    assert chosen["name"] == geometry["chosen"]
    assert chosen["why"] == geometry["reason"]
    is_fastest = chosen["median_ns"] == min(each["median_ns"] for each in implementations)
    assert is_fastest or "no significant difference" in geometry["reason"]
    for each in implementations:
        assert len(each["samples_ns"]) == 3
        assert each["median_ns"] == np.median(each["samples_ns"])
        assert each["spread_ns"] == [min(each["samples_ns"]), max(each["samples_ns"])]
        ratio = implementations[0]["median_ns"] / each["median_ns"]
        assert each["speed_against_numpy"] == pytest.approx(ratio)
    homes = {each["device"] for each in implementations}
    assert homes == {None, *DEVICES}
    assert implementations[len(NAMES) - 1]["device"] == device


def test_the_reference_takes_part_while_it_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_BACKEND", "reference")
    monkeypatch.setattr(demo, "REFERENCE_LIMIT", 30)
    found = facts("--quick", "--airports", "31")["geometries"][0]["implementations"]
    (refused,) = (each for each in found if each["name"] == "tiled")
    assert refused["why"] == "the reference interprets kernels: up to 30 airports only"
    assert refused["median_ns"] is None
    assert refused["spread_ns"] is None
    assert refused["chosen"] is False
    text = run("--quick", "--airports", "31").stdout
    assert "Not raced: array_form" in text
    assert "(the reference interprets kernels: up to 30 airports only)" in text


def test_a_variant_that_nobody_would_wait_for_is_not_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the active device it is, however slow."""
    monkeypatch.setattr(demo, "PATIENCE_NS", 0)
    (geometry,) = facts("--quick", "--airports", "40")["geometries"]
    home = DEVICES[0]
    for each in geometry["implementations"]:
        if each["device"] in (None, home):
            assert len(each["samples_ns"]) == 3
        else:
            assert each["why"] == "one call takes more than 0.5 s"
            assert each["median_ns"] is None


def test_what_is_new_since_the_last_demo_is_raced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Earlier measurements decide alone where they are of all implementations."""
    monkeypatch.setenv("TURNOUT_TUNING", "readwrite")
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path))
    everything = demo.KERNEL_IMPLEMENTATIONS
    monkeypatch.setattr(demo, "KERNEL_IMPLEMENTATIONS", everything[:2])
    first = facts("--quick", "--airports", "30")["geometries"][0]["implementations"]
    monkeypatch.setattr(demo, "KERNEL_IMPLEMENTATIONS", everything)
    second = facts("--quick", "--airports", "30")["geometries"][0]["implementations"]
    third = facts("--quick", "--airports", "30")["geometries"][0]["implementations"]
    earlier = {each["name"]: each["samples_ns"] for each in first}
    assert len(second) > len(first)
    for each, again in zip(second, third, strict=True):
        assert len(each["samples_ns"]) == 3, each["name"]
        assert each["samples_ns"] == earlier.get(each["name"], each["samples_ns"])
        assert again["samples_ns"] == each["samples_ns"]


def test_the_table_of_a_race() -> None:
    result = run("--quick", "--airports", "40")
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert result.output.isascii()
    lines = result.stdout.splitlines()
    title = lines.index("40 airports, 1,600 distances")
    assert lines[title + 1].split() == [
        *("implementation", "median", "fastest", "to", "slowest", "speed", "why")
    ]
    rows = lines[title + 2 : lines.index("", title)]
    assert [row.split()[0] for row in rows][: len(NAMES)] == NAMES
    (chosen,) = (row for row in rows if "  chosen  " in row)
    # On a busy machine the times of some may lie too far apart to tell them from each other.
    reasons = ("lowest median of 3 timed calls each", "no significant difference to ")
    assert any(reason in chosen for reason in reasons)
    assert all("times as long" in row for row in rows if row != chosen)


@pytest.mark.parametrize("columns", [60, 200])
def test_no_terminal_is_too_narrow_for_the_names(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running = Demo(AIRPORTS, (20,), timed_calls=1)
    races = running.race()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    cli._print_race(races[0])
    printed = capsys.readouterr().out
    assert all(variant.name in printed for variant in running.variants)
    assert printed.count(races[0].reason) == 1
    assert "20 airports, 400 distances" in printed
    assert printed.isascii() == (columns == 60)  # the line below the headings


def test_a_forced_implementation_is_chosen_without_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_PERFDISPATCH_FORCE", "nearest_neighbours:tiled")
    result = run("--quick", "--airports", "40")
    assert result.exit_code == 0, result.output
    (row,) = (line for line in result.stdout.splitlines() if line.startswith("tiled "))
    assert row.split() == ["tiled", "chosen", "forced", "by", "the", "environment"]


def test_what_the_environment_makes_operations_print_is_no_part_of_the_facts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TURNOUT_PERFDISPATCH_FORCE", "?")
    monkeypatch.setenv("TURNOUT_PERFDISPATCH_PRINT_DEBUG", "1")
    printed = "perf_dispatch 'nearest_neighbours': registered 'numpy_chords'"
    as_facts = run("--json", "--quick", "--airports", "20")
    assert json.loads(as_facts.stdout)
    assert printed in as_facts.stderr
    assert printed in run("--quick", "--airports", "20").stdout


def test_the_last_lines_are_a_program_that_works() -> None:
    output = run("--quick", "--airports", "20").stdout
    program = textwrap.dedent(
        "".join(f"{line}\n" for line in output.splitlines() if line.startswith("    fast"))
    )
    assert program.count("\n") == 3
    source = textwrap.dedent(
        """
        import turnout as tn
        from turnout import NDArray, f64

        def my_function(a, b):
            b[...] = a * 2

        def my_loops(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
            for i in range(a.shape[0]):
                b[i] = a[i] * 2
        """
    )
    filename = "<the last lines of the demo>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {}
    exec(compile(source, filename, "exec"), namespace)
    exec(program, namespace)
    fast = namespace["fast"]
    a, b = np.arange(5.0), np.empty(5)
    for _ in range(9):
        b[...] = -1
        fast(a, b)
        assert b.tolist() == [0, 2, 4, 6, 8]
    assert fast.implementations == ("my_function", "my_loops")
    assert fast.decision(a, b).chosen is not None


def test_the_whole_progress_is_reported() -> None:
    done: list[int] = []
    running = Demo(AIRPORTS, [10, 20], timed_calls=2, advance=done.append)
    total = running.total_work
    running.verify()
    running.race()
    assert sum(done) == total == (100 + 400) * 4 * len(running.variants)


@pytest.mark.parametrize("count", ["1", "0", "3377", "many"])
def test_a_number_of_airports_that_there_is_not(count: str) -> None:
    result = run("--airports", count)
    assert result.exit_code == 2
    assert "'--airports'" in result.stderr


# -- other backends --------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "cache"))
    return Site(tmp_path / "site", monkeypatch)


def source_of(name: str, features: str) -> str:
    return backend_source(name).replace('"fake")', f'"fake", frozenset({features}))')


def test_another_backend_joins(site: Site) -> None:
    site.install_backend("twin", source_of("twin", '{"f64"}'))
    found = facts("--quick", "--airports", "20")["geometries"][0]["implementations"]
    joined = [each for each in found if each["device"] == "twin:0"]
    assert [each["name"] for each in joined] == [
        f"{f.__name__}@twin.0" for f in demo.KERNEL_IMPLEMENTATIONS
    ]
    assert all(len(each["samples_ns"]) == 3 for each in joined)


def test_a_device_without_float64_does_not_take_part(site: Site) -> None:
    site.install_backend("single", source_of("single", "()"))
    result = run("--quick", "--airports", "20")
    assert result.exit_code == 0, result.output
    assert "chords_in_lanes@single.0 (the device has no float64)" in result.stdout


def test_another_backend_that_fails_is_left_out(site: Site) -> None:
    source = source_of("weak", '{"f64"}').replace(
        "import turnout_compile, turnout_launch", "import turnout_launch"
    )
    source += (
        "\nfrom turnout.plugin import CompileError\n"
        "@hookimpl\n"
        "def turnout_compile():\n"
        "    raise CompileError('weak', 'no compiler found')\n"
    )
    site.install_backend("weak", source)
    found = facts("--quick", "--airports", "20")
    assert set(found["left_out"]) == {f"{f.__name__}@weak.0" for f in demo.KERNEL_IMPLEMENTATIONS}
    assert all("no compiler found" in reason for reason in found["left_out"].values())
    names = {each["name"] for each in found["geometries"][0]["implementations"]}
    assert not names & set(found["left_out"])
    assert (
        "Left out, because it failed: tiled@weak.0: " in run("--quick", "--airports", "20").stdout
    )
