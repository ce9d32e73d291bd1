"""Derivatives of kernels as kernels: `vjp`."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from . import ir
from .arguments import Types
from .diff import Request, reverse_unit
from .digests import sha256
from .errors import KernelError
from .ir.transform import fresh_values
from .kernel import Kernel
from .lang import (
    KernelSource,
    LoweredKernel,
    ParameterSpec,
    Signature,
    sample_notes,
    sample_overlaps,
)
from .lower import POLICIES, dispatch_groups
from .pickling import MADE_KEPT, Definition, named
from .records import record
from .selectors import possible_lowering
from .sizes import Sizes


def vjp(
    kernel: Kernel,
    *,
    wrt: str | Iterable[str] | None = None,
    policy: str | Mapping[str, str] | None = None,
) -> Kernel:
    """The reverse-mode derivative of a per-sample kernel, as a kernel.

    For derivatives of a number with respect to the outputs of `kernel` it computes those with
    respect to its inputs, sample by sample. It is called with keywords:

    - every input of `kernel`, under its name;
    - ``bar_<output>`` for each output of floats, the derivatives that are given; of an output that
      is also an input, ``bar_<output>_out``; of a returned array ``bar_out``, or ``bar_out0``,
      ``bar_out1`` and so on where several are returned;
    - ``bar_<input>`` for each input of `wrt`, an array that is overwritten. That of a `Param` has
      one element per sample, to be summed up; to that of a table its derivatives are added.

    Where such a name is a parameter of `kernel` already, ``bar2_`` stands for ``bar_`` in all of
    them, and so on.

    Parameters
    ----------
    kernel : Kernel
        Of the per-sample form.
    wrt : str or iterable of str, optional
        Inputs of floats whose derivatives are asked for; all by default.
    policy : str or mapping of str to str, optional
        The policy of the dispatches that come from all dispatches of `kernel`, or by the name of
        the latter; where it says nothing, they have the policy of the one they come from.

    Returns
    -------
    Kernel
        Called ``<kernel>_vjp``.

    Raises
    ------
    KernelError
        For a kernel without derivatives, an unknown input, dispatch or policy.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> from turnout import Mutable, Param, Scalar
    >>> @tn.kernel
    ... def scaled(factor: Param, x: Scalar, y: Mutable[Scalar]):
    ...     y = factor * x * x
    >>> gradient = np.empty(2)
    >>> x = np.array([1.0, 3.0])
    >>> tn.vjp(scaled, wrt="x")(factor=0.5, x=x, bar_y=np.ones(2), bar_x=gradient)
    >>> gradient
    array([1., 3.])
    """
    if not isinstance(kernel, Kernel):
        raise KernelError(f"vjp takes a kernel (turnout.kernel), not {type(kernel).__name__}")
    if kernel.signature.form != "sample":
        raise KernelError(
            f"vjp takes kernels of the per-sample form, and {kernel.__name__} is of the array form"
        )
    if kernel.steps != 1:
        raise KernelError(
            f"vjp differentiates one step, and {kernel.__name__} takes {kernel.steps} in a call; "
            "differentiate a kernel without steps= and apply its derivative step by step, backwards"
        )
    primal = _Primal(kernel)
    inputs, policies = primal.inputs_to(wrt), primal.policies(policy)
    if kernel.sizes is None:
        return Derivative(kernel, inputs, policies)
    # There is no derivative by a constant, so it becomes one in the derivative only.
    varying = kernel._varied(sizes=kernel.sizes.without(inputs))
    sizes = kernel.sizes.of([spec.name for spec in primal.inputs])
    return Derivative(varying, inputs, policies, sizes=sizes)


@record
class _Names:
    """The arrays of a derivative."""

    inputs: tuple[ParameterSpec, ...]
    seeds: Mapping[str, ParameterSpec]
    gradients: Mapping[str, ParameterSpec]

    @property
    def parameters(self) -> tuple[ParameterSpec, ...]:
        return (*self.inputs, *self.seeds.values(), *self.gradients.values())


class _Primal:
    """What a kernel is differentiated by, found out by lowering it for types of a possible call."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.name = kernel.__name__
        self.types, lowered = possible_lowering(kernel)
        unit = _only_unit(kernel, lowered)
        arrays = unit.arrays
        specs = kernel.signature.parameters
        self.inputs = [s for s in specs if not s.is_output or arrays[s.name].is_read]
        self.outputs = {s.name: s for s in specs if s.is_output}
        self.both = {s.name for s in self.inputs if s.is_output}
        for number, returned in enumerate(lowered.returned):
            declared = kernel.signature.returns
            spec = declared[number] if declared else _returned_spec(returned.width, returned.dtype)
            is_one = len(lowered.returned) == 1 and not kernel.signature.returns_tuple
            name = "out" if is_one else f"out{number}"
            self.outputs[returned.name] = replace(spec, name=name, is_output=True)
        self.groups = list(dict.fromkeys(group.name for group in dispatch_groups(unit)))
        self.differentiable = [spec.name for spec in self.inputs if self._has_floats(spec)]

    def _has_floats(self, spec: ParameterSpec) -> bool:
        dtype = self.types[spec.name]
        return dtype == "float" if isinstance(dtype, str) else dtype.is_float

    def inputs_to(self, wrt: str | Iterable[str] | None) -> tuple[str, ...]:
        """The names of `wrt` in the order of the parameters."""
        if not self.differentiable:
            raise KernelError(f"vjp: {self.name} has no input of floats to differentiate by")
        if wrt is None:
            return tuple(self.differentiable)
        asked = (wrt,) if isinstance(wrt, str) else tuple(wrt)
        for name in asked:
            if name not in self.differentiable:
                raise KernelError(
                    f"vjp(wrt=...): {self._unfit(name)}; its differentiable inputs are "
                    f"{self.differentiable}"
                )
        if not asked:
            raise KernelError(
                f"vjp(wrt=()): name at least one of the inputs of {self.name}, "
                f"{self.differentiable}"
            )
        return tuple(name for name in self.differentiable if name in asked)

    def _unfit(self, name: object) -> str:
        if any(spec.name == name for spec in self.inputs):
            return f"{name!r} of {self.name} does not hold floats and carries no derivative"
        if any(spec.name == name for spec in self.kernel.signature.parameters):
            return f"{name!r} is an output of {self.name} that it does not read"
        return f"{name!r} is not an input of {self.name}"

    def policies(self, policy: str | Mapping[str, str] | None) -> dict[str, str]:
        """The policies by dispatch."""
        if policy is None:
            return {}
        if not isinstance(policy, str | Mapping):
            raise KernelError(
                f"vjp(policy=...): give a policy or a dictionary of them by dispatch group, not "
                f"{type(policy).__name__}"
            )
        found = dict.fromkeys(self.groups, policy) if isinstance(policy, str) else dict(policy)
        for group, named_policy in found.items():
            if group not in self.groups:
                raise KernelError(
                    f"vjp(policy=...): {group!r} is not a dispatch group of {self.name}; its "
                    f"groups are {self.groups}"
                )
            self._check_policy(named_policy, f" for {group!r}")
        if isinstance(policy, str):
            self._check_policy(policy, "")
        return found

    def _check_policy(self, policy: object, where: str) -> None:
        if policy not in POLICIES:
            allowed = ", ".join(map(repr, POLICIES))
            raise KernelError(
                f"vjp(policy=...): unknown policy {policy!r}{where}; the policies are {allowed}"
            )

    def names(self, wrt: tuple[str, ...]) -> _Names:
        """The parameters of the derivative; how they are called does not depend on `wrt`."""
        taken = {spec.name for spec in self.kernel.signature.parameters}
        for level in itertools.count(1):
            prefix = "bar_" if level == 1 else f"bar{level}_"
            possible = self._names(tuple(self.differentiable), prefix)
            arrays = (*possible.seeds.values(), *possible.gradients.values())
            names = {spec.name for spec in arrays}
            if len(names) == len(arrays) and not taken & names:
                break
        return self._names(wrt, prefix)

    def _names(self, wrt: tuple[str, ...], prefix: str) -> _Names:
        seeds = {
            unit_name: _read(replace(spec, name=f"{prefix}{self._output_name(spec)}"))
            for unit_name, spec in self.outputs.items()
            if spec.dtype is None or spec.dtype.is_float
        }
        if not seeds:
            raise KernelError(f"vjp: {self.name} has no output of floats")
        specs = {spec.name: spec for spec in self.inputs}
        gradients = {name: _gradient(specs[name], f"{prefix}{name}") for name in wrt}
        return _Names(tuple(map(_read, self.inputs)), seeds, gradients)

    def _output_name(self, spec: ParameterSpec) -> str:
        return f"{spec.name}_out" if spec.name in self.both else spec.name


def _only_unit(kernel: Kernel, lowered: LoweredKernel) -> ir.Unit:
    (step,) = lowered.plan.steps
    assert isinstance(step, ir.Run), f"{kernel.__name__} is one unit"
    return step.unit


def _returned_spec(width: int, dtype: ir.DType) -> ParameterSpec:
    """What stands for an array that a kernel returns without saying so in its annotations."""
    if not dtype.is_float:
        return ParameterSpec("", "plane", dtype, 1, annotation="Index")
    shown = f"Vector[{width}]" if width else "Scalar"
    return ParameterSpec("", "plane", None, 2 if width else 1, width, annotation=shown)


def _read(spec: ParameterSpec) -> ParameterSpec:
    """A parameter as an input."""
    shown = spec.annotation
    if shown.startswith("Mutable["):
        shown = shown.removeprefix("Mutable[").removesuffix("]")
    return replace(spec, is_output=False, annotation=shown)


def _gradient(spec: ParameterSpec, name: str) -> ParameterSpec:
    if spec.role == "array":
        return replace(spec, name=name, is_output=True)
    if spec.role == "param":
        dtype = spec.dtype
        shown = f"Scalar[{dtype}]" if dtype else "Scalar"
        return ParameterSpec(
            name, "plane", dtype, 1, is_output=True, annotation=f"Mutable[{shown}]"
        )
    return replace(spec, name=name, is_output=True, annotation=f"Mutable[{_read(spec).annotation}]")


class Derivative(Kernel):
    """A kernel that computes derivatives of another one; made by `vjp`.

    Attributes
    ----------
    primal : Kernel
        What it differentiates.
    wrt : tuple of str
        The inputs of the primal whose derivatives it computes.
    policies : mapping of str to str
        Policies of dispatches, by those of the primal that they come from.
    """

    def __init__(
        self,
        primal: Kernel,
        wrt: tuple[str, ...],
        policies: Mapping[str, str],
        device: str | None = None,
        chosen_policies: Mapping[str, str] | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        self.primal = primal
        self.wrt = wrt
        self.policies = policies
        self._names = _Primal(primal).names(wrt)
        super().__init__(
            _prototype(primal, self._names),
            fastmath=primal.fastmath,
            debug=primal.debug,
            lines=primal._lines,
            signature=Signature("sample", self._names.parameters, ()),
            constants=primal.constants,
            device=device,
            chosen_policies=chosen_policies,
            sizes=sizes,
        )

    @property
    def source(self) -> KernelSource:
        """That of the primal."""
        return self.primal.source

    @cached_property
    def definition(self) -> Definition:
        """That of the primal, with a digest that also says what is differentiated."""
        primal = self.primal.definition
        text = f"{primal.digest} vjp {self._arguments}"
        name, qualname = self.__name__, self.__qualname__
        digest = sha256(text.encode()).hexdigest()
        return replace(primal, digest=digest, name=name, qualname=qualname)

    def with_constants(self, /, **values: Any) -> Kernel:
        """The derivative of the primal with other values for names that it takes from outside."""
        return _derivative(self.primal.with_constants(**values), *self._arguments)

    def _varied(self, **changed: Any) -> Kernel:
        options = {
            "device": self.device,
            "chosen_policies": self.chosen_policies,
            "sizes": self.sizes,
            **changed,
        }
        return Derivative(self.primal, self.wrt, self.policies, **options)

    @property
    def _arguments(self) -> tuple[Any, ...]:
        """What it is made of but its primal, as one text can hold it."""
        policies, chosen = self.policies.items(), self.chosen_policies.items()
        return self.wrt, tuple(sorted(policies)), self.device, tuple(sorted(chosen)), self.sizes

    def lower(self, types: Types) -> LoweredKernel:
        """The derivative as a plan of typed units, for given types of its parameters."""
        return self._reversed(self.primal.lower(self._primal_types(types)), types)

    def lower_unresolved(self, types: Types) -> LoweredKernel:
        """As `lower`, leaving names from outside unresolved, which first calls are to resolve."""
        return self._reversed(self.primal.lower_unresolved(self._primal_types(types)), types)

    def _primal_types(self, types: Types) -> Types:
        primal: Types = {"return": types["return"]}
        for spec in self.primal.signature.parameters:
            if spec.name in types:
                primal[spec.name] = types[spec.name]
            elif spec.name in self._names.seeds:
                primal[spec.name] = types[self._names.seeds[spec.name].name]
            else:
                assert spec.dtype is not None  # an output without derivatives
                primal[spec.name] = spec.dtype
        for name in self.wrt:
            dtype = primal[name]
            if dtype == "int" or (isinstance(dtype, ir.DType) and not dtype.is_float):
                primal[name] = "float"  # an integer, given for a real number
        return primal

    def _reversed(self, lowered: LoweredKernel, types: Types) -> LoweredKernel:
        primal = _only_unit(self.primal, lowered)
        (step,) = lowered.plan.steps
        assert isinstance(step, ir.Run)
        names, specs = self._names, self.primal.signature.parameters
        tables = {spec.name for spec in names.parameters if spec.role == "array"}
        widths = {spec.name: spec.width for spec in specs if spec.width}

        def array(spec: ParameterSpec) -> ir.ArrayParameter:
            dtype = types[spec.name]
            assert isinstance(dtype, ir.DType)
            return ir.ArrayParameter(spec.name, dtype, spec.rank)

        request = Request(
            f"{primal.name}_vjp",
            {name: array(spec) for name, spec in names.seeds.items()},
            {name: array(spec) for name, spec in names.gradients.items()},
            widths,
            frozenset(tables),
            next((spec.name for spec in names.inputs if spec.role == "mask"), ""),
            self.policies,
        )
        unit = _with_given_numbers(reverse_unit(primal, request), types)
        line = self.source.source.tree.lineno
        reaches = tuple(self._reaches(step, tables, line))
        run = ir.Run(unit, *sample_overlaps(unit, tables), reaches)
        notes = tuple(dict.fromkeys(sample_notes(unit, line)))
        return self._finished(LoweredKernel(ir.Plan((run,)), (), notes), types)

    def _reaches(self, step: ir.Run, tables: set[str], line: int) -> Iterator[ir.Reach]:
        """The gradient of a table is indexed as the table is."""
        seeds = self._names.seeds
        for reach in step.reaches:
            if reach.array in seeds:
                yield replace(reach, array=seeds[reach.array].name)
        for name, spec in self._names.gradients.items():
            if name in tables:
                for axis in range(spec.rank):
                    last = ir.QuantitySum((((name, axis), 1),), -1)
                    yield ir.Reach(spec.name, axis, None, last, (), line)

    def __reduce__(self) -> str | tuple[Any, ...]:
        module, qualname = self.__module__, self.__qualname__
        if module != "__main__" and named(module, qualname) is self:
            return qualname
        return _derivative, (self.primal, *self._arguments)


@functools.lru_cache(maxsize=MADE_KEPT)
def _derivative(
    primal: Kernel,
    wrt: tuple[str, ...],
    policies: tuple[tuple[str, str], ...],
    device: str | None,
    chosen_policies: tuple[tuple[str, str], ...],
    sizes: Sizes | None = None,
) -> Derivative:
    """One object for all pickles of a derivative, so that it is compiled once."""
    return Derivative(primal, wrt, dict(policies), device, dict(chosen_policies), sizes)


def _prototype(primal: Kernel, names: _Names) -> Any:
    """A function with the name and the parameters of the derivative, which never runs."""

    def prototype() -> None:
        raise AssertionError("the derivative is compiled from its primal")

    inputs = ", ".join(name for name in names.gradients)
    prototype.__name__ = f"{primal.__name__}_vjp"
    prototype.__qualname__ = f"{primal.__qualname__}_vjp"
    prototype.__module__ = primal.__module__
    prototype.__doc__ = f"The reverse-mode derivative of {primal.__name__} by {inputs}."
    given = primal.__signature__.parameters
    prototype.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                spec.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=given[spec.name].default if spec.name in given else inspect.Parameter.empty,
                annotation=spec.annotation,
            )
            for spec in names.parameters
        ]
    )
    return prototype


def _with_given_numbers(unit: ir.Unit, types: Types) -> ir.Unit:
    """The unit with scalars of the types that calls give; floats are made of integers in it."""
    fresh = fresh_values(unit)
    parameters: list[ir.Parameter] = []
    casts: list[ir.Statement] = []
    for parameter in unit.parameters:
        dtype = types.get(parameter.name)
        held = ir.i64 if dtype == "int" else dtype
        if (
            isinstance(parameter, ir.ScalarParameter)
            and isinstance(held, ir.DType)
            and not held.is_float
            and parameter.dtype.is_float
        ):
            given = fresh(held)
            casts.append(ir.Cast(parameter.value, given))
            parameter = ir.ScalarParameter(parameter.name, given)
        parameters.append(parameter)
    return replace(unit, parameters=tuple(parameters), prologue=(*casts, *unit.prologue))
