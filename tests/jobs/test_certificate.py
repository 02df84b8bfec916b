"""Tests of certificates for files, batches and sessions, verified by the script."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

from dphmm import Limits, ReleaseSettings, Schedule, Session
from dphmm.errors import ConfigurationError, DataFileError, OutputError
from dphmm.events import Cap
from dphmm.jobs import Data, batch, certify, export_sessions, release
from dphmm.jobs.release.stored import UserFile
from dphmm.release import SessionStore
from tests.certificate import capped
from tests.certificate.certificates import build_town, find_refusal, load_verifier

SETTINGS = ReleaseSettings("utility:1km", 1)
SLOT = 5_700_000


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def model_and_data(tmp_path_factory) -> tuple[Path, Path]:
    """Return a town's model and the tracks of two users, with a gap of hours."""
    folder = tmp_path_factory.mktemp("model_and_data")
    model = build_town()
    model.save(folder / "model.npz")
    places = model.space.latlon()
    rows = ["user,time,latitude,longitude"]
    for user, path in (("ann", [0, 1, 2, 7, 7, 8]), ("bob", [5, 5, 6, 6, 11, 11])):
        for number, state in enumerate(path):
            minutes = 5 * number + 600 * (number > 3)
            latitude, longitude = places[state]
            rows.append(f"{user},2024-03-07T{8 + minutes // 60:02d}:{minutes % 60:02d}:00Z,{latitude},{longitude}")
    (folder / "users.csv").write_text("\n".join(rows) + "\n")
    return folder / "model.npz", folder / "users.csv"


def run_verifier(folder: Path, model: Path) -> str:
    """Return the part that the verifier states as not verified, after it accepted the rows."""
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output):
        patch.setattr(load_verifier(), "limit", lambda _: None)
        code = load_verifier().main([str(folder / "proof.jsonl"), str(folder / "rows.csv"), "--model", str(model)])
    assert code == 0, output.getvalue()
    return output.getvalue().split("NOT VERIFIED")[1]


@pytest.mark.slow
def test_release_and_certify_write_equal_certificates(model_and_data, tmp_path):
    model, data = model_and_data
    release(
        data, model, SETTINGS, tmp_path / "r.csv", certificate=tmp_path / "live.jsonl", rng=1, allow_training_users=True
    )
    certificate = certify(tmp_path / "r.csv", model, tmp_path / "later.jsonl", "utility:1km")
    assert (certificate.num_users, certificate.num_timesteps) == (2, 12)
    assert (tmp_path / "live.jsonl").read_text() == (tmp_path / "later.jsonl").read_text()
    rows = load_verifier().read_rows(str(tmp_path / "r.csv"))
    assert find_refusal(read_lines(tmp_path / "live.jsonl"), rows) is None
    release(data, model, SETTINGS, tmp_path / "r.geojson", rng=1, allow_training_users=True)
    assert (
        find_refusal(read_lines(tmp_path / "live.jsonl"), load_verifier().read_rows(str(tmp_path / "r.geojson")))
        is None
    )
    release(data, model, SETTINGS, tmp_path / "r.gpkg", rng=1, allow_training_users=True)
    assert (
        find_refusal(read_lines(tmp_path / "live.jsonl"), load_verifier().read_rows(str(tmp_path / "r.gpkg"))) is None
    )
    rows["ann"][0]["x_km"] = "0.25"
    assert "x_km" in (find_refusal(read_lines(tmp_path / "live.jsonl"), rows) or "")
    with pytest.raises(ConfigurationError, match="certify"):
        release(
            data,
            model,
            SETTINGS,
            session=tmp_path / "s.db",
            certificate=tmp_path / "c.jsonl",
            allow_training_users=True,
        )
    certify(tmp_path / "r.csv", model, tmp_path / "found.jsonl")
    assert (tmp_path / "found.jsonl").read_text() == (tmp_path / "later.jsonl").read_text()
    (tmp_path / "other").mkdir()
    release(data, model, replace(SETTINGS, delta=0.1), tmp_path / "other" / "r.csv", rng=1, allow_training_users=True)
    with pytest.raises(ConfigurationError, match="--policy"):
        certify(tmp_path / "other" / "r.csv", model, tmp_path / "c.jsonl")
    assert not (tmp_path / "c.jsonl").exists()


def test_inconsistent_releases_are_not_certified(model_and_data, tmp_path):
    model, data = model_and_data
    release(data, model, SETTINGS, tmp_path / "r.csv", rng=1, allow_training_users=True)
    with pytest.raises(ConfigurationError, match="settings"):
        certify(tmp_path / "r.csv", model, tmp_path / "c.jsonl", "utility:2km")
    text = (tmp_path / "r.csv").read_text().splitlines()
    off = text[1].split(",")
    off[6] = "0.00025"  # not a point of the lattice
    (tmp_path / "off.csv").write_text("\n".join([text[0], ",".join(off), *text[2:]]) + "\n")
    with pytest.raises(DataFileError, match="must lie on the lattice"):
        certify(tmp_path / "off.csv", model, tmp_path / "c.jsonl", "utility:1km")
    (tmp_path / "none.csv").write_text(f"{text[0]}\n")
    with pytest.raises(ConfigurationError, match="contains no release to certify"):
        certify(tmp_path / "none.csv", model, tmp_path / "c.jsonl", "utility:1km")
    assert not (tmp_path / "c.jsonl").exists()


def make_capped_settings(*texts: str) -> ReleaseSettings:
    return ReleaseSettings("utility:1km", 8, caps=tuple(Cap(text, 0.6) for text in texts))


@pytest.mark.slow
def test_caps_are_certified_during_release_and_afterwards(model_and_data, tmp_path):
    model, data = model_and_data
    settings = make_capped_settings("state:7 between 0 and 3")
    how = {"rng": 1, "allow_training_users": True}
    release(data, model, settings, tmp_path / "r.csv", certificate=tmp_path / "live.jsonl", **how)
    certify(tmp_path / "r.csv", model, tmp_path / "later.jsonl", settings)
    assert (tmp_path / "live.jsonl").read_text() == (tmp_path / "later.jsonl").read_text()
    lines = read_lines(tmp_path / "live.jsonl")
    assert capped.find_refusal(lines) is None
    assert capped.verify(lines)["capped"] == {"ann", "bob"}
    assert find_refusal(lines, load_verifier().read_rows(str(tmp_path / "r.csv"))) is None


def test_batch_is_certified_one_user_after_another(model_and_data, tmp_path, monkeypatch):
    """The releases of all users need not fit into memory."""
    model, data = model_and_data
    settings = ReleaseSettings(policy="utility:1km", epsilon=1.0)
    batch(Data((str(data),)), tmp_path / "b", model, settings, kind="csv", workers=1)
    events = []
    read = UserFile.read
    monkeypatch.setattr(UserFile, "read", lambda file: events.append("read") or read(file))

    def watch_items(items, *_):
        for item in items:
            events.append("yielded")
            yield item

    summary = certify(tmp_path / "b", model, tmp_path / "proof.jsonl", watch=watch_items)
    assert summary.num_users > 1
    assert events == ["read", "yielded"] * summary.num_users


@pytest.mark.slow
def test_batch_with_expired_event_is_certified(model_and_data, tmp_path):
    """An event that ended before the first release is skipped, and its text is stated."""
    model, data = model_and_data
    settings = make_capped_settings("state:7 on 2024-03-06", "state:7 between 0 and 3")
    how = {"kind": "csv", "rng": 3, "allow_training_users": True, "workers": 1}
    batch(Data((str(data),)), tmp_path / "b", model, settings, **how, certificate=tmp_path / "proof.jsonl")
    lines = read_lines(tmp_path / "proof.jsonl")
    (first, *_) = [step for step in lines if "events" in step]
    assert [cap["event"] is None for cap in first["events"]["caps"]] == [True, False]
    report = capped.verify(lines)
    assert (report["not"], report["checked"] > 0) == (set(), True)
    for step in lines:
        if "events" in step:
            step["events"]["caps"].reverse()
    assert capped.find_refusal(lines) is not None


@pytest.mark.slow
def test_caps_of_session_are_certified(model_and_data, tmp_path):
    model, _ = model_and_data
    settings = make_capped_settings("state:7 between 0 and 3")
    for states in ([0, 1], [2, 7]):  # the session is closed and reopened
        with Session.open(tmp_path / "s.db", "ann", settings.engine(build_town())) as session:
            for number, state in enumerate(states):
                session.release(state, SLOT + number + 2 * (state > 1))
    certify(tmp_path / "s.db", model, tmp_path / "proof.jsonl")
    lines = read_lines(tmp_path / "proof.jsonl")
    assert (capped.find_refusal(lines), find_refusal(lines)) == (None, None)
    assert capped.verify(lines)["steps"] == 4


@pytest.mark.parametrize("schedule", [None, Schedule(window_epsilon=12.0)], ids=["no schedule", "daily budget"])
def test_batch_with_sessions_ending_at_gaps_is_certified(model_and_data, tmp_path, schedule):
    """A window of a day contains both sessions of each user."""
    model, data = model_and_data
    settings = replace(SETTINGS, schedule=schedule)
    how = {"session_gap": 50, "kind": "csv", "rng": 3, "allow_training_users": True, "workers": 1}
    batch(Data((str(data),)), tmp_path / "b", model, settings, **how)
    certificate = certify(tmp_path / "b", model, tmp_path / "proof.jsonl")
    assert (certificate.num_users, certificate.num_timesteps) == (2, 12)
    lines = read_lines(tmp_path / "proof.jsonl")
    assert sum("begin" in line for line in lines) == 4, "each user has two sessions"
    rows: dict = {}
    for file in sorted((tmp_path / "b").rglob("*.csv")):
        if "latitude" in file.read_text().splitlines()[0]:
            rows |= load_verifier().read_rows(str(file))
    assert find_refusal(lines, rows) is None
    assert {row["num_ignored_releases"] for row in rows["ann"]} == {"0", "4"}
    drawn = [float(row["epsilon"]) > 0 for row in rows["ann"]]
    assert any(drawn[:4]), "the first session spends"
    assert any(drawn[4:]), "the second session spends"
    if schedule is not None:
        smaller = json.loads(json.dumps(lines).replace(r"\"window_epsilon\": 12.0", r"\"window_epsilon\": 1.0"))
        assert "the window budget of the schedule is exceeded" in (find_refusal(smaller) or "")


@pytest.mark.slow
def test_batch_writes_same_certificate_as_certify(model_and_data, tmp_path):
    model, data = model_and_data
    how = {"kind": "csv", "rng": 3, "allow_training_users": True}
    batch(Data((str(data),)), tmp_path / "b", model, SETTINGS, **how, certificate=tmp_path / "proof.jsonl")
    certify(tmp_path / "b", model, tmp_path / "later.jsonl")
    assert (tmp_path / "proof.jsonl").read_text() == (tmp_path / "later.jsonl").read_text()
    with pytest.raises(OutputError):
        batch(Data((str(data),)), tmp_path / "c", model, SETTINGS, certificate=tmp_path / "proof.jsonl")
    real = ReleaseSettings("utility:1km", 1, mechanism="k-norm")
    with pytest.raises(ConfigurationError, match="mechanism must be an exact one of this package to be certified"):
        batch(Data((str(data),)), tmp_path / "c", model, real, certificate=tmp_path / "c.jsonl")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("schedule", [None, Schedule(target_error=0.7)], ids=["constant", "scheduled"])
def test_sessions_are_certified_with_limits(model_and_data, tmp_path, schedule):
    model, _ = model_and_data
    settings = ReleaseSettings("utility:1km", 1, schedule=schedule)
    with Session.open(
        tmp_path / "s.db", "ann", settings.engine(build_town()), Limits(window_epsilon=3, window_steps=5)
    ) as session:
        for number, state in enumerate([0, 1, 2, 7]):
            session.release(state, SLOT + 3 * number)
    certify(tmp_path / "s.db", model, tmp_path / "proof.jsonl")
    lines = read_lines(tmp_path / "proof.jsonl")
    export_sessions(tmp_path / "s.db", tmp_path / "rows.csv", model=model)
    assert find_refusal(lines, load_verifier().read_rows(str(tmp_path / "rows.csv"))) is None
    assert "columns that follow" not in run_verifier(tmp_path, model)
    begin = next(line for line in lines if "begin" in line)
    begin["limits"]["window_epsilon"] = "1/2"
    assert "the limit on a window is exceeded" in (find_refusal(lines) or "")


def test_session_with_multiple_queries_raises(model_and_data, tmp_path):
    model, _ = model_and_data
    engine = SETTINGS.engine(build_town())
    other = engine.for_query(build_town().space.points)
    with Session.open(tmp_path / "two.db", "ann", {"main": engine, "other": other}) as session:
        session.release(0, SLOT)
    with pytest.raises(ConfigurationError, match="several queries"):
        certify(tmp_path / "two.db", model, tmp_path / "proof.jsonl")
    with pytest.raises(ConfigurationError, match="session 'ann' must have one query, of locations, to be a table"):
        export_sessions(tmp_path / "two.db", tmp_path / "rows.csv", model=model)
    with Session.open(tmp_path / "east.db", "ann", engine.for_query(build_town().space.points[:, :1])) as session:
        session.release(0, SLOT)
    with pytest.raises(ConfigurationError, match="must have one query, of locations"):
        export_sessions(tmp_path / "east.db", tmp_path / "rows.csv", model=model)


def test_session_with_real_valued_noise_raises(model_and_data, tmp_path):
    model, _ = model_and_data
    with Session.open(
        tmp_path / "real.db", "ann", ReleaseSettings("complete", 1, "k-norm").engine(build_town())
    ) as session:
        session.release(0, SLOT)
    with pytest.raises(ConfigurationError, match=r"^mechanism must be an exact one .*, got 'k-norm'$"):
        certify(tmp_path / "real.db", model, tmp_path / "proof.jsonl")
    assert not (tmp_path / "proof.jsonl").exists()


def test_store_without_releases_raises(model_and_data, tmp_path):
    model, _ = model_and_data
    with Session.open(tmp_path / "none.db", "ann", SETTINGS.engine(build_town())):
        pass
    with pytest.raises(ConfigurationError, match=r"none\.db contains no release to certify$"):
        certify(tmp_path / "none.db", model, tmp_path / "proof.jsonl")
    assert not (tmp_path / "proof.jsonl").exists()


def test_pruned_and_rewound_sessions_raise(model_and_data, tmp_path):
    """Their certificate would have other possible states and totals than the releases."""
    model, _ = model_and_data
    for name in ("pruned", "rewound"):
        with Session.open(tmp_path / f"{name}.db", "ann", SETTINGS.engine(build_town())) as session:
            for slot in (SLOT, SLOT + 1500, SLOT + 1501):
                session.release(0, slot)
    with SessionStore(tmp_path / "pruned.db") as store:
        assert store.prune(store.session("ann"), SLOT + 500, 300.0) == 1
    with SessionStore(tmp_path / "rewound.db") as store:
        store.rewind(store.session("ann"), SLOT + 300, 300.0)
    with Session.open(tmp_path / "rewound.db", "ann", SETTINGS.engine(build_town())) as session:
        session.release(0, SLOT + 700)
    with pytest.raises(ConfigurationError, match="the first timestep of session 'ann' was pruned"):
        certify(tmp_path / "pruned.db", model, tmp_path / "proof.jsonl")
    with pytest.raises(ConfigurationError, match="session 'ann' was rewound"):
        certify(tmp_path / "rewound.db", model, tmp_path / "proof.jsonl")
    assert not (tmp_path / "proof.jsonl").exists()


def test_unknown_users_or_times_off_clock_raise(model_and_data, tmp_path):
    model, data = model_and_data
    release(data, model, SETTINGS, tmp_path / "r.csv", rng=1, allow_training_users=True)
    with pytest.raises(ConfigurationError, match="carl"):
        certify(tmp_path / "r.csv", model, tmp_path / "proof.jsonl", "utility:1km", users=["ann", "carl"])
    text = (tmp_path / "r.csv").read_text()
    (tmp_path / "r.csv").write_text(text.replace("T08:05:00", "T08:05:01", 1))
    with pytest.raises(DataFileError, match=r"user ann: times must be multiples of the model's step"):
        certify(tmp_path / "r.csv", model, tmp_path / "proof.jsonl", "utility:1km")
    assert not (tmp_path / "proof.jsonl").exists()


def test_session_with_changed_settings_is_certified(model_and_data, tmp_path):
    model, _ = model_and_data
    slots = iter(range(SLOT, SLOT + 99, 2))
    for policy in ("utility:1km", "utility:500m", "utility:2km"):
        engine = ReleaseSettings(policy, 1, schedule=Schedule(window_epsilon=5)).engine(build_town())
        with Session.open(tmp_path / "anew.db", "ann", engine, Limits(epsilon=20), amendment_note="") as session:
            for state in (0, 1, 2):
                session.release(state, next(slots))
    certificate = certify(tmp_path / "anew.db", model, tmp_path / "proof.jsonl")
    assert certificate.num_timesteps == 9
    lines = read_lines(tmp_path / "proof.jsonl")
    export_sessions(tmp_path / "anew.db", tmp_path / "rows.csv", model=model)
    rows = load_verifier().read_rows(str(tmp_path / "rows.csv"))
    assert find_refusal(lines, rows) is None
    assert "columns that depend on the belief about 'ann'" in run_verifier(tmp_path, model)
    assert [line.get("continues") for line in lines if "begin" in line] == [None, True, True]
    del [line for line in lines if "begin" in line][1]["continues"]
    assert find_refusal(lines, rows) is not None
