"""A durable session: one person's releases over time, each moment released once, whatever crashes or is retried."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import as_instants
from dphmm.errors import (
    BudgetExceededError,
    ConfigurationError,
    DataFileError,
    InvalidInputError,
    OmittedError,
    SessionMismatchError,
    TimeOrderError,
)
from dphmm.events.cap import CapKeeper
from dphmm.model.belief import Belief
from dphmm.model.point_estimate import point_estimate
from dphmm.release.engine import Releaser
from dphmm.release.ledger import Account, Ledger, Limits
from dphmm.release.record import ReleaseRecord
from dphmm.release.session_store import Drawn, Progress, Pruned, SessionStore, StoredRelease
from dphmm.release.session_terms import MAIN_QUERY, Agreed, StoredSession, agreed_on
from dphmm.release.step import PreparedStep
from dphmm.space.trajectory import microseconds
from dphmm.tables.values import shorten

Slot = int | datetime | np.datetime64
"""A time step: its number, or an instant within it."""

_FARTHEST_SLOT = 2**62


def slot_number(slot: Slot, step_seconds: float | None) -> int:
    """The number of a time step.

    Parameters
    ----------
    slot
        The number itself; or an instant, a `datetime` with a time zone or a `numpy.datetime64` in UTC. Steps are
        counted from 1970, and an instant belongs to the one at whose end it lies or that it lies within: the clock of
        `dphmm.space.Trajectory.resample`.
    step_seconds
        How long a step is; None where that is not given.

    Raises
    ------
    InvalidInputError
        When it is neither, has no time zone, or is out of range.
    ConfigurationError
        For an instant, when there is no length of a step.
    """
    if isinstance(slot, datetime | np.datetime64):
        if step_seconds is None:
            raise ConfigurationError("the model has no step_seconds, so instants mean no step; give slot numbers")
        return step_number(slot, step_seconds)
    if isinstance(slot, bool) or not isinstance(slot, int | np.integer) or abs(int(slot)) > _FARTHEST_SLOT:
        raise InvalidInputError(f"slot is {slot!r}; give a whole number or an instant")
    return int(slot)


def step_number(instant: datetime | np.datetime64, step_seconds: float) -> int:
    """The number of the time step that an instant belongs to: see `slot_number`."""
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            raise InvalidInputError(f"slot is {instant.isoformat()} without a time zone; add one, such as timezone.utc")
        since_1970 = (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    elif not isinstance(instant, np.datetime64):
        raise InvalidInputError(f"slot is {shorten(instant)}; give a whole number or an instant")
    elif np.isnat(instant):
        raise InvalidInputError("slot is NaT; give a whole number or an instant")
    else:
        try:
            since_1970 = int(as_instants(np.asarray(instant)).astype(np.int64))
        except ValueError as problem:
            raise InvalidInputError(f"slot is {shorten(instant)}: {problem}") from None
    return -(-since_1970 // microseconds(step_seconds, "step"))


def check_order(slot: int, last: int | None) -> None:
    """Refuse a time step before the last one of which something was said (None where there is none yet).

    Raises
    ------
    TimeOrderError
        Naming both.
    """
    if last is not None and slot < last:
        raise TimeOrderError(f"slot {slot} lies before slot {last}, the last one answered; time does not go back")


_NUMBER_WIDTH, _EDGE_WIDTH, _RECORD_WIDTH = 26, 44, 1_300
"""Characters that a float, an added edge, and all else of a record take in JSON at most."""


@checked
class Session:
    """One person's releases, kept in a file, made by `open`.

    A step checks the limits, draws, writes the record and the belief after it in one transaction with
    ``synchronous=FULL``, and returns when that is on the disk. Hence:

    * what was returned is in the file, and what is not in the file was never returned;
    * a moment that was released is answered by the record of then, bit for bit, whatever true state is
      given, and costs nothing again;
    * a process killed at any point loses at most a draw that no one saw, and so does a disk that is full: the next
      step draws anew, and records of one length make what the disk refuses independent of what was drawn;
    * of several processes one draws and the others wait, and answer with its draw.

    True states are never written: the file is a function of public things and of the draws.

    A session object belongs to the thread and the process that opened it. It is a context manager that closes itself.

    Parameters
    ----------
    store
        Where the session is kept.
    stored
        What is kept of it.
    queries
        Query → its engine.
    owner
        Whether closing the session closes the store.
    predicting
        Whether a moment that the limits leave no budget for gets a record with the prediction.
    listeners
        As of `open`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dphmm import MarkovModel, PolicyGraph, Releaser
    >>> f = [[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]]
    >>> model = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6))
    >>> releaser = Releaser(model, f, PolicyGraph.categorical([0, 1, 1, 2, 2, 2]), epsilon=0.5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Session.open(f"{folder}/a.session", "alice", releaser, Limits(epsilon=1)) as session:
    ...         first = session.release(4, slot=0)
    ...     with Session.open(f"{folder}/a.session", "alice", releaser) as session:
    ...         again = session.release(4, slot=0)
    >>> first == again
    True
    """

    def __init__(
        self,
        store: SessionStore,
        stored: StoredSession,
        queries: Mapping[str, Releaser],
        owner: bool,
        predicting: bool = False,
        listeners: Callable[[int, int], Mapping[str, str]] | None = None,
    ) -> None:
        self._predicting = predicting
        self._listeners = listeners
        self._store = store
        self._owner = owner
        self._stored = stored
        self._queries = dict(queries)
        first = self._queries[min(self._queries)]
        for engine in self._queries.values():
            engine.join(first)  # one belief, and one stand-in for a state that is not possible
        self._longest = stored.longest_window(first.model.step_seconds)
        self._account = Pruned().account(self._longest)
        self._kept: tuple[int, CapKeeper | None] = (0, None)
        self._first: int | None = None
        self._model = first.model

    @classmethod
    @checked
    def open(
        cls,
        path: str | Path | SessionStore,
        name: str,
        releaser: Releaser | Mapping[str, Releaser],
        limits: Limits | None = None,
        wait_seconds: float = 30.0,
        anew: str | None = None,
        predicting: bool = False,
        listeners: Callable[[int, int], Mapping[str, str]] | None = None,
    ) -> Session:
        """Go on with the session of a name, or begin it where the file has none.

        Parameters
        ----------
        path
            The file; made where there is none. One file holds any number of sessions. A store that is open already
            serves too, and stays open.
        name
            The session: one for each person. Two sessions about one person know nothing of each other's spending.
        releaser
            The engine. Several queries at one moment: a name → its engine, all with one model, one policy and the same
            caps on events.
        limits
            What may be spent. Left out: as agreed when the session began, none for a new one.
        wait_seconds
            How long to wait for another process that is writing (unless the store is open).
        anew
            A note. Where the session goes on with other settings, it is agreed anew that its next release, and those
            after it, are made under these: see `SessionStore.agree`. Left out, that is refused.
        predicting
            Whether a moment at which a limit would be passed has a record with the prediction, which costs nothing,
            and has it for good; otherwise it is refused, and may be asked for again.
        listeners
            The number of the session and a time step → readers who are told of it and were not told all before: their
            name → the query of theirs. What is kept for them follows from what they were told: see `SessionStore.said`.

        Raises
        ------
        SessionMismatchError
            When the session began, or goes on, with another model, policy, measurement, other settings, another kind of
            randomness, or other limits.
        DataFileError
            When the file is no store of sessions, or damaged; it is left as it is.
        OutputError
            When the file cannot be written.
        InvalidInputError
            When the name is empty, or there is no query.
        """
        queries, terms = agreed_on(name, releaser)
        owner = not isinstance(path, SessionStore)
        store = path if isinstance(path, SessionStore) else SessionStore(path, wait_seconds)
        try:
            stored = store.session(name) or store.add(name, terms, limits or Limits())
            if anew is not None:
                stored = store.agree(stored, terms, anew)
            stored.check_same(terms, limits)
            return cls(store, stored, queries, owner, predicting, listeners)
        except BaseException:
            if owner:
                store.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file. Nothing is lost by not doing so."""
        if self._owner:
            self._store.close()

    # ---- releasing -----------------------------------------------------------------------------------------------

    def release(self, state: int, slot: Slot, epsilon: float | None = None, query: str = MAIN_QUERY) -> ReleaseRecord:
        """Release the true state of a moment, or say again what was released of that moment.

        Parameters
        ----------
        state
            The true state. It does not matter where the moment was released already.
        slot
            The time step: a number, or an instant (see `slot_of`). Between two releases the belief advances by the
            difference.
        epsilon
            The budget; left out, the engine's. It does not matter where the moment was released already.
        query
            Which of the session's queries. Queries at one moment compose (Theorem 7.1): each costs its own budget, and
            the belief before one is that after the other.

        Returns
        -------
        ReleaseRecord
            As it is in the file, and is read from it by everyone who asks for this moment again. Where a schedule or
            caps on events leave no budget nothing is drawn: it tells the prediction, then and ever after.

        Raises
        ------
        TimeOrderError
            When the moment has no release and lies before the last one that has, or was omitted; an `OmittedError`
            when it was omitted itself.
        BudgetExceededError
            When a limit would be passed; nothing is drawn.
        SessionBusyError
            When another process holds the file for longer than was to be waited; nothing is drawn.
        OutputError
            When the disk refuses the release: no room, no permission, a failure. What was drawn is thrown away unseen,
            and cost nothing.
        StateError, BudgetError, AlreadyKnownError
            As `Releaser.release`; nothing is drawn.
        """
        engine = self._queries.get(query) if isinstance(query, str) else None
        if engine is None:
            raise InvalidInputError(
                f"query {shorten(query)} is not in the session; its queries are {', '.join(self._queries)}"
            )
        engine.check_state(state)
        moment = self.slot_of(slot)
        while True:
            progress = self._store.progress(self._stored.number)
            known = self._found(progress, moment, query)
            if known is not None:
                return known
            drawn = self._append(self._prepare(query, progress, moment, epsilon), progress, moment, query, state)
            if drawn is not None:
                self._kept = (engine.person.count, engine.person.keeper)
                return drawn.record

    def omit(self, slot: Slot) -> ReleaseRecord | None:
        """Agree that a moment has no release, now and ever, unless it has one: then that is said again.

        For a person whose place is not to be released at that moment, and who is told so in public. What is not in
        time's order is refused as by `release`. No query is answered at that moment.

        Parameters
        ----------
        slot
            The time step, or an instant within it.

        Returns
        -------
        ReleaseRecord or None
            What the first of the session's queries was answered with; None for a moment without a release.

        Raises
        ------
        TimeOrderError
            When the moment has no release and lies before the last one that has, or was omitted.
        SessionBusyError, OutputError
            As `release`.
        """
        moment = self.slot_of(slot)
        while True:
            progress = self._store.progress(self._stored.number)
            for query in self._queries:
                known = self._found(progress, moment, query)
                if known is not None:
                    return known
            check_order(moment, progress.latest)
            self._check_current(progress)
            if moment == progress.omitted or self._store.omit(self._stored.number, progress, moment):
                return None

    def _found(self, progress: Progress, slot: int, query: str) -> ReleaseRecord | None:
        """What was released at a time, or None; after the last release there is nothing to be looked for."""
        if progress.slot is None or slot > progress.slot:
            return None
        return self._store.find(self._stored.number, slot, query)

    def _check_current(self, progress: Progress) -> None:
        if progress.amended != len(self._stored.agreed) - 1:
            raise SessionMismatchError(f"session {self.name!r} was agreed on anew meanwhile; open it again")

    def _prepare(self, query: str, progress: Progress, slot: int, epsilon: float | None) -> PreparedStep:
        """The step as far as it is public, within the limits; before the file is locked."""
        check_order(slot, progress.latest)
        self._check_current(progress)
        if slot == progress.omitted:
            raise OmittedError(f"slot {slot} was omitted: that it has no release was said; release the next one")
        self._catch_up(progress)
        engine = self._queries[query]
        keeper = self._known(engine, progress, slot)
        engine.resume(progress.belief, progress.count, keeper, self._account, progress.slot)
        if progress.slot is None:
            engine.person.first = slot
        known = engine.person.slot
        step = engine.prepare(epsilon, 0 if known is None else slot - known)
        try:
            self._stored.limits.check(self._account, slot, step.epsilon, step.constrained_factor)
        except BudgetExceededError:
            if not self._predicting:
                raise
            return engine.prepare_nothing(step.prior, step.steps, "budget")
        return step

    def _known(self, engine: Releaser, progress: Progress, slot: int) -> CapKeeper | None:
        """What the releases so far told of capped events; they are gone through again where others made some."""
        if not engine.settings.caps:
            return None
        if progress.count and self._first is None:
            (first,) = self._store.releases(self._stored.number, 0, 1)
            self._first = first.slot
        engine.person.first = slot if self._first is None else self._first
        if self._kept[0] != progress.count:
            stored = self._store.releases(self._stored.number, 0, progress.count)
            self._kept = (progress.count, replay_caps(self._queries, stored))
        return self._kept[1]

    def _append(self, step: PreparedStep, progress: Progress, moment: int, query: str, state: int) -> Drawn | None:
        """Draw and write; None where another process was faster."""

        def draw() -> Drawn:
            return self._drawn(query, step, self._queries[query].draw(step, state), moment)

        try:
            return self._store.append(self._stored.number, progress, moment, draw)
        except BaseException:
            self._account = Pruned().account(self._longest)  # what was drawn may be in it, and was thrown away
            raise

    def _drawn(self, query: str, step: PreparedStep, record: ReleaseRecord, moment: int) -> Drawn:
        beliefs, said, engine = {}, {}, self._queries[query]
        assert engine.belief is not None, "a draw leaves a belief"
        others = {} if self._listeners is None else self._listeners(self._stored.number, moment)
        for name in (name for name, own in others.items() if own == query):
            known = self._listened(name, moment).update(engine.log_likelihood(step, record.released))
            guess = point_estimate(known.probabilities, engine.measurements.by_columns, engine.cell, known.beyond)
            told = {"estimate": guess.mean, "estimate_radius": guess.mean_error}
            if self._model.held_radii is not None:  # since their last draw it may be longer than for others
                hours = inf if record.released is None else 0.0
                factor = self._model.held_radii.factor(hours, engine.settings.schedule is not None)
                told["held_radius"] = factor * guess.mean_error
            beliefs[name], said[name] = known, json.dumps(told)
        added = len(step.plan.protection.added)
        width = record_width(engine.measurements.dimension, added, len(step.reach))
        return Drawn(query, record, width, engine.belief, beliefs, said)

    def _listened(self, name: str, moment: int) -> Belief:
        """The belief before a release of a reader who was not told everything: a prediction since they were."""
        number, belief = self._store.reader(self._stored.number, name) or (0, None)
        before = 0 if belief is None else number - 1
        before = max(before, self._store.pruned(self._stored.number).count)
        last = min(before + 1, self._store.progress(self._stored.number).count)
        told = next(self._store.releases(self._stored.number, before, last), None)
        slot = moment if told is None else told.slot
        return (belief or Belief.first(self._model, slot)).predict(self._model, moment - slot, slot)

    def _catch_up(self, progress: Progress) -> None:
        """Enter what was released since, here or by other processes, into the account."""
        if progress.count < self._account.count:
            raise DataFileError(self._store.path, "was replaced by an older copy; open the session anew")
        if progress.count > self._account.count:
            pruned = self._store.pruned(self._stored.number)
            if pruned.count > self._account.count:
                self._account = pruned.account(self._longest)
            for slot, _, *cost in self._store.costs(self._stored.number, self._account.count, progress.count):
                self._account.add(slot, *cost)

    # ---- asking --------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The session's name."""
        return self._stored.name

    @property
    def number(self) -> int:
        """The session's number in its store."""
        return self._stored.number

    @property
    def agreed(self) -> tuple[Agreed, ...]:
        """What it was agreed on when it began, and whenever it was agreed on anew."""
        return self._stored.agreed

    def agreed_at(self, number: int) -> Agreed:
        """What a release, of which this is the number, was made under.

        Parameters
        ----------
        number
            The number of a release, from 0.

        Returns
        -------
        Agreed
            The terms then.
        """
        return self._stored.agreed_at(number)

    @property
    def account(self) -> Account:
        """What all releases so far have spent, made here or by other processes. Not to be changed."""
        self._catch_up(self._store.progress(self._stored.number))
        return self._account

    @property
    def limits(self) -> Limits:
        """What may be spent."""
        return self._stored.limits

    @property
    def belief(self) -> Belief | None:
        """The public belief after the last release; None before the first."""
        known = self._store.progress(self._stored.number).belief
        return None if known is None else known.predict(self._model, 0)

    def releases(self) -> list[StoredRelease]:
        """Everything that was released, in its order.

        Returns
        -------
        list of StoredRelease
            All releases, in their order.
        """
        return list(self._store.releases(self._stored.number))

    def ledger(self) -> Ledger:
        """What it cost.

        Returns
        -------
        Ledger
            What all releases of the session cost.
        """
        return Ledger.from_records([release.record for release in self.releases()])

    def find(self, slot: Slot, query: str = MAIN_QUERY) -> ReleaseRecord | None:
        """What was released of a moment, or None.

        Parameters
        ----------
        slot
            The time step, or an instant within it.
        query
            The query.

        Returns
        -------
        ReleaseRecord or None
            The record; None where there is none.
        """
        if not isinstance(query, str) or query not in self._queries:
            return None
        return self._store.find(self._stored.number, self.slot_of(slot), query)

    def slot_of(self, slot: Slot) -> int:
        """The number of a time step: see `dphmm.release.session.slot_number`.

        Parameters
        ----------
        slot
            The number, or an instant within the time step.

        Returns
        -------
        int
            The number.
        """
        return slot_number(slot, self._model.step_seconds)


def record_width(dimension: int, edges: int, caps: int = 0) -> int:
    """The length at most of the JSON text of a record with these numbers of coordinates, added edges and caps."""
    return _RECORD_WIDTH + _NUMBER_WIDTH * (2 * dimension + caps) + _EDGE_WIDTH * edges


def replay_caps(queries: Mapping[str, Releaser], releases: Iterable[StoredRelease]) -> CapKeeper | None:
    """What stored releases told of the capped events, gone through one after another; None where there are none.

    Parameters
    ----------
    queries
        Query → its engine; all are about one person, and know when the first release was.
    releases
        In their order, from the first.
    """
    last = None
    for engine in queries.values():
        engine.restart()
    keeper = None
    for count, release in enumerate(releases):
        engine, record = queries[release.query], release.record
        steps = 0 if last is None else release.slot - last
        prior = engine.prior(steps)
        likelihood = np.zeros(engine.model.size)
        if record.released is not None:
            step = engine.prepare_on(prior, engine.plan(prior), record.epsilon, steps)
            likelihood = engine.log_likelihood(step, record.released)
        keeper = engine.capping.updated(engine.person, likelihood, steps)
        engine.resume(prior.update(likelihood), count + 1, keeper, slot=release.slot)
        last = release.slot
    return keeper
