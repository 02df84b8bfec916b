"""Long gaps are the same as one step after another, whether they go by powers, come to rest, or are walked."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.model import (
    Belief,
    MarkovModel,
    Observations,
    TimeClasses,
    filter_releases,
    gaps,
    smooth_releases,
)
from dphmm.model.away import Away
from tests.model.clockwork import FIRST, HOUR, YEAR, stepped, varying
from tests.sizes import fewer, slow


def _outside(seed, varies):
    """A model of four states and two twins, to the second of which no move leads."""
    rng, away = np.random.default_rng(seed), Away(4, [1, 3], [1.0, 2.0], [1.5, 5.0], [0.3, 0.6])
    time_classes = TimeClasses.of("hours", HOUR, "Europe/Berlin") if varies else None
    made = []
    for _ in range(24 if varies else 1):
        rows = rng.random((6, 6)) * (rng.random((6, 6)) < 0.7) + 0.1 * np.eye(6)
        rows[5, 0], rows[:, 5] = 0.5, 0.0
        made.append(rows / rows.sum(axis=1, keepdims=True))
    return MarkovModel(made, np.full((len(made), 4), 1 / 4), None, HOUR, time_classes, away)


@pytest.fixture
def walks(monkeypatch):
    """How many steps were walked, in all."""
    found, real = [], gaps.walked

    def noted(logs, sides):
        found.append(sum(count for _, count in sides))
        return real(logs, sides)

    monkeypatch.setattr(gaps, "walked", noted)
    return found


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kolkata", "+05:45", "America/Santiago", "Africa/Cairo"])
@pytest.mark.parametrize("step", [300, 3600, 7200, 86_400, 420, 660])
@pytest.mark.parametrize("by", ["hours", "weekday-hours"])
def test_periods_hold_the_classes_of_their_steps(zone, step, by):
    time_classes = TimeClasses.of(by, step, zone)
    # Clocks are changed within the 400 days, and within the 250 from September on of everyday tests.
    days = fewer(400, 250)
    first, steps = 1_600_000_000 // step + 5, days * 86_400 // step
    parts = time_classes.periods(first, steps)
    listed = np.concatenate([np.tile(np.repeat(*np.array(runs).T), times) for runs, times in parts])
    np.testing.assert_array_equal(listed, time_classes.classes_of(first + 1 + np.arange(steps)))
    assert len(parts) <= (1 if step == 660 else 12)


@pytest.mark.parametrize("by", ["hours", "weekday-hours"])
@pytest.mark.parametrize("steps", [24 * 8 + 5, 24 * 45, YEAR, slow(10 * YEAR)])
def test_a_long_gap_equals_one_step_after_another(walks, by, steps):
    model = varying(steps, by=by)
    start = np.eye(model.size)[2]
    far = Belief.of(start).predict(model, steps, FIRST)
    np.testing.assert_allclose(far.probabilities, stepped(model, start, steps, FIRST), rtol=1e-9)
    assert sum(walks) <= 24 * 150 * max(1, steps // YEAR)  # clocks are changed twice a year, and the rest with them


@pytest.mark.parametrize("varies", [False, True])
def test_a_long_gap_of_people_outside_equals_one_step_after_another(varies, monkeypatch):
    monkeypatch.setattr(gaps, "POWERS_UP_TO", 0)
    model = _outside(3, varies)
    steps = 8 * 1024 + 11
    far = Belief.first(model, FIRST).predict(model, steps, FIRST)
    expected = stepped(model, np.exp(Belief.first(model, FIRST).chain_logs), steps, FIRST)
    np.testing.assert_allclose(np.exp(far.chain_logs), expected, rtol=1e-9)
    np.testing.assert_array_equal(far.chain_logs > -np.inf, expected > 0)
    assert not (far.chain_logs > -np.inf).all()  # nobody is in a context that nothing leads to


def test_minutes_of_a_region_lose_no_digits():
    """Columns that are a hundred thousandth of others must not bring their rounding into what all have alike."""
    model = varying(1, "UTC", size=120, step=60.0, stay=0.1, least=0.8)
    start, since = np.eye(120)[0], 1440 * 18_000
    far = Belief.of(start).predict(model, 1440 * 60, since)
    np.testing.assert_allclose(far.probabilities, stepped(model, start, 1440 * 60, since), rtol=1e-11)


@pytest.mark.parametrize("outside", [False, True])
def test_filter_and_smoother_pass_long_gaps_both_ways(outside):
    model = _outside(5, True) if outside else varying(5)
    size, gaps = model.size, np.array([1, 24 * 200 + 3, 2, 24 * 30])
    logs = np.log(np.random.default_rng(6).random((4, size)))
    filtering = filter_releases(model, Observations(logs, gaps, FIRST))
    smoothed = smooth_releases(model, Observations(logs, gaps, FIRST), filtering)
    spread = (lambda row: row) if model.away is None else model.away.spread
    at = FIRST + np.concatenate([[0], np.cumsum(gaps[1:])])
    now, ahead = np.exp(Belief.first(model, FIRST).chain_logs), []
    for t in range(4):
        now = now if t == 0 else stepped(model, now, gaps[t], at[t - 1])
        now = now * np.exp(spread(logs[t]))
        now /= now.sum()
        ahead.append(now)
        np.testing.assert_allclose(np.exp(filtering.filtered[t].chain_logs), now, rtol=1e-9)
    behind = np.ones(model.chain_size)
    for t in range(3, -1, -1):
        both = ahead[t] * behind / (ahead[t] @ behind)
        np.testing.assert_allclose(np.exp(smoothed[t].chain_logs), both, rtol=1e-9)
        behind = stepped(model, behind * np.exp(spread(logs[t])), gaps[t], at[t - 1], back=True) if t else behind


def test_who_has_not_mixed_by_then_is_walked(walks):
    slow = [np.array([[1 - 1e-5, 1e-5], [1e-5, 1 - 1e-5]])] * 24
    model = MarkovModel(slow, np.full((24, 2), 0.5), None, HOUR, TimeClasses.of("hours", HOUR))
    for start in ([1.0, 0.0], [0.4, 0.6]):
        far = Belief.of(np.array(start)).predict(model, 24 * 20, FIRST)
        expected = start @ np.linalg.matrix_power(slow[0], 24 * 20)
        np.testing.assert_allclose(far.probabilities, expected, rtol=1e-12)
    assert sum(walks) == 2 * 24 * 20
    rest = Belief.of(np.array([0.5, 0.5])).predict(model, 24 * 20, FIRST)
    np.testing.assert_allclose(rest.probabilities, 0.5, rtol=1e-12)
    assert sum(walks) == 2 * 24 * 20 + 24


def test_what_seems_to_rest_and_does_not_is_walked(walks):
    """A day changes it by a billionth; the broken twin, with that as its bound, takes it for rest."""
    move = 1e-9 / 24
    slow = [np.array([[1 - move, move], [0.0, 1.0]])] * 24
    model = MarkovModel(slow, np.full((24, 2), 0.5), None, HOUR, TimeClasses.of("hours", HOUR))
    far = Belief.of(np.array([0.5, 0.5])).predict(model, 24 * 50, FIRST)
    assert far.probabilities[0] == pytest.approx(0.5 * np.exp(-1e-9 * 50), rel=1e-13)
    assert sum(walks) > 24


def test_a_chain_that_goes_in_circles_is_walked():
    turn = np.roll(np.eye(3), 1, axis=1)
    for model in (
        MarkovModel(turn, [1, 0, 0]),
        MarkovModel([turn] * 24, np.tile([1.0, 0, 0], (24, 1)), None, HOUR, TimeClasses.of("hours", HOUR)),
    ):
        far = Belief.of(np.array([1.0, 0.0, 0.0])).predict(model, 24 * 50 + 1, FIRST)
        assert far.probabilities.tolist() == [0.0, 1.0, 0.0]


def test_several_closed_classes_keep_their_shares():
    one = np.zeros((5, 5))
    one[:2, :2], one[2:4, 2:4] = [[0.5, 0.5], [0.2, 0.8]], [[0.9, 0.1], [0.3, 0.7]]
    one[4] = [0.1, 0.1, 0.3, 0.1, 0.4]
    start = np.array([0.1, 0.2, 0.1, 0.2, 0.4])
    model = MarkovModel([one] * 24, np.full((24, 5), 0.2), None, HOUR, TimeClasses.of("hours", HOUR))
    wanted = start @ np.linalg.matrix_power(one, YEAR)
    for made in (model, MarkovModel(one, start)):
        far = Belief.of(start).predict(made, YEAR, FIRST)
        np.testing.assert_allclose(far.probabilities[:4], wanted[:4], rtol=1e-9)
        assert far.log_mass[4] == pytest.approx(np.log(0.4) * (YEAR + 1), rel=1e-9)


def test_states_that_empty_stay_possible_and_keep_their_mass():
    leaves = [np.array([[0.5, 0.5], [0.0, 1.0]])] * 24
    model = MarkovModel(leaves, np.full((24, 2), 0.5), None, HOUR, TimeClasses.of("hours", HOUR))
    far = Belief.of(np.array([1.0, 0.0])).predict(model, 24 * 100, FIRST)
    assert far.log_mass[0] == pytest.approx(2400 * np.log(0.5), rel=1e-12)


@pytest.mark.parametrize("by", ["hours", "weekday-hours"])
@pytest.mark.parametrize("days", [9, 13, 60, 365])
def test_where_people_mix_slowly_gaps_equal_one_step_after_another(by, days):
    model = varying(11, "UTC", by, size=60, stay=0.6, near=60)
    since, steps = 24 * 18_000, 24 * days
    start = np.exp(-4000.0 * np.random.default_rng(1).random(60))
    far = Belief.of(start).predict(model, steps, since)
    np.testing.assert_allclose(far.probabilities, stepped(model, start, steps, since), rtol=1e-9)
    with np.errstate(divide="ignore"):
        found = np.exp(model.operator(steps, since).backward(np.log(start)))
    np.testing.assert_allclose(found / found.sum(), stepped(model, start, steps, since, back=True), rtol=1e-9)


@pytest.mark.parametrize("steps", [5 * 16 + 3, 16 * 40, 5000, 10**6, 2**62])
@pytest.mark.parametrize("powers", [0, 1024])
def test_one_matrix_goes_many_steps_at_once(monkeypatch, walks, steps, powers):
    monkeypatch.setattr(gaps, "POWERS_UP_TO", powers)
    by_hours = varying(2, size=60, stay=0.9, near=60)
    moves = by_hours.transitions[3].toarray()
    moves[:, 0] = 0.0  # where nobody ever comes to
    model = MarkovModel(moves / moves.sum(axis=1, keepdims=True), np.full(60, 1 / 60), None, HOUR)
    matrix, start = model.transition.toarray(), np.eye(60)[0] + np.eye(60)[3]
    expected = start @ np.linalg.matrix_power(matrix, min(steps, 10**6))
    far = Belief.of(start).predict(model, steps)
    np.testing.assert_allclose(far.probabilities, expected / expected.sum(), rtol=1e-9)
    assert not far.support[0]
    with np.errstate(divide="ignore"):
        behind = np.exp(model.operator(steps).backward(np.log(start)))
    expected = np.linalg.matrix_power(matrix, min(steps, 10**6)) @ start
    np.testing.assert_allclose(behind / behind.sum(), expected / expected.sum(), rtol=1e-9)
    assert sum(walks) <= 8 * 1024


def test_a_gap_goes_the_same_way_whatever_was_asked_before():
    """Or what one person is released would differ, in the tenth digit, with who else was released before."""
    since, lengths = 24 * 18_000, (24 * 2, 24 * 9, 24 * 30, 24 * 400)
    start = np.eye(60)[7]
    for varies in (True, False):
        found = []
        for order in (lengths, lengths[::-1]):
            model = varying(11, "UTC", size=60, stay=0.6, near=60)
            model = model if varies else MarkovModel(model.transitions[0], model.initial)
            found.append({steps: Belief.of(start).predict(model, steps, since).to_bytes() for steps in order})
        assert found[0] == found[1]
