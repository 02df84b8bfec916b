"""``dphmm release --never-surer``: caps that audits find kept, in options and in job files, and their refusals."""

from __future__ import annotations

import csv
import json
import re
import tomllib

import pytest

from dphmm import ReleaseSettings
from dphmm.jobs import audit_event, replay
from tests.cli.conftest import HEADER, fixes

EVENT = "at:0,1,2 on 2024-03-07 any day 9:01-9:04"
RELEASE = ("release", "walk.csv", "--model", "m.npz", "--policy", "utility:1km", "--epsilon", "3")


def ended(done, code: int = 0):
    assert done.exit_code == code, done.output
    return done


def test_a_capped_session_keeps_its_cap_and_says_so(world, run):
    (world / "walk.csv").write_text(HEADER + fixes("a", 30) + fixes("b", 30))
    words = (*RELEASE, "--users", "a", "-o", "r.csv", "--session", "s.db", "--never-surer", 0.7, "--event", EVENT)
    facts = json.loads(ended(run(*words, "--json")).stdout)
    table = list(csv.DictReader((world / "r.csv").read_text().splitlines()))
    assert facts["releases"] + facts["moments_withheld_for_caps"] == 30
    assert [row["withheld"] for row in table].count("false") == facts["releases"]
    assert len({row["epsilon"] for row in table}) > 1
    found = audit_event("s.db", "m.npz", EVENT, most_certainty=0.7)
    assert not found.is_exposed
    (one,) = replay("s.db", "m.npz")
    (cap,) = one.engine.settings.caps
    assert (str(cap.event), cap.probability) == (EVENT, 0.7)
    kept = run("audit", "event", "s.db", "--model", "m.npz", "--event", EVENT, "--most-certainty", 0.7)
    assert "No event was learned." in ended(kept).stdout
    settings = ("--policy", "utility:1km", "--epsilon", 3, "--never-surer", 0.7)
    file = run("audit", "event", "r.csv", "--model", "m.npz", *settings, "--event", EVENT)
    assert "No event was learned." in ended(file).stdout
    other = run("audit", "event", "r.csv", "--model", "m.npz", *settings[:4], "--event", EVENT)
    assert "was released with settings" in ended(other, 2).stderr
    ended(run("audit", "session", "r.csv", "--model", "m.npz", *settings, "--event", EVENT))


def test_the_same_releases_without_the_cap_pass_it(world, run):
    """The audit can fail: among ten uncapped sessions of somebody who stays there, some output passes the cap."""
    (world / "walk.csv").write_text(
        HEADER + "".join(f"u{user},2024-03-07T09:{k:02d}:00Z,44.996,-30.013\n" for user in range(10) for k in range(12))
    )
    ended(run(*RELEASE, "-o", "r.csv", "--seed", 1))
    assert audit_event("r.csv", "m.npz", EVENT, "utility:1km", most_certainty=0.7).is_exposed
    ended(run(*RELEASE, "-o", "c.csv", "--seed", 1, "--never-surer", 0.7, "--event", EVENT))
    caps = [{"event": EVENT, "probability": 0.7}]
    settings = ReleaseSettings.from_dict({"policy": "utility:1km", "epsilon": 3, "caps": caps})
    assert not audit_event("c.csv", "m.npz", EVENT, settings, most_certainty=0.7).is_exposed


def test_several_events_and_floors(world, run):
    words = ("--event", EVENT, "--event", "at:7 between 1 and 3", "--never-surer", 0.8, "--never-surer", 0.5)
    ended(run(*RELEASE, "--session", "s.db", "-o", "r.csv", *words, "--never-less", 0.001))
    one = next(iter(replay("s.db", "m.npz")))
    assert [(cap.probability, cap.least) for cap in one.engine.settings.caps] == [(0.8, 0.001), (0.5, 0.001)]


def test_a_job_file_says_caps_and_the_settings_of_a_release_are_written_so(world, run):
    (world / "job.toml").write_text(
        'policy = "utility:1km"\nepsilon = 3\nmodel = "m.npz"\n'
        'data = ["walk.csv"]\noutput = "r.csv"\nsession = "s.db"\n'
        f'[[caps]]\nevent = "{EVENT}"\nprobability = 0.7\n'
    )
    ended(run("release", "--job", "job.toml"))
    settings = next(iter(replay("s.db", "m.npz"))).engine.settings
    assert tomllib.loads(settings.to_toml())["caps"] == [{"event": EVENT, "probability": 0.7, "least": 0.0}]


def test_a_live_stream_answers_a_withheld_moment_and_goes_on(world, run):
    lines = "".join(
        json.dumps({"user": "a", "time": f"2024-03-07T09:{k:02d}:00Z", "latitude": 44.996, "longitude": -30.013}) + "\n"
        for k in range(12)
    )
    words = ("release", "--model", "m.npz", "--policy", "utility:1km", "--epsilon", 9, "--clock-skew", "1h")
    caps = ("--never-surer", 0.489, "--event", "at:0,1,2 between 1 and 3")
    done = ended(run(*words, *caps, stdin=lines))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 12
    silent = {answer["reason"] for answer in answers if not answer["released"]}
    assert silent == {"withheld to keep a cap on an event"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--never-surer", 0.7), "--event is missing; a cap is"),
        (("--event", EVENT), "--never-surer is missing; a cap is"),
        (("--never-surer", 0.7, "--never-surer", 0.7, "--event", EVENT), "--never-surer is given 2 times for 1 events"),
        (("--never-surer", 7, "--event", EVENT), r"the cap on an event is 7\.0"),
        (("--never-surer", 0.7, "--event", "home"), "has 'home' where a place is named"),
        (("--never-surer", 0.7, "--event", "at:home at 3"), "user a: place 'home' is unknown"),
        (
            ("--never-surer", 0.3, "--event", EVENT),
            r"user a: event '.*' has probability 0\.488 under the model before anything is released, and is to stay at "
            r"0\.3 or below; give a cap above it",
        ),
        (
            ("--never-surer", 0.7, "--event", "at:0 on 2024-03-06 from the first release"),
            "holds no step from the first release on",
        ),
        (("--never-surer", 0.7, "--event", "state:none at 2"), "has probability 0 under the model"),
        (("--priors", "p.csv"), "priors"),
        (("--priors", "p.csv", "--never-surer", 0.7, "--event", EVENT), "p.csv"),
    ],
)
def test_bad_input_is_one_line_and_exit_2_and_nothing_is_written(world, run, words, message):
    done = ended(run(*RELEASE, "-o", "r.csv", *words), 2)
    assert done.stderr.count("\n") == 1
    assert re.search(message, done.stderr), done.stderr
    assert not (world / "r.csv").exists()


def test_a_batch_keeps_caps_that_an_audit_finds_kept(world, run):
    words = ("batch", "walk.csv", "-o", "out", "--model", "m.npz", "--policy", "utility:1km", "--epsilon", 3)
    words += ("--files", "csv", "--workers", 1, "--event", EVENT, "--never-surer", 0.7)
    refused = run(*words, "--session-gap", 10)
    assert refused.exit_code == 2
    assert "session_gap is 10 steps, and a cap on an event counts all releases" in refused.stderr
    assert not (world / "out").exists()
    facts = json.loads(ended(run(*words, "--json")).stdout)
    assert facts["users_after_a_capped_event"] == 0
    for file in (world / "out").glob("??/*.csv"):
        audit = ("audit", "event", file, "--model", "m.npz", "--policy", "utility:1km", "--epsilon", 3)
        assert "No event was learned." in ended(run(*audit, "--never-surer", 0.7, "--event", EVENT)).stdout
