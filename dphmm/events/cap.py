"""Never more than q sure: the largest budget at which no output can tell too much of an event.

Before a release all that is known of an event, and of what a release may add, is public: the belief, cut in two by the
event, and the shape of the noise. So the budget may be chosen such that *no* output takes the probability of the event
above a cap. What the person did plays no part, and nothing is learned from the choice.
Caps can be kept for other first distributions too, which adversaries may believe: `read_priors` reads a table of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log, log2, log10
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, as_distribution, check_budget
from dphmm.errors import DataFileError, EventError, StochasticError
from dphmm.events.automaton import LONGEST
from dphmm.events.calendar import Clock
from dphmm.events.event import Event
from dphmm.events.expression import EventText, parse_event
from dphmm.events.outputs import Outputs, Questions
from dphmm.events.product_chain import Chain, EventOdds, Split, Transition
from dphmm.model.transition_operator import log_sum
from dphmm.space.states import Places, StateSpace
from dphmm.tables.table import Table

RUNGS = 96
"""Budgets are tried down to a sixty-fourth of the whole, sixteen to a factor of two: below, a release is all noise."""

_PER_OCTAVE = 16

Earlier = Callable[[int], tuple[Chain, FloatArray] | None]
"""A number of steps before the first release → the model and the distribution of the state then, if any."""


@dataclass(frozen=True)
class Cap:
    """A bound on how sure an adversary may get of an event: its probability stays between two numbers.

    Parameters
    ----------
    event
        The event, in words or as a value.
    probability
        Never more than this, above 0 and below 1.
    least
        Never less than this; 0 for no such bound.

    Raises
    ------
    EventError
        When the event cannot be read, or a probability is none.

    Examples
    --------
    >>> Cap("at:clinic.geojson between 2024-03-04 and 2024-03-10", 0.7).to_dict()["probability"]
    0.7
    """

    event: EventText | Event
    probability: float
    least: float = 0.0

    NAMES: ClassVar = ("event", "probability", "least")
    """The names of what a cap says."""

    @checked
    def __init__(self, event: str | EventText | Event, probability: float, least: float = 0.0) -> None:
        numbers = [one for one in (probability, least) if isinstance(one, int | float) and not isinstance(one, bool)]
        if len(numbers) < 2 or not 0 <= least < probability < 1:
            raise EventError(
                f"the cap on an event is {probability!r}, and the floor {least!r}; give probabilities above 0 and "
                "below 1, the floor below the cap"
            )
        read = parse_event(event) if isinstance(event, str) else event
        vars(self).update(event=read, probability=float(probability), least=float(least))

    def to_dict(self) -> dict[str, Any]:
        """The cap as plain JSON values, from which ``Cap(**…)`` makes it again.

        Returns
        -------
        dict
            Event, probability and least.
        """
        return {"event": str(self.event), "probability": self.probability, "least": self.least}

    @property
    def canonical(self) -> str:
        """The cap as it is hashed: files of places by their content."""
        text = self.event.canonical if isinstance(self.event, EventText) else str(self.event)
        return f"{self.least!r} <= {text} <= {self.probability!r}"


@dataclass(frozen=True)
class Choice:
    """What caps leave of a budget.

    Parameters
    ----------
    epsilon
        The largest budget tried at which no output passes a cap; None where there was none.
    highest
        How probable some output can make the event that is nearest to its cap, as far as outputs were looked at, for
        each cap. The most that any output can is between this and the cap.
    """

    epsilon: float | None
    highest: tuple[float, ...]


class Watched(NamedTuple):
    """A cap that is kept for one first distribution: the model's, which has the number 0, or another prior."""

    number: int
    prior: int
    cap: Cap
    odds: EventOdds


class CapKeeper:
    """Keeps caps over one person's releases.

    Parameters
    ----------
    caps
        The caps.
    transition, initial
        The model that the caps are kept for: see `EventOdds`.
    space, clock
        What events in words need: see `EventText.resolve`.
    priors
        Other distributions of the first state, ``(N,)`` each: the caps are kept for each of them too.
    without
        The numbers of caps that are passed over, counted from 0.
    earlier
        A number of steps before the first release → the model and the distribution of the state then, or None where
        nothing is said of that time: see `dphmm.release.event_caps.earlier`. Events in words that begin before the
        first release are asked about from their beginning on.

    Raises
    ------
    EventError
        When an event cannot be asked about, or is above its cap or below its floor before anything is released.
    """

    @checked
    def __init__(
        self,
        caps: Sequence[Cap],
        transition: Transition,
        initial: npt.ArrayLike,
        space: StateSpace | None = None,
        clock: Clock | None = None,
        priors: Sequence[npt.ArrayLike] = (),
        without: Collection[int] = (),
        earlier: Earlier | None = None,
    ) -> None:
        self.watched: list[Watched] = []
        """What is kept: caps in their order, each for the model and then for each prior that may believe the event."""
        self.count = len(caps)
        """How many caps there are."""
        for number, cap in enumerate(caps):
            if number in without:
                continue
            begun, event, lead = (transition, initial), cap.event, 0
            if isinstance(event, EventText):
                event, lead, sooner = placed(event, space, clock, earlier)
                begun = sooner or begun
            if lead and priors:
                raise EventError(
                    f"event '{cap.event}' begins before the first release, of which other priors say nothing; leave "
                    "them out, or write 'from the first release' behind the window"
                )
            odds = EventOdds(*begun, event, str(cap.event), lead)
            for prior, first in enumerate((None, *priors)):
                if first is not None:
                    odds = odds.with_initial(first)
                    if odds.prior == -np.inf and cap.least == 0:
                        continue  # an adversary with this prior never believes it
                _check_prior(cap, odds, first is not None)
                self.watched.append(Watched(number, prior, cap, odds))
        self._rung = 0

    def copy(self) -> CapKeeper:
        """Another one that knows the same releases, and goes on by itself.

        Returns
        -------
        CapKeeper
            The copy.
        """
        other = type(self).__new__(type(self))
        vars(other).update(vars(self), watched=[one._replace(odds=one.odds.copy()) for one in self.watched])
        return other

    @checked
    def choose(self, outputs: Outputs, epsilon: float, steps: int = 1) -> Choice:
        """The largest budget, at most the given one, at which no output of the next release passes a cap.

        Parameters
        ----------
        outputs
            The noise about what each state would be released as.
        epsilon
            The budget to stay within.
        steps
            The time steps since the last release; the first is at time 0.

        Returns
        -------
        Choice
            The budget, and how near outputs come to each cap.

        Notes
        -----
        The budgets tried are a sixteenth of an octave apart. Each is accepted only where it is certain that no output
        passes a cap; the search for the largest supposes that a smaller budget tells less.
        """
        epsilon = check_budget(epsilon)
        if not self.watched:
            return Choice(epsilon, self._by_cap((), ()))
        of_cap, questions, now = self._questions(outputs, steps)
        room = questions.log_odds - now

        def ask(rung: int) -> tuple[bool, FloatArray, float]:
            """Whether a rung holds, the highest log odds seen, and by which factor the budget may be off."""
            finding = outputs.ask(questions, rung_of(epsilon, rung))
            with np.errstate(divide="ignore", invalid="ignore"):
                factors = room / np.maximum(finding.highest - now, 0.0)
            return finding.certain, finding.highest, float(np.nan_to_num(factors, nan=np.inf, posinf=np.inf).min())

        found = _largest(ask, self._rung) if (room > 0).all() else None
        self._rung = RUNGS if found is None else found[0]
        if found is None:
            beliefs = [(one.number, one.odds.log_odds) for one in self.watched]
            return Choice(None, self._by_cap(*zip(*beliefs, strict=True)))
        return Choice(rung_of(epsilon, found[0]), self._by_cap(of_cap, found[1].tolist()))

    def cells(self, outputs: Outputs, epsilon: float, steps: int = 1) -> list[tuple[bool, tuple[str, ...]]]:
        """Cells of outputs that show that no output of the next release passes a cap: see `Outputs.cells`.

        Parameters
        ----------
        outputs, steps
            As of `choose`.
        epsilon
            The budget of the release.

        Returns
        -------
        list of tuple
            Of what is watched one after another, a floor behind its cap: whether it is certain, and the cells.
        """
        if not self.watched:
            return []
        questions = self._questions(outputs, steps)[1]
        return [outputs.cells(questions.only(number), epsilon) for number in range(len(questions.log_odds))]

    def _questions(self, outputs: Outputs, steps: int) -> tuple[list[int], Questions, FloatArray]:
        """Whether an output passes a bound: of which cap (-1: a floor) each question is, and the log odds now."""
        columns: list[tuple[FloatArray, FloatArray, float]] = []
        of_cap: list[int] = []
        for number, _, cap, odds in self.watched:
            split = odds.split(steps)
            columns.append((split.log_with, split.log_without, _logit(cap.probability)))
            of_cap.append(number)
            if cap.least > 0:
                columns.append((split.log_without, split.log_with, -_logit(cap.least)))
                of_cap.append(-1)
        masses = [outputs.gathered(np.stack([column[part] for column in columns], axis=1)) for part in range(2)]
        questions = Questions.from_masses(masses[0], masses[1], np.array([column[2] for column in columns]))
        return of_cap, questions, np.array([log_sum(first) - log_sum(second) for first, second, _ in columns])

    def _by_cap(self, of_cap: Sequence[int], log_odds: Sequence[float]) -> tuple[float, ...]:
        """The greatest of some probabilities for each cap, given by their log odds."""
        found = [0.0] * self.count
        for number, one in zip(of_cap, log_odds, strict=True):
            if number >= 0:
                found[number] = max(found[number], _expit(one))
        return tuple(found)

    @checked
    def update(self, log_likelihood: npt.ArrayLike, steps: int = 1) -> None:
        """Take in a release: see `EventOdds.update`. Priors that it rules out are forgotten.

        Parameters
        ----------
        log_likelihood
            ``(N,)``: ``log p(z | s)``.
        steps
            The time steps since the last release.
        """
        kept = []
        for one in self.watched:
            try:
                one.odds.update(log_likelihood, steps)
            except StochasticError:
                if one.odds.is_model:
                    raise
                continue
            kept.append(one)
        self.watched = kept

    @property
    def splits(self) -> tuple[Split, ...]:
        """The belief before a release at the next step, cut by the event of each cap, prior by prior."""
        return tuple(one.odds.split() for one in self.watched)


def placed(
    event: EventText, space: StateSpace | None, clock: Clock | None, earlier: Earlier | None
) -> tuple[Event, int, tuple[Chain, FloatArray] | None]:
    """An event in words over states, from its beginning on if that is before the first release.

    Parameters
    ----------
    event
        The event in words.
    space, clock
        See `EventText.resolve`; the clock has no lead.
    earlier
        As in `CapKeeper`.

    Returns
    -------
    tuple
        The event, in steps from time 0; by how many steps that is before the first release; and, where it is, the
        model and the distribution of the state from then on.

    Raises
    ------
    EventError
        As `EventText.resolve`, so where the event begins before the first release and nothing is said of that time.
    """
    timed = clock or Clock()
    lead = -event.begins(timed)
    if lead > LONGEST:
        raise EventError(f"event '{event}' begins over a million steps before the first release; begin it later")
    sooner = earlier(lead) if lead and earlier is not None else None
    if sooner is None:
        return event.resolve(space, timed), 0, None
    return event.resolve(space, replace(timed, lead=lead)), lead, sooner


def rung_of(epsilon: float, rung: int) -> float:
    """The budget on a rung of the ladder down from another, rounded down to four digits below the first.

    Examples
    --------
    >>> [rung_of(0.5, rung) for rung in (0, 1, 16, 96)]
    [0.5, 0.4788, 0.25, 0.007812]
    """
    if rung == 0:
        return epsilon
    exact = epsilon * 2.0 ** (-rung / _PER_OCTAVE)
    digits = 3 - floor(log10(exact))
    return float(floor(exact * 10.0**digits * (1 + 1e-12)) / 10.0**digits)


def _largest(ask: Callable[[int], tuple[bool, FloatArray, float]], start: int) -> tuple[int, FloatArray] | None:
    """About the first rung that holds and the highest log odds seen there; None where the last does not hold.

    How far a rung is from holding, or from failing, says where to look next: log odds grow about as the budget does.

    Parameters
    ----------
    ask
        A rung → whether it holds, the highest log odds seen, and the factor of the budget that these would allow.
    start
        A guess.
    """
    fails, rung, found = -1, min(start, RUNGS), None
    while True:
        holds, highest, factor = ask(rung)
        if holds:
            found = (rung, highest)
            better = rung - int(_PER_OCTAVE * log2(min(factor, 2.0**RUNGS)))
        else:
            if rung == RUNGS:
                return None
            fails = rung
            better = rung + max(1, ceil(_PER_OCTAVE * log2(1 / factor)) if 0 < factor < 1 else 1)
            better = min(better, RUNGS)
        if found is not None:
            better = max(min(better, found[0]), fails + 1)
            if better == found[0]:
                return found
        rung = better


def _check_prior(cap: Cap, odds: EventOdds, is_other: bool) -> None:
    """Refuse a cap that is passed before anything is released."""
    for side, remedy, bound, is_passed in (
        ("below", "cap above", cap.probability, odds.prior >= _logit(cap.probability)),
        ("above", "floor below", cap.least, cap.least > 0 and odds.prior <= _logit(cap.least)),
    ):
        if is_passed:
            raise EventError(
                f"event '{cap.event}' has probability {_expit(odds.prior):.4g} under "
                f"{'another prior' if is_other else 'the model'} before anything is released, and is to stay at "
                f"{bound:g} or {side}; give a {remedy} it"
            )


def _logit(probability: float) -> float:
    return log(probability) - log(1 - probability)


def _expit(log_odds: float) -> float:
    from scipy.special import expit  # which takes a tenth of a second to import

    return float(expit(log_odds))


@checked
def read_priors(path: str | Path, space: StateSpace) -> tuple[FloatArray, ...]:
    """Distributions over the states of a space, ``(N,)`` each.

    Parameters
    ----------
    path
        A CSV with a column ``state`` (the names of places, the numbers of cells); every other column is a distribution
        under its own name. States without a row have probability zero.
    space
        The states.

    Returns
    -------
    tuple of FloatArray
        Distributions ``(N,)``.

    Raises
    ------
    DataFileError
        When the file cannot be read, a state is named twice or does not exist, there is no distribution, or a column
        is none.
    """
    table = Table.read(path)
    names = space.names if isinstance(space, Places) else tuple(str(state) for state in range(space.size))
    place = {name: state for state, name in enumerate(names)}
    rows: list[int] = []
    for row, name in enumerate(table.texts("state")):
        if name not in place or place[name] in rows:
            what = "does not exist" if name not in place else "is named twice"
            raise table.refusal(row, f"state {name!r} {what}; name states of the model once each")
        rows.append(place[name])
    found = []
    for column in table.columns:
        if column == "state":
            continue
        values = np.zeros(space.size)
        values[rows] = table.values(column, float)
        try:
            found.append(as_distribution(values, space.size, f"column {column!r}"))
        except StochasticError as problem:
            raise DataFileError(path, str(problem)) from None
    if not found:
        raise DataFileError(path, "holds no prior; give a column of probabilities for each, beside 'state'")
    return tuple(found)
