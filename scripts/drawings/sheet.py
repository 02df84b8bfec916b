"""What the figures share: panels, the lines of the estimators, files."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dphmm.counts.repair import RAW

STYLES = {
    RAW: ("0.6", ":", "x"),
    "maximum-likelihood": ("tab:red", "-", "o"),
    "least-squares": ("tab:orange", "--", "s"),
    "single": ("tab:blue", "-", "^"),
    "single, uniform": ("tab:green", "--", "v"),
    "online": ("tab:purple", "--", "D"),
    "coupled, uniform": ("0.3", ":", "."),
    "coupled": ("black", "-", "*"),
}
"""Estimator of count streams → colour, line, marker."""


def panels(count: int = 2, width: float = 5.5, **options: bool) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(width * count, 4), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False, **options)[0]


def line(ax: Axes, name: str, x: Iterable[float], y: Iterable[float]) -> None:
    colour, dashes, marker = STYLES[name]
    ax.plot(list(x), list(y), color=colour, linestyle=dashes, marker=marker, ms=4, label=name)


def finish(ax: Axes, x: str, y: str, title: str, legend: bool = True, **scales: str) -> None:
    ax.set(xlabel=x, ylabel=y, title=title, **scales)
    ax.grid(alpha=0.3)
    if legend:
        ax.legend(fontsize=7)


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=120)
    print(path)


def write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    print(path)
