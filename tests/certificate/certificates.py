"""Certificates of small worlds, the verifier as a module, and ways to lie in them."""

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
from dphmm.release.trajectory import place_on_earth
from dphmm.space import Grid
from dphmm.writers.formats import write_delimited
from dphmm.writers.table import ReleaseTable

ROOT = Path(__file__).parents[2]
VERIFIER = ROOT / "scripts" / "dphmm-verify"
Line = dict[str, Any]


@cache
def verifier() -> ModuleType:
    """Import the script, which imports nothing of the package."""
    loader = importlib.machinery.SourceFileLoader("dphmm_verify", str(VERIFIER))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class Lies(list[tuple[str, str, Callable[..., None]]]):
    """Lies: the world of each, why it is refused, and what tells it."""

    def lie(self, world: str, reason: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """A lie about a world, and why it is refused."""

        def noted(told: Callable[..., None]) -> Callable[..., None]:
            self.append((world, reason, told))
            return told

        return noted


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def encoded(lines: list[Line | str]) -> list[bytes]:
    """Encode the lines of a certificate as they stand in its file."""
    return [(line if isinstance(line, str) else canonical(line)).encode() + b"\n" for line in lines]


def verify(lines: list[Line | str], rows: Any = None, file: Any = None) -> Any:
    return verifier().verify_releases(encoded(lines), rows, file)


def refusal(lines: list[Line | str], rows: Any = None, file: Any = None) -> str | None:
    """Why the verifier refuses, with the line; None where it does not."""
    try:
        verify(lines, rows, file)
    except verifier().RefusedError as problem:
        return str(problem)
    return None


def certificate(
    engines: Releaser | Mapping[str, Releaser], draw: Callable[[CertificateWriter], None], **begin: Any
) -> list[Line]:
    """The lines of a certificate of what is drawn."""
    texts: list[str] = []
    writer = CertificateWriter(texts.append)
    writer.begin("ann", {"main": engines} if isinstance(engines, Releaser) else engines, **begin)
    draw(writer)
    writer.end()
    return [json.loads(text) for text in texts]


def walked(engine: Releaser, path: list[tuple[int, int]], **begin: Any) -> list[Line]:
    """The certificate of an engine that releases each state of a path of (state, slot)."""

    def draw(writer: CertificateWriter) -> None:
        last = None
        engine.restart(first=path[0][1])
        for state, slot in path:
            record = engine.release(state, steps=1 if last is None else slot - last)
            last = slot
            assert engine.last is not None
            writer.add(engine.last[1], record.released, slot)

    return certificate(engine, draw, **begin)


def town(side: int = 5) -> MarkovModel:
    """Cells of 0.5 km, from each of which people get to those beside it; the first release may be in some of them."""
    space = Grid.over((44.99, -30.01, 44.99 + side * 0.0045, -30.01 + side * 0.0063), 0.5)
    apart = np.abs(space.lattice[:, None] - space.lattice[None]).max(axis=2)
    near = (apart <= 1).astype(float)
    start = (space.lattice.sum(axis=1) <= 3).astype(float)
    return MarkovModel(near / near.sum(axis=1, keepdims=True), start / start.sum(), space, 300)


def town_certificate(
    folder: Path, settings: ReleaseSettings | None = None
) -> tuple[list[Line], dict[str, Any], MarkovModel]:
    """A certificate, the published rows, and the model."""
    model = town()
    lines = published((settings or ReleaseSettings("utility:1km", 1)).engine(model, 7), folder / "rows.csv", PATH)
    return lines, verifier().read_rows(str(folder / "rows.csv")), model


PATH = [(0, 5_700_000), (1, 5_700_001), (7, 5_700_002), (8, 5_700_005), (8, 5_700_300)]


def published(engine: Releaser, file: Path, path: list[tuple[int, int]]) -> list[Line]:
    """The certificate of an engine that releases each state of a path of (state, slot), and a file of its rows."""
    made, texts, space = [], list[str](), engine.model.space
    writer = CertificateWriter(texts.append)
    writer.begin("ann", {"main": engine})
    engine.restart(first=path[0][1])
    for (state, slot), (_, before) in zip(path, [(0, path[0][1] - 1), *path], strict=False):
        record = engine.release(state, steps=slot - before)
        assert engine.last is not None
        writer.add(engine.last[1], record.released, slot)
        made.append(place_on_earth("ann", np.datetime64(slot * 300, "s").astype("datetime64[us]"), record, space))
    writer.end()
    write_delimited(file, ReleaseTable.from_releases(made))
    return [json.loads(text) for text in texts]


def parts_of(lines: list[Line], kind: str) -> list[Line]:
    return [line for line in lines if "part" in line and line["value"]["is"] == kind]


def steps_of(lines: list[Line]) -> list[Line]:
    return [line for line in lines if "step" in line]


def told_anew(lines: list[Line], part: Line) -> None:
    """Give a part that was changed its new digest, wherever it is referred to, as a careful liar would."""
    digest = hashlib.sha256(canonical(part["value"]).encode()).hexdigest()
    before, part["part"] = part["part"][:16], digest
    for line in lines:
        for holder in (line, *line.get("queries", ())):
            for key, value in holder.items():
                if value == before:
                    holder[key] = digest[:16]
