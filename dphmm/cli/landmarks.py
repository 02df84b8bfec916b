"""The command ``dphmm landmarks``: joint protection of significant timestamps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.console import FILE, PATH, Once, print_result, show_progress, warn_of_seed
from dphmm.cli.keys import NUMBER, as_keys, declare_key
from dphmm.cli.leakage import check_picture, draw
from dphmm.cli.shared_options import (
    READING,
    build_data,
    build_options,
    build_settings,
    compose,
    input_options,
    own_model_option,
    refuse,
    seed_option,
)
from dphmm.errors import ConfigurationError
from dphmm.release.settings import Settings

if TYPE_CHECKING:
    from dphmm.jobs.landmarks import LandmarkResult, LandmarkSource

_rules = click.Choice(["stays", "repeated", "home", "work", "home-and-work"])
_landmark_options = compose(
    click.option("--at", multiple=True, metavar="TIME", help="A landmark, one of the timestamps. Can be repeated."),
    click.option("--landmarks", type=PATH, metavar="FILE", help="File of landmarks, one time per line."),
    click.option("--find", type=_rules, help="Find landmarks in the true trajectory."),
    click.option(
        "--utc-offset", default=0.0, metavar="HOURS", help="Local time minus UTC in hours, for home and work."
    ),
    declare_key("--radius", default=0.2, help="Radius of a stay or place in kilometres."),
    declare_key("--minutes", default=20.0, help="Minimum duration of a stay in minutes."),
)


@click.command(cls=Once)
@click.argument("source", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--output", required=True, type=FILE, help="Output file, .csv or .parquet.")
@click.option(
    "--epsilon", required=True, type=float, help="Epsilon of all landmarks and any one regular time together."
)
@click.option("--scheme", default="adaptive", show_default=True, type=click.Choice(["skip", "uniform", "adaptive"]))
@_landmark_options
@click.option("--sensitivity", type=float, help="SOURCE is a table of values with this sensitivity.")
@click.option("--unit", type=float, metavar="KM", help="SOURCE is a trajectory; ε is for this distance.")
@click.option("--centre", nargs=2, type=float, metavar="LAT LON", help="With --unit: public centre of the region.")
@click.option(
    "--bbox",
    nargs=4,
    type=float,
    metavar="S W N E",
    help="Trajectories: move values outside to the border of this box.",
)
@click.option("--step", type=float, metavar="SECONDS", help="With --unit: resample the trajectory to this clock first.")
@click.option("--model", type=PATH, help="With --policy: a model from 'dphmm learn'.")
@click.option("--policy", help="SOURCE is a trajectory; use this policy, such as utility:1km.")
@click.option(
    "--mechanism",
    help="Noise: lattice, laplace, planar-laplace or, with --policy, as release. [default: lattice]",
)
@declare_key(
    "--spacing",
    type=NUMBER,
    help="Step of lattice noise, km or value units. [default: 1 m; about sensitivity/1000]",
)
@as_keys(build_options(Settings, names=("outside", "allow_singleton")))
@own_model_option
@click.option("--backward", type=PATH, help="For leakage: matrix of Pr(time before | time).")
@click.option("--forward", type=PATH, help="For leakage: matrix of Pr(time after | time).")
@click.option("--initial", type=PATH, help="For leakage: initial distribution, with --forward.")
@declare_key("--rate", default=1.0, help="Adaptive: initial probability of publishing.")
@declare_key("--change", default=0.2, help="Adaptive: relative change of the probability.")
@declare_key("--min-rate", default=0.1, help="Adaptive: minimum probability.")
@click.option("--picture", type=FILE, help="Plot of budget and leakage: a new file.")
@click.option("--certificate", type=FILE, help="Certificate for scripts/dphmm-verify: a new file.")
@seed_option
@input_options
@click.option("--overwrite", is_flag=True, help="Replace existing outputs.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def landmarks_command(
    source: tuple[str, ...], output: Path, picture: Path | None, as_json: bool, **arguments: Any
) -> None:
    """Release SOURCE with a joint budget for all landmarks and any one regular timestamp.

    SOURCE is a table (a column of times and columns of numbers) with --sensitivity, or the trajectory of one user with
    --unit or --policy. The list of landmarks counts as public, and the output contains it. --find reads true locations.

    The landmarks and one regular timestamp together are epsilon-private if the data of different times are independent.
    For correlated data, the column 'loss' bounds the joint leakage about all landmarks and each time: under --backward
    and --forward, under --forward from --initial, or under the model of --policy. Without them it is the sum of
    budgets, a bound for independent times only.
    """
    from dphmm.tables import check_table_name

    certificate = arguments["certificate"]
    overwrite = arguments["overwrite"]
    check_table_name(output)
    check_picture(picture, overwrite)
    kinds = [name for name in ("sensitivity", "unit", "policy") if arguments[name] is not None]
    if len(kinds) != 1:
        raise ConfigurationError("exactly one of --sensitivity, --unit and --policy is required")
    warn_of_seed(arguments["seed"])
    done = _release(kinds[0], source, arguments)
    if picture is not None:
        from dphmm.plots.landmarks import draw_landmark_budget

        losses = done.losses if done.uses_transitions else None
        draw(picture, lambda ax: draw_landmark_budget(ax, done.series.budget, losses), overwrite)
    done.table.write(output, overwrite)
    if certificate is not None:
        done.certify(certificate, overwrite)
    written = {"output": output, "picture": picture, "certificate": certificate}
    files = {name: None if path is None else str(path) for name, path in written.items()}
    print_result("Released", {**done.to_dict(), **files}, as_json, done.dropped, "private_dropped")


def _release(kind: str, source: tuple[str, ...], arguments: dict[str, Any]) -> LandmarkResult:
    from dphmm.jobs.landmarks import (
        Scheme,
        release_landmark_series,
        release_track_with_engine,
        release_track_with_planar_noise,
    )

    scheme = Scheme(arguments["scheme"], arguments["rate"], arguments["change"], arguments["min_rate"])
    more = {"landmarks": _get_landmarks(arguments), "scheme": scheme, "rng": arguments["seed"]}
    epsilon = arguments["epsilon"]
    matrices = ("backward", "forward", "initial")
    noise = {name: arguments[name] for name in ("mechanism", "spacing") if arguments[name] is not None}
    if kind == "sensitivity":
        of_places = ("centre", "bbox", "step", "model", "outside", "allow_training_users", *READING)
        refuse(of_places, "cannot be combined with --sensitivity: it is for trajectories")
        if len(source) != 1 or arguments["find"] is not None:
            raise ConfigurationError(
                "--sensitivity needs one table and cannot be combined with --find: finding landmarks needs locations"
            )
        knowledge = {name: arguments[name] for name in matrices}
        return release_landmark_series(source[0], arguments["sensitivity"], epsilon, **more, **noise, **knowledge)
    data = build_data(source, arguments)
    if kind == "unit":
        refuse(matrices, "cannot be combined with --unit: its budgets are for locations one unit apart")
        if arguments["centre"] is None:
            raise ConfigurationError("--unit needs --centre LAT LON: a nearby point, identical for all users")
        refuse(("model", "outside", "allow_training_users"), "cannot be combined with --unit: it needs --policy")
        step = arguments["step"]
        more["bbox"] = arguments["bbox"]
        return release_track_with_planar_noise(
            data, arguments["unit"], arguments["centre"], epsilon, step_seconds=step, **more, **noise
        )
    refuse(matrices, "cannot be combined with --policy: the model specifies the transitions")
    if arguments["model"] is None:
        raise ConfigurationError("--policy needs --model: train one with 'dphmm learn'")
    refuse(("centre", "step"), "cannot be combined with --policy: the model specifies it")
    allows_training_users = bool(arguments["allow_training_users"])
    return release_track_with_engine(
        data,
        arguments["model"],
        build_settings(arguments),
        allow_training_users=allows_training_users,
        bbox=arguments["bbox"],
        progress=show_progress,
        **more,
    )


def _get_landmarks(arguments: Mapping[str, Any]) -> LandmarkSource:
    from dphmm.jobs.landmarks import LandmarkFinder

    if sum((bool(arguments["at"]), arguments["landmarks"] is not None, arguments["find"] is not None)) > 1:
        raise ConfigurationError("--at, --landmarks and --find cannot be combined: use one of them")
    if arguments["find"] is not None:
        if arguments["find"] in ("stays", "repeated"):
            refuse(("utc_offset",), "needs --find home, work or home-and-work")
        return LandmarkFinder(arguments["find"], arguments["radius"], arguments["minutes"], arguments["utc_offset"])
    refuse(("utc_offset", "radius", "minutes"), "needs --find")
    landmarks: LandmarkSource = arguments["at"] if arguments["landmarks"] is None else arguments["landmarks"]
    return landmarks
