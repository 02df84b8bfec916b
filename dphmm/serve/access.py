"""Devices that post and pages that users open, of a relay's file and its database.

A relay with a file store has them in its TOML file. With PostgreSQL, `dphmm serve add-device` adds them to the
database, and running relays accept them within a second.
"""

from __future__ import annotations

from typing import Literal

from dphmm.errors import ConfigurationError
from dphmm.release.session_store import SessionStore
from dphmm.serve.config import RelayConfig

Kind = Literal["device", "page"]
_VERSION_NAME = "access"


class AccessTable:
    """Table of the digests of the tokens of devices and pages.

    Parameters
    ----------
    store : SessionStore
        The store.
    """

    def __init__(self, store: SessionStore) -> None:
        self._database = store.database

    def get_version(self) -> int:
        """Return the number of changes of the table so far."""
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
        with self._database.transaction():
            self._database.execute("INSERT INTO access VALUES (?, ?, ?)", (token, user, kind))
            self._increment_version()

    def remove(self, token: str) -> None:
        """Remove the digest of a token."""
        with self._database.transaction():
            self._database.execute("DELETE FROM access WHERE token = ?", (token,))
            self._increment_version()

    def replace(self, token: str, new: str) -> None:
        """Replace the digest of a token.

        Raises
        ------
        ConfigurationError
            If there is no such token.
        """
        with self._database.transaction():
            statement = "UPDATE access SET token = ? WHERE token = ? RETURNING token"
            if not self._database.execute(statement, (new, token)):
                raise ConfigurationError("the token was changed in the meantime; try again")
            self._increment_version()

    def _increment_version(self) -> None:
        # The update locks the row, so that two changes have two versions.
        self._database.execute(
            "INSERT INTO identity VALUES (?, '1') ON CONFLICT (name) "
            "DO UPDATE SET value = CAST(CAST(identity.value AS INTEGER) + 1 AS TEXT)",
            (_VERSION_NAME,),
        )


class Access:
    """Devices and pages that a process of a relay accepts.

    Parameters
    ----------
    config : RelayConfig
        Configuration of the relay.

    Attributes
    ----------
    devices, pages : dict
        Digests of tokens, and their users.
    users : frozenset of str
        Users with a device.
    """

    def __init__(self, config: RelayConfig) -> None:
        self._config = config
        self._version: int | None = None
        self._set({}, {})

    def refresh(self, table: AccessTable) -> bool:
        """Read the table if it has changed, and return whether it has."""
        version = table.get_version()
        if version == self._version:
            return False
        self._set(table.list_tokens("device"), table.list_tokens("page"))
        self._version = version  # read before the table, so that a later change is not missed
        return True

    def _set(self, devices: dict[str, str], pages: dict[str, str]) -> None:
        # Entries of the file come last: the database cannot give a token of the file to another user.
        self.devices = devices | {device.token: device.user for device in self._config.devices}
        self.pages = pages | {page.token: page.user for page in self._config.pages}
        self.users = frozenset(self.devices.values())
