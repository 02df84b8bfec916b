"""Tests of the command's frame: fast help, one-line errors and quiet termination."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import time

import click
import pytest

import dphmm
from dphmm.cli import COMMANDS, main

PYTHON = [sys.executable, "-m", "dphmm"]


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["-h"]], ids=" ".join)
def test_help_and_version_import_no_numerics(words):
    code = (
        "import sys; from dphmm.cli import main\n"
        f"main({words!r}, standalone_mode=False)\n"
        "heavy = ('numpy', 'scipy', 'networkx', 'shapely', 'pyproj', 'pydantic', 'rich', 'matplotlib')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def _iterate_commands(command, path=()):
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from _iterate_commands(command.get_command(context, name), (*path, name))
    else:
        yield " ".join(path), command


def test_options_named_in_help_of_options_exist():
    missing = [
        (name, parameter.name, option)
        for name, command in _iterate_commands(main)
        for parameter in command.params
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", getattr(parameter, "help", None) or "")
        if not any(option in (*other.opts, *other.secondary_opts) for other in command.params)
    ]
    assert missing == []


def test_version_matches_package(run):
    assert run("--version").output == f"dphmm {dphmm.__version__}\n"


def test_help_lists_every_subcommand(run):
    listed = run("--help").output
    for name, short in COMMANDS.items():
        assert f"  {name} " in listed
        assert short.split(":")[0][:40] in listed
        assert run(name, "--help").exit_code == 0


def test_subcommand_without_module_is_not_listed(run, monkeypatch):
    monkeypatch.setitem(COMMANDS, "nowhere", "Does not exist.")
    assert "nowhere" not in run("--help").output
    assert run("nowhere").exit_code == 2


@pytest.mark.parametrize(
    "words",
    [["nowhere"], ["--nowhere"], ["learn"], ["release", "--nowhere"], ["data", "nowhere"]],
    ids=" ".join,
)
def test_invalid_call_prints_one_line_and_exits_with_2(run, words):
    result = run(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "--help" in result.stderr


@pytest.mark.slow
def test_closed_output_pipe_ends_command_quietly(world):
    line = '{"user": "a", "time": "2024-03-07T09:00:00Z", "latitude": 45, "longitude": -30}\n'
    words = [*PYTHON, "release", "--model", "m.npz", "--policy", "complete", "--epsilon", "1"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, **pipes, env=_build_environment()) as process:
        process.stdout.close()
        try:
            process.stdin.write(line.encode() * 50_000)
            process.stdin.close()
        except BrokenPipeError:
            pass
        assert process.stderr.read() == b""


@pytest.mark.slow
def test_interrupt_ends_command_quietly(world):
    words = [*PYTHON, "release", "--model", "m.npz", "--policy", "complete", "--epsilon", "1"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # Background shells ignore interrupts in children; this process handles them as in a terminal.
    listen = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(words, **pipes, env=_build_environment(), preexec_fn=listen) as process:
        line = b'{"user": "a", "time": "2024-03-07T09:00:00Z", "latitude": 45, "longitude": -30}\n'
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline()
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors == b""


def _build_environment():
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
