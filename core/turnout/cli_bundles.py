"""The command ``turnout build``, and ``turnout show`` for what it has written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .tables import print_table

if TYPE_CHECKING:
    from .bundle import Bundle
    from .kernel import Kernel


def named_types(context: click.Context, option: click.Parameter, values: Any) -> dict[str, str]:
    """Parse the values of an option ``NAME=TYPE`` that may be given several times."""
    pairs = [value.partition("=") for value in values]
    for name, separator, type_name in pairs:
        if not (name and separator and type_name):
            raise click.BadParameter("write NAME=TYPE, for example n=int", context, option)
    return {name: type_name for name, _, type_name in pairs}


@click.command()
@click.argument("kernels", nargs=-1, required=True, metavar="MODULE:KERNEL...")
@click.option(
    "-o",
    "--output",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="The folder: made, or replaced if it holds a bundle.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="TARGET",
    help="What to compile for: cpu, cpu:x86-64-v3, cuda, cuda:sm_90, opencl; again for more. "
    "[default: cpu]",
)
@click.option(
    "--dtype",
    "dtypes",
    type=click.Choice(["f32", "f64"]),
    multiple=True,
    help="Floats of parameters that take their type from the call; again for both. [default: f64]",
)
@click.option(
    "--param",
    "param_types",
    multiple=True,
    callback=named_types,
    metavar="NAME=TYPE",
    help="Type of a scalar parameter: int, float or a dtype such as i32.",
)
def build(
    kernels: Sequence[str],
    directory: Path,
    targets: Sequence[str],
    dtypes: Sequence[str],
    param_types: Mapping[str, str],
) -> None:
    """Compile kernels into a bundle.

    A kernel is MODULE:KERNEL or path/to/file.py:KERNEL; without its name, all kernels of the module
    are built. turnout.load loads them from the folder, without source and compiler, where TARGET is
    what runs there.
    """
    from . import bundle
    from .ir import DTYPE_BY_NAME

    built = bundle.build(
        _found(kernels),
        directory,
        targets=tuple(targets) or ("cpu",),
        dtype=[DTYPE_BY_NAME[name] for name in dtypes or ("f64",)],
        param_types=param_types,
    )
    print_bundle(built)


def _found(names: Sequence[str]) -> list[Kernel]:
    from .inspection import find_kernel, find_kernels
    from .targets import split_target

    found: list[Kernel] = []
    for name in names:
        place, path = split_target(name)
        found += [find_kernel(name)] if path else find_kernels(place).values()
    return list(dict.fromkeys(found))


def holds_bundle(target: str) -> bool:
    """Whether a user who names `target` means a bundle, and not a module or a file."""
    path = Path(target)
    is_path = os.sep in target
    return path.is_dir() and (is_path or (path / "manifest.json").exists())


def show(directory: str, *, as_json: bool) -> None:
    """Verify a bundle, and print what it holds."""
    from .bundle import read_bundle

    bundle = read_bundle(directory)
    if as_json:
        click.echo(json.dumps(_facts(bundle), indent=2))
    else:
        print_bundle(bundle)


def _facts(bundle: Bundle) -> dict[str, Any]:
    return {
        "directory": str(bundle.directory),
        "sha256": bundle.digest,
        "names": bundle.names,
        "sidecars": [artifact.sidecar for artifact in bundle.artifacts],
        "manifest": bundle.manifest,
    }


def print_bundle(bundle: Bundle) -> None:
    """Print the kernels, the dispatches and the targets of a bundle, whose files are verified."""
    files = bundle.manifest["files"]
    total_bytes = sum(entry["bytes"] for entry in files.values())
    click.secho(f"bundle {bundle.directory}", bold=True)
    click.echo(
        f"  {len(files) + 1} files, {total_bytes:,} bytes, built by turnout "
        f"{bundle.manifest['turnout']}; all files are as they were written\n"
        f"  SHA-256 of the manifest: {bundle.digest}\n"
    )
    kernels = [_kernel_row(artifact.sidecar) for artifact in bundle.artifacts]
    _table("kernels", ("kernel", "parameters", "floats", "access", "steps"), kernels, ("steps",))
    listed = {artifact.name for artifact in bundle.artifacts}
    if whole := [name for name in bundle.names if name not in listed]:
        click.echo(f"Loaded as a whole too, units together: {', '.join(whole)}")
    groups = [row for artifact in bundle.artifacts for row in _dispatch_rows(artifact.sidecar)]
    if groups:
        click.echo()
        _table("dispatches", _GROUP_COLUMNS, groups, ("branches",))
    click.echo()
    targets = [_target_row(bundle, name) for name in bundle.manifest["targets"]]
    _table("targets", _TARGET_COLUMNS, targets, ("files", "bytes"))


_GROUP_COLUMNS = ("kernel", "dispatch", "branches", "policy", "class depends on", "counters")
_TARGET_COLUMNS = ("target", "architecture", "built by", "files", "bytes")


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str]
) -> None:
    print_table(title, columns, rows, numbers=numbers, marked=[False] * len(rows))


def _kernel_row(sidecar: Mapping[str, Any]) -> tuple[str, ...]:
    parameters = ", ".join(name for _, name in sidecar["arg_spec"])
    floats = ", ".join(sidecar["scalar_types"])
    return (sidecar["kernel"], parameters, floats, sidecar["exec_access"], str(sidecar["steps"]))


def _dispatch_rows(sidecar: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            sidecar["kernel"],
            entry["name"],
            str(entry["K"]),
            entry["policy"],
            ", ".join(name for _, name in entry["selector_reads"])
            + ("" if entry["static_selector"] else " (written)"),
            entry.get("mix", ""),
        )
        for entry in sidecar["dispatch"]
    ]


def _target_row(bundle: Bundle, name: str) -> tuple[str, ...]:
    described = bundle.manifest["targets"][name]
    folder = described["index"].rpartition("/")[0]
    sizes = [
        entry["bytes"]
        for file, entry in bundle.manifest["files"].items()
        if file.startswith(f"{folder}/")
    ]
    _, _, architecture, *_ = described["target"]
    shown = architecture or "any"
    return (name, shown, described["built_by"], str(len(sizes)), f"{sum(sizes):,}")
