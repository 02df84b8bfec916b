"""What all pictures share: colours, figures without a window, axes, legends and files.

Colours are those of Okabe and Ito, which people with any colour vision tell apart. matplotlib is imported when a figure
is made.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dphmm.errors import ConfigurationError, MissingDependencyError, check_installed
from dphmm.tables import check_output, new_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
else:
    Axes = Any

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#7f7f7f"
TRUE, RELEASED, ESTIMATE, HULL, EXPOSED = "#000000", RED, BLUE, PURPLE, "#b00020"
EDGE = "#7fb8a4"
"""Of a policy."""


def new_figure(width: float = 8.0, height: float = 7.0) -> tuple[Any, Axes]:
    """A figure that no window shows, with one `ax`.

    Parameters
    ----------
    width, height
        Inches.

    Returns
    -------
    figure, ax
        As matplotlib has them.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    """
    figure, axes = new_panels(width, height)
    return figure, axes[0]


def new_panels(width: float, height: float, rows: int = 1, columns: int = 1, **layout: Any) -> tuple[Any, list[Axes]]:
    """A figure that no window shows, with several axes.

    Parameters
    ----------
    width, height
        Inches.
    rows, columns
        How many axes; none where one of them is 0.
    **layout
        As `matplotlib.figure.Figure.subplots` has it, such as ``sharey``.

    Returns
    -------
    figure, list of Axes
        The axes row by row.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
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


def png(figure: Any, dpi: int = 150) -> bytes:
    """A figure as the bytes of a PNG file.

    Parameters
    ----------
    figure
        A matplotlib figure.
    dpi
        Dots an inch.

    Returns
    -------
    bytes
        The file.
    """
    file = io.BytesIO()
    save(figure, file, format="png", dpi=dpi)
    return file.getvalue()


def save(figure: Any, file: Path | BinaryIO, **options: Any) -> None:
    """Write a figure; a letter that the font lacks is a box in it, and no warning on the terminal.

    Parameters
    ----------
    figure
        A matplotlib figure.
    file
        The file to write.
    **options
        As `matplotlib.figure.Figure.savefig` has them.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        if figure.get_layout_engine() is not None:  # a legend outside is where it belongs after a second pass alone
            figure.get_layout_engine().execute(figure)
        figure.savefig(file, **options)


PICTURES, PAGES = (".png", ".svg", ".pdf"), (".html", ".htm")
"""What pictures are called, and pages for a browser."""


def is_page(path: Path) -> bool:
    """Whether a map is a page for a browser, by its extension, and not a picture.

    Raises
    ------
    ConfigurationError
        When no map goes by it.
    """
    if path.suffix.lower() not in (*PICTURES, *PAGES):
        raise ConfigurationError(f"{path}: no map goes by {path.suffix!r}; use {', '.join((*PICTURES, *PAGES))}")
    return path.suffix.lower() in PAGES


def check_picture(path: str | Path, overwrite: bool = False) -> Path:
    """Refuse the path of a picture before any work is done for it.

    Parameters
    ----------
    path
        The file.
    overwrite
        Whether a file that exists may be replaced.

    Returns
    -------
    Path
        The same path.

    Raises
    ------
    ConfigurationError
        When no picture goes by its extension.
    MissingDependencyError
        Without matplotlib.
    OutputError
        As `dphmm.tables.check_output`.
    """
    path = Path(path)
    if path.suffix.lower() not in PICTURES:
        raise ConfigurationError(f"{path}: no picture goes by {path.suffix!r}; use {', '.join(PICTURES)}")
    check_installed("matplotlib", "plots")
    return check_output(path, overwrite)


def save_picture(figure: Any, path: Path, overwrite: bool = False, private: bool = True) -> None:
    """Write a figure whole or not at all.

    Parameters
    ----------
    figure
        A matplotlib figure.
    path
        A .png, .svg or .pdf file.
    overwrite
        Whether a file that exists may be replaced.
    private
        Whether its owner alone may read it.

    Raises
    ------
    OutputError
        When the file exists and may not be replaced, or cannot be written.
    """
    with new_file(path, overwrite, private) as part:
        save(figure, part, dpi=150, bbox_inches="tight")


def label_curves(ax: Axes, x: str, y: str) -> None:
    """Name the axes of a picture of curves, and draw a faint grid behind them.

    Parameters
    ----------
    ax
        Where to draw.
    x, y
        The names, with units.
    """
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(color="#dddddd", linewidth=0.5)
    ax.set_axisbelow(True)


def tick_powers(axis: Any, ends: tuple[float, float], marks: Sequence[int], text: Callable[[float], str]) -> None:
    """Have a logarithmic axis tell some multiples of the powers of ten, and no others; its ends where there is none.

    Parameters
    ----------
    axis
        Of matplotlib.
    ends
        Between which values.
    marks
        The multiples, from 1 to 9.
    text
        What stands at a value.
    """
    powers = (float(f"{mark}e{power}") for power in range(-9, 10) for mark in marks)
    ticks = [tick for tick in powers if ends[0] <= tick <= ends[1]] or [*ends]
    axis.set_ticks(ticks, [text(tick) for tick in ticks])
    axis.set_ticks([], minor=True)


def open_frame(ax: Axes) -> None:
    """Leave out the frame at the top and at the right."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def label_map(ax: Axes) -> None:
    """Name the axes of a map and give both the same scale."""
    ax.set_xlabel("east of the centre (km)")
    ax.set_ylabel("north of the centre (km)")
    ax.set_aspect("equal")
    ax.ticklabel_format(useOffset=False)


def show_around(ax: Axes, points: Any, margin: float = 0.0) -> None:
    """Show points ``(n, 2)`` and a margin around them.

    Parameters
    ----------
    ax
        Where to draw.
    points
        Shape ``(n, 2)``, n at least 1.
    margin
        In their unit.
    """
    (west, south), (east, north) = points.min(axis=0) - margin, points.max(axis=0) + margin
    ax.set_xlim(west, east)
    ax.set_ylim(south, north)


def show_dates(axis: Any) -> None:
    """Have an axis of matplotlib tell dates and times, a few of them and briefly."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=2, maxticks=6)  # type: ignore[no-untyped-call]
    axis.set_major_locator(locator)
    axis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def legend_above(ax: Axes, columns: int, **style: Any) -> None:
    """The legend of some axes above them, where it hides nothing.

    Parameters
    ----------
    ax
        The axes.
    columns
        How many.
    **style
        As matplotlib has it, such as ``handles``.
    """
    ax.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False, **style)


def legend_below(ax: Axes, columns: int | None = None, size: float = 8) -> None:
    """The legend of some axes below their figure, where it hides nothing; none where nothing has a label.

    Parameters
    ----------
    ax
        The axes; a legend that their figure has is replaced.
    columns
        How many; left out, as many as fit.
    size
        Of the letters, points.
    """
    figure: Any = ax.figure
    for legend in list(figure.legends):
        legend.remove()
    handles, labels = ax.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    if unique:
        fit = max(1, int(inches_wide(ax) / (0.6 + 0.068 * max(map(len, unique)))))
        where: dict[str, Any] = {"loc": "outside lower center", "ncols": columns or min(len(unique), fit)}
        figure.legend(list(unique.values()), list(unique), frameon=False, fontsize=size, **where)


def inches_wide(ax: Axes) -> float:
    """How wide the figure of some axes is."""
    return float(ax.figure.bbox.width) / float(ax.figure.dpi)


def halo(width: float) -> list[Any]:
    """A white edge around a text or a line, `width` points wide."""
    from matplotlib.patheffects import Normal, Stroke

    return [Stroke(linewidth=width, foreground="white"), Normal()]
