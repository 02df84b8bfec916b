"""What is known of each release's time once all releases of its person are there."""

from __future__ import annotations

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.audit.sequence import ReleasedSequence, replay_sequence
from dphmm.errors import InvalidInputError
from dphmm.markov import Belief, MarkovModel, Observations, filter_releases
from dphmm.markov.guess import best_guess
from dphmm.markov.inference import smoothed_rows
from dphmm.markov.passes import Rows
from dphmm.release.engine import Releaser


class Heard:
    """What the releases of one person say, taken down while they are made, so that nobody need replay them.

    Parameters
    ----------
    model
        The model that they are made with.
    most
        How many there are at most: memory is taken for so many.
    """

    def __init__(self, model: MarkovModel, most: int) -> None:
        self._model = model
        self._told = np.empty((most, model.size))
        self._after = Rows(np.empty((most, model.chain_size)))
        self._slots: list[int] = []

    def take(self, engine: Releaser) -> None:
        """Take down the last release of an engine, which knows the time step that it is of.

        Raises
        ------
        InvalidInputError
            When it has made none, or does not know.
        """
        person, t = engine.person, len(self._slots)
        if person.told is None or person.belief is None or person.slot is None:
            raise InvalidInputError("the engine has made no release whose time step it knows")
        self._told[t], self._after[t] = person.told, person.belief.masses
        self._slots.append(person.slot)

    def in_hindsight(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What `in_hindsight` finds of the same releases, of at least one."""
        slots = np.array(self._slots)
        observed = Observations(self._told[: len(slots)], np.diff(slots, prepend=slots[0]), int(slots[0]))
        return _guessed(self._model, observed, self._after.part(0, len(slots)), points)


def in_hindsight(releaser: Releaser, sequence: ReleasedSequence) -> tuple[FloatArray, FloatArray]:
    """What the public adversary knows of each release's time once all of a sequence are there; they are replayed.

    Parameters and errors are those of `dphmm.audit.sequence.audit_sequence`, which finds more.

    Returns
    -------
    error, certainty
        ``(T,)`` each: the expected distance of the best guess, in the unit of the measurements, and the probability of
        the most probable state; see `dphmm.markov.guess.Guess`.
    """
    model, count = releaser.model, len(sequence)
    told, after = np.empty((count, model.size)), Rows(np.empty((count, model.chain_size)))
    for t, replay in enumerate(replay_sequence(releaser, sequence)):
        told[t], after[t] = replay.log_likelihood, replay.posterior.masses
    observed = Observations(told, np.asarray(sequence.steps), sequence.first)
    if np.any(sequence.begins[1:]):  # whoever replays it has filtered it, but for what they forgot on the way
        after = filter_releases(model, observed).rows
    return _guessed(model, observed, after, releaser.measurements.points)


def _guessed(
    model: MarkovModel, observed: Observations, filtered: Rows, points: FloatArray
) -> tuple[FloatArray, FloatArray]:
    rows = smoothed_rows(model, observed, filtered)
    error, certainty = np.empty((2, len(observed)))
    for t, values in enumerate(rows.values):
        known = values if model.contexts is None else Belief.owning(rows[t], model.contexts).probabilities
        guess = best_guess(known, points)
        error[t], certainty[t] = guess.least_error, guess.certainty
    return error, certainty
