"""Regions of streets: their options, models, releases and real extracts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import shapely

from dphmm import ReleaseSettings
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.jobs import build_blank_model, learn, region
from dphmm.jobs.region_map import build_region_map
from dphmm.space import Grid, Streets
from dphmm.tables.street_map import STREET_CLASSES, read_street_map
from tests import command_line

STREETS = "data/streets.geojson"


def test_region_has_all_streets_of_a_connected_map():
    street_map = read_street_map(STREETS)
    space = region(streets=STREETS)
    assert isinstance(space, Streets)
    assert space.lengths_km.sum() == pytest.approx(street_map.lengths_km.sum(), rel=1e-4)
    assert space.lengths_km.max() <= 0.1
    assert space.within_km == 0.2


def test_box_bounds_streets():
    box = (44.99, -30.02, 45.01, -29.98)
    space = region(streets=STREETS, bbox=box, cell_km=0.2, within_km=0.5)
    middle = space.latlon()
    # A piece of street with its middle inside is kept whole; pieces have half a kilometre.
    assert ((middle > np.array(box[:2]) - 0.004) & (middle < np.array(box[2:]) + 0.004)).all()
    assert space.lengths_km.sum() < 0.3 * region(streets=STREETS).lengths_km.sum()
    assert space.within_km == 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"streets": STREETS, "places": "stops.csv"}, "exactly one region"),
        ({"streets": STREETS, "preset": "geolife"}, "exactly one region"),
        ({"streets": STREETS, "bbox": (44.9, -30.1, 45, -30), "town": "Lyon"}, "exactly one region"),
        ({"streets": STREETS, "cell_km": 0.001}, "at most 20,000 segments, got 142,866 of at most 0.001 km"),
        ({"bbox": (44.9, -30.1, 45, -30), "cell_km": 1, "within_km": 1}, "within_km requires --places or --streets"),
    ],
)
def test_invalid_combinations_are_refused(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        region(**arguments)


def write_raster(path, meridian, form):
    """Write streets across a meridian, in a form of longitudes beyond 180°."""
    rows = [[(meridian + east, north) for east in (-0.007, 0.0, 0.005)] for north in (0.001, 0.003, 0.006)]
    if form == "cut":
        rows = [part for row in rows for part in (row[:2], [(east - 360, north) for east, north in row[1:]])]
    columns = [[(meridian + east, 0.0), (meridian + east, 0.008)] for east in (-0.004, 0.0, 0.003)]
    lines = [
        [(east if form == "beyond" or east == 180 else (east + 180) % 360 - 180, north) for east, north in line]
        for line in rows + columns
    ]
    features = [
        {"type": "Feature", "properties": {}, "geometry": {"type": "LineString", "coordinates": line}} for line in lines
    ]
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return path


@pytest.mark.parametrize("form", ["cut", "jump", "beyond"])
@pytest.mark.parametrize("half_width", [None, 0.0045])
def test_streets_across_the_date_line_equal_those_elsewhere(tmp_path, form, half_width):
    boxes = [None, None]
    if half_width is not None:
        boxes = [(-1, 170 - half_width, 1, 170 + half_width), (-1, 180 - half_width, 1, half_width - 180)]
    expected = region(streets=write_raster(tmp_path / "170.geojson", 170, "jump"), bbox=boxes[0])
    space = region(streets=write_raster(tmp_path / "180.geojson", 180, form), bbox=boxes[1])
    places = expected.latlon() + np.array([0, 10])
    states = space.locate(places[:, 0], (places[:, 1] + 180) % 360 - 180)
    assert sorted(states) == list(range(space.size))
    assert space.lengths_km[states] == pytest.approx(expected.lengths_km, abs=3e-5)
    for distance in (0.0, 0.3):
        pairs = np.sort(states[expected.pairs_within(distance)])
        assert sorted(pairs.tolist()) == sorted(space.pairs_within(distance).tolist())
    shares = expected.share_within(shapely.box(169.998, 0, 170.002, 0.004))
    halves = [shapely.box(179.998, 0, 180, 0.004), shapely.box(-180, 0, -179.998, 0.004)]
    assert space.share_within(shapely.MultiPolygon(halves))[states] == pytest.approx(shares, abs=1e-3)
    assert space.share_within(shapely.box(179.998, 0, 180.002, 0.004))[states] == pytest.approx(shares, abs=1e-3)


def test_streets_across_the_date_line_attract_like_those_elsewhere(tmp_path):
    grids = [Grid.over((-0.001, 169.99, 0.009, 170.01), 0.2), Grid.over((-0.001, 179.99, 0.009, -179.99), 0.2)]
    maps = [write_raster(tmp_path / f"{meridian}.geojson", meridian, "cut") for meridian in (170, 180)]
    expected, content = (build_region_map(*pair).content for pair in zip(maps, grids, strict=True))
    assert content == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_map_without_streets_is_refused_with_its_name(tmp_path):
    with pytest.raises(DataFileError, match=r"home\.geojson"):
        region(streets="data/home.geojson")


def test_map_as_attraction_is_refused_for_streets():
    with pytest.raises(ConfigurationError, match="a map requires a grid"):
        build_blank_model(region(streets=STREETS, cell_km=0.5), region_map=STREETS)


def test_learned_model_names_its_map_and_kilometres():
    learned = learn("data/sample/cabs", region(streets=STREETS, cell_km=0.5), 60)
    assert learned.model.provenance["map_credit"] == "Map: streets.geojson."
    assert learned.to_dict()["street_km"] == pytest.approx(142.7, abs=0.2)
    assert learned.training.num_outside == 0


@pytest.mark.slow
def test_commands_release_a_taxi_on_streets(tmp_path):
    model, output = tmp_path / "streets.npz", tmp_path / "taxis.csv"
    words = ("--streets", STREETS, "--cell", "0.3", "--kind", "driving", "--max-speed", "60")
    built = command_line.run("model", "blank", *words, "-o", str(model))
    assert built.exit_code == 0, built.stderr
    words = ("--model", str(model), "--policy", "streets:300m", "--epsilon", "1", "--seed", "1")
    done = command_line.run("release", "data/sample/cabs", *words, "-o", str(output))
    assert done.exit_code == 0, done.stderr
    assert "Released 520 of 520 timesteps" in done.stdout
    assert "locations within 0.3 km along streets" in " ".join(done.stdout.split())


def test_release_keeps_the_ratio_of_the_policy_between_ends_of_every_edge(tmp_path):
    space = region(streets=STREETS, bbox=(44.99, -30.02, 45.002, -30.0), cell_km=0.15)
    model = build_blank_model(space, 60, "driving", 60).model
    engine = ReleaseSettings(policy="streets:300m", epsilon=1.0).engine(model, rng=2)
    record = engine.release(7)
    # Bayes: the posterior over the prior is the likelihood, up to a factor of all states.
    likelihood = engine.belief.probabilities / model.initial
    first, second = space.pairs_within(0.3).T
    ratios = likelihood[first] / likelihood[second]
    assert record.min_degree_of_protection > 1
    assert np.abs(np.log(ratios)).max() <= 1.0 + 1e-9
    assert np.abs(np.log(ratios)).max() > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["monaco.osm.gz", "helsinki_small.osm.pbf", "andorra.osm.pbf"])
def test_real_extracts_become_models(real_data, name, tmp_path):
    path = real_data / "streets" / name
    if not path.exists():
        pytest.skip(f"{name} is absent")
    street_map = read_street_map(path)
    space = region(streets=path, cell_km=0.2)
    open_km = street_map.lengths_km[street_map.classes != STREET_CLASSES.index("path")].sum()
    assert 0.5 * open_km < space.lengths_km.sum() <= open_km * (1 + 1e-4)
    model = build_blank_model(space, 30, "driving", 60).model
    assert model.provenance["map_credit"] == "© OpenStreetMap contributors."


def test_accuracy_that_was_measured_with_grids_is_not_stated_for_streets():
    box = (44.99, -30.02, 45.01, -29.98)
    assert "accuracy" not in build_blank_model(region(streets=STREETS, bbox=box), 60).to_dict()
    assert "GeoLife" in build_blank_model(region(bbox=box, cell_km=1), 60).to_dict()["accuracy"]
