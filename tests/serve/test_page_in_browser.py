"""The person's page as a person sees it, in a headless browser: it moves, zones are drawn, the next release obeys."""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from dphmm.jobs.models import load_model
from tests.serve.conftest import START, TOKEN, location, relay, running, wait_for
from tests.serve.test_app import ANN, releases
from tests.serve.test_delivery import post, recipient
from tests.serve.test_page import HOME, zones

PHONE, DESK = (420, 800), (1280, 900)


@contextmanager
def page_of(browser, client, size=DESK, tiles=()):
    """The page, logged in; anything asked of another host than these, and any error of a script, fails."""
    host, wrong = str(client.base_url), []
    hosts = (host, *tiles, "blob:", "data:")
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, accept_downloads=True)
    page = context.new_page()
    # the page looks again for news every few seconds: here it has less patience
    page.add_init_script("const later = window.setTimeout; window.setTimeout = (f, ms) => later(f, Math.min(ms, 400));")
    page.set_default_timeout(15_000)
    page.on("request", lambda one: wrong.append(one.url) if not one.url.startswith(hosts) else None)
    page.on("pageerror", lambda one: wrong.append(str(one)))
    page.on("console", lambda one: wrong.append(one.text) if "Content Security Policy" in one.text else None)
    try:
        page.goto(host)
        page.fill("#token", TOKEN["ann"])
        page.press("#token", "Enter")
        page.wait_for_selector("#price dl")
        yield page
        assert wrong == []
    finally:
        context.close()


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def test_tiles_are_asked_of_the_host_that_is_configured_and_of_no_other(config, browser):
    asked = []

    async def tile(request):
        asked.append(request.headers.get("referer"))
        return Response(PNG, media_type="image/png")

    with running(Starlette(routes=[Route("/{z}/{x}/{y}.png", tile)])) as url:
        made = config(tiles=f"{url}/{{z}}/{{x}}/{{y}}.png", tiles_attribution="<b>somebody</b>")
        with relay(made) as client, page_of(browser, client, tiles=(url,)) as page:
            page.wait_for_selector("img.leaflet-tile-loaded", state="attached")
            assert "<b>somebody</b>" in page.inner_text(".leaflet-control-attribution")
    assert asked
    assert set(asked) == {None}  # the host is not told whose relay it is


def believed(page):
    return page.inner_text("#learned dt:has-text('Believed at') + dd")


def test_the_page_moves_with_releases_and_a_zone_drawn_by_keyboard_holds_for_the_next(config, browser, inbox, tmp_path):
    with relay(config(recipient=[recipient(inbox)])) as client, page_of(browser, client, PHONE) as page:
        assert "Nothing was released yet" in page.inner_text("#learned")
        post(client, 0)
        page.wait_for_selector("#learned dt:has-text('Believed at')")
        before = believed(page)
        post(client, 1)
        wait_for(lambda: believed(page) != before)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]

        for key in ("ArrowRight", "ArrowDown", "ArrowLeft"):  # a corner, and on to the next one, without a mouse
            page.focus("#corner")
            page.keyboard.press("Enter")
            page.focus("#map")
            with_centre = "() => document.querySelector('#map .leaflet-map-pane').style.transform"
            was = page.evaluate(with_centre)
            page.keyboard.press(f"Shift+{key}")
            page.wait_for_function(f"was => ({with_centre})() !== was", arg=was)
            page.wait_for_timeout(400)
        page.focus("#close")
        page.keyboard.press("Enter")
        page.select_option("#elsewhere", "exact")
        page.wait_for_selector("#price dt:has-text('in zone 1')")
        page.focus("#save")
        page.keyboard.press("Enter")
        page.wait_for_selector("#message:has-text('from the next release on')")
        client.post("/owntracks", json=location(START + 600, 44.975, -30.035), auth=ANN)
        wait_for(lambda: "44.97" in believed(page))
    *old, new = (one.record for one in releases(tmp_path / "people.db"))
    assert new.open
    assert not any(one.open for one in old)


def test_zones_are_drawn_by_mouse_read_from_files_and_saved_to_them(config, browser, tmp_path):
    with relay(config()) as client, page_of(browser, client) as page:
        page.click(".leaflet-pm-icon-rectangle")
        box = page.locator("#map").bounding_box()
        for share in (0.4, 0.55):
            page.mouse.move(box["x"] + share * box["width"], box["y"] + share * box["height"])
            page.mouse.click(box["x"] + share * box["width"], box["y"] + share * box["height"])
        page.wait_for_selector("#zones input")
        assert page.input_value("#zones input") == "zone 1"
        layer = tmp_path / "layer.geojson"
        layer.write_text(json.dumps(zones(HOME)["zones"]), encoding="utf-8")
        page.set_input_files("#import", layer)
        page.fill("#buffer", "500")
        page.wait_for_selector("#price dt:has-text('in zone 1')")
        with page.expect_download() as saved:
            page.click("#export")
        assert json.loads(saved.value.path().read_text(encoding="utf-8")) == zones(HOME)["zones"]
        page.click("#save")
        page.wait_for_selector("#message:has-text('from the next release on')")
        kept = page.evaluate("fetch('page/state').then((one) => one.json()).then((one) => one.zones)")
        assert kept == zones(HOME, buffer_m=500, elsewhere="policy")
        layer.write_text("no json", encoding="utf-8")
        page.set_input_files("#import", layer)
        page.wait_for_selector("#message.wrong:has-text('no GeoJSON')")


def test_exposed_places_and_their_repair_are_shown_before_anything_is_agreed(config, browser, model):
    latitude, longitude = load_model(model).space.latlon()[0]
    corners = ((-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1))
    one_place = [[longitude + 0.001 * x, latitude + 0.001 * y] for x, y in corners]
    with relay(config()) as client, page_of(browser, client) as page:
        page.set_input_files(
            "#import",
            {"name": "z.geojson", "mimeType": "", "buffer": json.dumps(zones(HOME, one_place)["zones"]).encode()},
        )
        page.select_option("#elsewhere", "exact")
        page.wait_for_selector("#price dt:has-text('Exposed without repair') + dd:has-text('1')")
        assert page.inner_text("#price dt:has-text('The repair joins') + dd") == "1 pairs"
        page.click("#revert")
        page.wait_for_selector("#price dt:has-text('Exposed without repair') + dd:has-text('0')")
        assert client.get("/metrics").status_code == 200


def test_pausing_tiers_and_logging_out_work_by_their_buttons(config, browser, inbox):
    tiers = [recipient(inbox), recipient(inbox, epsilon=0.2) | {"name": "friends"}]
    with relay(config(recipient=tiers)) as client, page_of(browser, client) as page:
        post(client, 0)
        page.wait_for_selector("#learned dt:has-text('Believed at')")
        fine = believed(page)
        page.select_option("#tier", "0.2")
        wait_for(lambda: believed(page) != fine)
        assert "Best guess off by" in page.inner_text("#learned")  # by what this reader was told
        page.click("button[aria-label='Pause: friends']")
        page.wait_for_selector("button[aria-label='Go on: friends']")
        post(client, 1)
        wait_for(lambda: len(inbox.messages) == 3)
        page.click("#logout")
        page.wait_for_selector("#token")
        assert page.locator("#main").is_hidden()
