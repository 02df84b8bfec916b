"""Linkage of releases to users by an adversary who has earlier data of all candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from scipy.special import softmax

from dphmm.arrays import FloatArray, IntArray
from dphmm.audit.empirical_epsilon import CONFIDENCE, clopper_pearson_interval
from dphmm.audit.sequence import replay_sequence
from dphmm.errors import ConfigurationError, StochasticError
from dphmm.formatting import Result, exported, format_power_of_e
from dphmm.jobs.audit.adversaries import (
    LocationHistory,
    build_habit_model,
    build_missing_history_error,
    describe_omitted_users,
    extract_history,
    read_tracks_by_user,
    warn_of_single_days,
)
from dphmm.jobs.audit.session import ReplayTask, ReplayTasks, locate_true_states
from dphmm.jobs.audit.target import Prior, check_prior
from dphmm.jobs.batch.workers import Engine, Processes
from dphmm.jobs.input_data import DataLike
from dphmm.jobs.model.loading import Model, load_model
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.jobs.release.stored import ReplayResult, SettingsLike, replay_all
from dphmm.model import MarkovModel, Observations
from dphmm.model.forward_backward import compute_initial_logs, expand_log_likelihoods, run_forward_pass
from dphmm.release.engine import Releaser
from dphmm.release.ledger import sum_budgets
from dphmm.validation import Integers, Interval, check_arguments

# Default posterior probability of the correct, most probable candidate above which a user is singled out.
SINGLING_OUT_THRESHOLD = 0.5


# Numbers of timesteps, released or withheld, for which linkage is also reported.
LINKAGE_LENGTHS = (10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True, eq=False)
class UserLinkage:
    """Linkage of one user's releases.

    Parameters
    ----------
    user
        The user.
    epsilon
        The sum of the budgets.
    log_evidence
        ``(T, C)``: the log evidence of each candidate given the releases up to each timestep, up to a constant in each
        row.
    true_candidate
        Index of the user among the candidates.
    randomness_was_private
        Whether the noise came from the operating system. None if unknown.
    """

    user: str
    epsilon: float
    log_evidence: FloatArray = field(repr=False)
    true_candidate: int
    randomness_was_private: bool | None = None

    def posterior(self, num_timesteps: int | None = None) -> FloatArray:
        """Return the posterior probabilities of the candidates, ``(C,)``, after some timesteps.

        Parameters
        ----------
        num_timesteps
            Number of timesteps, at least 1. None means all.

        Returns
        -------
        ndarray, shape (C,)
            Probabilities with sum one.
        """
        return np.asarray(softmax(self.log_evidence[(num_timesteps or len(self)) - 1]))

    def rank(self, num_timesteps: int | None = None) -> int:
        """Return the rank of the true candidate after some timesteps, from 1. Ties rank last.

        Parameters
        ----------
        num_timesteps
            Number of timesteps, at least 1. None means all.

        Returns
        -------
        int
            1 if no other candidate is at least as probable.
        """
        row = self.log_evidence[(num_timesteps or len(self)) - 1]
        return int((row >= row[self.true_candidate]).sum())

    def __len__(self) -> int:
        return len(self.log_evidence)


@dataclass(frozen=True, eq=False)
class IdentityLinkage(Result):
    """Accuracy of linkage over users.

    Parameters
    ----------
    num_timesteps
        Number of timesteps used, released or withheld. None means all of each user.
    num_users
        Number of users with that many timesteps.
    top_1_accuracy, min_top_1_accuracy, max_top_1_accuracy
        The share of users with the correct candidate as the most probable one, and its confidence interval.
    top_k_accuracy
        The share of users with the correct candidate among the `k` most probable ones.
    mean_max_posterior
        The mean posterior probability of the most probable candidate. If the adversary is calibrated, it equals
        `top_1_accuracy`.
    """

    num_timesteps: int | None = field(metadata=exported())
    num_users: int = field(metadata=exported())
    top_1_accuracy: float = field(metadata=exported())
    min_top_1_accuracy: float = field(metadata=exported())
    max_top_1_accuracy: float = field(metadata=exported())
    top_k_accuracy: float = field(metadata=exported())
    mean_max_posterior: float = field(metadata=exported())


@dataclass(frozen=True, eq=False)
class Uniqueness(Result):
    """Uniqueness of users given some of their true locations at known times.

    Parameters
    ----------
    num_known_points
        Number of known locations and times.
    num_samples
        Number of sampled sets of known points. 0 if all sets were evaluated.
    by_times
        The share of sets for which no other record has all the times.
    by_releases, min_by_releases, max_by_releases
        The share of sets for which the user's releases are the most probable, and its confidence interval if the sets
        were sampled.
    by_places
        The share of sets for which no other true trajectory has all the locations at those times.
    """

    num_known_points: int = field(metadata=exported())
    num_samples: int = field(metadata=exported())
    by_times: float = field(metadata=exported())
    by_releases: float = field(metadata=exported())
    min_by_releases: float = field(metadata=exported())
    max_by_releases: float = field(metadata=exported())
    by_places: float = field(metadata=exported())


@dataclass(frozen=True, eq=False)
class IdentityAudit(Result):
    """Result of `audit_identity`. Private: it uses the users' identities.

    Parameters
    ----------
    users
        The linkage of each user.
    candidates
        Names of the candidates.
    k
        Number of candidates for the top-k accuracy.
    max_posterior
        A user is singled out if the correct candidate is the most probable one, with a probability above this.
    uniqueness
        Uniqueness for each number of known points. Empty without true locations.
    users_without_earlier_data
        Released users who are omitted, because they have no earlier data in the region.
    delta
        The largest delta of the constraint sets.
    """

    users: tuple[UserLinkage, ...] = field(repr=False)
    candidates: tuple[str, ...] = field(repr=False)
    k: int = field(metadata=exported())
    max_posterior: float = field(metadata=exported())
    uniqueness: tuple[Uniqueness, ...] = ()
    users_without_earlier_data: tuple[str, ...] = field(default=(), repr=False)
    delta: float = 0.0

    @cached_property
    def singled_out(self) -> tuple[str, ...]:
        """Users with a correct most probable candidate above `max_posterior`."""
        return tuple(
            user.user
            for user in self.users
            if user.rank() == 1 and user.posterior()[user.true_candidate] > self.max_posterior
        )

    @property
    def is_exposed(self) -> bool:
        """Whether any user is singled out."""
        return bool(self.singled_out)

    def compute_linkage(self, num_timesteps: int | None = None) -> IdentityLinkage | None:
        """Compute the linkage accuracy after some timesteps.

        Parameters
        ----------
        num_timesteps
            Number of timesteps. None means all of each user.

        Returns
        -------
        IdentityLinkage or None
            The accuracy over the users with that many timesteps. None if there are none.
        """
        users = [user for user in self.users if num_timesteps is None or len(user) >= num_timesteps]
        if not users:
            return None
        ranks = np.array([user.rank(num_timesteps) for user in users])
        posteriors = [user.posterior(num_timesteps).max() for user in users]
        num_correct = int((ranks == 1).sum())
        count = len(users)
        lower, upper = clopper_pearson_interval(num_correct, count)
        top_k = float((ranks <= self.k).mean())
        return IdentityLinkage(
            num_timesteps, count, num_correct / count, lower, upper, top_k, float(np.mean(posteriors))
        )

    def compute_calibration(self, bins: int = 5) -> list[dict[str, Any]]:
        """Compare the stated probability of the most probable candidate with its accuracy.

        The comparison is over all users and reported numbers of timesteps.

        Parameters
        ----------
        bins
            Number of equal bins of the probability. Empty bins are omitted.

        Returns
        -------
        list of dict
            ``from``, ``to``, ``count``, ``mean_posterior`` and ``accuracy`` of each bin.
        """
        pairs = [(user, n) for user in self.users for n in (*LINKAGE_LENGTHS, len(user)) if n <= len(user)]
        posteriors = np.array([user.posterior(n).max() for user, n in pairs])
        is_correct = np.array([user.rank(n) == 1 for user, n in pairs])
        bin_of = np.minimum((posteriors * bins).astype(np.int64), bins - 1)
        rows = list[dict[str, Any]]()
        for index in np.unique(bin_of).tolist():
            in_bin = bin_of == index
            means = {
                "mean_posterior": float(posteriors[in_bin].mean()),
                "accuracy": float(is_correct[in_bin].mean()),
            }
            rows.append({"from": index / bins, "to": (index + 1) / bins, "count": int(in_bin.sum()), **means})
        return rows

    def describe(self) -> str:
        """Summarize the audit in some sentences.

        Returns
        -------
        str
            Plain text.
        """
        linkage = self.compute_linkage()
        assert linkage is not None, "there is a user"
        max_epsilon = max(user.epsilon for user in self.users)
        num_correct = round(linkage.top_1_accuracy * linkage.num_users)
        count = len(self.candidates)
        where = " and they are among the most probable locations of the model" if self.delta else ""
        guarantee = (
            "The noise is seeded and can be reproduced: there is no guarantee."
            if any(user.randomness_was_private is False for user in self.users)
            else "The guarantee bounds the likelihood ratio of two candidates by "
            f"{format_power_of_e(max_epsilon)} if the policy connects their paths at every "
            f"timestep{where}. Otherwise it does not limit linkage."
        )
        return (
            f"{num_correct:,} of {linkage.num_users:,} users are linked correctly to their earlier data among "
            f"{count:,} candidates ({100 * linkage.top_1_accuracy:.0f} %, {100 * CONFIDENCE:g} % interval "
            f"{100 * linkage.min_top_1_accuracy:.0f} to {100 * linkage.max_top_1_accuracy:.0f} %; by chance "
            f"{100 / count:.3g} %). {len(self.singled_out):,} of them are singled out with a posterior probability "
            f"above {self.max_posterior:g}. {guarantee}{describe_omitted_users(self.users_without_earlier_data)}"
        )

    def _derive_fields(self) -> dict[str, Any]:
        linkage = self.compute_linkage()
        assert linkage is not None, "there is a user"
        ranks = [user.rank() for user in self.users]
        by_length = [result for length in LINKAGE_LENGTHS if (result := self.compute_linkage(length)) is not None]
        return {
            "exposed": self.is_exposed,
            "in_words": self.describe(),
            "num_candidates": len(self.candidates),
            "num_users_without_earlier_data": len(self.users_without_earlier_data),
            "users_without_earlier_data": self.users_without_earlier_data,
            "mean_rank": float(np.mean(ranks)),
            "mean_rank_by_chance": (len(self.candidates) + 1) / 2,
            "by_num_timesteps": by_length,
            "calibration": self.compute_calibration(),
            "uniqueness": self.uniqueness,
            **linkage.to_dict(),
            "singled_out": self.singled_out,
            "users": [self._describe_user(user) for user in self.users],
        }

    def _describe_user(self, linkage: UserLinkage) -> dict[str, Any]:
        posterior = linkage.posterior()
        return {
            "user": linkage.user,
            "num_timesteps": len(linkage),
            "epsilon": linkage.epsilon,
            "randomness_was_private": linkage.randomness_was_private,
            "rank": linkage.rank(),
            "posterior": posterior[linkage.true_candidate],
            "most_probable_candidate": self.candidates[int(posterior.argmax())],
            "max_posterior": posterior.max(),
        }

    def to_dict_without_users(self) -> dict[str, Any]:
        """Export the result without data of single users: shares and means only.

        Returns
        -------
        dict
            Names → plain JSON values.
        """
        fields = self.to_dict()
        return {name: value for name, value in fields.items() if name not in _FIELDS_WITH_NAMES}


# The exported fields that contain the names of users.
_FIELDS_WITH_NAMES = {"users", "singled_out", "users_without_earlier_data"}


@check_arguments
def audit_identity(
    path: str | Path,
    model: Model,
    auxiliary_data: DataLike,
    settings: SettingsLike | None = None,
    *,
    users: Sequence[str] = (),
    true: DataLike | None = None,
    prior: Prior | None = None,
    k: Annotated[int, Integers(1, error=ConfigurationError)] = 3,
    max_posterior: Annotated[float, Interval(0, 1, "neither", error=ConfigurationError)] = SINGLING_OUT_THRESHOLD,
    rng: Annotated[int, Integers(0, error=ConfigurationError)] | np.random.Generator = 0,
    engine: Engine | None = None,
    watch: ProgressCallback = suppress_progress,
) -> IdentityAudit:
    """Audit the linkage of releases to users, as ``dphmm audit identity`` does.

    The adversary has earlier data of each candidate and builds a model from them (`dphmm.model.habits.with_habits`).
    Under each model, the filter gives the exact likelihood of the releases with the noise of each release. Data of a
    released user from the first release on are not used.

    Parameters
    ----------
    path, model, settings, users
        See `dphmm.jobs.audit_session`.
    auxiliary_data
        Earlier data of the candidates, by name. Released users without earlier data in the region are omitted and
        reported.
    true
        The released trajectories. If given, the audit also measures the uniqueness of users given some true locations
        at known times (see `Uniqueness`). For one and two known points all sets are evaluated.
    prior
        Prior probabilities of the candidates: numbers in the order of their names in `auxiliary_data`, or a table with
        columns ``state`` (the name) and ``probability``. Defaults to the uniform distribution.
    k
        Number of candidates for the top-k accuracy.
    max_posterior
        A user is singled out if the correct candidate is the most probable one, with a probability above this.
    rng
        Seed or generator of the sampled sets of known points.
    engine
        Workers, such as `dphmm.jobs.batch.workers.Processes` or a Dask cluster. Earlier data of the candidates are sent
        to them. Each worker compares one candidate at a time with the releases of all users, so its memory grows with
        the number of releases. Defaults to this process.
    watch
        Progress callback, see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    IdentityAudit
        The result. Private.

    Raises
    ------
    ConfigurationError
        If there is no release or fewer than two candidates, no released user has earlier data in the region, or
        `max_posterior` or `k` is out of range.
    DphmmError
        See `dphmm.jobs.audit_session`, and if the data are invalid.
    """
    learned = load_model(model)
    released = replay_all(path, learned, settings, users)
    begins = {replay.sequence.user: replay.slots[0] for replay in released}
    histories = {
        user: history
        for user, track in read_tracks_by_user(auxiliary_data).items()
        if (history := extract_history(track, learned, begins.get(user))) is not None
    }
    warn_of_single_days(histories.values(), learned)
    released = tuple(replay for replay in released if replay.sequence.user in histories)
    if not released:
        raise build_missing_history_error(next(iter(begins)))
    omitted = tuple(user for user in begins if user not in histories)
    if len(histories) < 2:
        raise ConfigurationError("auxiliary_data must contain at least two users, got one candidate")
    names = tuple(histories)
    candidate_prior = check_prior(prior, names)
    crew = Processes(1) if engine is None else engine
    tasks = ReplayTasks(released)
    replayed = crew.run_in_order(partial(_replay_observations, tasks.engines), tasks.build())
    observed = list(watch(replayed, "Replaying", len(released)))
    # One model at a time: each caches the transitions over its gaps.
    compared = crew.run_in_order(partial(_compare_candidate, learned, observed), map(Candidate, histories.values()))
    evidence = np.array(list(watch(compared, "Comparing", len(histories))))
    if candidate_prior is not None:
        with np.errstate(divide="ignore"):
            evidence += np.log(candidate_prior)[:, None]
    ends = np.cumsum([len(observations) for observations in observed])[:-1]
    linkages = tuple(
        UserLinkage(
            replay.sequence.user,
            sum_budgets(replay.sequence.epsilons.tolist()),
            rows,
            names.index(replay.sequence.user),
            replay.private,
        )
        for replay, rows in zip(released, np.split(evidence.T, ends), strict=True)
    )
    uniqueness = (
        () if true is None else _measure_uniqueness(released, observed, locate_true_states(true, released), rng)
    )
    delta = max(replay.engine.settings.delta or 0.0 for replay in released)
    return IdentityAudit(linkages, names, k, max_posterior, uniqueness, omitted, delta)


# Numbers of known locations and times for which uniqueness is measured.
NUMS_KNOWN_POINTS = (1, 2, 3, 5, 10)


# With this number of samples, the interval of a share is at most 6 % wide.
_NUM_DRAWS = 2000


# Maximum of pairs of timesteps times candidates that are all evaluated, which bounds the run time.
_MAX_PAIRS = 200_000_000


def _measure_uniqueness(
    released: Sequence[ReplayResult],
    observed: Sequence[Observations],
    truths: Sequence[IntArray],
    rng: int | np.random.Generator,
) -> tuple[Uniqueness, ...]:
    """Measure uniqueness for each number of known points."""
    slots = [np.asarray(replay.slots, dtype=np.int64) for replay in released]
    tables = [_compute_record_log_likelihoods(number, slots, observed, truths) for number in range(len(released))]
    pairs = sum(len(user_slots) ** 2 for user_slots in slots) * len(slots)
    generator = np.random.default_rng(rng)
    results = []
    for k in NUMS_KNOWN_POINTS:
        if k <= 2 and (k == 1 or pairs <= _MAX_PAIRS):
            shares = [_average_over_all_points(k, table) for table in tables if len(table) >= k]
            if shares:
                times, releases, places = np.mean(shares, axis=0).tolist()
                results.append(Uniqueness(k, 0, times, releases, releases, releases, places))
            continue
        enough = [table for table in tables if len(table) >= k]
        if not enough:
            continue
        which = generator.integers(0, len(enough), _NUM_DRAWS)
        hits = np.array(
            [
                _is_own_record_best(enough[user][generator.choice(len(enough[user]), k, replace=False)].sum(axis=0))
                for user in which
            ]
        )
        times, releases, places = hits.mean(axis=0).tolist()
        lower, upper = clopper_pearson_interval(int(hits[:, 1].sum()), _NUM_DRAWS)
        results.append(Uniqueness(k, _NUM_DRAWS, times, releases, lower, upper, places))
    return tuple(results)


def _compute_record_log_likelihoods(
    number: int, slots: Sequence[IntArray], observed: Sequence[Observations], truths: Sequence[IntArray]
) -> FloatArray:
    """Compute log likelihoods of all records at a user's timesteps, ``(T, 3, C)``, own first.

    Times: 0 if the record has the timestep, otherwise minus infinity. Releases: the log likelihood of the record's
    release at the user's true location. Locations: 0 if the other user was at the same location, otherwise minus
    infinity.
    """
    user_slots = slots[number]
    where = truths[number]
    log_ratios = np.full((len(user_slots), 3, len(slots)), -np.inf)
    order = [number, *(other for other in range(len(slots)) if other != number)]
    for column, other in enumerate(order):
        _, here, there = np.intersect1d(user_slots, slots[other], return_indices=True)
        log_ratios[here, 0, column] = 0.0
        log_ratios[here, 1, column] = observed[other].log_likelihood[there, where[here]]
        log_ratios[here, 2, column] = np.where(truths[other][there] == where[here], 0.0, -np.inf)
    return log_ratios


def _is_own_record_best(sums: FloatArray) -> FloatArray:
    """Return whether the own record ``(…, 3, C)``, the first, is the most probable."""
    return np.asarray(sums[..., 0] > sums[..., 1:].max(axis=-1, initial=-np.inf))


def _average_over_all_points(k: int, table: FloatArray) -> FloatArray:
    """Return the shares ``(3,)`` of sets of points for which the own record is the best."""
    if k == 1:
        return np.asarray(_is_own_record_best(table).mean(axis=0))
    hits = np.zeros(3)
    count = len(table)
    for first in range(count - 1):
        hits += _is_own_record_best(table[first] + table[first + 1 :]).sum(axis=0)
    return hits / (count * (count - 1) / 2)


def _replay_observations(engines: Sequence[Releaser], task: ReplayTask) -> Observations:
    engine, sequence = task.restore(engines)
    rows = np.array([step.log_likelihood for step in replay_sequence(engine, sequence)])
    return Observations(rows, np.asarray(sequence.steps), sequence.first_slot)


@dataclass(frozen=True, eq=False)
class Candidate:
    """The earlier data of a candidate, as a task for a worker.

    Its representation, as in a worker's log, contains no location.
    """

    history: LocationHistory = field(repr=False)


def _compare_candidate(
    public: MarkovModel, user_observations: Sequence[Observations], candidate: Candidate
) -> FloatArray:
    model = build_habit_model(public, candidate.history)
    return _compute_log_evidence(model, user_observations)


def _compute_log_evidence(model: MarkovModel, user_observations: Sequence[Observations]) -> FloatArray:
    """Compute the cumulative log evidence of all users' releases, up to a constant."""
    rows = []
    for observed in user_observations:
        operators = model.operators(observed.gaps, observed.slots)
        try:
            sums = run_forward_pass(
                operators, expand_log_likelihoods(model, observed), compute_initial_logs(model, observed, None)
            ).log_sums
        except StochasticError:  # the releases are impossible under this candidate's model
            sums = np.full(len(observed), -np.inf)
        rows.append(np.cumsum(sums))
    return np.concatenate(rows)
