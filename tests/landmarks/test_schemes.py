"""Budgets: every one that is made is sound, by a sum that is taken here in decimals, timestamp by timestamp."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import BudgetError, BudgetExceededError, CoordinateError, DphmmError, LandmarkError, TimeOrderError
from dphmm.landmarks import Adaptive, LandmarkBudget, skip, timeline, uniform


def greatest_sum(landmark, epsilons):
    """The definition: for every t the sum over L ∪ {t}, each budget as the number that it prints as."""
    sums = []
    for t in range(len(epsilons)):
        members = set(np.flatnonzero(landmark).tolist()) | {t}
        sums.append(sum(Fraction(str(float(epsilons[i]))) for i in members))
    return max(sums)


@st.composite
def lines(draw):
    size = draw(st.integers(1, 25))
    landmark = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    times = np.cumsum(draw(st.lists(st.integers(1, 9), min_size=size, max_size=size)))
    return times, times[np.array(landmark)], draw(st.floats(1e-6, 1e6))


@given(lines())
def test_uniform_and_skip_are_sound_and_uniform_wastes_nothing(case):
    times, marks, epsilon = case
    landmark = np.isin(times, marks)
    for scheme in (uniform, skip):
        made = scheme(times, marks, epsilon)
        assert greatest_sum(landmark, made.epsilons) <= Fraction(str(epsilon))
        assert made.spent == greatest_sum(landmark, made.epsilons)
    spent = uniform(times, marks, epsilon).spent
    assert float(spent) == pytest.approx(epsilon, rel=1e-12)


@given(lines(), st.integers(0, 10**6), st.floats(0.0, 0.9), st.sampled_from(["still", "wild"]))
def test_adaptive_is_sound_on_every_path(case, seed, change, kind):
    times, marks, epsilon = case
    landmark = np.isin(times, marks)
    rng = np.random.default_rng(seed)
    scheme = Adaptive(times, marks, epsilon, sensitivity=1.0, rate=0.6, change=change, least_rate=0.05, rng=seed)
    spent = np.zeros(len(times))
    while len(scheme):
        offered = scheme.share
        value = rng.normal(0, 1e9 if kind == "wild" else 1e-9, 2)
        release = scheme.step(lambda share, value=value: value)
        assert release.epsilon == (offered if release.published else 0.0)
        assert not release.published or release.epsilon > 0
        spent[len(times) - len(scheme) - 1] = release.epsilon
        assert greatest_sum(landmark, spent) <= Fraction(str(epsilon))
    np.testing.assert_array_equal(scheme.budget.epsilons, spent)


@given(lines(), st.integers(0, 10**6))
def test_adaptive_reads_no_value_that_it_does_not_publish(case, seed):
    times, marks, epsilon = case
    scheme = Adaptive(times, marks, epsilon, sensitivity=1.0, rate=0.5, rng=seed)
    reads, last = [], None
    for at in range(len(times)):
        release = scheme.step(lambda share, at=at: reads.append(at) or [float(at)])
        assert release.published == (bool(reads) and reads[-1] == at)
        if not release.published:
            assert release.value.tolist() == last
        last = release.value.tolist()


def test_adaptive_when_everything_is_published_is_uniform():
    scheme = Adaptive(range(8), [2, 5], 0.9, sensitivity=1.0, change=0.0, rng=0)
    for _ in range(8):
        scheme.step(lambda share: [0.0])
    np.testing.assert_allclose(scheme.budget.epsilons, uniform(range(8), [2, 5], 0.9).epsilons, rtol=1e-15)


def test_landmarks_behind_the_last_regular_timestamp_share_all_that_is_left():
    after = Adaptive(range(6), [1, 2, 4, 5], 1.0, sensitivity=1.0, rate=1e-9, least_rate=1e-9, rng=0)
    shares = []
    while len(after):
        shares.append(after.share)
        after.step(lambda share: [0.0])
    # The first is published with a fifth, all others approximated: the last two landmarks may share four fifths.
    assert shares == [0.2, 0.2, 0.25, 0.3333333333333333, 0.4, 0.8]
    every = Adaptive(range(4), range(4), 1.0, sensitivity=1.0, rng=0)
    assert [every.step(lambda share: [0.0]).epsilon, every.share] == [0.25, 0.25]


def test_a_landmark_that_is_approximated_raises_the_shares_behind_it():
    scheme = Adaptive(range(40), range(0, 40, 2), 1.0, sensitivity=1.0, rate=0.3, least_rate=0.3, change=0.0, rng=3)
    shares = []
    while len(scheme):
        shares.append(scheme.share)
        scheme.step(lambda share: [0.0])
    grows = np.diff(shares[:-1])
    assert (grows >= -1e-15).all()
    assert shares[-1] > 3 * shares[0]


def test_the_rate_falls_while_releases_stay_close_and_rises_when_they_move():
    still = Adaptive(range(50), [], 1.0, sensitivity=1.0, least_rate=0.2, rng=1)
    rates = [still.step(lambda share: [5.0]).rate for _ in range(50)]
    assert rates[-1] == pytest.approx(0.2, abs=0.05)
    values = iter(range(0, 10**9, 10**6))
    moving = Adaptive(range(50), [], 1.0, sensitivity=1.0, rate=0.3, least_rate=0.1, rng=1)
    rates = [moving.step(lambda share: [float(next(values))]).rate for _ in range(50)]
    assert rates[-1] > 0.9


def test_a_release_that_fails_has_spent_its_budget():
    scheme = Adaptive([1, 2], [1], 1.0, sensitivity=1.0)
    with pytest.raises(ZeroDivisionError):
        scheme.step(lambda share: 1 / 0)
    assert scheme.budget.epsilons.tolist() == [0.5, 0.0]


def test_after_the_last_timestamp_there_is_no_step():
    scheme = Adaptive([1], [], 1.0, sensitivity=1.0)
    scheme.step(lambda share: [0.0])
    assert scheme.share == 0.0
    with pytest.raises(LandmarkError, match="all 1 timestamps"):
        scheme.step(lambda share: [0.0])


def test_a_budget_that_was_checked_cannot_be_changed():
    given = np.array([0.5, 0.5])
    made = LandmarkBudget(timeline([1, 2], [1]), given, 1.0)
    given[:] = 9.0
    assert made.epsilons.tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="read-only"):
        made.epsilons[0] = 9.0


def test_the_checker_sees_an_excess_of_one_rounding_error():
    line = timeline([1, 2, 3], [1, 2])
    third = 1 / 3
    LandmarkBudget(line, np.array([third, third, third]), 1.0)
    above = np.nextafter(third, 1)
    assert third + above + above == 1.0
    with pytest.raises(BudgetExceededError, match="spend"):
        LandmarkBudget(line, np.array([above, above, third]), 1.0)


@pytest.mark.parametrize(
    ("times", "marks", "error", "message"),
    [
        ([1, 2, 2], [], TimeOrderError, "entry 2 is 2 after 2"),
        ([1, 3, 2], [], TimeOrderError, "entry 2 is 2 after 3"),
        ([1, 2, 3], [3, 2], TimeOrderError, "landmarks: entry 1"),
        ([1, 2, 3], [2, 2], TimeOrderError, "landmarks"),
        ([1, 2, 3], [4], LandmarkError, "landmark 4"),
        ([], [], TimeOrderError, "at least one"),
        ([1.0, float("nan")], [], CoordinateError, "entry 1"),
        (["2020-01-01", "yesterday"], [], TimeOrderError, "cannot be read"),
        ([[1, 2]], [], TimeOrderError, "shape"),
    ],
)
def test_impossible_times_are_refused_in_one_line(times, marks, error, message):
    with pytest.raises(error, match=message) as caught:
        uniform(times, marks, 1.0)
    assert isinstance(caught.value, DphmmError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("inf"), float("nan")])
def test_impossible_budgets_are_refused(epsilon):
    for scheme in (skip, uniform, lambda *a: Adaptive(*a, sensitivity=1.0)):
        with pytest.raises(BudgetError, match="epsilon"):
            scheme([1, 2], [1], epsilon)


@pytest.mark.parametrize("options", [{"rate": 0.0}, {"rate": 1.5}, {"change": 1.0}, {"least_rate": 0.0}])
def test_impossible_rates_are_refused(options):
    with pytest.raises(DphmmError, match="least_rate <= rate"):
        Adaptive([1, 2], [1], 1.0, sensitivity=1.0, **options)


def test_times_may_be_dates():
    line = timeline(["2020-01-01T00:00", "2020-01-02T00:00"], np.array(["2020-01-02"], dtype="datetime64[D]"))
    assert line.landmark.tolist() == [False, True]
