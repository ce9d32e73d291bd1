"""The source of a Python function as a syntax tree, and locations in it."""

from __future__ import annotations
import __future__

import ast
import inspect
import itertools
import linecache
import sys
import tokenize
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from ..errors import KernelError, SourceLocation
from ..records import record

_QUICK_TRIES = 8
"""So often a definition is parsed to find its end; after that Python's own way, which is slower."""


@record
class FunctionSource:
    """A parsed function definition.

    Attributes
    ----------
    function : callable
        The Python function; it is never run.
    tree : ast.FunctionDef
        Its definition, with the file's line numbers.
    file : str
        File name as Python knows it.
    lines : tuple of str
        The lines of the definition, and the number of the first one in `first_line`.
    """

    function: Callable[..., Any]
    tree: ast.FunctionDef
    file: str
    lines: tuple[str, ...]
    first_line: int

    def location(self, node: ast.AST) -> SourceLocation:
        """Where `node` stands; columns count characters from 1."""
        line = getattr(node, "lineno", self.first_line)
        text = self.lines[line - self.first_line].rstrip("\n")
        # The syntax tree counts bytes of UTF-8.
        offset = getattr(node, "col_offset", 0)
        column = len(text.encode()[:offset].decode(errors="replace")) + 1
        return SourceLocation(self.file, line, column, text)

    def line_location(self, line: int) -> SourceLocation:
        """The first character of a line."""
        text = self.lines[line - self.first_line].rstrip("\n")
        return SourceLocation(self.file, line, len(text) - len(text.lstrip()) + 1, text)

    def error(self, message: str, node: ast.AST) -> KernelError:
        """A `KernelError` that points at `node`."""
        return KernelError(message, self.location(node))


def read_lines(function: Callable[..., Any]) -> list[str]:
    """The lines of the file in which `function` was written, as they are now.

    Taken when a function is decorated, so that later edits of the file cannot change what a running
    program compiles.

    Raises
    ------
    KernelError
        Where `function` is no plain Python function, or its source is not available.
    """
    if not inspect.isfunction(function):
        raise KernelError(f"{function!r} is not a Python function written with def")
    if function.__name__ == "<lambda>":
        raise KernelError("a lambda cannot be compiled; write the function with def")
    if hasattr(function, "__wrapped__"):
        raise KernelError(
            f"{function.__name__} is wrapped by another decorator, which would be lost; put the "
            "turnout decorator directly above def"
        )
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise KernelError(
            f"{function.__name__} is a coroutine or generator; write a plain function"
        )
    file = function.__code__.co_filename
    linecache.checkcache(file)
    lines = linecache.getlines(file, function.__globals__)
    if not lines and file == "<stdin>":
        lines = _typed_lines(function.__code__)
    if len(lines) < function.__code__.co_firstlineno:
        raise KernelError(
            f"the source of {function.__name__} is not available ({file}); turnout compiles from "
            "source: define the function in a file or a notebook, or register its text in "
            "linecache.cache before exec"
        )
    return lines


def _block(lines: list[str]) -> list[str]:
    """The definition that starts at the first line; empty where there is none."""
    for end in itertools.islice(_possible_ends(lines), _QUICK_TRIES):
        block = lines[:end]
        if _is_definition(block):
            return block
    try:
        return inspect.getblock(lines)
    except (SyntaxError, tokenize.TokenError):
        return []


def _possible_ends(lines: list[str]) -> Iterator[int]:
    """Where a definition may end: before a line that is not indented more than its first one.

    In a string or within brackets such a line ends nothing, so whoever asks has to try.
    """
    end = 0
    for number, line in enumerate(lines):
        text = line.lstrip()
        if not text or text.startswith("#"):
            continue
        if number and len(line) - len(text) <= len(lines[0]) - len(lines[0].lstrip()):
            yield end
        end = number + 1
    yield end


def _is_definition(block: list[str]) -> bool:
    try:
        (statement,) = _parsed(block).body
    except (SyntaxError, ValueError):
        return False
    return isinstance(statement, ast.FunctionDef)


def _parsed(block: list[str]) -> ast.Module | ast.If:
    """A statement that may be indented."""
    text = "".join(block)
    if not text[:1].isspace():
        return ast.parse(text)
    (around,) = ast.parse(f"if True:\n{text}").body
    assert isinstance(around, ast.If)
    return around


def _typed_lines(code: CodeType) -> list[str]:
    """The lines of a statement typed at the prompt of Python 3.11 or 3.12; empty if not found.

    That prompt keeps its text in the history of readline only. Taken is the latest statement there
    that compiles to exactly this function; lines that the history does not hold (it drops a line
    equal to the one before it) are never guessed.
    """
    history = sys.modules.get("readline")
    if history is None:
        return []
    count = history.get_current_history_length()
    lines = [f"{history.get_history_item(n)}\n" for n in range(1, count + 1)]
    for start in reversed(range(len(lines))):
        if lines[start].startswith(("@", "def ")):
            statement = _block(lines[start:])
            if _defines("".join(statement), code):
                return statement
    return []


def _defines(text: str, code: CodeType) -> bool:
    """Whether a statement defines a function that compiles to `code`, line numbers included."""
    future = code.co_flags & __future__.annotations.compiler_flag
    try:
        module = compile(text, code.co_filename, "exec", flags=future, dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return any(_is_same_code(constant, code) for constant in module.co_consts)


def _is_same_code(first: object, second: object) -> bool:
    if not (isinstance(first, CodeType) and isinstance(second, CodeType)):
        return type(first) is type(second) and repr(first) == repr(second)
    attributes = ("co_name", "co_code", "co_names", "co_varnames", "co_freevars", "co_linetable")
    return all(getattr(first, name) == getattr(second, name) for name in attributes) and (
        len(first.co_consts) == len(second.co_consts)
        and all(map(_is_same_code, first.co_consts, second.co_consts))
    )


def parse_function(function: Callable[..., Any], lines: list[str]) -> FunctionSource:
    """Parse the definition of `function` out of the lines of its file."""
    code = function.__code__
    first_line = code.co_firstlineno
    block = _block(lines[first_line - 1 :])
    try:
        parsed = _parsed(block)
    except SyntaxError as error:
        raise KernelError(
            f"the source of {function.__name__} in {code.co_filename} does not parse: {error.msg}; "
            "has the file changed since it was imported?"
        ) from None
    tree = parsed.body[0] if parsed.body else None
    if not isinstance(tree, ast.FunctionDef) or tree.name != code.co_name:
        raise KernelError(
            f"line {first_line} of {code.co_filename} does not define {code.co_name}; "
            "has the file changed since it was imported?"
        )
    ast.increment_lineno(parsed, first_line - (2 if isinstance(parsed, ast.If) else 1))
    return FunctionSource(function, tree, code.co_filename, tuple(block), first_line)
