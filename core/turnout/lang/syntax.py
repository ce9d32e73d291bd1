"""Facts about syntax trees: what a construct is called, what a body assigns, how it is left."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any


def construct(node: ast.AST) -> str:
    """A construct of Python in words, for messages."""
    names = {
        "Lambda": "a lambda",
        "ListComp": "a comprehension",
        "SetComp": "a comprehension",
        "DictComp": "a comprehension",
        "GeneratorExp": "a generator expression",
        "Dict": "a dict",
        "Set": "a set",
        "JoinedStr": "an f-string",
        "With": "with",
        "Try": "try",
        "Raise": "raise",
        "Assert": "assert",
        "FunctionDef": "a nested function",
        "ClassDef": "a class",
        "Import": "import",
        "ImportFrom": "import",
        "Delete": "del",
        "Global": "global",
        "Nonlocal": "nonlocal",
        "Break": "break",
        "Continue": "continue",
        "Match": "match",
        "Yield": "yield",
        "Await": "await",
        "Slice": "a slice",
        "Starred": "a starred expression",
        "Name": "a name",
    }
    name = type(node).__name__
    return names.get(name, f"{name.lower()} syntax")


def assigned_names(statements: Iterable[ast.AST]) -> set[str]:
    """Names that the statements bind, nested ones included."""
    return {
        node.id
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def names_of_changed_items(statements: Iterable[ast.AST]) -> set[str]:
    """Names of which the statements assign items, as in ``v[0] = x``."""
    return {
        node.value.id
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
    }


def last_binding(tree: ast.FunctionDef, name: str) -> ast.AST:
    """The last place in a function that binds `name`, or the function where none does."""
    places = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
    ]
    return max(places, key=lambda node: (node.lineno, node.col_offset), default=tree)


def last_return(tree: ast.FunctionDef) -> ast.AST:
    """The last return of a function, or the function where there is none."""
    places = [node for node in ast.walk(tree) if isinstance(node, ast.Return)]
    return max(places, key=lambda node: node.lineno, default=tree)


def contains(statements: Iterable[ast.AST], kinds: Any) -> bool:
    """Whether a node of one of the kinds stands anywhere in the statements."""
    return any(isinstance(n, kinds) for statement in statements for n in ast.walk(statement))


def breaks(statements: Iterable[ast.stmt]) -> bool:
    """Whether the body of a loop contains a break of that loop."""
    for statement in statements:
        if isinstance(statement, ast.Break):
            return True
        if isinstance(statement, ast.For | ast.While):
            continue
        nested = [
            *getattr(statement, "body", ()),
            *getattr(statement, "orelse", ()),
        ]
        if breaks(nested):
            return True
    return False


def exits_early(statements: Sequence[ast.stmt]) -> bool:
    """Whether the body of a loop can leave the loop by break or return."""
    return breaks(statements) or contains(statements, ast.Return)
