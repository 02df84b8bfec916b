"""Tests of the figures of Cao et al. (DBSec 2023): epsilon, estimators and verdicts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln

from dphmm import leakage
from dphmm.errors import InvalidInputError
from dphmm.evaluation.figures import FigureOptions, figure_builders
from dphmm.evaluation.figures import counts as paper
from dphmm.evaluation.figures.counts import DIVIDED, EACH, LEAKAGE, MAP_FREQUENCY, MAP_UNIFORM, MLE, NOISY, TOTAL
from dphmm.model import compute_stationary_distribution, reverse
from tests.counts.oracles import compute_brute_force_optimum, compute_log_multinomial, list_counts

SAMPLE = Path(__file__).parents[2] / "data" / "sample" / "geolife"
SAMPLE_BOX = (44.97, -30.04, 45.03, -29.96)
CYCLE = np.array([[0.0, 0.0, 1.0], [0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])

# Probability of rejecting two equal ratios, in `has_equal_means`.
ALPHA = 1e-4


def measure(reading, level, degree=0.0, steps=500, runs=16, seed=1):
    matrix = paper.build_smoothed_matrix(degree)
    budgets = paper.compute_budgets(reading, level, matrix, steps)
    return paper.measure_errors(matrix, budgets, runs, np.random.default_rng(seed), smoother_runs=0)


def simulate_ratio(total_epsilon, steps, runs, seed):
    """Return log ratios of the errors of the MLE and of MAP with the uniform prior.

    The simulation is user-wise and does not use the package. The MAP counts of 200 users in 3 places are the cheapest
    of all 20,301 count vectors.
    """
    rng, users = np.random.default_rng(seed), 200
    scale = 2.0 / (total_epsilon / steps)
    first, second = np.meshgrid(np.arange(users + 1), np.arange(users + 1), indexing="ij")
    inside = first + second <= users
    vectors = np.stack([first[inside], second[inside], users - first[inside] - second[inside]])
    errors = np.empty((2, runs))
    for run in range(runs):
        places = rng.integers(3, size=users)
        p = np.full(3, 1 / 3)
        squares = np.zeros((2, steps))
        for step in range(steps):
            true = np.bincount(places, minlength=3)
            noisy = true + rng.laplace(0.0, scale, 3)
            cost = np.abs(noisy[:, None] - np.arange(users + 1)) / scale + gammaln(np.arange(users + 1) + 1.0)
            cost = cost - np.arange(users + 1) * np.log(p)[:, None]
            best = vectors[:, sum(cost[i][vectors[i]] for i in range(3)).argmin()]
            positive = np.maximum(noisy, 0.0)
            positive = positive if positive.any() else np.ones(3)
            squares[:, step] = [((row - true) ** 2).mean() for row in (users * positive / positive.sum(), best)]
            p = p @ CYCLE
            places = np.array([2, 0, 1])[places] + 2 * ((places == 1) & (rng.random(users) < 0.5))
        errors[:, run] = squares.mean(axis=1)
    return np.log(errors[0] / errors[1])


def has_equal_means(measured, independent):
    """Return whether the means of two samples agree at level `ALPHA` by Student's test."""
    return stats.ttest_ind(measured, independent).pvalue > ALPHA


@pytest.mark.slow
def test_total_epsilon_is_divided_by_the_number_of_times():
    """With total ε = 1 and T = 500, our runs agree with an independent simulation.

    8 runs (seed 1) are compared with 3 independent ones (seed 2) at level `ALPHA`. The same estimators with ε at each
    timestep are rejected.
    """
    independent = simulate_ratio(1.0, 500, 3, seed=2)
    total, per_step = (measure(reading, 1.0, runs=8) for reading in (TOTAL, EACH))
    assert has_equal_means(np.log(total[MLE] / total[MAP_UNIFORM]), independent)
    assert not has_equal_means(np.log(per_step[MLE] / per_step[MAP_UNIFORM]), independent)
    assert 100 < np.exp(independent.mean()) < 160


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reading", "ratios"),
    [(TOTAL, {0.2: 87, 1.0: 86, 2.0: 82}), (EACH, {0.2: 4.7, 1.0: 0.9, 2.0: 0.6})],
    ids=["total", "each"],
)
def test_ratio_of_mle_to_map_agrees_with_recorded_values(reading, ratios):
    """The recorded values have few runs and integer noise, hence the factor of 1.2."""
    for level, expected in ratios.items():
        errors = measure(reading, level, runs=10)
        ratio = paper.compute_ratio_interval(errors[MLE], errors[MAP_FREQUENCY])
        assert ratio.low / 1.2 < expected < ratio.high * 1.2


@pytest.mark.slow
def test_noisy_error_grows_with_the_number_of_times_in_total_only():
    """It is 2 λ² with λ = 2 T / ε. The standard error is 3.2 %."""
    for steps, expected in {100: 7.8e4, 150: 1.7e5, 200: 3.2e5}.items():
        total, each = (measure(reading, 1.0, 0.01, steps)[NOISY].mean() for reading in (TOTAL, EACH))
        assert total == pytest.approx(expected, rel=0.1)
        assert total == pytest.approx(2 * (2 * steps) ** 2, rel=0.1)
        assert each == pytest.approx(8, rel=0.1)


def test_budgets_follow_their_reading():
    matrix = paper.build_smoothed_matrix(0.01)
    backward = reverse(matrix, compute_stationary_distribution(matrix))
    assert paper.compute_budgets(TOTAL, 2.0, matrix, 50).sum() == pytest.approx(2.0)
    assert (paper.compute_budgets(EACH, 2.0, matrix, 50) == 2.0).all()
    level = paper.compute_budgets(LEAKAGE, 1.0, matrix, 50)
    np.testing.assert_allclose(leakage.temporal_leakage(backward, matrix, level), 1.0, rtol=1e-6)
    divided = paper.compute_budgets(DIVIDED, 1.0, matrix, 50)
    assert leakage.temporal_leakage(backward, matrix, [50 * divided[0]] * 5000).max() == pytest.approx(1.0, rel=1e-3)
    with pytest.raises(InvalidInputError, match=r"reading .*one of"):
        paper.compute_budgets("ε", 1.0, matrix, 50)


def test_simulated_users_move_by_the_matrix():
    true = paper.simulate_counts(CYCLE, 200, 400, 5, np.random.default_rng(1))
    assert (true.sum(axis=2) == 200).all()
    assert (true[:, 1:, 1] == true[:, :-1, 2]).all()  # all users of place 2 move to 1, and only they do
    # Users of place 1 move to 0 or 2 with equal probability; a two-sided binomial test at level 1e-4, seed 1.
    assert stats.binomtest(int(true[:, 1:, 0].sum()), int(true[:, :-1, 1].sum()), 0.5).pvalue > 1e-4


@pytest.mark.parametrize("integer", [True, False])
def test_stacked_streams_match_package_estimates(integer):
    from dphmm import counts

    rng, scales = np.random.default_rng(3), np.array([2.0, 50.0, 7.0])
    noisy = rng.normal(60, 60, (4, 3, 3))
    for uniform, prior in ((False, "frequency"), (True, "uniform")):
        stacked, _ = paper.estimate_map_counts(noisy, CYCLE, 200, scales, uniform, integer)
        for stream, estimate in zip(noisy, stacked, strict=True):
            np.testing.assert_array_equal(
                estimate, counts.estimate("single", stream, CYCLE, 200, scales, prior, integer)
            )


def test_restarting_estimate_is_the_optimum_after_the_previous_estimate():
    """The optimum enumerates all counts of six users, with P^t from the previous estimate."""
    rng, scales = np.random.default_rng(4), np.array([2.0, 0.7, 5.0, 20.0])
    noisy = rng.normal(2, 4, (20, 4, 3))
    for stream, estimate in zip(noisy, paper.estimate_map_from_previous(noisy, CYCLE, 6, scales), strict=True):
        positive = np.maximum(stream[0], 0.0)
        p = positive / positive.sum() if positive.any() else np.full(3, 1 / 3)
        for row, counts, scale in zip(stream, estimate, scales, strict=True):
            cost = np.abs(row - counts).sum() / scale - compute_log_multinomial(counts, p)
            assert cost == pytest.approx(compute_brute_force_optimum(row, p, 6, scale))
            p = counts / 6 @ CYCLE
    assert len(list_counts(6, 3)) == 28


def compute_coverage_p_value(shrink, repetitions=1000, runs=20):
    """Return the p-value of the coverage of 95 % intervals of a ratio of two.

    The runs are paired and lognormal, seed 5.
    """
    rng, inside = np.random.default_rng(5), 0
    for _ in range(repetitions):
        common = rng.normal(size=runs)
        denominator = np.exp(0.3 * (common + rng.normal(size=runs)))
        numerator = 2 * np.exp(0.3 * (common + rng.normal(size=runs)))
        ratio = paper.compute_ratio_interval(numerator, denominator)
        margin = (ratio.high / ratio.value) ** shrink
        inside += ratio.value / margin < 2 < ratio.value * margin
    return stats.binomtest(inside, repetitions, 0.95).pvalue


def test_ratio_interval_has_stated_coverage():
    """Binomial test at level 1e-3 of 1000 intervals. 0.8 times the width is rejected."""
    assert compute_coverage_p_value(1.0) > 1e-3
    assert compute_coverage_p_value(0.8) < 1e-3


def test_mean_interval_is_students():
    values = np.random.default_rng(6).normal(size=12)
    low, high = stats.t.interval(0.95, 11, values.mean(), stats.sem(values))
    assert paper.compute_mean_interval(values) == pytest.approx((values.mean(), low, high))
    assert np.isnan(paper.compute_mean_interval(values[:1])[1:]).all()


@pytest.mark.parametrize(
    ("intervals", "verdict"),
    [
        ([(2, 1.5, 3), (5, 4, 6)], "holds"),
        ([(2, 1.5, 3), (0.5, 0.4, 0.6)], "does not hold"),
        ([(2, 1.5, 3), (1.1, 0.9, 1.3)], "not decided"),
        ([(2, 1.5, 3), (12, 11, 13)], "does not hold"),
        ([(2, np.nan, np.nan)], "not decided"),
    ],
    ids=["all above", "one below", "one around bound", "one beyond upper bound", "no interval"],
)
def test_verdicts_follow_from_intervals(intervals, verdict):
    assert paper.decide([paper.Interval(*interval) for interval in intervals], 1.0, 10.0) == verdict


OPTIONS = FigureOptions(runs=2)
SMALL = {
    "figure_3": lambda: paper.build_figure_3(OPTIONS, steps=50),
    "figure_4": lambda: paper.build_figure_4(OPTIONS, levels=(0.2, 2.0), steps=8),
    "figure_5": lambda: paper.build_figure_5(OPTIONS, lengths=(6, 9)),
    "figure_6": lambda: paper.build_figure_6(OPTIONS, degrees=(0.01, 1.0), steps=8),
    "geolife": lambda: paper.build_geolife_figure(
        FigureOptions(runs=2, geolife=SAMPLE), SAMPLE_BOX, 2.0, levels=(0.5, 2.0)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_small_figure_states_its_readings(name):
    figure = SMALL[name]()
    assert figure.name == name
    assert "2 runs" in figure.caption
    titles = " ".join(panel.title for panel in figure.panels)
    readings = (TOTAL, EACH, LEAKAGE, DIVIDED) if name in ("figure_4", "figure_5", "figure_6") else (TOTAL, EACH)
    for reading in readings:
        assert reading in titles
        assert any(reading in claim.statement for claim in figure.claims)
    statements = [(claim.figure, claim.statement) for claim in figure.claims]
    assert len(set(statements)) == len(statements)
    assert all(np.isfinite([row[2:4] for row in figure.rows()]).ravel())


def test_every_figure_is_listed_once():
    assert [builder.name for builder in figure_builders("counts")] == list(SMALL)


def test_likeliest_place_favours_no_place():
    """All places are equally likely without a positive noisy count: one row in eight."""
    scales = np.full(20, 1000.0)
    noisy = paper.add_noise(np.zeros((200, 20, 3), dtype=np.int64), scales, np.random.default_rng(1))
    likeliest = paper._compute_integer_estimates(noisy, scales, np.random.default_rng(2))[MLE]
    # Chi-squared test at level 1e-3 on 4000 rows; the first place of each tie is rejected.
    assert stats.chisquare(likeliest.sum(axis=(0, 1))).pvalue > 1e-3
    positive = noisy.max(axis=2) > 0
    assert 400 < (~positive).sum() < 600
    assert (likeliest.argmax(axis=2) == noisy.argmax(axis=2))[positive].all()


@pytest.mark.slow
def test_only_the_authors_variant_excludes_impossible_moves():
    claims = {claim.statement: claim for claim in paper.build_figure_3(FigureOptions(runs=5), steps=50).claims}
    preserved = {statement: claim.verdict for statement, claim in claims.items() if "no impossible moves" in statement}
    assert len(preserved) == 6
    for statement, verdict in preserved.items():
        assert verdict == ("holds" if paper.MAP_CODE in statement else "does not hold")


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "holds"), (1.2, "does not hold")])
def test_claim_without_correlations_measures_chain_without_memory(monkeypatch, factor, verdict):
    losses = []

    def measure_errors(matrix, budgets, runs, rng, smoother_runs):
        losses.append(leakage.loss(matrix, 1.0))
        likeliest = rng.normal(1.0, 0.01, runs)
        return {MLE: likeliest, MAP_FREQUENCY: likeliest, MAP_UNIFORM: factor * likeliest}

    monkeypatch.setattr(paper, "measure_errors", measure_errors)
    figure = paper.build_figure_6(OPTIONS, degrees=(0.1, 1.0), steps=4, smoother_runs=0)
    # The paper does not state that the gain over the MLE depends on the degree of correlation.
    statements = [claim.statement for claim in figure.claims if claim.figure == "Figure 6"]
    assert [statement.partition(" (")[0] for statement in statements] == ["MAP is below the MLE"] * 4
    claims = [claim for claim in figure.claims if claim.figure == "Section 5.3"]
    assert [claim.verdict for claim in claims] == [verdict] * 2
    # The next state is independent of the present one where the loss is zero, which s = 1 does not reach.
    assert losses[-2:] == pytest.approx([0.0, 0.0], abs=1e-12)
    assert min(losses[:-2]) > 0.1


def test_geolife_without_data_raises():
    with pytest.raises(InvalidInputError, match=r"geolife .*folder"):
        paper.build_geolife_figure(FigureOptions())
    (builder,) = (each for each in paper.FIGURES if each.name == "geolife")
    assert builder.list_missing_data(FigureOptions()) == ("geolife",)


@pytest.mark.slow
def test_geolife_has_days_stated_in_documentation(real_data):
    """One run at one level. Sizes and the order of the estimators do not depend on more."""
    options = FigureOptions(runs=1, geolife=real_data / "geolife" / "geolife_beijing.tar.gz")
    figure = paper.build_geolife_figure(options, levels=(1.0,))
    assert figure.caption.startswith("103 days of GeoLife users in 48 places at 72 times. 86 days of other users teach")
    each = {series.label: series.y[0] for series in figure.panels[1].series}
    assert each[paper.SMOOTHER] < each[paper.FILTER] < each[MLE] < each[paper.MAP_LEARNED] < each[NOISY]
