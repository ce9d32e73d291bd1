"""What became of the loops of a kernel, and why, in words for its author."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from ..records import record
from .parallel import Access, Dependence
from .reductions import BLOCK, LANES, NOUNS
from .source import FunctionSource


@record
class LoopNote:
    """What became of one loop of the source.

    Attributes
    ----------
    line : int
        Line of the loop in its file.
    is_parallel : bool
        Whether its iterations may run in any order and at the same time.
    reason : str
        Why, in words.
    advice : str
        What the author can do where the loop is to be parallel; empty where there is nothing.
    is_inside_parallel : bool
        Whether it runs, in order, in every iteration of a parallel loop, or for every sample.
    """

    line: int
    is_parallel: bool
    reason: str
    advice: str = ""
    is_inside_parallel: bool = False


@record
class Refusal:
    """Why the iterations of a loop run in order, and what the author can do about it."""

    reason: str
    advice: str = ""


DECLARED_SERIAL = Refusal("it is declared tn.serial")
UNKNOWN_RANGE = Refusal(
    "its range depends on what the kernel computed before",
    "compute the bounds outside of the kernel and pass them as arguments",
)
UPDATES_SHARED = Refusal("it updates shared elements")
IN_ORDERED_LOOP = Refusal(
    "it is inside of a loop that runs in order",
    "only outermost loops, and loops directly inside of parallel ones, can be parallel: put this "
    "one into a kernel of its own",
)
IN_BRANCH = Refusal(
    "it is inside of a branch",
    "move the branch into the loop, or decide it outside of the kernel",
)
WHILE = Refusal("whether it goes on is decided in every iteration, so that they run in order")
LEFT_EARLY = Refusal(
    WHILE.reason,
    "a loop without break and return can be parallel: let it store one result for each element, "
    "and search these afterwards",
)

_ASSERT = "wrap its range in tn.parallel(...)"


def carried(names: Sequence[str]) -> Refusal:
    """For a loop whose iterations hand values to the next one."""
    verb = "is" if len(names) == 1 else "are"
    return Refusal(
        f"{' and '.join(names)} {verb} carried from one iteration to the next",
        "a loop that does nothing with it but s += x (or -=, *=, &=, |=, ^=, s = min(s, x), "
        "s = max(s, x)) is a reduction, and parallel; or let each iteration store its own part in "
        "an array and combine the parts afterwards, or make the loop around this one parallel",
    )


def reduced(names: Sequence[str], operations: Sequence[str]) -> str:
    """For a loop whose carried values are reductions."""
    found = [f"{name} is a {NOUNS[each]}" for name, each in zip(names, operations, strict=True)]
    return f"{' and '.join(found)}, computed in blocks of {BLOCK} positions with {LANES} lanes each"


def shared(dependence: Dependence, spelling: Spelling) -> Refusal:
    """For a loop whose iterations may meet in an element of an array."""
    array, store, other = dependence.array, dependence.store, dependence.other
    stored = f"{spelling(store)} is stored to on line {store.line}"
    if dependence.kind == "negative index":
        return Refusal(
            f"{stored} at an index that may be negative, which counts from the end",
            f"write max(..., 0) for an index that is never negative, or {_ASSERT} if you know that "
            "no two iterations access the same element",
        )
    if dependence.kind == "same element":
        return Refusal(
            f"{stored} by every iteration",
            f"for a sum, add up in a local variable and store it after the loop; or {_ASSERT}, "
            "where +=, -= and *= on an element are atomic",
        )
    if dependence.kind == "index of another loop":
        return Refusal(
            f"{stored} by every iteration: its index has the variable of an inner loop",
            f"make the loop over that index the outer one; or {_ASSERT}, where +=, -= and *= on an "
            "element are atomic",
        )
    if dependence.kind == "computed index":
        return Refusal(
            f"{stored}, at an index that is not a constant multiple of the loop variable plus a "
            "constant, so that two iterations may store to the same element",
            f"if you know that no two iterations do, {_ASSERT}; +=, -= and *= on an element are "
            "atomic there, as a histogram needs",
        )
    if other is None:
        return Refusal(
            f"{stored}, and several iterations may store to the same element",
            f"if you know that none do, {_ASSERT}",
        )
    verb = "stored to" if other.is_store else "read"
    line = "the same line" if other.line == store.line else f"line {other.line}"
    met = f"{stored}, and {spelling(other)} is {verb} on {line}"
    if dependence.kind == "other element":
        return Refusal(
            f"{met}, which is the element of another iteration",
            f"if the values from before the loop are meant, store to another array than {array!r}; "
            "otherwise the loop has to run in order",
        )
    return Refusal(
        f"{met}, at an index that may belong to another iteration",
        f"if you know that no iteration accesses what another one stores, {_ASSERT}",
    )


class Spelling:
    """Spells accesses to arrays as the source does.

    Parameters
    ----------
    source : FunctionSource
    accesses : iterable of Access
        Those of a loop, in order: the first one to an array on a line is the first one written.
    """

    def __init__(self, source: FunctionSource, accesses: Iterable[Access]) -> None:
        self._accesses = list(accesses)
        self._written: dict[tuple[str, int, bool], list[str]] = {}
        for array, node in _subscripts(source.tree):
            key = (array, node.lineno, isinstance(node.ctx, ast.Store))
            self._written.setdefault(key, []).append(ast.unparse(node))

    def __call__(self, access: Access) -> str:
        alike = [
            each
            for each in self._accesses
            if (each.array, each.line, each.is_store)
            == (access.array, access.line, access.is_store)
        ]
        key = (access.array, access.line, access.is_store)
        # What `a[i] += 1` reads is written once, as what it stores to.
        texts = self._written.get(key) or self._written.get((*key[:2], True), [])
        if len(set(texts)) == 1:
            return texts[0]
        if len(texts) == len(alike):
            return next(text for text, each in zip(texts, alike, strict=True) if each is access)
        return f"an element of {access.array!r}"  # in a helper, or another name for the array


def _subscripts(node: ast.AST) -> Iterator[tuple[str, ast.Subscript]]:
    """The accesses to elements of named arrays in a tree, in the order in which they run."""
    if isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for part in (node.value, *targets):
            yield from _subscripts(part)
        return
    base = node
    while isinstance(base, ast.Subscript):
        yield from _subscripts(base.slice)
        base = base.value
    if isinstance(node, ast.Subscript) and isinstance(base, ast.Name):
        yield base.id, node
        return
    for child in ast.iter_child_nodes(base):
        yield from _subscripts(child)
