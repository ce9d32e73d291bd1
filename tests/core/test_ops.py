"""Operations of `turnout.ops`: right results, clear errors, compiled code and its cache."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_plugins import Site
from operations_support import (
    FLOATS,
    assert_product,
    layouts,
    numbers,
    sampled_sizes,
)

import turnout as tn
from turnout import offers
from turnout.backends import clear
from turnout.ops import compiled, operation
from turnout.plugin import CompiledOperation, offer_compiled_operation

OPERATIONS = ("dot", "gemv", "matmul", "batched_matmul", "batched_cholesky")
INTEGERS = ("int8", "uint16", "int32", "int64", "uint64")


@pytest.fixture(autouse=True)
def fresh_operations(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(offers, "_offers", dict(offers._offers))
    tn.ops.cache_clear()
    yield
    tn.ops.cache_clear()
    for name in OPERATIONS:
        getattr(tn.ops, name).reset()


def runnable(name: str, *arguments: Any) -> list[str]:
    """The implementations that take these arguments."""
    explained = getattr(tn.ops, name).explain(*arguments).implementations
    return [each.name for each in explained if not each.refusal]


# -- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_dot(device: str, dtype: str) -> None:
    random = np.random.default_rng(1)
    with tn.use(device):
        for n in (*range(71), 1000):
            a, b = numbers(random, (n,), dtype), numbers(random, (n,), dtype)
            for implementation in runnable("dot", a, b):
                with tn.ops.dot.force(implementation):
                    found = tn.ops.dot(a, b)
                assert_product(found, a, b)
                assert type(found) is a.dtype.type


@pytest.mark.parametrize("dtype", FLOATS)
def test_gemv(device: str, dtype: str) -> None:
    random = np.random.default_rng(2)
    with tn.use(device):
        for m, n in sampled_sizes(7, 2):
            a, x = numbers(random, (m, n), dtype), numbers(random, (n,), dtype)
            out = np.empty(m, dtype)
            for implementation in runnable("gemv", a, x):
                with tn.ops.gemv.force(implementation):
                    assert_product(tn.ops.gemv(a, x), a, x)
                    assert tn.ops.gemv(a, x, out) is out
                assert_product(out, a, x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_matmul(device: str, dtype: str) -> None:
    random = np.random.default_rng(3)
    with tn.use(device):
        for m, n, k in sampled_sizes(9, 3):
            a, b = numbers(random, (m, k), dtype), numbers(random, (k, n), dtype)
            out = np.full((m, n), np.nan, dtype)
            for implementation in runnable("matmul", a, b):
                with tn.ops.matmul.force(implementation):
                    assert_product(tn.ops.matmul(a, b), a, b)
                    assert tn.ops.matmul(a, b, out=out) is out
                assert_product(out, a, b)


@pytest.mark.parametrize("dtype", FLOATS)
def test_inputs_and_outputs_of_any_layout(device: str, dtype: str) -> None:
    random = np.random.default_rng(4)
    a, b = numbers(random, (5, 7), dtype), numbers(random, (7, 6), dtype)
    with tn.use(device):
        for implementation in runnable("matmul", a, b):
            with tn.ops.matmul.force(implementation):
                for own_a, own_b in itertools.product(layouts(a), layouts(b)):
                    assert_product(tn.ops.matmul(own_a, own_b), a, b)
                assert_product(tn.ops.matmul(b.T, a.T), b.T, a.T)
                for out in layouts(np.zeros((5, 6), dtype)):
                    assert tn.ops.matmul(a, b, out) is out
                    assert_product(out, a, b)
        x, y = a[0], b[:, 0]
        for implementation in runnable("dot", x, y):
            with tn.ops.dot.force(implementation):
                for own_x, own_y in itertools.product(layouts(x), layouts(y)):
                    assert_product(tn.ops.dot(own_x, own_y), x, y)
        for implementation in runnable("gemv", a, y):
            with tn.ops.gemv.force(implementation):
                for own_a, own_y in itertools.product(layouts(a), layouts(y)):
                    assert_product(tn.ops.gemv(own_a, own_y), a, y)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_as_in_numpy(device: str, dtype: str) -> None:
    random = np.random.default_rng(5)
    info = np.iinfo(dtype)
    a, b = (random.integers(info.min, info.max, (6, 6), dtype, endpoint=True) for _ in range(2))
    stack = np.stack([a, b])
    with tn.use(device):
        for implementation in runnable("matmul", a, b):
            with tn.ops.matmul.force(implementation):
                assert np.array_equal(tn.ops.matmul(a, b), np.matmul(a, b))
            with tn.ops.gemv.force(implementation):
                assert np.array_equal(tn.ops.gemv(a, b[0]), np.matmul(a, b[0]))
            with tn.ops.dot.force(implementation):
                assert tn.ops.dot(a[0], b[0]) == np.dot(a[0], b[0])
            with tn.ops.batched_matmul.force(implementation):
                product = tn.ops.batched_matmul(stack, stack)
            assert np.array_equal(product, np.matmul(stack, stack))
            assert product.dtype == dtype


def test_out_may_share_memory_with_inputs(device: str) -> None:
    random = np.random.default_rng(6)
    memory = numbers(random, (9, 8), "float64")
    with tn.use(device):
        for implementation in runnable("matmul", memory[:8], memory[:8]):
            a, expected = memory[:8].copy(), memory[:8] @ memory[:8]
            with tn.ops.matmul.force(implementation):
                assert tn.ops.matmul(a, a, out=a) is a
                assert np.allclose(a, expected, rtol=1e-13)
                shifted = memory.copy()
                tn.ops.matmul(shifted[:8], memory[:8], out=shifted[1:])
                assert np.allclose(shifted[1:], expected, rtol=1e-13)
            x, expected = memory[0].copy(), memory[:8] @ memory[0]
            with tn.ops.gemv.force(implementation):
                assert np.allclose(tn.ops.gemv(memory[:8], x, out=x), expected, rtol=1e-13)


def test_out_may_be_of_another_width(device: str) -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    stack = np.arange(1.0, 3.0).reshape(2, 1, 1)
    with tn.use(device):
        for implementation in runnable("matmul", a, b):
            with tn.ops.matmul.force(implementation):
                out = np.empty((2, 4), np.float32)
                assert tn.ops.matmul(a, b, out) is out
                assert np.array_equal(out, a @ b)
                wide = np.empty((2, 4))
                tn.ops.matmul(a.astype("f4"), b.astype("f4"), wide)
                assert np.array_equal(wide, a @ b)
            with tn.ops.batched_matmul.force(implementation):
                out = np.empty((2, 1, 1), np.float32)
                assert tn.ops.batched_matmul(stack, stack, out) is out
                assert out.ravel().tolist() == [1, 4]
            with tn.ops.batched_cholesky.force(implementation):
                assert tn.ops.batched_cholesky(stack * stack, out) is out
                assert out.ravel().tolist() == [1, 2]


def test_infinities_and_nan(device: str) -> None:
    a = np.array([[np.inf, 1.0], [0.0, np.nan], [1.0, 2.0]])
    b = np.array([[1.0, 0.0], [2.0, 3.0]])
    expected = np.array([[np.inf, np.nan], [np.nan, np.nan], [5.0, 6.0]])
    with tn.use(device):
        for implementation in runnable("matmul", a, b):
            with tn.ops.matmul.force(implementation), np.errstate(invalid="ignore"):
                assert np.array_equal(tn.ops.matmul(a, b), expected, equal_nan=True)


def test_sums_of_nothing_are_zero(device: str) -> None:
    with tn.use(device):
        out = np.full((2, 3), np.nan)
        for implementation in runnable("matmul", np.empty((2, 0)), np.empty((0, 3))):
            with tn.ops.matmul.force(implementation):
                tn.ops.matmul(np.empty((2, 0)), np.empty((0, 3)), out)
            assert np.array_equal(out, np.zeros((2, 3)))
        assert tn.ops.dot(np.empty(0), np.empty(0)) == 0
        assert np.array_equal(tn.ops.gemv(np.empty((2, 0)), np.empty(0)), np.zeros(2))
        assert tn.ops.batched_matmul(np.empty((0, 2, 2)), np.empty((0, 2, 3))).shape == (0, 2, 3)
        assert tn.ops.batched_cholesky(np.empty((3, 0, 0))).shape == (3, 0, 0)


# -- stacks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (3, 3, 3), (2, 5, 4), (6, 6, 6), (9, 17, 4)])
def test_batched_matmul(device: str, dtype: str, m: int, n: int, k: int) -> None:
    random = np.random.default_rng(7)
    a, b = numbers(random, (2, 6, m, k), dtype), numbers(random, (2, 6, k, n), dtype)
    with tn.use(device):
        for implementation in runnable("batched_matmul", a, b):
            with tn.ops.batched_matmul.force(implementation):
                assert_product(tn.ops.batched_matmul(a, b), a, b)
                assert_product(tn.ops.batched_matmul(a[0], b[1]), a[0], b[1])
                assert_product(tn.ops.batched_matmul(a[0, 0], b[0, 0]), a[0, 0], b[0, 0])
                for own_a, own_b in zip(layouts(a), layouts(b), strict=True):
                    assert_product(tn.ops.batched_matmul(own_a, own_b), a, b)
                for out in layouts(np.zeros((6, m, n), dtype)):
                    assert tn.ops.batched_matmul(a[0], b[0], out) is out
                    assert_product(out, a[0], b[0])


def positive_definite(shape: tuple[int, ...], dtype: str) -> Any:
    factors = np.random.default_rng(8).standard_normal(shape)
    return (factors @ factors.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])).astype(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 3, 6, 9, 17])
def test_batched_cholesky(device: str, dtype: str, n: int) -> None:
    a = positive_definite((3, 4, n, n), dtype)
    lower = np.where(np.tri(n, dtype=bool), a, np.nan)  # what is above is not read
    # The residual is at most (n + 1) roundings of sums of squares, which are the diagonal.
    diagonal = np.sqrt(np.einsum("...ii->...i", np.longdouble(a)))
    bound = (n + 1) * np.finfo(dtype).eps * diagonal[..., :, None] * diagonal[..., None, :]
    with tn.use(device):
        for implementation in runnable("batched_cholesky", a):
            with tn.ops.batched_cholesky.force(implementation):
                found = tn.ops.batched_cholesky(lower)
                assert found.dtype == dtype
                assert np.array_equal(found, np.tril(found))
                wide = np.longdouble(found)
                assert np.all(np.abs(wide @ wide.swapaxes(-1, -2) - a) <= bound)
                for own in layouts(a):
                    assert np.array_equal(tn.ops.batched_cholesky(own), found)
                own = a[0].copy()
                assert tn.ops.batched_cholesky(own, out=own) is own
                assert np.array_equal(own, found[0])
                assert np.array_equal(tn.ops.batched_cholesky(a[0, 0]), found[0, 0])


@pytest.mark.parametrize("spoilt", [0.0, -1.0, np.nan])
def test_not_positive_definite(device: str, spoilt: float) -> None:
    a = positive_definite((5, 3, 3), "float64")
    a[3, 2, 2] = spoilt
    with tn.use(device):
        for implementation in runnable("batched_cholesky", a):
            with (
                tn.ops.batched_cholesky.force(implementation),
                pytest.raises(np.linalg.LinAlgError, match="Matrix is not positive definite"),
            ):
                tn.ops.batched_cholesky(a)
        for _ in range(5):  # in trials, too, and nothing is held against the implementations
            with pytest.raises(np.linalg.LinAlgError, match="Matrix is not positive definite"):
                tn.ops.batched_cholesky(a)
        assert "raised" not in str(tn.ops.batched_cholesky.explain(a))


def test_matrices_that_are_not_small_are_left_to_libraries() -> None:
    a = np.zeros((2, 33, 33))
    reasons = {
        each.name: each.refusal for each in tn.ops.batched_matmul.explain(a, a).implementations
    }
    if "cpu" in tn.backends():
        assert "more than 32 rows or columns" in reasons["compiled"]


# -- errors ---------------------------------------------------------------------------------------

A23, A34, V3 = np.zeros((2, 3)), np.zeros((3, 4)), np.zeros(3)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("dot", ([1.0], V3), "dot: a must be an array, not list: convert it with numpy.asarray"),
        ("dot", (V3, A23), r"dot: b must have the shape (n,), not (2, 3)"),
        ("dot", (V3, np.zeros(4)), "dot: the lengths of a and b must agree, they are 3 and 4"),
        ("dot", (V3, np.zeros((), float)), r"dot: b must have the shape (n,), not ()"),
        ("dot", (V3, np.zeros(3, "f4")), "dot: a is float64 and b float32: convert one of them"),
        ("dot", (np.zeros(3, complex),) * 2, "dot: a has elements of type complex128: give one"),
        ("gemv", (A23, np.zeros(2)), "gemv: the columns of a and the length of x must agree"),
        (
            "gemv",
            (A23, V3, V3),
            "gemv: out must be an array like the result, float64 of",
        ),
        ("matmul", (A23, A23), "matmul: the columns of a and the rows of b must agree, they are 3"),
        ("matmul", (V3, A34), r"matmul: a must have the shape (m, k), not (3,)"),
        ("matmul", (A23, A34, A23), "of shape (2, 4), not float64 of shape (2, 3)"),
        ("matmul", (A23, A34, np.zeros((2, 4), "i4")), "not int32 of shape (2, 4)"),
        ("matmul", (A23, A34, [0.0]), "out must be an array like the result"),
        ("matmul", (A23, A34, np.broadcast_to(0.0, (2, 4))), "matmul: out is read-only"),
        ("batched_matmul", (A23, A23), "same axes in front, they have (2, 3) and (2, 3)"),
        ("batched_matmul", (A23[None], A34), "same axes in front, they have (1, 2, 3) and (3, 4)"),
        ("batched_matmul", (V3, A34), "a must have the shape (..., m, k), not (3,)"),
        ("batched_cholesky", (A23,), "a must have the shape (..., n, n), not (2, 3)"),
        ("batched_cholesky", (np.eye(2, dtype=int),), "has elements of type int64: give one of"),
    ],
)
def test_errors(name: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(tn.CallError) as caught:
        getattr(tn.ops, name)(*arguments)
    assert message in str(caught.value)


def test_import_of_turnout_does_not_load_operations() -> None:
    import subprocess

    program = "import sys, turnout; print('turnout.ops' in sys.modules); turnout.ops.matmul"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["False"]


# -- who runs -------------------------------------------------------------------------------------


def test_the_reference_leaves_host_arrays_to_numpy() -> None:
    with tn.use("reference"):
        explanation = tn.ops.matmul.explain(A23, A34)
    assert "the reference backend evaluates by NumPy" in str(explanation)


def test_names_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tn.ops.matmul.implementations[:2] == ("numpy", "compiled")
    for name in OPERATIONS:
        assert getattr(tn.ops, name)._qualified_name == f"turnout.ops.{name}"
    monkeypatch.setenv("TURNOUT_PERFDISPATCH_FORCE", "turnout.ops.matmul:numpy")
    monkeypatch.setattr(tn.ops.matmul._preparation, "is_done", False)
    tn.ops.matmul(A23, A34)
    assert tn.ops.matmul.decision(A23, A34).reason == "forced by the environment"
    monkeypatch.delenv("TURNOUT_PERFDISPATCH_FORCE")
    monkeypatch.setattr(tn.ops.matmul._preparation, "is_done", False)
    tn.ops.matmul.reset()
    tn.ops.matmul(A23, A34)
    assert tn.ops.matmul._forced is None


def test_another_distribution_registers_an_implementation(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path / "site", monkeypatch)
    site.install(
        "stranger",
        "[turnout.implementations]\nturnout.ops.matmul = stranger_module:register\n",
        {
            "stranger_module": "import numpy as np\n"
            "def register(operation):\n"
            "    @operation.register(name='einsum', mutates={'out': 'output'})\n"
            "    def einsum(a, b, out):\n"
            "        return np.einsum('ik,kj->ij', a, b, out=out)\n"
        },
    )
    before = tn.ops.matmul.implementations
    monkeypatch.setattr(tn.ops.matmul._preparation, "is_done", False)
    try:
        tn.ops.matmul.prepare()
        assert tn.ops.matmul.implementations == (*before, "einsum")
        with tn.ops.matmul.force("einsum"):
            assert np.array_equal(tn.ops.matmul(np.eye(3), A34 + 1), A34 + 1)
    finally:
        tuner = tn.ops.matmul._tuner
        tn.ops.matmul._remove(tuple(c for c in tuner.candidates if c.name == "einsum"))
        monkeypatch.undo()
        clear()


# -- code for one exact size ----------------------------------------------------------------------


def test_compiled_operations(device: str) -> None:
    random = np.random.default_rng(9)
    a, b = numbers(random, (5, 7), "float32"), numbers(random, (7, 6), "float32")
    with tn.use(device):
        matmul = tn.ops.compile_matmul(5, 6, 7, np.float32)
        gemv = tn.ops.compile_gemv(5, 7, "f4")
        dot = tn.ops.compile_dot(7, a.dtype)
    for own_a, own_b in zip(layouts(a), layouts(b), strict=True):
        out = np.empty((5, 6), np.float32)
        assert matmul(own_a, own_b, out) is out
        assert_product(out, a, b)
        row = np.empty(5, np.float32)
        assert gemv(own_a, own_b[:, 0], row) is row
        assert_product(row, a, b[:, 0])
        assert_product(dot(own_a[0], own_b[:, 0]), a[0], b[:, 0])
    for out in layouts(np.empty((5, 6), np.float32)):
        assert matmul(a, b, out) is out
        assert_product(out, a, b)


def test_compiled_operations_take_one_size_only(device: str) -> None:
    with tn.use(device):
        matmul = tn.ops.compile_matmul(2, 4, 3, np.float64)
    out = np.zeros((2, 4))
    for arguments, message in [
        ((A34, A34, out), "compiled matmul: a must be float64[2, 3], not float64[3, 4]"),
        ((A23, A34, A23), "out must be float64[2, 4], not float64[2, 3]"),
        ((A23, A34.astype("f4"), out), "b must be float64[3, 4], not float32[3, 4]"),
        ((A23, A34.astype(">f8"), out), "b must be float64[3, 4], not >f8[3, 4]"),
        ((A23, None, out), "b must be float64[3, 4], not NoneType"),
    ]:
        with pytest.raises(tn.CallError) as caught:
            matmul(*arguments)
        assert message in str(caught.value)
    out.flags.writeable = False
    with pytest.raises(tn.CallError, match="out cannot be written"):
        matmul(A23, A34, out)


@pytest.mark.parametrize("size", [-1, 1.5, "3", None, True])
def test_sizes_must_be_whole_numbers(size: Any) -> None:
    with pytest.raises(tn.CallError) as caught:
        tn.ops.compile_matmul(2, size, 3, float)
    assert f"compile_matmul: n must be a whole number from 0 on, not {size!r}" in str(caught.value)


@pytest.mark.parametrize("dtype", ["float16", complex, "nonsense", None, bool])
def test_types_must_be_supported(dtype: Any) -> None:
    with pytest.raises(tn.CallError) as caught:
        tn.ops.compile_dot(3, dtype)
    assert "compile_dot: dtype must be one of float32, float64, int8" in str(caught.value)


def test_the_same_sizes_give_the_same_object(device: str) -> None:
    with tn.use(device):
        first = tn.ops.compile_dot(np.int64(5), np.float64)
        assert tn.ops.compile_dot(5, "f8") is first
        assert tn.ops.compile_dot(5, "f4") is not first
        assert tn.ops.compile_dot(6, "f8") is not first
        info = tn.ops.cache_info()
        assert (info.entries, info.hits, info.misses) == (3, 1, 3)
        tn.ops.cache_clear()
        info = tn.ops.cache_info()
        assert (info.entries, info.hits, info.misses, info.bytes) == (0, 0, 0, 0)
        assert first(np.ones(5), np.ones(5)) == 5
        assert tn.ops.compile_dot(5, "f8") is not first


def test_devices_have_code_of_their_own() -> None:
    with tn.use("reference"):
        first = tn.ops.compile_dot(5, "f8")
    if "cpu" in tn.backends():
        with tn.use("cpu"):
            assert tn.ops.compile_dot(5, "f8") is not first


def test_threads_that_ask_at_once_get_one_object() -> None:
    entered, go_on = threading.Event(), threading.Event()
    made: list[Any] = []

    def compile(sizes: Any, dtype: Any, device: Any, otherwise: Any) -> CompiledOperation:
        entered.set()
        assert go_on.wait(20)
        made.append(sizes)
        return CompiledOperation(lambda a, b: "dot", 12)

    offer_compiled_operation("dot", "reference", compile)
    found: list[Any] = []

    def ask() -> None:
        with tn.use("reference"):
            found.append(tn.ops.compile_dot(5, "f8"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert entered.wait(20)
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert len(found) == 4
    assert len(set(map(id, found))) == 1
    assert made == [(5,)]
    assert tn.ops.cache_info().bytes == 12


def test_the_cache_is_bounded() -> None:
    cache = compiled._Cache(most_entries=2)
    for key in ("a", "b", "a", "c", "a"):
        cache.get(key, lambda: CompiledOperation(len, 1))
    info = cache.info()
    assert (info.entries, info.hits, info.misses, info.bytes) == (2, 2, 3, 2)  # b made room
    cache.get("b", lambda: CompiledOperation(len, 1))
    assert cache.info().misses == 4


def test_what_could_not_be_compiled_is_tried_again() -> None:
    cache = compiled._Cache(most_entries=2)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: CompiledOperation(len, 1 // 0))
    assert cache.info().entries == 0
    assert cache.get("a", lambda: CompiledOperation(len, 1)).function is len


# -- what plugins offer ---------------------------------------------------------------------------


def test_an_offer_is_asked_for_every_size_and_type() -> None:
    asked: list[Any] = []

    def compile(
        sizes: tuple[int, ...], dtype: Any, device: Any, otherwise: Any
    ) -> CompiledOperation | None:
        asked.append((sizes, dtype.name, str(device)))
        if sizes[0] > 2:
            return None

        def function(a: Any, b: Any, out: Any) -> Any:
            is_plain = type(a) is type(b) is type(out) is np.ndarray and out.flags.c_contiguous
            is_plain = is_plain and a.shape == (2, 3) and not np.may_share_memory(a, out)
            return np.matmul(a, b, out) if is_plain else otherwise(a, b, out)

        return CompiledOperation(function, 100)

    offer_compiled_operation("matmul", "reference", compile)
    with tn.use("reference"):
        own = tn.ops.compile_matmul(2, 4, 3, float)
        assert tn.ops.cache_info().bytes == 100
        assert tn.ops.compile_matmul(3, 4, 3, float) is not None
        tn.ops.compile_matmul(2, 4, 3, int)
    assert asked == [
        ((2, 4, 3), "float64", "reference:0"),
        ((3, 4, 3), "float64", "reference:0"),
        ((2, 4, 3), "int64", "reference:0"),
    ]
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    out = np.empty((4, 2)).T
    assert own(a, b, out) is out
    assert np.array_equal(out, a @ b)
    with pytest.raises(tn.CallError, match="compiled matmul: a must be"):
        own(b, b, out)


def test_offers_are_checked() -> None:
    with pytest.raises(tn.ConfigurationError, match="there is no operation 'sum' that is compiled"):
        offer_compiled_operation("sum", "cpu", lambda *_: None)
    with pytest.raises(tn.ConfigurationError, match="cannot be called: give a function"):
        offer_compiled_operation("dot", "cpu", None)  # type: ignore[arg-type]


def test_numbers_of_other_libraries_have_no_type() -> None:
    class Stranger:
        dtype = "torch.bfloat16"

    assert operation.dtype_of(Stranger()) == np.dtype(object)
