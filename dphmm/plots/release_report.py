"""A printable page about releases: guarantee, disclosure and limitations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

import dphmm
from dphmm.errors import ConfigurationError
from dphmm.html_report import Picture, Section, html_page
from dphmm.jobs.batch.run_folder import hash_contents
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.model.loading import Model, load_model
from dphmm.jobs.release.guarantees import Guarantee, build_guarantee
from dphmm.jobs.release.stored import SettingsLike, check_made_with, choose_settings, read_released
from dphmm.model.path_sampling import PathSampler
from dphmm.plots.canvas import create_figure, label_map, place_legend_below, render_png, set_limits
from dphmm.plots.maps import draw_space, draw_track
from dphmm.plots.release import ReleaseMap, draw_ground, restrict_to_releases, select_users
from dphmm.random import Rng
from dphmm.release.database_backends import is_store
from dphmm.release.engine import Releaser
from dphmm.release.trajectory_release import release_trajectory
from dphmm.space.trajectory import SlottedTrajectory, Trajectory, round_to_microseconds
from dphmm.tables import check_output, iso_time, private_name, write_text
from dphmm.tables.values import replace_surrogates
from dphmm.tables.vector_files import check_vector_file
from dphmm.validation import check_arguments
from dphmm.writers.release_table import ReleaseTable

# The largest number of timesteps of the synthetic user.
MAX_TIMESTEPS = 300

SYNTHETIC_USER = "a synthetic user"
# The banner of a page with true locations.
PRIVACY_WARNING = "PRIVATE: this page shows true locations. Do not publish it or pass it on."


@check_arguments
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
    """Write a page about releases, as ``dphmm report`` does.

    The page assumes no background in privacy.

    The page contains the guarantee in two sentences, a user before and after, the disclosure in metres and odds, the
    limitations, and the settings. Everything is computed from the releases, the model and the settings. These are
    checked against the hashes in the rows. The page is a single printable file that loads nothing.

    The user before and after is synthetic: sampled from the model and released with the settings. With `true` it is a
    real user.

    Parameters
    ----------
    releases
        A file of `dphmm.jobs.release`, the folder of a batch, or a file of sessions; see `read_released`.
    output
        An ``.html`` file. With `true` its name must contain PRIVATE, and only its owner may read it.
    model
        The model of the releases, or its file.
    settings
        The settings of the releases. A batch, and sessions with equal settings, contain their settings. A file needs
        none if they are the defaults or are stored with it, or the policy only; see `dphmm.jobs.replay`.
    basemap
        A more detailed map than the package's: see `dphmm.plots.show`.
    true
        True trajectories. The page shows the released user with most releases, and is private.
    users
        The users of the report. Defaults to all.
    title
        Defaults to the name of the releases.
    rng
        Source of the synthetic user and their noise. Defaults to the operating system's randomness.
    overwrite
        Whether an existing output may be replaced.

    Returns
    -------
    Path
        The page, written atomically.

    Raises
    ------
    ConfigurationError
        For another extension, a name without PRIVATE for true locations, a user without releases, another model or
        other settings than those of the releases, or no release at all.
    SingletonConstraintError
        If only one state is possible at a timestep of the synthetic user, and the settings do not allow it.
    OutputError
        If the file exists and may not be overwritten, or cannot be written; raised before anything is read.
    DataFileError, MissingDependencyError
        If a file is invalid, or matplotlib is not installed.
    """
    source = Path(releases)
    path = Path(output)
    is_private = true is not None
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigurationError(
            f"{path}: output of a report must be an .html file, got {path.suffix or 'no extension'!r}"
        )
    check_output(private_name(path) if is_private else path, overwrite)
    if basemap is not None:
        check_vector_file(basemap)
    table, engine, is_system_noise = _load_releases(source, model, settings, users)
    if true is None:
        track, shown = _sample_user(engine, table, rng)
    else:
        track, shown = _choose_real_user(Data.from_any(true), table)
    guarantee = build_guarantee(table, engine, is_system_noise)
    time_range = f"from {iso_time(track.times[0])} to {iso_time(track.times[-1])}"
    explanation = f"Before: the true locations of {track.user}, {time_range}. After: the releases."
    if not is_private:
        explanation = (
            f"The locations are not real: {SYNTHETIC_USER} was sampled from the model, {time_range}, and released with "
            "the settings of these releases. Before: the locations of this user. After: what would be published."
        )
    header = "metric", "at each timestep", "using all releases"
    maps = _draw_before_and_after(engine, track, shown, basemap, is_private)
    warnings = [Section("Where they disclose more than the guarantee suggests", points=guarantee.warnings)]
    sections = [
        Section("Guarantee", points=guarantee.guarantees),
        Section("Before and after", [explanation], pictures=maps),
        Section("Disclosure in metres and odds", [_METRICS], header=header, rows=guarantee.disclosure),
        *(warnings if guarantee.warnings else []),
        Section("Published releases", pictures=[_draw_published(engine, table, basemap, is_system_noise)]),
        Section("Limitations", points=guarantee.limitations),
        Section("Settings", header=("", ""), rows=(*guarantee.provenance, *_describe_origin(source))),
    ]
    page_title = replace_surrogates(title or f"Private locations: {source.resolve().name}")
    banner = PRIVACY_WARNING if is_private else ""
    page = html_page(page_title, _summarize_releases(guarantee, table), bool(guarantee.warnings), sections, banner)
    write_text(path, page, overwrite, is_private)
    return path


def _load_releases(
    source: Path, model: Model, settings: SettingsLike | None, users: Sequence[str]
) -> tuple[ReleaseTable, Releaser, bool | None]:
    """Return the releases, an engine of their settings, and whether the noise is private.

    The releases of each user are in order of time. The settings are checked.
    """
    loaded_model = load_model(model)
    stored = read_released(source, loaded_model, users)
    table = select_users(stored.table, users)
    order = np.lexsort((table["time"], table["user"].astype(str)))
    table = ReleaseTable({name: values[order] for name, values in table.columns.items()})
    if not len(table):
        raise ConfigurationError(f"{source} contains no release to report on")
    first = str(table["user"][0])
    rows = table.select(table["user"] == first)
    engine = choose_settings(source, first, rows, settings, stored.settings).engine(loaded_model)
    for user in dict.fromkeys(table["user"].tolist()):
        check_made_with(source, user, table.select(table["user"] == user), engine)
    return table, engine, stored.is_private


def _sample_user(engine: Releaser, table: ReleaseTable, rng: Rng) -> tuple[Trajectory, ReleaseTable]:
    """Sample a user from the model, for at most a day, and release them."""
    model = engine.model
    space = engine.model.space
    step = round_to_microseconds(model.step, "step")
    first = int(table["time"].min().astype("datetime64[us]").astype(np.int64)) // step
    slots = first + np.arange(min(MAX_TIMESTEPS, max(2, 86_400_000_000 // step)))
    states = PathSampler(model, rng).sample_state_paths(np.array([first]), len(slots))[0]
    latitude, longitude = space.latlon()[states].T
    new_engine = engine.spawn(rng)
    new_engine.event_caps.ignores_past_caps = True
    slotted = SlottedTrajectory(SYNTHETIC_USER, model.step, slots, latitude, longitude)
    releases = ReleaseTable.from_releases(release_trajectory(new_engine, space, slotted))
    return Trajectory(SYNTHETIC_USER, (slots * step).astype("datetime64[us]"), latitude, longitude), releases


def _choose_real_user(data: Data, table: ReleaseTable) -> tuple[Trajectory, ReleaseTable]:
    """Return the trajectory and the releases of the user with most releases. Private."""
    tracks = {trajectory.user: trajectory for trajectory in data.read().trajectories}
    names, counts = np.unique(table["user"].astype(str), return_counts=True)
    for user in names[np.argsort(-counts, kind="stable")].tolist():
        if user in tracks:
            part = restrict_to_releases(tracks[user], table)
            if part is not None:
                return part, table.select(table["user"] == user)
    raise ConfigurationError(
        f"the true data contain no released user at the time of the releases, got {', '.join(names[:8])}"
    )


_METRICS = (
    "Medians are over the timesteps of the user for whom the metric is worst. The metrics describe an adversary who "
    "knows only the model, for users who move as the model assumes. 'At each timestep' uses the releases so far."
)


def _summarize_releases(guarantee: Guarantee, table: ReleaseTable) -> str:
    num_users = len(set(table["user"].tolist()))
    num_released = int((~table["withheld"]).sum())
    num_unprotected = int((table["unprotected"] & ~table["withheld"]).sum())
    noise = f"with noise except for {num_unprotected:,} that are unprotected" if num_unprotected else "with noise"
    text = f"{num_released:,} locations of {num_users:,} user{'s' if num_users > 1 else ''}, {noise}."
    if not guarantee.warnings:
        return text
    count = len(guarantee.warnings)
    return f"{text} Together they disclose more than a single release: {count} warning{'s' if count > 1 else ''} below."


def _draw_before_and_after(
    engine: Releaser, track: Trajectory, shown: ReleaseTable, basemap: str | Path | None, is_private: bool
) -> tuple[Picture, Picture]:
    space = engine.model.space
    true = space.projection.to_plane(track.latitude, track.longitude)
    released_map = ReleaseMap(shown, space, basemap=basemap)
    figure_after, ax_after = create_figure(*_HALF_WIDTH_INCHES)
    released_map.draw(ax_after)
    view = np.concatenate([np.transpose([ax_after.get_xlim(), ax_after.get_ylim()]), true])
    figure_before, ax_before = create_figure(*_HALF_WIDTH_INCHES)
    draw_space(ax_before, space)
    draw_track(ax_before, true, "true locations (private)" if is_private else "locations of the synthetic user")
    for ax in (ax_after, ax_before):
        set_limits(ax, view)
        place_legend_below(ax, columns=2)  # two rows in both maps, so that the maps have the same size
    draw_ground(ax_before, space.projection, basemap, space)
    label_map(ax_before)
    return (
        Picture(render_png(figure_before), f"Before: the locations of {track.user}."),
        Picture(render_png(figure_after), "After: the sampled locations and the published estimates."),
    )


# The size of one of two maps side by side.
_HALF_WIDTH_INCHES = (4.8, 4.9)


def _draw_published(
    engine: Releaser, table: ReleaseTable, basemap: str | Path | None, is_system_noise: bool | None
) -> Picture:
    figure, ax = create_figure(7.0, 5.2)
    release_map = ReleaseMap(table, engine.model.space, basemap=basemap, is_private=is_system_noise)
    note = release_map.draw_with_note(ax)
    return Picture(render_png(figure), note, wide=True)


def _describe_origin(source: Path) -> tuple[tuple[str, str], ...]:
    # A store changes with every release, and this process may have opened it.
    digest = f", SHA-256 {hash_contents(source)[:16]}" if source.is_file() and not is_store(source) else ""
    return (("releases", f"{source.name}{digest}"), ("software", f"dphmm {dphmm.__version__}"))
