"""Content of the user's page: messages, inferences, budgets, zones and the map.

The effects of zones are computed from the model and the zones, which are public, and not from locations or releases.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import atan2, ceil, cos, degrees, hypot, radians, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.plots.basemap import (
    MAX_EXTRACT_POINTS,
    PlaceName,
    build_basemap,
    build_world_basemap,
    compute_bounding_box,
    encode_basemap,
)
from dphmm.policy.expression import describe_policy
from dphmm.policy.protection_degrees import exposed_states
from dphmm.policy.zones import PolygonLayer
from dphmm.policy.zones import find_zones as members
from dphmm.release.engine import Releaser
from dphmm.release.ledger import steps_per_day
from dphmm.release.session import Session
from dphmm.release.session_terms import MAIN_QUERY
from dphmm.release.session_zones import Zones, build_default_zones, get_policy_without_zones
from dphmm.serve.clock import get_current_second
from dphmm.serve.config import Recipient, RelayConfig
from dphmm.serve.outgoing_messages import Message
from dphmm.serve.recipient_tables import FOREVER, RecipientState
from dphmm.serve.sessions import Sessions
from dphmm.space.projection import wrap_longitude

_MAX_LISTED = 500  # locations in a list, and releases in one response; the page asks for more
_TRAIL_DAYS = 3  # days of the trail that the page shows at first
_MAP_MARGIN = 0.5  # margin of the map around the region, relative to its width
_TOWN_MARGIN = 0.8  # margin within which towns are named, relative to the region's width
# Keys of an inference that describe the place of the estimate; see `describe_inference`.
_PLACE_KEYS = ("error_m", "town", "side", "within_m")


def compute_policy_effects(engine: Releaser, layer: PolygonLayer | None) -> dict[str, Any]:
    """Compute exposed states, added edges and errors under an engine's policy.

    Errors are root mean squares in metres, for an adversary who knows the model alone, before the first release.

    Parameters
    ----------
    engine : Releaser
        Engine that has released nothing.
    layer : PolygonLayer, optional
        Zones with separate errors.

    Returns
    -------
    dict
        Content for the page's script. At most 500 exposed states and 500 added edges are listed.

    Raises
    ------
    DphmmError
        If the policy cannot be used.
    """
    coordinates = engine.model.space.latlon()
    noise_scope = engine.settings.noise_scope
    plan = engine.build_plan(engine.predict(), engine.settings.epsilon)
    exposed = exposed_states(engine.policy, engine.measurements, plan.constraint, noise_scope=noise_scope)
    errors = 1000 * np.array([plan.noise.error_at(state) for state in range(engine.model.size)])
    zones = {} if layer is None else members(layer, engine.model.space)
    elsewhere = np.ones(len(coordinates), dtype=np.bool_)
    for states in zones.values():
        elsewhere[states] = False
    added = plan.protection.added
    return {
        "error_m": round(1000 * plan.noise.expected_error(plan.prior), 1),
        "error_m_elsewhere": _compute_rms(errors[elsewhere]),
        "zones": [
            {"name": name, "num_cells": len(states), "error_m": _compute_rms(errors[states])}
            for name, states in zones.items()
        ],
        "exposed": _round_coordinates(coordinates[exposed[:_MAX_LISTED]]),
        "num_exposed": len(exposed),
        "added_edges": [_round_coordinates(coordinates[list(pair)]) for pair in added[:_MAX_LISTED]],
        "num_added_edges": len(added),
        "num_exact": int(np.count_nonzero(plan.protection.open)),
        "num_cells": len(coordinates),
        "optimality_gap": round(plan.protection.optimality_gap, 3),
        "noise_scope": noise_scope,
    }


def _compute_rms(errors: npt.NDArray[Any]) -> float | None:
    return round(sqrt(float((errors**2).mean())), 1) if len(errors) else None


def _round_coordinates(coordinates: npt.NDArray[Any]) -> list[list[float]]:
    rows: list[list[float]] = np.round(coordinates.astype(np.float64).reshape(-1, 2), 6).tolist()
    return rows


class PageContent:
    """Content of the pages of users and links. All methods run on the sessions' thread.

    Parameters
    ----------
    config : RelayConfig
        Configuration of the relay.
    sessions : Sessions
        Sessions of the users.

    Raises
    ------
    DphmmError
        If the basemap of the file cannot be used.
    """

    def __init__(self, config: RelayConfig, sessions: Sessions) -> None:
        self._config = config
        self._sessions = sessions
        self._stream, self._tables = sessions.stream, sessions.recipient_tables
        self._device_tables = sessions.device_tables
        self._step_s = float((self._stream.slot_end(1) - self._stream.slot_end(0)) / np.timedelta64(1, "s"))
        space = sessions.engines.model.space
        self._space, coordinates = space, space.latlon()
        self._bounds = np.round([coordinates.min(axis=0), coordinates.max(axis=0)], 6).tolist()
        basemap = build_basemap(config.basemap, compute_bounding_box(space, _MAP_MARGIN), MAX_EXTRACT_POINTS)
        self._towns = build_world_basemap(compute_bounding_box(space, _TOWN_MARGIN)).names or basemap.names
        # Background map as JSON.
        self.basemap = json.dumps(encode_basemap(basemap), ensure_ascii=False, separators=(",", ":")).encode()
        path, map_model = config.adversary_map, sessions.engines.map_model
        # The page discards the figures of another map when the relay was restarted with one.
        self._adversary_map = path and map_model and {"name": Path(path).name, "model": map_model.content_hash[:12]}
        self._last_messages: dict[tuple[str, int], tuple[int, dict[str, Any] | None]] = {}

    def get_state(self, user: str, others: Sequence[str] = ()) -> dict[str, Any]:
        """Return the content of the page except for the trail.

        Parameters
        ----------
        user : str
            The user.
        others : sequence of str
            Users of the household, with their last locations.
        """
        session = self._stream.session(user)
        rest = get_policy_without_zones(self._config.release)
        zones = Zones.from_note(session.agreements[-1].note) or build_default_zones(self._config.release)
        return {
            "user": user,
            "num_releases": session.account.count,
            "step_s": self._step_s,
            "bounds": self._bounds,
            "budget": self._get_budget(session),
            "last": self._get_last_message(user, _build_full_recipient_state(session)),
            "recipients": list(self._list_recipients(user, session)),
            "links": list(self._list_links(user, session)),
            "precisions": list(self._sessions.access.list_precisions(user)),
            "last_contact": self._device_tables.get_last_contact(user),
            "phone": self._get_last_contact(user),
            "household": [
                {
                    "user": other,
                    "last": self._get_last_message(other, _build_full_recipient_state(self._stream.session(other))),
                }
                for other in others
            ],
            "zones": zones.to_page(),
            "elsewhere": describe_policy(rest) if rest else None,
            "adversary_map": self._adversary_map,
            "terms": [
                {"first_release": amendment.first, "settings_hash": amendment.terms["main"].settings_hash[:12]}
                for amendment in session.agreements
            ],
        }

    def _get_last_contact(self, user: str) -> dict[str, Any]:
        """Return the last message of a user's phone and its outcome, if known."""
        stored = self._device_tables.get_last_contact(user)
        contact = self._sessions.last_contacts.get(user)
        # A later post may have come to another process.
        if contact is not None and (stored is None or contact["at"] >= stored[0]):
            return contact
        if stored is None:
            return {"since": self._sessions.started_at}
        second, outcomes = stored
        return {"at": second, "time": "", "outcome": "accepted" if "accepted" in outcomes else next(iter(outcomes))}

    def get_trail(self, user: str, recipient: str, first: int) -> dict[str, Any] | None:
        """Return what a recipient was sent from a release on, up to the last one.

        Parameters
        ----------
        user : str
            The user.
        recipient : str
            Name of a recipient or key of a link; empty for all releases.
        first : int
            Number of the first release; 0 for the last three days.

        Returns
        -------
        dict or None
            None if there is no such recipient.
        """
        session = self._stream.session(user)
        match = (
            (_build_full_recipient_state(session), None)
            if not recipient
            else self._find_recipient(user, session, recipient)
        )
        if match is None:
            return None
        count = self._stream.store.progress(session.number).count
        if not first:
            days = int(_TRAIL_DAYS * 86400 // self._step_s)
            first = self._tables.find_first_release(session.number, (session.account.slot or 0) - days)
        sent = count if match[1] is None else match[0].num_sent  # a recipient may not have been sent everything yet
        first = max(first, self._stream.store.first_record(session.number))
        last = min(sent, first + _MAX_LISTED)
        messages = (
            (number, self._sessions.build_message(match[0], user, number, match[1])) for number in range(first, last)
        )
        locations = [_describe_message(number, message) for number, message in messages if message is not None]
        return {"num_releases": count, "next": max(first, last), "locations": locations}

    def get_link_trail(self, token: str) -> dict[str, Any] | None:
        """Return what a link shows, or None if it does not exist or has expired.

        Locations have no numbers: those count releases before the link and during its pauses, too.

        Parameters
        ----------
        token : str
            Token of the link.
        """
        match = self._tables.find_link(token)
        if match is None or match[0] not in self._sessions.access.users:
            return None
        user, link = match
        last = self._get_last_message(user, link)
        if last is not None:
            # The number counts other releases, too, and whether a release is exact can follow from them.
            inference = {key: value for key, value in last["inference"].items() if key in _PLACE_KEYS}
            last = {key: value for key, value in last.items() if key != "number"} | {"inference": inference}
        return {
            "user": user,
            "ends": link.ends,
            "bounds": self._bounds,
            "last": last,
            "locations": [
                _describe_location(message) for message in self._sessions.list_link_messages(user, link, _MAX_LISTED)
            ],
        }

    def add_link(self, user: str, name: str, precision_m: int, ends: int) -> str:
        """Create a link of a user and return its token.

        Raises
        ------
        InvalidInputError
            See `RecipientTables.add_link`.
        """
        return self._tables.add_link(self._stream.session(user).number, name, precision_m, ends)

    def end_link(self, user: str, key: str) -> None:
        """End a link of a user now, or delete one that has expired."""
        self._tables.end_link(key, self._stream.session(user).number)

    def set_zones(self, user: str, zones: Zones) -> None:
        """Release a user's locations under these zones from the next release on.

        Raises
        ------
        DphmmError
            If the zones cannot be used, or the session cannot continue with them.
        """
        self._stream.session(user)
        self._stream.agree(user, self._sessions.engines.engine(zones.note), zones.note)

    def pause(self, user: str, recipient: str, until: int | None) -> bool:
        """Pause or resume a recipient or link. Return False if it does not exist.

        Raises
        ------
        InvalidInputError
            See `RecipientTables.pause`.
        """
        session = self._stream.session(user)
        match = self._find_recipient(user, session, recipient)
        if match is not None:
            self._tables.pause(match[0].key, session.number, until)
        return match is not None

    def _get_budget(self, session: Session) -> dict[str, Any]:
        account, limits = session.account, session.limits
        slot = max(int(get_current_second() // self._step_s), account.slot or 0)
        day = steps_per_day(self._step_s)
        assert day is not None, "the relay's model has a step"
        budget: dict[str, Any] = {
            "epsilon": self._config.release.epsilon,
            "spent": float(account.epsilon),
            "spent_24h": float(account.sum_window_epsilon(slot, day)),
            "limit": limits.epsilon,
            "remaining": None if limits.epsilon is None else max(0.0, limits.epsilon - float(account.epsilon)),
        }
        windows = []
        if limits.window_epsilon is not None and limits.window_steps is not None:
            windows.append((limits.window_epsilon, limits.window_steps))
        schedule = self._config.release.schedule
        if schedule is not None and schedule.window_epsilon is not None:
            windows.append((schedule.window_epsilon, max(1, ceil(schedule.window_seconds / self._step_s))))
        budget["windows"] = [
            {
                "limit": limit,
                "hours": round(steps * self._step_s / 3600, 2),
                "remaining": max(0.0, limit - float(account.sum_window_epsilon(slot, steps))),
            }
            for limit, steps in windows
        ]
        return budget

    def _find_recipient(self, user: str, session: Session, name: str) -> tuple[RecipientState, Recipient | None] | None:
        """Return the delivery state of a recipient, by name, or of a link, by key."""
        for recipient in self._sessions.access.recipients:
            if recipient.name == name and recipient.has_user(user):
                state = self._tables.get_state(recipient.key, session.number)
                return None if state is None else (state, recipient)
        return next(((link, None) for link in self._tables.list_links(session.number) if link.key == name), None)

    def _list_recipients(self, user: str, session: Session) -> Iterator[dict[str, Any]]:
        for recipient in self._sessions.access.recipients:
            if recipient.has_user(user):
                state = self._tables.get_state(recipient.key, session.number)
                aside = self._tables.list_releases_set_aside(recipient.key, session.number)
                sends_true_locations = recipient.true_locations_unprotected
                waiting = 0
                if state is not None and not (sends_true_locations or state.is_paused or recipient.paused):
                    waiting = self._tables.count_releases(session.number, state.num_sent, state.query)
                last = None
                if state is not None and not sends_true_locations:
                    last = self._get_last_message(user, state, recipient)
                yield {
                    "id": recipient.name,
                    "name": recipient.name,
                    "kind": recipient.kind,
                    "precision_m": recipient.precision_m,
                    "content": "true locations" if sends_true_locations else recipient.content,
                    "had_other_settings": self._tables.has_other_settings(
                        recipient.key, session.number, recipient.name
                    ),
                    **_describe_pause(state, recipient.paused),
                    "num_set_aside": len(aside),
                    "set_aside_reason": aside[0][2] if aside else None,
                    "num_waiting": waiting,
                    "last": last,
                }

    def _list_links(self, user: str, session: Session) -> Iterator[dict[str, Any]]:
        for link in self._tables.list_links(session.number):
            yield {
                "id": link.key,
                "name": link.name,
                "kind": "link",
                "ends": link.ends,
                "ended": link.has_ended,
                "precision_m": link.precision_m,
                "content": "location",
                **_describe_pause(link, False),
                "num_waiting": 0,
                "last": self._get_last_message(user, link),
            }

    def _get_last_message(
        self, user: str, state: RecipientState, recipient: Recipient | None = None
    ) -> dict[str, Any] | None:
        """Return the last message to a recipient or link, and what can be inferred."""
        count = state.num_sent if recipient is not None else self._stream.store.progress(state.session).count
        if state.ends < FOREVER:
            count = self._tables.count_until_last_sent(state)
        cached = self._last_messages.get((state.key, state.session))
        if cached is not None and cached[0] == count:
            return cached[1]
        last: dict[str, Any] | None = None
        first = max(self._stream.store.first_record(state.session), count - _MAX_LISTED)
        for number in range(count - 1, first - 1, -1):
            message = self._sessions.build_message(state, user, number, recipient)
            if message is not None:
                inference = self._infer(state, message)
                last = _describe_message(number, message) | {"inference": inference}
                break
        self._last_messages[state.key, state.session] = count, last
        return last

    def _infer(self, state: RecipientState, message: Message) -> dict[str, Any]:
        if state.precision_m:  # from rounded values only: a link's page shows the result to anyone with the link
            radius_m = _get_error_m(message)
            posterior = PosteriorSummary(message.latitude, message.longitude, radius_m, radius_m, 0.0)
            return describe_inference(posterior, self._towns)
        row = message.row  # of a recipient that was not sent every release, it has the figures of the own belief
        posterior = PosteriorSummary(
            message.latitude,
            message.longitude,
            _get_error_m(message),
            row["adversary_error_m"],
            row["adversary_max_posterior"],
            message.exact_posterior,
        )
        return describe_inference(posterior, self._towns) | {"zone": message.zone}


def _build_full_recipient_state(session: Session) -> RecipientState:
    """Return the state of a hypothetical recipient of all releases of a user."""
    return RecipientState("", session.number, "", MAIN_QUERY, 0, 0, 0, False, FOREVER)


def _describe_pause(state: RecipientState | None, by_file: bool) -> dict[str, Any]:
    paused = state is not None and state.is_paused
    until = state.paused_until if state is not None and paused and state.paused_until < FOREVER else None
    return {"paused": paused or by_file, "paused_until": until, "paused_by_file": by_file}


def _get_error_m(message: Message) -> float:
    """Return the expected error of an estimate. Apps are sent a calibrated radius."""
    return round(float(message.row["estimate_error_m"]), 1)


def _describe_message(number: int, message: Message) -> dict[str, Any]:
    return {"number": number} | _describe_location(message)


def _describe_location(message: Message) -> dict[str, Any]:
    figures = {"adversary_error_m": "adversary_error_m", "max_posterior": "adversary_max_posterior"}
    return {
        "time": message.time,
        "latitude": round(message.latitude, 6),
        "longitude": round(message.longitude, 6),
        "error_m": _get_error_m(message),
        "prediction": message.is_prediction,
        "last_known": message.last_known if message.is_prediction else message.second,
        **{name: message.row.get(key) for name, key in figures.items()},  # None for a recipient with a precision
    }


# ---- what a recipient can infer --------------------------------------------------------------------------------------

# Markov: a distance of at least this many expected errors has a probability of at most 1/3.
_MARKOV_FACTOR = 3.0
_COS_HALF_SECTOR = cos(radians(22.5))
_DIRECTIONS = ("n", "ne", "e", "se", "s", "sw", "w", "nw")
_KM_PER_DEGREE = 111.32
# The reference town is the largest one within the first distance (of equal ones the nearest), otherwise the nearest one
# within the second distance.
_LARGEST_TOWN_KM = 15.0
_NEAREST_TOWN_KM = 60.0

# Adversary errors below this may reveal a house.
SPOT_M = 50.0
# Adversary errors below this may reveal a street.
STREET_M = 300.0
# Adversary errors from this on reveal at most a town.
AREA_M = 5000.0
# A maximum posterior probability from this on may reveal a street.
HIGH_POSTERIOR = 0.5


@dataclass(frozen=True)
class PosteriorSummary:
    """Figures of an adversary's posterior distribution at a timestep, in metres and degrees.

    Parameters
    ----------
    latitude, longitude : float
        The published estimate.
    radius_m : float
        Expected error of the estimate.
    adversary_error_m : float
        Expected error of the adversary's point estimate.
    max_posterior : float
        Probability of the most probable state.
    exact_posterior : float, optional
        If the release most probably comes from an unprotected state, the probability that it does. None otherwise.
    """

    latitude: float
    longitude: float
    radius_m: float
    adversary_error_m: float
    max_posterior: float
    exact_posterior: float | None = None


def describe_inference(posterior: PosteriorSummary, names: Sequence[PlaceName]) -> dict[str, Any]:
    """Describe what a recipient can infer, as keys and values of the sentences on the page.

    The recipient is assumed to know the public model and what it was sent. A direction from the centre of a town, or a
    distance within which the user is, is stated if its probability is at least twice that of its complement. This
    follows from Markov's inequality, because only the expected error of the estimate is known, not its distribution.

    Parameters
    ----------
    posterior : PosteriorSummary
        Figures of the recipient's posterior distribution.
    names : sequence of PlaceName
        Towns that can be used as a reference.

    Returns
    -------
    dict
        ``level``: ``exact``, ``spot``, ``street``, ``quarter`` or ``area``, from the most precise inference to the
        least; ``error_m``; ``exact_posterior`` if exact, otherwise ``max_posterior`` if it is high; ``town`` with
        either the ``side`` of its centre or ``within_m`` of it, None if no town is near.
    """
    result: dict[str, Any] = {"level": _classify_level(posterior), "error_m": posterior.radius_m, "town": None}
    if posterior.exact_posterior is not None:
        result["exact_posterior"] = posterior.exact_posterior
    elif posterior.max_posterior >= HIGH_POSTERIOR:
        result["max_posterior"] = posterior.max_posterior
    town = _select_town(posterior, names)
    if town is None:
        return result
    east, north = _compute_offset(posterior, town)
    away = 1000 * hypot(east, north)
    result["town"] = town.name
    if away * _COS_HALF_SECTOR > _MARKOV_FACTOR * posterior.radius_m:
        return result | {"side": _DIRECTIONS[round(degrees(atan2(east, north)) / 45) % 8]}
    return result | {"within_m": 100 * ceil((away + _MARKOV_FACTOR * posterior.radius_m) / 100)}


def _classify_level(figures: PosteriorSummary) -> str:
    if figures.exact_posterior is not None:
        return "exact"
    if figures.adversary_error_m < SPOT_M:
        return "spot"
    if figures.adversary_error_m < STREET_M or figures.max_posterior >= HIGH_POSTERIOR:
        return "street"
    return "quarter" if figures.adversary_error_m < AREA_M else "area"


def _compute_offset(figures: PosteriorSummary, name: PlaceName) -> tuple[float, float]:
    """Return how far an estimate lies east and north of a named place, in kilometres."""
    east = wrap_longitude(figures.longitude - name.longitude)
    return _KM_PER_DEGREE * east * cos(radians(name.latitude)), _KM_PER_DEGREE * (figures.latitude - name.latitude)


def _select_town(figures: PosteriorSummary, names: Sequence[PlaceName]) -> PlaceName | None:
    away = [(hypot(*_compute_offset(figures, name)), name) for name in names]
    near = [(-name.rank, km, name) for km, name in away if km <= _LARGEST_TOWN_KM]
    if near:
        return min(near)[2]
    farther = [candidate for candidate in away if candidate[0] <= _NEAREST_TOWN_KM]
    return min(farther)[1] if farther else None
