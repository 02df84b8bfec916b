"""Checkpoints: the state of an engine as bytes, between two releases.

A checkpoint consists of three lines of ASCII text and binary data:

1. ``dphmm-checkpoint 1``: the type and the version of the format.
2. The digest of all following bytes: BLAKE2b of 16 bytes, in hexadecimal. It detects damage, but not forgery.
3. A JSON object, see `EngineState.to_bytes`.

The binary data are the belief, in the form of `Belief.to_bytes`, and then the masses of each event cap as little-endian
doubles. The first has the length ``belief_bytes`` of the JSON object, the others the shapes in ``caps``.

A checkpoint is a function of public information and of the samples, as the belief and the epsilon spent are. It
contains no true state and no randomness.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from typing import Any

import numpy as np

from dphmm.errors import InvalidInputError
from dphmm.events.cap_budget import CapState
from dphmm.model.belief import Belief
from dphmm.tables.json_toml import parse_json
from dphmm.tables.values import shorten, shorten_message
from dphmm.validation import MAX_INTEGER, check_arguments

_TYPE = b"dphmm-checkpoint"
_FORMAT = 1
_DIGEST_BYTES = 16
# Doubles are eight bytes. The belief begins with a header of two numbers.
_MASS_BYTES = 8


@dataclass(frozen=True)
class EngineState:
    """The state of an engine between two releases.

    Parameters
    ----------
    terms
        Content hashes of the settings, the model, the policy and the measurements, and the type of randomness
        (``"system"`` or ``"seeded"``).
    belief
        Public belief after the last release; None before the first.
    count
        Number of releases.
    first, slot
        Slots of the first and the last release; None if unknown.
    account
        Epsilon spent, as `Account.to_dict` returns it; None if unknown.
    caps
        State of the event caps; None without caps, and before the first release.
    """

    terms: Mapping[str, str]
    belief: Belief | None
    count: int
    first: int | None
    slot: int | None
    account: Mapping[str, Any] | None
    caps: tuple[CapState, ...] | None

    def to_bytes(self) -> bytes:
        """Return the state as the bytes of a checkpoint. `from_bytes` restores it.

        Returns
        -------
        bytes
            The checkpoint. The keys of its JSON object are ``terms``, ``count``, ``first`` and ``slot`` of this class,
            ``account``, ``belief_bytes``, and ``caps``: null, or a list of objects with the index of the cap (``cap``)
            and of the initial distribution (``prior``), the step of the last release (``last_step``) and the shape of
            the masses (``shape``).
        """
        belief = b"" if self.belief is None else self.belief.to_bytes()
        caps = None
        masses: list[bytes] = []
        if self.caps is not None:
            caps = [
                {"cap": cap.number, "prior": cap.prior, "last_step": cap.last_step, "shape": list(cap.masses.shape)}
                for cap in self.caps
            ]
            masses = [cap.masses.astype("<f8").tobytes() for cap in self.caps]
        values = {
            "terms": dict(self.terms),
            "count": self.count,
            "first": self.first,
            "slot": self.slot,
            "account": self.account,
            "belief_bytes": len(belief),
            "caps": caps,
        }
        content = b"".join([json.dumps(values, sort_keys=True).encode("ascii"), b"\n", belief, *masses])
        return b"%s %d\n%s\n%s" % (_TYPE, _FORMAT, compute_digest(content), content)

    @classmethod
    @check_arguments
    def from_bytes(cls, data: bytes) -> EngineState:
        """Return the state in a checkpoint.

        Parameters
        ----------
        data
            The bytes that `to_bytes` returned.

        Returns
        -------
        EngineState
            The state.

        Raises
        ------
        InvalidInputError
            If the bytes are not a checkpoint of this version, or are damaged.
        """
        head, _, rest = data.partition(b"\n")
        name, _, version = head.partition(b" ")
        if name != _TYPE:
            raise InvalidInputError("data must be a checkpoint of an engine, as Releaser.checkpoint returns it")
        if version != b"%d" % _FORMAT:
            raise InvalidInputError(
                f"checkpoint must have format {_FORMAT}, got {version[:20]!r}; use the version of dphmm that wrote it"
            )
        stated, _, content = rest.partition(b"\n")
        if stated != compute_digest(content):
            raise InvalidInputError("checkpoint must be undamaged, but its digest differs; use an earlier one")
        text, _, binary = content.partition(b"\n")
        try:
            return cls._from_content(parse_json(text), binary)
        except (TypeError, KeyError, AttributeError, OverflowError, ValueError) as problem:
            raise InvalidInputError(f"invalid checkpoint: {shorten_message(problem)}") from None

    @classmethod
    def _from_content(cls, values: dict[str, Any], binary: bytes) -> EngineState:
        terms = values["terms"]
        count = values["count"]
        if not all(isinstance(item, str) for pair in terms.items() for item in pair):
            raise ValueError("terms must be strings")
        if not _is_integer(count) or count < 0:
            raise ValueError(f"count must be a non-negative integer, got {shorten(count)}")
        for name in ("first", "slot"):
            if values[name] is not None and not _is_integer(values[name]):
                raise ValueError(f"{name} must be an integer or null, got {shorten(values[name])}")
        end = values["belief_bytes"]
        belief = Belief.from_bytes(binary[:end]) if end else None
        if (belief is None) != (count == 0):
            raise ValueError("there must be a belief if and only if there are releases")
        caps = None
        if values["caps"] is not None:
            cap_states = []
            for cap in values["caps"]:
                shape = cap["shape"]
                integers = cap["cap"], cap["prior"], cap["last_step"], *shape
                if not all(map(_is_integer, integers)) or min(shape) < 1:
                    raise ValueError("the numbers of a cap must be integers, and those of its shape positive")
                start, end = end, end + _MASS_BYTES * prod(shape)
                if end > len(binary):
                    raise ValueError(f"expected at least {end} binary bytes, got {len(binary)}")
                masses = np.frombuffer(binary[start:end], dtype="<f8").astype(np.float64).reshape(shape)
                cap_states.append(CapState(cap["cap"], cap["prior"], cap["last_step"], masses))
            caps = tuple(cap_states)
        if end != len(binary):
            raise ValueError(f"expected {end} binary bytes, got {len(binary)}")
        return cls(terms, belief, count, values["first"], values["slot"], values["account"], caps)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_INTEGER


def compute_digest(content: bytes) -> bytes:
    """Return the second line of a checkpoint: the digest of all bytes after it."""
    return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest().encode("ascii")
