"""Flow tables with user-level differential privacy: release and planning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from math import inf
from typing import Annotated, Any

import numpy as np

from dphmm.errors import BudgetError
from dphmm.flows import Areas, FlowSettings, NoisyTable
from dphmm.flows.areas import derive_visits
from dphmm.flows.noisy_tables import (
    BOUND_FRACTION,
    CANDIDATE_BOUNDS,
    Family,
    Precision,
    add_noise,
    build_rows,
    check_balanced,
    choose_bound,
    split_budget,
    split_budget_by_level,
)
from dphmm.flows.tables import (
    TABLE_TYPES,
    Events,
    Layout,
    Table,
    concatenate_events,
    count_cells,
    derive_events,
    select_bounded,
)
from dphmm.formatting import Result, describe_ratio_bound, exported, void_guarantees_if_seeded
from dphmm.jobs.batch.workers import Engine, Processes
from dphmm.jobs.input_data import Data, DataLike, Dropped, UserBlock, iterate_blocks
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.mechanisms.discrete_laplace import MAX_NOISE_SCALE, CountNoise
from dphmm.mechanisms.exact_sampling import Rational, parse_rational
from dphmm.random import Rng, as_random_source
from dphmm.validation import Interval, check_arguments
from dphmm.writers.flows import FlowRows

# Noise for 100,000 events per user from a thousandth of this epsilon still fits into 64 bits.
_MIN_EPSILON = 1e-4
# A larger epsilon provides no meaningful protection. Up to here, exponentials are finite floats.
_MAX_EPSILON = 500

# Contribution bounds in a plan if the settings specify none.
PLANNED_BOUNDS = 1, 2, 5, 10, 20, 50


@dataclass(frozen=True, eq=False)
class Flows(Result):
    """Flow tables and their guarantee, publishable except for private fields.

    Parameters
    ----------
    tables
        Name → table.
    settings
        The settings.
    areas
        The areas.
    epsilon
        Epsilon of all tables together; with a window, of those of any that many consecutive days.
    spent
        Epsilon of each step.
    bounds
        Unit → maximum number of events per user.
    is_private
        Whether noise came from the operating system. Seeded noise provides no privacy.
    private_dropped
        Skipped input by reason. Private.
    """

    tables: dict[str, NoisyTable]
    settings: FlowSettings
    areas: Areas
    epsilon: Fraction = field(metadata=exported())
    spent: dict[str, Fraction] = field(metadata=exported("spent_on"))
    bounds: dict[str, int]
    is_private: bool = True
    private_dropped: tuple[Dropped, ...] = ()

    def to_rows(self, relative_error: float | None = None, every_row: bool = False) -> FlowRows:
        """Return publishable rows with the areas and the guarantee.

        Parameters
        ----------
        relative_error
            Omit numbers with a larger relative error bound.
        every_row
            Whether to include rows of numbers with an interval that contains zero.

        Returns
        -------
        FlowRows
            The rows. Write them to a file with `FlowRows.write`.
        """
        return FlowRows.from_columns(
            build_rows(self.tables.values(), relative_error, every_row), self.areas, self.to_dict()
        )

    def _derive_fields(self) -> dict[str, Any]:
        level = float(self.epsilon)
        days = self.settings.days
        window = self.settings.window
        words = describe_ratio_bound
        promise = {"likelihood_ratio_all_tables": words(level)}
        if window is not None and days[0] is not None and days[1] is not None:
            count = days[1] - days[0] + 1
            windows = -(-count // window)
            promise = {
                f"likelihood_ratio_tables_of_any_{window}_days": words(level),
                f"likelihood_ratio_all_{count}_days": words(level * windows),
            }
        per_user = {
            f"max_{unit}_per_user": f"{bound}{'' if window is None else ' in any window of days'}"
            for unit, bound in self.bounds.items()
            if unit != "users"
        }
        return dict(
            num_areas=len(self.areas),
            tables=", ".join(self.tables),
            interval_confidence=self.settings.confidence,
            **per_user,
            **void_guarantees_if_seeded(promise, self.is_private),
        )


@check_arguments
def flows(
    data: DataLike,
    areas: Areas,
    user_epsilon: Rational,
    settings: FlowSettings | None = None,
    *,
    rng: Rng = None,
    engine: Engine | None = None,
    watch: ProgressCallback = suppress_progress,
) -> Flows:
    """Count visits and flows with user-level differential privacy, as ``dphmm flows`` does.

    If one user, with all of their days, is added to or removed from the data, the probability of any set of tables
    changes by a factor of at most e^epsilon. Nothing about a user is assumed to be public: neither their presence in
    the data, nor the number of users, nor the number of their movements.

    Parameters
    ----------
    data
        The trajectories.
    areas
        The areas, which are public.
    user_epsilon
        Budget of all tables together.
    settings
        The settings, which are public.
    rng
        Source of randomness. Defaults to the operating system. Seeded noise provides no privacy.
    engine
        Workers, such as `dphmm.jobs.batch.workers.Processes` or a Dask cluster. Defaults to this process.
    watch
        Shows the progress; see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    Flows
        The tables.

    Raises
    ------
    BudgetError
        When the budget is not positive, or its noise can exceed 64 bits.
    ConfigurationError
        When a table has too many cells.
    DataFileError, DphmmError
        When the data are invalid.

    Examples
    --------
    >>> from dphmm.flows import Areas, FlowSettings
    >>> town = Areas.from_polygons("data/districts.geojson")
    >>> settings = FlowSettings("visits,flows", visits_per_user=20, trips_per_user=10)
    >>> result = flows("data/sample/geolife", town, 1, settings, rng=1)
    >>> sum(result.spent.values()), result.tables["flows"].counts.min() >= 0
    (Fraction(1, 1), np.True_)
    """
    settings = FlowSettings() if settings is None else settings
    budget = _parse_budget(user_epsilon)
    layout = settings.layout(areas)
    tables = [Table(name, layout) for name in settings.names]
    _check_tables(tables, settings, budget)
    left_out = list[Dropped]()
    blocks = iterate_blocks(Data.from_any(data).with_region(areas).stream(left_out, may_be_empty=True))
    crew = Processes(1) if engine is None else engine
    work = partial(
        extract_block_events, layout=layout, tables=tuple(settings.names), stay=settings.stay, gap=settings.gap
    )
    events = concatenate_events(watch(crew.run(work, blocks), "Counting"))
    noise = CountNoise(budget, as_random_source(rng))
    noisy_tables, bounds = build_tables(events, tables, settings, noise)
    return Flows(noisy_tables, settings, areas, budget, dict(noise.spent), bounds, rng is None, tuple(left_out))


def _check_tables(tables: Sequence[Table], settings: FlowSettings, budget: Fraction) -> None:
    """Raise an error for a table that is too large or has too little of the budget."""
    budgets = split_budget(budget * (1 - BOUND_FRACTION), settings.weights, settings.names)
    for table in tables:
        _ = table.forest  # raises for too many cells
        if settings.balanced and table.name == "flows":
            check_balanced(table)
        max_events = settings.get_bound(table.unit) or CANDIDATE_BOUNDS[-1]
        minimum = min(budgets[table.name] * share for share in split_budget_by_level(table) if share)
        if max_events / minimum > MAX_NOISE_SCALE:
            raise BudgetError(
                f"split leaves {float(minimum):.3g} of user_epsilon for {table.name}, and its noise may exceed 64 "
                "bits: use a larger weight"
            )


def build_tables(
    events: dict[str, Events], tables: Sequence[Table], settings: FlowSettings, noise: CountNoise
) -> tuple[dict[str, NoisyTable], dict[str, int]]:
    """Build noisy tables from events, spending the remaining budget. Also return the bounds."""
    layout = tables[0].layout
    shares = {table.name: split_budget_by_level(table) for table in tables}
    bounds = _choose_bounds(noise, settings, layout, events, shares)
    budgets = split_budget(noise.left, settings.weights, settings.names)
    noisy_tables = {}
    family = Family.from_tables(tables)
    for table in tables:
        max_events = bounds[table.unit]
        precision = Precision(table, max_events, budgets[table.name], shares[table.name], settings.confidence, family)
        unit_events = events.get(table.unit, _NO_EVENTS)
        true = count_cells(unit_events, select_bounded(unit_events, max_events, settings.window), table)
        balanced = settings.balanced and table.name == "flows"
        noisy_tables[table.name] = add_noise(noise, precision, true, balanced)
    return noisy_tables, bounds


def _parse_budget(user_epsilon: Rational) -> Fraction:
    return parse_rational(user_epsilon, "user_epsilon", _MIN_EPSILON, _MAX_EPSILON)


_NOTHING = np.zeros(0, dtype=np.int64)
_NO_EVENTS = Events(_NOTHING, _NOTHING, dict.fromkeys(TABLE_TYPES, _NOTHING))


def _choose_bounds(
    noise: CountNoise,
    settings: FlowSettings,
    layout: Layout,
    events: dict[str, Events],
    shares: dict[str, tuple[Fraction, ...]],
) -> dict[str, int]:
    """Return the contribution bounds by unit: specified, or chosen with part of the budget."""
    units = list(dict.fromkeys(TABLE_TYPES[name].unit for name in settings.names))
    unknown = [unit for unit in units if settings.get_bound(unit) is None]
    budgets = split_budget(noise.left * (1 - BOUND_FRACTION * bool(unknown)), settings.weights, settings.names)
    epsilon = noise.left * BOUND_FRACTION
    bounds = {}
    for unit in units:
        bound = settings.get_bound(unit)
        if bound is not None:
            bounds[unit] = bound
            continue
        numbers = events[unit].numbers if unit in events else np.zeros(0, dtype=np.int64)
        cell_epsilon = max(
            float(budgets[name] * shares[name][0]) for name in settings.names if TABLE_TYPES[name].unit == unit
        )
        bounds[unit] = choose_bound(
            noise, unit, numbers, epsilon / len(unknown), layout.estimate_busy_cells(unit), cell_epsilon
        )
    return bounds


def extract_block_events(
    block: UserBlock, layout: Layout, tables: Sequence[str], stay: float, gap: float
) -> tuple[int, dict[str, Events]]:
    """Return the number of users and their events."""
    tracks = block.trajectories
    user = np.repeat(np.arange(len(tracks)), [len(trajectory) for trajectory in tracks])
    columns = [
        np.concatenate([np.zeros(0, dtype=kind), *(getattr(trajectory, name) for trajectory in tracks)])
        for name, kind in (("times", "M8[us]"), ("latitude", np.float64), ("longitude", np.float64))
    ]
    areas = layout.areas.locate(columns[1], columns[2]) if len(user) else np.zeros(0, dtype=np.int64)
    visits = derive_visits(user, columns[0].astype(np.int64), areas, columns[1], columns[2], 60 * stay, 3600 * gap)
    return len(tracks), derive_events(visits, layout, tables)


@dataclass(frozen=True)
class FlowPlan(Result):
    """The accuracy of the numbers of a level, independent of the data.

    Parameters
    ----------
    table, level
        Table and level.
    num_values
        Number of values of the level.
    epsilon
        Budget of all tables.
    max_events
        Maximum number of events per user.
    half_width
        Largest half width of the intervals of the level. All intervals of a file hold simultaneously.
    min_count
        Count from which on every number of the level has at most the requested relative error.
    """

    table: str = field(metadata=exported())
    level: str = field(metadata=exported())
    num_values: int = field(metadata=exported())
    epsilon: Fraction = field(metadata=exported())
    max_events: int = field(metadata=exported("max_events_per_user"))
    half_width: float = field(metadata=exported())
    min_count: float = field(metadata=exported("min_accurate_count"))


@check_arguments
def plan_flows(
    areas: Areas,
    user_epsilon: Rational,
    settings: FlowSettings | None = None,
    relative_error: Annotated[float, Interval(0, inf, "neither", error=BudgetError)] = 0.2,
) -> list[FlowPlan]:
    """Compute the accuracy of tables before any data are read, as ``dphmm flows --plan`` does.

    It depends only on the areas, the time classes and the budget. No epsilon is spent.

    Parameters
    ----------
    areas, user_epsilon, settings
        As for `flows`.
    relative_error
        Half width of an interval relative to the count.

    Returns
    -------
    list of FlowPlan
        Plans by table, contribution bound and level.

    Raises
    ------
    BudgetError, ConfigurationError
        As `flows`.

    Examples
    --------
    >>> town = Areas.from_polygons("data/districts.geojson")
    >>> plan, *_ = plan_flows(town, 1, FlowSettings("flows", trips_per_user=10))
    >>> plan.table, plan.level, plan.num_values, round(plan.min_count)
    ('flows', 'area', 25, 370)
    """
    settings = FlowSettings() if settings is None else settings
    budget = _parse_budget(user_epsilon)
    layout = settings.layout(areas)
    plans = list[FlowPlan]()
    tables = [Table(name, layout) for name in settings.names]
    family = Family.from_tables(tables)
    for name, table in zip(settings.names, tables, strict=True):
        shares = split_budget_by_level(table)
        bound = settings.get_bound(table.unit)
        chosen = any(settings.get_bound(TABLE_TYPES[other].unit) is None for other in settings.names)
        part = split_budget(budget * (1 - BOUND_FRACTION * chosen), settings.weights, settings.names)[name]
        for max_events in PLANNED_BOUNDS if bound is None else (bound,):
            precision = Precision(table, max_events, part, shares, settings.confidence, family)
            for (level, half), count in zip(precision.expected, table.forest.sizes, strict=True):
                plans.append(FlowPlan(name, level, count, budget, max_events, half, half / relative_error))
    return plans
