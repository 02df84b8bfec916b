"""Tests of the OpenAPI description with generated valid and invalid requests."""

from __future__ import annotations

import re

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dphmm.serve.endpoints import load_openapi, make_app
from dphmm.serve.incoming_messages import _parse_plain_fix
from dphmm.space.fix_quality import _NEGATIONS
from tests.serve.conftest import TOKEN, get_page_token, serve_app, serve_relay
from tests.serve.test_endpoints import read_releases
from tests.sizes import mark_slow

schemathesis = pytest.importorskip("schemathesis")
PROFILE = settings(
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


FIX = {"time": "2024-03-09T10:00:00Z", "latitude": 45.0, "longitude": -30.0}
# Requests that are made in addition to random ones, which need not contain an accepted or a refused one.
BODIES = {
    "positive": [FIX, [FIX, FIX], FIX | {"accuracy": "8,5", "valid": "no"}, FIX | {"accuracy": [], "valid": {}}],
    "negative": [
        *({name: value for name, value in FIX.items() if name != missing} for missing in FIX),
        *(FIX | {name: None} for name in FIX),
        [FIX, FIX | {"latitude": 91}],
        FIX | {"time": "2024-03-09T10:00:00"},
        7,
    ],
}
STATUS = {"positive": 200, "negative": 400}


def describe_operations(without=None):
    description = load_openapi()
    description["paths"]["/fix"]["post"]["responses"].pop(without, None)
    schema = schemathesis.openapi.from_dict(description)
    return {f"{result.ok().method} {result.ok().path}": result.ok() for result in schema.get_all_operations()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("mode", "requests"), [("positive", 8), ("negative", 8), mark_slow("positive", 40), mark_slow("negative", 40)]
)
def test_responses_match_description_for_valid_and_invalid_requests(config, mode, requests):
    answers = set()
    from schemathesis.specs.openapi.checks import ignored_auth

    operation = describe_operations()["post /fix"]
    cases = operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode))
    relay_config = config()
    with serve_relay(relay_config) as client:

        def check(case, shown):
            case.headers = {**(case.headers or {}), "Authorization": f"Bearer {shown}"}
            answer = case.call(base_url=str(client.base_url))
            answers.add((answer.status_code, shown == TOKEN["ann"]))
            case.validate_response(answer, excluded_checks=[ignored_auth])  # the token is set above
            return answer.status_code

        @settings(PROFILE, max_examples=requests)
        @given(case=cases, shown=st.sampled_from([TOKEN["ann"], "wrong", ""]))
        def holds(case, shown):
            check(case, shown)

        for body in BODIES[mode]:
            for shown, status in ((TOKEN["ann"], STATUS[mode]), ("wrong", 401), ("", 401)):
                assert check(operation.Case(body=body, media_type="application/json"), shown) == status, body
        holds()
        assert client.get("/health").status_code == 200
    assert (401, False) in answers
    assert (STATUS[mode], True) in answers
    assert not any(status == 200 and not is_known for status, is_known in answers)
    assert read_releases(relay_config.store, "bob") == []


def test_description_contains_all_fields_that_are_read():
    """The words that mean an invalid fix are those of the parser."""
    schema = load_openapi()["paths"]["/fix"]["post"]["requestBody"]["content"]["application/json"]["schema"]

    read = set()

    class Fields(dict):
        def __getitem__(self, name):
            read.add(name)
            return super().__getitem__(name)

        def get(self, name, default=None):
            read.add(name)
            return super().get(name, default)

    _parse_plain_fix(Fields(FIX))
    single, several = schema["oneOf"]
    assert set(single["properties"]) == set(several["items"]["properties"]) == read
    description = single["properties"]["valid"]["description"]
    words = description.partition("strings ")[2].partition(" in upper")[0].replace(" and ", ", ").split(", ")
    assert set(words) == _NEGATIONS


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_missing_response_in_description_is_detected(config):
    from schemathesis.core.failures import FailureGroup

    case = describe_operations("401")["post /fix"].Case(body=[], media_type="application/json")
    with serve_relay(config()) as client, pytest.raises(FailureGroup) as wrong:
        case.validate_response(case.call(base_url=str(client.base_url)))
    assert "Undocumented status code" in str(wrong.value)


def describe_app(app):
    """Return a minimal description of every path: any query and any body."""
    anything = {"content": {kind: {"schema": {}} for kind in ("application/json", "application/x-www-form-urlencoded")}}
    names = ("token", "id", "lat", "lon", "timestamp", "from", "epsilon", "recipient", "user", "u")
    query = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in names]
    paths = {}

    def enter(routes, before):
        for route in routes:
            path = before + getattr(route, "path", "")
            if getattr(route, "routes", None):
                enter(route.routes, path)
            for method in sorted((getattr(route, "methods", None) or set()) - {"HEAD"}):
                where = {"in": "path", "required": True, "schema": {"type": "string"}}
                inside = [{"name": name, **where} for name in re.findall(r"{(\w+)", path)]
                operation = {"parameters": query + inside, "responses": {"default": {"description": "any"}}}
                if method == "POST":
                    operation["requestBody"] = anything
                paths.setdefault(re.sub(r"{(\w+):\w+}", r"{\1}", path), {})[method.lower()] = operation

    enter(app.routes, "")
    return {"openapi": "3.1.0", "info": {"title": "all", "version": "1"}, "paths": paths}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("requests", [3, mark_slow(20)])
def test_no_endpoint_fails_or_releases_for_random_requests(config, inbox, requests):
    """This covers all paths of the relay, including future ones."""
    family = {"name": "family", "kind": "webhook", "url": inbox.url}
    relay_config = config(recipient=[family])
    app = make_app(relay_config)
    schema = schemathesis.openapi.from_dict(describe_app(app))
    operations = [result.ok() for result in schema.get_all_operations()]
    assert {"/owntracks", "/osmand", "/fix", "/ready", "/page/pause"} <= {operation.path for operation in operations}
    with serve_app(app) as url, httpx.Client(base_url=url) as client:
        client.post("/page/login", json={"token": get_page_token("ann")})
        credentials = {
            "X-CSRF-Token": client.get("/page/state").json()["csrf"],
            "Authorization": f"Bearer {TOKEN['ann']}",
        }
        cookie = f"dphmm={client.cookies['dphmm']}"
        for operation in operations:
            if operation.path == "/page/logout":
                continue  # it would end the login

            @settings(PROFILE, max_examples=requests)
            @given(case=operation.as_strategy(), inside=st.booleans())
            def holds(case, inside):
                case.headers = {**(case.headers or {}), **({**credentials, "Cookie": cookie} if inside else {})}
                answer = case.call(base_url=url)
                assert answer.status_code < 500, (case.path, answer.status_code)
                assert "Traceback" not in answer.text

            holds()
        assert client.get("/ready").status_code == 200
    assert read_releases(relay_config.store) == []
