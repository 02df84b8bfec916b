"""Tests of capped releases: caps in audits, options, job files and errors."""

from __future__ import annotations

import csv
import json
import re
import tomllib

import pytest

from dphmm import ReleaseSettings
from dphmm.jobs import audit_event, replay
from tests.cli.conftest import HEADER, make_fixes

EVENT = "at:0,1,2 on 2024-03-07 any day 9:01-9:04"
RELEASE = ("release", "walk.csv", "--model", "m.npz", "--policy", "utility:1km", "--epsilon", "3")


def check_exit_code(done, code: int = 0):
    assert done.exit_code == code, done.output
    return done


@pytest.mark.slow
def test_capped_session_keeps_and_states_its_cap(world, run):
    (world / "walk.csv").write_text(HEADER + make_fixes("a", 30) + make_fixes("b", 30))
    words = (
        *RELEASE,
        "--users",
        "a",
        "-o",
        "r.csv",
        "--session",
        "s.db",
        "--max-event-probability",
        0.7,
        "--event",
        EVENT,
    )
    facts = json.loads(check_exit_code(run(*words, "--json")).stdout)
    table = list(csv.DictReader((world / "r.csv").read_text().splitlines()))
    assert facts["num_released"] + facts["withheld_by_reason"]["caps"] == 30
    assert [row["withheld"] for row in table].count("false") == facts["num_released"]
    assert len({row["epsilon"] for row in table}) > 1
    result = audit_event("s.db", "m.npz", EVENT, max_posterior=0.7)
    assert not result.is_exposed
    (replayed,) = replay("s.db", "m.npz")
    (cap,) = replayed.engine.settings.caps
    assert (str(cap.event), cap.probability) == (EVENT, 0.7)
    kept = run("audit", "event", "s.db", "--model", "m.npz", "--event", EVENT, "--max-posterior", 0.7)
    assert "No event was learned." in check_exit_code(kept).stdout
    settings = ("--policy", "utility:1km", "--epsilon", 3, "--max-event-probability", 0.7)
    file = run("audit", "event", "r.csv", "--model", "m.npz", *settings, "--event", EVENT)
    assert "No event was learned." in check_exit_code(file).stdout
    other = run("audit", "event", "r.csv", "--model", "m.npz", *settings[:4], "--event", EVENT)
    assert "was released with settings" in check_exit_code(other, 2).stderr
    check_exit_code(run("audit", "session", "r.csv", "--model", "m.npz", *settings, "--event", EVENT))


@pytest.mark.slow
def test_releases_without_cap_exceed_it(world, run):
    """Among ten uncapped sessions of a user who stays there, some output exceeds the cap."""
    (world / "walk.csv").write_text(
        HEADER + "".join(f"u{user},2024-03-07T09:{k:02d}:00Z,44.996,-30.013\n" for user in range(10) for k in range(12))
    )
    check_exit_code(run(*RELEASE, "-o", "r.csv", "--seed", 1))
    assert audit_event("r.csv", "m.npz", EVENT, "utility:1km", max_posterior=0.7).is_exposed
    check_exit_code(run(*RELEASE, "-o", "c.csv", "--seed", 1, "--max-event-probability", 0.7, "--event", EVENT))
    caps = [{"event": EVENT, "probability": 0.7}]
    settings = ReleaseSettings.from_dict({"policy": "utility:1km", "epsilon": 3, "caps": caps})
    assert not audit_event("c.csv", "m.npz", EVENT, settings, max_posterior=0.7).is_exposed


def test_multiple_events_and_floors_are_stored(world, run):
    words = (
        "--event",
        EVENT,
        "--event",
        "at:7 between 1 and 3",
        "--max-event-probability",
        0.8,
        "--max-event-probability",
        0.5,
    )
    check_exit_code(run(*RELEASE, "--session", "s.db", "-o", "r.csv", *words, {"min_event_probability": [0.001]}))
    replayed = next(iter(replay("s.db", "m.npz")))
    assert [(cap.probability, cap.min_probability) for cap in replayed.engine.settings.caps] == [
        (0.8, 0.001),
        (0.5, 0.001),
    ]


@pytest.mark.slow
def test_settings_file_contains_caps(world, run):
    (world / "job.toml").write_text(
        'policy = "utility:1km"\nepsilon = 3\nmodel = "m.npz"\n'
        'data = ["walk.csv"]\noutput = "r.csv"\nsession = "s.db"\n'
        f'[[caps]]\nevent = "{EVENT}"\nprobability = 0.7\n'
    )
    check_exit_code(run("release", "--settings", "job.toml"))
    settings = next(iter(replay("s.db", "m.npz"))).engine.settings
    assert tomllib.loads(settings.to_toml())["caps"] == [{"event": EVENT, "probability": 0.7, "min_probability": 0.0}]


def test_stream_answers_withheld_timestep_and_continues(world, run):
    lines = "".join(
        json.dumps({"user": "a", "time": f"2024-03-07T09:{k:02d}:00Z", "latitude": 44.996, "longitude": -30.013}) + "\n"
        for k in range(12)
    )
    words = ("release", "--model", "m.npz", "--policy", "utility:1km", "--epsilon", 9, {"clock_skew": "1h"})
    caps = ("--max-event-probability", 0.489, "--event", "at:0,1,2 between 1 and 3")
    done = check_exit_code(run(*words, *caps, stdin=lines))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 12
    silent = {answer["reason"] for answer in answers if not answer["released"]}
    assert silent == {"withheld to satisfy an event cap"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--max-event-probability", 0.7), "--event is missing: use"),
        (("--event", EVENT), "--max-event-probability is missing: use"),
        (
            ("--max-event-probability", 0.7, "--max-event-probability", 0.7, "--event", EVENT),
            "--max-event-probability must occur once or once per event, got 2 for 1 events",
        ),
        (("--max-event-probability", 7, "--event", EVENT), r"probability must be in \(0, 1\)"),
        (
            ("--max-event-probability", 0.7, "--event", "home"),
            r"event 'home' must have a location such as at:home, .*; got 'home'",
        ),
        (
            ("--max-event-probability", 0.7, "--event", "at:home at 3"),
            r"user a: location must be one of .*, or a \.geojson file, got 'home'",
        ),
        (
            ("--max-event-probability", 0.3, "--event", EVENT),
            r"user a: probability of event '.*' must be above its probability 0\.488 before the first release under "
            r"the model, got 0\.3",
        ),
        (
            ("--max-event-probability", 0.7, "--event", "at:0 on 2024-03-06 from the first release"),
            "must contain a step from the first release on, at .*; use a later window",
        ),
        (
            ("--max-event-probability", 0.7, "--event", "state:none at 2"),
            "must be neither certain nor impossible under the model before the first release, got probability 0",
        ),
        (({"event_cap_priors": "p.csv"},), "event_cap_priors"),
        (({"event_cap_priors": "p.csv"}, "--max-event-probability", 0.7, "--event", EVENT), "p.csv"),
    ],
)
def test_invalid_input_prints_one_line_and_writes_nothing(world, run, words, message):
    done = check_exit_code(run(*RELEASE, "-o", "r.csv", *words), 2)
    assert done.stderr.count("\n") == 1
    assert re.search(message, done.stderr), done.stderr
    assert not (world / "r.csv").exists()


@pytest.mark.slow
def test_batch_keeps_caps(world, run):
    words = ("batch", "walk.csv", "-o", "out", "--model", "m.npz", "--policy", "utility:1km", "--epsilon", 3)
    words += ("--format", "csv", "--workers", 1, "--event", EVENT, "--max-event-probability", 0.7)
    refused = run(*words, {"session_gap": 10})
    assert refused.exit_code == 2
    assert "key 'session_gap' cannot be combined with event caps, got 10" in refused.stderr
    assert not (world / "out").exists()
    facts = json.loads(check_exit_code(run(*words, "--json")).stdout)
    assert facts["num_users_after_capped_event"] == 0
    for file in (world / "out").glob("??/*.csv"):
        audit = ("audit", "event", file, "--model", "m.npz", "--policy", "utility:1km", "--epsilon", 3)
        assert (
            "No event was learned."
            in check_exit_code(run(*audit, "--max-event-probability", 0.7, "--event", EVENT)).stdout
        )
