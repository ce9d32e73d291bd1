"""From text to functions, running them, and comparing what they wrote."""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, note, settings

import turnout as tn
import turnout.math as tm

from . import plain
from .inputs import Arguments, assert_only_outputs_changed, copied
from .programs import Program

BACKENDS = ("cpu", "reference")


def _examples() -> int | None:
    """How many examples the environment asks for, in every test."""
    text = os.environ.get("TURNOUT_FUZZ_EXAMPLES", "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"TURNOUT_FUZZ_EXAMPLES={text!r}: give a number of examples, at least 1")
    return int(text)


def fuzz(examples: int) -> settings:
    """Settings of one test: the same examples in every run, unless a number is asked for."""
    asked = _examples()
    return settings(
        max_examples=asked or examples,
        derandomize=asked is None,
        database=None,
        deadline=None,
        print_blob=asked is not None,
        suppress_health_check=list(HealthCheck),
    )


def function(source: str, namespace: dict[str, Any]) -> Callable[..., Any]:
    """The function ``generated`` of a source text, whose lines Python can find."""
    note(source)
    file = f"<generated {hash(source):x}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = dict(namespace)
    try:
        exec(compile(source, file, "exec", dont_inherit=True), names)
    finally:
        del linecache.cache[file]  # decorators have read it
    made: Callable[..., Any] = names["generated"]
    return made


def kernel(
    program: Program, *, policy: str = "switch", loops: str = "", debug: bool = False
) -> tn.Kernel:
    """The kernel of a program."""
    names = {name: getattr(tn, name) for name in ("NDArray", "Param", "Scalar", "Index", "Vector")}
    names |= {name: getattr(tn, name) for name in ("Mutable", "Terminated")}
    names |= {dtype.name: dtype for dtype in tn.ir.ALL_DTYPES}
    decorator = tn.kernel(debug=True) if debug else tn.kernel
    names |= {"kernel": decorator, "tn": tn, "tm": tm, "POLICY": policy}
    made = function(program.render(loops=loops), names)
    assert isinstance(made, tn.Kernel)
    return made


def in_order(made: tn.Kernel, program: Program) -> tn.Kernel:
    """A kernel that adds in Python's order: this one, unless some of its loops are reductions."""
    types: dict[str, Any] = {p.name: getattr(tn, p.kind, p.kind) for p in program.parameters}
    steps = made.lower({"return": tn.f64, **types}).plan.steps
    has_reductions = any(isinstance(s, tn.ir.Scratch) and not s.is_filled for s in steps)
    return kernel(program, loops="tn.serial") if has_reductions else made


def written(program: Program, given: Arguments) -> Arguments:
    return {p.name: given[p.name] for p in program.parameters if p.is_output}


def run(made: tn.Kernel, program: Program, given: Arguments, device: str) -> Arguments:
    """What a kernel leaves in its outputs, which are copied first."""
    used = copied(given)
    made(**used, device=device)
    outputs = written(program, used)
    assert_only_outputs_changed(given, used, outputs)
    return outputs


def run_plain(program: Program, given: Arguments) -> Arguments:
    """What plain Python leaves in the outputs."""
    used = copied(given)
    call_plain(program, used)
    return written(program, used)


def call_plain(program: Program, used: Arguments) -> None:
    """Run a program in plain Python on exactly these arrays."""
    body = function(program.plain(), plain.NAMESPACE)
    views = {k: v.view(plain.PlainArray) if np.ndim(v) else v for k, v in used.items()}
    with np.errstate(all="ignore"):
        if program.form == "array":
            body(**views)
        else:
            _run_samples(body, program, views)


def _run_samples(body: Callable[..., Any], program: Program, used: Arguments) -> None:
    per_sample = [p.name for p in program.parameters if p.role in ("plane", "vector", "mask")]
    for sample in range(used[program.outputs[0]].shape[-1]):
        if "done" in used and used["done"][sample]:
            continue
        inputs = dict(used)
        for name in per_sample:
            element = used[name][..., sample]
            inputs[name] = element.copy() if element.ndim else element[()]
        for name, value in zip(program.outputs, body(**inputs), strict=True):
            used[name][sample] = value


def assert_same(first: Arguments, second: Arguments, what: str) -> None:
    """All bits equal, all NaNs being one."""
    for name, array in first.items():
        other = second[name]
        differs = ~_is_same(array, other)
        if differs.any():
            where = np.argwhere(differs)[0]
            place = tuple(where)
            raise AssertionError(
                f"{what}: {name}{[int(axis) for axis in where]} is {array[place]!r} and "
                f"{other[place]!r}, {np.count_nonzero(differs)} of {array.size} differ"
            )


def _is_same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    if a.dtype.kind != "f":
        return np.asarray(a == b)
    return np.asarray(((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b)))
