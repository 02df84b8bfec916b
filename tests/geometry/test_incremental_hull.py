"""Growing bodies, against hulls built from all points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dphmm import SensitivityHull
from dphmm.geometry import planar
from dphmm.geometry.incremental_hull import GrowingBody, PlanarBody, build_growing_body
from tests.sizes import choose_count


def build_body(differences, d):
    both = np.concatenate([differences, -differences])
    if d == 2:
        return PlanarBody(planar.build_convex_polygon(both))
    return GrowingBody(np.rint(SensitivityHull(both).vertices).astype(np.int64))


@settings(max_examples=choose_count(50, 20))
@given(st.sampled_from([1, 2, 3]), st.integers(0, 10**6))
def test_grown_volumes_and_errors_match_new_hulls(d, seed):
    rng = np.random.default_rng(seed)
    inner, vectors = rng.integers(-5, 6, (rng.integers(1, 6), d)), rng.integers(-8, 9, (5, d))
    spacing = rng.choice([0.5, 1.0, 3.0], d)
    body = build_body(inner, d)
    hulls = [SensitivityHull(np.concatenate([inner, vector[None]])) for vector in vectors]
    volumes = [hull.volume for hull in hulls]
    np.testing.assert_allclose(body.volume + body.compute_growth(vectors), volumes, rtol=1e-9, atol=1e-9)
    errors = [hull.scale_axes(spacing).squared_error for hull in hulls]
    np.testing.assert_allclose(body.compute_grown_errors(vectors, spacing), errors, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(body.squared_error(spacing), SensitivityHull(inner).scale_axes(spacing).squared_error)
    for vector, hull in zip(vectors, hulls, strict=True):
        np.testing.assert_array_equal(body.grow(vector[None]).contains(vectors), hull.contains(vectors))


bodies = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=6).map(np.array)


@given(bodies, bodies)
def test_holds_matches_containment_in_grown_hulls(inner, vectors):
    body = build_body(inner, 2)
    vectors = vectors[~body.contains(vectors)]
    assume(len(vectors))
    grown = [SensitivityHull(np.concatenate([body.vertices, vector[None]])).contains(vectors) for vector in vectors]
    np.testing.assert_array_equal(body._contains_after_growth(vectors, vectors), grown)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_inner_vectors_do_not_change_body(d):
    body = build_growing_body(np.concatenate([np.eye(d, dtype=np.int64)[::-1], -np.eye(d, dtype=np.int64)]) * 4)
    if d == 2:
        body = build_body(4 * np.eye(2, dtype=np.int64), 2)
    inside = np.array([[2] + [1] * (d - 1), [0] * d])
    assert body.compute_growth(inside).tolist() == [0.0, 0.0]
    assert body.compute_grown_errors(inside, np.ones(d)) == pytest.approx([body.squared_error(np.ones(d))] * 2)


@pytest.mark.parametrize("case", ["disc", "line", "axis", "lattice"])
def test_many_vectors_grow_origin_to_hull_of_all_vectors(case, monkeypatch):
    rng = np.random.default_rng(1)
    scale = 10 if case == "lattice" else 10**8  # beyond the coordinates that `planar` sifts itself
    radii, angles = np.sqrt(rng.random(20_000)), rng.uniform(0, np.pi, 20_000)
    vectors = np.rint(scale * radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)).astype(np.int64)
    if case in ("line", "axis"):
        vectors = vectors[:, :1] * np.array([[2, 1] if case == "line" else [0, 3]])
    sizes = []
    build = planar.build_convex_polygon
    monkeypatch.setattr(planar, "build_convex_polygon", lambda points: sizes.append(len(points)) or build(points))
    grown = PlanarBody(np.zeros((1, 2), dtype=np.int64)).grow(vectors)
    assert grown.vertices.tolist() == build(np.concatenate([vectors, -vectors])).tolist()
    # Sorting all vectors of both signs would take most of the time.
    assert case in ("line", "axis") or max(sizes) < 4_000
