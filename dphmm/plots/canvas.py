"""Common functions of pictures: colours, figures, axes, legends and files.

Colours are those of Okabe and Ito, which can be distinguished with any colour vision. matplotlib is imported when a
figure is created.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, as_floats, find_runs
from dphmm.errors import ConfigurationError, InvalidInputError, MissingDependencyError, check_installed
from dphmm.tables import check_output, create_file
from dphmm.validation import check_arguments

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
else:
    Axes = Any

BLUE = "#0072b2"
ORANGE = "#e69f00"
GREEN = "#009e73"
RED = "#d55e00"
PURPLE = "#cc79a7"
GREY = "#7f7f7f"
TRUE_COLOUR = "#000000"
RELEASE_COLOUR = RED
ESTIMATE_COLOUR = BLUE
HULL_COLOUR = PURPLE
EXPOSED_COLOUR = "#b00020"
# The colour of a policy's edges.
EDGE_COLOUR = "#7fb8a4"


def create_figure(width: float = 8.0, height: float = 7.0) -> tuple[Any, Axes]:
    """Create a figure without a window, with one `ax`.

    Parameters
    ----------
    width, height
        Inches.

    Returns
    -------
    figure, ax
        As in matplotlib.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    """
    figure, axes = create_panels(width, height)
    return figure, axes[0]


def create_panels(
    width: float, height: float, rows: int = 1, columns: int = 1, **layout: Any
) -> tuple[Any, list[Axes]]:
    """Create a figure without a window, with several axes.

    Parameters
    ----------
    width, height
        Inches.
    rows, columns
        The numbers of rows and columns of axes; 0 for none.
    **layout
        As for `matplotlib.figure.Figure.subplots`, such as ``sharey``.

    Returns
    -------
    figure, list of Axes
        The axes row by row.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependencyError("matplotlib", "plots") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    if not rows or not columns:
        return figure, []
    return figure, list(figure.subplots(rows, columns, squeeze=False, **layout).flat)


def render_png(figure: Any, dpi: int = 150) -> bytes:
    """Return a figure as the bytes of a PNG file.

    Parameters
    ----------
    figure
        A matplotlib figure.
    dpi
        Dots per inch.

    Returns
    -------
    bytes
        The file.
    """
    file = io.BytesIO()
    save(figure, file, format="png", dpi=dpi)
    return file.getvalue()


def save(figure: Any, file: Path | BinaryIO, **options: Any) -> None:
    """Write a figure. Letters that the font lacks are boxes, without a warning.

    Parameters
    ----------
    figure
        A matplotlib figure.
    file
        The file to write.
    **options
        As for `matplotlib.figure.Figure.savefig`.
    """
    from matplotlib.text import Text

    # Names of areas and users may contain dollar signs. They are not formulas, and often not even valid ones.
    for text in figure.findobj(lambda artist: isinstance(artist, Text) and "$" in artist.get_text()):
        text.set_parse_math(bool(_POWER_LABEL.fullmatch(text.get_text())))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        if figure.get_layout_engine() is not None:  # a legend outside the axes needs a second pass
            figure.get_layout_engine().execute(figure)
        figure.savefig(file, **options)


# A tick label of a logarithmic axis, the only formula in a figure.
_POWER_LABEL = re.compile(r"\$\\mathdefault\{[-\d.]*(\\times)?[-\d.]*(\^\{[-\d.]+\})?\}\$")

# The extensions of pictures.
PICTURES = (".png", ".svg", ".pdf")
# The extensions of pages for a browser.
PAGES = (".html", ".htm")


def is_page(path: Path) -> bool:
    """Return whether a map is a page for a browser instead of a picture, by its extension.

    Raises
    ------
    ConfigurationError
        If the extension is not supported.
    """
    extensions = (*PICTURES, *PAGES)
    if path.suffix.lower() not in extensions:
        raise ConfigurationError(
            f"{path}: extension of a map must be one of {', '.join(extensions)}, got {path.suffix!r}"
        )
    return path.suffix.lower() in PAGES


def check_picture(path: str | Path, overwrite: bool = False) -> Path:
    """Check, before any work, that a picture can be written.

    Parameters
    ----------
    path
        The file.
    overwrite
        Whether an existing file may be replaced.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    ConfigurationError
        If the extension is not supported.
    MissingDependencyError
        If matplotlib is not installed.
    OutputError
        As `dphmm.tables.check_output`.
    """
    path = Path(path)
    if path.suffix.lower() not in PICTURES:
        raise ConfigurationError(
            f"{path}: extension of a picture must be one of {', '.join(PICTURES)}, got {path.suffix!r}"
        )
    check_installed("matplotlib", "plots")
    return check_output(path, overwrite)


def save_picture(figure: Any, path: Path, overwrite: bool = False, private: bool = True) -> None:
    """Write a figure atomically.

    Parameters
    ----------
    figure
        A matplotlib figure.
    path
        A .png, .svg or .pdf file.
    overwrite
        Whether an existing file may be replaced.
    private
        Whether only its owner may read it.

    Raises
    ------
    OutputError
        If the file exists and may not be replaced, or cannot be written.
    """
    with create_file(path, overwrite, private) as part:
        save(figure, part, dpi=150, bbox_inches="tight")


def label_curves(ax: Axes, x: str, y: str) -> None:
    """Label the axes of curves, with a faint grid behind them.

    Parameters
    ----------
    ax
        The axes.
    x, y
        The labels, with units.
    """
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(color="#dddddd", linewidth=0.5)
    ax.set_axisbelow(True)


def set_power_ticks(axis: Any, ends: tuple[float, float], marks: Sequence[int], text: Callable[[float], str]) -> None:
    """Set the ticks of a logarithmic axis to multiples of powers of ten.

    If the axis contains fewer than two of them, round numbers are used.

    Parameters
    ----------
    axis
        An axis of matplotlib.
    ends
        The ends of the axis.
    marks
        The multiples, from 1 to 9.
    text
        Formats the label of a value.
    """
    first, last = (math.floor(math.log10(end)) for end in ends)
    powers = (float(f"{mark}e{power}") for power in range(first, last + 1) for mark in marks)
    ticks = [tick for tick in powers if ends[0] <= tick <= ends[1]]
    if len(ticks) < 2:
        from matplotlib.ticker import MaxNLocator

        finer = MaxNLocator(3, steps=[1, 2, 5, 10]).tick_values(*ends)
        ticks = [float(f"{tick:.6g}") for tick in finer if ends[0] <= tick <= ends[1]]
    axis.set_ticks(ticks, [text(tick) for tick in ticks])
    axis.set_ticks([], minor=True)


def open_frame(ax: Axes) -> None:
    """Remove the frame at the top and at the right."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def label_map(ax: Axes) -> None:
    """Label the axes of a map and set equal scales."""
    ax.set_xlabel("east of the centre (km)")
    ax.set_ylabel("north of the centre (km)")
    ax.set_aspect("equal")
    ax.ticklabel_format(useOffset=False)


def set_limits(ax: Axes, points: Any, margin: float = 0.0) -> None:
    """Set the limits of the axes to points ``(n, 2)`` and a margin.

    Parameters
    ----------
    ax
        The axes.
    points
        Shape ``(n, 2)``, n at least 1.
    margin
        The margin, in the unit of the points.
    """
    (west, south) = points.min(axis=0) - margin
    (east, north) = points.max(axis=0) + margin
    ax.set_xlim(west, east)
    ax.set_ylim(south, north)


def show_dates(axis: Any) -> None:
    """Set the ticks of an axis to a few short dates and times."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=2, maxticks=6)  # type: ignore[no-untyped-call]  # untyped in Matplotlib
    axis.set_major_locator(locator)
    axis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]  # untyped in Matplotlib


def place_legend_above(ax: Axes, columns: int, **style: Any) -> None:
    """Place the legend of axes above them.

    Parameters
    ----------
    ax
        The axes.
    columns
        The number of columns.
    **style
        As in matplotlib, such as ``handles``.
    """
    ax.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False, **style)


def place_legend_below(ax: Axes, columns: int | None = None, size: float = 8, others: Sequence[Axes] = ()) -> None:
    """Place the legend of axes below their figure. Without labels there is no legend.

    Parameters
    ----------
    ax
        The axes. An existing legend of their figure is replaced.
    columns
        The number of columns. Defaults to the largest number that fits.
    size
        The font size, points.
    others
        More axes of the figure, of which the legend also has the entries.
    """
    figure: Any = ax.figure
    for legend in list(figure.legends):
        legend.remove()
    entries = [each.get_legend_handles_labels() for each in (ax, *others)]
    unique = {label: handle for handles, labels in entries for label, handle in zip(labels, handles, strict=True)}
    if unique:
        fit = max(1, int(get_width_inches(ax) / (0.6 + 0.068 * max(map(len, unique)))))
        position: dict[str, Any] = {"loc": "outside lower center", "ncols": columns or min(len(unique), fit)}
        figure.legend(list(unique.values()), list(unique), frameon=False, fontsize=size, **position)


def get_width_inches(ax: Axes) -> float:
    """Return the width of the figure of axes, inches."""
    return float(ax.figure.bbox.width) / float(ax.figure.dpi)


def build_halo(width: float) -> list[Any]:
    """Return path effects for a white edge around a text or a line, `width` points wide."""
    from matplotlib.patheffects import Normal, Stroke

    return [Stroke(linewidth=width, foreground="white"), Normal()]


# The smallest width of a figure, in inches, for a legend of two columns.
TWO_COLUMN_INCHES = 6.0

# The largest number of steps of a curve that is plotted as a line. Longer curves are bands.
MAX_STEPS = 300

# The entry of the legend for bands.
BANDS = "bands: quartiles, minimum to maximum"

# The entry of the legend for bands of which the lines are maxima.
BANDS_BELOW_MAXIMA = f"lines: maximum, {BANDS}"

# The largest number of timestamps plotted as bars. More are an area, with landmarks as needles in front of it.
MAX_BARS = 120

# The number of pieces of a curve that is plotted as bands.
_NUM_PIECES = 160


@check_arguments
def draw_steps(
    ax: Axes,
    times: npt.ArrayLike,
    values: npt.ArrayLike,
    colour: str,
    label: str,
    is_bound: bool = False,
    **style: Any,
) -> None:
    """Plot a value at each step as a line, or as bands for more than `MAX_STEPS` steps.

    For bands the steps are divided into pieces of equal length. Each piece is plotted by its median, or its maximum for
    a bound, as a line, its quartiles as a strong band, and its minimum and maximum as a faint band. Neither the line
    nor the bands cross values that are not finite, and a finite value between two of them is a dot. The legend explains
    the bands once.

    Parameters
    ----------
    ax
        The axes.
    times
        ``(n,)`` numbers or ``datetime64``, ascending.
    values
        ``(n,)``; values that are not finite are omitted.
    colour, label
        The colour and label of the line.
    is_bound
        Whether the values are bounds, so that the line of bands must not lie below them.
    **style
        The style of the line as in matplotlib, such as ``linewidth``; ``drawstyle="steps-post"`` for values that are
        constant until the next step. Markers apply to short curves only.

    Raises
    ------
    InvalidInputError
        If the numbers of values and steps differ.
    """
    steps: npt.NDArray[Any] = np.asarray(times)
    numbers = as_floats(values, "values")
    if steps.ndim != 1 or steps.shape != numbers.shape:
        raise InvalidInputError(f"values must be one per step, got shape {numbers.shape} for {steps.shape} steps")
    if len(steps) <= MAX_STEPS:
        ax.plot(steps, np.where(np.isfinite(numbers), numbers, np.nan), color=colour, label=label, **style)
        return
    levels = (0.0, 0.25, 0.5, 0.75, 1.0)
    index = list[int]()
    rows = list[FloatArray]()
    dots = list[int]()
    for first, last in np.reshape(find_runs(np.isfinite(numbers)), (-1, 2)).tolist():
        if index:  # the rows of two runs are not connected
            index.append(last)
            rows.append(np.full(len(levels), np.nan))
        num_pieces = max(round((last + 1 - first) * _NUM_PIECES / len(steps)), 1)
        pieces = np.array_split(np.arange(first, last + 1), num_pieces)
        # The first and the last piece reach to the ends of the run; a single piece is both.
        middle = [int(part[len(part) // 2]) for part in pieces[1:-1]]
        of_pieces = [np.quantile(numbers[part], levels) for part in pieces]
        if first == last:
            dots.append(len(index))
        index += [first, *middle, last]
        rows += [of_pieces[0], *of_pieces[1:-1], of_pieces[-1]]
    at = steps[np.array(index, dtype=np.int64)]
    quantiles = np.array(rows).reshape(-1, len(levels)).T
    bands = BANDS_BELOW_MAXIMA if is_bound else BANDS
    band_label = None if bands in ax.get_legend_handles_labels()[1] else bands
    ax.fill_between(at, quantiles[0], quantiles[4], color=colour, alpha=0.15, linewidth=0, label=band_label)
    ax.fill_between(at, quantiles[1], quantiles[3], color=colour, alpha=0.35, linewidth=0)
    line_style = {name: value for name, value in style.items() if name in ("linewidth", "lw", "linestyle", "zorder")}
    if dots:
        line_style |= {"marker": ".", "markersize": 3, "markevery": dots}
    ax.plot(at, quantiles[-1 if is_bound else 2], color=colour, label=label, **line_style)
