"""What is known about one operation and one geometry: data, which prints as a table."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .ranking import median, quartiles
from .records import record
from .trials import C, TrialPlan
from .tuning import Case, Examined

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = ("implementation", "median", "quartiles", "samples", "warm-ups", "")


@record
class ExplainedImplementation:
    """What is known of one implementation.

    Attributes
    ----------
    name : str
    is_chosen : bool
        Whether it is in use.
    refusal : str or None
        Why it is not tried: it is not compatible with these arguments, or it failed.
    warmups : int
        Untimed runs in the current evaluation.
    samples_ns : tuple of int
        Recent samples in nanoseconds, in the order they were taken.
    """

    name: str
    is_chosen: bool
    refusal: str | None
    warmups: int
    samples_ns: tuple[int, ...]

    @property
    def median_ns(self) -> float | None:
        """The median of the samples; None where there are none."""
        return median(self.samples_ns) if self.samples_ns else None

    @property
    def quartiles_ns(self) -> tuple[float, float] | None:
        """The values between which the middle half of the samples lies."""
        return quartiles(self.samples_ns) if self.samples_ns else None


@record
class Explanation:
    """All that is known of an operation for some arguments; ``print`` shows it as a table.

    Attributes
    ----------
    operation : str
    geometry : hashable
        The key under which all this is remembered.
    implementations : tuple of ExplainedImplementation
        In order of registration.
    chosen : str or None
        The implementation in use; None as long as there was no decision.
    reason : str
        Why it was chosen, or how far the trials are.
    source : str or None
        ``"measured"`` by this process, ``"remembered"`` from earlier ones, or ``"given"`` without
        measuring; None when nothing is known.
    exploration_share : float or None
        The share of the time spent in this operation, with this geometry, that measuring again took
        up to now; None where calls are not counted because the user gave a schedule.
    regime : str
        What the samples are times of.
    """

    operation: str
    geometry: Hashable
    implementations: tuple[ExplainedImplementation, ...]
    chosen: str | None
    reason: str
    source: str | None
    exploration_share: float | None
    regime: str

    def __str__(self) -> str:
        rows = [_COLUMNS, *(_row(each) for each in self.implementations)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([self._title(), *lines, *self._remarks()])

    def __rich__(self) -> Table:
        """Return the table that `rich` prints."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        # Texts, because square brackets in names and geometries are no markup.
        caption = Text("\n".join(self._remarks()))
        table = Table(title=Text(self._title()), caption=caption, box=SIMPLE_HEAD)
        for column in _COLUMNS:
            table.add_column(column)
        for each in self.implementations:
            table.add_row(*map(Text, _row(each)), style="bold" if each.is_chosen else None)
        return table

    def _title(self) -> str:
        return f"{self.operation}, geometry {self.geometry!r}"

    def _remarks(self) -> list[str]:
        chosen = "not decided yet" if self.chosen is None else f"{self.chosen!r} is in use"
        source = "" if self.source is None else f" ({self.source})"
        lines = [f"{chosen}{source}: {self.reason}", f"samples: {self.regime}"]
        if self.exploration_share is not None:
            lines.append(f"measuring again took {self.exploration_share:.1%} of the time")
        return lines


def _row(each: ExplainedImplementation) -> Sequence[str]:
    remark = each.refusal or ("in use" if each.is_chosen else "")
    if each.quartiles_ns is None or each.median_ns is None:
        return each.name, "", "", "0", str(each.warmups), remark
    low, high = map(duration, each.quartiles_ns)
    count = str(len(each.samples_ns))
    return each.name, duration(each.median_ns), f"{low} .. {high}", count, str(each.warmups), remark


def duration(nanoseconds: float) -> str:
    """Return nanoseconds with three digits and a unit.

    Examples
    --------
    >>> duration(1234567)
    '1.23 ms'
    """
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.0f} ns"


def explain(
    operation: str,
    case: Case[C],
    examined: Examined,
    refusals: Mapping[str, str],
    plan: TrialPlan,
) -> Explanation:
    """Put together what the tuner knows of a case, and why other candidates do not fit it."""
    decision = examined.decision
    chosen = None if decision is None else decision.chosen

    def explained(name: str) -> ExplainedImplementation:
        return ExplainedImplementation(
            name,
            name == chosen,
            refusals.get(name) or examined.failures.get(name),
            examined.warmups.get(name, 0),
            examined.samples.get(name, ()),
        )

    return Explanation(
        operation,
        case.geometry,
        tuple(explained(candidate.name) for candidate in case.registered),
        chosen,
        "no call with this geometry yet" if decision is None else decision.reason,
        None if decision is None else decision.source,
        examined.exploration_share,
        _regime(decision, plan),
    )


def _regime(decision: Any, plan: TrialPlan) -> str:
    if decision is not None and decision.source == "given" and not decision.samples:
        return "none, because there is nothing to measure"
    if decision is not None and decision.regime == "copies":
        return "warm, repeated runs on copies of the arguments"
    if plan.warmup == 0:
        return "the program's own calls, the first ones included (cold)"
    return f"the program's own calls, after {plan.warmup} untimed ones (warm)"
