"""`resolve_dispatch`: the choice of policies for dispatches that leave it open."""

from __future__ import annotations

from collections.abc import Mapping

from . import ir
from .errors import KernelError
from .kernel import Kernel
from .lower import POLICIES, plan_dispatches, segmented_groups, with_policies
from .segmentation import check_split
from .selectors import possible_lowering

RESOLUTIONS = tuple(policy for policy in POLICIES if policy != "auto")


def resolve_dispatch(kernel: Kernel, policies: Mapping[str, str]) -> Kernel:
    """The same kernel with policies for dispatches that are declared ``"auto"``.

    Parameters
    ----------
    kernel : Kernel
        It stays as it is.
    policies : mapping of str to str
        ``"switch"``, ``"predicated"`` or ``"segmented"``, by the name of the dispatch. Dispatches
        that it does not name stay as they are.

    Returns
    -------
    Kernel
        Of the same name, parameters and number of steps.

    Raises
    ------
    KernelError
        For an unknown dispatch or policy, a dispatch whose policy is declared, which nothing
        changes, and ``"segmented"`` where it cannot be, as in a loop that
        changes the class.

    Examples
    --------
    >>> import numpy as np, turnout as tn, turnout.math as tm
    >>> from turnout import Index, Scalar
    >>> @tn.kernel
    ... def law(regime: Index, v: Scalar) -> Scalar:
    ...     return tm.dispatch(regime, [v, v * v, tm.exp(v)], policy="auto")
    >>> split = tn.resolve_dispatch(law, {"dispatch0": "segmented"})
    >>> split(np.array([1, 0, 7]), np.array([3.0, 4.0, 0.0]))
    array([9., 4., 1.])
    """
    if not isinstance(kernel, Kernel):
        raise KernelError(
            f"resolve_dispatch takes a kernel (turnout.kernel), not {type(kernel).__name__}"
        )
    if not isinstance(policies, Mapping):
        raise KernelError(
            "resolve_dispatch(policies): give a dictionary of policies by dispatch group, such as "
            f"{{'dispatch0': 'switch'}}, not {type(policies).__name__}"
        )
    _, lowered = possible_lowering(kernel)
    groups = {group.name: group for group in plan_dispatches(lowered.plan)}
    for name, policy in policies.items():
        _check(kernel, groups, name, policy)
    for run in with_policies(lowered.plan, policies).runs:
        # What cannot be split is refused here, where the choice is made, and not at a call.
        check_split(run.unit, segmented_groups(run.unit))
    return kernel._varied(chosen_policies={**kernel.chosen_policies, **policies})


def _check(kernel: Kernel, groups: Mapping[str, ir.Dispatch], name: str, policy: object) -> None:
    where = f"resolve_dispatch({kernel.__name__})"
    if name not in groups:
        raise KernelError(
            f"{where}: {name!r} is not a dispatch group of {kernel.__name__}; its groups are "
            f"{list(groups)}"
        )
    if policy not in RESOLUTIONS:
        allowed = ", ".join(map(repr, RESOLUTIONS))
        raise KernelError(f"{where}: {name!r} cannot become {policy!r}; allowed: {allowed}")
    declared = groups[name].policy
    if declared != "auto":
        raise KernelError(
            f"{where}: the policy of {name!r} is {declared!r}, which stays; only groups that are "
            "declared 'auto' can be resolved"
        )
