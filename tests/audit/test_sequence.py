"""Tests of released sequences: replays equal the engine's beliefs, and audits add up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dphmm import Ledger, MarkovModel, Measurements, PolicyGraph, Releaser, SingletonConstraintError
from dphmm.audit import sequence as sequence_module
from dphmm.audit.sequence import ReleasedSequence, audit_sequence, replay_sequence
from dphmm.errors import BudgetError, CoordinateError, InvalidInputError, StateError, StochasticError
from dphmm.model import Observations, filter_releases
from tests.running_example import LABELS, F


def make_engine(mechanism="k-norm", seed=0, initial=(0.5, 0.0, 0.5, 0.0, 0.0, 0.0), **options) -> Releaser:
    """Return an engine on the running example with constraint sets that need repairs."""
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


def release_walk(releaser: Releaser, length=12, seed=3) -> tuple[ReleasedSequence, list, list, list[int]]:
    rng = np.random.default_rng(seed)
    matrix = releaser.model.transition.toarray()
    state = int(rng.choice(6, p=releaser.model.initial))
    states = []
    records = []
    beliefs = []
    steps = []
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
        np.array([record.num_possible_states for record in records]),
        np.array([record.constrained_dp_factor for record in records]),
    )
    return sequence, records, beliefs, states


@pytest.mark.parametrize("mechanism", ["lattice", "k-norm", "laplace", "planar-isotropic", "planar-laplace"])
@pytest.mark.parametrize("delta", [None, 0.1])
def test_replay_matches_engine_beliefs_bit_for_bit(mechanism, delta):
    sequence, records, beliefs, _ = release_walk(make_engine(mechanism, delta=delta))
    replays = list(replay_sequence(make_engine(mechanism, seed=99, delta=delta), sequence))
    for replay, record, belief in zip(replays, records, beliefs, strict=True):
        assert np.array_equal(replay.posterior.log_mass, belief.log_mass)
        assert np.isfinite(replay.log_likelihood[belief.support]).all()
        assert int(replay.step.constraint.sum()) == record.num_possible_states


@pytest.mark.parametrize("first", [1, 5])
def test_replay_continues_after_earlier_releases_bit_for_bit(first):
    sequence, _, beliefs, _ = release_walk(make_engine(delta=0.1))

    def select(rows):
        names = ("released", "epsilons", "steps", "num_possible_states", "constrained_dp_factors")
        return replace(sequence, **{name: getattr(sequence, name)[rows] for name in names})

    earlier = list(replay_sequence(make_engine(delta=0.1), select(slice(first))))
    later = list(replay_sequence(make_engine(delta=0.1), select(slice(first, None)), earlier[-1].posterior, first))
    for replay, belief in zip((*earlier, *later), beliefs, strict=True):
        assert np.array_equal(replay.posterior.log_mass, belief.log_mass)
    rest = select(slice(first, None))
    with pytest.raises(InvalidInputError, match="anna, release 1: no possible state"):  # without the earlier ones
        list(replay_sequence(make_engine(delta=0.1), rest))
    wrong = replace(rest, num_possible_states=rest.num_possible_states + 1)
    with pytest.raises(InvalidInputError, match=rf"anna, release {first + 1}: the record states"):
        list(replay_sequence(make_engine(delta=0.1), wrong, earlier[-1].posterior, first))


def test_audit_agrees_with_records_and_ledger():
    sequence, records, beliefs, states = release_walk(make_engine())
    audit = audit_sequence(make_engine(), sequence, truth=states)
    ledger = Ledger.from_records(records)
    assert audit.epsilon == ledger.epsilon
    assert audit.constrained_epsilon == ledger.constrained_epsilon
    assert [step.added_edges for step in audit.steps] == [record.added_edges for record in records]
    assert [step.num_possible_states for step in audit.steps] == [record.num_possible_states for record in records]
    assert any(step.added_edges for step in audit.steps)
    assert all((step.num_exposed_before_repair > 0) == bool(step.added_edges) for step in audit.steps)
    assert audit.exposed_steps == ()
    for belief, engine_belief in zip(audit.filtering.filtered, beliefs, strict=True):
        assert np.allclose(belief.probabilities, engine_belief.probabilities, rtol=1e-9)
    assert audit.accuracies is not None
    assert audit.accuracies[3].expected_error.max() == 0.0
    assert 0 <= audit.path_accuracy <= 1


@pytest.mark.parametrize("begins", [(), (True,), (True, False, True)], ids=["unspecified", "first", "first and third"])
def test_replayed_filter_matches_direct_filter(begins, monkeypatch):
    """This includes sequences with restarts, which a filter over all releases ignores."""
    anywhere = make_engine(initial=np.full(6, 1 / 6))
    sequence, *_ = release_walk(anywhere.spawn())
    again = np.zeros(len(sequence), dtype=bool)
    again[: len(begins)] = begins
    sequence = replace(
        sequence, restarts=again, num_possible_states=np.zeros(0, dtype=int), constrained_dp_factors=np.zeros(0)
    )
    rows = np.array([replay.log_likelihood for replay in replay_sequence(anywhere, sequence)])
    observed = Observations(rows, np.asarray(sequence.steps), sequence.first_slot)
    expected, calls = filter_releases(anywhere.model, observed), []
    monkeypatch.setattr(
        sequence_module, "filter_releases", lambda *arguments: calls.append(1) or filter_releases(*arguments)
    )
    filtering = audit_sequence(anywhere, sequence).filtering
    assert len(calls) == (len(begins) == 3), "filtering runs again only if the replay restarts"
    assert filtering.log_evidence == pytest.approx(expected.log_evidence, rel=1e-12)
    for belief, other in zip(filtering.filtered, expected.filtered, strict=True):
        np.testing.assert_allclose(belief.probabilities, other.probabilities, rtol=1e-9)


@pytest.mark.slow
def test_mean_entropy_decreases_with_releases_and_with_smoothing():
    """24 sessions with fixed seeds: mean entropies differ by far more than their spread."""
    totals = np.zeros(3)
    for seed in range(24):
        sequence, *_ = release_walk(make_engine(seed=seed), seed=seed)
        audit = audit_sequence(make_engine(), sequence)
        totals += [
            audit.prior_metrics.entropy.mean(),
            audit.filtered_metrics.entropy.mean(),
            audit.smoothed_metrics.entropy.mean(),
        ]
    assert totals[0] > totals[1] > totals[2]


def test_adversary_with_other_prior_is_audited_at_every_step():
    sequence, *_ = release_walk(make_engine())
    prior = np.array([0.25, 0.25, 0.5, 0, 0, 0])
    audit = audit_sequence(make_engine(), sequence, prior=prior)
    first = audit.steps[0].adversary
    assert first is not None
    assert first.relation == "wider"
    assert np.array_equal(first.support, prior > 0)
    with pytest.raises(StochasticError, match="adversary's prior"):
        audit_sequence(make_engine(), sequence, prior=prior * 0.9)


def test_adversary_with_point_mass_prior_causes_exposure():
    sequence, *_ = release_walk(make_engine("laplace"))
    audit = audit_sequence(make_engine("laplace"), sequence, prior=[1, 0, 0, 0, 0, 0])
    assert 0 in audit.exposed_steps


def test_replay_with_other_settings_raises():
    sequence, *_ = release_walk(make_engine("k-norm"))
    with pytest.raises(InvalidInputError, match="constrained-DP factor"):
        list(replay_sequence(make_engine("planar-laplace"), sequence))
    sequence, *_ = release_walk(make_engine("laplace"))
    wrong = ReleasedSequence(
        "b", sequence.released, sequence.epsilons, sequence.steps, sequence.num_possible_states + 1
    )
    with pytest.raises(InvalidInputError, match=r"release 1: .*3 possible states.*; check that the model, policy"):
        list(replay_sequence(make_engine("laplace"), wrong))
    flat, *_ = release_walk(make_engine("k-norm"))
    off = flat.released.copy()
    off[0] += [0.123, 0.321]
    with pytest.raises(InvalidInputError, match=r"release 1: no possible state can .*; check that the model, policy"):
        list(replay_sequence(make_engine("k-norm"), ReleasedSequence("c", off, flat.epsilons, flat.steps)))


def test_single_possible_state_raises_or_is_reported():
    model = MarkovModel(np.eye(2), [1.0, 0.0])
    policy = PolicyGraph.complete(2)
    sequence = ReleasedSequence("d", np.zeros((2, 2)), np.ones(2), np.ones(2, dtype=int))
    f = Measurements([[0, 0], [1, 0]])
    with pytest.raises(SingletonConstraintError, match="user d, release 1"):
        audit_sequence(Releaser(model, f, policy, 1.0), sequence)
    audit = audit_sequence(Releaser(model, f, policy, 1.0, allow_singleton=True), sequence)
    assert audit.exposed_steps == (0, 1)
    assert audit.to_dict(["a", "b"])["exposed_releases"] == [1, 2], "releases are numbered from one"


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"released": np.zeros((0, 2)), "epsilons": [], "steps": []}, InvalidInputError, "no release"),
        ({"released": [[np.nan, 0]] * 2}, CoordinateError, "finite"),
        ({"epsilons": [1.0]}, InvalidInputError, "epsilons must have one entry for each of 2 releases, got 1"),
        ({"epsilons": [1.0, -1.0]}, BudgetError, "positive"),
        ({"steps": [1, -1]}, InvalidInputError, "steps must be non-negative; sort"),
        ({"num_possible_states": [3]}, InvalidInputError, "num_possible_states must .*got 1"),
    ],
)
def test_invalid_sequences_raise(change, error, words):
    call_arguments = {
        "user": "e",
        "released": np.zeros((2, 2)),
        "epsilons": np.ones(2),
        "steps": np.ones(2, dtype=int),
    } | change
    with pytest.raises(error, match=words):
        ReleasedSequence(**call_arguments)


def test_truth_of_wrong_length_raises():
    sequence, *_, states = release_walk(make_engine())
    with pytest.raises(StateError, match="true states"):
        audit_sequence(make_engine(), sequence, truth=states[:-1])


@pytest.mark.parametrize("max_steps", [1, 3])  # timesteps between two releases
def test_audit_is_equal_if_parts_run_sequentially(max_steps, monkeypatch):
    sequence, _, _, states = release_walk(make_engine())
    sequence = replace(
        sequence,
        steps=np.minimum(sequence.steps, max_steps),
        num_possible_states=np.zeros(0, dtype=np.int64),
        constrained_dp_factors=np.zeros(0),
    )
    audits = [audit_sequence(make_engine(), sequence, truth=states)]
    monkeypatch.setattr(sequence_module, "run_in_background", lambda work: lambda: work())
    audits.append(audit_sequence(make_engine(), sequence, truth=states))
    assert audits[0].to_dict(LABELS) == audits[1].to_dict(LABELS)


def test_entry_is_a_release_after_an_unprotected_one_not_a_withheld_timestep():
    policy = PolicyGraph.from_groups(6, [[3, 4, 5]]).with_open([0, 1, 2])
    releaser = Releaser(MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6)), F, policy, 1.0, spacing=1)
    released = np.array([F[0], [0, 0], F[1], [0, 0], [2.0, 3.0], [2.0, 3.0]], dtype=float)
    epsilons = np.array([1.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    audit = audit_sequence(releaser, ReleasedSequence("anna", released, epsilons, np.ones(6, dtype=int)))
    assert [step.is_unprotected for step in audit.steps] == [True, False, True, False, False, False]
    assert audit.entries == (4,)
