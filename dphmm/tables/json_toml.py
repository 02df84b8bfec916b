"""JSON (RFC 8259) and TOML in files, lines and tables, parsed with limits on size."""

from __future__ import annotations

import codecs
import json
import re
import tomllib
from collections.abc import Collection, Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dphmm.errors import DataFileError
from dphmm.tables.source import NOT_UTF8, Document, read_document
from dphmm.tables.values import is_text, shorten_message, shorten_repr

if TYPE_CHECKING:
    from pydantic import ValidationError

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


# Memory of an empty object or list, in bytes. A number in a list takes half.
_OBJECT_BYTES = 64


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text.

    Numbers may be ``NaN`` and ``Infinity``, as Python and JavaScript write them.

    Parameters
    ----------
    text
        The text, or its UTF-8 bytes with or without a byte order mark.

    Returns
    -------
    object
        The parsed value, as returned by `json.loads`.

    Raises
    ------
    ValueError
        If it is not JSON, is nested about a thousand levels deep, has an integer of over 4,300 digits, or a string in
        it contains an unpaired surrogate, which cannot be written.
    """
    try:
        plain = text if isinstance(text, str) else text.decode("utf-8-sig")
        value = json.loads(plain)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except ValueError:
        raise ValueError("it has an integer of thousands of digits") from None
    if _SURROGATE.search(plain) and not is_text(json.dumps(value, ensure_ascii=False)):
        raise ValueError("a string in it contains an unpaired surrogate")
    return value


def read_json(document: Document, form: str = "JSON") -> Any:
    """Parse a JSON file.

    Parameters
    ----------
    document
        The file.
    form
        The required form, for the message.

    Returns
    -------
    object
        The parsed value, as returned by `json.loads`.

    Raises
    ------
    DataFileError
        As for `parse_json`, with the line if it is known; also if a packed file contains more objects and lists than
        `dphmm.tables.max_unpacked` allows.
    """
    document.check_objects((b"{", b"[", b","), _OBJECT_BYTES)
    try:
        return parse_json(document.text())
    except json.JSONDecodeError as problem:
        raise DataFileError(
            document.source, f"is not {form} ({problem.msg}); it may be cut off", problem.lineno
        ) from None
    except DataFileError:
        raise
    except ValueError as problem:
        raise DataFileError(document.source, f"is not usable JSON ({problem}); export it again") from None


# A value that is longer is read by a larger buffer. Longer ones are not values of the formats that are read.
_BUFFER_CHARACTERS = 1 << 20
_MAX_VALUE_CHARACTERS = 1 << 28
# A value that is cut off fails in its last characters: "\\ud83d" or "-Infinity" are the longest tokens but strings.
_LONGEST_TOKEN = 16
# RFC 8142 separates the values of a sequence by record separators.
_SPACE = re.compile(r"[\s\x1e]*")


class JsonItems:
    """The items of a JSON file, read in order with a bounded buffer.

    Parameters
    ----------
    document
        The file: one value, or a sequence of values, separated by spaces, newlines or record separators.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._chunks = document.chunks()
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = 0
        self._line = 1
        self._has_ended = False
        self._parse = json.JSONDecoder().raw_decode

    def walk(self, lists: Collection[str]) -> Iterator[tuple[str, Any]]:
        """Yield the items of the file.

        Parameters
        ----------
        lists
            The keys of outer objects under which a list of items is expected.

        Yields
        ------
        key, item
            The items of a list, with its key; those of a list without a key, with an empty one. Values of another kind
            have an empty key; an object comes without its lists, after their items.

        Raises
        ------
        DataFileError
            If the file is not JSON, is nested too deeply or cut off, with the line; or contains a value of more than
            256 MiB; or if a packed one contains more objects than `dphmm.tables.max_unpacked` allows.
        """
        while self._peek():
            value = self._parse_whole_value() if self._text[self._at] in "{[" else (self._parse_value(),)
            if value is None and self._text[self._at] == "[":
                yield from (("", item) for item in self._iterate_list())
            elif value is None:
                yield from self._iterate_members(lists)
            elif isinstance(value[0], dict):
                rest = dict(value[0])
                for key in lists:
                    if isinstance(rest.get(key), list):
                        yield from ((key, item) for item in rest.pop(key))
                yield "", rest
            else:
                yield from (("", item) for item in (value[0] if isinstance(value[0], list) else value))

    def _iterate_members(self, lists: Collection[str]) -> Iterator[tuple[str, Any]]:
        """Yield the items of an object that exceeds the buffer."""
        rest = {}
        self._at += 1
        while self._peek() != "}":
            key = self._parse_value()
            if not isinstance(key, str) or self._peek() != ":":
                raise self._build_error("a key must be a string")
            self._at += 1
            if self._peek() == "[" and key in lists:
                yield from ((key, item) for item in self._iterate_list())
            else:
                rest[key] = self._parse_value()
            self._end_member("}")
        self._at += 1
        yield "", rest

    def _iterate_list(self) -> Iterator[Any]:
        self._at += 1
        while self._peek() != "]":
            yield self._parse_value()
            self._end_member("]")
        self._at += 1

    def _end_member(self, end: str) -> None:
        mark = self._peek()
        if mark == ",":
            self._at += 1
            if self._peek() == end:
                raise self._build_error("a comma without a value after it")
        elif mark != end:
            raise self._build_error(f"',' or '{end}' expected")

    def _peek(self) -> str:
        """Skip spaces, and return the next character. Empty at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            self._at = self._at if match is None else match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill():
                return ""

    def _parse_whole_value(self) -> tuple[Any] | None:
        """Parse the next value if the buffer contains all of it."""
        try:
            return (self._parse_value(max_characters=_BUFFER_CHARACTERS),)
        except _TooLong:
            return None

    def _parse_value(self, max_characters: int = _MAX_VALUE_CHARACTERS) -> Any:
        while True:
            if self._at >= len(self._text) and not self._fill():
                raise self._build_error("it may be cut off")
            try:
                value, end = self._parse(self._text, self._at)
                # The rest of a number may follow: "-12.5e" is parsed as -12.5.
                is_short = end + _LONGEST_TOKEN > len(self._text) and not isinstance(value, str | list | dict)
                if not is_short or self._has_ended:
                    self._at = end
                    return value
            except RecursionError:
                raise self._build_error("it is nested too deeply") from None
            except json.JSONDecodeError as caught:
                is_cut = caught.pos >= len(self._text) - _LONGEST_TOKEN or caught.msg.startswith("Unterminated")
                if not is_cut or self._has_ended:
                    raise self._build_error(f"{caught.msg}; it may be cut off", caught.pos) from None
            except ValueError:
                raise self._build_error("it has an integer of thousands of digits") from None
            if len(self._text) - self._at > max_characters:
                if max_characters < _MAX_VALUE_CHARACTERS:
                    raise _TooLong
                raise self._build_error("a value is longer than 256 MiB")
            self._fill()

    def _fill(self) -> bool:
        """Read on. Return false at the end of the file."""
        if self._has_ended:
            return False
        if self._at:
            self._line += self._text.count("\n", 0, self._at)
            self._text, self._at = self._text[self._at :], 0
        # The buffer doubles while a value does not fit: parsing it again then costs twice its length at most.
        wanted = max(_BUFFER_CHARACTERS, len(self._text))
        parts = [self._text]
        while wanted > 0 and not self._has_ended:
            chunk = next(self._chunks, b"")
            self._has_ended = not chunk
            try:
                parts.append(self._decoder.decode(chunk, final=not chunk))
            except UnicodeDecodeError:
                raise DataFileError(self._document.source, NOT_UTF8, self._line) from None
            wanted -= len(parts[-1])
        self._text = "".join(parts)
        if self._document.allowance is not None:
            self._document.allowance.check_objects(sum(map(self._text.count, "{[,")), _OBJECT_BYTES)
        return True

    def _build_error(self, problem: str, at: int | None = None) -> DataFileError:
        line = self._line + self._text.count("\n", 0, self._at if at is None else at)
        return DataFileError(self._document.source, f"is not JSON ({problem})", line)


class _TooLong(Exception):
    """A value exceeds the buffer."""


_MAX_CHARACTERS = 1 << 20
_MAX_DOTS = 1000  # the library takes time quadratic in the length of a dotted key
_INTEGER_LIMIT = 1 << 63
_MAX_DEPTH = 32


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text.

    Parameters
    ----------
    text
        The text.

    Returns
    -------
    dict
        The parsed table, as returned by `tomllib.loads`.

    Raises
    ------
    ValueError
        If it is not TOML, or exceeds the limits for settings: a mebibyte, 32 levels of nesting, a thousand dots in a
        line (dotted keys take the library quadratic time), or integers of 64 bits, the maximum of the format.
    """
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"it must have at most {_MAX_CHARACTERS} characters, got {len(text)}")
    if any(line.count(".") > _MAX_DOTS for line in text.split("\n")):
        raise ValueError(f"a line has over {_MAX_DOTS} dots")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check(table, _MAX_DEPTH)
    return table


def _check(value: Any, depth: int) -> None:
    if depth == 0:
        raise ValueError("it is nested too deeply")
    if isinstance(value, int) and not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
        raise ValueError("an integer in it has over 64 bits")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check(part, depth - 1)


def read_keys(path: Path, example: str) -> dict[str, Any]:
    """Read the keys of a TOML file. Messages refer to the file `example`.

    Raises
    ------
    DataFileError
        If the file cannot be read or is not TOML.
    """
    text = read_document(path).text()
    try:
        return parse_toml(text)
    except ValueError as problem:
        raise DataFileError(path, f"is not TOML ({shorten_message(problem)}); see {example}") from None


def find_first_flaw(problem: ValidationError, secret: Container[str] = ()) -> tuple[str, str, str]:
    """Return the first wrong key, pydantic's error type, and a message about its value.

    Values of the keys in ``secret``, and of tables that may contain such keys, are not repeated.
    """
    error = problem.errors()[0]
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return key, error["type"], "is missing; add it"
    requirement = error["msg"].removeprefix("Input ").removeprefix("Value error, ")
    requirement = requirement[:1].lower() + requirement[1:]  # the rest can contain names
    value = error["input"]
    hidden = any(part in secret for part in error["loc"]) or (secret and isinstance(value, dict))
    has_value = hidden or ", got " in requirement  # a message of this package
    return key, error["type"], requirement if has_value else f"is {shorten_repr(value)}; {requirement}"
