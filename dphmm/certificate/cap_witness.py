"""The proof in a certificate that event caps hold: probabilities, automata, and cells."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, find_runs
from dphmm.certificate.canonical_forms import Lines, Plain, expand_initial
from dphmm.errors import InvalidInputError
from dphmm.events.automaton import Automaton, Layer
from dphmm.events.chain_start import make_chain
from dphmm.mechanisms.registry import TABLE_MECHANISMS
from dphmm.model.model import MarkovModel
from dphmm.release.caps import EventCaps
from dphmm.release.engine import Releaser
from dphmm.release.state_between_steps import FilterState
from dphmm.release.step_plan import StepPlan


class CapsWitness:
    """The proof that the event caps of one user hold, release by release.

    Parameters
    ----------
    lines
        The lines of the certificate.
    engine
        An engine with caps. All queries about the user have the same caps.
    """

    def __init__(self, lines: Lines, engine: Releaser) -> None:
        self._lines = lines
        self._model = engine.model
        self._settings = engine.settings
        self._event_caps = EventCaps(engine.settings, engine.model)
        self._event_caps.ignores_past_caps = True

    def begin(self, slot: int) -> Plain:
        """Encode the probabilities, the events and the priors, for the first release.

        Parameters
        ----------
        slot
            Slot of the first release.

        Returns
        -------
        dict
            The field ``events``.

        Raises
        ------
        EventError
            If `EventCaps.get_tracker` raises it.
        """
        self._tracker = self._event_caps.get_tracker(FilterState(first=slot))
        self._slot = slot
        self._cap_indices = sorted({tracked.number for tracked in self._tracker.tracked_caps})
        chain = make_chain(self._model, slot)[0]
        caps = []
        of_model = {tracked.number: tracked.odds for tracked in self._tracker.tracked_caps if tracked.prior == 0}
        for number in range(self._tracker.num_caps):
            odds = of_model.get(number)
            automaton = None if odds is None else chain.compile(odds.event)
            name = None if automaton is None else self._lines.write_part(encode_event(automaton))
            at = 0 if odds is None else slot - odds.lead + odds.event.first
            caps.append({"event": name, "at": at})
        starts = [
            {"is": "prior", "start": _encode_doubles(expand_initial(self._model, prior))}
            for prior in self._event_caps.priors
        ]
        return {
            "chances": self._lines.write_part(encode_probabilities(self._model)),
            "caps": caps,
            "priors": [self._lines.write_part(start) for start in starts],
        }

    def prove_caps(self, engine: Releaser, step: StepPlan, slot: int) -> list[Any]:
        """Return cells of outputs that prove that no output of a release exceeds a cap.

        Parameters
        ----------
        engine
            Engine of the query.
        step
            Plan of the release.
        slot
            Slot of the release.

        Returns
        -------
        list
            The field ``caps``.

        Raises
        ------
        InvalidInputError
            If it is not certain that a cap holds.
        """
        outputs = engine.planner.build_outputs(step, step.epsilon)
        cells_of_key = dict[tuple[int, int, bool], Any]()
        keys = [
            (tracked.number, tracked.prior, is_floor)
            for tracked in self._tracker.tracked_caps
            for is_floor in ([False, True] if tracked.cap.min_probability > 0 else [False])
        ]
        tables = [""] * sum(bool(members.any()) for _, members in step.noise.iterate_parts())
        cells = self._tracker.prove_caps(outputs, step.epsilon, slot - self._slot)
        for key, (is_certain, signs) in zip(keys, cells, strict=True):
            if not is_certain:
                cap = self._settings.caps[key[0]]
                raise InvalidInputError(f"the cap on '{cap.event}' cannot be proven for the release of slot {slot}")
            cells_of_key[key] = tables if engine.settings.mechanism in TABLE_MECHANISMS else list(signs)
        return [
            cells_of_key.get((number, prior, is_floor))
            for number in self._cap_indices
            for prior in range(1 + len(self._event_caps.priors))
            for is_floor in ([False, True] if self._settings.caps[number].min_probability > 0 else [False])
        ]

    def update(self, log_likelihood: FloatArray, slot: int) -> None:
        """Process a release.

        Parameters
        ----------
        log_likelihood
            ``(N,)``: ``log p(z | s)``.
        slot
            Slot of the release.
        """
        self._tracker.update(log_likelihood, slot - self._slot)
        self._slot = slot


def encode_probabilities(model: MarkovModel) -> Plain:
    """Encode the probabilities of a model, in the order of its part ``model``.

    Parameters
    ----------
    model
        The model.

    Returns
    -------
    dict
        The part ``chances``.
    """
    moves = []
    for transition in model.transitions:
        matrix = transition.sorted_indices()
        ends = zip(matrix.indptr[:-1].tolist(), matrix.indptr[1:].tolist(), strict=True)
        moves.append([_encode_doubles(matrix.data[first:last]) for first, last in ends])
    starts = [expand_initial(model, initial) for initial in model.initial_by_class]
    about = [None if model.states is None else model.states.content_hash]
    if model.time_classes is not None:
        about.append(model.time_classes.content_hash)
    return {
        "is": "chances",
        "moves": moves,
        "start": [_encode_doubles(start[start > 0]) for start in starts],
        "about": about,
    }


def encode_event(automaton: Automaton) -> Plain:
    """Encode an event's automaton: its distinct layers, their order, and its outcomes.

    Parameters
    ----------
    automaton
        Automaton over the states of a chain.

    Returns
    -------
    dict
        The part ``event``.
    """
    numbers: dict[int, int] = {}
    layers = list[Any]()
    times = list[int]()
    for key, run in groupby(automaton.layers, id):
        layer, *_ = same = list(run)
        if key not in numbers:
            numbers[key] = len(layers)
            layers.append(_encode_layer(layer, automaton.size))
        times += [numbers[key], len(same)]
    yes = np.zeros(len(automaton.layers[-1].after), dtype=np.bool_)
    yes[automaton.get_slices(automaton.event.last).yes] = True
    return {"is": "event", "layers": layers, "times": times, "yes": find_runs(yes)}


def _encode_layer(layer: Layer, size: int) -> list[Any]:
    rows: list[Any] = [[] for _ in layer.before]
    for source, target, where in layer.arcs:
        states: BoolArray = np.zeros(size, dtype=np.bool_)
        states[where] = True
        rows[source].append([target, find_runs(states)])
    return [sorted(arcs) for arcs in rows]


def _encode_doubles(values: FloatArray) -> list[int]:
    """Encode doubles in [0, 1] as integer pairs m, k: the value m / 2**k in lowest terms."""
    return [part for value in values.tolist() for part in _encode_double(value)]


@lru_cache(maxsize=1 << 16)
def _encode_double(value: float) -> tuple[int, int]:
    m, under = value.as_integer_ratio()
    return m, under.bit_length() - 1
