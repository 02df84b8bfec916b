"""Certificates of small worlds, the verifier as a module, and tampering with certificates."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from dphmm import MarkovModel, Releaser, ReleaseSettings
from dphmm.certificate import CertificateWriter
from dphmm.release.ledger import Account
from dphmm.release.trajectory_release import locate_release
from dphmm.space import Grid
from dphmm.writers.formats import write_releases
from dphmm.writers.release_table import ReleaseTable

ROOT = Path(__file__).parents[2]
VERIFIER = ROOT / "scripts" / "dphmm-verify"
Line = dict[str, Any]


@cache
def load_verifier() -> ModuleType:
    """Import the script, which does not import the package."""
    loader = importlib.machinery.SourceFileLoader("dphmm_verify", str(VERIFIER))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class Tamperings(list[tuple[str, str, Callable[..., None]]]):
    """Tampering functions, each with its world and the reason for its rejection."""

    def tampering(self, world: str, reason: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Register a tampering function for a world with the reason for its rejection."""

        def register(tamper: Callable[..., None]) -> Callable[..., None]:
            self.append((world, reason, tamper))
            return tamper

        return register


def format_canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def encode(lines: list[Line | str]) -> list[bytes]:
    """Encode the lines of a certificate as they stand in its file."""
    return [(line if isinstance(line, str) else format_canonical(line)).encode() + b"\n" for line in lines]


def verify(lines: list[Line | str], rows: Any = None, file: Any = None) -> Any:
    return load_verifier().verify_releases(encode(lines), rows, file)


def find_refusal(lines: list[Line | str], rows: Any = None, file: Any = None) -> str | None:
    """Return the verifier's reason for rejection with the line, or None if it accepts."""
    try:
        verify(lines, rows, file)
    except load_verifier().RefusedError as problem:
        return str(problem)
    return None


def build_certificate(
    engines: Releaser | Mapping[str, Releaser], draw: Callable[[CertificateWriter], None], **begin: Any
) -> list[Line]:
    """Build the lines of a certificate of drawn releases."""
    texts: list[str] = []
    writer = CertificateWriter(texts.append)
    writer.begin("ann", {"main": engines} if isinstance(engines, Releaser) else engines, **begin)
    draw(writer)
    writer.end()
    return [json.loads(text) for text in texts]


def certify_path(engine: Releaser, path: list[tuple[int, int]], **begin: Any) -> list[Line]:
    """Certify an engine that releases each state of a path of (state, slot)."""

    def draw(writer: CertificateWriter) -> None:
        last = None
        engine.restart(first=path[0][1])
        for state, slot in path:
            record = engine.release(state, steps=1 if last is None else slot - last)
            last = slot
            assert engine.last is not None
            writer.add(engine.last[1], record.released, slot)

    return build_certificate(engine, draw, **begin)


def build_town(side: int = 5, step: float = 300, cell_km: float = 0.5) -> MarkovModel:
    """Build a model over cells, of 0.5 km by default, with moves to adjacent cells.

    The first release may be in some of the cells.
    """
    east, north = (side * degrees * cell_km for degrees in (0.0126, 0.009))
    space = Grid.over((44.99, -30.01, 44.99 + north, -30.01 + east), cell_km)
    apart = np.abs(space.lattice[:, None] - space.lattice[None]).max(axis=2)
    near = (apart <= 1).astype(float)
    start = (space.lattice.sum(axis=1) <= 3).astype(float)
    return MarkovModel(near / near.sum(axis=1, keepdims=True), start / start.sum(), space, step)


def build_town_certificate(
    folder: Path, settings: ReleaseSettings | None = None
) -> tuple[list[Line], dict[str, Any], MarkovModel]:
    """Build a certificate, the published rows and the model."""
    model = build_town()
    lines = publish_path((settings or ReleaseSettings("utility:1km", 1)).engine(model, 7), folder / "rows.csv", PATH)
    return lines, load_verifier().read_rows(str(folder / "rows.csv")), model


PATH = [(0, 5_700_000), (1, 5_700_001), (7, 5_700_002), (8, 5_700_005), (8, 5_700_300)]


def publish_path(engine: Releaser, file: Path, path: list[tuple[int, int]]) -> list[Line]:
    """Certify an engine that releases each state of a path, and write its rows."""
    return publish_sessions(engine, file, {"ann": [path]})


def publish_sessions(
    engine: Releaser, file: Path, sessions: Mapping[str, list[list[tuple[int, int]]]], **begin: Any
) -> list[Line]:
    """Certify users with several sessions, each a path of (state, slot), and write their rows."""
    releases = []
    texts = list[str]()
    space = engine.model.space
    step = engine.model.step_seconds
    assert step is not None
    writer = CertificateWriter(texts.append)
    for user, paths in sessions.items():
        account = Account()
        for path in paths:
            num_ignored = account.count
            writer.begin(user, {"main": engine}, **begin)
            engine.restart(first=path[0][1])
            engine.filter_state.account = account
            for (state, slot), (_, before) in zip(path, [(0, path[0][1] - 1), *path], strict=False):
                record = engine.release(state, steps=slot - before)
                assert engine.last is not None
                writer.add(engine.last[1], record.released, slot)
                time = np.datetime64(round(slot * step * 10**6), "us")
                releases.append(locate_release(user, time, record, space, num_ignored))
    writer.end()
    write_releases(file, ReleaseTable.from_releases(releases), overwrite=True)
    return [json.loads(text) for text in texts]


def find_parts(lines: list[Line], kind: str) -> list[Line]:
    return [line for line in lines if "part" in line and line["value"]["is"] == kind]


def find_steps(lines: list[Line]) -> list[Line]:
    return [line for line in lines if "step" in line]


def update_digest(lines: list[Line], part: Line) -> None:
    """Update the digest of a changed part at every reference, as careful tampering would."""
    digest = hashlib.sha256(format_canonical(part["value"]).encode()).hexdigest()
    before, part["part"] = part["part"][:16], digest
    for line in lines:
        for holder in (line, *line.get("queries", ())):
            for key, value in holder.items():
                if value == before:
                    holder[key] = digest[:16]
