"""Metrics of a relay in the format of Prometheus.

They depend on true locations only through their releases. Durations of requests are not included, because a location
without a release needs less computation. The histogram contains the durations of messages to recipients instead.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from math import nan
from pathlib import Path

from dphmm.errors import MissingDependencyError

try:
    import prometheus_client
    from prometheus_client.exposition import choose_encoder
except ImportError:
    raise MissingDependencyError("prometheus_client", "serve") from None

DELIVERED = "delivered"
FAILED = "failed"
SET_ASIDE = "set_aside"
_MESSAGE_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 20.0)  # the last one is the deadline of a message

# The times at which counters began mean nothing to an operator.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # untyped in the library


class Metrics:
    """Counters, gauges and a histogram of one process of a relay.

    Parameters
    ----------
    fix_outcomes : collection of str
        Outcomes of fixes.
    store : Path, optional
        File of the store, the disk of which is measured; None for a server.

    Attributes
    ----------
    fixes, requests, messages : prometheus_client.Counter
        Fixes by outcome, messages from phones by path and status, and messages to recipients by outcome.
    message_seconds : prometheus_client.Histogram
        Durations of messages, by recipient.
    """

    def __init__(self, fix_outcomes: Collection[str], store: Path | None) -> None:
        self._registry = prometheus_client.CollectorRegistry()
        registry = self._registry
        self.fixes = prometheus_client.Counter("dphmm_fixes", "Fixes by outcome.", ["outcome"], registry=registry)
        for outcome in fix_outcomes:
            self.fixes.labels(outcome)
        self.requests = prometheus_client.Counter(
            "dphmm_requests", "Messages from phones.", ["path", "status"], registry=registry
        )
        self.messages = prometheus_client.Counter(
            "dphmm_messages", "Messages to recipients.", ["recipient", "outcome"], registry=registry
        )
        self.message_seconds = prometheus_client.Histogram(
            "dphmm_message_seconds",
            "Time until a recipient answers a message.",
            ["recipient"],
            buckets=_MESSAGE_SECONDS,
            registry=registry,
        )
        self._ages = prometheus_client.Gauge(
            "dphmm_oldest_message_seconds", "Age of the oldest waiting message.", ["recipient"], registry=registry
        )
        self._waiting = prometheus_client.Gauge(
            "dphmm_waiting_messages", "Releases that wait for a recipient.", ["recipient"], registry=registry
        )
        self._ready = prometheus_client.Gauge(
            "dphmm_store_ready", "Whether the store accepts a release.", registry=registry
        )
        self._broker: prometheus_client.Gauge | None = None
        if store is not None:
            free = prometheus_client.Gauge(
                "dphmm_disk_free_bytes", "Free space on the store's disk.", registry=registry
            )
            free.set_function(lambda: shutil.disk_usage(store.parent).free)

    def add_recipient(self, name: str) -> None:
        """Begin the counters of a recipient with zero."""
        for outcome in (DELIVERED, FAILED, SET_ASIDE):
            self.messages.labels(name, outcome)

    def set_broker_connected(self, is_connected: bool | None) -> None:
        """Set whether the broker is connected, to NaN for None: other processes listen."""
        if self._broker is None:
            self._broker = prometheus_client.Gauge(
                "dphmm_broker_connected",
                "Whether the broker is connected; NaN if other processes listen.",
                registry=self._registry,
            )
        self._broker.set(nan if is_connected is None else is_connected)

    def render(
        self, accept: str, is_ready: bool, ages: Mapping[str, float], waiting: Mapping[str, int]
    ) -> tuple[bytes, str]:
        """Return the metrics and their content type.

        Parameters
        ----------
        accept : str
            Content types that the client accepts.
        is_ready : bool
            Whether the store accepts a release.
        ages, waiting : mapping
            Recipient → age of its oldest waiting message in seconds, and number of waiting releases.
        """
        self._ready.set(is_ready)
        for gauge, values in ((self._ages, ages), (self._waiting, waiting)):
            gauge.clear()  # of recipients that were removed
            for name, value in values.items():
                gauge.labels(name).set(value)
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
