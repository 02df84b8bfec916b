"""Inference of an adversary with a map from all releases of a user, for the user's page.

The figures follow from the releases in the store, the model and the map. They are computed when the page asks for them,
and are not stored. Releases do not depend on them.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from time import monotonic
from typing import Any

from dphmm.audit.sequence import replay_sequence
from dphmm.caching import BoundedCache
from dphmm.errors import ConfigurationError, DphmmError
from dphmm.jobs.audit.adversaries import build_map_adversary
from dphmm.jobs.release.stored import build_pruned_error, build_sequence, get_agreed_engine
from dphmm.model.belief import Belief
from dphmm.model.model import MarkovModel
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.session_store import SessionStore
from dphmm.release.session_terms import Agreement, StoredSession
from dphmm.serve.config import RelayConfig

# Time after which a call ends, so that previews of other users wait for at most this time and one release.
_MAX_CALL_S = 0.5
_MAX_BLOCK = 64  # releases that are read together
_MAX_USERS = 64  # users whose beliefs are kept; a further one is computed again from the first release
_MAX_ENGINES = 16


def build_map_model(config: RelayConfig, model: MarkovModel) -> MarkovModel | None:
    """Build the model of an adversary who has the map of a relay's file. None without a map.

    Raises
    ------
    ConfigurationError
        If the map cannot be read or used with the model.
    """
    if config.adversary_map is None:
        return None
    try:
        return build_map_adversary(config.adversary_map, model).model
    except DphmmError as problem:
        raise ConfigurationError(f"adversary_map: {problem}") from None


class MapAdversary:
    """An adversary who knows the model and a map, and has all releases of a user.

    It filters the releases with the model that is weighted by the map. The probabilities are exact for this adversary,
    and the expected errors are lower bounds, see `dphmm.model.point_estimate.Inference.error_lower_bound`. Releases are
    replayed as by ``dphmm audit session``, in order and each once. A restart of the relay begins again.

    Call it in one thread at a time, not that of the sessions. It reads the store by its own connection.

    Parameters
    ----------
    store : str
        Store of the sessions.
    model : MarkovModel
        Model of the releases.
    map_model : MarkovModel
        Model of the adversary, see `build_map_model`.
    """

    def __init__(self, store: str, model: MarkovModel, map_model: MarkovModel) -> None:
        self._store = store
        self._model = model
        self._map_model = map_model
        self._tracks: BoundedCache[str, _Track] = BoundedCache(_MAX_USERS)
        # Not the engines of the sessions, which their thread uses at the same time.
        self._make_engine = lru_cache(_MAX_ENGINES)(self._build_engine)

    def infer(self, user: str, first: int) -> dict[str, Any]:
        """Continue the replay of a user's releases for a short time, and return its figures.

        Parameters
        ----------
        user : str
            The user.
        first : int
            Number of the first release of which the figures are returned.

        Returns
        -------
        dict
            ``first``; ``error_m`` and ``max_posterior`` of each replayed release from this one on, two lists;
            ``num_computed`` and ``num_releases``, the number of releases that were replayed and of all.

        Raises
        ------
        DphmmError
            If the releases cannot be replayed: the first ones were pruned, the session was rewound, or the releases are
            impossible under the model. See `replay_sequence`.
        """
        with SessionStore(self._store, readonly=True) as store:
            session = store.session(user)
            if session is None:
                return {"first": first, "error_m": [], "max_posterior": [], "num_computed": 0, "num_releases": 0}
            count = store.progress(session.number).count
            session = store.session(user)  # after the count, so that it has the terms of each of these releases
            assert session is not None, "sessions are never removed"
            track = self._tracks.get(user)
            if track is None or track.count > count:  # an older copy of the store was restored
                track = self._tracks.put(user, _Track())
            until = monotonic() + _MAX_CALL_S
            while track.count < count:  # at least one release, so that each call makes progress
                self._advance(track, store, session, min(count, track.count + _MAX_BLOCK), until)
                if monotonic() > until:
                    break
        return {
            "first": first,
            "error_m": [round(error, 1) for error in track.errors_m[first:]],
            "max_posterior": list(track.max_posteriors[first:]),
            "num_computed": track.count,
            "num_releases": count,
        }

    def _advance(self, track: _Track, store: SessionStore, session: StoredSession, last: int, until: float) -> None:
        """Replay further releases up to a number, a time, or an amendment of the terms."""
        num_pruned = store.first_record(session.number)
        if track.count < num_pruned:
            raise build_pruned_error(session.name, num_pruned)
        agreed = session.agreement_at(track.count)
        if track.agreed != agreed:
            track.engine = get_agreed_engine(session, agreed, None, self._make_engine)
            track.agreed = agreed
        last = min([last, *(other.first for other in session.agreements if other.first > track.count)])
        releases = list(store.releases(session.number, track.count, last))
        sequence = build_sequence(session.name, releases, last_slot=track.slot)
        assert track.engine is not None, "it was set with the terms"
        measurements = track.engine.measurements
        replays = replay_sequence(track.engine, sequence, track.belief, track.count)
        for release, replay in zip(releases, replays, strict=True):
            if track.map_belief is None or track.slot is None:
                prior = Belief.initial(self._map_model, release.slot)
            else:
                prior = track.map_belief.predict(self._map_model, release.slot - track.slot, track.slot)
            posterior = prior.update(replay.log_likelihood)
            inference = posterior.infer(measurements.by_columns, track.engine.cell)
            track.errors_m.append(1000 * inference.error_lower_bound)
            track.max_posteriors.append(inference.max_probability)
            track.belief = replay.posterior
            track.map_belief = posterior
            track.slot = release.slot
            if monotonic() > until:
                return

    def _build_engine(self, settings: ReleaseSettings) -> Releaser:
        return settings.engine(self._model)


class _Track:
    """The replay of a user's first releases: last beliefs, and the figures of each."""

    def __init__(self) -> None:
        self.errors_m = array("d")
        self.max_posteriors = array("d")
        self.belief: Belief | None = None
        self.map_belief: Belief | None = None
        self.slot: int | None = None
        self.agreed: Agreement | None = None
        self.engine: Releaser | None = None

    @property
    def count(self) -> int:
        """Number of releases that were replayed."""
        return len(self.errors_m)
