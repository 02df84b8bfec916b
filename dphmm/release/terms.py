"""What a session was agreed on: whoever goes on with it must promise the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from dphmm.arguments import checked
from dphmm.arrays import content_hash
from dphmm.errors import InvalidInputError, SessionMismatchError
from dphmm.release.engine import Releaser
from dphmm.release.settings import ReleaseSettings
from dphmm.tables.json_text import parse_json
from dphmm.tables.values import one_line, shorten

MAIN_QUERY = "main"
"""The query of a session that has one."""


@dataclass(frozen=True)
class Terms:
    """What the promise of one query is made of.

    Parameters
    ----------
    settings
        How places are released.
    settings_hash, model, policy, measurements
        Content hashes: of the settings, the model, the policy graph and what is measured in each state.
    randomness
        ``"system"``; or ``"seeded"``, in which case nothing is private.
    """

    settings: ReleaseSettings
    settings_hash: str
    model: str
    policy: str
    measurements: str
    randomness: str

    @classmethod
    def of(cls, engine: Releaser) -> Terms:
        """The terms of an engine."""
        return cls(
            engine.settings,
            engine.settings.content_hash,
            engine.model.content_hash,
            engine.policy.content_hash,
            content_hash(engine.values),
            "system" if engine.is_private else "seeded",
        )

    def differences(self, other: Terms) -> Iterator[tuple[str, str, str]]:
        """What differs in content, each with its value here and there; the policy's wording is no matter."""
        mine, theirs = self.settings.to_dict(), other.settings.to_dict()
        for name in mine:
            if name != "policy" and mine[name] != theirs[name]:
                yield name, str(mine[name]), str(theirs[name])
        for part in ("model", "policy", "measurements", "randomness"):
            if getattr(self, part) != getattr(other, part):
                yield part, _shortened(getattr(self, part)), _shortened(getattr(other, part))

    def check_amendment(self, other: Terms, what: str) -> None:
        """Refuse terms with which a session that was agreed on these cannot go on.

        What is released of which places, and how, may change; that the belief goes on needs the same model, and the
        promise of caps on events is about all releases together.

        Raises
        ------
        SessionMismatchError
            Naming what may not change.
        """
        for part, was, now in self.differences(other):
            if part in ("model", "randomness", "caps", "priors"):
                raise SessionMismatchError(
                    f"{what} has {part} {was}, which may not become {now}; begin another session"
                )
        if self.settings.caps and not self.same_as(other):
            raise SessionMismatchError(f"{what} keeps caps on events, under its first settings alone; begin another")

    def same_as(self, other: Terms) -> bool:
        """Whether nothing differs in content."""
        return next(self.differences(other), None) is None

    def to_json(self) -> str:
        """The terms as a JSON object, from which `from_json` makes them again."""
        return json.dumps({**asdict(self), "settings": self.settings.to_dict()}, sort_keys=True)

    @classmethod
    @checked
    def from_json(cls, text: str) -> Terms:
        """The terms that `to_json` wrote.

        Raises
        ------
        InvalidInputError
            When the text is something else.
        """
        try:
            values = parse_json(text)
            if not isinstance(values, dict) or not isinstance(values.get("settings"), dict):
                raise ValueError("there are no settings")
            for name in set(values) - {"settings"}:
                if not isinstance(values[name], str):
                    raise ValueError(f"{shorten(name)} is {shorten(values[name])}, no text")
            return cls(**{**values, "settings": ReleaseSettings.from_dict(values["settings"])})
        except (TypeError, ValueError) as problem:  # the first for a name that is missing, or one too many
            raise InvalidInputError(f"text holds no terms of a session ({one_line(problem)})") from None


def agreed_on(name: str, releaser: Releaser | Mapping[str, Releaser]) -> tuple[dict[str, Releaser], dict[str, Terms]]:
    """The engine of each query of a session, and what its promise is made of.

    Raises
    ------
    InvalidInputError
        When the session's name or that of a query is none, or there is no query.
    SessionMismatchError
        When the queries' models, policies or kinds of randomness differ.
    """
    queries = {MAIN_QUERY: releaser} if isinstance(releaser, Releaser) else dict(releaser)
    if not name or not name.isprintable():
        raise InvalidInputError(f"the session's name is {name!r}; give a text of printable characters")
    terms = {query: Terms.of(engine) for query, engine in queries.items()}
    if not terms or not all(query and query.isprintable() for query in terms):
        raise InvalidInputError(f"the session's queries are {list(terms)}; name at least one, in printable characters")
    for part in ("model", "policy", "randomness"):
        if len({getattr(one, part) for one in terms.values()}) > 1:
            raise SessionMismatchError(f"the queries of session {name!r} differ in their {part}; they must share it")
    return queries, terms


def _shortened(value: str) -> str:
    return value if len(value) <= 20 else f"{value[:12]}…"
