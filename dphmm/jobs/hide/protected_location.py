"""A protected location and what adversaries infer about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dphmm.hide.street_inference import STREET, Candidates
from dphmm.hide.zone import HiddenZone, Stretch
from dphmm.hide.zone_inference import ZoneInference


@dataclass(frozen=True)
class HiddenPlace:
    """A protected location and the inference of adversaries.

    The published recording shows it, except for four facts: that there was a location to protect, in which of
    overlapping zones a removed stretch lies, which kept points are errors of the receiver, and whether the user may
    have stopped in the zone, if the recording has no times.

    Parameters
    ----------
    zone
        The zone without points.
    stretches
        The removed stretches of the recording.
    inferences
        The inference of each adversary from this recording.
    inferences_from_all
        The inference from all recordings in the session; from this recording without a session.
    inferences_from_ten
        The inference from ten recordings that leave and enter like this one.
    num_recordings
        The number of all recordings.
    outside_km
        A bound of the distance from the core of locations outside it that belong to the zone, kilometres; 0 if all
        lie in the core.
    candidates
        With a map, the locations that can be the protected one.
    """

    zone: HiddenZone
    stretches: tuple[Stretch, ...]
    inferences: tuple[ZoneInference, ...]
    inferences_from_all: tuple[ZoneInference, ...]
    inferences_from_ten: tuple[ZoneInference, ...]
    num_recordings: int
    outside_km: float = 0.0
    candidates: Candidates | None = None

    @property
    def strongest(self) -> ZoneInference:
        """The inference of the adversary who knows the streets, or else of the most confident one."""
        return find_strongest(self.inferences)

    @property
    def max_posterior(self) -> float:
        """The highest probability of a cell, from the recording and from all recordings."""
        inferences = map(find_strongest, (self.inferences, self.inferences_from_all))
        return max(inference.max_posterior for inference in inferences)

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON values."""
        south, west, north, east = self.zone.square.box
        adversaries: dict[str, dict[str, float]] = {}
        for suffix, inferences in (
            ("", self.inferences),
            ("_from_all", self.inferences_from_all),
            ("_from_ten", self.inferences_from_ten),
        ):
            for inference in inferences:
                # The map may cover all recordings, with the times of another file, but not this one without them.
                values = adversaries.setdefault(inference.adversary, {})
                values[f"max_posterior{suffix}"] = inference.max_posterior
                values[f"rms_error_m{suffix}"] = 1000 * inference.error_km
                if inference.max_candidate_posterior is not None:
                    values[f"max_candidate_posterior{suffix}"] = inference.max_candidate_posterior
        candidates = self.candidates
        return {
            "core_box": [round(side, 6) for side in (south, west, north, east)],
            "zone_km": 2 * self.zone.half_km,
            "crossings": [name_crossing(self.zone, stretch) for stretch in self.stretches],
            "num_recordings": self.num_recordings,
            "adversaries": adversaries,
            "candidates": None
            if candidates is None
            else {
                "kind": candidates.kind,
                "count": len(candidates.prior),
                "effective_number": candidates.effective_number,
            },
        }


def find_strongest(inferences: Sequence[ZoneInference]) -> ZoneInference:
    """Return the inference of the adversary who knows the streets, or the most confident one.

    The others are less often right on real streets, although they can be more confident.
    """
    return next((inference for inference in inferences if inference.adversary == STREET), None) or max(
        inferences, key=get_max_posterior
    )


def get_max_posterior(inference: ZoneInference) -> float:
    """Return the highest probability of a candidate, or of a cell without a map."""
    candidate = inference.max_candidate_posterior
    return inference.max_posterior if candidate is None else candidate


# The name of a crossing with a possible stop.
STOPPED = "may have stopped in"


def name_crossing(zone: HiddenZone, stretch: Stretch) -> str:
    """Return how the user crossed a zone, as a verb."""
    if stretch.entered is None:
        return "left" if stretch.left is not None else "stayed in"
    if stretch.left is None:
        return "entered"
    return STOPPED if zone.is_stop(stretch) else "crossed"
