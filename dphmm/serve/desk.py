"""What the person's page asks and orders, on the thread that has the sessions. Nothing here knows a true place."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from dphmm.policy.expression import policy_in_words
from dphmm.release.account import day_steps
from dphmm.release.drawn_zones import Zones, first_zones, rest_of
from dphmm.release.people import RecordedPeople
from dphmm.release.session import Session
from dphmm.release.trajectory import place_on_earth
from dphmm.serve.audience import Audience, Login
from dphmm.serve.coarse import CoarseReaders
from dphmm.serve.config import RelayConfig
from dphmm.serve.engines import Engines
from dphmm.serve.told import Told

_AT_ONCE = 500
"""So many releases are told at once; the page asks on for more."""
_DAYS = 3


class Desk:
    """Answers the page of a person.

    Parameters
    ----------
    config
        The relay's file.
    people, audience, readers, engines
        Who has sessions, who is told, what is told of coarser releases, and the engines of zones.
    """

    def __init__(
        self,
        config: RelayConfig,
        people: RecordedPeople,
        audience: Audience,
        readers: CoarseReaders,
        engines: Engines,
    ) -> None:
        self._config, self._people, self._audience = config, people, audience
        self._readers, self._engines = readers, engines
        self._space = engines.of_note("").model.space
        south, west = self._space.latlon().min(axis=0)
        north, east = self._space.latlon().max(axis=0)
        self._bounds = np.round([[south, west], [north, east]], 6).tolist()

    # ---- logins --------------------------------------------------------------------------------------------------

    def log_in(self, token: str) -> tuple[str, Login]:
        """As `Audience.log_in`."""
        return self._audience.log_in(token)

    def login(self, cookie: str) -> Login | None:
        """As `Audience.login`."""
        return self._audience.login(cookie)

    def log_out(self, cookie: str) -> None:
        """As `Audience.log_out`."""
        self._audience.log_out(cookie)

    # ---- what there is to see ------------------------------------------------------------------------------------

    def state(self, user: str) -> dict[str, Any]:
        """Everything but the trail: releases' number, budgets, recipients, zones, the map."""
        session = self._people.session(user)
        settings = self._config.release
        zones = self.zones(user)
        return {
            "user": user,
            "count": session.account.count,
            "step_s": self._people_step,
            "bounds": self._bounds,
            "budget": self._budget(session),
            "recipients": list(self._recipients(user, session)),
            "zones": zones,
            "elsewhere": None if not rest_of(settings) else policy_in_words(rest_of(settings)),
            "agreed": [
                {"release": one.first, "settings": one.terms["main"].settings_hash[:12]} for one in session.agreed
            ],
        }

    def trail(self, user: str, epsilon: float | None, first: int) -> dict[str, Any]:
        """What was released from a number on, within the days up to the last: where a reader believes the person to be.

        Parameters
        ----------
        user
            The person.
        epsilon
            The budget of the coarser releases that are asked for; None for the releases themselves.
        first
            The number of the first release.
        """
        session, store = self._people.session(user), self._people.store
        count = store.progress(session.number).count
        if not first:
            days = int(_DAYS * 86400 // self._people_step)
            first = self._audience.count_before(session.number, (session.account.slot or 0) - days)
        last = min(count, first + _AT_ONCE)
        places = []
        for number, stored in enumerate(store.releases(session.number, first, last) if first < last else (), first):
            time_ = self._people.end_of(stored.slot)
            if epsilon is None:
                release = place_on_earth(user, time_, stored.record, self._space)
                place = _place(number, Told.of(release))
                record = stored.record
                place["guess_off_m"] = round(1000 * record.adversary_error, 1)
                place["certainty"] = round(record.adversary_certainty, 4)
                place["settings"] = record.settings[:12]
            else:
                told = self._readers.told(user, session.number, number, epsilon)
                if told is None:
                    continue
                place = _place(number, told)
            places.append(place)
        return {"count": count, "next": max(first, last), "places": places}

    def zones(self, user: str) -> dict[str, Any]:
        """What the person chose, or what the relay's policy names."""
        note = self._people.session(user).agreed[-1].note
        return (Zones.from_note(note) or first_zones(self._config.release)).said()

    # ---- what is ordered -----------------------------------------------------------------------------------------

    def choose(self, user: str, zones: Zones) -> None:
        """Have the person's places released by these zones from the next release on.

        Raises
        ------
        DphmmError
            When the zones cannot be used, or the session cannot go on with them.
        """
        self._people.session(user)
        self._people.agree(user, self._engines.of_note(zones.note), zones.note)

    def pause(self, user: str, recipient: str, paused: bool) -> bool:
        """Tell a recipient nothing of the person, or go on; False where there is no such recipient."""
        if not any(one.name == recipient and one.is_about(user) for one in self._config.recipients):
            return False
        self._audience.pause(recipient, self._people.session(user).number, paused)
        return True

    # ---- parts ---------------------------------------------------------------------------------------------------

    @property
    def _people_step(self) -> float:
        return float((self._people.end_of(1) - self._people.end_of(0)) / np.timedelta64(1, "s"))

    def _budget(self, session: Session) -> dict[str, Any]:
        account, limits = session.account, session.limits
        slot = max(int(time.time() // self._people_step), account.slot or 0)
        day = day_steps(self._people_step)
        assert day is not None, "the relay's model has a step"
        said: dict[str, Any] = {
            "epsilon": self._engines.of_note("").settings.epsilon,
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
            said["window_hours"] = round(limits.window_steps * self._people_step / 3600, 2)
            said["window_left"] = max(0.0, limits.window_epsilon - spent)
        return said

    def _recipients(self, user: str, session: Session) -> Iterator[dict[str, Any]]:
        for one in self._config.recipients:
            if one.is_about(user):
                number, paused = self._audience.told(one.name, session.number)
                yield {
                    "name": one.name,
                    "kind": one.kind,
                    "epsilon": self._config.coarser(one),
                    "key": "" if self._config.coarser(one) is None else repr(self._config.coarser(one)),
                    "tells": "true places" if one.true_places_unprotected else one.tells,
                    "paused": paused or one.paused,
                    "paused_by_file": one.paused,
                    "waiting": 0 if one.true_places_unprotected else max(0, session.account.count - number),
                }


def _place(number: int, told: Told) -> dict[str, Any]:
    return {
        "number": number,
        "time": told.time,
        "latitude": round(told.latitude, 6),
        "longitude": round(told.longitude, 6),
        "radius_m": told.radius_m,
        "prediction": told.is_prediction,
    }
