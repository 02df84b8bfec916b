"""The description of the plain endpoint is what the relay does, to requests made from it and to worse ones."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dphmm.serve.app import openapi
from tests.serve.conftest import TOKEN, relay
from tests.serve.test_app import releases
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
