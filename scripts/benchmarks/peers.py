"""Other libraries of hidden Markov models: their filters, smoothers, paths and learning.

For hmmlearn, the functions that its models use internally are called. dynamax is compiled by JAX in double precision
and returns only the required results. Libraries that are not installed are omitted (`pip install hmmlearn dynamax`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import numpy as np

Works = dict[str, Callable[[], object]]
NAMES = ("hmmlearn", "dynamax")


def build_works(name: str, start: np.ndarray, matrix: np.ndarray, log_rows: np.ndarray) -> Works | None:
    """Return filter, smoother, path and one EM iteration of a library. None if not installed."""
    if not find_spec(name):
        return None
    return {"hmmlearn": _build_hmmlearn, "dynamax": _build_dynamax}[name](start, matrix, log_rows)


def _build_hmmlearn(start: np.ndarray, matrix: np.ndarray, log_rows: np.ndarray) -> Works:
    from hmmlearn import _hmmc

    likelihood = np.exp(log_rows - log_rows.max(axis=1, keepdims=True))

    def run_passes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        _, ahead, scale = _hmmc.forward_scaling(start, matrix, likelihood)
        back = _hmmc.backward_scaling(start, matrix, likelihood, scale)
        both = ahead * back
        return ahead, back, both / both.sum(axis=1, keepdims=True)

    def learn() -> tuple[np.ndarray, np.ndarray]:
        ahead, back, smoothed = run_passes()
        counts = _hmmc.compute_scaling_xi_sum(ahead, matrix, back, likelihood)
        return smoothed[0], counts / counts.sum(axis=1, keepdims=True)

    return {
        "filter": partial(_hmmc.forward_scaling, start, matrix, likelihood),
        "smoother": lambda: run_passes()[2],
        "path": partial(_hmmc.viterbi, start, matrix, log_rows),
        "learning": learn,
    }


def _build_dynamax(start: np.ndarray, matrix: np.ndarray, log_rows: np.ndarray) -> Works:
    import jax
    from dynamax.hidden_markov_model import inference

    jax.config.update("jax_enable_x64", True)
    arrays = [jax.numpy.asarray(values) for values in (start, matrix, log_rows)]

    def learn(*arguments: object) -> tuple[object, object]:
        posterior = inference.hmm_two_filter_smoother(*arguments)
        return posterior.initial_probs, posterior.trans_probs / posterior.trans_probs.sum(axis=1, keepdims=True)

    loops: dict[str, Callable[..., object]] = {
        "filter": lambda *arguments: inference.hmm_filter(*arguments)[:2],
        "smoother": lambda *arguments: inference.hmm_two_filter_smoother(*arguments).smoothed_probs,
        "path": inference.hmm_posterior_mode,
        "learning": learn,
    }
    compiled = {name: jax.jit(loop) for name, loop in loops.items()}
    return {name: (lambda loop=loop: jax.block_until_ready(loop(*arrays))) for name, loop in compiled.items()}
