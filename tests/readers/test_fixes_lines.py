"""The array and line forms of the line parser agree, also on malformed lines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphmm.errors import DataFileError
from dphmm.readers import delimited_data_sets
from dphmm.readers import fixes as lines
from dphmm.readers.fixes import Fixes, ReadOptions
from tests.sizes import choose_count

PLT = b"39.984702,116.318417,0,492,39744.1201851852,2008-10-23,02:53:04\r\n"
SNAP = b"7\t2010-10-21T00:03:50Z\t34.0430230998\t-118.2671570778\t14637\n"

plain = st.one_of(
    st.floats(-400, 400).map(repr),
    st.decimals(-180, 180, places=13).map(str),
    st.sampled_from(["", "nan", "inf", "1_0", " 12.5", "0x1", "1e2", "-0", "+5.", ".5", "1.2.3", "12\0", "9" * 40]),
)
timestamps = st.one_of(
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


def make_plt_parsers(user="u"):
    return (
        lambda block, source: delimited_data_sets._parse_geolife_block(block, source, user),
        lambda text, collector: delimited_data_sets._parse_geolife_line(text, collector, user),
    )


def reject_block(block, source):
    raise ValueError("not this way")


def list_rows(blocks):
    fixes = []
    for block in blocks:
        names = [block.names[k] for k in block.owner]
        times = block.times.astype(np.int64).tolist()
        fixes += zip(names, times, block.latitude.tolist(), block.longitude.tolist(), strict=True)
    return fixes, sum(block.skipped for block in blocks)


def parse_both_ways(data, parse_block, parse_line):
    fast = list(lines.parse_lines(data, "f", 1, parse_block, parse_line, ReadOptions(True)))
    slow = list(lines.parse_lines(data, "f", 1, reject_block, parse_line, ReadOptions(True)))
    return list_rows(fast), list_rows(slow)


@pytest.mark.slow
@settings(max_examples=choose_count(300, 90))
@given(
    st.lists(st.tuples(plain, plain, timestamps, st.sampled_from(["\n", "\r\n", ",x\n", "\n\n"])), max_size=4),
    st.booleans(),
)
def test_both_forms_of_plt_agree(records, ended):
    text = "".join(f"{a},{b},0,-777,39744.1,{day},{clock}{end}" for a, b, (day, clock), end in records)
    data = text.encode() if ended else text.removesuffix("\n").encode()
    fast, slow = parse_both_ways(data, *make_plt_parsers())
    assert fast == slow


@pytest.mark.slow
@settings(max_examples=choose_count(300, 90))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["1", "22", "", "ü"]),
            plain,
            plain,
            timestamps,
            st.sampled_from(["Z", "+0000", "+00:00", "+0200", "", "?"]),
        ),
        max_size=4,
    )
)
def test_both_forms_of_check_ins_agree(records):
    data = "".join(f"{u}\t{day}T{clock}{zone}\t{a}\t{b}\t9\n" for u, a, b, (day, clock), zone in records).encode()
    fast, slow = parse_both_ways(
        data, delimited_data_sets._parse_checkin_block, delimited_data_sets._parse_checkin_line
    )
    assert fast == slow


@given(st.lists(st.decimals(-90, 90, places=15), min_size=1, max_size=5))
def test_numbers_match_python_floats(values):
    block = "".join(f"{value:f},0\n" for value in values).encode()
    assert lines.Fields(block, b",", 2).parse_numbers(0).tolist() == [float(f"{value:f}") for value in values]


@given(
    st.sampled_from(["", "-"]),
    st.lists(st.tuples(st.integers(0, 999), st.text("0123456789", max_size=14)), min_size=1, max_size=5),
    st.integers(0, 3),
)
def test_aligned_numbers_match_python_floats(sign, parts, width):
    written = [f"{sign}{str(whole).zfill(width)}.{rest}" for whole, rest in parts]
    numbers = lines.Fields("".join(f"{text},0\n" for text in written).encode(), b",", 2).parse_numbers(0)
    assert numbers.tobytes() == np.array([float(text) for text in written]).tobytes()


@pytest.mark.parametrize("odd", [".", "-.", "-", "", "1.2.3", "--1.5", "1.-3", "3:.5"])
@pytest.mark.parametrize("first", ["1.5", "-1.5", "12.5"])
def test_invalid_number_after_valid_one_raises(first, odd):
    with pytest.raises(ValueError, match=r"plain number|convert"):
        lines.Fields(f"{first},0\n{odd},0\n".encode(), b",", 2).parse_numbers(0)


def test_valid_blocks_use_array_form():
    parse_block, _ = make_plt_parsers()
    block = parse_block(PLT * 3, "f")
    assert block.times.tolist() == [np.datetime64("2008-10-23T02:53:04", "us").tolist()] * 3
    block = delimited_data_sets._parse_checkin_block(SNAP * 2, "f")
    assert (block.names, block.owner.tolist()) == (("7",), [0, 0])


def test_line_numbers_continue_over_blocks(monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 200)
    data = PLT * 50 + b"\r\n" + b"broken\r\n" + PLT * 3
    with pytest.raises(DataFileError, match="line 58"):
        list(lines.parse_lines(data, "f", 7, *make_plt_parsers(), ReadOptions()))
    blocks = list(lines.parse_lines(data, "f", 7, *make_plt_parsers(), ReadOptions(True)))
    fixes, skipped = list_rows(blocks)
    assert len(blocks) > 5
    assert (len(fixes), skipped) == (53, 1)


def test_empty_data_gives_no_fixes():
    assert list(lines.parse_lines(b"", "f", 1, *make_plt_parsers(), ReadOptions())) == []


def test_compensating_delimiter_errors_raise():
    with pytest.raises(ValueError, match="fields"):
        lines.Fields(b"1,2\n3,4,5,6\n", b",", 3)
    assert isinstance(delimited_data_sets._parse_checkin_block(SNAP, "f"), Fixes)
