"""The attraction of states on a public map, and the adversary who has the map.

The attraction of a state that contains land is 0.05 plus its content on the map, such as kilometres of street, and that
of water is 0. It is at least 2 % of the mean, so that no state becomes impossible: 0.2 % to 0.7 % of real locations at
coasts lie in cells that a coarse map calls water. States at the water's edge count fully, because
their visits do not decrease with their share of land; docs/explanation/models.md has the measurement.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from dphmm.arrays import FloatArray, as_floats
from dphmm.errors import InvalidInputError
from dphmm.model.model import MarkovModel
from dphmm.validation import check_arguments

# The smallest attraction of a state, as a share of the mean.
MIN_RELATIVE_ATTRACTION = 0.02

# The attraction of land without streets, in kilometres of street.
_EMPTY_LAND = 0.05


@check_arguments
def compute_map_attraction(land: npt.ArrayLike, content: npt.ArrayLike | None = None) -> FloatArray:
    """Compute the attraction of states from a map.

    Parameters
    ----------
    land
        ``(N,)``: the share of each state's area that is land, from 0 to 1.
    content
        ``(N,)``: the content of each state, such as kilometres of street, not negative. Defaults to equal content.

    Returns
    -------
    FloatArray
        ``(N,)``: positive, with a mean of about one. Uniform if the map contains nothing in the region.

    Raises
    ------
    InvalidInputError
        If an array has another shape or contains an invalid number.

    Examples
    --------
    >>> compute_map_attraction([1.0, 1.0, 0.5, 0.0]).round(3).tolist()
    [1.333, 1.333, 1.333, 0.02]
    """
    shares = as_floats(land, "land")
    contents = np.ones(shares.shape) if content is None else _EMPTY_LAND + as_floats(content, "content")
    if shares.ndim != 1 or not len(shares) or not ((shares >= 0) & (shares <= 1)).all():
        raise InvalidInputError(f"land must be shares from 0 to 1, one for each state, got shape {shares.shape}")
    if contents.shape != shares.shape or not ((contents > 0) & np.isfinite(contents)).all():
        raise InvalidInputError(
            f"content must be {len(shares)} numbers that are not negative, got shape {contents.shape} or one out of "
            "range"
        )
    attraction = np.where(shares > 0, contents, 0.0)
    mean = attraction.mean()
    if not mean:
        return np.ones(len(shares))
    return np.asarray(np.maximum(attraction / mean, MIN_RELATIVE_ATTRACTION))


@check_arguments
def with_map(model: MarkovModel, attraction: npt.ArrayLike) -> MarkovModel:
    """Return the model of an adversary who combines a model with a map.

    The initial distribution becomes ``p(s) a(s)``, normalised. The targets of departures are weighted in the same way:
    ``P(s, t) a(t)`` for ``t`` other than ``s``, normalised so that the probability of leaving ``s`` for another state
    of the region is unchanged. Probabilities of staying, and of moves out of the region, do not change. Therefore each
    visit of a state counts once, however long it is; weighting every timestep would count a long visit repeatedly. No
    move becomes possible or impossible.

    Parameters
    ----------
    model
        A model.
    attraction
        ``(N,)``: positive; see `compute_map_attraction`.

    Returns
    -------
    MarkovModel
        The adversary's model.

    Raises
    ------
    InvalidInputError
        If there is not a positive number for each state.
    """
    weights = as_floats(attraction, "attraction")
    if weights.shape != (model.size,) or not ((weights > 0) & np.isfinite(weights)).all():
        raise InvalidInputError(
            f"attraction must be {model.size} positive numbers, got shape {weights.shape} or one out of range"
        )
    matrices = []
    for transition in model.transitions:
        weighted = csr_array(transition)
        sources = np.repeat(np.arange(weighted.shape[0]), np.diff(weighted.indptr))
        targets = weighted.indices
        # Outside states follow the states of the region, and have no attraction.
        departs = np.flatnonzero((targets != sources) & (targets < model.size))
        rows = sources[departs]
        before = weighted.data[departs]
        after = before * weights[targets[departs]]
        sums = [np.bincount(rows, mass, minlength=weighted.shape[0])[rows] for mass in (before, after)]
        data = weighted.data.copy()
        data[departs] = after * sums[0] / sums[1]
        matrices.append(csr_array((data, targets, weighted.indptr), shape=weighted.shape))
    initial = model.initial_by_class * weights
    return model.with_probabilities(matrices, initial / initial.sum(axis=1, keepdims=True))
