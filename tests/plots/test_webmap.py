from __future__ import annotations

import json
import re

import numpy as np
import pytest

from dphmm.errors import InvalidInputError
from dphmm.plots.webmap import MapLayer, web_map


def _data(page):
    return json.loads(page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])


def test_the_page_holds_the_layers_as_they_were_given():
    points = np.array([[0.0, 1.0], [2.5, -3.25]])
    layer = MapLayer("released", "dots", "#d55e00", points, [{"epsilon": 1}, {"epsilon": 2}], ["a", "b"], ["t1", "t2"])
    ring = MapLayer("areas", "outlines", "#888", [[[0, 0], [1, 0], [1, 1]]], [{"name": "x"}], visible=False)
    found = _data(web_map([ring, layer], "Title"))["layers"]
    assert [one["name"] for one in found] == ["areas", "released"]
    assert found[1]["points"] == points.tolist()
    assert found[1]["facts"] == [{"epsilon": "1"}, {"epsilon": "2"}]
    assert found[0]["visible"] is False


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "{{data}}", "{{note}} & \\1 $&", "<b>é</b>"])
def test_no_text_breaks_out_of_its_place(text):
    layer = MapLayer(text, "dots", "#000", [[0, 0]], [{text: text}], [text], [text])
    page = web_map([layer], text, text)
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert _data(page)["layers"][0]["name"] == text
    assert _data(page)["layers"][0]["facts"] == [{text: text}]


def test_the_page_may_ask_nothing_of_a_network():
    page = web_map([], "Title")
    assert "default-src 'none'" in page
    assert not re.search(r"https?:|<link|src=|@import|url\(|fetch\(|XMLHttp", page)


def test_a_point_that_is_no_place_and_facts_that_do_not_fit_are_refused():
    with pytest.raises(InvalidInputError, match="not finite"):
        web_map([MapLayer("a", "dots", "#000", [[np.nan, 0]])], "T")
    with pytest.raises(InvalidInputError, match="layer 'a' has 1 points and 2 users"):
        web_map([MapLayer("a", "dots", "#000", [[0, 0]], users=["x", "y"])], "T")
