"""Sidecars: what programs that run units by hand need to know about them, as plain JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from . import ir
from .arguments import Types
from .derive import Derivative
from .digests import sha256
from .kernel import Kernel
from .lang import LoweredKernel, ParameterSpec
from .segmented_units import DispatchUnit
from .selectors import dispatch_entries, role_of

SCHEMA_VERSION = 1

Variants = Sequence[tuple[Types, LoweredKernel]]
"""A kernel for each combination of types that it is built for."""


def sidecar(kernel: Kernel, variants: Variants, targets: Sequence[str]) -> dict[str, Any]:
    """Describe a kernel or a unit of one.

    Parameters
    ----------
    kernel : Kernel
    variants : sequence of (types, LoweredKernel)
    targets : sequence of str
        What it is compiled for, as users name it.

    Returns
    -------
    dict
        Made of plain values, so that it equals what is read from its JSON.
    """
    (types, lowered), *_ = variants
    specs = kernel.signature.parameters
    planes = [spec for spec in specs if spec.role == "plane"]
    entries = unit_entries(kernel, types)
    described: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kernel": kernel.__name__,
        "exec_targets": list(targets),
        "exec_access": _access(kernel, lowered),
        "scalar_type": str(_dtype_name(types["return"])),
        "scalar_types": list(dict.fromkeys(_dtype_name(each["return"]) for each, _ in variants)),
        "params": [
            {"name": spec.name, "dtype": _dtype_name(types[spec.name])}
            for spec in specs
            if spec.role == "param"
        ],
        "per_sample": [s.name for s in planes if not s.is_output and not s.width],
        "vector_inputs": [s.name for s in planes if not s.is_output and s.width],
        "vec_widths": {s.name: s.width for s in planes if s.width},
        "mutables": [_mutable(spec, lowered) for spec in planes if spec.is_output],
        "lookups": [spec.name for spec in specs if spec.role == "array"],
        "terminated": next((spec.name for spec in specs if spec.role == "mask"), None),
        "arg_dtypes": {spec.name: _dtype_name(types[spec.name]) for spec in specs if spec.rank},
        "dispatch": entries,
        "arg_spec": [[role_of(spec), spec.name] for spec in specs],
        "returns": [
            {"name": each.name, "dtype": each.dtype.dtype.name, "width": each.width or 1}
            for each in lowered.returned
        ],
        "steps": kernel.steps,
        "digest": structural_digest(variants),
    }
    counters = [entry["mix"] for entry in entries if "mix" in entry]
    described["arg_dtypes"] |= dict.fromkeys(counters, "uint32")
    described["arg_spec"] += [["lookup", name] for name in counters]
    if isinstance(kernel, Derivative):
        described["derivative"] = {
            "kind": "vjp",
            "wrt": list(kernel.wrt),
            "primal": kernel.primal.__name__,
        }
    return described


def structural_digest(variants: Variants) -> str:
    """SHA-256 of what a kernel computes; one whose policy was chosen is as one that declares it."""
    digest = sha256()
    for _, lowered in variants:
        for unit in lowered.plan.units:
            digest.update(ir.format_unit(unit).encode() + b"\0")
    return digest.hexdigest()


def unit_entries(kernel: Kernel, types: Types) -> list[dict[str, Any]]:
    """The dispatches of a kernel, or of a unit of a segmented one with that which it belongs to."""
    entries = dispatch_entries(kernel, types)
    if not isinstance(kernel, DispatchUnit) or kernel.number is None:
        return entries
    return [*_split_entries(kernel), *entries]


def _split_entries(unit: DispatchUnit) -> Iterator[dict[str, Any]]:
    units = [f"{unit.primal.__name__}__k{number}" for number in range(unit.classes)]
    for entry in unit.primal.dispatch_entries():
        if entry["policy"] == "segmented":
            names = {"class": f"{unit.prefix}_class", "stale": f"{unit.prefix}_stale"}
            yield {**entry, **names, "units": units}


def _access(kernel: Kernel, lowered: LoweredKernel) -> str:
    """Whether samples touch only their own elements, read others, or write them."""
    if kernel.signature.form == "array":
        return "array"
    tables = {spec.name for spec in kernel.signature.parameters if spec.role == "array"}
    arrays = [array for unit in lowered.plan.units for array in unit.arrays.values()]
    is_guarded = isinstance(kernel, DispatchUnit) and kernel.is_guarded
    if is_guarded or any(array.name in tables and array.is_written for array in arrays):
        return "cross_sample_write"
    return "cross_sample_read" if tables else "sample_local"


def _mutable(spec: ParameterSpec, lowered: LoweredKernel) -> dict[str, Any]:
    arrays = [unit.arrays.get(spec.name) for unit in lowered.plan.units]
    kind = "vector" if spec.width else "scalar"
    if spec.dtype is not None and not spec.dtype.is_float:
        kind = spec.dtype.dtype.name
    return {
        "name": spec.name,
        "dtype": kind,
        "width": spec.width or 1,
        "prior": any(array is not None and array.is_read for array in arrays),
    }


def _dtype_name(dtype: Any) -> str:
    """NumPy's name of an element type; Python's name of a type of Python numbers."""
    return dtype if isinstance(dtype, str) else dtype.dtype.name
