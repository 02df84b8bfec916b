"""Calibration of epsilon for a model and a policy from errors, odds or a total budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dphmm.arrays import as_floats, check_budget
from dphmm.attack import Channel
from dphmm.audit.sequence import PUBLIC
from dphmm.calibrate.epsilon_search import round_down
from dphmm.calibrate.simulation import count_period_steps
from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.events import Clock, EventText
from dphmm.jobs.audit.adversaries import (
    HABITS,
    build_habit_model,
    build_map_adversary,
    extract_history,
    read_tracks_by_user,
    warn_of_single_days,
)
from dphmm.jobs.audit.uses import UsesComparison, UsesSettings, compare_uses, sample_users
from dphmm.jobs.calibrate.results import BudgetOutcome, CalibrationResult, CalibrationTargets
from dphmm.jobs.calibrate.search import LIMITS, BudgetSearch
from dphmm.jobs.input_data import DataLike
from dphmm.jobs.model.loading import Model, load_model
from dphmm.jobs.model.training_users import find_training_users
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.model import MarkovModel
from dphmm.random import derive_seed
from dphmm.release import Releaser, ReleaseSettings
from dphmm.release.ledger import DAY_SECONDS
from dphmm.space.trajectory import Trajectory, round_to_microseconds
from dphmm.validation import NonNegativeInt, Seconds, SeedOrGenerator, check_arguments

# Maximum number of first slots that limits are computed for: a week of steps of 30 s.
_MAX_STARTS = 20_160
# Maximum of steps times states of a simulated user, 400 MB of beliefs.
_MAX_BELIEF_CELLS = 50_000_000
# Default number of simulated users, before the required number is known.
_DEFAULT_NUM_USERS = 16
# Default number of users of whom uses are compared: fewer seldom meet.
_NUM_COMPARED_USERS = 50
# Maximum number of users with habits: each has its own model of some megabytes.
_MAX_HABITS = 64

# Channels for comparison in a figure: daily budgets, grids, planar Laplace noise and infrequent exact locations.
COMPARED_CHANNELS = (
    *(f"release:utility:1km@day:{epsilon}" for epsilon in (48, 12, 3)),
    *(f"snap:{length}" for length in ("1km", "2km", "4km")),
    *(f"planar-laplace:{length}" for length in ("500m", "2km", "8km")),
    *(f"hourly:{hours}" for hours in (1, 4)),
)


@check_arguments
def calibrate(
    model: Model,
    settings: ReleaseSettings,
    targets: CalibrationTargets,
    *,
    horizon_seconds: Seconds | None = None,
    num_users: NonNegativeInt | None = None,
    report_epsilons: Sequence[float] = (),
    rng: SeedOrGenerator = 0,
    first: int | None = None,
    auxiliary_data: DataLike | None = None,
    adversary_map: str | Path | None = None,
    compare: Sequence[str | Channel] = (),
    uses: UsesSettings | None = None,
    report_policies: Sequence[str] = (),
    watch: ProgressCallback = suppress_progress,
) -> CalibrationResult:
    """Find the largest budget that meets all targets, as ``dphmm calibrate`` does.

    Where a formula exists, the budget is rounded down to four digits: for the error of a release, for `max_posterior`
    and `max_odds_ratio` (which hold for every output), and for the total budget. The error of a lookup table is
    computed for one budget after another, with the model's probabilities and all states possible that ever are.
    Releases may have smaller errors if fewer states are possible. For the other targets, users that follow the model
    are simulated with one release per step. The budget then has two digits and is checked with users that the search
    did not use.

    With an event, `max_posterior` and `max_odds_ratio` refer to the event. For a single release, all outputs are
    searched at every timestep up to the event's last. For all releases of a horizon, a formula bounds the worst outputs
    jointly. With a failure rate, the limit holds for all releases of the horizon and all but that share of the users
    for whom the event occurs, as shown by simulated users with confidence 0.99.

    Parameters
    ----------
    model
        The model, or its file. It must have a step length.
    settings
        The release settings. Their epsilon is ignored.
    targets
        The targets.
    horizon_seconds
        The time that the adversary observes, rounded up to steps. For simulated users it defaults to a day, or to the
        last timestep of an event. For `max_posterior` and `max_odds_ratio` without a failure rate it defaults to a
        single release. With one, it must include the last timestep of the event.
    num_users
        Number of simulated users: 0 to use formulas only, else at least 2. Defaults to 16. For error targets, more are
        used until the target is met within a tenth, within about a minute; see `CalibrationResult.list_warnings`.
    report_epsilons
        Other budgets to evaluate.
    rng
        Seed or generator of the users.
    first
        Time slot of the first release, counted from 1970. Events with dates need it. For time-dependent models,
        simulated users and events then start at 0, and limits on states hold for any first slot if this can be computed
        in some seconds, otherwise for 0; see `CalibrationResult.first_release`. Any first slot is one at any UTC offset
        of the zone since 1970. The limits do not hold across changes of the clocks.
    auxiliary_data
        Earlier data of users, known to the adversary. Simulated users move by the habits of one of these users each, in
        turn, and the adversary knows which; see `dphmm.model.habits.with_habits`. `rng` selects 64 users if there
        are more. `max_posterior` limits the posterior of this adversary about each of these users, of any `num_users`.
        The result is then private.
    adversary_map
        A map that the adversary has, ``"coast"`` or a file (`dphmm.jobs.region_map.build_region_map`). Simulated users
        move by the model weighted with its land (`dphmm.model.map_attraction.with_map`), and the adversary knows this.
        Cannot be combined with auxiliary data or an event.
    compare
        Channels, or their specifications (see `dphmm.attack.parse_channel`), such as `COMPARED_CHANNELS`. At most 16
        users are released by these channels and at the budgets, and attacked: `CalibrationResult.channel_results`. The
        users are simulated. With auxiliary data, they are the later half of each user's days, with habits of the
        earlier half, as in `dphmm.jobs.attack`. Models that an attack does not support are skipped.
    uses
        The assumptions for the uses of releases, see `dphmm.jobs.compare_uses`. They are compared at the calibrated and
        the reported budgets, on `num_users` users sampled from the model (50 by default), of which a tenth are
        patients. By default the uses are not measured.
    report_policies
        Other policies for which the uses are compared, at the same budgets.
    watch
        Progress callback, see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    CalibrationResult
        The budget and its outcome.

    Raises
    ------
    ConfigurationError, InvalidInputError, BudgetError
        If a target cannot be met (the message states what can), the settings have event caps or a schedule, the horizon
        is shorter than a step, or with a failure rate than the event, or beliefs do not fit into memory.
    DphmmError
        If the model's file or the policy are invalid.

    Examples
    --------
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import CalibrationTargets, calibrate, learn, region
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
    >>> model = learn("data/sample/geolife", space, step_seconds=300).model
    >>> result = calibrate(model, ReleaseSettings("utility:1km", 1.0), CalibrationTargets(error=2.0), num_users=0)
    >>> result.settings.epsilon, round(result.achieved.released_error, 4)
    (1.832, 2.0003)
    """
    seed = derive_seed(rng)
    if settings.caps or settings.schedule is not None:
        raise ConfigurationError(
            "event caps and schedules cannot be combined with a calibration: they choose each budget themselves"
        )
    if num_users == 1:
        raise ConfigurationError("num_users must be 0 or at least 2, got 1")
    _check_uses(uses, report_policies, num_users, auxiliary_data is not None or adversary_map is not None)
    listed_epsilons = as_floats(report_epsilons, "report_epsilons").ravel().tolist()
    budgets = [check_budget(epsilon, "report_epsilons") for epsilon in listed_epsilons]
    learned = load_model(model)
    engine = replace(settings, epsilon=1.0).engine(learned)
    for policy in report_policies:
        try:
            replace(settings, policy=policy).build_graph(learned)  # refused before the search
        except InvalidInputError as problem:
            raise ConfigurationError(f"report_policies must be valid policies: {problem}") from None
    event = targets.event
    if isinstance(event, EventText):
        event = event.resolve(engine.model.states, Clock(engine.model.step_seconds, first))
    assert not isinstance(event, str), "targets read their event"
    if event is not None and (auxiliary_data is not None or adversary_map is not None):
        option = "--auxiliary-data" if adversary_map is None else "--map"
        raise ConfigurationError(f"--event cannot be combined with {option}: its limits hold for the public adversary")
    if auxiliary_data is not None and adversary_map is not None:
        raise ConfigurationError("--map cannot be combined with --auxiliary-data: an adversary has one or the other")
    steps = _count_steps(engine, horizon_seconds, None if event is None else event.last + 1)
    if event is not None and targets.failure_rate is not None and steps <= event.last:
        raise ConfigurationError(
            f"--horizon must be more than {event.last * engine.model.step:g} s with --failure-rate, to include the end "
            f"of the event, got {horizon_seconds:g} s"
        )
    earlier = tuple(read_tracks_by_user(auxiliary_data).values())
    knowledge, habits = PUBLIC.auxiliary_knowledge, tuple[MarkovModel, ...]()
    if auxiliary_data is not None:
        knowledge, habits = HABITS, _build_habit_models(earlier, engine.model, seed)
    elif adversary_map is not None:
        adversary = build_map_adversary(adversary_map, engine.model)
        assert adversary.model is not None, "an adversary with a map has a model"
        knowledge, habits = adversary.auxiliary_knowledge, (adversary.model,)
    start = 0 if first is None else first
    has_limit = not LIMITS.isdisjoint(targets.numeric_targets)
    search = BudgetSearch(
        engine,
        targets,
        event,
        steps,
        num_guaranteed_releases=1 if horizon_seconds is None and targets.failure_rate is None else steps,
        num_users=_DEFAULT_NUM_USERS if num_users is None else num_users,
        seed=seed,
        watch=watch,
        first=start,
        auxiliary_data=earlier,
        habits=habits,
        can_add_users=num_users is None,
        has_any_start=first is None and event is None and has_limit and count_period_steps(learned) <= _MAX_STARTS,
    )
    by_target, chosen = _find_epsilons(search, targets)
    achieved = search.evaluate(chosen, "Releasing at the calibrated epsilon")
    outcomes = tuple(search.evaluate(epsilon, "Releasing at the reported epsilons") for epsilon in budgets)
    return CalibrationResult(
        replace(settings, epsilon=achieved.epsilon),
        targets,
        by_target,
        achieved,
        outcomes,
        steps,
        search.num_guaranteed_releases,
        search.num_users,
        search.errors_without_releases[0],
        str(model) if isinstance(model, str | Path) else None,
        None if event is None else search.evaluate_event_limit(event, achieved),
        knowledge,
        len(habits) if auxiliary_data is not None else 0,
        None if search.has_any_start or not has_limit or learned.time_classes is None else _format_slot(start, learned),
        has_limit and learned.time_classes is not None and learned.time_classes.zone != "UTC",
        search.attack_channels([outcome.epsilon for outcome in (*outcomes, achieved)], compare),
        len((find_training_users(model, learned) or frozenset()) & {track.user for track in earlier}),
        ()
        if uses is None
        else _compare_uses(search, num_users, settings, (*outcomes, achieved), report_policies, uses),
    )


def _check_uses(uses: UsesSettings | None, policies: Sequence[str], num_users: int | None, has_habits: bool) -> None:
    """Refuse requests for uses that the simulated users cannot answer."""
    if uses is None and policies:
        raise ConfigurationError("report_policies needs uses: other outcomes are those of one policy")
    if uses is not None and has_habits:
        raise ConfigurationError("uses cannot be combined with auxiliary data or a map: their users follow the model")
    if uses is not None and num_users is not None and num_users < 2:
        raise ConfigurationError(f"num_users must be at least 2 for uses, got {num_users}")


def _find_epsilons(search: BudgetSearch, targets: CalibrationTargets) -> tuple[dict[str, float], float]:
    """Return the largest epsilon of each target, and one that meets all targets."""
    # Limits come first: they are refused by formula, before the simulations of other targets.
    ordered = sorted(targets.numeric_targets.items(), key=lambda target: target[0] not in LIMITS)
    by_target = {name: search.find_epsilon(name, value) for name, value in ordered}
    chosen = round_down(min(by_target.values()))
    # A budget is only known to keep the limit if it was checked itself.
    while not search.keeps_limit(chosen):
        chosen = round_down(0.99 * chosen)
    return by_target, chosen


def _compare_uses(
    search: BudgetSearch,
    num_users: int | None,
    settings: ReleaseSettings,
    outcomes: Iterable[BudgetOutcome],
    report_policies: Sequence[str],
    uses: UsesSettings,
) -> tuple[UsesComparison, ...]:
    """Compare uses at the budgets of outcomes and under each policy, on sampled users."""
    count = _NUM_COMPARED_USERS if num_users is None else num_users
    model = search.engine.model
    return compare_uses(
        model,
        [
            replace(settings, policy=policy, epsilon=epsilon)
            for policy in dict.fromkeys((settings.policy, *report_policies))
            for epsilon in sorted({outcome.epsilon for outcome in outcomes})
        ],
        sample_users(model, count, search.steps, search.first, search.seed),
        first=search.first,
        num_patients=max(1, count // 10),
        uses=uses,
        rng=search.seed,
        watch=search.watch,
    )


def _build_habit_models(tracks: Iterable[Trajectory], model: MarkovModel, seed: int) -> tuple[MarkovModel, ...]:
    """Build the movement models of at most `_MAX_HABITS` users with data in the region."""
    histories = [history for track in tracks if (history := extract_history(track, model, None)) is not None]
    if not histories:
        raise ConfigurationError("auxiliary data must have a location in the model's region; use data of other users")
    if len(histories) > _MAX_HABITS:
        chosen = np.random.default_rng(seed).choice(len(histories), _MAX_HABITS, replace=False)
        histories = [histories[i] for i in chosen]
    warn_of_single_days(histories, model)
    return tuple(build_habit_model(model, history) for history in histories)


def _count_steps(engine: Releaser, horizon_seconds: float | None, default: int | None) -> int:
    step = engine.model.step
    seconds = DAY_SECONDS if horizon_seconds is None else horizon_seconds
    if seconds < step and horizon_seconds is not None:
        raise ConfigurationError(f"--horizon must be at least the model's step of {step:g} s, got {seconds:g} s")
    # A window of this length can contain one more release than entire steps. Multiples are exact in microseconds.
    count = -(-round(1e6 * seconds) // round_to_microseconds(step, "step"))
    steps = default if horizon_seconds is None and default is not None else count
    if steps * engine.model.size > _MAX_BELIEF_CELLS:
        raise ConfigurationError(
            f"{steps:,} releases over {engine.model.size:,} states do not fit into memory; use a shorter --horizon, "
            f"such as {max(1, _MAX_BELIEF_CELLS // engine.model.size) * step / 3600:.3g}h"
        )
    return steps


def _format_slot(slot: int, model: MarkovModel) -> str:
    """Return the time of a slot."""
    time = np.datetime64(0, "us") + np.timedelta64(slot * round_to_microseconds(model.step, "step"), "us")
    return f"{time.astype('datetime64[s]')}Z"
