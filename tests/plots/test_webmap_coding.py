"""Columns are decoded here as their description says it, without the package's help."""

from __future__ import annotations

import base64
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import InvalidInputError
from dphmm.plots.webmap import coded_lines, coded_numbers, coded_texts


def whole(code: str) -> list[int]:
    found, last, value, weight = [], 0, 0, 1
    for byte in base64.b64decode(code):
        value, weight = value + (byte & 127) * weight, weight * 128
        if byte < 128:
            last += -(value + 1) // 2 if value % 2 else value // 2
            found.append(last)
            value, weight = 0, 1
    return found


def numbers(column: dict, length: int) -> list[float]:
    gaps = whole(column["gaps"]) if "gaps" in column else [length]
    has = [turn % 2 == 0 for turn, run in enumerate(gaps) for _ in range(run)]
    has += [len(gaps) % 2 == 0] * (length - len(has))
    rows = iter([column["all"]] * sum(has) if "all" in column else whole(column.get("code", "")))
    return [next(rows) * column["step"] if one else math.nan for one in has]


@given(st.lists(st.one_of(st.integers(-(2**51), 2**51), st.just(math.nan))))
def test_whole_numbers_and_gaps_come_back(values):
    np.testing.assert_array_equal(numbers(coded_numbers(values), len(values)), np.array(values, dtype=float))


@given(st.lists(st.floats(-180, 180)))
def test_degrees_come_back_to_half_a_step(values):
    found = numbers(coded_numbers(values, 1e-5), len(values))
    np.testing.assert_allclose(found, values, rtol=0, atol=0.5e-5 + 1e-12)


def test_a_number_that_all_rows_have_is_told_once():
    assert coded_numbers([1.0] * 100_000) == {"step": 1.0, "all": 1}


def test_a_step_of_a_metre_takes_two_bytes_within_eight_kilometres():
    values = np.random.default_rng(0).integers(-4000, 4000, 30_000)
    assert len(base64.b64decode(coded_numbers(values)["code"])) < 2 * 30_000


@given(st.lists(st.text()))
def test_texts_come_back(texts):
    told = coded_texts(texts)
    expected = np.asarray(texts, dtype=np.str_).tolist()
    assert [told["words"][int(row)] for row in numbers(told["rows"], len(texts))] == expected


def test_lines_come_back_one_after_another():
    lines = [[[1.0, 2.0], [1.5, 2.5]], [[3.0, 4.0], [3.25, 4.5], [3.0, 4.0]]]
    told = coded_lines(lines)
    assert (told["n"], told["points"]) == (2, 5)
    assert numbers(told["lengths"], 2) == [2, 3]
    np.testing.assert_allclose(numbers(told["latitude"], 5), [1.0, 1.5, 3.0, 3.25, 3.0])
    np.testing.assert_allclose(numbers(told["longitude"], 5), [2.0, 2.5, 4.0, 4.5, 4.0])


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e300])
def test_what_a_script_cannot_count_is_refused(value):
    with pytest.raises(InvalidInputError, match="not finite or too large"):
        coded_numbers([0.0, value])


@pytest.mark.parametrize("lines", [[[1.0, 2.0]], [[[math.nan, 0.0]]], [[[math.inf, 0.0]]]])
def test_lines_that_are_none_are_refused(lines):
    with pytest.raises(InvalidInputError):
        coded_lines(lines)
