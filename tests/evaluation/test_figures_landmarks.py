"""Tests of landmark figures: values by hand, in rationals and on real data."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from dphmm import landmarks
from dphmm.errors import InvalidInputError
from dphmm.evaluation.figures import FigureOptions
from dphmm.evaluation.figures import landmarks as figures
from dphmm.jobs.progress import suppress_progress
from dphmm.landmarks import Noise

OPTIONS = FigureOptions(runs=1)


def list_verdicts(claims) -> list[str]:
    return [claim.verdict for claim in claims]


def make_noiseless(rng: np.random.Generator) -> Noise:
    return Noise("laplace", lambda value, epsilon: value)


# ---- Scenario ----


def test_scenario_has_the_budgets_of_the_paper():
    figure = figures.build_scenario(OPTIONS)
    assert set(list_verdicts(figure.claims)) == {"holds"}
    budgets = {item.label: item.y.tolist() for item in figure.panels[0].series}
    assert budgets["Uniform"] == [0.2] * 8
    assert budgets["Skip"] == [0, 1, 0, 1, 0, 1, 1, 0]
    sums = {item.label: item.y for item in figure.panels[1].series}
    np.testing.assert_allclose(sums["Uniform"], [0.8, 1, 0.8, 1, 0.8, 1, 1, 0.8])
    np.testing.assert_allclose(sums["event level"], [4, 5, 4, 5, 4, 5, 5, 4])


def test_budgets_of_the_printed_sentence_exceed_the_theorem():
    """The text adds one to the number of landmarks at regular timestamps only."""
    printed = np.where(np.isin(figures.TIMES, figures.SCENARIO), 1 / 4, 1 / 5)
    assert figures.sum_budgets(printed, figures.SCENARIO).max() == pytest.approx(1.2)
    literal = dict.fromkeys(("Skip", "Uniform", "event level", "user level"), printed)
    claims = {claim.statement: claim for claim in figures.judge_budgets(literal, printed, 1.0)}
    assert (
        claims["The budgets of Uniform and Skip over L ∪ {t} sum to at most ε for every t."].verdict == "does not hold"
    )
    assert claims["Uniform spends ε/5 at each timestamp with four landmarks."].published == "not printed"


def test_claims_of_the_scenario_fail_for_other_budgets():
    budgets = {
        "Skip": np.full(8, 0.9),
        "Uniform": landmarks.uniform_scheme(figures.TIMES, figures.NEIGHBOUR, 1.0).epsilons,
        "event level": np.full(8, 1.0),
        "user level": np.full(8, 0.3),
    }
    wrong = figures.judge_budgets(budgets, np.full(8, 0.2), 1.0)
    assert set(list_verdicts(wrong)) == {"does not hold"}


# ---- Adaptive ----


def test_adaptive_claims_hold_in_few_runs():
    figure = figures.compute_adaptive_figure(40, 8, 12, 1)
    assert list_verdicts(figure.claims) == ["holds"] * 3
    assert "means of 12 runs" in figure.caption
    constant, changing = figure.panels[0].series
    assert constant.y[-1] < changing.y[-1]


def test_claims_of_adaptive_fail_for_other_releases():
    landmark = np.array([True, False, True, False])
    slow, fast = (np.outer([1, 1.001], [1, rate, rate, rate]) for rate in (0.3, 0.9))
    sound = np.array([[0.3, 0.3, 0, 0.4]])
    assert list_verdicts(figures.judge_adaptive(slow, fast, {"constant": sound}, landmark, 0.9)) == ["holds"] * 3
    unsound = np.array([[0.8, 0.3, 0, 0.1]])
    wrong = figures.judge_adaptive(fast, slow, {"constant": unsound}, landmark, 0.9)
    assert set(list_verdicts(wrong)) == {"does not hold"}
    undecided = figures.judge_adaptive(fast, fast, {"constant": np.full((1, 4), 0.3)}, landmark, 0.9)
    assert list_verdicts(undecided) == ["not decided", "not decided", "holds"]


# ---- Correlation ----


def test_enumeration_equals_rational_arithmetic():
    # The likelihood ratio of the release is exactly 27/20, hence every probability is rational.
    ratio = Fraction(27, 20)
    chain = [[Fraction(9998, 10000), Fraction(2, 10000)], [Fraction(9881, 10000), Fraction(119, 10000)]]
    by_ends = []
    for a, b in product(range(2), repeat=2):
        between = [chain[a][s] * chain[s][b] for s in range(2)]
        by_ends.append([(between[r] * ratio + between[1 - r]) / sum(between) for r in range(2)])
    largest = max(by_ends[i][r] / by_ends[k][r] for i, k, r in product(range(4), range(4), range(2)))
    leakage = figures.enumerate_between(figures.STATIONARY_CHAIN, math.log(27 / 20))
    assert leakage == pytest.approx(math.log(largest), rel=1e-12)


def test_correlation_has_the_known_counterexample():
    claims = figures.build_correlation(OPTIONS).claims
    assert list_verdicts(claims) == ["does not hold", "holds"]
    assert claims[0].published == "not printed"  # the paper gives the formula without an example
    assert (
        "the formula gives 0.0082 for a release of 0.3; enumerated 0.1362494; bound of this package 0.1362494"
        in claims[0].measured
    )


def test_claims_of_correlation_follow_the_numbers():
    assert figures.judge_sum(0.2, 0.2, 0.1).verdict == "holds"
    assert figures.judge_sum(0.05, 0.2, 0.1).verdict == "does not hold"
    assert figures.judge_positions(np.array([1.0, 1.0]), np.array([2.0, 2.0])).verdict == "does not hold"
    assert figures.judge_positions(np.array([1.0, 1.1]), np.array([2.0, 3.0])).verdict == "does not hold"


# ---- Errors ----


def test_errors_without_noise_come_from_repeated_releases_only():
    values = np.array([5.0, 7, 20, 20, 3, 1])
    rng = np.random.default_rng(3)
    marked = np.sort(np.random.default_rng(3).choice(6, 2, replace=False))
    errors = figures.measure_errors(values, 2 / 6, 1.0, make_noiseless, rng)
    last, expected = None, []
    for t, value in enumerate(values):
        last = last if t in marked and last is not None else value
        expected.append(abs(last - value))
    if 0 in marked:  # the first release that follows is used for earlier timestamps
        first = next(t for t in range(6) if t not in marked)
        expected[:first] = np.abs(values[first] - values[:first]).tolist()
    assert errors["Skip"] == pytest.approx(np.mean(expected))
    assert errors["Uniform"] == errors["event level"] == errors["user level"] == 0


@pytest.mark.slow
def test_errors_of_small_series_have_all_schemes_and_skip_needs_regular_timestamps():
    rng = np.random.default_rng(1)
    counts, tracks = rng.integers(0, 50, 30).astype(float), [rng.random((12, 2)) for _ in range(2)]
    figure = figures.compute_errors_figure(counts, tracks, 3, 1, suppress_progress, shares=(0.0, 0.5, 1.0))
    assert [panel.title for panel in figure.panels] == ["(a) check-ins of 30 days", "(b) tracks of 2 users"]
    for panel in figure.panels:
        curves = {item.label: item for item in panel.series}
        assert set(curves) == {"Skip", "Uniform", "Adaptive", "event level", "user level"}
        assert curves["Skip"].x.tolist() == [0, 50]
        assert curves["Uniform"].x.tolist() == [0, 50, 100]
        assert curves["Uniform"].low is not None
    assert "means of 3 runs (a) and 3 runs (b)" in figure.caption
    assert len(figure.claims) == 4


def test_claims_of_errors_follow_the_numbers():
    shares = (0.0, 0.5, 1.0)
    errors = {
        "Uniform": np.outer([1, 1.001], [1, 3, 9]),
        "Adaptive": np.outer([1, 1.001], [2, 20, 9]),
        "user level": np.outer([1, 1.001], [9, 9, 9]),
    }
    assert list_verdicts(figures.judge_errors("Errors(a)", errors, shares, "metres")) == ["holds", "does not hold"]
    wide = errors | {"Uniform": np.outer([0.1, 2], [1, 8, 9])}
    assert figures.judge_errors("Errors(a)", wide, shares, "metres")[0].verdict == "not decided"


def test_errors_without_data_sets_raise():
    with pytest.raises(InvalidInputError, match="gowalla and geolife"):
        figures.build_errors(OPTIONS)


@pytest.mark.slow
def test_real_series_match_documentation(real_data):
    counts = figures.count_days(real_data / "gowalla" / "loc-gowalla_LA.txt.gz")
    assert len(counts) == 585
    assert counts.sum() == 53_787
    # Event level is discrete Laplace noise of scale 1. Its mean absolute value is 2p/(1 - p²) with p = 1/e. A z test
    # at alpha = 1e-3 on 585 samples, seed 1; the user level differs.
    errors = figures.measure_errors(
        counts, 0.0, 1.0, lambda rng: landmarks.lattice_noise(1, 1, rng), np.random.default_rng(1)
    )
    p = math.exp(-1)
    mean, spread = 2 * p / (1 - p * p), math.sqrt((2 * p / (1 - p) ** 2 - (2 * p / (1 - p * p)) ** 2) / 585)
    assert abs(errors["event level"] - mean) < 3.29 * spread
    assert abs(errors["user level"] - mean) > 3.29 * spread


@pytest.mark.slow
def test_real_tracks_match_documentation(few_of_geolife):
    tracks = figures.read_tracks(few_of_geolife)
    assert 0 < len(tracks) <= 9
    for track in tracks:
        assert 60 <= len(track) <= 200
        assert track.shape[1] == 2
        assert np.abs(track).max() < 300  # kilometres around the user's own mean
