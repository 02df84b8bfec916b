"""The person's page: where recipients believe them to be, what that costs, who is told, and the zones that they draw.

A device's token opens it; a cookie keeps it open, which scripts cannot read and other sites' pages do not send. What
changes something shows a second secret besides. The page loads its own files alone, and tiles where the relay's file
names a server of them.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from secrets import compare_digest
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dphmm.errors import DphmmError, InvalidInputError
from dphmm.release.drawn_zones import Zones, said_of_zones
from dphmm.serve.audience import Login
from dphmm.serve.config import RelayConfig
from dphmm.serve.keeper import Keeper
from dphmm.serve.requests import body_of
from dphmm.serve.tokens import Doors
from dphmm.serve.zones import price
from dphmm.tables.json_text import parse_json

STATIC = Path(__file__).parent / "static"
VENDOR = Path(__file__).parents[1] / "vendor"
_COOKIE = "dphmm"
_QUICK_REPAIR = 300
"""How much work a repair may do that is shown while somebody draws: a third of a second or so."""


def routes(config: RelayConfig, keeper: Keeper, doors: Doors) -> list[BaseRoute]:
    """The page's paths."""
    page = _Page(config, keeper, doors)
    return [
        Route("/", _index, methods=["GET"]),
        Mount("/static/vendor", StaticFiles(directory=VENDOR)),
        Mount("/static", StaticFiles(directory=STATIC)),
        Mount("/page", Router(page.routes())),
    ]


class _Page:
    def __init__(self, config: RelayConfig, keeper: Keeper, doors: Doors) -> None:
        self._config, self._keeper, self._doors = config, keeper, doors
        self._one_at_a_time = asyncio.Semaphore(1)

    def routes(self) -> list[BaseRoute]:
        """The paths below ``/page``."""
        asked, ordered = (self.state, self.trail), (self.price, self.zones, self.pause)
        return [
            Route("/login", self.log_in, methods=["POST"]),
            Route("/logout", self.log_out, methods=["POST"]),
            *(Route(f"/{one.__name__}", one, methods=["GET"]) for one in asked),
            *(Route(f"/{one.__name__}", one, methods=["POST"]) for one in ordered),
        ]

    # ---- who looks -----------------------------------------------------------------------------------------------

    async def log_in(self, request: Request) -> Response:
        """Give a cookie to whoever shows a token."""
        token = (await _object(request)).get("token")
        if not isinstance(token, str) or self._doors.user(token) is None:
            raise HTTPException(401, "the token is unknown")
        cookie, _ = await self._keeper.ask(lambda desk: desk.log_in(token))
        answer = JSONResponse({"result": "ok"})
        safe = request.url.scheme == "https"
        answer.set_cookie(_COOKIE, cookie, max_age=7 * 86400, httponly=True, samesite="strict", secure=safe)
        return answer

    async def log_out(self, request: Request) -> Response:
        """Take it back."""
        cookie = request.cookies.get(_COOKIE, "")
        await self._user(request, changes=True)
        await self._keeper.ask(lambda desk: desk.log_out(cookie))
        answer = JSONResponse({"result": "ok"})
        answer.delete_cookie(_COOKIE, httponly=True, samesite="strict")
        return answer

    async def _user(self, request: Request, changes: bool) -> tuple[str, Login]:
        cookie = request.cookies.get(_COOKIE)
        login = None if not cookie else await self._keeper.ask(lambda desk: desk.login(cookie))
        user = None if login is None else self._doors.user_of(login.token)
        if login is None or user is None:
            raise HTTPException(401, "nobody is logged in")
        if changes and not compare_digest(request.headers.get("x-csrf-token", "").encode(), login.csrf.encode()):
            raise HTTPException(403, "the request does not come from the page; load it anew")
        return user, login

    # ---- what they ask -------------------------------------------------------------------------------------------

    async def state(self, request: Request) -> Response:
        """Everything but the trail; that nobody is logged in, where nobody is."""
        if not request.cookies.get(_COOKIE):
            return JSONResponse({"user": None})
        user, login = await self._user(request, changes=False)
        state = await self._keeper.ask(lambda desk: desk.state(user))
        tiles = {"url": self._config.tiles, "attribution": self._config.tiles_attribution}
        return JSONResponse(state | {"csrf": login.csrf, "tiles": tiles})

    async def trail(self, request: Request) -> Response:
        """What was released from a number on."""
        user, _ = await self._user(request, changes=False)
        first = request.query_params.get("from", "0")
        tier = request.query_params.get("epsilon") or None
        tiers = {repr(one): one for one in self._config.coarser_of(user)}
        if not first.isdecimal() or len(first) > 18 or (tier is not None and tier not in tiers):
            raise HTTPException(400, "from is no number, or nobody is told releases of this epsilon")
        epsilon = None if tier is None else tiers[tier]
        return JSONResponse(await self._keeper.ask(lambda desk: desk.trail(user, epsilon, int(first))))

    async def price(self, request: Request) -> Response:
        """What zones would do, as they are drawn."""
        await self._user(request, changes=True)
        zones = await _zones(request)
        async with self._one_at_a_time:
            return JSONResponse(await asyncio.to_thread(self._priced, zones))

    async def zones(self, request: Request) -> Response:
        """Have them hold from the next release on."""
        user, _ = await self._user(request, changes=True)
        zones = await _zones(request)
        try:
            await self._keeper.ask(lambda desk: desk.choose(user, zones))
        except InvalidInputError as problem:
            raise HTTPException(400, said_of_zones(problem)) from None
        return JSONResponse({"result": "ok"})

    async def pause(self, request: Request) -> Response:
        """Tell a recipient nothing for now, or go on."""
        user, _ = await self._user(request, changes=True)
        said = await _object(request)
        name, paused = said.get("recipient"), said.get("paused")
        if not isinstance(name, str) or not isinstance(paused, bool):
            raise HTTPException(400, "give a recipient and whether they are paused")
        if not await self._keeper.ask(lambda desk: desk.pause(user, name, paused)):
            raise HTTPException(404, "nobody of that name is told")
        return JSONResponse({"result": "ok"})

    def _priced(self, zones: Zones) -> dict[str, Any]:
        engines = self._keeper.engines
        try:
            settings = engines.settings(zones.note)
            quick = replace(settings, repair_limit=min(settings.repair_limit, _QUICK_REPAIR))
            return price(quick.engine(engines.model), zones.file(engines.folder))
        except DphmmError as problem:
            raise HTTPException(400, said_of_zones(problem)) from None


class Guarded:
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
        self._headers = [
            (b"content-security-policy", _content_policy(tiles).encode("ascii")),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-store"),
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"permissions-policy", b"geolocation=(), camera=(), microphone=()"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and answer with these headers."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in self._headers}
                message["headers"] = [one for one in message["headers"] if one[0] not in own] + self._headers
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


async def _object(request: Request) -> dict[str, Any]:
    try:
        said = parse_json(await body_of(request))
    except ValueError:
        said = None
    if not isinstance(said, dict) or request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(400, "the body is no JSON object")
    return said


async def _zones(request: Request) -> Zones:
    return Zones.of(await _object(request))
