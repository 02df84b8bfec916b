"""HTML reports in one file: headings, sentences, tables, and embedded pictures."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from dphmm.validation import check_arguments

__all__ = ["Cell", "Picture", "Section", "html_page"]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; border-top: 1px solid #ddd; padding-top: 1rem; }
h1, h2, p { overflow-wrap: anywhere; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #ddd; padding: 0.25rem 0.8rem 0.25rem 0; text-align: left; vertical-align: top; }
td small { display: block; color: #666; white-space: nowrap; } .scroll { overflow-x: auto; }
td.good { color: #00663d; font-weight: 600; } td.bad { color: #a33000; font-weight: 600; }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; width: 29rem; max-width: 100%; }
figure.wide { width: auto; } img { max-width: 100%; height: auto; } figcaption { color: #555; font-size: 0.85rem; }
.verdict { padding: 0.6rem 1rem; border-left: 0.4rem solid #0072b2; background: #f3f7fa; }
.verdict.bad { border-color: #b00020; background: #fbf1f2; }
pre { font-size: 0.75rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.banner { background: #b00020; color: #fff; padding: 0.5rem 1rem; font-weight: 600; }
ul { padding-left: 1.2rem; } li { margin: 0.2rem 0; overflow-wrap: anywhere; }
.promise { font-size: 1.1rem; }
@page { size: A4; margin: 14mm; }
@media print {
  body { max-width: none; margin: 0; padding: 0; font-size: 9pt; line-height: 1.3; }
  h1 { font-size: 14pt; margin: 0 0 2mm; }
  h2 { font-size: 11pt; margin: 3mm 0 1mm; padding-top: 1.5mm; break-after: avoid; }
  p { margin: 1mm 0; } ul { margin: 1mm 0; } li { margin: 0.5mm 0; }
  .scroll { overflow: visible; } table { font-size: 8pt; margin: 1mm 0; }
  th, td { overflow-wrap: anywhere; padding: 0.6mm 2mm 0.6mm 0; } td small { white-space: normal; }
  tr, figure, li, .verdict, .banner { break-inside: avoid; } thead { display: table-header-group; }
  .pictures { gap: 4mm; } figure { width: 88mm; } figure.wide { width: 100%; } figure.wide img { max-height: 80mm; }
  figcaption { font-size: 8pt; }
  .verdict, .banner { padding: 1.5mm 3mm; -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Cell:
    """A table cell with a note or a colour.

    Parameters
    ----------
    text
        Content of the cell.
    note
        Note below it in small letters.
    mark
        Whether it is good or bad.
    """

    text: str
    note: str = ""
    mark: Literal["", "good", "bad"] = ""


@dataclass(frozen=True)
class Picture:
    """A picture that is embedded in the page.

    Parameters
    ----------
    png
        Content of a PNG file.
    caption
        Caption and alternative text.
    wide
        Whether it has its own row.
    """

    png: bytes
    caption: str
    wide: bool = False


@dataclass(frozen=True)
class Section:
    """A section of a report.

    Parameters
    ----------
    heading
        Heading.
    paragraphs
        Paragraphs of plain text.
    points
        Items of a list.
    header, rows
        A table, if there is one. Every row has as many cells as the header, strings or `Cell` objects.
    pictures
        Pictures, in order.
    verbatim
        Preformatted text at the end.
    """

    heading: str
    paragraphs: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str | Cell]] = ()
    pictures: Sequence[Picture] = ()
    verbatim: str = ""
    points: Sequence[str] = ()


@check_arguments
def html_page(title: str, verdict: str, alarming: bool, sections: Sequence[Section], banner: str = "") -> str:
    """Return a report as one HTML page without external resources.

    Parameters
    ----------
    title, verdict
        Subject of the report, and its conclusion in a sentence.
    alarming
        Whether the conclusion is bad.
    sections
        Sections, in order.
    banner
        Warning at the top, such as that the page is private.

    Returns
    -------
    str
        The HTML page.
    """
    above = [f'<p class="banner">{escape(banner)}</p>'] if banner else []
    parts = [
        *above,
        f"<h1>{escape(title)}</h1>",
        f'<p class="verdict{" bad" if alarming else ""}">{escape(verdict)}</p>',
    ]
    for section in sections:
        parts.append(f"<h2>{escape(section.heading)}</h2>")
        parts += [f"<p>{escape(text)}</p>" for text in section.paragraphs]
        if section.points:
            parts.append(f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in section.points)}</ul>")
        if section.rows:
            parts.append(_format_table(section))
        if section.pictures:
            parts.append(f'<div class="pictures">{"".join(map(_format_picture, section.pictures))}</div>')
        if section.verbatim:
            parts.append(f"<pre>{escape(section.verbatim)}</pre>")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>{escape(title)}</title>'
    )
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n'
    )


def _format_table(section: Section) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in section.header)
    rows = "\n".join(f"<tr>{''.join(map(_format_cell, row))}</tr>" for row in section.rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>'


def _format_cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return f"<td>{escape(cell)}</td>"
    mark = f' class="{cell.mark}"' if cell.mark else ""
    note = f"<small>{escape(cell.note)}</small>" if cell.note else ""
    return f"<td{mark}>{escape(cell.text)}{note}</td>"


def _format_picture(picture: Picture) -> str:
    caption = escape(picture.caption)
    data = base64.b64encode(picture.png).decode("ascii")
    return (
        f'<figure{" class=wide" if picture.wide else ""}><img alt="{caption}" src="data:image/png;base64,{data}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )
