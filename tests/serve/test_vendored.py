"""Tests that the page's libraries are the published files."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import dphmm

VENDOR = Path(dphmm.__file__).parent / "vendor"


def test_vendored_files_match_listed_digests():
    text = (VENDOR / "README.md").read_text(encoding="utf-8")
    digests = re.findall(r"`([\w.-]+\.(?:js|css))` ([0-9a-f]{64})", text)
    assert len(digests) == 4
    for name, digest in digests:
        (path,) = VENDOR.rglob(name)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
