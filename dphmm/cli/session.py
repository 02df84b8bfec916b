"""``dphmm session``: what durable sessions hold and have spent; and the options by which a release keeps one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.summary import say
from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from dphmm.cli.job import ReleaseJob
    from dphmm.release.engine import Releaser
    from dphmm.release.recorded import RecordedPeople
    from dphmm.release.store import SessionStore, StoredRelease, StoredSession
    from dphmm.space.states import StateSpace

SESSION_OPTIONS = (
    click.option("--session", type=click.Path(), metavar="FILE", help="Keep a durable session for every user here."),
    click.option("--limit-epsilon", type=float, help="With --session: what a user may spend in all."),
    click.option(
        "--limit-constrained", type=float, help="With --session: the constrained-DP level that a user may reach."
    ),
    click.option("--limit-window-epsilon", type=float, help="With --session: what a user may spend in a window of …"),
    click.option("--limit-window-steps", type=int, help="… so many consecutive time steps."),
)


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options by which releases go through durable sessions."""
    for option in reversed(SESSION_OPTIONS):
        command = option(command)
    return command


@contextmanager
def open_sessions(job: ReleaseJob, start: Callable[[], Releaser], space: StateSpace) -> Iterator[RecordedPeople | None]:
    """The sessions that a job names, closed at the end; None where it names none.

    Raises
    ------
    ConfigurationError
        When limits are given without a session, or private diagnostics with one.
    DataFileError, OutputError
        As the file of sessions says.
    """
    limits = (job.limit_epsilon, job.limit_constrained, job.limit_window_epsilon, job.limit_window_steps)
    given = any(limit is not None for limit in limits)
    if job.session is None:
        if given:
            raise ConfigurationError("limits need a session to be kept in; name a file with --session")
        yield None
        return
    if job.private_diagnostics is not None:
        raise ConfigurationError("--private-diagnostics need the truth, which a session does not keep; leave one out")
    from dphmm.release.ledger import Limits
    from dphmm.release.recorded import RecordedPeople

    with RecordedPeople(job.session, start, space, Limits(*limits) if given else None) as recorded:
        yield recorded


@click.group()
def command() -> None:
    """List, show and export the durable sessions in a file that 'dphmm release --session' keeps."""


@command.command("list")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def list_(file: Path, as_json: bool) -> None:
    """Every session of FILE: its name, its releases and what they cost."""
    with _store(file) as store:
        for session in _sessions(store, ()):
            cost = _cost(list(store.releases(session.number)))
            if as_json:
                click.echo(json.dumps({"name": session.name, **cost}, ensure_ascii=False))
            else:
                click.echo(f"{session.name}\t{cost['releases']} releases\tepsilon {cost['epsilon']:g}")


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def show(file: Path, name: str, as_json: bool) -> None:
    """What the session NAME of FILE promised, may spend and has spent. Every record is checked on the way."""
    with _store(file) as store:
        (session,) = _sessions(store, (name,))
        releases = list(store.releases(session.number))
        belief = store.progress(session.number).belief
    facts: dict[str, Any] = {"name": name, **_cost(releases)}
    facts["possible_states"] = None if belief is None else int(belief.support.sum())
    facts |= {f"limit_{key}": value for key, value in vars(session.limits).items()}
    window = session.limits.window_steps
    facts["epsilon_of_the_dearest_window"] = None if window is None else _dearest_window(releases, window)
    for query, terms in session.terms.items():
        prefix = "" if len(session.terms) == 1 else f"{query}_"
        facts |= {prefix + ("epsilon_of_each" if part == "epsilon" else part): value for part, value in terms.items()}
    say(f"Session {name}", facts, as_json)


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("names", nargs=-1)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="A .jsonl of all records; with --model, "
    "a .gpkg, .geojson, .csv, .gpx or .parquet of places.",
)  # fmt: skip
@click.option("--model", type=click.Path(path_type=Path), help="The model of the sessions, to tell places and times.")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
def export(file: Path, names: tuple[str, ...], output: Path, model: Path | None, overwrite: bool) -> None:
    """Write the releases of the sessions NAMES of FILE, or of all.

    A line of the .jsonl is {"session": …, "slot": …, "query": …, "record": {…}}; slots are counted in steps of the
    model from 1970, UTC, where times were given.
    """
    from dphmm.writers.output import check_output, write_text

    check_output(output, overwrite)
    with _store(file) as store:
        sessions = _sessions(store, names)
        releases = [(session, release) for session in sessions for release in store.releases(session.number)]
    if model is not None:
        _export_places(releases, output, model, overwrite)
    elif output.suffix.lower() == ".jsonl":
        write_text(output, "".join(f"{_line(session.name, release)}\n" for session, release in releases), overwrite)
    else:
        raise ConfigurationError(f"{output} would hold places, which need the map: give --model, or name a .jsonl")
    say("Exported", {"sessions": len(sessions), "releases": len(releases), "output": str(output)}, False)


def _line(name: str, release: StoredRelease) -> str:
    about = {"session": name, "slot": release.slot, "query": release.query, "record": vars(release.record)}
    if release.record.constrained_factor == float("inf"):
        about["record"] = {**vars(release.record), "constrained_factor": None}
    return json.dumps(about, ensure_ascii=False, allow_nan=False)


def _export_places(
    releases: list[tuple[StoredSession, StoredRelease]], output: Path, model: Path, overwrite: bool
) -> None:
    import numpy as np

    from dphmm.markov.model import MarkovModel
    from dphmm.release.trajectory import place_on_earth
    from dphmm.space.trajectory import microseconds
    from dphmm.writers.formats import write_releases
    from dphmm.writers.table import ReleaseTable

    learned = MarkovModel.load(model)
    space = learned.states
    if space is None or learned.step_seconds is None:
        raise ConfigurationError(f"{model}: the model has no map or no time step; make one with 'dphmm learn'")
    step = microseconds(learned.step_seconds, "step")
    placed = []
    for session, release in releases:
        if session.terms[release.query]["model"] != learned.content_hash:
            raise ConfigurationError(
                f"{model} is not the model of session {session.name!r}; give the one it began with"
            )
        time = np.datetime64(release.slot * step, "us")
        placed.append(place_on_earth(session.name, time, release.record, space))
    write_releases(output, ReleaseTable.of(placed), overwrite)


def _store(file: Path) -> SessionStore:
    from dphmm.release.store import SessionStore

    return SessionStore(file, readonly=True)


def _sessions(store: SessionStore, names: tuple[str, ...]) -> list[StoredSession]:
    found = []
    for name in names or store.names():
        session = store.session(name)
        if session is None:
            known = ", ".join(repr(other) for other in store.names()[:8]) or "none"
            raise ConfigurationError(f"{store.path} holds no session {name!r}; it holds {known}")
        found.append(session)
    return found


def _cost(releases: list[StoredRelease]) -> dict[str, Any]:
    """What releases have cost: Theorem 7.1, Theorem 7.2, and the greatest single step by Theorem 6.3."""
    from dphmm.release.ledger import Account

    account = Account()
    for release in releases:
        account.add(release.slot, release.record.epsilon, release.record.constrained_factor)
    largest = max((release.record.constrained_epsilon for release in releases), default=0.0)
    return {
        "releases": account.count,
        "first_slot": releases[0].slot if releases else None,
        "last_slot": releases[-1].slot if releases else None,
        "epsilon": float(account.epsilon),
        "constrained_epsilon": _finite(float(account.constrained_epsilon)),
        "constrained_epsilon_of_the_dearest_release": _finite(largest),
    }


def _finite(value: float) -> float | str:
    return "unbounded" if value == float("inf") else value


def _dearest_window(releases: list[StoredRelease], steps: int) -> float:
    from dphmm.release.ledger import Account

    account = Account()
    dearest = 0.0
    for release in releases:
        account.add(release.slot, release.record.epsilon, release.record.constrained_factor)
        dearest = max(dearest, float(account.window(release.slot, steps)))
    return dearest
