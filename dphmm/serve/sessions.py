"""Sessions of the relay's users, on one thread that releases fixes and reads releases.

The engines of the zones that users draw are cached here, too.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from math import nan
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import numpy as np

from dphmm import errors
from dphmm.jobs.model.loading import load_model
from dphmm.jobs.model.training_users import find_training_users, refuse_training_users
from dphmm.model.model import MarkovModel
from dphmm.release.database_backends import is_server
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.session import get_slot
from dphmm.release.session_store import SessionStore, StoredRelease
from dphmm.release.session_terms import MAIN_QUERY, StoredSession
from dphmm.release.session_zones import Zones, build_default_zones
from dphmm.release.trajectory_release import FixFilter, RecordedReleaseStream, locate_release, to_degrees
from dphmm.serve.clock import get_current_second
from dphmm.serve.config import Recipient, RelayConfig
from dphmm.serve.device_tables import DeviceTables
from dphmm.serve.devices_and_recipients import Access, AccessTable
from dphmm.serve.incoming_messages import Fix, Received, to_seconds
from dphmm.serve.login_table import LoginTable
from dphmm.serve.map_adversary import build_map_model
from dphmm.serve.outgoing_messages import Message
from dphmm.serve.precision_grid import PrecisionGrid
from dphmm.serve.recipient_tables import FOREVER, Lease, RecipientState, RecipientTables
from dphmm.space.fix_quality import INACCURATE, REASONS, find_refused, select_most_accurate
from dphmm.tables import iso_time
from dphmm.tables.json_toml import parse_json

_ENGINE_CACHE_SIZE = 256  # each engine keeps its last plan
_MESSAGE_CACHE_SIZE = 64  # releases with messages kept for the next recipient
# Fixes of one message that are released before the messages of other users have their turn.
_MAX_FIXES_PER_TURN = 4
_CONTACT_INTERVAL_S = 30.0
_CLOCK_INTERVAL_S = 30
# A relay that was off for longer needs `dphmm serve confirm-clock`. A clock that starts in a wrong year is refused.
_MAX_CLOCK_JUMP_S = 30 * 86400
_MAX_CLOCK_DIFFERENCE_S = 86400  # between the clocks of a new relay and of a phone that agree
_PROBE_INTERVAL_S = 1.0
# Size of a release: of its record, and of the belief, which is stored with it.
_PROBE_BYTES = 8_000
_BYTES_PER_STATE = 9
_ACCEPT_HINT = "; pass --accept-changes to continue all sessions under the settings of the file"
_MAX_TURN_S = 60.0
_TURN_POLL_S = 0.01
# Outcome of a location, as the user's own page shows it → outcome that is counted.
_COUNTED_OUTCOMES = {
    **dict.fromkeys(("released", "duplicate"), "released"),
    **dict.fromkeys(("withheld", "limit", "late", "outside"), "unreleased"),
    "ahead": "ahead",
    "clock": "clock",
    "refused": "refused",
}

_LOG = logging.getLogger(__name__)

Value = TypeVar("Value")


class Engines:
    """Engines of one model, one for each set of zones that a session uses.

    Parameters
    ----------
    base : ReleaseSettings
        Settings of the relay.
    model : MarkovModel
        The model.
    map_model : MarkovModel, optional
        Model of an adversary who has a map, see `dphmm.serve.map_adversary`. No release depends on it.
    """

    def __init__(self, base: ReleaseSettings, model: MarkovModel, map_model: MarkovModel | None = None) -> None:
        self._base = base
        self.model = model
        self.map_model = map_model
        # Return the engine of a note, or that of the relay's settings for an empty note. Use `spawn` on it.
        self.engine: Callable[[str], Releaser] = lru_cache(_ENGINE_CACHE_SIZE)(self._make_engine)

    @classmethod
    def from_config(cls, config: RelayConfig) -> Engines:
        """Create the engines of a relay's file.

        Raises
        ------
        DphmmError
            If the file cannot be served.
        """
        model = load_model(config.model)
        engines = cls(config.release, model, build_map_model(config, model))
        engines.engine("")  # raises if the policy cannot be read
        build_default_zones(config.release)  # raises if a zone has the name that means no zone
        return engines

    def build_settings(self, note: str) -> ReleaseSettings:
        """Return the release settings that a note specifies.

        Raises
        ------
        ConfigurationError
            See `dphmm.release.session_zones.Zones.apply_to`.
        """
        zones = Zones.from_note(note)
        return self._base if zones is None else zones.apply_to(self._base)

    def can_continue(self, session: StoredSession, config: RelayConfig) -> bool:
        """Return whether a session can continue under the present file, from hashes."""
        now = self.build_settings(session.agreements[-1].note).content_hash
        same = {query: terms.settings_hash for query, terms in session.terms.items()}
        of_model = all(
            terms.model == self.model.content_hash and terms.randomness == "system" for terms in session.terms.values()
        )
        return of_model and same == {MAIN_QUERY: now} and config.limits in (None, session.limits)

    def get_next_engine(self, session: StoredSession) -> Releaser:
        """Return the engine of a session's next release."""
        return self.engine(session.agreements[-1].note)

    def _make_engine(self, note: str) -> Releaser:
        engine = self.build_settings(note).engine(self.model)
        if not note and engine.first_step_is_user_independent:
            # The first plan of every new user is the same. Prepare it once.
            with suppress(errors.SingletonConstraintError):
                engine.prepare()
        return engine


def check_sessions(config: RelayConfig, accept_changes: bool = False) -> None:
    """Refuse a configuration that a relay could not serve, without writing.

    Another relay may serve the store meanwhile.

    Parameters
    ----------
    config, accept_changes
        See `Sessions`.

    Raises
    ------
    DphmmError
        See `Sessions`.
    """
    engines = Engines.from_config(config)
    if not is_server(config.store) and not Path(config.store).exists():
        return
    with SessionStore(config.store, readonly=True) as store:
        for user in config.users:
            stored = store.session(user)
            if stored is not None and not (accept_changes or engines.can_continue(stored, config)):
                raise errors.ConfigurationError(f"session {user!r} has other settings or limits{_ACCEPT_HINT}")


# Counted outcomes of the fixes of a message: those that are public, or known without inspecting the location.
#
# ``released`` fixes belong to timesteps that have a release, new or earlier. ``unreleased`` fixes do not: their
# timestep is withheld, they lie outside the region where such locations are dropped, they are older than the last
# release, they exceed what the user may spend, they are invalid or inaccurate, or another fix of their timestep and
# message is more accurate. The reason why a timestep has no release can reveal where the user was. Therefore these
# reasons are not counted separately. Fixes of an ``other_device`` are dropped, because the preferred device of the user
# is not silent. Fixes too far ``ahead`` in the future are dropped, and so are fixes beyond the last time kept while the
# relay's ``clock`` is doubtful. Fixes are ``refused`` if the model was trained on the user. The other outcomes concern
# entries that are not locations: see `dphmm.serve.incoming_messages.RejectReason`.
OUTCOMES = (
    "released",
    "unreleased",
    "other_device",
    "ahead",
    "clock",
    "refused",
    "malformed",
    "no_timezone",
    "encrypted",
)


class _UsersWithPredictions(Container[str]):
    """Users with a recipient of predictions for withheld timesteps."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def __contains__(self, user: object) -> bool:
        return isinstance(user, str) and self._access.has_predictions(user)


class Sessions:
    """Releases fixes and reads releases one after another on a separate thread.

    Parameters
    ----------
    config : RelayConfig
        Configuration of the relay.
    accept_changes : bool
        Whether sessions that began under other settings continue under those of the file.

    Attributes
    ----------
    is_shared : bool
        Whether other processes may release to the same store.
    last_contacts : dict
        Last post of each user's phone, for the user's own page: the second ``at`` which it came, the ``time`` of the
        location and its ``outcome``.
    started_at : int
        Second at which this process started.
    access : Access
        Devices, pages and recipients.
    stream, database, tables, engines
        The sessions, their database, the tables of recipients, and the engines. Use them in work passed to `run` only,
        except for the settings and the model of the engines.

    Raises
    ------
    DphmmError
        If the model, the policy or the store cannot be used. Raised before anything is served.
    """

    def __init__(self, config: RelayConfig, accept_changes: bool = False) -> None:
        self._config = config
        self._accept_changes = accept_changes
        self._thread = ThreadPoolExecutor(1, "dphmm-sessions")
        self._turns: dict[str, asyncio.Lock] = {}
        self._probed_at = -_PROBE_INTERVAL_S
        self._is_available = False
        self._recorded_contacts: dict[str, tuple[float, set[str]]] = {}
        self._last_draw_slots: dict[tuple[int, str], tuple[int, int | None]] = {}
        self.last_contacts: dict[str, dict[str, Any]] = {}
        self.started_at = get_current_second()
        self._newest: dict[str, int] = {}
        self._kept_clock: int | None = None
        self._prepared: set[str] = set()
        self.access = Access(config)
        self.is_shared = is_server(config.store)
        self._to_close: list[Callable[[], None]] = []
        try:
            self._thread.submit(self._open).result()
        except BaseException:  # an interrupt must close the store, too
            self.close()
            raise

    def close(self) -> None:
        """Finish pending work and close the store."""
        while self._to_close:
            self._thread.submit(self._to_close.pop()).result()
        self._thread.shutdown()

    async def run(self, work: Callable[..., Value], *arguments: object) -> Value:
        """Run a function on the sessions' thread.

        Parameters
        ----------
        work : callable
            The function.
        *arguments
            Its arguments.

        Returns
        -------
        object
            Its return value.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *arguments))

    async def take(self, user: str, received: Received, device: str) -> Counter[str]:
        """Release the locations of a user's message in order of time.

        When this returns, every release is on disk.

        Parameters
        ----------
        user : str
            The user.
        received : Received
            Content of the message.
        device : str
            Name of the device that posts, see `dphmm.serve.devices_and_recipients.Source`.

        Returns
        -------
        Counter
            Number of entries by outcome, see `OUTCOMES`.

        Raises
        ------
        errors.SessionBusyError, errors.SessionMismatchError, DataFileError
            If the store cannot accept them now.
        """
        others: Counter[str] = Counter(received.rejected)
        fixes, invalid, inaccurate = self._select_best_fixes(received.fixes)
        outcome = others + Counter(unreleased=len(received.fixes) - len(fixes))
        async with self._take_turn(user):
            preferred = self.access.preferred.get(user)
            if preferred is not None and received.fixes:
                silence_s = self._config.preferred_silence_seconds
                if not await self.run(self.device_tables.admit, user, device, preferred, silence_s):
                    return others + Counter(other_device=len(received.fixes))
            second = get_current_second()
            for start in range(0, len(fixes), _MAX_FIXES_PER_TURN):
                turn = fixes[start : start + _MAX_FIXES_PER_TURN]
                outcome += await self.run(self._release_fixes, user, turn, second)
            if received.fixes or others:
                separate = {"invalid": invalid, "inaccurate": inaccurate}
                separate |= {name: outcome[name] for name in ("ahead", "clock", "refused")}
                outcomes = {"accepted": len(received.fixes) - sum(separate.values()), **separate, **others}
                await self._record_contact(user, second, {name: count for name, count in outcomes.items() if count})
        return outcome

    async def _record_contact(self, user: str, second: int, outcomes: Mapping[str, int]) -> None:
        """Record a message, or at most two a minute with equal outcomes by one process."""
        recorded_at, names = self._recorded_contacts.get(user, (-_CONTACT_INTERVAL_S, set()))
        if self.is_shared or monotonic() - recorded_at >= _CONTACT_INTERVAL_S or names != set(outcomes):
            self._recorded_contacts[user] = monotonic(), set(outcomes)
            await self.run(self.device_tables.record_contact, user, second, outcomes)

    def _select_best_fixes(self, fixes: Sequence[Fix]) -> tuple[list[Fix], int, int]:
        """Return the most accurate fix of each timestep, and numbers of refused fixes.

        They are the numbers of invalid and of inaccurate fixes. The rule is that of files; see
        `dphmm.space.fix_quality`.
        """
        ordered = sorted(fixes, key=lambda fix: fix.time)
        accuracy = np.array([nan if fix.accuracy_m is None else fix.accuracy_m for fix in ordered])
        reasons = find_refused(
            np.array([fix.latitude for fix in ordered]),
            np.array([fix.longitude for fix in ordered]),
            accuracy,
            np.array([fix.is_valid for fix in ordered], dtype=np.bool_),
            self.engines.model.space,
            self._config.max_accuracy_m,
        )
        num_inaccurate = int((reasons == REASONS.index(INACCURATE)).sum())
        num_invalid = int((reasons >= 0).sum()) - num_inaccurate
        usable = np.flatnonzero(reasons < 0)
        slots = [get_slot(ordered[index].time, self.engines.model.step) for index in usable]
        best = usable[select_most_accurate(np.array(slots, dtype=np.int64), accuracy[usable])]
        return [ordered[index] for index in best.tolist()], num_invalid, num_inaccurate

    @asynccontextmanager
    async def _take_turn(self, user: str) -> AsyncIterator[None]:
        """Exclude other messages of a user, which could make older fixes too late."""
        async with self._turns.setdefault(user, asyncio.Lock()):
            if not self.is_shared:
                yield
                return
            until = monotonic() + _MAX_TURN_S
            name = f"user {user}"  # differs from the names that `dphmm.serve.broker.Shares` locks
            while not await self.run(self.database.try_lock, name):
                if monotonic() > until:
                    raise errors.SessionBusyError("another message of this user takes too long; send it again")
                await asyncio.sleep(_TURN_POLL_S)
            try:
                yield
            finally:
                with suppress(errors.OutputError):  # if the connection is lost, the turn has ended with it
                    await self.run(self.database.unlock, name)

    async def is_store_available(self) -> bool:
        """Return whether the store accepts a release, by writing as many bytes to it.

        The result is valid for a second, so that frequent requests do not occupy the disk.
        """
        if monotonic() - self._probed_at >= _PROBE_INTERVAL_S:
            try:
                await self.run(
                    self.recipient_tables.write_probe, _PROBE_BYTES + _BYTES_PER_STATE * self.engines.model.size
                )
                self._is_available = True
            except errors.DphmmError:
                self._is_available = False
            self._probed_at = monotonic()
        return self._is_available

    # ---- for work that is passed to `run` ------------------------------------------------------------------------

    def get_sending_start(self, recipient: Recipient, user: str) -> int:
        """Return the second from which a recipient is sent locations, possibly `FOREVER`."""
        state = self._get_state(recipient, user)
        return FOREVER if state is None or state.is_absent else state.paused_until

    def claim_deliveries(
        self, max_per_recipient: int, keys: Collection[str], users: Collection[str] = ()
    ) -> list[tuple[Recipient, Lease]]:
        """Lease unsent releases to this process.

        Parameters
        ----------
        max_per_recipient : int
            Maximum number of leases of each recipient.
        keys : collection of str
            Keys of the recipients. Another process may know recipients that this one does not know yet.
        users : collection of str
            Users whose releases are leased; all if empty.

        Returns
        -------
        list of tuple
            Recipients and leases.
        """
        recipients = {recipient.key: recipient for recipient in self.access.recipients if recipient.key in keys}
        if not recipients:
            return []
        numbers = [self._get_session_number(user) for user in users]
        leases = self.recipient_tables.claim(self._holder, max_per_recipient, numbers, recipients)
        return [
            (recipient, lease)
            for lease in leases
            for recipient in [recipients.get(lease.key)]
            if recipient is not None and recipient.has_user(lease.user) and lease.user in self.access.users
        ]

    def get_ages(self) -> dict[str, float]:
        """Return the age of the oldest waiting message by recipient, in seconds."""
        ages = self.recipient_tables.list_message_ages()
        return {recipient.name: ages.get(recipient.key, 0.0) for recipient in self.access.recipients}

    def keep_clock(self) -> None:
        """Keep the time while the clock is trusted. It is called often, also without posts."""
        if self._kept_clock is not None and get_current_second() - self._kept_clock < _CLOCK_INTERVAL_S:
            return
        self._kept_clock = self._store.get_kept_clock()  # another process may have kept or confirmed it
        if (
            self._kept_clock is not None
            and _CLOCK_INTERVAL_S <= get_current_second() - self._kept_clock <= _MAX_CLOCK_JUMP_S
        ):
            self._keep_present()

    def end_leases(self) -> None:
        """End the leases of this process."""
        self.recipient_tables.end_leases(self._holder)

    def defer(self, lease: Lease, seconds: float) -> None:
        """Let a lease end after a time, in which the recipient is not sent the user's releases."""
        self.recipient_tables.defer(lease, self._holder, seconds)

    def count_waiting_releases(self) -> dict[str, int]:
        """Return the number of releases that wait for each recipient that has any."""
        names = {recipient.key: recipient.name for recipient in self.access.recipients}
        return {
            names[key]: count for key, count in self.recipient_tables.count_unsent_releases().items() if key in names
        }

    def find_first_unsent(self, recipient: Recipient, lease: Lease) -> tuple[int, Message] | None:
        """Return a user's first release that a recipient has yet to be sent.

        Returns
        -------
        tuple of int and Message, or None
            Number of releases up to it, and the message. None if there is no such release; the lease is ended then.
        """
        more = True
        while more:
            state = self.recipient_tables.get_state(lease.key, lease.session)
            if state is None or state.is_absent:
                return None
            for number in range(state.num_sent, state.num_releases):
                message = self.build_message(state, lease.user, number, recipient)
                if message is not None:
                    return number + 1, message
            more = self.set_num_sent(lease, state.num_releases)
        return None

    def find_last_unsent(self, recipient: Recipient, lease: Lease) -> tuple[int, Message] | None:
        """Return a user's last release that a recipient has yet to be sent, and its count."""
        state = self.recipient_tables.get_state(lease.key, lease.session)
        if state is None or state.is_absent:
            return None
        for number in range(state.num_releases - 1, state.num_sent - 1, -1):
            message = self.build_message(state, lease.user, number, recipient)
            if message is not None:
                return number + 1, message
        return None

    def set_num_sent(self, lease: Lease, count: int, reason: str = "") -> bool:
        """Store the number of releases that a recipient was sent, and why one was set aside.

        Returns
        -------
        bool
            Whether this process has to send more.
        """
        return bool(self.recipient_tables.set_num_sent(lease, self._holder, count, reason))

    def build_message(
        self, state: RecipientState, user: str, number: int, recipient: Recipient | None = None
    ) -> Message | None:
        """Return the message of a release for a recipient or link, or None for no message."""
        stored, message = self._read_cached(user, state.session, number)
        if stored.query != state.query:
            return None
        if stored.record.withheld and recipient is not None and recipient.when_withheld == "nothing":
            return None
        if state.has_own_belief:
            stored_estimate = self._store.partial_message(state.session, number, state.key)
            if stored_estimate is None:  # not sent to this recipient: before its first release, or in a pause
                return None
            figures = parse_json(stored_estimate)
            last_draw_slot = figures.pop("last_draw_slot", None)
            estimate = to_degrees(np.array([figures.pop("estimate")]), self.engines.model.space)[0].tolist()
            message = message.for_partial_recipient(estimate, figures)
        elif stored.record.withheld:
            last_draw_slot = self._find_last_draw_slot(state.session, state.query, number)
        if stored.record.withheld:
            second = None if last_draw_slot is None else to_seconds(self.stream.slot_end(last_draw_slot))
            message = message.with_last_known(second)
        if state.precision_m:
            # Messages are rounded here only, for every page and channel.
            message = PrecisionGrid(self.engines.model.space.projection, state.precision_m).round_message(message)
        if recipient is None or recipient.content == "location":
            return message
        note = self.stream.session(user).agreement_at(number).note
        zones = Zones.from_note(note) or build_default_zones(self._config.release)  # the zones at that release
        return replace(message, zone=zones.find_zone_name(message.latitude, message.longitude))

    def list_link_messages(self, user: str, link: RecipientState, max_releases: int) -> list[Message]:
        """Return the releases that a link shows.

        Parameters
        ----------
        user : str
            User of the link.
        link : RecipientState
            The link.
        max_releases : int
            Number of releases that are inspected, counted from the last.
        """
        numbers = range(max(link.num_sent, link.num_releases - max_releases), link.num_releases)
        messages = (self.build_message(link, user, number) for number in numbers)
        return [message for message in messages if message is not None]

    # ---- on the thread -------------------------------------------------------------------------------------------

    def _open(self) -> None:
        config = self._config
        config.check_environment()
        self.engines = Engines.from_config(config)
        seen = None if config.allow_training_users else find_training_users(config.model, self.engines.model)
        self._accepted = FixFilter(None, config.clock_skew_seconds, lambda user: refuse_training_users(seen, [user]))
        self.stream = RecordedReleaseStream(
            config.store,
            self.engines.engine(""),
            config.limits,
            self._accepted,
            find_engine=self.engines.get_next_engine,
            predict_beyond_limits=_UsersWithPredictions(self.access),
            find_partial_recipients=self._list_partial_recipients,
        )
        self._to_close.append(self.stream.close)
        self._store = self.stream.store
        self.database = self.stream.store.database
        self.recipient_tables = RecipientTables(self._store)
        self.device_tables = DeviceTables(self._store)
        self.login_table = LoginTable(self._store)
        self._holder = secrets.token_hex(8)
        self.database.count_processes()
        if not self.is_shared:
            self.recipient_tables.end_leases()  # of a process that was killed
        self._kept_clock = self._store.get_kept_clock()
        self._has_reported_clock = False
        self._read_cached = lru_cache(_MESSAGE_CACHE_SIZE)(self._read_release)
        self._session_numbers: dict[str, int] = {}
        self._access_table = AccessTable(self._store)
        if self.is_shared:
            self.access.refresh(self._access_table)
        self.recipient_tables.set_users(self.access.users)
        # Other users of the database are prepared by their first message: there may be many.
        for user in (*config.users, *self.list_changed_users()):
            self._prepare(user)
        _LOG.info(
            "a recipient after a pause, a new recipient and a link are sent no earlier release; earlier releases can "
            "still determine when and how later ones are made, and reveal something about earlier locations"
        )

    def refresh_access(self) -> None:
        """Read the devices, pages and recipients in the database if they have changed."""
        earlier = self.access.recipients
        if self.access.refresh(self._access_table):
            self.recipient_tables.set_users(self.access.users)
            if self.access.recipients != earlier:
                self._prepared.clear()

    def list_changed_users(self) -> list[str]:
        """Return the users with other stored recipients, in random order."""
        changed = [
            user
            for user, active in self.recipient_tables.list_active_recipients().items()
            if user in self.access.users and active != set(self.access.get_active_recipients(user))
        ]
        return random.sample(changed, len(changed))  # several processes share the work

    def set_recipients(self, user: str) -> None:
        """Set the present recipients of a user's releases, if they have changed."""
        try:
            self._prepare(user)
        except (errors.ConfigurationError, errors.DataFileError):  # nothing is released for this user or newly sent
            _LOG.error("the recipients of a user are not changed, because the session cannot continue")

    def _is_access_current(self) -> bool:
        return not self.is_shared or self._access_table.get_version() == self.access.version

    def _prepare(self, user: str) -> None:
        """Check that a user's session can continue, and set its recipients."""
        if user in self._prepared:
            return
        self._check_continuation(user)
        present = self.access.get_active_recipients(user)
        if present or user in self._session_numbers:
            number = self._get_session_number(user)
            while not self.recipient_tables.set_active_recipients(number, present, self._is_access_current):
                self.refresh_access()
                present = self.access.get_active_recipients(user)
        self._prepared.add(user)

    def _check_continuation(self, user: str) -> None:
        """Check that a user's session, if there is one, can continue."""
        stored = self._store.session(user)
        if stored is None:
            return
        self._session_numbers[user] = stored.number
        if self.engines.can_continue(stored, self._config):
            return
        try:
            if self._accept_changes:
                self.stream.agree(user, self.engines.get_next_engine(stored), stored.agreements[-1].note)
            self.stream.session(user)
        except errors.SessionMismatchError as problem:
            raise errors.ConfigurationError(f"{problem}{'' if self._accept_changes else _ACCEPT_HINT}") from None

    def _list_partial_recipients(self, _: str, session: int, slot: int) -> dict[str, str]:
        """Return recipients with their own belief that are sent a timestep → query."""
        return self.recipient_tables.list_partial_recipients(session, to_seconds(self.stream.slot_end(slot - 1)))

    def _release_fixes(self, user: str, fixes: Sequence[Fix], second: int) -> Counter[str]:
        outcome: Counter[str] = Counter()
        try:
            self._prepare(user)
        except errors.ConfigurationError as problem:
            raise errors.SessionMismatchError(str(problem)) from None
        for fix in fixes:
            became = self._release_fix(user, fix)
            self.last_contacts[user] = {"at": second, "time": iso_time(fix.time), "outcome": became}
            outcome[_COUNTED_OUTCOMES[became]] += 1
        return outcome

    def _release_fix(self, user: str, fix: Fix) -> str:
        """Release a fix and return its outcome for the user's own page.

        The reason why a location has no release can reveal where the user is. It is kept in memory while the process
        runs, and is not counted, logged or stored. Outcomes: ``released``; ``duplicate``, the timestep already had a
        release; ``withheld``, nothing was drawn and recipients are sent a prediction; ``limit``, nothing was drawn and
        recipients are sent nothing; ``late``, older than the last release; ``outside`` the region; ``ahead`` of the
        clock; ``clock``, beyond the last time kept while the relay's clock is doubtful; ``refused``, the model was
        trained on the user. Outcomes that do not depend on the location are also in the store: see
        `DeviceTables.get_last_contact`.
        """
        try:
            self._accepted.check(user, fix.time, None)  # before the location is inspected
        except errors.TimeOrderError:
            return "ahead"
        except errors.InvalidInputError:
            return "refused"
        if not self._is_clock_trusted(to_seconds(fix.time)):
            return "clock"
        try:
            release = self.stream.take(user, fix.time, fix.latitude, fix.longitude)
        except (errors.SessionBusyError, errors.SessionMismatchError, errors.DataFileError):
            raise
        except errors.BudgetExceededError:
            return "limit"
        except errors.WithheldTimestepError:
            return "outside"
        except errors.TimeOrderError:
            return "late"
        except errors.InvalidInputError:
            return "outside"
        if release is None:
            return "outside"
        newest = self._newest.get(user, -1)
        self._newest[user] = max(newest, release.record.index)
        if release.record.withheld:
            return "withheld"
        return "duplicate" if release.record.index <= newest else "released"

    def _is_clock_trusted(self, second: int) -> bool:
        """Return whether a fix may be released at a second.

        A release in a wrong future would make all later fixes of its user too late until then. The clock of a new store
        is first kept when it agrees with that of a phone.
        """
        self.keep_clock()
        if self._kept_clock is None:
            if abs(get_current_second() - second) <= _MAX_CLOCK_DIFFERENCE_S:
                self._keep_present()
            return True
        if min(get_current_second(), second) <= self._kept_clock + _MAX_CLOCK_JUMP_S:
            return True
        if not self._has_reported_clock:
            self._has_reported_clock = True
            _LOG.error(
                "this machine's clock is %d days beyond the last time kept, so that new fixes are dropped; set it, or "
                "confirm it with: dphmm serve confirm-clock",
                (get_current_second() - self._kept_clock) // 86400,
            )
        return False

    def _keep_present(self) -> None:
        present = get_current_second()
        self._store.keep_clock(present)
        self._kept_clock = present
        self.recipient_tables.end_expired_links()

    def _read_release(self, user: str, session: int, number: int) -> tuple[StoredRelease, Message]:
        """Return a release and its message for a recipient of all releases of its query."""
        (stored,) = self._store.releases(session, number, number + 1)
        release = locate_release(user, self.stream.slot_end(stored.slot), stored.record, self.engines.model.space)
        return stored, Message.from_release(release)

    def _find_last_draw_slot(self, session: int, query: str, number: int) -> int | None:
        """Return the slot of the last release of a query with a draw before a release."""
        # A limit can withhold a year of timesteps, which are not searched again for each message.
        searched, slot = self._last_draw_slots.get((session, query), (0, None))
        if searched > number:
            return self._store.find_last_draw_slot(session, query, 0, number)
        later = self._store.find_last_draw_slot(session, query, searched, number)
        self._last_draw_slots[session, query] = number, slot if later is None else later
        return self._last_draw_slots[session, query][1]

    def _get_state(self, recipient: Recipient, user: str) -> RecipientState | None:
        return self.recipient_tables.get_state(recipient.key, self._get_session_number(user))

    def _get_session_number(self, user: str) -> int:
        """Return the number of a user's session in the store."""
        if user not in self._session_numbers:
            self._session_numbers[user] = self.stream.session(user).number
        return self._session_numbers[user]
