"""Kernels timed on arguments like those of a program: on every device, under every open policy.

All contenders take turns, so that a machine that is busy for a moment is so for each of them.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .backends import array, backends, timer
from .copies import is_array
from .discovery import CORE
from .errors import KernelError, TurnoutError
from .kernel import Kernel
from .lower import plan_dispatches
from .ranking import median, quartiles
from .records import record
from .resolve import resolve_dispatch
from .selectors import possible_lowering
from .tuning_on_copies import Sampler
from .written import kernel_accesses

FEWEST_ROUNDS = 5
MOST_ROUNDS = 101
WARM_UPS = 3  # the first call compiles, the second one prepares the short way of repeated calls


@record
class Form:
    """A kernel as it is timed.

    Attributes
    ----------
    policy : str
        Of the dispatches that are declared ``"auto"``; empty where there is none.
    kernel : Kernel or None
        None where the policy cannot be, for the reason in `problem`.
    """

    policy: str
    kernel: Kernel | None
    problem: str = ""


@record
class Timing:
    """What was measured of one form on one device.

    Attributes
    ----------
    device, policy : str
    samples_ns : tuple of int
        Time of one call, sample by sample; empty where it failed.
    problem : str
        Why there is no sample.
    """

    device: str
    policy: str
    samples_ns: tuple[int, ...]
    problem: str = ""

    @property
    def median_ns(self) -> float:
        """Half of the calls took longer."""
        return median(self.samples_ns)

    @property
    def quartiles_ns(self) -> tuple[float, float]:
        """The middle half of the calls took between the two."""
        return quartiles(self.samples_ns)


def usable_devices() -> list[str]:
    """The devices that kernels are timed on: all but the reference, unless there is no other."""
    usable = backends().values()
    chosen = [each for each in usable if each.devices and each.distribution != CORE] or usable
    return [str(device) for each in chosen for device in each.devices]


def forms(kernel: Kernel) -> list[Form]:
    """The kernel under each policy that its open dispatches can have; itself where none is open."""
    _, lowered = possible_lowering(kernel)
    open_names = [g.name for g in plan_dispatches(lowered.plan) if g.policy == "auto"]
    if not open_names:
        return [Form("", kernel)]
    return [_form(kernel, open_names, each) for each in ("switch", "predicated", "segmented")]


def _form(kernel: Kernel, names: Iterable[str], policy: str) -> Form:
    try:
        return Form(policy, resolve_dispatch(kernel, dict.fromkeys(names, policy)))
    except KernelError as error:
        return Form(policy, None, str(error))


def bench(
    kernel: Kernel,
    call: inspect.BoundArguments,
    on: Sequence[str],
    seconds: float,
    tell: Callable[[float], object] = lambda share: None,
) -> list[Timing]:
    """Time a kernel on copies of the arguments of a call.

    Parameters
    ----------
    kernel : Kernel
    call : inspect.BoundArguments
        Arrays on the host; they are moved to each device before anything is timed.
    on : sequence of str
        Devices.
    seconds : float
        How long all of it may take, but for compiling, and for at least five rounds.
    tell : callable, optional
        Told the share of the time that is over, after each round.

    Returns
    -------
    list of Timing
        Device by device, in the order given.
    """
    runners = [_Runner(device, form, call) for device in on for form in forms(kernel)]
    running = [each for each in runners if each.prepare()]
    started_at = time.monotonic()
    for number in range(1, 1 + MOST_ROUNDS):
        for each in running:
            each.run()
        share = max(number / MOST_ROUNDS, (time.monotonic() - started_at) / seconds)
        tell(share)
        if share >= 1 and number >= FEWEST_ROUNDS:
            break
    return [each.timing() for each in runners]


class _Runner:
    """One form on one device, with arguments that live there."""

    def __init__(self, device: str, form: Form, call: inspect.BoundArguments) -> None:
        self.device = device
        self.form = form
        self._call = call
        self._problem = form.problem
        self._samples_ns: list[int] = []

    def prepare(self) -> bool:
        """Move the arguments, compile and run; says whether that went well."""
        kernel = self.form.kernel
        if kernel is None:
            return False
        self._kernel = kernel.on(self.device)
        try:
            arguments = dict(_moved(self._call.arguments.items(), self.device))
            bound = inspect.BoundArguments(self._call.signature, arguments)
            written = kernel_accesses(kernel)
            names = arguments if written is None else written
            self._sampler = Sampler(bound, names, timer(self.device))
            for _ in range(WARM_UPS):
                self._sampler.sample(self._kernel)
        except TurnoutError as error:
            self._problem = str(error)
        return not self._problem

    def run(self) -> None:
        """Take a sample."""
        self._samples_ns.append(self._sampler.sample(self._kernel))

    def timing(self) -> Timing:
        return Timing(self.device, self.form.policy, tuple(self._samples_ns), self._problem)


def _moved(arguments: Iterable[tuple[str, Any]], device: str) -> Iterator[tuple[str, Any]]:
    for name, value in arguments:
        yield name, array(value, device) if is_array(value) else value
