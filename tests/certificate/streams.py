"""Certificates of leakage, landmarks and repaired counts, their verifier, and tampering.

``python -m tests.certificate.streams`` writes the vectors, in the format of `tests.certificate.vectors`.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from dphmm import leakage
from dphmm.certificate.canonical_forms import Lines
from dphmm.certificate.streams import StreamCertificate
from dphmm.jobs import Counts, Mobility, Scheme, release_landmark_series, repair_counts
from dphmm.tables import TimedTable
from tests.certificate.certificates import Line, Tamperings, encode, format_canonical, load_verifier, update_digest
from tests.certificate.vectors import as_csv, diff_lines, parse_line_number, to_texts

FILE = Path(__file__).parent / "vectors" / "streams.json"
Rows = list[dict[str, str]]
# A certificate and the published rows. Noisy counts come before the repaired ones.
World = tuple[list[Line], Rows | None]


def split_tables(rows: Rows | None) -> tuple[Rows | None, Rows | None]:
    """Return the published rows, and the noisy counts among them."""
    if not rows or "place_0" not in rows[0]:
        return rows, None
    return rows[len(rows) // 2 :], rows[: len(rows) // 2]


def verify(lines: list[Any], rows: Rows | None = None) -> Any:
    return load_verifier().verify_stream(encode(lines), *split_tables(rows))


def find_refusal(lines: list[Any], rows: Rows | None = None) -> str | None:
    """Return the verifier's reason for rejection with the line, or None if it accepts."""
    try:
        verify(lines, rows)
    except load_verifier().RefusedError as problem:
        return str(problem)
    return None


def build_certificate(of: str, fill: Callable[[StreamCertificate], None]) -> list[Line]:
    texts_of_lines: list[str] = []
    writer = StreamCertificate(Lines(texts_of_lines.append, of=of))
    fill(writer)
    writer.end()
    return [json.loads(text) for text in texts_of_lines]


def build_leakage_lines(pairs: dict[str, tuple[Any, Any]], epsilons: Any) -> list[Line]:
    """Build the certificate of streams under one matrix per side, with its suprema."""
    maximum = float(np.max(epsilons))

    def fill(writer: StreamCertificate) -> None:
        for name, (past, future) in pairs.items():
            sides = {"backward": past, "forward": future}
            suprema = {
                side: leakage.LossFunction(matrix).supremum(maximum)
                for side, matrix in sides.items()
                if matrix is not None
            }
            writer.certify_leakage(
                name, leakage.compute_leakage(past, future, epsilons), past, future, suprema, maximum
            )

    return build_certificate("leakage", fill)


THREE = [[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.5, 0.3, 0.2]]
STAY = [[0.8, 0.2], [0.0, 1.0]]


def streams() -> World:
    """Finite and infinite suprema, an unknown side, and disjoint rows."""
    pairs = {"ann": (THREE, THREE), "bob": (None, STAY), "eve": (np.eye(2), STAY)}
    return build_leakage_lines(pairs, [0.5, 0.0, 1.5, 0.25]), None


def release_landmarks(scheme: Any = "uniform", **more: Any) -> tuple[Any, list[Line]]:
    table = TimedTable(np.arange(1, 9), {"beats": np.arange(8) * 3 + 60})
    done = release_landmark_series(table, 20, 1.5, [2, 5], Scheme(scheme, rate=0.5), rng=1, **more)
    budget = done.series.budget
    losses = None if more else done.losses

    def fill(writer: StreamCertificate) -> None:
        writer.certify_landmarks(budget.epsilon, budget.epsilons, budget.timeline.landmark, losses)

    return done, build_certificate("landmarks", fill)


def landmarks() -> World:
    done, lines = release_landmarks("adaptive")
    return lines, to_rows(done.table)


def late_landmarks() -> World:
    """Landmarks without budget at the beginning, which take the first value that is released."""
    table = TimedTable(np.arange(1, 6), {"beats": np.array([71, 75, 92, 88, 70])})
    done = release_landmark_series(table, 20, 1.0, [1, 2], Scheme("skip"), rng=1)
    budget, losses = done.series.budget, done.losses
    lines = build_certificate(
        "landmarks",
        lambda writer: writer.certify_landmarks(budget.epsilon, budget.epsilons, budget.timeline.landmark, losses),
    )
    return lines, to_rows(done.table)


def to_rows(table: TimedTable) -> Rows:
    """Convert a table to rows as read from its CSV."""
    with tempfile.TemporaryDirectory() as folder:
        table.write(Path(folder) / "table.csv")
        return cast(Rows, load_verifier().read_table(str(Path(folder) / "table.csv")))


def certify_repairs(integer: bool, folder: Path, of: str = "lattice") -> World:
    rng = np.random.default_rng(4)
    moves = rng.dirichlet(np.ones(4), 4) * [1, 1, 1, 0] + [[0, 0, 0, 0.25]]
    moves = moves / moves.sum(axis=1, keepdims=True)
    noisy = np.array([[12, -3, 7, 5], [9, 2, 9.5 if of == "laplace" else 9, 1], [4, 4, 4, 4], [30, -9, 0, 0]])
    counts = Counts.from_values(
        np.arange(4), noisy.astype(float), epsilon=np.array([0.5, 1, 1, 2]), is_exact=np.ones(4, bool)
    )
    path = folder / f"{integer} {of}.jsonl"
    done = repair_counts(counts, 20, Mobility(moves), estimator="single", integer=integer, certificate=path)
    rows = to_rows(counts.table) + to_rows(done.table)
    return [json.loads(text) for text in path.read_text().splitlines()], rows


def build_worlds(folder: Path) -> dict[str, World]:
    return {
        "streams": streams(),
        "landmarks": landmarks(),
        "late_landmarks": late_landmarks(),
        "whole": certify_repairs(True, folder),
        "real": certify_repairs(False, folder, "laplace"),
    }


# ---- tampering -------------------------------------------------------------------------------------------------------

TAMPERINGS = Tamperings()
tampering = TAMPERINGS.tampering


def find_line(lines: list[Line], key: str, number: int = 0) -> Line:
    return [candidate for candidate in lines if key in candidate][number]


def change_part(lines: list[Line], kind: str, change: Callable[[Line], object], number: int = 0) -> None:
    """Change a part of a kind, and its digest at every reference."""
    changed_part = [candidate for candidate in lines if "part" in candidate and candidate["value"]["is"] == kind][
        number
    ]
    before = changed_part["part"][:16]
    change(changed_part["value"])
    update_digest(lines, changed_part)
    for other in lines:
        if "part" in other and other["value"].get("matrix") == before:
            other["value"]["matrix"] = changed_part["part"][:16]
            digest = other["part"][:16]
            update_digest(lines, other)
            _rename_digest(lines, digest, other["part"][:16])
    _rename_digest(lines, before, changed_part["part"][:16])


def _rename_digest(lines: list[Line], before: str, after: str) -> None:
    for other_line in lines:
        for side in (other_line.get("backward"), other_line.get("forward")):
            if side:
                side["steps"] = [after if name == before else name for name in side["steps"]]


def decrease(text: str, by: int = 3) -> str:
    """Decrease the last digits of a decimal."""
    return f"{float(text) - by * 1e-9 * 10.0 ** int(text.split('e')[1]):.9e}"


def increase(text: str) -> str:
    return decrease(text, -3)


def build_tampering(key: str, value: Any, of: str, side: str | None = None, number: int = 0) -> Callable[..., None]:
    """Build a tampering function that replaces one value in a line.

    ``value`` is the new value or a function of the old one.
    """

    def tamper(lines: list[Any], rows: Any) -> None:
        holder = find_line(lines, of, number)
        holder = holder[side] if side else holder
        *path, last = key.split(".")
        for name in path:
            holder = holder[int(name) if name.isdigit() else name]
        at = int(last) if last.isdigit() else last
        holder[at] = value(holder[at]) if callable(value) else value

    return tamper


_HALF = "1/2"
for _name, _world, _reason, _told in (
    (
        "less_temporal_leakage",
        "streams",
        "temporal leakage 1 is .*may be larger",
        build_tampering("temporal.1", decrease, "user"),
    ),
    (
        "more_temporal_leakage",
        "streams",
        "temporal leakage 0 is .*is smaller",
        build_tampering("temporal.0", increase, "user"),
    ),
    (
        "less_backward_leakage",
        "streams",
        "backward leakage 2 .*may be larger",
        build_tampering("leakage.2", decrease, "user", "backward"),
    ),
    (
        "more_forward_leakage",
        "streams",
        "forward leakage 3 .*is smaller",
        build_tampering("leakage.3", increase, "user", "forward"),
    ),
    ("a_smaller_budget", "streams", "backward leakage 0", build_tampering("budgets.0", "1/4", "user")),
    ("a_budget_below_zero", "streams", "a budget is too small", build_tampering("budgets.0", "-1/4", "user")),
    (
        "a_time_less",
        "streams",
        "must be a list of the expected length",
        build_tampering("budgets", lambda budgets: budgets[:-1], "user"),
    ),
    ("another_witness", "streams", ", but is smaller", build_tampering("witness.0", 1, "user", "backward")),
    (
        "an_invalid_witness",
        "streams",
        "a witness must be an integer",
        build_tampering("witness.0", 99, "user", "backward"),
    ),
    ("omitted_knowledge", "streams", "temporal leakage 1", build_tampering("backward", None, "user")),
    ("a_vague_figure", "streams", "must have at least nine decimals", build_tampering("temporal.0", "1", "user")),
    *(
        (
            f"a_figure_{name}",
            "streams",
            "must have at least nine decimals after one digit, and an exponent",
            build_tampering("temporal.1", text, "user"),
        )
        for name, text in (
            ("without_digits", "0.000000000e+12"),
            ("of_zero_with_a_small_unit", "0.000000000e-12"),
            ("below_one", "0.500000000e+01"),
            ("of_two_digits", "10.000000000e+00"),
            ("without_sign", "1.000000000e0"),
            ("below_zero", "-1.000000000e+00"),
        )
    ),
    (
        "a_supremum_without_digits",
        "streams",
        "a supremum must have at least nine decimals",
        build_tampering("supremum.value", "0.000000000e+12", "user", "backward", 0),
    ),
    (
        "a_user_twice",
        "streams",
        "there must be a budget, and each user only once",
        build_tampering("user", "ann", "user", None, 1),
    ),
    (
        "a_smaller_supremum",
        "streams",
        "supremum of backward leakage may be larger",
        build_tampering("supremum.value", decrease, "user", "backward", 0),
    ),
    (
        "a_supremum_that_is_finite",
        "streams",
        "may be larger than",
        build_tampering("supremum.value", "9.000000000e+00", "user", "forward", 1),
    ),
    (
        "a_greater_supremum",
        "streams",
        "leakage is smaller than",
        build_tampering("supremum.value", increase, "user", "backward", 0),
    ),
    (
        "no_supremum_where_there_is_one",
        "streams",
        "is finite",
        build_tampering("supremum.value", "inf", "user", "backward", 0),
    ),
    (
        "a_supremum_of_less",
        "streams",
        "leakage is smaller than",
        build_tampering("supremum.epsilon", "1", "user", "backward", 0),
    ),
    ("a_wider_budget", "landmarks", "spend", build_tampering("epsilon", "1", "epsilon")),
    ("a_landmark_forgotten", "landmarks", "the loss of time", build_tampering("landmarks", [1, 1], "epsilon")),
    ("a_landmark_too_many", "landmarks", "has landmark", build_tampering("landmarks", [1, 4], "epsilon")),
    ("a_smaller_loss", "landmarks", "the loss of time 3", build_tampering("losses.3", decrease, "epsilon")),
    ("a_budget_that_is_not_the_row_s", "landmarks", "spend|the loss", build_tampering("budgets.0", "7/5", "epsilon")),
    ("omitted_losses", "landmarks", "malformed|list", build_tampering("losses", "none", "epsilon")),
    (
        "a_count_moved_to_another_place",
        "whole",
        "a user is counted at an impossible location",
        build_tampering("estimate", lambda estimate: estimate[1:] + estimate[:1], "time"),
    ),
    (
        "a_surplus_count",
        "whole",
        "counts must sum to the number of users",
        build_tampering("estimate.0", lambda count: str(int(count) + 1), "time"),
    ),
    (
        "half_a_user",
        "whole",
        "counts must be integers, and the price positive",
        build_tampering("estimate", ["1/2", "0", "10", "19/2"], "time"),
    ),
    (
        "counts_below_zero",
        "whole",
        "counts must sum to the number of users",
        build_tampering("estimate", ["-1", "1", "20", "0"], "time"),
    ),
    ("a_smaller_gap", "whole", "the gap is", build_tampering("gap", "1e-30", "time", None, 2)),
    (
        "another_price",
        "whole",
        "a count is not within the gap of the best",
        build_tampering("price", lambda price: price.split("/")[0], "time"),
    ),
    ("other_noise", "whole", "another epsilon", build_tampering("slope", "1/1000", "time", None, 3)),
    ("a_noisy_count_changed", "whole", "other noisy counts", build_tampering("noisy.0", "400", "time", None, 2)),
    ("another_chance", "whole", "the gap is", build_tampering("p.0", _HALF, "time", None, 2)),
    ("a_place_made_impossible", "whole", "possible", build_tampering("p.0", "0", "time", None, 2)),
    ("another_prior", "whole", "the gap is|possible", build_tampering("prior", "uniform", "counts")),
    ("an_omitted_time", "whole", "a time is missing", build_tampering("time", 5, "time", None, 1)),
    ("fewer_users", "whole", "counts must sum to the number of users", build_tampering("counts", 19, "counts")),
    ("more_here_than_best", "real", "the gap is", build_tampering("estimate", ["5", "0", "5", "10"], "time", None, 0)),
    ("a_gap_of_nothing", "real", "the gap is", build_tampering("gap", "0e+0", "time", None, 1)),
    ("a_multiplier_off", "real", "the gap is", build_tampering("price", "0", "time", None, 1)),
    ("real_counts_called_whole", "real", "sum|whole", build_tampering("whole", True, "counts")),
):
    _told.__name__ = _name
    tampering(_world, _reason)(_told)


@tampering("streams", "a witness must be an integer")
def a_comment_in_a_supremum(lines, rows):
    """A supremum below the last digit of its figure needs no witness."""
    supremum = {"epsilon": "1/1000000000000", "value": "0.000000000e+00", "witness": "52.5,13.4"}
    find_line(lines, "user")["backward"]["supremum"] = supremum


@tampering("streams", "must not be null or empty")
def no_supremum(lines, rows):
    find_line(lines, "user")["backward"]["supremum"] = None


@tampering("streams", "a row must have the total")
def a_row_that_is_no_law(lines, rows):
    change_part(lines, "matrix", lambda value: value["rows"][0].__setitem__(1, "5"))


@tampering("streams", "leakage 1 is")
def rows_that_are_more_alike(lines, rows):
    change_part(lines, "matrix", lambda value: value["rows"].__setitem__(0, value["rows"][1]))


@tampering("streams", "leakage 1 is|, but may be larger")
def too_few_slopes(lines, rows):
    change_part(lines, "loss", lambda value: value.__setitem__("slopes", ["1"]))


@tampering("streams", "slopes must ascend from 1")
def slopes_that_begin_late(lines, rows):
    change_part(lines, "loss", lambda value: value["slopes"].pop(0))


@tampering("streams", "a witness must be more probable in its first row|, but is smaller")
def a_set_of_others(lines, rows):
    change_part(lines, "loss", lambda value: value["witnesses"][0].__setitem__(2, [0, 1]))


@tampering("streams", "the last line states another number of")
def another_end(lines, rows):
    lines[-1]["end"] += 1


@tampering("streams", "the last line is missing")
def no_end(lines, rows):
    lines.pop()


@tampering("streams", "it does not begin with a certificate of a known format")
def of_something_else(lines, rows):
    lines[0]["of"] = "weather"


@tampering("landmarks", "has epsilon")
def a_row_with_another_budget(lines, rows):
    rows[1]["epsilon"] = "0.1"


@tampering("landmarks", "has loss")
def a_row_with_a_smaller_loss(lines, rows):
    rows[1]["loss"] = "0.1"


@tampering("landmarks", "has budget 0, but a new release")
def a_value_that_nothing_was_spent_on(lines, rows):
    at = next(t for t, row in enumerate(rows) if t and row["published"] == "false")
    rows[at]["beats"] = "1.0"


@tampering("late_landmarks", "row 0 has budget 0, but a new release")
def the_truth_before_the_first_release(lines, rows):
    rows[0]["beats"], rows[1]["beats"] = "71.0", "75.0"


@tampering("late_landmarks", "row 1 has budget 0, but a new release")
def a_value_between_the_first_times(lines, rows):
    rows[1]["beats"] = "75.0"


@tampering("streams", "part [0-9a-f]{16} is not used by the line that follows it")
def a_part_that_is_never_used(lines, rows):
    part = {"part": "", "value": {"is": "secret", "home": [45, -30]}}
    lines.insert(1, part)
    update_digest(lines, part)


@tampering("landmarks", "has landmark")
def a_row_that_is_no_landmark(lines, rows):
    rows[1]["landmark"] = "false"


@tampering("landmarks", "fewer rows")
def an_omitted_row(lines, rows):
    rows.pop()


@tampering("whole", "the row has other counts")
def a_row_of_other_counts(lines, rows):
    rows[4]["place_0"] = "21"


@tampering("whole", "other noisy counts")
def another_noisy_row(lines, rows):
    rows[2]["place_1"] = "21.0"


@tampering("real", "another epsilon")
def noise_of_another_budget(lines, rows):
    rows[2]["epsilon"] = "1.5"


# ---- columns of which the certificate contains nothing ---------------------------------------------------------------


def register_cell(name: str, world: str, reason: str, row: int, column: str, text: str) -> None:
    def tamper(lines: list[Any], rows: Rows) -> None:
        rows[row][column] = text

    tamper.__name__ = name
    tampering(world, reason)(tamper)


_FLAG = "is_exact must be true or false, and the same in all rows"
_TIME = "a time must be a number in its shortest form|must be instants in UTC with one unit|malformed"
_SHORTEST = "shortest decimal number"
for _name, _world, _reason, _row, _column, _text in (
    ("a_text_for_a_time", "landmarks", _TIME, 1, "time", "my home is 52.5,13.4"),
    ("a_time_with_more_digits", "landmarks", _TIME, 1, "time", "2.0"),
    ("a_time_with_a_leading_zero", "landmarks", _TIME, 1, "time", "02"),
    ("an_instant_among_numbers", "landmarks", _TIME, 1, "time", "2024-03-07T09:00:00Z"),
    ("a_time_that_does_not_ascend", "landmarks", "must ascend", 1, "time", "1"),
    ("a_text_for_exactness", "landmarks", _FLAG, 1, "is_exact", "my home is 52.5,13.4"),
    ("exactness_that_changes", "landmarks", _FLAG, 1, "is_exact", "false"),
    ("a_landmark_in_capitals", "landmarks", "row 1 has landmark", 1, "landmark", "TRUE"),
    ("a_published_number", "landmarks", "row 1 has published", 1, "published", "1"),
    ("a_budget_with_more_digits", "landmarks", "epsilon is invalid", 1, "epsilon", "0.500"),
    ("a_loss_with_blanks", "landmarks", "loss is invalid", 1, "loss", " 1.5"),
    ("a_text_for_a_value", "landmarks", "malformed", 1, "beats", "my home is 52.5,13.4"),
    ("a_value_with_more_digits", "landmarks", _SHORTEST, 1, "beats", "52.50000000000000013"),
    ("a_text_for_a_time_of_repaired_counts", "whole", _TIME, 5, "time", "my home is 52.5,13.4"),
    ("a_text_for_a_time_of_noisy_counts", "whole", _TIME, 1, "time", "my home is 52.5,13.4"),
    ("a_text_for_exactness_of_repaired_counts", "whole", _FLAG, 5, "is_exact", "my home is 52.5,13.4"),
    ("exactness_that_changes_in_repaired_counts", "whole", _FLAG, 5, "is_exact", "false"),
    ("a_text_for_exactness_of_noisy_counts", "whole", _FLAG, 1, "is_exact", "52.5,13.4"),
    ("a_budget_of_noisy_counts_with_more_digits", "whole", "epsilon is invalid", 1, "epsilon", "1.000"),
    ("a_repaired_count_with_a_fraction", "whole", "malformed", 5, "place_0", "7.0"),
    ("a_noisy_count_with_more_digits", "real", "a count must be a number", 1, "place_0", "9.00"),
):
    register_cell(_name, _world, _reason, _row, _column, _text)


def add_column(rows: Rows, name: str, text: str, first: bool = False) -> None:
    for row in rows:
        cells = {name: text, **row} if first else {**row, name: text}
        row.clear()
        row.update(cells)


_COLUMNS = "the columns must be|the other columns of a table of counts must be"


@tampering("whole", _COLUMNS)
def a_budget_of_repaired_counts(lines, rows):
    add_column(rows[len(rows) // 2 :], "epsilon", "my home is 52.5,13.4")


@tampering("whole", _COLUMNS)
def another_column_of_repaired_counts(lines, rows):
    add_column(rows[len(rows) // 2 :], "home", "1")


@tampering("whole", _COLUMNS)
def another_column_of_noisy_counts(lines, rows):
    add_column(rows[: len(rows) // 2], "home", "52.5", first=True)


@tampering("landmarks", _COLUMNS)
def columns_of_landmarks_in_another_order(lines, rows):
    add_column(rows, "time", rows[0].pop("time"))


@tampering("landmarks", "must be instants in UTC with one unit")
def instants_of_several_units(lines, rows):
    for t, row in enumerate(rows):
        row["time"] = f"2024-03-07T09:00:0{t}.{'5' * (3 + 3 * (t == 2))}Z"


@tampering("landmarks", _TIME)
def instants_with_zeros(lines, rows):
    for t, row in enumerate(rows):
        row["time"] = f"2024-03-07T09:00:0{t}.000Z"


def build_vectors(folder: Path) -> dict[str, Any]:
    """Build the vectors."""
    worlds_by_name = build_worlds(folder)
    bases: dict[str, Line] = {
        name: {"lines": to_texts(world_lines), **_format_tables(world_rows)}
        for name, (world_lines, world_rows) in worlds_by_name.items()
    }
    vectors: list[Line] = [{"name": name, "base": name, "replaced": [], "refused": 0} for name in worlds_by_name]
    for world, _, tamper in TAMPERINGS:
        tampered, rows = copy.deepcopy(worlds_by_name[world])
        tamper(tampered, rows)
        vector: Line = {"name": tamper.__name__, "base": world}
        vector["replaced"] = diff_lines(bases[world]["lines"], to_texts(tampered))
        vector |= {name: text for name, text in _format_tables(rows).items() if text != bases[world][name]}
        reason = find_refusal(tampered, rows)
        vector["refused"] = parse_line_number(reason)
        if reason is not None:
            vector["because"] = reason.split(": ", 1)[1]
        vectors.append(vector)
    return {"bases": bases, "vectors": vectors}


def _format_tables(rows: Rows | None) -> dict[str, str | None]:
    names = "rows", "noisy"
    return {name: as_csv(table and {"": table}) for name, table in zip(names, split_tables(rows), strict=True)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        content = build_vectors(Path(place))
    joined = ",\n".join(json.dumps(vector) for vector in content["vectors"])
    FILE.write_text(f'{{"bases": {json.dumps(content["bases"])},\n"vectors": [\n{joined}\n]}}\n')
    print(format_canonical({vector["name"]: vector.get("because", "") for vector in content["vectors"]}))
