"""The ways to recipients: HTTP in the format that each expects, and MQTT."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx

from dphmm.errors import need
from dphmm.serve import home_assistant, overland, owntracks, plain, traccar
from dphmm.serve.config import Recipient
from dphmm.serve.outbox import Refused, Sender, Unreachable
from dphmm.serve.told import Told

_PATIENCE_S = 20.0
_LATER = frozenset({401, 403, 404, 405, 408, 425, 429})
"""Answers of a recipient who is set up wrongly or busy, and may take the same message later."""

JSON: Mapping[str, Callable[[Told], dict[str, Any]]] = {
    "owntracks": owntracks.message,
    "overland": overland.message,
    "webhook": plain.message,
}
FORMS: Mapping[str, Callable[[Told], dict[str, str]]] = {
    "traccar": traccar.fields,
    "home-assistant": home_assistant.fields,
}


def sender_to(recipient: Recipient, client: httpx.AsyncClient) -> Sender:
    """The way to a recipient."""
    return MqttSender(recipient) if recipient.kind == "mqtt" else HttpSender(recipient, client)


class HttpSender:
    """One POST for each message.

    Parameters
    ----------
    recipient
        To whom.
    client
        What sends; it follows no redirects.
    """

    def __init__(self, recipient: Recipient, client: httpx.AsyncClient) -> None:
        self._recipient, self._client = recipient, client
        self._headers = recipient.sent_headers()

    async def send(self, told: Told) -> None:
        """As `Sender.send`."""
        kind, headers = self._recipient.kind, dict(self._headers)
        if kind == "owntracks":
            headers |= {"X-Limit-U": told.user, "X-Limit-D": "dphmm"}
        if told.zone is not None:
            content: dict[str, Any] = {"json": plain.zone_message(told)}
        else:
            content = {"json": JSON[kind](told)} if kind in JSON else {"data": FORMS[kind](told)}
        try:
            answer = await self._client.post(self._recipient.url, headers=headers, timeout=_PATIENCE_S, **content)
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            raise Unreachable(type(problem).__name__) from None
        if answer.is_success:
            return
        if 400 <= answer.status_code < 500 and answer.status_code not in _LATER:
            raise Refused(f"status {answer.status_code}")
        raise Unreachable(f"status {answer.status_code}")


class MqttSender:
    """One retained message on ``owntracks/USER/dphmm`` for each, where OwnTracks' apps look, at quality of service 1.

    Whoever is told zones has their names alone, on ``dphmm/USER/zone``.

    Parameters
    ----------
    recipient
        Whose broker; the user name and password in its URL may be ``env:NAME``.
    """

    def __init__(self, recipient: Recipient) -> None:
        self._mqtt = need("aiomqtt", "serve")
        self._recipient = recipient
        self._client: Any = None

    async def send(self, told: Told) -> None:
        """As `Sender.send`."""
        try:
            if self._client is None:
                self._client = await self._connected()
            topic, body = owntracks.topic_of(told.user), json.dumps(owntracks.message(told))
            if told.zone is not None:
                topic, body = f"dphmm/{told.user}/zone", told.zone
            await self._client.publish(topic, body, qos=1, retain=True, timeout=_PATIENCE_S)
        except (self._mqtt.MqttError, OSError, TimeoutError) as problem:
            client, self._client = self._client, None
            if client is not None:
                with suppress(self._mqtt.MqttError):
                    await client.__aexit__(None, None, None)
            raise Unreachable(type(problem).__name__) from None

    async def _connected(self) -> Any:
        account = self._recipient.sent_headers()
        client = broker_client(self._mqtt, self._recipient.url, account.get("username"), account.get("password"))
        return await client.__aenter__()


def broker_client(mqtt: Any, url: str, username: str | None, password: str | None) -> Any:
    """A client of the broker at ``mqtt://host:port`` or ``mqtts://host:port``, not connected yet."""
    parts = urlsplit(url)
    tls = mqtt.TLSParameters() if parts.scheme == "mqtts" else None
    port = parts.port or (8883 if tls else 1883)
    return mqtt.Client(parts.hostname, port, username=username, password=password, tls_params=tls)
