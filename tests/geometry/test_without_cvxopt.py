"""CVXOPT is imported on first use. Without it, only its users raise."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cvxopt":
            raise ImportError(name)

sys.meta_path.insert(0, Absent())
import numpy as np
from dphmm import PolicyGraph, SensitivityHull, counts, degree_of_protection
from dphmm.errors import MissingDependencyError

points = np.array([[0, 0], [1, 0], [0, 1]])
print(degree_of_protection(PolicyGraph.complete(3), points).tolist())
for use in (
    lambda: SensitivityHull([[1, 0], [0, 1]]).contains([0.25, 0.25], method="qp"),
    lambda: degree_of_protection(PolicyGraph.complete(3), points, membership="qp"),
    lambda: counts.estimate("single", np.ones((2, 3)), np.full((3, 3), 1 / 3), 3, 1.0, solver="cvxopt"),
):
    try:
        use()
    except MissingDependencyError as error:
        print(error)
"""


@pytest.mark.slow
def test_missing_cvxopt_raises_only_if_needed():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    message = "cvxopt is not installed; install it with: pip install cvxopt"
    assert done.stdout.splitlines() == ["[3, 3, 3]", *[message] * 3]


@pytest.mark.slow
def test_importing_the_package_does_not_import_cvxopt():
    code = "import sys, dphmm.counts, dphmm.mechanisms, dphmm.geometry.sensitivity_hull; print('cvxopt' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
