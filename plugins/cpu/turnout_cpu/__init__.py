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

import base64
import contextlib
import os
import platform
import sys
import zlib
from collections.abc import Collection, Sequence
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
    target = _target(host.cpu, host.features, host.versions)
    label = f"{_processor_name()} ({host.cpu}), {_usable_cores()} cores"
    profiles = _profiles(target, host.versions)
    return [Device(index=0, label=label, target=target, profiles=profiles)]


def _target(cpu: str, features: Sequence[str], versions: Sequence[str]) -> Target:
    """What code for a processor is compiled for; features have a sign, as LLVM writes them."""
    from . import vector_math

    present = {feature[1:] for feature in features if feature[0] == "+"}
    isa = vector_math.vector_isa(present)
    symbols = sorted(
        symbol for symbol in vector_math.available_symbols() if symbol.startswith(f"_ZGV{isa}")
    )
    options = [*versions, f"features={','.join(features)}"]
    if symbols:
        libc = "-".join(platform.libc_ver())
        names = ",".join(symbol.rpartition("_")[2] for symbol in symbols)
        options += [f"libc={libc}", f"libmvec={isa}", f"vector_functions={names}"]
    return Target(
        backend="cpu",
        arch=cpu,
        features=frozenset({"f64", "correct_rounding", "bounds", "private_counters"}),
        options=tuple(options),
        lanes=_register_bits(present) // 64,
    )


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
        "platform": compiler.host().platform,
        "features": ",".join(sorted(f[1:] for f in features.split(",") if f.startswith("+"))),
    }
    if options.standalone:
        metadata |= _written_threads()
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
    _refuse_other_machines(binary)
    _provide_threads(binary)
    symbols = filter(None, binary.metadata["symbols"].split(","))
    loaded = compiler.Loaded(binary.payload, binary.entry, symbols)
    if binary.metadata["debug"] == "True":
        return launcher.CheckingLauncher(loaded, unit)
    return launcher.CpuLauncher(loaded, unit)


def _written_threads() -> dict[str, str]:
    """What shares a launch among threads; code of any unit may need it."""
    from . import threads

    code, symbols, *_ = threads.native_code()
    return {"threads": base64.b64encode(code).decode(), "threads_symbols": ",".join(symbols)}


def _provide_threads(binary: Binary) -> None:
    if "threads" in binary.metadata:
        from . import compiler, threads

        code = base64.b64decode(binary.metadata["threads"])
        symbols = tuple(binary.metadata["threads_symbols"].split(","))
        threads.provide(compiler.Compiled(code, symbols))


def _refuse_other_machines(binary: Binary) -> None:
    """Code that uses what this processor does not have would end the process."""
    from . import compiler

    host = compiler.host()
    if binary.metadata["platform"] != host.platform:
        raise CompileError(
            "cpu", f"the code is for {binary.metadata['platform']}, and this is {host.platform}"
        )
    needed = frozenset(filter(None, str(binary.metadata["features"]).split(",")))
    if lacking := sorted(needed - host.present):
        raise CompileError(
            "cpu",
            f"the code uses features that this processor ({host.cpu}) lacks: {', '.join(lacking)}",
        )


_LEVEL_FEATURES = {
    "x86-64-v2": "cmov cx16 cx8 fxsr mmx popcnt sahf sse sse2 sse3 sse4.1 sse4.2 ssse3",
    "x86-64-v3": "avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave",
    "x86-64-v4": "avx512bw avx512cd avx512dq avx512f avx512vl",
}
"""What each level of x86-64 adds to the one before, in LLVM's names."""


def _profiles(target: Target, versions: tuple[str, ...]) -> dict[str, Target]:
    """Other targets than this processor.

    Those for comparisons are without vector math: ``"native"`` is this processor and ``"portable"``
    the oldest one of its kind. The levels of x86-64 are for code that is to run elsewhere.
    """
    levels: dict[str, Target] = {}
    portable = replace(target, arch="generic", options=versions, lanes=2)
    if platform.machine().lower() in ("x86_64", "amd64"):
        features: list[str] = []
        for level, added in _LEVEL_FEATURES.items():
            features = sorted([*features, *(f"+{name}" for name in added.split())])
            # LLVM would use half of the registers of the last level, for the oldest of its kind.
            levels[level] = _target(level, [*features, "-prefer-256-bit"], versions)
        portable = _without_vector_math(levels["x86-64-v2"])
    return {"native": _without_vector_math(target), "portable": portable, **levels}


def _without_vector_math(target: Target) -> Target:
    vector_math = ("libc=", "libmvec=", "vector_functions=")
    options = tuple(option for option in target.options if not option.startswith(vector_math))
    return replace(target, options=options)


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


def _register_bits(features: Collection[str]) -> int:
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
