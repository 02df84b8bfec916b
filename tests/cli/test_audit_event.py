"""``dphmm audit event``: a verdict with its exit code, the same from a session as from a file, and refusals."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from dphmm import ReleaseSettings
from dphmm.events import Cap
from dphmm.jobs import audit_event


@pytest.fixture
def released(world, run):
    """Releases of two people, six minutes from 09:00 on, as a session and as a file."""
    done = run(
        *("release", "walk.csv", "--model", "m.npz", "--policy", "utility:1km", "--epsilon", "2", "-o", "r.csv"),
        *("--session", "s.db"),
    )
    assert done.exit_code == 0, done.output
    return world


def audit(run, *words: object, code: int = 0):
    # Releases are drawn anew each time, and seldom say something almost for sure.
    done = run("audit", "event", *words, *(() if "--most-certainty" in words or code == 2 else ("--most-certainty", 1)))
    assert done.exit_code == code, done.output
    return done


EVENT = "at:0,1 on 2024-03-07 any day 9:01-9:04"


def test_a_session_and_a_file_of_releases_tell_the_same(released, run):
    session = json.loads(audit(run, "s.db", "--model", "m.npz", "--event", EVENT, "--json").stdout)
    file = audit(run, "r.csv", "--model", "m.npz", "--policy", "utility:1km", "--event", EVENT, "--json")
    told = json.loads(file.stdout)
    assert [one["user"] for one in told["events"]] == ["a", "b"]
    for one, other in zip(session["events"], told["events"], strict=True):
        np.testing.assert_allclose(one["log_odds_told"], other["log_odds_told"], rtol=1e-6, atol=1e-9)
        assert one["in_steps"] == "state:0,1 between 1 and 3"
        assert one["moved_most"][0]["time"].startswith("2024-03-07T09:0")


def test_the_verdict_is_the_exit_code(released, run):
    found = audit_event("s.db", "m.npz", EVENT)
    most = max(audits[0].probability.max() for audits in found.audits)
    least = min(audits[0].probability.min() for audits in found.audits)
    words = ("s.db", "--model", "m.npz", "--event", EVENT)
    assert "No event was learned." in audit(run, *words, "--most-certainty", most + 1e-9).stdout
    assert "An event was learned." in audit(run, *words, "--most-certainty", most - 1e-9, code=1).stdout
    audit(run, *words, "--most-certainty", 1, "--least-certainty", least - 1e-9)
    audit(run, *words, "--most-certainty", 1, "--least-certainty", least + 1e-9, code=1)


@pytest.mark.parametrize("cap", [0.7, 0.99])
def test_what_counts_as_learned_is_the_cap_that_the_releases_keep(world, run, cap):
    """Of a session as of a file, by command as in Python: before, 0.9 for sessions, and in Python always."""
    settings = ("--policy", "utility:1km", "--epsilon", "2", "--event", EVENT, "--never-surer", str(cap))
    done = run("release", "walk.csv", "--model", "m.npz", *settings, "-o", "r.csv", "--session", "s.db")
    assert done.exit_code == 0, done.output
    by_session = run("audit", "event", "s.db", "--model", "m.npz", "--event", EVENT, "--json")
    by_file = run("audit", "event", "r.csv", "--model", "m.npz", *settings, "--json")
    told = [json.loads(one.stdout)["most_certainty"] for one in (by_session, by_file)]
    stated = ReleaseSettings("utility:1km", 2, caps=[Cap(EVENT, cap)])
    told += [audit_event("s.db", "m.npz", EVENT).most_certainty]
    told += [audit_event("r.csv", "m.npz", EVENT, stated).most_certainty]
    assert told == [cap] * 4
    other = run("audit", "event", "s.db", "--model", "m.npz", "--event", "at:7 between 1 and 3", "--json")
    assert json.loads(other.stdout)["most_certainty"] == 0.9


def test_several_events_and_another_prior(released, run):
    (released / "prior.csv").write_text("state,probability\n0,0.5\n1,0.5\n")
    words = ("s.db", "--model", "m.npz", "--users", "b", "--event", EVENT, "--event", f"!({EVENT} | at:4 at 2)")
    told = json.loads(audit(run, *words, "--json", "--adversary", "prior.csv").stdout)["events"]
    assert [one["event"] for one in told] == [EVENT, f"!({EVENT} | at:4 at 2)"]
    other = json.loads(audit(run, *words, "--json").stdout)["events"]
    assert told[0]["log_odds_told"] != other[0]["log_odds_told"]


@pytest.mark.usefixtures("blank")
def test_a_report_holds_the_picture(released, run):
    pytest.importorskip("matplotlib")
    audit(run, "s.db", "--model", "m.npz", "--event", EVENT, "--report", "e.html")
    page = (released / "e.html").read_text()
    assert page.count("data:image/png;base64") == 2
    assert "User a: at:0,1" in page
    assert "release that moved it most" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no event is given; give one such as"),
        (("--event", "at:0,1"), "ends where between, on or at is missing"),
        (("--event", "at:home at 3"), "user a: place 'home' is unknown; give one of the cells 0 to"),
        (("--event", "at:0 on 2024-03-08"), "user a: 'at:0 on 2024-03-08' begins at step 900, after the last release"),
        (
            ("--event", "at:0 on 2024-03-06 from the first release"),
            "holds no step from the first release on, at 2024-03-07T09:00:00Z",
        ),
        (("--event", "at:0 | !at:0 at 2"), "ends where|where a window begins"),
        (("--event", "at:0 at 2 | !at:0 at 2"), "has probability 1 under the model"),
        (("--event", "state:none at 2"), "has probability 0 under the model"),
        (("--event", "at:missing.geojson at 2"), "missing.geojson"),
        (("--event", EVENT, "--most-certainty", "0"), "the certainties are 0 and 0; give probabilities"),
        (("--event", EVENT, "--users", "zoe"), "has no releases of 'zoe'"),
        (("--event", EVENT, "--report", "r.txt"), "a report is an .html file"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(released, run, words, message):
    done = audit(run, "s.db", "--model", "m.npz", *words, code=2)
    assert done.stderr.count("\n") == 1
    assert re.search(message, done.stderr), done.stderr
    assert not (released / "r.txt").exists()


def test_the_model_is_asked_for(released, run):
    assert "the model is missing" in audit(run, "s.db", "--event", EVENT, code=2).stderr
