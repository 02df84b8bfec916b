"""What the person's page shows: what readers were told and can tell, what that costs, zones and their price, the map.

What zones cost follows from the model and the zones, which are public; neither the person's place nor what was released
of it goes in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import atan2, ceil, cos, degrees, hypot, radians, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.model.point_estimate import point_estimate
from dphmm.plots.basemap import EXTRACT_POINTS, PlaceName, around, basemap_of, coded_basemap, shipped_basemap
from dphmm.policy.expression import policy_in_words
from dphmm.policy.protection import exposed_states
from dphmm.policy.zones import PolygonLayer
from dphmm.policy.zones import zones as members
from dphmm.release.drawn_zones import Zones, first_zones, rest_of
from dphmm.release.engine import Releaser
from dphmm.release.ledger import day_steps
from dphmm.release.record import ReleaseRecord
from dphmm.release.session import Session
from dphmm.release.session_terms import MAIN_QUERY
from dphmm.serve import message_formats
from dphmm.serve.config import Recipient, RelayConfig
from dphmm.serve.recipients import FOREVER, Reader, now
from dphmm.serve.sessions import Sessions

_MOST_LISTED = 500
"""At most this many places are listed, and this many releases sent at once; the page asks for more."""
_DAYS = 3
"""How far back the page looks at first."""
_AROUND = 0.5
"""How far the page's map reaches beyond the region, in its width."""
_TOWNS = 0.8
"""How far towns are looked for whose sides are said."""
_SAME_S = 2
"""The store notes a message this many seconds after its last place was taken at most."""
_EXACT = 0.99
"""A release of an open place is said to be exact where it is at least as probably of one."""


def policy_effects(engine: Releaser, layer: PolygonLayer | None) -> dict[str, Any]:
    """What an engine's policy does: which places would be exposed, what the repair adds, how far off releases are.

    Figures are for readers who know the model alone, before the first release; root mean squares, in metres.

    Parameters
    ----------
    engine
        An engine of the settings that has released nothing.
    layer
        The zones, whose errors are told by name; None where there is none.

    Returns
    -------
    dict
        As the page's script reads it; at most 500 exposed places and added edges are listed.

    Raises
    ------
    DphmmError
        When the policy cannot be used.
    """
    places, calibration = engine.model.space.latlon(), engine.settings.calibration
    prior = engine.prior()
    plan = engine.plan(prior)
    exposed = exposed_states(engine.policy, engine.measurements, plan.constraint, calibration=calibration)
    noise = engine.noise(plan, engine.settings.epsilon)
    errors = 1000 * np.array([noise.error_at(state) for state in range(engine.model.size)])
    zones = {} if layer is None else members(layer, engine.model.space)
    elsewhere = np.ones(len(places), dtype=np.bool_)
    for states in zones.values():
        elsewhere[states] = False
    added = plan.protection.added
    return {
        "error_m": round(1000 * noise.expected_error(prior), 1),
        "error_m_elsewhere": _root_mean_square(errors[elsewhere]),
        "zones": [
            {"name": name, "places": len(states), "error_m": _root_mean_square(errors[states])}
            for name, states in zones.items()
        ],
        "exposed": _rounded(places[exposed[:_MOST_LISTED]]),
        "exposed_count": len(exposed),
        "added": [_rounded(places[list(pair)]) for pair in added[:_MOST_LISTED]],
        "added_count": len(added),
        "exact_count": int(np.count_nonzero(plan.protection.open)),
        "places": len(places),
        "gap": round(plan.protection.gap, 3),
        "calibration": calibration,
    }


def _root_mean_square(errors: npt.NDArray[Any]) -> float | None:
    return round(sqrt(float((errors**2).mean())), 1) if len(errors) else None


def _rounded(places: npt.NDArray[Any]) -> list[list[float]]:
    found: list[list[float]] = np.round(places.astype(np.float64).reshape(-1, 2), 6).tolist()
    return found


class PageContent:
    """What the pages of people and of links show; everything here runs on the sessions' thread.

    Parameters
    ----------
    config
        The relay's file.
    sessions
        People's sessions.

    Raises
    ------
    DphmmError
        When the file's basemap cannot be used.
    """

    def __init__(self, config: RelayConfig, sessions: Sessions) -> None:
        self._config, self._sessions = config, sessions
        self._people, self._tables = sessions.people, sessions.tables
        self._step_s = float((self._people.end_of(1) - self._people.end_of(0)) / np.timedelta64(1, "s"))
        space = sessions.engines.model.space
        self._space, places = space, space.latlon()
        self._bounds = np.round([places.min(axis=0), places.max(axis=0)], 6).tolist()
        basemap = basemap_of(config.basemap, around(space, _AROUND), EXTRACT_POINTS)
        self._towns = shipped_basemap(around(space, _TOWNS)).names or basemap.names
        self.ground = json.dumps(coded_basemap(basemap), ensure_ascii=False, separators=(",", ":")).encode()
        """The map below, in JSON."""
        self._last: dict[tuple[str, int], tuple[int, dict[str, Any] | None]] = {}

    def state(self, user: str, others: Sequence[str] = ()) -> dict[str, Any]:
        """Everything but the trail: what readers can tell, the number of releases, budgets, zones, the map.

        Parameters
        ----------
        user
            The person.
        others
            The people of the household whose last places are shown beside.
        """
        session = self._people.session(user)
        rest = rest_of(self._config.release)
        zones = Zones.from_note(session.agreed[-1].note) or first_zones(self._config.release)
        return {
            "user": user,
            "count": session.account.count,
            "step_s": self._step_s,
            "bounds": self._bounds,
            "budget": self._budget(session),
            "finest": self._known(user, _everything(session)),
            "recipients": list(self._recipients(user, session)),
            "links": list(self._links(user, session)),
            "precisions": list(self._config.precisions(user)),
            "heard": self._tables.heard(user),
            "phone": self._heard(user),
            "people": [
                {"user": one, "last": self._known(one, _everything(self._people.session(one)))} for one in others
            ],
            "zones": zones.to_page(),
            "elsewhere": policy_in_words(rest) if rest else None,
            "agreed": [
                {"release": one.first, "settings": one.terms["main"].settings_hash[:12]} for one in session.agreed
            ],
        }

    def _heard(self, user: str) -> dict[str, Any]:
        """When the phone was last heard, and what became of that, as far as this process or the store knows."""
        stored, own = self._tables.heard(user), self._sessions.heard.get(user)
        if own is not None and (stored is None or own["at"] >= stored[0] - _SAME_S):
            return own
        if stored is None:
            return {"since": self._sessions.since}
        second, became = stored
        return {"at": second, "time": "", "became": "taken" if "taken" in became else next(iter(became))}

    def trail(self, user: str, reader: str, first: int) -> dict[str, Any] | None:
        """What a reader was told from a release on, within the days up to the last: where they see the person.

        Parameters
        ----------
        user
            The person.
        reader
            A recipient's name or a link's key; empty for a reader of all releases.
        first
            The number of the first release; 0 for the last three days.

        Returns
        -------
        dict or None
            None where there is no such reader.
        """
        session = self._people.session(user)
        found = (_everything(session), None) if not reader else self._reader(user, session, reader)
        if found is None:
            return None
        count = self._people.store.progress(session.number).count
        if not first:
            days = int(_DAYS * 86400 // self._step_s)
            first = self._tables.number_from(session.number, (session.account.slot or 0) - days)
        sent = count if found[1] is None else found[0].number  # a recipient may not have been told all of it yet
        last = min(sent, first + _MOST_LISTED)
        told = ((number, self._sessions.message_of(found[0], user, number, found[1])) for number in range(first, last))
        places = [_place(number, message) for number, message in told if message is not None]
        return {"count": count, "next": max(first, last), "places": places}

    def by_link(self, token: str, first: int) -> dict[str, Any] | None:
        """What a link tells anyone who has its token, from a release on; None where there is none, or it has ended.

        Parameters
        ----------
        token
            The link's token.
        first
            The number of the first release that is asked for.
        """
        found = self._tables.link(token)
        if found is None or found[0] not in self._config.users:
            return None
        user, link = found
        told = self._sessions.told_by_link(user, link, first, _MOST_LISTED)
        places = [_place(number, message) for number, message in told]
        known = self._known(user, link)
        return {
            "user": user,
            "ends": link.ends,
            "bounds": self._bounds,
            "last": known,
            "next": places[-1]["number"] + 1 if places else first,
            "places": places,
        }

    def add_link(self, user: str, name: str, precision_m: int, ends: int) -> str:
        """The token of a new link about a person, which tells releases with a precision until a second.

        Raises
        ------
        InvalidInputError
            As `RecipientTables.add_link`.
        """
        return self._tables.add_link(self._people.session(user).number, name, precision_m, ends)

    def end_link(self, user: str, key: str) -> None:
        """End a link about a person now, or forget one that has ended."""
        self._tables.end_link(key, self._people.session(user).number)

    def choose(self, user: str, zones: Zones) -> None:
        """Have the person's places released by these zones from the next release on.

        Raises
        ------
        DphmmError
            When the zones cannot be used, or the session cannot continue with them.
        """
        self._people.session(user)
        self._people.agree(user, self._sessions.engines.engine(zones.note), zones.note)

    def pause(self, user: str, reader: str, until: int) -> bool:
        """Pause a recipient or a link until a second, or go on; False where there is none."""
        session = self._people.session(user)
        found = self._reader(user, session, reader)
        if found is not None:
            self._tables.pause(found[0].key, session.number, until)
        return found is not None

    def _budget(self, session: Session) -> dict[str, Any]:
        account, limits = session.account, session.limits
        slot = max(int(now() // self._step_s), account.slot or 0)
        day = day_steps(self._step_s)
        assert day is not None, "the relay's model has a step"
        said: dict[str, Any] = {
            "epsilon": self._config.release.epsilon,
            "spent": float(account.epsilon),
            "spent_last_day": float(account.window(slot, day)),
            "limit": limits.epsilon,
            "left": None if limits.epsilon is None else max(0.0, limits.epsilon - float(account.epsilon)),
            "window_limit": limits.window_epsilon,
            "window_hours": None,
            "window_left": None,
        }
        if limits.window_epsilon is not None and limits.window_steps is not None:
            spent = float(account.window(slot, limits.window_steps))
            said["window_hours"] = round(limits.window_steps * self._step_s / 3600, 2)
            said["window_left"] = max(0.0, limits.window_epsilon - spent)
        return said

    def _reader(self, user: str, session: Session, name: str) -> tuple[Reader, Recipient | None] | None:
        """A recipient by their name, or a link by its key."""
        for one in self._config.recipients:
            if one.name == name and one.is_about(user):
                found = self._tables.reader(self._config.key(one), session.number)
                return None if found is None else (found, one)
        return next(((link, None) for link in self._tables.links(session.number, 0) if link.key == name), None)

    def _recipients(self, user: str, session: Session) -> Iterator[dict[str, Any]]:
        for one in self._config.recipients:
            if one.is_about(user):
                reader = self._tables.reader(self._config.key(one), session.number)
                aside = self._tables.set_aside(self._config.key(one), session.number)
                whole, waiting = one.true_places_unprotected, 0
                if reader is not None and not (whole or reader.is_paused or one.paused):
                    waiting = self._tables.count_from(session.number, reader.number, reader.query)
                yield {
                    "id": one.name,
                    "name": one.name,
                    "kind": one.kind,
                    "precision_m": one.precision_m,
                    "tells": "true places" if whole else one.tells,
                    **_pause(reader, one.paused),
                    "set_aside": len(aside),
                    "set_aside_last": aside[0][2] if aside else None,
                    "waiting": waiting,
                    "last": None if whole or reader is None else self._known(user, reader, one),
                }

    def _links(self, user: str, session: Session) -> Iterator[dict[str, Any]]:
        for one in self._tables.links(session.number, after=0):
            yield {
                "id": one.key,
                "name": one.name,
                "kind": "link",
                "ends": one.ends,
                "ended": one.ends <= now(),
                "precision_m": one.precision_m,
                "tells": "place",
                **_pause(one, False),
                "waiting": 0,
                "last": self._known(user, one),
            }

    def _known(self, user: str, reader: Reader, recipient: Recipient | None = None) -> dict[str, Any] | None:
        """The last place that a reader was told, and what they can tell."""
        count = reader.number if recipient is not None else self._people.store.progress(reader.session).count
        if reader.ends < FOREVER:
            count = self._tables.last_told(reader)
        kept = self._last.get((reader.key, reader.session))
        if kept is not None and kept[0] == count:
            return kept[1]
        last: dict[str, Any] | None = None
        for number in range(count - 1, max(-1, count - 1 - _MOST_LISTED), -1):
            message = self._sessions.message_of(reader, user, number, recipient)
            if message is not None:
                last = _place(number, message) | {"can_tell": self._can_tell(reader, number, message)}
                break
        self._last[reader.key, reader.session] = count, last
        return last

    def _can_tell(self, reader: Reader, number: int, message: message_formats.Message) -> dict[str, Any]:
        if reader.precision_m:  # of rounded values alone: a link's page shows it to whoever has the link
            radius_m = _off_m(message)
            return knowledge_of(Figures(message.latitude, message.longitude, radius_m, radius_m, 0.0), self._towns)
        partial = self._people.store.reader(reader.session, reader.key) if reader.in_part else None
        (stored,) = self._people.store.releases(reader.session, number, number + 1)
        record: ReleaseRecord = stored.record
        guess_off, certainty = record.adversary_error, record.adversary_certainty
        if partial is not None and partial[1] is not None:  # they were not told everything
            engine = self._sessions.engines.engine("")
            points = engine.measurements.by_columns
            guess = point_estimate(partial[1].probabilities, points, engine.cell, partial[1].beyond)
            guess_off, certainty = guess.least_error, guess.certainty
        exact = partial is None and record.open and record.component_certainty > _EXACT
        figures = Figures(message.latitude, message.longitude, _off_m(message), 1000 * guess_off, certainty, exact)
        return knowledge_of(figures, self._towns) | {"zone": message.zone}


def _everything(session: Session) -> Reader:
    """A reader of all releases about a person."""
    return Reader("", session.number, "", MAIN_QUERY, 0, 0, 0, False, FOREVER)


def _pause(reader: Reader | None, by_file: bool) -> dict[str, Any]:
    paused = reader is not None and reader.is_paused
    until = reader.paused_until if reader is not None and paused and reader.paused_until < FOREVER else None
    return {"paused": paused or by_file, "paused_until": until, "paused_by_file": by_file}


def _off_m(message: message_formats.Message) -> float:
    """The expected distance of an estimate from the person; apps are told a circle that holds, where one is known."""
    return round(float(message.row["estimate_radius_m"]), 1)


def _place(number: int, message: message_formats.Message) -> dict[str, Any]:
    known = {"guess_off_m": "adversary_error_m", "certainty": "adversary_certainty"}
    return {
        "number": number,
        "time": message.time,
        "latitude": round(message.latitude, 6),
        "longitude": round(message.longitude, 6),
        "radius_m": _off_m(message),
        "prediction": message.is_prediction,
        "known": message.last_known if message.is_prediction else message.second,
        **{name: message.row[key] for name, key in known.items() if key in message.row},
    }


# ---- what a reader can tell -----------------------------------------------------------------------------------------

_SURE = 3.0
"""A distance of at least this many expected ones from the estimate is reached with a probability of 1/3 at most."""
_EIGHTH = cos(radians(22.5))
_SIDES = ("n", "ne", "e", "se", "s", "sw", "w", "nw")
_KM_A_DEGREE = 111.32
_NEAR_KM, _FAR_KM = 15.0, 60.0
"""The largest town within the former is what people go by, of several the nearest; or else the nearest within the
latter."""

SPOT_M, STREET_M, AREA_M, SURE = 50.0, 300.0, 5000.0, 0.5
"""Guesses off by less than the first two may tell a house and a street, by more than the third hardly a town; a reader
who is surer than the last of one place may tell it."""


@dataclass(frozen=True)
class Figures:
    """What a reader's belief says at a moment, in metres and degrees.

    Parameters
    ----------
    latitude, longitude
        The estimate.
    radius_m
        The expected distance of the estimate from the person.
    guess_off_m
        The expected distance of their best guess.
    certainty
        The probability of the place that they hold most probable.
    exact
        Whether the release was probably the place as it is.
    """

    latitude: float
    longitude: float
    radius_m: float
    guess_off_m: float
    certainty: float
    exact: bool = False


def knowledge_of(figures: Figures, names: Sequence[PlaceName]) -> dict[str, Any]:
    """What a reader can tell, in the keys of a page's sentences without figures.

    A reader is one who knows the public model and what they were told. That the person is on a side of a town's centre,
    or within a distance of it, is said where it is at least twice as probable as not, by Markov's inequality: the
    expected distance of the estimate from the person is known, and no more of how the distance is spread.

    Parameters
    ----------
    figures
        What the reader's belief says.
    names
        Towns, to say on which side of one the person is.

    Returns
    -------
    dict
        ``level``: ``exact``, ``spot``, ``street``, ``quarter`` or ``area``, from the most that can be told down;
        ``off_m``; ``certainty`` where the reader is sure of one place; ``town`` with either the ``side`` of its centre
        or ``within_m`` of it, None where no town is near.
    """
    said: dict[str, Any] = {"level": _level(figures), "off_m": figures.radius_m, "town": None}
    if figures.certainty >= SURE:
        said["certainty"] = figures.certainty
    town = _town(figures, names)
    if town is None:
        return said
    east, north = _offset(figures, town)
    away = 1000 * hypot(east, north)
    said["town"] = town.name
    if away * _EIGHTH > _SURE * figures.radius_m:
        return said | {"side": _SIDES[round(degrees(atan2(east, north)) / 45) % 8]}
    return said | {"within_m": 100 * ceil((away + _SURE * figures.radius_m) / 100)}


def _level(figures: Figures) -> str:
    if figures.exact:
        return "exact"
    if figures.guess_off_m < SPOT_M:
        return "spot"
    if figures.guess_off_m < STREET_M or figures.certainty >= SURE:
        return "street"
    return "quarter" if figures.guess_off_m < AREA_M else "area"


def _offset(figures: Figures, name: PlaceName) -> tuple[float, float]:
    """How far an estimate lies east and north of a place, in kilometres."""
    east = (figures.longitude - name.longitude + 180) % 360 - 180
    return _KM_A_DEGREE * east * cos(radians(name.latitude)), _KM_A_DEGREE * (figures.latitude - name.latitude)


def _town(figures: Figures, names: Sequence[PlaceName]) -> PlaceName | None:
    away = [(hypot(*_offset(figures, name)), name) for name in names]
    near = [(-name.rank, km, name) for km, name in away if km <= _NEAR_KM]
    if near:
        return min(near)[2]
    farther = [one for one in away if one[0] <= _FAR_KM]
    return min(farther)[1] if farther else None
