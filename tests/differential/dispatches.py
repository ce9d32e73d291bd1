"""Kernels made of dispatches, and launches between which classes change.

Every selector is also an output of its kernel, so that NumPy can count what each launch does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import note
from hypothesis import strategies as st

from .grammar import Draw, Expression, Features, Grammar, Scope
from .harness import assert_same, kernel
from .inputs import LARGE, SMALL, Arguments, values
from .kinds import FLOATS, INTEGERS
from .oracle import call
from .programs import Parameter, Program

MAXIMUM_CLASSES = 12
"""Of all dispatches of a kernel together: each class is a unit of its own."""


@dataclass(frozen=True)
class Group:
    """A dispatch: its name, the output that holds its selector, and the number of its branches."""

    name: str
    selector: str
    branches: int

    @property
    def mix(self) -> str:
        return f"{self.name}_mix"


class _Branches(Grammar):
    """The grammar, whose own dispatches leave the policy to the kernel while classes are left."""

    classes = 1

    def dispatch(self, kind: str, a: str, b: str, depth: int) -> str:
        text = super().dispatch(kind, a, b, depth)
        # At most four branches.
        if self.classes * 4 > MAXIMUM_CLASSES or self.number(0, 1):
            return text.replace("policy=POLICY", f"policy={self.pick(('switch', 'predicated'))!r}")
        self.classes *= 4
        return text

    def selector(self, planes: list[str]) -> Expression:
        """An integer of any type and size: a plane, what is computed, the place of the sample."""
        match self.pick(("plane", "plane", "plane", "value", "index", "place")):
            case "value":
                kind = self.pick(INTEGERS)
                return Expression(self.value(kind, 2), kind)
            case "index":
                return Expression(f"tm.index({self.value(self.pick(FLOATS), 1)}, 5)", "i64")
            case "place":
                return Expression(f"(tm.sample_index() + {self.value('i8', 1)})", "i64")
            case _:
                name = self.pick(planes)
                return Expression(name, self.scope.variables[name].kind)


@st.composite
def dispatch_programs(
    draw: Draw, features: Features | None = None
) -> tuple[Program, tuple[Group, ...]]:
    """A per-sample kernel of one to three groups, some of which depend on others."""
    features = features or Features(math=True)
    grammar = _Branches(draw, features, Scope())
    width = grammar.pick(FLOATS)
    parameters = [Parameter("x", "plane", width, "Scalar")]
    parameters += [_classes(grammar, f"n{number}") for number in range(grammar.number(1, 2))]
    # State: read before it is written, so that a launch changes the classes of the next one.
    state = [
        Parameter("y", "plane", width, "Mutable[Scalar]", is_output=True),
        _classes(grammar, "m", is_output=True),
    ]
    for parameter in (*parameters, *state):
        grammar.scope.variables[parameter.name] = Expression(parameter.name, parameter.kind)
    planes = [p.name for p in (*parameters, *state) if p.name[0] in "nm"]

    lines: list[str] = []
    groups: list[Group] = []
    selectors: list[Parameter] = []
    for number in range(grammar.number(1, 3)):
        most = min(4, MAXIMUM_CLASSES // grammar.classes)
        if most < 2:
            break
        group = Group(f"group{number}", f"s{number}", grammar.number(2, most))
        grammar.classes *= group.branches
        selector = grammar.selector(planes)
        kind, result = selector.kind, grammar.pick((width, grammar.pick(INTEGERS)))
        # A dispatch disappears where all its branches are one value.
        branches = [grammar.literal(result)]
        branches += [grammar.value(result, 2) for _ in range(1, group.branches)]
        lines += [
            f"c{number} = {kind}({selector.text})",
            f"d{number} = tm.dispatch(c{number}, [{', '.join(branches)}], "
            f"policy=POLICY, name={group.name!r})",
            f"{group.selector} = c{number}",
        ]
        grammar.scope.variables[f"d{number}"] = Expression(f"d{number}", result)
        annotation = f"Mutable[Index[{kind}]]"
        selectors.append(Parameter(group.selector, "plane", kind, annotation, is_output=True))
        groups.append(group)
    lines += [f"{p.name}_new = {grammar.value(p.kind, 2)}" for p in state]
    lines += [f"{p.name} = {p.name}_new" for p in state]
    # A dispatch that nothing depends on disappears.
    lines.append(f"used = {' + '.join(f'f64(d{number})' for number in range(len(groups)))}")
    used = Parameter("used", "plane", "f64", "Mutable[Scalar[f64]]", is_output=True)
    outputs = [*state, *selectors, used]
    if grammar.number(0, 2) == 2:
        outputs.append(Parameter("done", "mask", "bool_", "Terminated", is_output=True))
        lines.append(f"done = {grammar.value('bool_', 1)}")
    parameters += outputs
    header = ", ".join(f"{p.name}: {p.annotation}" for p in parameters)
    source = "\n".join(["@kernel", f"def generated({header}):", *("    " + x for x in lines), ""])
    program = Program("sample", source, tuple(parameters), tuple(p.name for p in outputs))
    return program, tuple(groups)


def _classes(grammar: Grammar, name: str, is_output: bool = False) -> Parameter:
    kind = grammar.pick(INTEGERS)
    shown = f"Index[{kind}]"
    return Parameter(name, "plane", kind, f"Mutable[{shown}]" if is_output else shown, is_output)


def check_launches(data: st.DataObject, policy: str, device: str) -> None:
    """Launches of one kernel, with arrays that are changed in between, beside those of a switch."""
    program, groups = data.draw(dispatch_programs())
    switch, made = kernel(program), kernel(program, policy=policy)
    n, seed = data.draw(st.sampled_from(SMALL + LARGE)), data.draw(st.integers(0, 2**16))
    arrays = {p.name: values(p.kind, (n,), seed + i) for i, p in enumerate(program.parameters)}
    # Counters start anywhere, and wrap; what is behind them stays.
    counters = {group.mix: values("u32", (group.branches + 2,), seed) for group in groups}
    for steps, part, is_counted in data.draw(st.lists(_LAUNCHES, min_size=1, max_size=5)):
        mutate(program, arrays, part, seed := seed + 1)
        note(f"{steps} steps{', counted,' if is_counted else ''} with {arrays!r}")
        expected = {**arrays, **counters}
        for _ in range(steps):
            before = {name: expected[name] for name in arrays}
            after = call(switch, before, device)
            expected = {**after, **counted(groups, before, after, expected)}
        options = {} if steps == 1 else {"steps": steps}
        found = call(made, {**arrays, **(counters if is_counted else {})}, device, **options)
        assert_same(found, expected, f"{policy} and switch on {device}")
        arrays = {name: expected[name] for name in arrays}
        if is_counted:
            counters = {name: expected[name] for name in counters}


_LAUNCHES = st.tuples(
    st.sampled_from((1, 1, 1, 0, 2, 3)),
    st.sampled_from((0.0, 0.002, 0.04, 0.06, 0.5, 1.0)),
    st.booleans(),
)
"""The steps of a launch, the part of the samples whose classes change before it, and whether
branches are counted."""


def mutate(program: Program, arrays: Arguments, part: float, seed: int) -> None:
    """Give other values to the integers and the masks of some samples."""
    random = np.random.default_rng(seed)
    for parameter in program.parameters:
        if parameter.kind in (*INTEGERS, "bool_"):
            array = arrays[parameter.name]
            chosen = random.random(array.shape) < part
            arrays[parameter.name] = np.where(
                chosen, values(parameter.kind, array.shape, seed), array
            )


def counted(
    groups: tuple[Group, ...], before: Arguments, after: Arguments, counters: Arguments
) -> Arguments:
    """The counters after a step, by NumPy."""
    runs = ~before["done"] if "done" in before else slice(None)
    found = {}
    for group in groups:
        classes = np.clip(after[group.selector][runs], 0, group.branches - 1).astype(np.int64)
        taken = np.bincount(classes, minlength=counters[group.mix].size)
        found[group.mix] = counters[group.mix] + taken.astype(np.uint32)
    return found
