"""What shows in a certificate that caps on events are kept: probabilities, events' automata, cells of outputs."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, runs
from dphmm.certificate.canonical_forms import Lines, Plain, begun
from dphmm.errors import InvalidInputError
from dphmm.events.automaton import Automaton, Layer
from dphmm.mechanisms.base import TABLES
from dphmm.model.model import MarkovModel
from dphmm.release.engine import Releaser
from dphmm.release.event_caps import Capping, chain_of
from dphmm.release.step import PreparedStep, PublicState


class CapsWitness:
    """What a certificate says of the caps on events of one person, release by release.

    Parameters
    ----------
    lines
        What takes the parts.
    engine
        An engine with caps; all queries about the person keep the same.
    """

    def __init__(self, lines: Lines, engine: Releaser) -> None:
        self._lines, self._model, self._settings = lines, engine.model, engine.settings
        self._capping = Capping(engine.settings, engine.model)
        self._capping.passes_over_the_past = True

    def begin(self, slot: int) -> Plain:
        """What the first release says, in the slot: the probabilities, the events and other priors.

        Parameters
        ----------
        slot
            The slot of the first release.

        Returns
        -------
        dict
            The field ``events``.

        Raises
        ------
        EventError
            As `Capping.keeper`.
        """
        self._keeper, self._slot = self._capping.keeper(PublicState(first=slot)), slot
        self._watched = sorted({one.number for one in self._keeper.watched})
        chain, caps = chain_of(self._model, slot)[0], []
        of_model = {one.number: one.odds for one in self._keeper.watched if one.prior == 0}
        for number in range(self._keeper.count):
            odds = of_model.get(number)
            automaton = None if odds is None else chain.compile(odds.event)
            name = None if automaton is None else self._lines.part(event_of(automaton))
            at = 0 if odds is None else slot - odds.lead + odds.event.first
            caps.append({"event": name, "at": at})
        starts = [{"is": "prior", "start": _doubles(begun(self._model, one))} for one in self._capping.priors]
        return {
            "chances": self._lines.part(chances_of(self._model)),
            "caps": caps,
            "priors": [self._lines.part(one) for one in starts],
        }

    def cells(self, engine: Releaser, step: PreparedStep, slot: int) -> list[Any]:
        """Cells of outputs that show that none of a release's takes an event beyond its cap.

        Parameters
        ----------
        engine
            The engine of the query.
        step
            The release as it was prepared.
        slot
            Its slot.

        Returns
        -------
        list
            The field ``caps``.

        Raises
        ------
        InvalidInputError
            Where a cap is not certain to be kept.
        """
        outputs = self._capping.outputs(engine.planner, step.plan, step.epsilon)
        found = dict[tuple[int, int, bool], Any]()
        keys = [
            (one.number, one.prior, is_floor)
            for one in self._keeper.watched
            for is_floor in ([False, True] if one.cap.least > 0 else [False])
        ]
        tables = [""] * sum(bool(members.any()) for _, members in step.noise.each_part())
        cells = self._keeper.cells(outputs, step.epsilon, slot - self._slot)
        for key, (certain, signs) in zip(keys, cells, strict=True):
            if not certain:
                cap = self._settings.caps[key[0]]
                raise InvalidInputError(
                    f"the cap on '{cap.event}' is not shown to be kept by the release of slot {slot}"
                )
            found[key] = tables if engine.settings.mechanism in TABLES else list(signs)
        return [
            found.get((number, prior, is_floor))
            for number in self._watched
            for prior in range(1 + len(self._capping.priors))
            for is_floor in ([False, True] if self._settings.caps[number].least > 0 else [False])
        ]

    def update(self, log_likelihood: FloatArray, slot: int) -> None:
        """Take in a release.

        Parameters
        ----------
        log_likelihood
            ``(N,)``: ``log p(z | s)``.
        slot
            Its slot.
        """
        self._keeper.update(log_likelihood, slot - self._slot)
        self._slot = slot


def chances_of(model: MarkovModel) -> Plain:
    """The probabilities of a model, in the order of the moves and first contexts that its part ``model`` names.

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
    for given in model.transitions:
        matrix = given.sorted_indices()
        ends = zip(matrix.indptr[:-1].tolist(), matrix.indptr[1:].tolist(), strict=True)
        moves.append([_doubles(matrix.data[first:last]) for first, last in ends])
    starts = [begun(model, one) for one in model.starts]
    about = [None if model.states is None else model.states.content_hash]
    if model.time_classes is not None:
        about.append(model.time_classes.content_hash)
    return {"is": "chances", "moves": moves, "start": [_doubles(one[one > 0]) for one in starts], "about": about}


def event_of(automaton: Automaton) -> Plain:
    """An event's automaton: its different layers, how often each follows, and which progress at the end means yes.

    Parameters
    ----------
    automaton
        The automaton, over the contexts of a chain.

    Returns
    -------
    dict
        The part ``event``.
    """
    numbers: dict[int, int] = {}
    layers, times = list[Any](), list[int]()
    for key, some in groupby(automaton.layers, id):
        layer, *_ = same = list(some)
        if key not in numbers:
            numbers[key] = len(layers)
            layers.append(_layer(layer, automaton.size))
        times += [numbers[key], len(same)]
    yes = np.zeros(len(automaton.layers[-1].after), dtype=np.bool_)
    yes[automaton.cut(automaton.event.last).yes] = True
    return {"is": "event", "layers": layers, "times": times, "yes": runs(yes)}


def _layer(layer: Layer, size: int) -> list[Any]:
    found: list[Any] = [[] for _ in layer.before]
    for source, target, where in layer.arcs:
        states: BoolArray = np.zeros(size, dtype=np.bool_)
        states[where] = True
        found[source].append([target, runs(states)])
    return [sorted(arcs) for arcs in found]


def _doubles(values: FloatArray) -> list[int]:
    """Doubles from 0 to 1 as pairs of whole numbers m and k: the double is m / 2**k, in lowest terms."""
    return [part for value in values.tolist() for part in _double(value)]


@lru_cache(maxsize=1 << 16)
def _double(value: float) -> tuple[int, int]:
    m, under = value.as_integer_ratio()
    return m, under.bit_length() - 1
