"""The person's page as a person sees it, in a headless browser: it moves, zones are drawn, the next release obeys."""

from __future__ import annotations

import base64
import json
import re
import time
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
import shapely
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from dphmm.jobs.models import load_model
from dphmm.serve import page as pages
from dphmm.serve.page import TEXTS
from tests.openstreetmap import write_extract
from tests.serve.conftest import START, TOKEN, location, relay, running, wait_for
from tests.serve.test_delivery import post, recipient
from tests.serve.test_endpoints import ANN, releases
from tests.serve.test_page import HOME, zones

PHONE, DESK = (420, 800), (1280, 900)


@contextmanager
def page_of(browser, client, size=DESK, tiles=(), language="en-GB"):
    """The page, logged in; anything asked of another host than these, and any error of a script, fails."""
    host, wrong = str(client.base_url), []
    hosts = (host, *tiles, "blob:", "data:")
    viewport = {"width": size[0], "height": size[1]}
    context = browser.new_context(viewport=viewport, locale=language, has_touch=size == PHONE, accept_downloads=True)
    page = context.new_page()
    # pages look again for news every few seconds: here they have less patience
    context.add_init_script(
        "const later = window.setTimeout; window.setTimeout = (f, ms) => later(f, Math.min(ms, 400));"
    )
    page.set_default_timeout(15_000)
    page.on("request", lambda one: wrong.append(one.url) if not one.url.startswith(hosts) else None)
    page.on("pageerror", lambda one: wrong.append(str(one)))
    page.on("console", lambda one: wrong.append(one.text) if "Content Security Policy" in one.text else None)
    try:
        page.goto(host)
        page.fill("#token", TOKEN["ann"])
        page.press("#token", "Enter")
        page.wait_for_selector("#effect p")
        page.evaluate(
            "for (const one of document.querySelectorAll('#figures, #zone-figures, #corners')) one.open = true"
        )
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


def test_the_page_opens_within_a_page_of_the_same_origin_under_a_prefix_and_within_no_other(config, browser):
    """As Home Assistant's ingress shows it, which passes the headers of both sides on."""
    with relay(config()) as client:

        async def passed_on(request):
            kept = [(k, v) for k, v in request.headers.items() if k not in ("content-length", "accept-encoding")]
            path = request.path_params["path"]
            async with httpx.AsyncClient(base_url=client.base_url, verify=False) as asked:
                content = {"content": await request.body(), "headers": [*kept, ("accept-encoding", "identity")]}
                told = await asked.request(request.method, f"/{path}", **content)
            answer = Response(told.content, told.status_code)
            answer.raw_headers = [
                (k, v) for k, v in told.headers.raw if k.lower() not in (b"transfer-encoding", b"date")
            ]
            return answer

        async def around(request):
            src = request.query_params.get("src", "/ingress/abc/")
            return HTMLResponse(f'<iframe src="{src}" width="1200" height="800"></iframe>')

        routes = [Route("/", around), Route("/ingress/abc/{path:path}", passed_on, methods=["GET", "POST", "PUT"])]
        with running(Starlette(routes=routes)) as url:
            page = browser.new_page(viewport={"width": 1240, "height": 840})
            page.goto(url)
            within = page.frame_locator("iframe")
            within.locator("#token").fill(TOKEN["ann"])
            within.locator("#token").press("Enter")
            within.locator("#effect p").first.wait_for()
            page.goto(f"{url}/?src={client.base_url}")
            page.wait_for_timeout(500)
            assert within.locator("#token").count() == 0
            page.close()


def believed(page):
    return page.inner_text("#learned dt:has-text('Shown at') + dd")


def test_the_page_moves_with_releases_and_a_zone_drawn_by_keyboard_holds_for_the_next(config, browser, inbox, tmp_path):
    with relay(config(recipient=[recipient(inbox)])) as client, page_of(browser, client, PHONE) as page:
        assert "Nothing was released yet" in page.inner_text("#learned")
        post(client, 0)
        page.wait_for_selector("#learned dt:has-text('Shown at')")
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
        page.wait_for_selector("#effect p:has-text('In “zone 1”')")
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
        page.wait_for_selector("#effect p:has-text('In “zone 1”')")
        with page.expect_download() as saved:
            page.click("#export")
        assert json.loads(saved.value.path().read_text(encoding="utf-8")) == zones(HOME)["zones"]
        page.click("#save")
        page.wait_for_selector("#message:has-text('from the next release on')")
        kept = page.evaluate("fetch('page/state').then((one) => one.json()).then((one) => one.zones)")
        assert kept == zones(HOME, buffer_m=500, elsewhere="policy")
        layer.write_text("no json", encoding="utf-8")
        page.set_input_files("#import", layer)
        page.wait_for_selector("#message.wrong:has-text('no GeoJSON feature collection')")


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
        page.wait_for_selector("#price dt:has-text('exposed without the repair') + dd:has-text('1')")
        assert page.inner_text("#price dt:has-text('joined by the repair') + dd") == "1"
        page.click("#revert")
        page.wait_for_selector("#price dt:has-text('exposed without the repair') + dd:has-text('0')")
        assert client.get("/metrics").status_code == 200


def test_pausing_readers_and_logging_out_work_by_their_buttons(config, browser, inbox):
    recipients = [recipient(inbox), recipient(inbox, precision="2km") | {"name": "friends"}]
    with relay(config(recipient=recipients)) as client, page_of(browser, client) as page:
        post(client, 0)
        page.wait_for_selector("#learned dt:has-text('Shown at')")
        page.wait_for_selector("#readers li:has-text('friends') p:has-text('the centre of a square of 2 km')")
        fine = believed(page)
        page.select_option("#reader", "friends")
        wait_for(lambda: believed(page) != fine)
        assert "Best guess off by" not in page.inner_text("#learned")  # which follows from exact releases
        page.click("#new-link summary")
        assert page.locator("#link-precision option").all_inner_texts()[1] == "rounded to squares of 2 km"
        page.click("summary[aria-label='Pause: friends']")
        page.click("button[aria-label='for two hours: friends']")
        page.wait_for_selector("#readers li:has-text('friends') small:has-text('paused until')")
        page.wait_for_selector("button[aria-label='Go on: friends']")
        post(client, 1)
        wait_for(lambda: len(inbox.messages) == 3)
        page.click("#logout")
        page.wait_for_selector("#token")
        assert page.locator("#main").is_hidden()


def test_a_link_is_made_opened_by_its_reader_and_ended(config, browser, clock):
    clock.at = time.time() - 900
    with relay(config()) as client, page_of(browser, client) as page:
        page.click("#new-link summary")
        page.fill("#link-name", "Bea")
        page.press("#link-name", "Enter")
        page.wait_for_selector("#message:has-text('The link is made')")
        address = page.input_value("#link-address")
        reader = page.context.new_page()
        reader.goto(address)
        reader.wait_for_selector("#where:has-text('Nothing was shared')")
        client.post("/owntracks", json=location(int(time.time()) // 300 * 300), auth=ANN)
        reader.wait_for_selector("#where:has-text('ann is probably')")
        page.click("button[aria-label='End now: Bea']")
        reader.wait_for_selector("#message:has-text('This link has ended')")
        assert reader.locator("#map").is_hidden()
        page.wait_for_selector("#readers li:has-text('what they were told they know')")
        page.click("button[aria-label='Remove from the list: Bea']")
        page.wait_for_selector("#readers li:has-text('Bea')", state="detached")


@pytest.mark.parametrize("size", [PHONE, DESK])
def test_a_home_zone_is_laid_around_a_click_off_centre_and_is_told_to_no_one_until_it_is_saved(config, browser, size):
    with relay(config()) as client, page_of(browser, client, size) as page:
        page.click("#home")
        page.wait_for_selector("#message:has-text('Click on the map where home is')")
        middles = []
        for _ in range(3):
            page.locator("#map").scroll_into_view_if_needed()
            box = page.locator("#map").bounding_box()
            press = page.touchscreen.tap if size == PHONE else page.mouse.click
            press(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            page.wait_for_selector("#effect p:has-text('Not saved yet')")
            middles.append(page.evaluate("document.querySelector('#zones input').value"))
        assert middles == ["home"] * 3
        kept = "fetch('page/state').then((one) => one.json()).then((one) => one.zones.zones.features)"
        assert page.evaluate(kept) == []
        page.click("#save")
        page.wait_for_selector("#message:has-text('from the next release on')")
        ((zone,),) = [[one] for one in page.evaluate(kept)]
        corners = np.array(zone["geometry"]["coordinates"][0][:-1])
        east, north = ((corners - [-30.0, 45.0]) * [111.32 * np.cos(np.pi / 4), 111.32]).T
        assert np.hypot(east.mean(), north.mean()) < 0.9
        assert np.hypot(east.mean(), north.mean()) > 0.01  # it would be within with a chance of one in 7,000
        assert shapely.Polygon(corners).contains(shapely.Point(-30.0, 45.0))
        np.testing.assert_allclose(np.hypot(east - east.mean(), north - north.mean()), 1.0, rtol=0.01)


def test_several_people_are_on_one_map_and_the_page_is_any_one_s(config, browser):
    with relay(config()) as client, page_of(browser, client, PHONE) as page:
        post(client, 0)
        client.post("/owntracks", json=location(START, 44.98, -30.01), auth=("bob", TOKEN["bob"]))
        page.click("summary:has-text('Add a person')")
        page.fill("#other-token", TOKEN["bob"])
        page.press("#other-token", "Enter")
        page.wait_for_selector("#people li:has-text('bob is seen')")
        page.wait_for_selector(".name.person:has-text('bob, ')", state="attached")
        page.wait_for_selector(".name.person:has-text('ann, ')", state="attached")
        page.select_option("#person", "bob")
        page.wait_for_selector("#main:not([inert])")
        page.fill("#buffer", "100")
        page.wait_for_selector("#save:enabled")
        page.click("#save")
        page.wait_for_selector("#message:has-text('from the next release on')")
        ask = "(user) => fetch('page/state?user=' + user).then((one) => one.json()).then((one) => one.zones.buffer_m)"
        assert [page.evaluate(ask, user) for user in ("bob", "ann")] == [100, 0]


def until(page, true):
    """As `wait_for`, while the page's requests go on."""
    wait_for(lambda: page.wait_for_timeout(20) or true())


def test_nothing_is_typed_while_another_page_opens_and_late_answers_are_not_shown_as_theirs(config, browser):
    """It would be lost, or saved as the other person's; without an answer all stays as it was."""
    held, hold = [], []
    with relay(config()) as client, page_of(browser, client) as page:
        post(client, 0)
        page.click("summary:has-text('Add a person')")
        page.fill("#other-token", TOKEN["bob"])
        page.press("#other-token", "Enter")
        page.wait_for_selector("#people li:has-text('bob')")
        page.route("**/page/state*", lambda route: held.append(route) if hold else route.continue_())
        hold.append(True)
        until(page, lambda: held)  # a look for news of ann
        page.select_option("#person", "bob")
        until(page, lambda: len(held) > 1)
        assert page.locator("#main").get_attribute("inert") is not None
        held[0].continue_()  # ann's answer comes when bob's page is asked for
        page.wait_for_timeout(300)
        held[1].abort()
        page.wait_for_selector("#main:not([inert])")
        page.wait_for_selector("#message:has-text('cannot be reached')")
        assert page.input_value("#person") == "ann"
        hold.clear()
        page.select_option("#person", "bob")
        page.wait_for_selector("#main:not([inert])")
        page.wait_for_selector("#moment-time:has-text('–')")  # bob was never seen
        assert page.input_value("#person") == "bob"


def test_late_answers_to_a_former_person_s_page_are_dropped(config, browser):
    """What was changed there is stored; the page of the other person is left alone."""
    held, ended, hold = [], [], [True]
    with relay(config()) as client, page_of(browser, client) as page:
        page.click("summary:has-text('Add a person')")
        page.fill("#other-token", TOKEN["bob"])
        page.press("#other-token", "Enter")
        page.wait_for_selector("#people li:has-text('bob')")
        page.on("requestfailed", lambda one: ended.append(one.url))
        page.route("**/page/zones*", lambda route: held.append(route))
        page.route("**/page/state?user=ann", lambda route: held.append(route) if hold else route.continue_())
        page.fill("#buffer", "200")
        page.wait_for_selector("#save:enabled")
        page.click("#save")
        until(page, lambda: len(held) == 2)
        page.select_option("#person", "bob")
        page.wait_for_selector("#main:not([inert])")
        page.fill("#buffer", "100")
        page.wait_for_selector("#save:enabled")
        hold.clear()
        for route in held:
            route.continue_()
        page.wait_for_timeout(500)
        assert page.input_value("#buffer") == "100"
        assert page.inner_text("#message") == ""
        ask = "(user) => fetch('page/state?user=' + user).then((one) => one.json()).then((one) => one.zones.buffer_m)"
        assert [page.evaluate(ask, user) for user in ("bob", "ann")] == [0, 200]
        assert [url.partition("/page/")[2] for url in ended] == ["state?user=ann"]


def test_the_address_of_a_person_s_link_is_not_shown_on_another_s_page(config, browser):
    with relay(config()) as client, page_of(browser, client) as page:
        page.click("summary:has-text('Add a person')")
        page.fill("#other-token", TOKEN["bob"])
        page.press("#other-token", "Enter")
        page.wait_for_selector("#people li:has-text('bob')")
        page.click("summary:has-text('Make a link')")
        page.fill("#link-name", "Eve")
        page.click("#link button[type=submit]")
        page.wait_for_selector("#link-made:not([hidden])")
        page.select_option("#person", "bob")
        page.wait_for_selector("#main:not([inert])")
        assert page.locator("#link-made").is_hidden()
        assert page.input_value("#link-address") == ""


def test_two_looks_at_once_list_a_release_once(config, browser, inbox):
    """A button looks for news as the clock does."""
    held, hold = [], [True]
    with relay(config(recipient=[recipient(inbox)])) as client, page_of(browser, client) as page:
        page.route("**/page/trail*", lambda route: held.append(route) if hold else route.continue_())
        post(client, 0)
        until(page, lambda: held)
        page.click("summary[aria-label^='Pause: ']")
        page.click("button[aria-label^='for two hours: ']")
        until(page, lambda: len(held) > 1)
        hold.clear()
        for route in held:
            route.continue_()
        page.wait_for_selector("#last tbody tr")
        page.wait_for_timeout(500)
        assert page.locator("#last tbody tr").count() == 1


def test_a_look_for_news_while_a_person_is_added_does_not_close_the_page(config, browser):
    """The page has another cookie then, and what was asked with the one before is refused."""
    late = []
    with relay(config()) as client, page_of(browser, client) as page:
        page.route("**/page/state*", lambda route: route.continue_() if late else late.append(route))
        until(page, lambda: late)
        page.click("summary:has-text('Add a person')")
        page.fill("#other-token", TOKEN["bob"])
        page.press("#other-token", "Enter")
        page.wait_for_selector("#people li:has-text('bob')")
        late[0].fulfill(status=401, json={})
        page.wait_for_timeout(500)
        assert page.is_visible("#people li:has-text('bob')")


def test_a_look_for_news_waits_for_a_log_in_that_is_under_way(config, browser):
    """Sent with the cookie of before, it would be refused and close the page."""
    entering, asked = [], []
    with relay(config()) as client, page_of(browser, client) as page:
        page.route("**/page/login*", lambda route: entering.append(route))
        page.click("summary:has-text('Add a person')")
        page.fill("#other-token", TOKEN["bob"])
        page.press("#other-token", "Enter")
        until(page, lambda: entering)
        page.on("request", lambda one: asked.append(one.url) if "page/state" in one.url else None)
        page.wait_for_timeout(900)
        assert asked == []
        entering[0].continue_()
        page.wait_for_selector("#people li:has-text('bob')")
        until(page, lambda: asked)


def test_places_are_found_in_the_map_on_board_and_nothing_is_asked_for_it(config, browser, tmp_path):
    pytest.importorskip("pyogrio")
    names = [("Angra do Heroísmo", 45.02, -30.03), ("Praia", 44.98, -29.97)]
    nodes = [(y, x, {"place": "town", "name": name}) for name, y, x in names]
    town = write_extract(
        tmp_path / "town.osm.pbf", [(45, -30.1, {}), (45, -29.9, {}), *nodes], [([0, 1], {"highway": "primary"})]
    )
    with relay(config(basemap=str(town))) as client, page_of(browser, client) as page:
        assert {one.strip() for one in page.locator(".name").all_inner_texts()} >= {name for name, _, _ in names}
        before = len(page.locator(".name").all())
        page.fill("#place", "heroismo")
        page.press("#place", "Enter")
        page.wait_for_selector("#message:has-text('The map shows Angra do Heroísmo')")
        wait_for(lambda: len(page.locator(".name").all()) < before)
        page.fill("#place", "Atlantis")
        page.press("#place", "Enter")
        page.wait_for_selector("#message.wrong:has-text('Atlantis')")


def painted(page):
    """How many pixels of the map's ground are painted."""
    return page.evaluate("""() => {
      const canvas = document.querySelector(".leaflet-ground-pane canvas");
      const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      let count = 0;
      for (let k = 3; k < data.length; k += 4) count += data[k] > 0;
      return count;
    }""")


def test_a_map_without_streets_and_coast_is_no_empty_square(config, browser):
    with relay(config()) as client, page_of(browser, client) as page:
        assert painted(page) > 2000


@pytest.mark.parametrize("language", TEXTS)
@pytest.mark.parametrize("size", [PHONE, DESK])
def test_every_language_fits_the_page_and_is_read_out_in_its_own(config, browser, inbox, language, size):
    others = {"name": "friends", "when_withheld": "nothing"}
    made = config(recipient=[recipient(inbox), recipient(inbox, precision="2km") | others], limits={"epsilon": 1.0})
    with relay(made) as client:
        post(client, 0, 1, 2)
        with page_of(browser, client, size, language=language) as page:
            page.wait_for_selector("#readers li:nth-child(2)")
            page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
            assert page.evaluate("document.documentElement.lang") == language
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
            assert TEXTS[language]["who_can_tell"] in page.inner_text("#told")
            page.select_option("#language", "fr")
            page.wait_for_selector("html[lang=fr]", state="attached")


def test_no_word_of_the_page_stands_outside_the_file_of_texts(config, browser, inbox, monkeypatch):
    marked = {key: text if key == "language_name" else f"⟦{text}⟧" for key, text in TEXTS["en"].items()}
    monkeypatch.setattr(pages, "TEXTS", {**TEXTS, "en": marked})
    pages._document.cache_clear()
    words = """() => {
      const skipped = ".leaflet-pm-toolbar, .leaflet-control-attribution, .leaflet-control-scale, #language, script";
      const found = [document.title], all = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      for (let node = all.nextNode(); node; node = all.nextNode())
        if (!node.parentElement.closest(skipped)) found.push(node.data);
      for (const one of document.querySelectorAll("[aria-label], [placeholder], [title]"))
        if (!one.closest(skipped)) for (const name of ["aria-label", "placeholder", "title"])
          found.push(one.getAttribute(name) || "");
      return found;
    }"""
    try:
        with relay(config(recipient=[recipient(inbox)], limits={"epsilon": 0.5})) as client:
            post(client, 0, 1)
            with page_of(browser, client) as page:
                page.click("#home")
                page.wait_for_selector("#readers li p:has-text('They')")
                found = page.evaluate(words)
                page.click("#logout")
                page.wait_for_selector("#token")
                found += page.evaluate(words)
    finally:
        pages._document.cache_clear()
    rest = set()
    for text in found:
        while text != (text := re.sub("⟦[^⟦⟧]*⟧", "", text)):
            pass
        rest |= set(re.findall(r"[^\W\d_]+", text))
    assert len(found) > 100
    assert rest <= {"ann", "family", "webhook", "friends", "km", "m", "ε", "Mar", "at"}
