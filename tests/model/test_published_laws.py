"""A model in which nobody's movement is: its support is physics, and its masses are the laws that it names."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import ConfigurationError
from dphmm.model.published_laws import KINDS, NOBODY, blank
from dphmm.model.speed_limit import SpeedLimit
from dphmm.space.grid import Grid
from dphmm.space.states import Places

TOWN = Grid.over((45.0, 7.0, 45.06, 7.09), 0.5)
MIDDLE = int(TOWN.locate(45.03, 7.045)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_possible_is_what_the_speed_allows_and_every_place_is_as_likely_at_first(kind):
    made = blank(TOWN, 60, kind)
    reach = SpeedLimit(TOWN, 60, KINDS[kind].max_speed_kmh)
    assert (made.transition.astype(bool) != reach.moves).nnz == 0
    np.testing.assert_allclose(made.transition.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(made.initial, 1 / TOWN.size)
    assert made.learned is not None
    assert made.learned["learned_from"] == NOBODY


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [60, 300])
def test_stays_and_distances_are_those_of_people_thrown_by_the_law(kind, step):
    """500,000 throws, seed 0: stays within 5 standard deviations (alpha 6e-7 each), and the mean distance too.

    A region wide enough that nobody thrown from its middle leaves it.
    """
    about, rng, count = KINDS[kind], np.random.default_rng(0), 500_000
    far = about.max_speed_kmh * step / 3600
    wide = Grid.over((44.7, 6.6, 45.3, 7.4), max(0.5, far / 12))
    state = int(wide.locate(45.0, 7.0)[0])
    row = blank(wide, step, kind).transition[[state]].toarray().ravel()
    edges = np.linspace(0, far, 4001)
    cdf = np.concatenate([[0], np.cumsum(about.density((edges[1:] + edges[:-1]) / 2, step / 3600))])
    distance = np.interp(rng.random(count), cdf / cdf[-1], edges) * (rng.random(count) >= about.rest)
    turn = rng.random(count) * 2 * np.pi
    start = rng.random((count, 2)) - 0.5
    end = start + distance[:, None] / wide.cell_km * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    stayed = (np.abs(end) < 0.5).all(axis=1).mean()
    assert row[state] == pytest.approx(stayed, abs=5 * np.sqrt(0.25 / count))
    assert row[state] != pytest.approx(about.rest, abs=5 * np.sqrt(0.25 / count))  # who moves may stay in the cell
    apart = np.hypot(*(wide.points - wide.points[state]).T)
    cells = wide.cell_km * np.hypot(*np.rint(end).T).mean()
    assert row @ apart == pytest.approx(cells, rel=0.25)  # within a ring all are alike


def test_places_without_cells_have_models_too():
    places = Places(["a", "b", "c"], [45.0, 45.01, 45.02], [7.0, 7.0, 7.0])
    made = blank(places, 600, "walking")
    assert made.transition[0, 1] > made.transition[0, 2] > 0


def test_another_kind_is_refused():
    with pytest.raises(ConfigurationError, match="kind is 'flying'; give one of everyday"):
        blank(TOWN, 60, "flying")
