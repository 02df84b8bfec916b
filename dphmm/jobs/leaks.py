"""What a stream of releases leaks through time, and the budgets that bound it: of matrices, models and releases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray
from dphmm.audit.realised import Realised, realise
from dphmm.certificate.streams import stream_certificate
from dphmm.errors import ConfigurationError, InvalidInputError, TimeOrderError
from dphmm.jobs.mobility import Matrix, Mobility, as_matrix
from dphmm.jobs.models import Model
from dphmm.jobs.stored_releases import SettingsLike, replay
from dphmm.leakage import Leakage, LossFunction, PopulationLeakage, SharedBudget, Supremum, account_users, shared_budget
from dphmm.leakage.stream import as_budgets, as_loss_functions, by_user, highest
from dphmm.model.model import MarkovModel
from dphmm.model.reversal import reverses_through
from dphmm.writers import ReleaseTable, read_releases

EVERYONE = "everyone"
"""The name of the one user whom knowledge without a name describes."""

LEFT_OUT = (
    "which times have a release at all: a gap tells that the person was not recorded, or was outside the region where "
    "such places are omitted, and then that the places before and after it are near the region's border",
    "adversaries with other matrices or other knowledge, and releases that are not in this stream",
)
"""What may be learned from a stream of releases, and no figure of leakage counts."""

Adversary = Mobility | tuple[Matrix | None, Matrix | None]
"""What an adversary knows of a user: how people move, or matrices of the state before and after, None for unknown."""

Adversaries = Adversary | Mapping[str, Adversary]
"""Knowledge about one user, or name → knowledge about each of several."""

MOST_STEPS = 10_000_000
"""Over more steps of the clock than this no leakage is accounted for."""


MOST_MOVES = 500_000
"""Of a model with more transitions than this nothing counts as forgotten between releases."""


@dataclass(frozen=True)
class Leaked:
    """What a stream leaks.

    Parameters
    ----------
    leakage
        By time, of each user.
    epsilon
        The greatest budget of a time.
    suprema
        Name → side (``"backward"``, ``"forward"``) → what leakage stays below if releases of that budget go on for
        ever. Only of matrices that are the same at every step.
    forgets
        Whether it counts what an adversary forgets as people move on. Otherwise leakage is the sum of all that
        was spent, which it does not exceed: see `leak_of_releases`.
    unbounded
        The times, from 0, of releases that can rule a possible state out. Their budget is infinite, and so is every
        leakage that counts one of them.
    """

    leakage: PopulationLeakage
    epsilon: float
    suprema: Mapping[str, Mapping[str, Supremum]]
    forgets: bool = True
    unbounded: tuple[int, ...] = ()


def leak(known: Adversaries, epsilons: npt.ArrayLike, certificate: str | Path | None = None) -> Leaked:
    """Backward, forward and temporal privacy leakage of a stream of releases, as ``dphmm leak`` finds them.

    Parameters
    ----------
    known
        What the adversary knows. Of a `Mobility` the backward matrix of every step follows by Bayes' rule.
    epsilons
        ``(T,)`` budgets, not negative; 0 is a time without a release.
    certificate
        A new file of what every figure follows from, for ``scripts/dphmm-verify``.

    Returns
    -------
    Leaked
        Leakage by time, of each user.

    Raises
    ------
    BudgetError
        When a budget is negative or not finite, or there is none.
    StochasticError, DataFileError
        When a matrix is none, or a file cannot be read; where there are several users, messages name theirs.
    InvalidInputError, OutputError
        When to check a certificate would take too long, or its file exists.

    Examples
    --------
    >>> found = leak(([[0.8, 0.2], [0, 1]], None), [0.1] * 5)
    >>> found.leakage.temporal.round(4), round(found.suprema["everyone"]["backward"].value, 4)
    (array([0.1   , 0.1808, 0.2471, 0.3024, 0.3488]), 0.6459)
    """
    budgets = as_budgets(epsilons)
    users = _users(known)
    fixed = {name: _matrices(one) for name, one in users.items() if isinstance(one, tuple)}
    functions: dict[Any, Any] = by_user(fixed, as_loss_functions) if fixed else {}
    most = highest(budgets)
    moving = {n: (m.pasts(budgets.size, most), m.transition) for n, m in users.items() if isinstance(m, Mobility)}
    found = account_users({name: (functions | moving)[name] for name in users}, budgets)
    dearest = float(budgets.max())
    sides = {n: zip(("backward", "forward"), pair, strict=True) for n, pair in functions.items() if dearest}
    suprema = {n: {side: known.supremum(dearest) for side, known in pair if known.size} for n, pair in sides.items()}
    if certificate is not None:
        with stream_certificate(certificate, "leakage") as file:
            for name, one in users.items():
                past, future = (
                    fixed[name] if isinstance(one, tuple) else (_each_past(one, budgets.size), one.transition)
                )
                file.leakage(str(name), found.by_user[name], past, future, suprema.get(name), dearest)
    return Leaked(found, dearest, suprema)


_MOST_CERTIFIED = 1_000
"""Of more steps than this, each with a matrix of its own, no certificate is made."""


def _each_past(known: Mobility, times: int) -> list[Any]:
    if times > _MOST_CERTIFIED:
        raise InvalidInputError(
            f"each of {times - 1:,} steps has a backward matrix of its own, and a certificate is of "
            f"{_MOST_CERTIFIED:,} at most; give --backward and --forward, or leave --certificate out"
        )
    return list(known.backwards(times))


@checked
def budget(known: Adversaries, alpha: float, steps: int | None = None) -> SharedBudget:
    """Budgets under which temporal privacy leakage stays at a level, as ``dphmm budget`` finds them.

    Parameters
    ----------
    known
        What the adversary knows; the backward matrix of a `Mobility` is its reverse, as if its start were stationary.
    alpha
        The leakage that no time may pass.
    steps
        Number of releases; left out, one budget for a stream of any length.

    Returns
    -------
    SharedBudget
        A budget for each time, or one for all.

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
    return shared_budget(knowledge(known), alpha, steps)


def knowledge(known: Adversaries) -> dict[str, tuple[Any, Any]]:
    """Name → the matrices, out of their files, of the state before and after; the same at every step."""
    users = _users(known).items()
    return {name: _matrices(one) if isinstance(one, tuple) else (one.backward, one.transition) for name, one in users}


@checked
def leak_of_releases(
    model: Model,
    releases: ReleaseTable | str | Path,
    user: str | None = None,
    certificate: str | Path | None = None,
) -> Leaked:
    """Backward, forward and temporal privacy leakage of one person's releases, at every step of the clock.

    What a release at time t may tell about *any* two possible states is bounded by ``constrained_factor * epsilon``
    (Theorem 6.3), not by epsilon, which is about the policy's edges alone; that product is the budget of the time.
    Steps of the clock without a release have the budget 0: the adversary's knowledge still moves through them.

    The figure is about single moments (event level) and about an adversary who knows exactly this model: its transition
    matrix forwards, and by Bayes' rule from its initial distribution backwards, time by time. It is an upper bound on
    the log ratio of the densities of all these releases together under any two states of one moment. It says nothing of
    an adversary with other knowledge, nor of whole trajectories: for those see `dphmm.leakage.Leakage.user_level`.

    Parameters
    ----------
    model
        The model, or its file; it must know its step.
    releases
        Releases, or their file, of any number of people.
    user
        Whose releases to account for; may be left out where they are one person's.
    certificate
        A new file of what every figure follows from, as for `leak`: of a model with one matrix of moves between states.

    Returns
    -------
    Leaked
        One entry per step of the clock, from the person's first release to the last.

    Raises
    ------
    ConfigurationError
        When there are several people and none is named; for a certificate of a model with several matrices or of very
        many moves, or of releases that can rule a possible state out.
    InvalidInputError, OutputError
        When the model has no step, or the person has no releases; as `leak` where there is a certificate.
    TimeOrderError
        When two releases belong to the same step of the clock.

    Notes
    -----
    A release that can rule a possible state out, as one whose noise differs by component or is flat, has an infinite
    factor. Leakage is then given as infinite, backwards from the first such time on and forwards up to the last: no
    finite figure holds whatever the matrices. What was really told is finite: see `realised_of_releases`.

    Examples
    --------
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import Data, leak_of_releases, learn, region, release
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=2)
    >>> town = "data/sample/geolife"
    >>> model = learn(Data((town,), exclude_users=("002",)), space, 600, 3600, smoothing=0.5).model
    >>> done = release(Data((town,), users=("002",)), model, ReleaseSettings(policy="complete", epsilon=0.1))
    >>> found = leak_of_releases(model, done.table).leakage.by_user["002"]
    >>> len(found.epsilons), round(found.user_level, 6), round(found.worst, 6)  # nothing is forgotten
    (421, 41.0, 41.0)
    """
    learned = model if isinstance(model, MarkovModel) else MarkovModel.load(model)
    table = releases if isinstance(releases, ReleaseTable) else read_releases(releases)
    present = sorted(set(table["user"].tolist()))
    if user is None and len(present) > 1:
        name = "the table" if isinstance(releases, ReleaseTable) else str(releases)
        raise ConfigurationError(f"{name} holds {len(present)} users; say which with --of, such as {present[0]}")
    user = present[0] if user is None else user
    step = learned.step_seconds
    if step is None:
        raise InvalidInputError("the model does not say how long a step is; learn it anew with a step")
    own = table.select(table["user"] == user)
    if not len(own):
        raise InvalidInputError(f"user {user!r} has no releases; the file has {present}")
    clock = own["time"].astype("datetime64[us]").astype(np.int64) / 1e6 / step
    slots = np.rint(clock - clock.min()).astype(np.int64)
    if slots.max() > MOST_STEPS:
        raise InvalidInputError(
            f"the releases of user {user!r} reach over {slots.max():,} steps of {step:g} s, and {MOST_STEPS:,} are the "
            "most; take those of a shorter time"
        )
    if len(np.unique(slots)) < len(slots):
        raise TimeOrderError(f"user {user!r} has two releases within one step of {step:g} s; give one model step each")
    spent, factors = (own[name].astype(np.float64) for name in ("epsilon", "constrained_factor"))
    budgets = np.zeros(int(slots.max()) + 1)
    bounded = np.isfinite(factors) | (spent == 0)
    budgets[slots[bounded]] = spent[bounded] * np.where(spent[bounded] == 0, 0.0, factors[bounded])
    first = int(np.rint(clock.min()))
    if certificate is not None and not (bounded.all() and learned.is_plain and not _is_too_large(learned)):
        raise ConfigurationError(
            "a certificate of what releases leak is of a model with one matrix, of which what fades is worked out, "
            "and of releases that rule no possible state out; leave --certificate out"
        )
    if bounded.all():
        return _leak_of(learned, user, first, budgets, certificate)
    return _without_bound(learned, user, first, budgets, np.sort(slots[~bounded]))


def _leak_of(
    model: MarkovModel, user: str, first: int, budgets: FloatArray, certificate: str | Path | None = None
) -> Leaked:
    """What a person's releases leak, by their budgets at every step of the clock from a first one on."""
    if not model.is_plain and not _is_too_large(model):
        pasts, futures = _varying(model, first, budgets.size, highest(as_budgets(budgets)))
        return Leaked(account_users({user: (pasts, futures)}, budgets), float(budgets.max()), {user: {}})
    if _is_too_large(model):
        nothing = np.eye(2)  # of which the state before and after is certain, as no person's is
        return replace(leak({user: (nothing, nothing)}, budgets), suprema={user: {}}, forgets=False)
    return leak({user: Mobility.from_source(model)}, budgets, certificate)


def _is_too_large(model: MarkovModel) -> bool:
    """Whether what fades from one step to the next is not worked out, for a chain with one matrix."""
    return model.time_classes is None and model.possible_moves > MOST_MOVES


def _without_bound(model: MarkovModel, user: str, first: int, budgets: FloatArray, times: IntArray) -> Leaked:
    """The same where the budgets at some times, in order, are infinite: finite before the first, and after the last."""
    past, future = np.full((2, budgets.size), np.inf)
    start, stop = int(times[0]), int(times[-1]) + 1
    if start:
        past[:start] = _leak_of(model, user, first, budgets[:start]).leakage.by_user[user].backward
    if stop < budgets.size:
        future[stop:] = _leak_of(model, user, first + stop, budgets[stop:]).leakage.by_user[user].forward
    epsilons = budgets.copy()
    epsilons[times] = np.inf
    forgets = not _is_too_large(model)
    leakage = PopulationLeakage({user: Leakage(epsilons, past, future)})
    return Leaked(leakage, float("inf"), {user: {}}, forgets, tuple(times.tolist()))


def _varying(model: MarkovModel, first: int, times: int, most: float) -> tuple[Iterator[Any], Sequence[Any]]:
    """What an adversary knows of each step from the slot of the first release on, backwards and forwards."""
    slots = first + np.arange(1, times)
    classes = model.classes_of(slots)
    functions = {number: LossFunction(model.transitions[number], most) for number in np.unique(classes).tolist()}
    start = np.exp(model.first_logs(first))

    def pasts() -> Iterator[Any]:
        known: dict[tuple[int, bytes], LossFunction] = {}
        matrices = (model.transitions[number] for number in classes.tolist())
        for number, (matrix, before) in zip(classes.tolist(), reverses_through(matrices, start), strict=True):
            key = number, before.tobytes()  # the days become alike, to the last bit, after a while
            if key not in known:
                if len(known) >= _REMEMBERED:
                    known.clear()
                known[key] = LossFunction(matrix, most)
            yield known[key]

    return pasts(), [functions[number] for number in classes.tolist()]


_REMEMBERED = 256


@checked
def realised_of_releases(
    model: Model, releases: str | Path, settings: SettingsLike, user: str | None = None
) -> Realised:
    """What one person's releases really disclosed between places that the policy joins, and how far off a guess is.

    The figure of `leak_of_releases` is a bound for whatever might have been drawn; under a learned model, where places
    follow one another surely, it is hardly less than the sum of all budgets. This is what was drawn.

    Parameters
    ----------
    model, releases, settings
        As `dphmm.jobs.audit_session` takes them: a policy alone where the settings are the usual ones.
    user
        Whose releases; may be left out where they are one person's.

    Returns
    -------
    Realised
        What was disclosed at each release.

    Raises
    ------
    ConfigurationError
        When there are several people and none is named; else as `dphmm.jobs.replay`.
    DphmmError
        As `dphmm.audit.audit_sequence`.

    Examples
    --------
    >>> import tempfile
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import Data, learn, realised_of_releases, region, release
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    >>> others, town = (Data(("data/sample/geolife",), users=users) for users in (("000", "001"), ("002",)))
    >>> model = learn(others, space, step_seconds=300).model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = release(town, model, ReleaseSettings("utility:1km", 0.5), f"{folder}/r.csv")
    ...     told = realised_of_releases(model, f"{folder}/r.csv", "utility:1km")
    >>> bool(told.moved.max() <= 0.5 + 1e-9), len(told.moved) == len(made.table)
    (True, True)
    """
    people = list(replay(releases, model, settings, () if user is None else (user,)))
    if len(people) != 1:
        raise ConfigurationError(
            f"{releases} holds {len(people)} users; say which with --of, such as {people[0].sequence.user}"
        )
    return realise(people[0].engine, people[0].sequence)


def _users(known: Adversaries) -> Mapping[str, Adversary]:
    return {EVERYONE: known} if isinstance(known, Mobility | tuple) else known


def _matrices(pair: tuple[Matrix | None, Matrix | None]) -> tuple[Any, Any]:
    """Both matrices; one that stands for both sides stays one."""
    past, future = pair
    first = as_matrix(past)
    return first, first if future is past else as_matrix(future)
