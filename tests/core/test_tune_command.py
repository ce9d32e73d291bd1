"""``turnout tune MODULE:OPERATION``: arguments made or given, what is printed, what is stored."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from turnout import cache as cache_module
from turnout import store as store_module
from turnout.cli import main
from turnout.errors import CallError
from turnout.store import default_store
from turnout.tuning_inputs import (
    described,
    filled,
    find_operation,
    given_calls,
    parse_argument,
    parse_dtype,
    parse_shapes,
    planned_call,
)

SOLVER = """
import numpy as np
import turnout as tn

seen = []


@tn.perf_dispatch(warmup=1)
def drag(v, out, k=0.5, *, mode="fast"): ...


@drag.register
def first(v, out, k=0.5, *, mode="fast"):
    seen.append((v.copy(), k, mode))
    np.multiply(v, -k, out=out)


@drag.register
def second(v, out, k=0.5, *, mode="fast"):
    out[:] = -k * v


norm = tn.race(np.linalg.norm, lambda values: np.sqrt(values @ values), name="norm")


@tn.perf_dispatch(warmup=1)
def segments(values, lengths): ...


@segments.register
def in_a_loop(values, lengths):
    ends = np.cumsum(lengths)
    return [values[end - length : end].sum() for end, length in zip(ends, lengths)]


@segments.register
def in_one_call(values, lengths):
    return np.add.reduceat(values, np.cumsum(lengths) - lengths)


difference = tn.race(lambda a, b: a - b, lambda a, b: -(b - a), name="difference")


@tn.perf_dispatch
def alone(x): ...


alone.register(in_a_call := lambda x: x + 1, name="in_a_call")


class Solver:
    drag = drag


def inputs():
    return np.ones(12), np.full(3, 4)


def cases():
    for count in (2, 3):
        yield {"values": np.ones(4 * count), "lengths": np.full(count, 4)}


def listed():
    return [(np.ones(4), np.full(1, 4)), (np.ones(5), np.full(1, 5))]


def failing():
    return 1 // 0


def failing_later():
    yield np.ones(12), np.full(3, 4)
    raise ValueError("no more")


def bare():
    return np.ones(3)


def forgotten(): ...


def empty():
    return []


def too_many():
    return 1, 2, 3


number = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder with the module ``solver``, and a store of its own."""
    (tmp_path / "solver.py").write_text(SOLVER, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(cache_module, "_warned", {})
    for name in ("TURNOUT_TUNING", "TURNOUT_CACHE", "TURNOUT_PERFDISPATCH_FORCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "cache"))
    store_module._configured_store.cache_clear()
    importlib.invalidate_caches()
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    store_module._configured_store.cache_clear()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["tune", *arguments])


def output(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def error(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("Error: ")
    return result.stderr.removeprefix("Error: ").rstrip()


def usage_error(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return result.stderr.partition("Error: ")[2].rstrip()


def stored_geometries(operation: str) -> list[str]:
    return [e.key.geometry for e in default_store().entries() if e.key.operation == operation]


# What a user types --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("(1024, 3) (1024,)", ((1024, 3), (1024,))),
        ("(1024,3)(1024)", ((1024, 3), (1024,))),
        ("( 2 , 3 , ) ()", ((2, 3), ())),
        ("(0,)", ((0,),)),
    ],
)
def test_shapes_are_spelt_as_in_python(text: str, shapes: object) -> None:
    assert parse_shapes(text) == shapes


@pytest.mark.parametrize(
    "text", ["", "3", "3,4", "(3,) 4", "(3,", "(-1,)", "(3.5,)", "(a,)", "[3]"]
)
def test_what_is_no_list_of_shapes(text: str) -> None:
    with pytest.raises(CallError, match="is no list of shapes: write that of each array as in"):
        parse_shapes(text)


def test_dtypes() -> None:
    names = ("float32", "float64", "complex64", "complex128", "f32", "f64")
    assert [parse_dtype(name) for name in names] == [
        *map(np.dtype, ("f4", "f8", "c8", "c16", "f4", "f8")),
    ]


@pytest.mark.parametrize("name", ["int32", "i32", "bool", "object", "nonsense", ""])
def test_integers_are_not_made_up(name: str) -> None:
    with pytest.raises(CallError, match="they are not made up: write a function that returns"):
        parse_dtype(name)


@pytest.mark.parametrize(
    ("text", "value"),
    [("n=3", 3), ("n = -0.5", -0.5), ("n=None", None), ("n='a=b'", "a=b"), ("n=(0, 1)", (0, 1))],
)
def test_values_are_literals(text: str, value: object) -> None:
    assert parse_argument(text) == ("n", value)


@pytest.mark.parametrize("text", ["n", "n=", "=3", ""])
def test_an_argument_has_a_name_and_a_value(text: str) -> None:
    with pytest.raises(CallError, match="write NAME=VALUE, for example --argument n=100"):
        parse_argument(text)


@pytest.mark.parametrize("value", ["fast", "__import__('os')", "{[]: 1}", "1 +", "(" * 300])
def test_nothing_is_evaluated(value: str) -> None:
    with pytest.raises(CallError, match="is no value: write a literal of Python"):
        parse_argument(f"n={value}")


# Arguments made from shapes -----------------------------------------------------------------------


def made(operation: str, shapes: str, *dtypes: str, seed: int = 0, **values: object) -> Any:
    found = find_operation(f"solver:{operation}")
    names = list(map(parse_dtype, dtypes or ("float64",)))
    return filled(planned_call(found, parse_shapes(shapes), names, values), seed)


def test_arrays_go_to_the_parameters_without_a_value() -> None:
    call = made("drag", "(4,) (5,)")
    assert described(call) == "v: float64 (4,), out: float64 (5,)"
    call = made("drag", "(4,) (2, 3)", "f32", k=2, mode="slow")
    assert described(call) == "v: float32 (4,), out: float32 (2, 3), k = 2, mode = 'slow'"


def test_arrays_beyond_the_parameters_are_refused() -> None:
    with pytest.raises(CallError, match=r"3 shapes given, and parameters for 2 of them are left"):
        made("drag", "(4,) (5,) (6,)", k=2, mode="slow")


def test_a_value_in_the_middle() -> None:
    call = made("drag", "(4,) (5,)", v=1.5)
    assert described(call) == "v = 1.5, out: float64 (4,), k: float64 (5,)"


def test_a_keyword_only_parameter() -> None:
    call = made("drag", "(4,) (5,)", mode="slow")
    assert call.kwargs == {"mode": "slow"}


def test_an_operation_that_takes_any_arguments() -> None:
    call = made("norm", "(4,) ()", ord=None)
    assert [each.shape for each in call.args] == [(4,), ()]
    assert call.kwargs == {"ord": None}
    assert described(call) == "args[0]: float64 (4,), args[1]: float64 (), kwargs['ord'] = None"


def test_one_dtype_for_each_array() -> None:
    call = made("drag", "(4,) (4,)", "float32", "complex64")
    assert described(call) == "v: float32 (4,), out: complex64 (4,)"
    assert np.any(call.arguments["out"].imag)
    with pytest.raises(CallError, match="3 dtypes for 2 arrays: give one for all of them, or one"):
        made("drag", "(4,) (4,)", "f32", "f32", "f32")


def test_elements_depend_on_the_seed_alone() -> None:
    v = made("drag", "(100,) (100,)").arguments["v"]
    assert np.array_equal(v, np.random.default_rng(0).random(100))
    assert np.array_equal(v, made("drag", "(100,) (3,)").arguments["v"])
    assert not np.array_equal(v, made("drag", "(100,) (100,)", seed=1).arguments["v"])
    assert 0 <= v.min() < 0.1
    assert 0.9 < v.max() < 1


def test_arguments_that_do_not_fit() -> None:
    with pytest.raises(CallError, match="nothing is given for 'out': give a shape for each array"):
        made("drag", "(4,)")
    with pytest.raises(CallError, match=r"has no parameter 'mod' \(did you mean 'mode'\?\)"):
        made("drag", "(4,) (4,)", mod=3)
    with pytest.raises(CallError, match=r"no array of shape .* Unable to allocate"):
        made("drag", "(99999999999, 99999) (4,)")
    with pytest.raises(CallError, match="no array of shape"):
        made("drag", f"({10**30},) (4,)")


def test_many_arguments_are_shown_in_part() -> None:
    call = made("norm", "(1,)" * 30)
    assert described(call).count("float64") == 10
    assert described(call).endswith(", ...")


# Arguments from a function ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "shapes"),
    [("inputs", [(12,)]), ("cases", [(8,), (12,)]), ("listed", [(4,), (5,)])],
)
def test_a_function_gives_arguments(function: str, shapes: object) -> None:
    calls = given_calls(find_operation("solver:segments"), f"solver:{function}")
    assert [call.arguments["values"].shape for call in calls] == shapes


MUST = "it must return the arguments of a call, as a tuple in the order of the parameters or a dict"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("solver:failing", r"solver:failing failed:\n  File .*solver\.py.*\n.*ZeroDivisionError: "),
        ("solver:bare", f"solver:bare returned ndarray: {MUST}"),
        ("solver:forgotten", f"solver:forgotten returned NoneType: {MUST}"),
        ("solver:empty", f"solver:empty gives no arguments at all: {MUST}"),
        (
            "solver:too_many",
            r"what solver:too_many returned do not fit segments\(values, lengths\)",
        ),
        ("solver:number", "solver:number is 3, which is no function"),
        ("solver:input", r"solver has no 'input' \(did you mean 'inputs'\?\); its functions are: "),
        ("solver", "'solver' names no function; give MODULE:FUNCTION or path/to/file.py:FUNCTION"),
        ("absent:f", "there is no module 'absent' in .*; give MODULE:FUNCTION or path"),
        ("absent.py:f", "there is no file 'absent.py'"),
    ],
)
def test_a_function_that_gives_none(function: str, expected: str) -> None:
    with pytest.raises(CallError, match=f"(?s){expected}"):
        list(given_calls(find_operation("solver:segments"), function))


def test_the_traceback_of_a_function_begins_in_it() -> None:
    message = error("solver:segments", "--data", "solver:failing")
    assert message.count("  File ") == 1
    assert "return 1 // 0" in message


def test_a_function_in_a_file(folder: Path) -> None:
    (folder / "inputs.py").write_text("import solver\ndef f():\n    return solver.inputs()\n")
    text = output("solver:segments", "--data", "inputs.py:f")
    assert "values: float64 (12,), lengths: int64 (3,) (from inputs.py:f)\n" in text


# The operation ------------------------------------------------------------------------------------

ITS_OPERATIONS = (
    "its operations are: solver:drag, solver:norm, solver:segments, solver:difference, solver:alone"
)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("solver:dragg", f"solver has no 'dragg' (did you mean 'drag'?); {ITS_OPERATIONS}"),
        ("solver:first", f"solver:first is no operation; {ITS_OPERATIONS}"),
        ("json:dumps", "json:dumps is no operation; there is no operation (made by turnout."),
        ("absent:f", "there is no module 'absent' in "),
        ("solver.py:drag", "'solver.py' is a file: name its module, as programs import it"),
        ("solver:", "'solver:' names no operation; give MODULE:OPERATION"),
        (":drag", "'' is no module; give MODULE:OPERATION"),
    ],
)
def test_what_is_no_operation(target: str, expected: str) -> None:
    assert error(target, "--shapes", "(3,) (3,)").startswith(expected)


def test_an_operation_in_a_class() -> None:
    assert find_operation("solver:Solver.drag") is find_operation("solver:drag")


# The command --------------------------------------------------------------------------------------


def test_tuning_decides_prints_and_stores(folder: Path) -> None:
    shapes = ("--shapes", "(4,) (4,)", "--shapes", "(9,) (9,)")
    text = output("solver:drag", *shapes, "--argument", "mode='slow'")
    lines = text.splitlines()
    assert lines[1] == (
        "v: float64 (4,), out: float64 (4,), mode = 'slow' (random numbers from 0 to 1, seed 0)"
    )
    assert lines[2].startswith("perf_dispatch 'drag', geometry (")
    assert "((4,), dtype('float64'), True), " in lines[2]
    assert lines[3].split()[:2] == ["implementation", "median"]
    assert [line.split()[0] for line in lines[4:6]] == ["first", "second"]
    assert "in use (measured): " in lines[6]
    assert "samples: warm, repeated runs on copies of the arguments" in text
    assert text.count("perf_dispatch 'drag', geometry") == 2
    assert text.endswith(
        f"\nStored in {folder / 'cache' / 'tuning-v1.sqlite'}; "
        "see `turnout report --operation solver.drag`.\n"
    )
    first, second = stored_geometries("solver.drag")
    assert "(4,)" in first
    assert "(9,)" in second
    report = CliRunner().invoke(main, ["report", "--operation", "solver:drag"])
    assert "first" in report.stdout
    v, k, mode = sys.modules["solver"].seen[0]
    assert np.array_equal(v, np.random.default_rng(0).random(4))
    assert (k, mode) == (0.5, "slow")


def test_options_may_come_first() -> None:
    text = output("--seed", "7", "--shapes", "(4,) (4,)", "--dtype", "f32", "solver:drag")
    assert "v: float32 (4,), out: float32 (4,) (random numbers from 0 to 1, seed 7)" in text


def test_an_operation_of_numbers_alone() -> None:
    text = output("solver:difference", "--argument", "a=5", "--argument", "b=3")
    assert "\na = 5, b = 3 (given)\n" in text


def test_implementations_that_cannot_be_stored_are_named() -> None:
    result = run("solver:norm", "--shapes", "(4,)")
    assert result.exit_code == 0, result.output
    assert "Stored in" in result.stdout
    assert result.stderr == (
        "\nNot stored: norm. Where turnout cannot tell what code an implementation consists of, "
        "register(version='...') says so.\n"
    )
    (entry,) = default_store().entries()
    assert [each.implementation for each in entry.measurements] == ["lambda"]


def test_data_of_several_functions() -> None:
    text = output("solver:segments", "--data", "solver:inputs", "--data", "solver:cases")
    assert text.count("(from solver:inputs)") == 1
    assert text.count("(from solver:cases)") == 2
    assert len(stored_geometries("solver.segments")) == 2  # two of the three are the same


def test_a_function_that_fails_later_keeps_what_was_measured() -> None:
    message = run("solver:segments", "--data", "solver:failing_later")
    assert message.exit_code == 1
    assert "ValueError: no more" in message.stderr
    assert len(stored_geometries("solver.segments")) == 1


def test_arguments_that_no_implementation_takes() -> None:
    result = run("solver:drag", "--shapes", "(3,) (4,)", "--shapes", "(5,) (5,)")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: these arguments cannot be used:\n  File ")
    assert "ValueError: operands could not be broadcast" in result.stderr
    assert "perf.py" not in result.stderr
    assert "v: float64 (5,), out: float64 (5,)" in result.stdout
    assert "Stored in" in result.stdout


def test_all_shapes_are_checked_before_the_first_is_measured() -> None:
    message = error("solver:drag", "--shapes", "(3,) (3,)", "--shapes", "(3,)")
    assert message.startswith("drag(v, out, k=0.5, *, mode='fast'): nothing is given for 'out'")
    assert sys.modules["solver"].seen == []


def test_the_only_implementation_is_not_measured() -> None:
    result = run("solver:alone", "--shapes", "(3,)")
    assert result.exit_code == 0, result.output
    assert "'in_a_call' is in use (given): the only compatible implementation" in result.stdout
    assert result.stderr == "\nNothing was measured, so nothing is stored.\n"


@pytest.mark.parametrize("mode", ["off", "read"])
def test_where_nothing_may_be_stored(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_TUNING", mode)
    result = run("solver:drag", "--shapes", "(3,) (3,)")
    assert result.exit_code == 0, result.output
    assert "in use (measured): " in result.stdout
    assert (
        result.stderr == "\nNothing is stored, because TURNOUT_TUNING or TURNOUT_CACHE says so.\n"
    )


def test_a_later_process_begins_with_what_was_stored() -> None:
    output("solver:drag", "--shapes", "(4,) (4,)")
    del sys.modules["solver"]
    solver = importlib.import_module("solver")
    solver.drag(np.ones(4), np.empty(4))
    assert solver.drag.explain(np.ones(4), np.empty(4)).source == "remembered"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["solver"], "'solver' is neither a command (export, import) nor MODULE:OPERATION"),
        (["exprot", "file"], "'exprot' is neither a command (export, import) nor MODULE:OPERATION"),
        (["solver:drag"], "say for which arguments: --shapes '(1024, 3) (1024,)', or --data "),
        (["--shapes", "(3,)"], "Missing argument 'MODULE:OPERATION'."),
        (["solver:drag", "--shapes", "3"], "Invalid value for '--shapes': '3' is no list of shap"),
        (["solver:drag", "--dtype", "i8"], "Invalid value for '--dtype': 'i8' is not allowed: "),
        (["solver:drag", "--argument", "k"], "Invalid value for '--argument': 'k' is not allowed"),
        (
            ["solver:drag", "--argument", "k=1", "--argument", "k=2"],
            "--argument gives one parameter two values",
        ),
        (
            ["solver:drag", "--data", "solver:inputs", "--shapes", "(3,)"],
            "--data gives all arguments: leave out --shapes",
        ),
        (
            ["solver:drag", "--data", "solver:inputs", "--seed", "0"],
            "--data gives all arguments: leave out --seed",
        ),
    ],
)
def test_wrong_usage(arguments: list[str], expected: str) -> None:
    assert usage_error(*arguments).startswith(expected)


def test_help() -> None:
    text = output("--help")
    assert "(MODULE:OPERATION [OPTIONS] | export FILE | import FILE)" in text
    for word in ("--shapes", "--dtype", "--argument", "--seed", "--data", "export", "import"):
        assert f"  {word} " in text
    assert output("solver:drag", "--help").startswith(
        "Usage: main tune MODULE:OPERATION [OPTIONS]\n"
    )
