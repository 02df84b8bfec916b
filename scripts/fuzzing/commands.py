"""Fuzzing of every command with extreme values of its options.

A command must exit with 0, or with 2 and one line, and leave no partial output.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import tempfile
import tomllib
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import click
import tomli_w
from click.testing import CliRunner

from dphmm.cli import main
from dphmm.cli.keys import Key, get_key
from scripts.fuzzing import seeds, values
from scripts.fuzzing.attempt import Target


def _parse_word(text: str) -> str | dict[str, Any]:
    """Return a word, or the settings of the TOML text after @."""
    return tomllib.loads(text[1:]) if text.startswith("@") else text


# Name, which starts with the command → valid words and settings before mutation.
BASES = {
    name: [_parse_word(word) for word in shlex.split(line_words)]
    for name, _, line_words in (line.partition(": ") for line in values.get_words("commands"))
}

EXTREMES = [*values.get_words("options"), "", " ", "9" * 400, "9" * 5000, "-9" * 50, "x" * 100_000, "a\udc80b"]
EXTREMES += ["\x1b[2J\x07\r\n\x9b"]

# Commands that take seconds, which tests omit.
SLOW = {"evaluate", "report", "report sessions", "show picture"}

_STARTS = ("Error: ", "Warning: ", "dphmm", "Report")  # of every line on standard error

ORDERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class BadEndError(Exception):
    """A command ended in an unexpected way."""

    def __init__(self, kind: str, detail: str = "") -> None:
        self.kind = kind
        super().__init__(f"{kind}: {detail}")


def change_words(data: bytes, rng: Random) -> bytes:
    """Return the words with extreme values of options, a replaced value, or a word removed."""
    name, *words = json.loads(data)
    extreme = lambda: rng.choice((*EXTREMES, values.make_text(rng).replace("\x00", "")[:5000]))  # noqa: E731
    options = [parameter for parameter in find_command(name)[0].params if isinstance(parameter, click.Option | Key)]
    for _ in range(rng.choice((1, 1, 1, 2))):
        kind = rng.random()
        if kind < 0.75 and options:
            option = rng.choice(options)
            if isinstance(option, Key):
                words.append({get_key(option): _choose_toml_value(extreme(), rng)})
                continue
            flag = rng.choice(option.opts)
            if flag in words:
                at = words.index(flag)
                del words[at : at + 1 + (0 if option.is_flag else option.nargs)]
            words += [flag, *(() if option.is_flag else (extreme() for _ in range(option.nargs)))]
        elif kind < 0.95 and words:
            words[rng.randrange(len(words))] = extreme()
        elif words:
            del words[rng.randrange(len(words))]
    return json.dumps([name, *words]).encode()


def _choose_toml_value(text: str, rng: Random) -> Any:
    """Return a value of a key from an extreme text: number, boolean, text, list or table."""
    value = text
    with contextlib.suppress(ValueError):
        parsed = tomllib.loads(f"x = {text}")["x"]
        value = rng.choice((text, parsed if isinstance(parsed, int | float) else text))
    return rng.choice((value, value, value, [value], [value, value], {"time": value}, [{"event": value}]))


def with_settings(words: list[Any], file: Path) -> list[str]:
    """Return the words, with the keys among them written to a settings file."""
    keys = {key: value for word in words if isinstance(word, dict) for key, value in word.items()}
    texts = [word for word in words if not isinstance(word, dict)]
    if not keys:
        return texts
    file.write_bytes(tomli_w.dumps(keys).encode("utf-8", "surrogatepass"))
    return [*texts, "--settings", str(file)]


def use(path: Path) -> None:
    """Run the command in a separate folder and check how it ends."""
    name, *words = json.loads(path.read_bytes())
    _, command = find_command(name)
    with tempfile.TemporaryDirectory(dir=_ROOM) as place, contextlib.chdir(place):
        folder = Path(shutil.copytree(_make_template(), place, dirs_exist_ok=True))
        words = with_settings(words, folder / "keys.toml")
        before = {file.name for file in folder.iterdir()}
        stdin = (folder / "lines.json").read_text()
        done = CliRunner().invoke(main, [*command, *words], input=stdin, prog_name="dphmm")
        left = {file.name for file in folder.iterdir()} - before - {"s.session-shm", "s.session-wal"}  # SQLite's own
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        errors = done.stderr.splitlines()
        kept = {"new"} | ({"new.session"} if "see 'dphmm session export'" in done.stderr else set())
        faults = {
            f"exit code {done.exit_code}": done.exit_code not in ((0, 1, 2) if command[0] == "audit" else (0, 2)),
            "no line says why": done.exit_code == 2 and not any(line.startswith("Error: ") for line in errors),
            "other lines than ours": not all(line.startswith(_STARTS) for line in errors),
            "control characters reach the terminal": ORDERS.search(done.stdout + done.stderr),
            "left behind": any(".part" in file for file in left) or (done.exit_code == 2 and left - kept),
        }
        if present := [fault for fault, is_present in faults.items() if is_present]:
            raise BadEndError(present[0], f"{done.stderr[-300:]!r}, files {sorted(left)}")


def find_command(name: str) -> tuple[click.Command, list[str]]:
    """Return a command and the words that name it: those of a name up to its first other word."""
    command: click.Command = main
    path: list[str] = []
    for word in name.split():
        inner = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        if inner is None:
            break
        command = inner
        path.append(word)
    return command, path


COMMANDS = {  # command → its target
    f"dphmm {name}": Target(partial(list, [("words.json", json.dumps([name, *words]).encode())]), change_words, use)
    for name, words in BASES.items()
}


_ROOM = "/dev/shm" if Path("/dev/shm").is_dir() else None


@cache
def _make_template() -> Path:
    """Return the folder of the files that the words name, written once per process."""
    folder = Path(tempfile.mkdtemp(dir=_ROOM))
    (_, releases), session = seeds.make_seeds("releases-csv")[0], seeds.make_seeds("session")
    for name, data in (*seeds.read_documents("world"), *session, ("releases.csv", releases)):
        (folder / name).write_bytes(data)
    seeds.make_model().save(folder / "m.npz")
    return folder
