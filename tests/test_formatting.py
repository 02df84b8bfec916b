"""Texts of results accept numbers of numpy, which tables of releases contain."""

from __future__ import annotations

import numpy as np

from dphmm.formatting import describe_ratio_bound, export_likelihood_ratios


def test_levels_accept_numpy_numbers():
    assert describe_ratio_bound(np.float64(242.41)) == "≤ e^242.5 (no meaningful limit)"
    levels = dict(zip(("release", "any_states", "total"), np.array([1.0, 242.41, 12345.6]), strict=True))
    plain = {name: float(level) for name, level in levels.items()}
    assert export_likelihood_ratios(levels, True) == export_likelihood_ratios(plain, True)
