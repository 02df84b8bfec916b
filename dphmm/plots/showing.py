"""Releases in a file as a picture, or as a map to open in a browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError
from dphmm.jobs.models import Model
from dphmm.jobs.people import Data, DataLike
from dphmm.markov.model import MarkovModel
from dphmm.plots.maps import new_figure, save
from dphmm.plots.releases import ReleaseMap
from dphmm.policy.expression import parse_policy
from dphmm.policy.layer import read_polygons
from dphmm.space.trajectory import Trajectory
from dphmm.tables import check_output, new_file, private_name, write_text
from dphmm.tables.values import parse_time
from dphmm.writers.formats import read_releases
from dphmm.writers.table import ReleaseTable

PICTURES = (".png", ".svg", ".pdf")
PAGES = (".html", ".htm")


@checked
def show(
    releases: str | Path,
    output: str | Path | None = None,
    *,
    model: Model | None = None,
    policy: str | None = None,
    layer: str | Path | None = None,
    true: DataLike | None = None,
    users: Sequence[str] = (),
    start: str | None = None,
    end: str | None = None,
    title: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Draw the releases in a file, as ``dphmm show`` does.

    Parameters
    ----------
    releases
        A file that `dphmm.jobs.release` wrote.
    output
        A .png, .svg or .pdf picture, or an .html page that needs no network; left out, a page beside the releases. With
        `true` its name must say that it is private, and only its owner may read it.
    model
        The model, to draw its states.
    policy
        With `model`: a policy as text, to draw its edges (where few) and its hull.
    layer
        Polygons to draw below: GeoJSON, KML or GeoPackage.
    true
        True trajectories to draw, of the users that were released: the map is private then.
    users, start, end
        These users alone; no release before, and none at or after these times (ISO 8601, UTC).
    title
        The title of the map.
    overwrite
        Whether an output that exists may be replaced.

    Returns
    -------
    Path
        The file, which appears whole or not at all.

    Raises
    ------
    ConfigurationError
        For another ending, a policy without a model, a name that hides that true places are shown, or when no release
        is left to draw.
    OutputError
        When the file exists and may not be overwritten, or cannot be written; before anything is read.
    MissingDependencyError
        For a picture without matplotlib.
    DataFileError
        When a file cannot be read as what it should be.
    """
    if not Path(releases).name:
        raise ConfigurationError(f"{releases!r} names no file of releases; give one")
    page = Path(releases).with_suffix(".html")
    path = Path(output) if output is not None else page if true is None else page.with_name(f"PRIVATE-{page.name}")
    if path.suffix.lower() not in (*PICTURES, *PAGES):
        raise ConfigurationError(f"{path}: no map goes by {path.suffix!r}; use {', '.join((*PICTURES, *PAGES))}")
    check_output(path if true is None else private_name(path), overwrite)
    table = _chosen(read_releases(releases), users, start, end)
    tracks = () if true is None else _at_the_time(Data.of(true).read().trajectories, table)
    found = _map(table, model, policy, layer, tracks)
    _write(found, path, title or f"Releases of {Path(releases).name}", overwrite, true is not None)
    return path


def _write(found: ReleaseMap, output: Path, title: str, overwrite: bool, private: bool) -> None:
    if output.suffix.lower() in PAGES:
        write_text(output, found.to_html(title), overwrite, private)
        return
    figure, ax = new_figure()
    outside = found.draw(ax)
    beyond = f"\nOutside the picture: {outside:,} of them." if outside else ""
    ax.set_title(f"{title}\n{found.note}{beyond}", fontsize=10)
    with new_file(output, overwrite, private) as part:
        save(figure, part, dpi=150, bbox_inches="tight")


def _chosen(table: ReleaseTable, users: Sequence[str], start: str | None, end: str | None) -> ReleaseTable:
    known = set(table["user"].tolist())
    for user in users:
        if user not in known:
            raise ConfigurationError(f"user {user!r} has no release; there are {', '.join(sorted(known)[:8])}")
    kept = np.isin(table["user"].astype(str), users) if users else np.ones(len(table), dtype=np.bool_)
    if start is not None:
        kept &= table["time"] >= _moment(start, "--from")
    if end is not None:
        kept &= table["time"] < _moment(end, "--to")
    if not kept.any():
        raise ConfigurationError("no release is left to draw; choose other users or times")
    return table.select(kept)


def _moment(text: str, option: str) -> np.datetime64:
    try:
        return np.datetime64(parse_time(text), "us")
    except ValueError as problem:
        raise ConfigurationError(f"{option}: {problem}") from None


def _at_the_time(tracks: Sequence[Trajectory], table: ReleaseTable) -> tuple[Trajectory, ...]:
    """The tracks of the users that were released, from their first release to their last."""
    kept = []
    for track in tracks:
        times = table["time"][table["user"] == track.user]
        part = track.between(times.min(), times.max() + np.timedelta64(1, "s")) if len(times) else None
        kept += [part] if part is not None else []
    return tuple(kept)


def _map(
    table: ReleaseTable,
    model: Model | None,
    policy: str | None,
    layer: str | Path | None,
    tracks: tuple[Trajectory, ...],
) -> ReleaseMap:
    learned = model if isinstance(model, MarkovModel) or model is None else MarkovModel.load(model)
    graph = None
    if policy is not None:
        if learned is None:
            raise ConfigurationError("--policy needs the states that it is about; give --model too")
        graph = parse_policy(policy, learned.space, learned.structure)
    space = None if learned is None else learned.states
    return ReleaseMap(table, space, tracks, read_polygons(layer) if layer is not None else (), graph)
