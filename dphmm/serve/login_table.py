"""The table of logins to the page in the relay's store."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from dphmm.release.session_store import SessionStore
from dphmm.serve.clock import get_current_second
from dphmm.serve.config import hash_token

_LOGIN_LIFETIME_S = 7 * 86400
# Users per login, to bound the size of a row.
_MAX_TOKENS = 20


@dataclass(frozen=True)
class Login:
    """A login to the page with the tokens of one or several users.

    Parameters
    ----------
    tokens : tuple of str
        Digests of the tokens. The relay's file determines their users and whether they are still valid.
    csrf : str
        Secret that requests that change something must contain in addition to the cookie.
    """

    tokens: tuple[str, ...]
    csrf: str


class LoginTable:
    """The table of logins in a store of sessions.

    Parameters
    ----------
    store : SessionStore
        Store of the sessions.
    """

    def __init__(self, store: SessionStore) -> None:
        self._database = store.database

    def log_in(self, token: str, earlier: tuple[str, ...] = ()) -> tuple[str, Login]:
        """Log in with a token and return the cookie and the login.

        Parameters
        ----------
        token : str
            Token of a page in the relay's file.
        earlier : tuple of str
            Digests of the other tokens for which the page is open.
        """
        tokens = tuple(dict.fromkeys((*earlier, hash_token(token))))[-_MAX_TOKENS:]
        cookie = secrets.token_urlsafe(32)
        login = Login(tokens, secrets.token_urlsafe(32))
        with self._database.run_transaction():
            self._database.execute("DELETE FROM login WHERE until < ?", (get_current_second(),))
            row = hash_token(cookie), " ".join(login.tokens), login.csrf, get_current_second() + _LOGIN_LIFETIME_S
            self._database.execute("INSERT INTO login VALUES (?, ?, ?, ?)", row)
        return cookie, login

    def find_login(self, cookie: str) -> Login | None:
        """Return the login of a cookie, or None if the cookie is unknown or has expired."""
        query = "SELECT token, csrf FROM login WHERE cookie = ? AND until >= ?"
        rows = self._database.execute(query, (hash_token(cookie), get_current_second()))
        return Login(tuple(rows[0][0].split()), rows[0][1]) if rows else None

    def log_out(self, cookie: str) -> None:
        """End a login."""
        with self._database.run_transaction():
            self._database.execute("DELETE FROM login WHERE cookie = ?", (hash_token(cookie),))
