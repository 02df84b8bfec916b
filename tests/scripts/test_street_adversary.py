"""The measurement of the adversary with a street map, on a small network."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import binom

from dphmm.readers.synthetic_city import build_city
from scripts import street_adversary
from scripts.make_sample import build_streets_geojson
from scripts.street_adversary import Network, compute_interval, compute_reliability, main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("networks")
    (path / "town.geojson").write_text(json.dumps(build_streets_geojson(build_city(blocks=24))))
    return path


def test_interval_is_that_of_binomial_tails():
    low, high = compute_interval(7, 60)
    assert binom.sf(6, 60, low) == pytest.approx(0.025)
    assert binom.cdf(7, 60, high) == pytest.approx(0.025)
    assert compute_interval(0, 60)[0] == 0
    assert compute_interval(60, 60)[1] == 1


def test_reliability_accepts_calibrated_and_rejects_overconfident_probabilities():
    """300 outcomes with seed 0: each of five bins at a level of 95 %."""
    rng = np.random.default_rng(0)
    stated = rng.uniform(0, 0.6, 300)
    hits = rng.random(300) < stated

    def count_misses(probabilities):
        return sum(not low <= mean <= high for mean, _, low, high in compute_reliability(probabilities, hits))

    assert count_misses(stated) <= 1
    assert count_misses(np.minimum(2 * stated, 1)) >= 3


@pytest.mark.slow
def test_ways_are_near_shortest_and_reproducible(folder):
    network = Network(folder / "town.geojson")
    home = network.projection.to_latlon(np.zeros((1, 2)))[0]
    rides, again = (network.sample_rides(home, np.random.default_rng(5), 4) for _ in range(2))
    for ways, others in zip(rides, again, strict=True):
        for way, other in zip(ways, others, strict=True):
            assert np.array_equal(way, other)
        ends = [network.projection.to_plane(*way[[0, -1]].T) for way in ways]
        assert np.hypot(*(ends[0] - ends[1]).T).max() < 0.05  # both lead from home to the destination
        straight = np.hypot(*(ends[0][1] - ends[0][0]))
        assert straight < 0.005 * len(ways[0]) < 2 * straight


@pytest.mark.slow
def test_measurement_continues_and_report_names_every_bin(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(street_adversary, "FITTED", ())
    monkeypatch.setattr(street_adversary, "KEPT_OUT", ("town.geojson",))
    monkeypatch.setattr(street_adversary, "_MARGIN_KM", 1.2)
    monkeypatch.setattr(street_adversary, "RIDES", (1, 2))
    monkeypatch.setattr(street_adversary, "VARIANTS", ("--within 500m",))
    monkeypatch.setattr(street_adversary, "_NUM_BINS", 1)
    output = tmp_path / "rows.jsonl"
    main(["measure", str(folder), "--homes", "1", "--output", str(output)])
    first = output.read_text()
    main(["measure", str(folder), "--homes", "2", "--output", str(output)])
    lines = output.read_text().splitlines()
    assert output.read_text().startswith(first)
    assert [json.loads(line)["home"] for line in lines] == [0, 1]
    main(["report", str(folder), "--output", str(output)])
    text = capsys.readouterr().out
    assert "2 rides, street" in text
    assert "reliability of near, 2 rides" in text
