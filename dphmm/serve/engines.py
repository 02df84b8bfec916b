"""The engines of a relay: one of its own settings, and one of the zones that each person drew."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from dphmm.errors import AlreadyKnownError, DataFileError
from dphmm.markov.model import MarkovModel
from dphmm.release.drawn_zones import Zones
from dphmm.release.engine import Releaser
from dphmm.release.settings import ReleaseSettings
from dphmm.release.stored import StoredSession
from dphmm.release.terms import MAIN_QUERY

_REMEMBERED = 256


class Engines:
    """Engines of one model by what was noted when a session was agreed on.

    Parameters
    ----------
    base
        The relay's settings.
    model
        The model.
    """

    def __init__(self, base: ReleaseSettings, model: MarkovModel) -> None:
        self._base, self.model = base, model
        self._earlier: dict[ReleaseSettings, Releaser] = {}
        self._folder = TemporaryDirectory(prefix="dphmm-zones-")
        self.of_note: Callable[[str], Releaser] = lru_cache(_REMEMBERED)(self._made)
        """The engine of a note; empty, of the relay's settings. Ask it for `another`."""

    @property
    def folder(self) -> Path:
        """Where layers are while this is open."""
        return Path(self._folder.name)

    def close(self) -> None:
        """Remove the layers."""
        self._folder.cleanup()

    def settings(self, note: str) -> ReleaseSettings:
        """How places are released where a note says so.

        Raises
        ------
        ConfigurationError
            As `dphmm.release.drawn_zones.Zones.settings`.
        """
        zones = Zones.from_note(note)
        return self._base if zones is None else zones.settings(self._base, self.folder)

    def goes_on(self, session: StoredSession) -> bool:
        """Whether a session goes on under what is said now, as hashes tell, without an engine being made."""
        terms = session.terms.get(MAIN_QUERY)
        if terms is None or terms.model != self.model.content_hash or terms.randomness != "system":
            return False
        return self.settings(session.agreed[-1].note).content_hash == terms.settings_hash

    def of(self, session: StoredSession) -> Releaser:
        """The engine of a session's next release."""
        return self.of_note(session.agreed[-1].note)

    def at(self, session: StoredSession, settings_hash: str) -> Releaser:
        """The engine of the releases whose records have a hash of settings.

        Raises
        ------
        DataFileError
            When the session was never agreed on them.
        """
        for agreed in reversed(session.agreed):
            terms = agreed.terms[MAIN_QUERY]
            if terms.settings_hash == settings_hash:
                engine = self.of_note(agreed.note)
                return engine if engine.settings.content_hash == settings_hash else self._of_terms(terms.settings)
        raise DataFileError("the store", f"has releases of session {session.name!r} that nothing was agreed on for")

    def _of_terms(self, settings: ReleaseSettings) -> Releaser:
        """The engine of settings that the relay's file had before."""
        if settings not in self._earlier:
            self._earlier[settings] = settings.engine(self.model)
        return self._earlier[settings]

    def _made(self, note: str) -> Releaser:
        engine = self.settings(note).engine(self.model)
        if not note:
            with suppress(AlreadyKnownError):  # the first plan of everybody who is new is the same, and made once
                engine.prepare()
        return engine
