"""The accuracy of a run under a window budget, and of sampling every timestep instead."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import reduce
from itertools import permutations

import numpy as np
import pytest

from dphmm import ReleaseSettings, Schedule
from dphmm.events import Cap
from dphmm.jobs import Data, batch, learn, region, release
from dphmm.jobs.batch.run_folder import get_user_file_path
from dphmm.jobs.release.window_budget_accuracy import average_users, find_max_rows_per_window, summarize_sampling
from dphmm.model.belief import Belief
from dphmm.writers import ReleaseTable, read_releases
from dphmm.writers.summary import summarise

TOWN = "data/sample/geolife"
SETTINGS = ReleaseSettings("utility:1km", 3.0, schedule=Schedule(window_epsilon=3.0))


@pytest.fixture(scope="module")
def run():
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=1)
    model = learn(Data((TOWN,), exclude_users=("000", "001")), space, step_seconds=1800).model
    return model, release(Data((TOWN,), users=("000", "001")), model, SETTINGS, rng=0)


@pytest.mark.slow
def test_summary_states_numbers_and_errors_of_samples_and_predictions(run):
    _, result = run
    table, sampling = result.table, result.sampling
    sampled = ~table["withheld"]
    assert (sampling.num_released, sampling.num_timesteps) == (sampled.sum(), len(table))
    assert sampling.median_release_rmse_m == np.median(table["expected_error_m"][sampled])
    assert sampling.median_prediction_error_m == np.median(table["estimate_error_m"][~sampled])
    text = sampling.describe()
    assert text.startswith(f"{sampled.sum():,} of {len(table):,} timesteps have a sampled location, with a median RMS")
    assert f"use --epsilon {sampling.even_epsilon:g}, with an RMS noise of " in text
    assert result.to_dict()["sampling"]["even_epsilon"] == sampling.even_epsilon


def test_error_at_an_even_budget_is_that_of_the_planner(run):
    model, result = run
    planner = SETTINGS.engine(model).planner
    prior = Belief.initial(model, 0)
    noise = planner.build_noise(planner.build_plan(prior), result.sampling.even_epsilon)
    assert result.sampling.even_release_rmse_m == pytest.approx(1000 * noise.expected_error(prior), rel=0.01)


def test_budgets_of_the_alternatives_add_up_over_a_window(run):
    _, result = run
    sampling = result.sampling
    assert sampling.num_timesteps_per_window == 48
    assert 0.99 * 3 < sampling.even_epsilon * 48 <= 3
    assert sampling.required_window_epsilon == pytest.approx(48 * sampling.median_epsilon)


def test_timesteps_are_counted_per_user_and_window(run):
    table = run[1].table
    assert find_max_rows_per_window(table, 3600.0) == 2
    assert find_max_rows_per_window(table.select(table["user"] == "000"), 1e9) == (table["user"] == "000").sum()


@pytest.mark.parametrize("schedule", [None, Schedule(target_error=0.5)], ids=["every timestep", "error target"])
def test_runs_without_a_window_budget_have_no_summary(run, schedule):
    assert summarize_sampling(run[1].table, replace(SETTINGS, schedule=schedule)) is None


def test_tables_have_no_error_at_an_even_budget(run):
    sampling = summarize_sampling(run[1].table, replace(SETTINGS, mechanism="optimal", noise_scope="component"))
    assert np.isnan(sampling.even_release_rmse_m)
    assert f"use --epsilon {sampling.even_epsilon:g} (3 spread over" in sampling.describe()


def test_summaries_of_users_are_added_up(run):
    table = run[1].table
    first, second = (summarize_sampling(table.select(table["user"] == user), SETTINGS) for user in ("000", "001"))
    both = average_users(first, second)
    assert both.num_timesteps == len(table)
    low, high = sorted([first.median_prediction_error_m, second.median_prediction_error_m])
    assert low <= both.median_prediction_error_m <= high
    assert both.num_timesteps_per_window == 48
    values = both.to_dict()
    assert values["mean_user_median_prediction_error_m"] == pytest.approx(both.median_prediction_error_m)
    assert not any(name.startswith("median_") for name in values), "an average of medians is not a median"
    assert "averaged over users" in both.describe()
    assert "averaged over users" not in first.describe()


def test_errors_of_samples_exclude_unprotected_ones(run):
    """Half of the samples are unprotected, which lowers the error expected before a release."""
    table = run[1].table
    sampled = np.flatnonzero(~table["withheld"])
    unprotected = np.isin(np.arange(len(table)), sampled[::2])
    errors = np.where(unprotected, 0.0, 3 * table["expected_error_m"])
    budgets = np.where(unprotected, 9.0, table["epsilon"])
    table = ReleaseTable({**table.columns, "unprotected": unprotected, "component_error_m": errors, "epsilon": budgets})
    sampling = summarize_sampling(table, SETTINGS)
    assert (sampling.num_released, sampling.num_unprotected) == (len(sampled), len(sampled[::2]))
    assert sampling.median_release_rmse_m == 3 * np.median(table["expected_error_m"][sampled[1::2]])
    assert sampling.median_epsilon == np.median(budgets[sampled[1::2]]) < 9.0
    both = average_users(sampling, replace(sampling, num_unprotected=sampling.num_released, median_epsilon=9.0))
    assert both.median_epsilon == sampling.median_epsilon, "exact locations have no weight"
    assert sampling.even_release_rmse_m == pytest.approx(3 * run[1].sampling.even_release_rmse_m, rel=0.01)
    text = f"{len(sampled):,} of {len(table):,} timesteps have a sampled location, {len(sampled[::2]):,} unprotected "
    assert sampling.describe().startswith(f"{text}and exact, the others with a median RMS noise of ")
    assert compute_result_error(run, table) == sampling.median_release_rmse_m
    everywhere = ReleaseTable({**table.columns, "unprotected": ~table["withheld"]})
    assert summarize_sampling(everywhere, SETTINGS).describe().partition(".")[0].endswith("location, all of them exact")


def compute_result_error(run, table):
    return replace(run[1], table=table).to_dict()["median_release_rmse_m"]


@pytest.mark.slow
@pytest.mark.parametrize("maximum", [None, 0.61], ids=["no cap", "cap"])
def test_every_epsilon_in_the_summary_samples_every_timestep(run, maximum):
    """With the cap, no single budget does."""
    model, _ = run
    event = "at:data/districts.geojson#University on 2024-03-08 any day 10-16"
    settings = replace(SETTINGS, caps=() if maximum is None else (Cap(event, maximum),))
    data = Data((TOWN,), users=("000",))
    sampling = release(data, model, settings, rng=0).sampling
    for summary in (sampling, average_users(sampling, sampling)):
        epsilons = re.findall(r"--epsilon (\d+\.?\d*)", summary.describe())
        assert len(epsilons) == (2 if maximum is None else 0)
    is_withheld = [
        release(data, model, replace(settings, epsilon=epsilon, schedule=None), rng=0).table["withheld"].any()
        for epsilon in (sampling.even_epsilon, sampling.median_epsilon)
    ]
    assert is_withheld == 2 * [maximum is not None]


def test_averages_weight_users_by_the_timesteps_that_they_describe(run):
    """A user without a sample does not count for the errors of samples, in any order."""
    base = run[1].sampling
    users = [
        replace(base, num_released=0, num_timesteps=1000, median_release_rmse_m=np.nan, even_release_rmse_m=np.nan),
        replace(base, num_released=10, num_timesteps=10, median_release_rmse_m=500.0, median_prediction_error_m=np.nan),
        replace(base, num_released=30, num_timesteps=40, median_release_rmse_m=1000.0, median_prediction_error_m=900.0),
    ]
    expected = (1000 * base.median_prediction_error_m + 10 * 900.0) / 1010
    for order in permutations(users):
        summary = reduce(average_users, order)
        assert summary.median_release_rmse_m == pytest.approx((10 * 500 + 30 * 1000) / 40)
        assert summary.median_prediction_error_m == pytest.approx(expected)
        assert summary.even_release_rmse_m == pytest.approx(base.even_release_rmse_m)


def test_batch_summary_counts_users_without_a_withheld_timestep(run, tmp_path):
    """The budget suffices for the single timestep of the second user only."""
    model, _ = run
    lines = [f"ann,2024-03-07T{hour:02}:{minute},45.0,-30.0" for hour in range(24) for minute in ("00:00Z", "30:00Z")]
    lines = ["user,time,latitude,longitude", *lines, lines[0].replace("ann", "bob")]
    (tmp_path / "two.csv").write_text("\n".join(lines))
    model.save(tmp_path / "m.npz")
    settings = replace(SETTINGS, schedule=Schedule(window_epsilon=72.0))
    done = batch(tmp_path / "two.csv", tmp_path / "out", tmp_path / "m.npz", settings, rng=3, workers=1)
    assert summarise(read_releases(get_user_file_path(tmp_path / "out", "bob", "parquet")))[0]["num_withheld"] == 0
    assert done.sampling.num_timesteps == 49
    assert done.sampling.num_released == done.to_dict()["num_released"]
    parts = Data((tmp_path / "two.csv",), users=("ann",)), tmp_path / "two.csv"
    for number, data in enumerate(parts):
        done = batch(data, tmp_path / "parts", tmp_path / "m.npz", settings, rng=3, workers=1, resume=number > 0)
        assert done.sampling.num_timesteps == 48 + number, "a resumed batch summarises the whole folder"


@pytest.mark.parametrize(
    ("seconds", "window"),
    [(600.0, "10 minutes"), (3600.0, "hour"), (28800.0, "8 hours"), (86400.0, "24 hours"), (604800.0, "7 days")],
)
@pytest.mark.parametrize("epsilon", [0.0001, 0.5, 20.0, 1000.0])
def test_sentences_are_whole_for_every_window_and_budget(run, seconds, window, epsilon):
    summary = replace(run[1].sampling, window_epsilon=epsilon, window_hours=seconds / 3600.0)
    last = summary.describe().rpartition(". ")[2]
    assert re.fullmatch(
        r"To sample every timestep as accurately as now, use --epsilon [\d.]+: "
        rf"the timesteps of any {window} then spend up to [\d.,]+\.",
        last,
    )
    assert f"({epsilon:g} spread over 48 timesteps)." in summary.describe()


@pytest.mark.parametrize("budget", [2.12132, 3.53553, 0.7071, 12.0])
def test_stated_epsilon_spends_at_most_stated_total(run, budget):
    summary = replace(run[1].sampling, median_epsilon=budget, required_window_epsilon=264 * budget)
    last = summary.describe().rpartition(". ")[2]
    epsilon, total = (float(number.replace(",", "").rstrip(".")) for number in re.findall(r"[\d.,]*\d", last)[::2])
    assert 0.999 * budget < epsilon <= budget
    assert 264 * epsilon <= total
