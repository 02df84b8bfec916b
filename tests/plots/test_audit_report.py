"""Tests of the policy audit page: exposed cells on a map, grouped rows, all widths."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dphmm import Grid, MarkovModel, PolicyGraph
from dphmm.html_report import html_page
from dphmm.jobs import audit_policy
from dphmm.jobs.audit.target import AuditTarget
from tests.pages import DESK, PHONE, inspect_page

pytest.importorskip("matplotlib")

from dphmm.plots import audit_report, build_audit_sections
from dphmm.plots.audit import draw_exposure
from dphmm.plots.canvas import EXPOSED_COLOUR, create_figure

GRID = Grid.over((44.98, -30.03, 45.02, -29.97), 0.5)
ALONE = np.flatnonzero(GRID.points[:, 0] > 0)


@pytest.fixture(scope="module")
def audit_result():
    """Return an audit of two protected areas in the west and isolated cells in the east."""
    labels = np.where(GRID.points[:, 1] > 0, 0, 1)
    labels[ALONE] = 2 + np.arange(len(ALONE))
    model = MarkovModel(np.full((GRID.size, GRID.size), 1 / GRID.size), np.full(GRID.size, 1 / GRID.size), GRID, 60.0)
    names = tuple(f"cell {k}" for k in range(GRID.size))
    subject = AuditTarget(names, GRID.measurements(), PolicyGraph.categorical(labels), model)
    return audit_policy(subject, noise_scope="component")


@pytest.fixture(scope="module")
def sections(audit_result):
    """Return the sections of the page with their plots."""
    return build_audit_sections(audit_result)


@pytest.mark.slow
def test_equally_exposed_states_share_a_row(sections):
    what, noise = sections[1:]
    assert what.heading.endswith("exposed states")
    assert [row[:2] for row in what.rows] == [("k-norm", f"{len(ALONE)}"), ("laplace", f"{len(ALONE)}")]
    assert what.rows[0][2].startswith(f"cell {ALONE[0]}, cell {ALONE[1]}, ")
    assert what.rows[0][2].endswith(f" and {len(ALONE) - 12} more")
    assert what.rows[0][3] == "with certainty, by every release"
    assert noise.rows[0][2] == f"{len(ALONE)}"
    assert not what.paragraphs


def test_rows_are_sorted_by_decreasing_exposure():
    def make_witness(state, factor):
        against = [] if factor is None else [{"state": "z", "factor": factor, "log_ratio": 0.5 * factor}]
        certain = factor is None
        return {"state": state, "output": [0.0, 1.0], "is_certain": certain, "against": against}

    seen = [make_witness("a", 1.5), make_witness("b", None), make_witness("c", 1.50001), make_witness("d", 3.0)]
    rows = audit_report._group_witnesses(
        {"mechanism": "m", "witnesses": seen, "exposed": ["a", "b", "c", "d", "e", "f"]}
    )
    assert [row[1:3] for row in rows] == [("1", "b"), ("1", "d"), ("2", "a, c"), ("2", "e, f")]
    assert rows[2][3] == "by a log ratio of at least 1.5 ε = 0.75, at some output"
    assert rows[3][3] == "without a witness"


@pytest.mark.slow
def test_exposed_cells_are_filled_and_within_view(audit_result):
    audit = audit_result.audits[0]
    _, ax = create_figure()
    names = audit_result.target.names
    draw_exposure(ax, GRID.points, audit_result.target.policy, audit, audit.bodies[0], names, GRID)
    (cells,) = (collection for collection in ax.collections if collection.get_label() == "exposed states")
    middles = np.array([path.vertices[:4].mean(axis=0) for path in cells.get_paths()])
    assert middles == pytest.approx(GRID.points[ALONE])
    assert cells.get_facecolor()[0, :3] == pytest.approx([int(EXPOSED_COLOUR[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    west, east = ax.get_xlim()
    assert west < GRID.points[:, 0].min() - 0.5
    assert east > GRID.points[:, 0].max() + 0.5
    assert ax.get_xlabel() == "east of the centre (km)"


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_page_fits_phone_and_desktop(sections, browser, tmp_path, width):
    page = tmp_path / "audit.html"
    page.write_text(html_page("Policy audit", "Some state is exposed.", True, sections), encoding="utf-8")
    assert inspect_page(browser, page, width) == 4
    assert len(re.findall("<h2>", page.read_text())) == 3
