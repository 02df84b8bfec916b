"""Certificates of releases under caps on events, their verifier as a module, and ways to lie in them.

``python -m tests.certificate.capped`` writes the file of test vectors, of the form of `tests.certificate.vectors`.
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
    Lies,
    Line,
    canonical,
    encoded,
    parts_of,
    steps_of,
    told_anew,
    town,
    verifier,
    walked,
)
from tests.certificate.test_lies import LINE, changed, leaves, rows_of_states
from tests.certificate.vectors import number_of, replaced, texts

FILE = Path(__file__).parent / "vectors" / "caps.json"
LIES = Lies()
lie = LIES.lie


def verify(lines: list[Any]) -> Any:
    return verifier().verify_caps(encoded(lines))


def refusal(lines: list[Any]) -> str | None:
    """Why the verifier refuses, with the line; None where it does not."""
    try:
        verify(lines)
    except verifier().RefusedError as problem:
        return str(problem)
    return None


# ---- worlds ----------------------------------------------------------------------------------------------------------


def settled(model: MarkovModel, staying: float = 0.8, **more: Any) -> MarkovModel:
    """The model with people who mostly stay."""
    moves = staying * np.eye(model.size) + (1 - staying) * model.transition.toarray()
    return MarkovModel(moves, model.initial, model.states, model.step_seconds, **more)


def capped_town() -> list[Line]:
    """Two caps, one with a floor; a gap; releases that are made fainter, one that is withheld, and one after all."""
    caps = (Cap("state:6,7 between 1 and 6", 0.5), Cap("!state:12 between 2 and 4", 0.99, 0.5))
    engine = ReleaseSettings("utility:1km", 8, caps=caps).engine(settled(town()), 7)
    return walked(engine, [(0, 0), (1, 1), (6, 2), (6, 3), (7, 6), (8, 7)])


def after_gaps() -> list[Line]:
    """Days between releases, before and after an event, which powers of the matrix bridge."""
    caps = (Cap("state:6,7 between 700 and 703", 0.6, 0.05),)
    engine = ReleaseSettings("utility:1km", 4, caps=caps).engine(settled(town()), 7)
    return walked(engine, [(0, 0), (6, 300), (6, 701), (7, 1300)])


def flat() -> list[Line]:
    """Bodies that are segments, so that places lie on lines without a common output."""
    policy = PolicyGraph.from_edges(6, [[0, 1], [1, 2], [3, 4]])
    caps = (Cap("state:1 between 1 and 3", 0.75, 0.05),)
    engine = Releaser(settled(rows_of_states()), LINE, policy, 0.5, rng=3, spacing=1, caps=caps)
    return walked(engine, [(0, 10), (1, 11), (2, 12), (3, 14)])


def of_components(mechanism: str) -> list[Line]:
    """Two components, each with a noise of its own, and an open state."""
    model = MarkovModel(0.7 * np.eye(6) + 0.05, np.full(6, 1 / 6), step_seconds=3600)
    policy = PolicyGraph.categorical([0, 0, 0, 1, 1, -1]).with_open([5])
    settings: dict[str, Any] = {"spacing": 1, "calibration": "component"} if mechanism == "lattice" else {}
    caps = (Cap("state:1 between 0 and 2", 0.8), Cap("state:3 then state:4 from 1", 0.5))
    engine = Releaser(model, LINE, policy, 2.0, mechanism, rng=3, caps=caps, **settings)
    return walked(engine, [(0, 10), (1, 11), (3, 12)])


def components() -> list[Line]:
    return of_components("lattice")


def tables() -> list[Line]:
    return of_components("graph-exponential")


def with_priors(folder: Path | None = None) -> list[Line]:
    """A cap that is kept for two other first distributions; one never believes the event, the other nearly does."""
    model = settled(town())
    with tempfile.TemporaryDirectory() as own:
        path = Path(own if folder is None else folder) / "priors.csv"
        path.write_text("state,far,near\n0,1,0.5\n1,0,0.2\n6,0,0.3\n")
        caps = (Cap("state:6 between 0 and 0", 0.6), Cap("state:12 between 1 and 3", 0.5))
        engine = ReleaseSettings("utility:1km", 4, caps=caps, priors=str(path)).engine(model, 7)
        return walked(engine, [(0, 0), (1, 1), (6, 2)])


def by_hours() -> list[Line]:
    """A model that varies by the hour, and days in words."""
    inside, classes = settled(town()), TimeClasses.of("hours", 300, "Europe/Berlin")
    matrices = [inside.transition if hour % 2 else np.eye(inside.size) for hour in range(24)]
    model = MarkovModel(matrices, np.tile(inside.initial, (24, 1)), inside.space, 300, classes)
    caps = (Cap("state:6,7 on 2024-03-09 from the first release", 0.85),)
    engine = ReleaseSettings("utility:1km", 4, caps=caps).engine(model, 7)
    return walked(engine, [(0, 5_700_003), (0, 5_700_004), (6, 5_700_030)])


def at_rest() -> list[Line]:
    """An event that begins a day before the first release, of a model that begins at rest."""
    apart = np.abs(np.subtract.outer(np.arange(6), np.arange(6)))
    model = MarkovModel(
        np.where(apart <= 1, 0.1, 0) + np.diag([0.8, *[0.7] * 4, 0.8]), np.full(6, 1 / 6), step_seconds=3600
    )
    caps = (Cap("state:2 between 2024-03-08 and 2024-03-09", 0.97),)
    engine = Releaser(model, LINE, PolicyGraph.complete(6), 3.0, rng=3, spacing=1, caps=caps)
    return walked(engine, [(2, 475_000), (2, 475_001), (3, 475_003)])


WORLDS: dict[str, Callable[[], list[Line]]] = {
    made.__name__: made for made in (capped_town, after_gaps, flat, components, tables, with_priors, by_hours, at_rest)
}

# ---- lies ------------------------------------------------------------------------------------------------------------


def part(lines: list[Line], kind: str, change: Callable[[Line], object]) -> None:
    """Change the first part of a kind, and its digest everywhere."""
    (found, *_) = parts_of(lines, kind)
    change(found["value"])
    _anew(lines, found)


def _anew(lines: list[Line], part_: Line) -> None:
    before = part_["part"][:16]
    told_anew(lines, part_)
    after = hashlib.sha256(canonical(part_["value"]).encode()).hexdigest()[:16]
    for line in lines:
        events = line.get("events", {})
        for holder in (events, *events.get("caps", ())):
            for key, value in holder.items():
                if value == before:
                    holder[key] = after
        if "priors" in events:
            events["priors"] = [after if one == before else one for one in events["priors"]]


NEW = ("chances", "event", "prior")
"""The parts that only this verifier reads."""


def mutated(lines: list[Line], rng: random.Random) -> tuple[str, str] | None:
    """Change one value of what only this verifier reads; most of the time a careful liar gives a part its new digest.

    Returns where (the kind of a part, or the field of a step) and how; None where nothing changed.
    """
    line = rng.choice(
        [one for one in lines if one.get("value", {}).get("is") in NEW or "events" in one or "caps" in one]
    )
    key = "value" if "value" in line else rng.choice([one for one in ("events", "caps") if one in line])
    where = rng.choice([path for path in leaves(line[key]) if path] or [()])
    kind, before, holder = line[key]["is"] if key == "value" else key, canonical(line[key]), line[key]
    for step in where[:-1]:
        holder = holder[step]
    holder[where[-1]] = changed(holder[where[-1]], rng)
    if canonical(line[key]) == before:
        return None
    if key == "value" and rng.random() < 0.9:
        _anew(lines, line)
    return kind, f"{where}: {before[:200]} → {canonical(line[key])[:200]}"


def drawn(lines: list[Line]) -> list[Line]:
    return [step for step in steps_of(lines) if "z" in step]


def settings_said(lines: list[Line], change: Callable[[Line], object]) -> None:
    (query,) = next(line for line in lines if "begin" in line)["queries"]
    said = json.loads(query["settings"])
    change(said)
    query["settings"] = json.dumps(said, sort_keys=True)


def tightest(lines: list[Line]) -> Line:
    """The release whose cells come nearest to a cap."""
    return max(drawn(lines), key=lambda step: max("".join(signs) for cells in step["caps"] for signs in cells or ""))


@lie("capped_town", "a cell of outputs is left out")
def a_cell_left_out(lines):
    drawn(lines)[1]["caps"][0][0] = drawn(lines)[1]["caps"][0][0][:-1]


@lie("capped_town", "there are more cells than that")
def a_cell_too_many(lines):
    drawn(lines)[1]["caps"][0][0] += "1"


@lie("capped_town", "may take it to more than")
def a_smaller_bound(lines):
    step = tightest(lines)
    for cells in step["caps"]:
        cells[0] = "".join(sign if sign in "ABC" else "1" for sign in cells[0])


@lie("capped_town", "may take it to more than|an output of sector")
def a_cell_that_is_not_halved(lines):
    step = next(step for step in drawn(lines) if any(sign in "ABC" for cells in step["caps"] for sign in cells[0]))
    corners = 2 * len(next(line for line in parts_of(lines, "noise"))["value"]["parts"][0]["body"])
    step["caps"] = [["z" * 9 * corners] for _ in step["caps"]]


@lie("capped_town", "caps is no list, or of another length")
def a_cap_left_out(lines):
    drawn(lines)[0]["caps"].pop()


@lie("capped_town", "no cells are given")
def no_cells(lines):
    drawn(lines)[0]["caps"][0] = None


@lie("capped_town", "the cap 0.4.* is not shown to be kept")
def a_smaller_cap(lines):
    settings_said(lines, lambda said: said["caps"].__setitem__(0, said["caps"][0].replace("<= 0.5", "<= 0.4")))


@lie("capped_town", "events is no list, or of another length")
def a_cap_that_the_settings_lack(lines):
    settings_said(lines, lambda said: said["caps"].pop())


@lie("capped_town", "events is no list, or of another length")
def a_cap_forgotten(lines):
    drawn(lines)[0]["events"]["caps"].pop()


@lie("capped_town", "the event is another than its text")
def another_place(lines):
    settings_said(lines, lambda said: said["caps"].__setitem__(0, said["caps"][0].replace("6,7", "6,8")))


@lie("capped_town", "the event has another window than its text")
def another_window(lines):
    steps_of(lines)[0]["events"]["caps"][0]["at"] += 1


@lie("capped_town", "the event is another than its text")
def an_event_that_never_happens(lines):
    part(lines, "event", lambda event: event.update(yes=[]))


@lie("capped_town", "an event does not say how it goes on")
def an_event_with_a_gap(lines):
    part(lines, "event", lambda event: event["layers"][0][0].pop())


@lie("capped_town", "the cap .* is not shown to be kept")
def a_raised_epsilon(lines):
    step = min(drawn(lines), key=lambda one: float(eval(one["epsilon"])))
    step["epsilon"] = "8"


@lie("capped_town", "the probabilities are not those of the model's hash")
def a_changed_probability(lines):
    part(lines, "chances", lambda chances: chances["moves"][0][3].__setitem__(0, chances["moves"][0][3][0] - 2))


@lie("capped_town", "the probabilities are not those of the model's hash")
def a_changed_first_distribution(lines):
    part(lines, "chances", lambda chances: chances["start"][0].__setitem__(0, chances["start"][0][0] - 2))


@lie("capped_town", "no part .* was given before|is malformed")
def no_probabilities(lines):
    lines.remove(parts_of(lines, "chances")[0])


@lie("capped_town", "the release has the number 2, and 1 is missing")
def a_forgotten_release(lines):
    lines.remove(steps_of(lines)[1])
    lines[-1]["end"] -= 1


@lie("capped_town", "it ends with another number of releases")
def a_forgotten_last_release(lines):
    lines.remove(steps_of(lines)[-1])


@lie("capped_town", "says more than why")
def a_withheld_release_with_a_place(lines):
    next(step for step in steps_of(lines) if "withheld" in step)["z"] = [0, 0]


@lie("capped_town", "is not shown to be kept")
def a_release_told_as_if_withheld(lines):
    """What followed was planned with what the release told, and is not kept without it."""
    step = drawn(lines)[1]
    for key in ("noise", "z", "caps"):
        del step[key]
    step.update(withheld="caps", epsilon="0")


@lie("capped_town", "the digest is not that of the value")
def an_event_without_its_digest(lines):
    parts_of(lines, "event")[0]["value"]["yes"] = []


@lie("capped_town", "the place .* is not|is not shown to be kept")
def another_release(lines):
    drawn(lines)[1]["z"] = [2_000, 2_000]


@lie("after_gaps", "the cap 0.55 .* is not shown to be kept")
def a_smaller_cap_after_gaps(lines):
    settings_said(lines, lambda said: said["caps"].__setitem__(0, said["caps"][0].replace("<= 0.6", "<= 0.55")))


@lie("flat", "no possible path could have given this release")
def a_place_off_every_line(lines):
    """Nothing would be believed of anyone any more, so that every later cap would be kept."""
    drawn(lines)[0]["z"] = [1, 1]


@lie("flat", "is not shown to be kept|a cell of outputs is left out")
def cells_of_another_line(lines):
    for step in drawn(lines):
        step["caps"] = [["".join(reversed(signs)) for signs in cells] for cells in step["caps"]]


@lie("components", "there are more cells than that|is left out|of another length")
def cells_of_another_part(lines):
    step = drawn(lines)[0]
    step["caps"] = [cells[::-1] for cells in step["caps"]]


@lie("components", "the cap .* is not shown to be kept")
def a_raised_epsilon_of_components(lines):
    for step in drawn(lines):
        step["epsilon"] = "40"


@lie("tables", "an output passes it")
def a_smaller_cap_of_tables(lines):
    settings_said(lines, lambda said: said["caps"].__setitem__(0, said["caps"][0].replace("0.8", "0.4")))


@lie("tables", "a row is no law|an output passes it")
def a_table_that_tells_all(lines):
    def sharpen(noise: Line) -> None:
        for one in noise["parts"]:
            if "table" in one:
                size = len(one["places"])
                one["table"] = [[str(2**62 * (i == j)) for j in range(size)] for i in range(size)]

    part(lines, "noise", sharpen)


@lie("with_priors", "priors are not those of the settings|of another length")
def no_priors(lines):
    steps_of(lines)[0]["events"]["priors"] = []


@lie("with_priors", "of another length")
def one_prior_less(lines):
    steps_of(lines)[0]["events"]["priors"].pop()


@lie("with_priors", "is not shown to be kept")
def a_prior_that_is_surer(lines):
    def surer(prior: Line) -> None:
        prior["start"][2 * 6 : 2 * 7] = [1, 0]

    for one in parts_of(lines, "prior"):
        if one["value"]["start"][2 * 6]:
            surer(one["value"])
            _anew(lines, one)


@lie("with_priors", "is not in lowest terms, or above 1")
def a_prior_above_one(lines):
    part(lines, "prior", lambda prior: prior["start"].__setitem__(slice(0, 2), [3, 1]))


@lie("by_hours", "the probabilities are not those of the model's hash")
def a_changed_probability_of_an_hour(lines):
    part(lines, "chances", lambda chances: chances["moves"][7][3].__setitem__(0, chances["moves"][7][3][0] - 2))


@lie("by_hours", "the event has another window than its text")
def another_day(lines):
    if "events" in steps_of(lines)[0]:
        steps_of(lines)[0]["events"]["caps"][0]["at"] -= 12


@lie("at_rest", "the model does not begin at rest|probabilities are not those")
def a_model_that_does_not_begin_at_rest(lines):
    """The careful liar gives the model the hash of the changed probabilities too."""

    def lean(chances: Line) -> None:
        chances["start"][0] = [1, 2, 1, 2, 1, 3, 1, 3, 1, 3, 1, 3]

    part(lines, "chances", lean)


# ---- vectors ---------------------------------------------------------------------------------------------------------


def made() -> dict[str, Any]:
    """The vectors' file."""
    worlds = {name: make() for name, make in WORLDS.items()}
    bases = {name: {"lines": texts(lines), "rows": None} for name, lines in worlds.items()}
    vectors: list[dict[str, Any]] = [{"name": name, "base": name, "replaced": [], "refused": 0} for name in worlds]
    for world, _, told in LIES:
        some = copy.deepcopy(worlds[world])
        told(some)
        reason = refusal(some)
        vector: dict[str, Any] = {"name": told.__name__, "base": world, "refused": number_of(reason)}
        vector["replaced"] = replaced(bases[world]["lines"], texts(some))
        if reason is not None:
            vector["because"] = reason.split(": ", 1)[1]
        vectors.append(vector)
    return {"bases": bases, "vectors": vectors}


if __name__ == "__main__":
    found = made()
    rows = ",\n".join(json.dumps(one) for one in found["vectors"])
    FILE.write_text(f'{{"bases": {json.dumps(found["bases"])},\n"vectors": [\n{rows}\n]}}\n')
