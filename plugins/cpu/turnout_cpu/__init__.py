"""The CPU backend: units compiled by LLVM, vectorised, with the math functions of glibc's libmvec.

The way of a unit through this package, one module per step:

1. ``emit``: unit to LLVM IR text, with ``operations`` and ``mathematics`` for what is computed,
   ``accesses`` for whether its loops are declared parallel, ``text`` for how things are spelt,
   ``vector_math`` for which routine computes each math function, and ``vector_choice`` for which
   units are written as vector code (``vector_body``, with ``waiting`` for branches that few lanes
   take) instead of being left to LLVM's vectoriser;
2. ``compiler``: text to object code, the payload of a `Binary`; and, in any process that has the
   binary, object code to an address;
3. ``report``: what became of each loop, for people who ask;
4. ``launcher``: a user's arguments to a call of that address, in one thread or, by ``pace`` and
   ``threads``, in several;
5. ``native_entry``: machine code that takes a user's own call, checks it and runs it.

Beside that, ``linear_algebra`` writes products of exact sizes, which ``implementations`` offers to
``turnout.ops``.

Launches are synchronous, so the core's defaults for sync, timer and memory are right.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from turnout.plugin import (
    Binary,
    CompileError,
    Device,
    Launcher,
    Options,
    Target,
    Unavailable,
    format_unit,
    hookimpl,
    ir,
)

if TYPE_CHECKING:
    from .body import Vectors
    from .vector_math import Isa

_KIND = "llvm-object"


@hookimpl
def turnout_devices() -> list[Device]:
    """The processor this process runs on."""
    try:
        from . import compiler
    except ImportError as error:
        raise Unavailable(
            f"the CPU backend compiles with llvmlite, which cannot be imported ({error})",
            fix="python -m pip install llvmlite",
        ) from error
    try:
        host = compiler.host()
    except RuntimeError as error:
        raise Unavailable(
            f"LLVM cannot generate code for this machine ({error})",
            fix="python -m pip install --upgrade llvmlite",
        ) from error
    from . import vector_math

    isa = vector_math.vector_isa(host.present)
    symbols = sorted(
        symbol for symbol in vector_math.available_symbols() if symbol.startswith(f"_ZGV{isa}")
    )
    options = [*host.versions, f"features={','.join(host.features)}"]
    if symbols:
        libc = "-".join(platform.libc_ver())
        names = ",".join(symbol.rpartition("_")[2] for symbol in symbols)
        options += [f"libc={libc}", f"libmvec={isa}", f"vector_functions={names}"]
    target = Target(
        backend="cpu",
        arch=host.cpu,
        features=frozenset({"f64", "correct_rounding", "bounds"}),
        options=tuple(options),
        lanes=_register_bits(host.present) // 64,
    )
    label = f"{_processor_name()} ({host.cpu}), {_usable_cores()} cores"
    return [Device(index=0, label=label, target=target, profiles=_profiles(target))]


@hookimpl
def turnout_compile(unit: ir.Unit, target: Target, options: Options) -> Binary:
    """Object code of one unit."""
    from . import accesses, compiler, emit

    vectors = _vectors(target)
    text = emit.emit(unit, vectors, options)
    features = _option(target, "features")
    if accesses.has_guarded_bytes(unit.body):
        features = features.replace("+avx512dq", "-avx512dq")
    compiled = compiler.compile_text(
        text,
        target.arch,
        features,
        options.level,
        keep_text=options.keep_text,
    )
    metadata = {
        "debug": str(options.debug),
        "symbols": ",".join(compiled.symbols),
        "crc32": str(zlib.crc32(compiled.code)),
    }
    if options.keep_text:
        from .report import loop_reports

        metadata |= {
            "text:unit": format_unit(unit),
            "text:llvm-ir": text,
            "text:optimised-llvm-ir": compiled.optimised,
            "text:assembly": compiled.assembly,
            **loop_reports(unit, compiled.optimised, vectors, options),
        }
    return Binary(emit.entry_name(unit), _KIND, compiled.code, metadata)


@hookimpl
def turnout_launch(binary: Binary, unit: ir.Unit) -> Launcher:
    """The loaded code; links, but neither parses nor optimises."""
    from . import compiler, launcher

    if binary.kind != _KIND:
        raise CompileError("cpu", f"binary {binary.entry!r} is {binary.kind!r}, not {_KIND!r}")
    if binary.metadata.get("crc32") != str(zlib.crc32(binary.payload)):
        raise CompileError("cpu", f"the code of binary {binary.entry!r} is damaged")
    symbols = filter(None, binary.metadata["symbols"].split(","))
    loaded = compiler.Loaded(binary.payload, binary.entry, symbols)
    if binary.metadata["debug"] == "True":
        return launcher.CheckingLauncher(loaded, unit)
    return launcher.CpuLauncher(loaded, unit)


def _profiles(target: Target) -> dict[str, Target]:
    """Targets without vector math: of this processor, and of the oldest one of its kind."""
    vector_math = ("libc=", "libmvec=", "vector_functions=")
    exact = tuple(option for option in target.options if not option.startswith(vector_math))
    versions = tuple(option for option in exact if not option.startswith("features="))
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    baseline = "x86-64-v2" if is_x86 else "generic"
    return {
        "native": replace(target, options=exact),
        "portable": replace(target, arch=baseline, options=versions, lanes=2),
    }


@hookimpl
def turnout_lower_dispatch(unit: ir.Unit, site: ir.Dispatch, policy: str) -> ir.Plan | None:
    """Predicated dispatches with costly arms; all others are left to the core."""
    if policy != "predicated":
        return None
    from . import predication

    lowered = predication.lowered(unit, site)
    return None if lowered is None else ir.Plan((ir.Run(lowered),))


def _option(target: Target, name: str) -> str:
    for option in target.options:
        key, _, value = option.partition("=")
        if key == name:
            return value
    return ""


def _vectors(target: Target) -> Vectors:
    from .body import Vectors

    isa = cast("Isa | None", _option(target, "libmvec") or None)
    return Vectors(isa, bits=target.lanes * 64)


def _register_bits(features: frozenset[str]) -> int:
    if "avx512f" in features:
        return 512
    return 256 if "avx" in features else 128


def _processor_name() -> str:
    """The name people know; the operating systems have no common way to ask for it."""
    if sys.platform == "linux":
        # A label is not worth failing for, where /proc cannot be read.
        with (
            contextlib.suppress(OSError),
            open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines,
        ):
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
    return platform.processor() or platform.machine()


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
