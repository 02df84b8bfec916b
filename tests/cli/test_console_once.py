"""Tests that no command silently drops repeated values of an option."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from dphmm.cli import main


def iterate_commands(
    command: click.Command, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command and group with the words that call it."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            part = command.get_command(context, name)
            assert part is not None
            yield from iterate_commands(part, (*words, name))


ONCE = [
    (words, option)
    for words, command in iterate_commands(main)
    for option in command.params
    if isinstance(option, click.Option) and not (option.multiple or option.is_flag)
]
COMMANDS = list(dict.fromkeys(words for words, _ in ONCE))


def repeat_words(option: click.Option) -> list[str]:
    return [option.opts[-1], *["1"] * option.nargs]


def test_options_of_all_arities_are_covered():
    assert len(ONCE) > 200
    assert {option.nargs for _, option in ONCE} == {1, 2, 4}
    assert len(COMMANDS) > 20


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_repeated_option_raises_in_one_line(run, words):
    for option in (option for command, option in ONCE if command == words):
        done = run(*words, *repeat_words(option), *repeat_words(option))
        assert done.exit_code == 2, option
        assert done.stdout == ""
        assert f"{option.opts[-1]} must occur once, got 2 times" in done.stderr
        assert done.stderr.count("\n") == 1


def test_error_states_how_to_pass_multiple_values(run):
    done = run("learn", "--exclude-users", "001", "--users", "a", "--exclude-users", "003", "walks.csv")
    assert "--exclude-users must occur once, got 2 times: use --exclude-users A,B,… once." in done.stderr


def test_flags_and_multiple_options_may_be_repeated(run, tmp_path):
    flags = [{"skip_bad": True}, {"skip_bad": True}, {"columns": {"user": "who"}}, {"columns": {"time": "when"}}]
    done = run("learn", str(tmp_path / "nowhere.csv"), "-o", str(tmp_path / "model.npz"), *flags)
    assert done.exit_code == 2
    assert "nowhere.csv" in done.stderr
