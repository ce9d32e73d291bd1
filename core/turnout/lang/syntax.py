"""Facts about syntax trees: what a construct is called, what a body assigns, how it is left."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, *_COMPREHENSIONS)

_CONSTRUCTS: dict[str, tuple[str, str]] = {
    "Lambda": ("a lambda", "write a helper and decorate it with turnout.func"),
    "FunctionDef": ("a nested function", "define it outside and decorate it with turnout.func"),
    "AsyncFunctionDef": ("a nested function", ""),
    "ClassDef": ("a class", ""),
    "Dict": ("a dict", "use tuples and constant indices"),
    "Set": ("a set", "use a tuple"),
    "JoinedStr": ("an f-string", ""),
    "With": ("with", ""),
    "AsyncWith": ("with", ""),
    "AsyncFor": ("async for", ""),
    "Try": ("try", "kernels raise and catch nothing"),
    "TryStar": ("try", "kernels raise and catch nothing"),
    "Raise": ("raise", "kernels raise and catch nothing; check arguments before the call"),
    "Assert": ("assert", "check arguments before the call"),
    "Import": ("import", "import at the top of the module"),
    "ImportFrom": ("import", "import at the top of the module"),
    "Delete": ("del", ""),
    "Global": ("global", "results go into arrays or are returned"),
    "Nonlocal": ("nonlocal", "results go into arrays or are returned"),
    "Match": ("match", "use if and elif"),
    "Break": ("break", ""),
    "Continue": ("continue", ""),
    "Yield": ("yield", ""),
    "YieldFrom": ("yield", ""),
    "Await": ("await", ""),
    "Slice": ("a slice", "write a loop over its elements"),
    "Starred": ("a starred expression", "write the items one by one"),
    "Attribute": ("an attribute", ""),
    "Call": ("a call", ""),
    "Name": ("a name", ""),
}


def construct(node: ast.AST) -> str:
    """A construct of Python in words, for messages."""
    if isinstance(node, _COMPREHENSIONS):
        return "a comprehension"
    return _CONSTRUCTS.get(type(node).__name__, (f"{type(node).__name__} syntax", ""))[0]


def refusal(node: ast.AST) -> str:
    """Why a construct is refused, and what to write in its place."""
    hint = _CONSTRUCTS.get(type(node).__name__, ("", ""))[1]
    if isinstance(node, _COMPREHENSIONS):
        hint = "write a loop"
    return f"{construct(node)} is not part of the kernel language{'; ' if hint else ''}{hint}"


def assigned_names(statements: Iterable[ast.AST]) -> set[str]:
    """Names that the statements bind, less those that nested functions bind for themselves."""
    names: set[str] = set()
    for node in statements:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if not isinstance(node, _SCOPES):
            names |= assigned_names(ast.iter_child_nodes(node))
    return names


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
