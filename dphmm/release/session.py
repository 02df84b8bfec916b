"""Durable sessions: the releases about one user over time, each timestep released once.

A crash or a retry does not release a timestep twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arrays import as_instants
from dphmm.errors import (
    BudgetExceededError,
    ConfigurationError,
    DataFileError,
    InvalidInputError,
    SessionMismatchError,
    TimeOrderError,
    WithheldTimestepError,
)
from dphmm.events.cap_budget import CapTracker
from dphmm.model.belief import Belief
from dphmm.release.engine import Releaser, share_filter_state
from dphmm.release.ledger import Account, Ledger
from dphmm.release.record import ReleaseRecord
from dphmm.release.session_limits import Limits
from dphmm.release.session_store import Progress, Pruned, SampledRelease, SessionStore, StoredRelease
from dphmm.release.session_terms import MAIN_QUERY, Agreement, StoredSession, collect_terms
from dphmm.release.step_plan import StepPlan, as_state
from dphmm.space.trajectory import round_to_microseconds
from dphmm.tables.values import shorten
from dphmm.validation import check_arguments

# A timestep: its slot, or an instant within it.
Slot = int | datetime | np.datetime64

_MAX_SLOT = 2**62


def to_slot(slot: Slot, step_seconds: float | None) -> int:
    """Convert a timestep to a slot.

    Parameters
    ----------
    slot
        The slot; or an instant, as a `datetime` with a time zone or a `numpy.datetime64` in UTC. Slots are counted from
        1970. An instant belongs to the timestep that contains it or ends with it, as in
        `dphmm.space.Trajectory.resample`.
    step_seconds
        Length of a timestep; None if unknown.

    Raises
    ------
    InvalidInputError
        If the argument is neither, has no time zone, or is out of range.
    ConfigurationError
        If an instant is passed and the length of a timestep is unknown.
    """
    if isinstance(slot, datetime | np.datetime64):
        if step_seconds is None:
            raise ConfigurationError("slot must be an integer if the model has no step_seconds, got an instant")
        return get_slot(slot, step_seconds)
    if isinstance(slot, bool | np.timedelta64) or not isinstance(slot, int | np.integer) or abs(int(slot)) > _MAX_SLOT:
        raise InvalidInputError(f"slot must be an integer or an instant, got {slot!r}")
    return int(slot)


def get_slot(instant: datetime | np.datetime64, step_seconds: float) -> int:
    """Return the slot of an instant. See `to_slot`."""
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            raise InvalidInputError(f"slot must have a time zone, such as timezone.utc, got {instant.isoformat()}")
        since_1970 = (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    elif not isinstance(instant, np.datetime64):
        raise InvalidInputError(f"slot must be an integer or an instant, got {shorten(instant)}")
    elif np.isnat(instant):
        raise InvalidInputError("slot must be an integer or an instant, got NaT")
    else:
        try:
            since_1970 = int(as_instants(np.asarray(instant)).astype(np.int64))
        except ValueError as problem:
            raise InvalidInputError(f"slot must be an instant, got {shorten(instant)}: {problem}") from None
    return -(-since_1970 // round_to_microseconds(step_seconds, "step"))


def check_time_order(slot: int, last: int | None) -> None:
    """Check that a slot does not precede the last answered one (None if there is none).

    Raises
    ------
    TimeOrderError
        If it does.
    """
    if last is not None and slot < last:
        raise TimeOrderError(f"slot must not precede slot {last}, the last one answered, got {slot}")


# The largest number of JSON characters of a float, of an added edge, and of everything else in a record.
_NUMBER_WIDTH = 26
_EDGE_WIDTH = 44
_RECORD_WIDTH = 1_500


@check_arguments
class Session:
    """The releases about one user, stored in a file. Created by `open`.

    A release checks the limits, samples the noise, and writes the record and the belief after it in one transaction
    with ``synchronous=FULL``. It returns when the transaction is on disk. Hence:

    * every returned record is in the file, and a record that is not in the file was never returned;
    * a timestep that was released is always answered with the stored record, bit for bit, whatever true state is
      passed, and costs nothing again;
    * a process that is killed at any point loses at most a sample that was never disclosed. The same holds for a full
      disk: the next call samples anew, and records have a fixed length, so that a disk error does not depend on the
      sample;
    * of several processes one samples, and the others wait and return its record.

    True states are never written. The file is a function of public information and of the samples.

    Threads can share a session object: their calls wait for each other. A pickled session opens the store again where
    it is unpickled, and continues with the releases of all processes. After a fork, open the session again. It is a
    context manager that closes itself.

    Parameters
    ----------
    store
        The store of the session.
    stored
        The stored session.
    queries
        Mapping from query to engine.
    owns_store
        Whether closing the session closes the store.
    predict_beyond_limits
        Argument of `open`.
    find_partial_recipients
        Argument of `open`.

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
        owns_store: bool,
        predict_beyond_limits: bool | Callable[[], bool] = False,
        find_partial_recipients: Callable[[int, int], Mapping[str, str]] | None = None,
    ) -> None:
        self._predict_beyond_limits = predict_beyond_limits
        self._find_partial_recipients = find_partial_recipients
        self._store = store
        self._owner = owns_store
        self._stored = stored
        self._queries = dict(queries)
        first = self._queries[min(self._queries)]
        share_filter_state([first, *self._queries.values()])
        self._max_window_steps = stored.max_window_steps(first.model.step_seconds)
        self._max_budget_window_steps = stored.max_budget_window_steps(first.model.step_seconds)
        self._account = Pruned().build_account(self._max_window_steps)
        self._cap_state: tuple[int, CapTracker | None] = (0, None)
        self._first: int | None = None
        self._model = first.model
        # They do not change while the session is open: `rewind` amends it, so that it must be opened again.
        self._kept_future = store.find_future_slot_range(stored.number)
        self._first_slot_after_restore = self._find_first_slot_after_restore()
        # An amendment after `rewind` or `prune` can have a longer window, with records that the account lacks.
        last_uncounted_slot = store.last_uncounted_slot(stored.number)
        self._first_slot_after_uncounted = (
            None if last_uncounted_slot is None else last_uncounted_slot + self._max_budget_window_steps
        )

    @classmethod
    @check_arguments
    def open(
        cls,
        path: str | Path | SessionStore,
        name: str,
        releaser: Releaser | Mapping[str, Releaser],
        limits: Limits | None = None,
        wait_seconds: float = 30.0,
        amendment_note: str | None = None,
        predict_beyond_limits: bool | Callable[[], bool] = False,
        find_partial_recipients: Callable[[int, int], Mapping[str, str]] | None = None,
    ) -> Session:
        """Continue the session with a name, or start it if the file contains none.

        Parameters
        ----------
        path
            The file; created if it does not exist. A file holds any number of sessions. An open store can be passed
            instead, and stays open.
        name
            The session, one for each user. Two sessions about one user do not know of each other's spending.
        releaser
            The engine. For several queries at one timestep: a mapping from a name to an engine. The engines must have
            the same model, policy and event caps.
        limits
            Limits on the privacy cost. Defaults to those agreed when the session began; none for a new session.
        wait_seconds
            How long to wait for another process that is writing, unless the store is open already.
        amendment_note
            A note. If the session continues with other settings, they are agreed for the next release and those after
            it; see `SessionStore.agree`. With None, other settings raise an error.
        predict_beyond_limits
            Whether a timestep at which a limit would be exceeded permanently gets a record with the prediction, which
            costs nothing. Otherwise it raises an error, and may be requested again. A function is called at each such
            timestep.
        find_partial_recipients
            Function from the session's number and a slot to the recipients of that release who were not sent all
            previous ones: a mapping from their name to their query. Their beliefs are computed from the releases they
            were sent; see `SessionStore.partial_message`.

        Returns
        -------
        Session
            The session, new or continued.

        Raises
        ------
        SessionMismatchError
            If the session began, or continues, with another model, policy or measurements, other settings or limits, or
            another source of randomness.
        DataFileError
            If the file is not a store of sessions, or is damaged. It stays unchanged.
        OutputError
            If the file cannot be written.
        InvalidInputError
            If the name is empty, or there is no query.
        """
        queries, terms = collect_terms(name, releaser)
        owner = not isinstance(path, SessionStore)
        store = path if isinstance(path, SessionStore) else SessionStore(path, wait_seconds)
        try:
            stored = store.session(name) or store.add(name, terms, limits or Limits())
            if amendment_note is not None:
                stored = store.agree(stored, terms, amendment_note)
            stored.check_same(terms, limits)
            return cls(store, stored, queries, owner, predict_beyond_limits, find_partial_recipients)
        except BaseException:  # an interrupt must close the store, too
            if owner:
                store.close()
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        options = self._predict_beyond_limits, self._find_partial_recipients
        return _reopen, (self._store, self.name, self._queries, self._owner, self._account.count, *options)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Nothing is lost if this is omitted."""
        if self._owner:
            self._store.close()

    # ---- releasing -----------------------------------------------------------------------------------------------

    def release(self, state: int, slot: Slot, epsilon: float | None = None, query: str = MAIN_QUERY) -> ReleaseRecord:
        """Release the true state at a timestep, or return the record of an earlier release of it.

        Parameters
        ----------
        state
            True state. It is ignored if the timestep was released already.
        slot
            The timestep: a slot, or an instant (see `to_slot`). Between two releases the belief advances by the
            difference.
        epsilon
            Budget. Defaults to the engine's. It is ignored if the timestep was released already.
        query
            Query of the session. Queries at one timestep compose (Theorem 7.1): each costs its own budget, and the
            belief before one is the belief after the previous one.

        Returns
        -------
        ReleaseRecord
            The record in the file, which every later call for this timestep returns. If a schedule or event caps leave
            no budget, the timestep is withheld permanently, and the record contains the prediction.

        Raises
        ------
        TimeOrderError
            If the timestep has no release and precedes the last one that has, or was omitted; `WithheldTimestepError`
            if it was omitted itself.
        BudgetExceededError
            If a limit would be exceeded. Nothing is sampled.
        SessionBusyError
            If another process locks the file for longer than `wait_seconds`. Nothing is sampled.
        OutputError
            If the disk does not accept the release because of space, permissions or a failure. The sample is discarded
            unseen, and costs nothing.
        InvalidInputError
            If the session has no such query, or the timestep is invalid; see `to_slot`. Nothing is sampled.
        StateError, BudgetError, SingletonConstraintError
            If `Releaser.release` raises them. Nothing is sampled.
        """
        engine = self._queries.get(query) if isinstance(query, str) else None
        if engine is None:
            raise InvalidInputError(f"query must be one of {', '.join(self._queries)}, got {shorten(query)}")
        as_state(state, engine.model.size)
        slot = self.to_slot(slot)
        with self._lock_session():
            while True:
                progress = self._store.progress(self._stored.number)
                record = self._find_answer(progress, slot, query)
                if record is not None:
                    return record
                # The plan is made before the store is locked. If another process releases meanwhile, it is made again.
                drawn = self._append(self._prepare(query, progress, slot, epsilon), progress, slot, query, state)
                if drawn is not None:
                    self._cap_state = (engine.filter_state.count, engine.filter_state.cap_tracker)
                    return drawn.record

    def omit(self, slot: Slot) -> ReleaseRecord | None:
        """Agree that a timestep has no release, permanently. Return its release if it has one.

        Use it if the user's location must not be released at that timestep and this is disclosed publicly. No query
        is answered at that timestep.

        Parameters
        ----------
        slot
            The slot, or an instant within the timestep.

        Returns
        -------
        ReleaseRecord or None
            The record of the first query of the session; None if the timestep has no release.

        Raises
        ------
        TimeOrderError
            If the timestep has no release and precedes the last one that has, or was omitted.
        SessionBusyError, OutputError
            If `release` would raise them.
        """
        slot = self.to_slot(slot)
        with self._lock_session():
            while True:
                progress = self._store.progress(self._stored.number)
                for query in self._queries:
                    record = self._find_answer(progress, slot, query)
                    if record is not None:
                        return record
                self._check_time(slot, progress)
                self._check_current(progress)
                if slot == progress.omitted_slot or self._store.omit(self._stored.number, progress, slot):
                    return None

    @contextmanager
    def _lock_session(self) -> Iterator[None]:
        """Return a context in which no other thread uses this session or its engines.

        Locks are always taken in the order of engine and store, so that threads cannot wait for each other in a circle.
        """
        self._store.database.check_process()
        with self._queries[min(self._queries)].lock_engines():
            yield

    def _find_answer(self, progress: Progress, slot: int, query: str) -> ReleaseRecord | None:
        """Return the stored record of a slot, or None."""
        # There is nothing to look up after the last release.
        is_kept = self._kept_future is not None and slot <= self._kept_future[1]
        if not is_kept and (progress.slot is None or slot > progress.slot):
            return None
        record = self._store.find(self._stored.number, slot, query)
        if record is None and slot == progress.slot:
            # Another query may have the last release. Its record and those of the same slot must be there: a timestep
            # of which the record was deleted must not be released again.
            for _ in self._store.releases(self._stored.number, progress.count - len(self._queries), progress.count):
                pass
        return record

    def _find_first_slot_after_restore(self) -> int | None:
        """Return the first slot that a restored copy may release, or None if it is not one.

        It shares no window with a timestep that another store may have released.

        Raises
        ------
        SessionMismatchError
            If it is one, and slots have no times.
        """
        restored_at = self._store.get_restored_at()
        if restored_at is None:
            return None
        if self._model.step_seconds is None:
            raise SessionMismatchError(
                f"session {self.name!r} was restored from a copy that may lack releases, so that its model must state "
                "the length of a timestep"
            )
        return to_slot(np.datetime64(restored_at, "s"), self._model.step_seconds) + self._max_budget_window_steps

    def _check_time(self, slot: int, progress: Progress) -> None:
        """Check that a slot without a record may get one."""
        check_time_order(slot, progress.latest_slot)
        first = self._first_slot_after_uncounted
        if first is not None and slot < first:
            raise TimeOrderError(
                f"slot must not precede slot {first}, because the window of a limit or schedule contains releases that "
                f"were pruned or made before the session was rewound, got {slot}"
            )
        first = self._first_slot_after_restore
        if first is not None and slot < first:
            raise TimeOrderError(
                f"slot must not precede slot {first}, because the store was restored from a copy that may lack "
                f"releases, got {slot}"
            )
        if self._kept_future is not None:
            before, after = self._kept_future
            if before - self._max_budget_window_steps < slot < after + self._max_budget_window_steps:
                raise TimeOrderError(f"slot must not be near the slots {before} to {after} of a wrong time, got {slot}")

    def _check_current(self, progress: Progress) -> None:
        if progress.num_amendments != len(self._stored.agreements) - 1:
            raise SessionMismatchError(f"session {self.name!r} was amended in the meantime; open it again")

    def _prepare(self, query: str, progress: Progress, slot: int, epsilon: float | None) -> StepPlan:
        """Prepare the plan within the limits, from public information, before locking the file."""
        self._check_time(slot, progress)
        self._check_current(progress)
        if slot == progress.omitted_slot:
            raise WithheldTimestepError(f"slot {slot} was omitted, so it has no release; release the next one")
        self._catch_up(progress)
        engine = self._queries[query]
        cap_tracker = self._get_cap_tracker(engine, progress, slot)
        engine.resume(progress.belief, progress.count, cap_tracker, self._account, progress.slot)
        if progress.slot is None:
            engine.filter_state.first = slot
        last_slot = engine.filter_state.slot
        step = engine.prepare(epsilon, 0 if last_slot is None else slot - last_slot)
        try:
            self._stored.limits.check(self._account, slot, step.epsilon, step.constrained_dp_factor)
        except BudgetExceededError:
            predicts = self._predict_beyond_limits
            if not (predicts() if callable(predicts) else predicts):
                raise
            return engine.build_plan(step.prior, 0.0, step.steps, "budget")
        return step

    def _get_cap_tracker(self, engine: Releaser, progress: Progress, slot: int) -> CapTracker | None:
        """Return the state of the event caps, after replaying the releases of other processes."""
        if not engine.settings.caps:
            return None
        if progress.count and self._first is None:
            (first,) = self._store.releases(self._stored.number, 0, 1)
            self._first = first.slot
        engine.filter_state.first = slot if self._first is None else self._first
        if self._cap_state[0] != progress.count:
            stored = self._store.releases(self._stored.number, 0, progress.count)
            self._cap_state = (progress.count, replay_caps(self._queries, stored))
        return self._cap_state[1]

    def _append(self, step: StepPlan, progress: Progress, slot: int, query: str, state: int) -> SampledRelease | None:
        """Sample and write a release. Return None if another process released meanwhile."""

        def draw() -> SampledRelease:
            return self._build_sample(query, step, self._queries[query].draw(step, state), slot)

        try:
            return self._store.append(self._stored.number, progress, slot, draw)
        except BaseException:
            # The account may include the sample, which was discarded.
            self._account = Pruned().build_account(self._max_window_steps)
            raise

    def _build_sample(self, query: str, step: StepPlan, record: ReleaseRecord, slot: int) -> SampledRelease:
        beliefs: dict[str, Belief] = {}
        messages: dict[str, str] = {}
        engine = self._queries[query]
        assert engine.belief is not None, "a draw leaves a belief"
        others = (
            {} if self._find_partial_recipients is None else self._find_partial_recipients(self._stored.number, slot)
        )
        for name in (name for name, partial_query in others.items() if partial_query == query):
            number, belief = self._store.partial_belief(self._stored.number, name) or (0, None)
            belief = self._predict_partial_belief(number, belief, slot)
            belief = belief.update(engine.log_likelihood(step, record.released))
            estimate = belief.infer(engine.measurements.by_columns, engine.cell)
            component = engine.planner.summarize_likeliest_component(step, belief)
            message = {
                "estimate": estimate.mean,
                "expected_estimate_error": estimate.mean_error,
                "adversary_error": estimate.error_lower_bound,
                "max_posterior_probability": estimate.max_probability,
                "component_posterior": component.component_posterior,
                "is_unprotected": component.is_unprotected,
                "last_draw_slot": self._find_last_draw_slot(name, query, number) if record.withheld else slot,
            }
            if self._model.calibrated_radii is not None:  # the recipient may not know when the last release was
                hours = inf if record.released is None else 0.0
                message["expected_estimate_error"], message["calibrated_radius_90"] = (
                    self._model.calibrated_radii.apply(estimate.mean_error, hours, engine.settings.schedule is not None)
                )
            beliefs[name] = belief
            messages[name] = json.dumps(message)
        added = len(step.protection.added)
        width = bound_record_width(engine.measurements.dimension, added, len(step.max_event_probabilities))
        return SampledRelease(query, record, width, engine.belief, beliefs, messages)

    def _find_last_draw_slot(self, name: str, query: str, number: int) -> int | None:
        """Return the slot of the last draw that a recipient was sent, or None.

        It is None if their belief is the initial one, or the record is not kept. `number` is the number of releases at
        the time of the belief.
        """
        if number == 0:
            return None
        message = self._store.partial_message(self._stored.number, number - 1, name)
        if message is None:  # they were sent all releases until then
            return self._store.find_last_draw_slot(self._stored.number, query, 0, number)
        last_draw_slot: int | None = json.loads(message).get("last_draw_slot")
        return last_draw_slot

    def _predict_partial_belief(self, number: int, belief: Belief | None, slot: int) -> Belief:
        """Predict the belief of a recipient before a release from that after a number of releases."""
        before = 0 if belief is None else number - 1
        before = max(before, self._store.get_pruned_costs(self._stored.number).count)
        last = min(before + 1, self._store.progress(self._stored.number).count)
        release = next(self._store.releases(self._stored.number, before, last), None)
        last_slot = slot if release is None else release.slot
        return (belief or Belief.initial(self._model, last_slot)).predict(self._model, slot - last_slot, last_slot)

    def _catch_up(self, progress: Progress) -> None:
        """Enter the releases since the last call, by any process, into the account."""
        if progress.count < self._account.count:
            reason = "was replaced by an older copy, or the engine released without the session; open the session again"
            raise DataFileError(self._store.path, reason)
        if progress.count > self._account.count:
            pruned = self._store.get_pruned_costs(self._stored.number)
            if pruned.count > self._account.count:
                self._account = pruned.build_account(self._max_window_steps)
            for slot, _, *cost in self._store.costs(self._stored.number, self._account.count, progress.count):
                self._account.add(slot, *cost)

    # ---- reading -------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the session."""
        return self._stored.name

    @property
    def number(self) -> int:
        """The number of the session in its store."""
        return self._stored.number

    @property
    def agreements(self) -> tuple[Agreement, ...]:
        """The terms agreed at the beginning, and each amendment."""
        return self._stored.agreements

    def agreement_at(self, number: int) -> Agreement:
        """Return the terms of a release.

        Parameters
        ----------
        number
            Index of the release, from 0.

        Returns
        -------
        Agreement
            The terms at that time.
        """
        return self._stored.agreement_at(number)

    @property
    def account(self) -> Account:
        """The cost of all releases so far, by any process. Do not modify it."""
        with self._lock_session():
            self._catch_up(self._store.progress(self._stored.number))
            return self._account

    @property
    def limits(self) -> Limits:
        """The limits of the session."""
        return self._stored.limits

    @property
    def belief(self) -> Belief | None:
        """The public belief after the last release. None before the first."""
        belief = self._store.progress(self._stored.number).belief
        # A belief restored from bytes has no outside states. A prediction by 0 steps adds those of the model.
        return None if belief is None else belief.predict(self._model, 0)

    def releases(self) -> list[StoredRelease]:
        """Return all releases in order.

        Returns
        -------
        list of StoredRelease
            The releases.
        """
        return list(self._store.releases(self._stored.number))

    def ledger(self) -> Ledger:
        """Return the cost of all releases.

        Returns
        -------
        Ledger
            The total cost.
        """
        return Ledger.from_records([release.record for release in self.releases()])

    def find(self, slot: Slot, query: str = MAIN_QUERY) -> ReleaseRecord | None:
        """Return the record of a timestep, or None.

        Parameters
        ----------
        slot
            The slot, or an instant within the timestep.
        query
            The query.

        Returns
        -------
        ReleaseRecord or None
            The record; None if there is none.
        """
        if not isinstance(query, str) or query not in self._queries:
            return None
        return self._store.find(self._stored.number, self.to_slot(slot), query)

    def to_slot(self, slot: Slot) -> int:
        """Convert a timestep to a slot. See `dphmm.release.session.to_slot`.

        Parameters
        ----------
        slot
            The slot, or an instant within the timestep.

        Returns
        -------
        int
            The slot.

        Raises
        ------
        InvalidInputError, ConfigurationError
            See `dphmm.release.session.to_slot`.
        """
        return to_slot(slot, self._model.step_seconds)


def _reopen(
    store: SessionStore,
    name: str,
    queries: Mapping[str, Releaser],
    owns_store: bool,
    count: int,
    predict_beyond_limits: bool | Callable[[], bool],
    find_partial_recipients: Callable[[int, int], Mapping[str, str]] | None,
) -> Session:
    """Open a pickled session in this process. Its releases are those of the store."""
    try:
        stored = store.session(name)
        if stored is None:
            raise DataFileError(store.path, f"must contain session {name!r}, which a pickled session continues")
        if store.progress(stored.number).count < count:
            raise DataFileError(store.path, f"must contain the {count} releases of session {name!r}; restore the file")
        session = Session.open(
            store,
            name,
            queries,
            predict_beyond_limits=predict_beyond_limits,
            find_partial_recipients=find_partial_recipients,
        )
    except BaseException:  # an interrupt must close the store, too
        if owns_store:
            store.close()
        raise
    session._owner = owns_store
    return session


def bound_record_width(dimension: int, edges: int, caps: int = 0) -> int:
    """Return an upper bound on the JSON length of a record with these numbers of elements."""
    return _RECORD_WIDTH + _NUMBER_WIDTH * (2 * dimension + caps) + _EDGE_WIDTH * edges


def replay_caps(queries: Mapping[str, Releaser], releases: Iterable[StoredRelease]) -> CapTracker | None:
    """Return the state of the event caps after stored releases. None without caps.

    Parameters
    ----------
    queries
        Mapping from query to engine. All engines must be about one user and know the slot of the first release.
    releases
        The releases in order, from the first.
    """
    last = None
    for engine in queries.values():
        engine.restart()
    cap_tracker = None
    for count, release in enumerate(releases):
        engine = queries[release.query]
        record = release.record
        steps = 0 if last is None else release.slot - last
        prior = engine.predict(steps)
        likelihood = np.zeros(engine.model.size)
        if record.released is not None:
            step = engine.build_plan(prior, record.epsilon, steps)
            likelihood = engine.log_likelihood(step, record.released)
        cap_tracker = engine.event_caps.update_tracker(engine.filter_state, likelihood, steps)
        engine.resume(prior.update(likelihood), count + 1, cap_tracker, slot=release.slot)
        last = release.slot
    return cap_tracker
