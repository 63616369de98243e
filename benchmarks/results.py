"""The results of a run as a table for people and one for programs."""

from __future__ import annotations

import csv
import os
import platform
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from blocks import Row
from stage import OVER_OURS

NAMES = {
    "push": "A push",
    "read of 10": "A read of ten turns",
    "contexts": "Many windows",
    "crowd": "Many tasks of one process",
    "client": "The worker's own time for a push",
    "ceiling": "The server's ceiling",
    "batch": "Many turns in one call",
    "storm": "Writers of one conversation",
    "conversations": "More conversations",
    "windows": "Wider windows",
    "payloads": "Longer turns",
    "workers": "More workers",
    "memory": "Memory",
}
VARIANTS = ("symfonic", "no mirror", "with feed", "push_many", "get_contexts", "coalesc", "track")
"""What the names of this package's own contenders begin with."""

COLUMNS = (
    ("p50 us", "p50_us", "{:,.0f}"),
    ("p99 us", "p99_us", "{:,.0f}"),
    ("ops/s", "per_second", "{:,.0f}"),
    ("server us", "server_us", "{:,.1f}"),
    ("client us", "cpu_us", "{:,.0f}"),
    ("B in", "received", "{:,.0f}"),
    ("B out", "sent", "{:,.0f}"),
    ("B a turn", "memory", "{:,.0f}"),
)


def machine() -> str:
    """Processors, memory and system, without names of the machine."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text("utf-8").splitlines() if line.startswith("model name")]
        model = lines[0].split(":", 1)[1].strip() if lines else model
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{os.cpu_count()} x {model}, {pages:.0f} GiB, {platform.system()}, Python {platform.python_version()}"


def load() -> str:
    """The machine's load average over a minute."""
    return f"{os.getloadavg()[0]:.1f}"


def write(folder: Path, rows: Sequence[Row], about: Sequence[str], skipped: Sequence[str]) -> None:
    """Write results.csv and results.md."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "results.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(["" if value is None else _plain(value) for value in row] for row in rows)
    text = "# Results\n\nWritten by `make bench`. How to read them: [performance.md](../../docs/performance.md).\n\n"
    text += "".join(f"- {line}\n" for line in about)
    text += "".join(f"- skipped: {line}\n" for line in skipped)
    text += "\n## In short\n\n" + _summary(rows) + _peers(rows)
    for (measure, case, figure, _), found in groupby(
        rows, key=lambda row: (row.measure, row.case, row.figure, row.against)
    ):
        text += f"\n## {NAMES.get(measure, measure.capitalize())}: {case}\n\n" + _table(list(found), figure)
    (folder / "results.md").write_text(text, encoding="utf-8")


def _summary(rows: Sequence[Row]) -> str:
    """This package's ratios alone."""
    lines = ["| | of | ratio | quartiles |", "| --- | --- | ---: | ---: |"]
    for row in rows:
        if row.ratio is not None and is_ours(row) and row.contender != row.against:
            what = f"{NAMES.get(row.measure, row.measure.capitalize())}: {row.case}"
            which = f"{row.contender}: {row.figure} over {row.against}"
            lines.append(f"| {what} | {which} | **{short(row.ratio)}** | {_spread(row)} |")
    return "\n".join(lines) + "\n"


def _peers(rows: Sequence[Row]) -> str:
    """The peers over this package, one line each; nothing when none was measured."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row.case == OVER_OURS:
            found.setdefault(row.contender, {})[row.measure] = row
    if not found:
        return ""
    lines = [
        "",
        "| peer | an append | its p50 over ours | our throughput over its, many writers | its turns |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for name, of in found.items():
        push, storm = of.get("push"), of.get("storm")
        slower = f"**{short(push.ratio)}**" if push and push.ratio else ""
        faster = f"**{short(1 / storm.ratio)}**" if storm and storm.ratio else ""
        lines.append(f"| {name} | {push.note if push else ''} | {slower} | {faster} | {storm.note if storm else ''} |")
    return "\n".join(lines) + "\n"


def is_ours(row: Row) -> bool:
    """Whether a line is of this package: one of its variants, or of a measure that compares it with itself."""
    return row.contender.startswith(VARIANTS) or row.measure == "conversations"


def _spread(row: Row) -> str:
    if row.low is None or row.high is None or row.low == row.high:
        return ""
    return f"{short(row.low)} to {short(row.high)}"


def _plain(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


def _table(rows: list[Row], figure: str) -> str:
    columns = [column for column in COLUMNS if any(getattr(row, column[1]) is not None for row in rows)]
    notes = any(row.note for row in rows)
    head = ["", f"{figure} over {rows[0].against}", "quartiles", *(name for name, _, _ in columns)]
    lines = [[*head, *(["note"] if notes else [])]]
    lines.append(["---", *["---:"] * (len(head) - 1), *(["---"] if notes else [])])
    for row in rows:
        cells = [row.contender]
        cells.append("" if row.ratio is None else f"**{short(row.ratio)}**")
        cells.append(_spread(row))
        values = [(getattr(row, name), shape) for _, name, shape in columns]
        cells += ["" if value is None else shape.format(value) for value, shape in values]
        lines.append([*cells, *([row.note] if notes else [])])
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def short(ratio: float) -> str:
    """A ratio with as many digits as it deserves."""
    if ratio >= 100:  # noqa: PLR2004 - digits
        return f"{ratio:,.0f}"
    return f"{ratio:.2f}" if 0.1 <= ratio < 10 else f"{ratio:.3g}" if ratio >= 1 else f"{ratio:.1g}"  # noqa: PLR2004 - the same
