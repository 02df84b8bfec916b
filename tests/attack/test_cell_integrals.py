"""Tests of integrals over cells against shapely's areas, quadrature and sampled points."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import shapely
from scipy.integrate import dblquad
from scipy.stats import norm

from dphmm.attack.cell_integrals import (
    DegreeRectangles,
    compute_disc_shares,
    gaussian_log_densities,
    laplace_log_densities,
)
from dphmm.attack.deployed_channels import AndroidCoarse, GridSnapping, Meshtastic, Rounding
from dphmm.attack.mesh import Mesh
from dphmm.space import Grid
from tests.attack.scene import build_grid, build_moves

MESH = Mesh(build_grid(3), 2)
RELEASED = np.array([[0.01, -0.02], [0.125, 0.125], [0.9, -1.4], [-0.3, 0.2501]])


def make_squares(mesh: Mesh) -> np.ndarray:
    half = mesh.cell_km / 2
    return shapely.box(*(mesh.points - half).T, *(mesh.points + half).T)


def integrate(density, point: np.ndarray, mesh: Mesh, state: int) -> float:
    (x, y), half = mesh.points[state] - point, mesh.cell_km / 2
    cuts_x, cuts_y = (sorted({c - half, *([0.0] if abs(c) < half else []), c + half}) for c in (x, y))
    total = 0.0
    for left, right in pairwise(cuts_x):
        for low, high in pairwise(cuts_y):
            total += dblquad(lambda b, a: density(np.hypot(a, b)), left, right, low, high, epsrel=1e-9)[0]
    return total / mesh.cell_km**2


def test_gaussian_shares_match_normal_distribution():
    shares = np.exp(gaussian_log_densities(MESH, RELEASED, 0.2)) * MESH.cell_km**2
    half = MESH.cell_km / 2
    for row, point in zip(shares, RELEASED, strict=True):
        low, high = (MESH.points - half - point) / 0.2, (MESH.points + half - point) / 0.2
        np.testing.assert_allclose(row, (norm.cdf(high) - norm.cdf(low)).prod(axis=1), rtol=1e-6, atol=1e-15)


def test_gaussian_shares_far_away_stay_finite():
    assert np.isfinite(gaussian_log_densities(MESH, np.array([[30.0, 0.0], [-30.0, 5.0]]), 0.05)).all()


@pytest.mark.parametrize("scale", [0.02, 0.25, 3.0])
def test_laplace_shares_match_adaptive_quadrature(scale):
    shares = np.exp(laplace_log_densities(MESH, RELEASED, scale))
    for row, point in zip(shares, RELEASED, strict=True):
        for state in (0, 7, 14, 20, 35):
            wanted = integrate(lambda r: np.exp(-r / scale) / (2 * np.pi * scale**2), point, MESH, state)
            assert row[state] == pytest.approx(wanted, rel=2e-3)


def test_laplace_shares_sum_to_one_over_large_region():
    wide = Mesh(Grid.over((44.8, -30.2, 45.2, -29.8), 1.0), 2)
    total = np.exp(laplace_log_densities(wide, np.array([[0.1, 0.3]]), 0.5)).sum() * wide.cell_km**2
    assert total == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("radius", [0.03, 0.2, 0.6])
def test_disc_shares_match_shapely_areas(radius):
    shares = compute_disc_shares(MESH, RELEASED, radius)
    for row, point in zip(shares, RELEASED, strict=True):
        disc = shapely.Point(point).buffer(radius, quad_segs=4096)
        areas = shapely.area(shapely.intersection(make_squares(MESH), disc)) / MESH.cell_km**2
        np.testing.assert_allclose(row, areas, atol=1e-5)


@pytest.mark.parametrize(
    "channel", [Rounding(3), Rounding(2), Meshtastic(17), GridSnapping(0.3)], ids=lambda channel: channel.name
)
def test_snapping_overlaps_match_shapely_areas(channel):
    chain = build_moves(3, 2)
    everywhere = np.stack(np.meshgrid(*2 * [np.linspace(-0.3749, 0.3749, 80)]), axis=-1).reshape(-1, 2)
    released = np.unique(channel.snap(*chain.grid.projection.to_latlon(everywhere).T), axis=0)
    half = channel.compute_half_sizes(released)
    upright = DegreeRectangles(chain.mesh)
    middle = np.column_stack([released[:, 0], upright.center_longitude(released[:, 1])])
    shares = upright.compute_overlap_shares(middle - half, middle + half)
    for row, place, span in zip(shares, released, half, strict=True):
        box = shapely.segmentize(shapely.box(*(place - span)[::-1], *(place + span)[::-1]), 1e-4)
        plane = shapely.transform(box, lambda xy: chain.grid.projection.to_plane(xy[:, 1], xy[:, 0]))
        areas = shapely.area(shapely.intersection(make_squares(chain.mesh), plane)) / chain.mesh.cell_km**2
        np.testing.assert_allclose(row, areas, atol=1e-3)
    np.testing.assert_allclose(shares.sum(axis=0), 1.0, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("channel", [Rounding(3), Meshtastic(18), GridSnapping(0.2)], ids=lambda channel: channel.name)
def test_snapping_overlaps_match_shares_of_snapped_points(channel):
    chain = build_moves(2, 1)
    inner = (np.arange(200) + 0.5) / 200 - 0.5
    offsets = chain.grid.cell_km * np.stack(np.meshgrid(inner, inner), axis=-1).reshape(-1, 2)
    upright = DegreeRectangles(chain.mesh)
    for state, middle in enumerate(chain.grid.points):
        places = channel.snap(*chain.grid.projection.to_latlon(middle + offsets).T)
        outputs, counts = np.unique(places, axis=0, return_counts=True)
        centre = np.column_stack([outputs[:, 0], upright.center_longitude(outputs[:, 1])])
        half = channel.compute_half_sizes(outputs)
        shares = upright.compute_overlap_shares(centre - half, centre + half)[:, state]
        np.testing.assert_allclose(shares, counts / len(offsets), atol=0.012)


def test_android_overlaps_match_shares_of_samples():
    chain, channel = build_moves(2, 1), AndroidCoarse(2.0)
    upright, rng = (
        DegreeRectangles(chain.mesh),
        np.random.default_rng(3),
    )  # 40,000 samples: four standard errors are 0.01
    offsets, _, _ = channel.build_offset_chain()
    latitude = chain.grid.latlon()[:, :1]
    released = channel.obfuscate_with_offsets(chain.grid.latlon()[:1], np.zeros((1, 2)))[0]
    shares = channel.compute_output_probabilities(upright, latitude, released, offsets).reshape(
        chain.grid.size, len(offsets), len(offsets)
    )
    for state, north, east in ((0, 2, 4), (3, 7, 1), (1, 4, 4)):
        side = offsets[1] - offsets[0]
        places = chain.grid.points[state] + chain.grid.cell_km * (rng.random((40_000, 2)) - 0.5)
        sampled = np.array([offsets[north], offsets[east]]) + side * (rng.random((40_000, 2)) - 0.5)
        out = channel.obfuscate_with_offsets(chain.grid.projection.to_latlon(places), sampled)
        share = np.isclose(out, released, atol=1e-9).all(axis=1).mean()
        assert shares[state, north, east] == pytest.approx(share, abs=0.011)
