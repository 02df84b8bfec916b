"""What records tell of spending and of what a reader learned: against sums and beliefs made apart from the engine."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dphmm import MarkovModel, Releaser, Session
from dphmm.release.ledger import Account, day_steps
from tests.running_example import F, graph

START = np.full(6, 1 / 6)
MOVES = np.full((6, 6), 0.1) + 0.4 * np.eye(6)


def engine(step_seconds: float | None = 3600.0) -> Releaser:
    return Releaser(MarkovModel(MOVES, START, step_seconds=step_seconds), F, graph(), 0.1, rng=3)


def spent(steps: list[int], epsilons: list[float], day: int) -> list[tuple[float, float]]:
    """All, and the last ``day`` steps, by plain sums of decimals."""
    at, exact = np.cumsum(steps), [Fraction(repr(one)) for one in epsilons]
    return [
        (float(sum(exact[: t + 1])), float(sum(e for e, s in zip(exact[: t + 1], at, strict=False) if s > at[t] - day)))
        for t in range(len(at))
    ]


def test_records_tell_the_sum_of_all_budgets_and_of_those_of_a_day():
    rng, releaser = np.random.default_rng(1), engine()
    steps, epsilons = [0, *rng.integers(1, 9, size=60).tolist()], rng.choice([0.1, 0.2, 0.7], size=61).tolist()
    records = [releaser.release(2, e, max(1, s)) for s, e in zip(steps, epsilons, strict=True)]
    told = [(one.epsilon_so_far, one.epsilon_last_day) for one in records]
    assert told == spent(steps, epsilons, 24), "to the last bit: tenths are tenths"
    assert told[-1][1] < told[-1][0]


def test_a_day_has_no_length_where_steps_have_none_and_what_is_unknown_is_not_told():
    assert [day_steps(one) for one in (None, 60.0, 7.0, 1e6)] == [None, 1440, 12343, 1]
    releaser = engine(None)
    assert (releaser.release(0).epsilon_so_far, releaser.release(0).epsilon_last_day) == (0.1, None)
    releaser.resume(releaser.belief, 2)
    assert releaser.release(0).epsilon_so_far is None, "two releases cost something that nobody told of"
    account = Account()
    account.add(0, 0.25, 1.0)
    releaser.resume(releaser.belief, 1, account=account)
    assert releaser.release(0).epsilon_so_far == 0.35


def test_a_session_tells_the_same_after_it_is_opened_again_and_when_a_draw_was_lost(tmp_path):
    steps, epsilons = [0, 3, 30, 1, 2], [0.1, 0.7, 0.2, 0.1, 0.1]
    slots = (1000 + np.cumsum(steps)).tolist()
    told = []
    for slot, epsilon in zip(slots, epsilons, strict=True):
        with Session.open(tmp_path / "a.session", "ann", engine()) as session:
            append, lost = session._store.append, []

            def failing(*given, append=append, lost=lost):
                if not lost:
                    lost.append(given[-1]())  # drawn, and then the disk is full
                    raise OSError
                return append(*given)

            session._store.append = failing
            with pytest.raises(OSError):
                session.release(1, slot, epsilon)
            record = session.release(1, slot, epsilon)
            told.append((record.epsilon_so_far, record.epsilon_last_day))
    assert told == spent(steps, epsilons, 24)


def test_a_record_tells_what_the_belief_after_it_amounts_to():
    releaser = engine()
    for _ in range(8):
        record = releaser.release(4)
        p, points = releaser.belief.probabilities, releaser.measurements.points
        radius = p @ np.linalg.norm(points - np.array(record.estimate), axis=1)
        assert record.estimate_radius == pytest.approx(radius, rel=1e-12)
        assert record.adversary_certainty == p.max()
        at_states = min(p @ np.linalg.norm(points - q, axis=1) for q in points)
        assert record.adversary_error <= min(radius, at_states) * (1 + 1e-12)
        assert record.adversary_error >= 0.5 * radius, "the mean errs at most twice as much as the best point"
