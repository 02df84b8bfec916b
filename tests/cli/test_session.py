"""Tests of ``dphmm release --session`` and ``dphmm session``."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dphmm import Grid, MarkovModel, ReleaseRecord
from dphmm.release.session_store import SessionStore
from dphmm.space.projection import LocalProjection
from dphmm.writers import read_releases
from tests import command_line

STEP = 300


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Return a folder with a model of nine 500 m cells and the fixes of two users."""
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
    done = command_line.run(*arguments, **more)
    assert done.exit_code == ends, done.output
    return done


def release(*more, data="data.csv", output="out.csv", **about):
    words = ("--model", "model.npz", "--policy", "complete", "--epsilon", "0.5", "--session", "users.db")
    base = dict(zip(words[::2], words[1::2], strict=True))
    kept = [word for name, value in base.items() if name not in more for word in (name, value)]
    data_words = (data, "-o", output, "--overwrite") if data else ()
    return run("release", *data_words, *kept, *more, **about)


def test_repeated_command_gives_equal_releases_and_spends_nothing(work):
    release()
    first = (work / "out.csv").read_bytes()
    release(output="again.csv")
    assert (work / "again.csv").read_bytes() == first
    assert first.count(b"\n") == 11
    listed = [json.loads(line) for line in run("session", "list", "users.db", "--json").stdout.splitlines()]
    assert [(session["name"], session["num_timesteps"], session["epsilon"]) for session in listed] == [
        ("ann", 5, 2.5),
        ("bob", 5, 2.5),
    ]


@pytest.mark.slow
def test_server_sessions_are_listed_exported_and_audited_like_file_sessions(work, postgres):
    release("--session", postgres)
    listed = [json.loads(line) for line in run("session", "list", postgres, "--json").stdout.splitlines()]
    assert [(session["name"], session["num_timesteps"], session["epsilon"]) for session in listed] == [
        ("ann", 5, 2.5),
        ("bob", 5, 2.5),
    ]
    run("session", "export", postgres, "ann", "-o", "ann.csv", "--model", "model.npz")
    rows = (work / "out.csv").read_text(encoding="utf-8").splitlines()
    assert [row.split(",")[2:4] for row in (work / "ann.csv").read_text(encoding="utf-8").splitlines()[1:]] == [
        row.split(",")[2:4] for row in rows if row.startswith("ann,")
    ]
    of_server, of_file = (
        json.loads(run("audit", "session", path, "--model", "model.npz", *more, "--json").stdout)
        for path, more in ((postgres, ()), ("out.csv", ("--policy", "complete")))
    )
    errors = [[user["inference"]["smoothed"]["error"] for user in audit["users"]] for audit in (of_server, of_file)]
    assert errors[0] == [pytest.approx(error, rel=1e-9) for error in errors[1]]
    refused = run("audit", "session", postgres, "--model", "model.npz", "--users", "eve", ends=2)
    assert "the database" in refused.stderr
    assert "postgres" not in refused.stderr


def test_more_data_continue_session(work):
    release()
    write_fixes("data.csv", 8)
    release(output="more.csv")
    old, new = ((work / name).read_text().splitlines() for name in ("out.csv", "more.csv"))
    assert [line for line in new if line in old] == old
    assert len(new) == 17


def test_stream_and_file_share_session(work):
    fixes = [
        {"user": "ann", "time": f"2024-03-07T09:{5 * k:02d}:00Z", "latitude": 45.001, "longitude": -29.998}
        for k in (0, 1, 1)
    ]
    lines = "".join(json.dumps(fix) + "\n" for fix in fixes)
    answers = [json.loads(line) for line in release(data=None, stdin=lines).stdout.splitlines()]
    assert [answer["released"] for answer in answers] == [True] * 3
    assert answers[1] == answers[2]
    release("--users", "ann")
    rows = (work / "out.csv").read_text().splitlines()[1:]
    assert [answer["x_km"] for answer in answers[:2]] == [float(row.split(",")[6]) for row in rows[:2]]


def test_limit_ends_release_and_keeps_earlier_releases(work):
    limits = ({"limit_epsilon": 2}, {"limit_window_epsilon": 1}, {"limit_window_steps": 2})
    done = release(*limits, ends=2)
    assert "user ann: epsilon limit 2 exceeded: 2 already spent" in done.stderr
    assert "earlier releases are stored, see 'dphmm session export'" in done.stderr
    assert not (work / "out.csv").exists()
    shown = json.loads(run("session", "show", "users.db", "ann", "--json").stdout)
    assert (shown["num_timesteps"], shown["epsilon"], shown["limit_epsilon"]) == (4, 2.0, 2.0)
    assert shown["max_window_epsilon"] == 1.0
    assert shown["constrained_epsilon"] == pytest.approx(4 * shown["max_constrained_epsilon"])
    assert (shown["randomness"], shown["mechanism"]) == ("system", "lattice")
    printed = run("session", "show", "users.db", "ann").stdout
    rows = [line.strip().partition("  ")[0] for line in printed.splitlines()]
    assert rows.count("timesteps") == rows.count("likelihood ratio total") == 1
    # Nothing was changed or capped, and the mechanism is not 'optimal'.
    assert not {"settings changed at timesteps", "caps", "optimal max states", "optimal fallback"} & set(rows)
    assert not set("[{_") & set(printed)
    assert "  ≤ 7.39\n" in printed  # e^2


def test_stream_answers_exceeded_limit_and_continues(work):
    lines = "".join(
        json.dumps({"user": user, "time": f"2024-03-07T09:{k:02d}:00Z", "latitude": 45.001, "longitude": -29.998})
        + "\n"
        for k, user in ((0, "ann"), (5, "ann"), (10, "bob"))
    )
    done = release({"limit_epsilon": 0.5}, data=None, stdin=lines)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["released"] for answer in answers] == [True, False, True]
    assert "epsilon limit 0.5 exceeded" in answers[1]["reason"]


def test_export_restores_releases(work):
    release()
    run("session", "export", "users.db", "-o", "places.csv", "--model", "model.npz")
    assert (work / "places.csv").read_bytes() == (work / "out.csv").read_bytes()
    run("session", "export", "users.db", "bob", "-o", "bob.jsonl")
    lines = [json.loads(line) for line in (work / "bob.jsonl").read_text().splitlines()]
    assert [line["session"] for line in lines] == ["bob"] * 5
    with SessionStore("users.db", readonly=True) as store:
        session = store.session("bob")
        assert session is not None
        kept = [release.record for release in store.releases(session.number)]
    assert [ReleaseRecord.from_json(json.dumps(line["record"])) for line in lines] == kept


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "data.csv"), "is not a file of sessions"),
        (("show", "users.db", "eve"), "has no releases of 'eve'; it contains 'ann', 'bob'"),
        (("export", "users.db", "-o", "out.gpkg"), "use --model"),
        (("export", "users.db", "-o", "data.csv", "--model", "model.npz"), "data.csv exists"),
        (("export", "users.db", "-o", "new.csv", "--model", "other.npz"), "is not the model of session 'ann'"),
        (("list", "none.db"), "cannot be read"),
    ],
)
def test_invalid_arguments_print_one_line(work, arguments, message):
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
        (("--epsilon", "0.25"), "session 'ann' began with epsilon 0.5, got 0.25"),
        (("--seed", "1"), "session 'ann' began with randomness system, got seeded"),
        (({"limit_epsilon": 9},), "session 'ann' began with no limits, got the limit epsilon = 9; omit"),
        (("--private-diagnostics", "private.csv"), "--private-diagnostics cannot be combined with --session"),
    ],
)
def test_existing_session_keeps_its_terms(work, more, message):
    release()
    assert message in release(*more, ends=2).stderr


def test_session_states_its_guarantee(work):
    release()
    output = json.loads(run("session", "show", "users.db", "ann", "--json").stdout)
    assert output["randomness"] == "system"
    assert output["likelihood_ratio_release"] == 1.65  # e^0.5
    assert output["likelihood_ratio_total"] == 12.2  # e^2.5
    factor = np.exp(output["max_constrained_epsilon"])
    assert factor <= output["likelihood_ratio_any_states"] <= factor * 1.01
    seeded = ("--session", "s.db", "--seed", 1, "-o", "s.csv")
    run("release", "data.csv", "--model", "model.npz", "--policy", "complete", "--epsilon", 0.5, *seeded)
    seeded_session = json.loads(run("session", "show", "s.db", "ann", "--json").stdout)
    assert (seeded_session["randomness"], seeded_session["likelihood_ratio_total"]) == ("seeded", None)


def test_withheld_timesteps_are_not_counted_as_releases(work):
    model = MarkovModel.load("model.npz")
    MarkovModel(0.9 * np.eye(9) + 0.1 / 9, model.initial, model.space, STEP).save("stay.npz")
    words = ("--model", "stay.npz", "--policy", "complete", "--window-epsilon", "1000", "--session", "s.db")
    run("release", "data.csv", *words, "-o", "s.csv")
    table = read_releases(work / "s.csv")
    rows = table.select(table["user"] == "ann")
    sampled = int((~rows["withheld"]).sum())
    assert 0 < sampled < len(rows) == 5
    shown = json.loads(run("session", "show", "s.db", "ann", "--json").stdout)
    assert (shown["num_timesteps"], shown["num_releases"]) == (5, sampled)
    assert "epsilon_per_release" not in shown, "with a schedule, the setting is an upper bound only"
    assert shown["max_epsilon_per_release"] == rows["epsilon"].max()
    assert run("session", "list", "s.db").stdout.splitlines()[0].startswith(f"ann\t5 timesteps\t{sampled} releases\t")
    exported = run("session", "export", "s.db", "ann", "-o", "ann.jsonl").stdout.split()
    assert exported[3:7] == ["timesteps", "5", "releases", str(sampled)]
    certificate = json.loads(run("certify", "s.db", "--model", "stay.npz", "-o", "proof.jsonl", "--json").stdout)
    released = int((~table["withheld"]).sum())
    assert (certificate["num_timesteps"], certificate["num_releases"]) == (10, released)
    copied = run("session", "export", "s.db", "--everything", "--backup", "-o", "s.export").stdout
    assert "  timesteps  10\n" in copied
    assert "  timesteps  10\n" in run("session", "import", "s.export", "new.db", "--withhold").stdout


def test_limits_without_session_raise(work):
    base = ("data.csv", "-o", "o.csv", "--model", "model.npz", "--policy", "complete", "--epsilon", "1")
    assert "limits need a session: use --session" in run("release", *base, {"limit_epsilon": 3}, ends=2).stderr
