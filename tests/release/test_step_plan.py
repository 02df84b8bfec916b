"""Plans are reused exactly where nothing that determines them differs."""

from __future__ import annotations

from copy import copy

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.errors import InvalidInputError, StateError
from dphmm.events.output_bounds import OddsBounds
from dphmm.model import Belief
from dphmm.release.step_plan import Planner, StepPlan, as_state, check_steps
from tests.running_example import F, build_graph
from tests.sizes import mark_slow

UNIFORM = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6))
FIRST = Belief.from_probabilities(np.array([0.3, 0.1, 0.2, 0.2, 0.1, 0.1]))
SECOND = Belief.from_probabilities(np.array([0.1, 0.3, 0.1, 0.1, 0.2, 0.2]))
FEWER = Belief.from_probabilities(np.array([0.0, 0.3, 0.2, 0.1, 0.2, 0.2]))
# State 1 of the running example is exposed, and no state is if it is adjacent to state 2.
REPAIRED = build_graph()
UNREPAIRED = build_graph().with_edges([(0, 1)])


def make_planner(policy: PolicyGraph, mechanism: str = "k-norm", **settings) -> Planner:
    return Releaser(UNIFORM, F, policy, 1.0, mechanism, rng=1, **settings).planner


def describe(plan: StepPlan) -> tuple[object, ...]:
    """Return what determines the distribution of the release."""
    protection = plan.protection
    masses = [plan.noise.log_density(output).tolist() for output in F.astype(float)]
    return plan.constraint.tolist(), protection.added, protection.graph.edge_array().tolist(), masses


SETTINGS = {
    "one hull": (REPAIRED, "k-norm", {}),
    "one hull with repair": (PolicyGraph.from_edges(6, [(1, 2)]), "k-norm", {}),
    "components": (REPAIRED, "k-norm", {"noise_scope": "component"}),
    "components without repair": (UNREPAIRED, "k-norm", {"noise_scope": "component"}),
    "optimal table": (REPAIRED, "optimal", {}),
    "optimal table without repair": (UNREPAIRED, "optimal", {}),
    "graph-exponential table": (REPAIRED, "graph-exponential", {}),
    "delta": (REPAIRED, "k-norm", {"delta": 0.15}),
}


@pytest.mark.parametrize("name", [mark_slow(name) if "table" in name else name for name in SETTINGS])
def test_planner_with_earlier_plans_matches_new_one(name):
    """Beliefs, budgets, and edges that are added before the repair change separately."""
    policy, mechanism, settings = SETTINGS[name]
    planner = make_planner(policy, mechanism, **settings)
    cases = [
        (belief, extra, epsilon)
        for extra in ((), ((2, 3),))
        for epsilon in (1.0, 0.5)
        for belief in (FIRST, SECOND, FEWER)
    ]
    cases += [cases[index] for index in np.random.default_rng(1).integers(0, len(cases), 6)]
    for belief, extra, epsilon in cases:
        plan = planner.with_epsilon(planner.build_plan(belief, extra), epsilon, steps=3, version=7)
        fresh = make_planner(policy, mechanism, **settings)
        assert describe(plan) == describe(fresh.with_epsilon(fresh.build_plan(belief, extra), epsilon))
        assert plan.prior is belief
        assert set(extra) <= set(plan.protection.added)
        assert (plan.extra_edges, plan.epsilon, plan.steps, plan.version) == (extra, epsilon, 3, 7)


@pytest.mark.parametrize("name", SETTINGS)
def test_repair_depends_on_masses_of_belief_for_tables_and_components_with_added_edges(name):
    policy, mechanism, settings = SETTINGS[name]
    planner = make_planner(policy, mechanism, **settings)
    first, again, second = (planner.build_plan(belief) for belief in (FIRST, FIRST, SECOND))
    assert first.repair_id == again.repair_id
    is_table = mechanism in ("optimal", "graph-exponential")
    # With delta the masses also determine the constraint set.
    uses_masses = is_table or name in ("components", "delta")
    assert (first.repair_id == second.repair_id) != uses_masses
    assert planner.build_noise(first, 1.0) is planner.build_noise(again, 1.0)


def test_optimal_table_has_least_error_under_the_belief_of_its_plan():
    planner = make_planner(UNREPAIRED, "optimal")
    squares = ((F[:, None] - F[None]) ** 2).sum(axis=2)
    errors = np.empty((2, 2))
    for row, belief in enumerate((FIRST, SECOND)):
        noise = planner.build_noise(planner.build_plan(belief), 1.0)
        table = np.exp([noise.log_density(output) for output in F.astype(float)])
        errors[row] = [(squares * table).sum(axis=0) @ other.probabilities for other in (FIRST, SECOND)]
    assert errors[0, 0] < 0.999 * errors[1, 0]
    assert errors[1, 1] < 0.999 * errors[0, 1]


def test_withheld_timestep_has_current_belief_and_support():
    planner = make_planner(REPAIRED)
    for version, belief in enumerate((FIRST, SECOND, FEWER, FIRST)):
        plan = planner.withhold(belief, "budget", 2 + version, version, (0.25,))
        assert plan.prior is belief
        assert plan.constraint.tolist() == belief.support.tolist()
        assert plan.num_possible == plan.min_degree_of_protection == belief.support.sum()
        assert (plan.steps, plan.version, plan.reason, plan.max_event_probabilities) == (
            2 + version, version, "budget", (0.25,)
        )  # fmt: skip
        assert plan.withheld
        assert plan.epsilon == 0.0
        assert not planner.build_plan(belief).withheld


def test_outputs_belong_to_their_plan():
    """The outputs of another constraint set bound other likelihood ratios."""
    planner = make_planner(REPAIRED)
    outputs = {}
    for name, belief in (("all", FIRST), ("fewer", FEWER), ("all again", FIRST)):
        outputs[name] = planner.build_outputs(planner.build_plan(belief), 1.0)
    assert outputs["all"] is not outputs["fewer"]
    assert outputs["fewer"] is not outputs["all again"]
    plan = planner.build_plan(FIRST)
    assert planner.build_outputs(plan, 1.0) is planner.build_outputs(plan, 0.5)


def test_planner_of_another_user_starts_with_the_same_noise_and_adds_its_own():
    planner = make_planner(REPAIRED)
    plan = planner.build_plan(FIRST)
    noise = planner.build_noise(plan, 1.0)
    other = copy(planner)
    assert other.build_noise(plan, 1.0) is noise
    other.build_noise(plan, 0.5)
    assert len(planner._noises) == 1
    assert other.repairs is planner.repairs


def test_surrogates_leave_the_states_unchanged():
    planner = make_planner(REPAIRED)
    states = np.arange(6)
    released = planner.map_to_surrogates(states, states != 2)
    assert released.tolist() == [0, 1, 1, 3, 4, 5]
    assert states.tolist() == list(range(6))


@pytest.mark.parametrize("state", [0, 5, np.int64(5), 5.0, np.array([5])])
def test_integer_states_are_read(state):
    assert as_state(state, 6) == int(np.asarray(state).item())


@pytest.mark.parametrize("state", [-1, 6, True, np.True_, 1.5, "1", None, np.array([1, 2])])
def test_other_states_raise(state):
    with pytest.raises(StateError, match="state must be an integer from 0 to 5, got"):
        as_state(state, 6)


@pytest.mark.parametrize("steps", [0, -1, True, 1.0, np.timedelta64(1, "s"), "1", None])
def test_steps_that_are_not_a_positive_integer_raise(steps):
    check_steps(1)
    check_steps(np.int64(3))
    with pytest.raises(InvalidInputError, match="steps must be a positive integer, got"):
        check_steps(steps)


# Two components, of which the second has a location in common with the first, and impossible states next to each.
PLACES = np.array([[0, 0], [2, 0], [5, 1], [5, 1], [8, 2], [9, 2], [0, 1], [7, 3]])
BELIEF = Belief.from_probabilities(np.array([0.25, 0.2, 0.1, 0.15, 0.12, 0.12, 0.03, 0.03]))
COMPONENTS = PolicyGraph.from_edges(8, [(0, 1), (1, 2), (3, 4), (4, 5), (1, 6), (5, 7)])


def make_plan_with_surrogates(mechanism: str) -> tuple[Planner, StepPlan, np.ndarray]:
    """Return a planner, its plan, and the state released for each state by brute force."""
    model = MarkovModel(np.full((8, 8), 1 / 8), np.full(8, 1 / 8))
    settings = {"delta": 0.07, "noise_scope": "component"}
    planner = Releaser(model, PLACES, COMPONENTS, 1.0, mechanism, rng=1, **settings).planner
    plan = planner.build_plan(BELIEF)
    possible = np.flatnonzero(plan.constraint)
    assert possible.tolist() == [0, 1, 2, 3, 4, 5]
    distances = np.linalg.norm(PLACES[:, np.newaxis] - PLACES[possible], axis=2)
    surrogates = possible[distances.argmin(axis=1)]
    return planner, plan, np.where(plan.constraint, np.arange(8), surrogates)


def compute_max_odds(bounds: OddsBounds, odds: float, densities: np.ndarray) -> float:
    """Return the largest odds over some outputs, ``(c, N)`` densities in each state."""
    without = bounds.against[:, 0] / odds
    with_event = bounds.plus[:, 0] - bounds.minus[:, 0] + bounds.against[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):  # outputs of the other part have no density
        return float(np.nanmax(densities @ with_event / (densities @ without)))


@pytest.mark.parametrize("mechanism", ["optimal", "graph-exponential", "k-norm"])
def test_bounds_of_outputs_hold_with_surrogates_in_several_parts(mechanism):
    """Tables are compared at every output, with exact probabilities, norm noise on a grid."""
    planner, plan, released = make_plan_with_surrogates(mechanism)
    noise = planner.build_noise(plan, 1.0)
    members = [set(states.tolist()) for states in noise.members]
    assert [states for states in members if states] == [{0, 1, 2}, {3, 4, 5}]
    part = [next(index for index, states in enumerate(members) if state in states) for state in released]
    if mechanism == "k-norm":
        grid = np.stack(np.meshgrid(np.linspace(-9, 18, 55), np.linspace(-9, 12, 43)), axis=-1).reshape(-1, 2)
        columns = [
            np.exp(noise.parts[index].log_density(grid, PLACES[state].astype(float)))
            for index, state in zip(part, released, strict=True)
        ]
        densities = np.array(columns).T
        densities = densities[densities.max(axis=1) > 0]
        at_places = np.array(
            [
                [
                    np.exp(noise.parts[index].log_density(place, PLACES[state].astype(float)))
                    for index, state in zip(part, released, strict=True)
                ]
                for place in PLACES[:6].astype(float)
            ]
        )
    else:
        points = np.unique(PLACES[:6], axis=0)
        rows = [
            [
                noise.parts[index].probability(point, PLACES[state])
                if any((PLACES[other] == point).all() for other in members[index])
                else 0
                for point in points
            ]
            for index, state in zip(part, released, strict=True)
        ]
        assert all(sum(row) == 1 for row in rows)
        densities = np.array(rows, dtype=float).T
    rng = np.random.default_rng(3)
    outputs = planner.build_outputs(plan, 1.0)
    num_certain = 0
    for case in range(200):
        masses = rng.dirichlet(np.full(16, 0.7)).reshape(2, 8, 1)
        if case % 2:  # one state with the event and one without
            with_state, without_state = rng.choice(8, 2)
            masses[:] = 0
            masses[0, with_state], masses[1, without_state] = rng.uniform(0.1, 1, (2, 1))
        odds = float(np.exp(rng.uniform(-1, 4)))
        with np.errstate(divide="ignore"):
            bounds = OddsBounds.from_masses(*np.log(masses), np.log([odds]))
        largest = compute_max_odds(bounds, odds, densities)
        check = outputs.check(bounds, 1.0)
        num_certain += check.is_certain
        if mechanism == "k-norm":
            assert not check.is_certain or largest <= odds * (1 + 1e-9)
            if (
                case % 2 and part[with_state] == part[without_state] and largest < odds / 2
            ):  # the check need not be tight
                assert check.is_certain
            reached = compute_max_odds(bounds, odds, at_places)
            assert check.max_log_odds[0] == pytest.approx(np.log(reached), abs=1e-9)
        else:
            assert check.is_certain == (largest <= odds)
            assert check.max_log_odds[0] == pytest.approx(np.log(largest), abs=1e-9)
    assert 20 < num_certain < 180
