"""Tests of the web map in headless Chromium at the widths of a phone and a desktop."""

from __future__ import annotations

import time

import numpy as np
import pytest
import shapely

from dphmm.plots import ReleaseMap
from dphmm.policy import PolicyGraph
from tests.plots import walks
from tests.sizes import mark_slow

SIZES = {"phone": {"width": 420, "height": 850}, "desk": {"width": 1280, "height": 800}}


def wait_for(true) -> None:
    """Wait until a condition holds.

    The page's content security policy forbids polling inside the page.
    """
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.02)


def render_page(release_map: ReleaseMap, **options) -> str:
    return release_map.to_html("Title", **options)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    policy = PolicyGraph.utility(walks.GRID.measurements(), 2.0, walks.GRID.cell_km)
    options = {"policy": policy, "policy_text": "utility:2km"}
    parts = shapely.MultiPolygon([shapely.box(-118.3, 34.0, -118.2, 34.1), shapely.box(-118.1, 34.0, -118.0, 34.1)])
    return {
        "one": render_page(ReleaseMap(walks.release_walk(1), walks.GRID, **options)),
        "few": render_page(
            ReleaseMap(walks.release_walk(20), walks.GRID, [walks.walk(60, reach=0.3)], [("a", parts)], **options)
        ),
        "two": render_page(ReleaseMap(walks.sample_table(6_000, 2))),
        "many": render_page(ReleaseMap(walks.sample_table(100_000, 50), walks.GRID, **options)),
    }


@pytest.fixture
def open_page(browser, pages, tmp_path):
    """Open a page, and fail at the end for any request or script error."""
    wrong, state_pairs = [], []

    def open_(name, size="desk"):
        file = tmp_path / f"{name}.html"
        file.write_text(pages[name], encoding="utf-8")
        context = browser.new_context(viewport=SIZES[size])
        state_pairs.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: wrong.append(request.url) if request.url != file.as_uri() else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.goto(file.as_uri())
        wait_for(lambda: page.evaluate("frames > 0"))
        return page

    yield open_
    for context in state_pairs:
        context.close()
    assert wrong == []


def count_colours(page) -> dict[str, int]:
    """Return the number of canvas pixels of each colour."""
    return page.evaluate(
        """() => { paint(); const d = pen.getImageData(0, 0, canvas.width, canvas.height).data, found = {};
             for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 250) {
               const key = `${d[i]},${d[i + 1]},${d[i + 2]}`; found[key] = (found[key] ?? 0) + 1; }
             return found; }"""
    )


def read_counts(page) -> dict[str, str]:
    rows = page.locator("#layers label").all()
    return {row.inner_text().split("\n")[0]: row.locator("span").inner_text() for row in rows}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["one", "few", "two", mark_slow("many")])
def test_map_is_not_empty_and_noise_covers_no_estimate(open_page, name, size):
    page = open_page(name, size)
    width, height = SIZES[size]["width"], SIZES[size]["height"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.scrollHeight") <= height
    for part in ("header", "#map", "aside", "#play", "#layers"):
        box = page.locator(part).bounding_box()
        assert box["x"] >= 0, part
        assert box["x"] + box["width"] <= width + 0.5, part
    assert page.locator("#map").bounding_box()["height"] > 0.4 * height
    assert len(count_colours(page)) > 20
    seen = page.evaluate("layers.filter(l => !l.ends && l.clocked).map(l => spansOf(l).length)")
    assert all(seen)
    if name in ("one", "few"):  # with a policy, the noise is plotted next to the data
        covered = page.evaluate(
            """() => { paint(); const [[from, to]] = spansOf(main); let found = 0;
                 for (let i = from; i < to; i++) found += px(main.x[i]) > corner.x && py(main.y[i]) < corner.y;
                 return found; }"""
        )
        assert covered == 0


def test_page_starts_with_one_users_day_and_counts_follow_selection(open_page):
    page = open_page("two")
    assert page.input_value("#user") == "u000"
    assert page.evaluate("selected.day") is not None
    day = read_counts(page)["estimate at a sample"]
    table = walks.sample_table(6_000, 2)
    user_rows = table.select(table["user"].astype(str) == "u000")
    days, number = np.unique(user_rows["time"].astype("datetime64[D]"), return_counts=True)
    assert day == f"{number.max()}"
    assert page.locator("#day option").count() == 1 + len(days)
    page.select_option("#day", "")
    assert read_counts(page)["estimate at a sample"] == "3,000"
    page.select_option("#user", "")
    page.select_option("#day", "")
    assert read_counts(page) == {
        "estimate at a sample": "6,000",
        "sampled location": "6,000",
        "RMS noise of a release": "",
    }
    page.locator("#time").fill("0")
    assert read_counts(page)["sampled location"] == "2"


def test_legend_shows_noise_as_it_is_plotted_and_counts_no_outlines(open_page):
    page = open_page("few")
    ring = page.locator("#layers :has-text('RMS noise of a release') > i")
    style = ring.evaluate("node => [getComputedStyle(node).borderTopStyle, getComputedStyle(node).borderTopColor]")
    assert style == ["dashed", "rgb(213, 94, 0)"]
    hull = page.locator("#layers :has-text('sensitivity hull') > i")
    assert hull.evaluate("node => getComputedStyle(node).backgroundColor") == "rgb(204, 121, 167)"
    assert read_counts(page)["areas"] == ""


def test_days_can_be_stepped_and_time_plays(open_page):
    page = open_page("two")
    page.select_option("#day", index=1)
    assert page.locator("#before").is_disabled()
    first = page.input_value("#day")
    page.click("#after")
    assert int(page.input_value("#day")) == int(first) + 1
    page.click("#before")
    assert page.input_value("#day") == first
    page.click("#play")
    wait_for(lambda: page.evaluate("+by('time').value > 3 && timer > 0"))
    page.click("#play")
    assert page.inner_text("#play") == "Play"


def test_hull_is_plotted_once_and_adjacent_states_at_pointer(open_page):
    page = open_page("few")
    purple = "235,201,221"  # a hull's fill over white, see drawNoise
    near = lambda a, b: all(abs(int(x) - int(y)) < 8 for x, y in zip(a.split(","), b.split(","), strict=True))  # noqa: E731
    assert sum(n for colour, n in count_colours(page).items() if near(colour, purple)) > 200
    graph = PolicyGraph.utility(walks.GRID.measurements(), 2.0, walks.GRID.cell_km)
    middle = int(walks.GRID.locate(34.02, -118.30)[0])
    latitude, longitude = walks.GRID.latlon()[middle]
    at = page.evaluate(f"map.latLngToContainerPoint([{latitude}, {longitude}])")
    box = page.locator("#map").bounding_box()
    page.mouse.move(box["x"] + at["x"], box["y"] + at["y"])
    page.wait_for_selector(".tip:not([hidden])")
    degree = int((graph.edge_array() == middle).any(axis=1).sum())
    assert f"{degree} states" in page.inner_text(".tip")
    page.click("#layers label:has-text('policy')")
    assert not any(near(colour, purple) and n > 200 for colour, n in count_colours(page).items())


@pytest.mark.parametrize("size", SIZES)
def test_tooltip_stays_within_map(open_page, size):
    page = open_page("few", size)
    outer = page.locator("#map").bounding_box()
    for across in (0.02, 0.5, 0.98):
        for down in (0.02, 0.5, 0.98):
            page.evaluate(
                """([a, d]) => { const s = map.getSize(), l = main, [from] = spansOf(l)[0];
                     map.panBy([px(l.x[from]) - a * s.x, py(l.y[from]) - d * s.y], { animate: false }); paint();
                     point({ containerPoint: L.point(a * s.x, d * s.y) }); }""",
                [across, down],
            )
            box = page.locator(".tip").bounding_box()
            assert outer["x"] <= box["x"], (across, down)
            assert box["x"] + box["width"] <= outer["x"] + outer["width"], (across, down)
            assert outer["y"] <= box["y"], (across, down)
            assert box["y"] + box["height"] <= outer["y"] + outer["height"], (across, down)
    assert "ann" in page.inner_text(".tip")


def test_fixes_outside_region_are_a_separate_layer(open_page):
    page = open_page("few")
    track = walks.walk(60, reach=0.3)
    outside = int((walks.GRID.locate(track.latitude, track.longitude) < 0).sum())
    assert outside > 5
    assert read_counts(page)["outside the region (private): moved to its border or dropped"] == str(outside)


def test_many_points_are_hexagons_that_count_each_point_once(open_page):
    page = open_page("many")
    page.select_option("#user", "")
    page.select_option("#day", "")
    page.evaluate("map.setZoom(8, {animate: false})")
    counted = page.evaluate(
        """() => { let sum = 0; const was = Uint32Array;
             window.Uint32Array = function (n) { return window.kept = new was(n); };
             hexagons(layers.at(-1), spansOf(layers.at(-1))); window.Uint32Array = was;
             for (const one of window.kept) sum += one; return sum; }"""
    )
    assert counted == 100_000


def test_map_with_100000_points_is_redrawn_in_time(open_page):
    page = open_page("many")
    page.select_option("#user", "")
    page.select_option("#day", "")
    times = page.evaluate(
        """() => { const t = []; for (let i = 0; i < 30; i++) { map.panBy([i % 2 ? 9 : -11, 5], {animate: false});
             const s = performance.now(); paint(); t.push(performance.now() - s); } return t.sort((a, b) => a - b); }"""
    )
    assert times[15] < 150  # 22 ms on an idle machine with two cores, without a graphics processor


def test_tiles_are_requested_only_from_configured_host(browser, tmp_path):
    requested = []
    file = tmp_path / "tiles.html"
    page_text = ReleaseMap(walks.release_walk(20)).to_html(
        "T", tiles="https://tiles.example/{z}/{x}/{y}.png", credit="Them"
    )
    file.write_text(page_text, encoding="utf-8")
    context = browser.new_context(viewport=SIZES["desk"])
    page = context.new_page()
    context.route("**/*", lambda route: route.continue_() if route.request.url.startswith("file:") else route.abort())
    page.on("request", lambda request: requested.append(request.url))
    page.goto(file.as_uri())
    wait_for(lambda: len(requested) > 1)
    context.close()
    others = [url for url in requested if url != file.as_uri()]
    assert others
    assert all(url.startswith("https://tiles.example/") for url in others)
