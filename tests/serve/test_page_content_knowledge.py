"""Tests that the page's statements about adversaries have probability at least 2/3."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.plots.basemap import PlaceName
from dphmm.serve import page_content
from dphmm.serve.page_content import PosteriorSummary, describe_inference

# On the equator a degree of longitude is as long as one of latitude.
TOWN = PlaceName("Town", 0.0, 10.0, 50.0)
KM = 1 / page_content._KM_PER_DEGREE
SIDES = {
    side: (np.sin(np.radians(45 * k)), np.cos(np.radians(45 * k)))
    for k, side in enumerate(("n", "ne", "e", "se", "s", "sw", "w", "nw"))
}


def make_figures(east, north, radius, guess_off=1000.0, certainty=0.1, exact=None):
    return PosteriorSummary(north * KM, 10 + east * KM, radius, guess_off, certainty, exact)


@pytest.mark.parametrize(
    ("where", "radius", "statement"),
    [
        ((0, 5), 1000, {"side": "n"}),
        ((4, -4), 500, {"side": "se"}),
        ((-5, 1), 1000, {"side": "w"}),
        ((0, 3), 1000, {"within_m": 6000}),
        ((0, 0.05), 20, {"within_m": 200}),
    ],
    ids=["north", "south-east", "west", "within 6 km", "within 200 m"],
)
def test_side_of_town_is_stated_if_confident_and_distance_otherwise(where, radius, statement):
    knowledge = describe_inference(make_figures(*where, radius), [TOWN, PlaceName("Hamlet", 0.0, 10.01, 5.0)])
    assert knowledge == {"level": "quarter", "error_m": radius, "town": "Town", **statement}


@pytest.mark.parametrize(
    ("guess_off", "certainty", "exact", "level"),
    [
        (2000, 0.9, 0.9, "exact"), (2000, 0.4, 0.3, "exact"), (40, 0.1, None, "spot"), (200, 0.1, None, "street"),
        (2000, 0.6, None, "street"), (2000, 0.4, None, "quarter"), (9000, 0.4, None, "area"),
    ],
)  # fmt: skip
def test_level_follows_error_and_confidence(guess_off, certainty, exact, level):
    knowledge = describe_inference(make_figures(0, 0, 3000, guess_off, certainty, exact), [])
    assert (knowledge["level"], knowledge["town"]) == (level, None)
    assert knowledge.get("exact_posterior") == exact
    assert knowledge.get("max_posterior") == (certainty if certainty >= 0.5 and exact is None else None)


def test_distant_place_is_named_if_no_town_is_near():
    far, farther = PlaceName("Far", 0.3, 10.0, 10.0), PlaceName("Farther", -0.4, 10.0, 60.0)
    assert describe_inference(make_figures(0, 0, 500), [farther, far])["town"] == "Far"
    assert describe_inference(make_figures(0, 0, 500), [PlaceName("Lost", 1.0, 10.0, 60.0)])["town"] is None


def compute_min_probability(rounds=4000, seed=0):
    """Return the smallest probability of a statement under random beliefs.

    The beliefs are clouds, or a few places far from many near ones.
    """
    rng = np.random.default_rng(seed)
    minimum = 1.0
    sides = 0
    for _ in range(rounds):
        points = rng.normal(size=(rng.integers(2, 8), 2)) * rng.exponential(2, size=2) + rng.normal(size=2) * 6
        masses = rng.dirichlet(np.full(len(points), rng.choice([0.1, 1.0, 5.0])))
        mean = masses @ points
        radius = 1000 * float(masses @ np.hypot(*(points - mean).T))
        knowledge = describe_inference(make_figures(*mean, radius), [TOWN])
        if knowledge["town"] is None:
            continue
        if "side" in knowledge:
            sides += 1
            minimum = min(minimum, masses[points @ SIDES[knowledge["side"]] > 0].sum())
        else:
            minimum = min(minimum, masses[np.hypot(*points.T) <= knowledge["within_m"] / 1000].sum())
    assert sides > rounds / 20
    return minimum


@pytest.mark.slow
def test_statements_have_probability_of_at_least_two_thirds(monkeypatch):
    assert compute_min_probability() >= 2 / 3
    monkeypatch.setattr(page_content, "_MARKOV_FACTOR", 0.5)  # with a lower threshold, statements are less probable
    assert compute_min_probability() < 2 / 3
