"""Membership inference against a model by likelihood ratios of users' transitions.

The published object is either the model or only synthetic users sampled from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import exp
from typing import Annotated, Any

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.audit.empirical_epsilon import CONFIDENCE, clopper_pearson_interval
from dphmm.errors import ConfigurationError
from dphmm.formatting import Result, exported
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.model.goodness_of_fit import compute_move_probabilities
from dphmm.jobs.model.loading import Model, load_model
from dphmm.jobs.model.training_users import find_training_users
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.model import MarkovModel, fit_shrunk, state_sequences
from dphmm.model.outside_states import learn_outside_states
from dphmm.space.trajectory import Trajectory
from dphmm.validation import Interval, check_arguments

# False positive rates for which the detection rate is reported.
FALSE_POSITIVE_RATES = (0.01, 0.05, 0.1)


# Significance level: members count as distinguished below this p-value.
SIGNIFICANCE_LEVEL = 0.01


# Each non-member is compared with a model of the other four fifths of the non-members.
_NUM_FOLDS = 5


# Probability assigned to transitions that a model considers impossible.
_MIN_CHANCE = 1e-12


@dataclass(frozen=True, eq=False)
class MembershipAudit(Result):
    """Power of a likelihood-ratio test for membership. Private: it uses the true membership.

    Parameters
    ----------
    members, others
        ``(n,)`` and ``(m,)``: each user's mean log ratio of the transition probabilities under the published model to
        those under a model of the non-members without this user.
    alpha
        The false positive rate of the summary.
    epsilon
        The user-level guarantee of the model, None without one.
    unlisted_members
        The number of members that the list of the model's training users lacks. None without a list.
    """

    members: FloatArray = field(repr=False)
    others: FloatArray = field(repr=False)
    alpha: float = field(metadata=exported())
    epsilon: float | None = field(default=None, metadata=exported("user_epsilon"))
    unlisted_members: int | None = field(default=None, metadata=exported("num_unlisted_members"))

    @property
    def area_under_curve(self) -> float:
        """Area under the ROC curve: probability that a member has the higher ratio, 0.5 by chance."""
        above = (self.members[:, None] > self.others[None]).mean()
        return float(above + 0.5 * (self.members[:, None] == self.others[None]).mean())

    @property
    def p_value(self) -> float:
        """The p-value of the one-sided Mann–Whitney test."""
        from scipy.stats import mannwhitneyu

        return float(mannwhitneyu(self.members, self.others, alternative="greater").pvalue)

    @property
    def is_exposed(self) -> bool:
        """Whether members are distinguished from others: a p-value below `SIGNIFICANCE_LEVEL`."""
        return self.p_value < SIGNIFICANCE_LEVEL

    def estimate_detection_rate(self, alpha: float) -> tuple[float, float, float]:
        """Estimate the share of members that are detected at a false positive rate.

        Parameters
        ----------
        alpha
            The false positive rate, in [0, 1].

        Returns
        -------
        share, lower, upper
            The share with its exact 99 % interval, given the threshold that the non-members determine.
        """
        allowed = int(alpha * len(self.others) + 1e-9)
        threshold = np.sort(self.others)[::-1][allowed] if allowed < len(self.others) else -np.inf
        count = int((self.members > threshold).sum())
        return count / len(self.members), *clopper_pearson_interval(count, len(self.members))

    def estimate_max_false_positive_rate(self, alpha: float) -> float:
        """Return the upper 99 % confidence limit of the actual false positive rate.

        Few non-members determine the threshold. Its false positive rate among other users can therefore be larger than
        among them.

        Parameters
        ----------
        alpha
            The false positive rate among the non-members, in [0, 1].

        Returns
        -------
        float
            The limit, in [0, 1].
        """
        return clopper_pearson_interval(int(alpha * len(self.others) + 1e-9), len(self.others))[1]

    def max_detection_rate(self, alpha: float) -> float:
        """Return the largest detection rate under the guarantee, at most ``e^epsilon * alpha``.

        Parameters
        ----------
        alpha
            The false positive rate.

        Returns
        -------
        float
            The bound, 1 without a guarantee.
        """
        return 1.0 if self.epsilon is None else min(1.0, exp(min(self.epsilon, 700.0)) * alpha)

    def compute_roc_curve(self) -> tuple[FloatArray, FloatArray]:
        """Compute the ROC curve.

        Returns
        -------
        others, members
            False positive rates and detection rates, increasing from 0 to 1.
        """
        thresholds = np.unique(np.concatenate([self.members, self.others]))[::-1]
        shares = [[np.mean(scores >= threshold) for threshold in thresholds] for scores in (self.others, self.members)]
        others, members = (np.array([0.0, *rates]) for rates in shares)
        return others, members

    def describe(self) -> str:
        """Summarize the audit in some sentences.

        Returns
        -------
        str
            Plain text.
        """
        share, lower, upper = (f"{100 * rate:.0f}" for rate in self.estimate_detection_rate(self.alpha))
        conclusion = (
            "Members are distinguished from non-members."
            if self.is_exposed
            else "The test does not distinguish members from non-members."
        )
        guarantee = (
            "The model has no user-level guarantee."
            if self.epsilon is None
            else f"The user-level guarantee limits this rate to {100 * self.max_detection_rate(self.alpha):.3g} %."
        )
        limit = self.estimate_max_false_positive_rate(self.alpha)
        threshold = (
            f"The threshold is that of {len(self.others)} non-members: its false positive rate for other users can be "
            f"up to {100 * limit:.0f} % ({100 * CONFIDENCE:g} % confidence)"
        )
        if self.epsilon is not None:
            threshold += f", for which the guarantee permits up to {100 * self.max_detection_rate(limit):.0f} %"
        unlisted = (
            f" {self.unlisted_members} of {len(self.members)} members are not in the list of the model's training "
            "users. If they are not training users under other names either, the result understates the attack."
            if self.unlisted_members
            else ""
        )
        return (
            f"{conclusion} At a false positive rate of {100 * self.alpha:.3g} %, {share} % of the members are detected "
            f"({100 * CONFIDENCE:g} % interval {lower} to {upper} %). The area under the ROC curve is "
            f"{self.area_under_curve:.2f} (0.5 by chance), p = {self.p_value:.2g}. {guarantee} {threshold}.{unlisted}"
        )

    def _derive_fields(self) -> dict[str, Any]:
        rates = []
        for alpha in sorted({*FALSE_POSITIVE_RATES, self.alpha}):
            share, lower, upper = self.estimate_detection_rate(alpha)
            rates.append(
                {
                    "alpha": alpha,
                    "max_false_positive_rate": self.estimate_max_false_positive_rate(alpha),
                    "detection_rate": share,
                    "min_detection_rate": lower,
                    "max_detection_rate": upper,
                    "guaranteed_max_detection_rate": self.max_detection_rate(alpha),
                }
            )
        return {
            "exposed": self.is_exposed,
            "in_words": self.describe(),
            "num_members": len(self.members),
            "num_others": len(self.others),
            "area_under_curve": self.area_under_curve,
            "p_value": self.p_value,
            "rates": rates,
        }


@check_arguments
def audit_membership(
    model: Model,
    members: DataLike,
    others: DataLike,
    *,
    synthetic: DataLike | None = None,
    alpha: Annotated[float, Interval(0, 1, "neither", error=ConfigurationError)] = 0.05,
    watch: ProgressCallback = suppress_progress,
) -> MembershipAudit:
    """Audit whether a model reveals its training users, as ``dphmm audit membership`` does.

    The attack knows a user's transitions and has data of other users. It compares the probability of the transitions
    under the published model with that under models of the non-members. The non-members are divided into five folds,
    and each model omits one fold. A non-member is compared with the model without its fold, a member with the mean over
    all models.

    Parameters
    ----------
    model
        The published model.
    members
        Training users of the model, or some of them.
    others
        Similar users that are not training users.
    synthetic
        Synthetic users sampled from the model, if these were published instead of the model. The attack fits a model to
        them.
    alpha
        The false positive rate of the summary.
    watch
        Progress callback, see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    MembershipAudit
        The result. Private.

    Raises
    ------
    ConfigurationError
        If a user is both a member and a non-member, a non-member is on the list of the model's training users, fewer
        than five of either move in the region, or alpha is not in (0, 1).
    DphmmError
        If the data or the model are invalid.
    """
    published = load_model(model)
    space = published.space
    step = published.step
    inside, outside = (Data.from_any(dataset).with_region(space).read().trajectories for dataset in (members, others))
    _require_users(len(inside), len(outside))
    both = sorted({track.user for track in inside} & {track.user for track in outside})
    if both:
        raise ConfigurationError(f"members and others must not share users, got user {both[0]} in both")
    seen = find_training_users(model, published)
    overlap = [track.user for track in outside if seen is not None and track.user in seen]
    if overlap:
        raise ConfigurationError(f"others must not be training users of the model, got user {overlap[0]}")
    stated_epsilon = (published.provenance or {}).get("epsilon")
    if synthetic is not None:
        synthetic_tracks = Data.from_any(synthetic).with_region(space).read().trajectories
        published = fit_shrunk(state_sequences(synthetic_tracks, space, step), space, step).model

    def fit_reference_model(tracks: Sequence[Trajectory]) -> MarkovModel:
        outside_states = None if published.outside is None else learn_outside_states(tracks, space, step)
        sequences = state_sequences(tracks, space, step, None, outside_states)
        return fit_shrunk(sequences, space, step, outside=outside_states).model

    folds = [set(range(number, len(outside), _NUM_FOLDS)) for number in range(_NUM_FOLDS)]
    ratios = np.full((len(folds), len(inside)), np.nan)
    other_ratios = np.full(len(outside), np.nan)
    in_public, out_public = (_compute_mean_log_probabilities(published, tracks) for tracks in (inside, outside))
    for number, fold in enumerate(watch(folds, "Comparing", len(folds))):
        reference_model = fit_reference_model([track for i, track in enumerate(outside) if i not in fold])
        ratios[number] = in_public - _compute_mean_log_probabilities(reference_model, inside)
        held_out = sorted(fold)
        held_out_tracks = [outside[i] for i in held_out]
        other_ratios[held_out] = out_public[held_out] - _compute_mean_log_probabilities(
            reference_model, held_out_tracks
        )
    differences = [ratios.mean(axis=0), other_ratios]
    finite = [scores[np.isfinite(scores)] for scores in differences]
    _require_users(*map(len, finite))
    user_epsilon = None if stated_epsilon is None else float(Fraction(stated_epsilon))
    scored = [track.user for track, score in zip(inside, differences[0], strict=True) if np.isfinite(score)]
    unlisted_members = None if seen is None else sum(user not in seen for user in scored)
    return MembershipAudit(finite[0], finite[1], alpha, user_epsilon, unlisted_members)


def _require_users(num_members: int, num_others: int) -> None:
    for name, count in (("members", num_members), ("others", num_others)):
        if count < _NUM_FOLDS:
            raise ConfigurationError(
                f"{name} must contain at least {_NUM_FOLDS} users that move in the region, got {count}"
            )


def _compute_mean_log_probabilities(model: MarkovModel, tracks: Sequence[Trajectory]) -> FloatArray:
    """Return the mean log probability of each user's transitions, NaN for users without any."""
    means = []
    for sequence in state_sequences(tracks, model.space, model.step, outside=model.outside):
        chances = compute_move_probabilities(model, sequence)
        means.append(np.log(np.maximum(chances, _MIN_CHANCE)).mean() if len(chances) else np.nan)
    return np.array(means)
