"""The verifiers' test vectors: certificates, lies in them, and verdicts.

``python -m tests.certificate.vectors`` writes their file, which is JSON. ``bases`` has, by name, the lines of a
certificate and the published rows as a CSV (or null). ``vectors`` has the name of each, its base, what stands in place
of which of its lines (``[first, how many, [new lines]]``, from the last to the first), other rows where these differ,
and the verdict: 0 where everything holds, otherwise the number of the line that is refused.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import tempfile
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from tests.certificate.certificates import canonical, refusal, town_certificate
from tests.certificate.test_lies import LIES, anew, components, flat, tables

FILE = Path(__file__).parent / "vectors" / "vectors.json"


def as_csv(rows: dict[str, list[dict[str, str]]] | None) -> str | None:
    if rows is None:
        return None
    every = [row for some in rows.values() for row in some]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(every[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(every)
    return text.getvalue()


def texts(lines: list[Any]) -> list[str]:
    return [line if isinstance(line, str) else canonical(line) for line in lines]


def number_of(reason: str | None) -> int:
    return 0 if reason is None else int(reason.split(":")[0].removeprefix("line "))


def replaced(before: list[str], after: list[str]) -> list[list[Any]]:
    """What takes the place of which lines, from the last to the first."""
    found = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return [[a, b - a, after[c:d]] for kind, a, b, c, d in reversed(found) if kind != "equal"]


def made() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        lines, rows, _ = town_certificate(Path(folder))
    worlds: dict[str, tuple[list[Any], Any]] = {"town": (lines, rows)}
    worlds |= {
        "flat": (flat(), None),
        "anew": (anew(), None),
        "tables": (tables(), None),
        "components": (components(), None),
    }
    bases = {name: {"lines": texts(some), "rows": as_csv(told)} for name, (some, told) in worlds.items()}
    vectors: list[dict[str, Any]] = [{"name": name, "base": name, "replaced": [], "refused": 0} for name in worlds]
    for world, _, told in LIES:
        some, published = copy.deepcopy(worlds[world])
        told(some, published)
        vector: dict[str, Any] = {"name": told.__name__, "base": world}
        vector["replaced"] = replaced(bases[world]["lines"], texts(some))
        if published is not None and as_csv(published) != bases[world]["rows"]:
            vector["rows"] = as_csv(published)
        reason = refusal(some, published)
        vector["refused"] = number_of(reason)
        if reason is not None:
            vector["because"] = reason.split(": ", 1)[1]
        vectors.append(vector)
    return {"bases": bases, "vectors": vectors}


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    found = made()
    rows = ",\n".join(json.dumps(one) for one in found["vectors"])
    FILE.write_text(f'{{"bases": {json.dumps(found["bases"])},\n"vectors": [\n{rows}\n]}}\n')
