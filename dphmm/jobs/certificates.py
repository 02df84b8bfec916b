"""Certificates of releases that were made before: of a file, a batch's folder, or durable sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from dphmm.arguments import checked
from dphmm.certificate.writer import CertificateWriter
from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.progress import Watch, unwatched
from dphmm.jobs.stored_releases import SettingsLike, engine_agreed, read_released, read_sessions, rows_by_user
from dphmm.model.model import MarkovModel
from dphmm.release import Releaser
from dphmm.release.session_database import is_server, is_store
from dphmm.release.session_terms import MAIN_QUERY
from dphmm.tables import check_output, new_file


@dataclass(frozen=True)
class Certified:
    """What a certificate is about.

    Parameters
    ----------
    people
        How many people.
    releases
        How many releases.
    size
        How many bytes it has.
    """

    people: int
    releases: int
    size: int

    def facts(self) -> dict[str, Any]:
        """The same by name, with the bytes of a release.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        return {**vars(self), "bytes_of_a_release": round(self.size / max(1, self.releases), 1)}


class Told(NamedTuple):
    """A stored release: of which time step, what was drawn with what budget, or why nothing was."""

    slot: int
    released: tuple[float, ...] | None
    epsilon: float
    reason: Any


@contextmanager
def certified(path: str | Path, overwrite: bool = False) -> Iterator[CertificateWriter]:
    """What writes a certificate to a file, which appears when the block ends well.

    Parameters
    ----------
    path
        The file.
    overwrite
        Whether one that exists may be replaced.

    Yields
    ------
    CertificateWriter
        What takes releases.

    Raises
    ------
    OutputError
        When the file exists or cannot be written.
    """
    with new_file(path, overwrite) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        writer = CertificateWriter(file.write)
        yield writer
        writer.end()


@checked
def certify(
    source: str | Path,
    model: Model,
    output: str | Path,
    settings: SettingsLike | None = None,
    *,
    users: Sequence[str] = (),
    overwrite: bool = False,
    watch: Watch = unwatched,
) -> Certified:
    """Write the certificate of releases that were made before, as ``dphmm certify`` does.

    They are gone through again from public things alone, and nothing is drawn. Everything that the certificate says can
    be worked out by anyone who has the model, the settings and the releases.

    Parameters
    ----------
    source
        A file of releases, the folder of a batch, a file of durable sessions or the address of their server.
    model
        The model that they were made with.
    output
        The certificate.
    settings
        For a file of releases: how they were made, or the policy where all else but the epsilon and the mechanism,
        which the file tells, was left at its default. Batches and sessions say so themselves.
    users
        Whose releases; left out, everyone's.
    overwrite
        Whether an output that exists may be replaced.
    watch
        Shows how far the job has come; see `dphmm.jobs.Watch`.

    Returns
    -------
    Certified
        What was certified.

    Raises
    ------
    ConfigurationError
        When settings are missing or others, for noise of real numbers, and for sessions of several queries.
    DataFileError
        When releases do not follow from the model and the settings.
    """
    check_output(output, overwrite)
    learned = load_model(model)
    people = releases = 0
    with certified(output, overwrite) as writer:
        goes_on = is_server(source) or is_store(Path(source))
        if goes_on:
            everyone = _of_sessions(source, learned, users)
        else:
            everyone = _of_table(Path(source), learned, settings, users)
        for user, begun in watch(everyone, "Certifying", None):
            for number, (engine, told, more) in enumerate(begun):
                before = begun[number - 1][0] if number and goes_on else None
                try:
                    _go_through(writer, user, engine, told, more, before)
                except InvalidInputError as problem:
                    raise DataFileError(source, f"user {user}: {problem}; give what it was made with") from None
                releases += len(told)
            people += 1
    return Certified(people, releases, Path(output).stat().st_size)


_Begun = tuple[Releaser, Sequence[Told], dict[str, Any]]
"""An engine, what was told from a beginning on, and what a certificate says of it besides."""


def _go_through(
    writer: CertificateWriter,
    user: str,
    engine: Releaser,
    told: Sequence[Told],
    more: dict[str, Any],
    before: Releaser | None,
) -> None:
    """Certify releases from a first one on, or on from where another engine ended."""
    writer.begin(user, {MAIN_QUERY: engine}, **more, goes_on=before is not None)
    last = told[0].slot
    engine.restart(first=last)
    if before is not None:
        known = before.person
        assert known.slot is not None, "something was released before"
        last = known.slot
        engine.person.first = known.first
        engine.resume(known.belief, known.count, slot=last)
    for one in told:
        steps = one.slot - last
        prior = engine.prior(steps)
        if one.released is None:
            step = engine.prepare_nothing(prior, steps, one.reason)
        else:
            step = engine.prepare_on(prior, engine.plan(prior), one.epsilon, steps)
        writer.add(step, one.released, one.slot)
        belief = prior.update(engine.log_likelihood(step, one.released))
        engine.resume(belief, engine.person.count + 1, slot=one.slot)
        last = one.slot


def _of_table(
    path: Path, model: MarkovModel, given: SettingsLike | None, users: Sequence[str]
) -> Iterator[tuple[str, list[_Begun]]]:
    found = read_released(path, model, users)
    settings = found.settings or given
    if settings is None:
        raise ConfigurationError(f"{path} does not say how its releases were made; give --policy")
    for user, rows, slots, engine in rows_by_user(path, found.table, model, settings, users):
        begun: list[_Begun] = []
        for _, group in groupby(range(len(rows)), lambda row: int(rows["forgotten_releases"][row])):  # noqa: B023
            told = [_told(rows, row, int(slots[row])) for row in group]
            begun.append((engine, told, {}))
        yield user, begun


def _told(rows: Any, row: int, slot: int) -> Told:
    x, y, epsilon = (float(rows[name][row]) for name in ("x_km", "y_km", "epsilon"))
    withheld = bool(rows["withheld"][row])
    return Told(slot, None if withheld else (x, y), epsilon, str(rows["withheld_for"][row]))


def _of_sessions(source: str | Path, model: MarkovModel, users: Sequence[str]) -> Iterator[tuple[str, list[_Begun]]]:
    engine_of = cache(lambda settings: settings.engine(model))
    for content in read_sessions(source, users):
        session, releases = content.session, content.releases
        if set(session.terms) != {MAIN_QUERY}:
            raise ConfigurationError(
                f"session {session.name!r} answers several queries, and a store does not hold what each of them "
                "measures; certify them as they are released, with dphmm.certificate.CertificateWriter"
            )
        if not releases:
            continue
        begun: list[_Begun] = []
        for _, part in groupby(enumerate(releases), lambda one: session.agreed_at(one[0]).first):  # noqa: B023
            made = list(part)
            engine = engine_agreed(session, session.agreed_at(made[0][0]), None, engine_of)
            told = [Told(one.slot, one.record.released, one.record.epsilon, one.record.reason) for _, one in made]
            begun.append((engine, told, {"limits": session.limits}))
        yield session.name, begun
