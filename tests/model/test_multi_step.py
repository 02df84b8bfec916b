"""Long gaps match single steps, by powers, by convergence or by stepping."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.model import (
    Belief,
    MarkovModel,
    Observations,
    TimeClasses,
    filter_releases,
    multi_step,
    smooth_releases,
)
from dphmm.model.outside_states import OutsideStates
from tests.model.clockwork import FIRST, HOUR, YEAR, build_time_dependent_model, step_repeatedly
from tests.sizes import choose_count, mark_slow


def _build_outside_model(seed, varies):
    """Build a model of four states and two outside states, the second of them unreachable."""
    rng, away = np.random.default_rng(seed), OutsideStates(4, [1, 3], [1.0, 2.0], [1.5, 5.0], [0.3, 0.6])
    time_classes = TimeClasses.from_name("hour", HOUR, "Europe/Berlin") if varies else None
    matrices = []
    for _ in range(24 if varies else 1):
        rows = rng.random((6, 6)) * (rng.random((6, 6)) < 0.7) + 0.1 * np.eye(6)
        rows[5, 0], rows[:, 5] = 0.5, 0.0
        matrices.append(rows / rows.sum(axis=1, keepdims=True))
    return MarkovModel(matrices, np.full((len(matrices), 4), 1 / 4), None, HOUR, time_classes, away)


@pytest.fixture
def walked_steps(monkeypatch):
    """Record the number of steps that are computed one at a time."""
    step_counts, real = [], multi_step.walk

    def note_steps(logs, sides):
        step_counts.append(sum(count for _, count in sides))
        return real(logs, sides)

    monkeypatch.setattr(multi_step, "walk", note_steps)
    return step_counts


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kolkata", "+05:45", "America/Santiago", "Africa/Cairo"])
@pytest.mark.parametrize("step", [300, 3600, 7200, 86_400, 420, 660])
@pytest.mark.parametrize("by", ["hour", "weekday-hour"])
def test_periods_contain_classes_of_their_steps(zone, step, by):
    time_classes = TimeClasses.from_name(by, step, zone)
    # Clock changes occur within 400 days, and within the 250 days from September of the fast tests.
    days = choose_count(400, 250)
    first, steps = 1_600_000_000 // step + 5, days * 86_400 // step
    parts = time_classes.periods(first, steps)
    listed = np.concatenate([np.tile(np.repeat(*np.array(runs).T), times) for runs, times in parts])
    np.testing.assert_array_equal(listed, time_classes.get_classes(first + 1 + np.arange(steps)))
    assert len(parts) <= (1 if step == 660 else 12)


@pytest.mark.parametrize("by", ["hour", "weekday-hour"])
@pytest.mark.parametrize("steps", [24 * 8 + 5, 24 * 45, YEAR, mark_slow(10 * YEAR)])
def test_long_gap_matches_single_steps(walked_steps, by, steps):
    model = build_time_dependent_model(steps, by=by)
    start = np.eye(model.size)[2]
    far = Belief.from_probabilities(start).predict(model, steps, FIRST)
    np.testing.assert_allclose(far.probabilities, step_repeatedly(model, start, steps, FIRST), rtol=1e-9)
    assert sum(walked_steps) <= 24 * 150 * max(1, steps // YEAR)  # clock changes twice a year restart the convergence


@pytest.mark.parametrize("varies", [False, True])
def test_long_gap_with_outside_states_matches_single_steps(varies, monkeypatch):
    monkeypatch.setattr(multi_step, "POWERS_MAX_STATES", 0)
    model = _build_outside_model(3, varies)
    steps = 8 * 1024 + 11
    far = Belief.initial(model, FIRST).predict(model, steps, FIRST)
    expected = step_repeatedly(model, np.exp(Belief.initial(model, FIRST).chain_logs), steps, FIRST)
    np.testing.assert_allclose(np.exp(far.chain_logs), expected, rtol=1e-9)
    np.testing.assert_array_equal(far.chain_logs > -np.inf, expected > 0)
    assert not (far.chain_logs > -np.inf).all()  # an unreachable context has probability zero


@pytest.mark.slow
def test_long_gap_of_minutes_is_exact():
    """Columns that differ by a factor of 1e5 must not add their rounding errors to each other."""
    model = build_time_dependent_model(1, "UTC", size=120, step=60.0, stay=0.1, minimum=0.8)
    start, since = np.eye(120)[0], 1440 * 18_000
    far = Belief.from_probabilities(start).predict(model, 1440 * 60, since)
    np.testing.assert_allclose(far.probabilities, step_repeatedly(model, start, 1440 * 60, since), rtol=1e-11)


@pytest.mark.parametrize("outside", [False, True])
def test_filter_and_smoother_match_single_steps_over_long_gaps(outside):
    model = _build_outside_model(5, True) if outside else build_time_dependent_model(5)
    size, gaps = model.size, np.array([1, 24 * 200 + 3, 2, 24 * 30])
    logs = np.log(np.random.default_rng(6).random((4, size)))
    filtering = filter_releases(model, Observations(logs, gaps, FIRST))
    smoothed = smooth_releases(model, Observations(logs, gaps, FIRST), filtering)
    spread = (lambda row: row) if model.outside is None else model.outside.expand
    at = FIRST + np.concatenate([[0], np.cumsum(gaps[1:])])
    now, ahead = np.exp(Belief.initial(model, FIRST).chain_logs), []
    for t in range(4):
        now = now if t == 0 else step_repeatedly(model, now, gaps[t], at[t - 1])
        now = now * np.exp(spread(logs[t]))
        now /= now.sum()
        ahead.append(now)
        np.testing.assert_allclose(np.exp(filtering.filtered[t].chain_logs), now, rtol=1e-9)
    behind = np.ones(model.chain_size)
    for t in range(3, -1, -1):
        both = ahead[t] * behind / (ahead[t] @ behind)
        np.testing.assert_allclose(np.exp(smoothed[t].chain_logs), both, rtol=1e-9)
        behind = (
            step_repeatedly(model, behind * np.exp(spread(logs[t])), gaps[t], at[t - 1], back=True) if t else behind
        )


def test_gap_is_stepped_through_if_chain_has_not_mixed(walked_steps):
    slow = [np.array([[1 - 1e-5, 1e-5], [1e-5, 1 - 1e-5]])] * 24
    model = MarkovModel(slow, np.full((24, 2), 0.5), None, HOUR, TimeClasses.from_name("hour", HOUR))
    for start in ([1.0, 0.0], [0.4, 0.6]):
        far = Belief.from_probabilities(np.array(start)).predict(model, 24 * 20, FIRST)
        expected = start @ np.linalg.matrix_power(slow[0], 24 * 20)
        np.testing.assert_allclose(far.probabilities, expected, rtol=1e-12)
    assert sum(walked_steps) == 2 * 24 * 20
    rest = Belief.from_probabilities(np.array([0.5, 0.5])).predict(model, 24 * 20, FIRST)
    np.testing.assert_allclose(rest.probabilities, 0.5, rtol=1e-12)
    assert sum(walked_steps) == 2 * 24 * 20 + 24


def test_gap_is_stepped_through_if_chain_drifts_slowly(walked_steps):
    """A day changes the chain by 1e-9. A tolerance of that size would accept it as converged."""
    move = 1e-9 / 24
    slow = [np.array([[1 - move, move], [0.0, 1.0]])] * 24
    model = MarkovModel(slow, np.full((24, 2), 0.5), None, HOUR, TimeClasses.from_name("hour", HOUR))
    far = Belief.from_probabilities(np.array([0.5, 0.5])).predict(model, 24 * 50, FIRST)
    assert far.probabilities[0] == pytest.approx(0.5 * np.exp(-1e-9 * 50), rel=1e-13)
    assert sum(walked_steps) > 24


def test_periodic_chain_is_stepped_through():
    turn = np.roll(np.eye(3), 1, axis=1)
    for model in (
        MarkovModel(turn, [1, 0, 0]),
        MarkovModel([turn] * 24, np.tile([1.0, 0, 0], (24, 1)), None, HOUR, TimeClasses.from_name("hour", HOUR)),
    ):
        far = Belief.from_probabilities(np.array([1.0, 0.0, 0.0])).predict(model, 24 * 50 + 1, FIRST)
        assert far.probabilities.tolist() == [0.0, 1.0, 0.0]


def test_closed_classes_keep_their_probability():
    matrix = np.zeros((5, 5))
    matrix[:2, :2], matrix[2:4, 2:4] = [[0.5, 0.5], [0.2, 0.8]], [[0.9, 0.1], [0.3, 0.7]]
    matrix[4] = [0.1, 0.1, 0.3, 0.1, 0.4]
    start = np.array([0.1, 0.2, 0.1, 0.2, 0.4])
    model = MarkovModel([matrix] * 24, np.full((24, 5), 0.2), None, HOUR, TimeClasses.from_name("hour", HOUR))
    wanted = start @ np.linalg.matrix_power(matrix, YEAR)
    for chain in (model, MarkovModel(matrix, start)):
        far = Belief.from_probabilities(start).predict(chain, YEAR, FIRST)
        np.testing.assert_allclose(far.probabilities[:4], wanted[:4], rtol=1e-9)
        assert far.log_mass[4] == pytest.approx(np.log(0.4) * (YEAR + 1), rel=1e-9)


def test_transient_states_stay_possible_and_keep_mass():
    leaves = [np.array([[0.5, 0.5], [0.0, 1.0]])] * 24
    model = MarkovModel(leaves, np.full((24, 2), 0.5), None, HOUR, TimeClasses.from_name("hour", HOUR))
    far = Belief.from_probabilities(np.array([1.0, 0.0])).predict(model, 24 * 100, FIRST)
    assert far.log_mass[0] == pytest.approx(2400 * np.log(0.5), rel=1e-12)


@pytest.mark.parametrize("by", ["hour", "weekday-hour"])
@pytest.mark.parametrize("days", [9, 13, 60, 365])
def test_slowly_mixing_chain_matches_single_steps(by, days):
    model = build_time_dependent_model(11, "UTC", by, size=60, stay=0.6, near=60)
    since, steps = 24 * 18_000, 24 * days
    start = np.exp(-4000.0 * np.random.default_rng(1).random(60))
    far = Belief.from_probabilities(start).predict(model, steps, since)
    np.testing.assert_allclose(far.probabilities, step_repeatedly(model, start, steps, since), rtol=1e-9)
    with np.errstate(divide="ignore"):
        backward = np.exp(model.operator(steps, since).propagate_backward(np.log(start)))
    np.testing.assert_allclose(
        backward / backward.sum(), step_repeatedly(model, start, steps, since, back=True), rtol=1e-9
    )


@pytest.mark.parametrize("steps", [5 * 16 + 3, 16 * 40, 5000, 10**6, 2**62])
@pytest.mark.parametrize("powers", [0, 1024])
def test_constant_matrix_gap_matches_matrix_power(monkeypatch, walked_steps, steps, powers):
    monkeypatch.setattr(multi_step, "POWERS_MAX_STATES", powers)
    by_hours = build_time_dependent_model(2, size=60, stay=0.9, near=60)
    moves = by_hours.transitions[3].toarray()
    moves[:, 0] = 0.0  # state 0 is unreachable
    model = MarkovModel(moves / moves.sum(axis=1, keepdims=True), np.full(60, 1 / 60), None, HOUR)
    matrix, start = model.transition.toarray(), np.eye(60)[0] + np.eye(60)[3]
    expected = start @ np.linalg.matrix_power(matrix, min(steps, 10**6))
    far = Belief.from_probabilities(start).predict(model, steps)
    np.testing.assert_allclose(far.probabilities, expected / expected.sum(), rtol=1e-9)
    assert not far.support[0]
    with np.errstate(divide="ignore"):
        behind = np.exp(model.operator(steps).propagate_backward(np.log(start)))
    expected = np.linalg.matrix_power(matrix, min(steps, 10**6)) @ start
    np.testing.assert_allclose(behind / behind.sum(), expected / expected.sum(), rtol=1e-9)
    assert sum(walked_steps) <= 8 * 1024


@pytest.mark.parametrize("steps", [15, 16, 501, 6053, 10**6])
@pytest.mark.parametrize("inflow", [True, False], ids=["inflow", "a state without inflow"])
@pytest.mark.parametrize("stay", [1, 40])
def test_strides_match_matrix_power(monkeypatch, walked_steps, steps, inflow, stay):
    """Both directions, from masses of which some underflow. A steady gap takes few products."""
    monkeypatch.setattr(multi_step, "POWERS_MAX_STATES", 4)
    monkeypatch.setattr(multi_step, "_MIN_STEPPING_SHARE_OF_STRIDES", 0.0)
    rng = np.random.default_rng(6)
    moves = rng.dirichlet(np.full(30, 0.3), 30) + stay * np.eye(30)
    moves[:, 0] *= inflow
    model = MarkovModel(moves / moves.sum(axis=1, keepdims=True), np.full(30, 1 / 30))
    start = np.where(np.arange(30) < 15, -np.inf, rng.uniform(-2000.0, 0.0, 30))
    matrix = np.linalg.matrix_power(model.transition.toarray().astype(np.longdouble), steps)
    scale = float(start.max())
    operator = model.operator(steps)
    with np.errstate(divide="ignore"):
        forward, backward = np.log(np.exp(start - scale) @ matrix), np.log(matrix @ np.exp(start - scale))
    np.testing.assert_allclose(operator.propagate_forward(start), forward + scale, rtol=1e-10)
    np.testing.assert_allclose(operator.propagate_backward(start), backward + scale, rtol=1e-10)
    assert sum(walked_steps) == 2 * (steps % 4), "no other steps"
    if steps > 500:
        assert len(model._powers._matrices) == (2 if stay == 1 else 3), "long strides if the chain mixes slowly"
    if not inflow:  # the only possible observation is in a state that cannot be entered
        assert (operator.propagate_backward(np.where(np.arange(30) == 0, 0.0, -np.inf)) == -np.inf)[1:].all()


@pytest.mark.parametrize("exponent", [200, 290])
def test_strides_keep_small_masses_of_closed_classes(monkeypatch, walked_steps, exponent):
    """Plain floats are accurate for the larger mass. The smaller one is stepped through."""
    monkeypatch.setattr(multi_step, "POWERS_MAX_STATES", 4)
    monkeypatch.setattr(multi_step, "_MIN_STEPPING_SHARE_OF_STRIDES", 0.0)
    block = np.random.default_rng(2).dirichlet(np.ones(5), 5)
    model = MarkovModel(np.kron(np.eye(2), block), np.full(10, 0.1))
    low = 10.0**-exponent
    start = np.log(np.array([*[low] * 5, *[0.2 * (1 - 5 * low)] * 5]))
    far = model.operator(501).propagate_forward(start)
    wanted = np.log(np.linalg.matrix_power(block, 501)[0])
    np.testing.assert_allclose(far, [*(wanted + np.log(5 * low)), *wanted], rtol=1e-11)
    assert (sum(walked_steps) > 16) == (exponent == 290)


@pytest.mark.parametrize("period", [3, 8, 64, 128])
@pytest.mark.parametrize("steps", [127, 2004, 2032, 5001])
def test_strides_keep_cycles(monkeypatch, period, steps):
    """All masses are positive, so only their order in the cycle shows an omitted step."""
    monkeypatch.setattr(multi_step, "POWERS_MAX_STATES", 4)
    monkeypatch.setattr(multi_step, "_MIN_STEPPING_SHARE_OF_STRIDES", 0.0)
    monkeypatch.setattr(multi_step, "_STRIDE_MIN_FILL", 0.0)
    size = 40 + period
    moves = np.zeros((size, size))
    moves[:40, :40] = 1 / 40
    moves[np.arange(40, size), 40 + (np.arange(period) + 1) % period] = 1.0
    start = np.linspace(1.0, 2.0, size)
    start /= start.sum()
    operator = MarkovModel(moves, np.full(size, 1 / size)).operator(steps)
    matrix = np.linalg.matrix_power(moves, steps)
    np.testing.assert_allclose(np.exp(operator.propagate_forward(np.log(start))), start @ matrix, rtol=1e-9)
    np.testing.assert_allclose(np.exp(operator.propagate_backward(np.log(start))), matrix @ start, rtol=1e-9)


def test_gap_result_does_not_depend_on_cached_gaps():
    """Otherwise the releases of one user would depend on users processed before."""
    since, lengths = 24 * 18_000, (24 * 2, 24 * 9, 24 * 30, 24 * 400)
    start = np.eye(60)[7]
    for varies in (True, False):
        beliefs = []
        for order in (lengths, lengths[::-1]):
            model = build_time_dependent_model(11, "UTC", size=60, stay=0.6, near=60)
            model = model if varies else MarkovModel(model.transitions[0], model.initial)
            beliefs.append(
                {steps: Belief.from_probabilities(start).predict(model, steps, since).to_bytes() for steps in order}
            )
        assert beliefs[0] == beliefs[1]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("step", [HOUR, 1200.0])
def test_stationary_distribution_is_computed_once_for_all_starts(walked_steps, zone, step):
    model = build_time_dependent_model(4, zone, size=40, step=step, stay=0.4, near=40)
    day = round(24 * HOUR / step)
    since, steps = 18_000 * day + 5, 300 * day + 7
    start = np.exp(-300.0 * np.random.default_rng(1).random(40))
    wanted = step_repeatedly(model, start / start.sum(), steps, since)
    np.testing.assert_allclose(
        Belief.from_probabilities(start).predict(model, steps, since).probabilities, wanted, rtol=1e-11
    )
    count = sum(walked_steps)
    for state in (0, 39):
        far = Belief.from_probabilities(np.eye(40)[state]).predict(model, steps + day, since - day)
        np.testing.assert_allclose(far.probabilities, wanted, rtol=1e-11)
        behind = np.exp(model.operator(steps, since).propagate_backward(np.log(start)))
        np.testing.assert_allclose(behind, wanted @ start, rtol=1e-11)
    assert sum(walked_steps) == count


def test_stationary_distribution_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(multi_step, "_CACHE_SIZE", 2)
    model = build_time_dependent_model(4, "UTC", size=10, stay=0.4, near=10)
    for hour in (0, 1, 2, 3, 0):
        far = Belief.from_probabilities(np.eye(10)[2]).predict(model, 24 * 100, FIRST + hour)
        np.testing.assert_allclose(
            far.probabilities, step_repeatedly(model, np.eye(10)[2], 2400, FIRST + hour), rtol=1e-11
        )
    assert len(model._limits._by_ending) == 2
