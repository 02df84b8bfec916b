"""Figures of the papers as values: panels of curves and shapes, and checked claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from dphmm.arrays import FloatArray, as_floats
from dphmm.errors import InvalidInputError
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.validation import NonNegativeInt, PositiveInt, check_arguments

AxisScale = Literal["linear", "log"]
Verdict = Literal["holds", "does not hold", "not decided"]


@dataclass(frozen=True, eq=False)
class Series:
    """A labelled curve of a panel.

    Parameters
    ----------
    label : str
        Name in the legend. Series with equal labels have equal colours and markers in all panels of a figure.
    x, y : ndarray, shape (n,)
        Coordinates. NaN in ``y`` interrupts the curve.
    low, high : ndarray, shape (n,), optional
        Ends of a 95 % interval around ``y``; both or neither.
    dashed : bool, default False
        Whether the curve is a reference, such as a level that is not reached.
    bold : bool, default False
        Whether the curve or its points are drawn twice as large, such as the envelope of other curves.
    points : bool, default False
        Whether only the points are drawn, without a curve through them.
    """

    label: str
    x: FloatArray
    y: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None
    dashed: bool = False
    bold: bool = False
    points: bool = False

    def __post_init__(self) -> None:
        for name in ("x", "y", "low", "high"):
            if (values := getattr(self, name)) is not None:
                object.__setattr__(self, name, as_floats(values, name))
        if (self.low is None) != (self.high is None):
            raise InvalidInputError(f"series {self.label!r} needs both ends of an interval or neither")
        sizes = {np.shape(values) for values in (self.x, self.y, self.low, self.high) if values is not None}
        if len(sizes) != 1 or len(next(iter(sizes))) != 1:
            raise InvalidInputError(f"series {self.label!r} must have arrays of one length, got shapes {sorted(sizes)}")

    @classmethod
    def from_runs(cls, label: str, x: npt.ArrayLike, runs: npt.ArrayLike) -> Series:
        """Return the mean of independent runs with its 95 % interval.

        Parameters
        ----------
        label : str
            Name in the legend.
        x : array_like, shape (n,)
            Coordinates.
        runs : array_like, shape (r, n)
            The values of each run.

        Returns
        -------
        Series
            Means and the ends of Student's interval; a single run has no interval.
        """
        values = as_floats(runs, "runs")
        mean = values.mean(axis=0)
        count = len(values)
        if count < 2:
            return cls(label, as_floats(x, "x"), mean)
        half = float(stdtrit(count - 1, 0.975)) * values.std(axis=0, ddof=1) / np.sqrt(count)
        return cls(label, as_floats(x, "x"), mean, mean - half, mean + half)


@dataclass(frozen=True, eq=False)
class Shape:
    """A polygon, edges or points of a panel in the plane.

    Parameters
    ----------
    label : str
        Name in the legend. Empty for none.
    kind : {"polygon", "edges", "points"}
        How `points` are read: the corners of a closed polygon, consecutive pairs of end points, or single points.
    points : ndarray, shape (n, 2)
        Coordinates; an even number of rows for edges.
    names : sequence of str, optional
        Label of each point, such as ``s1``.
    dashed : bool, default False
        Whether lines are dashed.
    """

    label: str
    kind: Literal["polygon", "edges", "points"]
    points: FloatArray
    names: Sequence[str] = ()
    dashed: bool = False


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes of a figure.

    Parameters
    ----------
    title : str
        Title, such as ``(a) ε = 1``.
    x_label, y_label : str
        Names of the axes with units.
    series : sequence of Series
        Curves.
    shapes : sequence of Shape
        Shapes in the plane; if there are any, both axes have equal scales.
    x_scale, y_scale : {"linear", "log"}
        Scales of the axes.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series] = ()
    shapes: Sequence[Shape] = ()
    x_scale: AxisScale = "linear"
    y_scale: AxisScale = "linear"


@dataclass(frozen=True)
class Claim:
    """A claim of a paper with the measured value.

    Parameters
    ----------
    figure : str
        Where the paper makes it, such as ``Figure 4(a)`` or ``Example 5.3``.
    statement : str
        The claim in our words.
    published : str
        The value that the paper prints, or ``"not printed"``.
    measured : str
        The value found, with its interval where there is one.
    verdict : {"holds", "does not hold", "not decided"}
        ``"not decided"`` if an interval contains both answers.
    reason : str, optional
        Why it does not hold, or what it depends on.
    """

    figure: str
    statement: str
    published: str
    measured: str
    verdict: Verdict
    reason: str = ""


def judge(holds: bool | np.bool_ | None) -> Verdict:
    """Return the verdict on a claim. None if an interval contains both answers."""
    if holds is None:
        return "not decided"
    return "holds" if holds else "does not hold"


@dataclass(frozen=True, eq=False)
class PaperFigure:
    """A recomputed figure or table of a paper.

    Parameters
    ----------
    name : str
        File name without an ending, such as ``figure_4``.
    caption : str
        One or two sentences: contents, setting and number of runs. A number of runs below the paper's is stated here.
    panels : sequence of Panel
        Panels from left to right.
    claims : sequence of Claim
        Claims of the paper that the figure supports or contradicts.
    """

    name: str
    caption: str
    panels: Sequence[Panel]
    claims: Sequence[Claim] = ()

    def rows(self) -> Iterator[tuple[str, str, float, float, float, float]]:
        """Yield one row for each point.

        Yields
        ------
        tuple
            Panel, label, x, y and the ends of the interval (NaN without one).
        """
        for panel in self.panels:
            for series in panel.series:
                nan = np.full(len(series.x), np.nan)
                low, high = (nan if ends is None else ends for ends in (series.low, series.high))
                for point in zip(series.x, series.y, low, high, strict=True):
                    x, y, lower, upper = map(float, point)
                    yield panel.title, series.label, x, y, lower, upper
            for shape in panel.shapes:
                for x, y in np.asarray(shape.points, dtype=np.float64).tolist():
                    yield panel.title, shape.label or shape.kind, x, y, float("nan"), float("nan")


@check_arguments
@dataclass(frozen=True)
class FigureOptions:
    """Options that all figures share.

    Parameters
    ----------
    runs : int, optional
        Repetitions behind each point. Defaults to the paper's number where that takes at most five minutes on two
        processors, otherwise to the number that each figure states.
    seed : int, default 1
        Seed of the simulated data and of the noise.
    geolife, gowalla : Path, optional
        Folder or archive of the data set. Figures that need one are skipped without it.
    folder : Path, optional
        Where an evaluation keeps its checkpoints. Required by figures that need a data set.
    progress : callable
        Shows the progress of long computations; see `dphmm.jobs.progress.ProgressCallback`.
    """

    runs: PositiveInt | None = None
    seed: NonNegativeInt = 1
    geolife: Path | None = None
    gowalla: Path | None = None
    folder: Path | None = None
    # A factory, as a plain default would make the function an attribute of the class, which looks like a method.
    progress: ProgressCallback = field(default_factory=lambda: suppress_progress, repr=False)

    def num_runs(self, default: int) -> int:
        """Return the number of runs.

        Parameters
        ----------
        default : int
            The number if `runs` is None.

        Returns
        -------
        int
            `runs`, or the default.
        """
        return default if self.runs is None else self.runs


@dataclass(frozen=True)
class FigureBuilder:
    """A function that computes one figure, and what it needs.

    Parameters
    ----------
    name : str
        The figure's name, such as ``figure_4``.
    title : str
        Title of the figure in lists.
    build : callable
        `FigureOptions` → `PaperFigure`.
    needs : tuple of str
        Names of the data sets in `FigureOptions` without which the figure is skipped.
    min_runs : int, default 1
        Smallest number of runs.
    """

    name: str
    title: str
    build: Callable[[FigureOptions], PaperFigure]
    needs: tuple[str, ...] = ()
    min_runs: int = 1

    def list_missing_data(self, options: FigureOptions) -> tuple[str, ...]:
        """Return the data sets that the figure needs and the options lack."""
        return tuple(name for name in self.needs if getattr(options, name) is None)
