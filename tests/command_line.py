"""The command run in this process, with mappings in its arguments as a settings file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import tomli_w
from click.testing import CliRunner, Result

from dphmm.cli import main


def run(*words: object, command: click.Command = main, stdin: str | bytes | None = None, **more: Any) -> Result:
    """Run the command. The keys of all mappings in the arguments form one `--settings` file."""
    # By default a command has a worker for each processor. Those of a process with threads, such as pytest's, are new
    # processes, each of which loads the package for a second.
    with tempfile.TemporaryDirectory() as folder, patch("os.cpu_count", return_value=1):
        return CliRunner().invoke(command, list_words(words, Path(folder) / "settings.toml"), input=stdin, **more)


def list_words(words: Iterable[object], file: Path) -> list[str]:
    """Return the arguments as text, and write the keys of their mappings into a file."""
    keys: dict[str, Any] = {}
    texts = []
    for word in words:
        if isinstance(word, dict):
            for key, value in word.items():
                keys[key] = {**keys.get(key, {}), **value} if isinstance(value, dict) else value
        else:
            texts.append(str(word))
    if not keys:
        return texts
    plain = {key: str(value) if isinstance(value, Path) else value for key, value in keys.items()}
    file.write_text(tomli_w.dumps(plain), encoding="utf-8")
    return [*texts, "--settings", str(file)]
