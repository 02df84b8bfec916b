"""Every benchmark runs, and everything that it prints was measured."""

from __future__ import annotations

import json
import math

import pytest

from scripts.benchmarks.__main__ import STAGES, main


@pytest.mark.parametrize("stage", STAGES)
def test_a_small_run_prints_ratios_and_writes_what_it_printed(stage, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main([stage, "--small", "--json", "found.json"])
    found = json.loads((tmp_path / "found.json").read_text())
    measured = [row for row in found["rows"] if "skipped" not in row]
    ratios = [other["ratio"] for row in measured for other in row["beside"].values()]
    assert found["stage"] == stage
    assert found["small"]
    assert found["machine"]["processors"] >= 1
    assert measured
    assert ratios
    assert all(math.isfinite(row["value"]) for row in measured)
    assert all(ratio > 0 for ratio in ratios)
    printed = capsys.readouterr().out
    assert all(row["what"] in printed for row in found["rows"])


def test_a_peer_that_is_not_installed_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("scripts.benchmarks.audit.find_spec", lambda _: None)
    main(["audit", "--small"])
    assert "hmmlearn: skipped, it is not installed" in capsys.readouterr().out
