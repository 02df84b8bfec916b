"""The engine, against a literal Algorithm 2, textbook Bayes and known attacks."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphmm import (
    Belief,
    KNormMechanism,
    LaplaceMechanism,
    LatticeKNormMechanism,
    MarkovModel,
    Measurements,
    PlanarLaplaceMechanism,
    PolicyGraph,
    Releaser,
    SensitivityHull,
    degree_of_protection,
    protect,
)
from dphmm.errors import (
    BudgetError,
    CoordinateError,
    InvalidInputError,
    PolicyError,
    SingletonConstraintError,
    StateError,
)
from dphmm.geometry.measurements import _build_polygon_forms
from dphmm.release.step_noise import StepNoise
from tests.running_example import F, build_graph
from tests.sizes import choose_count, mark_slow

WALK = np.array(
    [
        [0.2, 0.4, 0.0, 0.4, 0.0, 0.0],
        [0.0, 0.3, 0.4, 0.0, 0.3, 0.0],
        [0.0, 0.5, 0.5, 0.0, 0.0, 0.0],
        [0.1, 0.0, 0.0, 0.5, 0.2, 0.2],
        [0.0, 0.0, 0.3, 0.2, 0.3, 0.2],
        [0.0, 0.1, 0.0, 0.3, 0.3, 0.3],
    ]
)
START = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
MECHANISMS = ["lattice", "k-norm", "laplace", "planar-isotropic", "planar-laplace"]


def build_running_model() -> MarkovModel:
    return MarkovModel(WALK, np.full(6, 1 / 6))


def test_lattice_releases_and_measurements_are_multiples_of_spacing():
    releaser = Releaser(build_running_model(), 0.34 * F, build_graph(), 1.0, "lattice", rng=15)
    for _ in range(20):
        released = np.array(releaser.release(3).released)
        np.testing.assert_allclose(released * 1000, np.rint(released * 1000), atol=1e-9)
    rounded = Releaser(build_running_model(), F + np.array([1e-5, 2e-4]), build_graph(), 1.0)
    assert rounded.query.values.tolist() == (1000 * F).tolist()
    with pytest.raises(CoordinateError, match=r"1/1000.*smaller spacing"):
        Releaser(build_running_model(), np.vstack([F[:5], F[0] + 1e-5]), build_graph(), 1.0)


def test_stale_step_raises_when_drawn_again():
    releaser = Releaser(build_running_model(), F, build_graph(), 1.0)
    step, other = releaser.prepare(), releaser.prepare(0.5)
    releaser.draw(other, 3)
    for again in (step, other):
        with pytest.raises(InvalidInputError, match=r"stale.*call prepare\(\)"):
            releaser.draw(again, 3)
    assert releaser.release(3).index == 1
    later = releaser.prepare()
    releaser.restart()
    with pytest.raises(InvalidInputError, match=r"stale.*call prepare\(\)"):
        releaser.draw(later, 3)


def test_lattice_and_k_norm_give_same_plan():
    real, exact = (
        Releaser(build_running_model(), 0.34 * F, build_graph(), 1.0, name, rng=1) for name in ("k-norm", "lattice")
    )
    a, b = real.release(3), exact.release(3)
    assert (a.num_possible_states, a.min_degree_of_protection, a.added_edges) == (
        b.num_possible_states,
        b.min_degree_of_protection,
        b.added_edges,
    )
    assert a.hull_volume == pytest.approx(b.hull_volume, rel=1e-12)
    assert a.constrained_dp_factor == pytest.approx(b.constrained_dp_factor, rel=1e-12)
    assert a.expected_error == pytest.approx(b.expected_error, rel=1e-4)


def compute_literal_step(prior, policy, released, mechanism_name, epsilon, delta=None):
    """Compute one step of Algorithm 2 with plain arrays.

    The steps are the constraint set, the repaired graph, the hull of every edge, and Bayes' rule.
    """
    order = np.argsort(-prior, kind="stable")
    if delta is None:
        constraint = prior > 0
    else:
        needed = np.searchsorted(np.cumsum(prior[order]), 1 - delta - 1e-12) + 1
        constraint = np.zeros(len(prior), dtype=bool)
        constraint[order[:needed]] = True
    body = {"laplace": "cross-polytope", "planar-laplace": "disc"}.get(mechanism_name, "hull")
    repaired = protect(policy, F, constraint, body=body).graph
    edges = repaired.edge_array()
    differences = F[edges[:, 0]] - F[edges[:, 1]]
    if mechanism_name == "lattice":
        mechanism = LatticeKNormMechanism(SensitivityHull(1000 * differences), epsilon, Fraction(1, 1000))
    elif mechanism_name == "laplace":
        mechanism = LaplaceMechanism(np.abs(differences).sum(axis=1).max(), epsilon, 2)
    elif mechanism_name == "planar-laplace":
        mechanism = PlanarLaplaceMechanism(epsilon, np.linalg.norm(differences, axis=1).max())
    else:
        mechanism = KNormMechanism(SensitivityHull(differences), epsilon)
    likelihood = np.zeros(len(prior))
    possible = np.flatnonzero(constraint)
    for state in np.flatnonzero(prior > 0):
        away = np.linalg.norm(F[possible] - F[state], axis=1)
        # The engine may choose any of the nearest states.
        (nearest,) = Measurements(F).surrogates(np.array([state]), constraint)
        assert nearest in possible[away <= away.min() + 1e-12]
        likelihood[state] = np.exp(mechanism.log_density(released, F[state if constraint[state] else nearest]))
    posterior = prior * likelihood
    return constraint, repaired, posterior / posterior.sum()


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("delta", [None, 0.05])
def test_releases_match_literal_algorithm_2(mechanism, delta):
    releaser = Releaser(build_running_model(), F, build_graph(), 0.8, mechanism, delta=delta, rng=1)
    prior = build_running_model().initial
    for step, state in enumerate([0, 3, 4, 2, 2, 1, 4, 5]):
        record = releaser.release(state)
        prior = prior if step == 0 else prior @ WALK
        constraint, repaired, posterior = compute_literal_step(
            prior, build_graph(), record.released, mechanism, 0.8, delta
        )
        assert record.num_possible_states == constraint.sum()
        edges = repaired.edge_array()
        assert record.hull_volume == pytest.approx(SensitivityHull(F[edges[:, 0]] - F[edges[:, 1]]).volume, rel=1e-12)
        np.testing.assert_allclose(releaser.belief.probabilities, posterior, rtol=1e-9, atol=1e-300)
        np.testing.assert_allclose(record.estimate, posterior @ F, rtol=1e-9)
        prior = posterior


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_density_ratio_is_bounded_on_every_edge_of_repaired_graph(mechanism):
    epsilon = 0.6
    releaser = Releaser(
        MarkovModel(WALK, START), F, build_graph(), epsilon, mechanism, rng=2, allow_singleton=True, spacing=1
    )
    outputs = np.stack(np.meshgrid(np.linspace(-9, 13, 45), np.linspace(-8, 10, 37)), axis=-1).reshape(-1, 2)
    outputs = np.concatenate([outputs if mechanism != "lattice" else np.rint(outputs), F])
    for state in [0, 1, 4, 2]:
        plan = releaser.build_plan(releaser.predict(), epsilon)
        if not plan.is_singleton:
            (drawn,) = plan.noise.parts
            for j, k in plan.protection.graph.edge_array():
                a, b = drawn.log_density(outputs, F[j]), drawn.log_density(outputs, F[k])
                assert np.array_equal(a == -np.inf, b == -np.inf)
                finite = a > -np.inf
                assert np.abs(a[finite] - b[finite]).max(initial=0.0) <= epsilon * (1 + 1e-12)
        releaser.release(state)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_constrained_factor_is_maximum_over_possible_states(mechanism):
    releaser = Releaser(build_running_model(), F, build_graph(), 0.6, mechanism, rng=2, spacing=1)
    record = releaser.release(3)
    (drawn,) = releaser.build_plan(Belief.from_probabilities(releaser.model.initial), 1.0).noise.parts
    worst = max(drawn.privacy_loss(F, place).max() for place in F)
    assert record.constrained_dp_factor == pytest.approx(worst, rel=1e-12)
    assert record.constrained_epsilon == pytest.approx(0.6 * worst, rel=1e-12)


@pytest.mark.parametrize(("name", "draw"), [("k-norm", [2.5, 1.5]), ("lattice", [2500, 1500])])
def test_record_depends_on_true_state_through_draw_only(name, draw, monkeypatch):
    # A fixed draw replaces the noise: the records are then equal for all true states.
    records = []
    for state in range(6):
        releaser = Releaser(build_running_model(), F, build_graph(), 1.0, name)
        monkeypatch.setattr(StepNoise, "draw", lambda *_: np.array(draw))
        records.append([releaser.release(state), releaser.release((state + 1) % 6), releaser.release(state)])
    assert all(record == records[0] for record in records)


def test_example_10_8_hull_does_not_reveal_true_state():
    # Local differential privacy would draw from the hull of the true state's own edges, and the line a release lies
    # on would name the state. Here all three possible states share one two-dimensional hull.
    start = np.array([0, 0, 0, 0.4, 0.3, 0.3])
    local = [SensitivityHull([F[j] - F[i] for j in (3, 4, 5) if j != i]) for i in (3, 4, 5)]
    vertices = {tuple(map(tuple, hull.vertices.tolist())) for hull in local}
    assert len(vertices) == 3
    plans = []
    for state in (3, 4, 5):
        releaser = Releaser(MarkovModel(WALK, start), F, build_graph(), 1.0, rng=3)
        record = releaser.release(state)
        assert record.dimension == 2
        plans.append(releaser.last[1].protection.hull.vertices.tolist())
        assert (releaser.belief.probabilities > 0).tolist() == [False, False, False, True, True, True]
    assert plans[0] == plans[1] == plans[2]


def test_no_state_is_exposed_on_long_walk():
    rng = np.random.default_rng(4)
    for mechanism in MECHANISMS:
        releaser = Releaser(MarkovModel(WALK, START), F, build_graph(), 0.5, mechanism, rng=5, allow_singleton=True)
        state = 0
        for _ in range(40):
            record = releaser.release(state)
            assert record.is_singleton == (record.num_possible_states == 1)
            assert record.is_singleton or record.min_degree_of_protection >= 2
            state = rng.choice(6, p=WALK[state])


def test_segment_hull_restricts_posterior_to_its_line():
    # With constraint set {s2, s3} the hull is a segment. Only states on the line through the release remain.
    start = np.array([0, 0.5, 0.5, 0, 0, 0])
    releaser = Releaser(MarkovModel(np.eye(6), start), F, build_graph(), 1.0, rng=6)
    record = releaser.release(1)
    assert (record.dimension, record.hull_volume, record.constrained_dp_factor) == (1, 0.0, 1.0)
    assert record.released[0] + record.released[1] == pytest.approx(3.0)
    noise = np.array(record.released) - F[1]
    ratio = np.exp(-np.abs(noise[0]) + np.abs(record.released[0] - 3.0))
    np.testing.assert_allclose(releaser.belief.probabilities[1], ratio / (1 + ratio), rtol=1e-9)


def test_impossible_true_state_is_replaced_by_surrogate():
    start = np.array([0.5, 0.5, 0, 0, 0, 0])
    possible = [Releaser(MarkovModel(np.eye(6), start), F, build_graph(), 1.0, rng=7) for _ in range(2)]
    public = [releaser.release(state) for releaser, state in zip(possible, (1, 2), strict=True)]
    assert public[0] == public[1]
    private = [releaser.private_diagnostics(state) for releaser, state in zip(possible, (1, 2), strict=True)]
    assert [p.used_surrogate for p in private] == [False, True]
    assert [p.released_state for p in private] == [1, 1]


def test_record_has_no_private_field():
    names = {
        field.name for field in dataclasses.fields(Releaser(build_running_model(), F, build_graph(), 1.0).release(0))
    }
    assert not names & {
        "true_state",
        "released_state",
        "used_surrogate",
        "error",
        "estimate_error",
        "degree_of_protection",
    }


def test_private_diagnostics_match_definitions():
    releaser = Releaser(build_running_model(), F, build_graph(), 1.0, rng=8)
    record = releaser.release(4)
    diagnostics = releaser.private_diagnostics(4)
    assert diagnostics.error == pytest.approx(np.linalg.norm(np.array(record.released) - F[4]))
    assert diagnostics.estimate_error == pytest.approx(np.linalg.norm(np.array(record.estimate) - F[4]))
    assert diagnostics.degree_of_protection == degree_of_protection(build_graph(), F)[4]
    place = F[4] + [30.0, 40.0]
    away = releaser.private_diagnostics(4, place)
    assert away.error == pytest.approx(np.linalg.norm(np.array(record.released) - place))
    assert away.estimate_error == pytest.approx(np.linalg.norm(np.array(record.estimate) - place))
    assert (away.true_state, away.degree_of_protection) == (4, diagnostics.degree_of_protection)
    with pytest.raises(InvalidInputError, match="place must have 2 coordinates"):
        releaser.private_diagnostics(4, np.array([1.0]))


@pytest.mark.slow
def test_posterior_mean_has_smaller_mean_squared_error_than_release():
    # 600 releases of a walk, seed 9: the ratio of mean squared errors is below one half.
    rng = np.random.default_rng(9)
    releaser = Releaser(build_running_model(), F, build_graph(), 0.5, rng=10)
    state, errors = 0, []
    for _ in range(600):
        releaser.release(state)
        diagnostics = releaser.private_diagnostics(state)
        errors.append((diagnostics.error**2, diagnostics.estimate_error**2))
        state = rng.choice(6, p=WALK[state])
    released, estimated = np.mean(errors, axis=0)
    assert estimated < 0.5 * released


@pytest.mark.slow
def test_expected_error_is_root_mean_square_of_noise():
    # 4,000 releases, 1,200 in the fast tests, seed 11: within five standard errors of the mean square.
    releaser = Releaser(build_running_model(), F, build_graph(), 1.0, rng=11)
    squares = []
    for _ in range(choose_count(4000, 1200)):
        releaser.restart()
        record = releaser.release(3)
        squares.append(((np.array(record.released) - F[3]) ** 2).sum())
    assert record.expected_error == pytest.approx(6.55050, abs=5e-6)
    assert abs(np.mean(squares) - record.expected_error**2) < 5 * np.std(squares) / np.sqrt(len(squares))


def test_steps_propagate_belief():
    jumped = Releaser(MarkovModel(WALK, START), F, build_graph(), 1.0, rng=12, allow_singleton=True)
    jumped.release(0)
    prior = jumped.predict(3)
    np.testing.assert_allclose(prior.probabilities, np.linalg.matrix_power(WALK, 3)[0], rtol=1e-12)
    record = jumped.release(4, steps=3)
    assert (record.steps, record.num_possible_states) == (3, prior.support.sum())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_record_states_whether_noise_is_exact(mechanism):
    releaser = Releaser(build_running_model(), F, build_graph(), 1.0, mechanism)
    record = releaser.release(0)
    assert record.is_exact is releaser.settings.is_exact is (mechanism == "lattice")
    assert f'"is_exact": {"true" if mechanism == "lattice" else "false"}' in record.to_json()


def test_epsilon_can_be_set_per_step():
    releaser = Releaser(build_running_model(), F, build_graph(), 1.0, rng=13)
    assert [releaser.release(0).epsilon, releaser.release(0, epsilon=0.25).epsilon] == [1.0, 0.25]


@pytest.mark.slow
@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_random_models_and_policies_have_no_exposed_state(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 15))
    matrix = rng.random((size, size)) * (rng.random((size, size)) < 0.4) + 0.05 * np.eye(size)
    matrix[:, rng.integers(size)] += 0.01
    model = MarkovModel(matrix / matrix.sum(axis=1, keepdims=True), np.full(size, 1 / size))
    f = rng.integers(0, 9, (size, 2)) if seed % 2 else np.round(rng.random((size, 2)), 3)
    policy = [
        PolicyGraph.complete(size),
        PolicyGraph.categorical(rng.integers(0, 4, size)),
        PolicyGraph.utility(f, float(rng.uniform(0, 5))),
        PolicyGraph.transition(model.transition),
    ][seed % 4]
    mechanism = MECHANISMS[seed % 3]
    releaser = Releaser(model, f, policy, 1.0, mechanism, rng=seed, allow_singleton=True)
    for _ in range(4):
        record = releaser.release(int(rng.integers(size)))
        assert record.is_singleton or record.min_degree_of_protection >= 2
        np.testing.assert_array_equal(releaser.belief.support, releaser.belief.log_mass > -np.inf)


def test_singleton_constraint_raises_unless_allowed():
    with pytest.raises(SingletonConstraintError, match="only state of the constraint set"):
        Releaser(MarkovModel(WALK, START), F, build_graph(), 1.0).release(0)
    record = Releaser(MarkovModel(WALK, START), F, build_graph(), 1.0, allow_singleton=True).release(4)
    assert (record.is_singleton, record.released, record.min_degree_of_protection) == (True, (1.0, 0.0), 1)


def test_refused_step_leaves_engine_unchanged():
    releaser = Releaser(build_running_model(), F, build_graph(), 1.0, rng=14)
    releaser.release(0)
    before = releaser.belief
    for bad in (
        {"state": 9},
        {"state": 0, "epsilon": -1.0},
        {"state": 0, "steps": 0},
        {"state": 0, "steps": np.timedelta64(1, "h")},
    ):
        with pytest.raises(ValueError, match=r"must be"):
            releaser.release(**bad)
    assert releaser.belief is before
    assert releaser.release(0).index == 1


@pytest.mark.parametrize("state", [-1, 6, 2.5, "1"])
def test_unknown_state_raises(state):
    with pytest.raises(StateError, match=f"state must be an integer from 0 to 5, got {state!r}$"):
        Releaser(build_running_model(), F, build_graph(), 1.0).release(state)


@pytest.mark.parametrize("epsilon", [0, -1, np.inf, np.nan])
def test_invalid_epsilon_raises(epsilon):
    with pytest.raises(BudgetError, match="epsilon"):
        Releaser(build_running_model(), F, build_graph(), epsilon)


def test_inconsistent_engine_arguments_raise():
    model = build_running_model()
    with pytest.raises(PolicyError, match="f must have one row for each of 6 states of the policy, got 5"):
        Releaser(model, F[:5], build_graph(), 1.0)
    with pytest.raises(StateError, match="model and policy must have the same number of states, got 6 and 3"):
        Releaser(model, F[:3], PolicyGraph.complete(3), 1.0)
    with pytest.raises(InvalidInputError, match="mechanism must be one of"):
        Releaser(model, F, build_graph(), 1.0, "magic")
    with pytest.raises(InvalidInputError, match="mechanism 'planar-laplace' cannot be combined with 1-dimensional"):
        Releaser(model, F[:, :1], build_graph(), 1.0, "planar-laplace")
    with pytest.raises(InvalidInputError, match="delta"):
        Releaser(model, F, build_graph(), 1.0, delta=1.0)
    with pytest.raises(InvalidInputError, match="no release yet"):
        Releaser(model, F, build_graph(), 1.0).private_diagnostics(0)


@pytest.mark.parametrize(
    ("kind", "mechanism"),
    [("utility", mechanism) for mechanism in MECHANISMS]
    + [("transition", "lattice"), ("complete", "lattice")]
    + [mark_slow(kind, mechanism) for kind in ("transition", "complete") for mechanism in MECHANISMS[1:]],
)
def test_caches_do_not_change_releases(kind, mechanism):
    """Compare engines with and without caches byte by byte.

    Constraint sets and budgets alternate.
    """
    y, x = np.divmod(np.arange(144), 12)
    f = Measurements(0.34 * np.stack([x, y], axis=1))
    moves = (np.abs(f.coordinates[:, None] - f.coordinates[None]).max(axis=2) <= 1).astype(float)
    model = MarkovModel(moves / moves.sum(axis=1, keepdims=True), np.full(144, 1 / 144))
    policy = {
        "utility": lambda: PolicyGraph.utility(f, 0.8),
        "transition": lambda: PolicyGraph.transition(moves),
        "complete": lambda: PolicyGraph.complete(144),
    }[kind]
    engines = [Releaser(model, f, policy(), 1.0, mechanism, rng=6) for _ in range(2)]
    rng, met = np.random.default_rng(2), set()
    for k in range(24):
        possible = np.hypot(*(f.points - f.points[rng.integers(144)]).T) < rng.choice([0.9, 1.7])
        records = []
        for engine in engines:
            engine.resume(Belief.from_probabilities(possible / possible.sum()), 1)
            state, epsilon = int(np.flatnonzero(possible)[k % 3]), (1.0, 0.3)[k % 2]
            records.append((engine.release(state, epsilon).to_json(), engine.belief.to_bytes()))
        assert records[0] == records[1]
        met.add(id(engines[0].last[1].noise.parts[0]))
        forgetful = engines[1]
        forgetful.planner.clear()
        _build_polygon_forms.cache_clear()
        forgetful.policy._edge_set._whole = None
    assert kind == "complete" or len(met) < 20, "some noise is met again"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("spacing", ["1/1000", "1/7", "1/1000000"])
def test_area_and_factor_of_lattice_are_nearest_doubles(seed, spacing):
    """Both are compared with fractions over all differences and half-planes."""
    rng = np.random.default_rng(seed)
    step = Fraction(spacing)
    steps = rng.integers(-4000, 4000, (7, 2)) * [1, 3]
    model = MarkovModel(np.full((7, 7), 1 / 7), np.full(7, 1 / 7))
    policy = PolicyGraph.from_edges(7, [[0, 1], [1, 2], [2, 3], [4, 5], [5, 6]])
    engine = Releaser(model, steps * float(step), policy, 1.0, spacing=spacing, rng=seed)
    record = engine.release(0)
    points = [tuple(row) for row in steps.tolist()]
    edges = [*policy.edge_array().tolist(), *record.added_edges]
    spanning = [(points[i][0] - points[j][0], points[i][1] - points[j][1]) for i, j in edges]
    spanning += [(-x, -y) for x, y in spanning]
    # An edge of the hull is a pair of differences with all others on one side.
    area, factor = Fraction(0), Fraction(0)
    for p in spanning:
        for q in spanning:
            normal = q[1] - p[1], p[0] - q[0]
            height = p[0] * normal[0] + p[1] * normal[1]
            heights = [v[0] * normal[0] + v[1] * normal[1] for v in spanning]
            if height > 0 and max(heights) == height:
                if sum(h == height for h in heights) == 2:
                    area += Fraction(height, 2)
                widths = [z[0] * normal[0] + z[1] * normal[1] for z in points]
                factor = max(factor, Fraction(max(widths) - min(widths), height))
    assert record.hull_volume == float(area * step**2)
    assert record.constrained_dp_factor == float(factor)
