"""A kernel of the suite: its input, what is right, and how each contender writes it.

A module makes a `Case`, decorates its functions with it, and is done; see `kernels/lookup.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import turnout as tn

from .compare import Absent, Arrays, Contender, Row, Target, Tolerance, compare, failure, poison
from .measure import Budget
from .peers import PEERS, Peer

Function = Callable[..., Any]

SEED = 20_240_229
FASTMATH = "fastmath"


@dataclass(frozen=True)
class Data:
    """Arguments of a kernel: first what it reads, then the arrays that it writes."""

    inputs: tuple[Any, ...]
    outputs: Arrays


class Case:
    """A kernel in several versions, all of them called with the same arguments by position.

    Parameters
    ----------
    name : str
        One word.
    title : str
        What it computes, in a few words.
    sizes : sequence of int
        Problem sizes, as `data` takes them.
    tolerance : Tolerance
        How far from the expected result the peers may be.
    own_tolerance : Tolerance
        How far turnout may be, without `fastmath`: what the language promises.
    targets : mapping of int to sequence of Target
        By problem size, what turnout promises.
    """

    def __init__(
        self,
        name: str,
        title: str,
        sizes: Sequence[int],
        *,
        tolerance: Tolerance,
        own_tolerance: Tolerance,
        targets: dict[int, Sequence[Target]] | None = None,
    ) -> None:
        self.name = name
        self.title = title
        self.sizes = sizes
        self.tolerance = tolerance
        self.own_tolerance = own_tolerance
        self.targets = targets or {}
        self._versions: list[tuple[Peer, str, Function]] = []
        self._built: dict[str, Function] = {}
        self._data: Function | None = None
        self._expected: Function | None = None

    # -- decorators --------------------------------------------------------------------------------

    def data(self, function: Callable[[int, np.random.Generator], Data]) -> Function:
        """The arguments for a problem size."""
        self._data = function
        return function

    def expected(self, function: Function) -> Function:
        """What is right: gives a tuple of arrays for the inputs."""
        self._expected = function
        return function

    def version(self, peer: str, variant: str = "") -> Callable[[Function], Function]:
        """The kernel as a function that is ready to be called."""

        def add(function: Function) -> Function:
            self._versions.append((PEERS[peer], variant, lambda: function))
            return function

        return add

    def built(self, peer: str, variant: str = "") -> Callable[[Function], Function]:
        """A function without arguments that imports the peer and gives the kernel."""

        def add(build: Function) -> Function:
            self._versions.append((PEERS[peer], variant, build))
            return build

        return add

    def turnout(self, function: Function) -> tn.Kernel:
        """A kernel that turnout compiles, as it is and with `fastmath`."""
        kernel = tn.kernel(function)
        self.version("turnout")(kernel)
        self.version("turnout", FASTMATH)(tn.kernel(fastmath=True)(function))
        return kernel

    def numba(self, loops: Function) -> Function:
        """Loops in plain Python that Numba compiles, as they are and with `fastmath`."""

        def strict() -> Function:
            from numba import njit

            return njit(loops)

        def fast() -> Function:
            from numba import njit

            return njit(fastmath=True)(loops)

        self.built("Numba")(strict)
        self.built("Numba", FASTMATH)(fast)
        return loops

    # -- measuring ---------------------------------------------------------------------------------

    def measure(self, group: str, size: int, budget: Budget) -> list[Row]:
        """Compare all versions at one problem size.

        Parameters
        ----------
        group : str
            What the table lists the case under.
        size : int
            One of `sizes`.
        budget : Budget
            How long to measure.

        Returns
        -------
        list of Row
        """
        assert self._data is not None
        assert self._expected is not None
        data = self._data(size, np.random.default_rng(SEED))
        expected = self._expected(*data.inputs)
        contenders = [self._contender(*version, data) for version in self._versions]
        targets = self.targets.get(size, ())
        return compare((group, self.name, size), contenders, expected, budget, targets)

    def _contender(
        self, peer: Peer, variant: str, build: Function, data: Data
    ) -> Contender | Absent:
        name = f"{peer.name} {variant}".strip()
        if peer.what_is_missing:
            return Absent(name, peer.what_is_missing)
        try:
            if name not in self._built:
                self._built[name] = build()
            call = self._built[name]
            inputs = [peer.to_own(v) if isinstance(v, np.ndarray) else v for v in data.inputs]
            poison(data.outputs)
            outputs = [peer.to_own(array) for array in data.outputs]
        except Exception as error:  # as in `compare`: one peer's failure is a row, not the end
            return Absent(name, failure(error))

        def results() -> Arrays:
            poison(data.outputs)
            call(*inputs, *outputs)
            return tuple(peer.to_numpy(array) for array in outputs)

        is_held_to_the_language = peer.name == "turnout" and variant != FASTMATH
        arguments = [f"x{place}" for place in range(len(inputs) + len(outputs))]
        return Contender(
            name,
            f"call({', '.join(arguments)})",
            {"call": call, **dict(zip(arguments, [*inputs, *outputs], strict=True))},
            results,
            self.own_tolerance if is_held_to_the_language else self.tolerance,
        )
