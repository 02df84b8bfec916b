"""Errors about the value of an option name the option, in every command."""

from __future__ import annotations

import click
import pytest

from dphmm.cli import main
from tests.cli.test_keys import iterate_commands

REGION = ("--bbox", 44.995, -30.015, 45.005, -29.985, "--cell", 0.5)
# Command → a valid line.
LINES = {
    ("release",): ("walk.csv", "--model", "m.npz", "--policy", "complete", "-o", "new.csv"),
    ("batch",): ("walk.csv", "--model", "m.npz", "--policy", "complete", "-o", "new"),
    ("learn",): ("walk.csv", "-o", "new.npz", *REGION, "--step", 60),
    ("flows",): ("walk.csv", "-o", "new.csv", "--user-epsilon", 1, *REGION),
    ("calibrate",): ("--model", "m.npz", "--policy", "complete", "--max-posterior", 0.9),
    ("counts", "release"): ("--counts", "counts.csv", "--epsilon", 1, "-o", "new.csv"),
    ("counts", "postprocess"): ("counts.csv", "--num-users", 7, "--transition", "matrix.csv", "-o", "new.csv"),
    ("landmarks",): ("counts.csv", "--epsilon", 1, "--sensitivity", 1, "-o", "new.csv"),
    ("leak",): ("--epsilon", 1, "--steps", 3, "--forward", "matrix.csv"),
    ("budget",): ("--alpha", 1, "--forward", "matrix.csv"),
    ("synthesize",): ("m.npz", "-o", "new.csv"),
}
# Type of an option → a value that no range contains.
INVALID = {"float": "nan", "number": "nan", "integer": "-7"}


def list_number_options(path: tuple[str, ...]) -> list[str]:
    """Return the options of a command that take one number."""
    command = dict(iterate_commands(main))[path]
    return [
        max(option.opts, key=len)
        for option in command.params
        if isinstance(option, click.Option) and option.nargs == 1 and option.type.name in INVALID
    ]


@pytest.mark.parametrize("path", LINES, ids=" ".join)
def test_invalid_number_is_refused_by_the_name_of_its_option(world, run, path):
    (world / "counts.csv").write_text("time,place_0,place_1\n2024-01-01T00:00:00Z,3,4\n2024-01-01T01:00:00Z,3,4\n")
    (world / "matrix.csv").write_text("0.9,0.1\n0.1,0.9\n")
    command = dict(iterate_commands(main))[path]
    kinds = {max(option.opts, key=len): option.type.name for option in command.params}
    unnamed = {}
    for option in list_number_options(path):
        words = [*LINES[path]]
        if option in words:
            del words[words.index(option) : words.index(option) + 2]
        done = run(*path, *words, option, INVALID[kinds[option]])
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1), (option, done.output)
        if option not in done.stderr:
            unnamed[option] = done.stderr
    assert unnamed == {}


@pytest.mark.parametrize("command", ["batch", "learn"])
def test_unknown_format_of_input_is_not_called_the_format_of_output(world, run, command):
    options = ("--format", "csv") if command == "batch" else ()
    (world / "wrong.toml").write_text("input_format = 'foo'\n")
    done = run(command, *LINES[command,], *options, "--settings", "wrong.toml")
    assert done.exit_code == 2
    assert "the format of the input must be one of" in done.stderr
    assert "--format" not in done.stderr
