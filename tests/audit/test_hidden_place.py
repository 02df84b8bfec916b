"""What ways in and out tell: by enumeration of all paths, and by throwing people who move as the reader thinks."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.audit.hidden_place import CELLS, READERS, TURN, Gate, HiddenZone, Stretch, known_of, visits
from dphmm.errors import InvalidInputError
from dphmm.space.grid import Square

INSIDE = np.array([True, True, True, False, False])
ENTERED, LEFT, LONGEST = 3, 4, 9


@pytest.fixture
def moves():
    """Three states that hide and two that do not; a step inside leaves with a chance of 0.8 at least: seed 5."""
    made = np.random.default_rng(5).random((5, 5))
    made[:3, :3] *= 0.2 / made[:3, :3].sum(axis=1, keepdims=True)
    made[:3, 3:] *= 0.8 / made[:3, 3:].sum(axis=1, keepdims=True)
    made[3:] /= made[3:].sum(axis=1, keepdims=True)
    return made


def paths(length):
    """Every way through the states that hide, that many moments long."""
    return product(range(3), repeat=length)


def chance(moves, path):
    return float(np.prod([moves[a, b] for a, b in pairwise(path)]))


def enumerated(moves, entered, left, steps):
    """For each hidden state, the summed chance of all paths that tell the same: beginning, ending or being there."""
    found = np.zeros(5)
    lengths = range(1, LONGEST) if steps is None else [steps - 1]
    for length in lengths:
        for path in paths(length):
            whole = (*([] if entered is None else [entered]), *path, *([] if left is None else [left]))
            mass = chance(moves, whole)
            if entered is None:
                found[path[0]] += mass
            elif left is None:
                found[path[-1]] += mass
            else:
                for state in path:
                    found[state] += mass
    return found


@pytest.mark.parametrize(
    "ways", [(None, LEFT, None), (ENTERED, None, None), *((ENTERED, LEFT, n) for n in (2, 3, 5, 8))]
)
def test_weights_are_those_of_all_paths(moves, ways):
    """Paths of more than 8 moments have 0.2^8 = 3e-6 of the mass."""
    np.testing.assert_allclose(visits(moves, INSIDE, *ways), enumerated(moves, *ways), rtol=2e-5)
    twin = visits(moves.T, INSIDE, *ways)
    assert not np.allclose(twin, enumerated(moves, *ways), rtol=2e-5)


def test_of_a_stop_of_unknown_length_coming_and_going_are_independent(moves):
    both = visits(moves, INSIDE, ENTERED, LEFT)
    np.testing.assert_allclose(both, visits(moves, INSIDE, ENTERED, None) * visits(moves, INSIDE, None, LEFT))
    with pytest.raises(InvalidInputError, match="neither"):
        visits(moves, INSIDE, None, None)


ZONE = HiddenZone(Square.around(45.01, -30.01, 0.75), 0.5)


def gate(angle, ahead=None):
    """A gate in some direction just outside of the zone, and a place 200 m on."""
    turn = np.array([np.cos(angle), np.sin(angle)])
    point = turn / np.abs(turn).max() * (ZONE.half_km + 0.01)
    return Gate(point, point + 0.2 * (turn if ahead is None else np.asarray(ahead)))


def test_posterior_odds_are_those_of_people_thrown_from_everywhere():
    """40,000 walks from even places of the core, seed 1: where those began that leave by cells next to a gate.

    By fifths of the core each share lies within 5 standard deviations (alpha 6e-7 each); an even posterior does not.
    """
    zone, rng, count = HiddenZone(ZONE.square, 0.08), np.random.default_rng(1), 40_000
    exits = np.flatnonzero(~zone.inside & (zone.grid.points[:, 0] > zone.half_km) & (zone.grid.points[:, 1] > 0))
    rows = (np.cumsum(zone._moves, axis=1) + np.arange(len(zone._moves))[:, None]).ravel()
    begun = rng.choice(zone.core, count)
    at, moving = begun.copy(), np.arange(count)
    while len(moving):
        at[moving] = np.searchsorted(rows, at[moving] + rng.random(len(moving))) - len(zone._moves) * at[moving]
        moving = moving[zone.inside[at[moving]]]
    fifth = np.floor((zone.grid.points[:, 0] / zone.square.side_km + 0.5) * 5 + 1e-9).astype(int)
    left = np.isin(at, exits)
    seen = np.bincount(fifth[begun[left]], minlength=5) / left.sum()
    weight = sum(visits(zone._moves, zone.inside, None, int(one))[zone.core] for one in exits)
    said = np.bincount(fifth[zone.core], weight / weight.sum(), 5)
    assert (np.abs(seen - said) / np.sqrt(said * (1 - said) / left.sum())).max() < 5
    assert (np.abs(seen - 0.2) / np.sqrt(0.16 / left.sum())).max() > 5


def test_a_reader_who_assumes_that_people_go_straight_on_weighs_angles():
    way = Stretch(None, gate(0.0, (1.0, 0.0)))
    log = ZONE.log_likelihoods(way)[READERS[1]]
    points = ZONE.grid.points[ZONE.core]
    turn = np.arctan2(way.left.point[1] - points[:, 1], way.left.point[0] - points[:, 0])
    np.testing.assert_allclose(log, -0.5 * (turn / TURN) ** 2, atol=1e-12)
    unknown = ZONE.log_likelihoods(Stretch(None, Gate(way.left.point, np.full(2, np.nan))))
    assert not unknown[READERS[1]].any()


def test_passing_through_quickly_tells_nothing_and_a_stop_does():
    quick, slow = (Stretch(gate(0.0), gate(np.pi), seconds) for seconds in (400.0, 3600.0))
    assert (ZONE.is_stop(quick), ZONE.is_stop(slow)) == (False, True)
    assert not any(one.any() for one in ZONE.log_likelihoods(quick).values())
    assert known_of(ZONE, [ZONE.log_likelihoods(slow)])[0].certainty > 1 / CELLS**2


def test_before_anything_is_told_a_place_is_even_in_its_square():
    """A coordinate even in a side ``s`` has variance ``s² / 12``, and there are two."""
    for known in known_of(ZONE, []):
        assert known.before_km == pytest.approx(ZONE.square.side_km / 6**0.5, rel=1e-9)
        assert known.error_km == pytest.approx(known.before_km, rel=1e-12)


def test_stretches_add_up():
    one, two = ZONE.log_likelihoods(Stretch(None, gate(0.2))), ZONE.log_likelihoods(Stretch(gate(0.4), None))
    both = known_of(ZONE, [one, two])
    for known, reader in zip(both, READERS, strict=True):
        mass = np.exp(one[reader] + two[reader])
        np.testing.assert_allclose(known.posterior, mass / mass.sum(), rtol=1e-9)
    assert both[0].error_km < both[0].before_km


@given(st.floats(-80, 80), st.floats(-179, 179), st.sampled_from([0.1, 0.3, 0.5, 2.0]), st.randoms())
def test_no_place_outside_the_zone_is_within_the_distance_of_any_place_in_the_square(latitude, longitude, within, dice):
    square = Square.around(latitude, longitude, 1.5 * within)
    zone = HiddenZone(square, within)
    south, west, north, east = square.box
    inner = np.array([(dice.uniform(south, north), dice.uniform(west, east)) for _ in range(20)])
    inner = np.concatenate([inner, [(south, west), (south, east), (north, west), (north, east)]])
    core = zone.projection.to_plane(*inner.T)
    sides = zone.corners[:4, None] + np.linspace(0, 1, 25)[:, None] * (zone.corners[1:] - zone.corners[:4])[:, None]
    apart = np.hypot(*(core[:, None] - sides.reshape(-1, 2)).transpose(2, 0, 1))
    assert apart.min() > within


@pytest.mark.parametrize(("within", "kind"), [(0.0, "cycling"), (9.0, "cycling"), (0.5, "everyday")])
def test_rings_and_kinds_that_make_no_zone_are_refused(within, kind):
    with pytest.raises(InvalidInputError):
        HiddenZone(Square.around(45.01, -30.01, 0.75), within, kind)


@pytest.mark.parametrize("far_km", [1.0, 3.0, 30.0])
def test_recordings_with_few_points_are_told_with_odds(far_km):
    """The first place outside is farther than one step of the model leads; of one at the border the odds are alike."""
    edge = np.array([ZONE.half_km + 0.05, 0.1])
    there = edge + np.array([far_km, 0.0])
    far, near = (
        known_of(ZONE, [ZONE.log_likelihoods(Stretch(None, Gate(point, np.full(2, np.nan))))])[0]
        for point in (there, edge)
    )
    assert np.isfinite([far.certainty, far.error_km]).all()
    assert far.certainty > far.before
    assert abs(far.certainty - near.certainty) < 0.02, "the way to the border tells little"


def test_a_stop_in_less_time_than_the_model_holds_possible_is_one_of_unknown_time():
    through = [gate(0.0), gate(np.pi)]
    moves, inside = ZONE._moves, ZONE.inside
    ends = [ZONE._cell(one.point) for one in through]
    assert not visits(moves, inside, *ends, 2).any(), "the broken twin divides by this"
    zone = HiddenZone(ZONE.square, 0.5)
    zone.is_stop = lambda _: True
    quick, unknown = (zone.log_likelihoods(Stretch(*through, seconds)) for seconds in (1.0, None))
    assert np.array_equal(quick[READERS[0]], unknown[READERS[0]])
    assert np.isfinite(quick[READERS[0]]).all()
