"""Arguments of calls, as commands take them: made from shapes, or by a function of the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from .errors import CallError
from .records import record

if TYPE_CHECKING:
    from .tuning_inputs import Call, Callee


def _each_parsed(parse: str) -> Callable[[click.Context, click.Parameter, Any], list[Any]]:
    """A callback that parses each value of an option with a function of `tuning_inputs`."""

    def parsed(context: click.Context, option: click.Parameter, texts: Any) -> list[Any]:
        from . import tuning_inputs

        try:
            return [getattr(tuning_inputs, parse)(text) for text in texts]
        except CallError as error:
            raise click.BadParameter(str(error), context, option) from error

    return parsed


_OPTIONS = (
    click.option(
        "--shapes",
        "shape_lists",
        multiple=True,
        callback=_each_parsed("parse_shapes"),
        metavar="'SHAPE ...'",
        help="Make arrays of these shapes, in the order of the parameters, for example "
        "'(1024, 3) (1024,)'. Give it again for another geometry.",
    ),
    click.option(
        "--dtype",
        "dtypes",
        multiple=True,
        callback=_each_parsed("parse_dtype"),
        metavar="DTYPE",
        help="Of the arrays: float32, float64 (the default), complex64 or complex128. Give it for "
        "each array where they differ.",
    ),
    click.option(
        "--argument",
        "pairs",
        multiple=True,
        callback=_each_parsed("parse_argument"),
        metavar="NAME=VALUE",
        help="Value of a parameter that is no array, as Python spells it.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Of the random numbers from 0 to 1 in the arrays.",
    ),
    click.option(
        "--data",
        "functions",
        multiple=True,
        metavar="MODULE:FUNCTION",
        help="Take the arguments from this function: it returns those of a call, as a tuple or a "
        "dict, or a list or generator of these. For integer arrays, and wherever the time depends "
        "on values.",
    ),
)


def argument_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that `checked` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@record
class Wanted:
    """For which arguments something is measured."""

    shape_lists: Sequence[Any]
    dtypes: Sequence[Any]
    values: Mapping[str, Any]
    seed: int
    functions: Sequence[str]

    def calls(self, callee: Callee) -> Iterator[tuple[str, Call]]:
        """The arguments of each call, and where they come from.

        Raises
        ------
        CallError
            When these are no arguments of `callee`; made ones are checked before this returns.
        """
        return self._given(callee) if self.functions else self._made(callee)

    def _given(self, callee: Callee) -> Iterator[tuple[str, Call]]:
        from .tuning_inputs import given_calls

        for function in self.functions:
            for call in given_calls(callee, function):
                yield f"from {function}", call

    def _made(self, callee: Callee) -> Iterator[tuple[str, Call]]:
        import numpy as np

        from .tuning_inputs import filled, planned_call

        dtypes = self.dtypes or [np.dtype(np.float64)]
        # All are checked before the first one, which may take long, is measured.
        planned = [
            planned_call(callee, shapes, dtypes, self.values) for shapes in self.shape_lists or [()]
        ]
        origin = f"random numbers from 0 to 1, seed {self.seed}" if self.shape_lists else "given"
        return ((origin, filled(each, self.seed)) for each in planned)


def checked(
    context: click.Context,
    shape_lists: Sequence[Any],
    dtypes: Sequence[Any],
    pairs: Sequence[tuple[str, Any]],
    seed: int,
    functions: Sequence[str],
) -> Wanted:
    """Check that the options of a command go together.

    Raises
    ------
    click.UsageError
        Where they do not.
    """
    if functions:
        for option in ("shape_lists", "dtypes", "pairs", "seed"):
            _refuse_beside_data(context, option)
    elif not (shape_lists or pairs):
        raise click.UsageError(
            "say for which arguments: --shapes '(1024, 3) (1024,)', or --data MODULE:FUNCTION"
        )
    values = dict(pairs)
    if len(values) < len(pairs):
        raise click.UsageError("--argument gives one parameter two values")
    return Wanted(shape_lists, dtypes, values, seed, functions)


def _refuse_beside_data(context: click.Context, name: str) -> None:
    if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
        option = next(each for each in context.command.params if each.name == name)
        raise click.UsageError(f"--data gives all arguments: leave out {option.opts[0]}")
