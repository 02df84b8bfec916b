"""The texts of the pages: every one in each language, with the same placeholders, and none outside their file."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from dphmm.serve.page import _REASONS, STATIC, TEXTS, language_of, reason_of
from tests.serve.test_delivery import log_in

PAGES, SCRIPTS = ("index.html", "link.html"), ("page.js", "zones.js", "map.js", "words.js", "link.js")
GIVEN = {"lang", "texts"}
"""What the relay puts into a page besides texts."""
NO_WORDS = {"true places", "moveend zoomend resize", "HTTP "}
"""What scripts compare with, events, and what is the same in every language."""


def source(name):
    return (STATIC / name).read_text(encoding="utf-8")


def keys_of_scripts():
    code = "\n".join(map(source, SCRIPTS))
    whole = set(re.findall(r'say\(\s*"(\w+)"', code)) | set(re.findall(r'\[\s*"((?:pause)_\w+)"', code))
    whole |= {key for pair in re.findall(r'say\([^?()]*\? "(\w+)" : "(\w+)"', code) for key in pair}
    beginnings = set(re.findall(r'say\("(\w+_)" \+', code)) | set(re.findall(r'"(\w+_)" \+ became', code))
    return {key for key in whole if not key.endswith("_")}, beginnings


@pytest.mark.parametrize("language", TEXTS)
def test_every_text_is_there_in_each_language_with_the_same_placeholders(language):
    english, texts = TEXTS["en"], TEXTS[language]
    assert list(texts) == list(english)
    for key, text in texts.items():
        assert text.strip() == text != ""
        assert sorted(re.findall(r"{(\w+)}", text)) == sorted(re.findall(r"{(\w+)}", english[key])), key
        assert set("{}<>") & set(re.sub(r"{\w+}", "", text)) == set(), key
    same = [key for key in texts if texts[key] == english[key] and " " in re.sub(r"{\w+}", "", english[key]).strip()]
    assert language == "en" or same == [], "not translated"


def test_every_text_that_the_pages_use_is_there_and_every_one_that_is_there_is_used():
    in_pages = {key for name in PAGES for key in re.findall(r"{{(\w+)}}", source(name))} - GIVEN
    whole, beginnings = keys_of_scripts()
    assert (in_pages | whole) - set(TEXTS["en"]) == set()
    assert all(any(key.startswith(one) for key in TEXTS["en"]) for one in beginnings)
    reasons = {f"reason_{key}" for key in _REASONS}
    assert reasons == {key for key in TEXTS["en"] if key.startswith("reason_")}
    unused = set(TEXTS["en"]) - in_pages - whole - reasons - {"language_name"}
    assert {key for key in unused if not key.startswith(tuple(beginnings))} == set()


class Words(HTMLParser):
    """The words that a page would show or read out."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_data(self, data):
        self.found += [data.strip()] if data.strip() else []

    def handle_starttag(self, _, attributes):
        self.found += [value for name, value in attributes if name in ("aria-label", "placeholder", "title", "alt")]


@pytest.mark.parametrize("name", PAGES)
def test_pages_hold_no_words_of_their_own(name):
    words = Words()
    words.feed(source(name))
    assert [one for one in words.found if not re.fullmatch(r"{{\w+}}", one)] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_hold_no_sentence_and_no_word_that_is_shown(name):
    code = re.sub(r"(^|\s)//.*", "", source(name))
    strings = {one for pair in re.findall(r'"((?:[^"\\\n]|\\.)*)"|`([^`]*)`', code) for one in pair if one} - NO_WORDS
    technical = re.compile(
        r"[\w-]+(:[\w-]+)?( [\w-]+:[\w-]+)*|.*[=#.>;/$].*|name large|name person( leftwards)?|[\d ]+|Bearer "
    )
    assert [one for one in strings if re.search(r"[^\W\d_]{2}", one) and not technical.fullmatch(one)] == []
    assert not re.search(r"""(textContent|title|Error\(|tell\(|made\("\w+",)\s*[=:]?\s*"[A-Za-z]""", code)


class Asked:
    """A request with a language in its header or its cookie."""

    def __init__(self, header, cookie=""):
        self.headers, self.cookies = {"accept-language": header}, {"dphmm-language": cookie}


@pytest.mark.parametrize(
    ("header", "cookie", "language"),
    [
        ("de-AT,de;q=0.9,en;q=0.8", "", "de"), ("en;q=0.5, fr;q=0.7", "", "fr"), ("zh-Hans-CN", "", "zh"),
        ("pt-BR, es;q=0.1", "", "es"), ("pt", "", "en"), ("", "", "en"), ("de;q=0, fr", "", "fr"),
        (";q=;,,*", "", "en"),
        ("de", "zh", "zh"), ("de", "../x", "de"),
    ],
)  # fmt: skip
def test_the_language_is_the_one_that_was_chosen_or_else_the_first_that_the_browser_accepts(header, cookie, language):
    assert language_of(Asked(header, cookie)) == language


SQUARE = {"type": "Polygon", "coordinates": [[[-30, 45], [-29.99, 45], [-29.99, 45.01], [-30, 45.01], [-30, 45]]]}
BOW = {"type": "Polygon", "coordinates": [[[-30, 45], [-29.99, 45], [-30, 45], [-30, 45]]]}
TINY = {"type": "Polygon", "coordinates": [[[10, 5], [10.01, 5], [10.01, 5.01], [10, 5]]]}
METRES = {"type": "Polygon", "coordinates": [[[400000, 5], [400010, 5], [400010, 50], [400000, 5]]]}


def zones(*shapes, elsewhere="policy"):
    features = [{"type": "Feature", "properties": {"name": name}, "geometry": geometry} for name, geometry in shapes]
    return {"zones": {"type": "FeatureCollection", "features": features}, "elsewhere": elsewhere}


@pytest.mark.parametrize(
    ("key", "asked", "path"),
    [
        ("overlap", zones(("O'Neill's", SQUARE), ("work", SQUARE)), "price"),
        ("no_cell", zones(("home", TINY)), "zones"),
        ("crosses", zones(("home", BOW)), "price"),
        ("degrees", zones(("home", METRES)), "zones"),
        ("no_polygon", {"zones": {"features": 7}}, "price"),
        ("no_name", zones((" ", SQUARE)), "zones"),
        ("no_zone", zones(elsewhere="exact"), "zones"),
        ("ended", {"name": "Bea", "epsilon": None, "ends": 1}, "link"),
        ("no_name", {"name": "", "epsilon": None, "ends": 1}, "link"),
        ("when", {"name": "Bea", "epsilon": None, "ends": 2**37}, "link"),
    ],
)
def test_why_something_cannot_be_is_said_in_the_language_of_the_page(client, key, asked, path):
    log_in(client)
    for language in ("de", "zh"):
        answer = client.post(f"/page/{path}", json=asked, headers={"Accept-Language": language})
        assert answer.status_code == 400
        shown = re.escape(TEXTS[language][f"reason_{key}"])
        assert re.fullmatch(re.sub(r"\\{\w+\\}", ".+", shown), answer.json()["error"]), answer.json()


def test_a_reason_that_the_page_has_no_words_for_is_shown_as_it_is():
    assert reason_of(Asked("de"), "there are 20 links already; end one first").startswith("Es gibt schon 20 Links")
    assert reason_of(Asked("de"), "session 'ann' keeps caps on events, under its first").startswith("Das Relay")
    assert reason_of(Asked("de"), "something else") == "something else"
