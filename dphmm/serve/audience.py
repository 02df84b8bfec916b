"""What is kept of who is told, who is to be told nothing for now, and who looks at the page; beside the sessions."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from dphmm.release.store import SessionStore
from dphmm.serve.tokens import hash_token

_LOGIN_S = 7 * 86400
"""A login holds for so long."""


@dataclass(frozen=True)
class Login:
    """Somebody who showed a token to the page.

    Parameters
    ----------
    token
        The token's digest: whose it is, and whether it still is anybody's, the relay's file says.
    csrf
        What their requests that change something show, besides the cookie.
    """

    token: str
    csrf: str


class Audience:
    """Tables beside those of sessions.

    Parameters
    ----------
    store
        The sessions' store.
    """

    def __init__(self, store: SessionStore) -> None:
        self._database = store.database

    def leads(self) -> bool:
        """Whether this process is the one that tells recipients, of all that share the store."""
        return self._database.leads()

    # ---- recipients ----------------------------------------------------------------------------------------------

    def told(self, recipient: str, session: int) -> tuple[int, bool]:
        """Of how many of a session's releases a recipient was told, and whether they are told nothing for now.

        Where they are first asked for, they were told of all that there are: who is new learns nothing of the time
        before. Both are read at once, so that what was released in a pause is not told after it.
        """
        with self._database.transaction():
            self._database.execute(
                "INSERT INTO told SELECT ?, session, count, 0 FROM progress WHERE session = ? ON CONFLICT DO NOTHING",
                (recipient, session),
            )
        query = "SELECT number, paused FROM told WHERE recipient = ? AND session = ?"
        ((number, paused),) = self._database.execute(query, (recipient, session))
        return number, bool(paused)

    def set_told(self, recipient: str, session: int, number: int) -> None:
        """Write of how many releases a recipient was told."""
        with self._database.transaction():
            self._database.execute(
                "UPDATE told SET number = ? WHERE recipient = ? AND session = ? AND number < ?",
                (number, recipient, session, number),
            )

    def pause(self, recipient: str, session: int, paused: bool) -> None:
        """Tell a recipient nothing of a session from now on, or go on; of what is released meanwhile they never are."""
        self.told(recipient, session)
        key = recipient, session
        with self._database.transaction():
            query = f"SELECT count FROM progress WHERE session = ?{self._database.held}"
            ((count,),) = self._database.execute(query, (session,))  # nothing is released until this is written
            where = "WHERE recipient = ? AND session = ?"
            self._database.execute(f"UPDATE told SET number = ? {where} AND paused = 1", (count, *key))
            self._database.execute(f"UPDATE told SET paused = ? {where}", (int(paused), *key))

    def count_before(self, session: int, slot: int) -> int:
        """How many releases of a session are of earlier time steps."""
        query = "SELECT COUNT(*) FROM record WHERE session = ? AND slot < ?"
        return int(self._database.execute(query, (session, slot))[0][0])

    # ---- logins --------------------------------------------------------------------------------------------------

    def log_in(self, token: str) -> tuple[str, Login]:
        """The cookie of somebody who shows a token, and the login that it stands for."""
        cookie, login, now = secrets.token_urlsafe(32), Login(hash_token(token), secrets.token_urlsafe(32)), time.time()
        with self._database.transaction():
            self._database.execute("DELETE FROM login WHERE until < ?", (int(now),))
            row = hash_token(cookie), login.token, login.csrf, int(now) + _LOGIN_S
            self._database.execute("INSERT INTO login VALUES (?, ?, ?, ?)", row)
        return cookie, login

    def login(self, cookie: str) -> Login | None:
        """The login of a cookie, unless there is none or it is over."""
        query = "SELECT token, csrf FROM login WHERE cookie = ? AND until >= ?"
        rows = self._database.execute(query, (hash_token(cookie), int(time.time())))
        return Login(*rows[0]) if rows else None

    def log_out(self, cookie: str) -> None:
        """End a login."""
        with self._database.transaction():
            self._database.execute("DELETE FROM login WHERE cookie = ?", (hash_token(cookie),))
