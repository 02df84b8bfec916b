"""Days of a model that were prepared when it was learned: they lie in its file, and later gaps begin with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, content_hash, locked
from dphmm.tables.json_text import parse_json

Kind = tuple[tuple[int, int], ...]
"""A kind of day: the classes of its steps and how many there are of each, in order."""
Key = tuple[Kind, ...]
"""Days that are taken at once, by their kinds."""

ABOUT = "days"
"""The array of a model's file that says which days the others hold."""
_MOST_DAYS = 1000
_SUMS = 1e-8
"""By how much the shares of masses some days later may miss one."""


@dataclass(frozen=True, eq=False)
class Stretch:
    """The matrix of some days of certain kinds, ``entry @ exit``.

    Parameters
    ----------
    entry
        ``(N, r)``.
    exit
        ``(r, N)``: zero in columns of states that nobody is in after these days.
    average
        ``(N,)``: the masses after all states had the same before.
    ends
        What the last days alone, one, two and so on, lead to the sums by, each ``(N, r)``; of days that are all of one
        kind, as sums of the same kind, ``(r, r)``.
    """

    entry: FloatArray = field(repr=False)
    exit: FloatArray = field(repr=False)
    average: FloatArray = field(repr=False)
    ends: tuple[FloatArray, ...] = field(repr=False)


@dataclass(frozen=True, eq=False)
class PreparedDays:
    """Days of a model by their kinds.

    Parameters
    ----------
    unit
        How many are taken at once, over and over.
    stretches
        The matrices of so many days, and perhaps of fewer that are taken alone.
    """

    unit: int
    stretches: Mapping[Key, Stretch] = field(repr=False)

    @cached_property
    def alone(self) -> int | None:
        """How many days those have that are fewer; None where there are none."""
        fewest = min(map(len, self.stretches))
        return fewest if fewest < self.unit else None

    def to_arrays(self, model: str) -> dict[str, npt.NDArray[Any]]:
        """What a model's file holds of them; ``model`` is its content hash, so that they go with no other."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        for i, stretch in enumerate(self.stretches.values()):
            ends = np.array(stretch.ends) if stretch.ends else np.zeros((0, len(stretch.exit), len(stretch.exit)))
            parts = {"entry": stretch.entry, "exit": stretch.exit, "average": stretch.average, "ends": ends}
            arrays |= {f"{ABOUT}_{i}_{name}": part for name, part in parts.items()}
        about = {"unit": self.unit, "kinds": list(self.stretches), "hash": _hash(model, self.unit, arrays)}
        return {ABOUT: np.array(json.dumps(about)), **arrays}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], size: int, model: str) -> PreparedDays:
        """Those that `to_arrays` wrote for a chain of ``size`` states.

        Raises
        ------
        ValueError
            When they are of another model, or something else.
        """
        try:
            about = parse_json(arrays[ABOUT].item())
            unit, kinds = about["unit"], [_key(one) for one in about["kinds"]]
            given = {name: part for name, part in arrays.items() if name.startswith(f"{ABOUT}_")}
            if about["hash"] != _hash(model, unit, given) or not 1 <= unit <= _MOST_DAYS:
                raise ValueError("they are of another one")
            made = {}
            for i, key in enumerate(kinds):
                parts = [given[f"{ABOUT}_{i}_{name}"] for name in ("entry", "exit", "average", "ends")]
                entry, leaves, average, ends = parts
                rank = leaves.shape[0]
                count = unit - 1 if len(key) == unit else 0
                shapes = (size, rank), (rank, size), (size,), (count, ends.shape[1], rank)
                good = all(part.shape == shape for part, shape in zip(parts, shapes, strict=True))
                good = good and ends.shape[1] in (size, rank) and 1 <= len(key) <= unit
                good = good and all(part.dtype == np.float64 and np.isfinite(part).all() for part in parts)
                if not good or not np.abs(entry @ leaves.sum(axis=1) - 1.0).max() <= _SUMS:
                    raise ValueError(f"those of kind {i} are none")
                made[key] = Stretch(locked(entry), locked(leaves), locked(average), tuple(locked(ends)))
            if not made or len({len(key) for key in made} | {unit}) > 2 or unit not in map(len, made):
                raise ValueError("some are missing")
        except (KeyError, TypeError, AttributeError, IndexError, OverflowError, ValueError) as problem:
            raise ValueError(f"the days that were prepared for the model cannot be used ({problem})") from None
        return cls(unit, made)


def _key(kinds: Any) -> Key:
    return tuple(tuple((int(number), int(count)) for number, count in kind) for kind in kinds)


def _hash(model: str, unit: int, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    named = [part for name in sorted(arrays) for part in (name, arrays[name])]
    return content_hash(model, unit, *named)
