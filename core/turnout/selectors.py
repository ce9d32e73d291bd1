"""What the class of each dispatch depends on: the entries about dispatches in a kernel's sidecar.

`Dependences` is the graph of a unit: which values, arrays and facts about the launch a value comes
from. Loops make cycles in it, so that a selector that is carried from round to round leads to the
values that the loop began with. Whether a statement runs at all is no dependence of its results:
the condition of an `If` decides what is joined after it, and what is stored in it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import ir
from .errors import KernelError
from .lang import SAMPLES, ParameterSpec, Signature
from .lower import dispatch_groups

if TYPE_CHECKING:
    from .arguments import Types
    from .kernel import Kernel
    from .lang import LoweredKernel, Weak

Node = ir.Value | str
"""A value, or the memory of an array by its name."""

Read = tuple[str, str]
"""Role and name of something that a selector reads, for example ``("per_sample", "regime")``."""

SAMPLE_INDEX: Read = ("index", "sample_index")
ITERATION_INDEX: Read = ("index", "iteration_index")


def dispatch_entries(kernel: Kernel, types: Types | None = None) -> list[dict[str, Any]]:
    """Describe the dispatches of a kernel.

    Parameters
    ----------
    kernel : Kernel
    types : dict of str to DType, optional
        Types of its parameters; those of a possible call by default.

    Returns
    -------
    list of dict
        One per dispatch, in the order of the source, made of plain values:

        ``name``, ``K``, ``policy``
            Its name, the number of its branches, and the policy that it declares.
        ``static_selector``
            Whether the kernel writes nothing that its class depends on, so that the class of a
            sample stays the same from call to call as long as nothing else changes these inputs.
        ``selector_reads``
            What the class depends on, as sorted pairs of role and name: ``mutable`` (an output, as
            it was before the kernel assigned it), ``vec_in``, ``per_sample``, ``lookup`` (an
            array), ``terminated`` (the mask), ``uniform`` (one value per launch), ``nsamples`` (the
            number of samples) and ``index`` (the place of the sample).
        ``mix``
            Name of its counters; only for the policy ``"auto"``.

    Raises
    ------
    KernelError
        Where the source means nothing for these types.

    Examples
    --------
    >>> import turnout as tn, turnout.math as tm
    >>> from turnout import Index, Mutable, Param, Scalar
    >>> @tn.kernel
    ... def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
    ...     v_new = v + dt * tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v)], policy="auto")
    >>> from turnout.selectors import dispatch_entries
    >>> (entry,) = dispatch_entries(drag)
    >>> entry["static_selector"], entry["selector_reads"], entry["mix"]
    (True, [['per_sample', 'regime']], 'dispatch0_mix')
    """
    _, lowered = possible_lowering(kernel, types)
    reads = selector_reads(lowered.plan, kernel.signature)
    written = written_arrays(lowered.plan)
    return [
        _entry(dispatch, reads[dispatch.name], written)
        for unit in lowered.plan.units
        for dispatch in dispatch_groups(unit)
    ]


def possible_lowering(kernel: Kernel, types: Types | None = None) -> tuple[Types, LoweredKernel]:
    """Lower a kernel for reading it, without resolving the names that it takes from outside.

    Parameters
    ----------
    kernel : Kernel
    types : dict of str to DType, optional
        Types of its parameters. By default those of a possible call: the first ones that the kernel
        can be compiled for, since numbers may be what only integers can be.

    Returns
    -------
    dict of str to DType
        The types.
    LoweredKernel

    Raises
    ------
    KernelError
        Where the source means nothing for these types.
    """
    if types is not None:
        return types, kernel.lower_unresolved(types)
    default = kernel.default_types()
    is_open = [name for name, dtype in default.items() if dtype == "float"][:_OPEN_NUMBERS]
    kinds: tuple[Weak, ...] = ("float", "int")
    first_error = None
    choices = itertools.product(kinds, repeat=len(is_open))
    for chosen, width in itertools.product(choices, (ir.f64, ir.f32)):
        tried = kernel.default_types(width) | dict(zip(is_open, chosen, strict=True))
        try:
            return tried, kernel.lower_unresolved(tried)
        except KernelError as error:
            first_error = first_error or error
    assert first_error is not None
    if is_open:
        first_error.add_note(
            f"{kernel.__name__} is read before its first call, with a Python float or int for "
            f"{', '.join(is_open)}; where it takes another number, say so, as in Param[u16]"
        )
    raise first_error


_OPEN_NUMBERS = 6
"""Of how many numbers all combinations of types are tried."""


def written_arrays(plan: ir.Plan) -> set[str]:
    """The names of the arrays that a plan writes."""
    return {array.name for unit in plan.units for array in unit.arrays.values() if array.is_written}


def selector_reads(plan: ir.Plan, signature: Signature) -> dict[str, list[Read]]:
    """What the selector of each dispatch of a plan depends on, sorted, by the dispatch's name.

    Parameters
    ----------
    plan : Plan
        With dispatches that are not lowered yet.
    signature : Signature
        That of the kernel.
    """
    graph = Dependences(signature)
    for unit in plan.units:
        graph.add(unit)
    return {
        dispatch.name: graph.reads(graph.reached([dispatch.selector]))
        for unit in plan.units
        for dispatch in dispatch_groups(unit)
    }


def _entry(dispatch: ir.Dispatch, reads: list[Read], written: set[str]) -> dict[str, Any]:
    entry = {
        "name": dispatch.name,
        "K": len(dispatch.arms),
        "policy": dispatch.policy,
        "static_selector": written.isdisjoint(name for _, name in reads),
        "selector_reads": [list(read) for read in reads],
    }
    if dispatch.policy == "auto":
        entry["mix"] = f"{dispatch.name}_mix"
    return entry


class Dependences:
    """What the values of units come from.

    Parameters
    ----------
    signature : Signature
        That of the kernel that the units belong to.

    Attributes
    ----------
    sources : dict of Node to set of nodes
        What each value and each array comes from directly.
    """

    def __init__(self, signature: Signature) -> None:
        specs = signature.parameters
        self._is_of_samples = signature.form == "sample"
        self._roles = {spec.name: role_of(spec) for spec in specs}
        self._planes = {spec.name for spec in specs if spec.role in ("plane", "mask")}
        self._facts: dict[Node, Read] = {
            spec.name: (self._roles[spec.name], spec.name) for spec in specs if spec.rank
        }
        self.sources: defaultdict[Node, set[Node]] = defaultdict(set)

    def add(self, unit: ir.Unit) -> None:
        """Add the statements of a unit; those of one plan share values and arrays."""
        for parameter in unit.parameters:
            if isinstance(parameter, ir.ScalarParameter):
                self._facts[parameter.value] = self._scalar(parameter.name)
        for position in unit.body.parameters:
            self._facts[position] = SAMPLE_INDEX if self._is_of_samples else ITERATION_INDEX
        # A table is read at any place; in the array form a loop's own index is the usual one.
        self._own = set() if self._is_of_samples else set(_own_indices(unit))
        self._block((*unit.prologue, *unit.body.body), ())

    def reached(self, values: Iterable[ir.Value], end: Iterable[Node] = ()) -> set[Node]:
        """The values and everything that they come from, as far as the nodes in `end`."""
        seen: set[Node] = set(end)
        found: set[Node] = set()
        waiting: list[Node] = list(values)
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                found.add(node)
                waiting += self.sources.get(node, ())
        return found

    def reads(self, nodes: Iterable[Node]) -> list[Read]:
        """The parameters and facts about the launch among nodes, sorted."""
        return sorted({self._facts[node] for node in nodes if node in self._facts})

    def _scalar(self, name: str) -> Read:
        if name in self._roles:
            return self._roles[name], name
        assert name == SAMPLES, f"the scalar {name} belongs to no parameter"
        return "nsamples", "n_samples"

    def _block(self, body: Iterable[ir.Statement], conditions: tuple[ir.Value, ...]) -> None:
        """Add statements that run as often as the values of `conditions` say."""
        for statement in body:
            self._statement(statement, conditions)

    def _statement(self, statement: ir.Statement, conditions: tuple[ir.Value, ...]) -> None:
        match statement:
            case ir.Compute(result, _, operands):
                self.sources[result].update(operands)
            case ir.Cast(result, operand):
                self.sources[result].add(operand)
            case ir.Extent(result, array):
                self.sources[result].add(array)
            case ir.Load(result, array, indices):
                self.sources[result].update((array, *self._chosen(array, indices)))
            case ir.Store(array, indices, value):
                # What a plane held is read before any is stored.
                if array not in self._planes:
                    self.sources[array].update((*self._chosen(array, indices), value, *conditions))
            case ir.If() | ir.Switch() | ir.Dispatch():
                for arm in statement.regions:
                    self._joined(statement.results, arm.yields, statement.operands)
                    self._block(arm.body, (*conditions, *statement.operands))
            case ir.For(results, start, stop, step, initial, body):
                index, *carried = body.parameters
                self.sources[index].update((start, step))
                self._joined(carried, initial)
                self._joined(carried, body.yields)
                # How many rounds there are decides what the last one leaves.
                rounds = (start, stop, step)
                self._joined(results, carried, rounds)
                self._block(body.body, (*conditions, *rounds))
            case ir.While(results, initial, condition, body):
                for parameters in (condition.parameters, body.parameters):
                    self._joined(parameters, initial)
                    self._joined(parameters, body.yields)
                self._joined(results, condition.parameters, condition.yields)
                self._block(condition.body, (*conditions, *condition.yields))
                self._block(body.body, (*conditions, *condition.yields))

    def _chosen(self, array: str, indices: tuple[ir.Value, ...]) -> Iterable[ir.Value]:
        """The indices that choose an element, beyond each position accessing its own."""
        if array in self._planes:
            return ()
        return (index for index in indices if index not in self._own)

    def _joined(
        self, targets: Sequence[ir.Value], values: Sequence[ir.Value], also: Iterable[ir.Value] = ()
    ) -> None:
        for target, value in zip(targets, values, strict=True):
            self.sources[target].update((value, *also))


def _own_indices(unit: ir.Unit) -> Iterator[ir.Value]:
    """The indices of the loops that a unit's iteration space is made of."""
    yield from unit.body.parameters
    offsets = set()
    for statement in unit.body.body:
        match statement:
            case ir.Compute(result, "multiply", (position, _)) if position in unit.body.parameters:
                offsets.add(result)
            case ir.Compute(result, "add", (_, offset)) if offset in offsets:
                yield result


def role_of(spec: ParameterSpec) -> str:
    """The role of a parameter in entries about dispatches."""
    if spec.role == "array":
        return "lookup"
    if spec.role == "param":
        return "uniform"
    if spec.role == "mask":
        return "terminated"
    if spec.is_output:
        return "mutable"
    return "vec_in" if spec.width else "per_sample"
