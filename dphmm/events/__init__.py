"""What releases tell of things that happen over time, and caps on it.

An event is a value (`Presence`, `Pattern`, `Times`, joined by ``|``, ``&``, ``~`` and `AtLeast`), also out of words
(`parse_event`). `log_odds` says what releases told of it, one after another, `EventOdds` as they come in, `happened_by`
in hindsight. `CapKeeper` chooses budgets at which no output can tell more of an event than a `Cap` allows.

Source: Y. Cao, Y. Xiao, L. Xiong, L. Bai, "PriSTE: From Location Privacy to Spatiotemporal Event Privacy", ICDE 2019.
"""

from __future__ import annotations

from dphmm.events.calendar import Clock
from dphmm.events.cap import Cap, CapKeeper, Choice, read_priors
from dphmm.events.event import AtLeast, Event, Not, Pattern, Presence, Times
from dphmm.events.expression import EventText, parse_event
from dphmm.events.product_chain import EventOdds, Split, happened_by, log_odds

__all__ = [
    "AtLeast",
    "Cap",
    "CapKeeper",
    "Choice",
    "Clock",
    "Event",
    "EventOdds",
    "EventText",
    "Not",
    "Pattern",
    "Presence",
    "Split",
    "Times",
    "happened_by",
    "log_odds",
    "parse_event",
    "read_priors",
]
