"""Commands that take the value of an option once: of a second, click would keep the last and say nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click


class Once(click.Command):
    """A command that refuses a second value of an option which takes one. Flags may be repeated."""

    def make_parser(self, ctx: click.Context) -> Any:
        """Click's parser, which then counts what it was given."""
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            found = parse(args)
            for option, count in Counter(found[2]).items():
                once = isinstance(option, click.Option) and not (option.multiple or option.is_flag)
                if once and count > 1 and not ctx.resilient_parsing:
                    ctx.fail(_refusal(option, count))
            return found

        parser.parse_args = parse_once  # type: ignore[method-assign]
        return parser


class OnceGroup(Once, click.Group):
    """A group whose own options and whose commands' are given once."""

    command_class = Once


def _refusal(option: click.Parameter, count: int) -> str:
    name, said = option.opts[-1], option.metavar or ""
    several = f", as {name} {said}" if "," in said else ""
    return f"{name} is given {count} times; give it once{several}."
