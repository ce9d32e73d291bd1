"""A unit as LLVM IR text.

The entry point is ``i64 entry(ptr args, i64 begin, i64 end)``. `args` points to slots of 8 bytes,
in the order of the unit's parameters: for an array the address of its first element, its extents
and its strides in bytes; for a scalar its value, in the low bytes. In debug mode one more slot
holds the address of the violation record, four i64 (`turnout.plugin.IndexViolation`).
``[begin, end)`` are the positions of the iteration space to run, counted in the order of nested
loops; trailing axes of constant extents are no part of the count. The result is 0, or 1 after an
index violation.

The entry point looks at the strides and goes to one of two bodies: in ``.rows`` elements that are
neighbours on the last axis of an array are neighbours in memory, ``.strided`` takes any strides; a
unit whose arrays are all contiguous has the first alone.
Where `turnout_cpu.vector_choice` says so, the first is in explicit vectors.
A unit that repeats its whole body has ``.rounds``, which calls ``.round`` as others call an entry
point (`turnout_cpu.stepping`).
Where vectors of positions would gather from places far apart, and the arrays are too large for the
caches, ``.ordered`` runs one position after the other, which reads memory in its order.
A unit with atomic updates has a third one, ``.sharing``, for anything but the whole range ``[0,
2**63 - 1)``: whoever runs a part runs it beside other threads, and elements must be aligned then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnout.plugin import CompileError, Options, ir, statements

from .accesses import bytes_per_position, dense_strides, has_atomic_updates, local_bytes
from .body import SIGNATURE, Body, Vectors, load_slot, slots
from .counters import private_counters
from .sharing import SharingBody
from .stepping import SteppingBody, one_round, repeated
from .text import FunctionText, ModuleText
from .vector_body import VectorBody, WaitingBody, waiting_name
from .vector_choice import explicit_lanes

LOCAL_ARRAYS_LIMIT_BYTES = 256 * 1024
"""Local arrays live on the stack, of which a thread may have as little as 512 KiB."""

CACHED_BYTES = 10 << 20
"""Of arrays that are larger, most comes from memory (benchmarks/NOTES.md, Specialised kernels)."""


def entry_name(unit: ir.Unit) -> str:
    """Symbol of a unit's entry point; the prefix keeps it apart from the C library's names."""
    return f"unit_{unit.name}"


def emit(unit: ir.Unit, vectors: Vectors, options: Options) -> str:
    """Write the module of one unit; equal units give equal text.

    Raises
    ------
    CompileError
        The unit holds something that cannot be compiled: a dispatch that nobody lowered, local
        arrays larger than the stack allows.
    """
    _check_local_arrays(unit)
    module, entry = ModuleText(), entry_name(unit)
    loop = repeated(unit, options)
    if loop is None:
        _define(unit, entry, module, vectors, options)
        return str(module)
    name, one_round_name = f"{entry}.rounds", f"{entry}.round"
    _define(one_round(unit, loop), one_round_name, module, vectors, options, "internal ")
    rounds = SteppingBody(unit, module, vectors, options, name, loop, one_round_name)
    module.define(name, rounds.text())
    module.define(entry, _entry(unit, entry, [name], {}, is_shared=False))
    return str(module)


def _define(
    unit: ir.Unit,
    entry: str,
    module: ModuleText,
    vectors: Vectors,
    options: Options,
    linkage: str = "",
) -> None:
    """Add a function with the signature of an entry point, and the bodies that it goes to."""
    bodies = [f"{entry}.strided"]
    indexed = _indexed_arrays(unit)
    if indexed and options.level > 0 and not options.debug:
        bodies.insert(0, f"{entry}.rows")
        if all(array.is_contiguous for array in indexed):
            del bodies[1]
    lanes = explicit_lanes(unit, vectors, options)
    ordered = f"{entry}.ordered"
    is_optimised = options.level > 1 and not options.debug
    gathered = bytes_per_position(unit) if is_optimised and not lanes else {}
    if gathered:
        bodies.insert(1, ordered)
    for name in bodies:
        has_dense_rows = not name.endswith(".strided")
        body: Body
        if lanes and has_dense_rows:
            body = VectorBody(unit, module, vectors, options, name, lanes)
            if body.waiting_branches:
                waiting = WaitingBody(unit, module, vectors, options, name, lanes)
                module.define(waiting_name(name), waiting.text())
        else:
            body = Body(
                unit,
                module,
                vectors,
                options,
                name,
                has_dense_rows=has_dense_rows,
                is_ordered=name == ordered,
                # The loops of one body are reported: of the one that ordinary arrays take.
                is_reported=name == bodies[0],
            )
        module.define(name, body.text())
    updates = has_atomic_updates(unit.body, private_counters(unit, options))
    is_shared = bool(unit.extents) and updates and not options.debug
    if is_shared:
        name = f"{entry}.sharing"
        sharing = SharingBody(
            unit, module, vectors, options, name, has_dense_rows=False, is_reported=False
        )
        module.define(name, sharing.text())
    text = _entry(unit, entry, bodies, gathered, is_shared=is_shared, linkage=linkage)
    module.define(entry, text)


def _check_local_arrays(unit: ir.Unit) -> None:
    total = local_bytes(unit.body)
    if total > LOCAL_ARRAYS_LIMIT_BYTES:
        raise CompileError(
            "cpu",
            f"the local arrays of unit {unit.name!r} take {total} bytes, at most "
            f"{LOCAL_ARRAYS_LIMIT_BYTES} are allowed; pass a larger array as an argument",
        )


def _indexed_arrays(unit: ir.Unit) -> list[ir.ArrayParameter]:
    """The array parameters with axes that the body reads or writes."""
    accessed = {
        statement.array
        for statement in statements(unit.body.body)
        if isinstance(statement, ir.Load | ir.Store)
    }
    return [array for array in unit.arrays.values() if array.rank and array.name in accessed]


_ARGUMENTS = "(ptr %args, i64 %begin, i64 %end)"


def _entry(
    unit: ir.Unit,
    entry: str,
    bodies: Sequence[str],
    gathered: Mapping[str, int],
    *,
    is_shared: bool,
    linkage: str = "",
) -> str:
    function = FunctionText(ModuleText())
    if is_shared:
        is_begun = function.value("icmp sgt i64 %begin, 0")
        is_cut = function.value(f"icmp slt i64 %end, {2**63 - 1}")
        is_part = function.value(f"or i1 {is_begun}, {is_cut}")
        function.branch(is_part, "sharing", "whole")
        function.start("sharing")
        _go_to(function, f"{entry}.sharing")
        function.start("whole")
    choices = {name.rpartition(".")[2]: name for name in bodies}
    if len(choices) > 1 and "strided" in choices:
        function.branch(_are_dense(function, unit), "dense", "strided")
        function.start("strided")
        _go_to(function, choices.pop("strided"))
        function.start("dense")
    if len(choices) > 1:
        function.branch(_are_cached(function, unit, gathered), "rows", "ordered")
        function.start("ordered")
        _go_to(function, choices.pop("ordered"))
        function.start("rows")
    (last,) = choices.values()
    _go_to(function, last)
    return "\n".join(
        [f"define {linkage}i64 @{entry}{SIGNATURE} {{", "entry:", *function.lines, "}"]
    )


def _go_to(function: FunctionText, name: str) -> None:
    status = function.value(f"call i64 @{name}{_ARGUMENTS}")
    function.write(f"ret i64 {status}")


def _are_dense(function: FunctionText, unit: ir.Unit) -> str:
    """Whether every last axis is dense, and all axes of arrays whose shape is known.

    The stride of one or no element is no matter.
    """
    first = slots(unit)
    all_dense = "true"
    for array in _indexed_arrays(unit):
        rank = array.rank
        known = dense_strides(array)
        for axis in range(rank) if known else (rank - 1,):
            extent = load_slot(function, first[array.name] + 1 + axis, "i64")
            stride = load_slot(function, first[array.name] + 1 + rank + axis, "i64")
            dense = known[axis] if known else array.dtype.itemsize
            is_trivial = function.value(f"icmp sle i64 {extent}, 1")
            is_dense = function.value(f"icmp eq i64 {stride}, {dense}")
            fits = function.value(f"or i1 {is_trivial}, {is_dense}")
            all_dense = function.value(f"and i1 {all_dense}, {fits}")
    return all_dense


def _are_cached(function: FunctionText, unit: ir.Unit, gathered: Mapping[str, int]) -> str:
    """Whether the arrays from which vectors gather are small enough to stay in caches.

    All of an array counts, whichever positions are run, so that all threads run the same code.
    """
    first, total_bytes = slots(unit), "0"
    for array, step_bytes in gathered.items():
        length = load_slot(function, first[array] + 1, "i64")
        array_bytes = function.value(f"mul i64 {length}, {step_bytes}")
        total_bytes = function.value(f"add i64 {total_bytes}, {array_bytes}")
    return function.value(f"icmp sle i64 {total_bytes}, {CACHED_BYTES}")
