"""The running example of the DPHMM paper, for the page of ``dphmm explore``.

The transition probabilities of its Figure 4 are not stated in the text. The models here have the constraint sets of the
paper's examples, which follow from the moves that are possible.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import shapely

from dphmm.geometry.measurements import Measurements
from dphmm.jobs.explore.explored_user import ExploredUser
from dphmm.jobs.explore.explorer import Explorer
from dphmm.model import MarkovModel
from dphmm.space.projection import LocalProjection
from dphmm.space.states import Places

# Example 3.2. One unit of the paper is a kilometre here.
_MEASUREMENTS = np.array([(1, 0), (2, 1), (3, 0), (0, 1), (4, 2), (1, 2)])
# Figure 3(a).
_CATEGORIES: Mapping[str, tuple[int, ...]] = {"A": (1,), "B": (2, 3), "C": (4, 5, 6)}
_CATEGORY_MARGIN_KM = 0.2
# In the Atlantic, where a map shows nothing else. At the equator, kilometres north and east look alike.
_PROJECTION = LocalProjection(0.0, -30.0)
_STEP_S = 14_400  # six timesteps a day, so that twelve show two days
_FIRST_SLOT = 118_752


class _ExampleStates(Places):
    """The six states, with the integers of the paper as measurements.

    Projected coordinates differ from them by rounding, and states on the border of a hull would be outside.
    """

    def __init__(self) -> None:
        names = [f"s{number}" for number in range(1, len(_MEASUREMENTS) + 1)]
        latitude, longitude = _PROJECTION.to_latlon(_MEASUREMENTS).T
        super().__init__(names, latitude, longitude, projection=_PROJECTION)

    def measurements(self) -> Measurements:
        return Measurements(_MEASUREMENTS)


@dataclass(frozen=True, eq=False)
class PaperExample:
    """An example, and what the page first shows of it.

    Parameters
    ----------
    explorer
        The model and the user.
    settings
        The fields of one or two settings; see `dphmm.jobs.explore.typed_settings.DEFAULT_FIELDS`.
    step
        The timestep, from 0.
    """

    explorer: Explorer
    settings: tuple[Mapping[str, str], ...]
    step: int = 0


def _build_explorer(initial: Mapping[int, float], next_states: Sequence[int], path: Sequence[int]) -> Explorer:
    """Build a model in which every move leads to one of some states, each equally probable.

    Parameters
    ----------
    initial
        The paper's number of a state → its first probability. Other states are not possible at first.
    next_states
        The numbers of the states that are possible from the second timestep on.
    path
        The numbers of the user's states.
    """
    size = len(_MEASUREMENTS)
    first, move = np.zeros(size), np.zeros(size)
    first[np.array(list(initial)) - 1] = list(initial.values())
    move[np.array(next_states) - 1] = 1 / len(next_states)
    model = MarkovModel(np.tile(move, (size, 1)), first, _ExampleStates(), _STEP_S)
    user = ExploredUser("", _FIRST_SLOT + np.arange(len(path)), np.array(path) - 1)
    return Explorer(model, user, source="")


def _draw_categories() -> str:
    """Return the categories of Figure 3(a) as zones of the page."""
    features: list[dict[str, Any]] = []
    for name, members in _CATEGORIES.items():
        hull = shapely.MultiPoint(_MEASUREMENTS[np.array(members) - 1]).convex_hull.buffer(_CATEGORY_MARGIN_KM, 3)
        ring = _PROJECTION.to_latlon(np.array(hull.exterior.coords))[:, ::-1].round(6).tolist()
        geometry = {"type": "Polygon", "coordinates": [ring]}
        features.append({"type": "Feature", "properties": {"name": name}, "geometry": geometry})
    return json.dumps({"type": "FeatureCollection", "features": features})


def build_examples() -> dict[str, PaperExample]:
    """Build the examples.

    Returns
    -------
    dict
        Name → example: ``exposure`` (Example 6.1), ``correlation`` (Figure 3 and Example 5.2), ``policies`` (Section
        4.2), ``delta`` (Theorem 4.1) and ``budget`` (Theorem 6.3).
    """
    numbers = range(1, len(_MEASUREMENTS) + 1)
    uniform = dict.fromkeys(numbers, 1 / len(numbers))
    # The paper's examples have no δ, the K-norm mechanism, and the repair of least area.
    categories = {
        "policy": "categorical:zones.geojson",
        "zones": _draw_categories(),
        "delta": "",
        "mechanism": "k-norm",
        "repair_objective": "volume",
    }
    return {
        "exposure": PaperExample(
            _build_explorer(dict.fromkeys(range(2, 7), 0.2), [3, 4, 5, 6], [2, 3]), (categories,), step=1
        ),
        "correlation": PaperExample(_build_explorer(uniform, [2, 3, 5], [1, 5]), (categories,), step=1),
        "policies": PaperExample(
            _build_explorer(uniform, numbers, [4]), (categories, {**categories, "policy": "centres:2.3km", "zones": ""})
        ),
        "delta": PaperExample(
            _build_explorer({1: 0.03, 2: 0.3, 3: 0.3, 4: 0.03, 5: 0.32, 6: 0.02}, numbers, [5]),
            (categories, {**categories, "delta": "0.1"}),
        ),
        "budget": PaperExample(
            _build_explorer(uniform, numbers, [4] * 12), (categories, {**categories, "window_epsilon": "3"}), step=9
        ),
    }
