"""The lines of a certificate in canonical JSON, and its parts as plain values.

The parts are locations, models, policies and noise. Everything is a function of public information. There are no
floats: integers up to ``2**53`` are numbers, and all other numbers are strings such as ``1/2``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray, find_runs
from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.mechanisms.base import Mechanism
from dphmm.mechanisms.exact_sampling import parse_rational
from dphmm.mechanisms.registry import EXACT_COLUMN, TABLE_MECHANISMS
from dphmm.model.model import MarkovModel
from dphmm.policy.graph import PolicyGraph
from dphmm.release.engine import Releaser
from dphmm.release.ledger import to_fraction
from dphmm.release.step_plan import StepPlan

Plain = dict[str, Any]
FORMAT = 1
# The number of digits of a part's digest in references to it.
_DIGEST_DIGITS = 16


class Lines:
    """The lines of a certificate, each part written once.

    Parameters
    ----------
    write
        Function that receives each line with its line end.
    **more
        Fields of the first line in addition to the format.
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
            Content of the line, without floats.
        """
        self._write(_encode_canonically(value) + "\n")

    def write_part(self, value: Plain) -> str:
        """Write a part, unless it is written already.

        Parameters
        ----------
        value
            The part.

        Returns
        -------
        str
            The first digits of its digest, for references to it.
        """
        digest = hashlib.sha256(_encode_canonically(value).encode("utf-8")).hexdigest()
        if digest not in self._known:
            self._known.add(digest)
            self.add({"part": digest, "value": value})
        return digest[:_DIGEST_DIGITS]


def _encode_canonically(value: Plain) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def check_certifiable(engine: Releaser) -> None:
    """Check that the releases of an engine can be certified.

    Raises
    ------
    ConfigurationError
        If the noise is real-valued, because nothing exact can be proven about it.
    InvalidInputError
        If measurements have more than two dimensions.
    """
    mechanism = engine.settings.mechanism
    if mechanism not in EXACT_COLUMN:
        raise ConfigurationError(
            "mechanism must be an exact one of this package to be certified, one of "
            f"{', '.join(sorted(EXACT_COLUMN))}, got {mechanism!r}"
        )
    if engine.measurements.dimension > 2:
        raise InvalidInputError(
            f"measurements must have at most 2 dimensions to be certified, got {engine.measurements.dimension}"
        )


def encode_places(engine: Releaser) -> Plain:
    """Encode the measurements: lattice coordinates, or decimal strings for tables.

    Parameters
    ----------
    engine
        Engine that passes `check_certifiable`.

    Returns
    -------
    dict
        The part ``places``.
    """
    values = engine.query.values
    cell = str(to_fraction(engine.cell))
    if engine.settings.mechanism in TABLE_MECHANISMS:
        texts = [[repr(x) for x in row] + ["0.0"] * (2 - len(row)) for row in (values + 0.0).tolist()]
        return {"is": "places", "unit": None, "cell": cell, "at": texts}
    unit = str(parse_rational(engine.settings.spacing, "spacing"))
    return {"is": "places", "unit": unit, "cell": cell, "at": _as_planar(values).tolist()}


def encode_model(model: MarkovModel) -> Plain:
    """Encode the possible transitions and initial states of a model, without probabilities.

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
        row = np.zeros(model.chain_size, dtype=np.bool_)
        rows = []
        for first, last in zip(matrix.indptr[:-1].tolist(), matrix.indptr[1:].tolist(), strict=True):
            row[:] = False
            row[matrix.indices[first:last]] = True
            rows.append(find_runs(row))
        moves.append(rows)
    part: Plain = {
        "is": "model",
        "hash": model.content_hash[:16],
        "states": model.size,
        "chain": model.chain_size,
        "step": None if model.step_seconds is None else str(to_fraction(model.step_seconds)),
        "moves": moves,
        "start": [find_runs(expand_initial(model, initial) > 0) for initial in model.initial_by_class],
    }
    if model.outside is not None:
        part["state_of"] = model.outside.state_of_context[model.size :].tolist()
    if model.time_classes is not None and model.time_classes.count > 1:
        part |= {"hours": list(model.time_classes.classes), "zone": model.time_classes.zone}
    return part


def expand_initial(model: MarkovModel, first: FloatArray) -> FloatArray:
    """Expand an initial distribution ``(N,)`` to the states of the model's chain, ``(P,)``."""
    return first if model.outside is None else model.outside.split_initial(first)


def encode_policy(policy: PolicyGraph) -> Plain:
    """Encode a policy graph.

    Parameters
    ----------
    policy
        The graph.

    Returns
    -------
    dict
        The part ``policy``.
    """
    part: Plain = {"is": "policy", "terms": policy.terms()}
    return part | {"open": find_runs(policy.open)} if policy.has_open else part


def encode_noise(step: StepPlan, engine: Releaser) -> Plain:
    """Encode the bodies or tables of a step's noise, and the added edges.

    Parameters
    ----------
    step
        Plan of a step that is not withheld.
    engine
        Its engine.

    Returns
    -------
    dict
        The part ``noise``.
    """
    parts = []
    several = len(step.noise.parts) > 1
    row_of = {tuple(place): state for state, place in reversed(list(enumerate(engine.query.values.tolist())))}
    for mechanism, members in step.noise.iterate_parts():
        if not members.any():
            continue
        part = _encode_mechanism(mechanism, row_of)
        parts.append(part | {"states": find_runs(members)} if several else part)
    if len(parts) == 1:
        parts[0].pop("states", None)
    noise: Plain = {"is": "noise", "parts": parts}
    added = sorted(set(step.protection.added))
    return noise | {"added": [list(edge) for edge in added]} if added else noise


def encode_release(step: StepPlan, released: tuple[float, ...], engine: Releaser) -> list[int] | int:
    """Encode a release as lattice coordinates, or for tables as the first state there.

    Parameters
    ----------
    step
        Plan of the release.
    released
        The release, in the unit of the measurements.
    engine
        Engine of the plan.

    Returns
    -------
    list of int, or int
        The field ``z``.
    """
    value = step.noise.query.to_value(released)
    if engine.settings.mechanism in TABLE_MECHANISMS:
        return int(np.argmax((engine.query.values == value).all(axis=1)))
    return list(_as_planar(value[np.newaxis])[0].tolist())


def encode_changes(before: BoolArray, now: BoolArray) -> Plain:
    """Encode a set of states as the difference to another one. Empty if they are equal.

    Parameters
    ----------
    before
        ``(N,)`` booleans.
    now
        ``(N,)`` booleans.

    Returns
    -------
    dict
        The fields ``in`` and ``out``, unless they are empty.
    """
    sides = {"in": now & ~before, "out": before & ~now}
    return {name: find_runs(mask) for name, mask in sides.items() if mask.any()}


def _encode_mechanism(mechanism: Mechanism, row_of: dict[tuple[float, ...], int]) -> Plain:
    table, corners = mechanism.table, mechanism.corners
    if table is not None:
        states = [row_of[tuple(place)] for place in (table.points + 0.0).tolist()]
        return {"table": [[str(weight) for weight in row] for row in table.weights.tolist()], "places": states}
    assert corners is not None, "an exact mechanism has a table or corners"
    flat = _as_planar(corners)
    # The half of the corners with angles from 0 to below 180 degrees. Corners are in counter-clockwise order from any
    # one of them, so the half may be cut in two: turn it until it begins with the smallest angle.
    upper = [(x, y) for x, y in flat.tolist() if y > 0 or (y == 0 and x > 0)]
    while upper and upper[0][0] * upper[-1][1] < upper[0][1] * upper[-1][0]:
        upper.append(upper.pop(0))
    return {"body": [list(corner) for corner in upper]}


def _as_planar(values: IntArray) -> IntArray:
    """Pad rows of one or two integers to two."""
    planar = np.zeros((len(values), 2), dtype=np.int64)
    planar[:, : values.shape[1]] = values
    return planar
