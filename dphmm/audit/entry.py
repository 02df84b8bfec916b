"""Entering a zone: what the last open release before it gives away of where in the zone a person is.

An open release tells everybody where the person was, so that a step later few places of a zone are possible. The noise
of that moment is measured for those few alone: it is the weakest moment of a zone. A buffer of places from which the
zone is entered moves it to a place that need not be hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, check_epsilon, random_source
from dphmm.audit.facts import Facts, named
from dphmm.errors import InvalidInputError
from dphmm.geometry.measurements import Measurements
from dphmm.markov.belief import Belief
from dphmm.markov.model import MarkovModel
from dphmm.policy.graph import PolicyGraph
from dphmm.release.engine import Releaser

ENTRIES = 100
"""At most this many ways into zones are looked at, at equal steps through all; fewer of many states."""
_LOOKS = 100_000
"""At most about so many ways times states, but for the first few."""
_FEWEST = 16

_DRAWS = 64
_SEED = 5
"""Draws for each place come from a generator of its own: an audit says the same each time."""


@dataclass(frozen=True)
class Entry:
    """Entering from one open place: what a release from there, and the next one from a zone, tell.

    Parameters
    ----------
    place
        The open state of the last open release.
    zone
        The policy's component that is entered.
    cells
        How many of its states can follow.
    before
        How probable the likeliest of them is to whoever knows that the zone was entered, before any noise is drawn.
    after
        How probable the true one is after the first release from the zone: a level that nine in ten draws stay below.
    """

    place: int
    zone: int
    cells: int
    before: float
    after: float


@dataclass(frozen=True, eq=False)
class EntryAudit:
    """All ways into the zones of a policy with open places.

    Parameters
    ----------
    epsilon
        The budget of the first release from a zone.
    components
        ``(N,)``: the policy's components; see `dphmm.PolicyGraph.components`.
    open
        ``(N,)``: which states are open.
    entries
        One for each way that was looked at, the one that tells most first.
    ways
        How many there are: open places, each with a zone that one step leads into.
    """

    epsilon: float
    components: IntArray = field(repr=False)
    open: BoolArray = field(repr=False)
    entries: tuple[Entry, ...] = field(repr=False)
    ways: int

    @property
    def worst(self) -> float:
        """The highest level of `Entry.after`; 0 where there is no way in."""
        return max((entry.after for entry in self.entries), default=0.0)

    def in_words(self) -> str:
        """What entering tells, in a sentence."""
        zones, count = len({entry.zone for entry in self.entries}), len(self.entries)
        if not self.entries:
            return "No open place leads into a zone in one step."
        median = float(np.median([entry.after for entry in self.entries]))
        looked = "" if count == self.ways else f" ({count:,} of them were looked at)"
        return (
            f"One step leads from open places into {zones:,} zone{'s' * (zones > 1)} in {self.ways:,} ways{looked}: "
            f"after the first release from there, nine draws in ten leave the true place at most {median:.2f} probable "
            f"at the median way in, {self.worst:.2f} at the worst. A buffer moves this moment out of the zone."
        )

    def facts(self, names: Sequence[str]) -> Facts:
        """As plain values for JSON: states by name."""
        return {
            "open": int(self.open.sum()),
            "ways": self.ways,
            "worst": self.worst,
            "in_words": self.in_words(),
            "entries": [
                {"from": named([entry.place], names)[0], "into": self._zone(entry, names), **_numbers(entry)}
                for entry in self.entries
            ],
        }

    def _zone(self, entry: Entry, names: Sequence[str]) -> str:
        first = int(np.argmax(self.components == entry.zone))
        return f"zone of {int((self.components == entry.zone).sum())} states with {names[first]}"


def _numbers(entry: Entry) -> Facts:
    return {"cells": entry.cells, "before": entry.before, "after": entry.after}


@checked
def audit_entries(
    graph: PolicyGraph, f: npt.ArrayLike | Measurements, model: MarkovModel, epsilon: float = 1.0
) -> EntryAudit:
    """What is told of people who enter a zone, one step after an open release.

    Parameters
    ----------
    graph, f
        A policy with open states over ``N`` states, and their measurements ``(N, d)``.
    model
        How people move.
    epsilon
        The budget of the first release from the zone, drawn by the exact mechanism with noise by component.

    Raises
    ------
    BudgetError
        When epsilon is not positive and finite.
    InvalidInputError
        When policy and model differ in the number of states.

    Examples
    --------
    >>> corner = PolicyGraph.categorical([0, 0, -1, -1]).with_open([2, 3])
    >>> line = MarkovModel([[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0.5, 0, 0.5], [0, 0, 0.5, 0.5]], np.full(4, 0.25))
    >>> found = audit_entries(corner, [[0], [1], [2], [3]], line)
    >>> [(entry.place, entry.cells, entry.before) for entry in found.entries]
    [(2, 1, 1.0)]
    """
    check_epsilon(epsilon)
    measurements = graph.check_measurements(f)
    if model.size != graph.size:
        raise InvalidInputError(f"the model has {model.size} states and the policy {graph.size}; they must agree")
    labels, open_ = graph.components(), graph.open
    matrix = model.transition
    zones = csr_array((np.ones(graph.size), labels, np.arange(graph.size + 1)))[~open_]
    places, into = (matrix[:, ~open_] @ zones).nonzero()
    places, into = places[open_[places]], into[open_[places]]
    order = np.lexsort((into, places))
    some = order
    most = min(ENTRIES, max(_FEWEST, _LOOKS // graph.size))
    if len(order) > most:
        some = order[np.linspace(0, len(order) - 1, most).astype(np.int64)]
    engine = Releaser(model, measurements, graph, epsilon, calibration="component", allow_known=True)
    found: list[Entry] = []
    for place in np.unique(places[some]).tolist():
        row = np.zeros(graph.size)
        entries = slice(matrix.indptr[place], matrix.indptr[place + 1])
        row[matrix.indices[entries]] = matrix.data[entries]
        found += _entries(engine, place, row, labels, into[some][places[some] == place].tolist())
    return EntryAudit(epsilon, labels, open_, tuple(sorted(found, key=lambda entry: -entry.after)), len(order))


def _entries(engine: Releaser, place: int, row: FloatArray, labels: IntArray, zones: Sequence[int]) -> list[Entry]:
    """Some zones that are entered from a place by a row of the model's matrix."""
    prior = Belief.of(row)
    step = engine.prepare_on(prior, engine.plan(prior), float(engine.settings.epsilon), 1)
    assert step.mechanism is not None, "nothing is withheld without a schedule"
    found, rng = [], np.random.default_rng(_SEED)
    source = random_source(rng)
    for zone in zones:
        cells = np.flatnonzero((labels == zone) & (row > 0))
        weights = row[cells] / row[cells].sum()
        probabilities = []
        for state in rng.choice(cells, _DRAWS, p=weights).tolist():
            released = engine.query.place(engine.query.draw(step.mechanism, state, source))
            probabilities.append(float(prior.update(engine.log_likelihood(step, released)).probabilities[state]))
        found.append(Entry(place, zone, len(cells), float(weights.max()), float(np.quantile(probabilities, 0.9))))
    return found
