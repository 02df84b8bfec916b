"""Calibrations as a job: every target is met by what the releases then do, and what is out of reach says its range."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from dphmm import MarkovModel, ReleaseSettings
from dphmm.errors import BudgetError, ConfigurationError, InvalidInputError
from dphmm.jobs import Targets, calibrate
from dphmm.jobs.calibrations import _plans_by_support
from dphmm.space import Grid

GRID = Grid.over((45.0, -30.0, 45.02, -29.97), 0.5)
SETTINGS = ReleaseSettings("utility:1km", 7.0)


def model(step_seconds: float = 3600.0, start: int | None = None) -> MarkovModel:
    """A lazy walk over cells that are neighbours; from everywhere, or from one cell."""
    near = np.linalg.norm(GRID.points[:, np.newaxis] - GRID.points, axis=2) < 0.6
    moves = 0.2 * near / near.sum(axis=1, keepdims=True) + 0.8 * np.eye(len(near))
    first = np.full(len(near), 1 / len(near)) if start is None else np.eye(len(near))[start]
    return MarkovModel(moves, first, states=GRID, step_seconds=step_seconds)


def test_the_error_is_met_by_every_release_of_the_engine():
    for start in (None, 0):  # from one cell the constraint sets grow, and the noise with them
        settings = ReleaseSettings("utility:1km", 7.0, allow_known=start is not None)
        moves = model(start=start)
        found = calibrate(moves, settings, Targets(error=1.5), people=0, over_seconds=6 * 3600)
        engine = found.settings.engine(moves, 1)
        errors = [engine.release(2).expected_error for _ in range(6)]
        assert min(error for error in errors if error > 0) >= 1.5
        assert min(error for error in errors if error > 0) <= 1.5 * 1.001, "four digits"
        assert found.achieved.released_error == pytest.approx(errors[-1])


@pytest.mark.parametrize("mechanism", ["optimal", "graph-exponential"])
def test_tables_have_their_budget_too(mechanism):
    """The error by halving, odds by hops; what is achieved by people who are released from tables."""
    settings = ReleaseSettings("utility:600m", 7.0, mechanism=mechanism)
    moves = model()
    found = calibrate(moves, settings, Targets(error=0.6), people=2, over_seconds=3 * 3600)
    engine = found.settings.engine(moves, 1)
    assert 0.6 <= engine.release(2).expected_error <= 0.6 * 1.01
    assert found.achieved.released_error >= 0.6
    assert (
        replace(found.settings, epsilon=1.02 * found.settings.epsilon).engine(moves, 1).release(2).expected_error < 0.6
    )
    assert found.achieved.simulation.people == 2
    odds = calibrate(moves, settings, Targets(odds=3.0), people=0)
    hops = engine.plan(engine.prior()).protection.diameter
    assert odds.by_target["odds"] == pytest.approx(log(3.0) / hops)
    with pytest.raises(BudgetError, match=r"no table errs by 100 km: it does by \S+ km at epsilon 0.001; give"):
        calibrate(moves, settings, Targets(error=100.0), people=0)


def test_odds_and_certainty_hold_for_releases_and_add_up_over_time():
    moves = model()
    one = calibrate(moves, SETTINGS, Targets(odds=3.0), people=0)
    eight = calibrate(moves, SETTINGS, Targets(odds=3.0), people=0, over_seconds=8 * 3600)
    assert (one.guaranteed, eight.guaranteed) == (1, 8)
    assert eight.by_target["odds"] == pytest.approx(one.by_target["odds"] / 8)
    engine = one.settings.engine(moves, 1)
    for plan, _ in _plans_by_support(engine, 24, 0):
        assert plan.protection.diameter * one.settings.epsilon <= log(3.0)
    sure = calibrate(moves, SETTINGS, Targets(certainty=0.4), people=0)
    before = 1 / len(GRID.points)
    odds = before / (1 - before) * exp(engine.plan(engine.prior()).protection.diameter * sure.by_target["certainty"])
    assert odds / (1 + odds) == pytest.approx(0.4)
    for _ in range(50):
        engine = sure.settings.engine(moves)
        assert engine.release(3).adversary_certainty <= 0.4


def test_spending_of_a_day_is_met_and_several_targets_hold_together():
    both = calibrate(model(1800.0), SETTINGS, Targets(day_epsilon=5.0, error=0.1), people=0)
    assert both.binding == "day_epsilon"
    assert both.settings.epsilon == 0.1041  # 5 / 48, down
    assert both.achieved.day_epsilon <= 5.0
    assert both.achieved.hour_epsilon == pytest.approx(0.2082)


def test_an_adversary_is_kept_away_and_the_figures_say_how_far():
    found = calibrate(
        model(), SETTINGS, Targets(adversary_error=0.6), people=12, over_seconds=6 * 3600, row=(0.05, 2.0)
    )
    told = found.achieved.simulation.figure("hindsight")
    assert told.least >= 0.6
    assert told.mean < found.uninformed
    facts = found.facts()
    assert facts["achieved"]["adversary_error_m_in_hindsight"] == pytest.approx(1000 * told.mean)
    errors = [one["adversary_error_m_in_hindsight"] for one in facts["row"]]
    assert errors[0] > errors[1], "a larger budget tells more"
    estimate = calibrate(model(), SETTINGS, Targets(estimate_error=0.6), people=12, over_seconds=6 * 3600)
    assert estimate.settings.epsilon > found.settings.epsilon, "in hindsight more is known than at once"


def test_the_line_to_run_says_what_is_not_usual():
    settings = ReleaseSettings("utility:1km | complete", 1.0, "k-norm", delta=0.01)
    found = calibrate(model(), settings, Targets(day_epsilon=24.0), people=0)
    assert found.command == (
        "dphmm release DATA --model model.npz --policy 'utility:1km | complete' --epsilon 1.0 --mechanism k-norm "
        "--delta 0.01 -o releases.gpkg"
    )


@pytest.mark.parametrize(
    ("targets", "more", "words"),
    [
        ({"adversary_error": 50.0}, {}, "out of reach: without any release the error is"),
        ({"estimate_error": 50.0}, {}, "out of reach: without any release the error is"),
        ({"estimate_error": 0.3}, {"people": 0}, "give --people 2 or more"),
        ({"certainty": 0.01}, {}, "out of reach: the model alone gives a place 0.0"),
        ({"certainty": 1.0}, {}, "between 0 and 1"),
        ({"odds": 1.0}, {}, "above 1"),
        ({"error": 1.0}, {"over_seconds": 60.0}, "less than the model's step"),
        ({"error": 1.0}, {"over_seconds": 1e12}, "do not fit into memory; give a shorter --over"),
        ({}, {}, "no target is given"),
        ({"error": -1.0}, {}, "positive"),
        ({"error": 1.0}, {"row": (0.0,)}, "positive"),
    ],
)
def test_what_cannot_be_met_is_refused_with_the_reach(targets, more, words):
    with pytest.raises((ConfigurationError, InvalidInputError), match=words):
        calibrate(model(), SETTINGS, Targets(**targets), **{"people": 0, **more})


@pytest.mark.parametrize(("certainty", "odds"), [(0.5, 30.0), (0.9, 3.0)])
def test_both_limits_on_an_event_hold_for_one_release(certainty, odds):
    """Whichever of the two is the stricter: neither is dropped, and no output of the engine passes either."""
    event = "at:3 between 0 and 1"
    alone = [
        calibrate(model(), SETTINGS, Targets(event=event, **one), people=0).settings.epsilon
        for one in ({"certainty": certainty}, {"odds": odds})
    ]
    both = calibrate(model(), SETTINGS, Targets(event=event, certainty=certainty, odds=odds), people=0)
    assert alone[0] != alone[1]
    assert both.settings.epsilon == min(alone)
    assert set(both.by_target) == {"certainty", "odds"}
