from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from dphmm.cli import main

pytest.importorskip("pyarrow")
pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    lines = ["user_id,tracked_at,latitude,longitude"]
    for user in range(5):
        for minute in range(1, 31):
            place = 45.001 + 0.004 * ((minute * (user + 1)) % 6), -30.049 + 0.007 * ((minute + user) % 6)
            lines.append(f"p{user},2024-03-01T00:{minute:02}:00Z,{place[0]},{place[1]}")
    (folder / "people.csv").write_text("\n".join(lines) + "\n")
    keys = f'data = ["{folder / "people.csv"}"]\nbbox = [45.0, -30.05, 45.03, -30.0]\ncell_km = 0.5\n'
    keys += "step_seconds = 60.0\nsequences = 3\nlength = 8\nepsilons = [1.0, 2.0]\n"
    (folder / "job.toml").write_text(keys)
    return folder / "job.toml"


@pytest.mark.usefixtures("blank")
def test_command_writes_table_pictures_and_a_report_of_its_own_line(job, tmp_path):
    line = ["evaluate", str(job), "-o", str(tmp_path / "run"), "--workers", "1", "--json"]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert (facts["users_evaluated"], facts["learned_from_users_least"], facts["settings"]) == (3, 4, 6)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    private = {"report.html", "steps.parquet", "split.json", "map.png", "figure-12-epsilon.png"}
    private |= {"settings.csv", "claims.csv"}
    assert {f"PRIVATE-{name}" for name in private} <= names
    assert "holds" in (tmp_path / "run" / "PRIVATE-report.html").read_text()
    assert facts["claims_that_hold"] + facts["claims_that_do_not"] + facts["claims_not_decided"] == 21
    again = json.loads(CliRunner().invoke(main, [*line, "--resume"]).stdout)
    assert (again["tasks_run"], again["tasks_found_finished"]) == (0, 18)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "dask"], "--scheduler"),
        (["--scheduler", "tcp://127.0.0.1:9"], "--engine dask"),
        (["--engine", "dask", "--scheduler", "tcp://127.0.0.1:9", "--workers", "2"], "--workers"),
        (["--workers", "0"], "'--workers': 0 is not in the range"),
    ],
)
def test_options_that_contradict_each_other_are_one_line_and_write_nothing(job, tmp_path, options, said):
    done = CliRunner().invoke(main, ["evaluate", str(job), "-o", str(tmp_path / "run"), *options])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_policy_that_connects_no_states_is_refused_before_any_task(job, tmp_path, resume):
    text = job.read_text() + "radii_km = [1.0, 0.3]\n"
    (tmp_path / "job.toml").write_text(text)
    done = CliRunner().invoke(main, ["evaluate", str(tmp_path / "job.toml"), "-o", str(tmp_path / "run"), *resume])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert "key 'radii_km': policy 'centres:0.3km' joins no two of the" in done.stderr
    assert "give centres:500m or more, or a smaller cell_km" in done.stderr
    assert not (tmp_path / "run").exists()
