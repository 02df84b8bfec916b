"""The picture of a recording in which places are hidden shows all that is left of it."""

from __future__ import annotations

import numpy as np

from dphmm.jobs import hide
from dphmm.plots.hidden import hidden_figure
from tests.documents import ROOT


def test_a_hidden_recording_is_seen_whole_with_a_basemap_too():
    found = hide(ROOT / "data/sample/ride.gpx", near=[(45.01, -30.01)], within_km=0.5)
    plain, drawn = (hidden_figure(found, basemap) for basemap in (None, ROOT / "data/streets.geojson"))
    plane = found.places[0].zone.projection
    kept = np.concatenate([plane.to_plane(one.latitude, one.longitude) for one in found.public.segments])
    for figure in (plain, drawn):
        (west, east), (south, north) = figure.axes[0].get_xlim(), figure.axes[0].get_ylim()
        assert ([west, south] < kept.min(axis=0)).all()
        assert (kept.max(axis=0) < [east, north]).all()
    for one, other in zip(plain.axes[:2], drawn.axes[:2], strict=True):
        assert (one.get_xlim(), one.get_ylim()) == (other.get_xlim(), other.get_ylim())
