"""The figures and tables of the four papers, computed by this package."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Annotated

from dphmm.evaluation.figures.base import (
    Claim,
    FigureBuilder,
    FigureOptions,
    Panel,
    PaperFigure,
    Series,
    Shape,
)
from dphmm.validation import Choice, check_arguments

# Name of a paper in the command line → the paper.
PAPERS: Mapping[str, str] = {
    "dphmm": "Xiao et al., DPHMM (2016)",
    "leakage": "Cao et al., temporal privacy leakage (TKDE 2019)",
    "landmarks": "Katsomallos et al., landmark privacy (CODASPY 2022)",
    "counts": "Cao et al., MAP post-processing (DBSec 2023)",
}


@check_arguments
def figure_builders(paper: Annotated[str, Choice(*PAPERS)]) -> tuple[FigureBuilder, ...]:
    """Return the figures of a paper, in the paper's order.

    Parameters
    ----------
    paper : str
        A key of `PAPERS`.

    Returns
    -------
    tuple of FigureBuilder
        Functions that compute the figures.

    Raises
    ------
    InvalidInputError
        If the paper is unknown.
    """
    # Imported here: each module loads its own subject, and `dphmm figures --help` needs none of them.
    builders: tuple[FigureBuilder, ...] = importlib.import_module(f"{__name__}.{paper}").FIGURES
    return builders


__all__ = [
    "PAPERS",
    "Claim",
    "FigureBuilder",
    "FigureOptions",
    "Panel",
    "PaperFigure",
    "Series",
    "Shape",
    "figure_builders",
]
