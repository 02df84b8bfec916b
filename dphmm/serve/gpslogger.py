"""GPSLogger's custom URL: fields under the names that its user, or Home Assistant's documentation, gave them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dphmm.serve.fix import Fix, Received, fix_of, received
from dphmm.tables.columns import ALIASES

ANSWER = ""


def read_fields(fields: Mapping[str, str]) -> Received:
    """The point in a query or a form. Without a time it is taken as just now: the app sends at once."""
    return received([fields], _fix)


def _fix(fields: Mapping[str, str]) -> Fix:
    found = {name: next((fields[key] for key in ALIASES[name] if fields.get(key)), None) for name in _WANTED}
    if found["time"] is None:
        found["time"] = str(np.datetime64("now", "s").astype(np.int64))
    return fix_of(found["time"], found["latitude"], found["longitude"])


_WANTED = ("time", "latitude", "longitude")
