"""Figures: each kernel's ratio on a logarithmic axis, and drag over the number of samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import drag, suite
from .compare import SUBJECT, Row

SHOWN_BESIDE = ("Numba", "Numba fastmath", "NumPy", "NumExpr")
CURVES = (SUBJECT, "Numba", "NumPy", "NumExpr", "quadrants", "hawk")


def draw(path: Path, groups: dict[str, list[Row]]) -> bool:
    """Write one picture with what was measured of both figures; an SVG or PNG by its suffix.

    Returns
    -------
    bool
        Whether there was anything to draw.
    """
    if not {suite.KERNELS, drag.GROUP} & groups.keys():
        return False
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5), layout="constrained")
    _kernels(left, groups.get(suite.KERNELS, []))
    _drag(right, [row for row in groups.get(drag.GROUP, []) if row.case == "drag"])
    figure.savefig(path)
    pyplot.close(figure)
    return True


def _kernels(axes: Any, rows: Sequence[Row]) -> None:
    cases = list(dict.fromkeys(row.case for row in rows if row.size is not None))
    height = 0.8 / len(SHOWN_BESIDE)
    for place, name in enumerate(SHOWN_BESIDE):
        own = [row for row in rows if row.name == name and row.case in cases and row.ratio]
        positions = [cases.index(row.case) + place * height - 0.3 for row in own]
        errors = [
            [max(0.0, row.ratio - row.ratio_low) for row in own],
            [max(0.0, row.ratio_high - row.ratio) for row in own],
        ]
        lengths = [row.ratio - 1 for row in own]
        axes.barh(positions, lengths, height, left=1, xerr=errors, label=name)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(cases)), cases)
    axes.invert_yaxis()
    axes.set_xlabel("time as a multiple of turnout's (right of 1: turnout is faster)")
    axes.legend()


def _drag(axes: Any, rows: Sequence[Row]) -> None:
    for name in CURVES:
        own = [row for row in rows if row.name == name and row.median_ns is not None]
        axes.plot([row.size for row in own], [row.median_ns / 1e3 for row in own], "o-", label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("samples of drag")
    axes.set_ylabel("microseconds per call, one thread")
    axes.legend()
