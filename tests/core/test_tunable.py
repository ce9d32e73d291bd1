"""Tunable parameters: variants of functions and of kernels."""

from __future__ import annotations

import enum
import functools
import inspect
import pickle
from typing import Any

import numpy as np
import pytest

import turnout as tn
from turnout import NDArray, Scalar, f64
from turnout.implementations import forced_implementations
from turnout.signatures import check_parameters
from turnout.tunable import variants


def make(function: Any, tune: Any, prune: Any = None) -> list[Any]:
    return variants("the implementation 'v'", "v", function, tune, prune)


def names(function: Any, tune: Any, prune: Any = None) -> list[str]:
    return [variant.name for variant in make(function, tune, prune)]


def refusal(function: Any, tune: Any, prune: Any = None) -> str:
    with pytest.raises(tn.KernelError) as caught:
        make(function, tune, prune)
    return str(caught.value)


def scaled(a, out, *, tile, unroll=1):
    np.multiply(a, tile * 100 + unroll, out=out)


class Order(enum.Enum):
    ROWS = 1
    COLUMNS = 2


# ---- functions -----------------------------------------------------------------------------------


def test_there_is_one_variant_per_combination():
    made = make(scaled, {"tile": [16, 32], "unroll": [1, 4]})
    assert [variant.name for variant in made] == [
        "v[tile=16,unroll=1]",
        "v[tile=16,unroll=4]",
        "v[tile=32,unroll=1]",
        "v[tile=32,unroll=4]",
    ]
    for variant in made:
        out = np.zeros(2)
        variant.function(np.ones(2), out)
        values = variant.parameters
        assert out.tolist() == [values["tile"] * 100 + values["unroll"]] * 2
    assert made[3].parameters == {"tile": 32, "unroll": 4}


def test_tunable_parameters_are_no_part_of_the_signature():
    prototype = inspect.signature(lambda a, out: None)
    for variant in make(scaled, {"tile": [1], "unroll": (2,)}):
        assert str(inspect.signature(variant.function)) == "(a, out)"
        check_parameters("v", variant.function, prototype)
    (variant,) = make(scaled, {"tile": [1]})
    assert str(inspect.signature(variant.function)) == "(a, out, *, unroll=1)"


def test_a_parameter_with_a_default_is_tunable_where_it_is_last():
    def function(a, out, tile=3):
        np.multiply(a, tile, out=out)

    out = np.zeros(1)
    make(function, {"tile": [7]})[0].function(np.ones(1), out)
    assert out.tolist() == [7]

    def middle(a, tile=3, out=None): ...

    assert refusal(middle, {"tile": [7]}) == (
        "the implementation 'v': parameters behind the tunable 'tile' could not be given by "
        "position: put tunable parameters last, or after a *"
    )

    def rest(a, tile=3, *more): ...

    assert "parameters behind the tunable 'tile'" in refusal(rest, {"tile": [7]})

    def several(a, first=1, second=2, *, third=3): ...

    assert names(several, {"second": [1], "first": [2], "third": [3]}) == [
        "v[second=1,first=2,third=3]"
    ]
    assert "behind the tunable 'first'" in refusal(several, {"first": [1]})


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda a: None, "has no such parameter"),
        (lambda a, tile: None, "declares it as tile"),
        (lambda a, tile=1, /: None, "declares it as tile=1"),
        (lambda a, *tile: None, "declares it as *tile"),
        (lambda a, **tile: None, "declares it as **tile"),
    ],
)
def test_a_function_without_such_a_keyword(function, found):
    assert refusal(function, {"tile": [1]}) == (
        f"the implementation 'v': tune= names 'tile', and the function {found}: declare a keyword "
        "argument 'tile' after a *, or one with a default"
    )


def test_a_builtin_that_does_not_tell():
    assert "does not tell its parameters: wrap it in a plain function" in refusal(
        min, {"key": [None]}
    )


def test_variants_of_what_has_arguments_already():
    variant = make(functools.partial(scaled, unroll=9), {"tile": [2]})[0]
    out = np.zeros(1)
    variant.function(np.ones(1), out)
    assert out.tolist() == [209]


def test_variants_are_pickled_with_their_function():
    variant = make(scaled, {"tile": [16]})[0].function
    loaded = pickle.loads(pickle.dumps(variant))
    assert loaded.func is scaled
    assert loaded.keywords == {"tile": 16}
    assert str(inspect.signature(loaded)) == "(a, out, *, unroll=1)"


# ---- values --------------------------------------------------------------------------------------


def keyed(a, *, key=None): ...


def test_how_values_are_spelt():
    values = [1, -2, 0.5, 1e-9, True, None, "row", "a-b_c.d+e", Order.ROWS, (8, 4), ("x", (1,))]
    assert [name[len("v[key=") : -1] for name in names(keyed, {"key": values})] == [
        "1", "-2", "0.5", "1e-09", "True", "None", "row", "a-b_c.d+e", "ROWS", "(8,4)", "(x,(1))",
    ]  # fmt: skip
    assert names(keyed, {"key": range(2, 6, 2)}) == ["v[key=2]", "v[key=4]"]


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        (None, "tune=None is not allowed: give a dict from parameters to the values to try"),
        ({}, "tune={} is not allowed"),
        ([("key", [1])], "is not allowed: give a dict"),
        ({1: [1]}, "tune= has the key 1: give names of parameters"),
        ({"a b": [1]}, "tune= has the key 'a b'"),
        ({"key": []}, "tune= gives no values for 'key': give at least one"),
        ({"key": 3}, "tune={'key': 3} is not allowed: give a list of values"),
        ({"key": "abc"}, "tune={'key': 'abc'} is not allowed: give a list of values"),
        ({"key": [16, 32, 16]}, "tune= gives 'key' the value 16 twice: names of variants must"),
        ({"key": [1, "1"]}, "tune= gives 'key' the value 1 twice"),
        ({"key": [[1]]}, "tune= gives 'key' the value [1] of type list: give Python numbers"),
        ({"key": np.array([16])}, "of type int64: give Python numbers"),
        ({"key": ["a,b"]}, "the value 'a,b' of type str: give .* strings of letters"),
        ({"key": [""]}, "the value '' of type str"),
        ({"key": ["a]"]}, "the value 'a]' of type str"),
        ({"key": [(1, "x:y")]}, "the value (1, 'x:y') of type tuple"),
        ({"key": [min]}, "the value <built-in function min> of type builtin_function_or_method"),
    ],
)
def test_values_that_cannot_be_tried(tune, message):
    found = refusal(keyed, tune)
    assert found.startswith("the implementation 'v': ")
    for part in message.split(" .* "):
        assert part in found


def test_combinations_are_left_out():
    tune = {"tile": [16, 32, 64], "unroll": [1, 4]}
    left = names(scaled, tune, prune=lambda tile, unroll: tile * unroll > 100)
    assert left == [
        "v[tile=16,unroll=1]",
        "v[tile=16,unroll=4]",
        "v[tile=32,unroll=1]",
        "v[tile=64,unroll=1]",
    ]
    assert names(scaled, tune, prune=lambda **given: np.True_ & (given["tile"] < 64)) == [
        "v[tile=64,unroll=1]",
        "v[tile=64,unroll=4]",
    ]


@pytest.mark.parametrize(
    ("prune", "message"),
    [
        (lambda tile: True, "prune= leaves no variant: it must return False for one or more"),
        (lambda tile: 1, "prune= returned 1 for {'tile': 2}: it must return True to leave"),
        (lambda tile: None, "prune= returned None"),
        (lambda: False, "prune= cannot be called with the keywords ['tile']: got an unexpected"),
        (lambda tile, unroll: False, "missing a required"),
        (3, "prune=3 is not callable: give a function"),
    ],
)
def test_predicates_that_mean_nothing(prune, message):
    assert message in refusal(scaled, {"tile": [2, 3]}, prune)


def test_there_may_be_many_combinations_and_not_too_many_variants():
    tune = {"tile": range(300), "unroll": range(300)}
    assert len(make(scaled, tune, prune=lambda tile, unroll: tile != unroll)) == 300
    assert "tune= makes more than 1000 variants, each of which" in refusal(scaled, tune)
    assert len(make(scaled, {"tile": range(1000)})) == 1000
    tune["tile"] = range(400)
    assert "tune= gives 120000 combinations, and at most 100000 are looked at" in refusal(
        scaled, tune, prune=lambda tile, unroll: True
    )


# ---- kernels -------------------------------------------------------------------------------------

factor = 2
offset = 0.5


@tn.func
def shifted(x):
    return x + offset


@tn.kernel
def affine(x: Scalar) -> Scalar:
    return shifted(x) * factor + offset


X = np.arange(3.0)


def test_constants_of_a_kernel_are_tunable(device):
    made = make(affine, {"factor": [2, 3], "offset": [0.0, 10.0]})
    assert made[3].name == "v[factor=3,offset=10.0]"
    for variant in made:
        # A helper keeps its own constants.
        wanted = (X + 0.5) * variant.parameters["factor"] + variant.parameters["offset"]
        assert variant.function(X, device=device).tolist() == wanted.tolist()
    assert affine(X, device=device).tolist() == ((X + 0.5) * 2 + 0.5).tolist()


def test_variants_are_builds_of_their_own(device):
    """E6: three variants that differ in one constant are three codes."""

    @tn.kernel
    def blocked(a: NDArray[f64, 1], seen: NDArray[f64, 1]) -> None:
        for start in tn.serial(range(0, a.shape[0], tile)):  # noqa: F821
            seen[0] += 1.0
            for i in range(start, min(start + tile, a.shape[0])):  # noqa: F821
                a[i] *= 2.0

    made = make(blocked, {"tile": [1, 4, 16]})
    texts = set()
    for variant, blocks in zip(made, (16, 4, 1), strict=True):
        a, seen = np.arange(16.0), np.zeros(1)
        variant.function(a, seen, device=device)
        assert (a.tolist(), seen.tolist()) == ((2 * np.arange(16.0)).tolist(), [blocks])
        lowered = variant.function.lower(variant.function.default_types())
        texts.add(tuple(str(unit) for unit in lowered.plan.units))
    assert len(texts) == 3
    assert len({variant.function.definition.digest for variant in made}) == 3


def test_a_constant_may_have_no_value_but_that_of_a_variant(device):
    @tn.kernel
    def k(x: Scalar) -> Scalar:
        return x * only_here  # noqa: F821

    (variant,) = make(k, {"only_here": [4]})
    assert variant.function(X, device=device).tolist() == [0, 4, 8]
    with pytest.raises(tn.KernelError, match="'only_here' is not defined"):
        k(X, device=device)


def test_a_constant_of_any_kind(device):
    mode = "add"
    sizes = (1, 2)
    local = 3.0

    @tn.kernel
    def k(x: Scalar) -> Scalar:
        return x + sizes[1] * local if mode == "add" else x * sizes[0]

    assert k(X, device=device).tolist() == [6, 7, 8]
    assert k.with_constants(mode="multiply", sizes=(5, 6))(X, device=device).tolist() == [0, 5, 10]
    single = k.with_constants(local=np.float32(0.5))
    assert single(X, device=device).tolist() == [1, 2, 3]
    assert single.with_constants(sizes=(0, 4))(X, device=device).tolist() == [2, 3, 4]
    assert repr(single) == f"<turnout.kernel {k.__qualname__}[local=0.5](x: Scalar)>"


def test_a_helper_can_be_exchanged(device):
    @tn.func
    def doubled(x):
        return 2 * x

    assert affine.with_constants(shifted=doubled)(X, device=device).tolist() == (
        (4 * X + 0.5).tolist()
    )


def test_names_that_are_no_constants_of_the_kernel():
    for name in ("x", "min", "missing", "tm", "device"):
        with pytest.raises(tn.KernelError) as caught:
            affine.with_constants(**{name: 1})
        assert str(caught.value) == (
            f"kernel affine takes no constant {name!r} from outside; it takes 'factor', 'offset', "
            "'shifted'. Constants are globals and closure variables that its body reads"
        )

    @tn.kernel
    def k(x: Scalar) -> Scalar:
        return min(x, 1.0)

    with pytest.raises(tn.KernelError, match="it takes none"):
        k.with_constants(min=3)
    assert "takes no constant 'tile'" in refusal(affine, {"tile": [1]})


def test_values_that_kernels_cannot_hold():
    with pytest.raises(tn.KernelError, match="kernel affine: 'factor' is an array from outside"):
        affine.with_constants(factor=np.ones(3))
    with pytest.raises(tn.KernelError, match="'factor' is a dict from outside of the kernel"):
        affine.with_constants(factor={})


def test_the_debug_and_fastmath_of_a_kernel_stay():
    @tn.kernel(debug=True, fastmath=True)
    def k(a: NDArray[f64, 1]) -> None:
        a[place] = 1.0  # noqa: F821

    variant = k.with_constants(place=9)
    assert (variant.debug, variant.fastmath) == (True, True)
    with pytest.raises(tn.OutOfBoundsError, match="index 9 is out of bounds"):
        variant(np.zeros(3), device="reference")


def test_variants_of_kernels_are_pickled_with_their_constants():
    variant = affine.with_constants(factor=7, offset=1)
    loaded = pickle.loads(pickle.dumps(variant))
    assert loaded is not affine
    assert loaded(X, device="reference").tolist() == ((X + 0.5) * 7 + 1).tolist()
    assert loaded.definition.digest == variant.definition.digest
    other = affine.with_constants(factor=8, offset=1)
    assert other.definition.digest != variant.definition.digest
    assert pickle.loads(pickle.dumps(affine)) is affine


# ---- the environment -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "forced"),
    [
        ("op:v[tile=32,unroll=4]", {"op": "v[tile=32,unroll=4]"}),
        (
            "op:v[tile=32,unroll=4],op2:w , op3:u[k=(8,4),m=row]",
            {"op": "v[tile=32,unroll=4]", "op2": "w", "op3": "u[k=(8,4),m=row]"},
        ),
        ("op:v,op2:w", {"op": "v", "op2": "w"}),
        (",op:v[a=1],,", {"op": "v[a=1]"}),
    ],
)
def test_names_of_variants_in_the_environment(text, forced, monkeypatch):
    monkeypatch.setenv("TURNOUT_PERFDISPATCH_FORCE", text)
    assert forced_implementations() == forced


def test_a_bracket_that_is_never_closed(monkeypatch):
    monkeypatch.setenv("TURNOUT_PERFDISPATCH_FORCE", "op:v[tile=32,unroll=4")
    with pytest.raises(tn.ConfigurationError, match="the entry 'unroll=4' is malformed"):
        forced_implementations()
