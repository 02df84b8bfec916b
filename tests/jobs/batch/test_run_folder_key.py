"""Tests of keyed noise: equal for equal labels, unrelated for others, and uniform."""

from __future__ import annotations

import stat
from itertools import product

import numpy as np
import pytest
from scipy import stats

from dphmm.errors import DataFileError
from dphmm.jobs.batch.run_folder import KEY, build_keyed_stream, load_or_create_key

KEY_A = bytes(range(32))
KEY_B = bytes(32)


def test_bytes_do_not_depend_on_request_sizes():
    whole = build_keyed_stream(KEY_A, b"anna").bytes(1000)
    rng = np.random.default_rng(0)
    source, parts = build_keyed_stream(KEY_A, b"anna"), b""
    while len(parts) < 1000:
        parts += source.bytes(int(rng.integers(0, 150)))
    assert parts[:1000] == whole


def test_different_key_or_label_gives_different_bytes():
    """Label parts are separated: ("ab", "c") differs from ("a", "bc")."""
    labels = ((b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b""))
    streams = {build_keyed_stream(key, *label).bytes(64) for key, label in product((KEY_A, KEY_B), labels)}
    assert len(streams) == 8


def test_bytes_are_uniform_and_streams_unrelated():
    """Chi-squared tests of bytes and of differences of two streams: 2^16 each, alpha 1e-4.

    The keys are fixed. A stream with a biased bit in each byte fails.
    """
    stream, other = (np.frombuffer(build_keyed_stream(KEY_A, name).bytes(1 << 16), np.uint8) for name in (b"a", b"b"))

    def compute_p_value(values):
        return stats.chisquare(np.bincount(values, minlength=256)).pvalue

    assert compute_p_value(stream) > 1e-4
    assert compute_p_value(stream ^ other) > 1e-4
    assert compute_p_value(stream | (other & (other >> 4) & 1)) < 1e-4


def test_folder_key_is_created_once_and_readable_by_owner_only(tmp_path):
    key = load_or_create_key(tmp_path)
    assert len(set(key)) > 8
    assert load_or_create_key(tmp_path) == key
    assert KEY.startswith("PRIVATE")
    assert stat.S_IMODE((tmp_path / KEY).stat().st_mode) == 0o600
    (tmp_path / KEY).write_bytes(b"short")
    with pytest.raises(DataFileError, match="32 bytes, got 5"):
        load_or_create_key(tmp_path)
