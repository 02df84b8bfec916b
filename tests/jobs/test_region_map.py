"""Tests of maps in models, with unchanged guarantees."""

from __future__ import annotations

import json

import numpy as np
import pytest
import shapely

from dphmm import MarkovModel, ReleaseSettings
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.jobs import Data, build_blank_model, learn, region
from dphmm.jobs.region_map import build_region_map, restrict_region
from dphmm.space.grid import Grid
from dphmm.space.world_map import clip_land, compute_land_shares
from tests import command_line

# San Francisco: the ocean, the city and the bay.
COAST = (37.70, -122.55, 37.80, -122.35)
TRAINING = Data(("data/sample/geolife",), exclude_users=("000",))


def _write(path, *features):
    collection = [
        {"type": "Feature", "properties": tags, "geometry": shape.__geo_interface__} for shape, tags in features
    ]
    path.write_text(json.dumps({"type": "FeatureCollection", "features": collection}))
    return path


def test_land_shares_agree_with_points_of_the_map():
    """A regular lattice of 200 × 200 points is an independent estimate of the areas."""
    grid = Grid.over(COAST, 2.0)
    shares = compute_land_shares(grid)
    land = clip_land(shapely.box(-123.5, 36.5, -121.5, 38.5))
    axes = [np.linspace(low, high, 200) for low, high in zip(COAST[:2], COAST[2:], strict=True)]
    latitude, longitude = (axis.ravel() for axis in np.meshgrid(*axes))
    states = grid.locate(latitude, longitude)
    is_land = shapely.contains_xy(land, longitude, latitude)
    counts = np.bincount(states, minlength=grid.size)
    whole = counts > 0.9 * counts.max()
    assert whole.sum() > 20
    assert 0.2 < shares.mean() < 0.8
    empirical = np.bincount(states[is_land], minlength=grid.size)[whole] / counts[whole]
    assert np.abs(empirical - shares[whole]).max() < 0.05


def test_land_on_both_sides_of_the_date_line():
    grid = Grid.over((-17.2, 179.6, -16.2, -179.7), 5.0)  # Taveuni and Vanua Levu in Fiji
    longitude = grid.latlon()[:, 1]
    shares = compute_land_shares(grid)
    assert shares[longitude > 0].max() > 0.9
    assert shares[longitude < 0].max() > 0.5
    assert shares.min() == 0


def test_map_of_a_blank_model_changes_probabilities_only():
    """Possible moves, constraint sets, policy edges and noise are those without the map."""
    space = region(bbox=COAST, cell_km=2.0)
    models = [build_blank_model(space, region_map=source).model for source in (None, "coast")]
    assert ((models[0].transition != 0) != (models[1].transition != 0)).nnz == 0
    engines = [ReleaseSettings(policy="utility:3km", epsilon=0.5).engine(model, rng=1) for model in models]
    plans = []
    for state in (4, 4, 30, 31, 31):
        records = [engine.release(state) for engine in engines]
        # The true state is that of both, so that equal noise gives equal releases.
        assert records[0].released == records[1].released
        assert records[0].estimate != records[1].estimate
        plans.append([engine.build_plan(engine.predict(), 0.5) for engine in engines])
    for first, second in plans:
        assert (first.constraint == second.constraint).all()
        assert first.protection.added == second.protection.added
        assert first.protection.body.volume == second.protection.body.volume
        assert first.constrained_dp_factor == second.constrained_dp_factor
        edges = [{tuple(edge) for edge in plan.protection.graph.edges} for plan in (first, second)]
        assert edges[0] == edges[1]
        assert len(edges[0]) > space.size


@pytest.mark.slow
def test_blank_model_has_the_bundled_coast_by_default_and_states_it(tmp_path):
    result = build_blank_model(bbox=COAST, output=tmp_path / "m.npz")
    loaded = MarkovModel.load(tmp_path / "m.npz")
    assert loaded.provenance["map_credit"] == "Coast and lakes: Natural Earth."
    assert "a public map" in result.to_dict()["guarantee"]
    # Where the map has no coast, nothing changes: the town of the sample lies in the Atlantic.
    plain, default = (
        build_blank_model(bbox=(44.97, -30.04, 45.03, -29.96), kind="cycling", **options).model
        for options in ({"region_map": None}, {})
    )
    assert plain.content_hash == default.content_hash
    assert plain.provenance == default.provenance


def test_kilometres_of_street_are_exact_on_lines_of_known_length(tmp_path):
    space = Grid.over((45.0, 7.0, 45.05, 7.07), 1.0)
    middle = space.latlon()[14]
    east = middle + np.array([0, 0.4 / 111.2 / np.cos(np.radians(middle[0]))])
    path = _write(tmp_path / "m.geojson", (shapely.LineString([middle[::-1], east[::-1]]), {"highway": "primary"}))
    region_map = build_region_map(path, space)
    assert region_map.content[14] == pytest.approx(0.4, rel=0.01)
    # Beyond the extent of the file the content is unknown, and its attraction is the mean.
    is_covered = ~np.isnan(region_map.content)
    assert is_covered.sum() < 4
    assert region_map.attraction[14] == region_map.attraction[~is_covered].max()
    assert region_map.credit == "Map: m.geojson. Coast and lakes: Natural Earth."


def test_water_and_coast_of_a_file_refine_the_land(tmp_path):
    space = Grid.over((48.0, 12.0, 48.1, 12.1), 1.0)
    lake = shapely.box(12.02, 48.02, 12.06, 48.06)
    bridge = shapely.LineString([(12.0, 48.04), (12.1, 48.04)])
    tags = {"natural": "water"}, {"highway": "residential"}
    region_map = build_region_map(_write(tmp_path / "m.geojson", (lake, tags[0]), (bridge, tags[1])), space)
    inside = 1 - space.share_within(lake)
    assert region_map.land == pytest.approx(inside, abs=1e-6)
    on_bridge = (region_map.land == 0) & (region_map.content > 0)
    assert on_bridge.any()
    assert not region_map.excluded[on_bridge].any()
    assert region_map.excluded.any()


def test_restriction_keeps_cells_that_share_area_and_bridges(tmp_path):
    space = Grid.over((48.0, 12.0, 48.1, 12.1), 1.0)
    banks = [shapely.box(12.0, 48.0, 12.03, 48.1), shapely.box(12.07, 48.0, 12.1, 48.1)]
    layer = _write(tmp_path / "land.geojson", *((bank, {"name": str(number)}) for number, bank in enumerate(banks)))
    bridge = _write(tmp_path / "m.geojson", (shapely.LineString([(12.0, 48.05), (12.1, 48.05)]), {"highway": "trunk"}))
    narrow, warnings = restrict_region(space, layer)
    assert narrow.size == int((space.share_within(shapely.union_all(banks)) > 0).sum()) < space.size
    assert warnings == ()
    wide, _ = restrict_region(space, layer, build_region_map(bridge, space))
    gap = (space.locate(np.full(9, 48.05), np.linspace(12.03, 12.07, 9)) >= 0).sum()
    assert gap == 9
    assert (wide.locate(np.full(9, 48.05), np.linspace(12.03, 12.07, 9)) >= 0).all()
    assert narrow.size < wide.size < space.size
    model = build_blank_model(space, only_on=layer).model
    assert model.size == narrow.size


def test_small_islands_are_announced_with_their_distance(tmp_path):
    space = Grid.over((48.0, 12.0, 48.1, 12.1), 1.0)
    island = space.latlon()[0]
    shapes = shapely.box(12.05, 48.0, 12.1, 48.1), shapely.Point(island[::-1]).buffer(0.001)
    layer = _write(tmp_path / "land.geojson", *((shape, {}) for shape in shapes))
    narrow, warnings = restrict_region(space, layer)
    points = narrow.points
    others = points[np.linalg.norm(points - space.points[0], axis=1) > 0.5]
    gap = np.linalg.norm(others - space.points[0], axis=1).min()
    assert len(warnings) == 1
    assert f"by up to {gap:.3g} km" in warnings[0]


@pytest.mark.slow
def test_learned_models_with_map_have_the_same_possible_moves_and_state_the_map(tmp_path):
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=1.0)
    # The sample's region is sea on the bundled map: it contains nothing there, and no bit of the model changes.
    plain = learn(TRAINING, space, 300)
    sea = learn(TRAINING, space, 300, region_map="coast").model
    assert sea.content_hash == plain.model.content_hash
    assert "map_credit" not in sea.provenance
    street = shapely.LineString([(-30.04, 45.0), (-29.96, 45.0)]), {"highway": "primary"}
    border = shapely.LineString([(-30.04, 44.97), (-30.04, 45.03)]), {"highway": "residential"}
    file = _write(tmp_path / "m.geojson", street, border)
    attraction = build_region_map(file, space).attraction
    assert attraction.max() > 2 * attraction.min()
    mapped = learn(TRAINING, space, 300, region_map=file, output=tmp_path / "model.npz").model
    assert ((plain.model.transition != 0) != (mapped.transition != 0)).nnz == 0
    assert (
        MarkovModel.load(tmp_path / "model.npz").provenance["map_credit"]
        == "Map: m.geojson. Coast and lakes: Natural Earth."
    )
    change = mapped.initial - plain.model.initial
    assert change == pytest.approx(0.3 * (attraction / attraction.sum() - 1 / space.size), abs=1e-12)
    private = learn(TRAINING, space, 300, user_epsilon=1, region_map=file).model
    assert private.provenance["map_credit"] == mapped.provenance["map_credit"]
    assert private.provenance["epsilon"] == "1"
    shown = command_line.run("model", "show", tmp_path / "model.npz", "-o", tmp_path / "model.png")
    assert "Map: m.geojson. Coast and lakes: Natural Earth." in " ".join(shown.output.split())
    assert "model.png" in shown.output


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"region_map": "missing.osm.pbf"}, DataFileError, "missing.osm.pbf"),
        ({"only_on": "missing.geojson"}, DataFileError, "missing.geojson"),
    ],
)
def test_invalid_maps_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        build_blank_model(bbox=COAST, **options)


def test_maps_of_named_places_and_smoothed_models_are_refused(tmp_path):
    (tmp_path / "p.csv").write_text("name,latitude,longitude\na,45,7\nb,45.01,7.01\nc,45.03,7\n")
    places = region(places=tmp_path / "p.csv")
    assert build_blank_model(places).model.size == 3
    with pytest.raises(ConfigurationError, match="a map requires a grid"):
        build_blank_model(places, region_map="m.osm.pbf")
    with pytest.raises(ConfigurationError, match="--only-on requires a grid"):
        build_blank_model(places, only_on="m.geojson")
    with pytest.raises(ConfigurationError, match="--map cannot be combined with --smoothing"):
        learn(TRAINING, places, 300, smoothing=1, region_map="coast")
