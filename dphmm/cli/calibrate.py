"""``dphmm calibrate``: which epsilon, from metres, odds or a day's spending."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli import inputs
from dphmm.cli.attack import say_channels
from dphmm.cli.console import FILE, Once, echo, progress, say, say_json, say_table, shown, warn
from dphmm.cli.leakage import check_picture
from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from dphmm.jobs.calibrations import Calibrated, EventLimited

_LENGTHS = ("error", "estimate_error", "adversary_error")


@click.command(cls=Once, name="calibrate")
@click.option("--model", type=click.Path(), help="A model that 'dphmm learn' wrote.")
@click.option("--error", metavar="LENGTH", help="The error of a release, root mean square: 300m, 1.2km.")
@click.option("--estimate-error", metavar="LENGTH", help="The expected error of the estimate, on average.")
@click.option("--adversary-error", metavar="LENGTH", help="That of an adversary's best guess in hindsight.")
@click.option(
    "--certainty",
    type=float,
    metavar="P",
    help="No place becomes more probable than this to a reader with the model, whatever is drawn.",
)
@click.option(
    "--odds",
    type=float,
    metavar="FACTOR",
    help="The odds of no place rise by more than this factor, whatever is drawn.",
)
@click.option("--event", metavar="TEXT", help="--certainty and --odds are about this instead of places.")
@click.option(
    "--share", type=float, metavar="P", help="With --event: the limit may be passed for this share of those who do it."
)
@click.option("--first", metavar="TIME", help="When the first release is, such as 2024-03-04T08:00Z; for dates.")
@click.option("--day-epsilon", type=float, help="What releases at every step may spend within 24 hours.")
@click.option(
    "--over", metavar="TIME", help="The time looked at: 8h, 1d. [default: 1d; for certainty and odds one release]"
)
@click.option(
    "--people",
    type=click.IntRange(0, 100_000),
    help="Simulated people. [default: 16, and as many as a target of an error needs]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Which people are simulated.")
@click.option("--row", metavar="E,E,…", help="Other budgets to give the same figures for.")
@click.option(
    "--against",
    type=click.Choice(["public", "known"]),
    help="The adversary of targets: one who knows the model, or each person's habits. [default: known with --known]",
)
@click.option("--known", multiple=True, type=click.Path(), help="Earlier data of people, which somebody has.")
@inputs.known_format_options
@inputs.noise_options
@click.option(
    "--plot", type=FILE, help="Attack simulated or known people; draw errors by epsilon and the frontier; needs --row."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def calibrate_command(**given: Any) -> None:
    """Which epsilon, for a model and a policy, and what it achieves.

    Give one target or several; the epsilon found is the largest that meets all, rounded down. The error of a release,
    --certainty, --odds and --day-epsilon follow by formula. --estimate-error and --adversary-error are averages over
    simulated people who move as the model says, with a 99 % interval, a release at every step. Certainty and odds are
    limits for whatever is drawn, of one release or, with --over, of all within that time; limits for a day are strict.

    With --known, errors and certainty are held against somebody who has earlier data of those people and knows by which
    habits each moves; simulated people move by them.

    With --event 'at:clinic.geojson between 3 and 9' both are about the event: of one release, found by looking at all
    its outputs; with --over of all within that time; with --share 0.1 of all up to the event's end, for nine in ten of
    the people who do it, by simulation. What --never-surer does instead is said beside it.
    """
    from dphmm.jobs.calibrations import BESIDE, Targets, calibrate

    check_picture(given["plot"])
    if given["model"] is None:
        raise ConfigurationError("the model is missing; give --model with one that 'dphmm learn' wrote")
    if given["epsilon"] is not None:
        raise ConfigurationError("--epsilon is what a calibration finds; leave it out, or give it in --row")
    asked: dict[str, Any] = {name: given[name] for name in ("certainty", "odds", "day_epsilon", "event", "share")}
    for name in _LENGTHS:
        asked[name] = None if given[name] is None else inputs.kilometres_of(given[name], f"--{name.replace('_', '-')}")
    known = inputs.true_data(given, "known")
    if given["against"] == "known" and known is None:
        raise ConfigurationError("--against known holds targets against who has earlier data; give it with --known")
    row = _row(given["row"])
    if given["plot"] is not None and len(row) < 2:
        raise ConfigurationError("--plot draws a row of budgets; give at least two in --row, such as 0.01,0.1,1")
    found = calibrate(
        given["model"],
        inputs.settings_of({**given, "epsilon": 1.0, **dict.fromkeys(inputs.AIMS)}),
        Targets(**asked),
        over_seconds=None if given["over"] is None else inputs.seconds_of(given["over"], "--over"),
        people=given["people"],
        row=row,
        seed=given["seed"],
        first=None if given["first"] is None else first_slot(given["model"], given["first"]),
        known=None if given["against"] == "public" else known,
        beside=() if given["plot"] is None else BESIDE,
        watch=progress,
    )
    if known is not None:
        echo("dphmm: true places went into this calibration; keep it to yourself.", err=True)
    if given["as_json"]:
        say_json(found.facts())
    else:
        _print(found)
    if given["plot"] is not None:
        from dphmm.plots.attack import calibration_figure
        from dphmm.plots.figures import save_picture

        save_picture(calibration_figure(found), given["plot"], private=known is not None)
    warn(found.warnings())


def first_slot(model: str, text: str) -> int:
    """The time step of a model that an instant lies in."""
    from datetime import datetime

    from dphmm.jobs.models import load_model
    from dphmm.release.session import slot_number

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"--first is {text!r}; give a time such as 2024-03-04T08:00Z") from None
    return slot_number(moment if moment.tzinfo else moment.replace(tzinfo=UTC), load_model(model).step)


def _row(text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in (text or "").split(",") if part.strip())
    except ValueError:
        raise ConfigurationError(
            f"--row is {text!r}; give budgets with commas between them, such as 0.01,0.1,1"
        ) from None


def _print(found: Calibrated) -> None:
    facts = found.facts()
    achieved: dict[str, Any] = facts["achieved"]
    stated: dict[str, Any] = {"epsilon": repr(facts["epsilon"]), "joined_places": facts["joined_places"]}
    for name, epsilon in found.by_target.items():
        stated[f"largest for {name}"] = f"{epsilon:.6g}"
    if achieved["released_error_m"] is not None:
        stated["released error m"] = achieved["released_error_m"]
    for key in ("estimate_error_m", "adversary_error_m_at_once", "adversary_error_m_in_hindsight"):
        if key in achieved:
            stated[key] = f"{shown(achieved[key])} ± {shown(achieved[f'{key}_give_or_take'])}"
    stated["adversary_knows"] = facts["adversary_knows"]
    stated["adversary_error_m_without_releases"] = facts["adversary_error_m_without_releases"]
    key = "adversary_certainty_in_hindsight"
    if key in achieved:
        stated[key] = f"{achieved[key]:.3g} ± {achieved[f'{key}_give_or_take']:.2g}"
    stated |= {"epsilon_an_hour": achieved["epsilon_an_hour"], "epsilon_a_day": achieved["epsilon_a_day"]}
    if {"certainty", "odds"} & found.by_target.keys():
        one = "each release" if found.event is None else "one release, where no other is made"
        together = one if found.guaranteed == 1 else f"all of {found.guaranteed:,} releases together"
        stated[f"{'certainty and odds are' if found.event is None else 'the event is'} limited for"] = (
            f"{together}, whatever is drawn"
            if found.targets.share is None
            else f"all but {found.targets.share:.3g} of those who do it, by simulated people"
        )
    if found.people:
        stated["simulated"] = f"{found.people} people, {found.releases:,} releases each; intervals of 99 %"
    if found.event is not None:
        stated |= _of_event(found.event, facts)
    say("Calibrated", stated, as_json=False)
    if found.row:
        _print_row(found)
    if found.tried:
        say_channels(found.tried, f"Given away of {found.tried_on}", facts["which_to_take"])
    echo(f"Run: {found.command}")
    if found.capped_command is not None:
        echo(f"Or, never surer whatever is drawn: {found.capped_command}")


def _of_event(limited: EventLimited, facts: dict[str, Any]) -> dict[str, Any]:
    """What a table says of a limit on an event."""
    stated: dict[str, Any] = {
        "event": facts["event"],
        "event probability before": f"{limited.prior:.4g}",
        "largest for one release": f"{limited.one_release:.4g}",
    }
    if limited.share is not None:
        most, margin = (facts["achieved"][f"event_probability_most{end}"] for end in ("", "_give_or_take"))
        stated["event probability most, of those who do it"] = f"{most:.3g} ± {margin:.2g} on average"
        stated[f"share of those above {limited.cap.probability:.4g}"] = (
            f"{limited.share:.3g} of the simulated, at most {limited.share_most:.3g} of all (99 %)"
        )
    if limited.capped is not None:
        withheld, error = facts["never_surer_moments_withheld"], shown(facts["never_surer_estimate_error_m"])
        stated["with --never-surer instead"] = (
            f"{facts['never_surer_event_probability_most']:.3g} at most; {withheld:.0%} of the moments withheld, "
            f"estimate error {error} m, epsilon {shown(facts['never_surer_epsilon'])} in all "
            f"({limited.capped.people} people who do it)"
        )
    return stated


def _print_row(found: Calibrated) -> None:
    everyone = sorted({one.epsilon: one for one in (*found.row, found.achieved)}.items())
    names = ("estimate", "online", "hindsight", "certainty") if found.people else ()
    rows = []
    for epsilon, one in everyone:
        told = [] if one.simulation is None else [one.simulation.figure(name).mean for name in names]
        cells = [
            f"{value:.3g}" if name == "certainty" else shown(1000 * value)
            for name, value in zip(names, told, strict=True)
        ]
        spent = "" if one.day_epsilon is None else shown(one.day_epsilon)
        rows.append(
            [f"{epsilon:.4g}", "" if one.released_error is None else shown(1000 * one.released_error), *cells, spent]
        )
    what = ("estimate (m)", "adversary at once (m)", "in hindsight (m)", "certainty in hindsight") if names else ()
    say_table(("epsilon", "release (m)", *what, "epsilon a day"), rows)
