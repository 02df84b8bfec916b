"""`scripts.wording` reports banned phrases, names and long first lines, and accepts plain text."""

from __future__ import annotations

import pytest

from scripts.wording import BANNED, Report, check_columns, check_python, check_text

MATCHES = [
    "Nobody can tell where the user is, and everybody sees it.",
    "an observer who knows the model",
    "the user is told",
    "a value that is none is refused",
    "a string is no number",
    "Left out, one step.",
    "give a number",
    "the edges that were looked at",
    "how sure the adversary is",
    "confident in hindsight",
    "at every moment",
    "besides, it is exact",
    "a step of its own",
    "unless it is said",
    "people who do not exist",
    "keep it to yourself",
    "What the model contains.",
    "the same of the other states",
    "a whole number",
    "exact; before, it was rounded",
    "states whose degree is 1",
    "a reader who receives the release",
]


@pytest.mark.parametrize(("pattern", "text"), list(zip(BANNED, MATCHES, strict=True)), ids=range(len(BANNED)))
def test_each_pattern_matches_its_example(pattern, text):
    report = Report()
    check_text(report, "page.md", 1, f"A plain first line.\n{text}\n")
    assert any(message.endswith(BANNED[pattern]) and message.startswith("page.md:2:") for message in report.matches)


def test_plain_text_has_no_matches():
    report = Report()
    check_text(report, "page.md", 1, "The constraint set contains every state that the model considers possible.")
    assert (report.num_words, report.num_matches, report.rate) == (11, 0, 0.0)


def test_terms_of_other_libraries_are_allowed():
    report = Report()
    check_text(report, "plot.py", 1, "ax.tick_params(which='both')\nax.set_xticks([0, 1])")
    assert report.num_matches == 0


def test_rate_is_per_thousand_words():
    report = Report()
    check_text(report, "page.md", 1, "word " * 1999 + "somebody")
    assert report.rate == 0.5


@pytest.mark.parametrize(
    ("source", "flaw"),
    [
        ("for one in edges:\n    print(one)\n", "'one' is not a name"),
        ("people = 3\n", "'people' is not a name"),
        ("_KEPT = 16\n", "'_KEPT': name quantity and unit"),
        ("MOST_STATES = 16\n", "'MOST_STATES': name quantity and unit"),
        ("def hull_of(body):\n    pass\n", "'hull_of': start with a verb"),
        ("def _hull(body):\n    pass\n", "'_hull': start with a verb"),
        (f'"""{"A" * 89}"""\n', "a first line of 89 characters"),
        (f'def f():\n    """{"A" * 89}"""\n', "a first line of 89 characters"),
        ('"""A module; with a part."""\n', "a semicolon in a first line"),
        ('SIZE = 16\n"""The size."""\n', "a string after an assignment"),
        ("def f(x):\n    return (y := x) + (z := y)\n", "'f' assigns several names in expressions"),
        ("print(x := 3)\n", "an argument assigns a name"),
        ("a, b, c = 1, 2, 3\n", "one line assigns three names or more"),
    ],
    ids=[
        "name",
        "user",
        "constant",
        "bound",
        "function",
        "private function",
        "module summary",
        "function summary",
        "semicolon",
        "string",
        "expressions",
        "argument",
        "tuple",
    ],
)
def test_flawed_code_is_reported_with_its_place(source, flaw):
    report = Report()
    check_python(report, "module.py", source)
    assert any(flaw in message and message.startswith("module.py:") for message in report.flaws)


def test_long_lines_of_prose_are_reported_and_code_and_tables_are_not():
    report, line = Report(), "word " * 20
    check_columns(report, "page.md", f"Short.\n{line}\n```\n{line}\n```\n| {line} |\n")
    assert report.flaws == ["page.md:2: a line of 100 characters, at most 88"]


def test_comments_strings_and_test_names_are_checked():
    report = Report()
    source = '# nobody sees this\ntext = "somebody"\n\n\ndef test_everybody_is_told():\n    pass\n'
    check_python(report, "test_module.py", source)
    assert sorted(int(message.split(":")[1]) for message in report.matches) == [1, 2, 5, 5]


def test_plain_code_has_no_flaws():
    report = Report()
    check_python(report, "module.py", '"""A module."""\n\n_CACHE_SIZE = 16\n\nfor edge in [(0, 1)]:\n    print(edge)\n')
    assert (report.num_matches, report.flaws) == (0, [])
