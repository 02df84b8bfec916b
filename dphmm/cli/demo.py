"""The commands ``dphmm demo`` and ``dphmm data``."""

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

from dphmm.cli.console import FOLDER, Block, Once, OnceGroup, build_rows, echo, print_result, render
from dphmm.errors import OutputError

if TYPE_CHECKING:
    from dphmm.readers.synthetic_city import City


@click.group(cls=OnceGroup)
def data_command() -> None:
    """Fetch the public data sets that the papers use."""


@data_command.command()
@click.argument("name", metavar="geolife|gowalla")
@click.option("-o", "--output", "folder", default="data", show_default=True, type=FOLDER, help="Folder of the data.")
@click.option("--sha256", metavar="HEX", help="Expected SHA-256 digest of the file.")
@click.option("--url", metavar="URL", help="URL of a folder with the file under the publisher's name.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def fetch(name: str, folder: Path, sha256: str | None, url: str | None, as_json: bool) -> None:
    """Download a public data set, unless it exists already, and verify it.

    The publishers state no digest. The digest of the first download is written to SHA256SUMS in the same folder, and
    verified at every later use. --sha256 verifies the first download too.
    """
    from dphmm.readers import fetch_data

    fetched = fetch_data(name, folder, base_url=url, sha256=sha256)
    verified = "against the expected digest" if fetched.verified else "first download: digest recorded in SHA256SUMS"
    result = {"file": str(fetched.path), "sha256": fetched.sha256, "verified": verified, "terms": fetched.terms}
    print_result("Fetched", result, as_json)


NUM_USERS = 24
RELEASED_USERS = ("p01", "p02")
NUM_DAYS = 5
_PICTURE_DAY = ("2024-03-08", "2024-03-09")
STEP_SECONDS = 300
CELL_KM = 0.25


@click.command(cls=Once)
@click.option(
    "-o", "--output", "folder", default="dphmm-demo", show_default=True, type=FOLDER, help="Folder of the results."
)
@click.option("--policy", default="utility:1km", show_default=True, help="Policy, as in 'dphmm release'.")
@click.option("--epsilon", type=float, help="Privacy budget of each release. [default: a budget per day]")
@click.option("--seed", type=click.IntRange(0), help="Seed of the noise: the releases are then not private.")
@click.option("--overwrite", is_flag=True, help="Replace existing outputs.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def demo_command(
    folder: Path, policy: str, epsilon: float | None, seed: int | None, overwrite: bool, as_json: bool
) -> None:
    """Learn from some users of a synthetic city, release others, and plot the result.

    Nothing is downloaded, and all users are synthetic. The command writes their recordings, runs 'dphmm learn', 'dphmm
    release' and 'dphmm show', prints each command, and lists the files at the end.
    """
    started = time.perf_counter()
    _check_settings(policy, epsilon)
    files = _list_files(folder)
    _prepare_folder(folder, files, overwrite)
    box = _write_city(files, overwrite)
    overwrite_option = ["--overwrite"] if overwrite else []
    seed_options = [] if seed is None else ["--seed", str(seed)]
    with redirect_stdout(io.StringIO()) if as_json else nullcontext():
        for words in _iterate_commands(files, box, policy, epsilon):
            _run([*words, *(seed_options if words[0] == "release" else []), *overwrite_option])
    _finish(files, time.perf_counter() - started, as_json)


def _check_settings(policy: str, epsilon: float | None) -> None:
    """Check the settings on a region model of the city, before anything is written."""
    from dphmm.jobs.model.blank import build_blank_model
    from dphmm.jobs.model.region import region
    from dphmm.readers.synthetic_city import build_city
    from dphmm.release.engine import ReleaseSettings

    space = region(bbox=build_city().box, cell_km=CELL_KM)
    settings = ReleaseSettings.for_a_day(policy=policy) if epsilon is None else ReleaseSettings(policy, epsilon)
    settings.engine(build_blank_model(space, STEP_SECONDS).model)


def _list_files(folder: Path) -> dict[str, Path]:
    """Return the content of each file → its path, in formats with installed libraries."""
    releases = "releases.gpkg" if _has_libraries("geopandas", "pyogrio") else "releases.geojson"
    files = {
        "true locations of all users (synthetic)": folder / "PRIVATE-users.csv",
        "districts": folder / "districts.geojson",
        "model": folder / "model.npz",
        "training users (private)": folder / "model.PRIVATE-users.json",
        "releases": folder / releases,
        "certificate": folder / "proof.jsonl",
        "diagnostics (private)": folder / "PRIVATE-diagnostics.csv",
        "map with true and released locations": folder / "PRIVATE-map.html",
    }
    if _has_libraries("matplotlib"):
        files["picture with true and released locations"] = folder / "PRIVATE-map.png"
    return files


def _has_libraries(*libraries: str) -> bool:
    return all(find_spec(library) is not None for library in libraries)


def _prepare_folder(folder: Path, files: dict[str, Path], overwrite: bool) -> None:
    from dphmm.tables import check_output

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise OutputError(f"{folder} cannot be created ({problem.strerror}): use another folder with -o") from None
    for file in files.values():
        check_output(file, overwrite)


def _write_city(files: dict[str, Path], overwrite: bool) -> tuple[float, float, float, float]:
    """Write the recordings and the districts, and return the bounding box of the city."""
    from dphmm.readers.synthetic_city import build_city
    from dphmm.tables import write_text

    city = build_city()
    write_text(files["true locations of all users (synthetic)"], _format_recordings(city), overwrite, private=True)
    write_text(files["districts"], json.dumps(city.build_districts_geojson(), indent=1) + "\n", overwrite)
    return city.box


def _format_recordings(city: City) -> str:
    from dphmm.readers.synthetic_city import sample_synthetic_trajectories
    from dphmm.tables import iso_time

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["user_id", "tracked_at", "latitude", "longitude"])
    for trajectory in sample_synthetic_trajectories(NUM_USERS, NUM_DAYS, STEP_SECONDS / 60, city=city):
        times = [iso_time(time) for time in trajectory.times]
        rows = zip(times, trajectory.latitude.tolist(), trajectory.longitude.tolist(), strict=True)
        writer.writerows((trajectory.user, *row) for row in rows)
    return text.getvalue()


def _iterate_commands(
    files: dict[str, Path], box: tuple[float, ...], policy: str, epsilon: float | None
) -> Iterator[list[str]]:
    """Yield the command lines, without their common options."""
    names = {content.partition(" ")[0]: str(file) for content, file in files.items()}
    true_file = names["true"]
    model = names["model"]
    released = ",".join(RELEASED_USERS)
    region = [f"{side:.4f}" for side in box]
    yield [
        *("learn", true_file, "--exclude-users", released, "--bbox", *region, "--cell", str(CELL_KM)),
        *("--step", str(STEP_SECONDS), "-o", model),
    ]
    yield [
        *("release", true_file, "--users", released, "--model", model, "--policy", policy),
        *(() if epsilon is None else ("--epsilon", str(epsilon))),
        *("-o", names["releases"], "--private-diagnostics", names["diagnostics"]),
        *("--certificate", names["certificate"]),
    ]
    shown = ["--true", true_file, "--model", model, "--areas", names["districts"]]
    yield ["show", names["releases"], *shown, "-o", names["map"]]
    if "picture" in names:
        day = ["--users", RELEASED_USERS[0], "--start", _PICTURE_DAY[0], "--end", _PICTURE_DAY[1]]
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
    result: dict[str, Any] = {content: str(file) for content, file in files.items()}
    if as_json:
        keys = {content.partition(" ")[0]: file for content, file in result.items()}
        print_result("", {"files": keys, "errors_m": _read_median_errors(files), "seconds": round(seconds, 2)}, as_json)
        return
    errors = {f"{name} (m)": error for name, error in _read_median_errors(files).items()}
    render(errors, Block("True errors, known because the users are synthetic", build_rows(*errors)))
    echo()
    render(result, Block(f"Files, written in {seconds:.1f} s", build_rows(*result)))
    if "picture with true and released locations" not in files:
        echo("\nFor a picture and for GeoPackage: pip install 'dphmm[files,plots]'")


def _read_median_errors(files: dict[str, Path]) -> dict[str, float]:
    """Return the median errors in the file of diagnostics."""
    from math import isnan
    from statistics import median

    with files["diagnostics (private)"].open(encoding="utf-8", newline="") as stream:
        diagnostics = list(csv.DictReader(stream))
    release_errors = [float(row["private_error_m"]) for row in diagnostics]
    return {
        "median error of sampled locations": median(error for error in release_errors if not isnan(error)),
        "median error of estimates": median(float(row["private_estimate_error_m"]) for row in diagnostics),
    }
