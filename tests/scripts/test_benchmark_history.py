"""Tests of the benchmark history: regressions are reported, slow machines are not."""

from __future__ import annotations

import json

import pytest

from scripts.benchmarks.history import append

MACHINE = {"processors": 2, "system": "here"}


def run(value, floor=1.0, unit="ms", stage="limits", machine=MACHINE):
    beside = {"floor": {"value": floor, "ratio": floor / value}}
    row = {"what": "step", "value": value, "unit": unit, "comparisons": beside}
    skipped = {"what": "peer", "skipped": "it is not installed"}
    return {"stage": stage, "small": False, "machine": machine, "rows": [row, skipped]}


@pytest.mark.parametrize(
    ("second", "is_reported"),
    [
        (run(4.0), True),
        (run(2.2), False),  # within the usual variation
        (run(4.0, floor=2.0), False),  # the machine was slower, too
        (run(6.0, floor=2.0), True),
        (run(1.0), False),
        (run(4.0, stage="engine"), False),
        (run(4.0, machine=MACHINE | {"system": "there"}), False),
        (run(4.0, unit="x"), False),
    ],
    ids=[
        "slower",
        "similar",
        "slower machine",
        "slower than machine",
        "faster",
        "other stage",
        "other machine",
        "other unit",
    ],
)
def test_slower_benchmark_is_reported(tmp_path, second, is_reported):
    file = tmp_path / "history.jsonl"
    assert append(run(2.0), file) == []
    lines = append(second, file)
    assert [line.startswith("step: ") for line in lines] == ([True] if is_reported else [])
    assert len([json.loads(line)["when"] for line in file.read_text().splitlines()]) == 2


def test_lower_rate_is_reported_as_slower(tmp_path):
    file = tmp_path / "history.jsonl"
    append(run(1000.0, unit="draws/s"), file)
    assert append(run(500.0, unit="draws/s"), file) == [
        f"step: 500 draws/s, 2 times as slow as the 1e+03 of {json.loads(file.read_text().splitlines()[0])['when']}"
    ]
    assert append(run(900.0, unit="draws/s"), file) == []
