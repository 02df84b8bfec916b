"""The README's commands run as they stand, and its Python says what its comments say."""

from __future__ import annotations

import os
import re

import numpy as np

from tests.documents import ROOT, run_line

README = (ROOT / "README.md").read_text(encoding="utf-8")


SERVES = "dphmm serve relay.toml"
"""It serves until it is interrupted; tests of the relay run it."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_commands_run_as_they_stand(tmp_path):
    (tmp_path / "data").symlink_to(ROOT / "data")
    lines = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("dphmm ") and line != SERVES]
    assert len(commands) >= 5
    assert SERVES in lines
    for line in commands:
        said = run_line(line, tmp_path)
        assert "warning" not in said, line
        assert "limits nothing" not in said, line
    assert (tmp_path / "releases.gpkg").stat().st_size > 0
    assert (tmp_path / "map.html").stat().st_size > 0
    assert (tmp_path / "public.gpx").stat().st_size > 0
    assert (tmp_path / "public.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "relay.toml").stat().st_size > 0


def test_hiding_in_python_takes_five_lines_and_says_three_sentences(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    code, _ = blocks("python")
    assert len([line for line in code.splitlines() if line]) <= 5
    exec(code, {})
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_scripts_that_are_named_exist_and_can_be_run():
    for name in re.findall(r"(scripts/[\w.]+)", README):
        assert os.access(ROOT / name, os.X_OK), name


def test_the_python_example_says_what_its_comments_say():
    _, code = blocks("python")
    names: dict[str, object] = {}
    exec(code, names)
    f, policy, possible = names["f"], names["policy"], names["possible"]
    np.testing.assert_array_equal(names["exposed_states"](policy, f, possible), [2])
    assert names["protect"](policy, f, possible).added == ((2, 4),)
    assert names["record"].least_protection >= 2


def test_every_document_that_is_linked_exists():
    made = (ROOT / "docs" / "reference" / "commands.md", ROOT / "docs" / "reference" / "keys.md")  # by scripts/docs
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:\s]+\.\w+)(?:#[^)\s]*)?\)", page.read_text(encoding="utf-8")):
            path = (page.parent / target).resolve()
            assert path.exists() or path in made or path.parent == made[0].with_suffix(""), (
                f"{page.name} links {target}"
            )
