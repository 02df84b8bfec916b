"""Sentences on what a published recording reveals about a protected location."""

from __future__ import annotations

from math import ceil

from dphmm.formatting import format_kilometres
from dphmm.hide.street_inference import AHEAD_KM, MAP_MARGIN_KM, STREET, Candidates
from dphmm.hide.zone import CELLS
from dphmm.hide.zone_inference import ZoneInference
from dphmm.jobs.hide.protected_location import STOPPED, HiddenPlace, find_strongest, get_max_posterior, name_crossing


def format_odds(probability: float) -> str:
    """Format a probability, rounded up, as *1 in N* or as a percentage."""
    return f"1 in {int(1 / probability + 1e-9):,}" if probability < 0.5 else f"{ceil(100 * probability - 1e-9)} %"


_ASSUMPTIONS = {
    "markov": "models movement as a Markov chain",
    "extrapolating": "extrapolates your track in a straight line",
    STREET: "knows the streets",
}


# From ``scripts/street_adversary.py``, with the adversaries' knowledge of which locations are possible.
_WITHOUT_MAP = (
    "An adversary with a street map does better. On real streets and with --within 500m, it located 30 % of 300 "
    "simulated homes to within 100 m after ten rides, and these adversaries at most 22 %. To include it, use --map "
    "FILE, such as an extract of OpenStreetMap."
)
_NOT_COVERED = (
    f"The map has no street near the track{{track}} where it leaves the zone, or up to {AHEAD_KM:g} km on: no "
    f"adversary who knows the streets was tested{{tested}}. Use a map that covers the zone and {MAP_MARGIN_KM:g} km "
    "around it."
)


def describe_place(place: HiddenPlace, has_times: bool, has_session: bool, has_among: bool = False) -> list[str]:
    """Return the paragraphs *Revealed*, *Protected* and *Repeated* of a location.

    Parameters
    ----------
    place
        The location.
    has_times
        Whether a time at which the recording leaves or enters the zone is published.
    has_session
        Whether recordings are tracked in a file.
    has_among
        Whether the map chose the core.
    """
    zone, candidates = place.zone, place.candidates
    strongest = place.strongest
    latitude, longitude = zone.square.centre
    core, cell, side = (
        format_kilometres(length) for length in (zone.square.side_km, zone.grid.cell_km, 2 * zone.half_km)
    )
    crossings = dict.fromkeys(name_crossing(zone, stretch) for stretch in place.stretches)
    verbs = [f"{crossing} it" for crossing in crossings if crossing != STOPPED]
    if STOPPED in crossings:  # last, so that the addition does not refer to other crossings
        verbs = [verb for verb in verbs if verb != "crossed it"] + ["crossed it, perhaps with a stop"]
    verb = " and ".join(filter(None, [", ".join(verbs[:-1]), verbs[-1]]))
    revealed = (
        f"Revealed: You were in the {side} × {side} zone centred on {latitude:.4f}, {longitude:.4f}, and "
        f"{'when and ' if has_times else ''}where you {verb}. "
    )
    if candidates is not None:
        revealed += f"{_describe_candidates(candidates)} "
    highest = format_odds(strongest.max_posterior)
    claim = f"no {cell} × {cell} cell of the zone's core a probability above {highest}"
    if strongest.max_candidate_posterior is not None:
        highest = format_odds(strongest.max_candidate_posterior)
        claim = f"none of them a probability above {highest}, and {claim}"
    adversary = f"the strongest adversary tested, who {_ASSUMPTIONS[strongest.adversary]},"
    # Adversaries learn nothing from other crossings and tracks, with and without streets near them.
    if not any(zone.is_stop(stretch) and (stretch.entered or stretch.left) for stretch in place.stretches):
        adversary = "every adversary tested"
    revealed += (
        f"From this file alone, {adversary} gives {claim}. Without the file, this probability is "
        f"{format_odds(strongest.prior)}. The adversary's RMS error is {format_kilometres(strongest.error_km)}."
    )
    outside = f", or up to {format_kilometres(place.outside_km)} outside it," if place.outside_km else ""
    apart = ""
    if zone.prior.max() > (1 + 1e-9) / CELLS**2:
        distance = format_kilometres(max(reach for _, reach in zone.others))
        apart = f" that is farther than {distance} from the cores of other zones"
    further = "Knowledge that the map lacks helps an adversary further."
    if candidates is None:
        further = _WITHOUT_MAP
    elif strongest.adversary != STREET:
        further = _NOT_COVERED.format(track="", tested=" on this file")
    elif find_strongest(place.inferences_from_all).adversary != STREET:
        further = _NOT_COVERED.format(track=" of a recording of this session", tested=" on all of its recordings")
    protected = (
        f"Protected: Where in the {core} × {core} core{outside} your location lies, beyond what the track outside "
        f"suggests. With the same track outside, every location in the core{apart} yields this same file. No point "
        f"within {format_kilometres(zone.within_km)} of your location is kept. {further} Every other file of your "
        "movements helps "
        "an adversary further."
    )
    return [revealed, protected, f"Repeated: {_describe_repeats(place, has_session, has_among)}"]


def _describe_repeats(place: HiddenPlace, has_session: bool, has_among: bool) -> str:
    """Return what adversaries infer from several recordings."""
    candidates = place.candidates
    ten = find_strongest(place.inferences_from_ten)
    odds = _format_candidate_odds(ten, candidates)
    if get_max_posterior(ten) > get_max_posterior(place.strongest) and ten.error_km < place.strongest.error_km:
        repeated = (
            f"Ten recordings that enter and leave like this one would raise the probability to "
            f"{odds} and lower the RMS error to {format_kilometres(ten.error_km)}."
        )
    else:
        repeated = (
            f"Ten recordings that enter and leave like this one yield a probability of {odds} and an RMS error of "
            f"{format_kilometres(ten.error_km)}."
        )
    if has_session:
        total = find_strongest(place.inferences_from_all)
        count = place.num_recordings
        subject = f"The {count} recordings of this session" if count > 1 else "The 1 recording of this session"
        highest = format_odds(get_max_posterior(total))
        target = "cell" if candidates is None else _SINGULAR[candidates.kind]
        repeated = (
            f"{subject} {'give' if count > 1 else 'gives'} a probability of at most {highest} to any {target}. "
            f"{repeated} Files that were hidden without this session, or before it knew this zone, are not counted."
        )
    else:
        options = "--near, --within, --among and --map" if has_among else "--near and --within"
        repeated += (
            f" Files that you publish later add up with this one: always hide this location with the same {options}, "
            "or with --session, which hides it in later recordings, too."
        )
    if place.outside_km:
        repeated += (
            " A location just outside the core was recognized as the same location: a second zone would place it near "
            "the border of both. Later recordings protect it only as far as this zone reaches, unless you use --near "
            "for it again."
        )
    return repeated


_SINGULAR = {"addresses": "address", "buildings": "building", "places on streets": "place on a street", "cells": "cell"}


def _describe_candidates(candidates: Candidates) -> str:
    """Return what the map shows in the core, in a sentence."""
    count = len(candidates.prior)
    kind = candidates.kind
    if kind == "cells":
        return "The map shows no street in the core, so that your home may be in any of its cells."
    if kind == "places on streets":
        return (
            f"The map shows few buildings in the core. If your home is on one of its streets, it is one of {count:,} "
            "places, one per 20 m."
        )
    return (
        f"Your home is one of {count:,} {kind if count > 1 else _SINGULAR[kind]} in the core, if the map contains it."
    )


def _format_candidate_odds(inference: ZoneInference, candidates: Candidates | None) -> str:
    """Format the highest probability of a candidate, or of a cell without a map."""
    odds = format_odds(get_max_posterior(inference))
    return odds if candidates is None else f"{odds} for the most probable {_SINGULAR[candidates.kind]}"
