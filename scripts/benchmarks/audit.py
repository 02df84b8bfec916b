"""Inference compared with hmmlearn, the audit of a policy, and the empirical audit.

The empirical audit is compared with its sampling alone.
"""

from __future__ import annotations

import argparse
from functools import partial
from importlib.util import find_spec

import numpy as np

from dphmm import KNormMechanism, LaplaceMechanism, MarkovModel, PolicyGraph, SensitivityHull
from dphmm.audit.empirical_epsilon import audit_pair
from dphmm.audit.policy import audit_constraints
from dphmm.model import Observations, filter_releases, find_release_path, smooth_releases
from scripts.benchmarks.report import Report, time_once
from scripts.benchmarks.town import CELL_KM, RADIUS_KM, build_model, make_points, sample_path


def run(report: Report, _: argparse.Namespace) -> None:
    time_inference(report, 10 if report.small else 25, 40, against_hmmlearn=True)
    if not report.small:
        time_inference(report, 100, 100, against_hmmlearn=False)
    time_policy_audit(report, *((20, 10) if report.small else (100, 100)))
    time_empirical_audit(report, 10_000 if report.small else 1_000_000)


def time_inference(report: Report, height: int, width: int, against_hmmlearn: bool) -> None:
    """Time inference on a walk that is released by the K-norm mechanism of a square."""
    rng, length = np.random.default_rng(5), 100 if report.small else 1_000
    moves = build_model(height, width, rng)
    places = make_points(height, width) / CELL_KM
    mechanism = KNormMechanism(SensitivityHull([[2, 0], [0, 2]]), 1.0)
    released = mechanism.sample(places[sample_path(moves, length, rng)], rng)
    observed = Observations(np.array([mechanism.log_density(output, places) for output in released]))

    def run_own_functions() -> None:
        posteriors = filter_releases(moves, observed)
        smooth_releases(moves, observed, posteriors)
        find_release_path(moves, observed)

    beside = {}
    if against_hmmlearn and find_spec("hmmlearn"):
        forms = ("scaling", "log")
        beside = {f"hmmlearn, dense, {form}": partial(run_hmmlearn, moves, observed, form) for form in forms}
    elif against_hmmlearn:
        report.skip("hmmlearn", "not installed")
    report.time(f"filter, smoother and path, {moves.size:,} states, {length:,} releases", run_own_functions, beside)


def run_hmmlearn(moves: MarkovModel, observed: Observations, form: str) -> None:
    """Call the functions of hmmlearn's classes: forward, backward, posteriors, Viterbi."""
    from hmmlearn import _hmmc

    start, matrix = moves.initial, moves.transition.toarray()
    rows = np.array(observed.log_likelihood)
    if form == "scaling":
        likelihood = np.exp(rows - rows.max(axis=1, keepdims=True))
        _, forward, scale = _hmmc.forward_scaling(start, matrix, likelihood)
        gamma = forward * _hmmc.backward_scaling(start, matrix, likelihood, scale)
        gamma /= gamma.sum(axis=1, keepdims=True)
    else:
        _, forward = _hmmc.forward_log(start, matrix, rows)
        gamma = forward + _hmmc.backward_log(start, matrix, rows)
        gamma -= np.logaddexp.reduce(gamma, axis=1, keepdims=True)
    _hmmc.viterbi(start, matrix, rows)


def time_policy_audit(report: Report, side: int, count: int) -> None:
    """Time the audit of a utility policy under random constraint sets within discs."""
    rng, places = np.random.default_rng(0), make_points(side, side)
    graph = PolicyGraph.utility(places, RADIUS_KM)

    def sample_constraint() -> np.ndarray:
        near = np.linalg.norm(places - rng.uniform(0, CELL_KM * side, 2), axis=1) < rng.uniform(2, 25)
        kept = near & (rng.random(side * side) < rng.uniform(0.05, 1))
        return kept if kept.any() else np.ones(side * side, dtype=bool)

    sets = [sample_constraint() for _ in range(count)]
    audits: list = []
    taken = time_once(lambda: audits.extend(audit_constraints(graph, places, sets)))
    exposing = sum(audit.is_exposed for audit in audits)
    what = f"policy audit, {side * side:,} states, {count} constraints"
    report.row(f"{what} ({exposing} expose a state)", taken, "s")


def time_empirical_audit(report: Report, samples: int) -> None:
    """Time the empirical audit of one pair of states. Samples of both are counted."""
    hull = SensitivityHull([[4, 1], [3, 0], [1, -1]])
    for name, mechanism in (("k-norm", KNormMechanism(hull, 1.0)), ("laplace", LaplaceMechanism(5.0, 1.0, 2))):
        whole = partial(audit_pair, mechanism, [0, 1], [4, 2], 1.0, samples, rng=1)
        floor = partial(mechanism.sample, [0, 1], 1, 2 * samples)
        beside = {"sampling alone": (floor, 2 * samples)}
        report.rate(f"empirical audit, {name}", whole, 2 * samples, "samples", beside)
