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
floats = st.floats(allow_nan=False, allow_infinity=False)


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
        expected_error=abs(number),
        area=number,
        estimate_radius=number,
        adversary_error=number,
        adversary_certainty=number,
        epsilon_so_far=number,
        epsilon_last_day=number,
        constrained_factor=inf,
        added=tuple(added),
        mechanism="planar-isotropic",
    )
    text = record.to_json()
    assert ReleaseRecord.from_json(text) == record
    assert ReleaseRecord.from_json(text.ljust(2_000)) == record
    assert len(text) <= record_width(len(places), len(added))


def _with(**changes):
    return json.dumps(vars(RECORD) | changes)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "[]",
            "{}",
            "{",
            '{"index": 1}',
            _with(true_state=4),
            _with(index=True),
            _with(index=-1),
            _with(steps=1.5),
        ),
        *(
            _with(possible=2**63),
            _with(steps=1.5),
            _with(released=[1.0, None]),
            _with(released=3),
            _with(estimate=[inf, 1.0]),
        ),
        *(
            _with(epsilon="1"),
            _with(epsilon_so_far="1"),
            _with(epsilon=float("nan")),
            _with(expected_error=-1.0),
            _with(constrained_factor=None),
        ),
        *(_with(added=[[1]]), _with(added=[[1, -2]]), _with(added={}), _with(mechanism=7), _with(certified=1)),
        *("[" * 100_000, json.dumps(vars(RECORD)).replace('"k-norm"', '"\\ud800"').replace("lattice", "\\ud800")),
    ],
)
def test_what_is_no_record_is_refused(text):
    with pytest.raises(InvalidInputError, match="no release record"):
        ReleaseRecord.from_json(text)


@given(arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e5, 0)), st.randoms())
def test_a_belief_is_read_back_to_the_last_bit(log_mass, rng):
    log_mass = np.append(log_mass, nextafter(-0.5, 0))
    for place in range(len(log_mass) - 1):
        if rng.random() < 0.3:
            log_mass[place] = -inf
    log_mass -= np.logaddexp.reduce(log_mass)
    belief = Belief(log_mass > -inf, log_mass)
    data = belief.to_bytes()
    again = Belief.from_bytes(data)
    assert len(data) == 8 + 8 * len(log_mass), "eight bytes a state, whatever it holds"
    assert again.to_bytes() == data
    np.testing.assert_array_equal(again.support, belief.support)
    np.testing.assert_array_equal(again.log_mass.view(np.int64), belief.log_mass.view(np.int64))


def test_masses_of_any_depth_are_kept():
    for depth in (1e12, 1e15, 1e200):
        belief = Belief.of(np.ones(2) / 2).update(np.array([0.0, -depth]))
        assert Belief.from_bytes(belief.to_bytes()).log_mass.tolist() == belief.log_mass.tolist()


def test_a_belief_of_an_earlier_version_is_read():
    """A float, and how often it was multiplied by 2**1000, for each state."""
    old = Belief.from_bytes(_belief(0.75, 0.0, 0.25 * (1 - 2.0**-50), 2.0**-50 * 1.5, limbs=(0, 0, 0, 2)))
    assert old.support.tolist() == [True, False, True, True]
    np.testing.assert_allclose(old.log_mass[[0, 2]], np.log([0.75, 0.25]), rtol=1e-14)
    assert old.log_mass[3] == pytest.approx(np.log(1.5) - 2050 * np.log(2), rel=1e-14)


def _belief(*values, limbs=(0, 0)):
    return len(values).to_bytes(8, "little") + np.array(values).tobytes() + np.array(limbs, np.int32).tobytes()


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\0" * 8, Belief.of(np.ones(3) / 3).to_bytes()[:-1]),
        *(_belief(1.0, 1.0), _belief(0.3, 0.0), _belief(1e300, 1.0), _belief(inf, 0.0), _belief(0.0, 0.0)),
        *(_belief(1.0, np.nan), _belief(1.5, -0.5), _belief(1.0, 0.0, limbs=(1, 0)), _belief(0.5, 0.5, limbs=(-1, 0))),
        b"\xff" * 8 + _belief(0.5, 0.5)[8:],
    ],
)
def test_what_is_no_belief_is_refused(data):
    with pytest.raises(StochasticError, match=r"no belief|no probabilities"):
        Belief.from_bytes(data)
