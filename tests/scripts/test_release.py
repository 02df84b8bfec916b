"""Tests of the release script: it makes links absolute for the package index."""

from __future__ import annotations

import re
import shutil
import tomllib

from scripts.release import LICENCES, ROOT, check_version, set_address

URL = "https://code.example/team/dphmm"


def test_readme_links_are_absolute_and_lead_to_files(tmp_path):
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    set_address(tmp_path, URL, "1.2.3")
    links = re.findall(r"\]\(([^)\s]+)", (tmp_path / "README.md").read_text(encoding="utf-8"))
    before = re.findall(r"\]\(([^)\s]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links) == len(before)
    assert any(not link.startswith("http") for link in before), "without an address some links are relative"
    assert all(link.startswith("https://") for link in links)
    own_links = [link.removeprefix(URL).partition("#")[0] for link in links if link.startswith(URL)]
    for link in own_links:
        kind, version, path = link.lstrip("/").split("/", 2)
        assert (kind, version) == ("raw" if path.endswith(".png") else "blob", "v1.2.3")
        assert (ROOT / path).exists()
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert urls["Source"] == URL
    assert len(urls) > 3, "the papers stay"


def test_version_is_in_changelog_and_citation_and_licences_exist():
    assert check_version()
    assert all((ROOT / name).is_file() for name in LICENCES)
