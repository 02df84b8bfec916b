"""Tests of guarantees in words: each statement follows from rows and settings."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from math import exp

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings, Schedule
from dphmm.formatting import describe_ratio_bound
from dphmm.jobs import Data, learn, region, release
from dphmm.jobs.release import guarantees as promises
from dphmm.jobs.release.guarantees import build_guarantee
from dphmm.writers.release_table import ReleaseTable

TOWN = "data/sample/geolife"
SETTINGS = ReleaseSettings("utility:1km", 0.5)


@pytest.fixture(scope="module")
def world():
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=1)
    model = learn(Data((TOWN,), exclude_users=("000", "001")), space, step_seconds=1800).model
    done = release(Data((TOWN,), users=("000", "001")), model, SETTINGS, rng=0)
    return model, done


@pytest.fixture
def skip_smoothing(monkeypatch):
    """Skip the smoothed adversary, which rejects rows that no engine released."""
    monkeypatch.setattr(promises, "compute_hindsight", lambda table, engine: None)


def change_columns(table, **columns):
    return ReleaseTable({**table.columns, **columns})


@pytest.mark.slow
def test_two_sentences_state_largest_budget_and_largest_sum(world):
    model, done = world
    guarantee = build_guarantee(done.table, SETTINGS.engine(model))
    single, total = guarantee.guarantees
    assert "at most 1.65 times as likely" in single  # e^0.5 = 1.6487, rounded up
    assert "locations within 1 km" in single
    sums = {user: float(done.table["epsilon"][done.table["user"] == user].sum()) for user in ("000", "001")}
    dearest = max(sums, key=sums.__getitem__)
    count = int((done.table["user"] == dearest).sum())
    assert f"All {count:,} released points of {dearest}" in total
    assert (
        f"at most e^{sums[dearest]:.4g} times as likely under one as under the other, which is not a meaningful limit"
        in total
    )
    few = done.table.select(np.arange(len(done.table)) < 4)
    assert (
        f"at most {np.ceil(exp(2.0) * 100) / 100:g} times as likely"
        in build_guarantee(few, SETTINGS.engine(model)).guarantees[1]
    )


def test_impossible_states_have_no_guarantee():
    """A surrogate need not be adjacent to the partners of the state it replaces."""
    where, policy = (
        np.array([[0, 0], [2, 0], [3, 0], [4, 0], [0, 3]]),
        PolicyGraph.from_edges(5, [(0, 1), (2, 3), (0, 4)]),
    )
    model = MarkovModel(np.full((5, 5), 0.2), np.array([0.25, 0, 0.25, 0.25, 0.25]))
    releaser = Releaser(model, where, policy, epsilon=1.0)
    step = releaser.prepare()
    assert (
        releaser.planner.map_to_surrogates(np.array([1]), step.constraint) == 2
    )  # adjacent to the first state by the policy, released as the third
    first, _, third, *_ = releaser.log_likelihood(step, where[2])
    assert third - first == pytest.approx(3)
    settings = ReleaseSettings("complete", 1.0)
    rows = [{"epsilon_total": 3.0, "max_epsilon_24h": 1.0, "median_adversary_error_m": 400.0, "max_posterior": 0.5}]
    for chosen in (settings, replace(settings, schedule=Schedule(window_epsilon=3.0))):
        assert "that the model considers possible" in promises.summarize_guarantee(rows, chosen, True)[0]
    assert "all but a probability of 0.01" in promises.summarize_guarantee(rows, replace(settings, delta=0.01), True)[0]


def test_open_timesteps_are_stated_separately_from_confidence():
    row = {"max_epsilon_24h": 1.0, "median_adversary_error_m": 400.0, "max_posterior": 0.5}
    hidden, opened = (
        promises.summarize_guarantee([row | {"num_unprotected": count}], SETTINGS, True)[1] for count in (0, 1234)
    )
    assert hidden.endswith("It assigns at most 50 % to a single location of any user at any timestep.")
    assert (
        opened
        == f"{hidden} At 1,234 other timesteps the most probable location is unprotected: it is released unchanged."
    )


def test_stated_factors_are_rounded_up_for_all_number_types():
    for level in (242.41, np.float64(242.41), 1.0001, np.float64(0.5), 20.00001):
        power, factor = re.search(r"≤ (e\^)?([\d,.]+)", describe_ratio_bound(level)).groups()
        stated = float(factor.replace(",", "")) if power else np.log(float(factor.replace(",", "")))
        assert level <= stated < level + 0.1


@pytest.mark.slow
def test_seeded_noise_has_no_guarantee_and_doubt_is_stated(world):
    model, done = world
    engine = SETTINGS.engine(model)
    assert all(
        sentence.startswith("There is no guarantee")
        for sentence in build_guarantee(done.table, engine, False).guarantees
    )
    doubt = [
        any(
            "operating system" in sentence
            for sentence in build_guarantee(done.table, engine, private_randomness).limitations
        )
        for private_randomness in (None, True)
    ]
    assert doubt == [True, False]


def test_figures_are_those_of_most_exposed_user(world):
    model, done = world
    rows = {row[0]: row[1:] for row in build_guarantee(done.table, SETTINGS.engine(model)).disclosure}
    worst = max(
        float(done.table["adversary_max_posterior"][done.table["user"] == user].max()) for user in ("000", "001")
    )
    (confidence,) = (row for name, row in rows.items() if name.startswith("posterior probability"))
    printed = float(confidence[0].split(" %")[0])
    assert 0 <= printed - 100 * worst < 0.1, "a largest probability is rounded up, as by 'dphmm release'"
    assert not any(name.startswith("unprotected timesteps") for name in rows)
    minimum = min(float(done.table["adversary_error_m"][done.table["user"] == user].min()) for user in ("000", "001"))
    assert rows["expected error of this adversary (minimum)"][0] in (f"{minimum:.3g} m", f"{minimum / 1000:.3g} km")
    hindsight = done.to_dict()["smoothed_min_adversary_error_m"]
    assert rows["expected error of this adversary (minimum)"][1] in (f"{hindsight:.3g} m", f"{hindsight / 1000:.3g} km")


def test_limitations_are_stated_only_if_applicable(world, skip_smoothing):
    model, done = world
    table, count = done.table, len(done.table)
    engine, marked = SETTINGS.engine(model), np.arange(count) < 3
    plain = " ".join(build_guarantee(table, engine).limitations)
    cases = {
        "3 releases of locations that the policy leaves unprotected": change_columns(table, unprotected=marked),
        "3 releases at timesteps with a single possible location": change_columns(table, singleton=marked),
        "of 3 rows for an adversary who remembers": change_columns(table, num_ignored_releases=marked.astype(int)),
        "possible from one and impossible from the other": change_columns(
            table, constrained_dp_factor=np.where(marked, np.inf, 1.0)
        ),
    }
    for sentence, rows in cases.items():
        assert sentence in " ".join(build_guarantee(rows, engine).limitations)
        assert sentence not in plain
    unprotected = build_guarantee(change_columns(table, unprotected=marked), engine).disclosure[-1]
    assert unprotected == ("unprotected timesteps, released unchanged and excluded above", f"3 of {count}", "")
    assert "timesteps outside it have no release" in " ".join(
        build_guarantee(table, replace(SETTINGS, outside="drop").engine(model)).limitations
    )
    assert (
        "floating-point rounding is not covered"
        in build_guarantee(change_columns(table, is_exact=~marked), engine).guarantees[0]
    )
    assert "rounding" not in build_guarantee(table, engine).guarantees[0]
    strict = build_guarantee(table, replace(SETTINGS, delta=0.01).engine(model)).guarantees[0]
    assert "most probable locations of the model (all but a probability of 0.01)" in strict


def test_withheld_timesteps_are_counted_and_cost_no_epsilon(world, skip_smoothing):
    model, done = world
    withheld = np.ones(len(done.table), dtype=bool)
    table = change_columns(
        done.table,
        withheld=withheld,
        epsilon=0.0 * done.table["epsilon"],
        withheld_reason=np.full(len(withheld), "target", object),
    )
    guarantee = build_guarantee(table, SETTINGS.engine(model))
    assert "at most 1 times as likely" in guarantee.guarantees[0]
    assert f"0; {len(withheld):,} timesteps were withheld" in dict(guarantee.provenance)["released points"]


def test_provenance_names_settings_model_and_its_guarantee(world):
    model, done = world
    provenance = dict(build_guarantee(done.table, SETTINGS.engine(model)).provenance)
    assert SETTINGS.content_hash[:16] in provenance["hashes of settings and model"]
    assert model.content_hash[:16] in provenance["hashes of settings and model"]
    assert provenance["guarantee for the training users"] == model.provenance["guarantee"]
    assert provenance["users"] == "2: 000, 001"


_WINDOWS = {
    0.5: "0.5 seconds",
    1.0: "second",
    90.0: "90 seconds",
    600.0: "10 minutes",
    3600.0: "hour",
    5400.0: "90 minutes",
    28800.0: "8 hours",
    86400.0: "24 hours",
    129600.0: "36 hours",
    172800.0: "2 days",
    604800.0: "7 days",
}
_RATIO = r"at most (e\^)?([\d,.]+) times as likely under one as under the other"
_WHERE = {
    "file": ("in this file", "Other files of the same user add to this, "),
    "folder": ("in this folder", "Other folders and files of the same user add to this, "),
    "session": ("of a user's session, in this run and all others,", "Releases of the same user outside this session "),
}


def _check_ratio(power, number, level):
    """Require that a stated factor is e^level, rounded up to three figures or more."""
    stated = float(number.replace(",", ""))
    bound = level * (1 - 1e-12)
    assert bound <= stated < level * 1.001 + 1e-9 if power else exp(bound) <= stated < exp(level) * 1.01 + 0.01


@pytest.mark.parametrize("epsilon", [0.0001, 0.01, 0.5, 1.0, 3.0, 7.24, 13.99, 14.0, 14.01, 20.0, 100.0, 1000.0])
def test_window_sentence_is_whole_and_true_for_every_budget_window_delta_and_scope(epsilon):
    for seconds, delta, scope, total in product(_WINDOWS, (None, 1e-6, 0.05), _WHERE, (epsilon / 2, 7 * epsilon)):
        settings = ReleaseSettings(
            "utility:1km", epsilon, delta=delta, schedule=Schedule(window_epsilon=epsilon, window_seconds=seconds)
        )
        row = {"epsilon_total": total, "max_epsilon_24h": total, "median_adversary_error_m": 4.0, "max_posterior": 0.5}
        text = promises.summarize_guarantee([row], settings, True, scope)[0]
        where, others = _WHERE[scope]
        support = (
            "that the model considers possible"
            if delta is None
            else "that lie, at every timestep, among the most probable locations of the model "
            rf"\(all but a probability of {delta:g}\)"
        )
        match = re.fullmatch(
            rf"Take any two trajectories {support} and that the policy connects at every timestep \(locations within 1 "
            rf"km\)\. The releases {where} within any {_WINDOWS[seconds]} are {_RATIO} \(ε = ([\d.,]+)\)"
            rf"(, which is not a meaningful limit)?\. Longer periods accumulate"
            rf"(: for all releases {where} the factor is at most (e\^)?([\d,.]+))?\. {others}[^.]*\.",
            text,
        )
        assert match, text
        power, number, stated, useless, longer, total_power, total_number = match.groups()
        _check_ratio(power, number, epsilon)
        assert float(stated.replace(",", "")) == epsilon
        assert bool(useless) == (epsilon > 14)
        assert bool(longer) == (total > epsilon)
        if longer:
            _check_ratio(total_power, total_number, total)
        assert not re.search(r"  |\bany 1\b|, \.|\.\.|,,|\( | \)", text)


@pytest.mark.parametrize("delta", [None, 0.05])
@pytest.mark.parametrize("epsilon", [0.0001, 1.0, 20.0, 1000.0])
def test_sentence_of_single_releases_is_whole_for_every_budget(epsilon, delta):
    row = {"epsilon_total": 40.0, "max_epsilon_24h": 40.0, "median_adversary_error_m": 4.0, "max_posterior": 0.5}
    text = promises.summarize_guarantee([row], ReleaseSettings("complete", epsilon, delta=delta), True)[0]
    support = (
        "that the model considers possible"
        if delta is None
        else r"that lie among the most probable locations of the model \(all but a probability of 0\.05\)"
    )
    covered = "" if delta is None else rf"{support.replace('lie', 'lie, at every timestep,')} and "
    match = re.fullmatch(
        rf"Take any two locations {support} and that the policy connects \(any two locations\)\. One release is at "
        r"most (e\^)?([\d,.]+) times as likely from one as from the other \(ε = ([\d.,]+)\)"
        r"(, which is not a meaningful limit)?\. "
        r"Releases accumulate without a limit\. The releases of a user within 24 hours have a total epsilon of at most "
        rf"40\. For two trajectories {covered}that the policy connects at every timestep, they are at most e\^40 times "
        r"as likely under one as under the other, which is not a meaningful limit\. Other files of the same user add "
        r"to this, [^.]*\.",
        text,
    )
    assert match, text
    _check_ratio(match[1], match[2], epsilon)


@pytest.mark.slow
def test_sentence_states_whether_later_runs_add_to_it(world, tmp_path):
    """Without a session a second run spends the budget again. With one it does not."""
    model, _ = world
    spent = {}
    for scope, session in (("file", None), ("session", tmp_path / "s.db")):
        budgets = {}  # by time and location: a session returns the stored releases
        for _ in range(2):
            settings = ReleaseSettings.for_a_day()
            done = release(Data((TOWN,), users=("000",)), model, settings, session=session)
            where, others = _WHERE[scope]
            guarantee = done.summary_sentences()[0]
            assert f"The releases {where} within any 24 hours are at most 20.1 times" in guarantee
            assert others in guarantee
            table = done.table.select(~done.table["withheld"])
            columns = (table[name].tolist() for name in ("time", "latitude", "longitude"))
            budgets |= dict(zip(zip(*columns, strict=True), table["epsilon"].tolist(), strict=True))
            last_24h = float(done.table["epsilon_24h"].max())
            assert last_24h <= 3 + 1e-9
        times = np.array([time for time, *_ in budgets], dtype="datetime64[us]")
        sums = [
            sum(
                budget
                for (time, *_), budget in budgets.items()
                if first <= np.datetime64(time) < first + np.timedelta64(24, "h")
            )
            for first in times
        ]
        spent[scope] = max(sums)
    assert spent["session"] <= 3 + 1e-9 < 3.5 < spent["file"]
