"""What measurements are filed under: the same in every process, another one for other code."""

from __future__ import annotations

import enum
import functools
import importlib
import math
import os
import subprocess
import sys
import types
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import turnout as tn
from turnout import NDArray, f64
from turnout.errors import ConfigurationError
from turnout.geometry import describe
from turnout.identity import (
    LONGEST_GEOMETRY,
    canonical_geometry,
    implementation_digest,
    measurement_key,
)

CORE = str(Path(tn.__file__).resolve().parents[1])
Shape = namedtuple("Shape", ["rows", "columns"])


class Layout(enum.Enum):
    ROWS = "rows"
    COLUMNS = "columns"


class Level(enum.IntEnum):
    LOW = 1


# Geometries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((), "()"),
        ((1,), "(1,)"),
        (((64, 3), np.dtype("f4"), True, None), "((64, 3), float32, True, None)"),
        (np.dtype(">f8"), ">f8"),
        ("a 'é'\n", r""" "a '\xe9'\n" """.strip()),
        ("\ud800", r"'\ud800'"),
        ((1.5, -0.0, 2j, b"x"), "(1.5, -0.0, 2j, b'x')"),
        ((math.inf, math.nan), "(inf, nan)"),
        (True, "True"),
        ((int, np.ndarray), "(int, numpy.ndarray)"),
        ((np.int32(3), np.float64(0.5)), "(int32(3), float64(0.5))"),
        ((Layout.ROWS,), f"({__name__}.Layout('rows'),)"),
        ((Level.LOW, 1), f"({__name__}.Level(1), 1)"),
        (Shape(3, 4), f"{__name__}.Shape(3, 4)"),
    ],
)
def test_plain_values_have_a_text(value: object, expected: str) -> None:
    assert canonical_geometry(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        hash("may differ in the next process"),
        0,
        np.zeros(3),
        (1, [2]),
        ({"a": 1},),
        frozenset([1]),
        object(),
        (1, (2, object())),
        lambda: 0,
        range(3),
        (1,) * LONGEST_GEOMETRY,
    ],
    ids=repr,
)
def test_other_values_have_none(value: object) -> None:
    assert canonical_geometry(value) is None


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner).map(tuple),
    max_leaves=8,
)


@settings(deadline=None)
@given(plain.map(lambda value: (value,)), plain.map(lambda value: (value,)))
def test_different_values_have_different_texts(left: object, right: object) -> None:
    are_equal = repr(left) == repr(right)  # unlike ==, tells 1 from True
    assert (canonical_geometry(left) == canonical_geometry(right)) == are_equal


def test_the_default_geometry_has_a_text() -> None:
    arguments = (np.zeros((4, 3), np.float32), np.zeros((4, 3)).T, 2.5, "fast", True, None)
    geometry = tuple(describe(argument) for argument in (*arguments, Layout.ROWS, [np.zeros(2)]))
    assert canonical_geometry(geometry) == (
        "(((4, 3), float32, True), ((3, 4), float64, False), float, (str, 'fast'), (bool, True), "
        f"(NoneType, None), ({__name__}.Layout, {__name__}.Layout('rows')), "
        "(list, (numpy.ndarray, (2,), float64, True, (1, 0))))"
    )


# Keys ---------------------------------------------------------------------------------------------


def test_a_key_names_device_hardware_and_versions() -> None:
    context = importlib.import_module("turnout.backends").resolve((), "reference")
    key = measurement_key("solver.drag", "((64,), float64)", context)
    assert (key.operation, key.geometry) == ("solver.drag", "((64,), float64)")
    assert key.device == "reference:0"
    assert key.hardware.startswith(f"NumPy {np.__version__}, target numpy ")
    tag, version = sys.implementation.cache_tag, importlib.import_module("turnout.discovery")
    assert key.versions == (
        f"numpy {np.__version__}, python {tag}, turnout {version.core_version()}"
    )


# Digests ------------------------------------------------------------------------------------------

MODULE = """
import math
import turnout as tn
from turnout import NDArray, Scalar, f64

TILE = 32
TABLE = [1, 2]
LAYOUTS = frozenset(["a", "b", "c"])

@tn.func
def square(x):
    return x * x

@tn.kernel
def kernel(a: NDArray[f64, 1]) -> None:
    for i in range(a.shape[0]):
        a[i] = square(a[i]) + TILE

def helper(x, order="C"):
    return inner(x) + math.sqrt(TILE)

def inner(x):
    # a comment
    return x if x in {"a", "b", "c"} else helper(x)

def implementation(x, *, n=1):
    return [helper(each) for each in x] + TABLE

def make(offset):
    def made(x):
        return x + offset
    return made

made = make(3)
"""


def module_of(source: str, name: str = "implementations") -> types.ModuleType:
    module = types.ModuleType(name)
    lines = source.splitlines(keepends=True)
    filename = f"<{name} {hash(source)}>"
    importlib.import_module("linecache").cache[filename] = (len(source), None, lines, filename)
    exec(compile(source, filename, "exec"), module.__dict__)
    return module


def digest_of(name: str, source: str = MODULE) -> str | None:
    return implementation_digest(getattr(module_of(source), name))


@pytest.mark.parametrize("name", ["kernel", "implementation", "made"])
def test_the_same_code_has_the_same_digest(name: str) -> None:
    digest = digest_of(name)
    assert digest is not None
    assert len(digest) == 64
    assert digest_of(name) == digest
    moved = "# moved\n\n" + MODULE.replace("    # a comment\n", "")
    assert digest_of(name, moved) == digest


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("kernel", "TILE = 32", "TILE = 64"),
        ("kernel", "return x * x", "return x * x * x"),
        ("kernel", "a[i] = square(a[i])", "a[i] = 2 * square(a[i])"),
        ("kernel", "@tn.kernel", "@tn.kernel(debug=True)"),
        ("implementation", "TILE = 32", "TILE = 64"),
        ("implementation", 'order="C"', 'order="F"'),
        ("implementation", "n=1", "n=2"),
        ("implementation", "x if x in", "2 * x if x in"),
        ("implementation", "math.sqrt", "math.log"),
        ("implementation", "import math\n", "import cmath as math\n"),
        ("implementation", '{"a", "b", "c"}', '{"a", "b", "d"}'),
        ("implementation", "TABLE = [1, 2]", "TABLE = (1, 2)"),
        ("made", "make(3)", "make(4)"),
        ("made", "make(3)", "make(3.0)"),
        ("made", "x + offset", "x - offset"),
    ],
)
def test_other_code_has_another_digest(name: str, old: str, new: str) -> None:
    assert old in MODULE
    other = digest_of(name, MODULE.replace(old, new))
    assert other is not None
    assert other != digest_of(name)


def test_objects_of_the_module_count_as_their_type() -> None:
    # They may change while the program runs, and are no part of the implementation.
    changed = MODULE.replace("TABLE = [1, 2]", "TABLE = [3]")
    assert digest_of("implementation", changed) == digest_of("implementation")


def test_functions_of_other_modules_count_by_name() -> None:
    def calling(called: Callable[..., Any]) -> str | None:
        module = module_of("def implementation(x):\n    return called(x)\n")
        module.__dict__["called"] = called
        return implementation_digest(module.implementation)

    first, second = module_of("def f(x): return 1", "a"), module_of("def f(x): return 2", "a")
    assert calling(first.f) == calling(second.f)
    assert calling(first.f) != calling(module_of("def f(x): return 1", "b").f)


def test_a_module_in_which_everything_calls_everything() -> None:
    calls = " + ".join(f"f{number}(x)" for number in range(40))
    module = module_of("".join(f"def f{number}(x): return {calls}\n" for number in range(40)))
    assert implementation_digest(module.f0) is not None


def test_closures_over_functions_and_kernels() -> None:
    def wrap(function: Any) -> Callable[..., Any]:
        return lambda *arguments: function(*arguments)

    module = module_of(MODULE)
    wrapped = [module.inner, module.kernel, module.square, math.sqrt, np.multiply, math]
    digests = {implementation_digest(wrap(each)) for each in wrapped}
    assert len(digests) == len(wrapped)
    assert None not in digests


def test_a_function_that_closes_over_itself() -> None:
    def countdown(n: int) -> int:
        return countdown(n - 1) if n else 0

    assert implementation_digest(countdown) is not None


def test_partial_functions() -> None:
    def scale(x: Any, factor: float, offset: float) -> Any:
        return x * factor + offset

    partials = [
        functools.partial(scale, factor=2, offset=1),
        functools.partial(scale, factor=2, offset=2),
        functools.partial(abs),
    ]
    assert len({implementation_digest(each) for each in partials}) == 3
    same = functools.partial(scale, offset=1, factor=2)
    assert implementation_digest(same) == implementation_digest(partials[0])
    assert implementation_digest(functools.partial(scale, np.zeros(2))) is None


class Adder:
    def __call__(self, x: int) -> int:
        return x + 1


def over(value: object) -> Callable[[], object]:
    return lambda: value


WITHOUT_DIGEST = [
    abs,
    np.multiply,
    math.sqrt,
    [].append,
    int,
    Adder(),
    Adder().__call__,
    over(np.zeros(2)),
    over([1]),
    over([].append),
    over((1, {2: 3})),
    over(object()),
]


@pytest.mark.parametrize("function", WITHOUT_DIGEST)
def test_what_nobody_can_know_needs_a_version(function: Callable[..., Any]) -> None:
    assert implementation_digest(function) is None
    first, second = (implementation_digest(function, version=each) for each in ("1", "2"))
    assert None not in (first, second)
    assert first != second


def test_a_version_adds_to_the_code() -> None:
    first, second = module_of(MODULE), module_of(MODULE.replace("TILE = 32", "TILE = 64"))
    digests = {
        implementation_digest(module.implementation, version)
        for module in (first, second)
        for version in (None, "1", "2")
    }
    assert len(digests) == 6


@pytest.mark.parametrize("version", ["", 1, b"1"])
def test_a_version_is_a_text(version: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"version={version!r} is not allowed: give a "):
        implementation_digest(abs, version)


def test_digests_are_the_same_in_other_processes(tmp_path: Path) -> None:
    (tmp_path / "implementations.py").write_text(MODULE)
    code = (
        "import implementations as m\n"
        "from turnout.identity import implementation_digest as digest\n"
        "print(digest(m.kernel), digest(m.implementation), digest(m.made), digest(abs, '1'))\n"
    )
    outputs = set()
    for seed in ("0", "1", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": os.pathsep.join((CORE, str(tmp_path))),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert "None" not in outputs.pop()


def test_a_kernel_is_known_by_what_it_is_made_of() -> None:
    @tn.kernel
    def doubled(a: NDArray[f64, 1]) -> None:
        for i in range(a.shape[0]):
            a[i] = a[i] * 2

    assert implementation_digest(doubled) is not None
    assert implementation_digest(doubled) == implementation_digest(doubled)
