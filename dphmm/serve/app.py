"""The relay over HTTP: paths, who may post, how much, and what is answered. No place is ever logged or answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import perf_counter

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import dphmm
from dphmm.serve import gpslogger, home_assistant, mqtt, overland, owntracks, page, plain, traccar
from dphmm.serve.config import RelayConfig
from dphmm.serve.fix import Received
from dphmm.serve.keeper import Keeper
from dphmm.serve.meters import Meters
from dphmm.serve.outbox import Outbox
from dphmm.serve.passing import Passing
from dphmm.serve.requests import (
    REFUSALS,
    bearer_token,
    body_of,
    fields_of,
    json_text,
    password,
    unauthorised,
    username,
)
from dphmm.serve.senders import sender_to
from dphmm.serve.tokens import Doors

Reader = Callable[[bytes], Received]
Handler = Callable[["Relay", Request], Awaitable[Response]]


class Relay:
    """What the paths share.

    Parameters
    ----------
    config
        The relay's file.
    keeper
        Who has people's sessions.
    """

    def __init__(self, config: RelayConfig, keeper: Keeper) -> None:
        self.config, self.keeper = config, keeper
        self.doors = Doors({one.token: one.user for one in config.devices})
        self.meters = Meters()
        self.outbox: Outbox | None = None
        self.passing: list[Passing] = []

    async def take(self, user: str, received: Received) -> None:
        """Release what a message holds, and wake those who are to be told."""
        outcome = await self.keeper.take(user, received)
        self.meters.add(outcome)
        if self.outbox is not None and outcome.released:
            self.outbox.wake(user)
        for one in self.passing:
            await one.take(user, received.fixes)

    @asynccontextmanager
    async def telling(self) -> AsyncIterator[None]:
        """Tell recipients for as long as this is open."""
        async with httpx.AsyncClient(follow_redirects=False) as client:
            ways = {one.name: (one, sender_to(one, client)) for one in self.config.recipients}
            told = {one.name: ways[one.name] for one in self.config.told}
            self.outbox = Outbox(self.keeper, told, self.config.users)
            self.outbox.start()
            for name in ways.keys() - told.keys():
                self.passing.append(Passing(*ways[name], partial(self.keeper.is_paused, name)))
                self.passing[-1].start()
            heard = self.config.mqtt
            users = frozenset(self.config.users)
            listening = None if heard is None else asyncio.create_task(mqtt.listen(heard, users, self.take))
            try:
                yield
            finally:
                if listening is not None:
                    listening.cancel()
                    with suppress(asyncio.CancelledError):
                        await listening
                for one in self.passing:
                    await one.stop()
                await self.outbox.stop()


def make_app(config: RelayConfig, accept_changes: bool = False) -> Starlette:
    """The relay of a file, as an ASGI application; parameters as for `Keeper`.

    Raises
    ------
    DphmmError
        When the model, the policy or the store cannot be used.
    """
    relay = Relay(config, Keeper(config, accept_changes))

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        try:
            async with relay.telling():
                yield
        finally:
            await asyncio.to_thread(relay.keeper.close)

    def post(path: str, handler: Handler, *methods: str) -> Route:
        async def endpoint(request: Request) -> Response:
            started = perf_counter()
            try:
                return await handler(relay, request)
            finally:
                relay.meters.took(path, perf_counter() - started)

        return Route(path, endpoint, methods=list(methods or ("POST",)))

    routes = [
        post("/owntracks", _owntracks),
        post("/overland", _with_bearer(overland.read, overland.ANSWER)),
        post("/osmand", _osmand, "GET", "POST"),
        post("/traccar", _traccar),
        post("/gpslogger", _gpslogger, "GET", "POST"),
        post("/home-assistant/{token}", _home_assistant),
        post("/fix", _with_bearer(plain.read, plain.ANSWER)),
        Route("/health", _health),
        Route("/metrics", _metrics(relay)),
        Route("/openapi.json", _openapi),
        *page.routes(config, relay.keeper, relay.doors),
    ]
    guarded = Middleware(page.Guarded, tiles=config.tiles)
    return Starlette(routes=routes, lifespan=life, exception_handlers=REFUSALS, middleware=[guarded])


# ---- what phones post ------------------------------------------------------------------------------------------------


async def _owntracks(relay: Relay, request: Request) -> Response:
    user = relay.doors.user(password(request))
    claimed = request.headers.get("x-limit-u") or request.query_params.get("u") or username(request)
    if user is None or claimed != user:
        raise unauthorised()
    await relay.take(user, owntracks.read(await body_of(request)))
    return json_text(owntracks.ANSWER)


async def _osmand(relay: Relay, request: Request) -> Response:
    fields = await fields_of(request)
    user = relay.doors.user(traccar.device_of(fields))
    if user is None:
        raise HTTPException(400, "the device is unknown")
    await relay.take(user, traccar.read_fields(fields))
    return PlainTextResponse(traccar.ANSWER)


async def _traccar(relay: Relay, request: Request) -> Response:
    body = await body_of(request)
    user = relay.doors.user(traccar.json_device_of(body))
    if user is None:
        raise HTTPException(404, "the device is unknown")
    await relay.take(user, traccar.read(body))
    return PlainTextResponse(traccar.ANSWER)


async def _gpslogger(relay: Relay, request: Request) -> Response:
    fields = await fields_of(request)
    user = relay.doors.user(fields.get("token") or password(request) or bearer_token(request))
    if user is None:
        raise unauthorised()
    await relay.take(user, gpslogger.read_fields(fields))
    return PlainTextResponse(gpslogger.ANSWER)


async def _home_assistant(relay: Relay, request: Request) -> Response:
    user = relay.doors.user(request.path_params["token"])
    if user is None:
        raise HTTPException(404, "the webhook is unknown")
    await relay.take(user, home_assistant.read(await body_of(request)))
    return json_text(home_assistant.ANSWER)


def _with_bearer(read: Reader, answer: str) -> Handler:
    """For apps that show their token as a bearer's, and post one body."""

    async def handler(relay: Relay, request: Request) -> Response:
        user = _bearer(relay, request)
        await relay.take(user, read(await body_of(request)))
        return json_text(answer)

    return handler


# ---- what people watch -----------------------------------------------------------------------------------------------


async def _health(_: Request) -> Response:
    return JSONResponse({"status": "ok", "version": dphmm.__version__})


def _metrics(relay: Relay) -> Callable[[Request], Awaitable[Response]]:
    async def metrics(_: Request) -> Response:
        deliveries = {} if relay.outbox is None else dict(relay.outbox.counts)
        deliveries |= {one.recipient.name: one.counts for one in relay.passing}
        return Response(relay.meters.text(deliveries), media_type="text/plain; version=0.0.4; charset=utf-8")

    return metrics


async def _openapi(_: Request) -> Response:
    from dphmm.serve.openapi import DESCRIPTION

    return JSONResponse(DESCRIPTION)


def _bearer(relay: Relay, request: Request) -> str:
    user = relay.doors.user(bearer_token(request))
    if user is None:
        raise unauthorised()
    return user
