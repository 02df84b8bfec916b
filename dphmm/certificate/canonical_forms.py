"""A certificate's lines in canonical JSON, and its parts as plain values: places, models, policies and noise.

Everything here is a function of public things. There are no floats: whole numbers are numbers, up to ``2**53``, and all
other ones texts such as ``1/2``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray, runs
from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.mechanisms.base import EXACT, TABLES, Mechanism
from dphmm.mechanisms.exact import rational
from dphmm.model.model import MarkovModel
from dphmm.policy.graph import PolicyGraph
from dphmm.release.engine import Releaser
from dphmm.release.ledger import exactly
from dphmm.release.step import PreparedStep

Plain = dict[str, Any]
FORMAT = 1
_SHORT = 16
"""How many digits of a part's digest stand where it is referred to."""


class Lines:
    """Writes a certificate's lines, each part once.

    Parameters
    ----------
    write
        Takes each line, with its end.
    **more
        What the first line says besides its format.
    """

    def __init__(self, write: Callable[[str], object], **more: str) -> None:
        self._write = write
        self._known: set[str] = set()
        self.add({"certificate": FORMAT, **more})

    def add(self, value: Plain) -> None:
        """Write one line.

        Parameters
        ----------
        value
            What it says, without floats.
        """
        self._write(_canonical(value) + "\n")

    def part(self, value: Plain) -> str:
        """Write a part, unless it is written already.

        Parameters
        ----------
        value
            What it is.

        Returns
        -------
        str
            The beginning of its digest, by which lines refer to it.
        """
        digest = hashlib.sha256(_canonical(value).encode("utf-8")).hexdigest()
        if digest not in self._known:
            self._known.add(digest)
            self.add({"part": digest, "value": value})
        return digest[:_SHORT]


def _canonical(value: Plain) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def check_certifiable(engine: Releaser) -> None:
    """Refuse what no certificate can be made of.

    Raises
    ------
    ConfigurationError
        For noise of real numbers, of which nothing exact can be proven.
    InvalidInputError
        For measurements of more than two dimensions.
    """
    mechanism = engine.settings.mechanism
    if mechanism not in EXACT:
        raise ConfigurationError(
            f"mechanism {mechanism!r} draws real numbers, of which a certificate can prove nothing; choose one of "
            f"{', '.join(sorted(EXACT))}"
        )
    if engine.measurements.dimension > 2:
        raise InvalidInputError(
            f"measurements have {engine.measurements.dimension} dimensions, and a certificate is of two at most"
        )


def places_of(engine: Releaser) -> Plain:
    """What is measured in each state: whole steps of the lattice, or where tables release, decimal texts.

    Parameters
    ----------
    engine
        An engine that `check_certifiable` lets pass.

    Returns
    -------
    dict
        The part ``places``.
    """
    values, cell = engine.values, str(exactly(engine.cell))
    if engine.settings.mechanism in TABLES:
        texts = [[repr(x) for x in row] + ["0.0"] * (2 - len(row)) for row in (values + 0.0).tolist()]
        return {"is": "places", "unit": None, "cell": cell, "at": texts}
    unit = str(rational(engine.settings.spacing, "spacing"))
    return {"is": "places", "unit": unit, "cell": cell, "at": _planar(values).tolist()}


def model_of(model: MarkovModel) -> Plain:
    """Which moves of a model are possible, and how it may begin; none of its probabilities.

    Parameters
    ----------
    model
        The model.

    Returns
    -------
    dict
        The part ``model``.
    """
    moves = []
    for matrix in model.transitions:
        row, rows = np.zeros(model.chain_size, dtype=np.bool_), []
        for first, last in zip(matrix.indptr[:-1].tolist(), matrix.indptr[1:].tolist(), strict=True):
            row[:] = False
            row[matrix.indices[first:last]] = True
            rows.append(runs(row))
        moves.append(rows)
    found: Plain = {
        "is": "model",
        "hash": model.content_hash[:16],
        "states": model.size,
        "chain": model.chain_size,
        "step": None if model.step_seconds is None else str(exactly(model.step_seconds)),
        "moves": moves,
        "start": [runs(begun(model, one) > 0) for one in model.starts],
    }
    if model.away is not None:
        found["state_of"] = model.away.last[model.size :].tolist()
    if model.time_classes is not None and model.time_classes.count > 1:
        found |= {"hours": list(model.time_classes.classes), "zone": model.time_classes.zone}
    return found


def begun(model: MarkovModel, first: FloatArray) -> FloatArray:
    """A first distribution ``(N,)`` over the model's own states, ``(P,)``."""
    return first if model.away is None else model.away.begun(first)


def policy_of(policy: PolicyGraph) -> Plain:
    """A policy graph.

    Parameters
    ----------
    policy
        The graph.

    Returns
    -------
    dict
        The part ``policy``.
    """
    found: Plain = {"is": "policy", "terms": policy.terms()}
    return found | {"open": runs(policy.open)} if policy.has_open else found


def noise_of(step: PreparedStep, engine: Releaser) -> Plain:
    """The bodies or tables of a step's noise, and the edges that were added.

    Parameters
    ----------
    step
        A step with something to draw.
    engine
        Its engine.

    Returns
    -------
    dict
        The part ``noise``.
    """
    parts, several = [], len(step.noise.parts) > 1
    row_of = {tuple(place): state for state, place in reversed(list(enumerate(engine.values.tolist())))}
    for mechanism, members in step.noise.each_part():
        if not members.any():
            continue
        part = _law(mechanism, row_of)
        parts.append(part | {"states": runs(members)} if several else part)
    if len(parts) == 1:
        parts[0].pop("states", None)
    found: Plain = {"is": "noise", "parts": parts}
    added = sorted(set(step.plan.protection.added))
    return found | {"added": [list(edge) for edge in added]} if added else found


def released_form(step: PreparedStep, released: tuple[float, ...], engine: Releaser) -> list[int] | int:
    """A release in whole steps of the lattice; where tables release, the first state with that place.

    Parameters
    ----------
    step
        What it was drawn from.
    released
        The release, in the unit of the measurements.
    engine
        The step's engine.

    Returns
    -------
    list of int, or int
        The field ``z``.
    """
    value = step.noise.query.value(released)
    if engine.settings.mechanism in TABLES:
        return int(np.argmax((engine.values == value).all(axis=1)))
    return list(_planar(value[np.newaxis])[0].tolist())


def changes(before: BoolArray, now: BoolArray) -> Plain:
    """A set of states as difference to another; empty where they are the same.

    Parameters
    ----------
    before, now
        ``(N,)`` booleans.

    Returns
    -------
    dict
        The fields ``in`` and ``out``, each where there is something.
    """
    sides = {"in": now & ~before, "out": before & ~now}
    return {name: runs(mask) for name, mask in sides.items() if mask.any()}


def _law(mechanism: Mechanism, row_of: dict[tuple[float, ...], int]) -> Plain:
    table, corners = mechanism.table, mechanism.corners
    if table is not None:
        states = [row_of[tuple(place)] for place in (table.points + 0.0).tolist()]
        return {"table": [[str(weight) for weight in row] for row in table.weights.tolist()], "places": states}
    assert corners is not None, "an exact mechanism has one or the other"
    flat = _planar(corners)
    upper = [(x, y) for x, y in flat.tolist() if y > 0 or (y == 0 and x > 0)]
    while upper and upper[0][0] * upper[-1][1] < upper[0][1] * upper[-1][0]:
        upper.append(upper.pop(0))
    return {"body": [list(corner) for corner in upper]}


def _planar(values: IntArray) -> IntArray:
    """Rows of one or two whole numbers as rows of two."""
    found = np.zeros((len(values), 2), dtype=np.int64)
    found[:, : values.shape[1]] = values
    return found
