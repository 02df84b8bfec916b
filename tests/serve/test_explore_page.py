"""Tests of the page of ``dphmm explore``, over HTTP and in a headless browser."""

from __future__ import annotations

import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import quote, unquote

import httpx
import numpy as np
import pytest
import shapely
from PIL import Image
from scipy.ndimage import label

import dphmm
from dphmm import MarkovModel, ReleaseSettings
from dphmm.errors import ConfigurationError
from dphmm.jobs.explore.explored_user import ExploredUser
from dphmm.jobs.explore.explorer import Explorer
from dphmm.jobs.explore.paper_example import build_examples
from dphmm.jobs.explore.typed_settings import DEFAULT_FIELDS
from dphmm.serve.explore_page import _MAX_PANELS, EXPLORE_TEXTS, make_explore_app
from dphmm.serve.page import STATIC
from dphmm.space.states import Places
from dphmm.space.streets import Streets
from tests.pages import list_low_contrasts
from tests.serve.conftest import serve_app, wait_for
from tests.serve.test_texts import Words, check_translation

TOKEN = "t" * 32
HOSTILE = "<img src=x onerror='window.hacked=1'>"
NAMES = [HOSTILE, '"><script>window.hacked=1</script>', "Café & Bar", *(f"s{k}" for k in range(3, 12))]
DESK = (1280, 900)
PHONE = (390, 844)
PLACES = np.column_stack([45 + 0.0063 * (np.arange(12) // 4), 7 + 0.0089 * (np.arange(12) % 4)])
EXAMPLES = build_examples()
LATE = "#" + quote(json.dumps({"step": 19}))


@pytest.fixture(scope="module")
def model():
    """Return a model of twelve places 700 m apart, the first with hostile names."""
    matrix = np.full((12, 12), 0.02) + 0.76 * np.eye(12)
    return MarkovModel(matrix, np.full(12, 1 / 12), Places(NAMES, *PLACES.T), 300)


def make_explorer(model, name="", num_steps=6):
    states = np.resize([5, 5, 6, 6, 2, 2], num_steps)
    slots = 5_700_000 + np.arange(num_steps)
    return Explorer(model, ExploredUser(name, slots, states, (slots - 2 * num_steps, states)))


@contextmanager
def serve(model, name="", num_steps=6):
    with serve_app(make_explore_app(make_explorer(model, name, num_steps), TOKEN)) as url:
        yield url


@contextmanager
def log_in(url):
    with httpx.Client(base_url=url, verify=False, timeout=60) as client:
        assert client.get(f"/?token={TOKEN}").status_code == 303
        yield client


# ---- over HTTP -------------------------------------------------------------------------------------------------------


def test_every_path_needs_token_and_local_host(model):
    with serve(model) as url, httpx.Client(base_url=url, verify=False) as stranger:
        for path in ("/", "/explore/scene", "/explore/progress", "/static/explore.js", "/?token=wrong", "/?token="):
            assert stranger.get(path).status_code == 401, path
        assert stranger.post("/explore/view", json={"fields": {}}).status_code == 401
        with log_in(url) as client:
            assert client.get("/explore/scene").status_code == 200
            rebound = client.get("/explore/scene", headers={"Host": "attacker.example"})
            assert rebound.status_code == 400
            assert NAMES[2] not in rebound.text
            # the form of another site cannot send JSON's content type
            assert client.post("/explore/view", content='{"fields": {}}').status_code == 400


def test_two_pages_in_one_browser_do_not_log_each_other_out(model):
    tokens = ["a" * 32, "b" * 32]
    with (
        serve_app(make_explore_app(make_explorer(model), tokens[0])) as first,
        serve_app(make_explore_app(make_explorer(model), tokens[1])) as second,
        httpx.Client(verify=False) as client,  # its cookies are those of the host, as in a browser
    ):
        for url, token in zip((first, second), tokens, strict=True):
            assert client.get(f"{url}/?token={token}").status_code == 303
        for url in (first, second):
            assert client.get(f"{url}/explore/scene").status_code == 200
        # The cookie of one page does not open another.
        port = second.rpartition(":")[2]
        client.cookies.set(f"dphmm-explore-{port}", tokens[0], "127.0.0.1")
        assert client.get(f"{second}/explore/scene").status_code == 401


def test_content_policy_is_that_of_relay_page(model):
    with serve(model) as url, log_in(url) as client:
        policy = client.get("/").headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "http" not in policy


@pytest.mark.parametrize(
    "body",
    [
        {"fields": 7},
        {"fields": {}, "step": -1},
        {"fields": {}, "seed": True},
        {"fields": {}, "step": "1"},
        {},
        {"fields": {}, "before": []},
        {"fields": {}, "before": {"fields": 7}},
    ],
)
def test_malformed_requests_are_refused(model, body):
    with serve(model) as url, log_in(url) as client:
        assert client.post("/explore/view", json=body).status_code == 400


@pytest.mark.slow
def test_view_and_errors_over_http(model):
    with serve(model) as url, log_in(url) as client:
        view = client.post("/explore/view", json={"fields": {}, "step": 1, "seed": 1, "number": 1}).json()
        assert view == json.loads(json.dumps(make_explorer(model).build_view({}, 1)))
        answer = client.post("/explore/view", json={"fields": {"epsilon": "x"}, "number": 2})
        assert answer.status_code == 400
        assert set(answer.json()["errors"]) == {"epsilon"}
        assert client.post("/explore/view", json={"fields": {}, "step": 99}).status_code == 400
        policy = client.post("/explore/policy", json={"fields": {"policy": "utility:750m"}})
        assert len(policy.json()["edges"]) == 17  # 3 rows of 3 and 4 columns of 2
        assert client.post("/explore/policy", json={"fields": {"policy": "x"}}).status_code == 400
        edge = client.post("/explore/edge", json={"fields": {"policy": "utility:750m"}, "first": 11, "second": 0})
        assert json.loads(edge.json()["edges"]) == {"added": [[0, 11]], "removed": []}
        for body in ({"first": 3, "second": 3}, {"first": 3, "second": 99}, {"first": "3"}, {"first": -1}):
            assert client.post("/explore/edge", json={"fields": {}, **body}).status_code == 400


@pytest.mark.slow
def test_long_computation_makes_way_and_is_complete(model):
    step = 20_000  # takes longer than the timeout, also on a fast machine
    with serve(model, num_steps=step + 1) as url, log_in(url) as client, log_in(url) as other:
        with ThreadPoolExecutor(1) as pool:
            long = pool.submit(client.post, "/explore/view", json={"fields": {}, "step": step, "number": 1})
            wait_for(lambda: other.get("/explore/progress").json()["done"] > 20)
            short = other.post("/explore/view", json={"fields": {}, "step": 0, "panel": 1, "number": 2})
            assert not long.done()
            assert short.json()["epsilon_total"] == 1
            # the panel's next request ends the long one
            newer = other.post("/explore/view", json={"fields": {"epsilon": "2"}, "step": 0, "number": 3})
            assert newer.json()["epsilon_total"] == 2
            assert long.result().status_code == 409
        near = other.post("/explore/view", json={"fields": {}, "step": 60, "number": 4}).json()
        # an aborted request that arrives late
        with ThreadPoolExecutor(1) as pool:
            latest = pool.submit(client.post, "/explore/view", json={"fields": {}, "step": 200, "number": 6})
            wait_for(lambda: other.get("/explore/progress").json()["total"] == 201)
            late = other.post("/explore/view", json={"fields": {"epsilon": "2"}, "step": 300, "number": 5})
            assert late.status_code == 409
            assert latest.result().status_code == 200
    assert near == json.loads(json.dumps(make_explorer(model, num_steps=step + 1).build_view({}, 60, seed=0)))


@pytest.mark.slow
def test_page_does_not_end_the_computation_of_another(model):
    body = {"fields": {}, "step": 1_500, "page": 1, "number": 1}
    with (
        serve(model, num_steps=body["step"] + 1) as url,
        log_in(url) as client,
        log_in(url) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(client.post, "/explore/view", json=body)
        wait_for(lambda: other.get("/explore/progress").json()["done"] > 5)
        second = other.post("/explore/view", json={"fields": {}, "step": 0, "page": 2, "number": 2})
        assert second.status_code == 200
        assert not first.done()
        assert first.result().status_code == 200


@pytest.mark.slow
def test_computation_of_closed_page_ends_when_another_waits(model):
    step = 20_000  # takes longer than the timeout, also on a fast machine
    with serve(model, num_steps=step + 1) as url, log_in(url) as client, log_in(url) as other:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/explore/view", json={"fields": {}, "step": step, "page": 1, "number": 1}, timeout=1)
        body = {"fields": {}, "step": 3, "seed": 1, "page": 2, "number": 1}
        assert other.post("/explore/view", json=body).status_code == 200
        done = other.get("/explore/progress").json()
        assert done["total"] == 4, "the closed page computes on"


@pytest.mark.slow
def test_number_of_remembered_pages_is_bounded(model):
    with serve(model) as url, log_in(url) as client:
        for page in range(_MAX_PANELS + 20):
            client.post("/explore/view", json={"fields": {}, "page": page, "number": 5}).raise_for_status()
        late = {"fields": {}, "step": 5, "number": 4}
        assert client.post("/explore/view", json={**late, "page": page}).status_code == 409
        assert client.post("/explore/view", json={**late, "page": 0}).status_code == 200


@pytest.mark.slow
def test_explore_serves_until_closed(model):
    server = dphmm.explore(model, open_browser=False, num_steps=3)
    try:
        assert server.url.startswith("http://127.0.0.1:")
        address, _, token = server.url.partition("/?token=")
        with httpx.Client(base_url=address, verify=False, timeout=60) as client:
            client.get("/", params={"token": token})
            assert len(client.get("/explore/scene").json()["times"]) == 3
        assert token in server._repr_html_()
        with pytest.raises(ConfigurationError, match="cannot be used"):
            dphmm.explore(model, open_browser=False, num_steps=3, port=int(address.rpartition(":")[2]))
    finally:
        server.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url, timeout=5)


# ---- texts -----------------------------------------------------------------------------------------------------------


def test_texts_are_used_and_complete():
    names = (
        "explore.html",
        "map.js",
        "explore.js",
        "explore_edges.js",
        "explore_zones.js",
        "explore_picture.js",
        "drawing.js",
    )
    page, places, *scripts = ((STATIC / name).read_text(encoding="utf-8") for name in names)
    script = "\n".join(scripts)
    in_page = set(re.findall(r"{{(\w+)}}", page)) - {"lang", "texts"}
    in_script = set(re.findall(r'translate\(\s*"(\w+)"', script)) | set(re.findall(r'\[\s*"(\w+)", ', script))
    in_script |= {key for pair in re.findall(r'translate\([^?()]*\? "(\w+)" : "(\w+)"', script) for key in pair}
    in_script |= {f"withheld_{reason}" for reason in ("target", "budget", "caps")}  # the reasons of a StepPlan
    in_map = set(re.findall(r'translate\("(zoom_\w+)"', places))
    methods = {"exact", "greedy", "sequential"}
    in_script |= {f"example_{name}_text" for name in EXAMPLES}
    used = (in_page | in_script | in_map | methods) - {"withheld_"}
    texts = set(EXPLORE_TEXTS["en"])
    assert {key for key in used if key in texts or key in in_page | in_map} == texts
    words = Words()
    words.feed(page)
    mechanisms = {"lattice", "k-norm", "laplace", "planar-isotropic", "planar-laplace", "optimal", "graph-exponential"}
    assert [word for word in words.words if not re.fullmatch(r"{{\w+}}", word) and word not in mechanisms] == []


@pytest.mark.parametrize("language", EXPLORE_TEXTS)
def test_texts_of_each_language_have_equal_keys_and_placeholders(language):
    check_translation(EXPLORE_TEXTS[language], EXPLORE_TEXTS["en"])


@pytest.mark.parametrize("language", EXPLORE_TEXTS)
def test_page_has_language_of_browser(model, language):
    with serve(model) as url, log_in(url) as client:
        page = client.get("/", headers={"Accept-Language": f"xx, {language};q=0.5"})
        assert f'<html lang="{language}">' in page.text
        assert EXPLORE_TEXTS[language]["title"] in page.text


# ---- in a browser ----------------------------------------------------------------------------------------------------


@contextmanager
def open_page(browser, url, size=DESK, fragment="", wait=True, language="en-GB"):
    """Open the page. Requests to other hosts, script errors and hostile scripts fail the test."""
    wrong = []
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, locale=language, accept_downloads=True
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.on("request", lambda r: wrong.append(r.url) if not r.url.startswith((url, "blob:", "data:")) else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda m: wrong.append(m.text) if "Content Security Policy" in m.text else None)
    try:
        page.goto(f"{url}/?token={TOKEN}{fragment}")
        if wait:
            page.wait_for_selector("[data-figure=constraint_set]")
        yield page
        assert page.evaluate("window.hacked") is None
    finally:
        errors = list(wrong)
        context.close()
        assert errors == []


def read_figure(page, name, panel=0):
    return page.locator(".panel").nth(panel).locator(f"[data-figure={name}]").inner_text()


def set_field(page, name, text, panel=0):
    page.fill(f"#{name}-{panel}", text)
    page.press(f"#{name}-{panel}", "Enter")


def test_settings_errors_and_undo(model, browser):
    with serve(model) as url, open_page(browser, url) as page:
        assert "token" not in page.url
        error = read_figure(page, "noise_error")
        set_field(page, "epsilon", "0.5")
        wait_for(lambda: read_figure(page, "epsilon_step") == "0.5")
        assert read_figure(page, "noise_error") != error
        # invalid input is answered next to its field, and nothing is lost
        page.fill("#policy-0", HOSTILE)
        page.fill("#delta-0", "2")
        page.press("#delta-0", "Enter")
        page.wait_for_selector("#problem-policy-0")
        assert HOSTILE in page.inner_text("#problem-policy-0")
        assert "delta must be" in page.inner_text("#problem-delta-0")
        for name in ("policy", "delta"):
            assert page.get_attribute(f"#{name}-0", "aria-invalid") == "true"
            assert page.get_attribute(f"#{name}-0", "aria-describedby") == f"problem-{name}-0"
        assert page.input_value("#policy-0") == HOSTILE
        assert read_figure(page, "epsilon_step") == "0.5"
        page.click("text=Undo")
        assert page.locator(".problem").count() == 0
        assert [page.input_value(f"#{name}-0") for name in ("policy", "delta", "epsilon")] == [
            *(DEFAULT_FIELDS[name] for name in ("policy", "delta")), "0.5",
        ]  # fmt: skip
        page.click("text=Undo")
        wait_for(lambda: read_figure(page, "epsilon_step") == "1")
        assert page.is_disabled("text=Undo")
        for name, choice in (("mechanism", "laplace"), ("noise_scope", "component"), ("repair", "greedy")):
            page.select_option(f"#{name}-0", choice)
            wait_for(lambda name=name, choice=choice: f"{name}='{choice}'" in page.text_content("[data-part=python]"))
        set_field(page, "target_error", "50km")
        wait_for(lambda: page.locator("[data-figure=withheld]").count() == 1)
        assert "target error" in read_figure(page, "withheld")
        # The answer to the first of two quick changes may never arrive: only the second one's is waited for.
        set_field(page, "target_error", "")
        set_field(page, "window_epsilon", "0.25")
        wait_for(lambda: "budget of 24 hours" in read_figure(page, "withheld"))
        set_field(page, "window_epsilon", "")
        wait_for(lambda: page.locator("[data-figure=withheld]").count() == 0)


RECORD_TEXTS = """() => { window.drawn = []; const paint = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
    window.drawn.push([text, this.fillStyle, ...place]); paint.call(this, text, ...place); }; }"""


def save_picture(page):
    """Save the picture and return its path, and its texts with their colours and places."""
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    page.evaluate(RECORD_TEXTS)
    with page.expect_download() as download:
        page.click("[data-part=picture]")
    return download.value.path(), page.evaluate("window.drawn")


def move_time(page, step):
    page.evaluate(
        "(step) => { const time = document.getElementById('time'); time.value = step;"
        " time.dispatchEvent(new Event('input')); }",
        step,
    )


def test_invalid_fields_leave_labels_of_shown_settings_and_timestep(model, browser):
    scope = "[data-part=scope]"
    with serve(model) as url, open_page(browser, url) as page:
        page.fill("#delta-0", "abc")
        set_field(page, "policy", "complete")
        page.wait_for_selector("#problem-delta-0")
        assert page.inner_text(scope) == ""
        move_time(page, 5)
        wait_for(lambda: "those of timestep 1." in page.inner_text(scope))
        assert "6 of 6" in page.inner_text("#now")
        assert read_figure(page, "epsilon_total") == "1"
        text = "".join(text for text, *_ in save_picture(page)[1])
        assert f"Policy: {DEFAULT_FIELDS['policy']}; " in text
        assert f"δ (empty: protect all possible states): {DEFAULT_FIELDS['delta']}; Mechanism: lattice" in text
        assert "1 of 6: " in text
        assert not any(wrong in text for wrong in ("complete", "abc", "6 of 6"))
        # With the fields valid again, by Undo or by typing, the timestep is that of the clock.
        page.click("text=Undo >> visible=true")
        wait_for(lambda: read_figure(page, "epsilon_total") == "6")
        assert page.inner_text(scope) == ""
        set_field(page, "delta", "abc")
        page.wait_for_selector("#problem-delta-0")
        move_time(page, 2)
        wait_for(lambda: "those of timestep 6." in page.inner_text(scope))
        move_time(page, 5)
        wait_for(lambda: page.inner_text(scope) == "")
        move_time(page, 2)
        wait_for(lambda: "those of timestep 6." in page.inner_text(scope))
        page.fill("#delta-0", DEFAULT_FIELDS["delta"])
        page.press("#delta-0", "Tab")
        wait_for(lambda: read_figure(page, "epsilon_total") == "3")
        assert page.inner_text(scope) == ""


def test_small_budget_has_significant_digits(model, browser):
    with serve(model) as url, open_page(browser, url) as page:
        set_field(page, "epsilon", "0.00001")
        wait_for(lambda: read_figure(page, "epsilon_step") == "0.00001")
        move_time(page, 3)
        wait_for(lambda: read_figure(page, "epsilon_total") == "0.00004")
        formatted = page.evaluate(
            "import('./static/words.js').then(({ formatNumber: format }) =>"
            " [0, 0.1 + 0.2 - 0.3, 0.30000000000000004, 0.0123456, 1234.5678, 12345, -0.00012].map((n) => format(n)))"
        )
        assert formatted == ["0", "0", "0.3", "0.0123", "1,234.568", "12,345", "-0.00012"]


def test_release_outside_view_of_map_is_stated(model, browser):
    """No mark shows such a release until the map is zoomed out to it."""
    with serve(model) as url, open_page(browser, url) as page:
        set_field(page, "epsilon", "50")
        wait_for(lambda: read_figure(page, "epsilon_step") == "50")
        assert "outside" not in read_figure(page, "released_error")
        set_field(page, "epsilon", "0.05")
        wait_for(lambda: read_figure(page, "released_error").endswith(" km, outside the map's view"))
        for _ in range(8):
            page.click(".leaflet-control-zoom-out")
            page.wait_for_timeout(400)
        wait_for(lambda: "outside" not in read_figure(page, "released_error"))


def test_small_probabilities_are_not_shown_as_zero(model, browser):
    size = 400
    places = Places(
        [f"s{k}" for k in range(size)], 45 + 0.006 * (np.arange(size) // 20), 7 + 0.009 * (np.arange(size) % 20)
    )
    uniform = MarkovModel(np.full((size, size), 1 / size), np.full(size, 1 / size), places, 300)
    with serve(uniform) as url, open_page(browser, url) as page:
        set_field(page, "epsilon", "0.0001")
        wait_for(lambda: read_figure(page, "epsilon_step") == "0.0001")
        page.select_option("#colour-0", "public")
        wait_for(lambda: page.inner_text("[data-part=high]") == "0.3%")
        assert "(0.3%)" in read_figure(page, "public")
        formatted = page.evaluate(
            "import('./static/words.js').then(({ formatPercent: format }) =>"
            " [0, 0.0006, 0.0094, 0.014, 0.5, 1].map(format))"
        )
        assert formatted == ["0%", "0.06%", "0.9%", "1%", "50%", "100%"]


@pytest.mark.parametrize("size", [DESK, PHONE])
def test_timesteps_outside_region_are_counted_on_page(model, browser, size):
    explorer = make_explorer(model, "ann")
    user = replace(explorer.user, num_outside=2)
    with serve_app(make_explore_app(Explorer(model, user), TOKEN)) as url, open_page(browser, url, size) as page:
        assert "outside the region at 2 of the 6 timesteps" in page.inner_text("#source")
    with serve(model, "ann") as url, open_page(browser, url, size) as page:
        assert "outside" not in page.inner_text("#source")


@pytest.mark.parametrize("language", EXPLORE_TEXTS)
def test_marks_of_picture_do_not_overlap_their_texts(model, browser, language):
    size = PHONE if language == "de" else DESK
    with serve(model) as url, open_page(browser, url, size, language=language) as page:
        texts = save_picture(page)[1]
        # A text begins where the page has it, right of its mark.
        marks = page.evaluate(
            """[...document.querySelectorAll('.legend i')].filter(
            (mark) => mark.offsetWidth && mark.nextSibling?.data?.trim()).map((mark) => [mark.nextSibling.data.trim(),
            mark.getBoundingClientRect().right - mark.closest('.legend').getBoundingClientRect().left])"""
        )
        assert len(marks) == 7
        for words, right in marks:
            # The names of figures have another colour.
            lefts = [left for text, colour, left, _ in texts if words.startswith(text) and colour == "#1c2430"]
            assert lefts, words
            assert min(lefts) > right + 1, words


@pytest.fixture(scope="module")
def date_line_model():
    """Return a model of twelve places 700 m apart, on both sides of the date line."""
    matrix = np.full((12, 12), 0.02) + 0.76 * np.eye(12)
    longitude = (PLACES[:, 1] - 7 + 179.9867 + 180) % 360 - 180
    names = [f"s{k}" for k in range(12)]
    return MarkovModel(matrix, np.full(12, 1 / 12), Places(names, PLACES[:, 0] - 62, longitude), 300)


def test_region_across_date_line_fills_map_and_has_zones(date_line_model, browser):
    assert len(set(np.sign(date_line_model.space.longitude))) == 2
    with serve(date_line_model) as url:
        with open_page(browser, url) as page:
            metres = page.inner_text(".leaflet-control-scale-line")
            assert metres in ("300 m", "500 m", "1 km")
            click_map(page, 0)
            page.hover("[data-part=map]")
            wait_for(lambda: re.match("State s[56]:", page.inner_text("[data-part=state-shown]")))
            set_field(page, "policy", "utility:750m")
            set_field(page, "delta", "")
            set_field(page, "state", "s5")
            wait_for(lambda: "State s5: 2 neighbours" in page.inner_text("[data-part=state-shown]"))
            page.click("text=Zones >> visible=true")
            page.fill("#radius-0", "1200")
            page.click("[data-part=circle]")
            wait_for(lambda: "State s5: 5 neighbours" in page.inner_text("[data-part=state-shown]"))
            (feature,) = json.loads(page.evaluate("document.querySelector('[data-field=zones]').value"))["features"]
            polygon = shapely.from_geojson(json.dumps(feature["geometry"]))
            assert polygon.is_valid
            assert polygon.bounds[0] == -180
            assert polygon.bounds[2] == 180
            # Oracle: the circle's area, and the six places within 1.2 km of its centre.
            area = polygon.area * 111.32**2 * np.cos(np.radians(17))
            assert area == pytest.approx(np.pi * 1.2**2, rel=0.03)
            inside = shapely.intersects_xy(polygon, date_line_model.space.longitude, date_line_model.space.latitude)
            assert np.flatnonzero(inside).tolist() == [1, 2, 5, 6, 9, 10]
            drawn = page.evaluate(
                "[...document.querySelectorAll('[data-part=zones] li input')].map((name) => name.value)"
            )
            page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
            page.click("[data-part=link-button]")
            link = page.input_value("#link-0")
        with open_page(browser, url, fragment=link[link.index("#") :]) as page:
            assert page.locator("[data-part=zones] input").first.input_value() == drawn[0]
            page.locator("[data-part=zones] li").get_by_text("Show", exact=True).click()
            wait_for(lambda: page.inner_text(".leaflet-control-scale-line") in ("300 m", "500 m", "1 km"))


def test_change_is_answered_by_shown_timestep_first(model, browser):
    held = []

    def hold(route):
        body = route.request.post_data_json
        held.append(route) if "before" not in body and body["fields"]["epsilon"] == "2" else route.continue_()

    with serve(model, num_steps=30) as url, open_page(browser, url, fragment=LATE) as page:
        wait_for(lambda: read_figure(page, "epsilon_total") == "20")
        page.route("**/explore/view", hold)
        set_field(page, "epsilon", "2")
        wait_for(lambda: read_figure(page, "epsilon_total") == "21")  # 19 earlier timesteps, and one under the change
        assert "from timestep 20 on" in page.inner_text("[data-part=scope]")
        wait_for(lambda: held)
        held.pop().continue_()
        wait_for(lambda: read_figure(page, "epsilon_total") == "40")
        assert page.inner_text("[data-part=scope]") == ""
        # settings that the shown timestep allows, and an earlier one does not
        page.unroute("**/explore/view")
        page.route("**/explore/view", lambda route: refuse_complete(route))
        set_field(page, "delta", "0.02")
        page.wait_for_selector("#problem-delta-0")
        assert "cannot be applied from the first" in page.inner_text("[data-part=scope]")
        assert read_figure(page, "epsilon_total") == "40"


def test_second_tab_does_not_stop_the_first(model, browser):
    with serve(model, num_steps=5_000) as url, open_page(browser, url) as first:
        first.evaluate("document.querySelector('#time').value = 4999")
        first.dispatch_event("#time", "input")
        first.wait_for_selector("[data-part=progress]:not([hidden])")
        with open_page(browser, url) as second:
            assert read_figure(second, "epsilon_total") == "1"
            wait_for(lambda: read_figure(first, "epsilon_total") == "5,000")
            assert first.inner_text("#message") == ""


def refuse_complete(route):
    """Answer requests for all timesteps as if one of them had a single possible state."""
    if "before" in route.request.post_data_json:
        route.continue_()
    else:
        route.fulfill(status=400, json={"errors": {"delta": "one state only"}})


def test_time_and_two_settings_side_by_side(model, browser):
    with serve(model) as url, open_page(browser, url) as page:
        page.focus("#time")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        wait_for(lambda: read_figure(page, "epsilon_total") == "3")
        assert "3 of 6" in page.get_attribute("#time", "aria-valuetext")
        page.click("text=Compare two settings")
        wait_for(lambda: page.locator("[data-figure=epsilon_total]").count() == 2)
        set_field(page, "epsilon", "2", panel=1)
        wait_for(lambda: read_figure(page, "epsilon_total", 1) == "6")
        assert read_figure(page, "epsilon_total", 0) == "3"
        assert page.evaluate("document.documentElement.scrollWidth") <= DESK[0]
        before = page.evaluate("document.querySelector('.leaflet-overlay-pane canvas').toDataURL()")
        page.locator("text=Sample again").first.click()
        wait_for(lambda: page.evaluate("document.querySelector('.leaflet-overlay-pane canvas').toDataURL()") != before)
        page.click("text=Show one setting")
        assert page.locator(".panel").count() == 1


def test_exposed_states_repair_and_neighbours(model, browser):
    """State 11 has no edge, so the repair adds one. Its name is found by keyboard."""
    links = [{"source": "s4", "target": "s5"}, {"source": HOSTILE, "target": "Café & Bar"}]
    graph = {"directed": False, "multigraph": False, "nodes": [], "edges": links}
    fields = {"policy": f"graph:{json.dumps(graph)}".replace("&", r"\u0026"), "noise_scope": "component", "delta": ""}
    expected = make_explorer(model).build_view(fields, 0)
    assert expected["repair"]["added"]
    with serve(model) as url, open_page(browser, url) as page:
        page.select_option("#noise_scope-0", "component")
        page.fill("#delta-0", "")
        set_field(page, "policy", fields["policy"])
        wait_for(lambda: "s11" in page.inner_text("[data-part=edges]"))
        rows = page.locator("[data-part=edges] tr").count()
        assert rows == len(expected["repair"]["added"])
        alternative = page.inner_text("[data-part=repair-alternative]")
        errors = expected["repair"]["alternative"]["error_m"], expected["expected_error_m"]
        stated = re.findall(r"([\d.,]+) (k?)m\b", alternative)
        assert [float(number) * (1000 if kilo else 1) for number, kilo in stated] == pytest.approx(errors, abs=50)
        assert read_figure(page, "exposed_states") == ", ".join(NAMES[state] for state in expected["exposed"])
        page.fill("#state-0", HOSTILE)
        page.press("#state-0", "Enter")
        wait_for(lambda: "1 neighbours" in page.inner_text("[data-part=state-shown]"))
        page.fill("#state-0", "nowhere")
        page.press("#state-0", "Enter")
        wait_for(lambda: "No state" in page.inner_text("[data-part=state-shown]"))
        page.hover("[data-part=map]")
        wait_for(lambda: "neighbours" in page.inner_text("[data-part=state-shown]"))
        canvas = "document.querySelector('.leaflet-overlay-pane canvas').toDataURL()"
        for control in ("hull", "samples", "edges"):
            before = page.evaluate(canvas)
            page.uncheck(f"[data-layer={control}]")
            wait_for(lambda before=before: page.evaluate(canvas) != before)
        for colour in ("repaired", "public", "degrees", "informed"):
            before = page.evaluate(canvas)
            page.select_option("#colour-0", colour)
            wait_for(lambda before=before: page.evaluate(canvas) != before)


def click_map(page, right, up=0):
    """Click a position relative to the middle of the map, between places 5 and 6, in pixels."""
    page.locator("[data-part=map]").scroll_into_view_if_needed()
    box = page.locator("[data-part=map]").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2 + right, box["y"] + box["height"] / 2 - up)


# Latitude and longitude of the west end of a street, in 1e-7 degrees.
CROSSING = 450000000, 70000000


@pytest.fixture(scope="module")
def street_model():
    """Return a model of a street of 1.6 km, and of two short streets at its ends."""
    latitude, longitude = CROSSING
    east = longitude + 203_000
    bends = [(latitude, longitude), (latitude, longitude + 100_000), (latitude, east)]
    vertices = [
        *bends,
        (latitude, east),
        (latitude + 20_000, east),
        (latitude, longitude),
        (latitude - 20_000, longitude),
    ]
    streets = Streets(vertices, [3, 2, 2], credit="© Street <mappers>.")
    return MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), streets, 300)


@pytest.mark.parametrize("size", [DESK, PHONE])
def test_segments_of_streets_are_drawn_on_map_and_pointed_at(street_model, browser, size):
    states = np.array([1, 1, 0])
    slots = 5_700_000 + np.arange(3)
    explorer = Explorer(street_model, ExploredUser("", slots, states, (slots - 6, states)))
    scene = explorer.describe()
    assert [np.shape(line) for line in scene["segments"]] == [(3, 2), (2, 2), (2, 2)]
    assert scene["segments"][1] == [[45.0, 7.0203], [45.002, 7.0203]]
    with serve_app(make_explore_app(explorer, TOKEN)) as url, open_page(browser, url, size) as page:
        set_field(page, "policy", "complete")
        wait_for(lambda: read_figure(page, "exposed_states") == "none")
        assert "© Street <mappers>." in page.inner_text(".leaflet-control-attribution")
        area = page.locator("[data-part=map]")
        area.scroll_into_view_if_needed()
        for box in page.locator("[data-layer]").all():
            box.uncheck()
        pixels = np.asarray(Image.open(io.BytesIO(area.screenshot())).convert("RGB")).astype(int)
        # All have the largest degree, and the last colour of the ramp with an opacity of 0.9, on a pale map.
        rows, columns = np.nonzero((abs(pixels - (0.9 * np.array([68, 1, 84]) + 24)) < 12).all(axis=2))
        width, height = np.ptp(columns), np.ptp(rows)
        # As wide and high as on the ground: discs at the middles of the segments would be half as high.
        lengths = 0.0203 * np.cos(np.radians(45)), 0.004
        assert width / height == pytest.approx(lengths[0] / lengths[1], rel=0.1)
        middle = int(np.median(rows))
        share = np.isin(np.arange(columns.min(), columns.max()), columns[abs(rows - middle) <= 1]).mean()
        assert share > 0.85  # the discs of the estimate and the release may cover a part
        # Near its east end the long street is nearest, although the middle of the short one is nearer than its own.
        corner = area.bounding_box()
        for right, down, state in ((columns.max() - 12, middle + 2, 0), (columns.max() - 2, rows.min() + 4, 1)):
            page.mouse.move(corner["x"] + float(right), corner["y"] + float(down))
            wait_for(lambda name=f"State {state}:": name in page.inner_text("[data-part=state-shown]"))
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_edges_are_added_and_removed_by_mouse_and_keyboard(model, browser, tmp_path):
    fields = {"policy": "utility:750m", "delta": ""}
    link = quote(json.dumps({"settings": [fields]}))
    num_edges = len(make_explorer(model).build_view(fields, 0)["edges"])
    with serve(model) as url:
        with open_page(browser, url, fragment=f"#{link}") as page:
            page.focus("[data-part=edit-edges]")
            page.keyboard.press("Enter")
            assert page.get_attribute("[data-part=edit-edges]", "aria-pressed") == "true"
            for name in (HOSTILE, "s11"):  # the corners, which are far apart
                page.focus("#state-0")
                page.fill("#state-0", name)
                page.keyboard.press("Enter")
                if name == HOSTILE:
                    wait_for(lambda: f"First state: {HOSTILE}." in page.inner_text("[data-part=edges-hint]"))
            wait_for(lambda: page.inner_text("[data-part=edited] li").startswith(f"Added edge: {HOSTILE} – s11"))
            assert "graph of 1 edge" in page.inner_text("[data-part=policy-applied]")
            for right in (-20, 20):  # neighbours
                click_map(page, right)
            wait_for(lambda: page.locator("[data-part=edited] li").count() == 2)
            assert "Removed edge: s5 – s6" in page.inner_text("[data-part=edited]")
            page.click("text=Take away")
            with page.expect_download() as download:
                page.click("text=Policy file")
            written = json.loads(download.value.path().read_text())
            edges = {frozenset((edge["source"], edge["target"])) for edge in written["edges"]}
            assert {frozenset((0, 11))} <= edges
            assert frozenset((5, 6)) not in edges
            assert len(edges) == num_edges
            page.click("text=Link to these settings")
            shared = page.input_value("#link-0")
            page.click("text=Undo")
            wait_for(lambda: page.locator("[data-part=edited] li").count() == 1)
            page.click("text=Restore")
            wait_for(lambda: page.locator("[data-part=edited] li").count() == 0)
            assert page.evaluate("document.activeElement.dataset.part") == "edit-edges"
        with open_page(browser, url, PHONE, fragment=shared[shared.index("#") :], language="de-DE") as page:
            wait_for(lambda: page.locator("[data-part=edited] li").count() == 2)
            assert "Entfernte Kante: s5 – s6" in page.inner_text("[data-part=edited]")
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


@pytest.mark.parametrize(("size", "language"), [(DESK, "en-GB"), (PHONE, "de-DE")])
def test_zones_are_drawn_named_and_undone(model, browser, size, language):
    words = EXPLORE_TEXTS[language[:2]]
    with serve(model) as url:
        with open_page(browser, url, size, language=language) as page:
            set_field(page, "policy", "utility:750m")
            set_field(page, "delta", "")
            set_field(page, "state", "s5")
            wait_for(lambda: re.search(r"\b4\b", page.inner_text("[data-part=state-shown]")))
            # a circle by keyboard, around the middle of the map
            page.click(f"summary:text-is('{words['zones']}')")
            page.fill("#radius-0", "1200")
            page.focus("[data-part=circle]")
            page.keyboard.press("Enter")
            wait_for(lambda: page.input_value("#policy-0") == "utility:750m | zone:zones.geojson")
            wait_for(lambda: re.search(r"\b7\b", page.inner_text("[data-part=state-shown]")))
            name = page.locator("[data-part=zones] input").first
            name.fill(HOSTILE[:80])
            name.press("Tab")
            wait_for(lambda: HOSTILE in page.inner_text("[data-part=map]"))  # its label
            assert page.locator("img[src=x]").count() == 0
            # a polygon with the mouse: three corners, the first one again closes it
            page.locator(".leaflet-pm-icon-polygon").click()
            for right, up in ((-60, 60), (60, 60), (60, -60), (-60, 60)):
                click_map(page, right, up)
            wait_for(lambda: page.locator("[data-part=zones] input").count() == 2)
            assert page.locator("[data-part=edited] li").count() == 0
            # the two overlap: the message is next to the zones, and Undo removes the second one
            page.wait_for_selector("#problem-zones-0")
            page.click(f"text={words['undo']} >> visible=true")
            wait_for(lambda: page.locator("[data-part=zones] input").count() == 1)
            assert page.locator(".problem").count() == 0
            page.click(f"summary:text-is('{words['take_away']}')")
            with page.expect_download() as download:
                page.click(f"text={words['download_zones']}")
            assert download.value.suggested_filename == "zones.geojson"
            (feature,) = json.loads(download.value.path().read_text())["features"]
            assert feature["properties"] == {"name": HOSTILE[:80]}
            page.click(f"text={words['copy_link']}")
            link = page.input_value("#link-0")
            page.locator("[data-part=zones] li").get_by_text(words["remove"], exact=True).click()
            wait_for(lambda: page.input_value("#policy-0") == "utility:750m")
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        with open_page(browser, url, size, fragment=link[link.index("#") :]) as page:
            wait_for(lambda: page.locator("[data-part=zones] input").count() == 1)
            assert HOSTILE[:80] in page.inner_text("[data-part=map]")
            page.click("text=Compare two settings")
            wait_for(lambda: page.locator("[data-part=zones] input").count() == 2)


def test_circle_drawn_with_mouse_is_polygon(model, browser):
    with serve(model) as url, open_page(browser, url) as page:
        page.locator(".leaflet-pm-icon-circle").click()
        click_map(page, 0)
        click_map(page, 90)
        wait_for(lambda: page.locator("[data-part=zones] input").count() == 1)
        (feature,) = json.loads(page.evaluate("document.querySelector('[data-field=zones]').value"))["features"]
        assert feature["geometry"]["type"] == "Polygon"
        assert len(feature["geometry"]["coordinates"][0]) == 25


def test_hostile_zones_of_link_are_answered_next_to_them(model, browser):
    feature = {"type": "Feature", "properties": {"name": HOSTILE * 300}, "geometry": {"type": "Polygon"}}
    collection = {"type": "FeatureCollection", "features": [feature]}
    link = quote(json.dumps({"settings": [{"zones": json.dumps(collection), "edges": HOSTILE}]}))
    with serve(model) as url, open_page(browser, url, fragment=f"#{link}", wait=False) as page:
        page.wait_for_selector("#problem-zones-0", state="attached")
        assert "must be a JSON object" in page.inner_text("#problem-edges-0")
        assert page.locator("img[src=x]").count() == 0


@pytest.mark.parametrize(
    ("user", "size", "language"), [("", DESK, "en-GB"), (HOSTILE, PHONE, "zh-CN"), (HOSTILE * 300, DESK, "en-GB")]
)
def test_picture_contains_map_legend_and_figures(model, browser, user, size, language):
    with serve(model, user) as url, open_page(browser, url, size, language=language) as page:
        words = EXPLORE_TEXTS[language[:2]]
        error = read_figure(page, "noise_error")
        page.evaluate(RECORD_TEXTS)
        page.click(f"summary:text-is('{words['take_away']}')")
        with page.expect_download() as download:
            page.click(f"text={words['download_picture']}")
        assert download.value.suggested_filename == ("PRIVATE-explore.png" if user else "explore.png")
        drawn = page.evaluate("window.drawn")
        texts = [text for text, *_ in drawn]
        assert error in texts
        assert words["noise_error"] in "".join(texts)
        assert words["mark_true"] in texts
        in_red = "".join(text for text, colour, *_ in drawn if colour == "#c0392b")
        assert in_red.startswith(words["picture_private"].format(user=user)[:60] if user else "")
        assert bool(in_red) == bool(user)
        assert len(in_red) < 1_000
        with Image.open(download.value.path()) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        assert pixels.shape[1] == 2 * (page.evaluate("document.querySelector('.map').clientWidth") + 24)
        # the true state's black disc, on the map and in the legend: at least 100 pixels each, other black is text
        discs, _ = label((pixels == 0x11).all(axis=2))
        assert np.count_nonzero(np.bincount(discs.ravel())[1:] > 100) == 2
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50


def test_edges_that_are_too_many_to_plot_are_stated(model, browser, monkeypatch):
    with serve(model) as url, open_page(browser, url) as page:
        box, text = page.locator("[data-layer=edges]"), page.locator("[data-part=edges-omitted]")
        assert box.is_enabled()
        assert text.is_hidden()
        monkeypatch.setattr("dphmm.jobs.explore.explorer._MAX_EDGES", 16)
        set_field(page, "policy", "utility:750m")
        wait_for(box.is_disabled)
        assert EXPLORE_TEXTS["en"]["edges_omitted"] in text.inner_text()


def test_unprotected_states_have_an_entry_in_the_legend(model, browser):
    entry = "[data-part=mark-unprotected]"
    words = EXPLORE_TEXTS["en"]["mark_unprotected"]
    with serve(model) as url, open_page(browser, url) as page:
        assert page.is_hidden(entry)
        assert words not in [text for text, *_ in save_picture(page)[1]]
        page.fill("#radius-0", "1200")
        page.click("[data-part=circle]")
        wait_for(lambda: page.locator("[data-part=zones] input").count() == 1)
        set_field(page, "policy", "zone:zones.geojson")
        page.wait_for_selector(entry)
        assert words in [text for text, *_ in save_picture(page)[1]]
        page.select_option("#colour-0", "public")
        assert page.is_hidden(entry)


@pytest.mark.parametrize("radius", ["1e9", "-5", "0", ""])
def test_radius_of_circle_out_of_range_is_stated(model, browser, radius):
    with serve(model) as url, open_page(browser, url) as page:
        page.click("summary:text-is('Zones')")
        page.fill("#radius-0", radius)
        page.click("[data-part=circle]")
        assert page.inner_text("#problem-radius-0") == EXPLORE_TEXTS["en"]["circle_radius_invalid"]
        assert page.locator("[data-part=zones] input").count() == 0
        page.fill("#radius-0", "600")
        assert page.locator(".problem").count() == 0
        page.click("[data-part=circle]")
        wait_for(lambda: page.locator("[data-part=zones] input").count() == 1)


def test_progress_states_that_noise_tables_are_computed(model):
    with serve(model) as url, log_in(url) as client:
        for number, mechanism in enumerate(("optimal", "lattice"), start=1):
            client.post("/explore/view", json={"fields": {"mechanism": mechanism}, "step": 0, "number": number})
            assert client.get("/explore/progress").json()["has_table"] == (mechanism == "optimal")


def test_fallback_is_shown_with_optimal_mechanism(model, browser):
    with serve(model) as url, open_page(browser, url) as page:
        assert page.is_hidden("#optimal_fallback-0")
        page.select_option("#mechanism-0", "optimal")
        page.select_option("#optimal_fallback-0", "graph-exponential")
        wait_for(lambda: "optimal_fallback='graph-exponential'" in page.text_content("[data-part=python]"))


def test_files_and_link(model, browser, tmp_path):
    with serve(model) as url:
        with open_page(browser, url) as page:
            set_field(page, "policy", "utility:750m")
            wait_for(lambda: "utility:750m" in page.text_content("[data-part=command]"))
            page.click("text=Take away")
            for name, button in (("policy.json", "Policy file"), ("settings.toml", "Settings (TOML)")):
                with page.expect_download() as download:
                    page.click(f"text={button}")
                download.value.save_as(tmp_path / name)
                assert download.value.suggested_filename == name
            assert len(json.loads((tmp_path / "policy.json").read_text())["edges"]) == 17
            written = ReleaseSettings.from_toml((tmp_path / "settings.toml").read_text())
            assert written == ReleaseSettings("utility:750m", 1.0, delta=0.01)
            page.click("text=Link to these settings")
            link = page.input_value("#link-0")
            assert not any(quote(name) in link or TOKEN in link for name in NAMES[:1])
        with open_page(browser, url, fragment=link[link.index("#") :]) as page:
            wait_for(lambda: page.input_value("#policy-0") == "utility:750m")


@pytest.mark.parametrize("text", ["not json", '{"settings": [null, 7, {"policy": 3, "x": "y"}], "step": 1e99}', "[]"])
def test_malformed_links_open_first_settings(model, browser, text):
    with serve(model) as url, open_page(browser, url, fragment=f"#{quote(text)}") as page:
        assert page.input_value("#policy-0") == DEFAULT_FIELDS["policy"]


def test_hostile_link_is_answered_beside_field(model, browser):
    link = quote(json.dumps({"step": 2, "settings": [{"policy": HOSTILE, "epsilon": NAMES[1]}]}))
    with serve(model) as url, open_page(browser, url, fragment=f"#{link}", wait=False) as page:
        page.wait_for_selector("#problem-policy-0")
        assert page.locator("img[src=x]").count() == 0
        assert page.input_value("#policy-0") == HOSTILE


@pytest.mark.parametrize(
    ("size", "language", "words"),
    [
        (DESK, "en-GB", "It stays on this machine"),
        (PHONE, "en-GB", "is private."),
        (PHONE, "de-DE", "Sie bleibt auf diesem Rechner"),
    ],
)
def test_private_recording_is_announced_and_page_fits(model, browser, size, language, words):
    with serve(model, HOSTILE) as url, open_page(browser, url, size, language=language) as page:
        source = page.inner_text("#source")
        assert HOSTILE in source
        assert words in source
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        narrow = "[...document.querySelectorAll('dd')].every((figure) => figure.clientWidth > 120)"
        assert page.evaluate(narrow)


def test_every_control_has_label_and_is_reached_by_keyboard(model, browser):
    with serve(model) as url, open_page(browser, url) as page:
        page.click("text=Take away")
        page.click("text=Link to these settings")
        page.select_option("#mechanism-0", "optimal")  # shows one more field
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        unlabelled = """() => [...document.querySelectorAll('input, select, button, [role=application]')].filter(
            (one) => !(one.labels?.length || one.textContent.trim() || one.getAttribute('aria-label'))).length"""
        assert page.evaluate(unlabelled) == 0
        reached = set()
        page.focus("#compare")
        for _ in range(120):
            reached.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
            page.keyboard.press("Tab")
        controls = """[...document.querySelectorAll('*')].map((one, k) => [one, k]).filter(
            ([one]) => one.matches('input, select, button, summary, pre') && !one.disabled).map(([, k]) => k)"""
        assert len(page.evaluate(controls)) > 15
        assert set(page.evaluate(controls)) <= reached
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
        assert len(ids) == len(set(ids))


def test_uses_of_two_settings_are_compared(model, browser, monkeypatch):
    monkeypatch.setattr(Explorer.list_uses, "__kwdefaults__", {**Explorer.list_uses.__kwdefaults__, "num_users": 8})
    policies = ("utility:1.5km", "complete")
    with serve(model) as url, open_page(browser, url) as page:
        assert page.locator("#uses-table").is_hidden()
        set_field(page, "policy", policies[0])
        page.click("#compare")
        page.wait_for_selector("#policy-1")
        set_field(page, "policy", policies[1], 1)
        wait_for(lambda: policies[1] in page.locator("[data-part=command]").nth(1).text_content())
        page.click("#uses")
        page.wait_for_selector("#uses-table:visible")
        shown = page.locator("#uses-table tr").evaluate_all(
            "rows => rows.map((r) => [...r.cells].map((c) => c.innerText))"
        )
        rows = make_explorer(model).list_uses([{**DEFAULT_FIELDS, "policy": policy} for policy in policies])
        assert shown[0][1:] == [f"{policy}, ε = 1" for policy in policies]
        assert len(shown) == 9
        for k, row in enumerate(rows, start=1):
            assert float(shown[1][k].split(" ")[0]) == pytest.approx(row["mean_error_m"]["value"], rel=0.06)
            for line, name in ((2, "monitoring_error"), (4, "tracing_precision"), (5, "tracing_recall")):
                assert shown[line][k].split("%")[0] == f"{100 * row[name]['value']:.0f}"
            assert shown[8][k] == f"{100 * row['disclosed_share']:.0f}%"
        set_field(page, "policy", "utility:1km")
        page.wait_for_selector("#uses-table", state="hidden")


def test_malformed_requests_of_uses_are_refused(model):
    with serve(model) as url, log_in(url) as client:
        for settings in (None, [], [{}, {}, {}], [7], [{"epsilon": "x"}]):
            assert client.post("/explore/uses", json={"settings": settings}).status_code == 400


@pytest.mark.parametrize("user", ["", "ann"])
def test_texts_have_contrast(model, browser, user):
    with serve(model, user) as url, open_page(browser, url) as page:
        set_field(page, "epsilon", "x")
        page.wait_for_selector(".problem")
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        num_texts, low = list_low_contrasts(page)
        assert num_texts > 60
        assert low == []
        page.evaluate("for (const one of document.querySelectorAll('small')) one.style.color = '#a0a0a0'")
        assert len(list_low_contrasts(page)[1]) >= 2


# ---- examples of the papers ------------------------------------------------------------------------------------------


def test_examples_over_http(model):
    with serve(model) as url, log_in(url) as client:
        scene = client.get("/explore/scene?example=correlation").json()
        assert scene["names"] == ["s1", "s2", "s3", "s4", "s5", "s6"]
        (fields,) = scene["settings"]
        body = {"fields": fields, "example": "correlation", "step": scene["step"]}
        view = client.post("/explore/view", json={**body, "number": 1}).json()
        assert view["exposed"] == [4]
        assert (view["command"], view["python"]) == ("", "")
        assert client.post("/explore/neighbours", json={**body, "state": 1}).json() == [2]
        edge = client.post("/explore/edge", json={**body, "first": 0, "second": 4}).json()
        assert json.loads(edge["edges"]) == {"added": [[0, 4]], "removed": []}
        policy = client.post("/explore/policy", json=body).json()
        edges = {(link["source"], link["target"]) for link in policy["edges"]}
        assert edges == {(1, 2), (3, 4), (3, 5), (4, 5)}
        assert client.get("/explore/scene?example=other").status_code == 400
        for wrong in ("other", 7, None, ["delta"]):
            assert client.post("/explore/view", json={**body, "example": wrong}).status_code == 400


def test_examples_are_chosen_and_own_settings_kept(model, browser):
    with serve(model) as url, open_page(browser, url) as page:
        set_field(page, "policy", "utility:1.5km")
        wait_for(lambda: "utility:1.5km" in page.locator("[data-part=command]").text_content())
        for name, exposed in (("exposure", ["s3"]), ("policies", ["none", "none"]), ("delta", ["none", "s5"])):
            page.select_option("#example", name)
            page.wait_for_function(
                "count => document.querySelectorAll('[data-figure=exposed_states]').length === count", arg=len(exposed)
            )
            wait_for(lambda: [read_figure(page, "exposed_states", k) for k in range(len(exposed))] == exposed)  # noqa: B023
            assert page.locator("#example-text").inner_text() == EXPLORE_TEXTS["en"][f"example_{name}_text"]
            assert page.locator("[data-part=commands]").first.is_hidden()
        page.select_option("#example", "")
        wait_for(lambda: page.locator(".panel").count() == 1 and page.input_value("#policy-0") == "utility:1.5km")
        page.wait_for_selector("[data-figure=constraint_set]")
        assert "of 12 states" in read_figure(page, "constraint_set")
        assert page.locator("#example-text").inner_text() == ""


def test_link_opens_example(model, browser):
    shown = {"example": "budget", "step": 9, "settings": [{**EXAMPLES["budget"].settings[0], "epsilon": "0.5"}]}
    with serve(model) as url, open_page(browser, url, fragment="#" + quote(json.dumps(shown))) as page:
        assert page.input_value("#example") == "budget"
        assert read_figure(page, "epsilon_total") == "5"
        page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        page.click("[data-part=link-button]")
        link = json.loads(unquote(page.input_value("#link-0").partition("#")[2]))
        assert (link["example"], link["step"]) == ("budget", 9)
