"""What implementations write: who says so, putting it aside and restoring it, working copies."""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import inspect
import itertools
import tracemalloc
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest
from fake_plugins import Site, backend_source
from hypothesis import given, settings
from hypothesis import strategies as st

import turnout as tn
from turnout import Index, Mutable, NDArray, Param, Scalar, Terminated, Vector, f32, f64, i64
from turnout.backends import clear
from turnout.copies import Snapshot, WorkingCopies, assign, poison
from turnout.tuning import Candidate, Case, Hooks, TrialPlan, Tuner
from turnout.written import Writes, check_mutates, combined, kernel_accesses


def bind(**arguments: Any) -> inspect.BoundArguments:
    """A call with these arguments."""
    parameters = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in arguments
    ]
    return inspect.Signature(parameters).bind(**arguments)


def signature(text: str) -> inspect.Signature:
    names = text.replace(",", " ").split()
    return bind(**dict.fromkeys(names)).signature


# ---- what kernels write --------------------------------------------------------------------------


@tn.kernel
def sample(x: Scalar, n: Index, v: Mutable[Scalar], w: Mutable[Vector[2]], done: Terminated):
    w = (x, v)
    v = x
    done = x > 1


@tn.kernel
def loops(a: NDArray[f32, 1], out: NDArray[f32, 1], total: NDArray[f64, 1], s: f64) -> None:
    for i in range(a.shape[0]):
        out[i] = a[i] * f32(s)
    for i in range(a.shape[0]):
        total[0] += a[i]


def test_a_kernel_of_samples_tells_what_it_writes_and_reads_before():
    assert kernel_accesses(sample) == {"v": "update", "w": "output", "done": "update"}


def test_a_kernel_of_arrays_tells_what_it_writes_and_reads_before():
    assert kernel_accesses(loops) == {"out": "output", "total": "update"}


def test_writes_in_helpers_and_branches_count():
    @tn.func
    def put(target, value):
        target[0] = value

    @tn.kernel
    def k(a: NDArray[f64, 1], b: NDArray[f64, 1], c: NDArray[f64, 1], n: Param):
        alias = b
        put(alias, a[0])
        if n > 3:
            c[0] = 1.0

    assert kernel_accesses(k) == {"b": "output", "c": "output"}


def test_parameters_that_must_be_integers_or_floats():
    @tn.kernel
    def counted(a: NDArray[f64, 1], n: Param):
        for i in range(n):
            a[i] = 0.0

    @tn.kernel
    def scaled(a: NDArray[f64, 1], s: Param):
        x = s
        for i in range(a.shape[0]):
            a[i] *= x
            x = x * 0.5

    @tn.kernel
    def both(a: NDArray[f64, 1], s: Param, n: Param):
        x = s
        for i in range(n):
            a[i] = x
            x = x * 0.5

    assert kernel_accesses(counted) == {"a": "output"}
    assert kernel_accesses(scaled) == {"a": "update"}
    assert kernel_accesses(both) == {"a": "output"}


def test_asking_leaves_constants_open():
    factor = 2

    @tn.kernel
    def k(x: Scalar) -> Scalar:
        return x * factor

    @tn.kernel
    def with_output(x: Scalar, y: Mutable[Scalar]):
        y = x * factor

    assert kernel_accesses(k) == {}
    assert kernel_accesses(with_output) == {"y": "output"}
    factor = 3
    assert k(np.ones(2), device="reference").tolist() == [3.0, 3.0]


def test_what_is_not_known_before_the_call_is_said_to_be_unknown():
    @tn.kernel
    def k(x: Scalar, y: Mutable[Scalar]):
        y = x * defined_later  # noqa: F821

    @tn.kernel
    def array(y: NDArray[f64, 1]):
        y[0] = defined_later  # noqa: F821

    assert kernel_accesses(k) == {"y": "unknown"}
    assert kernel_accesses(array) is None


def test_a_constant_of_a_variant_decides():
    first = True

    @tn.kernel
    def k(a: NDArray[f64, 1], b: NDArray[f64, 1]):
        if first:
            a[0] = 1.0
        else:
            b[0] = 1.0

    assert kernel_accesses(k) == {"a": "output"}
    assert kernel_accesses(k.with_constants(first=False)) == {"b": "output"}


# ---- declarations --------------------------------------------------------------------------------


def test_a_declaration_is_kept_in_the_order_of_the_prototype():
    prototype = signature("a b out")
    assert check_mutates("op", ("out", "a"), prototype) == {"a": "unknown", "out": "unknown"}
    assert check_mutates("op", [], prototype) == {}
    assert check_mutates("op", None, prototype) is None
    declared = check_mutates("op", {"out": "output", "a": "update"}, prototype)
    assert declared == {"a": "update", "out": "output"}


@pytest.mark.parametrize(
    ("mutates", "text"),
    [
        ("out", r"op: mutates='out' is not allowed: give a tuple .* mutates=\('out',\)"),
        (3, "op: mutates=3 is not allowed: give a tuple of parameter names"),
        (("put",), r"names 'put', which is no parameter .* its parameters are \['a', 'out'\]"),
        ((0,), "names 0, which is no parameter"),
        (("out", "out"), "names 'out' twice: name it once"),
        ({"out": "cleared"}, "says 'cleared' of 'out': say 'output' .*, and 'update' if it is"),
    ],
)
def test_a_declaration_that_means_nothing_is_refused(mutates, text):
    with pytest.raises(tn.KernelError, match=text):
        check_mutates("op", mutates, signature("a out"))


def writes(function, mutates, parameters="a out total s", default=None) -> Writes:
    prototype = signature(parameters)
    declared = check_mutates("v", mutates, prototype)
    return Writes(function, declared, prototype, check_mutates("op", default, prototype))


def plain(*arguments): ...


def test_who_says_what_is_written():
    assert writes(loops, None).accesses == {"out": "output", "total": "update"}
    assert writes(functools.partial(loops), None).accesses == {"out": "output", "total": "update"}
    assert writes(plain, None).accesses is None
    assert writes(plain, ("out",)).accesses == {"out": "unknown"}
    assert writes(plain, None, default=["a"]).accesses == {"a": "unknown"}
    assert writes(plain, (), default=["a"]).accesses == {}
    # What a kernel is known to write, it writes whatever is said of others.
    assert writes(loops, None, default=["out"]).accesses == {"out": "output", "total": "update"}


def test_a_kernel_under_other_names_tells_nothing():
    assert writes(loops, None, "args").accesses is None
    assert writes(loops, None, "args").is_unknown


def test_whether_anybody_says_what_is_written():
    assert writes(plain, None).is_unknown
    for known in (writes(loops, None), writes(plain, ()), writes(plain, None, default=())):
        assert not known.is_unknown


def test_a_declaration_that_its_kernel_contradicts_is_refused():
    fitting = writes(loops, ("out", "total"))
    fitting.check("v", {})
    assert fitting.accesses == {"out": "output", "total": "update"}
    with pytest.raises(
        tn.KernelError,
        match="v is a kernel that writes 'out', 'total', and mutates= says that it writes 'out': "
        "leave mutates= out",
    ):
        writes(loops, ("out",)).check("v", {})
    with pytest.raises(tn.KernelError, match="says that it writes nothing"):
        writes(loops, ()).check("v", {})
    with pytest.raises(
        tn.KernelError,
        match="mutates= says that 'total' is not read before it is written, but by the kernel "
        "itself it is read, then written",
    ):
        writes(loops, {"out": "output", "total": "output"}).check("v", {})


def test_declarations_of_two_implementations_that_contradict_each_other_are_refused():
    out, total = writes(plain, ("out",)), writes(plain, ("total",))
    both = writes(plain, ("out", "total"))
    both.check("v", {"out": out, "total": total})  # one of them may be a workspace
    with pytest.raises(
        tn.KernelError, match=r"v writes 'out', and 'w' writes 'total': .* correct mutates="
    ):
        out.check("v", {"w": total})
    with pytest.raises(tn.KernelError, match="v writes nothing, and 'w' writes 'out'"):
        writes(plain, ()).check("v", {"w": out})
    with pytest.raises(tn.KernelError, match="v writes 'a', and 'w' writes 'out', 'total'"):
        writes(plain, ("a",)).check("v", {"w": writes(loops, None)})
    with pytest.raises(tn.KernelError, match="v writes 'out', 'total', and 'w' writes 'a'"):
        writes(loops, None).check("v", {"w": writes(plain, ("a",))})
    writes(plain, None).check("v", {"w": out})  # says nothing


def test_two_implementations_cannot_clear_and_keep_one_argument():
    cleared, kept = writes(plain, {"out": "output"}), writes(plain, {"out": "update"})
    cleared.check("v", {"w": writes(plain, ("out",))})
    for one, other in itertools.permutations((cleared, kept)):
        with pytest.raises(tn.KernelError, match=r"'out' is .*, but by .* it is .* correct one"):
            one.check("v", {"w": other})


def test_kernels_with_workspaces_of_their_own_are_no_contradiction():
    @tn.kernel
    def other(a: NDArray[f32, 1], out: NDArray[f32, 1], total: NDArray[f64, 1], s: f64) -> None:
        total[0] = 1.0

    writes(other, None).check("v", {"w": writes(loops, None)})


def test_what_several_write_together():
    reading = writes(plain, {"out": "update"})
    assert combined([writes(loops, None), writes(plain, ("out", "a"))]) == {
        "out": "output",
        "total": "update",
        "a": "unknown",
    }
    assert combined([reading, writes(loops, None)])["out"] == "update"
    assert combined([writes(plain, None)]) == {}


# ---- snapshots -----------------------------------------------------------------------------------


@dataclasses.dataclass
class State:
    x: Any
    step: int = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any


class Pair(NamedTuple):
    x: Any
    y: Any


VIEWS = {
    "plain": lambda: np.arange(24.0),
    "two axes": lambda: np.arange(24.0).reshape(4, 6),
    "transposed": lambda: np.arange(24.0).reshape(4, 6).T,
    "Fortran order": lambda: np.asfortranarray(np.arange(24.0).reshape(4, 6)),
    "reversed": lambda: np.arange(24.0)[::-1],
    "every third": lambda: np.arange(24.0)[::3],
    "backwards in both": lambda: np.arange(24.0).reshape(4, 6)[::-1, ::-2],
    "a column": lambda: np.arange(24000.0).reshape(8, 3000)[:, 7],
    "broadcast": lambda: np.lib.stride_tricks.as_strided(np.arange(3.0), (4, 3), (0, 8)),
    "misaligned": lambda: np.frombuffer(bytearray(8 * 24 + 4), np.uint8)[4:].view(np.float64),
    "no axes": lambda: np.array(3.0),
    "empty": lambda: np.empty((0, 3)),
    "integers": lambda: np.arange(5, dtype=np.int16),
    "bools": lambda: np.array([True, False]),
    "records": lambda: np.zeros(3, [("x", "f4"), ("n", "i8")]),
    "times": lambda: np.arange(3).astype("M8[s]"),
    "texts": lambda: np.array(["a", "bc"]),
    "objects": lambda: np.array([1, "two", None], object),
}


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
def test_a_snapshot_restores_any_array(make):
    array = make()
    wanted = array.copy()
    snapshot = Snapshot(bind(a=array), ["a"])
    poison(array)
    if array.size and array.dtype.kind not in "UO":
        assert not np.array_equal(array, wanted)
    assert snapshot.restore()
    np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize(
    "hold",
    [
        lambda array: [array, 1.5],
        lambda array: ([array], "text"),
        lambda array: {"n": 3, "x": {"deep": array}},
        lambda array: State(array),
        lambda array: Frozen(array),
        lambda array: Pair(None, [array]),
        lambda array: np.array([array, None], object)[:1].tolist(),
        lambda array: collections.OrderedDict(x=array),
    ],
)
def test_arrays_are_found_wherever_they_sit(hold):
    array = np.arange(3.0)
    bound = bind(xs=[np.ones(2)], factor=2.0, state=hold(array))
    snapshot = Snapshot(bound, ["state"])
    array[:] = -1
    bound.arguments["xs"][0][:] = -1
    assert snapshot.restore()
    assert array.tolist() == [0, 1, 2]
    assert bound.arguments["xs"][0].tolist() == [-1, -1]  # nobody said that it is written


def test_what_containers_hold_is_restored_with_what_is_in_it():
    x = np.arange(3.0)
    values, by_name, state = [x, 1], {"x": x, "n": 1}, State(x)
    snapshot = Snapshot(bind(a=values, b=by_name, c=state), "abc")
    x *= 2
    values.append(3)
    values[0] = None
    del by_name["x"]
    by_name["n"], by_name["m"] = 7, 8
    state.x, state.step = np.zeros(2), 9
    assert snapshot.restore()
    assert values[0] is x
    assert values[1:] == [1]
    assert by_name["x"] is x
    assert list(by_name) == ["x", "n"]
    assert by_name["n"] == 1
    assert (state.x, state.step) == (x, 0)
    assert x.tolist() == [0, 1, 2]


def test_a_container_that_holds_itself():
    values: list[Any] = [np.arange(2.0)]
    values.append(values)
    snapshot = Snapshot(bind(a=values), "a")
    values[0][:] = 5
    assert snapshot.restore()
    assert values[0].tolist() == [0, 1]
    rebuilt = WorkingCopies(bind(a=values), "a").fresh().arguments["a"]
    assert rebuilt[1] is rebuilt
    assert rebuilt is not values


def test_overlapping_views_are_restored_in_whole():
    memory = np.arange(10.0)
    snapshot = Snapshot(bind(a=memory[:6], b=[memory[4:], memory[::-1]]), "ab")
    memory[:] = -1
    assert snapshot.restore()
    assert memory.tolist() == list(range(10))


def test_it_can_be_restored_again_and_again():
    x = np.arange(3.0)
    snapshot = Snapshot(bind(x=x), "x")
    for _ in range(3):
        x *= 2
        assert snapshot.restore()
    assert x.tolist() == [0, 1, 2]


def test_what_is_read_only_is_left_alone():
    x = np.arange(3.0)
    x.flags.writeable = False
    assert Snapshot(bind(x=x), "x").restore()


def test_arguments_that_were_left_out_are_no_arrays():
    assert Snapshot(bind(a=None), ["a", "absent"]).restore()


class Unknown:
    pass


def test_what_cannot_be_restored_is_said():
    snapshot = Snapshot(bind(a=[1, Unknown()]), "a")
    assert not snapshot.restore()
    assert snapshot.problem == (
        "'a'[1] is a Unknown; what can be copied and restored are arrays, and lists, tuples, dicts "
        "and dataclasses of them"
    )
    assert Snapshot(bind(a=1, b=Unknown()), "a").restore()  # it is only read


def peak_bytes(run) -> int:
    """The most memory that was allocated while `run` ran; also checks that it is freed."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        run()
        _, peak = tracemalloc.get_traced_memory()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 100_000
    return peak - before


def test_memory_is_that_of_what_is_written():
    big, out = np.ones(50_000_000 // 8), np.zeros(1)

    def run():
        bound = bind(big=big, parts=[big[10:], {"rest": big}], out=out)
        snapshot = Snapshot(bound, ["out"])
        copies = WorkingCopies(bound, ["out"])
        given = copies.fresh(["out"])
        given.arguments["out"][0] = given.arguments["big"].sum()
        assert given.arguments["parts"] is bound.arguments["parts"]
        assert snapshot.restore()

    assert peak_bytes(run) < 100_000
    assert out[0] == 0


def test_an_array_that_is_given_often_is_copied_once():
    out = np.zeros(1_000_000)

    def run():
        bound = bind(a=out, b=[out, out], c={"same elements": out[:]})
        assert Snapshot(bound, "abc").restore()

    assert peak_bytes(run) < 1.5 * out.nbytes


def test_a_column_of_a_large_matrix_is_copied_alone():
    matrix = np.zeros((1000, 6000))
    column = matrix[:, 3]

    def run():
        bound = bind(out=column)
        Snapshot(bound, ["out"])
        given = WorkingCopies(bound, ["out"]).fresh().arguments["out"]
        assert not given.flags.c_contiguous

    assert peak_bytes(run) < 100_000


def test_nothing_is_kept():
    x = np.arange(3.0)
    alive = weakref.ref(x)
    bound = bind(x=x)
    snapshot, copies = Snapshot(bound, "x"), WorkingCopies(bound, "x")
    copies.fresh()
    del x, bound, snapshot, copies
    gc.collect()
    assert alive() is None


# ---- working copies ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
def test_copies_are_like_their_originals(make):
    array = make()
    wanted = array.copy()
    copies = WorkingCopies(bind(a=array, n=3), ["a"])
    for _ in range(2):
        (given, n), keywords = copies.fresh().args, copies.fresh().kwargs
        assert (n, keywords) == (3, {})
        assert given.dtype == array.dtype
        np.testing.assert_array_equal(given, wanted)
        assert not np.may_share_memory(given, array)
        assert given.flags.c_contiguous == array.flags.c_contiguous
        assert given.flags.aligned == array.flags.aligned
        poison(given)
        np.testing.assert_array_equal(array, wanted)


def test_a_copy_keeps_strides_and_alignment():
    memory = np.arange(40.0)
    for array in (memory[1:], memory[3::2], memory[::-1], memory.reshape(4, 10).T[1:]):
        given = WorkingCopies(bind(a=array), "a").fresh().arguments["a"]
        assert given.strides == array.strides
        assert (given.ctypes.data - array.ctypes.data) % 64 == 0


def test_a_copy_is_read_only_where_its_original_is():
    x = np.arange(3.0)
    x.flags.writeable = False
    given = WorkingCopies(bind(x=x), "x").fresh().arguments["x"]
    with pytest.raises(ValueError, match="read-only"):
        given[0] = 1


def test_what_is_only_read_is_given_as_it_is():
    x, xs, out = np.ones(3), [np.ones(2)], np.zeros(3)
    given = WorkingCopies(bind(x=x, xs=xs, out=out), ["out"]).fresh().arguments
    assert given["x"] is x
    assert given["xs"] is xs
    assert given["out"] is not out


def test_one_array_in_several_places_is_one_copy():
    x = np.arange(3.0)
    shared = [x]
    bound = bind(x=x, xs=[x, np.ones(1)], state=State(x), pair=Pair(x, shared), shared=shared)
    for written in (["x"], ["shared"], ["state"]):
        given = WorkingCopies(bound, written).fresh().arguments
        copy = given["x"]
        assert copy is not x
        assert given["xs"][0] is copy
        assert given["xs"][1] is bound.arguments["xs"][1]
        assert given["state"].x is copy
        assert type(given["pair"]) is Pair
        assert given["pair"].x is copy
        assert given["pair"].y is given["shared"]
    assert shared == [x]


def test_what_overlaps_overlaps_in_the_copies():
    memory = np.arange(12.0)
    bound = bind(source=memory[:8], out=memory[2:], whole=memory, other=np.zeros(2))
    given = WorkingCopies(bound, ["out"]).fresh().arguments
    assert given["other"] is bound.arguments["other"]
    given["out"][:] = -given["out"]
    assert given["source"].tolist() == [0, 1, -2, -3, -4, -5, -6, -7]
    assert given["whole"].tolist() == [0, 1, *range(-2, -12, -1)]
    assert memory.tolist() == list(range(12))


def test_columns_side_by_side_do_not_overlap():
    matrix = np.zeros((1000, 6000))
    bound = bind(source=matrix[:, 0], out=matrix[:, 1])

    def run():
        given = WorkingCopies(bound, ["out"]).fresh().arguments
        assert given["source"] is bound.arguments["source"]

    assert peak_bytes(run) < 100_000


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 20), st.sampled_from([1, 2, 3, -1, -2])),
        min_size=2,
        max_size=5,
    ),
    st.integers(1, 3),
)
def test_any_views_of_one_memory_are_written_as_the_originals_are(slices, written_count):
    def views(memory):
        return [memory[first:last:step] for first, last, step in slices]

    memory = np.arange(20.0)
    names = [f"v{number}" for number in range(len(slices))]
    bound = bind(**dict(zip(names, views(memory), strict=True)))
    written = names[:written_count]
    given = WorkingCopies(bound, written).fresh().arguments
    wanted_memory = memory.copy()
    wanted = dict(zip(names, views(wanted_memory), strict=True))
    for number, name in enumerate(written):
        given[name][...] = wanted[name][...] = 100 + 10 * number
    for name in names:
        np.testing.assert_array_equal(given[name], wanted[name])
    assert memory.tolist() == list(range(20))


def test_containers_are_new_ones_every_time():
    bound = bind(xs=[np.zeros(1)], table={"n": 1}, state=State(np.ones(1)))
    copies = WorkingCopies(bound, ["xs", "table", "state"])
    for _ in range(2):
        given = copies.fresh().arguments
        assert given["table"] == {"n": 1}
        assert len(given["xs"]) == 1
        given["xs"].append(1)
        given["table"]["m"] = 2
        given["state"].step = 5
    assert bound.arguments["table"] == {"n": 1}
    assert len(bound.arguments["xs"]) == 1
    assert bound.arguments["state"].step == 0


@pytest.mark.parametrize(
    ("array", "is_poisoned"),
    [
        (np.zeros(3), np.isnan),
        (np.zeros(3, np.complex64), np.isnan),
        (np.zeros(3, np.int8), lambda array: array == 0x5A),
        (np.zeros(3, np.uint32), lambda array: array == 0x5A5A5A5A),
        (np.array([True, False]), lambda array: array == [False, True]),
        (np.zeros(2, "m8[s]"), np.isnat),
    ],
)
def test_poison(array, is_poisoned):
    given = WorkingCopies(bind(a=array), "a").fresh(poisoned="a").arguments["a"]
    assert is_poisoned(given).all()


def test_what_another_argument_reads_is_not_poisoned():
    memory, alone = np.arange(6.0), np.arange(2.0)
    bound = bind(x=memory[:4], out=memory[2:], same=memory, alone=alone)
    given = WorkingCopies(bound, ["out", "alone"]).fresh(poisoned=["out", "alone"]).arguments
    assert given["out"].tolist() == [2, 3, 4, 5]
    assert np.isnan(given["alone"]).all()
    both = WorkingCopies(bind(a=memory[:4], b=memory[2:]), "ab").fresh(poisoned="ab").arguments
    assert np.isnan(both["a"]).all()


def test_copies_of_what_cannot_be_copied():
    copies = WorkingCopies(bind(a=Unknown()), "a")
    assert copies.problem is not None
    assert "'a' is a Unknown" in copies.problem


# ---- arrays of devices ---------------------------------------------------------------------------


class Tensor:
    """An array of the host of another library: no NumPy array, but its memory can be taken."""

    def __init__(self, host):
        self.host = host
        self.shape, self.dtype = host.shape, host.dtype

    def clone(self):
        return Tensor(self.host.copy())

    def __setitem__(self, key, value):
        assert not isinstance(value, np.ndarray)
        self.host[key] = value.host

    def __array__(self, dtype=None, copy=None):
        return self.host

    def __dlpack__(self, **options):
        return self.host.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.host.__dlpack_device__()


def test_tensors_are_copied_and_restored():
    tensor = Tensor(np.arange(3.0))
    bound = bind(a=tensor)
    snapshot = Snapshot(bound, "a")
    given = WorkingCopies(bound, "a").fresh(poisoned="a").arguments["a"]
    assert np.isnan(given.host).all()
    assert tensor.host.tolist() == [0, 1, 2]
    tensor.host[:] = 7
    assert snapshot.restore()
    assert tensor.host.tolist() == [0, 1, 2]


ASSIGNABLE = """
    def __setitem__(self, key, value):
        assert key is ... and isinstance(value, Array) and value.device == self.device
        self.host[key] = value.host

class Memory:
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that installs the backend ``gpu``, whose arrays are not NumPy's."""
    site = Site(tmp_path / "site", monkeypatch)
    yield lambda source: site.install_backend("gpu", source)
    clear()


def test_arrays_of_a_device_are_copied_through_its_memory(install):
    install(backend_source("gpu", own_arrays=True).replace("class Memory:\n", ASSIGNABLE))
    array = tn.array(np.arange(3.0), device="gpu")
    bound = bind(a=array, also=[array])
    snapshot = Snapshot(bound, "a")
    copies = WorkingCopies(bound, "a")
    given = copies.fresh(poisoned="a").arguments
    assert given["a"] is not array
    assert not np.isnan(tn.to_numpy(given["a"])).any()  # it is read through the other argument
    assert given["also"][0] is given["a"]
    assign(array, np.full(3, 8.0))
    assert tn.to_numpy(copies.fresh().arguments["a"]).tolist() == [8, 8, 8]
    assert snapshot.restore()
    assert tn.to_numpy(array).tolist() == [0, 1, 2]
    alone = WorkingCopies(bind(a=array), "a").fresh(poisoned="a").arguments["a"]
    assert np.isnan(tn.to_numpy(alone)).all()


def test_arrays_that_cannot_be_assigned_to_are_refused(install):
    install(backend_source("gpu", own_arrays=True))
    snapshot = Snapshot(bind(a=tn.array(np.arange(3.0), device="gpu")), "a")
    assert snapshot.problem == "'a' is a Array, which cannot be assigned to"


# ---- another candidate after a failure -----------------------------------------------------------


class Restoring(Hooks[Candidate]):
    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def restore(self, candidate: Candidate, error: BaseException) -> bool:
        return self.snapshot.restore()


def run_once(x: Any, *functions: Any) -> Any:
    candidates = tuple(Candidate(f"v{n}", function) for n, function in enumerate(functions))
    tuner: Tuner[Candidate] = Tuner(TrialPlan(), lambda decision: None)
    assert tuner.add(candidates) is None
    case = Case("g", "g", candidates, tuner.candidates)
    hooks = Restoring(Snapshot(bind(x=x), "x"))
    return tuner.run(case, lambda candidate: candidate.function(x), lambda work: 1, hooks)


def doubling(x: Any) -> str:
    x *= 2
    return "doubled"


def failing(error: BaseException) -> Any:
    def fail(x: Any) -> None:
        x[:2] = -1
        raise error

    return fail


def test_another_one_runs_on_restored_arguments():
    x = np.arange(4.0)
    assert run_once(x, failing(ValueError("no")), failing(MemoryError()), doubling) == "doubled"
    assert x.tolist() == [0, 2, 4, 6]


def test_where_all_raise_the_first_exception_passes_and_nothing_is_changed():
    x = np.arange(4.0)
    with pytest.raises(ValueError, match="first"):
        run_once(x, failing(ValueError("first")), failing(RuntimeError("second")))
    assert x.tolist() == [0, 1, 2, 3]


def test_an_interrupt_passes_and_nothing_is_changed():
    x = np.arange(4.0)
    with pytest.raises(KeyboardInterrupt):
        run_once(x, failing(KeyboardInterrupt()), doubling)
    assert x.tolist() == [0, 1, 2, 3]


def test_integers_written_by_a_kernel_after_a_failure():
    @tn.kernel
    def counted(n: NDArray[i64, 1]) -> None:
        for i in range(n.shape[0]):
            n[i] += 1

    n = np.zeros(3, np.int64)
    assert run_once(n, failing(ValueError("no")), lambda x: counted(x, device="reference")) is None
    assert n.tolist() == [1, 1, 1]
