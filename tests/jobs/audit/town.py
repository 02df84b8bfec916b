"""A town on or off the published lattice, and the audit command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dphmm import ReleaseSettings
from dphmm.jobs import (
    Data,
)
from tests import command_line

TOWN = str(Path(__file__).parents[3] / "data" / "sample" / "geolife")


ANNA = Data((TOWN,), users=("002",))


BBOX = (44.97, -30.035, 45.03, -29.97)


POLICY = "utility:1km"


SETTINGS = ReleaseSettings(policy=POLICY, epsilon=0.8)


STEP = ("--step", "1800", "--smoothing", "0.5", "--exclude-users", "002", "-o", "m.npz")


REGIONS = {
    "places": ("--places", "places.csv"),
    "cells of a third of a kilometre": ("--bbox", *map(str, BBOX), "--cell", "0.3333"),
}


def run(*words: object) -> None:
    done = command_line.run(*words)
    assert done.exit_code == 0, done.output + done.stderr


def run_audit(*words: object) -> dict:
    done = command_line.run("audit", *words, "--json")
    assert done.exit_code in (0, 1), done.output + done.stderr
    output = json.loads(done.stdout)
    assert output["exposed"] is (done.exit_code == 1)
    return output


def write_places(path: Path) -> None:
    """Write thirty places at random coordinates off the lattice, with a fixed seed."""
    rng = np.random.default_rng(3)
    (south, west, north, east) = BBOX
    rows = zip(rng.uniform(south, north, 30).tolist(), rng.uniform(west, east, 30).tolist(), strict=True)
    lines = [f"place {i},{latitude!r},{longitude!r}" for i, (latitude, longitude) in enumerate(rows)]
    path.write_text("name,latitude,longitude\n" + "\n".join(lines) + "\n")
