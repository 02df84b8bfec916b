"""The inference about a location in a zone, against enumerated paths and simulated walks."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from dphmm.errors import InvalidInputError
from dphmm.hide.fixed_squares import Square
from dphmm.hide.zone import CELLS, Gate, HiddenZone, Stretch
from dphmm.hide.zone_inference import (
    ADVERSARIES,
    TURN_STD,
    ZoneMoves,
    compute_log_likelihoods,
    find_gate_cell,
    get_moves,
    infer_location,
)
from tests.hide.test_zone import ZONE, make_gate
from tests.sizes import choose_count

INSIDE = np.array([True, True, True, False, False])
ENTERED = 3
LEFT = 4
MAX_STEPS = 9


@pytest.fixture
def moves():
    """A random chain with three hidden and two visible states.

    With seed 5 each step inside leaves with probability at least 0.8.
    """
    matrix = np.random.default_rng(5).random((5, 5))
    matrix[:3, :3] *= 0.2 / matrix[:3, :3].sum(axis=1, keepdims=True)
    matrix[:3, 3:] *= 0.8 / matrix[:3, 3:].sum(axis=1, keepdims=True)
    matrix[3:] /= matrix[3:].sum(axis=1, keepdims=True)
    return matrix


def enumerate_paths(length):
    """Yield every path of the given length through the hidden states."""
    return product(range(3), repeat=length)


def compute_path_probability(moves, path):
    return float(np.prod([moves[a, b] for a, b in pairwise(path)]))


def enumerate_visits(moves, entered, left, steps):
    """Sum, for each hidden state, the probability of all paths that look alike from outside.

    A user who crosses the set stays at any state of the path for the rest of the steps.
    """
    weights = np.zeros(5)
    for length in range(1, MAX_STEPS if steps is None else steps):
        for path in enumerate_paths(length):
            whole = (*([] if entered is None else [entered]), *path, *([] if left is None else [left]))
            mass = compute_path_probability(moves, whole)
            if entered is None:
                weights[path[0]] += mass
            elif left is None:
                weights[path[-1]] += mass
            else:
                for state in path:
                    weights[state] += mass
    return weights


@pytest.mark.parametrize(
    "ways",
    [(None, LEFT, None), (ENTERED, None, None), *((ENTERED, LEFT, n) for n in (2, 3, 5, 8))],
    ids=["start", "end", "stop 2", "stop 3", "stop 5", "stop 8"],
)
def test_visits_match_path_enumeration(moves, ways):
    """Paths of more than 8 timesteps have 0.2^8 = 3e-6 of the mass."""
    np.testing.assert_allclose(
        ZoneMoves(moves, INSIDE).compute_visits(*ways), enumerate_visits(moves, *ways), rtol=2e-5
    )
    transposed = ZoneMoves(moves.T, INSIDE).compute_visits(*ways)
    assert not np.allclose(transposed, enumerate_visits(moves, *ways), rtol=2e-5)


def test_entry_and_exit_are_independent_if_duration_of_stay_is_unknown(moves):
    table = ZoneMoves(moves, INSIDE)
    np.testing.assert_allclose(
        table.compute_visits(ENTERED, LEFT), table.compute_visits(ENTERED, None) * table.compute_visits(None, LEFT)
    )
    with pytest.raises(InvalidInputError, match="entered or left"):
        table.compute_visits(None, None)


def test_kept_results_equal_new_ones_to_the_bit(moves):
    table = ZoneMoves(moves, INSIDE)
    ways = [(ENTERED, LEFT, n) for n in (5, 2, 8, 3)] + [(ENTERED, None, None), (None, LEFT, None)]
    for way in ways * 2:
        assert np.array_equal(table.compute_visits(*way), ZoneMoves(moves, INSIDE).compute_visits(*way))


@pytest.mark.slow
def test_exit_weights_match_simulated_walks():
    """Compare the weights of exit cells with 40,000 simulated walks (seed 1).

    The walks start at uniform positions in the core and leave by cells next to a gate. The share of each fifth of the
    core lies within 5 standard deviations (alpha 6e-7 each). A uniform posterior does not.
    """
    zone = HiddenZone(ZONE.square, 0.08)
    rng = np.random.default_rng(1)
    count = 40_000
    exits = np.flatnonzero(~zone.inside & (zone.grid.points[:, 0] > zone.half_km) & (zone.grid.points[:, 1] > 0))
    matrix = get_moves(zone).matrix
    rows = (np.cumsum(matrix, axis=1) + np.arange(len(matrix))[:, None]).ravel()
    begun = rng.choice(zone.core, count)
    at, moving = begun.copy(), np.arange(count)
    while len(moving):
        at[moving] = np.searchsorted(rows, at[moving] + rng.random(len(moving))) - len(matrix) * at[moving]
        moving = moving[zone.inside[at[moving]]]
    fifth = np.floor((zone.grid.points[:, 0] / zone.square.side_km + 0.5) * 5 + 1e-9).astype(int)
    left = np.isin(at, exits)
    seen = np.bincount(fifth[begun[left]], minlength=5) / left.sum()
    weight = sum(get_moves(zone).compute_visits(None, int(exit_cell))[zone.core] for exit_cell in exits)
    expected = np.bincount(fifth[zone.core], weight / weight.sum(), 5)
    assert (np.abs(seen - expected) / np.sqrt(expected * (1 - expected) / left.sum())).max() < 5
    assert (np.abs(seen - 0.2) / np.sqrt(0.16 / left.sum())).max() > 5


def test_straight_line_adversary_weighs_turning_angles():
    way = Stretch(None, make_gate(0.0, (1.0, 0.0)))
    log = compute_log_likelihoods(ZONE, way)[ADVERSARIES[1]]
    points = ZONE.grid.points[ZONE.core]
    turn = np.arctan2(way.left.point[1] - points[:, 1], way.left.point[0] - points[:, 0])
    np.testing.assert_allclose(log, -0.5 * (turn / TURN_STD) ** 2, atol=1e-12)
    unknown = compute_log_likelihoods(ZONE, Stretch(None, Gate(way.left.point, np.full(2, np.nan))))
    assert not unknown[ADVERSARIES[1]].any()


def test_fast_passage_is_uninformative_and_stop_is_informative():
    quick, slow = (Stretch(make_gate(0.0), make_gate(np.pi), seconds) for seconds in (400.0, 3600.0))
    assert (ZONE.is_stop(quick), ZONE.is_stop(slow)) == (False, True)
    assert not any(log_likelihood.any() for log_likelihood in compute_log_likelihoods(ZONE, quick).values())
    assert infer_location(ZONE, [compute_log_likelihoods(ZONE, slow)])[0].max_posterior > 1 / CELLS**2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["walking", "cycling", "driving"])
def test_adversary_without_times_is_never_more_confident_about_a_stop(kind):
    """Ten pairs of gates (seed 4), and stops of zero to ten hours."""
    zone, rng = HiddenZone(ZONE.square, 0.5, kind), np.random.default_rng(4)
    for first, last in rng.uniform(0, 2 * np.pi, (choose_count(10, 3), 2)):
        gates = make_gate(first), make_gate(last)
        straight = np.hypot(*(gates[0].point - gates[1].point)) / zone.grid.cell_km * zone.step_seconds
        seconds = [None, *(straight + stop for stop in (0, 120, 840, 3600, 36_000))]
        surest = [
            [
                result.max_posterior
                for result in infer_location(zone, [compute_log_likelihoods(zone, Stretch(*gates, time, True))])
            ]
            for time in seconds
        ]
        assert (np.array(surest[0]) <= np.array(surest[1:]) * (1 + 1e-6)).all()


def test_stretch_without_gates_is_uninformative():
    way = Stretch(None, None)
    assert not any(log.any() for log in compute_log_likelihoods(ZONE, way).values())


def test_prior_omits_parts_of_core_that_belong_to_another_square():
    """The western neighbour takes 0.2 km of 0.8 km: 2.5 of ten columns of cells."""
    square = ZONE.square
    neighbour = Square(square.level, square.row, square.column - 1)
    zone = HiddenZone(square, 0.5, others=[(neighbour, 0.2)])
    east = zone.grid.points[zone.core][:, 0]
    columns = [zone.prior[np.isclose(east, x)].sum() for x in np.unique(east.round(6))]
    np.testing.assert_allclose(columns, np.array([0, 0, 0.5, *[1] * 7]) / 7.5, atol=0.01)
    (result, _) = infer_location(zone, [])
    assert result.prior == pytest.approx(1 / 75, rel=0.02)
    assert not result.posterior[zone.prior == 0].any()
    assert (
        HiddenZone(square, 0.5, others=[(Square(square.level, square.row + 5, square.column), 0.2)]).prior.max() == 0.01
    )


def test_prior_is_uniform_in_square():
    """A uniform coordinate in a side ``s`` has variance ``s² / 12``, and there are two."""
    for prior in infer_location(ZONE, []):
        assert prior.prior_error_km == pytest.approx(ZONE.square.side_km / 6**0.5, rel=1e-9)
        assert prior.error_km == pytest.approx(prior.prior_error_km, rel=1e-12)


def test_log_likelihoods_of_stretches_add_up():
    first = compute_log_likelihoods(ZONE, Stretch(None, make_gate(0.2)))
    second = compute_log_likelihoods(ZONE, Stretch(make_gate(0.4), None))
    both = infer_location(ZONE, [first, second])
    for result, adversary in zip(both, ADVERSARIES, strict=True):
        mass = np.exp(first[adversary] + second[adversary])
        np.testing.assert_allclose(result.posterior, mass / mass.sum(), rtol=1e-9)
    assert both[0].error_km < both[0].prior_error_km


@pytest.mark.parametrize("far_km", [1.0, 3.0, 30.0])
def test_sparse_recordings_have_finite_posteriors(far_km):
    """Positions beyond one model step give nearly the posterior of positions at the border."""
    edge = np.array([ZONE.half_km + 0.05, 0.1])
    there = edge + np.array([far_km, 0.0])
    far, near = (
        infer_location(ZONE, [compute_log_likelihoods(ZONE, Stretch(None, Gate(point, np.full(2, np.nan))))])[0]
        for point in (there, edge)
    )
    assert np.isfinite([far.max_posterior, far.error_km]).all()
    assert far.max_posterior > far.prior
    assert abs(far.max_posterior - near.max_posterior) < 0.02, "the way to the border reveals little"


def test_stop_shorter_than_model_allows_is_treated_as_unknown_duration():
    through = [make_gate(0.0), make_gate(np.pi)]
    ends = [find_gate_cell(ZONE, gate_outside.point) for gate_outside in through]
    assert not get_moves(ZONE).compute_visits(*ends, 2).any(), (
        "without special treatment this would be a division by zero"
    )
    zone = HiddenZone(ZONE.square, 0.5)
    zone.is_stop = lambda _: True
    quick, unknown = (compute_log_likelihoods(zone, Stretch(*through, seconds)) for seconds in (1.0, None))
    assert np.array_equal(quick[ADVERSARIES[0]], unknown[ADVERSARIES[0]])
    assert np.isfinite(quick[ADVERSARIES[0]]).all()
