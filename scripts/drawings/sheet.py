"""Panels and files of the figures."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def create_panels(count: int = 2, width: float = 5.5, **options: bool) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(width * count, 4), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False, **options)[0]


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
