"""Records and beliefs as bytes: read back to the last bit."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nextafter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dphmm import Belief, ReleaseRecord
from dphmm.errors import InvalidInputError, StochasticError
from dphmm.release.session import record_width
from tests.release.people import engine

RECORD = engine(1).release(4)
floats = st.floats(allow_nan=False)


@given(
    st.lists(floats, min_size=1, max_size=3),
    floats,
    st.integers(0, 2**62),
    st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), max_size=4),
)
def test_a_record_is_read_back_to_the_last_bit_and_fits_its_room(places, number, whole, added):
    record = replace(
        RECORD,
        index=whole,
        steps=whole,
        possible=whole,
        least_protection=whole,
        released=tuple(places),
        estimate=tuple(places),
        epsilon=number,
        expected_error=number,
        area=number,
        constrained_factor=inf,
        added=tuple(added),
        mechanism="planar-isotropic",
    )
    text = record.to_json()
    assert ReleaseRecord.from_json(text) == record
    assert ReleaseRecord.from_json(text.ljust(2_000)) == record
    assert len(text) <= record_width(len(places), len(added))


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", '{"index": 1}', json.dumps({**vars(RECORD), "true_state": 4})])
def test_what_is_no_record_is_refused(text):
    with pytest.raises(InvalidInputError, match="no release record"):
        ReleaseRecord.from_json(text)


@given(arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e5, 0)), st.randoms())
def test_a_belief_is_read_back_to_the_last_bit(log_mass, rng):
    log_mass = np.append(log_mass, nextafter(-0.5, 0))
    for place in range(len(log_mass) - 1):
        if rng.random() < 0.3:
            log_mass[place] = -inf
    belief = Belief(log_mass > -inf, log_mass)
    data = belief.to_bytes()
    again = Belief.from_bytes(data)
    assert len(data) == 8 + -(-len(log_mass) // 8) + 8 * len(log_mass), "nine bytes or less a state, whatever it holds"
    assert again.to_bytes() == data
    np.testing.assert_array_equal(again.support, belief.support)
    np.testing.assert_array_equal(again.log_mass.view(np.int64), belief.log_mass.view(np.int64))


@pytest.mark.parametrize("data", [b"", b"\0" * 8, Belief.of(np.ones(3) / 3).to_bytes()[:-1]])
def test_what_is_no_belief_is_refused(data):
    with pytest.raises(StochasticError, match="no belief"):
        Belief.from_bytes(data)
