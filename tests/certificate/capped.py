"""Certificates of releases under caps on events, their verifier, and tampering.

``python -m tests.certificate.capped`` writes the file of test vectors, in the format of `tests.certificate.vectors`.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings
from dphmm.events import Cap
from dphmm.model.time_classes import TimeClasses
from tests.certificate.certificates import (
    Line,
    Tamperings,
    build_town,
    certify_path,
    encode,
    find_parts,
    find_steps,
    format_canonical,
    load_verifier,
    update_digest,
)
from tests.certificate.test_lies import LINE, build_line_model, change_value, list_paths
from tests.certificate.vectors import diff_lines, parse_line_number, to_texts

FILE = Path(__file__).parent / "vectors" / "caps.json"
TAMPERINGS = Tamperings()
tampering = TAMPERINGS.tampering


def verify(lines: list[Any]) -> Any:
    return load_verifier().verify_caps(encode(lines))


def find_refusal(lines: list[Any]) -> str | None:
    """Return the verifier's reason for rejection with the line, or None if it accepts."""
    try:
        verify(lines)
    except load_verifier().RefusedError as problem:
        return str(problem)
    return None


# ---- worlds ----------------------------------------------------------------------------------------------------------


def add_stays(model: MarkovModel, staying: float = 0.8, **more: Any) -> MarkovModel:
    """Return the model with users who mostly stay."""
    moves = staying * np.eye(model.size) + (1 - staying) * model.transition.toarray()
    return MarkovModel(moves, model.initial, model.states, model.step_seconds, **more)


def capped_town() -> list[Line]:
    """Two caps, one with a lower bound, a gap, weakened releases, and one withheld."""
    caps = (Cap("state:6,7 between 1 and 6", 0.5), Cap("!state:12 between 2 and 4", 0.99, 0.5))
    engine = ReleaseSettings("utility:1km", 8, caps=caps).engine(add_stays(build_town()), 7)
    return certify_path(engine, [(0, 0), (1, 1), (6, 2), (6, 3), (7, 6), (8, 7)])


def after_gaps() -> list[Line]:
    """Days between releases, before and after an event."""
    caps = (Cap("state:6,7 between 700 and 703", 0.6, 0.05),)
    engine = ReleaseSettings("utility:1km", 4, caps=caps).engine(add_stays(build_town()), 7)
    return certify_path(engine, [(0, 0), (6, 300), (6, 701), (7, 1300)])


def flat() -> list[Line]:
    """Bodies that are segments: places on different lines have no common output."""
    policy = PolicyGraph.from_edges(6, [[0, 1], [1, 2], [3, 4]])
    caps = (Cap("state:1 between 1 and 3", 0.75, 0.05),)
    engine = Releaser(add_stays(build_line_model()), LINE, policy, 0.5, rng=3, spacing=1, caps=caps)
    return certify_path(engine, [(0, 10), (1, 11), (2, 12), (3, 14)])


def certify_components(mechanism: str) -> list[Line]:
    """Certify two components with separate noise, and an unprotected state."""
    model = MarkovModel(0.7 * np.eye(6) + 0.05, np.full(6, 1 / 6), step_seconds=3600)
    policy = PolicyGraph.categorical([0, 0, 0, 1, 1, -1]).with_open([5])
    settings: dict[str, Any] = {"spacing": 1, "noise_scope": "component"} if mechanism == "lattice" else {}
    caps = (Cap("state:1 between 0 and 2", 0.8), Cap("state:3 then state:4 from 1", 0.5))
    engine = Releaser(model, LINE, policy, 2.0, mechanism, rng=3, caps=caps, **settings)
    return certify_path(engine, [(0, 10), (1, 11), (3, 12)])


def components() -> list[Line]:
    return certify_components("lattice")


def tables() -> list[Line]:
    return certify_components("graph-exponential")


def with_priors(folder: Path | None = None) -> list[Line]:
    """A cap that must hold for two other initial distributions.

    One excludes the event, the other nearly implies it.
    """
    model = add_stays(build_town())
    with tempfile.TemporaryDirectory() as folder_name:
        path = Path(folder_name if folder is None else folder) / "priors.csv"
        path.write_text("state,far,near\n0,1,0.5\n1,0,0.2\n6,0,0.3\n")
        caps = (Cap("state:6 between 0 and 0", 0.6), Cap("state:12 between 1 and 3", 0.5))
        engine = ReleaseSettings("utility:1km", 4, caps=caps, event_cap_priors=str(path)).engine(model, 7)
        return certify_path(engine, [(0, 0), (1, 1), (6, 2)])


def by_hours() -> list[Line]:
    """A model that depends on the hour, and dates as text."""
    inside, classes = add_stays(build_town()), TimeClasses.from_name("hour", 300, "Europe/Berlin")
    matrices = [inside.transition if hour % 2 else np.eye(inside.size) for hour in range(24)]
    model = MarkovModel(matrices, np.tile(inside.initial, (24, 1)), inside.space, 300, classes)
    caps = (Cap("state:6,7 on 2024-03-09 from the first release", 0.85),)
    engine = ReleaseSettings("utility:1km", 4, caps=caps).engine(model, 7)
    return certify_path(engine, [(0, 5_700_003), (0, 5_700_004), (6, 5_700_030)])


def at_rest() -> list[Line]:
    """An event that begins a day before the first release of a stationary model."""
    apart = np.abs(np.subtract.outer(np.arange(6), np.arange(6)))
    model = MarkovModel(
        np.where(apart <= 1, 0.1, 0) + np.diag([0.8, *[0.7] * 4, 0.8]), np.full(6, 1 / 6), step_seconds=3600
    )
    caps = (Cap("state:2 between 2024-03-08 and 2024-03-09", 0.97),)
    engine = Releaser(model, LINE, PolicyGraph.complete(6), 3.0, rng=3, spacing=1, caps=caps)
    return certify_path(engine, [(2, 475_000), (2, 475_001), (3, 475_003)])


WORLDS: dict[str, Callable[[], list[Line]]] = {
    world.__name__: world
    for world in (capped_town, after_gaps, flat, components, tables, with_priors, by_hours, at_rest)
}

# ---- tampering -------------------------------------------------------------------------------------------------------


def change_part(lines: list[Line], kind: str, change: Callable[[Line], object]) -> None:
    """Change the first part of a kind, and its digest at every reference."""
    (first_part, *_) = find_parts(lines, kind)
    change(first_part["value"])
    _update_references(lines, first_part)


def _update_references(lines: list[Line], part_: Line) -> None:
    before = part_["part"][:16]
    update_digest(lines, part_)
    after = hashlib.sha256(format_canonical(part_["value"]).encode()).hexdigest()[:16]
    for line in lines:
        events = line.get("events", {})
        for holder in (events, *events.get("caps", ())):
            for key, value in holder.items():
                if value == before:
                    holder[key] = after
        if "priors" in events:
            events["priors"] = [after if digest == before else digest for digest in events["priors"]]


# The parts that only this verifier reads.
NEW = ("chances", "event", "prior")


def mutate(lines: list[Line], rng: random.Random) -> tuple[str, str] | None:
    """Change one value that only this verifier reads, usually with updated digests.

    Returns the place (the kind of a part, or the field of a step) and the change, or None if nothing changed.
    """
    line = rng.choice(
        [
            candidate
            for candidate in lines
            if candidate.get("value", {}).get("is") in NEW or "events" in candidate or "caps" in candidate
        ]
    )
    key = "value" if "value" in line else rng.choice([key_name for key_name in ("events", "caps") if key_name in line])
    where = rng.choice([path for path in list_paths(line[key]) if path] or [()])
    kind = line[key]["is"] if key == "value" else key
    before = format_canonical(line[key])
    holder = line[key]
    for step in where[:-1]:
        holder = holder[step]
    holder[where[-1]] = change_value(holder[where[-1]], rng)
    if format_canonical(line[key]) == before:
        return None
    if key == "value" and rng.random() < 0.9:
        _update_references(lines, line)
    return kind, f"{where}: {before[:200]} → {format_canonical(line[key])[:200]}"


def find_draws(lines: list[Line]) -> list[Line]:
    return [step for step in find_steps(lines) if "z" in step]


def change_settings(lines: list[Line], change: Callable[[Line], object]) -> None:
    (query,) = next(line for line in lines if "begin" in line)["queries"]
    stated = json.loads(query["settings"])
    change(stated)
    query["settings"] = json.dumps(stated, sort_keys=True)


def find_tightest_release(lines: list[Line]) -> Line:
    """Return the release with cells closest to a cap."""
    return max(
        find_draws(lines), key=lambda step: max("".join(signs) for cells in step["caps"] for signs in cells or "")
    )


@tampering("capped_town", "a cell of outputs is missing, or its sign is invalid")
def an_omitted_cell(lines):
    find_draws(lines)[1]["caps"][0][0] = find_draws(lines)[1]["caps"][0][0][:-1]


@tampering("capped_town", "there are unused cells")
def a_cell_too_many(lines):
    find_draws(lines)[1]["caps"][0][0] += "1"


@tampering("capped_town", "may reach more than")
def a_smaller_bound(lines):
    step = find_tightest_release(lines)
    for cells in step["caps"]:
        cells[0] = "".join(sign if sign in "ABC" else "1" for sign in cells[0])


@tampering("capped_town", "may reach more than|an output of sector")
def a_cell_that_is_not_halved(lines):
    step = next(step for step in find_draws(lines) if any(sign in "ABC" for cells in step["caps"] for sign in cells[0]))
    corners = 2 * len(next(line for line in find_parts(lines, "noise"))["value"]["parts"][0]["body"])
    step["caps"] = [["z" * 9 * corners] for _ in step["caps"]]


@tampering("capped_town", "part [0-9a-f]{16} is not used by the line that follows it")
def a_prior_that_is_never_used(lines):
    part = {"part": "", "value": {"is": "prior", "start": [1, 0]}}
    lines.insert(1, part)
    update_digest(lines, part)


@tampering("capped_town", "caps must be a list of the expected length")
def an_omitted_cap(lines):
    find_draws(lines)[0]["caps"].pop()


@tampering("capped_town", "there are no cells")
def no_cells(lines):
    find_draws(lines)[0]["caps"][0] = None


@tampering("capped_town", "the cap 0.4.* is not proven")
def a_smaller_cap(lines):
    change_settings(lines, lambda stated: stated["caps"].__setitem__(0, stated["caps"][0].replace("<= 0.5", "<= 0.4")))


@tampering("capped_town", "a probability is invalid")
def a_cap_in_arabic_digits(lines):
    change_settings(lines, lambda stated: stated["caps"].__setitem__(0, stated["caps"][0].replace("<= 0.5", "<= ٠.٥")))


@tampering("capped_town", "a probability is invalid")
def a_cap_with_an_endless_denominator(lines):
    """The fraction has 3 million digits. With a thousand times as many it would take hours."""
    huge = "<= 0.5e-3000000"
    change_settings(lines, lambda stated: stated["caps"].__setitem__(0, stated["caps"][0].replace("<= 0.5", huge)))


@tampering("capped_town", "events must be a list of the expected length")
def a_cap_that_the_settings_lack(lines):
    change_settings(lines, lambda stated: stated["caps"].pop())


@tampering("capped_town", "events must be a list of the expected length")
def a_cap_forgotten(lines):
    find_draws(lines)[0]["events"]["caps"].pop()


@tampering("capped_town", "the event is not that of its text")
def another_place(lines):
    change_settings(lines, lambda stated: stated["caps"].__setitem__(0, stated["caps"][0].replace("6,7", "6,8")))


@tampering("capped_town", "the event has another window than its text")
def another_window(lines):
    find_steps(lines)[0]["events"]["caps"][0]["at"] += 1


@tampering("capped_town", "the event is not that of its text")
def an_event_that_never_happens(lines):
    change_part(lines, "event", lambda event: event.update(yes=[]))


@tampering("capped_town", "each progress of an event must have exactly one transition for each state")
def an_event_with_a_gap(lines):
    change_part(lines, "event", lambda event: event["layers"][0][0].pop())


@tampering("capped_town", "the cap .* is not proven")
def a_raised_epsilon(lines):
    step = min(find_draws(lines), key=lambda step: float(eval(step["epsilon"])))
    step["epsilon"] = "8"


@tampering("capped_town", "the probabilities are not those of the model's hash")
def a_changed_probability(lines):
    change_part(lines, "chances", lambda chances: chances["moves"][0][3].__setitem__(0, chances["moves"][0][3][0] - 2))


@tampering("capped_town", "the probabilities are not those of the model's hash")
def a_changed_first_distribution(lines):
    change_part(lines, "chances", lambda chances: chances["start"][0].__setitem__(0, chances["start"][0][0] - 2))


@tampering("capped_town", "must be given before it is used|is malformed")
def no_probabilities(lines):
    lines.remove(find_parts(lines, "chances")[0])


@tampering("capped_town", "the release has index 2, and 1 is missing")
def a_forgotten_release(lines):
    lines.remove(find_steps(lines)[1])
    lines[-1]["end"] -= 1


@tampering("capped_town", "the last line states another number of releases")
def a_forgotten_last_release(lines):
    lines.remove(find_steps(lines)[-1])


@tampering("capped_town", "a withheld release must only have its reason")
def a_withheld_release_with_a_place(lines):
    next(step for step in find_steps(lines) if "withheld" in step)["z"] = [0, 0]


@tampering("capped_town", "' is not proven:")
def a_release_marked_as_withheld(lines):
    """Later releases were planned with this release and break the cap without it."""
    step = find_draws(lines)[1]
    for key in ("noise", "z", "caps"):
        del step[key]
    step.update(withheld="caps", epsilon="0")


@tampering("capped_town", "the digest must be that of the value, and each part must occur once")
def an_event_without_its_digest(lines):
    find_parts(lines, "event")[0]["value"]["yes"] = []


@tampering("capped_town", "the place .* is not|' is not proven:")
def another_release(lines):
    find_draws(lines)[1]["z"] = [2_000, 2_000]


@tampering("after_gaps", "the cap 0.55 .* is not proven")
def a_smaller_cap_after_gaps(lines):
    change_settings(lines, lambda stated: stated["caps"].__setitem__(0, stated["caps"][0].replace("<= 0.6", "<= 0.55")))


@tampering("flat", "the release is impossible: no path has positive probability")
def a_place_off_every_line(lines):
    """After it no state is possible, and every later cap would hold."""
    find_draws(lines)[0]["z"] = [1, 1]


@tampering("flat", "' is not proven:|a cell of outputs is missing, or its sign is invalid")
def cells_of_another_line(lines):
    for step in find_draws(lines):
        step["caps"] = [["".join(reversed(signs)) for signs in cells] for cells in step["caps"]]


@tampering("components", "there are unused cells|a cell of outputs is missing|must be a list of the expected length")
def cells_of_another_part(lines):
    step = find_draws(lines)[0]
    step["caps"] = [cells[::-1] for cells in step["caps"]]


@tampering("components", "the cap .* is not proven")
def a_raised_epsilon_of_components(lines):
    for step in find_draws(lines):
        step["epsilon"] = "40"


@tampering("tables", "an output exceeds the bound")
def a_smaller_cap_of_tables(lines):
    change_settings(lines, lambda stated: stated["caps"].__setitem__(0, stated["caps"][0].replace("0.8", "0.4")))


@tampering("tables", r"a row of a table must be a distribution over 2\*\*62|an output exceeds the bound")
def a_table_that_reveals_the_state(lines):
    def sharpen(noise: Line) -> None:
        for part in noise["parts"]:
            if "table" in part:
                size = len(part["places"])
                part["table"] = [[str(2**62 * (i == j)) for j in range(size)] for i in range(size)]

    change_part(lines, "noise", sharpen)


@tampering("with_priors", "the priors must be those of the settings|must be a list of the expected length")
def no_priors(lines):
    find_steps(lines)[0]["events"]["priors"] = []


@tampering("with_priors", "must be a list of the expected length")
def one_prior_less(lines):
    find_steps(lines)[0]["events"]["priors"].pop()


@tampering("with_priors", "' is not proven:")
def a_prior_with_a_larger_probability(lines):
    def sharpen_prior(prior: Line) -> None:
        prior["start"][2 * 6 : 2 * 7] = [1, 0]

    for part in find_parts(lines, "prior"):
        if part["value"]["start"][2 * 6]:
            sharpen_prior(part["value"])
            _update_references(lines, part)


@tampering("with_priors", "must be in lowest terms and at most 1")
def a_prior_above_one(lines):
    change_part(lines, "prior", lambda prior: prior["start"].__setitem__(slice(0, 2), [3, 1]))


@tampering("with_priors", "unknown field 'home'")
def a_prior_with_a_comment(lines):
    change_part(lines, "prior", lambda prior: prior.__setitem__("home", "52.5,13.4"))


@tampering("with_priors", "start must be a list")
def a_prior_of_nothing(lines):
    """It would be replaced by the model's first distribution."""
    change_part(lines, "prior", lambda prior: prior.__setitem__("start", None))


@tampering("capped_town", "cells must be a string")
def cells_as_a_list(lines):
    cells = find_draws(lines)[0]["caps"][0]
    cells[0] = list(cells[0])


@tampering("tables", "cells must be a string")
def no_cells_in_other_forms(lines):
    find_draws(lines)[0]["caps"][0] = [{}, [], ""]


@tampering("capped_town", "about must contain one or two hashes")
def a_comment_about_the_model(lines):
    change_part(lines, "chances", lambda chances: chances.__setitem__("about", ["52.5,13.4"]))


@tampering("by_hours", "the probabilities are not those of the model's hash")
def a_changed_probability_of_an_hour(lines):
    change_part(lines, "chances", lambda chances: chances["moves"][7][3].__setitem__(0, chances["moves"][7][3][0] - 2))


@tampering("by_hours", "the event has another window than its text")
def another_day(lines):
    if "events" in find_steps(lines)[0]:
        find_steps(lines)[0]["events"]["caps"][0]["at"] -= 12


@tampering(
    "at_rest",
    "an event before the first release needs a model that starts in its stationary distribution"
    "|probabilities are not those",
)
def a_model_without_the_stationary_start(lines):
    """The model's hash is updated to the changed probabilities, too."""

    def distort_start(chances: Line) -> None:
        chances["start"][0] = [1, 2, 1, 2, 1, 3, 1, 3, 1, 3, 1, 3]

    change_part(lines, "chances", distort_start)


# ---- vectors ---------------------------------------------------------------------------------------------------------


def build_vectors() -> dict[str, Any]:
    """Build the content of the vectors' file."""
    worlds = {name: make() for name, make in WORLDS.items()}
    bases = {name: {"lines": to_texts(lines), "rows": None} for name, lines in worlds.items()}
    vectors: list[dict[str, Any]] = [{"name": name, "base": name, "replaced": [], "refused": 0} for name in worlds]
    for world, _, tamper in TAMPERINGS:
        tampered = copy.deepcopy(worlds[world])
        tamper(tampered)
        reason = find_refusal(tampered)
        vector: dict[str, Any] = {"name": tamper.__name__, "base": world, "refused": parse_line_number(reason)}
        vector["replaced"] = diff_lines(bases[world]["lines"], to_texts(tampered))
        if reason is not None:
            vector["because"] = reason.split(": ", 1)[1]
        vectors.append(vector)
    return {"bases": bases, "vectors": vectors}


if __name__ == "__main__":
    content = build_vectors()
    rows = ",\n".join(json.dumps(vector) for vector in content["vectors"])
    FILE.write_text(f'{{"bases": {json.dumps(content["bases"])},\n"vectors": [\n{rows}\n]}}\n')
