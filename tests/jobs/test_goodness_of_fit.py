"""How well a model fits: against counts by hand, and regions that hold what they say where the model is the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from dphmm import Grid
from dphmm.errors import ConfigurationError
from dphmm.jobs import fit_of, region
from dphmm.jobs import goodness_of_fit as fit
from dphmm.model import Belief, MarkovModel, TimeClasses, fit_shrunk
from dphmm.model.speed_limit import MOST_MOVES, SpeedLimit
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


def _table(path, walks, first="2024-03-07"):
    places = GRID.latlon(walks.ravel()).reshape(*walks.shape, 2)
    rows = ["user_id,tracked_at,latitude,longitude"]
    for number, walk in enumerate(places):
        for minute, (latitude, longitude) in enumerate(walk.tolist()):
            time = np.datetime64(first, "s") + np.timedelta64(60 * minute, "s")
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
    with pytest.raises(ConfigurationError, match="no one moves"):
        fit_of(stuck, elsewhere)


def _extended(rng):
    """By day people stay, by night they go; one class for each half of the day."""
    near = _model(rng).transition.toarray()
    time_classes = TimeClasses(tuple(int(hour % 24 < 12) for hour in range(168)), 60.0, "+05:00")
    made = []
    for staying in (0.2, 6.0):
        rows = near * rng.gamma(0.4, size=near.shape)
        rows[np.diag_indices(GRID.size)] += staying * rows.sum(axis=1)
        made.append(csr_array(rows / rows.sum(axis=1, keepdims=True)))
    return MarkovModel(made, np.full((2, GRID.size), 1 / GRID.size), GRID, 60.0, time_classes)


FIRST = int(np.datetime64("2024-03-07T06:30", "m").astype(int))  # half an hour before noon in the rhythm's zone


def _walks(model, rng, count, length):
    walks = np.empty((count, length), dtype=int)
    sums = [rows.toarray().cumsum(axis=1) for rows in model.transitions]
    for walk in walks:
        now = int(rng.integers(GRID.size))
        for k in range(length):
            if k:
                row = sums[model.class_of(FIRST + k)][now]
                now = int(np.searchsorted(row, rng.random() * row[-1], side="right"))
            walk[k] = now
    return walks


def test_models_by_the_clock_are_looked_at_in_their_own_terms(tmp_path):
    """Against beliefs one by one: every move and every region by its class."""
    rng = np.random.default_rng(1)
    model, steps = _extended(rng), (1, 3)
    walks = _walks(model, rng, 8, 60)
    data = _table(tmp_path / "true.csv", walks, "2024-03-07T06:30")
    found = fit_of(model, data, steps)
    logs, stays, held = [], [], {(count, level): [] for count in steps for level in (0.5, 0.9, 0.99)}
    for walk in walks:
        for k in range(59):
            belief = Belief.of(np.eye(GRID.size)[walk[k]])
            for count in steps:
                if k + count < 60:
                    ahead = belief.predict(model, count, FIRST + k)
                    for level in (0.5, 0.9, 0.99):
                        held[count, level].append(ahead.location_set(1 - level)[walk[k + count]])
            ahead = belief.predict(model, 1, FIRST + k).probabilities
            logs.append(np.log(ahead[walk[k + 1]]))
            stays.append(ahead[walk[k]])
    assert found.log_likelihood == pytest.approx(np.mean(logs), rel=1e-9)
    assert found.stays_expected == pytest.approx(np.mean(stays), rel=1e-9)
    for one in found.coverage:
        looks = held[one.steps, one.level]
        assert (one.looks, one.held) == (len(looks), pytest.approx(np.mean(looks)))


def test_regions_by_the_clock_hold_what_they_say_and_not_those_of_another_zone(tmp_path, monkeypatch):
    """Seed 3; 150 people of 60 minutes about noon, 8,550 looks and more: within 0.025, four standard deviations."""
    monkeypatch.setattr(fit, "_MOST_STARTS", 10**6)
    rng = np.random.default_rng(3)
    model = _extended(rng)
    data = _table(tmp_path / "true.csv", _walks(model, rng, 150, 60), "2024-03-07T06:30")
    found = fit_of(model, data, (1, 3))
    for one in found.coverage:
        assert one.looks == 150 * (60 - one.steps)
        assert abs(one.held - one.said) < 0.025
    assert abs(found.stays - found.stays_expected) < 0.02
    elsewhere = TimeClasses(model.time_classes.classes, 60.0, "+17:00")  # the broken twin: night is day
    wrong = MarkovModel(model.transitions, model.starts, GRID, 60.0, elsewhere)
    off = fit_of(wrong, data, (1,))
    assert off.log_likelihood < found.log_likelihood - 0.3
    assert any(abs(one.held - one.said) > 0.05 for one in off.coverage)


def test_of_many_starts_some_are_looked_at_each_as_often_as_people_are_there(tmp_path, monkeypatch):
    """Seed 4; at least 400 looks drawn of 5,900 hold what all do within 0.1, four standard deviations."""
    rng = np.random.default_rng(4)
    model = _extended(rng)
    data = _table(tmp_path / "true.csv", _walks(model, rng, 100, 60), "2024-03-07T06:30")
    found = []
    for most in (400, 400, 10**6):
        monkeypatch.setattr(fit, "_MOST_STARTS", most)
        found.append(fit_of(model, data, (1,)))
    assert found[0] == found[1]
    for one, all_of_them in zip(found[0].coverage, found[2].coverage, strict=True):
        assert 400 <= one.looks < 1000
        assert all_of_them.looks == 5900
        assert abs(one.held - all_of_them.held) < 0.1
        assert abs(one.said - all_of_them.said) < 0.1


@pytest.mark.parametrize("preset", ["geolife", "gowalla", "cabspotting"])
def test_a_region_of_a_name_is_one_over_which_gaps_take_no_time(preset):
    """Up to 2,048 states powers of the matrix are kept."""
    assert region(preset).size <= 2048
    assert region(preset, cell=3).size < region(preset).size


def test_default_step_on_published_gowalla_cells_allows_too_many_moves():
    """The reason for the larger default cells of `region`, on which the same step is within the limit."""
    with pytest.raises(ConfigurationError, match="moves between 6640 states are possible within a step"):
        SpeedLimit(Grid.preset("gowalla"), 3600.0).moves  # noqa: B018
    assert SpeedLimit(region("gowalla"), 3600.0).moves.nnz <= MOST_MOVES
