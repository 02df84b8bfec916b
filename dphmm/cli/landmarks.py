"""``dphmm landmarks``: a series or a trajectory released so that the moments that matter are protected together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.adversary import check_picture, draw
from dphmm.cli.inputs import data_of, input_options
from dphmm.cli.moments import Moments, found_moments, moment_options, named_moments
from dphmm.cli.progress import progress
from dphmm.cli.summary import say
from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from dphmm.arrays import FloatArray
    from dphmm.landmarks import Adaptive, LandmarkBudget
    from dphmm.release.settings import ReleaseSettings
    from dphmm.space.trajectory import Trajectory
    from dphmm.tables import TimedTable

SCHEMES = ("skip", "uniform", "adaptive")
_OWN_COLUMNS = ("landmark", "published", "epsilon", "loss")


@dataclass(frozen=True)
class Outcome:
    """What a release under a scheme came to: its budget, what may be published, and the temporal losses."""

    budget: LandmarkBudget
    published: Any
    values: dict[str, FloatArray]
    losses: FloatArray


@click.command()
@click.argument("source", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The releases, .csv or .parquet.")
@click.option("--epsilon", required=True, type=float, help="Spent by all landmarks and any one regular time together.")
@click.option("--scheme", default="adaptive", show_default=True, type=click.Choice(SCHEMES))
@moment_options
@click.option("--sensitivity", type=float, help="SOURCE is a table of values: Laplace noise for this sensitivity.")
@click.option(
    "--unit", type=float, metavar="KM", help="SOURCE is a trajectory: planar Laplace noise, ε for this distance."
)
@click.option("--centre", nargs=2, type=float, metavar="LAT LON", help="With --unit: a public centre of the region.")
@click.option("--step", type=float, metavar="SECONDS", help="With --unit: put the trajectory on this clock first.")
@click.option("--model", type=click.Path(path_type=Path), help="With --policy: a model that 'dphmm learn' wrote.")
@click.option("--policy", help="SOURCE is a trajectory: the engine's noise for this policy, such as utility:1km.")
@click.option("--mechanism", help="With --policy: as of 'dphmm release'. [default: lattice]")
@click.option("--allow-known", is_flag=True, default=None, help="Go on where one state only is possible.")
@click.option("--backward", type=click.Path(path_type=Path), help="For losses: matrix of Pr(time before | time).")
@click.option("--forward", type=click.Path(path_type=Path), help="For losses: matrix of Pr(time after | time).")
@click.option("--rate", default=1.0, show_default=True, help="Adaptive: probability of publishing at the start.")
@click.option("--change", default=0.2, show_default=True, help="Adaptive: how fast the probability changes.")
@click.option("--least-rate", default=0.1, show_default=True, help="Adaptive: it never falls below this.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw budget and loss over time into this new file.")
@click.option("--seed", type=int, help="Repeatable noise, for experiments: the output is not private.")
@input_options
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="Say what was released as JSON.")
def command(source: tuple[str, ...], output: Path, plot: Path | None, as_json: bool, **options: Any) -> None:
    """Release SOURCE so that all landmarks together with any one regular moment are epsilon-private.

    SOURCE is a table (a column of times, others of numbers) with --sensitivity, or trajectories of one person with
    --unit or --policy. The list of landmarks counts as public, and the output names them; finding them with --find
    reads true places and is your own act. The column 'loss' says what the releases tell of all landmarks together with
    each time: under --backward and --forward, or the model of --policy; without them, the sum of the budgets.
    """
    from dphmm.tables import TimedTable, check_output, check_table_name

    check_output(check_table_name(output), options["overwrite"])
    check_picture(plot)
    kinds = [name for name in ("sensitivity", "unit", "policy") if options[name] is not None]
    if len(kinds) != 1:
        raise ConfigurationError("no single noise is given; give one of --sensitivity, --unit and --policy")
    names = ("at", "landmarks", "find", "radius", "minutes", "utc_offset")
    moments = Moments(**{name: options[name] for name in names})
    run = {"sensitivity": _series, "unit": _planar, "policy": _engine}[kinds[0]]
    outcome = run(source, moments, options)
    if options["seed"] is not None:
        click.echo("dphmm: the noise follows from --seed, so this output is not private.", err=True)
    line = outcome.budget.timeline
    table = TimedTable(
        line.timestamps,
        {
            "landmark": line.landmark,
            "published": outcome.published,
            "epsilon": outcome.budget.epsilons,
            "loss": outcome.losses,
            **outcome.values,
        },
    )
    if plot is not None:
        from dphmm.plots.landmarks import budget_and_loss

        draw(plot, lambda ax: budget_and_loss(ax, outcome.budget, outcome.losses))
    table.write(output, options["overwrite"])
    say("Released", _facts(outcome, options, output, plot), as_json)


def _facts(outcome: Outcome, options: dict[str, Any], output: Path, plot: Path | None) -> dict[str, Any]:
    import numpy as np

    worst = float(outcome.losses.max())
    return {
        "scheme": options["scheme"],
        "timestamps": len(outcome.budget.timeline),
        "landmarks": int(outcome.budget.timeline.landmark.sum()),
        "published": int(np.asarray(outcome.published).sum()),
        "epsilon": options["epsilon"],
        "spent_by_landmarks_and_one_more": float(outcome.budget.spent),
        "loss_greatest": worst if np.isfinite(worst) else None,
        "loss_is_bounded": bool(np.isfinite(worst)),
        "private": options["seed"] is None,
        "output": str(output),
        "plot": None if plot is None else str(plot),
    }


def _scheme(times: Any, landmarks: Any, scale: float, options: dict[str, Any]) -> LandmarkBudget | Adaptive:
    import numpy as np

    from dphmm.landmarks import Adaptive, skip, uniform

    if options["scheme"] != "adaptive":
        return {"skip": skip, "uniform": uniform}[options["scheme"]](times, landmarks, options["epsilon"])
    seed = options["seed"]
    coins = None if seed is None else np.random.default_rng([seed, 1])  # not the noise's own stream
    rates = options["rate"], options["change"], options["least_rate"]
    return Adaptive(times, landmarks, options["epsilon"], scale, *rates, rng=coins)


def _series(source: tuple[str, ...], moments: Moments, options: dict[str, Any]) -> Outcome:
    from dphmm.landmarks import laplace, leakage, release_series
    from dphmm.tables import TimedTable

    for name in ("centre", "step", "model", "mechanism"):
        if options[name] is not None:
            raise ConfigurationError(f"--{name} is for trajectories; leave it out with --sensitivity")
    if len(source) != 1 or moments.find is not None:
        raise ConfigurationError("--sensitivity takes one table, with landmarks that are named; --find needs places")
    table: TimedTable = TimedTable.read(source[0])
    clash = [name for name in table.columns if name in _OWN_COLUMNS]
    if clash:
        raise ConfigurationError(f"{source[0]}: column {clash[0]!r} is one of the output's own; call it otherwise")
    noise = laplace(options["sensitivity"], options["seed"])
    landmarks = named_moments(moments, table.times)
    scheme = _scheme(table.times, landmarks, options["sensitivity"], options)
    known = _matrices(options)
    out = release_series(table.matrix(list(table.columns)), scheme, noise)
    values = {name: out.values[:, at] for at, name in enumerate(table.columns)}
    losses = leakage(table.times, landmarks, out.budget.epsilons, *known)
    return Outcome(out.budget, out.published, values, losses)


def _matrices(options: dict[str, Any]) -> tuple[Any, Any]:
    from dphmm.leakage.files import read_matrix
    from dphmm.leakage.loss_function import as_loss_function

    back, forth = (
        None if options[name] is None else as_loss_function(read_matrix(options[name]), f"{name} matrix")
        for name in ("backward", "forward")
    )
    return back, forth


def _one_person(source: tuple[str, ...], options: dict[str, Any]) -> Trajectory:
    people = data_of(source, options).read().trajectories
    if len(people) > 1:
        raise ConfigurationError(f"there are {len(people)} people; say whose landmarks with --users, one name")
    return people[0]


def _no_matrices(options: dict[str, Any], why: str) -> None:
    for name in ("backward", "forward"):
        if options[name] is not None:
            raise ConfigurationError(f"--{name} does not go with {why}; leave it out")


def _planar(source: tuple[str, ...], moments: Moments, options: dict[str, Any]) -> Outcome:
    from dphmm.landmarks import leakage, planar_laplace, release_series
    from dphmm.space.projection import LocalProjection

    _no_matrices(options, "--unit: its budgets are about places one unit apart, not about any two")
    if options["centre"] is None:
        raise ConfigurationError("--unit needs --centre LAT LON: a place near, the same whoever the person is")
    if options["model"] is not None or options["mechanism"] is not None:
        raise ConfigurationError("--model and --mechanism go with --policy; leave them out with --unit")
    noise = planar_laplace(options["unit"], options["seed"])
    plane = LocalProjection(*options["centre"])
    person: Any = _one_person(source, options)
    track = person if options["step"] is None else person.resample(options["step"])
    points = plane.to_plane(track.latitude, track.longitude)
    landmarks = _landmarks(moments, track.times, points)
    scheme = _scheme(track.times, landmarks, options["unit"], options)
    out = release_series(points, scheme, noise)
    losses = leakage(track.times, landmarks, out.budget.epsilons)
    return Outcome(out.budget, out.published, _degrees(out.values, plane), losses)


def _landmarks(moments: Moments, times: Any, points: FloatArray) -> Any:
    named = named_moments(moments, times)
    return named if moments.find is None else times[found_moments(moments, times, points)]


def _degrees(points: FloatArray, plane: Any) -> dict[str, FloatArray]:
    """Degrees of points of the plane; NaN where a draw lies beyond the plane's image of the Earth."""
    import numpy as np

    from dphmm.errors import CoordinateError

    found = np.full(points.shape, np.nan)
    for row, point in enumerate(points):
        try:
            found[row] = plane.to_latlon(point)[0]
        except CoordinateError:
            continue
    return {"latitude": found[:, 0], "longitude": found[:, 1]}


def _engine(source: tuple[str, ...], moments: Moments, options: dict[str, Any]) -> Outcome:
    from dphmm.evaluation.landmark_release import losses_on_clock, noise_scale, release_places
    from dphmm.jobs.models import load_model
    from dphmm.markov import reverse
    from dphmm.space.states import OUTSIDE

    _no_matrices(options, "--policy: the model says how people move")
    if options["model"] is None:
        raise ConfigurationError("--policy needs --model; make one with 'dphmm learn'")
    for name in ("centre", "step"):
        if options[name] is not None:
            raise ConfigurationError(f"--{name} goes with --unit; the model has its own with --policy")
    model, settings = load_model(options["model"]), _settings(options)
    space, releaser = model.space, settings.engine(model, options["seed"])
    person = _one_person(source, options)
    track = person.resample(model.step)
    states = space.locate(track.latitude, track.longitude)
    inside = states != OUTSIDE
    if not inside.any():
        raise ConfigurationError("no place of the data lies in the model's region; learn a model of that region")
    times, slots = track.times[inside], track.slots[inside]
    points = space.projection.to_plane(track.latitude[inside], track.longitude[inside])
    landmarks = _landmarks(moments, times, points)
    scale = noise_scale(releaser) if options["scheme"] == "adaptive" else 1.0
    scheme = _scheme(times, landmarks, scale, options)
    for true in progress([states[inside]], "Releasing"):
        out = release_places(releaser, true, slots, scheme)
    past = reverse(model.transition, model.initial)
    line = out.series.budget.timeline
    losses = losses_on_clock(line, slots, out.costs, past, model.transition)
    return Outcome(out.series.budget, out.series.published, _degrees(out.series.values, space.projection), losses)


def _settings(options: dict[str, Any]) -> ReleaseSettings:
    from dphmm.release.settings import ReleaseSettings

    keys = ("policy", "epsilon", "mechanism", "allow_known")
    return ReleaseSettings.from_dict({name: options[name] for name in keys if options[name] is not None})
