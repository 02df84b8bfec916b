"""Releases of locations: whole files, or fixes as they arrive."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.audit.sequence import PUBLIC, SmoothingRecorder
from dphmm.certificate.canonical_forms import check_certifiable
from dphmm.certificate.writer import CertificateWriter
from dphmm.errors import BudgetExceededError, ConfigurationError, DphmmError, SingletonConstraintError
from dphmm.formatting import Result, export_likelihood_ratios
from dphmm.jobs.audit.adversaries import (
    HABITS,
    HabitModels,
    build_map_adversary,
    read_histories,
    read_tracks_by_user,
)
from dphmm.jobs.audit.target import get_state_names
from dphmm.jobs.certificate import open_certificate
from dphmm.jobs.input_data import DataLike, Dropped, UserTracks
from dphmm.jobs.model.loading import Model, load_model
from dphmm.jobs.model.training_users import find_training_users, read_unseen_users, refuse_training_users
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.jobs.release.costly_repair import CostlyRepair, find_costly_repair
from dphmm.jobs.release.exposure import SMOOTHED_METRICS, summarize_exposure
from dphmm.jobs.release.guarantees import Scope, collect_warnings, summarize_guarantee
from dphmm.jobs.release.movement_check import LargerErrors, MovementCheck, UserErrors
from dphmm.jobs.release.prediction_check import PredictionCheck, PredictionSummary
from dphmm.jobs.release.stored import compute_session_hindsight, get_publishable_settings
from dphmm.jobs.release.window_budget_accuracy import SamplingSummary, summarize_sampling
from dphmm.model.model import MarkovModel
from dphmm.policy.expression import describe_policy
from dphmm.policy.missing_edges import describe_isolated_states
from dphmm.random import Rng
from dphmm.release.database_backends import is_server
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.ledger import Account
from dphmm.release.record import NO_GAIN
from dphmm.release.session_limits import Limits
from dphmm.release.session_terms import MAIN_QUERY
from dphmm.release.trajectory_release import (
    FixFilter,
    RecordedReleaseStream,
    ReleaseStream,
    TimedDiagnostics,
    TimedRecord,
    TimedRelease,
    locate_releases,
    release_records,
)
from dphmm.space import OUTSIDE, SlottedTrajectory
from dphmm.tables import check_output
from dphmm.tables.output import check_outputs
from dphmm.validation import Epsilon, Seconds, check_arguments
from dphmm.writers.formats import check_format, write_releases
from dphmm.writers.release_table import WITHHELD_MESSAGES, Geometry, ReleaseTable
from dphmm.writers.summary import (
    Hindsight,
    check_private_name,
    compute_medians,
    summarise,
    write_diagnostics,
    write_summary,
)

# The default of the largest difference by which the time of a live fix may lie ahead of this machine's clock.
CLOCK_SKEW_SECONDS = 300.0


@dataclass(frozen=True)
class ReleaseResult(Result):
    """The result of `release`.

    Parameters
    ----------
    table
        The releases; public.
    user_tracks
        The input trajectories. Private.
    diagnostics
        Private diagnostics of every release, if they were requested.
    is_private
        Whether the noise came from the operating system. Seeded noise provides no privacy.
    outside
        The number of locations, one per timestep, outside the region. Private.
    gaps
        The number of timesteps without a location between a user's first location and last. Private.
    own_model
        Whether the model was trained on these users, as far as that is known. Private.
    isolated_states
        The number of states without an edge in the policy and their distances from the nearest state, in words.
        None if there are none.
    settings
        The settings of the releases.
    hindsight
        The error and posterior probability of an adversary who has all releases. None for durable sessions, which may
        contain more releases: use `audit_session`.
    dropped
        Input fixes that were dropped or moved, and why. Private.
    habits
        As `hindsight`, for an adversary who knows each user's habits. None if not computed. Private.
    map_hindsight
        As `hindsight`, for an adversary who has a map. None if not computed.
    costly_repair
        The repair of the policy that raised the expected error of releases most, if by more than a tenth. Public.
    scope
        The releases that the guarantee covers: those of this file, or all of the users' sessions.
    predictions
        The squared distances of releases from the model's predictions, relative to the expected ones; see
        `dphmm.jobs.release.prediction_check`. Empty for durable sessions. Public.
    user_errors
        The true and the expected errors of each user's estimates. Private.
    """

    table: ReleaseTable
    user_tracks: UserTracks
    diagnostics: tuple[TimedDiagnostics, ...]
    is_private: bool
    outside: int
    gaps: int
    own_model: str
    isolated_states: str | None
    settings: ReleaseSettings
    hindsight: Hindsight | None = None
    dropped: tuple[Dropped, ...] = ()
    habits: Hindsight | None = None
    map_hindsight: Hindsight | None = None
    costly_repair: CostlyRepair | None = None
    scope: Scope = "file"
    predictions: PredictionSummary = field(default_factory=PredictionSummary)
    user_errors: tuple[UserErrors, ...] = field(default=(), repr=False)

    @cached_property
    def _by_user(self) -> list[dict[str, Any]]:
        return summarise(self.table, hindsight=self.hindsight)

    @cached_property
    def sampling(self) -> SamplingSummary | None:
        """The accuracy under a window budget, and of alternatives.

        None if no timestep was withheld because of a window budget.
        """
        is_withheld = (self.table["withheld_reason"] == "budget").any()
        return summarize_sampling(self.table, self.settings) if is_withheld else None

    @property
    def ratio_levels(self) -> dict[str, float]:
        """The logarithms of the bounds on likelihood ratios. See `export_likelihood_ratios`."""
        return {
            "release": float(self.table["epsilon"].max()),
            "any_states": self.table.max_constrained_epsilon,
            "total": float(max(row["epsilon_total"] for row in self._by_user)),
        }

    def summary_sentences(self) -> tuple[str, str]:
        """Return a paragraph about the guarantee and one about the adversary's inference.

        Both are public.

        Returns
        -------
        tuple of str
            The two paragraphs.
        """
        return summarize_guarantee(self._by_user, self.settings, self.is_private, self.scope)

    def list_warnings(self) -> list[str]:
        """Return warnings about disclosure and accuracy, each with a remedy. Public.

        Returns
        -------
        list of str
            One warning per element.
        """
        warnings = collect_warnings(self._by_user, self.settings.policy, self.costly_repair)
        warnings += self.predictions.list_warnings()
        gains = self.table["table_gain"][~np.isnan(self.table["table_gain"])]
        num_without_gain = int((gains < NO_GAIN).sum())
        if num_without_gain:
            warnings.append(
                f"at {num_without_gain:,} of {len(gains):,} releases the optimal table gains nothing: its error is "
                f"less than {NO_GAIN:.0%} below that of estimates from hull noise by component"
            )
        return warnings

    def _derive_fields(self) -> dict[str, Any]:
        table = self.table
        reasons = table["withheld_reason"]
        sampled = table.select(~table["withheld"])
        errors = sampled["component_error_m"][~sampled["unprotected"]]
        exposure = summarize_exposure(self._by_user)
        levels = self.ratio_levels
        return {
            "num_released": len(sampled),
            "num_withheld": len(table) - len(sampled),
            "withheld_by_reason": {reason: int((reasons == reason).sum()) for reason in WITHHELD_MESSAGES},
            "num_unprotected": int(table["unprotected"].sum()),
            "num_users": len(self._by_user),
            "sampling": self.sampling,
            "policy": self.settings.policy,
            "policy_description": describe_policy(self.settings.policy),
            "mechanism": str(table["mechanism"][0]),
            "is_exact": bool(table["is_exact"].all()),
            "outside": self.settings.outside,
            "epsilon": self.settings.epsilon,
            "max_epsilon": levels["release"],
            "max_epsilon_24h": exposure.pop("max_epsilon_24h"),
            "max_epsilon_total": levels["total"],
            **export_likelihood_ratios(levels, self.is_private),
            **exposure,
            **compute_medians(table, self.hindsight),
            "median_release_rmse_m": float(np.median(errors)) if len(errors) else None,
            "prediction_distance_ratio": self.predictions.ratio,
            "min_possible_states": int(table["possible_states"].min()),
            "min_degree_of_protection": int(table["min_degree_of_protection"].min()),
            "isolated_states": self.isolated_states,
            "costly_repair": self.costly_repair,
            "max_num_added_edges": int(table["num_added_edges"].max()),
            "max_repair_optimality_gap": float(table["repair_optimality_gap"].max()),
            "num_singleton_releases": int(table["singleton"].sum()),
            "settings_hash": self.settings.content_hash,
        }

    def to_private_dict(self) -> dict[str, Any]:
        """Return metrics that depend on true locations. Do not publish them.

        With diagnostics, the errors of estimates and the coverage of the published radii are stated separately for
        timesteps inside and outside the region.

        Returns
        -------
        dict
            Names → plain JSON values.
        """
        errors = np.concatenate([np.zeros(0), *(user.true_errors_m for user in self.user_errors)])
        larger_errors = LargerErrors()
        for user in self.user_errors:
            larger_errors.add(user)
        return {
            "num_locations_outside_region": self.outside,
            "num_timesteps_without_location": self.gaps,
            "num_skipped_fixes": self.user_tracks.skipped,
            "model_trained_on_these_users": self.own_model,
            "median_true_estimate_error_m": float(np.median(errors)) if len(errors) else None,
            **self._summarize_by_adversary(),
            **(self._summarize_errors_by_region() if self.diagnostics else {}),
            "warnings": larger_errors.list_warnings(),
            "dropped": [dropped._asdict() for dropped in self.dropped],
        }

    def _summarize_by_adversary(self) -> dict[str, Any]:
        """The smoothed metrics of the most exposed user, for each adversary."""
        informed = [(HABITS, self.habits), ("a map", self.map_hindsight)]
        computed = [(knowledge, hindsight) for knowledge, hindsight in informed if hindsight is not None]
        if not computed:
            return {}
        metrics: dict[str, Any] = {}
        for knowledge, hindsight in ((PUBLIC.auxiliary_knowledge, self.hindsight), *computed):
            exposure = summarize_exposure(summarise(self.table, hindsight=hindsight))
            for key in SMOOTHED_METRICS:
                metrics[f"{key}_knowing_{knowledge.replace(' ', '_')}"] = exposure[key]
        return metrics

    def _summarize_errors_by_region(self) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        for is_outside, where in ((False, "inside"), (True, "outside")):
            steps = [step for step in self.diagnostics if step.outside == is_outside]
            errors = [1000.0 * step.diagnostics.estimate_error for step in steps]
            # Models of a region alone publish no calibrated radius. A share of zero would be a claim about one.
            with_radius = [step.is_within_calibrated_radius for step in steps if not isnan(step.calibrated_radius_90)]
            metrics |= {
                f"num_timesteps_{where}": len(steps),
                f"median_estimate_error_m_{where}": float(np.median(errors)) if steps else None,
                f"share_within_error_{where}": fmean(step.is_within_expected_error for step in steps)
                if steps
                else None,
                f"share_within_calibrated_radius_90_{where}": fmean(with_radius) if with_radius else None,
            }
        return metrics


@check_arguments
def release(
    data: DataLike,
    model: Model,
    settings: ReleaseSettings,
    output: str | Path | None = None,
    *,
    summary: str | Path | None = None,
    daily: str | Path | None = None,
    private_diagnostics: bool | str | Path = False,
    session: str | Path | None = None,
    limits: Limits | None = None,
    allow_training_users: bool = False,
    rng: Rng = None,
    overwrite: bool = False,
    geometry: Geometry = "estimate",
    auxiliary_data: DataLike | None = None,
    adversary_map: str | Path | None = None,
    certificate: str | Path | None = None,
    watch: ProgressCallback = suppress_progress,
) -> ReleaseResult:
    """Release the locations of every user in some data, as ``dphmm release`` does.

    Each user has a separate belief. It starts with the model's initial distribution, or continues from the user's
    durable session.

    Parameters
    ----------
    data
        The input trajectories.
    model
        The public model, with states and a step, or its file. Training users are known only from the list next to a
        file.
    settings
        The settings of the releases.
    output
        A file for the releases: .gpkg, .geojson, .csv, .gpx or .parquet.
    summary
        A .csv with one row per user; see `dphmm.writers.summarise`.
    daily
        A .csv with one row per user and day in UTC.
    private_diagnostics
        Whether to return diagnostics that depend on the true locations. Alternatively the .csv file to write them to;
        its name must contain PRIVATE.
    session
        A file of durable sessions, or the address of a PostgreSQL server; one session per user. See `dphmm.Session`.
    limits
        With `session`: the budget of each user.
    allow_training_users
        Whether to release users on whose data the model was trained; see `dphmm.jobs.model.training_users`.
    rng
        Defaults to the operating system's randomness. With a seed or generator releases can be reproduced and are not
        private.
    overwrite
        Whether existing files may be replaced.
    geometry
        The geometry of a row in formats with one geometry per row: the ``"estimate"`` or the ``"released"`` location.
    auxiliary_data
        Earlier data of the users, from which an adversary may have learned their habits. The disclosure to this
        adversary is computed too; it is private and takes some seconds per user. Users without earlier data are
        assumed to move as the model states.
    adversary_map
        A map that an adversary has, ``"coast"`` or a file (`dphmm.jobs.region_map.build_region_map`). The disclosure to
        this adversary is computed too.
    certificate
        A file for the certificate of the guarantee, for `scripts/dphmm-verify`: JSON lines, public.
    watch
        Displays progress; see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    ReleaseResult
        The releases, and metrics of them.

    Raises
    ------
    ConfigurationError
        If options conflict, no input location lies inside the model's region, or the model was trained on one of the
        users.
    OutputError
        If an output exists; raised before anything is read.
    SingletonConstraintError
        If only one state is possible at some timestep, unless the settings allow it.
    DphmmError
        For invalid data, model files, policies or sessions.

    Examples
    --------
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import Data, learn, region, release
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
    >>> town = "data/sample/geolife"
    >>> others = Data((town,), exclude_users=("002",))
    >>> model = learn(others, space, step_seconds=300).model
    >>> settings = ReleaseSettings(policy="utility:1km", epsilon=1)
    >>> result = release(Data((town,), users=("002",)), model, settings)
    >>> result.to_dict()["min_degree_of_protection"] >= 2
    True
    """
    diagnostics_file = None if isinstance(private_diagnostics, bool) else Path(private_diagnostics)
    files = (output, check_format), (summary, Path), (daily, Path), (certificate, Path)
    outputs = [check(path) for path, check in (*files, (diagnostics_file, check_private_name)) if path is not None]
    check_outputs(outputs, overwrite)
    if session is not None and not is_server(session):
        check_outputs([check_output(session, overwrite=True), *outputs], overwrite=True)
    _check_limits(session, limits)
    if session is not None:
        _check_session_options(bool(private_diagnostics), certificate is not None, auxiliary_data is not None)
        if adversary_map is not None:
            raise ConfigurationError("adversary_map cannot be combined with --session: use 'dphmm audit session --map'")
    loaded_model = load_model(model)
    space = loaded_model.space
    engine = settings.engine(loaded_model, rng)  # raises for conflicts before anything is read
    if certificate is not None:
        check_certifiable(engine)
    user_tracks, own_model = read_unseen_users(data, model, loaded_model, allow_training_users)
    tracks = [trajectory.resample(loaded_model.step) for trajectory in user_tracks.trajectories]
    outside_counts = [int((space.locate(track.latitude, track.longitude) == OUTSIDE).sum()) for track in tracks]
    num_outside = sum(outside_counts)
    if num_outside == sum(map(len, tracks)):
        raise ConfigurationError("no input location lies inside the model's region; train a model that covers it")
    diagnostics: list[TimedDiagnostics] = []
    opened_certificate = nullcontext() if certificate is None else open_certificate(certificate, overwrite)
    with open_sessions(engine, session, limits) as sessions, opened_certificate as certificate_writer:
        first_slots = {track.user: int(track.slots[0]) for track in tracks}
        earlier = read_histories(read_tracks_by_user(auxiliary_data), loaded_model, first_slots)
        habit_models = None if auxiliary_data is None else HabitModels(loaded_model, tuple(earlier.values()))
        map_model = None if adversary_map is None else build_map_adversary(adversary_map, loaded_model).model
        releases, user_errors, public_hindsight, informed_hindsight, map_hindsight, predictions = _release_tracks(
            tracks,
            engine,
            sessions,
            diagnostics if private_diagnostics else None,
            habit_models,
            map_model,
            certificate_writer,
            watch,
        )
    table = ReleaseTable.from_releases(releases)
    if session is not None:
        public_hindsight = compute_session_hindsight(session, table, engine)
    result = ReleaseResult(
        table,
        user_tracks,
        tuple(diagnostics),
        engine.is_private,
        num_outside,
        sum(int((track.steps - 1).sum()) for track in tracks),
        own_model,
        describe_isolated_states(engine.policy, space),
        settings,
        public_hindsight,
        user_tracks.count_dropped_fixes(space, loaded_model.step, settings.outside == "clamp"),
        informed_hindsight,
        map_hindsight,
        find_costly_repair(engine, get_state_names(space)),
        "file" if session is None else "session",
        predictions,
        tuple(user_errors),
    )
    if output is not None:
        write_releases(output, result.table, overwrite, geometry, engine.is_private, get_publishable_settings(settings))
    for file, by_day in ((summary, False), (daily, True)):
        if file is not None:
            write_summary(file, result.table, overwrite, by_day, public_hindsight)
    if diagnostics_file is not None:
        write_diagnostics(diagnostics_file, diagnostics, overwrite)
    return result


@check_arguments
@contextmanager
def release_live(
    model: Model,
    settings: ReleaseSettings,
    *,
    session: str | Path | None = None,
    limits: Limits | None = None,
    allow_training_users: bool = False,
    rng: Rng = None,
    max_requested_epsilon: Epsilon | None = None,
    clock_skew_seconds: Seconds = CLOCK_SKEW_SECONDS,
) -> Iterator[ReleaseStream]:
    """Release fixes as they arrive, as ``dphmm release`` without files does.

    Call ``take`` of the yielded stream for each fix.

    A warning is logged if some states have no edge in the policy, or the repair of the first plan raises the expected
    error by more than a tenth.

    Parameters
    ----------
    model, settings, session, limits, allow_training_users, rng
        As for `release`. A fix of a user on whose data the model was trained is refused.
    max_requested_epsilon
        The largest budget that a fix may request. None means that no fix may request one.
    clock_skew_seconds
        The largest difference by which the time of a fix may lie ahead of this machine's clock.

    Yields
    ------
    ReleaseStream
        Takes fixes and returns releases.

    Raises
    ------
    DphmmError
        As `release`.

    Examples
    --------
    >>> import numpy as np
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import learn, release_live, region
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
    >>> model = learn("data/sample/geolife", space, step_seconds=300).model
    >>> with release_live(model, ReleaseSettings(policy="utility:1km", epsilon=1)) as stream:
    ...     answer = stream.take("ann", np.datetime64("2024-03-07T09:00"), 45.01, -30.01)
    >>> answer.record.min_degree_of_protection >= 2
    True
    """
    loaded_model = load_model(model)
    engine = settings.engine(loaded_model, rng)
    isolated_states = describe_isolated_states(engine.policy, loaded_model.space)
    if isolated_states is not None:
        logging.getLogger(__name__).warning("states without an edge in the policy: %s", isolated_states)
    if engine.first_step_is_user_independent:
        # Errors of the first plan are reported for the first fix.
        with suppress(DphmmError):
            engine.prepare()
        costly_repair = find_costly_repair(engine, get_state_names(loaded_model.space))
        if costly_repair is not None:
            logging.getLogger(__name__).warning("%s", costly_repair.describe())
    training_users = None if allow_training_users else find_training_users(model, loaded_model)
    accepted = FixFilter(
        max_requested_epsilon, clock_skew_seconds, lambda user: refuse_training_users(training_users, [user])
    )
    with open_sessions(engine, session, limits, accepted) as sessions:
        yield sessions or ReleaseStream(engine, accepted)


@contextmanager
def open_sessions(
    engine: Releaser, session: str | Path | None, limits: Limits | None = None, accepted: FixFilter | None = None
) -> Iterator[RecordedReleaseStream | None]:
    """Open the durable sessions in a file and close them at the end. None if there is no file.

    Raises
    ------
    ConfigurationError
        If limits are given without a session.
    BudgetExceededError
        If the file does not exist yet, and its limits would not allow any user a first release. No file is created
        then. If first releases differ, by their time or by a requested budget, each is checked when it is due.
    DataFileError, OutputError
        If the file of sessions is invalid or cannot be written.
    """
    _check_limits(session, limits)
    is_new = session is not None and not is_server(session) and not Path(session).exists()
    takes_requests = accepted is not None and accepted.epsilon is not None
    if is_new and limits is not None and engine.first_step_is_user_independent and not takes_requests:
        first = engine.spawn().prepare()
        limits.check(Account(), 0, first.epsilon, first.constrained_dp_factor)
    with nullcontext() if session is None else RecordedReleaseStream(session, engine, limits, accepted) as sessions:
        yield sessions


def _check_limits(session: str | Path | None, limits: Limits | None) -> None:
    """Refuse limits without a session, which stores the budget that was spent."""
    if session is None and limits is not None:
        raise ConfigurationError("limits need a session: use --session FILE")


def _check_session_options(has_diagnostics: bool, has_certificate: bool, has_auxiliary_data: bool) -> None:
    """Refuse options that need more than a session stores."""
    if has_diagnostics:
        raise ConfigurationError(
            "--private-diagnostics cannot be combined with --session: a session does not store true locations"
        )
    if has_certificate:
        raise ConfigurationError(
            "--certificate cannot be combined with --session: use 'dphmm certify' for a file of sessions"
        )
    if has_auxiliary_data:
        raise ConfigurationError(
            "auxiliary_data cannot be combined with --session: use 'dphmm audit session --auxiliary-data'"
        )


def _release_tracks(
    tracks: Sequence[SlottedTrajectory],
    engine: Releaser,
    sessions: RecordedReleaseStream | None,
    diagnostics: list[TimedDiagnostics] | None,
    habit_models: HabitModels | None,
    map_model: MarkovModel | None,
    certificate_writer: CertificateWriter | None,
    watch: ProgressCallback,
) -> tuple[
    list[TimedRelease], list[UserErrors], Hindsight | None, Hindsight | None, Hindsight | None, PredictionSummary
]:
    private = None if diagnostics is None else diagnostics.append
    model = engine.model
    points = engine.measurements.points
    releases = list[TimedRelease]()
    movement_check, user_errors = MovementCheck(model), list[UserErrors]()
    public_hindsight: list[tuple[FloatArray, FloatArray]] = []
    informed_hindsight: list[tuple[FloatArray, FloatArray]] = []
    map_hindsight: list[tuple[FloatArray, FloatArray]] = []
    predictions = PredictionSummary()

    def release_all() -> Iterator[TimedRecord]:
        for index, track in enumerate(tracks):
            recorder = SmoothingRecorder(model) if sessions is None else None
            check = PredictionCheck()
            records = list[TimedRecord]()
            if sessions is None:
                timed_records = release_records(engine, model.space, track, private=private)
                if certificate_writer is not None:
                    certificate_writer.begin(track.user, {MAIN_QUERY: engine})
            else:
                timed_records = sessions.release_records(track)
            try:
                for timed_record in timed_records:
                    if recorder is not None:
                        recorder.record(engine)
                        check.add(engine)
                    if (
                        certificate_writer is not None
                        and engine.last is not None
                        and engine.filter_state.slot is not None
                    ):
                        record, step = engine.last
                        certificate_writer.add(step, record.released, engine.filter_state.slot)
                    records.append(timed_record)
                    yield timed_record
            except SingletonConstraintError as problem:
                raise SingletonConstraintError(f"user {track.user}: {problem}") from None
            except BudgetExceededError as problem:
                raise BudgetExceededError(
                    f"{problem}; earlier releases are stored, see 'dphmm session export'"
                ) from None
            user_releases = locate_releases(track.user, records, model.space)
            releases.extend(user_releases)
            if user_releases:
                user_errors.append(movement_check.compare(user_releases, track))
            if recorder is not None and records:
                public_hindsight.append(recorder.compute_smoothed_inference(points, engine.cell))
                if habit_models is not None:
                    habit_model = habit_models[index] or model
                    informed_hindsight.append(recorder.compute_smoothed_inference(points, engine.cell, habit_model))
                if map_model is not None:
                    map_hindsight.append(recorder.compute_smoothed_inference(points, engine.cell, map_model))
            if recorder is not None:
                recorder.close()
            predictions.add(check)

    for _ in watch(release_all(), "Releasing", sum(len(track) for track in tracks)):
        pass
    public, informed, mapped = map(_convert_to_metres, (public_hindsight, informed_hindsight, map_hindsight))
    return releases, user_errors, public, informed, mapped, predictions


def _convert_to_metres(hindsight: Sequence[tuple[FloatArray, FloatArray]]) -> Hindsight | None:
    if not hindsight:
        return None
    error, max_posterior = np.concatenate(hindsight, axis=1)
    return Hindsight(1000.0 * error, max_posterior)
