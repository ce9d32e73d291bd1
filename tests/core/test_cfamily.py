"""Units as C: compiled by the system's compiler, they compute what the reference computes."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turnout as tn
from turnout import reference
from turnout.arguments import call_types
from turnout.backends import resolve
from turnout.conformance.cases import Case
from turnout.conformance.compare import assert_same_bits, assert_within_ulp
from turnout.conformance.kernels import CONFORMANCE_KERNELS
from turnout.errors import CompileError
from turnout.hooks import IndexViolation
from turnout.lang import SAMPLES, LoweredKernel
from turnout.lower import lower_dispatches
from turnout.plugin import OPERATIONS, cfamily, ir, statements
from turnout.positions import position_count

COMPILER = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
FLAGS = ("-std=c99", "-O1", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")

Entry = Callable[[bytes, int, int], int]


def built(text: str, folder: Path, *flags: str) -> ctypes.CDLL:
    """A shared library of a C text, which compiles without a warning."""
    source, library = folder / "unit.c", folder / "unit.so"
    source.write_text(text)
    command = [str(COMPILER), *FLAGS, *flags, "-o", str(library), str(source), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return ctypes.CDLL(str(library))


def entry_of(library: ctypes.CDLL, name: str) -> Entry:
    entry = getattr(library, name)
    entry.argtypes = [ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64]
    entry.restype = ctypes.c_int64
    return entry  # type: ignore[no-any-return]


def lowered(kernel: tn.Kernel, arguments: tuple[Any, ...]) -> LoweredKernel:
    types = call_types(kernel.__name__, kernel.signature, arguments, resolve((), "reference"), None)
    return kernel.lower(types)


def in_one_unit(unit: ir.Unit) -> ir.Unit:
    """The unit as backends get it; one that would be split by class as a whole."""
    return lower_dispatches(unit, lambda d: "switch" if d.policy == "segmented" else d.policy)


def functions(unit: ir.Unit, number: int) -> Iterator[str]:
    """The functions of a unit, entries under a name of their own."""
    rendered = cfamily.render(unit, cfamily.C99)
    body = rendered.text.removeprefix(cfamily.C99.prelude.rstrip("\n"))
    for part in re.split(r"^(?=static inline|i64 unit_)", body, flags=re.MULTILINE):
        part = part.replace(f"i64 {rendered.entry}(", f"i64 entry{number}(")
        yield part.replace(f"i64 {rendered.dense_entry}(", f"i64 entry{number}_rows(")


class Library:
    """The units of all conformance kernels in one shared library, built once."""

    def __init__(self, folder: Path) -> None:
        self.numbers: dict[ir.Unit, int] = {}
        parts: dict[str, None] = {}
        for case in CONFORMANCE_KERNELS:
            for unit in lowered(case.kernel, case.arguments(3)).plan.units:
                unit = in_one_unit(unit)
                number = self.numbers.setdefault(unit, len(self.numbers))
                parts.update(dict.fromkeys(functions(unit, number)))
        self.library = built("\n".join([cfamily.C99.prelude, *parts]), folder)

    def run(self, unit: ir.Unit, args: tuple[Any, ...]) -> None:
        name = f"entry{self.numbers[unit]}"
        if cfamily.has_dense_rows(unit, args) and hasattr(self.library, f"{name}_rows"):
            name += "_rows"
        slots = cfamily.packer(unit, "{0}.ctypes.data")(*args)
        size = position_count(unit)(args)
        assert entry_of(self.library, name)(slots, 0, size) == 0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(tmp_path_factory.mktemp("cfamily"))


def run_plan(
    case: Case, arguments: tuple[Any, ...], run: Callable[[ir.Unit, tuple[Any, ...]], None]
) -> dict[str, np.ndarray[Any, Any]]:
    """All arrays after the steps of a kernel, of which `run` runs the units."""
    made = lowered(case.kernel, arguments)
    specs = case.kernel.signature.parameters
    values = {
        spec.name: a.copy() if isinstance(a, np.ndarray) else a
        for spec, a in zip(specs, arguments, strict=True)
    }
    planes = [values[s.name].shape[-1] for s in specs if s.role in ("plane", "mask", "vector")]
    values[SAMPLES] = planes[0] if planes else 0
    for each in made.returned:
        shape = (each.width, values[SAMPLES]) if each.width else (values[SAMPLES],)
        values[each.name] = np.zeros(shape, each.dtype)
    for step in made.plan.steps:
        if isinstance(step, ir.Scratch):
            values[step.name] = np.zeros(step.shape, step.dtype)
            continue
        unit = in_one_unit(step.unit)
        args = tuple(
            values[p.name] if isinstance(p, ir.ArrayParameter) else p.dtype(values[p.name]).item()
            for p in unit.parameters
        )
        if position_count(unit)(args):
            run(unit, args)
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def run_reference(unit: ir.Unit, args: tuple[Any, ...]) -> None:
    reference.turnout_launch(unit)(args, position_count(unit)(args))


def budget(case: Case) -> float:
    """How far results of a case may be apart, in units in the last place."""
    units = lowered(case.kernel, case.arguments(3)).plan.units
    used = [
        OPERATIONS[each.operation]
        for unit in units
        for each in statements(unit.body.body)
        if isinstance(each, ir.Compute)
    ]
    return 2 * max((max(row.ulp_f32, row.ulp_f64) for row in used), default=0)


def assert_agree(got: Any, expected: Any, case: Case, limit: float) -> None:
    for name, array in expected.items():
        if limit and array.dtype.kind == "f":
            assert_within_ulp(got[name], array, limit, f"{case.name}, {name}")
        else:
            assert_same_bits(got[name], array, f"{case.name}, {name}")


@needs_compiler
@pytest.mark.parametrize("case", CONFORMANCE_KERNELS, ids=lambda case: case.name)
def test_c_computes_what_the_reference_computes(library: Library, case: Case) -> None:
    limit = budget(case)
    for size in (1, 67):
        arguments = case.arguments(size)
        expected = run_plan(case, arguments, run_reference)
        assert_agree(run_plan(case, arguments, library.run), expected, case, limit)


def strided(array: Any) -> Any:
    """The same elements with a negative stride on the last axis and gaps between rows."""
    if not isinstance(array, np.ndarray):
        return array
    wide = np.repeat(array[..., ::-1], 2, axis=-1)
    return wide[..., ::-2]


@needs_compiler
@pytest.mark.parametrize("name", ["matrix_product", "volume", "cumulative", "histogram"])
def test_any_strides(library: Library, name: str) -> None:
    (case,) = [each for each in CONFORMANCE_KERNELS if each.name == name]
    arguments = case.arguments(17)

    def run(unit: ir.Unit, args: tuple[Any, ...]) -> None:
        views = tuple(strided(each) for each in args)
        assert not cfamily.has_dense_rows(unit, views)
        library.run(unit, views)
        for given, view in zip(args, views, strict=True):
            if isinstance(given, np.ndarray):
                given[...] = view

    assert_agree(run_plan(case, arguments, run), run_plan(case, arguments, run_reference), case, 0)


@needs_compiler
def test_a_range_of_positions(library: Library) -> None:
    """Both ends are clamped, and positions outside are left alone."""
    (case,) = [each for each in CONFORMANCE_KERNELS if each.name == "add_i32"]
    x, y, out = case.arguments(10)
    (unit,) = lowered(case.kernel, (x, y, out)).plan.units
    slots = cfamily.packer(unit, "{0}.ctypes.data")(x, y, out)
    run = entry_of(library.library, f"entry{library.numbers[unit]}")
    out[:] = 7
    assert run(slots, 4, 6) == 0
    with np.errstate(over="ignore"):
        total = x + y
    assert out.tolist() == [7] * 4 + total[4:6].tolist() + [7] * 4
    run(slots, -5, 1 << 40)
    assert out.tolist() == total.tolist()


@needs_compiler
def test_debug_reports_the_first_index_that_is_out_of_bounds(tmp_path: Path) -> None:
    @tn.kernel(debug=True)
    def gather(a: tn.NDArray[tn.f32, 2], at: tn.NDArray[tn.i64, 1], out: tn.NDArray[tn.f32, 1]):
        for i in range(out.shape[0]):
            out[i] = a[i, at[i]]

    a, at = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([1, 9, 2])
    out = np.zeros(3, np.float32)
    (unit,) = lowered(gather, (a, at, out)).plan.units
    rendered = cfamily.render(unit, cfamily.C99, debug=True)
    assert not rendered.dense_entry
    run = entry_of(built(rendered.text, tmp_path), rendered.entry)
    record = np.zeros(5, np.int64)
    pack = cfamily.packer(unit, "{0}.ctypes.data")
    address = record.ctypes.data.to_bytes(8, "little")
    assert run(pack(a, at, out) + address, 0, 3) == 1
    with pytest.raises(IndexViolation) as caught:
        run_reference(unit, (a, at, out))
    assert record.tolist() == [1, *caught.value.args]
    assert caught.value.args == (1, 1, 9, 4)
    at[1] = 3
    record[:] = 0
    assert run(pack(a, at, out) + address, 0, 3) == 0
    assert out.tolist() == [1, 7, 10]
    assert not record.any()


@needs_compiler
def test_nothing_is_undefined(tmp_path: Path) -> None:
    """The sanitizer of the compiler finds no overflow, shift or conversion out of range."""
    probe = subprocess.run(
        [str(COMPILER), "-fsanitize=undefined", "-shared", "-fPIC", "-x", "c", "-", "-o",
         str(tmp_path / "probe.so")], input="int probe;", text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    if probe.returncode:
        pytest.skip("the compiler has no sanitizer")
    wanted = ("floor_divide", "remainder", "shift_left", "integer_power", "multiply", "negative")
    cases = [
        c for c in CONFORMANCE_KERNELS
        if c.name.startswith(wanted) and c.name.endswith(("i8", "u16", "i32", "i64"))
        or c.name.startswith("cast_f64_to_")
    ]  # fmt: skip
    texts: list[str] = []
    for number, case in enumerate(cases):
        (unit,) = lowered(case.kernel, case.arguments(3)).plan.units
        texts += functions(unit, number)
    checks = "-fsanitize=undefined,float-cast-overflow"
    library = built(
        "\n".join([cfamily.C99.prelude, *dict.fromkeys(texts)]), tmp_path, checks,
        "-fsanitize-undefined-trap-on-error",
    )  # fmt: skip
    for number, case in enumerate(cases):
        arguments = case.arguments(300)
        (unit,) = lowered(case.kernel, arguments).plan.units
        slots = cfamily.packer(unit, "{0}.ctypes.data")(*arguments)
        # A trap would end the process.
        assert entry_of(library, f"entry{number}")(slots, 0, 300) == 0


# ---- the text ------------------------------------------------------------------------------------


def double_unit(width: ir.DType = ir.f32) -> ir.Unit:
    @tn.kernel
    def double(x: tn.Scalar) -> tn.Scalar:
        return x * 2

    (unit,) = double.lower(double.default_types(width)).plan.units
    return unit


@pytest.mark.parametrize("dialect", [cfamily.C99, cfamily.OPENCL_C, cfamily.CUDA_CPP])
def test_equal_units_give_equal_text(dialect: cfamily.Dialect) -> None:
    first, second = (cfamily.render(double_unit(), dialect) for _ in range(2))
    assert first == second
    assert first.entry == "unit_double"
    assert first.dense_entry == "unit_double_rows"
    assert first.slots == 3 + 1 + 3
    assert first.needs == frozenset()


def test_what_a_unit_needs() -> None:
    assert cfamily.render(double_unit(ir.f64), cfamily.OPENCL_C).needs == {"f64"}

    @tn.kernel
    def count(bins: tn.NDArray[tn.i64, 1], counts: tn.NDArray[tn.u64, 1]) -> None:
        for i in tn.parallel(range(bins.shape[0])):
            counts[bins[i]] += 1

    (unit,) = count.lower(count.default_types()).plan.units
    rendered = cfamily.render(unit, cfamily.OPENCL_C)
    assert rendered.needs == {"atomics_64"}
    assert "cl_khr_int64_base_atomics" in rendered.text
    assert "atom_add(word, value)" in rendered.text
    assert "cl_khr_fp64" not in rendered.text


def test_the_kernel_of_opencl() -> None:
    text = cfamily.render(double_unit(), cfamily.OPENCL_C, with_dense_entry=False).text
    assert text.startswith("#pragma OPENCL FP_CONTRACT OFF\n")
    kernel = text.partition("typedef struct { u64 slot[7]; } words_t;\n")[2]
    assert kernel.startswith(
        "__kernel void unit_double(__global u8 *array0, __global u8 *array1, const words_t words) {"
    )
    assert "    __global u8 *const base0 = array0 + words.slot[0];\n" in kernel
    assert "    if (position < positions) {\n" in kernel


def test_a_dispatch_is_refused() -> None:
    @tn.kernel
    def chosen(kind: tn.Index, x: tn.Scalar) -> tn.Scalar:
        return tn.math.dispatch(kind, [x, -x])

    (unit,) = chosen.lower(chosen.default_types()).plan.units
    with pytest.raises(CompileError, match="is not lowered; the core does that first"):
        cfamily.render(unit, cfamily.C99)


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        (ir.i32, -(2**31), "(-2147483647 - 1)"),
        (ir.i64, -(2**63), "(-9223372036854775807LL - 1)"),
        (ir.u64, 2**64 - 1, "18446744073709551615uLL"),
        (ir.u32, 5, "5u"),
        (ir.i8, -5, "(-5)"),
        (ir.f32, 0.1, "0.1f"),
        (ir.f64, -0.0, "(-0.0)"),
        (ir.f64, 1e300, "1e+300"),
        (ir.f32, float("inf"), "f32_from_bits(0x7f800000u)"),
        (ir.bool_, True, "true"),
    ],
)
def test_literals(dtype: ir.DType, value: Any, text: str) -> None:
    from turnout.cfamily.operations import literal

    assert literal(cfamily.C99, dtype, value) == text
