"""Devices, pages and recipients of a relay's file and its database.

A relay with a file store has them in its TOML file. With PostgreSQL, `dphmm serve add-device` and `add-recipient` add
them to the database, and running relays apply the change within a second.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dphmm.errors import ConfigurationError
from dphmm.release.session_store import SessionStore
from dphmm.serve.config import Device, Recipient, RelayConfig, StoredRecipient
from dphmm.tables.json_toml import parse_json

_LOG = logging.getLogger(__name__)

Kind = Literal["device", "page"]
_VERSION_NAME = "access"


class AccessTable:
    """Tables of recipients, and of the digests of the tokens of devices and pages.

    Parameters
    ----------
    store : SessionStore
        The store.
    """

    def __init__(self, store: SessionStore) -> None:
        self._database = store.database

    def get_version(self) -> int:
        """Return the number of changes of the tables so far."""
        rows = self._database.execute("SELECT value FROM identity WHERE name = ?", (_VERSION_NAME,))
        return int(rows[0][0]) if rows else 0

    def list_tokens(self, kind: Kind, user: str | None = None) -> dict[str, str]:
        """Return the digests of tokens and their users, ordered by digest.

        Parameters
        ----------
        kind : str
            ``"device"`` or ``"page"``.
        user : str, optional
            One user; all by default.
        """
        statement = "SELECT token, user_name FROM access WHERE kind = ?"
        values: tuple[str, ...] = (kind,)
        if user is not None:
            statement, values = f"{statement} AND user_name = ?", (kind, user)
        return dict(self._database.execute(f"{statement} ORDER BY token", values))

    def add(self, kind: Kind, user: str, token: str) -> None:
        """Add the digest of a token of a user."""
        with self._database.run_transaction():
            self._database.execute("INSERT INTO access (token, user_name, kind) VALUES (?, ?, ?)", (token, user, kind))
            self._increment_version()

    def remove(self, token: str) -> None:
        """Remove the digest of a token."""
        with self._database.run_transaction():
            self._database.execute("DELETE FROM access WHERE token = ?", (token,))
            self._increment_version()

    def replace(self, token: str, new: str) -> None:
        """Replace the digest of a token.

        Raises
        ------
        ConfigurationError
            If there is no such token.
        """
        with self._database.run_transaction():
            statement = "UPDATE access SET token = ? WHERE token = ? RETURNING token"
            if not self._database.execute(statement, (new, token)):
                raise ConfigurationError("the token was changed in the meantime; try again")
            self._increment_version()

    def list_preferred_devices(self) -> list[Device]:
        """Return the preferred devices of users."""
        statement = "SELECT user_name, token, mqtt_device FROM access WHERE kind = 'device' AND preferred = 1"
        return [
            Device(user=user, token=token, preferred=True, mqtt_device=mqtt_device or None)
            for user, token, mqtt_device in self._database.execute(statement)
        ]

    def prefer(self, user: str, token: str | None, mqtt_device: str | None = None) -> None:
        """Prefer a device of a user, given by the digest of its token, or none.

        Raises
        ------
        ConfigurationError
            If there is no such device.
        """
        with self._database.run_transaction():
            self._database.execute("UPDATE access SET preferred = 0, mqtt_device = '' WHERE user_name = ?", (user,))
            if token is not None:
                statement = (
                    "UPDATE access SET preferred = 1, mqtt_device = ? "
                    "WHERE token = ? AND user_name = ? AND kind = 'device' RETURNING token"
                )
                if not self._database.execute(statement, (mqtt_device or "", token, user)):
                    raise ConfigurationError("the token was changed in the meantime; try again")
            self._increment_version()

    def list_recipients(self) -> dict[str, str]:
        """Return the keys of each recipient as JSON, by name."""
        return dict(self._database.execute("SELECT name, body FROM recipient ORDER BY name"))

    def add_recipient(self, recipient: StoredRecipient) -> None:
        """Add a recipient.

        Raises
        ------
        ConfigurationError
            If there is one with this name.
        """
        statement = "INSERT INTO recipient VALUES (?, ?) ON CONFLICT DO NOTHING RETURNING name"
        with self._database.run_transaction():
            if not self._database.execute(statement, (recipient.name, _to_json(recipient))):
                raise ConfigurationError(f"recipient {recipient.name!r} is in the database already; remove it first")
            self._increment_version()

    def pause_recipient(self, name: str, paused: bool) -> None:
        """Pause a recipient until further notice, or end its pause.

        Raises
        ------
        ConfigurationError
            If there is no such recipient, or it is invalid.
        """
        with self._database.run_transaction():
            row_lock = self._database.row_lock
            rows = self._database.execute(f"SELECT body FROM recipient WHERE name = ?{row_lock}", (name,))
            if not rows:
                raise _build_unknown_recipient_error(name)
            recipient = _parse_recipient(rows[0][0]).model_copy(update={"paused": paused})
            self._database.execute("UPDATE recipient SET body = ? WHERE name = ?", (_to_json(recipient), name))
            self._increment_version()

    def remove_recipient(self, name: str) -> None:
        """Remove a recipient.

        Raises
        ------
        ConfigurationError
            If there is no such recipient.
        """
        with self._database.run_transaction():
            if not self._database.execute("DELETE FROM recipient WHERE name = ? RETURNING name", (name,)):
                raise _build_unknown_recipient_error(name)
            self._increment_version()

    def _increment_version(self) -> None:
        # The update locks the row, so that two changes have two versions.
        self._database.execute(
            "INSERT INTO identity VALUES (?, '1') ON CONFLICT (name) "
            "DO UPDATE SET value = CAST(CAST(identity.value AS INTEGER) + 1 AS TEXT)",
            (_VERSION_NAME,),
        )


def _build_unknown_recipient_error(name: str) -> ConfigurationError:
    return ConfigurationError(f"the recipient must be in the database, got {name!r}; see dphmm serve recipients")


def _to_json(recipient: StoredRecipient) -> str:
    return json.dumps(recipient.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False)


def _parse_recipient(body: str) -> StoredRecipient:
    try:
        keys = parse_json(body)
    except ValueError:
        keys = None
    return StoredRecipient.from_keys(keys if isinstance(keys, dict) else {})


@dataclass(frozen=True)
class Source:
    """A device that posts.

    Parameters
    ----------
    user : str
        The user.
    device : str
        Name of the device: the digest of its token, or `dphmm.serve.config.get_mqtt_name`.
    """

    user: str
    device: str


class Access:
    """Devices, pages and recipients of a process of a relay.

    Parameters
    ----------
    config : RelayConfig
        Configuration of the relay.

    Attributes
    ----------
    devices : dict
        Digests of tokens of devices, and their sources.
    pages : dict
        Digests of tokens of pages, and their users.
    preferred : dict
        Users with a preferred device, and the names under which it posts. That of the file precedes that of the
        database.
    users : frozenset of str
        Users with a device.
    recipients : tuple of Recipient
        Recipients of the file, followed by those of the database. A recipient of the database that has the name of one
        in the file, or is invalid, is omitted.
    version : int, optional
        Version of the tables, see `AccessTable.get_version`; None before they were read.
    """

    def __init__(self, config: RelayConfig) -> None:
        self._config = config
        self.version: int | None = None
        self._set_entries({}, {}, {}, [])

    def refresh(self, table: AccessTable) -> bool:
        """Read the tables if they have changed, and return whether they have."""
        version = table.get_version()
        if version == self.version:
            return False
        tokens = table.list_tokens("device"), table.list_tokens("page")
        self._set_entries(*tokens, table.list_recipients(), table.list_preferred_devices())
        self.version = version  # read before the tables, so that a later change is not missed
        return True

    def get_active_recipients(self, user: str) -> dict[str, Recipient]:
        """Return the recipients of a user that the operator has not paused, by key."""
        return {
            recipient.key: recipient
            for recipient in self.recipients
            if recipient.has_user(user) and not recipient.paused
        }

    def has_predictions(self, user: str) -> bool:
        """Return whether a recipient is sent predictions for a user's withheld timesteps."""
        return any(recipient.when_withheld == "prediction" for recipient in self._list_release_recipients(user))

    def list_precisions(self, user: str) -> tuple[int, ...]:
        """Return the precisions that a link of a user can have.

        These are 0 for no precision, and the precisions of the recipients of this user.

        Parameters
        ----------
        user : str
            The user.

        Returns
        -------
        tuple of int
            Metres, ascending, each once.
        """
        return tuple(sorted({0, *(recipient.precision_m for recipient in self._list_release_recipients(user))}))

    def _list_release_recipients(self, user: str) -> Iterable[Recipient]:
        """Return the recipients of a user's releases or of data derived from them."""
        return (
            recipient
            for recipient in self.recipients
            if recipient.has_user(user) and not recipient.true_locations_unprotected
        )

    def _set_entries(
        self, devices: dict[str, str], pages: dict[str, str], bodies: dict[str, str], preferred: list[Device]
    ) -> None:
        # Entries of the file come last: the database cannot give a token of the file to another user.
        users = devices | {device.token: device.user for device in self._config.devices}
        self.devices = {token: Source(user, token) for token, user in users.items()}
        self.pages = pages | {page.token: page.user for page in self._config.pages}
        self.users = frozenset(users.values())
        of_file = (device for device in self._config.devices if device.preferred)
        self.preferred = {device.user: device.names for device in (*preferred, *of_file)}
        self.recipients: tuple[Recipient, ...] = (*self._config.recipients, *self._parse_recipients(bodies))

    def _parse_recipients(self, bodies: dict[str, str]) -> Iterable[StoredRecipient]:
        names = {recipient.name for recipient in self._config.recipients}
        for name, body in bodies.items():
            try:
                recipient = _parse_recipient(body)
            except ConfigurationError as problem:
                _LOG.error("recipient %r in the database is not used: %s", name, problem)
                continue
            if name in names or recipient.name != name:
                _LOG.error("recipient %r in the database is not used: its name is that of another recipient", name)
                continue
            yield recipient
