"""Tests of ``dphmm audit event``: exit code, equality of session and file, and errors."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from dphmm import MarkovModel, ReleaseSettings
from dphmm.events import Cap
from dphmm.jobs import audit_event
from tests.cli.conftest import HEADER, make_fixes


@pytest.fixture
def release_folder(world, run):
    """Write releases of two users, six minutes from 09:00 on, as a session and a file."""
    done = run(
        *("release", "walk.csv", "--model", "m.npz", "--policy", "utility:1km", "--epsilon", "2", "-o", "r.csv"),
        *("--session", "s.db"),
    )
    assert done.exit_code == 0, done.output
    return world


def audit_events(run, *words: object, code: int = 0):
    # The noise differs in each run, and a nearly certain event is rare.
    done = run("audit", "event", *words, *(() if "--max-posterior" in words or code == 2 else ("--max-posterior", 1)))
    assert done.exit_code == code, done.output
    return done


EVENT = "at:0,1 on 2024-03-07 any day 9:01-9:04"


def test_session_and_file_give_equal_log_odds(release_folder, run):
    session = json.loads(audit_events(run, "s.db", "--model", "m.npz", "--event", EVENT, "--json").stdout)
    file = audit_events(run, "r.csv", "--model", "m.npz", "--policy", "utility:1km", "--event", EVENT, "--json")
    from_file = json.loads(file.stdout)
    assert [event["user"] for event in from_file["events"]] == ["a", "b"]
    for event, other in zip(session["events"], from_file["events"], strict=True):
        np.testing.assert_allclose(event["log_odds_change"], other["log_odds_change"], rtol=1e-6, atol=1e-9)
        assert event["event_in_steps"] == "state:0,1 between 1 and 3"
        assert event["largest_changes"][0]["time"].startswith("2024-03-07T09:0")


@pytest.mark.slow
def test_exit_code_follows_verdict(release_folder, run):
    result = audit_event("s.db", "m.npz", EVENT)
    maximum = max(audits[0].probability.max() for audits in result.audits)
    minimum = min(audits[0].probability.min() for audits in result.audits)
    words = ("s.db", "--model", "m.npz", "--event", EVENT)
    assert "No event was learned." in audit_events(run, *words, "--max-posterior", maximum + 1e-9).stdout
    assert "An event was learned." in audit_events(run, *words, "--max-posterior", maximum - 1e-9, code=1).stdout
    audit_events(run, *words, "--max-posterior", 1, {"min_posterior": minimum - 1e-9})
    audit_events(run, *words, "--max-posterior", 1, {"min_posterior": minimum + 1e-9}, code=1)


@pytest.mark.slow
@pytest.mark.parametrize("cap", [0.7, 0.99])
def test_default_limit_is_cap_of_releases(world, run, cap):
    """This holds for sessions and files, in the command and in Python."""
    settings = ("--policy", "utility:1km", "--epsilon", "2", "--event", EVENT, "--max-event-probability", str(cap))
    done = run("release", "walk.csv", "--model", "m.npz", *settings, "-o", "r.csv", "--session", "s.db")
    assert done.exit_code == 0, done.output
    by_session = run("audit", "event", "s.db", "--model", "m.npz", "--event", EVENT, "--json")
    by_file = run("audit", "event", "r.csv", "--model", "m.npz", *settings, "--json")
    limits = [json.loads(done_audit.stdout)["max_posterior"] for done_audit in (by_session, by_file)]
    stated = ReleaseSettings("utility:1km", 2, caps=[Cap(EVENT, cap)])
    limits += [audit_event("s.db", "m.npz", EVENT).max_posterior]
    limits += [audit_event("r.csv", "m.npz", EVENT, stated).max_posterior]
    assert limits == [cap] * 4
    other = run("audit", "event", "s.db", "--model", "m.npz", "--event", "at:7 between 1 and 3", "--json")
    assert json.loads(other.stdout)["max_posterior"] == 0.9


def test_multiple_events_and_other_prior_are_audited(release_folder, run):
    (release_folder / "prior.csv").write_text("state,probability\n0,0.5\n1,0.5\n")
    words = ("s.db", "--model", "m.npz", "--users", "b", "--event", EVENT, "--event", f"!({EVENT} | at:4 at 2)")
    events = json.loads(audit_events(run, *words, "--json", {"adversary_prior": "prior.csv"}).stdout)["events"]
    assert [event["event"] for event in events] == [EVENT, f"!({EVENT} | at:4 at 2)"]
    other = json.loads(audit_events(run, *words, "--json").stdout)["events"]
    assert events[0]["log_odds_change"] != other[0]["log_odds_change"]


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_report_contains_pictures(release_folder, run):
    pytest.importorskip("matplotlib")
    audit_events(run, "s.db", "--model", "m.npz", "--event", EVENT, "--report", "e.html")
    page = (release_folder / "e.html").read_text()
    assert page.count("data:image/png;base64") == 2
    assert "User a: at:0,1" in page
    assert "change of log odds" in page


@pytest.mark.slow
def test_event_is_not_audited_for_users_after_it(world, run):
    """A batch releases them without the cap.

    The audits of the other users are those of a selection by --users.
    """
    model = MarkovModel.load(world / "m.npz")
    weights = np.arange(1.0, 1 + model.size)  # not stationary: the model contains nothing about earlier times
    MarkovModel(model.transition, weights / weights.sum(), model.states, 60.0).save(world / "m.npz", overwrite=True)
    (world / "all.csv").write_text(
        HEADER + make_fixes("a") + make_fixes("b") + make_fixes("q").replace("03-07", "03-08")
    )
    terms = ("--model", "m.npz", "--policy", "utility:1km", "--epsilon", 2)
    done = run("batch", "all.csv", *terms, "--event", EVENT, "--max-event-probability", 0.7, "-o", "all")
    assert done.exit_code == 0, done.output
    assert "users whose capped event has ended" in done.output

    words = ("all", "--model", "m.npz", "--event", EVENT)
    result = json.loads(audit_events(run, *words, "--json").stdout)
    selected = json.loads(audit_events(run, *words, "--users", "a,b", "--json").stdout)
    assert result.pop("users_after_event") == ["q"]
    assert selected.pop("users_after_event") == []
    assert [event["user"] for event in result["events"]] == ["a", "b"]
    assert result == selected
    table = " ".join(audit_events(run, *words).stdout.split())
    assert table.startswith(
        "No event was learned. Not audited for users with a first release after the end of an event: q. user "
    )

    # The releases of a and b end the day before this event.
    late = json.loads(
        audit_events(run, *words[:3], "--event", "at:0,1 on 2024-03-08 any day 9:01-9:04", "--json").stdout
    )
    assert [event["user"] for event in late["events"]] == ["a", "b", "q"]
    assert all(any(event["log_odds_change"]) for event in late["events"])
    none_reached = audit_events(run, *words[:3], "--event", "at:0 on 2024-03-09", code=2).stderr
    assert "user a: 'at:0 on 2024-03-09' begins at step 2340, after the last release at step 5" in none_reached

    both = json.loads(audit_events(run, *words, "--event", "at:0 between 1 and 3", "--json").stdout)
    audited = [(event["user"], event["event"]) for event in both["events"]]
    later = "at:0 between 1 and 3"
    assert audited == [("a", EVENT), ("a", later), ("b", EVENT), ("b", later), ("q", later)]
    assert both["users_after_event"] == ["q"]
    none_left = audit_events(run, *words, "--users", "q", code=2)
    assert "user q: window 'on 2024-03-07 any day 9:01-9:04' must contain a step" in none_left.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "event must be given, such as"),
        (("--event", "at:0,1"), "ends where between, on or at is expected"),
        (
            ("--event", "at:home at 3"),
            "user a: location must be one of the cells 0 to 14, or a .geojson file, got 'home'",
        ),
        (("--event", "at:0 on 2024-03-08"), "user a: 'at:0 on 2024-03-08' begins at step 900, after the last release"),
        (
            ("--event", "at:0 on 2024-03-06 from the first release"),
            "must contain a step from the first release on, at 2024-03-07T09:00:00Z",
        ),
        (("--event", "at:0 | !at:0 at 2"), r"must have a window: .*; got '\|'"),
        (
            ("--event", "at:0 at 2 | !at:0 at 2"),
            "must be neither certain nor impossible under the model .*, got probability 1",
        ),
        (
            ("--event", "state:none at 2"),
            "must be neither certain nor impossible under the model .*, got probability 0",
        ),
        (("--event", "at:missing.geojson at 2"), "missing.geojson"),
        (
            ("--event", EVENT, "--max-posterior", "0"),
            "min_posterior and max_posterior must be increasing probabilities, got 0 and 0",
        ),
        (("--event", EVENT, "--users", "zoe"), "has no releases of 'zoe'"),
        (("--event", EVENT, "--report", "r.txt"), "--report must be an .html file"),
    ],
)
def test_invalid_input_prints_one_line_and_exits_with_2(release_folder, run, words, message):
    done = audit_events(run, "s.db", "--model", "m.npz", *words, code=2)
    assert done.stderr.count("\n") == 1
    assert re.search(message, done.stderr), done.stderr
    assert not (release_folder / "r.txt").exists()


def test_missing_model_is_requested(release_folder, run):
    assert "--model must be given" in audit_events(run, "s.db", "--event", EVENT, code=2).stderr
