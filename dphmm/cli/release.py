"""The commands ``release``, ``show``, ``report`` and ``basemap``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli import shared_options as options
from dphmm.cli.console import (
    FILE,
    PATH,
    STORE,
    Block,
    Once,
    Row,
    build_dropped_rows,
    describe_dropped_fixes,
    echo,
    escape_cell,
    format_count,
    format_epsilon,
    print_json,
    print_paragraph,
    print_result,
    render,
    show_progress,
    warn,
    warn_of_seed,
)
from dphmm.cli.json_lines import answer_lines
from dphmm.cli.keys import as_keys, declare_key, get_parameter_name
from dphmm.errors import ConfigurationError
from dphmm.formatting import format_ratio_bound
from dphmm.readers.instants import Instants
from dphmm.release import Limits

if TYPE_CHECKING:
    from dphmm.jobs.batch.batch import Batch
    from dphmm.jobs.release.exposure import Statistic
    from dphmm.jobs.release.release import ReleaseResult
    from dphmm.release import ReleaseSettings


_session_options = options.compose(
    click.option(
        "--session", type=STORE, metavar="FILE", help="File of durable sessions, one per user; or postgresql://…"
    ),
    as_keys(options.build_options(Limits)),
    heading="Session and limits",
)

# The reasons for which a timestep is withheld, in words.
_REASONS = {
    "target": "withheld, estimate accurate enough",
    "budget": "withheld, budget saved or used up",
    "caps": "withheld, event cap reached",
}

_METRES = "{:,.0f} m".format


def _format_ratio_bound(level: float) -> str:
    # Locations in different components of the policy graph may have no common output.
    return format_ratio_bound(level) if isinf(level) else f"≤ {format_ratio_bound(level)}"


def _format_policy(result: Mapping[str, Any]) -> str:
    from dphmm.policy.expression import format_policy_label
    from dphmm.release.settings import GRAPH_POLICY_PREFIX

    policy = str(result["policy"])
    return (
        "a graph"
        if policy.startswith(GRAPH_POLICY_PREFIX)
        else f"{format_policy_label(policy)} ({result['policy_description']})"
    )


_RESULT = (
    *(Row(f"withheld_by_reason/{reason}", words) for reason, words in _REASONS.items()),
    Row("num_unprotected", "most probable location unprotected"),
    Row("num_singleton_releases", "only one location possible"),
    Row("num_users_outside_region", "users never inside the region"),
    Row("num_users_released_before", "users released in an earlier run"),
    Row("num_users_after_capped_event", "users whose capped event has ended"),
    Row("num_timesteps_after_gap", "timesteps after a gap, with a new belief"),
    Row("num_users_with_gap", "users with such timesteps"),
)
_PRIVACY = (
    Row("", "policy", _format_policy),
    Row("isolated_states", "states without an edge"),
    Row("max_epsilon_24h", "max epsilon in any 24 h", format_epsilon),
    Row("ratio/release", "likelihood ratio, one release", _format_ratio_bound),
    Row("ratio/any_states", "likelihood ratio, any possible locations", _format_ratio_bound),
    Row("ratio/total", "likelihood ratio, all releases", _format_ratio_bound),
    Row("min_degree_of_protection"),
)
_ADVERSARY = (
    Row("median_error", "median expected error"),
    Row("posterior", "max posterior probability"),
)
_UTILITY = (
    Row("median_estimate_error_m", "median expected error of estimates", _METRES),
    Row("min_user_median_estimate_error_m", "median of estimates, user with the smallest", _METRES),
    Row("median_release_rmse_m", "median RMS noise of releases", _METRES),
)

# Labels of private rows; others are shown under their own names.
_PRIVATE_LABELS = {
    "num_locations_outside_region": "locations outside the region",
    "num_timesteps_without_location": "timesteps without a location",
    "num_skipped_fixes": "skipped fixes",
    "model_trained_on_these_users": "model was trained on these users",
    "median_true_estimate_error_m": "median true error of estimates (m)",
    **{
        f"{key}_{where}": label.format(where)
        for where in ("inside", "outside")
        for key, label in (
            ("num_timesteps", "true locations {} the region"),
            ("median_estimate_error_m", "median true error {} (m)"),
            ("share_within_error", "share below the expected error {}"),
            ("share_within_calibrated_radius_90", "share within the 90 % radius {}"),
        )
    },
}


def print_release_summary(
    done: ReleaseResult | Batch, result: Mapping[str, Any], levels: Mapping[str, float], as_json: bool
) -> None:
    """Print a summary of releases. Warnings are printed on standard error.

    Parameters
    ----------
    done
        The result of the job.
    result
        Its dictionary, with the private values under ``private`` and the output under ``output``.
    levels
        The epsilons whose likelihood ratios are shown.
    as_json
        True to print one JSON object instead.
    """
    sentences = dict(zip(("guarantee", "inference"), done.summary_sentences(), strict=False))
    warnings = done.list_warnings()
    if as_json:
        print_json({**sentences, **result, "warnings": warnings})
    else:
        if result.get("sampling"):
            print_paragraph("Sampling: ", done.sampling.describe() if done.sampling else "")
        for name, sentence in sentences.items():
            print_paragraph(f"{name.capitalize()}:", sentence)
        echo()
        _print_blocks(done, result, levels)
    warn([*warnings, *result["private"]["warnings"]])


def _print_blocks(done: ReleaseResult | Batch, result: Mapping[str, Any], levels: Mapping[str, float]) -> None:
    count = result["num_released"] + result["num_withheld"]
    users = format_count(result["num_users"], "user")
    echo(
        f"Released {result['num_released']:,} of {count:,} timesteps for {users} to "
        f"{escape_cell(str(result['output']))}."
    )
    private = {name: value for name, value in result["private"].items() if name not in ("dropped", "warnings")}
    private_rows = [Row(f"private/{name}", _PRIVATE_LABELS.get(name, "")) for name in private]
    private_rows += build_dropped_rows(done.dropped, "private/dropped")
    shown_result = {
        **result,
        "ratio": levels if result["randomness"] == "system" else {},
        "median_error": _format_inference(result, "median_adversary_error_m"),
        "posterior": _format_inference(result, "max_posterior"),
        "private": {**private, "dropped": describe_dropped_fixes(done.dropped)},
    }
    if result["num_users"] == 1:
        shown_result.pop("min_user_median_estimate_error_m", None)  # equal to the median over all timesteps
    echo()
    render(
        shown_result,
        Block("Result", _RESULT, omits_zeros=True),
        Block("Privacy", _PRIVACY, omits_zeros=True),
        Block("Adversary with the model (most exposed user)", _ADVERSARY, omits_zeros=True),
        Block("Utility", _UTILITY, omits_zeros=True),
        Block("Private: do not publish", private_rows, omits_zeros=True),
    )


def _format_inference(result: Mapping[str, Any], statistic: Statistic) -> str | None:
    """Return a statistic for each adversary that it was computed for. None if there is none."""
    from dphmm.jobs.release.exposure import RESTARTS, VIEW_PREFIXES, InferenceFigure, name_extreme

    keys = (prefix + statistic for prefix in VIEW_PREFIXES.values())
    row = {key: result[name_extreme(key)] for key in keys if name_extreme(key) in result}
    row[RESTARTS] = result.get(RESTARTS, 0)
    figures = (InferenceFigure.find([row], statistic, view) for view in VIEW_PREFIXES)
    return "; ".join(figure.in_table() for figure in figures if figure is not None) or None


_stream_options = options.compose(
    declare_key("--max-requested-epsilon", type=float, help="Without DATA: largest epsilon that a fix may request."),
    declare_key("--clock-skew", help="Without DATA: largest lead of a fix's time over this clock. [default: 5m]"),
)

_output_options = options.compose(
    declare_key("--summary", type=FILE, help="Write a .csv with one row per user."),
    click.option(
        "--private-diagnostics",
        type=FILE,
        metavar="FILE",
        help="Write true states and errors to this file. Do not publish.",
    ),
    click.option("--certificate", type=FILE, metavar="FILE", help="Write a certificate for scripts/dphmm-verify."),
    declare_key(
        "--geometry",
        default="estimate",
        type=click.Choice(["estimate", "released"]),
        help="Geometry column: estimate or released. [default: estimate]",
    ),
    declare_key("--daily-summary", "daily", type=FILE, help="Write a .csv with one row per user and day (UTC)."),
    heading="Output",
)


@click.command(cls=Once)
@click.argument("data", nargs=-1, type=click.Path())
@click.option("-o", "--output", type=FILE, help="File of the releases: .gpkg, .geojson, .csv, .gpx or .parquet.")
@click.option("--model", type=PATH, help="Model of 'dphmm learn' or 'dphmm model blank'. Required.")
@options.release_options
@options.own_model_option
@_output_options
@_session_options
@_stream_options
@options.seed_option
@options.earlier_option
@declare_key("--adversary-map", help="Map of an adversary: 'coast' (bundled) or a file with water.")
@options.release_input_options
@click.option("--overwrite", is_flag=True, help="Replace existing outputs.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def release_command(data: tuple[str, ...], as_json: bool, **values: Any) -> None:
    """Release private locations for the trajectories in DATA.

    Without DATA, fixes are read from standard input as JSON lines such as {"user": "a", "time":
    "2024-03-07T09:00:00Z", "latitude": 45.01, "longitude": -30.01}. Each is answered immediately by one line on
    standard output. An invalid line is answered by {"released": false, "reason": ...}.
    """
    options.require_model(values["model"], data)
    settings = options.build_settings({**values, "caps": options.build_caps(values)}, for_a_day=True)
    limits = {limit.name: values[options.get_option_name(limit)] for limit in fields(Limits)}
    session = {
        "session": values["session"],
        "limits": Limits(**limits) if any(limit is not None for limit in limits.values()) else None,
        "allow_training_users": bool(values["allow_training_users"]),
    }
    warn_of_seed(values["seed"])
    if data:
        _release_files(data, settings, session, as_json, values)
    else:
        _release_stream(settings, session, values)


def _release_files(
    data: tuple[str, ...],
    settings: ReleaseSettings,
    session: Mapping[str, Any],
    as_json: bool,
    values: Mapping[str, Any],
) -> None:
    from dphmm.jobs.release.release import release

    options.refuse(("max_requested_epsilon", "clock_skew"), "is for fixes from standard input only")
    if values["output"] is None:
        raise ConfigurationError("an output is missing: use -o, such as -o releases.gpkg")
    outputs = ("output", "summary", "daily", "certificate", "overwrite", "geometry")
    done = release(
        options.build_data(data, values),
        values["model"],
        settings,
        private_diagnostics=values["private_diagnostics"] or False,
        auxiliary_data=options.build_data(values["auxiliary_data"], values) if values["auxiliary_data"] else None,
        adversary_map=values["adversary_map"],
        rng=values["seed"],
        watch=show_progress,
        **session,
        **{name: values[name] for name in outputs},
    )
    files = {name: values[name] for name in ("output", "private_diagnostics", "certificate")}
    paths = {name: None if path is None else str(path) for name, path in files.items()}
    result = {**done.to_dict(), **paths, "private": done.to_private_dict()}
    print_release_summary(done, result, done.ratio_levels, as_json)


def _release_stream(settings: ReleaseSettings, session: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    from dphmm.jobs.release.release import release_live

    for name in ("output", "summary", "daily", "private_diagnostics", "certificate"):
        if values[name] is not None:
            raise ConfigurationError(
                f"{get_parameter_name(name)} needs DATA: without DATA, releases are written to standard output"
            )
    options.refuse(("adversary_map",), "needs DATA")
    skew = values["clock_skew"]
    accepted: dict[str, Any] = {"max_requested_epsilon": values["max_requested_epsilon"]}
    if skew is not None:
        accepted["clock_skew_seconds"] = options.parse_seconds(skew, get_parameter_name("clock_skew"))
    instants = Instants(values["time_zone"], values["time_format"])
    with release_live(values["model"], settings, rng=values["seed"], **accepted, **session) as stream:
        answer_lines(stream, options.get_columns(values), instants)


@click.command(cls=Once)
@click.argument("releases", callback=options.parse_store)
@click.option(
    "-o",
    "--output",
    type=FILE,
    help=".png, .svg, .pdf or .html; PRIVATE in its name with --true. [default: RELEASES.html]",
)
@click.option("--model", type=PATH, help="Model, to plot its states.")
@click.option(
    "--policy",
    help="Policy, to plot its edges and hull. [default: that of RELEASES, if found]",
)
@click.option("--areas", "layer", type=PATH, help="Polygons in the background: GeoJSON, KML or GeoPackage.")
@click.option("--basemap", type=PATH, help="More detailed map: .gpkg, .fgb, .geojson, .shp, .osm.pbf.")
@click.option("--tiles", metavar="URL", help="Tile server, https://…/{z}/{x}/{y}.png; it learns the viewed area.")
@options.true_options
@options.users_option
@click.option("--start", metavar="TIME", help="Omit releases before this time, ISO 8601, UTC.")
@click.option("--end", metavar="TIME", help="Omit releases at or after this time.")
@click.option("--title", help="Title of the map.")
@click.option("--overwrite", is_flag=True, help="Replace an existing output.")
def show_command(releases: str | Path, output: Path | None, **values: Any) -> None:
    """Plot RELEASES as a picture or an interactive map.

    RELEASES is a file of 'dphmm release', a folder of 'dphmm batch', or (with --model) a store of sessions.

    For a file of 'dphmm flows', areas are plotted, and flows between them by width. The HTML map works offline. It can
    be panned, zoomed, filtered by user and day, and played through time.
    """
    from dphmm.plots.flows import show_flows
    from dphmm.plots.release import show
    from dphmm.writers.flows import is_flow_file

    if is_flow_file(releases):
        echo(escape_cell(str(show_flows(releases, output, values["title"], values["overwrite"]))))
        return
    true = options.build_true_data(values)
    arguments = {name: values[name] for name in ("model", "policy", "layer", "basemap", "tiles")}
    arguments |= {name: values[name] for name in ("start", "end", "title", "overwrite")}
    written = show(releases, output, users=values["users"] or (), true=true, **arguments)
    if true is not None:
        warn([f"{escape_cell(str(written))} shows true locations. Do not publish it."])
    echo(escape_cell(str(written)))


@click.command(cls=Once)
@click.argument("releases", type=PATH)
@click.option("-o", "--output", required=True, type=FILE, help="File of the page, .html.")
@click.option("--model", required=True, type=click.Path(), help="Model of the releases.")
@options.release_options
@options.true_options
@click.option("--basemap", type=PATH, help="More detailed map: .gpkg, .fgb, .geojson, .shp, .osm.pbf.")
@options.users_option
@click.option("--title", help="Title of the page.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the synthetic user and their noise.")
@click.option("--overwrite", is_flag=True, help="Replace an existing output.")
def report_command(releases: Path, output: Path, model: str, seed: int | None, **values: Any) -> None:
    """Write a page about RELEASES: before and after, the guarantee, and its limitations.

    RELEASES is a file of 'dphmm release -o', the folder of a batch, or a file of sessions. Settings are needed only for
    a file, if they are not the defaults, in the file or in a certificate in its folder. The user before and after is
    synthetic, sampled from the model. With --true it is the user with most releases, and the page is private, as its
    name must state.
    """
    from dphmm.plots.release_report import report

    settings = options.build_stated_settings(values)
    true = options.build_true_data(values)
    arguments = {name: values[name] for name in ("title", "basemap", "overwrite")}
    written = report(releases, output, model, settings, true=true, users=values["users"] or (), rng=seed, **arguments)
    if true is not None:
        warn([f"{escape_cell(str(written))} shows true locations. Do not publish it."])
    echo(escape_cell(str(written)))


@click.command(cls=Once)
@click.argument("extract", type=PATH)
@click.option("--model", required=True, type=PATH, help="Model, which defines the region.")
@click.option("-o", "--output", required=True, type=FILE, help="File of the map: .geojson or .geojson.gz.")
@click.option("--overwrite", is_flag=True, help="Replace an existing output.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def basemap_command(extract: Path, model: Path, output: Path, overwrite: bool, as_json: bool) -> None:
    """Extract a small map of a model's region from EXTRACT.

    It contains water, roads, streets, rivers and names.

    EXTRACT is a downloaded file: an .osm.pbf of OpenStreetMap, or a .gpkg, .fgb, .geojson or .shp with the same tags.
    The map is for --basemap of 'dphmm show', and for the key 'basemap' of a relay's file.
    """
    from dphmm.plots.basemap import extract_basemap

    print_result(f"Map in {escape_cell(str(output))}", extract_basemap(extract, model, output, overwrite), as_json)
