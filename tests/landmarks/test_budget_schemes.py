"""Landmark schemes: every budget is valid, by an independent sum in decimals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import BudgetError, BudgetExceededError, CoordinateError, DphmmError, LandmarkError, TimeOrderError
from dphmm.landmarks import Adaptive, LandmarkBudget, skip_scheme, timeline, uniform_scheme


def compute_largest_sum(landmark, epsilons):
    """Compute the largest sum over L ∪ {t} for all t, with budgets as printed decimals."""
    sums = []
    for t in range(len(epsilons)):
        members = set(np.flatnonzero(landmark).tolist()) | {t}
        sums.append(sum(Fraction(str(float(epsilons[i]))) for i in members))
    return max(sums)


@st.composite
def landmark_cases(draw):
    size = draw(st.integers(1, 25))
    landmark = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    times = np.cumsum(draw(st.lists(st.integers(1, 9), min_size=size, max_size=size)))
    return times, times[np.array(landmark)], draw(st.floats(1e-6, 1e6))


@given(landmark_cases())
def test_uniform_and_skip_are_valid_and_uniform_spends_everything(case):
    times, marks, epsilon = case
    landmark = np.isin(times, marks)
    for scheme in (uniform_scheme, skip_scheme):
        scheme_budget = scheme(times, marks, epsilon)
        assert compute_largest_sum(landmark, scheme_budget.epsilons) <= Fraction(str(epsilon))
        assert scheme_budget.spent == compute_largest_sum(landmark, scheme_budget.epsilons)
    spent = uniform_scheme(times, marks, epsilon).spent
    assert float(spent) == pytest.approx(epsilon, rel=1e-12)


@pytest.mark.slow
@given(landmark_cases(), st.integers(0, 10**6), st.floats(0.0, 0.9), st.sampled_from(["still", "wild"]))
def test_adaptive_is_valid_on_every_path(case, seed, change, kind):
    times, marks, epsilon = case
    landmark = np.isin(times, marks)
    rng = np.random.default_rng(seed)
    scheme = Adaptive(times, marks, epsilon, sensitivity=1.0, rate=0.6, change=change, min_rate=0.05, rng=seed)
    spent = np.zeros(len(times))
    while len(scheme):
        offered = scheme.share
        value = rng.normal(0, 1e9 if kind == "wild" else 1e-9, 2)
        release = scheme.step(lambda share, value=value: value)
        assert release.epsilon == (offered if release.published else 0.0)
        assert not release.published or release.epsilon > 0
        spent[len(times) - len(scheme) - 1] = release.epsilon
        assert compute_largest_sum(landmark, spent) <= Fraction(str(epsilon))
    np.testing.assert_array_equal(scheme.budget.epsilons, spent)


@given(landmark_cases(), st.integers(0, 10**6))
def test_adaptive_reads_only_values_it_publishes(case, seed):
    times, marks, epsilon = case
    scheme = Adaptive(times, marks, epsilon, sensitivity=1.0, rate=0.5, rng=seed)
    reads, last = [], None
    for at in range(len(times)):
        release = scheme.step(lambda share, at=at: reads.append(at) or [float(at)])
        assert release.published == (bool(reads) and reads[-1] == at)
        if not release.published:
            assert release.value.tolist() == last
        last = release.value.tolist()


def test_adaptive_equals_uniform_if_everything_is_published():
    scheme = Adaptive(range(8), [2, 5], 0.9, sensitivity=1.0, change=0.0, rng=0)
    for _ in range(8):
        scheme.step(lambda share: [0.0])
    np.testing.assert_allclose(scheme.budget.epsilons, uniform_scheme(range(8), [2, 5], 0.9).epsilons, rtol=1e-15)


def test_trailing_landmarks_share_remaining_budget():
    after = Adaptive(range(6), [1, 2, 4, 5], 1.0, sensitivity=1.0, rate=1e-9, min_rate=1e-9, rng=0)
    shares = []
    while len(after):
        shares.append(after.share)
        after.step(lambda share: [0.0])
    # The first is published with a fifth, all others are approximated. The last two landmarks share four fifths.
    assert shares == [0.2, 0.2, 0.25, 0.3333333333333333, 0.4, 0.8]
    all_landmarks = Adaptive(range(4), range(4), 1.0, sensitivity=1.0, rng=0)
    assert [all_landmarks.step(lambda share: [0.0]).epsilon, all_landmarks.share] == [0.25, 0.25]


def test_approximated_landmark_raises_later_shares():
    scheme = Adaptive(range(40), range(0, 40, 2), 1.0, sensitivity=1.0, rate=0.3, min_rate=0.3, change=0.0, rng=3)
    shares = []
    while len(scheme):
        shares.append(scheme.share)
        scheme.step(lambda share: [0.0])
    grows = np.diff(shares[:-1])
    assert (grows >= -1e-15).all()
    assert shares[-1] > 3 * shares[0]


def test_rate_falls_for_constant_values_and_rises_for_moving_ones():
    still = Adaptive(range(50), [], 1.0, sensitivity=1.0, min_rate=0.2, rng=1)
    rates = [still.step(lambda share: [5.0]).rate for _ in range(50)]
    assert rates[-1] == pytest.approx(0.2, abs=0.05)
    values = iter(range(0, 10**9, 10**6))
    moving = Adaptive(range(50), [], 1.0, sensitivity=1.0, rate=0.3, min_rate=0.1, rng=1)
    rates = [moving.step(lambda share: [float(next(values))]).rate for _ in range(50)]
    assert rates[-1] > 0.9


def test_failed_release_spends_its_budget():
    scheme = Adaptive([1, 2], [1], 1.0, sensitivity=1.0)
    with pytest.raises(ZeroDivisionError):
        scheme.step(lambda share: 1 / 0)
    assert scheme.budget.epsilons.tolist() == [0.5, 0.0]


def test_step_after_last_timestamp_raises():
    scheme = Adaptive([1], [], 1.0, sensitivity=1.0)
    scheme.step(lambda share: [0.0])
    assert scheme.share == 0.0
    with pytest.raises(LandmarkError, match="all 1 timestamps"):
        scheme.step(lambda share: [0.0])


def test_landmark_budget_copies_input_and_is_read_only():
    epsilons = np.array([0.5, 0.5])
    checked = LandmarkBudget(timeline([1, 2], [1]), epsilons, 1.0)
    epsilons[:] = 9.0
    assert checked.epsilons.tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="read-only"):
        checked.epsilons[0] = 9.0


def test_validation_detects_excess_of_one_rounding_error():
    line = timeline([1, 2, 3], [1, 2])
    third = 1 / 3
    LandmarkBudget(line, np.array([third, third, third]), 1.0)
    above = np.nextafter(third, 1)
    assert third + above + above == 1.0
    with pytest.raises(BudgetExceededError, match="must sum to at most"):
        LandmarkBudget(line, np.array([above, above, third]), 1.0)


@pytest.mark.parametrize(
    ("times", "marks", "error", "message"),
    [
        ([1, 2, 2], [], TimeOrderError, "2 at entry 2 after 2"),
        ([1, 3, 2], [], TimeOrderError, "2 at entry 2 after 3"),
        ([1, 2, 3], [3, 2], TimeOrderError, "landmarks must be strictly increasing, got 2 at entry 1"),
        ([1, 2, 3], [2, 2], TimeOrderError, "landmarks"),
        ([1, 2, 3], [4], LandmarkError, "landmarks must be among the 3 timestamps, got 4"),
        ([], [], TimeOrderError, "timestamps must not be empty"),
        ([1.0, float("nan")], [], CoordinateError, "entry 1"),
        (["2020-01-01", "yesterday"], [], TimeOrderError, "timestamps must be numbers, datetime64 or ISO strings"),
        ([[1, 2]], [], TimeOrderError, "shape"),
    ],
)
def test_invalid_times_raise_in_one_line(times, marks, error, message):
    with pytest.raises(error, match=message) as caught:
        uniform_scheme(times, marks, 1.0)
    assert isinstance(caught.value, DphmmError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("inf"), float("nan")])
def test_invalid_epsilon_raises(epsilon):
    for scheme in (skip_scheme, uniform_scheme, lambda *a: Adaptive(*a, sensitivity=1.0)):
        with pytest.raises(BudgetError, match="epsilon"):
            scheme([1, 2], [1], epsilon)


@pytest.mark.parametrize("options", [{"rate": 0.0}, {"rate": 1.5}, {"change": 1.0}, {"min_rate": 0.0}], ids=repr)
def test_invalid_rates_raise(options):
    with pytest.raises(DphmmError, match=f"{next(iter(options))} must be in"):
        Adaptive([1, 2], [1], 1.0, sensitivity=1.0, **options)


def test_times_can_be_dates():
    line = timeline(["2020-01-01T00:00", "2020-01-02T00:00"], np.array(["2020-01-02"], dtype="datetime64[D]"))
    assert line.landmark.tolist() == [False, True]
