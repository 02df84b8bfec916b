"""What a session is agreed on: settings, model and policy of each of its queries, as hashes, and what it may spend."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import ceil

from dphmm.arguments import checked
from dphmm.arrays import content_hash
from dphmm.errors import InvalidInputError, SessionMismatchError
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.ledger import DAY_SECONDS, Limits
from dphmm.release.schedule import REMEMBERED
from dphmm.tables.json_toml import parse_json
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
    def from_engine(cls, engine: Releaser) -> Terms:
        """The terms of an engine.

        Parameters
        ----------
        engine
            The engine of a query.

        Returns
        -------
        Terms
            Its terms.
        """
        return cls(
            engine.settings,
            engine.settings.content_hash,
            engine.model.content_hash,
            engine.policy.content_hash,
            content_hash(engine.values),
            "system" if engine.is_private else "seeded",
        )

    def differences(self, other: Terms) -> Iterator[tuple[str, str, str]]:
        """What differs in content, each with its value here and there; the policy's wording and names do not count.

        Parameters
        ----------
        other
            Other terms.

        Yields
        ------
        tuple of str
            What differs, and both values as text.
        """
        mine, theirs = self.settings.to_dict(), other.settings.to_dict()
        for name in mine:
            if name not in ("policy", "layers") and mine[name] != theirs[name]:
                yield name, str(mine[name]), str(theirs[name])
        for part in ("model", "policy", "measurements", "randomness"):
            if getattr(self, part) != getattr(other, part):
                yield part, _shortened(getattr(self, part)), _shortened(getattr(other, part))

    def check_amendment(self, other: Terms, what: str) -> None:
        """Refuse terms with which a session that was agreed on these cannot go on.

        What is released of which places, and how, may change; that the belief goes on needs the same model, and the
        promise of caps on events is about all releases together.

        Parameters
        ----------
        other
            The new terms.
        what
            What the message calls the session.

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
        """Whether nothing differs in content.

        Parameters
        ----------
        other
            Other terms.

        Returns
        -------
        bool
            Whether they promise the same.
        """
        return next(self.differences(other), None) is None

    def to_json(self) -> str:
        """The terms as a JSON object, from which `from_json` makes them again.

        Returns
        -------
        str
            The JSON text.
        """
        return json.dumps({**asdict(self), "settings": self.settings.to_dict()}, sort_keys=True)

    @classmethod
    @checked
    def from_json(cls, text: str) -> Terms:
        """The terms that `to_json` wrote.

        Parameters
        ----------
        text
            What `to_json` wrote.

        Returns
        -------
        Terms
            The terms.

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
        When the queries' models, policies, kinds of randomness or caps on events differ.
    """
    queries = {MAIN_QUERY: releaser} if isinstance(releaser, Releaser) else dict(releaser)
    if not name or not name.isprintable():
        raise InvalidInputError(f"the session's name is {name!r}; give a text of printable characters")
    terms = {query: Terms.from_engine(engine) for query, engine in queries.items()}
    if not terms or not all(query and query.isprintable() for query in terms):
        raise InvalidInputError(f"the session's queries are {list(terms)}; name at least one, in printable characters")
    for part in ("model", "policy", "randomness"):
        if len({getattr(one, part) for one in terms.values()}) > 1:
            raise SessionMismatchError(f"the queries of session {name!r} differ in their {part}; they must share it")
    # What one query tells of an event the caps of another cannot take back.
    if len({(tuple(cap.canonical for cap in one.settings.caps), one.settings.priors) for one in queries.values()}) > 1:
        raise SessionMismatchError(
            f"the queries of session {name!r} differ in their caps on events; give every query the same caps and priors"
        )
    return queries, terms


def _shortened(value: str) -> str:
    return value if len(value) <= 20 else f"{value[:12]}…"


@dataclass(frozen=True)
class Agreed:
    """What a session is agreed on from one of its releases on.

    Parameters
    ----------
    first
        The number of the first release that it holds for.
    terms
        Query → what its promise is made of.
    note
        What was written beside it when it was agreed on, such as the zones that the policy was made of. Public.
    """

    first: int
    terms: dict[str, Terms]
    note: str = ""


@dataclass(frozen=True)
class StoredSession:
    """What a session was agreed on.

    Parameters
    ----------
    number, name
        Which one it is.
    agreed
        What it was agreed on when it began, and whenever it was agreed on anew.
    limits
        What it may spend.
    """

    number: int
    name: str
    agreed: tuple[Agreed, ...]
    limits: Limits

    @property
    def terms(self) -> dict[str, Terms]:
        """Query → what the promise of the next release is made of."""
        return self.agreed[-1].terms

    def longest_window(self, step_seconds: float | None) -> int:
        """How many time steps back records, limits or a schedule look.

        Parameters
        ----------
        step_seconds
            How long a step is; None where that is not given.

        Returns
        -------
        int
            At least one.
        """
        schedules = [terms.settings.schedule for terms in self.terms.values()]
        looks = [(1, DAY_SECONDS), *((REMEMBERED, one.window_seconds) for one in schedules if one is not None)]
        ours = [] if step_seconds is None else [times * max(1, ceil(one / step_seconds)) for times, one in looks]
        return max([1, self.limits.window_steps or 1, *ours])

    def agreed_at(self, number: int) -> Agreed:
        """What a release, of which this is the number, was or would be made under.

        Parameters
        ----------
        number
            The number of a release, from 0.

        Returns
        -------
        Agreed
            The terms then.
        """
        return next(one for one in reversed(self.agreed) if one.first <= number)

    def check_same(self, terms: Mapping[str, Terms], limits: Limits | None) -> None:
        """Refuse to go on under other terms, or with other limits (left out: these).

        Parameters
        ----------
        terms
            Query → its terms.
        limits
            What releases may cost.

        Raises
        ------
        SessionMismatchError
            Naming the first thing that differs.
        """
        what = f"session {self.name!r}"
        began = "began" if len(self.agreed) == 1 else "goes on"
        if set(self.terms) != set(terms):
            raise SessionMismatchError(
                f"{what} began with the queries {sorted(self.terms)}, not {sorted(terms)}; give those, or begin another"
            )
        for query, agreed in self.terms.items():
            for part, was, now in agreed.differences(terms[query]):
                raise SessionMismatchError(f"{what} {began} with {part} {was}, not {now}; give that, or begin another")
        if limits is not None and limits != self.limits:
            raise SessionMismatchError(f"{what} began with {self.limits}, not {limits}; leave the limits out")
