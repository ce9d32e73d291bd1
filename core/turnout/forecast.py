"""What the model of time says of the forms of a kernel, before any of them is tried.

A form is the kernel with one combination of policies. `turnout.costs` counts what the branches of a
dispatch take; with the mix of a launch and what a wrong prediction of a branch costs, which is
measured, that gives nanoseconds. They are rough, so a form is ruled out only if it is far behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from statistics import median
from typing import Any, no_type_check

import numpy as np

from .costs import DispatchCost, dispatch_costs, estimated_ns, has_unknown_rounds
from .ir import Dispatch, Run, i64
from .kernel import Executable, kernel
from .lang import NDArray
from .loading import DeviceContext
from .lower import dispatch_groups

RULED_OUT_FROM = 3.0
"""How many times the estimate of the best form that of another must be for it not to be tried."""

_PREDICTIONS = 8192
_REPETITIONS = 5

Policies = Mapping[str, str]
"""The policy of each dispatch whose policy is open, by name."""


class Forecast:
    """Estimates how long the forms of a kernel take.

    Parameters
    ----------
    executable : Executable
        Of the kernel, for which a forecast `is_possible`.
    forms : mapping of str to Policies
        The forms by name.
    """

    def __init__(self, executable: Executable, forms: Mapping[str, Policies]) -> None:
        self._context = context = executable.context
        self._forms = forms
        one_device = executable.kernel._varied(device=context.name)
        self._costs = dispatch_costs(one_device, types=executable.types)
        self._skipped = {
            dispatch.name
            for run in executable.lowered.plan.runs
            for dispatch in dispatch_groups(run.unit)
            if _skips_branches(context, run, dispatch)
        }

    def estimates(self, shares: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Nanoseconds per sample of each form.

        Parameters
        ----------
        shares : mapping of str to sequence of float
            The share of each class, by dispatch. What no sample reaches costs nothing.
        """
        costs = {name: self._costs[name] for name in shares if any(shares[name])}
        # Where everything runs in vectors there is no branch to predict.
        is_branching = any(not cost.fused_vectorised for cost in costs.values())
        wrong_ns = misprediction_ns(self._context) if is_branching else 0.0
        lanes = self._context.device.target.lanes

        def estimate(name: str, cost: DispatchCost, policy: str) -> float:
            return estimated_ns(
                cost,
                shares[name],
                policy,
                misprediction_ns=wrong_ns,
                lanes=lanes,
                skips_branches=name in self._skipped,
            )

        return {
            form: sum(estimate(name, cost, policies[name]) for name, cost in costs.items())
            for form, policies in self._forms.items()
        }


def is_possible(executable: Executable, groups: Collection[str]) -> bool:
    """Whether anything is known of times: not for devices, nor of loops of unknown length.

    Parameters
    ----------
    executable : Executable
    groups : collection of str
        The dispatches whose policy is open.
    """
    return executable.context.is_host and not any(
        has_unknown_rounds(run.unit, dispatch)
        for run in executable.lowered.plan.runs
        for dispatch in dispatch_groups(run.unit)
        if dispatch.name in groups
    )


def ruled_out(estimates: Mapping[str, float]) -> dict[str, str]:
    """Say why some forms need not be tried.

    Parameters
    ----------
    estimates : mapping of str to float
        Nanoseconds per sample of each form.

    Returns
    -------
    dict of str to str
        Reasons by form.

    Examples
    --------
    >>> ruled_out({"switch": 8.0, "predicated": 2.0, "segmented": 5.0})
    {'switch': "it is estimated to take 4.0 times as long as 'predicated'"}
    """
    best = min(estimates, key=lambda form: estimates[form])
    reasons = {}
    for form, estimate in estimates.items():
        if estimate > RULED_OUT_FROM * estimates[best]:
            times = estimate / estimates[best]
            reasons[form] = f"it is estimated to take {times:.1f} times as long as {best!r}"
    return reasons


# -- what lowerings do -----------------------------------------------------------------------------


def _skips_branches(context: DeviceContext, run: Run, dispatch: Dispatch) -> bool:
    """Whether the backend lowers a predicated dispatch itself."""
    own = context.backend.hook.turnout_lower_dispatch(
        unit=run.unit,
        site=dispatch,
        policy="predicated",
        target=context.device.target,
    )
    return own is not None


# -- what a wrong prediction costs -----------------------------------------------------------------


@kernel
@no_type_check
def _walk(rounds: NDArray[i64, 1], result: NDArray[i64, 1]) -> None:
    state = 1
    for sample in range(rounds.shape[0]):
        for _ in range(rounds[sample]):
            state = (state * 5) ^ sample
    result[0] = state


@cache
def misprediction_ns(context: DeviceContext) -> float:
    """Nanoseconds that a branch takes which the processor predicts wrongly; measured once.

    Loops of one or of three rounds are run in random order, where every second prediction is wrong,
    and in order of their length. That takes about ten milliseconds.
    """
    on_device = _walk.on(context.name)
    result = np.zeros(1, i64.dtype)

    def elapsed_ns(rounds: np.ndarray[Any, Any]) -> float:
        started_ns = time.perf_counter_ns()
        on_device(rounds, result)
        return time.perf_counter_ns() - started_ns

    return measured_misprediction_ns(elapsed_ns)


def measured_misprediction_ns(elapsed_ns: Callable[[np.ndarray[Any, Any]], float]) -> float:
    """What a wrong prediction takes, by the times of loops of so many rounds each."""
    generator = np.random.default_rng(1)
    in_order = np.repeat(np.array([1, 3], i64.dtype), _PREDICTIONS // 2)
    elapsed_ns(in_order)
    elapsed_ns(in_order)
    differences = []
    for _ in range(_REPETITIONS):
        # In another order each time: processors learn what they see again.
        differences.append(elapsed_ns(generator.permutation(in_order)) - elapsed_ns(in_order))
    return max(0.0, median(differences)) / (_PREDICTIONS / 2)
