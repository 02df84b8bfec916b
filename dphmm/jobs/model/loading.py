"""Files of models: the check of an output, loading, and the size that every result prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dphmm.errors import ConfigurationError
from dphmm.model.model import MarkovModel
from dphmm.space.streets import Streets
from dphmm.tables import check_output
from dphmm.validation import check_arguments

# A model, or its file.
Model = MarkovModel | str | Path


def summarize_size(model: MarkovModel) -> dict[str, Any]:
    """Return the numbers of states and transitions, the step, and any length of streets."""
    size = {"states": model.size, "transitions": model.num_possible_moves, "step_seconds": model.step_seconds}
    # Shows whether a part of the streets is missing, because it is not connected with the others.
    return size | ({"street_km": float(model.states.lengths_km.sum())} if isinstance(model.states, Streets) else {})


@check_arguments
def load_model(model: Model) -> MarkovModel:
    """Load a model that has state locations and a timestep.

    Parameters
    ----------
    model
        The model, or its file.

    Returns
    -------
    MarkovModel
        The model.

    Raises
    ------
    ConfigurationError
        If the model has no state locations or no timestep.
    DataFileError
        If the file is not a model file.
    """
    loaded = model if isinstance(model, MarkovModel) else MarkovModel.load(model)
    if loaded.states is None or loaded.step_seconds is None:
        name = "the model" if isinstance(model, MarkovModel) else f"{model}: the model"
        raise ConfigurationError(f"{name} must have state locations and step_seconds: learn it with 'dphmm learn'")
    return loaded


def credit_streets(model: MarkovModel) -> MarkovModel:
    """Return a model with the credit of the map of its streets, if it has any."""
    if not isinstance(model.states, Streets) or not model.states.credit:
        return model
    return model.with_provenance({**(model.provenance or {}), "map_credit": model.states.credit})


def check_model_output(output: str | Path, overwrite: bool) -> None:
    """Check the path of a model's file before any work is done.

    Raises
    ------
    ConfigurationError, OutputError
        If the extension is not ``.npz``, or the file cannot be written; see `dphmm.tables.check_output`.
    """
    if Path(output).suffix != ".npz":
        raise ConfigurationError(f"the file of a model must have the extension .npz, got {output}")
    check_output(output, overwrite)
