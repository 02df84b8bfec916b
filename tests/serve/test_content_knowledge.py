"""What a page says a reader can tell, against the masses of beliefs: it is at least twice as probable as not."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.plots.basemap import PlaceName
from dphmm.serve import content
from dphmm.serve.content import Figures, knowledge_of

TOWN = PlaceName("Town", 0.0, 10.0, 50.0)
"""On the equator, where a degree east is as long as one north."""
KM = 1 / content._KM_A_DEGREE
SIDES = {
    side: (np.sin(np.radians(45 * k)), np.cos(np.radians(45 * k)))
    for k, side in enumerate(("n", "ne", "e", "se", "s", "sw", "w", "nw"))
}


def figures(east, north, radius, guess_off=1000.0, certainty=0.1, exact=False):
    return Figures(north * KM, 10 + east * KM, radius, guess_off, certainty, exact)


@pytest.mark.parametrize(
    ("where", "radius", "said"),
    [
        ((0, 5), 1000, {"side": "n"}),
        ((4, -4), 500, {"side": "se"}),
        ((-5, 1), 1000, {"side": "w"}),
        ((0, 3), 1000, {"within_m": 6000}),
        ((0, 0.05), 20, {"within_m": 200}),
    ],
)
def test_a_side_of_the_centre_is_said_where_it_is_sure_and_else_how_near_it_is(where, radius, said):
    found = knowledge_of(figures(*where, radius), [TOWN, PlaceName("Hamlet", 0.0, 10.01, 5.0)])
    assert found == {"level": "quarter", "off_m": radius, "town": "Town", **said}


@pytest.mark.parametrize(
    ("guess_off", "certainty", "exact", "level"),
    [
        (2000, 0.9, True, "exact"), (40, 0.1, False, "spot"), (200, 0.1, False, "street"), (2000, 0.6, False, "street"),
        (2000, 0.4, False, "quarter"), (9000, 0.4, False, "area"),
    ],
)  # fmt: skip
def test_more_is_said_to_be_told_the_nearer_guesses_are_and_the_surer_of_one_place(guess_off, certainty, exact, level):
    found = knowledge_of(figures(0, 0, 3000, guess_off, certainty, exact), [])
    assert (found["level"], found["town"]) == (level, None)
    assert found.get("certainty") == (certainty if certainty >= 0.5 else None)


def test_where_no_town_is_near_the_nearest_stands_for_it_and_none_beyond():
    far, farther = PlaceName("Far", 0.3, 10.0, 10.0), PlaceName("Farther", -0.4, 10.0, 60.0)
    assert knowledge_of(figures(0, 0, 500), [farther, far])["town"] == "Far"
    assert knowledge_of(figures(0, 0, 500), [PlaceName("Lost", 1.0, 10.0, 60.0)])["town"] is None


def least_mass(rounds=4000, seed=0):
    """The least mass that beliefs give to what is said of them: clouds, and a few places far from many near ones."""
    rng, least, sides = np.random.default_rng(seed), 1.0, 0
    for _ in range(rounds):
        points = rng.normal(size=(rng.integers(2, 8), 2)) * rng.exponential(2, size=2) + rng.normal(size=2) * 6
        masses = rng.dirichlet(np.full(len(points), rng.choice([0.1, 1.0, 5.0])))
        mean = masses @ points
        radius = 1000 * float(masses @ np.hypot(*(points - mean).T))
        found = knowledge_of(figures(*mean, radius), [TOWN])
        if found["town"] is None:
            continue
        if "side" in found:
            sides += 1
            least = min(least, masses[points @ SIDES[found["side"]] > 0].sum())
        else:
            least = min(least, masses[np.hypot(*points.T) <= found["within_m"] / 1000].sum())
    assert sides > rounds / 20
    return least


def test_what_is_said_holds_with_two_thirds_at_the_least(monkeypatch):
    assert least_mass() >= 2 / 3
    monkeypatch.setattr(content, "_SURE", 0.5)  # the broken twin
    assert least_mass() < 2 / 3
