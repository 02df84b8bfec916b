"""What somebody's releases, read back out of a file, tell an adversary: `dphmm audit session`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import IntArray
from dphmm.audit.metrics import TOP
from dphmm.audit.sequence import SequenceAudit, audit_sequence
from dphmm.audit.verdict import Thresholds, verdict
from dphmm.errors import ConfigurationError
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.people import Data, DataLike
from dphmm.jobs.replays import Replayed, name_of, replay
from dphmm.jobs.subjects import Prior, checked_prior, state_names
from dphmm.jobs.watch import Watch, unwatched
from dphmm.release.settings import ReleaseSettings
from dphmm.release.trajectory import located
from dphmm.space.states import OUTSIDE, StateSpace


@dataclass(frozen=True, eq=False)
class SessionAudit:
    """What somebody's releases tell, for each of some people.

    Attributes
    ----------
    space
        The states.
    people, audits
        Their releases, and what was found about each.
    private
        Whether the truth went in; what was found is private then.
    thresholds
        What was to be learned at most.
    """

    space: StateSpace
    people: tuple[Replayed, ...]
    audits: tuple[SequenceAudit, ...] = field(repr=False)
    private: bool
    thresholds: Thresholds = field(default_factory=Thresholds)

    @property
    def is_exposed(self) -> bool:
        """Whether at some release some state was, or more was learned than the thresholds allow."""
        return bool(self.beyond) or self.has_exposed_state

    @property
    def has_exposed_state(self) -> bool:
        """Whether at some release some state was exposed."""
        return any(audit.exposed_steps for audit in self.audits)

    @cached_property
    def beyond(self) -> dict[str, tuple[str, ...]]:
        """User → what was learned of them beyond the thresholds, in words; those alone of whom something was."""
        found = {audit.user: self.thresholds.beyond(audit) for audit in self.audits}
        return {user: said for user, said in found.items() if said}

    def in_words(self) -> str:
        """What each release kept to itself, what all of them told of the person known best, and whether it is much."""
        kept = (
            "At some release a state is exposed."
            if self.has_exposed_state
            else "At no release is a state exposed: each possible one has another that this release tells it from by a "
            "factor of at most e^epsilon."
        )
        known_best = max(self.audits, key=lambda audit: float(audit.hindsight.best.mean()))
        return f"{kept} {known_best.in_words()} {verdict(known_best)}.{self._against_thresholds()}"

    def _against_thresholds(self) -> str:
        if self.thresholds == Thresholds():
            return ""
        if not self.beyond:
            return " Nobody is known beyond the thresholds."
        user, said = next(iter(self.beyond.items()))
        return (
            f" Beyond the thresholds are {len(self.beyond)} of {len(self.audits)} users; {user}: {'; '.join(said)}. "
            "Release less often or with a smaller epsilon: dphmm calibrate finds it."
        )

    def facts(self) -> dict[str, Any]:
        """What was found as plain JSON values."""
        names = state_names(self.space)
        return {
            "exposed": self.is_exposed,
            "in_words": self.in_words(),
            "private": self.private,
            "thresholds": vars(self.thresholds),
            "beyond": {user: list(said) for user, said in self.beyond.items()},
            "users": [
                {**audit.facts(names), "randomness_was_private": one.private}
                for audit, one in zip(self.audits, self.people, strict=True)
            ],
        }


@checked
def audit_session(
    path: str | Path,
    model: Model,
    settings: ReleaseSettings | str | None = None,
    *,
    users: Sequence[str] = (),
    prior: Prior | None = None,
    true: DataLike | None = None,
    top: int = TOP,
    thresholds: Thresholds | None = None,
    watch: Watch = unwatched,
) -> SessionAudit:
    """What releases tell the best-informed adversary, as ``dphmm audit session`` does.

    Parameters
    ----------
    path, model, settings, users
        As in `replay`.
    prior
        The distribution of the first state that another adversary holds; left out, the model's.
    true
        The trajectories that were released, for whoever may know them; the result is private then.
    top
        How many places count as the top.
    thresholds
        What is to be learned at most; whoever is known better counts as exposed.
    watch
        Who is shown the progress.

    Raises
    ------
    DphmmError
        As `replay`, `dphmm.audit.sequence.audit_sequence` and the data.

    Examples
    --------
    >>> import tempfile
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import Data, audit_session, learn, region, release
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    >>> others, town = (Data(("data/sample/geolife",), users=users) for users in (("000", "001"), ("002",)))
    >>> model = learn(others, space, step_seconds=300).model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = f"{folder}/releases.csv"
    ...     made = release(town, model, ReleaseSettings(policy="utility:1km", epsilon=0.5), file, rng=1)
    ...     found = audit_session(file, model, "utility:1km", true=town)
    >>> found.is_exposed, found.audits[0].epsilon == 0.5 * len(made.table)
    (False, True)
    >>> bool(found.audits[0].hindsight.entropy.mean() < found.audits[0].uninformed.entropy.mean())
    True
    """
    learned = load_model(model)
    believed = None if prior is None else checked_prior(prior, state_names(learned.space))
    people = tuple(replay(path, learned, settings, users))
    if not people:
        raise ConfigurationError(f"{name_of(path)} holds no release; there is nothing to audit")
    truths = [None] * len(people) if true is None else _true_states(true, people)
    audits = tuple(
        audit_sequence(one.engine, one.sequence, believed, truth, top)
        for one, truth in watch(zip(people, truths, strict=True), "Replaying", len(people))
    )
    return SessionAudit(learned.space, people, audits, true is not None, thresholds or Thresholds())


def _true_states(data: DataLike, everyone: Sequence[Replayed]) -> list[IntArray]:
    """The true states of each person at each of their releases, ``(T,)`` each. Private.

    Parameters
    ----------
    data
        The trajectories that were released.
    everyone
        The releases.

    Raises
    ------
    ConfigurationError
        When a person is not in the data, or no place is known at the time of a release.
    DataFileError
        As `dphmm.read` does.
    """
    users = tuple(one.sequence.user for one in everyone)
    tracks = {one.user: one for one in replace(Data.of(data), users=users).read().trajectories}
    found = []
    for one, user in zip(everyone, users, strict=True):
        track, space = tracks[user].resample(one.engine.model.step), one.engine.model.space
        states, _ = located(space, track.latitude, track.longitude, one.engine.settings.outside)
        at = dict(zip(track.slots.tolist(), states.tolist(), strict=True))
        truth = np.array([at.get(slot, OUTSIDE) for slot in one.slots])
        if (truth < 0).any():
            raise ConfigurationError(
                f"user {user}: the true trajectory has no place within the region at release "
                f"{int((truth < 0).argmax()) + 1}; give the data that was released"
            )
        found.append(truth)
    return found
