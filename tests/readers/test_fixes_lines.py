"""The array form of the line parser and the line-by-line form agree on everything, flaws included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphmm.errors import DataFileError
from dphmm.readers import data_sets
from dphmm.readers import fixes as lines
from dphmm.readers.fixes import Fixes
from tests.sizes import fewer

PLT = b"39.984702,116.318417,0,492,39744.1201851852,2008-10-23,02:53:04\r\n"
SNAP = b"7\t2010-10-21T00:03:50Z\t34.0430230998\t-118.2671570778\t14637\n"

plain = st.one_of(
    st.floats(-400, 400).map(repr),
    st.decimals(-180, 180, places=13).map(str),
    st.sampled_from(["", "nan", "inf", "1_0", " 12.5", "0x1", "1e2", "-0", "+5.", ".5", "1.2.3", "12\0", "9" * 40]),
)
moments = st.one_of(
    st.datetimes().map(lambda t: (t.strftime("%Y").zfill(4) + t.strftime("-%m-%d"), t.strftime("%H:%M:%S"))),
    st.sampled_from(
        [
            ("2008-02-30", "00:00:00"),
            ("2008-01-01", "24:00:00"),
            ("2008-01-01", "23:59:60"),
            ("0000-01-01", "00:00:00"),
            ("2008-1-1", "0:0:0"),
            ("20080101", "000000"),
            ("2008-01-01", ""),
            ("NaT", ""),
            ("2008-01-0a", "00:00:00"),
        ]
    ),
)


def plt_parsers(user="u"):
    return (
        lambda block, source: data_sets._geolife_block(block, source, user),
        lambda text, collector: data_sets._geolife_line(text, collector, user),
    )


def never(block, source):
    raise ValueError("not this way")


def rows(blocks):
    found = []
    for block in blocks:
        names = [block.names[k] for k in block.owner]
        times = block.times.astype(np.int64).tolist()
        found += zip(names, times, block.latitude.tolist(), block.longitude.tolist(), strict=True)
    return found, sum(block.skipped for block in blocks)


def both(data, parse_block, parse_line):
    fast = list(lines.parse_lines(data, "f", 1, parse_block, parse_line, True))
    slow = list(lines.parse_lines(data, "f", 1, never, parse_line, True))
    return rows(fast), rows(slow)


@settings(max_examples=fewer(300, 90))
@given(
    st.lists(st.tuples(plain, plain, moments, st.sampled_from(["\n", "\r\n", ",x\n", "\n\n"])), max_size=4),
    st.booleans(),
)
def test_both_forms_of_a_plt_agree(records, ended):
    text = "".join(f"{a},{b},0,-777,39744.1,{day},{clock}{end}" for a, b, (day, clock), end in records)
    data = text.encode() if ended else text.removesuffix("\n").encode()
    fast, slow = both(data, *plt_parsers())
    assert fast == slow


@settings(max_examples=fewer(300, 90))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["1", "22", "", "ü"]),
            plain,
            plain,
            moments,
            st.sampled_from(["Z", "+0000", "+00:00", "+0200", "", "?"]),
        ),
        max_size=4,
    )
)
def test_both_forms_of_check_ins_agree(records):
    data = "".join(f"{u}\t{day}T{clock}{zone}\t{a}\t{b}\t9\n" for u, a, b, (day, clock), zone in records).encode()
    fast, slow = both(data, data_sets._checkins_block, data_sets._checkins_line)
    assert fast == slow


@given(st.lists(st.decimals(-90, 90, places=15), min_size=1, max_size=5))
def test_numbers_are_read_as_python_reads_them(values):
    block = "".join(f"{value:f},0\n" for value in values).encode()
    assert lines.Fields(block, b",", 2).numbers(0).tolist() == [float(f"{value:f}") for value in values]


@given(
    st.sampled_from(["", "-"]),
    st.lists(st.tuples(st.integers(0, 999), st.text("0123456789", max_size=14)), min_size=1, max_size=5),
    st.integers(0, 3),
)
def test_numbers_with_their_point_in_the_same_place_are_read_as_python_reads_them(sign, parts, width):
    written = [f"{sign}{str(whole).zfill(width)}.{rest}" for whole, rest in parts]
    found = lines.Fields("".join(f"{one},0\n" for one in written).encode(), b",", 2).numbers(0)
    assert found.tobytes() == np.array([float(one) for one in written]).tobytes()


@pytest.mark.parametrize("odd", [".", "-.", "-", "", "1.2.3", "--1.5", "1.-3", "3:.5"])
@pytest.mark.parametrize("first", ["1.5", "-1.5", "12.5"])
def test_what_is_no_number_is_refused_behind_one_that_is(first, odd):
    with pytest.raises(ValueError, match=r"plain number|could not convert"):
        lines.Fields(f"{first},0\n{odd},0\n".encode(), b",", 2).numbers(0)


def test_good_blocks_take_the_array_form():
    parse_block, _ = plt_parsers()
    block = parse_block(PLT * 3, "f")
    assert block.times.tolist() == [np.datetime64("2008-10-23T02:53:04", "us").tolist()] * 3
    block = data_sets._checkins_block(SNAP * 2, "f")
    assert (block.names, block.owner.tolist()) == (("7",), [0, 0])


def test_lines_are_counted_over_the_blocks(monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 200)
    data = PLT * 50 + b"\r\n" + b"broken\r\n" + PLT * 3
    with pytest.raises(DataFileError, match="line 58: has 1 fields"):
        list(lines.parse_lines(data, "f", 7, *plt_parsers(), False))
    blocks = list(lines.parse_lines(data, "f", 7, *plt_parsers(), True))
    found, skipped = rows(blocks)
    assert len(blocks) > 5
    assert (len(found), skipped) == (53, 1)


def test_no_data_give_no_fixes():
    assert list(lines.parse_lines(b"", "f", 1, *plt_parsers(), False)) == []


def test_a_delimiter_missing_here_and_surplus_there_is_noticed():
    with pytest.raises(ValueError, match="fields"):
        lines.Fields(b"1,2\n3,4,5,6\n", b",", 3)
    assert isinstance(data_sets._checkins_block(SNAP, "f"), Fixes)
