"""``dphmm demo``, the whole way in a synthetic city, and ``dphmm data``, the public data sets."""

from __future__ import annotations

import csv
import io
import json
import shlex
import time
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.console import FOLDER, Once, OnceGroup, echo, say
from dphmm.errors import OutputError

if TYPE_CHECKING:
    from dphmm.readers.synthetic_city import City


@click.group(cls=OnceGroup)
def data_command() -> None:
    """Fetch the public data sets that the papers use."""


@data_command.command()
@click.argument("name", metavar="geolife|gowalla")
@click.option("--to", "folder", default="data", show_default=True, type=FOLDER, help="The folder.")
@click.option("--sha256", metavar="HEX", help="The digest that the file must have.")
@click.option("--base-url", metavar="URL", help="A mirror to take it from.")
@click.option("--json", "as_json", is_flag=True, help="Say what was fetched as JSON.")
def fetch(name: str, folder: Path, sha256: str | None, base_url: str | None, as_json: bool) -> None:
    """Download a public data set unless it is there already, and check it.

    The publishers state no digest. The first download's is written to SHA256SUMS beside it, and every later use is
    checked against that; --sha256 checks the first download too.
    """
    from dphmm.readers import fetch_data

    fetched = fetch_data(name, folder, base_url=base_url, sha256=sha256)
    checked = "against a known digest" if fetched.verified else "first download: digest recorded in SHA256SUMS"
    facts = {"file": str(fetched.path), "sha256": fetched.sha256, "checked": checked, "terms": fetched.terms}
    say("Fetched", facts, as_json)


PEOPLE, RELEASED, DAYS = 24, ("p01", "p02"), 5
DAY = ("2024-03-08", "2024-03-09")
STEP_SECONDS, CELL_KM = 300, 0.25


@click.command(cls=Once)
@click.option("-o", "--output", "folder", default="dphmm-demo", show_default=True, type=FOLDER)
@click.option("--policy", default="utility:1km", show_default=True, help="As in 'dphmm release'.")
@click.option("--epsilon", type=float, help="The privacy budget of each release. [default: one for the day]")
@click.option("--seed", type=click.IntRange(0), help="Repeatable noise: the releases are then not private.")
@click.option("--overwrite", is_flag=True, help="Replace outputs that exist.")
@click.option("--json", "as_json", is_flag=True, help="Say what was made as JSON.")
def demo_command(
    folder: Path, policy: str, epsilon: float | None, seed: int | None, overwrite: bool, as_json: bool
) -> None:
    """Learn on some people of a synthetic city, release others, and draw the result.

    Nothing is downloaded, and no real person's data are in it. It writes what the people's phones recorded, runs
    'dphmm learn', 'dphmm release' and 'dphmm show' on it, shows each command as it runs it, and ends by naming the
    files.
    """
    started = time.perf_counter()
    _check_settings(policy, epsilon)
    files = _files(folder)
    _make_room(folder, files, overwrite)
    box = _write_city(files, overwrite)
    again = ["--overwrite"] if overwrite else []
    noise = [] if seed is None else ["--seed", str(seed)]
    with redirect_stdout(io.StringIO()) if as_json else nullcontext():
        for words in _commands(files, box, policy, epsilon):
            _run([*words, *(noise if words[0] == "release" else []), *again])
    _finish(files, time.perf_counter() - started, as_json)


def _check_settings(policy: str, epsilon: float | None) -> None:
    """Refuse what could not be released, on a model of the city's cells alone, before anything is written."""
    from dphmm.jobs.models import blank_model, region
    from dphmm.readers.synthetic_city import build_city
    from dphmm.release.engine import ReleaseSettings

    space = region(bbox=build_city().box, cell=CELL_KM)
    chosen = ReleaseSettings.for_a_day(policy=policy) if epsilon is None else ReleaseSettings(policy, epsilon)
    chosen.engine(blank_model(space, STEP_SECONDS).model)


def _files(folder: Path) -> dict[str, Path]:
    """What → the file; without the libraries of an extra, the nearest thing that needs none."""
    releases = "releases.gpkg" if _installed("geopandas", "pyogrio") else "releases.geojson"
    files = {
        "true places of everyone (invented)": folder / "PRIVATE-people.csv",
        "districts": folder / "districts.geojson",
        "model": folder / "model.npz",
        "people the model has seen (private)": folder / "model.PRIVATE-people.json",
        "releases": folder / releases,
        "certificate": folder / "proof.jsonl",
        "summary": folder / "summary.csv",
        "diagnostics (private)": folder / "PRIVATE-diagnostics.csv",
        "map with true and released places": folder / "PRIVATE-map.html",
    }
    if _installed("matplotlib"):
        files["picture with true and released places"] = folder / "PRIVATE-map.png"
    return files


def _installed(*libraries: str) -> bool:
    return all(find_spec(library) is not None for library in libraries)


def _make_room(folder: Path, files: dict[str, Path], overwrite: bool) -> None:
    from dphmm.tables import check_output

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise OutputError(f"{folder} cannot be made ({problem.strerror}); choose another folder with -o") from None
    for file in files.values():
        check_output(file, overwrite)


def _write_city(files: dict[str, Path], overwrite: bool) -> tuple[float, float, float, float]:
    """Write what the phones recorded, and the map of the districts; the box of the city."""
    from dphmm.readers.synthetic_city import build_city
    from dphmm.tables import write_text

    city = build_city()
    write_text(files["true places of everyone (invented)"], _recorded(city), overwrite, private=True)
    write_text(files["districts"], json.dumps(city.districts_geojson(), indent=1) + "\n", overwrite)
    return city.box


def _recorded(city: City) -> str:
    from dphmm.readers.synthetic_city import synthetic_trajectories
    from dphmm.tables import iso_time

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["user_id", "tracked_at", "latitude", "longitude"])
    for person in synthetic_trajectories(PEOPLE, DAYS, STEP_SECONDS / 60, city=city):
        times = [iso_time(moment) for moment in person.times]
        rows = zip(times, person.latitude.tolist(), person.longitude.tolist(), strict=True)
        writer.writerows((person.user, *row) for row in rows)
    return text.getvalue()


def _commands(
    files: dict[str, Path], box: tuple[float, ...], policy: str, epsilon: float | None
) -> Iterator[list[str]]:
    """The command lines, without what they have in common."""
    names = {what.partition(" ")[0]: str(file) for what, file in files.items()}
    people, model, released = names["true"], names["model"], ",".join(RELEASED)
    region = [f"{side:.4f}" for side in box]
    yield [
        *("learn", people, "--exclude-users", released, "--bbox", *region, "--cell", str(CELL_KM)),
        *("--step", str(STEP_SECONDS), "-o", model),
    ]
    yield [
        *("release", people, "--users", released, "--model", model, "--policy", policy),
        *(() if epsilon is None else ("--epsilon", str(epsilon))),
        *("-o", names["releases"], "--summary", names["summary"], "--private-diagnostics", names["diagnostics"]),
        *("--certificate", names["certificate"]),
    ]
    shown = ["--true", people, "--model", model, "--layer", names["districts"]]
    yield ["show", names["releases"], *shown, "-o", names["map"]]
    if "picture" in names:
        day = ["--users", RELEASED[0], "--from", DAY[0], "--to", DAY[1]]
        yield ["show", names["releases"], *shown, *day, "--policy", policy, "-o", names["picture"]]


def _run(words: list[str]) -> None:
    from dphmm.cli import main

    echo(f"$ dphmm {shlex.join(words)}", bold=True)
    subcommand = main.get_command(click.Context(main), words[0])
    if subcommand is None:
        raise LookupError(words[0])
    subcommand.main(words[1:], prog_name=f"dphmm {words[0]}", standalone_mode=False)
    echo()


def _finish(files: dict[str, Path], seconds: float, as_json: bool) -> None:
    facts: dict[str, Any] = {what: str(file) for what, file in files.items()}
    if as_json:
        keys = {what.partition(" ")[0]: file for what, file in facts.items()}
        say("", {"files": keys, "errors_m": _errors(files), "seconds": round(seconds, 2)}, as_json)
        return
    say("Error in metres, known here because the people are invented", _errors(files), as_json)
    echo()
    say(f"Written in {seconds:.1f} s", facts, as_json)
    if "picture with true and released places" not in files:
        echo("\nFor a picture as well, and for GeoPackage: pip install 'dphmm[files,plots]'")


def _errors(files: dict[str, Path]) -> dict[str, float]:
    """The median errors, out of the file of diagnostics."""
    from math import isnan
    from statistics import median

    with files["diagnostics (private)"].open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return {
        "of the released places, median": median(
            off for row in rows if not isnan(off := float(row["private_error_m"]))
        ),
        "of the estimates, median": median(float(row["private_estimate_error_m"]) for row in rows),
    }
