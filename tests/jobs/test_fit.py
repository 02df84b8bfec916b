"""How well a model fits: against counts by hand, and regions that hold what they say where the model is the truth."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import Grid, MarkovModel
from dphmm.errors import ConfigurationError
from dphmm.jobs import fit_of, region
from dphmm.markov import fit_shrunk
from dphmm.space import LocalProjection

GRID = Grid(LocalProjection(45.0, 7.0), (0, 0), 0.5, 8, 6)


def _model(rng):
    walks = [rng.integers(0, GRID.size, 30) for _ in range(20)]
    return fit_shrunk(walks, GRID, 60, 100, 5.0).model


def _people(model, rng, count, length):
    cumulative = model.transition.toarray().cumsum(axis=1)
    states = rng.integers(0, GRID.size, count)
    walks = [states]
    for _ in range(length - 1):
        states = np.minimum((cumulative[states] < rng.random(count)[:, None]).sum(axis=1), GRID.size - 1)
        walks.append(states)
    return np.stack(walks, axis=1)


def _table(path, walks):
    places = GRID.latlon(walks.ravel()).reshape(*walks.shape, 2)
    rows = ["user_id,tracked_at,latitude,longitude"]
    for number, walk in enumerate(places):
        for minute, (latitude, longitude) in enumerate(walk.tolist()):
            time = np.datetime64("2024-03-07", "s") + np.timedelta64(60 * minute, "s")
            rows.append(f"p{number},{time}Z,{latitude:.9f},{longitude:.9f}")
    path.write_text("\n".join(rows) + "\n")
    return path


def test_regions_hold_what_they_say_where_the_model_is_the_truth_and_not_where_it_is_not(tmp_path):
    """Seed 1; 150 people of 60 places, about 8,000 looks: within 0.02, four standard deviations and more."""
    rng = np.random.default_rng(1)
    model = _model(rng)
    walks = _people(model, rng, 150, 60)
    data = _table(tmp_path / "true.csv", walks)
    found = fit_of(model, data, (1, 4))
    assert [(one.steps, one.level) for one in found.coverage] == [(k, q) for k in (1, 4) for q in (0.5, 0.9, 0.99)]
    for one in found.coverage:
        assert one.looks == 150 * (60 - one.steps)
        assert one.said >= one.level - 1e-9
        assert abs(one.held - one.said) < 0.02
    pairs = walks[:, :-1].ravel(), walks[:, 1:].ravel()
    chances = model.transition.toarray()[pairs]
    assert found.log_likelihood == pytest.approx(np.log(chances).mean(), rel=1e-9)
    assert found.even == pytest.approx(-np.log((model.transition.toarray() > 0).sum(axis=1)[pairs[0]]).mean(), rel=1e-9)
    assert (found.people, found.moves, found.known, found.impossible_moves) == (150, 150 * 59, None, 0)
    assert abs(found.stays - found.stays_expected) < 0.02
    sure = model.transition.toarray() ** 3  # the broken twin: a model too sure of itself
    wrong = MarkovModel(sure / sure.sum(axis=1, keepdims=True), model.initial, GRID, 60.0)
    assert all(one.held < one.said - 0.05 for one in fit_of(wrong, data, (1,)).coverage[:2])


def test_impossible_moves_are_said_and_nonsense_is_refused(tmp_path):
    stuck = MarkovModel(np.eye(GRID.size), np.full(GRID.size, 1 / GRID.size), GRID, 60.0)
    data = _table(tmp_path / "true.csv", np.array([[0, 0, 1, 1, 2]]))
    found = fit_of(stuck, data, (1,))
    assert (found.impossible_moves, found.log_likelihood, found.stays) == (0.5, 0.0, 0.5)
    with pytest.raises(ConfigurationError, match="steps"):
        fit_of(stuck, data, (0,))
    elsewhere = tmp_path / "elsewhere.csv"
    elsewhere.write_text((tmp_path / "true.csv").read_text().replace(",7.0", ",9.0"))
    with pytest.raises(ConfigurationError, match="nobody moves"):
        fit_of(stuck, elsewhere)


@pytest.mark.parametrize("preset", ["geolife", "gowalla", "cabspotting"])
def test_a_region_of_a_name_is_one_over_which_gaps_take_no_time(preset):
    """Up to 2,048 states powers of the matrix are kept."""
    assert region(preset).size <= 2048
    assert region(preset, cell=3).size < region(preset).size
