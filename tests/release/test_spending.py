"""Spending and adversary knowledge in records, against independent sums and beliefs."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dphmm import MarkovModel, Releaser, Session
from dphmm.release.ledger import Account, steps_per_day
from tests.running_example import F, build_graph

START = np.full(6, 1 / 6)
MOVES = np.full((6, 6), 0.1) + 0.4 * np.eye(6)


def make_engine(step_seconds: float | None = 3600.0) -> Releaser:
    return Releaser(MarkovModel(MOVES, START, step_seconds=step_seconds), F, build_graph(), 0.1, rng=3)


def sum_budgets(steps: list[int], epsilons: list[float], day: int) -> list[tuple[float, float]]:
    """Sum decimal budgets: over all steps, and over the last ``day`` steps."""
    at, exact = np.cumsum(steps), [Fraction(repr(epsilon)) for epsilon in epsilons]
    return [
        (float(sum(exact[: t + 1])), float(sum(e for e, s in zip(exact[: t + 1], at, strict=False) if s > at[t] - day)))
        for t in range(len(at))
    ]


def test_records_contain_total_and_24h_epsilon():
    rng, releaser = np.random.default_rng(1), make_engine()
    steps, epsilons = [0, *rng.integers(1, 9, size=60).tolist()], rng.choice([0.1, 0.2, 0.7], size=61).tolist()
    records = [releaser.release(2, e, max(1, s)) for s, e in zip(steps, epsilons, strict=True)]
    totals = [(record.epsilon_total, record.epsilon_24h) for record in records]
    assert totals == sum_budgets(steps, epsilons, 24), "equal to the last bit: decimals are summed exactly"
    assert totals[-1][1] < totals[-1][0]


def test_24h_epsilon_is_missing_without_step_seconds_and_total_without_account():
    assert [steps_per_day(step_seconds) for step_seconds in (None, 60.0, 7.0, 1e6)] == [None, 1440, 12343, 1]
    releaser = make_engine(None)
    assert (releaser.release(0).epsilon_total, releaser.release(0).epsilon_24h) == (0.1, None)
    releaser.resume(releaser.belief, 2)
    assert releaser.release(0).epsilon_total is None, "the cost of two earlier releases is unknown"
    account = Account()
    account.add(0, 0.25, 1.0)
    releaser.resume(releaser.belief, 1, account=account)
    assert releaser.release(0).epsilon_total == 0.35


@pytest.mark.parametrize(("first", "recent"), [(123, 0.35), (124, 0.1)])
def test_24h_epsilon_after_restart_follows_slot_of_first_release(first, recent):
    """An earlier release at slot 100 counts for 24 hours."""
    account, releaser = Account(), make_engine()
    account.add(100, 0.25, 1.0)
    releaser.restart(first)
    releaser.resume(None, 0, account=account)
    record = releaser.release(0)
    assert (record.epsilon_total, record.epsilon_24h) == (0.35, recent)


def test_reopened_session_keeps_totals_after_lost_draw(tmp_path):
    steps, epsilons = [0, 3, 30, 1, 2], [0.1, 0.7, 0.2, 0.1, 0.1]
    slots = (1000 + np.cumsum(steps)).tolist()
    totals = []
    for slot, epsilon in zip(slots, epsilons, strict=True):
        with Session.open(tmp_path / "a.session", "ann", make_engine()) as session:
            append, lost = session._store.append, []

            def append_or_fail(*arguments, append=append, lost=lost):
                if not lost:
                    lost.append(arguments[-1]())  # a draw that is lost because the disk is full
                    raise OSError
                return append(*arguments)

            session._store.append = append_or_fail
            with pytest.raises(OSError):
                session.release(1, slot, epsilon)
            record = session.release(1, slot, epsilon)
            totals.append((record.epsilon_total, record.epsilon_24h))
    assert totals == sum_budgets(steps, epsilons, 24)


def test_record_statistics_match_posterior_belief():
    releaser = make_engine()
    for _ in range(8):
        record = releaser.release(4)
        p, points = releaser.belief.probabilities, releaser.measurements.points
        radius = p @ np.linalg.norm(points - np.array(record.estimate), axis=1)
        assert record.expected_estimate_error == pytest.approx(radius, rel=1e-12)
        assert record.max_posterior_probability == p.max()
        at_states = min(p @ np.linalg.norm(points - q, axis=1) for q in points)
        assert record.adversary_error <= min(radius, at_states) * (1 + 1e-12)
        assert record.adversary_error >= 0.5 * radius, "the error of the mean is at most twice that of the best point"
