"""Kernels of different kinds, one module each; a module with a `case` is found by itself."""

from __future__ import annotations

import importlib
import pkgutil

from ..cases import Case


def cases() -> list[Case]:
    """The cases of all modules of this package, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}").case for name in names]
