"""Kernels and helpers in pickles: by name where any reader can import them, else by source.

A decorated function that its module offers under its own name is pickled as Python pickles
functions, by module and name. One that lives in ``__main__``, inside of another function or in text
given to ``exec`` may not be there for the reader, so its pickle holds a `Definition`: its lines and
the values it takes from outside. The reader uses its own object of that name if it was made of the
same, and makes it otherwise. No plain function is ever pickled, so this works with `pickle` as it
does with libraries that extend it.
"""

from __future__ import annotations

import ast
import builtins
import copyreg
import enum
import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import field
from importlib import import_module
from typing import Any

import numpy as np

from .digests import sha256
from .lang import Func, Signature, parse_function
from .lang.names import FreeNames
from .records import record

MADE_KEPT = 256
"""Objects made from pickles that are kept, so that a worker compiles them once."""


@record
class Definition:
    """A decorated function by value; equal definitions make the same object.

    Attributes
    ----------
    digest : str
        Of everything but the place in a file.
    file, first_line
        Where the first of `lines`, that of ``def``, stands.
    lines : tuple of str
    name, qualname, module : str
        As the function has them.
    defaults : mapping of str to object
        Default values by parameter.
    constants : mapping of str to object
        Values of free names; of a module its name.
    modules : tuple of str
        Which of the constants are modules.
    signature : Signature or None
        What a kernel accepts; None for a helper.
    options : mapping of str to object
        Arguments of the decorator.
    """

    digest: str
    file: str
    first_line: int
    lines: tuple[str, ...] = field(compare=False)
    name: str = field(compare=False)
    qualname: str = field(compare=False)
    module: str = field(compare=False)
    defaults: Mapping[str, Any] = field(compare=False)
    constants: Mapping[str, Any] = field(compare=False)
    modules: tuple[str, ...] = field(compare=False)
    signature: Signature | None = field(compare=False)
    options: Mapping[str, Any] = field(compare=False)

    @property
    def file_lines(self) -> list[str]:
        """The lines at their places in a file that has nothing else."""
        return ["\n"] * (self.first_line - 1) + list(self.lines)

    def function(self) -> Callable[..., Any]:
        """The Python function, without decorators, annotations and closure."""
        tree = _parsed(self.lines, self.first_line)
        tree.decorator_list, tree.returns = [], None
        arguments = tree.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            argument.annotation = None
        arguments.defaults = []
        arguments.kw_defaults = [None] * len(arguments.kwonlyargs)
        compiled = compile(ast.Module([tree], []), self.file, "exec")
        code = next(each for each in compiled.co_consts if isinstance(each, types.CodeType))
        names = {"__name__": self.module, "__builtins__": builtins, **self.constants}
        names.update((name, import_module(names[name])) for name in self.modules)
        function = types.FunctionType(code, names, self.name)
        function.__qualname__ = self.qualname
        keyword_only = {argument.arg for argument in arguments.kwonlyargs}
        function.__defaults__ = tuple(
            value for name, value in self.defaults.items() if name not in keyword_only
        )
        function.__kwdefaults__ = {
            name: value for name, value in self.defaults.items() if name in keyword_only
        }
        return function


def define(
    function: Callable[..., Any],
    lines: list[str],
    free: FreeNames,
    signature: Signature | None = None,
    options: Mapping[str, Any] | None = None,
) -> Definition:
    """What a decorated function is made of.

    Free names that no kernel could use are left out.
    """
    source = parse_function(function, lines)
    first_line = source.tree.lineno
    block = inspect.getblock(lines[first_line - 1 :])
    parameters = inspect.signature(function).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    constants = dict(_constants(function, source.tree, free))
    modules = tuple(n for n, value in constants.items() if isinstance(value, types.ModuleType))
    constants.update((name, constants[name].__name__) for name in modules)
    options = options or {}
    digest = sha256()
    for part in ("".join(block), signature, options, defaults, constants, modules):
        digest.update(_text(part).encode("utf-8", "surrogatepass") + b"\0")
    return Definition(
        digest.hexdigest(),
        source.file,
        first_line,
        tuple(block),
        function.__name__,
        function.__qualname__,
        function.__module__,
        defaults,
        constants,
        modules,
        signature,
        options,
    )


def _constants(
    function: Callable[..., Any], tree: ast.FunctionDef, free: FreeNames
) -> list[tuple[str, Any]]:
    code = function.__code__
    written = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    found = []
    for name in sorted(written & {*code.co_names, *code.co_freevars} - {*code.co_varnames}):
        try:
            value = free.resolve(name).value
        except (LookupError, TypeError):
            continue
        if value is not getattr(builtins, name, free):
            found.append((name, value))
    return found


def _text(value: object) -> str:
    """Text that is the same in every process, and differs where values or types do."""
    kind = type(value).__qualname__
    if isinstance(value, tuple | list):
        return f"{kind}({', '.join(map(_text, value))})"
    if isinstance(value, dict):
        return f"{kind}({', '.join(f'{key}: {_text(item)}' for key, item in value.items())})"
    if isinstance(value, Func):
        return f"{kind} {func_definition(value).digest}"
    if isinstance(value, enum.EnumMeta):
        members = dict[str, enum.Enum](value.__members__)
        return f"{kind} {[(name, member.value) for name, member in members.items()]}"
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return f"{kind} {value.__module__}.{value.__qualname__}"
    if isinstance(value, np.generic):
        return f"{value.dtype} {value!r}"
    return f"{kind} {value!r}"


def _parsed(lines: tuple[str, ...], first_line: int) -> ast.FunctionDef:
    is_indented = lines[0][:1].isspace()
    module: Any = ast.parse("".join(("if True:\n" if is_indented else "", *lines)))
    ast.increment_lineno(module, first_line - (2 if is_indented else 1))
    tree: ast.FunctionDef = (module.body[0] if is_indented else module).body[0]
    return tree


def reduced(
    decorated: Any, definition: Callable[[], Definition], make: Callable[[Definition], Any]
) -> str | tuple[Any, ...]:
    """What ``__reduce__`` of a decorated function returns.

    Parameters
    ----------
    decorated : Kernel or Func
    definition : callable
        Gives its definition.
    make : callable
        Makes such an object of a definition; a function of a module, since it is pickled too.
    """
    module, qualname = decorated.__module__, decorated.__qualname__
    if module != "__main__" and named(module, qualname) is decorated:
        return str(qualname)
    return _found_or_made, (make, definition())


def named(module: str, qualname: str) -> Any:
    """What a module offers under a name, or None."""
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found


def _found_or_made(make: Callable[[Definition], Any], definition: Definition) -> Any:
    found = named(definition.module, definition.qualname)
    own = func_definition(found) if isinstance(found, Func) else getattr(found, "definition", None)
    if isinstance(own, Definition) and own.digest == definition.digest:
        return found
    return _made(make, definition)


@functools.lru_cache(maxsize=MADE_KEPT)
def _made(make: Callable[[Definition], Any], definition: Definition) -> Any:
    return make(definition)


# -- helpers ---------------------------------------------------------------------------------------


def func_definition(func: Func) -> Definition:
    """What a helper is made of."""
    return define(func.function, func.lines, func.names)


def _make_func(definition: Definition) -> Func:
    return Func(definition.function(), definition.file_lines)


def _reduce_func(func: Func) -> str | tuple[Any, ...]:
    return reduced(func, lambda: func_definition(func), _make_func)


copyreg.pickle(Func, _reduce_func)
