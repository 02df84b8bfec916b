"""A table of releases with all special cases of real tables."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.writers import ReleaseTable


@pytest.fixture
def table() -> ReleaseTable:
    nan, inf = np.nan, np.inf
    return ReleaseTable(
        {
            "user": ["003", "003", 'né, "quoted"', "004"],
            "time": np.array(
                ["2009-10-11T14:04:30", "2009-10-11T14:05:30.250", "2011-02-01T00:00:00", "2009-10-11T14:04:30"],
                dtype="datetime64[us]",
            ),
            "latitude": [39.9 + 1 / 3e5, 39.95, -33.25, nan],
            "longitude": [116.3, 116.4 + 1 / 7e5, -70.5, nan],
            "withheld": [False, False, False, True],
            "withheld_reason": ["", "", "", "budget"],
            "x_km": [-1.5, 0.1 + 0.2, 7.0, 1e9],
            "y_km": [2.25, -0.125, 8.0, -3.0],
            "estimate_latitude": [39.91, 39.92, -33.2, 39.9],
            "estimate_longitude": [116.31, 116.39, -70.4, 116.3],
            "estimate_error_m": [128.25, 1 / 3, 0.0, 1e6],
            "calibrated_radius_90_m": [250.5, nan, 0.0, 1e6],
            "adversary_error_m": [126.5, 0.3, 0.0, 1e6],
            "adversary_max_posterior": [0.125, 2 / 3, 1.0, 1e-9],
            "epsilon_total": [1.0, 1.5, 1 / 3, nan],
            "epsilon_24h": [1.0, 1.5, nan, nan],
            "epsilon": [1.0, 0.5, 1 / 3, 1e-6],
            "mechanism": ["k-norm", "laplace", "planar-isotropic", "lattice"],
            "is_exact": [False, False, False, True],
            "expected_error_m": [812.5, 1234.0625, 10.0, 1e12],
            "possible_states": [1419, 2, 1, 17],
            "min_degree_of_protection": [5, 2, 1, 2],
            "num_added_edges": [0, 1, 0, 3],
            "repair_optimality_gap": [0.0, 0.125, 0.0, 1.0],
            "hull_area_km2": [3.14, 0.0, 0.0, 2.5],
            "constrained_dp_factor": [2.0, inf, 0.0, 1.5],
            "num_components": [1, 1, 1, 3],
            "component_num_states": [3, 4, 1, 1],
            "component_posterior": [1.0, 1.0, 1.0, 0.75],
            "component_error_m": [500.0, 600.0, 0.0, 0.0],
            "table_gain": [nan, 0.25, -0.5, nan],
            "unprotected": [False, False, False, True],
            "singleton": [False, False, True, False],
            "num_ignored_releases": [0, 0, 0, 12],
            "settings_hash": ["0123456789abcdef"] * 3 + ["0" * 16],
            "model_hash": ["fedcba9876543210"] * 4,
        }
    )
