"""Tests of policy audits: Python and command agree, and each report is one page."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import MarkovModel, Measurements, PolicyGraph
from dphmm.jobs import (
    AuditTarget,
    audit_mechanism,
    audit_policy,
    audit_session,
)
from dphmm.model.time_classes import TimeClasses
from tests.jobs.audit.town import POLICY, facts


@pytest.mark.slow
def test_policy_audit_is_equal_in_python_and_command(town, monkeypatch):
    monkeypatch.chdir(town)
    subject = AuditTarget.from_model("m.npz", POLICY)
    points = subject.measurements.points
    far = int(np.linalg.norm(points - points[0], axis=1).argmax())
    near = int(np.argsort(np.linalg.norm(points - points[0], axis=1))[1])
    names = [subject.names[state] for state in (0, near, far)]
    arguments = ("policy", "--model", "m.npz", "--policy", POLICY, "--epsilon", "0.5")
    output = facts(*arguments, "--possible", ",".join(names), "--steps", "3")
    constraints = [subject.constrain_to(names), *subject.constrain_along(3)]
    audit_result = audit_policy(subject, constraints, epsilon=0.5)
    assert audit_result.to_dict() == output
    assert audit_result.is_exposed
    assert output["constraints"][0]["mechanisms"][0]["exposed"][-1:] == [subject.names[far]]
    assert {repair["min_degree_of_protection"] for repair in output["constraints"][0]["repairs"]} <= {2, 3}


def test_model_with_classes_of_time_is_audited_without_entries():
    f = np.array([[x, 0.0] for x in range(4)])
    matrix, start = np.full((4, 4), 0.25), np.full(4, 0.25)
    policy = PolicyGraph.from_edges(4, [(0, 1)]).with_open([False, False, True, True])
    classes = TimeClasses.from_name("hour", 3600, "UTC")
    models = MarkovModel(matrix, start), MarkovModel([matrix] * 24, np.tile(start, (24, 1)), None, 3600.0, classes)
    plain, by_hour = (
        audit_policy(AuditTarget(("a", "b", "c", "d"), Measurements(f), policy, model)) for model in models
    )
    assert plain.entries is not None
    assert (by_hour.entries, plain.warnings()) == (None, [])
    assert [audit.bodies[0].exposed for audit in by_hour.audits] == [audit.bodies[0].exposed for audit in plain.audits]
    (warning,) = by_hour.warnings()
    assert warning == "entries into zones are not audited: the model has a matrix for each of 24 classes of time"


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_audit_reports_have_expected_pictures(town, monkeypatch):
    pytest.importorskip("matplotlib")
    from dphmm.plots.audit_report import build_audit_sections

    monkeypatch.chdir(town)
    subject = AuditTarget.from_model("m.npz", POLICY)
    for audit_result, pictures in (
        (audit_policy(subject), 3),
        (audit_session("s.session", "m.npz"), 3),
        (audit_mechanism(subject, samples=400, pairs=1, rng=1), 1),
    ):
        assert sum(len(section.pictures) for section in build_audit_sections(audit_result)) == pictures
