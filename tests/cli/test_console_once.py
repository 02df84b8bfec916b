"""No command keeps the last of an option's values and drops the others without a word."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from dphmm.cli import main


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command and group, with the words that call it."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            part = command.get_command(context, name)
            assert part is not None
            yield from commands(part, (*words, name))


ONCE = [
    (words, option)
    for words, command in commands(main)
    for option in command.params
    if isinstance(option, click.Option) and not (option.multiple or option.is_flag)
]
COMMANDS = list(dict.fromkeys(words for words, _ in ONCE))


def given(option: click.Option) -> list[str]:
    return [option.opts[-1], *["1"] * option.nargs]


def test_there_are_options_of_every_kind():
    assert len(ONCE) > 200
    assert {option.nargs for _, option in ONCE} == {1, 2, 4}
    assert len(COMMANDS) > 20


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_second_value_of_any_option_is_refused_in_one_line(run, words):
    for option in (option for whose, option in ONCE if whose == words):
        done = run(*words, *given(option), *given(option))
        assert done.exit_code == 2, option
        assert done.stdout == ""
        assert f"{option.opts[-1]} is given 2 times; give it once" in done.stderr
        assert done.stderr.count("\n") == 1


def test_what_takes_several_says_how(run):
    done = run("learn", "--exclude-users", "001", "--users", "a", "--exclude-users", "003", "walks.csv")
    assert "--exclude-users is given 2 times; give it once, as --exclude-users A,B,…." in done.stderr


def test_flags_and_options_of_many_values_may_be_repeated(run, tmp_path):
    flags = ["--skip-bad", "--skip-bad", "--column", "user=who", "--column", "time=when"]
    done = run("learn", str(tmp_path / "nowhere.csv"), "-o", str(tmp_path / "model.npz"), *flags)
    assert done.exit_code == 2
    assert "nowhere.csv" in done.stderr
