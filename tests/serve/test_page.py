"""The person's page over HTTP: who may see and change what, and that what they choose is what is released."""

from __future__ import annotations

import json
import re
import time

import httpx
import numpy as np
import pytest

from dphmm.audit.realised import realise
from dphmm.audit.sequence import replay_sequence
from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError
from dphmm.jobs import learn, region
from dphmm.jobs.audits import audit_session
from dphmm.jobs.models import load_model
from dphmm.jobs.stored_releases import replay
from dphmm.model.belief import Belief
from dphmm.policy.protection import exposed_states
from dphmm.release.drawn_zones import Zones, first_zones
from dphmm.release.engine import ReleaseSettings
from dphmm.release.trajectory import degrees_of
from dphmm.serve import recipients
from dphmm.serve.content import policy_effects
from dphmm.serve.page import STATIC
from tests.certificate.certificates import verifier
from tests.openstreetmap import write_extract
from tests.serve.conftest import START, TOKEN, location, relay, wait_for
from tests.serve.test_delivery import log_in, post, recipient, told
from tests.serve.test_endpoints import ANN, releases

HOME = [[-30.01, 44.99], [-29.99, 44.99], [-29.99, 45.01], [-30.01, 45.01], [-30.01, 44.99]]


def zones(*rings, buffer_m=0, elsewhere="exact"):
    features = [
        {"type": "Feature", "properties": {"name": f"zone {k}"}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
        for k, ring in enumerate(rings, 1)
    ]
    return {
        "zones": {"type": "FeatureCollection", "features": features}, "buffer_m": buffer_m, "elsewhere": elsewhere,
    }  # fmt: skip


# ---- who may ---------------------------------------------------------------------------------------------------------


def test_the_page_opens_for_a_token_and_until_the_log_out(client):
    assert client.get("/page/state").json() == {"user": None}
    assert client.post("/page/login", json={"token": "wrong"}).status_code == 401
    assert log_in(client)["user"] == "ann"
    cookie = client.cookies["dphmm"]
    assert client.post("/page/logout", json={}).status_code == 200
    client.cookies.set("dphmm", cookie)  # one that somebody kept
    assert client.get("/page/state").status_code == 401


def test_cookies_are_for_this_site_and_no_script_and_the_store_holds_none(config, tmp_path):
    with relay(config()) as client:
        answer = client.post("/page/login", json={"token": TOKEN["ann"]})
        said = answer.headers["set-cookie"].lower()
        secret = client.cookies["dphmm"].encode()
        assert "httponly" in said
        assert "samesite=strict" in said
        kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert secret not in kept
    assert TOKEN["ann"].encode() not in kept


def test_a_login_ends_with_the_token_and_with_time(config, monkeypatch):
    with relay(config()) as client:
        log_in(client)
        cookie = client.cookies["dphmm"]
    new = [{"user": "ann", "token": "n" * 40}]
    with relay(config(device=new)) as client:
        client.cookies.set("dphmm", cookie)
        assert client.get("/page/state").status_code == 401
    with relay(config()) as client:
        client.cookies.set("dphmm", cookie)
        assert client.get("/page/state").json()["user"] == "ann"
        later = time.time() + 8 * 86400
        monkeypatch.setattr("dphmm.serve.recipients.clock", lambda: later)
        assert client.get("/page/state").status_code == 401


@pytest.mark.parametrize("path", ["zones", "pause", "price", "link", "unlink", "logout"])
def test_nothing_changes_without_the_second_secret_and_no_form_can_post(client, path):
    log_in(client)
    for secret in ("", "wrong", "é"):
        headers = {"X-CSRF-Token": secret.encode()}
        assert client.post(f"/page/{path}", json=zones(HOME), headers=headers).status_code == 403
    form = client.post("/page/zones", content=json.dumps(zones(HOME)), headers={"Content-Type": "text/plain"})
    assert form.status_code == 400


def test_nobody_sees_or_changes_what_is_another_s(config, inbox):
    with relay(config(recipient=[recipient(inbox)])) as client:
        client.post("/owntracks", json=location(), auth=ANN)
        state = log_in(client, "bob")
        assert (state["user"], state["count"], state["recipients"]) == ("bob", 0, [])
        assert client.get("/page/trail").json()["places"] == []
        assert client.post("/page/pause", json={"recipient": "family", "paused": True}).status_code == 404
        assert client.get("/page/trail?reader=family").status_code == 404
        assert client.get("/page/trail?user=ann").status_code == client.get("/page/state?user=ann").status_code == 403
        assert client.get("/page/trail?from=x").status_code == 400
    for path in ("state", "trail", "proof", "ground"):
        with relay(config()) as client:
            client.cookies.set("dphmm", "made up")
            assert client.get(f"/page/{path}").status_code == 401


def test_answers_let_browsers_load_nothing_from_elsewhere_but_tiles_that_are_configured(config):
    with relay(config()) as client:
        for path in ("/", "/static/page.js", "/page/state", "/static/none", "/page/none"):
            policy = client.get(path).headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "http" not in policy
            assert "unsafe" not in policy
        assert client.get("/static/../page.py").status_code == 404
        assert client.get("/static/%2e%2e/page.py").status_code == 404
    with relay(config(tiles="https://tiles.example:8443/{z}/{x}/{y}.png")) as client:
        assert "img-src 'self' data: https://tiles.example:8443;" in client.get("/").headers["content-security-policy"]
    wrong_ones = ("https://tiles.example/", "ftp://a/{z}/{x}/{y}", "https://a b/{z}/{x}/{y}", "https://a;b/{z}/{x}/{y}")
    for wrong in wrong_ones:
        with pytest.raises(ValueError, match="tiles"):
            config(tiles=wrong)


def test_the_page_s_files_name_no_other_host_and_hold_no_inline_script():
    for file in STATIC.iterdir():
        content = file.read_text(encoding="utf-8")
        assert not re.search(r"<script(?![^>]*src=)|\son\w+=|\sstyle=", content) or file.suffix != ".html"
        assert not re.search("https?:|//[a-z]+[.]", content), file.name


def test_the_page_comes_in_the_language_of_the_browser_and_holds_all_its_texts(client):
    for language, word in (("de-DE", "Anmelden"), ("zh", "登录"), ("tlh", "Log in")):
        for path in ("/", "/link"):
            page = client.get(path, headers={"Accept-Language": language})
            assert f'lang="{(word == "Log in" and "en") or language[:2]}"' in page.text
            assert word in page.text
            assert "{{" not in page.text
            assert "accept-language" in page.headers["vary"]


# ---- what is seen ----------------------------------------------------------------------------------------------------


def test_the_trail_is_what_was_released_and_that_of_a_recipient_with_a_precision_is_rounded(config, inbox, tmp_path):
    with relay(config(recipient=[recipient(inbox), recipient(inbox, precision="2km") | {"name": "friends"}])) as client:
        post(client, 0, 1, 2)
        state = log_in(client)
        fine = client.get("/page/trail").json()
        wait_for(lambda: len(client.get("/page/trail?reader=friends").json()["places"]) == 3)  # told after the answer
        coarse = client.get("/page/trail?reader=friends").json()
        again = client.get("/page/trail?from=3").json()
    own = [one.record for one in releases(tmp_path / "people.db")]
    radii = [1000 * one.estimate_radius for one in own]
    assert [one["radius_m"] for one in fine["places"]] == pytest.approx(radii, abs=0.051)  # of rows to the millimetre
    assert [one["radius_m"] % 2000 for one in coarse["places"]] == [0, 0, 0]
    assert not any("certainty" in one or "guess_off_m" in one for one in coarse["places"])
    assert (fine["count"], fine["next"], again["places"]) == (3, 3, [])
    assert state["budget"]["spent"] == own[-1].epsilon_so_far == 1.5
    assert [one["precision_m"] for one in state["recipients"]] == [0, 2000]
    (audited,) = audit_session(tmp_path / "people.db", config().model).audits
    assert audited.epsilon == pytest.approx(1.5)
    assert len(audited.steps) == 3


def test_the_proof_is_of_the_person_who_asks_and_holds(config, tmp_path):
    with relay(config()) as client:
        log_in(client)
        assert client.get("/page/proof").json() == {"error": "nothing was released yet"}
        for second in (START, START + 300, START + 7200):
            client.post("/owntracks", json=location(second), auth=ANN)
        client.post("/owntracks", json=location(), auth=("bob", TOKEN["bob"]))
        answer = client.get("/page/proof")
        assert answer.headers["content-disposition"] == 'attachment; filename="proof.jsonl"'
        report = verifier().verify([line.encode() for line in answer.text.splitlines()])
        assert (report["people"], report["steps"]) == ({"ann"}, 3)
        client.post("/page/zones", json=zones(HOME))
        client.post("/owntracks", json=location(START + 7500), auth=ANN)
        report = verifier().verify([line.encode() for line in client.get("/page/proof").text.splitlines()])
        assert report["steps"] == 4
        client.cookies.clear()
        assert client.get("/page/proof").status_code == 401


def test_what_recipients_can_tell_is_what_the_record_says_of_what_they_were_sent(config, inbox, tmp_path):
    inbox.status = 503
    with relay(config(recipient=[recipient(inbox), recipient(inbox, users=["bob"]) | {"name": "other"}])) as client:
        post(client, 0)
        shown = log_in(client)["recipients"]
        assert [(one["name"], one["last"], one["waiting"]) for one in shown] == [("family", None, 1)]
        inbox.status = 200
        wait_for(lambda: client.get("/page/state").json()["recipients"][0]["last"])
        last = client.get("/page/state").json()["recipients"][0]["last"]
        assert last == client.get("/page/state").json()["finest"]
    (only,) = releases(tmp_path / "people.db")
    assert last["known"] == START
    assert last["can_tell"] == {
        "level": "quarter",
        "off_m": pytest.approx(1000 * only.record.estimate_radius, abs=0.051),
        "town": None,
        "zone": None,
    }


@pytest.mark.parametrize(
    ("sent", "release", "became"),
    [
        ([location()], {}, "released"),
        ([location(), location()], {}, "again"),
        ([location(), location(START - 600)], {}, "late"),
        ([location(latitude=50.0)], {"outside": "omit"}, "outside"),
        ([location(latitude=50.0)], {}, "released"),
        ([location(4 * 10**9)], {}, "ahead"),
        ([location(), location(START + 300), location(START + 600)], {}, "limit"),
        ([{"_type": "encrypted", "data": "x"}], {}, "encrypted"),
        ([location(), {"_type": "card"}], {}, "released"),
        ([location() | {"acc": 50_000}], {}, "inaccurate"),
        ([location() | {"lat": "north"}], {}, "malformed"),
        ([location() | {"tst": "2024-03-07T09:00:00"}], {}, "no_zone"),
    ],
)
def test_the_person_sees_what_became_of_what_the_phone_sent_last_and_no_one_else_does(
    config, tmp_path, caplog, sent, release, became
):
    caplog.set_level("DEBUG")
    changes = {"release": {"policy": "utility:1km", "epsilon": 0.5, **release}, "limits": {"epsilon": 1.0}}
    with relay(config(**changes)) as client:
        assert set(log_in(client)["phone"]) == {"since"}
        for message in sent:
            assert client.post("/owntracks", json=message, auth=ANN).text == "[]"
        heard = client.get("/page/state").json()["phone"]
        assert heard["became"] == became
        assert abs(heard["at"] - time.time()) < 60
        assert became not in client.get("/metrics").text or became not in ("again", "late", "outside", "limit")
        client.cookies.clear()
        assert set(log_in(client, "bob")["phone"]) == {"since"}
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"outside" not in kept.replace(b'"outside":', b"").replace(b'outside\\":', b"")
    assert "outside" not in "".join(one.getMessage() for one in caplog.records if one.name.startswith("dphmm"))


def test_a_prediction_is_shown_with_the_time_that_was_last_known(config, inbox):
    with relay(config(recipient=[recipient(inbox)], limits={"epsilon": 1.0})) as client:
        post(client, 0, 1, 2, 3)
        wait_for(lambda: len(inbox.messages) == 4)
        state = log_in(client)
        wait_for(lambda: not client.get("/page/state").json()["recipients"][0]["waiting"])
        last = client.get("/page/state").json()["recipients"][0]["last"]
    assert (last["prediction"], last["time"], last["known"]) == (True, "2024-03-07T09:15:00Z", START + 300)
    assert state["phone"]["became"] == "withheld"


def test_a_household_s_page_is_open_for_each_whose_token_was_given_and_for_no_one_else(config, tmp_path):
    with relay(config()) as client:
        post(client, 0)
        state = log_in(client, "bob")
        assert [one["user"] for one in state["people"]] == ["bob"]
        wrong = client.post("/page/login", json={"token": TOKEN["ann"], "add": True}, headers={"X-CSRF-Token": "x"})
        assert wrong.status_code == 403
        before = client.cookies["dphmm"]
        assert client.post("/page/login", json={"token": TOKEN["ann"], "add": True}).status_code == 200
        client.headers["X-CSRF-Token"] = client.get("/page/state").json()["csrf"]
        people = client.get("/page/state").json()["people"]
        assert [(one["user"], one["last"] is not None) for one in people] == [("bob", False), ("ann", True)]
        assert client.get("/page/state?user=ann").json()["count"] == 1
        assert client.post("/page/zones?user=ann", json=zones(HOME)).status_code == 200
        assert client.get("/page/state?user=bob").json()["zones"]["zones"]["features"] == []
        client.cookies.set("dphmm", before)
        assert client.get("/page/state").status_code == 401
        assert TOKEN["ann"].encode() not in b"".join(one.read_bytes() for one in tmp_path.rglob("*") if one.is_file())


def test_the_map_below_is_the_file_s_for_who_may_see_the_page_and_the_world_s_without_one(config, tmp_path):
    pytest.importorskip("pyogrio")
    nodes = [(45.0, -30.02, {}), (45.0, -29.98, {}), (45.01, -30.0, {"place": "town", "name": "Angra"})]
    town = write_extract(tmp_path / "town.osm.pbf", nodes, [([0, 1], {"highway": "primary"})])
    with relay(config(basemap=str(town))) as client:
        assert client.get("/page/ground").status_code == 401
        log_in(client)
        ground = client.get("/page/ground").json()
        assert ground["lines"] == {"road": [[4500000, -3002000, 0, 4000]]}
        assert ground["names"][0][:3] == ["Angra", 45.01, -30.0]
        assert client.get("/page/ground", headers={"Accept-Encoding": ""}).json() == ground
    with pytest.raises(DataFileError, match="no map of the region"):
        relay(
            config(basemap="data/home.geojson", model=elsewhere(tmp_path), store=str(tmp_path / "far.db"))
        ).__enter__()


def elsewhere(folder):
    """A model of a region that is far from all data."""
    path = folder / "far.npz"
    rows = "user,time,latitude,longitude\n" + "".join(
        f"x,2024-03-07T{k // 12:02d}:{k % 12 * 5:02d}:00Z,{10 + 0.001 * (k % 9):.4f},{20 + 0.001 * (k % 7):.4f}\n"
        for k in range(200)
    )
    (folder / "far.csv").write_text(rows)
    learn(folder / "far.csv", region(bbox=(10, 20, 10.01, 20.01), cell=0.5), step_seconds=300, output=path)
    return str(path)


# ---- links -----------------------------------------------------------------------------------------------------------


def link(client, **more):
    said = {"name": "Bea", "precision_m": 0, "ends": recipients.now() + 3600, **more}
    return client.post("/page/link", json=said)


def test_a_link_shows_its_reader_what_is_released_from_then_on_until_it_is_ended(config, clock):
    with relay(config()) as client:
        post(client, 0)
        clock.at = START
        log_in(client)
        key = {"Authorization": f"Bearer {link(client).json()['token']}"}
        client.cookies.clear()
        told = client.get("/link/told", headers=key).json()
        assert (told["user"], told["last"], told["places"]) == ("ann", None, [])
        assert client.get("/link/ground", headers=key).json()["credit"] is not None
        post(client, 1)
        told = client.get("/link/told", headers=key).json()
        assert [one["number"] for one in told["places"]] == [1]
        assert told["last"]["can_tell"]["level"] in ("quarter", "street")
        assert not {"epsilon", "Bea"} & set(re.findall(r"\w+", json.dumps(told)))
        for path in ("told", "ground"):
            assert client.get(f"/link/{path}").status_code == 404
            assert client.get(f"/link/{path}", headers={"Authorization": "Bearer x"}).status_code == 404
        (shown,) = log_in(client)["links"]
        assert (shown["name"], shown["last"]["number"]) == ("Bea", 1)
        (seen,) = client.get("/page/trail", params={"reader": shown["id"]}).json()["places"]
        assert (seen["latitude"], seen["radius_m"]) == (told["last"]["latitude"], told["last"]["radius_m"])
        assert client.post("/page/pause", json={"recipient": shown["id"], "paused": True}).status_code == 200
        post(client, 2)
        told = client.get("/link/told", headers=key).json()
        assert (told["places"], told["last"]["number"]) == ([], 1)
        assert client.post("/page/unlink", json={"link": shown["id"]}).status_code == 200
        assert client.get("/link/told", headers=key).status_code == 404


@pytest.mark.parametrize("early", [False, True])
def test_the_person_goes_on_seeing_what_a_link_told_that_has_ended(config, clock, early):
    """It knows that still, however much is released since: it is among the readers until it is taken off the list."""
    with relay(config()) as client:
        clock.at = START
        log_in(client)
        key = {"Authorization": f"Bearer {link(client, ends=START + 1000).json()['token']}"}
        post(client, 1, 2)
        told = client.get("/link/told", headers=key).json()["last"]
        (shown,) = client.get("/page/state").json()["links"]
        assert not shown["ended"]
        if early:
            client.post("/page/unlink", json={"link": shown["id"]}).raise_for_status()
        else:
            clock.at = START + 1000
        post(client, 4, 5)
        (ended,) = client.get("/page/state").json()["links"]
        assert (ended["ended"], ended["last"]) == (True, told)
        assert [
            one["number"] for one in client.get("/page/trail", params={"reader": shown["id"]}).json()["places"]
        ] == [0, 1]
        assert client.get("/link/told", headers=key).status_code == 404
        client.post("/page/unlink", json={"link": shown["id"]}).raise_for_status()
        assert client.get("/page/state").json()["links"] == []


@pytest.mark.parametrize(
    "said",
    [{"name": ""}, {"name": 7}, {"name": "x" * 81}, {"precision_m": 3000}, {"precision_m": True},
     {"precision_m": "2km"}, {"ends": "soon"}, {"ends": True}, {"ends": 1}, {"ends": 2**40}],
)  # fmt: skip
def test_a_link_that_cannot_be_is_refused_and_one_with_a_precision_says_so(config, inbox, said):
    with relay(config(recipient=[recipient(inbox, precision="2km")])) as client:
        log_in(client)
        assert link(client, **said).status_code == 400
        assert client.post("/page/link", json={}, headers={"X-CSRF-Token": ""}).status_code == 403
        assert link(client, precision_m=2000).status_code == 200
        state = client.get("/page/state").json()
        assert ([one["precision_m"] for one in state["links"]], state["precisions"]) == ([2000], [0, 2000])


# ---- what is left ----------------------------------------------------------------------------------------------------


def test_what_is_left_is_what_the_limits_leave(config):
    with relay(config(limits={"epsilon": 2.0, "window_epsilon": 1.5, "window_steps": 2})) as client:
        post(client, 0, 1)
        budget = log_in(client)["budget"]
    assert (budget["spent"], budget["left"], budget["window_limit"]) == (1.0, 1.0, 1.5)
    assert budget["window_left"] == 1.5  # long ago


# ---- what is changed -------------------------------------------------------------------------------------------------


def test_zones_hold_from_the_next_release_on_and_after_a_restart(config, tmp_path):
    far = location(START + 300, 45.02, -30.03)
    with relay(config()) as client:
        client.post("/owntracks", json=location(), auth=ANN)
        log_in(client)
        assert client.post("/page/zones", json=zones(HOME)).status_code == 200
        client.post("/owntracks", json=location(), auth=ANN)  # the old moment again
        client.post("/owntracks", json=far, auth=ANN)
    with relay(config()) as client:
        client.post("/owntracks", json=far | {"tst": START + 600}, auth=ANN)
        log_in(client)
        assert client.get("/page/state").json()["zones"] == zones(HOME)
    old, *new = (one.record for one in releases(tmp_path / "people.db"))
    assert (old.open, old.components) == (False, 1)
    assert all(one.open for one in new)
    assert new[-1].expected_error < old.expected_error  # the one before it is known to have come from afar
    assert len({one.settings for one in new}) == 1 < len({one.settings for one in (old, *new)})
    (found,) = replay(tmp_path / "people.db", config().model)
    replayed = list(replay_sequence(found.engine, found.sequence))
    assert sorted(found.sequence.engines) == [1]
    for one, record in zip(replayed, (old, *new), strict=True):
        assert one.engine.settings.content_hash.startswith(record.settings)
        places = one.engine.measurements.points
        assert one.posterior.probabilities @ places == pytest.approx(record.estimate, abs=1e-9)
    assert audit_session(tmp_path / "people.db", config().model).audits[0].steps[1].open
    with pytest.raises(InvalidInputError, match="release 2 was made under another policy"):
        realise(found.engine, found.sequence)


def test_zones_are_one_person_s_and_the_change_of_one_worker_is_the_others_too(config, postgres):
    made = config(store=postgres)
    with relay(made) as one, relay(made) as other:
        for client in (one, other):
            client.post("/owntracks", json=location(), auth=ANN)
        log_in(one)
        assert one.post("/page/zones", json=zones(HOME)).status_code == 200
        other.post("/owntracks", json=location(START + 300, 45.02, -30.03), auth=ANN)
        other.post("/owntracks", json=location(START + 300, 45.02, -30.03), auth=("bob", TOKEN["bob"]))
        assert releases(postgres)[1].record.open
        assert not releases(postgres, "bob")[0].record.open


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "in a GeoJSON file"),
        (zones(HOME) | {"buffer_m": -1}, "buffer_m"),
        (zones(HOME) | {"buffer_m": True}, "buffer_m"),
        (zones(HOME) | {"elsewhere": "x"}, "elsewhere"),
        (zones(), "nothing would be hidden"),
        (zones(HOME[:2]), "polygon"),
        (zones([[0, 0], [1, 0], [1, 1], [0, 0]]), "smaller than the cells"),
        (zones(HOME, [[x + 0.005, y] for x, y in HOME]), "overlap"),
        (zones([["a", "b"]] * 4), "polygon"),
        ({"zones": {"features": [{"type": "Feature", "geometry": {"type": "Polygon"}}]}}, "name"),
        ({"zones": {"features": [{"geometry": {"type": "Point"}}]}}, "at most 50 polygons"),
        (zones(*[HOME] * 51), "at most 50"),
    ],
)
def test_zones_that_cannot_be_are_refused_in_a_line_that_names_no_file(client, tmp_path, body, said):
    log_in(client)
    for path in ("price", "zones"):
        answer = client.post(f"/page/{path}", json=body)
        assert answer.status_code == 400
        assert said in answer.json()["error"]
        assert "/" not in answer.json()["error"].replace("and/or", "")
    assert client.get("/page/state").json()["zones"]["zones"]["features"] == []


def test_a_zone_of_one_place_is_refused_where_it_is_alone_and_repaired_beside_another(client, model):
    latitude, longitude = load_model(model).space.latlon()[0]
    corners = ((-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1))
    ring = [[longitude + 0.001 * x, latitude + 0.001 * y] for x, y in corners]
    log_in(client)
    said = client.post("/page/price", json=zones(ring)).json()["error"]
    assert "zone:YOURS' joins no two" in said
    said = client.post("/page/price", json=zones(HOME, ring)).json()
    assert (said["exposed_count"], said["added_count"]) == (1, 1)


def test_a_relay_s_own_zones_are_where_the_page_begins(config, tmp_path):
    layer = tmp_path / "home.geojson"
    layer.write_text(json.dumps(zones(HOME)["zones"]), encoding="utf-8")
    settings = {"policy": f"zone:{layer} | utility:1km", "epsilon": 0.5}
    with relay(config(release=settings)) as client:
        chosen = log_in(client)["zones"]
        assert [one["properties"]["name"] for one in chosen["zones"]["features"]] == ["zone 1"]
        assert (chosen["elsewhere"], client.get("/page/state").json()["elsewhere"]) == (
            "policy", "places at most 1 km apart",
        )  # fmt: skip
        assert client.post("/page/zones", json=zones(elsewhere="policy")).status_code == 200
        assert client.get("/page/state").json()["zones"]["zones"]["features"] == []
    with pytest.raises(DataFileError):
        first_zones(ReleaseSettings(policy="zone:none.geojson"))


def test_settings_of_the_file_change_for_sessions_only_when_that_is_said(config, tmp_path):
    with relay(config()) as client:
        post(client, 0)
    changed = config(release={"policy": "utility:2km", "epsilon": 0.25})
    with pytest.raises(ConfigurationError, match="--accept-changes"):
        relay(changed).__enter__()
    from dphmm.serve.endpoints import make_app
    from tests.serve.conftest import running

    with running(make_app(changed, accept_changes=True)) as url, httpx.Client(base_url=url) as client:
        post(client, 1)
    with relay(changed) as client:
        post(client, 2)
    assert [one.record.epsilon for one in releases(tmp_path / "people.db")] == [0.5, 0.25, 0.25]


def test_prices_are_the_errors_of_releases_and_exposed_places_those_of_the_policy(model):
    learned = load_model(model)
    small = [[-30.004, 44.997], [-29.999, 44.997], [-29.999, 45.003], [-30.004, 45.003], [-30.004, 44.997]]
    for ring, elsewhere in ((HOME, "exact"), (small, "exact"), (HOME, "policy")):
        chosen = Zones.from_page(zones(ring, elsewhere=elsewhere))
        engine = chosen.settings(ReleaseSettings(policy="utility:1km", epsilon=0.5)).engine(learned)
        said = policy_effects(engine, chosen.drawn)
        expected = exposed_states(engine.policy, engine.measurements, calibration=engine.settings.calibration)
        assert said["exposed_count"] == len(expected)
        np.testing.assert_allclose(
            np.reshape(said["exposed"], (-1, 2)), learned.space.latlon()[expected].round(6).reshape(-1, 2)
        )
        state = int(learned.space.locate(np.array([45.0]), np.array([-30.002]))[0])
        record = engine.another().release(state)
        assert said["error_m"] == pytest.approx(1000 * record.expected_error, abs=0.1)
        assert said["added_count"] == len(record.added)
        if elsewhere == "exact":
            assert said["error_m_elsewhere"] == 0 or said["exposed_count"]
            assert said["zones"][0]["error_m"] > 100


# ---- who is paused ---------------------------------------------------------------------------------------------------


def test_who_is_paused_on_the_page_is_told_nothing_then_and_nothing_of_it_later_also_after_a_restart(
    config, inbox, clock
):
    made = config(recipient=[recipient(inbox)])

    def pause(client, paused):
        assert client.post("/page/pause", json={"recipient": "family", "paused": paused}).status_code == 200

    with relay(made) as client:
        log_in(client)
        post(client, 0)
        wait_for(lambda: inbox.messages)
        inbox.status = 503  # what waits for a recipient who is away
        post(client, 1)
        clock.at = START + 300
        pause(client, True)
        post(client, 2)
    inbox.status = 200
    with relay(made) as client:
        log_in(client)
        post(client, 3)
        assert client.get("/page/state").json()["recipients"][0]["paused"]
        clock.at = START + 900
        pause(client, False)
        post(client, 4)
        wait_for(lambda: len(inbox.messages) == 2)
        time.sleep(0.2)
    assert [one["time"] for one in told(inbox)] == ["2024-03-07T09:00:00Z", "2024-03-07T09:20:00Z"]


def test_what_follows_a_pause_follows_from_what_was_told_and_so_it_is_for_who_is_new(config, inbox, tmp_path, clock):
    """The estimate after a pause and that of a new recipient are Bayes' rule on what these were told: both by hand."""
    family = recipient(inbox, headers={"X-Name": "family"})
    friends = recipient(inbox, headers={"X-Name": "friends"}, precision="1km") | {"name": "friends"}
    late = recipient(inbox, headers={"X-Name": "late"}) | {"name": "late"}

    def heard(name):
        return [json.loads(body) for _, headers, body in inbox.messages if headers["x-name"] == name]

    def pause(client, paused):
        for name in ("family", "friends"):
            said = client.post("/page/pause", json={"recipient": name, "paused": paused})
            assert said.status_code == 200

    with relay(config(recipient=[family, friends])) as client:
        log_in(client)
        post(client, 0)
        wait_for(lambda: heard("family") and heard("friends"))
        pause(client, True)
        post(client, 1, 2)
        clock.at = START + 600
        pause(client, False)
    with relay(config(recipient=[family, friends, late])) as client:
        post(client, 3, 4)
        wait_for(lambda: len(heard("family")) == len(heard("friends")) == 3)
        wait_for(lambda: len(heard("late")) == 2)
    settings, model = config().release, load_model(config().model)
    engine = settings.engine(model)
    stored = releases(tmp_path / "people.db")
    first = stored[0].slot
    for name, told_at in (("family", (0, 3, 4)), ("friends", (0, 3, 4)), ("late", (3, 4))):
        belief, slot = Belief.first(model, first), first
        for at, message in zip(told_at, heard(name)[-len(told_at) :], strict=True):
            belief, slot = belief.predict(model, first + at - slot, slot), first + at
            for release in stored:
                if release.slot == slot:
                    step = engine.prepare_on(belief, engine.plan(belief), release.record.epsilon)
                    belief = belief.update(engine.log_likelihood(step, release.record.released))
            place = belief.probabilities @ engine.measurements.points
            if name == "friends":
                place = np.floor(place) + 0.5  # the centre of its cell of 1 km
            expected = degrees_of(np.array([place]), model.space)[0]
            assert (message["estimate_latitude"], message["estimate_longitude"]) == pytest.approx(expected, abs=1e-6)
        assert ("epsilon_so_far" in message) is False
    everything = stored[-1].record.estimate
    assert heard("family")[-1]["estimate_latitude"] != pytest.approx(
        degrees_of(np.array([everything]), model.space)[0, 0], abs=1e-7
    )
