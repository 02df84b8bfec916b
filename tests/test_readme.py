"""The commands and the Python examples of the README run as printed."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

from tests.documents import ROOT, run_line

README = (ROOT / "README.md").read_text(encoding="utf-8")


# It serves until interrupted; tests of the relay run it.
SERVES = "dphmm serve relay.toml"


def find_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_commands_of_readme_run(tmp_path, monkeypatch):
    monkeypatch.setattr("dphmm.serve.setup._MAX_USERS", 1)
    (tmp_path / "data").symlink_to(ROOT / "data")
    lines = [line.removeprefix("$ ") for block in find_blocks("console") for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("dphmm ") and line != SERVES]
    assert len(commands) >= 5
    assert SERVES in lines
    for line in commands:
        output = run_line(line, tmp_path)
        # Noise differs from run to run, so the warning about the adversary may appear.
        warnings = [
            text for text in output.splitlines() if "warning" in text.lower() and "an adversary who knows" not in text
        ]
        assert not warnings, line
        assert "meaningful limit" not in output, line
    assert (tmp_path / "releases.gpkg").stat().st_size > 0
    assert (tmp_path / "map.html").stat().st_size > 0
    assert (tmp_path / "public.gpx").stat().st_size > 0
    assert (tmp_path / "public.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "relay.toml").stat().st_size > 0


@pytest.mark.slow
def test_hide_example_has_five_lines_and_prints_three(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    code, _ = find_blocks("python")
    assert len([line for line in code.splitlines() if line]) <= 5
    exec(code, {})
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_scripts_in_readme_are_executable():
    for name in re.findall(r"(scripts/[\w.]+)", README):
        assert os.access(ROOT / name, os.X_OK), name


def test_python_example_matches_its_comments():
    _, code = find_blocks("python")
    names: dict[str, object] = {}
    exec(code, names)
    f = names["f"]
    policy = names["policy"]
    possible = names["possible"]
    np.testing.assert_array_equal(names["exposed_states"](policy, f, possible), [2])
    assert names["protect"](policy, f, possible).added == ((2, 4),)
    assert names["record"].min_degree_of_protection >= 2


def test_linked_documents_exist():
    generated = (
        ROOT / "docs" / "reference" / "commands.md",
        ROOT / "docs" / "reference" / "keys.md",
    )  # by scripts/docs
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:\s]+\.\w+)(?:#[^)\s]*)?\)", page.read_text(encoding="utf-8")):
            path = (page.parent / target).resolve()
            assert path.exists() or path in generated or path.parent == generated[0].with_suffix(""), (
                f"{page.name} links {target}"
            )
