"""What durable sessions hold and have spent, and their releases as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError
from dphmm.jobs.models import Model, load_model
from dphmm.release.ledger import Ledger, in_words
from dphmm.release.store import SessionStore
from dphmm.release.stored import StoredRelease, StoredSession
from dphmm.release.trajectory import place_on_earth
from dphmm.space.trajectory import microseconds
from dphmm.tables import check_output, write_text
from dphmm.writers.formats import write_releases
from dphmm.writers.table import ReleaseTable


@dataclass(frozen=True)
class SessionContent:
    """A session as its file tells it, every record checked.

    Attributes
    ----------
    session
        What it was agreed on.
    releases
        Its releases, in their order.
    possible_states
        How many states are possible after the last one; None before the first.
    """

    session: StoredSession
    releases: tuple[StoredRelease, ...]
    possible_states: int | None

    def cost(self) -> dict[str, Any]:
        """What the releases cost: Theorem 7.1, Theorem 7.2, and the greatest single step by Theorem 6.3."""
        records = [release.record for release in self.releases]
        ledger = Ledger.of(records)
        slots = [release.slot for release in self.releases]
        return {
            "releases": len(records),
            "first_slot": slots[0] if slots else None,
            "last_slot": slots[-1] if slots else None,
            "epsilon": ledger.epsilon,
            "constrained_epsilon": _finite(ledger.constrained_epsilon),
            "constrained_epsilon_of_the_dearest_release": _finite(
                max((record.constrained_epsilon for record in records), default=0.0)
            ),
        }

    def facts(self) -> dict[str, Any]:
        """What it promised, may spend and has spent, from public things alone."""
        facts = {"name": self.session.name, **self.cost(), "possible_states": self.possible_states}
        records = [release.record for release in self.releases]
        if any(terms.randomness != "system" for terms in self.session.terms.values()):
            facts["promise"] = "nothing: the noise follows from a seed"
        elif records:
            dearest = max(record.constrained_epsilon for record in records)
            facts |= in_words(max(record.epsilon for record in records), dearest, Ledger.of(records).epsilon)
        limits = self.session.limits
        facts |= {f"limit_{name}": value for name, value in vars(limits).items()}
        ledger = Ledger.of(records)
        window = limits.window_steps
        facts["epsilon_of_the_dearest_window"] = None if window is None else ledger.window(window)
        facts["settings_agreed_on_at_releases"] = [one.first for one in self.session.agreed]
        for query, terms in self.session.terms.items():
            prefix = "" if len(self.session.terms) == 1 else f"{query}_"
            named = {**terms.settings.to_dict(), "settings": terms.settings_hash, "model": terms.model}
            named |= {"randomness": terms.randomness, "epsilon_of_each": named.pop("epsilon")}
            facts |= {prefix + part: value for part, value in named.items()}
        return facts


def _finite(value: float) -> float | str:
    return value if isfinite(value) else "unbounded"


@checked
def read_sessions(file: str | Path, names: Sequence[str] = ()) -> Iterator[SessionContent]:
    """The sessions of a file, of these names or all, by name.

    Raises
    ------
    DataFileError
        When the file is no store of sessions, or damaged.
    ConfigurationError
        When it holds no session of a name.
    """
    with SessionStore(file, readonly=True) as store:
        for name in names or store.names():
            session = store.session(name)
            if session is None:
                known = ", ".join(repr(other) for other in store.names()[:8]) or "none"
                raise ConfigurationError(f"{store.path} holds no session {name!r}; it holds {known}")
            belief = store.progress(session.number).belief
            possible = None if belief is None else int(belief.support.sum())
            yield SessionContent(session, tuple(store.releases(session.number)), possible)


@checked
def export_sessions(
    file: str | Path, output: str | Path, names: Sequence[str] = (), model: Model | None = None, overwrite: bool = False
) -> tuple[SessionContent, ...]:
    """Write the releases of the sessions of a file, of these names or all.

    Parameters
    ----------
    file
        The file of sessions.
    output
        Without a model a ``.jsonl`` with a line for every record: ``{"session": …, "slot": …, "query": …, "record":
        {…}}``, where a factor without bound is null. With one, places: .gpkg, .geojson, .csv, .gpx or .parquet.
    names
        Which sessions; left out, all.
    model
        The model that the sessions began with, to tell places and times.
    overwrite
        Whether an output that exists may be replaced.

    Returns
    -------
    tuple of SessionContent
        What was written.

    Raises
    ------
    ConfigurationError
        When the output has another ending, or the model is not the sessions'.
    DataFileError, OutputError
        When the file is no store of sessions, or the output cannot be written.
    """
    path = check_output(output, overwrite)
    sessions = tuple(read_sessions(file, names))
    if model is not None:
        write_releases(path, session_table(sessions, model), overwrite)
    elif path.suffix.lower() == ".jsonl":
        lines = [_line(one.session.name, release) for one in sessions for release in one.releases]
        write_text(path, "".join(f"{line}\n" for line in lines), overwrite)
    else:
        raise ConfigurationError(f"{path} would hold places, which need the map: give --model, or name a .jsonl")
    return sessions


def _line(name: str, release: StoredRelease) -> str:
    record = dict(vars(release.record))
    if not isfinite(release.record.constrained_factor):
        record["constrained_factor"] = None
    about = {"session": name, "slot": release.slot, "query": release.query, "record": record}
    return json.dumps(about, ensure_ascii=False, allow_nan=False)


def session_table(sessions: Sequence[SessionContent], model: Model) -> ReleaseTable:
    """The releases of sessions as a table, each session's name as the user.

    Raises
    ------
    ConfigurationError
        When the model is not the one that a session began with.
    """
    learned = load_model(model)
    step = microseconds(learned.step, "step")
    placed = []
    for one in sessions:
        if {terms.model for terms in one.session.terms.values()} != {learned.content_hash}:
            name = "the model given" if not isinstance(model, str | Path) else str(model)
            raise ConfigurationError(
                f"{name} is not the model of session {one.session.name!r}; give the one it began with"
            )
        for release in one.releases:
            time = np.datetime64(release.slot * step, "us")
            placed.append(place_on_earth(one.session.name, time, release.record, learned.space))
    return ReleaseTable.of(placed)
