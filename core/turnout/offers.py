"""What plugins offer besides the hooks: code for operations of `turnout.ops`.

That is operations compiled for one exact size, and builtins that find decisions.

A function of the entry-point group ``turnout.implementations`` calls `offer_compiled_operation`;
`turnout.ops` asks for the offer of the backend that a call runs on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .direct import DecidedCalls
from .errors import ConfigurationError
from .hooks import Device
from .records import record

if TYPE_CHECKING:
    import numpy as np

COMPILED_OPERATIONS = ("dot", "gemv", "matmul")


@record
class CompiledOperation:
    """An operation that is compiled for one exact size.

    Attributes
    ----------
    function : callable
        ``dot``: ``function(a, b)`` returns a scalar of the arrays' type. ``gemv`` and ``matmul``:
        ``function(a, b, out)`` writes `out` and returns it.
    memory_bytes : int
        What its code and its constants take.
    """

    function: Callable[..., Any]
    memory_bytes: int


CompileOperation = Callable[
    [tuple[int, ...], "np.dtype[Any]", Device, Callable[..., Any]], CompiledOperation | None
]
"""``compile(sizes, dtype, device, otherwise)`` makes an operation for one size, or returns None
where it has nothing to offer for it, and the core compiles a kernel of its own.

sizes
    ``dot``: ``(n,)``. ``gemv``: ``(m, n)`` of ``a`` (m, n) and ``x`` (n,). ``matmul``: ``(m, n,
    k)`` of ``a`` (m, k), ``b`` (k, n) and ``out`` (m, n). Any of them may be 0.
dtype
    float32, float64 or a type of integers, in the machine's byte order.
device
    Where it is to run.
otherwise
    The function that the compiled one calls with its own arguments, returning what that returns,
    whenever these are anything else than *plain*: NumPy arrays of exactly that type (no
    subclasses), dtype and shape, aligned and C-contiguous; `out` writable and without memory in
    common with the inputs. It raises a `CallError`, or copies and calls the compiled function again
    with plain arguments.
"""

_offers: dict[tuple[str, str], CompileOperation] = {}


def offer_compiled_operation(operation: str, backend: str, compile: CompileOperation) -> None:
    """Offer to compile an operation of `turnout.ops` for any exact size.

    Call it in a function of the entry-point group ``turnout.implementations``, which runs at the
    operation's first call. A later offer for the same backend takes the place of an earlier one.

    Parameters
    ----------
    operation : {"dot", "gemv", "matmul"}
    backend : str
        The name of the backend on whose devices the code runs.
    compile : callable
        ``compile(sizes, dtype, device, otherwise)``, see `CompileOperation`. It may be called from
        several threads, for different sizes at the same time.

    Raises
    ------
    ConfigurationError
        When there is no such operation, or `compile` cannot be called.
    """
    if operation not in COMPILED_OPERATIONS:
        raise ConfigurationError(
            f"offer_compiled_operation: there is no operation {operation!r} that is compiled for "
            f"one size: give one of {', '.join(COMPILED_OPERATIONS)}"
        )
    if not callable(compile):
        raise ConfigurationError(
            f"offer_compiled_operation: {compile!r} cannot be called: give a function "
            "compile(sizes, dtype, device, otherwise)"
        )
    _offers[operation, backend] = compile


MakeDecidedCalls = Callable[[DecidedCalls], Callable[..., Any] | None]
"""``make(calls)`` returns a builtin that finds decisions natively, or None where none can be made
in this interpreter."""

_decided_calls: dict[tuple[str, str], MakeDecidedCalls] = {}


def offer_decided_calls(operation: str, backend: str, make: MakeDecidedCalls) -> None:
    """Offer to find the decisions of an operation of `turnout.ops` natively.

    Call it where `offer_compiled_operation` is called. A later offer for the same backend takes the
    place of an earlier one.

    Parameters
    ----------
    operation : str
    backend : str
        The name of the backend on whose devices the calls run; they work in the host's memory.
    make : callable
        ``make(calls)`` takes a `turnout.plugin.DecidedCalls`. It is called once the operation has
        its first decision.

    Raises
    ------
    ConfigurationError
        When `make` cannot be called.
    """
    if not callable(make):
        raise ConfigurationError(
            f"offer_decided_calls: {make!r} cannot be called: give a function make(calls)"
        )
    _decided_calls[operation, backend] = make


def is_any_offered(operation: str) -> bool:
    """Whether plugins find the decisions of an operation for any backend."""
    return any(name == operation for name, _ in _decided_calls)


def offered_decided_calls(operation: str, backend: str) -> MakeDecidedCalls | None:
    """Return how the plugins of a backend find decisions; None where they do not."""
    return _decided_calls.get((operation, backend))


def offered(operation: str, backend: str) -> CompileOperation | None:
    """Return how the plugins of a backend compile an operation; None where they do not."""
    return _offers.get((operation, backend))
