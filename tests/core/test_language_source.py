"""Where the text of a kernel comes from, and that it is the text that was compiled by Python."""

from __future__ import annotations

import functools
import importlib.util
import linecache
import os
import re
import subprocess
import sys
import textwrap
import types

import numpy as np
import pytest
from language_support import function_from, kernel_error

import turnout as tn
from turnout import Mutable, Scalar, f64

X = np.array([1.0, 2.0, 3.0])


def run(kernel):
    y = np.zeros(3)
    kernel(X, y, device="reference")
    return y.tolist()


def imported(path, text):
    path.write_text(textwrap.dedent(text))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- files -----------------------------------------------------------------------------------------


def test_editing_the_file_later_changes_nothing(tmp_path):
    path = tmp_path / "edited_module.py"
    module = imported(
        path,
        """
        import turnout as tn
        from turnout import Mutable, Scalar

        @tn.func
        def helper(x):
            return x * 2

        @tn.kernel
        def k(x: Scalar, y: Mutable[Scalar]):
            y = helper(x) + 1
        """,
    )
    path.write_text("# nothing is left here\n" * 20)
    os.utime(path, (1, 1))
    linecache.checkcache()
    assert run(module.k) == [3, 5, 7]


def test_a_function_of_a_file_that_changed_meanwhile_is_not_guessed(tmp_path):
    path = tmp_path / "changed_module.py"
    module = imported(path, "def first(x: 'Scalar'):\n    return x\n\ndef second(): pass\n")
    path.write_text("def other():\n    pass\n\n# shorter\n")
    os.utime(path, (1, 1))
    for name, message in (
        ("first", "line 1 of {} does not define first; has the file changed since it was"),
        ("second", "line 4 of {} does not define second; has the file changed since it was"),
    ):
        function = getattr(module, name)
        function.__annotations__ = {"x": tn.NDArray[f64, 1]} if name == "first" else {}
        with pytest.raises(tn.KernelError) as caught:
            tn.kernel(function)(*([X] if name == "first" else []), device="reference")
        assert message.format(path) in str(caught.value)


def test_kernels_of_classes_closures_and_indented_definitions():
    class Solver:
        factor = 3

        @staticmethod
        @tn.kernel
        def step(x: Scalar, y: Mutable[Scalar]):
            y = x * 3

    def make(factor):
        if factor:

            @tn.kernel
            def inner(x: Scalar, y: Mutable[Scalar]):
                y = x * factor

        return inner

    assert run(Solver.step) == [3, 6, 9]
    assert run(make(4)) == [4, 8, 12]
    assert run(make(5)) == [5, 10, 15]


def test_decorators_above_and_below():
    seen = []

    def noted(value):
        def decorate(function):
            seen.append(value)
            return function

        return decorate

    @noted(
        "above",
    )
    @tn.kernel(
        fastmath=False,
    )
    @noted("below")
    # a comment between decorators
    def k(x: Scalar, y: Mutable[Scalar]):
        y = x + 1

    assert run(k) == [2, 3, 4]
    assert seen == ["below", "above"]


def test_a_decorator_that_wraps_is_refused():
    def wrapping(function):
        @functools.wraps(function)
        def wrapper(*arguments):
            return function(*arguments)

        return wrapper

    with pytest.raises(tn.KernelError, match="wrapped by another decorator, which would be lost"):

        @tn.kernel
        @wrapping
        def k(x: Scalar, y: Mutable[Scalar]):
            y = x


def test_comments_strings_and_long_expressions_of_odd_indentation():
    text = (
        "class Holder:\n"
        "    def k(x: Scalar, y: Mutable[Scalar]):\n"
        '        """Text\n'
        "at the margin.\n"
        '        """\n'
        "# a comment at the margin\n"
        "        t = (x +\n"
        "  1)\n"
        "        u = x \\\n"
        " * 2\n"
        "        if (x > 2 and\n"
        "x < 9):  # more\n"
        "            t = 0\n"
        "\n"
        "        y = t + u\n"
        "    other = 1\n"
    )
    holder = function_from(text, "Holder")
    assert run(tn.kernel(holder.k)) == [4, 7, 6]


def test_one_line_functions_and_tabs():
    assert run(tn.kernel(function_from("def k(x: Scalar, y: Mutable[Scalar]): y = x; y += 1\n")))
    text = "if True:\n\tdef k(x: Scalar, y: Mutable[Scalar]):\n\t\tif x > 1:\n\t\t\ty = x\n"
    assert run(tn.kernel(function_from(text))) == [0, 2, 3]


def test_columns_count_characters():
    function = function_from("def k(x: Scalar, y: Mutable[Scalar]):\n    größe = 'é'; y = ñ + x\n")
    error = kernel_error(function, X, np.zeros(3))
    assert error.location.column == len("    größe = 'é'; y = ") + 1
    assert str(error) == (
        f"{error.location.file}:2:22: the name 'ñ' is not defined\n"
        "        größe = 'é'; y = ñ + x\n"
        "                         ^"
    )


@pytest.mark.parametrize(
    "text",
    [
        "from __future__ import annotations\n"
        "def k(x: Scalar, y: Mutable[Scalar], n: NDArray[f64, 1]): y = x + n[0]\n",
        "def k(x: 'Scalar', y: Mutable[Scalar], n: 'NDArray[f64, 1]'): y = x + n[0]\n",
    ],
)
def test_stringised_annotations(text):
    kernel, y = tn.kernel(function_from(text)), np.zeros(3)
    kernel(X, y, np.ones(1), device="reference")
    assert y.tolist() == [2, 3, 4]


# -- text that is no file --------------------------------------------------------------------------


def test_cells_of_notebooks():
    """Notebooks compile cells under a made-up name and register the text in linecache."""
    name = "/tmp/ipykernel_12345/3141592653.py"
    text = "@tn.kernel\ndef k(x: Scalar, y: Mutable[Scalar]):\n    y = x * 7\nk\n"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace = {"tn": tn, "Scalar": Scalar, "Mutable": Mutable}
    exec(compile(text, name, "exec"), namespace)
    assert run(namespace["k"]) == [7, 14, 21]


def test_loaders_give_the_text_of_their_modules():
    """Modules in zip files, for example, have a loader that knows their source."""
    text = "import turnout as tn\nfrom turnout import *\n@tn.kernel\n"
    text += "def k(x: Scalar, y: Mutable[Scalar]):\n    y = x - 1\n"

    class Loader:
        def get_source(self, name):
            return text

    module = types.ModuleType("loaded_from_elsewhere")
    module.__dict__.update(__loader__=Loader(), __name__="loaded_from_elsewhere")
    module.__spec__ = importlib.util.spec_from_loader("loaded_from_elsewhere", Loader())
    exec(compile(text, "/no/such/archive.zip/loaded_from_elsewhere.py", "exec"), module.__dict__)
    assert run(module.k) == [0, 1, 2]


@pytest.mark.parametrize("file", ["<string>", "<stdin>", "/no/such/file.py"])
def test_no_source_is_a_clear_error(file):
    namespace = {"Scalar": Scalar}
    exec(compile("def k(x: Scalar): return x", file, "exec"), namespace)
    with pytest.raises(tn.KernelError) as caught:
        tn.kernel(namespace["k"])
    assert f"the source of k is not available ({file}); turnout compiles from source" in str(
        caught.value
    )


def test_what_is_no_plain_function():
    async def coroutine(x: Scalar):
        pass

    def generator(x: Scalar):
        yield x

    class Callable:
        def __call__(self, x: Scalar):
            pass

    for value, message in (
        (lambda x: x, "a lambda cannot be compiled; write the function with def"),
        (coroutine, "coroutine is a coroutine or generator; write a plain function"),
        (generator, "generator is a coroutine or generator; write a plain function"),
        (Callable(), "is not a Python function written with def"),
        (len, "is not a Python function written with def"),
    ):
        with pytest.raises(tn.KernelError, match=re.escape(message)):
            tn.func(value)


# -- the interactive interpreter -------------------------------------------------------------------


def interact(directory, lines):
    """Type lines at the prompt of ``python -i`` in a terminal of its own; give what it printed."""
    pty = pytest.importorskip("pty")
    pytest.importorskip("readline")
    controller, terminal = pty.openpty()
    environment = os.environ | {
        "HOME": str(directory),
        "PYTHON_HISTORY": str(directory / "history"),
        "TERM": "dumb",
        "TURNOUT_BACKEND": "reference",
    }
    process = subprocess.Popen(
        [sys.executable, "-i", "-q"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
        close_fds=True,
    )
    os.close(terminal)
    shown = ""
    with os.fdopen(controller, "r+b", buffering=0) as connection:
        for line in [*lines, "exit()"]:
            shown += _read_prompt(connection)
            connection.write(line.encode() + b"\n")
        shown += _read_prompt(connection)
    assert process.wait(60) == 0
    return shown.replace("\r", "")


def _read_prompt(connection):
    """Read up to the next prompt, or to the end."""
    shown = b""
    while not shown.endswith((b">>> ", b"... ")):
        try:
            part = connection.read(1024)
        except OSError:  # how Linux reports that the other side is closed
            break
        if not part:
            break
        shown += part
    return shown.decode()


PRELUDE = ["import numpy as np, turnout as tn", "from turnout import *", "x = np.arange(3.0)"]


def test_kernels_typed_at_the_prompt(tmp_path):
    shown = interact(
        tmp_path,
        [
            *PRELUDE,
            "@tn.func",
            "def twice(x):",
            "    return x * 2",
            "",
            "def k(x: Scalar) -> Scalar:",
            "    return x * 1000",
            "",
            "@tn.kernel",
            "def k(x: Scalar) -> Scalar:",
            "    if x > 1:",
            "        return twice(x) + 10",
            "    return x",
            "",
            "k(x).tolist()",
            "def late(x: Scalar) -> Scalar: return x - 1",
            "",
            "1 + 1",
            "late = tn.kernel(late)",
            "late(x).tolist()",
        ],
    )
    assert "[0.0, 1.0, 14.0]" in shown
    assert "[-1.0, 0.0, 1.0]" in shown
    assert "Error" not in shown


def test_errors_of_kernels_typed_at_the_prompt(tmp_path):
    shown = interact(
        tmp_path,
        [
            *PRELUDE,
            "@tn.kernel",
            "def k(x: Scalar) -> Scalar:",
            "    return x << 1",
            "",
            "k(x)",
            # The history keeps one of two equal lines, and what is missing is not guessed.
            "@tn.kernel",
            "def k(x: Scalar, y: Mutable[Scalar]):",
            "    y += x",
            "    y += x",
            "",
        ],
    )
    assert ":3:12: << needs integers" in shown
    assert "return x << 1" in shown
    if sys.version_info < (3, 13):
        assert "the source of k is not available (<stdin>)" in shown


def test_the_same_name_from_an_earlier_statement_is_not_taken(tmp_path):
    shown = interact(
        tmp_path,
        [
            *PRELUDE,
            "def make():",
            "    def k(x: Scalar) -> Scalar:",
            "        return x * 5",
            "    return k",
            "",
            "def k(x: Scalar) -> Scalar:",
            "    return x * 6",
            "",
            "tn.kernel(make())",
        ],
    )
    if sys.version_info < (3, 13):
        assert "the source of k is not available (<stdin>)" in shown
