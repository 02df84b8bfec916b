"""Schedules: blind to the truth, within every window, worked out as enumeration says, and the same after a restart."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphmm import Limits, MarkovModel, Releaser, ReleaseSettings, Schedule, Session
from dphmm.errors import BudgetError, ConfigurationError, InvalidInputError, SessionMismatchError
from dphmm.model.belief import Belief
from dphmm.release.schedule import Arrivals, Growth, Scheduling, _represented
from dphmm.release.step import NextRelease
from tests.running_example import F, graph

STAY = np.eye(6) * 0.88 + 0.02
START = np.array([0.3, 0.3, 0.1, 0.1, 0.1, 0.1])
HOUR = 3600.0


def engine(schedule, seed=0, epsilon=6.0, kind=Releaser, **more):
    model = MarkovModel(STAY, START, step_seconds=HOUR)
    return kind(model, F, graph(), epsilon, "lattice", rng=seed, spacing=1, schedule=schedule, **more)


def away(belief, points=F):
    """The expected distance from the mean, written out."""
    mean = sum(p * point for p, point in zip(belief, points, strict=True))
    return sum(p * np.linalg.norm(point - mean) for p, point in zip(belief, points, strict=True))


class Chosen:
    """A mechanism that gives what it is told to."""

    def __init__(self, noise, place) -> None:
        self._noise, self._place = noise, place

    def __getattr__(self, name):
        return getattr(self._noise, name)

    def draw(self, state, source, around=None):
        return self._place


def next_release(releaser, prior):
    """A release before which the belief is a prior."""
    return NextRelease(Belief.of(prior), 1.0, 1, releaser.person, releaser.planner)


def records_of(releaser, truths, places, steps=1):
    """The records of a person who is in these states, where draws give these places."""
    found = []
    for truth, place in zip(truths, places, strict=True):
        step = releaser.prepare_for(truth) if isinstance(releaser, Peeking) else releaser.prepare(steps=steps)
        if not step.withheld:
            step = replace(step, noise=Chosen(step.noise, np.asarray(place)))
        found.append(releaser.drawn(step, releaser.ready(step, truth)))
    return found


class Peeking(Releaser):
    """The broken twin: draws only where the true place is far from the prediction."""

    def prepare_for(self, truth):
        prior = self.prior()
        near = np.linalg.norm(prior.mean(F) - F[truth]) < 1.5
        if near:
            return self.prepare_nothing(prior, 1, "target")
        return self.prepare_on(prior, self.plan(prior), 1.0, 1)


PLACES = np.random.default_rng(1).integers(-3, 6, (30, 2))
AIMS = [Schedule(0.9), Schedule(window_epsilon=12), Schedule(0.7, 20, 8 * HOUR)]


@pytest.mark.parametrize("schedule", AIMS)
def test_under_fixed_draws_all_records_are_equal_for_all_truths(schedule):
    walks = [np.random.default_rng(seed).integers(0, 6, 30) for seed in range(4)]
    first, *others = (records_of(engine(schedule), walk, PLACES) for walk in walks)
    assert all(other == first for other in others)
    assert {record.withheld for record in first} == {True, False}


def test_a_schedule_that_peeks_at_the_truth_fails_that_test():
    walks = [np.full(30, state) for state in (0, 4)]
    first, second = (records_of(engine(None, kind=Peeking), walk, PLACES) for walk in walks)
    assert first != second


def test_a_withheld_moment_tells_the_prediction():
    releaser = engine(Schedule(100.0))
    for steps, belief in ((1, START), (3, START @ np.linalg.matrix_power(STAY, 3))):
        record = releaser.release(2, steps=steps)
        assert (record.withheld, record.reason, record.released, record.epsilon) == (True, "target", None, 0)
        assert (record.possible, record.least_protection, record.constrained_epsilon) == (6, 6, 0)
        assert not record.already_known
        np.testing.assert_allclose(record.estimate, belief @ F, rtol=1e-12)
        assert record.estimate_radius == pytest.approx(away(belief), rel=1e-12)
        assert (record.epsilon_so_far, record.epsilon_last_day) == (0, 0)
    assert np.isnan(releaser.private_diagnostics(2).error)


def test_nothing_is_drawn_exactly_where_the_prediction_is_within_the_target():
    releaser, rng = engine(Schedule(0.9), 3), np.random.default_rng(3)
    for _ in range(60):
        predicted = away(releaser.prior().probabilities)
        assert releaser.release(int(rng.integers(6))).withheld == (predicted <= 0.9)


# ---- what a draw would do --------------------------------------------------------------------------------------------


def enumerated(prior, epsilon):
    """The expected error after a draw from the running example's whole hull, summed over all points within reach."""
    hull = engine(None).plan(Belief.of(START)).protection.hull
    reach = int(12 / epsilon) * 4 + 6
    z = np.stack(np.meshgrid(*[np.arange(-reach, reach + 1)] * 2), axis=-1).reshape(-1, 2)
    norms = np.stack([hull.norm(z - point) for point in F], axis=1)
    likelihood = np.exp(-epsilon * norms)
    likelihood /= likelihood.sum(axis=0)
    total = 0.0
    for joint in likelihood * prior:
        if joint.sum() > 1e-15:
            total += joint.sum() * away(joint / joint.sum())
    return total


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 6.0])
def test_the_error_after_a_draw_is_that_of_enumeration(epsilon):
    """Quadrature by 96 nodes is coarse, by 20 thousand fine: alpha does not enter, as its draws are fixed."""
    prior = np.array([0.4, 0.05, 0.2, 0.2, 0.1, 0.05])
    exact, releaser = enumerated(prior, epsilon), engine(Schedule(0.9))
    for nodes, close in ((96, 0.04 * away(prior)), (20_000, 0.004 * away(prior))):
        scheduling = Scheduling(Schedule(0.9), releaser.model, F, nodes=nodes)
        found = scheduling.outlook(next_release(releaser, prior), away(prior), epsilon)
        assert found.error == pytest.approx(exact, abs=close)


def test_the_broken_noise_of_half_the_scale_fails_that_test():
    prior = np.array([0.4, 0.05, 0.2, 0.2, 0.1, 0.05])
    assert enumerated(prior, 4.0) != pytest.approx(enumerated(prior, 2.0), rel=0.12)


def test_a_belief_in_more_states_than_are_looked_at_is_represented_by_some_that_are_spread_alike():
    """Of 2500 places 768 at most, in blocks of few: mean and spread move by a block's side at most, seed 1."""
    points = np.stack(np.meshgrid(*2 * [np.arange(-30.0, 20.0)]), axis=-1).reshape(-1, 2)
    prior, possible = np.random.default_rng(1).dirichlet(np.ones(2500)), np.arange(2500) % 7 > 0
    states, masses = _represented(prior, possible, points)
    assert 400 < len(states) <= 768
    assert possible[states].all()
    assert masses.sum() == pytest.approx(prior[possible].sum())
    assert prior[states].mean() > 1.5 * prior[possible].mean(), "the likeliest of each block"
    moments = [
        (mean := np.average(place, axis=0, weights=mass), np.average((place - mean) ** 2, axis=0, weights=mass) ** 0.5)
        for place, mass in ((points[states], masses), (points[possible], prior[possible]))
    ]
    np.testing.assert_allclose(*moments, atol=0.3)
    assert np.array_equal(_represented(prior, possible, points + 100.0)[0], states)


def test_the_growth_of_an_error_is_that_of_powers_of_the_matrix():
    model = MarkovModel(STAY, np.full(6, 1 / 6))
    powers = [np.linalg.matrix_power(STAY, steps) for steps in range(8)]
    wanted = np.array([[away(power[state]) for state in range(6)] for power in powers])
    found = Growth.from_model(model, F).errors[:8]
    assert (wanted.min(axis=1) - 1e-12 <= found).all()
    assert (found <= wanted.max(axis=1) + 1e-12).all()
    assert Growth(np.array([0.0, 1.0, 3.0, 4.0])).steps_between(0.5, 3.5) == 2.0


def test_an_error_beyond_the_curve_is_reached_as_it_grew_there_last_and_never_in_less_than_no_time():
    curve = Growth(np.array([0.0, 1.0, 3.0]))
    assert [curve.step_of(error) for error in (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)] == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0]
    assert curve.step_of(1e9) == 2 + 3, "no further than the curve is long"
    assert Growth(np.array([0.0, 2.0, 2.0])).step_of(2.5) == 2 + 3, "where nothing grows any more"
    assert [curve.steps_between(*levels) for levels in ((1.0, 5.0), (3.0, 1.0), (2.0, 2.0))] == [2.0, 0.0, 0.0]


# ---- budgets ---------------------------------------------------------------------------------------------------------


def worst_window(slots, budgets, window):
    """The largest sum within so many consecutive steps, by looking at all of them, in exact numbers."""
    exact = [Fraction(repr(budget)) for budget in budgets]
    return max(
        sum((budget for slot, budget in zip(slots, exact, strict=True) if end - window < slot <= end), Fraction(0))
        for end in slots
    )


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([1, 1, 1, 2, 5, 13]), min_size=5, max_size=40),
    st.sampled_from([0.3, 2.0, 7.5]),
    st.sampled_from([4, 11, 24]),
    st.integers(0, 5),
)
def test_no_window_ever_costs_more_than_its_budget(gaps, budget, window, seed):
    releaser = engine(Schedule(window_epsilon=budget, window_seconds=window * HOUR), seed, 2.5)
    records = [releaser.release(state % 6, steps=gap) for state, gap in enumerate(gaps)]
    slots = np.cumsum([record.steps for record in records]).tolist()
    assert worst_window(slots, [record.epsilon for record in records], window) <= Fraction(repr(budget))


def test_a_day_is_not_spent_in_its_first_hour():
    """Of eight quarters of two days each has a draw, and the greatest steady rate would be spent within a factor."""
    releaser = engine(Schedule(window_epsilon=30.0), 5)
    budgets = np.array([releaser.release(2).epsilon for _ in range(48)])
    assert (budgets.reshape(8, 6).sum(axis=1) > 0).all()
    assert 20 <= budgets.sum() <= 60


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 30), max_size=12), st.sampled_from([1, 7, 20, 60]))
def test_moments_to_come_are_counted_as_they_came_so_far(gaps, steps):
    slots = np.cumsum([0, *gaps])
    now = int(slots[-1]) + 5
    counts, seen = 0.25 * 24 * steps / 100, 0.25
    for one in slots:
        counts += sum(one < other <= one + steps for other in slots)
        seen += min(1.0, (now - one) / steps)
    arrivals = Arrivals(slots, now, 100)
    assert arrivals.after(steps) == pytest.approx(counts / seen)
    assert arrivals.served(steps) == 1 + max(arrivals.after(steps), sum(now - steps < one for one in slots))


def spends_of(reports, budget, days, seed, **more):
    """Slots and budgets of somebody who reports at some ticks of ten minutes between 7 and 22 o'clock each day."""
    rng, model = np.random.default_rng(seed), MarkovModel(STAY, START, step_seconds=600.0)
    schedule = Schedule(window_epsilon=budget)
    releaser = Releaser(model, F, graph(), budget, "lattice", rng=seed, spacing=1, schedule=schedule, **more)
    slots = np.concatenate(
        [144 * day + np.sort(rng.choice(np.arange(42, 132), int(rng.choice(reports)), False)) for day in range(days)]
    )
    releaser.restart(int(slots[0]))
    gaps = np.diff(slots, prepend=slots[0] - 1)
    records = [releaser.release(int(rng.integers(6)), steps=int(gap)) for gap in gaps]
    return slots, np.array([record.epsilon for record in records])


@pytest.mark.parametrize("budget", [3.0, 10.0])
def test_who_reports_20_to_40_times_a_day_has_most_of_a_days_budget_spent(budget):
    """Of six days after the first, with seeds 0 to 2; today's plan for a report at every tick spends far less."""
    for seed in range(3):
        slots, spent = spends_of([20, 30, 40], budget, 7, seed)
        assert spent[slots >= 144].sum() > 0.85 * 6 * budget
        assert worst_window(slots.tolist(), spent.tolist(), 144) <= Fraction(repr(budget))


def test_a_plan_for_a_report_at_every_tick_fails_that_test(monkeypatch):
    monkeypatch.setattr(Arrivals, "after", lambda _, steps: float(steps))
    slots, spent = spends_of([20, 30, 40], 3.0, 7, 0)
    assert spent[slots >= 144].sum() < 0.85 * 6 * 3


def most_told(releaser, window, moments, seed):
    """The greatest log ratio of what any window told, of two paths that the policy joins throughout."""
    rng = np.random.default_rng(seed)
    edges = np.concatenate([graph().edge_array(), graph().edge_array()[:, ::-1]])
    paths = edges[rng.integers(len(edges), size=moments)]
    logs = []
    for first, second in paths:
        step = releaser.prepare()
        record = releaser.draw(step, int(first))
        row = releaser.log_likelihood(step, record.released)
        logs.append(abs(row[first] - row[second]))
    return max(sum(logs[end - window : end]) for end in range(window, moments + 1))


def test_two_days_that_the_policy_joins_are_told_apart_by_no_more_than_a_days_budget():
    """By the densities themselves, in the worst case of every moment at once: no draw of another sign makes up for it.

    The broken twin, which draws at every moment, passes the bound.
    """
    for seed in range(3):
        assert 0 < most_told(engine(Schedule(window_epsilon=5.0), seed, 5.0), 24, 96, seed) <= 5.0 + 1e-9
        assert most_told(engine(None, seed, 5.0), 24, 96, seed) > 5.0


def test_a_target_never_costs_more_than_the_constant_budget_of_the_same_error():
    """The constant's spending at the target's error lies between that of two budgets; seed 0, 200 moments each.

    The broken twin draws as weakly as a moment needs, at nearly all of them.
    """

    def walk(schedule, epsilon, seed):
        rng, releaser = np.random.default_rng(seed), engine(schedule, seed, epsilon)
        state, radii, spent = 0, [], 0.0
        for _ in range(200):
            state = int(rng.choice(6, p=STAY[state] / STAY[state].sum()))
            record = releaser.release(state)
            radii.append(record.estimate_radius)
            spent += record.epsilon
        return float(np.mean(radii)), spent

    constant = np.array([walk(None, epsilon, 0) for epsilon in (0.3, 0.6, 1.2, 2.0, 3.0)])
    found = {(target, most): walk(Schedule(target), most, 0) for target, most in ((0.6, 4.0), (0.9, 4.0), (0.9, 0.5))}
    shares = {how: spent / np.interp(-error, -constant[:, 0], constant[:, 1]) for how, (error, spent) in found.items()}
    assert max(shares[0.6, 4.0], shares[0.9, 4.0]) < 1
    assert shares[0.9, 0.5] > 0.8


def test_a_budget_for_a_window_wants_a_clock_and_what_was_spent():
    with pytest.raises(ConfigurationError, match="needs a model with step_seconds"):
        Releaser(MarkovModel(STAY, START), F, graph(), 1.0, schedule=Schedule(window_epsilon=3))
    releaser = engine(Schedule(window_epsilon=30.0))
    releaser.release(2)
    releaser.resume(releaser.belief, 1)
    with pytest.raises(InvalidInputError, match="what earlier releases cost is not known"):
        releaser.release(2)


def test_queries_answered_together_have_no_schedule():
    releaser = engine(Schedule(0.9))
    with pytest.raises(InvalidInputError, match="one query after another"):
        releaser.release_together(2, releaser.beside(F))


# ---- sessions --------------------------------------------------------------------------------------------------------

BOTH = Schedule(0.6, 14.0, 10 * HOUR)


def walked(path, opened, slots=range(30), seed=5):
    """The records of one session of which several handles are used in turn, each opened anew every so often."""
    source, found, handles = np.random.default_rng(seed), [], []
    for number, slot in enumerate(slots):
        if number % opened == 0:
            for handle in handles:
                handle.close()
            handles = [Session.open(path, "ann", engine(BOTH, source), Limits(epsilon=1000)) for _ in range(2)]
        found.append(handles[number % 2].release(number % 6, slot))
    for handle in handles:
        handle.close()
    return found


def test_a_session_goes_on_after_restarts_and_beside_others_as_if_there_was_none(tmp_path):
    source = np.random.default_rng(5)
    with Session.open(tmp_path / "whole.db", "ann", engine(BOTH, source), Limits(epsilon=1000)) as session:
        whole = [session.release(number % 6, slot) for number, slot in enumerate(range(30))]
        again = [session.release(0, slot) for slot in range(30)]
    assert again == whole
    assert {record.withheld for record in whole} == {True, False}
    for opened in (30, 7, 1):
        assert walked(tmp_path / f"{opened}.db", opened) == whole
    assert worst_window(list(range(30)), [record.epsilon for record in whole], 10) <= 14


def test_limits_of_a_session_hold_beside_a_schedule(tmp_path):
    from dphmm.errors import BudgetExceededError

    with Session.open(tmp_path / "s.db", "ann", engine(Schedule(0.3), 1), Limits(epsilon=9)) as session:
        refused = 0
        for slot in range(50):
            try:
                session.release(2, slot)
            except BudgetExceededError:
                refused += 1
        assert refused > 0
        assert 0 < session.ledger().epsilon <= 9


def test_another_schedule_is_another_promise(tmp_path):
    with Session.open(tmp_path / "s.db", "ann", engine(BOTH)):
        pass
    with pytest.raises(SessionMismatchError, match="began with schedule"):
        Session.open(tmp_path / "s.db", "ann", engine(None))


# ---- settings --------------------------------------------------------------------------------------------------------


def test_settings_with_a_schedule_read_back():
    one = ReleaseSettings(epsilon=3, schedule=Schedule(0.5, 5, 7200))
    assert ReleaseSettings.from_json(one.to_json()) == one
    assert ReleaseSettings.from_toml(one.to_toml()) == one
    assert ReleaseSettings.from_dict({"schedule": {"target_error": 0.5}}).schedule == Schedule(0.5)
    assert one.content_hash != ReleaseSettings(epsilon=3).content_hash


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "is without aim"),
        ({"target_error": 0}, "target_error is 0; give a positive number"),
        ({"target_error": float("nan")}, "target_error is nan"),
        ({"target_error": "500m"}, "target_error is '500m'"),
        ({"window_epsilon": -1}, "window_epsilon is -1"),
        ({"window_epsilon": 1, "window_seconds": True}, "window_seconds is True"),
        ({"aim": 1}, "give a target_error, a window_epsilon"),
        (7, "schedule is 7"),
    ],
)
def test_bad_schedules_are_refused(given, message):
    with pytest.raises((ConfigurationError, BudgetError), match=message):
        ReleaseSettings.from_dict({"schedule": given})
