"""Tiers: each reader's view is a function of what this reader was told, and costs no more than the reader's budget."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings, Schedule, Session
from dphmm.errors import BudgetError, BudgetExceededError, ConfigurationError, InvalidInputError
from dphmm.release import tiers
from dphmm.release.ledger import Limits, exactly
from dphmm.release.session_store import SessionStore
from dphmm.release.session_terms import MAIN_QUERY
from dphmm.release.tiers import draw_tiers, query_of, tier_budgets, tier_settings, tiers_of

LINE = np.array([[0.0], [1.0], [2.0], [3.0]])
FINE, COARSE = 1.0, 0.25
COARSE_QUERY = query_of(COARSE)


def engine(rng=None, f=LINE, policy=None, move=None, **changes):
    n = len(f)
    move = np.full((n, n), 1 / n) if move is None else move
    model = MarkovModel(move, np.full(n, 1 / n), step_seconds=600)
    policy = PolicyGraph.categorical([0, 0, 1, 1]) if policy is None else policy
    return Releaser(model, f, policy, FINE, rng=rng, **{"spacing": 1, **changes})


def unlimited(query, step):
    return step


def drawn_once(queries, state, steps=1):
    coarsest = next(iter(queries.values()))
    return draw_tiers(queries, coarsest.prepare(None, steps), state, unlimited)


# ---- what a reader may learn ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "coarser"), [(1.0, [0.25]), (0.3, [0.1, 0.2]), (0.7, [0.1, 0.3, 0.6]), (1 / 3, [0.1])]
)
def test_budgets_of_the_queries_that_a_reader_is_told_sum_to_no_more_than_the_readers(epsilon, coarser):
    budgets = list(tier_budgets(epsilon, coarser).values())
    for told, allowed in enumerate([*sorted(coarser), epsilon], 1):
        spent = sum(map(exactly, budgets[:told]))
        assert spent <= exactly(allowed)
        assert float(spent) == pytest.approx(allowed, rel=1e-15)


def joint_logs(queries, state, outputs):
    """``log p(z_1, z_2 | state)`` of a first moment over a grid of outputs, by the mechanisms themselves."""
    found = []
    for query, one in queries.items():
        mechanism = one.noise(one.plan(one.prior()), one.settings.epsilon).at(state)
        found.append(mechanism.log_density(outputs, one.values[state]))
        assert query in (MAIN_QUERY, COARSE_QUERY)
    return found[0][:, None] + found[1][None, :]


def test_on_an_edge_the_coarse_reader_learns_a_part_and_both_together_the_whole():
    queries = tiers_of(engine(), [COARSE])
    outputs = np.arange(-60, 64)[:, None]
    one, other = (joint_logs(queries, state, outputs) for state in (0, 1))
    assert 0.9 * FINE < np.abs(one - other).max() <= FINE * (1 + 1e-9)
    alone = [np.logaddexp.reduce(logs, axis=1) for logs in (one, other)]
    assert 0.9 * COARSE < np.abs(alone[0] - alone[1])[20:-20].max() <= COARSE * (1 + 1e-6)


def test_the_finest_reader_knows_what_bayes_rule_makes_of_all_releases_and_the_coarse_one_of_theirs():
    move = np.array([[0.6, 0.2, 0.2, 0.0], [0.1, 0.6, 0.2, 0.1], [0.0, 0.3, 0.4, 0.3], [0.2, 0.2, 0.2, 0.4]])
    queries = tiers_of(engine(3, move=move), [COARSE])
    expected = {query: np.full(4, 0.25) for query in queries}
    for state in (0, 1, 3, 2):
        before = {query: one.prior() for query, one in queries.items()}
        found = drawn_once(queries, state)
        logs = {}
        for query, (step, record) in found.items():
            mechanism = step.noise.parts[0]
            z = queries[query].query.value(record.released)
            logs[query] = mechanism.log_density(np.repeat(z[None], 4, axis=0), queries[query].values)
            assert np.allclose(before[query].probabilities, expected[query])
        for query, told in ((COARSE_QUERY, [COARSE_QUERY]), (MAIN_QUERY, [COARSE_QUERY, MAIN_QUERY])):
            posterior = expected[query] * np.exp(sum(logs[one] for one in told))
            posterior /= posterior.sum()
            assert np.allclose(queries[query].belief.probabilities, posterior)
            expected[query] = posterior @ move


# ---- nothing follows from what a reader was not told ---------------------------------------------------------


def coarse_view(fine_seed, moments=40, joined=False):
    """The coarse reader's records of a walk, where the finer noise alone follows from a seed that varies."""
    move = np.full((4, 4), 0.02) + 0.92 * np.eye(4)
    base = engine(1, move=move, policy=PolicyGraph.complete(4), schedule=Schedule(target_error=0.8))
    queries = tiers_of(base, [0.9])
    coarse, fine = queries.values()
    coarse.source, fine.source = (engine(seed).source for seed in (11, fine_seed))
    if joined:
        coarse.join(fine)  # one belief for both, as if there were one reader
    rng = np.random.default_rng(5)
    path = [0]
    for _ in range(moments - 1):
        path.append(int(rng.choice(4, p=move[path[-1]])))
    records = [drawn_once(queries, state)[query_of(0.9)][1] for state in path]
    return [(one.released, one.reason, one.estimate, one.epsilon_so_far) for one in records]


def test_what_a_coarse_reader_is_told_and_when_does_not_follow_from_finer_draws():
    views = [coarse_view(seed) for seed in range(20, 24)]
    assert all(one == views[0] for one in views)
    assert len({reason for _, reason, *_ in views[0]}) == 2  # the schedule lets some moments pass
    twins = [[reason for _, reason, *_ in coarse_view(seed, joined=True)] for seed in range(20, 24)]
    assert any(one != twins[0] for one in twins)


def alone_together(steps, values):
    """Whether some possible state has no other that all drawn steps of a moment hide it among: by exhaustion."""
    possible = np.flatnonzero(steps[-1].plan.constraint)

    def hidden(step, one, other):
        part = step.noise.part_of
        if not part[one] == part[other] >= 0:
            return False
        return step.noise.at(one).privacy_loss(values[one], values[other]) <= step.epsilon * (1 + 1e-9)

    return any(
        not any(other != one and all(hidden(step, one, other) for step in steps) for other in possible)
        for one in possible
    )


@pytest.mark.parametrize("calibration", ["graph", "component"])
def test_every_state_has_one_partner_that_all_queries_of_a_moment_hide_it_among(calibration, monkeypatch):
    """Repairs join a lonely state to one of two groups, by how probable these are: 60 walks of two moments, seed 2."""
    f = np.array([[0, 0], [0, 1], [1, 0], [3, 0], [5, 0], [6, 0], [6, 1]], dtype=float)
    base = engine(7, f=f, policy=PolicyGraph.from_groups(7, [[0, 1, 2], [4, 5, 6]]), calibration=calibration)

    def found():
        rng, alone, drawn = np.random.default_rng(2), 0, 0
        for _ in range(60):
            queries = {query: one.another() for query, one in tiers_of(base, [0.5, 0.75]).items()}
            for state in rng.integers(7, size=2).tolist():
                steps = [step for step, _ in drawn_once(queries, state).values() if not step.withheld]
                drawn += len(steps) == 3
                alone += alone_together(steps, base.values)
        return alone, drawn

    alone, drawn = found()
    assert alone == 0
    assert drawn > 100
    monkeypatch.setattr(tiers, "finer_plan", lambda engine, prior, told: engine.plan(prior))
    assert (found()[0] > 0) == (calibration == "component")


# ---- what there cannot be ------------------------------------------------------------------------------------


def test_tiers_are_refused_where_a_readers_belief_would_decide_for_another():
    assert tier_settings(ReleaseSettings(), []) == {MAIN_QUERY: ReleaseSettings()}
    for wrong in ([0.5], [1.0], [0.0], [float("nan")]):
        with pytest.raises(BudgetError):
            tier_settings(ReleaseSettings(epsilon=0.5), wrong)
    with pytest.raises(ConfigurationError, match="delta"):
        tier_settings(ReleaseSettings(delta=0.01), [0.2])
    capped = ReleaseSettings.from_dict(
        {"policy": "complete", "epsilon": 1.0, "caps": [{"event": "state:0 at 3", "probability": 0.9}]}
    )
    with pytest.raises(ConfigurationError, match="caps"):
        tier_settings(capped, [0.2])


# ---- sessions ------------------------------------------------------------------------------------------------


def test_sessions_go_on_with_every_readers_belief_and_say_everything_again(tmp_path, monkeypatch):
    path = tmp_path / "a.db"
    whole = tiers_of(engine(9), [COARSE])
    with Session.open(path, "ann", engine(9), coarser=[COARSE]) as session:
        records = [session.release(1, slot) for slot in range(3)]
    with Session.open(path, "ann", engine(10), coarser=[COARSE]) as session:
        assert [session.release(2, slot) for slot in range(3)] == records
        coarse = [session.find(slot, COARSE_QUERY) for slot in range(3)]
        assert [one.epsilon_so_far for one in coarse] == pytest.approx([COARSE, 2 * COARSE, 3 * COARSE])
        assert [one.epsilon_so_far for one in records] == [FINE, 2 * FINE, 3 * FINE]
        assert session.ledger().epsilon == session.account.epsilon == 3 * FINE
        monkeypatch.setattr(SessionStore, "_set_progress", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.release(1, 3)
        monkeypatch.undo()
        assert session.find(3) is None
        assert session.find(3, COARSE_QUERY) is None
        assert session.release(1, 3).epsilon_so_far == 4 * FINE
    assert [one.settings.epsilon for one in whole.values()] == [COARSE, FINE - COARSE]


def test_a_session_in_pieces_is_planned_as_one_that_was_never_closed(tmp_path):
    """The beliefs that queries are planned by are those of the readers: compared with engines that stayed in memory."""
    move = np.full((4, 4), 0.02) + 0.92 * np.eye(4)
    path = tmp_path / "a.db"
    memory = tiers_of(engine(4, move=move, schedule=Schedule(target_error=0.8)), [COARSE])
    for slot, state in enumerate((0, 0, 1, 1, 3, 3)):
        with Session.open(
            path, "ann", engine(0, move=move, schedule=Schedule(target_error=0.8)), coarser=[COARSE]
        ) as session:
            session.release(state, slot)
            kept = {query: session.find(slot, query) for query in memory}
        logs = np.zeros(4)
        for query, one in memory.items():
            prior = one.prior(1)
            if slot == 0:
                one.person.first = 0
            prior = prior.update(logs)
            step = one.prepare(None, 1, prior, one.plan(prior))
            assert step.reason == kept[query].reason
            assert step.epsilon == kept[query].epsilon
            logs = logs + one.log_likelihood(step, kept[query].released)
            one.person.spend(step, 600)
            one.resume(
                step.prior.update(one.log_likelihood(step, kept[query].released)),
                slot + 1,
                None,
                one.person.account,
                slot,
            )
            assert np.allclose(one.measurements.points.T @ one.belief.probabilities, kept[query].estimate)


def test_limits_are_split_so_that_no_reader_sees_what_the_others_spent(tmp_path):
    with Session.open(tmp_path / "a.db", "ann", engine(1), Limits(epsilon=3), coarser=[COARSE]) as session:
        for slot in range(3):
            session.release(0, slot)
        with pytest.raises(BudgetExceededError):
            session.release(0, 3)
        assert session.account.epsilon == 3


def test_tiers_are_asked_together_and_named_apart(tmp_path):
    with Session.open(tmp_path / "a.db", "ann", engine(1), coarser=[COARSE]) as session:
        with pytest.raises(ConfigurationError, match="together"):
            session.release(0, 0, epsilon=0.1)
        with pytest.raises(ConfigurationError, match="together"):
            session.release(0, 0, query=COARSE_QUERY)
        session.release(0, 0)
        assert session.omit(0) == session.find(0)
    with pytest.raises(ConfigurationError, match="several queries"):
        Session.open(tmp_path / "b.db", "ann", {"a": engine(1)}, coarser=[COARSE])
    with pytest.raises(InvalidInputError, match="tier"):
        Session.open(tmp_path / "b.db", "ann", {COARSE_QUERY: engine(1)})


def test_the_audit_of_a_session_with_tiers_is_of_the_reader_who_is_told_everything(tmp_path):
    from dphmm.audit.sequence import ReleasedSequence, replay_sequence

    settings = {"move": np.full((4, 4), 0.02) + 0.92 * np.eye(4), "schedule": Schedule(target_error=0.8)}
    with Session.open(tmp_path / "a.db", "ann", engine(8, **settings), coarser=[COARSE]) as session:
        for slot, state in enumerate((0, 0, 0, 1, 1, 3, 3, 3)):
            session.release(state, slot)
        stored, belief = session.releases(), session.belief
    tiers = tiers_of(engine(8, **settings), [COARSE])
    slots = np.array([one.slot for one in stored])
    sequence = ReleasedSequence(
        "ann",
        np.array([one.record.released or (0.0,) for one in stored]),
        np.array([one.record.epsilon for one in stored]),
        np.diff(slots, prepend=slots[0]),
        np.array([one.record.possible for one in stored]),
        first=0,
        engines={number: tiers[one.query] for number, one in enumerate(stored) if number},
        tiers=np.array([int(one.query == MAIN_QUERY) for one in stored]),
    )
    replays = list(replay_sequence(tiers[COARSE_QUERY], sequence))
    assert np.allclose(replays[-1].posterior.probabilities, belief.probabilities)
    assert all(
        np.allclose(one.posterior.predict(tiers[MAIN_QUERY].model, int(step)).probabilities, after.prior.probabilities)
        for (one, after), step in zip(pairwise(replays), sequence.steps[1:], strict=True)
    )
