"""The commands ``dphmm leak`` and ``dphmm budget``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli import shared_options as options
from dphmm.cli.console import FILE, PATH, Once, echo, escape_cell, print_paragraph, print_table, show_progress
from dphmm.cli.keys import get_parameter_name, name_parameters_in_errors
from dphmm.errors import ConfigurationError, InvalidInputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dphmm.arrays import FloatArray
    from dphmm.audit.realized_leakage import RealizedLeakage
    from dphmm.jobs.leakage import Adversaries, Adversary, LeakageResult
    from dphmm.leakage import Supremum


# Options for the knowledge of the adversary.
knowledge_options = options.compose(
    click.option("--backward", type=PATH, help="Matrix of Pr(state before | state now)."),
    click.option("--forward", type=PATH, help="Matrix of Pr(state after | state now)."),
    click.option(
        "--user-matrices",
        nargs=3,
        multiple=True,
        metavar="NAME BACKWARD FORWARD",
        help="Matrices of one user; - if a matrix is unknown. Can be repeated.",
    ),
)


def read_adversaries(arguments: Mapping[str, Any]) -> Adversaries:
    """Read the knowledge in `knowledge_options`, ``--model`` and, if present, ``--initial``.

    Raises
    ------
    ConfigurationError
        When there is no matrix, several forms are combined, or a user occurs twice.
    DataFileError
        When a file cannot be read.
    """
    from dphmm.jobs.leakage import EVERYONE
    from dphmm.jobs.model.mobility import Mobility, as_matrix
    from dphmm.leakage.input_files import read_numbers

    backward = arguments["backward"]
    forward = arguments["forward"]
    initial = arguments.get("initial")
    if arguments["model"] is not None:
        if backward or forward or arguments["user_matrices"] or initial:
            raise ConfigurationError(
                "--model cannot be combined with matrices from other files: both specify transitions"
            )
        return Mobility.from_source(arguments["model"])
    if arguments["user_matrices"] and (backward or forward):
        raise ConfigurationError("--user-matrices cannot be combined with --backward or --forward: use one of them")
    adversaries: dict[str, Adversary] = {}
    for name, *texts in arguments["user_matrices"] or [(EVERYONE, backward, forward)]:
        past, future = (None if text in (None, "-") else Path(text) for text in texts)
        future = past if past == future else future  # build the loss function of a shared file once
        if past is None and future is None:
            about, fix = (
                (f" of user {name!r}", f"a file in --user-matrices {name} BACKWARD FORWARD")
                if arguments["user_matrices"]
                else ("", "--backward, --forward or both")
            )
            raise ConfigurationError(f"the adversary{about} must know a transition matrix: use {fix}")
        if name in adversaries:
            raise ConfigurationError(f"users must be unique, got {name!r} twice")
        if initial is not None and (past is not None or future is None):
            raise ConfigurationError(
                "--initial derives the backward matrix from --forward: use --forward without --backward"
            )
        adversaries[name] = (past, future) if initial is None else Mobility(as_matrix(future), read_numbers(initial))
    return adversaries


def check_picture(path: Path | None, overwrite: bool = False) -> None:
    """Raise an error if the picture cannot be written, before anything is computed."""
    if path is not None:
        from dphmm.plots import canvas

        canvas.check_picture(path, overwrite)


def draw(path: Path, paint: Callable[[Axes], None], overwrite: bool = False) -> None:
    """Draw a picture with one pair of axes and write it to a file."""
    from dphmm.plots.canvas import create_figure, save_picture

    figure, ax = create_figure(7.0, 4.2)
    paint(ax)
    save_picture(figure, path, overwrite, private=False)


@click.command(cls=Once, name="leak")
@knowledge_options
@click.option("--model", type=PATH, help="Learned model; the backward matrices follow by Bayes' rule.")
@click.option("--releases", type=PATH, help="Releases under --model, of which the leakage is computed.")
@options.users_option
@click.option("--initial", type=PATH, help="Initial distribution, with --forward.")
@click.option("--steps", type=click.IntRange(1, 10_000_000), help="Number of times, each with the budget --epsilon.")
@click.option("--epsilons", type=PATH, help="File with one budget per time.")
@click.option("--window", type=int, metavar="W", help="Also report the largest leakage about W consecutive times.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--picture", type=FILE, help="Plot of leakage over time: a new file.")
@click.option("--certificate", type=FILE, help="Certificate for scripts/dphmm-verify: a new file.")
@options.release_options
def leak_command(releases: Path | None, as_json: bool, picture: Path | None, **arguments: Any) -> None:
    """Compute the temporal privacy leakage of a stream of releases.

    Matrices are CSV (one row per line), NPY or NPZ files. With --initial or --model the backward matrices follow from
    the forward matrix by Bayes' rule. With --releases the budget of a time is the bound on the log-likelihood ratio of
    its release between any two possible states (constrained factor times epsilon), and 0 without a release. The table
    contains for every time the budget, the leakage through releases up to it (BPL), from it on (FPL) and through all
    releases (TPL). These are upper bounds for all possible outputs.

    With --policy (and the other settings, as for 'dphmm audit session') the realized leakage of the outputs follows:
    log odds between states that the policy connects, excluded states, and the adversary's error. A release that can
    rule out a possible state, as with separate noise per zone, has no upper bound; its realized leakage is finite.
    """
    from dphmm.jobs.leakage import (
        UNCOVERED_DISCLOSURES,
        compute_release_leakage,
        compute_stream_leakage,
        realized_leakage,
    )
    from dphmm.release.settings import SETTING_NAMES

    certificate = arguments["certificate"]
    window = arguments["window"]
    users = arguments["users"] or ()
    if len(users) > 1:
        raise ConfigurationError(f"{get_parameter_name('users')} must name one user of --releases, got {len(users)}")
    user = next(iter(users), None)
    check_picture(picture)
    realized = None
    if releases is None:
        events = ("events", "max_event_probability", "min_event_probability")
        options.refuse({*SETTING_NAMES, *options.AIMS, *events, "users"} - {"epsilon"}, "needs --releases")
        budgets = _build_budgets(arguments["epsilon"], arguments["steps"], arguments["epsilons"])
        result = compute_stream_leakage(read_adversaries(arguments), budgets, certificate, show_progress)
    elif (
        arguments["model"] is None
        or any(arguments[name] for name in ("backward", "forward", "user_matrices", "initial", "steps", "epsilons"))
        or (arguments["epsilon"] is not None and arguments["policy"] is None)
    ):
        raise ConfigurationError(
            "--releases needs --model and cannot be combined with other inputs: the file contains the budgets"
        )
    else:
        settings = options.build_stated_settings(arguments)
        realized = None if settings is None else realized_leakage(arguments["model"], releases, settings, user)
        result = compute_release_leakage(arguments["model"], releases, user, certificate, show_progress)
        if result.unbounded_times and picture is not None:
            raise ConfigurationError(
                "--picture cannot be combined with unbounded leakage: a release can rule out a possible state"
            )
    try:
        with name_parameters_in_errors(times="window"):
            widest = None if window is None else _find_largest_window(result, window)
    except InvalidInputError:
        if certificate is not None:
            certificate.unlink()  # a new file, which the command would leave behind
        raise
    if as_json:
        more = {"window": widest, "realized": None if realized is None else realized.to_dict()}
        echo(
            json.dumps(
                _build_record(result) | {name: value for name, value in more.items() if value is not None}, indent=2
            )
        )
    else:
        _print(result, widest)
        if realized is not None:
            _print_realized(realized)
        print_paragraph("Not covered:", " ".join(UNCOVERED_DISCLOSURES))
    if picture is not None:
        from dphmm.plots.leakage import draw_leakage

        worst = max(result.leakage.by_user.values(), key=lambda leakage: leakage.worst)
        draw(picture, lambda ax: draw_leakage(ax, worst))


def _print_values(title: str, values: list[tuple[str, str]]) -> None:
    """Print a title, and a line with label and value for each value."""
    width = max((len(label) for label, _ in values), default=0)
    echo(title, bold=True)
    for label, value in values:
        echo(f"  {label:<{width}}  {value}")


def _print_realized(realized: RealizedLeakage) -> None:
    result = realized.to_dict()
    first, second = result["worst_pair"]
    total = (
        f"{result['max_total_log_odds']:.4g} (states {first} and {second}, up to timestep {result['worst_timestep']})"
    )
    values = [
        ("pairs", "connected by the policy" if realized.is_by_edge else "connected by a path of the policy"),
        ("max log odds, one release", f"{result['max_release_log_odds']:.4g}"),
    ]
    if result["median_release_log_odds"] is not None:
        values.insert(1, ("median log odds, one release", f"{result['median_release_log_odds']:.4g}"))
    if result["is_24h_known"]:
        values.append(("max log odds, 24 hours", f"{result['max_log_odds_24h']:.4g}"))
    values.append(("max log odds, all releases", total))
    if realized.num_excluding_releases:
        values += _describe_exclusions(result)
    if result["median_bits"] is not None:
        values.append(("median information, one release", f"{result['median_bits']:.3g} bits"))
    values.append(("max information, one release", f"{result['max_bits']:.3g} bits"))
    if result["num_unprotected"]:
        values.append(("timesteps with an unprotected likeliest state", f"{result['num_unprotected']:,}"))
    _print_values("Realized leakage of these outputs", values)
    if result["median_adversary_error_m"] is not None:
        which = " (other timesteps)" if result["num_unprotected"] else ""
        values = [
            ("median expected error", f"{result['median_adversary_error_m']:,.0f} m"),
            ("min expected error", f"{result['min_adversary_error_m']:,.0f} m"),
            ("max posterior probability", f"{result['max_posterior']:.2f}"),
        ]
        _print_values(f"Adversary with the model, filtered{which}", values)
        echo("  Smoothed values: dphmm audit session")


def _describe_exclusions(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines about releases that ruled out states."""
    lines = [("releases that ruled out states (not in the sums)", f"{result['num_excluding_releases']:,}")]
    if result["is_by_edge"]:
        lines += [
            ("connected pairs with both states ruled out", f"{result['num_vacuous']:,}"),
            ("connected pairs with one state ruled out", f"{result['num_distinguished']:,}"),
        ]
    else:
        lines += [
            ("states ruled out", f"{result['num_vacuous'] + result['num_distinguished']:,}"),
            ("of these, by a release that left others of their component", f"{result['num_distinguished']:,}"),
        ]
    if result["worst_pair_counts"] is not None:
        first, second = result["worst_pair"]
        text = "{compared} compared; ruled out first {excluded_first}, second {excluded_second}, both {excluded_both}"
        lines.append((f"releases for states {first} and {second}", text.format(**result["worst_pair_counts"])))
    return lines


def _build_budgets(epsilon: float | None, steps: int | None, epsilons: Path | None) -> FloatArray:
    import numpy as np

    from dphmm.leakage.input_files import read_budgets
    from dphmm.leakage.stream_leakage import as_budgets

    if epsilons is not None:
        if epsilon is not None or steps is not None:
            raise ConfigurationError(
                f"{get_parameter_name('epsilons')} cannot be combined with --epsilon or --steps: use one of them"
            )
        return np.array(read_budgets(epsilons), dtype=np.float64)
    if epsilon is None or steps is None:
        raise ConfigurationError("no budgets: use --epsilon and --steps, or --epsilons")
    with name_parameters_in_errors(epsilons="epsilon"):
        return as_budgets(np.full(steps, epsilon))


# With more times than this, only times with a release are listed, and at most this many of them.
_MAX_ROWS = 50


def _build_record(result: LeakageResult) -> dict[str, Any]:
    population = result.leakage
    users = {}
    for name, leakage in population.by_user.items():
        curves = {name: getattr(leakage, name).tolist() for name in ("epsilons", "backward", "forward", "temporal")}
        bounds = {
            side: _build_supremum_record(result.epsilon, bound)
            for side, bound in result.suprema.get(str(name), {}).items()
        }
        users[name] = {**curves, "user_level": leakage.user_level, "bounds": bounds}
    from dphmm.formatting import as_plain
    from dphmm.jobs.leakage import UNCOVERED_DISCLOSURES

    stated = {
        "temporal": population.temporal.tolist(),
        "most_exposed_users": list(population.most_exposed_users),
        "worst": population.worst,
        "users": users,
        "uses_transitions": result.uses_transitions,
        "unbounded_times": [t + 1 for t in result.unbounded_times],
        "not_covered": UNCOVERED_DISCLOSURES,
    }
    record: dict[str, Any] = as_plain(stated)
    return record


def _build_supremum_record(epsilon: float, bound: Supremum) -> dict[str, Any]:
    supremum = bound.value if math.isfinite(bound.value) else None
    return {"epsilon": epsilon, "supremum": supremum, "rows": list(bound.rows)}


def _find_largest_window(result: LeakageResult, times: int) -> dict[str, Any]:
    """Return the largest leakage about consecutive times, and these times, from 1."""
    largest = {name: leakage.largest_window(times) for name, leakage in result.leakage.by_user.items()}
    user = max(largest, key=lambda name: largest[name][0])
    leakage, start = largest[user]
    return {"times": times, "largest": leakage, "first": start + 1, "last": start + times, "user": str(user)}


def _print(result: LeakageResult, widest: dict[str, Any] | None) -> None:
    from dphmm.formatting import format_upper_bound

    population = result.leakage
    has_users = len(population.by_user) > 1
    first = next(iter(population.by_user.values()))
    is_short = population.temporal.size <= _MAX_ROWS
    listed = [t for t, spent in enumerate(first.epsilons.tolist()) if spent > 0 or is_short]
    if result.unbounded_times:  # times without a bound on either side are omitted
        listed = [t for t in listed if math.isfinite(first.backward[t]) or math.isfinite(first.forward[t])]
    rows = []
    for t in listed:
        user = population.most_exposed_users[t]
        leakage = population.by_user[user]
        numbers = (leakage.epsilons[t], leakage.backward[t], leakage.forward[t], leakage.temporal[t])
        rows.append(
            [str(t + 1), *(format_upper_bound(value) for value in numbers), *([str(user)] if has_users else [])]
        )
    columns = ["time", "budget", "BPL (past)", "FPL (future)", "TPL (all)", *(["user"] if has_users else [])]
    if rows:
        title = (
            "Temporal privacy leakage: bounds on the log-likelihood ratio between any two states at a time, for its "
            "own release (budget), and for past, future and all releases"
        )
        print_table(columns, rows, title, _MAX_ROWS)
    if len(listed) < population.temporal.size and not result.unbounded_times:
        echo(f"Only times with a release are listed ({len(listed):,} of {population.temporal.size:,}).")
    values = []
    if result.unbounded_times:
        values += [
            ("max TPL", "unbounded"),
            ("releases that can rule out a possible state", f"{len(result.unbounded_times):,}"),
            ("first of them at time", str(result.unbounded_times[0] + 1)),
        ]
    else:
        values += [
            ("max TPL", format_upper_bound(population.worst)),
            ("all times together (user level)", format_upper_bound(first.user_level)),
        ]
    if widest is not None:
        which = "times {first} to {last}".format(**widest) + (f" of {escape_cell(widest['user'])}" if has_users else "")
        values.append(
            (f"max over {widest['times']} times together", f"{format_upper_bound(widest['largest'])} ({which})")
        )
    for name, sides in result.suprema.items():
        for side, bound in sides.items():
            owner = f"{escape_cell(name)}: " if has_users else ""
            pair = " and ".join(map(str, bound.rows))
            limit = format_upper_bound(bound.value) if math.isfinite(bound.value) else "unbounded"
            values.append((f"{owner}limit of {side} leakage at ε = {result.epsilon:g}", f"{limit} (rows {pair})"))
    _print_values("Privacy", values)
    if result.unbounded_times:
        print_paragraph("", "Use --policy to compute the realized leakage, which is finite.")
    if not result.uses_transitions:
        print_paragraph(
            "",
            "The model has too many transitions to compute decay. Leakage is the sum of all budgets, an upper bound.",
        )


@click.command(cls=Once, name="budget")
@knowledge_options
@click.option("--model", type=PATH, help="Learned model: its matrix, and the reverse matrix.")
@click.option("--alpha", type=float, required=True, help="Bound on the leakage at every time.")
@click.option("--steps", type=int, help="Number of releases. [default: constant budget, any length]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--picture", type=FILE, help="Plot of budgets and leakage: a new file.")
def budget_command(alpha: float, steps: int | None, as_json: bool, picture: Path | None, **arguments: Any) -> None:
    """Compute budgets that keep temporal privacy leakage at most ALPHA at every time.

    Without --steps the result is the largest constant budget, for a stream of any length. With --steps the budgets make
    one user's leakage equal to ALPHA at every time. If the states are too strongly correlated for such budgets, each of
    T times gets ALPHA / T, the sum of which bounds leakage under any correlation. With several users each time gets the
    smallest of their budgets. With --model the backward matrix is the model's reverse under its initial distribution,
    which is assumed to be stationary. Printed budgets are rounded down to six figures. They concern any two
    states: for the --epsilon of 'dphmm release', divide them by the constrained_dp_factor of the releases.
    """
    from dphmm.formatting import format_lower_bound
    from dphmm.jobs.leakage import budget, load_user_matrices

    check_picture(picture)
    matrices = load_user_matrices(read_adversaries(arguments))
    shared = budget(matrices, alpha, steps)
    budgets = shared.budgets.tolist()
    if as_json:
        record = {
            "alpha": alpha,
            "constant": steps is None,
            "budgets": budgets,
            "tightest": shared.tightest,
            "users": {str(name): values.tolist() for name, values in shared.by_user.items()},
            "composed": {str(name): why for name, why in shared.composed.items()},
        }
        echo(json.dumps(record, indent=2))
    elif steps is None:
        echo(f"A budget of ε = {format_lower_bound(budgets[0])} at every time keeps leakage at most {alpha:g}.")
    else:
        rows = [[str(t), format_lower_bound(value)] for t, value in enumerate(budgets, start=1)]
        print_table(["time", "ε"], rows, f"Budgets for a leakage of at most {alpha:g} at every time")
        for name, why in shared.composed.items():
            owner = "" if len(matrices) == 1 else f"{escape_cell(str(name))}: "
            echo(f"{owner}{alpha:g} / {steps} at each time, which bounds leakage under any correlation: {why}.")
    if len(matrices) > 1 and not as_json:
        echo(f"User with the smallest budgets: {escape_cell(str(shared.tightest))}")
    if arguments["model"] is not None and not as_json:
        echo("For the --epsilon of 'dphmm release', divide by the largest constrained_dp_factor of the releases.")
    if picture is not None:
        import numpy as np

        from dphmm.plots.leakage import draw_leakage_budgets

        shown = np.repeat(shared.budgets, 30) if steps is None else shared.budgets
        past, future = matrices[str(shared.tightest)]
        draw(picture, lambda ax: draw_leakage_budgets(ax, past, future, shown, alpha))
