"""Calls inside of a kernel: casts, builtins, inlined helpers and the functions of turnout.math."""

from __future__ import annotations

import ast
import inspect
import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

from .. import ir
from ..ir import DType, Region, Value, f64, i64
from ..math import MATH_FUNCTIONS, MathFunction, equivalent, float_type
from . import names as free_names
from .annotations import as_dtype
from .expressions import ExpressionLowering
from .linear import Linear
from .names import Func
from .scope import RETURNED, VALUE
from .source import parse_function
from .syntax import construct, contains
from .values import (
    ArrayValue,
    Known,
    Number,
    RangeValue,
    Scalar,
    TupleValue,
    VectorValue,
    Weak,
    describe,
    fits,
    is_undefined,
    result_type,
    strong,
    type_of,
    types_of,
    weakness,
    width_of,
)

POLICIES = ("switch", "predicated", "segmented", "auto")
MAXIMUM_UNROLL = 1024
_MAXIMUM_DEPTH = 64
_OF_BOOLS = {"abs": "", "minimum": "bit_and", "maximum": "bit_or"}
_MAXIMUM_LOCAL_BYTES = 2**16  # on the stack of the thread that runs a sample or an iteration
_MAXIMUM_SHARED_BYTES = 2**30  # allocated once per launch


class CallLowering(ExpressionLowering):
    """Lowers calls."""

    @abstractmethod
    def block(self, statements: Sequence[ast.stmt]) -> None:
        """Lower the statements of a body; see `FunctionLowering`."""

    def expression_Call(self, node: ast.Call) -> Any:  # noqa: N802
        if isinstance(node.func, ast.Attribute) and node.func.attr == "astype":
            return self.method_astype(node)
        callee = self.expression(node.func)
        function = callee.value if isinstance(callee, Known) else None
        if isinstance(function, Func):
            return self.inline(node, function)
        meaning = equivalent(function)
        if meaning is not None:
            return self.math_call(node, meaning)
        if function is free_names.serial or function is free_names.parallel:
            return self.loop_intent(node, function.__name__)
        if any(function is builtin for builtin in free_names.BUILTINS):
            return self.builtin_call(node, function)
        dtype = as_dtype(function) if function is not None else None
        if dtype is not None:
            return self.cast_call(node, dtype)
        self.fail(
            node,
            f"{ast.unparse(node.func)} cannot be called in a kernel; decorate a helper with "
            "turnout.func, or use a function of turnout.math",
        )

    def positional(self, node: ast.Call, minimum: int, maximum: int) -> list[Any]:
        name = ast.unparse(node.func)
        if node.keywords or any(isinstance(item, ast.Starred) for item in node.args):
            self.fail(node, f"{name} takes plain positional arguments in a kernel")
        if not minimum <= len(node.args) <= maximum:
            count = str(minimum) if minimum == maximum else f"{minimum} to {maximum}"
            self.fail(node, f"{name} takes {count} arguments, {len(node.args)} given")
        return [self.expression(argument) for argument in node.args]

    def named(
        self, node: ast.Call, parameters: Sequence[str], required: int
    ) -> dict[str, ast.expr]:
        """The arguments of a call by name; the first `required` ones must be given."""
        given = [*zip(parameters, node.args, strict=False)]
        given += [(keyword.arg or "**", keyword.value) for keyword in node.keywords]
        names = [name for name, _ in given]
        fits = set(parameters[:required]) <= set(names) <= set(parameters)
        is_plain = not any(isinstance(argument, ast.Starred) for argument in node.args)
        if not (fits and is_plain and len(set(names)) == len(node.args) + len(node.keywords)):
            listed = ", ".join(
                name if n < required else f"{name}=..." for n, name in enumerate(parameters)
            )
            self.fail(node, f"write {ast.unparse(node.func)}({listed}), each argument once")
        return dict(given)

    def method_astype(self, node: ast.Call) -> Any:
        assert isinstance(node.func, ast.Attribute)
        (spelled,) = self.positional(node, 1, 1)
        dtype = as_dtype(spelled.value) if isinstance(spelled, Known) else None
        if dtype is None:
            self.fail(node, "astype takes an element type such as f32")
        return self.cast_value(self.expression(node.func.value), dtype, node)

    def cast_call(self, node: ast.Call, dtype: DType) -> Any:
        (value,) = self.positional(node, 1, 1)
        return self.cast_value(value, dtype, node)

    def cast_value(self, value: Any, dtype: DType, node: ast.AST) -> Any:
        if isinstance(value, VectorValue):
            return VectorValue(tuple(self.cast_value(item, dtype, node) for item in value.items))
        scalar = self.as_scalar(value, node)
        if isinstance(scalar, Number):
            return Number(self.builder.cast(scalar.value, dtype))
        if dtype.is_integer and type(scalar.value) is int and not fits(scalar.value, dtype):
            self.fail(node, f"the Python integer {scalar.value} does not fit into {dtype}")
        return Number(self.builder.constant(scalar.value, dtype))

    def loop_intent(self, node: ast.Call, intent: str) -> RangeValue:
        (iterable,) = self.positional(node, 1, 1)
        if not isinstance(iterable, RangeValue):
            self.fail(node, f"tn.{intent} takes a range, as in tn.{intent}(range(n))")
        return RangeValue(iterable.bounds, intent)

    def builtin_call(self, node: ast.Call, function: Any) -> Any:
        build = self.builder
        if function is range:
            bounds = self.positional(node, 1, 3)
            return RangeValue(tuple(self.as_scalar(bound, node) for bound in bounds))
        if function is len:
            (value,) = self.positional(node, 1, 1)
            if isinstance(value, ArrayValue):
                return value.extents[len(value.prefix)]
            return Known(len(self.items_of(value, node)))
        if function is abs:
            return self.math_call(node, MATH_FUNCTIONS["abs"])
        if function is round:
            self.fail(node, "round gives a Python int; use turnout.math.round, or i64(x)")
        if function in (min, max):
            values = self.positional(node, 2, 64)
            return self.extreme(node, function is min, values)
        (value,) = self.positional(node, 1, 1)
        scalar = self.as_scalar(value, node)
        if function is bool:
            return build.truth(scalar)
        if isinstance(scalar, Known):
            try:
                return Known(function(scalar.value))
            except (OverflowError, ValueError) as error:
                self.fail(node, f"{function.__name__}({scalar.value!r}) has no value: {error}")
        weak: Weak = "int" if function is int else "float"
        return Number(build.cast(scalar.value, strong(weak)), weak)

    def extreme(self, node: ast.Call, is_minimum: bool, values: list[Any]) -> Scalar:
        """Python's min / max: the first of the values that no later one beats."""
        build = self.builder
        best = self.as_scalar(values[0], node)
        for value in values[1:]:
            candidate = self.as_scalar(value, node)
            if isinstance(best, Known) and isinstance(candidate, Known):
                best = Known((min if is_minimum else max)(best.value, candidate.value))
                continue
            dtype = result_type([type_of(best), type_of(candidate)])
            sides = [build.number(side, dtype) for side in (candidate, best)]
            wins = build.compute("less" if is_minimum else "greater", *(s.value for s in sides))
            chosen = build.compute("select", wins, *(side.value for side in sides))
            bounds = [build.lower_bound(side.value) for side in sides]
            if not is_minimum and chosen.dtype.is_integer and any(b is not None for b in bounds):
                largest = max(bound for bound in bounds if bound is not None)
                build.assume_between(chosen, Linear((), largest), None)
            best = Number(chosen, weakness(dtype))
        return best

    def inline(self, node: ast.Call, function: Func) -> Any:
        stack = self.context.call_stack
        if function in stack or len(stack) >= _MAXIMUM_DEPTH:
            self.fail(node, f"{function.__name__} calls itself; helpers are inlined, use a loop")
        bound = self.bind(node, function)
        source = parse_function(function.function, function.lines)
        stack.append(function)
        outer_line, self.context.call_line = self.context.call_line, self.line(node)
        body = type(self)(self.context, source, function.names, bound)
        body.block(source.tree.body)
        self.context.call_line = outer_line
        stack.pop()
        return body.returned(node, self)

    def bind(self, node: ast.Call, function: Func) -> dict[str, Any]:
        """The arguments of a helper by name, defaults filled in."""
        name = function.__name__
        signature = inspect.signature(function.function)
        for parameter in signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                self.fail(
                    node,
                    f"{name}: parameter *{parameter.name} is variadic; helpers have a fixed list "
                    "of named parameters",
                )
        keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        if len(keywords) < len(node.keywords) or any(
            isinstance(argument, ast.Starred) for argument in node.args
        ):
            self.fail(node, f"{name} takes plain arguments in a kernel, without * and **")
        try:
            given = signature.bind(*node.args, **keywords).arguments
        except TypeError as error:
            self.fail(node, f"{name}: {error}")
        bound = {}
        for key, parameter in signature.parameters.items():
            if key in given:
                bound[key] = self.expression(given[key])
                continue
            try:
                bound[key] = Known(free_names.constant(parameter.default, key))
            except TypeError as error:
                self.fail(node, f"the default of {error}")
        return bound

    def returned(self, node: ast.AST, caller: CallLowering) -> Any:
        """What the function gives its caller, once its body is lowered."""
        flag = self.environment[RETURNED]
        if self.return_count in (None, -1):
            return Known(None)
        if not (isinstance(flag, Known) and flag.value):
            caller.fail(node, f"{self.source.tree.name} returns a value on some of its paths only")
        count = max(1, self.return_count or 0)
        values = tuple(self.environment[f"{VALUE}{number}"] for number in range(count))
        for value in values:
            if is_undefined(value):
                caller.fail(node, f"{self.source.tree.name} returns different things on its paths")
        return TupleValue(values) if self.return_count else values[0]

    # -- math functions --------------------------------------------------------------------------

    def math_call(self, node: ast.Call, function: MathFunction) -> Any:
        if function.rule == "special":
            return getattr(self, f"math_{function.name}")(node)
        count = len(function.parameters)
        arguments = self.positional(node, count, count)
        vectors = [argument for argument in arguments if isinstance(argument, VectorValue)]
        if not vectors:
            scalars = [self.as_scalar(argument, node) for argument in arguments]
            return self.math_scalar(node, function, scalars)
        width = len(vectors[0].items)
        columns = [self.broadcast(argument, width, node) for argument in arguments]
        rows = zip(*columns, strict=True)
        return VectorValue(tuple(self.math_scalar(node, function, list(row)) for row in rows))

    def math_scalar(
        self, node: ast.AST, function: MathFunction, operands: Sequence[Scalar]
    ) -> Scalar:
        operation = function.operation
        assert operation is not None
        dtype = result_type([type_of(operand) for operand in operands])
        in_float = strong(dtype).is_float
        if not in_float and operation in ("floor", "ceil", "round", "trunc"):
            return operands[0]
        if strong(dtype).is_bool and operation in _OF_BOOLS:
            of_bools = _OF_BOOLS[operation]
            return self.builder.arithmetic(of_bools, operands, dtype) if of_bools else operands[0]
        if strong(dtype).is_bool and function.rule == "number":
            self.fail(node, f"{operation} is not defined for bools; convert them with i8(...)")
        if not in_float and function.rule == "float":
            dtype = "float" if isinstance(dtype, str) else float_type(dtype)
        return self.builder.arithmetic(operation, operands, dtype)

    def operation(self, name: str, node: ast.AST, *operands: Scalar) -> Scalar:
        """A math function by name, applied to operands that are already evaluated."""
        return self.math_scalar(node, MATH_FUNCTIONS[name], operands)

    def math_clip(self, node: ast.Call) -> Any:
        x, low, high = self.positional(node, 3, 3)
        width = len(x.items) if isinstance(x, VectorValue) else 0
        if width:
            rows = zip(*(self.broadcast(v, width, node) for v in (x, low, high)), strict=True)
            return VectorValue(tuple(self.clip(node, *row) for row in rows))
        return self.clip(node, *(self.as_scalar(v, node) for v in (x, low, high)))

    def clip(self, node: ast.AST, x: Scalar, low: Scalar, high: Scalar) -> Scalar:
        return self.operation("minimum", node, self.operation("maximum", node, x, low), high)

    def math_select(self, node: ast.Call) -> Any:
        test, a, b = self.positional(node, 3, 3)
        condition = self.builder.truth(self.as_scalar(test, node))
        if isinstance(condition, Known):
            return a if condition.value else b
        vectors = [side for side in (a, b) if isinstance(side, VectorValue)]
        if vectors:
            width = len(vectors[0].items)
            rows = zip(self.broadcast(a, width, node), self.broadcast(b, width, node), strict=True)
            return VectorValue(tuple(self.choose(node, condition, x, y) for x, y in rows))
        return self.choose(node, condition, self.as_scalar(a, node), self.as_scalar(b, node))

    def choose(self, node: ast.AST, condition: Number, a: Scalar, b: Scalar) -> Number:
        dtype = result_type([type_of(a), type_of(b)])
        sides = [self.builder.materialise(side, strong(dtype)) for side in (a, b)]
        chosen = self.builder.compute("select", condition.value, *sides)
        return Number(chosen, weakness(dtype))

    def math_index(self, node: ast.Call) -> Number:
        x, n = (self.as_scalar(value, node) for value in self.positional(node, 2, 2))
        if strong(type_of(n)).is_float:
            self.fail(node, "the second argument of index is a count, an integer")
        build = self.builder
        value = build.materialise(x)
        if value.dtype is ir.u64:
            value = build.compute("minimum", value, build.constant(i64.maximum, ir.u64))
        truncated = build.cast(value, i64)
        zero, one = build.constant(0, i64), build.constant(1, i64)
        last = build.compute("subtract", build.materialise(n, i64), one)
        clamped = build.compute("minimum", truncated, last)
        return Number(build.compute("maximum", clamped, zero))

    def math_vector(self, node: ast.Call) -> VectorValue:
        items = self.positional(node, 1, MAXIMUM_UNROLL)
        return self.as_vector(TupleValue(tuple(items)), node)

    def as_vector(self, value: Any, node: ast.AST) -> VectorValue:
        """A vector, or a tuple or list of numbers as one; all components get one type."""
        if isinstance(value, VectorValue):
            return value
        scalars = [self.as_scalar(item, node) for item in self.items_of(value, node)]
        dtype = result_type([type_of(scalar) for scalar in scalars])
        return VectorValue(tuple(self.builder.number(scalar, dtype) for scalar in scalars))

    def vectors(self, node: ast.Call, count: int, width: int | None = None) -> list[Any]:
        values = [self.as_vector(value, node) for value in self.positional(node, count, count)]
        widths = {len(value.items) for value in values}
        if len(widths) > 1 or (width is not None and widths != {width}):
            needed = f"width {width}" if width else "one width"
            self.fail(node, f"vectors of {needed} are needed, given: {sorted(widths)}")
        return [value.items for value in values]

    def products(self, node: ast.Call, a: Sequence[Scalar], b: Sequence[Scalar]) -> Scalar:
        total: Scalar | None = None
        for x, y in zip(a, b, strict=True):
            product = self.fold_or_compute(node, ast.Mult, x, y)
            total = (
                product if total is None else self.fold_or_compute(node, ast.Add, total, product)
            )
        assert total is not None
        return total

    def math_dot(self, node: ast.Call) -> Scalar:
        a, b = self.vectors(node, 2)
        return self.products(node, a, b)

    def math_norm(self, node: ast.Call) -> Scalar:
        (v,) = self.vectors(node, 1)
        return self.operation("sqrt", node, self.products(node, v, v))

    def math_cross(self, node: ast.Call) -> VectorValue:
        a, b = self.vectors(node, 2, width=3)

        def component(i: int, j: int) -> Scalar:
            left = self.fold_or_compute(node, ast.Mult, a[i], b[j])
            right = self.fold_or_compute(node, ast.Mult, a[j], b[i])
            return self.fold_or_compute(node, ast.Sub, left, right)

        return VectorValue((component(1, 2), component(2, 0), component(0, 1)))

    def math_sum(self, node: ast.Call) -> Scalar:
        (v,) = self.vectors(node, 1)
        total: Scalar = v[0]
        for item in v[1:]:
            total = self.fold_or_compute(node, ast.Add, total, item)
        return total

    def math_sample_index(self, node: ast.Call) -> Number:
        return self.sample_fact(node, self.context.sample_index)

    def math_sample_count(self, node: ast.Call) -> Number:
        return self.sample_fact(node, self.context.sample_count)

    def sample_fact(self, node: ast.Call, fact: Number | None) -> Number:
        self.positional(node, 0, 0)
        if fact is None:
            self.fail(node, "samples exist in the per-sample form only; use the loop's variable")
        return fact

    def math_zeros(self, node: ast.Call) -> ArrayValue:
        arguments = self.named(node, ("shape", "dtype"), required=1)
        shape = self.expression(arguments["shape"])
        is_tuple = isinstance(shape, TupleValue) or isinstance(getattr(shape, "value", 0), tuple)
        lengths = list(self.items_of(shape, node)) if is_tuple else [shape]
        if not lengths or not all(
            isinstance(x, Known) and type(x.value) is int and x.value >= 1 for x in lengths
        ):
            self.fail(node, "the shape of a local array must be constant and positive")
        dtype: DType | None = f64
        if "dtype" in arguments:
            spelled = self.expression(arguments["dtype"])
            dtype = as_dtype(spelled.value) if isinstance(spelled, Known) else None
        if dtype is None:
            self.fail(node, "the dtype of a local array must be an element type such as f32")
        size = dtype.itemsize * math.prod(length.value for length in lengths)
        limit = _MAXIMUM_SHARED_BYTES if self.builder.at_top else _MAXIMUM_LOCAL_BYTES
        if size > limit:
            self.fail(
                node,
                f"a local array of {size} bytes is too large here, where {limit} are allowed; "
                "pass an array argument",
            )
        name = self.context.fresh_array(f"local{self.context.local_count}")
        self.context.local_count += 1
        self.builder.emit(ir.LocalArray(name, dtype, tuple(item.value for item in lengths)))
        return ArrayValue(name, dtype, tuple(lengths), asserted_loops=self.context.asserted_loops)

    # -- dispatch --------------------------------------------------------------------------------

    def math_dispatch(self, node: ast.Call) -> Any:
        arguments = self.named(node, ("kind", "branches", "policy", "name"), required=2)
        branches = arguments["branches"]
        if not isinstance(branches, ast.List | ast.Tuple):
            self.fail(
                branches,
                f"branches must be a list or tuple written here, not {construct(branches)}",
            )
        for branch in branches.elts:
            if isinstance(branch, ast.Starred):
                self.fail(branch, "write the branches one by one, without *")
        if len(branches.elts) < 2:
            self.fail(branches, f"dispatch needs at least two branches, {len(branches.elts)} given")
        policy = self.option(arguments, "policy", "switch", node)
        if policy not in POLICIES:
            self.fail(
                arguments["policy"], f"unknown policy {policy!r}; allowed: {', '.join(POLICIES)}"
            )
        kind = self.scalar(arguments["kind"])
        dtype = type_of(kind)
        if not strong(dtype).is_integer:
            self.fail(
                arguments["kind"],
                f"the class of a dispatch must be an integer, not {describe(dtype)}; "
                "use turnout.math.index(x, n) to make one from a float",
            )
        name = self.group_name(arguments, node)
        selector = self.builder.materialise(kind)
        return self.dispatch_arms(branches, selector, policy, name)

    def option(self, arguments: dict[str, ast.expr], key: str, default: str, node: ast.AST) -> str:
        if key not in arguments:
            return default
        value = self.expression(arguments[key])
        if not (isinstance(value, Known) and isinstance(value.value, str)):
            self.fail(arguments[key], f"{key} must be a string, not {self.describe(value)}")
        return value.value

    def group_name(self, arguments: dict[str, ast.expr], node: ast.Call) -> str:
        name = self.option(arguments, "name", f"dispatch{self.context.dispatch_count}", node)
        if not name.isidentifier():
            self.fail(node, f"the name of a dispatch must be an identifier, not {name!r}")
        if name in self.context.dispatch_names:
            self.fail(node, f"there already is a dispatch called {name!r} in this kernel")
        self.context.dispatch_count += 1
        self.context.dispatch_names.append(name)
        return name

    def dispatch_arms(
        self, branches: ast.List | ast.Tuple, selector: Value, policy: str, name: str
    ) -> Any:
        values: list[Any] = []

        def evaluate(branch: ast.expr) -> None:
            if contains([branch], ast.NamedExpr):
                self.fail(branch, "a branch of a dispatch cannot assign a name; assign it before")
            value = self.expression(branch)
            is_tuple = isinstance(value, TupleValue)
            values.append(self.as_vector(value, branch) if is_tuple else value)

        blocks = [self.arm(partial(evaluate, branch))[1] for branch in branches.elts]
        self.check_branches(branches, values)
        results: list[Value] = []
        yields: list[list[Value]] = [[] for _ in blocks]
        joined = self.join(name, values, blocks, results, yields)
        arms = tuple(
            Region((), tuple(block), tuple(row)) for block, row in zip(blocks, yields, strict=True)
        )
        line = self.line(branches)
        self.builder.emit(ir.Dispatch(tuple(results), selector, arms, policy, name, line))
        return joined

    def check_branches(self, branches: ast.List | ast.Tuple, values: list[Any]) -> None:
        """All branches of one type; Python numbers take the type of the others."""
        widths = []
        for branch, value in zip(branches.elts, values, strict=True):
            width = width_of(value)
            if width is None:
                self.fail(branch, f"a branch must be a number or vector: {self.describe(value)}")
            widths.append(width)
        kinds = {t for value in values for t in types_of(value) if isinstance(t, DType)}
        if len(set(widths)) > 1 or len(kinds) > 1:
            given = ", ".join(self.describe(value) for value in values)
            self.fail(branches, f"all branches of a dispatch must be of one type; given: {given}")
