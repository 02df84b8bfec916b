"""Tests of the user's page over HTTP: access, and that choices apply to releases."""

from __future__ import annotations

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from dphmm.audit.realized_leakage import compute_realized_leakage
from dphmm.audit.sequence import replay_sequence
from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError
from dphmm.jobs import learn, region
from dphmm.jobs.audit.session import audit_session
from dphmm.jobs.model.loading import load_model
from dphmm.jobs.release.stored import replay
from dphmm.model.belief import Belief
from dphmm.policy.protection_degrees import exposed_states
from dphmm.release.engine import ReleaseSettings
from dphmm.release.session_zones import Zones, build_default_zones
from dphmm.release.trajectory_release import to_degrees
from dphmm.serve.clock import get_current_second
from dphmm.serve.page import STATIC, TEXTS
from dphmm.serve.page_content import compute_policy_effects
from dphmm.serve.sessions import Engines
from tests.certificate.certificates import load_verifier
from tests.openstreetmap import write_extract
from tests.serve.conftest import PATIENCE_S, START, TOKEN, get_page_token, make_location, serve_relay, wait_for
from tests.serve.test_delivery import describe_recipient, log_in, post, read_messages
from tests.serve.test_endpoints import ANN, read_releases

HOME = [[-30.01, 44.99], [-29.99, 44.99], [-29.99, 45.01], [-30.01, 45.01], [-30.01, 44.99]]


def make_zones(*rings, buffer_m=0, elsewhere="exact"):
    features = [
        {"type": "Feature", "properties": {"name": f"zone {k}"}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
        for k, ring in enumerate(rings, 1)
    ]
    return {
        "zones": {"type": "FeatureCollection", "features": features}, "buffer_m": buffer_m, "elsewhere": elsewhere,
    }  # fmt: skip


# ---- access ----------------------------------------------------------------------------------------------------------


def test_page_is_accessible_with_token_until_logout(client):
    assert client.get("/page/state").json() == {"user": None}
    assert client.post("/page/login", json={"token": "wrong"}).status_code == 401
    assert log_in(client)["user"] == "ann"
    cookie = client.cookies["dphmm"]
    assert client.post("/page/logout", json={}).status_code == 200
    client.cookies.set("dphmm", cookie)  # an old cookie
    assert client.get("/page/state").status_code == 401


def test_cookies_are_strict_and_not_stored(config, tmp_path):
    with serve_relay(config()) as client:
        answer = client.post("/page/login", json={"token": get_page_token("ann")})
        cookie_header = answer.headers["set-cookie"].lower()
        secret = client.cookies["dphmm"].encode()
        assert "httponly" in cookie_header
        assert "samesite=strict" in cookie_header
        kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert secret not in kept
    assert not any(token.encode() in kept for token in (TOKEN["ann"], get_page_token("ann")))


@pytest.mark.slow
def test_login_ends_with_token_and_with_time(config, monkeypatch):
    with serve_relay(config()) as client:
        log_in(client)
        cookie = client.cookies["dphmm"]
    new = [{"user": "ann", "token": "n" * 40}]
    with serve_relay(config(page=new)) as client:
        client.cookies.set("dphmm", cookie)
        assert client.get("/page/state").status_code == 401
    with serve_relay(config()) as client:
        client.cookies.set("dphmm", cookie)
        assert client.get("/page/state").json()["user"] == "ann"
        later = time.time() + 8 * 86400
        monkeypatch.setattr("dphmm.serve.clock.clock", lambda: later)
        assert client.get("/page/state").status_code == 401


@pytest.mark.parametrize("path", ["zones", "pause", "preview", "link", "unlink", "logout"])
def test_changes_require_csrf_token_and_reject_forms(client, path):
    log_in(client)
    for secret in ("", "wrong", "é"):
        headers = {"X-CSRF-Token": secret.encode()}
        assert client.post(f"/page/{path}", json=make_zones(HOME), headers=headers).status_code == 403
    form = client.post("/page/zones", content=json.dumps(make_zones(HOME)), headers={"Content-Type": "text/plain"})
    assert form.status_code == 400


@pytest.mark.slow
def test_users_cannot_see_or_change_data_of_others(config, inbox):
    with serve_relay(config(recipient=[describe_recipient(inbox)])) as client:
        client.post("/owntracks", json=make_location(), auth=ANN)
        state = log_in(client, "bob")
        assert (state["user"], state["num_releases"], state["recipients"]) == ("bob", 0, [])
        assert client.get("/page/trail").json()["locations"] == []
        assert client.post("/page/pause", json={"recipient": "family", "paused": True}).status_code == 404
        assert client.get("/page/trail?recipient=family").status_code == 404
        assert client.get("/page/trail?user=ann").status_code == client.get("/page/state?user=ann").status_code == 403
        assert client.get("/page/trail?from=x").status_code == 400
    for path in ("state", "trail", "map_adversary", "proof", "basemap"):
        with serve_relay(config()) as client:
            client.cookies.set("dphmm", "made up")
            assert client.get(f"/page/{path}").status_code == 401


@pytest.mark.slow
def test_content_security_policy_allows_only_configured_tiles(config):
    with serve_relay(config()) as client:
        for path in ("/", "/static/page.js", "/page/state", "/static/none", "/page/none"):
            policy = client.get(path).headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "http" not in policy
            assert "unsafe" not in policy
        assert client.get("/static/../page.py").status_code == 404
        assert client.get("/static/%2e%2e/page.py").status_code == 404
    with serve_relay(config(tiles="https://tiles.example:8443/{z}/{x}/{y}.png")) as client:
        assert "img-src 'self' data: https://tiles.example:8443;" in client.get("/").headers["content-security-policy"]
    wrong_ones = ("https://tiles.example/", "ftp://a/{z}/{x}/{y}", "https://a b/{z}/{x}/{y}", "https://a;b/{z}/{x}/{y}")
    for wrong in wrong_ones:
        with pytest.raises(ValueError, match="tiles"):
            config(tiles=wrong)


def test_page_files_name_no_other_host_and_have_no_inline_script():
    for file in STATIC.iterdir():
        content = file.read_text(encoding="utf-8")
        assert not re.search(r"<script(?![^>]*src=)|\son\w+=|\sstyle=", content) or file.suffix != ".html"
        assert not re.search("https?:|//[a-z]+[.]", content), file.name


def test_page_uses_language_of_browser_and_contains_all_texts(client):
    for language, word in (("de-DE", "Anmelden"), ("zh", "登录"), ("tlh", "Log in")):
        for path in ("/", "/link"):
            page = client.get(path, headers={"Accept-Language": language})
            assert f'lang="{(word == "Log in" and "en") or language[:2]}"' in page.text
            assert word in page.text
            assert "{{" not in page.text
            assert "accept-language" in page.headers["vary"]


# ---- views -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_trail_equals_releases_and_is_rounded_for_recipient_with_precision(config, inbox, tmp_path):
    with serve_relay(
        config(recipient=[describe_recipient(inbox), describe_recipient(inbox, precision="2km") | {"name": "friends"}])
    ) as client:
        post(client, 0, 1, 2)
        state = log_in(client)
        fine = client.get("/page/trail").json()
        wait_for(
            lambda: len(client.get("/page/trail?recipient=friends").json()["locations"]) == 3
        )  # sent after the answer
        coarse = client.get("/page/trail?recipient=friends").json()
        again = client.get("/page/trail?from=3").json()
    records = [release.record for release in read_releases(tmp_path / "users.db")]
    radii = [1000 * record.expected_estimate_error for record in records]
    assert [place["error_m"] for place in fine["locations"]] == pytest.approx(
        radii, abs=0.051
    )  # rows have millimetre precision
    assert [place["error_m"] % 2000 for place in coarse["locations"]] == [0, 0, 0]
    assert all(place["max_posterior"] is place["adversary_error_m"] is None for place in coarse["locations"])
    assert (fine["num_releases"], fine["next"], again["locations"]) == (3, 3, [])
    assert state["budget"]["spent"] == records[-1].epsilon_total == 1.5
    assert [shown["precision_m"] for shown in state["recipients"]] == [0, 2000]
    (audited,) = audit_session(tmp_path / "users.db", config().model).audits
    assert audited.epsilon == pytest.approx(1.5)
    assert len(audited.steps) == 3


@pytest.mark.slow
def test_proof_is_valid_and_contains_only_requesting_user(config, tmp_path):
    with serve_relay(config()) as client:
        log_in(client)
        assert client.get("/page/proof").json() == {"error": "no release yet"}
        for second in (START, START + 300, START + 7200):
            client.post("/owntracks", json=make_location(second), auth=ANN)
        client.post("/owntracks", json=make_location(), auth=("bob", TOKEN["bob"]))
        answer = client.get("/page/proof")
        assert answer.headers["content-disposition"] == 'attachment; filename="proof.jsonl"'
        report = load_verifier().verify_releases(answer.content.splitlines(keepends=True))
        assert (report["user_names"], report["steps"]) == ({"ann"}, 3)
        client.post("/page/zones", json=make_zones(HOME))
        client.post("/owntracks", json=make_location(START + 7500), auth=ANN)
        report = load_verifier().verify_releases(client.get("/page/proof").content.splitlines(keepends=True))
        assert report["steps"] == 4
        client.cookies.clear()
        assert client.get("/page/proof").status_code == 401


@pytest.mark.slow
def test_knowledge_of_recipients_matches_record_of_sent_release(config, inbox, tmp_path):
    inbox.status = 503
    with serve_relay(
        config(recipient=[describe_recipient(inbox), describe_recipient(inbox, users=["bob"]) | {"name": "other"}])
    ) as client:
        post(client, 0)
        shown = log_in(client)["recipients"]
        assert [
            (shown_recipient["name"], shown_recipient["last"], shown_recipient["num_waiting"])
            for shown_recipient in shown
        ] == [("family", None, 1)]
        inbox.status = 200
        wait_for(lambda: client.get("/page/state").json()["recipients"][0]["last"])
        last = client.get("/page/state").json()["recipients"][0]["last"]
        assert last == client.get("/page/state").json()["last"]
    (only,) = read_releases(tmp_path / "users.db")
    assert last["last_known"] == START
    assert last["inference"] == {
        "level": "quarter",
        "error_m": pytest.approx(1000 * only.record.expected_estimate_error, abs=0.051),
        "town": None,
        "zone": None,
    }


@pytest.mark.parametrize(
    ("sent", "release", "became"),
    [
        ([make_location()], {}, "released"),
        ([make_location(), make_location()], {}, "duplicate"),
        ([make_location(), make_location(START - 600)], {}, "late"),
        ([make_location(latitude=50.0)], {"outside": "drop"}, "outside"),
        ([make_location(latitude=50.0)], {}, "released"),
        ([make_location(4 * 10**9)], {}, "ahead"),
        ([make_location(), make_location(START + 300), make_location(START + 600)], {}, "limit"),
        ([{"_type": "encrypted", "data": "x"}], {}, "encrypted"),
        ([make_location(), {"_type": "card"}], {}, "released"),
        ([make_location() | {"acc": 50_000}], {}, "inaccurate"),
        ([make_location() | {"acc": -1}], {}, "invalid"),
        ([make_location() | {"lat": 0.0, "lon": 0.0}], {}, "invalid"),
        ([make_location() | {"lat": "north"}], {}, "malformed"),
        ([make_location() | {"tst": "2024-03-07T09:00:00"}], {}, "no_timezone"),
    ],
)
def test_outcome_of_last_fix_is_visible_only_to_user(config, tmp_path, caplog, sent, release, became):
    caplog.set_level("DEBUG")
    changes = {"release": {"policy": "utility:1km", "epsilon": 0.5, **release}, "limits": {"epsilon": 1.0}}
    with serve_relay(config(**changes)) as client:
        assert set(log_in(client)["phone"]) == {"since"}
        for message in sent:
            assert client.post("/owntracks", json=message, auth=ANN).text == "[]"
        phone = client.get("/page/state").json()["phone"]
        assert phone["outcome"] == became
        assert abs(phone["at"] - time.time()) < 60
        assert became not in client.get("/metrics").text or became not in ("duplicate", "late", "outside", "limit")
        client.cookies.clear()
        assert set(log_in(client, "bob")["phone"]) == {"since"}
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"outside" not in kept.replace(b'"outside":', b"").replace(b'outside\\":', b"")
    assert "outside" not in "".join(
        log_record.getMessage() for log_record in caplog.records if log_record.name.startswith("dphmm")
    )


@pytest.mark.slow
def test_prediction_is_shown_with_last_known_time(config, inbox):
    with serve_relay(config(recipient=[describe_recipient(inbox)], limits={"epsilon": 1.0})) as client:
        post(client, 0, 1, 2, 3)
        wait_for(lambda: len(inbox.messages) == 4)
        state = log_in(client)
        wait_for(lambda: not client.get("/page/state").json()["recipients"][0]["num_waiting"])
        last = client.get("/page/state").json()["recipients"][0]["last"]
    assert (last["prediction"], last["time"], last["last_known"]) == (True, "2024-03-07T09:15:00Z", START + 300)
    assert state["phone"]["outcome"] == "withheld"


def test_household_page_requires_token_of_each_user(config, tmp_path):
    with serve_relay(config()) as client:
        post(client, 0)
        state = log_in(client, "bob")
        assert [member["user"] for member in state["household"]] == ["bob"]
        wrong = client.post(
            "/page/login", json={"token": get_page_token("ann"), "add": True}, headers={"X-CSRF-Token": "x"}
        )
        assert wrong.status_code == 403
        before = client.cookies["dphmm"]
        assert client.post("/page/login", json={"token": get_page_token("ann"), "add": True}).status_code == 200
        client.headers["X-CSRF-Token"] = client.get("/page/state").json()["csrf"]
        household = client.get("/page/state").json()["household"]
        assert [(member["user"], member["last"] is not None) for member in household] == [("bob", False), ("ann", True)]
        assert client.get("/page/state?user=ann").json()["num_releases"] == 1
        assert client.post("/page/zones?user=ann", json=make_zones(HOME)).status_code == 200
        assert client.get("/page/state?user=bob").json()["zones"]["zones"]["features"] == []
        client.cookies.set("dphmm", before)
        assert client.get("/page/state").status_code == 401
        assert TOKEN["ann"].encode() not in b"".join(
            path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
        )


@pytest.mark.slow
def test_basemap_is_configured_file_or_world_map(config, tmp_path):
    pytest.importorskip("pyogrio")
    nodes = [(45.0, -30.02, {}), (45.0, -29.98, {}), (45.01, -30.0, {"place": "town", "name": "Angra"})]
    town = write_extract(tmp_path / "town.osm.pbf", nodes, [([0, 1], {"highway": "primary"})])
    with serve_relay(config(basemap=str(town))) as client:
        assert client.get("/page/basemap").status_code == 401
        log_in(client)
        ground = client.get("/page/basemap").json()
        assert ground["lines"] == {"road": [[4500000, -3002000, 0, 4000]]}
        assert ground["names"][0][:3] == ["Angra", 45.01, -30.0]
        assert client.get("/page/basemap", headers={"Accept-Encoding": ""}).json() == ground
    with pytest.raises(DataFileError, match="region"):
        serve_relay(
            config(basemap="data/home.geojson", model=write_far_model(tmp_path), store=str(tmp_path / "far.db"))
        ).__enter__()


def write_far_model(folder):
    """Write a model of a region far from all data, and return its path."""
    path = folder / "far.npz"
    rows = "user,time,latitude,longitude\n" + "".join(
        f"x,2024-03-07T{k // 12:02d}:{k % 12 * 5:02d}:00Z,{10 + 0.001 * (k % 9):.4f},{20 + 0.001 * (k % 7):.4f}\n"
        for k in range(200)
    )
    (folder / "far.csv").write_text(rows)
    learn(folder / "far.csv", region(bbox=(10, 20, 10.01, 20.01), cell_km=0.5), step_seconds=300, output=path)
    return str(path)


# ---- links -----------------------------------------------------------------------------------------------------------


def create_link(client, **more):
    request = {"name": "Bea", "precision_m": 0, "ends": get_current_second() + 3600, **more}
    return client.post("/page/link", json=request)


def test_link_shows_releases_from_its_start_until_its_end(config, clock):
    with serve_relay(config()) as client:
        post(client, 0)
        clock.at = START
        log_in(client)
        key = {"Authorization": f"Bearer {create_link(client).json()['token']}"}
        client.cookies.clear()
        shared = client.get("/link/trail", headers=key).json()
        assert (shared["user"], shared["last"], shared["locations"]) == ("ann", None, [])
        assert client.get("/link/basemap", headers=key).json()["credit"] is not None
        post(client, 1)
        shared = client.get("/link/trail", headers=key).json()
        assert len(shared["locations"]) == 1
        assert shared["last"]["inference"] == {"error_m": shared["last"]["error_m"], "town": None}
        assert not {"epsilon", "Bea"} & set(re.findall(r"\w+", json.dumps(shared)))
        for path in ("trail", "basemap"):
            assert client.get(f"/link/{path}").status_code == 404
            assert client.get(f"/link/{path}", headers={"Authorization": "Bearer x"}).status_code == 404
        assert "number" not in json.dumps(shared), "it would count releases before the link"
        (shown,) = log_in(client)["links"]
        assert (shown["name"], shown["last"]["number"]) == ("Bea", 1)
        (seen,) = client.get("/page/trail", params={"recipient": shown["id"]}).json()["locations"]
        assert (seen["latitude"], seen["error_m"]) == (shared["last"]["latitude"], shared["last"]["error_m"])
        assert client.post("/page/pause", json={"recipient": shown["id"], "paused": True}).status_code == 200
        post(client, 2)
        earlier, shared = shared, client.get("/link/trail", headers=key).json()
        assert (shared["locations"], shared["last"]) == ([], earlier["last"])
        assert client.post("/page/unlink", json={"link": shown["id"]}).status_code == 200
        assert client.get("/link/trail", headers=key).status_code == 404


@pytest.mark.slow
def test_unprotected_release_is_exact_with_its_posterior_also_for_a_link(config, clock, tmp_path):
    settings = config()
    with serve_relay(settings) as client:
        log_in(client)
        assert client.post("/page/zones", json=make_zones(HOME)).status_code == 200
        post(client, 0)  # in the zone
        key = {"Authorization": f"Bearer {create_link(client).json()['token']}"}
        clock.at = START + 300
        client.post("/owntracks", json=make_location(START + 600, 45.02, -30.03), auth=ANN)
        state = client.get("/page/state").json()
        shared = client.get("/link/trail", headers=key).json()
    assert "exact" not in json.dumps(shared)
    assert shared["last"]["inference"].keys() <= {"error_m", "town", "side", "within_m"}
    model = load_model(settings.model)
    engine = Zones.from_page(make_zones(HOME)).apply_to(settings.release).engine(model)
    first, second = read_releases(tmp_path / "users.db")
    belief = Belief.initial(model, first.slot)
    plan = engine.build_plan(belief, first.record.epsilon)
    belief = belief.update(engine.log_likelihood(plan, first.record.released)).predict(model, 2, first.slot)
    plan = engine.build_plan(belief, second.record.epsilon, 2)
    cell = int(np.argmin(np.abs(engine.measurements.points - second.record.released).sum(axis=1)))
    for last, prior in ((state["last"], belief), (state["links"][0]["last"], Belief.initial(model, second.slot))):
        probabilities = prior.update(engine.log_likelihood(plan, second.record.released)).probabilities
        inference = last["inference"]
        assert inference["level"] == "exact"
        assert inference["exact_posterior"] == pytest.approx(probabilities[cell], rel=1e-6)


@pytest.mark.parametrize("early", [False, True])
def test_page_still_shows_what_an_ended_link_disclosed(config, clock, early):
    """An ended link is listed until it is removed, since its recipient keeps the releases."""
    with serve_relay(config()) as client:
        clock.at = START
        log_in(client)
        key = {"Authorization": f"Bearer {create_link(client, ends=START + 1000).json()['token']}"}
        post(client, 1, 2)
        shared = client.get("/link/trail", headers=key).json()["last"]
        (shown,) = client.get("/page/state").json()["links"]
        assert not shown["ended"]
        if early:
            client.post("/page/unlink", json={"link": shown["id"]}).raise_for_status()
        else:
            clock.at = START + 1000
        post(client, 4, 5)
        (ended_link,) = client.get("/page/state").json()["links"]
        assert (ended_link["ended"], ended_link["last"]) == (True, shown["last"])
        assert shown["last"] == shared | {"number": 1, "inference": shown["last"]["inference"]}
        assert [
            place["number"]
            for place in client.get("/page/trail", params={"recipient": shown["id"]}).json()["locations"]
        ] == [0, 1]
        assert client.get("/link/trail", headers=key).status_code == 404
        client.post("/page/unlink", json={"link": shown["id"]}).raise_for_status()
        assert client.get("/page/state").json()["links"] == []


@pytest.mark.parametrize(
    ("end", "after_s"), [("unlink", 0), ("post", 300), ("open", 310), ("open", 40 * 86400), ("list", 310)]
)
def test_clock_that_is_set_back_does_not_open_an_ended_link(config, clock, end, after_s):
    """Set it back after the link was ended, the clock was kept, or the end was only seen."""
    with serve_relay(config(clock_skew_seconds=3600)) as client:
        log_in(client)
        key = {"Authorization": f"Bearer {create_link(client, ends=START + 300).json()['token']}"}
        post(client, 1)
        (shown,) = client.get("/page/state").json()["links"]
        clock.at = START + after_s
        if end == "unlink":
            client.post("/page/unlink", json={"link": shown["id"]}).raise_for_status()
        elif end == "post":
            post(client, 1)
        elif end == "open":
            assert client.get("/link/trail", headers=key).status_code == 404
        else:
            assert client.get("/page/state").json()["links"][0]["ended"]
        clock.at = START - 60
        assert client.get("/link/trail", headers=key).status_code == 404
        post(client, 2)
        assert client.get("/link/trail", headers=key).status_code == 404
        (ended_link,) = client.get("/page/state").json()["links"]
        assert (ended_link["ended"], ended_link["last"]["number"]) == (True, 0)
        trail = client.get("/page/trail", params={"recipient": shown["id"]}).json()["locations"]
        assert [place["number"] for place in trail] == [0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"name": ""}, {"name": 7}, {"name": "x" * 81}, {"precision_m": 3000}, {"precision_m": True},
     {"precision_m": "2km"}, {"ends": "soon"}, {"ends": True}, {"ends": 1}, {"ends": 2**40}],
    ids=str,
)  # fmt: skip
def test_invalid_link_raises_and_precision_is_stated(config, inbox, change):
    with serve_relay(config(recipient=[describe_recipient(inbox, precision="2km")])) as client:
        log_in(client)
        assert create_link(client, **change).status_code == 400
        assert client.post("/page/link", json={}, headers={"X-CSRF-Token": ""}).status_code == 403
        assert create_link(client, precision_m=2000).status_code == 200
        state = client.get("/page/state").json()
        assert ([shown_link["precision_m"] for shown_link in state["links"]], state["precisions"]) == (
            [2000],
            [0, 2000],
        )


# ---- remaining budget ------------------------------------------------------------------------------------------------


def test_remaining_budget_is_that_of_limits(config):
    with serve_relay(config(limits={"epsilon": 2.0, "window_epsilon": 1.5, "window_steps": 2})) as client:
        post(client, 0, 1)
        budget = log_in(client)["budget"]
    assert (budget["spent"], budget["remaining"]) == (1.0, 1.0)
    # the window has passed
    assert budget["windows"] == [{"limit": 1.5, "hours": pytest.approx(2 / 12, abs=0.01), "remaining": 1.5}]


@pytest.mark.slow
@pytest.mark.parametrize("limits", [None, {"window_epsilon": 9.0, "window_steps": 12}])
def test_remaining_budget_contains_that_of_schedule(config, limits):
    """The last release is two steps ago, within the window of a day."""
    release = {"policy": "utility:1km", "epsilon": 0.5, "schedule": {"window_epsilon": 30.0}}
    with serve_relay(config(release=release, **({"limits": limits} if limits else {}))) as client:
        second = int(time.time()) - 600
        client.post("/owntracks", json=make_location(second), auth=ANN)
        budget = log_in(client)["budget"]
    assert 0 < budget["spent"] == budget["spent_24h"] <= 0.5
    *others, window = budget["windows"]
    assert window == {"limit": 30.0, "hours": 24.0, "remaining": pytest.approx(30.0 - budget["spent"])}
    assert [other["limit"] for other in others] == ([9.0] if limits else [])


# ---- changes ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_zones_apply_from_next_release_and_after_restart(config, tmp_path):
    far = make_location(START + 300, 45.02, -30.03)
    with serve_relay(config()) as client:
        client.post("/owntracks", json=make_location(), auth=ANN)
        log_in(client)
        assert client.post("/page/zones", json=make_zones(HOME)).status_code == 200
        client.post("/owntracks", json=make_location(), auth=ANN)  # the earlier timestep again
        client.post("/owntracks", json=far, auth=ANN)
    with serve_relay(config()) as client:
        client.post("/owntracks", json=far | {"tst": START + 600}, auth=ANN)
        log_in(client)
        assert client.get("/page/state").json()["zones"] == make_zones(HOME)
    old, *new = (release.record for release in read_releases(tmp_path / "users.db"))
    assert (old.is_unprotected, old.num_components) == (False, 1)
    assert all(record.is_unprotected for record in new)
    assert new[-1].expected_error < old.expected_error  # the previous location is known to be far away
    assert len({record.settings_hash for record in new}) == 1 < len({record.settings_hash for record in (old, *new)})
    (replayed_session,) = replay(tmp_path / "users.db", config().model)
    replayed = list(replay_sequence(replayed_session.engine, replayed_session.sequence))
    assert sorted(replayed_session.sequence.engines) == [1]
    for replayed_step, record in zip(replayed, (old, *new), strict=True):
        assert replayed_step.engine.settings.content_hash.startswith(record.settings_hash)
        places = replayed_step.engine.measurements.points
        assert replayed_step.posterior.probabilities @ places == pytest.approx(record.estimate, abs=1e-9)
    assert audit_session(tmp_path / "users.db", config().model).audits[0].steps[1].is_unprotected
    with pytest.raises(InvalidInputError, match=r"one policy, got another from release 2; use .dphmm audit session"):
        compute_realized_leakage(replayed_session.engine, replayed_session.sequence)


@pytest.mark.slow
def test_all_workers_show_the_last_message_of_the_phone(config, postgres, clock):
    settings = config(store=postgres)
    with serve_relay(settings) as first, serve_relay(settings) as second:
        workers = {"first": first, "second": second}
        for client in workers.values():
            log_in(client)
        for worker, step, outcome in (
            ("first", 1, "released"),
            ("second", 0, "late"),
            ("first", 1, "duplicate"),
            ("first", 1, "duplicate"),
            ("second", 2, "released"),
        ):
            clock.at += 1
            post(workers[worker], step)
            for name, client in workers.items():
                phone = client.get("/page/state").json()["phone"]
                details = outcome if name == worker else "accepted"
                assert (phone["at"], phone["outcome"]) == (clock.at, details), (worker, name)


@pytest.mark.slow
def test_zones_belong_to_one_user_and_change_in_all_workers(config, postgres):
    settings = config(store=postgres)
    with serve_relay(settings) as first, serve_relay(settings) as other:
        for client in (first, other):
            client.post("/owntracks", json=make_location(), auth=ANN)
        log_in(first)
        assert first.post("/page/zones", json=make_zones(HOME)).status_code == 200
        other.post("/owntracks", json=make_location(START + 300, 45.02, -30.03), auth=ANN)
        other.post("/owntracks", json=make_location(START + 300, 45.02, -30.03), auth=("bob", TOKEN["bob"]))
        assert read_releases(postgres)[1].record.is_unprotected
        assert not read_releases(postgres, "bob")[0].record.is_unprotected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "in a GeoJSON file"),
        (make_zones(HOME) | {"buffer_m": -1}, "buffer_m"),
        (make_zones(HOME) | {"buffer_m": True}, "buffer_m"),
        (make_zones(HOME) | {"elsewhere": "x"}, "elsewhere"),
        (make_zones(), "no location would be protected"),
        (make_zones(HOME[:2]), "polygon"),
        (make_zones([[0, 0], [1, 0], [1, 1], [0, 0]]), "smaller than the cells"),
        (make_zones(HOME, [[x + 0.005, y] for x, y in HOME]), "overlap"),
        (make_zones([["a", "b"]] * 4), "polygon"),
        ({"zones": {"features": [{"type": "Feature", "geometry": {"type": "Polygon"}}]}}, "name"),
        ({"zones": {"features": [{"geometry": {"type": "Point"}}]}}, "at most 50 polygons"),
        (make_zones(*[HOME] * 51), "at most 50"),
    ],
)
def test_invalid_zones_raise_in_a_line_without_file_names(client, tmp_path, body, message):
    log_in(client)
    for path in ("preview", "zones"):
        answer = client.post(f"/page/{path}", json=body)
        assert answer.status_code == 400
        assert message in answer.json()["error"]
        assert "/" not in answer.json()["error"].replace("and/or", "")
    assert client.get("/page/state").json()["zones"]["zones"]["features"] == []


def test_isolated_zone_raises_and_is_repaired_next_to_another(client, model):
    latitude, longitude = load_model(model).space.latlon()[0]
    corners = ((-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1))
    ring = [[longitude + 0.001 * x, latitude + 0.001 * y] for x, y in corners]
    log_in(client)
    effects = client.post("/page/preview", json=make_zones(ring)).json()["error"]
    assert "zone:YOURS' connects none" in effects
    effects = client.post("/page/preview", json=make_zones(HOME, ring)).json()
    assert (effects["num_exposed"], effects["num_added_edges"]) == (1, 1)


def test_page_starts_with_zones_of_relay_policy(config, tmp_path):
    layer = tmp_path / "home.geojson"
    layer.write_text(json.dumps(make_zones(HOME)["zones"]), encoding="utf-8")
    settings = {"policy": f"zone:{layer} | utility:1km", "epsilon": 0.5}
    with serve_relay(config(release=settings)) as client:
        chosen = log_in(client)["zones"]
        assert [feature["properties"]["name"] for feature in chosen["zones"]["features"]] == ["zone 1"]
        assert (chosen["elsewhere"], client.get("/page/state").json()["elsewhere"]) == (
            "policy", "locations within 1 km",
        )  # fmt: skip
        assert client.post("/page/zones", json=make_zones(elsewhere="policy")).status_code == 200
        assert client.get("/page/state").json()["zones"]["zones"]["features"] == []
    with pytest.raises(DataFileError):
        build_default_zones(ReleaseSettings(policy="zone:none.geojson"))
    layer.write_text(layer.read_text(encoding="utf-8").replace("zone 1", "away"), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="another name than 'away'"):
        Engines.from_config(config(release=settings))


@pytest.mark.slow
def test_changed_settings_apply_to_sessions_only_if_accepted(config, tmp_path):
    with serve_relay(config()) as client:
        post(client, 0)
    changed = config(release={"policy": "utility:2km", "epsilon": 0.25})
    with pytest.raises(ConfigurationError, match="--accept-changes"):
        serve_relay(changed).__enter__()
    from dphmm.serve.endpoints import make_app
    from tests.serve.conftest import serve_app

    with serve_app(make_app(changed, accept_changes=True)) as url, httpx.Client(base_url=url) as client:
        post(client, 1)
    with serve_relay(changed) as client:
        post(client, 2)
    assert [release.record.epsilon for release in read_releases(tmp_path / "users.db")] == [0.5, 0.25, 0.25]


def test_policy_effects_match_release_errors_and_exposed_states(model):
    learned = load_model(model)
    small = [[-30.004, 44.997], [-29.999, 44.997], [-29.999, 45.003], [-30.004, 45.003], [-30.004, 44.997]]
    for ring, elsewhere in ((HOME, "exact"), (small, "exact"), (HOME, "policy")):
        chosen = Zones.from_page(make_zones(ring, elsewhere=elsewhere))
        engine = chosen.apply_to(ReleaseSettings(policy="utility:1km", epsilon=0.5)).engine(learned)
        effects = compute_policy_effects(engine, chosen.policy_layer)
        expected = exposed_states(engine.policy, engine.measurements, noise_scope=engine.settings.noise_scope)
        assert effects["num_exposed"] == len(expected)
        np.testing.assert_allclose(
            np.reshape(effects["exposed"], (-1, 2)), learned.space.latlon()[expected].round(6).reshape(-1, 2)
        )
        state = int(learned.space.locate(np.array([45.0]), np.array([-30.002]))[0])
        record = engine.spawn().release(state)
        assert effects["error_m"] == pytest.approx(1000 * record.expected_error, abs=0.1)
        assert effects["num_added_edges"] == len(record.added_edges)
        if elsewhere == "exact":
            assert effects["error_m_elsewhere"] == 0 or effects["num_exposed"]
            assert effects["zones"][0]["error_m"] > 100


# ---- pauses ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_recipient_paused_on_page_never_gets_releases_of_the_pause(config, inbox, clock):
    settings = config(recipient=[describe_recipient(inbox)])

    def pause(client, paused):
        assert client.post("/page/pause", json={"recipient": "family", "paused": paused}).status_code == 200

    with serve_relay(settings) as client:
        log_in(client)
        post(client, 0)
        wait_for(lambda: inbox.messages)
        inbox.status = 503  # messages waiting for an unreachable recipient
        post(client, 1)
        clock.at = START + 300
        pause(client, True)
        post(client, 2)
    inbox.status = 200
    with serve_relay(settings) as client:
        log_in(client)
        post(client, 3)
        (shown,) = client.get("/page/state").json()["recipients"]
        assert (shown["paused"], shown["last"]) == (True, None)
        assert "since it was added or last paused" in TEXTS["en"]["infer_nothing"], "a message was sent before"
        clock.at = START + 900
        pause(client, False)
        post(client, 4)
        wait_for(lambda: len(inbox.messages) == 2)
        time.sleep(0.2)
    assert [message["time"] for message in read_messages(inbox)] == ["2024-03-07T09:00:00Z", "2024-03-07T09:20:00Z"]


@pytest.mark.slow
def test_estimate_after_pause_uses_only_releases_sent_to_recipient(config, inbox, tmp_path, clock):
    """Estimates after a pause and for new recipients equal Bayes' rule on their own releases."""
    family = describe_recipient(inbox, headers={"X-Name": "family"})
    friends = describe_recipient(inbox, headers={"X-Name": "friends"}, precision="1km") | {"name": "friends"}
    late = describe_recipient(inbox, headers={"X-Name": "late"}) | {"name": "late"}

    def read_inbox(name):
        return [json.loads(body) for _, headers, body in inbox.messages if headers["x-name"] == name]

    def pause(client, paused):
        for name in ("family", "friends"):
            answer = client.post("/page/pause", json={"recipient": name, "paused": paused})
            assert answer.status_code == 200

    with serve_relay(config(recipient=[family, friends])) as client:
        log_in(client)
        post(client, 0)
        wait_for(lambda: read_inbox("family") and read_inbox("friends"))
        pause(client, True)
        post(client, 1, 2)
        clock.at = START + 600
        pause(client, False)
    with serve_relay(config(recipient=[family, friends, late])) as client:
        post(client, 3, 4)
        wait_for(lambda: len(read_inbox("family")) == len(read_inbox("friends")) == 3)
        wait_for(lambda: len(read_inbox("late")) == 2)
    settings, model = config().release, load_model(config().model)
    engine = settings.engine(model)
    stored = read_releases(tmp_path / "users.db")
    first = stored[0].slot
    for name, sent_at in (("family", (0, 3, 4)), ("friends", (0, 3, 4)), ("late", (3, 4))):
        belief, slot = Belief.initial(model, first), first
        for at, message in zip(sent_at, read_inbox(name)[-len(sent_at) :], strict=True):
            belief, slot = belief.predict(model, first + at - slot, slot), first + at
            for release in stored:
                if release.slot == slot:
                    step = engine.build_plan(belief, release.record.epsilon)
                    belief = belief.update(engine.log_likelihood(step, release.record.released))
            place = belief.probabilities @ engine.measurements.points
            if name == "friends":
                place = np.floor(place) + 0.5  # the centre of its cell of 1 km
            expected = to_degrees(np.array([place]), model.space)[0]
            assert (message["estimate_latitude"], message["estimate_longitude"]) == pytest.approx(expected, abs=1e-6)
        assert message.get("epsilon_total") is None  # a recipient with a precision has no such field
    everything = stored[-1].record.estimate
    assert read_inbox("family")[-1]["estimate_latitude"] != pytest.approx(
        to_degrees(np.array([everything]), model.space)[0, 0], abs=1e-7
    )


def make_ring(num_corners):
    angles = 2 * np.pi * np.arange(num_corners - 1) / (num_corners - 1)
    corners = np.column_stack([-30 + 0.01 * np.cos(angles), 45 + 0.01 * np.sin(angles)]).tolist()
    return [*corners, corners[0]]


@pytest.mark.slow
@pytest.mark.parametrize(("numbers", "status"), [((2000,), 200), ((2001,), 400), ((1000, 1001), 400), ((20_000,), 400)])
def test_number_of_corners_of_zones_is_limited(client, numbers, status):
    log_in(client)
    for path in ("preview", "zones"):
        answer = client.post(f"/page/{path}", json=make_zones(*map(make_ring, numbers)))
        if len(numbers) == 1 or status == 400:
            assert answer.status_code == status, answer.text
        if status == 400:
            assert "at most 2,000 corners" in answer.text


def test_saving_zones_does_not_delay_other_users(client, monkeypatch):
    """Preparing zones takes long. Meanwhile other users post."""
    build = Engines.build_settings
    began = threading.Event()
    is_answered = threading.Event()

    def build_slowly(engines, note):
        if note:
            began.set()
            assert is_answered.wait(PATIENCE_S / 2)
        return build(engines, note)

    log_in(client)
    monkeypatch.setattr(Engines, "build_settings", build_slowly)
    with ThreadPoolExecutor(1) as pool:
        saved = pool.submit(client.post, "/page/zones", json=make_zones(HOME))
        assert began.wait(PATIENCE_S)
        client.post("/owntracks", json=make_location(), auth=("bob", TOKEN["bob"])).raise_for_status()
        assert not saved.done()
        is_answered.set()
        assert saved.result().status_code == 200


@pytest.mark.slow
def test_each_token_has_one_purpose_and_is_not_accepted_in_addresses(config):
    """Try the tokens of a device, of a page and of a link at all endpoints."""
    fix = {"time": "2024-03-07T09:00:00Z", "latitude": 45.0, "longitude": -30.0}

    def list_accepted(client, token):
        """Return what a token opens, by header or body, and in the address."""
        bearer, fresh = {"Authorization": f"Bearer {token}"}, httpx.Client(base_url=client.base_url)
        query = {"token": token, "lat": "45", "lon": "-30", "timestamp": str(START)}
        with fresh:
            answers = {
                "fix": fresh.post("/fix", json=fix, headers=bearer),
                "overland": fresh.post("/overland", json={"locations": []}, headers=bearer),
                "gpslogger": fresh.post("/gpslogger", data=query, headers=bearer),
                "owntracks": fresh.post("/owntracks", json=make_location(), auth=("ann", token)),
                "osmand": fresh.get("/osmand", params=query | {"id": token}),
                "home assistant": fresh.post(f"/home-assistant/{token}", json={"type": "x"}),
                "page": fresh.post("/page/login", json={"token": token}),
                "link": fresh.get("/link/trail", headers=bearer),
                "link map": fresh.get("/link/basemap", headers=bearer),
                **{
                    f"?{path}": fresh.post(path, json=fix, params=query) for path in ("/fix", "/overland", "/gpslogger")
                },
                "?/link/trail": fresh.get("/link/trail", params=query),
            }
        return {name for name, answer in answers.items() if answer.status_code == 200}

    with serve_relay(config()) as client:
        log_in(client)
        body = {"name": "Bea", "precision_m": 0, "ends": int(time.time()) + 3600}
        reading = client.post("/page/link", json=body).json()["token"]
        posting = {"fix", "overland", "gpslogger", "owntracks", "osmand", "home assistant"}
        assert list_accepted(client, TOKEN["ann"]) == posting
        assert list_accepted(client, get_page_token("ann")) == {"page"}
        assert list_accepted(client, reading) == {"link", "link map"}
    shared = [{"user": "ann", "token": TOKEN["bob"]}]
    with pytest.raises(ValueError, match="a token that posts must not open a page"):
        config(page=shared)
    with pytest.raises(ValueError, match="users of pages must have a device, got 'eve'"):
        config(page=[{"user": "eve", "token": "e" * 40}])
