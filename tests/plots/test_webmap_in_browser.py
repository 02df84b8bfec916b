"""The page in a headless Chromium, at the width of a phone and of a desk: what is seen, counted, and asked for."""

from __future__ import annotations

import time

import numpy as np
import pytest

from dphmm.plots import ReleaseMap
from dphmm.policy import PolicyGraph
from tests.plots import walks
from tests.sizes import slow

SIZES = {"phone": {"width": 420, "height": 850}, "desk": {"width": 1280, "height": 800}}


def wait_for(true) -> None:
    """Wait until something is so; the page's own policy lets nothing evaluate a text over and over within it."""
    until = time.monotonic() + 15
    while not true():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.02)


def page_of(found: ReleaseMap, **options) -> str:
    return found.to_html("Title", **options)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    policy = PolicyGraph.utility(walks.GRID.measurements(), 2.0, walks.GRID.cell_km)
    told = {"policy": policy, "policy_text": "utility:2km"}
    return {
        "one": page_of(ReleaseMap(walks.released(1), walks.GRID, **told)),
        "few": page_of(ReleaseMap(walks.released(20), walks.GRID, [walks.walk(60, reach=0.3)], **told)),
        "two": page_of(ReleaseMap(walks.many(6_000, 2))),
        "many": page_of(ReleaseMap(walks.many(100_000, 50), walks.GRID, **told)),
    }


@pytest.fixture
def opened(browser, pages, tmp_path):
    """Opens a page; fails at the end for any request of it, and any error of its script."""
    wrong, state_pairs = [], []

    def open_(name, size="desk"):
        file = tmp_path / f"{name}.html"
        file.write_text(pages[name], encoding="utf-8")
        context = browser.new_context(viewport=SIZES[size])
        state_pairs.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("request", lambda one: wrong.append(one.url) if one.url != file.as_uri() else None)
        page.on("pageerror", lambda one: wrong.append(str(one)))
        page.on("console", lambda one: wrong.append(one.text) if one.type == "error" else None)
        page.goto(file.as_uri())
        wait_for(lambda: page.evaluate("frames > 0"))
        return page

    yield open_
    for context in state_pairs:
        context.close()
    assert wrong == []


def colours(page) -> dict[str, int]:
    """How many points of the canvas are of each colour, by its red, green and blue."""
    return page.evaluate(
        """() => { paint(); const d = pen.getImageData(0, 0, canvas.width, canvas.height).data, found = {};
             for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 250) {
               const key = `${d[i]},${d[i + 1]},${d[i + 2]}`; found[key] = (found[key] ?? 0) + 1; }
             return found; }"""
    )


def counts(page) -> dict[str, str]:
    rows = page.locator("#layers label").all()
    return {row.inner_text().split("\n")[0]: row.locator("span").inner_text() for row in rows}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["one", "few", "two", slow("many")])
def test_nothing_overflows_the_map_is_not_empty_and_noise_covers_no_estimate(opened, name, size):
    page = opened(name, size)
    width, height = SIZES[size]["width"], SIZES[size]["height"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.scrollHeight") <= height
    for part in ("header", "#map", "aside", "#play", "#layers"):
        box = page.locator(part).bounding_box()
        assert box["x"] >= 0, part
        assert box["x"] + box["width"] <= width + 0.5, part
    assert page.locator("#map").bounding_box()["height"] > 0.4 * height
    assert len(colours(page)) > 20
    seen = page.evaluate("layers.filter(l => !l.ends && l.clocked).map(l => spansOf(l).length)")
    assert all(seen)
    if name in ("one", "few"):  # with a policy, whose noise is drawn beside the data
        covered = page.evaluate(
            """() => { paint(); const [[from, to]] = spansOf(main); let found = 0;
                 for (let i = from; i < to; i++) found += px(main.x[i]) > corner.x && py(main.y[i]) < corner.y;
                 return found; }"""
        )
        assert covered == 0


def test_it_begins_with_one_persons_day_and_counts_follow_the_person(opened):
    page = opened("two")
    assert page.input_value("#user") == "u000"
    assert page.evaluate("chosen.day") is not None
    day = counts(page)["estimate (posterior mean)"]
    table = walks.many(6_000, 2)
    mine = table.select(table["user"].astype(str) == "u000")
    days, number = np.unique(mine["time"].astype("datetime64[D]"), return_counts=True)
    assert day == f"{number.max()}"
    assert page.locator("#day option").count() == 1 + len(days)
    page.select_option("#day", "")
    assert counts(page)["estimate (posterior mean)"] == "3,000"
    page.select_option("#user", "")
    page.select_option("#day", "")
    assert counts(page) == {"estimate (posterior mean)": "6,000", "released": "6,000", "noise": ""}
    page.locator("#time").fill("0")
    assert counts(page)["released"] == "2"


def test_days_go_on_and_back_and_time_plays(opened):
    page = opened("two")
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


def test_the_hull_is_drawn_once_and_the_states_that_the_policy_joins_at_the_pointer(opened):
    page = opened("few")
    purple = "235,201,221"  # a hull's fill over white, see drawNoise
    near = lambda a, b: all(abs(int(x) - int(y)) < 8 for x, y in zip(a.split(","), b.split(","), strict=True))  # noqa: E731
    assert sum(n for colour, n in colours(page).items() if near(colour, purple)) > 200
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
    assert not any(near(colour, purple) and n > 200 for colour, n in colours(page).items())


@pytest.mark.parametrize("size", SIZES)
def test_what_is_told_of_a_point_stands_within_the_map_wherever_it_is(opened, size):
    page = opened("few", size)
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


def test_fixes_outside_the_region_are_a_layer_of_their_own(opened):
    page = opened("few")
    track = walks.walk(60, reach=0.3)
    outside = int((walks.GRID.locate(track.latitude, track.longitude) < 0).sum())
    assert outside > 5
    assert counts(page)["outside the region (private): moved to its border or dropped"] == str(outside)


def test_many_points_are_hexagons_that_count_every_point_once(opened):
    page = opened("many")
    page.select_option("#user", "")
    page.select_option("#day", "")
    page.evaluate("map.setZoom(8, {animate: false})")
    held = page.evaluate(
        """() => { let sum = 0; const was = Uint32Array;
             window.Uint32Array = function (n) { return window.kept = new was(n); };
             hexagons(layers.at(-1), spansOf(layers.at(-1))); window.Uint32Array = was;
             for (const one of window.kept) sum += one; return sum; }"""
    )
    assert held == 100_000


def test_a_hundred_thousand_points_move_within_a_frames_time_or_few(opened):
    page = opened("many")
    page.select_option("#user", "")
    page.select_option("#day", "")
    times = page.evaluate(
        """() => { const t = []; for (let i = 0; i < 30; i++) { map.panBy([i % 2 ? 9 : -11, 5], {animate: false});
             const s = performance.now(); paint(); t.push(performance.now() - s); } return t.sort((a, b) => a - b); }"""
    )
    assert times[15] < 150  # 22 ms on an idle machine of two cores, without a graphics processor


def test_tiles_are_asked_of_the_host_that_is_named_and_of_no_other(browser, tmp_path):
    asked = []
    file = tmp_path / "tiles.html"
    page_text = ReleaseMap(walks.released(20)).to_html(
        "T", tiles="https://tiles.example/{z}/{x}/{y}.png", credit="Them"
    )
    file.write_text(page_text, encoding="utf-8")
    context = browser.new_context(viewport=SIZES["desk"])
    page = context.new_page()
    context.route("**/*", lambda route: route.continue_() if route.request.url.startswith("file:") else route.abort())
    page.on("request", lambda one: asked.append(one.url))
    page.goto(file.as_uri())
    wait_for(lambda: len(asked) > 1)
    context.close()
    others = [url for url in asked if url != file.as_uri()]
    assert others
    assert all(url.startswith("https://tiles.example/") for url in others)
