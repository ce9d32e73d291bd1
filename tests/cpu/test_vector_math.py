"""The vector library keeps what kernels promise: C99's special values, the same bits per lane."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
import pytest

from turnout_cpu import vector_math
from turnout_cpu.vector_math import (
    ARITY,
    VECTOR_BITS,
    available_symbols,
    libm_symbol,
    variant,
    vector_function,
    vector_isa,
)

DTYPES = {"f32": np.float32, "f64": np.float64}
BITS = {"f32": np.uint32, "f64": np.uint64}
PROCESSORS = {"e": "x86-64-v4", "d": "x86-64-v3", "b": "x86-64-v2"}
LLVM_TYPES = {"f32": "float", "f64": "double"}
INF, NAN = np.inf, np.nan
PI = np.pi

# operation, arguments, exact result; sign of zero included
SPECIAL_VALUES = [
    ("exp", (0.0,), 1.0), ("exp", (-0.0,), 1.0), ("exp", (INF,), INF), ("exp", (-INF,), 0.0),
    ("exp", (1e30,), INF), ("exp", (-1e30,), 0.0),
    ("exp2", (0.0,), 1.0), ("exp2", (-0.0,), 1.0), ("exp2", (INF,), INF), ("exp2", (-INF,), 0.0),
    ("exp2", (5.0,), 32.0), ("exp2", (-3.0,), 0.125), ("exp2", (1e30,), INF),
    ("expm1", (0.0,), 0.0), ("expm1", (-0.0,), -0.0), ("expm1", (INF,), INF),
    ("expm1", (-INF,), -1.0), ("expm1", (-1e30,), -1.0), ("expm1", (1e30,), INF),
    ("log", (0.0,), -INF), ("log", (-0.0,), -INF), ("log", (1.0,), 0.0), ("log", (INF,), INF),
    ("log", (-1.0,), NAN), ("log", (-INF,), NAN),
    ("log2", (0.0,), -INF), ("log2", (-0.0,), -INF), ("log2", (1.0,), 0.0), ("log2", (8.0,), 3.0),
    ("log2", (INF,), INF), ("log2", (-1.0,), NAN), ("log2", (-INF,), NAN),
    ("log10", (0.0,), -INF), ("log10", (-0.0,), -INF), ("log10", (1.0,), 0.0),
    ("log10", (INF,), INF), ("log10", (-1.0,), NAN), ("log10", (-INF,), NAN),
    ("log1p", (0.0,), 0.0), ("log1p", (-0.0,), -0.0), ("log1p", (-1.0,), -INF),
    ("log1p", (INF,), INF), ("log1p", (-2.0,), NAN), ("log1p", (-INF,), NAN),
    ("cbrt", (0.0,), 0.0), ("cbrt", (-0.0,), -0.0), ("cbrt", (INF,), INF), ("cbrt", (-INF,), -INF),
    ("sin", (0.0,), 0.0), ("sin", (-0.0,), -0.0), ("sin", (INF,), NAN), ("sin", (-INF,), NAN),
    ("cos", (0.0,), 1.0), ("cos", (-0.0,), 1.0), ("cos", (INF,), NAN), ("cos", (-INF,), NAN),
    ("tan", (0.0,), 0.0), ("tan", (-0.0,), -0.0), ("tan", (INF,), NAN), ("tan", (-INF,), NAN),
    ("asin", (0.0,), 0.0), ("asin", (-0.0,), -0.0), ("asin", (2.0,), NAN), ("asin", (-INF,), NAN),
    ("acos", (1.0,), 0.0), ("acos", (-1.5,), NAN), ("acos", (INF,), NAN),
    ("atan", (0.0,), 0.0), ("atan", (-0.0,), -0.0),
    ("sinh", (0.0,), 0.0), ("sinh", (-0.0,), -0.0), ("sinh", (INF,), INF), ("sinh", (-INF,), -INF),
    ("sinh", (1e30,), INF), ("sinh", (-1e30,), -INF),
    ("cosh", (0.0,), 1.0), ("cosh", (-0.0,), 1.0), ("cosh", (INF,), INF), ("cosh", (-INF,), INF),
    ("cosh", (-1e30,), INF),
    ("tanh", (0.0,), 0.0), ("tanh", (-0.0,), -0.0), ("tanh", (INF,), 1.0), ("tanh", (-INF,), -1.0),
    ("tanh", (50.0,), 1.0), ("tanh", (-50.0,), -1.0),
    ("erf", (0.0,), 0.0), ("erf", (-0.0,), -0.0), ("erf", (INF,), 1.0), ("erf", (-INF,), -1.0),
    ("erf", (50.0,), 1.0), ("erf", (-50.0,), -1.0),
    *[(operation, (NAN,), NAN) for operation, arity in ARITY.items() if arity == 1],
    *[("pow", (x, zero), 1.0) for x in (0.0, -2.0, INF, -INF, NAN) for zero in (0.0, -0.0)],
    *[("pow", (1.0, y), 1.0) for y in (3.5, -2.0, INF, -INF, NAN)],
    *[("pow", (-1.0, y), 1.0) for y in (INF, -INF, 4.0)],
    ("pow", (-1.0, 3.0), -1.0), ("pow", (-2.0, 3.0), -8.0), ("pow", (-2.0, 2.0), 4.0),
    ("pow", (-2.0, -1.0), -0.5), ("pow", (-2.0, 0.5), NAN), ("pow", (-1e30, 1.5), NAN),
    ("pow", (3.0, 1.0), 3.0), ("pow", (2.0, 10.0), 1024.0), ("pow", (NAN, 1.0), NAN),
    ("pow", (2.0, NAN), NAN), ("pow", (0.0, NAN), NAN),
    ("pow", (0.0, 3.0), 0.0), ("pow", (-0.0, 3.0), -0.0), ("pow", (-0.0, 2.0), 0.0),
    ("pow", (-0.0, 0.5), 0.0), ("pow", (0.0, -3.0), INF), ("pow", (-0.0, -3.0), -INF),
    ("pow", (-0.0, -2.0), INF), ("pow", (-0.0, -0.5), INF), ("pow", (0.0, INF), 0.0),
    ("pow", (-0.0, INF), 0.0), ("pow", (0.0, -INF), INF), ("pow", (-0.0, -INF), INF),
    ("pow", (0.5, INF), 0.0), ("pow", (-0.5, INF), 0.0), ("pow", (0.5, -INF), INF),
    ("pow", (-0.5, -INF), INF), ("pow", (2.0, INF), INF), ("pow", (-2.0, INF), INF),
    ("pow", (2.0, -INF), 0.0), ("pow", (-2.0, -INF), 0.0),
    ("pow", (INF, 2.0), INF), ("pow", (INF, 0.5), INF), ("pow", (INF, -2.0), 0.0),
    ("pow", (INF, INF), INF), ("pow", (INF, -INF), 0.0), ("pow", (-INF, 3.0), -INF),
    ("pow", (-INF, 2.0), INF), ("pow", (-INF, 0.5), INF), ("pow", (-INF, -3.0), -0.0),
    ("pow", (-INF, -2.0), 0.0), ("pow", (-INF, INF), INF), ("pow", (-INF, -INF), 0.0),
    ("pow", (1e30, 1e30), INF), ("pow", (1e30, -1e30), 0.0), ("pow", (-1e30, 33.0), -INF),
    ("pow", (-1e30, -33.0), -0.0),
    ("atan2", (0.0, 1.0), 0.0), ("atan2", (-0.0, 1.0), -0.0), ("atan2", (0.0, 0.0), 0.0),
    ("atan2", (-0.0, 0.0), -0.0), ("atan2", (0.0, INF), 0.0), ("atan2", (-0.0, INF), -0.0),
    ("atan2", (1.0, INF), 0.0), ("atan2", (-1.0, INF), -0.0), ("atan2", (NAN, 1.0), NAN),
    ("atan2", (1.0, NAN), NAN), ("atan2", (NAN, INF), NAN), ("atan2", (INF, NAN), NAN),
    ("atan2", (0.0, NAN), NAN),
    ("hypot", (3.0, 4.0), 5.0), ("hypot", (-3.0, 4.0), 5.0), ("hypot", (0.0, 0.0), 0.0),
    ("hypot", (-0.0, -0.0), 0.0), ("hypot", (INF, NAN), INF), ("hypot", (-INF, NAN), INF),
    ("hypot", (NAN, INF), INF), ("hypot", (NAN, -INF), INF), ("hypot", (INF, -INF), INF),
    ("hypot", (NAN, 1.0), NAN), ("hypot", (0.0, NAN), NAN), ("hypot", (1.0, 0.0), 1.0),
]  # fmt: skip

# The same for results that are rounded, within the stated 5 units in the last place.
ROUNDED_VALUES = [
    ("asin", (1.0,), PI / 2), ("asin", (-1.0,), -PI / 2), ("acos", (-1.0,), PI),
    ("acos", (0.0,), PI / 2), ("atan", (INF,), PI / 2), ("atan", (-INF,), -PI / 2),
    ("cbrt", (-27.0,), -3.0), ("log10", (1000.0,), 3.0), ("log", (2.0,), 0.6931471805599453),
    ("sin", (2.0**70,), -0.9981794021933068), ("cos", (2.0**70,), 0.06031484922481979),
    ("tan", (2.0**70,), -16.549480186424013),
    ("atan2", (0.0, -0.0), PI), ("atan2", (-0.0, -0.0), -PI), ("atan2", (0.0, -1.0), PI),
    ("atan2", (-0.0, -1.0), -PI), ("atan2", (0.0, -INF), PI), ("atan2", (-0.0, -INF), -PI),
    ("atan2", (1.0, 0.0), PI / 2), ("atan2", (1.0, -0.0), PI / 2), ("atan2", (-1.0, 0.0), -PI / 2),
    ("atan2", (-1.0, -0.0), -PI / 2), ("atan2", (1.0, -INF), PI), ("atan2", (-1.0, -INF), -PI),
    ("atan2", (INF, 1.0), PI / 2), ("atan2", (-INF, -1.0), -PI / 2),
    ("atan2", (INF, INF), PI / 4), ("atan2", (-INF, INF), -PI / 4),
    ("atan2", (INF, -INF), 3 * PI / 4), ("atan2", (-INF, -INF), -3 * PI / 4),
]  # fmt: skip

Apply = Callable[..., np.ndarray]


@functools.cache
def host_isas() -> tuple[str, ...]:
    """Instruction sets of the vector library that this machine runs."""
    if not available_symbols():
        return ()
    features = {name for name, there in llvm.get_host_cpu_features().items() if there}
    widest = vector_isa(features)
    return () if widest is None else tuple(VECTOR_BITS)[tuple(VECTOR_BITS).index(widest) :]


ISAS = [
    pytest.param(
        isa,
        marks=pytest.mark.skipif(
            isa not in host_isas(),
            reason=f"needs libmvec and a processor that runs its {isa!r} set",
        ),
    )
    for isa in VECTOR_BITS
]
IMPLEMENTATIONS = [pytest.param(None, id="libm"), *ISAS]


@functools.cache
def compiled(text: str, processor: str) -> tuple[llvm.ExecutionEngine, str]:
    """Optimise and compile LLVM IR for a processor; also give back the optimised text."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if available_symbols():
        llvm.load_library_permanently(vector_math.LIBRARY_NAME)
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=processor, opt=3, jit=True
    )
    module = llvm.parse_assembly(text)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    optimised = str(module)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine, optimised


def call_on_arrays(engine: llvm.ExecutionEngine, arrays: list[np.ndarray], count: int) -> None:
    """Run ``void kernel(ptr, ..., i64)`` on as many pointers as there are arrays."""
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(arrays), ctypes.c_int64)
    kernel = prototype(engine.get_function_address("kernel"))
    kernel(*[array.ctypes.data for array in arrays], count)


def loop(step: int, element: str, body: str, names: str) -> str:
    """Wrap ``body`` in a loop over ``%i`` that reads the arrays ``names`` and stores ``%r``."""
    pointers = "\n".join(
        f"  %p{n} = getelementptr {element}, ptr %a{n}, i64 %i" for n in [*names, "r"]
    )
    parameters = ", ".join(f"ptr noalias %a{n}" for n in [*names, "r"])
    return f"""
define void @kernel({parameters}, i64 %n) #1 {{
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %head, label %exit
head:
  %i = phi i64 [ 0, %entry ], [ %next, %tail ]
{pointers}
{body}
  br label %tail
tail:
  %next = add nuw nsw i64 %i, {step}
  %more = icmp slt i64 %next, %n
  br i1 %more, label %head, label %exit, !llvm.loop !0
exit:
  ret void
}}
!0 = distinct !{{!0, !1}}
!1 = !{{!"llvm.loop.vectorize.enable", i1 true}}
"""


def vector_caller(operation: str, dtype: str, isa: str) -> tuple[Apply, int]:
    """Return a function that applies the vector symbol to whole vectors, and its lanes."""
    function = vector_function(operation, dtype, isa)
    if function is None:
        pytest.skip(f"this libmvec has no {operation} of {dtype} for {isa!r}")
    names = "xy"[: function.arity]
    vector = f"<{function.lanes} x {LLVM_TYPES[dtype]}>"
    alignment = DTYPES[dtype]().itemsize
    loads = "\n".join(f"  %{n} = load {vector}, ptr %p{n}, align {alignment}" for n in names)
    arguments = ", ".join(f"{vector} %{n}" for n in names)
    body = f"""{loads}
  %r = call {vector} @{function.symbol}({arguments})
  store {vector} %r, ptr %pr, align {alignment}"""
    declaration = f"declare {vector} @{function.symbol}({', '.join([vector] * function.arity)})"
    text = declaration + loop(function.lanes, LLVM_TYPES[dtype], body, names)
    engine, _ = compiled(text + "attributes #1 = { nounwind }", PROCESSORS[isa])

    def apply(*arguments: np.ndarray) -> np.ndarray:
        result = np.empty_like(arguments[0])
        assert result.size % function.lanes == 0
        call_on_arrays(engine, [*arguments, result], result.size)
        return result

    return apply, function.lanes


def libm_caller(operation: str, dtype: str) -> Apply:
    library = ctypes.CDLL(ctypes.util.find_library("m") or "ucrtbase")
    function = getattr(library, libm_symbol(operation, dtype))
    c_type = ctypes.c_float if dtype == "f32" else ctypes.c_double
    function.restype, function.argtypes = c_type, [c_type] * ARITY[operation]

    def apply(*arguments: np.ndarray) -> np.ndarray:
        rows = zip(*[argument.tolist() for argument in arguments], strict=True)
        return np.array([function(*row) for row in rows], DTYPES[dtype])

    return apply


def evaluate(operation: str, dtype: str, isa: str | None, rows: list[tuple[float, ...]]):
    """Apply an implementation to rows of arguments, padded with its first row."""
    if isa is None:
        apply, lanes = libm_caller(operation, dtype), 1
    else:
        apply, lanes = vector_caller(operation, dtype, isa)
    padded = rows + [rows[0]] * (-len(rows) % lanes)
    return apply(*np.array(padded, DTYPES[dtype]).T.copy())[: len(rows)]


def same_bits(left: np.ndarray, right: np.ndarray, dtype: str) -> np.ndarray:
    """Compare bit for bit; all NaNs count as equal."""
    unsigned = BITS[dtype]
    return (left.view(unsigned) == right.view(unsigned)) | (np.isnan(left) & np.isnan(right))


def arguments_of(operation: str, dtype: str, count: int) -> list[np.ndarray]:
    """Draw arguments: all exponents, ordinary magnitudes, and special values, mixed."""
    generator = np.random.default_rng(20240229)
    special = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, INF, -INF, NAN, 1e-320, -1e-40, 1e300, -1e38, -746.0]
    columns = []
    for _ in range(ARITY[operation]):
        bits = generator.integers(0, np.iinfo(BITS[dtype]).max, count, BITS[dtype], endpoint=True)
        with np.errstate(over="ignore"):
            specials = generator.choice(special, count).astype(DTYPES[dtype])
        ordinary = generator.normal(scale=3.0, size=count).astype(DTYPES[dtype])
        kinds = [bits.view(DTYPES[dtype]), specials, ordinary]
        columns.append(np.choose(generator.integers(0, 3, count), kinds))
    return columns


@pytest.mark.parametrize("isa", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", ARITY)
def test_special_values_are_those_of_c99(operation, dtype, isa):
    rows = [(arguments, want) for name, arguments, want in SPECIAL_VALUES if name == operation]
    got = evaluate(operation, dtype, isa, [arguments for arguments, _ in rows])
    want = np.array([value for _, value in rows], DTYPES[dtype])
    wrong = [(*rows[k], got[k]) for k in np.flatnonzero(~same_bits(got, want, dtype))]
    assert wrong == []


@pytest.mark.parametrize("isa", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", sorted({row[0] for row in ROUNDED_VALUES}))
def test_rounded_values_at_the_edges(operation, dtype, isa):
    rows = [(arguments, want) for name, arguments, want in ROUNDED_VALUES if name == operation]
    got = evaluate(operation, dtype, isa, [arguments for arguments, _ in rows])
    np.testing.assert_array_max_ulp(got, np.array([w for _, w in rows], DTYPES[dtype]), maxulp=5)


@pytest.mark.parametrize("isa", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_underflow_is_gradual(dtype, isa):
    limits = np.finfo(DTYPES[dtype])
    tiny, exponents = limits.smallest_subnormal, [limits.minexp - limits.nmant, limits.minexp - 1]
    wanted = np.ldexp(DTYPES[dtype](1), exponents)
    assert wanted[0] == tiny
    powers = evaluate("exp2", dtype, isa, [(float(e),) for e in exponents])
    np.testing.assert_array_equal(powers, wanted)
    powers = evaluate("pow", dtype, isa, [(2.0, float(e)) for e in exponents])
    np.testing.assert_array_equal(powers, wanted)
    np.testing.assert_array_equal(evaluate("hypot", dtype, isa, [(3 * tiny, 4 * tiny)]), [5 * tiny])
    for operation in ("sin", "tan", "asin", "atan", "sinh", "tanh", "expm1", "log1p"):
        rows = [(7 * tiny,), (-7 * tiny,)]
        np.testing.assert_array_equal(evaluate(operation, dtype, isa, rows), [7 * tiny, -7 * tiny])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", ARITY)
def test_the_bits_of_a_lane_depend_on_its_own_argument_alone(operation, dtype, isa):
    apply, lanes = vector_caller(operation, dtype, isa)
    arguments = arguments_of(operation, dtype, 4000)
    alone = apply(*[np.repeat(argument, lanes) for argument in arguments]).reshape(-1, lanes)
    assert same_bits(alone, alone[:, :1].copy(), dtype).all()
    generator = np.random.default_rng(7)
    for _ in range(3):
        order = generator.permutation(4000)
        among_others = apply(*[argument[order] for argument in arguments])
        assert same_bits(among_others, alone[order, 0].copy(), dtype).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", ["exp", "pow"])
@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("isa", ISAS)
def test_llvm_vectorises_calls_of_the_wrapper(isa, operation, dtype, conditional):
    function = vector_function(operation, dtype, isa)
    assert function is not None
    element, names = LLVM_TYPES[dtype], "xy"[: function.arity]
    vector = f"<{function.lanes} x {element}>"
    splats = "\n".join(
        f"  %{n}0 = insertelement {vector} poison, {element} %{n}, i32 0\n"
        f"  %{n}s = shufflevector {vector} %{n}0, {vector} poison, "
        f"<{function.lanes} x i32> zeroinitializer"
        for n in names
    )
    wrapper = f"""
declare {vector} @{function.symbol}({", ".join([vector] * function.arity)})
define internal {element} @wrapper({", ".join(f"{element} %{n}" for n in names)}) #0 {{
{splats}
  %v = call {vector} @{function.symbol}({", ".join(f"{vector} %{n}s" for n in names)})
  %r = extractelement {vector} %v, i32 0
  ret {element} %r
}}
"""
    loads = "\n".join(f"  %{n} = load {element}, ptr %p{n}" for n in names)
    call = f"call {element} @wrapper({', '.join(f'{element} %{n}' for n in names)}) #2"
    straight = f"{loads}\n  %r = {call}\n  store {element} %r, ptr %pr"
    branched = f"""{loads}
  %positive = fcmp ogt {element} %x, 0.0
  br i1 %positive, label %then, label %join
then:
  %called = {call}
  br label %join
join:
  %r = phi {element} [ %x, %head ], [ %called, %then ]
  store {element} %r, ptr %pr"""
    entry = variant("wrapper", function.lanes, function.arity, function.symbol)
    attributes = f"""
attributes #0 = {{ noinline nounwind willreturn memory(none) }}
attributes #1 = {{ nounwind "prefer-vector-width"="{VECTOR_BITS[isa]}" }}
attributes #2 = {{ nounwind willreturn memory(none) "vector-function-abi-variant"="{entry}" }}
"""
    body = branched if conditional else straight
    engine, optimised = compiled(
        wrapper + loop(1, element, body, names) + attributes, PROCESSORS[isa]
    )
    kernel = optimised.split("@kernel(", 1)[1].split("\n}", 1)[0]
    assert f"@{function.symbol}(" in kernel

    arguments = arguments_of(operation, dtype, 1003)
    whole = np.empty_like(arguments[0])
    call_on_arrays(engine, [*arguments, whole], 1003)
    single = np.empty_like(whole)
    for k in range(1003):
        call_on_arrays(engine, [array[k:] for array in [*arguments, single]], 1)
    assert same_bits(whole, single, dtype).all()


@pytest.fixture
def fresh_symbols():
    available_symbols.cache_clear()
    yield
    available_symbols.cache_clear()


@pytest.mark.usefixtures("fresh_symbols")
def test_without_the_library_every_function_is_libms(monkeypatch):
    def absent(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(vector_math.ctypes, "CDLL", absent)
    assert available_symbols() == frozenset()
    for operation in ARITY:
        for dtype in DTYPES:
            assert vector_function(operation, dtype, "e") is None


@pytest.mark.usefixtures("fresh_symbols")
def test_an_old_library_has_only_some_functions(monkeypatch):
    class Library:
        _ZGVdN4v_exp = _ZGVdN8vv_powf = object()

    monkeypatch.setattr(vector_math.ctypes, "CDLL", lambda name: Library)
    assert available_symbols() == {"_ZGVdN4v_exp", "_ZGVdN8vv_powf"}
    exp, powf = vector_function("exp", "f64", "d"), vector_function("pow", "f32", "d")
    assert exp == vector_math.VectorFunction("_ZGVdN4v_exp", lanes=4, arity=1)
    assert powf == vector_math.VectorFunction("_ZGVdN8vv_powf", lanes=8, arity=2)
    assert vector_function("exp", "f32", "d") is None
    assert vector_function("exp", "f64", "e") is None
    assert vector_function("exp", "f64", None) is None


def test_libm_names():
    assert libm_symbol("exp", "f64") == "exp"
    assert libm_symbol("atan2", "f32") == "atan2f"
    for name in ("sqrt", "expf"):
        with pytest.raises(KeyError, match=name):
            libm_symbol(name, "f64")
        with pytest.raises(KeyError, match=name):
            vector_function(name, "f64", "e")


@pytest.mark.parametrize(
    ("features", "isa"),
    [
        ({"sse4.1", "avx2", "fma", "avx512f", "avx512dq"}, "e"),
        ({"sse4.1", "avx2", "fma", "avx512f"}, "d"),
        ({"sse4.1", "avx", "avx2"}, "b"),
        ({"sse2"}, None),
        ({"neon", "fma"}, None),
        (set(), None),
    ],
)
def test_the_widest_set_that_the_processor_runs_is_chosen(features, isa):
    assert vector_isa(features) == isa


@pytest.mark.parametrize(
    ("isa", "dtype", "symbol"),
    [
        ("e", "f64", "_ZGVeN8v_erf"),
        ("e", "f32", "_ZGVeN16v_erff"),
        ("d", "f64", "_ZGVdN4v_erf"),
        ("d", "f32", "_ZGVdN8v_erff"),
        ("b", "f64", "_ZGVbN2v_erf"),
        ("b", "f32", "_ZGVbN4v_erff"),
    ],
)
def test_symbol_names_follow_the_vector_function_abi(monkeypatch, isa, dtype, symbol):
    monkeypatch.setattr(vector_math, "available_symbols", lambda: {symbol})
    function = vector_function("erf", dtype, isa)
    assert function is not None
    assert function.symbol == symbol


def test_variant_entries():
    assert variant("tn_sin_f32", 16, 1, "_ZGVeN16v_sinf") == (
        "_ZGV_LLVM_N16v_tn_sin_f32(_ZGVeN16v_sinf)"
    )
