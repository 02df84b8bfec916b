"""Models without data: support from speed, and masses from published distributions."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import ConfigurationError
from dphmm.model.blank_model import KINDS, NO_USERS, region_prior
from dphmm.model.speed_limit import SpeedLimit
from dphmm.space.grid import Grid
from dphmm.space.states import Places

TOWN = Grid.over((45.0, 7.0, 45.06, 7.09), 0.5)
MIDDLE = int(TOWN.locate(45.03, 7.045)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_support_follows_speed_limit_and_start_is_uniform(kind):
    model = region_prior(TOWN, 60, kind)
    reach = SpeedLimit(TOWN, 60, KINDS[kind].max_speed_kmh)
    assert (model.transition.astype(bool) != reach.moves).nnz == 0
    np.testing.assert_allclose(model.transition.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(model.initial, 1 / TOWN.size)
    assert model.provenance is not None
    assert model.provenance["learned_from"] == NO_USERS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [60, 300])
def test_stays_and_distances_match_sampled_distribution(kind, step):
    """500,000 samples, seed 0: stays within 5 standard deviations, and the mean distance.

    Alpha is 6e-7 each. The region is large enough that no sample from its middle leaves it.
    """
    about = KINDS[kind]
    rng = np.random.default_rng(0)
    count = 500_000
    far = about.max_speed_kmh * step / 3600
    wide = Grid.over((44.7, 6.6, 45.3, 7.4), max(0.5, far / 12))
    state = int(wide.locate(45.0, 7.0)[0])
    row = region_prior(wide, step, kind).transition[[state]].toarray().ravel()
    edges = np.linspace(0, far, 4001)
    cdf = np.concatenate([[0], np.cumsum(about.density((edges[1:] + edges[:-1]) / 2, step / 3600))])
    distance = np.interp(rng.random(count), cdf / cdf[-1], edges) * (rng.random(count) >= about.rest)
    turn = rng.random(count) * 2 * np.pi
    start = rng.random((count, 2)) - 0.5
    end = start + distance[:, None] / wide.cell_km * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    stayed = (np.abs(end) < 0.5).all(axis=1).mean()
    assert row[state] == pytest.approx(stayed, abs=5 * np.sqrt(0.25 / count))
    assert row[state] != pytest.approx(about.rest, abs=5 * np.sqrt(0.25 / count))  # a move may stay in the cell
    apart = np.hypot(*(wide.points - wide.points[state]).T)
    cells = wide.cell_km * np.hypot(*np.rint(end).T).mean()
    assert row @ apart == pytest.approx(cells, rel=0.25)  # within a ring all cells have equal probability


def test_named_places_are_supported():
    places = Places(["a", "b", "c"], [45.0, 45.01, 45.02], [7.0, 7.0, 7.0])
    model = region_prior(places, 600, "walking")
    assert model.transition[0, 1] > model.transition[0, 2] > 0


@pytest.mark.parametrize(("latitude", "reached"), [(45.01, True), (46.0, False)])
def test_two_places_have_single_ring(latitude, reached):
    places = Places(["a", "b"], [45.0, latitude], [7.0, 7.0], within_km=0.1)
    model = region_prior(places, 600, "walking")
    np.testing.assert_allclose(model.transition.sum(axis=1), 1, rtol=1e-12)
    assert (model.transition[0, 1] > 0) == reached
    assert model.transition[0, 0] > KINDS["walking"].rest


def test_unknown_kind_raises():
    with pytest.raises(ConfigurationError, match=r"kind .*'flying'"):
        region_prior(TOWN, 60, "flying")
