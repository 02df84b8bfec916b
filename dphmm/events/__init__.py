"""Events over time, the information that releases reveal about them, and caps on it.

An event is a value: `Presence`, `Pattern` or `Times`, combined with ``|``, ``&``, ``~`` and `AtLeast`. `parse_event`
reads events from text. `log_odds` computes the change of an event's log odds after each release, `EventOdds`
incrementally. `compute_smoothed_event_probabilities` computes the smoothed probability that the event has happened.
`CapTracker` chooses budgets under which no output raises or lowers the probability of an event beyond the bounds of a
`Cap`.

Source: Y. Cao, Y. Xiao, L. Xiong, L. Bai, "PriSTE: From Location Privacy to Spatiotemporal Event Privacy", ICDE 2019.
"""

from __future__ import annotations

from dphmm.events.calendar import Clock
from dphmm.events.cap_budget import Cap, CapTracker, Choice, read_priors
from dphmm.events.event import AtLeast, Event, Not, Pattern, Presence, Times
from dphmm.events.expression import EventText, parse_event
from dphmm.events.product_chain import EventOdds, Split, compute_smoothed_event_probabilities, log_odds

__all__ = [
    "AtLeast",
    "Cap",
    "CapTracker",
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
    "compute_smoothed_event_probabilities",
    "log_odds",
    "parse_event",
    "read_priors",
]
