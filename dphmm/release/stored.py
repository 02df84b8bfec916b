"""What a store says of a session: what it was agreed on, how far it has come, what was released."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dphmm.errors import SessionMismatchError
from dphmm.markov.belief import Belief
from dphmm.release.ledger import Limits
from dphmm.release.record import ReleaseRecord
from dphmm.release.terms import Terms


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
        What whoever agreed on it wrote beside it, such as the zones that the policy was made of. Public.
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

    def agreed_at(self, number: int) -> Agreed:
        """What a release, of which this is the number, was or would be made under."""
        return next(one for one in reversed(self.agreed) if one.first <= number)

    def check_same(self, terms: Mapping[str, Terms], limits: Limits | None) -> None:
        """Refuse to go on under other terms, or with other limits (left out: these).

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


@dataclass(frozen=True)
class Progress:
    """How far a session has come.

    Parameters
    ----------
    count
        The number of releases.
    slot
        The time step of the last one; None before the first.
    belief
        The public belief after it; None before the first.
    head
        The digest of the last record, which covers all before it.
    omitted
        The last time step of which was said that it has no release; None where there is none.
    amended
        How often it was agreed on anew.
    """

    count: int
    slot: int | None
    belief: Belief | None
    head: bytes
    omitted: int | None
    amended: int = 0

    @property
    def latest(self) -> int | None:
        """The last time step of which something was said."""
        return max((slot for slot in (self.slot, self.omitted) if slot is not None), default=None)


@dataclass(frozen=True)
class StoredRelease:
    """A release and its place in time.

    Parameters
    ----------
    slot
        The time step.
    query
        The query that it answers.
    record
        The public record.
    """

    slot: int
    query: str
    record: ReleaseRecord
