"""The page for colleagues: releases before and after, what is promised and what is not, in one file to print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

import dphmm
from dphmm.arguments import checked
from dphmm.arrays import Rng
from dphmm.errors import ConfigurationError
from dphmm.jobs.guarantees import Promise, promise_of
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.run_folder import file_hash
from dphmm.jobs.stored_releases import SettingsLike, check_made_with, read_released, stated_settings
from dphmm.model.path_sampling import PathSampler
from dphmm.plots.figures import label_map, legend_below, new_figure, png, show_around
from dphmm.plots.maps import draw_space, draw_track
from dphmm.plots.releases import ReleaseMap, draw_ground, rows_of_users, while_released
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.trajectory import release_trajectory
from dphmm.reports import Picture, Section, html_page
from dphmm.space.trajectory import SlottedTrajectory, Trajectory, microseconds
from dphmm.tables import check_output, iso_time, private_name, write_text
from dphmm.tables.values import writable
from dphmm.tables.vector_files import check_vector_file
from dphmm.writers.table import ReleaseTable

MOMENTS = 300
"""An invented person is followed for at most this many moments."""

INVENTED = "an invented person"
PRIVATE = "PRIVATE: this page shows true places. It is for the person whom they are about, and for no one else."


@checked
def report(
    releases: str | Path,
    output: str | Path,
    model: Model,
    settings: SettingsLike | None = None,
    *,
    basemap: str | Path | None = None,
    true: DataLike | None = None,
    users: Sequence[str] = (),
    title: str | None = None,
    rng: Rng = None,
    overwrite: bool = False,
) -> Path:
    """Write a page about releases for people who were not there, as ``dphmm report`` does.

    It has what is promised in two sentences, a person before and after, what the releases told in metres and odds, what
    is not promised, and how they were made; everything is worked out from the releases, the model and the settings,
    which are checked against the hashes in the rows. It is one file that loads nothing, made to be printed.

    The person is invented: drawn from the model, and released as the settings say. With `true` it is a real one.

    Parameters
    ----------
    releases
        A file that `dphmm.jobs.release` wrote, the folder of a batch, or a file of sessions; see `read_released`.
    output
        An ``.html`` file. With `true` its name must say that it is private, and only its owner may read it.
    model
        The model that the releases were made with, or its file.
    settings
        How they were made; the policy alone where everything but the epsilon and the mechanism, which the rows tell,
        was left at its default. A batch, and sessions that were agreed on alike, say so themselves.
    basemap
        A finer map to draw on than the one of the package: see `dphmm.plots.show`.
    true
        True trajectories: the page shows the places of the released user with most releases, and is private.
    users
        Report on these users alone.
    title
        Left out, the page is called after the releases.
    rng
        Of the invented person and of that person's noise; left out, the operating system's randomness.
    overwrite
        Whether an output that exists may be replaced.

    Returns
    -------
    Path
        The page, which appears whole or not at all.

    Raises
    ------
    ConfigurationError
        For another ending, a name that hides that true places are shown, a user without releases, another model or
        other settings than the releases were made with, or no release at all.
    AlreadyKnownError
        When only one place is possible at a moment of the invented person, and the settings do not allow that.
    OutputError
        When the file exists and may not be overwritten, or cannot be written; before anything is read.
    DataFileError, MissingDependencyError
        When a file cannot be read as what it should be, or without matplotlib.
    """
    source, path, private = Path(releases), Path(output), true is not None
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigurationError(f"{path}: a report is an .html file; name it so")
    check_output(private_name(path) if private else path, overwrite)
    if basemap is not None:
        check_vector_file(basemap)
    table, engine = _released(source, model, settings, users)
    if true is None:
        track, shown = _invented(engine, table, rng)
    else:
        track, shown = _real(Data.from_any(true), table)
    found = promise_of(table, engine)
    until = f"from {iso_time(track.times[0])} to {iso_time(track.times[-1])}"
    before = f"Before: where {track.user} was, {until}. After: what was released of them."
    if not private:
        before = (
            f"Nobody was there: {INVENTED} was drawn from the model, {until}, and released as these releases were. "
            "Before: where they would have been. After: what would be published of them."
        )
    head = "expected", "at each moment", "in hindsight"
    sections = [
        Section("What is promised", points=found.promised),
        Section("Before and after", [before], pictures=_before_and_after(engine, track, shown, basemap, private)),
        Section("What the releases told, in metres and odds", [_MEANING], header=head, rows=found.disclosed),
        *([Section("Where they tell more than they sound like", points=found.warnings)] if found.warnings else []),
        Section("What was published", pictures=[_published(engine, table, basemap)]),
        Section("What is not promised", points=found.not_promised),
        Section("How it was made", header=("", ""), rows=(*found.made, *_origin(source))),
    ]
    named = writable(title or f"Private locations: {source.resolve().name}")
    page = html_page(named, _summary(found, table), bool(found.warnings), sections, PRIVATE if private else "")
    write_text(path, page, overwrite, private)
    return path


def _released(
    source: Path, model: Model, settings: SettingsLike | None, users: Sequence[str]
) -> tuple[ReleaseTable, Releaser]:
    """The releases, each user's in order of time, and an engine of what they were made with, which is checked."""
    learned = load_model(model)
    stored = read_released(source, learned, users)
    table = rows_of_users(stored.table, users)
    order = np.lexsort((table["time"], table["user"].astype(str)))
    table = ReleaseTable({name: values[order] for name, values in table.columns.items()})
    if not len(table):
        raise ConfigurationError(f"{source} holds no release; there is nothing to report on")
    settings = settings or stored.settings
    if settings is None:
        raise ConfigurationError("no policy is given; give the --policy that the releases were made with")
    if not isinstance(settings, ReleaseSettings):
        first = str(table["user"][0])
        settings = stated_settings(source, first, table.select(table["user"] == first), settings)
    engine = settings.engine(learned)
    for user in dict.fromkeys(table["user"].tolist()):
        check_made_with(source, user, table.select(table["user"] == user), engine)
    return table, engine


def _invented(engine: Releaser, table: ReleaseTable, rng: Rng) -> tuple[Trajectory, ReleaseTable]:
    """A person out of the model, for a day from the first release on at most, and what is released of them."""
    model, space = engine.model, engine.model.space
    step = microseconds(model.step, "step")
    first = int(table["time"].min().astype("datetime64[us]").astype(np.int64)) // step
    slots = first + np.arange(min(MOMENTS, max(2, 86_400_000_000 // step)))
    states = PathSampler(model, rng).paths(np.array([first]), len(slots))[0]
    latitude, longitude = space.latlon()[states].T
    another = engine.another(rng)
    another.capping.passes_over_the_past = True
    slotted = SlottedTrajectory(INVENTED, model.step, slots, latitude, longitude)
    made = ReleaseTable.from_releases(release_trajectory(another, space, slotted))
    return Trajectory(INVENTED, (slots * step).astype("datetime64[us]"), latitude, longitude), made


def _real(data: Data, table: ReleaseTable) -> tuple[Trajectory, ReleaseTable]:
    """The person of the data with most releases: where they were meanwhile, and their releases. Private."""
    tracks = {one.user: one for one in data.read().trajectories}
    names, counts = np.unique(table["user"].astype(str), return_counts=True)
    for user in names[np.argsort(-counts, kind="stable")].tolist():
        if user in tracks:
            part = while_released(tracks[user], table)
            if part is not None:
                return part, table.select(table["user"] == user)
    raise ConfigurationError(
        f"no user who was released is in the true data at that time; there are {', '.join(names[:8])}"
    )


_MEANING = (
    "Medians over the moments, of the person for whom a figure is worst: what an adversary who knows the model and "
    "nothing else of them has to expect, if they move as it says. 'At each moment' is once that moment's release is "
    "out, 'in hindsight' once all are."
)


def _summary(found: Promise, table: ReleaseTable) -> str:
    users = len(set(table["user"].tolist()))
    drawn = int((~table["withheld"]).sum())
    opened = int((table["open"] & ~table["withheld"]).sum())
    noise = f"with noise but for {opened:,} that are open" if opened else "with noise"
    told = f"{drawn:,} places of {users:,} {'people' if users > 1 else 'person'}, {noise}."
    if not found.warnings:
        return told
    count = len(found.warnings)
    return f"{told} Together they tell more than one of them does: {count} warning{'s' if count > 1 else ''} below."


def _before_and_after(
    engine: Releaser, track: Trajectory, shown: ReleaseTable, basemap: str | Path | None, private: bool
) -> tuple[Picture, Picture]:
    space = engine.model.space
    true = space.projection.to_plane(track.latitude, track.longitude)
    after = ReleaseMap(shown, space, basemap=basemap)
    figure, ax = new_figure(*_SIDE)
    after.draw(ax)
    view = np.concatenate([np.transpose([ax.get_xlim(), ax.get_ylim()]), true])
    left, other = new_figure(*_SIDE)
    draw_space(other, space)
    draw_track(other, true, "true places (private)" if private else "where the invented person would be")
    for one in (ax, other):
        show_around(one, view)
        legend_below(one, columns=2)  # in two rows for each map alike
    draw_ground(other, space.projection, basemap)
    label_map(other)
    return (
        Picture(png(left), f"Before: where {track.user} {'was' if private else 'would be'}."),
        Picture(png(figure), "After: released points and the estimate that anyone can make of them."),
    )


_SIDE = (4.8, 4.9)
"""Inches of one of two maps side by side."""


def _published(engine: Releaser, table: ReleaseTable, basemap: str | Path | None) -> Picture:
    figure, ax = new_figure(7.0, 5.2)
    note = ReleaseMap(table, engine.model.space, basemap=basemap).draw_with_note(ax)
    return Picture(png(figure), note, wide=True)


def _origin(source: Path) -> tuple[tuple[str, str], ...]:
    digest = f", SHA-256 {file_hash(source)[:16]}" if source.is_file() else ""
    return (("releases", f"{source.name}{digest}"), ("page made with", f"dphmm {dphmm.__version__}"))
