"""The results as pictures, a file for each measure: ratios, with their quartiles."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from blocks import Row
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from results import NAMES, is_ours, short

OURS, OTHERS = "#b8451f", "#7a8794"


def draw(folder: Path, rows: Sequence[Row]) -> list[str]:
    """Write a PNG for each measure; return their names."""
    names = []
    for measure in dict.fromkeys(row.measure for row in rows):
        drawn = [row for row in rows if row.measure == measure and row.ratio]
        cases = [
            (case, list(found)) for case, found in groupby(drawn, key=lambda row: (row.case, row.figure, row.against))
        ]
        if not cases:
            continue
        height = sum(0.32 * len(found) + 0.9 for _, found in cases)
        figure, axes = plt.subplots(
            len(cases), figsize=(8, height), squeeze=False, layout="constrained",
            height_ratios=[0.32 * len(found) + 0.9 for _, found in cases],
        )  # fmt: skip
        for axis, ((case, kind, _), found) in zip(axes[:, 0], cases, strict=True):
            _bars(axis, found)
            axis.set_title(f"{case} - {kind}, {found[0].against} = 1", loc="left", fontsize=9)
        figure.suptitle(NAMES.get(measure, measure.capitalize()), fontsize=11)
        name = f"{measure.replace(' ', '-')}.png"
        figure.savefig(folder / name, dpi=100, metadata={"Software": None})
        plt.close(figure)
        names.append(name)
    return names


def _bars(axis: Axes, rows: list[Row]) -> None:
    ratios = [row.ratio or 0 for row in rows]
    names = [row.contender for row in rows]
    away = [
        [max(0.0, ratio - (row.low or 0)) for ratio, row in zip(ratios, rows, strict=True)],
        [max(0.0, (row.high or 0) - ratio) for ratio, row in zip(ratios, rows, strict=True)],
    ]
    colors = [OURS if is_ours(row) else OTHERS for row in rows]
    places = range(len(rows))
    axis.barh(places, ratios, color=colors, height=0.7)
    axis.errorbar(ratios, places, xerr=away, fmt="none", ecolor="black", elinewidth=0.8)
    axis.axvline(1, color="black", linewidth=0.8, linestyle=":")
    axis.set_yticks(places, names, fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    axis.invert_yaxis()
    if max(ratios) > 10 * min(ratios):
        axis.set_xscale("log")
    for place, ratio in zip(places, ratios, strict=True):
        axis.annotate(short(ratio), (ratio, place), xytext=(4, 5), textcoords="offset points", fontsize=7)
    axis.margins(x=0.12)
