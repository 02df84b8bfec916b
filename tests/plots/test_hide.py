"""Tests of the plot of a recording with hidden places: it shows all that is kept."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.jobs import hide
from dphmm.plots.hide import hidden_figure
from tests.documents import ROOT


@pytest.mark.slow
def test_public_track_is_within_view_with_and_without_basemap():
    result = hide(ROOT / "data/sample/ride.gpx", near=[(45.01, -30.01)], within_km=0.5)
    plain, with_basemap = (hidden_figure(result, basemap) for basemap in (None, ROOT / "data/streets.geojson"))
    plane = result.places[0].zone.projection
    kept = np.concatenate([plane.to_plane(segment.latitude, segment.longitude) for segment in result.public.segments])
    for figure in (plain, with_basemap):
        (west, east), (south, north) = figure.axes[0].get_xlim(), figure.axes[0].get_ylim()
        assert ([west, south] < kept.min(axis=0)).all()
        assert (kept.max(axis=0) < [east, north]).all()
    for ax, other in zip(plain.axes[:2], with_basemap.axes[:2], strict=True):
        assert (ax.get_xlim(), ax.get_ylim()) == (other.get_xlim(), other.get_ylim())
