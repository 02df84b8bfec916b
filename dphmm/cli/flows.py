"""The command ``dphmm flows``: flow tables with user-level differential privacy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dphmm.cli import shared_options as options
from dphmm.cli.console import (
    FILE,
    Once,
    Row,
    Table,
    format_value,
    print_json,
    print_result,
    render,
    show_progress,
    warn_of_seed,
)
from dphmm.cli.keys import NUMBER, as_keys, declare_key, name_parameters_in_errors
from dphmm.errors import ConfigurationError, import_library
from dphmm.flows.settings import FlowSettings

_area_options = options.compose(
    click.option("--areas", "layer", type=click.Path(), metavar="FILE", help="Polygons: GeoJSON, KML, GeoPackage, …"),
    click.option("--label", metavar="PROPERTY", help="Property with a polygon's name. [default: category or name]"),
    click.option("--district", metavar="PROPERTY", help="Property with the district's name, or a file of districts."),
    declare_key("--block", type=int, help="Grid: side of a district in cells. [default: 4]"),
    heading="Region",
)

_EVERYDAY = (
    *("tables", "visits_per_user", "trips_per_user"),
    *("time_classes", "zone", "first_day", "last_day", "window"),
)
# Settings that are options. The others are keys of a settings file.


_LABELS = {
    "spent_on": "epsilon of each step",
    "num_areas": "areas",
    "num_rows": "rows of the file",
    "likelihood_ratio_all_tables": "all tables, with and without one user",
}


@click.command(cls=Once)
@click.argument("data", nargs=-1, type=click.Path())
@click.option("--user-epsilon", required=True, type=NUMBER, metavar="EPSILON", help="Budget per user for all tables.")
@click.option("-o", "--output", type=FILE, help="Output file: .parquet, .csv, .json or .gpkg.")
@click.option("--report", type=FILE, help="Write a report to this .html file.")
@click.option("--plan", is_flag=True, help="Show the accuracy only; read no data and spend no epsilon.")
@declare_key(
    "--relative-error",
    type=options.POSITIVE,
    help="Omit less accurate numbers; with --plan the target. [default: 0.2]",
)
@declare_key("--every-row", is_flag=True, help="Include rows of numbers with an interval that contains zero.")
@_area_options
@options.region_options
@options.build_options(FlowSettings, names=_EVERYDAY)
@as_keys(options.build_options(FlowSettings, without=_EVERYDAY))
@options.engine_options
@options.seed_option
@options.input_options
@click.option("--overwrite", is_flag=True, help="Replace existing outputs.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def flows_command(data: tuple[str, ...], output: Path | None, as_json: bool, **arguments: Any) -> None:
    """Count visits and flows between areas with user-level differential privacy.

    If one user, with all of their days, is added or removed, the probability of any set of tables changes by a factor
    of at most e^EPSILON. Areas are polygons (--areas) or cells of a region. A number has a row if its interval is above
    zero; one row sums the others. All intervals of the file hold simultaneously with 95 % probability.
    """
    from dataclasses import fields

    from dphmm.jobs.flows import flows
    from dphmm.tables import write_text
    from dphmm.writers.flows import check_flow_file

    names = {field.name: options.get_option_name(field) for field in fields(FlowSettings)}
    with name_parameters_in_errors(tables="only"):
        settings = FlowSettings(
            **{field: value for field, name in names.items() if (value := arguments[name]) is not None}
        )
    if arguments["plan"]:
        _print_plans(settings, arguments, as_json)
        return
    if not data or output is None:
        raise ConfigurationError("DATA and -o FILE are required: add them, or use --plan to show the accuracy")
    check_flow_file(output, arguments["overwrite"])
    if arguments["report"] is not None:
        if arguments["report"].suffix.lower() not in (".html", ".htm"):
            raise ConfigurationError(f"--report must be an .html file, got {arguments['report']}")
        import_library("matplotlib", "plots")
    warn_of_seed(arguments["seed"])
    done = flows(
        options.build_data(data, arguments),
        _build_areas(arguments),
        arguments["user_epsilon"],
        settings,
        rng=arguments["seed"],
        engine=options.build_engine(arguments),
        watch=show_progress,
    )
    rows = done.to_rows(arguments["relative_error"], arguments["every_row"])
    rows.write(output, arguments["overwrite"])
    if arguments["report"] is not None:
        from dphmm.plots.flows import build_flow_report

        write_text(arguments["report"], build_flow_report(rows), arguments["overwrite"])
    written = {"num_rows": len(rows), "output": str(output), "report": arguments["report"] and str(arguments["report"])}
    print_result("Flows", {**done.to_dict(), **written}, as_json, done.private_dropped, labels=_LABELS)


def _build_areas(arguments: dict[str, Any]) -> Any:
    from dphmm.flows.areas import Areas

    if arguments["layer"] is not None:
        if arguments["block"] is not None:
            raise ConfigurationError(
                "block cannot be combined with --areas: it is for cells of a region, use --district"
            )
        if any(arguments[name] is not None for name in options.REGION):
            raise ConfigurationError("--areas cannot be combined with a region: use one of them")
        return Areas.from_polygons(arguments["layer"], arguments["label"], arguments["district"])
    if arguments["label"] is not None or arguments["district"] is not None:
        raise ConfigurationError("--label and --district need --areas FILE")
    space = options.build_space(arguments)
    return Areas.from_space(space) if arguments["block"] is None else Areas.from_space(space, arguments["block"])


def _print_plans(settings: FlowSettings, arguments: dict[str, Any], as_json: bool) -> None:
    from dphmm.jobs.flows import plan_flows

    error = 0.2 if arguments["relative_error"] is None else arguments["relative_error"]
    flow_plans = plan_flows(_build_areas(arguments), arguments["user_epsilon"], settings, error)
    plans = [flow_plan.to_dict() for flow_plan in flow_plans]
    if as_json:
        print_json(plans)
        return
    columns = (
        Row("table"),
        Row("level"),
        Row("num_values", "numbers"),
        Row("max_events_per_user"),
        Row("half_width", "max error (±)"),
        Row("min_accurate_count", f"error at most {error:.0%} from", lambda count: format_value(round(count))),
    )
    title = (
        f"Error of the noise with probability {settings.confidence:.0%}, epsilon {arguments['user_epsilon']}; "
        f"the last column is the smallest number with an error of at most {error:.0%}"
    )
    render({"plans": plans}, Table("plans", columns, title))
