"""Certificates of existing releases: of a file, a batch folder, or durable sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from dphmm.certificate.canonical_forms import check_certifiable
from dphmm.certificate.writer import CertificateWriter
from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError
from dphmm.formatting import Result
from dphmm.jobs.model.loading import Model, load_model
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.jobs.release.stored import (
    SettingsLike,
    build_pruned_error,
    build_sequence,
    get_agreed_engine,
    get_user_name,
    iterate_user_rows,
    read_sessions,
)
from dphmm.model.model import MarkovModel
from dphmm.release import Releaser
from dphmm.release.database_backends import is_server, is_store
from dphmm.release.session_terms import MAIN_QUERY
from dphmm.tables import check_output, create_file
from dphmm.validation import check_arguments


@dataclass(frozen=True)
class CertificateSummary(Result):
    """The summary of a certificate.

    Parameters
    ----------
    num_users
        Number of users.
    num_timesteps
        Number of timesteps, including withheld ones.
    num_releases
        Number of releases: the timesteps that are not withheld.
    num_bytes
        Size in bytes.
    """

    num_users: int
    num_timesteps: int
    num_releases: int
    num_bytes: int

    def _derive_fields(self) -> dict[str, Any]:
        return {**vars(self), "bytes_per_timestep": round(self.num_bytes / self.num_timesteps, 1)}


class StoredStep(NamedTuple):
    """A stored release: time slot, released value and epsilon, or the reason for withholding."""

    slot: int
    released: tuple[float, ...] | None
    epsilon: float
    reason: Any


@contextmanager
def open_certificate(path: str | Path, overwrite: bool = False) -> Iterator[CertificateWriter]:
    """Return a context that writes a certificate. The file appears if the block succeeds.

    Parameters
    ----------
    path
        The file.
    overwrite
        Whether an existing file can be replaced.

    Yields
    ------
    CertificateWriter
        The writer of releases.

    Raises
    ------
    OutputError
        When the file exists or cannot be written.
    """
    with create_file(path, overwrite) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        writer = CertificateWriter(file.write)
        yield writer
        writer.end()


@check_arguments
def certify(
    source: str | Path,
    model: Model,
    output: str | Path,
    settings: SettingsLike | None = None,
    *,
    users: Sequence[str] = (),
    overwrite: bool = False,
    watch: ProgressCallback = suppress_progress,
) -> CertificateSummary:
    """Write the certificate of existing releases, as ``dphmm certify`` does.

    The releases are replayed from public data only, without sampling. Everything in the certificate can be computed
    from the model, the settings and the releases.

    Parameters
    ----------
    source
        A file of releases, the folder of a batch, a file of durable sessions or the address of their server.
    model
        The model of the releases.
    output
        The certificate.
    settings
        For a file of releases: its settings. A policy suffices if all settings other than the epsilon and the
        mechanism, which the file contains, are the defaults. Batches and sessions contain their settings.
    users
        Users to certify. Defaults to all.
    overwrite
        Whether an existing output can be replaced.
    watch
        Shows the progress; see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    CertificateSummary
        The summary of the certificate.

    Raises
    ------
    ConfigurationError
        When settings are missing or differ, the noise is real-valued, a session has several queries or was pruned or
        rewound, or there is no release.
    DataFileError
        When releases do not follow from the model and the settings.
    """
    check_output(output, overwrite)
    learned = load_model(model)
    num_users = num_timesteps = num_releases = 0
    with open_certificate(output, overwrite) as writer:
        is_session_store = is_server(source) or is_store(Path(source))
        if is_session_store:
            stored_users = _read_stored_sessions(source, learned, users)
        else:
            stored_users = _read_table(Path(source), learned, settings, users)
        for user, begun in watch(stored_users, "Certifying", None):
            for number, (engine, steps, more) in enumerate(begun):
                before = begun[number - 1][0] if number and is_session_store else None
                check_certifiable(engine)
                try:
                    _certify_steps(writer, user, engine, steps, more, before)
                except InvalidInputError as problem:
                    raise DataFileError(
                        source, f"user {user}: {problem}: use the model and the settings of the releases"
                    ) from None
                num_timesteps += len(steps)
                num_releases += sum(step.released is not None for step in steps)
            num_users += 1
        if not num_timesteps:
            raise ConfigurationError(f"{get_user_name(source)} contains no release to certify")
    return CertificateSummary(num_users, num_timesteps, num_releases, Path(output).stat().st_size)


_Begun = tuple[Releaser, Sequence[StoredStep], dict[str, Any]]
# An engine, the steps stored since its start, and further fields of the certificate.


def _certify_steps(
    writer: CertificateWriter,
    user: str,
    engine: Releaser,
    stored_steps: Sequence[StoredStep],
    more: dict[str, Any],
    before: Releaser | None,
) -> None:
    """Certify releases from a first one on, or from the state of a previous engine on."""
    writer.begin(user, {MAIN_QUERY: engine}, **more, continues=before is not None)
    last = stored_steps[0].slot
    engine.restart(first=last)
    if before is not None:
        state = before.filter_state
        assert state.slot is not None, "a previous engine has released"
        last = state.slot
        engine.filter_state.first = state.first
        engine.resume(state.belief, state.count, slot=last)
    for stored in stored_steps:
        steps = stored.slot - last
        prior = engine.predict(steps)
        step = engine.build_plan(prior, stored.epsilon, steps, stored.reason if stored.released is None else "")
        writer.add(step, stored.released, stored.slot)
        belief = prior.update(engine.log_likelihood(step, stored.released))
        engine.resume(belief, engine.filter_state.count + 1, slot=stored.slot)
        last = stored.slot


def _read_table(
    path: Path, model: MarkovModel, stated_settings: SettingsLike | None, users: Sequence[str]
) -> Iterator[tuple[str, list[_Begun]]]:
    for user, rows, slots, engine in iterate_user_rows(path, model, stated_settings, users):
        begun: list[_Begun] = []
        for _, group in groupby(range(len(rows)), lambda row: int(rows["num_ignored_releases"][row])):  # noqa: B023 - called within the iteration only
            steps = [_read_step(rows, row, int(slots[row])) for row in group]
            begun.append((engine, steps, {}))
        yield user, begun


def _read_step(rows: Any, row: int, slot: int) -> StoredStep:
    x, y, epsilon = (float(rows[name][row]) for name in ("x_km", "y_km", "epsilon"))
    withheld = bool(rows["withheld"][row])
    return StoredStep(slot, None if withheld else (x, y), epsilon, str(rows["withheld_reason"][row]))


def _read_stored_sessions(
    source: str | Path, model: MarkovModel, users: Sequence[str]
) -> Iterator[tuple[str, list[_Begun]]]:
    get_engine = cache(lambda settings: settings.engine(model))
    for content in read_sessions(source, users):
        session = content.session
        releases = content.releases
        if set(session.terms) != {MAIN_QUERY}:
            raise ConfigurationError(
                f"session {session.name!r} has several queries, and a store does not contain their measurements: "
                "certify them during the release with dphmm.certificate.CertificateWriter"
            )
        if content.pruned.count:
            raise build_pruned_error(session.name, content.pruned.count)
        if not releases:
            continue
        build_sequence(session.name, releases)  # refuses a session that was rewound
        begun: list[_Begun] = []
        for _, part in groupby(enumerate(releases), lambda pair: session.agreement_at(pair[0]).first):  # noqa: B023 - called within the iteration only
            group = list(part)
            engine = get_agreed_engine(session, session.agreement_at(group[0][0]), None, get_engine)
            steps = [
                StoredStep(entry.slot, entry.record.released, entry.record.epsilon, entry.record.withheld_reason)
                for _, entry in group
            ]
            begun.append((engine, steps, {"limits": session.limits}))
        yield session.name, begun
