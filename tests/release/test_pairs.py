"""Features in pairs: what a session with two of them releases is what enumeration says, or opening it is refused.

The oracle knows the model as plain tables and filters over its chain, for every reader apart. It is told
records alone. From its own belief it asks for the plan of a release, holds the record against it, looks at every edge
and every possible state for what they promise, and takes the release in; the estimate must be that of its belief. Every
feature has a twin, an oracle that leaves it out, which must find a fault.
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
from dphmm.jobs import Targets, calibrate, stored_releases
from dphmm.model import Belief, TimeClasses
from dphmm.model.away import Away
from dphmm.release.session_terms import MAIN_QUERY
from dphmm.space import LocalProjection, Places
from tests.pairs import FEATURES, REFUSED, page

N, STEP, FIRST, EPSILON = 5, 3600.0, 470_000, 1.0
F = np.array([[0, 0], [2, 0], [0, 2], [6, 0], [8, 1]], dtype=float)
EAST = F * [1, 0] + [0, 1] * F[::-1]
PATH = (0, 1, 3, 3, 4, 3)
POLICY, OTHER = PolicyGraph.from_groups(N, [[0, 1, 2], [3, 4]]), PolicyGraph.from_groups(N, [[0, 1], [2, 3, 4]])
EVENT = FIRST, FIRST + 5
ODDS = 3.0
_PLANE = LocalProjection(45.0, 7.0)
PLACES = Places(list("abcde"), *_PLANE.to_latlon(F).T, projection=_PLANE)


class Tables:
    """A model as plain numbers: by class of time, where one starts and where one goes from each state of its chain."""

    def __init__(self, features):
        rng = np.random.default_rng(7)
        self.classes = None
        if "classes of time" in features:
            self.classes = TimeClasses(tuple(h % 3 for h in range(168)), STEP, "UTC")
        count = 3 if self.classes else 1

        away = Away(N, [2, 3], [2.0, 3.0], [5.0, 11.0], [0.3, 0.6]) if "people outside" in features else None
        self.last = np.arange(N) if away is None else away.last
        self.reach = np.zeros(N) if away is None else np.r_[np.zeros(N), away.reach]
        size = len(self.last)

        def rows(*shape):
            raw = rng.random(shape) ** 3 + 0.01
            return raw / raw.sum(axis=-1, keepdims=True)

        self.starts, self.moves = rows(count, N), rows(count, size, size)
        self.moves[:, 0, 4] = self.moves[:, 4, 0] = 0.0
        self.moves /= self.moves.sum(axis=-1, keepdims=True)
        matrices = [csr_array(one) for one in self.moves]
        starts = self.starts if self.classes else self.starts[0]
        self.model = MarkovModel(matrices if self.classes else matrices[0], starts, PLACES, STEP, self.classes, away)
        if away is not None:
            self.starts = np.array([away.begun(one) for one in self.starts])

    @property
    def cap(self):
        """A little above how probable the event is before anything is released."""
        return round(Known(self, FIRST).event() + 0.04, 4)

    def number(self, slot):
        return self.classes.class_of(slot) if self.classes else 0


class Known:
    """What a reader knows: the masses of the chain's states, and of whether the event has happened."""

    def __init__(self, tables, slot):
        self.tables, self.slot = tables, slot
        self.mass = np.zeros((2, len(tables.last)))  # happened, now
        self.mass[0] = tables.starts[tables.number(slot)]
        self.happen()

    def happen(self):
        if EVENT[0] <= self.slot <= EVENT[1]:
            self.mass[1, 3] += self.mass[0, 3]
            self.mass[0, 3] = 0.0

    def go(self, slot):
        while self.slot < slot:
            self.slot += 1
            self.mass = self.mass @ self.tables.moves[self.tables.number(self.slot)]
            self.happen()
        return self

    def told(self, logs):
        self.mass = self.mass * np.exp(logs - logs.max())[self.tables.last]
        self.mass /= self.mass.sum()

    def state(self):
        return np.bincount(self.tables.last, self.mass.sum(axis=0), N) / self.mass.sum()

    def radius(self, points):
        away = np.linalg.norm(points[self.tables.last] - self.state() @ points, axis=1) + self.tables.reach
        return self.mass.sum(axis=0) @ away / self.mass.sum()

    def event(self):
        later = Known.__new__(Known)
        later.tables, later.slot, later.mass = self.tables, self.slot, self.mass.copy()
        later.go(max(EVENT[1], self.slot))
        return float(later.mass[1].sum() / later.mass.sum())


def engine(features, tables, policy=POLICY, f=F, epsilon=EPSILON):
    return Releaser(tables.model, f, policy, epsilon, rng=3, **settings_of(features, tables))


def calibrated(features, tables, folder):
    """The largest budget that moves no odds by more than `ODDS`, under each of the policies."""
    found = []
    for policy in (POLICY, OTHER) if "zones changed" in features else (POLICY,):
        edges = [{"source": PLACES.names[i], "target": PLACES.names[j]} for i, j in policy.edge_array().tolist()]
        graph = {"nodes": [{"id": name} for name in PLACES.names], "edges": edges}
        (folder / "policy.json").write_text(json.dumps(graph))
        settings = ReleaseSettings(f"graph:{folder}/policy.json", EPSILON, **settings_of(features, tables))
        found.append(calibrate(tables.model, settings, Targets(odds=ODDS), people=0, first=FIRST).settings.epsilon)
        (folder / "policy.json").unlink()
    return min(found)


def settings_of(features, tables):
    settings = {"spacing": 1}
    if "tables" in features:
        settings["mechanism"] = "graph-exponential"
    if "components" in features:
        settings["calibration"] = "component"
    if "delta" in features:
        settings["delta"] = 0.1
    if "schedule" in features:
        settings["schedule"] = Schedule(target_error=2.0)
    if "caps" in features:
        settings["caps"] = (Cap(Presence([3], 0, 5), tables.cap),)
    return settings


def run(features, folder):
    """Release the path under some features: the releases, what is said to a reader who was paused, when what began."""
    tables, path = Tables(features), folder / "a.session"
    epsilon = calibrated(features, tables, folder) if "calibrate" in features else EPSILON
    slots = [FIRST + t + (40 if "gaps" in features and t > 2 else 0) for t in range(len(PATH))]

    def opened(policy, anew=None):
        made = engine(features, tables, policy, F, epsilon)
        if "several queries" in features:
            made = {"a": made, "b": engine(features, tables, policy, EAST, epsilon)}
        told = "b" if isinstance(made, dict) else MAIN_QUERY
        listeners = (lambda *_: {"late": told} if listening else {}) if "pauses" in features else None
        return Session.open(path, "ann", made, anew=anew, listeners=listeners)

    listening, policy, said = False, POLICY, {}
    session = opened(policy)
    for t, (slot, state) in enumerate(zip(slots, PATH, strict=True)):
        listening = t not in (0, 1, 2)
        if "restarts" in features:
            session.close()
            session = opened(policy)
        if "zones changed" in features and t == 3:
            session.close()
            policy = OTHER
            session = opened(policy, anew="drawn")
        if "omitted moments" in features and t == 2:
            session.omit(slot)
        elif "several queries" in features:
            session.release(state, slot, query="a")
            session.release(state, slot, query="b")
        else:
            session.release(state, slot)
    stored = session.releases()
    for number in range(len(stored)):
        text = session._store.said(session.number, number, "late")
        if text is not None:
            said[number] = text
    agreed = [session.agreed_at(number).first for number in range(len(stored))]
    session.close()
    if "audit" in features and "several queries" in features:
        list(stored_releases._from_store(path, tables.model, None, ()))
    return tables, stored, said, agreed


class Fault(AssertionError):
    """What the oracle holds against a release."""


def hold(claim, what):
    if not claim:
        raise Fault(what)


def examine(features, found, known=None):
    """Hold releases against enumeration, by an oracle that knows of some features (all, unless it is a twin)."""
    known = features if known is None else known
    _, stored, said, agreed = found
    tables = Tables(known)
    engines = {}

    def engine_of(number, query):
        policy = OTHER if agreed[number] and "zones changed" in known else POLICY
        key = id(policy), query
        if key not in engines:
            made = engine(known, tables, policy, EAST if query == "b" and "several queries" in known else F)
            made.restart(FIRST)
            engines[key] = made
        return engines[key]

    reader, late = Known(tables, stored[0].slot), Known(tables, stored[0].slot)
    told_late = "b" if stored[0].query == "a" else MAIN_QUERY
    slot, moved = None, 0.0
    for number, release in enumerate(stored):
        if release.slot != slot:
            slot, moved = release.slot, 0.0
        record = release.record
        one = engine_of(number, release.query)
        if "gaps" not in known and release.slot - reader.slot > 2:
            reader.slot = release.slot - 1
        reader.go(release.slot)
        prior = Belief.of(reader.state())
        if record.released is None:
            hold({"schedule", "caps"} & set(known), "nothing was drawn")
            logs = np.zeros(N)
        else:
            plan = one.plan(prior)
            step = one.prepare_on(prior, plan, record.epsilon)
            hold(record.possible == plan.possible, "the number of possible states")
            hold(np.isclose(record.expected_error, step.noise.expected_error(prior)), "the noise of the record")
            promise(one, step, record)
            logs = one.log_likelihood(step, record.released)
            moved += np.ptp(logs[plan.constraint])
            limit = np.log(ODDS) * (2 if "several queries" in known else 1)
            hold("calibrate" not in known or moved <= limit * (1 + 1e-9), "the odds move further")
        reader.told(logs)
        if release.slot >= FIRST + 3 and release.query == told_late:
            late.go(release.slot).told(logs)
            if number in said:
                hold("pauses" in known, "something is said to one who is not there")
                estimate = json.loads(said[number])["estimate"]
                hold(np.allclose(estimate, late.state() @ one.measurements.points), "the estimate after the pause")
        own = reader.state() @ one.measurements.points
        hold(np.allclose(record.estimate, own), f"the estimate of release {number + 1}")
        hold(np.isclose(record.estimate_radius, reader.radius(one.measurements.points)), "the radius")
        if "caps" in known:
            hold(reader.event() <= tables.cap + 1e-9, "the cap")
    if "pauses" in features:
        hold("pauses" in known and len(said) > 0, "no one was paused")
    if "audit" in known:
        audited(stored, [engine_of(number, one.query) for number, one in enumerate(stored)], reader.state())


def audited(stored, engines, expected):
    """The audit of the releases is of a reader who knows what the oracle knows."""
    slots = np.array([one.slot for one in stored])
    sequence = ReleasedSequence(
        "ann",
        np.array([one.record.released or (0.0, 0.0) for one in stored]),
        np.array([one.record.epsilon for one in stored]),
        np.diff(slots, prepend=slots[0]),
        np.array([one.record.possible for one in stored]),
        np.array([one.record.constrained_factor for one in stored]),
        first=int(slots[0]),
        engines={number: one for number, one in enumerate(engines) if number and one is not engines[number - 1]},
    )
    replays = list(replay_sequence(engines[0].another(), sequence))
    hold(np.allclose(replays[-1].posterior.probabilities, expected), "the audit")


def promise(one, step, record):
    """Every edge costs its epsilon at most, and every possible state has another one it is hidden among."""
    plan, noise = step.plan, step.noise
    if plan.is_known:
        return
    possible = np.flatnonzero(plan.constraint)
    loss = np.full((N, N), np.inf)
    for i, j in itertools.permutations(possible.tolist(), 2):
        if noise.part_of[i] == noise.part_of[j]:
            loss[i, j] = noise.at(i).privacy_loss(one.values[i], one.values[j])
    limit = record.epsilon * (1 + 1e-9)
    for i, j in [*one.policy.edge_array().tolist(), *record.added]:
        if i in possible and j in possible:
            hold(loss[i, j] <= limit, f"the edge {i}-{j}")
    hold((loss[possible].min(axis=1) <= limit).all(), "a state that is hidden among no other")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return {one: run({one}, tmp_path_factory.mktemp("alone")) for one in FEATURES}


def name_of(pair):
    return " & ".join(pair)


PAIRS = list(itertools.combinations(FEATURES, 2))


@pytest.mark.parametrize("pair", PAIRS, ids=map(name_of, PAIRS))
def test_two_features_together_release_what_enumeration_says_or_are_refused(pair, tmp_path):
    refused = REFUSED.get(frozenset(pair))
    if refused:
        with pytest.raises(DphmmError, match=refused):
            run(set(pair), tmp_path)
        return
    examine(set(pair), run(set(pair), tmp_path))


@pytest.mark.parametrize("feature", FEATURES)
def test_an_oracle_that_leaves_a_feature_out_finds_a_fault(feature, alone, tmp_path):
    examine({feature}, alone[feature])
    if feature in ("caps", "calibrate"):  # which releases without them pass
        with pytest.raises(Fault, match=r"the cap|the odds move further"):
            examine({feature}, run(set(), tmp_path))
    elif feature not in ("restarts", "omitted moments", "audit"):  # of which nobody can see anything
        with pytest.raises((Fault, DphmmError, KeyError)):
            examine({feature}, alone[feature], known=set())


def test_the_page_of_the_documentation_says_so_of_every_pair():
    assert page() == Path("docs/reference/together.md").read_text(encoding="utf-8")
