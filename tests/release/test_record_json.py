"""Records and beliefs as bytes: exact round trips."""

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
from dphmm.release.session import bound_record_width
from tests.release.engines import make_engine
from tests.running_example import F

RECORD = make_engine(1).release(4)
floats = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.lists(floats, min_size=1, max_size=3),
    floats,
    st.integers(0, 2**62),
    st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), max_size=4),
)
def test_record_round_trips_exactly_within_record_width(places, number, whole, added):
    record = replace(
        RECORD,
        index=whole,
        steps=whole,
        num_possible_states=whole,
        min_degree_of_protection=whole,
        released=tuple(places),
        estimate=tuple(places),
        epsilon=number,
        expected_error=abs(number),
        hull_volume=number,
        expected_estimate_error=number,
        adversary_error=number,
        max_posterior_probability=number,
        epsilon_total=number,
        epsilon_24h=number,
        constrained_dp_factor=inf,
        added_edges=tuple(added),
        mechanism="planar-isotropic",
    )
    text = record.to_json()
    assert ReleaseRecord.from_json(text) == record
    assert ReleaseRecord.from_json(text.ljust(2_000)) == record
    assert len(text) <= bound_record_width(len(places), len(added))


@pytest.mark.parametrize("spacing", [1, "1/2", 0.001])
@pytest.mark.parametrize("coordinates", [np.int64, np.float64])
def test_text_of_record_is_restored_bit_for_bit(spacing, coordinates):
    releaser = make_engine(1, f=np.array(F, dtype=coordinates), spacing=spacing)
    texts = [releaser.release(state).to_json() for state in range(6)]
    assert [ReleaseRecord.from_json(text).to_json() for text in texts] == texts


def _format_changed(**changes):
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
            _format_changed(true_state=4),
            _format_changed(index=True),
            _format_changed(index=-1),
            _format_changed(steps=1.5),
        ),
        *(
            _format_changed(possible=2**63),
            _format_changed(steps=1.5),
            _format_changed(released=[1.0, None]),
            _format_changed(released=3),
            _format_changed(estimate=[inf, 1.0]),
        ),
        *(
            _format_changed(epsilon="1"),
            _format_changed(epsilon_total="1"),
            _format_changed(epsilon=float("nan")),
            _format_changed(expected_error=-1.0),
            _format_changed(constrained_dp_factor=None),
        ),
        *(
            _format_changed(added=[[1]]),
            _format_changed(added=[[1, -2]]),
            _format_changed(added={}),
            _format_changed(mechanism=7),
            _format_changed(certified=1),
        ),
        *("[" * 100_000, json.dumps(vars(RECORD)).replace('"k-norm"', '"\\ud800"').replace("lattice", "\\ud800")),
    ],
)
def test_invalid_record_text_raises(text):
    with pytest.raises(InvalidInputError, match="release record"):
        ReleaseRecord.from_json(text)


@given(arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e5, 0)), st.randoms())
def test_belief_round_trips_exactly(log_mass, rng):
    log_mass = np.append(log_mass, nextafter(-0.5, 0))
    for place in range(len(log_mass) - 1):
        if rng.random() < 0.3:
            log_mass[place] = -inf
    log_mass -= np.logaddexp.reduce(log_mass)
    belief = Belief(log_mass > -inf, log_mass)
    data = belief.to_bytes()
    again = Belief.from_bytes(data)
    assert len(data) == 16 + 8 * len(log_mass), "eight bytes per state, for every mass"
    assert again.to_bytes() == data
    np.testing.assert_array_equal(again.support, belief.support)
    np.testing.assert_array_equal(again.log_mass.view(np.int64), belief.log_mass.view(np.int64))


def test_extreme_log_masses_round_trip():
    for depth in (1e12, 1e15, 1e200):
        belief = Belief.from_probabilities(np.ones(2) / 2).update(np.array([0.0, -depth]))
        assert Belief.from_bytes(belief.to_bytes()).log_mass.tolist() == belief.log_mass.tolist()


@pytest.mark.parametrize("number", [0, 2, 2**64 - 1])
def test_belief_with_other_format_raises(number):
    data = number.to_bytes(8, "little") + Belief.from_probabilities(np.ones(3) / 3).to_bytes()[8:]
    with pytest.raises(StochasticError, match=f"^belief .*format 1, got {number}"):
        Belief.from_bytes(data)


def _encode_belief(*logs, count=None):
    header = (1).to_bytes(8, "little") + (len(logs) if count is None else count).to_bytes(8, "little")
    return header + np.array(logs, dtype="<f8").tobytes()


def test_handwritten_bytes_are_valid_belief():
    assert Belief.from_bytes(_encode_belief(np.log(0.75), -inf, np.log(0.25))).support.tolist() == [True, False, True]


@pytest.mark.parametrize(
    "data",
    [
        *(
            _encode_belief(),
            _encode_belief(0.0)[:8],
            _encode_belief(0.0)[:16],
            Belief.from_probabilities(np.ones(3) / 3).to_bytes()[:-1],
        ),
        *(
            _encode_belief(0.0, 0.0),
            _encode_belief(-1.0, -inf),
            _encode_belief(1e300, -1.0),
            _encode_belief(inf, 0.0),
            _encode_belief(-inf, -inf),
        ),
        *(_encode_belief(0.0, np.nan), _encode_belief(0.0, -inf, count=1), _encode_belief(0.0, -inf, count=3)),
        *(_encode_belief(0.0, -inf, count=2**64 - 1), _encode_belief(0.0, -inf) + b"\0" * 8),
    ],
)
def test_invalid_belief_bytes_raise(data):
    with pytest.raises(StochasticError, match=r"belief|probabilities"):
        Belief.from_bytes(data)
