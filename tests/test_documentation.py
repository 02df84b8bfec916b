"""The documentation covers all commands, columns and pages. `scripts/docs` runs its code."""

from __future__ import annotations

import inspect
import os
import re

from dphmm import ReleaseSettings, jobs
from dphmm.cli import COMMANDS
from dphmm.evaluation import parse_config
from dphmm.events import parse_event
from dphmm.tables.json_toml import parse_toml
from dphmm.writers import COLUMNS
from tests.documents import ROOT, read_page

EVENTS = re.findall(r"^\| `(at:[^|]*?)`(?:, `(?:at:[^`]*)`)? \|", read_page("events.md"), re.MULTILINE)


def find_toml_block(name: str) -> str:
    return read_page(name).partition("```toml\n")[2].partition("```")[0]


def test_command_page_explains_every_column():
    text = read_page("command.md")
    assert [column.name for column in COLUMNS if f"`{column.name}`" not in text] == []


def test_python_page_shows_every_command():
    text = read_page("python.md")
    assert [command for command in COMMANDS if f"dphmm {command}" not in text] == []


def test_events_in_table_are_parsed():
    assert [str(parse_event(text)) for text in EVENTS] == EVENTS


def test_settings_and_configurations_in_pages_are_parsed():
    assert len(EVENTS) > 4
    assert len(ReleaseSettings.from_toml(find_toml_block("events.md")).caps) == 1
    assert parse_config(parse_toml(find_toml_block("rhythm.md"))).by == "hour"


def test_scripts_in_pages_are_executable():
    for path in (ROOT / "docs").rglob("*.md"):
        for name in re.findall(r"`(scripts/[a-z-]+)(?![\w./-])", path.read_text(encoding="utf-8")):
            assert os.access(ROOT / name, os.X_OK), (path.name, name)


def test_index_lists_every_page():
    first = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {line for line in first.splitlines() if re.fullmatch(r"[\w-]+/\w+", line)}
    written = {str(path.relative_to(ROOT / "docs").with_suffix("")) for path in (ROOT / "docs").rglob("*/*.md")}
    assert written <= listed


def test_keywords_of_r_code_exist():
    """R is not installed everywhere: its calls are compared with the functions."""
    (code,) = re.findall(r"```r\n(.*?)```", (ROOT / "docs/how-to/r.md").read_text(encoding="utf-8"), re.DOTALL)
    called = set()
    while call := re.search(r"(jobs\$)?(\w+)\(([^()]*)\)", code):  # innermost first
        if call[1]:
            called.add(call[2])
            keywords = set(re.findall(r"\b(\w+) = ", call[3]))
            assert keywords <= set(inspect.signature(getattr(jobs, call[2])).parameters), call[0]
        code = code.replace(call[0], "value")
    assert called == {"region", "learn", "release", "Data"}
