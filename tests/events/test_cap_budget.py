"""Caps on posterior probability: no output passes a cap, and some output comes near it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dphmm import (
    KNormMechanism,
    LaplaceMechanism,
    LatticeKNormMechanism,
    MarkovModel,
    Measurements,
    PlanarLaplaceMechanism,
    PolicyGraph,
    SensitivityHull,
)
from dphmm.errors import EventError
from dphmm.events import Cap, CapTracker, EventOdds, Pattern, Presence
from dphmm.events.cap_budget import NUM_RUNGS, compute_rung_budget
from dphmm.events.output_bounds import (
    ROUNDING,
    BoundedOutputs,
    OddsBounds,
    Sectors,
    TableOutputs,
    is_below,
    make_outputs,
)
from tests.sizes import mark_rest_slow

LOGIT = {q: float(np.log(q / (1 - q))) for q in (0.1, 0.2, 0.3, 0.5, 0.7, 0.9)}


def logit(probability: float) -> float:
    return float(np.log(probability / (1 - probability)))


def build_walk_matrix(size: int, stay: float = 0.4) -> np.ndarray:
    """A walk on a line that mostly moves to neighbours and sometimes to any state."""
    matrix = np.eye(size) * stay + (np.eye(size, k=1) + np.eye(size, k=-1)) * 0.25 + 0.02
    return np.asarray(matrix / matrix.sum(axis=1, keepdims=True))


def build_grid(side: int, cell: float = 1.0) -> np.ndarray:
    return np.stack(np.divmod(np.arange(side * side), side), axis=1) * cell


def draw_masses(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Two masses over states with a ratio that varies over space. Some masses are zero."""
    rng = np.random.default_rng(seed)
    belief = rng.dirichlet(np.full(size, 0.4)) + 1e-6
    happens = rng.beta(0.5, 2, size) * (rng.random(size) < 0.9)
    return belief * happens, belief * (1 - happens)


def find_largest_epsilon(mechanism, values, first, second, q: float, top: float = 1.0):
    """The largest epsilon below the cap, with the outputs of the noise and the questions."""
    outputs = make_outputs(mechanism, values)
    with np.errstate(divide="ignore"):
        logs = [outputs.sum_by_place(np.log(mass)[:, np.newaxis]) for mass in (first, second)]
    questions = OddsBounds.from_masses(*logs, np.array([logit(q)]))
    rungs = (compute_rung_budget(top, rung) for rung in range(NUM_RUNGS + 1))
    largest_epsilon = next((epsilon for epsilon in rungs if outputs.check(questions, epsilon).is_certain), None)
    return largest_epsilon, outputs, questions


def compute_log_odds_at(mechanism, values, first, second, places) -> np.ndarray:
    """The posterior log odds of an output at each place, from the mechanism's privacy loss."""
    away = (places[:, np.newaxis] - values).reshape(-1, values.shape[1])
    logs = -mechanism.privacy_loss(away, np.zeros_like(away)).reshape(len(places), -1)
    with np.errstate(divide="ignore"):
        return np.logaddexp.reduce(logs + np.log(first), axis=1) - np.logaddexp.reduce(logs + np.log(second), axis=1)


# ---- all outputs of a step -----------------------------------------------------------------------------------------

HULLS = {
    "square": [[1, 1], [1, -1]],
    "hexagon": [[2, 0], [1, 2], [-1, 2]],
    "slim": [[6, 1], [5, 1], [1, 0]],
    "many": [[3, 0], [3, 1], [2, 2], [1, 3], [0, 3], [-1, 3], [-2, 2], [-3, 1]],
}


@pytest.mark.parametrize("name", HULLS)
@pytest.mark.parametrize("q", [0.3, 0.5])
@pytest.mark.parametrize("seed", range(2))
def test_lattice_outputs_stay_within_cap_and_come_near(name, q, seed):
    """Checks lattice points near the places, and far points along many directions."""
    values = build_grid(5).astype(np.int64)
    hull = SensitivityHull(HULLS[name])
    first, second = draw_masses(seed, len(values))
    prior = float(np.log(first.sum() / second.sum()))
    epsilon, _, _ = find_largest_epsilon(LatticeKNormMechanism(hull, 1), values, first, second, q, top=8.0)
    assert epsilon is not None
    assert epsilon < 8.0
    mechanism = LatticeKNormMechanism(hull, epsilon)
    near = np.stack(np.meshgrid(np.arange(-24, 29), np.arange(-24, 29)), axis=-1).reshape(-1, 2)
    angles = np.linspace(0, 2 * np.pi, 181)
    far = np.rint(np.concatenate([r * np.stack([np.cos(angles), np.sin(angles)], axis=1) for r in (60, 300, 3000)]))
    log_odds = compute_log_odds_at(mechanism, values, first, second, np.concatenate([near, far.astype(np.int64)]))
    assert log_odds.max() <= logit(q)
    assert log_odds.max() - prior >= 0.9 * (logit(q) - prior)


@pytest.mark.parametrize("seed", range(6))
def test_floor_equals_cap_on_complement(seed):
    values = build_grid(4).astype(np.int64)
    first, second = draw_masses(seed, len(values))
    outputs = make_outputs(LatticeKNormMechanism(SensitivityHull(HULLS["hexagon"]), 1), values)
    with np.errstate(divide="ignore"):
        logs = [outputs.sum_by_place(np.log(mass)[:, np.newaxis]) for mass in (second, first)]
    prior = first.sum() / (first.sum() + second.sum())
    floor = prior / 2
    epsilon = next(
        compute_rung_budget(4.0, rung)
        for rung in range(NUM_RUNGS)
        if outputs.check(
            OddsBounds.from_masses(*logs, np.array([-logit(floor)])), compute_rung_budget(4.0, rung)
        ).is_certain
    )
    mechanism = LatticeKNormMechanism(SensitivityHull(HULLS["hexagon"]), epsilon)
    near = np.stack(np.meshgrid(np.arange(-20, 24), np.arange(-20, 24)), axis=-1).reshape(-1, 2)
    log_odds = compute_log_odds_at(mechanism, values, first, second, near)
    assert log_odds.min() >= logit(floor)
    if epsilon < 4.0:
        assert log_odds.min() - logit(prior) <= 0.9 * (logit(floor) - logit(prior))


WEEKDAYS_BY_NAME = ["k-norm", "laplace", "planar-laplace", "flat", "flat lattice", "line", "space", "known"]


@pytest.mark.parametrize("kind", WEEKDAYS_BY_NAME)
@pytest.mark.parametrize("seed", range(3))
def test_noise_of_every_shape_stays_within_cap(kind, seed):
    rng = np.random.default_rng(seed)
    values: np.ndarray = build_grid(4, 0.5)
    if kind == "line":
        values = np.arange(9.0)[:, np.newaxis]
    elif kind == "space":
        values = rng.random((12, 3))
    elif kind == "flat lattice":
        values = build_grid(4).astype(np.int64)
    makers = {
        "k-norm": lambda e: KNormMechanism(SensitivityHull([[0.5, 0.0], [0.2, 0.6]]), e),
        "laplace": lambda e: LaplaceMechanism(0.7, e, 2),
        "planar-laplace": lambda e: PlanarLaplaceMechanism(e, 0.6),
        "flat": lambda e: KNormMechanism(SensitivityHull([[0.5, 0.5]]), e),
        "flat lattice": lambda e: LatticeKNormMechanism(SensitivityHull([[1, 2]]), e),
        "line": lambda e: KNormMechanism(SensitivityHull([[2.0]]), e),
        "space": lambda e: KNormMechanism(SensitivityHull(np.eye(3)), e),
        "known": lambda e: KNormMechanism(SensitivityHull(np.zeros((0, 2))), e),
    }
    size = len(values)
    # The event is likely in the first state alone. Noise along a line reveals the line of a state.
    share, likely = (0.15, 0.45) if "flat" in kind else (0.25, 0.9)
    belief = np.array([share, *(1 - share) * rng.dirichlet(np.ones(size - 1))])
    happens = np.array([likely, *0.1 + 0.1 * rng.random(size - 1)])
    if kind == "known":
        happens = 0.25 + 0.19 * rng.random(size)
    first, second = belief * happens, belief * (1 - happens)
    epsilon, outputs, _ = find_largest_epsilon(makers[kind](0.25), values, first, second, 0.4, top=3.0)
    prior = float(np.log(first.sum() / second.sum()))
    if kind == "known":
        assert (epsilon is None) == (happens.max() > 0.4)
        return
    assert epsilon is not None
    assert epsilon < 3.0
    mechanism = makers[kind](epsilon)
    places = np.concatenate([values, *(mechanism.sample(values, rng, size=40).reshape(-1, 40 * size, values.shape[1]))])
    log_odds = compute_log_odds_at(mechanism, values, first, second, places.astype(values.dtype))
    assert log_odds.max() <= logit(0.4)
    if not isinstance(outputs, BoundedOutputs):
        assert log_odds.max() - prior >= 0.9 * (logit(0.4) - prior)


def test_finite_table_is_checked_for_each_output():
    rng = np.random.default_rng(0)
    table = rng.dirichlet(np.ones(5), 4)
    first, second = draw_masses(3, 4)
    outputs = TableOutputs(4, lambda epsilon: np.log(table))
    logs = [outputs.sum_by_place(np.log(mass)[:, np.newaxis]) for mass in (first, second)]
    exact = np.log((first @ table) / (second @ table)).max()
    assert outputs.check(OddsBounds.from_masses(*logs, np.array([exact + 1e-6])), 1.0).is_certain
    refused = outputs.check(OddsBounds.from_masses(*logs, np.array([exact - 1e-6])), 1.0)
    assert not refused.is_certain
    assert refused.max_log_odds[0] == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("name", HULLS)
def test_distances_at_cell_corners_are_exact_and_decrease(name):
    hull = SensitivityHull(HULLS[name])
    places = np.random.default_rng(1).normal(size=(7, 2)) * 3
    sectors = Sectors(places, hull.norm_form.normals, hull.norm_form.equations)
    (fan,) = sectors._fans
    centre = (places.max(axis=0) + places.min(axis=0)) / 2
    facets = len(fan.normals)
    for sector in range(facets):
        pair = [fan.normals[[k, (k + 1) % facets]] for k in (sector, sector - 1)]
        v, w = (np.linalg.solve(pair_of_normals, np.ones(2)) for pair_of_normals in pair)
        before = None
        for a, b in ((0.0, 0.0), (0.3, 2.0), (1.0, 2.0), (50.0, 70.0), (np.inf, np.inf)):
            distances = fan.compute_distances(sector, a, b)
            if a < np.inf:
                z = centre + a * v + b * w
                expected = hull.norm(z - places) - hull.norm((z - centre)[np.newaxis])
                np.testing.assert_allclose(distances, expected, atol=1e-9)
            else:
                np.testing.assert_allclose(distances, -(places - centre) @ fan.normals[sector], atol=1e-9)
            assert before is None or (distances <= before + 1e-12).all()
            before = distances


@pytest.mark.slow
@pytest.mark.parametrize("direction", [(0, 1), (1, 0), (2, -1), (-1, -3)], ids=repr)
def test_cells_on_line_keep_order_if_normal_is_reversed(direction):
    along = np.array(direction, float)
    across = np.array([[-along[1], along[0]]]) / np.linalg.norm(along)
    places = np.outer([0.0, 1.0, 4.0, 5.0], along)
    plus, minus = np.array([3.0, 0.1, 0.1, 0.1]), np.array([0.1, 0.1, 1.0, 4.0])
    first_order, second_order = (
        Sectors(places, sign * along[np.newaxis] / (along @ along), across).prove_bounds(plus, minus, 1.0)[1]
        for sign in (1, -1)
    )
    assert first_order == second_order != first_order[::-1]


def test_is_below_requires_difference_beyond_rounding():
    """A difference within rounding does not count: exact sums could exceed the bound."""
    pairs = [(0, 0), (0, 1), (1 - 2 * ROUNDING, 1), (1 - ROUNDING / 2, 1), (1, 1), (1, 1 + ROUNDING), (1.5, 1)]
    assert [bool(is_below(*pair)) for pair in pairs] == [True, True, True, False, False, False, False]
    assert is_below(*np.transpose(pairs)).tolist() == [True, True, True, False, False, False, False]


def test_masses_of_any_range_are_compared_without_underflow():
    log_with, log_without = np.array([[0.0], [-5000.0]]), np.array([[-4000.0], [-1.0]])
    questions = OddsBounds.from_masses(log_with, log_without, np.array([0.0]))
    assert (questions.plus[0, 0], questions.minus[1, 0]) == (1.0, pytest.approx(np.exp(-1)))
    assert questions.plus[1, 0] == 0
    tiny = OddsBounds.from_masses(np.array([[0.0], [-5000.0]]), np.array([[1.0], [-np.inf]]), np.array([0.0]))
    assert tiny.plus[1, 0] > 0  # a mass is never rounded to zero if it could pass the cap far away


# ---- along the releases of a user ------------------------------------------------------------------------------------


class Line:
    """Five places in a row, exact noise, and all outputs by enumeration."""

    values = np.arange(5)[:, np.newaxis].astype(np.int64)
    matrix = build_walk_matrix(5)
    initial = np.array([0.4, 0.3, 0.1, 0.1, 0.1])
    outputs = np.arange(-40, 45)[:, np.newaxis]
    top = 2.0

    def noise(self, epsilon: float) -> LatticeKNormMechanism:
        return LatticeKNormMechanism(SensitivityHull([[1]]), epsilon)

    def rows(self, epsilon: float) -> np.ndarray:
        """``(Z, N)``: the log probability of every output in every state."""
        return np.array([self.noise(epsilon).log_density(z, self.values) for z in self.outputs])

    def keeper(self, *caps: Cap, priors=()) -> CapTracker:
        return CapTracker(caps, self.matrix, self.initial, priors=priors)

    def shape(self):
        return make_outputs(self.noise(1.0), self.values)


LINE = Line()
HERE = Presence([4], 1, 3)


@pytest.mark.parametrize("q", [0.35, 0.5, 0.8])
@pytest.mark.parametrize("seed", mark_rest_slow(range(4), 2))
def test_no_output_along_releases_passes_cap(q, seed):
    """Enumerates all outputs of each next release. Half of the releases take the worst output."""
    rng = np.random.default_rng(seed)
    keeper = LINE.keeper(Cap(HERE, q))
    outputs = LINE.shape()
    odds = EventOdds(LINE.matrix, LINE.initial, HERE)
    near = 0.0
    since = 1
    for _ in range(6):
        choice = keeper.choose(outputs, LINE.top, since)
        if choice.epsilon is None:
            since += 1
            continue
        rows = LINE.rows(choice.epsilon)
        after = []
        for row in rows:
            next_odds = odds.copy()
            next_odds.update(row, since)
            after.append(next_odds.log_odds)
        assert max(after) <= logit(q)
        assert 1 / (1 + np.exp(-max(after))) >= choice.max_probabilities[0] - 1e-9
        if choice.epsilon < LINE.top:
            near = max(near, (max(after) - odds.log_odds) / (logit(q) - odds.log_odds))
        row = rows[int(np.argmax(after)) if rng.random() < 0.5 else int(rng.integers(20, 60))]
        odds.update(row, since)
        keeper.update(row, since)
        since = 1
    assert near == 0 or near >= 0.9


def test_cap_lowers_epsilon_and_withholds_if_exceeded():
    keeper, outputs = LINE.keeper(Cap(HERE, 0.35)), LINE.shape()
    assert keeper.choose(outputs, LINE.top).epsilon < LINE.top
    worst = max(LINE.rows(0.5), key=lambda row: row[4] - row[0])
    odds = EventOdds(LINE.matrix, LINE.initial, HERE)
    keeper.update(worst)
    odds.update(worst)
    above = keeper.choose(outputs, LINE.top)
    assert odds.log_odds > logit(0.35)  # a release without the cap
    assert above.epsilon is None
    assert above.max_probabilities[0] == pytest.approx(1 / (1 + np.exp(-odds.log_odds)))


@pytest.mark.slow
def test_all_caps_floors_and_priors_hold():
    other = np.array([0.1, 0.1, 0.1, 0.4, 0.3])
    caps = (Cap(HERE, 0.8), Cap(Pattern([[0], [0, 1]], 1), 0.5, min_probability=0.02), Cap(~HERE, 0.9))
    keeper, outputs = LINE.keeper(*caps, priors=[other, LINE.initial]), LINE.shape()
    epsilon = keeper.choose(outputs, LINE.top).epsilon
    assert epsilon is not None
    for cap in caps:
        for first in (LINE.initial, other):
            for row in LINE.rows(epsilon):
                odds = EventOdds(LINE.matrix, first, cap.event)
                odds.update(row)
                assert odds.log_odds <= logit(cap.probability)
                assert cap.min_probability == 0 or odds.log_odds >= logit(cap.min_probability)
    alone = LINE.keeper(caps[0]).choose(outputs, LINE.top).epsilon
    assert epsilon < alone


def test_epsilon_dependent_on_true_state_passes_cap():
    """A broken variant: full epsilon if the user is far from the place, none if near.

    The missing release itself discloses the place.
    """
    q = 0.5
    odds = EventOdds(LINE.matrix, LINE.initial, Presence([4], 0, 2))
    withheld = np.where(np.arange(5) >= 3, 0.0, -np.inf)  # log likelihood of a gap for an adversary with the rule
    broken_odds = odds.copy()
    broken_odds.update(withheld)
    assert broken_odds.log_odds > logit(q)
    keeper = LINE.keeper(Cap(Presence([4], 0, 2), q))
    choices = {keeper.copy().choose(LINE.shape(), LINE.top) for _ in range(5)}
    assert len(choices) == 1  # `choose` has no argument for the true state


def test_prior_is_dropped_if_release_rules_it_out():
    sure = np.array([1.0, 0.0, 0.0, 0.0, 0.0])
    keeper = LINE.keeper(Cap(HERE, 0.8), priors=[sure])
    assert len(keeper.splits) == 2
    keeper.update(np.array([-np.inf, 0.0, 0.0, 0.0, 0.0]))
    assert len(keeper.splits) == 1


def test_copy_of_keeper_is_independent():
    keeper = LINE.keeper(Cap(HERE, 0.5))
    other = keeper.copy()
    other.update(LINE.rows(1.0)[44])
    assert keeper.choose(LINE.shape(), LINE.top) == LINE.keeper(Cap(HERE, 0.5)).choose(LINE.shape(), LINE.top)
    assert other.choose(LINE.shape(), LINE.top) != keeper.choose(LINE.shape(), LINE.top)


def test_cap_holds_on_grid_with_surrogates():
    """Through the emissions of surrogates: two states are released as a third."""
    values = build_grid(6).astype(np.int64)
    surrogates = values.copy()
    surrogates[[0, 1]] = values[2]
    model = MarkovModel(build_walk_matrix(36), np.full(36, 1 / 36))
    hull = SensitivityHull(PolicyGraph.utility(Measurements(values), 1.5).differences(Measurements(values)))
    event = Presence([0, 1, 2, 7], 1, 4)
    keeper = CapTracker([Cap(event, 0.55)], model.transition, model.initial)
    outputs = make_outputs(LatticeKNormMechanism(hull, 1), surrogates)
    epsilon = keeper.choose(outputs, 3.0).epsilon
    mechanism = LatticeKNormMechanism(hull, epsilon)
    start_odds, log_odds = EventOdds(model.transition, model.initial, event), []
    for z in np.stack(np.meshgrid(np.arange(-12, 18), np.arange(-12, 18)), axis=-1).reshape(-1, 2):
        odds = start_odds.copy()
        odds.update(mechanism.log_density(z, surrogates))
        log_odds.append(odds.log_odds)
    assert max(log_odds) <= logit(0.55)


# ---- caps as values --------------------------------------------------------------------------------------------------


def test_caps_are_values_and_serialise_to_json():
    cap = Cap("at:clinic.geojson between 2024-03-04 and 2024-03-10", 0.7, min_probability=0.01)
    assert Cap(**json.loads(json.dumps(cap.to_dict()))) == cap
    assert hash(cap) == hash(Cap(str(cap.event), 0.7, 0.01))
    assert Cap(HERE, 0.5).canonical == "0.0 <= state:4 between 1 and 3 <= 0.5"


@pytest.mark.parametrize(
    "numbers", [(0.0, 0.0), (1.0, 0.0), (0.5, 0.5), (0.5, -0.1), (float("nan"), 0.0), (True, 0.0)], ids=repr
)
def test_invalid_cap_raises(numbers):
    with pytest.raises(EventError, match=r"probability must be|min_probability must be"):
        Cap(HERE, *numbers)


@pytest.mark.parametrize("event", [None, 5, ["state:4 at 1"]], ids=repr)
def test_event_of_another_type_raises(event):
    with pytest.raises(EventError, match="a cap must have an event or its text, got "):
        Cap(event, 0.5)


@pytest.mark.parametrize(
    ("cap", "message"),
    [
        (
            Cap(HERE, 0.15),
            r"^probability of event .* must be above its probability 0\.1982 before .* under the model, got 0.15",
        ),
        (Cap(HERE, 0.9, min_probability=0.5), r"^min_probability of event .* must be below its probability .*got 0\.5"),
        (Cap(Presence([], 1, 2), 0.9), "neither certain nor impossible .*got probability 0"),
    ],
)
def test_cap_at_or_below_prior_raises(cap, message):
    with pytest.raises(EventError, match=message) as caught:
        LINE.keeper(cap)
    assert "\n" not in str(caught.value)


def test_other_prior_above_cap_raises():
    with pytest.raises(EventError, match="another prior"):
        LINE.keeper(Cap(HERE, 0.5), priors=[[0, 0, 0, 0, 1.0]])
