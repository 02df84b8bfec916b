"""Tests of goodness of fit: counts by hand, and coverage if the model is true."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from dphmm import Grid
from dphmm.errors import ConfigurationError
from dphmm.jobs import evaluate_fit, region
from dphmm.jobs.model import goodness_of_fit as fit
from dphmm.model import Belief, MarkovModel, TimeClasses, fit_shrunk
from dphmm.model.speed_limit import MAX_MOVES, SpeedLimit
from dphmm.space import LocalProjection

GRID = Grid(LocalProjection(45.0, 7.0), (0, 0), 0.5, 8, 6)


def _fit_model(rng):
    walks = [rng.integers(0, GRID.size, 30) for _ in range(20)]
    return fit_shrunk(walks, GRID, 60, 100, 5.0).model


def _sample_walks(model, rng, count, length):
    cumulative = model.transition.toarray().cumsum(axis=1)
    states = rng.integers(0, GRID.size, count)
    walks = [states]
    for _ in range(length - 1):
        states = np.minimum((cumulative[states] < rng.random(count)[:, None]).sum(axis=1), GRID.size - 1)
        walks.append(states)
    return np.stack(walks, axis=1)


def _write_table(path, walks, first="2024-03-07"):
    places = GRID.latlon(walks.ravel()).reshape(*walks.shape, 2)
    rows = ["user_id,tracked_at,latitude,longitude"]
    for number, walk in enumerate(places):
        for minute, (latitude, longitude) in enumerate(walk.tolist()):
            time = np.datetime64(first, "s") + np.timedelta64(60 * minute, "s")
            rows.append(f"p{number},{time}Z,{latitude:.9f},{longitude:.9f}")
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.slow
def test_coverage_matches_level_if_model_is_true_and_not_otherwise(tmp_path):
    """Seed 1: coverage of about 8,000 samples is within 0.02 of the level.

    There are 150 users with 60 locations. The tolerance is at least four standard deviations.
    """
    rng = np.random.default_rng(1)
    model = _fit_model(rng)
    walks = _sample_walks(model, rng, 150, 60)
    data = _write_table(tmp_path / "true.csv", walks)
    fit_result = evaluate_fit(model, data, (1, 4))
    assert [(coverage.steps, coverage.level) for coverage in fit_result.coverage] == [
        (k, q) for k in (1, 4) for q in (0.5, 0.9, 0.99)
    ]
    for coverage in fit_result.coverage:
        assert coverage.num_predictions == 150 * (60 - coverage.steps)
        assert coverage.mean_mass >= coverage.level - 1e-9
        assert abs(coverage.rate - coverage.mean_mass) < 0.02
    pairs = walks[:, :-1].ravel(), walks[:, 1:].ravel()
    chances = model.transition.toarray()[pairs]
    assert fit_result.log_likelihood == pytest.approx(np.log(chances).mean(), rel=1e-9)
    assert fit_result.uniform_log_likelihood == pytest.approx(
        -np.log((model.transition.toarray() > 0).sum(axis=1)[pairs[0]]).mean(), rel=1e-9
    )
    assert (fit_result.num_users, fit_result.moves, fit_result.num_training_users, fit_result.impossible_moves) == (
        150,
        150 * 59,
        None,
        0,
    )
    assert abs(fit_result.stays - fit_result.stays_expected) < 0.02
    overconfident = model.transition.toarray() ** 3  # an overconfident model
    wrong = MarkovModel(overconfident / overconfident.sum(axis=1, keepdims=True), model.initial, GRID, 60.0)
    assert all(coverage.rate < coverage.mean_mass - 0.05 for coverage in evaluate_fit(wrong, data, (1,)).coverage[:2])


def test_impossible_moves_are_counted_and_invalid_arguments_raise(tmp_path):
    stuck = MarkovModel(np.eye(GRID.size), np.full(GRID.size, 1 / GRID.size), GRID, 60.0)
    data = _write_table(tmp_path / "true.csv", np.array([[0, 0, 1, 1, 2]]))
    fit_result = evaluate_fit(stuck, data, (1,))
    assert (fit_result.impossible_moves, fit_result.log_likelihood, fit_result.stays) == (0.5, 0.0, 0.5)
    with pytest.raises(ConfigurationError, match="steps"):
        evaluate_fit(stuck, data, (0,))
    elsewhere = tmp_path / "elsewhere.csv"
    elsewhere.write_text((tmp_path / "true.csv").read_text().replace(",7.0", ",9.0"))
    with pytest.raises(ConfigurationError, match=r"data must contain two consecutive .*: use other data"):
        evaluate_fit(stuck, elsewhere)


def _extend_model(rng):
    """Users stay by day and move by night. Each half of the day is one time class."""
    near = _fit_model(rng).transition.toarray()
    time_classes = TimeClasses(tuple(int(hour % 24 < 12) for hour in range(168)), 60.0, "+05:00")
    matrices = []
    for staying in (0.2, 6.0):
        rows = near * rng.gamma(0.4, size=near.shape)
        rows[np.diag_indices(GRID.size)] += staying * rows.sum(axis=1)
        matrices.append(csr_array(rows / rows.sum(axis=1, keepdims=True)))
    return MarkovModel(matrices, np.full((2, GRID.size), 1 / GRID.size), GRID, 60.0, time_classes)


FIRST = int(np.datetime64("2024-03-07T06:30", "m").astype(int))  # half an hour before noon in the model's time zone


def _simulate_walks(model, rng, count, length):
    walks = np.empty((count, length), dtype=int)
    sums = [rows.toarray().cumsum(axis=1) for rows in model.transitions]
    for walk in walks:
        now = int(rng.integers(GRID.size))
        for k in range(length):
            if k:
                row = sums[model.get_class(FIRST + k)][now]
                now = int(np.searchsorted(row, rng.random() * row[-1], side="right"))
            walk[k] = now
    return walks


@pytest.mark.slow
def test_fit_of_time_dependent_model_matches_beliefs_one_by_one(tmp_path):
    """Every move and every region uses the class of its timestep."""
    rng = np.random.default_rng(1)
    model, steps = _extend_model(rng), (1, 3)
    walks = _simulate_walks(model, rng, 8, 60)
    data = _write_table(tmp_path / "true.csv", walks, "2024-03-07T06:30")
    fit_result = evaluate_fit(model, data, steps)
    logs = []
    stays = []
    covered = {(count, level): [] for count in steps for level in (0.5, 0.9, 0.99)}
    for walk in walks:
        for k in range(59):
            belief = Belief.from_probabilities(np.eye(GRID.size)[walk[k]])
            for count in steps:
                if k + count < 60:
                    ahead = belief.predict(model, count, FIRST + k)
                    for level in (0.5, 0.9, 0.99):
                        covered[count, level].append(ahead.delta_location_set(1 - level)[walk[k + count]])
            ahead = belief.predict(model, 1, FIRST + k).probabilities
            logs.append(np.log(ahead[walk[k + 1]]))
            stays.append(ahead[walk[k]])
    assert fit_result.log_likelihood == pytest.approx(np.mean(logs), rel=1e-9)
    assert fit_result.stays_expected == pytest.approx(np.mean(stays), rel=1e-9)
    for coverage in fit_result.coverage:
        looks = covered[coverage.steps, coverage.level]
        assert (coverage.num_predictions, coverage.rate) == (len(looks), pytest.approx(np.mean(looks)))


@pytest.mark.slow
def test_coverage_of_time_dependent_model_matches_level_only_in_its_zone(tmp_path, monkeypatch):
    """Seed 3, 150 users with 60 minutes about noon, at least 8,550 samples: within 0.025.

    The tolerance is four standard deviations.
    """
    monkeypatch.setattr(fit, "_MAX_STARTS", 10**6)
    rng = np.random.default_rng(3)
    model = _extend_model(rng)
    data = _write_table(tmp_path / "true.csv", _simulate_walks(model, rng, 150, 60), "2024-03-07T06:30")
    fit_result = evaluate_fit(model, data, (1, 3))
    for coverage in fit_result.coverage:
        assert coverage.num_predictions == 150 * (60 - coverage.steps)
        assert abs(coverage.rate - coverage.mean_mass) < 0.025
    assert abs(fit_result.stays - fit_result.stays_expected) < 0.02
    shifted = TimeClasses(model.time_classes.classes, 60.0, "+17:00")  # day and night are exchanged
    wrong = MarkovModel(model.transitions, model.initial_by_class, GRID, 60.0, shifted)
    off = evaluate_fit(wrong, data, (1,))
    assert off.log_likelihood < fit_result.log_likelihood - 0.3
    assert any(abs(coverage.rate - coverage.mean_mass) > 0.05 for coverage in off.coverage)


@pytest.mark.slow
def test_starts_are_subsampled_in_proportion_to_visits(tmp_path, monkeypatch):
    """Seed 4: at least 400 of 5,900 samples agree with all of them within 0.1.

    The tolerance is four standard deviations.
    """
    rng = np.random.default_rng(4)
    model = _extend_model(rng)
    data = _write_table(tmp_path / "true.csv", _simulate_walks(model, rng, 100, 60), "2024-03-07T06:30")
    fit_results = []
    for maximum in (400, 400, 10**6):
        monkeypatch.setattr(fit, "_MAX_STARTS", maximum)
        fit_results.append(evaluate_fit(model, data, (1,)))
    assert fit_results[0] == fit_results[1]
    for coverage, all_of_them in zip(fit_results[0].coverage, fit_results[2].coverage, strict=True):
        assert 400 <= coverage.num_predictions < 1000
        assert all_of_them.num_predictions == 5900
        assert abs(coverage.rate - all_of_them.rate) < 0.1
        assert abs(coverage.mean_mass - all_of_them.mean_mass) < 0.1


@pytest.mark.parametrize("preset", ["geolife", "gowalla", "cabspotting"])
def test_preset_regions_have_few_enough_states_for_matrix_powers(preset):
    """Matrix powers are stored for up to 2,048 states."""
    assert region(preset).size <= 2048
    assert region(preset, cell_km=3).size < region(preset).size


@pytest.mark.slow
def test_default_step_on_published_gowalla_cells_has_too_many_moves():
    """The cells of `region` are larger by default, so that this step is within the limit."""
    with pytest.raises(ConfigurationError, match="6640 states"):
        SpeedLimit(Grid.preset("gowalla"), 3600.0).moves  # noqa: B018
    assert SpeedLimit(region("gowalla"), 3600.0).moves.nnz <= MAX_MOVES
