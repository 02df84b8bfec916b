"""Tests of policy audits: Python and command agree, and each report is one page."""

from __future__ import annotations

import numpy as np
import pytest
import shapely

from dphmm import MarkovModel, Measurements, PolicyGraph
from dphmm.jobs import (
    AuditTarget,
    audit_mechanism,
    audit_policy,
    audit_session,
)
from dphmm.model.time_classes import TimeClasses
from dphmm.policy import protect
from tests.jobs.audit.town import POLICY, run_audit


@pytest.mark.slow
def test_policy_audit_is_equal_in_python_and_command(town, monkeypatch):
    monkeypatch.chdir(town)
    subject = AuditTarget.from_model("m.npz", POLICY)
    points = subject.measurements.points
    far = int(np.linalg.norm(points - points[0], axis=1).argmax())
    near = int(np.argsort(np.linalg.norm(points - points[0], axis=1))[1])
    names = [subject.names[state] for state in (0, near, far)]
    arguments = ("policy", "--model", "m.npz", "--policy", POLICY, "--epsilon", "0.5")
    output = run_audit(*arguments, "--possible", ",".join(names), "--steps", "3")
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
    assert (by_hour.entries, plain.list_warnings()) == (None, [])
    assert [audit.bodies[0].exposed for audit in by_hour.audits] == [audit.bodies[0].exposed for audit in plain.audits]
    (warning,) = by_hour.list_warnings()
    assert warning == "entries into zones are not audited: the model has a matrix for each of 24 classes of time"


@pytest.mark.parametrize(
    ("f", "edges", "possible", "believed", "exposed"),
    [
        # d lies in the body around b, but is released as c, which does not.
        ([[0, 2], [1, 2], [6, 5], [5, 3], [3, 6]], [(0, 2), (2, 3), (2, 4), (3, 4)], [0, 1, 2, 4], [1, 3], [1, 3]),
        # No two of a, b and c lie in one body, but b is released as e, the neighbour of a, and c as a.
        ([[3, 4], [5, 5], [1, 4], [5, 1], [2, 5]], [(0, 4), (2, 3), (3, 4)], [0, 4], [0, 1, 2], []),
    ],
)
def test_exposure_to_other_adversary_is_that_of_release_with_surrogates(f, edges, possible, believed, exposed):
    points = np.array(f, dtype=float)
    policy = PolicyGraph.from_edges(5, edges)
    graph = protect(policy, points, np.isin(np.arange(5), possible)).graph
    hull = shapely.MultiPoint([s * (points[j] - points[k]) for j, k in graph.edges for s in (1, -1)]).convex_hull
    released_as = [min(possible, key=lambda other: np.linalg.norm(points[state] - points[other])) for state in range(5)]
    alone = [
        state
        for state in believed
        if all(
            hull.distance(shapely.Point(points[released_as[state]] - points[released_as[other]])) > 1e-9
            for other in believed
            if other != state
        )
    ]
    assert alone == exposed
    target = AuditTarget(tuple("abcde"), Measurements(points), policy)
    prior = np.isin(np.arange(5), believed) / len(believed)
    audit = audit_policy(target, [target.constrain_to([target.names[state] for state in possible])], prior=prior)
    assert list(audit.others[0].exposed_with_surrogates) == alone
    assert (audit.is_exposed, audit.to_dict()["exposed"]) == (bool(alone),) * 2
    assert any("exposed after the repair" in sentence for sentence in audit.summary_sentences()) == bool(alone)


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
