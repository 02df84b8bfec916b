"""The relay over HTTP: paths, who may post, how much, and what is answered; its metrics and OpenAPI description.

No place is ever logged or answered, and no metric follows from a true place but by way of what was released of it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import dphmm
from dphmm.serve import message_formats as formats
from dphmm.serve import page
from dphmm.serve.broker import Listener
from dphmm.serve.config import RelayConfig, user_with
from dphmm.serve.delivery import Outbox, TruePlaces, cancel, sender_to
from dphmm.serve.requests import REFUSALS, basic_account, bearer_token, body_of, fields_of, json_or_fields_of
from dphmm.serve.sessions import OUTCOMES, Sessions

_READY_TIMEOUT_S = 4.0


def _label(text: str) -> str:
    """A text between the quotation marks of Prometheus' format."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def openapi() -> dict[str, Any]:
    """The description of the plain endpoint, an OpenAPI document."""
    document: dict[str, Any] = json.loads(Path(__file__).with_name("openapi.json").read_text(encoding="utf-8"))
    document["info"]["version"] = dphmm.__version__
    return document


# ---- what phones post ------------------------------------------------------------------------------------------------


async def _basic_user(tokens: Mapping[str, str], request: Request) -> str | None:
    name, password = basic_account(request)
    claimed = request.headers.get("x-limit-u") or request.query_params.get("u") or name
    user = user_with(tokens, password)
    return user if claimed == user else None


async def _bearer_user(tokens: Mapping[str, str], request: Request) -> str | None:
    return user_with(tokens, bearer_token(request))


async def _osmand_user(tokens: Mapping[str, str], request: Request) -> str | None:
    found = await json_or_fields_of(request)
    if isinstance(found, bytes):
        return await _traccar_user(tokens, request)
    return user_with(tokens, found.get("id") or found.get("deviceid"))


async def _traccar_user(tokens: Mapping[str, str], request: Request) -> str | None:
    device = formats.json_object(await body_of(request)).get("device_id")
    return user_with(tokens, device) if isinstance(device, str) else None


async def _gpslogger_user(tokens: Mapping[str, str], request: Request) -> str | None:
    shown = (await fields_of(request)).get("token") or basic_account(request)[1] or bearer_token(request)
    return user_with(tokens, shown)


async def _webhook_user(tokens: Mapping[str, str], request: Request) -> str | None:
    return user_with(tokens, request.path_params["token"])


Refusal = tuple[int, str] | tuple[int, str, Mapping[str, str]]
_UNAUTHORISED: Refusal = (401, "the token is unknown", {"WWW-Authenticate": 'Basic realm="dphmm"'})
_NO_DEVICE, _NO_WEBHOOK = "the device is unknown", (404, "the webhook is unknown")


@dataclass(frozen=True)
class _App:
    """How an app posts: the path, who shows the token and how, and what is read, answered and refused."""

    path: str
    user: Callable[[Mapping[str, str], Request], Awaitable[str | None]]
    content: Callable[[Request], Awaitable[Any]]
    read: Callable[[Any], formats.Received]
    answer: str
    refusal: Refusal = _UNAUTHORISED
    methods: tuple[str, ...] = ("POST",)

    def response(self) -> Response:
        """The answer to a message that was taken."""
        return Response(self.answer, media_type="application/json" if self.answer else "text/plain")


_BOTH = ("GET", "POST")
_APPS = (
    _App("/owntracks", _basic_user, body_of, formats.read_owntracks, "[]"),  # a list of messages for the app
    _App("/overland", _bearer_user, body_of, formats.read_overland, '{"result":"ok"}'),
    _App("/osmand", _osmand_user, json_or_fields_of, formats.read_osmand, "", (400, _NO_DEVICE), _BOTH),
    _App("/traccar", _traccar_user, body_of, formats.read_traccar, "", (404, _NO_DEVICE)),
    _App("/gpslogger", _gpslogger_user, fields_of, formats.read_gpslogger, "", methods=_BOTH),
    _App("/home-assistant/{token}", _webhook_user, body_of, formats.read_home_assistant, "{}", _NO_WEBHOOK),
    _App("/fix", _bearer_user, body_of, formats.read_plain, '{"result":"ok"}'),
)


class Relay:
    """What the paths share.

    Parameters
    ----------
    config
        The relay's file.
    sessions
        People's sessions.
    """

    def __init__(self, config: RelayConfig, sessions: Sessions) -> None:
        self.config, self.sessions = config, sessions
        self.tokens = {one.token: one.user for one in config.devices}
        self.fixes: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.outbox: Outbox | None = None
        self.listener: Listener | None = None
        self.true_places: list[TruePlaces] = []

    async def take(self, user: str, received: formats.Received) -> None:
        """Release what a message holds, and wake those who are to be told."""
        outcome = await self.sessions.take(user, received)
        self.fixes += outcome
        if self.outbox is not None and outcome["released"]:
            self.outbox.wake(user)
        for one in self.true_places:
            one.take(user, received.fixes)

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Send to recipients for as long as this is open."""
        async with httpx.AsyncClient(follow_redirects=False) as client:
            present = [one for one in self.config.recipients if not one.paused]
            senders = {one.name: (one, sender_to(one, client)) for one in present}
            told = {one.name: senders.pop(one.name) for one in present if not one.true_places_unprotected}
            self.outbox = Outbox(self.sessions, told, self.config.users)
            run = self.sessions.run
            self.true_places = [
                TruePlaces(recipient, sender, partial(run, self.sessions.told_from, recipient))
                for recipient, sender in senders.values()
            ]
            work = [*self.outbox.work(), *(one.send_all() for one in self.true_places)]
            if self.config.mqtt is not None:
                users, leads = frozenset(self.config.users), partial(run, self.sessions.tables.leads)
                self.listener = Listener(self.config.mqtt, self.config.store, users, self.take, leads)
                work.append(self.listener.listen())
            tasks = [asyncio.create_task(one) for one in work]
            try:
                yield
            finally:
                await cancel(tasks)

    def route(self, app: _App) -> Route:
        """The path at which an app posts."""

        async def endpoint(request: Request) -> Response:
            self.requests[app.path] += 1
            user = await app.user(self.tokens, request)
            if user is None:
                raise HTTPException(*app.refusal)
            await self.take(user, app.read(await app.content(request)))
            return app.response()

        return Route(app.path, endpoint, methods=list(app.methods))

    async def health(self, _: Request) -> Response:
        """That the relay runs, whether or not it can do anything."""
        return JSONResponse({"status": "ok", "version": dphmm.__version__})

    async def ready(self, _: Request) -> Response:
        """Whether the store and the broker are there, and for how long the oldest message to a recipient waits."""
        store = False
        with suppress(TimeoutError):
            async with asyncio.timeout(_READY_TIMEOUT_S):
                store = await self.sessions.is_there()
        broker = None if self.listener is None else self.listener.is_connected
        waits = {} if self.outbox is None else self.outbox.ages()
        said = {"store": store, "broker": broker, "oldest_message_s": round(max(waits.values(), default=0.0), 1)}
        return JSONResponse(said, 200 if store and broker is not False else 503)

    async def measured(self, _: Request) -> Response:
        """Counts since the start, and the ages of what waits, in Prometheus' text format.

        None follows from a true place but by way of what was released of it. How long requests take would: where
        nothing is released of a place, less is computed.
        """
        deliveries, ages = ({}, {}) if self.outbox is None else (self.outbox.counts, self.outbox.ages())
        told = {
            f'recipient="{_label(name)}",outcome="{outcome}"': count
            for name, counts in deliveries.items()
            for outcome, count in vars(counts).items()
        }
        requests = {f'path="{path}"': count for path, count in self.requests.items()}
        waits = {f'recipient="{_label(name)}"': f"{age:.1f}" for name, age in ages.items()}
        fixes = {f'outcome="{one}"': self.fixes[one] for one in OUTCOMES}
        tables: tuple[tuple[str, str, str, Mapping[str, object]], ...] = (
            ("dphmm_fixes_total", "counter", "Fixes by what became of them.", fixes),
            ("dphmm_requests_total", "counter", "Messages from phones.", requests),
            ("dphmm_messages_total", "counter", "Messages to recipients.", told),
            ("dphmm_oldest_message_seconds", "gauge", "How long the oldest message to a recipient waits.", waits),
        )
        lines: list[str] = []
        for name, kind, about, values in tables:
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{{{labels}}} {value}" for labels, value in values.items()]
        return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4; charset=utf-8")

    async def described(self, _: Request) -> Response:
        """The OpenAPI document."""
        return JSONResponse(openapi())


def make_app(config: RelayConfig, accept_changes: bool = False) -> Starlette:
    """The relay of a file, as an ASGI application.

    Parameters
    ----------
    config, accept_changes
        As for `Sessions`.

    Returns
    -------
    starlette.applications.Starlette
        The application; its sessions are open.

    Raises
    ------
    DphmmError
        When the model, the policy or the store cannot be used.
    """
    relay = Relay(config, Sessions(config, accept_changes))

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        try:
            async with relay.sending():
                yield
        finally:
            await asyncio.to_thread(relay.sessions.close)

    routes = [
        *map(relay.route, _APPS),
        Route("/health", relay.health),
        Route("/ready", relay.ready),
        Route("/metrics", relay.measured),
        Route("/openapi.json", relay.described),
        *page.routes(config, relay.sessions, relay.tokens),
    ]
    headers = Middleware(page.SecurityHeaders, tiles=config.tiles)
    return Starlette(routes=routes, lifespan=life, exception_handlers=REFUSALS, middleware=[headers])
