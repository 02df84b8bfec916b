"""Releases of people's places: whole files, or fixes as they come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arrays import Rng
from dphmm.errors import AlreadyKnownError, ConfigurationError
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.people import Data, DataLike, People
from dphmm.jobs.watch import Watch, unwatched
from dphmm.release.engine import Releaser
from dphmm.release.ledger import Limits
from dphmm.release.people import RecordedPeople, ReleaseStream
from dphmm.release.settings import ReleaseSettings
from dphmm.release.trajectory import TimedDiagnostics, TimedRelease, release_trajectory
from dphmm.tables import check_output
from dphmm.writers.diagnostics import check_private_name, write_diagnostics
from dphmm.writers.formats import check_format, write_releases
from dphmm.writers.summary import write_summary
from dphmm.writers.table import ReleaseTable


@dataclass(frozen=True)
class Released:
    """What a release job made.

    Attributes
    ----------
    table
        The releases; public.
    people
        Whose places went in. Private.
    diagnostics
        Private diagnostics of every release, where they were asked for.
    is_private
        Whether noise came from the operating system; where it follows from a seed nothing is private.
    """

    table: ReleaseTable
    people: People
    diagnostics: tuple[TimedDiagnostics, ...]
    is_private: bool

    def facts(self) -> dict[str, Any]:
        """What the releases amount to, from public things alone."""
        table = self.table
        users = set(table["user"].tolist())
        spent = [float(table["epsilon"][table["user"] == user].sum()) for user in users]
        return {
            "releases": len(table),
            "users": len(users),
            "mechanism": str(table["mechanism"][0]),
            "epsilon_of_the_user_with_most": max(spent),
            "expected_error_m_median": float(np.median(table["expected_error_m"])),
            "possible_states_least": int(table["possible_states"].min()),
            "least_protection": int(table["least_protection"].min()),
            "edges_added_most": int(table["edges_added"].max()),
            "releases_already_known": int(table["already_known"].sum()),
            "fixes_skipped": self.people.skipped,
            "private": self.is_private,
        }


def release(
    data: DataLike,
    model: Model,
    settings: ReleaseSettings,
    output: str | Path | None = None,
    *,
    summary: str | Path | None = None,
    private_diagnostics: bool | str | Path = False,
    session: str | Path | None = None,
    limits: Limits | None = None,
    rng: Rng = None,
    overwrite: bool = False,
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
        A .csv with one row per user.
    private_diagnostics
        Whether to keep what needs the truth to compute, or the .csv file to write it to, whose name must say so.
    session
        A file of durable sessions, one per person; see `dphmm.Session`.
    limits
        With `session`: what each person may spend.
    rng
        Left out, the operating system's randomness. A seed or generator makes releases repeatable, hence not private.
    overwrite
        Whether files that exist may be replaced.
    watch
        Who is shown the progress.

    Raises
    ------
    ConfigurationError
        When options do not go together, or no place lies in the model's region.
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
    >>> model = learn(others, space, step_seconds=300, smoothing=0.5).model
    >>> settings = ReleaseSettings(policy="utility:1km", epsilon=1)
    >>> done = release(Data((town,), users=("002",)), model, settings)
    >>> done.facts()["least_protection"] >= 2
    True
    """
    diagnostics_file = None if isinstance(private_diagnostics, bool) else Path(private_diagnostics)
    for path, checked in ((output, check_format), (summary, Path), (diagnostics_file, check_private_name)):
        if path is not None:
            check_output(checked(path), overwrite)
    if session is not None and private_diagnostics:
        raise ConfigurationError("--private-diagnostics need the truth, which a session does not keep; leave one out")
    learned = load_model(model)
    engine = settings.engine(learned, rng)
    people = Data.of(data).read()
    kept: list[TimedDiagnostics] = []
    with sessions_of(engine, session, limits) as recorded:
        made = _released(people, engine, recorded, kept if private_diagnostics else None, watch)
    done = Released(ReleaseTable.of(made), people, tuple(kept), engine.is_private)
    if output is not None:
        write_releases(output, done.table, overwrite)
    if summary is not None:
        write_summary(summary, done.table, overwrite)
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
    rng: Rng = None,
) -> Iterator[ReleaseStream]:
    """Releases for fixes as they come, as ``dphmm release`` without files: call ``take`` on what this hands out.

    Parameters are those of `release`.

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
    >>> model = learn("data/sample/geolife", space, step_seconds=300, smoothing=0.5).model
    >>> with live(model, ReleaseSettings(policy="utility:1km", epsilon=1)) as people:
    ...     answer = people.take("ann", np.datetime64("2024-03-07T09:00"), 45.01, -30.01)
    >>> answer.record.least_protection >= 2
    True
    """
    learned = load_model(model)
    engine = settings.engine(learned, rng)
    with sessions_of(engine, session, limits) as recorded:
        yield recorded or ReleaseStream(engine.another, learned.space, learned.step)


@contextmanager
def sessions_of(
    engine: Releaser, session: str | Path | None, limits: Limits | None = None
) -> Iterator[RecordedPeople | None]:
    """Everybody's durable sessions in a file, closed at the end; None where there is no file.

    Raises
    ------
    ConfigurationError
        When limits are given without a session.
    DataFileError, OutputError
        As the file of sessions says.
    """
    if session is None:
        if limits is not None:
            raise ConfigurationError("limits need a session to be kept in; name a file with --session")
        yield None
        return
    with RecordedPeople(session, engine.another, engine.model.space, limits) as recorded:
        yield recorded


def _released(
    people: People,
    engine: Releaser,
    recorded: RecordedPeople | None,
    diagnostics: list[TimedDiagnostics] | None,
    watch: Watch,
) -> list[TimedRelease]:
    tracks = [one.resample(engine.model.step) for one in people.trajectories]
    private = None if diagnostics is None else diagnostics.append

    def everything() -> Iterator[TimedRelease]:
        for track in tracks:
            try:
                if recorded is not None:
                    yield from recorded.trajectory(track)
                else:
                    yield from release_trajectory(engine, engine.model.space, track, private=private)
            except AlreadyKnownError as problem:
                raise AlreadyKnownError(f"user {track.user}: {problem}, with --allow-known") from None

    made = list(watch(everything(), "Releasing", sum(len(track) for track in tracks)))
    if not made:
        raise ConfigurationError("no place of the data lies in the model's region; learn a model of that region")
    return made
