"""The lines of a certificate: canonical JSON, and parts that lines share by their digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

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

    def add(self, value: dict[str, Any]) -> None:
        """Write one line.

        Parameters
        ----------
        value
            What it says, without floats.
        """
        self._write(_canonical(value) + "\n")

    def part(self, value: dict[str, Any]) -> str:
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


def _canonical(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
