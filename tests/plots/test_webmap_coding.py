"""Tests of coded columns: they are decoded independently of the package."""

from __future__ import annotations

import base64
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import InvalidInputError
from dphmm.plots.webmap import encode_lines, encode_numbers, encode_texts


def decode_integers(code: str) -> list[int]:
    values = []
    last = 0
    value = 0
    weight = 1
    for byte in base64.b64decode(code):
        value, weight = value + (byte & 127) * weight, weight * 128
        if byte < 128:
            last += -(value + 1) // 2 if value % 2 else value // 2
            values.append(last)
            value, weight = 0, 1
    return values


def decode_numbers(column: dict, length: int) -> list[float]:
    gaps = decode_integers(column["gaps"]) if "gaps" in column else [length]
    has = [turn % 2 == 0 for turn, run in enumerate(gaps) for _ in range(run)]
    has += [len(gaps) % 2 == 0] * (length - len(has))
    rows = iter([column["all"]] * sum(has) if "all" in column else decode_integers(column.get("code", "")))
    return [next(rows) * column["step"] if has_value else math.nan for has_value in has]


@pytest.mark.slow
@given(st.lists(st.one_of(st.integers(-(2**51), 2**51), st.just(math.nan))))
def test_integers_and_gaps_are_decoded(values):
    np.testing.assert_array_equal(decode_numbers(encode_numbers(values), len(values)), np.array(values, dtype=float))


@given(st.lists(st.floats(-180, 180)))
def test_degrees_are_decoded_within_half_a_step(values):
    decoded = decode_numbers(encode_numbers(values, 1e-5), len(values))
    np.testing.assert_allclose(decoded, values, rtol=0, atol=0.5e-5 + 1e-12)


def test_constant_column_is_stored_once():
    assert encode_numbers([1.0] * 100_000) == {"step": 1.0, "all": 1}


def test_steps_within_eight_kilometres_take_two_bytes():
    values = np.random.default_rng(0).integers(-4000, 4000, 30_000)
    assert len(base64.b64decode(encode_numbers(values)["code"])) < 2 * 30_000


@pytest.mark.slow
@given(st.lists(st.text()))
def test_texts_are_decoded(texts):
    coded = encode_texts(texts)
    expected = np.asarray(texts, dtype=np.str_).tolist()
    assert [coded["words"][int(row)] for row in decode_numbers(coded["rows"], len(texts))] == expected


def test_lines_are_decoded_in_order():
    lines = [[[1.0, 2.0], [1.5, 2.5]], [[3.0, 4.0], [3.25, 4.5], [3.0, 4.0]]]
    coded = encode_lines(lines)
    assert (coded["n"], coded["points"]) == (2, 5)
    assert decode_numbers(coded["lengths"], 2) == [2, 3]
    np.testing.assert_allclose(decode_numbers(coded["latitude"], 5), [1.0, 1.5, 3.0, 3.25, 3.0])
    np.testing.assert_allclose(decode_numbers(coded["longitude"], 5), [2.0, 2.5, 4.0, 4.5, 4.0])


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e300])
def test_values_outside_script_range_raise(value):
    with pytest.raises(InvalidInputError, match="finite"):
        encode_numbers([0.0, value])


@pytest.mark.parametrize(
    "lines", [[[1.0, 2.0]], [[[math.nan, 0.0]]], [[[math.inf, 0.0]]]], ids=["one point", "nan", "infinite"]
)
def test_invalid_lines_raise(lines):
    with pytest.raises(InvalidInputError):
        encode_lines(lines)
