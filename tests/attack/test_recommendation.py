"""Tests of the frontier: an adversary who knows habits against all paths, and the advice."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import numpy as np
import pytest

from dphmm.attack import AttackOutcome, ChannelResult, TableChannel, attack_tracks
from dphmm.attack.recommendation import build_frontier_lines, recommend_channel, select_protection_measure
from dphmm.errors import InvalidInputError
from dphmm.model import MarkovModel
from dphmm.release import ReleaseSettings
from dphmm.release.settings import Schedule
from tests.attack.scene import STEP, build_grid, build_moves, build_track
from tests.attack.test_posterior import enumerate_paths

DAY = ReleaseSettings.for_a_day()
MORE = ReleaseSettings.for_a_day(12.0)
TARGET = ReleaseSettings(epsilon=4.0, schedule=Schedule(target_error=0.9))


def make_result(name, near, hindsight, habits=nan, homes=0, settings=None, family=""):
    """Return a channel with two users with errors that differ by 20 m.

    The second has no known habits.
    """
    ann = AttackOutcome(
        user="ann",
        num_fixes=9,
        filtered_error_m=near - 10,
        smoothed_error_m=hindsight - 10,
        max_posterior=0.5,
        top_1_accuracy=0.5,
        home_error_m=100.0 if homes else 900.0,
        released_error_m=1.0,
        length_ratio=1.0,
        withheld_share=0.0,
        informed_error_m=habits,
    )
    bob = replace(ann, user="bob", filtered_error_m=near + 10, smoothed_error_m=hindsight + 10, informed_error_m=nan)
    bob = replace(bob, home_error_m=100.0 if homes > 1 else 900.0)
    return ChannelResult(name, "a test", (ann, bob), 200.0, family, settings)


@pytest.mark.parametrize("seed", range(4))
def test_habit_adversary_error_matches_path_enumeration(seed):
    rng = np.random.default_rng(seed)
    chain = build_moves(2, 1, seed, redrawn=1.0)
    habit_model = MarkovModel(rng.dirichlet(np.ones(4), 4), rng.dirichlet(np.ones(4)), build_grid(2), STEP)
    tracks = [
        build_track(chain, chain.grid.points[rng.integers(4, size=4)] + 0.01, np.array([3, 4, 5, 7])) for _ in range(2)
    ]
    table = rng.dirichlet(np.ones(3), 4)
    channel = TableChannel("any", table, np.full((3, 2), np.nan))
    (channel_result,) = attack_tracks(tracks, [channel], chain, 200.0, seed, [habit_model, None])
    outputs = channel.obfuscate(tracks[0], chain, np.random.default_rng([seed, 0, *b"any"])).observed
    for model, error in (
        (habit_model, channel_result.outcomes[0].informed_error_m),
        (chain.model, channel_result.outcomes[0].smoothed_error_m),
    ):
        matrix = model.transition.toarray()
        _, smoothed = enumerate_paths(
            model.initial, lambda _, to=matrix: to, lambda k: table[:, outputs[k]], [3, 4, 5, 7]
        )
        away = smoothed @ chain.grid.points - tracks[0].points
        assert error == pytest.approx(1000 * np.hypot(*away.T).mean(), rel=1e-9)
    assert np.isnan(channel_result.outcomes[1].informed_error_m)
    assert channel_result.estimate_mean("informed_error_m").mean == channel_result.outcomes[0].informed_error_m
    with pytest.raises(InvalidInputError, match=r"habits must have one entry for each of 2 tracks, got 1"):
        attack_tracks(tracks, [channel], chain, 200.0, seed, [habit_model])


def test_advice_takes_nearest_setting_that_protects_as_much():
    results = [
        make_result("rounded", 300, 250, 200, 2),
        make_result("day", 1500, 1400, 900, 1, DAY),
        make_result("dear", 900, 800, 600, 2, MORE),
        make_result("target", 1300, 1350, 910, 1, TARGET),
    ]
    assert select_protection_measure(results) == "informed_error_m"
    assert recommend_channel(results) == [
        "Use target. Compared with the default, day, it reduces the error of recipients from 1,500 m to 1,300 m (by "
        "200 ± 0 m, 2 users). The error of an informed adversary who knows the user's habits, given all releases, is "
        "910 m instead of 900 m.",
        "With the default, 1 of 2 homes are found. No channel with a smaller or equal error of recipients reveals "
        "fewer.",
    ]


def test_advice_keeps_default_if_no_setting_is_better():
    results = [
        make_result("coarse", 1200, 1450, 950),
        make_result("day", 1500, 1400, 900, 1, DAY),
        make_result("dear", 900, 800, 600, 2, MORE),
    ]
    assert recommend_channel(results) == [
        "Keep the default, day. The error of recipients is 1,500 m. The error of an informed adversary who knows the "
        "user's habits, given all releases, is 900 m. None of the 2 tested settings of dphmm has a smaller error and "
        "protects as much. Other channels have a smaller or equal error and protect as much from this adversary, "
        "without a guarantee: coarse (1,200 and 950 m).",
        "With the default, 1 of 2 homes are found. Channels with a smaller or equal error of recipients reveal fewer: "
        "coarse (0).",
    ]


def test_advice_keeps_default_if_too_few_users():
    """Differences are 40 ± 10 m.

    Student's 99 % interval reaches 637 m for 2 users, 11 m for 16.
    """
    outcomes = [replace(make_result("", 1500, 1400).outcomes[0], user=f"{i}") for i in range(16)]
    nearer = [
        replace(outcome, filtered_error_m=outcome.filtered_error_m - (30 if i % 2 else 50))
        for i, outcome in enumerate(outcomes)
    ]
    for count, words in (
        (2, "Keep the default, day. The error of recipients"),
        (16, "Use target. Compared with the default"),
        (1, "Keep the default, day"),
    ):
        results = [
            replace(make_result("day", 1, 1, settings=DAY), outcomes=tuple(outcomes[:count])),
            replace(make_result("target", 1, 1, settings=TARGET), outcomes=tuple(nearer[:count])),
        ]
        assert recommend_channel(results)[0].startswith(words)
    assert recommend_channel(results)[0].endswith(
        " The error with target was 50 m smaller, which is not significant (one user)."
    )


def test_advice_without_habits_uses_smoothed_error_and_without_default_is_empty():
    results = [make_result("day", 1500, 1400, settings=DAY), make_result("target", 1300, 1350, settings=TARGET)]
    assert select_protection_measure(results) == "smoothed_error_m"
    assert recommend_channel(results)[0].startswith(
        "Keep the default, day. The error of recipients is 1,500 m. The error of an adversary, given all releases, is "
    )
    assert recommend_channel(results[1:]) == []
    assert recommend_channel(results[:1])[0].endswith(" 1,400 m. No other setting of dphmm was tested.")
    homeless = [replace(channel, outcomes=(replace(channel.outcomes[0], home_error_m=nan),)) for channel in results]
    assert len(recommend_channel(homeless)) == 1


def test_families_are_named_by_their_first_and_last_values():
    results = [
        make_result("snapped to 4 km", 900, 800, family="snapped to …"),
        make_result("every 1 h", 5, 6, family="every … h"),
        make_result("snapped to 2 km", 500, 300, family="snapped to …"),
        make_result("snapped to 500 m", 100, 90, family="snapped to …"),
    ]
    assert set(build_frontier_lines(results, "smoothed_error_m")) == {"snapped to 500 m … 4 km", "every 1 h"}


def test_frontier_lines_connect_families_and_keep_others_as_points():
    lines = build_frontier_lines(
        [
            make_result("b", 400, 300, family="grids"),
            make_result("alone", 5, 6),
            make_result("a", 100, 90, family="grids"),
        ],
        "smoothed_error_m",
    )
    assert {name: line.tolist() for name, line in lines.items()} == {
        "grids": [[100, 90], [400, 300]],
        "alone": [[5, 6]],
    }
