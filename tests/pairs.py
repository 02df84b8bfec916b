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
    "components": '`noise_scope="component"`',
    "tables": "`graph-exponential`",
    "zones changed": "another policy from a release on",
    "several queries": "two queries at every timestep",
    "omitted timesteps": "a timestep that has no release",
    "gaps": "40 steps without a release",
    "classes of time": "a matrix for each class of hours",
    "restarts": "a process for every release",
    "audit": "the releases replayed",
    "outside states": "contexts for users outside the region",
    "calibrate": "the budget that `--max-odds-ratio 3` gives each query",
}


def build_page() -> str:
    """Return the documentation page about pairs of features."""
    refused: dict[str, list[str]] = {}
    for pair, message in REFUSED.items():
        refused.setdefault(message, []).append(" and ".join(feature for feature in FEATURES if feature in pair))
    lines = [
        "# Combinations of features",
        "",
        "A session may combine any two of these features, except for the pairs below:",
        "",
        "| feature | in the test |",
        "| --- | --- |",
        *(f"| {feature} | {WHAT[feature]} |" for feature in FEATURES),
        "",
        "| pairs | refused with |",
        "| --- | --- |",
        *(f"| {', '.join(pairs)} | … {message} … |" for message, pairs in refused.items()),
        "",
        "Components and tables can be calibrated if the policy connects all states, unlike in the",
        "test.",
        "",
        "`tests/release/test_pairs.py` compares every record of a short walk with each pair, and",
        "the audit, with an enumeration.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(build_page(), end="")
