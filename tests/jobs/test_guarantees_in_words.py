"""What is said of releases in plain words is what their rows and settings say, and nothing that they do not."""

from __future__ import annotations

import re
from dataclasses import replace
from math import exp

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings, Schedule
from dphmm.facts import factor_in_words
from dphmm.jobs import Data, learn, region, release
from dphmm.jobs import guarantees as promises
from dphmm.jobs.guarantees import promise_of
from dphmm.writers.table import ReleaseTable

TOWN = "data/sample/geolife"
SETTINGS = ReleaseSettings("utility:1km", 0.5)


@pytest.fixture(scope="module")
def world():
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=1)
    model = learn(Data((TOWN,), exclude_users=("000", "001")), space, step_seconds=1800).model
    done = release(Data((TOWN,), users=("000", "001")), model, SETTINGS, rng=0)
    return model, done


@pytest.fixture
def unchecked(monkeypatch):
    """Rows that were changed are no releases of any engine, and what they tell in hindsight is refused."""
    monkeypatch.setattr(promises, "hindsight_of", lambda table, engine: None)


def changed(table, **columns):
    return ReleaseTable({**table.columns, **columns})


def test_the_two_sentences_are_the_greatest_budget_and_the_greatest_sum(world):
    model, done = world
    found = promise_of(done.table, SETTINGS.engine(model))
    one, every = found.promised
    assert "at most 1.65 times as likely" in one  # e^0.5 = 1.6487, rounded up
    assert "places at most 1 km apart" in one
    sums = {user: float(done.table["epsilon"][done.table["user"] == user].sum()) for user in ("000", "001")}
    dearest = max(sums, key=sums.__getitem__)
    count = int((done.table["user"] == dearest).sum())
    assert f"all {count:,} released points of {dearest}" in every
    assert f"at most e^{sums[dearest]:.4g} times as likely, which limits nothing" in every
    few = done.table.select(np.arange(len(done.table)) < 4)
    assert (
        f"at most {np.ceil(exp(2.0) * 100) / 100:g} times as likely"
        in promise_of(few, SETTINGS.engine(model)).promised[1]
    )


def test_places_that_the_model_holds_impossible_are_promised_nothing():
    """A place that is not possible is released as the nearest possible one, to which another need not be joined."""
    where, policy = (
        np.array([[0, 0], [2, 0], [3, 0], [4, 0], [0, 3]]),
        PolicyGraph.from_edges(5, [(0, 1), (2, 3), (0, 4)]),
    )
    model = MarkovModel(np.full((5, 5), 0.2), np.array([0.25, 0, 0.25, 0.25, 0.25]))
    releaser = Releaser(model, where, policy, epsilon=1.0)
    step = releaser.prepare()
    assert releaser.ready(step, 1) == 2  # joined to the first by the policy, and released as the third
    first, _, third, *_ = releaser.log_likelihood(step, where[2])
    assert third - first == pytest.approx(3)
    settings = ReleaseSettings("complete", 1.0)
    rows = [{"epsilon_dearest_day": 1.0, "adversary_error_m_median": 400.0, "adversary_certainty_most": 0.5}]
    for chosen in (settings, replace(settings, schedule=Schedule(window_epsilon=3.0))):
        assert "if the model holds both possible" in promises.verdict_of(rows, chosen, True)[0]
    assert "all but 0.01" in promises.verdict_of(rows, replace(settings, delta=0.01), True)[0]


def test_moments_at_open_places_are_said_beside_how_sure_a_reader_is_of_the_others():
    row = {"epsilon_dearest_day": 1.0, "adversary_error_m_median": 400.0, "adversary_certainty_most": 0.5}
    hidden, opened = (promises.verdict_of([row | {"moments_open": count}], SETTINGS, True)[1] for count in (0, 1234))
    assert hidden.endswith("50 % sure of one place at the surest moment.")
    assert opened == f"{hidden} At 1,234 other moments the likeliest place is open: it is released as it is."


def test_what_something_is_said_to_be_at_most_is_rounded_up_whatever_number_it_is():
    for level in (242.41, np.float64(242.41), 1.0001, np.float64(0.5), 20.00001):
        power, factor = re.search(r"at most (e\^)?([\d,.]+) times", factor_in_words(level)).groups()
        stated = float(factor.replace(",", "")) if power else np.log(float(factor.replace(",", "")))
        assert level <= stated < level + 0.1


def test_nothing_is_promised_of_noise_from_a_seed_and_doubt_is_said(world):
    model, done = world
    engine = SETTINGS.engine(model)
    assert all(said.startswith("Nothing is promised") for said in promise_of(done.table, engine, False).promised)
    doubt = [
        any("operating system" in said for said in promise_of(done.table, engine, known).not_promised)
        for known in (None, True)
    ]
    assert doubt == [True, False]


def test_figures_are_those_of_the_person_who_is_known_best(world):
    model, done = world
    rows = {row[0]: row[1:] for row in promise_of(done.table, SETTINGS.engine(model)).disclosed}
    worst = max(float(done.table["adversary_certainty"][done.table["user"] == user].max()) for user in ("000", "001"))
    (sure,) = (row for name, row in rows.items() if "how sure they are" in name)
    assert sure[0].startswith(f"{100 * worst:.3g} %")
    least = min(float(done.table["adversary_error_m"][done.table["user"] == user].min()) for user in ("000", "001"))
    assert rows["the same at the moment that is known best"][0] in (f"{least:.3g} m", f"{least / 1000:.3g} km")
    hindsight = done.facts()["adversary_error_m_least_in_hindsight"]
    assert rows["the same at the moment that is known best"][1] in (f"{hindsight:.3g} m", f"{hindsight / 1000:.3g} km")


def test_what_rows_and_settings_take_away_is_said_and_only_then(world, unchecked):
    model, done = world
    table, count = done.table, len(done.table)
    engine, marked = SETTINGS.engine(model), np.arange(count) < 3
    plain = " ".join(promise_of(table, engine).not_promised)
    cases = {
        "3 releases of places that the policy leaves open": changed(table, open=marked),
        "3 releases of moments at which only one place was possible": changed(table, already_known=marked),
        "3 rows against an adversary who remembers": changed(table, forgotten_releases=marked.astype(int)),
        "without limit: it can rule a place out": changed(table, constrained_factor=np.where(marked, np.inf, 1.0)),
    }
    for said, rows in cases.items():
        assert said in " ".join(promise_of(rows, engine).not_promised)
        assert said not in plain
    assert "such moments have no release" in " ".join(
        promise_of(table, replace(SETTINGS, outside="omit").engine(model)).not_promised
    )
    assert "rounding of decimal numbers" in promise_of(changed(table, exact=~marked), engine).promised[0]
    assert "rounding" not in promise_of(table, engine).promised[0]
    strict = promise_of(table, replace(SETTINGS, delta=0.01).engine(model)).promised[0]
    assert "likeliest places of all but 0.01" in strict


def test_moments_without_a_draw_are_counted_and_cost_nothing(world, unchecked):
    model, done = world
    gone = np.ones(len(done.table), dtype=bool)
    table = changed(
        done.table,
        withheld=gone,
        epsilon=0.0 * done.table["epsilon"],
        withheld_for=np.full(len(gone), "target", object),
    )
    found = promise_of(table, SETTINGS.engine(model))
    assert "at most 1 times as likely" in found.promised[0]
    assert f"0; {len(gone):,} moments were withheld" in dict(found.made)["released points"]


def test_how_it_was_made_names_settings_and_model_and_what_the_model_promises(world):
    model, done = world
    made = dict(promise_of(done.table, SETTINGS.engine(model)).made)
    assert SETTINGS.content_hash[:16] in made["settings, model"]
    assert model.content_hash[:16] in made["settings, model"]
    assert made["what the model promises to those it was learned from"] == model.learned["promise"]
    assert made["people"] == "2: 000, 001"
