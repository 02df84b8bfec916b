"""The description of the plain endpoint is what the relay does, to requests made from it and to worse ones."""

from __future__ import annotations

import re

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dphmm.serve.endpoints import make_app, openapi
from tests.serve.conftest import TOKEN, relay, running
from tests.serve.test_endpoints import releases
from tests.sizes import slow

schemathesis = pytest.importorskip("schemathesis")
PROFILE = settings(
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def described(without=None):
    description = openapi()
    description["paths"]["/fix"]["post"]["responses"].pop(without, None)
    schema = schemathesis.openapi.from_dict(description)
    return {f"{one.ok().method} {one.ok().path}": one.ok() for one in schema.get_all_operations()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("mode", "requests"), [("positive", 15), ("negative", 15), slow("positive", 60), slow("negative", 60)]
)
def test_requests_that_the_description_allows_and_others_are_answered_as_it_says(config, mode, requests):
    answers = set()
    from schemathesis.specs.openapi.checks import ignored_auth

    cases = described()["post /fix"].as_strategy(generation_mode=schemathesis.GenerationMode(mode))
    with relay(made := config()) as client:

        @settings(PROFILE, max_examples=requests)
        @given(case=cases, shown=st.sampled_from([TOKEN["ann"], "wrong", ""]))
        def holds(case, shown):
            case.headers = {**(case.headers or {}), "Authorization": f"Bearer {shown}"}
            answer = case.call(base_url=str(client.base_url))
            answers.add((answer.status_code, shown == TOKEN["ann"]))
            case.validate_response(answer, excluded_checks=[ignored_auth])  # the token is put in here

        holds()
        assert client.get("/health").status_code == 200
    assert (401, False) in answers
    assert (200 if mode == "positive" else 400, True) in answers
    assert not any(status == 200 and not known for status, known in answers)
    assert releases(made.store, "bob") == []


@pytest.mark.filterwarnings("ignore")
def test_a_description_that_forgets_an_answer_is_noticed(config):
    from schemathesis.core.failures import FailureGroup

    case = described("401")["post /fix"].Case(body=[], media_type="application/json")
    with relay(config()) as client, pytest.raises(FailureGroup) as wrong:
        case.validate_response(case.call(base_url=str(client.base_url)))
    assert "Undocumented status code" in str(wrong.value)


def every_operation(app):
    """A description of every path of the relay that says as little as possible: any query and any body."""
    anything = {"content": {kind: {"schema": {}} for kind in ("application/json", "application/x-www-form-urlencoded")}}
    names = ("token", "id", "lat", "lon", "timestamp", "from", "epsilon", "recipient", "user", "u")
    query = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in names]
    paths = {}

    def enter(routes, before):
        for one in routes:
            path = before + getattr(one, "path", "")
            if getattr(one, "routes", None):
                enter(one.routes, path)
            for method in sorted((getattr(one, "methods", None) or set()) - {"HEAD"}):
                where = {"in": "path", "required": True, "schema": {"type": "string"}}
                inside = [{"name": name, **where} for name in re.findall(r"{(\w+)", path)]
                operation = {"parameters": query + inside, "responses": {"default": {"description": "any"}}}
                if method == "POST":
                    operation["requestBody"] = anything
                paths.setdefault(re.sub(r"{(\w+):\w+}", r"{\1}", path), {})[method.lower()] = operation

    enter(app.routes, "")
    return {"openapi": "3.1.0", "info": {"title": "all", "version": "1"}, "paths": paths}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("requests", [3, slow(40)])
def test_no_endpoint_breaks_at_any_request_and_nothing_is_released_of_one(config, inbox, requests):
    """Of every path that there is: a new one is here without being named."""
    family = {"name": "family", "kind": "webhook", "url": inbox.url}
    made = config(recipient=[family])
    schema = schemathesis.openapi.from_dict(every_operation(app := make_app(made)))
    operations = [one.ok() for one in schema.get_all_operations()]
    assert {"/owntracks", "/osmand", "/fix", "/ready", "/page/pause"} <= {one.path for one in operations}
    with running(app) as url, httpx.Client(base_url=url) as client:
        client.post("/page/login", json={"token": TOKEN["ann"]})
        known = {"X-CSRF-Token": client.get("/page/state").json()["csrf"], "Authorization": f"Bearer {TOKEN['ann']}"}
        cookie = f"dphmm={client.cookies['dphmm']}"
        for operation in operations:
            if operation.path == "/page/logout":
                continue  # it would end the login

            @settings(PROFILE, max_examples=requests)
            @given(case=operation.as_strategy(), inside=st.booleans())
            def holds(case, inside):
                case.headers = {**(case.headers or {}), **({**known, "Cookie": cookie} if inside else {})}
                answer = case.call(base_url=url)
                assert answer.status_code < 500, (case.path, answer.status_code)
                assert "Traceback" not in answer.text

            holds()
        assert client.get("/ready").status_code == 200
    assert releases(made.store) == []
