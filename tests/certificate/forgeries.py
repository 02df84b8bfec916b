"""Consistent tampering with sessions, geometry, encodings and rows."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from dphmm import Limits, MarkovModel, ReleaseSettings, Schedule
from tests.certificate.certificates import (
    PATH,
    Line,
    Tamperings,
    build_town,
    find_parts,
    find_steps,
    format_canonical,
    load_verifier,
    publish_path,
    publish_sessions,
    update_digest,
)

TAMPERINGS = Tamperings()
tampering = TAMPERINGS.tampering

# ---- worlds ----------------------------------------------------------------------------------------------------------

SLOT = 5_700_000
SESSIONS = {
    "ann": [[(0, SLOT), (1, SLOT + 1)], [(7, SLOT + 100), (8, SLOT + 101)], [(8, SLOT + 400)]],
    "bob": [[(3, SLOT), (3, SLOT + 2)]],
}
LIMITS = Limits(epsilon=3, window_epsilon=1.5, window_steps=288)


def build_worlds(folder: Path) -> dict[str, tuple[list[Line], Any, MarkovModel]]:
    """Build users with several sessions, and releases by tables, with their rows and model."""
    model = build_town()
    settings = ReleaseSettings("utility:1km", 0.5, schedule=Schedule(window_epsilon=5.0))
    sessions = publish_sessions(settings.engine(model, 7), folder / "sessions.csv", SESSIONS, limits=LIMITS)
    small = build_town(3)
    engine = ReleaseSettings("utility:1km", 1, "graph-exponential").engine(small, 7)
    by_table = publish_path(engine, folder / "by_table.csv", PATH)
    by_centre = publish_path(ReleaseSettings("centres:1km", 1).engine(model, 7), folder / "by_centre.csv", PATH)
    read = load_verifier().read_rows
    return {
        "sessions": (sessions, None, model),
        "published_sessions": (sessions, read(str(folder / "sessions.csv")), model),
        "by_table": (by_table, None, small),
        "by_centre": (by_centre, None, model),
        "published_table": (by_table, read(str(folder / "by_table.csv")), small),
    }


# ---- sessions --------------------------------------------------------------------------------------------------------


def get_begins(lines: list[Line], user: str = "ann") -> list[Line]:
    return [line for line in lines if line.get("begin") == user]


def find_index(lines: list[Line], wanted: Line) -> int:
    """Return the index of a line that may have equal ones."""
    return next(number for number, line in enumerate(lines) if line is wanted)


def change_settings(lines: list[Line], old: str, new: str) -> None:
    for line in lines:
        for query in line.get("queries", ()):
            assert old in query["settings"]
            query["settings"] = query["settings"].replace(old, new)


def restart_often(lines: list[Line], slots: list[int], epsilon: int = 1) -> None:
    """Repeat the first release at some slots, each after a new start, with consistent totals."""
    first, begin = find_steps(lines)[0], next(line for line in lines if "begin" in line)
    head, (_, *parts) = lines[: find_index(lines, begin)], lines[find_index(lines, begin) : find_index(lines, first)]
    lines[:] = head
    for count, slot in enumerate(slots, 1):
        recent = epsilon * sum(slot - 288 < earlier for earlier in slots[:count])
        step = {**first, "slot": slot, "epsilon": str(epsilon)}
        step.update(sum=str(count * epsilon), day=str(recent))
        lines.extend([copy.deepcopy(begin), *(parts if count == 1 else ()), step])
    lines.append({"end": len(slots)})


@tampering("by_table", "a timestep of the user is released again")
def a_timestep_in_three_sessions(lines, rows):
    restart_often(lines, [SLOT] * 3)


@tampering("by_table", "a timestep of the user is released again")
def a_later_timestep_in_two_sessions(lines, rows):
    restart_often(lines, [SLOT, SLOT + 3, SLOT + 3])


@tampering("by_table", "slots of a user must not decrease")
def time_that_runs_backwards(lines, rows):
    restart_often(lines, [SLOT, SLOT - 1, SLOT - 2])


@tampering("by_table", "slots of a user must not decrease")
def a_session_before_the_first(lines, rows):
    restart_often(lines, [SLOT, SLOT - 5000])


def use_schedule(lines: list[Line], budget: str, epsilon: int) -> None:
    change_settings(lines, '"schedule": null', f'"schedule": {{"window_epsilon": {budget}, "window_seconds": 86400.0}}')
    change_settings(lines, '"epsilon": 1.0', f'"epsilon": {epsilon}.0')


@tampering("by_table", "the window budget of the schedule is exceeded")
def a_budget_of_a_day_spent_three_times(lines, rows):
    """Spend 2 three times within 15 minutes under a budget of 2 for a day."""
    use_schedule(lines, "2.0", 2)
    restart_often(lines, [SLOT, SLOT + 1, SLOT + 3], 2)


@tampering("by_table", "the window budget of the schedule is exceeded")
def a_budget_of_a_day_spent_at_its_ends(lines, rows):
    use_schedule(lines, "2.0", 2)
    restart_often(lines, [SLOT, SLOT + 287], 2)


def use_limits(lines: list[Line], number: int, **limits: Any) -> None:
    get_begins(lines)[number]["limits"] = {"epsilon": None, "window_epsilon": None, "window_steps": None, **limits}


@tampering("by_table", "the limit on all releases is exceeded")
def a_limit_passed_by_a_new_start(lines, rows):
    restart_often(lines, [SLOT, SLOT + 500])
    for number in (0, 1):
        use_limits(lines, number, epsilon="1")


@tampering("by_table", "the limit on a window is exceeded")
def a_limit_of_a_window_passed_by_a_new_start(lines, rows):
    restart_often(lines, [SLOT, SLOT + 9])
    for number in (0, 1):
        use_limits(lines, number, window_epsilon="1", window_steps=10)


@tampering("sessions", "the limits of a user must not change")
def limits_dropped_at_a_new_start(lines, rows):
    del get_begins(lines)[1]["limits"]


@tampering("sessions", "the limits of a user must not change")
def a_longer_window_at_a_new_start(lines, rows):
    get_begins(lines)[2]["limits"]["window_steps"] = 1


@tampering("sessions", "the limits of a user must not change")
def limits_that_appear_late(lines, rows):
    del get_begins(lines)[0]["limits"]


@tampering("sessions", "the total so far is")
def a_total_of_one_session(lines, rows):
    begin = get_begins(lines)[1]
    step = next(line for line in lines[find_index(lines, begin) :] if "z" in line)
    step["sum"] = step["epsilon"]


@tampering("sessions", "the total of the last day is wrong")
def a_day_of_one_session(lines, rows):
    begin = get_begins(lines)[1]
    step = next(line for line in lines[find_index(lines, begin) :] if "z" in line)
    step["day"] = step["epsilon"]


def add_model(lines: list[Line], number: int, change: Callable[[Line], object]) -> None:
    """Use a changed copy of the model from a session on."""
    part = copy.deepcopy(find_parts(lines, "model")[0])
    change(part["value"])
    begin = get_begins(lines)[number]
    update_digest([part], part)
    begin["model"] = part["part"][:16]
    lines.insert(find_index(lines, begin), part)


@tampering("by_table", "the models about a user must have the same step")
def a_slower_clock_at_a_new_start(lines, rows):
    restart_often(lines, [SLOT, SLOT + 1])
    add_model(lines, 1, lambda value: value.__setitem__("step", "30"))


@tampering("by_table", "the models about a user must have the same step")
def no_clock_at_a_new_start(lines, rows):
    restart_often(lines, [SLOT, SLOT + 1])
    add_model(lines, 1, lambda value: value.__setitem__("step", None))


@tampering("sessions", "it continues another user, model or queries")
def a_session_continued_after_another_user(lines, rows):
    begin = copy.deepcopy(get_begins(lines)[0])
    lines.insert(-1, begin | {"continues": True})


@tampering("sessions", "a user must have a release after each begin")
def a_session_continued_without_a_release(lines, rows):
    begin = get_begins(lines)[1]
    lines.insert(find_index(lines, begin), copy.deepcopy(begin))
    begin["continues"] = True


@tampering(
    "published_sessions",
    "there is no published row|the row has user|the release has index|the row is of|the total so far",
)
def sessions_that_change_places(lines, rows):
    first, second, third = (find_index(lines, begin) for begin in get_begins(lines))
    lines[first:third] = [*lines[second:third], *lines[first:second]]


@tampering("published_sessions", "the row has num_ignored_releases '0', expected '2'")
def a_row_that_knows_of_no_earlier_session(lines, rows):
    rows["ann"][2]["num_ignored_releases"] = "0"


@tampering("published_sessions", "the row has num_ignored_releases")
def two_users_of_one_session(lines, rows):
    """Rename the second session, so that its window starts empty."""
    begins = get_begins(lines)
    at = find_index(lines, begins[2])
    begins[2]["begin"] = "ann2"
    step = next(line for line in lines[at:] if "step" in line)
    step.update(dict.fromkeys(("sum", "day"), step["epsilon"]))
    rows["ann2"] = [rows["ann"].pop() | {"user": "ann2", "epsilon_total": "0.5", "epsilon_24h": "0.5"}]


@tampering("sessions", r"delta must be in \[0, 1\)")
def a_share_of_two_omitted(lines, rows):
    change_settings(lines, '"delta": null', '"delta": 2.0')


# ---- verdicts that depend on settings --------------------------------------------------------------------------------


def use_single_state(lines: list[Line]) -> None:
    """Let users start in one state, and release it exactly in two sessions."""
    part = find_parts(lines, "model")[0]
    part["value"]["start"], part["value"]["moves"] = [[0, 0]], [[[k, k] for k in range(part["value"]["states"])]]
    update_digest(lines, part)
    noise = find_parts(lines, "noise")[0]
    noise["value"] = {"is": "noise", "parts": [{"body": []}]}
    update_digest(lines, noise)
    restart_often(lines, [SLOT, SLOT + 1])
    for step in find_steps(lines):
        step.update({"in": [0, 0], "z": find_parts(lines, "places")[0]["value"]["at"][0], "noise": noise["part"][:16]})


@tampering("components", "a single state is possible, and the settings do not allow to release it")
def a_single_state_allowed_to_another_user(lines, rows):
    use_single_state(lines)
    first, other = (line for line in lines if "begin" in line)
    query = first["queries"][0]
    query["settings"] = query["settings"].replace('"allow_singleton": false', '"allow_singleton": true')
    other["begin"] = "bob"
    find_steps(lines)[1].update(sum="1", day="1")


@tampering("components", "noise with several parts needs noise_scope component")
def noise_of_parts_allowed_to_another_user(lines, rows):
    """The noise of parts is checked once under each user's settings."""
    policy = find_parts(lines, "policy")[0]
    del policy["value"]["open"]
    policy["value"]["terms"] = [{"groups": [[0, 2], [3, 5]]}]
    update_digest(lines, policy)
    noise = find_parts(lines, "noise")[0]
    noise["value"]["parts"] = [
        {"body": [[4, 0]], "states": [0, 2]},
        {"body": [[3, 0], [9, 6], [6, 6]], "states": [3, 5]},
    ]
    update_digest(lines, noise)
    del lines[lines.index(find_steps(lines)[1])]
    begin, step = next(line for line in lines if "begin" in line), find_steps(lines)[0]
    other = copy.deepcopy(begin) | {"begin": "bob"}
    other["queries"][0]["settings"] = begin["queries"][0]["settings"].replace('"component"', '"graph"')
    lines[-1:] = [other, copy.deepcopy(step), {"end": 2}]


# ---- geometry --------------------------------------------------------------------------------------------------------


def change_part(lines: list[Line], kind: str, change: Callable[[Line], object]) -> None:
    for part in find_parts(lines, kind):
        change(part["value"])
        update_digest(lines, part)


def pair_tables(lines: list[Line]) -> None:
    """Connect each state with one or two others, and release them with equal probability."""
    restart_often(lines, [SLOT])
    (noise,) = find_parts(lines, "noise")[:1]
    at = find_parts(lines, "places")[0]["value"]["at"]
    groups = [[0, 1], [2, 3], [4, 5], [6, 7, 9]]
    noise["value"] = {"is": "noise", "added": [[first, s] for first, *rest in groups for s in rest], "parts": []}
    for first, *rest in groups:
        row = [str(2**61)] * 2 + ["0"] * (len(rest) - 1)
        states = [first, first + 1] + [9, 9] * (len(rest) - 1)
        places = sorted([first, *rest], key=lambda s: tuple(map(float, at[s])))
        part = {"table": [row] * (1 + len(rest)), "places": places, "states": states}
        noise["value"]["parts"].append(part)
    update_digest(lines, noise)
    find_steps(lines)[0].update(z=0, noise=noise["part"][:16])
    for unused in find_parts(lines, "noise")[1:]:
        lines.remove(unused)


def spread_cells(value: Line) -> None:
    value["terms"][0]["at"] = [[200 * x, 200 * y] for x, y in value["terms"][0]["at"]]


@tampering("by_table", "the cells do not match the locations")
def cells_of_the_policy_far_apart(lines, rows):
    """Cells are 100 km apart, so that the policy connects nothing."""
    pair_tables(lines)
    change_part(lines, "policy", spread_cells)


@tampering("by_table", "the locations must be those of the model file")
def cells_and_places_far_apart(lines, rows):
    """The locations are 100 km apart, too."""
    pair_tables(lines)
    change_part(lines, "policy", spread_cells)
    (term,) = find_parts(lines, "policy")[0]["value"]["terms"]
    first, side = ([Fraction(text) for text in term[name]] for name in ("first", "side"))
    places = [[repr(float(f + s * k)) for f, s, k in zip(first, side, cell, strict=True)] for cell in term["at"]]
    change_part(lines, "places", lambda value: value.__setitem__("at", places))


def stretch_cells(lines: list[Line], side: Fraction) -> None:
    """Change the side of the policy's cells, about the middle of the 25 cells."""

    def change(value: Line) -> None:
        (term,) = value["terms"]
        shifts = [(side - Fraction(old)) * 2 for old in term["side"]]
        term["first"] = [str(Fraction(old) - shift) for old, shift in zip(term["first"], shifts, strict=True)]
        term["side"] = [str(side)] * 2

    change_part(lines, "policy", change)


def drop_longest_edges(lines: list[Line]) -> None:
    """Use the noise of a policy without edges of exactly 1 km."""
    bodies = find_parts(lines, "noise")
    for part in bodies:
        part["value"]["parts"] = [{"body": [[500, 500], [-500, 500]]}]
        update_digest(lines, part)
    for part in bodies[1:]:
        lines.remove(part)


@tampering("by_centre", "the cells must be those of the model file")
def cells_that_drift_from_the_locations(lines, rows):
    """Edges of exactly 1 km are dropped. Each cell is within half a unit of its location."""
    stretch_cells(lines, Fraction("0.5001"))
    drop_longest_edges(lines)


@tampering("by_centre", "a body is too small")
def cells_that_drift_by_less_than_rounding(lines, rows):
    stretch_cells(lines, Fraction("0.500000001"))
    drop_longest_edges(lines)


@tampering("by_table", "the cells do not match the locations")
def places_mirrored(lines, rows):
    def mirror(value: Line) -> None:
        value["at"] = [[repr(-float(x) + 0.0), y] for x, y in value["at"]]

    change_part(lines, "places", mirror)


@tampering("by_table", "the cells do not match the locations")
def places_of_two_states_swapped(lines, rows):
    def swap(value: Line) -> None:
        value["at"][0], value["at"][-1] = value["at"][-1], value["at"][0]

    change_part(lines, "places", swap)


@tampering("by_table", "the cells do not match the locations")
def a_grid_moved_by_a_metre(lines, rows):
    def move(value: Line) -> None:
        first = value["terms"][0]["first"]
        first[0] = str(Fraction(first[0]) + Fraction(1, 1000))

    change_part(lines, "policy", move)


@tampering("by_table", "the cells do not match the locations")
def cells_of_twice_the_side(lines, rows):
    change_part(lines, "policy", lambda value: value["terms"][0].__setitem__("side", ["1", "1"]))


def use_no_cells(lines: list[Line]) -> None:
    change_part(lines, "places", lambda value: value.__setitem__("cell", "0"))
    change_part(lines, "policy", lambda value: value["terms"][0].__setitem__("cell", "0"))


@tampering("by_table", "the locations must be those of the model file")
def points_for_cells(lines, rows):
    use_no_cells(lines)


def reorder_table(lines: list[Line], order: Callable[[list[Any]], list[Any]]) -> None:
    """Use another order of the rows and columns of each table."""
    for noise in find_parts(lines, "noise"):
        for part in noise["value"]["parts"]:
            part["places"], part["table"] = order(part["places"]), order([order(row) for row in part["table"]])
        update_digest(lines, noise)


@tampering("sessions", "is not used by the line that follows it")
def a_part_before_another_line(lines, rows):
    """The order of parts could encode a text."""
    (*_, last) = find_parts(lines, "noise")
    lines.insert(1, lines.pop(find_index(lines, last)))


@tampering("by_table", "the locations of a table must ascend")
def a_table_in_another_order(lines, rows):
    """The order of the locations of a table could encode a text."""
    reorder_table(lines, lambda values: [*values[1:], values[0]])


def reverse_parts(lines: list[Line]) -> None:
    for noise in find_parts(lines, "noise"):
        noise["value"]["parts"] = noise["value"]["parts"][::-1]
        update_digest(lines, noise)


_PARTS = "several parts, and no single one, must list their states; those with noise must ascend"


@tampering("tables", _PARTS)
def parts_in_another_order(lines, rows):
    reverse_parts(lines)


@tampering("town", _PARTS)
def states_of_a_single_part(lines, rows):
    noise = find_parts(lines, "noise")[0]
    noise["value"]["parts"][0]["states"] = [0, 24]
    update_digest(lines, noise)


@tampering("town", "the policy must be that of the settings")
def a_policy_with_a_term_without_edges(lines, rows):
    change_part(lines, "policy", lambda value: value["terms"].append({"groups": []}))


@tampering("by_table", "a place is invalid")
def a_place_with_two_texts(lines, rows):
    change_part(lines, "places", lambda value: value["at"][1].__setitem__(1, value["at"][1][1] + "0"))


@tampering("by_table", "a place is invalid")
def a_place_between_two_doubles(lines, rows):
    change_part(lines, "places", lambda value: value["at"][1].__setitem__(1, value["at"][1][1] + "0" * 20 + "1"))


@tampering("by_table", "a place is invalid")
def a_place_in_other_digits(lines, rows):
    change_part(lines, "places", lambda value: value["at"][1].__setitem__(1, value["at"][1][1].replace("5", "٥")))


def scale_grid(lines: list[Line], factor: int) -> None:
    """Scale policy and places alike: the certificate alone is consistent."""

    def scale(value: Line) -> None:
        value["at"] = [[factor * x, factor * y] for x, y in value["at"]]
        value["cell"] = str(factor // 2)

    def scale_term(value: Line) -> None:
        value["terms"][0].update(side=[str(factor // 2)] * 2, first=[str(-factor), str(-factor * 5 // 4)])
        value["terms"][0]["cell"] = str(factor // 2)

    change_part(lines, "places", scale)
    change_part(lines, "policy", scale_term)


@tampering("town", "a body is larger than its edges require|a body is too small")
def a_grid_four_times_as_large(lines, rows):
    scale_grid(lines, 4)


@tampering("town", "the row has (x_km|latitude)|the locations must be those of the model file")
def a_region_moved_by_100_km(lines, rows):
    def move(value: Line) -> None:
        value["at"] = [[x + 100_000, y] for x, y in value["at"]]

    change_part(lines, "places", move)
    change_part(lines, "policy", lambda value: value["terms"][0].__setitem__("first", ["99", "-5/4"]))
    for step in find_steps(lines):
        step["z"][0] += 100_000
    for row in rows["ann"]:
        row["x_km"] = repr(round(float(row["x_km"]) + 100, 9))


# ---- encodings of lines ----------------------------------------------------------------------------------------------


@tampering("town", "it is malformed")
def a_mark_of_byte_order(lines, rows):
    lines[0] = "\ufeff" + format_canonical(lines[0])


@tampering("town", "numbers must be integers")
def a_number_that_is_none(lines, rows):
    step = find_steps(lines)[1]
    lines[lines.index(step)] = format_canonical(step).replace('"day":"2"', '"day":NaN')


@tampering("town", "numbers must be integers")
def an_integer_with_an_exponent(lines, rows):
    step = find_steps(lines)[1]
    lines[lines.index(step)] = format_canonical(step).replace('"step":1', '"step":1e0')


def register_line(name: str, change: Callable[[Line], str]) -> None:
    """Write the line of the second release with the same content in other bytes."""

    def tamper(lines: list[Any], rows: Any) -> None:
        step = find_steps(lines)[1]
        text = change(step)
        assert json.loads(text) == step
        assert text != format_canonical(step)
        lines[lines.index(step)] = text

    tamper.__name__ = name
    tampering("town", "it must be JSON with sorted keys, without blanks and needless escapes")(tamper)


for _name, _to_text in (
    ("a_line_with_blanks", lambda step: json.dumps(step, sort_keys=True)),
    ("a_line_with_a_blank_at_its_end", lambda step: format_canonical(step) + " "),
    ("a_line_with_a_carriage_return", lambda step: format_canonical(step) + "\r"),
    ("a_line_with_tabs", lambda step: format_canonical(step).replace(",", ",\t\t\t")),
    ("a_line_with_keys_in_another_order", lambda step: json.dumps(dict(reversed(step.items())), separators=(",", ":"))),
    ("a_line_with_a_needless_escape", lambda step: format_canonical(step).replace('"main"', '"m\\u0061in"')),
    ("a_line_with_an_escaped_key", lambda step: format_canonical(step).replace('"slot"', '"\\u0073lot"')),
):
    register_line(_name, _to_text)


@tampering("town", "it must be JSON with sorted keys, without blanks and needless escapes")
def a_zero_with_a_sign(lines, rows):
    step = find_steps(lines)[0]
    lines[lines.index(step)] = format_canonical(step).replace('"step":0', '"step":-0')


@tampering("sessions", "it must be JSON with sorted keys, without blanks and needless escapes")
def a_name_without_escapes(lines, rows):
    """Every letter beyond ASCII has two forms in JSON."""
    for begin in get_begins(lines):
        lines[find_index(lines, begin)] = format_canonical(begin | {"begin": "än"}).replace("\\u00e4", "ä")


def register_field(name: str, find: Callable[[list[Any]], Line], fields: Line, reason: str = "") -> None:
    """Add fields without a meaning to a line or part."""

    def tamper(lines: list[Any], rows: Any) -> None:
        holder = find(lines)
        (holder["value"] if "part" in holder else holder).update(fields)
        if "part" in holder:
            update_digest(lines, holder)

    tamper.__name__ = name
    tampering("sessions", reason or "must not be null or empty")(tamper)


for _name, _find, _fields in (
    ("empty_changes", lambda lines: find_steps(lines)[1], {"in": [], "out": []}),
    ("no_change", lambda lines: find_steps(lines)[1], {"out": None}),
    ("no_reason", lambda lines: find_steps(lines)[1], {"withheld": None}),
    ("an_empty_reason", lambda lines: find_steps(lines)[1], {"withheld": ""}),
    ("cells_of_nothing", lambda lines: find_steps(lines)[1], {"caps": None}),
    ("events_of_nothing", lambda lines: find_steps(lines)[0], {"events": {}}),
    ("no_limits", lambda lines: get_begins(lines, "bob")[0], {"limits": None}),
    ("no_continuation", lambda lines: get_begins(lines)[1], {"continues": None}),
    ("no_outside_states", lambda lines: find_parts(lines, "model")[0], {"state_of": []}),
    ("no_hours", lambda lines: find_parts(lines, "model")[0], {"hours": None, "zone": None}),
    ("no_unprotected_states", lambda lines: find_parts(lines, "policy")[0], {"open": []}),
    ("no_added_edges", lambda lines: find_parts(lines, "noise")[0], {"added": []}),
):
    register_field(_name, _find, _fields)


def register_settings(name: str, old: str, new: str, reason: str) -> None:
    def tamper(lines: list[Any], rows: Any) -> None:
        change_settings(lines, old, new)

    tamper.__name__ = name
    tampering("sessions", reason)(tamper)


_SETTINGS = "settings must"
for _name, _old, _new in (
    ("settings_with_blanks", '"delta": null', '"delta":    null'),
    ("settings_with_a_comment", '"delta": null', '"delta": null, "home": "52.5,13.4"'),
    ("settings_in_another_order", '{"allow_singleton": false, "caps": [],', '{"caps": [], "allow_singleton": false,'),
    ("settings_without_a_setting", '"delta": null, ', ""),
    ("a_number_in_settings_with_more_digits", '"epsilon": 0.5', '"epsilon": 0.500'),
    ("an_escape_in_settings", '"lattice"', '"l\\u0061ttice"'),
    ("an_unknown_setting_value", '"outside": "clamp"', '"outside": "52.5,13.4"'),
    ("a_number_as_a_setting_of_choice", '"repair": "exact"', '"repair": 52513.4'),
    ("a_text_as_a_number", '"repair_max_work": 5000', '"repair_max_work": "52.5,13.4"'),
    ("a_schedule_with_a_comment", '"window_seconds": 86400.0', '"window_seconds": 86400.0, "x": "52.5,13.4"'),
    ("a_radius_with_more_digits", "utility:1.0km", "utility:1.000km"),
):
    register_settings(_name, _old, _new, "the radius is invalid" if "radius" in _name else _SETTINGS)


@tampering("sessions", "limits must")
def limits_of_nothing(lines, rows):
    for begin in (*get_begins(lines), *get_begins(lines, "bob")):
        begin["limits"] = dict.fromkeys(begin["limits"])


@tampering("sessions", "limits must")
def steps_of_no_window(lines, rows):
    for begin in (*get_begins(lines), *get_begins(lines, "bob")):
        begin["limits"].update(window_epsilon=None, window_steps=525_134)


@tampering("sessions", "a user must have a release after each begin")
def a_begin_without_releases_last(lines, rows):
    lines.insert(-1, copy.deepcopy(get_begins(lines)[0]) | {"begin": "52.5,13.4"})


@tampering("sessions", "a user must have a release after each begin")
def a_begin_without_releases_between_others(lines, rows):
    begin = get_begins(lines)[1]
    lines.insert(find_index(lines, begin), copy.deepcopy(begin) | {"begin": "52.5,13.4"})


@tampering("town", "the digest must be that of the value, and each part must occur once")
def a_digest_in_capitals(lines, rows):
    part = find_parts(lines, "noise")[0]
    assert part["part"] != part["part"].upper()
    part["part"] = part["part"].upper()


@tampering("town", "zone is invalid|hours must match the matrices")
def a_zone_of_each_machine(lines, rows):
    """`localtime` is another zone on every machine."""

    def change(value: Line) -> None:
        value.update(hours=[0, 1] * 84, zone="localtime", moves=value["moves"] * 2, start=value["start"] * 2)

    change_part(lines, "model", change)


# ---- rows that are read differently ----------------------------------------------------------------------------------


def register_cell(name: str, column: str, change: Callable[[str], str], reason: str) -> None:
    def tamper(lines: list[Any], rows: dict[str, list[dict[str, str]]]) -> None:
        row = rows["ann"][2]
        assert row[column] != change(row[column])
        row[column] = change(row[column])

    tamper.__name__ = name
    tampering("town", reason)(tamper)


_TIME = "not a time in UTC that ends in Z"
for _name, _column, _change, _reason in (
    ("a_time_in_another_zone", "time", lambda text: text.replace("Z", "+05:00"), _TIME),
    ("a_time_without_a_zone", "time", lambda text: text.replace("Z", ""), _TIME),
    ("the_same_time_in_another_zone", "time", lambda text: text.replace("16:10:00Z", "17:10:00+01:00"), _TIME),
    ("a_time_by_weeks", "time", lambda text: text.replace("2024-03-09", "2024-W10-6"), _TIME),
    ("a_time_with_a_blank", "time", lambda text: text.replace("T", " "), _TIME),
    ("a_time_without_separators", "time", lambda text: text.replace("-", "").replace(":", ""), _TIME),
    ("a_time_in_other_digits", "time", lambda text: text.replace("2024", "２０２４"), _TIME),
    ("a_number_in_other_digits", "x_km", lambda text: text.replace("0", "０"), "the row has x_km"),
    (
        "a_number_with_underscores",
        "epsilon_total",
        lambda text: text.replace("3.0", "3_0e-1_0"),
        "the row has epsilon_",
    ),
    ("a_number_with_blanks", "y_km", lambda text: f" {text}", "the row has y_km"),
    ("a_number_with_a_sign", "epsilon", lambda text: f"+{text}", "the row has epsilon"),
    ("a_count_with_a_fraction", "possible_states", lambda text: f"{text}.0", "the row has possible_states"),
    ("a_flag_in_capitals", "withheld", str.upper, "the row has withheld"),
    ("a_flag_as_a_number", "is_exact", lambda _: "1", "the row has is_exact"),
    ("a_hash_in_capitals", "settings_hash", str.upper, "the row has settings_hash"),
    ("a_user_with_a_blank", "user", lambda text: f"{text} ", "the row has user"),
):
    register_cell(_name, _column, _change, _reason)


@tampering("published_sessions", "the row has hull_area_km2")
def an_area_in_a_withheld_row(lines, rows):
    """A number that no reader uses could disclose a location."""
    next(row for row in rows["ann"] if row["withheld"] == "true")["hull_area_km2"] = "39.916"


@tampering("published_sessions", "the row has min_degree_of_protection")
def a_degree_in_a_withheld_row(lines, rows):
    next(row for row in rows["ann"] if row["withheld"] == "true")["min_degree_of_protection"] = "7"


@tampering("published_sessions", "the row has x_km")
def a_point_in_a_withheld_row(lines, rows):
    next(row for row in rows["ann"] if row["withheld"] == "true").update(x_km="0.5", y_km="0.5")


@tampering("published_table", "the row has x_km")
def a_location_of_another_state(lines, rows):
    step = find_steps(lines)[0]
    step["z"] = (step["z"] + 1) % 10
