"""Audits from Python and from the command line find the same, also where no state lies on the published lattice."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dphmm import Grid, Releaser, ReleaseSettings
from dphmm.cli import main
from dphmm.errors import ConfigurationError, DataFileError, SessionMismatchError, StateError, StochasticError
from dphmm.jobs import (
    Constraint,
    Data,
    Subject,
    audit_mechanism,
    audit_policy,
    audit_session,
    batch,
    learn,
    load_model,
    region,
    release,
    replay,
)
from dphmm.jobs.run_folder import user_file
from dphmm.model.model import MarkovModel
from dphmm.tables import write_csv
from dphmm.writers import read_releases
from tests.sizes import few_every_day

TOWN = str(Path(__file__).parents[2] / "data" / "sample" / "geolife")
ANNA = Data((TOWN,), users=("002",))
BBOX = (44.97, -30.035, 45.03, -29.97)
POLICY = "utility:1km"
SETTINGS = ReleaseSettings(policy=POLICY, epsilon=0.8)
STEP = ("--step", "1800", "--smoothing", "0.5", "--exclude-users", "002", "-o", "m.npz")
REGIONS = {
    "places": ("--places", "places.csv"),
    "cells of a third of a kilometre": ("--bbox", *map(str, BBOX), "--cell", "0.3333"),
}


def run(*words: object) -> None:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output + done.stderr


def facts(*words: object) -> dict:
    done = CliRunner().invoke(main, ["audit", *(str(word) for word in words), "--json"])
    assert done.exit_code in (0, 1), done.output + done.stderr
    found = json.loads(done.stdout)
    assert found["exposed"] is (done.exit_code == 1)
    return found


def write_places(path: Path) -> None:
    """Thirty places whose coordinates lie on no lattice, spread over the town with a fixed seed."""
    rng = np.random.default_rng(3)
    (south, west, north, east) = BBOX
    rows = zip(rng.uniform(south, north, 30).tolist(), rng.uniform(west, east, 30).tolist(), strict=True)
    lines = [f"place {i},{latitude!r},{longitude!r}" for i, (latitude, longitude) in enumerate(rows)]
    path.write_text("name,latitude,longitude\n" + "\n".join(lines) + "\n")


@pytest.fixture(scope="module", params=few_every_day(REGIONS, 1))
def town(request, tmp_path_factory) -> Path:
    """A folder with a model, a session and a file of releases of one person, all made by the command."""
    folder = tmp_path_factory.mktemp("town")
    write_places(folder / "places.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run("learn", TOWN, *REGIONS[request.param], *STEP)
        told = ("--model", "m.npz", "--policy", POLICY, "--epsilon", "0.8", "--seed", "4")
        run("release", TOWN, "--users", "002", *told, "--session", "s.session", "-o", "r.csv")
    return folder


def off_the_lattice(model: MarkovModel) -> bool:
    return bool((np.abs(model.space.points * 1000 - np.rint(model.space.points * 1000)) > 1e-3).any())


def test_a_session_is_audited_from_both_sides(town, monkeypatch):
    monkeypatch.chdir(town)
    assert off_the_lattice(load_model("m.npz"))
    told = facts("session", "s.session", "--model", "m.npz", "--true", TOWN)
    found = audit_session("s.session", "m.npz", true=ANNA)
    assert json.loads(json.dumps(found.facts())) == told
    (anna,) = told["users"]
    assert (anna["user"], anna["randomness_was_private"], told["private"]) == ("002", False, True)
    assert anna["releases"] > 20
    assert anna["epsilon"] == pytest.approx(0.8 * anna["releases"])
    bits = [anna["knowledge"][key]["entropy_bits_mean"] for key in ("no_releases", "at_each_release", "in_hindsight")]
    assert bits[0] > bits[1] > bits[2] > 0
    from_table = audit_session("r.csv", "m.npz", POLICY).audits[0]
    assert from_table.hindsight.entropy == pytest.approx(found.audits[0].hindsight.entropy, rel=1e-9)
    assert audit_session("r.csv", "m.npz", SETTINGS).audits[0].epsilon == from_table.epsilon


def test_the_replayed_engine_makes_the_releases_again(town):
    (one,) = replay(town / "s.session", town / "m.npz")
    assert one.engine.settings == SETTINGS
    assert one.private is False
    again = release(ANNA, town / "m.npz", one.engine.settings, rng=4).table
    assert np.stack([again["x_km"], again["y_km"]], axis=1).tolist() == one.sequence.released.tolist()
    assert (again["time"].astype("datetime64[s]").astype(np.int64) // 1800).tolist() == list(one.slots)


def test_a_mechanism_is_audited_from_both_sides(town, monkeypatch):
    monkeypatch.chdir(town)
    drawn = ("--epsilon", "0.8", "--samples", "4000", "--pairs", "3", "--seed", "1")
    told = facts("mechanism", "--model", "m.npz", "--policy", POLICY, *drawn)
    subject = Subject.from_model("m.npz", POLICY)
    found = audit_mechanism(subject, epsilon=0.8, samples=4000, pairs=3, rng=1)
    assert found.facts() == told
    assert not found.is_exposed
    assert 0.3 < told["largest_lower_bound"] < 0.8


def test_a_mechanism_with_half_its_noise_is_caught(town, monkeypatch):
    """With 20 000 draws of each state and seed 1; the bound is wrong with probability 0.01 at most."""
    sound = Releaser.noise
    monkeypatch.setattr(Releaser, "noise", lambda engine, plan, epsilon: sound(engine, plan, 2 * epsilon))
    found = audit_mechanism(Subject.from_model(town / "m.npz", POLICY), epsilon=0.8, samples=20_000, pairs=1, rng=1)
    assert found.is_exposed


def test_a_policy_is_audited_from_both_sides(town, monkeypatch):
    monkeypatch.chdir(town)
    subject = Subject.from_model("m.npz", POLICY)
    points = subject.measurements.points
    far = int(np.linalg.norm(points - points[0], axis=1).argmax())
    near = int(np.argsort(np.linalg.norm(points - points[0], axis=1))[1])
    names = [subject.names[state] for state in (0, near, far)]
    asked = ("policy", "--model", "m.npz", "--policy", POLICY, "--epsilon", "0.5")
    told = facts(*asked, "--possible", ",".join(names), "--steps", "3")
    constraints = [subject.possible(names), *subject.along(3)]
    found = audit_policy(subject, constraints, epsilon=0.5)
    assert found.facts() == told
    assert found.is_exposed
    assert told["constraints"][0]["mechanisms"][0]["exposed"][-1:] == [subject.names[far]]
    assert {repair["least_protection"] for repair in told["constraints"][0]["repairs"]} <= {2, 3}


@pytest.mark.usefixtures("blank")
def test_a_report_of_each_is_one_page(town, monkeypatch):
    pytest.importorskip("matplotlib")
    from dphmm.plots.audit_report import audit_sections

    monkeypatch.chdir(town)
    subject = Subject.from_model("m.npz", POLICY)
    for found, pictures in (
        (audit_policy(subject), 3),
        (audit_session("s.session", "m.npz"), 3),
        (audit_mechanism(subject, samples=400, pairs=1, rng=1), 1),
    ):
        assert sum(len(section.pictures) for section in audit_sections(found)) == pictures


def test_other_settings_than_a_file_was_made_with_are_refused(town):
    model = town / "m.npz"
    for settings, words in (
        ("utility:2km", "was released with settings"),
        (ReleaseSettings(POLICY, 0.7), "was released with settings"),
        (ReleaseSettings(POLICY, 0.8, delta=0.1), "was released with settings"),
        (None, "no policy is given"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            list(replay(town / "r.csv", model, settings))
    for settings, words in (
        ("utility:2km", "began with policy"),
        (ReleaseSettings(POLICY, 0.7), "began with epsilon 0.8, not 0.7"),
        (ReleaseSettings(POLICY, 0.8, objective="volume"), "began with objective error, not volume"),
    ):
        with pytest.raises(SessionMismatchError, match=words):
            list(replay(town / "s.session", model, settings))
    learned = load_model(model)
    other = MarkovModel(learned.transition, np.full(learned.size, 1 / learned.size), learned.states, 1800.0)
    with pytest.raises(ConfigurationError, match="was released with model"):
        list(replay(town / "r.csv", other, SETTINGS))
    with pytest.raises(SessionMismatchError, match="began with model"):
        list(replay(town / "s.session", other))


def test_releases_of_an_engine_made_from_a_graph_are_audited_by_the_text(tmp_path):
    from dphmm import parse_policy, release_trajectory
    from dphmm.writers.formats import write_releases
    from dphmm.writers.table import ReleaseTable

    space = region(bbox=BBOX, cell=0.5)
    model = learn(TOWN, space, step_seconds=1800, smoothing=0.5).model
    engine = Releaser(model, space.points, parse_policy(POLICY, space), 0.8, "k-norm", rng=1)
    track = ANNA.read().trajectories[0].resample(1800.0)
    write_releases(tmp_path / "r.csv", ReleaseTable.from_releases(release_trajectory(engine, space, track)))
    (one,) = replay(tmp_path / "r.csv", model, POLICY)
    assert len(one.sequence) > 20
    with pytest.raises(ConfigurationError, match="released with settings"):
        list(replay(tmp_path / "r.csv", model, "complete"))


def test_the_other_adversary_is_a_table_or_an_array(town, tmp_path):
    model = load_model(town / "m.npz")
    prior = np.zeros(model.size)
    prior[[3, 5]] = 0.25, 0.75
    names = Subject.from_model(model, POLICY).names
    (tmp_path / "prior.csv").write_text(f"state,probability\n{names[3]},0.25\n{names[5]},0.75\n")
    by_table = audit_session(town / "s.session", model, prior=tmp_path / "prior.csv")
    by_array = audit_session(town / "s.session", model, prior=prior)
    assert by_table.facts() == by_array.facts()
    assert by_table.facts() != audit_session(town / "s.session", model).facts()
    (tmp_path / "half.csv").write_text(f"state,probability\n{names[3]},0.5\n")
    with pytest.raises(DataFileError, match="sums to 0\\.5"):
        audit_session(town / "s.session", model, prior=tmp_path / "half.csv")
    for wrong, words in (([0.5] * model.size, "sums to"), ([1.0], f"{model.size} states")):
        with pytest.raises(StochasticError, match=words):
            audit_policy(Subject.from_model(model, POLICY), prior=wrong)


def test_a_constraint_is_never_empty_and_names_states_once(town):
    subject = Subject.from_model(town / "m.npz", POLICY)
    first = subject.names[0]
    for names, words in (((), "no possible state"), (("nowhere",), "does not exist"), ((first, first), "named twice")):
        with pytest.raises(StateError, match=words):
            subject.possible(names)
    assert subject.possible((first,)).states.tolist() == [True] + [False] * (len(subject.names) - 1)
    everything = Constraint("all", np.ones(len(subject.names), dtype=bool))
    assert math.isclose(
        audit_policy(subject, [everything]).audits[0].hull.volume, audit_policy(subject).audits[0].hull.volume
    )


def test_a_batch_that_forgets_is_audited_for_an_adversary_who_does_not(tmp_path):
    """The releaser began anew after the gap; the adversary's belief is that of dense matrices over all of the time."""
    grid = Grid.over((45.0, -30.05, 45.03, -30.0), 0.5)
    near = np.linalg.norm(grid.points[:, None] - grid.points[None], axis=2) < 0.6
    matrix, first = near / near.sum(axis=1, keepdims=True), np.full(grid.size, 1 / grid.size)
    MarkovModel(matrix, first, grid, 60.0).save(tmp_path / "m.npz")
    slots, states = np.array([1, 2, 3, 20, 21]), [0, 0, 1, 2, 2]
    places = grid.latlon(states)
    times = np.datetime64("2024-03-07T09:00", "us") + slots * np.timedelta64(60, "s")
    write_csv(
        tmp_path / "anna.csv",
        ["user", "time", "latitude", "longitude"],
        [["anna", f"{time}Z", *place] for time, place in zip(times, places.tolist(), strict=True)],
    )
    settings = ReleaseSettings("utility:600m", 2.0, "k-norm", delta=0.3)
    done = batch(
        tmp_path / "anna.csv",
        tmp_path / "all",
        tmp_path / "m.npz",
        settings,
        kind="csv",
        session_gap=10,
        workers=1,
        seed=4,
    )
    assert done.facts()["releases_that_forget_earlier_ones"] == 2
    assert done.facts()["users_with_such_releases"] == 1
    file = user_file(tmp_path / "all", "anna", "csv")
    table = read_releases(file)
    assert table["forgotten_releases"].tolist() == [0, 0, 0, 3, 3]

    engine, belief, likelihoods = settings.engine(load_model(tmp_path / "m.npz")), first, []
    for t, z in enumerate(np.stack([table["x_km"], table["y_km"]], axis=1)):
        if t == 3:
            engine.restart()
        step = engine.prepare(None, 1 if t in (0, 3) else int(slots[t] - slots[t - 1]))
        likelihoods.append(engine.log_likelihood(step, z))
        engine.resume(step.prior.update(likelihoods[-1]), t + 1)
        belief = belief if t == 0 else belief @ np.linalg.matrix_power(matrix, int(slots[t] - slots[t - 1]))
        belief = belief * np.exp(likelihoods[-1])
        belief /= belief.sum()
    (audit,) = audit_session(file, tmp_path / "m.npz", settings).audits
    np.testing.assert_allclose(audit.filtering.filtered[-1].probabilities, belief, rtol=1e-9)
    assert not np.allclose(engine.belief.probabilities, belief, rtol=1e-3), "one who forgot believes something else"
