"""Releases in a file as a picture, or as a map to open in a browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

import numpy as np

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.people import Data, DataLike
from dphmm.jobs.released import read_released
from dphmm.markov.model import MarkovModel
from dphmm.plots.maps import new_figure, save
from dphmm.plots.releases import ReleaseMap
from dphmm.plots.webmap import tile_host
from dphmm.policy.expression import parse_policy, policy_in_words
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.layer import read_polygons
from dphmm.release.postgres import is_server
from dphmm.release.settings import GIVEN, ReleaseSettings
from dphmm.space.trajectory import Trajectory
from dphmm.tables import check_output, new_file, private_name, write_text
from dphmm.tables.values import parse_time
from dphmm.writers.table import ReleaseTable

PICTURES = (".png", ".svg", ".pdf")
PAGES = (".html", ".htm")
_WIDE = 9.0
"""Inches."""


@checked
def show(
    releases: str | Path,
    output: str | Path | None = None,
    *,
    model: Model | None = None,
    policy: str | None = None,
    layer: str | Path | None = None,
    basemap: str | Path | None = None,
    tiles: str | None = None,
    true: DataLike | None = None,
    users: Sequence[str] = (),
    start: str | None = None,
    end: str | None = None,
    title: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Draw the releases in a file, a batch's folder or a store of sessions, as ``dphmm show`` does.

    Parameters
    ----------
    releases
        A file that `dphmm.jobs.release` wrote, the folder of a `dphmm.jobs.batch`, or a SQLite file of sessions or the
        address of a PostgreSQL server that keeps them, which need their model.
    output
        A .png, .svg or .pdf picture, or an .html page that needs no network; left out, a page beside the releases. With
        `true` its name must say that it is private, and only its owner may read it.
    model
        The model, to draw its states.
    policy
        With `model`: a policy as text, to draw its edges and its hull. Left out, the one of a batch or of sessions that
        agree on it.
    layer
        Polygons to draw below: GeoJSON, KML or GeoPackage.
    basemap
        A map to draw below everything, see `dphmm.plots.read_basemap`; left out, the coarse one of the world that the
        package holds.
    tiles
        For a page: the address of a server of map tiles in place of a basemap, as ``https://host/{z}/{x}/{y}.png``.
        Whoever opens the page tells that server which part of the world they look at.
    true
        True trajectories to draw, of the users that were released: the map is private then.
    users, start, end
        These users alone; no release before, and none at or after these times (ISO 8601, UTC).
    title
        The title of the map; left out, the policy, the budget and the errors in metres.
    overwrite
        Whether an output that exists may be replaced.

    Returns
    -------
    Path
        The file, which appears whole or not at all.

    Raises
    ------
    ConfigurationError
        For another ending, a policy or sessions without a model, tiles in a picture or beside a basemap, a name that
        hides that true places are shown, or when no release is left to draw.
    OutputError
        When the file exists and may not be overwritten, or cannot be written; before anything is read.
    MissingDependencyError
        For a picture without matplotlib.
    DataFileError
        When a file cannot be read as what it should be.
    """
    if not Path(releases).name:
        raise ConfigurationError(f"{releases!r} names no file of releases; give one")
    if is_server(releases) and output is None:
        raise ConfigurationError("a server has no folder to write to; name an output")
    page = Path(releases).with_suffix(".html")
    path = Path(output) if output is not None else page if true is None else page.with_name(f"PRIVATE-{page.name}")
    if path.suffix.lower() not in (*PICTURES, *PAGES):
        raise ConfigurationError(f"{path}: no map goes by {path.suffix!r}; use {', '.join((*PICTURES, *PAGES))}")
    if tiles is not None:
        tile_host(tiles)
        if basemap is not None or path.suffix.lower() in PICTURES:
            raise ConfigurationError("--tiles is for a page without --basemap; leave one of them out")
    check_output(path if true is None else private_name(path), overwrite)
    learned = model if isinstance(model, MarkovModel) or model is None else load_model(model)
    released = read_released(releases, learned, users)
    table = _chosen(released.table, users, start, end)
    tracks = () if true is None else _at_the_time(Data.of(true).read().trajectories, table)
    if policy is not None and learned is None:
        raise ConfigurationError("--policy needs the states that it is about; give --model too")
    drawn = _policy(table, released.settings, policy, learned)
    space = None if learned is None else learned.states
    areas = read_polygons(layer) if layer is not None else ()
    found = ReleaseMap(table, space, tracks, areas, drawn.graph, drawn.text, basemap, " ".join(drawn.remarks))
    _write(found, path, title or found.title, overwrite, true is not None, tiles)
    return path


class _Drawn(NamedTuple):
    """A policy to draw, where it can be; as a title has it; and what is said of it and of the model."""

    graph: PolicyGraph | None
    text: str
    remarks: list[str]


def _policy(
    table: ReleaseTable, settings: ReleaseSettings | None, given: str | None, model: MarkovModel | None
) -> _Drawn:
    """The policy given, or the one that a batch or sessions name; and whether the rows say that it is theirs."""
    remarks = []
    if model is not None and set(table["model"].tolist()) != {model.content_hash[:16]}:
        remarks.append("The states drawn are those of another model than the releases'.")
    text = given or ("" if settings is None else settings.policy)
    if not text or text.startswith(GIVEN):
        return _Drawn(None, "", remarks)
    try:
        theirs = _is_theirs(table, settings, text)
        graph = None if model is None else parse_policy(text, model.space, model.structure)
    except DataFileError:
        if given is not None:
            raise
        return _Drawn(None, text, [*remarks, "A file that the policy names is gone: it is not drawn."])
    if theirs:
        return _Drawn(graph, text, [f"A release hides between {policy_in_words(text)}.", *remarks])
    if given is None:
        return _Drawn(None, text, [*remarks, "A file that the policy names has changed since: it is not drawn."])
    said = "The releases do not say that the policy drawn is theirs: it was given with the map."
    return _Drawn(graph, f"{text} (as given)", [*remarks, said])


def _is_theirs(table: ReleaseTable, settings: ReleaseSettings | None, text: str) -> bool:
    """Whether the hashes in the rows are those of settings with a policy, the others as named or left at default."""
    stated = set(table["settings"].tolist())
    drawn = table.select(~table["withheld"])
    several = set(zip(drawn["epsilon"].tolist(), drawn["mechanism"].tolist(), strict=True))
    tried = [] if settings is None else [replace(settings, policy=text)]
    if len(several) <= len(stated):  # budgets that differ under one hash are a schedule's
        tried += [ReleaseSettings(text, epsilon, mechanism) for epsilon, mechanism in several]
    return stated <= {one.content_hash[:16] for one in tried}


def _write(found: ReleaseMap, output: Path, title: str, overwrite: bool, private: bool, tiles: str | None) -> None:
    if output.suffix.lower() in PAGES:
        write_text(output, found.to_html(title, tiles), overwrite, private)
        return
    figure, ax = new_figure(_WIDE, _WIDE)
    outside = found.draw(ax)
    beyond = f" {outside:,} releases lie outside the picture." if outside else ""
    (west, east), (south, north) = ax.get_xlim(), ax.get_ylim()
    figure.set_size_inches(_WIDE, min(max(_WIDE * 0.74 * (north - south) / (east - west), 3.0), 12.0) + 2.0)
    note = wrap(found.note + beyond, 105)
    ax.text(0.5, 1.01, "\n".join(note), transform=ax.transAxes, ha="center", va="bottom", fontsize=8, color="#555555")
    ax.set_title("\n".join(wrap(title, 80)), fontsize=11, pad=8 + 11 * len(note))
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
