"""Releases of people's places: whole files, or fixes as they come."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, Rng
from dphmm.audit.sequence import PUBLIC, HindsightRecorder
from dphmm.certificate.canonical_forms import check_certifiable
from dphmm.certificate.writer import CertificateWriter
from dphmm.errors import AlreadyKnownError, BudgetExceededError, ConfigurationError
from dphmm.facts import guarantees_in_words, unless_seeded
from dphmm.jobs.adversaries import HABITS, EachHabits, moments_before, tracks_of
from dphmm.jobs.certificates import certified
from dphmm.jobs.guarantees import IN_HINDSIGHT, exposure_facts, verdict_of, warnings_of
from dphmm.jobs.input_data import DataLike, Dropped, People
from dphmm.jobs.models import Model, load_model, people_seen, read_others, refuse_own
from dphmm.jobs.progress import Watch, unwatched
from dphmm.jobs.stored_releases import MOST_CELLS
from dphmm.policy.expression import policy_in_words
from dphmm.policy.isolated_states import said_of_isolated
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.ledger import Account, Limits
from dphmm.release.record import NO_GAIN
from dphmm.release.session_database import is_server
from dphmm.release.session_terms import MAIN_QUERY
from dphmm.release.trajectory import (
    Accepted,
    Moment,
    RecordedPeople,
    ReleaseStream,
    TimedDiagnostics,
    TimedRelease,
    moments_of,
    placed,
)
from dphmm.space import OUTSIDE, SlottedTrajectory
from dphmm.tables import check_output
from dphmm.tables.output import check_outputs
from dphmm.writers.formats import check_format, write_releases
from dphmm.writers.geopackage import Geometry
from dphmm.writers.summary import Hindsight, check_private_name, summarise, write_diagnostics, write_summary
from dphmm.writers.table import WITHHELD_FOR, ReleaseTable

CLOCK_SKEW_SECONDS = 300.0
"""By how much the time of a fix that comes now may lie ahead of this machine's clock, unless it is said."""


@dataclass(frozen=True)
class Released:
    """What a release job made.

    Parameters
    ----------
    table
        The releases; public.
    people
        Whose places went in. Private.
    diagnostics
        Private diagnostics of every release, where they were asked for.
    is_private
        Whether noise came from the operating system; where it follows from a seed nothing is private.
    outside
        How many of the places on the model's clock lie outside the region. Private.
    gaps
        How many ticks of the clock between a person's first place and last have none. Private.
    own_model
        Whether the model was learned from these people's data, as far as that is known. Private.
    alone
        How many states the policy joins to no other, and how far from one they are, in words; None if there are none.
    settings
        How they were released.
    hindsight
        What is known of each release's time once all are there; None where that was not worked out: over more than ten
        million releases times states, and of durable sessions, which may hold more releases. `audit_session` does it.
    dropped
        What of the data was not released as it was, and why. Private.
    habits
        The same as `hindsight` to somebody who knows each person's habits; None where that was not worked out. Private.
    """

    table: ReleaseTable
    people: People
    diagnostics: tuple[TimedDiagnostics, ...]
    is_private: bool
    outside: int
    gaps: int
    own_model: str
    alone: str | None
    settings: ReleaseSettings
    hindsight: Hindsight | None = None
    dropped: tuple[Dropped, ...] = ()
    habits: Hindsight | None = None

    @cached_property
    def _by_user(self) -> list[dict[str, Any]]:
        return summarise(self.table, hindsight=self.hindsight)

    def verdict(self) -> tuple[str, str]:
        """What a day's releases tell at most, and what a reader is expected to have learned; public.

        Returns
        -------
        tuple of str
            Two sentences.
        """
        return verdict_of(self._by_user, self.settings, self.is_private)

    def warnings(self) -> list[str]:
        """What a reader of 'private' has to know besides, with what to do about it; public.

        Returns
        -------
        list of str
            Sentences; none where there is nothing to know.
        """
        said = warnings_of(self._by_user, self.settings.policy)
        gains = self.table["table_gain"][~np.isnan(self.table["table_gain"])]
        lost = int((gains < NO_GAIN).sum())
        if lost:
            said.append(
                f"at {lost:,} of {len(gains):,} releases the table of least error gains nothing: its error is less "
                f"than {NO_GAIN:.0%} below that of the estimates that noise of a hull by component would have"
            )
        return said

    def facts(self) -> dict[str, Any]:
        """What the releases amount to and promise, from public things alone.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        table, drawn = self.table, self.table.select(~self.table["withheld"])
        errors = drawn["expected_error_m"][~drawn["open"]]
        epsilons, reasons = table["epsilon"], table["withheld_for"]
        spent = max(row["epsilon_total"] for row in self._by_user)
        promise = guarantees_in_words(epsilons.max(), (table["constrained_factor"] * epsilons).max(), spent)
        return {
            "releases": len(drawn),
            **{f"moments_withheld_for_{reason}": int((reasons == reason).sum()) for reason in WITHHELD_FOR},
            "moments_open": int(table["open"].sum()),
            "users": len(self._by_user),
            "mechanism": str(table["mechanism"][0]),
            "exact": bool(table["exact"].all()),
            "epsilon_of_the_user_with_most": spent,
            "joined_places": policy_in_words(self.settings.policy),
            **unless_seeded(promise, self.is_private),
            **exposure_facts(self._by_user),
            "expected_error_m_median": float(np.median(errors)) if len(errors) else None,
            "possible_states_least": int(table["possible_states"].min()),
            "least_protection": int(table["least_protection"].min()),
            "states_the_policy_joins_to_none": self.alone,
            "edges_added_most": int(table["edges_added"].max()),
            "repair_gap_most": float(table["repair_gap"].max()),
            "releases_already_known": int(table["already_known"].sum()),
        }

    def private_facts(self) -> dict[str, Any]:
        """What only the truth tells, such as how long people were away or not recorded. Never publish it.

        Where diagnostics were asked for, moments outside the region are counted apart from those inside: how far the
        estimates were from the person, and how often the person was within the published radius.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        return {
            "private_places_outside_the_region": self.outside,
            "private_ticks_without_a_place": self.gaps,
            "private_fixes_skipped": self.people.skipped,
            "private_model_learned_from_these_people": self.own_model,
            **self._by_adversary(),
            **(self._errors_by_region() if self.diagnostics else {}),
        }

    def _by_adversary(self) -> dict[str, Any]:
        """What adversaries who know the model, or their habits, know of the person known best."""
        if self.habits is None:
            return {}
        found: dict[str, Any] = {}
        for knows, hindsight in ((PUBLIC.knows, self.hindsight), (HABITS, self.habits)):
            facts = exposure_facts(summarise(self.table, hindsight=hindsight))
            for key in IN_HINDSIGHT:
                found[f"private_{key}_knowing_{knows.replace(' ', '_')}"] = facts[key]
        return found

    def _errors_by_region(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for away, where in ((False, "inside"), (True, "outside")):
            part = [one for one in self.diagnostics if one.outside == away]
            errors = [1000.0 * one.diagnostics.estimate_error for one in part]
            found |= {
                f"private_moments_released_{where}": len(part),
                f"private_estimate_error_m_median_{where}": float(np.median(errors)) if part else None,
                f"private_share_within_radius_{where}": fmean(one.within_radius for one in part) if part else None,
                f"private_share_within_radius_90_{where}": fmean(one.is_held for one in part) if part else None,
            }
        return found


@checked
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
    allow_own_model: bool = False,
    rng: Rng = None,
    overwrite: bool = False,
    geometry: Geometry = "estimate",
    known: DataLike | None = None,
    certificate: str | Path | None = None,
    watch: Watch = unwatched,
) -> Released:
    """Release the places of everyone in some data, person by person, as ``dphmm release`` does.

    Each person has a belief of their own, which begins with the model's initial distribution, or goes on from the
    person's durable session.

    Parameters
    ----------
    data
        Whose places.
    model
        The public model; it knows its states and its step.
    settings
        How they are released.
    output
        A file for the releases: .gpkg, .geojson, .csv, .gpx or .parquet.
    summary
        A .csv with one row per user; see `dphmm.writers.summarise`.
    daily
        A .csv with one row per user and day in UTC.
    private_diagnostics
        Whether to keep what needs the truth to compute, or the .csv file to write it to, whose name must say so.
    session
        A file of durable sessions, or the address of a PostgreSQL server; one per person. See `dphmm.Session`.
    limits
        With `session`: what each person may spend.
    allow_own_model
        Whether to release people whose own data the model has seen; see `dphmm.jobs.models`.
    rng
        Left out, the operating system's randomness. A seed or generator makes releases repeatable, hence not private.
    overwrite
        Whether files that exist may be replaced.
    geometry
        Where a row of a file with one place for each is: at the ``"estimate"``, or where something was ``"released"``.
    known
        Earlier data of the people, from which somebody may have learned their habits: what the releases tell them is
        worked out too, for yourself alone; some seconds a person. One without earlier data is thought to move as the
        model says.
    certificate
        A file for the proof of what is promised, which `scripts/dphmm-verify` checks: JSON lines, public.
    watch
        Shows how far the job has come; see `dphmm.jobs.Watch`.

    Returns
    -------
    Released
        The releases, and what else is known of them.

    Raises
    ------
    ConfigurationError
        When options do not go together, no place lies in the model's region, or the model was learned from a person
        whose places these are.
    OutputError
        When an output exists; before anything is read.
    AlreadyKnownError
        When one state only is possible at some time, unless the settings allow it.
    DphmmError
        As the data, the model's file, the policy and the session say.

    Examples
    --------
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import Data, learn, region, release
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    >>> town = "data/sample/geolife"
    >>> others = Data((town,), exclude_users=("002",))
    >>> model = learn(others, space, step_seconds=300).model
    >>> settings = ReleaseSettings(policy="utility:1km", epsilon=1)
    >>> done = release(Data((town,), users=("002",)), model, settings)
    >>> done.facts()["least_protection"] >= 2
    True
    """
    diagnostics_file = None if isinstance(private_diagnostics, bool) else Path(private_diagnostics)
    files = (output, check_format), (summary, Path), (daily, Path), (certificate, Path)
    named = [check(path) for path, check in (*files, (diagnostics_file, check_private_name)) if path is not None]
    check_outputs(named, overwrite)
    if session is not None and not is_server(session):
        check_outputs([check_output(session, overwrite=True), *named], overwrite=True)
    _check_limits(session, limits)
    if session is not None and private_diagnostics:
        raise ConfigurationError("--private-diagnostics need the truth, which a session does not keep; leave one out")
    if session is not None and certificate is not None:
        raise ConfigurationError(
            "--certificate is for releases of one run; of a file of sessions 'dphmm certify' makes one"
        )
    if session is not None and known is not None:
        raise ConfigurationError("--known is for releases of one run; of sessions dphmm audit session --known tells")
    learned = load_model(model)
    engine = settings.engine(learned, rng)  # refuses what they do not agree on before anything is read
    if certificate is not None:
        check_certifiable(engine)
    people, own = read_others(data, model, learned, allow_own_model)
    tracks = [one.resample(learned.step) for one in people.trajectories]
    away = [int((learned.space.locate(one.latitude, one.longitude) == OUTSIDE).sum()) for one in tracks]
    outside, omits = sum(away), settings.outside == "omit"
    if outside == sum(map(len, tracks)):
        raise ConfigurationError("no place of the data lies in the model's region; learn a model of that region")
    kept: list[TimedDiagnostics] = []
    proven = nullcontext() if certificate is None else certified(certificate, overwrite)
    with sessions_of(engine, session, limits) as recorded, proven as proof:
        counts = [len(one) - omits * gone for one, gone in zip(tracks, away, strict=True)]
        begins = {one.user: int(one.slots[0]) for one in tracks}
        moments = moments_before(tracks_of(known), learned, begins)
        theirs = None if known is None else EachHabits(learned, tuple(moments.values()))
        made, told, nearer = _released(
            tracks, counts, engine, recorded, kept if private_diagnostics else None, theirs, proof, watch
        )
    done = Released(
        ReleaseTable.from_releases(made),
        people,
        tuple(kept),
        engine.is_private,
        outside,
        sum(int((one.steps - 1).sum()) for one in tracks),
        own,
        said_of_isolated(engine.policy, learned.space),
        settings,
        told,
        people.dropped(learned.space, learned.step, settings.outside == "border"),
        nearer,
    )
    if output is not None:
        write_releases(output, done.table, overwrite, geometry, engine.is_private)
    for file, by_day in ((summary, False), (daily, True)):
        if file is not None:
            write_summary(file, done.table, overwrite, by_day, told)
    if diagnostics_file is not None:
        write_diagnostics(diagnostics_file, kept, overwrite)
    return done


@contextmanager
def live(
    model: Model,
    settings: ReleaseSettings,
    *,
    session: str | Path | None = None,
    limits: Limits | None = None,
    allow_own_model: bool = False,
    rng: Rng = None,
    accept_epsilon: float | None = None,
    clock_skew_seconds: float = CLOCK_SKEW_SECONDS,
) -> Iterator[ReleaseStream]:
    """Releases for fixes as they come, as ``dphmm release`` without files: call ``take`` on what this hands out.

    Where the policy joins some states to no other a warning is logged.

    Parameters
    ----------
    model, settings, session, limits, allow_own_model, rng
        As for `release`; a fix of a person whose data the model has seen is refused by itself.
    accept_epsilon
        The greatest budget that a fix may ask for itself; left out, none may.
    clock_skew_seconds
        By how much the time of a fix may lie ahead of this machine's clock.

    Yields
    ------
    ReleaseStream
        Takes fixes and answers with releases.

    Raises
    ------
    DphmmError
        As `release`.

    Examples
    --------
    >>> import numpy as np
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import learn, live, region
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    >>> model = learn("data/sample/geolife", space, step_seconds=300).model
    >>> with live(model, ReleaseSettings(policy="utility:1km", epsilon=1)) as people:
    ...     answer = people.take("ann", np.datetime64("2024-03-07T09:00"), 45.01, -30.01)
    >>> answer.record.least_protection >= 2
    True
    """
    learned = load_model(model)
    engine = settings.engine(learned, rng)
    alone = said_of_isolated(engine.policy, learned.space)
    if alone is not None:
        logging.getLogger(__name__).warning("dphmm: states that the policy joins to no other: %s", alone)
    seen = None if allow_own_model else people_seen(model, learned)
    accepted = Accepted(accept_epsilon, clock_skew_seconds, lambda user: refuse_own(seen, [user]))
    with sessions_of(engine, session, limits, accepted) as recorded:
        yield recorded or ReleaseStream(engine, accepted)


@contextmanager
def sessions_of(
    engine: Releaser, session: str | Path | None, limits: Limits | None = None, accepted: Accepted | None = None
) -> Iterator[RecordedPeople | None]:
    """Everyone's durable sessions in a file, closed at the end; None where there is no file.

    Raises
    ------
    ConfigurationError
        When limits are given without a session.
    BudgetExceededError
        When there is no such file yet, and its limits would not allow anybody a first release; none is made then. Where
        first releases differ, by their time or by what a fix asks for, each is looked at when it comes.
    DataFileError, OutputError
        As the file of sessions says.
    """
    _check_limits(session, limits)
    is_new = session is not None and not is_server(session) and not Path(session).exists()
    asks = accepted is not None and accepted.epsilon is not None
    if is_new and limits is not None and engine.begins_alike and not asks:
        first = engine.another().prepare()
        limits.check(Account(), 0, first.epsilon, first.constrained_factor)
    with nullcontext() if session is None else RecordedPeople(session, engine, limits, accepted) as recorded:
        yield recorded


def _check_limits(session: str | Path | None, limits: Limits | None) -> None:
    """Refuse limits without a session, in which what was spent is kept."""
    if session is None and limits is not None:
        raise ConfigurationError("limits need a session to be kept in; name a file with --session")


def _released(
    tracks: Sequence[SlottedTrajectory],
    counts: Sequence[int],
    engine: Releaser,
    recorded: RecordedPeople | None,
    diagnostics: list[TimedDiagnostics] | None,
    habits: EachHabits | None,
    proof: CertificateWriter | None,
    watch: Watch,
) -> tuple[list[TimedRelease], Hindsight | None, Hindsight | None]:
    private = None if diagnostics is None else diagnostics.append
    model, made = engine.model, list[TimedRelease]()
    known: list[tuple[FloatArray, FloatArray]] = []
    nearer: list[tuple[FloatArray, FloatArray]] = []
    hears = recorded is None and max(counts) * model.size <= MOST_CELLS

    def everything() -> Iterator[Moment]:
        for number, (track, count) in enumerate(zip(tracks, counts, strict=True)):
            heard, moments = HindsightRecorder(model, count) if hears else None, list[Moment]()
            if recorded is None:
                found = moments_of(engine, model.space, track, private=private)
                if proof is not None:
                    proof.begin(track.user, {MAIN_QUERY: engine})
            else:
                found = recorded.moments(track)
            try:
                for moment in found:
                    if heard is not None:
                        heard.record(engine)
                    if proof is not None and engine.last is not None and engine.person.slot is not None:
                        record, step = engine.last
                        proof.add(step, record.released, engine.person.slot)
                    moments.append(moment)
                    yield moment
            except AlreadyKnownError as problem:
                raise AlreadyKnownError(f"user {track.user}: {problem}, with --allow-known") from None
            except BudgetExceededError as problem:
                raise BudgetExceededError(
                    f"{problem}; 'dphmm session export' has what was released until then"
                ) from None
            made.extend(placed(track.user, moments, model.space))
            if heard is not None and moments:
                known.append(heard.in_hindsight(engine.measurements.points, engine.cell))
                if habits is not None:
                    own = habits[number] or model
                    nearer.append(heard.in_hindsight(engine.measurements.points, engine.cell, own))

    for _ in watch(everything(), "Releasing", sum(len(track) for track in tracks)):
        pass
    return made, _in_metres(known), _in_metres(nearer)


def _in_metres(known: Sequence[tuple[FloatArray, FloatArray]]) -> Hindsight | None:
    if not known:
        return None
    error, certainty = np.concatenate(known, axis=1)
    return Hindsight(1000.0 * error, certainty)
