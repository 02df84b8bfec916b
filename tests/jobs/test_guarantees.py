"""What summaries say in hindsight: against all paths of three states over five steps; and when they warn."""

from __future__ import annotations

import json
from itertools import pairwise, product

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.optimize import minimize

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings
from dphmm.audit.realised import realise
from dphmm.audit.sequence import ReleasedSequence
from dphmm.cli import main
from dphmm.errors import ConfigurationError
from dphmm.jobs import realised_of_releases
from dphmm.jobs.guarantees import best_known_users, exposure_facts, warnings_of
from dphmm.jobs.stored_releases import hindsight_of
from dphmm.release.trajectory import release_trajectory
from dphmm.space import Places, Trajectory
from dphmm.writers.formats import write_releases
from dphmm.writers.summary import summarise, write_summary
from dphmm.writers.table import ReleaseTable

STOPS = Places(["a", "b", "c"], [45.0, 45.006, 45.0], [7.0, 7.006, 7.012])
MOVES = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.4, 0.5]])
FIRST = np.array([0.5, 0.3, 0.2])
SETTINGS = ReleaseSettings("complete", 0.7)
PATH = [0, 0, 1, 2, 2]


def walked(seed: int, hours: float = 1.0, engine: Releaser | None = None):
    """An engine and the table of five releases."""
    model = MarkovModel(MOVES, FIRST, states=STOPS, step_seconds=3600.0 * hours)
    engine = engine or SETTINGS.engine(model, seed)
    start = np.datetime64("2024-03-07T22:00:00", "us")
    times = start + np.arange(5) * np.timedelta64(int(3600 * hours), "s")
    track = Trajectory("ann", times, STOPS.latitude[PATH], STOPS.longitude[PATH]).resample(3600.0 * hours)
    return engine, ReleaseTable.from_releases(release_trajectory(engine, STOPS, track))


def smoothed(engine, table) -> np.ndarray:
    """``Pr(s_t | z_1..5)`` by enumeration of all 243 paths, ``(5, 3)``, with densities at full support."""
    fresh = engine.another()
    step = fresh.prepare()  # every state is possible throughout, so that one mechanism serves
    rows = [np.exp(fresh.log_likelihood(step, [x, y])) for x, y in zip(table["x_km"], table["y_km"], strict=True)]
    found = np.zeros((5, 3))
    for path in product(range(3), repeat=5):
        weight = FIRST[path[0]] * np.prod([MOVES[a, b] for a, b in pairwise(path)])
        weight *= np.prod([row[s] for row, s in zip(rows, path, strict=True)])
        found[np.arange(5), path] += weight
    return found / found.sum(axis=1, keepdims=True)


def least_distance(p: np.ndarray, points: np.ndarray) -> float:
    found = minimize(lambda q: p @ np.linalg.norm(points - q, axis=1), p @ points, method="Nelder-Mead")
    return min(found.fun, *(float(p @ np.linalg.norm(points - q, axis=1)) for q in points))


@pytest.mark.parametrize("seed", range(5))
def test_figures_in_hindsight_are_those_of_all_paths(seed):
    engine, table = walked(seed)
    known, exact = hindsight_of(table, engine), smoothed(engine, table)
    np.testing.assert_allclose(known.certainty, exact.max(axis=1), rtol=1e-9)
    least = [1000 * least_distance(p, engine.measurements.points) for p in exact]
    assert (known.error_m <= np.array(least) * (1 + 1e-6)).all()
    assert (known.error_m >= 0.98 * np.array(least) - 1e-6).all()
    (row,) = summarise(table, hindsight=known)
    assert row["adversary_certainty_most_in_hindsight"] == known.certainty.max()
    assert row["adversary_error_m_median_in_hindsight"] == np.median(known.error_m)
    assert not np.allclose(known.certainty, table["adversary_certainty"]), "the filter would be the broken twin"


def test_open_moments_are_counted_apart_from_hidden_ones():
    """Of c, which is open, the adversary is sure; that says nothing of how well a and b are hidden."""
    model = MarkovModel(MOVES, FIRST, states=STOPS, step_seconds=3600.0)
    policy = PolicyGraph.from_edges(3, [(0, 1)]).with_open([False, False, True])
    engine = Releaser(model, STOPS.points, policy, 0.7, rng=2, calibration="component")
    _, table = walked(0, engine=engine)
    known = hindsight_of(table, engine.another())
    (row,) = summarise(table, hindsight=known)
    assert row["moments_open"] == table["open"].sum() == 2
    hidden = ~table["open"]
    assert row["adversary_certainty_most"] == table["adversary_certainty"][hidden].max() < 0.9
    assert row["adversary_error_m_least"] == table["adversary_error_m"][hidden].min() > 50
    assert row["adversary_certainty_most_in_hindsight"] == known.certainty[hidden].max() < 0.9
    assert row["estimate_radius_m_median"] == np.median(table["estimate_radius_m"][hidden])
    assert table["adversary_certainty"].max() == 1.0, "the broken twin, all moments together, would be certain"
    (opened,) = summarise(table.select(~hidden))
    assert exposure_facts([opened])["adversary_certainty_most"] is None
    assert not [said for said in warnings_of([opened], "complete") if "sure" in said]
    released = np.stack([table["x_km"], table["y_km"]], axis=1)
    told = realise(engine.another(), ReleasedSequence("ann", released, table["epsilon"], [0, 1, 1, 1, 1]))
    assert told.open.tolist() == (~hidden).tolist()
    assert told.facts()["adversary_certainty_most"] == told.certainty[hidden].max()


def test_a_row_a_day_speaks_of_that_day_alone(tmp_path):
    engine, table = walked(1)
    days = summarise(table, daily=True, hindsight=hindsight_of(table, engine))
    assert [(row["day"], row["releases"]) for row in days] == [("2024-03-07", 2), ("2024-03-08", 3)]
    assert [row["epsilon_total"] for row in days] == pytest.approx([1.4, 2.1])
    assert [row["epsilon_dearest_day"] for row in days] == [1.4, 3.5], "24 hours may reach into the day before"
    write_summary(tmp_path / "days.csv", table, daily=True)
    assert (tmp_path / "days.csv").read_text().startswith("user,day,releases,")


def test_spending_forgets_what_lies_a_day_back():
    _, table = walked(1, hours=12.0)
    assert table["epsilon_last_day"].tolist() == [0.7, 1.4, 1.4, 1.4, 1.4]
    assert table["epsilon_so_far"].tolist() == [0.7, 1.4, 2.1, 2.8, 3.5]


def row(**changes):
    calm = {"user": "ann", "epsilon_dearest_day": 10.0, "adversary_certainty_most": 0.5}
    return {**calm, "estimate_radius_m_median": 1000.0, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon_dearest_day": 10.1}, ["within 24 hours epsilons of 10.1 in sum were spent on ann"]),
        ({"adversary_certainty_most": 0.51}, ["up to 51 % sure of one place of ann:"]),
        ({"adversary_certainty_most_in_hindsight": 0.7}, ["up to 70 % sure of one place of ann in hindsight"]),
        ({"estimate_radius_m_median": 999.0}, ["expected to be 999 m off (median), nearer than the 1,000 m within"]),
        ({"epsilon_dearest_day": float("nan")}, []),
        ({}, []),
    ],
)
def test_warnings_begin_beyond_their_limits_and_name_a_remedy(changes, words):
    said = warnings_of([row(**changes)], "utility:1km")
    assert len(said) == len(words)
    for text, word in zip(said, words, strict=True):
        assert word in text
        assert "dphmm calibrate" in text


def test_facts_are_of_whoever_is_known_best():
    _, table = walked(2)
    (one,) = summarise(table)
    other = {**one, "user": "bob", "adversary_error_m_median": 1.0, "adversary_certainty_most": 0.999}
    facts = exposure_facts([one, other])
    assert (facts["adversary_error_m_median"], facts["adversary_certainty_most"]) == (1.0, 0.999)
    assert facts["epsilon_within_24_hours_most"] == 3.5


def test_what_releases_told_is_read_off_their_file(tmp_path):
    engine, table = walked(3)
    write_releases(tmp_path / "r.csv", table)
    told = realised_of_releases(engine.model, tmp_path / "r.csv", "complete", "ann")
    np.testing.assert_allclose(told.certainty, table["adversary_certainty"], rtol=1e-6)  # of 7 digits
    assert told.moved.max() <= 0.7 * (1 + 1e-9)
    assert told.facts()["worst_release"] in range(1, 6)
    with pytest.raises(ConfigurationError, match="no releases of 'bob'"):
        realised_of_releases(engine.model, tmp_path / "r.csv", "complete", "bob")


def test_the_command_prints_what_releases_told_beside_the_bound(tmp_path, monkeypatch):
    engine, table = walked(3)
    monkeypatch.chdir(tmp_path)
    write_releases("r.csv", table)
    engine.model.save("m.npz")
    given = ["leak", "--releases", "r.csv", "--model", "m.npz"]
    done = CliRunner().invoke(main, [*given, "--policy", "complete"])
    assert done.exit_code == 0, done.output
    assert "really told, of two places that the policy joins: a release moved their log odds by" in done.stdout
    assert "; those of 24 hours by" in done.stdout
    told = json.loads(CliRunner().invoke(main, [*given, "--policy", "complete", "--json"]).stdout)["realised"]
    assert told["moved_most"] <= 0.7 * (1 + 1e-9)
    assert "realised" not in json.loads(CliRunner().invoke(main, [*given, "--json"]).stdout)
    refused = CliRunner().invoke(main, ["leak", "--policy", "complete", "--epsilon", "1", "--steps", "2"])
    assert refused.exit_code == 2
    assert "--policy is that of --releases" in refused.output


@pytest.mark.parametrize("hindsight", [False, True])
def test_the_few_that_stand_out_say_what_everybody_says(hindsight):
    """Taken up one by one, as a batch does, they are the first of whoever is known best by something."""
    rng = np.random.default_rng(20240307)
    keys = ["epsilon_dearest_day", "estimate_radius_m_median", "adversary_error_m_median", "adversary_error_m_least"]
    keys += ["adversary_certainty_median", "adversary_certainty_most"]
    if hindsight:
        names = ("error_m_median", "error_m_least", "certainty_median", "certainty_most")
        keys += [f"adversary_{name}_in_hindsight" for name in names]
    figures = rng.integers(1, 30, (200, len(keys))).astype(float).tolist()
    rows = [{"user": f"u{number}", **dict(zip(keys, found, strict=True))} for number, found in enumerate(figures)]
    for row in rows[::3]:
        row["epsilon_dearest_day"] = float("nan")  # not told
    few = []
    for row in rows:
        few = best_known_users([*few, row])
    assert len(few) <= 9
    assert exposure_facts(few) == exposure_facts(rows)
    assert exposure_facts(rows)["adversary_certainty_most"] == max(row["adversary_certainty_most"] for row in rows)
    assert warnings_of(few, "utility:1km") == warnings_of(rows, "utility:1km")
    assert len(warnings_of(rows, "utility:1km")) == 3
