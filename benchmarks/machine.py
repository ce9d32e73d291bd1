"""What the figures were measured on: enough to compare runs, and nothing that names the machine."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import turnout as tn

from .peers import PEERS

DISTRIBUTIONS = ("turnout", "turnout-cpu", "llvmlite", "numpy")
VARIABLES = re.compile(r"(OPENBLAS|OMP|MKL|NUMBA|NUMEXPR|TURNOUT|QD)_\w+|PYTHONHASHSEED")
FOLDERS = re.compile(r"\w*(DIR|PATH|HOME|FOLDER)\w*")


def describe() -> dict[str, Any]:
    """The machine and the versions, as plain values for JSON."""
    versions = {name: _version(name) for name in DISTRIBUTIONS}
    versions |= {peer.distribution: peer.version for peer in PEERS.values()}
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.system(),
        "architecture": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "python_compiler": platform.python_compiler(),
        "compiler_for_hawk": _first_line("g++", "--version"),
        "versions": {name: version or "not installed" for name, version in versions.items()},
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if VARIABLES.fullmatch(name) and not FOLDERS.fullmatch(name)
        },
        "commit": _commit(),
    }


def cpu_name() -> str:
    """The CPU as the operating system calls it, with the compiler's name for it."""
    model = platform.processor()
    information = Path("/proc/cpuinfo")
    if information.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", information.read_text(), re.MULTILINE)
        model = found[1].strip() if found else model
    arch = next(
        (device.target.arch for device in tn.devices() if device.target.backend == "cpu"), ""
    )
    return f"{model or platform.machine()} {arch}".strip()


def file_name(machine: dict[str, Any]) -> str:
    """Date and CPU in letters, digits and hyphens."""
    words = re.findall(r"[a-z0-9]+", machine["cpu"].lower().replace("(r)", ""))
    return "-".join([machine["date"], *words])


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _first_line(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return output.partition("\n")[0].strip()


def _commit() -> str:
    """The commit of the checkout, and whether files differ from it; empty outside of git."""
    here = Path(__file__).parent
    if shutil.which("git") is None:
        return ""
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
