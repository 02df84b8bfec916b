"""Gaps of many days at once are the same as one step after another, and where they would not be nobody takes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from dphmm.markov import (
    Belief,
    Contexts,
    ExtendedModel,
    MarkovModel,
    Observations,
    Rhythm,
    filter_releases,
    smooth_releases,
)
from dphmm.markov import days as days_module
from dphmm.markov import model as model_module
from dphmm.markov.masses import Masses
from dphmm.markov.thin import CHAINED
from tests.markov.clockwork import FIRST, HOUR, YEAR, stepped, varying
from tests.sizes import fewer, slow


def _pairs(seed, varies):
    rng, size = np.random.default_rng(seed), 4
    contexts = Contexts(size, [[0, 0], [0, 1], [1, 1], [1, 2], [2, 0], [2, 1], [3, 1], [3, 3]])
    rhythm = Rhythm.of("hours", HOUR, "Europe/Berlin") if varies else None
    count = 24 if varies else 1
    rows = [
        rng.random((12, size)) * (rng.random((12, size)) < 0.7) + 0.1 * np.eye(size)[contexts.last]
        for _ in range(count)
    ]
    made = [contexts.chain(csr_array(one / one.sum(axis=1, keepdims=True))) for one in rows]
    return ExtendedModel(made, np.full((count, size), 1 / size), None, HOUR, rhythm, contexts)


@pytest.fixture
def taken(monkeypatch):
    """What became of every try to carry masses by whole days: whether it was possible."""
    found, carry = [], days_module.Days.carry

    def noted(self, *given):
        later, days = carry(self, *given)
        found.append(days > 0)
        return later, days

    monkeypatch.setattr(days_module.Days, "carry", noted)
    return found


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kolkata", "+05:45", "America/Santiago", "Africa/Cairo"])
@pytest.mark.parametrize("step", [300, 3600, 7200, 86_400, 420])
def test_whole_days_hold_the_classes_of_their_steps(zone, step):
    rhythm = Rhythm.of("weekday-hours", step, zone)
    # Clocks are changed within the 400 days, and within the 250 from September on of everyday tests.
    days = fewer(400, 250)
    first, steps = 1_600_000_000 // step + 5, days * 86_400 // step
    parts = list(rhythm.days(first, steps))
    assert sum(count for count, _ in parts) == steps
    slot, whole = first, 0
    for count, kind in parts:
        if kind is not None:
            listed = np.repeat(*np.array(kind).T)
            np.testing.assert_array_equal(listed, rhythm.classes_of(slot + 1 + np.arange(count)))
            assert count * step == 86_400
            whole += 1
        slot += count
    assert whole == 0 if step == 420 else days - 10 <= whole <= days
    assert len({kind for _, kind in parts if kind}) <= 8


@pytest.mark.parametrize("by", ["hours", "weekday-hours"])
@pytest.mark.parametrize("steps", [24 * 8 + 5, 24 * 45, YEAR, slow(10 * YEAR)])
def test_a_long_gap_equals_one_step_after_another(taken, by, steps):
    model = varying(steps, by=by)
    start = np.eye(model.size)[2]
    far = Belief.of(start).predict(model, steps, FIRST)
    np.testing.assert_allclose(far.probabilities, stepped(model, start, steps, FIRST), rtol=1e-9)
    assert any(taken)


@pytest.mark.parametrize("varies", [False, True])
def test_a_long_gap_of_second_order_equals_one_step_after_another(taken, varies, monkeypatch):
    monkeypatch.setattr(model_module, "POWERS_UP_TO", 0)
    model = _pairs(3, varies)
    steps = 8 * 1024 + 11
    far = Belief.first(model, FIRST).predict(model, steps, FIRST)
    expected = stepped(model, Belief.first(model, FIRST).masses.plain(), steps, FIRST)
    np.testing.assert_allclose(far.masses.plain(), expected, rtol=1e-9)
    np.testing.assert_array_equal(far.masses.support, expected > 0)
    assert not far.masses.support.all()  # nobody is in a context that nothing leads to
    assert all(taken)
    assert taken


def test_minutes_of_a_region_lose_no_digits(taken):
    """Columns that are a hundred thousandth of others must not bring their rounding into what all have alike."""
    model = varying(1, "UTC", size=120, step=60.0, stay=0.1, least=0.8)
    start, since = np.eye(120)[0], 1440 * 18_000
    far = Belief.of(start).predict(model, 1440 * 60, since)
    np.testing.assert_allclose(far.probabilities, stepped(model, start, 1440 * 60, since), rtol=1e-11)
    assert taken == [True]


@pytest.mark.parametrize("order", [1, 2])
def test_filter_and_smoother_pass_long_gaps_both_ways(taken, order):
    model = varying(5) if order == 1 else _pairs(5, True)
    size, gaps = model.size, np.array([1, 24 * 200 + 3, 2, 24 * 30])
    logs = np.log(np.random.default_rng(6).random((4, size)))
    filtering = filter_releases(model, Observations(logs, gaps, FIRST))
    smoothed = smooth_releases(model, Observations(logs, gaps, FIRST), filtering)
    spread = (lambda row: row) if model.contexts is None else model.contexts.spread
    at = FIRST + np.concatenate([[0], np.cumsum(gaps[1:])])
    now, ahead = Belief.first(model, FIRST).masses.plain(), []
    for t in range(4):
        now = now if t == 0 else stepped(model, now, gaps[t], at[t - 1])
        now = now * np.exp(spread(logs[t]))
        now /= now.sum()
        ahead.append(now)
        np.testing.assert_allclose(filtering.filtered[t].masses.plain(), now, rtol=1e-9)
    behind = np.ones(model.chain_size)
    for t in range(3, -1, -1):
        both = ahead[t] * behind / (ahead[t] @ behind)
        np.testing.assert_allclose(smoothed[t].masses.plain(), both, rtol=1e-9)
        behind = stepped(model, behind * np.exp(spread(logs[t])), gaps[t], at[t - 1], back=True) if t else behind
    assert len(taken) >= 4
    assert any(taken)


def test_who_has_not_mixed_by_then_is_walked(taken):
    slow = [np.array([[1 - 1e-5, 1e-5], [1e-5, 1 - 1e-5]])] * 24
    model = ExtendedModel(slow, np.full((24, 2), 0.5), None, HOUR, Rhythm.of("hours", HOUR))
    far = Belief.of(np.array([1.0, 0.0])).predict(model, 24 * 20, FIRST)
    expected = np.linalg.matrix_power(slow[0], 24 * 20)[0]
    np.testing.assert_allclose(far.probabilities, expected, rtol=1e-12)
    assert taken == [False]
    half = Belief.of(np.array([0.4, 0.6])).predict(model, 24 * 20, FIRST)
    np.testing.assert_allclose(half.probabilities, [0.4, 0.6] @ np.linalg.matrix_power(slow[0], 24 * 20), rtol=1e-9)
    assert taken == [False, True]


def test_states_that_empty_stay_possible_and_keep_their_mass(taken):
    leaves = [np.array([[0.5, 0.5], [0.0, 1.0]])] * 24
    model = ExtendedModel(leaves, np.full((24, 2), 0.5), None, HOUR, Rhythm.of("hours", HOUR))
    far = Belief.of(np.array([1.0, 0.0])).predict(model, 24 * 100, FIRST)
    assert far.log_mass[0] == pytest.approx(2400 * np.log(0.5), rel=1e-12)
    assert not any(taken)


def test_a_day_that_leaves_more_than_the_columns_hold_is_refused(taken, monkeypatch):
    monkeypatch.setattr(days_module, "CHAINED", replace(CHAINED, columns=(3, 5)))
    model = varying(8, "UTC", size=40)
    start = np.eye(40)[7]
    far = Belief.of(start).predict(model, 24 * 30, FIRST)
    np.testing.assert_allclose(far.probabilities, stepped(model, start, 24 * 30, FIRST), rtol=1e-9)
    assert taken == [False]


def test_nobody_tries_more_columns_where_the_first_show_that_all_are_too_few(taken, monkeypatch):
    tries, through = [], days_module.Days._through
    monkeypatch.setattr(days_module.Days, "_through", lambda *given: tries.append(1) or through(*given))
    model = varying(9, "UTC", size=300, stay=0.999)
    start = np.eye(300)[7]
    far = Belief.of(start).predict(model, 24 * 8, FIRST)
    np.testing.assert_allclose(far.probabilities, stepped(model, start, 24 * 8, FIRST), rtol=1e-9, atol=1e-200)
    assert (taken, len(tries)) == ([False], 2)


def test_the_bound_decides_how_many_columns_there_are(monkeypatch):
    """The broken twin: with a bound of one hundredth the same comparison fails."""
    start, steps = np.eye(40)[20], 24 * 8
    off = []
    for bound in (1e-10, 1e-2):
        monkeypatch.setattr(days_module, "CHAINED", replace(CHAINED, off=bound, near=0.0))
        model = varying(8, "UTC", size=40)
        slot = 24 * 18_000
        far = Belief.of(start).predict(model, steps, slot)
        expected, average = stepped(model, start, steps, slot), stepped(model, np.full(40, 1 / 40), 24, slot)
        off.append(float((np.abs(far.probabilities - expected) / average).max()))
    assert off[0] < 1e-10
    assert 1e-9 < off[1] < 1e-2


@pytest.mark.parametrize("by", ["hours", "weekday-hours"])
@pytest.mark.parametrize("days", [9, 13, 60, 365])
def test_where_people_mix_slowly_several_days_are_taken_at_once(taken, by, days):
    model = varying(11, "UTC", by, size=60, stay=0.6, near=60).expecting(1000)
    since, steps = 24 * 18_000, 24 * days
    start = np.exp(-4000.0 * np.random.default_rng(1).random(60))
    far = Belief.of(start).predict(model, steps, since)
    np.testing.assert_allclose(far.probabilities, stepped(model, start, steps, since), rtol=1e-9)
    back = model.moving_back(np.array([0, steps]), np.array([since, since + steps])).carry(Masses.of(start), 1)
    found = back.plain(float(back.exponent.max()))
    np.testing.assert_allclose(found / found.sum(), stepped(model, start, steps, since, back=True), rtol=1e-9)
    assert taken == [True, True]
    assert model._days._survey.days > 1


@pytest.mark.parametrize("steps", [5 * 16 + 3, 16 * 40, 5000, 10**6, 2**62])
def test_many_states_with_one_matrix_go_many_steps_at_once(taken, monkeypatch, steps):
    monkeypatch.setattr(model_module, "POWERS_UP_TO", 0)
    by_hours = varying(2, size=60, stay=0.9, near=60)
    moves = by_hours.transitions[3].toarray()
    moves[:, 0] = 0.0  # where nobody ever comes to
    model = MarkovModel(moves / moves.sum(axis=1, keepdims=True), np.full(60, 1 / 60), None, HOUR).expecting(1000)
    matrix, start = model.transition.toarray(), np.eye(60)[0] + np.eye(60)[3]
    expected = start @ np.linalg.matrix_power(matrix, min(steps, 10**6))
    far = Belief.of(start).predict(model, steps)
    np.testing.assert_allclose(far.probabilities, expected / expected.sum(), rtol=1e-9)
    assert not far.support[0]
    behind = model.moving_back(np.array([0, steps]), None).carry(Masses.of(start), 1)
    expected = np.linalg.matrix_power(matrix, min(steps, 10**6)) @ start
    np.testing.assert_allclose(behind.plain() / behind.plain().sum(), expected / expected.sum(), rtol=1e-9)
    assert taken == [steps > 100] * 2
    assert model._days._survey.days > 1


def test_a_gap_goes_the_same_way_whatever_was_asked_before():
    """Or what one person is released would differ, in the tenth digit, with who else was released before."""
    since, gaps = 24 * 18_000, (24 * 2, 24 * 9, 24 * 30, 24 * 400)
    start, found = np.eye(60)[7], []
    for order in (gaps, gaps[::-1]):
        model = varying(11, "UTC", size=60, stay=0.6, near=60)
        found.append({steps: Belief.of(start).predict(model, steps, since).to_bytes() for steps in order})
    assert found[0] == found[1]


def test_days_are_prepared_where_walking_would_take_half_as_long(monkeypatch):
    """As told by prices alone, of one gap or of as many as are expected or told of; and never for less."""
    since, start = 24 * 18_000, np.eye(60)[7]

    def prepared(days, model):
        Belief.of(start).predict(model, 24 * days, since)
        return bool(model._days._stretches)

    model = varying(11, "UTC", size=60, stay=0.6, near=60)
    assert not prepared(8, model)
    assert prepared(365, model)
    assert prepared(8, varying(11, "UTC", size=60, stay=0.6, near=60).expecting(1000))
    known = model._days._survey
    cost = known.spent + known.days * model._days._price(model.rhythm.week[0], known.basis.shape[1])
    walk = model._days._price(model.rhythm.week[0])
    least = next(days for days in range(1, 100) if 2 * days * walk >= cost)
    assert known.days < least < 40
    for days, expected in ((least - 1, False), (least, True)):
        assert prepared(days, varying(11, "UTC", size=60, stay=0.6, near=60)) == expected
    monkeypatch.setattr(days_module, "_WORTH", 1e9)
    assert prepared(least - 1, varying(11, "UTC", size=60, stay=0.6, near=60))


def test_many_gaps_of_one_stretch_are_worth_what_one_is_not(taken):
    model, count = varying(11, "UTC", size=60, stay=0.6, near=60), 200
    slots = 24 * 18_000 + 24 * 9 * np.arange(count)
    model.moving(np.diff(slots, prepend=slots[0]), slots).carry(Masses.of(np.eye(60)[7]), 3)
    assert taken == [True]


def test_states_without_number_are_walked(monkeypatch):
    monkeypatch.setattr(days_module, "_LARGEST", 10)
    model = varying(11, "UTC", size=60, near=60).expecting(1000)
    Belief.of(np.eye(60)[7]).predict(model, YEAR, FIRST)
    assert "_survey" not in vars(model._days)
