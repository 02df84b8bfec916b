"""Certificates of what was released before: files, batches, sessions; all verified by the script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dphmm import Limits, ReleaseSettings, Schedule, Session
from dphmm.errors import ConfigurationError, DataFileError, OutputError
from dphmm.events import Cap
from dphmm.jobs import Data, batch, certify, export_sessions, release
from tests.certificate import capped
from tests.certificate.certificates import refusal, town, verifier

SETTINGS = ReleaseSettings("utility:1km", 1)
SLOT = 5_700_000


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def people(tmp_path_factory) -> tuple[Path, Path]:
    """The model of a town and the tracks of two people in it, with a gap of hours."""
    folder = tmp_path_factory.mktemp("people")
    model = town()
    model.save(folder / "model.npz")
    places = model.space.latlon()
    rows = ["user,time,latitude,longitude"]
    for user, path in (("ann", [0, 1, 2, 7, 7, 8]), ("bob", [5, 5, 6, 6, 11, 11])):
        for number, state in enumerate(path):
            minutes = 5 * number + 600 * (number > 3)
            latitude, longitude = places[state]
            rows.append(f"{user},2024-03-07T{8 + minutes // 60:02d}:{minutes % 60:02d}:00Z,{latitude},{longitude}")
    (folder / "people.csv").write_text("\n".join(rows) + "\n")
    return folder / "model.npz", folder / "people.csv"


def test_a_release_certifies_itself_and_is_certified_alike_afterwards(people, tmp_path):
    model, data = people
    release(data, model, SETTINGS, tmp_path / "r.csv", certificate=tmp_path / "live.jsonl", rng=1, allow_own_model=True)
    found = certify(tmp_path / "r.csv", model, tmp_path / "later.jsonl", "utility:1km")
    assert (found.people, found.releases) == (2, 12)
    assert (tmp_path / "live.jsonl").read_text() == (tmp_path / "later.jsonl").read_text()
    rows = verifier().read_rows(str(tmp_path / "r.csv"))
    assert refusal(lines_of(tmp_path / "live.jsonl"), rows) is None
    release(data, model, SETTINGS, tmp_path / "r.geojson", rng=1, allow_own_model=True)
    assert refusal(lines_of(tmp_path / "live.jsonl"), verifier().read_rows(str(tmp_path / "r.geojson"))) is None
    release(data, model, SETTINGS, tmp_path / "r.gpkg", rng=1, allow_own_model=True)
    assert refusal(lines_of(tmp_path / "live.jsonl"), verifier().read_rows(str(tmp_path / "r.gpkg"))) is None
    rows["ann"][0]["x_km"] = "0.25"
    assert "x_km" in (refusal(lines_of(tmp_path / "live.jsonl"), rows) or "")
    with pytest.raises(ConfigurationError, match="certify"):
        release(
            data, model, SETTINGS, session=tmp_path / "s.db", certificate=tmp_path / "c.jsonl", allow_own_model=True
        )
    with pytest.raises(ConfigurationError, match="give --policy"):
        certify(tmp_path / "r.csv", model, tmp_path / "c.jsonl")
    assert not (tmp_path / "c.jsonl").exists()


def test_releases_that_do_not_follow_are_not_certified(people, tmp_path):
    model, data = people
    release(data, model, SETTINGS, tmp_path / "r.csv", rng=1, allow_own_model=True)
    with pytest.raises(ConfigurationError, match="was released with settings"):
        certify(tmp_path / "r.csv", model, tmp_path / "c.jsonl", "utility:2km")
    text = (tmp_path / "r.csv").read_text().splitlines()
    off = text[1].split(",")
    off[6] = "0.00025"  # no place of the lattice
    (tmp_path / "off.csv").write_text("\n".join([text[0], ",".join(off), *text[2:]]) + "\n")
    with pytest.raises(DataFileError, match="off the lattice"):
        certify(tmp_path / "off.csv", model, tmp_path / "c.jsonl", "utility:1km")


def capped_settings(*texts: str) -> ReleaseSettings:
    return ReleaseSettings("utility:1km", 8, caps=tuple(Cap(text, 0.6) for text in texts))


def test_caps_are_certified_at_once_and_afterwards(people, tmp_path):
    model, data = people
    settings = capped_settings("state:7 between 0 and 3")
    how = {"rng": 1, "allow_own_model": True}
    release(data, model, settings, tmp_path / "r.csv", certificate=tmp_path / "live.jsonl", **how)
    certify(tmp_path / "r.csv", model, tmp_path / "later.jsonl", settings)
    assert (tmp_path / "live.jsonl").read_text() == (tmp_path / "later.jsonl").read_text()
    lines = lines_of(tmp_path / "live.jsonl")
    assert capped.refusal(lines) is None
    assert capped.verify(lines)["capped"] == {"ann", "bob"}
    assert refusal(lines, verifier().read_rows(str(tmp_path / "r.csv"))) is None


def test_a_batch_is_certified_that_passes_over_an_event_of_before(people, tmp_path):
    """One that was over before anybody's first release is passed over, and its text says that it was."""
    model, data = people
    settings = capped_settings("state:7 on 2024-03-06", "state:7 between 0 and 3")
    how = {"kind": "csv", "seed": 3, "allow_own_model": True}
    batch(Data((str(data),)), tmp_path / "b", model, settings, **how, certificate=tmp_path / "proof.jsonl")
    lines = lines_of(tmp_path / "proof.jsonl")
    (first, *_) = [step for step in lines if "events" in step]
    assert [one["event"] is None for one in first["events"]["caps"]] == [True, False]
    report = capped.verify(lines)
    assert (report["not"], report["checked"] > 0) == (set(), True)
    for step in lines:
        if "events" in step:
            step["events"]["caps"].reverse()
    assert capped.refusal(lines) is not None


def test_caps_of_a_session_are_certified(people, tmp_path):
    model, _ = people
    settings = capped_settings("state:7 between 0 and 3")
    for states in ([0, 1], [2, 7]):  # it is closed and opened again
        with Session.open(tmp_path / "s.db", "ann", settings.engine(town())) as one:
            for number, state in enumerate(states):
                one.release(state, SLOT + number + 2 * (state > 1))
    certify(tmp_path / "s.db", model, tmp_path / "proof.jsonl")
    lines = lines_of(tmp_path / "proof.jsonl")
    assert (capped.refusal(lines), refusal(lines)) == (None, None)
    assert capped.verify(lines)["releases"] == 4


def test_a_batch_whose_sessions_end_at_gaps_is_certified(people, tmp_path):
    model, data = people
    batch(Data((str(data),)), tmp_path / "b", model, SETTINGS, session_gap=50, kind="csv", seed=3, allow_own_model=True)
    found = certify(tmp_path / "b", model, tmp_path / "proof.jsonl")
    assert (found.people, found.releases) == (2, 12)
    lines = lines_of(tmp_path / "proof.jsonl")
    assert sum("begin" in line for line in lines) == 4, "each person has two sessions"
    rows: dict = {}
    for file in sorted((tmp_path / "b").rglob("*.csv")):
        if "latitude" in file.read_text().splitlines()[0]:
            rows |= verifier().read_rows(str(file))
    assert refusal(lines, rows) is None
    assert {row["forgotten_releases"] for row in rows["ann"]} == {"0", "4"}


def test_a_batch_writes_the_same_certificate_at_once(people, tmp_path):
    model, data = people
    how = {"kind": "csv", "seed": 3, "allow_own_model": True}
    batch(Data((str(data),)), tmp_path / "b", model, SETTINGS, **how, certificate=tmp_path / "proof.jsonl")
    certify(tmp_path / "b", model, tmp_path / "later.jsonl")
    assert (tmp_path / "proof.jsonl").read_text() == (tmp_path / "later.jsonl").read_text()
    with pytest.raises(OutputError):
        batch(Data((str(data),)), tmp_path / "c", model, SETTINGS, certificate=tmp_path / "proof.jsonl")
    real = ReleaseSettings("utility:1km", 1, mechanism="k-norm")
    with pytest.raises(ConfigurationError, match="draws real numbers"):
        batch(Data((str(data),)), tmp_path / "c", model, real, certificate=tmp_path / "c.jsonl")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("schedule", [None, Schedule(target_error=0.7)])
def test_sessions_are_certified_with_their_limits(people, tmp_path, schedule):
    model, _ = people
    settings = ReleaseSettings("utility:1km", 1, schedule=schedule)
    with Session.open(
        tmp_path / "s.db", "ann", settings.engine(town()), Limits(window_epsilon=3, window_steps=5)
    ) as one:
        for number, state in enumerate([0, 1, 2, 7]):
            one.release(state, SLOT + 3 * number)
    certify(tmp_path / "s.db", model, tmp_path / "proof.jsonl")
    lines = lines_of(tmp_path / "proof.jsonl")
    export_sessions(tmp_path / "s.db", tmp_path / "rows.csv", model=model)
    assert refusal(lines, verifier().read_rows(str(tmp_path / "rows.csv"))) is None
    begin = next(line for line in lines if "begin" in line)
    begin["limits"]["window_epsilon"] = "1/2"
    assert "the limit of a window is passed" in (refusal(lines) or "")


def test_what_cannot_be_certified_yet_is_refused(people, tmp_path):
    model, _ = people
    engine = SETTINGS.engine(town())
    other = engine.beside(town().space.points)
    with Session.open(tmp_path / "two.db", "ann", {"main": engine, "other": other}) as one:
        one.release(0, SLOT)
    with pytest.raises(ConfigurationError, match="several queries"):
        certify(tmp_path / "two.db", model, tmp_path / "proof.jsonl")


def test_people_who_are_not_in_a_file_and_times_off_the_clock_are_refused(people, tmp_path):
    model, data = people
    release(data, model, SETTINGS, tmp_path / "r.csv", rng=1, allow_own_model=True)
    with pytest.raises(ConfigurationError, match="carl"):
        certify(tmp_path / "r.csv", model, tmp_path / "proof.jsonl", "utility:1km", users=["ann", "carl"])
    text = (tmp_path / "r.csv").read_text()
    (tmp_path / "r.csv").write_text(text.replace("T08:05:00", "T08:05:01", 1))
    with pytest.raises(DataFileError, match="user ann: a time is not on the model's clock"):
        certify(tmp_path / "r.csv", model, tmp_path / "proof.jsonl", "utility:1km")
    assert not (tmp_path / "proof.jsonl").exists()


def test_a_session_that_was_agreed_on_anew_goes_on_in_its_certificate(people, tmp_path):
    model, _ = people
    slots = iter(range(SLOT, SLOT + 99, 2))
    for policy in ("utility:1km", "utility:500m", "utility:2km"):
        engine = ReleaseSettings(policy, 1, schedule=Schedule(window_epsilon=5)).engine(town())
        with Session.open(tmp_path / "anew.db", "ann", engine, Limits(epsilon=20), anew="") as one:
            for state in (0, 1, 2):
                one.release(state, next(slots))
    found = certify(tmp_path / "anew.db", model, tmp_path / "proof.jsonl")
    assert found.releases == 9
    lines = lines_of(tmp_path / "proof.jsonl")
    export_sessions(tmp_path / "anew.db", tmp_path / "rows.csv", model=model)
    rows = verifier().read_rows(str(tmp_path / "rows.csv"))
    assert refusal(lines, rows) is None
    assert [line.get("goes_on") for line in lines if "begin" in line] == [None, True, True]
    del [line for line in lines if "begin" in line][1]["goes_on"]
    assert refusal(lines, rows) is not None
