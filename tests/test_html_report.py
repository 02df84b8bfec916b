"""A page contains its text, escaped, and loads nothing."""

from __future__ import annotations

import base64
import re

from dphmm.html_report import Cell, Picture, Section, html_page

PNG = b"\x89PNG\r\n\x1a\n"


def test_page_escapes_text_and_embeds_pictures():
    section = Section("s", ["x < y"], ("h<",), [("<td>",)], [Picture(PNG, "c<d")], "p\n<q>")
    page = html_page("<b>", "a & b", True, [section])
    assert "<b>" not in page
    for escaped in (
        "&lt;b&gt;",
        "a &amp; b",
        "x &lt; y",
        "h&lt;",
        "<td>&lt;td&gt;</td>",
        "c&lt;d",
        "<pre>p\n&lt;q&gt;",
    ):
        assert escaped in page
    (data,) = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert base64.b64decode(data) == PNG


def test_cell_has_note_and_mark():
    page = html_page("t", "v", False, [Section("s", (), ("h",), [(Cell("1<2", "of <3", "good"),)])])
    assert '<td class="good">1&lt;2<small>of &lt;3</small></td>' in page


def test_page_forbids_loading():
    assert "default-src 'none'" in html_page("t", "v", False, [])
