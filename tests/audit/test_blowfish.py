"""Tests of the database form against Example 5.3 (computed in §10.2) and densities."""

from __future__ import annotations

from fractions import Fraction
from math import inf

import numpy as np
import pytest

from dphmm import KNormMechanism, LaplaceMechanism
from dphmm.audit.blowfish import BlowfishPolicy, audit_blowfish
from dphmm.errors import BudgetError, CoordinateError, InvalidInputError, PolicyError

NAMES = ("s1", "s2", "s3", "s4", "s5", "s6")
COUNTS = np.array([[1, 0], [0, 0], [1, 0], [0, 1], [1, 0], [0, 1]])
BOUNDED = (("s1", "s2"), ("s3", "s4"))


def test_example_5_3_levels_and_exposed_secrets():
    audit = audit_blowfish(BlowfishPolicy(NAMES, COUNTS, BOUNDED))
    knorm, laplace = audit.levels
    assert knorm.factors.tolist() == [1, 0, 1, 2, 1, 2]
    assert knorm.total_factor == 2
    assert laplace.sensitivity == 2
    assert laplace.factors.tolist() == [0.5, 0, 0.5, 0.5, 0.5, 0.5]
    assert audit.get_exposed("k-norm") == ("s4", "s6")
    assert audit.get_exposed("laplace") == ()
    assert audit.isolated == ("s5", "s6")


def test_levels_equal_max_log_ratios_with_and_without_secret():
    audit = audit_blowfish(BlowfishPolicy(NAMES, COUNTS, BOUNDED), epsilon=0.8)
    outputs = np.stack(np.meshgrid(np.arange(-5.0, 6.0), np.arange(-5.0, 6.0)), -1).reshape(-1, 2)
    for level, mechanism in zip(
        audit.levels, (KNormMechanism(audit.hull, 0.8), LaplaceMechanism(2.0, 0.8, 2)), strict=True
    ):
        for factor, row in zip(level.factors, COUNTS, strict=True):
            ratio = mechanism.log_density(outputs, row) - mechanism.log_density(outputs, [0, 0])
            assert np.abs(ratio).max() == pytest.approx(0.8 * factor, abs=1e-12)
        pairs = [
            np.abs(mechanism.log_density(outputs, a) - mechanism.log_density(outputs, b)).max()
            for a in COUNTS
            for b in COUNTS
        ]
        assert max(pairs) == pytest.approx(0.8 * level.pairwise_factor, rel=1e-12)


def test_edge_to_null_node_protects_presence():
    policy = BlowfishPolicy(NAMES, COUNTS, (*BOUNDED, ("null", "s4")))
    audit = audit_blowfish(policy)
    assert audit.get_exposed("k-norm") == ()
    assert audit.levels[0].total_factor == 1
    assert audit.isolated == ("s5", "s6")


def test_presence_without_edge_is_revealed_with_certainty():
    audit = audit_blowfish(BlowfishPolicy(("a", "b"), [[1, 0], [0, 1]], (("a", "null"),)))
    assert audit.levels[0].factors.tolist() == [1, inf]
    assert audit.levels[0].pairwise_factor == inf
    assert audit_blowfish(BlowfishPolicy(("a",), [[3]], ())).levels[0].factors.tolist() == [inf]


def test_fractions_decide_boundary_exactly():
    third = Fraction(1, 3)
    rows = [[third, 0], [0, third], [third / 2, third / 2], [third / 2, third / 2 + Fraction(1, 10**9)]]
    policy = BlowfishPolicy(("a", "b", "c", "d"), np.array(rows, dtype=object), (("a", "null"), ("b", "null")))
    audit = audit_blowfish(policy)
    assert [level.protected.tolist() for level in audit.levels] == [[True, True, True, False]] * 2


@pytest.mark.parametrize(
    ("names", "rows", "edges", "error", "words"),
    [
        (("a", "a"), [[1], [2]], (), PolicyError, "twice"),
        (("a", "null"), [[1], [2]], (), PolicyError, "node of absence"),
        (("a", "b"), [[1], [2]], (("a", "c"),), PolicyError, "edges must .*'c'"),
        (("a", "b"), [[1], [2]], (("a", "a"),), PolicyError, "self-loops .*'a'–'a'"),
        (("a", "b"), [[1]], (), InvalidInputError, "contributions must .*2 secrets.* got 1"),
        ((), np.zeros((0, 2)), (), InvalidInputError, "contributions must .* at least one, got 0"),
        (("a",), [[np.nan]], (), CoordinateError, "finite"),
    ],
)
def test_invalid_policies_raise(names, rows, edges, error, words):
    with pytest.raises(error, match=words):
        BlowfishPolicy(names, rows, edges)


def test_invalid_epsilon_or_mechanism_raises():
    policy = BlowfishPolicy(NAMES, COUNTS, BOUNDED)
    with pytest.raises(BudgetError, match="positive"):
        audit_blowfish(policy, 0)
    with pytest.raises(InvalidInputError, match="mechanisms must be chosen among"):
        audit_blowfish(policy, 1, ["planar-laplace"])
    with pytest.raises(
        InvalidInputError, match="mechanism must be one of the audited mechanisms k-norm, got 'laplace'"
    ):
        audit_blowfish(policy, 1, ["k-norm"]).get_exposed("laplace")
