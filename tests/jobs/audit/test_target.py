"""Tests of audit targets."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dphmm.errors import StateError
from dphmm.jobs import (
    AuditTarget,
    Constraint,
    audit_policy,
)
from tests.jobs.audit.town import POLICY


def test_possible_states_are_nonempty_and_unique(town):
    subject = AuditTarget.from_model(town / "m.npz", POLICY)
    first = subject.names[0]
    for names, words in (
        ((), "possible states must contain at least one name"),
        (("nowhere",), "does not exist"),
        ((first, first), "possible states must be unique"),
    ):
        with pytest.raises(StateError, match=words):
            subject.constrain_to(names)
    assert subject.constrain_to((first,)).states.tolist() == [True] + [False] * (len(subject.names) - 1)
    everything = Constraint("all", np.ones(len(subject.names), dtype=bool))
    assert math.isclose(
        audit_policy(subject, [everything]).audits[0].hull.volume, audit_policy(subject).audits[0].hull.volume
    )
