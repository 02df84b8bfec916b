"""The audit command: the paper's examples out of its JSON, its exit codes, its reports, and its refusals."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from dphmm import Grid, MarkovModel, Measurements, PolicyGraph, Releaser, Trajectory, read, release_trajectory
from dphmm.cli import main
from dphmm.release.session import Session
from dphmm.writers.formats import write_releases
from dphmm.writers.table import ReleaseTable

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
    return CliRunner().invoke(main, ["audit", *arguments])


def found(code: int, *arguments: str) -> dict:
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output + result.stderr
    return json.loads(result.stdout)


MARKOV = ("policy", "--states", "states.csv", "--category", "kind")
DATABASE = ("policy", "--secrets", "secrets.csv", "--edges", "bounded.csv")
COUNTS = ("--count", "disease=cancer", "--count", "disease=diabetes")


def test_example_5_1(folder):
    told = found(0, *MARKOV)["constraints"][0]
    assert told["hull"]["area"] == 11.0
    corners = {(round(x), round(y)) for x, y in told["hull"]["vertices"]}
    assert corners == {(-4, -1), (1, -1), (3, 0), (4, 1), (-1, 1), (-3, 0)}
    knorm, laplace = told["mechanisms"]
    assert knorm["degrees"] == {"s1": 4, "s2": 6, "s3": 3, "s4": 5, "s5": 4, "s6": 4}
    assert laplace["sensitivity"] == 5.0
    assert (told["disconnected"], told["components"]) == (["s1"], 3)


def test_example_5_2(folder):
    told = found(1, *MARKOV, "--possible", "s2,s3,s5", "--epsilon", "0.5")["constraints"][0]
    knorm, laplace = told["mechanisms"]
    assert knorm["exposed"] == laplace["exposed"] == ["s5"]
    assert laplace["sensitivity"] == 2.0
    (witness,) = laplace["witnesses"]
    assert witness["output"] == [4.0, 2.0]
    assert {one["state"]: (one["factor"], one["log_ratio"]) for one in witness["against"]} == {
        "s2": (1.5, 0.75),
        "s3": (1.5, 0.75),
    }
    assert knorm["witnesses"][0]["gives_away_for_certain"]
    assert {one["factor"] for one in knorm["witnesses"][0]["against"]} == {None}


def test_example_5_3_and_its_details_in_10_5(folder):
    told = found(1, *DATABASE, *COUNTS, "--epsilon", "0.3")
    knorm, laplace = told["mechanisms"]
    assert knorm["factors"] == {"s1": 1, "s2": 0, "s3": 1, "s4": 2, "s5": 1, "s6": 2}
    assert knorm["total_epsilon"] == pytest.approx(0.6)
    assert laplace["factors"] == {"s1": 0.5, "s2": 0, "s3": 0.5, "s4": 0.5, "s5": 0.5, "s6": 0.5}
    assert (knorm["exposed"], laplace["exposed"]) == (["s4", "s6"], [])
    assert laplace["sensitivity"] == 2.0
    assert found(0, *DATABASE, *COUNTS, "--mechanism", "laplace")["exposed"] is False


def test_example_6_1_and_figure_9(folder):
    sets = ("--possible", "s3,s4,s5,s6", "--possible", "s2,s4,s5,s6")
    exposed, kept = found(1, *MARKOV, *sets)["constraints"]
    assert exposed["mechanisms"][0]["exposed"] == ["s3"]
    repairs = {one["method"]: (one["added"], one["area"]) for one in exposed["repairs"]}
    assert repairs["greedy"] == ([["s3", "s5"]], 16.0)
    assert repairs["sequential"] == ([["s3", "s4"]], 14.0)
    assert repairs["exact"] == ([["s3", "s5"]], 16.0)  # least error
    least_area = found(1, *MARKOV, "--possible", "s3,s4,s5,s6", "--objective", "volume")["constraints"][0]["repairs"]
    assert {one["method"]: one["area"] for one in least_area}["exact"] == 14.0
    assert kept["mechanisms"][0]["degrees"] == {"s2": 3, "s4": 4, "s5": 4, "s6": 3}
    assert (kept["disconnected"], kept["exposed"], kept["hull"]["area"]) == (["s2"], False, 9.0)
    least_error = {one["method"]: one["added"] for one in found(1, *MARKOV, *sets)["constraints"][0]["repairs"]}
    assert least_error["exact"] == [["s3", "s5"]], "of area 16, and less error than s4's 14"


def test_another_prior_is_audited_beside_the_policy(folder):
    (folder / "prior.csv").write_text("state,probability\ns2,0.5\ns3,0.25\ns5,0.25\n")
    told = found(1, *MARKOV, "--possible", "s2,s3", "--adversary", "prior.csv")
    other = told["constraints"][0]["adversary"]
    assert (other["relation"], other["exposed"], other["shared"]) == ("wider", ["s5"], 2)


def test_unbounded_edges_and_plain_contributions(folder):
    (folder / "answers.csv").write_text("secret,x,y\na,1,0\nb,0,1\n")
    (folder / "null.csv").write_text("a,b\na,null\nb,null\n")
    told = found(0, "policy", "--secrets", "answers.csv", "--edges", "null.csv")
    assert told["mechanisms"][0]["factors"] == {"a": 1.0, "b": 1.0}


def test_mechanism_bounds_lie_under_the_claim(folder):
    told = found(0, "mechanism", *MARKOV[1:], "--mechanism", "k-norm", "--samples", "20000", "--seed", "1")
    assert len(told["pairs"]) == 4
    assert 0.7 < told["largest_lower_bound"] < 1.0
    exact = found(0, "mechanism", *MARKOV[1:], "--samples", "2000", "--seed", "1", "--pairs", "1", "--low-bits")
    assert exact["mechanism"] == "lattice"
    caught = found(1, "mechanism", *MARKOV[1:], "--mechanism", "k-norm", "--seed", "1", "--low-bits")
    assert caught["exposed"]


@pytest.mark.usefixtures("blank")
def test_reports_are_single_files_with_pictures(folder):
    pytest.importorskip("matplotlib")
    calls = (
        (1, (*MARKOV, "--possible", "s2,s3,s5", "--report", "markov.html")),
        (1, (*DATABASE, *COUNTS, "--report", "database.html")),
        (0, ("mechanism", *MARKOV[1:], "--mechanism", "laplace", "--samples", "1000", "--report", "noise.html")),
    )
    for code, arguments in calls:
        result = run(*arguments)
        assert result.exit_code == code, result.stderr
        page = (folder / arguments[-1]).read_text(encoding="utf-8")
        assert page.count("data:image/png;base64,") >= 1
        assert not re.search(r'(src|href)="(?!data:)', page)
        assert run(*arguments).exit_code == 2


def session_files(folder) -> tuple[MarkovModel, list[int]]:
    """A model of a small walk, a file of releases and a file of sessions, and the person's true trajectory."""
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


GIVEN = ("--model", "m.npz", "--policy", "centres:1km")


def test_releases_and_sessions_are_audited_end_to_end(folder):
    _, states = session_files(folder)
    for name in ("r.csv", "r.geojson", "s.session"):
        told = found(0, "session", name, *GIVEN, "--true", "true.csv")
        (anna,) = told["users"]
        assert (anna["user"], anna["releases"]) == ("anna", 10)
        assert anna["epsilon"] == pytest.approx(7.0)
        assert anna["exposed_releases"] == []
        bits = [anna["knowledge"][key]["entropy_bits_mean"] for key in ("no_releases", "at_each_release")]
        assert bits[0] > bits[1]
        assert anna["accuracy"]["told_every_measurement"]["best_guess_right"] == 1.0
        right = np.mean([int(a) == b for a, b in zip(anna["most_probable_path"], states, strict=True)])
        assert anna["accuracy"]["most_probable_path_right"] == pytest.approx(right)
    assert found(0, "session", "s.session", *GIVEN)["users"][0]["randomness_was_private"] is False


def test_the_verdict_says_what_was_learned_beside_what_was_promised(folder):
    """Exit code 0 with a person who is as good as found: the words must say so, with the numbers of the JSON."""
    model, _ = session_files(folder)
    policy = PolicyGraph.utility(model.space.points, 1.0)
    engine = Releaser(model, Measurements(model.space.points), policy, 40.0, "k-norm", rng=5)
    track = read(folder / "true.csv").trajectories[0].resample(60.0)
    write_releases(folder / "sure.csv", ReleaseTable.from_releases(release_trajectory(engine, model.space, track)))
    told = found(0, "session", "sure.csv", *GIVEN)
    before, after = (told["users"][0]["knowledge"][key] for key in ("no_releases", "in_hindsight"))
    assert after["entropy_bits_mean"] < 0.2 < 2 < before["entropy_bits_mean"]
    assert after["best_guess_probability_most"] > 0.99
    said = " ".join(run("session", "sure.csv", *GIVEN).stdout.split())
    assert told["in_words"] in said
    assert f"leave {after['entropy_bits_mean']:.2f} of {before['entropy_bits_mean']:.2f} bits of uncertainty" in said
    assert f"with probability {after['best_guess_probability_mean']:.2f} on average" in said
    assert f"({before['best_guess_probability_mean']:.2f} without releases)" in said
    assert "Nothing is exposed" not in said


@pytest.mark.usefixtures("blank")
def test_a_session_report_shows_beliefs_over_time(folder):
    pytest.importorskip("matplotlib")
    session_files(folder)
    result = run("session", "r.csv", *GIVEN, "--report", "session.html")
    assert result.exit_code == 0, result.stderr
    assert (folder / "session.html").read_text(encoding="utf-8").count("data:image/png;base64,") == 3


def test_a_prior_that_knows_exposes_a_session(folder):
    session_files(folder)
    (folder / "knows.csv").write_text("state,probability\n0,1\n")
    told = found(1, "session", "r.csv", *GIVEN, "--adversary", "knows.csv")
    assert 1 in told["users"][0]["exposed_releases"]


BAD = [
    ((*MARKOV, "--possible", "s2,s2"), "named twice"),
    ((*MARKOV, "--possible", "s2,s7"), "'s7' does not exist"),
    (("policy", "--states", "states.csv"), "--edges FILE or --category"),
    (("policy",), "no single set of states"),
    (("policy", "--states", "states.csv", "--edges", "strange.csv"), "'s7', which is not in the table"),
    (("policy", "--secrets", "twice.csv", "--edges", "bounded.csv"), "secret 's1' is named twice"),
    (("policy", "--secrets", "secrets.csv", "--edges", "strange.csv", *COUNTS), "secret 's7', which is not"),
    ((*DATABASE, *COUNTS, "--steps", "3"), "--steps belongs to the Markov form"),
    ((*MARKOV, "--count", "x=1"), "--count belongs to the database form"),
    ((*MARKOV, "--epsilon", "0"), "epsilon is 0"),
    ((*MARKOV, "--steps", "3"), "--steps needs a model"),
    ((*MARKOV, "--start", "s1"), "--start says"),
    ((*MARKOV, "--adversary", "half.csv"), "sums to 0.5"),
    ((*MARKOV, "--adversary", "stranger.csv"), "state 's7' does not exist"),
    ((*MARKOV, "--report", "report.pdf"), "a report is an .html file"),
    (("session", "nowhere.csv", *GIVEN), "m.npz"),
    (("mechanism", *MARKOV[1:], "--possible", "s4,s5", "--possible", "s5,s6"), "one at a time"),
    (("mechanism", *MARKOV[1:], "--confidence", "1"), "confidence is 1"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD)
def test_bad_input_is_one_line_and_exit_2(folder, arguments, words):
    (folder / "strange.csv").write_text("a,b\ns1,s7\n")
    (folder / "twice.csv").write_text("secret,x\ns1,1\ns1,2\n")
    (folder / "half.csv").write_text("state,probability\ns1,0.5\n")
    (folder / "stranger.csv").write_text("state,probability\ns7,1\n")
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert words in result.stderr


def test_sessions_whose_model_or_policy_is_missing_or_another(folder):
    model, _ = session_files(folder)
    MarkovModel(np.eye(model.size), model.initial, model.states, 60.0).save(folder / "other.npz")
    for arguments, words in (
        (("s.session", "--policy", "centres:1km"), "the model is missing"),
        (("s.session", "--model", "gone.npz", "--policy", "centres:1km"), "gone.npz"),
        (("s.session", "--model", "m.npz"), "was given as a graph; give its text"),
        (("s.session", "--model", "other.npz", "--policy", "centres:1km"), "began with model"),
        (("s.session", "--model", "m.npz", "--policy", "centres:2km"), "began with policy"),
        (("r.csv", "--model", "m.npz", "--policy", "centres:2km"), "was released with settings"),
        (("r.csv", *GIVEN, "--epsilon", "0.7", "--mechanism", "k-norm", "--delta", "0.1"), "released with settings"),
        (("r.csv", *GIVEN, "--delta", "0.1"), "epsilon is missing"),
        (("r.csv", "--model", "m.npz"), "no policy is given"),
        (("r.csv", "--model", "other.npz", "--policy", "centres:1km"), "was released with model"),
        (("s.session", *GIVEN, "--epsilon", "0.7"), "began with mechanism laplace, not lattice"),
        (("r.csv", *GIVEN, "--users", "bob"), "no releases of 'bob'"),
        (("gone.csv", *GIVEN), "there is no such file"),
    ):
        result = run("session", *arguments)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1), result.stderr
        assert words in result.stderr


def test_constraints_along_the_support_of_a_model(folder):
    session_files(folder)
    told = found(0, "policy", *GIVEN, "--steps", "5", "--start", "0,1")
    sizes = [one["possible"] for one in told["constraints"]]
    assert sizes == sorted(sizes)
    assert told["constraints"][0]["label"] == "t = 1"
    result = run("policy", *GIVEN, "--steps", "5", "--start", "0,1")
    assert "No state is exposed by one release." in result.stdout


@pytest.mark.slow
def test_a_geolife_session_end_to_end(few_of_geolife, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = str(few_of_geolife)
    learn = ["learn", data, "--preset", "geolife", "--step", "300", "--exclude-users", "007", "--cell", "0.8"]
    release = ["release", data, "--users", "007", "--policy", "centres:1km", "--epsilon", "1"]
    for arguments in (
        [*learn, "-o", "m.npz"],
        [*release, "--model", "m.npz", "--session", "s.session", "-o", "r.csv"],
    ):
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.stderr
    stored = found(0, "session", "s.session", *GIVEN, "--true", data)["users"][0]
    written = found(0, "session", "r.csv", *GIVEN)["users"][0]
    assert stored["releases"] == written["releases"] > 50
    for key, known in stored["knowledge"].items():
        for name, values in known.items():
            np.testing.assert_allclose(values, written["knowledge"][key][name], rtol=1e-12, err_msg=f"{key} {name}")
    bits = [stored["knowledge"][key]["entropy_bits_mean"] for key in ("no_releases", "at_each_release", "in_hindsight")]
    assert bits[0] > bits[1] > bits[2] > 0
    worth = stored["accuracy"]
    assert worth["in_hindsight"]["expected_error_mean"] < worth["no_releases"]["expected_error_mean"]
