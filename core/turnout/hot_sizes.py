"""Kernels that specialise themselves for the sizes that they are called with most.

With ``@turnout.kernel(specialise_after=1000)`` the calls of a kernel are counted by the shapes of
their arrays. Shapes that came so often get an operation of `turnout.perf_dispatch` of their own,
with two implementations: the kernel as it is, and the kernel for these shapes. Both compute the
same bits, so the program's own calls are the trials. Where the second one is faster its native
entry goes in front of the others, so that such calls are as short as those of any kernel.

Few shapes are looked at, and not for ever: then calls go the way that they have without all this.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from .backends import active_name
from .discovery import CORE
from .errors import KernelError
from .explain import Explanation
from .kernel import Executable, Kernel
from .perf import PerformanceDispatcher, perf_dispatch
from .signatures import prototype_like

MOST_SIZES = 8
"""Shapes of a kernel that code is made for, per combination of types."""

MOST_COUNTED = 1024
"""Shapes that are counted at one time; where more come, counting begins anew."""

CALLS_WATCHED = 64
"""Times ``specialise_after``: calls after which no further shapes are looked for."""

ANY_SIZE, THIS_SIZE = "any-size", "this-size"
"""The names of the implementations."""

Form = Callable[..., Any]
Shapes = tuple[tuple[int, ...], ...]


def watched(kernel: Kernel, executable: Executable) -> Executable | Watched:
    """What runs the calls of a kernel that is to specialise itself.

    Parameters
    ----------
    kernel : Kernel
    executable : Executable
        Of `kernel`, for arrays of any shape.

    Returns
    -------
    Executable or Watched
        `executable` where there is nothing to gain: no arrays, several steps in a call, or the
        reference backend, whose speed says nothing.
    """
    has_arrays = any(spec.rank for spec in kernel.signature.parameters)
    is_reference = executable.context.backend.distribution == CORE
    if not has_arrays or kernel.steps != 1 or is_reference:
        return executable
    return Watched(kernel, executable)


class Watched:
    """Counts calls by the shapes of their arrays, and runs those of each shape by its best form."""

    has_asked_for_entry = False

    def __init__(self, kernel: Kernel, executable: Executable) -> None:
        self.kernel = kernel
        self.executable = executable
        specs = kernel.signature.parameters
        self._arrays = [(place, spec.name) for place, spec in enumerate(specs) if spec.rank]
        self._counts: dict[Hashable, int] = {}
        # What runs calls of shapes that became hot; None for what runs those of any shapes.
        self._forms: dict[Hashable, Form | None] = {}
        self._operations: dict[Hashable, PerformanceDispatcher[..., Any]] = {}
        self._calls_left = CALLS_WATCHED * kernel.specialise_after

    def __call__(
        self,
        values: Sequence[Any],
        samples: int | None,
        steps: int,
        counters: Sequence[Any] = (),
    ) -> Any:
        if samples is not None or steps != 1 or counters:
            return self.executable(values, samples, steps, counters)
        shapes = self._shapes(values)
        form = self._forms.get(shapes)
        if form is not None:
            return form(*values)
        result = self.executable(values, None, 1)
        self._count(shapes)
        return result

    def _shapes(self, values: Sequence[Any]) -> Shapes:
        return tuple([values[place].shape for place, _ in self._arrays])

    def _count(self, shapes: Shapes) -> None:
        """Count a call that any size has; where that is enough, let the next ones be trials."""
        if self._calls_left <= 0 or shapes in self._forms:
            return
        self._calls_left -= 1
        count = self._counts.pop(shapes, 0) + 1
        if count < self.kernel.specialise_after:
            if len(self._counts) >= MOST_COUNTED:
                self._counts.clear()
            self._counts[shapes] = count
            return
        with self.kernel._lock:
            if shapes not in self._forms:
                self._forms[shapes] = self._trial(shapes)

    def _trial(self, shapes: Shapes) -> Form:
        """A form that finds out which one is best for shapes, which then takes its place."""
        kernel = self.kernel
        names = [name for _, name in self._arrays]
        sizes: dict[str, Any] = dict(zip(names, shapes, strict=True))
        variant = kernel.specialise(**sizes)
        operation = self._operations[shapes] = self._operation(variant)
        if len(self._operations) == MOST_SIZES:
            self._calls_left = 0

        arguments = kernel.binder.arguments

        def trial(*values: Any) -> Any:
            args, keywords = arguments(values)
            result = operation(*args, **keywords)
            decision = operation.decision(*args, **keywords)
            if decision is not None and decision.chosen is not None:
                self._decide(shapes, variant, values, decision.chosen)
            return result

        return trial

    def _decide(self, shapes: Shapes, variant: Kernel, values: Sequence[Any], chosen: str) -> None:
        self._forms[shapes] = None
        if chosen == THIS_SIZE:
            context = self.executable.context
            self._forms[shapes] = self._spread(variant.on(context.name))
            self.kernel.put_in_front(variant.found(context, values), values)

    def _spread(self, form: Form) -> Form:
        """A form that takes the values of all parameters by position."""
        binder = self.kernel.binder
        if not binder.has_keywords:
            return form

        def spread(*values: Any) -> Any:
            args, keywords = binder.arguments(values)
            return form(*args, **keywords)

        return spread

    def _operation(self, variant: Kernel) -> PerformanceDispatcher[..., Any]:
        kernel, context = self.kernel, self.executable.context
        types = tuple(str(dtype) for dtype in self.executable.types.values())
        assert variant.sizes is not None
        prototype = prototype_like(kernel, f"[{variant.sizes.name}]")
        geometry = (context.name, *types)
        operation = perf_dispatch(get_geometry_hash=lambda *_, **__: geometry, active="auto")(
            prototype
        )
        device = context.name
        operation.register(name=ANY_SIZE)(kernel._varied(specialise_after=0, device=device))
        operation.register(name=THIS_SIZE)(variant.on(device))
        return operation

    def explain(self, values: Sequence[Any]) -> Explanation:
        """What is known about calls of the shapes of `values`."""
        shapes = self._shapes(values)
        operation = self._operations.get(shapes)
        if operation is None:
            shown = ", ".join(
                f"{name}={shape}" for (_, name), shape in zip(self._arrays, shapes, strict=True)
            )
            raise KernelError(
                f"kernel {self.kernel.__name__} was not called often enough with {shown} to be "
                f"specialised for that: {self._counts.get(shapes, 0)} calls were counted, "
                f"{self.kernel.specialise_after} are needed"
            )
        args, keywords = self.kernel.binder.arguments(values)
        return operation.explain(*args, **keywords)

    def native_entry(self, values: Sequence[Any], fallback: Form) -> Form | None:
        """A short way for calls with arrays of NumPy; `fallback` for all others."""
        native = self.executable.native_entry(values, fallback)
        context = self.executable.context
        if native is None or not context.is_host:
            return native
        is_pinned = self.kernel.device is not None
        binder = self.kernel.binder
        parameters = self.kernel.__signature__.parameters.keys()
        places = [place for place, _ in self._arrays]
        forms, name = self._forms, context.name
        types = [type(value) for value in values]

        def count_call(shapes: Shapes) -> None:
            self._count(shapes)
            if self._calls_left <= 0 and not forms:
                # No shapes have become hot, so calls pass by what counts them.
                self.kernel.replace_entry(made, native)

        def entry(*args: Any, **keywords: Any) -> Any:
            if not (is_pinned or active_name() == name):
                return native(*args, **keywords)
            given: Sequence[Any] = args
            if keywords or len(args) != binder.count:
                if not parameters >= keywords.keys():
                    return native(*args, **keywords)
                given = binder(args, keywords)
            if [type(value) for value in given] != types:
                return native(*args, **keywords)
            shapes = tuple([given[place].shape for place in places])
            form = forms.get(shapes)
            if form is not None:
                return form(*given)
            result = native(*args, **keywords)
            count_call(shapes)
            return result

        made = staticmethod(entry)  # what stands in a class is not to become a method
        return made
