"""The plugin contract: seven hooks that a backend answers, and the plain objects they return.

Hooks are factories. They run when something is first needed; nothing on the path of a repeated
kernel call goes through pluggy. Every hook has ``firstresult``: the backend's answer, else the
core's default from `turnout.defaults`. An implementation may take any subset of the arguments.

Each docstring has five lines: called by, when, returns, raises, default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

from . import ir
from .records import record

if TYPE_CHECKING:
    import numpy as np

    from .direct import DirectCall

PROJECT = "turnout"
ENTRY_POINT_GROUP = "turnout.backends"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@record
class Target:
    """What code is compiled for. Hashable, printable, no handles; needs no hardware.

    Attributes
    ----------
    backend : str
        Name of the backend.
    arch : str
        Architecture in the backend's own words, for example ``"znver4"`` or ``"sm_90"``. Empty for
        bundles that are built where the backend has no device: any device then.
    features : frozenset of str
        Capabilities by which the conformance suite skips: ``"f64"``, ``"correct_rounding"`` (f32
        division and sqrt), ``"bounds"`` (honours `Options.debug`). ``"private_counters"``: where a
        unit does nothing with an array but add 1 to one of few elements, each thread counts for
        itself, so that dispatches are counted where they are evaluated.
    options : tuple of str
        Everything else the machine code depends on: instruction set extensions, vector libraries,
        versions of the compiler. Part of the key of every binary.
    lanes : int
        Samples that execute in lockstep: SIMD width or warp size.
    """

    backend: str
    arch: str
    features: frozenset[str] = frozenset()
    options: tuple[str, ...] = field(default=(), repr=False)
    lanes: int = 1

    def __str__(self) -> str:
        features = ",".join(sorted(self.features))
        options = ",".join(self.options)
        return f"{self.backend} {self.arch} features={features} lanes={self.lanes} {options}"


@record
class Device:
    """One piece of hardware of a backend, written ``backend:index``."""

    index: int
    label: str
    target: Target
    memory_bytes: int = 0
    """Size of its memory; 0 where unknown."""
    profiles: Mapping[str, Target] = field(default_factory=dict, compare=False, repr=False)
    """Optional: other targets than that of the device itself, by name, for it or lesser hardware.

    Bundles can be built for all of them. To ``"native"`` and ``"portable"``
    `turnout.dispatch_costs` compares: the same processor without vector routines for math
    functions, and what every processor of its kind runs. A backend that has profiles names every
    architecture there is; one that has none takes what users write for `Target.arch`, and refuses
    in ``turnout_compile`` what it does not know.
    """

    def __str__(self) -> str:
        return f"{self.target.backend}:{self.index}"


@record
class Options:
    """How to compile.

    Attributes
    ----------
    level : int
        Optimisation level, 0 to 3.
    debug : bool
        Check every index; launchers then raise `IndexViolation`.
    keep_text : bool
        Keep what people read in `turnout show` in `Binary.metadata`: the text of every stage under
        ``"text:<stage>"`` (``"text:assembly"``), and what became of the loop at a source line under
        ``"loop:<line>"``, of the innermost loop over the iteration space under ``"loop:space"``;
        for a loop that runs several iterations in one vector the words contain how many, as
        ``"8 lanes"``. The code must be the same with it as without.
    standalone : bool
        The binary goes into a bundle, which other processes and machines load. It must hold what
        the backend would otherwise compile when it is first needed. Drivers may translate it.
    """

    level: int = 3
    debug: bool = False
    keep_text: bool = False
    standalone: bool = False

    def __str__(self) -> str:
        kept = f"keep_text={self.keep_text} standalone={self.standalone}"
        return f"level={self.level} debug={self.debug} {kept}"


@record
class Binary:
    """Compiled code of one unit, as it is kept on disk.

    Attributes
    ----------
    entry : str
        Name of the entry point.
    kind : str
        What `payload` is, for example ``"llvm-object"``.
    payload : bytes
        The code.
    metadata : mapping of str to str
        Whatever `turnout_launch` needs besides the code.
    """

    entry: str
    kind: str
    payload: bytes
    metadata: Mapping[str, str] = field(default_factory=dict)


class IndexViolation(Exception):  # noqa: N818 - a report between backend and core, not an error
    """What a launcher of a debug binary raises; the core turns it into an `OutOfBoundsError`.

    Parameters
    ----------
    site : int
        Which `Load` or `Store` of the unit's body, counted from 0 in the order of `ir.statements`;
        those of the prologue are not counted.
    axis, index, extent : int
        The axis, the index used on it, and the length of that axis.
    """

    def __init__(self, site: int, axis: int, index: int, extent: int) -> None:
        self.site, self.axis, self.index, self.extent = site, axis, index, extent
        super().__init__(site, axis, index, extent)


class Launcher(Protocol):
    """Loaded code of one unit on one device.

    ``launcher(args, size)`` enqueues and never waits. `args` are the unit's parameters in order:
    arrays owned by the device with the parameter's dtype and rank (any strides), scalars as Python
    int, float or bool within the parameter's type. `size` is the number of positions of the
    iteration space: 1 for a unit without one; at 0 nothing happens. Safe from several threads.
    """

    @property
    def direct(self) -> Callable[[DirectCall], Callable[..., Any] | None] | None:
        """Optional: makes a callable that takes the user's own arguments; None if there is none.

        The callable checks and runs the whole call, and hands over to the kernel's Python path what
        it does not take (`turnout.direct`). It is asked for at the second call of an executable on
        a device that works on NumPy arrays, through the launcher of the first unit, and may be None
        as well. It becomes an attribute of a type, so it must not bind itself as functions do.
        """
        ...

    def __call__(self, args: tuple[Any, ...], size: int) -> None: ...


class Memory(Protocol):
    """Memory of a device whose arrays are not NumPy's.

    More methods are optional.

    ``zeros(shape, dtype)``
        A new array on the device that is full of zeros, for results of kernels and scratch memory.
        The fill is enqueued; nothing waits. Without it zeros are copied there from the host.
    ``interface(value)``
        The array interface of an owned array, as NumPy defines it: a dict with ``data``, a pair of
        an address and whether the array is read-only, ``shape``, ``typestr``, ``version`` and,
        unless it is C-contiguous, ``strides`` in bytes. Addresses are compared, never read. With it
        views of one buffer are checked for overlap, and outputs for what makes them unwritable;
        without it the core tells apart only different array objects.
    ``bounds(value)``
        The first address of an owned array and the one after its last; None unless it is
        C-contiguous and can be written. It says less than `interface` in less time, because it is
        asked at every call.
    ``copy(value)``
        A new array on the device that holds what an owned one does, in the order of its work. Its
        own method ``copy`` or ``clone`` is called without it.
    ``assign(value, content)``
        Overwrite an owned array, however it lies, with an owned one or one of the host, which is
        C-contiguous, of its shape and type. Without it ``value[...] = content`` is run with owned
        arrays.
    """

    def owns(self, value: object) -> bool:
        """Whether `value` is an array on this device; cheap, by type."""
        ...

    def put(self, host: np.ndarray[Any, Any]) -> Any:
        """Copy to the device; returns when `host` may be reused.

        `host` is C-contiguous and in the byte order of this machine.
        """
        ...

    def get(self, value: Any, out: np.ndarray[Any, Any]) -> None:
        """Copy back into `out`, which is C-contiguous; waits for the work that produces `value`.

        It is not called for arrays without elements.
        """
        ...


Sync = Callable[[], None]
Timer = Callable[[Callable[[], None]], int]


@hookspec(firstresult=True)
def turnout_devices() -> Sequence[Device]:  # type: ignore[empty-body]
    """List the devices that can be used here.

    Called by: `turnout.backends`.
    When: once per process, at the first use of the backend; may load drivers.
    Returns: devices, numbered from 0; never empty.
    Raises: `Unavailable(reason, fix)` where there is nothing to use.
    Default: none; a backend must implement it.
    """


@hookspec(firstresult=True)
def turnout_compile(unit: ir.Unit, target: Target, options: Options) -> Binary:  # type: ignore[empty-body]
    """Compile one unit; needs no device.

    Called by: `turnout.kernel`.
    When: once per unit digest, target and options, ever, thanks to the disk cache; from any thread.
    Returns: a `Binary`.
    Raises: `CompileError(backend, log, source)`.
    Default: none; a backend must implement it.
    """


@hookspec(firstresult=True)
def turnout_launch(binary: Binary, device: Device, unit: ir.Unit) -> Launcher:  # type: ignore[empty-body]
    """Load a binary on a device.

    Called by: `turnout.kernel`.
    When: once per binary and device per process; takes milliseconds at most.
    Returns: a `Launcher`. `unit` is the one the binary was compiled from.
    Raises: `CompileError` where the code cannot be loaded.
    Default: none; a backend must implement it.
    """


@hookspec(firstresult=True)
def turnout_sync(device: Device) -> Sync:  # type: ignore[empty-body]
    """Give the function that waits for all work this process queued on `device`.

    Called by: `turnout.backends`.
    When: once per device; needed where launches return before the work is done.
    Returns: a function without arguments.
    Raises: nothing.
    Default: a function that does nothing.
    """


@hookspec(firstresult=True)
def turnout_timer(device: Device, sync: Sync) -> Timer:  # type: ignore[empty-body]
    """Give the function that times work on `device`.

    Called by: `turnout.backends`.
    When: once per device.
    Returns: a function that runs a callable once and returns nanoseconds, by device events where
        the device has them. Its attribute ``is_capturing``, if it has one, is a function that says
        whether this thread records work into a graph instead of running it: nothing is timed then.
    Raises: nothing.
    Default: a monotonic clock between two syncs.
    """


@hookspec(firstresult=True)
def turnout_memory(device: Device) -> Memory:  # type: ignore[empty-body]
    """Give the memory of `device`.

    Called by: `turnout.backends`.
    When: once per device; needed where the device's arrays are not NumPy's.
    Returns: a `Memory`.
    Raises: nothing.
    Default: host memory, which owns NumPy arrays and copies nothing.
    """


@hookspec(firstresult=True)
def turnout_lower_dispatch(
    unit: ir.Unit, site: ir.Dispatch, policy: str, target: Target
) -> ir.Plan | None:
    """Lower one dispatch in the backend's own way.

    Called by: `turnout.lower`.
    When: once per unit, site, policy and target.
    Returns: a plan, or None for the core's lowering.
    Raises: nothing.
    Default: None.
    """


MUST_HOOKS = ("turnout_devices", "turnout_compile", "turnout_launch")
