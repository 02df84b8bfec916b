"""A release says where the project stands, in links that a package index can follow."""

from __future__ import annotations

import re
import shutil
import tomllib

from scripts.release import LICENCES, ROOT, addressed, check_version

URL = "https://code.example/team/dphmm"


def test_with_an_address_every_link_of_the_readme_is_absolute_and_leads_to_a_file(tmp_path):
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    addressed(tmp_path, URL, "1.2.3")
    links = re.findall(r"\]\(([^)\s]+)", (tmp_path / "README.md").read_text(encoding="utf-8"))
    before = re.findall(r"\]\(([^)\s]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links) == len(before)
    assert any(not one.startswith("http") for one in before), "the broken twin: without an address some are relative"
    assert all(one.startswith("https://") for one in links)
    ours = [one.removeprefix(URL).partition("#")[0] for one in links if one.startswith(URL)]
    for one in ours:
        kind, version, path = one.lstrip("/").split("/", 2)
        assert (kind, version) == ("raw" if path.endswith(".png") else "blob", "v1.2.3")
        assert (ROOT / path).exists()
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert urls["Source"] == URL
    assert len(urls) > 3, "the papers stay"


def test_the_version_is_in_the_changelog_and_the_citation_and_licences_are_files():
    assert check_version()
    assert all((ROOT / name).is_file() for name in LICENCES)
