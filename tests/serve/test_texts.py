"""Tests of the pages' texts: complete, with equal placeholders, and all in one file."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser

import numpy as np
import pytest

from dphmm.release.session_zones import Zones
from dphmm.serve import page
from dphmm.serve.page import _REASON_PATTERNS, STATIC, TEXTS, choose_language, localize_reason
from tests.serve.conftest import serve_relay
from tests.serve.test_delivery import describe_recipient, log_in
from tests.serve.test_page import HOME

PAGES = ("index.html", "link.html")
SCRIPTS = (
    "page.js",
    "zones.js",
    "drawing.js",
    "map.js",
    "words.js",
    "link.js",
)
# The values that the relay inserts into a page in addition to texts.
PAGE_VALUES = {"lang", "texts"}
# Values that scripts compare with, events, and strings that are equal in every language.
NO_WORDS = {"true locations", "moveend zoomend resize", "HTTP "}


def read_source(name):
    return (STATIC / name).read_text(encoding="utf-8")


def find_script_keys():
    code = "\n".join(map(read_source, SCRIPTS))
    whole = set(re.findall(r'translate\(\s*"(\w+)"', code)) | set(re.findall(r'\[\s*"((?:pause)_\w+)"', code))
    whole |= {key for pair in re.findall(r'translate\([^?()]*\? "(\w+)" : "(\w+)"', code) for key in pair}
    beginnings = set(re.findall(r'translate\("(\w+_)" \+', code)) | set(re.findall(r'"(\w+_)" \+ outcome', code))
    return {key for key in whole if not key.endswith("_")}, beginnings


def check_translation(texts, english):
    """Check that texts have the keys and placeholders of the English ones, translated."""
    assert list(texts) == list(english)
    for key, text in texts.items():
        assert text.strip() == text != ""
        assert sorted(re.findall(r"{(\w+)}", text)) == sorted(re.findall(r"{(\w+)}", english[key])), key
        assert set("{}<>") & set(re.sub(r"{\w+}", "", text)) == set(), key
    same = [key for key in texts if texts[key] == english[key] and " " in re.sub(r"{\w+}", "", english[key]).strip()]
    assert texts is english or same == [], "not translated"


@pytest.mark.parametrize("language", TEXTS)
def test_texts_are_complete_in_each_language_with_equal_placeholders(language):
    check_translation(TEXTS[language], TEXTS["en"])


def test_used_texts_exist_and_existing_texts_are_used():
    in_pages = {key for name in PAGES for key in re.findall(r"{{(\w+)}}", read_source(name))} - PAGE_VALUES
    whole, beginnings = find_script_keys()
    assert (in_pages | whole) - set(TEXTS["en"]) == set()
    assert all(any(key.startswith(prefix) for key in TEXTS["en"]) for prefix in beginnings)
    reasons = {f"reason_{key}" for key in _REASON_PATTERNS}
    assert reasons == {key for key in TEXTS["en"] if key.startswith("reason_")}
    unused = set(TEXTS["en"]) - in_pages - whole - reasons - {"language_name"}
    assert {key for key in unused if not key.startswith(tuple(beginnings))} == set()


def test_zone_of_an_estimate_is_not_called_probable_in_any_language():
    """The mean of a belief can lie in a zone in which the user cannot be."""
    masses, points = np.array([0.5, 0.5]), np.array([[44.9, -30.0], [45.1, -30.0]])
    drawn = Zones.from_page(make_zones(("clinic", {"type": "Polygon", "coordinates": [HOME]})))
    assert drawn.find_zone_name(*(masses @ points).tolist()) == "clinic"
    assert all(drawn.find_zone_name(*point) != "clinic" for point in points.tolist())
    probable = re.compile("probabl|wahrscheinlich|vermutlich|可能")
    for texts in TEXTS.values():
        assert probable.search(texts["infer_street"])
        assert not probable.search(texts["infer_zone"])


class Words(HTMLParser):
    """A parser that collects the visible and spoken words of a page."""

    def __init__(self):
        super().__init__()
        self.words = []

    def handle_data(self, data):
        self.words += [data.strip()] if data.strip() else []

    def handle_starttag(self, _, attributes):
        self.words += [value for name, value in attributes if name in ("aria-label", "placeholder", "title", "alt")]


@pytest.mark.parametrize("name", PAGES)
def test_pages_contain_no_literal_words(name):
    words = Words()
    words.feed(read_source(name))
    assert [word for word in words.words if not re.fullmatch(r"{{\w+}}", word)] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_contain_no_literal_words(name):
    code = re.sub(r"(^|\s)//.*", "", read_source(name))
    strings = {
        string for pair in re.findall(r'"((?:[^"\\\n]|\\.)*)"|`([^`]*)`', code) for string in pair if string
    } - NO_WORDS
    technical = re.compile(
        r"[\w-]+(:[\w-]+)?( [\w-]+:[\w-]+)*|.*[=#.>;/$].*|name large|name user( leftwards)?|[\d ]+|Bearer "
    )
    assert [string for string in strings if re.search(r"[^\W\d_]{2}", string) and not technical.fullmatch(string)] == []
    assert not re.search(r"""(textContent|title|Error\(|showMessage\(|makeElement\("\w+",)\s*[=:]?\s*"[A-Za-z]""", code)


class FakeRequest:
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
def test_language_is_chosen_or_first_accepted(header, cookie, language):
    assert choose_language(FakeRequest(header, cookie)) == language


SQUARE = {"type": "Polygon", "coordinates": [[[-30, 45], [-29.99, 45], [-29.99, 45.01], [-30, 45.01], [-30, 45]]]}
BOW = {"type": "Polygon", "coordinates": [[[-30, 45], [-29.99, 45], [-30, 45], [-30, 45]]]}
TINY = {"type": "Polygon", "coordinates": [[[10, 5], [10.01, 5], [10.01, 5.01], [10, 5]]]}
LARGE = {"type": "Polygon", "coordinates": [[[-30, 45], *[[-29.99, 45 + k * 1e-6] for k in range(1999)], [-30, 45]]]}
UNCUT = {"type": "Polygon", "coordinates": [[[179, 5], [-179, 5], [-179, 6], [179, 5]]]}
METRES = {"type": "Polygon", "coordinates": [[[400000, 5], [400010, 5], [400010, 50], [400000, 5]]]}


def make_zones(*shapes, elsewhere="policy"):
    features = [{"type": "Feature", "properties": {"name": name}, "geometry": geometry} for name, geometry in shapes]
    return {"zones": {"type": "FeatureCollection", "features": features}, "elsewhere": elsewhere}


@pytest.mark.parametrize(
    ("key", "body", "path"),
    [
        ("overlap", make_zones(("O'Neill's", SQUARE), ("work", SQUARE)), "preview"),
        ("no_cell", make_zones(("home", TINY)), "zones"),
        ("crosses", make_zones(("home", BOW)), "preview"),
        ("degrees", make_zones(("home", METRES)), "zones"),
        ("date_line", make_zones(("home", UNCUT)), "zones"),
        ("no_polygon", {"zones": {"features": 7}}, "preview"),
        ("corners", make_zones(("home", LARGE)), "zones"),
        ("no_name", make_zones((" ", SQUARE)), "zones"),
        ("away", make_zones((" away ", SQUARE)), "preview"),
        ("no_zone", make_zones(elsewhere="exact"), "zones"),
        ("ended", {"name": "Bea", "epsilon": None, "ends": 1}, "link"),
        ("no_name", {"name": "", "epsilon": None, "ends": 1}, "link"),
        ("when", {"name": "Bea", "epsilon": None, "ends": 2**37}, "link"),
        ("precision", {"name": "Bea", "precision_m": 123, "ends": 2**31}, "link"),
        ("precision", {"name": "Bea", "precision_m": False, "ends": 2**31}, "link"),
    ],
)
def test_reason_of_error_is_given_in_language_of_page(client, key, body, path):
    log_in(client)
    for language in ("de", "zh"):
        answer = client.post(f"/page/{path}", json=body, headers={"Accept-Language": language})
        assert answer.status_code == 400
        shown = re.escape(TEXTS[language][f"reason_{key}"])
        assert re.fullmatch(re.sub(r"\\{\w+\\}", ".+", shown), answer.json()["error"]), answer.json()


def test_unknown_reason_is_shown_unchanged():
    assert localize_reason(FakeRequest("de"), "there are 20 links already; end one first").startswith(
        "Es gibt schon 20 Links"
    )
    assert localize_reason(
        FakeRequest("de"), "session 'ann' has event caps, so its settings must not change"
    ).startswith("Das Relay")
    assert localize_reason(FakeRequest("de"), "something else") == "something else"


def test_unavailable_precision_of_a_link_is_named(config, inbox, monkeypatch):
    monkeypatch.setattr(page, "localize_reason", lambda _, reason: reason)
    with serve_relay(config(recipient=[describe_recipient(inbox, precision="5km")])) as client:
        log_in(client)
        body = {"name": "Bea", "precision_m": 123, "ends": int(time.time()) + 3600}
        error = client.post("/page/link", json=body).json()["error"]
        assert error == "precision_m must be one of 0, 5000, got 123; reload the page"
        assert client.post("/page/link", json=body | {"precision_m": 5000}).status_code == 200
