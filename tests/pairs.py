"""Features that meet in a session, and the pairs of them that are refused, with what is said."""

from __future__ import annotations

FEATURES = (
    "pauses",
    "schedule",
    "caps",
    "delta",
    "components",
    "tables",
    "zones changed",
    "several queries",
    "omitted moments",
    "gaps",
    "classes of time",
    "restarts",
    "audit",
    "calibrate",
    "people outside",
)

REFUSED: dict[frozenset[str], str] = {
    frozenset({"audit", "several queries"}): "answers several queries, which an audit cannot join yet",
    frozenset({"calibrate", "schedule"}): "caps on events and schedules choose each budget themselves",
    frozenset({"calibrate", "caps"}): "caps on events and schedules choose each budget themselves",
    frozenset({"calibrate", "delta"}): "later releases are planned for what earlier ones left likely",
    frozenset({"calibrate", "components"}): "no budget limits the odds: a release can rule a place out",
    frozenset({"calibrate", "tables"}): "no budget limits the odds: a release can rule a place out",
    frozenset({"caps", "zones changed"}): "keeps caps on events, under its first settings alone",
}

WHAT = {
    "pauses": "a reader who was not told everything",
    "schedule": "`target_error`",
    "caps": "a cap on an event",
    "delta": "a δ-location set",
    "components": 'noise by component (`calibration="component"`)',
    "tables": "a table by hops (`graph-exponential`)",
    "zones changed": "another policy from a release on",
    "several queries": "two queries at every moment",
    "omitted moments": "a moment that has no release",
    "gaps": "40 steps without a release",
    "classes of time": "a matrix for each class of hours",
    "restarts": "a process for every release",
    "audit": "the releases replayed",
    "people outside": "twins of border states",
    "calibrate": "the budget that `--odds 3` gives each query",
}


def page() -> str:
    """The page of the documentation that says which features go together."""
    notes = sorted(set(REFUSED.values()))
    number = {feature: str(place) for place, feature in enumerate(FEATURES, 1)}
    lines = [
        "# Features together",
        "",
        "Promises fail where two features meet, if anywhere. Every pair of the features below is either held by a",
        "test or refused in one line. The test releases a short walk through a durable session with both features,",
        "and holds every record against an enumeration that knows the model as plain tables: the set of possible",
        "states, the noise, the estimate and its radius, ε on every edge, someone to hide among for every possible",
        "state, the cap on the event, how far the odds move, and what the audit finds. For every feature that a reader",
        "can see something of, an enumeration that leaves it out must find a fault.",
        "",
        "| | feature | " + " | ".join(number[one] for one in FEATURES) + " |",
        "|---" * (len(FEATURES) + 2) + "|",
    ]
    for row in FEATURES:
        cells = []
        for column in FEATURES:
            refused = REFUSED.get(frozenset({row, column}))
            cells.append("" if row == column else "✓" if refused is None else f"[{chr(97 + notes.index(refused))}]")
        lines.append(f"| {number[row]} | {row}: {WHAT[row]} | " + " | ".join(cells) + " |")
    lines += ["", "✓ held. Refused, with these words:", ""]
    lines += [f"- [{chr(97 + place)}] … {text} …" for place, text in enumerate(notes)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
