"""What recipients of coarser releases are told: made once for each release, from coarser ones alone, and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from dphmm.markov.guess import best_guess
from dphmm.release.coarser import CoarseReader
from dphmm.release.engine import Releaser
from dphmm.release.store import SessionStore
from dphmm.release.trajectory import degrees_of
from dphmm.serve.told import Told

_REMEMBERED = 64
"""So many readers are kept, each of which remembers its last plan."""


class CoarseReaders:
    """Tells coarser releases, with estimates of whoever has no others.

    Parameters
    ----------
    store
        Where releases are, and what was said of coarser ones.
    engine_of
        User and the hash of settings → an engine of these settings.
    end_of
        The end of a time step.
    budgets
        User → the budgets of coarser releases, from the greatest down.
    """

    def __init__(
        self,
        store: SessionStore,
        engine_of: Callable[[str, str], Releaser],
        end_of: Callable[[int], np.datetime64],
        budgets: Mapping[str, tuple[float, ...]],
    ) -> None:
        self._store, self._engine_of, self._end_of, self._budgets = store, engine_of, end_of, budgets
        self._readers: dict[tuple[str, tuple[float, ...]], CoarseReader] = {}

    def told(self, user: str, session: int, number: int, epsilon: float) -> Told | None:
        """What is told of a release; None where no coarser one was made of it."""
        for earlier in range(self._store.coarse_belief(session, epsilon)[0], number + 1):
            self._say(user, session, earlier, epsilon)
        found = self._store.coarser(session, number, epsilon)
        return None if found is None or found[1] is None else Told.from_json(found[1])

    def _say(self, user: str, session: int, number: int, epsilon: float) -> None:
        """Make what is told of a release, from what was told before."""
        found = self._store.coarser(session, number, epsilon)
        known, belief = self._store.coarse_belief(session, epsilon)
        if found is None or known > number:  # another worker, for a page, said it meanwhile
            return
        (stored,) = self._store.releases(session, number, number + 1)
        steps = 0
        if belief is not None:
            (last,) = self._store.releases(session, known - 1, known)
            steps = stored.slot - last.slot
        engine = self._engine_of(user, stored.record.settings)
        belief = self._reader(user, epsilon, engine).after(belief, found[0], stored.slot, steps)
        guess = best_guess(belief.probabilities, engine.measurements.points)
        space, time = engine.model.space, self._end_of(stored.slot)
        place, estimate = degrees_of(found[0], space) if found[0] else None, degrees_of(guess.mean, space)
        told = Told.coarser(user, time, epsilon, place, estimate, guess.mean_error)
        self._store.say(session, number, epsilon, told.to_json(), belief)

    def _reader(self, user: str, epsilon: float, engine: Releaser) -> CoarseReader:
        budgets = self._budgets[user]
        chain = (engine.settings.epsilon, *budgets[: budgets.index(epsilon) + 1])
        key = engine.settings.content_hash, chain
        if key not in self._readers:
            if len(self._readers) >= _REMEMBERED:
                del self._readers[next(iter(self._readers))]
            self._readers[key] = CoarseReader(engine.another(), chain)
        return self._readers[key]
