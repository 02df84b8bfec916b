"""Similarity measures, against manual results and other libraries."""

from __future__ import annotations

from itertools import chain

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


def test_jensen_shannon_matches_manual_results_and_scipy():
    assert jensen_shannon([1, 0], [0, 1]) == 1.0
    assert jensen_shannon([2, 2], [5, 5]) == 0.0
    # p = (1, 0), q = (1/2, 1/2): half of log2(4/3) and half of (1/2 log2(2/3) + 1/2 log2 2)
    assert jensen_shannon([3, 0], [1, 1]) == pytest.approx(0.5 * np.log2(4 / 3) + 0.5 * (0.5 * np.log2(2 / 3) + 0.5))
    rng = np.random.default_rng(1)
    for _ in range(50):
        first, other = rng.random(9) * (rng.random(9) > 0.3), rng.random(9) * (rng.random(9) > 0.3)
        assert jensen_shannon(first, other) == pytest.approx(jensenshannon(first, other, 2) ** 2, abs=1e-12)
    assert np.isnan(jensen_shannon([0, 0], [1, 1]))
    for wrong in ([1, -1], [np.nan, 1], [1, 2, 3]):
        with pytest.raises(InvalidInputError):
            jensen_shannon([1, 1], wrong)


def test_crowd_statistics_match_manual_results():
    """Two segments in a rectangle of 3 by 4 and one stay.

    One segment follows the sides and returns by the diagonal.
    """
    crowd = Crowd.from_paths([[0, 1, 3, 3, 0], [2, 2]], SQUARE, [[0, 0, 1, 1, 2], [2, 2]])
    assert crowd.visits.tolist() == [2, 1, 2, 2]
    assert dict(zip(*crowd.moves.tolist(), strict=True)) == {0 * 4 + 1: 1, 1 * 4 + 3: 1, 3 * 4 + 0: 1}
    assert crowd.lengths.tolist() == [3 + 4 + 5, 0]
    mean = SQUARE[[0, 1, 3, 3, 0]].mean(axis=0)
    gyration = np.sqrt(np.mean([np.hypot(*(SQUARE[k] - mean)) ** 2 for k in (0, 1, 3, 3, 0)]))
    assert crowd.radii == pytest.approx([gyration, 0])
    assert crowd.diameters.tolist() == [5, 0]
    assert crowd.hours.tolist() == [1, 0, 1, 1, 1, 1]  # by class: moved, stayed
    trips = crowd.trips.reshape(36, 36)
    assert np.argwhere(trips).tolist() == [
        [0, 0],
        [30, 30],
    ]  # back in the corner; the other segment stays in its own cell


def test_sum_of_crowds_equals_crowd_of_all_paths():
    rng = np.random.default_rng(3)
    groups = [[rng.integers(0, 4, length).tolist() for length in lengths] for lengths in ((5, 1, 9), (2, 30), (4,))]
    classes = [[np.full(len(path), number + 1) for path in group] for number, group in enumerate(groups)]
    total, *others = (Crowd.from_paths(*group) for group in zip(groups, [SQUARE] * 3, classes, strict=True))
    for crowd in others:
        total += crowd
    whole = Crowd.from_paths([*chain(*groups)], SQUARE, [*chain(*classes)])
    for name, column in vars(whole).items():
        assert getattr(total, name).tolist() == column.tolist(), name


def test_crowd_measures_match_manual_results():
    crowd = Crowd.from_paths([[0, 1], [0, 1]], SQUARE)
    other = Crowd.from_paths([[0, 2], [1, 3]], SQUARE)
    measures = compare_crowds(crowd, other)
    assert set(measures) == {*MEASURES, "top_places", "rank_correlation"}
    assert measures["visits"] == pytest.approx(jensen_shannon([2, 2, 0, 0], [1, 1, 1, 1]))
    assert measures["moves"] == 1.0
    assert measures["trip_length"] == 1.0  # 3 km twice, 4 km twice
    assert measures["origin_destination"] == 1.0
    assert measures["hours"] == 0.0
    same = compare_crowds(crowd, crowd)
    assert [same[name] for name in MEASURES] == [0.0] * len(MEASURES)
    assert (same["top_places"], same["rank_correlation"]) == (1.0, pytest.approx(np.nan, nan_ok=True))


def test_values_above_maximum_fall_into_last_bucket():
    short, long = Crowd.from_paths([[0, 1], [0, 0]], SQUARE), Crowd.from_paths([[0, 3], [0, 0]], SQUARE)
    assert compare_crowds(long, short)["trip_length"] == 0.0
    assert compare_crowds(short, long)["trip_length"] == pytest.approx(0.5)


def test_diameter_is_maximum_over_all_pairs():
    rng = np.random.default_rng(2)
    points = rng.normal(size=(300, 2))
    crowd = Crowd.from_paths([np.arange(300)], points)
    assert crowd.diameters[0] == pytest.approx(np.linalg.norm(points[:, None] - points, axis=2).max())
    line = np.stack([np.arange(100.0), np.zeros(100)], axis=1)
    assert Crowd.from_paths([np.arange(100)], line).diameters[0] == 99


def test_invalid_crowd_raises():
    with pytest.raises(InvalidInputError, match="at least one path"):
        Crowd.from_paths([], SQUARE)
    with pytest.raises(InvalidInputError, match="at least one path, each with at least one state"):
        Crowd.from_paths([[0], []], SQUARE)
    with pytest.raises(StateError, match="states of a path must be from 0"):
        Crowd.from_paths([[0, 4]], SQUARE)


def test_move_probabilities_match_evidence_of_paths():
    """The product of the probabilities is the filter's evidence of exact observations."""
    rng = np.random.default_rng(1)
    time_classes = TimeClasses(tuple(h % 4 for h in range(168)), 3600.0)
    rows = rng.random((4, 3, 3))
    rows /= rows.sum(axis=-1, keepdims=True)
    model = MarkovModel(list(rows), np.full((4, 3), 1 / 3), None, 3600.0, time_classes)
    paths = [rng.integers(3, size=6), rng.integers(3, size=1), rng.integers(3, size=4)]
    firsts = [1000, 1007, 2003]
    probabilities = np.split(move_probabilities(model, paths, firsts), [5])
    for path, first, steps in ((paths[0], 1000, probabilities[0]), (paths[2], 2003, probabilities[1])):
        log_likelihood = np.where(np.arange(3) == path[:, np.newaxis], 0.0, -np.inf)
        evidence = filter_releases(model, Observations(log_likelihood, first=first)).log_evidence
        assert np.log(steps).sum() + np.log(1 / 3) == pytest.approx(evidence, abs=1e-12)
    with pytest.raises(InvalidInputError, match="first"):
        move_probabilities(model, paths)
