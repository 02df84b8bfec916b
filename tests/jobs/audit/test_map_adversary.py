"""Tests of the adversary with a map, against brute force and enumeration."""

from __future__ import annotations

import json
from itertools import pairwise, product

import networkx as nx
import numpy as np
import pytest
import shapely

from dphmm import ReleaseSettings, protect
from dphmm.audit.sequence import ReleasedSequence, audit_adversaries
from dphmm.errors import ConfigurationError
from dphmm.jobs import (
    AuditTarget,
    CalibrationTargets,
    Data,
    audit_event,
    audit_policy,
    audit_session,
    build_blank_model,
    calibrate,
    region,
    release,
)
from dphmm.jobs.audit.adversaries import Adversaries, build_map_adversary
from dphmm.jobs.region_map import build_region_map
from dphmm.model import region_prior
from dphmm.model.map_attraction import with_map
from dphmm.space.grid import Grid
from tests import command_line

INLAND = Grid.over((48.0, 12.0, 48.05, 12.08), 1.0)
COAST = (37.70, -122.55, 37.85, -122.35)


def _write_lake(path, shape):
    feature = {"type": "Feature", "properties": {"natural": "water"}, "geometry": shape.__geo_interface__}
    path.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    return path


def _count_within(hull, points, center):
    """Count the points in the hull around a center, by shapely."""
    return sum(shapely.distance(hull, shapely.Point(point - center)) < 1e-9 for point in points)


@pytest.mark.parametrize("seed", range(6))
def test_exposed_states_by_brute_force(tmp_path, seed):
    """Definition 5.2 on possible land states, with a random lake and constraint set."""
    rng = np.random.default_rng(seed)
    middles = INLAND.latlon()[rng.choice(INLAND.size, 16, replace=False)]
    lake = shapely.union_all([shapely.box(b - 0.012, a - 0.008, b + 0.012, a + 0.008) for a, b in middles])
    file = _write_lake(tmp_path / "m.geojson", lake)
    possible = np.sort(rng.choice(INLAND.size, 20, replace=False))
    target = AuditTarget.from_model(region_prior(INLAND, 300), "utility:1km")
    constraint = target.constrain_to(tuple(target.names[state] for state in possible))
    audit = audit_policy(target, [constraint], region_map=file)
    (result,) = audit.map_audits
    is_land = INLAND.share_within(lake) < 1 - 1e-9
    land = [state for state in possible if is_land[state]]
    mask = np.isin(np.arange(INLAND.size), possible)
    repaired = protect(target.policy, target.measurements, mask)
    points = INLAND.points
    edges = list(repaired.graph.edges)
    differences = [sign * (points[j] - points[k]) for j, k in edges for sign in (1, -1)]
    hull = shapely.MultiPoint(differences).convex_hull
    degrees = {state: _count_within(hull, points[land], points[state]) for state in land}
    exposed = [state for state in land if degrees[state] == 1]
    assert list(result.audit.exposed_with_surrogates) == exposed
    assert result.audit.min_degree_of_protection == min(degrees.values())
    assert result.num_excluded == len(possible) - len(land)
    expected = [tuple(sorted({a + b - state for a, b in edges if state in (a, b)})) for state in exposed]
    assert list(result.neighbours) == expected
    assert not is_land[[state for adjacent in expected for state in adjacent]].any()
    on_all = [_count_within(hull, points[possible], points[state]) for state in land]
    assert sum(on_all) > sum(degrees.values())


def test_sentences_name_states_neighbours_and_adversary(tmp_path):
    lake = shapely.box(12.0, 48.0, 12.045, 48.06)
    file = _write_lake(tmp_path / "m.geojson", lake)
    target = AuditTarget.from_model(region_prior(INLAND, 300), "utility:1km")
    row = np.flatnonzero(INLAND.lattice[:, 1] == 2)
    excluded = build_region_map(file, INLAND).excluded
    last = [state for state in row if excluded[state]][-1]
    names = tuple(target.names[state] for state in (last - 1, last, last + 1))
    audit = audit_policy(target, [target.constrain_to(names)], region_map=file)
    sentence = audit.summary_sentences()[1]
    assert audit.is_exposed
    assert sentence.startswith("To an adversary who excludes cells without land (Map: m.geojson. Coast")
    assert f"state '{names[2]}' is exposed after the repair: the neighbours of '{names[2]}'" in sentence
    assert f"'{names[1]}'" in sentence
    (exported,) = audit.to_dict()["constraints"]
    assert exported["map_adversary"]["exposed"] == [names[2]]
    assert exported["map_adversary"]["num_land_states"] == 1
    assert exported["map_adversary"]["num_excluded"] == 2


def test_policy_audit_refuses_a_map_without_model():
    target = AuditTarget(tuple(map(str, range(INLAND.size))), INLAND.measurements(), nx.Graph([(0, 1)]))
    with pytest.raises(ConfigurationError, match="a map requires --model"):
        audit_policy(target, region_map="coast")


def test_inference_with_map_by_enumeration(tmp_path):
    """The smoothed belief equals the sum over all 8^3 paths, weighted once per visit."""
    space = Grid.over((48.0, 12.0, 48.02, 12.05), 1.5)
    file = _write_lake(tmp_path / "m.geojson", shapely.box(11.9, 47.9, 12.02, 48.1))
    model = region_prior(space, 300)
    engine = ReleaseSettings(policy="utility:2km", epsilon=0.7).engine(model, rng=3)
    released = np.array([engine.release(state).released for state in (5, 5, 2)])
    engine.restart()
    sequence = ReleasedSequence("u", released, np.full(3, 0.7), np.array([1, 1, 1]))
    adversary = build_map_adversary(file, model)
    audit = audit_adversaries(engine, sequence, (adversary,))[0]
    weights = np.where(build_region_map(file, space).land > 0, 1.0, 0.0)
    weights = np.maximum(weights / weights.mean(), 0.02)
    assert 0 < (weights < 1).sum() < space.size
    dense = model.transition.toarray()
    # Noise by the densities of the sensitivity hull: all states are possible, so that one plan serves all steps.
    engine.restart()
    likelihoods = []
    for step in range(3):
        plan = engine.build_plan(engine.predict(), 0.7)
        likelihoods.append(np.exp(engine.log_likelihood(plan, released[step])))
    posterior = np.zeros((3, space.size))
    for path in product(range(space.size), repeat=3):
        mass = model.initial[path[0]] * weights[path[0]]
        for source, target in pairwise(path):
            others = np.arange(space.size) != source
            reweighted = dense[source, target] * weights[target] / (dense[source] * weights)[others].sum()
            mass *= dense[source, source] if source == target else (1 - dense[source, source]) * reweighted
        mass *= np.prod([likelihoods[step][state] for step, state in enumerate(path)])
        for step, state in enumerate(path):
            posterior[step, state] += mass
    posterior /= posterior.sum(axis=1, keepdims=True)
    computed = np.array([belief.probabilities for belief in audit.smoothed])
    assert computed == pytest.approx(posterior, rel=1e-9)
    assert audit.auxiliary_knowledge == "the map m.geojson"


SETTINGS = ReleaseSettings(policy="utility:2km", epsilon=0.5)


def _write_user(path):
    """Write forty minutes of a user at the coast."""
    rows = "".join(f"ann,2024-03-04T08:{minute:02}:00Z,37.775,-122.505\n" for minute in range(0, 40, 5))
    path.write_text(f"user,time,latitude,longitude\n{rows}")
    return Data((path,))


@pytest.mark.slow
def test_session_audit_and_summary_of_release_with_the_coast(tmp_path):
    model = build_blank_model(region(bbox=COAST, cell_km=1), region_map=None).model
    data = _write_user(tmp_path / "data.csv")
    result = release(data, model, SETTINGS, tmp_path / "r.csv", rng=4, adversary_map="coast")
    settings = SETTINGS
    audit = audit_session(tmp_path / "r.csv", model, settings, adversaries=Adversaries(region_map="coast"))
    public, mapped = audit.audits
    assert mapped.auxiliary_knowledge == "the coast"
    water = build_region_map("coast", model.space).excluded
    shares = [np.mean([belief.probabilities[water].sum() for belief in each.smoothed]) for each in (public, mapped)]
    assert shares[1] < 0.2 * shares[0]
    assert not audit.private
    with_map = mapped.prior_metrics.error.mean()
    assert with_map < public.prior_metrics.error.mean()
    # The guarantee does not depend on the adversary.
    for first, second in zip(public.steps, mapped.steps, strict=True):
        assert first.min_degree_of_protection == second.min_degree_of_protection
        assert second.adversary.exposed_with_surrogates == ()
    # The owner's summary has the smoothed error of both adversaries.
    summary = result.to_private_dict()
    for each, name in ((public, "the_model"), (mapped, "a_map")):
        stated = summary[f"smoothed_min_user_median_adversary_error_m_knowing_{name}"]
        assert stated == pytest.approx(1000 * np.median(each.smoothed_metrics.error), rel=1e-6)


def test_event_audit_with_the_coast_by_enumeration(tmp_path):
    """The prior at the first release is the adversary's initial mass of the state."""
    model = build_blank_model(region(bbox=COAST, cell_km=1), region_map=None).model
    release(_write_user(tmp_path / "data.csv"), model, SETTINGS, tmp_path / "r.csv", rng=4)
    land = build_region_map("coast", model.space).land
    state = int(np.flatnonzero(land == 0)[0])
    audit = audit_event(
        tmp_path / "r.csv", model, f"at:{state} between 0 and 0", SETTINGS, adversaries=Adversaries(region_map="coast")
    )
    public, mapped = audit.audits[0]
    weights = np.maximum((land > 0) / (land > 0).mean(), 0.02)
    assert public.prior_probability == pytest.approx(1 / model.size, rel=1e-9)
    assert mapped.prior_probability == pytest.approx(weights[state] / weights.sum(), rel=1e-9)
    assert mapped.auxiliary_knowledge == "the coast"


@pytest.mark.slow
def test_calibration_for_an_adversary_with_the_coast():
    model = build_blank_model(region(bbox=COAST, cell_km=1), region_map=None).model
    targets = CalibrationTargets(adversary_error=1.5)
    options = {"num_users": 4, "horizon_seconds": 3600.0}
    public, mapped = (
        calibrate(model, SETTINGS, targets, adversary_map=source, **options) for source in (None, "coast")
    )
    assert (public.auxiliary_knowledge, mapped.auxiliary_knowledge) == ("the model", "the coast")
    # Without releases this adversary's guess is the point of the least error on land.
    land = with_map(model, build_region_map("coast", model.space).land_attraction).initial
    distances = np.linalg.norm(model.space.points[:, None] - model.space.points[None], axis=2)
    assert mapped.error_without_releases == pytest.approx((distances @ land).min(), rel=0.05)
    assert mapped.error_without_releases < public.error_without_releases
    with pytest.raises(ConfigurationError, match="--map cannot be combined"):
        calibrate(model, SETTINGS, targets, adversary_map="coast", auxiliary_data="missing.csv", **options)


_SESSION_AUDIT = ("audit", "session", "r.csv", "--model", "m.npz", "--policy", "utility:2km", "--epsilon", "0.5")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("audit", "policy", "--model", "m.npz", "--policy", "utility:2km", "--map", "missing.osm.pbf"),
            "missing.osm.pbf",
        ),
        ((*_SESSION_AUDIT, "--map", "missing.osm.pbf"), "missing.osm.pbf"),
        (("release", "--model", "m.npz", {"adversary_map": "coast"}), "key 'adversary_map' needs DATA"),
    ],
)
def test_invalid_maps_are_refused_in_one_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    model = build_blank_model(region(bbox=COAST, cell_km=2), output="m.npz").model
    release(_write_user(tmp_path / "data.csv"), model, SETTINGS, "r.csv", rng=4)
    result = command_line.run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
