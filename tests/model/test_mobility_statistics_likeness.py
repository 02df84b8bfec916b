"""The measures of likeness, against values worked out by hand and other libraries."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from dphmm.errors import InvalidInputError, StateError
from dphmm.model import (
    Crowd,
    MarkovModel,
    Observations,
    TimeClasses,
    compare_crowds,
    filter_releases,
    jensen_shannon,
    move_probabilities,
)
from dphmm.model.mobility_statistics import MEASURES

SQUARE = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0], [3.0, 4.0]])


def test_jensen_shannon_by_hand_and_by_scipy():
    assert jensen_shannon([1, 0], [0, 1]) == 1.0
    assert jensen_shannon([2, 2], [5, 5]) == 0.0
    # p = (1, 0), q = (1/2, 1/2): half of log2(4/3) and half of (1/2 log2(2/3) + 1/2 log2 2)
    assert jensen_shannon([3, 0], [1, 1]) == pytest.approx(0.5 * np.log2(4 / 3) + 0.5 * (0.5 * np.log2(2 / 3) + 0.5))
    rng = np.random.default_rng(1)
    for _ in range(50):
        one, other = rng.random(9) * (rng.random(9) > 0.3), rng.random(9) * (rng.random(9) > 0.3)
        assert jensen_shannon(one, other) == pytest.approx(jensenshannon(one, other, 2) ** 2, abs=1e-12)
    assert np.isnan(jensen_shannon([0, 0], [1, 1]))
    for wrong in ([1, -1], [np.nan, 1], [1, 2, 3]):
        with pytest.raises(InvalidInputError):
            jensen_shannon([1, 1], wrong)


def test_a_crowd_by_hand():
    """Two stretches in a rectangle of 3 by 4: across by the sides and back by the diagonal, and one that stays."""
    crowd = Crowd.of([[0, 1, 3, 3, 0], [2, 2]], SQUARE, [[0, 0, 1, 1, 2], [2, 2]])
    assert crowd.visits.tolist() == [2, 1, 2, 2]
    assert dict(zip(*crowd.moves.tolist(), strict=True)) == {0 * 4 + 1: 1, 1 * 4 + 3: 1, 3 * 4 + 0: 1}
    assert crowd.lengths.tolist() == [3 + 4 + 5, 0]
    mean = SQUARE[[0, 1, 3, 3, 0]].mean(axis=0)
    gyration = np.sqrt(np.mean([np.hypot(*(SQUARE[k] - mean)) ** 2 for k in (0, 1, 3, 3, 0)]))
    assert crowd.radii == pytest.approx([gyration, 0])
    assert crowd.diameters.tolist() == [5, 0]
    assert crowd.hours.tolist() == [1, 0, 1, 1, 1, 1]  # by class: moved, stayed
    trips = crowd.trips.reshape(36, 36)
    assert np.argwhere(trips).tolist() == [[0, 0], [30, 30]]  # back in the corner; the other stayed in its own


def test_measures_of_crowds_by_hand():
    one = Crowd.of([[0, 1], [0, 1]], SQUARE)
    other = Crowd.of([[0, 2], [1, 3]], SQUARE)
    found = compare_crowds(one, other)
    assert set(found) == {*MEASURES, "top_places", "rank_correlation"}
    assert found["visits"] == pytest.approx(jensen_shannon([2, 2, 0, 0], [1, 1, 1, 1]))
    assert found["moves"] == 1.0
    assert found["trip_length"] == 1.0  # 3 km twice, 4 km twice
    assert found["origin_destination"] == 1.0
    assert found["hours"] == 0.0
    same = compare_crowds(one, one)
    assert [same[name] for name in MEASURES] == [0.0] * len(MEASURES)
    assert (same["top_places"], same["rank_correlation"]) == (1.0, pytest.approx(np.nan, nan_ok=True))


def test_what_is_longer_than_the_longest_compared_with_falls_into_the_last_bucket():
    short, long = Crowd.of([[0, 1], [0, 0]], SQUARE), Crowd.of([[0, 3], [0, 0]], SQUARE)
    assert compare_crowds(long, short)["trip_length"] == 0.0
    assert compare_crowds(short, long)["trip_length"] == pytest.approx(0.5)


def test_many_places_have_the_diameter_of_all_pairs():
    rng = np.random.default_rng(2)
    points = rng.normal(size=(300, 2))
    crowd = Crowd.of([np.arange(300)], points)
    assert crowd.diameters[0] == pytest.approx(np.linalg.norm(points[:, None] - points, axis=2).max())
    line = np.stack([np.arange(100.0), np.zeros(100)], axis=1)
    assert Crowd.of([np.arange(100)], line).diameters[0] == 99


def test_what_is_no_crowd_is_refused():
    with pytest.raises(InvalidInputError, match="no stretch"):
        Crowd.of([], SQUARE)
    with pytest.raises(InvalidInputError, match="empty"):
        Crowd.of([[0], []], SQUARE)
    with pytest.raises(StateError, match="does not exist"):
        Crowd.of([[0, 4]], SQUARE)


def test_probabilities_of_steps_are_those_of_whole_paths():
    """Multiplied out they are what the filter says of observations that tell the state."""
    rng = np.random.default_rng(1)
    time_classes = TimeClasses(tuple(h % 4 for h in range(168)), 3600.0)
    rows = rng.random((4, 3, 3))
    rows /= rows.sum(axis=-1, keepdims=True)
    model = MarkovModel(list(rows), np.full((4, 3), 1 / 3), None, 3600.0, time_classes)
    paths = [rng.integers(3, size=6), rng.integers(3, size=1), rng.integers(3, size=4)]
    firsts = [1000, 1007, 2003]
    found = np.split(move_probabilities(model, paths, firsts), [5])
    for path, first, steps in ((paths[0], 1000, found[0]), (paths[2], 2003, found[1])):
        told = np.where(np.arange(3) == path[:, np.newaxis], 0.0, -np.inf)
        evidence = filter_releases(model, Observations(told, first=first)).log_evidence
        assert np.log(steps).sum() + np.log(1 / 3) == pytest.approx(evidence, abs=1e-12)
    with pytest.raises(InvalidInputError, match="give the first of each"):
        move_probabilities(model, paths)
