"""The frontier: an adversary who knows habits against all paths, and what is advised of a table made by hand."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import numpy as np
import pytest

from dphmm.attack import ChannelResult, Outcome, TableChannel, attack_tracks
from dphmm.attack.measures import advice, frontier_lines, protection
from dphmm.errors import InvalidInputError
from dphmm.model import MarkovModel
from dphmm.release import ReleaseSettings
from dphmm.release.settings import Schedule
from tests.attack.scene import STEP, grid, moves, track
from tests.attack.test_posterior import over_paths

DAY, MORE = ReleaseSettings.for_a_day(), ReleaseSettings.for_a_day(12.0)
TARGET = ReleaseSettings(epsilon=4.0, schedule=Schedule(target_error=0.9))


def result(name, near, hindsight, habits=nan, homes=0, settings=None, family=""):
    """A channel with two people, who differ by 20 m, and one of whom has no habits that are known."""
    ann = Outcome("ann", 9, near - 10, hindsight - 10, 0.5, 0.5, 100.0 if homes else 900.0, 1.0, 1.0, 0.0, habits)
    bob = replace(ann, user="bob", at_once_m=near + 10, hindsight_m=hindsight + 10, habits_m=nan)
    bob = replace(bob, home_error_m=100.0 if homes > 1 else 900.0)
    return ChannelResult(name, "a test", (ann, bob), 200.0, family, settings)


@pytest.mark.parametrize("seed", range(4))
def test_who_knows_habits_is_off_by_what_all_paths_say(seed):
    rng = np.random.default_rng(seed)
    of = moves(2, 1, seed, redrawn=1.0)
    own = MarkovModel(rng.dirichlet(np.ones(4), 4), rng.dirichlet(np.ones(4)), grid(2), STEP)
    people = [track(of, of.grid.points[rng.integers(4, size=4)] + 0.01, np.array([3, 4, 5, 7])) for _ in range(2)]
    table = rng.dirichlet(np.ones(3), 4)
    channel = TableChannel("any", table, np.full((3, 2), np.nan))
    (found,) = attack_tracks(people, [channel], of, 200.0, seed, [own, None])
    drawn = channel.blur(people[0], of, np.random.default_rng([seed, 0, *b"any"])).seen
    for model, told in ((own, found.outcomes[0].habits_m), (of.model, found.outcomes[0].hindsight_m)):
        matrix = model.transition.toarray()
        _, smoothed = over_paths(model.initial, lambda _, to=matrix: to, lambda k: table[:, drawn[k]], [3, 4, 5, 7])
        away = smoothed @ of.grid.points - people[0].points
        assert told == pytest.approx(1000 * np.hypot(*away.T).mean(), rel=1e-9)
    assert np.isnan(found.outcomes[1].habits_m)
    assert found.figure("habits_m").mean == found.outcomes[0].habits_m
    with pytest.raises(InvalidInputError, match="2 tracks and habits of 1 people"):
        attack_tracks(people, [channel], of, 200.0, seed, [own])


def test_the_setting_is_taken_that_is_nearest_at_once_of_those_that_protect_as_much():
    results = [
        result("rounded", 300, 250, 200, 2),
        result("day", 1500, 1400, 900, 1, DAY),
        result("dear", 900, 800, 600, 2, MORE),
        result("target", 1300, 1350, 910, 1, TARGET),
    ]
    assert protection(results) == "habits_m"
    assert advice(results) == [
        "Take target: a reader is 1,300 m off at once instead of 1,500 m with the default, day (200 ± 0 m nearer, of 2 "
        "people), and an adversary who knows their habits 910 m instead of 900 m.",
        "With the default 1 of 2 homes are found; of what is as near at once, no channel gives away fewer.",
    ]


def test_the_default_is_kept_where_none_is_better_and_what_is_nearer_without_a_promise_is_named():
    results = [
        result("coarse", 1200, 1450, 950),
        result("day", 1500, 1400, 900, 1, DAY),
        result("dear", 900, 800, 600, 2, MORE),
    ]
    assert advice(results) == [
        "Keep the default, day: a reader is 1,500 m off at once and an adversary who knows their habits 900 m; of the "
        "2 settings of dphmm that were tried none is nearer at once and protects as much. Nearer at once and no less "
        "protected from this adversary, without a promise: coarse (1,200 and 950 m).",
        "With the default 1 of 2 homes are found; of what is as near at once, fewer with coarse (0).",
    ]


def test_the_default_is_kept_where_too_few_people_say_that_another_is_nearer():
    """Differences of 40 ± 10 m: of two people Student's interval of 99 % reaches 637 m; of 16, 11 m."""
    people = [replace(result("", 1500, 1400).outcomes[0], user=f"{i}") for i in range(16)]
    nearer = [replace(one, at_once_m=one.at_once_m - (30 if i % 2 else 50)) for i, one in enumerate(people)]
    for many, said in (
        (2, "Keep the default, day: a reader"),
        (16, "Take target: a reader"),
        (1, "Keep the default, day"),
    ):
        results = [
            replace(result("day", 1, 1, settings=DAY), outcomes=tuple(people[:many])),
            replace(result("target", 1, 1, settings=TARGET), outcomes=tuple(nearer[:many])),
        ]
        assert advice(results)[0].startswith(said)
    assert advice(results)[0].endswith("; target was 50 m nearer at once, too little to tell from chance (one person).")


def test_without_habits_hindsight_protects_and_without_the_default_nothing_is_advised():
    results = [result("day", 1500, 1400, settings=DAY), result("target", 1300, 1350, settings=TARGET)]
    assert protection(results) == "hindsight_m"
    assert advice(results)[0].startswith("Keep the default, day: a reader is 1,500 m off at once and an adversary in ")
    assert advice(results[1:]) == []
    assert advice(results[:1])[0].endswith(" 1,400 m; no other setting of dphmm was tried.")
    homeless = [replace(one, outcomes=(replace(one.outcomes[0], home_error_m=nan),)) for one in results]
    assert len(advice(homeless)) == 1


def test_a_family_is_a_line_from_the_nearest_at_once_and_others_are_points():
    lines = frontier_lines(
        [result("b", 400, 300, family="grids"), result("alone", 5, 6), result("a", 100, 90, family="grids")],
        "hindsight_m",
    )
    assert {name: line.tolist() for name, line in lines.items()} == {
        "grids": [[100, 90], [400, 300]],
        "alone": [[5, 6]],
    }
