"""Events as values: what each means on every path, and that equal ones are equal."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dphmm.errors import EventError, InvalidInputError
from dphmm.events import AtLeast, Not, Pattern, Presence, Times, parse_event
from dphmm.events.automaton import Automaton
from dphmm.events.event import Event, Verdict
from tests.events.instances import random_event
from tests.events.oracles import happens


def run(event: Event, path: tuple[int, ...]) -> bool:
    progress = event.start
    for time in range(event.first, event.last + 1):
        if not isinstance(progress, Verdict):
            progress = event.step(progress, time, lambda states, time=time: path[time] in states)
    assert isinstance(progress, Verdict), "an event is decided at its last time"
    return progress is Verdict.YES


@pytest.mark.parametrize("seed", range(80))
def test_the_automaton_decides_every_path_as_the_definition_does(seed):
    rng = np.random.default_rng(seed)
    size, length = int(rng.integers(2, 4)), int(rng.integers(1, 6))
    event = random_event(rng, size, length, depth=3)
    for path in product(range(size), repeat=length):
        assert run(event, path) == happens(event, path)


@pytest.mark.parametrize("seed", range(40))
def test_many_paths_are_decided_at_once_as_each_is_by_itself(seed):
    rng = np.random.default_rng(seed)
    size, length = int(rng.integers(2, 4)), int(rng.integers(1, 6))
    event, paths = random_event(rng, size, length, depth=3), np.array(list(product(range(size), repeat=length)))
    found = Automaton.compile(event, size).happens(paths)
    assert found.tolist() == [happens(event, path) for path in paths.tolist()]


@pytest.mark.parametrize("seed", range(40))
def test_a_compiled_event_decides_every_path_as_its_steps_do(seed):
    rng = np.random.default_rng(seed)
    size, length = int(rng.integers(2, 4)), int(rng.integers(1, 5))
    event = random_event(rng, size, length)
    automaton = Automaton.compile(event, size)
    for path in product(range(size), repeat=length):
        masses = np.zeros((1, size))
        masses[0, path[0]] = 1.0
        for time in range(length):
            masses = np.eye(size)[path[time]] * masses.sum(axis=1, keepdims=True)
            layer = automaton.layer(time)
            if layer is not None:
                ahead = np.zeros((len(layer.after), size))
                for source, target, where in layer.arcs:
                    ahead[target, where] += masses[source, where]
                masses = ahead
        assert masses.sum() == 1
        assert masses[automaton.cut(length).yes].sum() == happens(event, path)


def test_one_time_is_enough_for_presence_and_needed_for_a_pattern():
    presence, pattern, visits = Presence([2], 1, 2), Pattern([[2], [1]], 1), Times([2], 0, 3, 2, visits=True)
    assert (happens(presence, (0, 2, 1)), happens(presence, (2, 0, 1))) == (True, False)
    assert (happens(pattern, (0, 2, 1)), happens(pattern, (2, 1, 1))) == (True, False)
    assert (happens(visits, (2, 0, 2, 0)), happens(visits, (2, 2, 0, 0))) == (True, False)
    assert happens(Times([2], 0, 3, 2), (2, 2, 0, 0))


def test_events_are_values():
    one, other = Presence([2, 0, 2], 1, 2), Presence(np.array([True, False, True]), 1, np.int64(2))
    assert (one, hash(one)) == (other, hash(other))
    assert one != Presence([2], 1, 2)
    assert ~~one == one
    assert (one | other | ~one) == AtLeast(1, [one, one, Not(one)])
    assert (one & (other & ~one)).events == (one, one, Not(one))
    assert AtLeast(1, [one, other]) & one == AtLeast(2, [AtLeast(1, [one, one]), one])


@pytest.mark.parametrize("seed", range(60))
def test_the_text_of_an_event_reads_back(seed):
    rng = np.random.default_rng(seed)
    event = random_event(rng, 4, 5, depth=3)
    if "Table" in repr(event):
        return
    back = parse_event(str(event)).resolve()
    for path in product(range(4), repeat=5):
        assert happens(back, path) == happens(event, path)
    assert str(back) == str(event)


def test_many_windows_need_two_progress_states_and_few_layers():
    days = AtLeast(1, [Presence([1, 2], 288 * day + 100, 288 * day + 140) for day in range(30)])
    automaton = Automaton.compile(days, 5)
    assert max(len(layer.after) for layer in automaton.layers) == 2
    assert len({id(layer) for layer in automaton.layers}) < 100


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Presence([1], 2, 1), "ends at 1, before it begins at 2"),
        (lambda: Presence([-1], 0, 1), "whole numbers from 0"),
        (lambda: Presence([0.5], 0, 1), "whole numbers from 0"),
        (lambda: Presence([1], -1, 1), "a time of the event is -1"),
        (lambda: Presence([1], 0, 1.5), "last is 1.5; give a whole number"),
        (lambda: Pattern([], 0), "the pattern is empty"),
        (lambda: Times([1], 0, 1, 0), "a number of times is 0"),
        (lambda: AtLeast(3, [Presence([1], 0, 1)]), "at least 3 of 1 events cannot be"),
        (lambda: AtLeast(1, []), "at least 1 of 0 events"),
        (lambda: Automaton.compile(Presence([7], 0, 1), 7), "names state 7; states are 0 to 6"),
    ],
)
def test_what_is_no_event_is_refused_in_a_line(make, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_an_automaton_that_would_grow_without_end_is_refused():
    counts = [Times([state], 0, 60, 30) for state in range(4)]
    with pytest.raises(EventError, match="more than 512 progress states"):
        Automaton.compile(AtLeast(4, counts), 4)


def test_an_event_over_longer_than_anybody_waits_for_is_refused_at_once():
    with pytest.raises(EventError, match="more than 1,000,000 steps; give a shorter window"):
        Automaton.compile(Presence([1], 5, 1_000_005), 3)
    with pytest.raises(EventError, match="more than 1,000,000 progress states over all its steps"):
        Automaton.compile(Times([1], 0, 500_000, 300), 3)
    assert len(Automaton.compile(Presence([1], 7, 20_006), 3).layers) == 20_000
