"""The user's page and the page of a link over HTTP: access, changes and language."""

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
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import dphmm
from dphmm.errors import DphmmError, InvalidInputError, SessionMismatchError
from dphmm.jobs.certificate import certify
from dphmm.plots.webmap import parse_tile_host
from dphmm.release.session_zones import Zones, clean_zones_error
from dphmm.serve.clock import get_current_second
from dphmm.serve.config import RelayConfig, find_entry
from dphmm.serve.device_authentication import parse_bearer_token
from dphmm.serve.login_table import Login
from dphmm.serve.map_adversary import MapAdversary
from dphmm.serve.page_content import PageContent, compute_policy_effects
from dphmm.serve.recipient_tables import FOREVER
from dphmm.serve.requests import read_object
from dphmm.serve.sessions import Sessions
from dphmm.tables.values import shorten_repr

STATIC = Path(__file__).parent / "static"
_COOKIE = "dphmm"
_LANGUAGE_COOKIE = "dphmm-language"
_MAX_LINK_S = 366 * 86400
# Work of a repair that is computed while a zone is drawn, about a third of a second.
_PREVIEW_MAX_WORK = 300

# Name of a reason in the texts of the page → pattern of the error message. Other messages are shown unchanged.
_REASON_PATTERNS = {
    "overlap": r"zones (?P<first>['\"].*['\"]) and (?P<second>['\"].*['\"]) (must not )?overlap",
    "no_cell": r"zone (?P<name>['\"].*['\"]) (must contain a|holds no) state",
    "crosses": r"(?P<name>.*): (its|the) polygon crosses itself",
    "degrees": r"(?P<name>.*): (its corners are no|the coordinates are not) degrees",
    "date_line": r"(?P<name>.*): an edge of the polygon must span",
    "corners": r"zones must have at most (?P<count>[\d,]+) corners",
    "no_polygon": r"each zone must be a polygon|zones must be a GeoJSON",
    "no_name": r"each zone must have a property 'name'|the name of a link must",
    "away": r"each zone must have another name",
    "no_zone": r"without a zone no location is protected",
    "caps": r"has event caps",
    "ended": r"the expiry of a link must be in the future",
    "many": r"there are (?P<count>\d+) links already",
    "when": r"ends must be a second within a year",
    "precision": r"precision_m must be one of",
    "pause": r"until must be in the future",
    "pruned": r"the first (?P<count>\d+) timesteps of session .* were pruned",
    "pruned_one": r"the first timestep of session .* was pruned",
    "rewound": r"was rewound after a wrong time",
}

# Language → texts of the pages by key. English comes first.
TEXTS: Mapping[str, Mapping[str, str]] = json.loads((STATIC / "texts.json").read_text(encoding="utf-8"))


def localize_reason(request: Request, problem: Exception | str) -> str:
    """Return the reason of an error in the language of the page."""
    reason = clean_zones_error(problem)
    for key, pattern in _REASON_PATTERNS.items():
        if match := re.search(pattern, reason):
            return TEXTS[choose_language(request)][f"reason_{key}"].format(**match.groupdict())
    return reason


def choose_language(request: Request) -> str:
    """Return the language chosen on the page, otherwise the first accepted one."""
    accepted = []
    for part in request.headers.get("accept-language", "").split(",")[:20]:
        tag, _, weight = part.strip().partition(";q=")
        share = float(weight) if re.fullmatch(r"[01](\.\d{0,3})?", weight) else 1.0
        accepted.append((-share, tag.partition("-")[0].lower()))
    candidates = [
        request.cookies.get(_LANGUAGE_COOKIE, ""),
        *(tag for share, tag in sorted(accepted, key=lambda weighted: weighted[0]) if share),
    ]
    return next((language for language in candidates if language in TEXTS), next(iter(TEXTS)))


def fill_template(name: str, language: str, texts: Mapping[str, str]) -> str:
    """Return a page with texts in a language, which its script reads too."""
    values = {"lang": language, "texts": json.dumps(texts, ensure_ascii=False), **texts}
    template = (STATIC / name).read_text(encoding="utf-8")
    return re.sub(r"{{(\w+)}}", lambda key: html.escape(values[key[1]]), template)


@lru_cache(maxsize=32)
def _render_page(name: str, language: str) -> str:
    """Render a page of the relay in a language."""
    page = fill_template(name, language, TEXTS[language])
    options = ""
    for code, translation in TEXTS.items():
        chosen = " selected" if code == language else ""
        options += f'<option value="{code}" lang="{code}"{chosen}>{html.escape(translation["language_name"])}</option>'
    return page.replace("<!-- languages -->", options)


def _make_page_route(path: str, name: str) -> Route:
    """Return the route of a page, which answers in the language of the request."""

    async def answer(request: Request) -> Response:
        return HTMLResponse(_render_page(name, choose_language(request)), headers={"vary": "accept-language, cookie"})

    return Route(path, answer, methods=["GET"])


def make_static_routes() -> list[BaseRoute]:
    """Return the routes of the pages' scripts and styles."""
    package = Path(dphmm.__file__).parent

    async def send_basemap_script(_: Request) -> Response:
        return FileResponse(package / "plots" / "basemap.js")  # shared with the maps that `dphmm.plots.webmap` writes

    return [
        Route("/static/plots/basemap.js", send_basemap_script, methods=["GET"]),
        Mount("/static/vendor", StaticFiles(directory=package / "vendor")),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]


def make_routes(config: RelayConfig, sessions: Sessions) -> list[BaseRoute]:
    """Return the routes of the pages."""
    page = _Page(config, sessions)
    return [
        _make_page_route("/", "index.html"),
        _make_page_route("/link", "link.html"),
        Route("/link/trail", page.link_trail, methods=["GET"]),
        Route("/link/basemap", page.link_basemap, methods=["GET"]),
        *make_static_routes(),
        Mount("/page", Router(page.list_routes())),
    ]


class _Page:
    def __init__(self, config: RelayConfig, sessions: Sessions) -> None:
        self._config = config
        self._sessions = sessions
        self._run, self._content = sessions.run, PageContent(config, sessions)
        self._gzipped_basemap = gzip.compress(self._content.basemap)
        self._tiles = {"tiles": {"url": config.tiles, "attribution": config.tiles_attribution}}
        model, map_model = sessions.engines.model, sessions.engines.map_model
        self._map_adversary = None if map_model is None else MapAdversary(config.store, model, map_model)
        self._work_lock = asyncio.Semaphore(1)

    def list_routes(self) -> list[BaseRoute]:
        """Return the routes below ``/page``. Each path is the name of its method."""
        gets = (self.state, self.trail, self.map_adversary, self.basemap, self.proof)
        posts = (self.preview, self.zones, self.pause, self.link, self.unlink)
        return [
            Route("/login", self.log_in, methods=["POST"]),
            Route("/logout", self.log_out, methods=["POST"]),
            *(Route(f"/{endpoint.__name__}", endpoint, methods=["GET"]) for endpoint in gets),
            *(Route(f"/{endpoint.__name__}", endpoint, methods=["POST"]) for endpoint in posts),
        ]

    # ---- authentication ------------------------------------------------------------------------------------------

    async def log_in(self, request: Request) -> Response:
        """Set a cookie for the token of a page. With ``add``, the present login is extended."""
        body = await read_object(request)
        token = body.get("token")
        if not isinstance(token, str) or find_entry(self._sessions.access.pages, token) is None:
            raise HTTPException(401, "the token is unknown")
        earlier: tuple[str, ...] = ()
        if body.get("add") is True:
            _, login = await self._authenticate(request, changes=True)
            earlier = login.tokens
            await self._run(self._sessions.login_table.log_out, request.cookies.get(_COOKIE, ""))
        cookie, _ = await self._run(self._sessions.login_table.log_in, token, earlier)
        answer = _answer_ok()
        safe = request.url.scheme == "https"
        answer.set_cookie(_COOKIE, cookie, max_age=7 * 86400, httponly=True, samesite="strict", secure=safe)
        return answer

    async def log_out(self, request: Request) -> Response:
        """Delete the login and its cookie."""
        cookie = request.cookies.get(_COOKIE, "")
        await self._authenticate(request, changes=True)
        await self._run(self._sessions.login_table.log_out, cookie)
        answer = _answer_ok()
        answer.delete_cookie(_COOKIE, httponly=True, samesite="strict")
        return answer

    def _list_users(self, login: Login) -> list[str]:
        return list(
            dict.fromkeys(
                user for token in login.tokens if (user := self._sessions.access.pages.get(token)) is not None
            )
        )

    async def _authenticate(self, request: Request, changes: bool) -> tuple[str, Login]:
        """Return the requested user, the first one by default, if the page is open for this user."""
        cookie = request.cookies.get(_COOKIE)
        login = None if not cookie else await self._run(self._sessions.login_table.find_login, cookie)
        users = [] if login is None else self._list_users(login)
        if login is None or not users:
            raise HTTPException(401, "not logged in")
        if changes and not compare_digest(request.headers.get("x-csrf-token", "").encode(), login.csrf.encode()):
            raise HTTPException(403, "the request does not come from the page; reload it")
        user = request.query_params.get("user") or users[0]
        if user not in users:
            raise HTTPException(403, "the page is not open for this user")
        return user, login

    # ---- content and changes -------------------------------------------------------------------------------------

    async def state(self, request: Request) -> Response:
        """Answer everything except the trail. ``{"user": null}`` without a login."""
        if not request.cookies.get(_COOKIE):
            return JSONResponse({"user": None})
        user, login = await self._authenticate(request, changes=False)
        state = await self._run(self._content.get_state, user, self._list_users(login))
        return JSONResponse(state | {"csrf": login.csrf} | self._tiles)

    async def trail(self, request: Request) -> Response:
        """Answer what a recipient was sent from a release on."""
        user, _ = await self._authenticate(request, changes=False)
        recipient = request.query_params.get("recipient", "")
        first = _parse_first_release(request)
        trail = await self._run(self._content.get_trail, user, recipient, first)
        if trail is None:
            raise HTTPException(404, "unknown recipient")
        return JSONResponse(trail)

    async def map_adversary(self, request: Request) -> Response:
        """Answer the inference of an adversary with the map, as far as it is computed."""
        user, _ = await self._authenticate(request, changes=False)
        first = _parse_first_release(request)
        if self._map_adversary is None:
            raise HTTPException(404, "the relay's file has no adversary_map")
        try:
            async with self._work_lock:
                return JSONResponse(await asyncio.to_thread(self._map_adversary.infer, user, first))
        except DphmmError as problem:
            return JSONResponse({"problem": localize_reason(request, problem)})

    async def basemap(self, request: Request) -> Response:
        """Answer the background map."""
        await self._authenticate(request, changes=False)
        return self._answer_basemap(request)

    async def proof(self, request: Request) -> Response:
        """Answer the certificate of all releases of the user, which anyone can verify."""
        user, _ = await self._authenticate(request, changes=False)
        async with self._work_lock:
            text = await asyncio.to_thread(self._build_certificate, user)
        headers = {"content-disposition": 'attachment; filename="proof.jsonl"'}
        return Response(text, media_type="application/jsonl", headers=headers)

    def _answer_basemap(self, request: Request) -> Response:
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(self._content.basemap, media_type="application/json")
        return Response(self._gzipped_basemap, media_type="application/json", headers={"content-encoding": "gzip"})

    async def preview(self, request: Request) -> Response:
        """Answer the effects of zones that are being drawn."""
        await self._authenticate(request, changes=True)
        try:
            zones = Zones.from_page(await read_object(request))
            async with self._work_lock:
                return JSONResponse(await asyncio.to_thread(self._compute_effects, zones))
        except DphmmError as problem:
            raise HTTPException(400, localize_reason(request, problem)) from None

    async def zones(self, request: Request) -> Response:
        """Set the user's zones from the next release on."""
        user, _ = await self._authenticate(request, changes=True)
        try:
            zones = Zones.from_page(await read_object(request))
            async with self._work_lock:  # the sessions' thread, which releases for all users, uses the cached engine
                await asyncio.to_thread(self._sessions.engines.engine, zones.note)
            await self._run(self._content.set_zones, user, zones)
        except (InvalidInputError, SessionMismatchError) as problem:
            raise HTTPException(400, localize_reason(request, problem)) from None
        return _answer_ok()

    async def pause(self, request: Request) -> Response:
        """Pause a recipient or link, or resume it."""
        user, _ = await self._authenticate(request, changes=True)
        body = await read_object(request)
        name = body.get("recipient")
        paused = body.get("paused")
        until = body.get("until", FOREVER)
        if not isinstance(name, str) or not isinstance(paused, bool) or not _is_second(until):
            raise HTTPException(400, "the body must contain recipient (string), paused (boolean) and until (second)")
        try:
            is_known = await self._run(self._content.pause, user, name, until if paused else None)
        except InvalidInputError as problem:
            raise HTTPException(400, localize_reason(request, problem)) from None
        if not is_known:
            raise HTTPException(404, "unknown recipient")
        return _answer_ok()

    async def link(self, request: Request) -> Response:
        """Create a link for one recipient and answer its token, which is not shown again."""
        user, _ = await self._authenticate(request, changes=True)
        body = await read_object(request)
        name = body.get("name")
        precision_m = body.get("precision_m", 0)
        ends = body.get("ends")
        if not isinstance(name, str) or not 0 < len(name.strip()) <= 80 or not name.isprintable():
            raise HTTPException(400, localize_reason(request, "the name of a link must have 1 to 80 characters"))
        offered = self._sessions.access.list_precisions(user)
        if not _is_second(precision_m) or precision_m not in offered:
            choices = ", ".join(map(str, offered))
            wrong = f"precision_m must be one of {choices}, got {shorten_repr(precision_m)}; reload the page"
            raise HTTPException(400, localize_reason(request, wrong))
        if not isinstance(ends, int) or not _is_second(ends) or ends > get_current_second() + _MAX_LINK_S:
            wrong = f"ends must be a second within a year, got {shorten_repr(ends)}"
            raise HTTPException(400, localize_reason(request, wrong))
        try:
            token = await self._run(self._content.add_link, user, name.strip(), precision_m, ends)
        except InvalidInputError as problem:
            raise HTTPException(400, localize_reason(request, problem)) from None
        return JSONResponse({"token": token})

    async def unlink(self, request: Request) -> Response:
        """End a link now, or delete one that has expired."""
        user, _ = await self._authenticate(request, changes=True)
        key = (await read_object(request)).get("link")
        if not isinstance(key, str):
            raise HTTPException(400, "link must be the key of a link")
        await self._run(self._content.end_link, user, key)
        return _answer_ok()

    def _build_certificate(self, user: str) -> bytes:
        """Build a certificate of the user's session from the store, in any thread."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "proof.jsonl"
            try:
                summary = certify(self._config.store, self._sessions.engines.model, path, users=[user])
            except DphmmError as problem:
                is_session_error = str(problem).startswith(("session ", "mechanism "))
                raise HTTPException(409, str(problem) if is_session_error else "no release yet") from None
            if not summary.num_releases:
                raise HTTPException(409, "no release yet")
            return path.read_bytes()

    def _compute_effects(self, zones: Zones) -> dict[str, Any]:
        settings = self._sessions.engines.build_settings(zones.note)
        quick = replace(settings, repair_max_work=min(settings.repair_max_work, _PREVIEW_MAX_WORK))
        return compute_policy_effects(quick.engine(self._sessions.engines.model), zones.policy_layer)

    # ---- links ---------------------------------------------------------------------------------------------------

    async def link_trail(self, request: Request) -> Response:
        """Answer what a link shows."""
        return JSONResponse(await self._get_link_trail(request) | self._tiles)

    async def link_basemap(self, request: Request) -> Response:
        """Answer the background map for the page of a link."""
        await self._get_link_trail(request)
        return self._answer_basemap(request)

    async def _get_link_trail(self, request: Request) -> dict[str, Any]:
        token = parse_bearer_token(request)
        trail = None
        if token:
            trail = await self._run(self._content.get_link_trail, token)
        if trail is None:
            raise HTTPException(404, "the link does not exist or has expired")
        return trail


def _parse_first_release(request: Request) -> int:
    first = request.query_params.get("from", "0")
    if not first.isdecimal() or len(first) > 18:
        raise HTTPException(400, f"from must be the number of a release, got {first!r}")
    return int(first)


def _is_second(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= FOREVER


class SecurityHeaders:
    """An application that adds security headers to every response.

    Parameters
    ----------
    app : ASGIApp
        The application.
    tiles : str, optional
        Address of map tiles that the page may load. None means that it loads no tiles.
    """

    def __init__(self, app: ASGIApp, tiles: str | None) -> None:
        self._app = app
        self._headers = {
            "content-security-policy": _build_content_policy(tiles),
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-store",
            "cross-origin-opener-policy": "same-origin",
            "permissions-policy": "geolocation=(), camera=(), microphone=()",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and add the headers to its response."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(raw=message["headers"]).update(self._headers)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _build_content_policy(tiles: str | None) -> str:
    host = f" {parse_tile_host(tiles)}" if tiles else ""
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:{host}; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
    )


def _answer_ok() -> JSONResponse:
    return JSONResponse({"result": "ok"})
