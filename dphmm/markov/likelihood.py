"""How probable a model thinks what people did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, as_integers
from dphmm.errors import InvalidInputError, StateError
from dphmm.markov.extended import ExtendedModel
from dphmm.markov.model import MarkovModel


@checked
def move_probabilities(
    model: MarkovModel, stretches: Sequence[npt.ArrayLike], firsts: npt.ArrayLike | None = None
) -> FloatArray:
    """The probability of each step of some stretches, given the places before it in the stretch.

    Parameters
    ----------
    model
        The model, of either kind.
    stretches
        The states of each, ``(t,)``, one step apart.
    firsts
        ``(n,)``: the slot of each one's first state, for models that vary with time.

    Returns
    -------
    FloatArray
        ``(m,)``, ``t - 1`` numbers for each stretch, in order; 0 for a step that the model thinks impossible. The mean
        of their logarithms over people whom the model has not seen says how well it knows how people move.

    Raises
    ------
    StateError
        When a state does not exist.
    InvalidInputError
        When the model varies with time, and there is not one slot for each stretch.

    Examples
    --------
    >>> move_probabilities(MarkovModel([[.9, .1], [.2, .8]], [.5, .5]), [[0, 0, 1], [1]])
    array([0.9, 0.1])
    """
    listed = [as_integers(one, "the states of a stretch", StateError).astype(np.int64).ravel() for one in stretches]
    every = np.concatenate([np.zeros(0, dtype=np.int64), *listed])
    if every.size and (every.min() < 0 or every.max() >= model.size):
        raise StateError(f"a state of a stretch does not exist; states are 0 to {model.size - 1}")
    extended = model if isinstance(model, ExtendedModel) else None
    rhythm = None if extended is None else extended.rhythm
    begins = np.zeros(len(listed), dtype=np.int64) if firsts is None else as_integers(firsts, "firsts")
    if begins.shape != (len(listed),) or (rhythm is not None and firsts is None):
        raise InvalidInputError(f"slots have shape {begins.shape} for {len(listed)} stretches; give the first of each")
    chain = listed if model.contexts is None else [model.contexts.followed(one) for one in listed if len(one)]
    nothing = np.zeros(0, dtype=np.int64)
    sources = np.concatenate([nothing, *(one[:-1] for one in chain)])
    targets = np.concatenate([nothing, *(one[1:] for one in chain)])
    matrices = (model.transition,) if extended is None else extended.transitions
    numbers = np.zeros(len(sources), dtype=np.int64)
    if rhythm is not None:
        slots = [first + np.arange(1, len(one)) for first, one in zip(begins.tolist(), listed, strict=True) if len(one)]
        numbers = rhythm.classes_of(np.concatenate([nothing, *slots]))
    found = np.zeros(len(sources))
    for number, matrix in enumerate(matrices):
        chosen = numbers == number
        if chosen.any():
            found[chosen] = np.asarray(matrix[sources[chosen], targets[chosen]]).ravel()
    return found
