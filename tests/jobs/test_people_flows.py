"""Tables of flows: what one person more or less changes, what is paid, and how often intervals hold."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from dphmm.arrays import random_source
from dphmm.errors import ConfigurationError
from dphmm.flows import Areas, FlowSettings
from dphmm.flows import tables as flow_tables
from dphmm.flows.noisy_tables import Precision, add_noise, level_shares, sums_over
from dphmm.jobs import flows, people_flows, plan_flows
from dphmm.jobs.workers import Processes
from dphmm.mechanisms import count_noise
from dphmm.mechanisms.count_noise import CountNoise, laplace_variance, laplace_within
from dphmm.space import Grid, Trajectory
from tests.sizes import fewer

GRID = Grid.over((45.0, -30.0, 45.03, -29.98), 1.0)
AREAS = Areas.from_space(GRID, block=2)
FIRST = np.datetime64("2024-03-04T08:00:00", "us")


def person(name: str, states: tuple[int, ...], hours: float = 5.0) -> Trajectory:
    """Somebody who is seen in a state every few hours; -1 is nowhere."""
    seen = [at for at, state in enumerate(states) if state >= 0]
    latitude, longitude = GRID.latlon([states[at] for at in seen]).T
    times = FIRST + (np.array(seen) * hours * 3600e6).astype("m8[us]")
    return Trajectory(name, times, latitude, longitude)


class Recorded(list):
    """What was to get noise: name, counts, sensitivity and price, of which sums are paid for; and no noise."""

    def add(self, noise, name, counts, sensitivity, epsilon):
        noise.left -= epsilon
        noise.spent[name] = epsilon
        self.append((name, np.array(counts), sensitivity, epsilon))
        return np.array(counts, dtype=np.int64)


@pytest.fixture
def recorded(monkeypatch):
    found = Recorded()
    monkeypatch.setattr(count_noise.CountNoise, "add", lambda noise, *parts: found.add(noise, *parts))
    return found


def asked(recorded, people, settings):
    """What gets noise for some people, by name."""
    recorded.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(people_flows, "_people", lambda *_: iter(people))
        flows("", AREAS, 1, settings, rng=1)
    return {name: (counts, sensitivity) for name, counts, sensitivity, _ in recorded}


ALL = FlowSettings(stay=0, gap=48, by="6,18", visits_per_person=2, trips_per_person=1)
CHOSEN = FlowSettings("visits,flows,home-work", stay=0, gap=48, by="all")
OTHERS = [person("ann", (0, 1, 5, 0)), person("bob", (2, 2, 3))]


def changes(recorded, settings, everyone):
    """By how much, for its sensitivity, each thing with noise changes at most with one of some people more."""
    before = asked(recorded, OTHERS, settings)
    worst = dict.fromkeys(before, 0.0)
    for one in everyone:
        after = asked(recorded, [*OTHERS, one], settings)
        for name, (counts, sensitivity) in after.items():
            worst[name] = max(worst[name], float(np.abs(counts - before[name][0]).sum()) / sensitivity)
    return worst


def short_lives():
    """Everybody who is seen at most four times (every day three), in three areas of two districts."""
    places = (-1, 0, 1, 5)
    return [person("eve", states) for states in product(places, repeat=fewer(4, 3)) if any(one >= 0 for one in states)]


def test_one_person_more_changes_each_table_by_no_more_than_its_noise_is_for(recorded):
    worst = changes(recorded, ALL, short_lives())
    assert set(worst) >= {"visits", "flows", "stay-times", "trip-lengths", "home-work", "flows by district"}
    assert max(worst.values()) == 1.0  # the bound is reached, and not passed


def test_so_it_is_where_the_bound_is_chosen(recorded):
    """The choice itself has a sensitivity of one; tables under any one bound are held by the test above."""
    counts = [asked(recorded, [*OTHERS, one], CHOSEN) for one in short_lives()[::5]]
    before = asked(recorded, OTHERS, CHOSEN)
    for found in counts:
        for name in ("bound of visits", "bound of trips"):
            assert np.abs(found[name][0] - before[name][0]).sum() <= found[name][1] == 1


def test_without_a_bound_it_changes_by_more(recorded, monkeypatch):
    """The broken twin."""
    monkeypatch.setattr(people_flows, "bounded", lambda events, *_: np.ones(len(events.person), dtype=bool))
    assert max(changes(recorded, ALL, short_lives()).values()) > 1.0


DAYS = FlowSettings(
    "visits,flows", stay=0, gap=48, by="all", visits_per_person=2, trips_per_person=1, first_day="2024-03-04",
    last_day="2024-03-09", window=2,
)  # fmt: skip


def long_lives():
    rng = np.random.default_rng(5)
    return [person("eve", tuple(rng.integers(-1, 6, 30).tolist())) for _ in range(fewer(60, 20))]


def in_days(recorded, settings, pieces, everyone):
    """The greatest change of the days' cells in any of some pieces of the days, for the sensitivity."""
    before, worst = asked(recorded, OTHERS, settings), 0.0
    for one in everyone:
        for name, (counts, sensitivity) in asked(recorded, [*OTHERS, one], settings).items():
            change = np.abs(counts - before[name][0]).reshape(6, -1).sum(axis=1)
            worst = max(worst, *(float(change[piece].sum()) / sensitivity for piece in pieces))
    return worst


def test_any_days_in_a_row_change_by_no_more_than_the_noise_is_for(recorded):
    any_two = [slice(day, day + 2) for day in range(5)]
    assert in_days(recorded, DAYS, any_two, long_lives()) == 1.0


def test_bounds_per_fixed_window_leave_days_across_two_windows_unbounded(recorded, monkeypatch):
    """The broken twin: contributions bounded in windows from the first day on, not in any days in a row."""

    def tumbling(events, most, window):
        groups = events.person.astype(np.int64) * (int(events.day.max(initial=0)) // window + 1) + events.day // window
        return flow_tables._even(groups, most)

    monkeypatch.setattr(people_flows, "bounded", tumbling)
    assert in_days(recorded, DAYS, [slice(1, 3), slice(3, 5)], long_lives()) > 1.0


def test_what_is_paid_is_the_budget_and_follows_the_split():
    settings = FlowSettings("visits,flows", split="flows=3", visits_per_person=4, trips_per_person=4)
    found = flows("data/sample/geolife", AREAS, "0.7", settings, rng=1)
    assert sum(found.spent.values()) == found.epsilon == Fraction(7, 10)
    of_flows = sum(price for name, price in found.spent.items() if name.startswith("flows"))
    assert of_flows == Fraction(3, 4) * Fraction(7, 10)
    chosen = flows("data/sample/geolife", AREAS, 1, FlowSettings("flows"), rng=1)
    assert chosen.spent["bound of trips"] == Fraction(1, 10)
    assert sum(chosen.spent.values()) == 1
    assert chosen.facts()["randomness"] == "seeded"


def test_the_plan_is_what_the_tables_have():
    settings = FlowSettings("flows", trips_per_person=7)
    (found,) = flows("data/sample/geolife", AREAS, 2, settings, rng=1).tables.values()
    planned = plan_flows(AREAS, 2, settings)
    for (level, half), one in zip(found.precision.expected, planned, strict=True):
        assert (level, half) == (one.level, one.half_width)


@pytest.mark.parametrize(("epsilon", "alone"), [(0.2, False), (0.2, True), (8.0, False), (8.0, True)])
def test_intervals_hold_as_often_as_they_say(epsilon, alone):
    """Of 36 flows in each of many tables at least 95 % hold, less four standard errors of the mean over tables.

    These are measured, so that cells of one table may depend on each other; alpha is 1e-4, the seed is fixed. Where
    noise is large, intervals that are a tenth narrower fail.
    """
    true = np.arange(36) % 5 * 40
    settings = FlowSettings("flows", cells_alone=alone)
    areas = Areas.from_space(Grid.over((45.0, -30.0, 45.017, -29.966), 1.0), block=2)
    assert len(areas) == 6
    table = flow_tables.Table("flows", settings.layout(areas))
    precision = Precision(table, 1, Fraction(str(epsilon)), level_shares(table), 0.95)
    source, rows, totals = random_source(3), sums_over(table, ["area"]), true.reshape(6, 6).sum(axis=1)
    held, narrower, sums, wrong = [], [], [], []
    for _ in range(fewer(1000, 150)):
        made = add_noise(CountNoise(Fraction(100), source), precision, true)
        count, estimate, low, high, sure, off = made.level(0)
        held.append(((low <= true) & (true <= high)).mean())
        wrong.append((sure & (true == 0)).any() or (np.abs(count - true) > off).any())
        half = 0.9 * precision.half_widths(table.forest.variances(precision.variances)[0])
        narrower.append((np.abs(estimate - true) <= half).mean())
        found = made.sums(rows)
        sums.append(((found.low <= totals) & (totals <= found.high)).mean())
        assert (count >= 0).all()
    for one in (held, sums, np.logical_not(wrong)):
        assert np.mean(one) >= 0.95 - 4 * np.std(one) / np.sqrt(len(one))
    if epsilon < 1:
        assert np.mean(narrower) < 0.95 - 4 * np.std(narrower) / np.sqrt(len(narrower))
        assert np.mean(held) < 0.97


@pytest.mark.parametrize("decay", [0.01, 0.3, 2.0])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_the_interval_of_one_noise_is_exact(decay, confidence):
    steps = np.arange(-5000, 5001)
    mass = np.exp(-decay * np.abs(steps))
    mass /= mass.sum()
    within = laplace_within(decay, confidence)
    assert mass[np.abs(steps) <= within].sum() >= confidence
    assert within == 0 or mass[np.abs(steps) < within].sum() < confidence
    np.testing.assert_allclose(laplace_variance(decay), (mass * steps**2).sum(), rtol=1e-9)


def test_processes_and_one_make_the_same_tables():
    settings, people = FlowSettings("visits,flows", visits_per_person=4, trips_per_person=3), "data/sample/geolife"
    one, two = (flows(people, AREAS, 1, settings, rng=3, engine=engine) for engine in (None, Processes(2)))
    for name, table in one.tables.items():
        assert (table.counts == two.tables[name].counts).all()


def test_balanced_counts_have_as_many_in_as_out():
    found = flows("data/sample/geolife", AREAS, 5, FlowSettings("flows", trips_per_person=5, balanced=True), rng=1)
    counts = found.tables["flows"].counts.reshape(len(AREAS), -1)
    assert counts.sum() > 0
    assert (counts.sum(axis=0) == counts.sum(axis=1)).all()


def test_counts_follow_from_noisy_numbers_alone(monkeypatch):
    """Two data sets whose noisy numbers are equal give equal rows, whatever the true ones are."""
    monkeypatch.setattr(
        count_noise.CountNoise,
        "add",
        lambda noise, name, counts, _, epsilon: (
            noise.spent.__setitem__(name, epsilon),
            np.arange(np.size(counts)).reshape(np.shape(counts)) % 17,
        )[1],
    )
    settings = FlowSettings(stay=0)
    found = [flows(data, AREAS, 1, settings, rng=1).rows(0.5) for data in ("data/sample/geolife", "data/sample/cabs")]
    assert all((found[0].columns[name] == found[1].columns[name]).all() for name in found[0].columns)
    assert found[0].facts == found[1].facts


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tables": "visits,walks"}, "tables are 'visits,walks'; give some of"),
        ({"split": "home=2"}, "give weights of the tables"),
        ({"by": "morning"}, "give all, hours, weekday-hours, or hours as"),
        ({"window": 7}, "need --first-day and --last-day"),
        ({"window": 7, "first_day": "2024-03-01", "last_day": "2024-03-14"}, "need --visits-per-person"),
        ({"first_day": "today", "last_day": "2024-03-01"}, "give one such as 2024-03-01"),
        ({"trips_per_person": 0}, "give 1 to 100000"),
        ({"confidence": 0.9991}, r"give 0\.5 to 0\.999"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(ConfigurationError, match=said):
        FlowSettings(**settings)


def test_a_table_of_too_many_cells_is_refused_before_anything_is_read():
    with pytest.raises(ConfigurationError, match="cells, and 4,000,000 are the most"):
        flows("nowhere", Areas.from_space(Grid.over((45, 7, 46, 8), 1.0)), 1, FlowSettings("flows"))
    assert len(Grid.over((45, 7, 46, 8), 1.0)) ** 2 > flow_tables.MOST_CELLS
