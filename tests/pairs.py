"""Pairs of features in a session, and the messages for unsupported pairs."""

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
    "omitted timesteps",
    "gaps",
    "classes of time",
    "restarts",
    "audit",
    "calibrate",
    "outside states",
)

REFUSED: dict[frozenset[str], str] = {
    frozenset({"audit", "several queries"}): "has several queries, which audits do not support",
    frozenset({"calibrate", "schedule"}): "event caps and schedules cannot be combined with a calibration",
    frozenset({"calibrate", "caps"}): "event caps and schedules cannot be combined with a calibration",
    frozenset({"calibrate", "delta"}): "cannot be combined with delta",
    frozenset({"calibrate", "components"}): "a release can exclude a state, so no budget limits the odds",
    frozenset({"calibrate", "tables"}): "a release can exclude a state, so no budget limits the odds",
    frozenset({"caps", "zones changed"}): "has event caps, so its settings must not change",
}

WHAT = {
    "pauses": "a recipient who was not sent every release",
    "schedule": "`target_error`",
    "caps": "a cap on an event",
    "delta": "a δ-location set",
    "components": 'noise by component (`noise_scope="component"`)',
    "tables": "a table by hops (`graph-exponential`)",
    "zones changed": "another policy from a release on",
    "several queries": "two queries at every timestep",
    "omitted timesteps": "a timestep that has no release",
    "gaps": "40 steps without a release",
    "classes of time": "a matrix for each class of hours",
    "restarts": "a process for every release",
    "audit": "the releases replayed",
    "outside states": "twins of border states",
    "calibrate": "the budget that `--max-odds-ratio 3` gives each query",
}


def page() -> str:
    """The documentation page about pairs of features."""
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
        "| | feature | " + " | ".join(number[feature] for feature in FEATURES) + " |",
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
