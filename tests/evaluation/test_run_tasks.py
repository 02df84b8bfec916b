"""Tests of the closed-form error: it is the mean over the noise, also with surrogates."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import Grid, MarkovModel, ReleaseSettings
from dphmm.evaluation.config import Setting
from dphmm.evaluation.run import _release_and_measure


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "delta"), [("planar-isotropic", None), ("lattice", 0.5), ("planar-laplace", 0.5)]
)
def test_squared_error_matches_mean_of_sampled_distances(mechanism, delta):
    """400 first releases of one state, seed 5: the mean within five standard errors.

    The level is alpha below 1e-6. With delta the state is not in the constraint set and is replaced by its surrogate.
    An error that ignores the distance to the surrogate must be rejected.
    """
    grid = Grid.over((45.0, -30.05, 45.03, -30.0), 0.5)
    initial = np.full(grid.size, 0.4 / (grid.size - 6))
    initial[:6] = 0.1
    model = MarkovModel(np.eye(grid.size), initial, grid, 60.0)
    settings = ReleaseSettings("utility:1km", 4.0, mechanism, delta=delta)
    engine, state = settings.engine(model, 5), grid.size - 1
    rows = []
    for _ in range(400):
        engine.restart()
        rows.append(_release_and_measure(engine, state))
    squared_errors = np.array([row["error_km"] for row in rows]) ** 2
    (stated,) = {row["squared_error_km2"] for row in rows}
    spread = 5 * squared_errors.std() / np.sqrt(len(squared_errors))
    assert abs(squared_errors.mean() - stated) < spread
    assert rows[0]["used_surrogate"] is (delta is not None)
    if delta is not None:
        assert abs(squared_errors.mean() - rows[0]["expected_error_km"] ** 2) > spread


def test_withheld_timestep_costs_no_epsilon_and_has_error_of_prediction():
    setting = Setting("utility", 1.0, 4.0, "lattice", "exact", "error", 0.0, target_error_km=0.6)
    grid = Grid.over((45.0, -30.05, 45.03, -30.0), 0.5)
    stay = 0.98 * np.eye(grid.size) + 0.02 / grid.size
    model = MarkovModel(stay, np.full(grid.size, 1 / grid.size), grid, 60.0)
    engine = setting.release_settings.engine(model, 5)
    rows = [_release_and_measure(engine, 17) for _ in range(12)]
    assert {row["withheld"] for row in rows} == {True, False}
    for row in rows:
        assert (row["spent_epsilon"] == 0) is row["withheld"]
        if row["withheld"]:
            assert row["error_km"] == row["estimate_error_km"] == pytest.approx(row["squared_error_km2"] ** 0.5)
            assert np.isnan(row["released_x_km"])
