"""What became of each loop, read from the optimised module, in words for `turnout show`.

`turnout_cpu.emit` tags the loops that people know with metadata, which LLVM hands on to whatever it
makes of a loop: a vector body, a remainder, a smaller number of rounds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from turnout.plugin import Options, ir, statements

from . import mathematics, vector_math
from .accesses import has_atomic_updates
from .body import LOOP_TAG, SPACE_TAG, Vectors
from .counters import private_counters
from .vector_body import LANES_TAG

_Loop = ir.For | ir.While

_METADATA = re.compile(r"^(!\d+) = (?:distinct )?!\{(.*)\}$", re.MULTILINE)
_TAG = re.compile(rf'^!"{LOOP_TAG}", !"(.*)"$')
_OWN_LANES = re.compile(rf'^!"{LANES_TAG}", !"(\d+)"$')
_LATCH = re.compile(r"^  br .*!llvm\.loop (!\d+)")
_LABEL = re.compile(r"^([-\w.$]+):")
_TARGET = re.compile(r"label %([-\w.$]+)")
_VECTOR = re.compile(r"<(\d+) x (?:double|float|i\d+)>")


def loop_reports(
    unit: ir.Unit, optimised: str, vectors: Vectors, options: Options
) -> dict[str, str]:
    """Describe every loop: ``loop:<line>``, and ``loop:space`` for the iteration space.

    Parameters
    ----------
    unit : ir.Unit
        What was compiled.
    optimised : str
        The LLVM IR that came of it.
    vectors : Vectors
        What the target offers.
    options : Options
        How it was compiled.

    Returns
    -------
    dict of str to str
        ``"vectorised, 8 lanes"``, ``"vectorised, 8 lanes (explicit vectors)"``, ``"unrolled
        completely or removed"`` or ``"scalar: <reason>"``.
    """
    lanes, explicit = _lanes_by_tag(optimised)
    reports: dict[str, str] = {}
    if SPACE_TAG not in lanes and explicit:
        # One vector has all of it, so that no loop is left.
        lanes[SPACE_TAG] = max(lanes[tag] for tag in explicit)
        explicit.add(SPACE_TAG)
    for tag, loop in _tagged_loops(unit):
        if tag not in lanes:
            words = "unrolled completely or removed"
        elif lanes[tag] > 1:
            words = f"vectorised, {lanes[tag]} lanes"
            if tag in explicit:
                words += " (explicit vectors)"
        else:
            words = f"scalar: {_reason(unit, loop, lanes, vectors, options)}"
        # Two loops may stand on one line; the better news wins, as it is that of the tag.
        reports.setdefault(f"loop:{tag}", words)
    return reports


def _tagged_loops(unit: ir.Unit) -> Iterator[tuple[str, _Loop | None]]:
    if unit.extents:
        yield SPACE_TAG, None
    for statement in statements(unit.body.body):
        if isinstance(statement, _Loop) and statement.line:
            yield str(statement.line), statement


def _lanes_by_tag(optimised: str) -> tuple[dict[str, int], set[str]]:
    """Most lanes among the loops that carry each tag, 1 for scalar loops; those of our own."""
    metadata = dict(_METADATA.findall(optimised))
    found: dict[str, int] = {}
    explicit: set[str] = set()
    lines = optimised.splitlines()
    labels: dict[str, int] = {}
    for number, line in enumerate(lines):
        if line.startswith("define"):
            labels = {}
        if label := _LABEL.match(line):
            labels[label[1]] = number
        if latch := _LATCH.match(line):
            entries = [metadata.get(entry, "") for entry in metadata[latch[1]].split(", ")]
            is_vectorised = any("llvm.loop.isvectorized" in entry for entry in entries)
            above = [labels[target] for target in _TARGET.findall(line) if target in labels]
            if not above:
                continue  # a copy in an unrolled loop keeps the metadata and only leads forward
            header = min(above)
            own = [int(match[1]) for match in map(_OWN_LANES.match, entries) if match]
            lanes = own[0] if own else _lanes(lines[header:number]) if is_vectorised else 1
            for tag in filter(None, map(_TAG.match, entries)):
                found[tag[1]] = max(found.get(tag[1], 1), lanes)
                if own:
                    explicit.add(tag[1])
    return found, explicit


def _lanes(body: list[str]) -> int:
    """The usual vector length; a few wider vectors hold interleaved loads."""
    lengths = Counter(int(lanes) for line in body for lanes in _VECTOR.findall(line))
    return lengths.most_common(1)[0][0] if lengths else 1


def _reason(
    unit: ir.Unit,
    loop: _Loop | None,
    lanes: dict[str, int],
    vectors: Vectors,
    options: Options,
) -> str:
    """The most likely reason why a loop was not vectorised."""
    region = unit.body if loop is None else loop.body
    body = list(statements(region.body))
    inner = [statement for statement in body if isinstance(statement, _Loop)]
    if options.debug:
        return "every index is checked"
    if options.level < 2:
        return f"optimisation level {options.level}"
    if isinstance(loop, ir.While):
        return "the number of rounds is not known in advance"
    if any(statement.line == 0 or str(statement.line) in lanes for statement in inner):
        return "it contains another loop"
    if has_atomic_updates(region, private_counters(unit, options)):
        return "it updates elements that its positions share"
    if missing := sorted(_without_vector_routine(body, vectors)):
        return f"no vector code for {', '.join(missing)}"
    if loop is not None and loop.initial:
        return "each round needs values of the round before"
    return "LLVM found no safe or profitable way"


def _without_vector_routine(body: list[ir.Statement], vectors: Vectors) -> set[str]:
    return {
        statement.operation
        for statement in body
        if isinstance(statement, ir.Compute) and _is_scalar(statement, vectors)
    }


def _is_scalar(statement: ir.Compute, vectors: Vectors) -> bool:
    if statement.operation in vector_math.ARITY:
        return mathematics.routine(statement.operation, statement.result.dtype, vectors.isa) is None
    # Processors divide integers one by one; a power is a loop.
    is_integer = statement.result.dtype.is_integer
    return is_integer and statement.operation in ("floor_divide", "remainder", "integer_power")
