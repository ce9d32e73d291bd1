"""`dispatch_units`: the units of segmented kernels, for those who sort samples themselves."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from . import ir
from .arguments import Types
from .digests import sha256
from .errors import KernelError
from .ir import i64
from .ir.transform import fresh_values, rewritten
from .kernel import Kernel
from .lang import (
    SAMPLES,
    KernelSource,
    LoweredKernel,
    ParameterSpec,
    Returned,
    Signature,
    sample_overlaps,
)
from .lower import segmented_groups
from .pickling import MADE_KEPT, Definition, named
from .segmentation import ExtraNames, Segmentation, over_a_list, split
from .selectors import possible_lowering, selector_reads, written_arrays


def dispatch_units(kernel: Kernel) -> dict[str, Kernel]:
    """The units that a kernel with segmented dispatches is made of, to be run by hand.

    Calling the kernel does all of this by itself. By hand it pays where samples are kept sorted by
    class over many calls, or where something else is done between the units.

    Parameters
    ----------
    kernel : Kernel
        Of the per-sample form, with at least one dispatch whose policy is ``"segmented"``.

    Returns
    -------
    dict of str to Kernel
        ``<kernel>__k0``, ``<kernel>__k1`` and so on, one per class, and ``<kernel>__cls``. Each is
        called with keywords, the parameters of `kernel` that it needs, ``returned0`` and so on for
        the arrays that `kernel` returns, and these, in whose names
        the dispatch is called ``dispatch0``; of several, the names are joined by underscores, and
        the class of the first one counts most:

        ``dispatch0_class`` : array of int64
            ``<kernel>__cls`` writes the class of each sample there.
        ``dispatch0_offsets`` : array of int64
            Where each class begins in the order of the samples, and the end.
        ``dispatch0_order`` : array of int64, optional
            The samples in the order of their classes; without it they lie in that order already.

        Where the kernel writes what the class depends on, the units of classes look at the class
        again, leave samples alone that now have another one, and also take

        ``dispatch0_class`` : array of int64
            The class that each sample of the unit has now.
        ``dispatch0_stale`` : array of bool
            Whether it is another one than that of the unit, so that it is still to be done.

    Raises
    ------
    KernelError
        For a kernel that is not segmented, or cannot be.

    Examples
    --------
    >>> import numpy as np, turnout as tn, turnout.math as tm
    >>> from turnout import Index, Mutable, Scalar
    >>> @tn.kernel
    ... def law(regime: Index, v: Scalar, out: Mutable[Scalar]):
    ...     out = tm.dispatch(regime, [v, v * v], policy="segmented")
    >>> units = tn.dispatch_units(law)
    >>> list(units)
    ['law__k0', 'law__k1', 'law__cls']
    >>> classes = np.empty(4, np.int64)
    >>> units["law__cls"](regime=np.array([1, 0, 1, -3]), dispatch0_class=classes)
    >>> classes
    array([1, 0, 1, 0])
    >>> order, out = np.argsort(classes, kind="stable"), np.zeros(4)
    >>> offsets = np.array([0, 2, 4])
    >>> v = np.array([5.0, 6.0, 7.0, 8.0])
    >>> units["law__k1"](v=v, out=out, dispatch0_offsets=offsets, dispatch0_order=order)
    >>> out
    array([25.,  0., 49.,  0.])
    """
    if not isinstance(kernel, Kernel):
        raise KernelError(
            f"dispatch_units takes a kernel (turnout.kernel), not {type(kernel).__name__}"
        )
    if kernel.signature.form != "sample":
        raise KernelError(
            f"dispatch_units takes kernels of the per-sample form, and {kernel.__name__} is of the "
            "array form"
        )
    if kernel.sizes:
        raise KernelError(
            f"dispatch_units takes kernels for all sizes, and {kernel.__name__} is specialised for "
            f"{kernel.sizes}; give the kernel that it was made of"
        )
    _, lowered = possible_lowering(kernel)
    parts = _split(kernel, lowered)
    name = kernel.__name__
    numbers: list[int | None] = [*range(parts.classes), None]
    return {
        f"{name}__cls" if number is None else f"{name}__k{number}": _unit(kernel, number)
        for number in numbers
    }


def _split(kernel: Kernel, lowered: LoweredKernel) -> Segmentation:
    (run,) = lowered.plan.runs
    groups = segmented_groups(run.unit)
    if not groups:
        raise KernelError(
            f"dispatch_units: {kernel.__name__} has no dispatch whose policy is 'segmented'; "
            "declare it, or choose it for one that is 'auto' with turnout.resolve_dispatch"
        )
    return split(run.unit, groups, ExtraNames.without(p.name for p in run.unit.parameters))


class DispatchUnit(Kernel):
    """One unit of a segmented kernel; made by `dispatch_units`.

    Attributes
    ----------
    primal : Kernel
        The whole kernel.
    number : int or None
        Whose samples it runs; None for the one that finds out the classes.
    classes : int
        How many classes there are.
    prefix : str
        What its own parameters are called after.
    is_guarded : bool
        Whether it looks at the class of each sample again.
    """

    def __init__(self, primal: Kernel, number: int | None, device: str | None = None) -> None:
        self.primal = primal
        self.number = number
        _, lowered = possible_lowering(primal)
        self.is_guarded = number is not None and not _is_static(primal, lowered)
        needed = {p.name for p in self._whole(lowered).parameters}
        own = tuple(spec for spec in primal.signature.parameters if spec.name in needed)
        own += tuple(_as_parameter(each) for each in lowered.returned if each.name in needed)
        parts = _split(primal, lowered)
        self.classes, self.prefix = parts.classes, "_".join(parts.groups)
        super().__init__(
            _prototype(primal, self._suffix, (*own, *self._extra_specs())),
            fastmath=primal.fastmath,
            debug=primal.debug,
            lines=primal._lines,
            signature=Signature("sample", (*own, *self._extra_specs()), ()),
            constants=primal.constants,
            device=device,
        )

    @property
    def _suffix(self) -> str:
        return "cls" if self.number is None else f"k{self.number}"

    def _extra_specs(self) -> tuple[ParameterSpec, ...]:
        def plane(name: str, dtype: ir.DType) -> ParameterSpec:
            shown = f"Mutable[Scalar[{dtype}]]"
            return ParameterSpec(
                f"{self.prefix}_{name}", "plane", dtype, 1, is_output=True, annotation=shown
            )

        def table(name: str) -> ParameterSpec:
            return ParameterSpec(
                f"{self.prefix}_{name}", "array", i64, 1, annotation="NDArray[i64, 1]"
            )

        if self.number is None:
            return (plane("class", i64),)
        stale = (plane("class", i64), plane("stale", ir.bool_)) if self.is_guarded else ()
        return (*stale, table("offsets"), table("order"))

    @property
    def source(self) -> KernelSource:
        """That of the whole kernel."""
        return self.primal.source

    @functools.cached_property
    def definition(self) -> Definition:
        """That of the whole kernel, with a digest that also says which unit it is."""
        whole = self.primal.definition
        digest = sha256(f"{whole.digest} {self._suffix} {self.device}".encode()).hexdigest()
        return replace(whole, digest=digest, name=self.__name__, qualname=self.__qualname__)

    def with_constants(self, /, **values: Any) -> Kernel:
        """The unit of the kernel with other values for names that it takes from outside."""
        return _unit(self.primal.with_constants(**values), self.number, self.device)

    def specialise(self, /, *, samples: int | None = None, **sizes: Any) -> Kernel:
        """Refused: how many samples a unit has differs from call to call."""
        raise KernelError(f"{self.__name__} is a unit of dispatch_units, which is for all sizes")

    def _varied(self, **changed: Any) -> Kernel:
        return DispatchUnit(self.primal, self.number, **{"device": self.device, **changed})

    def lower(self, types: Types) -> LoweredKernel:
        """The unit as a plan, for given types of its parameters."""
        return self._part(self.primal.lower(self._primal_types(types)))

    def lower_unresolved(self, types: Types) -> LoweredKernel:
        """As `lower`, leaving names from outside unresolved, which first calls are to resolve."""
        return self._part(self.primal.lower_unresolved(self._primal_types(types)))

    def _primal_types(self, types: Types) -> Types:
        """Types of all parameters of the whole kernel; those of others follow those of its own."""
        default, _ = possible_lowering(self.primal)
        own = {spec.name for spec in self.primal.signature.parameters}
        widths = [
            dtype
            for spec in self.signature.parameters
            if spec.follows_width and isinstance(dtype := types[spec.name], ir.DType)
        ]
        if widths:
            typical = self.primal.default_types(widths[0])
            follow = (s.name for s in self.primal.signature.parameters if s.follows_width)
            default = {**default, **{name: typical[name] for name in (*follow, "return")}}
        return {**default, **{name: dtype for name, dtype in types.items() if name in own}}

    # -- what the unit is made of ----------------------------------------------------------------

    def _whole(self, lowered: LoweredKernel) -> ir.Unit:
        """The unit over an index list that it is made of."""
        parts = _split(self.primal, lowered)
        if self.number is None:
            return parts.classify
        return (parts.guarded if self.is_guarded else parts.branches)[self.number]

    def _part(self, lowered: LoweredKernel) -> LoweredKernel:
        (run,) = lowered.plan.runs
        parts = _split(self.primal, lowered)
        names = ExtraNames.without(p.name for p in run.unit.parameters)
        classes, stale = f"{self.prefix}_class", f"{self.prefix}_stale"
        if self.number is None:
            units = [_with_wide_classes(parts.classify, names.classes, classes)]
        elif not self.is_guarded:
            units = [self._over_offsets(parts.branches[self.number], names)]
        else:
            look = over_a_list(parts.classify, f"{self.__name__}__look", names)
            look = _with_wide_classes(look, names.classes, classes)
            look = _with_stale(look, classes, stale, self.number, self._mask)
            guarded = _with_wide_classes(parts.guarded[self.number], names.now, classes)
            units = [self._over_offsets(unit, names) for unit in (look, guarded)]
        tables = {spec.name for spec in self.signature.parameters if spec.role == "array"}
        steps = (ir.Run(unit, *sample_overlaps(unit, tables)) for unit in units)
        return LoweredKernel(ir.Plan(tuple(steps)), (), lowered.notes)

    @property
    def _mask(self) -> str:
        specs = self.primal.signature.parameters
        return next((spec.name for spec in specs if spec.role == "mask"), "")

    def _over_offsets(self, unit: ir.Unit, names: ExtraNames) -> ir.Unit:
        assert self.number is not None
        order, offsets = f"{self.prefix}_order", f"{self.prefix}_offsets"
        return _over_offsets(unit, names, self.number, order, offsets)

    def __reduce__(self) -> str | tuple[Any, ...]:
        module, qualname = self.__module__, self.__qualname__
        if module != "__main__" and named(module, qualname) is self:
            return qualname
        return _unit, (self.primal, self.number, self.device)


@functools.lru_cache(maxsize=MADE_KEPT)
def _unit(primal: Kernel, number: int | None, device: str | None = None) -> DispatchUnit:
    """One object for all that ask, so that it is compiled once."""
    return DispatchUnit(primal, number, device)


def _is_static(kernel: Kernel, lowered: LoweredKernel) -> bool:
    """Whether calls of the kernel write nothing that its segmented dispatches depend on."""
    (run,) = lowered.plan.runs
    reads = selector_reads(lowered.plan, kernel.signature)
    read = {name for group in segmented_groups(run.unit) for _, name in reads[group]}
    return read.isdisjoint(written_arrays(lowered.plan))


def _as_parameter(returned: Returned) -> ParameterSpec:
    """What the kernel returns, as an output that the caller of a unit gives."""
    dtype, width = returned.dtype, returned.width
    pinned = None if dtype.is_float else dtype
    inner = f"Vector[{width}]" if width else f"Scalar[{dtype}]" if pinned else "Scalar"
    rank, shown = 2 if width else 1, f"Mutable[{inner}]"
    return ParameterSpec(returned.name, "plane", pinned, rank, width, True, shown)


def _prototype(primal: Kernel, suffix: str, specs: Sequence[ParameterSpec]) -> Any:
    """A function with the name and the parameters of a unit, which never runs."""

    def prototype() -> None:
        raise AssertionError("the unit is compiled from the whole kernel")

    prototype.__name__ = f"{primal.__name__}__{suffix}"
    prototype.__qualname__ = f"{primal.__qualname__}__{suffix}"
    prototype.__module__ = primal.__module__
    prototype.__doc__ = f"A unit of {primal.__name__}; see turnout.dispatch_units."
    given = primal.__signature__.parameters
    none = np.empty(0, np.int64)
    prototype.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                spec.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=given[spec.name].default
                if spec.name in given
                else (none if spec.name.endswith("_order") else inspect.Parameter.empty),
                annotation=spec.annotation,
            )
            for spec in specs
        ]
    )
    return prototype


# -- transforms of units ---------------------------------------------------------------------------


def _with_wide_classes(unit: ir.Unit, array: str, name: str) -> ir.Unit:
    """The unit with classes in an array of i64 of another name."""
    fresh = fresh_values(unit)

    def change(statement: ir.Statement, rebuilt: ir.Statement) -> Iterable[ir.Statement]:
        wide = fresh(i64)
        match statement:
            case ir.Load(result, loaded, indices) if loaded == array:
                return ir.Load(wide, name, indices), ir.Cast(result, wide)
            case ir.Store(stored, indices, value) if stored == array:
                return ir.Cast(wide, value), ir.Store(name, indices, wide)
        return (rebuilt,)

    parameters = tuple(
        replace(p, name=name, dtype=i64)
        if p.name == array and isinstance(p, ir.ArrayParameter)
        else p
        for p in unit.parameters
    )
    return replace(unit, parameters=parameters, body=rewritten(unit.body, change))


def _with_stale(unit: ir.Unit, classes: str, stale: str, number: int, mask: str) -> ir.Unit:
    """The unit that also tells where a class is not `number`; what `mask` skips keeps its marks."""
    fresh = fresh_values(unit)

    def change(statement: ir.Statement, rebuilt: ir.Statement) -> Iterable[ir.Statement]:
        if not (isinstance(statement, ir.Store) and statement.array == classes):
            return (rebuilt,)
        own, differs = fresh(i64), fresh(ir.bool_)
        marks: tuple[ir.Statement, ...] = (
            ir.Constant(own, number),
            ir.Compute(differs, "not_equal", (statement.value, own)),
            statement,
            ir.Store(stale, statement.indices, differs),
        )
        if not mask:
            return marks
        skipped = fresh(ir.bool_)
        skip, mark = ir.Region((), ()), ir.Region((), marks)
        load = ir.Load(skipped, mask, statement.indices)
        return load, ir.If((), skipped, skip, mark)

    parameters = [*unit.parameters, ir.ArrayParameter(stale, ir.bool_, 1, False, True)]
    if mask and mask not in unit.arrays:
        parameters.append(ir.ArrayParameter(mask, ir.bool_, 1))
    return replace(unit, parameters=tuple(parameters), body=rewritten(unit.body, change))


def _over_offsets(
    unit: ir.Unit, names: ExtraNames, number: int, order: str, offsets: str
) -> ir.Unit:
    """A unit over an index list as one over the samples of a class.

    It goes through as many places as there are samples, which is known before a launch, and stops
    where the class does.
    """
    fresh = fresh_values(unit)
    scalars = {p.name: p.value for p in unit.parameters if isinstance(p, ir.ScalarParameter)}
    start, count = scalars[names.start], scalars[names.count]
    samples = scalars.get(SAMPLES) or fresh(i64)
    first, last, end = fresh(i64), fresh(i64), fresh(i64)
    length, zero, has_order = fresh(i64), fresh(i64), fresh(ir.bool_)
    prologue: tuple[ir.Statement, ...] = (
        ir.Constant(first, number),
        ir.Constant(last, number + 1),
        ir.Load(start, offsets, (first,)),
        ir.Load(end, offsets, (last,)),
        ir.Compute(count, "subtract", (end, start)),
        ir.Extent(length, order, 0),
        ir.Constant(zero, 0),
        ir.Compute(has_order, "greater", (length, zero)),
    )

    def change(statement: ir.Statement, rebuilt: ir.Statement) -> Iterable[ir.Statement]:
        if not (isinstance(statement, ir.Load) and statement.array == names.order):
            return (rebuilt,)
        listed = fresh(i64)
        load = ir.Load(listed, order, statement.indices)
        listing = ir.Region((), (load,), (listed,))
        return (
            ir.If((statement.result,), has_order, listing, ir.Region((), (), statement.indices)),
        )

    body = rewritten(unit.body, change)
    (place,) = body.parameters
    is_inside = fresh(ir.bool_)
    guarded = (
        ir.Compute(is_inside, "less", (place, count)),
        ir.If((), is_inside, ir.Region((), body.body), ir.Region((), ())),
    )
    extra = {names.order, names.start, names.count, SAMPLES}
    own = tuple(p for p in unit.parameters if p.name not in extra)
    made = replace(
        unit,
        parameters=(
            *own,
            ir.ArrayParameter(offsets, i64, 1),
            ir.ArrayParameter(order, i64, 1),
            ir.ScalarParameter(SAMPLES, samples),
        ),
        prologue=(*unit.prologue, *prologue),
        extents=(samples,),
        body=ir.Region((place,), guarded),
    )
    ir.verify(made)
    return made
