"""Tests of the plot of a recording with hidden places: it shows all that is kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dphmm.jobs import hide
from dphmm.plots.hide import draw_hide_figure
from tests.documents import ROOT


@pytest.mark.slow
def test_public_track_is_within_view_with_and_without_basemap():
    result = hide(ROOT / "data/sample/ride.gpx", near=[(45.01, -30.01)], within_km=0.5)
    plain, with_basemap = (draw_hide_figure(result, basemap) for basemap in (None, ROOT / "data/streets.geojson"))
    plane = result.places[0].zone.projection
    kept = np.concatenate([plane.to_plane(segment.latitude, segment.longitude) for segment in result.public.segments])
    for figure in (plain, with_basemap):
        (west, east), (south, north) = figure.axes[0].get_xlim(), figure.axes[0].get_ylim()
        assert ([west, south] < kept.min(axis=0)).all()
        assert (kept.max(axis=0) < [east, north]).all()
    for ax, other in zip(plain.axes[:2], with_basemap.axes[:2], strict=True):
        assert (ax.get_xlim(), ax.get_ylim()) == (other.get_xlim(), other.get_ylim())


@pytest.mark.slow
def test_single_points_on_both_sides_of_the_zone_are_visible(tmp_path):
    """A line through one point has no length."""
    places = [(45.04, 8), (45.01, 9), (44.98, 10)]
    points = "".join(
        f'<trkpt lat="{north}" lon="-30.01"><time>2024-05-01T{hour:02}:00:00Z</time></trkpt>' for north, hour in places
    )
    (tmp_path / "ride.gpx").write_text(f"<gpx><trk><trkseg>{points}</trkseg></trk></gpx>", encoding="utf-8")
    result = hide(tmp_path / "ride.gpx", near=[(45.01, -30.01)], within_km=0.5)
    assert [len(segment) for segment in result.public.segments] == [1, 1]
    lines = [line for line in draw_hide_figure(result).axes[0].lines if len(line.get_xdata()) == 1]
    assert [line.get_marker() for line in lines] == ["o", "o"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "shape"), [(1, (1, 2)), (2, (1, 3)), (5, (2, 3)), (12, (4, 4)), (30, (6, 6)), (80, (6, 6))]
)
def test_zones_form_a_grid_of_at_most_36_panels(count, shape):
    result = hide(ROOT / "data/sample/ride.gpx", near=[(45.01, -30.01)], within_km=0.5)
    figure = draw_hide_figure(replace(result, places=count * result.places))
    panels = [ax for ax in figure.axes if ax.get_subplotspec() is not None and ax.get_label() != "<colorbar>"]
    assert {ax.get_gridspec().get_geometry() for ax in panels} == {shape}
    assert len(panels) == 1 + min(count, 35)
    numbers = [text.get_text() for text in panels[0].texts]
    assert numbers == ([] if count == 1 else [str(number) for number in range(1, len(panels))])
    titles = [ax.get_title("left") for ax in panels]
    assert ("35 most exposed of 80 zones" in titles[0]) == (count == 80)
    latitude, longitude = result.places[0].zone.square.centre
    assert (f"centred on {latitude:.4f}, {longitude:.4f}" in titles[-1]) == (count > 1)


@pytest.mark.parametrize(("first", "is_shown"), [(45.02, True), (45.05, False)])
def test_legend_lists_gates_in_view_only(tmp_path, first, is_shown):
    """The view ends 1.3 km from the centre of the core, at latitude 45.0225."""
    rows = [45.01, *np.arange(first, 45.08, 0.005)]
    points = "".join(
        f'<trkpt lat="{row}" lon="-30.01"><time>2024-05-01T08:{minute:02}:00Z</time></trkpt>'
        for minute, row in enumerate(rows)
    )
    (tmp_path / "ride.gpx").write_text(f"<gpx><trk><trkseg>{points}</trkseg></trk></gpx>", encoding="utf-8")
    (legend,) = draw_hide_figure(hide(tmp_path / "ride.gpx", near=[(45.01, -30.01)], within_km=0.5)).legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert ("exit or entry" in labels) == is_shown
    assert len(labels) == len(set(labels))
