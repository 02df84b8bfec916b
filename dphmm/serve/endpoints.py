"""HTTP endpoints of the relay: messages of apps, health, metrics, OpenAPI description.

Locations are never logged or returned. Metrics depend on true locations only through their releases.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import dphmm
from dphmm.errors import DataFileError, DphmmError, OutputError, SessionMismatchError
from dphmm.serve import incoming_messages, page
from dphmm.serve.broker import Listener, SharedListener, Shares
from dphmm.serve.config import HEADER_VALUE_RULE, Recipient, RelayConfig
from dphmm.serve.delivery import POLL_INTERVAL_S, Outbox, Senders, TrueLocationForwarder, cancel_tasks, open_senders
from dphmm.serve.device_authentication import (
    find_basic_device,
    find_bearer_device,
    find_gpslogger_device,
    find_osmand_device,
    find_webhook_device,
)
from dphmm.serve.devices_and_recipients import Source
from dphmm.serve.metrics import Metrics
from dphmm.serve.requests import (
    EXCEPTION_HANDLERS,
    get_status,
    read_body,
    read_fields,
    read_json_or_fields,
)
from dphmm.serve.sessions import OUTCOMES, Sessions

_READY_TIMEOUT_S = 4.0
_LOG = logging.getLogger(__name__)


def load_openapi() -> dict[str, Any]:
    """Return the OpenAPI description of the generic endpoint."""
    document: dict[str, Any] = json.loads(Path(__file__).with_name("openapi.json").read_text(encoding="utf-8"))
    document["info"]["version"] = dphmm.__version__
    return document


Refusal = tuple[int, str] | tuple[int, str, Mapping[str, str]]
_UNKNOWN_TOKEN: Refusal = (401, "the token is unknown", {"WWW-Authenticate": 'Basic realm="dphmm"'})
_UNKNOWN_DEVICE = "the device is unknown"
_UNKNOWN_WEBHOOK = (404, "the webhook is unknown")


@dataclass(frozen=True)
class _App:
    """How an app posts: path, authentication, parser, answer and refusal."""

    path: str
    find_device: Callable[[Mapping[str, Source], Request], Awaitable[Source | None]]
    read_content: Callable[[Request], Awaitable[Any]]
    parse: Callable[[Any], incoming_messages.Received]
    answer: str
    refusal: Refusal = _UNKNOWN_TOKEN
    methods: tuple[str, ...] = ("POST",)

    def make_response(self) -> Response:
        """Return the answer to an accepted message."""
        return Response(self.answer, media_type="application/json" if self.answer else "text/plain")


_GET_AND_POST = ("GET", "POST")
_APPS = (
    # OwnTracks expects a list of messages for the app.
    _App("/owntracks", find_basic_device, read_body, incoming_messages.read_owntracks, "[]"),
    _App("/overland", find_bearer_device, read_body, incoming_messages.read_overland, '{"result":"ok"}'),
    _App(
        "/osmand",
        find_osmand_device,
        read_json_or_fields,
        incoming_messages.read_osmand,
        "",
        (400, _UNKNOWN_DEVICE),
        _GET_AND_POST,
    ),
    _App(
        "/traccar",
        find_osmand_device,
        read_json_or_fields,
        incoming_messages.read_osmand,
        "",
        (404, _UNKNOWN_DEVICE),
        _GET_AND_POST,
    ),
    _App("/gpslogger", find_gpslogger_device, read_fields, incoming_messages.read_gpslogger, "", methods=_GET_AND_POST),
    _App(
        "/home-assistant/{token}",
        find_webhook_device,
        read_body,
        incoming_messages.read_home_assistant,
        "{}",
        _UNKNOWN_WEBHOOK,
    ),
    _App("/fix", find_bearer_device, read_body, incoming_messages.read_plain, '{"result":"ok"}'),
)


class Relay:
    """State shared by the endpoints.

    Parameters
    ----------
    config : RelayConfig
        Configuration of the relay.
    sessions : Sessions
        Sessions of the users.
    """

    def __init__(self, config: RelayConfig, sessions: Sessions) -> None:
        self.config = config
        self.sessions = sessions
        self.metrics = Metrics(OUTCOMES, None if sessions.is_shared else Path(config.store))
        self.outbox: Outbox | None = None
        self.listener: Listener | SharedListener | None = None
        self.forwarders: list[TrueLocationForwarder] = []

    async def take(self, source: Source, received: incoming_messages.Received) -> None:
        """Release the locations of a message, and wake the senders of its recipients."""
        user = source.user
        outcome = await self.sessions.take(user, received, source.device)
        for name, count in outcome.items():
            self.metrics.fixes.labels(name).inc(count)
        # A withheld timestep is counted as unreleased, and has a prediction to send.
        if self.outbox is not None and (outcome["released"] or outcome["unreleased"]):
            self.outbox.wake(user)
        for forwarder in self.forwarders:
            forwarder.take(user, received.fixes)

    @asynccontextmanager
    async def send_to_recipients(self) -> AsyncIterator[None]:
        """Send to recipients while this context is open."""
        forwarded = [  # in the file only, and therefore constant
            recipient
            for recipient in self.config.recipients
            if recipient.true_locations_unprotected and not recipient.paused
        ]
        async with (
            open_senders(forwarded) as forwarded_senders,
            open_senders(self._list_sendable_recipients()) as senders,
        ):
            version = self.sessions.access.version
            self.outbox = Outbox(self.sessions, senders, self.metrics)
            run = self.sessions.run
            self.forwarders = [
                TrueLocationForwarder(recipient, sender, partial(run, self.sessions.get_sending_start, recipient))
                for recipient, sender in forwarded_senders.values()
            ]
            work = [self.outbox.send_all(), *(forwarder.send_all() for forwarder in self.forwarders)]
            if self.config.mqtt is not None:
                users = self.sessions.access.users
                identity = await run(self.sessions.recipient_tables.get_identity)
                arguments = self.config.mqtt, identity, users, self.take
                if self.sessions.is_shared:
                    self.listener = SharedListener(*arguments, Shares(self.sessions.database), run)
                else:
                    self.listener = Listener(*arguments)
                work.append(self.listener.listen())
            if self.sessions.is_shared:
                work.append(self._refresh_access(senders, version))
            tasks = [asyncio.create_task(coroutine) for coroutine in work]
            try:
                yield
            finally:
                await cancel_tasks([*tasks, *self.outbox.tasks])
                with suppress(DphmmError):
                    await run(self.sessions.end_leases)

    def _list_sendable_recipients(self) -> list[Recipient]:
        """Return the recipients of releases to which messages can be sent now."""
        recipients = []
        for recipient in self.sessions.access.recipients:
            if recipient.paused or recipient.true_locations_unprotected:
                continue
            missing, invalid = recipient.find_missing_variable(), recipient.find_invalid_variable()
            # Those of the file are refused at the start.
            if missing is not None:
                _LOG.error("messages to recipient %s wait: %s is not set", recipient.name, missing)
            elif invalid is not None:
                _LOG.error("messages to recipient %s wait: %s must be %s", recipient.name, invalid, HEADER_VALUE_RULE)
            else:
                recipients.append(recipient)
        return recipients

    async def _refresh_access(self, senders: Senders, version: int | None) -> None:
        """Apply changes of the devices and recipients in the database. Never returns."""
        run, access = self.sessions.run, self.sessions.access
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            try:
                await run(self.sessions.refresh_access)
                if access.version == version:
                    continue
                latest = access.version
                if self.listener is not None:
                    self.listener.set_users(access.users)
                await senders.set_recipients(
                    self._list_sendable_recipients()
                )  # a removed one is sent nothing from here on
                if self.outbox is not None:
                    self.outbox.update()
                for user in await run(self.sessions.list_changed_users):
                    await run(self.sessions.set_recipients, user)  # one by one, so that phones do not wait
                version = latest
            except DphmmError:
                continue  # without the database nothing is sent either
            except Exception as problem:  # no error may end this loop
                _LOG.error("devices and recipients in the database are not applied: %s", type(problem).__name__)

    def make_route(self, app: _App) -> Route:
        """Return the route at which an app posts."""

        async def answer_post(request: Request) -> Response:
            status = 500
            try:
                device = await app.find_device(self.sessions.access.devices, request)
                if device is None:
                    raise HTTPException(*app.refusal)
                received = app.parse(await app.read_content(request))
                try:
                    await self.take(device, received)
                except (DataFileError, SessionMismatchError) as problem:  # of the store: the message itself is valid
                    raise OutputError(str(problem)) from None
                status = 200
            except Exception as problem:  # an unexpected error is counted, too
                status = get_status(problem)
                raise
            finally:
                self.metrics.requests.labels(app.path, str(status)).inc()
            return app.make_response()

        return Route(app.path, answer_post, methods=list(app.methods))

    async def answer_health(self, _: Request) -> Response:
        """Answer that the process runs, whether or not it can release."""
        return JSONResponse({"status": "ok", "version": dphmm.__version__})

    async def _is_store_available(self) -> bool:
        """Return whether the store accepts a release soon."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_READY_TIMEOUT_S):
                return await self.sessions.is_store_available()
        return False

    async def answer_readiness(self, _: Request) -> Response:
        """Answer whether a post would be accepted, and the age of waiting messages."""
        store = await self._is_store_available()
        broker: bool | str | None = None
        if self.listener is not None:
            broker = "taken over" if self.listener.is_taken_over else self.listener.is_connected
        waits = {} if self.outbox is None else await self.outbox.get_ages(store)
        status = {"store": store, "broker": broker, "oldest_message_s": round(max(waits.values(), default=0.0), 1)}
        return JSONResponse(status, 200 if store and broker in (None, True) else 503)

    async def get_metrics(self, request: Request) -> Response:
        """Return the metrics of this process. See `dphmm.serve.metrics`."""
        is_ready = await self._is_store_available()
        ages = {} if self.outbox is None else await self.outbox.get_ages(is_ready)
        waiting: Mapping[str, int] = {}
        if is_ready:  # otherwise the store may not answer
            with suppress(DphmmError):
                counts = await self.sessions.run(self.sessions.count_waiting_releases)
                # Recipients of true locations are not in the outbox: their answers may depend on a true location.
                waiting = {name: counts.get(name, 0) for name in ages}
        if self.listener is not None:
            self.metrics.set_broker_connected(self.listener.is_connected)
        body, content_type = self.metrics.render(request.headers.get("accept", ""), is_ready, ages, waiting)
        return Response(body, media_type=content_type)

    async def describe(self, _: Request) -> Response:
        """Answer the OpenAPI description."""
        return JSONResponse(load_openapi())


def make_app(
    config: RelayConfig, accept_changes: bool = False, on_shutdown: Callable[[], object] = lambda: None
) -> Starlette:
    """Create the ASGI application of a relay.

    Parameters
    ----------
    config, accept_changes
        See `Sessions`.
    on_shutdown
        Called when the application begins to shut down.

    Returns
    -------
    starlette.applications.Starlette
        The application, with open sessions in its ``state.sessions``.

    Raises
    ------
    DphmmError
        If the model, the policy or the store cannot be used.
    """
    relay = Relay(config, Sessions(config, accept_changes))

    @asynccontextmanager
    async def run_lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            async with relay.send_to_recipients():
                yield
                on_shutdown()
        finally:
            await asyncio.to_thread(relay.sessions.close)

    routes = [
        *map(relay.make_route, _APPS),
        Route("/health", relay.answer_health),
        Route("/ready", relay.answer_readiness),
        Route("/metrics", relay.get_metrics),
        Route("/openapi.json", relay.describe),
        *page.make_routes(config, relay.sessions),
    ]
    headers = Middleware(page.SecurityHeaders, tiles=config.tiles)
    app = Starlette(routes=routes, lifespan=run_lifespan, exception_handlers=EXCEPTION_HANDLERS, middleware=[headers])
    app.state.sessions = relay.sessions
    return app
