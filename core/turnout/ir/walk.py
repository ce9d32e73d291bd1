"""Walks over statements, in the order in which they stand in the text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from . import nodes as ir


def statements(body: Iterable[ir.Statement]) -> Iterator[ir.Statement]:
    """Every statement of `body`, those of nested regions included, outer before inner."""
    for statement in body:
        yield statement
        for region in statement.regions:
            yield from statements(region.body)
