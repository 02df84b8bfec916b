"""Certificates of leakage, landmarks and repaired counts, the verifier as a module, and ways to lie in them.

``python -m tests.certificate.streams`` writes the vectors, a file of the form of
`tests.certificate.vectors`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dphmm import leakage
from dphmm.certificate.canonical_forms import Lines
from dphmm.certificate.streams import StreamCertificate
from dphmm.jobs import Counts, Mobility, Scheme, landmark_series, repair_counts
from dphmm.tables import TimedTable
from tests.certificate.certificates import Lies, Line, canonical, encoded, told_anew, verifier
from tests.certificate.vectors import as_csv, number_of, replaced, texts

FILE = Path(__file__).parent / "vectors" / "streams.json"
Rows = list[dict[str, str]]
World = tuple[list[Line], Rows | None]
"""A certificate, and the published rows; of counts the noisy ones stand before the repaired ones."""


def verify(lines: list[Any], rows: Rows | None = None) -> Any:
    some, noisy = (rows[len(rows) // 2 :], rows[: len(rows) // 2]) if rows and "place_0" in rows[0] else (rows, None)
    return verifier().verify_stream(encoded(lines), some, noisy)


def refusal(lines: list[Any], rows: Rows | None = None) -> str | None:
    """Why the verifier refuses, with the line; None where it does not."""
    try:
        verify(lines, rows)
    except verifier().RefusedError as problem:
        return str(problem)
    return None


def certificate(of: str, fill: Callable[[StreamCertificate], None]) -> list[Line]:
    made: list[str] = []
    writer = StreamCertificate(Lines(made.append, of=of))
    fill(writer)
    writer.end()
    return [json.loads(text) for text in made]


def leakage_lines(pairs: dict[str, tuple[Any, Any]], epsilons: Any) -> list[Line]:
    """The certificate of streams under one matrix a side, with its suprema."""
    most = float(np.max(epsilons))

    def fill(writer: StreamCertificate) -> None:
        for name, (past, future) in pairs.items():
            sides = {"backward": past, "forward": future}
            suprema = {side: leakage.LossFunction(one).supremum(most) for side, one in sides.items() if one is not None}
            writer.leakage(name, leakage.account(past, future, epsilons), past, future, suprema, most)

    return certificate("leakage", fill)


THREE = [[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.5, 0.3, 0.2]]
STAY = [[0.8, 0.2], [0.0, 1.0]]


def streams() -> World:
    """A finite supremum, one without end, a side that is not known, and disjoint rows."""
    pairs = {"ann": (THREE, THREE), "bob": (None, STAY), "eve": (np.eye(2), STAY)}
    return leakage_lines(pairs, [0.5, 0.0, 1.5, 0.25]), None


def moments(scheme: Any = "uniform", **more: Any) -> tuple[Any, list[Line]]:
    table = TimedTable(np.arange(1, 9), {"beats": np.arange(8) * 3 + 60})
    done = landmark_series(table, 20, 1.5, [2, 5], Scheme(scheme, rate=0.5), seed=1, **more)
    budget = done.series.budget
    losses = None if more else done.losses

    def fill(writer: StreamCertificate) -> None:
        writer.landmarks(budget.epsilon, budget.epsilons, budget.timeline.landmark, losses)

    return done, certificate("landmarks", fill)


def landmarks() -> World:
    done, lines = moments("adaptive")
    return lines, rows_of(done.table)


def rows_of(table: TimedTable) -> Rows:
    """A table as its CSV would be read."""
    columns = {"time": table.times, **table.columns}
    return [{name: str(column[t]) for name, column in columns.items()} for t in range(len(table))]


def repairs(integer: bool, folder: Path, of: str = "lattice") -> World:
    rng = np.random.default_rng(4)
    moves = rng.dirichlet(np.ones(4), 4) * [1, 1, 1, 0] + [[0, 0, 0, 0.25]]
    moves = moves / moves.sum(axis=1, keepdims=True)
    noisy = np.array([[12, -3, 7, 5], [9, 2, 9.5 if of == "laplace" else 9, 1], [4, 4, 4, 4], [30, -9, 0, 0]])
    counts = Counts.from_values(np.arange(4), noisy.astype(float), epsilon=np.array([0.5, 1, 1, 2]), exact=np.ones(4))
    path = folder / f"{integer} {of}.jsonl"
    done = repair_counts(counts, 20, Mobility(moves), estimator="single", integer=integer, certificate=path)
    told = [{"epsilon": "", **row} for row in rows_of(done.table)]
    return [json.loads(text) for text in path.read_text().splitlines()], rows_of(counts.table) + told


def worlds(folder: Path) -> dict[str, World]:
    return {
        "streams": streams(),
        "landmarks": landmarks(),
        "whole": repairs(True, folder),
        "real": repairs(False, folder, "laplace"),
    }


# ---- lies ------------------------------------------------------------------------------------------------------------

LIES = Lies()
lie = LIES.lie


def line(lines: list[Line], key: str, number: int = 0) -> Line:
    return [one for one in lines if key in one][number]


def part(lines: list[Line], kind: str, change: Callable[[Line], object], number: int = 0) -> None:
    """Change a part of a kind, and its digest everywhere."""
    found = [one for one in lines if "part" in one and one["value"]["is"] == kind][number]
    before = found["part"][:16]
    change(found["value"])
    told_anew(lines, found)
    for other in lines:
        if "part" in other and other["value"].get("matrix") == before:
            other["value"]["matrix"] = found["part"][:16]
            digest = other["part"][:16]
            told_anew(lines, other)
            _renamed(lines, digest, other["part"][:16])
    _renamed(lines, before, found["part"][:16])


def _renamed(lines: list[Line], before: str, after: str) -> None:
    for one in lines:
        for side in (one.get("backward"), one.get("forward")):
            if side:
                side["steps"] = [after if name == before else name for name in side["steps"]]


def less(text: str, by: int = 3) -> str:
    """A decimal whose last digit is less by some."""
    mantissa, exponent = text.split("e")
    return f"{float(mantissa) - by * 1e-9:.9f}e{exponent}"


def more(text: str) -> str:
    return less(text, -3)


def put(key: str, value: Any, of: str, side: str | None = None, number: int = 0) -> Callable[..., None]:
    """A lie that puts a value, or what a function makes of the old one, in one place of a line."""

    def told(lines: list[Any], rows: Any) -> None:
        holder = line(lines, of, number)
        holder = holder[side] if side else holder
        *path, last = key.split(".")
        for name in path:
            holder = holder[int(name) if name.isdigit() else name]
        at = int(last) if last.isdigit() else last
        holder[at] = value(holder[at]) if callable(value) else value

    return told


_HALF = "1/2"
for _name, _world, _reason, _told in (
    ("less_temporal_leakage", "streams", "temporal leakage 1 is .*may be more", put("temporal.1", less, "user")),
    ("more_temporal_leakage", "streams", "temporal leakage 0 is .*is less", put("temporal.0", more, "user")),
    (
        "less_backward_leakage",
        "streams",
        "backward leakage 2 .*may be more",
        put("leakage.2", less, "user", "backward"),
    ),
    ("more_forward_leakage", "streams", "forward leakage 3 .*is less", put("leakage.3", more, "user", "forward")),
    ("a_smaller_budget", "streams", "backward leakage 0", put("budgets.0", "1/4", "user")),
    ("a_budget_below_zero", "streams", "a budget is too small", put("budgets.0", "-1/4", "user")),
    ("a_time_less", "streams", "of another length", put("budgets", lambda one: one[:-1], "user")),
    ("another_witness", "streams", "is less", put("witness.0", 1, "user", "backward")),
    ("a_witness_that_is_none", "streams", "a witness is no whole", put("witness.0", 99, "user", "backward")),
    ("knowledge_that_is_left_out", "streams", "temporal leakage 1", put("backward", None, "user")),
    ("a_vague_figure", "streams", "fewer than nine decimals", put("temporal.0", "1", "user")),
    ("a_user_twice", "streams", "a user twice", put("user", "ann", "user", None, 1)),
    (
        "a_smaller_supremum",
        "streams",
        "supremum of backward leakage may be more",
        put("supremum.value", less, "user", "backward", 0),
    ),
    (
        "a_supremum_that_is_finite",
        "streams",
        "may be more",
        put("supremum.value", "9.000000000e+00", "user", "forward", 1),
    ),
    ("a_greater_supremum", "streams", "leakage is less than", put("supremum.value", more, "user", "backward", 0)),
    ("no_supremum_where_there_is_one", "streams", "is finite", put("supremum.value", "inf", "user", "backward", 0)),
    ("a_supremum_of_less", "streams", "is less than", put("supremum.epsilon", "1", "user", "backward", 0)),
    ("a_wider_budget", "landmarks", "spend", put("epsilon", "1", "epsilon")),
    ("a_landmark_forgotten", "landmarks", "the loss of time", put("landmarks", [1, 1], "epsilon")),
    ("a_landmark_too_many", "landmarks", "says landmark", put("landmarks", [1, 4], "epsilon")),
    ("a_smaller_loss", "landmarks", "the loss of time 3", put("losses.3", less, "epsilon")),
    ("a_budget_that_is_not_the_row_s", "landmarks", "spend|the loss", put("budgets.0", "7/5", "epsilon")),
    ("losses_that_are_kept_quiet", "landmarks", "malformed|list", put("losses", "none", "epsilon")),
    (
        "one_who_moved",
        "whole",
        "someone is where no one can be",
        put("estimate", lambda one: one[1:] + one[:1], "time"),
    ),
    ("one_too_many", "whole", "sum to the users", put("estimate.0", lambda one: str(int(one) + 1), "time")),
    ("half_a_person", "whole", "not whole", put("estimate", ["1/2", "0", "10", "19/2"], "time")),
    ("counts_below_zero", "whole", "sum to the users", put("estimate", ["-1", "1", "20", "0"], "time")),
    ("a_smaller_gap", "whole", "the gap is", put("gap", "1e-30", "time", None, 2)),
    ("another_price", "whole", "far from the best", put("price", lambda one: one.split("/")[0], "time")),
    ("other_noise", "whole", "another epsilon", put("slope", "1/1000", "time", None, 3)),
    ("a_noisy_count_changed", "whole", "other noisy counts", put("noisy.0", "400", "time", None, 2)),
    ("another_chance", "whole", "the gap is", put("p.0", _HALF, "time", None, 2)),
    ("a_place_made_impossible", "whole", "possible", put("p.0", "0", "time", None, 2)),
    ("another_prior", "whole", "the gap is|possible", put("prior", "uniform", "counts")),
    ("a_time_left_out", "whole", "a time is missing", put("time", 5, "time", None, 1)),
    ("fewer_users", "whole", "sum to the users", put("counts", 19, "counts")),
    ("more_here_than_best", "real", "the gap is", put("estimate", ["5", "0", "5", "10"], "time", None, 0)),
    ("a_gap_of_nothing", "real", "the gap is", put("gap", "0", "time", None, 1)),
    ("a_multiplier_off", "real", "the gap is", put("price", "0", "time", None, 1)),
    ("real_counts_called_whole", "real", "sum|whole", put("whole", True, "counts")),
):
    _told.__name__ = _name
    lie(_world, _reason)(_told)


@lie("streams", "does not have the total")
def a_row_that_is_no_law(lines, rows):
    part(lines, "matrix", lambda value: value["rows"][0].__setitem__(1, "5"))


@lie("streams", "leakage 1 is")
def rows_that_are_more_alike(lines, rows):
    part(lines, "matrix", lambda value: value["rows"].__setitem__(0, value["rows"][1]))


@lie("streams", "leakage 1 is|may be more")
def too_few_slopes(lines, rows):
    part(lines, "loss", lambda value: value.__setitem__("slopes", ["1"]))


@lie("streams", "slopes do not ascend")
def slopes_that_begin_late(lines, rows):
    part(lines, "loss", lambda value: value["slopes"].pop(0))


@lie("streams", "is no more probable|is less")
def a_set_of_others(lines, rows):
    part(lines, "loss", lambda value: value["witnesses"][0].__setitem__(2, [0, 1]))


@lie("streams", "it ends with another number")
def another_end(lines, rows):
    lines[-1]["end"] += 1


@lie("streams", "the end is missing")
def no_end(lines, rows):
    lines.pop()


@lie("streams", "begins no certificate")
def of_something_else(lines, rows):
    lines[0]["of"] = "weather"


@lie("landmarks", "says epsilon")
def a_row_with_another_budget(lines, rows):
    rows[1]["epsilon"] = "0.1"


@lie("landmarks", "says loss")
def a_row_with_a_smaller_loss(lines, rows):
    rows[1]["loss"] = "0.1"


@lie("landmarks", "says something new")
def a_value_that_nothing_was_spent_on(lines, rows):
    at = next(t for t, row in enumerate(rows) if t and row["published"] == "False")
    rows[at]["beats"] = "1.0"


@lie("landmarks", "says landmark")
def a_row_that_is_no_landmark(lines, rows):
    rows[1]["landmark"] = "False"


@lie("landmarks", "fewer rows")
def a_row_left_out(lines, rows):
    rows.pop()


@lie("whole", "says other counts")
def a_row_of_other_counts(lines, rows):
    rows[4]["place_0"] = "21"


@lie("whole", "other noisy counts")
def another_noisy_row(lines, rows):
    rows[2]["place_1"] = "21"


@lie("real", "another epsilon")
def noise_of_another_budget(lines, rows):
    rows[2]["epsilon"] = "1.5"


def made(folder: Path) -> dict[str, Any]:
    """The vectors."""
    every = worlds(folder)
    bases: dict[str, Line] = {n: {"lines": texts(some), "rows": _csv(told)} for n, (some, told) in every.items()}
    for name in ("whole", "real"):
        bases[name]["halves"] = True  # of the rows the first half are the noisy ones
    vectors: list[Line] = [{"name": name, "base": name, "replaced": [], "refused": 0} for name in every]
    for world, _, told in LIES:
        some, rows = copy.deepcopy(every[world])
        told(some, rows)
        vector: Line = {"name": told.__name__, "base": world}
        vector["replaced"] = replaced(bases[world]["lines"], texts(some))
        if _csv(rows) != bases[world]["rows"]:
            vector["rows"] = _csv(rows)
        reason = refusal(some, rows)
        vector["refused"] = number_of(reason)
        if reason is not None:
            vector["because"] = reason.split(": ", 1)[1]
        vectors.append(vector)
    return {"bases": bases, "vectors": vectors}


def _csv(rows: Rows | None) -> str | None:
    return None if rows is None else as_csv({"": rows})


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        found = made(Path(place))
    joined = ",\n".join(json.dumps(one) for one in found["vectors"])
    FILE.write_text(f'{{"bases": {json.dumps(found["bases"])},\n"vectors": [\n{joined}\n]}}\n')
    print(canonical({one["name"]: one.get("because", "") for one in found["vectors"]}))
