"""Thin matrices of some days are as good as was demanded, and say how near all states lead to the average."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dphmm.markov.thin import ALONE, CHAINED, Survey, nearest, stretch_of
from tests.markov.clockwork import varying

DAY = ((0, 24),)


def _of_days(days, demand, seed=1):
    """So many days as thin matrices, and the whole matrix of them."""
    matrix = varying(seed, size=90, stay=0.8, least=0.7, near=2).transitions[0].toarray()

    def through(kind, columns, back):
        power = np.linalg.matrix_power(matrix, kind[0][1])
        return power @ columns if back else power.T @ columns

    found = stretch_of((DAY,) * days, through, 90, demand, True, None)
    return found, np.linalg.matrix_power(matrix, 24 * days)


@pytest.mark.parametrize(("days", "demand"), [(4, ALONE), (8, ALONE), (30, CHAINED), (60, CHAINED)])
def test_every_share_is_as_near_as_was_demanded(days, demand):
    found, whole = _of_days(days, demand)
    average = whole.mean(axis=0)
    np.testing.assert_allclose(found.average, average, rtol=1e-12)
    assert np.abs((found.entry @ found.exit - whole) / average).max() <= demand.off
    assert found.entry.shape[1] <= demand.columns[-1]


def test_the_bound_is_what_keeps_them_near():
    """The broken twin: whoever demands less gets less."""
    found, whole = _of_days(4, replace(ALONE, off=1e-4))
    assert np.abs((found.entry @ found.exit - whole) / whole.mean(axis=0)).max() > 10 * ALONE.off


def test_days_that_are_chained_say_where_their_last_ones_lead():
    found, _ = _of_days(30, CHAINED)
    assert len(found.ends) == 29
    for count in (1, 7, 29):
        whole = _of_days(30 + count, ALONE)[1]
        off = np.abs(found.entry @ found.ends[count - 1] @ found.exit - whole) / whole.mean(axis=0)
        assert off.max() <= CHAINED.off
    assert _of_days(4, ALONE)[0].ends == ()


def test_what_leads_least_to_some_state_is_told():
    found, whole = _of_days(4, ALONE)
    expected = float((whole / whole.mean(axis=0)).min())
    assert nearest(found) == pytest.approx(expected, rel=1e-6)
    assert expected < 0.5


def test_too_few_columns_are_no_matrix():
    assert _of_days(1, replace(ALONE, columns=(5,)))[0] is None
    survey = Survey(90, replace(ALONE, columns=(5,)))
    assert survey.look() > 1.0
    assert survey.basis is None
