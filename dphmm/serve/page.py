"""The person's page and the page of a link over HTTP: who may see and change what, and in which language."""

from __future__ import annotations

import asyncio
import gzip
import html
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from secrets import compare_digest
from tempfile import TemporaryDirectory
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dphmm.errors import DphmmError, InvalidInputError, SessionMismatchError
from dphmm.jobs.certificates import certify
from dphmm.plots.webmap import tile_host
from dphmm.release.drawn_zones import Zones, zones_error
from dphmm.serve.config import RelayConfig, user_with
from dphmm.serve.content import PageContent, policy_effects
from dphmm.serve.recipients import FOREVER, Login, now
from dphmm.serve.requests import bearer_token, body_of
from dphmm.serve.sessions import Sessions
from dphmm.tables.json_toml import parse_json

STATIC = Path(__file__).parent / "static"
VENDOR = Path(__file__).parents[1] / "vendor"
_COOKIE, _LANGUAGE = "dphmm", "dphmm-language"
_LONGEST_LINK_S = 366 * 86400
_REPAIR_WORK = 300
"""How much work a repair may do that is shown while a zone is drawn: a third of a second or so."""

_REASONS = {
    "overlap": r"zones (?P<one>['\"].*['\"]) and (?P<two>['\"].*['\"]) overlap",
    "no_cell": r"zone (?P<name>['\"].*['\"]) holds no state",
    "crosses": r"(?P<name>.*): its polygon crosses itself",
    "degrees": r"(?P<name>.*): its corners are no degrees",
    "no_polygon": r"a zone is no polygon|zones are no GeoJSON",
    "no_name": r"(a zone|a link) has no name",
    "no_zone": r"without a zone nothing is hidden",
    "caps": r"keeps caps on events",
    "ended": r"the link would have ended already",
    "many": r"there are (?P<count>\d+) links already",
    "when": r"a link needs the second when it ends",
}
"""What the page calls a reason why something cannot be → how errors say it; of others it shows that."""

TEXTS: Mapping[str, Mapping[str, str]] = json.loads((STATIC / "texts.json").read_text(encoding="utf-8"))
"""Language → every text of the pages by its key; English first."""


def reason_of(request: Request, problem: Exception | str) -> str:
    """Why something cannot be, in the language of the page."""
    said = zones_error(problem)
    for key, pattern in _REASONS.items():
        if found := re.search(pattern, said):
            return TEXTS[language_of(request)][f"reason_{key}"].format(**found.groupdict())
    return said


def language_of(request: Request) -> str:
    """The language that was chosen on the page, or else the first one that the browser accepts and the page has."""
    accepted = []
    for part in request.headers.get("accept-language", "").split(",")[:20]:
        tag, _, weight = part.strip().partition(";q=")
        share = float(weight) if re.fullmatch(r"[01](\.\d{0,3})?", weight) else 1.0
        accepted.append((-share, tag.partition("-")[0].lower()))
    asked = [
        request.cookies.get(_LANGUAGE, ""),
        *(tag for share, tag in sorted(accepted, key=lambda one: one[0]) if share),
    ]
    return next((language for language in asked if language in TEXTS), next(iter(TEXTS)))


@lru_cache(maxsize=32)
def _document(name: str, language: str) -> str:
    """A page in a language; its script finds the texts in it."""
    texts = TEXTS[language]
    said = {"lang": language, "texts": json.dumps(texts, ensure_ascii=False), **texts}
    template = (STATIC / name).read_text(encoding="utf-8")
    page = re.sub(r"{{(\w+)}}", lambda key: html.escape(said[key[1]]), template)
    options = ""
    for one, some in TEXTS.items():
        chosen = " selected" if one == language else ""
        options += f'<option value="{one}" lang="{one}"{chosen}>{html.escape(some["language_name"])}</option>'
    return page.replace("<!-- languages -->", options)


def _page(path: str, name: str) -> Route:
    """A page at its path, in the language of who asks."""

    async def answer(request: Request) -> Response:
        return HTMLResponse(_document(name, language_of(request)), headers={"vary": "accept-language, cookie"})

    return Route(path, answer, methods=["GET"])


def routes(config: RelayConfig, sessions: Sessions, tokens: Mapping[str, str]) -> list[BaseRoute]:
    """The pages' paths."""
    page = _Page(config, sessions, tokens)
    return [
        _page("/", "index.html"),
        _page("/link", "link.html"),
        Route("/link/told", page.told_by_link, methods=["GET"]),
        Route("/link/ground", page.ground_of_link, methods=["GET"]),
        Mount("/static/vendor", StaticFiles(directory=VENDOR)),
        Mount("/static", StaticFiles(directory=STATIC)),
        Mount("/page", Router(page.routes())),
    ]


class _Page:
    def __init__(self, config: RelayConfig, sessions: Sessions, tokens: Mapping[str, str]) -> None:
        self._config, self._sessions, self._tokens = config, sessions, tokens
        self._run, self._content = sessions.run, PageContent(config, sessions)
        self._packed = gzip.compress(self._content.ground)
        self._tiles = {"tiles": {"url": config.tiles, "attribution": config.tiles_attribution}}
        self._one_at_a_time = asyncio.Semaphore(1)

    def routes(self) -> list[BaseRoute]:
        """The paths below ``/page``."""
        gets, posts = (
            (self.state, self.trail, self.ground, self.proof),
            (self.price, self.zones, self.pause, self.link, self.unlink),
        )
        return [
            Route("/login", self.log_in, methods=["POST"]),
            Route("/logout", self.log_out, methods=["POST"]),
            *(Route(f"/{one.__name__}", one, methods=["GET"]) for one in gets),
            *(Route(f"/{one.__name__}", one, methods=["POST"]) for one in posts),
        ]

    # ---- who looks -----------------------------------------------------------------------------------------------

    async def log_in(self, request: Request) -> Response:
        """Give a cookie for a token; of a page that is open, one for its people too."""
        said = await _object(request)
        token = said.get("token")
        if not isinstance(token, str) or user_with(self._tokens, token) is None:
            raise HTTPException(401, "the token is unknown")
        earlier: tuple[str, ...] = ()
        if said.get("add") is True:
            _, login = await self._user(request, changes=True)
            earlier = login.tokens
            await self._run(self._sessions.tables.log_out, request.cookies.get(_COOKIE, ""))
        cookie, _ = await self._run(self._sessions.tables.log_in, token, earlier)
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

    def _people(self, login: Login) -> list[str]:
        return list(dict.fromkeys(user for one in login.tokens if (user := self._tokens.get(one)) is not None))

    async def _user(self, request: Request, changes: bool) -> tuple[str, Login]:
        """The person who is asked about, of those whom the page is open for; the first where none is named."""
        cookie = request.cookies.get(_COOKIE)
        login = None if not cookie else await self._run(self._sessions.tables.login, cookie)
        people = [] if login is None else self._people(login)
        if login is None or not people:
            raise HTTPException(401, "not logged in")
        if changes and not compare_digest(request.headers.get("x-csrf-token", "").encode(), login.csrf.encode()):
            raise HTTPException(403, "the request does not come from the page; load it anew")
        user = request.query_params.get("user") or people[0]
        if user not in people:
            raise HTTPException(403, "the page is not open for this person")
        return user, login

    # ---- what they ask -------------------------------------------------------------------------------------------

    async def state(self, request: Request) -> Response:
        """Everything but the trail; a user of None without a login."""
        if not request.cookies.get(_COOKIE):
            return JSONResponse({"user": None})
        user, login = await self._user(request, changes=False)
        state = await self._run(self._content.state, user, self._people(login))
        return JSONResponse(state | {"csrf": login.csrf} | self._tiles)

    async def trail(self, request: Request) -> Response:
        """What a reader was told from a release on."""
        user, _ = await self._user(request, changes=False)
        reader, first = request.query_params.get("reader", ""), _number(request)
        trail = await self._run(self._content.trail, user, reader, first)
        if trail is None:
            raise HTTPException(404, "there is no reader of that name")
        return JSONResponse(trail)

    async def ground(self, request: Request) -> Response:
        """The map below."""
        await self._user(request, changes=False)
        return self._ground(request)

    async def proof(self, request: Request) -> Response:
        """The certificate of everything that was released of them, for anyone to check."""
        user, _ = await self._user(request, changes=False)
        async with self._one_at_a_time:
            text = await asyncio.to_thread(self._certificate, user)
        told = {"content-disposition": 'attachment; filename="proof.jsonl"'}
        return Response(text, media_type="application/jsonl", headers=told)

    def _ground(self, request: Request) -> Response:
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(self._content.ground, media_type="application/json")
        return Response(self._packed, media_type="application/json", headers={"content-encoding": "gzip"})

    async def price(self, request: Request) -> Response:
        """What zones would do, as they are drawn."""
        await self._user(request, changes=True)
        try:
            zones = Zones.from_page(await _object(request))
            async with self._one_at_a_time:
                return JSONResponse(await asyncio.to_thread(self._effects, zones))
        except DphmmError as problem:
            raise HTTPException(400, reason_of(request, problem)) from None

    async def zones(self, request: Request) -> Response:
        """Have them hold from the next release on."""
        user, _ = await self._user(request, changes=True)
        try:
            await self._run(self._content.choose, user, Zones.from_page(await _object(request)))
        except (InvalidInputError, SessionMismatchError) as problem:
            raise HTTPException(400, reason_of(request, problem)) from None
        return _ok()

    async def pause(self, request: Request) -> Response:
        """Pause a recipient or a link, or go on."""
        user, _ = await self._user(request, changes=True)
        said = await _object(request)
        name, paused, until = said.get("recipient"), said.get("paused"), said.get("until", FOREVER)
        if not isinstance(name, str) or not isinstance(paused, bool) or not _is_second(until):
            raise HTTPException(400, "give a recipient and whether they are paused, and until which second")
        if not await self._run(self._content.pause, user, name, until if paused else 0):
            raise HTTPException(404, "there is no recipient of that name")
        return _ok()

    async def link(self, request: Request) -> Response:
        """Make a link for one reader, and answer its token: the only time that it is shown."""
        user, _ = await self._user(request, changes=True)
        said = await _object(request)
        name, precision_m, ends = said.get("name"), said.get("precision_m", 0), said.get("ends")
        if not isinstance(name, str) or not 0 < len(name.strip()) <= 80 or not name.isprintable():
            raise HTTPException(400, reason_of(request, "a link has no name; give it one of 1 to 80 characters"))
        offered = _is_second(precision_m) and precision_m in self._config.precisions(user)
        if not offered or not isinstance(ends, int) or not _is_second(ends) or ends > now() + _LONGEST_LINK_S:
            wrong = "a link needs the second when it ends, within a year, and the precision of a recipient"
            raise HTTPException(400, reason_of(request, wrong))
        try:
            token = await self._run(self._content.add_link, user, name.strip(), precision_m, ends)
        except InvalidInputError as problem:
            raise HTTPException(400, reason_of(request, problem)) from None
        return JSONResponse({"token": token})

    async def unlink(self, request: Request) -> Response:
        """End a link now, or forget one that has ended."""
        user, _ = await self._user(request, changes=True)
        key = (await _object(request)).get("link")
        if not isinstance(key, str):
            raise HTTPException(400, "give a link")
        await self._run(self._content.end_link, user, key)
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
        settings = self._sessions.engines.settings(zones.note)
        quick = replace(settings, repair_limit=min(settings.repair_limit, _REPAIR_WORK))
        return policy_effects(quick.engine(self._sessions.engines.model), zones.drawn)

    # ---- links ---------------------------------------------------------------------------------------------------

    async def told_by_link(self, request: Request) -> Response:
        """What a link tells, from a release on."""
        return JSONResponse(await self._by_link(request) | self._tiles)

    async def ground_of_link(self, request: Request) -> Response:
        """The map below, for those who have a link."""
        await self._by_link(request)
        return self._ground(request)

    async def _by_link(self, request: Request) -> dict[str, Any]:
        token = bearer_token(request)
        told = None if not token else await self._run(self._content.by_link, token, _number(request))
        if told is None:
            raise HTTPException(404, "there is no such link, or it has ended")
        return told


def _number(request: Request) -> int:
    first = request.query_params.get("from", "0")
    if not first.isdecimal() or len(first) > 18:
        raise HTTPException(400, "from is no number of a release")
    return int(first)


def _is_second(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= FOREVER


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
    host = f" {tile_host(tiles)}" if tiles else ""
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:{host}; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
    )


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
