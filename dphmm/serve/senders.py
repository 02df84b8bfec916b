"""Ways to recipients: a POST for each message, or a retained message at an MQTT broker."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx

from dphmm.errors import need
from dphmm.serve.config import Recipient
from dphmm.serve.message_formats import Message, http_content, owntracks_message, owntracks_topic, zone_topic

_TIMEOUT_S = 20.0
_LATER = frozenset({401, 403, 404, 405, 408, 425, 429})
"""Answers of a recipient who is set up wrongly or busy, and may take the same message later."""


class Unreachable(Exception):
    """A recipient who did not take a message, and may take it later.

    Parameters
    ----------
    said
        What is said of it: never what the message holds.
    answered
        Whether the recipient is there, and answered that it did not take this message.
    """

    def __init__(self, said: str, answered: bool = False) -> None:
        super().__init__(said)
        self.answered = answered


class Refused(Exception):
    """A message that a recipient will never take."""


class Sender(Protocol):
    """The way to a recipient."""

    async def send(self, message: Message) -> None:
        """Send a message.

        Raises
        ------
        Unreachable, Refused
            When the recipient did not take it.
        """


def sender_to(recipient: Recipient, client: httpx.AsyncClient) -> Sender:
    """The way to a recipient.

    Parameters
    ----------
    recipient
        The recipient.
    client
        The HTTP client that all recipients share.
    """
    return MqttSender(recipient) if recipient.kind == "mqtt" else HttpSender(recipient, client)


class HttpSender:
    """One POST for each message.

    Parameters
    ----------
    recipient
        The recipient.
    client
        The client that sends; it follows no redirects.
    """

    def __init__(self, recipient: Recipient, client: httpx.AsyncClient) -> None:
        self._recipient, self._client = recipient, client
        self._headers = recipient.sent_headers()

    async def send(self, message: Message) -> None:
        """As `Sender.send`."""
        kind, url, headers = self._recipient.kind, self._recipient.url, dict(self._headers)
        content = http_content(kind, message)
        try:
            if kind == "owntracks" and message.user.isascii():
                headers |= {"X-Limit-U": message.user, "X-Limit-D": "dphmm"}
            elif kind == "owntracks":  # no header takes other scripts; the recorder takes both from a query too
                url = str(httpx.URL(url).copy_merge_params({"u": message.user, "d": "dphmm"}))
            answer = await self._client.post(url, headers=headers, timeout=_TIMEOUT_S, **content)
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            raise Unreachable(type(problem).__name__) from None
        if answer.is_success:
            return
        if 400 <= answer.status_code < 500 and answer.status_code not in _LATER:
            raise Refused(f"status {answer.status_code}")
        raise Unreachable(f"status {answer.status_code}", answered=True)


class MqttSender:
    """One retained message on ``owntracks/USER/dphmm`` for each, where OwnTracks' apps look, at quality of service 1.

    Recipients of zones get their names alone, on ``dphmm/USER/zone``.

    Parameters
    ----------
    recipient
        The recipient, with the broker's URL; the user name and password among the headers may be ``env:NAME``.
    """

    def __init__(self, recipient: Recipient) -> None:
        self._mqtt = need("aiomqtt", "serve")
        self._recipient = recipient
        self._client: Any = None

    async def send(self, message: Message) -> None:
        """As `Sender.send`."""
        topic, body = owntracks_topic(message.user), json.dumps(owntracks_message(message))
        if message.zone is not None:
            topic, body = zone_topic(message.user), message.zone
        try:
            if self._client is None:
                account = self._recipient.sent_headers()
                host, port, tls = broker_address(self._recipient.url)
                client = self._mqtt.Client(
                    host,
                    port,
                    username=account.get("username"),
                    password=account.get("password"),
                    tls_params=self._mqtt.TLSParameters() if tls else None,
                )
                self._client = await client.__aenter__()
            await self._client.publish(topic, body, qos=1, retain=True, timeout=_TIMEOUT_S)
        except (self._mqtt.MqttError, OSError, TimeoutError) as problem:
            client, self._client = self._client, None
            if client is not None:
                with suppress(self._mqtt.MqttError):
                    await client.__aexit__(None, None, None)
            raise Unreachable(type(problem).__name__) from None


def broker_address(url: str) -> tuple[str, int, bool]:
    """Host, port and whether TLS is spoken, of ``mqtt://host:port`` or ``mqtts://host:port``."""
    parts = urlsplit(url)
    tls = parts.scheme == "mqtts"
    return parts.hostname or "", parts.port or (8883 if tls else 1883), tls
