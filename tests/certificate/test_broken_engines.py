"""The verifier against engines that are broken on purpose.

Each engine is broken in one place, its own soundness check is disabled, and its releases are certified as if they
were valid. If a defect leaves no trace in a certificate, the verifier must list it as not verified.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings, Schedule
from dphmm.certificate import CertificateWriter
from dphmm.geometry.sensitivity_hull import SensitivityHull
from dphmm.mechanisms.lattice import LatticeKNormMechanism
from dphmm.model.belief import Belief
from dphmm.release.soundness import SoundnessCheck
from dphmm.release.trajectory_release import locate_release
from dphmm.writers.formats import write_delimited
from dphmm.writers.release_table import ReleaseTable
from tests.certificate.certificates import (
    build_certificate,
    build_town,
    certify_path,
    encode,
    find_refusal,
    load_verifier,
    verify,
)

PATH = [(0, 5_700_000), (1, 5_700_001), (7, 5_700_002), (8, 5_700_005)]
SETTINGS = ReleaseSettings("utility:1km", 1)


@pytest.fixture(autouse=True)
def disable_soundness_check(monkeypatch):
    """The engine's own check would stop most defects before a draw."""
    monkeypatch.setattr(SoundnessCheck, "__call__", lambda *_: None)


@pytest.mark.slow
def test_correct_engine_is_verified():
    assert find_refusal(certify_path(SETTINGS.engine(build_town(), 1), PATH)) is None


# ---- one query -------------------------------------------------------------------------------------------------------


def test_too_small_noise_body_is_rejected(monkeypatch):
    whole = LatticeKNormMechanism.__init__

    def shrink_hull(self: Any, hull: SensitivityHull, *rest: Any) -> None:
        whole(self, SensitivityHull(hull.vertices.astype(int) * 4 // 5), *rest)

    monkeypatch.setattr(LatticeKNormMechanism, "__init__", shrink_hull)
    assert "a body is too small" in (find_refusal(certify_path(SETTINGS.engine(build_town(), 1), PATH)) or "")


def test_missing_possible_state_is_rejected(monkeypatch):
    def omit_least_likely_state(belief: Belief) -> np.ndarray:
        support_mask = belief.log_mass > -np.inf
        support_mask[np.argmin(np.where(support_mask, belief.log_mass, np.inf))] = False
        return support_mask

    monkeypatch.setattr(Belief, "support", property(omit_least_likely_state))
    assert "a possible state is omitted" in (find_refusal(certify_path(SETTINGS.engine(build_town(), 1), PATH)) or "")


@pytest.mark.parametrize(
    ("share", "cells", "reason"),
    [(1.0, 0.0, "the cells must be those of the settings"), (0.5, 1.0, "the radius must be that of the settings")],
    ids=["centres instead of places", "half the radius"],
)
def test_policy_weaker_than_stated_is_rejected(monkeypatch, share, cells, reason):
    """A radius that is applied to cell centres covers fewer places than stated."""
    utility = PolicyGraph.utility
    monkeypatch.setattr(PolicyGraph, "utility", lambda f, radius, cell=0.0: utility(f, share * radius, cells * cell))
    assert reason in (find_refusal(certify_path(SETTINGS.engine(build_town(), 1), PATH)) or "")


def test_release_withheld_by_true_state_is_rejected(monkeypatch):
    """Withhold the release at home, for no reason in the settings."""
    engine = SETTINGS.engine(build_town(), 1)

    def draw(writer: CertificateWriter) -> None:
        for number, (state, slot) in enumerate(PATH):
            steps = slot - PATH[max(0, number - 1)][1]
            engine.filter_state.first = PATH[0][1]
            at_home = engine.build_plan(engine.predict(steps), 0.0, steps, "budget")
            step = at_home if state == 7 else engine.prepare(None, steps)
            record = engine.draw(step, state)
            writer.add(step, record.released, slot)

    assert "the settings do not allow to withhold a release for that reason" in (
        find_refusal(build_certificate(engine, draw)) or ""
    )


def test_budgets_chosen_by_true_state_are_listed_as_not_verified():
    engine = SETTINGS.engine(build_town(), 1)

    def draw(writer: CertificateWriter) -> None:
        last = PATH[0][1] - 1
        for state, slot in PATH:
            engine.filter_state.first = PATH[0][1]
            record = engine.release(state, 0.5 if state == 7 else None, slot - last)
            writer.add(engine.last[1], record.released, slot)
            last = slot

    assert (
        "that smaller budgets were chosen from public information only"
        in verify(build_certificate(engine, draw))["not"]
    )


@pytest.mark.parametrize(
    ("settings", "statement"),
    [
        (ReleaseSettings("utility:1km", 1, schedule=Schedule(target_error=0.6)), "follow from the schedule"),
        (ReleaseSettings("utility:1km", 1, delta=0.05), "the states omitted with delta"),
        (ReleaseSettings("transition", 1), "the edges listed are those of the policy 'transition'"),
    ],
    ids=["schedule", "delta", "edges of another text"],
)
def test_unverifiable_settings_are_listed_as_not_verified(settings, statement):
    report = verify(certify_path(settings.engine(build_town(), 1), PATH))
    assert any(statement in limitation for limitation in report["not"])


def test_constraint_sets_that_delta_reduces_are_not_called_large_enough():
    """The settings state 1e-9, and the verifier does not know the mass of what they omit."""
    lines = certify_path(ReleaseSettings("utility:1km", 1, delta=0.3).engine(build_town(), 1), PATH)
    for line in lines:
        for query in line.get("queries", []):
            query["settings"] = query["settings"].replace('"delta": 0.3', '"delta": 1e-09')
            assert "1e-09" in query["settings"]
    yes, no = load_verifier().describe_releases(lambda: encode(lines), None, {"--fast": True}, None)
    assert not any("none is too small" in statement for statement in yes)
    assert "that the states omitted with delta have at most that mass" in no


# ---- several recipients and queries ----------------------------------------------------------------------------------


def test_total_of_unreleased_rows_is_rejected(tmp_path):
    """After a pause the recipient's row contains the cost of all releases.

    The cost includes the releases of the pause.
    """
    model = build_town()
    engine = SETTINGS.engine(model, 7)
    releases: list[Any] = []

    def draw(writer: CertificateWriter) -> None:
        engine.restart(first=5_700_000)
        for number, state in enumerate([0, 1, 7]):
            slot = 5_700_000 + number
            record = engine.release(state)
            if number != 1:  # a pause
                time = np.datetime64(slot * 300, "s").astype("datetime64[us]")
                releases.append(locate_release("ann", time, record, model.space))
                writer.add(engine.last[1], record.released, slot)

    lines = build_certificate(engine, draw)
    write_delimited(tmp_path / "rows.csv", ReleaseTable.from_releases(releases))
    reason = find_refusal(lines, load_verifier().read_rows(str(tmp_path / "rows.csv")))
    assert "the row has epsilon_total '3.0', expected '2.0'" in (reason or "")


@pytest.mark.parametrize("together", [True, False])
def test_state_exposed_by_separate_repairs_is_rejected(together):
    """Two answers, repaired separately: a state has a partner in each, but none in both."""
    model = MarkovModel(np.full((4, 4), 0.25), np.full(4, 0.25))
    policy = PolicyGraph.from_edges(4, [[2, 3]])
    first = Releaser(model, [[0, 0], [9, 0], [1, 0], [0, 1]], policy, 1.0, rng=1, spacing=1)
    other = first.for_query([[0, 0], [0, 1], [9, 9], [8, 9]], spacing=1)

    def draw(writer: CertificateWriter) -> None:
        if together:
            ledger = first.release_together(0, other, epsilon=[1.0, 1.0])
            records = ledger.records
        else:
            records = (first.release(0), other.release(0, steps=1))
        for query, engine, record in zip(("main", "other"), (first, other), records, strict=True):
            writer.add(engine.last[1], record.released, 0, query)

    reason = find_refusal(build_certificate({"main": first, "other": other}, draw))
    assert (
        reason is None
        if together
        else "has a partner in each release of the timestep, but none in all of them" in (reason or "")
    )
