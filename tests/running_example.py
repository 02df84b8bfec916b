"""The paper's running example (Examples 3.2 and 5.1): six states, three categories.

States are counted from 0 here.
"""

from __future__ import annotations

import numpy as np

from dphmm import PolicyGraph

F = np.array([[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]])
LABELS = [0, 1, 1, 2, 2, 2]


def build_graph() -> PolicyGraph:
    return PolicyGraph.categorical(LABELS)


def mask_states(*numbers: int) -> np.ndarray:
    """A constraint set from the paper's state numbers, which start at 1."""
    mask = np.zeros(6, dtype=bool)
    mask[[number - 1 for number in numbers]] = True
    return mask
