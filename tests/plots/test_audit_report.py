"""The page of a policy audit: exposed cells on a map, alike ones in one row, whole at any width."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dphmm import Grid, MarkovModel, PolicyGraph
from dphmm.jobs import audit_policy
from dphmm.jobs.audits import Subject
from dphmm.reports import html_page
from tests.pages import DESK, PHONE, looked_at

pytest.importorskip("matplotlib")

from dphmm.plots import audit_report, audit_sections
from dphmm.plots.audit import draw_exposure
from dphmm.plots.figures import EXPOSED, new_figure

GRID = Grid.over((44.98, -30.03, 45.02, -29.97), 0.5)
ALONE = np.flatnonzero(GRID.points[:, 0] > 0)


@pytest.fixture(scope="module")
def found():
    """Two areas in the west, hidden within themselves; every cell in the east alone."""
    labels = np.where(GRID.points[:, 1] > 0, 0, 1)
    labels[ALONE] = 2 + np.arange(len(ALONE))
    model = MarkovModel(np.full((GRID.size, GRID.size), 1 / GRID.size), np.full(GRID.size, 1 / GRID.size), GRID, 60.0)
    names = tuple(f"cell {k}" for k in range(GRID.size))
    subject = Subject(names, GRID.measurements(), PolicyGraph.categorical(labels), model)
    return audit_policy(subject, calibration="component")


@pytest.fixture(scope="module")
def sections(found):
    """What the page of it says, with its pictures."""
    return audit_sections(found)


def test_states_that_are_exposed_alike_are_one_row(sections):
    what, noise = sections[1:]
    assert what.heading.endswith("what is exposed")
    assert [row[:2] for row in what.rows] == [("k-norm", f"{len(ALONE)}"), ("laplace", f"{len(ALONE)}")]
    assert what.rows[0][2].startswith(f"cell {ALONE[0]}, cell {ALONE[1]}, ")
    assert what.rows[0][2].endswith(f" and {len(ALONE) - 12} more")
    assert what.rows[0][3] == "for certain, by every release"
    assert noise.rows[0][2] == f"{len(ALONE)}"
    assert not what.paragraphs


def test_rows_are_by_how_surely_states_are_told_the_surest_first():
    def witness(state, factor):
        against = [] if factor is None else [{"state": "z", "factor": factor, "log_ratio": 0.5 * factor}]
        certain = factor is None
        return {"state": state, "output": [0.0, 1.0], "gives_away_for_certain": certain, "against": against}

    seen = [witness("a", 1.5), witness("b", None), witness("c", 1.50001), witness("d", 3.0)]
    rows = audit_report._alike({"mechanism": "m", "witnesses": seen, "exposed": ["a", "b", "c", "d", "e", "f"]})
    assert [row[1:3] for row in rows] == [("1", "b"), ("1", "d"), ("2", "a, c"), ("2", "e, f")]
    assert rows[2][3] == "by a log ratio of 1.5 ε = 0.75 or more, at some output"
    assert rows[3][3] == "not looked at one by one"


def test_exposed_cells_are_filled_where_they_are_and_the_map_shows_them_all(found):
    audit = found.audits[0]
    _, ax = new_figure()
    names = found.subject.names
    draw_exposure(ax, GRID.points, found.subject.policy, audit, audit.bodies[0], names, GRID)
    (drawn,) = (one for one in ax.collections if one.get_label() == "exposed states")
    middles = np.array([path.vertices[:4].mean(axis=0) for path in drawn.get_paths()])
    assert middles == pytest.approx(GRID.points[ALONE])
    assert drawn.get_facecolor()[0, :3] == pytest.approx([int(EXPOSED[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    west, east = ax.get_xlim()
    assert west < GRID.points[:, 0].min() - 0.5
    assert east > GRID.points[:, 0].max() + 0.5
    assert ax.get_xlabel() == "east of the centre (km)"


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_page_is_whole_on_a_phone_and_a_desk(sections, browser, tmp_path, width):
    page = tmp_path / "audit.html"
    page.write_text(html_page("Policy audit", "Some state is exposed.", True, sections), encoding="utf-8")
    assert looked_at(browser, page, width) == 4
    assert len(re.findall("<h2>", page.read_text())) == 3
