"""Tokens: what a device shows to say whose places it posts. Only their digests are kept."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping

HASHED = "sha256:"
"""How a digest begins where a token is written."""


def new_token() -> str:
    """A token that nobody guesses: 160 bits, in letters that any app takes."""
    return secrets.token_hex(20)


def hash_token(token: str) -> str:
    """The digest of a token. No salt and no slowness: tokens are random, not words that people chose."""
    return HASHED + hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Doors:
    """Whose device a token belongs to.

    Parameters
    ----------
    tokens
        Digest → user.
    """

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._tokens = dict(tokens)

    def user(self, token: str | None) -> str | None:
        """The user of a token; None for one that is unknown.

        What is looked up is a digest, so that the time it takes tells nothing about tokens.
        """
        return None if not token else self.user_of(hash_token(token))

    def user_of(self, digest: str) -> str | None:
        """The user of a token with a digest; None where there is none any more."""
        return self._tokens.get(digest)
