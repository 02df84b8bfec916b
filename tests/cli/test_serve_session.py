"""``dphmm release --session`` and ``dphmm session``."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from dphmm import Grid, MarkovModel, ReleaseRecord
from dphmm.cli import main
from dphmm.release.session_store import SessionStore
from dphmm.space.states import LocalProjection

STEP = 300


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with a model of nine cells of 500 m and the fixes of two people."""
    monkeypatch.chdir(tmp_path)
    space = Grid(LocalProjection(45.0, -30.0), (0.0, 0.0), 0.5, 3, 3)
    MarkovModel(np.full((9, 9), 1 / 9), np.full(9, 1 / 9), space, STEP).save("model.npz")
    write_fixes("data.csv", 5)
    return tmp_path


def write_fixes(path, count):
    lines = ["user,time,latitude,longitude"]
    for user, shift in (("ann", 0.001), ("bob", 0.006)):
        for k in range(count):
            lines.append(f"{user},2024-03-07T09:{5 * k:02d}:00Z,{45 + shift + 0.002 * (k % 3)},{-30 + 0.002}")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def run(*arguments, ends=0, **more):
    done = CliRunner().invoke(main, [str(argument) for argument in arguments], **more)
    assert done.exit_code == ends, done.output
    return done


def release(*more, data="data.csv", output="out.csv", **about):
    words = ("--model", "model.npz", "--policy", "complete", "--epsilon", "0.5", "--session", "people.db")
    base = dict(zip(words[::2], words[1::2], strict=True))
    kept = [word for name, value in base.items() if name not in more for word in (name, value)]
    given = (data, "-o", output, "--overwrite") if data else ()
    return run("release", *given, *kept, *more, **about)


def test_the_same_command_again_gives_the_same_releases_and_spends_nothing(work):
    release()
    first = (work / "out.csv").read_bytes()
    release(output="again.csv")
    assert (work / "again.csv").read_bytes() == first
    assert first.count(b"\n") == 11
    listed = [json.loads(line) for line in run("session", "list", "people.db", "--json").stdout.splitlines()]
    assert [(one["name"], one["releases"], one["epsilon"]) for one in listed] == [("ann", 5, 2.5), ("bob", 5, 2.5)]


def test_sessions_on_a_server_are_listed_exported_and_audited_like_those_of_a_file(work, postgres):
    release("--session", postgres)
    listed = [json.loads(line) for line in run("session", "list", postgres, "--json").stdout.splitlines()]
    assert [(one["name"], one["releases"], one["epsilon"]) for one in listed] == [("ann", 5, 2.5), ("bob", 5, 2.5)]
    run("session", "export", postgres, "ann", "-o", "ann.csv", "--model", "model.npz")
    rows = (work / "out.csv").read_text(encoding="utf-8").splitlines()
    assert [row.split(",")[2:4] for row in (work / "ann.csv").read_text(encoding="utf-8").splitlines()[1:]] == [
        row.split(",")[2:4] for row in rows if row.startswith("ann,")
    ]
    of_server, of_file = (
        json.loads(run("audit", "session", path, "--model", "model.npz", *more, "--json").stdout)
        for path, more in ((postgres, ()), ("out.csv", ("--policy", "complete")))
    )
    errors = [[one["knowledge"]["in_hindsight"]["error"] for one in found["users"]] for found in (of_server, of_file)]
    assert errors[0] == [pytest.approx(one, rel=1e-9) for one in errors[1]]
    refused = run("audit", "session", postgres, "--model", "model.npz", "--users", "eve", ends=2)
    assert "the database" in refused.stderr
    assert "postgres" not in refused.stderr


def test_more_data_goes_on_where_the_session_stood(work):
    release()
    write_fixes("data.csv", 8)
    release(output="more.csv")
    old, new = ((work / name).read_text().splitlines() for name in ("out.csv", "more.csv"))
    assert [line for line in new if line in old] == old
    assert len(new) == 17


def test_a_stream_and_a_file_share_a_session(work):
    fixes = [
        {"user": "ann", "time": f"2024-03-07T09:{5 * k:02d}:00Z", "latitude": 45.001, "longitude": -29.998}
        for k in (0, 1, 1)
    ]
    lines = "".join(json.dumps(fix) + "\n" for fix in fixes)
    answers = [json.loads(line) for line in release(data=None, input=lines).stdout.splitlines()]
    assert [answer["released"] for answer in answers] == [True] * 3
    assert answers[1] == answers[2]
    release("--users", "ann")
    rows = (work / "out.csv").read_text().splitlines()[1:]
    assert [answer["x_km"] for answer in answers[:2]] == [float(row.split(",")[6]) for row in rows[:2]]


def test_limits_end_a_release_and_keep_what_was_made(work):
    limits = ("--limit-epsilon", "2", "--limit-window-epsilon", "1", "--limit-window-steps", "2")
    done = release(*limits, ends=2)
    assert "user ann: the epsilon limit of 2 would be passed: 2 is spent" in done.stderr
    assert "'dphmm session export' has what was released until then" in done.stderr
    assert not (work / "out.csv").exists()
    shown = json.loads(run("session", "show", "people.db", "ann", "--json").stdout)
    assert (shown["releases"], shown["epsilon"], shown["limit_epsilon"]) == (4, 2.0, 2.0)
    assert shown["epsilon_of_the_dearest_window"] == 1.0
    assert shown["constrained_epsilon"] == pytest.approx(4 * shown["constrained_epsilon_of_the_dearest_release"])
    assert (shown["randomness"], shown["mechanism"]) == ("system", "lattice")
    assert "4" in run("session", "show", "people.db", "ann").stdout


def test_a_stream_answers_a_passed_limit_and_goes_on(work):
    lines = "".join(
        json.dumps({"user": user, "time": f"2024-03-07T09:{k:02d}:00Z", "latitude": 45.001, "longitude": -29.998})
        + "\n"
        for k, user in ((0, "ann"), (5, "ann"), (10, "bob"))
    )
    done = release("--limit-epsilon", "0.5", data=None, input=lines)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["released"] for answer in answers] == [True, False, True]
    assert "limit of 0.5 would be passed" in answers[1]["reason"]


def test_export_gives_back_what_was_released(work):
    release()
    run("session", "export", "people.db", "-o", "places.csv", "--model", "model.npz")
    assert (work / "places.csv").read_bytes() == (work / "out.csv").read_bytes()
    run("session", "export", "people.db", "bob", "-o", "bob.jsonl")
    lines = [json.loads(line) for line in (work / "bob.jsonl").read_text().splitlines()]
    assert [line["session"] for line in lines] == ["bob"] * 5
    with SessionStore("people.db", readonly=True) as store:
        session = store.session("bob")
        assert session is not None
        kept = [release.record for release in store.releases(session.number)]
    assert [ReleaseRecord.from_json(json.dumps(line["record"])) for line in lines] == kept


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "data.csv"), "is no file of sessions"),
        (("show", "people.db", "eve"), "has no releases of 'eve'; there are 'ann', 'bob'"),
        (("export", "people.db", "-o", "out.gpkg"), "give --model"),
        (("export", "people.db", "-o", "data.csv", "--model", "model.npz"), "data.csv exists"),
        (("export", "people.db", "-o", "new.csv", "--model", "other.npz"), "is not the model of session 'ann'"),
        (("list", "none.db"), "cannot be read"),
    ],
)
def test_what_cannot_be_done_ends_with_one_line(work, arguments, message):
    release()
    space = Grid(LocalProjection(45.0, -30.0), (0.0, 0.0), 0.5, 3, 3)
    MarkovModel(np.eye(9), np.full(9, 1 / 9), space, STEP).save("other.npz")
    done = run("session", *arguments, ends=2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--policy", "utility:1km"), "session 'ann' began with policy"),
        (("--epsilon", "0.25"), "session 'ann' began with epsilon 0.5, not 0.25"),
        (("--seed", "1"), "session 'ann' began with randomness system, not seeded"),
        (("--limit-epsilon", "9"), "leave the limits out"),
        (("--private-diagnostics", "private.csv"), "does not keep"),
    ],
)
def test_a_session_that_exists_goes_on_under_its_terms_alone(work, more, message):
    release()
    assert message in release(*more, ends=2).stderr


def test_what_a_session_promises_is_said_between_what_and_by_which_factor(work):
    release()
    told = json.loads(run("session", "show", "people.db", "ann", "--json").stdout)
    assert told["randomness"] == "system"
    assert told["one_release_from_two_joined_places"] == "at most 1.65 times as likely"  # e^0.5
    assert told["all_releases_from_two_paths_joined_throughout"] == "at most 12.2 times as likely"  # e^2.5
    factor = np.exp(told["constrained_epsilon_of_the_dearest_release"])
    assert told["one_release_from_any_two_possible_places"] == f"at most {factor:.3g} times as likely"
    seeded = ("--session", "s.db", "--seed", 1, "-o", "s.csv")
    run("release", "data.csv", "--model", "model.npz", "--policy", "complete", "--epsilon", 0.5, *seeded)
    assert json.loads(run("session", "show", "s.db", "ann", "--json").stdout)["promise"].startswith("nothing")


def test_limits_without_a_session_are_refused(work):
    base = ("data.csv", "-o", "o.csv", "--model", "model.npz", "--policy", "complete", "--epsilon", "1")
    assert "name a file with --session" in run("release", *base, "--limit-epsilon", "3", ends=2).stderr
