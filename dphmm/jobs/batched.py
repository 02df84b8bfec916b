"""What a batch did, one user at a time and all together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dphmm.jobs.exposure import exposure_facts, standing_out, warnings_of
from dphmm.jobs.people import OUTSIDE_REGION, SAME_TICK, Dropped
from dphmm.jobs.published import Entry
from dphmm.policy.expression import policy_in_words
from dphmm.release.ledger import in_words, unless_seeded
from dphmm.release.settings import ReleaseSettings


@dataclass(frozen=True)
class UserDone:
    """A user who was released.

    Parameters
    ----------
    entry
        Who, how many places, and the file's digest. No places for one who was never within the region where places
        outside are omitted; no file is written then.
    epsilon, constrained_epsilon
        What all releases spent, and the greatest constrained-DP level of one.
    forgetting
        How many releases belong to a later session than the first, whose belief forgets the releases before.
    outside
        How many places on the model's clock lie outside the region. Private.
    summary
        What `dphmm.writers.summarise` says of the releases; empty where there are none.
    passed_over
        How many capped events were over at the first release.
    shared
        How many fixes gave way to a later one of the same tick of the clock. Private.
    """

    entry: Entry
    epsilon: float
    constrained_epsilon: float
    forgetting: int
    outside: int
    summary: Mapping[str, Any] = field(default_factory=dict, repr=False)
    passed_over: int = 0
    shared: int = 0

    @property
    def user(self) -> str:
        """Who."""
        return self.entry.user

    @property
    def releases(self) -> int:
        """How many places were answered, withheld ones included."""
        return self.entry.releases


@dataclass
class Tally:
    """What a batch's users amount to, told apart from nobody's name but where one stands out.

    It needs the same memory however many there are.
    """

    users: int = 0
    moments: int = 0
    never_within: int = 0
    releases: int = 0
    withheld: int = 0
    epsilon: float = 0.0
    constrained_epsilon: float = 0.0
    forgetting: int = 0
    forgetting_users: int = 0
    passed_over_users: int = 0
    outside: int = 0
    outside_users: int = 0
    shared: int = 0
    shared_users: int = 0
    standing_out: list[Mapping[str, Any]] = field(default_factory=list, repr=False)
    """The summaries of users that facts and warnings are about, see `dphmm.jobs.exposure.standing_out`."""

    def add(self, one: UserDone) -> None:
        """Count one more user."""
        self.outside, self.outside_users = self.outside + one.outside, self.outside_users + (one.outside > 0)
        self.shared, self.shared_users = self.shared + one.shared, self.shared_users + (one.shared > 0)
        if not one.releases:
            self.never_within += 1
            return
        self.users, self.moments = self.users + 1, self.moments + one.releases
        self.releases += one.summary["releases"]
        self.withheld += one.summary["moments_withheld"]
        self.epsilon = max(self.epsilon, one.epsilon)
        self.constrained_epsilon = max(self.constrained_epsilon, one.constrained_epsilon)
        self.forgetting += one.forgetting
        self.forgetting_users += one.forgetting > 0
        self.passed_over_users += one.passed_over > 0
        self.standing_out = standing_out([*self.standing_out, one.summary])


@dataclass(frozen=True)
class Batch:
    """What a batch did in one run.

    Attributes
    ----------
    done
        The users of this run, in the order in which they were finished.
    before
        How many users had been released in the folder before.
    settings
        How everybody was released.
    is_private
        Whether noise came from the operating system; where it follows from a seed nothing is private.
    alone
        How many states the policy joins to no other, and how far from one they are, in words; None if there are none.
    unchosen
        What was passed over in reading, and who was not chosen. Private.
    tally
        What the users of this run amount to. Private.
    """

    done: tuple[Entry, ...]
    before: int
    settings: ReleaseSettings
    is_private: bool
    alone: str | None
    unchosen: tuple[Dropped, ...] = ()
    tally: Tally = field(default_factory=Tally)

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """What of this run's data was not released as it was, and why. Private."""
        moved = self.settings.outside == "border"
        where = "taken for the nearest place of it" if moved else "not released"
        found = (
            *self.unchosen,
            Dropped(SAME_TICK, self.tally.shared, self.tally.shared_users),
            Dropped(f"{OUTSIDE_REGION}, {where}", self.tally.outside, self.tally.outside_users),
        )
        return tuple(one for one in found if one.fixes)

    def warnings(self) -> list[str]:
        """What whoever reads 'private' should be told besides, with what to do about it; public."""
        return warnings_of(self.tally.standing_out, self.settings.policy)

    def facts(self) -> dict[str, Any]:
        """What this run amounts to and promises, from public things alone."""
        tally = self.tally
        promise = in_words(self.settings.epsilon, tally.constrained_epsilon, tally.epsilon) if tally.users else {}
        return {
            "users_released": tally.users,
            "releases": tally.releases,
            "moments_withheld": tally.withheld,
            "users_never_in_the_region": tally.never_within,
            "users_released_before": self.before,
            "policy": self.settings.policy,
            "states_the_policy_joins_to_none": self.alone,
            "mechanism": self.settings.mechanism,
            "exact": self.settings.is_exact,
            "randomness": "system" if self.is_private else "seeded",
            "epsilon_of_each": self.settings.epsilon,
            "epsilon_of_the_user_with_most": tally.epsilon,
            "joined_places": policy_in_words(self.settings.policy),
            **unless_seeded(promise, self.is_private),
            **(exposure_facts(tally.standing_out) if tally.users else {}),
            "releases_that_forget_earlier_ones": tally.forgetting,
            "users_with_such_releases": tally.forgetting_users,
            **({"users_after_a_capped_event": tally.passed_over_users} if self.settings.caps else {}),
            "settings": self.settings.content_hash,
        }

    def private_facts(self) -> dict[str, Any]:
        """What only the truth tells. Never publish it."""
        return {"private_places_outside_the_region": self.tally.outside}
