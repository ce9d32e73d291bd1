"""Lowerings of dispatches: a unit with `Dispatch` statements becomes one without.

A dispatch evaluates arm ``clamp(selector, 0, K - 1)``. ``"switch"`` branches to that arm.
``"predicated"`` evaluates every arm and selects, which suits vectors and short arms; only what must
not run for other classes (memory accesses, loops) stays under a condition. The results are the same
bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby

from . import ir
from .errors import KernelError
from .ir.transform import (
    class_conditions,
    fresh_values,
    rename,
    rewritten,
    selects,
    with_regions,
    zeros,
)
from .lang import POLICIES as POLICIES


def dispatch_groups(unit: ir.Unit) -> list[ir.Dispatch]:
    """List the dispatches of a unit in source order, an outer one before those in its arms."""
    return [s for s in ir.statements(unit.body.body) if isinstance(s, ir.Dispatch)]


def segmented_groups(unit: ir.Unit) -> list[str]:
    """List the names of the dispatches whose policy is ``"segmented"``, each once."""
    groups = dispatch_groups(unit)
    return list(dict.fromkeys(group.name for group in groups if group.policy == "segmented"))


def plan_dispatches(plan: ir.Plan) -> list[ir.Dispatch]:
    """List the dispatches of all units of a plan, as `dispatch_groups` does of one."""
    return [group for run in plan.runs for group in dispatch_groups(run.unit)]


def with_policies(plan: ir.Plan, policies: Mapping[str, str]) -> ir.Plan:
    """Give the plan with other policies of the dispatches that `policies` names."""

    def changed(step: ir.Step) -> ir.Step:
        if not isinstance(step, ir.Run):
            return step
        body = region_with_policies(step.unit.body, policies)
        return replace(step, unit=replace(step.unit, body=body))

    return ir.Plan(tuple(map(changed, plan.steps))) if policies else plan


def region_with_policies(region: ir.Region, policies: Mapping[str, str]) -> ir.Region:
    """Give a region with other policies of the dispatches that `policies` names."""

    def change(statement: ir.Statement, rebuilt: ir.Statement) -> list[ir.Statement]:
        if isinstance(rebuilt, ir.Dispatch):
            return [replace(rebuilt, policy=policies.get(rebuilt.name, rebuilt.policy))]
        return [rebuilt]

    return rewritten(region, change)


def lower_dispatches(unit: ir.Unit, choose: Callable[[ir.Dispatch], str] | None = None) -> ir.Unit:
    """Replace every dispatch of a unit by statements that backends know.

    Parameters
    ----------
    unit : Unit
        Unit with any number of dispatches, nested ones included.
    choose : callable, optional
        Policy of each dispatch; what the dispatch declares when not given. ``"auto"`` is lowered as
        ``"switch"``.

    Returns
    -------
    Unit
        The same computation without `Dispatch` statements; a unit that has none comes back as it
        is.

    Raises
    ------
    KernelError
        If a policy is unknown, or ``"segmented"``, which takes more than one unit.
    """
    if not dispatch_groups(unit):
        return unit
    lowering = _Lowering(unit, choose or (lambda dispatch: dispatch.policy))
    return replace(unit, body=lowering.region(unit.body))


class _Lowering:
    def __init__(self, unit: ir.Unit, choose: Callable[[ir.Dispatch], str]) -> None:
        self.unit = unit
        self.choose = choose
        self.fresh = fresh_values(unit)

    def policy(self, dispatch: ir.Dispatch) -> str:
        policy = self.choose(dispatch)
        where = f"kernel {self.unit.name!r}, dispatch {dispatch.name!r}"
        if policy not in POLICIES:
            allowed = ", ".join(map(repr, POLICIES))
            raise KernelError(f"{where}: unknown policy {policy!r}; the policies are {allowed}")
        if policy == "segmented":
            raise KernelError(
                f"{where}: policy 'segmented' takes more than one unit (turnout.segmentation)"
            )
        return policy

    def region(self, region: ir.Region) -> ir.Region:
        body = [lowered for statement in region.body for lowered in self.statement(statement)]
        return replace(region, body=tuple(body))

    def statement(self, statement: ir.Statement) -> Iterator[ir.Statement]:
        policy = self.policy(statement) if isinstance(statement, ir.Dispatch) else ""
        lowered = with_regions(statement, [self.region(region) for region in statement.regions])
        if not isinstance(lowered, ir.Dispatch):
            yield lowered
        elif policy == "predicated" and len(lowered.arms) > 1:
            yield from self.predicated(lowered)
        else:
            yield ir.Switch(lowered.results, lowered.selector, lowered.arms)

    def predicated(self, dispatch: ir.Dispatch) -> Iterator[ir.Statement]:
        """Evaluate the arms one after the other, then choose with a chain of selects."""
        # A narrow selector cannot reach the arms beyond its largest value.
        arms = dispatch.arms[: dispatch.selector.dtype.maximum + 1]
        comparisons, is_class = class_conditions(dispatch.selector, len(arms), self.fresh)
        yield from comparisons
        for condition, arm in zip(is_class, arms, strict=True):
            yield from self.speculated(arm.body, condition)
        values = [arm.yields for arm in arms]
        yield from selects(dispatch.results, is_class, values, self.fresh)

    def speculated(
        self, body: Iterable[ir.Statement], condition: ir.Value
    ) -> Iterator[ir.Statement]:
        """Run an arm for every class, its unsafe statements only where `condition` holds."""
        for is_safe, group in groupby(body, _may_speculate):
            if is_safe:
                yield from group
            else:
                yield self.guarded(tuple(group), condition)

    def guarded(self, body: tuple[ir.Statement, ...], condition: ir.Value) -> ir.If:
        """Run statements where `condition` holds; elsewhere their results are zeros."""
        results = tuple(result for statement in body for result in statement.results)
        inner = {result: self.fresh(result.dtype) for result in results}
        return ir.If(
            results,
            condition,
            ir.Region((), rename(body, inner), tuple(inner.values())),
            zeros(results, self.fresh),
        )


def _may_speculate(statement: ir.Statement) -> bool:
    """Whether a statement may run where its result is not wanted.

    Not memory accesses, whose index may be in range for one class only, and not loops, which may
    run long or for ever on values of another class.
    """
    if isinstance(statement, ir.If | ir.Switch):
        return all(_may_speculate(inner) for r in statement.regions for inner in r.body)
    return ir.is_pure(statement) or isinstance(statement, ir.LocalArray)
