from __future__ import annotations

import json

import pytest

from tests import command_line

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
    (folder / "users.csv").write_text("\n".join(lines) + "\n")
    keys = f'data = ["{folder / "users.csv"}"]\nbbox = [45.0, -30.05, 45.03, -30.0]\ncell_km = 0.5\n'
    keys += "step_seconds = 60.0\nsequences = 3\nlength = 8\nepsilons = [1.0, 2.0]\n"
    (folder / "job.toml").write_text(keys)
    return folder / "job.toml"


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_command_writes_table_pictures_and_report(job, tmp_path):
    line = ["evaluate", str(job), "-o", str(tmp_path / "run"), "--workers", "1", "--json"]
    done = command_line.run(*line)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert (facts["num_users"], facts["min_training_users"], facts["num_settings"]) == (3, 4, 6)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    private = {"report.html", "steps.parquet", "split.json", "map.png", "figure-12-epsilon.png"}
    private |= {"settings.csv", "claims.csv"}
    assert {f"PRIVATE-{name}" for name in private} <= names
    assert "holds" in (tmp_path / "run" / "PRIVATE-report.html").read_text()
    assert facts["num_claims_held"] + facts["num_claims_failed"] + facts["num_claims_undecided"] == 21
    again = json.loads(command_line.run(*line, "--resume").stdout)
    assert (again["num_tasks_run"], again["num_tasks_already_finished"]) == (0, 18)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([{"engine": "dask"}], "set scheduler"),
        ([{"scheduler": "tcp://127.0.0.1:9"}], "set engine = 'dask'"),
        ([{"engine": "dask"}, {"scheduler": "tcp://127.0.0.1:9"}, "--workers", "2"], "--workers"),
        (["--workers", "0"], "'--workers': 0 is not in the range"),
    ],
)
@pytest.mark.parametrize("compares", [[], ["--compare-noise"]], ids=["settings", "noise"])
def test_conflicting_options_print_one_line_and_write_nothing(job, tmp_path, options, message, compares):
    done = command_line.run("evaluate", str(job), "-o", str(tmp_path / "run"), *options, *compares)
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("resume", [[], ["--resume"]], ids=["new", "resumed"])
def test_policy_without_edges_raises_before_any_task(job, tmp_path, resume):
    text = job.read_text() + "radii_km = [1.0, 0.3]\n"
    (tmp_path / "job.toml").write_text(text)
    done = command_line.run("evaluate", str(tmp_path / "job.toml"), "-o", str(tmp_path / "run"), *resume)
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert "key 'radii_km': policy 'centres:0.3km' connects none of the" in done.stderr
    assert "use centres:500m or more, or a smaller cell_km" in done.stderr
    assert not (tmp_path / "run").exists()
