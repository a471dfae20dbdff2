"""The plots, as SVG and as PNG."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.report.parts import STORES, plain
from bench.summary import Row

OURS, THEIRS, LIMIT = "#c2410c", "#64748b", "#cbd5e1"
KINDS = ("svg", "png")


def draw(rows: list[Row], folder: Path) -> Iterator[Path]:
    """``peers`` and ``sizes``, where there are rows for them; yields each file."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "fanin", "svg.fonttype": "none", "font.size": 9,
                                "axes.spines.top": False, "axes.spines.right": False})  # fmt: skip
    from matplotlib import pyplot

    for name, plot in (("peers", _peers), ("sizes", _sizes)):
        figure = plot(rows, pyplot)
        if figure is None:
            continue
        for kind in KINDS:
            file = folder / f"{name}.{kind}"
            figure.savefig(file, dpi=160, metadata={"Date": None} if kind == "svg" else {"Software": None})
            yield file
        pyplot.close(figure)


def _peers(rows: list[Row], pyplot: Any) -> Any:
    """Bars: parts per second of everything that was measured, each with its number of parts."""
    mine = [row for row in rows if row["kind"] == "peer" and row.get("parts_per_second")]
    if not mine:
        return None
    largest = max(row["parts"] for row in mine)
    shown = [row for row in mine if not row["own"] or row["parts"] == largest]
    shown.sort(key=lambda row: row["parts_per_second"])
    figure, axes = pyplot.subplots(figsize=(8, 0.32 * len(shown) + 1.3), layout="constrained")
    names = [f"{plain(row)} · {STORES.get(row['database'], row['database'])}" for row in shown]
    speeds = [row["parts_per_second"] for row in shown]
    axes.barh(names, speeds, color=[OURS if row["own"] else THEIRS for row in shown])
    axes.set_xscale("log")
    axes.set_xlim(right=max(speeds) * 4)
    for place, row in enumerate(shown):
        few = "" if row["parts"] == largest else f"  ({row['parts']:,} parts)"
        axes.text(row["parts_per_second"] * 1.08, place, f"{row['parts_per_second']:,.0f}{few}", va="center")
    axes.set_xlabel("parts per second, logarithmic")
    figure.suptitle(
        f"{largest:,} parts that do nothing, submitted, run by two workers, joined\n"
        "memory: nothing is durable · Redis: synced each second · SQLite, PostgreSQL: synced at each commit",
        x=0.01, ha="left", fontsize=9,
    )  # fmt: skip
    return figure


def _sizes(rows: list[Row], pyplot: Any) -> Any:
    """Lines: parts per second by the size of the job, fanin and the raw program, two workers."""
    mine = [row for row in rows if row["kind"] == "speed" and row["stage"] in ("speed", "cross", "million")]
    two = sorted((row for row in mine if row["workers"] == 2 and row["jobs"] == 1), key=lambda row: row["parts"])
    if not two:
        return None
    figure, panels = pyplot.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
    for axes, database in zip(panels, ("SQLite", "PostgreSQL"), strict=True):
        some = [row for row in two if row["database"] == database]
        sizes = [row["parts"] for row in some]
        axes.plot(sizes, [row["limit_parts_per_second"] for row in some], "o-", color=LIMIT, label="raw program")
        axes.plot(sizes, [row["parts_per_second"] for row in some], "o-", color=OURS, label="fanin")
        axes.set(xscale="log", yscale="log", title=database, xlabel="parts of the job")
        axes.legend(frameon=False)
    panels[0].set_ylabel("parts per second")
    return figure
