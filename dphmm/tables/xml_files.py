"""XML read element by element, without entities and document types."""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple
from xml.etree import ElementTree

from dphmm.errors import DataFileError
from dphmm.tables.source import Document
from dphmm.tables.values import shorten, shorten_message

_ENCODING = re.compile(rb"""^\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z][\w.-]{0,40})["']""")
# Accepted text encodings. Other codecs of Python can be very slow, or are not text encodings.
_ENCODINGS = re.compile(r"utf-?8|us-ascii|ascii|latin-?1|iso-8859-\d{1,2}|windows-125\d|cp125\d", re.IGNORECASE)
_DOCTYPE = "<!DOCTYPE"
_NAMES = {"trainingcenterdatabase": "TCX"}
# Maximum depth of nested elements.
MAX_DEPTH = 64
# Memory of an element that is not removed after use.
ELEMENT_BYTES = 400


class Tag(NamedTuple):
    """The begin or end of an element.

    Attributes
    ----------
    name
        Its name without namespace.
    is_end
        Whether the element is complete.
    element
        The element: without its children at its begin.
    """

    name: str
    is_end: bool
    element: ElementTree.Element


def decode_xml(document: Document) -> Iterator[str]:
    """Yield the text of an XML file in pieces, decoded as its declaration states.

    Parameters
    ----------
    document
        The file.

    Yields
    ------
    str
        A piece of the text.

    Raises
    ------
    ValueError
        If it is in another encoding than UTF-8, UTF-16, Latin ones or those of Windows, or declares a document type,
        with which a few lines can represent gigabytes or other files.
    """
    decoder = None
    last = ""
    has_begun = False
    for data in document.chunks():
        if decoder is None:
            decoder = codecs.getincrementaldecoder(_find_encoding(data))()
        text = decoder.decode(data)
        if _DOCTYPE in last + text:
            raise ValueError("it declares a document type, which this format does not have")
        last = (last + text)[-len(_DOCTYPE) :]
        if not has_begun:  # some apps write spaces before the declaration
            text = text.lstrip()
            has_begun = bool(text)
        yield text
    if decoder is not None:
        yield decoder.decode(b"", final=True)


def _find_encoding(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    declared = _ENCODING.match(data.removeprefix(b"\xef\xbb\xbf"))
    encoding = declared.group(1).decode("ascii") if declared else "utf-8"
    if not _ENCODINGS.fullmatch(encoding):
        raise ValueError(f"its encoding is {encoding}, not UTF-8")
    return "utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding


def walk_xml(document: Document, root: str, names: Collection[str]) -> Iterator[Tag]:
    """Yield the begins and ends of some elements, in order.

    An element is removed from the tree after its end. Memory is therefore bounded by the elements with other names.

    Parameters
    ----------
    document
        The file.
    root
        The name of the root element, without namespace, in lower case.
    names
        The names of the elements, without namespace.

    Yields
    ------
    Tag
        A begin or an end.

    Raises
    ------
    DataFileError
        If the file is not well-formed, has another root element, another encoding or a document type, or is nested
        too deeply; with the line if it is known.
    """
    parser: Any = ElementTree.XMLPullParser(("start", "end"))
    stack: list[ElementTree.Element] = []
    kept = 0
    local: dict[str, str] = {}
    try:
        for text in decode_xml(document):
            if document.allowance is not None:
                new = text.count("</") + text.count("/>")
                document.allowance.check_objects(kept + new, ELEMENT_BYTES)
            parser.feed(text)
            for event, element in parser.read_events():
                tag = element.tag
                name = local.get(tag)
                if name is None:
                    name = local[tag] = tag.rpartition("}")[2]
                if event == "start":
                    if not stack and name.lower() != root:
                        raise ValueError(f"its root element is {shorten(name)}")
                    stack.append(element)
                    if len(stack) > MAX_DEPTH:
                        raise ValueError("it is nested too deeply")
                    if name in names:
                        yield Tag(name, False, element)
                    continue
                stack.pop()
                if name in names:
                    yield Tag(name, True, element)
                    if stack:
                        stack[-1].remove(element)
                else:
                    kept += 1
        parser.close()
        if not local:
            raise ValueError("it is empty")
    except (ElementTree.ParseError, ValueError, LookupError) as problem:
        line = problem.position[0] if isinstance(problem, ElementTree.ParseError) else None
        raise DataFileError(
            document.source,
            f"is not well-formed {_NAMES.get(root) or root.upper()} ({shorten_message(problem)}); export it again",
            line,
        ) from None


def get_name(element: ElementTree.Element) -> str:
    """Return the name of an element without its namespace."""
    return element.tag.rpartition("}")[2]


def get_children(element: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """Return the children of an element by name, without namespace. The last one of each name."""
    return {child.tag.rpartition("}")[2]: child for child in element}
