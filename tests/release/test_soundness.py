"""The check before a draw: whatever is wrong with a step is found, and nothing is drawn; what is right goes through.

Each test breaks one thing that leads to a draw and leaves all else as it is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dphmm import Belief, MarkovModel, PolicyGraph, Releaser, SensitivityHull
from dphmm.arrays import RandomSource
from dphmm.errors import PromiseError
from dphmm.geometry import measurements as lattices
from dphmm.mechanisms.lattice import LatticeKNormMechanism
from dphmm.mechanisms.norm_noise import KNormMechanism, LaplaceMechanism, PlanarLaplaceMechanism
from dphmm.policy.protection import protect
from dphmm.release import soundness
from dphmm.release.soundness import SoundnessCheck
from dphmm.release.step import StepPlan
from tests.running_example import F, graph, states

MECHANISMS = ["lattice", "k-norm", "laplace", "planar-isotropic", "planar-laplace"]
MODEL = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6))


def untouchable(_: int) -> bytes:
    raise AssertionError("something was drawn")


def engine(mechanism: str, policy: PolicyGraph | None = None, **settings) -> Releaser:
    return Releaser(MODEL, F, policy or graph(), 1.0, mechanism, rng=RandomSource(untouchable), **settings)


def shrunk(noise, share):
    """The same noise at a smaller scale, with the same stated budget."""
    return replace(noise, parts=tuple(smaller(part, share) for part in noise.parts))


def smaller(mechanism, share):
    if isinstance(mechanism, PlanarLaplaceMechanism):
        return PlanarLaplaceMechanism(mechanism.epsilon, mechanism.body.radius * share)
    if isinstance(mechanism, LaplaceMechanism):
        return LaplaceMechanism(mechanism.sensitivity * share, mechanism.epsilon, 2)
    if isinstance(mechanism, LatticeKNormMechanism):
        return LatticeKNormMechanism(mechanism.hull, mechanism.epsilon / share)
    return type(mechanism)(SensitivityHull(mechanism.hull.vertices * share), mechanism.epsilon)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("share", [0.5, 0.999, 1 - 1e-7])
def test_noise_of_too_small_a_scale_is_not_drawn(name, share):
    releaser = engine(name)
    step = releaser.prepare()
    with pytest.raises(PromiseError, match=r"would differ by [12]\.?\d* times epsilon"):
        releaser.draw(replace(step, noise=shrunk(step.noise, share)), 3)
    assert releaser.belief is None


@pytest.mark.parametrize("name", MECHANISMS)
def test_noise_of_a_larger_scale_is_drawn(name):
    releaser = Releaser(MODEL, F, graph(), 1.0, name, rng=1)
    step = releaser.prepare()
    assert releaser.draw(replace(step, noise=shrunk(step.noise, 1.25)), 3).index == 0


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_budget_smaller_than_that_of_the_noise_is_not_recorded(name):
    releaser = engine(name)
    with pytest.raises(PromiseError, match="times epsilon"):
        releaser.draw(replace(releaser.prepare(), epsilon=0.5), 3)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_possible_state_that_the_constraint_set_leaves_out_stops_the_draw(name):
    releaser = engine(name)
    constraint = states(1, 2, 3, 4, 5)
    step = replace(releaser.prepare(), plan=StepPlan(constraint, protect(graph(), F, constraint)))
    with pytest.raises(PromiseError, match="state 5 is possible and not among those that this step hides"):
        releaser.draw(step, 3)


def test_a_location_set_of_too_small_a_mass_stops_the_draw():
    releaser = engine("k-norm", delta=0.4)
    step = releaser.prepare()
    likely = Belief.of(np.array([0.05, 0.05, 0.05, 0.05, 0.4, 0.4]))
    with pytest.raises(PromiseError, match="is possible and not among"):
        releaser.draw(replace(step, prior=likely), 0)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_repair_that_was_forgotten_stops_the_draw(name):
    # Without an edge nobody is hidden; with the noise of another, far edge alone state 3 (the third) is not.
    for policy in (PolicyGraph.from_edges(6, []), PolicyGraph.from_edges(6, [(0, 1)])):
        releaser = engine(name, policy)
        step = releaser.prepare()
        assert step.plan.protection is not None
        hull = SensitivityHull(policy.differences(F) * (1000 if name == "lattice" else 1))
        small = LatticeKNormMechanism(hull, 1) if name == "lattice" else KNormMechanism(hull, 1.0)
        plan = StepPlan(step.plan.constraint, replace(step.plan.protection, added=()))
        with pytest.raises(PromiseError, match="would be hidden among no other states"):
            releaser.draw(replace(step, plan=plan, noise=replace(step.noise, parts=(small,))), 3)


def test_a_state_just_beyond_the_reach_of_the_noise_is_hidden_among_nobody():
    """All but the fifth state have another within two blocks; it has its nearest at three."""
    releaser = engine("k-norm", PolicyGraph.from_edges(6, []))
    step = releaser.prepare()
    plan = StepPlan(step.plan.constraint, replace(step.plan.protection, added=()))
    for blocks, message in (
        (2, "state 4 would be hidden among no other states"),
        (2.9, "state 4 would"),
        (3, "was drawn"),
    ):
        noise = KNormMechanism(SensitivityHull([[blocks, 0], [0, blocks]]), 1.0)
        with pytest.raises((PromiseError, AssertionError), match=message):
            releaser.draw(replace(step, plan=plan, noise=replace(step.noise, parts=(noise,))), 3)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 7.5])
def test_a_limit_that_is_passed_by_less_than_doubles_can_tell_is_passed(epsilon):
    limit = soundness._power_below(epsilon)
    other = 10**17 // int(limit + 1)
    most = limit.numerator * other // limit.denominator
    assert soundness._keeps(np.array([most, 5]), np.array([other, 5]), limit)
    for first, second in ((most + 1, other), (other, most + 1)):
        assert not soundness._keeps(np.array([5, first]), np.array([5, second]), limit)


def test_an_added_edge_that_the_noise_does_not_hide_stops_the_draw():
    releaser = engine("k-norm")
    step = releaser.prepare()
    plan = StepPlan(step.plan.constraint, replace(step.plan.protection, added=((0, 4),)))
    with pytest.raises(PromiseError, match="times epsilon"):
        releaser.draw(replace(step, plan=plan), 3)


def test_nothing_hides_two_possible_states_without_a_repaired_graph():
    releaser = engine("k-norm", allow_known=True)
    plan = releaser.planner.plan_without_noise(releaser.prior())
    with pytest.raises(PromiseError, match="nothing hides the possible states"):
        releaser.draw(replace(releaser.prepare(), plan=plan, noise=releaser.query.no_noise(plan.protection)), 3)
    with pytest.raises(PromiseError, match="would differ by"):
        releaser.draw(replace(releaser.prepare(), plan=plan, noise=releaser.noise(plan, 1.0)), 3)
    sure = Releaser(MODEL, F, graph(), 1.0, "k-norm")
    known = Belief.of(np.eye(6)[2])
    plan = sure.planner.plan_without_noise(known)
    alone = replace(sure.prepare(), prior=known, plan=plan, noise=sure.noise(plan, 1.0))
    with pytest.raises(PromiseError, match="nothing hides"):
        sure.draw(alone, 2)


@pytest.mark.parametrize("name", ["k-norm", "planar-isotropic"])
def test_measurements_that_are_merged_by_mistake_stop_the_draw(name, monkeypatch):
    # What recognised lattices once: 0.5 apart at 10^9 was taken for nothing.
    f = np.array([[1e9, 0.0], [1e9 + 0.5, 0.0]])
    axis = lattices._lattice_axis
    merged = lambda column: axis(np.round(column, -1))  # noqa: E731
    monkeypatch.setattr(lattices, "_lattice_axis", merged)
    model = MarkovModel(np.full((2, 2), 1 / 2), np.full(2, 1 / 2))
    releaser = Releaser(model, f, PolicyGraph.complete(2), 1.0, name, rng=RandomSource(untouchable))
    with pytest.raises(PromiseError, match=r"times epsilon|among no other"):
        releaser.release(0)


def test_hulls_that_drop_a_direction_stop_the_draw():
    # Edges a thousand million times longer than another: the short one's direction is lost in the span of floats.
    f = np.array([[0.0, 0.0], [1e9 + 0.1234, 0.0371], [1e9 + 7.1234, 0.5389]])
    model = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3))
    policy = PolicyGraph.from_edges(3, [(0, 1), (1, 2)])
    releaser = Releaser(model, f, policy, 1.0, "k-norm", rng=RandomSource(untouchable))
    with pytest.raises(PromiseError, match="times epsilon"):
        releaser.release(0)


def test_a_sound_step_is_looked_at_once_and_a_body_once():
    releaser = Releaser(MODEL, F, graph(), 1.0, "k-norm", rng=2)
    asked = []
    policy = releaser.soundness._policy
    widest = policy.widest
    policy.widest = lambda *arguments: asked.append(1) or widest(*arguments)
    for _ in range(5):
        releaser.release(3)
    other = releaser.another()
    other.release(2)
    assert len(asked) == 1
    releaser.release(3, epsilon=0.5)
    releaser.release(3)
    assert len(asked) == 1, "the body of noise is the same at another budget"


def test_what_was_found_sound_among_some_states_is_looked_at_again_among_more():
    """An edge that the noise does not hide is found once its states are served, whatever was looked at before."""
    points = np.array([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0], [0.0, 1.0]])
    check = SoundnessCheck(PolicyGraph.from_edges(4, [(0, 1), (0, 3), (1, 2)]), points)
    gauge = KNormMechanism(SensitivityHull([[1.0, 0.0], [0.0, 1.0]]), 1.0).gauge(1.0)
    none, some = np.zeros((0, 2), dtype=np.int64), np.array([True, True, False, True])
    for members in (some, some, some & [True, True, True, False]):
        check._check_edges(gauge, members, none, whole=False)
    for _ in range(2):
        with pytest.raises(PromiseError, match="would differ by"):
            check._check_edges(gauge, np.ones(4, dtype=bool), none, whole=False)
    check._check_edges(gauge, some, none, whole=False)


def test_the_nearest_of_few_states_are_those_of_the_tree(monkeypatch):
    """Distances are compared, as of equally near states either may be named; two lie at one point."""
    places = np.random.default_rng(5).normal(size=(300, 2))
    places[7] = places[120]
    policy = PolicyGraph.complete(300)
    monkeypatch.setattr(soundness, "_ROWS", 64)
    partner, distance = SoundnessCheck(policy, places)._nearest
    monkeypatch.setattr(soundness, "_FEW", 0)
    by_tree = SoundnessCheck(policy, places)._nearest[1]
    np.testing.assert_allclose(distance, by_tree, rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(places[partner] - places, axis=1), distance, rtol=1e-12)
    assert (partner != np.arange(300)).all()
    assert partner[7] == 120
    lone = SoundnessCheck(PolicyGraph.complete(1), places[:1])._nearest
    assert np.isinf(lone[1]).all()
