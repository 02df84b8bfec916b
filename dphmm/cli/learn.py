"""``dphmm learn``: a Markov model of movement out of trajectories."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.inputs import REGION, data_of, input_options, region_options, space_of
from dphmm.cli.once import Once
from dphmm.cli.summary import dropped_facts, say, say_dropped
from dphmm.cli.terminal import echo

if TYPE_CHECKING:
    from dphmm.jobs.models import Learned


@click.command(cls=Once)
@click.argument("data", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The model, a .npz file.")
@region_options
@click.option("--step", type=float, metavar="SECONDS", help="One time step. [default: 60, or chosen with the region]")
@click.option(
    "--gap",
    type=float,
    metavar="SECONDS",
    help="Who is seen again within this time has stayed until then; a longer gap cuts. [default: one step]",
)
@click.option(
    "--by",
    type=click.Choice(["hours", "weekday-hours"]),
    help="A matrix for each hour of the day, or for each hour of working days and of weekends; needs --zone.",
)
@click.option("--zone", metavar="ZONE", help="Time zone of --by. [default: that of the preset's region]")
@click.option("--order", type=click.IntRange(1, 2), default=1, show_default=True, help="2 looks back two steps.")
@click.option("--max-speed", type=float, metavar="KMH", help="Faster moves than this are impossible. [default: 150]")
@click.option("--smoothing", type=float, metavar="COUNT", help="Possible is what was seen, with this added, both ways.")
@click.option(
    "--user-epsilon",
    metavar="EPSILON",
    help="Noise hides each person with all their days: a model that may be published.",
)
@click.option(
    "--moves-per-person", type=int, metavar="M", help="With it: of each person at most M moves. [default: 20]"
)
@click.option("--least-people", type=int, metavar="K", help="Leave out moves of fewer than K people: no guarantee.")
@input_options
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="Say what was learned as JSON.")
def command(data: tuple[str, ...], output: Path, as_json: bool, overwrite: bool, **given: Any) -> None:
    """Learn a Markov model of movement from DATA and write it to a .npz file.

    DATA are files, folders or archives: GeoLife, check-ins, tables, GPX, OwnTracks. The model is public: learn it from
    people other than those whose places are to be released. Who they are is written beside it, in a list for yourself
    alone, by which 'dphmm release' and 'dphmm batch' refuse them.
    """
    from dphmm.jobs.learned_from import private_list
    from dphmm.jobs.models import learn

    chosen = all(given[name] is None for name in REGION)
    space, source = None if chosen else space_of(given), data_of(data, given)
    step = _STEPS.get(given["preset"]) if given["step"] is None else given["step"]
    smoothing = given["smoothing"]
    learned = learn(
        source,
        space,
        step,
        given["gap"],
        smoothing,
        output,
        overwrite,
        max_speed_kmh=given["max_speed"],
        **_time_of(given),
        **{name: given[name] for name in ("user_epsilon", "moves_per_person", "least_people")},
    )
    if learned.choice is not None:
        echo(_CHOSEN.format(learned.choice.options), err=True)
        if learned.private is None:
            echo(_OF_THE_DATA, err=True)
    if learned.private is not None:
        echo(_TRUE_COUNTS, err=True)
    files = {"model": str(output), "private_list_of_people": str(private_list(output))}
    listed = {"left_out": dropped_facts(learned.dropped)} if as_json else {}
    say("Learned", {**files, **_facts(learned), **_support(learned, smoothing), **listed}, as_json)
    if not as_json:
        say_dropped(learned.dropped)


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


def _support(learned: Learned, smoothing: float | None) -> dict[str, Any]:
    """What decided which moves are possible, and how probable those are that nobody made."""
    shrunk = learned.shrunk
    if learned.private is not None:
        facts = learned.private.facts
        spent = ", ".join(f"{name} {part}" for name, part in facts["spent_on"].items())
        return {**facts, "spent_on": spent}
    if shrunk is None:
        return {"smoothing": smoothing}
    return {
        "highest_speed_kmh": shrunk.kernel.reach.max_speed_kmh,
        "moves_that_were_faster": shrunk.too_fast,
        "moves_of_too_few_people": shrunk.rare,
        "weight_of_the_region_in_moves": shrunk.weight,
    }


def _time_of(given: dict[str, Any]) -> dict[str, Any]:
    """What moves depend on beside the place."""
    zone = given["zone"]
    if zone is None and given["by"] is not None:
        zone = _ZONES.get(given["preset"])
    return {"by": given["by"], "zone": zone, "order": given["order"]}


_STEPS = {"gowalla": 3600.0}
"""A region of the papers → its time step, where that is not a minute: people check in now and then."""

_ZONES = {"geolife": "Asia/Shanghai", "gowalla": "America/Los_Angeles", "cabspotting": "America/Los_Angeles"}
"""A region of the papers → its time zone."""


def _facts(learned: Learned) -> dict[str, Any]:
    return {
        "states": learned.model.size,
        "states_visited": learned.visited,
        "transitions": learned.model.possible_moves,
        "step_seconds": learned.model.step_seconds,
        "users": len(learned.people.trajectories),
        "fixes": learned.people.fixes,
        "fixes_skipped": learned.people.skipped,
        "fixes_at_the_same_time": learned.people.merged,
        "places_on_the_clock": learned.places,
        "of_them_outside_the_region": learned.outside,
        "moves_counted": learned.moves,
        **_extension(learned),
    }


def _extension(learned: Learned) -> dict[str, Any]:
    """How the model varies with time, or looks back."""
    made = learned.extension
    if made is None:
        return {}
    facts: dict[str, Any] = {"it": made.model.in_words}
    if made.model.rhythm is not None:
        facts |= {"zone": made.model.rhythm.zone, "weight_of_all_hours_in_moves": _finite(made.class_weight)}
    if made.model.contexts is not None:
        facts |= {"pairs": len(made.model.contexts.pairs), "weight_of_one_state_in_moves": _finite(made.pair_weight)}
    return facts


def _finite(weight: float) -> float | None:
    return weight if isfinite(weight) else None
