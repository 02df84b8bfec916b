"""Noise out of a key: the same for the same label, unrelated for any other, and as random bytes should be."""

from __future__ import annotations

import stat
from itertools import product

import numpy as np
import pytest
from scipy import stats

from dphmm.errors import DataFileError
from dphmm.jobs.run_folder import KEY, folder_key, keyed_source

ONE, OTHER = bytes(range(32)), bytes(32)


def test_bytes_do_not_depend_on_how_many_are_asked_for_at_a_time():
    whole = keyed_source(ONE, b"anna").bytes(1000)
    rng = np.random.default_rng(0)
    source, parts = keyed_source(ONE, b"anna"), b""
    while len(parts) < 1000:
        parts += source.bytes(int(rng.integers(0, 150)))
    assert parts[:1000] == whole


def test_another_key_or_label_gives_other_bytes():
    """Joined parts are told apart: ("ab", "c") is another label than ("a", "bc")."""
    labels = ((b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b""))
    found = {keyed_source(key, *label).bytes(64) for key, label in product((ONE, OTHER), labels)}
    assert len(found) == 8


def test_bytes_are_uniform_and_streams_unrelated():
    """Chi squared over bytes, and over the differences of two streams, 2^16 each: alpha 1e-4, fixed keys.

    The twin has one bit of each byte set too often.
    """
    one, other = (np.frombuffer(keyed_source(ONE, name).bytes(1 << 16), np.uint8) for name in (b"a", b"b"))

    def chance(values):
        return stats.chisquare(np.bincount(values, minlength=256)).pvalue

    assert chance(one) > 1e-4
    assert chance(one ^ other) > 1e-4
    assert chance(one | (other & (other >> 4) & 1)) < 1e-4


def test_a_folders_key_is_drawn_once_and_for_its_owner_alone(tmp_path):
    key = folder_key(tmp_path)
    assert len(set(key)) > 8
    assert folder_key(tmp_path) == key
    assert KEY.startswith("PRIVATE")
    assert stat.S_IMODE((tmp_path / KEY).stat().st_mode) == 0o600
    (tmp_path / KEY).write_bytes(b"short")
    with pytest.raises(DataFileError, match="5 bytes and no key"):
        folder_key(tmp_path)
