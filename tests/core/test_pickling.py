"""Kernels, helpers and operations in pickles and copies: by name, and by source where need be."""

from __future__ import annotations

import copy
import enum
import gc
import linecache
import math
import multiprocessing
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


# ---- operations ----------------------------------------------------------------------------------


def plain_double(x: Any, by: Any = 2) -> Any:
    return x * by


def shape_of(x: Any, by: Any = 2) -> Any:
    return x.shape


def is_short(x: Any, by: Any = 2) -> bool:
    return len(x) < 3


def local_operation() -> Any:
    """An operation that no reader can import, of parts that pickle takes."""

    @tn.perf_dispatch(get_geometry_hash=shape_of, warmup=0, repeat_after_seconds=0)
    def multiplied(x: Any, by: int = 2) -> Any:
        """Multiply."""

    offset = 100

    @multiplied.register
    @tn.kernel
    def multiplied_kernel(x: Scalar, by: Param = 2) -> Scalar:
        return x * by + offset - 100

    multiplied.register(name="plain", is_compatible=is_short)(plain_double)
    return multiplied


def read_elsewhere(make: Any, library: Any = pickle) -> Any:
    """What a process reads that does not have the operation."""
    stored = library.dumps(make())
    gc.collect()  # there is no operation any more
    return pickle.loads(stored)


def test_an_operation_comes_back_as_itself_while_it_is_there() -> None:
    operation = local_operation()
    stored = pickle.dumps([operation, operation])
    assert pickle.loads(stored) == [operation, operation]
    assert copy.deepcopy(operation) is operation
    operation.register(name="third")(plain_double)
    assert pickle.loads(stored)[0] is operation
    assert pickle.loads(pickle.dumps(operation)) is operation
    assert operation.implementations == ("multiplied_kernel", "plain", "third")


def test_a_closure_operation_travels_with_its_settings_and_implementations() -> None:
    made = read_elsewhere(local_operation)
    assert (made.__name__, made.__module__, made.__doc__) == ("multiplied", __name__, "Multiply.")
    assert made.__qualname__ == "local_operation.<locals>.multiplied"
    assert str(made.__signature__) == "(x, by=2)"
    assert made.implementations == ("multiplied_kernel", "plain")
    assert made.decision(X) is None
    assert made(X).tolist() == [2, 4]
    assert made(by=3, x=X).tolist() == [3, 6]
    assert made.decision(X, 4).samples.keys() == {"multiplied_kernel", "plain"}  # no warm-up
    assert made.decision(X).geometry == (2,)
    three = np.ones(3)
    assert made(three).tolist() == [2, 2, 2]
    assert made.decision(three).reason == "the only compatible implementation"
    assert repr(made) == "<perf_dispatch 'multiplied': ['multiplied_kernel', 'plain']>"


@pytest.mark.parametrize("settings", [{}, {"repeat_after_count": 0}, {"repeat_after_seconds": 1.0}])
def test_what_the_user_gave_stays_apart_from_defaults(settings: Any) -> None:
    def make() -> Any:
        return tn.perf_dispatch(active="auto", **settings)(plain_double)

    made = read_elsewhere(make)
    assert made._settings.plan == make()._settings.plan
    assert made._settings.plan.is_budgeted is (not settings)


def test_an_operation_is_made_once_and_goes_on_measuring() -> None:
    operation = local_operation()
    stored = pickle.dumps(operation)
    del operation
    gc.collect()
    made = pickle.loads(stored)
    for _ in range(3):
        made(X)
    decision = made.decision(X)
    assert decision.chosen is not None
    assert pickle.loads(stored) is made
    assert made.decision(X) == decision
    assert pickle.loads(pickle.dumps(made)) is made


def test_an_operation_with_more_implementations_is_another_one() -> None:
    operation = local_operation()
    first = pickle.dumps(operation)
    operation.register(name="third")(plain_double)
    second = pickle.dumps(operation)
    del operation
    gc.collect()
    assert len(pickle.loads(first).implementations) == 2
    assert len(pickle.loads(second).implementations) == 3
    made = pickle.loads(first)
    made.register(name="own")(plain_double)
    assert pickle.loads(pickle.dumps(made)) is made
    assert pickle.loads(first) is made
    assert made.implementations == ("multiplied_kernel", "plain", "own")


def test_every_kind_of_parameter_and_the_default_geometry_travel() -> None:
    def make() -> Any:
        @tn.perf_dispatch
        def op(a: int, /, b: Any = X, *rest: int, c: int, d: Any = (), **more: int) -> Any: ...

        return op

    made = read_elsewhere(make)
    assert str(made.__signature__) == f"(a, /, b={X!r}, *rest, c, d=(), **more)"
    made.register(name="echo")(lambda a, /, b, *rest, c, d, **more: (a, b.tolist(), rest, c, more))
    assert made(1, c=3, e=4) == (1, [1, 2], (), 3, {"e": 4})


def test_pickle_refuses_local_functions_of_a_local_operation() -> None:
    def make() -> Any:
        @tn.perf_dispatch(get_geometry_hash=lambda x: 0)
        def op(x: Any) -> Any: ...

        return op

    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(make())


def stored_before_and_after_a_change(library: Any) -> tuple[bytes, bytes]:
    scale = 2

    @tn.perf_dispatch(get_geometry_hash=lambda x: x.shape, warmup=0, repeat_after_seconds=0)
    def op(x: Any) -> Any: ...

    @op.register
    def first(x: Any) -> Any:
        return x * scale

    @op.register(is_compatible=lambda x: len(x) < 3)
    def recursive(x: Any) -> Any:
        return x * scale if len(x) < 2 else np.concatenate([op(x[:1]), op(x[1:])])

    before = library.dumps(op)
    scale = 5
    return before, library.dumps(op)


def test_cloudpickle_takes_any_function_and_the_latest_values() -> None:
    before, after = stored_before_and_after_a_change(pytest.importorskip("cloudpickle"))
    gc.collect()  # there is no operation any more
    made = pickle.loads(before)
    assert [made(X).tolist() for _ in range(6)] == [[2, 4]] * 6
    decision = made.decision(X)
    assert decision.samples.keys() == {"first", "recursive"}
    assert pickle.loads(after) is made
    assert made.decision(X) == decision
    assert [made(X).tolist() for _ in range(6)] == [[5, 10]] * 6
    assert made(np.ones(4)).tolist() == [5] * 4


OPERATIONS = """
import multiprocessing, pickle, sys
import numpy as np
import turnout as tn
from turnout import Param, Scalar

OFFSET = 5

@tn.perf_dispatch(get_geometry_hash=lambda x, by=2: x.shape, repeat_after_seconds=0)
def op(x, by=2): ...

@op.register
@tn.kernel
def by_kernel(x: Scalar, by: Param) -> Scalar:
    return (x + OFFSET) * by

@op.register(name="by_numpy", is_compatible=lambda x, by: len(x) > 1 or "too short")
def _(x, by):
    return (x + OFFSET) * by

@op.register(is_compatible=lambda x, by: len(x) > 1)
def in_halves(x, by):
    return np.concatenate([op(x[:1], by), op(x[1:], by)])

def make(offset):
    @tn.perf_dispatch
    def in_function(x): ...

    @in_function.register
    @tn.kernel
    def adding(x: Scalar) -> Scalar:
        return x + offset

    return in_function

class Solver:
    @tn.perf_dispatch(get_geometry_hash=lambda self, x: x.shape)
    def solve(self, x): ...

    @solve.register
    def halve(self, x):
        return x / 2

def call(operation, *arguments):
    return [operation(*arguments).tolist() for _ in range(10)]

X = np.array([1.0, 2.0])

def is_right(results):
    return results == [[12.0, 14.0]] * 10

if __name__ == "__main__":
    assert is_right(call(op, X))
    assert pickle.loads(pickle.dumps(op)) is op
    if sys.argv[1] == "pool":
        with multiprocessing.get_context(sys.argv[2]).Pool(1) as pool:
            assert is_right(pool.apply(call, (op, X)))
            assert pool.apply(call, (make(100), X)) == [[101.0, 102.0]] * 10
            assert pool.apply(call, (Solver.solve, Solver(), X)) == [[0.5, 1.0]] * 10
    else:
        library = __import__(sys.argv[1])
        with open(sys.argv[2], "wb") as file:
            library.dump([op, make(100), Solver.solve, {"inside": op}], file)
    print("right")
"""

OPERATIONS_READER = """
import pickle, sys
import numpy as np

OFFSET = 1000  # not the writer's

with open(sys.argv[2], "rb") as file:
    op, in_function, solve, inside = pickle.load(file)
assert inside["inside"] is op
x = np.array([1.0, 2.0])
assert [op(x).tolist() for _ in range(20)] == [[12.0, 14.0]] * 20
assert op(x[:1], by=3).tolist() == [18.0]
assert op.implementations == ("by_kernel", "by_numpy", "in_halves")
assert op.decision(x[:1]).reason == "the only compatible implementation"
assert in_function(x).tolist() == [101.0, 102.0]
assert solve(None, x).tolist() == [0.5, 1.0]
print("right")
"""


def run_script(folder: Path, script: str, text: str, *arguments: object) -> Any:
    (folder / script).write_text(text)
    return subprocess.run(
        [sys.executable, folder / script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_workers_run_operations_of_the_program(method: str, tmp_path: Path) -> None:
    done = run_script(tmp_path, "program.py", OPERATIONS, "pool", method)
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr


def test_another_program_makes_operations_from_cloudpickle(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    for script, text in (("writer.py", OPERATIONS), ("reader.py", OPERATIONS_READER)):
        done = run_script(tmp_path, script, text, "cloudpickle", tmp_path / "stored")
        assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr


def test_another_program_is_told_what_pickle_left_out(tmp_path: Path) -> None:
    done = run_script(tmp_path, "writer.py", OPERATIONS, "pickle", tmp_path / "stored")
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr
    done = run_script(tmp_path, "reader.py", OPERATIONS_READER, "pickle", tmp_path / "stored")
    assert done.stderr.splitlines()[-1] == (
        "turnout.errors.KernelError: the operation 'op' was pickled by its name in __main__, and "
        "there is no such operation here: define it in a module that both programs import, or "
        "pickle it with a library that pickles functions, such as cloudpickle"
    )
