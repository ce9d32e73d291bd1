"""Kernels, helpers and operations in pickles and copies: by name, and by source where need be."""

from __future__ import annotations

import copy
import enum
import linecache
import math
import pickle
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from language_support import function_from

import turnout as tn
import turnout.math as tm
from turnout import Index, KernelError, NDArray, Param, Scalar, f32
from turnout.pickling import Definition

FACTOR = 3


class Mode(enum.IntEnum):
    SLOW = 1
    FAST = 2


@tn.func
def cubed(x):
    return x * x * x


@tn.kernel
def scaled(x: Scalar, factor: Param = 2) -> Scalar:
    return cubed(x) * factor * FACTOR


@tn.perf_dispatch
def operation(x: Any): ...


@operation.register
@tn.kernel
def operation_kernel(x: Scalar) -> Scalar:
    return x + 1


class Holder:
    @tn.kernel
    def inside(x: Scalar) -> Scalar:  # noqa: N805 - a kernel has no self
        return x + 2


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    # The way pytest imports this file leaves it out of the modules.
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or this_module())


def this_module() -> types.ModuleType:
    module = types.ModuleType(__name__)
    module.__dict__.update(globals())
    return module


X = np.array([1.0, 2.0])


@pytest.mark.parametrize("original", [scaled, cubed, operation, operation_kernel, Holder.inside])
def test_what_a_module_offers_is_pickled_by_name_and_never_copied(original: Any) -> None:
    for protocol in range(4, pickle.HIGHEST_PROTOCOL + 1):
        stored = pickle.dumps(original, protocol)
        assert pickle.loads(stored) is original
        assert len(stored) < 200
    assert copy.deepcopy(original) is original
    assert copy.copy(original) is original
    assert copy.deepcopy({"kept": [original]})["kept"][0] is original


@pytest.mark.parametrize("dtype", [tn.f32, tn.f64, tn.i8, tn.u64, tn.bool_])
def test_element_types_stay_single(dtype: Any) -> None:
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.deepcopy([dtype])[0] is dtype


def through_pickle(kernel: Any) -> Any:
    made = pickle.loads(pickle.dumps(kernel))
    assert made is not kernel
    return made


def closure(offset: Any, helper: Any = None) -> tn.Kernel:
    helper = helper or cubed

    @tn.kernel(debug=True)
    def inner(x: Scalar, table: NDArray[f32, 1], at: Index, *, k: Param = 5) -> Scalar:
        return helper(x) + offset + k + table[at]

    return inner


def test_a_closure_is_made_of_its_source() -> None:
    original = closure(10)
    made = through_pickle(original)
    arguments = (X, np.array([0.5], np.float32), np.array([0, 0]))
    assert made(*arguments).tolist() == original(*arguments).tolist() == [16.5, 23.5]
    assert made(*arguments, k=6).tolist() == [17.5, 24.5]
    assert (made.__name__, made.__qualname__, made.__module__, made.debug, made.fastmath) == (
        "inner",
        "closure.<locals>.inner",
        __name__,
        True,
        False,
    )
    assert repr(made) == repr(original)


def test_it_is_made_once_and_pickled_again() -> None:
    stored = pickle.dumps(closure(11))
    made = pickle.loads(stored)
    assert pickle.loads(stored) is made
    assert pickle.loads(pickle.dumps(made)) is made
    assert made.definition == closure(11).definition


def test_constants_of_other_types_make_other_kernels() -> None:
    values = (1, 1.0, True, np.float32(1), np.int8(1), -0.0, 0.0)
    made = [through_pickle(closure(value)) for value in values]
    assert len({id(kernel) for kernel in made}) == len(values)


def test_errors_and_violations_keep_the_place_in_the_file() -> None:
    original = closure(10)
    made = through_pickle(original)
    with pytest.raises(tn.OutOfBoundsError) as caught:
        made(X, np.zeros(1, np.float32), np.array([0, 7]))
    line = original.__wrapped__.__code__.co_firstlineno + 2
    assert f"{__file__}:{line}: index 7 is out of bounds" in str(caught.value)


def test_a_mistake_is_reported_as_in_the_original() -> None:
    @tn.kernel
    def wrong(x: Scalar) -> Scalar:
        return x << 1

    with pytest.raises(KernelError) as first:
        wrong(X)
    with pytest.raises(KernelError) as second:
        through_pickle(wrong)(X)
    assert str(second.value) == str(first.value)


def test_every_kind_of_constant_travels() -> None:
    number, vector, choice, policy = np.float32(2), (1, 2.5), Mode.FAST, "predicated"
    single = f32

    @tn.func
    def local_helper(x):
        return x + number

    @tn.kernel
    def everything(x: Scalar, kind: Index) -> Scalar:
        y = tm.dispatch(kind, [local_helper(x), x], policy=policy)
        z = tm.sqrt(y) + np.exp(x) * math.pi + vector[1] + single(0.1)
        return z + choice + Mode.SLOW

    made = through_pickle(everything)
    kind = np.array([0, 1])
    assert made(X, kind).tolist() == everything(X, kind).tolist()


def test_a_helper_travels_alone_and_runs_as_python() -> None:
    offset = 4

    @tn.func
    def helper(x, by=2):
        return x * by + offset

    made = through_pickle(helper)
    assert made(3) == helper(3) == 10
    assert made(3, by=3) == 13
    assert made.__qualname__ == helper.__qualname__
    assert closure(0, made)(X, np.zeros(1, np.float32), np.array([0, 0])).tolist() == [11, 13]


def test_what_was_executed_from_text_travels() -> None:
    text = """
@tn.kernel
def k(x: Scalar, y: Scalar) -> Scalar:
    return x * SCALE + y
"""
    kernel = function_from(text, SCALE=0.5)
    kernel.__module__ = "somewhere"
    linecache.clearcache()
    assert through_pickle(kernel)(X, X).tolist() == [1.5, 3.0]


def test_what_kernels_cannot_use_does_not_travel() -> None:
    unusable = {"not": "a constant"}

    @tn.kernel
    def wrong(x: Scalar) -> Scalar:
        return x + unusable

    with pytest.raises(KernelError, match="'unusable'"):
        through_pickle(wrong)(X)


def test_the_constants_are_those_the_original_compiled() -> None:
    values = {"n": 1}
    kernel = function_from(
        "@tn.kernel\ndef k(x: Scalar) -> Scalar:\n    return x + N\n", N=values["n"]
    )
    kernel.__module__ = "somewhere"
    assert kernel(X).tolist() == [2, 3]
    kernel.__wrapped__.__globals__["N"] = 100
    assert kernel(X.astype(np.float32)).tolist() == [2, 3]
    assert through_pickle(kernel)(X).tolist() == [2, 3]


def test_definitions_tell_apart_what_differs() -> None:
    def definition(**names: Any) -> Definition:
        text = "@tn.kernel\ndef k(x: Scalar) -> Scalar:\n    return x + N\n"
        return function_from(text, **names).definition

    assert definition(N=1).digest == definition(N=1).digest
    digests = {definition(N=value).digest for value in (1, 2, 1.0, np.int8(1), True, Mode.SLOW)}
    # An enum member counts as its number.
    assert len(digests) == 5


SCRIPT = """
import pickle, sys
import numpy as np
import turnout as tn
from turnout import Param, Scalar

OFFSET = 5

@tn.func
def helper(x):
    return x + OFFSET

@tn.kernel
def in_main(x: Scalar, factor: Param = 2) -> Scalar:
    return helper(x) * factor

def make(offset):
    @tn.kernel
    def in_function(x: Scalar) -> Scalar:
        return helper(x) + offset
    return in_function

if __name__ == "__main__":
    assert pickle.loads(pickle.dumps(in_main)) is in_main
    assert pickle.loads(pickle.dumps(helper)) is helper
    with open(sys.argv[1], "wb") as file:
        {dumps}
"""

READER = """
import pickle, sys
import numpy as np

OFFSET = 1000  # not the writer's

with open(sys.argv[1], "rb") as file:
    in_main, in_function = pickle.load(file)
x = np.array([1.0, 2.0])
print(in_main(x).tolist(), in_main(x, 3).tolist(), in_function(x).tolist(), in_main.__module__)
"""


@pytest.mark.parametrize("library", ["pickle", "cloudpickle"])
def test_another_program_makes_what_only_this_one_has(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    dumps = f"__import__('{library}').dump([in_main, make(100)], file)"
    (tmp_path / "writer.py").write_text(SCRIPT.replace("{dumps}", dumps))
    (tmp_path / "reader.py").write_text(READER)
    for script in ("writer.py", "reader.py"):
        done = subprocess.run(
            [sys.executable, "-W", "error", tmp_path / script, tmp_path / "pickle"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[12.0, 14.0] [18.0, 21.0] [106.0, 107.0] __main__"
