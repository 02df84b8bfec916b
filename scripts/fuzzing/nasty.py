"""Changes of bytes, tables, JSON, XML, TOML and lines that put values into them which break readers."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

from scripts.fuzzing.values import INTEGERS, TEXTS, Raw, number_text, text, value

# ---- bytes ---------------------------------------------------------------------------------------------------------


def of_bytes(data: bytes, rng: Random, other: bytes = b"") -> bytes:
    """Some bytes changed, put in, taken out, doubled, or the rest cut off."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(9)
        if kind == 0 and changed:
            changed[at - 1] ^= 1 << rng.randrange(8)
        elif kind == 1 and changed:
            changed[at - 1] = rng.choice((0, 1, 9, 10, 13, 27, 34, 39, 44, 92, 127, 128, 255, rng.randrange(256)))
        elif kind == 2:
            changed[at : at + rng.choice((1, 2, 4, 8, 50))] = b""
        elif kind == 3:
            changed[at:at] = bytes(rng.choices(range(256), k=rng.choice((1, 2, 4, 8))))
        elif kind == 4:
            piece = changed[at : at + rng.choice((1, 4, 16, 100))]
            changed[at:at] = piece * rng.choice((1, 2, 20))
        elif kind == 5:
            del changed[at:]
        elif kind == 6:
            width = rng.choice((1, 2, 4, 8))
            number = rng.choice(INTEGERS) % 256**width
            changed[at : at + width] = number.to_bytes(width, rng.choice(("little", "big")))
        elif kind == 7:
            changed[at:at] = text(rng).encode("utf-8", "surrogatepass")[:5000]
        elif other:
            start = rng.randrange(len(other))
            changed[at : at + rng.choice((0, 8, 64))] = other[start : start + rng.choice((8, 64, 512))]
    return bytes(changed)


def of_fields(data: bytes, rng: Random, delimiter: str = ",") -> bytes:
    """A table of delimited lines with cells, columns and rows changed."""
    rows = [line.split(delimiter) for line in data.decode("utf-8", "replace").split("\n")]
    for _ in range(rng.choice((1, 1, 2, 4))):
        row = rng.choice(rows)
        at = rng.randrange(len(row))
        kind = rng.randrange(12)
        if kind < 6:
            row[at] = text(rng)
        elif kind == 6:
            row[at] = f'"{row[at]}' + rng.choice(('"', "", '""', '"x', '\n"'))
        elif kind == 7:
            del row[at]
        elif kind == 8:
            row.insert(at, rng.choice(row))
        elif kind == 9:
            rows.insert(rng.randrange(len(rows)), list(rng.choice(rows)))
        elif kind == 10:
            column = text(rng)
            rows = [(cells[:at] if at < len(cells) else cells) + [column] + cells[at + 1 :] for cells in rows]
        else:
            rng.shuffle(row)
        row[:] = row or [""]
    joined = rng.choice((delimiter,) * 6 + (";", "\t", ", ", "|"))
    end = rng.choice(("\n",) * 6 + ("\r\n", "\r", "\n\n", "\x0b"))
    return end.join(joined.join(cells) for cells in rows).encode("utf-8", "surrogatepass")


# ---- JSON ----------------------------------------------------------------------------------------------------------


def written(found: Any) -> str:
    """A value as JSON, with what is raw as it stands, and what JSON cannot say as Python says it."""
    if isinstance(found, Raw):
        return str(found)
    if isinstance(found, dict):
        return "{" + ", ".join(f"{json.dumps(str(name))}: {written(one)}" for name, one in found.items()) + "}"
    if isinstance(found, list | tuple):
        return "[" + ", ".join(map(written, found)) + "]"
    return json.dumps(found)


def _places(found: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    places = [path]
    inside = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, one in inside:
        places += _places(one, (*path, key))
    return places


def of_json(found: Any, rng: Random) -> Any:
    """A value with nodes replaced, removed, renamed, doubled, wrapped or exchanged."""
    made = json.loads(json.dumps(found))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        path = rng.choice(_places(made))
        if not path:
            if rng.random() < 0.2:
                return value(rng)
            continue
        parent = made
        for key in path[:-1]:
            parent = parent[key]
        key, kind = path[-1], rng.randrange(10)
        if kind < 5:
            parent[key] = value(rng)
        elif kind == 5:
            del parent[key]
        elif kind == 6 and isinstance(parent, dict):
            parent[rng.choice((text(rng), str(key).upper(), ""))] = parent.pop(key)
        elif kind == 6:
            parent *= rng.choice((2, 3, 30))
        elif kind == 7:
            parent[key] = rng.choice(([parent[key]], {"a": parent[key]}, [parent[key], parent[key]]))
        elif kind == 8:
            other = rng.choice(_places(made)[1:])
            source = made
            for step in other:
                source = source[step]
            parent[key] = json.loads(json.dumps(source)) if not isinstance(source, Raw) else source
        elif isinstance(parent[key], str):
            parent[key] += rng.choice(TEXTS)
        if any(isinstance(part, Raw) for part in _leaves(made)):
            return made
    return made


def _leaves(found: Any) -> list[Any]:
    if isinstance(found, dict):
        return [leaf for one in found.values() for leaf in _leaves(one)]
    if isinstance(found, list):
        return [leaf for one in found for leaf in _leaves(one)]
    return [found]


def of_json_text(data: bytes, rng: Random) -> bytes:
    """A JSON file changed in its structure, and sometimes twice a key."""
    try:
        made = written(of_json(json.loads(data), rng))
    except (ValueError, RecursionError):  # one that was changed before
        return of_bytes(data, rng)
    if rng.random() < 0.05:
        made = made.replace("{", '{"type": 7, ', 1)
    return made.encode("utf-8", "surrogatepass")


# ---- XML, TOML, lines ----------------------------------------------------------------------------------------------

_SPOTS = re.compile(rb'"[^"<>]*"|>[^<>]+<|</?[A-Za-z:]+')


def of_xml(data: bytes, rng: Random) -> bytes:
    """An XML file with attributes, texts and names of elements changed, or pieces of it moved."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        spots = list(_SPOTS.finditer(data))
        if not spots:
            return data
        spot = rng.choice(spots)
        said = text(rng).encode("utf-8", "surrogatepass")
        if rng.random() < 0.7:
            said = said.replace(b"&", b"&amp;").replace(b"<", b"&lt;").replace(b'"', b"&quot;")
        found = spot[0]
        if found.startswith(b'"'):
            made = b'"' + said + b'"'
        elif found.startswith(b">"):
            made = b">" + said + b"<"
        else:
            made = rng.choice(
                (
                    b"<trkpt",
                    b"<time",
                    b"</time",
                    b"<name",
                    b"<extensions",
                    b"<trk",
                    b"</trk",
                    b"<wpt",
                    b"<a:b",
                    b"<",
                    found,
                )
            )
        if rng.random() < 0.05:
            made = rng.choice(
                (
                    b"<a>" * 3000,
                    b"&#0;",
                    b"&#xD800;",
                    b"&lol;",
                    b"<![CDATA[",
                    b"<!DOCTYPE gpx [",
                    b"<?xml?>",
                    found * 100,
                )
            )
        data = data[: spot.start()] + made + data[spot.end() :]
    return data


def of_toml(data: bytes, rng: Random) -> bytes:
    """A TOML file with values, keys and lines changed."""
    lines = data.decode().splitlines()
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(lines))
        key, _, said = lines[at].partition(" = ")
        kind = rng.randrange(10)
        if kind < 6:
            lines[at] = f"{key} = {_toml_value(rng)}"
        elif kind == 6:
            name = rng.choice((json.dumps(text(rng)), "a.b", key.upper(), "preset", '""', "x" * 300))
            lines[at] = f"{name} = {said}"
        elif kind == 7:
            lines.insert(
                rng.randrange(len(lines)),
                rng.choice((lines[at], "[table]", "[[tables]]", "[" * 500, "a" + ".a" * 500 + " = 1")),
            )
        elif kind == 8:
            del lines[at]
            lines = lines or [""]
        else:
            lines[at] = text(rng)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _toml_value(rng: Random) -> str:
    kind = rng.randrange(8)
    if kind < 3:
        return json.dumps(text(rng)[:5000], ensure_ascii=rng.random() < 0.5)
    if kind < 5:
        return number_text(rng)
    literals = (
        "true",
        "[]",
        "{}",
        "[1, 'a', []]",
        "{a = 1}",
        "1979-05-27T07:32:00Z",
        "07:32:00",
        "0x" + "f" * 5000,
        "[" * 900 + "]" * 900,
    )
    literals += (
        "-inf",
        "nan",
        '"\\uD800"',
        "'''\n\x00'''",
        "[" + "{a=" * 400 + "1" + "}" * 400 + "]",
        "[[1.0, 2.0], 'x']",
        "9" * 400,
        "0o7777",
    )
    return rng.choice(literals)


def of_json_lines(data: bytes, rng: Random) -> bytes:
    """Lines that end in a JSON object, with one or two of the objects or what stands before them changed."""
    lines = data.split(b"\n")
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(lines))
        start = lines[at].find(b"{")
        if start >= 0 and rng.random() < 0.85:
            try:
                said = written(of_json(json.loads(lines[at][start:]), rng))
            except (ValueError, RecursionError):  # one that was changed before
                said = written(value(rng))
            lines[at] = lines[at][:start] + said.encode("utf-8", "surrogatepass")
        else:
            lines[at] = of_bytes(lines[at], rng)
    return b"\n".join(lines)
