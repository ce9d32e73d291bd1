"""Which units run in explicit vectors, and in how many lanes.

LLVM vectorises straight code as well as this package does, and inner loops over neighbours in
memory better. It gives up on loops of which each position needs another number of rounds, on inner
loops of any kind when it should run several positions at once, and on arrays in memory that are
private to a position; and it runs the arms of a branch for vectors that do not need them. The
limits below come from measurements (benchmarks/NOTES.md, "Explicit vectors").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from turnout.plugin import Options, ir, statements

from . import mathematics
from .accesses import has_atomic_updates, local_bytes
from .body import Vectors
from .counters import private_counters
from .lanes import Forms, Loop, cost_of_operation
from .space import constant_length

LANES_STACK_BYTES = 128 * 1024
"""How much memory the local arrays of all lanes may take."""

UNROLLED_STATEMENTS = 256
"""Up to how many statements LLVM writes out a loop with a known number of rounds."""

WORK_PER_WALK = 8
"""How much must be computed for each access to elements that are neighbours along a loop: the lanes
gather them from as many places, where scalar code reads one after the other."""

WORK_PER_ACCESS = 4
"""How much must be computed for each access in a loop that each lane leaves when it is done: what
is read waits for the mask, which waits for the round before."""


def explicit_lanes(unit: ir.Unit, vectors: Vectors, options: Options) -> int | None:
    """Choose how many positions run at once, None where LLVM's vectoriser is left to it.

    Parameters
    ----------
    unit : ir.Unit
        What is compiled.
    vectors : Vectors
        What the target offers.
    options : Options
        How it is compiled.
    """
    if options.level < 2 or not can_run_in_lanes(unit, options):
        return None
    forms = Forms(unit)
    lanes = 2 * vectors.bits // _widest_bits(unit, forms)
    length = constant_length(unit) if len(unit.extents) > 1 else None
    if length is not None and length % lanes:
        return None
    if length is not None and length % (2 * lanes) == 0:
        # Chains of operations of twice as many registers, where that leaves no remainder.
        lanes *= 2
    if lanes * local_bytes(unit.body) > LANES_STACK_BYTES:
        return None
    return lanes if is_worthwhile(unit, forms, vectors) else None


def can_run_in_lanes(unit: ir.Unit, options: Options) -> bool:
    """Whether positions may run at once: they have an order where elements are updated."""
    counters = private_counters(unit, options)
    return bool(unit.extents) and not options.debug and not has_atomic_updates(unit.body, counters)


def is_worthwhile(unit: ir.Unit, forms: Forms, vectors: Vectors) -> bool:
    """Whether explicit vectors are likely to be faster than what LLVM makes of the unit."""
    census = _Census(unit, forms, vectors)
    if len(unit.extents) > 1 and constant_length(unit) is not None:
        # LLVM unrolls the innermost axis and vectorises the one around it, or a loop inside where
        # lanes do not read neighbours.
        return census.has_loops and census.has_rows and not census.walks
    if census.work < WORK_PER_WALK * census.walks or census.has_idle_loop:
        return False
    return census.has_loops or census.has_private_memory or census.has_costly_arms


def _widest_bits(unit: ir.Unit, forms: Forms) -> int:
    """Width of the widest numbers that are held in vectors: floats, or integers without them.

    Two registers hold each of them, so that the processor has two chains of operations to work on.
    """
    varying = [
        value.dtype
        for statement in statements(unit.body.body)
        for value in (*statement.results, *statement.operands)
        if forms.is_varying(value) and not value.dtype.is_bool
    ]
    floats = [dtype.bits for dtype in varying if dtype.is_float]
    return max(32, *(floats or [dtype.bits for dtype in varying]), 0)


class _Census:
    """What the body of a unit consists of, as far as it matters for the choice.

    Attributes
    ----------
    constants : dict
        The values that are constants, by number.
    has_loops : bool
        Whether there are loops that LLVM does not write out, with work for the lanes.
    has_idle_loop : bool
        Whether lanes wait for each other in a loop that does too little for that.
    has_private_memory : bool
        Whether local arrays are indexed by what differs between the lanes.
    has_costly_arms : bool
        Whether branches call vector routines in some of their arms.
    has_rows : bool
        Whether lanes access neighbours in loops.
    work, walks : int
        In loops: the cost of what is computed in vectors, indices aside, and the number of accesses
        to elements that are neighbours along the loop instead of across the lanes.
    """

    def __init__(self, unit: ir.Unit, forms: Forms, vectors: Vectors) -> None:
        self.forms = forms
        self.isa = vectors.isa
        self.constants = {
            statement.result.number: statement.value
            for statement in (*unit.prologue, *statements(unit.body.body))
            if isinstance(statement, ir.Constant)
        }
        self.has_loops = self.has_idle_loop = False
        self.has_private_memory = self.has_costly_arms = self.has_rows = False
        self.work = self.walks = 0
        self._local: set[str] = set()
        # Numbers of the values that follow the index of a loop.
        self._walking: set[int] = set()
        # Numbers of the values that are constants where loops are written out, and the greatest
        # number of rounds of the loops around.
        self._known = set(self.constants)
        self._rounds = 1
        self._count(unit.body.body, is_in_loop=False, is_in_arm=False)

    def _count(self, body: Iterable[ir.Statement], *, is_in_loop: bool, is_in_arm: bool) -> None:
        for statement in body:
            match statement:
                case ir.Compute() | ir.Cast():
                    self._computation(statement, is_in_loop=is_in_loop, is_in_arm=is_in_arm)
                case ir.LocalArray(array):
                    self._local.add(array)
                case ir.Load(_, array, indices) | ir.Store(array, indices):
                    self._access(array, indices, is_in_loop=is_in_loop)
                case ir.If(condition=choice) | ir.Switch(selector=choice):
                    is_choice = self.forms.is_varying(choice)
                    for arm in statement.regions:
                        self._count(
                            arm.body, is_in_loop=is_in_loop, is_in_arm=is_in_arm or is_choice
                        )
                case ir.For() | ir.While():
                    self._loop(statement, is_in_loop=is_in_loop, is_in_arm=is_in_arm)

    def _computation(
        self, statement: ir.Compute | ir.Cast, *, is_in_loop: bool, is_in_arm: bool
    ) -> None:
        result = statement.result
        operands = {operand.number for operand in statement.operands}
        if self._known.issuperset(operands):
            self._known.add(result.number)
        if result.dtype.is_integer and not self._walking.isdisjoint(operands):
            self._walking.add(result.number)
            return
        if not self.forms.is_varying(result):
            return
        operation = getattr(statement, "operation", "")
        is_routine = mathematics.has_routine(operation, result.dtype, self.isa)
        if is_in_loop:
            self.work += cost_of_operation(operation)
        if is_in_arm and is_routine:
            self.has_costly_arms = True

    def _access(self, array: str, indices: tuple[ir.Value, ...], *, is_in_loop: bool) -> None:
        if array in self._local:
            if not self.forms.are_uniform(indices):
                self.has_private_memory = True
        elif is_in_loop and self._is_walk(indices):
            self.walks += 1
        elif is_in_loop and self.forms.are_consecutive(indices):
            self.has_rows = True

    def _is_walk(self, indices: tuple[ir.Value, ...]) -> bool:
        if self.forms.are_uniform(indices) or self.forms.are_consecutive(indices):
            return False
        return indices[-1].number in self._walking

    def _loop(self, loop: Loop, *, is_in_loop: bool, is_in_arm: bool) -> None:
        if isinstance(loop, ir.For):
            self._walking.add(loop.body.parameters[0].number)
        else:
            # What is the same in all lanes of a loop that they leave one by one counts rounds.
            counters = (v for v in loop.body.parameters if not self.forms.is_varying(v))
            self._walking.update(value.number for value in counters)
        inside = [s for region in loop.regions for s in statements(region.body)]
        rounds_around, work_before = self._rounds, self.work
        is_written_out = isinstance(loop, ir.For) and self._is_written_out(loop, inside)
        for region in loop.regions:
            self._count(
                region.body, is_in_loop=is_in_loop or not is_written_out, is_in_arm=is_in_arm
            )
        self._rounds = rounds_around
        if is_written_out:
            return
        is_masked = self.forms.is_masked(loop)
        results = (value for statement in inside for value in statement.results)
        if is_masked or any(map(self.forms.is_varying, results)):
            self.has_loops = True
        if is_masked and isinstance(loop, ir.While):
            needed = WORK_PER_ACCESS * sum(map(self._waits, inside))
            self.has_idle_loop |= self.work - work_before < needed

    def _is_written_out(self, loop: ir.For, inside: Sequence[ir.Statement]) -> bool:
        """Whether LLVM unrolls a loop completely; if so, its index counts as known."""
        bounds = loop.start, loop.stop, loop.step
        if not self._known.issuperset(value.number for value in bounds):
            return False
        start, stop, step = (self.constants.get(value.number) for value in bounds)
        # Bounds that follow an index around take other values in each of its rounds.
        rounds = self._rounds
        if start is not None and stop is not None and step:
            rounds = len(range(int(start), int(stop), int(step)))
        size = sum(not isinstance(statement, ir.Constant) for statement in inside)
        if rounds * size > UNROLLED_STATEMENTS:
            return False
        self._known.add(loop.body.parameters[0].number)
        self._rounds = max(self._rounds, rounds)
        return True

    def _waits(self, statement: ir.Statement) -> bool:
        """Whether a statement accesses other memory in each lane that is still there."""
        if not isinstance(statement, ir.Load | ir.Store) or statement.array in self._local:
            return False
        return not self.forms.are_uniform(statement.indices)
