"""``dphmm release``: private locations for files, or for a stream on standard input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.inputs import People, columns_of, input_options, names_of, read_people
from dphmm.cli.progress import progress
from dphmm.cli.session import open_sessions, session_options
from dphmm.cli.summary import say
from dphmm.errors import AlreadyKnownError, ConfigurationError

if TYPE_CHECKING:
    from dphmm.arrays import FloatArray
    from dphmm.cli.job import ReleaseJob
    from dphmm.markov.model import MarkovModel
    from dphmm.release.engine import Releaser
    from dphmm.release.recorded import RecordedPeople
    from dphmm.release.trajectory import TimedDiagnostics, TimedRelease
    from dphmm.space.states import StateSpace
    from dphmm.writers.table import ReleaseTable

POLICY_HELP = "What must stay indistinguishable: utility:1km, complete, transition, categorical:LAYER.geojson, …"


@click.command()
@click.argument("data", nargs=-1, type=click.Path())
@click.option("-o", "--output", type=click.Path(), help="The releases: .gpkg, .geojson, .csv, .gpx or .parquet.")
@click.option("--model", type=click.Path(), help="A model that 'dphmm learn' wrote.")
@click.option("--policy", help=POLICY_HELP)
@click.option("--epsilon", type=float, help="The privacy budget of each release.")
@click.option(
    "--mechanism",
    help="lattice (exact on a computer), k-norm, laplace, planar-isotropic, planar-laplace. [default: lattice]",
)
@click.option("--repair", help="How exposed states get partners: greedy, sequential or exact. [default: exact]")
@click.option("--objective", help="What the repair minimises: volume or error. [default: volume]")
@click.option("--membership", help="How membership in a hull is decided: halfspace or qp. [default: halfspace]")
@click.option("--delta", type=float, help="Hide among the most probable states of mass 1 - delta alone.")
@click.option("--allow-known", is_flag=True, default=None, help="Go on where one state only is possible.")
@click.option("--summary", type=click.Path(), metavar="FILE", help="A .csv with one row per user.")
@click.option(
    "--private-diagnostics", type=click.Path(), metavar="FILE", help="Errors and true states, for yourself alone."
)
@session_options
@click.option("--seed", type=int, help="Repeatable noise, for experiments: the output is not private.")
@click.option("--job", type=click.Path(path_type=Path), metavar="FILE", help="A TOML file with these options as keys.")
@input_options
@click.option("--overwrite", is_flag=True, default=None, help="Replace outputs that exist.")
@click.option("--json", "as_json", is_flag=True, help="Say what was released as JSON.")
def command(job: Path | None, as_json: bool, **options: Any) -> None:
    """Release private locations for the trajectories in DATA.

    Without DATA, fixes are read from standard input as JSON lines such as {"user": "a", "time":
    "2024-03-07T09:00:00Z", "latitude": 45.01, "longitude": -30.01}, and each is answered by one line on standard
    output at once.
    """
    from dphmm.cli.job import load_job

    options["format"] = options.pop("format_")
    options["columns"] = columns_of(options["columns"])
    for key in ("users", "exclude_users"):
        options[key] = names_of(options[key])
    what = load_job(job, options)
    if what.seed is not None:
        click.echo("dphmm: the noise follows from --seed, so this output is not private.", err=True)
    if what.data:
        _release_files(what, as_json)
    else:
        _release_stream(what)


def prepare(job: ReleaseJob) -> tuple[MarkovModel, StateSpace, Callable[[], Releaser]]:
    """The model, its states, and a maker of engines that share nothing but what is public.

    Raises
    ------
    ConfigurationError
        When the model does not say what its states are or how long its steps.
    DphmmError
        As the model's file, the policy and the engine say.
    """
    from dphmm.arrays import RandomSource, random_source
    from dphmm.geometry.measurements import Measurements
    from dphmm.markov.model import MarkovModel
    from dphmm.policy.expression import parse_policy
    from dphmm.release.engine import Releaser

    model = MarkovModel.load(job.model)
    space = model.states
    if space is None or model.step_seconds is None:
        raise ConfigurationError(f"{job.model}: the model has no map or no time step; make one with 'dphmm learn'")
    mechanism = job.mechanism or "lattice"
    measurements = Measurements(measured(space, mechanism))
    policy = parse_policy(job.policy, space, model.transition)
    source: RandomSource = random_source(job.seed)

    def start() -> Releaser:
        return Releaser(
            model,
            measurements,
            policy,
            job.epsilon,
            mechanism,
            job.repair,
            job.delta,
            source,
            objective=job.objective,
            membership=job.membership,
            allow_known=job.allow_known,
        )

    return model, space, start


def measured(space: StateSpace, mechanism: str) -> FloatArray:
    """What is measured in each state, ``(N, 2)`` kilometres: its point, for exact noise rounded to a whole metre.

    The rounded points are as public as the states. On a grid of whole metres nothing is rounded.
    """
    return space.points.round(3) if mechanism == "lattice" else space.points


def release_people(
    people: People,
    model: MarkovModel,
    space: StateSpace,
    releaser: Releaser,
    private: Callable[[TimedDiagnostics], None] | None = None,
    recorded: RecordedPeople | None = None,
) -> list[TimedRelease]:
    """Everyone's releases, person by person, each from a belief of their own, in recorded sessions where given.

    Raises
    ------
    ConfigurationError
        When no place lies in the model's region.
    AlreadyKnownError
        When one state only is possible at some time.
    """
    from dphmm.release.trajectory import release_trajectory

    made: list[TimedRelease] = []
    tracks = [one.resample(float(model.step_seconds or 0)) for one in people.trajectories]

    def everything() -> Any:
        for track in tracks:
            try:
                if recorded is not None:
                    yield from recorded.trajectory(track)
                else:
                    yield from release_trajectory(releaser, space, track, private=private)
            except AlreadyKnownError as problem:
                raise AlreadyKnownError(f"user {track.user}: {problem}, with --allow-known") from None

    made.extend(progress(everything(), "Releasing", sum(len(track) for track in tracks)))
    if not made:
        raise ConfigurationError("no place of the data lies in the model's region; learn a model of that region")
    return made


def _release_files(job: ReleaseJob, as_json: bool) -> None:
    from dphmm.writers.diagnostics import check_private_name, write_diagnostics
    from dphmm.writers.formats import check_format, write_releases
    from dphmm.writers.output import check_output
    from dphmm.writers.summary import write_summary
    from dphmm.writers.table import ReleaseTable

    if job.output is None:
        raise ConfigurationError("no output is given; name one with -o, such as -o releases.gpkg")
    check_output(check_format(job.output), job.overwrite)
    if job.summary is not None:
        check_output(job.summary, job.overwrite)
    if job.private_diagnostics is not None:
        check_output(check_private_name(job.private_diagnostics), job.overwrite)
    model, space, start = prepare(job)
    releaser = start()
    people = read_people(job.data, job.format, job.columns, job.users, job.exclude_users, job.skip_bad)
    diagnostics: list[TimedDiagnostics] = []
    keep = diagnostics.append if job.private_diagnostics is not None else None
    with open_sessions(job, start, space) as recorded:
        table = ReleaseTable.of(release_people(people, model, space, releaser, keep, recorded))
    write_releases(job.output, table, job.overwrite)
    if job.summary is not None:
        write_summary(job.summary, table, job.overwrite)
    if job.private_diagnostics is not None:
        write_diagnostics(job.private_diagnostics, diagnostics, job.overwrite)
    say("Released", facts_of(table, people, job), as_json)


def facts_of(table: ReleaseTable, people: People, job: ReleaseJob) -> dict[str, Any]:
    """What a release amounts to, from public things alone."""
    import numpy as np

    return {
        "releases": len(table),
        "users": len(set(table["user"].tolist())),
        "policy": job.policy,
        "mechanism": str(table["mechanism"][0]),
        "epsilon_of_each": job.epsilon,
        "epsilon_of_the_user_with_most": max(
            float(table["epsilon"][table["user"] == user].sum()) for user in set(table["user"].tolist())
        ),
        "expected_error_m_median": float(np.median(table["expected_error_m"])),
        "possible_states_least": int(table["possible_states"].min()),
        "least_protection": int(table["least_protection"].min()),
        "edges_added_most": int(table["edges_added"].max()),
        "releases_already_known": int(table["already_known"].sum()),
        "fixes_skipped": people.skipped,
        "private": job.seed is None,
        "output": str(job.output),
        "private_diagnostics": None if job.private_diagnostics is None else str(job.private_diagnostics),
    }


def _release_stream(job: ReleaseJob) -> None:
    from dphmm.cli.stream import answer_lines
    from dphmm.release.stream import ReleaseStream

    for key in ("output", "summary", "private_diagnostics"):
        if getattr(job, key) is not None:
            raise ConfigurationError(f"--{key.replace('_', '-')} needs DATA; without it, lines go to standard output")
    model, space, start = prepare(job)
    start()
    with open_sessions(job, start, space) as recorded:
        answer_lines(recorded or ReleaseStream(start, space, float(model.step_seconds or 0)), job.skip_bad)
