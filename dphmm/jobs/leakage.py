"""Temporal privacy leakage of matrices, models and releases, and budgets that bound it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.audit.realized_leakage import RealizedLeakage, compute_realized_leakage
from dphmm.caching import BoundedCache
from dphmm.certificate.streams import open_stream_certificate
from dphmm.errors import ConfigurationError, InvalidInputError, TimeOrderError
from dphmm.jobs.model.loading import Model
from dphmm.jobs.model.mobility import Matrix, Mobility, as_matrix
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.jobs.release.stored import SettingsLike, check_hash, replay
from dphmm.leakage import (
    Leakage,
    LossFunction,
    PopulationLeakage,
    SharedBudget,
    Supremum,
    compute_population_leakage,
    shared_budget,
)
from dphmm.leakage.stream_leakage import apply_to_users, as_budgets, as_loss_functions, sum_budgets_upwards
from dphmm.model.model import MarkovModel
from dphmm.model.reversal import reverse_steps
from dphmm.tables.values import shorten_repr
from dphmm.validation import Epsilon, PositiveInt, check_arguments
from dphmm.writers import ReleaseTable, read_releases

# The name of the user if knowledge is specified without a name.
EVERYONE = "everyone"

# Disclosures of a stream of releases that no leakage value covers.
UNCOVERED_DISCLOSURES = (
    "The times of releases: a gap reveals that the user was not recorded, or was outside the region if such locations "
    "are dropped.",
    "Locations before and after a time outside the region, which are near its border.",
    "Adversaries with other matrices or other knowledge, and releases that are not in this stream.",
)

# Knowledge about a user: a mobility model, or matrices of the state before and after (None if unknown).
Adversary = Mobility | tuple[Matrix | None, Matrix | None]

# Knowledge about one user, or name → knowledge about each of several.
Adversaries = Adversary | Mapping[str, Adversary]

# Maximum number of clock steps for which leakage is computed.
MAX_STEPS = 10_000_000


# Maximum number of transitions of a model; above it, leakage is the sum of all budgets.
MAX_TRANSITIONS = 500_000


@dataclass(frozen=True)
class LeakageResult:
    """The temporal privacy leakage of a stream of releases.

    Parameters
    ----------
    leakage
        Leakage of each user, by time.
    epsilon
        The largest budget of a time.
    suprema
        Name → side (``"backward"``, ``"forward"``) → limit of leakage if releases of that budget continue forever.
        Only for matrices that are the same at every step.
    uses_transitions
        Whether leakage decays with the model's transitions. Otherwise it is the sum of all budgets, an upper bound on
        leakage under any correlation: see `compute_release_leakage`.
    unbounded_times
        Times, from 0, of releases that can rule out a possible state. Their budget is infinite, and so is every leakage
        value that includes one of them.
    """

    leakage: PopulationLeakage
    epsilon: float
    suprema: Mapping[str, Mapping[str, Supremum]]
    uses_transitions: bool = True
    unbounded_times: tuple[int, ...] = ()


# The caption of progress.
_STEPS = "Following leakage"


def compute_stream_leakage(
    adversaries: Adversaries,
    epsilons: npt.ArrayLike,
    certificate: str | Path | None = None,
    progress: ProgressCallback = suppress_progress,
) -> LeakageResult:
    """Compute the temporal privacy leakage of a stream of budgets, as ``dphmm leak`` does.

    Parameters
    ----------
    adversaries
        Knowledge of the adversary about each user. For a `Mobility` the backward matrix of every step follows by Bayes'
        rule.
    epsilons
        ``(T,)`` non-negative budgets. 0 denotes a time without a release.
    certificate
        A new file with the data from which ``scripts/dphmm-verify`` can recompute every value.
    progress
        Shows the progress of the steps of a `Mobility`; see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    LeakageResult
        Leakage of each user, by time.

    Raises
    ------
    BudgetError
        When a budget is negative or not finite, or there are no budgets.
    StochasticError, DataFileError
        When a matrix is not row-stochastic, or a file cannot be read. If there are several users, messages name the
        user.
    InvalidInputError, OutputError
        When verifying a certificate would take too long, or its file exists.

    Examples
    --------
    >>> result = compute_stream_leakage(([[0.8, 0.2], [0, 1]], None), [0.1] * 5)
    >>> result.leakage.temporal.round(4), round(result.suprema["everyone"]["backward"].value, 4)
    (array([0.1   , 0.1808, 0.2471, 0.3024, 0.3488]), 0.6459)
    """
    budgets = as_budgets(epsilons)
    users = _normalize_adversaries(adversaries)
    fixed = {name: _load_matrix_pair(adversary) for name, adversary in users.items() if isinstance(adversary, tuple)}
    functions: dict[Any, Any] = apply_to_users(fixed, as_loss_functions) if fixed else {}
    max_leakage = sum_budgets_upwards(budgets)
    moving = {
        n: (progress(m.iterate_backward_losses(budgets.size, max_leakage), _STEPS, budgets.size - 1), m.transition)
        for n, m in users.items()
        if isinstance(m, Mobility)
    }
    leakage = compute_population_leakage({name: (functions | moving)[name] for name in users}, budgets)
    max_epsilon = float(budgets.max())
    sides = {n: zip(("backward", "forward"), pair, strict=True) for n, pair in functions.items() if max_epsilon}
    suprema = {
        n: {side: function.supremum(max_epsilon) for side, function in pair if function.size}
        for n, pair in sides.items()
    }
    if certificate is not None:
        with open_stream_certificate(certificate, "leakage") as file:
            for name, adversary in users.items():
                past, future = (
                    fixed[name]
                    if isinstance(adversary, tuple)
                    else (_build_backward_matrices(adversary, budgets.size), adversary.transition)
                )
                file.certify_leakage(str(name), leakage.by_user[name], past, future, suprema.get(name), max_epsilon)
    return LeakageResult(leakage, max_epsilon, suprema)


# Maximum number of steps of a certificate if each step has its own backward matrix.
_MAX_CERTIFIED_STEPS = 1_000


def _build_backward_matrices(mobility: Mobility, times: int) -> list[Any]:
    if times > _MAX_CERTIFIED_STEPS:
        raise InvalidInputError(
            f"a certificate of steps with separate backward matrices must have at most {_MAX_CERTIFIED_STEPS:,} steps, "
            f"got {times - 1:,}: use --backward and --forward, or remove --certificate"
        )
    return list(mobility.iterate_backward_matrices(times))


@check_arguments
def budget(adversaries: Adversaries, alpha: Epsilon, steps: PositiveInt | None = None) -> SharedBudget:
    """Compute budgets that keep temporal leakage at most alpha, as ``dphmm budget`` does.

    Parameters
    ----------
    adversaries
        Knowledge of the adversary about each user. The backward matrix of a `Mobility` is its reverse, under the
        assumption that its initial distribution is stationary.
    alpha
        Bound on the leakage at every time.
    steps
        Number of releases. Defaults to one constant budget for a stream of any length.

    Returns
    -------
    SharedBudget
        A budget for each time, or one for all times.

    Raises
    ------
    DphmmError
        As `dphmm.leakage.shared_budget`, and when a file cannot be read.

    Examples
    --------
    >>> from dphmm.jobs import Mobility, budget
    >>> budget(Mobility.from_source(transition=[[0.8, 0.2], [0.2, 0.8]]), alpha=1, steps=3).budgets.round(4)
    array([0.6299, 0.2598, 0.6299])
    """
    return shared_budget(load_user_matrices(adversaries), alpha, steps)


def load_user_matrices(adversaries: Adversaries) -> dict[str, tuple[Any, Any]]:
    """Return each user's matrices of the state before and after, read from files if necessary."""
    users = _normalize_adversaries(adversaries).items()
    return {
        name: _load_matrix_pair(adversary)
        if isinstance(adversary, tuple)
        else (adversary.backward, adversary.transition)
        for name, adversary in users
    }


@check_arguments
def compute_release_leakage(
    model: Model,
    releases: ReleaseTable | str | Path,
    user: str | None = None,
    certificate: str | Path | None = None,
    progress: ProgressCallback = suppress_progress,
) -> LeakageResult:
    """Compute the temporal privacy leakage of one user's releases at every clock step.

    The log-likelihood ratio of a release between *any* two possible states is bounded by
    ``constrained_dp_factor * epsilon`` (Theorem 6.3), not by epsilon, which bounds it on the policy's edges only. The
    product is the budget of the time. Clock steps without a release have the budget 0, and knowledge propagates through
    them.

    Leakage concerns single timesteps (event level) and an adversary who knows exactly this model: its transition matrix
    forwards, and by Bayes' rule from its initial distribution backwards, step by step. It is an upper bound on the log
    ratio of the densities of all these releases together under any two states of one timestep. It is not a bound for an
    adversary with other knowledge, nor for complete trajectories: for those see
    `dphmm.leakage.Leakage.user_level`.

    Parameters
    ----------
    model
        The model of the releases, or its file. It must have ``step_seconds``.
    releases
        Releases of any number of users, or their file.
    user
        The user. Can be omitted if there is only one.
    certificate
        A new certificate file, as for `compute_stream_leakage`. Requires a model with one transition matrix.
    progress
        Shows the progress; see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    LeakageResult
        One value per clock step, from the user's first release to the last.

    Raises
    ------
    ConfigurationError
        When there are several users and ``user`` is None, or the releases were made with another model. With
        ``certificate``, when the model has several matrices or more than `MAX_TRANSITIONS` transitions, or a release
        can rule out a possible state.
    InvalidInputError, OutputError
        When the model has no step, or the user has no releases. With ``certificate``, as `compute_stream_leakage`.
    TimeOrderError
        When two releases belong to the same clock step.

    Notes
    -----
    A release that can rule out a possible state, for example one with noise that differs by component or is flat, has
    an infinite factor. Leakage is then infinite: backward leakage from the first such time on, forward leakage up to
    the last. No finite bound covers all matrices. The leakage of the actual outputs is finite: see `realized_leakage`.

    Examples
    --------
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import Data, compute_release_leakage, learn, region, release
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=2)
    >>> town = "data/sample/geolife"
    >>> model = learn(Data((town,), exclude_users=("002",)), space, 600, 3600, smoothing=0.5).model
    >>> done = release(Data((town,), users=("002",)), model, ReleaseSettings(policy="complete", epsilon=0.1))
    >>> leakage = compute_release_leakage(model, done.table).leakage.by_user["002"]
    >>> len(leakage.epsilons), round(leakage.user_level, 6), round(leakage.worst, 6)  # no decay
    (421, 41.0, 41.0)
    """
    learned = model if isinstance(model, MarkovModel) else MarkovModel.load(model)
    table = releases if isinstance(releases, ReleaseTable) else read_releases(releases)
    present = sorted(set(table["user"].tolist()))
    name = "the table" if isinstance(releases, ReleaseTable) else str(releases)
    if not present:
        raise ConfigurationError(f"{name} contains no release")
    if user is None and len(present) > 1:
        raise ConfigurationError(f"{name} contains {len(present)} users: choose one, such as --users {present[0]}")
    user = present[0] if user is None else user
    step = learned.step_seconds
    if step is None:
        raise InvalidInputError("the model has no step_seconds: train it with a step")
    user_rows = table.select(table["user"] == user)
    if not len(user_rows):
        raise InvalidInputError(f"user must be one of {present}, got {user!r}")
    check_hash(name, user, user_rows, "model", learned)  # the factors are those of the model's possible states
    clock = user_rows["time"].astype("datetime64[us]").astype(np.int64) / 1e6 / step
    slots = np.rint(clock - clock.min()).astype(np.int64)
    if slots.max() > MAX_STEPS:
        raise InvalidInputError(
            f"the releases of user {user!r} must span at most {MAX_STEPS:,} steps of {step:g} s, got {slots.max():,}: "
            "use a shorter period"
        )
    if len(np.unique(slots)) < len(slots):
        raise TimeOrderError(f"releases of user {user!r} must be in different steps of {step:g} s, got two in one step")
    spent, factors = (user_rows[name].astype(np.float64) for name in ("epsilon", "constrained_dp_factor"))
    budgets = np.zeros(int(slots.max()) + 1)
    bounded = np.isfinite(factors) | (spent == 0)
    budgets[slots[bounded]] = spent[bounded] * np.where(spent[bounded] == 0, 0.0, factors[bounded])
    first = int(np.rint(clock.min()))
    if certificate is not None and not (bounded.all() and learned.is_plain and not _is_too_large(learned)):
        raise ConfigurationError(
            "--certificate with --releases needs a model with one transition matrix and at most "
            f"{MAX_TRANSITIONS:,} transitions, and releases that rule out no possible state: remove --certificate"
        )
    if bounded.all():
        return _compute_user_leakage(learned, user, first, budgets, progress, certificate)
    return _compute_unbounded_leakage(learned, user, first, budgets, np.sort(slots[~bounded]), progress)


def _compute_user_leakage(
    model: MarkovModel,
    user: str,
    first: int,
    budgets: FloatArray,
    progress: ProgressCallback,
    certificate: str | Path | None = None,
) -> LeakageResult:
    """Compute the leakage of a user's releases from the budgets at every clock step."""
    if not model.is_plain and not _is_too_large(model):
        pasts, futures = _build_loss_functions(model, first, budgets.size, sum_budgets_upwards(as_budgets(budgets)))
        watched = progress(pasts, _STEPS, budgets.size - 1)
        return LeakageResult(
            compute_population_leakage({user: (watched, futures)}, budgets), float(budgets.max()), {user: {}}
        )
    if _is_too_large(model):
        identity = np.eye(2)  # deterministic transitions: the worst case, where leakage is the sum of all budgets
        return replace(
            compute_stream_leakage({user: (identity, identity)}, budgets), suprema={user: {}}, uses_transitions=False
        )
    return compute_stream_leakage({user: Mobility.from_source(model)}, budgets, certificate, progress)


def _is_too_large(model: MarkovModel) -> bool:
    """Return whether a chain with one matrix has too many transitions to follow."""
    return model.time_classes is None and model.num_possible_moves > MAX_TRANSITIONS


def _compute_unbounded_leakage(
    model: MarkovModel, user: str, first: int, budgets: FloatArray, times: IntArray, progress: ProgressCallback
) -> LeakageResult:
    """Compute leakage with infinite budgets at ``times`` (sorted).

    Backward leakage is finite before the first of them, forward leakage after the last.
    """
    past, future = np.full((2, budgets.size), np.inf)
    start = int(times[0])
    stop = int(times[-1]) + 1
    if start:
        past[:start] = (
            _compute_user_leakage(model, user, first, budgets[:start], progress).leakage.by_user[user].backward
        )
    if stop < budgets.size:
        future[stop:] = (
            _compute_user_leakage(model, user, first + stop, budgets[stop:], progress).leakage.by_user[user].forward
        )
    epsilons = budgets.copy()
    epsilons[times] = np.inf
    uses_transitions = not _is_too_large(model)
    leakage = PopulationLeakage({user: Leakage(epsilons, past, future)})
    return LeakageResult(leakage, float("inf"), {user: {}}, uses_transitions, tuple(times.tolist()))


def _build_loss_functions(
    model: MarkovModel, first: int, times: int, maximum: float
) -> tuple[Iterator[Any], Sequence[Any]]:
    """Return the backward and forward loss functions of each step from the first slot on."""
    slots = first + np.arange(1, times)
    classes = model.get_classes(slots)
    functions = {number: LossFunction(model.transitions[number], maximum) for number in np.unique(classes).tolist()}
    start = np.exp(model.initial_logs(first))

    def iterate_backward_losses() -> Iterator[Any]:
        # The belief converges to a periodic one, bit for bit. Until then no step recurs, and evaluating its matrix
        # once is much faster than computing its loss function.
        by_belief = BoundedCache[tuple[int, bytes], LossFunction | bool](_CACHE_SIZE)
        matrices = (model.transitions[number] for number in classes.tolist())
        for number, (matrix, before) in zip(classes.tolist(), reverse_steps(matrices, start), strict=True):
            key = (number, before.tobytes())
            function = by_belief.get(key)
            if function is None:
                by_belief.put(key, True)  # computed if the step recurs
                yield matrix
            elif isinstance(function, LossFunction):
                yield function
            else:
                yield by_belief.put(key, LossFunction(matrix, maximum))

    return iterate_backward_losses(), [functions[number] for number in classes.tolist()]


# Number of cached loss functions. A week by hours has 168 steps with recurring matrices.
_CACHE_SIZE = 256


@check_arguments
def realized_leakage(
    model: Model, releases: str | Path, settings: SettingsLike, user: str | None = None
) -> RealizedLeakage:
    """Compute the leakage of one user's actual outputs between connected states.

    `compute_release_leakage` bounds the leakage of every possible output. For a learned model with strong correlations
    this bound is close to the sum of all budgets. `realized_leakage` evaluates the outputs that were released, and the
    error of an adversary's point estimate.

    Parameters
    ----------
    model, releases, settings
        As for `dphmm.jobs.audit_session`. A policy suffices if the other settings are the defaults.
    user
        The user. Can be omitted if there is only one.

    Returns
    -------
    RealizedLeakage
        Realized leakage of each release.

    Raises
    ------
    ConfigurationError
        When there are several users and ``user`` is None; otherwise as `dphmm.jobs.replay`.
    DphmmError
        As `dphmm.audit.audit_sequence`.

    Examples
    --------
    >>> import tempfile
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import Data, learn, realized_leakage, region, release
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
    >>> others, town = (Data(("data/sample/geolife",), users=users) for users in (("000", "001"), ("002",)))
    >>> model = learn(others, space, step_seconds=300).model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = release(town, model, ReleaseSettings("utility:1km", 0.5), f"{folder}/r.csv")
    ...     realized = realized_leakage(model, f"{folder}/r.csv", "utility:1km")
    >>> bool(realized.release_log_odds.max() <= 0.5 + 1e-9), len(realized.release_log_odds) == len(result.table)
    (True, True)
    """
    replays = list(replay(releases, model, settings, () if user is None else (user,)))
    if not replays:
        raise ConfigurationError(f"{releases} contains no release")
    if len(replays) != 1:
        raise ConfigurationError(
            f"{releases} contains {len(replays)} users: choose one, such as --users {replays[0].sequence.user}"
        )
    return compute_realized_leakage(replays[0].engine, replays[0].sequence)


def _normalize_adversaries(adversaries: Adversaries) -> Mapping[str, Adversary]:
    users = adversaries if isinstance(adversaries, Mapping) else {EVERYONE: adversaries}
    return {name: _as_adversary(adversary) for name, adversary in users.items()}


def _as_adversary(adversary: Any) -> Adversary:
    if isinstance(adversary, Mobility):
        return adversary
    if not isinstance(adversary, tuple | list) or len(adversary) != 2:
        raise InvalidInputError(
            "adversaries must be a Mobility or a pair of matrices of the state before and after, got "
            f"{shorten_repr(adversary)}"
        )
    return (adversary[0], adversary[1])  # a list, too: JSON and R have no tuples


def _load_matrix_pair(pair: tuple[Matrix | None, Matrix | None]) -> tuple[Any, Any]:
    """Read both matrices. A shared one is read once."""
    past, future = pair
    first = as_matrix(past)
    return first, first if future is past else as_matrix(future)
