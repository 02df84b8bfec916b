"""Tests of mechanism audits: Python and command agree, and too little noise is detected."""

from __future__ import annotations

import pytest

from dphmm.jobs import (
    AuditTarget,
    audit_mechanism,
)
from dphmm.release.step_plan import Planner
from tests.jobs.audit.town import POLICY, run_audit


@pytest.mark.slow
def test_mechanism_audit_is_equal_in_python_and_command(town, monkeypatch):
    monkeypatch.chdir(town)
    options = ("--epsilon", "0.8", {"samples": 4000, "pairs": 3}, "--seed", "1")
    output = run_audit("mechanism", "--model", "m.npz", "--policy", POLICY, *options)
    subject = AuditTarget.from_model("m.npz", POLICY)
    audit_result = audit_mechanism(subject, epsilon=0.8, samples=4000, pairs=3, rng=1)
    assert audit_result.to_dict() == output
    assert not audit_result.is_exposed
    assert 0.3 < output["max_lower_bound"] < 0.8


def test_half_the_noise_is_detected(town, monkeypatch):
    """20,000 samples of each state with seed 1.

    The bound is wrong with probability at most 0.01.
    """
    sound = Planner.build_noise
    monkeypatch.setattr(Planner, "build_noise", lambda planner, plan, epsilon: sound(planner, plan, 2 * epsilon))
    audit_result = audit_mechanism(
        AuditTarget.from_model(town / "m.npz", POLICY), epsilon=0.8, samples=20_000, pairs=1, rng=1
    )
    assert audit_result.is_exposed
