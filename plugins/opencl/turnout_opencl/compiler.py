"""Units to text, and text to programs."""

from __future__ import annotations

from typing import Any

from turnout.plugin import Binary, CompileError, Options, Target, cfamily, format_unit, ir

SOURCE, PROGRAM = "opencl-c", "opencl-program"

LOCAL_ARRAYS_LIMIT_BYTES = 256 * 1024
"""Where OpenCL runs on a processor, local arrays live on the stack of its threads."""


class BuildError(Exception):
    """The driver refuses a program."""

    def __init__(self, log: str) -> None:
        self.log = log
        super().__init__(log)


def compile_unit(unit: ir.Unit, target: Target, options: Options) -> Binary:
    """The binary of a unit.

    Its payload is OpenCL C, or what the driver made of it: that is possible where a device for the
    target is open, and useful where the driver keeps nothing itself.

    Raises
    ------
    CompileError
        If the device lacks what the unit needs, or the driver refuses the text.
    """
    rendered = cfamily.render(unit, cfamily.OPENCL_C, debug=options.debug)
    _refuse_large_arrays(unit)
    if options.standalone:
        _refuse_architecture(target)
    else:
        _refuse(unit, rendered, target)
    metadata = {
        "dense_entry": rendered.dense_entry,
        "debug": str(options.debug),
        "options": _build_options(unit, target, options),
        "source": rendered.text,
    }
    if options.keep_text:
        metadata |= {"text:unit": format_unit(unit), "text:opencl-c": rendered.text}
    if options.standalone:
        _program(rendered.text, target, metadata)  # to know that it can be built
        metadata |= {"options": _build_options(unit, _ANY_DEVICE, options), "for": _ANY}
        return Binary(rendered.entry, SOURCE, rendered.text.encode(), metadata)
    program = None if "caches" in target.options else _program(rendered.text, target, metadata)
    if program is None:
        return Binary(rendered.entry, SOURCE, rendered.text.encode(), metadata)
    return Binary(rendered.entry, PROGRAM, program, metadata)


_ANY = "any device"
_ANY_DEVICE = Target("opencl", "")
"""What text in bundles is for: each driver compiles it, and how it rounds is asked then."""


def _refuse_architecture(target: Target) -> None:
    if target.arch and not target.options:  # as no device says of itself
        raise CompileError(
            "opencl",
            f"OpenCL C is for any device, not for {target.arch!r}; give the target 'opencl'",
        )


def _refuse(unit: ir.Unit, rendered: cfamily.Rendered, target: Target) -> None:
    if "f64" in rendered.needs and "f64" not in target.features:
        raise CompileError(
            "opencl",
            f"unit {unit.name!r} computes in float64, which {target.arch} cannot; give float32 "
            "arrays and numbers, or pin types with f32",
            source=format_unit(unit),
        )
    if "atomics_64" in rendered.needs and "atomics_64" not in target.options:
        raise CompileError(
            "opencl",
            f"unit {unit.name!r} updates shared elements of 64 bits, which {target.arch} cannot do "
            "atomically; use elements of 32 bits",
            source=format_unit(unit),
        )


def _refuse_large_arrays(unit: ir.Unit) -> None:
    total = cfamily.local_bytes(unit)
    if total > LOCAL_ARRAYS_LIMIT_BYTES:
        raise CompileError(
            "opencl",
            f"the local arrays of unit {unit.name!r} take {total} bytes, at most "
            f"{LOCAL_ARRAYS_LIMIT_BYTES} are allowed; pass a larger array as an argument",
        )


_CORRECT_ROUNDING = "-cl-fp32-correctly-rounded-divide-sqrt"


def _build_options(unit: ir.Unit, target: Target, options: Options) -> str:
    words = ["-w", "-cl-std=CL1.2"]
    if "correct_rounding" in target.features:
        words.append(_CORRECT_ROUNDING)
    if options.level == 0:
        words.append("-cl-opt-disable")
    if unit.fast_math:
        words.append("-cl-unsafe-math-optimizations")
    return " ".join(words)


def _program(source: str, target: Target, metadata: dict[str, str]) -> bytes | None:
    """What the driver makes of a text, where a device for the target is open."""
    from . import devices

    opened = devices.opened_for(target)
    if opened is None:
        return None
    import pyopencl as cl

    try:
        program = build(opened.context, opened.device, source, metadata["options"])
    except BuildError as error:
        raise CompileError("opencl", error.log, source=source) from None
    binary = program.get_info(cl.program_info.BINARIES)[0]
    return bytes(binary) or None


def load(binary: Binary, context: Any, device: Any) -> Any:
    """A program built in a context.

    Raises
    ------
    CompileError
        If the binary is of another kind or damaged, or the driver refuses it.
    """
    import pyopencl as cl

    from . import devices

    if binary.kind not in (SOURCE, PROGRAM):
        raise CompileError("opencl", f"binary {binary.entry!r} is {binary.kind!r}, not OpenCL")
    source, options = binary.metadata["source"], binary.metadata["options"]
    if binary.metadata.get("for") == _ANY and devices.rounds_correctly(device):
        options = f"{options} {_CORRECT_ROUNDING}"
    try:
        if binary.kind == SOURCE:
            return build(context, device, source, options)
        raw = cl._cl._Program(context, [device], [binary.payload])
        raw._build(options.encode(), [device])
    except BuildError as error:
        raise CompileError("opencl", error.log, source=source) from None
    except cl.Error as error:
        raise CompileError("opencl", str(error), source=source) from None
    return cl.Program(raw)


def build(context: Any, device: Any, source: str, options: str) -> Any:
    """Build a program from its text.

    pyopencl's own `Program.build` turns whatever a driver prints into Python warnings and keeps a
    cache of its own.

    Raises
    ------
    BuildError
        With the log of the driver.
    """
    import pyopencl as cl

    program = cl._cl._Program(context, source)
    for is_last in (False, True):
        try:
            program._build(options.encode(), [device])
            return cl.Program(program)
        except cl.Error as error:
            log = str(program.get_build_info(device, cl.program_build_info.LOG)).strip()
            # PoCL fails without a word where processes build one program at the same time.
            if log or is_last:
                raise BuildError(log or str(error)) from None
            program = cl._cl._Program(context, source)
    raise AssertionError("one of the two attempts returned or raised")
