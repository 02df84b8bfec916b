"""Tables of devices in the relay's store: when they posted last.

The preferred device of a user determines whether locations of other devices are used.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from dphmm.release.session_store import SessionStore
from dphmm.serve.clock import get_current_second
from dphmm.tables.json_toml import parse_json

# Difference between the clocks of machines that share a database.
_MAX_CLOCK_LEAD_S = 60


class DeviceTables:
    """Tables of the last posts of phones and other devices in a store of sessions.

    Parameters
    ----------
    store : SessionStore
        Store of the sessions.
    """

    def __init__(self, store: SessionStore) -> None:
        self._database = store.database

    def record_contact(self, user: str, second: int, outcomes: Mapping[str, int]) -> None:
        """Store that a user's phone posted at a second, with the number of entries by outcome."""
        with self._database.run_transaction(durable=False):
            self._database.execute(
                "INSERT INTO last_contact VALUES (?, ?, ?) ON CONFLICT (user_name) DO UPDATE "
                "SET second = excluded.second, outcomes = excluded.outcomes",
                (user, second, json.dumps(outcomes)),
            )

    def admit(self, user: str, device: str, preferred: Collection[str], silence_s: float) -> bool:
        """Return whether locations of a device are used now, and store a preferred post.

        Locations of the preferred device are used always, those of other devices if the preferred one has been silent.
        The result depends on the times of posts by this machine's clock, and not on any location or its time. Call it
        while other messages of the user are excluded.

        Parameters
        ----------
        user, device : str
            The user, and the name of the device, see `dphmm.serve.devices_and_recipients.Source`.
        preferred : collection of str
            Names of the preferred device.
        silence_s : float
            Time since the last post of the preferred device after which it counts as silent.
        """
        if device in preferred:
            with self._database.run_transaction(durable=False):
                self._database.execute(
                    "INSERT INTO device_contact VALUES (?, ?, ?) ON CONFLICT (user_name, device) DO UPDATE "
                    "SET second = excluded.second",
                    (user, device, get_current_second()),
                )
            return True
        places = ", ".join("?" * len(preferred))
        statement = f"SELECT MAX(second) FROM device_contact WHERE user_name = ? AND device IN ({places})"
        ((second,),) = self._database.execute(statement, (user, *preferred))
        # A post in the future is one from before this machine's clock was set back.
        return second is None or not -_MAX_CLOCK_LEAD_S <= get_current_second() - second < silence_s

    def get_last_contact(self, user: str) -> tuple[int, dict[str, int]] | None:
        """Return when a user's phone last posted, and the outcomes of its entries.

        The time is exact to half a minute; to a second if several processes may share the store.

        Parameters
        ----------
        user : str
            The user.

        Returns
        -------
        tuple of int and dict, or None
            The second, and the number of entries by outcome: `accepted`, `invalid`, `inaccurate`, `malformed`,
            `no_timezone`, `encrypted`, `ahead` (of the clock), `clock` (the relay's clock is doubtful) or `refused`
            (the model was trained on the user). It does not contain why a location has no
            release. None if the phone never posted.
        """
        rows = self._database.execute("SELECT second, outcomes FROM last_contact WHERE user_name = ?", (user,))
        return (rows[0][0], parse_json(rows[0][1])) if rows else None
