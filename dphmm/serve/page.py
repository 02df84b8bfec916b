"""The person's page: where recipients believe them to be, what that costs, who receives, and the zones that they draw.

What zones cost follows from the model and the zones, which are public; neither the person's place nor what was released
of it goes in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from math import sqrt
from pathlib import Path
from secrets import compare_digest
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dphmm.errors import DphmmError, InvalidInputError
from dphmm.jobs.certificates import certify
from dphmm.policy.expression import policy_in_words
from dphmm.policy.layer import PolygonLayer
from dphmm.policy.protection import exposed_states
from dphmm.policy.zones import zones as members
from dphmm.release.drawn_zones import Zones, first_zones, rest_of, zones_error
from dphmm.release.engine import Releaser
from dphmm.release.ledger import day_steps
from dphmm.release.reader import query_of
from dphmm.release.session import Session
from dphmm.release.trajectory import place_on_earth
from dphmm.serve import apps
from dphmm.serve.config import RelayConfig, Tokens
from dphmm.serve.recipients import FOREVER, Login
from dphmm.serve.requests import body_of
from dphmm.serve.sessions import Sessions
from dphmm.tables.json_toml import parse_json

STATIC = Path(__file__).parent / "static"
VENDOR = Path(__file__).parents[1] / "vendor"
_COOKIE = "dphmm"
_MOST_LISTED = 500
"""At most this many places are listed, and this many releases sent at once; the page asks for more."""
_DAYS = 3
"""How far back the page looks at first."""
_REPAIR_WORK = 300
"""How much work a repair may do that is shown while a zone is drawn: a third of a second or so."""


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
    """What the page of a person shows; everything here runs on the sessions' thread.

    Parameters
    ----------
    config
        The relay's file.
    sessions
        People's sessions.
    """

    def __init__(self, config: RelayConfig, sessions: Sessions) -> None:
        self._config, self._sessions = config, sessions
        self._people, self._tables = sessions.people, sessions.tables
        self._step_s = float((self._people.end_of(1) - self._people.end_of(0)) / np.timedelta64(1, "s"))
        self._space = sessions.engines.model.space
        places = self._space.latlon()
        self._bounds = np.round([places.min(axis=0), places.max(axis=0)], 6).tolist()

    def state(self, user: str) -> dict[str, Any]:
        """Everything but the trail: the number of releases, budgets, recipients, zones, the map."""
        session = self._people.session(user)
        rest = rest_of(self._config.release)
        zones = Zones.from_note(session.agreed[-1].note) or first_zones(self._config.release)
        return {
            "user": user,
            "count": session.account.count,
            "heard": self._tables.heard(user),
            "step_s": self._step_s,
            "bounds": self._bounds,
            "budget": self._budget(session),
            "recipients": list(self._recipients(user, session)),
            "zones": zones.to_page(),
            "elsewhere": policy_in_words(rest) if rest else None,
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
            The budget of the reader whose releases are asked for; None for the finest.
        first
            The number of the first release; 0 for the last three days.
        """
        session, store = self._people.session(user), self._people.store
        count = store.progress(session.number).count
        if not first:
            days = int(_DAYS * 86400 // self._step_s)
            first = self._tables.number_from(session.number, (session.account.slot or 0) - days)
        last = min(count, first + _MOST_LISTED)
        places = []
        for number, stored in enumerate(store.releases(session.number, first, last) if first < last else (), first):
            record = stored.record
            if stored.query == query_of(epsilon):
                release = place_on_earth(user, self._people.end_of(stored.slot), record, self._space)
                places.append(
                    _place(number, apps.Message.of_release(release))
                    | {
                        "guess_off_m": round(1000 * record.adversary_error, 1),
                        "certainty": round(record.adversary_certainty, 4),
                        "settings": record.settings[:12],
                    }
                )
        return {"count": count, "next": max(first, last), "places": places}

    def choose(self, user: str, zones: Zones) -> None:
        """Have the person's places released by these zones from the next release on.

        Raises
        ------
        DphmmError
            When the zones cannot be used, or the session cannot continue with them.
        """
        self._people.session(user)
        self._people.agree(user, self._sessions.engines.engine(zones.note), zones.note)

    def pause(self, user: str, recipient: str, until: int) -> bool:
        """Pause a recipient of a person's releases until a second, or go on; False where there is no such recipient."""
        for one in self._config.recipients:
            if one.name == recipient and one.is_about(user):
                self._tables.pause(self._config.key(one), self._people.session(user).number, until)
                return True
        return False

    def _budget(self, session: Session) -> dict[str, Any]:
        account, limits = session.account, session.limits
        slot = max(int(time.time() // self._step_s), account.slot or 0)
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

    def _recipients(self, user: str, session: Session) -> Iterator[dict[str, Any]]:
        for one in self._config.recipients:
            if one.is_about(user):
                reader = self._tables.reader(self._config.key(one), session.number)
                aside = self._tables.set_aside(self._config.key(one), session.number)
                paused, epsilon = reader is not None and reader.is_paused, self._config.coarser(one)
                yield {
                    "name": one.name,
                    "kind": one.kind,
                    "epsilon": epsilon,
                    "key": "" if epsilon is None else repr(epsilon),
                    "tells": "true places" if one.true_places_unprotected else one.tells,
                    "paused": paused or one.paused,
                    "paused_until": reader.paused_until
                    if reader is not None and paused and reader.paused_until < FOREVER
                    else None,
                    "paused_by_file": one.paused,
                    "set_aside": len(aside),
                    "set_aside_last": aside[0][2] if aside else None,
                    "waiting": 0
                    if one.true_places_unprotected or reader is None or paused or one.paused
                    else self._tables.count_from(session.number, reader.number, reader.query),
                }


def _place(number: int, message: apps.Message) -> dict[str, Any]:
    return {
        "number": number,
        "time": message.time,
        "latitude": round(message.latitude, 6),
        "longitude": round(message.longitude, 6),
        "radius_m": message.radius_m,
        "prediction": message.is_prediction,
    }


def routes(config: RelayConfig, sessions: Sessions, tokens: Tokens) -> list[BaseRoute]:
    """The page's paths."""
    page = _Page(config, sessions, tokens)
    return [
        Route("/", _index, methods=["GET"]),
        Mount("/static/vendor", StaticFiles(directory=VENDOR)),
        Mount("/static", StaticFiles(directory=STATIC)),
        Mount("/page", Router(page.routes())),
    ]


class _Page:
    def __init__(self, config: RelayConfig, sessions: Sessions, tokens: Tokens) -> None:
        self._config, self._sessions, self._tokens = config, sessions, tokens
        self._run, self._content = sessions.run, PageContent(config, sessions)
        self._one_at_a_time = asyncio.Semaphore(1)

    def routes(self) -> list[BaseRoute]:
        """The paths below ``/page``."""
        gets, posts = (self.state, self.trail, self.proof), (self.price, self.zones, self.pause)
        return [
            Route("/login", self.log_in, methods=["POST"]),
            Route("/logout", self.log_out, methods=["POST"]),
            *(Route(f"/{one.__name__}", one, methods=["GET"]) for one in gets),
            *(Route(f"/{one.__name__}", one, methods=["POST"]) for one in posts),
        ]

    # ---- who looks -----------------------------------------------------------------------------------------------

    async def log_in(self, request: Request) -> Response:
        """Give a cookie for a token."""
        token = (await _object(request)).get("token")
        if not isinstance(token, str) or self._tokens.user(token) is None:
            raise HTTPException(401, "the token is unknown")
        cookie, _ = await self._run(self._sessions.tables.log_in, token)
        answer = _ok()
        safe = request.url.scheme == "https"
        answer.set_cookie(_COOKIE, cookie, max_age=7 * 86400, httponly=True, samesite="strict", secure=safe)
        return answer

    async def log_out(self, request: Request) -> Response:
        """Take it back."""
        cookie = request.cookies.get(_COOKIE, "")
        await self._user(request, changes=True)
        await self._run(self._sessions.tables.log_out, cookie)
        answer = _ok()
        answer.delete_cookie(_COOKIE, httponly=True, samesite="strict")
        return answer

    async def _user(self, request: Request, changes: bool) -> tuple[str, Login]:
        cookie = request.cookies.get(_COOKIE)
        login = None if not cookie else await self._run(self._sessions.tables.login, cookie)
        user = None if login is None else self._tokens.user_of(login.token)
        if login is None or user is None:
            raise HTTPException(401, "not logged in")
        if changes and not compare_digest(request.headers.get("x-csrf-token", "").encode(), login.csrf.encode()):
            raise HTTPException(403, "the request does not come from the page; load it anew")
        return user, login

    # ---- what they ask -------------------------------------------------------------------------------------------

    async def state(self, request: Request) -> Response:
        """Everything but the trail; a user of None without a login."""
        if not request.cookies.get(_COOKIE):
            return JSONResponse({"user": None})
        user, login = await self._user(request, changes=False)
        state = await self._run(self._content.state, user)
        tiles = {"url": self._config.tiles, "attribution": self._config.tiles_attribution}
        return JSONResponse(state | {"csrf": login.csrf, "tiles": tiles})

    async def trail(self, request: Request) -> Response:
        """What was released from a number on."""
        user, _ = await self._user(request, changes=False)
        first = request.query_params.get("from", "0")
        tier = request.query_params.get("epsilon") or None
        tiers = {repr(one): one for one in self._config.coarser_of(user)}
        if not first.isdecimal() or len(first) > 18 or (tier is not None and tier not in tiers):
            raise HTTPException(400, "from is no number, or no recipient is told releases of this epsilon")
        epsilon = None if tier is None else tiers[tier]
        return JSONResponse(await self._run(self._content.trail, user, epsilon, int(first)))

    async def proof(self, request: Request) -> Response:
        """The certificate of everything that was released of them, for anyone to check."""
        user, _ = await self._user(request, changes=False)
        async with self._one_at_a_time:
            text = await asyncio.to_thread(self._certificate, user)
        told = {"content-disposition": 'attachment; filename="proof.jsonl"'}
        return Response(text, media_type="application/jsonl", headers=told)

    async def price(self, request: Request) -> Response:
        """What zones would do, as they are drawn."""
        await self._user(request, changes=True)
        zones = Zones.from_page(await _object(request))
        async with self._one_at_a_time:
            return JSONResponse(await asyncio.to_thread(self._effects, zones))

    async def zones(self, request: Request) -> Response:
        """Have them hold from the next release on."""
        user, _ = await self._user(request, changes=True)
        zones = Zones.from_page(await _object(request))
        try:
            await self._run(self._content.choose, user, zones)
        except InvalidInputError as problem:
            raise HTTPException(400, zones_error(problem)) from None
        return _ok()

    async def pause(self, request: Request) -> Response:
        """Pause a recipient, or go on."""
        user, _ = await self._user(request, changes=True)
        said = await _object(request)
        name, paused, until = said.get("recipient"), said.get("paused"), said.get("until", FOREVER)
        whole = isinstance(until, int) and not isinstance(until, bool) and 0 <= until <= FOREVER
        if not isinstance(name, str) or not isinstance(paused, bool) or not whole:
            raise HTTPException(400, "give a recipient and whether they are paused, and until which second")
        if not await self._run(self._content.pause, user, name, until if paused else 0):
            raise HTTPException(404, "there is no recipient of that name")
        return _ok()

    def _certificate(self, user: str) -> bytes:
        """What a certificate of the user's session holds; it is made from the store, beside the sessions' thread."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "proof.jsonl"
            try:
                found = certify(self._config.store, self._sessions.engines.model, path, users=[user])
            except DphmmError as problem:
                of_session = str(problem).startswith(("session ", "mechanism "))
                raise HTTPException(409, str(problem) if of_session else "nothing was released yet") from None
            if not found.releases:
                raise HTTPException(409, "nothing was released yet")
            return path.read_bytes()

    def _effects(self, zones: Zones) -> dict[str, Any]:
        engines = self._sessions.engines
        try:
            settings = engines.settings(zones.note)
            quick = replace(settings, repair_limit=min(settings.repair_limit, _REPAIR_WORK))
            return policy_effects(quick.engine(engines.model), zones.drawn)
        except DphmmError as problem:
            raise HTTPException(400, zones_error(problem)) from None


class SecurityHeaders:
    """An application whose answers tell browsers what they may do with them.

    Parameters
    ----------
    app
        The application.
    tiles
        The address of map tiles that the page may load; None where it may not.
    """

    def __init__(self, app: ASGIApp, tiles: str | None) -> None:
        self._app = app
        self._headers = {
            "content-security-policy": _content_policy(tiles),
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-store",
            "cross-origin-opener-policy": "same-origin",
            "permissions-policy": "geolocation=(), camera=(), microphone=()",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and answer with these headers."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(raw=message["headers"]).update(self._headers)
            await send(message)

        await self._app(scope, receive, with_headers)


def _content_policy(tiles: str | None) -> str:
    parts = urlsplit(tiles or "")
    host = f" {parts.scheme}://{parts.netloc}" if tiles else ""
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:{host}; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


async def _index(_: Request) -> Response:
    return FileResponse(STATIC / "index.html")


def _ok() -> JSONResponse:
    return JSONResponse({"result": "ok"})


async def _object(request: Request) -> dict[str, Any]:
    try:
        said = parse_json(await body_of(request))
    except ValueError:
        said = None
    if not isinstance(said, dict) or request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(400, "the body is no JSON object")
    return said
