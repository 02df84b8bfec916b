"""Who is it? Whose releases these are, and who was among the people whom a model was made from.

Of releases somebody asks who has earlier data of everybody whom they may be from; of a model, or of synthetic people,
somebody who knows a person's moves, by likelihood ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax
from scipy.stats import beta, mannwhitneyu

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray
from dphmm.audit.sequence import replay_sequence
from dphmm.errors import ConfigurationError, StochasticError
from dphmm.facts import fact, facts_of, power_of_e
from dphmm.jobs.adversaries import before, habits, nothing_known, tracks_of
from dphmm.jobs.audits import Prior, checked_prior, true_states
from dphmm.jobs.goodness_of_fit import chances_of
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.progress import Watch, unwatched
from dphmm.jobs.stored_releases import Replayed, SettingsLike, replay_all
from dphmm.model import MarkovModel, Observations, fit_shrunk, state_sequences
from dphmm.model.away import away_of
from dphmm.model.forward_backward import chain_rows, first_logs, forward_pass
from dphmm.release.ledger import total
from dphmm.space.trajectory import Trajectory

CONFIDENCE = 0.99
"""That of every interval."""

SINGLED_OUT = 0.5
"""Where the likeliest candidate is right and more probable than this, a person is singled out."""

LENGTHS = (10, 20, 50, 100, 200, 500, 1000)
"""After how many moments, with a draw or without, it is looked at too."""


@dataclass(frozen=True, eq=False)
class Linked:
    """What is found of one person.

    Parameters
    ----------
    user
        Whose the releases are.
    epsilon
        The sum of their budgets.
    log_evidence
        ``(T, C)``: of each candidate the logarithm of how probable the releases up to each are, but for a constant of
        each row.
    own
        The number of the candidate who it is.
    """

    user: str
    epsilon: float
    log_evidence: FloatArray = field(repr=False)
    own: int

    def posterior(self, moments: int | None = None) -> FloatArray:
        """The probabilities of the candidates ``(C,)``, all equally likely before, after some moments.

        Parameters
        ----------
        moments
            How many, from 1; left out, all that there are.

        Returns
        -------
        ndarray, shape (C,)
            They sum to one.
        """
        return np.asarray(softmax(self.log_evidence[(moments or len(self)) - 1]))

    def rank(self, moments: int | None = None) -> int:
        """The place of the right candidate, from 1, after some moments; of equal ones the last.

        Parameters
        ----------
        moments
            How many, from 1; left out, all that there are.

        Returns
        -------
        int
            1 where no other candidate is as probable.
        """
        row = self.log_evidence[(moments or len(self)) - 1]
        return int((row >= row[self.own]).sum())

    def __len__(self) -> int:
        return len(self.log_evidence)


@dataclass(frozen=True, eq=False)
class Found:
    """How many people are found among the candidates.

    Parameters
    ----------
    moments
        After how many moments, with a draw or without; None for all that each person has.
    people
        How many people have as many.
    first, first_least, first_most
        The share of those whose candidate is the likeliest, with its interval.
    within
        The share of those whose candidate is among the `k` likeliest.
    stated
        The mean probability of the likeliest candidate: how often somebody believes to be right, beside `first`.
    """

    moments: int | None = field(metadata=fact())
    people: int = field(metadata=fact())
    first: float = field(metadata=fact("linked_right"))
    first_least: float = field(metadata=fact("linked_right_least"))
    first_most: float = field(metadata=fact("linked_right_most"))
    within: float = field(metadata=fact("right_among_the_k_likeliest"))
    stated: float = field(metadata=fact("probability_of_the_likeliest"))


@dataclass(frozen=True, eq=False)
class Unique:
    """How many people are told from all others by a few true places at known times.

    Parameters
    ----------
    k
        How many places and times are known of somebody.
    drawn
        How many times a person and as many of their moments were drawn; 0 where all were gone through.
    by_times
        The share of those known moments of which no other record has all the times.
    by_releases, least, most
        The share in which the person's releases are the likeliest, with its interval where they were drawn.
    by_places
        The share in which no other true trajectory has all the places at those times.
    """

    k: int = field(metadata=fact("known_points"))
    drawn: int = field(metadata=fact())
    by_times: float = field(metadata=fact())
    by_releases: float = field(metadata=fact())
    least: float = field(metadata=fact("by_releases_least"))
    most: float = field(metadata=fact("by_releases_most"))
    by_places: float = field(metadata=fact())


@dataclass(frozen=True, eq=False)
class IdentityAudit:
    """Whether people are found among candidates by their releases. Private: it needs who is who.

    Parameters
    ----------
    people
        What is found of each.
    candidates
        Who they may be.
    k
        How many candidates count as the likeliest.
    most_certainty
        Above which probability of the right candidate, being the likeliest, a person is singled out.
    unique
        How many people are told from all others by a few known points; empty where true places were not given.
    """

    people: tuple[Linked, ...] = field(repr=False)
    candidates: tuple[str, ...] = field(repr=False)
    k: int = field(metadata=fact())
    most_certainty: float = field(metadata=fact())
    unique: tuple[Unique, ...] = ()

    @cached_property
    def singled_out(self) -> tuple[str, ...]:
        """Whose candidate is the likeliest, and more probable than `most_certainty`, after all moments."""
        return tuple(
            one.user for one in self.people if one.rank() == 1 and one.posterior()[one.own] > self.most_certainty
        )

    @property
    def is_exposed(self) -> bool:
        """Whether anyone is singled out."""
        return bool(self.singled_out)

    def found(self, moments: int | None = None) -> Found | None:
        """How many people are found after some moments; None where no one has as many.

        Parameters
        ----------
        moments
            How many; left out, all that each has.

        Returns
        -------
        Found or None
            Of the people who have as many.
        """
        some = [one for one in self.people if moments is None or len(one) >= moments]
        if not some:
            return None
        ranks = np.array([one.rank(moments) for one in some])
        stated = [one.posterior(moments).max() for one in some]
        right, count = int((ranks == 1).sum()), len(some)
        least, most = share_interval(right, count)
        within = float((ranks <= self.k).mean())
        return Found(moments, count, right / count, least, most, within, float(np.mean(stated)))

    def calibration(self, bins: int = 5) -> list[dict[str, Any]]:
        """How often the likeliest candidate is right where somebody states a probability, over people and lengths.

        Parameters
        ----------
        bins
            How many equal parts probabilities fall into; empty ones are left out.

        Returns
        -------
        list of dict
            ``from``, ``to``, how often (``count``), the mean ``stated`` and the share that was ``right``.
        """
        looked = [(one, n) for one in self.people for n in (*LENGTHS, len(one)) if n <= len(one)]
        stated = np.array([one.posterior(n).max() for one, n in looked])
        right = np.array([one.rank(n) == 1 for one, n in looked])
        bin_of, found = np.minimum((stated * bins).astype(np.int64), bins - 1), list[dict[str, Any]]()
        for number in np.unique(bin_of).tolist():
            some = bin_of == number
            means = {"stated": float(stated[some].mean()), "right": float(right[some].mean())}
            found.append({"from": number / bins, "to": (number + 1) / bins, "count": int(some.sum()), **means})
        return found

    def in_words(self) -> str:
        """The verdict in some sentences.

        Returns
        -------
        str
            Plain text.
        """
        all_ = self.found()
        assert all_ is not None, "there is a person"
        spent = max(one.epsilon for one in self.people)
        right, count = round(all_.first * all_.people), len(self.candidates)
        return (
            f"Of {all_.people:,} people {right:,} are linked to their earlier data among {count:,} candidates "
            f"({100 * all_.first:.0f} %, with confidence {CONFIDENCE:g} between {100 * all_.first_least:.0f} and "
            f"{100 * all_.first_most:.0f} %; by chance {100 / count:.3g} %), {len(self.singled_out):,} of them with "
            f"more than {self.most_certainty:g} of the probability. The promise limits this for two people whose paths "
            f"the policy joins throughout, to {power_of_e(spent)}; for others it says nothing of identity."
        )

    def facts(self) -> dict[str, Any]:
        """What was found as plain JSON values.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        lengths = [one for length in LENGTHS if (one := self.found(length)) is not None]
        all_ = self.found()
        users = [
            {
                "user": one.user,
                "moments": len(one),
                "epsilon": one.epsilon,
                "rank": one.rank(),
                "probability": float(one.posterior()[one.own]),
                "likeliest": self.candidates[int(one.posterior().argmax())],
                "probability_of_the_likeliest": float(one.posterior().max()),
            }
            for one in self.people
        ]
        ranks = [one.rank() for one in self.people]
        told = {"exposed": self.is_exposed, "in_words": self.in_words(), "candidates": len(self.candidates)}
        told |= {"rank_mean": float(np.mean(ranks)), "rank_mean_by_chance": (len(self.candidates) + 1) / 2}
        told |= {"by_moments": [facts_of(one) for one in lengths], "calibration": self.calibration()}
        told |= {"unique": [facts_of(one) for one in self.unique]}
        return facts_of(self, **told, **facts_of(all_), singled_out=self.singled_out, users=users)

    def without_names(self) -> dict[str, Any]:
        """The facts without those of single people: shares and means alone.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        found = self.facts()
        return {name: value for name, value in found.items() if name not in ("users", "singled_out")}


@checked
def audit_identity(
    path: str | Path,
    model: Model,
    known: DataLike,
    settings: SettingsLike | None = None,
    *,
    users: Sequence[str] = (),
    true: DataLike | None = None,
    prior: Prior | None = None,
    k: int = 3,
    most_certainty: float = SINGLED_OUT,
    seed: int = 0,
    watch: Watch = unwatched,
) -> IdentityAudit:
    """Whether releases are linked to people by somebody who has earlier data of each, as ``dphmm audit identity`` does.

    Of each candidate a model is made of their earlier data (`dphmm.model.habits.with_habits`). Under it, and with the
    noise of each release as it was drawn, the releases have an exact likelihood, by the filter. Data of a person from
    their own first release on are not used.

    Parameters
    ----------
    path, model, settings, users
        As in `dphmm.jobs.audit_session`.
    known
        Earlier data of the candidates, among whom each released person is, by name.
    true
        The trajectories that were released: it is then asked, too, whether a few true places at known times tell a
        person from all others (see `Unique`), of one and two points for all of a person's moments.
    prior
        How probable the candidates are before: numbers in the order of their names in `known`, or a table of
        ``state``, their name, and ``probability``. Left out, all are equally likely.
    k
        How many candidates count as the likeliest.
    most_certainty
        Above which probability of the right candidate, being the likeliest, a person is singled out.
    seed
        Which moments are drawn where more points are known than can be gone through.
    watch
        Shows how far the job has come; see `dphmm.jobs.Watch`.

    Returns
    -------
    IdentityAudit
        What was found; private.

    Raises
    ------
    ConfigurationError
        When there is no release, fewer than two candidates, or a released person is not among these or has no earlier
        data in the region; when the certainty is no probability, or ``k`` below 1.
    DphmmError
        As `dphmm.jobs.audit_session` and the data.
    """
    if not 0 < most_certainty < 1:
        raise ConfigurationError(f"most_certainty is {most_certainty:g}; give a number between 0 and 1")
    for name, value, least in (("k", k, 1), ("seed", seed, 0)):
        if value < least:
            raise ConfigurationError(f"{name} is {value}; give {least} or more")
    learned = load_model(model)
    released = replay_all(path, learned, settings, users)
    begins = {one.sequence.user: one.slots[0] for one in released}
    moments = {
        user: found
        for user, track in tracks_of(known).items()
        if (found := before(track, learned, begins.get(user))) is not None
    }
    missing = next((user for user in begins if user not in moments), None)
    if missing is not None:
        raise nothing_known(missing)
    if len(moments) < 2:
        raise ConfigurationError("there is one candidate; give earlier data of two people or more")
    names = tuple(moments)
    before_all = checked_prior(prior, names)
    observed = [_observed(one) for one in watch(released, "Replaying", len(released))]
    evidence = np.array(  # a model at a time: each keeps what its gaps take
        [
            _evidence(habits(learned, found), observed)
            for found in watch(list(moments.values()), "Comparing", len(moments))
        ]
    )
    if before_all is not None:
        with np.errstate(divide="ignore"):
            evidence += np.log(before_all)[:, None]
    ends = np.cumsum([len(one) for one in observed])[:-1]
    people = tuple(
        Linked(one.sequence.user, total(one.sequence.epsilons.tolist()), found, names.index(one.sequence.user))
        for one, found in zip(released, np.split(evidence.T, ends), strict=True)
    )
    unique = () if true is None else _unique(released, observed, true_states(true, released), seed)
    return IdentityAudit(people, names, k, most_certainty, unique)


KNOWN_POINTS = (1, 2, 3, 5, 10)
"""How many true places and times somebody knows of a person."""

_DRAWN, _MOST_PAIRS = 2000, 200_000_000


def _unique(
    released: Sequence[Replayed], observed: Sequence[Observations], truths: Sequence[IntArray], seed: int
) -> tuple[Unique, ...]:
    """Of each number of known points, whether they tell a person's record from all others."""
    slots = [np.asarray(one.slots, dtype=np.int64) for one in released]
    tables = [_of_each_record(number, slots, observed, truths) for number in range(len(released))]
    pairs = sum(len(one) ** 2 for one in slots) * len(slots)
    rng, found = np.random.default_rng(seed), []
    for k in KNOWN_POINTS:
        if k <= 2 and (k == 1 or pairs <= _MOST_PAIRS):
            shares = [_all_of(k, table) for table in tables if len(table) >= k]
            if shares:
                times, releases, places = np.mean(shares, axis=0).tolist()
                found.append(Unique(k, 0, times, releases, releases, releases, places))
            continue
        enough = [table for table in tables if len(table) >= k]
        if not enough:
            continue
        which = rng.integers(0, len(enough), _DRAWN)
        hits = np.array(
            [_told_apart(enough[one][rng.choice(len(enough[one]), k, replace=False)].sum(axis=0)) for one in which]
        )
        times, releases, places = hits.mean(axis=0).tolist()
        least, most = share_interval(int(hits[:, 1].sum()), _DRAWN)
        found.append(Unique(k, _DRAWN, times, releases, least, most, places))
    return tuple(found)


def _of_each_record(
    number: int, slots: Sequence[IntArray], observed: Sequence[Observations], truths: Sequence[IntArray]
) -> FloatArray:
    """At each of a person's moments ``(T, 3, C)`` the log likelihood of each record, the person's own first.

    By times it is 0 where a record has the moment and minus infinity where it has not; by releases that of the
    release, at the person's true place; by places 0 where the other person was at the same.
    """
    mine, where = slots[number], truths[number]
    found = np.full((len(mine), 3, len(slots)), -np.inf)
    order = [number, *(other for other in range(len(slots)) if other != number)]
    for column, other in enumerate(order):
        _, here, there = np.intersect1d(mine, slots[other], return_indices=True)
        found[here, 0, column] = 0.0
        found[here, 1, column] = observed[other].log_likelihood[there, where[here]]
        found[here, 2, column] = np.where(truths[other][there] == where[here], 0.0, -np.inf)
    return found


def _told_apart(sums: FloatArray) -> FloatArray:
    """Whether the own record ``(…, 3, C)``, the first, is likelier than every other one."""
    return np.asarray(sums[..., 0] > sums[..., 1:].max(axis=-1, initial=-np.inf))


def _all_of(k: int, table: FloatArray) -> FloatArray:
    """The shares ``(3,)`` of one person's known moments, or pairs of them, that tell their record from all others."""
    if k == 1:
        return np.asarray(_told_apart(table).mean(axis=0))
    hits, count = np.zeros(3), len(table)
    for first in range(count - 1):
        hits += _told_apart(table[first] + table[first + 1 :]).sum(axis=0)
    return hits / (count * (count - 1) / 2)


def share_interval(right: int, count: int) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share, of confidence `CONFIDENCE`."""
    half = (1 - CONFIDENCE) / 2
    least = float(beta.ppf(half, right, count - right + 1)) if right else 0.0
    return least, float(beta.ppf(1 - half, right + 1, count - right)) if right < count else 1.0


def _observed(one: Replayed) -> Observations:
    rows = np.array([step.log_likelihood for step in replay_sequence(one.engine, one.sequence)])
    return Observations(rows, np.asarray(one.sequence.steps), one.sequence.first)


def _evidence(model: MarkovModel, people: Sequence[Observations]) -> FloatArray:
    """The logarithms of how probable each person's releases up to each are, but for a constant, one after another."""
    found = []
    for observed in people:
        operators = model.operators(observed.gaps, observed.slots)
        try:
            sums = forward_pass(operators, chain_rows(model, observed), first_logs(model, observed, None)).log_sums
        except StochasticError:  # the person went where this candidate's model thinks that no one can be
            sums = np.full(len(observed), -np.inf)
        found.append(np.cumsum(sums))
    return np.concatenate(found)


# ---- members of a model ---------------------------------------------------------------------------------------------

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
    """Whether it shows that people are among those a model was learned from, as ``dphmm audit membership`` does.

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
