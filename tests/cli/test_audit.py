"""Tests of the audit command: the paper's examples as JSON, exit codes and reports."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from dphmm import Grid, MarkovModel, Measurements, PolicyGraph, Releaser, Trajectory, read, release_trajectory
from dphmm.release.session import Session
from dphmm.writers.formats import write_releases
from dphmm.writers.release_table import ReleaseTable
from tests import command_line

STATES = """state,east,north,kind
s1,1,0,cafeteria
s2,2,1,school
s3,3,0,school
s4,0,1,grocery
s5,4,2,grocery
s6,1,2,grocery
"""
SECRETS = """secret,patient,disease
s1,Alice,cancer
s2,Alice,asthma
s3,Bob,cancer
s4,Bob,diabetes
s5,Chad,cancer
s6,Chad,diabetes
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "states.csv").write_text(STATES)
    (tmp_path / "secrets.csv").write_text(SECRETS)
    (tmp_path / "bounded.csv").write_text("a,b\ns1,s2\ns3,s4\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str):
    return command_line.run("audit", *arguments)


def audit_json(code: int, *arguments: str) -> dict:
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output + result.stderr
    return json.loads(result.stdout)


MARKOV = ("policy", "--states", "states.csv", "--category", "kind")
DATABASE = ("policy", "--secrets", "secrets.csv", "--edges", "bounded.csv")
COUNTS = ("--count", "disease=cancer", "--count", "disease=diabetes")


def test_example_5_1_whole_graph(folder):
    constraint = audit_json(0, *MARKOV)["constraints"][0]
    assert constraint["hull"]["volume"] == 11.0
    corners = {(round(x), round(y)) for x, y in constraint["hull"]["vertices"]}
    assert corners == {(-4, -1), (1, -1), (3, 0), (4, 1), (-1, 1), (-3, 0)}
    knorm, laplace = constraint["mechanisms"]
    assert knorm["degrees"] == {"s1": 4, "s2": 6, "s3": 3, "s4": 5, "s5": 4, "s6": 4}
    assert laplace["sensitivity"] == 5.0
    assert (constraint["isolated"], constraint["num_components"]) == (["s1"], 3)


def test_example_5_2_exposes_s5(folder):
    constraint = audit_json(1, *MARKOV, "--possible", "s2,s3,s5", "--epsilon", "0.5")["constraints"][0]
    knorm, laplace = constraint["mechanisms"]
    assert knorm["exposed"] == laplace["exposed"] == ["s5"]
    assert laplace["sensitivity"] == 2.0
    (witness,) = laplace["witnesses"]
    assert witness["output"] == [4.0, 2.0]
    assert {row["state"]: (row["factor"], row["log_ratio"]) for row in witness["against"]} == {
        "s2": (1.5, 0.75),
        "s3": (1.5, 0.75),
    }
    assert knorm["witnesses"][0]["is_certain"]
    assert {row["factor"] for row in knorm["witnesses"][0]["against"]} == {None}


def test_example_5_3_and_details_of_section_10_5(folder):
    output = audit_json(1, *DATABASE, *COUNTS, "--epsilon", "0.3")
    knorm, laplace = output["mechanisms"]
    assert knorm["factors"] == {"s1": 1, "s2": 0, "s3": 1, "s4": 2, "s5": 1, "s6": 2}
    assert knorm["total_epsilon"] == pytest.approx(0.6)
    assert laplace["factors"] == {"s1": 0.5, "s2": 0, "s3": 0.5, "s4": 0.5, "s5": 0.5, "s6": 0.5}
    assert (knorm["exposed"], laplace["exposed"]) == (["s4", "s6"], [])
    assert laplace["sensitivity"] == 2.0
    assert audit_json(0, *DATABASE, *COUNTS, "--mechanism", "laplace")["exposed"] is False


def test_example_6_1_and_figure_9_repairs(folder):
    sets = ("--possible", "s3,s4,s5,s6", "--possible", "s2,s4,s5,s6")
    exposed, kept = audit_json(1, *MARKOV, *sets)["constraints"]
    assert exposed["mechanisms"][0]["exposed"] == ["s3"]
    repairs = {repair["method"]: (repair["added_edges"], repair["hull_volume"]) for repair in exposed["repairs"]}
    assert repairs["greedy"] == ([["s3", "s5"]], 16.0)
    assert repairs["sequential"] == ([["s3", "s4"]], 14.0)
    assert repairs["exact"] == ([["s3", "s5"]], 16.0)  # minimum error
    least_area = audit_json(1, *MARKOV, "--possible", "s3,s4,s5,s6", {"repair_objective": "volume"})["constraints"][0][
        "repairs"
    ]
    assert {repair["method"]: repair["hull_volume"] for repair in least_area}["exact"] == 14.0
    assert kept["mechanisms"][0]["degrees"] == {"s2": 3, "s4": 4, "s5": 4, "s6": 3}
    assert (kept["isolated"], kept["exposed"], kept["hull"]["volume"]) == (["s2"], False, 9.0)
    least_error = {
        repair["method"]: repair["added_edges"] for repair in audit_json(1, *MARKOV, *sets)["constraints"][0]["repairs"]
    }
    assert least_error["exact"] == [["s3", "s5"]], "of area 16, and less error than s4's 14"


def test_other_prior_is_audited_next_to_policy(folder):
    (folder / "prior.csv").write_text("state,probability\ns2,0.5\ns3,0.25\ns5,0.25\n")
    # The paper's mechanism would expose s5. This engine releases it as s2 or s3, so the exit code is 0.
    output = audit_json(0, *MARKOV, "--possible", "s2,s3", {"adversary_prior": "prior.csv"})
    other = output["constraints"][0]["adversary"]
    assert (other["relation"], other["exposed"], other["num_shared"]) == ("wider", ["s5"], 2)


def test_unbounded_edges_and_contributions_are_audited(folder):
    (folder / "answers.csv").write_text("secret,x,y\na,1,0\nb,0,1\n")
    (folder / "null.csv").write_text("a,b\na,null\nb,null\n")
    output = audit_json(0, "policy", "--secrets", "answers.csv", "--edges", "null.csv")
    assert output["mechanisms"][0]["factors"] == {"a": 1.0, "b": 1.0}


@pytest.mark.slow
def test_mechanism_bounds_are_below_claim(folder):
    output = audit_json(0, "mechanism", *MARKOV[1:], "--mechanism", "k-norm", {"samples": 20000}, "--seed", "1")
    assert len(output["pairs"]) == 4
    assert 0.7 < output["max_lower_bound"] < 1.0
    exact = audit_json(0, "mechanism", *MARKOV[1:], {"samples": 2000}, "--seed", "1", {"pairs": 1}, {"low_bits": True})
    assert exact["mechanism"] == "lattice"
    caught = audit_json(1, "mechanism", *MARKOV[1:], "--mechanism", "k-norm", "--seed", "1", {"low_bits": True})
    assert caught["exposed"]


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_reports_are_single_files_with_pictures(folder):
    pytest.importorskip("matplotlib")
    calls = (
        (1, (*MARKOV, "--possible", "s2,s3,s5", "--report", "markov.html")),
        (1, (*DATABASE, *COUNTS, "--report", "database.html")),
        (0, ("mechanism", *MARKOV[1:], "--mechanism", "laplace", {"samples": 1000}, "--report", "noise.html")),
    )
    for code, arguments in calls:
        result = run(*arguments)
        assert result.exit_code == code, result.stderr
        page = (folder / arguments[-1]).read_text(encoding="utf-8")
        assert page.count("data:image/png;base64,") >= 1
        assert not re.search(r'(src|href)="(?!data:)', page)
        assert run(*arguments).exit_code == 2


def write_session_files(folder) -> tuple[MarkovModel, list[int]]:
    """Write a model, a release file, a session file and the user's true trajectory."""
    grid = Grid.over((45.0, -30.05, 45.03, -30.0), 0.8)
    near = np.linalg.norm(grid.points[:, None] - grid.points[None], axis=2) < 1.2
    matrix = near / near.sum(axis=1, keepdims=True)
    model = MarkovModel(matrix, np.full(grid.size, 1 / grid.size), grid, 60.0)
    model.save(folder / "m.npz")
    rng = np.random.default_rng(2)
    states = [0]
    for _ in range(9):
        states.append(int(rng.choice(grid.size, p=matrix[states[-1]])))
    places = grid.latlon(states)
    times = np.datetime64("2024-03-07T09:00:00", "us") + np.arange(10) * np.timedelta64(60, "s")
    track = Trajectory("anna", times, places[:, 0], places[:, 1])
    lines = [f"anna,{time}Z,{lat},{lon}" for time, (lat, lon) in zip(times, places.tolist(), strict=True)]
    (folder / "true.csv").write_text("user,time,latitude,longitude\n" + "\n".join(lines) + "\n")
    policy = PolicyGraph.utility(grid.points, 1.0)

    def start(mechanism="k-norm"):
        return Releaser(model, Measurements(grid.points), policy, 0.7, mechanism, rng=5)

    write_releases(
        folder / "r.csv", ReleaseTable.from_releases(release_trajectory(start(), grid, track.resample(60.0)))
    )
    write_releases(
        folder / "r.geojson", ReleaseTable.from_releases(release_trajectory(start(), grid, track.resample(60.0)))
    )
    with Session.open(folder / "s.session", "anna", start("laplace")) as session:
        for time, state in zip(times, states, strict=True):
            session.release(state, time)
    return model, states


OPTIONS = ("--model", "m.npz", "--policy", "centres:1km")


@pytest.mark.slow
def test_releases_and_sessions_are_audited_end_to_end(folder):
    _, states = write_session_files(folder)
    for name in ("r.csv", "r.geojson", "s.session"):
        output = audit_json(0, "session", name, *OPTIONS, "--true", "true.csv")
        (anna,) = output["users"]
        assert (anna["user"], anna["num_releases"]) == ("anna", 10)
        assert anna["epsilon"] == pytest.approx(7.0)
        assert anna["exposed_releases"] == []
        bits = [anna["inference"][key]["mean_entropy_bits"] for key in ("without_releases", "filtered")]
        assert bits[0] > bits[1]
        assert anna["accuracy"]["exact_measurements"]["top_1_accuracy"] == 1.0
        right = np.mean([int(a) == b for a, b in zip(anna["most_probable_path"], states, strict=True)])
        assert anna["accuracy"]["most_probable_path_accuracy"] == pytest.approx(right)
    assert audit_json(0, "session", "s.session", *OPTIONS)["users"][0]["randomness_was_private"] is False


@pytest.mark.slow
def test_verdict_compares_posterior_with_guarantee(folder):
    """The exit code is 0 although the user is nearly located.

    The words must therefore contain the numbers of the JSON.
    """
    model, _ = write_session_files(folder)
    policy = PolicyGraph.utility(model.space.points, 1.0)
    engine = Releaser(model, Measurements(model.space.points), policy, 40.0, "k-norm", rng=5)
    track = read(folder / "true.csv").trajectories[0].resample(60.0)
    write_releases(folder / "sure.csv", ReleaseTable.from_releases(release_trajectory(engine, model.space, track)))
    output = audit_json(0, "session", "sure.csv", *OPTIONS)
    before, after = (output["users"][0]["inference"][key] for key in ("without_releases", "smoothed"))
    assert after["mean_entropy_bits"] < 0.2 < 2 < before["mean_entropy_bits"]
    assert after["max_top_1_probability"] > 0.99
    words = " ".join(run("session", "sure.csv", *OPTIONS).stdout.split())
    assert output["in_words"] in words
    assert (
        f"a mean entropy of {after['mean_entropy_bits']:.2f} bits ({before['mean_entropy_bits']:.2f} bits without"
        in words
    )
    assert f"of the most probable location is {after['mean_top_1_probability']:.2f}, the maximum" in words
    assert f"(mean {before['mean_top_1_probability']:.2f} without releases)" in words
    assert "Nothing is exposed" not in words


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_session_report_shows_beliefs_over_time(folder):
    pytest.importorskip("matplotlib")
    write_session_files(folder)
    result = run("session", "r.csv", *OPTIONS, "--report", "session.html")
    assert result.exit_code == 0, result.stderr
    assert (folder / "session.html").read_text(encoding="utf-8").count("data:image/png;base64,") == 3


def test_informed_prior_exposes_session(folder):
    write_session_files(folder)
    (folder / "knows.csv").write_text("state,probability\n0,1\n")
    output = audit_json(1, "session", "r.csv", *OPTIONS, {"adversary_prior": "knows.csv"})
    assert 1 in output["users"][0]["exposed_releases"]


BAD = [
    ((*MARKOV, "--possible", "s2,s2"), "possible states must be unique, got 's2' twice"),
    ((*MARKOV, "--possible", "s2,s7"), "'s7' does not exist"),
    (("policy", "--states", "states.csv"), "--edges FILE or --category"),
    (("policy",), "exactly one of --model and --states must be given"),
    (
        ("policy", "--states", "states.csv", "--edges", "strange.csv"),
        "edges must connect states of the table, got the unknown state 's7'",
    ),
    (("policy", "--secrets", "twice.csv", "--edges", "bounded.csv"), "secret must be unique, got 's1' twice"),
    (
        ("policy", "--secrets", "secrets.csv", "--edges", "strange.csv", *COUNTS),
        "edges must connect secrets of the table, got the unknown secret 's7'",
    ),
    ((*DATABASE, *COUNTS, "--steps", "3"), "--steps cannot be combined with --secrets"),
    ((*DATABASE, "--count", "disease=none,patient=Zoe"), "query 'disease=none,patient=Zoe' must match a secret"),
    ((*MARKOV, "--count", "x=1"), "--count needs --secrets"),
    ((*MARKOV, "--policy", "complete"), "--policy cannot be combined with --states"),
    (("policy", "--model", "m.npz", "--policy", "complete", "--edges", "e.csv"), "--edges cannot be combined with --m"),
    (("mechanism", "--model", "m.npz", "--policy", "complete", "--category", "x"), "--category cannot be combined"),
    ((*MARKOV, "--epsilon", "0"), "epsilon must be a positive, finite number"),
    ((*MARKOV, "--steps", "3"), "--steps needs a model"),
    ((*MARKOV, {"first_states": ["s1"]}), "key 'first_states' needs --steps"),
    ((*MARKOV, {"adversary_prior": "half.csv"}), "half.csv: the prior must sum to 1, got 0.5"),
    ((*MARKOV, {"adversary_prior": "stranger.csv"}), "state 's7' does not exist"),
    ((*MARKOV, "--report", "report.pdf"), "--report must be an .html file"),
    (("session", "nowhere.csv", *OPTIONS), "m.npz"),
    (
        ("mechanism", *MARKOV[1:], "--possible", "s4,s5", "--possible", "s5,s6"),
        "--possible must be given at most once for a mechanism",
    ),
    (
        ("mechanism", *MARKOV[1:], "--possible", "s2"),
        "the constraint set must contain at least two states, got 1: add states with --possible",
    ),
    (("mechanism", *MARKOV[1:], {"confidence": 1}), "key 'confidence' must be in (0, 1)"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD)
def test_invalid_input_prints_one_line_and_exits_with_2(folder, arguments, words):
    (folder / "strange.csv").write_text("a,b\ns1,s7\n")
    (folder / "twice.csv").write_text("secret,x\ns1,1\ns1,2\n")
    (folder / "half.csv").write_text("state,probability\ns1,0.5\n")
    (folder / "stranger.csv").write_text("state,probability\ns7,1\n")
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert words in result.stderr


def test_sessions_with_missing_or_other_model_or_policy_raise(folder):
    model, _ = write_session_files(folder)
    MarkovModel(np.eye(model.size), model.initial, model.states, 60.0).save(folder / "other.npz")
    for arguments, words in (
        (("s.session", "--policy", "centres:1km"), "--model must be given"),
        (("s.session", "--model", "gone.npz", "--policy", "centres:1km"), "gone.npz"),
        (("s.session", "--model", "m.npz"), "stands for a graph: pass that graph, or its text"),
        (("s.session", "--model", "other.npz", "--policy", "centres:1km"), "started with model"),
        (("s.session", "--model", "m.npz", "--policy", "centres:2km"), "started with policy"),
        (("r.csv", "--model", "m.npz", "--policy", "centres:2km"), "was released with settings"),
        (("r.csv", *OPTIONS, "--epsilon", "0.7", "--mechanism", "k-norm", "--delta", "0.1"), "released with settings"),
        (("r.csv", *OPTIONS, "--delta", "0.1"), "was released with settings"),
        (("r.csv", "--model", "m.npz", "--epsilon", "0.7"), "policy is missing"),
        (("r.csv", "--model", "m.npz"), "or they must be the defaults: use --policy"),
        (("r.csv", "--model", "other.npz", "--policy", "centres:1km"), "was released with model"),
        (("s.session", *OPTIONS, "--epsilon", "0.7"), "started with mechanism laplace, got lattice"),
        (("r.csv", *OPTIONS, "--users", "bob"), "no releases of 'bob'"),
        (("gone.csv", *OPTIONS), "there is no such file"),
    ):
        result = run("session", *arguments)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1), result.stderr
        assert words in result.stderr


def test_session_accepts_the_options_of_a_release_with_the_default_budget(folder):
    write_session_files(folder)
    options = (*OPTIONS, "--delta", "0.1")
    released = command_line.run("release", "true.csv", *options, "-o", "day.csv")
    assert released.exit_code == 0, released.stderr
    assert audit_json(0, "session", "day.csv", *options)["users"][0]["num_timesteps"] == 10


def test_constraints_follow_support_of_model(folder):
    write_session_files(folder)
    output = audit_json(0, "policy", *OPTIONS, "--steps", "5", {"first_states": ["0", "1"]})
    sizes = [constraint["num_possible_states"] for constraint in output["constraints"]]
    assert sizes == sorted(sizes)
    assert output["constraints"][0]["label"] == "t = 1"
    result = run("policy", *OPTIONS, "--steps", "5", {"first_states": ["0", "1"]})
    assert "No state is exposed by a single release." in result.stdout


@pytest.mark.slow
def test_geolife_session_is_audited_end_to_end(few_of_geolife, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = str(few_of_geolife)
    learn = ["learn", data, "--preset", "geolife", "--step", "300", "--exclude-users", "007", "--cell", "0.8"]
    release = ["release", data, "--users", "007", "--policy", "centres:1km", "--epsilon", "1"]
    for arguments in (
        [*learn, "-o", "m.npz"],
        [*release, "--model", "m.npz", "--session", "s.session", "-o", "r.csv"],
    ):
        done = command_line.run(*arguments)
        assert done.exit_code == 0, done.stderr
    stored = audit_json(0, "session", "s.session", *OPTIONS, "--true", data)["users"][0]
    written = audit_json(0, "session", "r.csv", *OPTIONS)["users"][0]
    assert stored["num_releases"] == written["num_releases"] > 50
    for key, knowledge in stored["inference"].items():
        for name, values in knowledge.items():
            np.testing.assert_allclose(values, written["inference"][key][name], rtol=1e-12, err_msg=f"{key} {name}")
    bits = [stored["inference"][key]["mean_entropy_bits"] for key in ("without_releases", "filtered", "smoothed")]
    assert bits[0] > bits[1] > bits[2] > 0
    worth = stored["accuracy"]
    assert worth["smoothed"]["mean_expected_error"] < worth["without_releases"]["mean_expected_error"]
