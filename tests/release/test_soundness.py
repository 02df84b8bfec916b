"""The soundness check before a draw: it detects every broken step and accepts sound ones.

Each test breaks one precondition of a draw and leaves everything else unchanged. Several verify the sound step first: a
step is not verified again only if it equals the last one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dphmm import Belief, MarkovModel, PolicyGraph, Releaser, SensitivityHull
from dphmm.errors import GuaranteeError
from dphmm.geometry import measurements as lattices
from dphmm.mechanisms.lattice import LatticeKNormMechanism
from dphmm.mechanisms.norm_noise import KNormMechanism, LaplaceMechanism, PlanarLaplaceMechanism
from dphmm.policy.repair import protect
from dphmm.random import RandomSource
from dphmm.release import soundness, soundness_neighbours
from dphmm.release.soundness import SoundnessCheck
from dphmm.release.soundness_neighbours import StateNeighbours
from tests.running_example import F, build_graph, mask_states

MECHANISMS = ["lattice", "k-norm", "laplace", "planar-isotropic", "planar-laplace"]
MODEL = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6))


def refuse_drawing(_: int) -> bytes:
    raise AssertionError("something was drawn")


def make_engine(mechanism: str, policy: PolicyGraph | None = None, **settings) -> Releaser:
    return Releaser(MODEL, F, policy or build_graph(), 1.0, mechanism, rng=RandomSource(refuse_drawing), **settings)


def scale_noise(noise, share):
    """Return the noise with its scale multiplied by ``share`` and an unchanged stated budget."""
    return replace(noise, parts=tuple(scale_mechanism(part, share) for part in noise.parts))


def scale_mechanism(mechanism, share):
    if isinstance(mechanism, PlanarLaplaceMechanism):
        return PlanarLaplaceMechanism(mechanism.epsilon, mechanism.body.radius * share)
    if isinstance(mechanism, LaplaceMechanism):
        return LaplaceMechanism(mechanism.sensitivity * share, mechanism.epsilon, 2)
    if isinstance(mechanism, LatticeKNormMechanism):
        return LatticeKNormMechanism(mechanism.hull, mechanism.epsilon / share)
    return type(mechanism)(SensitivityHull(mechanism.hull.vertices * share), mechanism.epsilon)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("share", [0.5, 0.999, 1 - 1e-7])
def test_noise_with_too_small_scale_raises(name, share):
    releaser = make_engine(name)
    step = releaser.prepare()
    releaser.soundness(step)
    with pytest.raises(GuaranteeError, match=r"loss on an edge must be at most epsilon, got [12]\.?\d* times"):
        releaser.draw(replace(step, noise=scale_noise(step.noise, share)), 3)
    assert releaser.belief is None


@pytest.mark.parametrize("name", MECHANISMS)
def test_noise_with_larger_scale_is_accepted(name):
    releaser = Releaser(MODEL, F, build_graph(), 1.0, name, rng=1)
    step = releaser.prepare()
    assert releaser.draw(replace(step, noise=scale_noise(step.noise, 1.25)), 3).index == 0


@pytest.mark.parametrize("name", MECHANISMS)
def test_smaller_recorded_epsilon_raises(name):
    releaser = make_engine(name)
    step = releaser.prepare()
    releaser.soundness(step)
    with pytest.raises(GuaranteeError, match="times epsilon"):
        releaser.draw(replace(step, epsilon=0.5), 3)


@pytest.mark.parametrize("name", MECHANISMS)
def test_possible_state_outside_constraint_set_raises(name):
    releaser = make_engine(name)
    constraint = mask_states(1, 2, 3, 4, 5)
    step = replace(releaser.prepare(), constraint=constraint, protection=protect(build_graph(), F, constraint))
    with pytest.raises(GuaranteeError, match="state 5 is possible but not in the constraint set"):
        releaser.draw(step, 3)


def test_location_set_with_too_small_mass_raises():
    releaser = make_engine("k-norm", delta=0.4)
    step = releaser.prepare()
    likely = Belief.from_probabilities(np.array([0.05, 0.05, 0.05, 0.05, 0.4, 0.4]))
    with pytest.raises(GuaranteeError, match=r"state \d is possible but not in the constraint set"):
        releaser.draw(replace(step, prior=likely), 0)


@pytest.mark.parametrize("name", MECHANISMS)
def test_missing_repair_raises(name):
    # Without edges no state is protected. With the noise of a distant edge, state 3 (the third) is exposed.
    for policy in (PolicyGraph.from_edges(6, []), PolicyGraph.from_edges(6, [(0, 1)])):
        releaser = make_engine(name, policy)
        step = releaser.prepare()
        assert step.protection is not None
        hull = SensitivityHull(policy.differences(F) * (1000 if name == "lattice" else 1))
        small = LatticeKNormMechanism(hull, 1) if name == "lattice" else KNormMechanism(hull, 1.0)
        unrepaired = replace(step.protection, added=())
        with pytest.raises(GuaranteeError, match=r"state \d has no indistinguishable partner"):
            releaser.draw(replace(step, protection=unrepaired, noise=replace(step.noise, parts=(small,))), 3)


def test_state_beyond_noise_body_raises():
    """All states but the fifth have another state within two blocks. The fifth within three."""
    releaser = make_engine("k-norm", PolicyGraph.from_edges(6, []))
    step = releaser.prepare()
    unrepaired = replace(step.protection, added=())
    for blocks, message in (
        (2, "state 4 has no indistinguishable partner"),
        (2.9, "state 4 has no indistinguishable partner"),
        (3, "was drawn"),
    ):
        noise = KNormMechanism(SensitivityHull([[blocks, 0], [0, blocks]]), 1.0)
        with pytest.raises((GuaranteeError, AssertionError), match=message):
            releaser.draw(replace(step, protection=unrepaired, noise=replace(step.noise, parts=(noise,))), 3)


def test_possible_state_without_noise_raises():
    releaser = make_engine("k-norm")
    step = releaser.build_plan(Belief.from_probabilities(mask_states(1, 2, 3, 4, 6) / 5), 1.0)
    releaser.soundness(step)
    with pytest.raises(GuaranteeError, match="different noise mechanisms"):
        releaser.draw(replace(step, prior=releaser.predict(), constraint=np.ones(6, dtype=bool)), 3)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 7.5])
def test_likelihood_ratio_limit_is_exact(epsilon):
    limit = soundness._compute_exp_lower_bound(epsilon)
    other = 10**17 // int(limit + 1)
    maximum = limit.numerator * other // limit.denominator
    assert soundness._is_within(np.array([maximum, 5]), np.array([other, 5]), limit)
    for first, second in ((maximum + 1, other), (other, maximum + 1)):
        assert not soundness._is_within(np.array([5, first]), np.array([5, second]), limit)


def test_added_edge_outside_noise_body_raises():
    releaser = make_engine("k-norm")
    step = releaser.prepare()
    releaser.soundness(step)
    repaired = replace(step.protection, added=((0, 4),))
    with pytest.raises(GuaranteeError, match="times epsilon"):
        releaser.draw(replace(step, protection=repaired), 3)


def test_missing_protection_raises():
    releaser = make_engine("k-norm", allow_singleton=True)
    plan = replace(releaser.build_plan(releaser.predict(), 0.0, 1, "target"), reason="", epsilon=1.0)
    with pytest.raises(GuaranteeError, match="no noise is added although the states"):
        releaser.draw(plan, 3)
    with pytest.raises(GuaranteeError, match=r"loss on an edge must be at most epsilon, got [0-9.]+(e[+]\d+)? times"):
        releaser.draw(replace(plan, noise=releaser.planner.build_noise(plan, 1.0)), 3)
    sure = Releaser(MODEL, F, build_graph(), 1.0, "k-norm")
    singleton = Belief.from_probabilities(np.eye(6)[2])
    plan = sure.build_plan(singleton, 0.0, 1, "target")
    alone = replace(plan, reason="", epsilon=1.0, noise=sure.planner.build_noise(plan, 1.0))
    with pytest.raises(GuaranteeError, match="no noise is added"):
        sure.draw(alone, 2)


@pytest.mark.parametrize("name", ["k-norm", "planar-isotropic"])
def test_merged_measurements_raise(name, monkeypatch):
    # An earlier lattice detection treated 0.5 at 10^9 as zero.
    f = np.array([[1e9, 0.0], [1e9 + 0.5, 0.0]])
    axis = lattices._find_lattice_axis
    merged = lambda column: axis(np.round(column, -1))  # noqa: E731
    monkeypatch.setattr(lattices, "_find_lattice_axis", merged)
    model = MarkovModel(np.full((2, 2), 1 / 2), np.full(2, 1 / 2))
    releaser = Releaser(model, f, PolicyGraph.complete(2), 1.0, name, rng=RandomSource(refuse_drawing))
    with pytest.raises(GuaranteeError, match=r"times epsilon|among no other"):
        releaser.release(0)


def test_hull_that_drops_direction_raises():
    # The edges differ in length by a factor of 10^9. The span of floats loses the direction of the short one.
    f = np.array([[0.0, 0.0], [1e9 + 0.1234, 0.0371], [1e9 + 7.1234, 0.5389]])
    model = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3))
    policy = PolicyGraph.from_edges(3, [(0, 1), (1, 2)])
    releaser = Releaser(model, f, policy, 1.0, "k-norm", rng=RandomSource(refuse_drawing))
    with pytest.raises(GuaranteeError, match="times epsilon"):
        releaser.release(0)


def test_sound_step_and_body_are_checked_once():
    releaser = Releaser(MODEL, F, build_graph(), 1.0, "k-norm", rng=2)
    calls = []
    policy = releaser.soundness._policy
    widest = policy.compute_max_gauge
    policy.compute_max_gauge = lambda *arguments: calls.append(1) or widest(*arguments)
    for _ in range(5):
        releaser.release(3)
    other = releaser.spawn()
    other.release(2)
    assert len(calls) == 1
    releaser.release(3, epsilon=0.5)
    releaser.release(3)
    assert len(calls) == 1, "the noise body does not depend on the budget"


def test_check_is_repeated_for_additional_states():
    """An unprotected edge is detected once its states are included, despite cached results."""
    points = np.array([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0], [0.0, 1.0]])
    check = SoundnessCheck(PolicyGraph.from_edges(4, [(0, 1), (0, 3), (1, 2)]), points)
    gauge = KNormMechanism(SensitivityHull([[1.0, 0.0], [0.0, 1.0]]), 1.0).gauge(1.0)
    none, subset = np.zeros((0, 2), dtype=np.int64), np.array([True, True, False, True])
    for members in (subset, subset, subset & [True, True, True, False]):
        check.check_edges(gauge, members, none, is_only_part=False)
    for _ in range(2):
        with pytest.raises(
            GuaranteeError, match=r"loss on an edge must be at most epsilon, got [0-9.]+(e[+]\d+)? times"
        ):
            check.check_edges(gauge, np.ones(4, dtype=bool), none, is_only_part=False)
    check.check_edges(gauge, subset, none, is_only_part=False)


@pytest.mark.parametrize("make", [LatticeKNormMechanism, KNormMechanism])
def test_only_state_of_a_part_is_exposed(make):
    """The repair omits one isolated state. Its noise is a point, which no other state shares."""
    path = PolicyGraph.from_edges(6, [(0, 1), (1, 2), (2, 3), (3, 4)])
    releaser = make_engine("lattice" if make is LatticeKNormMechanism else "k-norm", path, noise_scope="component")
    plan = releaser.prepare()
    point = make(SensitivityHull(np.zeros((0, 2))), 1.0)
    noise = replace(plan.noise, parts=(plan.noise.parts[0], point), part_of=np.array([0, 0, 0, 0, 0, 1]))
    broken = replace(plan, noise=noise, protection=replace(plan.protection, added=()))
    with pytest.raises(GuaranteeError, match="state 5 has no indistinguishable partner"):
        releaser.draw(broken, 3)


def test_brute_force_nearest_states_match_tree(monkeypatch):
    """Compare distances, because ties may name either state. Two states share one point."""
    places = np.random.default_rng(5).normal(size=(300, 2))
    places[7] = places[120]
    monkeypatch.setattr(soundness_neighbours, "_ROWS_PER_BLOCK", 64)
    partner, distance = StateNeighbours(places).nearest
    monkeypatch.setattr(soundness_neighbours, "_MAX_BRUTE_FORCE_STATES", 0)
    by_tree = StateNeighbours(places).nearest[1]
    np.testing.assert_allclose(distance, by_tree, rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(places[partner] - places, axis=1), distance, rtol=1e-12)
    assert (partner != np.arange(300)).all()
    assert partner[7] == 120
    lone = StateNeighbours(places[:1]).nearest
    assert np.isinf(lone[1]).all()
