"""Whatever is wrong with a kernel is a `KernelError` with its place, and a fix if there is one."""

from __future__ import annotations

import ast
import copy
import random

import numpy as np
import pytest
from language_support import copies, function_from, kernel_error

import turnout as tn

ARGUMENTS = (np.arange(4.0), np.zeros(4), np.array([1, 2, 3, 0]))


def array_kernel(body):
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    return function_from(
        f"def k(a: NDArray[f64, 1], b: NDArray[f64, 1], n: NDArray[i64, 1]):\n{lines}\n"
    )


def test_an_error_shows_file_line_column_and_source_line():
    function = array_kernel("x = 1\nfor i in range(4):\n    b[i] = a[i] + (a[i] << 2)")
    error = kernel_error(function, *ARGUMENTS)
    file = function.__code__.co_filename
    assert str(error) == (
        f"{file}:4:24: << needs integers, and one side is of type f64; convert it with an integer "
        "type such as i32(...), or use * or / instead\n"
        "            b[i] = a[i] + (a[i] << 2)\n"
        "                           ^"
    )
    assert error.location == tn.errors.SourceLocation(
        file, 4, 24, "        b[i] = a[i] + (a[i] << 2)"
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("f = lambda x: x", "a lambda is not part of the kernel language; write a helper and"),
        ("x = [y for y in a]", "a comprehension is not part of the kernel language; write a loop"),
        ("x = {y for y in a}", "a comprehension is not part of the kernel language; write a loop"),
        ("x = {y: 1 for y in a}", "a comprehension is not part of the kernel language; write a"),
        ("x = max(y for y in a)", "max takes 2 to 64 arguments, 1 given"),
        ("x = {1: 2}", "a dict is not part of the kernel language; use tuples and constant"),
        ("x = {1, 2}", "a set is not part of the kernel language; use a tuple"),
        ("x = f'{a[0]}'", "an f-string is not part of the kernel language"),
        ("x = 1j", "1j is not part of the kernel language"),
        ("x = b'1'", "b'1' is not part of the kernel language"),
        ("x = ...", "Ellipsis is not part of the kernel language"),
        ("x = a[1:2]", "a slice is not part of the kernel language; write a loop over its"),
        ("a[:] = 1", "a slice is not part of the kernel language; write a loop over its elements"),
        ("x = (*n, 1)", "a starred expression is not part of the kernel language; write the items"),
        ("x, *y = 1, 2", "cannot unpack 2 values into this target"),
        ("with a: pass", "with is not part of the kernel language"),
        ("try:\n    pass\nexcept: pass", "try is not part of the kernel language; kernels raise"),
        ("try:\n    pass\nfinally: pass", "try is not part of the kernel language; kernels raise"),
        ("raise ValueError", "raise is not part of the kernel language; kernels raise and catch"),
        ("assert a[0] > 0", "assert is not part of the kernel language; check arguments before"),
        ("def f(x): return x", "a nested function is not part of the kernel language; define it"),
        ("class C: pass", "a class is not part of the kernel language"),
        ("import os", "import is not part of the kernel language; import at the top of the module"),
        ("from os import path", "import is not part of the kernel language; import at the top"),
        ("x = 1\ndel x", "del is not part of the kernel language"),
        ("global x", "global is not part of the kernel language; results go into arrays or are"),
        ("match n[0]:\n    case 1: pass", "match is not part of the kernel language; use if and"),
        ("x = yes if a[0] else no", "the name 'yes' is not defined"),
        ("print(a[0])", "'print' is nothing that kernels can call; decorate a Python function"),
        ("for i in range(3):\n    pass\nelse:\n    pass", "for ... else is not part of the kernel"),
        ("while n[0]:\n    pass\nelse:\n    pass", "while ... else is not part of the kernel"),
        ("while True:\n    pass", "this loop never ends: it has no break and no return"),
        ("while 1:\n    n[0] = 1", "this loop never ends: it has no break and no return"),
        ("for i in a:\n    pass", "the array 'a' (1 axes left to index) has no items; loop over a"),
        ("for i in 5:\n    pass", "the number 5 has no items; loop over a range"),
        ("for i in range(2.0):\n    pass", "range takes integers, not a Python float"),
        ("for i in range(a[0]):\n    pass", "range takes integers, not f64"),
        ("for i in range(0, 3, 0):\n    pass", "the step of a range must not be zero"),
        ("for i in range():\n    pass", "range takes 1 to 3 arguments, 0 given"),
        ("for i in range(2**70):\n    pass", "the Python integer 1180591620717411303424 does not"),
        ("for a[0] in range(3):\n    pass", "the target of a loop over a range must be a name"),
        ("for i, j in range(3):\n    pass", "the target of a loop over a range must be a name"),
        ("for i in enumerate(a):\n    pass", "'enumerate' is nothing that kernels can call"),
        ("for i in zip(a, b):\n    pass", "'zip' is nothing that kernels can call"),
        ("r = range(3)", "a range can only be iterated over"),
        ("x: int", "an annotation without a value declares nothing in a kernel; assign it"),
        ("x: i64 = 1.5", "the annotation holds i64, and a value of type a Python float does not"),
        ("a.x = 1", "cannot assign to an attribute in a kernel"),
        ("a.x += 1", "cannot assign to an attribute in a kernel"),
        ("f(1)[0] = 1", "the name 'f' is not defined"),
        ("x = 1\nx[0] = 1", "cannot assign to an item of the number 1"),
        ("t = (1, 2)\nt[0] = 1", "cannot assign to an item of a tuple or list of 2"),
        ("x = 1, 2\nx += 1", "a number is needed here, not a tuple or list of 2"),
        ("x, y = a[0]", "a scalar of type f64 has no items"),
        ("x, y = 1, 2, 3", "cannot unpack 3 values into this target"),
        ("x = a[0, 1]", "array 'a' has 1 axes only"),
        ("x = a[0][1]", "a scalar of type f64 cannot be indexed"),
        ("x = a[0.0]", "an index must be an integer, not a Python float"),
        ("x = a[a[0]]", "an index must be an integer, not f64"),
        ("x = a[a[0] > 1]", "an index must be an integer, not bool_"),
        ("x = a[True]", "an index must be an integer, not bool_"),
        ("x = a['1']", "a number is needed here, not str '1'"),
        ("x = a[None]", "a number is needed here, not NoneType None"),
        ("x = a[2**64]", "the Python integer 18446744073709551616 does not fit into i64"),
        ("x = (1, 2)[5]", "index 5 is out of range for 2 items"),
        ("x = (1, 2)[n[0]]", "the index into a tuple or list of 2 must be a constant; use a local"),
        ("x = a.shape[1]", "index 1 is out of range for 1 items"),
        ("x = a.shape[n[0]]", "the index into a tuple or list of 1 must be a constant"),
        ("x = a.strides", "an array has no attribute 'strides' in a kernel; use shape or ndim"),
        ("x = a + 1", "a number is needed here, not the array 'a' (1 axes left to index)"),
        ("x = 1 if a else 2", "a number is needed here, not the array 'a'"),
        ("if a:\n    pass", "a number is needed here, not the array 'a'"),
        ("while a:\n    pass", "a number is needed here, not the array 'a'"),
        ("x = a and 1", "a number is needed here, not the array 'a'"),
        ("x = not a", "a number is needed here, not the array 'a'"),
        ("x = -a", "a number is needed here, not the array 'a'"),
        ("x = a == b", "a number is needed here, not the array 'a'"),
        ("x = a[0] is b[0]", "only == != < <= > >= compare run-time values in a kernel"),
        ("x = a[0] in (1, 2)", "only == != < <= > >= compare run-time values in a kernel"),
        ("x = 1 < 'a'", "cannot compare 1 and 'a'"),
        ("a = 5\na[0] = 1", "cannot assign to an item of the number 5"),
        ("b[0] = a", "an array element cannot hold the array 'a'"),
        ("b[0] = 'a'", "array 'b' holds f64, not str 'a'"),
        ("b[0] = None", "array 'b' holds f64, not NoneType None"),
        ("b[0] = 1, 2", "an array element cannot hold a tuple or list of 2"),
        ("return 1", "a kernel of the array form returns nothing; write the result into an array"),
        ("if a[0]:\n    return 1\nreturn", "every return of a function must give the same number"),
        (
            "for i in range(3):\n    x = tm.zeros(2**14)",
            "a local array of 131072 bytes is too large",
        ),
        ("x = tm.exp()", "tm.exp takes 1 arguments, 0 given"),
        ("x = tm.exp(1, 2)", "tm.exp takes 1 arguments, 2 given"),
        ("x = tm.exp(x=1)", "tm.exp takes plain positional arguments in a kernel"),
        ("x = tm.exp(a)", "a number is needed here, not the array 'a'"),
        ("x = tm.exp(*n)", "tm.exp takes plain positional arguments in a kernel"),
        ("x = min(1)", "min takes 2 to 64 arguments, 1 given"),
        ("x = abs(1, 2)", "abs takes 1 arguments, 2 given"),
        ("x = len(1)", "the number 1 has no items"),
        ("x = len(a[0])", "a scalar of type f64 has no items"),
        ("x = round(a[0])", "round gives a Python int; use turnout.math.round, or i64(x)"),
        ("x = int('1')", "a number is needed here, not str '1'"),
        ("x = int(tm.nan)", "int(nan) has no value: cannot convert float NaN to integer"),
        (f"x = float({10**400})", "has no value: int too large to convert to float"),
        ("x = f32(1, 2)", "f32 takes 1 arguments, 2 given"),
        ("x = f32(a)", "a number is needed here, not the array 'a'"),
        ("x = a[0].astype(5)", "astype takes an element type such as f32"),
        ("x = a[0].astype()", "a[0].astype takes 1 arguments, 0 given"),
        ("x = tm.zeros(n[0])", "the shape of a local array must be constant and positive"),
        ("x = tm.zeros(0)", "the shape of a local array must be constant and positive"),
        ("x = tm.zeros((2, -1))", "the shape of a local array must be constant and positive"),
        ("x = tm.zeros(())", "the shape of a local array must be constant and positive"),
        ("x = tm.zeros(2.0)", "the shape of a local array must be constant"),
        ("x = tm.zeros(2, 5)", "the dtype of a local array must be an element type such as f32"),
        ("x = tm.zeros()", "write tm.zeros(shape, dtype=...), each argument once"),
        ("x = tm.zeros(2, f64, 1)", "write tm.zeros(shape, dtype=...), each argument once"),
        ("x = tm.zeros(10**15)", "a local array of 8000000000000000 bytes is too large here"),
        ("x = tm.zeros(3)\nx[5] = 1", "index 5 is out of range for length 3"),
        ("x = tm.zeros(3)\ny = x[-4]", "index -4 is out of range for length 3"),
        ("x = tm.sample_index()", "samples exist in the per-sample form only; use the loop's"),
        ("x = tm.vector()", "tm.vector takes 1 to 1024 arguments, 0 given"),
        ("x = tm.norm(a)", "the array 'a' (1 axes left to index) has no items"),
        ("x = tm.index(a[0], 2.0)", "the second argument of index is a count, an integer"),
        (f"x = {10**400} * a[0]", "the Python integer 1000"),
        ("x = 0.0 ** -1", "0.0 ** -1 has no value"),
        ("x = (-8) ** 0.5", "which kernels do not have"),
        ("x = 2 ** 10**9", "is too large"),
        ("x = 1 << 10**12", "is too large"),
        ("x = a[0] @ a[1]", "@ is not part of the kernel language; write the loops"),
        ("b[0] @= a[1]", "@ is not part of the kernel language; write the loops"),
    ],
)
def test_what_is_refused(body, message):
    error = kernel_error(array_kernel(body), *ARGUMENTS)
    assert message in str(error)
    assert error.location.line >= 2 or "returns nothing" in message
    assert error.location.text


def test_break_outside_of_a_loop_is_an_error_of_python():
    with pytest.raises(SyntaxError):
        array_kernel("break")


def test_expressions_of_any_depth_compile_or_are_refused_clearly():
    kernel = tn.kernel(array_kernel("b[0] = " + " + ".join(["a[1]"] * 150)))
    a, b, n = copies(ARGUMENTS)
    kernel(a, b, n, device="reference")
    assert b[0] == 150
    deep = "b[0] = " + "+".join(["a[1]"] * 900)
    assert "nested too deeply" in str(kernel_error(array_kernel(deep), *ARGUMENTS))


def test_many_early_returns_compile():
    lines = "\n".join(f"if n[0] == {i}:\n    b[0] = {i}\n    return" for i in range(100, 160))
    kernel = tn.kernel(array_kernel(f"{lines}\nb[0] = -1"))
    for first, wanted in ((130, 130), (159, 159), (5, -1)):
        a, b, n = copies(ARGUMENTS)
        n[0] = first
        kernel(a, b, n, device="reference")
        assert b[0] == wanted


# -- mutations -------------------------------------------------------------------------------------

SEEDS = [
    """
def k(a: NDArray[f64, 1], b: NDArray[f64, 1], n: NDArray[i64, 1]):
    total = 0.0
    for i in range(len(a)):
        x, y = a[i], n[i]
        if x > 1 and y != 2 or i == 0:
            b[i] = helper(x, y) if y % 2 else tm.sqrt(x)
        elif not y:
            continue
        else:
            t = tm.zeros(3)
            t[y % 3] += x
            b[i] -= t[0] + min(x, y)
        total += b[i]
    for i in range(4):
        j = 0
        while j < n[i]:
            j += 1
            if j > 2:
                break
        b[i] = total * j ** 2 - tm.dispatch(n[i], [a[i], b[i], 1.0]) + f32(a[0])
""",
    """
def k(a: Scalar, b: Mutable[Scalar], n: Index):
    v = tm.vector(a, n, 1)
    for w in (0.5, 2):
        v = v * w
    u = (v[0], v[1])
    for i in range(n):
        v[2] += i
        if v[2] > 3:
            return
    b = tm.dot(v, v) + a if a > 0 else helper(a, n) // 2
""",
]
HELPER = """
@tn.func
def helper(x, y):
    if y > 2:
        return x
    for i in range(y):
        x = x + i
    return x * 2
"""


class Mutation(ast.NodeTransformer):
    """Replaces one expression or statement of a function by another one of it."""

    def __init__(self, tree, generator):
        body = [node for statement in tree.body[-1].body for node in ast.walk(statement)]
        nodes = [node for node in body if isinstance(node, ast.expr | ast.stmt)]
        self.target = generator.choice(nodes)
        kind = ast.expr if isinstance(self.target, ast.expr) else ast.stmt
        self.other = copy.deepcopy(generator.choice([n for n in nodes if isinstance(n, kind)]))

    def visit(self, node):
        return self.other if node is self.target else self.generic_visit(node)


@pytest.mark.parametrize("seed", range(8))
def test_mutated_kernels_compile_or_raise_kernel_errors(seed):
    generator = random.Random(seed)
    compiled = 0
    for _ in range(60):
        text = HELPER + generator.choice(SEEDS)
        tree = ast.parse(text)
        for _ in range(generator.choice([1, 1, 2])):
            tree = Mutation(tree, generator).visit(tree)
            tree = ast.parse(_written(tree) or text)
        try:
            function = function_from(ast.unparse(tree))
        except SyntaxError:
            continue
        try:
            kernel = tn.kernel(function)
            types = {s.name: s.dtype or tn.f64 for s in kernel.signature.parameters}
            kernel.lower({"return": tn.f64, **types})
            compiled += 1
        except tn.KernelError:
            pass
    assert compiled > 10


def _written(tree):
    """The text of a tree, or nothing where a mutation made no tree of Python."""
    try:
        text = ast.unparse(tree)
        ast.parse(text)
    except (SyntaxError, ValueError, AttributeError, RecursionError):
        return ""
    return text
