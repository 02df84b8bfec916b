"""What the verifier finds where the engine is broken on purpose: defects that it once had among readers, and more.

Each engine is broken in one place, its own last look is taken away, and what it releases is certified as if nothing
were wrong. Where a defect leaves no trace in a certificate, the verifier has to say that it did not look.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings, Schedule
from dphmm.certificate import CertificateWriter
from dphmm.events import Cap
from dphmm.geometry.hull import SensitivityHull
from dphmm.mechanisms.lattice import LatticeKNormMechanism
from dphmm.model.belief import Belief
from dphmm.release.soundness import SoundnessCheck
from dphmm.release.trajectory import place_on_earth
from dphmm.writers.formats import write_delimited
from dphmm.writers.table import ReleaseTable
from tests.certificate.certificates import certificate, refusal, town, verifier, verify, walked

PATH = [(0, 5_700_000), (1, 5_700_001), (7, 5_700_002), (8, 5_700_005)]
SETTINGS = ReleaseSettings("utility:1km", 1)


@pytest.fixture(autouse=True)
def no_last_look(monkeypatch):
    """The engine's own check would stop most of this before anything is drawn."""
    monkeypatch.setattr(SoundnessCheck, "__call__", lambda *_: None)


def test_an_engine_that_is_not_broken_is_verified():
    assert refusal(walked(SETTINGS.engine(town(), 1), PATH)) is None


# ---- one query -------------------------------------------------------------------------------------------------------


def test_noise_of_a_smaller_body_is_found(monkeypatch):
    whole = LatticeKNormMechanism.__init__

    def less(self: Any, hull: SensitivityHull, *rest: Any) -> None:
        whole(self, SensitivityHull(hull.vertices.astype(int) * 4 // 5), *rest)

    monkeypatch.setattr(LatticeKNormMechanism, "__init__", less)
    assert "a body is too small" in (refusal(walked(SETTINGS.engine(town(), 1), PATH)) or "")


def test_a_possible_state_that_underflows_is_found(monkeypatch):
    def support(belief: Belief) -> np.ndarray:
        found = belief.log_mass > -np.inf
        found[np.argmin(np.where(found, belief.log_mass, np.inf))] = False
        return found

    monkeypatch.setattr(Belief, "support", property(support))
    assert "a possible state is left out" in (refusal(walked(SETTINGS.engine(town(), 1), PATH)) or "")


@pytest.mark.parametrize(
    ("share", "cells", "reason"),
    [(1.0, 0.0, "the cells are not those"), (0.5, 1.0, "the radius is not that")],
    ids=["centres for places", "half the radius"],
)
def test_a_policy_that_joins_less_than_it_says_is_found(monkeypatch, share, cells, reason):
    """A promise about places that is kept for centres of cells, say, holds for real places at half the distance."""
    utility = PolicyGraph.utility
    monkeypatch.setattr(PolicyGraph, "utility", lambda f, radius, cell=0.0: utility(f, share * radius, cells * cell))
    assert reason in (refusal(walked(SETTINGS.engine(town(), 1), PATH)) or "")


def test_nothing_at_home_is_found(monkeypatch):
    """Withheld where the person is at home, and for no reason that the settings know."""
    engine = SETTINGS.engine(town(), 1)

    def draw(writer: CertificateWriter) -> None:
        for number, (state, slot) in enumerate(PATH):
            steps = slot - PATH[max(0, number - 1)][1]
            engine.person.first = PATH[0][1]
            at_home = engine.prepare_nothing(engine.prior(steps), steps, "budget")
            step = at_home if state == 7 else engine.prepare(None, steps)
            record = engine.draw(step, state)
            writer.add(step, record.released, slot)

    assert "nothing in the settings lets a release be withheld" in (refusal(certificate(engine, draw)) or "")


def test_budgets_chosen_by_the_true_place_are_not_found_and_that_is_said():
    engine = SETTINGS.engine(town(), 1)

    def draw(writer: CertificateWriter) -> None:
        last = PATH[0][1] - 1
        for state, slot in PATH:
            engine.person.first = PATH[0][1]
            record = engine.release(state, 0.5 if state == 7 else None, slot - last)
            writer.add(engine.last[1], record.released, slot)
            last = slot

    assert "that smaller budgets were chosen by public things alone" in verify(certificate(engine, draw))["not"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (ReleaseSettings("utility:1km", 1, schedule=Schedule(target_error=0.6)), "as the schedule says"),
        (ReleaseSettings("utility:1km", 1, delta=0.05), "what delta leaves out"),
        (ReleaseSettings("transition", 1), "the edges listed are those of the policy 'transition'"),
        (ReleaseSettings("utility:1km", 1, caps=(Cap("at:0 between 0 and 3", 0.9),)), "the caps on events are kept"),
    ],
    ids=["schedule", "delta", "edges of another text", "caps"],
)
def test_what_leaves_no_trace_is_said_not_to_be_verified(settings, said):
    path = PATH if not settings.caps else [(state, slot - PATH[0][1]) for state, slot in PATH]
    model = town()
    if settings.caps:
        model = MarkovModel(model.transition, model.initial, model.states)
    report = verify(walked(settings.engine(model, 1), path))
    assert any(said in one for one in report["not"])


# ---- several readers and queries -------------------------------------------------------------------------------------


def test_a_sum_that_counts_what_a_reader_was_not_told_is_found(tmp_path):
    """After a pause the reader's row says how much all releases cost, those of the pause among them."""
    model = town()
    engine = SETTINGS.engine(model, 7)
    made: list[Any] = []

    def draw(writer: CertificateWriter) -> None:
        engine.restart(first=5_700_000)
        for number, state in enumerate([0, 1, 7]):
            slot = 5_700_000 + number
            record = engine.release(state)
            if number != 1:  # a pause
                time = np.datetime64(slot * 300, "s").astype("datetime64[us]")
                made.append(place_on_earth("ann", time, record, model.space))
                writer.add(engine.last[1], record.released, slot)

    lines = certificate(engine, draw)
    write_delimited(tmp_path / "rows.csv", ReleaseTable.from_releases(made))
    found = refusal(lines, verifier().read_rows(str(tmp_path / "rows.csv")))
    assert "the row says epsilon_so_far '3.0', and not 2" in (found or "")


@pytest.mark.parametrize("together", [True, False])
def test_a_state_that_every_answer_hides_among_others_is_found(together):
    """Two answers, each repaired by itself: a state has a partner in each, and none in both."""
    model = MarkovModel(np.full((4, 4), 0.25), np.full(4, 0.25))
    policy = PolicyGraph.from_edges(4, [[2, 3]])
    first = Releaser(model, [[0, 0], [9, 0], [1, 0], [0, 1]], policy, 1.0, rng=1, spacing=1)
    other = first.beside([[0, 0], [0, 1], [9, 9], [8, 9]], spacing=1)

    def draw(writer: CertificateWriter) -> None:
        if together:
            ledger = first.release_together(0, other, epsilon=[1.0, 1.0])
            records = ledger.records
        else:
            records = (first.release(0), other.release(0, steps=1))
        for query, engine, record in zip(("main", "other"), (first, other), records, strict=True):
            writer.add(engine.last[1], record.released, 0, query)

    found = refusal(certificate({"main": first, "other": other}, draw))
    assert found is None if together else "among no other one in all of them" in (found or "")
