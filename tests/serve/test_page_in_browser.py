"""Tests of the user's page in a headless browser.

The page updates itself, zones are drawn, and the next release obeys them.
"""

from __future__ import annotations

import base64
import json
import re
import time
from contextlib import contextmanager
from datetime import datetime

import httpx
import numpy as np
import pytest
import shapely
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from dphmm.errors import ConfigurationError
from dphmm.jobs.model.loading import load_model
from dphmm.serve import page as pages
from dphmm.serve.map_adversary import MapAdversary
from dphmm.serve.page import TEXTS
from dphmm.serve.server import reload_relay
from tests.openstreetmap import write_extract
from tests.serve.conftest import START, TOKEN, get_page_token, make_location, serve_app, serve_relay, wait_for
from tests.serve.test_delivery import describe_recipient, log_in, post
from tests.serve.test_endpoints import ANN, read_releases
from tests.serve.test_map_adversary import LAKE, write_map
from tests.serve.test_operating import run_relay
from tests.serve.test_page import HOME, make_zones
from tests.serve.test_server import write_relay_file

PHONE = (420, 800)
DESK = (1280, 900)


@contextmanager
def open_page(browser, client, size=DESK, tiles=(), language="en-GB"):
    """Open the page, logged in.

    Requests to hosts other than these and script errors fail the test.
    """
    host, wrong = str(client.base_url), []
    hosts = (host, *tiles, "blob:", "data:")
    viewport = {"width": size[0], "height": size[1]}
    context = browser.new_context(viewport=viewport, locale=language, has_touch=size == PHONE, accept_downloads=True)
    page = context.new_page()
    # pages poll for news every few seconds; here they poll faster
    context.add_init_script(
        "const later = window.setTimeout; window.setTimeout = (f, ms) => later(f, Math.min(ms, 400));"
    )
    page.set_default_timeout(60_000)
    page.on("request", lambda request: wrong.append(request.url) if not request.url.startswith(hosts) else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console", lambda message: wrong.append(message.text) if "Content Security Policy" in message.text else None
    )
    try:
        page.goto(host)
        page.fill("#token", get_page_token("ann"))
        page.press("#token", "Enter")
        page.wait_for_selector("#effect p")
        page.evaluate(
            "for (const one of document.querySelectorAll('#figures, #zone-figures, #corners')) one.open = true"
        )
        yield page
    finally:
        errors = list(wrong)
        context.close()
        # also where the test itself failed: an error in the page is then the likely reason
        assert errors == []


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def test_tiles_are_requested_only_from_configured_host(config, browser):
    referers = []

    async def serve_tile(request):
        referers.append(request.headers.get("referer"))
        return Response(PNG, media_type="image/png")

    with serve_app(Starlette(routes=[Route("/{z}/{x}/{y}.png", serve_tile)])) as url:
        settings = config(tiles=f"{url}/{{z}}/{{x}}/{{y}}.png", tiles_attribution="<b>somebody</b>")
        with serve_relay(settings) as client, open_page(browser, client, tiles=(url,)) as page:
            page.wait_for_selector("img.leaflet-tile-loaded", state="attached")
            assert "<b>somebody</b>" in page.inner_text(".leaflet-control-attribution")
    assert referers
    assert set(referers) == {None}  # the host does not learn the address of the relay


def test_page_opens_in_frame_of_same_origin_only(config, browser):
    """Home Assistant's ingress uses such a frame under a prefix and passes on all headers."""
    with serve_relay(config()) as client:

        async def forward(request):
            kept = [(k, v) for k, v in request.headers.items() if k not in ("content-length", "accept-encoding")]
            path = request.path_params["path"]
            async with httpx.AsyncClient(base_url=client.base_url, verify=False) as upstream:
                content = {"content": await request.body(), "headers": [*kept, ("accept-encoding", "identity")]}
                response = await upstream.request(request.method, f"/{path}", **content)
            answer = Response(response.content, response.status_code)
            answer.raw_headers = [
                (k, v) for k, v in response.headers.raw if k.lower() not in (b"transfer-encoding", b"date")
            ]
            return answer

        async def serve_frame(request):
            src = request.query_params.get("src", "/ingress/abc/")
            return HTMLResponse(f'<iframe src="{src}" width="1200" height="800"></iframe>')

        routes = [Route("/", serve_frame), Route("/ingress/abc/{path:path}", forward, methods=["GET", "POST", "PUT"])]
        with serve_app(Starlette(routes=routes)) as url:
            page = browser.new_page(viewport={"width": 1240, "height": 840})
            page.goto(url)
            within = page.frame_locator("iframe")
            within.locator("#token").fill(get_page_token("ann"))
            within.locator("#token").press("Enter")
            within.locator("#effect p").first.wait_for()
            page.goto(f"{url}/?src={client.base_url}")
            page.wait_for_timeout(500)
            assert within.locator("#token").count() == 0
            page.close()


def read_location(page):
    return page.inner_text("#inference dt:has-text('Location shown') + dd")


def test_page_does_not_state_that_an_unconfirmed_message_was_not_sent(config, browser, inbox):
    """The recipient stores each message, and answers with an error."""
    inbox.status = 503
    with serve_relay(config(recipient=[describe_recipient(inbox)])) as client, open_page(browser, client) as page:
        assert "Nothing has been sent since" in page.inner_text("#recipients")
        post(client, 0)
        page.wait_for_selector("#recipients small:has-text('1 waiting')")
        assert "No message has been confirmed since it was added or last paused. The" in page.inner_text("#recipients")
        assert "Nothing has been sent since" not in page.inner_text("#recipients")


def test_prediction_names_only_the_last_release_that_its_recipient_was_sent(config, browser, inbox, clock):
    """The second release was made during one recipient's pause and before the other's link."""
    with serve_relay(config(recipient=[describe_recipient(inbox)], limits={"epsilon": 1.0})) as client:
        log_in(client)
        post(client, 0)
        wait_for(lambda: not client.get("/page/state").json()["recipients"][0]["num_waiting"])
        client.post("/page/pause", json={"recipient": "family", "paused": True})
        post(client, 1)
        link = {"name": "Bea", "precision_m": 0, "ends": START + 86400}
        token = client.post("/page/link", json=link).json()["token"]
        clock.at = START + 900
        client.post("/page/pause", json={"recipient": "family", "paused": False})
        post(client, 4)  # beyond the limit
        with open_page(browser, client) as page:
            page.wait_for_selector("#recipients li:has-text('family') p:has-text('2024')")
            sentence = page.inner_text("#recipients li:has-text('family') p")
            assert re.findall(r"\d\d:\d\d", sentence) == [datetime.fromtimestamp(START).strftime("%H:%M")]
            sentence = page.inner_text("#recipients li:has-text('Bea') p")
            assert "prediction" in sentence
            assert not re.search("2024|ago", sentence)
            page.goto(f"{client.base_url}/link#{token}")
            page.wait_for_selector("#where:has-text('Prediction')")
            assert not re.search("2024|ago", page.inner_text("#where"))


def test_page_updates_and_zone_drawn_by_keyboard_applies_to_next_release(config, browser, inbox, tmp_path):
    with (
        serve_relay(config(recipient=[describe_recipient(inbox)])) as client,
        open_page(browser, client, PHONE) as page,
    ):
        assert "Nothing has been released yet" in page.inner_text("#inference")
        post(client, 0)
        page.wait_for_selector("#inference dt:has-text('Location shown')")
        before = read_location(page)
        post(client, 1)
        wait_for(lambda: read_location(page) != before)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]

        for key in ("ArrowRight", "ArrowDown", "ArrowLeft"):  # set a corner and move to the next one without a mouse
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
        page.wait_for_selector("#effect p:has-text('“zone 1” contains')")
        page.focus("#save")
        page.keyboard.press("Enter")
        page.wait_for_selector("#message:has-text('from the next release on')")
        client.post("/owntracks", json=make_location(START + 600, 44.975, -30.035), auth=ANN)
        wait_for(lambda: "44.97" in read_location(page))
    *old, new = (release.record for release in read_releases(tmp_path / "users.db"))
    assert new.is_unprotected
    assert not any(record.is_unprotected for record in old)


def test_zones_are_drawn_by_mouse_imported_and_exported(config, browser, tmp_path):
    with serve_relay(config()) as client, open_page(browser, client) as page:
        page.click(".leaflet-pm-icon-rectangle")
        box = page.locator("#map").bounding_box()
        for share in (0.4, 0.55):
            page.mouse.move(box["x"] + share * box["width"], box["y"] + share * box["height"])
            page.mouse.click(box["x"] + share * box["width"], box["y"] + share * box["height"])
        page.wait_for_selector("#zones input")
        assert page.input_value("#zones input") == "zone 1"
        layer = tmp_path / "layer.geojson"
        layer.write_text(json.dumps(make_zones(HOME)["zones"]), encoding="utf-8")
        page.set_input_files("#import", layer)
        page.fill("#buffer", "500")
        page.wait_for_selector("#effect p:has-text('“zone 1” contains')")
        with page.expect_download() as saved:
            page.click("#export")
        assert json.loads(saved.value.path().read_text(encoding="utf-8")) == make_zones(HOME)["zones"]
        page.click("#save")
        page.wait_for_selector("#message:has-text('from the next release on')")
        kept = page.evaluate("fetch('page/state').then((one) => one.json()).then((one) => one.zones)")
        assert kept == make_zones(HOME, buffer_m=500, elsewhere="policy")
        layer.write_text("no json", encoding="utf-8")
        page.set_input_files("#import", layer)
        page.wait_for_selector("#message.wrong:has-text('not a GeoJSON feature collection')")


def test_exposed_places_and_their_repair_are_shown_before_saving(config, browser, model):
    latitude, longitude = load_model(model).space.latlon()[0]
    corners = ((-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1))
    one_place = [[longitude + 0.001 * x, latitude + 0.001 * y] for x, y in corners]
    with serve_relay(config()) as client, open_page(browser, client) as page:
        page.set_input_files(
            "#import",
            {"name": "z.geojson", "mimeType": "", "buffer": json.dumps(make_zones(HOME, one_place)["zones"]).encode()},
        )
        page.select_option("#elsewhere", "exact")
        page.wait_for_selector("#preview dt:has-text('exposed without the repair') + dd:has-text('1')")
        assert page.inner_text("#preview dt:has-text('edges added by the repair') + dd") == "1"
        page.click("#revert")
        page.wait_for_selector("#preview dt:has-text('exposed without the repair') + dd:has-text('0')")
        assert client.get("/metrics").status_code == 200


def test_pausing_recipients_and_logging_out_work_by_buttons(config, browser, inbox):
    recipients = [describe_recipient(inbox), describe_recipient(inbox, precision="2km") | {"name": "friends"}]
    with serve_relay(config(recipient=recipients)) as client, open_page(browser, client) as page:
        post(client, 0)
        page.wait_for_selector("#inference dt:has-text('Location shown')")
        page.wait_for_selector(
            "#recipients li:has-text('friends') p:has-text('the centre of a square with sides of 2')"
        )
        fine = read_location(page)
        assert "≤" not in page.inner_text("#figures")
        page.select_option("#recipient", "friends")
        wait_for(lambda: read_location(page) != fine)
        assert "best estimate" not in page.inner_text("#inference")  # which would follow from exact releases
        assert re.findall(r"(≤)?\s\d+ km", page.inner_text("#inference")) == ["≤"] * 3  # widened radii are bounds
        page.click("#new-link summary")
        assert page.locator("#link-precision option").all_inner_texts()[1] == "rounded to squares of 2 km"
        page.click("summary[aria-label='Pause: friends']")
        page.click("button[aria-label='for two hours: friends']")
        page.wait_for_selector("#recipients li:has-text('friends') small:has-text('paused until')")
        page.wait_for_selector("button[aria-label='Resume: friends']")
        post(client, 1)
        wait_for(lambda: len(inbox.messages) == 3)
        page.click("#logout")
        page.wait_for_selector("#token")
        assert page.locator("#main").is_hidden()


def test_end_of_pause_is_computed_at_the_click(config, browser, inbox):
    with serve_relay(config(recipient=[describe_recipient(inbox)])) as client, open_page(browser, client) as page:
        page.click("summary[aria-label='Pause: family']")
        page.evaluate("Date.now = () => new Date().getTime() - 5 * 3600e3")
        page.click("button[aria-label='for two hours: family']")
        page.wait_for_selector("#message:has-text('Not accepted: the pause would already have ended')")
        present = page.evaluate("const at = new Date().getTime() + 3 * 3600e3; Date.now = () => at; at / 1000")
        with page.expect_request(re.compile("/page/pause")) as sent:
            page.click("button[aria-label='for two hours: family']")
        assert sent.value.post_data_json["until"] == int(present) + 7200
        page.wait_for_selector("button[aria-label='Resume: family']")


def test_link_is_created_opened_and_ended(config, browser, clock):
    clock.at = time.time() - 900
    with serve_relay(config()) as client, open_page(browser, client) as page:
        page.click("#new-link summary")
        page.fill("#link-name", "Bea")
        page.press("#link-name", "Enter")
        page.wait_for_selector("#message:has-text('The link has been created')")
        address = page.input_value("#link-address")
        reader = page.context.new_page()
        reader.goto(address)
        reader.wait_for_selector("#where:has-text('Nothing has been shared')")
        clock.at += 1  # the rest of the second in which the link was created counts as a pause
        client.post("/owntracks", json=make_location(int(time.time()) // 300 * 300), auth=ANN)
        reader.wait_for_selector("#where:has-text('ann is probably')")
        page.wait_for_selector("#recipients li:has-text('Bea'):has-text('last message')")  # replaces the list
        page.click("button[aria-label='End now: Bea']")
        reader.wait_for_selector("#message:has-text('This link has expired')")
        assert reader.locator("#map").is_hidden()
        page.wait_for_selector("#recipients li:has-text('what it showed remains known')")
        page.click("button[aria-label='Remove from the list: Bea']")
        page.wait_for_selector("#recipients li:has-text('Bea')", state="detached")


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desktop"])
def test_home_zone_is_off_centre_and_is_sent_only_when_saved(config, browser, size):
    with serve_relay(config()) as client, open_page(browser, client, size) as page:
        page.click("#home")
        page.wait_for_selector("#message:has-text('Click your home on the map')")
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
        ((zone,),) = [[zone_saved] for zone_saved in page.evaluate(kept)]
        corners = np.array(zone["geometry"]["coordinates"][0][:-1])
        east, north = ((corners - [-30.0, 45.0]) * [111.32 * np.cos(np.pi / 4), 111.32]).T
        assert np.hypot(east.mean(), north.mean()) < 0.9
        assert np.hypot(east.mean(), north.mean()) > 0.01  # by chance it is nearer once in 7,000 runs
        assert shapely.Polygon(corners).contains(shapely.Point(-30.0, 45.0))
        np.testing.assert_allclose(np.hypot(east - east.mean(), north - north.mean()), 1.0, rtol=0.01)


def test_home_zone_of_another_size_contains_the_home(config, browser):
    """A new zone around the centre of the last one contains it by chance only."""
    sent = []
    with serve_relay(config()) as client, open_page(browser, client) as page:
        page.on("request", lambda request: sent.append(request.post_data_json) if "preview" in request.url else None)
        page.click("#home")
        page.locator("#map").scroll_into_view_if_needed()
        box = page.locator("#map").bounding_box()
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        for size in ("2000", "500") * 3:
            num_sent = len(sent)
            page.select_option("#home-size", size)
            wait_for(lambda num_sent=num_sent: page.evaluate("1") and len(sent) > num_sent)
    zones_sent = [body["zones"]["features"][0]["geometry"] for body in sent if body["zones"]["features"]]
    assert len(zones_sent) >= 6
    for geometry in zones_sent:
        assert shapely.Polygon(geometry["coordinates"][0]).contains(shapely.Point(-30.0, 45.0))


def test_several_users_share_a_map_and_page_can_switch_between_them(config, browser):
    with serve_relay(config()) as client, open_page(browser, client, PHONE) as page:
        post(client, 0)
        client.post("/owntracks", json=make_location(START, 44.98, -30.01), auth=("bob", TOKEN["bob"]))
        page.click("summary:has-text('Add a person')")
        page.fill("#other-token", get_page_token("bob"))
        page.press("#other-token", "Enter")
        page.wait_for_selector("#household li:has-text('Others see bob')")
        page.wait_for_selector(".name.user:has-text('bob, ')", state="attached")
        page.wait_for_selector(".name.user:has-text('ann, ')", state="attached")
        page.select_option("#user", "bob")
        page.wait_for_selector("#main:not([inert])")
        page.fill("#buffer", "100")
        page.wait_for_selector("#save:enabled")
        page.click("#save")
        page.wait_for_selector("#message:has-text('from the next release on')")
        ask = "(user) => fetch('page/state?user=' + user).then((one) => one.json()).then((one) => one.zones.buffer_m)"
        assert [page.evaluate(ask, user) for user in ("bob", "ann")] == [100, 0]


def wait_on_page(page, true):
    """Wait like `wait_for`, while the page's requests continue."""
    wait_for(lambda: page.wait_for_timeout(20) or true())


def test_page_is_inert_while_another_opens_and_ignores_late_answers(config, browser):
    """Input would be lost or saved for the other user.

    Without an answer the page is unchanged.
    """
    delayed, hold = [], []
    with serve_relay(config()) as client, open_page(browser, client) as page:
        post(client, 0)
        page.click("summary:has-text('Add a person')")
        page.fill("#other-token", get_page_token("bob"))
        page.press("#other-token", "Enter")
        page.wait_for_selector("#household li:has-text('bob')")
        page.route("**/page/state*", lambda route: delayed.append(route) if hold else route.continue_())
        hold.append(True)
        wait_on_page(page, lambda: delayed)  # a poll for news of ann
        page.select_option("#user", "bob")
        wait_on_page(page, lambda: len(delayed) > 1)
        assert page.locator("#main").get_attribute("inert") is not None
        delayed[0].continue_()  # ann's answer arrives while bob's page is requested
        page.wait_for_timeout(300)
        delayed[1].abort()
        page.wait_for_selector("#main:not([inert])")
        page.wait_for_selector("#message:has-text('cannot be reached')")
        assert page.input_value("#user") == "ann"
        hold.clear()
        page.select_option("#user", "bob")
        page.wait_for_selector("#main:not([inert])")
        page.wait_for_selector("#timestep-time:has-text('–')")  # bob was never seen
        assert page.input_value("#user") == "bob"


def test_late_answers_to_page_of_former_user_are_dropped(config, browser):
    """The change of the former user is stored, and the page of the other user is unchanged."""
    delayed = []
    failed_urls = []
    hold = [True]
    with serve_relay(config()) as client, open_page(browser, client) as page:
        page.click("summary:has-text('Add a person')")
        page.fill("#other-token", get_page_token("bob"))
        page.press("#other-token", "Enter")
        page.wait_for_selector("#household li:has-text('bob')")
        page.on("requestfailed", lambda request: failed_urls.append(request.url))
        page.route("**/page/zones*", lambda route: delayed.append(route))
        page.route("**/page/state?user=ann", lambda route: delayed.append(route) if hold else route.continue_())
        page.fill("#buffer", "200")
        page.wait_for_selector("#save:enabled")
        page.click("#save")
        wait_on_page(page, lambda: len(delayed) == 2)
        page.select_option("#user", "bob")
        page.wait_for_selector("#main:not([inert])")
        page.fill("#buffer", "100")
        page.wait_for_selector("#save:enabled")
        hold.clear()
        for route in delayed:
            route.continue_()
        page.wait_for_timeout(500)
        assert page.input_value("#buffer") == "100"
        assert page.inner_text("#message") == ""
        ask = "(user) => fetch('page/state?user=' + user).then((one) => one.json()).then((one) => one.zones.buffer_m)"
        assert [page.evaluate(ask, user) for user in ("bob", "ann")] == [0, 200]
        assert [url.partition("/page/")[2] for url in failed_urls] == ["state?user=ann"]


def test_link_address_is_not_shown_on_page_of_another_user(config, browser):
    with serve_relay(config()) as client, open_page(browser, client) as page:
        page.click("summary:has-text('Add a person')")
        page.fill("#other-token", get_page_token("bob"))
        page.press("#other-token", "Enter")
        page.wait_for_selector("#household li:has-text('bob')")
        page.click("summary:has-text('Create a link')")
        page.fill("#link-name", "Eve")
        page.click("#link button[type=submit]")
        page.wait_for_selector("#link-created:not([hidden])")
        page.select_option("#user", "bob")
        page.wait_for_selector("#main:not([inert])")
        assert page.locator("#link-created").is_hidden()
        assert page.input_value("#link-address") == ""


def test_overlapping_polls_list_a_release_once(config, browser, inbox):
    """Both a button and the timer poll for news."""
    delayed, hold = [], [True]
    with serve_relay(config(recipient=[describe_recipient(inbox)])) as client, open_page(browser, client) as page:
        page.route("**/page/trail*", lambda route: delayed.append(route) if hold else route.continue_())
        post(client, 0)
        wait_on_page(page, lambda: delayed)
        page.click("summary[aria-label^='Pause: ']")
        page.click("button[aria-label^='for two hours: ']")
        wait_on_page(page, lambda: len(delayed) > 1)
        hold.clear()
        for route in delayed:
            route.continue_()
        page.wait_for_selector("#last tbody tr")
        page.wait_for_timeout(500)
        assert page.locator("#last tbody tr").count() == 1


def test_poll_during_adding_a_user_does_not_close_page(config, browser):
    """The page then has a new cookie, and a request with the old one is refused."""
    late = []
    with serve_relay(config()) as client, open_page(browser, client) as page:
        page.route("**/page/state*", lambda route: route.continue_() if late else late.append(route))
        wait_on_page(page, lambda: late)
        page.click("summary:has-text('Add a person')")
        page.fill("#other-token", get_page_token("bob"))
        page.press("#other-token", "Enter")
        page.wait_for_selector("#household li:has-text('bob')")
        late[0].fulfill(status=401, json={})
        page.wait_for_timeout(500)
        assert page.is_visible("#household li:has-text('bob')")


def test_poll_waits_for_pending_login(config, browser):
    """With the old cookie it would be refused and close the page."""
    entering, polls = [], []
    with serve_relay(config()) as client, open_page(browser, client) as page:
        page.route("**/page/login*", lambda route: entering.append(route))
        page.click("summary:has-text('Add a person')")
        page.fill("#other-token", get_page_token("bob"))
        page.press("#other-token", "Enter")
        wait_on_page(page, lambda: entering)
        page.on("request", lambda request: polls.append(request.url) if "page/state" in request.url else None)
        page.wait_for_timeout(900)
        assert polls == []
        entering[0].continue_()
        page.wait_for_selector("#household li:has-text('bob')")
        wait_on_page(page, lambda: polls)


def test_places_are_found_offline_in_the_local_map(config, browser, tmp_path):
    pytest.importorskip("pyogrio")
    names = [("Angra do Heroísmo", 45.02, -30.03), ("Praia", 44.98, -29.97)]
    nodes = [(y, x, {"place": "town", "name": name}) for name, y, x in names]
    town = write_extract(
        tmp_path / "town.osm.pbf", [(45, -30.1, {}), (45, -29.9, {}), *nodes], [([0, 1], {"highway": "primary"})]
    )
    with serve_relay(config(basemap=str(town))) as client, open_page(browser, client) as page:
        assert {label.strip() for label in page.locator(".name").all_inner_texts()} >= {name for name, _, _ in names}
        before = len(page.locator(".name").all())
        page.fill("#place", "heroismo")
        page.press("#place", "Enter")
        page.wait_for_selector("#message:has-text('The map shows Angra do Heroísmo')")
        wait_for(lambda: len(page.locator(".name").all()) < before)
        page.fill("#place", "Atlantis")
        page.press("#place", "Enter")
        page.wait_for_selector("#message.wrong:has-text('Atlantis')")


def count_painted_pixels(page):
    """Return the number of painted pixels of the map's background."""
    return page.evaluate("""() => {
      const canvas = document.querySelector(".leaflet-basemap-pane canvas");
      const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      let count = 0;
      for (let k = 3; k < data.length; k += 4) count += data[k] > 0;
      return count;
    }""")


def test_map_without_streets_and_coast_is_not_empty(config, browser):
    with serve_relay(config()) as client, open_page(browser, client) as page:
        assert count_painted_pixels(page) > 2000


@pytest.mark.parametrize("language", TEXTS)
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desktop"])
def test_page_fits_in_every_language_and_declares_it(config, browser, inbox, language, size):
    others = {"name": "friends", "when_withheld": "nothing"}
    settings = config(
        recipient=[describe_recipient(inbox), describe_recipient(inbox, precision="2km") | others],
        limits={"epsilon": 1.0},
    )
    with serve_relay(settings) as client:
        post(client, 0, 1, 2)
        with open_page(browser, client, size, language=language) as page:
            page.wait_for_selector("#recipients li:nth-child(2)")
            page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
            assert page.evaluate("document.documentElement.lang") == language
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
            assert TEXTS[language]["what_recipients_infer"] in page.inner_text("#sharing")
            page.select_option("#language", "fr")
            page.wait_for_selector("html[lang=fr]", state="attached")


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desktop"])
def test_long_names_do_not_widen_page(config, browser, inbox, size):
    name = "W" * 80
    access = {
        "device": [{"user": name, "token": TOKEN["ann"]}],
        "page": [{"user": name, "token": get_page_token("ann")}],
    }
    with serve_relay(
        config(recipient=[describe_recipient(inbox) | {"name": name, "users": [name]}], **access)
    ) as client:
        log_in(client)
        drawn = make_zones(HOME)
        drawn["zones"]["features"][0]["properties"]["name"] = name
        client.post("/page/zones", json=drawn).raise_for_status()
        with open_page(browser, client, size) as page:
            page.wait_for_selector(f"#effect p:has-text('{name}')")
            page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_all_words_of_page_come_from_texts_file(config, browser, inbox, monkeypatch):
    marked = {key: text if key == "language_name" else f"⟦{text}⟧" for key, text in TEXTS["en"].items()}
    monkeypatch.setattr(pages, "TEXTS", {**TEXTS, "en": marked})
    pages._render_page.cache_clear()
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
        with serve_relay(config(recipient=[describe_recipient(inbox)], limits={"epsilon": 0.5})) as client:
            post(client, 0, 1)
            with open_page(browser, client) as page:
                page.click("#home")
                page.wait_for_selector("#recipients li p:has-text('The recipient')")
                shown = page.evaluate(words)
                page.click("#logout")
                page.wait_for_selector("#token")
                shown += page.evaluate(words)
    finally:
        pages._render_page.cache_clear()
    rest = set()
    for text in shown:
        while text != (text := re.sub("⟦[^⟦⟧]*⟧", "", text)):
            pass
        rest |= set(re.findall(r"[^\W\d_]+", text))
    assert len(shown) > 100
    assert rest <= {"ann", "family", "webhook", "friends", "km", "m", "ε", "Mar", "at"}


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_names_of_users_at_one_location_do_not_overlap(config, browser, size):
    """Five users are shown near each other, and nearer after each zoom."""
    names = ["ann", "bob", "cleopatra", "dora", "émile"]
    tokens = {name: name[0] * 40 for name in names if name.isascii()} | {"émile": "e" * 40}
    devices = [{"user": name, "token": token} for name, token in tokens.items()]
    with serve_relay(config(device=devices)) as client, open_page(browser, client, size) as page:
        for token in tokens.values():
            fix = {"time": "2024-03-07T09:00:00Z", "latitude": 45.0, "longitude": -30.0}
            client.post("/fix", json=fix, headers={"Authorization": f"Bearer {token}"}).raise_for_status()
        page.click("summary:has-text('Add a person')")
        for name in names[1:]:
            page.fill("#other-token", get_page_token(name))
            page.press("#other-token", "Enter")
            page.wait_for_selector(f".name.user:has-text('{name}, ')", state="attached")
        for _ in range(3):
            page.wait_for_timeout(300)
            deadline = time.monotonic() + 60
            while overlaps := find_overlaps(page):  # while the map zooms
                assert time.monotonic() < deadline, overlaps
                page.wait_for_timeout(100)
            page.click(".leaflet-control-zoom-out")


def find_overlaps(page):
    """Return the pairs of visible labels that overlap, of which one is a user's."""
    return page.evaluate(
        """() => {
          const shown = (label) => label.style.visibility !== "hidden";
          const labels = [...document.querySelectorAll(".name > span")].filter(shown);
          const isUser = (label) => label.parentElement.matches(".user");
          const boxes = labels.map((label) => [isUser(label), label.getBoundingClientRect(), label.outerHTML]);
          const pairs = [];
          boxes.forEach(([user, a, one], k) => boxes.slice(k + 1).forEach(([other, b, two]) => {
            const meet = a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
            if ((user || other) && meet) pairs.push([one, a.toJSON(), two, b.toJSON()]);
          }));
          return pairs;
        }"""
    )


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("en-GB", "30 of 30 in any 24 hours"),
        ("de-DE", "30 von 30 in je 24 Stunden"),
        ("fr-FR", "30 sur 30 sur toute période de 24 heures"),
        ("es-ES", "30 de 30 en cualquier período de 24 horas"),
        ("zh-CN", "任意 24 小时内"),
    ],
)
def test_page_states_what_is_left_of_window_budget_of_schedule(config, browser, language, words):
    release = {"policy": "utility:1km", "epsilon": 0.5, "schedule": {"window_epsilon": 30.0}}
    with serve_relay(config(release=release)) as client, open_page(browser, client, language=language) as page:
        assert words in page.inner_text("#budget").replace("\n", " ")


def read_map_figures(page, client, texts, number):
    """Return the figures of a release with the map: shown, and formatted by the page."""
    page.evaluate(
        "number => { const at = document.getElementById('timestep'); at.value = number; "
        "at.dispatchEvent(new Event('input')); }",
        number,
    )
    values = client.get(f"/page/map_adversary?from={number}").json()
    formatted = page.evaluate(
        "async ([error, share]) => { const words = await import('/static/words.js'); "
        "return [words.formatLength(error), words.formatPercent(share)]; }",
        [values["error_m"][0], values["max_posterior"][0]],
    )
    names = [json.dumps(texts[key], ensure_ascii=False) for key in ("map_error", "map_posterior")]
    return [page.inner_text(f"#inference dt:text-is({name}) + dd") for name in names], formatted


@pytest.mark.parametrize(
    ("size", "language"), [(DESK, "en-GB"), *(((390, 800), language) for language in ("en-GB", "de", "fr", "es", "zh"))]
)
def test_page_shows_inference_of_adversary_with_map_at_each_release(config, browser, tmp_path, size, language):
    lake = write_map(tmp_path / "lake.geojson", LAKE)
    texts = TEXTS[language[:2]]
    with serve_relay(config(adversary_map=lake)) as client:
        post(client, 0, 1, 2)
        log_in(client)
        with open_page(browser, client, size, language=language) as page:
            for count in (3, 4):
                page.wait_for_selector(f"#timestep[max='{count - 1}']", state="attached")
                wait_for(lambda last=count - 1: "–" not in read_map_figures(page, client, texts, last)[0])
                for number in range(count):
                    shown, formatted = read_map_figures(page, client, texts, number)
                    assert shown == formatted
                values = {"map": "lake.geojson", "error": formatted[0], "share": formatted[1]}
                sentence = re.sub(r"{(\w+)}", lambda key, values=values: values[key[1]], texts["map_summary"])
                assert page.inner_text("#map-adversary") == sentence
                post(client, 3)  # the second time, its release is there already
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_open_page_follows_map_that_is_added_changed_and_removed(model, browser, tmp_path):
    path, url = write_relay_file(tmp_path, model, str(tmp_path / "users.db"))
    text = path.read_text()
    with run_relay(path, url), httpx.Client(base_url=url, timeout=60) as client:
        post(client, 0, 1)
        log_in(client)
        with open_page(browser, client) as page:
            page.wait_for_selector("#inference dt:has-text('Location shown')")
            assert page.is_hidden("#map-adversary")
            for name, shape in (("lake", LAKE), ("sea", shapely.box(-29.99, 44.9, -29.9, 45.1))):
                path.write_text(f"adversary_map = {json.dumps(write_map(tmp_path / f'{name}.json', shape))}\n{text}")
                reload_relay(path)
                page.wait_for_selector(f"#map-adversary:has-text('({name}.json) has an expected error')")
                shown, formatted = read_map_figures(page, client, TEXTS["en"], 0)
                assert shown == formatted
            path.write_text(text)
            reload_relay(path)
            page.wait_for_selector("#map-adversary", state="hidden")
            wait_for(lambda: page.locator("#inference dt:has-text('the map')").count() == 0)


def test_page_states_progress_of_figures_with_map_and_why_there_are_none(config, browser, tmp_path, monkeypatch):
    lake = write_map(tmp_path / "lake.geojson", LAKE)
    answers = {"num_computed": 1}
    real = MapAdversary.infer

    def infer(self, *arguments):
        """Pretend that one release is computed until the test proceeds."""
        answer = real(self, *arguments)
        if "num_computed" not in answers:
            return answer
        return answer | {"error_m": [], "max_posterior": [], **answers}

    monkeypatch.setattr(MapAdversary, "infer", infer)
    with serve_relay(config(adversary_map=lake)) as client:
        post(client, 0, 1, 2)
        with open_page(browser, client) as page:
            page.wait_for_selector("#map-adversary:has-text('1 of 3 releases')")
            assert page.inner_text("#inference dt:has-text('also has the map') + dd") == "–"
            answers.clear()
            page.wait_for_selector("#map-adversary:has-text('the latest release')")
            answers["problem"] = "the first 2 timesteps of session 'ann' were pruned"

            def refuse(self, *arguments):
                raise ConfigurationError(answers["problem"])

            monkeypatch.setattr(MapAdversary, "infer", refuse)
            post(client, 3)
            page.wait_for_selector("#map-adversary:has-text('2 timesteps have been deleted')")
    with serve_relay(config()) as client, open_page(browser, client) as page:
        page.wait_for_selector("#inference dt:has-text('Location shown')")
        assert page.is_hidden("#map-adversary")
        assert page.locator("#inference dt:has-text('map')").count() == 0
