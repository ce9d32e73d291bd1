"""The native entry of kernel calls: one builtin that takes a user's arguments, checks and runs.

It is machine code behind CPython's ``METH_FASTCALL | METH_KEYWORDS``. What it finds as the
`DirectCall` says it runs; for everything else it calls the Python path with the arguments as they
came, so it raises no error of its own: only memory for results can run out.

**From the first check to the launch no Python code runs**, with one exception: allocating results
may start a garbage collection. What was read of an array stays what NumPy guarantees as long as
there are references to it, and the caller of a builtin holds one to every argument: other threads,
which may run once the interpreter lock is released, cannot resize it. They can give it another
shape, so its extents and strides are copied to the stack first.

**Ownership.** The builtin owns a tuple: the Python path, the table, the definition that CPython
refers to, the code, and whatever the table points to. A caller holds the builtin while it calls it,
and CPython drops that tuple last, so code is never freed under a thread that runs it.

**The code holds no address of this process.** It reads them from the table, so its text depends on
nothing but the shape of a call (types, ranks, what is checked), kernels of one shape share it, and
it can be kept on disk. The table is a bytes object of 8-byte words.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from turnout.plugin import Binary, DirectCall, Options, ir

from . import compiler, interpreter
from .body import Body, Vectors
from .entry_text import LARGEST, NAME, EntryText, buffer_bytes, scratch_bytes
from .text import ModuleText

_MAXIMUM_CHECKS = 256
"""Parameters and checks of a call; each adds to the time that it takes to make an entry."""

_MAXIMUM_FILLED_BYTES = 4096
"""Scratch memory on the stack, which each call fills with zeros."""

_MAXIMUM_BUFFER_BYTES = 4 * 1024 * 1024
"""Scratch memory that an entry keeps."""

_MAXIMUM_FACTOR = 2**40
"""Sums of indices with smaller factors cannot leave 128 bits: lengths and scalars have 64."""

_loaded: weakref.WeakValueDictionary[str, compiler.Loaded] = weakref.WeakValueDictionary()
"""Code by its text, as long as a builtin runs it."""


def make_entry(call: DirectCall) -> Callable[..., Any] | None:
    """Make the builtin for one executable.

    Returns
    -------
    builtin or None
        None where the interpreter or the call is not of the form that native code knows.
    """
    if interpreter.layout_problem() or not _is_simple(call):
        return None
    sizes = [_size_function(run.unit, f"size{number}") for number, run in enumerate(call.runs)]
    if None in sizes:
        return None
    entry = EntryText(call)
    text = "\n".join([*filter(None, sizes), entry.text()])
    loaded = _load(text, call)
    table = struct.pack(f"={len(entry.words)}Q", *entry.words)
    definition = interpreter.MethodDefinition(
        call.name.encode(), loaded.address, interpreter.FASTCALL_WITH_KEYWORDS, None
    )
    return interpreter.builtin(
        definition, (call.fallback, table, definition, loaded, call, entry.kept)
    )


def _load(text: str, call: DirectCall) -> compiler.Loaded:
    def make() -> Binary:
        # For any processor of the architecture, and hardly optimised: that takes a tenth of the
        # time, and calls take as long, because processors are good at such straight code.
        compiled = compiler.compile_text(text, "", "", 0)
        return Binary(NAME, "llvm-object", compiled.code)

    loaded = _loaded.get(text)
    if loaded is None:
        loaded = compiler.Loaded(call.cached(text, make).payload, NAME, ())
        _loaded[text] = loaded
    return loaded


def _is_simple(call: DirectCall) -> bool:
    """Whether the call has nothing that is left to the Python path."""
    if len(call.parameters) + len(call.overlaps) + len(call.reaches) > _MAXIMUM_CHECKS:
        return False
    filled = (scratch for scratch in call.scratch if scratch.is_filled)
    if sum(map(scratch_bytes, filled)) > _MAXIMUM_FILLED_BYTES:
        return False
    # Between taking the buffer and the end nothing may fail, as making results may.
    if buffer_bytes(call) > (0 if call.results else _MAXIMUM_BUFFER_BYTES):
        return False
    for parameter in call.parameters:
        known = (np.ndarray,) if parameter.rank else interpreter.SCALAR_TYPES
        if parameter.python_type not in known:
            return False
    return all(map(_is_small, call.reaches))


def _is_small(reach: ir.Reach) -> bool:
    sums = [each for each in (reach.least, reach.greatest) if each is not None]
    sums += [each for pair in reach.ranges for each in pair]
    numbers = [each.constant for each in sums] + [n for each in sums for _, n in each.terms]
    return all(abs(number) < _MAXIMUM_FACTOR for number in numbers)


def _size_function(unit: ir.Unit, name: str) -> str | None:
    """Text of the function that counts the positions of a unit, or None if that needs others."""
    module = ModuleText()
    bare = replace(unit, prologue=(), extents=(), body=ir.Region((), ()), apart=())
    body = Body(
        bare, module, Vectors(None, 0), Options(), name, has_dense_rows=False, is_reported=False
    )
    for parameter in unit.parameters:
        body.parameter(parameter)
    body.statements(_needed(unit.prologue, unit.extents))
    function = body.function
    total = "1"
    for extent in unit.extents:
        length = body.names[extent.number]
        length = function.value(f"call i64 @llvm.smax.i64(i64 {length}, i64 0)")
        # Too many to count are more than any limit.
        factors = f"i64 {total}, i64 {length}"
        pair = function.value(f"call {{i64, i1}} @llvm.smul.with.overflow.i64({factors})")
        product = function.value(f"extractvalue {{i64, i1}} {pair}, 0")
        overflows = function.value(f"extractvalue {{i64, i1}} {pair}, 1")
        total = function.value(f"select i1 {overflows}, i64 {LARGEST}, i64 {product}")
    function.write(f"ret i64 {total}")
    if body.allocations or str(module).strip():
        return None
    lines = [f"define internal i64 @{name}(ptr %args) alwaysinline nounwind {{", "entry:"]
    return "\n".join([*lines, *function.lines, "}"])


def _needed(prologue: Sequence[ir.Statement], wanted: Iterable[ir.Value]) -> list[ir.Statement]:
    """The statements of a prologue on which some of its values depend; these are pure."""
    numbers = {value.number for value in wanted}
    needed: list[ir.Statement] = []
    for statement in reversed(prologue):
        if ir.is_pure(statement) and not numbers.isdisjoint(r.number for r in statement.results):
            numbers |= {operand.number for operand in statement.operands}
            needed.insert(0, statement)
    return needed
