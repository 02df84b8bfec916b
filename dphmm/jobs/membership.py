"""Was somebody among the people whom a model, or synthetic people, were made from? By likelihood ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import exp
from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu

from dphmm.arguments import checked
from dphmm.arrays import FloatArray
from dphmm.errors import ConfigurationError
from dphmm.facts import fact, facts_of
from dphmm.jobs.goodness_of_fit import chances_of
from dphmm.jobs.identity import CONFIDENCE, share_interval
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.people import Data, DataLike
from dphmm.jobs.progress import Watch, unwatched
from dphmm.model.away import away_of
from dphmm.model.fitting import fit_shrunk
from dphmm.model.model import MarkovModel
from dphmm.model.moves import state_sequences
from dphmm.space.trajectory import Trajectory

ALPHAS = (0.01, 0.05, 0.1)
"""The shares of other people who are taken for members, at which it is said how many members are found."""

SIGNIFICANT = 0.01
"""Below this p-value members count as told from others."""

_PARTS = 5
_LEAST_CHANCE = 1e-12
"""What a move that a model thinks impossible counts as."""


@dataclass(frozen=True, eq=False)
class MembershipAudit:
    """How well members are told from others by a likelihood ratio. Private: it needs to know who was a member.

    Parameters
    ----------
    members, others
        ``(n,)`` and ``(m,)``: each person's mean log ratio of a move's probability under what was published to that
        under a model of the others that was learned without them.
    alpha
        The share of others who may be taken for members, at which the verdict speaks.
    epsilon
        What the model promises to whole people; None where it promises nothing.
    """

    members: FloatArray = field(repr=False)
    others: FloatArray = field(repr=False)
    alpha: float = field(metadata=fact())
    epsilon: float | None = field(default=None, metadata=fact("promised_epsilon"))

    @property
    def area(self) -> float:
        """How probable it is that a member has the higher ratio of a member and another person: 0.5 by chance."""
        above = (self.members[:, None] > self.others[None]).mean()
        return float(above + 0.5 * (self.members[:, None] == self.others[None]).mean())

    @property
    def p_value(self) -> float:
        """That of the one-sided test by Mann and Whitney: as high ratios of members by chance."""
        return float(mannwhitneyu(self.members, self.others, alternative="greater").pvalue)

    @property
    def is_exposed(self) -> bool:
        """Whether members are told from others, at a p-value below `SIGNIFICANT`."""
        return self.p_value < SIGNIFICANT

    def found(self, alpha: float) -> tuple[float, float, float]:
        """The share of members who are found where at most a share of others is taken for members.

        Parameters
        ----------
        alpha
            The share of the others, from 0 to 1.

        Returns
        -------
        share, least, most
            With its exact interval of confidence 0.99, given the threshold, which the others set.
        """
        allowed = int(alpha * len(self.others) + 1e-9)
        threshold = np.sort(self.others)[::-1][allowed] if allowed < len(self.others) else -np.inf
        count = int((self.members > threshold).sum())
        return count / len(self.members), *share_interval(count, len(self.members))

    def bound(self, alpha: float) -> float:
        """The most members that may be found by the promise: ``e^epsilon * alpha``, at most 1.

        Parameters
        ----------
        alpha
            The share of others taken for members.

        Returns
        -------
        float
            1 where nothing is promised.
        """
        return 1.0 if self.epsilon is None else min(1.0, exp(min(self.epsilon, 700.0)) * alpha)

    def curve(self) -> tuple[FloatArray, FloatArray]:
        """Shares of others and of members above each threshold.

        Returns
        -------
        others, members
            From 0 to 1, rising.
        """
        every = np.unique(np.concatenate([self.members, self.others]))[::-1]
        shares = [[np.mean(some >= one) for one in every] for some in (self.others, self.members)]
        others, members = (np.array([0.0, *some]) for some in shares)
        return others, members

    def in_words(self) -> str:
        """The verdict in some sentences.

        Returns
        -------
        str
            Plain text.
        """
        share, least, most = (f"{100 * one:.0f}" for one in self.found(self.alpha))
        verdict = "are told" if self.is_exposed else "are not shown to be told"
        promise = (
            "Nothing is promised of that."
            if self.epsilon is None
            else f"The promise to whole people limits it to {100 * self.bound(self.alpha):.3g} %."
        )
        return (
            f"Members {verdict} from others: with {100 * self.alpha:.3g} % of the others taken for members "
            f"{share} % of the members are found (with confidence {CONFIDENCE:g} between {least} and {most} %); the "
            f"area under the curve is {self.area:.2f} (0.5 by chance), p = {self.p_value:.2g}. {promise}"
        )

    def facts(self) -> dict[str, Any]:
        """What was found as plain JSON values.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        rates = []
        for alpha in sorted({*ALPHAS, self.alpha}):
            share, least, most = self.found(alpha)
            named = {"found": share, "found_least": least, "found_most": most, "promised_most": self.bound(alpha)}
            rates.append({"alpha": alpha, **named})
        said = {"exposed": self.is_exposed, "in_words": self.in_words(), "members": len(self.members)}
        said |= {"others": len(self.others), "area_under_the_curve": self.area, "p_value": self.p_value}
        return facts_of(self, **said, rates=rates)


@checked
def audit_membership(
    model: Model,
    members: DataLike,
    others: DataLike,
    *,
    synthetic: DataLike | None = None,
    alpha: float = 0.05,
    watch: Watch = unwatched,
) -> MembershipAudit:
    """Whether people are told to be among those a model was learned from, as ``dphmm audit membership`` does.

    The attack knows somebody's moves and has data of other people: of each person it holds how probable their moves are
    under what was published against how probable they are under models of the others, of which a fifth at a time,
    and so each of the others once, is left out. (Of members the mean over these models is taken.)

    Parameters
    ----------
    model
        The published model.
    members
        The people that it was learned from, or some of them.
    others
        People like them that it was not learned from.
    synthetic
        People who do not exist, drawn from the model: these were published instead, and the attack learns a model of
        them.
    alpha
        The share of others who may be taken for members, at which the verdict speaks.
    watch
        Shows how far the job has come; see `dphmm.jobs.Watch`.

    Returns
    -------
    MembershipAudit
        What was found; private.

    Raises
    ------
    ConfigurationError
        When a person is among members and others, or fewer than five of either move within the region; when alpha is no
        share.
    DphmmError
        As the data and the model.
    """
    if not 0 < alpha < 1:
        raise ConfigurationError(f"alpha is {alpha:g}; give a share between 0 and 1")
    published = load_model(model)
    space, step = published.space, published.step
    inside, outside = (Data.from_any(one).read().trajectories for one in (members, others))
    both = sorted({one.user for one in inside} & {one.user for one in outside})
    if both:
        raise ConfigurationError(f"user {both[0]} is among members and others; give each person once")
    told = (published.learned or {}).get("epsilon")
    if synthetic is not None:
        drawn = Data.from_any(synthetic).read().trajectories
        published = fit_shrunk(state_sequences(drawn, space, step), space, step).model

    def reference(people: Sequence[Trajectory]) -> MarkovModel:
        twins = None if published.away is None else away_of(people, space, step)
        return fit_shrunk(state_sequences(people, space, step, None, twins), space, step, away=twins).model

    parts = [set(range(number, len(outside), _PARTS)) for number in range(min(_PARTS, len(outside)))]
    found, ratios = list[FloatArray](), np.full((len(parts), len(inside)), np.nan)
    of_others = np.full(len(outside), np.nan)
    in_public, out_public = (_means(published, some) for some in (inside, outside))
    for number, part in enumerate(watch(parts, "Comparing", len(parts))):
        known = reference([one for i, one in enumerate(outside) if i not in part])
        ratios[number] = in_public - _means(known, inside)
        left = sorted(part)
        of_others[left] = out_public[left] - _means(known, [outside[i] for i in left])
    found = [ratios.mean(axis=0) if len(parts) else np.zeros(0), of_others]
    moved = [one[np.isfinite(one)] for one in found]
    for name, one in zip(("members", "others"), moved, strict=True):
        if len(one) < _PARTS:
            raise ConfigurationError(f"{len(one)} {name} move within the region; give at least {_PARTS}")
    return MembershipAudit(moved[0], moved[1], alpha, None if told is None else float(Fraction(told)))


def _means(model: MarkovModel, people: Sequence[Trajectory]) -> FloatArray:
    """The mean log probability of each person's moves; NaN of people without one."""
    found = []
    for sequence in state_sequences(people, model.space, model.step, away=model.away):
        chances = chances_of(model, sequence)
        found.append(np.log(np.maximum(chances, _LEAST_CHANCE)).mean() if len(chances) else np.nan)
    return np.array(found)
