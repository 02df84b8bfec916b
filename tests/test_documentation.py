"""The documentation's pages say all that there is. That their code does what they say, `scripts/docs` finds out."""

from __future__ import annotations

import os
import re

import pytest

from dphmm import ReleaseSettings
from dphmm.cli import COMMANDS
from dphmm.evaluation import parse_config
from dphmm.events import parse_event
from dphmm.tables.json_toml import parse_toml
from dphmm.writers import COLUMNS
from tests.documents import ROOT, page

EVENTS = re.findall(r"^\| `(at:[^|]*?)`(?:, `(?:at:[^`]*)`)? \|", page("events.md"), re.MULTILINE)


def toml(name: str) -> str:
    return page(name).partition("```toml\n")[2].partition("```")[0]


@pytest.mark.parametrize("name", [column.name for column in COLUMNS])
def test_every_column_is_explained(name):
    assert f"`{name}`" in page("command.md")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_shown_as_a_call(command):
    assert f"dphmm {command}" in page("python.md")


@pytest.mark.parametrize("text", EVENTS)
def test_every_event_of_the_table_is_read(text):
    assert str(parse_event(text)) == text


def test_settings_and_configurations_that_are_shown_are_read():
    assert len(EVENTS) > 4
    assert len(ReleaseSettings.from_toml(toml("events.md")).caps) == 1
    assert parse_config(parse_toml(toml("rhythm.md"))).by == "hours"


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_scripts_that_are_named_exist_and_can_be_run(path):
    for name in re.findall(r"`(scripts/[a-z-]+)(?![\w./-])", path.read_text(encoding="utf-8")):
        assert os.access(ROOT / name, os.X_OK), name


def test_every_page_is_in_the_order_of_the_first_one():
    first = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {line for line in first.splitlines() if re.fullmatch(r"[\w-]+/\w+", line)}
    written = {str(path.relative_to(ROOT / "docs").with_suffix("")) for path in (ROOT / "docs").rglob("*/*.md")}
    assert written <= listed
