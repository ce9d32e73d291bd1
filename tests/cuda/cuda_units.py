"""Every unit of the conformance suite; run as a program, a table of the registers of each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from turnout.arguments import call_types
from turnout.backends import backend, resolve
from turnout.compilation import lower_plan
from turnout.conformance.kernels import CONFORMANCE_KERNELS, LANGUAGE_KERNELS
from turnout.plugin import Target, cfamily, ir
from turnout_cuda.compiler import Image, compile_text, load_nvrtc

WANTED = (70, 75, 80, 90, 120)
"""Volta, which the CUDA 12 line alone compiles for; Turing, Ampere, Hopper and Blackwell."""


def architectures() -> list[str]:
    """What the installed compiler compiles for, of those that are wanted."""
    supported = load_nvrtc().getSupportedArchs()
    return [f"sm_{each}" for each in WANTED if each in supported]


def units() -> Iterator[tuple[str, ir.Unit]]:
    """The units of every kernel for its typical arguments, dispatches lowered, each unit once."""
    host = resolve((), "reference")
    cuda, target = backend("cuda"), Target("cuda", "sm_90")
    seen = set()
    for case in CONFORMANCE_KERNELS:
        types = call_types(case.name, case.kernel.signature, case.arguments(8), host)
        plan = lower_plan(case.kernel.lower(types).plan, cuda, target)
        for number, unit in enumerate(plan.units):
            text = ir.format_unit(unit)
            if text not in seen:
                seen.add(text)
                yield f"{case.name}/{number}" if len(plan.units) > 1 else case.name, unit


def compile_all(
    named: Sequence[tuple[str, ir.Unit]], arch: str, debug: bool = False
) -> list[Image]:
    """All units for one architecture; NVRTC compiles in several threads at once."""

    def compiled(unit: ir.Unit) -> Image:
        rendered = cfamily.render(unit, cfamily.CUDA_CPP, debug=debug, with_dense_entry=False)
        return compile_text(rendered.text, arch)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compiled, [unit for _, unit in named]))


def main() -> None:
    """Print a table: the kernels that are written out, then what the operations and casts take."""
    named, archs = list(units()), architectures()
    version = ".".join(map(str, load_nvrtc().getVersion()))
    print(f"# Registers of the conformance kernels, NVRTC {version}\n")
    print(
        "Registers of a thread (bytes of stack, if any), and after a plus sign bytes of registers"
    )
    print("that were spilled, if any.\n")
    print(f"| kernel | {' | '.join(archs)} |\n|---|{'---:|' * len(archs)}")
    rows = list(zip(*(compile_all(named, arch) for arch in archs), strict=True))
    written_out = {case.name for case in LANGUAGE_KERNELS}
    others: list[tuple[Image, ...]] = []
    for (name, _), images in zip(named, rows, strict=True):
        if name.partition("/")[0] in written_out:
            print(f"| {name} | {' | '.join(map(cell, images))} |")
        else:
            others.append(images)
    ranges = " | ".join(map(span, zip(*others, strict=True)))
    print(f"| {len(others)} operations and casts | {ranges} |")


def span(images: Sequence[Image]) -> str:
    """From the fewest registers to the most."""
    cells = sorted((image.resources.registers, cell(image)) for image in images if image.resources)
    return f"{cells[0][1]} to {cells[-1][1]}"


def cell(image: Image) -> str:
    assert image.resources is not None
    registers, stack, spill = image.resources
    return f"{registers}{f' ({stack} B)' if stack else ''}{f' + {spill} B' if spill else ''}"


if __name__ == "__main__":
    main()
