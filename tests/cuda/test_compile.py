"""CUDA C++ compiled by NVRTC, for GPUs that are not there."""

from __future__ import annotations

import struct

import pytest
from cuda_units import architectures, cell, compile_all, units

import turnout as tn
from turnout import NDArray, f32, f64
from turnout.backends import backend
from turnout.plugin import Binary, Options, Target, ir
from turnout_cuda.compiler import compile_text, load_nvrtc

NEWEST = f"sm_{max(load_nvrtc().getSupportedArchs())}"
PLAIN = 'extern "C" __global__ void plain(int *a) { *a = 1; }'

UNITS = tuple(units())


@tn.kernel
def multiply_add(a: NDArray[f64, 1], b: NDArray[f32, 1]) -> None:
    for i in range(a.shape[0]):
        a[i] = a[i] * 3.0 + a[i]
        b[i] = b[i] / 3.0 + b[i] * b[i]


@tn.kernel(fastmath=True)
def fast_multiply_add(a: NDArray[f64, 1], b: NDArray[f32, 1]) -> None:
    for i in range(a.shape[0]):
        a[i] = a[i] * 3.0 + a[i]
        b[i] = b[i] / 3.0 + b[i] * b[i]


def unit_of(kernel: tn.Kernel) -> ir.Unit:
    (unit,) = kernel.lower(kernel.default_types()).plan.units
    return unit


def compiled(kernel: tn.Kernel, arch: str = NEWEST, options: Options | None = None) -> Binary:
    binary: Binary = backend("cuda").hook.turnout_compile(
        unit=unit_of(kernel), target=Target("cuda", arch), options=options or Options()
    )
    return binary


@pytest.mark.parametrize("arch", architectures())
def test_every_conformance_kernel(arch: str) -> None:
    """All units of the suite become code of every architecture, and none of them spills."""
    images = compile_all(UNITS, arch)
    assert len(images) > 450
    spilled = []
    for (name, _), image in zip(UNITS, images, strict=True):
        assert is_whole_elf(image.code), name
        assert image.resources is not None, name
        assert 0 < image.resources.registers <= 255, name
        if image.resources.spill_bytes:
            spilled.append(f"{name}: {cell(image)}")
    assert not spilled


@pytest.mark.parametrize("arch", [NEWEST])
def test_every_conformance_kernel_with_index_checks(arch: str) -> None:
    images = compile_all(UNITS, arch, debug=True)
    assert all(is_whole_elf(image.code) for image in images)


def is_whole_elf(code: bytes) -> bool:
    """Whether an ELF file ends where the last of its two tables does."""
    segments, sections, _, _, size, count, other_size, other_count = struct.unpack(
        "<QQIHHHHH", code[32:62]
    )
    end = max(segments + size * count, sections + other_size * other_count)
    return code[:4] == b"\x7fELF" and len(code) == end


def test_binary() -> None:
    binary = compiled(multiply_add)
    assert binary.entry == "unit_multiply_add"
    assert binary.kind == "cuda-image"
    assert is_whole_elf(binary.payload)
    assert set(binary.metadata) == {"debug", "crc32"}


def test_ptx_where_the_compiler_is_older_than_the_gpu() -> None:
    binary = compiled(multiply_add, NEWEST.replace("sm_", "compute_"))
    assert b".visible .entry unit_multiply_add" in binary.payload


def test_texts_for_people() -> None:
    texts = compiled(multiply_add, options=Options(keep_text=True)).metadata
    assert "unit multiply_add" in texts["text:unit"]
    assert 'extern "C" __global__ void unit_multiply_add' in texts["text:cuda"]
    assert ".entry unit_multiply_add" in texts["text:ptx"]
    assert "registers, 0 bytes of stack, 0 bytes of spilled registers" in texts["text:resources"]


def test_arithmetic_is_ieee() -> None:
    """Nothing is contracted, flushed or approximated."""
    ptx = compiled(multiply_add, options=Options(keep_text=True)).metadata["text:ptx"]
    assert "mul.f64" in ptx or "mul.rn.f64" in ptx
    assert "fma.rn.f64" not in ptx
    assert "fma.rn.f32" not in ptx
    assert "div.rn.f32" in ptx
    assert ".ftz" not in ptx
    relaxed = compiled(fast_multiply_add, options=Options(keep_text=True)).metadata["text:ptx"]
    assert "fma.rn.f64" in relaxed
    assert "fma.rn.ftz.f32" in relaxed


def test_compiler_error_shows_log_and_source() -> None:
    with pytest.raises(tn.CompileError) as caught:
        compile_text("__global__ void k() { oops }", NEWEST)
    message = str(caught.value)
    assert message.startswith(f"backend 'cuda' could not compile: NVRTC for {NEWEST}: kernel.cu(1)")
    assert 'identifier "oops" is undefined' in message
    assert "__global__ void k() { oops }" in message


def test_unknown_architecture() -> None:
    with pytest.raises(tn.CompileError, match=r"has no code for sm_30, only for sm_\d\d"):
        compile_text(PLAIN, "sm_30")


@pytest.mark.parametrize("level", range(4))
def test_optimisation_levels(level: int) -> None:
    assert is_whole_elf(compile_text(PLAIN, NEWEST, level=level).code)
