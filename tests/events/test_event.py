"""Events as values: the meaning of each on every path, and equality."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dphmm.errors import EventError, InvalidInputError
from dphmm.events import AtLeast, Not, Pattern, Presence, Times, parse_event
from dphmm.events.automaton import Automaton
from dphmm.events.event import Event, Verdict
from tests.events.instances import draw_event
from tests.events.oracles import happens


def run_automaton(event: Event, path: tuple[int, ...]) -> bool:
    progress = event.start
    for time in range(event.first, event.last + 1):
        if not isinstance(progress, Verdict):
            progress = event.advance(progress, time, lambda states, time=time: path[time] in states)
    assert isinstance(progress, Verdict), "an event is decided at its last time"
    return progress is Verdict.YES


@pytest.mark.parametrize("seed", range(80))
def test_event_steps_equal_definition(seed):
    rng = np.random.default_rng(seed)
    size, length = int(rng.integers(2, 4)), int(rng.integers(1, 6))
    event = draw_event(rng, size, length, depth=3)
    for path in product(range(size), repeat=length):
        assert run_automaton(event, path) == happens(event, path)


@pytest.mark.parametrize("seed", range(40))
def test_compiled_event_decides_many_paths_in_one_call(seed):
    rng = np.random.default_rng(seed)
    size, length = int(rng.integers(2, 4)), int(rng.integers(1, 6))
    event, paths = draw_event(rng, size, length, depth=3), np.array(list(product(range(size), repeat=length)))
    decisions = Automaton.compile(event, size).happens(paths)
    assert decisions.tolist() == [happens(event, path) for path in paths.tolist()]


@pytest.mark.parametrize("seed", range(40))
def test_layers_of_compiled_event_equal_definition(seed):
    rng = np.random.default_rng(seed)
    size, length = int(rng.integers(2, 4)), int(rng.integers(1, 5))
    event = draw_event(rng, size, length)
    automaton = Automaton.compile(event, size)
    for path in product(range(size), repeat=length):
        masses = np.zeros((1, size))
        masses[0, path[0]] = 1.0
        for time in range(length):
            masses = np.eye(size)[path[time]] * masses.sum(axis=1, keepdims=True)
            layer = automaton.get_layer(time)
            if layer is not None:
                ahead = np.zeros((len(layer.after), size))
                for source, target, where in layer.arcs:
                    ahead[target, where] += masses[source, where]
                masses = ahead
        assert masses.sum() == 1
        assert masses[automaton.get_slices(length).yes].sum() == happens(event, path)


def test_presence_pattern_and_visits_differ_on_same_path():
    presence = Presence([2], 1, 2)
    pattern = Pattern([[2], [1]], 1)
    visits = Times([2], 0, 3, 2, visits=True)
    assert (happens(presence, (0, 2, 1)), happens(presence, (2, 0, 1))) == (True, False)
    assert (happens(pattern, (0, 2, 1)), happens(pattern, (2, 1, 1))) == (True, False)
    assert (happens(visits, (2, 0, 2, 0)), happens(visits, (2, 2, 0, 0))) == (True, False)
    assert happens(Times([2], 0, 3, 2), (2, 2, 0, 0))


def test_equal_events_compare_equal_and_combine():
    first, second = Presence([2, 0, 2], 1, 2), Presence(np.array([True, False, True]), 1, np.int64(2))
    assert (first, hash(first)) == (second, hash(second))
    assert first != Presence([2], 1, 2)
    assert ~~first == first
    assert (first | second | ~first) == AtLeast(1, [first, first, Not(first)])
    assert (first & (second & ~first)).events == (first, first, Not(first))
    assert AtLeast(1, [first, second]) & first == AtLeast(2, [AtLeast(1, [first, first]), first])


@pytest.mark.parametrize("seed", range(60))
def test_text_of_event_reads_back(seed):
    rng = np.random.default_rng(seed)
    event = draw_event(rng, 4, 5, depth=3)
    if "Table" in repr(event):
        return
    back = parse_event(str(event)).resolve()
    for path in product(range(4), repeat=5):
        assert happens(back, path) == happens(event, path)
    assert str(back) == str(event)


def test_daily_windows_need_two_progress_states_and_few_layers():
    days = AtLeast(1, [Presence([1, 2], 288 * day + 100, 288 * day + 140) for day in range(30)])
    automaton = Automaton.compile(days, 5)
    assert max(len(layer.after) for layer in automaton.layers) == 2
    assert len({id(layer) for layer in automaton.layers}) < 100


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Presence([1], 2, 1), "must not precede its first step 2, got 1"),
        (lambda: Presence([-1], 0, 1), "non-negative integers"),
        (lambda: Presence([0.5], 0, 1), "non-negative integers"),
        (lambda: Presence([1], -1, 1), "first must be a non-negative integer"),
        (lambda: Presence([1], 0, 1.5), "last must be a non-negative integer"),
        (lambda: Pattern([], 0), "the pattern must contain the states of at least one step"),
        (lambda: Times([1], 0, 1, 0), "min_count must be a positive integer"),
        (lambda: AtLeast(3, [Presence([1], 0, 1)]), r"from 1 to the number of events \(1\), got 3"),
        (lambda: AtLeast(1, []), "count must be from 1 to the number of events"),
        (lambda: Automaton.compile(Presence([7], 0, 1), 7), "must be from 0 to 6, got 7"),
    ],
)
def test_invalid_event_raises(make, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_automaton_with_too_many_progress_states_raises():
    counts = [Times([state], 0, 60, 30) for state in range(4)]
    with pytest.raises(EventError, match="512 progress states"):
        Automaton.compile(AtLeast(4, counts), 4)


@pytest.mark.slow
def test_event_over_too_many_timesteps_raises():
    with pytest.raises(EventError, match="1,000,000 steps"):
        Automaton.compile(Presence([1], 5, 1_000_005), 3)
    with pytest.raises(EventError, match="1,000,000 progress states"):
        Automaton.compile(Times([1], 0, 500_000, 300), 3)
    assert len(Automaton.compile(Presence([1], 7, 20_006), 3).layers) == 20_000
