"""The verifiers' test vectors: certificates, tampered versions, and results.

``python -m tests.certificate.vectors`` writes the JSON file. ``bases`` maps names to the lines of a certificate and
the published rows as CSV (or null). ``vectors`` contains the name of each vector, its base, the replaced lines
(``[first, count, [new lines]]``, from the last to the first), other rows if these differ, and the result: 0 if the
certificate is valid, otherwise the number of the rejected line.
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

from tests.certificate import test_lies
from tests.certificate.certificates import find_refusal, format_canonical

FILE = Path(__file__).parent / "vectors" / "vectors.json"


def as_csv(rows: dict[str, list[dict[str, str]]] | None) -> str | None:
    if rows is None:
        return None
    all_rows = [row for rows_of_user in rows.values() for row in rows_of_user]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(all_rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(all_rows)
    return text.getvalue()


def to_texts(lines: list[Any]) -> list[str]:
    return [line if isinstance(line, str) else format_canonical(line) for line in lines]


def parse_line_number(reason: str | None) -> int:
    return 0 if reason is None else int(reason.split(":")[0].removeprefix("line "))


def diff_lines(before: list[str], after: list[str]) -> list[list[Any]]:
    """Return the replaced ranges of lines, from the last to the first."""
    operations = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return [[a, b - a, after[c:d]] for kind, a, b, c, d in reversed(operations) if kind != "equal"]


def build_vectors() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        worlds = {name: (lines, rows) for name, (lines, rows, _) in test_lies.build_worlds(Path(folder)).items()}
    bases = {
        name: {"lines": to_texts(world_lines), "rows": as_csv(world_rows)}
        for name, (world_lines, world_rows) in worlds.items()
    }
    vectors: list[dict[str, Any]] = [{"name": name, "base": name, "replaced": [], "refused": 0} for name in worlds]
    for world, _, tamper in test_lies.TAMPERINGS:
        tampered, published = copy.deepcopy(worlds[world])
        tamper(tampered, published)
        vector: dict[str, Any] = {"name": tamper.__name__, "base": world}
        vector["replaced"] = diff_lines(bases[world]["lines"], to_texts(tampered))
        if published is not None and as_csv(published) != bases[world]["rows"]:
            vector["rows"] = as_csv(published)
        reason = find_refusal(tampered, published)
        vector["refused"] = parse_line_number(reason)
        if reason is not None:
            vector["because"] = reason.split(": ", 1)[1]
        vectors.append(vector)
    return {"bases": bases, "vectors": vectors}


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    content = build_vectors()
    rows = ",\n".join(json.dumps(vector) for vector in content["vectors"])
    FILE.write_text(f'{{"bases": {json.dumps(content["bases"])},\n"vectors": [\n{rows}\n]}}\n')
