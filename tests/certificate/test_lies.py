"""Ways to lie in a certificate, each refused with the line and the reason; and mutations of every field."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dphmm import Limits, MarkovModel, PolicyGraph, Releaser
from dphmm.certificate import CertificateWriter
from tests.certificate.certificates import (
    Lies,
    Line,
    canonical,
    parts_of,
    refusal,
    steps_of,
    told_anew,
    town_certificate,
    verifier,
    walked,
)
from tests.sizes import fewer

LIES = Lies()
lie = LIES.lie


def part(lines: list[Line], kind: str, change: Callable[[Line], object]) -> None:
    """Change the first part of a kind, and its digest everywhere."""
    (found, *_) = parts_of(lines, kind)
    change(found["value"])
    told_anew(lines, found)


# ---- worlds ----------------------------------------------------------------------------------------------------------

LINE = np.array([[0, 0], [2, 0], [4, 0], [0, 3], [3, 3], [9, 9]])
"""Measurements of six states: edges 0-1 and 1-2 have a flat hull, so that a release rules out those of other rows."""


def rows_of_states() -> MarkovModel:
    """People begin at one end of a line, and step to its other one."""
    moves = np.array(
        [
            [1, 1, 0, 0, 0, 0],
            [1, 1, 1, 0, 0, 0],
            [0, 1, 1, 1, 1, 0],
            [0, 0, 1, 1, 1, 0],
            [0, 0, 1, 1, 1, 1],
            [0, 0, 0, 0, 1, 1],
        ],
        dtype=float,
    )
    start = np.array([1, 1, 1, 0, 0, 0]) / 3
    return MarkovModel(moves / moves.sum(axis=1, keepdims=True), start, step_seconds=3600)


def flat() -> list[Line]:
    """A segment for a body, added edges, gaps, states that releases rule out, and limits."""
    policy = PolicyGraph.from_edges(6, [[0, 1], [1, 2], [3, 4]])
    engine = Releaser(rows_of_states(), LINE, policy, 0.5, rng=3, spacing=1)
    return walked(
        engine,
        [(0, 10), (1, 11), (2, 12), (3, 13), (4, 14), (4, 16)],
        limits=Limits(epsilon=3, window_epsilon=2, window_steps=3),
    )


def anew() -> list[Line]:
    """A policy that changes after two releases, from which belief, spending and limits go on."""
    model, limits = rows_of_states(), Limits(epsilon=3, window_epsilon=1.5, window_steps=3)
    texts: list[str] = []
    writer = CertificateWriter(texts.append)
    policies = [PolicyGraph.from_edges(6, edges) for edges in ([[0, 1], [1, 2], [3, 4]], [[0, 2], [1, 3], [4, 5]])]
    before = None
    for policy, moments in zip(policies, ([(0, 10), (0, 11)], [(1, 12), (2, 16)]), strict=True):
        engine = Releaser(model, LINE, policy, 0.5, rng=3, spacing=1)
        writer.begin("ann", {"main": engine}, limits, goes_on=before is not None)
        engine.restart(first=10)
        if before is not None:
            engine.resume(before.belief, 2, slot=11)
        for state, slot in moments:
            record = engine.release(state, steps=4 if slot == 16 else 1)
            assert engine.last is not None
            writer.add(engine.last[1], record.released, slot)
        before = engine
    writer.end()
    return [json.loads(text) for text in texts]


def tables() -> list[Line]:
    """Tables of two components, and an open state."""
    model = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6), step_seconds=3600)
    policy = PolicyGraph.categorical([0, 0, 0, 1, 1, -1]).with_open([5])
    engine = Releaser(model, LINE, policy, 1.0, "graph-exponential", rng=3)
    return walked(engine, [(0, 10), (1, 11)])


def components() -> list[Line]:
    """Bodies of their own for two components, and an open state."""
    model = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6), step_seconds=3600)
    policy = PolicyGraph.categorical([0, 0, 0, 1, 1, -1]).with_open([5])
    return walked(Releaser(model, LINE, policy, 1.0, rng=3, spacing=1, calibration="component"), [(0, 10), (1, 11)])


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Name → the lines, the rows (None where there are none), and the model's file."""
    folder = tmp_path_factory.mktemp("worlds")
    lines, rows, model = town_certificate(folder)
    model.save(folder / "model.npz")
    known = verifier().File(folder / "model.npz")
    others = {"flat": flat(), "anew": anew(), "tables": tables(), "components": components()}
    return {"town": (lines, rows, known), **{name: (made, None, None) for name, made in others.items()}}


def test_the_worlds_are_verified(worlds):
    for lines, rows, _ in worlds.values():
        assert refusal(lines, rows) is None
    bodies = [found["body"] for one in parts_of(worlds["flat"][0], "noise") for found in one["value"]["parts"]]
    assert any(len(body) == 1 for body in bodies), "no body is flat"
    assert any("added" in one["value"] for one in parts_of(worlds["flat"][0], "noise")), "no edge was added"
    assert any("out" in step for step in steps_of(worlds["flat"][0])), "nothing was ruled out"


# ---- lines -----------------------------------------------------------------------------------------------------------


@lie("town", "line 1: it begins no certificate")
def another_format(lines, rows):
    lines[0]["certificate"] = 2


@lie("town", "line 1: it begins no certificate")
def no_first_line(lines, rows):
    del lines[0]


@lie("town", "the end is missing")
def no_end(lines, rows):
    del lines[-1]


@lie("town", "it ends with another number of releases than 5")
def another_end(lines, rows):
    lines[-1]["end"] = 4


@lie("town", "follows the end")
def more_after_the_end(lines, rows):
    lines.append(lines[-2])


@lie("town", "the release has the number 3, and 2 is missing")
def a_forgotten_release(lines, rows):
    lines.remove(steps_of(lines)[2])


@lie("town", "published rows have no release here")
def a_forgotten_last_release(lines, rows):
    lines.remove(steps_of(lines)[-1])
    lines[-1]["end"] = 4


@lie("town", "the release has the number 2, and 1 is missing")
def two_releases_change_places(lines, rows):
    first, second = (lines.index(step) for step in steps_of(lines)[1:3])
    lines[first], lines[second] = lines[second], lines[first]


@lie("town", "the release has the number 1, and 2 is missing")
def a_release_twice(lines, rows):
    lines.insert(lines.index(steps_of(lines)[1]), steps_of(lines)[1])


@lie("town", "no part .* was given before")
def a_part_is_missing(lines, rows):
    lines.remove(parts_of(lines, "noise")[0])


@lie("town", "the digest is not that of the value")
def another_value(lines, rows):
    parts_of(lines, "noise")[0]["value"]["parts"][0]["body"][0][0] += 1


@lie("town", "the part was there before")
def a_part_twice(lines, rows):
    lines.insert(1, lines[1])


@lie("town", "is of another kind")
def a_model_for_a_policy(lines, rows):
    begin = next(line for line in lines if "begin" in line)
    begin["policy"] = begin["model"]


@lie("town", "unknown key 'true_state'")
def the_truth_is_told(lines, rows):
    steps_of(lines)[0]["true_state"] = 7


@lie("town", "unknown key 'stood_in'")
def a_surrogate_is_told(lines, rows):
    steps_of(lines)[3]["stood_in"] = 1


@lie("town", "0.5 is no whole number")
def a_float(lines, rows):
    steps_of(lines)[0]["z"] = [0.5, 1]


@lie("town", "a key stands twice")
def a_key_twice(lines, rows):
    at = lines.index(steps_of(lines)[0])
    lines[at] = canonical(lines[at]).replace('"epsilon":"1"', '"epsilon":"1","epsilon":"1"')


@lie("town", "it is malformed")
def half_a_line(lines, rows):
    lines[3] = canonical(lines[3])[:-4]


@lie("town", "there is no published row|a release of nobody")
def nobody(lines, rows):
    lines.remove(next(line for line in lines if "begin" in line))


# ---- models ----------------------------------------------------------------------------------------------------------


@lie("town", "a state is possible that moves and earlier releases rule out")
def moves_are_left_out(lines, rows):
    part(lines, "model", lambda value: value["moves"].__setitem__(0, [[i, i] for i in range(value["states"])]))


@lie("town", "a possible state is left out")
def a_move_too_many(lines, rows):
    part(lines, "model", lambda value: value["moves"][0].__setitem__(0, [0, value["states"] - 1]))


@lie("town", "a state is possible that moves and earlier releases rule out")
def a_support_too_small(lines, rows):
    part(lines, "model", lambda value: value["start"].__setitem__(0, [0, 0]))


@lie("town", "a possible state is left out")
def a_support_too_large(lines, rows):
    part(lines, "model", lambda value: value["start"].__setitem__(0, [0, value["states"] - 1]))


@lie("town", "the row says model")
def another_model(lines, rows):
    part(lines, "model", lambda value: value.__setitem__("hash", "0" * 16))


@lie("town", "the sum of the last day|the row is of")
def another_step(lines, rows):
    part(lines, "model", lambda value: value.__setitem__("step", "600"))


@lie("town", "a state has no move")
def nowhere_to_go(lines, rows):
    part(lines, "model", lambda value: value["moves"][0].__setitem__(0, []))


@lie("town", "the moves are not those of the model's file")
def a_move_that_does_not_matter(lines, rows):
    part(lines, "model", lambda value: value["moves"][0].__setitem__(value["states"] - 1, [value["states"] - 1] * 2))


# ---- policies --------------------------------------------------------------------------------------------------------


@lie("town", "the radius is not that of the settings")
def a_smaller_radius(lines, rows):
    part(lines, "policy", lambda value: value["terms"][0].__setitem__("near", "1/2"))


@lie("town", "the cells are not those of the settings")
def centres_for_cells(lines, rows):
    part(lines, "policy", lambda value: value["terms"][0].__setitem__("cell", "0"))


@lie("town", "the cells are not where the places are")
def cells_far_apart(lines, rows):
    part(lines, "policy", lambda value: [cell.__setitem__(0, 2 * cell[0]) for cell in value["terms"][0]["at"]])


@lie("town", "the radius is not that of the settings")
def an_edge_between_some_only(lines, rows):
    part(lines, "policy", lambda value: value["terms"][0].__setitem__("within", [0, 5]))


@lie("town", "an open state has an edge|the policy is not that of the settings")
def a_state_is_declared_open(lines, rows):
    part(lines, "policy", lambda value: value.__setitem__("open", [0, 0]))


@lie("town", "the policy is not that of the settings")
def no_policy(lines, rows):
    part(lines, "policy", lambda value: value.__setitem__("terms", []))


@lie("flat", "a body is larger than its edges ask for|is hidden among no other")
def a_missing_edge(lines, rows):
    part(lines, "policy", lambda value: value["terms"][0].__setitem__("pairs", [[0, 1]]))


@lie("flat", "a body is too small")
def an_edge_too_many(lines, rows):
    part(lines, "policy", lambda value: value["terms"][0]["pairs"].insert(1, [0, 2]))


# ---- bodies ----------------------------------------------------------------------------------------------------------


def body(lines: list[Line], change: Callable[[list[list[int]]], object]) -> None:
    part(lines, "noise", lambda value: change(value["parts"][0]["body"]))


@lie("town", "a body is too small")
def a_smaller_body(lines, rows):
    body(lines, lambda tips: [tip.__setitem__(slice(None), [c * 4 // 5 for c in tip]) for tip in tips])


@lie("town", "a body is larger than its edges ask for")
def a_larger_body(lines, rows):
    body(lines, lambda tips: [tip.__setitem__(slice(None), [2 * c for c in tip]) for tip in tips])


@lie("town", "not given by its upper corners|a body is too small")
def a_corner_is_missing(lines, rows):
    body(lines, lambda tips: tips.pop(1))


@lie("town", "not given by its upper corners")
def a_body_that_is_not_convex(lines, rows):
    body(lines, lambda tips: tips.insert(1, [1, 1]))


@lie("town", "not given by its upper corners")
def corners_in_another_order(lines, rows):
    body(lines, lambda tips: tips.reverse())


@lie("town", "a body is too small")
def no_noise(lines, rows):
    body(lines, lambda tips: tips.clear())


@lie("town", "a body is too small")
def noise_along_a_line(lines, rows):
    body(lines, lambda tips: tips.__delitem__(slice(1, None)))


@lie("town", "the parts of the noise do not fit|released by different noise")
def noise_for_some_only(lines, rows):
    part(lines, "noise", lambda value: value["parts"][0].__setitem__("states", [0, 0]))


@lie("town", "several parts of noise without components|two states that the policy joins|do not fit")
def a_part_of_its_own_for_one_state(lines, rows):
    def change(value: Line) -> None:
        possible = [0, 2, 5, 6, 10, 10]
        own = value["parts"][0]
        value["parts"] = [own | {"states": possible[2:]}, own | {"states": possible[:2]}]

    part(lines, "noise", change)


@lie("flat", "is hidden among no other one|a body is larger|a body is too small|added edge")
def no_partner(lines, rows):
    for found in parts_of(lines, "noise"):
        if found["value"].pop("added", None):
            told_anew(lines, found)
            return


@lie("flat", "an added edge leaves the possible states")
def a_partner_who_is_not_possible(lines, rows):
    part(lines, "noise", lambda value: value.__setitem__("added", [[0, 5]]))


@lie("components", "two states that the policy joins are released by different noise")
def an_edge_between_parts(lines, rows):
    part(lines, "policy", lambda value: value["terms"][0]["groups"].append([2, 3]))


@lie("components", "is in the noise of others|do not fit|has an edge|larger|too small")
def an_open_state_among_others(lines, rows):
    def change(value: Line) -> None:
        parts = {tuple(one["states"]): one for one in value["parts"]}
        parts[3, 4]["states"] = [3, 5]
        value["parts"] = [one for states, one in parts.items() if states != (5, 5)]

    part(lines, "noise", change)


@lie("components", "is hidden among no other one")
def a_place_that_was_never_open(lines, rows):
    part(lines, "policy", lambda value: value.pop("open"))


# ---- tables ----------------------------------------------------------------------------------------------------------


def table(lines: list[Line], change: Callable[[list[list[str]]], object]) -> None:
    def first(value: Line) -> None:
        change(next(one["table"] for one in value["parts"] if "table" in one))

    part(lines, "noise", first)


def moved(row: list[str], share: int) -> None:
    """Weight from the last to the first output of a row."""
    by = int(row[-1]) // share
    row[0], row[-1] = str(int(row[0]) + by), str(int(row[-1]) - by)


@lie("tables", "apart by more than epsilon")
def a_weight_is_moved(lines, rows):
    table(lines, lambda rows: moved(rows[0], 2))


@lie("tables", "a row is no law")
def a_row_that_is_too_heavy(lines, rows):
    table(lines, lambda rows: rows[0].__setitem__(0, str(int(rows[0][0]) + 1)))


@lie("tables", "a weight is too small")
def a_negative_weight(lines, rows):
    table(lines, lambda rows: rows[0].__setitem__(slice(2), ["-1", str(int(rows[0][0]) + int(rows[0][1]) + 1)]))


@lie("tables", "a table has a place twice")
def a_place_twice(lines, rows):
    def change(value: Line) -> None:
        found = next(one for one in value["parts"] if "table" in one)
        found["places"][1] = found["places"][0]

    part(lines, "noise", change)


@lie("tables", "released as they are|no law|do not fit|different noise")
def a_table_is_left_out(lines, rows):
    def change(value: Line) -> None:
        for one in value["parts"]:
            if one.pop("table", None):
                one["body"] = one.pop("places") and []

    part(lines, "noise", change)


# ---- releases --------------------------------------------------------------------------------------------------------


@lie("town", "epsilon is above that of the settings")
def a_larger_epsilon(lines, rows):
    steps_of(lines)[1]["epsilon"] = "2"


@lie("town", "the sum so far is 1/2")
def a_smaller_epsilon(lines, rows):
    steps_of(lines)[0]["epsilon"] = "1/2"


@lie("town", "epsilon is above that of the settings, or none")
def no_epsilon(lines, rows):
    steps_of(lines)[0]["epsilon"] = "0"


@lie("town", "epsilon is too small")
def a_negative_epsilon(lines, rows):
    steps_of(lines)[0]["epsilon"] = "-1"


@lie("town", "no fraction in lowest terms")
def an_epsilon_by_zero(lines, rows):
    steps_of(lines)[0]["epsilon"] = "1/0"


@lie("town", "the sum so far is 3")
def another_sum(lines, rows):
    steps_of(lines)[2]["sum"] = "2"


@lie("town", "the sum of the last day is another")
def another_day(lines, rows):
    steps_of(lines)[3]["day"] = "3"


@lie("town", "in or out|a possible state is left out|is possible that|the row is of")
def another_slot(lines, rows):
    steps_of(lines)[1]["slot"] += 1


@lie("town", "time goes back")
def an_earlier_slot(lines, rows):
    steps_of(lines)[2]["slot"] -= 5


@lie("town", "a query is answered twice, or out of turn")
def twice_at_one_moment(lines, rows):
    steps_of(lines)[1]["slot"] = steps_of(lines)[0]["slot"]


@lie("town", "a possible state is left out")
def a_possible_state_is_left_out(lines, rows):
    steps_of(lines)[0]["in"] = steps_of(lines)[0]["in"][2:]


@lie("town", "rule out")
def a_state_is_made_up(lines, rows):
    step = steps_of(lines)[0]
    step["in"] = [0, step["in"][-1]]


@lie("town", "in and out do not fit")
def a_state_comes_twice(lines, rows):
    steps_of(lines)[1]["in"] = steps_of(lines)[0]["in"]


@lie("town", "the row says x_km")
def another_release(lines, rows):
    steps_of(lines)[1]["z"][0] += 1


@lie("flat", "no possible state could have given this release|is left out|rule out")
def a_release_off_the_line(lines, rows):
    steps_of(lines)[0]["z"][1] += 1


@lie("town", "says more than why")
def withheld_and_drawn(lines, rows):
    steps_of(lines)[1]["withheld"] = "budget"


@lie("town", "nothing in the settings lets a release be withheld for that")
def withheld_for_the_persons_place(lines, rows):
    step = steps_of(lines)[1]
    step.update(withheld="at home", epsilon="0")
    del step["z"], step["noise"]


@lie("town", "nothing in the settings lets a release be withheld for that")
def withheld_in_silence(lines, rows):
    step = steps_of(lines)[1]
    step.update(withheld="budget", epsilon="0")
    del step["z"], step["noise"]


@lie("town", "the query is none of this person's")
def another_query(lines, rows):
    steps_of(lines)[1]["query"] = "other"


@lie("flat", "a body is too small|do not fit|leaves the possible|larger|hidden among no other")
def the_noise_of_another_moment(lines, rows):
    steps = steps_of(lines)
    steps[-1]["noise"] = steps[0]["noise"]


@lie("flat", "the limit of all releases is passed")
def a_limit_is_passed(lines, rows):
    next(line for line in lines if "begin" in line)["limits"]["epsilon"] = "2"


@lie("flat", "the limit of a window is passed")
def the_limit_of_a_window_is_passed(lines, rows):
    next(line for line in lines if "begin" in line)["limits"]["window_epsilon"] = "1"


# ---- settings and places ---------------------------------------------------------------------------------------------


def settings(lines: list[Line], old: str, new: str) -> None:
    query = next(line for line in lines if "begin" in line)["queries"][0]
    assert old in query["settings"]
    query["settings"] = query["settings"].replace(old, new)


@lie("town", "the row says settings")
def settings_that_allow_more(lines, rows):
    settings(lines, '"epsilon": 1.0', '"epsilon": 2.0')


@lie("town", "the row says settings|the lattice is not")
def another_delta(lines, rows):
    settings(lines, '"delta": null', '"delta": 0.5')


@lie("town", "noise of real numbers has no exact proof")
def noise_in_floats(lines, rows):
    settings(lines, '"lattice"', '"k-norm"')


@lie("town", "the lattice is not that of the settings")
def a_coarser_lattice(lines, rows):
    part(lines, "places", lambda value: value.__setitem__("unit", "1/100"))


@lie("town", "the cells are not where the places are")
def a_place_elsewhere(lines, rows):
    part(lines, "places", lambda value: value["at"][3].__setitem__(0, value["at"][3][0] + 40))


@lie("town", "rank is no whole number")
def a_rank_of_half(lines, rows):
    next(line for line in lines if "begin" in line)["queries"][0]["rank"] = True


# ---- what was agreed on anew -----------------------------------------------------------------------------------------


def begun(lines: list[Line], number: int) -> Line:
    return [line for line in lines if "begin" in line][number]


@lie("anew", "a state is possible that|a possible state is left out")
def a_belief_that_begins_anew_instead(lines, rows):
    del begun(lines, 1)["goes_on"]


@lie("anew", "it goes on from another")
def nothing_to_go_on_from(lines, rows):
    begun(lines, 0)["goes_on"] = True


@lie("anew", "it goes on from another")
def going_on_in_words(lines, rows):
    begun(lines, 1)["goes_on"] = "yes"


@lie("anew", "it goes on from another")
def going_on_from_somebody_else(lines, rows):
    begun(lines, 1)["begin"] = "bob"


@lie("anew", "it goes on from another")
def other_limits_when_going_on(lines, rows):
    begun(lines, 1)["limits"]["epsilon"] = "9"


@lie("anew", "the limit of a window is passed")
def a_window_over_the_change_is_passed(lines, rows):
    for number in (0, 1):
        begun(lines, number)["limits"]["window_epsilon"] = "1"


# ---- rows ------------------------------------------------------------------------------------------------------------


def row_lie(column: str, value: str, reason: str | None = None) -> None:
    def told(lines: list[Any], rows: dict[str, list[dict[str, str]]]) -> None:
        assert rows["ann"][2][column] != value
        rows["ann"][2][column] = value

    told.__name__ = f"a_row_with_{column}_{value}"
    lie("town", reason or f"the row says {column}")(told)


for _column, _value in (
    ("x_km", "0.5"),
    ("y_km", ""),
    ("epsilon", "0.5"),
    ("epsilon_so_far", "2.0"),
    ("epsilon_last_day", "2.0"),
    ("possible_states", "3"),
    ("least_protection", "99"),
    ("constrained_factor", "1.0"),
    ("hull_area_km2", "1.0"),
    ("edges_added", "1"),
    ("already_known", "true"),
    ("withheld", "true"),
    ("withheld_for", "budget"),
    ("mechanism", "k-norm"),
    ("exact", "false"),
    ("forgotten_releases", "1"),
    ("settings", "0" * 16),
):
    row_lie(_column, _value)
row_lie("time", "2024-03-07T00:00:00Z", "the row is of")
row_lie("expected_error_m", "1.0")


@lie("town", "there is no published row for this release")
def a_row_is_missing(lines, rows):
    rows["ann"].pop()


@lie("town", "published rows have no release here")
def a_row_too_many(lines, rows):
    rows["ann"].append(rows["ann"][-1])


@lie("town", "published rows have no release here")
def a_person_too_many(lines, rows):
    rows["bob"] = rows["ann"]


@lie("town", "there is no published row")
def another_person(lines, rows):
    next(line for line in lines if "begin" in line)["begin"] = "bob"


# ---- the lies are refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "reason", "told"), LIES, ids=lambda one: getattr(one, "__name__", ""))
def test_every_lie_is_refused_with_its_reason(worlds, world, reason, told):
    lines, rows, known = copy.deepcopy(worlds[world])
    told(lines, rows)
    found = refusal(lines, rows, known)
    assert found is not None, "it is believed"
    assert re.search(reason, found), found
    assert re.match(r"line \d+: ", found) or "model's file" in found


def test_there_are_enough_lies():
    assert len(LIES) >= 50


# ---- mutations -------------------------------------------------------------------------------------------------------


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values within, whole lists and objects too."""
    found = [path] if path else []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return found + [one for key, inner in pairs for one in leaves(inner, (*path, key))]


def changed(value: Any, rng: random.Random) -> Any:
    """Another value of about the same kind."""
    if isinstance(value, bool) or value is None:
        return rng.choice([0, "1", [], "x"])
    if isinstance(value, int):
        return rng.choice([value + 1, value - 1, -value - 1, value + rng.randrange(1, 10**6), str(value), [value]])
    if isinstance(value, str):
        try:
            number = Fraction(value)
        except (ValueError, ZeroDivisionError):
            at = rng.randrange(len(value) + 1)
            return rng.choice(
                [value[:at] + rng.choice("0f1:, ") + value[at:], value[:at] + value[at + 1 :] + "0", 0, None]
            )
        return rng.choice([str(number + 1), str(number * 2 or 7), str(-number - 1), str(number / 3 or 8), 0])
    if isinstance(value, list):
        some = list(value)
        if len(some) > 1:
            rng.choice([some.reverse, some.clear, some.pop, lambda: some.append(some[0])])()
        else:
            some.append(1)
        return some if some != value else [*some, 0]
    kept = dict(value)
    kept.pop(rng.choice(list(kept)), None) if kept else kept.update(x=1)
    return kept


def mutated(lines: list[Any], rng: random.Random) -> str:
    """Change one value anywhere; half of the time a careful liar gives parts their new digests."""
    at = rng.randrange(len(lines))
    where = rng.choice(leaves(lines[at]))
    holder = lines[at]
    for key in where[:-1]:
        holder = holder[key]
    before = holder[where[-1]]
    holder[where[-1]] = changed(before, rng)
    if "part" in lines[at] and where[0] == "value" and rng.random() < 0.8:
        told_anew(lines, lines[at])
    return f"{where} of line {at + 1}: {canonical(before)[:60]} → {canonical(holder[where[-1]])[:60]}"


@pytest.mark.parametrize("seed", range(10))
def test_no_mutation_of_a_town_is_believed(worlds, seed):
    """Of a certificate with its rows and its model no value can be changed; 2,000 in all."""
    rng = random.Random(seed)
    lines, rows, known = worlds["town"]
    for _ in range(fewer(200, 20)):
        some = json.loads(canonical(lines))
        what = mutated(some, rng)
        if canonical(some) != canonical(lines):
            assert refusal(some, rows, known) is not None, what
