"""Texts of users with any words are parsed or refused by an error of the package."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dphmm import Grid, MarkovModel, ReleaseSettings, parse_policy
from dphmm.errors import DphmmError
from dphmm.events import Clock, EventOdds, parse_event
from dphmm.policy.expression import canonicalize_policy
from dphmm.tables import parse_time
from tests.sizes import choose_count

GRID = Grid.over((44.995, -30.015, 45.005, -29.985), cell_km=0.5)
MOVES = np.full((GRID.size, GRID.size), 1 / GRID.size)
MODEL = MarkovModel(MOVES, MOVES[0], GRID, 60.0)
COMMON = "-1 0 9 1e9 999999999999 0x7 nan ( ) ; ! | & : , /dev/zero é \x00 \ud800 " + "1" * 5000
WORDS = {
    "policy": "utility complete km 1km 500m 1e400km graph given: @ categorical centres places transition open",
    "event": "between and at at:9 at:3,4 state:1 in on any day weekday weekend 9-12 24-0 from the first release then "
    "2 of ( least visits times days 2024-03-07 2024-03-31T02:30 0001-01-01 9999-12-31 2024-W10-1 Mars/Base "
    "America/Santiago at:/dev/zero.geojson",
    "time": "2024-03-07T09:00:00.250+02:00 2024-03-07 09:00 Z T + +99:99 24:00 -0001-01-01 9999-12-31T23:00-14:00 NaT",
}


def build_texts(kind: str) -> st.SearchStrategy[str]:
    """Words of a grammar and other words, joined by spaces or directly."""
    word = st.sampled_from([*WORDS[kind].split(" "), *COMMON.split(" ")]) | st.text(max_size=6)
    return st.builds(
        lambda words, between: between.join(words), st.lists(word, max_size=12), st.sampled_from([" ", ""])
    )


def parse_and_check_policy(text: str) -> None:
    canonicalize_policy(text)
    graph, release_settings = parse_policy(text, GRID, MODEL.transition), ReleaseSettings(policy=text)
    assert graph.content_hash
    assert ReleaseSettings.from_toml(release_settings.to_toml()) == release_settings


def parse_and_check_event(text: str) -> None:
    parsed = parse_event(text)
    assert parse_event(str(parsed)).canonical == parsed.canonical
    resolved = parsed.resolve(GRID, Clock(60.0, 28_497_420))
    if resolved.last - resolved.first < 500:
        EventOdds(MODEL.transition, MODEL.initial, resolved)


def check_refusal_is_one_line(use: Callable[[str], object], text: str, also: tuple[type[Exception], ...] = ()) -> None:
    message = "accepted"
    try:
        use(text)
    except (DphmmError, *also) as problem:
        message = str(problem)
    assert message
    assert "\n" not in message


@pytest.mark.slow
@settings(max_examples=choose_count(600, 60), deadline=None)
@given(build_texts("policy"))
@example("utility:1km & complete | transition")
def test_any_policy_is_parsed_or_raises(text):
    check_refusal_is_one_line(parse_and_check_policy, text)


@pytest.mark.slow
@settings(max_examples=choose_count(600, 60), deadline=None)
@given(build_texts("event"))
@example("2 of (at:1 on 2024-03-07 from the first release; at:2 at 3; at:4 at least 2 visits between 0 and 9)")
@example("at:3,4 between 2024-03-07 and 2024-03-10 any weekday 9-12 in Europe/Berlin from the first release")
def test_any_event_is_parsed_or_raises(text):
    check_refusal_is_one_line(parse_and_check_event, text)


@pytest.mark.slow
@settings(max_examples=choose_count(600, 60), deadline=None)
@given(build_texts("time"))
def test_any_time_is_parsed_or_raises(text):
    check_refusal_is_one_line(parse_time, text, (ValueError,))


@pytest.mark.parametrize(("kind", "use"), [("policy", parse_and_check_policy), ("event", parse_and_check_event)])
def test_simple_texts_are_accepted(kind, use):
    """Otherwise every text above could be refused at its first word."""
    use({"policy": "utility:1km|complete", "event": "state:1 between 1 and 2"}[kind])
