"""A released sequence: the replay is the engine's own belief, whatever the mechanism, and what it tells adds up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dphmm import AlreadyKnownError, Ledger, MarkovModel, Measurements, PolicyGraph, Releaser
from dphmm.audit import sequence as sequence_module
from dphmm.audit.sequence import ReleasedSequence, audit_sequence, replay_sequence
from dphmm.errors import BudgetError, CoordinateError, InvalidInputError, StateError, StochasticError
from dphmm.model import Observations, filter_releases
from tests.running_example import LABELS, F


def engine(mechanism="k-norm", seed=0, initial=(0.5, 0.0, 0.5, 0.0, 0.0, 0.0), **options) -> Releaser:
    """A walk over the running example in which constraint sets shrink, so that states get exposed and repaired."""
    matrix = np.array(
        [
            [0.0, 0.5, 0.5, 0.0, 0.0, 0.0],
            [0.2, 0.2, 0.0, 0.6, 0.0, 0.0],
            [0.0, 0.0, 0.4, 0.2, 0.2, 0.2],
            [0.0, 0.3, 0.3, 0.0, 0.4, 0.0],
            [0.3, 0.0, 0.0, 0.0, 0.4, 0.3],
            [0.0, 0.2, 0.2, 0.0, 0.6, 0.0],
        ]
    )
    model = MarkovModel(matrix, initial)
    policy = PolicyGraph.categorical(LABELS)
    return Releaser(model, F, policy, 0.8, mechanism, rng=seed, spacing=1, **options)


def released(releaser: Releaser, length=12, seed=3) -> tuple[ReleasedSequence, list, list, list[int]]:
    rng = np.random.default_rng(seed)
    matrix = releaser.model.transition.toarray()
    state = int(rng.choice(6, p=releaser.model.initial))
    states, records, beliefs, steps = [], [], [], []
    for t in range(length):
        k = int(rng.integers(1, 3)) if t else 1
        for _ in range(k if t else 0):
            state = int(rng.choice(6, p=matrix[state]))
        records.append(releaser.release(state, steps=k))
        beliefs.append(releaser.belief)
        states.append(state)
        steps.append(k)
    sequence = ReleasedSequence(
        "anna",
        np.array([record.released for record in records]),
        np.array([record.epsilon for record in records]),
        np.array(steps),
        np.array([record.possible for record in records]),
        np.array([record.constrained_factor for record in records]),
    )
    return sequence, records, beliefs, states


@pytest.mark.parametrize("mechanism", ["lattice", "k-norm", "laplace", "planar-isotropic", "planar-laplace"])
@pytest.mark.parametrize("delta", [None, 0.1])
def test_replay_gives_the_engines_beliefs_to_the_last_bit(mechanism, delta):
    sequence, records, beliefs, _ = released(engine(mechanism, delta=delta))
    replays = list(replay_sequence(engine(mechanism, seed=99, delta=delta), sequence))
    for replay, record, belief in zip(replays, records, beliefs, strict=True):
        assert np.array_equal(replay.posterior.log_mass, belief.log_mass)
        assert np.isfinite(replay.log_likelihood[belief.support]).all()
        assert int(replay.step.plan.constraint.sum()) == record.possible


def test_audit_tells_what_records_and_ledger_tell():
    sequence, records, beliefs, states = released(engine())
    audit = audit_sequence(engine(), sequence, truth=states)
    ledger = Ledger.from_records(records)
    assert audit.epsilon == pytest.approx(ledger.epsilon)
    assert audit.constrained_epsilon == pytest.approx(ledger.constrained_epsilon)
    assert [step.added for step in audit.steps] == [record.added for record in records]
    assert [step.possible for step in audit.steps] == [record.possible for record in records]
    assert any(step.added for step in audit.steps)
    assert all((step.exposed_before_repair > 0) == bool(step.added) for step in audit.steps)
    assert audit.exposed_steps == ()
    for belief, own in zip(audit.filtering.filtered, beliefs, strict=True):
        assert np.allclose(belief.probabilities, own.probabilities, rtol=1e-9)
    assert audit.accuracies is not None
    assert audit.accuracies[3].expected_error.max() == 0.0
    assert 0 <= audit.path_hits <= 1


@pytest.mark.parametrize("begins", [(), (True,), (True, False, True)])
def test_what_replaying_found_is_what_the_filter_finds(begins, monkeypatch):
    """Also where the engine began anew on the way, which somebody who filters does not."""
    anywhere = engine(initial=np.full(6, 1 / 6))
    sequence, *_ = released(anywhere.another())
    again = np.zeros(len(sequence), dtype=bool)
    again[: len(begins)] = begins
    sequence = replace(sequence, begins=again, possible=np.zeros(0, dtype=int), factors=np.zeros(0))
    rows = np.array([replay.log_likelihood for replay in replay_sequence(anywhere, sequence)])
    observed = Observations(rows, np.asarray(sequence.steps), sequence.first)
    expected, calls = filter_releases(anywhere.model, observed), []
    monkeypatch.setattr(sequence_module, "filter_releases", lambda *given: calls.append(1) or filter_releases(*given))
    found = audit_sequence(anywhere, sequence).filtering
    assert len(calls) == (len(begins) == 3), "once more only where replaying is something else"
    assert found.log_evidence == pytest.approx(expected.log_evidence, rel=1e-12)
    for one, other in zip(found.filtered, expected.filtered, strict=True):
        np.testing.assert_allclose(one.probabilities, other.probabilities, rtol=1e-9)


def test_releases_tell_more_than_none_and_hindsight_more_than_the_moment_on_average():
    """24 sessions, seeds fixed: mean entropies fall in this order by far more than their spread."""
    totals = np.zeros(3)
    for seed in range(24):
        sequence, *_ = released(engine(seed=seed), seed=seed)
        audit = audit_sequence(engine(), sequence)
        totals += [audit.uninformed.entropy.mean(), audit.online.entropy.mean(), audit.hindsight.entropy.mean()]
    assert totals[0] > totals[1] > totals[2]


def test_another_adversary_is_told_of_at_every_step():
    sequence, *_ = released(engine())
    prior = np.array([0.25, 0.25, 0.5, 0, 0, 0])
    audit = audit_sequence(engine(), sequence, prior=prior)
    first = audit.steps[0].adversary
    assert first is not None
    assert first.relation == "wider"
    assert np.array_equal(first.support, prior > 0)
    with pytest.raises(StochasticError, match="adversary's prior"):
        audit_sequence(engine(), sequence, prior=prior * 0.9)


def test_a_knowing_adversary_is_an_exposure():
    sequence, *_ = released(engine("laplace"))
    audit = audit_sequence(engine("laplace"), sequence, prior=[1, 0, 0, 0, 0, 0])
    assert 0 in audit.exposed_steps


def test_other_settings_than_those_of_the_releases_are_noticed():
    sequence, *_ = released(engine("k-norm"))
    with pytest.raises(InvalidInputError, match="constrained-DP factor was"):
        list(replay_sequence(engine("planar-laplace"), sequence))
    sequence, *_ = released(engine("laplace"))
    wrong = ReleasedSequence("b", sequence.released, sequence.epsilons, sequence.steps, sequence.possible + 1)
    with pytest.raises(InvalidInputError, match="release 1: the record says that 3 states were possible"):
        list(replay_sequence(engine("laplace"), wrong))
    flat, *_ = released(engine("k-norm"))
    off = flat.released.copy()
    off[0] += [0.123, 0.321]
    with pytest.raises(InvalidInputError, match="no possible state could have given it"):
        list(replay_sequence(engine("k-norm"), ReleasedSequence("c", off, flat.epsilons, flat.steps)))


def test_one_possible_state_is_refused_or_reported():
    model = MarkovModel(np.eye(2), [1.0, 0.0])
    policy = PolicyGraph.complete(2)
    sequence = ReleasedSequence("d", np.zeros((2, 2)), np.ones(2), np.ones(2, dtype=int))
    f = Measurements([[0, 0], [1, 0]])
    with pytest.raises(AlreadyKnownError, match="user d, release 1"):
        audit_sequence(Releaser(model, f, policy, 1.0), sequence)
    audit = audit_sequence(Releaser(model, f, policy, 1.0, allow_known=True), sequence)
    assert audit.exposed_steps == (0, 1)
    assert audit.facts(["a", "b"])["exposed_releases"] == [1, 2], "people count from one"


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"released": np.zeros((0, 2)), "epsilons": [], "steps": []}, InvalidInputError, "no release"),
        ({"released": [[np.nan, 0]] * 2}, CoordinateError, "finite"),
        ({"epsilons": [1.0]}, InvalidInputError, "1 epsilons"),
        ({"epsilons": [1.0, -1.0]}, BudgetError, "positive"),
        ({"steps": [1, -1]}, InvalidInputError, "sort them"),
        ({"possible": [3]}, InvalidInputError, "1 possible"),
    ],
)
def test_invalid_sequences_are_refused(change, error, words):
    given = {"user": "e", "released": np.zeros((2, 2)), "epsilons": np.ones(2), "steps": np.ones(2, dtype=int)} | change
    with pytest.raises(error, match=words):
        ReleasedSequence(**given)


def test_truth_of_a_wrong_length_is_refused():
    sequence, *_, states = released(engine())
    with pytest.raises(StateError, match="true states"):
        audit_sequence(engine(), sequence, truth=states[:-1])


@pytest.mark.parametrize("most", [1, 3])  # steps between two releases
def test_what_is_found_beside_the_rest_is_what_is_found_after_it(most, monkeypatch):
    sequence, _, _, states = released(engine())
    sequence = replace(
        sequence, steps=np.minimum(sequence.steps, most), possible=np.zeros(0, dtype=np.int64), factors=np.zeros(0)
    )
    found = [audit_sequence(engine(), sequence, truth=states)]
    monkeypatch.setattr(sequence_module, "beside", lambda work: lambda: work())
    found.append(audit_sequence(engine(), sequence, truth=states))
    assert found[0].facts(LABELS) == found[1].facts(LABELS)
