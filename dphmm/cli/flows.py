"""``dphmm flows``: where people go, with a promise for whole people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dphmm.cli import inputs
from dphmm.cli.console import FILE, Once, progress, say, say_json, say_table, shown, warn_of_seed
from dphmm.errors import ConfigurationError, need
from dphmm.flows.settings import FlowSettings

_area_options = inputs.options(
    click.option("--areas", "layer", type=click.Path(), metavar="FILE", help="Polygons: GeoJSON, KML, GeoPackage, …"),
    click.option("--label", metavar="PROPERTY", help="What names a polygon. [default: category or name]"),
    click.option("--district", metavar="PROPERTY", help="What names its district; or a file of districts' polygons."),
    click.option("--block", type=int, metavar="CELLS", help="Of a grid: the side of a district. [default: 4]"),
    heading="Region",
)


@click.command(cls=Once)
@click.argument("data", nargs=-1, type=click.Path())
@click.option("--user-epsilon", required=True, metavar="EPSILON", help="The budget of each person in all tables.")
@click.option("-o", "--output", type=FILE, help="A .parquet, .csv, .json or .gpkg file.")
@click.option("--report", type=FILE, help="A page to show and to sign, .html.")
@click.option("--plan", is_flag=True, help="Say how certain numbers will be; nothing is read or spent.")
@click.option(
    "--relative-error",
    type=inputs.POSITIVE,
    metavar="SHARE",
    help="Leave out numbers less certain than this. With --plan what counts as right. [default: 0.2]",
)
@click.option("--every-row", is_flag=True, help="Rows of cells with a count of zero too.")
@_area_options
@inputs.region_options
@inputs.options_of(FlowSettings)
@inputs.engine_options
@inputs.seed_option
@inputs.input_options
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="Say what was made as JSON.")
def flows_command(data: tuple[str, ...], output: Path | None, as_json: bool, **given: Any) -> None:
    """Count where the people in DATA go: visits, flows between areas, stays, trips, homes and places of work.

    With one person more or less, with all their days, no set of tables becomes more probable than e^EPSILON times what
    it was. Areas are polygons (--areas), or cells of a region. Every number has its interval, and sums agree.
    """
    from dataclasses import fields

    from dphmm.jobs.people_flows import flows
    from dphmm.tables import write_text
    from dphmm.writers.flow_files import check_flow_file

    settings = FlowSettings(
        **{one.name: given[one.name] for one in fields(FlowSettings) if given.get(one.name) is not None}
    )
    if given["plan"]:
        _plan(settings, given, as_json)
        return
    if not data or output is None:
        raise ConfigurationError("give DATA and -o FILE; or --plan to see how certain numbers will be")
    check_flow_file(output, given["overwrite"])
    if given["report"] is not None:
        if given["report"].suffix.lower() not in (".html", ".htm"):
            raise ConfigurationError(f"{given['report']}: a report is an .html file; name it so")
        need("matplotlib", "plots")
    warn_of_seed(given["seed"])
    done = flows(
        inputs.data_of(data, given),
        _areas(given),
        given["user_epsilon"],
        settings,
        rng=given["seed"],
        engine=inputs.engine_of(given),
        watch=progress,
    )
    rows = done.rows(given["relative_error"], given["every_row"])
    rows.write(output, given["overwrite"])
    if given["report"] is not None:
        from dphmm.plots.flow_maps import flow_report

        write_text(given["report"], flow_report(rows), given["overwrite"])
    facts = done.facts()
    if not as_json:
        facts["spent_on"] = ", ".join(f"{name} {part}" for name, part in facts["spent_on"].items())
    facts |= {"rows": len(rows), "output": str(output), "report": given["report"] and str(given["report"])}
    say("Flows", facts, as_json, done.private_left_out)


def _areas(given: dict[str, Any]) -> Any:
    from dphmm.flows.areas import Areas

    if given["layer"] is not None:
        if any(given[name] is not None for name in (*inputs.REGION, "block")):
            raise ConfigurationError("--areas and a region are both given; give one of them")
        return Areas.from_polygons(given["layer"], given["label"], given["district"])
    if given["label"] is not None or given["district"] is not None:
        raise ConfigurationError("--label and --district are for polygons; give --areas FILE")
    space = inputs.space_of(given)
    return Areas.from_space(space) if given["block"] is None else Areas.from_space(space, given["block"])


def _plan(settings: FlowSettings, given: dict[str, Any], as_json: bool) -> None:
    from dphmm.jobs.people_flows import plan_flows

    error = 0.2 if given["relative_error"] is None else given["relative_error"]
    found = plan_flows(_areas(given), given["user_epsilon"], settings, error)
    if as_json:
        say_json([one.facts() for one in found])
        return
    header = ("table", "level", "numbers", "of a person at most", "each ±", f"right within {error:.0%} from")
    rows = [
        (one.table, one.level, f"{one.numbers:,}", f"{one.most:,}", shown(one.half_width), shown(round(one.least)))
        for one in found
    ]
    say_table(
        header, rows, f"Certain at {settings.confidence:.0%}, epsilon {given['user_epsilon']}, whatever the data:"
    )
