"""What the branches of dispatches cost: `dispatch_costs`.

Operations are counted in the unit of a kernel as the front end makes it. Whether code runs in
vectors is not counted but asked: the unit is compiled, and with one branch in the place of a
dispatch where that tells more, and the backend reports what became of the loop. `estimated_ns` is a
model of time that is made of these counts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, replace
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from . import ir
from .backends import resolve
from .errors import KernelError
from .ir.transform import rename, with_regions
from .lower import dispatch_groups
from .records import record
from .selectors import Dependences, Node, Read, possible_lowering, selector_reads, written_arrays

if TYPE_CHECKING:
    from .arguments import Types
    from .hooks import Options, Target
    from .kernel import Kernel
    from .lang import Signature
    from .loading import DeviceContext

HOST_PROFILES = ("native", "portable", "native-vector-math")
"""The last one is how kernels are run."""

# Nanoseconds of the model, measured on 100,000 and 1,000,000 float64 samples with the CPU backend
# in one thread of an AMD Zen 5 (AVX-512): what a whole vector takes, or a single sample in code
# that is not vectorised, which is about the same.
ARITHMETIC_NS = 0.05
"""Polynomials: 0.035 to 0.06 for 8 samples at once, 0.04 to 0.05 for one."""
SPECIAL_NS = 4.0
"""exp, log, sin: 2.6 to 3.8 for 8 samples at once, 3.0 to 4.6 for one; pow takes 16."""

# And for each sample, in vectors or not, because memory is what it waits for.
ELEMENT_NS = 0.07
"""Reading or writing a number beside that of the sample before."""
GATHER_NS = 0.5
"""Reading a number from a place that is read first: 0.25 in the cache, 0.6 beyond."""
LISTED_NS = 1.0
"""Reading or writing a number of a sample in an index list: about 2 for one of both."""
CLASS_PASS_NS = 0.2
"""Comparing the classes of all samples with those that the lists were made for."""


# -- results ---------------------------------------------------------------------------------------


@record
class BranchCost:
    """What one branch of a dispatch takes, per sample that takes the branch.

    Attributes
    ----------
    arith32, arith64 : float
        Arithmetic, comparisons and selections, one for each number, on numbers of up to 32 bits and
        on wider ones.
    special32, special64 : float
        Math functions that a library computes, such as exp, sin and pow.
    loads : float
        Numbers that are read from planes; each counts once, however often it is used.
    gathers : float
        Numbers that are read from tables, at an index.
    chain32, chain64, chain_special32, chain_special64 : float
        The same operations along the longest way in which each one waits for the one before. A
        gather is one operation of `chain64`.
    vectorised : bool
        Whether the branch runs several samples at once in vectors.
    stores : float or None
        Numbers that are stored, where an output is the value of the dispatch itself; else None.
    held_bytes : int
        Size of the arrays, private to a sample, that the branch works with.
    """

    arith32: float
    arith64: float
    special32: float
    special64: float
    loads: float
    gathers: float
    chain32: float
    chain64: float
    chain_special32: float
    chain_special64: float
    vectorised: bool
    stores: float | None
    held_bytes: int

    def as_tuple(self) -> tuple[float, ...]:
        """The six counts: arithmetic, math functions, loads and gathers."""
        return self.chain_tuple()[:6]

    def chain_tuple(self) -> tuple[float, ...]:
        """The six counts, and the four of the longest chain."""
        return astuple(self)[:10]

    def row_tuple(self) -> tuple[float, ...]:
        """The ten counts, and `stores` where there are any."""
        return self.chain_tuple() + (() if self.stores is None else (self.stores,))


@record
class DispatchCost:
    """What a dispatch takes.

    Attributes
    ----------
    branches : tuple of BranchCost
        By class.
    selector_reads : tuple of pairs of str
        Role and name of what the class depends on, as in the sidecar.
    static_selector : bool
        Whether the kernel writes none of it.
    fused_vectorised : bool
        Whether the kernel as it is, with all branches in one loop, runs several samples at once in
        vectors.
    """

    branches: tuple[BranchCost, ...]
    selector_reads: tuple[Read, ...]
    static_selector: bool
    fused_vectorised: bool


# -- costs of a kernel -----------------------------------------------------------------------------


def dispatch_costs(
    kernel: Kernel, *, host_profile: str | None = None, types: Types | None = None
) -> dict[str, DispatchCost]:
    """Say what the branches of each dispatch of a kernel cost.

    Each number that is added, multiplied, divided, compared, selected and so on counts as one
    operation, also in vectors: a dot product of width n is 2 n operations. Numbers that are known
    when the kernel is compiled, scalar parameters and conversions are free. What the selector
    computes is free too, since it is there for every branch; what several branches share counts in
    each. A loop counts its body times the number of rounds, or once where this number is not known.
    Both sides of an ``if`` and all branches of an inner dispatch count, and one selection for each
    value and further side, as for ``select``. A dispatch in a loop is described for one round.

    Parameters
    ----------
    kernel : Kernel
    host_profile : {"native-vector-math", "native", "portable"}, optional
        For what processor to ask whether code is vectorised; it changes nothing else. With the
        default, ``"native-vector-math"``, it is the code that runs: for this processor, with vector
        routines for math functions, which give the same bits as single calls. ``"native"`` is the
        same processor without such routines, and ``"portable"`` a processor that has but what all
        of its kind have (x86-64-v2: two float64 in a vector), without them as well.
    types : dict of str to DType, optional
        Types of the parameters of `kernel`; those of a possible call by default.

    Returns
    -------
    dict of str to DispatchCost
        By the name of the dispatch, in the order of the source.

    Raises
    ------
    KernelError
        If `kernel` is no kernel or means nothing for these types, or for an unknown profile.

    Notes
    -----
    ``vectorised`` and ``fused_vectorised`` are what the compiler of the active device did, and
    False where it says nothing about vectors: on the reference backend, which compiles nothing, on
    GPUs, whose threads run in lockstep anyway, and for a profile that the backend does not know.

    Examples
    --------
    >>> import turnout as tn, turnout.math as tm
    >>> from turnout import Index, Mutable, Param, Scalar
    >>> @tn.kernel
    ... def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
    ...     a = tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)])
    ...     v_new = v + dt * a
    >>> cost = tn.dispatch_costs(drag)["dispatch0"]
    >>> [(branch.arith64, branch.special64, branch.loads) for branch in cost.branches]
    [(1.0, 0.0, 1.0), (3.0, 0.0, 1.0), (4.0, 1.0, 1.0)]
    >>> cost.static_selector, cost.selector_reads
    (True, (('per_sample', 'regime'),))
    """
    if not getattr(kernel, "__turnout_kernel__", False):
        given = type(kernel).__name__
        raise KernelError(f"dispatch_costs takes a kernel (turnout.kernel), not {given}")
    profile = HOST_PROFILES[-1] if host_profile is None else host_profile
    if profile not in HOST_PROFILES:
        allowed = ", ".join(map(repr, HOST_PROFILES))
        raise KernelError(f"unknown host profile {profile!r}; the profiles are {allowed}")
    _, lowered = possible_lowering(kernel, types)
    signature = kernel.signature
    reads = selector_reads(lowered.plan, signature)
    written = written_arrays(lowered.plan)
    compiled = _Compiled(resolve((), kernel.device), profile, kernel.options)
    costs = {}
    for unit in lowered.plan.units:
        counts = _Counts(unit, signature)
        for dispatch in dispatch_groups(unit):
            loops = counts.loops_around[dispatch.name]
            is_fused = compiled.is_vectorised(unit, loops)
            branches = []
            for arm, cost in enumerate(counts.branches(dispatch)):
                # What runs in vectors together does so alone.
                is_vectorised = is_fused or compiled.is_arm_vectorised(unit, dispatch, arm, loops)
                branches.append(replace(cost, vectorised=is_vectorised))
            costs[dispatch.name] = DispatchCost(
                tuple(branches),
                tuple(reads[dispatch.name]),
                written.isdisjoint(name for _, name in reads[dispatch.name]),
                is_fused,
            )
    return costs


def has_unknown_rounds(unit: ir.Unit, dispatch: ir.Dispatch) -> bool:
    """Whether a branch has a loop whose rounds are not known, so that its costs are those of one.

    Parameters
    ----------
    unit : Unit
    dispatch : Dispatch
        One of the unit.
    """
    body = ir.statements((*unit.prologue, *unit.body.body))
    constants = {s.result for s in body if isinstance(s, ir.Constant)}
    return any(
        isinstance(s, ir.While)
        or (isinstance(s, ir.For) and not constants.issuperset((s.start, s.stop, s.step)))
        for s in ir.statements([dispatch])
    )


# -- a model of time -------------------------------------------------------------------------------


def estimated_ns(
    cost: DispatchCost,
    mix: Sequence[float],
    policy: str,
    *,
    misprediction_ns: float,
    lanes: int,
    skips_branches: bool = False,
) -> float:
    """Estimate how long a dispatch takes under a policy.

    Parameters
    ----------
    cost : DispatchCost
    mix : sequence of float
        How often each class occurs, as numbers of samples or as shares of them.
    policy : {"switch", "predicated", "segmented"}
    misprediction_ns : float
        What a branch takes that the processor predicts wrongly, in nanoseconds: about 10 on a CPU.
    lanes : int
        How many samples the processor computes in one vector.
    skips_branches : bool
        Whether the backend's own lowering of ``"predicated"`` computes a branch for those samples
        that take it, so many at once as a vector holds.

    Returns
    -------
    float
        Nanoseconds per sample in one thread, of use for comparing policies. It leaves out what is
        the same for all of them or does not grow with the number of samples, for example the
        launch of one unit per class.

    Raises
    ------
    KernelError
        For another policy, or a mix that is not one share for each branch.

    Notes
    -----
    ``"switch"`` in vectors takes every branch that one of the samples in a vector takes, which is
    ``1 - (1 - share) ** lanes`` of the vectors. One sample after the other it takes one branch, and
    the processor, which predicts the most frequent class, is wrong for all others.
    ``"predicated"`` takes all branches, or where they are skipped each for its share of the
    samples, and one selection for each further one. ``"segmented"`` takes one branch, on samples
    from an index list, and compares the classes before.

    Examples
    --------
    >>> import turnout as tn, turnout.math as tm
    >>> from turnout import Index, Scalar
    >>> from turnout.costs import estimated_ns
    >>> @tn.kernel
    ... def k(r: Index, x: Scalar) -> Scalar:
    ...     return tm.dispatch(r, [-x, tm.pow(tm.sin(x), tm.exp(x)) * tm.log(x)], policy="auto")
    >>> cost = tn.dispatch_costs(k)["dispatch0"]
    >>> rare = [
    ...     estimated_ns(cost, (0.99, 0.01), policy, misprediction_ns=10, lanes=8)
    ...     for policy in ("switch", "predicated")
    ... ]
    >>> rare[0] < rare[1]
    True
    """
    if policy not in _ESTIMATES:
        allowed = ", ".join(map(repr, _ESTIMATES))
        raise KernelError(f"no time can be estimated for policy {policy!r}; only for {allowed}")
    count = len(cost.branches)
    total = sum(mix)
    if len(mix) != count or min(mix) < 0 or not total > 0:
        raise KernelError(f"mix must be {count} numbers, 0 or more and not all 0, not {mix!r}")
    shares = [number / total for number in mix]
    if policy == "predicated" and skips_branches:
        return _skipping_ns(cost, shares, lanes)
    return _ESTIMATES[policy](cost, shares, misprediction_ns, lanes)


def _switch_ns(
    cost: DispatchCost, shares: Sequence[float], misprediction_ns: float, lanes: int
) -> float:
    if not cost.fused_vectorised:
        branches = (s * _work_ns(b, 1) for s, b in zip(shares, cost.branches, strict=True))
        return _planes_ns(cost) + sum(branches) + misprediction_ns * (1 - max(shares))
    taken = (1 - (1 - share) ** lanes for share in shares)
    branches = (t * _work_ns(b, lanes) for t, b in zip(taken, cost.branches, strict=True))
    return _planes_ns(cost) + sum(branches)


def _predicated_ns(
    cost: DispatchCost, shares: Sequence[float], misprediction_ns: float, lanes: int
) -> float:
    in_lanes = lanes if all(branch.vectorised for branch in cost.branches) else 1
    selections = (len(shares) - 1) * ARITHMETIC_NS / in_lanes
    return _planes_ns(cost) + selections + sum(_work_ns(b, in_lanes) for b in cost.branches)


def _skipping_ns(cost: DispatchCost, shares: Sequence[float], lanes: int) -> float:
    in_lanes = lanes if all(branch.vectorised for branch in cost.branches) else 1
    selections = (len(shares) - 1) * ARITHMETIC_NS / in_lanes
    branches = (s * _work_ns(b, in_lanes) for s, b in zip(shares, cost.branches, strict=True))
    return _planes_ns(cost) + selections + sum(branches)


def _segmented_ns(
    cost: DispatchCost, shares: Sequence[float], misprediction_ns: float, lanes: int
) -> float:
    total = CLASS_PASS_NS
    for share, branch in zip(shares, cost.branches, strict=True):
        elements = branch.loads + (branch.stores or 1)
        work = _work_ns(branch, lanes if branch.vectorised else 1)
        total += share * (elements * LISTED_NS + work)
    return total


_ESTIMATES = {"switch": _switch_ns, "predicated": _predicated_ns, "segmented": _segmented_ns}


def _work_ns(branch: BranchCost, lanes: int) -> float:
    """What a branch computes and gathers, for one sample of a vector."""
    arithmetic = branch.arith32 + branch.arith64
    special = branch.special32 + branch.special64
    computed = ARITHMETIC_NS * arithmetic + SPECIAL_NS * special
    return computed / lanes + GATHER_NS * branch.gathers


def _planes_ns(cost: DispatchCost) -> float:
    """Reading class and planes and storing the result, which fused code does for all samples."""
    loads = max(branch.loads for branch in cost.branches)
    return ELEMENT_NS * (1 + loads + (cost.branches[0].stores or 1))


# -- counting --------------------------------------------------------------------------------------


class _Operations(NamedTuple):
    """Numbers of operations, in the order of the columns of `BranchCost`."""

    arith32: float = 0.0
    arith64: float = 0.0
    special32: float = 0.0
    special64: float = 0.0

    def plus(self, other: _Operations, times: float = 1.0) -> _Operations:
        return _Operations(*(mine + times * its for mine, its in zip(self, other, strict=True)))

    @property
    def wait(self) -> float:
        """How long a chain of them takes, in operations of arithmetic."""
        return self.arith32 + self.arith64 + _SPECIAL_WAIT * (self.special32 + self.special64)


_NOTHING = _Operations()
_GATHER = _Operations(arith64=1.0)
_SPECIAL_WAIT = 10
"""A math function is waited for as long as so many operations of arithmetic, roughly."""

_Loop = ir.For | ir.While
_Chains = dict[Node, _Operations]


def _longest(chains: Iterable[_Operations]) -> _Operations:
    return max(chains, key=lambda chain: chain.wait, default=_NOTHING)


class _Counts:
    """Counts the operations of the branches of the dispatches in one unit.

    Attributes
    ----------
    loops_around : dict
        The loops around the definition of each value, and around each dispatch by its name.
    """

    def __init__(self, unit: ir.Unit, signature: Signature) -> None:
        self.loops_around: dict[Node, tuple[_Loop, ...]] = {}
        self._unit = unit
        self._graph = Dependences(signature)
        self._graph.add(unit)
        self._users: defaultdict[Node, set[Node]] = defaultdict(set)
        for node, sources in self._graph.sources.items():
            for source in sources:
                self._users[source].add(node)
        self._is_of_samples = signature.form == "sample"
        self._widths = {s.name: s.width for s in signature.parameters if s.role != "array"}
        body = (*unit.prologue, *unit.body.body)
        self._stored = {s.array for s in ir.statements(body) if isinstance(s, ir.Store)}
        self._definitions: dict[Node, ir.Statement] = {}
        self._local_bytes: dict[Node, int] = {}
        # The first of all values that are computed alike, by what is computed and by each of them.
        self._firsts: dict[object, ir.Value] = {}
        self._first: dict[Node, ir.Value] = {}
        self._constants: dict[Node, object] = {}
        self._free: set[Node] = set()
        self._components: dict[Node, object] = {}
        self._define(body, ())

    def branches(self, dispatch: ir.Dispatch) -> Iterator[BranchCost]:
        """What each branch of a dispatch takes; `vectorised` is still to be filled in."""
        loops = self.loops_around[dispatch.name]
        # What a loop around the dispatch carries is there when a round begins.
        carried = {v for loop in loops for region in loop.regions for v in region.parameters}
        selected = self._graph.reached([dispatch.selector], carried)
        shared = {self._first[node] for node in selected if node in self._first}
        reached = [self._graph.reached(arm.yields, selected | carried) for arm in dispatch.arms]
        needed = [
            {node for node in nodes if self._first.get(node, node) not in shared}
            for nodes in reached
        ]
        chains: _Chains = {}
        self._follow(self._unit.body.body, chains, chains, set().union(*needed))
        stores = self._stores(dispatch)
        for arm, nodes in zip(dispatch.arms, needed, strict=True):
            total, loads, gathers = self._total(nodes, loops)
            chain = _longest(chains[value] for value in arm.yields if value in chains)
            held_bytes = sum(self._local_bytes.get(node, 0) for node in nodes)
            yield BranchCost(*total, loads, gathers, *chain, False, stores, held_bytes)

    # -- the unit --------------------------------------------------------------------------------

    def _define(self, body: Iterable[ir.Statement], loops: tuple[_Loop, ...]) -> None:
        for statement in body:
            key = self._key(statement)
            for result in statement.results:
                self._definitions[result] = statement
                self.loops_around[result] = loops
                self._first[result] = self._firsts.setdefault(key, result) if key else result
            match statement:
                case ir.Constant(result, value):
                    self._constants[result] = value
                    self._free.add(result)
                case ir.Compute(result, _, operands):
                    if self._free.issuperset(operands):
                        self._free.add(result)
                    self._component(result, operands)
                case ir.Cast(result, operand):
                    if operand in self._free:
                        self._free.add(result)
                    self._component(result, (operand,))
                case ir.LocalArray(array, dtype, shape):
                    self._local_bytes[array] = dtype.itemsize * prod(shape)
                case ir.Load(result, array, indices):
                    if self._widths.get(array):
                        self._components[result] = self._constants.get(indices[0])
                    self._free.update(self._wrapping(indices))
                case ir.Store(_, indices):
                    self._free.update(self._wrapping(indices))
                case ir.Dispatch():
                    self.loops_around[statement.name] = loops
            around = (*loops, statement) if isinstance(statement, _Loop) else loops
            for region in statement.regions:
                self._define(region.body, around)

    def _key(self, statement: ir.Statement) -> object:
        """What a statement computes; None where equal text may give another value."""
        operands = tuple(self._first.get(value, value) for value in statement.operands)
        match statement:
            case ir.Constant(result, value):
                return result.dtype, repr(value)
            case ir.Compute(_, operation):
                return operation, operands
            case ir.Cast(result):
                return result.dtype, operands
            case ir.Extent(_, array, axis):
                return array, axis
            case ir.Load(_, array):
                is_unchanged = array in self._widths or array not in self._stored
                return (array, operands) if is_unchanged else None
        return None

    def _component(self, result: ir.Value, operands: Iterable[ir.Value]) -> None:
        """Note which component of vectors a value is computed from, if it is one."""
        components = {self._components[o] for o in operands if o in self._components}
        if len(components) == 1:
            self._components[result] = components.pop()

    def _wrapping(self, indices: Iterable[ir.Value]) -> Iterator[ir.Value]:
        """What the front end computes so that an index may count from the end of its axis."""
        for index in indices:
            select = self._definitions.get(index)
            if not (isinstance(select, ir.Compute) and select.operation == "select"):
                continue
            condition, wrapped, _ = select.operands
            addition = self._definitions.get(wrapped)
            if isinstance(addition, ir.Compute) and any(
                isinstance(self._definitions.get(operand), ir.Extent)
                for operand in addition.operands
            ):
                yield from (index, condition, wrapped)

    # -- counts ----------------------------------------------------------------------------------

    def _total(
        self, needed: set[Node], loops: tuple[_Loop, ...]
    ) -> tuple[_Operations, float, float]:
        """The operations, loads and gathers of a branch in one round of the loops around it."""
        rounds: dict[Node, int] = {}
        for node in needed & self._definitions.keys():
            inner = [loop for loop in self.loops_around[node] if loop not in loops]
            first = self._first[node]
            rounds[first] = max(rounds.get(first, 0), prod(map(self._trips, inner)))
        total, loads, gathers = _NOTHING, 0.0, 0.0
        for node, times in rounds.items():
            total = total.plus(self._work(node), times)
            definition = self._definitions[node]
            if isinstance(definition, ir.Load):
                is_gather = self._is_gather(definition)
                loads += times * (not is_gather)
                gathers += times * is_gather
        return total, loads, gathers

    def _trips(self, loop: _Loop) -> int:
        """How many rounds a loop has; one where this is not known."""
        if isinstance(loop, ir.While):
            return 1
        bounds = [self._constants.get(bound) for bound in (loop.start, loop.stop, loop.step)]
        start, stop, step = (bound if isinstance(bound, int) else None for bound in bounds)
        if start is None or stop is None or step is None:
            return 1
        return len(range(start, stop, step)) if step else 0

    def _work(self, node: Node) -> _Operations:
        """The operations of the statement that defines a value."""
        statement = self._definitions[node]
        if node in self._free:
            return _NOTHING
        if isinstance(statement, ir.If | ir.Switch | ir.Dispatch):
            bits = max(result.dtype.bits for result in statement.results)
            return _operations(len(statement.regions) - 1, bits, is_special=False)
        if not isinstance(statement, ir.Compute):
            return _NOTHING
        # Conditions are computed in vectors of the width of the numbers that they are about.
        widths = [o.dtype.bits for o in statement.operands if not o.dtype.is_bool]
        is_special = not ir.OPERATIONS[statement.operation].is_exact
        times = 2 if self._begins_dot_product(statement) else 1
        return _operations(times, max(widths, default=64), is_special=is_special)

    def _begins_dot_product(self, statement: ir.Compute) -> bool:
        """Whether products of components 0 and 1 are added, which counts as a sum that began at 0.

        The front end leaves out that first addition.
        """
        if statement.operation != "add":
            return False
        factors = map(self._definitions.get, statement.operands)
        are_products = all(isinstance(f, ir.Compute) and f.operation == "multiply" for f in factors)
        components = [self._components.get(operand) for operand in statement.operands]
        return are_products and components == [0, 1]

    def _is_gather(self, load: ir.Load) -> bool:
        if load.array in self._local_bytes or load.array in self._widths:
            return False
        if self._is_of_samples:
            return True
        found = map(self._definitions.get, self._graph.reached(load.indices))
        return any(isinstance(definition, ir.Load) for definition in found)

    def _follow(
        self,
        body: Iterable[ir.Statement],
        chains: _Chains,
        every: _Chains,
        needed: set[Node],
    ) -> None:
        """Find the longest chains that lead to the values that are needed.

        `chains` are those that the statements may continue; all that are found go into `every`.
        """
        for statement in body:
            if isinstance(statement, _Loop):
                self._follow_loop(statement, chains, every, needed)
                continue
            for region in statement.regions:
                self._follow(region.body, chains, every, needed)
            waits = [chains[o] for o in statement.operands if o in chains]
            if isinstance(statement, ir.Store):
                chains[statement.array] = _longest([*waits, chains.get(statement.array, _NOTHING)])
            if isinstance(statement, ir.Load):
                waits.append(chains.get(statement.array, _NOTHING))
            for place, result in enumerate(statement.results):
                if result not in needed:
                    continue
                joined = [region.yields[place] for region in statement.regions]
                chain = _longest([*waits, *(chains[value] for value in joined if value in chains)])
                if isinstance(statement, ir.Load) and self._is_gather(statement):
                    chain = chain.plus(_GATHER)
                every[result] = chains[result] = chain.plus(self._work(result))

    def _follow_loop(self, loop: _Loop, chains: _Chains, every: _Chains, needed: set[Node]) -> None:
        body = loop.regions[-1]
        carried = body.parameters[1:] if isinstance(loop, ir.For) else body.parameters
        first_round = dict(chains)
        for parameter, value in zip(carried, loop.initial, strict=True):
            if parameter in needed and value in chains:
                first_round[parameter] = chains[value]
        for region in loop.regions:
            self._follow(region.body, first_round, every, needed)
        # A further round waits for nothing but what the one before hands on.
        arrays = {s.array for s in ir.statements(body.body) if isinstance(s, ir.Store)}
        next_round: _Chains = {}
        self._follow(body.body, next_round, {}, needed & self._dependents((*carried, *arrays)))
        handed_on = (*body.yields, *arrays)
        begin, first, further = (
            _longest(found[node] for node in nodes if node in found)
            for found, nodes in (
                (chains, loop.initial),
                (first_round, handed_on),
                (next_round, handed_on),
            )
        )
        trips = self._trips(loop)
        end = first.plus(further, trips - 1) if trips else begin
        chains.update(dict.fromkeys(arrays, end))
        for result in loop.results:
            if result in needed:
                every[result] = chains[result] = end

    def _dependents(self, nodes: Iterable[Node]) -> set[Node]:
        """Everything that comes from one of the nodes."""
        found: set[Node] = set()
        waiting = list(nodes)
        while waiting:
            for user in self._users[waiting.pop()] - found:
                found.add(user)
                waiting.append(user)
        return found

    def _stores(self, dispatch: ir.Dispatch) -> float | None:
        """How many numbers of the dispatch are stored as they are; None for none."""
        count = 0
        for statement in ir.statements(self._unit.body.body):
            if isinstance(statement, ir.Store):
                definition = self._definitions.get(statement.value)
                stored = definition.operand if isinstance(definition, ir.Cast) else statement.value
                count += stored in dispatch.results
        return float(count) or None


def _operations(count: float, bits: int, *, is_special: bool) -> _Operations:
    if is_special:
        return _Operations(special64=count) if bits > 32 else _Operations(special32=count)
    return _Operations(arith64=count) if bits > 32 else _Operations(arith32=count)


# -- what the compiler did -------------------------------------------------------------------------


class _Compiled:
    """What the backend says about loops that it compiled for a profile."""

    def __init__(self, context: DeviceContext, profile: str, options: Options) -> None:
        self._backend = context.backend
        self._target: Target | None = context.device.target
        if profile != HOST_PROFILES[-1]:
            self._target = context.device.profiles.get(profile)
        self._options = options
        self._arms: dict[object, bool] = {}

    def is_vectorised(self, unit: ir.Unit, loops: Iterable[_Loop]) -> bool:
        """Whether the unit runs several of its samples, or rounds of one of the loops, at once."""
        if self._target is None:
            return False
        from .compilation import loop_reports, lower_plan

        plan = ir.Plan((ir.Run(_changed(unit, _fused)),))
        tags = ["space", *(str(loop.line) for loop in loops)]
        for lowered in lower_plan(plan, self._backend, self._target).units:
            said = loop_reports(lowered, self._backend, self._target, self._options)
            reports = [said.get(f"loop:{tag}", "") for tag in tags]
            if any(int(lanes) > 1 for lanes in re.findall(r"(\d+) lanes", " ".join(reports))):
                return True
        return False

    def is_arm_vectorised(
        self, unit: ir.Unit, dispatch: ir.Dispatch, arm: int, loops: Iterable[_Loop]
    ) -> bool:
        """The same, with one branch in the place of a dispatch."""
        # Branches that differ in their numbers alone are compiled once.
        chosen = dispatch.arms[arm]
        key = (unit.name, dispatch.name, *map(_shape, ir.statements(chosen.body)))
        if key not in self._arms:
            self._arms[key] = self.is_vectorised(_with_arm(unit, dispatch, chosen), loops)
        return self._arms[key]


def _shape(statement: ir.Statement) -> object:
    dtypes = tuple(value.dtype for value in (*statement.results, *statement.operands))
    return type(statement), getattr(statement, "operation", ""), dtypes


def _fused(dispatch: ir.Dispatch) -> Iterable[ir.Statement]:
    """A dispatch as it is in one loop with all branches."""
    return (replace(dispatch, policy="switch") if dispatch.policy == "segmented" else dispatch,)


def _with_arm(unit: ir.Unit, dispatch: ir.Dispatch, arm: ir.Region) -> ir.Unit:
    def change(found: ir.Dispatch) -> Iterable[ir.Statement]:
        return arm.body if found.name == dispatch.name else (found,)

    changed = _changed(unit, change)
    names = dict(zip(dispatch.results, arm.yields, strict=True))
    body = replace(changed.body, body=rename(changed.body.body, names))
    return replace(changed, body=body)


def _changed(unit: ir.Unit, change: Callable[[ir.Dispatch], Iterable[ir.Statement]]) -> ir.Unit:
    """The unit with other statements in the places of dispatches."""

    def statements(body: Iterable[ir.Statement]) -> Iterator[ir.Statement]:
        for statement in body:
            statement = with_regions(
                statement, [replace(r, body=tuple(statements(r.body))) for r in statement.regions]
            )
            yield from change(statement) if isinstance(statement, ir.Dispatch) else (statement,)

    return replace(unit, body=replace(unit.body, body=tuple(statements(unit.body.body))))
