"""``dphmm landmarks``: a series or a trajectory released so that the moments that matter are protected together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.console import FILE, PATH, Once, progress, say, warn_of_seed
from dphmm.cli.inputs import (
    READING,
    data_of,
    input_options,
    options,
    own_model_option,
    refuse,
    seed_option,
    settings_of,
)
from dphmm.cli.leakage import check_picture, draw
from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from dphmm.jobs.landmarks import Landmarked, Moments

_rules = click.Choice(["stays", "repeated", "home", "work", "home-and-work"])
_moment_options = options(
    click.option("--at", multiple=True, metavar="TIME", help="A landmark; one of the timestamps. Repeat it."),
    click.option("--landmarks", type=PATH, metavar="FILE", help="Landmarks, one time a line."),
    click.option("--find", type=_rules, help="Find landmarks in the trajectory: your own act."),
    click.option("--radius", default=0.2, show_default=True, metavar="KM", help="How far a stay or place reaches."),
    click.option("--minutes", default=20.0, show_default=True, help="How long a stay lasts at least."),
    click.option("--utc-offset", default=0.0, metavar="HOURS", help="Local time minus UTC, for home and work."),
)


@click.command(cls=Once)
@click.argument("source", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--output", required=True, type=FILE, help="The releases, .csv or .parquet.")
@click.option("--epsilon", required=True, type=float, help="Spent by all landmarks and any one regular time together.")
@click.option("--scheme", default="adaptive", show_default=True, type=click.Choice(["skip", "uniform", "adaptive"]))
@_moment_options
@click.option("--sensitivity", type=float, help="SOURCE is a table of values: noise for this sensitivity.")
@click.option("--unit", type=float, metavar="KM", help="SOURCE is a trajectory: noise with ε for this distance.")
@click.option("--centre", nargs=2, type=float, metavar="LAT LON", help="With --unit: a public centre of the region.")
@click.option(
    "--bbox", nargs=4, type=float, metavar="S W N E", help="Of trajectories: values outside are moved to its border."
)
@click.option("--step", type=float, metavar="SECONDS", help="With --unit: put the trajectory on this clock first.")
@click.option("--model", type=PATH, help="With --policy: a model that 'dphmm learn' wrote.")
@click.option("--policy", help="SOURCE is a trajectory: the engine's noise for this policy, such as utility:1km.")
@click.option(
    "--mechanism",
    help="lattice (exact on a computer); also laplace with --sensitivity, planar-laplace with --unit, and what "
    "'dphmm release' has with --policy. [default: lattice]",
)
@click.option(
    "--spacing",
    help="For lattice: its step, kilometres or the values' unit. [default: 1/1000; as much of --sensitivity]",
)
@click.option("--outside", help="With --policy: of places outside the region, border or omit. [default: border]")
@own_model_option
@click.option("--allow-known", is_flag=True, default=None, help="Go on where only one state is possible.")
@click.option("--backward", type=PATH, help="For losses: matrix of Pr(time before | time).")
@click.option("--forward", type=PATH, help="For losses: matrix of Pr(time after | time).")
@click.option("--initial", type=PATH, help="For losses: first distribution; with --forward.")
@click.option("--rate", default=1.0, show_default=True, help="Adaptive: probability of publishing at the start.")
@click.option("--change", default=0.2, show_default=True, help="Adaptive: how fast the probability changes.")
@click.option("--least-rate", default=0.1, show_default=True, help="Adaptive: it never falls below this.")
@click.option("--plot", type=FILE, help="Draw budget and loss over time into this new file.")
@click.option("--certificate", type=FILE, help="What the promise follows from, for scripts/dphmm-verify.")
@seed_option
@input_options
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="Say what was released as JSON.")
def landmarks_command(source: tuple[str, ...], output: Path, plot: Path | None, as_json: bool, **given: Any) -> None:
    """Release SOURCE so that budgets of all landmarks and any one regular moment stay within epsilon.

    SOURCE is a table (a column of times, others of numbers) with --sensitivity, or trajectories of one person with
    --unit or --policy. The list of landmarks counts as public, and the output names them; finding them with --find
    reads true places and is your own act.

    That makes them epsilon-private together where the data of different times are independent. Where they are not, the
    column 'loss' bounds what is told of all landmarks together with each time: under --backward and --forward, under
    --forward from --initial, or under the model of --policy. Without them it is the sum of the budgets.
    """
    from dphmm.tables import check_table_name

    certificate, overwrite = given["certificate"], given["overwrite"]
    check_table_name(output)
    check_picture(plot, overwrite)
    kinds = [name for name in ("sensitivity", "unit", "policy") if given[name] is not None]
    if len(kinds) != 1:
        raise ConfigurationError("no single noise is given; give one of --sensitivity, --unit and --policy")
    warn_of_seed(given["seed"])
    for kind in progress(kinds, "Releasing"):
        done = _released(kind, source, given)
    if plot is not None:
        from dphmm.plots.curves import budget_and_loss

        draw(plot, lambda ax: budget_and_loss(ax, done.series.budget, done.losses), overwrite)
    done.table.write(output, overwrite)
    if certificate is not None:
        done.certify(certificate, overwrite)
    written = {"output": output, "plot": plot, "certificate": certificate}
    files = {name: None if path is None else str(path) for name, path in written.items()}
    say("Released", {**done.facts(), **files}, as_json, done.dropped, "private_left_out")


def _released(kind: str, source: tuple[str, ...], given: dict[str, Any]) -> Landmarked:
    from dphmm.jobs.landmarks import Scheme, landmark_engine, landmark_planar, landmark_series

    scheme = Scheme(given["scheme"], given["rate"], given["change"], given["least_rate"])
    more = {"landmarks": _moments(given), "scheme": scheme, "seed": given["seed"]}
    epsilon, matrices = given["epsilon"], ("backward", "forward", "initial")
    noise = {name: given[name] for name in ("mechanism", "spacing") if given[name] is not None}
    if kind == "sensitivity":
        of_places = ("centre", "bbox", "step", "model", "outside", "allow_own_model", *READING)
        refuse(of_places, "is for trajectories, not for --sensitivity")
        if len(source) != 1 or given["find"] is not None:
            raise ConfigurationError(
                "--sensitivity takes one table, with landmarks that are named; --find needs places"
            )
        known = {name: given[name] for name in matrices}
        return landmark_series(source[0], given["sensitivity"], epsilon, **more, **noise, **known)
    data = data_of(source, given)
    if kind == "unit":
        refuse(matrices, "does not go with --unit: its budgets are about places one unit apart, not about any two")
        if given["centre"] is None:
            raise ConfigurationError("--unit needs --centre LAT LON: a place near, the same for all people")
        refuse(("model", "outside", "allow_own_model"), "goes with --policy, not with --unit")
        step = given["step"]
        more["bbox"] = given["bbox"]
        return landmark_planar(data, given["unit"], given["centre"], epsilon, step_seconds=step, **more, **noise)
    refuse(matrices, "does not go with --policy: the model says how people move")
    if given["model"] is None:
        raise ConfigurationError("--policy needs --model; make one with 'dphmm learn'")
    refuse(("centre", "step"), "goes with --unit: the model has its own")
    own = bool(given["allow_own_model"])
    return landmark_engine(data, given["model"], settings_of(given), allow_own_model=own, bbox=given["bbox"], **more)


def _moments(given: Mapping[str, Any]) -> Moments:
    from dphmm.jobs.landmarks import Find

    if sum((bool(given["at"]), given["landmarks"] is not None, given["find"] is not None)) > 1:
        raise ConfigurationError("--at, --landmarks and --find exclude each other; use one of them")
    if given["find"] is not None:
        return Find(given["find"], given["radius"], given["minutes"], given["utc_offset"])
    moments: Moments = given["at"] if given["landmarks"] is None else given["landmarks"]
    return moments
