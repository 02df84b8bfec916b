"""Tampered certificates are rejected with line and reason, and so are random mutations."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dphmm import Limits, MarkovModel, PolicyGraph, Releaser
from dphmm.certificate import CertificateWriter
from tests.certificate import forgeries
from tests.certificate.certificates import (
    Line,
    Tamperings,
    build_town_certificate,
    certify_path,
    find_parts,
    find_refusal,
    find_steps,
    format_canonical,
    load_verifier,
    update_digest,
)
from tests.sizes import choose_count

TAMPERINGS = Tamperings(forgeries.TAMPERINGS)
tampering = TAMPERINGS.tampering


def change_part(lines: list[Line], kind: str, change: Callable[[Line], object]) -> None:
    """Change the first part of a kind, and its digest at every reference."""
    (first_part, *_) = find_parts(lines, kind)
    change(first_part["value"])
    update_digest(lines, first_part)


# ---- worlds ----------------------------------------------------------------------------------------------------------

# Measurements of six states. Edges 0-1 and 1-2 have a flat hull: a release excludes the states of other rows.
LINE = np.array([[0, 0], [2, 0], [4, 0], [0, 3], [3, 3], [9, 9]])


def build_line_model() -> MarkovModel:
    """Build a chain along a line: users start at one end and move to the other."""
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
    """A segment as body, added edges, gaps, excluded states, and limits."""
    policy = PolicyGraph.from_edges(6, [[0, 1], [1, 2], [3, 4]])
    engine = Releaser(build_line_model(), LINE, policy, 0.5, rng=3, spacing=1)
    return certify_path(
        engine,
        [(0, 10), (1, 11), (2, 12), (3, 13), (4, 14), (4, 16)],
        limits=Limits(epsilon=3, window_epsilon=2, window_steps=3),
    )


def anew() -> list[Line]:
    """A policy that changes after two releases. Belief, spending and limits continue."""
    model, limits = build_line_model(), Limits(epsilon=3, window_epsilon=1.5, window_steps=3)
    texts: list[str] = []
    writer = CertificateWriter(texts.append)
    policies = [PolicyGraph.from_edges(6, edges) for edges in ([[0, 1], [1, 2], [3, 4]], [[0, 2], [1, 3], [4, 5]])]
    before = None
    for policy, visits in zip(policies, ([(0, 10), (0, 11)], [(1, 12), (2, 16)]), strict=True):
        engine = Releaser(model, LINE, policy, 0.5, rng=3, spacing=1)
        writer.begin("ann", {"main": engine}, limits, continues=before is not None)
        engine.restart(first=10)
        if before is not None:
            engine.resume(before.belief, 2, slot=11)
        for state, slot in visits:
            record = engine.release(state, steps=4 if slot == 16 else 1)
            assert engine.last is not None
            writer.add(engine.last[1], record.released, slot)
        before = engine
    writer.end()
    return [json.loads(text) for text in texts]


def tables() -> list[Line]:
    """Tables of two components, and an unprotected state."""
    model = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6), step_seconds=3600)
    policy = PolicyGraph.categorical([0, 0, 0, 1, 1, -1]).with_open([5])
    engine = Releaser(model, LINE, policy, 1.0, "graph-exponential", rng=3)
    return certify_path(engine, [(0, 10), (1, 11)])


def components() -> list[Line]:
    """Separate bodies for two components, and an unprotected state."""
    model = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6), step_seconds=3600)
    policy = PolicyGraph.categorical([0, 0, 0, 1, 1, -1]).with_open([5])
    return certify_path(
        Releaser(model, LINE, policy, 1.0, rng=3, spacing=1, noise_scope="component"), [(0, 10), (1, 11)]
    )


def build_worlds(folder: Path) -> dict[str, tuple[list[Line], Any, MarkovModel | None]]:
    """Return name → the lines, the rows, and the model (None if there are none)."""
    lines, rows, model = build_town_certificate(folder)
    others = {"flat": flat(), "anew": anew(), "tables": tables(), "components": components()}
    return {
        "town": (lines, rows, model),
        **{name: (world_lines, None, None) for name, world_lines in others.items()},
        **forgeries.build_worlds(folder),
    }


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Name → the lines, the rows, and the model's file."""
    folder, files = tmp_path_factory.mktemp("worlds"), {}
    for name, (lines, rows, model) in build_worlds(folder).items():
        if model is not None:
            model.save(folder / "model.npz", overwrite=True)
        files[name] = lines, rows, None if model is None else load_verifier().File(folder / "model.npz")
    return files


@pytest.mark.slow
def test_worlds_are_accepted(worlds):
    for lines, rows, model_file in worlds.values():
        assert find_refusal(lines, rows, model_file) is None
    bodies = [
        noise_part["body"]
        for part_line in find_parts(worlds["flat"][0], "noise")
        for noise_part in part_line["value"]["parts"]
    ]
    assert any(len(body) == 1 for body in bodies), "no body is flat"
    assert any("added" in part_line["value"] for part_line in find_parts(worlds["flat"][0], "noise")), (
        "no edge was added"
    )
    assert any("out" in step for step in find_steps(worlds["flat"][0])), "nothing was ruled out"


# ---- lines -----------------------------------------------------------------------------------------------------------


@tampering("town", "line 1: it does not begin with a certificate")
def another_format(lines, rows):
    lines[0]["certificate"] = 2


@tampering("town", "line 1: it does not begin with a certificate")
def no_first_line(lines, rows):
    del lines[0]


@tampering("town", "the last line is missing")
def no_end(lines, rows):
    del lines[-1]


@tampering("town", "the last line states another number of releases than 5")
def another_end(lines, rows):
    lines[-1]["end"] = 4


@tampering("town", "the line is too long, or follows the last line")
def more_after_the_end(lines, rows):
    lines.append(lines[-2])


@tampering("town", "the release has index 3, and 2 is missing")
def a_forgotten_release(lines, rows):
    lines.remove(find_steps(lines)[2])


@tampering("town", "published rows have no release in the certificate")
def a_forgotten_last_release(lines, rows):
    lines.remove(find_steps(lines)[-1])
    lines[-1]["end"] = 4


@tampering("town", "the release has index 2, and 1 is missing")
def two_releases_change_places(lines, rows):
    first, second = (lines.index(step) for step in find_steps(lines)[1:3])
    lines[first], lines[second] = lines[second], lines[first]


@tampering("town", "the release has index 1, and 2 is missing")
def a_release_twice(lines, rows):
    lines.insert(lines.index(find_steps(lines)[1]), find_steps(lines)[1])


@tampering("town", "must be given before it is used")
def a_part_is_missing(lines, rows):
    lines.remove(find_parts(lines, "noise")[0])


@tampering("town", "the digest must be that of the value, and each part must occur once")
def another_value(lines, rows):
    find_parts(lines, "noise")[0]["value"]["parts"][0]["body"][0][0] += 1


@tampering("town", "the digest must be that of the value, and each part must occur once")
def a_part_twice(lines, rows):
    lines.insert(1, lines[1])


@tampering("town", "has another type")
def a_model_for_a_policy(lines, rows):
    begin = next(line for line in lines if "begin" in line)
    begin["policy"] = begin["model"]


@tampering("town", "unknown field 'true_state'")
def the_true_state_is_released(lines, rows):
    find_steps(lines)[0]["true_state"] = 7


@tampering("town", "unknown field 'used_surrogate'")
def a_surrogate_is_disclosed(lines, rows):
    find_steps(lines)[3]["used_surrogate"] = 1


@tampering("town", "numbers must be integers")
def a_float(lines, rows):
    find_steps(lines)[0]["z"] = [0.5, 1]


@tampering("town", "keys of an object must be unique")
def a_key_twice(lines, rows):
    at = lines.index(find_steps(lines)[0])
    lines[at] = format_canonical(lines[at]).replace('"epsilon":"1"', '"epsilon":"1","epsilon":"1"')


@tampering("town", "it is malformed")
def half_a_line(lines, rows):
    lines[3] = format_canonical(lines[3])[:-4]


@tampering("town", "there is no published row|a release of nobody")
def no_begin(lines, rows):
    lines.remove(next(line for line in lines if "begin" in line))


# ---- models ----------------------------------------------------------------------------------------------------------


@tampering("town", "a state is possible that transitions and earlier releases exclude")
def omitted_moves(lines, rows):
    change_part(lines, "model", lambda value: value["moves"].__setitem__(0, [[i, i] for i in range(value["states"])]))


@tampering("town", "a possible state is omitted")
def a_move_too_many(lines, rows):
    change_part(lines, "model", lambda value: value["moves"][0].__setitem__(0, [0, value["states"] - 1]))


@tampering("town", "a state is possible that transitions and earlier releases exclude")
def a_support_too_small(lines, rows):
    change_part(lines, "model", lambda value: value["start"].__setitem__(0, [0, 0]))


@tampering("town", "a possible state is omitted")
def a_support_too_large(lines, rows):
    change_part(lines, "model", lambda value: value["start"].__setitem__(0, [0, value["states"] - 1]))


@tampering("town", "the row has model")
def another_model(lines, rows):
    change_part(lines, "model", lambda value: value.__setitem__("hash", "0" * 16))


@tampering("town", "the total of the last day is wrong|the row is of")
def another_step(lines, rows):
    change_part(lines, "model", lambda value: value.__setitem__("step", "600"))


@tampering("town", "every state must have a transition, and a state must be possible at first")
def a_state_without_moves(lines, rows):
    change_part(lines, "model", lambda value: value["moves"][0].__setitem__(0, []))


@tampering("town", "the transitions must be those of the model file")
def a_move_that_does_not_matter(lines, rows):
    change_part(
        lines, "model", lambda value: value["moves"][0].__setitem__(value["states"] - 1, [value["states"] - 1] * 2)
    )


# ---- policies --------------------------------------------------------------------------------------------------------


@tampering("town", "the radius must be that of the settings")
def a_smaller_radius(lines, rows):
    change_part(lines, "policy", lambda value: value["terms"][0].__setitem__("near", "1/2"))


@tampering("town", "the cells must be those of the settings")
def centres_for_cells(lines, rows):
    change_part(lines, "policy", lambda value: value["terms"][0].__setitem__("cell", "0"))


@tampering("town", "the cells do not match the locations")
def cells_far_apart(lines, rows):
    change_part(lines, "policy", lambda value: [cell.__setitem__(0, 2 * cell[0]) for cell in value["terms"][0]["at"]])


@tampering("town", "the radius must be that of the settings")
def an_edge_between_some_only(lines, rows):
    change_part(lines, "policy", lambda value: value["terms"][0].__setitem__("within", [0, 5]))


@tampering("town", "an unprotected state must have no edge|the policy must be that of the settings")
def a_state_is_declared_open(lines, rows):
    change_part(lines, "policy", lambda value: value.__setitem__("open", [0, 0]))


@tampering("town", "the policy must be that of the settings")
def no_policy(lines, rows):
    change_part(lines, "policy", lambda value: value.__setitem__("terms", []))


@tampering("flat", "a body is larger than its edges require|has no indistinguishable partner")
def a_missing_edge(lines, rows):
    change_part(lines, "policy", lambda value: value["terms"][0].__setitem__("pairs", [[0, 1]]))


@tampering("flat", "a body is too small")
def an_edge_too_many(lines, rows):
    change_part(lines, "policy", lambda value: value["terms"][0]["pairs"].insert(1, [0, 2]))


# ---- bodies ----------------------------------------------------------------------------------------------------------


def change_body(lines: list[Line], change: Callable[[list[list[int]]], object]) -> None:
    change_part(lines, "noise", lambda value: change(value["parts"][0]["body"]))


@tampering("town", "a body is too small")
def a_smaller_body(lines, rows):
    change_body(lines, lambda tips: [tip.__setitem__(slice(None), [c * 4 // 5 for c in tip]) for tip in tips])


@tampering("town", "a body is larger than its edges require")
def a_larger_body(lines, rows):
    change_body(lines, lambda tips: [tip.__setitem__(slice(None), [2 * c for c in tip]) for tip in tips])


@tampering("flat", "a body is larger than its edges require")
def a_larger_body_with_added_edges(lines, rows):
    part = next(part for part in find_parts(lines, "noise") if "added" in part["value"])
    (noise_part,) = part["value"]["parts"]
    noise_part["body"] = [[2 * c for c in tip] for tip in noise_part["body"]]
    update_digest(lines, part)


@tampering("town", "a body must be given by its upper corners|a body is too small")
def a_corner_is_missing(lines, rows):
    change_body(lines, lambda tips: tips.pop(1))


@tampering("town", "a body must be given by its upper corners")
def a_body_that_is_not_convex(lines, rows):
    change_body(lines, lambda tips: tips.insert(1, [1, 1]))


@tampering("town", "a body must be given by its upper corners")
def corners_in_another_order(lines, rows):
    change_body(lines, lambda tips: tips.reverse())


@tampering("town", "a body is too small")
def no_noise(lines, rows):
    change_body(lines, lambda tips: tips.clear())


@tampering("town", "a body is too small")
def noise_along_a_line(lines, rows):
    change_body(lines, lambda tips: tips.__delitem__(slice(1, None)))


@tampering(
    "town",
    "the parts of the noise do not match the possible states"
    "|an edge of the policy joins two states with different noise",
)
def noise_for_some_only(lines, rows):
    """Two of the possible states have noise."""

    def change(value: Line) -> None:
        value["parts"] = [{**value["parts"][0], "states": states} for states in ([0, 0], [1, 1])]

    change_part(lines, "noise", change)


@tampering(
    "town",
    "noise with several parts needs noise_scope component"
    "|an edge of the policy joins two states with different noise|do not match",
)
def a_separate_part_for_one_state(lines, rows):
    def change(value: Line) -> None:
        possible = [0, 2, 5, 6, 10, 10]
        whole = value["parts"][0]
        value["parts"] = [whole | {"states": possible[:2]}, whole | {"states": possible[2:]}]

    change_part(lines, "noise", change)


@tampering("flat", "has no indistinguishable partner|a body is larger|a body is too small|added edge")
def no_partner(lines, rows):
    for noise_line in find_parts(lines, "noise"):
        if noise_line["value"].pop("added", None):
            update_digest(lines, noise_line)
            return


@tampering("flat", "an added edge has an impossible endpoint")
def an_impossible_partner(lines, rows):
    change_part(lines, "noise", lambda value: value.__setitem__("added", [[0, 5]]))


@tampering("components", "an edge of the policy joins two states with different noise")
def an_edge_between_parts(lines, rows):
    change_part(lines, "policy", lambda value: value["terms"][0]["groups"].append([2, 3]))


@tampering("components", "has the noise of others|do not match|an unprotected state must have no edge|larger|too small")
def an_open_state_among_others(lines, rows):
    def change(value: Line) -> None:
        parts = {tuple(noise_part["states"]): noise_part for noise_part in value["parts"]}
        parts[3, 4]["states"] = [3, 5]
        value["parts"] = [noise_part for states, noise_part in parts.items() if states != (5, 5)]

    change_part(lines, "noise", change)


@tampering("components", "has no indistinguishable partner")
def a_place_that_was_never_open(lines, rows):
    change_part(lines, "policy", lambda value: value.pop("open"))


# ---- tables ----------------------------------------------------------------------------------------------------------


def change_table(lines: list[Line], change: Callable[[list[list[str]]], object]) -> None:
    def change_first_table(value: Line) -> None:
        change(next(noise_part["table"] for noise_part in value["parts"] if "table" in noise_part))

    change_part(lines, "noise", change_first_table)


def move_weight(row: list[str], share: int) -> None:
    """Move weight from the last to the first output of a row."""
    by = int(row[-1]) // share
    row[0], row[-1] = str(int(row[0]) + by), str(int(row[-1]) - by)


@tampering("tables", "a table distinguishes the endpoints of an edge by more than epsilon")
def a_weight_is_moved(lines, rows):
    change_table(lines, lambda rows: move_weight(rows[0], 2))


@tampering("tables", r"a row of a table must be a distribution over 2\*\*62")
def a_row_that_is_too_heavy(lines, rows):
    change_table(lines, lambda rows: rows[0].__setitem__(0, str(int(rows[0][0]) + 1)))


@tampering("tables", r"a row of a table must be a distribution over 2\*\*62")
def a_negative_weight(lines, rows):
    change_table(lines, lambda rows: rows[0].__setitem__(slice(2), ["-1", str(int(rows[0][0]) + int(rows[0][1]) + 1)]))


@tampering("tables", "the locations of a table must ascend")
def a_place_twice(lines, rows):
    def change(value: Line) -> None:
        table_part = next(noise_part for noise_part in value["parts"] if "table" in noise_part)
        table_part["places"][1] = table_part["places"][0]

    change_part(lines, "noise", change)


@tampering(
    "tables",
    r"an edge of the policy joins two states that are released exactly"
    r"|a row of a table must be a distribution over 2\*\*62|do not match|different noise",
)
def an_omitted_table(lines, rows):
    def change(value: Line) -> None:
        for noise_part in value["parts"]:
            if noise_part.pop("table", None):
                noise_part["body"] = noise_part.pop("places") and []

    change_part(lines, "noise", change)


# ---- releases --------------------------------------------------------------------------------------------------------


@tampering("town", "epsilon must be positive and at most that of the settings")
def a_larger_epsilon(lines, rows):
    find_steps(lines)[1]["epsilon"] = "2"


@tampering("town", "the total so far is 1/2")
def a_smaller_epsilon(lines, rows):
    find_steps(lines)[0]["epsilon"] = "1/2"


@tampering("town", "epsilon must be positive and at most that of the settings")
def no_epsilon(lines, rows):
    find_steps(lines)[0]["epsilon"] = "0"


@tampering("town", "epsilon is too small")
def a_negative_epsilon(lines, rows):
    find_steps(lines)[0]["epsilon"] = "-1"


@tampering("town", "must be a fraction in lowest terms")
def an_epsilon_by_zero(lines, rows):
    find_steps(lines)[0]["epsilon"] = "1/0"


@tampering("town", "the total so far is 3")
def another_sum(lines, rows):
    find_steps(lines)[2]["sum"] = "2"


@tampering("town", "the total of the last day is wrong")
def another_day(lines, rows):
    find_steps(lines)[3]["day"] = "3"


@tampering("town", "in or out|a possible state is omitted|is possible that|the row is of")
def another_slot(lines, rows):
    find_steps(lines)[1]["slot"] += 1


@tampering("town", "slots of a user must not decrease")
def an_earlier_slot(lines, rows):
    find_steps(lines)[2]["slot"] -= 5


@tampering("town", "a query is answered twice")
def two_releases_at_one_timestep(lines, rows):
    find_steps(lines)[1]["slot"] = find_steps(lines)[0]["slot"]


@tampering("town", "a possible state is omitted")
def an_omitted_possible_state(lines, rows):
    find_steps(lines)[0]["in"] = find_steps(lines)[0]["in"][2:]


@tampering("town", "a state is possible that transitions and earlier releases exclude")
def a_state_is_made_up(lines, rows):
    step = find_steps(lines)[0]
    step["in"] = [0, step["in"][-1]]


@tampering("town", "do not match")
def a_state_comes_twice(lines, rows):
    find_steps(lines)[1]["in"] = find_steps(lines)[0]["in"]


@tampering("town", "the row has x_km")
def another_release(lines, rows):
    find_steps(lines)[1]["z"][0] += 1


@tampering(
    "flat",
    "the release is impossible in every possible state|a possible state is omitted"
    "|a state is possible that transitions and earlier releases exclude",
)
def a_release_off_the_line(lines, rows):
    find_steps(lines)[0]["z"][1] += 1


@tampering("town", "a withheld release must only have its reason")
def withheld_and_released(lines, rows):
    find_steps(lines)[1]["withheld"] = "budget"


@tampering("town", "the settings do not allow to withhold a release for that reason")
def withheld_for_a_true_location(lines, rows):
    step = find_steps(lines)[1]
    step.update(withheld="at home", epsilon="0")
    del step["z"], step["noise"]


@tampering("town", "the settings do not allow to withhold a release for that reason")
def withheld_in_silence(lines, rows):
    step = find_steps(lines)[1]
    step.update(withheld="budget", epsilon="0")
    del step["z"], step["noise"]


@tampering("town", "the query is not one of this user")
def another_query(lines, rows):
    find_steps(lines)[1]["query"] = "other"


@tampering(
    "flat",
    "a body is too small|do not match|an added edge has an impossible endpoint|larger|has no indistinguishable partner",
)
def the_noise_of_another_timestep(lines, rows):
    steps = find_steps(lines)
    steps[-1]["noise"] = steps[0]["noise"]


@tampering("flat", "the limit on all releases is exceeded")
def a_limit_is_passed(lines, rows):
    next(line for line in lines if "begin" in line)["limits"]["epsilon"] = "2"


@tampering("flat", "the limit on a window is exceeded")
def the_limit_of_a_window_is_passed(lines, rows):
    next(line for line in lines if "begin" in line)["limits"]["window_epsilon"] = "1"


# ---- settings and places ---------------------------------------------------------------------------------------------


def replace_in_settings(lines: list[Line], old: str, new: str) -> None:
    query = next(line for line in lines if "begin" in line)["queries"][0]
    assert old in query["settings"]
    query["settings"] = query["settings"].replace(old, new)


@tampering("town", "the row has settings_hash")
def settings_that_allow_more(lines, rows):
    replace_in_settings(lines, '"epsilon": 1.0', '"epsilon": 2.0')


@tampering("town", "the row has settings_hash|the lattice must be that of the settings")
def another_delta(lines, rows):
    replace_in_settings(lines, '"delta": null', '"delta": 0.5')


@tampering("town", "real-valued noise has no exact proof")
def noise_in_floats(lines, rows):
    replace_in_settings(lines, '"lattice"', '"k-norm"')


@tampering("town", "the lattice must be that of the settings")
def a_coarser_lattice(lines, rows):
    change_part(lines, "places", lambda value: value.__setitem__("unit", "1/100"))


@tampering("town", "the cells do not match the locations")
def a_place_elsewhere(lines, rows):
    change_part(lines, "places", lambda value: value["at"][3].__setitem__(0, value["at"][3][0] + 40))


@tampering("town", "unknown field 'rank'")
def a_query_with_an_unknown_key(lines, rows):
    next(line for line in lines if "begin" in line)["queries"][0]["rank"] = 0


# ---- unspecified content ---------------------------------------------------------------------------------------------


@tampering("town", "part [0-9a-f]{16} is not used by the line that follows it")
def a_part_that_is_never_used(lines, rows):
    part = {"part": "", "value": {"is": "secret", "home": [45, -30]}}
    lines.insert(1, part)
    update_digest(lines, part)


@tampering("town", "part [0-9a-f]{16} is not used by the line that follows it")
def an_unused_part_of_event_caps(lines, rows):
    part = {"part": "", "value": {"is": "prior", "start": [1, 0]}}
    lines.insert(-1, part)
    update_digest(lines, part)


@tampering("town", "the settings have no event caps")
def cells_without_event_caps(lines, rows):
    find_steps(lines)[1]["caps"] = [["1101"]]


@tampering("town", "the settings have no event caps")
def events_without_event_caps(lines, rows):
    find_steps(lines)[0]["events"] = {"chances": "0" * 16, "caps": [], "priors": []}


# ---- changed terms -----------------------------------------------------------------------------------------


def get_begin(lines: list[Line], number: int) -> Line:
    return [line for line in lines if "begin" in line][number]


@tampering("anew", "a state is possible that|a possible state is omitted")
def a_belief_that_restarts_instead_of_continuing(lines, rows):
    del get_begin(lines, 1)["continues"]


@tampering("anew", "it continues another user, model or queries")
def nothing_to_continue_from(lines, rows):
    get_begin(lines, 0)["continues"] = True


@tampering("anew", "it continues another user, model or queries")
def continuing_with_a_string(lines, rows):
    get_begin(lines, 1)["continues"] = "yes"


@tampering("anew", "it continues another user, model or queries")
def continuing_from_another_user(lines, rows):
    get_begin(lines, 1)["begin"] = "bob"


@tampering("anew", "the limits of a user must not change")
def other_limits_when_continuing(lines, rows):
    get_begin(lines, 1)["limits"]["epsilon"] = "9"


@tampering("anew", "the limit on a window is exceeded")
def a_window_over_the_change_is_passed(lines, rows):
    for number in (0, 1):
        get_begin(lines, number)["limits"]["window_epsilon"] = "1"


# ---- rows ------------------------------------------------------------------------------------------------------------


def register_row_tampering(column: str, value: str, reason: str | None = None) -> None:
    def tamper(lines: list[Any], rows: dict[str, list[dict[str, str]]]) -> None:
        assert rows["ann"][2][column] != value
        rows["ann"][2][column] = value

    tamper.__name__ = f"a_row_with_{column}_{value}"
    tampering("town", reason or "the row has")(tamper)


for _column, _value in (
    ("x_km", "0.5"),
    ("y_km", ""),
    ("epsilon", "0.5"),
    ("epsilon_total", "2.0"),
    ("epsilon_24h", "2.0"),
    ("possible_states", "3"),
    ("min_degree_of_protection", "99"),
    ("constrained_dp_factor", "1.0"),
    ("hull_area_km2", "1.0"),
    ("num_added_edges", "1"),
    ("singleton", "true"),
    ("withheld", "true"),
    ("withheld_reason", "budget"),
    ("mechanism", "k-norm"),
    ("is_exact", "false"),
    ("num_ignored_releases", "1"),
    ("settings_hash", "0" * 16),
    ("crs", "EPSG:4258"),
):
    register_row_tampering(_column, _value)
# Other texts of the same number, or of one that rounding could yield, could disclose a bit each.
for _column, _value in (
    ("epsilon", "1.00"),
    ("epsilon_total", "3"),
    ("hull_area_km2", "7.000000000000001"),
    ("constrained_dp_factor", "2.2500000000000004"),
):
    register_row_tampering(_column, _value)
register_row_tampering("time", "2024-03-07T00:00:00Z", "the row is of")
register_row_tampering("expected_error_m", "1.0")


@tampering("published_sessions", "the row has (epsilon|hull_area_km2|constrained_dp_factor) '-0.0', expected '0.0'")
def a_negative_zero(lines, rows):
    row = next(row for row in rows["ann"] if row["withheld"] == "true")
    row.update(epsilon="-0.0", hull_area_km2="-0.0", constrained_dp_factor="-0.0")


@tampering("town", "there is no published row for this release")
def a_row_is_missing(lines, rows):
    rows["ann"].pop()


@tampering("town", "published rows have no release in the certificate")
def a_row_too_many(lines, rows):
    rows["ann"].append(rows["ann"][-1])


@tampering("town", "published rows have no release in the certificate")
def a_surplus_user(lines, rows):
    rows["bob"] = rows["ann"]


@tampering("town", "there is no published row")
def another_user(lines, rows):
    next(line for line in lines if "begin" in line)["begin"] = "bob"


# ---- rejection --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "reason", "tamper"), TAMPERINGS, ids=lambda value: getattr(value, "__name__", ""))
def test_tampered_certificates_are_rejected_with_reason(worlds, world, reason, tamper):
    lines, rows, model_file = copy.deepcopy(worlds[world])
    tamper(lines, rows)
    refusal_reason = find_refusal(lines, rows, model_file)
    assert refusal_reason is not None, "it was accepted"
    assert re.search(reason, refusal_reason), refusal_reason
    assert re.match(r"line \d+: ", refusal_reason) or "of the model file" in refusal_reason


def test_at_least_150_tamperings_are_registered():
    assert len(TAMPERINGS) >= 150


# ---- mutations -------------------------------------------------------------------------------------------------------


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the paths of all values within, lists and objects included."""
    paths = [path] if path else []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return paths + [inner_path for key, inner in pairs for inner_path in list_paths(inner, (*path, key))]


def change_value(value: Any, rng: random.Random) -> Any:
    """Return another value of a similar type."""
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
        items = list(value)
        if len(items) > 1:
            rng.choice([items.reverse, items.clear, items.pop, lambda: items.append(items[0])])()
        else:
            items.append(1)
        return items if items != value else [*items, 0]
    kept = dict(value)
    kept.pop(rng.choice(list(kept)), None) if kept else kept.update(x=1)
    return kept


def mutate(lines: list[Any], rng: random.Random) -> str:
    """Change one value anywhere. Often the digests of parts are updated."""
    at = rng.randrange(len(lines))
    where = rng.choice(list_paths(lines[at]))
    holder = lines[at]
    for key in where[:-1]:
        holder = holder[key]
    before = holder[where[-1]]
    holder[where[-1]] = change_value(before, rng)
    if "part" in lines[at] and where[0] == "value" and rng.random() < 0.8:
        update_digest(lines, lines[at])
    return f"{where} of line {at + 1}: {format_canonical(before)[:60]} → {format_canonical(holder[where[-1]])[:60]}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_mutations_of_town_are_rejected(worlds, seed):
    """Mutations of a certificate with its rows and model. 2,000 in the slow tests."""
    rng = random.Random(seed)
    lines, rows, model_file = worlds["town"]
    for _ in range(choose_count(200, 20)):
        mutated_lines = json.loads(format_canonical(lines))
        what = mutate(mutated_lines, rng)
        if format_canonical(mutated_lines) != format_canonical(lines):
            assert find_refusal(mutated_lines, rows, model_file) is not None, what
