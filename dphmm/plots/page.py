"""One-file HTML reports: headings, sentences, tables, and pictures within the file."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from dphmm.plots.maps import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Drawing = Callable[["Axes"], object]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-top: 1px solid #ddd; padding-top: 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #ddd; padding: 0.25rem 0.8rem 0.25rem 0; text-align: left; vertical-align: top; }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; } .pictures img { width: 29rem; max-width: 100%; height: auto; }
.verdict { padding: 0.6rem 1rem; border-left: 0.4rem solid #0072b2; background: #f3f7fa; }
.verdict.bad { border-color: #b00020; background: #fbf1f2; } .scroll { overflow-x: auto; }
"""


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Parameters
    ----------
    heading
        Above it.
    paragraphs
        Sentences in plain text.
    header, rows
        A table, where there is one; every row has as many cells as the header.
    pictures
        Functions that draw into an `ax`, one picture each.
    """

    heading: str
    paragraphs: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    pictures: Sequence[Drawing] = ()


def html_page(title: str, verdict: str, alarming: bool, sections: Sequence[Section]) -> str:
    """A report as one HTML file that needs no network.

    Parameters
    ----------
    title, verdict
        What it is about, and what was found, in a sentence.
    alarming
        Whether the verdict is bad news.
    sections
        The rest, in order.

    Raises
    ------
    MissingDependencyError
        When there are pictures and matplotlib is not installed.
    """
    parts = [f"<h1>{escape(title)}</h1>", f'<p class="verdict{" bad" if alarming else ""}">{escape(verdict)}</p>']
    for section in sections:
        parts.append(f"<h2>{escape(section.heading)}</h2>")
        parts += [f"<p>{escape(text)}</p>" for text in section.paragraphs]
        if section.rows:
            parts.append(_table(section))
        if section.pictures:
            images = "".join(
                _image(draw, f"{section.heading}, picture {n}") for n, draw in enumerate(section.pictures, 1)
            )
            parts.append(f'<div class="pictures">{images}</div>')
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n'
    )


def _table(section: Section) -> str:
    head = "".join(f"<th>{escape(str(cell))}</th>" for cell in section.header)
    rows = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in section.rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _image(draw: Drawing, description: str) -> str:
    figure, ax = new_figure(4.8, 4.4)
    draw(ax)
    if ax.get_legend_handles_labels()[1]:
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<img alt="{escape(description)}" src="data:image/png;base64,{data}">'
