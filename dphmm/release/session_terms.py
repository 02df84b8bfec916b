"""The terms of a session: hashes of settings, model and policy of its queries, and limits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from dphmm.arrays import hash_content
from dphmm.errors import InvalidInputError, MissingExtensionError, SessionMismatchError
from dphmm.release.budget_schedule import NUM_LEARNING_WINDOWS, max_window_steps
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.session_limits import Limits
from dphmm.tables.json_toml import parse_json
from dphmm.tables.values import shorten, shorten_message
from dphmm.validation import check_arguments

# The query of a session that has one.
MAIN_QUERY = "main"


@dataclass(frozen=True)
class Terms:
    """The settings, model and policy that determine the guarantee of one query.

    Parameters
    ----------
    settings
        Settings of the release.
    settings_hash, model, policy, measurements
        Content hashes of the settings, the model, the policy graph and the measurements of the states.
    randomness
        ``"system"``, or ``"seeded"``, which provides no privacy.
    """

    settings: ReleaseSettings
    settings_hash: str
    model: str
    policy: str
    measurements: str
    randomness: str

    @classmethod
    def from_engine(cls, engine: Releaser) -> Terms:
        """Create the terms of an engine.

        Parameters
        ----------
        engine
            Engine of a query.

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
            hash_content(engine.query.values),
            "system" if engine.is_private else "seeded",
        )

    def differences(self, other: Terms) -> Iterator[tuple[str, str, str]]:
        """Iterate over the differences in content to other terms.

        The wording of the policy and the names of layers do not count.

        Parameters
        ----------
        other
            Other terms.

        Yields
        ------
        tuple of str
            The name of the difference, and both values as text.
        """
        values = self.settings.to_dict()
        other_values = other.settings.to_dict()
        for name in values:
            if name not in ("policy", "layers") and values[name] != other_values[name]:
                yield name, str(values[name]), str(other_values[name])
        for part in ("model", "policy", "measurements", "randomness"):
            if getattr(self, part) != getattr(other, part):
                yield part, _shorten_hash(getattr(self, part)), _shorten_hash(getattr(other, part))

    def check_amendment(self, other: Terms, what: str) -> None:
        """Check that a session with these terms can continue with other ones.

        The settings may change. The model must not change, because the belief continues. Event caps must not change,
        because they concern all releases together.

        Parameters
        ----------
        other
            New terms.
        what
            Description of the session for messages.

        Raises
        ------
        SessionMismatchError
            If a part differs that must not change.
        """
        for part, was, now in self.differences(other):
            if part in ("model", "randomness", "caps", "event_cap_priors"):
                raise SessionMismatchError(f"{part} of {what} must stay {was}, got {now}; begin another session")
        if self.settings.caps and not self.has_same_content(other):
            raise SessionMismatchError(f"{what} has event caps, so its settings must not change; begin another session")

    def has_same_content(self, other: Terms) -> bool:
        """Return whether other terms have the same content.

        Parameters
        ----------
        other
            Other terms.

        Returns
        -------
        bool
            Whether the guarantees are the same.
        """
        return next(self.differences(other), None) is None

    def to_json(self) -> str:
        """Return the terms as a JSON object. `from_json` restores them.

        Returns
        -------
        str
            The JSON text.
        """
        return json.dumps({**asdict(self), "settings": self.settings.to_dict()}, sort_keys=True)

    @classmethod
    @check_arguments
    def from_json(cls, text: str) -> Terms:
        """Create terms from the text of `to_json`.

        Parameters
        ----------
        text
            Text of `to_json`.

        Returns
        -------
        Terms
            The terms.

        Raises
        ------
        InvalidInputError
            If the text is invalid.
        MissingExtensionError
            If the mechanism of another package is missing.
        """
        try:
            values = parse_json(text)
            if not isinstance(values, dict) or not isinstance(values.get("settings"), dict):
                raise ValueError("there are no settings")
            for name in set(values) - {"settings"}:
                if not isinstance(values[name], str):
                    raise ValueError(f"{shorten(name)} must be a string, got {shorten(values[name])}")
            return cls(**{**values, "settings": ReleaseSettings.from_dict(values["settings"])})
        except MissingExtensionError:
            raise
        except (TypeError, ValueError) as problem:  # TypeError for a missing or an unknown name
            raise InvalidInputError(f"text must be the terms of a session: {shorten_message(problem)}") from None


def collect_terms(
    name: str, releaser: Releaser | Mapping[str, Releaser]
) -> tuple[dict[str, Releaser], dict[str, Terms]]:
    """Return the engine and the terms of each query of a session.

    Raises
    ------
    InvalidInputError
        If the name of the session or of a query is invalid, or there is no query.
    SessionMismatchError
        If the models, policies, sources of randomness or event caps of the queries differ.
    """
    queries = {MAIN_QUERY: releaser} if isinstance(releaser, Releaser) else dict(releaser)
    if not name or not name.isprintable():
        raise InvalidInputError(f"the session name must be a non-empty string of printable characters, got {name!r}")
    terms = {query: Terms.from_engine(engine) for query, engine in queries.items()}
    if not terms or not all(query and query.isprintable() for query in terms):
        raise InvalidInputError(f"a session needs at least one query with a printable name, got {list(terms)}")
    for part in ("model", "policy", "randomness"):
        if len({getattr(query_terms, part) for query_terms in terms.values()}) > 1:
            raise SessionMismatchError(f"all queries of session {name!r} must have the same {part}")
    # The caps of one query cannot undo what another query reveals about an event.
    if (
        len(
            {
                (tuple(cap.canonical for cap in engine.settings.caps), engine.settings.event_cap_priors)
                for engine in queries.values()
            }
        )
        > 1
    ):
        raise SessionMismatchError(f"all queries of session {name!r} must have the same event caps and priors")
    return queries, terms


def _shorten_hash(value: str) -> str:
    return value if len(value) <= 20 else f"{value[:12]}…"


@dataclass(frozen=True)
class Agreement:
    """The terms of a session from one of its releases on.

    Parameters
    ----------
    first
        Index of the first release under these terms.
    terms
        Mapping from query to terms.
    note
        Note stored with the terms, such as the zones of the policy. Public.
    """

    first: int
    terms: dict[str, Terms]
    note: str = ""


@dataclass(frozen=True)
class StoredSession:
    """A session in a store, with its terms and limits.

    Parameters
    ----------
    number, name
        Identifiers of the session.
    agreements
        The terms at the beginning, and each amendment.
    limits
        Limits on the privacy cost.
    """

    number: int
    name: str
    agreements: tuple[Agreement, ...]
    limits: Limits

    @property
    def terms(self) -> dict[str, Terms]:
        """The terms of the next release, by query."""
        return self.agreements[-1].terms

    def max_window_steps(self, step_seconds: float | None) -> int:
        """Return the largest number of timesteps that records, limits or a schedule look back.

        Parameters
        ----------
        step_seconds
            Length of a timestep; None if unknown.

        Returns
        -------
        int
            The number of timesteps, at least 1.
        """
        return self._find_max_steps(step_seconds, NUM_LEARNING_WINDOWS)

    def max_budget_window_steps(self, step_seconds: float | None) -> int:
        """Return the length of the longest window with a sum of budgets.

        These are the windows of records, limits and schedules. No release shares one with a release that is this many
        timesteps earlier.

        Parameters
        ----------
        step_seconds
            Length of a timestep; None if unknown.

        Returns
        -------
        int
            The number of timesteps, at least 1.
        """
        return self._find_max_steps(step_seconds, 1)

    def _find_max_steps(self, step_seconds: float | None, num_windows: int) -> int:
        schedules = [terms.settings.schedule for terms in self.terms.values()]
        return max(self.limits.window_steps or 1, max_window_steps(schedules, step_seconds, num_windows))

    def agreement_at(self, number: int) -> Agreement:
        """Return the terms of a past or future release.

        Parameters
        ----------
        number
            Index of the release, from 0.

        Returns
        -------
        Agreement
            The terms of that release.
        """
        return next(agreement for agreement in reversed(self.agreements) if agreement.first <= number)

    def check_same(self, terms: Mapping[str, Terms], limits: Limits | None) -> None:
        """Check that terms and limits agree with the stored ones.

        Parameters
        ----------
        terms
            Mapping from query to terms.
        limits
            Limits on the privacy cost. None skips their check.

        Raises
        ------
        SessionMismatchError
            If something differs. The message contains the first difference.
        """
        what = f"session {self.name!r}"
        verb = "began" if len(self.agreements) == 1 else "continues"
        if set(self.terms) != set(terms):
            raise SessionMismatchError(
                f"{what} began with the queries {sorted(self.terms)}, got {sorted(terms)}; pass the same, or begin "
                "another session"
            )
        for query, agreed in self.terms.items():
            for part, was, now in agreed.differences(terms[query]):
                raise SessionMismatchError(
                    f"{what} {verb} with {part} {was}, got {now}; pass the same, or begin another session"
                )
        if limits is not None and limits != self.limits:
            agreed_limits, requested = (_describe_limits(each) for each in (self.limits, limits))
            raise SessionMismatchError(f"{what} began with {agreed_limits}, got {requested}; omit the limits")


def _describe_limits(limits: Limits) -> str:
    """Return a noun phrase with the parameters that limit a session.

    Examples
    --------
    >>> _describe_limits(Limits()), _describe_limits(Limits(epsilon=20))
    ('no limits', 'the limit epsilon = 20')
    >>> _describe_limits(Limits(window_epsilon=2, window_steps=24))
    'the limits window_epsilon = 2, window_steps = 24'
    """
    stated = [f"{name} = {value:.15g}" for name, value in asdict(limits).items() if value is not None]
    noun = "the limit" if len(stated) == 1 else "the limits"
    return f"{noun} {', '.join(stated)}" if stated else "no limits"
