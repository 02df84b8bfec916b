"""Extreme values for readers, and their random choice."""

from __future__ import annotations

from pathlib import Path
from random import Random

INTEGERS = (0, 2, 10**18, 10**30, 253402300799, 253402300800, 64_092_211_200)
_BITS = (0, 7, 8, 15, 16, 31, 32, 53, 63, 64)
INTEGERS += tuple(sign * (2**bits + by) for bits in _BITS for by in (-1, 0) for sign in (1, -1))

FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-9, 5e-324, 1e-308, 1e-300, 1e15, 1e16, 1e22, 1e300, 1.7e308, 0.1, 1e-12, 1 / 3)
FLOATS += (90.0, 90.0000001, -180.0, 180.0000001, 1.000000001, float("inf"), float("-inf"), float("nan"))


def get_words(name: str) -> list[str]:
    """Return the lines of a file in the folder of words."""
    return (Path(__file__).parent / "words" / f"{name}.txt").read_text(encoding="utf-8").split("\n")[:-1]


NUMBERS = [*get_words("numbers"), "1" + "0" * 400, "9" * 4300, "9" * 4301, "-" + "9" * 5000, "0." + "0" * 400 + "1"]
NUMBERS += ["", " 7 ", "\t7", "7\x00"]
TIMES = get_words("times")
TEXTS = [*get_words("texts"), "", " ", "\t", "\n", "\x00", "\x1b[31m", "\ufeff", "\u2028", "\u202e", "a" * 300]
TEXTS += ["x" * 70_000, "\x1b[2J\x07\x00\r\n\x9b\u202e", "\U0001f600", "\u0301" * 50, "\ufffe"]
DEEP = ("[" * 900 + "]" * 900, "[" * 100_000, '{"a":' * 900 + "1" + "}" * 900, "(" * 3000 + ")" * 3000)


def make_text(rng: Random) -> str:
    """Return a random text: a number, a time, words, or nested brackets."""
    numbers = (rng.choice(NUMBERS), repr(rng.choice(INTEGERS)), repr(rng.choice(FLOATS)))
    (chosen,) = rng.choices((*numbers, rng.choice(TIMES), rng.choice(TEXTS), rng.choice(DEEP)), (18, 9, 8, 20, 42, 3))
    return chosen
