"""What turnout is compared with: where each peer comes from, and how it takes arrays."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import io
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .compare import failure


def _same(array: Any) -> Any:
    return array


@dataclass(frozen=True)
class Peer:
    """A library that kernels are written for.

    Attributes
    ----------
    name : str
        What the tables call it.
    module, distribution : str
        What is imported, and what is installed.
    to_own, to_numpy : callable
        Turn a NumPy array into what the peer works on, and back.
    """

    name: str
    module: str
    distribution: str
    to_own: Callable[[Any], Any] = _same
    to_numpy: Callable[[Any], Any] = _same

    @property
    def is_installed(self) -> bool:
        """Whether it can be imported."""
        return importlib.util.find_spec(self.module) is not None

    @property
    def version(self) -> str:
        """Its version; empty when it is not installed."""
        return importlib.metadata.version(self.distribution) if self.is_installed else ""

    @property
    def what_is_missing(self) -> str:
        """Empty when it is installed, else the command that installs it."""
        if self.is_installed:
            return ""
        return f"not installed: python -m pip install {self.distribution}"


# -- quadrants -------------------------------------------------------------------------------------


@functools.cache
def quadrants() -> Any:
    """The module `quadrants`, initialised for one thread of the CPU."""
    os.environ.setdefault("ENABLE_QUADRANTS_HEADER_PRINT", "0")
    import quadrants as module

    with contextlib.redirect_stdout(io.StringIO()):
        # Literals are float64 then; kernels in float32 say so.
        module.init(
            arch=module.cpu, cpu_max_num_threads=1, default_fp=module.f64, offline_cache=False
        )
    return module


def _quadrants_array(array: np.ndarray[Any, Any]) -> Any:
    # Calls with its own arrays take half the time of calls with NumPy's.
    module = quadrants()
    dtypes = {"float32": module.f32, "float64": module.f64, "int64": module.i64}
    own = module.ndarray(dtypes[array.dtype.name], array.shape)
    own.from_numpy(array)
    return own


# -- hawk ------------------------------------------------------------------------------------------


def hawk_function(kernel: Any) -> Callable[..., None]:
    """Build a hawk kernel, and give a function of its arguments by name that runs it."""
    import hawk

    folder = tempfile.mkdtemp(prefix="hawk-")
    hawk.build([kernel], folder, targets=("host",))
    return functools.partial(hawk.run, hawk.load(folder, kernel.name))


PEERS = {
    peer.name: peer
    for peer in (
        Peer("turnout", "turnout", "turnout"),
        Peer("NumPy", "numpy", "numpy"),
        Peer("Numba", "numba", "numba"),
        Peer("NumExpr", "numexpr", "numexpr"),
        Peer("quadrants", "quadrants", "quadrants", _quadrants_array, lambda own: own.to_numpy()),
        Peer("hawk", "hawk", "raptor-hawk"),
    )
}


# -- Numba -----------------------------------------------------------------------------------------


def numba_compiled(
    loops: Callable[..., Any], fastmath: bool | frozenset[str] = False
) -> Callable[..., Any] | str:
    """Loops compiled by Numba, or why they are not there."""
    if PEERS["Numba"].what_is_missing:
        return PEERS["Numba"].what_is_missing
    try:
        return _compiled(loops, fastmath)
    except Exception as error:  # as in `compare`: one peer's failure is a row, not the end
        return failure(error)


@functools.cache
def _compiled(loops: Callable[..., Any], fastmath: bool | frozenset[str]) -> Callable[..., Any]:
    from numba import njit

    flags = fastmath if isinstance(fastmath, bool) else set(fastmath)
    compiled: Callable[..., Any] = njit(fastmath=flags)(loops)
    return compiled
