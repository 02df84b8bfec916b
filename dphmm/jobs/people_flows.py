"""Tables of where people go, with a promise for whole people: made, planned, and what they promise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import Rng, random_source
from dphmm.errors import BudgetError
from dphmm.facts import fact, factor_in_words, facts_of, unless_seeded
from dphmm.flows import Areas, FlowSettings, NoisyTable
from dphmm.flows.areas import visits_of
from dphmm.flows.noisy_tables import (
    OF_BOUNDS,
    Bound,
    Precision,
    add_noise,
    choose_bound,
    dealt,
    level_shares,
    rows_of,
)
from dphmm.flows.tables import KINDS, Events, Layout, Table, bounded, counted, events_of, joined
from dphmm.jobs.input_data import Data, DataLike, Dropped
from dphmm.jobs.progress import Watch, unwatched
from dphmm.jobs.workers import Engine, Processes
from dphmm.mechanisms.count_noise import LARGEST_SCALE, CountNoise
from dphmm.mechanisms.exact import Rational, rational
from dphmm.space.trajectory import Trajectory
from dphmm.writers.flow_files import FlowRows

_PEOPLE_AT_ONCE, _FIXES_AT_ONCE = 2000, 1_000_000
_HIDES_NOTHING = 500
PLANNED = 1, 2, 5, 10, 20, 50
"""Bounds that a plan tells of where none is said."""


@dataclass(frozen=True, eq=False)
class Flows:
    """Tables that may be published, and what they promise. All of it may be, but what is called private.

    Parameters
    ----------
    tables
        By name.
    settings
        How they were made.
    areas
        Between which people move.
    epsilon
        What all tables took together; with a window, those of any of its days in a row.
    spent
        What each took of it.
    bounds
        Unit → how many visits, trips and people of a person count.
    is_private
        Whether noise came from the operating system; where it follows from a seed nothing is private.
    private_left_out
        What was not read, by reason. Private.
    """

    tables: dict[str, NoisyTable]
    settings: FlowSettings
    areas: Areas
    epsilon: Fraction = field(metadata=fact())
    spent: dict[str, Fraction] = field(metadata=fact("spent_on"))
    bounds: dict[str, Bound]
    is_private: bool = True
    private_left_out: tuple[Dropped, ...] = ()

    def rows(self, relative_error: float | None = None, every_row: bool = False) -> FlowRows:
        """The tables as rows that may be published, with the areas and the promise.

        Parameters
        ----------
        relative_error
            Leave out numbers that may be off by more than this share of themselves, all numbers of a level at once.
        every_row
            Whether to have rows of cells with a count of zero too.

        Returns
        -------
        FlowRows
            Write them with its `write`.
        """
        return FlowRows.of(rows_of(self.tables.values(), relative_error, every_row), self.areas, self.facts())

    def facts(self) -> dict[str, Any]:
        """What the tables are and promise.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        level, days = float(self.epsilon), self.settings.days
        window, words = self.settings.window, factor_in_words
        promise = {"all_tables_with_one_person_more_or_less": words(level)}
        if window is not None and days[0] is not None and days[1] is not None:
            count = days[1] - days[0] + 1
            windows = -(-count // window)
            promise = {
                f"any_days_in_a_row_of_{window}_with_one_person_more_or_less": words(level),
                f"all_{count}_days_with_one_person_more_or_less": words(level * windows),
            }
        of_person = {
            f"{unit}_of_a_person_that_count": f"{bound.most}{'' if window is None else ' in any window of days'}"
            for unit, bound in self.bounds.items()
            if unit != "people"
        }
        kept = {f"{unit}_that_count_share": b.kept for unit, b in self.bounds.items() if b.kept is not None}
        return facts_of(
            self,
            areas=len(self.areas),
            tables=", ".join(self.tables),
            **of_person,
            **kept,
            **unless_seeded(promise, self.is_private),
        )


@checked
def flows(
    data: DataLike,
    areas: Areas,
    user_epsilon: Rational,
    settings: FlowSettings | None = None,
    *,
    rng: Rng = None,
    engine: Engine | None = None,
    watch: Watch = unwatched,
) -> Flows:
    """Count where people go, with differential privacy for whole people, as ``dphmm flows`` does.

    With one person more or less in the data, with all their days, no set of tables becomes more probable than
    e^epsilon times what it was. Nothing about a person is taken to be public: not whether they are in the data, not how
    many people there are, not how much each moved.

    Parameters
    ----------
    data
        Whose places.
    areas
        Between which people move; public.
    user_epsilon
        The budget of all tables together.
    settings
        Which tables, and how they are made; public.
    rng
        Where the noise comes from; left out, the operating system, otherwise nothing is private.
    engine
        Who works, such as `dphmm.jobs.workers.Processes` or a Dask cluster; left out, this process.
    watch
        Shows how far the job has come; see `dphmm.jobs.Watch`.

    Returns
    -------
    Flows
        The tables.

    Raises
    ------
    BudgetError
        For a budget that is not positive, or too small for 64 bits.
    ConfigurationError
        For a table of too many cells.
    DataFileError, DphmmError
        As the data say.

    Examples
    --------
    >>> from dphmm.flows import Areas, FlowSettings
    >>> town = Areas.from_polygons("data/districts.geojson")
    >>> settings = FlowSettings("visits,flows", visits_per_person=20, trips_per_person=10)
    >>> found = flows("data/sample/geolife", town, 1, settings, rng=1)
    >>> sum(found.spent.values()), found.tables["flows"].counts.min() >= 0
    (Fraction(1, 1), np.True_)
    """
    settings = FlowSettings() if settings is None else settings
    budget, layout = _budget(user_epsilon), settings.layout(areas)
    tables = [Table(name, layout) for name in settings.names]
    for table in tables:
        _ = table.forest  # refuses now what is too large
    left_out = list[Dropped]()
    parts = _pieces(_people(Data.from_any(data), left_out))
    crew = Processes(1) if engine is None else engine
    work = partial(events_in, layout=layout, tables=tuple(settings.names), stay=settings.stay, gap=settings.gap)
    events = joined(watch(crew.run(work, parts), "Counting"))
    noise = CountNoise(budget, random_source(rng))
    made, bounds = tables_of(events, tables, settings, noise)
    return Flows(made, settings, areas, budget, dict(noise.spent), bounds, rng is None, tuple(left_out))


def tables_of(
    events: dict[str, Events], tables: Sequence[Table], settings: FlowSettings, noise: CountNoise
) -> tuple[dict[str, NoisyTable], dict[str, Bound]]:
    """Tables of the events of everyone, and how many of a person count, out of all that a budget has left."""
    layout = tables[0].layout
    shares = {table.name: level_shares(table) for table in tables}
    bounds = _bounds(noise, settings, layout, events, shares)
    budgets = dealt(noise.left, settings.weights, settings.names)
    made = {}
    for table in tables:
        most = bounds[table.unit].most
        precision = Precision(table, most, budgets[table.name], shares[table.name], settings.confidence)
        some = events.get(table.unit, _NO_EVENTS)
        true = counted(some, bounded(some, most, settings.window), table)
        balanced = settings.balanced and table.name == "flows"
        made[table.name] = add_noise(noise, precision, true, balanced)
    return made, bounds


def _budget(user_epsilon: Rational) -> Fraction:
    budget = rational(user_epsilon, "user_epsilon")
    if budget * LARGEST_SCALE < 100_000 * 1000 or budget > _HIDES_NOTHING:
        raise BudgetError(f"user_epsilon is {user_epsilon}; give 0.0001 to {_HIDES_NOTHING}; more hides nothing")
    return budget


_NOTHING = np.zeros(0, dtype=np.int64)
_NO_EVENTS = Events(_NOTHING, _NOTHING, dict.fromkeys(KINDS, _NOTHING))


def _bounds(
    noise: CountNoise,
    settings: FlowSettings,
    layout: Layout,
    events: dict[str, Events],
    shares: dict[str, tuple[Fraction, ...]],
) -> dict[str, Bound]:
    """How many events of a person count, by unit: what is said, or what a part of the budget chooses."""
    units = list(dict.fromkeys(KINDS[name].unit for name in settings.names))
    unknown = [unit for unit in units if settings.bound_of(unit) is None]
    budgets = dealt(noise.left * (1 - OF_BOUNDS * bool(unknown)), settings.weights, settings.names)
    price = noise.left * OF_BOUNDS
    found = {}
    for unit in units:
        given = settings.bound_of(unit)
        if given is not None:
            found[unit] = Bound(given)
            continue
        numbers = events[unit].numbers if unit in events else np.zeros(0, dtype=np.int64)
        most = max(float(budgets[name] * shares[name][0]) for name in settings.names if KINDS[name].unit == unit)
        found[unit] = choose_bound(noise, unit, numbers, price / len(unknown), layout.busy_cells(unit), most)
    return found


def _people(data: Data, left_out: list[Dropped]) -> Iterator[Trajectory]:
    if len(data.paths) == 1:
        yield from data.one_after_another(left_out=left_out)
        return
    people = data.read()
    left_out += people.left_out
    yield from people.trajectories


def _pieces(people: Iterable[Trajectory]) -> Iterator[list[Trajectory]]:
    """Some people at a time."""
    piece, fixes = list[Trajectory](), 0
    for one in people:
        piece.append(one)
        fixes += len(one)
        if len(piece) >= _PEOPLE_AT_ONCE or fixes >= _FIXES_AT_ONCE:
            yield piece
            piece, fixes = [], 0
    yield piece


def events_in(
    people: Sequence[Trajectory], layout: Layout, tables: Sequence[str], stay: float, gap: float
) -> tuple[int, dict[str, Events]]:
    """How many people there are, and what they add to tables."""
    person = np.repeat(np.arange(len(people)), [len(one) for one in people])
    columns = [
        np.concatenate([np.zeros(0, dtype=kind), *(getattr(one, name) for one in people)])
        for name, kind in (("times", "M8[us]"), ("latitude", np.float64), ("longitude", np.float64))
    ]
    areas = layout.areas.locate(columns[1], columns[2]) if len(person) else np.zeros(0, dtype=np.int64)
    visits = visits_of(person, columns[0].astype(np.int64), areas, columns[1], columns[2], 60 * stay, 3600 * gap)
    return len(people), events_of(visits, layout, tables)


@dataclass(frozen=True)
class Planned:
    """How certain the numbers of a level will be, whatever the data are.

    Parameters
    ----------
    table, level
        Which numbers.
    numbers
        How many of them.
    epsilon
        The budget of all tables.
    most
        How many events of a person count.
    half_width
        Half the width of an interval.
    least
        The least number that is right within the relative error asked for.
    """

    table: str = field(metadata=fact())
    level: str = field(metadata=fact())
    numbers: int = field(metadata=fact())
    epsilon: Fraction = field(metadata=fact())
    most: int = field(metadata=fact("of_a_person_at_most"))
    half_width: float = field(metadata=fact())
    least: float = field(metadata=fact("right_from"))

    def facts(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns
        -------
        dict
            Names of facts → values.
        """
        return facts_of(self)


@checked
def plan_flows(
    areas: Areas,
    user_epsilon: Rational,
    settings: FlowSettings | None = None,
    relative_error: float = 0.2,
) -> list[Planned]:
    """How certain tables will be, before anything is counted or spent, as ``dphmm flows --plan`` says.

    It follows from the areas, the classes of time and the budget alone.

    Parameters
    ----------
    areas, user_epsilon, settings
        As `flows` takes them.
    relative_error
        Half the width of an interval beside the number.

    Returns
    -------
    list of Planned
        By table, budget, bound on a person's events, and level.

    Raises
    ------
    BudgetError, ConfigurationError
        As `flows`.

    Examples
    --------
    >>> town = Areas.from_polygons("data/districts.geojson")
    >>> one, *others = plan_flows(town, 1, FlowSettings("flows", trips_per_person=10))
    >>> one.table, one.level, one.numbers, round(one.least)
    ('flows', 'area', 25, 157)
    """
    settings = FlowSettings() if settings is None else settings
    budget, layout, found = _budget(user_epsilon), settings.layout(areas), list[Planned]()
    if not relative_error > 0:
        raise BudgetError(f"relative_error is {relative_error}; give a positive number, such as 0.2")
    for name in settings.names:
        table = Table(name, layout)
        shares = level_shares(table)
        given = settings.bound_of(table.unit)
        chosen = any(settings.bound_of(KINDS[one].unit) is None for one in settings.names)
        part = dealt(budget * (1 - OF_BOUNDS * chosen), settings.weights, settings.names)[name]
        for most in PLANNED if given is None else (given,):
            precision = Precision(table, most, part, shares, settings.confidence)
            for (level, half), count in zip(precision.expected, table.forest.sizes, strict=True):
                found.append(Planned(name, level, count, budget, most, half, half / relative_error))
    return found
