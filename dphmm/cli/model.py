"""The commands ``dphmm learn``, ``dphmm model`` and ``dphmm synthesize``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.console import (
    FILE,
    PATH,
    PICTURES,
    Once,
    OnceGroup,
    echo,
    escape_cell,
    print_json,
    print_result,
    print_table,
    show_progress,
    warn,
)
from dphmm.cli.keys import NUMBER, as_keys, declare_key, get_parameter_name, name_parameters_in_errors
from dphmm.cli.shared_options import (
    COUNT,
    POSITIVE,
    READING,
    REGION,
    build_data,
    build_engine,
    build_options,
    build_space,
    engine_options,
    input_options,
    map_options,
    parse_seconds,
    print_town,
    refuse,
    region_options,
    true_options,
)
from dphmm.errors import ConfigurationError
from dphmm.jobs.input_data import Data
from dphmm.model.blank_model import KINDS

if TYPE_CHECKING:
    from dphmm.jobs.model.synthesis import Comparison
    from dphmm.model.model import MarkovModel


@click.command(cls=Once)
@click.argument("data", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--output", required=True, type=FILE, help="Output file of the model (.npz).")
@region_options
@map_options
@click.option("--step", type=POSITIVE, metavar="SECONDS", help="Timestep. [default: 60, or selected with the region]")
@click.option(
    "--gap",
    type=POSITIVE,
    metavar="SECONDS",
    help="Fill gaps up to this length with the last state. [default: one step]",
)
@click.option(
    "--time-classes",
    type=click.Choice(["hour", "weekday-hour"]),
    help="Separate matrices for hours, or hours of weekdays and weekends.",
)
@click.option("--zone", metavar="ZONE", help="Time zone of --time-classes. [default: that of the preset]")
@click.option(
    "--max-speed", type=POSITIVE, metavar="KMH", help="Speed limit: faster moves are impossible. [default: 150]"
)
@click.option(
    "--smoothing",
    type=click.FloatRange(0),
    metavar="COUNT",
    help="Pseudo-count of observed moves, their reverses and staying, no others.",
)
@click.option(
    "--user-epsilon",
    type=NUMBER,
    metavar="EPSILON",
    help="Budget of user-level differential privacy of the model.",
)
@declare_key(
    "--moves-per-user", type=COUNT, help="Maximum moves counted of each user, with --user-epsilon. [default: 20]"
)
@declare_key(
    "--outside-states/--no-outside-states",
    default=None,
    help="Separate states for users outside. [default: if there are any]",
)
@declare_key(
    "--calibrate-radii/--no-calibrate-radii",
    default=None,
    help="Calibrate radii by cross-validation. [default: with 20 users or more]",
)
@declare_key("--min-users", type=COUNT, help="Omit moves of fewer users. This is not a privacy guarantee.")
@engine_options
@input_options
@click.option("--overwrite", is_flag=True, help="Replace existing output files.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def learn_command(data: tuple[str, ...], output: Path, as_json: bool, overwrite: bool, **options: Any) -> None:
    """Learn a Markov model of movement from DATA and write it to a .npz file.

    DATA are files, folders or archives: GeoLife, check-ins, tables, GPX, OwnTracks. The model is public: learn it from
    other users than those to protect. The training users are written to a private list next to the model, with which
    'dphmm release' and 'dphmm batch' refuse them.

    On a Dask cluster, true locations are sent to the workers over the network.
    """
    from dphmm.jobs.model.learn import learn
    from dphmm.jobs.model.training_users import get_private_list_path

    has_region = any(options[name] is not None for name in REGION)
    space = build_space(options) if has_region else None
    step = _PRESET_STEPS.get(options["preset"]) if options["step"] is None else options["step"]
    zone = options["zone"]
    if options["time_classes"] is not None and zone is None:
        zone = _PRESET_ZONES.get(options["preset"])
    names = (
        "smoothing",
        "time_classes",
        "user_epsilon",
        "moves_per_user",
        "min_users",
        "outside_states",
        "calibrate_radii",
        "only_on",
    )
    region_map = None if options["region_map"] == NO_MAP else options["region_map"]
    settings = {
        **{name: options[name] for name in names},
        "zone": zone,
        "max_speed_kmh": options["max_speed"],
        "region_map": region_map,
    }
    learned = learn(
        build_data(data, options),
        space,
        step,
        options["gap"],
        output=output,
        overwrite=overwrite,
        engine=build_engine(options),
        watch=show_progress,
        **settings,
    )
    warn(learned.warnings)
    if learned.choice is not None:
        echo(_REGION_SELECTED.format(learned.choice.options), err=True)
        if learned.private is None:
            echo(_REGION_FROM_DATA, err=True)
    if learned.private is not None:
        echo(_EXACT_COUNTS, err=True)
    files = {"model": str(output), "private_user_list": str(get_private_list_path(output))}
    result = learned.to_dict()
    if learned.private is not None:
        result["spent_on"] = ", ".join(f"{name} {part}" for name, part in result["spent_on"].items())
    elif learned.shrunk is None:
        result["smoothing"] = options["smoothing"]
    else:
        result["max_speed_kmh"] = learned.shrunk.kernel.reach.max_speed_kmh
    if not as_json:
        result = {key: value for key, value in result.items() if value or key not in _OMITTED_IF_ZERO}
    print_result("Learned", {**files, **result}, as_json, learned.dropped, "private_dropped", _LABELS)


# The value of --map for a model without a map.
NO_MAP = "none"

_OMITTED_IF_ZERO = (
    "num_skipped_fixes",
    "num_merged_fixes",
    "num_locations_outside",
    "num_moves_too_fast",
    "num_moves_too_rare",
)

_LABELS = {
    "transitions": "possible moves",
    "num_possible_moves": "possible moves",
    "step_seconds": "timestep (s)",
    "private_user_list": "list of training users",
    "num_skipped_fixes": "malformed records",
    "num_merged_fixes": "fixes replaced by one of the same time",
    "num_locations": "timesteps with a location",
    "num_locations_outside": "of these, outside the region",
    "num_states_visited": "visited states",
    "num_moves": "observed moves",
    "kernel_weight_moves": "weight of the region's kernel (moves per state)",
    "weight": "weight of the region's kernel (moves per state)",
    "num_moves_too_fast": "omitted moves above the speed limit",
    "num_moves_too_rare": "omitted moves of too few users",
    "max_speed_kmh": "speed limit (km/h)",
    "mean_stay_probability": "mean probability of staying for a timestep",
    "min_stay_probability": "min probability of staying for a timestep",
    "max_stay_probability": "max probability of staying for a timestep",
    "calibrated_radius_factors": "90 % radius / expected error",
    "calibrated_error_factors": "mean error / expected error",
    "spent_on": "epsilon of each noisy count",
    "moves_per_user": "max moves per user",
    "noisy_num_users": "users (noisy)",
    "block_side_cells": "side of a block of cells with one count",
}
_REGION_SELECTED = "No region was specified. Selected: {}"
_REGION_FROM_DATA = (
    "Warning: the region was selected from the data and is stored in the model's file: it reveals where these users "
    "are. Specify a public region instead, or use --user-epsilon, of which a tenth is then spent on the selection."
)
_EXACT_COUNTS = (
    "Warning: the model's file has the guarantee. The private numbers of this summary do not: they are exact. Do not "
    "publish them. A specified region, step and speed limit are public only if they were selected without looking at "
    "the data."
)


# Timesteps of presets with sparse check-ins; others use one minute.
_PRESET_STEPS = {"gowalla": 3600.0}

_PRESET_ZONES = {"geolife": "Asia/Shanghai", "gowalla": "America/Los_Angeles", "cabspotting": "America/Los_Angeles"}


@click.group(cls=OnceGroup)
def model_command() -> None:
    """Show a model and its goodness of fit, or build one without data."""


@model_command.command()
@click.argument("model", type=PATH)
@click.option("-o", "--output", type=FILE, help="Output file of a map (.png, .svg or .pdf).")
@true_options
@build_options(
    Data,
    names=("users", "exclude_users"),
    users="Only these users of --true.",
    exclude_users="All users of --true except these.",
)
@as_keys(build_options(Data, names=("skip_bad",)))
@click.option("--overwrite", is_flag=True, help="Replace existing output files.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def show(model: Path, output: Path | None, overwrite: bool, as_json: bool, **options: Any) -> None:
    """Show the size, the guarantee and a map of MODEL, and its goodness of fit to other users.

    --true are users that the model was not trained on. Calibration is measured by the coverage of prediction regions:
    regions with a probability of 90 % should contain the user in 90 % of the cases.
    """
    from dphmm.jobs.model.loading import load_model

    if output is not None and output.suffix.lower() not in PICTURES:
        raise ConfigurationError(f"the extension of a map must be .png, .svg or .pdf, got {output}")
    loaded = load_model(model)
    result = _describe_model(loaded)
    if options["true"]:
        from dphmm.jobs.model.goodness_of_fit import evaluate_fit

        fit = evaluate_fit(model, build_data(options["true"], options))
        result |= fit.to_dict()
        echo(
            "Warning: the goodness of fit is computed from the data in --true without noise. Do not publish.", err=True
        )
        if fit.num_training_users:
            echo(
                f"Warning: the model was trained on {fit.num_training_users} of these users, so the fit is too good.",
                err=True,
            )
    if output is not None:
        from dphmm.plots.canvas import save_picture
        from dphmm.plots.model import draw_model_figure

        save_picture(draw_model_figure(loaded), output, overwrite, private=False)
        result["map"] = escape_cell(str(output))
    print_result(f"Model {model.name}", result, as_json, labels=_LABELS)


def _describe_model(model: MarkovModel) -> dict[str, Any]:
    result: dict[str, Any] = {"states": model.size, "num_possible_moves": model.num_possible_moves}
    result["step_seconds"] = model.step_seconds
    if model.time_classes is None:  # with time classes there is no single matrix
        stays = model.inside_transition.diagonal()
        result["mean_stay_probability"] = float(model.initial @ stays)
        result["min_stay_probability"] = float(stays.min())
        result["max_stay_probability"] = float(stays.max())
    result["hash"] = model.content_hash
    for name, value in (model.provenance or {}).items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        if isinstance(text, str | int | float):
            result.setdefault(name, text)  # metadata in the file must not override properties of the model
    return result


@model_command.command(cls=Once)
@click.option("-o", "--output", required=True, type=FILE, help="Output file of the model (.npz).")
@region_options
@map_options
@click.option("--step", type=float, metavar="SECONDS", help="Timestep. [default: 300 for everyday, otherwise 60]")
@click.option(
    "--kind",
    default="everyday",
    show_default=True,
    type=click.Choice(tuple(KINDS)),
    help="Type of movement: all day, or recordings of trips.",
)
@click.option(
    "--max-speed", type=POSITIVE, metavar="KMH", help="Speed limit: faster moves are impossible. [default: by --kind]"
)
@click.option("--overwrite", is_flag=True, help="Replace existing output files.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def blank(output: Path, step: float | None, kind: str, max_speed: float | None, **options: Any) -> None:
    """Build a model of a region without data of users.

    The model can be used by every command. It contains a speed limit, published distributions of movement, and the
    attraction of cells on a public map: by default land attracts and water does not. --map FILE adds kilometres of
    street. The map does not change which moves are possible. Estimates are usually less accurate than with a model
    learned from users of the region.
    """
    from dphmm.jobs.model.blank import build_blank_model
    from dphmm.jobs.region_map import COAST

    boxes = {name: options[name] for name in ("bbox", "town", "extent")}
    is_box_only = all(options[name] is None for name in REGION if name not in boxes) and any(
        value is not None for value in boxes.values()
    )
    space = None if is_box_only else build_space(options)
    box = boxes if is_box_only else {}
    region_map = {None: COAST, NO_MAP: None}.get(options["region_map"], options["region_map"])
    result = build_blank_model(
        space,
        step,
        kind,
        max_speed,
        output,
        options["overwrite"],
        region_map=region_map,
        only_on=options["only_on"],
        **box,
    )
    warn(result.warnings)
    if is_box_only:
        print_town(options["town"])
    print_result("Built without data", {"model": str(output), **result.to_dict()}, options["as_json"], labels=_LABELS)


@click.command(cls=Once, name="synthesize")
@click.option("--model", required=True, type=PATH, help="Model file written by 'dphmm learn'.")
@click.option("-o", "--output", type=FILE, help="Output file of synthetic users (.csv, .parquet or .gpkg).")
@click.option("--num-users", type=COUNT, default=1000, show_default=True, help="Number of users.")
@click.option("--horizon", default="7d", show_default=True, metavar="TIME", help="Simulated time: 8h, 7d.")
@click.option("--start", default="2024-01-01", show_default=True, metavar="DAY", help="First day.")
@click.option("--compare", multiple=True, metavar="DATA", type=click.Path(), help="Real users to compare with.")
@click.option(
    "--gap",
    type=POSITIVE,
    metavar="SECONDS",
    help="With --compare: fill gaps up to this length. [default: one step]",
)
@click.option("--picture", type=FILE, help="With --compare: picture file, with PRIVATE in its name.")
@click.option("--seed", type=click.IntRange(0), help="Seed for reproducible users.")
@input_options
@click.option("--overwrite", is_flag=True, help="Replace existing output files.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def synthesize_command(model: Path, output: Path | None, compare: tuple[str, ...], **options: Any) -> None:
    """Sample synthetic users from a model, and write their locations at every timestep.

    The file is computed from the model only, and has the same privacy guarantee. --compare compares synthetic users
    with real ones, by measures from the literature. Training users are excluded if their list is next to the model.
    """
    from dphmm.jobs.model.loading import load_model
    from dphmm.jobs.model.synthesis import compare_users, find_slots, synthesize
    from dphmm.writers.formats import check_format
    from dphmm.writers.synthetic_paths import PATH_FORMATS

    picture = options["picture"]
    seed = options["seed"]
    if output is None and not compare:
        raise ConfigurationError("an output is required: use -o FILE or --compare DATA")
    if not compare:
        refuse(("gap", "picture", *READING), "requires --compare")
    if picture is not None and (picture.suffix.lower() not in PICTURES or "PRIVATE" not in picture.name):
        raise ConfigurationError(f"--picture must be a .png, .svg or .pdf file with PRIVATE in its name, got {picture}")
    days = parse_seconds(options["horizon"], get_parameter_name("horizon")) / 86_400
    if output is None:
        refuse(("num_users", "horizon", "start"), "requires -o")
    else:
        check_format(output, PATH_FORMATS)
    if output is not None:  # before a comparison, which may take long
        with name_parameters_in_errors(days="horizon"):
            find_slots(load_model(model), days, options["start"])
    comparison = None
    if compare:  # before the synthesis, so that an error leaves no file
        comparison = compare_users(model, build_data(compare, options), options["gap"], rng=seed, watch=show_progress)
        if comparison.trained_on_users != "no":
            warn([f"{_TRAINED} {comparison.trained_on_users}"])
    result: dict[str, Any] = {}
    if output is not None:
        settings: dict[str, Any] = {name: options[name] for name in ("num_users", "start", "overwrite")}
        synthesis = synthesize(model, output, days=days, rng=seed, watch=show_progress, **settings)
        result = {
            "file": str(synthesis.output),
            "users": synthesis.num_users,
            "locations_per_user": synthesis.steps,
            "first_time": f"{synthesis.first.astype('datetime64[s]')}Z",
            "privacy": _PRIVACY,
            "model_guarantee": synthesis.guarantee,
        }
    if options["as_json"]:
        print_json({**result, **({} if comparison is None else comparison.to_dict())})
    else:
        if result:
            print_result("Synthetic users", result, False)
        if comparison is not None:
            _print_comparison(comparison)
    if comparison is not None and picture is not None:
        from dphmm.plots.canvas import save_picture
        from dphmm.plots.model import draw_crowds_figure

        save_picture(draw_crowds_figure(comparison), picture, options["overwrite"])
        echo(f"Warning: {escape_cell(str(picture))} shows true locations. Do not publish it.", err=True)


_PRIVACY = "the guarantee of the model's file"
_TRAINED = "the comparison is too good if the model was trained on these users, which is"


def _print_comparison(comparison: Comparison) -> None:
    """Print a table of the measures, and the log likelihood."""
    from dphmm.model.mobility_statistics import MEASURES

    columns = (comparison.synthetic, comparison.halves, comparison.places_alone)
    rows = [
        (
            name.replace("_", " "),
            *("-" if values[name] != values[name] else f"{values[name]:.3f}" for values in columns),
            "0" if name in MEASURES else "1",  # similarities have no histogram
        )
        for name in comparison.synthetic
    ]
    users = "user" if comparison.num_users == 1 else "users"
    excluded = f"; {comparison.left_out:,} training users of the model excluded" if comparison.left_out else ""
    size = f"{comparison.stretches:,} paths, {comparison.places:,} locations{excluded}"
    title = f"Compared with {comparison.num_users:,} real {users} ({size})"
    print_table(("measure", "synthetic users", "half of the real users", "locations only", "best value"), rows, title)
    echo(
        f"Mean log likelihood of a step of the real users: {comparison.log_likelihood:.4f}. Steps that are impossible "
        f"in the model: {comparison.impossible:.2%}."
    )
