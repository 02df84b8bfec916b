"""Figures 7 to 15 of the DPHMM paper.

They show the running example (7 to 9), the evaluation (10 to 13), Blowfish (14) and an attack (15).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.audit.blowfish import BlowfishPolicy, SecretsAudit, audit_blowfish
from dphmm.errors import InvalidInputError
from dphmm.evaluation.config import MIN_SEQUENCES, EvaluationConfig, parse_config
from dphmm.evaluation.figures.base import Claim, FigureBuilder, FigureOptions, Panel, PaperFigure, Shape, judge
from dphmm.evaluation.panels import (
    Curves,
    build_curves_by_epsilon,
    build_curves_by_radius,
    build_curves_over_time,
    make_panels,
)
from dphmm.evaluation.report import check_claims
from dphmm.evaluation.run import StepTable, evaluate
from dphmm.geometry.sensitivity_hull import SensitivityHull
from dphmm.mechanisms.norm_noise import KNormMechanism, LaplaceMechanism
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.protection_degrees import degree_of_protection, exposed_states
from dphmm.policy.repair import protect

# f(s1) to f(s6) of Example 3.2.
MEASUREMENTS = np.array([[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]])

# The policy graph of Figure 3(b): all states of a category are connected.
POLICY = PolicyGraph.categorical(["a", "b", "b", "c", "c", "c"])

_AXES = ("first measurement", "second measurement")


def _make_constraint_mask(*states: int) -> np.ndarray:
    """Return the constraint set as a mask. States are numbered from 1, as in the paper."""
    mask = np.zeros(len(MEASUREMENTS), dtype=np.bool_)
    mask[np.array(states) - 1] = True
    return mask


def _label_states(states: IntArray) -> list[str]:
    return [f"s{state + 1}" for state in states.tolist()]


def _draw_graph(edges: IntArray, states: IntArray, added: Sequence[tuple[int, int]] = ()) -> list[Shape]:
    """Return the policy graph in measurement space. Added edges are dashed."""
    new = {tuple(sorted(edge)) for edge in added}
    kept = [edge for edge in edges.tolist() if tuple(sorted(edge)) not in new]
    shapes = [Shape("possible states", "points", MEASUREMENTS[states].astype(np.float64), _label_states(states))]
    for label, pairs, dashed in (("policy edges", kept, False), ("added edge", [*new], True)):
        if pairs:
            shapes.append(Shape(label, "edges", MEASUREMENTS[np.ravel(pairs)].astype(np.float64), dashed=dashed))
    return shapes


def _list_l1_ball_corners(radius: float) -> FloatArray:
    """Return the corners of the ℓ1 ball."""
    return radius * np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])


def _compute_l1_sensitivity(differences: np.ndarray) -> float:
    return float(np.abs(differences).sum(axis=1).max())


def build_figure_7(options: FigureOptions) -> PaperFigure:  # noqa: ARG001 - nothing is random here
    """Compute Figure 7: the policy graph, the sensitivity hull and the ℓ1 ball."""
    differences = POLICY.differences(MEASUREMENTS)
    hull = SensitivityHull(differences)
    sensitivity = _compute_l1_sensitivity(differences)
    degrees = degree_of_protection(POLICY, MEASUREMENTS)
    panels = [
        Panel("(a) policy graph", *_AXES, shapes=_draw_graph(POLICY.edge_array(), np.arange(6))),
        Panel(
            f"(b) hull of area {hull.volume:g}",
            "difference of the first measurement",
            "of the second",
            shapes=[
                Shape("sensitivity hull K", "polygon", hull.vertices),
                Shape("ℓ1 ball of radius S_f", "polygon", _list_l1_ball_corners(sensitivity), dashed=True),
            ],
        ),
    ]
    inside = bool((np.abs(hull.vertices).sum(axis=1) <= sensitivity).all())
    claims = [
        Claim("Figure 7", "The ℓ1 sensitivity is 5.", "5", f"{sensitivity:g}", judge(sensitivity == 5)),
        Claim(
            "Figure 7",
            "The ℓ1 ball contains the sensitivity hull (Corollary 5.1).",
            "drawn",
            f"areas {hull.volume:g} and {2 * sensitivity**2:g}; degrees of protection {degrees.tolist()}",
            judge(inside and hull.volume <= 2 * sensitivity**2),
        ),
        judge_noise_utility(),
    ]
    return PaperFigure("figure_7", "The running example without a constraint.", panels, claims)


def judge_noise_utility() -> Claim:
    """Judge Corollary 5.1 by the errors at ε = 1 in a thin box of three dimensions."""
    edges = [[0.98, 0.01, 0.01], [0.98, 0.01, -0.01], [0.98, -0.01, 0.01], [0.98, -0.01, -0.01]]
    k_norm = KNormMechanism(SensitivityHull(edges), 1.0)
    laplace = LaplaceMechanism(_compute_l1_sensitivity(np.array(edges)), 1.0, 3)
    return Claim(
        "Corollary 5.1",
        "Laplace noise provides no better utility than K-norm noise.",
        "not printed",
        f"squared errors {k_norm.squared_error:.4g} (K-norm) and {laplace.squared_error:.4g} (Laplace) for the hull "
        "with the vertices (±0.98, ±0.01, ±0.01)",
        judge(k_norm.squared_error <= laplace.squared_error),
        "The hull is contained in the ℓ1 ball, but its points have the larger mean squared distance.",
    )


def build_figure_8(options: FigureOptions) -> PaperFigure:  # noqa: ARG001 - nothing is random here
    """Compute Figure 8 and Examples 5.1 and 5.2: a constraint that exposes s5."""
    possible = _make_constraint_mask(2, 3, 5)
    restricted = POLICY.restrict(possible)
    differences = restricted.differences(MEASUREMENTS)
    hull = SensitivityHull(differences)
    sensitivity = _compute_l1_sensitivity(differences)
    exposed = exposed_states(POLICY, MEASUREMENTS, possible)
    # The likelihood ratio of Laplace noise at the output f(s5), against each end of the only edge.
    laplace = LaplaceMechanism(sensitivity, 1.0, 2)
    losses = laplace.privacy_loss(MEASUREMENTS[[4, 4]], MEASUREMENTS[[1, 2]])
    panels = [
        Panel(
            "constrained policy graph", *_AXES, shapes=_draw_graph(restricted.edge_array(), np.flatnonzero(possible))
        ),
        Panel(
            "f(s5) + K and f(s5) + ℓ1 ball",
            *_AXES,
            shapes=[
                Shape("sensitivity hull K", "edges", hull.vertices + MEASUREMENTS[4]),
                Shape(
                    "ℓ1 ball of radius S_f",
                    "polygon",
                    _list_l1_ball_corners(sensitivity) + MEASUREMENTS[4],
                    dashed=True,
                ),
                Shape("possible states", "points", MEASUREMENTS[possible].astype(np.float64), ["s2", "s3", "s5"]),
            ],
        ),
    ]
    claims = [
        Claim(
            "Figure 8",
            "With s2, s3 and s5 possible, s5 is exposed under K-norm noise.",
            "exposed: s5",
            f"exposed: {', '.join(_label_states(exposed))}; the hull has dimension {hull.dimension}",
            judge(exposed.tolist() == [4]),
        ),
        Claim(
            "Example 5.2",
            "Laplace noise does not protect s5 within epsilon.",
            "more than epsilon",
            f"{losses[0]:g} and {losses[1]:g} times epsilon against s2 and s3",
            judge(bool((losses > 1).all())),
        ),
    ]
    return PaperFigure("figure_8", "Exposure under the constraint {s2, s3, s5}.", panels, claims)


def build_figure_9(options: FigureOptions) -> PaperFigure:  # noqa: ARG001 - nothing is random here
    """Compute Figure 9 and Example 6.1: protection, exposure and the three possible repairs."""
    disconnected = _make_constraint_mask(2, 4, 5, 6)
    exposing = _make_constraint_mask(3, 4, 5, 6)
    degrees = degree_of_protection(POLICY, MEASUREMENTS, disconnected)
    exposed = exposed_states(POLICY, MEASUREMENTS, exposing)
    panels = []
    for title, possible, state in (("(a)", disconnected, 1), ("(b)", exposing, 2)):
        graph = POLICY.restrict(possible)
        hull = SensitivityHull(graph.differences(MEASUREMENTS))
        title = f"{title} f(s{state + 1}) + K, area {hull.volume:g}"
        panels.append(_draw_hull_panel(title, graph, possible, hull, state))
    areas = {}
    errors = {}
    for title, partner in (("(c)", 3), ("(d)", 5), ("(e)", 4)):
        graph = POLICY.restrict(exposing).with_edges([(2, partner)])
        hull = SensitivityHull(graph.differences(MEASUREMENTS))
        areas[f"s{partner + 1}"], errors[f"s{partner + 1}"] = hull.volume, hull.squared_error
        title = f"{title} partner s{partner + 1}: area {hull.volume:g}, error² {hull.squared_error:g}"
        panels.append(_draw_hull_panel(title, graph, exposing, hull, 2, [(2, partner)]))
    best = {
        objective: protect(POLICY, MEASUREMENTS, exposing, objective=objective).added
        for objective in ("volume", "error")
    }
    smallest = min(areas, key=areas.__getitem__)
    smallest_error = min(errors, key=errors.__getitem__)
    claims = [
        Claim(
            "Figure 9(a)",
            "s2, which has no edge, has degree of protection 3.",
            "3",
            f"{degrees[1]}",
            judge(degrees[1] == 3),
        ),
        Claim(
            "Figure 9(b)",
            "With s3 to s6 possible, s3 is exposed.",
            "exposed: s3",
            f"exposed: {', '.join(_label_states(exposed))}",
            judge(exposed.tolist() == [2]),
        ),
        Claim(
            "Figure 9(c)",
            "The edge from s3 to s4 gives the hull of least area.",
            "s4",
            ", ".join(f"{name}: {area:g}" for name, area in areas.items()),
            judge(smallest == "s4" and best["volume"] == ((2, 3),)),
        ),
        Claim(
            "Section 6.1, Example 6.1",
            "The graph of least area has the best utility.",
            "s4",
            "expected squared error " + ", ".join(f"{name}: {error:g}" for name, error in errors.items()),
            judge(smallest_error == smallest and best["error"] == best["volume"]),
            "The volume bounds the error only up to a factor; here the least area has the largest error.",
        ),
    ]
    return PaperFigure(
        "figure_9",
        "Protection, exposure and repair of the running example; error² is the expected squared error at ε = 1.",
        panels,
        claims,
    )


def _draw_hull_panel(
    title: str,
    graph: PolicyGraph,
    possible: BoolArray,
    hull: SensitivityHull,
    state: int,
    added: Sequence[tuple[int, int]] = (),
) -> Panel:
    """Draw a policy graph with added edges, and its hull around a state's measurement."""
    around = Shape("sensitivity hull K", "polygon", hull.vertices + MEASUREMENTS[state])
    return Panel(title, *_AXES, shapes=[*_draw_graph(graph.edge_array(), np.flatnonzero(possible), added), around])


def build_figure_14(options: FigureOptions) -> PaperFigure:  # noqa: ARG001 - nothing is random here
    """Compute Figure 14 and Example 5.3: which secrets of a table bounded Blowfish protects."""
    contributions = np.array([[1, 0], [0, 0], [1, 0], [0, 1], [1, 0], [0, 1]])
    secrets = tuple(f"s{i}" for i in range(1, 7))
    audit = audit_blowfish(BlowfishPolicy(secrets, contributions, (("s1", "s2"), ("s3", "s4"))))
    sensitivity = _compute_l1_sensitivity(audit.hull.differences)
    panel = Panel(
        "hull and contributions", "cancer", "diabetes",
        shapes=[
            Shape("sensitivity hull K", "polygon", audit.hull.vertices),
            Shape("ℓ1 ball of radius S_f", "polygon", _list_l1_ball_corners(sensitivity), dashed=True),
            Shape("contribution", "points", np.array([[1.0, 0], [0, 1], [0, 0]]), ["s1, s3, s5", "s4, s6", "s2"]),
        ],
    )  # fmt: skip
    levels = {level.mechanism: level for level in audit.levels}
    factors = {name: level.factors.tolist() for name, level in levels.items()}
    claims = [
        Claim("Example 5.3", "The ℓ1 sensitivity is 2.", "2", f"{sensitivity:g}", judge(sensitivity == 2)),
        Claim(
            "Example 5.3",
            "K-norm noise protects the existence of s1 to s6 at these multiples of epsilon.",
            "1, 0, 1, 2, 1, 2; total 2",
            f"{', '.join(f'{x:g}' for x in factors['k-norm'])}; total {levels['k-norm'].total_factor:g}",
            judge(np.allclose(factors["k-norm"], [1, 0, 1, 2, 1, 2]) and levels["k-norm"].total_factor == 2),
        ),
        Claim(
            "Example 5.3",
            "Laplace noise protects s5 and s6; K-norm noise protects s5 and not s6.",
            "K-norm: s6 exposed; Laplace: none",
            "; ".join(f"{name}: {', '.join(_find_exposed_secrets(audit, name)) or 'none'} exposed" for name in levels),
            judge(_find_exposed_secrets(audit, "k-norm") == ("s6",) and not _find_exposed_secrets(audit, "laplace")),
        ),
    ]
    return PaperFigure("figure_14", "Blowfish privacy of a table of six patients (Example 5.3).", [panel], claims)


def _find_exposed_secrets(audit: SecretsAudit, mechanism: str) -> tuple[str, ...]:
    """Return which of the two secrets without an edge exceed epsilon."""
    level = next(level for level in audit.levels if level.mechanism == mechanism)
    return tuple(name for name in ("s5", "s6") if level.factors[audit.policy.names.index(name)] > 1)


# Outputs for each true state; the paper argues without a simulation.
_ATTACK_RUNS = 10_000

# Distance from a line, in the unit of the measurements, up to which an output of double precision counts as on it.
_LINE_TOLERANCE = 1e-9


def build_figure_15(options: FigureOptions) -> PaperFigure:
    """Compute Figure 15 and Example 10.8: a hull that depends on the true state reveals it.

    The example's hulls are those of a graph in which s4 and s5 are not adjacent. In the policy of Figure 3(b) they
    are, all three states have the same neighbours, and the attack fails.
    """
    runs = options.num_runs(_ATTACK_RUNS)
    rng = np.random.default_rng(options.seed)
    path = PolicyGraph.from_edges(6, [(3, 5), (4, 5)])
    states = np.array([3, 4, 5])
    outputs = {
        state: KNormMechanism(_build_local_hull(path, state), 1.0).sample(MEASUREMENTS[state], rng, runs)
        for state in states.tolist()
    }
    on_45 = {state: _is_on_line(z, 3, 5) for state, z in outputs.items()}
    on_65 = {state: _is_on_line(z, 4, 5) for state, z in outputs.items()}
    identified = {
        3: float((on_45[3] & ~on_65[3]).mean()),
        4: float((on_65[4] & ~on_45[4]).mean()),
        5: float((~on_45[5] & ~on_65[5]).mean()),
    }
    public = KNormMechanism(
        SensitivityHull(path.restrict(_make_constraint_mask(4, 5, 6)).differences(MEASUREMENTS)), 1.0
    )
    largest, supremum = _attack_one_hull(public, states, rng, runs)
    shown = min(runs, 200)
    panels = [
        Panel(
            "(a) a hull for each true state" if hulls == "local" else "(b) one hull for all states", *_AXES,
            shapes=[
                *(Shape(f"outputs of s{state + 1}", "points", z[:shown]) for state, z in drawn.items()),
                Shape("possible states", "points", MEASUREMENTS[states].astype(np.float64), _label_states(states)),
            ],
        )
        for hulls, drawn in (
            ("local", outputs),
            ("public", {state: public.sample(MEASUREMENTS[state], rng, shown) for state in states.tolist()}),
        )
    ]  # fmt: skip
    same = len(
        {tuple(map(tuple, np.round(_build_local_hull(POLICY, state).vertices, 9).tolist())) for state in (3, 4, 5)}
    )
    claims = [
        Claim(
            "Example 10.8",
            "Outputs on the line through s4 and s6 exclude s5, on that through s5 and s6 exclude s4.",
            "always",
            f"outputs of s5 on the first line: {on_45[4].mean():.2%}; of s4 on the second: {on_65[3].mean():.2%}",
            judge(not on_45[4].any() and not on_65[3].any()),
        ),
        Claim(
            "Example 10.8",
            "An output on neither line comes from s6.",
            "always",
            f"identified: {identified[3]:.2%} of the outputs of s4, {identified[4]:.2%} of s5, "
            f"{identified[5]:.2%} of s6",
            judge(not (~on_45[3] & ~on_65[3]).any() and not (~on_45[4] & ~on_65[4]).any()),
        ),
        Claim(
            "Example 10.8",
            "One hull for all true states resists the attack.",
            "implied",
            f"largest posterior {largest:.3f} in {3 * runs:,} outputs, supremum {supremum:.3f} (uniform prior, ε = 1)",
            judge(largest <= supremum + 1e-9 < 1),
        ),
        Claim(
            "Example 10.8",
            "The example applies to the policy graph of Figure 3(b).",
            "stated",
            f"{same} different hulls among s4, s5 and s6 under Definition 10.7",
            judge(same > 1),
            "The example prints the hulls of Figure 3(b) without the edge from s4 to s5.",
        ),
    ]
    caption = f"Attack on local differential privacy (Example 10.8), {runs:,} outputs for each true state, ε = 1."
    return PaperFigure("figure_15", caption, panels, claims)


def _attack_one_hull(
    mechanism: KNormMechanism, states: IntArray, rng: np.random.Generator, runs: int
) -> tuple[float, float]:
    """Return the largest posterior of a state under a uniform prior, and its supremum."""
    posteriors = [
        _compute_posterior(mechanism, mechanism.sample(MEASUREMENTS[state], rng, runs), states) for state in states
    ]
    largest = max(float(posterior.max()) for posterior in posteriors)
    # By the triangle inequality, an output at f(i) has the largest ratios of densities of i to every other state.
    at_states = [_compute_posterior(mechanism, MEASUREMENTS[[state]], states) for state in states]
    return largest, max(float(posterior.max()) for posterior in at_states)


def _build_local_hull(graph: PolicyGraph, state: int) -> SensitivityHull:
    """Return the hull over pairs of states among a state and its neighbours (Definition 10.7)."""
    pairs = graph.edge_array()
    near = {state, *pairs[(pairs == state).any(axis=1)].ravel().tolist()}
    within = [(i, j) for i, j in pairs.tolist() if i in near and j in near]
    return SensitivityHull([MEASUREMENTS[i] - MEASUREMENTS[j] for i, j in within])


def _is_on_line(outputs: FloatArray, first: int, second: int) -> np.ndarray:
    """Return which outputs lie on the line through the measurements of two states."""
    direction = (MEASUREMENTS[second] - MEASUREMENTS[first]).astype(np.float64)
    normal = np.array([-direction[1], direction[0]]) / np.linalg.norm(direction)
    return np.asarray(np.abs((outputs - MEASUREMENTS[first]) @ normal) <= _LINE_TOLERANCE)


def _compute_posterior(mechanism: KNormMechanism, outputs: FloatArray, states: IntArray) -> FloatArray:
    """Return the posterior of each state for each output under a uniform prior, shape (n, k)."""
    logs = np.column_stack([mechanism.log_density(outputs, MEASUREMENTS[[state]]) for state in states])
    likelihoods = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(likelihoods / likelihoods.sum(axis=1, keepdims=True))


# ---- the evaluation on data sets ---------------------------------------------------------------------------------

_DATA_SETS = {"geolife": "GeoLife", "gowalla": "Gowalla"}
# Users of the paper's evaluation (Section 8), one sequence each.
_SEQUENCES = 20


@lru_cache(maxsize=1)
def _evaluate(options: FigureOptions) -> dict[str, tuple[EvaluationConfig, StepTable]]:
    """Return configuration and table of each data set, resuming a run in its folder."""
    if options.folder is None:
        raise InvalidInputError("folder must be given for figures that evaluate a data set, got None")
    rounded = {}
    for name in _DATA_SETS:
        config = parse_config(
            {
                "preset": name,
                "data": [str(getattr(options, name))],
                "skip_bad": True,
                "seed": options.seed,
                "sequences": options.num_runs(_SEQUENCES),
            }
        )
        folder = options.folder / f"PRIVATE-{name}"
        rounded[name] = config, evaluate(config, folder, resume=True, watch=options.progress).evaluation.table()
    return rounded


def _build_panels(options: FigureOptions, metrics: Sequence[str], curves: Curves, x_label: str) -> list[Panel]:
    """Return a panel for each metric and data set, metric by metric as in the paper."""
    panels: list[Panel] = []
    for metric in metrics:
        for name, (config, table) in _evaluate(options).items():
            title = f"({chr(97 + len(panels))}) {_DATA_SETS[name]}"
            panels += make_panels(table, config, [metric], curves, x_label, title)
    return panels


def _build_evaluation_figure(name: str, caption: str, options: FigureOptions, panels: list[Panel]) -> PaperFigure:
    """Return a figure with the claims that the paper makes about it on each data set."""
    number = name.removeprefix("figure_")
    claims = [
        replace(claim, figure=f"Figure {claim.figure}, {_DATA_SETS[data]}")
        for data, (config, table) in _evaluate(options).items()
        for claim in check_claims(table, config)
        if claim.figure == number
    ]
    runs = options.num_runs(_SEQUENCES)
    text = (
        f"{caption} {runs} sequences of 100 timesteps; planar isotropic noise, Algorithm 1; 95 % intervals "
        "over the sequences of one split into folds."
    )
    return PaperFigure(name, text, panels, claims)


def build_figure_10(options: FigureOptions) -> PaperFigure:
    """Compute Figure 10: processor time of a release over time."""
    panels = _build_panels(options, ["runtime_s"], build_curves_over_time, "timestep")
    return _build_evaluation_figure("figure_10", "Runtime of a release.", options, panels)


def build_figure_11(options: FigureOptions) -> PaperFigure:
    """Compute Figure 11: degree of protection and error of the release over time."""
    panels = _build_panels(options, ["protection", "rms_error_km"], build_curves_over_time, "timestep")
    return _build_evaluation_figure(
        "figure_11", "Protection and error over time, running mean of 5 timesteps.", options, panels
    )


def build_figure_12(options: FigureOptions) -> PaperFigure:
    """Compute Figure 12: degree of protection and error by epsilon."""
    panels = _build_panels(options, ["protection", "rms_error_km"], build_curves_by_epsilon, "ε")
    return _build_evaluation_figure("figure_12", "Protection and error by ε.", options, panels)


def build_figure_13(options: FigureOptions) -> PaperFigure:
    """Compute Figure 13: degree of protection and error by the radius of the utility policy."""
    panels = _build_panels(
        options, ["protection", "rms_error_km"], build_curves_by_radius, "radius of the utility policy (km)"
    )
    return _build_evaluation_figure(
        "figure_13", "Protection and error by the radius of the utility policy.", options, panels
    )


# Figures of the paper in its order.
FIGURES: tuple[FigureBuilder, ...] = (
    FigureBuilder("figure_7", "Hull and ℓ1 ball of the running example", build_figure_7),
    FigureBuilder("figure_8", "Exposure under a constraint", build_figure_8),
    FigureBuilder("figure_9", "Protectable graphs", build_figure_9),
    FigureBuilder("figure_10", "Runtime", build_figure_10, tuple(_DATA_SETS), MIN_SEQUENCES),
    FigureBuilder("figure_11", "Performance over time", build_figure_11, tuple(_DATA_SETS), MIN_SEQUENCES),
    FigureBuilder("figure_12", "Impact of epsilon", build_figure_12, tuple(_DATA_SETS), MIN_SEQUENCES),
    FigureBuilder(
        "figure_13", "Impact of the utility policy's radius", build_figure_13, tuple(_DATA_SETS), MIN_SEQUENCES
    ),
    FigureBuilder("figure_14", "Blowfish privacy", build_figure_14),
    FigureBuilder("figure_15", "Attack on local differential privacy", build_figure_15),
)
