"""``dphmm learn``, a model of movement; ``dphmm model``, what one says; ``dphmm synthesize``, people drawn from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.console import FILE, PATH, Once, OnceGroup, cell, echo, progress, say, say_json, say_table
from dphmm.cli.inputs import (
    COUNT,
    POSITIVE,
    READING,
    REGION,
    data_of,
    input_options,
    refuse,
    region_options,
    space_of,
    true_options,
)
from dphmm.errors import ConfigurationError
from dphmm.model.published_laws import KINDS

if TYPE_CHECKING:
    from dphmm.jobs.synthesis import Comparison
    from dphmm.model.model import MarkovModel


@click.command(cls=Once)
@click.argument("data", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--output", required=True, type=FILE, help="The model, a .npz file.")
@region_options
@click.option("--step", type=POSITIVE, metavar="SECONDS", help="One step. [default: 60, or chosen with the region]")
@click.option(
    "--gap",
    type=POSITIVE,
    metavar="SECONDS",
    help="A person seen again within this time has stayed until then; a longer gap cuts. [default: one step]",
)
@click.option(
    "--by",
    type=click.Choice(["hours", "weekday-hours"]),
    help="A matrix for each hour of the day, or for each hour of working days and of weekends; needs --zone.",
)
@click.option("--zone", metavar="ZONE", help="Time zone of --by. [default: that of the preset's region]")
@click.option("--max-speed", type=POSITIVE, metavar="KMH", help="Faster moves than this are impossible. [default: 150]")
@click.option(
    "--smoothing",
    type=click.FloatRange(0),
    metavar="COUNT",
    help="Only moves that were seen, or their reverse, are possible: add this to the count of each.",
)
@click.option(
    "--user-epsilon",
    metavar="EPSILON",
    help="Noise hides each person with all their days: a model that may be published.",
)
@click.option(
    "--moves-per-person", type=COUNT, metavar="M", help="With it: of each person at most M moves. [default: 20]"
)
@click.option("--away/--no-away", default=None, help="States for people outside the grid. [default: where any are]")
@click.option(
    "--radii/--no-radii",
    default=None,
    help="Leave some people out in turn, to learn which circles hold people. [default: with 20 people or more]",
)
@click.option("--least-people", type=COUNT, metavar="K", help="Leave out moves of fewer than K people: no guarantee.")
@input_options
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="Say what was learned as JSON.")
def learn_command(data: tuple[str, ...], output: Path, as_json: bool, overwrite: bool, **given: Any) -> None:
    """Learn a Markov model of movement from DATA and write it to a .npz file.

    DATA are files, folders or archives: GeoLife, check-ins, tables, GPX, OwnTracks. The model is public: learn it from
    people other than those whose places are to be released. Who they are is written beside it, in a list for yourself
    alone, by which 'dphmm release' and 'dphmm batch' refuse them.
    """
    from dphmm.jobs.models import learn, private_list

    chosen = all(given[name] is None for name in REGION)
    space = None if chosen else space_of(given)
    step = _STEPS.get(given["preset"]) if given["step"] is None else given["step"]
    zone = _ZONES.get(given["preset"]) if given["by"] is not None and given["zone"] is None else given["zone"]
    names = ("smoothing", "by", "user_epsilon", "moves_per_person", "least_people", "away", "radii")
    more = {**{name: given[name] for name in names}, "zone": zone, "max_speed_kmh": given["max_speed"]}
    learned = learn(data_of(data, given), space, step, given["gap"], output=output, overwrite=overwrite, **more)
    if learned.choice is not None:
        echo(_CHOSEN.format(learned.choice.options), err=True)
        if learned.private is None:
            echo(_OF_THE_DATA, err=True)
    if learned.private is not None:
        echo(_TRUE_COUNTS, err=True)
    files = {"model": str(output), "private_list_of_people": str(private_list(output))}
    facts = learned.facts()
    if learned.private is not None:
        facts["spent_on"] = ", ".join(f"{name} {part}" for name, part in facts["spent_on"].items())
    elif learned.shrunk is None:
        facts["smoothing"] = given["smoothing"]
    else:
        facts["highest_speed_kmh"] = learned.shrunk.kernel.reach.max_speed_kmh
    say("Learned", {**files, **facts}, as_json, learned.dropped, "left_out")


_PICTURES = (".png", ".svg", ".pdf")
_CHOSEN = "dphmm: no region was given; what was chosen is: {}"
_OF_THE_DATA = (
    "dphmm: it was chosen from the data, and the model's file says it: it tells where these people are. Give a region "
    "that is public instead, or --user-epsilon, of which a tenth then chooses it."
)
_TRUE_COUNTS = (
    "dphmm: the model's file keeps its promise; what is said here of users, fixes, places and moves is true of the "
    "data, without noise: keep it to yourself. A region, a step and a speed that were given are public only if they "
    "were chosen without looking at the data."
)


_STEPS = {"gowalla": 3600.0}
"""A region of the papers → its time step, where that is not a minute: people check in now and then."""

_ZONES = {"geolife": "Asia/Shanghai", "gowalla": "America/Los_Angeles", "cabspotting": "America/Los_Angeles"}
"""A region of the papers → its time zone."""


@click.group(cls=OnceGroup)
def model_command() -> None:
    """What a model that 'dphmm learn' wrote says, and how well it fits."""


@model_command.command()
@click.argument("model", type=PATH)
@click.option("-o", "--output", type=FILE, help="A map: a .png, .svg or .pdf file.")
@true_options
@click.option("--users", metavar="A,B,…", help="These users of --true alone.")
@click.option("--exclude-users", metavar="A,B,…", help="Everyone of --true but these users.")
@click.option("--skip-bad", is_flag=True, default=None, help="Pass over malformed records of --true.")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="Say it as JSON.")
def show(model: Path, output: Path | None, overwrite: bool, as_json: bool, **given: Any) -> None:
    """What MODEL holds possible and promises, a map of it, and how well it fits people whom it has not seen.

    --true are people whom the model was not learned from. Whether it is as sure as it should be is measured by regions
    of its belief: of those with 90 % of the mass, 90 % should hold the person.
    """
    from dphmm.jobs.models import load_model

    if output is not None and output.suffix.lower() not in _PICTURES:
        raise ConfigurationError(f"{output}: no map goes by {output.suffix!r}; use .png, .svg or .pdf")
    loaded = load_model(model)
    facts = _facts_model(loaded)
    if given["true"]:
        from dphmm.jobs.goodness_of_fit import fit_of

        fit = fit_of(model, data_of(given["true"], given))
        facts |= fit.facts()
        echo("dphmm: how well it fits is true of the people in --true, without noise: keep it to yourself.", err=True)
        if fit.known:
            echo(f"dphmm: the model was learned from {fit.known} of them; it fits those too well.", err=True)
    if output is not None:
        from dphmm.plots.figures import save_picture
        from dphmm.plots.models import model_figure

        save_picture(model_figure(loaded), output, overwrite, private=False)
        facts["map"] = cell(str(output))
    say(f"Model {model.name}", facts, as_json)


def _facts_model(model: MarkovModel) -> dict[str, Any]:
    facts: dict[str, Any] = {"states": model.size, "possible_moves": model.possible_moves}
    facts["step_seconds"] = model.step_seconds
    if model.time_classes is None:  # otherwise no single matrix has these probabilities
        chances = model.moves_inside.diagonal()
        facts["stays_expected"] = float(model.initial @ chances)
        facts["least_and_most"] = f"{chances.min():.3g} to {chances.max():.3g}"
    facts["hash"] = model.content_hash
    for name, one in (model.learned or {}).items():
        told = ", ".join(f"{k} {v}" for k, v in one.items()) if isinstance(one, dict) else one
        if isinstance(told, str | int | float):
            facts.setdefault(name, told)  # a file does not overrule what the model says
    return facts


@model_command.command(cls=Once)
@click.option("-o", "--output", required=True, type=FILE, help="The model, a .npz file.")
@region_options
@click.option("--step", type=float, metavar="SECONDS", help="One time step. [default: 300 everyday, otherwise 60]")
@click.option(
    "--kind",
    default="everyday",
    show_default=True,
    type=click.Choice(tuple(KINDS)),
    help="How people move: all day, with long rests, or as in recordings of people on their way.",
)
@click.option("--top-speed", type=float, metavar="KMH", help="Faster moves are impossible. [default: the kind's]")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="Say what was made as JSON.")
def blank(output: Path, step: float | None, kind: str, top_speed: float | None, **given: Any) -> None:
    """Make a model of a region alone, without data of people.

    Every command takes it. It knows how fast people can be and, by published laws, how they move in general, and
    nothing of the region: estimates are farther off than with a model of people there.
    """
    from dphmm.jobs.models import blank_model

    boxes = {name: given[name] for name in ("bbox", "town", "extent")}
    alone = all(given[name] is None for name in REGION if name not in boxes) and any(boxes.values())
    space = None if alone else space_of(given)
    made = blank_model(space, step, kind, top_speed, output, given["overwrite"], **(boxes if alone else {}))
    say("Made, out of no data", {"model": str(output), **made.facts()}, given["as_json"])


_BEST = {"top_places": "1 is best", "rank_correlation": "1 is best"}


@click.command(cls=Once, name="synthesize")
@click.option("--model", required=True, type=PATH, help="A model that 'dphmm learn' wrote.")
@click.option("-o", "--output", type=FILE, help="A .csv, .parquet or .gpkg file of people.")
@click.option("--people", type=COUNT, default=1000, show_default=True, help="How many people.")
@click.option("--days", type=POSITIVE, default=7.0, show_default=True, help="For how long.")
@click.option("--start", default="2024-01-01", show_default=True, metavar="DAY", help="Their first day.")
@click.option("--compare", multiple=True, metavar="DATA", type=click.Path(), help="Real people to compare with.")
@click.option(
    "--gap",
    type=POSITIVE,
    metavar="SECONDS",
    help="With --compare: a person seen again within this time has stayed until then. [default: one step]",
)
@click.option("--plot", type=FILE, help="With --compare: a picture, PRIVATE in its name.")
@click.option("--seed", type=int, help="Repeatable people.")
@input_options
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="Say what was made as JSON.")
def synthesize_command(model: Path, output: Path | None, compare: tuple[str, ...], **given: Any) -> None:
    """Draw people who do not exist from a model, and write where they are at every step.

    The file says nothing that the model does not say: it is as private as the model, no more and no less. --compare
    holds them against real people whom the model has not seen, by the measures of the literature.
    """
    from dphmm.jobs.synthesis import compare_people, synthesize
    from dphmm.writers.formats import check_format
    from dphmm.writers.paths import PATH_FORMATS

    plot, seed = given["plot"], given["seed"]
    if output is None and not compare:
        raise ConfigurationError("nothing is asked for; give -o FILE, or --compare DATA")
    if not compare:
        refuse(("gap", "plot", *READING), "goes with --compare")
    if plot is not None and (plot.suffix.lower() not in _PICTURES or "PRIVATE" not in plot.name):
        raise ConfigurationError(f"{plot}: name a .png, .svg or .pdf file with PRIVATE in its name")
    if output is not None:
        check_format(output, PATH_FORMATS)
    found = None
    if compare:  # first: where it is refused no file is left
        found = compare_people(model, data_of(compare, given), given["gap"], rng=seed, watch=progress)
    facts: dict[str, Any] = {}
    if output is not None:
        options = {name: given[name] for name in ("people", "days", "start", "overwrite")}
        made = synthesize(model, output, rng=seed, watch=progress, **options)
        facts = {
            "file": str(made.output),
            "people": made.people,
            "places_each": made.steps,
            "first_time": f"{made.first.astype('datetime64[s]')}Z",
            "private": _PRIVATE,
            "promise_of_the_model": made.promise,
        }
    if given["as_json"]:
        say_json({**facts, **({} if found is None else found.facts())})
    else:
        if facts:
            say("People who do not exist", facts, False)
        if found is not None:
            _say_comparison(found)
    if found is not None and plot is not None:
        from dphmm.plots.figures import save_picture
        from dphmm.plots.models import crowds_figure

        save_picture(crowds_figure(found), plot, given["overwrite"])
        echo(f"dphmm: {cell(str(plot))} shows where real people were; keep it to yourself.", err=True)


_PRIVATE = "as private as the model's file, no more and no less"


def _say_comparison(found: Comparison) -> None:
    """A table: measure by measure, how far from the real people."""
    columns = (found.synthetic, found.halves, found.places_alone)
    rows = [
        (
            name.replace("_", " "),
            *("-" if one[name] != one[name] else f"{one[name]:.3f}" for one in columns),
            _BEST.get(name, "0 is best"),
        )
        for name in found.synthetic
    ]
    who = "person" if found.people == 1 else "people"
    left = f"; {found.left_out:,} whom the model has seen were left out" if found.left_out else ""
    size = f"{found.stretches:,} stretches, {found.places:,} places{left}"
    title = f"Compared with {found.people:,} real {who} ({size})"
    header = ("measure", "people who do not exist", "one half of the real ones", "places drawn alone", "")
    say_table(header, rows, title)
    echo(
        f"The model gives a step of theirs a log likelihood of {found.log_likelihood:.4f} on average; "
        f"{found.impossible:.2%} of their steps it thinks impossible."
    )
