"""The page's libraries are what their authors published."""

from __future__ import annotations

import hashlib
import re

from dphmm.serve.page import VENDOR


def test_vendored_files_are_those_whose_digests_are_written_down():
    text = (VENDOR / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"`([\w.-]+\.(?:js|css))` ([0-9a-f]{64})", text)
    assert len(found) == 4
    for name, digest in found:
        (path,) = VENDOR.rglob(name)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
