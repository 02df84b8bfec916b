"""Pairs of features: sessions release what enumeration gives, or opening them raises.

The oracle keeps the model as plain tables and filters over its chain for every adversary separately. It receives
records only. From its own belief it requests the plan of a release and compares the record with it. It checks the
guarantee of every edge and every possible state, and conditions on the release. The published estimate must be that
of its belief. Every feature has a broken oracle without the feature, which must find a fault.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings, Schedule, Session
from dphmm.audit.sequence import ReleasedSequence, replay_sequence
from dphmm.errors import DphmmError
from dphmm.events import Cap, Presence
from dphmm.jobs import CalibrationTargets, calibrate
from dphmm.jobs.release.stored import _from_store
from dphmm.model import Belief, TimeClasses
from dphmm.model.outside_states import OutsideStates
from dphmm.release.session_terms import MAIN_QUERY
from dphmm.space import LocalProjection, Places
from tests.pairs import FEATURES, REFUSED, build_page

N = 5
STEP = 3600.0
FIRST = 470_000
EPSILON = 1.0
F = np.array([[0, 0], [2, 0], [0, 2], [6, 0], [8, 1]], dtype=float)
EAST = F * [1, 0] + [0, 1] * F[::-1]
PATH = (0, 1, 3, 3, 4, 3)
POLICY = PolicyGraph.from_groups(N, [[0, 1, 2], [3, 4]])
OTHER = PolicyGraph.from_groups(N, [[0, 1], [2, 3, 4]])
EVENT = FIRST, FIRST + 5
ODDS = 3.0
_PLANE = LocalProjection(45.0, 7.0)
PLACES = Places(list("abcde"), *_PLANE.to_latlon(F).T, projection=_PLANE)


class Tables:
    """A model as plain numbers by time class: initial distributions and transition matrices."""

    def __init__(self, features):
        rng = np.random.default_rng(7)
        self.classes = None
        if "classes of time" in features:
            self.classes = TimeClasses(tuple(h % 3 for h in range(168)), STEP, "UTC")
        count = 3 if self.classes else 1

        away = OutsideStates(N, [2, 3], [2.0, 3.0], [5.0, 11.0], [0.3, 0.6]) if "outside states" in features else None
        self.last = np.arange(N) if away is None else away.state_of_context
        self.reach = np.zeros(N) if away is None else np.r_[np.zeros(N), away.mean_distances]
        size = len(self.last)

        def sample_rows(*shape):
            raw = rng.random(shape) ** 3 + 0.01
            return raw / raw.sum(axis=-1, keepdims=True)

        self.starts, self.moves = sample_rows(count, N), sample_rows(count, size, size)
        self.moves[:, 0, 4] = self.moves[:, 4, 0] = 0.0
        self.moves /= self.moves.sum(axis=-1, keepdims=True)
        matrices = [csr_array(matrix) for matrix in self.moves]
        starts = self.starts if self.classes else self.starts[0]
        self.model = MarkovModel(matrices if self.classes else matrices[0], starts, PLACES, STEP, self.classes, away)
        if away is not None:
            self.starts = np.array([away.split_initial(initial) for initial in self.starts])

    @property
    def cap(self):
        """The cap: slightly above the probability of the event before any release."""
        return round(OracleBelief(self, FIRST).event() + 0.04, 4)

    def number(self, slot):
        return self.classes.get_class(slot) if self.classes else 0


class OracleBelief:
    """The belief of an adversary: masses of the chain's states and of the event."""

    def __init__(self, tables, slot):
        self.tables, self.slot = tables, slot
        self.mass = np.zeros((2, len(tables.last)))  # happened, now
        self.mass[0] = tables.starts[tables.number(slot)]
        self.happen()

    def happen(self):
        if EVENT[0] <= self.slot <= EVENT[1]:
            self.mass[1, 3] += self.mass[0, 3]
            self.mass[0, 3] = 0.0

    def advance(self, slot):
        while self.slot < slot:
            self.slot += 1
            self.mass = self.mass @ self.tables.moves[self.tables.number(self.slot)]
            self.happen()
        return self

    def condition(self, logs):
        self.mass = self.mass * np.exp(logs - logs.max())[self.tables.last]
        self.mass /= self.mass.sum()

    def state(self):
        return np.bincount(self.tables.last, self.mass.sum(axis=0), N) / self.mass.sum()

    def radius(self, points):
        away = np.linalg.norm(points[self.tables.last] - self.state() @ points, axis=1) + self.tables.reach
        return self.mass.sum(axis=0) @ away / self.mass.sum()

    def event(self):
        later = OracleBelief.__new__(OracleBelief)
        later.tables = self.tables
        later.slot = self.slot
        later.mass = self.mass.copy()
        later.advance(max(EVENT[1], self.slot))
        return float(later.mass[1].sum() / later.mass.sum())


def make_engine(features, tables, policy=POLICY, f=F, epsilon=EPSILON):
    return Releaser(tables.model, f, policy, epsilon, rng=3, **build_settings(features, tables))


def calibrate_budget(features, tables, folder):
    """Return the largest budget that bounds all odds ratios by `ODDS` under each policy."""
    epsilons = []
    for policy in (POLICY, OTHER) if "zones changed" in features else (POLICY,):
        edges = [{"source": PLACES.names[i], "target": PLACES.names[j]} for i, j in policy.edge_array().tolist()]
        graph = {"nodes": [{"id": name} for name in PLACES.names], "edges": edges}
        (folder / "policy.json").write_text(json.dumps(graph))
        settings = ReleaseSettings(f"graph:{folder}/policy.json", EPSILON, **build_settings(features, tables))
        epsilons.append(
            calibrate(
                tables.model, settings, CalibrationTargets(max_odds_ratio=ODDS), num_users=0, first=FIRST
            ).settings.epsilon
        )
        (folder / "policy.json").unlink()
    return min(epsilons)


def build_settings(features, tables):
    settings = {"spacing": 1}
    if "tables" in features:
        settings["mechanism"] = "graph-exponential"
    if "components" in features:
        settings["noise_scope"] = "component"
    if "delta" in features:
        settings["delta"] = 0.1
    if "schedule" in features:
        settings["schedule"] = Schedule(target_error=2.0)
    if "caps" in features:
        settings["caps"] = (Cap(Presence([3], 0, 5), tables.cap),)
    return settings


def run(features, folder):
    """Release the path with some features.

    Returns the tables, the stored releases, the answers to a paused recipient and the first slot of the terms of each
    release.
    """
    tables, path = Tables(features), folder / "a.session"
    epsilon = calibrate_budget(features, tables, folder) if "calibrate" in features else EPSILON
    slots = [FIRST + t + (40 if "gaps" in features and t > 2 else 0) for t in range(len(PATH))]

    def open_session(policy, anew=None):
        engines_by_query = make_engine(features, tables, policy, F, epsilon)
        if "several queries" in features:
            engines_by_query = {"a": engines_by_query, "b": make_engine(features, tables, policy, EAST, epsilon)}
        query = "b" if isinstance(engines_by_query, dict) else MAIN_QUERY
        listeners = (lambda *_: {"late": query} if listening else {}) if "pauses" in features else None
        return Session.open(path, "ann", engines_by_query, amendment_note=anew, find_partial_recipients=listeners)

    listening = False
    policy = POLICY
    answers = {}
    session = open_session(policy)
    for t, (slot, state) in enumerate(zip(slots, PATH, strict=True)):
        listening = t not in (0, 1, 2)
        if "restarts" in features:
            session.close()
            session = open_session(policy)
        if "zones changed" in features and t == 3:
            session.close()
            policy = OTHER
            session = open_session(policy, anew="drawn")
        if "omitted timesteps" in features and t == 2:
            session.omit(slot)
        elif "several queries" in features:
            session.release(state, slot, query="a")
            session.release(state, slot, query="b")
        else:
            session.release(state, slot)
    stored = session.releases()
    for number in range(len(stored)):
        text = session._store.partial_message(session.number, number, "late")
        if text is not None:
            answers[number] = text
    agreed = [session.agreement_at(number).first for number in range(len(stored))]
    session.close()
    if "audit" in features and "several queries" in features:
        list(_from_store(path, tables.model, None, ()))
    return tables, stored, answers, agreed


class Fault(AssertionError):
    """A contradiction between the oracle and a release."""


def require(claim, what):
    if not claim:
        raise Fault(what)


def examine(features, run_result, used_features=None):
    """Compare releases with enumeration by an oracle that uses some features (default: all)."""
    used_features = features if used_features is None else used_features
    _, stored, answers, agreed = run_result
    tables = Tables(used_features)
    engines = {}

    def build_engine(number, query):
        policy = OTHER if agreed[number] and "zones changed" in used_features else POLICY
        key = id(policy), query
        if key not in engines:
            new_engine = make_engine(
                used_features, tables, policy, EAST if query == "b" and "several queries" in used_features else F
            )
            new_engine.restart(FIRST)
            engines[key] = new_engine
        return engines[key]

    adversary, late = OracleBelief(tables, stored[0].slot), OracleBelief(tables, stored[0].slot)
    late_query = "b" if stored[0].query == "a" else MAIN_QUERY
    slot, moved = None, 0.0
    for number, release in enumerate(stored):
        if release.slot != slot:
            slot, moved = release.slot, 0.0
        record = release.record
        release_engine = build_engine(number, release.query)
        if "gaps" not in used_features and release.slot - adversary.slot > 2:
            adversary.slot = release.slot - 1
        adversary.advance(release.slot)
        prior = Belief.from_probabilities(adversary.state())
        if record.released is None:
            require({"schedule", "caps"} & set(used_features), "nothing was drawn")
            logs = np.zeros(N)
        else:
            step = release_engine.build_plan(prior, record.epsilon)
            require(record.num_possible_states == step.num_possible, "the number of possible states")
            require(np.isclose(record.expected_error, step.noise.expected_error(prior)), "the noise of the record")
            check_guarantee(release_engine, step, record)
            logs = release_engine.log_likelihood(step, record.released)
            moved += np.ptp(logs[step.constraint])
            limit = np.log(ODDS) * (2 if "several queries" in used_features else 1)
            require("calibrate" not in used_features or moved <= limit * (1 + 1e-9), "the odds move further")
        adversary.condition(logs)
        if release.slot >= FIRST + 3 and release.query == late_query:
            late.advance(release.slot).condition(logs)
            if number in answers:
                require("pauses" in used_features, "a paused recipient has an answer")
                estimate = json.loads(answers[number])["estimate"]
                require(
                    np.allclose(estimate, late.state() @ release_engine.measurements.points),
                    "the estimate after the pause",
                )
        mean = adversary.state() @ release_engine.measurements.points
        require(np.allclose(record.estimate, mean), f"the estimate of release {number + 1}")
        require(
            np.isclose(record.expected_estimate_error, adversary.radius(release_engine.measurements.points)),
            "the radius",
        )
        if "caps" in used_features:
            require(adversary.event() <= tables.cap + 1e-9, "the cap")
    if "pauses" in features:
        require("pauses" in used_features and len(answers) > 0, "no recipient was paused")
    if "audit" in used_features:
        check_audit(
            stored,
            [build_engine(number, stored_release.query) for number, stored_release in enumerate(stored)],
            adversary.state(),
        )


def check_audit(stored, engines, expected):
    """Require that the audit of the releases has the oracle's final belief."""
    slots = np.array([release.slot for release in stored])
    sequence = ReleasedSequence(
        "ann",
        np.array([release.record.released or (0.0, 0.0) for release in stored]),
        np.array([release.record.epsilon for release in stored]),
        np.diff(slots, prepend=slots[0]),
        np.array([release.record.num_possible_states for release in stored]),
        np.array([release.record.constrained_dp_factor for release in stored]),
        first_slot=int(slots[0]),
        engines={
            number: release_engine
            for number, release_engine in enumerate(engines)
            if number and release_engine is not engines[number - 1]
        },
    )
    replays = list(replay_sequence(engines[0].spawn(), sequence))
    require(np.allclose(replays[-1].posterior.probabilities, expected), "the audit")


def check_guarantee(release_engine, plan, record):
    """Require the privacy loss of every edge, and a partner for every possible state."""
    noise = plan.noise
    if plan.is_singleton:
        return
    possible = np.flatnonzero(plan.constraint)
    loss = np.full((N, N), np.inf)
    for i, j in itertools.permutations(possible.tolist(), 2):
        if noise.part_of[i] == noise.part_of[j]:
            loss[i, j] = noise.get_mechanism(i).privacy_loss(
                release_engine.query.values[i], release_engine.query.values[j]
            )
    limit = record.epsilon * (1 + 1e-9)
    for i, j in [*release_engine.policy.edge_array().tolist(), *record.added_edges]:
        if i in possible and j in possible:
            require(loss[i, j] <= limit, f"the edge {i}-{j}")
    require((loss[possible].min(axis=1) <= limit).all(), "a state that is hidden among no other")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return {feature: run({feature}, tmp_path_factory.mktemp("alone")) for feature in FEATURES}


def get_pair_name(pair):
    return " & ".join(pair)


PAIRS = list(itertools.combinations(FEATURES, 2))


@pytest.mark.parametrize("pair", PAIRS, ids=map(get_pair_name, PAIRS))
def test_feature_pair_matches_enumeration_or_raises(pair, tmp_path):
    refused = REFUSED.get(frozenset(pair))
    if refused:
        with pytest.raises(DphmmError, match=refused):
            run(set(pair), tmp_path)
        return
    examine(set(pair), run(set(pair), tmp_path))


@pytest.mark.parametrize("feature", ["components", "tables"])
def test_calibration_under_policy_that_connects_all_states_is_allowed(feature, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "POLICY", PolicyGraph.from_groups(N, [range(N)]))
    pair = {feature, "calibrate"}
    examine(pair, run(pair, tmp_path))


@pytest.mark.parametrize("feature", FEATURES)
def test_oracle_without_feature_finds_fault(feature, alone, tmp_path):
    examine({feature}, alone[feature])
    if feature in ("caps", "calibrate"):  # releases without these features violate the cap or the limit
        with pytest.raises(Fault, match=r"the cap|the odds move further"):
            examine({feature}, run(set(), tmp_path))
    elif feature not in ("restarts", "omitted timesteps", "audit"):  # these features have no visible effect
        with pytest.raises((Fault, DphmmError, KeyError)):
            examine({feature}, alone[feature], used_features=set())


def test_documentation_page_lists_every_pair():
    assert build_page() == Path("docs/reference/together.md").read_text(encoding="utf-8")
