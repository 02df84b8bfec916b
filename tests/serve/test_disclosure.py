"""Tests of what a pause and a link disclose: forms of messages, and times of releases."""

from __future__ import annotations

import html
import json
from fractions import Fraction
from pathlib import Path
from urllib.parse import parse_qs

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.release.ledger import Account
from dphmm.release.settings import Schedule
from dphmm.serve import delivery
from dphmm.serve.page import TEXTS
from tests.serve.conftest import START, serve_relay, wait_for
from tests.serve.test_broker import mosquitto  # noqa: F401 - a fixture
from tests.serve.test_delivery import STEP, log_in, post

# ---- one form of message ---------------------------------------------------------------------------------------------

KINDS = ("webhook", "owntracks", "overland", "traccar", "home-assistant", "mqtt")
CHOICES = (
    {},
    {"precision": "2km"},
    {"when_withheld": "nothing"},
    {"content": "zone"},
    {"true_locations_unprotected": True},
)


def get_keys(value):
    """Return the nested keys of a message. Values are ignored."""
    if isinstance(value, dict):
        return {name: get_keys(nested) for name, nested in sorted(value.items())}
    return [get_keys(nested) for nested in value] if isinstance(value, list) else None


def parse_body(body):
    text = body.decode()
    try:
        return json.loads(text)
    except ValueError:
        return parse_qs(text, keep_blank_values=True, strict_parsing=True)


def list_recipients(inbox, broker):
    for kind in KINDS:
        for number, choice in enumerate(CHOICES):
            if "content" in choice and kind not in ("webhook", "mqtt"):
                continue
            name = f"{kind} {number}"
            url = broker if kind == "mqtt" else f"{inbox.url}?to={kind}-{number}"
            yield {"name": name, "kind": kind, "url": url, "users": ["ann"], **choice}


@pytest.fixture
def published(monkeypatch):
    """Record what is published at a broker, with the client of each recipient."""
    import aiomqtt

    messages = []
    publish = aiomqtt.Client.publish

    async def record(client, topic, body, **options):
        messages.append((id(client), topic, body))
        await publish(client, topic, body, **options)

    monkeypatch.setattr(aiomqtt.Client, "publish", record)
    return messages


@pytest.mark.slow
def test_messages_of_each_recipient_have_one_form(config, inbox, clock, mosquitto, published, monkeypatch):  # noqa: F811
    """Send releases and predictions to every kind of recipient.

    They are the first ones, later ones, and ones after a pause, a removal and a restart.
    """
    monkeypatch.setattr(delivery, "_FIRST_WAIT_S", 0.02)
    recipients = list(list_recipients(inbox, mosquitto.url))
    release = {"policy": "utility:1km", "epsilon": 1.0, "schedule": {"target_error": 1.4}}
    settings = config(release=release, recipient=recipients)
    absent = [recipient | {"paused": True} for recipient in recipients]
    links = []

    def get_link_forms(client):
        trails = [client.get("/link/trail", headers={"Authorization": f"Bearer {token}"}).json() for token in links]
        return [get_keys(location) for trail in trails for location in trail["locations"]]

    def run(*steps):
        clock.at = START + STEP * (steps[-1] + 1)
        post(client, *steps)
        wait_for(lambda: all(entry["num_waiting"] == 0 for entry in client.get("/page/state").json()["recipients"]))

    with serve_relay(settings) as client:
        log_in(client)
        for precision_m in (0, 2000):
            body = {"name": "Bea", "precision_m": precision_m, "ends": START + 999 * STEP}
            links.append(client.post("/page/link", json=body).json()["token"])
        run(*range(6))
        for recipient in recipients:
            client.post("/page/pause", json={"recipient": recipient["name"], "paused": True}).raise_for_status()
        run(6, 7)
        for recipient in recipients:
            client.post("/page/pause", json={"recipient": recipient["name"], "paused": False}).raise_for_status()
        links.append(client.post("/page/link", json=body).json()["token"])
        run(*range(9, 16))
    with serve_relay(config(release=release, recipient=absent)) as client:
        log_in(client)
        run(17, 18)
    with serve_relay(settings) as client:
        log_in(client)
        run(*range(20, 26))
        trails = [client.get("/page/trail", params={"recipient": r["name"]}).json()["locations"] for r in recipients]
        trail_forms = [get_keys(location) for trail in trails for location in trail]
        link_forms = get_link_forms(client)
    assert len(trail_forms) > 100
    assert all(form == trail_forms[0] for form in trail_forms)
    assert all(form | {"number": None} == trail_forms[0] for form in link_forms)

    bodies = {}
    for query, (_, _, body) in zip(inbox.queries, inbox.messages, strict=True):
        bodies.setdefault(query["to"], []).append(parse_body(body))
    for _, topic, body in published:
        recipient = topic.split("/dphmm-")[1].replace(" ", "-")
        bodies.setdefault(recipient, []).append(parse_mqtt(body))
    assert len(bodies) == 6 * 4 + 2  # and zones by HTTP and by MQTT
    for name, messages in bodies.items():
        assert len(messages) >= (1 if name.endswith("-2") else 3), name  # "nothing" skips predictions
        assert len({json.dumps(get_keys(message)) for message in messages}) == 1, name
    rows = bodies["webhook-0"]
    drawn = {row["released"] for row in rows}
    assert drawn == {True, False}
    assert {row["epsilon_total"] is None for row in rows} == {True, False}, "some rows must follow the pause"


def parse_mqtt(body):
    return json.loads(body) if body[:1] == "{" else body


# ---- when later releases are made ------------------------------------------------------------------------------------

LINE = np.arange(3.0)[:, None]
END = 0
CENTRE = 1
NUM_EARLIER = 2
NUM_LATER = 4


def make_engine(schedule):
    moves = [[0.8, 0.2, 0.0], [0.1, 0.8, 0.1], [0.0, 0.2, 0.8]]
    model = MarkovModel(np.array(moves), np.full(3, 1 / 3))
    policy = PolicyGraph.utility(LINE, 1.0)
    return Releaser(model, LINE, policy, epsilon=4.0, mechanism="graph-exponential", schedule=schedule)


def enumerate_patterns(engine, path):
    """Return the exact probability of each pattern of withheld later timesteps."""
    patterns = {}

    def visit(step, belief, probability, pattern):
        if step == len(path):
            patterns[pattern] = patterns.get(pattern, Fraction(0)) + probability
            return
        engine.resume(belief, step, None, Account(), step - 1 if step else None)
        plan = engine.prepare()
        if step >= NUM_EARLIER:
            pattern = (*pattern, plan.withheld)
        if plan.withheld:
            visit(step + 1, plan.prior, probability, pattern)
            return
        mechanism = plan.noise.get_mechanism(path[step])
        for output in LINE:
            share = mechanism.probability(tuple(output), LINE[path[step]])
            if share:
                posterior = plan.prior.update(engine.log_likelihood(plan, output))
                visit(step + 1, posterior, probability * share, pattern)

    visit(0, None, Fraction(1), ())
    return patterns


def compute_total_variation(engine):
    """Return the exact total variation of the later patterns for two earlier locations."""
    laws = [enumerate_patterns(engine, (place,) * NUM_EARLIER + (2,) * NUM_LATER) for place in (END, CENTRE)]
    assert all(sum(law.values()) == 1 for law in laws)
    return sum((abs(laws[0].get(key, 0) - laws[1].get(key, 0)) for key in {*laws[0], *laws[1]}), Fraction(0)) / 2


@pytest.mark.slow
def test_withheld_timesteps_after_a_pause_reveal_earlier_locations_as_stated():
    """Observe which timesteps are withheld after the location of interest.

    The variant without a schedule must reveal nothing by them.
    """
    total_variation = compute_total_variation(make_engine(Schedule(target_error=0.5)))
    assert float(total_variation) == pytest.approx(0.745380640366982, rel=1e-12)
    stated = " ".join(Path("docs/how-to/serve.md").read_text(encoding="utf-8").split())
    assert "total variation 0.75." in stated
    assert compute_total_variation(make_engine(None)) == 0


@pytest.mark.parametrize("language", TEXTS)
def test_pages_do_not_state_that_nothing_is_disclosed(client, language):
    """The hints of a pause and of a link must contain the sentence in each language."""
    sentence = {
        "en": "reveal something about where you were",
        "de": "etwas darüber verraten, wo du",
        "fr": "révéler quelque chose sur l’endroit où vous étiez",
        "es": "revelar algo sobre dónde estabas",
        "zh": "可能透露你",
    }[language]
    page = html.unescape(client.get("/", headers={"Accept-Language": language}).text)
    for key in ("pause_hint", "link_hint"):
        assert sentence in TEXTS[language][key]
        assert f'<p class="hint">{TEXTS[language][key]}</p>' in page
